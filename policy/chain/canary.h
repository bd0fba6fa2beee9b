/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A canary: the refusals of a share of the sources are executed, those of the others
 * are only counted, as in shadow. Which sources these are depends on a hash of each, so
 * that a client meets the same thing every time, and a larger share holds a smaller.
 * It is the same hash in every host program, and does not depend on where a service
 * stands in a file: with the same key a source is chosen at all of them, or at none.
 *
 * The share stands above the flags of the limits, in 1/65536; 0: all sources, so that
 * limits of zeros are no canary.
 */
#ifndef TG_CANARY_H
#define TG_CANARY_H

#include "../contract/hash.h"

#define TG_CANARY_SHIFT 16
/* Nobody's: whose source is not known is never among the chosen. */
#define TG_CANARY_UNKNOWN (~0ULL)

/* 1: there is a canary, and the host has to know the source. */
TG_INLINE int tg_canary_asks(tg_u32 flags)
{
	return flags >> TG_CANARY_SHIFT != 0;
}

/*
 * A source of a service: an IPv4 address (mapped into IPv6), or an IPv6 /64, whose
 * other bits one client may choose.
 */
TG_INLINE tg_u64 tg_canary_source(const tg_u32 *addr, tg_u64 service,
				  const volatile tg_u64 *key)
{
	int mapped = !addr[0] && !addr[1];
	tg_u32 source[4] = {
		addr[0],
		addr[1],
		mapped ? addr[2] : 0,
		mapped ? addr[3] : 0,
	};

	return tg_hash_client(source, service, key);
}

/* 1: refusals of this source (a seeded hash of it) are only counted. */
TG_INLINE int tg_canary_spares(tg_u32 flags, tg_u64 source)
{
	return tg_canary_asks(flags) &&
	       source >> 48 >= flags >> TG_CANARY_SHIFT;
}

#endif
