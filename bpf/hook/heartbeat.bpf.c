/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The daemon's sign of life, stamped with the clock that the hooks read, so
 * that units and clocks cannot differ. On the way it looks at a part of the
 * flow table and frees what was idle too long: packets need not do it. And it
 * turns the slices of who was refused lately.
 */
#include "../track/flow.h"

struct tg_reap {
	__u64 now_ns;
	__u32 from;
};

static long tg_reap_set(__u32 i, struct tg_reap *reap)
{
	__u32 index = (reap->from + i) & settings.flow_mask;
	struct tg_flow_set *set = tg_at(&tg_flows, index);

	if (!set)
		return 1;
	for (__u32 way = 0; way < TG_FLOW_WAYS; way++)
		tg_flow_evict(&set->meta[way], tg_flow_number(index, way),
			      reap->now_ns);
	return 0;
}

static long tg_lately_clear(__u32 i, __u32 *from)
{
	struct tg_lately_line *line = tg_at(&tg_lately, *from + i);

	if (!line)
		return 1;
	for (__u32 word = 0; word < TG_LATELY_WORDS; word++)
		line->word[word] = 0;
	return 0;
}

/*
 * Of two daemons that hand over one turns the slices at a time: what one has begun
 * to write to, the other must not clear. A program that runs is not killed.
 */
static __always_inline void tg_lately_go_on(__u64 last_ns, __u64 now_ns)
{
	struct tg_lately_turn *turn = tg_at(&tg_lately_turn, 0);
	__u32 lines = settings.lately_mask + 1, clear, from;

	if (!turn || __sync_val_compare_and_swap(&turn->busy, 0, 1))
		return;
	clear = tg_lately_beat(turn, lines, last_ns, now_ns);
	if (clear) {
		from = tg_lately_next(turn->slice) * lines + turn->cleared;
		bpf_loop(clear, tg_lately_clear, &from, 0);
		turn->cleared += clear;
		if (turn->cleared >= lines)
			tg_lately_beat(turn, lines, last_ns, now_ns);
	}
	WRITE_ONCE(turn->busy, 0);
}

SEC("syscall")
int tg_heartbeat(struct tg_heartbeat *ctx)
{
	struct tg_lease *lease = tg_at(&tg_lease, 0);
	struct tg_reap reap = { .from = ctx->reap_from };

	if (!lease)
		return 1;
	reap.now_ns = bpf_ktime_get_ns();
	tg_lately_go_on(READ_ONCE(lease->heartbeat_ns), reap.now_ns);
	WRITE_ONCE(lease->heartbeat_ns, reap.now_ns);
	bpf_loop(ctx->reap_sets, tg_reap_set, &reap, 0);
	ctx->now_ns = reap.now_ns;
	ctx->reap_from = (reap.from + ctx->reap_sets) & settings.flow_mask;
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
