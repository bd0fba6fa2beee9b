/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Evaluating a request. In this order, the first that applies:
 *
 *	no rule, or TLS that no rule asks for		pass (no-rule, tls)
 *	a table has no answer				pass (lookup-failed)
 *	exempt port or source			pass (exempt)
 *	kill switch, lease ended			pass (released …)
 *	bucket of the rule admits			pass, counted by rule
 *	shadow, or lease relaxing			pass, counted by rule
 *	else						refused, request/refusal.h
 *
 * The rule is the request's own; or that for unevaluable requests, where the
 * sender chose that none can be told: not recognised, cut, pipelined, an
 * ambiguous path, IP options, and what else tg_is_evaded() names. If the service
 * has no such rule, these pass, counted by reason.
 *
 * What passes is followed (track/conn.h) where its extent is known.
 */
#ifndef TG_REQUEST_H
#define TG_REQUEST_H

#include "../packet/classify.h"
#include "../track/conn.h"
#include "../track/first.h"
#include "../http/http.h"
#include "../packet/lease.h"
#include "../packet/chosen.h"
#include "../packet/refused.h"
#include "../reply/segment.h"
#include "../http/rule.h"
#include "../track/socket.h"
#include "../http/tls_hello.h"

/* One packet of the client's. */
struct tg_visit {
	struct tg_packet p;
	__u64 key;
	struct tg_class_view view;
	__u32 slot;		/* of the rule set */
	__u32 tests;		/* of cookies */
	__u32 listen;		/* as tg_listen_word */
	__u64 since_ns;		/* tg_request_control.since_ns */
	__u8 service;
};

static __always_inline void tg_count_reason(__u32 service, __u32 reason)
{
	struct tg_reason_counts *counts = tg_at(&tg_request_reasons, service);

	if (counts && reason < TG_REASONS_MAX)
		counts->reason[reason]++;
}

static __always_inline void tg_count_rule(__u32 slot, __u32 rule, __u32 cell)
{
	struct tg_rule_counts *counts;

	counts = tg_at(&tg_rule_counts, slot * TG_RULES_MAX + rule);
	if (counts && cell < TG_RULE_COUNTS)
		counts->cell[cell]++;
}

/* Where it goes; zero if that is a service with rules. */
static __always_inline int tg_visit_service(struct tg_visit *v)
{
	const struct tg_request_control *control;
	int kinds, listen;

	control = tg_at(&tg_request_control, 0);
	if (!control || tg_classification(&v->view))
		return -1;
	kinds = tg_port(&v->view, v->p.dport);
	if (likely(!kinds))
		return -1;
	listen = tg_listen_of(&v->view, &v->p, kinds);
	if (listen < 0)
		return -1;
	v->listen = listen;
	v->service = tg_listen_service(listen);
	v->slot = READ_ONCE(control->slot) & (TG_SLOTS - 1);
	v->tests = READ_ONCE(control->cookies);
	v->since_ns = READ_ONCE(control->since_ns);
	return READ_ONCE(control->services) >> v->service & 1 ? 0 : -1;
}

/* What was found out about a request. */
struct tg_found {
	struct tg_layout at;
	struct tg_asked asked;
	struct tg_follow follow;	/* framed: where its body stands, */
	__u32 ended;			/* TG_FOLLOW_…, behind this segment */
	__u32 reason;		/* enum tg_reason */
	__u32 framed;		/* 1: its extent is known, and it is alone in its
				 * segment */
	__u32 rank;
	__u32 evades;		/* 1: the rule is that for unevaluable requests */
	__u32 nameless;		/* 1: TLS without a name that rules ask for */
};

/*
 * Follows the body of a request to the end of its segment. What stands behind the
 * body is another request; where its end cannot be told, there may be some.
 */
static __always_inline __u32 tg_follow_first(struct __sk_buff *skb,
					     const struct tg_head *head,
					     const struct tg_packet *p,
					     struct tg_found *found)
{
	__u32 behind = p->payload - head->http.head;
	struct tg_follow *f = &found->follow;

	f->left = head->http.body;
	found->ended = f->left ? TG_FOLLOW_MORE : TG_FOLLOW_END;
	found->framed = 1;
	if (!behind)
		return TG_REASON_NONE;
	found->ended = tg_follow_at(skb, found->at.data + head->http.head,
				    behind, f);
	found->framed = found->ended != TG_FOLLOW_FAILED && f->used == behind;
	return found->framed ? TG_REASON_NONE : tg_follow_why(found->ended);
}

static __always_inline __u32 tg_recognise(struct __sk_buff *skb,
					  struct tg_head *head,
					  const struct tg_packet *p,
					  struct tg_found *found)
{
	__u32 length = p->payload < TG_HEAD_MAX ? p->payload : TG_HEAD_MAX;
	__u32 reason;

	if (head->bytes[0] == TG_TLS_HANDSHAKE) {
		found->asked.tls = 1;
		reason = tg_tls_hello(head, length);
		found->nameless = reason &&
				  tg_rule_first(head, &found->asked);
		/* nobody asks what is in the rest of it */
		if (reason == TG_REASON_SPLIT && !found->nameless)
			reason = TG_REASON_TLS;
	} else {
		reason = tg_http_request(head, length);
		if (!reason && head->http.flags & TG_HTTP_WHOLE &&
		    head->http.head <= p->payload)
			reason = tg_follow_first(skb, head, p, found);
		if (!reason && head->http.ambiguous)
			reason = TG_REASON_AMBIGUOUS_PATH;
	}
	return reason ? reason : tg_rule_find(head, &found->asked);
}

/* Loads and recognises what a segment begins with. */
static __always_inline struct tg_head *
tg_look(struct __sk_buff *skb, const struct tg_visit *v, struct tg_found *found)
{
	struct tg_head *head = tg_at(&tg_head, TG_HEAD_INGRESS);
	__u32 length = v->p.payload;

	__builtin_memset(found, 0, sizeof(*found));
	found->reason = TG_REASON_LOOKUP_FAILED;
	if (!head || tg_layout_of(skb, &v->p, &found->at))
		return 0;
	if (found->at.fragment) {
		found->reason = TG_REASON_FRAGMENT;
		return 0;
	}
	if (length > TG_HEAD_MAX)
		length = TG_HEAD_MAX;
	if (!length || tg_head_load(skb, found->at.data, length, head))
		return 0;
	found->asked.slot = v->slot;
	found->asked.service = v->service;
	found->asked.tests = v->tests;
	found->reason = tg_recognise(skb, head, &v->p, found);
	return head;
}

/* Why this request passes, whatever its rule says; or NONE. */
static __always_inline __u32 tg_spared(const struct tg_visit *v, __u32 strength)
{
	if (tg_exempt(&v->view, &v->p, v->listen,
		      tg_src_row(&v->view, &v->p)))
		return TG_REASON_EXEMPT;
	return tg_lease_passes(v->view.released, strength);
}

/* All below 64. */
#define TG_EVADED(name) (1ULL << TG_REASON_##name)
#define TG_EVADED_SET                                                    \
	(TG_EVADED(HTTP2) | TG_EVADED(SPLIT) | TG_EVADED(NOT_HTTP) |     \
	 TG_EVADED(OUTSTANDING) | TG_EVADED(SEQUENCE) |                  \
	 TG_EVADED(PIPELINED) | TG_EVADED(OPAQUE) |                      \
	 TG_EVADED(IP_OPTIONS) | TG_EVADED(FRAGMENT) |                   \
	 TG_EVADED(AMBIGUOUS_PATH))

/*
 * Whether a sender may choose that there is no rule for this reason. A TLS hello
 * without a readable name does, where rules ask for names.
 */
static __always_inline int tg_is_evaded(const struct tg_found *found,
					__u32 reason)
{
	if (reason == TG_REASON_TLS)
		return found->nameless;
	return reason < 64 && TG_EVADED_SET >> reason & 1;
}

/* The rule for unevaluable requests; 0: there is none. */
static __always_inline __u32 tg_unevaluable_of(const struct tg_visit *v)
{
	const __u32 *rule = tg_at(&tg_unevaluable,
				  v->slot * TG_SERVICES_MAX + v->service);

	return rule ? *rule & (TG_RULES_MAX - 1) : 0;
}

/*
 * What the bucket of a rule says to a request of this rank: TG_RULE_ADMITTED, or how it
 * is refused. It admits where a look-up fails. Not static: the verifier looks at the
 * policies once, and their stack is not that of the hook.
 */
__noinline __u32 tg_bucket_verdict(__u32 bucket, __u32 rank, __u32 strength,
				   const struct tg_service *service,
				   const struct tg_packet *p)
{
	const struct tg_request_limits *limits =
		tg_limits_row(TG_LIMITS_BUCKETS + bucket);
	struct tg_request_chain *chain = tg_at(&tg_buckets, bucket);
	struct tg_bucket_totals *totals = tg_at(&tg_bucket_totals, bucket);
	struct tg_event event = { .now_ns = bpf_ktime_get_ns() };
	long long waiting = 0;
	struct tg_verdict v;

	if (!limits || !chain || !service || rank >= TG_RANKS)
		return TG_RULE_ADMITTED;
	if (totals)
		totals->offered[rank]++;
	/* Else clang leaves out what bounds an index, and the verifier lost it. */
	barrier_var(rank);
	event.priority = rank;
	if (tg_request_limited(limits)) {
		event.random = bpf_get_prandom_u32();
		waiting = tg_gauge_waiting(service->gauge);
	}
	v = tg_request_decide(limits, chain, &event, waiting, 0);
	if (!tg_refuses(v))
		return TG_RULE_ADMITTED;
	switch (tg_request_execution(limits, v,
				     tg_chosen_by(limits->flags, p, service),
				     strength, tg_lease_dice(strength))) {
	case TG_SHADOWED:
		return TG_RULE_SHADOWED;
	case TG_SPARED:
		return TG_RULE_LEASE;
	default:
		return TG_RULE_REFUSED;
	}
}

/*
 * A request is refused, or would be without shadow. Not before it is certain: a
 * refusal that the server's socket forbids was none, and whoever controls the
 * bucket must not take it for one.
 */
static __always_inline void tg_count_refused(const struct tg_visit *v,
					     const struct tg_rule *rule,
					     const struct tg_found *found,
					     int first, int shadow)
{
	struct tg_bucket_totals *totals = tg_at(&tg_bucket_totals,
						rule->bucket);
	__u32 service = v->service & (TG_SERVICES_MAX - 1);

	tg_refused_note(tg_refused_hash(&v->p,
					&v->view.table->service[service]),
			shadow);
	if (!totals || found->rank >= TG_RANKS)
		return;
	totals->refused[found->rank]++;
	if (first)
		totals->refused_first++;
}

/*
 * What the rule of a request says: admitted, or how it is refused; the rank that
 * it has goes into `found`.
 */
static __always_inline __u32 tg_rule_verdict(const struct tg_visit *v,
					     const struct tg_rule *rule,
					     struct tg_found *found, int first,
					     __u32 strength)
{
	const struct tg_service *service =
		&v->view.table->service[v->service & (TG_SERVICES_MAX - 1)];
	__u32 verdict;

	found->rank = tg_request_rank(found->asked.protected, first,
				      rule->flags & TG_RULE_CLOSE);
	if (rule->bucket >= TG_RULE_BUCKETS_MAX)
		return TG_RULE_ADMITTED;
	verdict = tg_bucket_verdict(rule->bucket, found->rank, strength,
				    service, &v->p);
	/* clang knows which values it has, the verifier does not */
	barrier_var(verdict);
	return verdict;
}

/*
 * The client has sent data: whatever becomes of its place, it is not given
 * another one by which a request might be refused that is not the first.
 */
static __always_inline void tg_spoke(const struct tg_visit *v)
{
	struct tg_flow flow = { .fingerprint = v->key };

	if (tg_flow_find(&flow))
		tg_flow_spoke(&flow);
}

/*
 * A connection whose next request could not be told from its body, or of which
 * a part was not seen. `evades`: by what its client sent.
 */
static __always_inline void tg_unfollow(const struct tg_visit *v,
					struct tg_conn *conn, int first,
					int evades)
{
	if (evades)
		tg_conn_evading(conn, v->key, v->p.ack);
	/* it leaves its place to others, and does not come back (tg_spoke) */
	else if (first)
		tg_conn_forget(conn, v->key);
	else
		tg_conn_opaque(conn, v->key);
}

/* A request passes. `flight`: as TG_FLIGHT. */
static __always_inline void tg_follow_request(const struct tg_visit *v,
					      struct tg_conn *conn,
					      const struct tg_head *head,
					      const struct tg_found *found,
					      __u32 flight)
{
	struct tg_begin begin = { .flight = flight, .rule = found->asked.rule };

	if (head->http.method == TG_METHOD_HEAD)
		begin.flags = TG_CONN_HEAD;
	if (head->http.flags & TG_HTTP_TUNNEL)
		begin.flags = TG_CONN_CONNECT;
	begin.left = found->ended == TG_FOLLOW_END ? 0 : found->follow.left;
	begin.chunk = found->follow.chunk;
	tg_conn_begin(conn, v->key, &v->p, &begin);
}

#endif
