/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The hash by which names and values of requests are compared with those of
 * rules: SipHash-1-3 (Aumasson, Bernstein: "SipHash: a fast short-input PRF",
 * 2012; one round a word, three at the end) with a key of this boot, byte by
 * byte.
 *
 * Is it good enough? A cookie's value may be a secret that grants priority, and
 * a table holds hashes, not values. SipHash is a pseudorandom function: who does
 * not know the key, and is shown no output, hits the hash of a value that he
 * does not know with 2^-64 a try, however he chooses his tries; there is no way
 * to search off line. NH (packet/hash.h) would not do: its inputs have a fixed size.
 *
 * User space computes the same in bpf/src/text_hash.rs:
 *	k0 = settings.key[2], k1 = settings.key[3]
 *	hash = SipHash-1-3(k0, k1, bytes), and 1 where that is 0
 * since 0 says "any value" in struct tg_cookie_test.
 */
#ifndef TG_TEXT_HASH_H
#define TG_TEXT_HASH_H

#include "../packet/base.h"

struct tg_text {
	__u64 v[4];
	__u64 word;	/* bytes that do not fill a word yet */
	__u32 bytes;	/* so far */
	__u32 pad;
};

static __always_inline __u64 tg_rotate(__u64 x, int bits)
{
	return x << bits | x >> (64 - bits);
}

static __always_inline void tg_text_round(struct tg_text *t)
{
	__u64 a = t->v[0], b = t->v[1], c = t->v[2], d = t->v[3];

	a += b;
	b = tg_rotate(b, 13) ^ a;
	a = tg_rotate(a, 32);
	c += d;
	d = tg_rotate(d, 16) ^ c;
	a += d;
	d = tg_rotate(d, 21) ^ a;
	c += b;
	b = tg_rotate(b, 17) ^ c;
	c = tg_rotate(c, 32);
	t->v[0] = a;
	t->v[1] = b;
	t->v[2] = c;
	t->v[3] = d;
}

static __always_inline void tg_text_begin(struct tg_text *t)
{
	__u64 k0 = settings.key[2], k1 = settings.key[3];

	t->v[0] = k0 ^ 0x736f6d6570736575ULL;
	t->v[1] = k1 ^ 0x646f72616e646f6dULL;
	t->v[2] = k0 ^ 0x6c7967656e657261ULL;
	t->v[3] = k1 ^ 0x7465646279746573ULL;
	t->word = 0;
	t->bytes = 0;
}

static __always_inline void tg_text_byte(struct tg_text *t, __u8 byte)
{
	__u32 at = t->bytes++ & 7;

	t->word |= (__u64)byte << at * 8;
	if (at != 7)
		return;
	t->v[3] ^= t->word;
	tg_text_round(t);
	t->v[0] ^= t->word;
	t->word = 0;
}

/*
 * The hash; the text must begin anew afterwards. Not static: the verifier looks
 * at it once.
 */
__noinline __u64 tg_text_end(struct tg_text *t)
{
	__u64 last, hash;

	if (!t)
		return 1;
	last = t->word | (__u64)t->bytes << 56;
	t->v[3] ^= last;
	tg_text_round(t);
	t->v[0] ^= last;
	t->v[2] ^= 0xff;
#pragma unroll
	for (int i = 0; i < 3; i++)
		tg_text_round(t);
	hash = t->v[0] ^ t->v[1] ^ t->v[2] ^ t->v[3];
	return hash ? hash : 1;
}

#endif
