/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * One hook of the dataplane as an ordinary program, with sanitizers, coverage,
 * a clock and dice that the test sets, and helpers that fail on demand
 * (kernel.h). TG_HOOK names the hook's file, TG_HOOK_FN its function;
 * TG_HOOK_EGRESS is the file of the egress hook, where it can be built in.
 *
 * Spoken to as talk.h says, one result for each run; tests/support/native.rs is
 * the other side.
 */
#include TG_HOOK

#ifdef TG_HOOK_EGRESS	/* beside an ingress hook: they share the flow table */
#define _license tg_license_egress
#include TG_HOOK_EGRESS
#endif

#include "kernel.h"
#include "talk.h"

#include <unistd.h>

#define HOST_NONE 0xff
#define HOST_SERVICES 4		/* that the tests configure */
#define HOST_IDLE_S 300		/* after which a connection may be forgotten */
#define HOST_TABLE 1024		/* entries of the tables of connections */
#define HOST_LATELY 64		/* lines of a slice of who was refused */

/* Settings are read-only for the hook, and written here. */
static struct tg_settings *host_settings(void)
{
	__u64 from = (__u64)&settings & ~(__u64)(NATIVE_PAGE - 1);
	__u64 size = (__u64)(&settings + 1) - from;

	if (mprotect((void *)from, size, PROT_READ | PROT_WRITE))
		abort();
	return (struct tg_settings *)&settings;
}

static struct tg_table *host_table(void)
{
	return native_entry(&tg_tables, 0);
}

#include "source_prefixes.h"
#include "listeners.h"

static void host_reset(void)
{
	host_flat = 0;
	for (int i = 0; i < NATIVE_MAPS; i++)
		/* see source_prefixes.h */
		if (native.maps[i].map != &tg_src_prefixes)
			native_clear(&native.maps[i]);
	native.fail_at = native.lose_at = 0;
	native.socket.state = native.listener.state = 0;
	memset(&native.time_wait, 0, sizeof(native.time_wait));
	memset(&native.cookie, 0, sizeof(native.cookie));
	native.tail_min = 0;
}

/* l: where a service listens. */
static void host_listen(struct host_bytes *b)
{
	struct tg_listen_key key = { .proto = TG_PROTO_TCP };
	struct tg_listen listen = {};
	__u32 any;

	host_get(b, key.addr, sizeof(key.addr));
	host_get(b, &key.port, sizeof(key.port));
	any = host_u8(b);
	listen.service = host_u8(b);
	listen.flags = host_u8(b) ? TG_LISTEN_EXEMPT : 0;
	host_table()->ports[key.port >> 2] |=
		(any ? TG_PORT_ANY : TG_PORT_EXACT) << ((key.port & 3) * 2);
	native_add(&tg_listens, &key, &listen);
}

/* p: a prefix of sources, of a class or exempt (no service). */
static void host_prefix(struct host_bytes *b)
{
	struct tg_prefix_key key = { .service = host_u8(b) };
	__u32 class;

	key.bits = 16 + host_u8(b);
	host_get(b, key.addr, sizeof(key.addr));
	class = host_u8(b);
	host_flat = 0;
	if (key.service == TG_SERVICES_MAX)
		host_table()->flags |= TG_TABLE_EXEMPT;
	else
		host_table()->service[key.service].flags |= TG_SERVICE_PREFIXES;
	native_add(&tg_prefixes, &key, &class);
}

/* c: the priority of a class; d: a DSCP of it. */
static void host_class(struct host_bytes *b)
{
	struct tg_service *service = &host_table()->service[host_u8(b)];
	__u32 class = host_u8(b);

	service->priority[class] = host_u8(b);
}

static void host_dscp(struct host_bytes *b)
{
	struct tg_service *service = &host_table()->service[host_u8(b)];
	__u32 class = host_u8(b);

	service->dscp[host_u8(b)] = class;
	service->flags |= TG_SERVICE_DSCP;
}

static void *host_limits_row(__u32 row)
{
	return native_entry(native.maps[NATIVE_MAPS - 1].map, row);
}

/* m: the limits of a service, its gauge and its state's bucket. */
static void host_limits(struct host_bytes *b)
{
	__u32 service = host_u8(b);
	struct tg_limits *limits = host_limits_row(service);
	struct tg_chain *state = native_entry(&tg_states, service);
	struct tg_gauges *gauges = native_entry(&tg_gauges, service * 4);

	host_table()->service[service].gauge = service * 4;
	limits->flags = host_u32(b);
	limits->accept_queue_max_q10 = host_u32(b);
	host_get(b, &limits->in_flight, sizeof(limits->in_flight));
	limits->source_max = host_u32(b);
	limits->min_rate_us = host_u32(b);
	limits->level.queue_q10 = host_u32(b);
	limits->level.in_flight_q10 = host_u32(b);
	limits->until = host_u32(b);
	host_get(b, &limits->params, sizeof(limits->params));
	gauges->waiting = host_u64(b);
	gauges->silent = host_u64(b);
	memset(native_entry(&tg_copies, service), 0, sizeof(struct tg_bucket_copy));
	state->tight = host_u32(b);
	state->min_rate_ns = host_u64(b);
	/* the state of every policy but one begins with its bucket */
	state->state.u.token_bucket.bucket.used = host_u64(b);
	if (limits->params.policy != TG_POLICY_threshold)
		state->state.u.token_bucket.bucket.then_ns = native.now_ns;
}

static void host_cap(struct host_bytes *b, struct tg_bucket_params *params,
		     struct tg_bucket *bucket)
{
	host_get(b, params, sizeof(*params));
	bucket->used = host_u64(b);
	bucket->then_ns = native.now_ns;
}

/* a: tokens for answers, how many of them are used; those for proved sources. */
static void host_answers(struct host_bytes *b)
{
	host_cap(b, &host_table()->answers,
		 native_entry(&tg_answers, TG_ANSWERS_ALL));
	host_cap(b, &host_table()->answers_proved,
		 native_entry(&tg_answers, TG_ANSWERS_PROVED));
}

/* t: the clock and the switches. */
static void host_time(struct host_bytes *b)
{
	struct tg_settings *set = host_settings();
	struct tg_control *control = native_entry(&tg_control, 0);
	struct tg_lease *lease = native_entry(&tg_lease, 0);

	native.now_ns = host_u64(b);
	lease->heartbeat_ns = host_u64(b);
	control->released = host_u8(b);
	set->trust_dscp = host_u8(b);
	set->link = host_u8(b);
	set->answer = set->link & 0xf;
	set->link >>= 4;
	host_table()->sample_admitted = host_u32(b);
	host_table()->sample_refused = host_table()->sample_admitted;
	for (int i = 0; i < TG_KEYS; i++)
		set->key[i] = 0x9e3779b97f4a7c15 * (2 * i + 1);
	set->flow_timeout_ns = HOST_IDLE_S * TG_NS_PER_S;
	set->loaded_ns = native.now_ns;
	set->flow_mask = HOST_TABLE - 1;
	set->pending_mask = HOST_TABLE - 1;
	set->source_mask = HOST_TABLE / TG_SOURCE_WAYS - 1;
	set->lately_mask = HOST_LATELY - 1;
	set->border = 0;
}

/* b: bits of DSCP that are cleared. */
static void host_border(struct host_bytes *b)
{
	host_settings()->border = host_u8(b);
}

/* k: the socket that the tuple meets, and its accept queue. */
static void host_socket(struct host_bytes *b)
{
	struct sock *sk = &native.tcp.inet_conn.icsk_inet.sk;

	native.socket.state = host_u32(b);
	sk->sk_ack_backlog = host_u32(b);
	sk->sk_max_ack_backlog = host_u32(b);
	native.listener.state = 0;
}

/* v: what is in TIME_WAIT, and the state of the socket behind it. */
static void host_time_wait(struct host_bytes *b)
{
	struct tcp_timewait_sock *tw = &native.time_wait;

	tw->tw_sk.__tw_common.skc_tw_rcv_nxt = host_u32(b);
	tw->tw_ts_recent = host_u32(b);
	tw->tw_ts_recent_stamp = host_u32(b);
	tw->tw_sk.tw_substate = host_u32(b);
	native.listener.state = host_u32(b);
}

/* q: what ends a handshake by a cookie that is good. */
static void host_syn_cookie(struct host_bytes *b)
{
	host_get(b, &native.cookie, sizeof(native.cookie));
}

long bpf_tcp_check_syncookie(void *sk, void *iph, __u32 iph_len,
			     struct tcphdr *th, __u32 th_len)
{
	const struct tg_tcp *tcp = (const void *)th;
	struct native_cookie shown = {
		.sport = tcp->sport,
		.dport = tcp->dport,
		.seq = tcp->seq,
		.ack = tcp->ack,
	};
	const struct tg_ipv4 *ipv4 = iph;
	const struct tg_ipv6 *ipv6 = iph;

	if (sk != &native.socket || native.socket.state != 10 /* LISTEN */ ||
	    th_len != sizeof(*tcp) || tcp->flags != TG_TCP_ACK)
		abort();
	if (native_fails(NATIVE_CALL_COOKIE))
		return -2;
	if (ipv4->ver_ihl >> 4 == 6) {
		if (iph_len != sizeof(*ipv6))
			abort();
		memcpy(shown.src, ipv6->src, sizeof(shown.src));
		memcpy(shown.dst, ipv6->dst, sizeof(shown.dst));
	} else {
		if (iph_len != sizeof(*ipv4) || ipv4->ver_ihl != 0x45)
			abort();
		memcpy(shown.src + 12, &ipv4->src, sizeof(ipv4->src));
		memcpy(shown.dst + 12, &ipv4->dst, sizeof(ipv4->dst));
	}
	return memcmp(&shown, &native.cookie, sizeof(shown)) ? -2 : 0;
}

/* w: where the window of that socket begins, and its size. */
static void host_window(struct host_bytes *b)
{
	native.tcp.rcv_nxt = host_u32(b);
	native.tcp.rcv_wnd = host_u32(b);
}

/* u: tokens of a service that are used from now on. */
static void host_used(struct host_bytes *b)
{
	__u32 service = host_u8(b);
	struct tg_chain *state = native_entry(&tg_states, service);

	memset(native_entry(&tg_copies, service), 0, sizeof(struct tg_bucket_copy));
	state->state.u.token_bucket.bucket.used = host_u64(b);
}

/* g: how many connections of a service wait from now on. */
static void host_waiting(struct host_bytes *b)
{
	struct tg_gauges *gauges = native_entry(&tg_gauges, host_u8(b) * 4);

	gauges->waiting = host_u64(b);
}

/* n: what the clock says, and when the daemon last said that it lives. */
static void host_now(struct host_bytes *b)
{
	struct tg_lease *lease = native_entry(&tg_lease, 0);

	native.now_ns = host_u64(b);
	lease->heartbeat_ns = host_u64(b);
}

/* z: which swap of a flow's word is lost, in every run from now on. */
static void host_lose(struct host_bytes *b)
{
	native.lose_at = host_u32(b);
}

static int host_call(__u32 ifindex, int egress)
{
#ifdef TG_AT_XDP
	struct xdp_md ctx = { .ingress_ifindex = ifindex };
#else
	struct __sk_buff ctx = { .ifindex = ifindex };
#endif
	int action;

	native.ctx = &ctx;
	native_show();
#ifdef TG_HOOK_EGRESS
	/* what the verifier wants checked is checked */
	if (tg_parse_ingress(&ctx, NULL) != TG_REASON_LOOKUP_FAILED)
		abort();
	action = egress ? tg_egress(&ctx) : TG_HOOK_FN(&ctx);
#else
	if (egress)
		abort();
	action = TG_HOOK_FN(&ctx);
#endif
	native_take_back();
	native.ctx = NULL;
	return action;
}

/* What was counted: a reason to pass, or a cell of a class's verdicts. */
static void host_put_counts(struct host_bytes *out)
{
	struct tg_reason_counts *passed = native_entry(&tg_passed, 0);
	__u32 row = native.counts_row, cell = TG_COUNTS, times = 0;
	__u8 reason = HOST_NONE;

	/* what a border cleared is counted beside that */
	for (int i = 0; i < TG_PASSED_CLEARED; i++)
		if (passed->reason[i]) {
			reason = i;
			times += passed->reason[i];
		}
	if (row) {
		struct tg_counts *counts = native_entry(&tg_counts, row - 1);

		for (__u32 i = 0; i < TG_COUNTS; i++)
			if (counts->cell[i]) {
				cell = i;
				times += counts->cell[i];
			}
		memset(counts, 0, sizeof(*counts));
	}
	memset(passed, 0, sizeof(*passed));
	host_put_u8(out, reason);
	host_put_u32(out, row);
	host_put_u32(out, cell);
	host_put_u32(out, times);
}

/* What all sources do together; only what was looked at can be other than zero. */
static void host_put_sources(struct host_bytes *out)
{
	const struct native_map *sets = native_map(&tg_source_sets);
	const struct native_map *sources = native_map(&tg_sources);
	const struct tg_source_set *set = (void *)sets->values;
	const struct tg_source *source = (void *)sources->values;
	__u32 open = 0, held = 0, good = 0, bad = 0, exchanges = 0;

	for (__u32 i = sets->from; i < sets->before; i++)
		for (__u32 way = 0; way < TG_SOURCE_WAYS; way++)
			open += set[i].word[way] & TG_SOURCE_OPEN;
	for (__u32 i = sources->from; i < sources->before; i++) {
		held += source[i].held;
		good += source[i].good;
		bad += source[i].bad;
		exchanges += source[i].exchanges;
	}
	host_put_u32(out, open);
	host_put_u32(out, held);
	host_put_u32(out, good);
	host_put_u32(out, bad);
	host_put_u32(out, exchanges);
}

/* What waits at the gauges of the first service, and what it measured. */
static void host_put_signals(struct host_bytes *out)
{
	struct tg_gauges *gauges = native_entry(&tg_gauges, 0);
	struct tg_totals *totals = native_entry(&tg_totals, 0);

	host_put_u32(out, gauges->waiting);
	host_put_u32(out, gauges->open);
	host_put_u32(out, totals->first_byte.count);
	host_put_u32(out, totals->end.count);
	host_put_u32(out, gauges->untracked);
	host_put_u32(out, gauges->evicted);
	host_put_u32(out, gauges->silent);
	host_put_u32(out, totals->replied);
	host_put_u32(out, totals->proved);
	host_put_u32(out, totals->asked);
	host_put_u32(out, totals->answered);
	host_put_u32(out, totals->ended);
	host_put_u32(out, totals->ended_exchanges);
	host_put_u32(out, totals->lost);
	host_put_u32(out, totals->unknown);
	host_put_u32(out, totals->first_byte.sum_ns / 1000000);
	host_put_u32(out, ((struct tg_notes *)native_entry(&tg_notes, 0))->lost);
	host_put_u32(out, gauges->slow);
	host_put_u32(out, gauges->sourceless);
	host_put_sources(out);
}

/* x: runs the hook over a frame; y: the egress hook. */
static void host_run(struct host_bytes *b, struct host_bytes *out, int egress)
{
	__u32 ifindex = host_u32(b), linear = host_u32(b), length;
	int action;

	native.tail_min = host_u32(b);
	native.fail_at = host_u32(b);
	native.random[0] = host_u32(b);
	native.random[1] = host_u32(b);
	length = host_u32(b);
	if (length > NATIVE_FRAME_MAX)
		abort();
	host_get(b, native.frame, length);
	native.length = length;
	native.linear = linear < length ? linear : length;
	native.calls = native.thrown = native.counts_row = native.swaps = 0;
	native.held = native.redirected = 0;
	memset(&native.sample, 0, sizeof(native.sample));
	host_flatten();
	host_listeners();
	action = host_call(ifindex, egress);

	host_put_u32(out, action);
	host_put_u32(out, native.redirected);
	host_put_u32(out, native.held);
	host_put_counts(out);
	host_put_signals(out);
	host_put(out, &native.sample, sizeof(native.sample));
	host_put_u32(out, native.calls);
	host_put(out, native.trace, NATIVE_CALLS_MAX);
	host_put_u32(out, native.length);
	host_put(out, native.frame, native.length);
}

static void host_command(struct host_bytes *b, struct host_bytes *out)
{
	switch (host_u8(b)) {
	case 'r': return host_reset();
	case 'l': return host_listen(b);
	case 'p': return host_prefix(b);
	case 'c': return host_class(b);
	case 'd': return host_dscp(b);
	case 'm': return host_limits(b);
	case 'a': return host_answers(b);
	case 't': return host_time(b);
	case 'k': return host_socket(b);
	case 'v': return host_time_wait(b);
	case 'u': return host_used(b);
	case 'q': return host_syn_cookie(b);
	case 'w': return host_window(b);
	case 'g': return host_waiting(b);
	case 'n': return host_now(b);
	case 'z': return host_lose(b);
	case 'b': return host_border(b);
	case 'x': return host_run(b, out, 0);
	case 'y': return host_run(b, out, 1);
	}
	abort();
}

/* As the hooks declare it, but no larger than the test needs: quick to clear. */
#define HOST_MAP(m, max_here)						\
	native_register((struct native_map){				\
		.map = &m, .name = #m,					\
		.type = sizeof(*m.type) / sizeof(int),			\
		.key_size = sizeof(*m.key),				\
		.value_size = sizeof(*m.value),				\
		.max = host_least(sizeof(*m.max_entries) / sizeof(int),	\
				  max_here),				\
	})

static struct tg_limits_map host_inner;

static __u32 host_least(__u32 a, __u32 b)
{
	return a < b ? a : b;
}

static void host_maps(void)
{
	HOST_MAP(tg_control, 1);
	HOST_MAP(tg_lease, 1);
	HOST_MAP(tg_tables, 1);
	HOST_MAP(tg_listens, 64);
	native_register((struct native_map){
		.map = &tg_prefixes, .name = "tg_prefixes",
		.type = BPF_MAP_TYPE_LPM_TRIE,
		.key_size = sizeof(struct tg_prefix_key),
		.value_size = sizeof(__u32),
		.max = sizeof(host_then.values) / sizeof(__u32),
	});
	native_register((struct native_map){
		.map = &tg_limits, .name = "tg_limits",
		.type = BPF_MAP_TYPE_ARRAY_OF_MAPS,
		.key_size = sizeof(__u32), .value_size = sizeof(__u32), .max = 1,
	});
	HOST_MAP(tg_states, HOST_SERVICES);
	HOST_MAP(tg_counts, HOST_SERVICES * TG_CLASSES_MAX);
	HOST_MAP(tg_passed, 1);
	HOST_MAP(tg_totals, HOST_SERVICES);
	HOST_MAP(tg_gauges, TG_GAUGES_MAX);
	HOST_MAP(tg_answers, 2);
	HOST_MAP(tg_pending, HOST_TABLE);
	HOST_MAP(tg_flows, HOST_TABLE);
	HOST_MAP(tg_src_prefixes, 1);
	HOST_MAP(tg_times, HOST_TABLE);
	HOST_MAP(tg_listeners, 1);
	HOST_MAP(tg_flights, TG_GAUGES_MAX);
	HOST_MAP(tg_notes, 1);
	HOST_MAP(tg_flow_sources, HOST_TABLE);
	HOST_MAP(tg_source_sets, HOST_TABLE / TG_SOURCE_WAYS);
	HOST_MAP(tg_sources, HOST_TABLE);
	HOST_MAP(tg_senders, HOST_SERVICES);
	HOST_MAP(tg_copies, HOST_SERVICES);
	HOST_MAP(tg_lately_turn, 1);
	HOST_MAP(tg_lately, HOST_LATELY * TG_LATELY_SLICES);
	native_register((struct native_map){	/* last: NATIVE_MAPS - 1 */
		.map = &host_inner, .name = "all limits",
		.type = BPF_MAP_TYPE_ARRAY,
		.key_size = sizeof(__u32),
		.value_size = sizeof(union tg_limits_row),
		.max = TG_LIMITS_ROWS,
	});
}

#ifndef TG_NATIVE_NO_MAIN
int main(void)
{
	native_memory();
	host_maps();
	return host_serve(host_command);
}
#endif
