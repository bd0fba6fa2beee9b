/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How an overloaded server divides its rate among the congested routers before it
 * (papers/netdraino.txt, section 4.3; the paper prints k * from / total, the rate must
 * be meant):
 *
 *	limit = k * rate * demand here / demand in all,	never above rate
 *
 * Demand is what would come if no router refused anything: what is offered to a router
 * and what routers behind it refuse, by their own counts. Shares of what arrives at the
 * server would spiral: a router that drops has a smaller share, so its next limit is
 * smaller, so it drops more.
 *
 *	in all = demand of the routers nearest to the server
 *		 + what arrives at the server without them
 *
 * Rates are per second, 1/1000. All is bounded, and zero is: nothing known.
 */
#ifndef TG_TAILOR_H
#define TG_TAILOR_H

#include "../contract/contract.h"

#define TG_TAILOR_ROUTERS 32
#define TG_TAILOR_K_MAX 16000
#define TG_TAILOR_SHARE (1ULL << 18)

struct tg_tailor_params {
	tg_u64 rate_milli;	/* the server's own limit */
	tg_u64 min_rate_milli;	/* no router gets less, but for the rate itself */
	tg_u32 k_milli;		/* k, 1/1000 */
	tg_u32 pad;
};
TG_ASSERT(sizeof(struct tg_tailor_params) == 24);

/* What a router says of one destination. */
struct tg_tailor_part {
	tg_u64 offered_milli;
	tg_u64 refused_milli;	/* of these, by the limit */
	tg_u32 before;		/* 1 + place of the next router towards the server; 0: none */
	tg_u32 pad;
};
TG_ASSERT(sizeof(struct tg_tailor_part) == 24);

struct tg_tailor {
	tg_u64 demand_milli[TG_TAILOR_ROUTERS];
	tg_u64 all_milli;
};

TG_INLINE tg_u64 tg_tailor_add(tg_u64 a, tg_u64 b)
{
	return tg_min(a + tg_min(b, TG_RATE_MILLI_MAX), TG_RATE_MILLI_MAX);
}

/* Adds what router i refuses to the demand of all between it and the server. */
TG_INLINE void tg_tailor_carry(struct tg_tailor *t, const struct tg_tailor_part *part,
			       tg_u32 n, tg_u32 i)
{
	tg_u64 refused = tg_min(part[i].refused_milli, part[i].offered_milli);
	tg_u32 at = part[i].before;

	for (tg_u32 hops = 0; hops < n && at && at <= n && at != i + 1; hops++) {
		t->demand_milli[at - 1] = tg_tailor_add(t->demand_milli[at - 1], refused);
		at = part[at - 1].before;
	}
}

/* Demands of n routers, and in all; `arrived` is what arrives at the server. */
TG_INLINE void tg_tailor_demand(struct tg_tailor *t, const struct tg_tailor_part *part,
				tg_u32 n, tg_u64 arrived_milli)
{
	tg_u64 passed = 0;

	n = tg_min(n, TG_TAILOR_ROUTERS);
	t->all_milli = 0;
	for (tg_u32 i = 0; i < n; i++)
		t->demand_milli[i] = tg_min(part[i].offered_milli, TG_RATE_MILLI_MAX);
	for (tg_u32 i = 0; i < n; i++)
		tg_tailor_carry(t, part, n, i);
	for (tg_u32 i = 0; i < n; i++) {
		if (part[i].before && part[i].before <= n)
			continue;
		t->all_milli = tg_tailor_add(t->all_milli, t->demand_milli[i]);
		passed = tg_tailor_add(passed, part[i].offered_milli -
				       tg_min(part[i].refused_milli,
					      part[i].offered_milli));
	}
	if (arrived_milli > passed)
		t->all_milli = tg_tailor_add(t->all_milli, arrived_milli - passed);
}

/* The limit for a router with this demand. */
TG_INLINE tg_u64 tg_tailor_limit(const struct tg_tailor_params *p, tg_u64 demand_milli,
				 tg_u64 all_milli)
{
	tg_u64 rate = tg_min(p->rate_milli, TG_RATE_MILLI_MAX);
	tg_u64 demand = tg_min(demand_milli, TG_RATE_MILLI_MAX);
	tg_u64 share = TG_TAILOR_SHARE, limit;

	if (demand < all_milli)
		share = demand * TG_TAILOR_SHARE / all_milli;
	/* No overflow: 2^40 * 2^14 / 10^3 * 2^18 is below 2^63. */
	limit = rate * tg_min(p->k_milli, TG_TAILOR_K_MAX) / 1000 * share / TG_TAILOR_SHARE;
	if (limit < p->min_rate_milli)
		limit = p->min_rate_milli;
	return tg_min(limit, rate);
}

/* As published: from / total by what arrives at the server. */
TG_INLINE tg_u64 tg_tailor_published(const struct tg_tailor_params *p, tg_u64 from,
				     tg_u64 total)
{
	return total ? tg_tailor_limit(p, from, total) : p->rate_milli;
}

#endif
