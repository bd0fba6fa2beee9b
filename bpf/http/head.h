/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The scratch of one CPU: the first bytes of a segment's payload, and what was
 * recognised in them. It is a map's value, not the stack, for two reasons: it
 * is large, and the verifier knows nothing of what stands in it, so that a loop
 * over bytes is looked at once.
 *
 * A program that sends a clone may run the program at the other side of the
 * same device before it goes on, on the same CPU: ingress and egress have a
 * scratch each (TG_HEAD_INGRESS, TG_HEAD_EGRESS).
 */
#ifndef TG_HEAD_H
#define TG_HEAD_H

#include "text_hash.h"
#include "../abi/request.h"

#define TG_HEAD_INGRESS 0	/* index in tg_head */
#define TG_HEAD_EGRESS 1
#define TG_HEADS 2		/* max_entries of tg_head */

#define TG_COOKIES_MAX 128	/* pairs of one request that are looked at */
#define TG_WORD_MAX 24		/* bytes of a name or token that are compared */

/* Bodies whose end is not a number of bytes; any length is far below. */
#define TG_CHUNKED (~0ULL)
#define TG_TO_CLOSE (~0ULL - 1)	/* ends with the connection */
#define TG_BODY_MAX 1000000000000000000ULL	/* bytes */

/* A name of a host: as it is, and from its first dot on (for `*.` rules). */
struct tg_name {
	__u64 whole;	/* hash in lower case, without port; 0: none */
	__u64 rest;	/* hash of ".example.net" for "a.example.net"; 0: none */
};

struct tg_cookie_pair {
	__u64 name;	/* hash */
	__u64 value;	/* hash; 0: there is no '=' */
};

#define TG_HTTP_WHOLE 1		/* the end of the head was seen */
#define TG_HTTP_CHUNKED 2
#define TG_HTTP_CLOSE 4		/* the connection ends with this exchange */
#define TG_HTTP_UPGRADE 8	/* another protocol may follow (101) */
#define TG_HTTP_EXPECT 16	/* may wait for 100 before it sends its body */
#define TG_HTTP_TUNNEL 32	/* CONNECT: no HTTP follows */
#define TG_HTTP_HOST 64		/* `host` is final: seen whole, or none */
#define TG_HTTP_COOKIES 128	/* more cookies than TG_COOKIES_MAX */

/* What a request says (tg_http_request). */
struct tg_http {
	__u8 flags;		/* TG_HTTP_… */
	__u8 method;		/* one of TG_METHOD_… */
	__u8 minor;		/* of the version: 1.0, 1.1 */
	__u8 ambiguous;		/* 1: servers differ in what the path is */
	__u32 head;		/* bytes up to the body; 0: not whole */
	__u64 body;		/* bytes, or TG_CHUNKED */
	struct tg_name host;
	__u32 pairs;		/* cookies, in tg_head.pair */
	__u32 path;		/* bytes kept in key.path, TG_PATH_MAX at most */
};

#define TG_REPLY_CHUNKED 1
#define TG_REPLY_CLOSE 2	/* the connection ends with this answer */
#define TG_REPLY_INTERIM 4	/* 1xx but 101: another head follows */
#define TG_REPLY_TUNNEL 8	/* 101, or 2xx to CONNECT: no HTTP follows */
#define TG_REPLY_TO_CLOSE 16	/* the body ends with the connection */

/* What an answer says (tg_answer_head). */
struct tg_reply {
	__u32 head;		/* bytes up to the body */
	__u16 code;
	__u8 flags;		/* TG_REPLY_… */
	__u8 minor;
	__u64 body;		/* bytes that follow, TG_CHUNKED, TG_TO_CLOSE; 0
				 * where the method or the code forbids any */
};

#define TG_SEGMENTS_MAX 64	/* of a path of TG_PATH_MAX bytes; a power of two */

/* Of the path that is being normalised (http/http_path.h). */
struct tg_segments {
	__u8 escape;		/* digits of an escape that are still to come */
	__u8 value;		/* of those that have come */
	__u8 dots;		/* the segment is so many dots; TG_DOTS_NONE: not */
	__u8 full;		/* 1: the path is longer than what is kept */
	__u8 begin;		/* where it begins in the key */
	__u8 pad[3];
	__u32 depth;		/* segments before this one */
	__u8 start[TG_SEGMENTS_MAX];	/* where they begin in the key */
};

/* Of the scan; nobody else's business. */
struct tg_scan {
	__u32 at;		/* the next byte */
	__u32 length;
	__u8 state;		/* enum tg_scan_state */
	__u8 field;		/* enum tg_field */
	__u8 seen;		/* TG_SEEN_… */
	__u8 failed;		/* enum tg_reason */
	__u32 part;		/* of a host, of a number: how far it is */
	__u32 word_bytes;
	__u32 pad;
	__u64 word[4];		/* TG_WORD_MAX bytes */
	__u64 number;		/* Content-Length */
	__u64 cookie;		/* hash of its name */
	struct tg_text text;
	struct tg_text rest;
};

/* Of the search for a rule. */
struct tg_search {
	__u32 at;		/* the rule to look at next */
	__u32 hosts;		/* 1: the next two were looked up */
	__u32 whole;		/* ids of the host; 0: no rule asks for it */
	__u32 rest;
	__u32 cookies;		/* tests that hold */
	__u32 pair;		/* to be tested next, and by which test */
	__u32 test;
	__u32 reason;		/* enum tg_reason */
};

struct tg_head {
	struct tg_scan scan;
	struct tg_search search;
	struct tg_http http;
	struct tg_reply reply;
	struct tg_path_key key;	/* of the request; its path is kept here */
	struct tg_cookie_pair pair[TG_COOKIES_MAX];
	struct tg_segments path;
	/* the caller loads them; a word at a time is read where nothing stops */
	__u8 bytes[TG_HEAD_MAX] __attribute__((aligned(8)));
};

/*
 * An index that was checked, once more as a mask: the verifier of Linux 6.1 does
 * not follow every comparison, and the compiler must not know that this one is
 * in vain.
 */
static __always_inline __u32 tg_bound(__u32 index, __u32 mask)
{
	asm volatile("" : "+r"(index));
	return index & mask;
}

/* Loads `bytes` (1 … TG_HEAD_MAX) of a frame from `offset` on; 0: it did. */
static __always_inline long tg_head_load(struct __sk_buff *skb, __u32 offset,
					 __u32 bytes, struct tg_head *head)
{
	bytes = tg_bound(bytes - 1, TG_HEAD_MAX - 1) + 1;
	return bpf_skb_load_bytes(skb, offset, head->bytes, bytes);
}

#endif
