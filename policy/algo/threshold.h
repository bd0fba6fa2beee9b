/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Thresholds on a level, per priority: Iyer, Tewari, Kant, "Overload Control
 * Mechanisms for Web Servers", sections 2.1 and 4. docs/decisions/0021 tells
 * which of its schemes are parameters here.
 *
 * The level is how much work waits (event->level). Each priority has a ladder
 * of thresholds that rise, and a rung on it:
 *
 *	rung		reached at	left below	what is done
 *	0				                all are admitted
 *	1		onset		abatement	throttled, severity 1
 *	2		onset + rise	onset		throttled, severity 2
 *	3		onset + rise	that of rung 2	throttled, severity 3
 *	4		discard		that of rung 3	all are refused
 *
 * So a rung is left below the threshold of the rung before it, as in the paper:
 * gapping from onset to abatement, dropping from discard to onset. A ladder with
 * fewer severities repeats the last one. A priority may be throttled harder than
 * its rung says (the paper drops 50 % of one client and 100 % of another).
 *
 * Throttled: a share of the events is refused, or those that come less than a
 * gap after the last one that was admitted while throttled. Both grow with the
 * severity. All throttled priorities share that last one. Preferred priorities
 * (the paper's uncontrolled clients) are not throttled, only discarded.
 *
 * A level of 0, which a host program gives that measures none, is below all
 * thresholds. Lower priorities have thresholds at most as high, so that nothing
 * is refused to a priority that one below it is granted. For that the rungs of
 * all are kept at each event, not only that of its own priority.
 */
#ifndef TG_THRESHOLD_H
#define TG_THRESHOLD_H

#include "../contract/contract.h"

#define TG_SEVERITIES 3
#define TG_RUNG_DISCARD (TG_SEVERITIES + 1)
#define TG_LEVEL_NONE 0xffffffffU	/* a threshold that is never reached */

enum tg_throttle {
	TG_THROTTLE_NONE = 0,
	TG_THROTTLE_SHARE = 1,	/* in 1/TG_SHARE_ONE, refused */
	TG_THROTTLE_GAP = 2,	/* in us */
};

struct tg_threshold_params {
	tg_u32 abatement[TG_PRIORITIES];
	tg_u32 onset[TG_PRIORITIES];	/* not below the abatement */
	tg_u32 discard[TG_PRIORITIES];	/* not below the last onset */
	tg_u32 rise[TG_SEVERITIES];	/* from onset to rung 1 (0), 2, 3 */
	tg_u32 throttle[TG_RUNG_DISCARD];	/* by severity: share or gap,
						 * not falling; [0] is unused */
	tg_u8 harder[TG_PRIORITIES];	/* severity above that of the rung */
	tg_u8 in_force;			/* 0: no limit */
	tg_u8 kind;			/* enum tg_throttle */
	tg_u8 preferred;		/* bit i: priority i */
	tg_u8 action;			/* TG_DROP or TG_REJECT */
};
TG_ASSERT(sizeof(struct tg_threshold_params) == 136);

struct tg_threshold_state {
	tg_u64 last_ns;			/* 0: none was let through a gap yet */
	tg_u8 rung[TG_PRIORITIES];
};
TG_ASSERT(sizeof(struct tg_threshold_state) == 16);

struct tg_threshold_stats {
	tg_u64 admitted;
	tg_u64 throttled;
	tg_u64 discarded;
};

/*
 * 1: the level has reached a threshold, both below 2^40. From bits above those of
 * the difference, not by a comparison: the kernel's verifier would follow both
 * ways of all 40, one after the other.
 */
TG_INLINE tg_u32 tg_threshold_reached(tg_u64 level, tg_u64 threshold)
{
	return ~((level - threshold) >> 40) & 1;
}

TG_INLINE tg_u32 tg_threshold_rung(const struct tg_threshold_params *p, int i,
				   tg_u64 level, tg_u32 rung)
{
	tg_u32 up = 0;	/* the highest rung that the level has reached */
	tg_u32 keep;	/* the highest that it has not left */

	for (int k = 0; k < TG_SEVERITIES; k++)
		up += tg_threshold_reached(level, (tg_u64)p->onset[i] +
					   p->rise[k]);
	keep = up + tg_threshold_reached(level, p->abatement[i]);
	up += tg_threshold_reached(level, p->discard[i]);
	rung = tg_min(rung, keep);
	return rung > up ? rung : up;
}

TG_INLINE void tg_threshold_tick(const struct tg_threshold_params *p,
				 struct tg_threshold_state *s, tg_u64 now_ns)
{
	(void)p;
	/* a clock that was wrong before is believed now */
	if (s->last_ns > now_ns && s->last_ns - now_ns > TG_CLOCK_BACK_NS_MAX)
		s->last_ns = now_ns;
}

TG_INLINE void tg_threshold_observe(const struct tg_threshold_params *p,
				    struct tg_threshold_state *s,
				    const struct tg_event *e)
{
	(void)p; (void)s; (void)e;	/* completions are in the level */
}

/* 1: this one of a throttled priority is let through. */
TG_INLINE int tg_threshold_lets(const struct tg_threshold_params *p,
				struct tg_threshold_state *s,
				const struct tg_event *e, tg_u32 severity)
{
	tg_u32 throttle = p->throttle[tg_min(severity, TG_SEVERITIES)];

	if (p->kind == TG_THROTTLE_SHARE)
		return e->random >> 16 >= throttle;
	tg_threshold_tick(p, s, e->now_ns);
	if (s->last_ns && tg_elapsed_ns(e->now_ns, s->last_ns) <
			  throttle * 1000ULL)
		return 0;
	if (e->now_ns > s->last_ns)
		s->last_ns = e->now_ns;
	return 1;
}

TG_INLINE struct tg_verdict
tg_threshold_admit(const struct tg_threshold_params *p,
		   struct tg_threshold_state *s,
		   struct tg_threshold_stats *stats, const struct tg_event *e)
{
	tg_u64 level = tg_min(e->level, TG_LEVEL_NONE - 1);
	tg_u32 i = e->priority & (TG_PRIORITIES - 1);
	int throttled;

	if (!p->in_force) {
		stats->admitted++;
		return tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);
	}
	for (int k = 0; k < TG_PRIORITIES; k++)
		s->rung[k] = tg_threshold_rung(p, k, level, s->rung[k]);
	if (s->rung[i] >= TG_RUNG_DISCARD) {
		stats->discarded++;
		return tg_verdict(tg_action(p->action), TG_REASON_DISCARD);
	}
	throttled = s->rung[i] && p->kind != TG_THROTTLE_NONE;
	if (throttled && !(p->preferred >> i & 1) &&
	    !tg_threshold_lets(p, s, e, s->rung[i] + p->harder[i])) {
		stats->throttled++;
		return tg_verdict(tg_action(p->action), TG_REASON_THROTTLED);
	}
	stats->admitted++;
	return tg_verdict(TG_ADMIT, throttled ? TG_REASON_LET_THROUGH :
			  TG_REASON_BELOW_THRESHOLD);
}

#endif
