/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Passive signals: how many connections wait for an answer, and how long.
 *
 * A SYN that passes leaves a note in `pending`, a fixed array that strangers
 * may overwrite as they like. The server's SYN-ACK adds its ISN. An ACK that
 * names this ISN proves that the client receives what is sent to its address:
 * only then a connection gets a place in the flow table.
 *
 *	SYN ──► pending ──ISN, ACK──► waiting ──first byte──► answered
 *	                                 ▲                       │
 *	                                 └──── client's data ────┘
 *	FIN of the server, RST of either, idle too long ──► free
 *
 * A flow's meta word holds its whole state; each transition is one
 * compare-and-swap, and who wins it moves the gauges: they stay exact, also
 * when both directions run on two CPUs.
 *	bit 0		waiting
 *	bits 8…15	index of the service's gauges
 *	bits 16…39	last seen, in units of 2^27 ns (134 ms), wrapping
 *	bits 40…63	part of the fingerprint, so that a swap meant for one
 *			connection cannot hit the next in the same place
 */
#ifndef TG_FLOW_H
#define TG_FLOW_H

#include "count.h"
#include "hash.h"
#include "maps.h"

#define TG_FLOW_FREE 0ULL
#define TG_FLOW_BUSY 1ULL
#define TG_FLOW_WAITING 1ULL
#define TG_FLOW_GAUGE_SHIFT 8
#define TG_FLOW_SEEN_SHIFT 16
#define TG_FLOW_SEEN_BITS 0xffffffULL
#define TG_FLOW_SEEN_MASK (TG_FLOW_SEEN_BITS << TG_FLOW_SEEN_SHIFT)
#define TG_FLOW_TICK_SHIFT 27	/* ns to units of last seen */
#define TG_FLOW_TOUCH 8		/* units: touch about once a second */
#define TG_FLOW_TAG_MASK (0xffffffULL << 40)

static __always_inline __u64 tg_swap(__u64 *at, __u64 old, __u64 new)
{
	return __sync_val_compare_and_swap(at, old, new);
}

static __always_inline __u64 tg_flow_meta(__u64 fingerprint, __u32 gauge,
					  __u64 now_ns)
{
	__u64 seen = now_ns >> TG_FLOW_TICK_SHIFT & TG_FLOW_SEEN_BITS;

	return (fingerprint & TG_FLOW_TAG_MASK) | seen << TG_FLOW_SEEN_SHIFT |
	       (__u64)gauge << TG_FLOW_GAUGE_SHIFT;
}

/* Units since a flow was last seen. */
static __always_inline __u64 tg_flow_idle(__u64 meta, __u64 now_ns)
{
	__u64 seen = meta >> TG_FLOW_SEEN_SHIFT & TG_FLOW_SEEN_BITS;

	return ((now_ns >> TG_FLOW_TICK_SHIFT) - seen) & TG_FLOW_SEEN_BITS;
}

static __always_inline struct tg_gauges *tg_flow_gauges(__u64 meta)
{
	return tg_at(&tg_gauges,
		     meta >> TG_FLOW_GAUGE_SHIFT & (TG_GAUGES_MAX - 1));
}

static __always_inline struct tg_totals *tg_flow_totals(__u64 meta)
{
	__u32 gauge = meta >> TG_FLOW_GAUGE_SHIFT & (TG_GAUGES_MAX - 1);

	return tg_at(&tg_totals, gauge / TG_GAUGES_EACH);
}

static __always_inline struct tg_flow_set *tg_flow_set(__u64 fingerprint)
{
	return tg_at(&tg_flows,
		     (__u32)(fingerprint >> 8) & settings.flow_mask);
}

static __always_inline struct tg_flow *tg_flow_find(struct tg_flow_set *set,
						    __u64 fingerprint)
{
	if (READ_ONCE(set->way[0].fingerprint) == fingerprint)
		return &set->way[0];
	if (READ_ONCE(set->way[1].fingerprint) == fingerprint)
		return &set->way[1];
	if (READ_ONCE(set->way[2].fingerprint) == fingerprint)
		return &set->way[2];
	if (READ_ONCE(set->way[3].fingerprint) == fingerprint)
		return &set->way[3];
	return 0;
}

/* What no live flow has: its gauge would be 255. */
#define TG_FLOW_NONE (~0ULL)

/* The meta word of a flow, if it is still that of this fingerprint. */
static __always_inline __u64 tg_flow_read(const struct tg_flow *flow,
					  __u64 fingerprint)
{
	__u64 meta = READ_ONCE(flow->meta);

	return (meta ^ fingerprint) & TG_FLOW_TAG_MASK ? TG_FLOW_NONE : meta;
}

/* Ends a flow whose meta word was read as `meta`; 1 for who won it. */
static __always_inline int tg_flow_free(struct tg_flow *flow, __u64 meta)
{
	struct tg_gauges *gauges;

	if (meta == TG_FLOW_NONE ||
	    tg_swap(&flow->meta, meta, TG_FLOW_NONE) != meta)
		return 0;
	WRITE_ONCE(flow->fingerprint, TG_FLOW_FREE);
	gauges = tg_flow_gauges(meta);
	if (gauges) {
		__sync_fetch_and_add(&gauges->open, -1);
		if (meta & TG_FLOW_WAITING)
			__sync_fetch_and_add(&gauges->waiting, -1);
	}
	return 1;
}

/* Frees a flow that was idle too long; 1 if it did. */
static __always_inline int tg_flow_evict(struct tg_flow *flow, __u64 now_ns)
{
	__u64 meta = READ_ONCE(flow->meta);
	struct tg_gauges *gauges;

	if (READ_ONCE(flow->fingerprint) <= TG_FLOW_BUSY ||
	    tg_flow_idle(meta, now_ns) <=
	    settings.flow_timeout_ns >> TG_FLOW_TICK_SHIFT)
		return 0;
	if (!tg_flow_free(flow, meta))
		return 0;
	gauges = tg_flow_gauges(meta);
	if (gauges)
		__sync_fetch_and_add(&gauges->evicted, 1);
	return 1;
}

/* A place for a new flow: a free one, else one that was idle too long. */
static __always_inline struct tg_flow *tg_flow_claim(struct tg_flow_set *set,
						     __u64 now_ns)
{
	for (int i = 0; i < TG_FLOW_WAYS; i++)
		if (tg_swap(&set->way[i].fingerprint, TG_FLOW_FREE,
			    TG_FLOW_BUSY) == TG_FLOW_FREE)
			return &set->way[i];
	for (int i = 0; i < TG_FLOW_WAYS; i++)
		if (tg_flow_evict(&set->way[i], now_ns) &&
		    tg_swap(&set->way[i].fingerprint, TG_FLOW_FREE,
			    TG_FLOW_BUSY) == TG_FLOW_FREE)
			return &set->way[i];
	return 0;
}

static __always_inline struct tg_pending *tg_pending_of(__u64 fingerprint)
{
	return tg_at(&tg_pending,
		     (__u32)(fingerprint >> 8) & settings.pending_mask);
}

/* A SYN passed. */
static __always_inline void tg_flow_syn(const struct tg_packet *p, __u64 now_ns)
{
	__u64 fingerprint = tg_hash_flow(p, 0);
	struct tg_pending *pending = tg_pending_of(fingerprint);

	if (!pending)
		return;
	pending->isn = 0;
	pending->syn_ns = now_ns;
	pending->fingerprint = fingerprint >> 32;
}

/*
 * The server's SYN-ACK. A flow that is still here under the same tuple is an
 * earlier connection whose end was not seen.
 */
static __always_inline void tg_flow_syn_ack(const struct tg_packet *p)
{
	__u64 fingerprint = tg_hash_flow(p, 1);
	struct tg_pending *pending = tg_pending_of(fingerprint);
	struct tg_flow_set *set = tg_flow_set(fingerprint);
	struct tg_flow *stale;

	if (!pending || pending->fingerprint != (__u32)(fingerprint >> 32))
		return;
	pending->isn = p->seq;
	stale = set ? tg_flow_find(set, fingerprint) : 0;
	if (stale)
		tg_flow_free(stale, tg_flow_read(stale, fingerprint));
}

static __always_inline void tg_flow_open(__u64 fingerprint, __u32 gauge,
					 __u64 syn_ns, __u64 now_ns)
{
	struct tg_flow_set *set = tg_flow_set(fingerprint);
	__u64 meta = tg_flow_meta(fingerprint, gauge, now_ns) | TG_FLOW_WAITING;
	struct tg_gauges *gauges = tg_flow_gauges(meta);
	struct tg_flow *flow;

	if (!set || !gauges)
		return;
	flow = tg_flow_claim(set, now_ns);
	if (!flow) {
		__sync_fetch_and_add(&gauges->untracked, 1);
		return;
	}
	__sync_fetch_and_add(&gauges->open, 1);
	__sync_fetch_and_add(&gauges->waiting, 1);
	flow->syn_ns = syn_ns;
	flow->request_ns = syn_ns;
	tg_swap(&flow->meta, READ_ONCE(flow->meta), meta);
	tg_swap(&flow->fingerprint, TG_FLOW_BUSY, fingerprint);
}

/* An ACK to a service without a flow: the end of a handshake, perhaps. */
static __always_inline void tg_flow_ack(const struct tg_packet *p,
					__u64 fingerprint, __u32 gauge)
{
	struct tg_pending *pending = tg_pending_of(fingerprint);
	__u32 print = fingerprint >> 32;
	__u64 now_ns, syn_ns;

	if (!pending || pending->fingerprint != print || !pending->isn ||
	    p->ack != pending->isn + 1)
		return;
	syn_ns = pending->syn_ns;
	/* Whoever clears the note opens the flow: once. */
	if (__sync_val_compare_and_swap(&pending->fingerprint, print,
					0) != print)
		return;
	now_ns = bpf_ktime_get_ns();
	tg_flow_open(fingerprint, gauge, syn_ns, now_ns);
}

static __always_inline void tg_flow_touch(struct tg_flow *flow, __u64 meta)
{
	__u64 now_ns = bpf_ktime_get_coarse_ns();
	__u64 seen = now_ns >> TG_FLOW_TICK_SHIFT & TG_FLOW_SEEN_BITS;

	if (tg_flow_idle(meta, now_ns) >= TG_FLOW_TOUCH)
		tg_swap(&flow->meta, meta, (meta & ~TG_FLOW_SEEN_MASK) |
					   seen << TG_FLOW_SEEN_SHIFT);
}

static __always_inline void tg_flow_end(struct tg_flow *flow, __u64 meta)
{
	struct tg_totals *totals = tg_flow_totals(meta);
	__u64 syn_ns = flow->syn_ns;

	if (tg_flow_free(flow, meta) && totals)
		tg_record(&totals->end,
			  tg_elapsed_ns(bpf_ktime_get_ns(), syn_ns));
}

/* A packet of the client. */
static __always_inline void tg_flow_ingress(struct tg_flow *flow,
					    const struct tg_packet *p,
					    __u64 fingerprint)
{
	__u64 meta = tg_flow_read(flow, fingerprint);
	struct tg_gauges *gauges;

	if (unlikely(meta == TG_FLOW_NONE))
		return;
	if (p->flags & TG_TCP_RST) {
		tg_flow_end(flow, meta);
		return;
	}
	if (!p->payload || meta & TG_FLOW_WAITING) {
		tg_flow_touch(flow, meta);
		return;
	}
	gauges = tg_flow_gauges(meta);
	if (!gauges)
		return;
	flow->request_ns = bpf_ktime_get_ns();
	if (tg_swap(&flow->meta, meta, meta | TG_FLOW_WAITING) == meta)
		__sync_fetch_and_add(&gauges->waiting, 1);
}

/* The first byte of an answer; returns the meta word that now holds. */
static __always_inline __u64 tg_flow_answer(struct tg_flow *flow, __u64 meta)
{
	struct tg_totals *totals = tg_flow_totals(meta);
	struct tg_gauges *gauges = tg_flow_gauges(meta);
	__u64 request_ns = flow->request_ns;
	__u64 now_ns = bpf_ktime_get_ns();
	__u64 seen = now_ns >> TG_FLOW_TICK_SHIFT & TG_FLOW_SEEN_BITS;
	__u64 answered = (meta & ~(TG_FLOW_WAITING | TG_FLOW_SEEN_MASK)) |
			 seen << TG_FLOW_SEEN_SHIFT;

	if (!gauges || !totals)
		return meta;
	if (tg_swap(&flow->meta, meta, answered) != meta)
		return READ_ONCE(flow->meta);
	__sync_fetch_and_add(&gauges->waiting, -1);
	tg_record(&totals->first_byte, tg_elapsed_ns(now_ns, request_ns));
	return answered;
}

/* A packet of the server. */
static __always_inline void tg_flow_egress(struct tg_flow *flow,
					   const struct tg_packet *p,
					   __u64 fingerprint)
{
	__u64 meta = tg_flow_read(flow, fingerprint);

	if (unlikely(meta == TG_FLOW_NONE))
		return;
	if (p->payload && meta & TG_FLOW_WAITING)
		meta = tg_flow_answer(flow, meta);
	if (p->flags & (TG_TCP_FIN | TG_TCP_RST))
		tg_flow_end(flow, meta);
	else
		tg_flow_touch(flow, meta);
}

#endif
