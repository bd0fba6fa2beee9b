/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The path of a request as its server will understand it, byte by byte, so that
 * no other way of writing it goes past the rules (RFC 3986, 6.2.2):
 *
 *	"%63"		unreserved characters, and delimiters that may stand in a
 *			segment ("!$&'()*+,=:@"), are decoded
 *	"%c3", "\xc3"	what cannot stand there as it is becomes "%C3"
 *	"//"		one slash
 *	"/./", "/x/../"	removed, also at the end, also written as escapes
 *
 * Servers differ in the rest: an escaped slash, backslash, semicolon, control
 * character; a backslash or semicolon as it is; an escape that is none; ".."
 * above the root, or behind the bytes that are kept. Such a path is ambiguous: no
 * rule is chosen by it.
 *
 * Rules are written in the same form (crates/config/src/requests/path.rs).
 */
#ifndef TG_HTTP_PATH_H
#define TG_HTTP_PATH_H

#include "http_scan.h"

#define TG_DOTS_NONE 3		/* a segment that is neither "." nor ".." */
#define TG_ESCAPE_DIGITS 2

/* What means itself in a segment (RFC 3986, pchar), but for the semicolon. */
#define TG_PATH_LOW (TG_CHAR_DIGITS | TG_CHAR('!') | TG_CHAR('$') | \
		     TG_CHAR('&') | TG_CHAR('\'') | TG_CHAR('(') | \
		     TG_CHAR(')') | TG_CHAR('*') | TG_CHAR('+') | \
		     TG_CHAR(',') | TG_CHAR('-') | TG_CHAR('.') | \
		     TG_CHAR(':') | TG_CHAR('='))
#define TG_PATH_HIGH (TG_CHAR_LETTERS | TG_CHAR('@') | TG_CHAR('_') | \
		      TG_CHAR('~'))

static __always_inline void tg_path_begin(struct tg_head *h)
{
	struct tg_segments *s = &h->path;

	s->escape = s->value = s->dots = s->full = 0;
	s->depth = 0;
	s->begin = 1;
	h->key.path[0] = '/';
	h->http.path = 1;
}

static __always_inline void tg_path_put(struct tg_head *h, __u8 c)
{
	__u32 at = h->http.path;

	if (at >= TG_PATH_MAX) {
		h->path.full = 1;
		return;
	}
	h->key.path[tg_bound(at, 127)] = c;
	h->http.path = at + 1;
}

/* The segment was ".": nothing of it stays; or "..": nor of the one before. */
static __always_inline void tg_path_up(struct tg_head *h)
{
	struct tg_segments *s = &h->path;

	if (s->dots == 2) {
		if (s->full || !s->depth) {
			h->http.ambiguous = 1;
			return;
		}
		s->depth--;
		s->begin = s->start[tg_bound(s->depth, TG_SEGMENTS_MAX - 1)];
	}
	if (!s->full)
		h->http.path = s->begin;
}

static __always_inline void tg_path_slash(struct tg_head *h)
{
	struct tg_segments *s = &h->path;

	if (s->dots == TG_DOTS_NONE) {
		s->start[tg_bound(s->depth, TG_SEGMENTS_MAX - 1)] = s->begin;
		s->depth++;
		tg_path_put(h, '/');
		s->begin = h->http.path;
	} else if (s->dots) {
		tg_path_up(h);
	}
	s->dots = 0;
}

/* A character of a segment, as it is kept. */
static __always_inline void tg_path_char(struct tg_head *h, __u8 c)
{
	struct tg_segments *s = &h->path;

	if (c == '.' && s->dots < 2)
		s->dots++;
	else
		s->dots = TG_DOTS_NONE;
	tg_path_put(h, c);
}

static __always_inline __u8 tg_path_digit(__u8 value)
{
	return value < 10 ? '0' + value : 'A' + value - 10;
}

/* A character that must be escaped in a path. */
static __always_inline void tg_path_escape(struct tg_head *h, __u8 c)
{
	tg_path_char(h, '%');
	tg_path_put(h, tg_path_digit(c >> 4));
	tg_path_put(h, tg_path_digit(c & 15));
}

/* The value of a digit of an escape; 16: it is none. */
static __always_inline __u8 tg_path_value(__u8 c)
{
	__u8 letter = tg_lower(c);

	if (tg_is_digit(c))
		return c - '0';
	return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : 16;
}

/* A character of a segment, escaped or not. */
static __always_inline void tg_path_meant(struct tg_head *h, __u8 c)
{
	if (c == ';' || c == '\\')
		h->http.ambiguous = 1;
	if (tg_in(TG_PATH_LOW, TG_PATH_HIGH, c))
		tg_path_char(h, c);
	else
		tg_path_escape(h, c);
}

/* A digit of an escape. */
static __always_inline void tg_path_escaped(struct tg_head *h, __u8 c)
{
	struct tg_segments *s = &h->path;
	__u8 value = tg_path_value(c);

	if (value > 15) {
		h->http.ambiguous = 1;
		s->escape = 0;
		return;
	}
	s->value = s->value << 4 | value;
	if (--s->escape)
		return;
	c = s->value;
	if (c < ' ' || c == 0x7f || c == '/')
		h->http.ambiguous = 1;
	tg_path_meant(h, c);
}

static __always_inline void tg_path_byte(struct tg_head *h, __u8 c)
{
	struct tg_segments *s = &h->path;

	if (s->escape) {
		tg_path_escaped(h, c);
	} else if (c == '%') {
		s->escape = TG_ESCAPE_DIGITS;
		s->value = 0;
	} else if (c == '/') {
		tg_path_slash(h);
	} else {
		tg_path_meant(h, c);
	}
}

static __always_inline void tg_path_end(struct tg_head *h)
{
	struct tg_segments *s = &h->path;

	if (s->escape)
		h->http.ambiguous = 1;
	if (s->dots == 1 || s->dots == 2)
		tg_path_up(h);
}

#endif
