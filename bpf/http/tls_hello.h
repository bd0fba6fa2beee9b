/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The server name of a TLS ClientHello (RFC 8446, 4.1.2; RFC 6066, 3), which
 * is sent in the clear. Where the client encrypts its hello (ECH), the name is
 * the public one outside.
 *
 *	record	22, version 2, length 2
 *	hello	1, length 3, version 2, random 32, session id 1+n,
 *		ciphers 2+n, compressions 1+n, extensions 2+n
 *	each	type 2, length 2+n; type 0 is the name, any other is stepped
 *		over, those of GREASE (RFC 8701) included
 *
 * Hellos are long (keys for post-quantum exchanges) and clients shuffle their
 * extensions: so what counts is that the name itself was seen. A hello that goes
 * on in a second record is not followed there.
 */
#ifndef TG_TLS_HELLO_H
#define TG_TLS_HELLO_H

#include "http_host.h"

#define TG_TLS_HANDSHAKE 22	/* the first byte of such a segment */
#define TG_TLS_CLIENT_HELLO 1
#define TG_TLS_RECORD 5		/* bytes of a record's header */
#define TG_TLS_SESSION 43	/* offset of the session id */
#define TG_TLS_EXTENSIONS_MAX 64
#define TG_TLS_NAME_MAX 255	/* bytes */
/* Letters, digits, '-', '_' and dots: what a server's name is made of. */
#define TG_TLS_LOW (TG_CHAR_DIGITS | TG_CHAR('-') | TG_CHAR('.'))
#define TG_TLS_HIGH (TG_CHAR_LETTERS | TG_CHAR('_'))

/*
 * An integer of the hello that ends before scan.length; else 0, and scan.failed
 * says why: SPLIT, or TLS where the record ends (scan.part: its end).
 */
static __always_inline __u32 tg_hello_byte(struct tg_head *h, __u32 at)
{
	struct tg_scan *s = &h->scan;

	if (at < s->length && at < TG_HEAD_MAX)
		return h->bytes[tg_bound(at, TG_HEAD_MAX - 1)];
	if (!s->failed)
		s->failed = at < s->part ? TG_REASON_SPLIT : TG_REASON_TLS;
	return 0;
}

static __always_inline __u32 tg_hello_pair(struct tg_head *h, __u32 at)
{
	__u32 high = tg_hello_byte(h, at);

	return high << 8 | tg_hello_byte(h, at + 1);
}

/* The header of the record: where it ends. */
static __always_inline int tg_hello_record(struct tg_head *h, __u32 length)
{
	struct tg_scan *s = &h->scan;
	__u32 end;

	tg_scan_begin(h, length, TG_SCAN_HOST);
	s->part = ~0U;
	h->http.flags = 0;
	h->http.pairs = 0;
	h->http.host.whole = h->http.host.rest = 0;
	if (tg_hello_byte(h, 0) != TG_TLS_HANDSHAKE)
		return TG_REASON_NOT_HTTP;
	end = TG_TLS_RECORD + tg_hello_pair(h, 3);
	if (s->failed)
		return s->failed;
	s->part = end;
	if (s->length > end)
		s->length = end;
	if (tg_hello_byte(h, 1) != 3 ||
	    tg_hello_byte(h, TG_TLS_RECORD) != TG_TLS_CLIENT_HELLO)
		return s->failed ? s->failed : TG_REASON_TLS;
	return 0;
}

/* Steps to the extensions: from scan.at up to scan.number. */
static __always_inline void tg_hello_extensions(struct tg_head *h)
{
	struct tg_scan *s = &h->scan;
	__u32 at = TG_TLS_SESSION;

	at += 1 + tg_hello_byte(h, at);
	at += 2 + tg_hello_pair(h, at);
	at += 1 + tg_hello_byte(h, at);
	s->number = at + 2 + tg_hello_pair(h, at);
	s->at = at + 2;
}

struct tg_hello_loop {
	struct tg_head *head;
};

/* One extension: stops at the name, whose entry begins at scan.at then. */
static long tg_hello_step(__u32 i, struct tg_hello_loop *loop)
{
	struct tg_head *h = loop->head;
	struct tg_scan *s = &h->scan;
	__u32 at = s->at, type;

	if (at >= s->number) {
		s->failed = TG_REASON_TLS;
		return 1;
	}
	type = tg_hello_pair(h, at);
	s->at = at + 4;
	if (s->failed)
		return 1;
	if (!type) {
		s->state = TG_SCAN_DONE;
		return 1;
	}
	s->at += tg_hello_pair(h, at + 2);
	return s->failed != 0;
}

/* A byte of the name, as the fields' hosts are hashed. */
static long tg_hello_letter(__u32 i, struct tg_hello_loop *loop)
{
	struct tg_head *h = loop->head;
	struct tg_scan *s = &h->scan;
	__u32 c;

	if (s->at >= s->number)
		return 1;
	c = tg_hello_byte(h, s->at);
	if (!tg_in(TG_TLS_LOW, TG_TLS_HIGH, c)) {
		s->failed = TG_REASON_TLS;
		return 1;
	}
	tg_scan_feed(s, tg_host_name(s, c) | TG_FEED_LOWER, c);
	s->at++;
	return 0;
}

/*
 * The list of names, which has one entry, of a host: lengths of the extension,
 * of the list and of the name must agree.
 */
static __always_inline void tg_hello_name(struct tg_head *h,
					  struct tg_hello_loop *loop)
{
	struct tg_scan *s = &h->scan;
	__u32 extension = tg_hello_pair(h, s->at - 2);
	__u32 list = tg_hello_pair(h, s->at);
	__u32 type = tg_hello_byte(h, s->at + 2);
	__u32 bytes = tg_hello_pair(h, s->at + 3);

	s->at += 5;
	s->number = s->at + bytes;
	if (!s->failed && (type || !bytes || bytes > TG_TLS_NAME_MAX ||
			   list != bytes + 3 || extension != bytes + 5))
		s->failed = TG_REASON_TLS;
	if (!s->failed && s->number > s->length)
		tg_hello_byte(h, s->number - 1);
	if (s->failed)
		return;
	tg_host_begin(s);
	bpf_loop(TG_TLS_NAME_MAX, tg_hello_letter, loop, 0);
}

/*
 * The server name in the first `length` (1 … TG_HEAD_MAX) of head->bytes. Result
 * in head->http.host. Returns enum tg_reason: NONE, where there is a name; SPLIT,
 * where it was not seen yet; TLS, where there is none; NOT_HTTP: no TLS at all.
 */
__noinline int tg_tls_hello(struct tg_head *head, __u32 length)
{
	struct tg_hello_loop loop = { .head = head };
	struct tg_scan *s;
	int reason;

	if (!head)
		return TG_REASON_LOOKUP_FAILED;
	s = &head->scan;
	reason = tg_hello_record(head, length);
	if (reason)
		return reason;
	tg_hello_extensions(head);
	if (s->failed)
		return s->failed;
	bpf_loop(TG_TLS_EXTENSIONS_MAX, tg_hello_step, &loop, 0);
	if (s->failed)
		return s->failed;
	if (s->state != TG_SCAN_DONE)	/* more than we look at */
		return TG_REASON_TLS;
	tg_hello_name(head, &loop);
	if (s->failed)
		return s->failed;
	tg_host_end(head);
	return TG_REASON_NONE;
}

#endif
