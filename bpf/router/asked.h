/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What clients ask a destination for, as far as a packet shows it: the first segment of one
 * exchange in so many goes to user space as it is, which looks for a host and a path.
 * Nothing of it is needed here, so no packet waits for a parser. A full buffer loses some.
 */
#ifndef TG_ROUTER_ASKED_H
#define TG_ROUTER_ASKED_H

#include "maps.h"
#include "../packet/packet.h"

/* 1: of this exchange it is told. */
static __always_inline int tg_router_chosen(__u32 place)
{
	const __u32 *each = tg_router_at(&tg_router_looks, place);
	__u32 every = each ? READ_ONCE(*each) : 0;

	return every && bpf_get_prandom_u32() % every == 0;
}

/* Not static: the verifier looks at it once. */
__noinline int tg_router_tell(struct __sk_buff *skb, const struct tg_packet *p,
			      __u32 place)
{
	struct tg_router_asked *asked;
	__u32 last;

	if (!p || !p->payload || !tg_router_chosen(place))
		return 0;
	asked = bpf_ringbuf_reserve(&tg_router_requests, sizeof(*asked), 0);
	if (!asked)
		return 0;
	last = tg_min(p->payload, TG_ROUTER_ASKED_BYTES) - 1;
	/* what is compared must be what is used, and shows that it is not 0 */
	barrier_var(last);
	if (last >= TG_ROUTER_ASKED_BYTES ||
	    bpf_skb_load_bytes(skb, p->data, asked->payload, last + 1)) {
		bpf_ringbuf_discard(asked, BPF_RB_NO_WAKEUP);
		return 0;
	}
	asked->place = place;
	asked->bytes = last + 1;
	bpf_ringbuf_submit(asked, BPF_RB_NO_WAKEUP);
	return 1;
}

#endif
