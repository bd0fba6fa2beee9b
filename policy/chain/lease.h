/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The lease on limits: a daemon that is gone sheds nothing. Up to 3 s after
 * its last heartbeat limits hold; until 10 s a refusal is executed with
 * probability (10 - age) / 7; then everything passes. A heartbeat from the
 * future would hold for ever: beyond a second it counts as none.
 */
#ifndef TG_LEASE_H
#define TG_LEASE_H

#include "../contract/contract.h"

#define TG_LEASE_HOLD_NS (3 * TG_NS_PER_S)	/* limits hold */
/* A heartbeat further ahead of the clock is none: nothing of ours wrote it. */
#define TG_LEASE_AHEAD_NS (1 * TG_NS_PER_S)
#define TG_LEASE_END_NS (10 * TG_NS_PER_S)	/* then everything passes */
#define TG_LEASE_WHOLE 65536	/* strength of a lease that holds */

/* What becomes of a refusal. */
enum tg_execution {
	TG_EXECUTED = 0,
	TG_SHADOWED = 1,	/* only counted: shadow mode */
	TG_SPARED = 2,		/* only counted: the lease has begun to end */
};

/*
 * In 1/65536: TG_LEASE_WHOLE limits hold, 0 the lease has ended. A heartbeat of 0
 * was never.
 */
TG_INLINE tg_u32 tg_lease_strength(tg_u64 heartbeat_ns, tg_u64 now_ns)
{
	const tg_u64 span_q16 = (TG_LEASE_END_NS - TG_LEASE_HOLD_NS) >> 16;
	tg_u64 age_ns = tg_elapsed_ns(now_ns, heartbeat_ns);

	if (!heartbeat_ns || (heartbeat_ns > now_ns &&
			      heartbeat_ns - now_ns > TG_LEASE_AHEAD_NS))
		return 0;
	if (age_ns <= TG_LEASE_HOLD_NS)
		return TG_LEASE_WHOLE;
	if (age_ns >= TG_LEASE_END_NS)
		return 0;
	return (TG_LEASE_END_NS - age_ns) / span_q16;
}

/*
 * The time at which a limit ends that somebody else gave, as its daemon said before it died:
 * in units of 2^20 ns, modulo 2^32 of them; 0: it has none. It lies at most minutes ahead.
 */
#define TG_LEASE_UNTIL_SHIFT 20

/* The strength of a lease on such a limit. */
TG_INLINE tg_u32 tg_lease_until(tg_u32 strength, tg_u32 until, tg_u64 now_ns)
{
	tg_u32 past = (tg_u32)(now_ns >> TG_LEASE_UNTIL_SHIFT) - until;

	return until && past < (1U << 31) ? 0 : strength;
}

/* Why no limit is asked at all: the kill switch, the lease; 0: they are asked. */
TG_INLINE tg_u8 tg_lease_passes(tg_u32 released, tg_u32 strength)
{
	if (released)
		return TG_REASON_RELEASED;
	return strength ? 0 : TG_REASON_LEASE_EXPIRED;
}

/* By 16 random bits, what becomes of a refusal. */
TG_INLINE enum tg_execution tg_lease_execution(int shadow, tg_u32 strength,
					       tg_u32 random)
{
	if (shadow)
		return TG_SHADOWED;
	return (random & 0xffff) < strength ? TG_EXECUTED : TG_SPARED;
}

#endif
