/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Requests of services with request rules, at tc ingress, behind the hook that
 * evaluates SYNs: tcx from Linux 6.6 on, clsact below. Every packet of such a
 * service is looked up; the first bytes of a connection, and what comes when an
 * answer is complete, are recognised and evaluated.
 */
#include "../packet/tc.h"
#include "../request/refusal.h"

/*
 * 1: the numbers of this packet are those of the connection, and nobody guessed
 * them: it acknowledges the server's ISN and carries nothing, as the end of a
 * handshake does; or the server's socket says that these are its first bytes.
 */
static __always_inline int tg_is_proved(struct __sk_buff *skb,
					const struct tg_visit *v)
{
	if (!v->p.payload)
		return tg_flow_acks(&v->p, v->key);
	return tg_socket_agrees(skb, &v->p, 1) == TG_SOCKET_HERE;
}

/*
 * A packet of a connection that is not followed: the end of a handshake gets it
 * a place. Data gets one only if that packet was lost, and the server's socket
 * is here to be asked. Once data was seen, no later packet gets a place: its
 * request may be outstanding. Returns the place, if it may be evaluated.
 */
static __always_inline struct tg_conn *tg_untracked(struct __sk_buff *skb,
						    const struct tg_visit *v)
{
	struct tg_flow flow = { .fingerprint = v->key };
	__u32 reason = TG_REASON_UNVERIFIED;
	struct tg_conn *conn = 0;

	if ((v->p.flags & (TG_TCP_ACK | TG_TCP_SYN | TG_TCP_RST |
			   TG_TCP_FIN)) != TG_TCP_ACK)
		return 0;
	if (tg_flow_find(&flow)) {
		reason = TG_REASON_OPAQUE;
		if (tg_flow_is_silent(&flow, v->since_ns) && tg_is_proved(skb, v)) {
			reason = TG_REASON_TABLE_FULL;
			conn = tg_conn_open(&v->p, v->key, v->service);
		}
		if (v->p.payload)
			tg_flow_spoke(&flow);
	}
	if (!v->p.payload)
		return 0;
	if (conn)
		return conn;
	/* Nobody looked at their SYNs. */
	if (reason == TG_REASON_UNVERIFIED &&
	    tg_exempt(&v->view, &v->p, v->listen,
		      tg_src_row(&v->view, &v->p)))
		reason = TG_REASON_EXEMPT;
	tg_count_reason(v->service, reason);
	return 0;
}

/* Walks a part of a chunked request. */
static __always_inline void tg_chunks(struct __sk_buff *skb,
				      const struct tg_visit *v,
				      struct tg_conn *conn, struct tg_work *w)
{
	struct tg_step *step = &w->step;
	int followed = TG_FOLLOW_FAILED;

	if (!tg_layout_of(skb, &v->p, &w->at) && step->skip < v->p.payload)
		followed = tg_follow_at(skb, w->at.data + step->skip,
					v->p.payload - step->skip,
					&step->follow);
	tg_conn_walked(conn, v->key, &v->p, step, followed);
}

/* What the rule of a request does with it; TG_REFUSAL_FAILED: it passes. */
static __always_inline int tg_ruled(struct __sk_buff *skb,
				    const struct tg_visit *v,
				    struct tg_conn *conn,
				    const struct tg_rule *rule,
				    struct tg_work *w, int head)
{
	__u32 strength = tg_lease_now(bpf_ktime_get_ns());
	__u32 verdict = tg_rule_verdict(v, rule, &w->found, w->step.first,
					strength);
	int action;

	if (verdict == TG_RULE_REFUSED) {
		action = tg_refuse(skb, v, conn, rule, w, head);
		if (action >= TG_TC_NEXT)
			return action;
		if (action == TG_REFUSAL_BUSY) {
			tg_count_reason(v->service, TG_REASON_SEQUENCE);
			return TG_REFUSAL_FAILED;
		}
		verdict = TG_RULE_FAILED;
	} else if (verdict == TG_RULE_SHADOWED) {
		tg_count_refused(v, rule, &w->found, w->step.first, 1);
	}
	tg_count_rule(v->slot, w->found.asked.rule, verdict);
	return TG_REFUSAL_FAILED;
}

/* What a turn of a connection has, of which no request can be told. */
static __always_inline void tg_look_turn(struct __sk_buff *skb,
					 const struct tg_visit *v,
					 struct tg_work *w)
{
	struct tg_found *found = &w->found;

	__builtin_memset(found, 0, sizeof(*found));
	found->reason = tg_layout_of(skb, &v->p, &found->at) ?
				TG_REASON_LOOKUP_FAILED :
				w->step.reason;
}

/* Why no rule of its own evaluates what was found; NONE: one does. */
static __always_inline __u32 tg_unevaluated(const struct tg_work *w)
{
	if (w->found.reason)
		return w->found.reason;
	if (w->step.lacks)
		return TG_REASON_SEQUENCE;
	return w->found.at.plain ? TG_REASON_NONE : TG_REASON_IP_OPTIONS;
}

/*
 * Chooses the rule that evaluates it, by its number; 0: none, it passes. Counts
 * why that is not a rule of its own.
 */
static __always_inline __u32 tg_choose(const struct tg_visit *v,
				       struct tg_work *w)
{
	__u32 strength = tg_lease_now(bpf_ktime_get_ns());
	__u32 reason = tg_unevaluated(w), spared;

	w->found.evades = reason ? tg_is_evaded(&w->found, reason) : 0;
	if (reason && !w->found.evades) {
		tg_count_reason(v->service, reason);
		return 0;
	}
	if (w->found.evades)
		w->found.asked.rule = tg_unevaluable_of(v);
	spared = tg_spared(v, strength);
	/* what the packet says is told before what spares it, but for options */
	if (spared && (!reason || reason == TG_REASON_IP_OPTIONS))
		reason = spared;
	if (reason)
		tg_count_reason(v->service, reason);
	return spared ? 0 : w->found.asked.rule;
}

/* A segment that begins a request, perhaps, or a turn. */
static __always_inline int tg_request(struct __sk_buff *skb,
				      const struct tg_visit *v,
				      struct tg_conn *conn, struct tg_work *w)
{
	struct tg_found *found = &w->found;
	__u32 flight = 0, number;
	const struct tg_rule *rule;
	struct tg_head *head = 0;
	int action, bare;

	if (w->step.turn)
		tg_look_turn(skb, v, w);
	else
		head = tg_look(skb, v, found);
	number = tg_choose(v, w);
	rule = tg_at(&tg_rules, v->slot * TG_RULES_MAX + number);
	if (number && !rule)
		tg_count_reason(v->service, TG_REASON_LOOKUP_FAILED);
	if (number && rule) {
		bare = head && !found->asked.tls &&
		       head->http.method == TG_METHOD_HEAD;
		action = tg_ruled(skb, v, conn, rule, w, bare);
		if (action != TG_REFUSAL_FAILED)
			return action;
		flight = TG_FLIGHT(number, rule->bucket);
	}
	if (head && found->framed)
		tg_follow_request(v, conn, head, found, flight);
	else
		tg_unfollow(v, conn, w->step.first,
			    !found->asked.tls &&
			    found->reason != TG_REASON_LOOKUP_FAILED &&
			    tg_unevaluable_of(v));
	return TG_TC_NEXT;
}

/* A segment with data of a connection that is followed. */
static __always_inline int tg_data(struct __sk_buff *skb,
				   const struct tg_visit *v,
				   struct tg_conn *conn, struct tg_work *w)
{
	struct tg_step *step = &w->step;

	__builtin_memset(step, 0, sizeof(*step));
	if (!tg_conn_lock(conn, v->key))
		return TG_TC_NEXT;
	tg_conn_client_has(conn, v->p.ack, step);
	tg_conn_data(conn, &v->p, step);
	bpf_spin_unlock(&conn->lock);
	if (step->flight)
		tg_step_count(step, bpf_ktime_get_ns());
	if (step->first)
		tg_spoke(v);
	if (step->chunks)
		tg_chunks(skb, v, conn, w);
	if (!step->reason || step->turn)
		return tg_request(skb, v, conn, w);
	tg_count_reason(v->service, step->reason);
	return TG_TC_NEXT;
}

/* A bare acknowledgement tells what the client has of an answer. */
static __always_inline void tg_bare(const struct tg_visit *v,
				    struct tg_conn *conn, struct tg_step *step)
{
	if (READ_ONCE(conn->phase) != TG_CONN_ANSWER)
		return;
	__builtin_memset(step, 0, sizeof(*step));
	if (!tg_conn_lock(conn, v->key))
		return;
	tg_conn_client_has(conn, v->p.ack, step);
	bpf_spin_unlock(&conn->lock);
	if (step->flight)
		tg_step_count(step, bpf_ktime_get_ns());
}

/* A RST of the client's. */
static __always_inline void tg_reset_by(struct __sk_buff *skb,
					const struct tg_visit *v,
					struct tg_conn *conn)
{
	enum tg_reset reset = tg_reset_of(skb, &v->p);

	if (reset != TG_RESET_NONE &&
	    tg_conn_reset(conn, v->key, v->p.seq, reset))
		tg_conn_forget(conn, v->key);
}

/*
 * What is left of a refusal holds for as long as refusals do: no longer than the
 * lease, nor under the kill switch; and no longer than the sweep keeps it, for
 * the daemon that runs the sweep may be gone. Then it is the server's stack that
 * answers: it knows no such connection.
 */
static __always_inline int tg_closing_holds(const struct tg_visit *v,
					    const struct tg_conn *conn)
{
	__u64 now_ns = bpf_ktime_get_ns();

	return !v->view.released && tg_lease_now(now_ns) &&
	       tg_elapsed_ns(now_ns, READ_ONCE(conn->seen_ns)) <=
		       TG_CONN_REFUSED_EXPIRE_NS;
}

static __always_inline int tg_known(struct __sk_buff *skb,
				    const struct tg_visit *v,
				    struct tg_conn *conn)
{
	struct tg_work *w = tg_at(&tg_work, 0);
	int action = TG_TC_NEXT;

	if (!w)
		return TG_TC_NEXT;
	if (READ_ONCE(conn->phase) == TG_CONN_REFUSED) {
		if (tg_closing_holds(v, conn))
			return tg_closing(skb, v, conn, w);
		tg_conn_forget(conn, v->key);
		return TG_TC_NEXT;
	}
	if (v->p.flags & TG_TCP_SYN)
		return TG_TC_NEXT;	/* the server's answer will tell */
	if (v->p.flags & TG_TCP_RST) {
		tg_reset_by(skb, v, conn);
		return TG_TC_NEXT;
	}
	tg_conn_touch(conn, bpf_ktime_get_coarse_ns());
	if (v->p.payload)
		action = tg_data(skb, v, conn, w);
	else
		tg_bare(v, conn, &w->step);
	if (unlikely(v->p.flags & TG_TCP_FIN) && action == TG_TC_NEXT)
		tg_conn_done(conn, v->key, &v->p);
	return action;
}

/*
 * Data in a SYN (TCP Fast Open) may be a request, and its connection is given no
 * place (track/flow.h): counted here, once.
 */
static __always_inline void tg_fast_open(const struct tg_visit *v)
{
	if (tg_is_syn(&v->p) && v->p.payload)
		tg_count_reason(v->service, TG_REASON_FAST_OPEN);
}

SEC("tc")
int tg_request_in(struct __sk_buff *skb)
{
	struct tg_visit v = {};
	struct tg_conn *conn;

	if (tg_parse_frame(skb, &v.p) || tg_visit_service(&v))
		return TG_TC_NEXT;
	tg_fast_open(&v);
	v.key = tg_hash_flow(&v.p, 0);
	conn = tg_conn_find(&v.key);
	if (!conn)
		conn = tg_untracked(skb, &v);
	return conn ? tg_known(skb, &v, conn) : TG_TC_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
