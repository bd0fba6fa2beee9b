/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The maps of imported rules: only the ingress hooks have them. */
#ifndef TG_IMPORT_MAPS_H
#define TG_IMPORT_MAPS_H

#include "../packet/maps.h"
#include "../abi/import.h"

struct tg_import_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TG_IMPORT_ROWS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, TG_IMPORT_ROW_BYTES);
};

/* One slot, as tg_limits. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct tg_import_map);
} tg_import SEC(".maps");

/*
 * The buckets of a slot, by the time at which they are full again, in ns/16. One for
 * all CPUs: the rate is that of the rule, whatever queues a device has.
 */
struct tg_import_state {
	struct bpf_spin_lock lock;
	__u32 generation;
	__u64 packets_at;
	__u64 bytes_at;
	__u64 packet_cost;	/* as in the rule: another one begins anew */
	__u64 byte_cost;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TG_IMPORT_RULES);
	__type(key, __u32);
	__type(value, struct tg_import_state);
} tg_import_states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TG_IMPORT_RULES);
	__type(key, __u32);
	__type(value, struct tg_import_counts);
} tg_import_counts SEC(".maps");

#endif
