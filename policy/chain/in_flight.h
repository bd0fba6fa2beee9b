/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The limit in flight. docs/decisions/0003 tells why.
 *
 *	in flight = waiting + pending
 *	pending   = asks × (silent − the silent that are usual)
 *
 * Waiting are those whom the server owes a response. Silent are those who have
 * completed their handshake and said nothing: some of them will ask in a moment,
 * others never do. `asks` is the share that does, as the control loop has seen it
 * lately. What is pending is an estimate, so it never counts for more than what
 * lies between `low` and `max`, and for less than `low`: silent connections alone
 * close nothing, neither of the two.
 *
 * Onset and abatement: up to `max` may be in flight. Once that has refused, up to
 * `low`, until no more than `rest` are: then it was a burst, and `max` holds again.
 * Whoever is let into a full queue waits for all of it, so a limit that is kept
 * full makes each of them late.
 *
 * Zero is fresh, and limits nothing. One word of state, without a lock: two CPUs
 * may disagree about one SYN.
 */
#ifndef TG_IN_FLIGHT_H
#define TG_IN_FLIGHT_H

#include "../contract/contract.h"

#define TG_ASKS_SHIFT 10	/* the share in 1/1024 */

struct tg_in_flight {
	tg_u32 max;	/* 0: no limit */
	tg_u32 low;	/* once max has refused; 0, or not below max: max */
	tg_u32 rest;	/* ends that */
	tg_u32 silent;	/* that are usual */
	tg_u32 asks;	/* 1/1024 of the others; 0: only who waits counts */
};
TG_ASSERT(sizeof(struct tg_in_flight) == 20);

/* The gauges are exact, but two CPUs may move one out of order: below zero. */
TG_INLINE tg_u64 tg_in_flight_count(const struct tg_in_flight *l,
				    long long waiting, long long silent)
{
	tg_u64 most = l->max > l->low ? l->max - l->low : 0;
	tg_u64 below = l->low ? l->low - 1 : most;
	long long beyond = silent - (long long)l->silent;
	tg_u64 pending = 0;

	if (beyond > 0)
		pending = tg_min(beyond, 1ULL << 32) * l->asks >> TG_ASKS_SHIFT;
	most = tg_min(most, below);
	return (waiting > 0 ? (tg_u64)waiting : 0) + tg_min(pending, most);
}

/* 1: no more may come. `tight` is the state: `max` has refused. */
TG_INLINE int tg_in_flight_full(const struct tg_in_flight *l, tg_u32 *tight,
				long long waiting, long long silent)
{
	tg_u64 count = tg_in_flight_count(l, waiting, silent);
	tg_u32 two = l->low && l->low < l->max;
	tg_u32 was = two && *tight && count > l->rest;
	int full = l->max && count >= (was ? l->low : l->max);

	was |= two && full;
	/* a line that all CPUs read is written when something changes */
	if (*tight != was)
		*tight = was;
	return full;
}

#endif
