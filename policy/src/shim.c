/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The policies for native hosts: the one call, and the sizes and offsets by
 * which the Rust side checks its own view of the structures.
 */
#include <stddef.h>

#include "policies.h"

void tg_native_admit(const struct tg_params *p, struct tg_state *s,
		     const struct tg_event *e, struct tg_verdict *v);
size_t tg_native_layout(size_t index);

void tg_native_admit(const struct tg_params *p, struct tg_state *s,
		     const struct tg_event *e, struct tg_verdict *v)
{
	*v = tg_policy_admit(p, s, e);
}

size_t tg_native_layout(size_t index)
{
	static const size_t layout[] = {
		sizeof(struct tg_params),
		sizeof(struct tg_state),
		sizeof(struct tg_event),
		sizeof(struct tg_verdict),
		offsetof(struct tg_params, u),
		offsetof(struct tg_token_bucket_params, reserve),
		offsetof(struct tg_token_bucket_params, action),
		offsetof(struct tg_fresh_first_params, fresh_reserve),
		offsetof(struct tg_fresh_first_params, action),
		offsetof(struct tg_abacus_params, period_ns),
		offsetof(struct tg_abacus_params, room_milli),
		offsetof(struct tg_abacus_params, window),
		offsetof(struct tg_abacus_params, schedule),
		offsetof(struct tg_abacus_params, ewma_shift),
		offsetof(struct tg_abacus_exact_params, period_ns),
		offsetof(struct tg_abacus_exact_params, room_milli),
		offsetof(struct tg_abacus_exact_params, window),
		offsetof(struct tg_abacus_exact_params, schedule),
		offsetof(struct tg_abacus_learned_params, slot_ns),
		offsetof(struct tg_abacus_learned_params, crowd_q32),
		offsetof(struct tg_abacus_learned_params, steps),
		offsetof(struct tg_abacus_learned_params, gap),
		offsetof(struct tg_event, random),
		offsetof(struct tg_event, priority),
	};

	return index < sizeof(layout) / sizeof(layout[0]) ? layout[index] : 0;
}
