/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Exchanges under a fuzzer: any segments of a few connections, in both
 * directions, through the ingress and the egress hook, with a clock that jumps,
 * and with swaps of a connection's word that another CPU wins. Beyond what the
 * sanitizers find, these must hold after any of it:
 *	- the gauges are what the table of flows holds, counted anew
 *	- what waits and what is silent are different connections, all of them open
 *	- no more exchanges are timed than segments of clients had payload
 *	- no more connections were answered than asked, or ended than opened
 *	- every packet passes, unchanged
 * A segment is eight bytes (struct fuzz_step) and its payload.
 */
#define TG_NATIVE_NO_MAIN
#include "../../bpf/tests/native/host.c"
#include "harness.h"

#define FUZZ_CONNECTIONS 4
#define FUZZ_STEPS_MAX 64
#define FUZZ_PAYLOAD_MAX 1460
#define FUZZ_HEADERS 54		/* Ethernet, IPv4, TCP without options */
#define FUZZ_FOREVER 255	/* a pause after which connections are forgotten */
#define FUZZ_PAUSE_NS (16 * 1000000ULL)	/* unit of all other pauses */

struct fuzz_step {
	__u8 flags;		/* of TCP */
	__u8 who;		/* bit 0: the server; 1, 2: which connection; 3: the
				 * stack knows it and its window */
	__u8 pause;
	__s8 seq;		/* 0: what is next; else so much beside it */
	__u8 behind;		/* bytes of the other side that are not acked, / 4 */
	__u8 lose;		/* which swap is lost; 0: none */
	__u16 length;		/* of the payload */
};
TG_ASSERT(sizeof(struct fuzz_step) == 8);

/* What is next of the client and of the server. */
static __u32 fuzz_next[FUZZ_CONNECTIONS][2];
static __u64 fuzz_asked;	/* segments of clients with payload */

static void fuzz_listen(void)
{
	struct tg_listen_key key = { .port = 80, .proto = TG_PROTO_TCP };
	struct tg_listen listen = {};

	key.addr[2] = bpf_htonl(0xffff);
	host_table()->ports[key.port >> 2] |= TG_PORT_ANY << ((key.port & 3) * 2);
	native_add(&tg_listens, &key, &listen);
}

static void fuzz_reset(void)
{
	struct tg_settings *set = host_settings();
	struct tg_control *control = native_entry(&tg_control, 0);

	host_reset();
	native.now_ns = 1000 * TG_NS_PER_S;
	control->released = 1;	/* no limits: this is about what is counted */
	set->flow_timeout_ns = HOST_IDLE_S * TG_NS_PER_S;
	set->flow_mask = set->pending_mask = HOST_TABLE - 1;
	for (int i = 0; i < TG_KEYS; i++)
		set->key[i] = 0x9e3779b97f4a7c15 * (2 * i + 1);
	fuzz_listen();
	fuzz_asked = 0;
	for (int i = 0; i < FUZZ_CONNECTIONS; i++) {
		fuzz_next[i][0] = 1000;
		fuzz_next[i][1] = 5000;
	}
}

static void fuzz_put16(__u32 at, __u32 value)
{
	native.frame[at] = value >> 8;
	native.frame[at + 1] = value;
}

static void fuzz_put32(__u32 at, __u32 value)
{
	fuzz_put16(at, value >> 16);
	fuzz_put16(at + 2, value);
}

/* Writes the segment; its place in the conversation follows. */
static void fuzz_frame(const struct fuzz_step *step, const __u8 *payload,
		       __u32 length)
{
	__u32 connection = step->who >> 1 & (FUZZ_CONNECTIONS - 1);
	__u32 server = step->who & 1, port = 9000 + connection;
	__u32 *next = fuzz_next[connection];
	__u32 ack = next[!server] - step->behind * 4U;

	memset(native.frame, 0, FUZZ_HEADERS);
	fuzz_put16(12, 0x0800);
	native.frame[14] = 0x45;
	fuzz_put16(16, FUZZ_HEADERS - 14 + length);
	native.frame[22] = 64;
	native.frame[23] = TG_PROTO_TCP;
	fuzz_put32(26, server ? 0xc000020a : 0xc6336401);
	fuzz_put32(30, server ? 0xc6336401 : 0xc000020a);
	fuzz_put16(34, server ? 80 : port);
	fuzz_put16(36, server ? port : 80);
	fuzz_put32(38, next[server] + step->seq);
	fuzz_put32(42, step->flags & TG_TCP_ACK ? ack : 0);
	native.frame[46] = 0x50;
	native.frame[47] = step->flags;
	fuzz_put16(48, 0xffff);
	memcpy(native.frame + FUZZ_HEADERS, payload, length);
	if (!step->seq)
		next[server] += length + !!(step->flags & TG_TCP_SYN) +
				!!(step->flags & TG_TCP_FIN);
}

/* Gauges and the table say the same. */
static void fuzz_gauges(void)
{
	const struct tg_gauges *gauges = native_entry(&tg_gauges, 0);
	__s64 open = 0, waiting = 0, silent = 0;

	for (__u32 i = 0; i < HOST_TABLE; i++) {
		const struct tg_flow_set *set = native_entry(&tg_flows, i);

		for (int way = 0; way < TG_FLOW_WAYS; way++) {
			__u64 meta = set->meta[way];

			if (!(meta & TG_FLOW_TAG_MASK))
				continue;
			open++;
			waiting += tg_flow_in_flight(meta);
			silent += tg_flow_silent(meta);
		}
	}
	fuzz_must(gauges->open == open, "open is what the table holds");
	fuzz_must(gauges->waiting == waiting, "waiting is what it holds");
	fuzz_must(gauges->silent == silent, "silent is what it holds");
	fuzz_must(waiting + silent <= open, "nobody waits in silence");
}

static void fuzz_totals(void)
{
	const struct tg_totals *t = native_entry(&tg_totals, 0);

	fuzz_must(t->first_byte.count <= fuzz_asked,
		  "an exchange begins with data of a client");
	fuzz_must(t->ended_exchanges <= t->first_byte.count + t->unknown,
		  "exchanges of connections are exchanges");
	fuzz_must(t->answered <= t->asked, "who is answered has asked");
	fuzz_must(t->asked <= t->proved, "who has asked is proved");
	fuzz_must(t->ended + t->lost <= t->asked,
		  "who ends with exchanges, or without its own, has asked");
	fuzz_must(t->end.count <= t->proved, "what ends was open");
}

static void fuzz_run(const struct fuzz_step *step, const __u8 *payload,
		     __u32 length)
{
	struct sock *sk = &native.tcp.inet_conn.icsk_inet.sk;
	int server = step->who & 1, action;
	__u8 before[FUZZ_HEADERS];

	native.now_ns += step->pause == FUZZ_FOREVER ?
			 2 * HOST_IDLE_S * TG_NS_PER_S :
			 step->pause * FUZZ_PAUSE_NS;
	native.tcp.rcv_nxt = fuzz_next[step->who >> 1 & 3][0];
	native.tcp.rcv_wnd = 1000;
	native.socket.state = step->who & 8 ? 1 : 0;
	sk->sk_max_ack_backlog = 16;
	fuzz_frame(step, payload, length);
	memcpy(before, native.frame, sizeof(before));
	native.length = FUZZ_HEADERS + length;
	native.linear = FUZZ_HEADERS;
	native.lose_at = step->lose & 7;
	native.fail_at = 0;
	native.calls = native.thrown = native.counts_row = native.swaps = 0;
	native.held = native.redirected = 0;
	fuzz_asked += !server && length > 0;
	action = host_call(7, server);
	fuzz_must(action == TG_TC_NEXT, "every packet passes");
	fuzz_must(native.length == FUZZ_HEADERS + length &&
		  !memcmp(before, native.frame, sizeof(before)),
		  "what passes is not changed");
	fuzz_must(!native.held, "nothing is left locked or held");
}

static void fuzz_start(void)
{
	static int started;

	if (started)
		return;
	started = 1;
	native_memory();
	host_maps();
}

int fuzz_one(const unsigned char *data, unsigned long size)
{
	struct fuzz_step step;
	int steps = 0;

	fuzz_start();
	fuzz_reset();
	host_flatten();
	host_listeners();
	while (size >= sizeof(step) && steps++ < FUZZ_STEPS_MAX) {
		__u32 length;

		memcpy(&step, data, sizeof(step));
		data += sizeof(step);
		size -= sizeof(step);
		length = step.length % (FUZZ_PAYLOAD_MAX + 1);
		length = length < size ? length : size;
		fuzz_run(&step, data, length);
		data += length;
		size -= length;
	}
	fuzz_gauges();
	fuzz_totals();
	return 0;
}
