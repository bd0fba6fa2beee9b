/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the server's stack says to a request that is about to be refused, where
 * it is on this host: that nothing is outstanding in either direction. On a
 * router there is nobody to ask; there the packets of both directions tell.
 */
#ifndef TG_SOCKET_H
#define TG_SOCKET_H

#include "queue.h"

#define TG_STATE_ESTABLISHED 1	/* BPF_TCP_ESTABLISHED */

enum tg_socket {
	TG_SOCKET_BUSY,		/* no: it must not be refused */
	TG_SOCKET_NONE,		/* no socket: a router, DNAT */
	TG_SOCKET_HERE,		/* the socket agrees */
};

/* A request socket (TCP_DEFER_ACCEPT, or a full accept queue): nothing yet. */
static __always_inline enum tg_socket
tg_socket_request(struct bpf_sock *sk, const struct tg_packet *p)
{
	struct tcp_request_sock *request = bpf_skc_to_tcp_request_sock(sk);

	if (request && p->seq == request->rcv_isn + 1 &&
	    p->ack == request->snt_isn + 1)
		return TG_SOCKET_HERE;
	return TG_SOCKET_BUSY;
}

/*
 * The next byte that it expects is the request's first, and all that its
 * application wrote was acknowledged; `first`: it has not received any byte.
 */
static __always_inline enum tg_socket
tg_socket_open(struct bpf_sock *sk, const struct tg_packet *p, int first)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);

	if (tcp && tcp->rcv_nxt == p->seq && tcp->write_seq == p->ack &&
	    !(first && tcp->bytes_received))
		return TG_SOCKET_HERE;
	return TG_SOCKET_BUSY;
}

/*
 * Whether the socket of a tuple agrees that the packet begins a request. A
 * listener means that there is no socket (yet): SYN cookies. Not static: the
 * verifier looks at it once.
 */
__noinline int tg_socket_agrees(struct __sk_buff *skb,
				const struct tg_packet *p, int first)
{
	enum tg_socket agrees = TG_SOCKET_BUSY;
	struct bpf_sock *sk;

	if (!p)
		return TG_SOCKET_BUSY;
	sk = tg_socket(skb, p);
	if (!sk)
		return TG_SOCKET_NONE;
	if (sk->state == TG_STATE_ESTABLISHED)
		agrees = tg_socket_open(sk, p, first);
	else if (sk->state == TG_STATE_REQUEST)
		agrees = tg_socket_request(sk, p);
	else if (sk->state == TG_STATE_LISTEN && !first)
		agrees = TG_SOCKET_HERE;
	bpf_sk_release(sk);
	return agrees;
}

#endif
