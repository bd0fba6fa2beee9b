/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Ingress at tc: tcx from Linux 6.6 on, clsact below (the loader says which
 * before it loads). The good neighbour where another program owns XDP.
 */
#include "../packet/tc.h"
#include "../border/border.h"
#include "../datagram/datagram.h"
#include "../import/import.h"
#include "../reply/frame.h"
#include "../syn/evaluate.h"

static __always_inline enum tg_action
tg_answer_room(struct __sk_buff *skb, const struct tg_packet *p)
{
	enum tg_room room = tg_tc_room(skb, p);

	if (room == TG_ROOM_NONE)
		return TG_ACTION_DROP;
	return room == TG_ROOM_PARTIAL ? TG_ACTION_ANSWER_PARTIAL :
					 TG_ACTION_ANSWER;
}

/* Imported rules see what the parser has not understood, too; and so do datagrams. */
__noinline int tg_parse_ingress(struct __sk_buff *skb, struct tg_packet *p)
{
	int reason;

	if (!p)
		return TG_REASON_LOOKUP_FAILED;
	tg_border(skb);
	reason = tg_import_reason(p, tg_tc_parse(skb, p), skb->gso_segs,
				  skb->gso_size);
	return tg_datagram_reason(p, reason, skb->gso_segs, skb->gso_size);
}

SEC("tc")
int tg_ingress(struct __sk_buff *skb)
{
	struct tg_packet p = {};
	int reason = tg_parse_ingress(skb, &p);

	switch (tg_evaluate(skb, &p, skb->ifindex, reason)) {
	case TG_ACTION_PASS:
		return TG_TC_NEXT;
	case TG_ACTION_ANSWER:
		return tg_tc_answer(skb, &p, 0);
	case TG_ACTION_ANSWER_PARTIAL:
		return tg_tc_answer(skb, &p, 1);
	default:
		return TG_TC_SHOT;
	}
}

char _license[] SEC("license") = "Dual BSD/GPL";
