/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A reply packet at tc: the frame is cut to its length, filled, and sent back. */
#ifndef TG_REPLY_FRAME_H
#define TG_REPLY_FRAME_H

#include "rst.h"

#define TG_TCP_CHECK_OFFSET 16	/* of the checksum in the TCP header */

/* How a frame was cut. */
enum tg_room {
	TG_ROOM_NONE,		/* it cannot be */
	TG_ROOM_WHOLE,
	TG_ROOM_PARTIAL,	/* the device completes the checksum */
};

/*
 * Cuts the packet, and finds out whether the device will complete the checksum
 * (CHECKSUM_PARTIAL): the kernel refuses to cut into the checksum of such a
 * packet. Cutting that far first tells the two apart without reading kernel
 * memory, on any kernel. With IP options such a packet cannot be cut to the
 * length of the answer, which has none.
 */
static __always_inline enum tg_room
tg_tc_room(struct __sk_buff *skb, const struct tg_packet *p)
{
	__u32 length = (p->l3 & 31) + (p->ipv6 ? sizeof(struct tg_answer6) :
						 sizeof(struct tg_answer4));
	__u32 probe = length - sizeof(struct tg_tcp) + TG_TCP_CHECK_OFFSET;
	int partial = bpf_skb_change_tail(skb, probe, 0) < 0;

	if (bpf_skb_change_tail(skb, length, 0) < 0)
		return TG_ROOM_NONE;
	return partial ? TG_ROOM_PARTIAL : TG_ROOM_WHOLE;
}

static __always_inline int tg_tc_swap(struct __sk_buff *skb)
{
	__u8 old[12], new[12];

	if (bpf_skb_load_bytes(skb, 0, old, sizeof(old)))
		return -1;
	__builtin_memcpy(new, old + 6, 6);
	__builtin_memcpy(new + 6, old, 6);
	return bpf_skb_store_bytes(skb, 0, new, sizeof(new), 0);
}

static __always_inline int tg_tc_answer(struct __sk_buff *skb,
					const struct tg_packet *p, int partial)
{
	__u32 l3 = p->l3 & 31;
	int failed;

	if (p->ipv6) {
		struct tg_answer6 a = {};

		tg_answer6(&a, p, partial);
		failed = bpf_skb_store_bytes(skb, l3, &a, sizeof(a),
					     BPF_F_RECOMPUTE_CSUM);
	} else {
		struct tg_answer4 a = {};

		tg_answer4(&a, p, partial);
		failed = bpf_skb_store_bytes(skb, l3, &a, sizeof(a),
					     BPF_F_RECOMPUTE_CSUM);
	}
	if (failed || (settings.link != TG_LINK_PLAIN && tg_tc_swap(skb)))
		return TG_TC_SHOT;
	return bpf_redirect(skb->ifindex, 0);
}

#endif
