/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which service, which class. All tables belong to one slot, which a packet
 * reads once: a reload fills the other slot and then flips the number.
 */
#ifndef TG_CLASSIFY_H
#define TG_CLASSIFY_H

#include "maps.h"
#include "packet.h"

/* The classification in force. */
struct tg_class_view {
	const struct tg_table *table;
	__u8 slot;
	__u8 released;
};

static __always_inline int tg_classification(struct tg_class_view *view)
{
	const struct tg_control *control = tg_at(&tg_control, 0);

	if (!control)
		return -1;
	view->slot = READ_ONCE(control->slot) & (TG_SLOTS - 1);
	view->released = READ_ONCE(control->released);
	view->table = tg_at(&tg_tables, view->slot);
	return view->table ? 0 : -1;
}

/* TG_PORT_EXACT, TG_PORT_ANY, both or none. */
static __always_inline int tg_port(const struct tg_class_view *view, __u16 port)
{
	return view->table->ports[port >> 2] >> ((port & 3) * 2) & 3;
}

static __always_inline int tg_is_mapped(const __be32 *addr)
{
	return !addr[0] && !addr[1] && addr[2] == bpf_htonl(0xffff);
}

static __always_inline int tg_listener_fits(const struct tg_listener *l,
					    const __be32 *addr)
{
	if (l->any)
		return l->any & (tg_is_mapped(addr) ? TG_LISTENER_IPV4 :
						      TG_LISTENER_IPV6);
	return l->addr[3] == addr[3] && l->addr[2] == addr[2] &&
	       l->addr[1] == addr[1] && l->addr[0] == addr[0];
}

/* What listens somewhere: tg_listen in one word, or one of these. */
#define TG_LISTEN_NONE (-1)
#define TG_LISTEN_UNKNOWN (-2)

static __always_inline int tg_listen_word(const struct tg_listen *listen)
{
	return listen->service | listen->flags << 8;
}

static __always_inline __u8 tg_listen_service(int listen)
{
	return listen & (TG_SERVICES_MAX - 1);
}

static __always_inline __u8 tg_listen_flags(int listen)
{
	return listen >> 8;
}

/*
 * The listener that a packet comes to. Not static: the verifier looks at it
 * once; masks bound what it cannot follow.
 */
__noinline int tg_listener_of(__u32 slot, const struct tg_packet *p)
{
	const struct tg_listeners *all = tg_at(&tg_listeners, slot);
	const struct tg_listener *listener;
	__u32 at;

	if (!all || !p)
		return TG_LISTEN_UNKNOWN;
	at = all->first[p->dport];
	if (!at)
		return TG_LISTEN_UNKNOWN;
	for (int i = 0; i < TG_LISTENERS_AT; i++) {
		listener = &all->listener[at++ & (TG_LISTENERS_MAX - 1)];
		if (tg_listener_fits(listener, p->dst))
			return tg_listen_word(&listener->listen);
		if (!listener->more)
			break;
	}
	return TG_LISTEN_NONE;
}

/* The same by the hash: exact, then any address. */
static __always_inline const struct tg_listen *
tg_listen_search(const struct tg_class_view *view, const struct tg_packet *p,
		 int kinds)
{
	struct tg_listen_key key = {
		.addr = { p->dst[0], p->dst[1], p->dst[2], p->dst[3] },
		.port = p->dport,
		.proto = TG_PROTO_TCP,
		.slot = view->slot,
	};
	const struct tg_listen *listen;

	if (kinds & TG_PORT_EXACT) {
		listen = bpf_map_lookup_elem(&tg_listens, &key);
		if (listen)
			return listen;
	}
	if (!(kinds & TG_PORT_ANY))
		return 0;
	if (tg_is_mapped(p->dst))
		key.addr[3] = 0;
	else
		__builtin_memset(key.addr, 0, sizeof(key.addr));
	return bpf_map_lookup_elem(&tg_listens, &key);
}

/* What listens where a packet goes to, as tg_listen_word. */
static __always_inline int tg_listen_of(const struct tg_class_view *view,
					const struct tg_packet *p, int kinds)
{
	int listener = tg_listener_of(view->slot, p);
	const struct tg_listen *listen;

	if (likely(listener != TG_LISTEN_UNKNOWN))
		return listener;
	listen = tg_listen_search(view, p, kinds);
	return listen ? tg_listen_word(listen) : TG_LISTEN_NONE;
}

/* Value of the longest prefix of the source; 0 where there is none. */
static __always_inline const __u32 *
tg_prefix_of(const struct tg_class_view *view, const struct tg_packet *p,
	     __u8 service)
{
	struct tg_prefix_key key = {
		.bits = TG_PREFIX_BITS_MAX,
		.slot = view->slot,
		.service = service,
	};

	__builtin_memcpy(key.addr, p->src, sizeof(key.addr));
	return bpf_map_lookup_elem(&tg_prefixes, &key);
}

/* Not the number of a row: the trie must be asked. */
#define TG_SRC_UNKNOWN TG_SRC_ROWS

/*
 * The row of an IPv4 source. Not static: the verifier looks at it once; masks
 * bound what it cannot follow.
 */
__noinline int tg_src_row_of(__u32 slot, __be32 source)
{
	const struct tg_src_prefixes *prefixes = tg_at(&tg_src_prefixes, slot);
	__u32 address = bpf_ntohl(source), entry;

	if (!prefixes)
		return TG_SRC_UNKNOWN;
	entry = prefixes->root[address >> 16];
	if (entry & TG_SRC_BLOCK)
		entry = prefixes->block[entry & (TG_SRC_BLOCKS - 1)]
				       [address >> 8 & 0xff];
	if (entry & TG_SRC_BLOCK)
		entry = prefixes->block[entry & (TG_SRC_BLOCKS - 1)]
				       [address & 0xff];
	return entry & (TG_SRC_ROWS - 1);
}

static __always_inline __u32 tg_src_row(const struct tg_class_view *view,
					const struct tg_packet *p)
{
	if (p->ipv6 || !(view->table->flags & TG_TABLE_SRC_PREFIXES))
		return TG_SRC_UNKNOWN;
	return tg_src_row_of(view->slot, p->src[3]);
}

static __always_inline int tg_exempt(const struct tg_class_view *view,
				     const struct tg_packet *p,
				     int listen, __u32 src_row)
{
	if (tg_listen_flags(listen) & TG_LISTEN_EXEMPT)
		return 1;
	if (src_row < TG_SRC_ROWS)
		return src_row == TG_SRC_EXEMPT;
	return view->table->flags & TG_TABLE_EXEMPT &&
	       tg_prefix_of(view, p, TG_SERVICES_MAX);
}

/* The class of a row for a service; not static for the same reason. */
__noinline int tg_src_class(__u32 slot, __u32 row, __u32 service)
{
	const struct tg_src_prefixes *prefixes = tg_at(&tg_src_prefixes, slot);

	return prefixes ? prefixes->row[row & (TG_SRC_ROWS - 1)]
				  .class[service & (TG_SERVICES_MAX - 1)] : 0;
}

/* The class that the source has by its prefix; 0: none. */
static __always_inline __u32
tg_class_of_source(const struct tg_class_view *view, const struct tg_packet *p,
		   __u8 index, __u32 src_row)
{
	const __u32 *class;

	if (src_row < TG_SRC_ROWS)
		return tg_src_class(view->slot, src_row, index);
	class = tg_prefix_of(view, p, index);
	return class ? *class : 0;
}

static __always_inline __u32 tg_class_of(const struct tg_class_view *view,
					 const struct tg_packet *p,
					 const struct tg_service *service,
					 __u8 index, __u32 src_row)
{
	__u32 class = 0;

	if (service->flags & TG_SERVICE_PREFIXES)
		class = tg_class_of_source(view, p, index, src_row);
	if (class)
		return class & (TG_CLASSES_MAX - 1);
	if (settings.trust_dscp && service->flags & TG_SERVICE_DSCP)
		return service->dscp[p->dscp & (TG_DSCP_MAX - 1)] &
		       (TG_CLASSES_MAX - 1);
	return 0;
}

#endif
