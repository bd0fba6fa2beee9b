/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Token bucket: admits at most depth + rate * t events in any time t, and
 * drops or rejects the rest. The bucket is filled when it is looked at, in
 * picotokens: exact, and without a division.
 *
 * Trunk reservation: an event of priority i takes a token only if at least
 * reserve[i] stay in the bucket for the priorities above it.
 */
#ifndef TG_TOKEN_BUCKET_H
#define TG_TOKEN_BUCKET_H

#include "../contract/contract.h"

struct tg_token_bucket_params {
	struct tg_bucket_params bucket;
	tg_u64 reserve[TG_PRIORITIES];	/* picotokens, not falling */
	tg_u32 action;			/* TG_DROP or TG_REJECT */
	tg_u32 pad;
};
TG_ASSERT(sizeof(struct tg_token_bucket_params) == 96);

struct tg_token_bucket_state {
	struct tg_bucket bucket;
};
TG_ASSERT(sizeof(struct tg_token_bucket_state) == 16);

struct tg_token_bucket_stats {
	tg_u64 admitted;
	tg_u64 refused;
};

TG_INLINE void tg_token_bucket_tick(const struct tg_token_bucket_params *p,
				    struct tg_token_bucket_state *s,
				    tg_u64 now_ns)
{
	tg_bucket_refill(&p->bucket, &s->bucket, now_ns);
}

TG_INLINE void tg_token_bucket_observe(const struct tg_token_bucket_params *p,
				       struct tg_token_bucket_state *s,
				       const struct tg_event *e)
{
	(void)p; (void)s; (void)e;	/* completions do not matter here */
}

/* What an event must leave in the bucket. */
TG_INLINE tg_u64 tg_token_bucket_reserve(const struct tg_token_bucket_params *p,
					 const struct tg_event *e)
{
	return p->reserve[e->priority & (TG_PRIORITIES - 1)];
}

/* The verdict, once the bucket has given a token or not. */
TG_INLINE struct tg_verdict
tg_token_bucket_say(const struct tg_token_bucket_params *p,
		    const struct tg_bucket *bucket,
		    struct tg_token_bucket_stats *stats, int taken)
{
	if (taken) {
		stats->admitted++;
		return tg_verdict(TG_ADMIT, TG_REASON_TOKEN);
	}
	stats->refused++;
	return tg_verdict(tg_action(p->action),
			  tg_bucket_has(&p->bucket, bucket) ?
			  TG_REASON_RESERVED : TG_REASON_RATE);
}

TG_INLINE struct tg_verdict
tg_token_bucket_admit(const struct tg_token_bucket_params *p,
		      struct tg_token_bucket_state *s,
		      struct tg_token_bucket_stats *stats,
		      const struct tg_event *e)
{
	int taken;

	if (!p->bucket.rate_milli) {
		stats->admitted++;
		return tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);
	}
	tg_token_bucket_tick(p, s, e->now_ns);
	taken = tg_bucket_take_for(&p->bucket, &s->bucket,
				   tg_token_bucket_reserve(p, e), e);
	return tg_token_bucket_say(p, &s->bucket, stats, taken);
}

#endif
