/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the stack knows of a tuple: a socket that a SYN belongs to (then it is
 * no new work), or the listener and its accept queue. Without either (a router,
 * DNAT) the packet is evaluated without a queue.
 *
 * A SYN that reuses a tuple in TIME_WAIT is new work where the stack takes it
 * for a new connection, and nothing where the stack only acknowledges it.
 *
 * And what the stack makes of a client's RST.
 */
#ifndef TG_QUEUE_H
#define TG_QUEUE_H

#include "../packet/options.h"
#include "../packet/context.h"
#include "../packet/packet.h"
#include "reset.h"

#define TG_STATE_FIN_WAIT2 5	/* BPF_TCP_FIN_WAIT2 */
#define TG_STATE_TIME_WAIT 6	/* BPF_TCP_TIME_WAIT */
#define TG_STATE_LISTEN 10	/* BPF_TCP_LISTEN */
#define TG_STATE_REQUEST 12	/* BPF_TCP_NEW_SYN_RECV */
/* The client's FIN has come: BPF_TCP_CLOSE_WAIT, LAST_ACK, CLOSING. */
#define TG_STATES_DONE (1U << 8 | 1U << 9 | 1U << 11)

/* The socket of a packet's tuple; `sport`: with this port of the client's. */
static __always_inline struct bpf_sock *
tg_socket_from(void *ctx, const struct tg_packet *p, __u16 sport)
{
	struct bpf_sock_tuple tuple = {};

	if (p->ipv6) {
		__builtin_memcpy(tuple.ipv6.saddr, p->src, sizeof(p->src));
		__builtin_memcpy(tuple.ipv6.daddr, p->dst, sizeof(p->dst));
		tuple.ipv6.sport = bpf_htons(sport);
		tuple.ipv6.dport = bpf_htons(p->dport);
		return bpf_skc_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv6),
					  BPF_F_CURRENT_NETNS, 0);
	}
	tuple.ipv4.saddr = p->src[3];
	tuple.ipv4.daddr = p->dst[3];
	tuple.ipv4.sport = bpf_htons(sport);
	tuple.ipv4.dport = bpf_htons(p->dport);
	return bpf_skc_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv4),
				  BPF_F_CURRENT_NETNS, 0);
}

static __always_inline struct bpf_sock *
tg_socket(void *ctx, const struct tg_packet *p)
{
	return tg_socket_from(ctx, p, p->sport);
}

/*
 * A RST to a socket that has a window (RFC 5961, 3.2, and tcp_reset_check): only at
 * its start, or one before that behind a FIN. Anywhere else in it the stack sends
 * an ACK, and the connection lives.
 */
static __always_inline enum tg_reset
tg_reset_open(struct bpf_sock *sk, const struct tg_packet *p)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	__u32 ahead;

	if (!tcp)		/* TIME_WAIT: nobody reads from it */
		return TG_RESET_OVER;
	ahead = p->seq - tcp->rcv_nxt;
	if (!ahead ||
	    (!(ahead + 1) && TG_STATES_DONE >> (sk->state & 31) & 1))
		return TG_RESET_OVER;
	return ahead <= tcp->rcv_wnd ? TG_RESET_UNSURE : TG_RESET_NONE;
}

/* A request socket, whose client has sent nothing that it took. */
static __always_inline enum tg_reset
tg_reset_request(struct bpf_sock *sk, const struct tg_packet *p)
{
	struct tcp_request_sock *request = bpf_skc_to_tcp_request_sock(sk);

	return request && p->seq == request->rcv_isn + 1 ? TG_RESET_OVER :
							   TG_RESET_UNSURE;
}

/*
 * What becomes of a RST: who sends one that the stack does not believe must not be
 * taken for gone. A listener means that the connection is over, or that the ACK
 * before the RST has yet to make it from a cookie, or was dropped. OVER holds for
 * what the stack has taken so far: who follows a connection knows whether more came
 * (tg_conn_reset). Inlined: the verifier takes what is handed to a function for
 * changed, and would look at all behind it again.
 */
static __always_inline enum tg_reset tg_reset_of(void *ctx,
						 const struct tg_packet *p)
{
	struct bpf_sock *sk = tg_socket(ctx, p);
	enum tg_reset reset = TG_RESET_UNSURE;

	if (!sk)
		return TG_RESET_UNKNOWN;
	if (sk->state == TG_STATE_LISTEN)
		reset = TG_RESET_UNKNOWN;
	else if (sk->state == TG_STATE_REQUEST)
		reset = tg_reset_request(sk, p);
	else
		reset = tg_reset_open(sk, p);
	bpf_sk_release(sk);
	return reset;
}

/*
 * Whether a SYN carries a time stamp, and which. Behind IPv6 extension headers
 * none is looked for. Not static: the verifier looks at it once.
 */
__noinline int tg_syn_stamp(TG_CONTEXT *ctx, const struct tg_packet *p,
			    __u32 *stamp)
{
	struct tg_options o = {};
	__u32 at, last;
	__be32 value;
	__u8 byte;

	if (!p || !stamp)
		return 0;
	at = p->l3 & 31;
	if (TG_LOAD_BYTES(ctx, p->ipv6 ? at + TG_IPV6_NEXT_AT : at, &byte,
			  sizeof(byte)))
		return 0;
	if (p->ipv6 && byte != TG_PROTO_TCP)
		return 0;
	at += p->ipv6 ? sizeof(struct tg_ipv6) : (byte & 0xf) * 4;
	if (TG_LOAD_BYTES(ctx, at + TG_TCP_OFFSET_AT, &byte, sizeof(byte)))
		return 0;
	at += sizeof(struct tg_tcp);
	last = (byte >> 4) * 4 - sizeof(struct tg_tcp) - 1;
	/* what is compared must be what is used, and shows that it is not 0 */
	barrier_var(last);
	if (last >= TG_TCP_OPTIONS_MAX)
		return 0;
	if (TG_LOAD_BYTES(ctx, at, o.option, last + 1))
		return 0;
	o.bytes = last + 1;
	bpf_loop(TG_TCP_OPTIONS_MAX, tg_option, &o, 0);
	if (!o.stamps || TG_LOAD_BYTES(ctx, at + o.stamps, &value, sizeof(value)))
		return 0;
	*stamp = bpf_ntohl(value);
	return 1;
}

/* What a socket in TIME_WAIT remembers of its connection. */
struct tg_time_wait {
	__u32 next;		/* the sequence number that it expects */
	__u32 stamp;		/* the client's last time stamp */
	__u32 stamped;		/* 1: it had any */
	__u32 closing;		/* 1: FIN_WAIT2, the client may still send */
};

/*
 * Whether the stack takes a SYN for a new connection, as
 * tcp_timewait_state_process() does: its number lies behind what was received,
 * or its time stamp is newer; never with an older one (PAWS, RFC 7323, 5). That
 * a stamp of 24 days ago is not compared any more is left out.
 */
static __always_inline int tg_time_wait_takes(void *ctx,
					      const struct tg_packet *p,
					      const struct tg_time_wait *tw)
{
	int later = (__s32)(tw->next - p->seq) < 0;
	__u32 stamp = 0;
	__s32 older;

	if (tw->closing)
		return 0;
	if (!tw->stamped || !tg_syn_stamp(ctx, p, &stamp))
		return later;
	older = (__s32)(tw->stamp - stamp);
	if (older > 0 && tw->stamp)
		return 0;
	return later || older < 0;
}

/* -1 if it cannot be read. */
static __always_inline int tg_time_wait_read(struct bpf_sock *sk,
					     struct tg_time_wait *tw)
{
	struct tcp_timewait_sock *from = bpf_skc_to_tcp_timewait_sock(sk);

	if (!from)
		return -1;
	tw->next = from->tw_sk.__tw_common.skc_tw_rcv_nxt;
	tw->stamp = from->tw_ts_recent;
	tw->stamped = from->tw_ts_recent_stamp != 0;
	tw->closing = from->tw_sk.tw_substate == TG_STATE_FIN_WAIT2;
	return 0;
}

static __always_inline void tg_queue_read(struct bpf_sock *sk,
					  struct tg_queue *queue)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	struct sock *listener;

	if (!tcp)
		return;
	listener = &tcp->inet_conn.icsk_inet.sk;
	queue->length = listener->sk_ack_backlog;
	queue->limit = listener->sk_max_ack_backlog;
	queue->known = 1;
}

/*
 * A SYN to a tuple in TIME_WAIT: zero, and the queue of the listener behind it,
 * or the reason why it is no new work. What cannot be read is new work: else
 * whoever reuses a tuple went past the limits. Nobody has port 0, so with it the
 * look-up finds the listener; of several that share the port (SO_REUSEPORT) it
 * may be another than the stack chooses.
 */
static __always_inline int tg_queue_time_wait(void *ctx,
					      const struct tg_packet *p,
					      const struct tg_time_wait *tw,
					      struct tg_queue *queue)
{
	struct bpf_sock *sk;

	if (tw && !tg_time_wait_takes(ctx, p, tw))
		return TG_REASON_SOCKET_TIME_WAIT;
	sk = tg_socket_from(ctx, p, 0);
	if (!sk)
		return 0;
	if (sk->state == TG_STATE_LISTEN)
		tg_queue_read(sk, queue);
	bpf_sk_release(sk);
	return 0;
}

/* Zero: new work; else the reason why it is not. */
static __always_inline int tg_queue(void *ctx, const struct tg_packet *p,
				    struct tg_queue *queue)
{
	struct bpf_sock *sk = tg_socket(ctx, p);
	struct tg_time_wait tw = {};
	int reason = 0, waits, read = 0;

	if (!sk)
		return 0;
	waits = sk->state == TG_STATE_TIME_WAIT;
	if (unlikely(waits))
		read = tg_time_wait_read(sk, &tw);
	else if (sk->state == TG_STATE_REQUEST)
		reason = TG_REASON_SOCKET_REQUEST;
	else if (sk->state != TG_STATE_LISTEN)
		reason = TG_REASON_SOCKET_ESTABLISHED;
	else
		tg_queue_read(sk, queue);
	bpf_sk_release(sk);
	if (unlikely(waits))
		return tg_queue_time_wait(ctx, p, read ? 0 : &tw, queue);
	return reason;
}

#endif
