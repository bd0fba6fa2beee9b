/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The body of the ingress hooks. In this order, the first that applies:
 *
 *	a router's rule refuses it		drop (import/import.h)
 *	a datagram to a service			pass or drop (datagram/datagram.h)
 *	not understood, not TCP to a service	pass, with the parser's reason
 *	no SYN					pass (not-new), passive signals; but
 *						for what is late (syn/late.h),
 *						which goes on as a SYN without
 *						a socket does
 *	exempt port or source			pass
 *	a socket exists for the tuple		pass (socket-…), but for one in
 *						TIME_WAIT whose tuple the SYN
 *						opens anew (track/queue.h)
 *	a copy of a SYN that passed		pass (socket-request), but for one
 *						that is asked about (tg_copy_asked)
 *	kill switch				pass (released), counted as demand
 *	lease or limit ended			pass (lease-expired), likewise
 *	class, limits: admit			pass, counted
 *	refused, but shadow or lease relaxing	pass, counted as shadow
 *	refused					drop or answer, counted
 *
 * Any look-up that fails passes the packet (lookup-failed).
 *
 * A hook defines tg_answer_room(ctx, packet): it cuts the frame to the length of
 * the answer, and says TG_ACTION_ANSWER, TG_ACTION_ANSWER_PARTIAL, or
 * TG_ACTION_DROP where the frame cannot be cut.
 */
#ifndef TG_EVALUATE_H
#define TG_EVALUATE_H

#include "../reply/allowance.h"
#include "../reply/rst.h"
#include "../packet/chosen.h"
#include "../packet/classify.h"
#include "../packet/count.h"
#include "../packet/emit.h"
#include "../datagram/datagram.h"
#include "../import/import.h"
#include "late.h"
#include "../packet/lease.h"
#include "limits.h"
#include "../packet/context.h"
#include "../packet/other.h"
#include "../packet/packet.h"
#include "../packet/refused.h"
#include "../track/queue.h"
#include "../track/turn.h"

enum tg_action {
	TG_ACTION_PASS,
	TG_ACTION_DROP,
	TG_ACTION_ANSWER,
	TG_ACTION_ANSWER_PARTIAL,	/* the device completes the checksum */
};

static __always_inline enum tg_action tg_pass(__u32 reason)
{
	tg_count_passed(reason);
	return TG_ACTION_PASS;
}

/* What the steps of evaluating a SYN hand on. */
struct tg_case {
	struct tg_ask ask;
	struct tg_class_view view;
	const struct tg_limits *limits;	/* of its service */
	__u64 fingerprint;	/* of the connection, as in track/flow.h */
	__u64 source;		/* key of the source (track/source.h) */
	__u64 refused;		/* where it is noted if it is refused */
	__u32 ifindex;
	__u32 src_row;		/* row of the source */
	__u32 strength;		/* of the lease, 1/65536 */
	__u8 refusal;		/* enum tg_action */
	__u8 service;
	__u8 class;
	__u8 late;		/* no SYN: see syn/late.h */
};

static __always_inline enum tg_action
tg_answer_room(TG_CONTEXT *ctx, const struct tg_packet *p);

/* 1: an answer may be sent, and is taken from a bucket. */
static __always_inline int tg_answer_allowed(const struct tg_case *c)
{
	const struct tg_table *table = c->view.table;

	return tg_answer_token(&table->answers, TG_ANSWERS_ALL,
			       c->ask.event.now_ns) ||
	       tg_answer_proved(&table->answers_proved, c->ask.service,
				c->source, c->ask.event.now_ns);
}

/* Makes room for the answer to a reject; the reason why there is none, or zero. */
static __always_inline __u8 tg_answer_make(void *ctx, struct tg_case *c,
					   const struct tg_packet *p)
{
	if (!tg_answer_possible(p, c->ifindex))
		return TG_REASON_REPLY_IMPOSSIBLE;
	if (!tg_answer_allowed(c))
		return TG_REASON_REPLY_CAP;
	c->refusal = tg_answer_room(ctx, p);
	return c->refusal == TG_ACTION_DROP ? TG_REASON_REPLY_IMPOSSIBLE : 0;
}

/* From what was decided to what is done. */
static __always_inline void tg_carry_out(void *ctx, struct tg_case *c,
					 const struct tg_packet *p)
{
	const struct tg_service *service =
		&c->view.table->service[c->service & (TG_SERVICES_MAX - 1)];
	struct tg_ask *ask = &c->ask;
	__u8 silent;

	tg_chain_execute(ask, tg_chosen_by(ask->flags, p, service),
			 tg_chain_asks_single(ask) ?
				 tg_source_single(c->source) : 1,
			 c->strength, tg_lease_dice(c->strength));
	c->refusal = TG_ACTION_DROP;
	if (!tg_chain_replies(ask))
		return;
	silent = tg_answer_make(ctx, c, p);
	if (silent)
		tg_chain_silent(ask, silent);
}

/* A function of its own: its stack is not needed beside that of the chain. */
static __noinline void tg_tell(const struct tg_case *c,
			       const struct tg_packet *p)
{
	struct tg_verdict v = c->ask.verdict;
	int shadow = c->ask.execution != TG_EXECUTED;
	__u32 every = v.kind == TG_ADMIT ? c->view.table->sample_admitted :
					   c->view.table->sample_refused;
	struct tg_emit e = {
		.verdict = v,
		.service = c->service,
		.class = c->class,
		.shadow = shadow,
		.priority = c->ask.event.priority,
		.now_ns = c->ask.event.now_ns,
		.waiting = c->ask.waiting,
	};

	tg_count_verdict(c->service, c->class, v, shadow);
	tg_count_work(&c->ask, c->late);
	if (tg_refuses(v))
		tg_refused_note(c->refused, shadow);
	/* Not the bits that the policy decided by. */
	if (tg_emit_chosen(every, c->ask.event.random ^ (__u32)c->ask.event.key))
		tg_emit(p, &c->ask.queue, &e);
}

/* It passes: the handshake of a SYN is followed. */
static __always_inline void tg_note_syn(const struct tg_packet *p,
					const struct tg_case *c)
{
	__u32 service = c->service & (TG_SERVICES_MAX - 1);

	if (c->late)
		return;
	tg_flow_syn(p, c->fingerprint, c->view.table->service[service].gauge,
		    c->ask.noted, c->ask.event.now_ns);
}

static __always_inline enum tg_action
tg_verdict_on(void *ctx, struct tg_case *c, const struct tg_packet *p)
{
	if (c->late) {
		if (tg_late_verdict(&c->ask))
			return tg_pass(TG_REASON_NOT_NEW);
	} else if (tg_limits_ask(c->limits, &c->ask, c->source)) {
		tg_note_syn(p, c);
		return tg_pass(TG_REASON_LOOKUP_FAILED);
	}
	tg_carry_out(ctx, c, p);
	tg_tell(c, p);
	if (tg_chain_passes(&c->ask)) {
		tg_note_syn(p, c);
		return TG_ACTION_PASS;
	}
	if (c->late && c->ask.verdict.kind == TG_REJECT)
		tg_late_over(c->fingerprint);
	return c->refusal;
}

/* Fills the case; zero, or the reason to pass. */
static __always_inline int tg_prepare(struct tg_case *c,
				      const struct tg_packet *p)
{
	const struct tg_service *service;
	const struct tg_gauges *gauges;

	service = &c->view.table->service[c->service & (TG_SERVICES_MAX - 1)];
	c->class = tg_class_of(&c->view, p, service, c->service,
			       c->src_row);
	gauges = tg_at(&tg_gauges, service->gauge & (TG_GAUGES_MAX - 1));
	if (!gauges)
		return TG_REASON_LOOKUP_FAILED;
	c->ask.service = c->service;
	c->ask.waiting = READ_ONCE(gauges->waiting);
	c->ask.silent = READ_ONCE(gauges->silent);
	c->source = tg_source_key(p, service->gauge);
	c->ask.event.priority =
		service->priority[c->class & (TG_CLASSES_MAX - 1)] &
		(TG_PRIORITIES - 1);
	c->ask.event.random = bpf_get_prandom_u32();
	return 0;
}

/* 1: a copy of a SYN that passed is asked about, as any SYN. */
static __always_inline int tg_copy_asked(struct tg_case *c, int copy)
{
	if (tg_late_copy(&c->ask, copy))
		return 1;
	if (copy != TG_COPY_IGNORED || !c->limits ||
	    !tg_chain_asks_copy(c->limits))
		return 0;
	c->ask.copy = 1;
	return 1;
}

/* No limit is asked about it, and tg_passed counts it. It is demand all the same. */
static __always_inline void tg_count_unlimited(struct tg_case *c)
{
	if (c->late)
		return;
	c->ask.verdict = tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);
	tg_count_work(&c->ask, 0);
}

static __always_inline enum tg_action
tg_evaluate_syn(void *ctx, const struct tg_packet *p, struct tg_case *c,
		int listen)
{
	int reason = 0, unprepared, copy;
	__u32 service;

	c->src_row = tg_src_row(&c->view, p);
	if (tg_exempt(&c->view, p, listen, c->src_row))
		return tg_pass(c->late ? TG_REASON_NOT_NEW :
					 TG_REASON_EXEMPT);
	c->ask.event.key = tg_hash_syn(p);
	c->fingerprint = tg_hash_flow(p, 0);
	c->limits = tg_host_limits(c->service);
	if (!c->late) {
		tg_flow_fetch(c->fingerprint);
		tg_chain_fetch(c->limits, c->service, c->ask.event.key);
	}
	service = c->service & (TG_SERVICES_MAX - 1);
	c->refused = tg_refused_fetch(p, &c->view.table->service[service]);
	unprepared = tg_prepare(c, p);
	if (!c->late) {
		reason = tg_queue(ctx, p, &c->ask.queue);
		copy = reason ? 0 : tg_flow_is_copy(p, c->fingerprint,
						    c->ask.event.now_ns);
		if (copy && !tg_copy_asked(c, copy))
			return tg_pass(TG_REASON_SOCKET_REQUEST);
		/* the stack opens no connection for it: nothing to note, either */
		if (reason)
			return tg_pass(reason);
	}
	c->strength = tg_lease_now(c->ask.event.now_ns);
	if (c->limits)
		c->strength = tg_lease_until(c->strength, c->limits->until,
					     c->ask.event.now_ns);
	reason = tg_lease_passes(c->view.released, c->strength);
	if (!reason)
		reason = unprepared;
	else if (!unprepared)
		tg_count_unlimited(c);
	if (reason) {
		tg_note_syn(p, c);
		return tg_pass(c->late ? TG_REASON_NOT_NEW : reason);
	}
	return tg_verdict_on(ctx, c, p);
}

/* Not a reason to pass. */
#define TG_EVALUATE_LATE TG_REASONS_MAX

/*
 * A packet of a connection that is not followed, and is no SYN: zero if it is from
 * now on, the reason to pass, or TG_EVALUATE_LATE.
 */
static __always_inline int
tg_evaluate_unknown(TG_CONTEXT *ctx, const struct tg_packet *p,
		    const struct tg_class_view *view, int kinds,
		    __u64 fingerprint)
{
	int listen = tg_listen_of(view, p, kinds), service;
	__u64 syn_ns;
	__u32 gauge;

	if (listen < 0)
		return TG_REASON_NOT_SERVICE;
	if ((p->flags & (TG_TCP_ACK | TG_TCP_SYN | TG_TCP_RST)) != TG_TCP_ACK)
		return TG_REASON_NOT_NEW;
	service = tg_listen_service(listen);
	syn_ns = tg_flow_ack(p, fingerprint);
	if (!syn_ns)
		return p->payload && tg_late_unknown(ctx, p, service) ?
			TG_EVALUATE_LATE : TG_REASON_NOT_NEW;
	gauge = view->table->service[service].gauge;
	return tg_flow_open(fingerprint, gauge, syn_ns,
			    tg_source_open(p, tg_source_key(p, gauge), gauge,
					   bpf_ktime_get_ns()),
			    p->seq);
}

/* A packet that is no SYN: 1 if it is late; else it passes, and is counted. */
static __always_inline int
tg_evaluate_other(TG_CONTEXT *ctx, const struct tg_packet *p,
		  const struct tg_class_view *view, int kinds)
{
	struct tg_flow flow = { .fingerprint = tg_hash_flow(p, 0) };
	int reset = TG_RESET_NONE, reason = 0;

	if (likely(tg_flow_find(&flow))) {
		if (unlikely(p->flags & TG_TCP_RST))
			reset = tg_reset_of(ctx, p);
	} else {
		reason = tg_evaluate_unknown(ctx, p, view, kinds,
					     flow.fingerprint);
	}
	if (reason == TG_EVALUATE_LATE)
		return 1;
	if (!reason && !flow.at && (!p->payload || !tg_flow_find(&flow)))
		reason = TG_REASON_NOT_NEW;
	if (reason) {
		tg_pass(reason);
		return 0;
	}
	if (unlikely(tg_flow_ingress(ctx, &flow, p, reset)) &&
	    tg_late_known(ctx, p, flow.fingerprint))
		return 1;
	tg_pass(TG_REASON_NOT_NEW);
	return 0;
}

/* A packet that the parser has refused for a reason, or that is dealt with already. */
static __always_inline enum tg_action tg_dealt_with(int reason)
{
	if (tg_other_asked() && reason > TG_REASONS_MAX)
		return reason == TG_REFUSED_EARLY ? TG_ACTION_DROP :
						    TG_ACTION_PASS;
	return tg_pass(reason);
}

/* Evaluates a frame that the parser read, or refused for a reason. */
static __always_inline enum tg_action
tg_evaluate(void *ctx, const struct tg_packet *p, __u32 ifindex, int reason)
{
	struct tg_class_view view;
	int kinds, listen;
	__u64 now_ns;

	if (reason)
		return tg_dealt_with(reason);
	if (tg_classification(&view))
		return tg_pass(TG_REASON_LOOKUP_FAILED);
	kinds = tg_port(&view, p->dport);
	if (likely(!kinds))
		return tg_pass(TG_REASON_NOT_SERVICE);
	if (likely(!tg_is_syn(p)) &&
	    likely(!tg_evaluate_other(ctx, p, &view, kinds)))
		return TG_ACTION_PASS;
	/* First: on x86 the clock waits for all reads that were begun before. */
	now_ns = bpf_ktime_get_ns();
	listen = tg_listen_of(&view, p, kinds);
	if (listen < 0)
		return tg_pass(TG_REASON_NOT_SERVICE);
	struct tg_case c = {
		.ask.event.now_ns = now_ns,
		.view = view,
		.ifindex = ifindex,
		.service = tg_listen_service(listen),
		.late = !tg_is_syn(p),
	};
	return tg_evaluate_syn(ctx, p, &c, listen);
}

#endif
