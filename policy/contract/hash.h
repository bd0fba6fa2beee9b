/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Hashes of what strangers send, keyed by a seed that nobody is told:
 * NH (Black, Halevi, Krawczyk, Krovetz, Rogaway: "UMAC: Fast and Secure Message
 * Authentication", 1999) with a finalizer that spreads its bits (MurmurHash3).
 * Two inputs chosen without knowledge of the key collide with a probability of
 * 2^-32, whatever they are: that is what a table that strangers fill needs, and
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

#endif
