/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Abacus filter with exact knowledge: retransmissions are recognised.
 *
 * The published filter (abacus.h) cannot tell a new SYN from a copy: its lambda
 * counts both, it may reject clients who have waited, and its B[] is a guess.
 * Here every dropped SYN is remembered by its key, with the number of its
 * copies and the period in which the next one is due. What follows from that:
 *
 *  - Oldest first. How many come back in this period, and how often each has
 *    tried, is known: tokens are held back for them. A copy (attempt k) takes a
 *    token only if one stays for each that is due in this period with more
 *    attempts; a new arrival, if one stays for each that is due. At most all
 *    but one token are held back: a full bucket serves anybody, so that nothing
 *    is lost when those who were expected do not come (spoofed sources). A
 *    bucket that holds less than r_t * T0 holds back an eighth at most: it
 *    would overflow between two new arrivals while it waits for the rest.
 *  - Only new arrivals are evaluated. One that finds no token walks T_1, T_2, ...
 *    to the first period with room, as in the published figure 7, books a place
 *    there and is dropped; if there is none within the window, it is rejected.
 *  - Who was dropped once is dropped again until a token is there. It is
 *    rejected only when its next copy would never come (the schedule is over)
 *    or lies further away than the window, which means that waiting for it
 *    costs more than a rejection (the paper's S <= r / h).
 *  - Room of a period i ahead is what is left of r_t * T0 by new arrivals and
 *    by the places booked there. What new arrivals take of a period is at most
 *    r_t * T0 (the rest of a burst is not served then, whatever is said about
 *    later), averaged over the power of two of periods that is nearest to i:
 *    who looks three periods ahead asks the last four, not the last minute.
 *  - A place that was booked stays booked when its client is served earlier:
 *    the token came from somebody who comes back later in its stead.
 *
 * A copy may come a period early (jitter); one that comes earlier does not age.
 * A copy that comes late is served like any other. Memory is a fixed table of
 * 8-way sets; a full set forgets whose time has passed, else who has tried
 * least. Forgetting makes a copy look new: it costs a place in the order. Keys
 * are seeded per boot by the caller. Only who was promised something is
 * remembered, so that a flood of spoofed sources fills at most the room.
 */
#ifndef TG_ABACUS_EXACT_H
#define TG_ABACUS_EXACT_H

#include "../contract/contract.h"

#define TG_EXACT_PERIODS 128	/* ring size; the window is below it */
#define TG_EXACT_STEPS_MAX 12	/* retransmissions in a schedule */
#define TG_EXACT_TABLE 16	/* a power of two above: masked, for verifiers */
#define TG_EXACT_AGES 14	/* [0] and the last are not used */
#define TG_EXACT_AVERAGES 8	/* over 1, 2, 4 … 128 periods */
#define TG_EXACT_CATCH_UP 32	/* periods at once; longer than usual gaps */
#define TG_EXACT_MILLI 1000	/* of a SYN: the unit of room and averages */
#define TG_EXACT_SHALLOW 8	/* held back of a shallow bucket: an eighth */
#define TG_EXACT_SETS 4096
#define TG_EXACT_WAYS 8
#define TG_EXACT_EARLY (1U << 31)	/* periods are compared modulo 2^32 */

struct tg_abacus_exact_params {
	struct tg_bucket_params bucket;
	tg_u64 reserve[TG_PRIORITIES];	/* picotokens, not falling */
	tg_u64 period_ns;		/* T0 */
	tg_u32 room_milli;		/* r_t * T0 in thousandths of a SYN */
	tg_u16 window;			/* S in periods, < TG_EXACT_PERIODS */
	tg_u16 steps;			/* N: entries of the schedule in use */
	tg_u16 schedule[TG_EXACT_TABLE];	/* T_i in periods, rising */
};
TG_ASSERT(sizeof(struct tg_abacus_exact_params) == 136);

struct tg_exact_period {
	tg_u32 booked_milli;		/* places given to new arrivals */
	tg_u16 due[TG_EXACT_AGES];	/* [k]: who comes here for the k-th time */
};

/* One client that was dropped; it is counted in due[] of its period. */
struct tg_exact_client {
	tg_u32 due;		/* period in which the next copy is expected */
	tg_u32 print : 24;	/* of the key; 0: free */
	tg_u32 attempts : 8;	/* copies seen after the first SYN */
};
TG_ASSERT(sizeof(struct tg_exact_client) == 8);

struct tg_exact_set {
	struct tg_exact_client way[TG_EXACT_WAYS];
};

struct tg_abacus_exact_state {
	struct tg_bucket bucket;
	tg_u64 period_end_ns;	/* 0: no SYN seen yet */
	tg_u32 now;		/* number of the current period */
	tg_u32 arrivals_milli;	/* new ones in the current period */
	tg_u32 average_milli[TG_EXACT_AVERAGES];	/* [k]: over 2^k periods */
	tg_u32 way;		/* see tg_exact_any */
	tg_u32 pad;
	struct tg_exact_period period[TG_EXACT_PERIODS];
	struct tg_exact_set set[TG_EXACT_SETS];
};
TG_ASSERT(sizeof(struct tg_abacus_exact_state) == 72 + 4096 + 262144);

struct tg_abacus_exact_stats {
	tg_u64 admitted;
	tg_u64 borrowed;
	tg_u64 expected_again;
	tg_u64 rejected;
};

TG_INLINE struct tg_exact_period *
tg_exact_at(struct tg_abacus_exact_state *s, tg_u32 ahead)
{
	return &s->period[(s->now + ahead) & (TG_EXACT_PERIODS - 1)];
}

TG_INLINE tg_u32 tg_exact_ones(tg_u32 byte)
{
	byte -= byte >> 1 & 0x55;
	byte = (byte & 0x33) + (byte >> 2 & 0x33);
	return (byte + (byte >> 4)) & 0xf;
}

/*
 * The exponent of the power of two that is nearest to n < 128 (the larger of
 * two): the place of its highest one, plus the bit below. Without a branch,
 * for verifiers.
 */
TG_INLINE tg_u32 tg_exact_horizon(tg_u32 n)
{
	tg_u32 filled = n & (TG_EXACT_PERIODS - 1);

	filled |= filled >> 1;
	filled |= filled >> 2;
	filled |= filled >> 4;
	return (tg_exact_ones(filled >> 1) +
		tg_exact_ones(n & (filled + 1) >> 2)) &
	       (TG_EXACT_AVERAGES - 1);
}

TG_INLINE void tg_exact_shift(const struct tg_abacus_exact_params *p,
			      struct tg_abacus_exact_state *s)
{
	tg_u32 taken_milli = tg_min(s->arrivals_milli, p->room_milli);
	struct tg_exact_period fresh = {};

	for (tg_u32 k = 0; k < TG_EXACT_AVERAGES; k++) {
		long long change = (long long)taken_milli - s->average_milli[k];

		/* downwards it is rounded up: silence ends at zero */
		s->average_milli[k] += change >> k;
	}
	s->arrivals_milli = 0;
	*tg_exact_at(s, 0) = fresh;
	s->now++;
}

TG_INLINE void tg_abacus_exact_tick(const struct tg_abacus_exact_params *p,
				    struct tg_abacus_exact_state *s,
				    tg_u64 now_ns)
{
	if (!s->period_end_ns ||
	    s->period_end_ns > now_ns + p->period_ns + TG_CLOCK_BACK_NS_MAX)
		s->period_end_ns = now_ns + p->period_ns;
	/*
	 * One step a period. After a longer silence, in which not even a copy
	 * has come, it goes on where it stood: what was booked there is free
	 * when its time has passed, and nothing is lost by it.
	 */
	for (tg_u32 i = 0; i < TG_EXACT_CATCH_UP; i++) {
		if (now_ns < s->period_end_ns)
			return;
		tg_exact_shift(p, s);
		s->period_end_ns += p->period_ns;
	}
	if (now_ns >= s->period_end_ns)
		s->period_end_ns = now_ns + p->period_ns;
}

TG_INLINE void tg_abacus_exact_observe(const struct tg_abacus_exact_params *p,
				       struct tg_abacus_exact_state *s,
				       const struct tg_event *e)
{
	(void)p; (void)s; (void)e;	/* completions do not matter here */
}

/* Where admit will look: see tg_policy_near. */
TG_INLINE const void *
tg_abacus_exact_near(const struct tg_abacus_exact_state *s, tg_u64 key)
{
	return &s->set[key & (TG_EXACT_SETS - 1)];
}

TG_INLINE tg_u32 tg_exact_print(tg_u64 key)
{
	tg_u32 print = key >> 40;

	return print ? print : 1;
}

/* Periods since its time: 0 on time; TG_EXACT_EARLY or more: before it. */
TG_INLINE tg_u32 tg_exact_late(const struct tg_abacus_exact_state *s,
			       const volatile struct tg_exact_client *c)
{
	return s->now - c->due;
}

/*
 * Puts a number into memory and takes it out again: a verifier then goes on
 * once with any way, not eight times with each.
 */
TG_INLINE tg_u32 tg_exact_any(struct tg_abacus_exact_state *s, tg_u32 way)
{
	*(volatile tg_u32 *)&s->way = way;
	return *(volatile tg_u32 *)&s->way;
}

/*
 * The way that holds this fingerprint; TG_EXACT_WAYS or more if none does. The
 * least difference, with its way in the low bits: no way is a constant.
 */
TG_INLINE tg_u32 tg_exact_find(const struct tg_exact_set *set, tg_u32 print)
{
	tg_u32 least = ~0U;

	for (tg_u32 i = 0; i < TG_EXACT_WAYS; i++) {
		tg_u32 other = set->way[i].print;

		least = tg_min(least, (other ^ print) * TG_EXACT_WAYS + i);
	}
	return least;
}

/* Whom to forget: nobody, whose time has passed, or who has tried least. */
TG_INLINE tg_u32 tg_exact_victim(const struct tg_abacus_exact_state *s,
				 const struct tg_exact_set *set)
{
	tg_u32 victim = 0, least = ~0U;

	for (tg_u32 i = 0; i < TG_EXACT_WAYS; i++) { /* volatile: clang 14 */
		const volatile struct tg_exact_client *c = &set->way[i];
		tg_u32 late = tg_exact_late(s, c);
		tg_u32 worth = c->attempts + 2;

		if (late > 1 && late < TG_EXACT_EARLY)
			worth = 1;
		if (!c->print)
			worth = 0;
		if (worth < least) {
			least = worth;
			victim = i;
		}
	}
	return victim;
}

/* How many come in the period of this client for as many times as it does. */
TG_INLINE tg_u16 *tg_exact_due(struct tg_abacus_exact_state *s,
			       const struct tg_exact_client *c)
{
	tg_u32 time = tg_min(c->attempts + 1U, TG_EXACT_AGES - 2);

	return &s->period[c->due & (TG_EXACT_PERIODS - 1)].due[time];
}

/* It has come, or was forgotten: nothing is held back for it any more. */
TG_INLINE void tg_exact_uncount(struct tg_abacus_exact_state *s,
				const struct tg_exact_client *c)
{
	tg_u16 *due = tg_exact_due(s, c);

	if (c->due - s->now < TG_EXACT_PERIODS && *due)
		--*due;
}

/* Dropped: the next copy is due after a gap, which is within the window. */
TG_INLINE void tg_exact_expect(struct tg_abacus_exact_state *s,
			       struct tg_exact_client *c, tg_u32 gap)
{
	tg_u16 *due;

	c->due = s->now + (gap & (TG_EXACT_PERIODS - 1));
	due = tg_exact_due(s, c);
	*due += *due < 0xffff;
}

/* Periods between attempt k and the next; 0: there is none. */
TG_INLINE tg_u32 tg_exact_gap(const struct tg_abacus_exact_params *p, tg_u32 k)
{
	tg_u32 this_at = k & (TG_EXACT_TABLE - 1);
	tg_u32 last_at = (k - 1) & (TG_EXACT_TABLE - 1);

	if (k >= p->steps)
		return 0;
	return p->schedule[this_at] - (k ? p->schedule[last_at] : 0);
}

/* Figure 7, BORROW_TOKEN, for new arrivals: 1 if a place was booked. */
TG_INLINE int tg_exact_book(const struct tg_abacus_exact_params *p,
			    struct tg_abacus_exact_state *s, tg_u32 milli)
{
	for (tg_u32 k = 0; k < TG_EXACT_STEPS_MAX; k++) {
		tg_u32 ahead = p->schedule[k];
		struct tg_exact_period *at;
		tg_u64 used_milli;

		if (k >= p->steps || ahead > p->window)
			return 0;
		at = tg_exact_at(s, ahead);
		used_milli = (tg_u64)at->booked_milli +
			     s->average_milli[tg_exact_horizon(ahead)];
		if (used_milli + milli <= p->room_milli) {
			at->booked_milli += milli;
			return 1;
		}
	}
	return 0;
}

/* A token that leaves enough for the priorities above and for who is older. */
TG_INLINE int tg_exact_take(const struct tg_abacus_exact_params *p,
			    struct tg_abacus_exact_state *s,
			    const struct tg_event *e, tg_u32 age)
{
	const struct tg_exact_period *now = tg_exact_at(s, 0);
	tg_u64 held = 0;

	for (tg_u32 k = 1; k < TG_EXACT_AGES; k++)
		if (k > age)
			held += now->due[k] * TG_TOKEN;
	/* filled in less than a period, it would overflow while it waits */
	if (p->bucket.depth < p->room_milli * (TG_TOKEN / TG_EXACT_MILLI))
		held = tg_min(held, p->bucket.depth / TG_EXACT_SHALLOW);
	held += p->reserve[e->priority & (TG_PRIORITIES - 1)];
	/* a full bucket serves anybody: what overflows helps nobody */
	if (held + TG_TOKEN > p->bucket.depth)
		held = p->bucket.depth - tg_min(p->bucket.depth, TG_TOKEN);
	return tg_bucket_take_for(&p->bucket, &s->bucket, held, e);
}

TG_INLINE struct tg_verdict
tg_exact_refuse_new(const struct tg_abacus_exact_params *p,
		    struct tg_abacus_exact_state *s,
		    struct tg_abacus_exact_stats *stats,
		    struct tg_exact_set *set, const struct tg_event *e)
{
	struct tg_exact_client *c;

	if (!tg_exact_book(p, s, tg_event_milli(e))) {
		stats->rejected++;
		return tg_verdict(TG_REJECT, TG_REASON_NO_ROOM);
	}
	c = &set->way[tg_exact_any(s, tg_exact_victim(s, set)) &
		      (TG_EXACT_WAYS - 1)];
	if (c->print)
		tg_exact_uncount(s, c);
	c->print = tg_exact_print(e->key);
	c->attempts = 0;
	tg_exact_expect(s, c, p->schedule[0]);
	stats->borrowed++;
	return tg_verdict(TG_DROP, TG_REASON_BORROWED);
}

TG_INLINE struct tg_verdict
tg_exact_refuse_known(const struct tg_abacus_exact_params *p,
		      struct tg_abacus_exact_state *s,
		      struct tg_abacus_exact_stats *stats,
		      struct tg_exact_client *c)
{
	struct tg_verdict v = tg_verdict(TG_DROP, TG_REASON_EXPECTED_AGAIN);
	tg_u32 late = tg_exact_late(s, c) + 1;	/* a period early is on time */
	tg_u32 age = c->attempts + 1;
	tg_u32 gap = tg_exact_gap(p, age);

	v.repeated = 1;
	if (late >= TG_EXACT_EARLY) {
		stats->expected_again++;
		return v;
	}
	tg_exact_uncount(s, c);
	if (!gap || gap > p->window) {
		c->print = 0;
		stats->rejected++;
		v.kind = TG_REJECT;
		v.reason = TG_REASON_LAST_ATTEMPT;
		return v;
	}
	c->attempts = age;
	tg_exact_expect(s, c, gap);
	stats->expected_again++;
	return v;
}

TG_INLINE struct tg_verdict
tg_abacus_exact_admit(const struct tg_abacus_exact_params *p,
		      struct tg_abacus_exact_state *s,
		      struct tg_abacus_exact_stats *stats,
		      const struct tg_event *e)
{
	struct tg_exact_set *set = &s->set[e->key & (TG_EXACT_SETS - 1)];
	tg_u32 way;
	struct tg_verdict v = tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);
	struct tg_exact_client *c;

	if (!p->bucket.rate_milli || !p->period_ns) {
		stats->admitted++;
		return v;
	}
	tg_abacus_exact_tick(p, s, e->now_ns);
	tg_bucket_refill(&p->bucket, &s->bucket, e->now_ns);
	way = tg_exact_find(set, tg_exact_print(e->key));
	v.repeated = way < TG_EXACT_WAYS;
	c = &set->way[way & (TG_EXACT_WAYS - 1)];
	if (!v.repeated)
		s->arrivals_milli = tg_arrivals(s->arrivals_milli, e);
	if (!tg_exact_take(p, s, e, v.repeated ? c->attempts + 1U : 0))
		return v.repeated ? tg_exact_refuse_known(p, s, stats, c) :
		       tg_exact_refuse_new(p, s, stats, set, e);
	if (v.repeated) {
		tg_exact_uncount(s, c);
		c->print = 0;
	}
	stats->admitted++;
	v.reason = TG_REASON_TOKEN;
	return v;
}

#endif
