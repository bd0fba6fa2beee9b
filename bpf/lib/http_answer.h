/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The framing of a server's answer (RFC 9112, 6): where it ends. */
#ifndef TG_HTTP_ANSWER_H
#define TG_HTTP_ANSWER_H

#include "head.h"

/* What the answer is to: it decides whether there is a body. */
#define TG_ANSWER_TO_HEAD 1
#define TG_ANSWER_TO_CONNECT 2

/*
 * The head of an answer, in the first `length` (1 … TG_HEAD_MAX) of head->bytes.
 * Result in head->reply. 0, or -1: not whole, or its framing cannot be told.
 */
__noinline int tg_answer_head(struct tg_head *head, __u32 length, __u32 to)
{
	return -1;
}

/*
 * Where a body stands: kept in struct tg_conn between packets. `left`: bytes to
 * come, TG_CHUNKED: chunked, and `chunk` says where in it (0: at its start).
 */
#define TG_CHUNKED (~0ULL)

struct tg_follow {
	__u64 left;
	__u32 chunk;
	__u32 used;	/* out: bytes of this packet that belong to the body */
};

#define TG_FOLLOW_MORE 0	/* the body goes on */
#define TG_FOLLOW_END 1		/* it ends with `used` bytes of this packet */
#define TG_FOLLOW_FAILED 2	/* its end cannot be told */

/* A body over the `bytes` of a packet that begin `offset` bytes into the frame. */
static __always_inline int tg_follow(struct __sk_buff *skb, __u32 offset,
				     __u32 bytes, struct tg_follow *f)
{
	return TG_FOLLOW_FAILED;
}

#endif
