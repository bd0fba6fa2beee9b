/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Percent: the default loss algorithm of RFC 7339, section 7.2. It refuses a
 * share of all that arrives, the lowest priorities first.
 *
 * Of each period the arrivals of each priority are counted. From these counts
 * follows which priorities are refused as a whole, and which part of the next
 * one:
 *
 *	share * all arrivals	events to refuse
 *	from the lowest priority up: all of it, while that many are left
 *	the edge: the first that has more; of it, chance = left / its arrivals
 *
 * The RFC has two categories, and these are one for each priority. So nothing
 * of a priority is refused before all below it are.
 *
 * They are counted while nothing is refused as well, so the first share finds a
 * mix. Before the first counts one is believed (RFC 7339: 80 % of the requests
 * in the category that is reduced first). A period with few arrivals goes on until
 * there are enough: a share of a handful says nothing.
 *
 * One division a period, and one for each change of the share.
 */
#ifndef TG_PERCENT_H
#define TG_PERCENT_H

#include "../contract/contract.h"

#define TG_PERCENT_LEAST 64	/* arrivals from which a mix is measured */
#define TG_PERCENT_COUNT_MAX (1U << 31)

struct tg_percent_params {
	tg_u64 period_ns;		/* RFC 7339: 5 to 10 s */
	tg_u32 share;			/* refused, 1/TG_SHARE_ONE; 0: none */
	tg_u32 action;			/* TG_DROP or TG_REJECT */
	tg_u8 mix[TG_PRIORITIES];	/* arrivals of each priority, in % */
};
TG_ASSERT(sizeof(struct tg_percent_params) == 24);

struct tg_percent_state {
	tg_u64 period_end_ns;		/* 0: no event seen yet */
	tg_u32 count[TG_PRIORITIES];	/* arrivals of this period */
	tg_u32 mix[TG_PRIORITIES];	/* and of the last one that counts */
	tg_u32 share;			/* for which edge and chance hold */
	tg_u32 chance;			/* to be refused at the edge, 1/2^32 */
	tg_u32 edge;			/* priorities below it are refused */
	tg_u32 pad;
};
TG_ASSERT(sizeof(struct tg_percent_state) == 88);

struct tg_percent_stats {
	tg_u64 admitted;
	tg_u64 refused;
};

/* Whom to refuse, so that it is this share of the mix. */
TG_INLINE void tg_percent_divide(struct tg_percent_state *s, tg_u32 share)
{
	tg_u64 left = 0, here = 0;	/* events, in 1/TG_SHARE_ONE */
	tg_u32 edge = TG_PRIORITIES - 1;

	for (int i = 0; i < TG_PRIORITIES; i++)
		left += (tg_u64)share * s->mix[i];
	for (int i = TG_PRIORITIES - 1; i >= 0; i--) {
		edge = i;
		here = (tg_u64)s->mix[i] * TG_SHARE_ONE;
		if (left < here || !left)
			break;
		left -= here;
	}
	s->share = share;
	s->edge = edge;
	/* no overflow: left < here, and here is below 2^48 */
	s->chance = left < here ? (left << 16) / (here >> 16) : 0;
}

TG_INLINE int tg_percent_measure(struct tg_percent_state *s)
{
	tg_u64 all = 0;

	for (int i = 0; i < TG_PRIORITIES; i++)
		all += s->count[i];
	if (all < TG_PERCENT_LEAST)
		return 0;
	for (int i = 0; i < TG_PRIORITIES; i++) {
		s->mix[i] = s->count[i];
		s->count[i] = 0;
	}
	return 1;
}

TG_INLINE void tg_percent_tick(const struct tg_percent_params *p,
			       struct tg_percent_state *s, tg_u64 now_ns)
{
	int changed = s->share != p->share;

	if (!s->period_end_ns)
		for (int i = 0; i < TG_PRIORITIES; i++)
			s->mix[i] = p->mix[i];
	/* a period that ends far in the future: the clock went back */
	if (!s->period_end_ns ||
	    s->period_end_ns > now_ns + p->period_ns + TG_CLOCK_BACK_NS_MAX)
		s->period_end_ns = now_ns + p->period_ns;
	if (now_ns >= s->period_end_ns) {
		changed |= tg_percent_measure(s);
		s->period_end_ns = now_ns + p->period_ns;
	}
	if (changed)
		tg_percent_divide(s, p->share);
}

TG_INLINE void tg_percent_observe(const struct tg_percent_params *p,
				  struct tg_percent_state *s,
				  const struct tg_event *e)
{
	(void)p; (void)s; (void)e;	/* completions do not matter here */
}

TG_INLINE struct tg_verdict
tg_percent_admit(const struct tg_percent_params *p, struct tg_percent_state *s,
		 struct tg_percent_stats *stats, const struct tg_event *e)
{
	tg_u32 priority = e->priority & (TG_PRIORITIES - 1);

	if (!p->period_ns) {
		stats->admitted++;
		return tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);
	}
	/* also while nothing is refused: the first share finds a mix */
	tg_percent_tick(p, s, e->now_ns);
	s->count[priority] = tg_min((tg_u64)s->count[priority] + 1,
				    TG_PERCENT_COUNT_MAX);
	if (!p->share) {
		stats->admitted++;
		return tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);
	}
	if (p->share >= TG_SHARE_ONE || priority > s->edge ||
	    (priority == s->edge && e->random < s->chance)) {
		stats->refused++;
		return tg_verdict(tg_action(p->action), TG_REASON_THROTTLED);
	}
	stats->admitted++;
	return tg_verdict(TG_ADMIT, TG_REASON_LET_THROUGH);
}

#endif
