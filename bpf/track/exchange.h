/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The server's side of a connection: from the head of an answer to its last
 * byte. What is followed is the framing of RFC 9112 (http/response.h), so that
 * it is known when the server has said all, though its application may be slow:
 * that the client has acknowledged all that was sent says nothing about that.
 */
#ifndef TG_EXCHANGE_H
#define TG_EXCHANGE_H

#include "conn.h"

TG_ASSERT(TG_CONN_HEAD == TG_ANSWER_TO_HEAD);
TG_ASSERT(TG_CONN_CONNECT == TG_ANSWER_TO_CONNECT);

/* Heads of one packet that are looked at: an interim one, and the answer's. */
#define TG_REPLY_HEADS 2

/* What a packet of the server's does to its connection. */
struct tg_reply_step {
	struct tg_step step;
	__u32 first;		/* TG_FLIGHT, if this is its first byte */
	__u32 head;		/* 1: begins with the head of an answer */
	__u32 to;		/* to what, TG_ANSWER_TO_… */
};

/*
 * Under the lock: nobody can tell where the response ends, and its client has not
 * chosen that.
 */
static __always_inline void tg_reply_lost(struct tg_conn *conn,
					  struct tg_reply_step *r)
{
	conn->flags |= TG_CONN_UNFRAMED;
	r->step.flight |= tg_conn_blind(conn);
}

/* Under the lock: bytes of the server's that belong to an answer. */
static __always_inline void tg_reply_more(struct tg_conn *conn,
					  const struct tg_packet *p,
					  struct tg_reply_step *r)
{
	__s32 ahead = tg_ahead(p->seq, conn->server_next);
	__u32 fresh = p->seq + p->payload - conn->server_next;

	if (ahead > 0) {
		/* the client's acknowledgement tells where a counted body is */
		if (conn->answer_left == TG_CHUNKED)
			tg_reply_lost(conn, r);
		return;
	}
	if (conn->answer_left == TG_CHUNKED) {
		r->step.chunks = 1;
		r->step.skip = -ahead;
		r->step.follow.left = TG_CHUNKED;
		r->step.follow.chunk = conn->answer_chunk;
		return;
	}
	if (conn->answer_left != TG_TO_CLOSE && fresh > conn->answer_left) {
		r->step.flight |= tg_conn_blind(conn);
		return;
	}
	conn->server_next += fresh;
	if (conn->answer_left == TG_TO_CLOSE)
		return;
	conn->answer_left -= fresh;
	if (!conn->answer_left)
		tg_conn_answered(conn, &r->step);
}

/* Under the lock: what the server has of a client that evades. */
static __always_inline void tg_reply_has(struct tg_conn *conn, __u32 ack)
{
	if (conn->phase == TG_CONN_OPAQUE && conn->flags & TG_CONN_EVADES &&
	    tg_ahead(ack, conn->client_next) > 0)
		conn->client_next = ack;
}

/* Under the lock: a packet of the server's. */
static __always_inline void tg_reply_packet(struct tg_conn *conn,
					    const struct tg_packet *p,
					    struct tg_reply_step *r)
{
	__s32 ahead = tg_ahead(p->seq, conn->server_next);

	if (conn->phase >= TG_CONN_OPAQUE) {
		tg_reply_has(conn, p->ack);
		return;
	}
	r->step.since_ns = conn->request_ns;
	tg_conn_acked(&conn->client_next, &conn->request_left, p->ack);
	tg_conn_settle(conn);
	/*
	 * The stack has taken what did not come by here as a segment that could be
	 * read, and that is no FIN: from now on each turn is evaluated.
	 */
	if (!conn->request_left && tg_ahead(p->ack, conn->client_next) > 1) {
		r->step.flight |= tg_conn_evades(conn, p->seq);
		tg_reply_has(conn, p->ack);
		return;
	}
	if (!p->payload ||
	    tg_ahead(p->seq + p->payload, conn->server_next) <= 0)
		return;
	if (conn->phase == TG_CONN_ANSWER && conn->answer_left) {
		tg_reply_more(conn, p, r);
	} else if (conn->phase == TG_CONN_IDLE ||
		   conn->phase == TG_CONN_ANSWER || ahead < 0) {
		r->step.flight |= tg_conn_blind(conn);
	} else if (ahead) {
		conn->flags |= TG_CONN_UNFRAMED;	/* if it is chunked */
	} else {
		r->head = 1;
		r->to = conn->flags & (TG_CONN_HEAD | TG_CONN_CONNECT);
	}
}

/* What the heads at the beginning of a packet say about what follows. */
struct tg_reply_found {
	__u64 left;
	__u32 chunk;
	__u8 failed;
	__u8 interim;		/* 1: nothing but an interim answer */
	__u8 pad[2];
};

static __always_inline void tg_reply_body(struct __sk_buff *skb, __u32 at,
					  __u32 bytes, __u64 body,
					  struct tg_reply_found *found)
{
	struct tg_follow f = { .left = body };
	int ended;

	found->left = body;
	if (!bytes)
		return;
	ended = body ? tg_follow_at(skb, at, bytes, &f) : TG_FOLLOW_FAILED;
	found->left = ended == TG_FOLLOW_END ? 0 : f.left;
	found->chunk = f.chunk;
	found->failed = ended == TG_FOLLOW_FAILED || f.used != bytes;
}

/*
 * One head, `at` bytes into the frame, `bytes` before its end; how long it is
 * where another follows, else 0.
 */
static __always_inline __u32 tg_reply_one(struct __sk_buff *skb, __u32 at,
					  __u32 bytes, __u32 to,
					  struct tg_reply_found *found)
{
	struct tg_head *head = tg_at(&tg_head, TG_HEAD_EGRESS);
	__u32 length = bytes < TG_HEAD_MAX ? bytes : TG_HEAD_MAX;

	found->failed = 1;
	if (!head || !length)
		return 0;
	if (tg_head_load(skb, at, length, head) ||
	    tg_answer_head(head, length, to) ||
	    head->reply.flags & TG_REPLY_TUNNEL || head->reply.head > bytes)
		return 0;
	found->failed = 0;
	found->interim = head->reply.flags & TG_REPLY_INTERIM ? 1 : 0;
	if (found->interim)
		return head->reply.head;
	tg_reply_body(skb, at + head->reply.head, bytes - head->reply.head,
		      head->reply.body, found);
	return 0;
}

/* The heads of a packet. Not static: the verifier looks at it once. */
__noinline int tg_reply_heads(struct __sk_buff *skb, __u32 at, __u32 bytes,
			      __u32 to, struct tg_reply_found *found)
{
	__u32 used;

	if (!found)
		return 0;
	for (int i = 0; i < TG_REPLY_HEADS; i++) {
		used = tg_reply_one(skb, at, bytes, to, found);
		if (!used || used == bytes)
			return 0;
		at += used;
		bytes -= used;
	}
	found->failed = 1;	/* more heads than we look at */
	return 0;
}

/* The heads of an answer were looked at. */
static __always_inline void tg_reply_begun(struct tg_conn *conn,
					   const struct tg_packet *p,
					   const struct tg_reply_found *found,
					   struct tg_reply_step *r)
{
	if (conn->server_next != p->seq || (conn->phase != TG_CONN_BODY &&
					    conn->phase != TG_CONN_WAIT))
		return;
	conn->server_next += p->payload;
	/* chunks came before the head that was lost (tg_reply_packet) */
	if (found->failed || (conn->flags & TG_CONN_UNFRAMED &&
			      found->left == TG_CHUNKED)) {
		tg_reply_lost(conn, r);
	} else if (!found->interim) {
		r->first = READ_ONCE(conn->flight);
		conn->phase = TG_CONN_ANSWER;
		conn->answer_left = found->left;
		conn->answer_chunk = found->chunk;
		if (!found->left)
			tg_conn_answered(conn, &r->step);
	}
}

/* Walked over a part of a chunked answer. */
static __always_inline void tg_reply_walked(struct tg_conn *conn,
					    const struct tg_packet *p,
					    struct tg_reply_step *r, int ended)
{
	__u32 bytes = p->payload - r->step.skip;

	if (conn->phase != TG_CONN_ANSWER || conn->answer_left != TG_CHUNKED ||
	    conn->server_next != p->seq + r->step.skip)
		return;
	conn->server_next += bytes;
	conn->answer_chunk = r->step.follow.chunk;
	if (ended == TG_FOLLOW_FAILED || r->step.follow.used != bytes) {
		tg_reply_lost(conn, r);
	} else if (ended == TG_FOLLOW_END) {
		conn->answer_left = 0;
		tg_conn_answered(conn, &r->step);
	}
}

/* Counts what a packet of the server's did. */
static __always_inline void tg_reply_count(const struct tg_reply_step *r,
					   __u64 now_ns)
{
	tg_flight_started(r->first, r->step.since_ns, now_ns);
	tg_step_count(&r->step, now_ns);
}

#endif
