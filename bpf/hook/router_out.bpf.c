/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A router's measurement, of what goes to the clients. It changes nothing. */
#include "../packet/tc.h"
#include "../router/table.h"

SEC("tc")
int tg_router_out(struct __sk_buff *skb)
{
	struct tg_packet p = {};

	if (!tg_parse_frame(skb, &p))
		tg_router_egress(&p);
	return TG_TC_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
