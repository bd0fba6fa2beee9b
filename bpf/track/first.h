/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Whether the first request of a connection is still to come: only then it is
 * given a place among those that are evaluated (track/conn.h). Whatever passed
 * before it may be a request that is outstanding, and a 503 would be taken for
 * its answer.
 */
#ifndef TG_FIRST_H
#define TG_FIRST_H

#include "flow.h"

/*
 * 1: acknowledges the ISN of this tuple's last SYN-ACK, as far as it is still
 * noted: who cannot see the server's packets does not know it.
 */
static __always_inline int tg_flow_acks(const struct tg_packet *p,
					__u64 fingerprint)
{
	const struct tg_pending *pending = tg_pending_of(fingerprint);

	return pending && pending->isn && p->ack == pending->isn + 1;
}

/*
 * 1: verified, begun after `since_ns` – before that nobody noted who spoke – and
 * neither side has said anything yet.
 */
static __always_inline int tg_flow_is_silent(const struct tg_flow *flow,
					     __u64 since_ns)
{
	const struct tg_flow_way *way = tg_flow_way(flow);

	if (tg_flow_read(flow) == TG_FLOW_NONE || !way)
		return 0;
	return way->syn_ns > since_ns && !(way->syn_ns & TG_FLOW_SPOKE) &&
	       !(way->server & TG_SERVER_SPOKE);
}

/*
 * The client has sent data. Only the hook that evaluates requests says so: XDP
 * may have seen data already while that hook is still at the ACK before them.
 */
static __always_inline void tg_flow_spoke(const struct tg_flow *flow)
{
	struct tg_flow_way *way = tg_flow_way(flow);

	if (way && !(way->syn_ns & TG_FLOW_SPOKE))
		way->syn_ns |= TG_FLOW_SPOKE;
}

#endif
