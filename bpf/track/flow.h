/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Passive signals: the connections of a service that are open, and which of them
 * the server owes a response. This is the table; track/turn.h says what moves a
 * connection in it.
 *
 * A SYN that passes leaves a note in `pending`, a fixed array that any sender
 * may overwrite; the loss of a young note is counted (tg_notes). The server's
 * SYN-ACK adds its ISN. An ACK that names this ISN proves that the client receives
 * what is sent to its address: only then a connection gets a place in the flow table.
 *
 *	SYN ──► pending ──ISN, ACK──► open, silent ──► … (track/turn.h)
 *	FIN of the server, RST of either, idle too long ──► free
 *
 * A flow is one word; each transition is one compare-and-swap, and who wins it
 * moves the gauges: they stay exact, also when both directions run on two CPUs.
 *	bit 0		waiting: the server owes something; counted in flight where
 *			its stack has taken the connection, too (bit 41)
 *	bits 1…7	part of the fingerprint, bit 1 always set
 *	bits 8…15	index of the service's gauges
 *	bits 16…31	last seen, in units of 2^27 ns (134 ms), wrapping
 *	bits 32…34	what it talks: enum tg_talk
 *	bits 35…41	asked, behind, turn, h2, watch, slow, taken: see below
 *	bits 42…63	part of the fingerprint
 * A connection is known by its set and these 28 bits of its fingerprint: of 2^28
 * packets that belong to no flow, about four are taken for one of a set's four.
 * Each moves a gauge by one.
 *
 * A full accept queue drops what ends a handshake, and the request behind it: the
 * client takes the connection for open and sends again, for a minute and more, and
 * gets in whenever there is a place. The server says nothing to it, not even an
 * acknowledgement. Such a connection is open, and its client waits, but it is not
 * in flight: the server does not know it (syn/late.h).
 *
 * Each connection holds the place of its source (track/source.h) while it is open.
 *
 * track/conn.h has a record of its own for services with request rules. A record
 * here may be lost at any time; one there is locked, and counts what is in flight.
 * docs/decisions/0023 says why they are not one.
 */
#ifndef TG_FLOW_H
#define TG_FLOW_H

#include "../packet/count.h"
#include "../packet/hash.h"
#include "../packet/maps.h"
#include "source.h"
#include "talk.h"

#define TG_FLOW_FREE 0ULL
#define TG_FLOW_BUSY 1ULL	/* no part of a fingerprint: being filled */
#define TG_FLOW_WAITING 1ULL
#define TG_FLOW_WAY_MASK (TG_FLOW_WAYS - 1)
#define TG_FLOW_GAUGE_SHIFT 8
#define TG_FLOW_SEEN_SHIFT 16
#define TG_FLOW_SEEN_BITS 0xffffULL
#define TG_FLOW_SEEN_MASK (TG_FLOW_SEEN_BITS << TG_FLOW_SEEN_SHIFT)
#define TG_FLOW_TICK_SHIFT 27	/* ns to units of last seen */
#define TG_FLOW_TOUCH 8		/* units: touch about once a second */
#define TG_FLOW_TAG_MASK (0x3fffffULL << 42 | 0xfe)
#define TG_FLOW_TALK_SHIFT 32
#define TG_FLOW_TALK_MASK (7ULL << TG_FLOW_TALK_SHIFT)
#define TG_FLOW_ASKED (1ULL << 35)	/* it has sent a first request */
#define TG_FLOW_BEHIND (1ULL << 36)	/* waits behind a flight of tickets */
#define TG_FLOW_TURN (1ULL << 37)	/* a request has no response yet */
#define TG_FLOW_H2 (1ULL << 38)		/* offered, or chosen */
#define TG_FLOW_WATCH (1ULL << 39)	/* what the server says is looked at */
#define TG_FLOW_SLOW (1ULL << 40)	/* its client is slow to send a request */
#define TG_FLOW_TAKEN (1ULL << 41)	/* the server's stack has said something */

/*
 * The lowest bit of a note's and of a flow's syn_ns: the client has sent data, so
 * what comes is not the first request of its connection any more. A nanosecond,
 * more or less, changes no measure.
 */
#define TG_FLOW_SPOKE 1ULL
/* The next one: it sent them in its SYN, and the SYN-ACK has acknowledged them. */
#define TG_FLOW_FAST 2ULL

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
	__u64 idle = ((now_ns >> TG_FLOW_TICK_SHIFT) - seen) & TG_FLOW_SEEN_BITS;

	/* another CPU's clock was ahead of what this one read a moment ago */
	return idle > TG_FLOW_SEEN_BITS / 2 ? 0 : idle;
}

static __always_inline struct tg_gauges *tg_flow_gauges(__u64 meta)
{
	return tg_at(&tg_gauges,
		     meta >> TG_FLOW_GAUGE_SHIFT & (TG_GAUGES_MAX - 1));
}

/*
 * Requests of a service that wait for a response. One that is on its way to the
 * server counts once the server's stack has taken it (track/turn.h).
 */
static __always_inline __s64 tg_gauge_waiting(__u32 gauge)
{
	const struct tg_gauges *gauges = tg_at(&tg_gauges,
					       gauge & (TG_GAUGES_MAX - 1));

	return gauges ? READ_ONCE(gauges->waiting) : 0;
}

static __always_inline __u32 tg_flow_service(__u64 meta)
{
	__u32 gauge = meta >> TG_FLOW_GAUGE_SHIFT & (TG_GAUGES_MAX - 1);

	return gauge / TG_GAUGES_EACH;
}

static __always_inline struct tg_totals *tg_flow_totals(__u64 meta)
{
	return tg_at(&tg_totals, tg_flow_service(meta));
}

static __always_inline __u32 tg_flow_index(__u64 fingerprint)
{
	return (__u32)(fingerprint >> 8) & settings.flow_mask;
}

static __always_inline struct tg_flow_set *tg_flow_set(__u64 fingerprint)
{
	return tg_at(&tg_flows, tg_flow_index(fingerprint));
}

static __always_inline int tg_flow_is(__u64 meta, __u64 fingerprint)
{
	return !((meta ^ fingerprint) & TG_FLOW_TAG_MASK);
}

/* The number of a way among all: what its source is noted under. */
static __always_inline __u32 tg_flow_number(__u32 index, __u32 way)
{
	return index * TG_FLOW_WAYS + (way & TG_FLOW_WAY_MASK);
}

/* A connection and the word that holds it. */
struct tg_flow {
	__u64 *at;
	__u64 fingerprint;
	__u32 way;
};

/* Zero if the set does not hold this connection. */
static __always_inline int tg_flow_find(struct tg_flow *flow)
{
	struct tg_flow_set *set = tg_flow_set(flow->fingerprint);

	if (!set)
		return 0;
#pragma unroll
	for (__u32 way = 0; way < TG_FLOW_WAYS; way++)
		if (tg_flow_is(READ_ONCE(set->meta[way]), flow->fingerprint)) {
			flow->at = &set->meta[way];
			flow->way = way;
			return 1;
		}
	return 0;
}

static __always_inline __u32 tg_flow_number_of(const struct tg_flow *flow)
{
	return tg_flow_number(tg_flow_index(flow->fingerprint), flow->way);
}

/* What few packets need of it; zero if the table cannot be read. */
static __always_inline struct tg_flow_way *
tg_flow_way(const struct tg_flow *flow)
{
	struct tg_flow_times *times =
		tg_at(&tg_times, tg_flow_index(flow->fingerprint));

	return times ? &times->way[flow->way & TG_FLOW_WAY_MASK] : 0;
}

/* What no live flow has: its gauge would be 255. */
#define TG_FLOW_NONE (~0ULL)

/* The word of a flow, if it is still that of this fingerprint. */
static __always_inline __u64 tg_flow_read(const struct tg_flow *flow)
{
	__u64 meta = READ_ONCE(*flow->at);

	return tg_flow_is(meta, flow->fingerprint) ? meta : TG_FLOW_NONE;
}

/* 1: its client has sent no request, and waits for nothing. */
static __always_inline int tg_flow_silent(__u64 meta)
{
	return !(meta & (TG_FLOW_ASKED | TG_FLOW_WAITING));
}

/* 1: the server owes it something, and knows it. */
static __always_inline int tg_flow_in_flight(__u64 meta)
{
	return (meta & TG_FLOW_WAITING) && (meta & TG_FLOW_TAKEN);
}

/* 1: it may hold a worker of the server, which waits for its client. */
static __always_inline int tg_flow_held(__u64 meta)
{
	return tg_flow_silent(meta) || meta & TG_FLOW_SLOW;
}

/* Where the place of a flow's source is noted; zero if it cannot be read. */
static __always_inline __u32 *tg_flow_source(__u32 number)
{
	struct tg_flow_sources *sources =
		tg_at(&tg_flow_sources, number / TG_FLOW_WAYS);

	return sources ? &sources->place[number & TG_FLOW_WAY_MASK] : 0;
}

/* What moves the gauges, and the counts of sources. */
#define TG_FLOW_GAUGED \
	(TG_FLOW_WAITING | TG_FLOW_ASKED | TG_FLOW_SLOW | TG_FLOW_TAKEN)

/*
 * Moves the gauges as a word has changed. Not static: the verifier looks at it
 * once.
 */
__noinline int tg_flow_gauge(struct tg_gauges *gauges, __u32 number,
			     __u64 from, __u64 to)
{
	int waits = tg_flow_in_flight(to) - tg_flow_in_flight(from);
	int slow = !!(to & TG_FLOW_SLOW) - !!(from & TG_FLOW_SLOW);
	int silent = tg_flow_silent(to) - tg_flow_silent(from);
	__u32 *source;

	if (!gauges)
		return 0;
	if (waits)
		__sync_fetch_and_add(&gauges->waiting, waits);
	if (silent)
		__sync_fetch_and_add(&gauges->silent, silent);
	if (slow)
		__sync_fetch_and_add(&gauges->slow, slow);
	if (!(silent + slow))
		return 0;
	source = tg_flow_source(number);
	if (source)
		tg_source_held(READ_ONCE(*source), silent + slow);
	return 0;
}

static __always_inline void tg_flow_moved(struct tg_gauges *gauges,
					  __u32 number, __u64 from, __u64 to)
{
	if ((from ^ to) & TG_FLOW_GAUGED)
		tg_flow_gauge(gauges, number, from, to);
}

/* A connection ended that had this word, and this source. */
__noinline int tg_flow_left(__u64 meta, __u32 place)
{
	struct tg_gauges *gauges = tg_flow_gauges(meta);
	struct tg_source *source = tg_source_at(place);

	if (gauges) {
		__sync_fetch_and_add(&gauges->open, -1);
		if (tg_flow_in_flight(meta))
			__sync_fetch_and_add(&gauges->waiting, -1);
		if (tg_flow_silent(meta))
			__sync_fetch_and_add(&gauges->silent, -1);
		if (meta & TG_FLOW_SLOW)
			__sync_fetch_and_add(&gauges->slow, -1);
	}
	if (source && tg_flow_held(meta)) {
		tg_source_held(place, -1);
		source->bad++;
		tg_source_forget(source);
	}
	tg_source_close(place);
	return 0;
}

/* Ends a flow whose word was read as `meta`; 1 for who won it. */
static __always_inline int tg_flow_free(__u64 *at, __u32 number, __u64 meta)
{
	/* before it is free: then it is another connection's */
	__u32 *source = tg_flow_source(number);
	__u32 place = source ? READ_ONCE(*source) : TG_SOURCE_NONE;

	if (meta == TG_FLOW_NONE ||
	    tg_swap(at, meta, TG_FLOW_FREE) != meta)
		return 0;
	tg_flow_left(meta, place);
	return 1;
}

/* Frees a flow that was idle too long; 1 if it did. */
static __always_inline int tg_flow_evict(__u64 *at, __u32 number, __u64 now_ns)
{
	__u64 meta = READ_ONCE(*at);
	struct tg_gauges *gauges;

	if (!(meta & TG_FLOW_TAG_MASK) ||
	    tg_flow_idle(meta, now_ns) <=
	    settings.flow_timeout_ns >> TG_FLOW_TICK_SHIFT)
		return 0;
	if (!tg_flow_free(at, number, meta))
		return 0;
	gauges = tg_flow_gauges(meta);
	if (gauges) {
		__sync_fetch_and_add(&gauges->evicted, 1);
		if (tg_flow_in_flight(meta))
			__sync_fetch_and_add(&gauges->forgotten, 1);
	}
	return 1;
}

static __always_inline int tg_flow_take(__u64 *at)
{
	return tg_swap(at, TG_FLOW_FREE, TG_FLOW_BUSY) == TG_FLOW_FREE;
}

/* A way for a new flow: a free one, else one that was idle too long. */
static __always_inline __u32 tg_flow_claim(struct tg_flow_set *set,
					   __u32 index, __u64 now_ns)
{
	for (__u32 way = 0; way < TG_FLOW_WAYS; way++)
		if (tg_flow_take(&set->meta[way]))
			return way;
	for (__u32 way = 0; way < TG_FLOW_WAYS; way++)
		if (tg_flow_evict(&set->meta[way], tg_flow_number(index, way),
				  now_ns) &&
		    tg_flow_take(&set->meta[way]))
			return way;
	return TG_FLOW_WAYS;
}

/*
 * The note of a connection, or the place of another one. Two places that share
 * a cache line are tried: with one, a seventh of the SYNs would find it taken
 * while a table is filled to a seventh.
 */
static __always_inline struct tg_pending *tg_pending_of(__u64 fingerprint)
{
	__u32 at = (__u32)(fingerprint >> 8) & settings.pending_mask;
	__u32 print = fingerprint >> 32;
	struct tg_pending *first = tg_at(&tg_pending, at), *second;

	if (!first || first->fingerprint == print)
		return first;
	second = tg_at(&tg_pending, at ^ 1);
	return second && second->fingerprint == print ? second : first;
}

/*
 * A note is young for as long as the first three repetitions of a SYN may come
 * (1, 3 and 7 s after it). One that is overwritten before that is counted.
 */
#define TG_NOTE_YOUNG_NS (7 * TG_NS_PER_S)

/* Of two places of other connections, the free one or the older. */
static __always_inline struct tg_pending *
tg_pending_older(struct tg_pending *a, struct tg_pending *b)
{
	if (!a->fingerprint)
		return a;
	return !b->fingerprint || b->syn_ns < a->syn_ns ? b : a;
}

/* Where a connection's note is written; a young one that goes is counted. */
static __always_inline struct tg_pending *tg_pending_take(__u64 fingerprint,
							  __u64 now_ns)
{
	__u32 at = (__u32)(fingerprint >> 8) & settings.pending_mask;
	struct tg_pending *pending = tg_pending_of(fingerprint), *other;
	__u32 print = fingerprint >> 32;
	struct tg_notes *notes;

	if (!pending || pending->fingerprint == print)
		return pending;
	other = tg_at(&tg_pending, at ^ 1);
	if (other)
		pending = tg_pending_older(pending, other);
	if (!pending->fingerprint ||
	    tg_elapsed_ns(now_ns, pending->syn_ns) >= TG_NOTE_YOUNG_NS)
		return pending;
	notes = tg_at(&tg_notes, 0);
	if (notes)
		notes->lost++;
	return pending;
}

/* Reads the note of a SYN, without using it: as tg_chain_fetch(). */
static __always_inline void tg_flow_fetch(__u64 fingerprint)
{
	const struct tg_pending *pending = tg_pending_of(fingerprint);

	if (pending)
		(void)READ_ONCE(pending->fingerprint);
}

/*
 * A SYN passed. Its data (TCP Fast Open) may be a request, which the server has
 * before the handshake ends; a SYN that is sent again carries none, and must not
 * make that forgotten.
 */
static __always_inline void tg_flow_syn(const struct tg_packet *p,
					__u64 fingerprint, __u32 gauge,
					__u8 noted, __u64 now_ns)
{
	const __u64 said = TG_FLOW_SPOKE | TG_FLOW_FAST;
	__u64 spoke = p->payload ? said : 0;
	struct tg_pending *pending = tg_pending_take(fingerprint, now_ns);
	__u32 print = fingerprint >> 32;

	if (!pending)
		return;
	if (pending->fingerprint == print)
		spoke |= pending->syn_ns & said;
	pending->isn = 0;
	pending->syn_ns = (now_ns & ~said) | spoke;
	pending->copy_ns = now_ns;
	pending->seq = p->seq;
	pending->copies = 0;
	pending->gauge = gauge;
	pending->noted = noted;
	pending->fingerprint = print;
}

/*
 * A copy of a SYN that passed, whose handshake has not ended: 1 if it passes, too,
 * TG_COPY_IGNORED if the server has not replied to the first. Where the server's
 * stack keeps a socket for the first one, that says it (track/queue.h); behind SYN
 * cookies, and on a router, nothing but the note does.
 * No more copies than a client sends by itself (Linux: tcp_syn_linear_timeouts, 4
 * since 6.5, and tcp_syn_retries, 6; the last after 67 s), and not in quick
 * succession: one SYN that was paid for must not let a flood in.
 */
#define TG_COPY_IGNORED 2
#define TG_COPIES_MAX 10
#define TG_COPY_SPACING_NS (TG_NS_PER_S / 2)
#define TG_COPY_NS (70 * TG_NS_PER_S)	/* after the first */

static __always_inline int tg_flow_is_copy(const struct tg_packet *p,
					   __u64 fingerprint, __u64 now_ns)
{
	struct tg_pending *pending = tg_pending_of(fingerprint);
	__u32 print = fingerprint >> 32;

	if (!pending || pending->fingerprint != print ||
	    pending->seq != p->seq || pending->copies >= TG_COPIES_MAX)
		return 0;
	if (tg_elapsed_ns(now_ns, pending->copy_ns) < TG_COPY_SPACING_NS ||
	    tg_elapsed_ns(now_ns, pending->syn_ns) > TG_COPY_NS)
		return 0;
	pending->copy_ns = now_ns;
	pending->copies++;
	return pending->isn ? 1 : TG_COPY_IGNORED;
}

/* What is known of a service's senders moves: not static, as tg_chain_fetch(). */
__noinline int tg_flow_replied(__u32 service, __u64 syn_ns, __u8 noted)
{
	struct tg_senders *senders = tg_at(&tg_senders, service);

	if (senders)
		tg_senders_replied(senders, syn_ns, noted);
	return 0;
}

__noinline int tg_flow_proved(__u32 service, __u64 syn_ns, __u8 noted)
{
	struct tg_senders *senders = tg_at(&tg_senders, service);

	if (senders)
		tg_senders_proved(senders, syn_ns, noted);
	return 0;
}

/*
 * The server's SYN-ACK. A flow that is still here under the same tuple is an
 * earlier connection whose end was not seen.
 */
static __always_inline void tg_flow_syn_ack(const struct tg_packet *p)
{
	struct tg_flow stale = { .fingerprint = tg_hash_flow(p, 1) };
	struct tg_pending *pending = tg_pending_of(stale.fingerprint);
	struct tg_totals *totals;

	if (!pending ||
	    pending->fingerprint != (__u32)(stale.fingerprint >> 32))
		return;
	totals = tg_at(&tg_totals, pending->gauge / TG_GAUGES_EACH);
	if (totals && !pending->isn) {
		totals->replied++;
		tg_flow_replied(pending->gauge / TG_GAUGES_EACH,
				pending->syn_ns, pending->noted);
	}
	if (p->ack == pending->seq + 1)	/* not the data of the SYN */
		pending->syn_ns &= ~TG_FLOW_FAST;
	pending->isn = p->seq;
	if (tg_flow_find(&stale))
		tg_flow_free(stale.at, tg_flow_number_of(&stale),
			     tg_flow_read(&stale));
}

/* A connection begins with this word, and this source. */
static __always_inline void tg_flow_opened(struct tg_gauges *gauges,
					   __u32 number, __u64 meta,
					   __u32 place)
{
	/* neither waiting nor silent */
	__u64 before = (meta & ~TG_FLOW_WAITING) | TG_FLOW_ASKED;
	__u32 *source = tg_flow_source(number);

	if (source)
		*source = place;
	else
		tg_source_close(place);
	if (!source || !place)
		__sync_fetch_and_add(&gauges->sourceless, 1);
	tg_flow_gauge(gauges, number, before, meta);
}

/*
 * A connection whose client receives what is sent to it, the place of its
 * source, and where the segment that proves it begins. Where its request came before this was known (TCP Fast Open, a SYN-ACK
 * that was not seen) nobody has looked into it: any payload of the server's is the
 * response. Not static: the verifier looks at it once. Zero.
 */
__noinline int tg_flow_open(__u64 fingerprint, __u32 gauge, __u64 syn_ns,
			    __u32 place, __u32 client_next)
{
	__u64 asked = TG_FLOW_WAITING | TG_FLOW_ASKED | TG_FLOW_TURN |
		      (__u64)TG_TALK_OTHER << TG_FLOW_TALK_SHIFT;
	__u64 now_ns = bpf_ktime_get_ns();
	__u64 meta = tg_flow_meta(fingerprint, gauge, now_ns) | TG_FLOW_WATCH |
		     (syn_ns & TG_FLOW_SPOKE ? asked : 0) |
		     (syn_ns & TG_FLOW_FAST ? TG_FLOW_TAKEN : 0);
	__u32 index = tg_flow_index(fingerprint), way = TG_FLOW_WAYS;
	struct tg_flow_times *times = tg_at(&tg_times, index);
	struct tg_flow_set *set = tg_flow_set(fingerprint);
	struct tg_totals *totals = tg_flow_totals(meta);
	struct tg_gauges *gauges = tg_flow_gauges(meta);
	struct tg_flow_way *fresh;

	if (!gauges || !totals) {
		tg_source_close(place);
		return 0;
	}
	totals->proved++;
	if (meta & TG_FLOW_ASKED)
		totals->asked++;
	if (set && times)
		way = tg_flow_claim(set, index, now_ns);
	if (way >= TG_FLOW_WAYS || !set || !times) {
		tg_source_close(place);
		__sync_fetch_and_add(&gauges->untracked, 1);
		return 0;
	}
	__sync_fetch_and_add(&gauges->open, 1);
	/* in its place: the stack of what leads here is deep */
	fresh = &times->way[way & TG_FLOW_WAY_MASK];
	__builtin_memset(fresh, 0, sizeof(*fresh));
	fresh->syn_ns = syn_ns;
	fresh->client_next = client_next;
	if (meta & TG_FLOW_ASKED)
		fresh->request_ns = syn_ns;
	tg_flow_opened(gauges, tg_flow_number(index, way), meta, place);
	tg_swap(&set->meta[way], TG_FLOW_BUSY, meta);
	return 0;
}

/*
 * An ACK to a service without a flow: the end of a handshake, perhaps. When it
 * began, if it is; zero else. Not static, as above.
 */
__noinline __u64 tg_flow_ack(const struct tg_packet *p, __u64 fingerprint)
{
	struct tg_pending *pending = tg_pending_of(fingerprint);
	__u32 print = fingerprint >> 32;
	__u64 syn_ns;
	__u8 noted, of;

	if (!p || !pending || pending->fingerprint != print)
		return 0;
	if (!pending->isn || p->ack != pending->isn + 1) {
		/* the SYN-ACK may still be seen, when it is sent again */
		if (p->payload)
			pending->syn_ns |= TG_FLOW_SPOKE;
		return 0;
	}
	syn_ns = pending->syn_ns;
	noted = pending->noted;
	of = pending->gauge;
	/* Whoever clears the note opens the flow: once. */
	if (__sync_val_compare_and_swap(&pending->fingerprint, print,
					0) != print)
		return 0;
	tg_flow_proved(of / TG_GAUGES_EACH, syn_ns, noted);
	return syn_ns;
}

static __always_inline void tg_flow_touch(const struct tg_flow *flow,
					  __u64 meta)
{
	__u64 now_ns = bpf_ktime_get_coarse_ns();
	__u64 seen = now_ns >> TG_FLOW_TICK_SHIFT & TG_FLOW_SEEN_BITS;

	if (tg_flow_idle(meta, now_ns) >= TG_FLOW_TOUCH)
		tg_swap(flow->at, meta, (meta & ~TG_FLOW_SEEN_MASK) |
					seen << TG_FLOW_SEEN_SHIFT);
}

/*
 * Changes the word of a flow, whose bits `clear` are zero then and `set` one; 1
 * for who won it. `meta` is the word as it was read, and then as it is.
 */
static __always_inline int tg_flow_change(const struct tg_flow *flow,
					  __u64 *meta, __u64 clear, __u64 set)
{
	__u64 to = (*meta & ~clear) | set;

	if (tg_swap(flow->at, *meta, to) != *meta) {
		*meta = tg_flow_read(flow);
		return 0;
	}
	*meta = to;
	return 1;
}

/*
 * Ends a flow; 1 for who won it. What comes between is most likely the other
 * direction, which says that it saw a packet: it says so once, and one more try
 * is enough.
 */
static __always_inline int tg_flow_over(const struct tg_flow *flow, __u64 meta)
{
	if (meta == TG_FLOW_NONE)
		return 0;
	return tg_flow_free(flow->at, tg_flow_number_of(flow), meta) ||
	       tg_flow_free(flow->at, tg_flow_number_of(flow),
			    tg_flow_read(flow));
}

#endif
