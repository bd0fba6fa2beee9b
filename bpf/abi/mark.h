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

/* What the daemon says of this host, with each tick. */
struct tg_marks {
	__u64 until_ns;		/* nothing is marked later */
	__u32 chance;		/* of 2^32, where it is congested; 0: nowhere */
	__u32 overloaded;	/* 1: a server here refuses */
	__u32 router;		/* bits of DSCP */
	__u32 server;
};
TG_ASSERT(sizeof(struct tg_marks) == 24);

/* An address of IPv4, by its hash, and when it was seen last; zero: nobody. */
struct tg_mark_seen {
	__u64 at_ns;
	__u32 addr;
	__u32 pad;
};
TG_ASSERT(sizeof(struct tg_mark_seen) == 16);

#endif
