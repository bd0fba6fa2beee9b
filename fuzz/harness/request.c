/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The recogniser of requests under a fuzzer: a byte says what the rest is – a
 * request, an answer, a TLS hello, a chunked body – and one where it is cut.
 * Beyond what the sanitizers find, these must hold:
 *	- what lies behind the bytes of a segment makes no difference
 *	- what was recognised in a beginning stays so, whatever follows
 *	- a head ends with an empty line, within its segment
 *	- a body ends at the same byte, however packets cut it
 *	- a search for a rule ends, also where rules lead in a circle
 */
#define TG_NATIVE_NO_MAIN
#include "../../bpf/tests/native/recognise.c"
#include "harness.h"

#define FUZZ_HEAD 3	/* bytes before the text: what, cut (two) */
#define FUZZ_BODY_MAX 1500	/* below the steps that a packet may take */

static void fuzz_load(const unsigned char *data, __u32 length, __u8 behind)
{
	memcpy(host_head.bytes, data, length);
	memset(host_head.bytes + length, behind, TG_HEAD_MAX - length);
}

/* What of a request may be relied on. */
struct fuzz_request {
	int reason;
	struct tg_http http;
	__u8 path[TG_PATH_MAX];
	struct tg_cookie_pair pair[TG_COOKIES_MAX];
};

static void fuzz_recognise(const unsigned char *data, __u32 length, __u8 behind,
			   struct fuzz_request *r)
{
	memset(r, 0, sizeof(*r));
	fuzz_load(data, length, behind);
	r->reason = tg_http_request(&host_head, length);
	if (r->reason)
		return;
	r->http = host_head.http;
	fuzz_must(r->http.path <= TG_PATH_MAX, "a path fits");
	fuzz_must(r->http.pairs <= TG_COOKIES_MAX, "cookies fit");
	memcpy(r->path, host_head.key.path, r->http.path);
	memcpy(r->pair, host_head.pair, r->http.pairs * sizeof(r->pair[0]));
}

static void fuzz_request_sane(const struct fuzz_request *r,
			      const unsigned char *data, __u32 length)
{
	const struct tg_http *h = &r->http;
	__u32 head = h->head;

	fuzz_must(r->reason == TG_REASON_NONE ||
		  r->reason == TG_REASON_SPLIT ||
		  r->reason == TG_REASON_NOT_HTTP ||
		  r->reason == TG_REASON_HTTP2, "a reason is one of four");
	if (r->reason)
		return;
	fuzz_must(h->method && !(h->method & (h->method - 1)), "one method");
	fuzz_must(!h->path || r->path[0] == '/' || r->path[0] == '*',
		  "a path begins like one");
	fuzz_must(!!(h->flags & TG_HTTP_WHOLE) == !!head, "whole has an end");
	if (!head)
		return;
	fuzz_must(head >= 18 && head <= length &&
		  !memcmp(data + head - 4, "\r\n\r\n", 4),
		  "a head ends with an empty line");
	fuzz_must(h->body < TG_BODY_MAX ||
		  (h->body == TG_CHUNKED && h->flags & TG_HTTP_CHUNKED),
		  "a body has a length or chunks");
}

/* Rules that lead in a circle, and ask for everything. */
static void fuzz_rules(void)
{
	struct tg_path_key path = { .bits = 24, .path = "/" };
	__u32 first = 1;

	host_forget();
	native_add(&tg_paths, &path, &first);
	for (__u32 i = 1; i < 4; i++) {
		struct tg_rule *rule = native_entry(&tg_rules, i);

		rule->next = i == 3 ? 1 : i + 1;
		rule->methods = TG_METHOD_ANY;
		rule->host = i;
		rule->cookies_all = i;
	}
}

static void fuzz_request(const unsigned char *data, __u32 length, __u32 cut)
{
	static struct fuzz_request whole, again, part;
	struct tg_asked asked = { .tests = 2 };

	fuzz_recognise(data, cut, 'x', &part);
	fuzz_request_sane(&part, data, cut);
	fuzz_recognise(data, length, '\n', &whole);
	fuzz_request_sane(&whole, data, length);
	fuzz_recognise(data, length, 0, &again);
	fuzz_must(!memcmp(&whole, &again, sizeof(whole)),
		  "what lies behind makes no difference");
	if (!whole.reason) {
		int reason = tg_rule_find(&host_head, &asked);

		fuzz_must(reason == TG_REASON_NO_RULE ||
			  reason == TG_REASON_SPLIT ||
			  reason == TG_REASON_NONE, "a search ends");
	}
	if (part.reason == TG_REASON_SPLIT)
		return;
	if (part.reason || part.http.head)
		fuzz_must(!memcmp(&whole, &part, sizeof(whole)),
			  "what was recognised stays so");
	else if (!whole.reason)
		fuzz_must(whole.http.method == part.http.method &&
			  !memcmp(whole.path, part.path, sizeof(part.path)),
			  "a request line stays as it is");
}

static void fuzz_answer(const unsigned char *data, __u32 length, __u32 cut,
			__u32 to)
{
	struct tg_reply whole, part;
	int failed, failed_part;

	fuzz_load(data, cut, 'x');
	failed_part = tg_answer_head(&host_head, cut, to);
	part = host_head.reply;
	fuzz_load(data, length, '\n');
	failed = tg_answer_head(&host_head, length, to);
	whole = host_head.reply;
	if (!failed_part)
		fuzz_must(!failed && !memcmp(&whole, &part, sizeof(whole)),
			  "what was recognised stays so");
	if (failed)
		return;
	fuzz_must(whole.head >= 16 && whole.head <= length &&
		  !memcmp(data + whole.head - 4, "\r\n\r\n", 4),
		  "a head ends with an empty line");
	fuzz_must(whole.body < TG_BODY_MAX || whole.body >= TG_TO_CLOSE,
		  "a body has a length, chunks or neither");
}

static void fuzz_hello(const unsigned char *data, __u32 length, __u32 cut)
{
	struct tg_name whole, part;
	int reason, reason_part;

	fuzz_load(data, cut, 'x');
	reason_part = tg_tls_hello(&host_head, cut);
	part = host_head.http.host;
	fuzz_load(data, length, 0);
	reason = tg_tls_hello(&host_head, length);
	whole = host_head.http.host;
	if (reason_part != TG_REASON_SPLIT)
		fuzz_must(reason == reason_part, "what was found stays so");
	if (!reason_part)
		fuzz_must(!memcmp(&whole, &part, sizeof(whole)),
			  "a name stays as it is");
}

static int fuzz_packet(const unsigned char *data, __u32 length,
		       struct tg_follow *f)
{
	memcpy(native.frame, data, length);
	native.length = length;
	return tg_follow(NULL, 0, length, f);
}

static void fuzz_body(const unsigned char *data, __u32 length, __u32 cut)
{
	struct tg_follow whole = { .left = TG_CHUNKED }, part = whole;
	__u32 used;
	int ends, ends_part;

	ends = fuzz_packet(data, length, &whole);
	ends_part = fuzz_packet(data, cut, &part);
	used = part.used;
	if (ends_part == TG_FOLLOW_MORE) {
		fuzz_must(used == cut, "all of a packet belongs to the body");
		ends_part = fuzz_packet(data + cut, length - cut, &part);
		used += part.used;
	}
	fuzz_must(ends == ends_part, "a body ends where it ends");
	if (ends != TG_FOLLOW_FAILED)
		fuzz_must(used == whole.used, "it has as many bytes");
}

static void fuzz_start(void)
{
	static int started;

	if (started)
		return;
	started = 1;
	native_memory();
	host_maps();
	fuzz_rules();
}

int fuzz_one(const unsigned char *data, unsigned long size)
{
	unsigned int what, cut;
	__u32 length;

	if (size <= FUZZ_HEAD || size - FUZZ_HEAD > TG_HEAD_MAX)
		return 0;
	fuzz_start();
	length = size - FUZZ_HEAD;
	what = data[0];
	cut = (data[1] | data[2] << 8) % length + 1;
	data += FUZZ_HEAD;
	switch (what & 3) {
	case 0:
		fuzz_request(data, length, cut);
		break;
	case 1:
		fuzz_answer(data, length, cut, what >> 2 & 3);
		break;
	case 2:
		fuzz_hello(data, length, cut);
		break;
	default:
		if (length <= FUZZ_BODY_MAX)
			fuzz_body(data, length, cut);
	}
	return 0;
}
