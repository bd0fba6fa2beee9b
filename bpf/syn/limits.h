/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The chain (policy/chain) over the kernel's maps: where it finds limits and state,
 * and what only the kernel knows, the source that holds too many connections.
 */
#ifndef TG_LIMITS_H
#define TG_LIMITS_H

#include "../packet/maps.h"
#include "../packet/packet.h"
#include "../track/source.h"

static __always_inline const struct tg_limits *tg_host_limits(__u64 service)
{
	return tg_limits_row(service & (TG_SERVICES_MAX - 1));
}

static __always_inline struct tg_chain *tg_host_chain(__u64 service)
{
	return tg_at(&tg_states, service);
}

static __always_inline struct tg_bucket_copy *tg_host_copy(__u64 service)
{
	return tg_at(&tg_copies, service);
}

static __always_inline struct tg_senders *tg_host_senders(__u64 service)
{
	return tg_at(&tg_senders, service);
}

#include "../../policy/chain/decide.h"

/* 1: the source may open no more connections. Not static, as the steps. */
__noinline int tg_limits_source(__u64 source, __u32 max)
{
	return tg_source_over(source, max);
}

/* Zero, or the reason why there is no answer. */
static __always_inline int tg_limits_ask(const struct tg_limits *limits,
					 struct tg_ask *ask, __u64 source)
{
	/* before the others, and not by them: their stack is deep */
	if (limits && unlikely(limits->source_max))
		ask->over = tg_limits_source(source, limits->source_max);
	return tg_chain_decide(limits, ask) ? TG_REASON_LOOKUP_FAILED : 0;
}

#endif
