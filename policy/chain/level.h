/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The level: how much work waits for a service, for thresholds on it
 * (algo/threshold.h). docs/decisions/0026 tells why it is counted so.
 *
 *	accept queue	connections that wait for accept()
 *	in flight	requests that wait for a response
 *
 * Each counts by its weight, and the larger one is the level: who waits in the
 * accept queue and has sent a request is in both. With weights of one the level is
 * a number; with the time that one request takes of the service, it is the virtual
 * waiting time in us. The control loop writes weights, so nothing is divided here.
 *
 * Zero weights: level 0, which is below every threshold.
 */
#ifndef TG_LEVEL_H
#define TG_LEVEL_H

#include "../contract/contract.h"

#define TG_LEVEL_SHIFT 10	/* weights are in 1/1024 */
#define TG_LEVEL_MAX 0xfffffffeU	/* below a threshold that is never reached */

struct tg_level {
	tg_u32 queue_q10;
	tg_u32 in_flight_q10;
};
TG_ASSERT(sizeof(struct tg_level) == 8);

/* No overflow: count is below 2^32. */
TG_INLINE tg_u32 tg_level_of(tg_u64 count, tg_u32 weight_q10)
{
	return tg_min(count * weight_q10 >> TG_LEVEL_SHIFT, TG_LEVEL_MAX);
}

/* The gauge may be below zero for a moment: two CPUs move it out of order. */
TG_INLINE tg_u32 tg_level_in_flight(long long in_flight, tg_u32 weight_q10)
{
	if (in_flight <= 0)
		return 0;
	return tg_level_of(tg_min(in_flight, 0xffffffffU), weight_q10);
}

TG_INLINE tg_u32 tg_level(const struct tg_level *l, tg_u32 queue,
			  long long in_flight)
{
	tg_u32 one = tg_level_of(queue, l->queue_q10);
	tg_u32 two = tg_level_in_flight(in_flight, l->in_flight_q10);

	return one > two ? one : two;
}

#endif
