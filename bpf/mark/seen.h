/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A packet that may carry marks, and who has said something: what mark.h and option.h share. */
#ifndef TG_MARK_SEEN_H
#define TG_MARK_SEEN_H

#include "../packet/ipv4.h"
#include "../abi/mark.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tg_marks);
} tg_marks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TG_MARK_SOURCES);
	__type(key, __u32);
	__type(value, struct tg_mark_seen);
} tg_mark_sources SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TG_MARK_SERVERS);
	__type(key, __u32);
	__type(value, struct tg_mark_seen);
} tg_mark_servers SEC(".maps");

/* By the number of an interface to servers: until when it is congested, in ns. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TG_MARK_LINKS);
	__type(key, __u32);
	__type(value, __u64);
} tg_mark_links SEC(".maps");

struct tg_mark {
	struct tg_ipv4 ip;
	__u32 l3;
	__u32 dscp;
	__u64 now_ns;
};

static __always_inline void *tg_mark_at(void *map, __u32 index)
{
	return bpf_map_lookup_elem(map, &index);
}

/* One of so many places, a power of two: nobody outside can choose whose it is. */
static __always_inline __u32 tg_mark_slot(__u32 addr, __u32 places)
{
	__u64 hash = (settings.key[0] | 1) * addr + settings.key[1];

	return hash >> 32 & (places - 1);
}

#endif
