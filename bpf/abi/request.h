/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Request rules: what kernel and user space share about requests. Part of the
 * same ABI (TG_ABI_VERSION) as tidegate.h; its Rust side is generated, too.
 *
 * A rule set is filled into the slot that is not in force (TG_SLOTS) and put in
 * force by one word, tg_request_control.slot. Rates of buckets change every
 * tick; they are swapped with all other limits, as one generation.
 */
#ifndef TG_ABI_REQUEST_H
#define TG_ABI_REQUEST_H

#include "tidegate.h"

#define TG_RULES_MAX 1024	/* of all services; 0 is not used */
#define TG_RULE_BUCKETS_MAX 128	/* of all services */
#define TG_PATH_MAX 120		/* bytes of a path that are compared */
#define TG_HOSTS_MAX 1024	/* host names that rules ask for */
#define TG_COOKIE_TESTS_MAX 32	/* (name, value) pairs, all services */
#define TG_ANSWERS_MAX 128	/* of all services, their variants included */
#define TG_ANSWER_VARIANTS 8	/* of one answer: they spread Retry-After */
/*
 * A response is one segment whatever MSS its client has, and nobody remembers
 * which: 536 bytes (RFC 9293, 3.7.1) without 12 of time stamps.
 */
#define TG_ANSWER_BYTES_MAX 524
#define TG_HEAD_MAX 4096	/* bytes of a segment that are looked at */
#define TG_CONN_EXPIRE_NS (60 * TG_NS_PER_S)	/* idle for longer: forgotten */

/* One entry. */
struct tg_request_control {
	__u32 slot;		/* which rule set is in force */
	__u32 services;		/* bit n: service n has rules */
	__u32 cookies;		/* tests in force: the first so many */
	__u32 pad;
	__u64 since_ns;		/* connections whose SYN is older may have
				 * spoken before anybody listened; ~0: all */
};
TG_ASSERT(sizeof(struct tg_request_control) == 24);

/* Methods, as a mask. */
#define TG_METHOD_GET 1
#define TG_METHOD_HEAD 2
#define TG_METHOD_POST 4
#define TG_METHOD_PUT 8
#define TG_METHOD_DELETE 16
#define TG_METHOD_OPTIONS 32
#define TG_METHOD_PATCH 64
#define TG_METHOD_OTHER 128	/* any other token */
#define TG_METHOD_ANY 255

/*
 * Rules are found by the longest prefix of the path; those of TLS by the empty
 * one. From the rule found, `next` names the one to look at if it does not
 * match: those of the same prefix in the order of the file, then those of the
 * next shorter prefix (of HTTP: never those of TLS); 0: there is none. They may
 * all stand in one such row: a step takes some ns (docs/reports/packets.md).
 *
 * A rule, and a bucket, has the same number for as long as it is the same, in
 * both slots and through reloads: what is counted by number goes on.
 */
#define TG_RULE_STEPS 1023

/*
 * A request that has no rule of its own because of how its sender wrote or sent
 * it has the rule that tg_unevaluable names for its service (0: none, it passes):
 * so that evading costs who evades.
 */

struct tg_path_key {
	__u32 bits;		/* 16 + 8 * bytes of the prefix */
	__u8 slot;
	__u8 service;
	__u8 path[TG_PATH_MAX];
	__u8 pad[2];
};

/*
 * Names are compared by a hash with the key of this boot (http/text_hash.h):
 * `shop.example` as it is, `*.shop.example` as `.shop.example`, with its dot; it
 * stands for one label: `a.shop.example`, and not `a.b.shop.example`.
 */
struct tg_host_key {
	__u64 hash;		/* of the name in lower case, without its port */
	__u8 slot;
	__u8 pad[7];
};

struct tg_cookie_test {
	__u64 name;		/* hash */
	__u64 value;		/* hash; 0: any value, also none */
};

#define TG_RULE_TLS 2		/* a connection by its server name (no path) */
#define TG_RULE_CLOSE 4		/* while the bucket refuses, persistent
				 * connections are refused first */

/* How a refused request is answered. */
#define TG_REFUSE_503 1
#define TG_REFUSE_RESET 2
#define TG_REFUSE_DROP 3
#define TG_REFUSE_AUTO 4	/* one of the three, by request and source */

struct tg_rule {
	__u16 next;
	__u8 flags;
	__u8 refuse;
	__u8 methods;
	__u8 bucket;		/* index; TG_RULE_BUCKETS_MAX: no bucket, the
				 * rule admits */
	__u16 answer;		/* first of TG_ANSWER_VARIANTS; for 503 */
	__u32 host;		/* id; 0: any host */
	__u32 cookies_all;	/* tests that must hold */
	__u32 cookies_none;	/* tests that must not */
	__u32 protect;		/* any of them holds: refused last */
};
TG_ASSERT(sizeof(struct tg_rule) == 24);

/*
 * A whole answer, as it goes out: status line, headers, body. The sums are what
 * its bytes add to a checksum (RFC 1071): the 16-bit words as they lie in
 * memory, an odd byte padded with zero, added in ones' complement, folded to 16
 * bits, not inverted.
 */
struct tg_answer_text {
	__u16 bytes;		/* of it all */
	__u16 head;		/* without the body: for HEAD */
	__u16 sum;		/* of it all */
	__u16 sum_head;		/* without the body */
	__u8 text[TG_ANSWER_BYTES_MAX];
};

/*
 * All limits of a tick, in rows of one map: services, then buckets, then datagrams of
 * services, then the number of the tick. They are swapped whole: each look-up reads one generation, and once a swap has
 * returned nobody reads the one before.
 */
#define TG_LIMITS_BUCKETS TG_SERVICES_MAX
#define TG_LIMITS_DATAGRAMS (TG_LIMITS_BUCKETS + TG_RULE_BUCKETS_MAX)
#define TG_LIMITS_HEAD (TG_LIMITS_DATAGRAMS + TG_SERVICES_MAX)
#define TG_LIMITS_ROWS (TG_LIMITS_HEAD + 1)

union tg_limits_row {
	struct tg_limits service;
	struct tg_request_limits bucket;
	struct tg_datagram_limit datagrams;
	__u64 generation;
};

/* Where the request of a connection stands. */
#define TG_CONN_IDLE 0		/* answer complete: may be evaluated */
#define TG_CONN_BODY 1		/* the client still sends its body */
#define TG_CONN_WAIT 2		/* the server has not begun to answer */
#define TG_CONN_ANSWER 3	/* the server is answering */
#define TG_CONN_OPAQUE 4	/* cannot be followed: never evaluated again */
#define TG_CONN_REFUSED 5	/* answered by us: what still comes is closed */

#define TG_CONN_HEAD 1		/* the request is HEAD: an answer without body */
#define TG_CONN_CONNECT 2	/* the request is CONNECT */
#define TG_CONN_FIRST 4		/* no request was seen yet */
#define TG_CONN_LOCAL 8		/* refused: its socket was on this host */
#define TG_CONN_CLIENT_DONE 16	/* the client has sent its FIN */
#define TG_CONN_UNFRAMED 32	/* opaque: where an answer ends was not told */
#define TG_CONN_EVADES 64	/* opaque by what its client sent: each turn is
				 * evaluated; server_next is how far the client
				 * had acknowledged when the last one passed */
#define TG_CONN_OWED 128	/* refused: its FIN was dropped, and is to be
				 * acknowledged once the client has the answer */

#define TG_CONN_REFUSED_EXPIRE_NS (30 * TG_NS_PER_S)	/* idle and refused */

/*
 * A connection of a service with rules, from the end of its handshake on.
 * Verified ones only: spoofed sources cannot fill it. By seeded 64-bit fingerprint,
 * which stands in the value once more: a place may change hands while another
 * CPU still looks at it.
 */
struct tg_conn {
	struct bpf_spin_lock lock;
	__u32 flight;		/* what its request in flight is counted by,
				 * TG_FLIGHT; 0: nothing. Changed by exchange
				 * only: who takes it counts the end. */
	__u64 key;		/* 0: belongs to nobody (any more) */
	__u8 phase;
	__u8 service;
	__u8 flags;		/* TG_CONN_HEAD … */
	__u8 refuse;		/* refused: how, TG_REFUSE_… */
	__u16 answer;		/* refused: which text */
	__u16 rule;		/* of its last request */
	__u32 client_next;	/* sequence number of the client's next byte */
	__u32 server_next;	/* of the server's */
	__u64 request_left;	/* bytes of the request's body to come; ~0:
				 * chunked */
	__u64 answer_left;	/* of the answer; ~0: chunked, ~0 - 1: it ends
				 * with the connection */
	__u32 request_chunk;	/* where in a chunked body */
	__u32 answer_chunk;
	__u64 request_ns;
	__u64 seen_ns;
	__u32 refused_seq;	/* refused: of the request, to reset with */
	__u32 refused_end;	/* refused: what acknowledges all of the answer */
	__u64 repeated_ns;	/* refused: when the answer was sent last */
	__u64 pad;
};
TG_ASSERT(sizeof(struct tg_conn) == 96);

/* In and out of the sweep (hook/sweep.bpf.c). */
struct tg_sweep {
	__u64 now_ns;		/* out */
	__u32 freed;		/* out: connections that are forgotten */
	__u32 kept;		/* out: those that stay */
	__u32 missed;		/* in: bit n: the hooks may have missed packets of
				 * service n: its connections are forgotten */
	__u32 pad;
};
TG_ASSERT(sizeof(struct tg_sweep) == 24);

/* Counts of one rule, per CPU. */
#define TG_RULE_ADMITTED 0
#define TG_RULE_REFUSED 1	/* executed */
#define TG_RULE_SHADOWED 2	/* refused, but only counted */
#define TG_RULE_LEASE 3		/* refused, but the lease has run out */
#define TG_RULE_REPEATED 4	/* an answer sent again */
#define TG_RULE_FAILED 5	/* refused, but the answer could not be made or
				 * sent */
/* Of those that were admitted and followed, by the number of the rule alone. */
#define TG_RULE_BEGUN 6
#define TG_RULE_ENDED 7		/* in flight is the difference */
#define TG_RULE_STARTED 8	/* answers whose first byte was seen */
#define TG_RULE_STARTED_NS 9	/* from their requests, summed */
#define TG_RULE_ANSWERED 10	/* answers whose last byte was seen */
#define TG_RULE_ANSWERED_NS 11	/* from their requests, summed */
#define TG_RULE_COUNTS 12

/*
 * What a request in flight is counted by: its rule, and 1 + the bucket of that
 * rule, if it has one. Both keep their numbers through reloads.
 */
#define TG_FLIGHT_BUCKET 255
#define TG_FLIGHT_RULE_SHIFT 8
#define TG_FLIGHT(rule, bucket)                                 \
	((__u32)(rule) << TG_FLIGHT_RULE_SHIFT |                \
	 ((bucket) < TG_RULE_BUCKETS_MAX ? 1 + (bucket) : 0))

struct tg_rule_counts {
	__u64 cell[TG_RULE_COUNTS];
};

/* Totals of one bucket, per CPU; they only grow. */
struct tg_bucket_totals {
	__u64 offered[TG_RANKS];
	__u64 refused[TG_RANKS];	/* executed; in shadow: would have been */
	__u64 refused_first;		/* of these, first requests of their
					 * connections */
	__u64 begun;			/* admitted and followed */
	__u64 ended;			/* of these: in flight is the difference */
	struct tg_histogram first_byte;
	struct tg_histogram end;	/* request to last byte of the answer */
};

#endif
