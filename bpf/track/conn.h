/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Connections of services with request rules: where their request stands.
 *
 *	end of the handshake ──► IDLE ◄───────────────────────────┐
 *	                          │ request                       │
 *	              refused     ├──────────► BODY ──► WAIT ──► ANSWER
 *	     REFUSED ◄────────────┘   client's last byte  first   last byte of both
 *	        │
 *	        └── FIN, RST, SYN of the client, 30 s, or
 *	            nothing is refused any more: forgotten
 *
 * Whatever does not fit (a second request before the answer has ended, bytes of
 * the server that nobody asked for, an answer whose end cannot be told) makes a
 * connection OPAQUE: its requests cannot be told any more. Where that is the
 * client's doing (EVADES), each turn is evaluated as one: data from a client
 * that has acknowledged more of the server than at its last turn. Of its bytes
 * nothing is known but how many the server has acknowledged. A FIN or
 * RST of the server, a RST of the client that the stack believes, or 60 s without a
 * packet end it.
 *
 * Both directions may run at once on two CPUs, and each must call helpers to
 * look into a packet, which no lock allows. So each reads under the lock what
 * it needs, looks, and writes under the lock only if its own direction still
 * stands where it was; where it does not, the packet is passed unfollowed, and
 * what follows it does not fit: OPAQUE. Numbers only go wrong towards passing.
 *
 * The connections of signals are others (track/flow.h, docs/decisions/0023).
 */
#ifndef TG_CONN_H
#define TG_CONN_H

#include "../packet/count.h"
#include "../packet/hash.h"
#include "../http/response.h"
#include "../http/request_maps.h"
#include "reset.h"

#define TG_CONN_TOUCH_NS (1 * TG_NS_PER_S)	/* touch about once a second */
#define TG_CONN_WINDOW (1 << 20)	/* bytes ahead that a segment may be */

static __always_inline struct tg_conn *tg_conn_find(const __u64 *key)
{
	return bpf_map_lookup_elem(&tg_conns, key);
}

/* As tg_follow. Not static: the verifier looks at it once. */
__noinline int tg_follow_at(struct __sk_buff *skb, __u32 offset, __u32 bytes,
			    struct tg_follow *f)
{
	return f ? tg_follow(skb, offset, bytes, f) : TG_FOLLOW_FAILED;
}

/* Why no rule evaluates what stands behind a body in its segment. */
static __always_inline __u32 tg_follow_why(int followed)
{
	return followed == TG_FOLLOW_FAILED ? TG_REASON_NOT_HTTP :
					      TG_REASON_PIPELINED;
}

/* 1: locked, and still this connection's. */
static __always_inline int tg_conn_lock(struct tg_conn *conn, __u64 key)
{
	bpf_spin_lock(&conn->lock);
	if (likely(conn->key == key))
		return 1;
	bpf_spin_unlock(&conn->lock);
	return 0;
}

/* Bytes from `from` to `to`; negative: `to` lies before. */
static __always_inline __s32 tg_ahead(__u32 to, __u32 from)
{
	return (__s32)(to - from);
}

/* Takes what is in flight, TG_FLIGHT; 0: nothing. Who gets it counts its end. */
static __always_inline __u32 tg_conn_take(struct tg_conn *conn)
{
	return __sync_lock_test_and_set(&conn->flight, 0);
}

static __always_inline struct tg_bucket_totals *tg_flight_totals(__u32 flight)
{
	__u32 bucket = flight & TG_FLIGHT_BUCKET;

	return bucket ? tg_at(&tg_bucket_totals, bucket - 1) : 0;
}

/* Always in the first slot: what counts is the sum over the slots. */
static __always_inline struct tg_rule_counts *tg_flight_rule(__u32 flight)
{
	__u32 rule = flight >> TG_FLIGHT_RULE_SHIFT;

	return rule ? tg_at(&tg_rule_counts, rule) : 0;
}

/* The request in flight has ended: `since_ns`: when it came; 0: not measured. */
static __always_inline void tg_flight_end(__u32 flight, __u64 since_ns,
					  __u64 now_ns)
{
	struct tg_bucket_totals *totals = tg_flight_totals(flight);
	struct tg_rule_counts *rule = tg_flight_rule(flight);
	__u64 took_ns = tg_elapsed_ns(now_ns, since_ns);

	if (rule) {
		rule->cell[TG_RULE_ENDED]++;
		rule->cell[TG_RULE_ANSWERED] += !!since_ns;
		rule->cell[TG_RULE_ANSWERED_NS] += since_ns ? took_ns : 0;
	}
	if (!totals)
		return;
	totals->ended++;
	if (since_ns)
		tg_record(&totals->end, took_ns);
}

/* It has begun. */
static __always_inline void tg_flight_begin(__u32 flight)
{
	struct tg_bucket_totals *totals = tg_flight_totals(flight);
	struct tg_rule_counts *rule = tg_flight_rule(flight);

	if (rule)
		rule->cell[TG_RULE_BEGUN]++;
	if (totals)
		totals->begun++;
}

/* The first byte of its answer was seen. */
static __always_inline void tg_flight_started(__u32 flight, __u64 since_ns,
					      __u64 now_ns)
{
	struct tg_bucket_totals *totals = tg_flight_totals(flight);
	struct tg_rule_counts *rule = tg_flight_rule(flight);
	__u64 took_ns = tg_elapsed_ns(now_ns, since_ns);

	if (rule) {
		rule->cell[TG_RULE_STARTED]++;
		rule->cell[TG_RULE_STARTED_NS] += took_ns;
	}
	if (totals)
		tg_record(&totals->first_byte, took_ns);
}

/* Under the lock: never evaluated again; what was in flight. */
static __always_inline __u32 tg_conn_blind(struct tg_conn *conn)
{
	conn->phase = TG_CONN_OPAQUE;
	conn->request_left = conn->answer_left = 0;
	return tg_conn_take(conn);
}

/*
 * Under the lock: the same, by what its client sent; `paid`: how much of the server
 * it had acknowledged when a turn of it passed last.
 */
static __always_inline __u32 tg_conn_evades(struct tg_conn *conn, __u32 paid)
{
	conn->flags &= ~TG_CONN_UNFRAMED;
	conn->flags |= TG_CONN_EVADES;
	conn->server_next = paid;
	return tg_conn_blind(conn);
}

/* Forgets a connection, if it is still this one. */
static __always_inline void tg_conn_forget(struct tg_conn *conn, __u64 key)
{
	__u32 flight;

	if (!tg_conn_lock(conn, key))
		return;
	conn->key = 0;
	flight = tg_conn_take(conn);
	bpf_spin_unlock(&conn->lock);
	tg_flight_end(flight, 0, 0);
	bpf_map_delete_elem(&tg_conns, &key);
}

static __always_inline void tg_conn_opaque(struct tg_conn *conn, __u64 key)
{
	__u32 flight;

	if (!tg_conn_lock(conn, key))
		return;
	flight = tg_conn_blind(conn);
	bpf_spin_unlock(&conn->lock);
	tg_flight_end(flight, 0, 0);
}

/*
 * The same by what its client sent: this turn passes, and what the client sends
 * until it acknowledges more belongs to it.
 */
static __always_inline void tg_conn_evading(struct tg_conn *conn, __u64 key,
					    __u32 ack)
{
	__u32 flight;

	if (!tg_conn_lock(conn, key))
		return;
	flight = tg_conn_evades(conn, ack);
	bpf_spin_unlock(&conn->lock);
	tg_flight_end(flight, 0, 0);
}

/*
 * Under the lock: 1: a RST ends the connection, or nothing is lost if it does.
 * - The stack believes it, and has taken all that came by here: what it has not
 *   taken yet moves its window past the RST, and the connection lives.
 * - There is no socket to ask, and this is the number that the client must use next,
 *   behind its FIN if it has sent one.
 * - No turn is evaluated, as no request can be told. Where turns are, nobody
 *   knows what came, and none is believed.
 */
static __always_inline int tg_conn_reset_ends(const struct tg_conn *conn,
					      __u32 seq, enum tg_reset reset)
{
	__s32 ahead = tg_ahead(seq, conn->client_next);

	if (conn->phase == TG_CONN_OPAQUE)
		return !(conn->flags & TG_CONN_EVADES);
	if (reset == TG_RESET_OVER)
		return ahead >= 0;
	return reset == TG_RESET_UNKNOWN && ahead >= 0 &&
	       ahead <= !!(conn->flags & TG_CONN_CLIENT_DONE);
}

/*
 * A RST of the client's that lies in the window: 1: its connection may be forgotten.
 * If not, the server may have the connection still, and nobody may take it for
 * another one: it keeps its place, which the sweep frees, nothing is in flight any
 * more, and each turn is evaluated.
 */
static __always_inline int tg_conn_reset(struct tg_conn *conn, __u64 key,
					 __u32 seq, enum tg_reset reset)
{
	__u32 flight = 0, over;

	if (!tg_conn_lock(conn, key))
		return 0;
	over = tg_conn_reset_ends(conn, seq, reset);
	if (!over && conn->phase != TG_CONN_OPAQUE &&
	    (reset == TG_RESET_OVER ||
	     seq - conn->client_next <= TG_CONN_WINDOW))
		flight = tg_conn_evades(conn, conn->server_next - 1);
	bpf_spin_unlock(&conn->lock);
	tg_flight_end(flight, 0, 0);
	return over;
}

/* The client's FIN is its next byte. */
static __always_inline void tg_conn_done(struct tg_conn *conn, __u64 key,
					 const struct tg_packet *p)
{
	if (!tg_conn_lock(conn, key))
		return;
	if (p->seq + p->payload == conn->client_next)
		conn->flags |= TG_CONN_CLIENT_DONE;
	bpf_spin_unlock(&conn->lock);
}

/*
 * A place for a connection whose first request begins at this packet's sequence
 * number; zero where there is none. It is filled under its lock: whoever still
 * looks at what was here before finds another key.
 */
static __noinline __attribute__((unused)) struct tg_conn *
tg_conn_open(const struct tg_packet *p, __u64 key, __u8 service)
{
	struct tg_conn fresh = {}, *conn;
	__u64 now_ns = bpf_ktime_get_ns();

	if (bpf_map_update_elem(&tg_conns, &key, &fresh, 1 /* BPF_NOEXIST */))
		return 0;
	conn = tg_conn_find(&key);
	if (!conn)
		return 0;
	bpf_spin_lock(&conn->lock);
	/* all of it: who still held the place may have written after it was
	 * cleared */
	conn->flight = 0;
	conn->phase = TG_CONN_IDLE;
	conn->service = service;
	conn->flags = TG_CONN_FIRST;
	conn->client_next = p->seq;
	conn->server_next = p->ack;
	conn->request_left = conn->answer_left = 0;
	conn->request_ns = 0;
	conn->seen_ns = now_ns;
	conn->key = key;
	bpf_spin_unlock(&conn->lock);
	return conn;
}

/* Under the lock: all of the request, or all of the answer, was seen. */
static __always_inline void tg_conn_settle(struct tg_conn *conn)
{
	if (conn->request_left)
		return;
	if (conn->phase == TG_CONN_BODY)
		conn->phase = TG_CONN_WAIT;
	else if (conn->phase == TG_CONN_ANSWER && !conn->answer_left)
		conn->phase = TG_CONN_IDLE;
}

/* Bytes of a body that has an announced end. */
static __always_inline int tg_is_counted(__u64 left)
{
	return left && left < TG_TO_CLOSE;
}

/*
 * Under the lock: what one side acknowledges, the other has sent, whether it
 * came by here or not.
 */
static __always_inline void tg_conn_acked(__u32 *next, __u64 *left, __u32 ack)
{
	__s32 got = tg_ahead(ack, *next);

	if (got <= 0 || !tg_is_counted(*left))
		return;
	if ((__u64)got > *left)		/* a FIN counts one */
		got = *left;
	*next += got;
	*left -= got;
}

/* What a segment with data is to the connection it belongs to. */
struct tg_step {
	__u32 reason;		/* enum tg_reason; NONE: see `chunks` */
	__u32 flight;		/* whose end must be counted */
	__u32 done;		/* 1: it ended with its answer */
	__u32 skip;		/* bytes at its beginning that are not new */
	__u32 chunks;		/* 1: of a chunked body; must be walked */
	__u32 lacks;		/* 1: its sender lacks bytes of the server */
	__u32 first;		/* 1: no request of the connection before it */
	__u32 turn;		/* 1: evaluated, though no request can be told */
	__u64 since_ns;		/* when the request in flight came */
	struct tg_follow follow;
};

/* Counts what a packet ended. */
static __always_inline void tg_step_count(const struct tg_step *step,
					  __u64 now_ns)
{
	tg_flight_end(step->flight, step->done ? step->since_ns : 0, now_ns);
}

/* Under the lock: the answer is complete. */
static __always_inline void tg_conn_answered(struct tg_conn *conn,
					     struct tg_step *step)
{
	step->since_ns = conn->request_ns;
	step->flight |= tg_conn_take(conn);
	step->done = 1;
	tg_conn_settle(conn);
}

/* Under the lock: what the client has of the answer. */
static __always_inline void tg_conn_client_has(struct tg_conn *conn, __u32 ack,
					       struct tg_step *step)
{
	if (conn->phase != TG_CONN_ANSWER || !tg_is_counted(conn->answer_left))
		return;
	tg_conn_acked(&conn->server_next, &conn->answer_left, ack);
	if (!conn->answer_left)
		tg_conn_answered(conn, step);
}

/* Under the lock: the client sends what does not fit, and this begins a turn. */
static __always_inline void tg_conn_turn(struct tg_conn *conn,
					 const struct tg_packet *p,
					 struct tg_step *step)
{
	step->turn = 1;
	step->flight |= tg_conn_evades(conn, p->ack - 1);
}

/* Under the lock: data of the client's, while the request's body is to come. */
static __always_inline void tg_conn_body(struct tg_conn *conn,
					 const struct tg_packet *p,
					 struct tg_step *step)
{
	__s32 ahead = tg_ahead(p->seq, conn->client_next);
	__u32 fresh = p->seq + p->payload - conn->client_next;

	step->reason = TG_REASON_BODY;
	if (conn->request_left == TG_CHUNKED) {
		if (ahead > 0) {
			step->flight |= tg_conn_evades(conn, p->ack);
			return;
		}
		step->chunks = 1;
		step->skip = -ahead;
		step->follow.left = TG_CHUNKED;
		step->follow.chunk = conn->request_chunk;
		return;
	}
	/* the server's acknowledgement will tell, but for what is behind the body */
	if (ahead > TG_CONN_WINDOW || (ahead > 0 && fresh <= conn->request_left))
		return;
	if (fresh > conn->request_left) {
		step->reason = TG_REASON_PIPELINED;
		tg_conn_turn(conn, p, step);
		return;
	}
	conn->client_next += fresh;
	conn->request_left -= fresh;
	tg_conn_settle(conn);
}

/*
 * Under the lock: 1: one byte that the server has: it asks whether the peer is there
 * (RFC 1122, 4.2.3.6).
 */
static __always_inline int tg_conn_probes(const struct tg_conn *conn,
					  const struct tg_packet *p)
{
	return p->payload == 1 && tg_ahead(p->seq + 1, conn->client_next) <= 0;
}

/* Under the lock: a segment of the client's that carries data. */
static __always_inline void tg_conn_data(struct tg_conn *conn,
					 const struct tg_packet *p,
					 struct tg_step *step)
{
	__s32 ahead = tg_ahead(p->seq, conn->client_next);

	step->reason = TG_REASON_SEQUENCE;
	step->first = conn->phase == TG_CONN_IDLE &&
		      conn->flags & TG_CONN_FIRST;
	if (conn->phase == TG_CONN_OPAQUE) {
		step->reason = conn->flags & TG_CONN_UNFRAMED ?
				       TG_REASON_UNFRAMED :
				       TG_REASON_OPAQUE;
		step->turn = conn->flags & TG_CONN_EVADES &&
			     !tg_conn_probes(conn, p) &&
			     tg_ahead(p->ack, conn->server_next) > 0;
	} else if (ahead < 0 &&
		   tg_ahead(p->seq + p->payload, conn->client_next) <= 0) {
		/* all of it was here before; or the place was opened by an ACK
		 * behind a first request that nobody saw */
		if (step->first && p->payload > 1)	/* no probe */
			step->flight |= tg_conn_blind(conn);
	} else if (conn->request_left) {
		tg_conn_body(conn, p, step);
	} else if (conn->phase != TG_CONN_IDLE) {
		step->reason = TG_REASON_OUTSTANDING;
		tg_conn_turn(conn, p, step);
	} else if (ahead < 0) {
		tg_conn_turn(conn, p, step);
	} else if (!ahead) {
		step->reason = TG_REASON_NONE;
		step->lacks = p->ack != conn->server_next;
	}
}

/*
 * Walked over a part of a chunked request: a segment with more than the rest of it,
 * or with what is no chunk, is a turn.
 */
static __always_inline void tg_conn_walked(struct tg_conn *conn, __u64 key,
					   const struct tg_packet *p,
					   struct tg_step *step, int followed)
{
	const struct tg_follow *f = &step->follow;
	__u32 bytes = p->payload - step->skip;

	step->flight = 0;	/* counted before */
	if (!tg_conn_lock(conn, key))
		return;
	if (conn->request_left == TG_CHUNKED &&
	    conn->client_next == p->seq + step->skip) {
		conn->client_next += bytes;
		conn->request_chunk = f->chunk;
		if (followed == TG_FOLLOW_FAILED || f->used != bytes) {
			step->reason = tg_follow_why(followed);
			tg_conn_turn(conn, p, step);
		} else if (followed == TG_FOLLOW_END) {
			conn->request_left = 0;
		}
		tg_conn_settle(conn);
	}
	bpf_spin_unlock(&conn->lock);
	tg_flight_end(step->flight, 0, 0);
}

/* A request that passes and is followed, as it was recognised. */
struct tg_begin {
	__u64 left;		/* of its body */
	__u32 chunk;
	__u32 flight;		/* TG_FLIGHT; 0: none */
	__u16 rule;
	__u8 flags;		/* TG_CONN_HEAD, TG_CONN_CONNECT */
};

/*
 * The request passes. The sweep takes no lock: if it has given up this place in
 * the meantime, whoever takes `flight` counts the end.
 */
static __always_inline void tg_conn_begin(struct tg_conn *conn, __u64 key,
					  const struct tg_packet *p,
					  const struct tg_begin *begin)
{
	__u64 now_ns = bpf_ktime_get_ns();
	__u32 flight = 0, begun = 0;

	if (!tg_conn_lock(conn, key))
		return;
	if (conn->phase == TG_CONN_IDLE && conn->client_next == p->seq) {
		conn->client_next += p->payload;
		conn->request_left = begin->left;
		conn->request_chunk = begin->chunk;
		conn->answer_left = 0;
		conn->answer_chunk = 0;
		conn->flags = begin->flags;
		conn->rule = begin->rule;
		conn->request_ns = conn->seen_ns = now_ns;
		conn->phase = TG_CONN_BODY;
		tg_conn_settle(conn);
		begun = begin->flight;
		flight = __sync_lock_test_and_set(&conn->flight, begun);
		if (READ_ONCE(conn->key) != key && tg_conn_take(conn))
			begun = 0;
	}
	bpf_spin_unlock(&conn->lock);
	tg_flight_end(flight, 0, 0);
	tg_flight_begin(begun);
}

/* Seen: about once a second is enough. */
static __always_inline void tg_conn_touch(struct tg_conn *conn, __u64 now_ns)
{
	__u64 seen_ns = READ_ONCE(conn->seen_ns);

	if (tg_elapsed_ns(now_ns, seen_ns) >= TG_CONN_TOUCH_NS)
		WRITE_ONCE(conn->seen_ns, now_ns);
}

#endif
