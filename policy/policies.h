/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * All policies behind one call: what a host (kernel, gateway, simulator)
 * includes. The switch and the unions come from policies.def.
 */
#ifndef TG_POLICIES_H
#define TG_POLICIES_H

#include "contract/contract.h"
#include "algo/abacus.h"
#include "algo/abacus_exact.h"
#include "algo/abacus_learned.h"
#include "algo/fresh_first.h"
#include "algo/gap.h"
#include "algo/percent.h"
#include "algo/threshold.h"
#include "algo/token_bucket.h"

#define TG_POLICY(number, name, serves, key, state, text) TG_POLICY_##name = number,
enum tg_policy {
#include "policies.def"
};
#undef TG_POLICY

union tg_policy_params {
#define TG_POLICY(number, name, serves, key, state, text) struct tg_##name##_params name;
#include "policies.def"
#undef TG_POLICY
};

/* Parameters of one policy. Zero admits everything: a table that was not filled lets pass. */
struct tg_params {
	tg_u32 policy;	/* enum tg_policy */
	tg_u32 pad;
	union tg_policy_params u;
};
TG_ASSERT(sizeof(struct tg_params) == 144);

/* What a policy counts, for people. */
struct tg_policy_stats {
	union {
#define TG_POLICY(number, name, serves, key, state, text) struct tg_##name##_stats name;
#include "policies.def"
#undef TG_POLICY
	} u;
};
TG_ASSERT(sizeof(struct tg_policy_stats) == 32);

struct tg_state {
	struct tg_policy_stats stats;
	union {
#define TG_POLICY(number, name, serves, key, state, text) struct tg_##name##_state name;
#include "policies.def"
#undef TG_POLICY
	} u;
};
TG_ASSERT(sizeof(struct tg_state) == 32 + 16 + 524288);

/* To a host program with one CPU, or under a lock: any policy. */
TG_INLINE struct tg_verdict tg_policy_admit(const struct tg_params *p,
					    struct tg_state *s,
					    const struct tg_event *e)
{
	switch (p->policy) {
#define TG_POLICY(number, name, serves, key, state, text)		\
	case number:							\
		return tg_##name##_admit(&p->u.name, &s->u.name,	\
					 &s->stats.u.name, e);
#include "policies.def"
#undef TG_POLICY
	}
	return tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);
}

/* Of the policies in the register, by what of their state several CPUs use at once. */
#define TG_IF_LOCKED_LOCKED(what) what
#define TG_IF_LOCKED_COPIED(what)
#define TG_IF_COPIED_LOCKED(what)
#define TG_IF_COPIED_COPIED(what) what

/* The same of those whose state is under a lock. */
TG_INLINE struct tg_verdict tg_policy_admit_locked(const struct tg_params *p,
						   struct tg_state *s,
						   const struct tg_event *e)
{
	switch (p->policy) {
#define TG_POLICY(number, name, serves, key, state, text)		\
	TG_IF_LOCKED_##state(case number:				\
		return tg_##name##_admit(&p->u.name, &s->u.name,	\
					 &s->stats.u.name, e);)
#include "policies.def"
#undef TG_POLICY
	}
	return tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);
}

/* 1: its bucket is copied. */
TG_INLINE int tg_policy_is_copied(const struct tg_params *p)
{
	switch (p->policy) {
#define TG_POLICY(number, name, serves, key, state, text)		\
	TG_IF_COPIED_##state(case number: return 1;)
#include "policies.def"
#undef TG_POLICY
	}
	return 0;
}

/* Parameters and state of all that are copied begin with their bucket. */
#define TG_POLICY(number, name, serves, key, state, text)		\
	TG_IF_COPIED_##state(						\
	TG_ASSERT(!__builtin_offsetof(struct tg_##name##_params, bucket));	\
	TG_ASSERT(!__builtin_offsetof(struct tg_##name##_state, bucket));)
#include "policies.def"
#undef TG_POLICY

/*
 * Of a policy whose bucket is copied: what the event must leave in it. `repeated`: it
 * is known to have been refused before.
 */
TG_INLINE tg_u64 tg_policy_reserve(const struct tg_params *p, struct tg_state *s,
				   const struct tg_event *e, int *repeated)
{
	*repeated = 0;
	if (p->policy != TG_POLICY_fresh_first)
		return tg_token_bucket_reserve(&p->u.token_bucket, e);
	*repeated = tg_fresh_first_knows(&s->u.fresh_first, e);
	return tg_fresh_first_reserve(&p->u.fresh_first, e, *repeated);
}

/* Its verdict, once the bucket has given a token or not. */
TG_INLINE struct tg_verdict
tg_policy_say(const struct tg_params *p, struct tg_state *s,
	      const struct tg_bucket *bucket, struct tg_policy_stats *stats,
	      const struct tg_event *e, int taken, int repeated)
{
	if (p->policy != TG_POLICY_fresh_first)
		return tg_token_bucket_say(&p->u.token_bucket, bucket,
					   &stats->u.token_bucket, taken);
	return tg_fresh_first_say(&p->u.fresh_first, &s->u.fresh_first, bucket,
				  &stats->u.fresh_first, e, taken, repeated);
}

/* Its verdict where there is no rate. */
TG_INLINE struct tg_verdict tg_policy_unlimited(const struct tg_params *p,
						struct tg_policy_stats *stats,
						int repeated)
{
	if (p->policy == TG_POLICY_fresh_first)
		return tg_fresh_first_unlimited(&stats->u.fresh_first, repeated);
	stats->u.token_bucket.admitted++;
	return tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);
}

/* Of the policies in the register, those that serve requests. */
#define TG_FOR_REQUESTS_SYN(row)
#define TG_FOR_REQUESTS_ANY(row) row

/* The memory for requests: of no policy that serves new connections only. */
struct tg_request_state {
	union {
#define TG_POLICY(number, name, serves, key, state, text)		\
	TG_FOR_REQUESTS_##serves(struct tg_##name##_stats name;)
#include "policies.def"
#undef TG_POLICY
	} stats;
	union {
#define TG_POLICY(number, name, serves, key, state, text)		\
	TG_FOR_REQUESTS_##serves(struct tg_##name##_state name;)
#include "policies.def"
#undef TG_POLICY
	} u;
};

/* A policy that does not serve requests is none: they are admitted. */
TG_INLINE struct tg_verdict tg_policy_admit_request(const struct tg_params *p,
						    struct tg_request_state *s,
						    const struct tg_event *e)
{
	switch (p->policy) {
#define TG_POLICY(number, name, serves, key, state, text)			\
	TG_FOR_REQUESTS_##serves(case number:				\
		return tg_##name##_admit(&p->u.name, &s->u.name,	\
					 &s->stats.name, e);)
#include "policies.def"
#undef TG_POLICY
	}
	return tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);
}

/*
 * A limit before the policy has refused this event. 1: it is known to be a copy
 * of one that was refused. A policy that serves first attempts first remembers
 * it; to the others it is nothing. Needs no lock.
 */
TG_INLINE int tg_policy_refused(const struct tg_params *p, struct tg_state *s,
				const struct tg_event *e)
{
	if (p->policy == TG_POLICY_fresh_first)
		return tg_fresh_first_refused(&s->u.fresh_first, e);
	return 0;
}

/*
 * Memory that admit will look at for this key. A host that has other things to
 * do before may read it early, so that it waits for both at once; the policy
 * does not care. A policy that remembers clients says where; the state of the
 * others is small.
 */
TG_INLINE const void *tg_policy_near(const struct tg_params *p,
				     const struct tg_state *s, tg_u64 key)
{
	switch (p->policy) {
	case TG_POLICY_fresh_first:
		return tg_fresh_first_near(&s->u.fresh_first, key);
	case TG_POLICY_abacus_exact:
		return tg_abacus_exact_near(&s->u.abacus_exact, key);
	case TG_POLICY_abacus_learned:
		return tg_abacus_learned_near(&s->u.abacus_learned, key);
	}
	return s;
}

#endif
