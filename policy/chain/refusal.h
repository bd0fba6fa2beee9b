/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How a router refuses a new connection for which the limit of its destination has no
 * token, by the class of the client. The paper (papers/news.txt) drops all alike.
 *
 *	drop	nothing is sent: the client tries again by its own timer
 *	reset	a RST: most clients fail at once
 *	abacus	dropped if there is room when it comes back, else a RST
 *		(algo/abacus_exact.h)
 *
 * Abacus has to know whom it dropped: it needs a filter, which is large. A host program has
 * few, and gives one to a destination while its limit holds. Then the bucket of the
 * filter is that of the destination, for all classes. To the filter a client of another
 * class is a new arrival: it counts as one, and leaves a token for each copy that is due.
 * It is not expected again, so a repeated attempt leaves half of the bucket, as in router/crowd.h.
 * Without a filter abacus is a drop.
 *
 * Zero is fresh.
 */
#ifndef TG_CROWD_REFUSAL_H
#define TG_CROWD_REFUSAL_H

#include "../policies.h"

enum tg_crowd_action {
	TG_CROWD_DROP = 0,
	TG_CROWD_RESET = 1,
	TG_CROWD_ABACUS = 2,
};

struct tg_crowd_filter {
	struct tg_abacus_exact_state state;
	struct tg_abacus_exact_stats stats;
};
TG_ASSERT(sizeof(struct tg_crowd_filter) == 72 + 4096 + 262144 + 32);

/* What an action is without a filter: TG_DROP or TG_REJECT. */
TG_INLINE tg_u8 tg_crowd_refusal(tg_u32 action)
{
	return action == TG_CROWD_RESET ? TG_REJECT : TG_DROP;
}

/* A client of a class that has not Abacus; priority above 0: a repeated attempt. */
TG_INLINE struct tg_verdict
tg_crowd_beside(const struct tg_abacus_exact_params *p,
		struct tg_abacus_exact_state *s, tg_u32 action,
		const struct tg_event *e)
{
	if (!p->bucket.rate_milli || !p->period_ns)
		return tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);
	tg_abacus_exact_tick(p, s, e->now_ns);
	tg_bucket_refill(&p->bucket, &s->bucket, e->now_ns);
	if (!e->priority)
		s->arrivals_milli = tg_arrivals(s->arrivals_milli, e);
	if (tg_exact_take(p, s, e, 0))
		return tg_verdict(TG_ADMIT, TG_REASON_TOKEN);
	return tg_verdict(tg_crowd_refusal(action), TG_REASON_RATE);
}

/*
 * The verdict of a filter. event.key: the same for all copies of one SYN. Of Abacus's own
 * clients the filter knows by itself who comes again.
 */
TG_INLINE struct tg_verdict
tg_crowd_filtered(const struct tg_abacus_exact_params *p,
		  struct tg_crowd_filter *f, tg_u32 action,
		  const struct tg_event *e)
{
	struct tg_event own = *e;

	if (action != TG_CROWD_ABACUS)
		return tg_crowd_beside(p, &f->state, action, e);
	own.priority = 0;
	return tg_abacus_exact_admit(p, &f->state, &f->stats, &own);
}

#endif
