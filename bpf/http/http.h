/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The head of an HTTP/1.0 or 1.1 request (RFC 9112): recognised, or not.
 *
 *	METHOD SP target SP HTTP/1.x CR LF, after at most TG_BLANKS_MAX empty
 *	lines (RFC 9112, 2.2); one space each, no other white space
 *	target	"/path?query", or "http://example/path?query", also with https;
 *		of any other form (authority, "*") the path is none of a rule
 *
 * Of a path, the first TG_PATH_MAX bytes are kept, up to '?' or '#', in the
 * normal form of http/http_path.h. A path that servers read in different ways is
 * `ambiguous`: a rule must not meet a request that its server takes for another.
 *
 * What a server may read in another way than we do is not evaluated: see
 * http/http_fields.h for what is refused in fields.
 */
#ifndef TG_HTTP_H
#define TG_HTTP_H

#include "http_fields.h"
#include "http_path.h"

#define TG_BLANKS_MAX 2

static __always_inline __u8 tg_method_of(const struct tg_scan *s)
{
	if (tg_word_is(s, "GET"))
		return TG_METHOD_GET;
	if (tg_word_is(s, "HEAD"))
		return TG_METHOD_HEAD;
	if (tg_word_is(s, "POST"))
		return TG_METHOD_POST;
	if (tg_word_is(s, "PUT"))
		return TG_METHOD_PUT;
	if (tg_word_is(s, "DELETE"))
		return TG_METHOD_DELETE;
	if (tg_word_is(s, "OPTIONS"))
		return TG_METHOD_OPTIONS;
	if (tg_word_is(s, "PATCH"))
		return TG_METHOD_PATCH;
	return TG_METHOD_OTHER;
}

static __always_inline __u32 tg_line_method(struct tg_head *h, __u8 c)
{
	struct tg_scan *s = &h->scan;

	if (tg_is_token(c)) {
		tg_word_add(s, c);
		return 0;
	}
	if (c != ' ' || !s->word_bytes)
		return tg_scan_fail(s);
	h->http.method = tg_method_of(s);
	if (tg_word_is(s, "CONNECT"))
		h->http.flags |= TG_HTTP_TUNNEL;
	/* "PRI * HTTP/2.0" (RFC 9113, 3.4) */
	if (tg_word_is(s, "PRI"))
		s->seen |= TG_SEEN_PREFACE;
	s->state = TG_SCAN_TARGET;
	return 0;
}

/* Empty lines before a request. */
static __always_inline __u32 tg_line_blank(struct tg_head *h, __u8 c)
{
	struct tg_scan *s = &h->scan;

	if (s->state == TG_SCAN_BLANK_LF)
		return tg_line_end(s, c, TG_SCAN_BLANK);
	if (c == '\r') {
		s->state = TG_SCAN_BLANK_LF;
		return ++s->part > TG_BLANKS_MAX ? tg_scan_fail(s) : 0;
	}
	s->state = TG_SCAN_METHOD;
	return tg_line_method(h, c);
}

/* A space ends a target of any form. */
static __always_inline void tg_target_end(struct tg_head *h)
{
	if (h->scan.state == TG_SCAN_PATH)
		tg_path_end(h);
	tg_word_begin(&h->scan);
	h->scan.state = TG_SCAN_VERSION;
}

/* "http" or "https", then ':'; an authority begins in the same way. */
static __always_inline void tg_target_scheme(struct tg_scan *s, __u8 c)
{
	if (c != ':')
		tg_word_add(s, tg_lower(c));
	else if (tg_word_is(s, "http") || tg_word_is(s, "https"))
		s->state = TG_SCAN_SLASHES;
	else
		s->state = TG_SCAN_QUERY;
	s->part = 0;
}

static __always_inline void tg_target_slash(struct tg_scan *s, __u8 c)
{
	if (c != '/') {
		s->state = TG_SCAN_QUERY;
	} else if (++s->part == 2) {
		s->state = TG_SCAN_AUTHORITY;
		tg_host_begin(s);
	}
}

/* The host of "http://example/path"; an empty path is "/" (RFC 9112, 3.2.1). */
static __always_inline __u32 tg_target_host(struct tg_head *h, __u8 c)
{
	struct tg_scan *s = &h->scan;
	int feed = tg_host_byte(s, c);

	if (feed >= 0)
		return feed;
	if (s->part == TG_HOST_FIRST || !tg_host_end(h))
		return tg_scan_fail(s);
	s->seen |= TG_SEEN_TARGET;
	tg_path_begin(h);
	if (c == ' ')
		tg_target_end(h);
	else if (c == '/')
		s->state = TG_SCAN_PATH;
	else if (c == '?' || c == '#')
		s->state = TG_SCAN_QUERY;
	else
		return tg_scan_fail(s);
	return 0;
}

static __always_inline __u32 tg_target_first(struct tg_head *h, __u8 c)
{
	struct tg_scan *s = &h->scan;

	tg_word_begin(s);
	if (c != '*')
		s->seen &= (__u8)~TG_SEEN_PREFACE;
	if (c == '/') {
		s->state = TG_SCAN_PATH;
		tg_path_begin(h);
		return 0;
	}
	if (c == '*') {		/* no path: of no rule */
		s->state = TG_SCAN_QUERY;
		return 0;
	}
	s->state = TG_SCAN_SCHEME;
	tg_word_add(s, tg_lower(c));
	return 0;
}

static __always_inline void tg_target_query(struct tg_head *h)
{
	tg_path_end(h);
	h->scan.state = TG_SCAN_QUERY;
}

static __always_inline __u32 tg_line_target(struct tg_head *h, __u8 c)
{
	struct tg_scan *s = &h->scan;

	if (c <= ' ' ? c != ' ' || s->state == TG_SCAN_TARGET : c == 0x7f)
		return tg_scan_fail(s);
	switch (s->state) {
	case TG_SCAN_TARGET:
		return tg_target_first(h, c);
	case TG_SCAN_AUTHORITY:
		return tg_target_host(h, c);
	}
	if (c == ' ') {
		tg_target_end(h);
		return 0;
	}
	if (s->state == TG_SCAN_SCHEME)
		tg_target_scheme(s, c);
	else if (s->state == TG_SCAN_SLASHES)
		tg_target_slash(s, c);
	else if (s->state == TG_SCAN_PATH && (c == '?' || c == '#'))
		tg_target_query(h);
	else if (s->state == TG_SCAN_PATH)
		tg_path_byte(h, c);
	return 0;
}

static __always_inline __u32 tg_line_version(struct tg_head *h, __u8 c)
{
	struct tg_scan *s = &h->scan;

	if (c != '\r') {
		tg_word_add(s, c);
		return s->word_bytes > 8 ? tg_scan_fail(s) : 0;
	}
	s->state = TG_SCAN_LF;
	h->http.minor = tg_word_is(s, "HTTP/1.1");
	if (h->http.minor || tg_word_is(s, "HTTP/1.0"))
		return 0;
	tg_scan_fail(s);
	if (s->seen & TG_SEEN_PREFACE && tg_word_is(s, "HTTP/2.0"))
		s->failed = TG_REASON_HTTP2;
	return 0;
}

static __always_inline __u32 tg_http_byte(struct tg_head *h, __u8 c)
{
	switch (h->scan.state) {
	case TG_SCAN_BLANK:
	case TG_SCAN_BLANK_LF:
		return tg_line_blank(h, c);
	case TG_SCAN_METHOD:
		return tg_line_method(h, c);
	case TG_SCAN_VERSION:
		return tg_line_version(h, c);
	}
	return h->scan.state < TG_SCAN_VERSION ? tg_line_target(h, c) :
						 tg_field_byte(h, c, 1);
}

/* What a callback is given must lie on the stack. */
struct tg_http_loop {
	struct tg_head *head;
};

static long tg_http_step(__u32 i, struct tg_http_loop *loop)
{
	struct tg_head *h = loop->head;
	__u32 feed;
	__u8 c;

	if (tg_scan_skip(h))
		return 0;
	if (!tg_scan_next(h, &c))
		return 1;
	feed = tg_http_byte(h, c);
	tg_scan_feed(&h->scan, feed, c);
	return h->scan.failed || h->scan.state == TG_SCAN_DONE;
}

/* The end of the scan: whole, or cut after the request line, or before. */
static __always_inline int tg_http_end(struct tg_head *h)
{
	struct tg_scan *s = &h->scan;
	struct tg_http *http = &h->http;

	if (s->failed)
		return s->failed;
	if (!(s->seen & TG_SEEN_LINE))
		return TG_REASON_SPLIT;
	if (s->state != TG_SCAN_DONE)
		return TG_REASON_NONE;
	if (tg_fields_body(s, http->minor, &http->body))
		return TG_REASON_NOT_HTTP;
	if (tg_fields_close(s, http->minor))
		http->flags |= TG_HTTP_CLOSE;
	if (http->body == TG_CHUNKED)
		http->flags |= TG_HTTP_CHUNKED;
	http->flags |= TG_HTTP_WHOLE | TG_HTTP_HOST;
	http->head = s->at;
	return TG_REASON_NONE;
}

/*
 * Recognises the request that begins with head->bytes, of which `length` (1 …
 * TG_HEAD_MAX) are loaded. Result in head->http and head->key.path. Returns
 * enum tg_reason: NONE, where at least the request line was seen whole;
 * without TG_HTTP_WHOLE it was cut after that, and its extent is unknown.
 * What the payload has behind head + body is a pipelined request. SPLIT: the
 * request line is not whole; NOT_HTTP, HTTP2: as they say.
 */
__noinline int tg_http_request(struct tg_head *head, __u32 length)
{
	struct tg_http_loop loop = { .head = head };
	struct tg_http *http;

	if (!head)
		return TG_REASON_LOOKUP_FAILED;
	http = &head->http;
	tg_scan_begin(head, length, TG_SCAN_BLANK);
	http->flags = http->method = http->minor = http->ambiguous = 0;
	http->head = http->pairs = http->path = 0;
	http->body = http->host.whole = http->host.rest = 0;
	bpf_loop(TG_HEAD_MAX, tg_http_step, &loop, 0);
	return tg_http_end(head);
}

#endif
