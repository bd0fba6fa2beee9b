/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The maps of who was refused lately (policy/chain/lately.h): one set of slices for the
 * hooks and for the router. Who notes somebody: refused.h.
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

#endif
