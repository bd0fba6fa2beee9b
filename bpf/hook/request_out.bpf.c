/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the server sends to clients of services with request rules, at tc egress:
 * follows its answers to their last byte. It never drops, never changes a
 * packet. It may see packets that segmentation will cut later.
 */
#include "../packet/tc.h"
#include "../packet/classify.h"
#include "../track/exchange.h"
#include "../reply/segment.h"

/*
 * A SYN-ACK opens another connection under the same tuple, unless it is that of
 * this one once more (a request socket that waits for data repeats it).
 */
static __always_inline void tg_opened(struct tg_conn *conn, __u64 key,
				      const struct tg_packet *p)
{
	int same = READ_ONCE(conn->flags) & TG_CONN_FIRST &&
		   p->seq + 1 == READ_ONCE(conn->server_next) &&
		   p->ack == READ_ONCE(conn->client_next);

	if (p->flags & TG_TCP_ACK && !same)
		tg_conn_forget(conn, key);
}

/* Looks into an answer: its head, or its chunks. */
static __always_inline void tg_look_into(struct __sk_buff *skb,
					 struct tg_conn *conn, __u64 key,
					 const struct tg_packet *p,
					 struct tg_reply_step *r)
{
	struct tg_reply_found found = { .failed = 1 };
	struct tg_layout at = {};
	int ended = TG_FOLLOW_FAILED;

	if (!tg_layout_of(skb, p, &at) && !at.fragment) {
		if (r->head)
			tg_reply_heads(skb, at.data, p->payload, r->to, &found);
		else if (r->step.skip < p->payload)
			ended = tg_follow_at(skb, at.data + r->step.skip,
					  p->payload - r->step.skip,
					  &r->step.follow);
	}
	if (!tg_conn_lock(conn, key))
		return;
	if (r->head)
		tg_reply_begun(conn, p, &found, r);
	else
		tg_reply_walked(conn, p, r, ended);
	bpf_spin_unlock(&conn->lock);
}

/* The server's side ends: so does an answer that ends with the connection. */
static __always_inline void tg_closed(struct tg_conn *conn, __u64 key,
				      __u64 now_ns)
{
	struct tg_step step = {};

	if (!tg_conn_lock(conn, key))
		return;
	if (conn->phase == TG_CONN_ANSWER &&
	    conn->answer_left == TG_TO_CLOSE) {
		conn->answer_left = 0;
		tg_conn_answered(conn, &step);
	}
	bpf_spin_unlock(&conn->lock);
	tg_step_count(&step, now_ns);
	tg_conn_forget(conn, key);
}

static __always_inline void tg_answers_of(struct __sk_buff *skb,
					  struct tg_conn *conn, __u64 key,
					  const struct tg_packet *p)
{
	struct tg_reply_step r = {};
	__u64 now_ns;

	if (!p->payload && !(p->flags & TG_TCP_FIN) &&
	    !READ_ONCE(conn->request_left) &&
	    !(READ_ONCE(conn->flags) & TG_CONN_EVADES))
		return;
	now_ns = bpf_ktime_get_ns();
	tg_conn_touch(conn, now_ns);
	if (!tg_conn_lock(conn, key))
		return;
	tg_reply_packet(conn, p, &r);
	bpf_spin_unlock(&conn->lock);
	if (r.head || r.step.chunks)
		tg_look_into(skb, conn, key, p, &r);
	tg_reply_count(&r, now_ns);
	if (p->flags & TG_TCP_FIN)
		tg_closed(conn, key, now_ns);
}

SEC("tc")
int tg_request_out(struct __sk_buff *skb)
{
	struct tg_class_view classes = {};
	struct tg_packet p = {};
	struct tg_conn *conn;
	__u64 key;

	if (tg_parse_frame(skb, &p) || tg_classification(&classes) ||
	    !tg_port(&classes, p.sport))
		return TG_TC_NEXT;
	key = tg_hash_flow(&p, 1);
	conn = tg_conn_find(&key);
	/* Refused: what goes out is ours. */
	if (!conn || READ_ONCE(conn->phase) == TG_CONN_REFUSED)
		return TG_TC_NEXT;
	if (p.flags & TG_TCP_SYN)
		tg_opened(conn, key, &p);
	else if (p.flags & TG_TCP_RST)
		tg_conn_forget(conn, key);
	else
		tg_answers_of(skb, conn, key, &p);
	return TG_TC_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
