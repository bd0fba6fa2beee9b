/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Ingress at tc: tcx from Linux 6.6 on, clsact below (the loader says which
 * before it loads). The good neighbour where another program owns XDP.
 */
#include "../lib/tc.h"
#include "../lib/judge.h"

#define TG_TCP_CHECK_OFFSET 16	/* of the checksum in the TCP header */

/*
 * Cuts the packet to `length`. Returns 1 if the device will complete the
 * checksum (CHECKSUM_PARTIAL), 0 if not, negative if it cannot be cut. The
 * kernel refuses to cut into the checksum of a partial packet: cutting that
 * far first tells the two apart without reading kernel memory, on any kernel.
 */
static __always_inline int tg_tc_resize(struct __sk_buff *skb, __u32 length)
{
	__u32 probe = length - sizeof(struct tg_tcp) + TG_TCP_CHECK_OFFSET;
	int partial = bpf_skb_change_tail(skb, probe, 0) < 0;

	if (bpf_skb_change_tail(skb, length, 0) < 0)
		return -1;
	return partial;
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
					const struct tg_packet *p)
{
	__u32 l3 = p->l3 & 31;
	int partial, failed;

	if (p->ipv6) {
		struct tg_answer6 a = {};

		partial = tg_tc_resize(skb, l3 + sizeof(a));
		if (partial < 0)
			return TG_TC_SHOT;
		tg_answer6(&a, p, partial);
		failed = bpf_skb_store_bytes(skb, l3, &a, sizeof(a),
					     BPF_F_RECOMPUTE_CSUM);
	} else {
		struct tg_answer4 a = {};

		partial = tg_tc_resize(skb, l3 + sizeof(a));
		if (partial < 0)
			return TG_TC_SHOT;
		tg_answer4(&a, p, partial);
		failed = bpf_skb_store_bytes(skb, l3, &a, sizeof(a),
					     BPF_F_RECOMPUTE_CSUM);
	}
	if (failed || tg_tc_swap(skb))
		return TG_TC_SHOT;
	return bpf_redirect(skb->ifindex, 0);
}

SEC("tc")
int tg_ingress(struct __sk_buff *skb)
{
	struct tg_packet p = {};
	int reason = tg_parse_frame(skb, &p);

	switch (tg_judge(skb, &p, skb->ifindex, reason)) {
	case TG_ACTION_PASS:
		return TG_TC_NEXT;
	case TG_ACTION_ANSWER:
		return tg_tc_answer(skb, &p);
	default:
		return TG_TC_SHOT;
	}
}

char _license[] SEC("license") = "Dual BSD/GPL";
