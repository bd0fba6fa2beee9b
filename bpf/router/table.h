/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The table of connections, and which of them get a place in it.
 *
 * The SYN-ACK of a server leaves a note, with its ISN, in a fixed array that any sender
 * of SYNs may overwrite; the loss of a young note is counted. An acknowledgement that
 * names this ISN proves that the client receives what is sent to its address. Only then
 * the connection gets a place, and its destination is known: spoofed SYNs get neither.
 * Where all places of a set are taken by connections that are not idle, a connection is
 * not followed, and that is counted. One that is idle keeps its place until then. A
 * SYN-ACK with another ISN says that its tuple belongs to another connection now.
 *
 * Of the connections one in `sample` is followed, by its hash.
 */
#ifndef TG_ROUTER_TABLE_H
#define TG_ROUTER_TABLE_H

#include "flow.h"
#include "limit.h"

#define TG_ROUTER_NOTE_UNITS 3	/* a note is young for so long */

/* Gives the place of a connection back. 1: we did, and nobody else. */
static __always_inline int tg_router_free(__u64 *at, __u64 fingerprint)
{
	return __sync_val_compare_and_swap(at, fingerprint, TG_ROUTER_FREE) ==
	       fingerprint;
}

/*
 * A connection is over. One that was shorter than a round of the sweep is in none, so
 * its rate is noted here; an older one says nothing of now.
 */
static __always_inline void tg_router_over(const struct tg_router_way *way,
					   __u64 fingerprint, __u64 now_ns)
{
	struct tg_router_flow last = {
		.rate = way->flow->rate,
		.place = way->flow->place,
	};

	if (tg_router_free(way->fingerprint, fingerprint) && last.rate.seen &&
	    tg_elapsed_ns(now_ns, last.rate.then_ns) < TG_ROUTER_ROUND_NS)
		tg_router_note_rate(&last, last.rate.rate);
}

static __always_inline int tg_router_is_idle(const struct tg_router_flow *f,
					     __u64 now_ns)
{
	__s32 idle = (__u32)(now_ns >> TG_ROUTER_SEEN_SHIFT) -
		     READ_ONCE(f->seen);

	return idle > (__s32)(settings.flow_timeout_ns >> TG_ROUTER_SEEN_SHIFT);
}

/*
 * Takes a place that is free, or with `idle_too` one that is idle for too long. 1: it is
 * being filled by us.
 */
static __always_inline int tg_router_take(struct tg_router_way *way,
					  __u64 now_ns, int idle_too)
{
	__u64 old = READ_ONCE(*way->fingerprint);

	if (old == TG_ROUTER_BUSY ||
	    (old != TG_ROUTER_FREE &&
	     (!idle_too || !tg_router_is_idle(way->flow, now_ns))) ||
	    __sync_val_compare_and_swap(way->fingerprint, old,
					TG_ROUTER_BUSY) != old)
		return 0;
	if (old != TG_ROUTER_FREE)
		tg_router_end(way->flow);
	return 1;
}

static __always_inline void tg_router_key_of(struct tg_router_key *key,
					     const __be32 *addr, __u16 port)
{
	key->addr[0] = addr[0];
	key->addr[1] = addr[1];
	key->addr[2] = addr[2];
	key->addr[3] = addr[3];
	key->port = port;
}

/* Whether destinations are looked for there. Not static: the verifier looks at it once. */
__noinline int tg_router_wants(const struct tg_router_key *key)
{
	const struct tg_router_scopes *all = tg_router_at(&tg_router_scopes, 0);

	if (!all || !key)
		return 0;
	for (__u32 i = 0; i < TG_ROUTER_SCOPES_MAX; i++) {
		const volatile struct tg_router_scope *s = &all->scope[i];

		if (i >= all->count)
			break;
		if (!((key->addr[0] ^ s->addr[0]) & s->mask[0]) &&
		    !((key->addr[1] ^ s->addr[1]) & s->mask[1]) &&
		    !((key->addr[2] ^ s->addr[2]) & s->mask[2]) &&
		    !((key->addr[3] ^ s->addr[3]) & s->mask[3]) &&
		    (!s->port || s->port == key->port))
			return 1;
	}
	return 0;
}

static __always_inline int tg_router_sampled(__u64 fingerprint)
{
	const struct tg_router_scopes *all = tg_router_at(&tg_router_scopes, 0);

	return all && all->sample &&
	       !((__u32)(fingerprint >> 8 & 0xffff) % all->sample);
}

/* The place of a destination, which gets one if it has none; 0: there is no room. */
static __always_inline const __u32 *
tg_router_place(const struct tg_router_key *key)
{
	const __u32 *known = bpf_map_lookup_elem(&tg_router_places, key);
	__u32 *taken = tg_router_at(&tg_router_taken, 0);
	struct tg_router_destination *d;
	__u32 place;

	if (known || !taken)
		return known;
	place = __sync_fetch_and_add(taken, 1);
	d = tg_router_at(&tg_router_counts, place);
	if (!d) {
		/* no more than one beyond the last: it must not wrap */
		__sync_fetch_and_add(taken, -1);
		tg_router_lose(TG_ROUTER_PLACES);
		return 0;
	}
	/* another CPU may have been faster: then this place stays empty */
	if (bpf_map_update_elem(&tg_router_places, key, &place, 1 /* BPF_NOEXIST */))
		return bpf_map_lookup_elem(&tg_router_places, key);
	/* the port last: it says that the address is there */
	__builtin_memcpy(d->key.addr, key->addr, sizeof(d->key.addr));
	WRITE_ONCE(d->key.port, key->port);
	return bpf_map_lookup_elem(&tg_router_places, key);
}

/* Follows a connection from here on; p proves its handshake. 1: there is a place. */
static __always_inline int tg_router_open(struct tg_router_way *way,
					  __u64 fingerprint,
					  const struct tg_packet *p,
					  __u64 now_ns)
{
	struct tg_router_set *set = tg_router_set_of(fingerprint);
	struct tg_router_key key;
	struct tg_router_destination *d;
	const __u32 *place;
	int found = 0;

	tg_router_key_of(&key, p->dst, p->dport);
	place = tg_router_place(&key);
	d = place ? tg_router_at(&tg_router_counts, *place) : 0;
	if (!set || !d)
		return 0;
	/* whether it can be followed or not */
	tg_router_count(&d->counts.admitted, 1);
	/* first what is free, then what is idle */
	for (int i = 0; i < 2 * TG_ROUTER_WAYS && !found; i++) {
		int at = i % TG_ROUTER_WAYS;

		way->fingerprint = &set->fingerprint[at];
		way->flow = &set->flow[at];
		found = tg_router_take(way, now_ns, i >= TG_ROUTER_WAYS);
	}
	if (!found) {
		tg_router_lose(TG_ROUTER_FULL);
		return 0;
	}
	__builtin_memset(way->flow, 0, sizeof(*way->flow));
	way->flow->place = *place;
	way->flow->acked = way->flow->sent = p->ack;
	way->flow->asked = p->seq;
	way->flow->seen = now_ns >> TG_ROUTER_SEEN_SHIFT;
	WRITE_ONCE(*way->fingerprint, fingerprint);
	return 1;
}

/*
 * The last SYN of a hash: which it is, and whether it was refused. A copy of one that
 * passed is no new connection.
 *
 * Another SYN of the hash takes its place. If it had passed and its handshake was not
 * over, a copy of it looks like a new attempt, and a RST would end what the server may
 * still accept. So the place says when that happened last, in the bits that are the
 * same for all of its SYNs, and for as long as copies come nobody there gets a RST.
 */
#define TG_ROUTER_SYN_SET 1ULL
#define TG_ROUTER_SYN_REFUSED 2ULL
#define TG_ROUTER_SYN_LOST_SHIFT 32	/* in units of TG_ROUTER_SEEN_SHIFT; 0: never */
#define TG_ROUTER_SYN_LOST ((__u64)TG_ROUTER_NOTE_MASK << TG_ROUTER_SYN_LOST_SHIFT)
/* 77 s: Linux sends the last copy of a SYN after 67 s, others after 75 s at most */
#define TG_ROUTER_LOST_UNITS 72
TG_ASSERT(TG_ROUTER_NOTES == 1 << 16);

static __always_inline __u64 tg_router_syn_word(__u64 hash)
{
	return (hash & ~(TG_ROUTER_SYN_LOST | TG_ROUTER_SYN_REFUSED)) |
	       TG_ROUTER_SYN_SET;
}

/* The word, as of a place where a SYN that passed is overwritten now. */
static __always_inline __u64 tg_router_syn_lost(__u64 word)
{
	__u64 now = bpf_ktime_get_ns() >> TG_ROUTER_SEEN_SHIFT &
		    TG_ROUTER_NOTE_MASK;

	return (word & ~TG_ROUTER_SYN_LOST) |
	       (now ? now : 1) << TG_ROUTER_SYN_LOST_SHIFT;
}

/* 1: a copy of one that passed may come, and would not be known. */
static __always_inline int tg_router_syn_in_doubt(__u64 last)
{
	__u32 since = last >> TG_ROUTER_SYN_LOST_SHIFT & TG_ROUTER_NOTE_MASK;
	__u32 now;

	if (!since)
		return 0;
	now = bpf_ktime_get_ns() >> TG_ROUTER_SEEN_SHIFT & TG_ROUTER_NOTE_MASK;
	/* as it is written */
	now = now ? now : 1;
	return ((now - since) & TG_ROUTER_NOTE_MASK) < TG_ROUTER_LOST_UNITS;
}

/* What the place says from now on, if the SYN that it is about now is this one. */
static __always_inline __u64
tg_router_syn_next(__u64 last, __u64 word, enum tg_router_verdict verdict)
{
	int known = !((last ^ word) & ~(TG_ROUTER_SYN_LOST | TG_ROUTER_SYN_REFUSED));

	word |= last & TG_ROUTER_SYN_LOST;
	if (verdict != TG_ROUTER_PASS)
		word |= TG_ROUTER_SYN_REFUSED;
	if (known || !(last & TG_ROUTER_SYN_SET) || last & TG_ROUTER_SYN_REFUSED)
		return word;
	return tg_router_syn_lost(word);
}

static __always_inline enum tg_router_attempt
tg_router_attempt_of(__u64 last, __u64 word)
{
	if ((last & ~(TG_ROUTER_SYN_LOST | TG_ROUTER_SYN_REFUSED)) != word)
		return TG_ROUTER_FIRST;
	return last & TG_ROUTER_SYN_REFUSED ? TG_ROUTER_AGAIN :
					      TG_ROUTER_ADMITTED;
}

/*
 * A SYN has become a connection of this tuple: it passes no more than once. Who sends it
 * again, to open the same connection anew, comes for the first time. Which SYN it was
 * the server has said: a client may acknowledge with another sequence number.
 */
static __always_inline void tg_router_forget_syn(const struct tg_packet *p,
						 __u32 isn)
{
	__u64 hash = tg_hash_syn_of(p, isn), last;
	__u64 *at = tg_router_at(&tg_router_syns,
				 hash >> 32 & TG_ROUTER_NOTE_MASK);

	if (!at)
		return;
	last = READ_ONCE(*at);
	if ((last & ~TG_ROUTER_SYN_LOST) == tg_router_syn_word(hash))
		__sync_val_compare_and_swap(at, last, last & TG_ROUTER_SYN_LOST);
}

/* A SYN of a client's; `place`: of its destination, where that is known. */
static __always_inline enum tg_router_verdict
tg_router_syn(const struct tg_packet *p, __u32 ifindex, __u32 *place)
{
	struct tg_router_syn syn = { .p = p, .ifindex = ifindex };
	enum tg_router_verdict verdict;
	struct tg_router_key key;
	const __u32 *known;
	__u64 last, word, next, *at;

	tg_router_key_of(&key, p->dst, p->dport);
	if (!tg_router_wants(&key))
		return TG_ROUTER_PASS;
	known = bpf_map_lookup_elem(&tg_router_places, &key);
	syn.d = known ? tg_router_at(&tg_router_counts, *known) : 0;
	if (!syn.d) {
		tg_router_lose(TG_ROUTER_UNKNOWN);
		return TG_ROUTER_PASS;
	}
	syn.place = *place = *known;
	syn.key = tg_hash_syn(p);
	at = tg_router_at(&tg_router_syns, syn.key >> 32 & TG_ROUTER_NOTE_MASK);
	last = at ? READ_ONCE(*at) : 0;
	word = tg_router_syn_word(syn.key);
	syn.attempt = tg_router_attempt_of(last, word);
	syn.silent = tg_router_syn_in_doubt(last);
	tg_router_count(syn.attempt == TG_ROUTER_FIRST ? &syn.d->counts.syns :
							 &syn.d->counts.repeated,
			1);
	verdict = tg_router_verdict(&syn);
	next = tg_router_syn_next(last, word, verdict);
	/* another CPU was faster: what it wrote is lost */
	if (at && next != last &&
	    __sync_val_compare_and_swap(at, last, next) != last)
		WRITE_ONCE(*at, tg_router_syn_lost(next));
	return verdict;
}

/* The SYN-ACK of a server's. */
static __always_inline void tg_router_syn_ack(const struct tg_packet *p,
					      __u64 now_ns)
{
	__u64 fingerprint = tg_hash_flow(p, 1), old;
	__u32 units = now_ns >> TG_ROUTER_SEEN_SHIFT;
	struct tg_router_note *note;
	struct tg_router_key key;
	struct tg_router_way way;

	tg_router_key_of(&key, p->src, p->sport);
	if (!tg_router_sampled(fingerprint) || !tg_router_wants(&key))
		return;
	if (tg_router_find(fingerprint, &way)) {
		/*
		 * The same SYN-ACK: its handshake is proved, and a note would let
		 * another SYN of this tuple pass. Else it is another connection.
		 */
		if (READ_ONCE(way.flow->sent) == p->seq + 1)
			return;
		tg_router_end(way.flow);
		tg_router_over(&way, fingerprint, now_ns);
	}
	note = tg_router_note_of(fingerprint);
	if (!note)
		return;
	old = READ_ONCE(note->fingerprint);
	if (old && old != fingerprint &&
	    units - READ_ONCE(note->seen) < TG_ROUTER_NOTE_UNITS)
		tg_router_lose(TG_ROUTER_PENDING);
	note->isn = p->seq;
	note->client_isn = p->ack - 1;
	note->seen = units;
	WRITE_ONCE(note->fingerprint, fingerprint);
}

/* 1: this packet acknowledges the SYN-ACK that was noted, and nothing more. */
static __always_inline int tg_router_proves(__u64 fingerprint,
					    const struct tg_packet *p)
{
	struct tg_router_note *note = tg_router_note_of(fingerprint);
	__u32 isn;

	if (!note || !(p->flags & TG_TCP_ACK) || p->flags & TG_TCP_RST ||
	    READ_ONCE(note->fingerprint) != fingerprint ||
	    READ_ONCE(note->isn) + 1 != p->ack)
		return 0;
	isn = READ_ONCE(note->client_isn);
	if (__sync_val_compare_and_swap(&note->fingerprint, fingerprint, 0) !=
	    fingerprint)
		return 0;
	tg_router_forget_syn(p, isn);
	return 1;
}

/* A packet that comes from the clients; `place`: of its destination, but where it only passes. */
static __always_inline enum tg_router_verdict
tg_router_ingress(const struct tg_packet *p, __u32 ifindex, __u32 *place)
{
	__u64 fingerprint, now_ns, before_ns;
	struct tg_router_way way;

	if (p->flags & TG_TCP_SYN)
		return tg_is_syn(p) ? tg_router_syn(p, ifindex, place) :
				      TG_ROUTER_PASS;
	fingerprint = tg_hash_flow(p, 0);
	now_ns = bpf_ktime_get_ns();
	if (!tg_router_find(fingerprint, &way) &&
	    (!tg_router_proves(fingerprint, p) ||
	     !tg_router_open(&way, fingerprint, p, now_ns)))
		return TG_ROUTER_PASS;
	before_ns = way.flow->began_ns;
	if (tg_router_client(way.flow, p, now_ns)) {
		tg_router_over(&way, fingerprint, now_ns);
		return TG_ROUTER_PASS;
	}
	/* an exchange begins, the first of this second */
	if (!p->payload || way.flow->began_ns != now_ns ||
	    before_ns >> TG_ROUTER_SEEN_SHIFT == now_ns >> TG_ROUTER_SEEN_SHIFT)
		return TG_ROUTER_PASS;
	*place = way.flow->place;
	return TG_ROUTER_ASKED;
}

/* A packet that goes to the clients. */
static __always_inline void tg_router_egress(const struct tg_packet *p)
{
	__u64 fingerprint, now_ns = bpf_ktime_get_ns();
	struct tg_router_way way;

	if (p->flags & TG_TCP_SYN) {
		if (p->flags & TG_TCP_ACK)
			tg_router_syn_ack(p, now_ns);
		return;
	}
	fingerprint = tg_hash_flow(p, 1);
	if (tg_router_find(fingerprint, &way) &&
	    tg_router_server(way.flow, p, now_ns))
		tg_router_over(&way, fingerprint, now_ns);
}

#endif
