/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Each CPU's copy of a service's bucket. docs/decisions/0023 tells why.
 *
 * The bucket is shared, under the lock of its service. A CPU keeps what it was when
 * that CPU last had the lock, and fills the copy as time goes by. The others may have
 * taken tokens since, nobody has put any in. So whom the copy refuses, the bucket would
 * refuse, too: no lock is needed, and nothing is written that another CPU reads. Only
 * who may find a token takes the lock.
 *
 *	copy lacks a token	refused, without the lock
 *	copy has one		lock; the bucket decides, and is copied
 *	other rate or depth,
 *	or the clock went back	the same
 *
 * What the copy computes is what the bucket would have computed. While no other CPU has
 * changed the bucket, it is put back: on one CPU verdicts are the same bit by bit as if
 * each had had the lock.
 *
 * Zero is fresh: a rate of zero is in no limits, so the first event takes the lock. A
 * copy that is older than its bucket does no harm.
 */
#ifndef TG_COPY_H
#define TG_COPY_H

#include "../policies.h"

struct tg_bucket_copy {
	struct tg_bucket bucket;	/* as it is by now, if nobody took any */
	struct tg_bucket seen;		/* as it was under the lock */
	tg_u64 rate_milli;		/* by which the copy was filled */
	tg_u64 depth;
	struct tg_policy_stats stats;	/* of verdicts on this CPU */
};
TG_ASSERT(sizeof(struct tg_bucket_copy) == 48 + 32);

/* 1: the copy can be filled up to this event. */
TG_INLINE int tg_copy_holds(const struct tg_bucket_params *p,
			    const struct tg_bucket_copy *c, tg_u64 now_ns)
{
	return c->rate_milli == p->rate_milli && c->depth == p->depth &&
	       now_ns >= c->bucket.then_ns;
}

/* 1: there is no token that leaves the reserve, and that is certain. */
TG_INLINE int tg_copy_refuses(const struct tg_bucket_params *p,
			      struct tg_bucket_copy *c, tg_u64 reserve, tg_u64 now_ns)
{
	if (!tg_copy_holds(p, c, now_ns))
		return 0;
	tg_bucket_refill(p, &c->bucket, now_ns);
	return tg_bucket_lacks(p, &c->bucket, reserve);
}

/* Under the lock: asks the bucket, and copies it; 1: a token was taken. */
TG_INLINE int tg_copy_take(const struct tg_bucket_params *p,
			   struct tg_bucket *b, struct tg_bucket_copy *c,
			   tg_u64 reserve, const struct tg_event *e)
{
	int taken;

	if (b->used == c->seen.used && b->then_ns == c->seen.then_ns)
		*b = c->bucket;
	tg_bucket_refill(p, b, e->now_ns);
	taken = tg_bucket_take_for(p, b, reserve, e);
	c->bucket = c->seen = *b;
	c->rate_milli = p->rate_milli;
	c->depth = p->depth;
	return taken;
}

#endif
