/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Time sliding window: the smoothed rate of one connection (papers/news.txt,
 * section 4.1, after Clark and Fang). With window w, each packet of L bytes
 *
 *	rate = (rate * w + L) / (now - then + w),	then = now
 *
 * The first packets of a connection are control packets: they are skipped. Within
 * one window the rate is little more than the bytes that came, divided by w. So with
 * w = 1 s it measures the size of a short response and not its speed.
 *
 * Zero is fresh. One division a packet.
 */
#ifndef TG_TSW_H
#define TG_TSW_H

#include "../contract/contract.h"

#define TG_TSW_WINDOW_NS_MAX (4 * TG_NS_PER_S)	/* bounds the product below */
#define TG_TSW_RATE_MAX 0x7fffffffULL		/* bytes per second */

struct tg_tsw_params {
	tg_u64 window_ns;	/* 1 … TG_TSW_WINDOW_NS_MAX; 0: nothing is measured */
	tg_u32 skip;		/* packets before the first one that counts */
	tg_u32 pad;
};
TG_ASSERT(sizeof(struct tg_tsw_params) == 16);

struct tg_tsw {
	tg_u64 then_ns;		/* of the last packet that counted */
	tg_u32 rate;		/* bytes per second, rounded down */
	tg_u32 seen;		/* packets, as far as they are skipped; one more after */
};
TG_ASSERT(sizeof(struct tg_tsw) == 16);

/* rate * w + bytes over elapsed + w. No overflow: 2^31 * 2^32 + 2^32 * 2^30. */
TG_INLINE tg_u32 tg_tsw_slide(tg_u64 window_ns, tg_u64 rate, tg_u32 bytes,
			      tg_u64 elapsed_ns)
{
	tg_u64 over = tg_min(elapsed_ns, ~0ULL - window_ns) + window_ns;

	return tg_min((rate * window_ns + bytes * TG_NS_PER_S) / over,
		      TG_TSW_RATE_MAX);
}

/* A packet of the direction that is measured. Time that goes back stands still. */
TG_INLINE void tg_tsw_add(const struct tg_tsw_params *p, struct tg_tsw *s,
			  tg_u64 now_ns, tg_u32 bytes)
{
	tg_u64 window_ns = tg_min(p->window_ns, TG_TSW_WINDOW_NS_MAX);
	tg_u64 elapsed_ns;

	if (!window_ns)
		return;
	if (s->seen < p->skip) {
		s->seen++;
		return;
	}
	if (s->seen == p->skip) {	/* the first one: nothing was before it */
		if (p->skip != 0xffffffff)
			s->seen++;
		s->then_ns = now_ns;
	}
	elapsed_ns = tg_elapsed_ns(now_ns, s->then_ns);
	s->rate = tg_tsw_slide(window_ns, s->rate, bytes, elapsed_ns);
	if (now_ns > s->then_ns)
		s->then_ns = now_ns;
}

/* The rate as of now, if nothing has come since the last packet. */
TG_INLINE tg_u32 tg_tsw_rate(const struct tg_tsw_params *p,
			     const struct tg_tsw *s, tg_u64 now_ns)
{
	tg_u64 window_ns = tg_min(p->window_ns, TG_TSW_WINDOW_NS_MAX);

	if (!window_ns || s->seen <= p->skip)
		return 0;
	return tg_tsw_slide(window_ns, s->rate, 0,
			    tg_elapsed_ns(now_ns, s->then_ns));
}

#endif
