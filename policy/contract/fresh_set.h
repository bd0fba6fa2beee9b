/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A set of eight 16-bit fingerprints of keys, the latest first. Nothing is ever
 * allocated; a full set forgets its oldest. No lock is held: of two CPUs that write
 * to one set at once, one may lose a fingerprint or keep one twice, which is
 * forgetting as well.
 */
#ifndef TG_FRESH_SET_H
#define TG_FRESH_SET_H

#include "contract.h"

#define TG_FRESH_WAYS 8

struct tg_fresh_set {
	tg_u16 way[TG_FRESH_WAYS];	/* fingerprints, latest first; 0: free */
};

TG_INLINE tg_u16 tg_fresh_print(tg_u64 key)
{
	tg_u16 print = key >> 48;

	return print ? print : 1;
}

/*
 * 1: equal. From the sign of a difference, not by a comparison: the kernel's verifier
 * would follow both ways of all eight.
 */
TG_INLINE tg_u32 tg_fresh_equal(tg_u16 a, tg_u16 b)
{
	return ((tg_u32)(a ^ b) - 1) >> 31;
}

TG_INLINE int tg_fresh_known(const struct tg_fresh_set *set, tg_u16 print)
{
	tg_u32 known = 0;

	for (int i = 0; i < TG_FRESH_WAYS; i++)
		known |= tg_fresh_equal(set->way[i], print);
	return known;
}

/* Puts the fingerprint first; a known one moves up, else the oldest falls out. */
TG_INLINE void tg_fresh_remember(struct tg_fresh_set *set, tg_u16 print)
{
	tg_u32 carried = print;
	tg_u32 keep = 0;	/* all ones behind where it was */

	for (int i = 0; i < TG_FRESH_WAYS; i++) {
		tg_u32 here = set->way[i];

		set->way[i] = (here & keep) | (carried & ~keep);
		keep |= -tg_fresh_equal(here, print);
		carried = here;
	}
}

#endif
