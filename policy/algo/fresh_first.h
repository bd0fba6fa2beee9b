/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Fresh first: a token bucket that serves first attempts before repeated SYNs.
 *
 * A dropped SYN comes back, up to six times within seven seconds. At three
 * times the capacity most of what arrives is then repetition, and a plain
 * bucket gives most tokens to clients who have waited for seconds already:
 * everybody waits. Here an event that is known to have been refused before
 * takes a token only if fresh_reserve tokens stay for first attempts. Under
 * overload those who come first are served at once; what is left when demand
 * falls serves the repetitions. An event that a limit before the policy refused
 * is remembered as well.
 *
 * In a flood of spoofed senders a first attempt costs what its like are worth
 * (chain/senders.h): the flood leaves nearly all tokens to honest clients, their
 * repetitions among them.
 *
 * Memory: the keys of refused SYNs, as 16-bit fingerprints in a fixed table of
 * 8-way sets, the latest first. Nothing is ever allocated; a set that is full
 * forgets its oldest. Forgetting (many spoofed sources) makes a repetition
 * look like a first attempt, a chance hit (8 in 65536) does the reverse:
 * both cost a place in the order, never more. Keys are seeded per boot by the
 * caller. At f refusals a second a key is remembered for about 262144 / f
 * seconds.
 */
#ifndef TG_FRESH_FIRST_H
#define TG_FRESH_FIRST_H

#include "../contract/contract.h"

#define TG_FRESH_SETS 32768
#define TG_FRESH_WAYS 8

struct tg_fresh_first_params {
	struct tg_bucket_params bucket;
	tg_u64 reserve[TG_PRIORITIES];	/* picotokens, not falling */
	tg_u64 fresh_reserve;		/* picotokens kept for first attempts */
	tg_u32 action;			/* TG_DROP or TG_REJECT */
	tg_u32 pad;
};
TG_ASSERT(sizeof(struct tg_fresh_first_params) == 104);

struct tg_fresh_set {
	tg_u16 way[TG_FRESH_WAYS];	/* fingerprints, latest first; 0: free */
};

struct tg_fresh_first_state {
	struct tg_bucket bucket;
	struct tg_fresh_set set[TG_FRESH_SETS];
};
TG_ASSERT(sizeof(struct tg_fresh_first_state) == 16 + 524288);

struct tg_fresh_first_stats {
	tg_u64 admitted;
	tg_u64 refused;
	tg_u64 admitted_repeated;
	tg_u64 refused_repeated;
};

TG_INLINE struct tg_fresh_set *
tg_fresh_set(struct tg_fresh_first_state *s, tg_u64 key)
{
	return &s->set[key & (TG_FRESH_SETS - 1)];
}

/* Where admit will look: see tg_policy_near. */
TG_INLINE const void *tg_fresh_first_near(const struct tg_fresh_first_state *s,
					  tg_u64 key)
{
	return &s->set[key & (TG_FRESH_SETS - 1)];
}

TG_INLINE tg_u16 tg_fresh_print(tg_u64 key)
{
	tg_u16 print = key >> 48;

	return print ? print : 1;
}

TG_INLINE int tg_fresh_known(const struct tg_fresh_set *set, tg_u16 print)
{
	int known = 0;

	for (int i = 0; i < TG_FRESH_WAYS; i++)
		known |= set->way[i] == print;
	return known;
}

/* Puts the fingerprint first; a known one moves up, else the oldest falls out. */
TG_INLINE void tg_fresh_remember(struct tg_fresh_set *set, tg_u16 print)
{
	tg_u16 carried = print;

	for (int i = 0; i < TG_FRESH_WAYS; i++) {
		tg_u16 here = set->way[i];

		set->way[i] = carried;
		if (here == print)
			break;
		carried = here;
	}
}

TG_INLINE void tg_fresh_first_tick(const struct tg_fresh_first_params *p,
				   struct tg_fresh_first_state *s,
				   tg_u64 now_ns)
{
	tg_bucket_refill(&p->bucket, &s->bucket, now_ns);
}

TG_INLINE void tg_fresh_first_observe(const struct tg_fresh_first_params *p,
				      struct tg_fresh_first_state *s,
				      const struct tg_event *e)
{
	(void)p; (void)s; (void)e;	/* completions do not matter here */
}

/*
 * A limit before the policy has refused this event: it is a repetition when it
 * comes back, whoever refused it. 1: it was one already.
 */
TG_INLINE int tg_fresh_first_refused(struct tg_fresh_first_state *s,
				     const struct tg_event *e)
{
	struct tg_fresh_set *set = tg_fresh_set(s, e->key);
	tg_u16 print = tg_fresh_print(e->key);
	int repeated = tg_fresh_known(set, print);

	tg_fresh_remember(set, print);
	return repeated;
}

TG_INLINE struct tg_verdict
tg_fresh_first_refuse(const struct tg_fresh_first_params *p,
		      const struct tg_fresh_first_state *s,
		      tg_u64 reserve, int repeated)
{
	tg_u8 reason = TG_REASON_RATE;
	struct tg_verdict v;

	if (s->bucket.used + reserve + TG_TOKEN <= p->bucket.depth)
		reason = TG_REASON_REPEATED;
	else if (tg_bucket_has(&p->bucket, &s->bucket))
		reason = TG_REASON_RESERVED;
	v = tg_verdict(tg_action(p->action), reason);
	v.repeated = repeated;
	return v;
}

TG_INLINE struct tg_verdict
tg_fresh_first_admit(const struct tg_fresh_first_params *p,
		     struct tg_fresh_first_state *s,
		     struct tg_fresh_first_stats *stats,
		     const struct tg_event *e)
{
	tg_u64 reserve = p->reserve[e->priority & (TG_PRIORITIES - 1)];
	struct tg_fresh_set *set = tg_fresh_set(s, e->key);
	tg_u16 print = tg_fresh_print(e->key);
	int repeated = tg_fresh_known(set, print);
	struct tg_verdict v = tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);

	v.repeated = repeated;
	if (p->bucket.rate_milli) {
		tg_fresh_first_tick(p, s, e->now_ns);
		if (!tg_bucket_take_for(&p->bucket, &s->bucket, reserve +
					(repeated ? p->fresh_reserve : 0), e)) {
			tg_fresh_remember(set, print);
			stats->refused++;
			stats->refused_repeated += repeated;
			return tg_fresh_first_refuse(p, s, reserve, repeated);
		}
		v.reason = TG_REASON_TOKEN;
	}
	stats->admitted++;
	stats->admitted_repeated += repeated;
	return v;
}

#endif
