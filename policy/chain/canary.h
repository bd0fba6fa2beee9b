/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A canary: the refusals of a share of the sources are executed, those of the others
 * are only counted, as in shadow. Which sources these are hangs on a hash of each, so
 * that a client meets the same thing every time, and a larger share holds a smaller.
 *
 * The share stands above the flags of the limits, in 1/65536; 0: all sources, so that
 * limits of zeros are no canary.
 */
#ifndef TG_CANARY_H
#define TG_CANARY_H

#include "../contract/contract.h"

#define TG_CANARY_SHIFT 16
/* Nobody's: whose source is not known is never among the chosen. */
#define TG_CANARY_UNKNOWN (~0ULL)

/* 1: there is a canary, and the host has to know the source. */
TG_INLINE int tg_canary_asks(tg_u32 flags)
{
	return flags >> TG_CANARY_SHIFT != 0;
}

/* 1: refusals of this source (a seeded hash of it) are only counted. */
TG_INLINE int tg_canary_spares(tg_u32 flags, tg_u64 source)
{
	return tg_canary_asks(flags) &&
	       source >> 48 >= flags >> TG_CANARY_SHIFT;
}

#endif
