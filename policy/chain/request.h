/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The decision about a request that has a rule, for every host program: rank, the
 * rule's bucket, and what becomes of a refusal.
 *
 * A bucket is a policy of the register that serves requests. Its priorities are the
 * ranks: in the order of who is refused last.
 */
#ifndef TG_REQUEST_CHAIN_H
#define TG_REQUEST_CHAIN_H

#include "../policies.h"
#include "canary.h"
#include "lease.h"
#include "level.h"

/* Three kinds of request share a bucket. */
#define TG_RANK_PROTECTED 0
#define TG_RANK_NEW 1		/* any other: first requests of connections, and
				 * later ones where the rule does not close */
#define TG_RANK_PERSISTENT 2	/* later request, where the rule closes */
#define TG_RANKS 3

#define TG_BUCKET_SHADOW 1	/* computed and counted, not executed */
#define TG_BUCKET_LIMITED 2	/* there is a limit: else nobody takes the lock */
#define TG_BUCKET_FROM_SHIFT 4	/* three bits: see tg_request_decide_from() */

/* The limits of one bucket. Zero limits nothing. */
struct tg_request_limits {
	tg_u32 flags;		/* above them the share of a canary */
	tg_u32 in_flight_q10;	/* the weight of its level: level.h */
	struct tg_params params;
};
TG_ASSERT(sizeof(struct tg_request_limits) == 152);

/* The memory of one bucket; zero is fresh. */
struct tg_request_chain {
	TG_LOCK_TYPE lock;
	tg_u32 policy;		/* whose memory it is, enum tg_policy */
	struct tg_request_state state;
	tg_u64 pad2;
};
TG_ASSERT(sizeof(struct tg_request_chain) == 128);

/* What a request is, in the bucket of its rule. `closes`: so its rule says. */
TG_INLINE tg_u32 tg_request_rank(int protected, int first, int closes)
{
	if (protected)
		return TG_RANK_PROTECTED;
	return !first && closes ? TG_RANK_PERSISTENT : TG_RANK_NEW;
}

/* 1: it asks the policy; else all are admitted, and nothing random is needed. */
TG_INLINE int tg_request_limited(const struct tg_request_limits *limits)
{
	return limits->flags & TG_BUCKET_LIMITED;
}

/* The policy alone, under its lock: what another one has left there is nothing to it. */
TG_INLINE struct tg_verdict
tg_request_policy(const struct tg_request_limits *limits,
		  struct tg_request_chain *chain, const struct tg_event *event)
{
	struct tg_verdict v;

	TG_LOCK(&chain->lock);
	if (chain->policy != limits->params.policy) {
		chain->policy = limits->params.policy;
		__builtin_memset(&chain->state, 0, sizeof(chain->state));
	}
	v = tg_policy_admit_request(&limits->params, &chain->state, event);
	TG_UNLOCK(&chain->lock);
	return v;
}

/*
 * What the bucket says to an event, whose priority is its rank. `waiting`: requests
 * of the service that wait for a response, this one apart. There is no accept queue
 * in its level: its connection is established. `waits`: the host can delay; else who
 * is to wait is admitted at once, and has its place in the bucket.
 */
TG_INLINE struct tg_verdict
tg_request_decide(const struct tg_request_limits *limits,
		  struct tg_request_chain *chain, struct tg_event *event,
		  long long waiting, int waits)
{
	if (!tg_request_limited(limits))
		return tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);
	event->level = tg_level_in_flight(waiting, limits->in_flight_q10);
	return tg_waited(tg_request_policy(limits, chain, event), waits);
}

/*
 * The same for a host that knows priorities, and no ranks. The limits may be about some of
 * them only, from one on; 0: about all. Those above take tokens, too, and are admitted
 * whatever the policy says. So it is one limit for all, and the others bear it.
 */
TG_INLINE struct tg_verdict
tg_request_decide_from(const struct tg_request_limits *limits,
		       struct tg_request_chain *chain, struct tg_event *event,
		       long long waiting, int waits)
{
	tg_u32 from = limits->flags >> TG_BUCKET_FROM_SHIFT &
		      (TG_PRIORITIES - 1);
	struct tg_verdict v = tg_request_decide(limits, chain, event, waiting,
						waits);

	if (event->priority < from && v.kind != TG_ADMIT)
		return tg_verdict(TG_ADMIT, TG_REASON_LET_THROUGH);
	return v;
}

/* What becomes of what it says: enum tg_execution. Only a refusal can be spared. */
TG_INLINE enum tg_execution
tg_request_execution(const struct tg_request_limits *limits,
		     struct tg_verdict v, tg_u64 source, tg_u32 strength,
		     tg_u32 random)
{
	int shadow = limits->flags & TG_BUCKET_SHADOW ||
		     tg_canary_spares(limits->flags, source);

	if (!tg_refuses(v))
		return TG_EXECUTED;
	return tg_lease_execution(shadow, strength, random);
}

#endif
