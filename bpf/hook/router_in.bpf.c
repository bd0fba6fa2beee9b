/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A router's measurement, of what comes from the clients. It refuses SYNs to a destination
 * whose limit has no token (router/limit.h), and changes nothing else.
 */
#include "../packet/tc.h"
#include "../reply/frame.h"
#include "../router/asked.h"
#include "../router/table.h"

/* Replies with a RST; what becomes of the SYN. Not static: the verifier looks at it once. */
__noinline int tg_router_reset(struct __sk_buff *skb, const struct tg_packet *p,
			       __u32 place)
{
	struct tg_router_destination *d = tg_router_at(&tg_router_counts, place);
	enum tg_room room;

	if (!p)
		return TG_TC_SHOT;
	room = tg_tc_room(skb, p);
	if (room == TG_ROOM_NONE)
		return TG_TC_SHOT;
	if (d)
		tg_router_count(&d->counts.reset, 1);
	return tg_tc_answer(skb, p, room == TG_ROOM_PARTIAL);
}

SEC("tc")
int tg_router_in(struct __sk_buff *skb)
{
	struct tg_packet p = {};
	__u32 place = 0;

	if (tg_parse_frame(skb, &p))
		return TG_TC_NEXT;
	switch (tg_router_ingress(&p, skb->ifindex, &place)) {
	case TG_ROUTER_PASS:
		return TG_TC_NEXT;
	case TG_ROUTER_RESET:
		return tg_router_reset(skb, &p, place);
	case TG_ROUTER_ASKED:
		tg_router_tell(skb, &p, place);
		return TG_TC_NEXT;
	default:
		return TG_TC_SHOT;
	}
}

char _license[] SEC("license") = "Dual BSD/GPL";
