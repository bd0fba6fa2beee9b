/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Marks in band (papers/netdraino.txt, section 4.1), on two bits of the DSCP of IPv4:
 *
 *	a congested router	sets RCN on random packets that go out where it is congested
 *	a server that refuses	notes who sent RCN, and sets SCN on a packet back
 *	a router that sees SCN	notes the server (CServs), for which see option.h
 *
 * So RCN says that a packet went through a queue that is too long. It is set before the
 * packet is queued.
 *
 * What the router notes makes its daemon send a notice sooner, and adds options to
 * packets; limits come in sessions and signed, or not at all. Only a DSCP
 * without other bits is marked or read. Tables are by hash: a flood of addresses
 * makes others be forgotten, which is harmless.
 */
#ifndef TG_MARK_H
#define TG_MARK_H

#include "option.h"

#define TG_MARK_FRESH_NS 1000000000ULL	/* who was marked is told so for so long */
#define TG_MARK_CHECK_AT 10		/* of the checksum in the header */
#define TG_MARK_TOS_AT 1

/* What the daemon says, if this is a packet of IPv4; else nothing. */
static __always_inline const struct tg_marks *
tg_mark_read(struct __sk_buff *skb, struct tg_mark *m)
{
	const struct tg_marks *marks = tg_mark_at(&tg_marks, 0);
	int l3 = tg_ipv4_at(skb);

	if (!marks || l3 < 0 ||
	    bpf_skb_load_bytes(skb, l3, &m->ip, sizeof(m->ip)) ||
	    m->ip.ver_ihl >> 4 != 4)
		return 0;
	m->l3 = l3;
	m->dscp = m->ip.tos >> 2;
	m->now_ns = bpf_ktime_get_ns();
	return marks;
}

/* 1: it may be marked or is, and is of no class. */
static __always_inline int tg_mark_may(const struct tg_mark *m,
				       const struct tg_marks *marks)
{
	return !(m->dscp & ~(marks->router | marks->server));
}

/* The bytes of the header that change make up for each other in skb->csum. */
static __always_inline void tg_mark_put(struct __sk_buff *skb,
					const struct tg_mark *m, __u32 dscp)
{
	__u8 tos = dscp << 2 | (m->ip.tos & TG_IPV4_ECN);
	__u32 from = bpf_htons((__u16)(m->ip.ver_ihl << 8 | m->ip.tos));
	__u32 to = bpf_htons((__u16)(m->ip.ver_ihl << 8 | tos));

	if (tos == m->ip.tos ||
	    bpf_l3_csum_replace(skb, m->l3 + TG_MARK_CHECK_AT, from, to, 2))
		return;
	bpf_skb_store_bytes(skb, m->l3 + TG_MARK_TOS_AT, &tos, sizeof(tos), 0);
}

static __always_inline void tg_mark_note(struct tg_mark_seen *seen, __u32 addr,
					 __u64 now_ns)
{
	if (!seen)
		return;
	seen->addr = addr;
	seen->at_ns = now_ns;
}

/* A packet comes in. */
static __always_inline void tg_mark_in(struct __sk_buff *skb)
{
	struct tg_mark m = {};
	const struct tg_marks *marks = tg_mark_read(skb, &m);
	__u32 slot = tg_mark_slot(m.ip.src, TG_MARK_SOURCES);

	int refuses;

	if (!marks)
		return;
	refuses = marks->overloaded && m.now_ns <= marks->until_ns;
	if (refuses && tg_mark_may(&m, marks) && m.dscp & marks->router)
		tg_mark_note(tg_mark_at(&tg_mark_sources, slot), m.ip.src,
			     m.now_ns);
	if (marks->ends)
		tg_option_in(skb, &m, refuses);
}

static __always_inline int tg_mark_congested(__u32 ifindex, __u64 now_ns)
{
	const __u64 *until_ns = bpf_map_lookup_elem(&tg_mark_links, &ifindex);

	return until_ns && now_ns <= READ_ONCE(*until_ns);
}

/* A packet goes out to servers. */
static __always_inline void tg_mark_to_servers(struct __sk_buff *skb)
{
	struct tg_mark m = {};
	const struct tg_marks *marks = tg_mark_read(skb, &m);
	__u32 draws, adds;

	if (!marks)
		return;
	draws = marks->chance && bpf_get_prandom_u32() < marks->chance &&
		tg_mark_may(&m, marks);
	adds = marks->adds && bpf_get_prandom_u32() < marks->adds;
	if (!(draws | adds) || !tg_mark_congested(skb->ifindex, m.now_ns))
		return;
	if (draws)
		tg_mark_put(skb, &m, m.dscp | marks->router);
	if (adds)
		tg_option_out(skb, &m, marks);
}

/* 1: the packet goes to somebody who was marked, and has not been told. */
static __always_inline int tg_mark_due(const struct tg_mark *m)
{
	__u32 slot = tg_mark_slot(m->ip.dst, TG_MARK_SOURCES);
	struct tg_mark_seen *seen = tg_mark_at(&tg_mark_sources, slot);

	if (!seen || !seen->addr || seen->addr != m->ip.dst)
		return 0;
	seen->addr = 0;
	return m->now_ns - seen->at_ns <= TG_MARK_FRESH_NS;
}

/* A packet goes out to clients; out of the domain at a border. */
static __always_inline void tg_mark_to_clients(struct __sk_buff *skb)
{
	struct tg_mark m = {};
	const struct tg_marks *marks = tg_mark_read(skb, &m);
	__u32 slot = tg_mark_slot(m.ip.src, TG_MARK_SERVERS);
	__u32 dscp = m.dscp;

	if (!marks || !tg_mark_may(&m, marks))
		return;
	if (m.dscp & marks->server)
		tg_mark_note(tg_mark_at(&tg_mark_servers, slot), m.ip.src, m.now_ns);
	if (marks->overloaded && m.now_ns <= marks->until_ns && tg_mark_due(&m))
		dscp |= marks->server;
	tg_mark_put(skb, &m, settings.border ? 0 : dscp);
}

static __always_inline void tg_mark_out(struct __sk_buff *skb)
{
	if (settings.to_servers)
		tg_mark_to_servers(skb);
	else
		tg_mark_to_clients(skb);
}

#endif
