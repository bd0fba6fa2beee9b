/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the kernel and user space share of a router's measurement: destinations, what
 * was counted for each, and how long exchanges took. Its maps are its own, and
 * nothing of it is pinned.
 *
 * Addresses are in network order, IPv4 mapped into IPv6 (::ffff:a.b.c.d). Ports
 * and everything else are in host order.
 */
#ifndef TG_ROUTER_ABI_H
#define TG_ROUTER_ABI_H

#include "tidegate.h"
#include "../../policy/chain/refusal.h"
#include "../../policy/router/crowd.h"
#include "../../policy/router/durations.h"

#define TG_ROUTER_SCOPES_MAX 64
#define TG_ROUTER_WAYS 4	/* connections of a set */
#define TG_ROUTER_FLOW_BYTES 64	/* of a connection in the table, with its key */
#define TG_ROUTER_NOTES 65536	/* of handshakes, and of SYNs */
#define TG_ROUTER_RATES 64	/* buckets, as of tg_duration_bucket: 256 B/s … */

/* Where destinations are looked for. */
struct tg_router_scope {
	__u32 addr[4];
	__u32 mask[4];
	__u32 port;		/* 0: every port */
};

struct tg_router_scopes {
	__u32 count;
	__u32 sample;		/* one connection in so many is followed */
	struct tg_router_scope scope[TG_ROUTER_SCOPES_MAX];
};

struct tg_router_key {
	__u32 addr[4];
	__u32 port;
};

/* What was counted for a destination, since the measurement began. */
struct tg_router_counts {
	__u64 syns;		/* first attempts */
	__u64 repeated;		/* SYNs that were seen before */
	__u64 admitted;		/* handshakes proved, of what is sampled */
	__u64 begun;		/* exchanges */
	__u64 completed;
	__u64 given_up;		/* ended without their response */
	__u64 resumed;		/* completed ones whose response then went on */
	__u64 overdue;		/* looks of the sweep at exchanges that take too long */
	__u64 sent;		/* bytes of payload, each once */
	__u64 again;		/* bytes that were sent before */
	__u64 delivered;	/* bytes that clients acknowledged */
	__u64 tokens;		/* SYNs that took one of a limit */
	__u64 refused;		/* SYNs without one: refused, */
	__u64 refused_first;	/* of these first attempts; */
	__u64 reset;		/* of these replied to with a RST; */
	__u64 would_refuse;	/* and passed, in shadow or as the lease ends */
};

struct tg_router_destination {
	struct tg_router_key key;	/* port 0: the place is free */
	__u32 pad;
	struct tg_router_counts counts;
};

struct tg_router_times {
	struct tg_durations durations;
	/* of connections that got bytes: in each round of the sweep, and at the end */
	__u32 rate[TG_ROUTER_RATES];
};

/*
 * A limit on new connections to a destination, by place. User space writes it under
 * its lock; what was used lies in tg_router_bucket, and stays.
 */
struct tg_router_limit {
	struct bpf_spin_lock lock;
	__u32 filter;		/* 1 + the row of its parameters; 0: it has none */
	__u64 identity;		/* by which it is known who was refused */
	struct tg_crowd_limit limit;	/* its key: 1 + the place */
};

struct tg_router_bucket {
	struct bpf_spin_lock lock;
	__u32 pad;
	struct tg_crowd_bucket bucket;
};

/*
 * Filters for Abacus (policy/chain/refusal.h), of destinations that have a limit. A filter
 * has two rows of parameters: one is in force, the other one is written, and then the limit
 * names that.
 */
#define TG_ROUTER_FILTERS 16
#define TG_ROUTER_FILTER_ROWS 2	/* of each */

struct tg_router_filter {
	struct bpf_spin_lock lock;
	__u32 pad;
	struct tg_crowd_filter filter;
};

/* How clients are refused; one entry. That of a prefix lies in its trie, as that of a DSCP. */
struct tg_router_actions {
	struct tg_bucket_params replies;	/* per CPU, those of services included */
	__u32 flags;			/* TG_SERVICE_PREFIXES, TG_SERVICE_DSCP */
	__u32 others;			/* enum tg_crowd_action, of what no class names */
	__u8 dscp[TG_DSCP_MAX];		/* 1 + that of a DSCP; 0: no class */
};

enum tg_router_mode {
	TG_ROUTER_OPEN = 0,	/* limits do not hold */
	TG_ROUTER_SHADOW = 1,	/* refusals are counted, */
	TG_ROUTER_ENFORCE = 2,	/* and executed */
};

/* Of all limits; one entry. */
struct tg_router_control {
	__u64 heartbeat_ns;	/* the lease (policy/chain/lease.h); 0: never */
	__u32 mode;		/* enum tg_router_mode */
	__u32 pad;
};

/* Sources that no limit refuses, and those of classes; longest prefix. */
#define TG_ROUTER_PREFIX_BITS 32	/* before the address */
#define TG_ROUTER_EXEMPT_MAX 8192
#define TG_ROUTER_CLASSES_MAX 16384
struct tg_router_prefix {
	__u32 bits;
	__u32 pad;
	__u8 addr[16];
};

/*
 * How an exchange begins, at a destination whose requests are looked at: of one connection in
 * so many, and of each of these once a second (router/asked.h). User space reads what the
 * packet shows.
 */
#define TG_ROUTER_ASKED_BYTES 512
struct tg_router_asked {
	__u64 connection;	/* its fingerprint */
	__u32 place;		/* of the destination */
	__u32 bytes;		/* of the first segment that are here */
	__u8 payload[TG_ROUTER_ASKED_BYTES];
};

/* What could not be measured, by why. */
enum tg_router_loss {
	TG_ROUTER_FULL = 0,	/* no room for a connection */
	TG_ROUTER_PENDING = 1,	/* a handshake was overwritten by another */
	TG_ROUTER_PLACES = 2,	/* no room for a destination */
	TG_ROUTER_UNKNOWN = 3,	/* SYNs to what has not completed a handshake yet */
};
#define TG_ROUTER_LOSSES 4

/* In and out of the sweep. */
struct tg_router_sweep {
	__u64 now_ns;		/* out */
	__u64 since_ns;		/* in: when these sets were looked at last */
	__u32 from;		/* in: the first set */
	__u32 sets;		/* in: how many */
	__u32 open;		/* out: connections in them */
	__u32 pad;
};

#endif
