/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What hooks at tc share: the frame as the parser wants it. */
#ifndef TG_TC_H
#define TG_TC_H

#include "parse.h"

#define TG_TC_PULL 128	/* bytes: the headers of any ordinary packet */

/* Most packets have their headers in the linear part; for others, pull them. */
static __always_inline void tg_tc_view(struct __sk_buff *skb,
				       struct tg_view *view)
{
	__u32 wanted = skb->len < TG_TC_PULL ? skb->len : TG_TC_PULL;

	if ((void *)(long)skb->data + wanted > (void *)(long)skb->data_end)
		bpf_skb_pull_data(skb, wanted);
	view->data = (void *)(long)skb->data;
	view->end = (void *)(long)skb->data_end;
	view->length = skb->len;
}

/* A link without Ethernet header (tun, WireGuard, PPP): the packet begins with IP. */
static __always_inline int tg_parse_plain(struct __sk_buff *skb,
					  const struct tg_view *view,
					  struct tg_packet *p)
{
	struct tg_cursor c = { .at = view->data, .end = view->end };
	__u8 *first = view->data;

	if ((void *)(first + 1) > view->end)
		return TG_REASON_TRUNCATED;
	if (*first >> 4 == 4)
		return tg_parse_ipv4(&c, p, view->length);
	if (*first >> 4 == 6)
		return tg_parse_ipv6(&c, skb, p, view->length);
	return TG_REASON_NOT_IP;
}

static __always_inline int tg_tc_parse(struct __sk_buff *skb,
				       struct tg_packet *p)
{
	struct tg_view view;

	tg_tc_view(skb, &view);
	if (settings.link == TG_LINK_PLAIN)
		return tg_parse_plain(skb, &view, p);
	return tg_parse(skb, &view, p);
}

__noinline int tg_parse_frame(struct __sk_buff *skb, struct tg_packet *p)
{
	return p ? tg_tc_parse(skb, p) : TG_REASON_LOOKUP_FAILED;
}

#endif
