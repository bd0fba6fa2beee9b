/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * An ingress hook under a fuzzer: a few bytes choose the set-up and which
 * helper call fails, the rest is the frame. Beyond what the sanitizers find,
 * these must hold of every frame:
 *	- what passes is not changed; at a border only marks and options are cleared
 *	- released, without a lease, or without a limit, everything passes
 *	- an answer is a RST, never longer than the frame it answers
 *	- exactly one thing is counted, and nothing is left locked or held;
 *	  a datagram to a service, where these are counted, counts as one
 * TG_HOOK and TG_HOOK_FN say which hook (as for bpf/tests/native/host.c).
 */
#define TG_NATIVE_NO_MAIN
#define NATIVE_MAPS 29	/* those of datagrams beside the others */
#include "../../bpf/tests/native/host.c"
#include "harness.h"

#define FUZZ_POLICIES (TG_POLICY_abacus_learned + 1)
#define FUZZ_HEAD 12	/* bytes before the frame */

/* Bits of the first byte. */
enum fuzz_switch {
	FUZZ_SHADOW = 1,
	FUZZ_REJECT = 2,
	FUZZ_EMPTY = 4,		/* no token is left */
	FUZZ_TRUST = 8,
	FUZZ_RELEASED = 16,
	FUZZ_NO_LEASE = 32,
	FUZZ_LOOPBACK = 64,
	FUZZ_NO_LIMIT = 128,
};

#define FUZZ_TRIE 64	/* in policy: tables are searched, not read */
#define FUZZ_DATAGRAMS 128	/* in policy: datagrams are counted, and limited */
#define FUZZ_BORDER 64		/* in fail_at: packets come from outside */
#define FUZZ_FAIL 63		/* the rest of it */
#define FUZZ_MARKS 6

struct fuzz_head {
	__u8 switches;
	__u8 policy;		/* and, above it, how to answer */
	__u8 linear;		/* 0: all of the frame */
	__u8 fail_at;
	__u8 socket;		/* state, accept queue */
	__u8 waiting;
	__u8 lease_age;		/* 1/20 s */
	__u8 queue_share;
	__u8 dice[4];
};
TG_ASSERT(sizeof(struct fuzz_head) == FUZZ_HEAD);

static void fuzz_listen(__u32 ipv6, __u32 addr, __u16 port, __u8 service)
{
	struct tg_listen_key key = { .port = port, .proto = TG_PROTO_TCP };
	struct tg_listen listen = { .service = service };
	__u32 kind = addr ? TG_PORT_EXACT : TG_PORT_ANY;

	key.addr[2] = ipv6 ? 0 : bpf_htonl(0xffff);
	key.addr[3] = bpf_htonl(addr);
	listen.flags = port == 22 ? TG_LISTEN_EXEMPT : 0;
	host_table()->ports[port >> 2] |= kind << ((port & 3) * 2);
	native_add(&tg_listens, &key, &listen);
}

static void fuzz_prefix(__u8 service, __u8 first, __u8 bits, __u32 class)
{
	struct tg_prefix_key key = { .service = service };

	key.bits = 16 + 96 + bits;
	key.addr[10] = key.addr[11] = 0xff;
	key.addr[12] = first;
	native_add(&tg_prefixes, &key, &class);
}

/* 192.0.2.10:80 and :22, any address :443; 10/8 is exempt. */
static void fuzz_tables(const struct fuzz_head *head)
{
	struct tg_table *table = host_table();
	struct tg_service *service = &table->service[0];

	fuzz_listen(0, 0xc000020a, 80, 0);
	fuzz_listen(0, 0xc000020a, 22, 0);
	fuzz_listen(0, 0, 443, 1);
	fuzz_listen(1, 0, 443, 1);
	fuzz_prefix(TG_SERVICES_MAX, 10, 8, 1);
	fuzz_prefix(0, 198, 8, 1);
	fuzz_prefix(0, 128, 1, 2);
	table->flags = TG_TABLE_EXEMPT;
	table->sample_admitted = table->sample_refused = 1;
	host_flat = head->policy & FUZZ_TRIE;
	host_flatten();
	if (!(head->policy & FUZZ_TRIE))
		host_listeners();
	service->flags = TG_SERVICE_PREFIXES | TG_SERVICE_DSCP;
	service->priority[0] = table->service[1].priority[0] = 7;
	service->priority[1] = 3;
	service->dscp[46] = 1;
	table->service[1].gauge = TG_GAUGES_EACH;
}

static void fuzz_bucket(struct tg_bucket_params *bucket)
{
	bucket->rate_milli = 1;
	bucket->depth = 8 * TG_TOKEN;
	bucket->full_ns = bucket->depth;
}

static void fuzz_limits(const struct fuzz_head *head, __u32 service)
{
	struct tg_limits *limits = host_limits_row(service);
	struct tg_chain *state = native_entry(&tg_states, service);
	struct tg_params *params = &limits->params;
	int on = head->switches;

	limits->flags = (on & FUZZ_SHADOW ? TG_LIMITS_SHADOW : 0) |
			(on & FUZZ_REJECT ? TG_LIMITS_REJECT : 0);
	params->policy = (head->policy & 7) % FUZZ_POLICIES;
	if (on & FUZZ_NO_LIMIT)
		return;
	limits->accept_queue_max_q10 = head->queue_share * 4;
	limits->in_flight.max = head->waiting >> 4;
	limits->in_flight.low = head->waiting >> 6;
	limits->in_flight.rest = head->socket >> 6;
	limits->in_flight.asks = head->queue_share * 4;
	limits->min_rate_us = head->queue_share & 3;
	/* every policy's parameters and state begin with its bucket */
	fuzz_bucket(&params->u.token_bucket.bucket);
	if (params->policy == TG_POLICY_token_bucket)
		params->u.token_bucket.action = on & FUZZ_REJECT ? 2 : 1;
	if (params->policy == TG_POLICY_fresh_first)
		params->u.fresh_first.action = on & FUZZ_REJECT ? 2 : 1;
	if (params->policy == TG_POLICY_abacus)
		params->u.abacus.period_ns = TG_NS_PER_S;
	if (params->policy == TG_POLICY_abacus_exact)
		params->u.abacus_exact.period_ns = TG_NS_PER_S;
	if (params->policy == TG_POLICY_abacus_learned)
		params->u.abacus_learned.slot_ns = TG_NS_PER_S / 4;
	state->state.u.token_bucket.bucket.then_ns = native.now_ns;
	if (on & FUZZ_EMPTY)
		state->state.u.token_bucket.bucket.used = 8 * TG_TOKEN;
}

static void fuzz_datagrams(const struct fuzz_head *head, __u32 service)
{
	struct tg_datagram_limit *limit =
		host_limits_row(TG_LIMITS_DATAGRAMS + service);
	struct tg_datagram_chain *chain =
		native_entry(&tg_datagram_states, service);
	int on = head->switches;

	limit->flags = on & FUZZ_SHADOW ? TG_LIMITS_SHADOW : 0;
	if (on & FUZZ_NO_LIMIT)
		return;
	fuzz_bucket(&limit->bucket);
	limit->bucket.depth += TG_DATAGRAM_DEBT;
	limit->bucket.full_ns = limit->bucket.depth;
	chain->bucket.then_ns = native.now_ns;
	if (on & FUZZ_EMPTY)
		chain->bucket.used = 8 * TG_TOKEN;
}

static void fuzz_switches(const struct fuzz_head *head)
{
	struct tg_control *control = native_entry(&tg_control, 0);
	struct tg_lease *lease = native_entry(&tg_lease, 0);
	struct tg_gauges *gauges = native_entry(&tg_gauges, 0);
	struct tg_settings *set = host_settings();

	native.now_ns = 1000 * TG_NS_PER_S;
	control->released = !!(head->switches & FUZZ_RELEASED);
	if (!(head->switches & FUZZ_NO_LEASE))
		lease->heartbeat_ns = native.now_ns -
				      head->lease_age * (TG_NS_PER_S / 20);
	gauges->waiting = head->waiting & 15;
	gauges->silent = head->socket >> 4;
	set->trust_dscp = !!(head->switches & FUZZ_TRUST);
	set->answer = (head->policy >> 3 & 7) % 3;
	set->flow_timeout_ns = HOST_IDLE_S * TG_NS_PER_S;
	set->flow_mask = set->pending_mask = HOST_TABLE - 1;
	set->datagrams = !!(head->policy & FUZZ_DATAGRAMS);
	set->border = head->fail_at & FUZZ_BORDER ? FUZZ_MARKS : 0;
}

static void fuzz_socket(const struct fuzz_head *head)
{
	static const __u8 states[] = { 0, 10, 10, 10, 1, 6, 12, 7 };
	struct sock *sk = &native.tcp.inet_conn.icsk_inet.sk;

	native.socket.state = states[head->socket & 7];
	sk->sk_ack_backlog = head->socket >> 3;
	sk->sk_max_ack_backlog = 16;
}

static int fuzz_is_answer(int action)
{
#ifdef TG_AT_XDP
	return action == XDP_TX || action == XDP_REDIRECT;
#else
	return action == 7;
#endif
}

static int fuzz_is_pass(int action)
{
#ifdef TG_AT_XDP
	return action == XDP_PASS;
#else
	return action == TG_TC_NEXT;
#endif
}

static int fuzz_is_drop(int action)
{
#ifdef TG_AT_XDP
	return action == XDP_DROP;
#else
	return action == TG_TC_SHOT;
#endif
}

/* The frame is a RST now, behind up to two tags. */
static int fuzz_is_reset(void)
{
	__u32 at = 12;

	for (int i = 0; i < 2; i++)
		if ((native.frame[at] == 0x81 && !native.frame[at + 1]) ||
		    (native.frame[at] == 0x88 && native.frame[at + 1] == 0xa8))
			at += 4;
	at += 2 + (native.frame[at] == 0x08 ? 20 : 40);
	return native.length == at + 20 && native.frame[at + 13] == 0x14;
}

/* Where the header of IPv4 is, behind up to two tags; 0: there is none. */
static __u32 fuzz_ipv4_at(const __u8 *frame, __u32 length)
{
	for (__u32 at = 12; at <= 20 && at + 22 <= length; at += 4) {
		__u32 kind = frame[at] << 8 | frame[at + 1];

		if (kind == 0x0800)
			return frame[at + 2] >> 4 == 4 ? at + 2 : 0;
		if (kind != 0x8100 && kind != 0x88a8)
			return 0;
	}
	return 0;
}

/* The sum of the words, as a checksum has it: 0 and 0xffff say the same. */
static __u32 fuzz_sum(const __u8 *header, __u32 bytes)
{
	__u32 sum = 0;

	for (__u32 i = 0; i < bytes; i++)
		sum += header[i] << (i & 1 ? 0 : 8);
	return sum % 0xffff;
}

/* A byte of the header may be another one behind a border. */
static int fuzz_may_clear(__u32 at, __u8 was, __u8 now)
{
	if (at == 1)
		return !(was >> 2 & ~FUZZ_MARKS) && now == (was & TG_IPV4_ECN);
	return at == 10 || at == 11 || (at >= 20 && now == TG_BORDER_NOP);
}

/*
 * At a border a DSCP that is a mark is 0 and options are NOPs from one of kind 158 on;
 * the checksum says as much as before. All else is as it was.
 */
static int fuzz_is_cleared(const __u8 *frame, __u32 length)
{
	const __u8 *now = native.frame;
	__u32 at = fuzz_ipv4_at(frame, length), bytes = 20, from = 20;

	if (!at)
		return !memcmp(now, frame, length);
	if ((frame[at] & 15) > 5)
		bytes = (frame[at] & 15) * 4;
	/* what cannot be read stays */
	if (at + bytes > length)
		return !memcmp(now, frame, length);
	for (__u32 i = 0; i < bytes; i++)
		if (now[at + i] != frame[at + i] &&
		    !fuzz_may_clear(i, frame[at + i], now[at + i]))
			return 0;
	while (from < bytes && now[at + from] == frame[at + from])
		from++;
	return (from == bytes || frame[at + from] == TG_OPTION_KIND) &&
	       fuzz_sum(now + at, bytes) == fuzz_sum(frame + at, bytes) &&
	       !memcmp(now, frame, at) &&
	       !memcmp(now + at + bytes, frame + at + bytes,
		       length - at - bytes);
}

static int fuzz_is_same(const __u8 *frame, __u32 length, int border)
{
	if (native.length != length)
		return 0;
	return border ? fuzz_is_cleared(frame, length) :
			!memcmp(native.frame, frame, length);
}

/* It is counted what a border changed, and nothing else. */
static void fuzz_check_border(const struct fuzz_head *head, const __u8 *frame,
			      __u32 length, int action)
{
	const struct tg_reason_counts *passed = native_entry(&tg_passed, 0);
	__u64 cleared = passed->reason[TG_PASSED_CLEARED];
	int changed;

	fuzz_must(cleared <= !!(head->fail_at & FUZZ_BORDER),
		  "a border counts a packet once");
	if (!fuzz_is_pass(action))
		return;
	fuzz_must(fuzz_is_same(frame, length, head->fail_at & FUZZ_BORDER),
		  "what passes is not changed");
	changed = !!memcmp(native.frame, frame, length);
	fuzz_must(cleared == changed || (head->fail_at & FUZZ_FAIL && !cleared),
		  "what a border changes is counted");
}

static void fuzz_check(const struct fuzz_head *head, const __u8 *frame,
		       __u32 length, int action)
{
	const struct tg_reason_counts *passed = native_entry(&tg_passed, 0);
	__u64 counted = 0;
	int open = head->switches & (FUZZ_RELEASED | FUZZ_NO_LEASE |
				     FUZZ_NO_LIMIT);

	fuzz_must(fuzz_is_pass(action) || fuzz_is_drop(action) ||
		  fuzz_is_answer(action), "the hook says pass, drop or answer");
	fuzz_must(!native.held, "nothing is left locked or held");
	fuzz_check_border(head, frame, length, action);
	if (open || head->switches & FUZZ_SHADOW)
		fuzz_must(fuzz_is_pass(action), "this set-up refuses nothing");
	if (fuzz_is_answer(action)) {
		fuzz_must(native.length <= length, "an answer is not longer");
		fuzz_must(fuzz_is_reset(), "an answer is a RST");
		fuzz_must((head->policy >> 3 & 7) % 3 != TG_ANSWER_NEVER,
			  "answers are allowed");
	}
	for (int i = 0; i < TG_PASSED_CLEARED; i++)
		counted += passed->reason[i];
	if (native.counts_row) {
		const struct tg_counts *counts =
			native_entry(&tg_counts, native.counts_row - 1);

		for (int i = 0; i < TG_COUNTS; i++)
			counted += counts->cell[i];
	}
	for (int service = 0; service < 2; service++) {
		const struct tg_datagrams *of =
			native_entry(&tg_datagrams, service);

		counted += of->offered;
		fuzz_must(of->refused + of->spared <= of->offered,
			  "no more is refused than came");
	}
	fuzz_must(counted == 1 || (head->fail_at & FUZZ_FAIL && !counted),
		  "one thing is counted");
}

static void fuzz_start(void)
{
	static int started;

	if (started)
		return;
	started = 1;
	native_memory();
	HOST_MAP(tg_datagrams, HOST_SERVICES);
	HOST_MAP(tg_datagram_states, HOST_SERVICES);
	host_maps();
}

int fuzz_one(const unsigned char *data, unsigned long size)
{
	struct fuzz_head head;
	__u32 length;
	int action;

	if (size < sizeof(head) || size - sizeof(head) > NATIVE_FRAME_MAX)
		return 0;
	memcpy(&head, data, sizeof(head));
	data += sizeof(head);
	length = size - sizeof(head);
	fuzz_start();
	host_reset();
	fuzz_switches(&head);
	fuzz_tables(&head);
	fuzz_limits(&head, 0);
	fuzz_limits(&head, 1);
	fuzz_datagrams(&head, 0);
	fuzz_datagrams(&head, 1);
	fuzz_bucket(&host_table()->answers);
	fuzz_socket(&head);
	memcpy(native.frame, data, length);
	native.length = length;
	native.linear = head.linear && head.linear < length ? head.linear : length;
	native.fail_at = head.fail_at & FUZZ_FAIL;
	memcpy(native.random, head.dice, sizeof(head.dice));
	native.calls = native.thrown = native.counts_row = 0;
	native.held = native.redirected = 0;
	action = host_call(head.switches & FUZZ_LOOPBACK ? 1 : 7, 0);
	fuzz_check(&head, data, length, action);
	return 0;
}
