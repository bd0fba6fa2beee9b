/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The course of a refusal, and of what comes after it.
 *
 * The answer is marked in the table before it is sent: the request hook at the
 * other side of the device sees the clone go out. What the client still sends is
 * answered here, and does not reach the server's stack, which would answer with
 * a RST that could overtake the 503:
 *
 *	it lacks the 503, and sends again what was here before
 *				the 503 again, and the RST; once in 100 ms
 *	it lacks the 503; more of its body, or its FIN, for the first time
 *				dropped: the 503 is on its way
 *	it has the 503; data or FIN	acknowledged
 *	a bare acknowledgement		dropped; on a router turned into the
 *					RST, in case that one was lost
 *	RST, SYN			passed; the connection is forgotten
 *
 * After its FIN was acknowledged nothing is left of a connection, nor 30 s after
 * its last packet, nor when nothing is refused any more (kill switch, end of the
 * lease). One packet goes out for one that came in, and only to
 * peers whose address the handshake has verified.
 */
#ifndef TG_REFUSAL_H
#define TG_REFUSAL_H

#include "request.h"

/* Nothing was done, the request passes: */
#define TG_REFUSAL_FAILED (-2)	/* no answer can be made */
#define TG_REFUSAL_BUSY (-3)	/* something of the connection is outstanding */
#define TG_XMIT_CN 2	/* NET_XMIT_CN: sent, and the queue is nearly full */

/* What a segment takes of the sequence space. */
static __always_inline __u32 tg_extent(const struct tg_packet *p)
{
	return p->payload + (p->flags & TG_TCP_FIN ? 1 : 0);
}

static __always_inline const struct tg_answer_text *
tg_text_of(__u32 slot, __u32 answer)
{
	const struct tg_answer_text *text;

	text = tg_at(&tg_answer_texts, slot * TG_ANSWERS_MAX + answer);
	return text && text->bytes && text->bytes <= TG_ANSWER_BYTES_MAX &&
	       text->head && text->head <= text->bytes ? text : 0;
}

static __always_inline void tg_send_choose(struct tg_send *s,
					   const struct tg_answer_text *text,
					   int head)
{
	s->bytes = head ? text->head : text->bytes;
	s->sum = head ? text->sum_head : text->sum;
}

/* How a refused request is answered. */
struct tg_refusal {
	__u32 seq;		/* of the request */
	__u32 reply;		/* sequence number of the answer */
	__u32 next;		/* of the client: what is acknowledged */
	__u32 end;		/* what acknowledges all of the answer */
	__u16 answer;
	__u16 rule;
	__u8 refuse;		/* TG_REFUSE_… */
	__u8 head;		/* 1: without body */
	__u8 local;
	__u8 asks;		/* 1: the answer is sent again */
};

/*
 * What one packet is worked on with: a map's value, since the stack is too
 * small. No packet is worked on while another is, on one CPU: what goes out as
 * a clone meets the egress hooks only.
 */
struct tg_work {
	struct tg_step step;
	struct tg_found found;
	struct tg_layout at;
	struct tg_refusal refusal;
	struct tg_send send;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tg_work);
} tg_work SEC(".maps");

/* Marks a connection as refused; zero if it was where the request begins. */
static __always_inline int tg_refusal_mark(const struct tg_visit *v,
					   struct tg_conn *conn,
					   const struct tg_refusal *r)
{
	__u64 now_ns = bpf_ktime_get_ns();
	int marked = 0;

	if (!tg_conn_lock(conn, v->key))
		return -1;
	if ((conn->phase == TG_CONN_IDLE && conn->client_next == v->p.seq) ||
	    (conn->phase == TG_CONN_OPAQUE && conn->flags & TG_CONN_EVADES)) {
		marked = 1;
		conn->phase = TG_CONN_REFUSED;
		conn->flags = (r->head ? TG_CONN_HEAD : 0) |
			      (r->local ? TG_CONN_LOCAL : 0) |
			      (v->p.flags & TG_TCP_FIN ?
			       TG_CONN_CLIENT_DONE : 0);
		conn->refuse = r->refuse;
		conn->answer = r->answer;
		conn->rule = r->rule;
		conn->refused_seq = r->seq;
		conn->refused_end = r->end;
		conn->client_next = r->next;
		conn->server_next = r->reply;
		conn->seen_ns = conn->repeated_ns = now_ns;
	}
	bpf_spin_unlock(&conn->lock);
	return marked ? 0 : -1;
}

/* The passive signals must not take our answer for the server's. */
static __always_inline void tg_refusal_flow(__u64 key)
{
	struct tg_flow flow = { .fingerprint = key };

	if (tg_flow_find(&flow))
		tg_flow_over(&flow, tg_flow_read(&flow));
}

/*
 * Sends a clone of the frame as the answer; zero if it went out. From here on
 * the request is gone, and what is left of the frame must become the RST.
 */
static __always_inline int tg_refusal_answer(struct __sk_buff *skb,
					     const struct tg_packet *p,
					     const struct tg_work *w, __u32 slot)
{
	const struct tg_answer_text *text = 0;
	const struct tg_send *s = &w->send;
	int sent;

	if (tg_send_build(skb, p, s))
		return -1;
	if (w->refusal.refuse == TG_REFUSE_503) {
		text = tg_text_of(slot, w->refusal.answer);
		if (!text || tg_send_text(skb, s, text))
			return -1;
	}
	sent = bpf_clone_redirect(skb, skb->ifindex, 0);
	return sent == TG_XMIT_CN ? 0 : sent;
}

static __always_inline void tg_send_503(struct tg_send *s,
					const struct tg_refusal *r)
{
	s->seq = r->reply;
	s->ack = r->next;
	s->flags = TG_TCP_FIN | TG_TCP_ACK | TG_TCP_PSH;
}

/*
 * 1: where no HTTP/1 request was seen, a 503 would be no response to anything; and
 * before the answer to another request, to that one.
 */
static __always_inline int tg_refuse_unheard(const struct tg_found *found)
{
	__u32 reason = found->reason;

	if (found->asked.tls)
		return 1;
	return found->evades && (reason == TG_REASON_HTTP2 ||
				 reason == TG_REASON_OPAQUE ||
				 reason == TG_REASON_OUTSTANDING);
}

/* A RST only to a single client: a proxy may take its server for dead. */
static __always_inline __u8 tg_refuse_auto(const struct tg_visit *v)
{
	__u32 service = v->service & (TG_SERVICES_MAX - 1);
	__u32 gauge = v->view.table->service[service].gauge;

	return tg_source_single(tg_source_key(&v->p, gauge)) ? TG_REFUSE_RESET :
							       TG_REFUSE_DROP;
}

static __always_inline __u8 tg_refuse_how(const struct tg_visit *v,
					  const struct tg_rule *rule,
					  const struct tg_found *found)
{
	int unheard = tg_refuse_unheard(found);

	if (rule->refuse == TG_REFUSE_AUTO)
		return unheard ? tg_refuse_auto(v) : TG_REFUSE_503;
	if (rule->refuse == TG_REFUSE_503 && unheard)
		return TG_REFUSE_RESET;
	return rule->refuse;
}

/*
 * 1: neither side can be told that an unevaluable request is refused: something of
 * the connection is outstanding, or the frame cannot be turned round. It is dropped
 * then, and evaluated again when it is sent again.
 */
static __always_inline int tg_refuse_silently(const struct tg_found *found,
					      const struct tg_conn *conn,
					      int agrees)
{
	if (!found->evades)
		return 0;
	return agrees == TG_SOCKET_BUSY || !found->at.plain ||
	       found->at.fragment ||
	       (agrees == TG_SOCKET_NONE &&
		READ_ONCE(conn->phase) == TG_CONN_OPAQUE);
}

/* Fills in how a request is refused; -1: its answer is not there. */
static __always_inline int tg_refusal_choose(const struct tg_visit *v,
					     const struct tg_rule *rule,
					     struct tg_work *w, int head)
{
	const struct tg_answer_text *text;
	struct tg_refusal *r = &w->refusal;
	struct tg_send *s = &w->send;

	__builtin_memset(r, 0, sizeof(*r));
	r->seq = v->p.seq;
	r->reply = v->p.ack;
	r->next = v->p.seq + tg_extent(&v->p);
	r->rule = w->found.asked.rule;
	r->refuse = tg_refuse_how(v, rule, &w->found);
	r->head = head;
	tg_send_503(s, r);
	if (r->refuse == TG_REFUSE_503) {
		r->answer = rule->answer +
			    (bpf_get_prandom_u32() & (TG_ANSWER_VARIANTS - 1));
		text = tg_text_of(v->slot, r->answer);
		if (!text)
			return -1;
		tg_send_choose(s, text, head);
	} else if (r->refuse == TG_REFUSE_RESET) {
		s->flags = TG_TCP_RST | TG_TCP_ACK;
		s->stamped = 0;
	}
	r->end = r->reply + s->bytes + 1;
	return 0;
}

/* Refuses a request, and counts it; or TG_REFUSAL_FAILED, TG_REFUSAL_BUSY. */
static __always_inline int tg_refuse(struct __sk_buff *skb,
				     const struct tg_visit *v,
				     struct tg_conn *conn,
				     const struct tg_rule *rule,
				     struct tg_work *w, int head)
{
	struct tg_refusal *r = &w->refusal;
	int agrees, action, failed = 0;

	agrees = tg_socket_agrees(skb, &v->p, 0);
	if (tg_refuse_silently(&w->found, conn, agrees)) {
		tg_count_refused(v, rule, &w->found, w->step.first, 0);
		tg_count_rule(v->slot, w->found.asked.rule, TG_RULE_REFUSED);
		return TG_TC_SHOT;
	}
	if (agrees == TG_SOCKET_BUSY)
		return TG_REFUSAL_BUSY;
	if (tg_send_prepare(skb, &w->found.at, &w->send) ||
	    tg_refusal_choose(v, rule, w, head))
		return TG_REFUSAL_FAILED;
	r->local = agrees == TG_SOCKET_HERE;
	if (tg_refusal_mark(v, conn, r))
		return TG_REFUSAL_BUSY;
	tg_count_refused(v, rule, &w->found, w->step.first, 0);
	tg_refusal_flow(v->key);
	tg_send_probe(skb, &w->send);
	if (r->refuse != TG_REFUSE_DROP)
		failed = tg_refusal_answer(skb, &v->p, w, v->slot);
	action = tg_send_reset(skb, &v->p, &w->send, r->seq, r->reply);
	failed |= action == TG_TC_SHOT;
	tg_count_rule(v->slot, r->rule,
		      failed ? TG_RULE_FAILED : TG_RULE_REFUSED);
	/* also if it did not go out: then the stack answers the repetition */
	if (r->refuse == TG_REFUSE_RESET)
		tg_conn_forget(conn, v->key);
	return action;
}

/* Retransmissions come no closer (Linux: TCP_RTO_MIN is 200 ms). */
#define TG_REPEAT_SPACING_NS (TG_NS_PER_S / 10)

/*
 * Under the lock: 1, if a segment asks for the 503 once more: all of it was here
 * before, so its sender has heard nothing for as long as it waits.
 */
static __always_inline int tg_closing_asks(struct tg_conn *conn, __u32 upto,
					   __u64 now_ns)
{
	if (tg_ahead(upto, conn->client_next) > 0 ||
	    tg_elapsed_ns(now_ns, conn->repeated_ns) < TG_REPEAT_SPACING_NS)
		return 0;
	conn->repeated_ns = now_ns;
	return 1;
}

/* What a connection was refused with, and that its client still sends. */
static __always_inline int tg_closing_read(const struct tg_visit *v,
					   struct tg_conn *conn,
					   struct tg_refusal *r, int *done)
{
	__u32 upto = v->p.seq + tg_extent(&v->p);
	__u64 now_ns = bpf_ktime_get_ns();

	if (!tg_conn_lock(conn, v->key))
		return -1;
	conn->seen_ns = now_ns;
	/* who has the 503 asks for nothing */
	r->asks = tg_extent(&v->p) && v->p.ack != conn->refused_end &&
		  tg_closing_asks(conn, upto, now_ns);
	if (tg_ahead(upto, conn->client_next) > 0)
		conn->client_next = upto;
	if (v->p.flags & TG_TCP_FIN)
		conn->flags |= TG_CONN_CLIENT_DONE |
			       (v->p.ack == conn->refused_end ? 0 :
								TG_CONN_OWED);
	r->seq = conn->refused_seq;
	r->reply = conn->server_next;
	r->next = conn->client_next;
	r->end = conn->refused_end;
	r->answer = conn->answer;
	r->rule = conn->rule;
	r->refuse = conn->refuse;
	r->head = conn->flags & TG_CONN_HEAD;
	r->local = conn->flags & TG_CONN_LOCAL ? 1 : 0;
	*done = conn->flags & (TG_CONN_CLIENT_DONE | TG_CONN_OWED);
	bpf_spin_unlock(&conn->lock);
	return 0;
}

/* The 503 again, with the text that is in force now. */
static __always_inline int tg_closing_again(struct __sk_buff *skb,
					    const struct tg_visit *v,
					    struct tg_conn *conn,
					    struct tg_work *w)
{
	struct tg_refusal *r = &w->refusal;
	const struct tg_answer_text *text = tg_text_of(v->slot, r->answer);
	int failed;

	if (!text)
		return TG_TC_SHOT;
	tg_send_503(&w->send, r);
	tg_send_choose(&w->send, text, r->head);
	r->end = r->reply + w->send.bytes + 1;
	if (tg_conn_lock(conn, v->key)) {
		conn->refused_end = r->end;
		bpf_spin_unlock(&conn->lock);
	}
	tg_send_probe(skb, &w->send);
	failed = tg_refusal_answer(skb, &v->p, w, v->slot);
	tg_count_rule(v->slot, r->rule,
		      failed ? TG_RULE_FAILED : TG_RULE_REPEATED);
	return tg_send_reset(skb, &v->p, &w->send, r->seq, r->reply);
}

/* Acknowledges what the client sends on; it has the answer. */
static __always_inline int tg_closing_ack(struct __sk_buff *skb,
					  const struct tg_visit *v,
					  struct tg_work *w)
{
	struct tg_send *s = &w->send;

	s->seq = w->refusal.end;
	s->ack = w->refusal.next;
	s->flags = TG_TCP_ACK;
	tg_send_probe(skb, s);
	if (tg_send_build(skb, &v->p, s))
		return TG_TC_SHOT;
	return bpf_redirect(skb->ifindex, 0);
}

/* A SYN or RST ends what was left of a connection, unless a RST only guesses. */
static __always_inline int tg_closing_end(const struct tg_visit *v,
					  struct tg_conn *conn)
{
	__u32 sent = READ_ONCE(conn->client_next) - conn->refused_seq;

	if (v->p.flags & TG_TCP_RST && v->p.seq - conn->refused_seq > sent + 1)
		return TG_TC_SHOT;
	tg_conn_forget(conn, v->key);
	return TG_TC_NEXT;
}

/* A packet of a connection that was refused. */
static __always_inline int tg_closing(struct __sk_buff *skb,
				      const struct tg_visit *v,
				      struct tg_conn *conn, struct tg_work *w)
{
	struct tg_refusal *r = &w->refusal;
	int done, has;

	if (v->p.flags & (TG_TCP_SYN | TG_TCP_RST))
		return tg_closing_end(v, conn);
	/* An acknowledgement of what was never sent only guesses. */
	if (v->p.ack - READ_ONCE(conn->server_next) >
	    READ_ONCE(conn->refused_end) - READ_ONCE(conn->server_next))
		return TG_TC_SHOT;
	__builtin_memset(r, 0, sizeof(*r));
	if (tg_closing_read(v, conn, r, &done) ||
	    tg_layout_of(skb, &v->p, &w->at) || !w->at.plain ||
	    w->at.fragment || tg_send_prepare(skb, &w->at, &w->send))
		return TG_TC_SHOT;
	has = v->p.ack == r->end;
	if (r->refuse == TG_REFUSE_503 && r->asks)
		return tg_closing_again(skb, v, conn, w);
	if (r->refuse == TG_REFUSE_503 && has && done)
		tg_conn_forget(conn, v->key);
	if (r->refuse == TG_REFUSE_503 && has &&
	    (done & TG_CONN_OWED || tg_extent(&v->p)))
		return tg_closing_ack(skb, v, w);
	if (r->local)
		return TG_TC_SHOT;
	tg_send_probe(skb, &w->send);
	return tg_send_reset(skb, &v->p, &w->send, r->seq, r->reply);
}

#endif
