/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Who was refused in the last minute: a Bloom filter (1970) in blocks of one cache
 * line (Putze, Sanders, Singler 2007), and one such filter for each slice of time.
 * Kernel and gateways note and find by this code; each has slices of its own.
 *
 * A client that was refused is found, whoever else was. Another one is found by
 * chance. With a line for 10 clients of a slice, a half has 256 bits, of which 10 * 4
 * are set, so 8 bits are set by chance in 0.15^8 of questions; as lines get 10 clients
 * on average only, it is 5 of 1,000,000. A question about a minute, 32 services and
 * both modes is one about 15 * 64 slices: 0.5 %. The hash is keyed, so that nobody can
 * look like somebody else.
 *
 * Several CPUs write to one line at once: no bit is lost.
 */
#ifndef TG_LATELY_H
#define TG_LATELY_H

#include "../contract/hash.h"
#include "lease.h"

#define TG_LATELY_WORDS 8	/* a line: 64 bytes */

/*
 * Slices of the kernel: one that is written to, 14 before it, and one that is cleared
 * for the next. The daemon's heartbeat turns them. While it is late, a slice lasts
 * longer, so the 14 whole ones always reach back for a minute. Without a lease nobody
 * is refused: a slice has ended when the lease did, however late the heartbeat is.
 */
#define TG_LATELY_SLICES 16
#define TG_LATELY_SPAN_NS (60 * TG_NS_PER_S / (TG_LATELY_SLICES - 2) + 1)
#define TG_LATELY_STEPS 8	/* heartbeats in which a slice is cleared */

struct tg_lately_line {
	tg_u64 word[TG_LATELY_WORDS];
};
TG_ASSERT(sizeof(struct tg_lately_line) == 64);

struct tg_lately_turn {
	tg_u32 slice;		/* that is written to */
	tg_u32 cleared;		/* lines of the next one */
	tg_u64 busy;		/* 1: a heartbeat is at work */
	tg_u64 begin_ns[TG_LATELY_SLICES];	/* 0: never */
};

/* The bit of a hash that says: only computed. No line depends on it. */
#define TG_LATELY_SHADOW (1ULL << 63)

/* A client and the service that refused it: as tg_hash_client(). */
TG_INLINE tg_u64 tg_lately_hash(const tg_u32 *addr, tg_u64 service,
				const volatile tg_u64 *key)
{
	return tg_hash_client(addr, service, key) & ~TG_LATELY_SHADOW;
}

/*
 * The line of a slice that has mask + 1 of them, a power of two. It is known before
 * the verdict is, so a host can fetch it early.
 */
TG_INLINE tg_u32 tg_lately_line_of(tg_u64 hash, tg_u32 mask)
{
	return (tg_u32)((hash << 1) * 0x9e3779b97f4a7c15ULL >> 40) & mask;
}

/*
 * Bits of a half: 2 say which of its words, 6 each which bit of that. What was only
 * computed is in the word beside, so that neither is taken for the other.
 */
TG_INLINE tg_u64 tg_lately_half(tg_u64 hash, int half)
{
	return hash >> (half * 26);
}

TG_INLINE tg_u32 tg_lately_word(tg_u64 hash, int half)
{
	tg_u64 word = tg_lately_half(hash, half) ^ hash >> 63;

	return half * (TG_LATELY_WORDS / 2) + (word & 3);
}

TG_INLINE tg_u64 tg_lately_bits(tg_u64 hash, int half)
{
	tg_u64 own = tg_lately_half(hash, half) >> 2;

	return 1ULL << (own & 63) | 1ULL << (own >> 6 & 63) |
	       1ULL << (own >> 12 & 63) | 1ULL << (own >> 18 & 63);
}

/* 1: it was noted in this line. */
TG_INLINE int tg_lately_has(const struct tg_lately_line *line, tg_u64 hash)
{
	int has = 1;

	for (int half = 0; half < 2; half++) {
		const volatile tg_u64 *word =
			&line->word[tg_lately_word(hash, half)];
		tg_u64 bits = tg_lately_bits(hash, half);

		has &= (*word & bits) == bits;
	}
	return has;
}

TG_INLINE void tg_lately_note(struct tg_lately_line *line, tg_u64 hash)
{
	/* most who are refused were refused a moment ago, too */
	if (tg_lately_has(line, hash))
		return;
	for (int half = 0; half < 2; half++)
		__sync_fetch_and_or(&line->word[tg_lately_word(hash, half)],
				    tg_lately_bits(hash, half));
}

TG_INLINE tg_u32 tg_lately_next(tg_u32 slice)
{
	return (slice + 1) & (TG_LATELY_SLICES - 1);
}

/*
 * A heartbeat of slices that have `lines` each, the last one before it at `last_ns`:
 * how many lines of the next slice are to be cleared now, from turn->cleared on; the
 * caller clears and counts them, and if all are clear, calls this again. Zero: all are;
 * then the next one begins if the present one has lasted long enough.
 * After an outage of the daemon it begins at once, and where nothing was noted any more:
 * what is refused now must not be in one slice with what was refused before. The caller
 * renews the lease after this.
 */
TG_INLINE tg_u32 tg_lately_beat(struct tg_lately_turn *turn, tg_u32 lines,
				tg_u64 last_ns, tg_u64 now_ns)
{
	tg_u32 slice = turn->slice & (TG_LATELY_SLICES - 1);
	tg_u32 next = tg_lately_next(slice);
	tg_u64 end_ns = tg_min(last_ns + TG_LEASE_END_NS, now_ns);

	if (!turn->begin_ns[slice])
		turn->begin_ns[slice] = now_ns;
	if (end_ns < turn->begin_ns[slice])
		end_ns = turn->begin_ns[slice];
	if (turn->cleared < lines)
		return end_ns < now_ns ? lines - turn->cleared :
					 tg_min(lines - turn->cleared,
						lines / TG_LATELY_STEPS + 1);
	if (end_ns >= now_ns &&
	    tg_elapsed_ns(now_ns, turn->begin_ns[slice]) < TG_LATELY_SPAN_NS)
		return 0;
	turn->begin_ns[next] = end_ns;
	*(volatile tg_u32 *)&turn->slice = next;
	turn->cleared = 0;
	return 0;
}

#endif
