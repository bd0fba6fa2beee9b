/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Marks of congested routers and overloaded servers in packets (mark/mark.h). Nothing
 * here is pinned: it ends with the process.
 */
#ifndef TG_ABI_MARK_H
#define TG_ABI_MARK_H

#include "tidegate.h"

#define TG_MARK_SOURCES 4096	/* that have sent a marked packet */
#define TG_MARK_SERVERS 16	/* CServs: that have said that they are overloaded */
#define TG_MARK_LINKS 64	/* interfaces to servers that are congested */
#define TG_MARK_ROUTERS 16	/* whose options are read */

#define TG_OPTION_KIND 158	/* RFC 4727: copied, of class 0 */

/* Option 158 with one entry. Routers that find one add another one before it. */
struct tg_router_option {
	__u8 kind;
	__u8 length;
	__u16 pad;
	__u32 addr;		/* of the router, in network order */
	__u16 share;		/* of packets that get it, in 1/65535, in network order */
	__u16 sequence;		/* another one each time that it begins */
};
TG_ASSERT(sizeof(struct tg_router_option) == 12);

/* What the daemon says of this host, with each tick. */
struct tg_marks {
	__u64 until_ns;		/* nothing is marked later */
	__u32 chance;		/* of 2^32, where it is congested; 0: nowhere */
	__u32 overloaded;	/* 1: a server here refuses */
	__u32 router;		/* bits of DSCP */
	__u32 server;
	__u32 adds;		/* chance of 2^32 of an option; 0: none */
	__u32 ends;		/* 1: no router, so options end here */
	struct tg_router_option option;
	__u32 pad;
};
TG_ASSERT(sizeof(struct tg_marks) == 48);

/* What one router has said in options since it began last, as far as it was read. */
struct tg_mark_router {
	__u64 at_ns;
	__u64 entries;		/* of this sequence number */
	__u32 share;
	__u32 sequence;
};
TG_ASSERT(sizeof(struct tg_mark_router) == 24);

/* Packets, and entries, since the start. */
struct tg_mark_counts {
	__u64 added;		/* packets that got an option */
	__u64 no_room;		/* packets that should have got one */
	__u64 unknown_routers;	/* entries of routers that nobody has named */
};
TG_ASSERT(sizeof(struct tg_mark_counts) == 24);

/* An address of IPv4, by its hash, and when it was seen last; zero: nobody. */
struct tg_mark_seen {
	__u64 at_ns;
	__u32 addr;
	__u32 pad;
};
TG_ASSERT(sizeof(struct tg_mark_seen) == 16);

#endif
