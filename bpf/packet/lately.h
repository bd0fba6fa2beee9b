/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Who was refused lately (policy/chain/lately.h), as hooks and the router note it: one
 * set of slices for both.
 */
#ifndef TG_LATELY_MAPS_H
#define TG_LATELY_MAPS_H

#include "base.h"
#include "../../policy/chain/lately.h"

/* Slices one behind the other. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, TG_PAGE_ALIGNED);
	__uint(max_entries, TG_LATELY_SLICES * 4096);
	__type(key, __u32);
	__type(value, struct tg_lately_line);
} tg_lately SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tg_lately_turn);
} tg_lately_turn SEC(".maps");

/* Where a client is noted in the slice that is written to. */
static __always_inline struct tg_lately_line *tg_refused_line(__u64 hash)
{
	__u32 line = tg_lately_line_of(hash, settings.lately_mask), first = 0;
	const struct tg_lately_turn *turn =
		bpf_map_lookup_elem(&tg_lately_turn, &first);

	if (!turn)
		return 0;
	line += READ_ONCE(turn->slice) * (settings.lately_mask + 1);
	return bpf_map_lookup_elem(&tg_lately, &line);
}

static __always_inline void tg_refused_note(__u64 hash, int shadow)
{
	struct tg_lately_line *line = tg_refused_line(hash);

	if (line)
		tg_lately_note(line, shadow ? hash | TG_LATELY_SHADOW : hash);
}

#endif
