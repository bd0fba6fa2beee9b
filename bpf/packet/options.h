/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The options of a TCP header (RFC 9293, 3.2), walked up to the time stamps. */
#ifndef TG_OPTIONS_H
#define TG_OPTIONS_H

#include "base.h"

#define TG_TCP_OPTIONS_MAX 40	/* bytes */
#define TG_OPTION_END 0
#define TG_OPTION_NOP 1
#define TG_OPTION_STAMPS 8
#define TG_OPTION_STAMPS_BYTES 10

struct tg_options {
	__u32 at;
	__u32 bytes;
	__u32 stamps;		/* offset of what follows kind and length */
	__u8 option[TG_TCP_OPTIONS_MAX + 24];	/* a power of two */
};

static long tg_option(__u32 i, struct tg_options *o)
{
	__u8 kind, length;

	if (o->at + 1 >= o->bytes)
		return 1;
	kind = o->option[o->at & 63];
	if (kind == TG_OPTION_END)
		return 1;
	if (kind == TG_OPTION_NOP) {
		o->at++;
		return 0;
	}
	length = o->option[(o->at + 1) & 63];
	if (length < 2)
		return 1;
	if (kind == TG_OPTION_STAMPS && length == TG_OPTION_STAMPS_BYTES &&
	    o->at + length <= o->bytes) {
		o->stamps = o->at + 2;
		return 1;
	}
	o->at += length;
	return 0;
}

#endif
