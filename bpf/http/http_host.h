/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The name of a host and its port (RFC 3986, 3.2.2 and 3.2.3), in Host or in a
 * target. A user name has no place in either (RFC 9110, 4.2.4).
 */
#ifndef TG_HTTP_HOST_H
#define TG_HTTP_HOST_H

#include "http_scan.h"

enum tg_host_part {
	TG_HOST_FIRST,		/* its first byte */
	TG_HOST_NAME,
	TG_HOST_REST,		/* behind its first dot */
	TG_HOST_LITERAL,	/* in brackets */
	TG_HOST_CLOSED,		/* behind them */
	TG_HOST_PORT,
};

/* Bytes of an address in brackets. */
#define TG_LITERAL_LOW (TG_CHAR_DIGITS | TG_CHAR(':') | TG_CHAR('.'))
#define TG_LITERAL_HIGH (TG_CHAR('a') | TG_CHAR('b') | TG_CHAR('c') | \
			 TG_CHAR('d') | TG_CHAR('e') | TG_CHAR('f'))

static __always_inline void tg_host_begin(struct tg_scan *s)
{
	s->part = TG_HOST_FIRST;
	tg_text_begin(&s->text);
	s->rest.bytes = 0;
}

static __always_inline int tg_host_name(struct tg_scan *s, __u8 c)
{
	if (!tg_in(TG_HOST_LOW, TG_HOST_HIGH, c))
		return 0;
	if (s->part == TG_HOST_FIRST)
		s->part = TG_HOST_NAME;
	if (c == '.' && s->part == TG_HOST_NAME) {
		s->part = TG_HOST_REST;
		tg_text_begin(&s->rest);
	}
	return s->part == TG_HOST_REST ? TG_FEED_TEXT | TG_FEED_REST :
					 TG_FEED_TEXT;
}

/* One byte more: what to feed, 0 for a port; -1: no byte of a host. */
static __always_inline int tg_host_byte(struct tg_scan *s, __u8 c)
{
	int feed;

	if (s->part == TG_HOST_PORT)
		return tg_is_digit(c) ? 0 : -1;
	if (s->part == TG_HOST_LITERAL) {
		if (c == ']')
			s->part = TG_HOST_CLOSED;
		else if (!tg_in(TG_LITERAL_LOW, TG_LITERAL_HIGH, tg_lower(c)))
			return -1;
		return TG_FEED_TEXT | TG_FEED_LOWER;
	}
	if (c == ':' && s->part != TG_HOST_FIRST) {
		s->part = TG_HOST_PORT;
		return 0;
	}
	if (s->part == TG_HOST_CLOSED)
		return -1;
	if (c == '[' && s->part == TG_HOST_FIRST) {
		s->part = TG_HOST_LITERAL;
		return TG_FEED_TEXT;
	}
	feed = tg_host_name(s, c);
	return feed ? feed | TG_FEED_LOWER : -1;
}

/* The end of a host, which may be empty; 0 if it is none. */
static __always_inline int tg_host_end(struct tg_head *h)
{
	struct tg_scan *s = &h->scan;

	if (s->part == TG_HOST_LITERAL)
		return 0;
	h->http.flags |= TG_HTTP_HOST;
	if (s->part == TG_HOST_FIRST)
		return 1;
	h->http.host.whole = tg_text_end(&s->text);
	if (s->rest.bytes)
		h->http.host.rest = tg_text_end(&s->rest);
	return 1;
}

#endif
