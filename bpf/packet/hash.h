/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The hash of a tuple as the client sends it, keyed by the seed of this boot
 * (policy/contract/hash.h).
 */
#ifndef TG_HASH_H
#define TG_HASH_H

#include "../../policy/contract/hash.h"
#include "packet.h"

/* The client's side first; `word` is what else tells two hashes apart. */
static __always_inline __u64
tg_hash(const struct tg_packet *p, const __be32 *client, const __be32 *server,
	__u32 ports, __u32 word)
{
	__u64 h = tg_nh(client[3], server[3], settings.key[0]) +
		  tg_nh(ports, word, settings.key[1]);

	if (p->ipv6)
		h += tg_nh(client[0], server[0], settings.key[2]) +
		     tg_nh(client[1], server[1], settings.key[3]) +
		     tg_nh(client[2], server[2], settings.key[4]);
	return tg_spread(h ^ settings.key[5]);
}

/* All copies of one SYN have the same key: what a policy remembers. */
static __always_inline __u64 tg_hash_syn_of(const struct tg_packet *p,
					    __u32 isn)
{
	return tg_hash(p, p->src, p->dst, (__u32)p->sport << 16 | p->dport,
		       isn);
}

static __always_inline __u64 tg_hash_syn(const struct tg_packet *p)
{
	return tg_hash_syn_of(p, p->seq);
}

/* The connection, seen from either side. Bit 1 is set: see track/flow.h. */
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
