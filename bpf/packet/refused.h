/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Notes who was refused by a service, for whoever asks within a minute. */
#ifndef TG_REFUSED_H
#define TG_REFUSED_H

#include "maps.h"
#include "packet.h"

static __always_inline __u64 tg_refused_hash(const struct tg_packet *p,
					     const struct tg_service *service)
{
	return tg_lately_hash(p->src, service->identity, settings.key);
}

/*
 * Reads the line without using it: as with tg_chain_fetch(), it comes while the kernel
 * looks for the socket. The hash, for tg_refused_note(). Not static: the verifier looks
 * at it once.
 */
__noinline __u64 tg_refused_fetch(const struct tg_packet *p,
				  const struct tg_service *service)
{
	struct tg_lately_line *line;
	__u64 hash;

	if (!p || !service)
		return 0;
	hash = tg_refused_hash(p, service);
	line = tg_refused_line(hash);
	if (line)
		READ_ONCE(line->word[0]);
	return hash;
}

#endif
