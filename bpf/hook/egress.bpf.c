/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Egress at tc: watches what the server sends, for the passive signals. It
 * never drops, never changes a packet. It may see packets that segmentation
 * will cut later: what a response begins with and ends are all it looks for.
 */
#include "../packet/tc.h"
#include "../packet/classify.h"
#include "../track/turn.h"

SEC("tc")
int tg_egress(struct __sk_buff *skb)
{
	struct tg_class_view classes = {};
	struct tg_packet p = {};
	struct tg_flow flow = {};

	if (tg_parse_frame(skb, &p) || tg_classification(&classes) ||
	    !tg_port(&classes, p.sport))
		return TG_TC_NEXT;
	if (p.flags & TG_TCP_SYN) {
		if (p.flags & TG_TCP_ACK)
			tg_flow_syn_ack(&p);
		return TG_TC_NEXT;
	}
	flow.fingerprint = tg_hash_flow(&p, 1);
	if (tg_flow_find(&flow))
		tg_flow_egress(skb, &flow, &p);
	return TG_TC_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
