/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A connection as a router measures it, and its exchanges:
 *
 *	idle ──data of the client──► request ──data of the server──► response
 *	  ▲                                                              │
 *	  └──────── the client has all that was sent, and … ◄────────────┘
 *		it sends data again or a FIN; it acknowledges the server's FIN
 *
 *	response ──the client has all, and nothing comes for a second──► paused
 *	paused ──data of the client──► request
 *	paused ──data of the server──► response
 *
 * A response that pauses is complete as far as anybody knows. If the server then sends
 * more within TG_ROUTER_PAUSE_MAX_NS, it goes on as if it had never been complete, and
 * what was noted of it is subtracted. Less than TG_ROUTER_MORE bytes are an alert or a
 * control frame, and no part of a response.
 *
 * An exchange lasts from the first packet of its request to the last acknowledgement
 * of its response: what the client waited, as far as a router can see. Its size is
 * what the client acknowledged. A connection that ends in between has given up its
 * exchange, which has no duration.
 *
 * Delivered bytes are counted where acknowledgements come in, so what is lost behind
 * this router, and what is sent again, is no progress. No acknowledgement beyond
 * what the server has sent is believed.
 *
 * The two directions may run on two CPUs. Each field is written by one of them, but
 * for `asked`, which only moves on (a lost move is made by the next packet), and the
 * phase, by a compare-and-swap: who wins it counts.
 */
#ifndef TG_ROUTER_FLOW_H
#define TG_ROUTER_FLOW_H

#include "maps.h"
#include "../packet/hash.h"

#define TG_ROUTER_FREE 0ULL
#define TG_ROUTER_BUSY 1ULL	/* no fingerprint: bit 1 of those is set */
#define TG_ROUTER_SEEN_SHIFT 30	/* ns to units of last seen: 1.07 s */
#define TG_ROUTER_QUIET_NS TG_NS_PER_S
#define TG_ROUTER_PAUSE_MAX_NS (30 * TG_NS_PER_S)
#define TG_ROUTER_WINDOW_NS TG_NS_PER_S
#define TG_ROUTER_MORE 128	/* bytes of a segment that a response goes on with */
#define TG_ROUTER_AHEAD (1U << 20)	/* bytes of a client that may have been missed */
/* a round of the sweep: 32 ticks of 100 ms, and a little */
#define TG_ROUTER_ROUND_NS (4 * TG_NS_PER_S)

enum tg_router_phase {
	TG_ROUTER_IDLE = 0,
	TG_ROUTER_REQUEST = 1,
	TG_ROUTER_RESPONSE = 2,
	TG_ROUTER_PAUSED = 3,
};

static const struct tg_tsw_params tg_router_tsw = {
	.window_ns = TG_ROUTER_WINDOW_NS,
};

static __always_inline void tg_router_count(__u64 *count, __u64 more)
{
	__sync_fetch_and_add(count, more);
}

static __always_inline struct tg_router_destination *
tg_router_to(const struct tg_router_flow *f)
{
	return tg_router_at(&tg_router_counts, f->place);
}

/*
 * Class and bucket in functions that are not static: the verifier looks at them once,
 * and not at every way through their branches in every place. The compiler knows how
 * large their results are and the verifier does not: volatile keeps the masks.
 */
__noinline int tg_router_class(__u64 bytes)
{
	volatile int class = tg_size_class(bytes);

	return class;
}

__noinline int tg_router_bucket(__u64 value)
{
	volatile int bucket = tg_duration_bucket(value);

	return bucket;
}

/* As tg_durations_add, for several CPUs; -1 subtracts one. */
static __always_inline void tg_router_took(const struct tg_router_flow *f,
					   __s32 more)
{
	__u64 us = tg_elapsed_ns(f->rate.then_ns, f->began_ns) / 1000;
	struct tg_router_times *t = tg_router_at(&tg_router_times, f->place);
	__u32 class = tg_router_class(f->got) & (TG_SIZE_CLASSES - 1);
	__u32 bucket = tg_router_bucket(us) & (TG_DURATION_BUCKETS - 1);

	if (t)
		__sync_fetch_and_add(&t->durations.count[class][bucket], more);
}

/* Notes how fast a connection is, in bytes per second. */
static __always_inline void tg_router_note_rate(const struct tg_router_flow *f,
						__u32 rate)
{
	struct tg_router_times *t = tg_router_at(&tg_router_times, f->place);
	__u32 bucket = tg_router_bucket(rate) & (TG_ROUTER_RATES - 1);

	if (t)
		__sync_fetch_and_add(&t->rate[bucket], 1);
}

/* The client has all that the server has sent. */
static __always_inline int tg_router_has_all(const struct tg_router_flow *f)
{
	return READ_ONCE(f->acked) == READ_ONCE(f->sent);
}

static __always_inline int tg_router_in_flight(__u32 phase)
{
	return phase == TG_ROUTER_REQUEST || phase == TG_ROUTER_RESPONSE;
}

/*
 * Ends the exchange, if it still is in this phase: completed, if it is a response and the
 * client has all of it. What follows is TG_ROUTER_IDLE or, of a response, TG_ROUTER_PAUSED.
 */
static __always_inline void tg_router_end_of(struct tg_router_flow *f,
					     __u32 phase, __u32 next)
{
	struct tg_router_destination *d = tg_router_to(f);
	/* before: what the server sends from here on goes on with the response */
	int complete = phase == TG_ROUTER_RESPONSE && f->got &&
		       tg_router_has_all(f);

	if (!tg_router_in_flight(phase) || !d ||
	    __sync_val_compare_and_swap(&f->phase, phase, next) != phase)
		return;
	if (complete) {
		tg_router_count(&d->counts.completed, 1);
		tg_router_took(f, 1);
	} else {
		tg_router_count(&d->counts.given_up, 1);
	}
}

static __always_inline void tg_router_end(struct tg_router_flow *f)
{
	tg_router_end_of(f, READ_ONCE(f->phase), TG_ROUTER_IDLE);
}

/* More of a response that was taken for complete not long ago. */
static __always_inline void tg_router_resume(struct tg_router_flow *f,
					     __u64 now_ns)
{
	struct tg_router_destination *d = tg_router_to(f);

	if (!d ||
	    tg_elapsed_ns(now_ns, f->rate.then_ns) > TG_ROUTER_PAUSE_MAX_NS ||
	    __sync_val_compare_and_swap(&f->phase, TG_ROUTER_PAUSED,
					      TG_ROUTER_RESPONSE) !=
			  TG_ROUTER_PAUSED)
		return;
	tg_router_count(&d->counts.resumed, 1);
	tg_router_took(f, -1);
}

/* An acknowledgement of the client's. The FIN of the server is one more than its data. */
static __always_inline void tg_router_acked(struct tg_router_flow *f,
					    __u32 ack, __u64 now_ns)
{
	__u32 room = READ_ONCE(f->sent) - f->acked, more = ack - f->acked;
	struct tg_router_destination *d = tg_router_to(f);
	__u32 phase = READ_ONCE(f->phase);

	if (more == room + 1 && READ_ONCE(f->closing))
		more = room;
	if (!d || !more || more > room)
		return;
	WRITE_ONCE(f->acked, f->acked + more);
	if (phase == TG_ROUTER_RESPONSE)
		f->got = tg_min((__u64)f->got + more, 0xffffffff);
	/* of a pause its beginning is kept: it is when the response ended, if it did */
	if (phase != TG_ROUTER_PAUSED)
		tg_tsw_add(&tg_router_tsw, &f->rate, now_ns, more);
	tg_router_count(&d->counts.delivered, more);
}

/* Data of the client's, which it has not sent before. */
static __always_inline void tg_router_asked(struct tg_router_flow *f,
					    __u64 now_ns)
{
	struct tg_router_destination *d = tg_router_to(f);

	if (READ_ONCE(f->phase) == TG_ROUTER_RESPONSE && tg_router_has_all(f))
		tg_router_end(f);
	/* from here on no response goes on: that would be subtracted by what is written below */
	__sync_val_compare_and_swap(&f->phase, TG_ROUTER_PAUSED, TG_ROUTER_IDLE);
	if (!d || READ_ONCE(f->phase) != TG_ROUTER_IDLE)
		return;
	f->began_ns = now_ns;
	f->got = 0;
	if (__sync_val_compare_and_swap(&f->phase, TG_ROUTER_IDLE,
					TG_ROUTER_REQUEST) == TG_ROUTER_IDLE)
		tg_router_count(&d->counts.begun, 1);
}

/*
 * Whether a packet of the client's fits to what it has sent so far. Others come from
 * somebody who knows the tuple and not more.
 */
static __always_inline int tg_router_fits(const struct tg_router_flow *f,
					  const struct tg_packet *p)
{
	return p->seq - READ_ONCE(f->asked) + TG_ROUTER_AHEAD < 2 * TG_ROUTER_AHEAD;
}

/* A packet of the client's. 1: the connection is over. */
static __always_inline int tg_router_client(struct tg_router_flow *f,
					    const struct tg_packet *p,
					    __u64 now_ns)
{
	__u32 end = p->seq + p->payload;

	if (!tg_router_fits(f, p))
		return 0;
	WRITE_ONCE(f->seen, now_ns >> TG_ROUTER_SEEN_SHIFT);
	if (p->flags & TG_TCP_ACK)
		tg_router_acked(f, p->ack, now_ns);
	if (p->payload && (__s32)(end - f->asked) > 0) {
		f->asked = end;
		tg_router_asked(f, now_ns);
	}
	if (p->flags & TG_TCP_RST) {
		tg_router_end(f);
		return 1;
	}
	if (READ_ONCE(f->closing) && p->ack == READ_ONCE(f->sent) + 1) {
		tg_router_end(f);
		return 1;
	}
	if (p->flags & TG_TCP_FIN && tg_router_has_all(f) &&
	    READ_ONCE(f->phase) == TG_ROUTER_RESPONSE)
		tg_router_end(f);
	return 0;
}

/* Data of the server's. */
static __always_inline void tg_router_said(struct tg_router_flow *f,
					   const struct tg_packet *p,
					   __u64 now_ns)
{
	struct tg_router_destination *d = tg_router_to(f);
	__u32 end = p->seq + p->payload;
	__s32 fresh = end - f->sent;

	if (!d)
		return;
	if (fresh <= 0) {
		tg_router_count(&d->counts.again, p->payload);
		return;
	}
	/* after a gap all of it is new: what is missing was lost before this router */
	if (fresh > (__s32)p->payload)
		fresh = p->payload;
	/* in this order: the response that begins is not one that the client has */
	WRITE_ONCE(f->sent, end);
	if (READ_ONCE(f->phase) == TG_ROUTER_REQUEST)
		__sync_val_compare_and_swap(&f->phase, TG_ROUTER_REQUEST,
					    TG_ROUTER_RESPONSE);
	else if (p->payload >= TG_ROUTER_MORE &&
		 READ_ONCE(f->phase) == TG_ROUTER_PAUSED)
		tg_router_resume(f, now_ns);
	tg_router_count(&d->counts.sent, fresh);
	if (fresh < (__s32)p->payload)
		tg_router_count(&d->counts.again, p->payload - fresh);
}

/* A packet of the server's. 1: the connection is over. */
static __always_inline int tg_router_server(struct tg_router_flow *f,
					    const struct tg_packet *p,
					    __u64 now_ns)
{
	WRITE_ONCE(f->seen, now_ns >> TG_ROUTER_SEEN_SHIFT);
	/* what the server has, its client has sent, also where this router missed it */
	if (p->flags & TG_TCP_ACK && (__s32)(p->ack - READ_ONCE(f->asked)) > 0)
		WRITE_ONCE(f->asked, p->ack);
	if (p->payload)
		tg_router_said(f, p, now_ns);
	if (p->flags & TG_TCP_RST) {
		tg_router_end(f);
		return 1;
	}
	if (p->flags & TG_TCP_FIN)
		WRITE_ONCE(f->closing, 1);
	return 0;
}

/* A place in the table. */
struct tg_router_way {
	__u64 *fingerprint;
	struct tg_router_flow *flow;
};

static __always_inline struct tg_router_set *tg_router_set_of(__u64 fingerprint)
{
	return tg_router_at(&tg_router_flows,
			    fingerprint >> 32 & settings.flow_mask);
}

/* 1: found. */
static __always_inline int tg_router_find(__u64 fingerprint,
					  struct tg_router_way *way)
{
	struct tg_router_set *set = tg_router_set_of(fingerprint);

	if (!set)
		return 0;
	for (int i = 0; i < TG_ROUTER_WAYS; i++) {
		if (READ_ONCE(set->fingerprint[i]) != fingerprint)
			continue;
		way->fingerprint = &set->fingerprint[i];
		way->flow = &set->flow[i];
		return 1;
	}
	return 0;
}

#endif
