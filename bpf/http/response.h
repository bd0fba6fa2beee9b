/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The head of a server's answer and where the answer ends (RFC 9112, 6.3).
 * Anything that is doubtful fails: then nobody can tell where the next answer
 * begins, and the connection is not evaluated any more.
 */
#ifndef TG_HTTP_ANSWER_H
#define TG_HTTP_ANSWER_H

#include "http_body.h"
#include "http_fields.h"

/* What the answer is to: it decides whether there is a body. */
#define TG_ANSWER_TO_HEAD 1
#define TG_ANSWER_TO_CONNECT 2

#define TG_CODE_DIGITS 3

static __always_inline __u32 tg_line_code(struct tg_head *h, __u8 c)
{
	struct tg_scan *s = &h->scan;

	if (s->part < TG_CODE_DIGITS) {
		if (!tg_is_digit(c))
			return tg_scan_fail(s);
		h->reply.code = h->reply.code * 10 + (c - '0');
		s->part++;
		return 0;
	}
	/* some leave out the space before an empty reason */
	if (c != ' ' && c != '\r')
		return tg_scan_fail(s);
	s->state = c == '\r' ? TG_SCAN_LF : TG_SCAN_REASON;
	return 0;
}

/* HTTP/1.x SP code SP reason CR LF */
static __always_inline __u32 tg_line_status(struct tg_head *h, __u8 c)
{
	struct tg_scan *s = &h->scan;

	if (s->state == TG_SCAN_CODE)
		return tg_line_code(h, c);
	if (s->state == TG_SCAN_REASON) {
		if (c == '\r')
			s->state = TG_SCAN_LF;
		return c == '\r' || tg_is_text(c) ? 0 : tg_scan_fail(s);
	}
	if (c != ' ') {
		tg_word_add(s, c);
		return s->word_bytes > 8 ? tg_scan_fail(s) : 0;
	}
	s->state = TG_SCAN_CODE;
	h->reply.minor = tg_word_is(s, "HTTP/1.1");
	return h->reply.minor || tg_word_is(s, "HTTP/1.0") ? 0 :
							     tg_scan_fail(s);
}

struct tg_answer_loop {
	struct tg_head *head;
};

static long tg_answer_step(__u32 i, struct tg_answer_loop *loop)
{
	struct tg_head *h = loop->head;
	__u8 c;

	if (tg_scan_skip(h))
		return 0;
	if (!tg_scan_next(h, &c))
		return 1;
	if (h->scan.state < TG_SCAN_LF)
		tg_line_status(h, c);
	else
		tg_field_byte(h, c, 0);
	return h->scan.failed || h->scan.state == TG_SCAN_DONE;
}

/* Whether the method or the code forbids a body. */
static __always_inline int tg_answer_bare(const struct tg_reply *r, __u32 to)
{
	return r->code < 200 || r->code == 204 || r->code == 304 ||
	       to & TG_ANSWER_TO_HEAD || r->flags & TG_REPLY_TUNNEL;
}

/* What follows an answer's head, which is whole (RFC 9112, 6.3). */
static __always_inline int tg_answer_body(struct tg_head *h, __u32 to)
{
	const struct tg_scan *s = &h->scan;
	struct tg_reply *r = &h->reply;

	if (r->code < 100 || r->code > 599 ||
	    tg_fields_body(s, r->minor, &r->body))
		return -1;
	if (r->code < 200)
		r->flags = r->code == 101 ? TG_REPLY_TUNNEL : TG_REPLY_INTERIM;
	else if (tg_fields_close(s, r->minor))
		r->flags = TG_REPLY_CLOSE;
	if (to & TG_ANSWER_TO_CONNECT && r->code / 100 == 2)
		r->flags = TG_REPLY_TUNNEL;
	if (tg_answer_bare(r, to)) {
		r->body = 0;
	} else if (!(s->seen & (TG_SEEN_CODING | TG_SEEN_LENGTH))) {
		r->body = TG_TO_CLOSE;
		r->flags = TG_REPLY_CLOSE | TG_REPLY_TO_CLOSE;
	} else if (r->body == TG_CHUNKED) {
		r->flags |= TG_REPLY_CHUNKED;
	}
	return 0;
}

/*
 * The head of an answer, in the first `length` (1 … TG_HEAD_MAX) of head->bytes.
 * Result in head->reply. 0, or -1: not whole, or its framing cannot be told.
 */
__noinline int tg_answer_head(struct tg_head *head, __u32 length, __u32 to)
{
	struct tg_answer_loop loop = { .head = head };
	struct tg_reply *reply;

	if (!head)
		return -1;
	reply = &head->reply;
	tg_scan_begin(head, length, TG_SCAN_ANSWER);
	reply->head = reply->code = reply->flags = reply->minor = 0;
	reply->body = 0;
	bpf_loop(TG_HEAD_MAX, tg_answer_step, &loop, 0);
	if (head->scan.failed || head->scan.state != TG_SCAN_DONE)
		return -1;
	reply->head = head->scan.at;
	return tg_answer_body(head, to);
}

#endif
