/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Ingress at XDP. Frags-aware, so that a large MTU is no obstacle to attaching;
 * headers are read from the first buffer only, and a SYN always fits there.
 */
#include "../packet/parse.h"
#include "../border/border.h"
#include "../datagram/datagram.h"
#include "../import/import.h"
#include "../syn/evaluate.h"

static __always_inline enum tg_action
tg_answer_room(struct xdp_md *ctx, const struct tg_packet *p)
{
	__u32 now = bpf_xdp_get_buff_len(ctx);
	__u32 length = (p->l3 & 31) + (p->ipv6 ? sizeof(struct tg_answer6) :
						 sizeof(struct tg_answer4));

	return bpf_xdp_adjust_tail(ctx, (int)length - (int)now) ?
		TG_ACTION_DROP : TG_ACTION_ANSWER;
}

static __always_inline void tg_xdp_swap(struct tg_eth *eth)
{
	__u8 client[6];

	__builtin_memcpy(client, eth->src, sizeof(client));
	__builtin_memcpy(eth->src, eth->dst, sizeof(client));
	__builtin_memcpy(eth->dst, client, sizeof(client));
}

/* Turns the SYN, which was cut, into its answer and sends it; XDP_DROP where that fails. */
static __always_inline int tg_xdp_answer(struct xdp_md *ctx,
					 const struct tg_packet *p)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u32 l3 = p->l3 & 31;

	if (data + sizeof(struct tg_eth) > end)
		return XDP_DROP;
	tg_xdp_swap(data);
	if (p->ipv6) {
		if (data + l3 + sizeof(struct tg_answer6) > end)
			return XDP_DROP;
		tg_answer6(data + l3, p, 0);
	} else {
		if (data + l3 + sizeof(struct tg_answer4) > end)
			return XDP_DROP;
		tg_answer4(data + l3, p, 0);
	}
	if (settings.answer == TG_ANSWER_REDIRECT)
		return bpf_redirect(ctx->ingress_ifindex, 0);
	return XDP_TX;
}

__noinline int tg_parse_frame(struct xdp_md *ctx, struct tg_packet *p)
{
	struct tg_view view = {
		.data = (void *)(long)ctx->data,
		.end = (void *)(long)ctx->data_end,
		.length = bpf_xdp_get_buff_len(ctx),
	};
	int reason;

	if (!p)
		return TG_REASON_LOOKUP_FAILED;
	reason = tg_import_reason(p, tg_parse(ctx, &view, p), 1, 0);
	return tg_datagram_reason(p, reason, 1, 0);
}

SEC("xdp.frags")
int tg_xdp(struct xdp_md *ctx)
{
	struct tg_packet p = {};
	int reason;

	tg_border(ctx);
	reason = tg_parse_frame(ctx, &p);
	switch (tg_evaluate(ctx, &p, ctx->ingress_ifindex, reason)) {
	case TG_ACTION_PASS:
		return XDP_PASS;
	case TG_ACTION_ANSWER:
		return tg_xdp_answer(ctx, &p);
	default:
		return XDP_DROP;
	}
}

char _license[] SEC("license") = "Dual BSD/GPL";
