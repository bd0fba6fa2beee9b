/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How a client is refused: by its class (policy/chain/refusal.h). Classes are told apart as
 * those of services (packet/classify.h): by the longest prefix of the source, else by the
 * DSCP where the interface is trusted. Prefix and DSCP give the action itself, and no number
 * of a class: while classes change, no SYN finds the action of another one.
 *
 * A RST is sent from the interface that the SYN came by, in the name of the destination. It
 * takes a token of those that the hooks of this host have for all (packet/tokens.h): without
 * one, nothing is sent. So an address that has proved nothing gets no more from here than
 * from a service, and no packet is longer than its SYN.
 */
#ifndef TG_ROUTER_ACTION_H
#define TG_ROUTER_ACTION_H

#include "flow.h"
#include "maps.h"
#include "../packet/tokens.h"
#include "../reply/rst.h"

static __always_inline void tg_router_prefix_of(struct tg_router_prefix *key,
						const struct tg_packet *p)
{
	key->bits = TG_ROUTER_PREFIX_BITS + 8 * sizeof(key->addr);
	__builtin_memcpy(key->addr, p->src, sizeof(key->addr));
}

/* 1 + the action for a source by its prefix; 0: none says one. */
static __always_inline __u32
tg_router_action_of_source(const struct tg_packet *p)
{
	struct tg_router_prefix key = {};
	const __u32 *action;

	tg_router_prefix_of(&key, p);
	action = bpf_map_lookup_elem(&tg_router_classes, &key);
	return action ? READ_ONCE(*action) : 0;
}

/* enum tg_crowd_action. Not static: the verifier looks at it once. */
__noinline int tg_router_action(const struct tg_packet *p)
{
	const struct tg_router_actions *all = tg_router_at(&tg_router_actions, 0);
	__u32 action = 0;

	if (!all || !p)
		return TG_CROWD_DROP;
	if (all->flags & TG_SERVICE_PREFIXES)
		action = tg_router_action_of_source(p);
	if (!action && settings.trust_dscp && all->flags & TG_SERVICE_DSCP)
		action = all->dscp[p->dscp & (TG_DSCP_MAX - 1)];
	return action ? action - 1 : all->others;
}

/* 1: there is somebody to reply to, and a reply may be sent; its token is taken. */
static __always_inline int tg_router_may_reply(const struct tg_packet *p,
					       __u32 ifindex, __u64 now_ns)
{
	const struct tg_router_actions *all = tg_router_at(&tg_router_actions, 0);
	struct tg_router_way way;

	/* of a connection that is followed this RST would be taken for the server's */
	return all && tg_answer_possible(p, ifindex) &&
	       !tg_router_find(tg_hash_flow(p, 0), &way) &&
	       tg_answer_token(&all->replies, TG_ANSWERS_ALL, now_ns);
}

#endif
