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
 * Memory: the keys of refused SYNs, in a fixed table of sets (contract/fresh_set.h).
 * Forgetting (many spoofed sources) makes a repetition look like a first attempt, a
 * chance hit (8 in 65536) does the reverse: both cost a place in the order, never
 * more. Keys are seeded per boot by the caller. At f refusals a second a key is
 * remembered for about 262144 / f seconds.
 */
#ifndef TG_FRESH_FIRST_H
#define TG_FRESH_FIRST_H

#include "../contract/contract.h"
#include "../contract/fresh_set.h"

#define TG_FRESH_SETS 32768

struct tg_fresh_first_params {
	struct tg_bucket_params bucket;
	tg_u64 reserve[TG_PRIORITIES];	/* picotokens, not falling */
	tg_u64 fresh_reserve;		/* picotokens kept for first attempts */
	tg_u32 action;			/* TG_DROP or TG_REJECT */
	tg_u32 pad;
};
TG_ASSERT(sizeof(struct tg_fresh_first_params) == 104);

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

/* 1: it is known to have been refused before. Needs no lock. */
TG_INLINE int tg_fresh_first_knows(struct tg_fresh_first_state *s,
				   const struct tg_event *e)
{
	return tg_fresh_known(tg_fresh_set(s, e->key), tg_fresh_print(e->key));
}

/*
 * A limit before the policy has refused this event: it is a repetition when it
 * comes back, whoever refused it. 1: it was one already. Needs no lock.
 */
TG_INLINE int tg_fresh_first_refused(struct tg_fresh_first_state *s,
				     const struct tg_event *e)
{
	int repeated = tg_fresh_first_knows(s, e);

	tg_fresh_remember(tg_fresh_set(s, e->key), tg_fresh_print(e->key));
	return repeated;
}

/* What an event must leave in the bucket. */
TG_INLINE tg_u64 tg_fresh_first_reserve(const struct tg_fresh_first_params *p,
					const struct tg_event *e, int repeated)
{
	return p->reserve[e->priority & (TG_PRIORITIES - 1)] +
	       (repeated ? p->fresh_reserve : 0);
}

TG_INLINE tg_u8 tg_fresh_first_reason(const struct tg_fresh_first_params *p,
				      const struct tg_bucket *bucket,
				      const struct tg_event *e)
{
	if (!tg_bucket_lacks(&p->bucket, bucket,
			     tg_fresh_first_reserve(p, e, 0)))
		return TG_REASON_REPEATED;
	return tg_bucket_has(&p->bucket, bucket) ? TG_REASON_RESERVED :
						   TG_REASON_RATE;
}

/*
 * The verdict, once the bucket has given a token or not. Who gets none is
 * remembered. Needs no lock, either.
 */
TG_INLINE struct tg_verdict
tg_fresh_first_say(const struct tg_fresh_first_params *p,
		   struct tg_fresh_first_state *s,
		   const struct tg_bucket *bucket,
		   struct tg_fresh_first_stats *stats, const struct tg_event *e,
		   int taken, int repeated)
{
	struct tg_verdict v = tg_verdict(TG_ADMIT, TG_REASON_TOKEN);

	if (taken) {
		stats->admitted++;
		stats->admitted_repeated += repeated;
	} else {
		tg_fresh_remember(tg_fresh_set(s, e->key),
				  tg_fresh_print(e->key));
		stats->refused++;
		stats->refused_repeated += repeated;
		v = tg_verdict(tg_action(p->action),
			       tg_fresh_first_reason(p, bucket, e));
	}
	v.repeated = repeated;
	return v;
}

/* No rate: everything is admitted. */
TG_INLINE struct tg_verdict
tg_fresh_first_unlimited(struct tg_fresh_first_stats *stats, int repeated)
{
	struct tg_verdict v = tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);

	stats->admitted++;
	stats->admitted_repeated += repeated;
	v.repeated = repeated;
	return v;
}

TG_INLINE struct tg_verdict
tg_fresh_first_admit(const struct tg_fresh_first_params *p,
		     struct tg_fresh_first_state *s,
		     struct tg_fresh_first_stats *stats,
		     const struct tg_event *e)
{
	int repeated = tg_fresh_first_knows(s, e);
	int taken;

	if (!p->bucket.rate_milli)
		return tg_fresh_first_unlimited(stats, repeated);
	tg_fresh_first_tick(p, s, e->now_ns);
	taken = tg_bucket_take_for(&p->bucket, &s->bucket,
				   tg_fresh_first_reserve(p, e, repeated), e);
	return tg_fresh_first_say(p, s, &s->bucket, stats, e, taken, repeated);
}

#endif
