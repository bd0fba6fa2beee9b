/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Sources of a service: what each of them does with its connections. An IPv4
 * address is one, an IPv6 /64 is one. A source has a place only after one of its
 * clients completed a handshake, so that nobody can fill the table, or be
 * evaluated, under an address at which it does not receive.
 *
 * Its connections hold the place: it is not given away while one is open. So the
 * number of a place that a connection remembers (tg_flow_sources) stays right,
 * and the counts of what is open are exact. Where all places of a set are held, a
 * connection has no source: nothing is known of it, and no limit applies.
 *
 *	held	open, and the client has sent no request, or sends one slowly
 *	good	connections that got a response		} lately: halved when
 *	bad	connections that ended while held	} there are many
 *
 * A connection that sent its request and waits counts for its source, not against
 * it: while a server hangs, no client's exchanges complete.
 */
#ifndef TG_SOURCE_H
#define TG_SOURCE_H

#include "../packet/hash.h"
#include "../packet/maps.h"

#define TG_SOURCE_OPEN ((1ULL << TG_SOURCE_OPEN_BITS) - 1)
#define TG_SOURCE_TAG (~TG_SOURCE_OPEN)
#define TG_SOURCE_WAY_MASK (TG_SOURCE_WAYS - 1)
#define TG_SOURCE_NONE 0	/* no place */
#define TG_SOURCE_TRIES 3	/* other CPUs open connections of it, too */

/*
 * How many ended connections are remembered: so many, and this many times those
 * that are held, so that a source that completes most of its connections is seen
 * to do so however long the others stay.
 */
#define TG_SOURCE_MEMORY 128
#define TG_SOURCE_MEMORY_HELD 8

/*
 * One client has no more connections at once: 6 are what browsers open to a
 * server with HTTP/1.1.
 */
#define TG_SOURCE_SINGLE_OPEN 6
/* A client has no more requests on a connection, on average. */
#define TG_SOURCE_SINGLE_EXCHANGES 8
/* A handshake proves for so long that a source receives at its address. */
#define TG_SOURCE_PROVED_NS (300 * TG_NS_PER_S)

/*
 * The key of a source of the service that has this gauge. Never zero. Not static:
 * the verifier looks at it once.
 */
__noinline __u64 tg_source_key(const struct tg_packet *p, __u32 gauge)
{
	__u64 h;

	if (!p)
		return 1ULL << TG_SOURCE_OPEN_BITS;
	if (p->ipv6)
		h = tg_nh(p->src[0], p->src[1], settings.key[1]) +
		    tg_nh(gauge, TG_SOURCE_WAYS, settings.key[2]);
	else
		h = tg_nh(p->src[3], gauge, settings.key[0]);
	/* a word in use is not zero, whatever is open */
	return tg_spread(h ^ settings.key[5]) | 1ULL << TG_SOURCE_OPEN_BITS;
}

static __always_inline __u32 tg_source_index(__u64 key)
{
	return (__u32)key & settings.source_mask;
}

static __always_inline struct tg_source *tg_source_at(__u32 place)
{
	return place ? tg_at(&tg_sources, place - 1) : 0;
}

static __always_inline int tg_source_is(__u64 word, __u64 key)
{
	return !((word ^ key) & TG_SOURCE_TAG);
}

/*
 * The place of a source, as 1 + it; TG_SOURCE_NONE if it has none. `open` is how
 * many connections of it are open then.
 */
static __always_inline __u32 tg_source_search(const struct tg_source_set *set,
					      __u64 key, __u32 *open)
{
	__u32 index = tg_source_index(key);

	for (__u32 way = 0; way < TG_SOURCE_WAYS; way++) {
		__u64 word = READ_ONCE(set->word[way]);

		if (tg_source_is(word, key)) {
			*open = word & TG_SOURCE_OPEN;
			return 1 + index * TG_SOURCE_WAYS + way;
		}
	}
	return TG_SOURCE_NONE;
}

/* The same by the key alone. Not static: the verifier looks at it once. */
__noinline int tg_source_find(__u64 key, __u32 *open)
{
	const struct tg_source_set *set =
		tg_at(&tg_source_sets, tg_source_index(key));

	return set && open ? tg_source_search(set, key, open) : TG_SOURCE_NONE;
}

/* Since when a place that nobody holds was last used. */
static __always_inline __u64 tg_source_used_ns(__u32 place)
{
	const struct tg_source *source = tg_source_at(place);

	return source ? READ_ONCE(source->proved_ns) : ~0ULL;
}

/*
 * The way of a set for a source that has none: a free one, else the one that was
 * not used for longest and that nobody holds; TG_SOURCE_WAYS: there is none.
 */
static __always_inline __u32 tg_source_room(const struct tg_source_set *set,
					    __u32 index)
{
	__u64 oldest_ns = ~0ULL, used_ns;
	__u32 room = TG_SOURCE_WAYS;

	for (__u32 way = 0; way < TG_SOURCE_WAYS; way++) {
		__u64 word = READ_ONCE(set->word[way]);

		if (!word)
			return way;
		if (word & TG_SOURCE_OPEN)
			continue;
		used_ns = tg_source_used_ns(1 + index * TG_SOURCE_WAYS + way);
		if (used_ns < oldest_ns) {
			oldest_ns = used_ns;
			room = way;
		}
	}
	return room;
}

/* Another source takes a place: nothing is open, so nothing of it is held. */
static __always_inline void tg_source_fresh(struct tg_source *source)
{
	source->peak = source->good = source->bad = source->exchanges = 0;
	source->answered_ns = source->spare = 0;
}

/* A handshake of a source was completed: its place, held by one connection more. */
static __always_inline __u32 tg_source_hold(__u64 key, __u32 *open)
{
	__u32 index = tg_source_index(key), way, place;
	struct tg_source_set *set = tg_at(&tg_source_sets, index);
	struct tg_source *source;
	__u64 word;

	if (!set)
		return TG_SOURCE_NONE;
	for (int i = 0; i < TG_SOURCE_TRIES; i++) {
		place = tg_source_search(set, key, open);
		way = place ? (place - 1) & TG_SOURCE_WAY_MASK :
			      tg_source_room(set, index);
		if (way >= TG_SOURCE_WAYS)
			return TG_SOURCE_NONE;
		word = READ_ONCE(set->word[way]);
		if (!!place != tg_source_is(word, key) ||
		    (!place && word & TG_SOURCE_OPEN) ||
		    (word & TG_SOURCE_OPEN) == TG_SOURCE_OPEN)
			continue;
		*open = place ? (word & TG_SOURCE_OPEN) + 1 : 1;
		if (__sync_val_compare_and_swap(
			    &set->word[way], word,
			    (key & TG_SOURCE_TAG) | *open) != word)
			continue;
		source = tg_source_at(1 + index * TG_SOURCE_WAYS + way);
		if (source && !place)
			tg_source_fresh(source);
		return 1 + index * TG_SOURCE_WAYS + way;
	}
	return TG_SOURCE_NONE;
}

/*
 * A handshake was completed: the place of its source, as 1 + it, which the
 * connection holds until tg_source_close(). Not static: the verifier looks at it
 * once.
 */
__noinline int tg_source_open(const struct tg_packet *p, __u64 key, __u32 gauge,
			      __u64 now_ns)
{
	struct tg_source *source;
	__u32 open = 0, place;

	if (!p)
		return TG_SOURCE_NONE;
	place = tg_source_hold(key, &open);
	source = tg_source_at(place);
	if (!source)
		return TG_SOURCE_NONE;
	source->proved_ns = now_ns;
	source->gauge = gauge;
	if (open > source->peak)
		source->peak = open;
	__builtin_memcpy(source->addr, p->src, sizeof(source->addr));
	if (p->ipv6)
		__builtin_memset(source->addr + 8, 0, 8);
	return place;
}

/* A connection does not hold its source's place any more. */
static __always_inline void tg_source_close(__u32 place)
{
	struct tg_source_set *set;

	if (!place)
		return;
	set = tg_at(&tg_source_sets, (place - 1) / TG_SOURCE_WAYS);
	if (set)
		__sync_fetch_and_add(
			&set->word[(place - 1) & TG_SOURCE_WAY_MASK], -1);
}

/* More or fewer of a source's connections are silent or slow. */
static __always_inline void tg_source_held(__u32 place, int more)
{
	struct tg_source *source = tg_source_at(place);

	if (source && more)
		__sync_fetch_and_add(&source->held, more);
}

/* 1: a handshake of its was completed lately. */
static __always_inline int tg_source_proved(const struct tg_source *source,
					    __u64 now_ns)
{
	return tg_elapsed_ns(now_ns, READ_ONCE(source->proved_ns)) <=
	       TG_SOURCE_PROVED_NS;
}

/* Forgets half of what a source did, once that is much. */
static __always_inline void tg_source_forget(struct tg_source *source)
{
	__u64 memory = TG_SOURCE_MEMORY;

	if (source->held > 0)
		memory += (__u64)source->held * TG_SOURCE_MEMORY_HELD;
	if ((__u64)source->good + source->bad <= memory)
		return;
	source->good /= 2;
	source->bad /= 2;
	source->exchanges /= 2;
	source->peak -= source->peak / 4;
}

/* 1: more of its connections are completed, or wait for the server, than not. */
static __always_inline int tg_source_completes(const struct tg_source *source,
					       __u32 open)
{
	__u64 held = source->held > 0 ? source->held : 0;

	return (__u64)source->good + open > (__u64)source->bad + 2 * held;
}

/*
 * 1: a source holds so many silent or slow connections that it may open no more,
 * and its exchanges do not complete.
 */
static __always_inline int tg_source_over(__u64 key, __u32 max)
{
	const struct tg_source *source;
	__u32 open = 0;

	source = tg_source_at(tg_source_find(key, &open));
	return source && source->held >= 0 && (__u32)source->held >= max &&
	       !tg_source_completes(source, open);
}

/*
 * 1: a source that has had a response, and that looks like one client: what is
 * not known is taken for a proxy. Not static: the verifier looks at it once.
 */
__noinline int tg_source_single(__u64 key)
{
	const struct tg_source *source;
	__u32 open = 0;

	source = tg_source_at(tg_source_find(key, &open));
	return source && source->good &&
	       source->peak <= TG_SOURCE_SINGLE_OPEN &&
	       open <= TG_SOURCE_SINGLE_OPEN &&
	       source->exchanges <=
		       (__u64)source->good * TG_SOURCE_SINGLE_EXCHANGES;
}

#endif
