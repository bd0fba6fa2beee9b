/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The chain of limits: silent connections of the source, accept queue,
 * connections that wait for an answer, policy. The first refusal gives the
 * reason; the policy, which takes tokens, is asked last, so tokens are taken only
 * if all admit. One in an interval passes the two in the middle when they are
 * full (policy/chain/min_rate.h). What a token costs in a flood of spoofed senders
 * is said before it, and charged after it (policy/chain/senders.h).
 */
#ifndef TG_LIMITS_H
#define TG_LIMITS_H

#include "maps.h"
#include "packet.h"
#include "source.h"

static __always_inline const struct tg_limits *tg_limits_of(__u32 service)
{
	return tg_limits_row(service & (TG_SERVICES_MAX - 1));
}

static __always_inline int tg_limits_queue(const struct tg_limits *limits,
					   const struct tg_queue *queue)
{
	/* with a limit of none the kernel still queues one */
	__u64 limit = queue->limit ? queue->limit : 1;
	__u64 share = limits->accept_queue_max_q10 * limit;

	return limits->accept_queue_max_q10 && queue->known &&
	       (__u64)queue->length << 10 >= share;
}

/*
 * Reads what the policy will look at, without using it. A refused SYN waits
 * about 100 ns for the kernel's table of sockets; the policy's memory comes
 * meanwhile. Not static: the verifier looks at it once.
 */
__noinline int tg_limits_fetch(__u32 service, __u64 key)
{
	const struct tg_limits *limits = tg_limits_of(service);
	struct tg_locked_state *state = tg_at(&tg_states, service);
	const __u8 *near;

	if (!limits || !state)
		return 0;
	near = tg_policy_near(&limits->params, &state->state, key);
	return READ_ONCE(*near);
}

/* The policy, alone, under the lock of the service's state. */
static __always_inline struct tg_verdict
tg_limits_policy(const struct tg_limits *limits, __u32 service,
		 const struct tg_event *event)
{
	struct tg_locked_state *state = tg_at(&tg_states, service);
	struct tg_verdict v;

	if (!state)
		return tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);
	bpf_spin_lock(&state->lock);
	v = tg_policy_admit(&limits->params, &state->state, event);
	bpf_spin_unlock(&state->lock);
	return v;
}

/* What the chain is asked, and what it says. */
struct tg_ask {
	struct tg_event event;
	struct tg_queue queue;
	__u32 service;
	__s64 waiting;		/* connections that wait for an answer */
	__s64 silent;		/* that have said nothing */
	__u64 source;		/* key of the source (lib/source.h) */
	int over;		/* tg_limits_source() */
	/* answer: */
	struct tg_verdict verdict;
	__u32 flags;		/* of the limits: shadow, action */
	__u8 noted;		/* TG_SENDER_…, should it pass */
	__u8 pad[3];
};

/* The reason of the first limit before the policy that refuses; 0: none does. */
static __always_inline __u8 tg_limits_first(const struct tg_limits *limits,
					    struct tg_locked_state *state,
					    const struct tg_ask *ask)
{
	/* first: where its connections hold the server, they fill the queue, too */
	if (ask->over)
		return TG_REASON_SOURCE;
	if (tg_limits_queue(limits, &ask->queue))
		return TG_REASON_ACCEPT_QUEUE;
	if (tg_in_flight_full(&limits->in_flight, &state->tight, ask->waiting,
			      ask->silent))
		return TG_REASON_WAITING;
	return 0;
}

/*
 * 1: the least rate admits past the limit that refuses. That on a source is about who
 * comes, not about how many. Nor past a queue in which the stack has no place left: it
 * would drop the SYN, and the interval would be lost.
 */
static __always_inline int tg_limits_min_rate(const struct tg_limits *limits,
					      struct tg_locked_state *state,
					      const struct tg_ask *ask,
					      __u8 reason)
{
	const struct tg_queue *queue = &ask->queue;

	if (reason == TG_REASON_SOURCE ||
	    (queue->known && queue->length > queue->limit))
		return 0;
	return tg_min_rate_admits(limits->min_rate_us, &state->min_rate_ns,
				  ask->event.now_ns);
}

/*
 * 1: the source may open no more connections; -1: there are no limits to look
 * at. Asked before the others, and not by them: their stack is deep.
 */
__noinline int tg_limits_source(__u32 service, __u64 source)
{
	const struct tg_limits *limits = tg_limits_of(service);

	if (!limits)
		return -1;
	return unlikely(limits->source_max) &&
	       tg_source_over(source, limits->source_max);
}

/* The verifier wants to see that no caller gives nothing. */
static __always_inline const struct tg_limits *
tg_limits_asked(const struct tg_ask *ask)
{
	return ask ? tg_limits_of(ask->service) : 0;
}

/*
 * The three steps of the chain are not static: the verifier looks at each once,
 * and at all policies not once for each way that leads there.
 *
 * What an event costs, and whether a limit before the policy refuses it. The
 * policy hears of that: who comes back after it is no first attempt. Zero,
 * TG_LIMITS_REFUSED, or the reason why there is no answer.
 */
#define TG_LIMITS_REFUSED 1

__noinline int tg_limits_before(struct tg_ask *ask)
{
	const struct tg_limits *limits = tg_limits_asked(ask);
	struct tg_locked_state *state;
	struct tg_senders *senders;
	__u8 reason;

	if (!limits)
		return TG_REASON_LOOKUP_FAILED;
	state = tg_at(&tg_states, ask->service);
	if (!state)
		return TG_REASON_LOOKUP_FAILED;
	ask->flags = limits->flags;
	senders = tg_at(&tg_senders, ask->service);
	if (senders)
		tg_senders_weigh(senders, &ask->event);
	reason = tg_limits_first(limits, state, ask);
	if (!reason || tg_limits_min_rate(limits, state, ask, reason))
		return 0;
	ask->verdict = tg_verdict(limits->flags & TG_LIMITS_REJECT ?
				  TG_REJECT : TG_DROP, reason);
	bpf_spin_lock(&state->lock);
	ask->verdict.repeated = tg_policy_refused(&limits->params,
						  &state->state, &ask->event);
	bpf_spin_unlock(&state->lock);
	return TG_LIMITS_REFUSED;
}

/* What the policy says; zero, or the reason why there is no answer. */
__noinline int tg_limits_decide(struct tg_ask *ask)
{
	const struct tg_limits *limits = tg_limits_asked(ask);

	if (!limits)
		return TG_REASON_LOOKUP_FAILED;
	ask->verdict = tg_limits_policy(limits, ask->service, &ask->event);
	return 0;
}

/* It is charged, if it was admitted. */
__noinline int tg_limits_settle(struct tg_ask *ask)
{
	struct tg_senders *senders = ask ? tg_at(&tg_senders, ask->service) : 0;

	if (senders)
		ask->noted = tg_senders_settle(senders, &ask->event,
					       ask->verdict);
	return 0;
}

/* Zero, or the reason why there is no answer. */
static __always_inline int tg_limits_admit(struct tg_ask *ask)
{
	int reason = tg_limits_before(ask);

	if (reason)
		return reason == TG_LIMITS_REFUSED ? 0 : reason;
	if (tg_limits_decide(ask))
		return TG_REASON_LOOKUP_FAILED;
	return tg_limits_settle(ask);
}

static __always_inline int tg_limits_ask(struct tg_ask *ask)
{
	ask->over = tg_limits_source(ask->service, ask->source);
	return ask->over < 0 ? TG_REASON_LOOKUP_FAILED : tg_limits_admit(ask);
}

#endif
