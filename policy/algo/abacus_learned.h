/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Abacus filter that learns what waiting is worth.
 *
 * A SYN that finds no token can be dropped (it comes back, and waits) or
 * rejected (it does not). Dropping is right if what the client will cost when
 * it is back is less than a rejection. The published filter (abacus.h) guesses
 * that from the mean rate of arrivals. Here it is learned from clients who were
 * dropped before: each is remembered by its key, with the attempt at which it
 * was dropped and how crowded the time of its return looked then. When it is
 * back, it is seen what became of it:
 *	served, tokens to spare:	0
 *	served with a token that a new arrival might not have got: what dropping
 *		a new arrival costs now - that is the price of the token
 *	not served:	what dropping it again costs now, at most a rejection
 * and the average for (attempt, crowd) moves towards that: temporal-difference
 * learning of the cost-to-go, one cell per event, no division. A SYN is
 * rejected when the average for its attempt and the crowd at its return is
 * nearly a rejection or more. One in 256 of those is dropped all the same, so
 * that the filter notices when times get better.
 *
 *  - Crowd: how many have been dropped that will be back in the same period,
 *    plus the new arrivals to expect then, plus a little for everybody who
 *    waits at all, in fifths of what the bucket fills in a period.
 *  - To begin with, the average rises with the crowd, from little to about a
 *    rejection at three times the rate.
 *  - Copies first: a new arrival leaves a token for each copy that is due
 *    about now, up to an eighth of the bucket, because a copy's next wait is
 *    the longer one.
 *  - A period is four slots. Booking by slot keeps what comes back early in a
 *    second apart from what comes back late in it.
 *
 * Memory is a fixed table of 8-way sets; a full set forgets whose time has
 * passed, else who has tried least. Forgetting makes a copy look new. Only who
 * was dropped is remembered, so a flood of spoofed sources, who never come
 * back, fills at most the crowd that is let wait; it teaches nothing.
 * Keys are seeded per boot by the caller.
 */
#ifndef TG_ABACUS_LEARNED_H
#define TG_ABACUS_LEARNED_H

#include "../contract/contract.h"

#define TG_LEARNED_SLOTS 256		/* ring size; gaps are below it */
#define TG_LEARNED_SLOTS_A_PERIOD 4
#define TG_LEARNED_STEPS_MAX 12		/* retransmissions in a schedule */
#define TG_LEARNED_ATTEMPTS 16		/* a power of two above it */
#define TG_LEARNED_CROWDS 32
#define TG_LEARNED_CALM 5		/* crowd that the bucket just serves */
#define TG_LEARNED_MILLI 1000		/* of a SYN, of a slot */
#define TG_LEARNED_FINE 4		/* bits of an average below 1/1000 */
#define TG_LEARNED_SETS 4096
#define TG_LEARNED_WAYS 8
#define TG_LEARNED_EARLY 0x8000		/* slots are compared modulo 2^16 */
#define TG_LEARNED_SHIFT_MIN 4		/* first steps: 1/16 */
#define TG_LEARNED_SHIFT_MAX 9		/* last steps: 1/512 */
#define TG_LEARNED_HELD 8		/* at most an eighth of the bucket */
#define TG_LEARNED_EXPLORE 255		/* mask: one in 256 */

struct tg_abacus_learned_params {
	struct tg_bucket_params bucket;
	tg_u64 reserve[TG_PRIORITIES];	/* picotokens, not falling */
	tg_u64 slot_ns;			/* a quarter of T0 */
	tg_u32 crowd_q32;		/* TG_LEARNED_CALM / room, times 2^32 */
	tg_u32 reject_milli;		/* r / h in thousandths of a slot */
	tg_u16 steps;			/* N: entries of gaps in use */
	tg_u8 gap[TG_LEARNED_ATTEMPTS];	/* slots between attempts */
	tg_u8 pad[6];
};
TG_ASSERT(sizeof(struct tg_abacus_learned_params) == 128);

/* An average, stored once something was seen. */
struct tg_learned_cell {
	tg_u32 cost;	/* at the return, thousandths of a slot << FINE */
	tg_u16 shift;	/* steps of 1/2^shift; 0: not yet, the prior holds */
	tg_u16 left;	/* such steps before they are halved */
};

/* One client that was dropped. */
struct tg_learned_client {
	tg_u32 print;	/* upper half of the key; 0: free */
	tg_u16 due;	/* slot in which the next copy is expected */
	tg_u8 attempt;	/* at which it was dropped; 0: its first SYN */
	tg_u8 crowd;	/* as its return looked then */
};

struct tg_learned_set {
	struct tg_learned_client way[TG_LEARNED_WAYS];
};

struct tg_abacus_learned_state {
	struct tg_bucket bucket;
	tg_u64 slot_end_ns;	/* 0: no SYN seen yet */
	tg_u32 now;		/* number of the current slot */
	tg_u32 waiting;		/* sum of the ring: who is to come back */
	tg_u32 arrivals_milli;	/* new ones in the current period */
	tg_u32 soon_milli;	/* average of new arrivals a period, 1/8 */
	tg_u32 long_milli;	/* the same, 1/64 */
	tg_u32 averaged;	/* 1: a period was seen */
	tg_u16 back[TG_LEARNED_SLOTS];	/* due in a slot */
	struct tg_learned_cell cell[TG_LEARNED_ATTEMPTS][TG_LEARNED_CROWDS];
	struct tg_learned_set set[TG_LEARNED_SETS];
};
TG_ASSERT(sizeof(struct tg_abacus_learned_state) == 48 + 512 + 4096 + 262144);

struct tg_abacus_learned_stats {
	tg_u64 admitted;
	tg_u64 dropped;
	tg_u64 dropped_again;
	tg_u64 rejected;
};

TG_INLINE tg_u16 *tg_learned_back(struct tg_abacus_learned_state *s, tg_u32 slot)
{
	return &s->back[slot & (TG_LEARNED_SLOTS - 1)];
}

TG_INLINE tg_u32 tg_learned_averaged(tg_u32 average, tg_u32 seen, tg_u32 shift)
{
	if (seen >= average)
		return average + ((seen - average) >> shift);
	/* rounded up: silence ends at zero, not just above it */
	return average - ((average - seen + (1U << shift) - 1) >> shift);
}

TG_INLINE void tg_learned_average(struct tg_abacus_learned_state *s)
{
	tg_u32 seen_milli = s->arrivals_milli;

	if (!s->averaged)
		s->soon_milli = s->long_milli = seen_milli;
	s->averaged = 1;
	s->soon_milli = tg_learned_averaged(s->soon_milli, seen_milli, 3);
	s->long_milli = tg_learned_averaged(s->long_milli, seen_milli, 6);
	s->arrivals_milli = 0;
}

TG_INLINE void tg_learned_step(const struct tg_abacus_learned_params *p,
			       struct tg_abacus_learned_state *s)
{
	tg_u16 *back = tg_learned_back(s, s->now);

	s->waiting -= *back;
	*back = 0;
	s->now++;
	s->slot_end_ns += p->slot_ns;
}

TG_INLINE void tg_learned_period(const struct tg_abacus_learned_params *p,
				 struct tg_abacus_learned_state *s)
{
	for (tg_u32 i = 0; i < TG_LEARNED_SLOTS_A_PERIOD; i++)
		tg_learned_step(p, s);
	tg_learned_average(s);
}

/* Single slots to the next period or to now; 1 if now was reached. */
TG_INLINE int tg_learned_slots(const struct tg_abacus_learned_params *p,
			       struct tg_abacus_learned_state *s, tg_u64 now_ns)
{
	for (tg_u32 i = 0; i < TG_LEARNED_SLOTS_A_PERIOD; i++) {
		if (now_ns < s->slot_end_ns)
			return 1;
		tg_learned_step(p, s);
		if (s->now & (TG_LEARNED_SLOTS_A_PERIOD - 1))
			continue;
		tg_learned_average(s);
		return 0;
	}
	return 0;
}

TG_INLINE void tg_abacus_learned_tick(const struct tg_abacus_learned_params *p,
				      struct tg_abacus_learned_state *s,
				      tg_u64 now_ns)
{
	if (!s->slot_end_ns ||
	    s->slot_end_ns > now_ns + p->slot_ns + TG_CLOCK_BACK_NS_MAX)
		s->slot_end_ns = now_ns + p->slot_ns;
	if (tg_learned_slots(p, s, now_ns))
		return;
	/* whole periods; after a silence as long as the ring it is empty */
	for (tg_u32 i = 0; i < TG_LEARNED_SLOTS / TG_LEARNED_SLOTS_A_PERIOD; i++) {
		if (now_ns < s->slot_end_ns + p->slot_ns *
		    (TG_LEARNED_SLOTS_A_PERIOD - 1))
			break;
		tg_learned_period(p, s);
	}
	if (!tg_learned_slots(p, s, now_ns) && now_ns >= s->slot_end_ns)
		s->slot_end_ns = now_ns + p->slot_ns;
}

TG_INLINE void
tg_abacus_learned_observe(const struct tg_abacus_learned_params *p,
			  struct tg_abacus_learned_state *s,
			  const struct tg_event *e)
{
	(void)p; (void)s; (void)e;	/* completions do not matter here */
}

/* Who is due in the period around a slot: the one before to two after. */
TG_INLINE tg_u32 tg_learned_due(struct tg_abacus_learned_state *s, tg_u32 slot)
{
	return *tg_learned_back(s, slot - 1) + *tg_learned_back(s, slot) +
	       *tg_learned_back(s, slot + 1) + *tg_learned_back(s, slot + 2);
}

/* How crowded the period around a slot ahead looks now. */
TG_INLINE tg_u32 tg_learned_crowd(const struct tg_abacus_learned_params *p,
				  struct tg_abacus_learned_state *s, tg_u32 ahead)
{
	tg_u64 milli = (tg_u64)tg_learned_due(s, s->now + ahead) *
		       TG_LEARNED_MILLI;

	milli += s->soon_milli / 2 + s->long_milli / 2;
	milli += (tg_u64)s->waiting * (TG_LEARNED_MILLI / 40);
	milli = tg_min(milli, 1U << 31);
	return tg_min((milli * p->crowd_q32) >> 32, TG_LEARNED_CROWDS - 1);
}

/* Before anything was seen: r / 16, and r / 11 more for each crowd above calm. */
TG_INLINE tg_u32 tg_learned_prior(const struct tg_abacus_learned_params *p,
				  tg_u32 crowd)
{
	tg_u32 above = crowd > TG_LEARNED_CALM ? crowd - TG_LEARNED_CALM : 0;
	tg_u64 milli = p->reject_milli / 16 +
		       (tg_u64)above * (p->reject_milli / 11);

	return tg_min(milli, p->reject_milli) << TG_LEARNED_FINE;
}

TG_INLINE struct tg_learned_cell *
tg_learned_cell(struct tg_abacus_learned_state *s, tg_u32 attempt, tg_u32 crowd)
{
	return &s->cell[attempt & (TG_LEARNED_ATTEMPTS - 1)]
		       [crowd & (TG_LEARNED_CROWDS - 1)];
}

/* What a client dropped as this attempt is expected to cost at its return. */
TG_INLINE tg_u32 tg_learned_later(const struct tg_abacus_learned_params *p,
				  struct tg_abacus_learned_state *s,
				  tg_u32 attempt, tg_u32 crowd)
{
	const struct tg_learned_cell *cell = tg_learned_cell(s, attempt, crowd);

	return (cell->shift ? cell->cost : tg_learned_prior(p, crowd)) >>
	       TG_LEARNED_FINE;
}

/* Slots from this attempt to the next; 0: there is none. */
TG_INLINE tg_u32 tg_learned_gap(const struct tg_abacus_learned_params *p,
				tg_u32 attempt)
{
	if (attempt >= p->steps)
		return 0;
	return p->gap[attempt & (TG_LEARNED_ATTEMPTS - 1)];
}

/* What not serving this attempt now costs: the wait and what follows, or r. */
TG_INLINE tg_u32 tg_learned_refusal(const struct tg_abacus_learned_params *p,
				    struct tg_abacus_learned_state *s,
				    tg_u32 attempt)
{
	tg_u32 gap = tg_learned_gap(p, attempt), crowd;

	if (!gap)
		return p->reject_milli;
	crowd = tg_learned_crowd(p, s, gap);
	return tg_min((tg_u64)gap * TG_LEARNED_MILLI +
		      tg_learned_later(p, s, attempt, crowd), p->reject_milli);
}

/* A client is back: what it costs now is what dropping it had cost. */
TG_INLINE void tg_learned_teach(const struct tg_abacus_learned_params *p,
				struct tg_abacus_learned_state *s,
				const struct tg_learned_client *c,
				tg_u32 cost_milli)
{
	struct tg_learned_cell *cell = tg_learned_cell(s, c->attempt, c->crowd);
	tg_u32 cost = cost_milli << TG_LEARNED_FINE;

	if (!cell->shift) {
		cell->cost = tg_learned_prior(p, c->crowd);
		cell->shift = TG_LEARNED_SHIFT_MIN;
		cell->left = 2U << TG_LEARNED_SHIFT_MIN;
	}
	if (cost > cell->cost)
		cell->cost += (cost - cell->cost) >> (cell->shift & 15);
	else
		cell->cost -= (cell->cost - cost) >> (cell->shift & 15);
	cell->left--;
	if (cell->left || cell->shift >= TG_LEARNED_SHIFT_MAX)
		return;
	cell->shift++;
	cell->left = 1U << (cell->shift & 15);
}

TG_INLINE tg_u32 tg_learned_print(tg_u64 key)
{
	tg_u32 print = key >> 32;

	return print ? print : 1;
}

/* The way that holds this fingerprint; TG_LEARNED_WAYS if none does. */
TG_INLINE tg_u32 tg_learned_find(const struct tg_learned_set *set, tg_u32 print)
{
	tg_u32 found = TG_LEARNED_WAYS;

	for (tg_u32 i = 0; i < TG_LEARNED_WAYS; i++)
		if (set->way[i].print == print)
			found = i;
	return found;
}

/* Slots since its time; TG_LEARNED_EARLY or more: before it. */
TG_INLINE tg_u16 tg_learned_late(const struct tg_abacus_learned_state *s,
				 const volatile struct tg_learned_client *c)
{
	return s->now - c->due;
}

/* Whom to forget: nobody, whose time has passed, or who has tried least. */
TG_INLINE tg_u32 tg_learned_victim(const struct tg_abacus_learned_state *s,
				   const struct tg_learned_set *set)
{
	tg_u32 victim = 0, least = ~0U;

	for (tg_u32 i = 0; i < TG_LEARNED_WAYS; i++) { /* volatile: clang 14 */
		const volatile struct tg_learned_client *c = &set->way[i];
		tg_u16 late = tg_learned_late(s, c);
		tg_u32 worth = c->attempt + 2;

		/* nobody is expected beyond the ring: that is an old time */
		if (late > TG_LEARNED_SLOTS_A_PERIOD &&
		    late < (tg_u16)(0 - TG_LEARNED_SLOTS))
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

/* Picotokens that this event must leave: for priorities above, for copies. */
TG_INLINE tg_u64 tg_learned_held(const struct tg_abacus_learned_params *p,
				 struct tg_abacus_learned_state *s,
				 const struct tg_event *e, int repeated)
{
	tg_u64 held = p->reserve[e->priority & (TG_PRIORITIES - 1)];

	if (!repeated)
		held += tg_min(tg_learned_due(s, s->now) * TG_TOKEN,
			       p->bucket.depth / TG_LEARNED_HELD);
	/* a full bucket serves anybody: what overflows helps nobody */
	return tg_min(held, p->bucket.depth - tg_min(p->bucket.depth, TG_TOKEN));
}

TG_INLINE struct tg_verdict
tg_learned_admitted(const struct tg_abacus_learned_params *p,
		    struct tg_abacus_learned_state *s,
		    struct tg_abacus_learned_stats *stats,
		    struct tg_learned_client *c)
{
	struct tg_verdict v = tg_verdict(TG_ADMIT, TG_REASON_TOKEN);
	int spare;

	stats->admitted++;
	if (!c)
		return v;
	v.repeated = 1;
	/* a token that is held back for copies: a new arrival pays for it */
	spare = s->bucket.used + p->bucket.depth / TG_LEARNED_HELD +
		TG_TOKEN / 4 <= p->bucket.depth;
	tg_learned_teach(p, s, c, spare ? 0 : tg_learned_refusal(p, s, 0));
	c->print = 0;
	return v;
}

/* 1: this attempt had better be rejected than dropped. */
TG_INLINE int tg_learned_hopeless(const struct tg_abacus_learned_params *p,
				  struct tg_abacus_learned_state *s,
				  const struct tg_event *e, tg_u32 attempt,
				  tg_u32 *crowd)
{
	tg_u32 gap = tg_learned_gap(p, attempt);

	*crowd = 0;
	if (!gap || (tg_u64)gap * TG_LEARNED_MILLI >= p->reject_milli)
		return 1;
	*crowd = tg_learned_crowd(p, s, gap);
	if (!(e->random & TG_LEARNED_EXPLORE))
		return 0;
	return tg_learned_later(p, s, attempt, *crowd) >=
	       p->reject_milli - p->reject_milli / 32;
}

/* Remembers a client that is dropped as this attempt. */
TG_INLINE void tg_learned_expect(const struct tg_abacus_learned_params *p,
				 struct tg_abacus_learned_state *s,
				 struct tg_learned_client *c, tg_u32 attempt,
				 tg_u32 crowd)
{
	tg_u32 gap = tg_learned_gap(p, attempt);
	tg_u16 *back = tg_learned_back(s, s->now + gap);

	c->due = s->now + gap;
	c->attempt = attempt;
	c->crowd = crowd;
	if (*back < 0xffff) {
		(*back)++;
		s->waiting++;
	}
}

TG_INLINE struct tg_verdict
tg_learned_refuse_known(const struct tg_abacus_learned_params *p,
			struct tg_abacus_learned_state *s,
			struct tg_abacus_learned_stats *stats,
			const struct tg_event *e, struct tg_learned_client *c)
{
	struct tg_verdict v = tg_verdict(TG_DROP, TG_REASON_EXPECTED_AGAIN);
	tg_u16 late = tg_learned_late(s, c) + TG_LEARNED_SLOTS_A_PERIOD;
	tg_u32 attempt = c->attempt + 1, crowd;

	v.repeated = 1;
	stats->dropped_again++;
	if (late >= TG_LEARNED_EARLY)
		return v;	/* a period early, and more: it does not age */
	tg_learned_teach(p, s, c, tg_learned_refusal(p, s, attempt));
	if (!tg_learned_hopeless(p, s, e, attempt, &crowd)) {
		tg_learned_expect(p, s, c, attempt, crowd);
		return v;
	}
	c->print = 0;
	stats->dropped_again--;
	stats->rejected++;
	v.kind = TG_REJECT;
	v.reason = TG_REASON_LAST_ATTEMPT;
	return v;
}

TG_INLINE struct tg_verdict
tg_learned_refuse_new(const struct tg_abacus_learned_params *p,
		      struct tg_abacus_learned_state *s,
		      struct tg_abacus_learned_stats *stats,
		      const struct tg_event *e, struct tg_learned_set *set)
{
	struct tg_learned_client *c;
	tg_u32 crowd;

	if (tg_learned_hopeless(p, s, e, 0, &crowd)) {
		stats->rejected++;
		return tg_verdict(TG_REJECT, TG_REASON_NO_ROOM);
	}
	c = &set->way[tg_learned_victim(s, set) & (TG_LEARNED_WAYS - 1)];
	c->print = tg_learned_print(e->key);
	tg_learned_expect(p, s, c, 0, crowd);
	stats->dropped++;
	return tg_verdict(TG_DROP, TG_REASON_BORROWED);
}

/* Memory that admit looks at first for this key: a host may read it early. */
TG_INLINE const void *
tg_abacus_learned_near(const struct tg_abacus_learned_state *s, tg_u64 key)
{
	return &s->set[key & (TG_LEARNED_SETS - 1)];
}

TG_INLINE struct tg_verdict
tg_abacus_learned_admit(const struct tg_abacus_learned_params *p,
			struct tg_abacus_learned_state *s,
			struct tg_abacus_learned_stats *stats,
			const struct tg_event *e)
{
	struct tg_learned_set *set = &s->set[e->key & (TG_LEARNED_SETS - 1)];
	struct tg_learned_client *c;
	tg_u32 way;

	if (!p->bucket.rate_milli || !p->slot_ns) {
		stats->admitted++;
		return tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);
	}
	tg_abacus_learned_tick(p, s, e->now_ns);
	tg_bucket_refill(&p->bucket, &s->bucket, e->now_ns);
	way = tg_learned_find(set, tg_learned_print(e->key));
	c = way < TG_LEARNED_WAYS ? &set->way[way] : 0;
	if (!c)
		s->arrivals_milli = tg_arrivals(s->arrivals_milli, e);
	if (tg_bucket_take_for(&p->bucket, &s->bucket,
			       tg_learned_held(p, s, e, !!c), e))
		return tg_learned_admitted(p, s, stats, c);
	return c ? tg_learned_refuse_known(p, s, stats, e, c) :
	       tg_learned_refuse_new(p, s, stats, e, set);
}

#endif
