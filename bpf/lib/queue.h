/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the stack knows of a tuple: a socket that a SYN belongs to (then it is
 * no new work), or the listener and its accept queue. Without either (a router,
 * DNAT) the packet is judged without a queue.
 */
#ifndef TG_QUEUE_H
#define TG_QUEUE_H

#include "packet.h"

#define TG_STATE_TIME_WAIT 6	/* BPF_TCP_TIME_WAIT */
#define TG_STATE_LISTEN 10	/* BPF_TCP_LISTEN */
#define TG_STATE_REQUEST 12	/* BPF_TCP_NEW_SYN_RECV */

struct tg_queue {
	__u32 length;
	__u32 limit;
	__u32 known;	/* 1: there is a listener, and it was read */
};

static __always_inline struct bpf_sock *
tg_socket(void *ctx, const struct tg_packet *p)
{
	struct bpf_sock_tuple tuple = {};

	if (p->ipv6) {
		__builtin_memcpy(tuple.ipv6.saddr, p->src, sizeof(p->src));
		__builtin_memcpy(tuple.ipv6.daddr, p->dst, sizeof(p->dst));
		tuple.ipv6.sport = bpf_htons(p->sport);
		tuple.ipv6.dport = bpf_htons(p->dport);
		return bpf_skc_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv6),
					  BPF_F_CURRENT_NETNS, 0);
	}
	tuple.ipv4.saddr = p->src[3];
	tuple.ipv4.daddr = p->dst[3];
	tuple.ipv4.sport = bpf_htons(p->sport);
	tuple.ipv4.dport = bpf_htons(p->dport);
	return bpf_skc_lookup_tcp(ctx, &tuple, sizeof(tuple.ipv4),
				  BPF_F_CURRENT_NETNS, 0);
}

/*
 * 1: a RST that the stack will not believe, as its sequence number lies outside
 * of the window (RFC 9293, 3.10.7.4): whoever sends it only guesses. Anywhere in
 * the window is enough; the stack is stricter, but may not have seen yet what
 * came just before. One before its start is the RST of a client that has sent
 * its FIN already; the stack believes it, too. Where there is no socket to ask (a router, DNAT), a
 * RST is believed: too few connections counted refuse nobody.
 */
static __always_inline int tg_queue_outside(void *ctx,
					    const struct tg_packet *p)
{
	struct bpf_sock *sk = tg_socket(ctx, p);
	struct tcp_sock *tcp;
	int outside = 0;

	if (!sk)
		return 0;
	tcp = sk->state == TG_STATE_LISTEN ? 0 : bpf_skc_to_tcp_sock(sk);
	if (tcp)
		outside = p->seq + 1 - tcp->rcv_nxt > tcp->rcv_wnd + 1;
	bpf_sk_release(sk);
	return outside;
}

/* Zero: new work; else the reason why it is not. */
static __always_inline int tg_queue(void *ctx, const struct tg_packet *p,
				    struct tg_queue *queue)
{
	struct bpf_sock *sk = tg_socket(ctx, p);
	struct tcp_sock *tcp;
	int reason = 0;

	if (!sk)
		return 0;
	if (sk->state == TG_STATE_REQUEST) {
		reason = TG_REASON_SOCKET_REQUEST;
	} else if (sk->state == TG_STATE_TIME_WAIT) {
		reason = TG_REASON_SOCKET_TIME_WAIT;
	} else if (sk->state != TG_STATE_LISTEN) {
		reason = TG_REASON_SOCKET_ESTABLISHED;
	} else {
		tcp = bpf_skc_to_tcp_sock(sk);
		if (tcp) {
			struct sock *listener = &tcp->inet_conn.icsk_inet.sk;

			queue->length = listener->sk_ack_backlog;
			queue->limit = listener->sk_max_ack_backlog;
			queue->known = 1;
		}
	}
	bpf_sk_release(sk);
	return reason;
}

#endif
