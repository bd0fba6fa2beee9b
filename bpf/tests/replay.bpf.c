/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Test only: puts a batch of events through a function of policy/ in the kernel. User
 * space fills "events" and the parameters, runs a program, and compares "verdicts" and
 * the state with what the native build of the same C makes of them (support/replayed.rs).
 * No lock: one run at a time.
 *
 *	replay		tg_policy_admit		"params", "state"
 *	replay_filter	tg_crowd_filtered	"filter_params", "filter"; the action of
 *						an event is its level, which the filter
 *						does not read
 */
#include "../packet/base.h"
#include "../abi/router.h"

#define REPLAY_BATCH 16384	/* a power of two; REPLAY_BATCH in support/replayed.rs */

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
ONE_ENTRY(struct tg_abacus_exact_params, filter_params);
ONE_ENTRY(struct tg_crowd_filter, filter);
ONE_ENTRY(struct replay_events, events);
ONE_ENTRY(struct replay_verdicts, verdicts);

struct replay_args {
	tg_u32 count;	/* events in the batch */
	tg_u32 done;	/* out: events that were evaluated */
};

/* An event, and where its verdict goes. */
struct replay_place {
	const struct tg_event *event;
	struct tg_verdict *verdict;
};

/* 1: it is there. */
static __always_inline int replay_find(__u32 at, struct replay_place *place)
{
	tg_u32 zero = 0, i = at & (REPLAY_BATCH - 1);
	struct replay_events *in = bpf_map_lookup_elem(&events, &zero);
	struct replay_verdicts *out = bpf_map_lookup_elem(&verdicts, &zero);

	if (!in || !out)
		return 0;
	place->event = &in->event[i];
	place->verdict = &out->verdict[i];
	return 1;
}

static long replay_one(__u32 at, struct replay_args *args)
{
	tg_u32 zero = 0;
	struct tg_params *p = bpf_map_lookup_elem(&params, &zero);
	struct tg_state *s = bpf_map_lookup_elem(&state, &zero);
	struct replay_place place;

	if (!p || !s || !replay_find(at, &place))
		return 1;
	*place.verdict = tg_policy_admit(p, s, place.event);
	args->done++;
	return 0;
}

static long replay_one_filtered(__u32 at, struct replay_args *args)
{
	tg_u32 zero = 0;
	struct tg_abacus_exact_params *p =
		bpf_map_lookup_elem(&filter_params, &zero);
	struct tg_crowd_filter *f = bpf_map_lookup_elem(&filter, &zero);
	struct replay_place place;

	if (!p || !f || !replay_find(at, &place))
		return 1;
	*place.verdict = tg_crowd_filtered(p, f, place.event->level,
					   place.event);
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

SEC("syscall")
int replay_filter(struct replay_args *ctx)
{
	struct replay_args args = { .count = ctx->count };

	bpf_loop(args.count, replay_one_filtered, &args, 0);
	ctx->done = args.done;
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
