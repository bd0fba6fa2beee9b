/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Headers as they stand on the wire, in network order. */
#ifndef TG_WIRE_H
#define TG_WIRE_H

#include "base.h"

#define TG_ETH_IPV4 0x0800
#define TG_ETH_IPV6 0x86dd
#define TG_ETH_8021Q 0x8100
#define TG_ETH_8021AD 0x88a8

#define TG_PROTO_HOP 0
#define TG_PROTO_TCP 6
#define TG_PROTO_UDP 17
#define TG_PROTO_IPV6 41
#define TG_PROTO_ROUTING 43
#define TG_PROTO_FRAGMENT 44
#define TG_PROTO_ESP 50
#define TG_PROTO_AH 51
#define TG_PROTO_ICMPV6 58
#define TG_PROTO_NONE 59
#define TG_PROTO_DSTOPTS 60
#define TG_PROTO_MOBILITY 135
#define TG_PROTO_HIP 139
#define TG_PROTO_SHIM6 140

#define TG_TCP_FIN 0x01
#define TG_TCP_SYN 0x02
#define TG_TCP_RST 0x04
#define TG_TCP_PSH 0x08
#define TG_TCP_ACK 0x10

struct tg_eth {
	__u8 dst[6];
	__u8 src[6];
	__be16 type;
};

struct tg_vlan {
	__be16 tci;
	__be16 type;
};

struct tg_ipv4 {
	__u8 ver_ihl;
	__u8 tos;
	__be16 tot_len;
	__be16 id;
	__be16 frag;
	__u8 ttl;
	__u8 proto;
	__be16 check;
	__be32 src;
	__be32 dst;
};

struct tg_ipv6 {
	__be32 flow;
	__be16 payload_len;
	__u8 next;
	__u8 hops;
	__be32 src[4];
	__be32 dst[4];
};

/* The common head of extension headers. */
struct tg_ext {
	__u8 next;
	__u8 len;
	__be16 frag;	/* in a fragment header: offset and flags */
	__u32 rest;
};

struct tg_tcp {
	__be16 sport;
	__be16 dport;
	__be32 seq;
	__be32 ack;
	__u8 offset;
	__u8 flags;
	__be16 window;
	__be16 check;
	__be16 urgent;
};

struct tg_udp {
	__be16 sport;
	__be16 dport;
	__be16 length;
	__be16 check;
};

#define TG_TCP_OFFSET_AT 12	/* of `offset` in the header */
#define TG_IPV6_NEXT_AT 6	/* of `next` in the header */

#endif
