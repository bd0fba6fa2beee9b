/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Requests of connections that the server's stack had no room for.
 *
 *	client                         stack, its accept queue full
 *	  │ SYN ───────────────────────► a place was free for a moment
 *	  │ ◄─────────────────── SYN-ACK
 *	  │ ACK, request ──────────────► dropped in silence
 *	  │ request again, after 0.2, 0.6, 1.4, 3, 6.2 … s ──► taken if there is a place
 *
 * After some seconds of a crowd thousands of clients are in this state. They take
 * each place that becomes free before any new client, and most of them have waited
 * too long already. So while the accept queue is limited they are refused: `late`.
 *
 * - Of a connection that is followed it is known that the stack has said nothing to
 *   it. If it has no socket for it either, what comes after a second is late: the
 *   request again, and what else would end the handshake.
 * - Of one that is not, begun before the hooks were there, the stack knows the cookie,
 *   if it has sent one. Whoever has neither flow nor cookie is none of them: it passes.
 * - A SYN that passed, was ignored by the stack and comes again is new work once more
 *   (tg_late_copy).
 * Without a socket or a listener to ask (a router, DNAT) nothing is late.
 */
#ifndef TG_LATE_H
#define TG_LATE_H

#include "../packet/context.h"
#include "limits.h"
#include "../track/queue.h"
#include "../track/turn.h"

/* 1: the accept queue of the service is limited. */
static __always_inline int tg_late_limited(__u32 service)
{
	const struct tg_limits *limits = tg_host_limits(service);

	return limits && limits->accept_queue_max_q10;
}

/*
 * 1: a packet behind a request that has waited for a second since its client was
 * heard last, and not more of that request. To be asked where something is owed.
 */
static __always_inline int tg_late_again(const struct tg_flow *flow,
					 const struct tg_packet *p, __u64 meta)
{
	const struct tg_flow_way *way;

	if ((p->flags & (TG_TCP_ACK | TG_TCP_SYN | TG_TCP_RST)) != TG_TCP_ACK ||
	    tg_flow_idle(meta, bpf_ktime_get_coarse_ns()) < TG_FLOW_TOUCH)
		return 0;
	way = tg_flow_way(flow);
	return way && (p->payload <= 1 || !(way->client & TG_CLIENT_SPOKE) ||
		       (__s32)(p->seq - way->client_next) < 0);
}

/*
 * 1: a packet of a connection to which the stack has said nothing is late. Zero, too,
 * where nothing is limited, or the stack is not here. Not static: the verifier looks
 * at it once.
 */
__noinline int tg_late_known(TG_CONTEXT *ctx, const struct tg_packet *p,
			     __u64 fingerprint)
{
	struct tg_flow flow = { .fingerprint = fingerprint };
	struct bpf_sock *sk;
	int taken;
	__u64 meta;

	if (!p || !tg_flow_find(&flow))
		return 0;
	meta = tg_flow_read(&flow);
	if (meta & TG_FLOW_TAKEN || !tg_late_again(&flow, p, meta) ||
	    !tg_late_limited(tg_flow_service(meta)))
		return 0;
	sk = tg_socket(ctx, p);
	if (!sk)
		return 0;
	taken = sk->state != TG_STATE_LISTEN && sk->state != TG_STATE_REQUEST;
	bpf_sk_release(sk);
	if (taken)	/* what it said was not seen */
		tg_turn_change(&flow, &meta, 0, TG_FLOW_TAKEN);
	return !taken;
}

/* 1: a copy of a SYN that passed, and that the stack has ignored. */
static __always_inline int tg_late_copy(const struct tg_ask *ask, int copy)
{
	return copy == TG_COPY_IGNORED && ask->queue.known &&
	       tg_late_limited(ask->service);
}

/* As much of the headers as a cookie is made of. */
struct tg_late_headers {
	union {
		struct tg_ipv4 ipv4;
		struct tg_ipv6 ipv6;
	};
	struct tg_tcp tcp;
};

static __always_inline int tg_late_cookie(struct bpf_sock *sk,
					  const struct tg_packet *p)
{
	struct tg_late_headers h = {};
	__u32 length = p->ipv6 ? sizeof(h.ipv6) : sizeof(h.ipv4);

	if (p->ipv6) {
		h.ipv6.flow = bpf_htonl(6U << 28);
		__builtin_memcpy(h.ipv6.src, p->src, sizeof(h.ipv6.src));
		__builtin_memcpy(h.ipv6.dst, p->dst, sizeof(h.ipv6.dst));
	} else {
		h.ipv4.ver_ihl = 0x45;
		h.ipv4.src = p->src[3];
		h.ipv4.dst = p->dst[3];
	}
	h.tcp.sport = bpf_htons(p->sport);
	h.tcp.dport = bpf_htons(p->dport);
	h.tcp.seq = bpf_htonl(p->seq);
	h.tcp.ack = bpf_htonl(p->ack);
	h.tcp.offset = sizeof(h.tcp) / 4 << 4;
	h.tcp.flags = TG_TCP_ACK;
	return !bpf_tcp_check_syncookie(sk, &h, length, (void *)&h.tcp,
					sizeof(h.tcp));
}

/* Handshakes that nobody saw begin may end for so long: a client's last SYN. */
#define TG_LATE_UNSEEN_NS TG_COPY_NS

/*
 * 1: a payload to a service with a limit, of no connection that is followed, which
 * ends a handshake by a cookie. Later than some time after the hooks were loaded it is
 * of one whose note was lost, or that found no place: it passes. Not static, as above.
 */
__noinline int tg_late_unknown(TG_CONTEXT *ctx, const struct tg_packet *p,
			       __u32 service)
{
	struct bpf_sock *sk;
	int late = 0;

	if (!p || !tg_late_limited(service) ||
	    tg_elapsed_ns(bpf_ktime_get_coarse_ns(), settings.loaded_ns) >
		    TG_LATE_UNSEEN_NS)
		return 0;
	sk = tg_socket(ctx, p);
	if (!sk)
		return 0;
	if (sk->state == TG_STATE_LISTEN)
		late = tg_late_cookie(sk, p);
	bpf_sk_release(sk);
	return late;
}

/* What is said of it; -1: its service is not limited any more. */
static __always_inline int tg_late_verdict(struct tg_ask *ask)
{
	const struct tg_limits *limits = tg_host_limits(ask->service);

	return limits && tg_chain_late(limits, ask) ? 0 : -1;
}

/* Its client was told: it is over. Not static, as above. */
__noinline int tg_late_over(__u64 fingerprint)
{
	struct tg_flow flow = { .fingerprint = fingerprint };

	if (!tg_flow_find(&flow))
		return 0;
	return tg_flow_over(&flow, tg_flow_read(&flow));
}

#endif
