/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The fields of a head (RFC 9112, 5 and 6), of a request or of an answer.
 *
 * Strict, since the server may read what is doubtful in another way than we do:
 * a line ends with CR LF and nothing else; a name is a token right before its
 * colon; a line that begins with white space (obs-fold) and any control
 * character fail, as do two of Host, Content-Length or Transfer-Encoding,
 * Content-Length beside Transfer-Encoding or with anything but digits, and any
 * coding but "chunked".
 */
#ifndef TG_HTTP_FIELDS_H
#define TG_HTTP_FIELDS_H

#include "http_cookie.h"
#include "http_host.h"

enum tg_field {
	TG_FIELD_OTHER,
	TG_FIELD_LENGTH,
	TG_FIELD_CODING,
	TG_FIELD_CONNECTION,
	TG_FIELD_HOST,
	TG_FIELD_COOKIE,
};

/* Notes that a field is here; fails if it was before. */
static __always_inline void tg_field_once(struct tg_scan *s, __u8 seen)
{
	if (s->seen & seen)
		tg_scan_fail(s);
	s->seen |= seen;
}

/* Fields that only a request has. */
static __always_inline __u8 tg_field_asked(struct tg_head *h)
{
	struct tg_scan *s = &h->scan;

	if (tg_word_is(s, "cookie"))
		return TG_FIELD_COOKIE;
	if (tg_word_is(s, "host")) {
		tg_field_once(s, TG_SEEN_HOST);
		/* a target's host wins (RFC 9112, 3.2.2) */
		return s->seen & TG_SEEN_TARGET ? TG_FIELD_OTHER :
						  TG_FIELD_HOST;
	}
	if (tg_word_is(s, "upgrade"))
		h->http.flags |= TG_HTTP_UPGRADE;
	if (tg_word_is(s, "expect"))
		h->http.flags |= TG_HTTP_EXPECT;
	return TG_FIELD_OTHER;
}

static __always_inline __u8 tg_field_of(struct tg_head *h, int request)
{
	struct tg_scan *s = &h->scan;

	if (tg_word_is(s, "content-length")) {
		tg_field_once(s, TG_SEEN_LENGTH);
		return TG_FIELD_LENGTH;
	}
	if (tg_word_is(s, "transfer-encoding")) {
		tg_field_once(s, TG_SEEN_CODING);
		return TG_FIELD_CODING;
	}
	if (tg_word_is(s, "connection"))
		return TG_FIELD_CONNECTION;
	return request ? tg_field_asked(h) : TG_FIELD_OTHER;
}

static __always_inline __u32 tg_field_name(struct tg_head *h, __u8 c,
					   int request)
{
	struct tg_scan *s = &h->scan;

	if (tg_is_token(c)) {
		tg_word_add(s, tg_lower(c));
		return 0;
	}
	if (c != ':' || !s->word_bytes)
		return tg_scan_fail(s);
	s->field = tg_field_of(h, request);
	s->state = TG_SCAN_BEFORE;
	return 0;
}

/* The first byte of a value. */
static __always_inline void tg_value_begin(struct tg_scan *s)
{
	switch (s->field) {
	case TG_FIELD_LENGTH:
		s->state = TG_SCAN_LENGTH;
		s->number = s->part = 0;
		break;
	case TG_FIELD_CODING:
		s->state = TG_SCAN_CODING;
		tg_word_begin(s);
		break;
	case TG_FIELD_CONNECTION:
		s->state = TG_SCAN_CONNECTION;
		tg_word_begin(s);
		break;
	case TG_FIELD_HOST:
		s->state = TG_SCAN_HOST;
		tg_host_begin(s);
		break;
	case TG_FIELD_COOKIE:
		s->state = TG_SCAN_COOKIE;
		break;
	default:
		s->state = TG_SCAN_SKIP;
	}
}

/* What follows the end of a value that has one word: 1 if this ends it. */
static __always_inline int tg_value_ends(struct tg_scan *s, __u8 c)
{
	if (c == '\r')
		s->state = TG_SCAN_LF;
	else if (tg_is_space(c))
		s->state = TG_SCAN_AFTER;
	else
		return 0;
	return 1;
}

static __always_inline __u32 tg_value_length(struct tg_scan *s, __u8 c)
{
	if (tg_is_digit(c)) {
		s->number = s->number * 10 + (c - '0');
		s->part = 1;
		return s->number < TG_BODY_MAX ? 0 : tg_scan_fail(s);
	}
	return s->part && tg_value_ends(s, c) ? 0 : tg_scan_fail(s);
}

static __always_inline __u32 tg_value_coding(struct tg_scan *s, __u8 c)
{
	if (tg_is_token(c)) {
		tg_word_add(s, tg_lower(c));
		return 0;
	}
	return tg_word_is(s, "chunked") && tg_value_ends(s, c) ? 0 :
							tg_scan_fail(s);
}

/* A list; words that we do not know are of no concern (RFC 9110, 7.6.1). */
static __always_inline __u32 tg_value_connection(struct tg_scan *s, __u8 c)
{
	if (tg_is_token(c)) {
		tg_word_add(s, tg_lower(c));
		return 0;
	}
	if (c == ',' || c == '\r' || tg_is_space(c)) {
		if (tg_word_is(s, "close"))
			s->seen |= TG_SEEN_CLOSE;
		if (tg_word_is(s, "keep-alive"))
			s->seen |= TG_SEEN_KEEP;
		tg_word_begin(s);
		if (c == '\r')
			s->state = TG_SCAN_LF;
		return 0;
	}
	tg_word_spoil(s);
	return tg_is_text(c) ? 0 : tg_scan_fail(s);
}

static __always_inline __u32 tg_value_host(struct tg_head *h, __u8 c)
{
	struct tg_scan *s = &h->scan;
	int feed;

	if (tg_value_ends(s, c))
		return tg_host_end(h) ? 0 : tg_scan_fail(s);
	feed = tg_host_byte(s, c);
	return feed < 0 ? tg_scan_fail(s) : feed;
}

/* A byte of a value. */
static __always_inline __u32 tg_value_byte(struct tg_head *h, __u8 c,
					   int request)
{
	struct tg_scan *s = &h->scan;

	switch (s->state) {
	case TG_SCAN_AFTER:
		return tg_value_ends(s, c) ? 0 : tg_scan_fail(s);
	case TG_SCAN_LENGTH:
		return tg_value_length(s, c);
	case TG_SCAN_CODING:
		return tg_value_coding(s, c);
	case TG_SCAN_CONNECTION:
		return tg_value_connection(s, c);
	case TG_SCAN_SKIP:
		if (c == '\r')
			s->state = TG_SCAN_LF;
		return c == '\r' || tg_is_text(c) ? 0 : tg_scan_fail(s);
	}
	if (!request)
		return tg_scan_fail(s);
	if (s->state == TG_SCAN_HOST)
		return tg_value_host(h, c);
	return tg_cookie_byte(h, c);
}

/* LF, and nothing else, after CR. */
static __always_inline __u32 tg_line_end(struct tg_scan *s, __u8 c, __u8 next)
{
	if (c != '\n')
		return tg_scan_fail(s);
	s->state = next;
	return 0;
}

/* One byte after the first line; what to feed. */
static __always_inline __u32 tg_field_byte(struct tg_head *h, __u8 c,
					   int request)
{
	struct tg_scan *s = &h->scan;

	if (s->state == TG_SCAN_LF) {
		s->seen |= TG_SEEN_LINE;
		return tg_line_end(s, c, TG_SCAN_LINE);
	}
	if (s->state == TG_SCAN_END_LF)
		return tg_line_end(s, c, TG_SCAN_DONE);
	if (s->state == TG_SCAN_LINE) {
		if (c == '\r') {
			s->state = TG_SCAN_END_LF;
			return 0;
		}
		s->state = TG_SCAN_NAME;
		tg_word_begin(s);
	}
	if (s->state == TG_SCAN_NAME)
		return tg_field_name(h, c, request);
	if (s->state == TG_SCAN_BEFORE) {
		if (tg_is_space(c))
			return 0;
		tg_value_begin(s);
	}
	return tg_value_byte(h, c, request);
}

/* What a whole head says of a body; 0, or -1 where that is contradictory. */
static __always_inline int tg_fields_body(const struct tg_scan *s, __u8 minor,
					  __u64 *body)
{
	int coded = s->seen & TG_SEEN_CODING, sized = s->seen & TG_SEEN_LENGTH;

	if (coded && (sized || !minor))
		return -1;
	*body = coded ? TG_CHUNKED : sized ? s->number : 0;
	return 0;
}

/* Whether the connection ends with the exchange (RFC 9112, 9.3). */
static __always_inline int tg_fields_close(const struct tg_scan *s, __u8 minor)
{
	if (s->seen & TG_SEEN_CLOSE)
		return 1;
	return !minor && !(s->seen & TG_SEEN_KEEP);
}

#endif
