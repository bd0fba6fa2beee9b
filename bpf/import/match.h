/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which rule a packet obeys: the first that matches, in the order of RFC 8955,
 * section 5.1. Destinations are found by a search over spans of addresses that have
 * the same rules; the other parts are compared.
 */
#ifndef TG_IMPORT_MATCH_H
#define TG_IMPORT_MATCH_H

#include "maps.h"
#include "../packet/packet.h"

#define TG_IMPORT_STEPS 10	/* halvings until one of TG_IMPORT_SPANS is left */

/* What a rule may look at beside addresses, in one word: protocol, and these. */
#define TG_SEEN_PORTS 0x100
#define TG_SEEN_TCP 0x200	/* flags, too */

/* 1: the span begins after the destination. Not static: the verifier looks at it once. */
__noinline int tg_import_after(const struct tg_import_span *span,
			       const struct tg_packet *p)
{
	if (!span || !p)
		return 0;
	for (int i = 0; i < 4; i++) {
		__u32 word = bpf_ntohl(p->dst[i]);

		if (word != span->first[i])
			return word < span->first[i];
	}
	return 0;
}

static __always_inline const struct tg_import_span *
tg_import_span(void *rows, __u32 spans, const struct tg_packet *p)
{
	const struct tg_import_span *span;
	__u32 low = 0, high = spans, middle;

	for (int i = 0; i < TG_IMPORT_STEPS; i++) {
		middle = (low + high) / 2;
		span = tg_at(rows, TG_IMPORT_FIRST_SPAN + middle);
		if (!span)
			return 0;
		if (tg_import_after(span, p))
			high = middle;
		else
			low = middle;
	}
	return tg_at(rows, TG_IMPORT_FIRST_SPAN + low);
}

static __always_inline int tg_import_in(const struct tg_import_ports *ports,
					__u16 port)
{
	for (int i = 0; i < TG_IMPORT_RANGES; i++)
		if (port >= ports[i].first && port <= ports[i].last)
			return 1;
	return 0;
}

static __always_inline int tg_import_from(const struct tg_import_rule *rule,
					  const struct tg_packet *p)
{
	for (int i = 0; i < 4; i++)
		if ((p->src[i] & rule->source_mask[i]) != rule->source[i])
			return 0;
	return !p->ipv6 == !(rule->asks & TG_IMPORT_ASKS_IPV6);
}

/* Whether a rule at the packet's destination matches it; not static, either. */
__noinline int tg_import_fits(const struct tg_import_rule *rule,
			      const struct tg_packet *p, __u32 seen)
{
	if (!rule || !p || !tg_import_from(rule, p))
		return 0;
	if (rule->asks & TG_IMPORT_ASKS_PROTOCOL &&
	    rule->protocol != (seen & 0xff))
		return 0;
	if (rule->asks & (TG_IMPORT_ASKS_TO | TG_IMPORT_ASKS_FROM) &&
	    !(seen & TG_SEEN_PORTS))
		return 0;
	if (rule->asks & TG_IMPORT_ASKS_TO && !tg_import_in(rule->to, p->dport))
		return 0;
	if (rule->asks & TG_IMPORT_ASKS_FROM &&
	    !tg_import_in(rule->from, p->sport))
		return 0;
	if (!(rule->asks & TG_IMPORT_ASKS_FLAGS))
		return 1;
	return seen & TG_SEEN_TCP &&
	       (p->flags & rule->flags_mask) == rule->flags_value;
}

/* The rule that it obeys, or none. `rows`: one generation, from begin to end. */
static __always_inline const struct tg_import_rule *
tg_import_rule_of(void *rows, __u32 spans, const struct tg_packet *p,
		  __u32 seen)
{
	const struct tg_import_span *span = tg_import_span(rows, spans, p);
	const struct tg_import_rule *rule;

	if (!span)
		return 0;
	for (__u32 i = 0; i < TG_IMPORT_AT; i++) {
		if (i >= span->rules)
			break;
		rule = tg_at(rows, TG_IMPORT_FIRST_RULE + span->rule[i]);
		if (rule && tg_import_fits(rule, p, seen))
			return rule;
	}
	return 0;
}

#endif
