/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * SipHash-1-3 (Aumasson, Bernstein: "SipHash: a fast short-input PRF", 2012,
 * with one and three rounds as in the kernel's hsiphash users), keyed by the
 * seed of this boot, over a tuple as the client sends it.
 */
#ifndef TG_HASH_H
#define TG_HASH_H

#include "packet.h"

struct tg_sip {
	__u64 v0, v1, v2, v3;
};

static __always_inline __u64 tg_rotl(__u64 x, int bits)
{
	return x << bits | x >> (64 - bits);
}

static __always_inline void tg_sip_round(struct tg_sip *s)
{
	s->v0 += s->v1;
	s->v1 = tg_rotl(s->v1, 13) ^ s->v0;
	s->v0 = tg_rotl(s->v0, 32);
	s->v2 += s->v3;
	s->v3 = tg_rotl(s->v3, 16) ^ s->v2;
	s->v0 += s->v3;
	s->v3 = tg_rotl(s->v3, 21) ^ s->v0;
	s->v2 += s->v1;
	s->v1 = tg_rotl(s->v1, 17) ^ s->v2;
	s->v2 = tg_rotl(s->v2, 32);
}

static __always_inline void tg_sip_word(struct tg_sip *s, __u64 word)
{
	s->v3 ^= word;
	tg_sip_round(s);
	s->v0 ^= word;
}

static __always_inline __u64 tg_pair(__be32 high, __be32 low)
{
	return (__u64)high << 32 | low;
}

/* The client's side first; `word` is what else tells two hashes apart. */
static __always_inline __u64
tg_hash(const struct tg_packet *p, const __be32 *client, const __be32 *server,
	__u32 ports, __u32 word)
{
	__u64 k0 = settings.seed[0], k1 = settings.seed[1];
	struct tg_sip s = {
		.v0 = k0 ^ 0x736f6d6570736575ULL,
		.v1 = k1 ^ 0x646f72616e646f6dULL,
		.v2 = k0 ^ 0x6c7967656e657261ULL,
		.v3 = k1 ^ 0x7465646279746573ULL,
	};

	if (p->ipv6) {
		tg_sip_word(&s, tg_pair(client[0], client[1]));
		tg_sip_word(&s, tg_pair(client[2], client[3]));
		tg_sip_word(&s, tg_pair(server[0], server[1]));
		tg_sip_word(&s, tg_pair(server[2], server[3]));
	} else {
		tg_sip_word(&s, tg_pair(client[3], server[3]));
	}
	tg_sip_word(&s, tg_pair(ports, word));
	s.v2 ^= 0xff;
	tg_sip_round(&s);
	tg_sip_round(&s);
	tg_sip_round(&s);
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

/* All copies of one SYN have the same key: what a policy remembers. */
static __always_inline __u64 tg_hash_syn(const struct tg_packet *p)
{
	return tg_hash(p, p->src, p->dst, (__u32)p->sport << 16 | p->dport,
		       p->seq);
}

/* The connection, seen from either side. Never 0 or 1: see struct tg_flow. */
static __always_inline __u64 tg_hash_flow(const struct tg_packet *p, int egress)
{
	__u64 hash;

	if (egress)
		hash = tg_hash(p, p->dst, p->src,
			       (__u32)p->dport << 16 | p->sport, 0);
	else
		hash = tg_hash(p, p->src, p->dst,
			       (__u32)p->sport << 16 | p->dport, 0);
	return hash | 2;
}

#endif
