/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a router does with a new connection while a flash crowd is there: an adaptive
 * token bucket, and a rule for bystanders (papers/news.txt, sections 3.2, 3.3, 4.3).
 * Connections that were admitted are never touched: the host program asks about first
 * SYNs, and about those whose last one it refused.
 *
 *	limits	each has a bucket, and the destination that it is for; 0: for all
 *
 *	TG_CROWD_OWN	ours: a limit holds for its own destination, and nobody else
 *			takes its tokens. Several destinations may be hot. A repeated
 *			attempt (of a priority above 0) has to leave half of the
 *			bucket: first attempts come first, and find a client that
 *			has not waited yet.
 *	TG_CROWD_ALL	as first published: one bucket for all destinations; whoever
 *			finds no token is refused
 *	TG_CROWD_SHARED	as published with hot spots: one bucket for all; without a
 *			token a connection to the hot spot is refused, and a
 *			bystander's with the share that its destination has of what
 *			was admitted: the more in the past, the less now
 *
 * Control moves rate and depth of a limit while it is in force; what was used stays.
 * Zero params admit everything, zero state is fresh.
 */
#ifndef TG_CROWD_H
#define TG_CROWD_H

#include "../contract/contract.h"
#include "hotspot.h"

#define TG_CROWD_LIMITS 4

enum tg_crowd_rule {
	TG_CROWD_OWN = 0,
	TG_CROWD_ALL = 1,
	TG_CROWD_SHARED = 2,
};

struct tg_crowd_limit {
	tg_u64 key;	/* the event's key: a destination */
	struct tg_bucket_params bucket;	/* a rate of 0: no limit */
};
TG_ASSERT(sizeof(struct tg_crowd_limit) == 32);

struct tg_crowd_params {
	struct tg_crowd_limit limit[TG_CROWD_LIMITS];
	tg_u32 rule;	/* enum tg_crowd_rule; of the shared ones limit[0] holds */
	tg_u32 action;	/* TG_DROP or TG_REJECT */
};
TG_ASSERT(sizeof(struct tg_crowd_params) == 136);

/* A bucket belongs to a destination, or (0) to all. For another one it begins full. */
struct tg_crowd_bucket {
	tg_u64 key;
	struct tg_bucket bucket;
};
TG_ASSERT(sizeof(struct tg_crowd_bucket) == 24);

struct tg_crowd_state {
	struct tg_crowd_bucket bucket[TG_CROWD_LIMITS];
};
TG_ASSERT(sizeof(struct tg_crowd_state) == 96);

/* The limit for this destination; TG_CROWD_LIMITS if there is none. */
TG_INLINE tg_u32 tg_crowd_find(const struct tg_crowd_params *p, tg_u64 key)
{
	for (tg_u32 i = 0; i < TG_CROWD_LIMITS; i++)
		if (p->limit[i].bucket.rate_milli && p->limit[i].key == key)
			return i;
	return TG_CROWD_LIMITS;
}

/* 1: the limit had a token, and it is taken. */
TG_INLINE int tg_crowd_take(const struct tg_crowd_limit *l,
			    struct tg_crowd_bucket *b, tg_u64 key, int again,
			    tg_u64 now_ns)
{
	if (b->key != key) {
		b->key = key;
		b->bucket.used = 0;
		b->bucket.then_ns = now_ns;
	}
	tg_bucket_refill(&l->bucket, &b->bucket, now_ns);
	return tg_bucket_take(&l->bucket, &b->bucket,
			      again ? l->bucket.depth / 2 : 0);
}

/*
 * TG_CROWD_OWN where the host program has found the limit of the destination and its
 * bucket by itself: a router's hook has them by place.
 */
TG_INLINE struct tg_verdict tg_crowd_own(const struct tg_crowd_limit *l,
					 struct tg_crowd_bucket *b,
					 tg_u32 action,
					 const struct tg_event *e)
{
	if (!l->bucket.rate_milli)
		return tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);
	if (tg_crowd_take(l, b, e->key, e->priority, e->now_ns))
		return tg_verdict(TG_ADMIT, TG_REASON_TOKEN);
	return tg_verdict(tg_action(action), TG_REASON_RATE);
}

/* Without a token: whether the destination is one that the crowd is for. */
TG_INLINE struct tg_verdict tg_crowd_lacks(const struct tg_crowd_params *p,
					   const struct tg_hot_list *hot,
					   const struct tg_event *e)
{
	tg_u32 chance = e->random & (TG_HOT_SHARE_ONE - 1);

	if (p->rule != TG_CROWD_SHARED || p->limit[0].key == e->key)
		return tg_verdict(tg_action(p->action), TG_REASON_RATE);
	if (chance < tg_hot_admitted_share(hot, e->key))
		return tg_verdict(tg_action(p->action), TG_REASON_THROTTLED);
	return tg_verdict(TG_ADMIT, TG_REASON_LET_THROUGH);
}

/* event.key is the destination: a hash that is not 0. */
TG_INLINE struct tg_verdict tg_crowd_admit(const struct tg_crowd_params *p,
					   struct tg_crowd_state *s,
					   const struct tg_hot_list *hot,
					   const struct tg_event *e)
{
	int own = p->rule != TG_CROWD_ALL && p->rule != TG_CROWD_SHARED;
	tg_u32 i = own ? tg_crowd_find(p, e->key) : 0;

	if (i >= TG_CROWD_LIMITS || !p->limit[i].bucket.rate_milli)
		return tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);
	if (own)
		return tg_crowd_own(&p->limit[i], &s->bucket[i], p->action, e);
	if (tg_crowd_take(&p->limit[i], &s->bucket[i], 0, 0, e->now_ns))
		return tg_verdict(TG_ADMIT, TG_REASON_TOKEN);
	return tg_crowd_lacks(p, hot, e);
}

#endif
