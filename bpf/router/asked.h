/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What clients ask a destination for, as far as a packet shows it: the first segment of an
 * exchange goes to user space as it is, which looks for a host and a path. Nothing of it is
 * needed here, so no packet waits for a parser. A full buffer loses some.
 *
 * One connection in so many is looked at, by its hash: all of it, so that the first record of
 * TLS says what later ones are about. Once a second at most (tg_router_ingress): a client that
 * asks again and again has no more weight than one that waits.
 */
#ifndef TG_ROUTER_ASKED_H
#define TG_ROUTER_ASKED_H

#include "maps.h"
#include "../packet/hash.h"
#include "../packet/packet.h"

/* 1: of this connection it is told. */
static __always_inline int tg_router_chosen(__u32 place, __u64 fingerprint)
{
	const __u32 *each = tg_router_at(&tg_router_looks, place);
	__u32 every = each ? READ_ONCE(*each) : 0;

	/* other bits than those of the set, and of the sample */
	return every && (__u32)(fingerprint >> 48) % every == 0;
}

/* Not static: the verifier looks at it once. */
__noinline int tg_router_tell(struct __sk_buff *skb, const struct tg_packet *p,
			      __u32 place)
{
	struct tg_router_asked *asked;
	__u64 fingerprint;
	__u32 last;

	if (!p || !p->payload)
		return 0;
	fingerprint = tg_hash_flow(p, 0);
	if (!tg_router_chosen(place, fingerprint))
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
	asked->connection = fingerprint;
	asked->place = place;
	asked->bytes = last + 1;
	bpf_ringbuf_submit(asked, BPF_RB_NO_WAKEUP);
	return 1;
}

#endif
