/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the parser tells of packets that are not TCP, or whose TCP header is elsewhere:
 * addresses, protocol, length, and the ports of UDP. Only imported rules and limits on
 * datagrams look at them (import/import.h, datagram/datagram.h): without these the
 * verifier removes all of it. Each function gives the reason back for which the packet
 * passes.
 */
#ifndef TG_OTHER_H
#define TG_OTHER_H

#include "context.h"
#include "packet.h"
#include "wire.h"

/* 1: somebody looks at them. */
static __always_inline int tg_other_asked(void)
{
	return settings.import || settings.datagrams;
}

/* `header` bytes of IP stand before UDP. */
static __always_inline void tg_other_ports(struct tg_packet *p,
					   const struct tg_udp *udp,
					   __u32 header)
{
	p->sport = bpf_ntohs(udp->sport);
	p->dport = bpf_ntohs(udp->dport);
	p->other.known = TG_OTHER_PORTS;
	p->other.header = header + sizeof(*udp);
}

static __always_inline void tg_other_ip(struct tg_packet *p, __u8 proto,
					__u32 length)
{
	p->other.length = length;
	p->other.proto = proto;
	p->other.known = TG_OTHER_IP;
}

/* `header` bytes of IPv4 are there; `end`: of what can be read. */
static __always_inline int tg_other_ipv4(struct tg_packet *p,
					 const struct tg_ipv4 *ip, void *end,
					 __u32 header, __u32 length, int reason)
{
	const struct tg_udp *udp = (void *)ip + header;

	if (!tg_other_asked())
		return reason;
	p->src[2] = p->dst[2] = bpf_htonl(0xffff);
	p->src[3] = ip->src;
	p->dst[3] = ip->dst;
	tg_other_ip(p, ip->proto, length);
	if (ip->proto != TG_PROTO_UDP || ip->frag & bpf_htons(0x1fff) ||
	    length < header + sizeof(*udp) || (void *)(udp + 1) > end)
		return reason;
	tg_other_ports(p, udp, header);
	return reason;
}

/* Without extension headers; addresses are known. */
static __always_inline int tg_other_ipv6(struct tg_packet *p,
					 const struct tg_ipv6 *ip, void *end,
					 __u32 left, int reason)
{
	const struct tg_udp *udp = (void *)(ip + 1);

	if (!tg_other_asked())
		return reason;
	/* Neighbours of the link: without them there is no IPv6 at all. */
	if (ip->next == TG_PROTO_ICMPV6 && ip->hops == 255)
		return reason;
	tg_other_ip(p, ip->next, left + sizeof(*ip));
	if (ip->next == TG_PROTO_UDP && left >= sizeof(*udp) &&
	    (void *)(udp + 1) <= end)
		tg_other_ports(p, udp, sizeof(*ip));
	return reason;
}

/* The same where the parser walked over extension headers to `at`. */
static __always_inline int tg_other_walked(struct tg_packet *p, void *ctx,
					   __u32 at, __u32 left, __u8 proto,
					   __u32 length, int reason)
{
	struct tg_udp udp;

	if (!tg_other_asked())
		return reason;
	tg_other_ip(p, proto, length);
	if (proto == TG_PROTO_UDP && reason == TG_REASON_NOT_SERVICE &&
	    left >= sizeof(udp) && !TG_LOAD_BYTES(ctx, at, &udp, sizeof(udp)))
		tg_other_ports(p, &udp, length - left);
	return reason;
}

#endif
