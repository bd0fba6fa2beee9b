/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a refused request becomes, in its own buffer: an answer to the client,
 * which goes back out as a clone, and then a RST in the client's name, which
 * goes on to the server. The answer acknowledges the request and ends the
 * connection (FIN); the RST has the request's sequence number, the next that the
 * server expects, so that its stack believes it (RFC 5961, 3.2).
 *
 * The first cut says whether the device, or nobody, will complete the checksum
 * (CHECKSUM_PARTIAL): the kernel refuses to cut into the checksum of such a
 * packet, and of no other. So kernel memory need not be read, on any kernel.
 */
#ifndef TG_REFUSE_H
#define TG_REFUSE_H

#include "rst.h"
#include "../packet/options.h"
#include "../http/request_maps.h"

#define TG_TCP_CHECK_OFFSET 16	/* of the checksum in the TCP header */
#define TG_STAMPS_BYTES 12	/* as we send them, with two NOPs before */
#define TG_REPLY_WINDOW 0xffff	/* a client may send the rest of its body */

/* Where things stand in a frame. */
struct tg_layout {
	__u32 data;		/* offset of the payload */
	__u32 tcp;		/* of the TCP header, in a plain one */
	__u32 plain;		/* 1: IP without options or extension headers */
	__u32 fragment;		/* 1: one of several */
};

static __always_inline int tg_layout4(struct __sk_buff *skb, __u32 l3,
				      struct tg_layout *at)
{
	struct tg_ipv4 ip;

	if (bpf_skb_load_bytes(skb, l3, &ip, sizeof(ip)))
		return -1;
	at->tcp = l3 + sizeof(ip);
	at->plain = ip.ver_ihl == 0x45;
	at->fragment = (ip.frag & bpf_htons(0x3fff)) != 0;
	at->data = l3 + (ip.tot_len ? bpf_ntohs(ip.tot_len) : skb->len - l3);
	return 0;
}

static __always_inline int tg_layout6(struct __sk_buff *skb, __u32 l3,
				      struct tg_layout *at)
{
	struct {
		__be32 flow;
		__be16 payload_len;
		__u8 next;
		__u8 hops;
	} ip;

	if (bpf_skb_load_bytes(skb, l3, &ip, sizeof(ip)))
		return -1;
	at->tcp = l3 + sizeof(struct tg_ipv6);
	at->plain = ip.next == TG_PROTO_TCP;
	at->fragment = ip.next == TG_PROTO_FRAGMENT;
	at->data = ip.payload_len ? at->tcp + bpf_ntohs(ip.payload_len) :
				    skb->len;
	return 0;
}

/* The payload ends where IP ends: so its beginning needs no header walked. */
__noinline int tg_layout_of(struct __sk_buff *skb, const struct tg_packet *p,
			    struct tg_layout *at)
{
	int failed;

	if (!p || !at)
		return -1;
	failed = p->ipv6 ? tg_layout6(skb, p->l3 & 31, at) :
			   tg_layout4(skb, p->l3 & 31, at);
	at->data -= p->payload;
	return failed;
}

/* A segment that we send. */
struct tg_send {
	__u32 seq;
	__u32 ack;
	__u32 bytes;		/* of text behind the header */
	__u32 sum;		/* of that text */
	__be32 stamp[2];	/* value, echo */
	__u32 tcp;		/* offset of the TCP header */
	__u8 flags;
	__u8 up;		/* 1: to the server, in the client's name */
	__u8 stamped;		/* 1: with time stamps */
	__u8 partial;		/* 1: the checksum is that of a pseudo header */
	__u8 eth[12];		/* both addresses, as they came */
};

/*
 * The time stamps that an answer carries (RFC 7323): its value is what the
 * client has seen last, so that none of its checks fails.
 */
static __noinline int tg_send_stamps(struct __sk_buff *skb, __u32 data,
				     struct tg_send *s)
{
	__u32 from = s->tcp + sizeof(struct tg_tcp), last = data - from - 1;
	struct tg_options o = {};
	__be32 stamp[2];

	/* what is compared must be what is used, and shows that it is not 0 */
	barrier_var(last);
	if (last >= TG_TCP_OPTIONS_MAX)
		return 0;
	if (bpf_skb_load_bytes(skb, from, o.option, last + 1))
		return 0;
	o.bytes = last + 1;
	bpf_loop(TG_TCP_OPTIONS_MAX, tg_option, &o, 0);
	if (!o.stamps ||
	    bpf_skb_load_bytes(skb, from + o.stamps, stamp, sizeof(stamp)))
		return 0;
	s->stamped = 1;
	s->stamp[0] = stamp[1];
	s->stamp[1] = stamp[0];
	return 0;
}

struct tg_send_tcp {
	struct tg_tcp tcp;
	__be16 nops;
	__u8 kind;
	__u8 length;
	__be32 stamp[2];
};

static __always_inline __u32 tg_send_header(const struct tg_send *s)
{
	return sizeof(struct tg_tcp) + (s->stamped ? TG_STAMPS_BYTES : 0);
}

/* The TCP header; returns the sum of its halves, checksum excluded. */
static __always_inline __u32 tg_send_tcp(struct tg_send_tcp *t,
					 const struct tg_packet *p,
					 const struct tg_send *s)
{
	__u32 header = tg_send_header(s), sum;

	t->tcp.sport = bpf_htons(s->up ? p->sport : p->dport);
	t->tcp.dport = bpf_htons(s->up ? p->dport : p->sport);
	t->tcp.seq = bpf_htonl(s->seq);
	t->tcp.ack = bpf_htonl(s->ack);
	t->tcp.offset = header / 4 << 4;
	t->tcp.flags = s->flags;
	t->tcp.window = s->flags & TG_TCP_RST ? 0 : bpf_htons(TG_REPLY_WINDOW);
	t->tcp.check = 0;
	t->tcp.urgent = 0;
	t->nops = bpf_htons(TG_OPTION_NOP << 8 | TG_OPTION_NOP);
	t->kind = TG_OPTION_STAMPS;
	t->length = TG_OPTION_STAMPS_BYTES;
	t->stamp[0] = s->stamp[0];
	t->stamp[1] = s->stamp[1];
	sum = t->tcp.sport + t->tcp.dport + tg_halves(t->tcp.seq) +
	      tg_halves(t->tcp.ack) + t->tcp.window +
	      bpf_htons(t->tcp.offset << 8 | t->tcp.flags);
	if (s->stamped)
		sum += t->nops + bpf_htons(t->kind << 8 | t->length) +
		       tg_halves(t->stamp[0]) + tg_halves(t->stamp[1]);
	return sum;
}

static __always_inline __be16 tg_send_check(const struct tg_send *s,
					    __u32 pseudo, __u32 sum)
{
	pseudo += bpf_htons(TG_PROTO_TCP) +
		  bpf_htons(tg_send_header(s) + s->bytes);
	return s->partial ? tg_fold(pseudo) : ~tg_fold(pseudo + sum + s->sum);
}

static __noinline int tg_send_ip4(struct __sk_buff *skb,
				  const struct tg_packet *p,
				  const struct tg_send *s)
{
	struct {
		struct tg_ipv4 ip;
		struct tg_send_tcp tcp;
	} a = {};
	__u32 length = sizeof(a.ip) + tg_send_header(s), pseudo, sum;

	sum = tg_send_tcp(&a.tcp, p, s);
	a.ip.ver_ihl = 0x45;
	a.ip.tot_len = bpf_htons(length + s->bytes);
	a.ip.frag = bpf_htons(0x4000);	/* do not fragment */
	a.ip.ttl = TG_ANSWER_TTL;
	a.ip.proto = TG_PROTO_TCP;
	a.ip.src = s->up ? p->src[3] : p->dst[3];
	a.ip.dst = s->up ? p->dst[3] : p->src[3];
	pseudo = tg_halves(a.ip.src) + tg_halves(a.ip.dst);
	a.ip.check = ~tg_fold(pseudo + bpf_htons(0x4500) + a.ip.tot_len +
			      a.ip.frag +
			      bpf_htons(TG_ANSWER_TTL << 8 | TG_PROTO_TCP));
	a.tcp.tcp.check = tg_send_check(s, pseudo, sum);
	return s->stamped ?
		bpf_skb_store_bytes(skb, p->l3 & 31, &a, sizeof(a), 0) :
		bpf_skb_store_bytes(skb, p->l3 & 31, &a,
				    sizeof(a) - TG_STAMPS_BYTES, 0);
}

static __noinline int tg_send_ip6(struct __sk_buff *skb,
				  const struct tg_packet *p,
				  const struct tg_send *s)
{
	struct {
		struct tg_ipv6 ip;
		struct tg_send_tcp tcp;
	} a = {};
	__u32 pseudo = 0, sum;

	sum = tg_send_tcp(&a.tcp, p, s);
	a.ip.flow = bpf_htonl(6U << 28);
	a.ip.payload_len = bpf_htons(tg_send_header(s) + s->bytes);
	a.ip.next = TG_PROTO_TCP;
	a.ip.hops = TG_ANSWER_TTL;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		a.ip.src[i] = s->up ? p->src[i] : p->dst[i];
		a.ip.dst[i] = s->up ? p->dst[i] : p->src[i];
		pseudo += tg_halves(a.ip.src[i]) + tg_halves(a.ip.dst[i]);
	}
	a.tcp.tcp.check = tg_send_check(s, pseudo, sum);
	return s->stamped ?
		bpf_skb_store_bytes(skb, p->l3 & 31, &a, sizeof(a), 0) :
		bpf_skb_store_bytes(skb, p->l3 & 31, &a,
				    sizeof(a) - TG_STAMPS_BYTES, 0);
}

static __always_inline int tg_send_eth(struct __sk_buff *skb,
				       const struct tg_send *s)
{
	__u8 eth[12];

	if (s->up)
		return bpf_skb_store_bytes(skb, 0, s->eth, sizeof(s->eth), 0);
	__builtin_memcpy(eth, s->eth + 6, 6);
	__builtin_memcpy(eth + 6, s->eth, 6);
	return bpf_skb_store_bytes(skb, 0, eth, sizeof(eth), 0);
}

/*
 * What a segment needs of the frame that it will be built in: the first step,
 * before anything is changed.
 */
static __always_inline int tg_send_prepare(struct __sk_buff *skb,
					   const struct tg_layout *at,
					   struct tg_send *s)
{
	__builtin_memset(s, 0, sizeof(*s));
	s->tcp = at->tcp;
	tg_send_stamps(skb, at->data, s);
	return bpf_skb_load_bytes(skb, 0, s->eth, sizeof(s->eth));
}

/* Finds out about the checksum; from here on, the request is gone. */
static __always_inline void tg_send_probe(struct __sk_buff *skb,
					  struct tg_send *s)
{
	s->partial = bpf_skb_change_tail(skb, s->tcp + TG_TCP_CHECK_OFFSET,
					 0) < 0;
}

/* Turns the frame into the segment; zero if it did. */
static __always_inline int tg_send_build(struct __sk_buff *skb,
					 const struct tg_packet *p,
					 const struct tg_send *s)
{
	if (bpf_skb_change_tail(skb, s->tcp + tg_send_header(s) + s->bytes, 0))
		return -1;
	if (p->ipv6 ? tg_send_ip6(skb, p, s) : tg_send_ip4(skb, p, s))
		return -1;
	return settings.link == TG_LINK_PLAIN ? 0 : tg_send_eth(skb, s);
}

/* Puts the text behind the header. */
static __always_inline int tg_send_text(struct __sk_buff *skb,
					const struct tg_send *s,
					const struct tg_answer_text *text)
{
	__u32 last = s->bytes - 1;

	/* what is compared must be what is used, and shows that it is not 0 */
	barrier_var(last);
	if (last >= TG_ANSWER_BYTES_MAX)
		return -1;
	return bpf_skb_store_bytes(skb, s->tcp + tg_send_header(s), text->text,
				   last + 1, 0);
}

/*
 * The frame as a RST of the client's to the server. TG_TC_NEXT: it goes on as
 * such; TG_TC_SHOT: it could not be made, and must not go on.
 */
static __always_inline int tg_send_reset(struct __sk_buff *skb,
					 const struct tg_packet *p,
					 struct tg_send *s, __u32 seq,
					 __u32 ack)
{
	s->seq = seq;
	s->ack = ack;
	s->bytes = s->sum = 0;
	s->stamped = 0;
	s->flags = TG_TCP_RST | TG_TCP_ACK;
	s->up = 1;
	return tg_send_build(skb, p, s) ? TG_TC_SHOT : TG_TC_NEXT;
}

#endif
