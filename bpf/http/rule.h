/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * From what was recognised to a rule. Reads these maps (http/request_maps.h):
 *	tg_paths	LPM_TRIE, struct tg_path_key → __u32 first rule
 *	tg_rules	ARRAY, slot * TG_RULES_MAX + rule → struct tg_rule
 *	tg_hosts	HASH, struct tg_host_key → __u32 id (not 0)
 *	tg_cookie_tests	ARRAY, slot * TG_COOKIE_TESTS_MAX + n
 *
 * The longest path that is a prefix names the first rule to look at; it and its
 * `next` are asked until one fits (abi/request.h says in which order).
 *
 * A rule that fits but for what was not seen – host or cookies behind the end of
 * the segment, or more cookies than are looked at – ends the search: a later rule
 * might be the wrong one.
 */
#ifndef TG_RULE_H
#define TG_RULE_H

#include "head.h"
#include "request_maps.h"

struct tg_asked {
	__u32 slot;		/* of the rule set, below TG_SLOTS */
	__u32 service;
	__u32 tests;		/* tg_request_control.cookies */
	__u32 tls;		/* 1: tg_tls_hello, 0: tg_http_request */
	__u32 rule;		/* out: number in the slot; 0: none */
	__u32 protected;	/* out: 1: has a cookie that protects */
};

/* What callbacks are given must lie on the stack. */
struct tg_rule_loop {
	struct tg_head *head;
	struct tg_asked *asked;
};

enum tg_fit {
	TG_FIT_NO,
	TG_FIT_YES,
	TG_FIT_UNKNOWN,	/* depends on what was not seen */
};

static __always_inline __u32 tg_host_id(__u64 hash, __u32 slot)
{
	struct tg_host_key key = { .hash = hash, .slot = slot };
	const __u32 *id;

	if (!hash)
		return 0;
	id = bpf_map_lookup_elem(&tg_hosts, &key);
	return id ? *id : 0;
}

/* Whether the host is the one that a rule names. */
static __always_inline int tg_fits_host(struct tg_head *h, __u32 slot,
					const struct tg_rule *rule)
{
	struct tg_search *s = &h->search;

	if (!rule->host)
		return TG_FIT_YES;
	if (!(h->http.flags & TG_HTTP_HOST))
		return TG_FIT_UNKNOWN;
	if (!s->hosts) {
		s->whole = tg_host_id(h->http.host.whole, slot);
		s->rest = tg_host_id(h->http.host.rest, slot);
		s->hosts = 1;
	}
	return rule->host == s->whole || rule->host == s->rest ? TG_FIT_YES :
								 TG_FIT_NO;
}

static __always_inline int tg_fits_cookies(const struct tg_head *h,
					   const struct tg_rule *rule)
{
	__u32 held = h->search.cookies;

	if (!(rule->cookies_all | rule->cookies_none | rule->protect))
		return TG_FIT_YES;
	if ((h->http.flags & (TG_HTTP_WHOLE | TG_HTTP_COOKIES)) !=
	    TG_HTTP_WHOLE)
		return TG_FIT_UNKNOWN;
	if ((held & rule->cookies_all) != rule->cookies_all ||
	    held & rule->cookies_none)
		return TG_FIT_NO;
	return TG_FIT_YES;
}

static __always_inline int tg_fits(struct tg_head *h, const struct tg_asked *a,
				   const struct tg_rule *rule)
{
	int tls = !!(rule->flags & TG_RULE_TLS), host;

	if (tls != !!a->tls || (!tls && !(rule->methods & h->http.method)))
		return TG_FIT_NO;
	host = tg_fits_host(h, a->slot, rule);
	return host == TG_FIT_YES && !tls ? tg_fits_cookies(h, rule) : host;
}

static long tg_rule_step(__u32 i, struct tg_rule_loop *loop)
{
	struct tg_asked *a = loop->asked;
	struct tg_head *h = loop->head;
	struct tg_search *s = &h->search;
	__u32 at = s->at & (TG_RULES_MAX - 1);
	const struct tg_rule *rule;
	int fits;

	if (!at)
		return 1;
	rule = tg_at(&tg_rules, (a->slot & (TG_SLOTS - 1)) * TG_RULES_MAX + at);
	if (!rule) {
		s->reason = TG_REASON_LOOKUP_FAILED;
		return 1;
	}
	fits = tg_fits(h, a, rule);
	if (fits == TG_FIT_UNKNOWN)
		s->reason = TG_REASON_SPLIT;
	if (fits == TG_FIT_YES) {
		s->reason = TG_REASON_NONE;
		a->rule = at;
		a->protected = !!(s->cookies & rule->protect);
	}
	s->at = rule->next;
	return fits != TG_FIT_NO;
}

/* One pair by one test; then the next test, or the next pair. */
static long tg_cookie_step(__u32 i, struct tg_rule_loop *loop)
{
	struct tg_asked *a = loop->asked;
	struct tg_head *h = loop->head;
	struct tg_search *s = &h->search;
	const struct tg_cookie_test *test;
	__u32 pair = s->pair, at = s->test & (TG_COOKIE_TESTS_MAX - 1);

	if (pair >= h->http.pairs || pair >= TG_COOKIES_MAX)
		return 1;
	pair = tg_bound(pair, TG_COOKIES_MAX - 1);
	test = tg_at(&tg_cookie_tests,
		     (a->slot & (TG_SLOTS - 1)) * TG_COOKIE_TESTS_MAX + at);
	if (!test) {
		/* without its cookies a request must not be refused */
		s->reason = TG_REASON_LOOKUP_FAILED;
		s->at = 0;
		return 1;
	}
	if (test->name == h->pair[pair].name &&
	    (!test->value || test->value == h->pair[pair].value))
		s->cookies |= 1U << at;
	s->test = at + 1;
	if (s->test >= a->tests || s->test >= TG_COOKIE_TESTS_MAX) {
		s->test = 0;
		s->pair++;
	}
	return 0;
}

/*
 * The first rule of the longest prefix; 0: none. A function of its own, since
 * the key is large, and must lie on the stack: below Linux 6.2 memory that a
 * global function was given is none for a key.
 */
static __noinline __u32 tg_rule_first(struct tg_head *h,
				      const struct tg_asked *a)
{
	struct tg_path_key key = h->key;
	const __u32 *first;

	key.bits = 16;
	if (!a->tls)
		key.bits += 8 * h->http.path;
	key.slot = a->slot;
	key.service = a->service;
	first = bpf_map_lookup_elem(&tg_paths, &key);
	return first ? *first : 0;
}

/*
 * The rule of what stands in `head`. Returns enum tg_reason: NONE, where
 * asked->rule is one; NO_RULE or TLS, where none fits; SPLIT, where one would
 * fit but for what was not seen.
 */
__noinline int tg_rule_find(struct tg_head *head, struct tg_asked *asked)
{
	struct tg_rule_loop loop = { .head = head, .asked = asked };
	struct tg_search *s;

	if (!head || !asked)
		return TG_REASON_LOOKUP_FAILED;
	s = &head->search;
	s->hosts = s->whole = s->rest = s->cookies = s->pair = s->test = 0;
	s->reason = asked->tls ? TG_REASON_TLS : TG_REASON_NO_RULE;
	asked->rule = asked->protected = 0;
	s->at = tg_rule_first(head, asked);
	if (!s->at)
		return s->reason;
	if (asked->tests && head->http.pairs)
		bpf_loop(TG_COOKIES_MAX * TG_COOKIE_TESTS_MAX, tg_cookie_step,
			 &loop, 0);
	bpf_loop(TG_RULE_STEPS, tg_rule_step, &loop, 0);
	return s->reason;
}

#endif
