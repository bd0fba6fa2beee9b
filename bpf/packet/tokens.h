/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Tokens for replies to SYNs, of each CPU: one map for the hooks and for the router. */
#ifndef TG_REPLY_TOKENS_H
#define TG_REPLY_TOKENS_H

#include "base.h"

#define TG_ANSWERS_ALL 0
#define TG_ANSWERS_PROVED 1	/* beyond them, to proved sources */

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct tg_bucket);
} tg_answers SEC(".maps");

/* Takes one of this CPU's tokens for answers. */
static __always_inline int tg_answer_token(const struct tg_bucket_params *cap,
					   __u32 index, __u64 now_ns)
{
	struct tg_bucket *bucket = bpf_map_lookup_elem(&tg_answers, &index);

	if (!bucket || !cap->rate_milli)
		return 0;
	tg_bucket_refill(cap, bucket, now_ns);
	return tg_bucket_take(cap, bucket, 0);
}

#endif
