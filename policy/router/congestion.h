/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Whether a link of a router is congested (papers/netdraino.txt, section 4.1), and how
 * much comes for whom.
 *
 * As published: the average of the output queue is above a threshold. That never fires
 * where the queue is kept short (fq_codel), or hidden (BQL). So there are three signs:
 *
 *	queue	its moving average, updated by each packet, as in RED, or by each look
 *	drops	the share of the packets that the queue dropped in a tick
 *	rate	the share of the shaped rate that was sent in a tick
 *
 * Any one begins it. It ends when what is offered, together with what limits refuse
 * here, would have fitted for some time: a limit that works does not end the reason
 * for which it is there. Where the rate is not known, it ends when there is no sign.
 * Each begin has a new sequence number.
 *
 * Zero params: never congested. Zero state is fresh. One CPU at a time.
 */
#ifndef TG_CONGESTION_H
#define TG_CONGESTION_H

#include "../contract/contract.h"

#define TG_QUEUE_MAX 1000000U		/* packets: bounds the products below */
#define TG_TICK_BYTES_MAX (1ULL << 46)
#define TG_TICK_COUNT_MAX (1U << 24)

enum tg_congestion_sign {
	TG_SIGN_QUEUE = 1,
	TG_SIGN_DROPS = 2,
	TG_SIGN_RATE = 4,
};

struct tg_congestion_params {
	tg_u32 queue_milli;	/* average queue above this, 1/1000 packet; 0: ignored */
	tg_u32 weight;		/* of the present queue in it, 1/TG_SHARE_ONE */
	tg_u32 drops;		/* share of the packets above this; 0: ignored */
	tg_u32 rate;		/* share of the shaped rate from here on; 0: ignored */
	tg_u32 fits;		/* below this share of it what is offered would fit */
	tg_u32 pad;
	tg_u64 calm_ns;		/* for so long, until it has ended */
};
TG_ASSERT(sizeof(struct tg_congestion_params) == 32);

struct tg_congestion {
	tg_u64 average;		/* queue, 1/1000 packet, times TG_SHARE_ONE */
	tg_u64 calm_ns;		/* for how long all would have fitted */
	tg_u32 congested;	/* 1: it is */
	tg_u32 sequence;	/* how often it has begun */
	tg_u32 signs;		/* of the last tick: enum tg_congestion_sign */
	tg_u32 pad;
};
TG_ASSERT(sizeof(struct tg_congestion) == 32);

/* What a link did lately. */
struct tg_link_tick {
	tg_u64 elapsed_ns;	/* since the tick before */
	tg_u64 capacity_bytes;	/* the shaped rate times the tick; 0: not known */
	tg_u64 sent_bytes;
	tg_u64 dropped_bytes;	/* by the queue */
	tg_u64 refused_bytes;	/* by limits, in front of the queue */
	tg_u32 packets;		/* that came to the queue */
	tg_u32 dropped;		/* of these dropped */
};
TG_ASSERT(sizeof(struct tg_link_tick) == 48);

/* So many wait; its weight in the average is 1/TG_SHARE_ONE. */
TG_INLINE void tg_congestion_look(struct tg_congestion *s, tg_u32 waiting,
				  tg_u32 share)
{
	tg_u64 now = tg_min(waiting, TG_QUEUE_MAX) * 1000ULL * TG_SHARE_ONE;
	tg_u64 weight = tg_min(share, TG_SHARE_ONE);

	/* No overflow: the difference is below 2^46, the weight at most 2^16. */
	s->average = tg_min(s->average, TG_QUEUE_MAX * 1000ULL * TG_SHARE_ONE);
	if (now > s->average)
		s->average += ((now - s->average) * weight) / TG_SHARE_ONE;
	else
		s->average -= ((s->average - now) * weight) / TG_SHARE_ONE;
}

/* A packet comes while so many wait. */
TG_INLINE void tg_congestion_queue(const struct tg_congestion_params *p,
				   struct tg_congestion *s, tg_u32 waiting)
{
	tg_congestion_look(s, waiting, p->weight);
}

/* 1: the average queue is above the threshold, as published. */
TG_INLINE int tg_congestion_is_long(const struct tg_congestion_params *p,
				    const struct tg_congestion *s)
{
	return p->queue_milli && s->average / TG_SHARE_ONE > p->queue_milli;
}

/* Shares of bytes are compared without a division: both sides below 2^63. */
TG_INLINE int tg_share_reaches(tg_u64 bytes, tg_u64 capacity, tg_u32 share)
{
	return tg_min(bytes, TG_TICK_BYTES_MAX) * TG_SHARE_ONE >=
	       tg_min(capacity, TG_TICK_BYTES_MAX) * tg_min(share, TG_SHARE_ONE);
}

TG_INLINE tg_u32 tg_congestion_signs(const struct tg_congestion_params *p,
				     const struct tg_congestion *s,
				     const struct tg_link_tick *t)
{
	tg_u32 signs = 0;

	if (tg_congestion_is_long(p, s))
		signs |= TG_SIGN_QUEUE;
	if (p->drops && t->packets &&
	    (tg_u64)t->dropped * TG_SHARE_ONE > (tg_u64)t->packets * p->drops)
		signs |= TG_SIGN_DROPS;
	if (p->rate && t->capacity_bytes &&
	    tg_share_reaches(t->sent_bytes, t->capacity_bytes, p->rate))
		signs |= TG_SIGN_RATE;
	return signs;
}

/* Nobody knows what the link does: it is not congested. Its number stays. */
TG_INLINE void tg_congestion_unknown(struct tg_congestion *s)
{
	s->average = 0;
	s->calm_ns = 0;
	s->congested = 0;
	s->signs = 0;
}

/* A tick has ended. 1: the link is congested. */
TG_INLINE int tg_congestion_tick(const struct tg_congestion_params *p,
				 struct tg_congestion *s,
				 const struct tg_link_tick *t)
{
	tg_u64 offered = tg_min(t->sent_bytes, TG_TICK_BYTES_MAX / 4) +
			 tg_min(t->dropped_bytes, TG_TICK_BYTES_MAX / 4) +
			 tg_min(t->refused_bytes, TG_TICK_BYTES_MAX / 4);
	int fits;

	if (!t->packets)
		s->average = 0;	/* nothing has come: nothing waits */
	s->signs = tg_congestion_signs(p, s, t);
	fits = !s->signs && (!t->capacity_bytes || !p->fits ||
			     !tg_share_reaches(offered, t->capacity_bytes, p->fits));
	if (s->signs && !s->congested) {
		s->congested = 1;
		s->sequence++;
	}
	if (fits && s->congested)
		s->calm_ns += tg_min(t->elapsed_ns, ~0ULL - s->calm_ns);
	else
		s->calm_ns = 0;
	if (s->congested && fits && s->calm_ns >= p->calm_ns) {
		s->congested = 0;
		s->calm_ns = 0;
	}
	return s->congested != 0;
}

/* What comes for one destination, and what limits refuse of it. */
struct tg_offered {
	tg_u64 offered_milli;	/* per second, 1/1000, smoothed */
	tg_u64 refused_milli;
	tg_u32 came;		/* since the last tick, with what was refused */
	tg_u32 refused;
	tg_u32 ticks;		/* the first one counts whole */
	tg_u32 pad;
};
TG_ASSERT(sizeof(struct tg_offered) == 32);

TG_INLINE void tg_offered_add(struct tg_offered *o, int refused)
{
	if (o->came == 0xffffffff)
		return;
	o->came++;
	o->refused += refused ? 1 : 0;
}

TG_INLINE tg_u64 tg_offered_slide(tg_u64 rate, tg_u64 now, tg_u32 weight)
{
	/* No overflow: rates are at most 2^24 * 10^12 / elapsed, checked below. */
	if (now > rate)
		return rate + (now - rate) / TG_SHARE_ONE * weight +
		       (now - rate) % TG_SHARE_ONE * weight / TG_SHARE_ONE;
	return rate - (rate - now) / TG_SHARE_ONE * weight -
	       (rate - now) % TG_SHARE_ONE * weight / TG_SHARE_ONE;
}

/* A tick of so long has ended; its weight in the averages is 1/TG_SHARE_ONE. */
TG_INLINE void tg_offered_tick(struct tg_offered *o, tg_u64 elapsed_ns, tg_u32 weight)
{
	tg_u64 elapsed = elapsed_ns > 1000000 ? elapsed_ns : 1000000;
	tg_u64 came = tg_min(o->came, TG_TICK_COUNT_MAX);
	tg_u64 refused = tg_min(o->refused, came);
	tg_u32 w = o->ticks ? tg_min(weight, TG_SHARE_ONE) : TG_SHARE_ONE;

	o->offered_milli = tg_offered_slide(o->offered_milli,
			came * (1000 * TG_NS_PER_S) / elapsed, w);
	o->refused_milli = tg_offered_slide(o->refused_milli,
			refused * (1000 * TG_NS_PER_S) / elapsed, w);
	o->came = o->refused = 0;
	o->ticks = 1;
}

#endif
