/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Counters, per CPU: packets by the reason to pass, verdicts, histograms. */
#ifndef TG_COUNT_H
#define TG_COUNT_H

#include "maps.h"

static __always_inline void tg_count_passed(__u32 reason)
{
	struct tg_reason_counts *passed = tg_at(&tg_passed, 0);

	if (passed && reason < TG_REASONS_MAX)
		passed->reason[reason]++;
}

/* Cell of a verdict; TG_COUNTS if it has none. */
static __always_inline __u32 tg_count_cell(__u32 kind, __u32 reason,
					   int shadow)
{
	if (kind == TG_ADMIT) {
		reason -= TG_REASON_FIRST;
		return reason < TG_COUNT_ADMIT ? reason : TG_COUNTS;
	}
	reason -= TG_REASON_REFUSED;
	if (reason >= TG_COUNT_REFUSE)
		return TG_COUNTS;
	return TG_COUNT_ADMIT +
	       ((kind - 1) * 2 + !!shadow) * TG_COUNT_REFUSE + reason;
}

static __always_inline void
tg_count_verdict(__u32 service, __u32 class, struct tg_verdict v, int shadow)
{
	struct tg_counts *counts = tg_at(&tg_counts, service * TG_CLASSES_MAX +
						     class);
	__u32 cell = tg_count_cell(v.kind, v.reason, shadow);

	if (counts && cell < TG_COUNTS)
		counts->cell[cell]++;
}

/* How much came, and what became of it. What is late came before. */
static __always_inline void tg_count_work(const struct tg_ask *ask, int late)
{
	struct tg_totals *totals = tg_at(&tg_totals, ask->service);

	if (!totals)
		return;
	if (late) {
		totals->refused++;
		return;
	}
	totals->offered++;
	totals->repeated += ask->verdict.repeated | ask->copy;
	/* in shadow both: it would have been refused, and went to the server */
	totals->admitted += tg_chain_passes(ask);
	totals->refused += ask->verdict.kind != TG_ADMIT;
}

/* The arithmetic of crates/model/src/totals.rs: 8 buckets an octave. */
static __always_inline __u32 tg_bucket_of(__u64 time_ns)
{
	__u64 v = time_ns >> 10;
	__u32 octave = 0, index;

	if (v < 8)
		return v;
	if (v >> 40)	/* 36 years */
		return TG_HISTOGRAM_BUCKETS - 1;
	for (int step = 32; step; step >>= 1)
		if (v >> (octave + step))
			octave += step;
	index = (octave - 2) * 8 + ((v >> ((octave - 3) & 63)) & 7);
	return index < TG_HISTOGRAM_BUCKETS ? index : TG_HISTOGRAM_BUCKETS - 1;
}

static __always_inline void tg_record(struct tg_histogram *h, __u64 time_ns)
{
	__u32 bucket = tg_bucket_of(time_ns);

	h->count++;
	h->sum_ns += time_ns;
	if (bucket < TG_HISTOGRAM_BUCKETS)
		h->bucket[bucket]++;
}

#endif
