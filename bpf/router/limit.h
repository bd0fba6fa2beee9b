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
 *	else							refused, counted
 *
 * Whatever look-up fails: it passes. Nothing else is ever refused, so a connection that
 * is open is not touched.
 */
#ifndef TG_ROUTER_LIMIT_H
#define TG_ROUTER_LIMIT_H

#include "flow.h"
#include "../packet/refused.h"

#define TG_ROUTER_NOTE_MASK (TG_ROUTER_NOTES - 1)
#define TG_ROUTER_REPLIED_UNITS 64	/* a SYN-ACK says so long that its SYN passed */

enum tg_router_attempt {
	TG_ROUTER_FIRST = 0,
	TG_ROUTER_AGAIN = 1,	/* a copy of one that was refused */
	TG_ROUTER_ADMITTED = 2,	/* a copy of one that passed */
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
	struct tg_router_exempt key = {
		.bits = TG_ROUTER_EXEMPT_BITS + 8 * sizeof(key.addr),
	};

	__builtin_memcpy(key.addr, p->src, sizeof(key.addr));
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

/* A SYN to a destination: 1 if it is refused. */
static __always_inline int tg_router_refuses(const struct tg_packet *p,
					     struct tg_router_destination *d,
					     __u32 place,
					     enum tg_router_attempt attempt)
{
	struct tg_router_limit *l = tg_router_at(&tg_router_limits, place);
	const struct tg_router_control *control;
	struct tg_router_bucket *b;
	struct tg_event e = {};
	__u32 strength;
	int refused;

	if (!l || !READ_ONCE(l->limit.bucket.rate_milli) ||
	    attempt == TG_ROUTER_ADMITTED)
		return 0;
	control = tg_router_at(&tg_router_control, 0);
	b = tg_router_at(&tg_router_buckets, place);
	if (!control || !b || READ_ONCE(control->mode) == TG_ROUTER_OPEN)
		return 0;
	e.key = (__u64)place + 1;
	e.now_ns = bpf_ktime_get_ns();
	e.priority = attempt == TG_ROUTER_AGAIN;
	strength = tg_lease_strength(READ_ONCE(control->heartbeat_ns), e.now_ns);
	if (tg_router_is_open(strength) || tg_router_replied(p, e.now_ns) ||
	    tg_router_is_exempt(p))
		return 0;
	if (tg_router_token(l, b, &e)) {
		tg_router_count(&d->counts.tokens, 1);
		return 0;
	}
	refused = tg_router_lacks(control, d, attempt, strength);
	tg_router_note_refused(p, l, !refused);
	return refused;
}

#endif
