/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The maps of request rules, once; only the two request hooks and the sweep have
 * them. What belongs to a rule set lies in the slot that it was filled into:
 * entry slot * size + number.
 */
#ifndef TG_REQUEST_MAPS_H
#define TG_REQUEST_MAPS_H

#include "head.h"
#include "../packet/maps.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tg_request_control);
} tg_request_control SEC(".maps");

/* Longest prefix of a path: the first rule that may match. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, 1);	/* BPF_F_NO_PREALLOC: the only way for tries */
	__uint(max_entries, TG_SLOTS * TG_RULES_MAX);
	__uint(key_size, sizeof(struct tg_path_key));
	__uint(value_size, 4);	/* number of a rule; 0: none */
} tg_paths SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TG_SLOTS * TG_RULES_MAX);
	__type(key, __u32);
	__type(value, struct tg_rule);
} tg_rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TG_SLOTS * TG_HOSTS_MAX);
	__uint(key_size, sizeof(struct tg_host_key));
	__uint(value_size, 4);	/* id of the host */
} tg_hosts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TG_SLOTS * TG_COOKIE_TESTS_MAX);
	__type(key, __u32);
	__type(value, struct tg_cookie_test);
} tg_cookie_tests SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TG_SLOTS * TG_ANSWERS_MAX);
	__type(key, __u32);
	__type(value, struct tg_answer_text);
} tg_answer_texts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, TG_PAGE_ALIGNED);
	__uint(max_entries, TG_RULE_BUCKETS_MAX);
	__type(key, __u32);
	__type(value, struct tg_request_chain);
} tg_buckets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TG_RULE_BUCKETS_MAX);
	__type(key, __u32);
	__type(value, struct tg_bucket_totals);
} tg_bucket_totals SEC(".maps");

/* By slot and service: the rule of what no other can evaluate; 0: none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TG_SLOTS * TG_SERVICES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} tg_unevaluable SEC(".maps");

/*
 * By rule, as tg_rules. A rule keeps its number while it is the same: its count
 * is the sum over the slots, and begins at zero where a number changes hands.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TG_SLOTS * TG_RULES_MAX);
	__type(key, __u32);
	__type(value, struct tg_rule_counts);
} tg_rule_counts SEC(".maps");

/* By service: why segments with data had no rule of their own. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TG_SERVICES_MAX);
	__type(key, __u32);
	__type(value, struct tg_reason_counts);
} tg_request_reasons SEC(".maps");

/*
 * Connections of services with rules, from their first request on. Preallocated,
 * and never an LRU: what is in flight is counted by who is in here, and a place
 * is given back by who ends it or by the sweep (hook/sweep.bpf.c), never by
 * somebody else's need. By the fingerprint of packet/hash.h. The loader sizes it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct tg_conn);
} tg_conns SEC(".maps");

/* TG_HEAD_INGRESS, TG_HEAD_EGRESS; the bytes are room for the answer, too. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TG_HEADS);
	__type(key, __u32);
	__type(value, struct tg_head);
} tg_head SEC(".maps");

#endif
