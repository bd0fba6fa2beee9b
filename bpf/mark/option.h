/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The option in band (papers/netdraino.txt, sections 6.1 and 6.2), number 158 (RFC
 * 4727), IPv4 only:
 *
 *	a congested router	adds an entry with its address to a share of the packets
 *				for servers that have said that they are overloaded
 *	a server that refuses	counts the entries of routers that its daemon names
 *	a host that is no router	takes out again what routers have put before all
 *				other options: who comes next finds what was sent
 *
 * An entry stands for 1/share packets that have passed that router and could have got
 * one. It is shown, and nothing is decided by it: whoever is inside the border can
 * write one.
 *
 * A packet gets none that is long (its way may have a smaller MTU), a fragment, several
 * in one (GSO), behind a VLAN tag in the frame, authenticated (AH), or has no room in
 * its header.
 */
#ifndef TG_OPTION_H
#define TG_OPTION_H

#include "seen.h"

#define TG_OPTION_PACKET_MAX 1000	/* bytes, before it is added */
#define TG_OPTION_SERVER_NS 5000000000LL	/* a server is in CServs for so long */
#define TG_OPTION_PAUSE_NS 1000000000ULL
#define TG_OPTION_WORDS 3
#define TG_OPTION_HEAD 4		/* bytes before the first entry */
#define TG_OPTION_ENTRY 8		/* bytes */
#define TG_OPTION_EACH 3		/* so many of them have room in a header */
#define TG_OPTIONS_BYTES_MAX 40
#define TG_IPV4_WORDS_MIN 5
#define TG_IPV4_WORDS_MAX 15
#define TG_IPV4_OPTION_END 0
#define TG_IPV4_OPTION_NOP 1
#define TG_IPV4_FRAGMENT 0x3fff		/* more follow, or some went before */
#define TG_IPV4_AH 51			/* covers its own header */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TG_MARK_ROUTERS);
	__type(key, __u32);
	__type(value, struct tg_mark_router);
} tg_mark_routers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tg_mark_counts);
} tg_mark_counts SEC(".maps");

/* The header, and the option behind it. */
struct tg_option_head {
	struct tg_ipv4 ip;
	struct tg_router_option option;
};
_Static_assert(sizeof(struct tg_option_head) == 32, "no padding");

static __always_inline __u32 tg_option_words(const struct tg_ipv4 *ip)
{
	return ip->ver_ihl & 0xf;
}

/* The kernel makes room behind the header that it knows of. */
static __always_inline int tg_option_here(__u32 l3)
{
	return l3 == (settings.link == TG_LINK_PLAIN ? 0 : sizeof(struct tg_eth));
}

static __always_inline int tg_option_fits(const struct __sk_buff *skb, __u32 l3,
					  const struct tg_ipv4 *ip)
{
	__u32 words = tg_option_words(ip);

	return tg_option_here(l3) && words >= TG_IPV4_WORDS_MIN &&
	       words <= TG_IPV4_WORDS_MAX - TG_OPTION_WORDS &&
	       bpf_ntohs(ip->tot_len) <= TG_OPTION_PACKET_MAX &&
	       skb->len <= TG_OPTION_PACKET_MAX + l3 &&
	       !(ip->frag & bpf_htons(TG_IPV4_FRAGMENT)) && !skb->gso_size &&
	       ip->proto != TG_IPV4_AH;
}

static __always_inline __u16 tg_option_fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/*
 * The header is so many words longer or shorter, and what has come or gone makes this
 * difference. The checksum says as much of its header as before (RFC 1624).
 */
static __always_inline void tg_option_lengthen(struct tg_ipv4 *ip, int words,
					       __u32 difference)
{
	__u16 first = bpf_htons((__u16)(ip->ver_ihl << 8 | ip->tos));
	__be16 tot_len = ip->tot_len;
	__u32 sum;

	ip->ver_ihl += words;
	ip->tot_len = bpf_htons((__u16)(bpf_ntohs(tot_len) + words * 4));
	sum = tg_option_fold(difference) + (__u16)~ip->check + (__u16)~first +
	      bpf_htons((__u16)(ip->ver_ihl << 8 | ip->tos)) +
	      (__u16)~tot_len + ip->tot_len;
	ip->check = ~tg_option_fold(sum);
}

/* 1: the packet has it. Its header begins at l3. */
static __always_inline int tg_option_put(struct __sk_buff *skb, __u32 l3,
					 const struct tg_router_option *option)
{
	struct tg_option_head head = { .option = *option };
	int bytes = sizeof(head.option);

	/* the daemon may be writing it */
	if (head.option.kind != TG_OPTION_KIND ||
	    bpf_skb_load_bytes(skb, l3, &head.ip, sizeof(head.ip)) ||
	    !tg_option_fits(skb, l3, &head.ip) ||
	    bpf_skb_adjust_room(skb, bytes, BPF_ADJ_ROOM_NET, 0))
		return 0;
	tg_option_lengthen(&head.ip, TG_OPTION_WORDS,
			   bpf_csum_diff(0, 0, (__be32 *)&head.option, bytes, 0));
	if (!bpf_skb_store_bytes(skb, l3, &head, sizeof(head), BPF_F_RECOMPUTE_CSUM))
		return 1;
	/* nothing was written: as it was */
	bpf_skb_adjust_room(skb, -bytes, BPF_ADJ_ROOM_NET, 0);
	return 0;
}

/* The server has said lately that it is overloaded. */
static __always_inline int tg_option_wanted(const struct tg_mark *m)
{
	__u32 slot = tg_mark_slot(m->ip.dst, TG_MARK_SERVERS);
	const struct tg_mark_seen *seen = tg_mark_at(&tg_mark_servers, slot);

	return seen && seen->addr && seen->addr == m->ip.dst &&
	       (__s64)(m->now_ns - seen->at_ns) <= TG_OPTION_SERVER_NS;
}

/* A packet goes out to servers where it is congested. */
static __always_inline void tg_option_out(struct __sk_buff *skb,
					  const struct tg_mark *m,
					  const struct tg_marks *marks)
{
	struct tg_mark_counts *counts = tg_mark_at(&tg_mark_counts, 0);

	if (!counts || !tg_option_wanted(m))
		return;
	if (tg_option_put(skb, m->l3, &marks->option))
		__sync_fetch_and_add(&counts->added, 1);
	else
		__sync_fetch_and_add(&counts->no_room, 1);
}

static __always_inline void tg_option_stranger(void)
{
	struct tg_mark_counts *counts = tg_mark_at(&tg_mark_counts, 0);

	if (counts)
		__sync_fetch_and_add(&counts->unknown_routers, 1);
}

static __always_inline void tg_option_entry(__u32 addr, __u32 says, __u64 now_ns)
{
	struct tg_mark_router *router = bpf_map_lookup_elem(&tg_mark_routers, &addr);
	__u32 share = bpf_ntohl(says) >> 16;
	__u32 sequence = bpf_ntohl(says) & 0xffff;

	if (!router)
		return tg_option_stranger();
	if (!share)
		return;
	if (router->sequence != sequence || router->share != share) {
		/* one of before, that was overtaken */
		if ((__s16)(sequence - router->sequence) < 0 &&
		    now_ns - router->at_ns < TG_OPTION_PAUSE_NS)
			return;
		router->sequence = sequence;
		router->share = share;
		router->entries = 0;
	}
	__sync_fetch_and_add(&router->entries, 1);
	router->at_ns = now_ns;
}

/* The options of a packet, and the way through them. */
struct tg_option_walk {
	__u32 word[TG_OPTIONS_BYTES_MAX / 4 + 1];	/* zero behind the last */
	__u64 now_ns;
	__u8 bytes;
	__u8 rest;	/* of the one that is walked, from here on */
	__u8 ours;
	__u8 begins;	/* its word */
};

/* One byte of the options; an entry begins at a word of its own. */
static long tg_option_byte(__u32 i, struct tg_option_walk *o)
{
	const __u8 *byte = (const __u8 *)o->word;
	__u32 word;

	/* what is compared must be what is used */
	barrier_var(i);
	if (i >= TG_OPTIONS_BYTES_MAX || i >= o->bytes)
		return 1;
	word = i / 4;
	/* a word begins at four times its number, for the verifier too */
	barrier_var(word);
	if (!o->rest) {
		if (byte[i] == TG_IPV4_OPTION_NOP)
			return 0;
		o->rest = byte[i + 1];
		if (byte[i] == TG_IPV4_OPTION_END || o->rest < 2 ||
		    i + o->rest > o->bytes)
			return 1;
		o->ours = byte[i] == TG_OPTION_KIND && !(i & 3);
		o->begins = word;
	} else if (o->ours && !(i & 3) && o->rest >= TG_OPTION_ENTRY &&
		   (word - o->begins) & 1) {
		tg_option_entry(o->word[word], o->word[word + 1], o->now_ns);
	}
	o->rest--;
	return 0;
}

/* Not static: the verifier looks at it once. */
__noinline int tg_option_read(struct __sk_buff *skb, __u32 at, __u32 last, __u64 now_ns)
{
	struct tg_option_walk o = { .now_ns = now_ns };

	/* what is compared must be what is used, and shows that it is not 0 */
	barrier_var(last);
	if (last >= TG_OPTIONS_BYTES_MAX ||
	    bpf_skb_load_bytes(skb, at, o.word, last + 1))
		return 0;
	o.bytes = last + 1;
	bpf_loop(TG_OPTIONS_BYTES_MAX, tg_option_byte, &o, 0);
	return 1;
}

/* 1: the first option was of a router, and is taken out. */
static __always_inline int tg_option_take(struct __sk_buff *skb, __u32 l3)
{
	struct tg_option_head head;
	int bytes = sizeof(head.option);

	if (bpf_skb_load_bytes(skb, l3, &head, sizeof(head)) ||
	    tg_option_words(&head.ip) < TG_IPV4_WORDS_MIN + TG_OPTION_WORDS ||
	    head.option.kind != TG_OPTION_KIND || head.option.length != bytes ||
	    bpf_ntohs(head.ip.tot_len) < tg_option_words(&head.ip) * 4 ||
	    bpf_skb_adjust_room(skb, -bytes, BPF_ADJ_ROOM_NET, 0))
		return 0;
	tg_option_lengthen(&head.ip, -TG_OPTION_WORDS,
			   bpf_csum_diff((__be32 *)&head.option, bytes, 0, 0, 0));
	return !bpf_skb_store_bytes(skb, l3, &head.ip, sizeof(head.ip),
				    BPF_F_RECOMPUTE_CSUM);
}

/* A packet comes in to a host that is no router. */
static __always_inline void tg_option_in(struct __sk_buff *skb,
					 const struct tg_mark *m, int refuses)
{
	__u32 words = tg_option_words(&m->ip);

	if (words <= TG_IPV4_WORDS_MIN)
		return;
	if (refuses)
		tg_option_read(skb, m->l3 + sizeof(m->ip),
			       (words - TG_IPV4_WORDS_MIN) * 4 - 1, m->now_ns);
	for (int i = 0; i < TG_OPTION_EACH && tg_option_here(m->l3); i++)
		if (!tg_option_take(skb, m->l3))
			break;
}

#endif
