/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Unverified senders: what a SYN costs before anybody knows whether its sender
 * exists. docs/decisions/0015 tells why.
 *
 * A spoofed SYN that is admitted costs the server a SYN-ACK; a token stands for
 * a connection. So a SYN of a sender who has proved nothing is charged the share
 * of its like that complete their handshake, and what is charged is settled when
 * they do:
 *
 *	replied, proved		SYNs that the server replied to, and those of
 *				them whose handshake was completed. Counted in
 *				cohorts of 67 ms; only those that are over count,
 *				so that handshakes under way are not missing.
 *	share = proved / replied, where it is low: a flood. Elsewhere nothing
 *				is done: every SYN costs a token, as always.
 *	prepaid			what SYNs were charged, less one token for each
 *				handshake completed. At its bound a SYN costs
 *				next to nothing; below zero (more was proved
 *				than charged) a multiple of the share.
 *
 * So over any time the tokens charged are the handshakes completed, but for the
 * bounds of `prepaid`: spoofed senders take no tokens from anybody, and senders
 * who do complete their handshakes get no more than the rate.
 *
 * Where SYN-ACKs are not seen nothing is ever replied, and nothing is done.
 *
 * Zero is fresh. No lock: any CPU may count; who wins the turn of a cohort adds
 * it up. A count that is lost by a race is one of thousands.
 */
#ifndef TG_SENDERS_H
#define TG_SENDERS_H

#include "../contract/contract.h"

#define TG_COHORT_SHIFT 26	/* ns to cohorts: 67 ms */
#define TG_COHORTS 16		/* ring; a power of two */
/* The present one and four before: round trips of 268 ms are over by then. */
#define TG_COHORTS_YOUNG 5
#define TG_COHORTS_CATCH_UP 64	/* at once; after a longer silence all is new */
#define TG_SENDERS_ONE_Q8 256U	/* a SYN, in the unit of the sums */
#define TG_SENDERS_PRIOR_Q8 (8 * TG_SENDERS_ONE_Q8)	/* believed to prove */
/* Sums above this lose a sixteenth a cohort: they are of the last second. */
#define TG_SENDERS_KEPT_Q8 (64 * TG_SENDERS_ONE_Q8)
#define TG_SENDERS_DECAY 4
/*
 * Eighths of the SYNs that prove themselves: a flood begins below six and ends at
 * seven. Between, round trips of half a second, packets that are lost and port
 * scans look alike, and a weak flood takes a quarter of the tokens at most.
 */
#define TG_SENDERS_BEGINS 6
#define TG_SENDERS_ENDS 7
#define TG_SENDERS_MAX_Q8 (1U << 30)
#define TG_SENDERS_PREPAID_MAX (16LL * TG_SHARE_ONE)	/* tokens */
#define TG_SENDERS_DEBT_MAX (1024LL * TG_SHARE_ONE)

/* What is noted of a SYN until its handshake is over. */
#define TG_SENDER_COUNTED 1	/* among those whose share is measured */
#define TG_SENDER_CHARGED 2	/* a share of a token: settled at the proof */

struct tg_cohort {
	tg_u32 replied;
	tg_u32 proved;
};

struct tg_senders {
	tg_u32 next;		/* first cohort that is not added up */
	tg_u32 share;		/* 1/TG_SHARE_ONE; 0: no flood */
	tg_u32 replied_q8;	/* SYNs, of cohorts that are over */
	tg_u32 proved_q8;
	long long prepaid;	/* 1/TG_SHARE_ONE of a token; below zero: debt */
	tg_u64 pad[5];		/* the cohorts have cache lines of their own */
	struct tg_cohort cohort[TG_COHORTS];
};
TG_ASSERT(sizeof(struct tg_senders) == 64 + 128);

TG_INLINE tg_u32 tg_cohort_of(tg_u64 now_ns)
{
	return now_ns >> TG_COHORT_SHIFT;
}

TG_INLINE struct tg_cohort *tg_cohort_at(struct tg_senders *s, tg_u32 number)
{
	return &s->cohort[number & (TG_COHORTS - 1)];
}

/* A cohort is over: adds it up. */
TG_INLINE void tg_senders_add_up(struct tg_senders *s, tg_u32 number)
{
	struct tg_cohort *cohort = tg_cohort_at(s, number);
	tg_u32 replied_q8 = s->replied_q8, proved_q8 = s->proved_q8;

	if (replied_q8 > TG_SENDERS_KEPT_Q8) {
		replied_q8 -= replied_q8 >> TG_SENDERS_DECAY;
		proved_q8 -= proved_q8 >> TG_SENDERS_DECAY;
	}
	s->replied_q8 = tg_min(replied_q8 + (tg_u64)cohort->replied *
			       TG_SENDERS_ONE_Q8, TG_SENDERS_MAX_Q8);
	s->proved_q8 = tg_min(proved_q8 + (tg_u64)cohort->proved *
			      TG_SENDERS_ONE_Q8, s->replied_q8);
	cohort->replied = cohort->proved = 0;
}

/* Nothing is known; counted from this cohort on. */
TG_INLINE void tg_senders_forget(struct tg_senders *s, tg_u32 next)
{
	s->share = s->replied_q8 = s->proved_q8 = 0;
	s->prepaid = 0;
	for (tg_u32 i = 0; i < TG_COHORTS; i++)
		s->cohort[i].replied = s->cohort[i].proved = 0;
	s->next = next;
}

/* The share that proves itself; 0: nearly all, so that nothing is done. */
TG_INLINE tg_u32 tg_senders_measure(const struct tg_senders *s)
{
	tg_u64 replied = (tg_u64)s->replied_q8 + TG_SENDERS_PRIOR_Q8;
	tg_u64 proved = (tg_u64)s->proved_q8 + TG_SENDERS_PRIOR_Q8;

	if (proved * 8 >= replied * (s->share ? TG_SENDERS_ENDS :
				     TG_SENDERS_BEGINS))
		return 0;
	proved = proved * TG_SHARE_ONE / replied;
	return proved ? proved : 1;	/* zero is no flood */
}

TG_INLINE void tg_senders_tick(struct tg_senders *s, tg_u64 now_ns)
{
	tg_u32 over = tg_cohort_of(now_ns) - (TG_COHORTS_YOUNG - 1);
	tg_u32 next = s->next;

	if ((int)(over - next) <= 0 && next - over < TG_COHORTS)
		return;
	/* a silence, or a clock that went back: who was here is not any more */
	if (over - next > TG_COHORTS_CATCH_UP) {
		tg_senders_forget(s, over);
		return;
	}
	for (tg_u32 i = 0; i < TG_COHORTS_CATCH_UP; i++) {
		if (next == over)
			break;
		if (__sync_val_compare_and_swap(&s->next, next, next + 1) !=
		    next)
			return;	/* another CPU does it */
		tg_senders_add_up(s, next++);
	}
	s->share = tg_senders_measure(s);
	/* without a flood nothing is settled: what is left fades */
	if (!s->share)
		s->prepaid -= s->prepaid >> TG_SENDERS_DECAY;
}

/* 1: most SYNs that were replied to lately proved nothing. */
TG_INLINE int tg_senders_flood(const struct tg_senders *s)
{
	return s->share != 0;
}

/* What a SYN costs in a flood: its share, more in debt; a token at most. */
TG_INLINE tg_u32 tg_senders_price(const struct tg_senders *s)
{
	long long prepaid = s->prepaid;
	tg_u64 debt = prepaid < 0 ? -prepaid : 0;

	if (prepaid >= TG_SENDERS_PREPAID_MAX)
		return 1;
	/* twice for each TG_SENDERS_PREPAID_MAX that are owed */
	debt = tg_min(debt, TG_SENDERS_DEBT_MAX);
	return tg_min(s->share + s->share * debt / TG_SENDERS_PREPAID_MAX,
		      TG_SHARE_ONE - 1);
}

/* Fills what an event costs; 1: there is a flood. */
TG_INLINE int tg_senders_weigh(struct tg_senders *s, struct tg_event *e)
{
	tg_senders_tick(s, e->now_ns);
	e->spared = s->share ? TG_SHARE_ONE - tg_senders_price(s) : 0;
	return e->spared != 0;
}

/*
 * After the verdict: charges what was admitted. What is noted of the SYN, should
 * it pass: TG_SENDER_….
 */
TG_INLINE tg_u8 tg_senders_settle(struct tg_senders *s,
				  const struct tg_event *e,
				  struct tg_verdict v)
{
	if (!e->spared || tg_refuses(v) ||
	    (v.reason != TG_REASON_TOKEN && v.reason != TG_REASON_WAIT))
		return TG_SENDER_COUNTED;
	if (s->prepaid < TG_SENDERS_PREPAID_MAX)
		__sync_fetch_and_add(&s->prepaid,
				     (long long)TG_SHARE_ONE - e->spared);
	return TG_SENDER_COUNTED | TG_SENDER_CHARGED;
}

/* The server has replied to a SYN that came at this time: once for each. */
TG_INLINE void tg_senders_replied(struct tg_senders *s, tg_u64 syn_ns,
				  tg_u8 noted)
{
	tg_u32 number = tg_cohort_of(syn_ns);

	if (!(noted & TG_SENDER_COUNTED))
		return;
	if ((int)(number - s->next) >= 0)
		__sync_fetch_and_add(&tg_cohort_at(s, number)->replied, 1);
	else if (s->replied_q8 < TG_SENDERS_MAX_Q8)
		__sync_fetch_and_add(&s->replied_q8, TG_SENDERS_ONE_Q8);
}

/* Its handshake is complete: what was not charged of a token is owed now. */
TG_INLINE void tg_senders_proved(struct tg_senders *s, tg_u64 syn_ns,
				 tg_u8 noted)
{
	tg_u32 number = tg_cohort_of(syn_ns);

	if (noted & TG_SENDER_CHARGED && s->prepaid > -TG_SENDERS_DEBT_MAX)
		__sync_fetch_and_add(&s->prepaid, -(long long)TG_SHARE_ONE);
	if (!(noted & TG_SENDER_COUNTED))
		return;
	if ((int)(number - s->next) >= 0)
		__sync_fetch_and_add(&tg_cohort_at(s, number)->proved, 1);
	else if (s->proved_q8 < s->replied_q8)
		__sync_fetch_and_add(&s->proved_q8, TG_SENDERS_ONE_Q8);
}

#endif
