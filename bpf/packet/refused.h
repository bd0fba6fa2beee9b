/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Notes who was refused (policy/chain/lately.h), for whoever asks within a minute. */
#ifndef TG_REFUSED_H
#define TG_REFUSED_H

#include "maps.h"
#include "packet.h"

static __always_inline void tg_refused_note(const struct tg_packet *p,
					    const struct tg_service *service,
					    int shadow)
{
	const struct tg_lately_turn *turn = tg_at(&tg_lately_turn, 0);
	struct tg_lately_line *line;
	__u64 hash;

	if (!turn)
		return;
	hash = tg_lately_hash(p->src, tg_lately_by(service->identity, shadow),
			      settings.key);
	line = tg_at(&tg_lately,
		     READ_ONCE(turn->slice) * (settings.lately_mask + 1) +
			     tg_lately_line_of(hash, settings.lately_mask));
	if (line)
		tg_lately_note(line, hash);
}

#endif
