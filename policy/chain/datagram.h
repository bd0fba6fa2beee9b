/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The limit on datagrams (UDP) to a service, as a congested router has it from the
 * service's server: a bucket with one token for each datagram.
 *
 *	no rate				admit
 *	the bucket lacks a token	refuse
 *	else				admit, and pay for all of it
 *
 * Several datagrams may come as one packet (GRO, or a sender that segments late). It
 * passes as one, and takes as many tokens as it has datagrams: the bucket goes into
 * debt. So nobody gets more than the rate by merging, and nobody is refused because the
 * bucket is smaller than a merged packet.
 *
 * The debt is a part of the depth that one token must always leave. Each CPU has a copy
 * of the bucket, by which it refuses without the lock (copy.h).
 *
 * Datagrams are not remembered: none is a copy of another, and none belongs to a
 * connection.
 */
#ifndef TG_DATAGRAM_H
#define TG_DATAGRAM_H

#include "copy.h"

#define TG_DATAGRAMS_MERGED_MAX 128	/* in one packet: UDP_MAX_SEGMENTS of Linux */
#define TG_DATAGRAM_DEBT (TG_DATAGRAMS_MERGED_MAX * TG_TOKEN)

/* The limit of one service. Zero limits nothing. */
struct tg_datagram_limit {
	tg_u32 flags;		/* TG_LIMITS_SHADOW, and above the share of a canary */
	tg_u32 until;		/* when it ends (lease.h); 0: with the lease */
	struct tg_bucket_params bucket;	/* its depth has the debt in it */
};
TG_ASSERT(sizeof(struct tg_datagram_limit) == 32);

/* What all CPUs share of it, on a cache line of its own. Zero is fresh. */
struct tg_datagram_chain {
	TG_LOCK_TYPE lock;
	tg_u32 pad;
	struct tg_bucket bucket;
	tg_u64 pad_line[5];
};
TG_ASSERT(sizeof(struct tg_datagram_chain) == 64);

/* Under the lock: 1: it passes, and has paid for each datagram that is merged in it. */
TG_INLINE int tg_datagram_take(const struct tg_datagram_limit *limit,
			       struct tg_datagram_chain *chain,
			       struct tg_bucket_copy *copy,
			       const struct tg_event *event, tg_u32 merged)
{
	if (!tg_copy_take(&limit->bucket, &chain->bucket, copy,
			  TG_DATAGRAM_DEBT, event))
		return 0;
	if (merged > TG_DATAGRAMS_MERGED_MAX)
		merged = TG_DATAGRAMS_MERGED_MAX;
	if (merged > 1) {
		chain->bucket.used += (merged - 1) * TG_TOKEN;
		copy->bucket = copy->seen = chain->bucket;
	}
	return 1;
}

/* A packet of so many datagrams. */
TG_INLINE struct tg_verdict
tg_datagram_admit(const struct tg_datagram_limit *limit,
		  struct tg_datagram_chain *chain, struct tg_bucket_copy *copy,
		  tg_u64 now_ns, tg_u32 merged)
{
	const struct tg_event event = { .now_ns = now_ns };
	int taken = 0;

	if (!limit->bucket.rate_milli)
		return tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);
	if (!tg_copy_refuses(&limit->bucket, copy, TG_DATAGRAM_DEBT, now_ns)) {
		TG_LOCK(&chain->lock);
		taken = tg_datagram_take(limit, chain, copy, &event, merged);
		TG_UNLOCK(&chain->lock);
	}
	return taken ? tg_verdict(TG_ADMIT, TG_REASON_TOKEN) :
		       tg_verdict(TG_DROP, TG_REASON_RATE);
}

#endif
