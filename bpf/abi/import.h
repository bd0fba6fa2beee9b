/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Rules that routers have sent (BGP FlowSpec): the table of one generation, row by
 * row, and what was counted. A generation is swapped in whole (bpf/src/swapped.rs).
 */
#ifndef TG_ABI_IMPORT_H
#define TG_ABI_IMPORT_H

#include "tidegate.h"

#define TG_IMPORT_RULES 256
#define TG_IMPORT_AT 16		/* rules that one destination may have */
#define TG_IMPORT_SPANS 513	/* that so many prefixes make of all addresses */
#define TG_IMPORT_RANGES 4	/* of ports */
#define TG_IMPORT_PEERS_ROW 8
#define TG_IMPORT_PEERS_MAX 16

/* Where rows are. */
#define TG_IMPORT_HEAD 0
#define TG_IMPORT_PEERS 1
#define TG_IMPORT_PORTS 3	/* 1,024 ports a row, a bit each */
#define TG_IMPORT_PORT_ROWS 64
#define TG_IMPORT_FIRST_RULE (TG_IMPORT_PORTS + TG_IMPORT_PORT_ROWS)
#define TG_IMPORT_FIRST_SPAN (TG_IMPORT_FIRST_RULE + TG_IMPORT_RULES)
#define TG_IMPORT_ROWS (TG_IMPORT_FIRST_SPAN + TG_IMPORT_SPANS)
#define TG_IMPORT_ROW_BYTES 128

struct tg_import_head {
	__u32 spans;
	__u32 shadow;		/* 1: nothing is dropped */
};

/* Sessions with these are never dropped: they carry the rules. Zero: none. */
struct tg_import_peers {
	__u32 addr[TG_IMPORT_PEERS_ROW][4];
};
TG_ASSERT(sizeof(struct tg_import_peers) <= TG_IMPORT_ROW_BYTES);

/* Ports of TCP that no rule may touch. */
struct tg_import_never {
	__u8 bits[TG_IMPORT_ROW_BYTES];
};

struct tg_import_ports {
	__u16 first;
	__u16 last;		/* below the first: no port */
};

/* What a rule asks of a packet. */
#define TG_IMPORT_ASKS_PROTOCOL 1
#define TG_IMPORT_ASKS_TO 2
#define TG_IMPORT_ASKS_FROM 4
#define TG_IMPORT_ASKS_FLAGS 8
#define TG_IMPORT_ASKS_IPV6 16	/* else IPv4 */

struct tg_import_rule {
	__u32 source[4];	/* as addresses stand in a packet */
	__u32 source_mask[4];
	struct tg_import_ports to[TG_IMPORT_RANGES];
	struct tg_import_ports from[TG_IMPORT_RANGES];
	__u64 packet_cost;	/* ns/4096; 0: packets have no rate */
	__u64 byte_cost;
	__u32 generation;	/* of the slot */
	__u16 slot;		/* of its buckets and counters */
	__u8 asks;
	__u8 protocol;
	__u8 flags_mask;
	__u8 flags_value;
	__u8 discards;		/* 1: nothing passes */
	__u8 pad[5];
};
TG_ASSERT(sizeof(struct tg_import_rule) == 96);

/* Destinations from `first` to that of the next span; in host order. */
struct tg_import_span {
	__u32 first[4];
	__u32 rules;
	__u16 rule[TG_IMPORT_AT];	/* in the order in which they hold */
	__u32 pad;
};
TG_ASSERT(sizeof(struct tg_import_span) == 56);

/* By slot, of each CPU. */
struct tg_import_counts {
	__u32 generation;	/* of the slot, that was counted */
	__u32 pad;
	__u64 packets;		/* that the rule matched first */
	__u64 bytes;
	__u64 refused;		/* packets, in shadow mode, too */
};

#endif
