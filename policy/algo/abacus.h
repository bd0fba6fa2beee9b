/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The Abacus filter, as published: Jamjoom, Pillai, Shin, "Re-synchronization
 * and Controllability of Bursty Service Requests", section 5 and figure 7.
 *
 * A dropped SYN comes back on a schedule that is known. Stage one is a token
 * bucket. For a SYN that finds it empty, stage two asks whether there will be
 * room when it returns: then it is dropped (silently, so that it returns),
 * otherwise rejected (so that it does not).
 *
 * Stage two is a ring of S/T0 + 1 periods. A[i] is how many returning SYNs the
 * period i from now can take, B[i] how many are expected to be dropped in it
 * once more. Every T0 the ring shifts; the period that comes in gets
 * max(0, r_t - lambda) * T0, lambda being the weighted time average of
 * arrivals. An excess SYN
 *	is dropped at once, if B[0] > 0 (and B[0] falls by one);
 *	else walks T_1, T_2, ... to the first A[i] with room, takes it, adds one
 *	to B of every period walked past, and is dropped;
 *	else is rejected.
 *
 * Free choices (options here): the schedule is a table, not 3 * 2^k; lambda is
 * an EWMA over all SYNs, weight 1/2^ewma_shift a period; S is tested before a
 * look, not after it, so that S < T_1 rejects all excess; what is left of B[0]
 * when its period ends is dropped; tokens arrive continuously.
 *
 * In a flood of spoofed senders a SYN counts as the share of one that it costs
 * (chain/senders.h), here as in the bucket.
 *
 * State: the ring stores what is used of r_t * T0 (lambda's share included),
 * so that zero is fresh, an idle service whose every period is free.
 */
#ifndef TG_ABACUS_H
#define TG_ABACUS_H

#include "../contract/contract.h"

#define TG_ABACUS_PERIODS 128	/* ring size; the window is below it */
#define TG_ABACUS_STEPS_MAX 12	/* retransmissions in a schedule */

struct tg_abacus_params {
	struct tg_bucket_params bucket;
	tg_u64 reserve[TG_PRIORITIES];	/* picotokens, not falling */
	tg_u64 period_ns;		/* T0 */
	tg_u32 room_milli;		/* r_t * T0 in thousandths of a SYN */
	tg_u32 lambda_start_milli;	/* first estimate, SYNs per T0 / 1000 */
	tg_u16 window;			/* S in periods, < TG_ABACUS_PERIODS */
	tg_u16 steps;			/* N: entries of the schedule in use */
	tg_u16 schedule[TG_ABACUS_STEPS_MAX];	/* T_i in periods, rising */
	tg_u8 ewma_shift;		/* 3: weight 1/8 */
	tg_u8 pad[3];
};
TG_ASSERT(sizeof(struct tg_abacus_params) == 136);

struct tg_abacus_period {
	tg_u32 used_milli;	/* r_t * T0 - A[i], thousandths of a SYN */
	tg_u32 again;		/* B[i] */
};

struct tg_abacus_state {
	struct tg_bucket bucket;
	tg_u64 period_end_ns;	/* 0: no SYN seen yet */
	tg_u32 lambda_milli;	/* arrivals per T0, weighted average */
	tg_u32 arrivals_milli;	/* in the current period */
	tg_u32 now;		/* index of the current period */
	tg_u32 pad;
	struct tg_abacus_period period[TG_ABACUS_PERIODS];
};
TG_ASSERT(sizeof(struct tg_abacus_state) == 40 + 1024);

struct tg_abacus_stats {
	tg_u64 admitted;
	tg_u64 borrowed;
	tg_u64 expected_again;
	tg_u64 rejected;
};

TG_INLINE struct tg_abacus_period *
tg_abacus_at(struct tg_abacus_state *s, tg_u32 ahead)
{
	return &s->period[(s->now + ahead) & (TG_ABACUS_PERIODS - 1)];
}

/* What lambda takes of a period's room before any SYN returns. */
TG_INLINE tg_u32 tg_abacus_taken(const struct tg_abacus_params *p,
				 const struct tg_abacus_state *s)
{
	return tg_min(p->room_milli, s->lambda_milli);
}

TG_INLINE void tg_abacus_start(const struct tg_abacus_params *p,
			       struct tg_abacus_state *s, tg_u64 now_ns)
{
	s->period_end_ns = now_ns + p->period_ns;
	s->lambda_milli = p->lambda_start_milli;
	for (tg_u32 i = 0; i < TG_ABACUS_PERIODS; i++)
		if (i <= p->window)
			tg_abacus_at(s, i)->used_milli = tg_abacus_taken(p, s);
}

TG_INLINE void tg_abacus_shift(const struct tg_abacus_params *p,
			       struct tg_abacus_state *s)
{
	long long more = (long long)s->arrivals_milli - s->lambda_milli;
	struct tg_abacus_period fresh = {};

	/* rounded down, so silence ends at zero, not just above it */
	s->lambda_milli += more >> (p->ewma_shift & 15);
	s->arrivals_milli = 0;
	*tg_abacus_at(s, 0) = fresh;
	s->now = (s->now + 1) & (TG_ABACUS_PERIODS - 1);
	fresh.used_milli = tg_abacus_taken(p, s);
	*tg_abacus_at(s, p->window & (TG_ABACUS_PERIODS - 1)) = fresh;
}

TG_INLINE void tg_abacus_tick(const struct tg_abacus_params *p,
			      struct tg_abacus_state *s, tg_u64 now_ns)
{
	if (!s->period_end_ns ||
	    s->period_end_ns > now_ns + p->period_ns + TG_CLOCK_BACK_NS_MAX)
		tg_abacus_start(p, s, now_ns);
	/* one step a period; after a silence as long as the ring all is new */
	for (tg_u32 i = 0; i < TG_ABACUS_PERIODS; i++) {
		if (now_ns < s->period_end_ns)
			return;
		tg_abacus_shift(p, s);
		s->period_end_ns += p->period_ns;
	}
	if (now_ns >= s->period_end_ns)
		s->period_end_ns = now_ns + p->period_ns;
}

TG_INLINE void tg_abacus_observe(const struct tg_abacus_params *p,
				 struct tg_abacus_state *s,
				 const struct tg_event *e)
{
	(void)p; (void)s; (void)e;	/* completions do not matter here */
}

/* Figure 7, BORROW_TOKEN: 1 if a period with room was found. */
TG_INLINE int tg_abacus_borrow(const struct tg_abacus_params *p,
			       struct tg_abacus_state *s, tg_u32 milli)
{
	tg_u32 found = TG_ABACUS_STEPS_MAX;

	for (tg_u32 k = 0; k < TG_ABACUS_STEPS_MAX; k++) {
		struct tg_abacus_period *at;

		if (k >= p->steps || p->schedule[k] > p->window)
			return 0;
		at = tg_abacus_at(s, p->schedule[k]);
		if (at->used_milli + (tg_u64)milli <= p->room_milli) {
			at->used_milli += milli;
			found = k;
			break;
		}
	}
	if (found >= TG_ABACUS_STEPS_MAX)
		return 0;	/* all steps are in the window, none has room */
	for (tg_u32 j = 0; j < TG_ABACUS_STEPS_MAX; j++)
		if (j < found)
			tg_abacus_at(s, p->schedule[j])->again++;
	return 1;
}

TG_INLINE struct tg_verdict
tg_abacus_admit(const struct tg_abacus_params *p, struct tg_abacus_state *s,
		struct tg_abacus_stats *stats, const struct tg_event *e)
{
	if (!p->bucket.rate_milli || !p->period_ns) {
		stats->admitted++;
		return tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);
	}
	tg_abacus_tick(p, s, e->now_ns);
	s->arrivals_milli = tg_arrivals(s->arrivals_milli, e);
	tg_bucket_refill(&p->bucket, &s->bucket, e->now_ns);
	if (tg_bucket_take_for(&p->bucket, &s->bucket,
			       p->reserve[e->priority & (TG_PRIORITIES - 1)],
			       e)) {
		stats->admitted++;
		return tg_verdict(TG_ADMIT, TG_REASON_TOKEN);
	}
	if (tg_abacus_at(s, 0)->again) {
		tg_abacus_at(s, 0)->again--;
		stats->expected_again++;
		return tg_verdict(TG_DROP, TG_REASON_EXPECTED_AGAIN);
	}
	if (tg_abacus_borrow(p, s, tg_event_milli(e))) {
		stats->borrowed++;
		return tg_verdict(TG_DROP, TG_REASON_BORROWED);
	}
	stats->rejected++;
	return tg_verdict(TG_REJECT, TG_REASON_NO_ROOM);
}

#endif
