/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The tables of prefixes (abi/tidegate.h), made from what the trie has: prefix
 * by prefix, the shortest first, entry by entry. Slow, and written from the
 * description in the ABI, not from the loader.
 */

static int host_flat;		/* 1: they say what the trie says */
static __u16 host_blocks;	/* in use */
static __u32 host_tables;	/* how often they were made */

static struct tg_src_prefixes *host_src_prefixes(void)
{
	return native_entry(&tg_src_prefixes, 0);
}

/* The row of an entry after one more prefix: looked for, or made. */
static __u16 host_src_find(__u16 old, __u32 service, __u32 class)
{
	struct tg_src_row *rows = host_src_prefixes()->row, row = rows[old];
	static const struct tg_src_row nothing;
	__u16 i = 0;

	if (old == TG_SRC_EXEMPT || service == TG_SERVICES_MAX)
		return TG_SRC_EXEMPT;
	row.class[service] = class;
	while (memcmp(&rows[i], &row, sizeof(row))) {
		if (++i == TG_SRC_EXEMPT)
			i++;
		if (i == TG_SRC_ROWS)
			abort();
		if (!memcmp(&rows[i], &nothing, sizeof(nothing)))
			rows[i] = row;
	}
	return i;
}

/* The same; neighbours mostly have the same answer. */
static __u16 host_src_row(__u16 old, __u32 service, __u32 class)
{
	static __u16 last_old, last_row;
	static __u32 last_service, last_class, last_tables;

	if (last_tables != host_tables || last_old != old ||
	    last_service != service || last_class != class)
		last_row = host_src_find(old, service, class);
	last_tables = host_tables;
	last_old = old;
	last_service = service;
	last_class = class;
	return last_row;
}

/* The block that an entry leads to; a new one says what the entry said. */
static __u16 *host_src_block(__u16 *entry)
{
	__u16 *block;

	if (!(*entry & TG_SRC_BLOCK)) {
		if (host_blocks == TG_SRC_BLOCKS)
			abort();
		block = host_src_prefixes()->block[host_blocks];
		for (int i = 0; i < 256; i++)
			block[i] = *entry;
		*entry = TG_SRC_BLOCK | host_blocks++;
	}
	return host_src_prefixes()->block[*entry & ~TG_SRC_BLOCK];
}

static void host_src(__u32 address, __u32 length, __u32 service, __u32 class)
{
	__u32 seen = 16, at = address >> 16;
	__u16 *table = host_src_prefixes()->root;

	while (length > seen) {
		table = host_src_block(&table[at]);
		seen += 8;
		at = address >> (32 - seen) & 0xff;
	}
	for (__u32 i = 0; i < 1U << (seen - length); i++)
		table[at + i] = host_src_row(table[at + i], service, class);
}

/* All prefixes of this length in IPv4; those of IPv6 may cover all of it. */
static int host_flatten_length(const struct native_map *trie, __u32 length)
{
	static const __u8 mapped[16] = { [10] = 0xff, [11] = 0xff };
	int found = 0;

	for (__u32 i = 0; i < trie->used; i++) {
		struct tg_prefix_key key;
		__u32 bits, address, class;

		memcpy(&key, trie->keys + i * sizeof(key), sizeof(key));
		memcpy(&class, trie->values + i * sizeof(class), sizeof(class));
		bits = key.bits - 16;
		if (!native_bits_equal(key.addr, mapped, bits < 96 ? bits : 96))
			continue;
		if ((bits < 96 ? 0 : bits - 96) != length)
			continue;
		memcpy(&address, key.addr + 12, sizeof(address));
		host_src(length ? bpf_ntohl(address) : 0, length,
			    key.service, class);
		found = 1;
	}
	return found;
}

/* The trie as it was when the tables were made. */
static struct {
	struct tg_prefix_key keys[256];
	__u32 values[256];
	__u32 used;
	int found;		/* some of it was of IPv4 */
} host_then;

static int host_flat_still(const struct native_map *trie)
{
	return host_tables && trie->used == host_then.used &&
	       !memcmp(trie->keys, host_then.keys,
		       trie->used * sizeof(host_then.keys[0])) &&
	       !memcmp(trie->values, host_then.values,
		       trie->used * sizeof(host_then.values[0]));
}

/* Before a run: the tables are made again if the trie is another now. */
static void host_flatten(void)
{
	struct native_map *trie = native_map(&tg_prefixes);

	if (host_flat)
		return;
	host_flat = 1;
	if (!host_flat_still(trie)) {
		memset(host_src_prefixes(), 0, sizeof(struct tg_src_prefixes));
		host_blocks = 0;
		host_tables++;
		host_then.found = 0;
		for (__u32 length = 0; length <= 32; length++)
			host_then.found |= host_flatten_length(trie, length);
		host_then.used = trie->used;
		memcpy(host_then.keys, trie->keys, sizeof(host_then.keys));
		memcpy(host_then.values, trie->values,
		       sizeof(host_then.values));
	}
	if (host_then.found)
		host_table()->flags |= TG_TABLE_SRC_PREFIXES;
}
