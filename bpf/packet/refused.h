/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Notes who was refused (policy/chain/lately.h), for whoever asks within a minute. */
#ifndef TG_REFUSED_H
#define TG_REFUSED_H

#include "lately.h"
#include "packet.h"

/* Where a client is noted in the slice that is written to. */
static __always_inline struct tg_lately_line *tg_refused_line(__u64 hash)
{
	__u32 line = tg_lately_line_of(hash, settings.lately_mask), first = 0;
	const struct tg_lately_turn *turn =
		bpf_map_lookup_elem(&tg_lately_turn, &first);

	if (!turn)
		return 0;
	line += READ_ONCE(turn->slice) * (settings.lately_mask + 1);
	return bpf_map_lookup_elem(&tg_lately, &line);
}

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

static __always_inline void tg_refused_note(__u64 hash, int shadow)
{
	struct tg_lately_line *line = tg_refused_line(hash);

	if (line)
		tg_lately_note(line, shadow ? hash | TG_LATELY_SHADOW : hash);
}

#endif
