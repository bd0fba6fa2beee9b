/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The source of a packet, as a canary chooses among them (policy/chain/canary.h). */
#ifndef TG_CHOSEN_H
#define TG_CHOSEN_H

#include "../../policy/chain/canary.h"
#include "base.h"
#include "packet.h"

/* Not static: the verifier looks at it once. */
__noinline __u64 tg_canary_of(const struct tg_packet *p,
			      const struct tg_service *service)
{
	if (!p || !service)
		return TG_CANARY_UNKNOWN;
	return tg_canary_source(p->src, service->identity, settings.key);
}

/* The same where these flags have a canary; else it does not matter. */
static __always_inline __u64 tg_chosen_by(__u32 flags,
					  const struct tg_packet *p,
					  const struct tg_service *service)
{
	return unlikely(tg_canary_asks(flags)) ? tg_canary_of(p, service) : 0;
}

#endif
