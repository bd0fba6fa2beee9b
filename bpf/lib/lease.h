/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The lease on limits: a daemon that is gone sheds nothing. Up to 3 s after
 * its last heartbeat limits hold; until 10 s a refusal is executed with
 * probability (10 - age) / 7; then everything passes. A heartbeat from the
 * future would hold for ever: beyond a second it counts as none.
 */
#ifndef TG_LEASE_H
#define TG_LEASE_H

#include "maps.h"

/* In 1/65536: 65536 limits hold, 0 the lease has ended. */
static __always_inline __u32 tg_lease_strength(__u64 now_ns)
{
	const __u64 span_q16 = (TG_LEASE_END_NS - TG_LEASE_HOLD_NS) >> 16;
	const struct tg_lease *lease = tg_at(&tg_lease, 0);
	__u64 heartbeat_ns, age_ns;

	if (!lease)
		return 0;
	heartbeat_ns = READ_ONCE(lease->heartbeat_ns);
	if (!heartbeat_ns)
		return 0;
	if (unlikely(heartbeat_ns > now_ns &&
		     heartbeat_ns - now_ns > TG_LEASE_AHEAD_NS))
		return 0;
	age_ns = tg_elapsed_ns(now_ns, heartbeat_ns);
	if (likely(age_ns <= TG_LEASE_HOLD_NS))
		return 65536;
	if (age_ns >= TG_LEASE_END_NS)
		return 0;
	return (TG_LEASE_END_NS - age_ns) / span_q16;
}

/* 1: by the dice, a lease of this strength lets a refusal pass. */
static __always_inline int tg_lease_spares(__u32 strength)
{
	return strength < 65536 &&
	       (bpf_get_prandom_u32() & 0xffff) >= strength;
}

#endif
