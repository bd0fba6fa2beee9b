/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Every map, once. All hooks share them; the loader sizes those that depend on
 * the configuration and pins them. Maps that any sender can fill (pending,
 * flows, states) are arrays: fixed, and their loss is harmless. Those of whole
 * cache lines are mappable only because the values of such an array begin at a
 * page: otherwise every set would lie across two lines.
 */
#ifndef TG_MAPS_H
#define TG_MAPS_H

#include "base.h"
#include "lately.h"
#include "tokens.h"
#include "../abi/request.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tg_control);
} tg_control SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tg_lease);
} tg_lease SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TG_SLOTS);
	__type(key, __u32);
	__type(value, struct tg_table);
} tg_tables SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2048);
	__type(key, struct tg_listen_key);
	__type(value, struct tg_listen);
} tg_listens SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TG_SLOTS);
	__type(key, __u32);
	__type(value, struct tg_listeners);
} tg_listeners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, 1);	/* BPF_F_NO_PREALLOC: the only way for tries */
	__uint(max_entries, 16384);
	__uint(key_size, sizeof(struct tg_prefix_key));
	__uint(value_size, 4);	/* class */
} tg_prefixes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TG_SLOTS);
	__type(key, __u32);
	__type(value, struct tg_src_prefixes);
} tg_src_prefixes SEC(".maps");

struct tg_limits_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TG_LIMITS_ROWS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(union tg_limits_row));
};

/* One slot; the loader fills a second inner map and swaps it in whole. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct tg_limits_map);
} tg_limits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, TG_PAGE_ALIGNED);
	__uint(max_entries, TG_SERVICES_MAX);
	__type(key, __u32);
	__type(value, struct tg_chain);
} tg_states SEC(".maps");

/* By service, of each CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TG_SERVICES_MAX);
	__type(key, __u32);
	__type(value, struct tg_bucket_copy);
} tg_copies SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TG_SERVICES_MAX * TG_CLASSES_MAX);
	__type(key, __u32);
	__type(value, struct tg_counts);
} tg_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tg_reason_counts);
} tg_passed SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TG_SERVICES_MAX);
	__type(key, __u32);
	__type(value, struct tg_totals);
} tg_totals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, TG_PAGE_ALIGNED);
	__uint(max_entries, TG_GAUGES_MAX);
	__type(key, __u32);
	__type(value, struct tg_gauges);
} tg_gauges SEC(".maps");

/* By service. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, TG_PAGE_ALIGNED);
	__uint(max_entries, TG_SERVICES_MAX);
	__type(key, __u32);
	__type(value, struct tg_senders);
} tg_senders SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, TG_PAGE_ALIGNED);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct tg_pending);
} tg_pending SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tg_notes);
} tg_notes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, TG_PAGE_ALIGNED);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct tg_flow_set);
} tg_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, TG_PAGE_ALIGNED);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct tg_flow_times);
} tg_times SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct tg_flow_sources);
} tg_flow_sources SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, TG_PAGE_ALIGNED);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct tg_source_set);
} tg_source_sets SEC(".maps");

/* One entry a place: TG_SOURCE_WAYS for each set. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, TG_PAGE_ALIGNED);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct tg_source);
} tg_sources SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TG_GAUGES_MAX);
	__type(key, __u32);
	__type(value, struct tg_flights);
} tg_flights SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 262144);
} tg_samples SEC(".maps");

static __always_inline void *tg_at(void *map, __u32 index)
{
	return bpf_map_lookup_elem(map, &index);
}

/* A row of the limits in force. */
static __always_inline const void *tg_limits_row(__u32 row)
{
	void *all = tg_at(&tg_limits, 0);

	return all ? tg_at(all, row) : 0;
}

#endif
