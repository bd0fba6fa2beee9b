/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * From what was recognised to a rule. Reads the maps of lib/request_maps.h:
 *	tg_paths	LPM_TRIE, struct tg_path_key → __u32 first rule
 *	tg_rules	ARRAY, slot * TG_RULES_MAX + rule → struct tg_rule
 *	tg_hosts	HASH, struct tg_host_key → __u32 id (not 0)
 *	tg_cookie_tests	ARRAY, slot * TG_COOKIE_TESTS_MAX + n
 * Rules for TLS stand under the empty path (16 bits), those for HTTP under
 * paths that begin with '/'. A host "*.example.net" of a rule stands in tg_hosts
 * by the hash of ".example.net"; it stands for one label.
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

/*
 * The rule of what stands in `head`. Returns enum tg_unjudged: NONE, where
 * asked->rule is one; NO_RULE or TLS, where none matches; SPLIT, where what a
 * rule asks for was not seen.
 */
__noinline int tg_rule_find(struct tg_head *head, struct tg_asked *asked)
{
	return TG_UNJUDGED_NO_RULE;
}

#endif
