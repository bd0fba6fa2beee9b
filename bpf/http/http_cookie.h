/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Cookies (RFC 6265, 4.2): pairs of name and value, separated by ';' and white
 * space. Names and values count exactly as they stand there: in any case of
 * letters, and quotes around a value belong to it. Something with white space
 * inside is no pair, and is not looked at.
 */
#ifndef TG_HTTP_COOKIE_H
#define TG_HTTP_COOKIE_H

#include "http_scan.h"

enum tg_cookie_part {
	TG_COOKIE_NAME,
	TG_COOKIE_VALUE,
};

/* A pair, if there is room to keep it: what follows is not worth its hashes. */
static __always_inline void tg_cookie_begin(struct tg_head *h)
{
	struct tg_scan *s = &h->scan;

	if (h->http.pairs >= TG_COOKIES_MAX) {
		h->http.flags |= TG_HTTP_COOKIES;
		s->state = TG_SCAN_COOKIE_BAD;
		return;
	}
	s->part = TG_COOKIE_NAME;
	tg_text_begin(&s->text);
	s->state = TG_SCAN_COOKIE_NAME;
}

/* A pair is over: its hashes are kept. */
static __always_inline void tg_cookie_keep(struct tg_head *h)
{
	struct tg_scan *s = &h->scan;
	__u64 hash = tg_text_end(&s->text);
	__u32 at = tg_bound(h->http.pairs, TG_COOKIES_MAX - 1);
	int valued = s->part == TG_COOKIE_VALUE;

	h->pair[at].name = valued ? s->cookie : hash;
	h->pair[at].value = valued ? hash : 0;
	h->http.pairs = at + 1;
}

/* One byte in or behind a pair. */
static __always_inline __u32 tg_cookie_pair(struct tg_head *h, __u8 c)
{
	struct tg_scan *s = &h->scan;

	if (c == ';' || c == '\r') {
		tg_cookie_keep(h);
		s->state = c == ';' ? TG_SCAN_COOKIE : TG_SCAN_LF;
		return 0;
	}
	if (tg_is_space(c)) {
		s->state = TG_SCAN_COOKIE_AFTER;
		return 0;
	}
	if (s->state == TG_SCAN_COOKIE_AFTER) {
		s->state = TG_SCAN_COOKIE_BAD;
		return 0;
	}
	if (c != '=' || s->state == TG_SCAN_COOKIE_VALUE)
		return TG_FEED_TEXT;
	s->cookie = tg_text_end(&s->text);
	s->part = TG_COOKIE_VALUE;
	tg_text_begin(&s->text);
	s->state = TG_SCAN_COOKIE_VALUE;
	return 0;
}

static __always_inline __u32 tg_cookie_byte(struct tg_head *h, __u8 c)
{
	struct tg_scan *s = &h->scan;

	if (!tg_is_text(c) && c != '\r')
		return tg_scan_fail(s);
	if (s->state == TG_SCAN_COOKIE) {
		if (tg_is_space(c) || c == ';')
			return 0;
		if (c == '\r') {
			s->state = TG_SCAN_LF;
			return 0;
		}
		tg_cookie_begin(h);
	}
	if (s->state != TG_SCAN_COOKIE_BAD)
		return tg_cookie_pair(h, c);
	if (c == ';')
		s->state = TG_SCAN_COOKIE;
	else if (c == '\r')
		s->state = TG_SCAN_LF;
	return 0;
}

#endif
