/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Hot spots: the destinations that most new connections go to.
 *
 * Space-Saving (Metwally, Agrawal and El Abbadi, 2005): a key that is not in the list
 * takes the place of the one with the fewest hits, and goes on from its count. Of n
 * hits and m places
 *	count - over <= hits of the key <= count, and over <= n / m
 * so each key with more than n / m hits is in the list, whatever else arrives: no
 * crowd of rare destinations can hide a hot one, and a key whose count - over is
 * above a share of n is hot for certain. Several may be. Once an interval all counts
 * are halved (tg_hot_fade), and the bounds hold for the halved hits.
 *
 * As published (papers/news.txt, section 3.2): the sampled key is hashed to one
 * entry; an entry that is not hit for a while is free for another key; the one with
 * most hits is the hot spot (tg_hot_aged_…).
 *
 * The list also knows who was admitted, for the published rule on bystanders.
 * Zero is fresh; the key 0 is nobody. One CPU at a time: a lock, or a list for each.
 */
#ifndef TG_HOTSPOT_H
#define TG_HOTSPOT_H

#include "../contract/contract.h"

#define TG_HOT_ENTRIES 32
#define TG_HOT_COUNT_MAX 0x40000000U	/* from here on all is halved */
#define TG_HOT_SHARE_ONE 65536U

struct tg_hot_entry {
	tg_u64 key;
	tg_u32 count;
	tg_u32 over;		/* of the count, what may be other keys' */
	tg_u32 admitted;
	tg_u32 then_s;		/* of the last hit; of the published list only */
};
TG_ASSERT(sizeof(struct tg_hot_entry) == 24);

struct tg_hot_list {
	tg_u32 all;		/* hits */
	tg_u32 admitted;	/* of all keys, whether in the list or not */
	struct tg_hot_entry entry[TG_HOT_ENTRIES];
};
TG_ASSERT(sizeof(struct tg_hot_list) == 8 + TG_HOT_ENTRIES * 24);

/* Halves everything. What is certain of a key is halved down, its count up. */
TG_INLINE void tg_hot_fade(struct tg_hot_list *l)
{
	for (tg_u32 i = 0; i < TG_HOT_ENTRIES; i++) {
		struct tg_hot_entry *e = &l->entry[i];
		tg_u32 certain = e->count - e->over;

		e->count = e->count / 2 + (e->count & 1);
		e->over = e->count - certain / 2;
		e->admitted /= 2;
	}
	l->all /= 2;
	l->admitted /= 2;
}

/* The place of a key; TG_HOT_ENTRIES if it has none. */
TG_INLINE tg_u32 tg_hot_find(const struct tg_hot_list *l, tg_u64 key)
{
	for (tg_u32 i = 0; i < TG_HOT_ENTRIES; i++)
		if (key && l->entry[i].key == key)
			return i;
	return TG_HOT_ENTRIES;
}

/* Its place, or else the one with the fewest hits. */
TG_INLINE tg_u32 tg_hot_place(const struct tg_hot_list *l, tg_u64 key)
{
	tg_u32 least = 0;

	for (tg_u32 i = 0; i < TG_HOT_ENTRIES; i++) {
		if (l->entry[i].key == key)
			return i;
		if (l->entry[i].count < l->entry[least].count)
			least = i;
	}
	return least;
}

/* One new connection to this destination. */
TG_INLINE void tg_hot_hit(struct tg_hot_list *l, tg_u64 key)
{
	struct tg_hot_entry *e = &l->entry[tg_hot_place(l, key) &
					   (TG_HOT_ENTRIES - 1)];

	if (!key)
		return;
	if (e->key != key) {
		e->key = key;
		e->over = e->count;
		e->admitted = 0;
	}
	e->count++;
	if (++l->all >= TG_HOT_COUNT_MAX)
		tg_hot_fade(l);
}

/* Hits that are its own for certain. */
TG_INLINE tg_u32 tg_hot_certain(const struct tg_hot_list *l, tg_u64 key)
{
	const struct tg_hot_entry *e =
		&l->entry[tg_hot_find(l, key) & (TG_HOT_ENTRIES - 1)];

	return key && e->key == key ? e->count - e->over : 0;
}

/* 1: more than this share of all hits (1/TG_HOT_SHARE_ONE) is certainly its own. */
TG_INLINE int tg_hot_is(const struct tg_hot_list *l, tg_u64 key, tg_u32 share)
{
	return (tg_u64)tg_hot_certain(l, key) * TG_HOT_SHARE_ONE >
	       (tg_u64)l->all * share;
}

/* A connection to this destination was admitted. */
TG_INLINE void tg_hot_admitted(struct tg_hot_list *l, tg_u64 key)
{
	tg_u32 i = tg_hot_find(l, key);

	if (i < TG_HOT_ENTRIES)
		l->entry[i].admitted++;
	if (++l->admitted >= TG_HOT_COUNT_MAX)
		tg_hot_fade(l);
}

/* Its share of what was admitted, in 1/TG_HOT_SHARE_ONE; 0 of nothing. */
TG_INLINE tg_u32 tg_hot_admitted_share(const struct tg_hot_list *l, tg_u64 key)
{
	tg_u32 i = tg_hot_find(l, key);

	if (i >= TG_HOT_ENTRIES || !l->admitted)
		return 0;
	return tg_min((tg_u64)l->entry[i].admitted * TG_HOT_SHARE_ONE /
		      l->admitted, TG_HOT_SHARE_ONE);
}

/* The published list: what is sampled, and when an entry is out of date. */
struct tg_hot_aged_params {
	tg_u32 sample;		/* share of the connections, 1/TG_HOT_SHARE_ONE */
	tg_u32 out_s;		/* without a hit for so long: free */
};

TG_INLINE void tg_hot_aged_hit(const struct tg_hot_aged_params *p,
			       struct tg_hot_list *l, tg_u64 key, tg_u32 random,
			       tg_u32 now_s)
{
	struct tg_hot_entry *e = &l->entry[key & (TG_HOT_ENTRIES - 1)];

	if (!key || (random & (TG_HOT_SHARE_ONE - 1)) >= p->sample)
		return;
	if (e->key != key) {
		if (e->key && now_s - e->then_s < p->out_s)
			return;	/* taken: of two that collide the first is seen */
		e->key = key;
		e->count = e->over = e->admitted = 0;
	}
	e->then_s = now_s;
	e->count++;
	if (++l->all >= TG_HOT_COUNT_MAX)
		tg_hot_fade(l);
}

/* Frees entries that are out of date; the key with most hits, 0 if there is none. */
TG_INLINE tg_u64 tg_hot_aged_top(const struct tg_hot_aged_params *p,
				 struct tg_hot_list *l, tg_u32 now_s)
{
	tg_u32 most = 0;
	tg_u64 key = 0;

	for (tg_u32 i = 0; i < TG_HOT_ENTRIES; i++) {
		struct tg_hot_entry *e = &l->entry[i];

		if (e->key && now_s - e->then_s >= p->out_s) {
			e->key = 0;
			e->count = e->over = e->admitted = 0;
		}
		if (e->key && e->count > most) {
			most = e->count;
			key = e->key;
		}
	}
	return key;
}

#endif
