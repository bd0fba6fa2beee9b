/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A scan over a head of HTTP/1: bytes one after the other through a machine
 * whose memory is struct tg_scan. What this file has is the machine's frame:
 * kinds of characters, words that are compared, stretches that are skipped.
 */
#ifndef TG_HTTP_SCAN_H
#define TG_HTTP_SCAN_H

#include "head.h"

enum tg_scan_state {
	/* a request's line */
	TG_SCAN_BLANK,		/* empty lines before it */
	TG_SCAN_BLANK_LF,
	TG_SCAN_METHOD,
	TG_SCAN_TARGET,		/* its first byte */
	TG_SCAN_SCHEME,
	TG_SCAN_SLASHES,	/* after "http:" */
	TG_SCAN_AUTHORITY,
	TG_SCAN_PATH,
	TG_SCAN_QUERY,		/* what of a target is not looked at */
	TG_SCAN_VERSION,
	/* an answer's */
	TG_SCAN_ANSWER,
	TG_SCAN_CODE,
	TG_SCAN_REASON,
	/* fields of either */
	TG_SCAN_LF,		/* CR was seen */
	TG_SCAN_LINE,		/* begins */
	TG_SCAN_NAME,
	TG_SCAN_BEFORE,		/* white space before a value */
	TG_SCAN_SKIP,		/* a value that nobody looks at */
	TG_SCAN_AFTER,		/* white space that ends a value */
	TG_SCAN_LENGTH,
	TG_SCAN_CODING,
	TG_SCAN_CONNECTION,
	TG_SCAN_HOST,
	TG_SCAN_COOKIE,		/* before a pair */
	TG_SCAN_COOKIE_NAME,
	TG_SCAN_COOKIE_VALUE,
	TG_SCAN_COOKIE_AFTER,	/* white space that ends a pair */
	TG_SCAN_COOKIE_BAD,	/* no pair at all, up to the next */
	TG_SCAN_END_LF,		/* CR of the empty line was seen */
	TG_SCAN_DONE,
};

#define TG_SEEN_LINE 1		/* the first line, whole */
#define TG_SEEN_HOST 2
#define TG_SEEN_LENGTH 4
#define TG_SEEN_CODING 8
#define TG_SEEN_CLOSE 16
#define TG_SEEN_KEEP 32		/* Connection: keep-alive */
#define TG_SEEN_TARGET 64	/* the host, in the target */
#define TG_SEEN_PREFACE 128	/* the beginning of that of HTTP/2 */

/* What becomes of a byte: it is hashed. */
#define TG_FEED_TEXT 1
#define TG_FEED_REST 2
#define TG_FEED_LOWER 4		/* in lower case */

#define TG_CHAR(c) (1ULL << ((c) & 63))
#define TG_CHAR_DIGITS (0x3ffULL << ('0' & 63))
#define TG_CHAR_LETTERS (0x3ffffffULL << ('A' & 63) | 0x3ffffffULL << ('a' & 63))
/* RFC 9110, 5.6.2: tchar */
#define TG_TOKEN_LOW (TG_CHAR_DIGITS | TG_CHAR('!') | TG_CHAR('#') | \
		      TG_CHAR('$') | TG_CHAR('%') | TG_CHAR('&') | \
		      TG_CHAR('\'') | TG_CHAR('*') | TG_CHAR('+') | \
		      TG_CHAR('-') | TG_CHAR('.'))
#define TG_TOKEN_HIGH (TG_CHAR_LETTERS | TG_CHAR('^') | TG_CHAR('_') | \
		       TG_CHAR('`') | TG_CHAR('|') | TG_CHAR('~'))
/* RFC 3986, 3.2.2: reg-name */
#define TG_HOST_LOW (TG_CHAR_DIGITS | TG_CHAR('!') | TG_CHAR('$') | \
		     TG_CHAR('%') | TG_CHAR('&') | TG_CHAR('\'') | \
		     TG_CHAR('(') | TG_CHAR(')') | TG_CHAR('*') | \
		     TG_CHAR('+') | TG_CHAR(',') | TG_CHAR('-') | \
		     TG_CHAR('.') | TG_CHAR(';') | TG_CHAR('='))
#define TG_HOST_HIGH (TG_CHAR_LETTERS | TG_CHAR('_') | TG_CHAR('~'))

static __always_inline int tg_in(__u64 low, __u64 high, __u8 c)
{
	return c < 128 && (c < 64 ? low : high) >> (c & 63) & 1;
}

static __always_inline int tg_is_token(__u8 c)
{
	return tg_in(TG_TOKEN_LOW, TG_TOKEN_HIGH, c);
}

static __always_inline int tg_is_digit(__u8 c)
{
	return c >= '0' && c <= '9';
}

static __always_inline int tg_is_space(__u8 c)
{
	return c == ' ' || c == '\t';
}

/* What may stand in a value (RFC 9110, 5.5), obs-text included. */
static __always_inline int tg_is_text(__u8 c)
{
	return (c >= ' ' && c != 0x7f) || c == '\t';
}

static __always_inline __u8 tg_lower(__u8 c)
{
	return c >= 'A' && c <= 'Z' ? c | 0x20 : c;
}

static __always_inline void tg_word_begin(struct tg_scan *s)
{
	s->word[0] = s->word[1] = s->word[2] = 0;
	s->word_bytes = 0;
}

/* A word that is too long stays so, and equals none. */
static __always_inline void tg_word_add(struct tg_scan *s, __u8 c)
{
	__u32 at = s->word_bytes++;

	if (at < TG_WORD_MAX)
		s->word[tg_bound(at >> 3, 3)] |= (__u64)c << (at & 7) * 8;
}

/* No word that we know has this byte. */
static __always_inline void tg_word_spoil(struct tg_scan *s)
{
	s->word_bytes = TG_WORD_MAX + 1;
}

#define TG_WORD_BYTE(t, i) \
	((__u64)(__u8)((i) < sizeof(t) ? (t)[(i) < sizeof(t) ? (i) : 0] : 0) \
	 << ((i) & 7) * 8)
#define TG_WORD_PART(t, i) \
	(TG_WORD_BYTE(t, i) | TG_WORD_BYTE(t, (i) + 1) | \
	 TG_WORD_BYTE(t, (i) + 2) | TG_WORD_BYTE(t, (i) + 3) | \
	 TG_WORD_BYTE(t, (i) + 4) | TG_WORD_BYTE(t, (i) + 5) | \
	 TG_WORD_BYTE(t, (i) + 6) | TG_WORD_BYTE(t, (i) + 7))
/* Whether the word is this literal of at most TG_WORD_MAX bytes. */
#define tg_word_is(s, t) \
	((s)->word_bytes == sizeof(t) - 1 && \
	 (s)->word[0] == TG_WORD_PART(t, 0) && \
	 (s)->word[1] == TG_WORD_PART(t, 8) && \
	 (s)->word[2] == TG_WORD_PART(t, 16))

static __always_inline __u32 tg_scan_fail(struct tg_scan *s)
{
	s->failed = TG_REASON_NOT_HTTP;
	return 0;
}

static __always_inline void tg_scan_feed(struct tg_scan *s, __u32 feed, __u8 c)
{
	if (feed & TG_FEED_LOWER)
		c = tg_lower(c);
	if (feed & TG_FEED_TEXT)
		tg_text_byte(&s->text, c);
	if (feed & TG_FEED_REST)
		tg_text_byte(&s->rest, c);
}

typedef __u64 __attribute__((may_alias)) tg_scan_word;

#define TG_EACH_BYTE 0x0101010101010101ULL

/*
 * Eight bytes at once, where nobody looks at them and none of them ends the
 * stretch: 1. Only at multiples of eight, which any machine can load.
 */
static __always_inline int tg_scan_skip(struct tg_head *h)
{
	struct tg_scan *s = &h->scan;
	__u32 at = s->at & ~7U;
	__u64 w, del, low;

	if ((s->state != TG_SCAN_SKIP && s->state != TG_SCAN_QUERY) ||
	    at != s->at || at > TG_HEAD_MAX - 8 || at + 8 > s->length)
		return 0;
	at = tg_bound(at, TG_HEAD_MAX - 8);
	w = *(const tg_scan_word *)(h->bytes + at);
	del = w ^ 0x7f * TG_EACH_BYTE;
	/* the high bit of a byte: below '!'; DEL (Anderson, "Bit twiddling
	 * hacks": determine if a word has a byte less than n, a zero byte) */
	low = (w - '!' * TG_EACH_BYTE) & ~w;
	if (s->state == TG_SCAN_SKIP)
		low = (w - ' ' * TG_EACH_BYTE) & ~w;
	del = (del - TG_EACH_BYTE) & ~del;
	if ((low | del) & 0x80 * TG_EACH_BYTE)
		return 0;
	s->at = at + 8;
	return 1;
}

static __always_inline void tg_scan_begin(struct tg_head *h, __u32 length,
					  __u8 state)
{
	struct tg_scan *s = &h->scan;

	s->at = 0;
	s->length = length < TG_HEAD_MAX ? length : TG_HEAD_MAX;
	s->state = state;
	s->field = s->seen = s->failed = 0;
	s->part = 0;
	s->number = 0;
	tg_word_begin(s);
}

/* Takes the next byte; 0 if there is none. */
static __always_inline int tg_scan_next(struct tg_head *h, __u8 *c)
{
	__u32 at = h->scan.at;

	if (at >= h->scan.length || at >= TG_HEAD_MAX)
		return 0;
	*c = h->bytes[tg_bound(at, TG_HEAD_MAX - 1)];
	h->scan.at = at + 1;
	return 1;
}

#endif
