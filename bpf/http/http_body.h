/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A body over the packets that carry it, of a request or of an answer: how many
 * bytes of each belong to it, and where it ends. Data are stepped over; of a
 * chunked body (RFC 9112, 7.1) only what stands between chunks is read, byte by
 * byte, so that it does not matter where packets cut it.
 *
 *	┌───────────────────────────────────────────────────┐
 *	└► SIZE… ─► EXTENSION… ─► CR ─► LF ─► DATA ─► CR ─► LF
 *	                                └ size 0 ─► trailer lines ─► CR LF: end
 */
#ifndef TG_HTTP_BODY_H
#define TG_HTTP_BODY_H

#include "http_scan.h"

/* Steps in one packet: bytes between chunks, and chunks. */
#define TG_FOLLOW_STEPS_MAX 2048

/* Where a body stands: kept in struct tg_conn between packets. */
struct tg_follow {
	__u64 left;	/* bytes to come, or TG_CHUNKED, TG_TO_CLOSE */
	__u32 chunk;	/* chunked: where in it; 0: at its start */
	__u32 used;	/* out: bytes of this packet that belong to the body */
};

#define TG_FOLLOW_MORE 0	/* the body goes on */
#define TG_FOLLOW_END 1		/* it ends with `used` bytes of this packet */
#define TG_FOLLOW_FAILED 2	/* its end cannot be told */

/* tg_follow.chunk: state above, size or bytes left below. */
#define TG_CHUNK_SHIFT 28
#define TG_CHUNK_MAX ((1U << TG_CHUNK_SHIFT) - 1)	/* bytes of one chunk */

enum tg_chunk_state {
	TG_CHUNK_FIRST,		/* first digit of the size */
	TG_CHUNK_SIZE,
	TG_CHUNK_EXTENSION,
	TG_CHUNK_SIZE_LF,
	TG_CHUNK_DATA,
	TG_CHUNK_DATA_CR,
	TG_CHUNK_DATA_LF,
	TG_CHUNK_LINE,		/* of the trailer, its first byte */
	TG_CHUNK_TRAILER,
	TG_CHUNK_TRAILER_LF,
	TG_CHUNK_END_LF,
	TG_CHUNK_OVER,
	TG_CHUNK_FAILED,
};

struct tg_chunks {
	struct __sk_buff *skb;
	__u32 offset;	/* of the next byte in the frame */
	__u32 bytes;	/* left of the packet */
	__u32 state;	/* enum tg_chunk_state */
	__u32 size;	/* of the chunk, or what is left of it */
};

/* -1: not a hexadecimal digit */
static __always_inline int tg_hex(__u8 c)
{
	__u8 lower = c | 0x20;

	if (tg_is_digit(c))
		return c - '0';
	return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

static __always_inline __u32 tg_chunk_size(struct tg_chunks *k, __u8 c)
{
	int digit = tg_hex(c);

	if (digit >= 0 && k->size > TG_CHUNK_MAX >> 4)
		return TG_CHUNK_FAILED;
	if (digit >= 0) {
		k->size = k->size << 4 | (__u32)digit;
		return TG_CHUNK_SIZE;
	}
	if (k->state == TG_CHUNK_FIRST)
		return TG_CHUNK_FAILED;
	if (c == '\r')
		return TG_CHUNK_SIZE_LF;
	/* white space is that of old servers, which fill up to a width */
	return c == ';' || tg_is_space(c) ? TG_CHUNK_EXTENSION :
					    TG_CHUNK_FAILED;
}

/* A byte between chunks; the state that follows. */
static __always_inline __u32 tg_chunk_byte(struct tg_chunks *k, __u8 c)
{
	switch (k->state) {
	case TG_CHUNK_FIRST:
	case TG_CHUNK_SIZE:
		return tg_chunk_size(k, c);
	case TG_CHUNK_EXTENSION:
		if (c == '\r')
			return TG_CHUNK_SIZE_LF;
		return tg_is_text(c) ? TG_CHUNK_EXTENSION : TG_CHUNK_FAILED;
	case TG_CHUNK_SIZE_LF:
		if (c != '\n')
			return TG_CHUNK_FAILED;
		return k->size ? TG_CHUNK_DATA : TG_CHUNK_LINE;
	case TG_CHUNK_DATA_CR:
		return c == '\r' ? TG_CHUNK_DATA_LF : TG_CHUNK_FAILED;
	case TG_CHUNK_DATA_LF:
		return c == '\n' ? TG_CHUNK_FIRST : TG_CHUNK_FAILED;
	case TG_CHUNK_LINE:
		if (c == '\r')
			return TG_CHUNK_END_LF;
		return tg_is_token(c) ? TG_CHUNK_TRAILER : TG_CHUNK_FAILED;
	case TG_CHUNK_TRAILER:
		if (c == '\r')
			return TG_CHUNK_TRAILER_LF;
		return tg_is_text(c) ? TG_CHUNK_TRAILER : TG_CHUNK_FAILED;
	case TG_CHUNK_TRAILER_LF:
		return c == '\n' ? TG_CHUNK_LINE : TG_CHUNK_FAILED;
	case TG_CHUNK_END_LF:
		return c == '\n' ? TG_CHUNK_OVER : TG_CHUNK_FAILED;
	}
	return TG_CHUNK_FAILED;
}

static __always_inline void tg_chunk_skip(struct tg_chunks *k)
{
	__u32 there = k->size < k->bytes ? k->size : k->bytes;

	k->size -= there;
	k->offset += there;
	k->bytes -= there;
	if (!k->size)
		k->state = TG_CHUNK_DATA_CR;
}

static long tg_chunk_step(__u32 i, struct tg_chunks *k)
{
	__u8 c;

	if (!k->bytes)
		return 1;
	if (k->state == TG_CHUNK_DATA) {
		tg_chunk_skip(k);
		return 0;
	}
	if (bpf_skb_load_bytes(k->skb, k->offset, &c, 1)) {
		k->state = TG_CHUNK_FAILED;
		return 1;
	}
	k->offset++;
	k->bytes--;
	k->state = tg_chunk_byte(k, c);
	return k->state >= TG_CHUNK_OVER;
}

static __always_inline int tg_follow_chunks(struct __sk_buff *skb, __u32 offset,
					    __u32 bytes, struct tg_follow *f)
{
	struct tg_chunks k = {
		.skb = skb,
		.offset = offset,
		.bytes = bytes,
		.state = f->chunk >> TG_CHUNK_SHIFT,
		.size = f->chunk & TG_CHUNK_MAX,
	};

	bpf_loop(TG_FOLLOW_STEPS_MAX, tg_chunk_step, &k, 0);
	f->used = bytes - k.bytes;
	f->chunk = k.state << TG_CHUNK_SHIFT | (k.size & TG_CHUNK_MAX);
	if (k.state == TG_CHUNK_OVER)
		return TG_FOLLOW_END;
	return k.bytes || k.state == TG_CHUNK_FAILED ? TG_FOLLOW_FAILED :
						       TG_FOLLOW_MORE;
}

/*
 * The `bytes` of a packet that begin `offset` bytes into its frame are the next
 * of the connection. Returns TG_FOLLOW_…; a body of no bytes ends at once.
 */
static __always_inline int tg_follow(struct __sk_buff *skb, __u32 offset,
				     __u32 bytes, struct tg_follow *f)
{
	if (f->left == TG_CHUNKED)
		return tg_follow_chunks(skb, offset, bytes, f);
	f->used = bytes;
	if (f->left == TG_TO_CLOSE)
		return TG_FOLLOW_MORE;
	if (f->left < bytes)
		f->used = f->left;
	f->left -= f->used;
	return f->left ? TG_FOLLOW_MORE : TG_FOLLOW_END;
}

#endif
