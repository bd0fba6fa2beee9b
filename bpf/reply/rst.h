/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The answer to what is rejected (RFC 9293, 3.10.7.1). To a SYN: RST and ACK,
 * sequence 0, acknowledging what the SYN carried. To a packet with an ACK: a RST
 * with the sequence number that it expects. One packet, never longer than what
 * it answers; never to a group or to an address that no host can have.
 *
 * How many may be sent is in packet/tokens.h and allowance.h. IP options, extension headers and
 * payload are not echoed, VLAN tags stay.
 */
#ifndef TG_ANSWER_H
#define TG_ANSWER_H

#include "../packet/packet.h"

#define TG_ANSWER_TTL 64

/* First byte of an address, as sent. */
static __always_inline __u8 tg_first(__be32 word)
{
	return bpf_ntohl(word) >> 24;
}

static __always_inline int tg_answer_ipv4(const struct tg_packet *p,
					  __u32 ifindex)
{
	__u8 src = tg_first(p->src[3]), dst = tg_first(p->dst[3]);

	if (src == 127 && ifindex != TG_LOOPBACK_IFINDEX)
		return 0;
	/* 0/8, multicast, reserved and broadcast have no host to answer. */
	return src && src < 224 && dst && dst < 224;
}

static __always_inline int tg_answer_ipv6(const struct tg_packet *p,
					  __u32 ifindex)
{
	int zero = !p->src[0] && !p->src[1] && !p->src[2];

	if (zero && (!p->src[3] || (p->src[3] == bpf_htonl(1) &&
				    ifindex != TG_LOOPBACK_IFINDEX)))
		return 0;
	/* A mapped address never travels. */
	if (!p->src[0] && !p->src[1] && p->src[2] == bpf_htonl(0xffff))
		return 0;
	return tg_first(p->src[0]) != 0xff && tg_first(p->dst[0]) != 0xff;
}

/* Whether there is somebody to answer. */
static __always_inline int tg_answer_possible(const struct tg_packet *p,
					      __u32 ifindex)
{
	int same;

	if (settings.answer == TG_ANSWER_NEVER || p->group)
		return 0;
	same = p->src[0] == p->dst[0] && p->src[1] == p->dst[1] &&
	       p->src[2] == p->dst[2] && p->src[3] == p->dst[3];
	if (same && ifindex != TG_LOOPBACK_IFINDEX)
		return 0;
	return p->ipv6 ? tg_answer_ipv6(p, ifindex) :
			 tg_answer_ipv4(p, ifindex);
}

static __always_inline __u32 tg_fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* Sum of the 16-bit halves of a word in network order. */
static __always_inline __u32 tg_halves(__be32 word)
{
	return (word & 0xffff) + (word >> 16);
}

struct tg_answer4 {
	struct tg_ipv4 ip;
	struct tg_tcp tcp;
};

struct tg_answer6 {
	struct tg_ipv6 ip;
	struct tg_tcp tcp;
};

/* The TCP header; returns the sum of its halves, checksum excluded. */
static __always_inline __u32 tg_answer_tcp(struct tg_tcp *tcp,
					   const struct tg_packet *p)
{
	tcp->sport = bpf_htons(p->dport);
	tcp->dport = bpf_htons(p->sport);
	tcp->seq = 0;
	tcp->ack = bpf_htonl(p->seq + 1 + p->payload);
	tcp->flags = TG_TCP_RST | TG_TCP_ACK;
	if (unlikely(p->flags & TG_TCP_ACK)) {
		tcp->seq = bpf_htonl(p->ack);
		tcp->ack = 0;
		tcp->flags = TG_TCP_RST;
	}
	tcp->offset = sizeof(*tcp) / 4 << 4;
	tcp->window = 0;
	tcp->check = 0;
	tcp->urgent = 0;
	return tcp->sport + tcp->dport + tg_halves(tcp->seq) +
	       tg_halves(tcp->ack) +
	       bpf_htons(tcp->offset << 8 | tcp->flags);
}

/*
 * Builds the answer; `partial`: the device will add the sum of the segment, so
 * the checksum field holds that of the pseudo header only.
 */
static __always_inline void tg_answer4(struct tg_answer4 *a,
				       const struct tg_packet *p, int partial)
{
	__u32 sum = tg_answer_tcp(&a->tcp, p), ip, pseudo;

	a->ip.ver_ihl = 0x45;
	a->ip.tos = 0;
	a->ip.tot_len = bpf_htons(sizeof(*a));
	a->ip.id = 0;
	a->ip.frag = bpf_htons(0x4000);	/* do not fragment */
	a->ip.ttl = TG_ANSWER_TTL;
	a->ip.proto = TG_PROTO_TCP;
	a->ip.src = p->dst[3];
	a->ip.dst = p->src[3];
	pseudo = tg_halves(a->ip.src) + tg_halves(a->ip.dst);
	ip = pseudo + bpf_htons(0x4500) + a->ip.tot_len + a->ip.frag +
	     bpf_htons(TG_ANSWER_TTL << 8 | TG_PROTO_TCP);
	a->ip.check = ~tg_fold(ip);
	pseudo += bpf_htons(TG_PROTO_TCP) + bpf_htons(sizeof(a->tcp));
	a->tcp.check = partial ? tg_fold(pseudo) : ~tg_fold(pseudo + sum);
}

static __always_inline void tg_answer6(struct tg_answer6 *a,
				       const struct tg_packet *p, int partial)
{
	__u32 sum = tg_answer_tcp(&a->tcp, p), pseudo;

	a->ip.flow = bpf_htonl(6U << 28);
	a->ip.payload_len = bpf_htons(sizeof(a->tcp));
	a->ip.next = TG_PROTO_TCP;
	a->ip.hops = TG_ANSWER_TTL;
	__builtin_memcpy(a->ip.src, p->dst, sizeof(a->ip.src));
	__builtin_memcpy(a->ip.dst, p->src, sizeof(a->ip.dst));
	pseudo = bpf_htons(TG_PROTO_TCP) + bpf_htons(sizeof(a->tcp));
#pragma unroll
	for (int i = 0; i < 4; i++)
		pseudo += tg_halves(p->src[i]) + tg_halves(p->dst[i]);
	a->tcp.check = partial ? tg_fold(pseudo) : ~tg_fold(pseudo + sum);
}

#endif
