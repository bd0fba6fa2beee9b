/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Hashes of what anybody may send, keyed by a seed that nobody is told:
 * NH (Black, Halevi, Krawczyk, Krovetz, Rogaway: "UMAC: Fast and Secure Message
 * Authentication", 1999) with a finalizer that spreads its bits (MurmurHash3).
 * Two inputs chosen without knowledge of the key collide with a probability of
 * 2^-32, whatever they are: that is what a table that anybody fills needs, and
 * nobody is shown an output. SipHash-1-3, which was here before, promises more;
 * but BPF has no rotation, and it took a quarter of what an established packet
 * may cost (docs/decisions/0005).
 */
#ifndef TG_CONTRACT_HASH_H
#define TG_CONTRACT_HASH_H

#include "contract.h"

/* One product of two words, each with its own key. */
TG_INLINE tg_u64 tg_nh(tg_u32 a, tg_u32 b, tg_u64 key)
{
	return (tg_u64)(a + (tg_u32)key) * (tg_u32)(b + (tg_u32)(key >> 32));
}

TG_INLINE tg_u64 tg_spread(tg_u64 h)
{
	h ^= h >> 33;
	h *= 0xff51afd7ed558ccdULL;
	h ^= h >> 33;
	h *= 0xc4ceb9fe1a85ec53ULL;
	return h ^ h >> 33;
}

#define TG_HASH_KEYS 6

/*
 * An address (IPv4 mapped into IPv6) and a service, by what tells services apart
 * through reloads and restarts. (The kernel's key is volatile.)
 */
TG_INLINE tg_u64 tg_hash_client(const tg_u32 *addr, tg_u64 service,
				const volatile tg_u64 *key)
{
	tg_u64 h = tg_nh(addr[0], addr[1], key[2]) +
		   tg_nh(addr[2], addr[3], key[3]) +
		   tg_nh((tg_u32)service, (tg_u32)(service >> 32), key[4]);

	return tg_spread(h ^ key[5]);
}

#endif
