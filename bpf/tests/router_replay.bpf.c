/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Test only: puts a batch of events through tg_crowd_filtered in the kernel, as replay.bpf.c
 * does with policies. The action of an event is its level, which the filter does not read.
 * No lock: one run at a time.
 */
#include "../packet/base.h"
#include "../abi/router.h"

#define REPLAY_BATCH 4096	/* a power of two; BATCH in router_replay.rs */

struct replay_events {
	struct tg_event event[REPLAY_BATCH];
};

struct replay_verdicts {
	struct tg_verdict verdict[REPLAY_BATCH];
};

#define ONE_ENTRY(type_of_value, name)				\
	struct {						\
		__uint(type, BPF_MAP_TYPE_ARRAY);		\
		__uint(max_entries, 1);				\
		__type(key, tg_u32);				\
		__type(value, type_of_value);			\
	} name SEC(".maps")

ONE_ENTRY(struct tg_abacus_exact_params, params);
ONE_ENTRY(struct tg_crowd_filter, filter);
ONE_ENTRY(struct replay_events, events);
ONE_ENTRY(struct replay_verdicts, verdicts);

struct replay_args {
	tg_u32 count;	/* events in the batch */
	tg_u32 done;	/* out: events that were evaluated */
};

static long replay_one(__u32 at, struct replay_args *args)
{
	tg_u32 zero = 0, i = at & (REPLAY_BATCH - 1);
	struct tg_abacus_exact_params *p = bpf_map_lookup_elem(&params, &zero);
	struct tg_crowd_filter *f = bpf_map_lookup_elem(&filter, &zero);
	struct replay_events *in = bpf_map_lookup_elem(&events, &zero);
	struct replay_verdicts *out = bpf_map_lookup_elem(&verdicts, &zero);

	if (!p || !f || !in || !out)
		return 1;
	out->verdict[i] = tg_crowd_filtered(p, f, in->event[i].level,
					    &in->event[i]);
	args->done++;
	return 0;
}

SEC("syscall")
int replay(struct replay_args *ctx)
{
	struct replay_args args = { .count = ctx->count };

	bpf_loop(args.count, replay_one, &args, 0);
	ctx->done = args.done;
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
