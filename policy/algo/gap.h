/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Gap: the leaky bucket of RFC 7415, sections 3.5.1 and 3.5.2, for a host that
 * sends requests to a server and was told a rate.
 *
 *	T	the gap, 1 / rate
 *	X	the content; drains by 1 a unit of time, an admission adds T
 *	TAU	tolerance: an event is admitted if X <= TAU; one per priority
 *	TAU0	X when the control begins
 *
 * TAU = 0 is the gap of telephone networks: T at least between two requests.
 * An event that is refused leaves X as it is.
 *
 * The bucket of the contract is this one. X / T is its `used` in tokens, so X
 * drains exactly, whatever the rate. Its depth is T + TAU of the highest
 * priority, and what a lower priority tolerates less is a reserve.
 *
 * Where the host program can wait, an event with TAU < X <= TAU + wait takes
 * its place in X at once, and is to be admitted when X would have drained to
 * TAU. So those who wait are a queue in front of the server, whose length is
 * bounded by the time they wait. RFC 7415 refuses them.
 *
 * A share of a token in a flood counts as in token_bucket.h.
 */
#ifndef TG_GAP_H
#define TG_GAP_H

#include "../contract/contract.h"

struct tg_gap_params {
	struct tg_bucket_params bucket;	/* depth: T + largest TAU + wait */
	tg_u64 reserve[TG_PRIORITIES];	/* depth - T - TAU, picotokens */
	tg_u64 wait;			/* picotokens; 0: nobody waits */
	tg_u64 start;			/* TAU0, picotokens */
	tg_u32 us_factor;		/* see tg_gap_delay_us */
	tg_u8 us_shift_in;
	tg_u8 us_shift_out;
	tg_u8 action;			/* TG_DROP or TG_REJECT */
	tg_u8 pad;
};
TG_ASSERT(sizeof(struct tg_gap_params) == 112);

struct tg_gap_state {
	struct tg_bucket bucket;
	tg_u32 begun;	/* 1: a rate was in force at the last event */
	tg_u32 pad;
};
TG_ASSERT(sizeof(struct tg_gap_state) == 24);

struct tg_gap_stats {
	tg_u64 admitted;
	tg_u64 refused;
	tg_u64 delayed;
};

TG_INLINE void tg_gap_tick(const struct tg_gap_params *p,
			   struct tg_gap_state *s, tg_u64 now_ns)
{
	tg_bucket_refill(&p->bucket, &s->bucket, now_ns);
	if (!s->begun) {
		s->begun = 1;
		if (s->bucket.used < p->start)
			s->bucket.used = p->start;
	}
}

TG_INLINE void tg_gap_observe(const struct tg_gap_params *p,
			      struct tg_gap_state *s, const struct tg_event *e)
{
	(void)p; (void)s; (void)e;	/* completions do not matter here */
}

/*
 * picotokens / (1000 * rate_milli), the time in which they drain, without a
 * division: the factor is 2^(in + out) / (1000 * rate_milli), rounded up.
 * Never too early, and at most 1.1 us too late.
 */
TG_INLINE tg_u32 tg_gap_delay_us(const struct tg_gap_params *p, tg_u64 excess)
{
	tg_u64 parts = (excess >> (p->us_shift_in & 63)) + 1;

	return (parts * p->us_factor >> (p->us_shift_out & 63)) + 1;
}

TG_INLINE struct tg_verdict
tg_gap_admit(const struct tg_gap_params *p, struct tg_gap_state *s,
	     struct tg_gap_stats *stats, const struct tg_event *e)
{
	tg_u64 reserve = p->reserve[e->priority & (TG_PRIORITIES - 1)];
	struct tg_verdict v = tg_verdict(TG_DELAY, TG_REASON_WAIT);
	tg_u64 content;

	if (!p->bucket.rate_milli) {
		if (s->begun)
			s->begun = 0;
		stats->admitted++;
		return tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);
	}
	tg_gap_tick(p, s, e->now_ns);
	content = s->bucket.used;
	if (tg_bucket_take_for(&p->bucket, &s->bucket, reserve, e)) {
		stats->admitted++;
		return tg_verdict(TG_ADMIT, TG_REASON_TOKEN);
	}
	if (p->wait && reserve >= p->wait &&
	    tg_bucket_take_for(&p->bucket, &s->bucket, reserve - p->wait, e)) {
		stats->delayed++;
		v.delay_us = tg_gap_delay_us(p, content + reserve + TG_TOKEN -
					     p->bucket.depth);
		return v;
	}
	stats->refused++;
	return tg_verdict(tg_action(p->action),
			  tg_bucket_has(&p->bucket, &s->bucket) ?
			  TG_REASON_RESERVED : TG_REASON_RATE);
}

#endif
