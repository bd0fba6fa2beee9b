/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The parser: a cursor and one function per header, which checks, advances and
 * tells what follows. It ends at TCP. Everything that is not understood has a
 * reason and passes; for imported rules other.h tells more of it. After the
 * parser every integer is in host order, except addresses. A hook wraps the parser
 * into a function of its own that is not static: the verifier looks at such a
 * function once, instead of following each way through the parser to the end of the
 * program.
 */
#ifndef TG_PARSE_H
#define TG_PARSE_H

#include "context.h"
#include "other.h"
#include "packet.h"
#include "wire.h"

#define TG_VLANS_MAX 2
#define TG_EXTENSIONS_MAX 8

struct tg_cursor {
	void *at;
	void *end;
	__u32 left;	/* bytes from here to the end of what IP announces */
};

static __always_inline int tg_parse_vlan(struct tg_cursor *c, __be16 *type)
{
	struct tg_vlan *vlan = c->at;

	if ((void *)(vlan + 1) > c->end)
		return TG_REASON_TRUNCATED;
	*type = vlan->type;
	c->at = vlan + 1;
	return 0;
}

static __always_inline int tg_is_vlan(__be16 type)
{
	return type == bpf_htons(TG_ETH_8021Q) ||
	       type == bpf_htons(TG_ETH_8021AD);
}

static __always_inline int tg_parse_eth(struct tg_cursor *c,
					struct tg_packet *p, __be16 *type)
{
	struct tg_eth *eth = c->at;
	int reason;

	if ((void *)(eth + 1) > c->end)
		return TG_REASON_TRUNCATED;
	*type = eth->type;
	p->group = (eth->dst[0] | eth->src[0]) & 1;
	p->l3 = sizeof(*eth);
	c->at = eth + 1;
	for (int i = 0; i < TG_VLANS_MAX; i++) {
		if (likely(!tg_is_vlan(*type)))
			return 0;
		reason = tg_parse_vlan(c, type);
		if (reason)
			return reason;
		p->l3 += sizeof(struct tg_vlan);
	}
	return tg_is_vlan(*type) ? TG_REASON_VLAN_DEPTH : 0;
}

/* A TCP header that lies at hand, `left` bytes before the end of its packet. */
static __always_inline int tg_read_tcp(const struct tg_tcp *tcp, __u32 left,
				       struct tg_packet *p, int fragment)
{
	__u32 header = (tcp->offset >> 4) * 4;

	if (header < sizeof(*tcp))
		return TG_REASON_MALFORMED;
	if (header > left)
		return fragment ? TG_REASON_FRAGMENT : TG_REASON_MALFORMED;
	p->sport = bpf_ntohs(tcp->sport);
	p->dport = bpf_ntohs(tcp->dport);
	p->seq = bpf_ntohl(tcp->seq);
	p->ack = bpf_ntohl(tcp->ack);
	p->flags = tcp->flags;
	p->payload = left - header;
	p->data += header;	/* from where IP ends */
	return 0;
}

static __always_inline int tg_parse_tcp(struct tg_cursor *c,
					struct tg_packet *p, int fragment)
{
	struct tg_tcp *tcp = c->at;

	if (c->left < sizeof(*tcp))
		return fragment ? TG_REASON_FRAGMENT : TG_REASON_MALFORMED;
	if ((void *)(tcp + 1) > c->end)
		return TG_REASON_TRUNCATED;
	return tg_read_tcp(tcp, c->left, p, fragment);
}

/*
 * What IP announces against what is there. Kernels mark packets beyond 64 KiB
 * (after merging) with a length of zero.
 */
static __always_inline int tg_parse_length(struct tg_cursor *c, __u32 announced,
					   __u32 there)
{
	if (unlikely(!announced && there > 0xffff))
		announced = there;
	if (announced > there)
		return TG_REASON_TRUNCATED;
	c->left = announced;
	return 0;
}

static __always_inline int tg_parse_ipv4(struct tg_cursor *c,
					 struct tg_packet *p, __u32 there)
{
	struct tg_ipv4 *ip = c->at;
	__u32 header, frag;
	int reason;

	if ((void *)(ip + 1) > c->end)
		return TG_REASON_TRUNCATED;
	header = (ip->ver_ihl & 0xf) * 4;
	if (ip->ver_ihl >> 4 != 4 || header < sizeof(*ip))
		return TG_REASON_MALFORMED;
	reason = tg_parse_length(c, bpf_ntohs(ip->tot_len), there);
	if (reason)
		return reason;
	if (c->left < header)
		return TG_REASON_MALFORMED;
	frag = bpf_ntohs(ip->frag);
	if (ip->proto != TG_PROTO_TCP)
		return tg_other_ipv4(p, ip, c->end, header, c->left,
				     TG_REASON_NOT_SERVICE);
	if (frag & 0x1fff)
		return tg_other_ipv4(p, ip, c->end, header, c->left,
				     TG_REASON_FRAGMENT);
	p->ipv6 = 0;
	p->dscp = ip->tos >> 2;
	p->src[0] = p->src[1] = p->dst[0] = p->dst[1] = 0;
	p->src[2] = p->dst[2] = bpf_htonl(0xffff);
	p->src[3] = ip->src;
	p->dst[3] = ip->dst;
	c->left -= header;
	c->at += header;
	p->data = p->l3 + header;
	return tg_parse_tcp(c, p, frag & 0x2000);
}

/* Headers that may stand before TCP: all numbers are below 64. */
#define TG_EXTENSION_SET (1ULL << TG_PROTO_HOP | 1ULL << TG_PROTO_ROUTING | \
			  1ULL << TG_PROTO_FRAGMENT | 1ULL << TG_PROTO_AH | \
			  1ULL << TG_PROTO_DSTOPTS)

static __always_inline int tg_is_extension(__u8 next)
{
	return next < 64 && TG_EXTENSION_SET >> next & 1;
}

/* Protocols behind which TCP may hide, but not for us. */
static __always_inline int tg_is_unreadable(__u8 next)
{
	return next == TG_PROTO_ESP || next == TG_PROTO_NONE ||
	       next == TG_PROTO_MOBILITY || next == TG_PROTO_HIP ||
	       next == TG_PROTO_SHIM6;
}

/*
 * The walk over extension headers reads by offset through a helper and runs in
 * bpf_loop: with packet pointers the verifier would try every sequence of
 * headers by itself. Hardly any packet comes here.
 */
struct tg_walk {
	void *ctx;
	__u32 at;	/* offset in the frame */
	__u32 left;	/* as in struct tg_cursor */
	__u32 length;	/* of the IP packet */
	__u32 next;	/* what stands there */
	__u32 fragment;	/* 1: the first of several */
	__u32 reason;
};

/* Too short: in a first fragment the rest is elsewhere. */
static __always_inline __u32 tg_walk_short(const struct tg_walk *w)
{
	return w->fragment ? TG_REASON_FRAGMENT : TG_REASON_MALFORMED;
}

static long tg_walk_ext(__u32 i, struct tg_walk *w)
{
	struct tg_ext ext;
	__u32 length;

	if (!tg_is_extension(w->next))
		return 1;
	if (w->left < sizeof(ext)) {
		w->reason = tg_walk_short(w);
		return 1;
	}
	if (TG_LOAD_BYTES(w->ctx, w->at, &ext, sizeof(ext))) {
		w->reason = TG_REASON_TRUNCATED;
		return 1;
	}
	length = (ext.len + 1) * 8;
	if (w->next == TG_PROTO_ROUTING && ext.frag & bpf_htons(0xff)) {
		/* segments left: this is not its last destination */
		w->reason = TG_REASON_EXTENSIONS;
		return 1;
	}
	if (w->next == TG_PROTO_AH) {
		length = (ext.len + 2) * 4;
	} else if (w->next == TG_PROTO_FRAGMENT) {
		length = sizeof(ext);
		if (ext.frag & bpf_htons(0xfff8)) {
			w->next = ext.next;
			w->reason = TG_REASON_FRAGMENT;
			return 1;
		}
		w->fragment |= bpf_ntohs(ext.frag) & 1;
	}
	if (w->left < length) {
		w->reason = tg_walk_short(w);
		return 1;
	}
	w->next = ext.next;
	w->left -= length;
	w->at += length;
	return 0;
}

static __always_inline int tg_walk_tcp(struct tg_walk *w, struct tg_packet *p)
{
	struct tg_tcp tcp;

	if (w->left < sizeof(tcp))
		return tg_walk_short(w);
	if (TG_LOAD_BYTES(w->ctx, w->at, &tcp, sizeof(tcp)))
		return TG_REASON_TRUNCATED;
	p->data = w->at;
	return tg_read_tcp(&tcp, w->left, p, w->fragment);
}

/* The walk has ended: `w->next` is told if it is no extension header. */
static __always_inline int tg_walk_other(struct tg_walk *w,
					 struct tg_packet *p, int reason)
{
	if (tg_is_extension(w->next))
		return reason;
	return tg_other_walked(p, w->ctx, w->at, w->left, w->next, w->length,
			       reason);
}

/*
 * `left` bytes behind the header of IPv6. A function of its own: the stack of the walk
 * is not needed beside what follows the parser.
 */
static __noinline int tg_parse_extensions(void *ctx, struct tg_packet *p,
					  __u32 left, __u32 next)
{
	struct tg_walk w = {
		.ctx = ctx,
		.at = p->l3 + sizeof(struct tg_ipv6),
		.left = left,
		.length = left + sizeof(struct tg_ipv6),
		.next = next,
	};

	bpf_loop(TG_EXTENSIONS_MAX, tg_walk_ext, &w, 0);
	if (w.reason)
		return tg_walk_other(&w, p, w.reason);
	if (w.next == TG_PROTO_TCP)
		return tg_walk_tcp(&w, p);
	return tg_walk_other(&w, p, tg_is_extension(w.next) ||
				    tg_is_unreadable(w.next) ?
			     TG_REASON_EXTENSIONS : TG_REASON_NOT_SERVICE);
}

static __always_inline int tg_parse_ipv6(struct tg_cursor *c, void *ctx,
					 struct tg_packet *p, __u32 there)
{
	struct tg_ipv6 *ip = c->at;
	__u32 flow;
	int reason;

	if ((void *)(ip + 1) > c->end)
		return TG_REASON_TRUNCATED;
	flow = bpf_ntohl(ip->flow);
	if (flow >> 28 != 6)
		return TG_REASON_MALFORMED;
	reason = tg_parse_length(c, bpf_ntohs(ip->payload_len),
				 there - sizeof(*ip));
	if (reason)
		return reason;
	p->ipv6 = 1;
	p->dscp = (flow >> 22) & 0x3f;
	__builtin_memcpy(p->src, ip->src, sizeof(p->src));
	__builtin_memcpy(p->dst, ip->dst, sizeof(p->dst));
	if (likely(ip->next == TG_PROTO_TCP)) {
		c->at = ip + 1;
		p->data = p->l3 + sizeof(*ip);
		return tg_parse_tcp(c, p, 0);
	}
	if (!tg_is_extension(ip->next))
		return tg_other_ipv6(p, ip, c->end, c->left,
				     tg_is_unreadable(ip->next) ?
			TG_REASON_EXTENSIONS : TG_REASON_NOT_SERVICE);
	return tg_parse_extensions(ctx, p, c->left, ip->next);
}

/* Zero, or the reason to pass the packet without evaluating it. */
static __always_inline int tg_parse(void *ctx, const struct tg_view *view,
				    struct tg_packet *p)
{
	struct tg_cursor c = { .at = view->data, .end = view->end };
	__be16 type;
	__u32 there;
	int reason;

	reason = tg_parse_eth(&c, p, &type);
	if (reason)
		return reason;
	there = view->length - p->l3;
	if (type == bpf_htons(TG_ETH_IPV4))
		return tg_parse_ipv4(&c, p, there);
	if (type == bpf_htons(TG_ETH_IPV6))
		return tg_parse_ipv6(&c, ctx, p, there);
	return TG_REASON_NOT_IP;
}

#endif
