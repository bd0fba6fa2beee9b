/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The contract of every policy: the only file that a policy may include.
 *
 * A policy is one header with three structs
 *	<name>_params	const: what the control loop set
 *	<name>_state	plain memory whose zero is fresh: it stores what is
 *			used, not what remains
 *	<name>_stats	counts, for people
 * and three verbs
 *	<name>_admit(params, state, stats, event)	per event
 *	<name>_observe(params, state, event)		per completion
 *	<name>_tick(params, state, now)			per period; called
 *				lazily from inside admit, bounded catch-up
 *
 * It calls no helper, allocates nothing, holds no global, divides at most once
 * a period, and runs under a lock. Time, randomness and seeds are arguments;
 * time that stands still or goes back does no harm.
 *
 * Units: time in nanoseconds, rates in thousandths of a token per second,
 * tokens in picotokens (1e-12), so that elapsed ns * milli-tokens per second
 * are picotokens, exactly and without a division.
 */
#ifndef TG_CONTRACT_H
#define TG_CONTRACT_H

typedef unsigned char tg_u8;
typedef unsigned short tg_u16;
typedef unsigned int tg_u32;
typedef unsigned long long tg_u64;

#define TG_INLINE static inline __attribute__((always_inline))
#define TG_ASSERT(what) _Static_assert(what, #what)

/*
 * A policy's state is used by one CPU at a time, but for what its header says. Where
 * there are several, the host program defines these three before it includes the
 * contract. Under the lock nothing is called.
 */
#ifndef TG_LOCK_TYPE
#define TG_LOCK_TYPE tg_u32
#define TG_LOCK(lock) ((void)(lock))
#define TG_UNLOCK(lock) ((void)(lock))
#endif

#define TG_NS_PER_S 1000000000ULL
#define TG_TOKEN 1000000000000ULL	/* one token in picotokens */
#define TG_PRIORITIES 8			/* 0 is the highest */
#define TG_BURST_MAX 1000000		/* tokens: bounds every product below */
#define TG_RATE_MILLI_MAX 1000000000000ULL	/* 1e9 tokens per second */
#define TG_SHARE_ONE 65536	/* a whole token, in the unit of shares */

enum tg_verdict_kind {
	TG_ADMIT = 0,
	TG_DROP = 1,
	TG_REJECT = 2,
	TG_DELAY = 3,
};

#define TG_REASON(number, NAME, name, text) TG_REASON_##NAME = number,
enum tg_reason {
#include "../reasons.def"
	TG_REASONS_MAX = 80,
};
#undef TG_REASON

/* One arrival. The caller fills everything; a policy trusts all of it. */
struct tg_event {
	tg_u64 now_ns;	/* monotonic; may stand still or go back */
	tg_u64 key;	/* seeded hash of the tuple and the initial sequence
			 * number: all copies of one SYN have the same */
	tg_u32 random;	/* 32 random bits */
	tg_u8 priority;	/* 0 … TG_PRIORITIES - 1 */
	tg_u8 pad;
	tg_u16 spared;	/* what is not charged of a token, 1/TG_SHARE_ONE: 0,
			 * but in a flood (chain/senders.h) */
	tg_u32 level;	/* how much work waits, in the unit of the thresholds
			 * (algo/threshold.h): a number, or the virtual waiting
			 * time in us. The chain fills it in (chain/level.h) */
	tg_u32 pad_end;
};
TG_ASSERT(sizeof(struct tg_event) == 32);

struct tg_verdict {
	tg_u8 kind;	/* enum tg_verdict_kind */
	tg_u8 reason;	/* enum tg_reason */
	tg_u8 repeated;	/* 1: known to be a copy of a SYN that was refused */
	tg_u8 pad;
	tg_u32 delay_us;	/* for TG_DELAY */
};
TG_ASSERT(sizeof(struct tg_verdict) == 8);

TG_INLINE struct tg_verdict tg_verdict(tg_u8 kind, tg_u8 reason)
{
	struct tg_verdict v = { .kind = kind, .reason = reason };

	return v;
}

/* 1: it is not let in, neither now nor later. */
TG_INLINE int tg_refuses(struct tg_verdict v)
{
	return v.kind != TG_ADMIT && v.kind != TG_DELAY;
}

/* The same to a host that can wait, or not: there who is to wait is let in at once. */
TG_INLINE struct tg_verdict tg_waited(struct tg_verdict v, int waits)
{
	return v.kind == TG_DELAY && !waits ? tg_verdict(TG_ADMIT, v.reason) :
					      v;
}

/* Time from then to now; zero if the clock stood still or went back. */
TG_INLINE tg_u64 tg_elapsed_ns(tg_u64 now_ns, tg_u64 then_ns)
{
	return now_ns > then_ns ? now_ns - then_ns : 0;
}

TG_INLINE tg_u64 tg_min(tg_u64 a, tg_u64 b)
{
	return a < b ? a : b;
}

/*
 * The bucket that several policies share. What is stored is what was used:
 * zero is a full bucket.
 */
struct tg_bucket {
	tg_u64 used;	/* picotokens */
	tg_u64 then_ns;	/* time of the last refill */
};

struct tg_bucket_params {
	tg_u64 rate_milli;	/* thousandths of a token per second; 0: no limit */
	tg_u64 depth;		/* picotokens; at least one token */
	tg_u64 full_ns;		/* time from empty to full: depth / rate, rounded
				 * up. Precomputed: here nothing is divided. */
};

/* A clock further back than this is believed: it was wrong before. */
#define TG_CLOCK_BACK_NS_MAX TG_NS_PER_S

TG_INLINE void tg_bucket_refill(const struct tg_bucket_params *p,
				struct tg_bucket *b, tg_u64 now_ns)
{
	tg_u64 elapsed_ns = tg_elapsed_ns(now_ns, b->then_ns);

	if (elapsed_ns >= p->full_ns)
		b->used = 0;
	else	/* no overflow: elapsed * rate < full * rate <= depth + rate */
		b->used -= tg_min(b->used, elapsed_ns * p->rate_milli);
	b->used = tg_min(b->used, p->depth);	/* the depth may have shrunk */
	if (now_ns > b->then_ns ||
	    b->then_ns - now_ns > TG_CLOCK_BACK_NS_MAX)
		b->then_ns = now_ns;
}

/* 1: there is no token that leaves at least the reserve. */
TG_INLINE int tg_bucket_lacks(const struct tg_bucket_params *p,
			      const struct tg_bucket *b, tg_u64 reserve)
{
	return b->used + reserve + TG_TOKEN > p->depth;
}

/* Takes one token if it leaves at least the reserve; 1 if it did. */
TG_INLINE int tg_bucket_take(const struct tg_bucket_params *p,
			     struct tg_bucket *b, tg_u64 reserve)
{
	if (tg_bucket_lacks(p, b, reserve))
		return 0;
	b->used += TG_TOKEN;
	return 1;
}

/*
 * The same for what an event costs. A whole token must be there for any: else
 * those who cost little would take the pieces of which a token is made.
 */
TG_INLINE int tg_bucket_take_for(const struct tg_bucket_params *p,
				 struct tg_bucket *b, tg_u64 reserve,
				 const struct tg_event *e)
{
	if (tg_bucket_lacks(p, b, reserve))
		return 0;
	b->used += TG_TOKEN - e->spared * (TG_TOKEN / TG_SHARE_ONE);
	return 1;
}

/* What it counts for, in thousandths of a SYN. */
TG_INLINE tg_u32 tg_event_milli(const struct tg_event *e)
{
	return 1000 - (e->spared * 1000U >> 16);
}

#define TG_ARRIVALS_MAX (1ULL << 31)	/* of a period, in thousandths */

/* The arrivals of a period, in thousandths of a SYN, with this one. */
TG_INLINE tg_u32 tg_arrivals(tg_u32 milli, const struct tg_event *e)
{
	return tg_min((tg_u64)milli + tg_event_milli(e), TG_ARRIVALS_MAX);
}

/* Whether a whole token is there, reserved or not. */
TG_INLINE int tg_bucket_has(const struct tg_bucket_params *p,
			    const struct tg_bucket *b)
{
	return b->used + TG_TOKEN <= p->depth;
}

/* What is done with a refused event; anything unknown is a silent drop. */
TG_INLINE tg_u8 tg_action(tg_u32 action)
{
	return action == TG_REJECT ? TG_REJECT : TG_DROP;
}

#endif
