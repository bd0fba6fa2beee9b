/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How long exchanges took, by the size of the response: one histogram a size class,
 * for each destination. Durations are compared within a class only, so a changed mix
 * of sizes moves nothing.
 *
 *	class	by powers of two: below 512 bytes, below 1 KiB, … from 8 MiB on
 *	bucket	by quarters of a power of two: 256 us … 16.8 s, and what is outside
 *		in the first and the last
 *
 * Zero is fresh. No lock: a count that is lost by a race is one of thousands; hosts
 * with several CPUs count in a copy for each, and add them up.
 */
#ifndef TG_DURATIONS_H
#define TG_DURATIONS_H

#include "../contract/contract.h"

#define TG_SIZE_CLASSES 16
#define TG_SIZE_FIRST_LOG 8	/* 2^8 … 2^9 - 1 bytes: the first class, with all below */
#define TG_DURATION_BUCKETS 64
#define TG_DURATION_FIRST_LOG 8	/* 256 us: where the first bucket begins */

struct tg_durations {
	tg_u32 count[TG_SIZE_CLASSES][TG_DURATION_BUCKETS];
};
TG_ASSERT(sizeof(struct tg_durations) == 4096);

/* The place of the highest bit, in six steps; 0 of 0. */
TG_INLINE tg_u32 tg_log2(tg_u64 value)
{
	tg_u32 log = 0;

	for (tg_u32 step = 32; step; step >>= 1) {
		if (value >> step) {
			value >>= step;
			log += step;
		}
	}
	return log;
}

TG_INLINE tg_u32 tg_size_class(tg_u64 bytes)
{
	tg_u32 log = tg_log2(bytes);

	if (log < TG_SIZE_FIRST_LOG)
		return 0;
	return tg_min(log - TG_SIZE_FIRST_LOG, TG_SIZE_CLASSES - 1);
}

TG_INLINE tg_u32 tg_duration_bucket(tg_u64 us)
{
	tg_u32 log = tg_log2(us);

	if (log < TG_DURATION_FIRST_LOG)
		return 0;
	return tg_min((log - TG_DURATION_FIRST_LOG) * 4ULL +
		      (us >> (log - 2) & 3), TG_DURATION_BUCKETS - 1);
}

/* The shortest duration of a bucket, in us; of the first one it is 0. */
TG_INLINE tg_u64 tg_duration_from_us(tg_u32 bucket)
{
	tg_u32 b = tg_min(bucket, TG_DURATION_BUCKETS - 1);

	if (!b)
		return 0;
	return (4ULL + (b & 3)) << (b / 4 + TG_DURATION_FIRST_LOG - 2);
}

TG_INLINE void tg_durations_add(struct tg_durations *d, tg_u64 bytes, tg_u64 us)
{
	tg_u32 *count = &d->count[tg_size_class(bytes) & (TG_SIZE_CLASSES - 1)]
		[tg_duration_bucket(us) & (TG_DURATION_BUCKETS - 1)];

	if (*count != 0xffffffff)
		++*count;
}

#endif
