/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The border of a domain whose routers and servers mark packets
 * (papers/netdraino.txt, section 4.1). What comes from outside has its marks
 * cleared before anyone reads them:
 *
 *	a DSCP of no other bits than those of marks	becomes 0
 *	IPv4 option 158 (RFC 4727)			becomes NOPs
 *
 * A DSCP with other bits is a class, and no mark: routers mark only over 0. All
 * else stays as it is, a wrong checksum too, and so does what cannot be read.
 * Options are walked as a host walks them: what stands behind their end, or
 * behind a length that none can have, is no option to anyone.
 */
#ifndef TG_BORDER_H
#define TG_BORDER_H

#include "../packet/count.h"
#include "../packet/ipv4.h"
#include "../abi/mark.h"

#define TG_BORDER_END 0
#define TG_BORDER_NOP 1
#define TG_BORDER_OPTIONS_MAX 40	/* bytes */
/* Zero in a checksum, and more than clearing can take from a sum. */
#define TG_BORDER_NOUGHT (64 * 0xffff)

struct tg_border {
	struct tg_ipv4 ip;	/* and behind it, as in the packet */
	__u8 option[44];	/* zero behind the last */
	__u8 bytes;		/* of options */
	__u8 rest;		/* of the one that is walked, from here on */
	__u8 clears;		/* it is cleared */
	__u8 cleared;		/* bytes of options that were */
	__s32 more;		/* by which the sum of all words has grown */
};

/* One byte of the options. */
static long tg_border_option(__u32 i, struct tg_border *b)
{
	__s32 more;
	__u8 byte;

	/* what is compared must be what is used */
	barrier_var(i);
	if (i >= TG_BORDER_OPTIONS_MAX || i >= b->bytes)
		return 1;
	byte = b->option[i];
	if (!b->rest) {
		if (byte == TG_BORDER_NOP)
			return 0;
		b->rest = b->option[i + 1];
		if (byte == TG_BORDER_END || b->rest < 2)
			return 1;
		b->clears = byte == TG_OPTION_KIND;
	}
	b->rest--;
	if (!b->clears)
		return 0;
	more = TG_BORDER_NOP - (__s32)byte;
	b->more += i & 1 ? more : more * 256;
	b->option[i] = TG_BORDER_NOP;
	b->cleared++;
	return 0;
}

/* The checksum says as much of its header as before (RFC 1624). */
static __always_inline void tg_border_sum(struct tg_border *b)
{
	__u32 sum = (__u16)~bpf_ntohs(b->ip.check) + TG_BORDER_NOUGHT + b->more;

	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	b->ip.check = bpf_htons((__u16)~sum);
}

/* 1: something was cleared. Not static: the verifier looks at it once. */
__noinline int tg_border_clear(TG_CONTEXT *ctx)
{
	struct tg_border b = {};
	int l3 = tg_ipv4_at(ctx);
	__u32 last;
	__u8 dscp;

	if (l3 < 0 || TG_LOAD_BYTES(ctx, l3, &b.ip, sizeof(b.ip)) ||
	    b.ip.ver_ihl >> 4 != 4)
		return 0;
	last = (b.ip.ver_ihl & 0xf) * 4 - sizeof(b.ip) - 1;
	/* what is compared must be what is used, and shows that it is not 0 */
	barrier_var(last);
	if (last < TG_BORDER_OPTIONS_MAX) {
		if (TG_LOAD_BYTES(ctx, l3 + sizeof(b.ip), b.option, last + 1))
			return 0;
		b.bytes = last + 1;
		bpf_loop(TG_BORDER_OPTIONS_MAX, tg_border_option, &b, 0);
	}
	dscp = b.ip.tos >> 2;
	if (dscp && !(dscp & ~settings.border)) {
		b.more -= b.ip.tos & ~TG_IPV4_ECN;
		b.ip.tos &= TG_IPV4_ECN;
	} else if (!b.cleared) {
		return 0;
	}
	tg_border_sum(&b);
	/* all at once: half of it would have a wrong checksum */
	if (last < TG_BORDER_OPTIONS_MAX)
		return !TG_STORE_BYTES(ctx, l3, &b, sizeof(b.ip) + last + 1);
	return !TG_STORE_BYTES(ctx, l3, &b, sizeof(b.ip));
}

/* At the border only; elsewhere the verifier removes it. */
static __always_inline void tg_border(TG_CONTEXT *ctx)
{
	if (settings.border && tg_border_clear(ctx))
		tg_count_passed(TG_PASSED_CLEARED);
}

#endif
