/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A packet as everything after the parser knows it. */
#ifndef TG_PACKET_H
#define TG_PACKET_H

#include "base.h"
#include "wire.h"

/* What a hook hands over: where the frame lies, and how long it really is. */
struct tg_view {
	void *data;
	void *end;		/* of what can be read directly */
	__u32 length;		/* of the frame, unread parts included */
};

#define TG_OTHER_IP 1		/* addresses and protocol are known */
#define TG_OTHER_PORTS 2	/* ports, too */

/* What is known of a packet that is passed for a reason (packet/other.h). */
struct tg_other {
	__u32 length;		/* of the IP packet */
	__u8 proto;
	__u8 known;		/* TG_OTHER_…; 0: nothing */
	__u16 header;		/* of IP and UDP, where ports are known */
};

struct tg_packet {
	__be32 src[4];
	__be32 dst[4];
	union {
		struct {
			__u32 seq;
			__u32 ack;
		};
		struct tg_other other;	/* where there is a reason */
	};
	__u32 payload;		/* bytes of TCP payload */
	__u16 sport;
	__u16 dport;
	__u16 l3;		/* offset of the IP header */
	__u8 ipv6;
	__u8 dscp;
	__u8 flags;		/* of TCP */
	__u8 group;		/* 1: sent to, or from, a link-layer group address */
	__u16 data;		/* offset of the payload in the frame */
};

/* What is said of a packet before it is evaluated, beside the reasons to pass. */
#define TG_REFUSED_EARLY (TG_REASONS_MAX + 1)	/* it is dropped */
#define TG_COUNTED_EARLY (TG_REASONS_MAX + 2)	/* it passes, and is counted */

/* New work opens with a SYN and nothing that contradicts it. */
static __always_inline int tg_is_syn(const struct tg_packet *p)
{
	return (p->flags & (TG_TCP_SYN | TG_TCP_ACK | TG_TCP_RST |
			    TG_TCP_FIN)) == TG_TCP_SYN;
}

#endif
