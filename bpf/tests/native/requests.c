/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * All that a packet meets on a host with request rules, as one ordinary program:
 * the SYN hook and the request hook at ingress, both at egress, the sweep. What
 * goes out as a clone meets the egress hooks while the ingress hook waits, as
 * in the kernel. Built beside host.c, whose commands it adds to; the other side
 * is tests/support/talk.rs.
 */
#define NATIVE_MAPS 41
#define TG_NATIVE_NO_MAIN
#define _license tg_license_in
#include "../../hook/request_in.bpf.c"
#undef _license
#define _license tg_license_out
#include "../../hook/request_out.bpf.c"
#undef _license
#define _license tg_license_sweep
#include "../../hook/sweep.bpf.c"
#undef _license

#define TG_HOOK "../../hook/tc.bpf.c"
#define TG_HOOK_EGRESS "../../hook/egress.bpf.c"
#define TG_HOOK_FN tg_ingress
#include "host.c"

#define HOST_SENT_MAX 4		/* frames that go out in one run */
#define HOST_RULES 9		/* that the tests use */
#define HOST_BUCKETS 4
#define HOST_TEXTS 16
#define HOST_CONNS 64
#define HOST_FRAME_MAX 4096	/* bytes of what goes out */

static struct {
	__u32 count;
	__u32 length[HOST_SENT_MAX];
	__u8 frame[HOST_SENT_MAX][HOST_FRAME_MAX];
} host_out;

/* P: a path of a service leads to a rule. */
static void host_path(struct host_bytes *b)
{
	struct tg_path_key key = { .service = host_u8(b) };
	__u32 rule = host_u8(b), bytes = host_u8(b);

	key.bits = 16 + 8 * bytes;
	host_get(b, key.path, bytes);
	native_add(&tg_paths, &key, &rule);
}

/* Q: a rule. */
static void host_rule(struct host_bytes *b)
{
	struct tg_rule *rule = native_entry(&tg_rules, host_u8(b));

	host_get(b, rule, sizeof(*rule));
}

/* U: the rule of a service for what no other evaluates. */
static void host_unevaluable(struct host_bytes *b)
{
	__u32 *rule = native_entry(&tg_unevaluable, host_u8(b));

	*rule = host_u8(b);
}

/* T: a text, in all of its variants. */
static void host_text(struct host_bytes *b)
{
	struct tg_answer_text text = {};

	host_get(b, &text.bytes, 2);
	host_get(b, &text.head, 2);
	host_get(b, &text.sum, 2);
	host_get(b, &text.sum_head, 2);
	host_get(b, text.text, text.bytes);
	for (__u32 i = 0; i < HOST_TEXTS; i++)
		memcpy(native_entry(&tg_answer_texts, i), &text, sizeof(text));
}

/* B: the limits of a bucket, and what is used of it. */
static void host_bucket(struct host_bytes *b)
{
	__u32 index = host_u8(b);
	struct tg_request_chain *state = native_entry(&tg_buckets, index);

	host_get(b, host_limits_row(TG_LIMITS_BUCKETS + index),
		 sizeof(struct tg_request_limits));
	state->state.u.token_bucket.bucket.used = host_u64(b);
	state->state.u.token_bucket.bucket.then_ns = native.now_ns;
}

/* R: which services have rules, and how many tests of cookies. */
static void host_rules(struct host_bytes *b)
{
	struct tg_request_control *control =
		native_entry(&tg_request_control, 0);

	control->services = host_u32(b);
	control->cookies = host_u32(b);
}

/* L: the hooks see every packet of connections that begin after this. */
static void host_since(struct host_bytes *b)
{
	struct tg_request_control *control =
		native_entry(&tg_request_control, 0);

	control->since_ns = host_u64(b);
}

/* C: a test of a cookie by its name; any value. */
static void host_cookie(struct host_bytes *b)
{
	struct tg_cookie_test *test = native_entry(&tg_cookie_tests,
						   host_u8(b));
	struct tg_text text;
	__u32 bytes = host_u8(b);

	tg_text_begin(&text);
	while (bytes--)
		tg_text_byte(&text, host_u8(b));
	test->name = tg_text_end(&text);
	test->value = 0;
}

/* K: the socket that the tuple meets. */
static void host_full_socket(struct host_bytes *b)
{
	native.socket.state = host_u32(b);
	native.tcp.rcv_nxt = host_u32(b);
	native.tcp.write_seq = host_u32(b);
	native.tcp.bytes_received = host_u32(b);
	native.request.rcv_isn = host_u32(b);
	native.request.snt_isn = host_u32(b);
	native.tcp.rcv_wnd = 65535;
}

static int host_program(int (*program)(struct __sk_buff *), __u32 ifindex)
{
	struct __sk_buff ctx = { .ifindex = ifindex };
	void *before = native.ctx;
	int action;

	native.ctx = &ctx;
	native_show();
	action = program(&ctx);
	native_take_back();
	native.ctx = before;
	return action;
}

/* The frame goes out: both egress hooks see it, and neither may touch it. */
static void host_leave(void)
{
	__u32 at = host_out.count++;

	if (at >= HOST_SENT_MAX || native.length > HOST_FRAME_MAX)
		abort();
	memcpy(host_out.frame[at], native.frame, native.length);
	host_out.length[at] = native.length;
	if (host_program(tg_egress, 7) != TG_TC_NEXT ||
	    host_program(tg_request_out, 7) != TG_TC_NEXT ||
	    memcmp(host_out.frame[at], native.frame, native.length))
		abort();
}

static void host_sent(void)
{
	host_leave();
}

static int host_enter(int egress)
{
	int action = host_program(egress ? tg_egress : tg_ingress, 7);

	if (action != TG_TC_NEXT)
		return action;
	return host_program(egress ? tg_request_out : tg_request_in, 7);
}

static void host_put_frame(struct host_bytes *out, const __u8 *frame,
			   __u32 length)
{
	host_put_u32(out, length);
	host_put(out, frame, length);
}

/* What was counted since the last time, and where the connections stand. */
static void host_put_requests(struct host_bytes *out)
{
	const struct native_map *conns = native_map(&tg_conns);
	struct tg_reason_counts *reasons = native_entry(&tg_request_reasons, 0);
	__u32 count = 0;
	struct tg_conn *last = NULL;
	__u64 none = ~0ULL;

	for (int i = 0; i < TG_REASONS_MAX; i++)
		host_put_u32(out, reasons->reason[i]);
	memset(reasons, 0, sizeof(*reasons));
	for (int i = 0; i < HOST_RULES; i++) {
		struct tg_rule_counts *c = native_entry(&tg_rule_counts, i);

		for (int j = 0; j < TG_RULE_COUNTS; j++)
			host_put_u32(out, c->cell[j]);
		memset(c, 0, sizeof(*c));
	}
	for (int i = 0; i < HOST_BUCKETS; i++) {
		struct tg_bucket_totals *t = native_entry(&tg_bucket_totals, i);

		for (int j = 0; j < TG_RANKS; j++)
			host_put_u32(out, t->offered[j]);
		for (int j = 0; j < TG_RANKS; j++)
			host_put_u32(out, t->refused[j]);
		host_put_u32(out, t->begun);
		host_put_u32(out, t->ended);
		host_put_u32(out, t->first_byte.count);
		host_put_u32(out, t->end.count);
		host_put_u32(out, t->refused_first);
	}
	for (__u32 i = 0; i < conns->used; i++)
		if (memcmp(conns->keys + i * conns->key_size, &none, 8)) {
			last = (void *)(conns->values + i * conns->value_size);
			count++;
		}
	host_put_u32(out, count);
	host_put_u32(out, last ? last->phase : HOST_NONE);
	host_put_u32(out, last ? last->flight : 0);
}

/* i: a packet of a client's; o: one of the server's. */
static void host_packet(struct host_bytes *b, struct host_bytes *out,
			int egress)
{
	struct tg_gauges *gauges = native_entry(&tg_gauges, 0);
	__u32 linear = host_u32(b), length;
	int action;

	native.tail_min = host_u32(b);
	native.fail_at = host_u32(b);
	native.random[0] = native.random[1] = host_u32(b);
	length = host_u32(b);
	if (length > NATIVE_FRAME_MAX)
		abort();
	host_get(b, native.frame, length);
	native.length = length;
	native.linear = linear < length ? linear : length;
	native.calls = native.thrown = 0;
	native.held = native.redirected = 0;
	host_out.count = 0;
	host_flatten();
	host_listeners();
	native.sent = host_sent;
	action = host_enter(egress);
	if (native.held)
		abort();
	if (action == 7) {
		native.fail_at = 0;
		host_leave();
	}
	host_put_u32(out, action);
	host_put_frame(out, native.frame, native.length);
	host_put_u32(out, host_out.count);
	for (__u32 i = 0; i < host_out.count; i++)
		host_put_frame(out, host_out.frame[i], host_out.length[i]);
	host_put_requests(out);
	host_put_u32(out, gauges->waiting);
	host_put_u32(out, gauges->open);
	host_put_u32(out, native.calls);
	host_put(out, native.trace, NATIVE_CALLS_MAX);
}

/* s: the sweep; of which services the hooks missed packets; what it says. */
static void host_sweep(struct host_bytes *b, struct host_bytes *out)
{
	struct tg_sweep result = { .missed = host_u32(b) };

	memset(native.frame, 0, NATIVE_FRAME_MAX);
	native.length = native.linear = TG_SWEEP_AT + sizeof(result);
	memcpy(native.frame + TG_SWEEP_AT, &result, sizeof(result));
	native.fail_at = 0;
	host_program(tg_sweep, 7);
	memcpy(&result, native.frame + TG_SWEEP_AT, sizeof(result));
	host_put_u32(out, result.freed);
	host_put_u32(out, result.kept);
	host_put_requests(out);
}

static void host_request_command(struct host_bytes *b, struct host_bytes *out)
{
	switch (*b->at) {
	case 'P': b->at++; return host_path(b);
	case 'Q': b->at++; return host_rule(b);
	case 'T': b->at++; return host_text(b);
	case 'U': b->at++; return host_unevaluable(b);
	case 'B': b->at++; return host_bucket(b);
	case 'R': b->at++; return host_rules(b);
	case 'C': b->at++; return host_cookie(b);
	case 'K': b->at++; return host_full_socket(b);
	case 'i': b->at++; return host_packet(b, out, 0);
	case 'o': b->at++; return host_packet(b, out, 1);
	case 'L': b->at++; return host_since(b);
	case 's': b->at++; return host_sweep(b, out);
	}
	host_command(b, out);
}

static void host_request_maps(void)
{
	HOST_MAP(tg_request_control, 1);
	native_register((struct native_map){
		.map = &tg_paths, .name = "tg_paths",
		.type = BPF_MAP_TYPE_LPM_TRIE,
		.key_size = sizeof(struct tg_path_key),
		.value_size = sizeof(__u32), .max = HOST_RULES,
	});
	HOST_MAP(tg_rules, HOST_RULES);
	native_register((struct native_map){
		.map = &tg_hosts, .name = "tg_hosts", .type = BPF_MAP_TYPE_HASH,
		.key_size = sizeof(struct tg_host_key),
		.value_size = sizeof(__u32), .max = HOST_RULES,
	});
	HOST_MAP(tg_cookie_tests, TG_COOKIE_TESTS_MAX);
	HOST_MAP(tg_answer_texts, HOST_TEXTS);
	HOST_MAP(tg_buckets, HOST_BUCKETS);
	HOST_MAP(tg_bucket_totals, HOST_BUCKETS);
	HOST_MAP(tg_unevaluable, HOST_SERVICES);
	HOST_MAP(tg_rule_counts, HOST_RULES);
	HOST_MAP(tg_request_reasons, HOST_SERVICES);
	HOST_MAP(tg_conns, HOST_CONNS);
	HOST_MAP(tg_head, TG_HEADS);
	HOST_MAP(tg_work, 1);
}

int main(void)
{
	native_memory();
	host_request_maps();
	host_maps();
	return host_serve(host_request_command);
}
