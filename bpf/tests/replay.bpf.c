/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Test only: puts a batch of events through tg_policy_admit in the kernel.
 * User space fills "events" and "params", runs the program, and compares
 * "verdicts" and "state" with what the native build of the same C makes of
 * them (tests/replay.rs). No lock: one run at a time.
 */
#include "../packet/base.h"

#define REPLAY_BATCH 16384	/* a power of two; REPLAY_BATCH in replay.rs */

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

ONE_ENTRY(struct tg_params, params);
ONE_ENTRY(struct tg_state, state);
ONE_ENTRY(struct replay_events, events);
ONE_ENTRY(struct replay_verdicts, verdicts);

struct replay_args {
	tg_u32 count;	/* events in the batch */
	tg_u32 done;	/* out: events that were evaluated */
};

static long replay_one(__u32 at, struct replay_args *args)
{
	tg_u32 zero = 0;
	struct tg_params *p = bpf_map_lookup_elem(&params, &zero);
	struct tg_state *s = bpf_map_lookup_elem(&state, &zero);
	struct replay_events *in = bpf_map_lookup_elem(&events, &zero);
	struct replay_verdicts *out = bpf_map_lookup_elem(&verdicts, &zero);
	tg_u32 i = at & (REPLAY_BATCH - 1);

	if (!p || !s || !in || !out)
		return 1;
	out->verdict[i] = tg_policy_admit(p, s, &in->event[i]);
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
