/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The limit on new connections to a destination, while a flash crowd is there. The
 * daemon decides it; the verdict is that of policy/router/crowd.h. A SYN of a client, in
 * this order:
 *
 *	no limit at its destination				passes
 *	a copy of one that passed, before its handshake		passes
 *	limits are open, kill switch, lease ended		passes
 *	a copy of one that has a SYN-ACK			passes
 *	exempt source						passes
 *	the limit has a token					passes, and takes it
 *	shadow mode, lease relaxing				passes, counted
 *	else							refused, counted: with a RST
 *								or silently (action.h)
 *
 * Silently also where a note of a SYN that passed was lost (table.h).
 *
 * Where the destination has a filter (policy/chain/refusal.h) that is asked for the token,
 * and how to refuse.
 *
 * Whatever look-up fails: it passes. Nothing else is ever refused, so a connection that
 * is open is not touched.
 */
#ifndef TG_ROUTER_LIMIT_H
#define TG_ROUTER_LIMIT_H

#include "action.h"
#include "flow.h"
#include "../packet/refused.h"

#define TG_ROUTER_NOTE_MASK (TG_ROUTER_NOTES - 1)
#define TG_ROUTER_REPLIED_UNITS 64	/* a SYN-ACK says so long that its SYN passed */

enum tg_router_attempt {
	TG_ROUTER_FIRST = 0,
	TG_ROUTER_AGAIN = 1,	/* a copy of one that was refused */
	TG_ROUTER_ADMITTED = 2,	/* a copy of one that passed */
};

/* What becomes of a packet of a client's. */
enum tg_router_verdict {
	TG_ROUTER_PASS = 0,
	TG_ROUTER_DROP = 1,
	TG_ROUTER_RESET = 2,	/* a RST is the reply */
	TG_ROUTER_ASKED = 3,	/* passes, and begins the first exchange of a second */
};

/* A SYN to a destination. */
struct tg_router_syn {
	const struct tg_packet *p;
	struct tg_router_destination *d;
	__u64 key;		/* the same for all copies */
	__u32 place;		/* of the destination */
	__u32 ifindex;
	enum tg_router_attempt attempt;
	int silent;		/* it may be a copy of one that passed */
};

static __always_inline struct tg_router_note *
tg_router_note_of(__u64 fingerprint)
{
	return tg_router_at(&tg_router_notes,
			    fingerprint >> 32 & TG_ROUTER_NOTE_MASK);
}

/* The server has sent a SYN-ACK for this tuple, and nobody has acknowledged it yet. */
static __always_inline int tg_router_replied(const struct tg_packet *p,
					     __u64 now_ns)
{
	__u64 fingerprint = tg_hash_flow(p, 0);
	const struct tg_router_note *note = tg_router_note_of(fingerprint);

	return note && READ_ONCE(note->fingerprint) == fingerprint &&
	       (__u32)(now_ns >> TG_ROUTER_SEEN_SHIFT) - READ_ONCE(note->seen) <
		       TG_ROUTER_REPLIED_UNITS;
}

static __always_inline int tg_router_is_exempt(const struct tg_packet *p)
{
	struct tg_router_prefix key = {};

	tg_router_prefix_of(&key, p);
	return bpf_map_lookup_elem(&tg_router_exempt, &key) != 0;
}

/* Why limits do not hold at all; 0: they do, so far. */
static __always_inline int tg_router_is_open(__u32 strength)
{
	const struct tg_control *control = tg_router_at(&tg_control, 0);

	return !control ||
	       tg_lease_passes(READ_ONCE(control->released), strength);
}

/*
 * Whether no token is left, by a look without the locks: under a flood nearly all SYNs
 * end here, and all CPUs would wait for each other. Nothing is written. If limit or
 * bucket change meanwhile, what was read may be of two moments: then one SYN is refused
 * that would have had a token, or the locks decide.
 */
static __always_inline int tg_router_is_empty(const struct tg_router_limit *l,
					      const struct tg_router_bucket *b,
					      const struct tg_event *e)
{
	struct tg_crowd_limit limit = {};
	struct tg_crowd_bucket left = {};

	limit.key = READ_ONCE(l->limit.key);
	limit.bucket.rate_milli = READ_ONCE(l->limit.bucket.rate_milli);
	limit.bucket.depth = READ_ONCE(l->limit.bucket.depth);
	limit.bucket.full_ns = READ_ONCE(l->limit.bucket.full_ns);
	left.key = READ_ONCE(b->bucket.key);
	/* this first: with an older time more is refilled, and the locks decide */
	left.bucket.then_ns = READ_ONCE(b->bucket.bucket.then_ns);
	left.bucket.used = READ_ONCE(b->bucket.bucket.used);
	return tg_crowd_own(&limit, &left, TG_DROP, e).kind != TG_ADMIT;
}

/* 1: a token is taken. */
static __always_inline int tg_router_token(struct tg_router_limit *l,
					   struct tg_router_bucket *b,
					   const struct tg_event *e)
{
	struct tg_crowd_limit limit;
	struct tg_verdict v;

	if (tg_router_is_empty(l, b, e))
		return 0;
	bpf_spin_lock(&l->lock);
	limit = l->limit;
	bpf_spin_unlock(&l->lock);
	bpf_spin_lock(&b->lock);
	v = tg_crowd_own(&limit, &b->bucket, TG_DROP, e);
	bpf_spin_unlock(&b->lock);
	return v.kind == TG_ADMIT;
}

/* Without a token: whether it is refused, counted. */
static __always_inline int
tg_router_lacks(const struct tg_router_control *control,
		struct tg_router_destination *d,
		enum tg_router_attempt attempt, __u32 strength)
{
	__u32 dice = strength < TG_LEASE_WHOLE ? bpf_get_prandom_u32() : 0;
	int shadow = READ_ONCE(control->mode) != TG_ROUTER_ENFORCE;

	if (tg_lease_execution(shadow, strength, dice) != TG_EXECUTED) {
		tg_router_count(&d->counts.would_refuse, 1);
		return 0;
	}
	tg_router_count(&d->counts.refused, 1);
	if (attempt == TG_ROUTER_FIRST)
		tg_router_count(&d->counts.refused_first, 1);
	return 1;
}

/* Whose SYN that was, for whoever asks within a minute. */
static __always_inline void tg_router_note_refused(
	const struct tg_packet *p, const struct tg_router_limit *l, int shadow)
{
	tg_refused_note(tg_lately_hash(p->src, READ_ONCE(l->identity),
				       settings.key),
			shadow);
}

/* The verdict of a filter. Not static: the verifier looks at it once. */
__noinline int tg_router_filtered(__u32 row, __u32 action,
				  const struct tg_event *e)
{
	const struct tg_abacus_exact_params *params =
		tg_router_at(&tg_router_rows, row);
	struct tg_router_filter *f =
		tg_router_at(&tg_router_filters, row / TG_ROUTER_FILTER_ROWS);
	struct tg_verdict v;

	if (!params || !f || !e)
		return TG_ADMIT;
	bpf_spin_lock(&f->lock);
	v = tg_crowd_filtered(params, &f->filter, action, e);
	bpf_spin_unlock(&f->lock);
	return v.kind;
}

/* What the limit says: enum tg_verdict_kind. */
static __always_inline int tg_router_ask(const struct tg_router_syn *syn,
					 struct tg_router_limit *l,
					 struct tg_router_bucket *b,
					 struct tg_event *e)
{
	__u32 row = READ_ONCE(l->filter), action = tg_router_action(syn->p);

	if (row) {
		e->key = syn->key;
		return tg_router_filtered(row - 1, action, e);
	}
	e->key = (__u64)syn->place + 1;
	return tg_router_token(l, b, e) ? TG_ADMIT : tg_crowd_refusal(action);
}

/* What becomes of a SYN to a destination. */
static __always_inline enum tg_router_verdict
tg_router_verdict(const struct tg_router_syn *syn)
{
	struct tg_router_limit *l =
		tg_router_at(&tg_router_limits, syn->place);
	struct tg_router_bucket *b =
		tg_router_at(&tg_router_buckets, syn->place);
	const struct tg_router_control *control =
		tg_router_at(&tg_router_control, 0);
	struct tg_event e = {};
	__u32 strength;
	int kind, refused;

	if (!l || !b || !control || !READ_ONCE(l->limit.bucket.rate_milli) ||
	    syn->attempt == TG_ROUTER_ADMITTED ||
	    READ_ONCE(control->mode) == TG_ROUTER_OPEN)
		return TG_ROUTER_PASS;
	e.now_ns = bpf_ktime_get_ns();
	e.priority = syn->attempt == TG_ROUTER_AGAIN;
	strength = tg_lease_strength(READ_ONCE(control->heartbeat_ns), e.now_ns);
	if (tg_router_is_open(strength) || tg_router_replied(syn->p, e.now_ns) ||
	    tg_router_is_exempt(syn->p))
		return TG_ROUTER_PASS;
	kind = tg_router_ask(syn, l, b, &e);
	if (kind == TG_ADMIT) {
		tg_router_count(&syn->d->counts.tokens, 1);
		return TG_ROUTER_PASS;
	}
	refused = tg_router_lacks(control, syn->d, syn->attempt, strength);
	tg_router_note_refused(syn->p, l, !refused);
	if (!refused)
		return TG_ROUTER_PASS;
	return kind == TG_REJECT && !syn->silent &&
	       tg_router_may_reply(syn->p, syn->ifindex, e.now_ns) ?
		       TG_ROUTER_RESET : TG_ROUTER_DROP;
}

#endif
