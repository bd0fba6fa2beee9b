/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Looks at a part of a router's connections: ends exchanges whose response is all
 * there and after which nothing came for a second, and of connections that were idle too
 * long, counts those that take too long, and notes how fast connections are. The daemon
 * runs it with each heartbeat.
 */
#include "../router/table.h"

/* Whether it takes too long. What is complete as far as anybody knows does not. */
static __always_inline void tg_router_late(const struct tg_router_flow *f,
					   __u32 phase, __u64 now_ns)
{
	const __u64 *after_ns = tg_router_at(&tg_router_overdue, f->place);
	struct tg_router_destination *d = tg_router_to(f);

	if (after_ns && d && *after_ns && tg_router_in_flight(phase) &&
	    (phase == TG_ROUTER_REQUEST || !tg_router_has_all(f)) &&
	    tg_elapsed_ns(now_ns, f->began_ns) > *after_ns)
		tg_router_count(&d->counts.overdue, 1);
}

static __always_inline void tg_router_look(__u64 *at, struct tg_router_flow *f,
					   struct tg_router_sweep *s)
{
	__u64 fingerprint = READ_ONCE(*at), then_ns = READ_ONCE(f->rate.then_ns);
	/* before it is known to be idle: what begins after that is another exchange */
	__u32 phase = READ_ONCE(f->phase);

	if (fingerprint == TG_ROUTER_FREE || fingerprint == TG_ROUTER_BUSY)
		return;
	/* it keeps its place until another one needs that, and goes on from there */
	if (tg_router_is_idle(f, s->now_ns)) {
		tg_router_end_of(f, phase, TG_ROUTER_IDLE);
		return;
	}
	s->open++;
	tg_router_late(f, phase, s->now_ns);
	if (then_ns > s->since_ns)
		tg_router_note_rate(f, tg_tsw_rate(&tg_router_tsw, &f->rate,
						   s->now_ns));
	if (phase == TG_ROUTER_RESPONSE && tg_router_has_all(f) &&
	    tg_elapsed_ns(s->now_ns, then_ns) >= TG_ROUTER_QUIET_NS)
		tg_router_end_of(f, phase, TG_ROUTER_PAUSED);
}

static long tg_router_sweep_set(__u32 i, struct tg_router_sweep *s)
{
	struct tg_router_set *set =
		tg_router_at(&tg_router_flows, (s->from + i) & settings.flow_mask);

	if (!set)
		return 1;
	for (int way = 0; way < TG_ROUTER_WAYS; way++)
		tg_router_look(&set->fingerprint[way], &set->flow[way], s);
	return 0;
}

SEC("syscall")
int tg_router_sweep(struct tg_router_sweep *ctx)
{
	struct tg_router_sweep s = {
		.since_ns = ctx->since_ns,
		.from = ctx->from,
	};

	s.now_ns = bpf_ktime_get_ns();
	bpf_loop(ctx->sets, tg_router_sweep_set, &s, 0);
	ctx->now_ns = s.now_ns;
	ctx->open = s.open;
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
