/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The order of the chain (chain.h), once. The host looks up the limits of the service once
 * and hands them on; how the rest of it is found it has defined. Each may return 0: then
 * nothing is decided; without senders nothing is charged.
 *
 *	struct tg_chain *tg_host_chain(tg_u64 service)
 *	struct tg_bucket_copy *tg_host_copy(tg_u64 service)		of this CPU
 *	struct tg_senders *tg_host_senders(tg_u64 service)
 *
 * A step finds its state by itself, and is a function of its own that is not static:
 * the kernel's verifier looks at each once, and at all policies not once for
 * each way that leads there.
 */
#ifndef TG_DECIDE_H
#define TG_DECIDE_H

#include "chain.h"

#define TG_STEP __attribute__((noinline))

#define TG_CHAIN_DECIDED 1
#define TG_CHAIN_LOST 2		/* the service was not found */
#define TG_CHAIN_LOCKED 3	/* the state of its policy is under the lock */

/* The verifier wants each step to see that no caller gives nothing. */
TG_INLINE int tg_chain_given(const struct tg_limits *limits,
			     const struct tg_ask *ask)
{
	return limits && ask;
}

/*
 * Reads what the policy will look at for this key, without using it. A refused SYN
 * waits about 100 ns for the kernel's table of sockets; the policy's memory comes
 * meanwhile.
 */
TG_STEP int tg_chain_fetch(const struct tg_limits *limits, tg_u32 service,
			   tg_u64 key)
{
	struct tg_chain *chain = tg_host_chain(service);

	if (!limits || !chain)
		return 0;
	return *(const volatile tg_u8 *)tg_policy_near(&limits->params,
						       &chain->state, key);
}

/*
 * What an event costs, the level, and whether a limit before the policy refuses it. The policy
 * hears of that: who comes back after it is no first attempt. 0: none refuses.
 */
TG_STEP int tg_chain_before(const struct tg_limits *limits,
			    struct tg_ask *ask)
{
	struct tg_senders *senders;
	struct tg_chain *chain;
	tg_u8 reason;

	if (!tg_chain_given(limits, ask))
		return TG_CHAIN_LOST;
	chain = tg_host_chain(ask->service);
	if (!chain)
		return TG_CHAIN_LOST;
	ask->flags = limits->flags;
	/* here: each way before the policies is a way through all of them */
	tg_chain_level(limits, ask);
	senders = tg_host_senders(ask->service);
	if (senders)
		tg_senders_weigh(senders, &ask->event);
	reason = tg_chain_first(limits, chain, ask);
	if (!reason || tg_chain_min_rate(limits, chain, ask, reason))
		return 0;
	tg_chain_refused(limits, chain, ask, reason);
	return TG_CHAIN_DECIDED;
}

/* What a policy says whose bucket is copied; 0, TG_CHAIN_LOCKED or TG_CHAIN_LOST. */
TG_STEP int tg_chain_ask_copied(const struct tg_limits *limits,
				struct tg_ask *ask)
{
	struct tg_chain *chain;
	struct tg_bucket_copy *copy;

	if (!tg_chain_given(limits, ask))
		return TG_CHAIN_LOST;
	if (!tg_policy_is_copied(&limits->params))
		return TG_CHAIN_LOCKED;
	chain = tg_host_chain(ask->service);
	copy = tg_host_copy(ask->service);
	ask->verdict = chain && copy ?
		       tg_chain_copied(&limits->params, chain, copy,
				       &ask->event) :
		       tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);
	return 0;
}

/* What any other policy says; 0, or TG_CHAIN_LOST. */
TG_STEP int tg_chain_ask_locked(const struct tg_limits *limits,
				struct tg_ask *ask)
{
	struct tg_chain *chain;

	if (!tg_chain_given(limits, ask))
		return TG_CHAIN_LOST;
	chain = tg_host_chain(ask->service);
	ask->verdict = chain ? tg_chain_locked(&limits->params, chain,
					       &ask->event) :
			       tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);
	ask->verdict = tg_waited(ask->verdict, TG_WAITS(ask));
	return 0;
}

/* What the policy says; 0, or TG_CHAIN_LOST. */
TG_INLINE int tg_chain_ask_policy(const struct tg_limits *limits,
				  struct tg_ask *ask)
{
	int copied = tg_chain_ask_copied(limits, ask);

	return copied == TG_CHAIN_LOCKED ? tg_chain_ask_locked(limits, ask) :
					   copied;
}

/* It is charged, if it was admitted. */
TG_STEP int tg_chain_settle(struct tg_ask *ask)
{
	struct tg_senders *senders = ask ? tg_host_senders(ask->service) : 0;

	if (senders)
		ask->noted = tg_senders_settle(senders, &ask->event,
					       ask->verdict);
	return 0;
}

/* Fills in what the limits say; 0, or TG_CHAIN_LOST. */
TG_INLINE int tg_chain_decide(const struct tg_limits *limits,
			      struct tg_ask *ask)
{
	int before = tg_chain_before(limits, ask), lost;

	if (before)
		return before == TG_CHAIN_DECIDED ? 0 : before;
	/* never here: tg_chain_before() would have lost it */
	lost = tg_chain_ask_policy(limits, ask);
	tg_chain_settle(ask);
	return lost;
}

#endif
