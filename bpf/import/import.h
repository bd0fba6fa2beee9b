/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Imported rules in the ingress hooks, before services are looked at. In this order:
 *
 *	no rule matches					goes on
 *	kill switch, lease ended			goes on
 *	exempt port or source, session of a peer	goes on
 *	within the rule's rates				goes on, counted
 *	above, but shadow or lease relaxing		goes on, counted
 *	above						dropped, counted
 *
 * A packet that the parser cannot read goes on, and so does one after a look-up that
 * fails. Where nothing is imported the verifier removes the call.
 */
#ifndef TG_IMPORT_H
#define TG_IMPORT_H

#include "match.h"
#include "../packet/classify.h"
#include "../packet/lease.h"

#define TG_IMPORT_BURST (50000000ULL * 16)	/* 50 ms, in ns/16 */
#define TG_IMPORT_BGP 179

/* A packet as buckets count it. */
struct tg_import_size {
	__u32 packets;	/* of which it was merged */
	__u32 bytes;	/* of IP, all headers */
	__u32 seen;	/* TG_SEEN_… */
};

/* Each of the merged packets had headers. virtio tells the size of segments, not their number. */
static __always_inline void tg_import_merged(struct tg_import_size *size,
					     __u32 headers, __u32 payload,
					     __u32 segments, __u32 segment)
{
	if (!segments && segment)
		segments = (payload + segment - 1) / segment;
	size->packets = segments ? segments : 1;
	size->bytes = headers * size->packets + payload;
}

/* Zero: it was not understood. */
static __always_inline int tg_import_measure(struct tg_import_size *size,
					     const struct tg_packet *p,
					     int reason, __u32 segments,
					     __u32 segment)
{
	__u32 headers = reason ? p->other.header : p->data - p->l3;
	__u32 payload = p->payload;

	size->seen = TG_PROTO_TCP | TG_SEEN_PORTS | TG_SEEN_TCP;
	if (reason) {
		size->seen = p->other.proto;
		payload = p->other.length - headers;
		if (p->other.known == TG_OTHER_PORTS)
			size->seen |= TG_SEEN_PORTS;
	}
	tg_import_merged(size, headers, payload, segments, segment);
	return reason ? p->other.known : 1;
}

/* Whether the source is one of a row of peers. Not static: the verifier looks at it once. */
__noinline int tg_import_peer_in(const struct tg_import_peers *row,
				 const struct tg_packet *p)
{
	if (!row || !p)
		return 0;
	for (int i = 0; i < TG_IMPORT_PEERS_ROW; i++) {
		const __u32 *addr = row->addr[i];

		if (addr[3] == p->src[3] && addr[2] == p->src[2] &&
		    addr[1] == p->src[1] && addr[0] == p->src[0])
			return 1;
	}
	return 0;
}

/* Rows without peers are zero, which is nobody's address. */
static __always_inline int tg_import_is_peer(void *rows,
					     const struct tg_packet *p)
{
	return tg_import_peer_in(tg_at(rows, TG_IMPORT_PEERS), p) ||
	       tg_import_peer_in(tg_at(rows, TG_IMPORT_PEERS + 1), p);
}

static __always_inline int tg_import_never(void *rows, __u16 port)
{
	const struct tg_import_never *row =
		tg_at(rows, TG_IMPORT_PORTS + (port >> 10));

	return row && row->bits[port >> 3 & (TG_IMPORT_ROW_BYTES - 1)] >>
			      (port & 7) & 1;
}

/*
 * What no rule may touch: what operators have exempted, and the sessions of the speaker.
 * It connects to its peers and listens for none: what comes to port 179, and a SYN
 * that opens a connection, are of no session. A port counts whether a service listens
 * there or not.
 */
static __always_inline int
tg_import_exempt(void *rows, const struct tg_packet *p, __u32 seen)
{
	struct tg_class_view view;

	if (seen & TG_SEEN_TCP && tg_import_never(rows, p->dport))
		return 1;
	if (seen & TG_SEEN_TCP &&
	    p->sport == TG_IMPORT_BGP &&
	    (p->flags & (TG_TCP_SYN | TG_TCP_ACK)) != TG_TCP_SYN &&
	    tg_import_is_peer(rows, p))
		return 1;
	if (tg_classification(&view) || view.released)
		return 1;
	return tg_exempt(&view, p, 0, tg_src_row(&view, p));
}

/* 1: one that is refused anyway, without the lock: times only grow under one rule. */
static __always_inline int
tg_import_is_over(const volatile struct tg_import_state *state,
		  const struct tg_import_rule *rule, __u64 now)
{
	__u64 most = now + TG_IMPORT_BURST;

	if (state->generation != rule->generation ||
	    state->packet_cost != rule->packet_cost ||
	    state->byte_cost != rule->byte_cost)
		return 0;
	return (rule->packet_cost && state->packets_at > most) ||
	       (rule->byte_cost && state->bytes_at > most);
}

/* 1: a rate is exceeded; else it is taken. */
static __always_inline int tg_import_take(struct tg_import_state *state,
					  const struct tg_import_rule *rule,
					  const struct tg_import_size *size,
					  __u64 now_ns)
{
	__u64 packets = size->packets * rule->packet_cost >> 8;
	__u64 bytes = size->bytes * rule->byte_cost >> 8;
	__u64 now = now_ns << 4, packets_at = now, bytes_at = now;
	__u64 packet_cost = rule->packet_cost, byte_cost = rule->byte_cost;
	__u32 generation = rule->generation;
	int over;

	if (tg_import_is_over(state, rule, now))
		return 1;
	bpf_spin_lock(&state->lock);
	if (state->generation == generation &&
	    state->packet_cost == packet_cost &&
	    state->byte_cost == byte_cost) {
		if (state->packets_at > now)
			packets_at = state->packets_at;
		if (state->bytes_at > now)
			bytes_at = state->bytes_at;
	}
	over = (packet_cost && packets_at - now > TG_IMPORT_BURST) ||
	       (byte_cost && bytes_at - now > TG_IMPORT_BURST);
	if (!over) {
		packets_at += packets;
		bytes_at += bytes;
	}
	state->generation = generation;
	state->packet_cost = packet_cost;
	state->byte_cost = byte_cost;
	state->packets_at = packets_at;
	state->bytes_at = bytes_at;
	bpf_spin_unlock(&state->lock);
	return over;
}

static __always_inline void tg_import_count(const struct tg_import_rule *rule,
					    const struct tg_import_size *size,
					    int refused)
{
	struct tg_import_counts *counts = tg_at(&tg_import_counts, rule->slot);

	if (!counts)
		return;
	if (counts->generation != rule->generation) {
		counts->packets = counts->bytes = counts->refused = 0;
		counts->generation = rule->generation;
	}
	counts->packets += size->packets;
	counts->bytes += size->bytes;
	if (refused)
		counts->refused += size->packets;
}

static __always_inline int tg_import_over(const struct tg_import_rule *rule,
					  const struct tg_import_size *size,
					  __u64 now_ns)
{
	struct tg_import_state *state = tg_at(&tg_import_states, rule->slot);

	if (rule->discards)
		return 1;
	/* A route without action: what it matches passes. */
	if (!rule->packet_cost && !rule->byte_cost)
		return 0;
	return state && tg_import_take(state, rule, size, now_ns);
}

/*
 * 1: the packet is dropped. `segments` of which it was merged, of `segment` bytes; 0: it
 * was not, or it is not known. Not static, either.
 */
__noinline int tg_import_refuses(const struct tg_packet *p, int reason,
				 __u32 segments, __u32 segment)
{
	void *rows = tg_at(&tg_import, 0);
	const struct tg_import_head *head;
	const struct tg_import_rule *rule;
	enum tg_execution execution = TG_SPARED;
	struct tg_import_size size;
	__u32 strength;
	__u64 now_ns;

	head = rows && p ? tg_at(rows, TG_IMPORT_HEAD) : 0;
	if (!head || !head->spans ||
	    !tg_import_measure(&size, p, reason, segments, segment))
		return 0;
	rule = tg_import_rule_of(rows, head->spans, p, size.seen);
	if (!rule)
		return 0;
	now_ns = bpf_ktime_get_ns();
	strength = tg_lease_now(now_ns);
	if (!strength || tg_import_exempt(rows, p, size.seen))
		return 0;
	if (tg_import_over(rule, &size, now_ns))
		execution = tg_lease_execution(head->shadow, strength,
					       tg_lease_dice(strength));
	tg_import_count(rule, &size, execution != TG_SPARED);
	return execution == TG_EXECUTED;
}

/* What the parser said, or that a rule refuses the packet; only where rules are imported. */
static __always_inline int tg_import_reason(const struct tg_packet *p,
					    int reason, __u32 segments,
					    __u32 segment)
{
	if (settings.import && tg_import_refuses(p, reason, segments, segment))
		return TG_REFUSED_EARLY;
	return reason;
}

#endif
