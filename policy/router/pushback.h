/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A limit that a server gave to a router, as soft state (papers/netdraino.txt,
 * section 4.4).
 *
 *	rate ▁▁▁▁▁▁▁▂▂▂▂▂▂▄▄▄▄▄▄▆▆▆▆▆▆ whole, then none
 *	     0 … δ     2δ      …  steps·δ   (steps + 1)·δ
 *
 * It holds for δ. Then it is not removed but relaxed towards the server's whole rate,
 * one step each δ, and is gone one δ after it has reached that; or at once when the
 * router is idle (what is offered would fit), or when its time to live has ended. That
 * must hold all steps: TTL >= δ * (steps + 1). A refreshed limit restarts all this.
 *
 * Everything happens in admit: a daemon that has died leaves no limit behind. What was
 * used of the bucket stays used while the rate changes. Zero is: no limit.
 */
#ifndef TG_PUSHBACK_H
#define TG_PUSHBACK_H

#include "../contract/contract.h"

#define TG_PUSHBACK_STEPS_MAX 16
#define TG_PUSHBACK_DELTA_NS_MAX (3600 * TG_NS_PER_S)
#define TG_PUSHBACK_BURST_NS_MAX (10 * TG_NS_PER_S)
#define TG_PUSHBACK_DEPTH_MAX (TG_BURST_MAX * TG_TOKEN)

struct tg_pushback_params {
	tg_u64 delta_ns;	/* δ */
	tg_u64 burst_ns;	/* depth of the bucket, in time at the rate */
	tg_u32 steps;		/* 1 … TG_PUSHBACK_STEPS_MAX */
	tg_u32 pad;
};
TG_ASSERT(sizeof(struct tg_pushback_params) == 24);

struct tg_pushback_state {
	tg_u64 rate_milli;	/* as given; 0: there is no limit */
	tg_u64 whole_milli;	/* of the server */
	tg_u64 since_ns;	/* when it was given, or refreshed */
	tg_u64 until_ns;	/* end of its time to live */
	tg_u64 next_ns;		/* when the next step is due */
	struct tg_bucket_params now;	/* what holds at present */
	struct tg_bucket bucket;
};
TG_ASSERT(sizeof(struct tg_pushback_state) == 80);

enum tg_pushback_error {
	TG_PUSHBACK_TAKEN = 0,
	TG_PUSHBACK_RATE = 1,	/* 0, too high, or above the whole */
	TG_PUSHBACK_TTL = 2,	/* does not hold all steps */
	TG_PUSHBACK_PARAMS = 3,	/* δ or steps out of range */
};

/* The rate after so many whole δ; 0: none any more. */
TG_INLINE tg_u64 tg_pushback_step(const struct tg_pushback_params *p,
				  const struct tg_pushback_state *s, tg_u64 age)
{
	if (age > p->steps || p->steps > TG_PUSHBACK_STEPS_MAX || !p->steps)
		return 0;
	return s->rate_milli +
	       (s->whole_milli - s->rate_milli) / p->steps * age +
	       (s->whole_milli - s->rate_milli) % p->steps * age / p->steps;
}

TG_INLINE void tg_pushback_clear(struct tg_pushback_state *s)
{
	s->rate_milli = 0;
	s->whole_milli = 0;
	s->now.rate_milli = 0;
}

/* Brings the limit to where it is at this time. Four divisions a step. */
TG_INLINE void tg_pushback_settle(const struct tg_pushback_params *p,
				  struct tg_pushback_state *s, tg_u64 now_ns)
{
	tg_u64 age = 0, rate, burst_ns;

	if (!s->rate_milli)
		return;
	if (p->delta_ns)
		age = tg_elapsed_ns(now_ns, s->since_ns) / p->delta_ns;
	rate = tg_pushback_step(p, s, age);
	if (!rate || now_ns >= s->until_ns || !p->delta_ns) {
		tg_pushback_clear(s);
		return;
	}
	burst_ns = tg_min(p->burst_ns, TG_PUSHBACK_BURST_NS_MAX);
	s->next_ns = s->since_ns + (age + 1) * p->delta_ns;
	s->now.rate_milli = rate;
	/* rate * ns are picotokens */
	s->now.depth = burst_ns > TG_PUSHBACK_DEPTH_MAX / rate ?
		       TG_PUSHBACK_DEPTH_MAX : rate * burst_ns;
	if (s->now.depth < TG_TOKEN)
		s->now.depth = TG_TOKEN;
	s->now.full_ns = (s->now.depth + rate - 1) / rate;
}

/* A limit comes; 0: it is taken, else nothing changes (enum tg_pushback_error). */
TG_INLINE int tg_pushback_install(const struct tg_pushback_params *p,
				  struct tg_pushback_state *s, tg_u64 rate_milli,
				  tg_u64 whole_milli, tg_u64 ttl_ns, tg_u64 now_ns)
{
	if (!p->delta_ns || p->delta_ns > TG_PUSHBACK_DELTA_NS_MAX || !p->steps ||
	    p->steps > TG_PUSHBACK_STEPS_MAX)
		return TG_PUSHBACK_PARAMS;
	if (!rate_milli || rate_milli > whole_milli || whole_milli > TG_RATE_MILLI_MAX)
		return TG_PUSHBACK_RATE;
	if (ttl_ns < p->delta_ns * (p->steps + 1) || now_ns > ~0ULL - ttl_ns)
		return TG_PUSHBACK_TTL;
	s->rate_milli = rate_milli;
	s->whole_milli = whole_milli;
	s->since_ns = now_ns;
	s->until_ns = now_ns + ttl_ns;
	tg_pushback_settle(p, s, now_ns);
	return TG_PUSHBACK_TAKEN;
}

/* The rate that holds now, 1/1000 per second; 0: there is no limit. */
TG_INLINE tg_u64 tg_pushback_rate(const struct tg_pushback_params *p,
				  struct tg_pushback_state *s, tg_u64 now_ns, int idle)
{
	if (idle)
		tg_pushback_clear(s);
	tg_pushback_settle(p, s, now_ns);
	return s->now.rate_milli;
}

TG_INLINE struct tg_verdict tg_pushback_admit(const struct tg_pushback_params *p,
					      struct tg_pushback_state *s,
					      const struct tg_event *e)
{
	if (s->rate_milli && (e->now_ns >= s->next_ns || e->now_ns >= s->until_ns))
		tg_pushback_settle(p, s, e->now_ns);
	if (!s->now.rate_milli)
		return tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);
	tg_bucket_refill(&s->now, &s->bucket, e->now_ns);
	if (tg_bucket_take_for(&s->now, &s->bucket, 0, e))
		return tg_verdict(TG_ADMIT, TG_REASON_TOKEN);
	return tg_verdict(TG_DROP, TG_REASON_RATE);
}

#endif
