/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The least rate: one SYN in an interval is admitted past the limits that count what
 * is there (in flight, accept queue). docs/decisions/0020 tells why.
 *
 *	a limit is full ──► an interval since the last one? ──► past the limits
 *			    else refused
 *
 * A server that hangs keeps its limits full, and without a client it has nothing by
 * which anybody could tell that it is back. The policy is asked after this, as always:
 * its rate is never below the least one.
 *
 * Only who is refused asks, so a SYN below its limits costs nothing more. Zero is
 * fresh: the first interval begins where the clock does. One word of state, without a
 * lock, by compare-and-exchange: two CPUs never admit two in one interval.
 */
#ifndef TG_MIN_RATE_H
#define TG_MIN_RATE_H

#include "../contract/contract.h"

/*
 * 1: this one goes past them. `at_ns` is the state: when the last one did. Time that
 * goes back a little waits; a clock that was wrong begins a new interval, so that it
 * neither lets in more nor keeps everybody out until it is caught up with.
 */
TG_INLINE int tg_min_rate_admits(tg_u32 interval_us, tg_u64 *at_ns,
				 tg_u64 now_ns)
{
	tg_u64 interval_ns = interval_us * 1000ULL;
	tg_u64 then_ns = *(volatile const tg_u64 *)at_ns;
	int due = tg_elapsed_ns(now_ns, then_ns) >= interval_ns;

	if (!interval_us)	/* no least rate */
		return 0;
	if (!due && tg_elapsed_ns(then_ns, now_ns) <= TG_CLOCK_BACK_NS_MAX)
		return 0;
	return __sync_val_compare_and_swap(at_ns, then_ns, now_ns) == then_ns &&
	       due;
}

#endif
