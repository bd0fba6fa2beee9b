/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Datagrams (UDP) to the addresses and ports of a service, as a congested router limits
 * them. In this order, the first that applies:
 *
 *	no service at its address and port	goes on (not-service)
 *	exempt port or source			passes (exempt)
 *	no limit, or over; kill switch, lease ended	passes, counted
 *	the limit has a token			passes, counted
 *	shadow, lease relaxing, canary		passes, counted as spared
 *	else					dropped, counted
 *
 * What has the ports says whose datagram it is: also a first fragment, and one whose
 * length is wrong, which its server will drop, but which crosses the link. Later
 * fragments have none: they go on, and are not counted. IP options and up to eight
 * extension headers are walked over, as before TCP.
 *
 * Any look-up that fails lets it go on. Where no service counts datagrams the verifier
 * removes the call, and TCP never comes here.
 */
#ifndef TG_DATAGRAM_HOOK_H
#define TG_DATAGRAM_HOOK_H

#include "maps.h"
#include "../packet/chosen.h"
#include "../packet/classify.h"
#include "../packet/lease.h"

/* The datagrams of a packet, and how many bytes of IP they are. */
struct tg_datagram_size {
	__u32 datagrams;
	__u32 bytes;
};

/*
 * virtio tells the size of what was merged, and not the number. No kernel merges more than
 * TG_DATAGRAMS_MERGED_MAX; of what says that it has more so many count and pay.
 */
static __always_inline struct tg_datagram_size
tg_datagram_measure(const struct tg_packet *p, __u32 segments, __u32 segment)
{
	struct tg_datagram_size size = { 1, p->other.length };

	if (!segments && segment)
		segments = (p->other.length - p->other.header + segment - 1) /
			   segment;
	if (segments > TG_DATAGRAMS_MERGED_MAX)
		segments = TG_DATAGRAMS_MERGED_MAX;
	if (segments > 1) {
		size.datagrams = segments;
		size.bytes += (segments - 1) * p->other.header;
	}
	return size;
}

/* 1: the limit lets it pass, or its refusal is not carried out. */
static __always_inline int
tg_datagram_passes(const struct tg_packet *p, const struct tg_class_view *view,
		   __u32 service, struct tg_datagrams *of,
		   const struct tg_datagram_size *size)
{
	const struct tg_datagram_limit *limit =
		tg_limits_row(TG_LIMITS_DATAGRAMS + service);
	struct tg_datagram_chain *chain;
	enum tg_execution execution;
	__u64 now_ns, source;
	__u32 strength;

	if (!limit || !limit->bucket.rate_milli)
		return 1;
	now_ns = bpf_ktime_get_ns();
	strength = tg_lease_until(tg_lease_now(now_ns), limit->until, now_ns);
	chain = tg_at(&tg_datagram_states, service);
	if (tg_lease_passes(view->released, strength) || !chain)
		return 1;
	if (!tg_refuses(tg_datagram_admit(limit, chain, &of->copy, now_ns,
					  size->datagrams)))
		return 1;
	source = tg_chosen_by(limit->flags, p, &view->table->service[service]);
	execution = tg_lease_execution(limit->flags & TG_LIMITS_SHADOW ||
				       tg_canary_spares(limit->flags, source),
				       strength, tg_lease_dice(strength));
	if (execution == TG_EXECUTED)
		return 0;
	of->spared += size->datagrams;
	return 1;
}

/*
 * What becomes of a packet that may be a datagram to a service: TG_COUNTED_EARLY,
 * TG_REFUSED_EARLY, or a reason to pass. Not static: the verifier looks at it once.
 */
__noinline int tg_datagram_of(const struct tg_packet *p, __u32 segments,
			      __u32 segment)
{
	struct tg_class_view view;
	struct tg_datagram_size size;
	struct tg_datagrams *of;
	int kinds, listen;
	__u32 service;

	if (!p || p->other.proto != TG_PROTO_UDP ||
	    p->other.known != TG_OTHER_PORTS || tg_classification(&view))
		return TG_REASON_NOT_SERVICE;
	kinds = tg_port(&view, p->dport);
	listen = kinds ? tg_listen_of(&view, p, kinds) : TG_LISTEN_NONE;
	if (listen < 0)
		return TG_REASON_NOT_SERVICE;
	if (tg_exempt(&view, p, listen, tg_src_row(&view, p)))
		return TG_REASON_EXEMPT;
	service = tg_listen_service(listen);
	of = tg_at(&tg_datagrams, service);
	if (!of)
		return TG_REASON_LOOKUP_FAILED;
	size = tg_datagram_measure(p, segments, segment);
	of->offered += size.datagrams;
	if (tg_datagram_passes(p, &view, service, of, &size))
		return TG_COUNTED_EARLY;
	of->refused += size.datagrams;
	of->refused_bytes += size.bytes;
	return TG_REFUSED_EARLY;
}

/* What was said so far, or what becomes of a datagram. */
static __always_inline int tg_datagram_reason(const struct tg_packet *p,
					      int reason, __u32 segments,
					      __u32 segment)
{
	if (settings.datagrams && reason == TG_REASON_NOT_SERVICE)
		return tg_datagram_of(p, segments, segment);
	return reason;
}

#endif
