/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A router's measurement, of what comes from the clients. It drops SYNs to a destination
 * whose limit has no token (router/limit.h), and changes nothing else.
 */
#include "../packet/tc.h"
#include "../router/table.h"

SEC("tc")
int tg_router_in(struct __sk_buff *skb)
{
	struct tg_packet p = {};

	if (!tg_parse_frame(skb, &p) && tg_router_ingress(&p))
		return TG_TC_SHOT;
	return TG_TC_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
