/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The header of IPv4 for those who change it: by offset, whatever stands behind it. */
#ifndef TG_IPV4_H
#define TG_IPV4_H

#include "parse.h"

#define TG_IPV4_ECN 3	/* bits of the TOS below the DSCP */

/* Where it begins; -1: there is none. */
static __always_inline int tg_ipv4_at(TG_CONTEXT *ctx)
{
	__u32 at = __builtin_offsetof(struct tg_eth, type);
	__be16 type;

	if (settings.link == TG_LINK_PLAIN)
		return 0;
	for (int i = 0; i <= TG_VLANS_MAX; i++) {
		if (TG_LOAD_BYTES(ctx, at, &type, sizeof(type)))
			return -1;
		if (!tg_is_vlan(type))
			return type == bpf_htons(TG_ETH_IPV4) ?
				(int)(at + sizeof(type)) : -1;
		at += sizeof(struct tg_vlan);
	}
	return -1;
}

#endif
