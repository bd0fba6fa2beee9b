/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The lease (policy/chain/lease.h) by the kernel's map and clock. */
#ifndef TG_LEASE_NOW_H
#define TG_LEASE_NOW_H

#include "maps.h"

static __always_inline __u32 tg_lease_now(__u64 now_ns)
{
	const struct tg_lease *lease = tg_at(&tg_lease, 0);

	return lease ? tg_lease_strength(READ_ONCE(lease->heartbeat_ns),
					 now_ns) : 0;
}

/* Random bits for it, where it is neither whole nor over: they are not free. */
static __always_inline __u32 tg_lease_dice(__u32 strength)
{
	return strength < TG_LEASE_WHOLE ? bpf_get_prandom_u32() : 0;
}

#endif
