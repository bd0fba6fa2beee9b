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

#include "../abi/request.h"
#include "text_hash.h"

#define TG_HEAD_INGRESS 0	/* index in tg_head */
#define TG_HEAD_EGRESS 1
#define TG_HEADS 2		/* max_entries of tg_head */

#define TG_COOKIES_MAX 128	/* pairs of one request that are looked at */
#define TG_WORD_MAX 24		/* bytes of a name or token that are compared */

/* A name of a host: as it is, and from its first dot on (for `*.` rules). */
struct tg_name {
	__u64 whole;	/* hash in lower case, without port; 0: none */
	__u64 rest;	/* hash of ".example.net" for "a.example.net"; 0: none */
};

struct tg_cookie_pair {
	__u64 name;	/* hash */
	__u64 value;	/* hash; of nothing, where there is no value */
};

#define TG_HTTP_WHOLE 1		/* the end of the head was seen */
#define TG_HTTP_CHUNKED 2	/* the body is chunked; `body` says nothing */
#define TG_HTTP_CLOSE 4		/* the connection ends with this exchange */
#define TG_HTTP_UPGRADE 8	/* another protocol may follow (101) */
#define TG_HTTP_EXPECT 16	/* waits for 100 before it sends its body */
#define TG_HTTP_TUNNEL 32	/* CONNECT: no HTTP follows */
#define TG_HTTP_HOST 64		/* the name of the host was seen, or is none */
#define TG_HTTP_COOKIES 128	/* more cookies than TG_COOKIES_MAX */

/* What a request says (tg_http_request). */
struct tg_http {
	__u8 flags;		/* TG_HTTP_… */
	__u8 method;		/* one of TG_METHOD_… */
	__u8 minor;		/* of the version: 1.0, 1.1 */
	__u8 pad;
	__u32 head;		/* bytes up to the body; 0: not whole */
	__u64 body;		/* bytes, by Content-Length */
	struct tg_name host;
	__u32 pairs;		/* cookies */
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
	__u8 pad;
	__u64 body;		/* bytes that follow; 0 where there can be none */
};

/* Of the scan; nobody else's business. */
struct tg_scan {
	__u32 at;
	__u32 length;
	__u8 state;
	__u8 field;		/* which header, TG_FIELD_… */
	__u8 seen;		/* headers that must not come twice */
	__u8 failed;		/* enum tg_unjudged */
	__u32 count;		/* digits, blank lines … */
	__u32 word_bytes;
	__u64 word[TG_WORD_MAX / 8];
	__u64 number;
	struct tg_text text;
	struct tg_text rest;
};

struct tg_head {
	struct tg_scan scan;
	struct tg_http http;
	struct tg_reply reply;
	struct tg_path_key key;	/* of the request; its path is kept here */
	struct tg_cookie_pair pair[TG_COOKIES_MAX];
	__u8 bytes[TG_HEAD_MAX];	/* the caller loads them */
};

#endif
