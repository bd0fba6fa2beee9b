/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The whole decision about a new connection, for every host program: its limits,
 * its state, the question, and the parts of the answer. decide.h puts them into
 * their order.
 *
 *	kill switch, lease ended		admit, no limit is asked (lease.h)
 *	silent connections of the source	} the first refusal gives the
 *	accept queue				} reason
 *	connections in flight			}
 *	policy					takes a token: so it is asked
 *						last, if all others admit; it
 *						is told the level (level.h)
 *	shadow, lease relaxing, a source	a refusal is only counted
 *	that is spared (canary.h)
 *	reply not possible, or one too many,	a reject becomes a drop
 *	a copy of a SYN that passed
 *
 * One in an interval passes the accept queue and the limit in flight when they are
 * full (min_rate.h). What a token costs in a flood of spoofed senders is said
 * before the policy, and charged after it (senders.h).
 *
 * Exemptions are the host's: they need its tables. So are cutting a frame, making a
 * reply, and knowing whether one may be sent.
 */
#ifndef TG_CHAIN_H
#define TG_CHAIN_H

#include "canary.h"
#include "copy.h"
#include "in_flight.h"
#include "lease.h"
#include "level.h"
#include "min_rate.h"
#include "senders.h"

/* 1: the host can delay what it asks. A host that never can is spared the question. */
#ifndef TG_WAITS
#define TG_WAITS(ask) 0
#endif

#define TG_LIMITS_SHADOW 1	/* computed and counted, not executed */
#define TG_LIMITS_REJECT 2	/* refused with a reply; else silently */
#define TG_LIMITS_AUTO 4	/* a reject of some sources becomes a drop */
#define TG_LIMITS_COPIES 8	/* see tg_chain_asks_copy() */

/* The limits of one service. Zero limits nothing. */
struct tg_limits {
	tg_u32 flags;			/* above them the share of a canary */
	tg_u32 accept_queue_max_q10;	/* 1/1024 of the backlog; 0: never */
	struct tg_in_flight in_flight;
	tg_u32 source_max;		/* of held connections; 0: no limit */
	tg_u32 min_rate_us;		/* the least rate: one in so long */
	struct tg_level level;	/* what the policy is told of it */
	tg_u32 until;		/* of a limit that a server gave (lease.h); 0: none */
	struct tg_params params;
};
TG_ASSERT(sizeof(struct tg_limits) == 192);

/*
 * The memory of one service, beside a copy of its bucket for each CPU. Zero is fresh.
 * First what all CPUs read, then, in a cache line of their own, lock, counts and bucket;
 * what follows has others. Only `state` is under the lock.
 */
struct tg_chain {
	tg_u32 tight;		/* the limit in flight */
	tg_u32 pad;
	tg_u64 min_rate_ns;	/* the least rate */
	tg_u64 pad_line[6];
	TG_LOCK_TYPE lock;
	tg_u32 pad_lock;
	tg_u64 pad_state;
	struct tg_state state;
};
TG_ASSERT(__builtin_offsetof(struct tg_chain, lock) == 64);
TG_ASSERT(sizeof(struct tg_chain) % 64 == 0);

struct tg_queue {
	tg_u32 length;
	tg_u32 limit;
	tg_u32 known;	/* 1: there is a listener, and it was read */
};

/* What the chain is asked, and what it says. */
struct tg_ask {
	struct tg_event event;
	tg_u64 service;		/* by which the host finds limits and state */
	long long waiting;	/* connections that wait for a response */
	long long silent;	/* that have said nothing */
	struct tg_queue queue;
	tg_u32 over;		/* 1: its source may open no more connections */
	/* what it says: */
	struct tg_verdict verdict;
	tg_u32 flags;		/* of the limits */
	tg_u8 noted;		/* TG_SENDER_…, should it pass */
	tg_u8 execution;	/* enum tg_execution, of a refusal */
	tg_u8 waits;		/* asked, see TG_WAITS */
	tg_u8 copy;		/* asked: a copy of a SYN that passed, and to which
				 * nobody has replied */
};
TG_ASSERT(sizeof(struct tg_ask) == 88);

/* 1: the accept queue is as long as it may be. */
TG_INLINE int tg_chain_queue(const struct tg_limits *limits,
			     const struct tg_queue *queue)
{
	/* with a limit of none the kernel still queues one */
	tg_u64 limit = queue->limit ? queue->limit : 1;
	tg_u64 share = limits->accept_queue_max_q10 * limit;

	return limits->accept_queue_max_q10 && queue->known &&
	       (tg_u64)queue->length << 10 >= share;
}

/* The reason of the first limit before the policy that refuses; 0: none does. */
TG_INLINE tg_u8 tg_chain_first(const struct tg_limits *limits,
			       struct tg_chain *chain, const struct tg_ask *ask)
{
	/* first: where its connections hold the server, they fill the queue, too */
	if (ask->over)
		return TG_REASON_SOURCE;
	if (tg_chain_queue(limits, &ask->queue))
		return TG_REASON_ACCEPT_QUEUE;
	if (tg_in_flight_full(&limits->in_flight, &chain->tight, ask->waiting,
			      ask->silent))
		return TG_REASON_WAITING;
	return 0;
}

/*
 * 1: the least rate admits past the limit that refuses. That on a source is about who
 * comes, not about how many. Nor past a queue in which the stack has no place left: it
 * would drop the SYN, and the interval would be lost.
 */
TG_INLINE int tg_chain_min_rate(const struct tg_limits *limits,
				struct tg_chain *chain,
				const struct tg_ask *ask, tg_u8 reason)
{
	const struct tg_queue *queue = &ask->queue;

	if (reason == TG_REASON_SOURCE ||
	    (queue->known && queue->length > queue->limit))
		return 0;
	return tg_min_rate_admits(limits->min_rate_us, &chain->min_rate_ns,
				  ask->event.now_ns);
}

/* How a limit of the chain itself refuses. */
TG_INLINE struct tg_verdict tg_chain_refusal(const struct tg_limits *limits,
					     tg_u8 reason)
{
	return tg_verdict(limits->flags & TG_LIMITS_REJECT ? TG_REJECT : TG_DROP,
			  reason);
}

/* How much work waits, as far as its limits ask. */
TG_INLINE void tg_chain_level(const struct tg_limits *limits,
			      struct tg_ask *ask)
{
	const struct tg_queue *queue = &ask->queue;

	ask->event.level = tg_level(&limits->level,
				    queue->known ? queue->length : 0,
				    ask->waiting);
}

/* A policy whose bucket is copied: under the lock only if there may be a token. */
TG_INLINE struct tg_verdict tg_chain_copied(const struct tg_params *p,
					    struct tg_chain *chain,
					    struct tg_bucket_copy *copy,
					    const struct tg_event *event)
{
	const struct tg_bucket_params *limit = &p->u.token_bucket.bucket;
	struct tg_state *s = &chain->state;
	int repeated, taken = 0;
	tg_u64 reserve = tg_policy_reserve(p, s, event, &repeated);

	if (!limit->rate_milli)
		return tg_policy_unlimited(p, &copy->stats, repeated);
	if (!tg_copy_refuses(limit, copy, reserve, event->now_ns)) {
		TG_LOCK(&chain->lock);
		taken = tg_copy_take(limit, &s->u.token_bucket.bucket, copy,
				     reserve, event);
		TG_UNLOCK(&chain->lock);
	}
	return tg_policy_say(p, s, &copy->bucket, &copy->stats, event, taken,
			     repeated);
}

/* Any other, under the lock. */
TG_INLINE struct tg_verdict tg_chain_locked(const struct tg_params *p,
					    struct tg_chain *chain,
					    const struct tg_event *event)
{
	struct tg_verdict v;

	TG_LOCK(&chain->lock);
	v = tg_policy_admit_locked(p, &chain->state, event);
	TG_UNLOCK(&chain->lock);
	return v;
}

/* A limit before the policy has refused: the policy hears of it. */
TG_INLINE void tg_chain_refused(const struct tg_limits *limits,
				struct tg_chain *chain, struct tg_ask *ask,
				tg_u8 reason)
{
	ask->verdict = tg_chain_refusal(limits, reason);
	ask->verdict.repeated = tg_policy_refused(&limits->params,
						  &chain->state, &ask->event);
}

/*
 * What is said of a request that has come before, when the accept queue was full;
 * 0: the queue of its service is not limited any more.
 */
TG_INLINE int tg_chain_late(const struct tg_limits *limits, struct tg_ask *ask)
{
	if (!limits->accept_queue_max_q10)
		return 0;
	ask->flags = limits->flags;
	ask->verdict = tg_chain_refusal(limits, TG_REASON_LATE);
	ask->verdict.repeated = 1;
	return 1;
}

/* 1: whether it is rejected depends on whether its source is a single client. */
TG_INLINE int tg_chain_asks_single(const struct tg_ask *ask)
{
	return ask->verdict.kind == TG_REJECT && ask->flags & TG_LIMITS_AUTO;
}

/* 1: it is let in, now or later. */
TG_INLINE int tg_chain_admits(const struct tg_ask *ask)
{
	return ask->verdict.kind == TG_ADMIT ||
	       (TG_WAITS(ask) && ask->verdict.kind == TG_DELAY);
}

/*
 * 1: a copy of a SYN that passed is asked about as any SYN, if nobody has replied to the
 * first. So it is where a remote limit holds: that is about what arrives at its sender,
 * who may drop SYNs in silence. Each copy of those is one arrival more.
 */
TG_INLINE int tg_chain_asks_copy(const struct tg_limits *limits)
{
	return !!(limits->flags & TG_LIMITS_COPIES);
}

/*
 * From what was decided to what is done. `single`: its source is a single client, or
 * nobody asks (tg_chain_asks_single). `strength` is that of the lease, not zero;
 * `random` 16 bits for it. `source` is a seeded hash, where a canary asks for it.
 */
TG_INLINE void tg_chain_execute(struct tg_ask *ask, tg_u64 source, int single,
				tg_u32 strength, tg_u32 random)
{
	int shadow = ask->flags & TG_LIMITS_SHADOW ||
		     tg_canary_spares(ask->flags, source);
	struct tg_verdict *v = &ask->verdict;

	/* a RST may make a proxy take its server for dead */
	if (tg_chain_asks_single(ask) && !single)
		v->kind = TG_DROP;
	/* the first one may still be on its way: a RST would end what it opens */
	if (ask->copy && v->kind == TG_REJECT)
		v->kind = TG_DROP;
	ask->execution = tg_chain_admits(ask) ? TG_EXECUTED :
			 tg_lease_execution(shadow, strength, random);
}

/* 1: it is to be refused with a reply. */
TG_INLINE int tg_chain_replies(const struct tg_ask *ask)
{
	return ask->verdict.kind == TG_REJECT && ask->execution == TG_EXECUTED;
}

/* No reply can be sent, for this reason: it is refused silently. */
TG_INLINE void tg_chain_silent(struct tg_ask *ask, tg_u8 reason)
{
	ask->verdict.kind = TG_DROP;
	ask->verdict.reason = reason;
}

/* 1: it goes on to the server. */
TG_INLINE int tg_chain_passes(const struct tg_ask *ask)
{
	return tg_chain_admits(ask) || ask->execution != TG_EXECUTED;
}

#endif
