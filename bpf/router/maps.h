/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The maps of a router's measurement and limits. The loader sizes them. Those that any
 * sender can fill are arrays: their size is fixed, and the loss of an entry is harmless.
 * The kill switch, tokens for replies, and who was refused lately, are maps of the
 * dataplane.
 */
#ifndef TG_ROUTER_MAPS_H
#define TG_ROUTER_MAPS_H

#include "../packet/lately.h"
#include "../abi/router.h"
#include "../../policy/router/tsw.h"

/* A connection, beside its fingerprint. */
struct tg_router_flow {
	struct tg_tsw rate;	/* of delivered bytes */
	__u64 began_ns;		/* the exchange: the first packet of its request */
	__u32 acked;		/* ends of the streams: what the client has, */
	__u32 sent;		/* what the server has sent, */
	__u32 asked;		/* and the client */
	__u32 got;		/* bytes of the response that the client has */
	__u32 place;		/* its destination */
	__u32 seen;		/* last, in units of 2^30 ns */
	__u32 phase;		/* enum tg_router_phase */
	__u32 closing;		/* 1: the server has sent its FIN */
};
TG_ASSERT(sizeof(struct tg_router_flow) + sizeof(__u64) == TG_ROUTER_FLOW_BYTES);

struct tg_router_set {
	__u64 fingerprint[TG_ROUTER_WAYS];	/* 0: free, 1: being filled */
	struct tg_router_flow flow[TG_ROUTER_WAYS];
};

/* A SYN-ACK that was seen. */
struct tg_router_note {
	__u64 fingerprint;
	__u32 isn;
	__u32 seen;		/* in units of 2^30 ns */
	__u32 client_isn;	/* as the server acknowledged it */
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tg_router_scopes);
} tg_router_scopes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, TG_PAGE_ALIGNED);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct tg_router_set);
} tg_router_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TG_ROUTER_NOTES);
	__type(key, __u32);
	__type(value, struct tg_router_note);
} tg_router_notes SEC(".maps");

/* The last SYN of each hash. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TG_ROUTER_NOTES);
	__type(key, __u32);
	__type(value, __u64);
} tg_router_syns SEC(".maps");

/* The place of a destination. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct tg_router_key);
	__type(value, __u32);
} tg_router_places SEC(".maps");

/* How many places are taken. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} tg_router_taken SEC(".maps");

/* By place, both. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, TG_PAGE_ALIGNED);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct tg_router_destination);
} tg_router_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, TG_PAGE_ALIGNED);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct tg_router_times);
} tg_router_times SEC(".maps");

/* By place: from how long on, in ns, an exchange takes too long; 0: nobody asks. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} tg_router_overdue SEC(".maps");

/* By place: of one connection in so many it is told what it asks for; 0: of none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} tg_router_looks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 131072);
} tg_router_requests SEC(".maps");

/* By place, both: the limit, and what is used of it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct tg_router_limit);
} tg_router_limits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct tg_router_bucket);
} tg_router_buckets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tg_router_control);
} tg_router_control SEC(".maps");

/*
 * The dataplane's (packet/maps.h): its kill switch opens these limits as well, whether
 * the daemon hangs or not.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tg_control);
} tg_control SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, 1);	/* BPF_F_NO_PREALLOC: the only way for tries */
	__uint(max_entries, TG_ROUTER_EXEMPT_MAX);
	__type(key, struct tg_router_prefix);
	__type(value, __u32);
} tg_router_exempt SEC(".maps");

/* By prefix of a source: 1 + how it is refused (enum tg_crowd_action). */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, 1);	/* BPF_F_NO_PREALLOC */
	__uint(max_entries, TG_ROUTER_CLASSES_MAX);
	__type(key, struct tg_router_prefix);
	__type(value, __u32);
} tg_router_classes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tg_router_actions);
} tg_router_actions SEC(".maps");

/* Filters, and their parameters by row. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tg_router_filter);
} tg_router_filters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TG_ROUTER_FILTER_ROWS);
	__type(key, __u32);
	__type(value, struct tg_abacus_exact_params);
} tg_router_rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TG_ROUTER_LOSSES);
	__type(key, __u32);
	__type(value, __u64);
} tg_router_losses SEC(".maps");

static __always_inline void *tg_router_at(void *map, __u32 index)
{
	return bpf_map_lookup_elem(map, &index);
}

static __always_inline void tg_router_lose(__u32 why)
{
	__u64 *count = tg_router_at(&tg_router_losses, why);

	if (count)
		++*count;
}

#endif
