/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The kernel that the native build sees: maps, sockets, clock, dice and packet
 * memory, all set by the test. Any helper that can fail in the kernel can be
 * told to fail here, by the number of its call.
 *
 * The packet lies directly before a page that nobody may touch, below 4 GiB,
 * since a context holds 32-bit pointers: a read past its end is a crash.
 */
#ifndef TG_NATIVE_KERNEL_H
#define TG_NATIVE_KERNEL_H

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define NATIVE_FRAME_MAX 81920	/* bytes */
#define NATIVE_PAGE 4096
#define NATIVE_CALLS_MAX 64	/* fallible helper calls in one run */
#ifndef NATIVE_MAPS
#define NATIVE_MAPS 27
#endif
#define NATIVE_FREE 0xff	/* all of the key of an entry that was deleted */
#define NATIVE_ENOMEM (-12)
#define NATIVE_FAIL_ALL 0xffffffffU
#define NATIVE_FLOW 2ULL	/* set in the word of every flow (track/flow.h) */
#define NATIVE_SEEN (1ULL << 16)	/* in it: when it was seen, the lowest bit */

/* What a call was, for the trace: maps by their place in native_maps, and */
enum native_call {
	NATIVE_CALL_SOCKET = 32,
	NATIVE_CALL_TO_TCP,
	NATIVE_CALL_RING,
	NATIVE_CALL_TAIL,
	NATIVE_CALL_PULL,
	NATIVE_CALL_LOAD,
	NATIVE_CALL_STORE,
	NATIVE_CALL_UPDATE,
	NATIVE_CALL_CLONE,
	NATIVE_CALL_TO_REQUEST,
	NATIVE_CALL_TO_TIME_WAIT,
	NATIVE_CALL_COOKIE,
};

/* What a handshake is ended by: addresses of IPv4 in the last four bytes. */
struct native_cookie {
	__u8 src[16];
	__u8 dst[16];
	__be16 sport;
	__be16 dport;
	__be32 seq;
	__be32 ack;
};

struct native_map {
	const void *map;
	const char *name;
	__u32 type;
	__u32 key_size;
	__u32 value_size;
	__u32 max;
	__u32 used;		/* hash and trie: entries */
	__u32 from;		/* entries that were looked at: from, before */
	__u32 before;
	__u8 *keys;
	__u8 *values;
};

static struct native {
	struct native_map maps[NATIVE_MAPS];
	__u64 now_ns;
	__u32 random[2];	/* random numbers: first and second */
	__u32 thrown;
	__u32 fail_at;		/* number of the call that fails; 0: none; or
				 * NATIVE_FAIL_ALL */
	__u32 calls;
	__u32 swaps;		/* of words of flows, in this run */
	__u32 lose_at;		/* number of the one that is lost; 0: none */
	__u8 trace[NATIVE_CALLS_MAX];
	struct bpf_sock socket;	/* state 0: none */
	struct bpf_sock listener;	/* behind one in TIME_WAIT; as above */
	struct tcp_timewait_sock time_wait;
	struct native_cookie cookie;	/* the one that is good */
	struct tcp_sock tcp;
	struct tcp_request_sock request;
	void (*sent)(void);	/* told of a clone that goes out; may be NULL */
	int held;		/* locks, sockets and samples not given back */
	int redirected;		/* 1 + interface; 0: not */
	__u32 counts_row;	/* 1 + last row of tg_counts; 0: none */
	__u8 *guard;		/* the page that nobody may touch */
	__u8 frame[NATIVE_FRAME_MAX];
	__u32 length;		/* of the frame */
	__u32 linear;		/* bytes that can be read directly */
	__u32 tail_min;		/* bytes of which a tail cannot be cut */
	struct tg_sample sample;
	void *ctx;
} native;

/*
 * Another CPU sees a packet of the same connection just before this one changes
 * its word: what was read is not there any more, and the swap is lost.
 */
void native_swapping(__u64 *word)
{
	if (*word & NATIVE_FLOW && ++native.swaps == native.lose_at)
		*word ^= NATIVE_SEEN;
}

/* Counts a call; 1 if it is the one that must fail. */
static int native_fails(__u8 what)
{
	if (native.calls < NATIVE_CALLS_MAX)
		native.trace[native.calls] = what;
	native.calls++;
	return native.calls == native.fail_at ||
	       native.fail_at == NATIVE_FAIL_ALL;
}

static struct native_map *native_map(const void *map)
{
	for (int i = 0; i < NATIVE_MAPS; i++)
		if (native.maps[i].map == map)
			return &native.maps[i];
	abort();	/* a map that host.c does not know */
}

static int native_bits_equal(const __u8 *a, const __u8 *b, __u32 bits)
{
	__u32 whole = bits / 8, rest = bits % 8;

	if (memcmp(a, b, whole))
		return 0;
	return !rest || !((a[whole] ^ b[whole]) >> (8 - rest));
}

static void *native_trie(const struct native_map *m, const __u8 *key)
{
	__u8 *best = NULL;
	__u32 best_bits = 0, bits_max;

	memcpy(&bits_max, key, sizeof(bits_max));
	for (__u32 i = 0; i < m->used; i++) {
		const __u8 *entry = m->keys + i * m->key_size;
		__u32 bits;

		memcpy(&bits, entry, sizeof(bits));
		if ((!best || bits > best_bits) && bits <= bits_max &&
		    native_bits_equal(entry + 4, key + 4, bits)) {
			best = m->values + i * m->value_size;
			best_bits = bits;
		}
	}
	return best;
}

static void *native_hash(const struct native_map *m, const __u8 *key)
{
	for (__u32 i = 0; i < m->used; i++)
		if (!memcmp(m->keys + i * m->key_size, key, m->key_size))
			return m->values + i * m->value_size;
	return NULL;
}

/* The value, whatever is told to fail: for host.c. */
static void *native_value(const void *map, const void *key)
{
	struct native_map *m = native_map(map);
	__u32 index;

	if (m->type == BPF_MAP_TYPE_HASH)
		return native_hash(m, key);
	if (m->type == BPF_MAP_TYPE_LPM_TRIE)
		return native_trie(m, key);
	memcpy(&index, key, sizeof(index));
	if (index >= m->max)
		return NULL;
	if (m->from >= m->before || index < m->from)
		m->from = index;
	if (m->before <= index)
		m->before = index + 1;
	return m->values + (__u64)index * m->value_size;
}

/* Clears what was looked at: the rest is still zero. */
static void native_clear(struct native_map *m)
{
	if (m->before > m->from)
		memset(m->values + (__u64)m->from * m->value_size, 0,
		       (__u64)(m->before - m->from) * m->value_size);
	m->used = m->from = m->before = 0;
}

static void *native_entry(const void *map, __u32 index)
{
	return native_value(map, &index);
}

void *bpf_map_lookup_elem(const void *map, const void *key)
{
	struct native_map *m = native_map(map);

	if (native_fails(m - native.maps))
		return NULL;
	if (m->type == BPF_MAP_TYPE_ARRAY_OF_MAPS)
		return (void *)native.maps[NATIVE_MAPS - 1].map;
	if (!strcmp(m->name, "tg_counts")) {
		memcpy(&native.counts_row, key, sizeof(native.counts_row));
		native.counts_row++;
	}
	return native_value(map, key);
}

/* The place of a key in a hash; -1: none. */
static int native_at(const struct native_map *m, const void *key)
{
	for (__u32 i = 0; i < m->used; i++)
		if (!memcmp(m->keys + i * m->key_size, key, m->key_size))
			return i;
	return -1;
}

/* Inserts only, and never moves what is there: others hold pointers to it. */
long bpf_map_update_elem(const void *map, const void *key, const void *value,
			 __u64 flags)
{
	struct native_map *m = native_map(map);
	__u8 none[64];
	int at;

	memset(none, NATIVE_FREE, sizeof(none));
	if (flags != 1 || m->key_size > sizeof(none))
		abort();
	if (native_fails(NATIVE_CALL_UPDATE))
		return NATIVE_ENOMEM;
	if (native_at(m, key) >= 0)
		return -17;
	at = native_at(m, none);
	if (at < 0 && m->used == m->max)
		return -7;
	if (at < 0)
		at = m->used++;
	memcpy(m->keys + at * m->key_size, key, m->key_size);
	memcpy(m->values + at * m->value_size, value, m->value_size);
	return 0;
}

long bpf_map_delete_elem(const void *map, const void *key)
{
	struct native_map *m = native_map(map);
	int at = native_at(m, key);

	if (at < 0)
		return -2;
	memset(m->keys + at * m->key_size, NATIVE_FREE, m->key_size);
	return 0;
}

long bpf_for_each_map_elem(const void *map, void *callback, void *ctx,
			   __u64 flags)
{
	long (*one)(const void *, void *, void *, void *) = callback;
	struct native_map *m = native_map(map);
	__u8 none[64];

	(void)flags;
	memset(none, NATIVE_FREE, sizeof(none));
	for (__u32 i = 0; i < m->used; i++)
		if (memcmp(m->keys + i * m->key_size, none, m->key_size))
			one(map, m->keys + i * m->key_size,
			    m->values + i * m->value_size, ctx);
	return m->used;
}

void bpf_spin_lock(struct bpf_spin_lock *lock)
{
	lock->val++;
	native.held++;
}

void bpf_spin_unlock(struct bpf_spin_lock *lock)
{
	lock->val--;
	native.held--;
}

__u64 bpf_ktime_get_ns(void)
{
	return native.now_ns;
}

__u64 bpf_ktime_get_coarse_ns(void)
{
	return native.now_ns;
}

__u32 bpf_get_prandom_u32(void)
{
	return native.random[native.thrown++ & 1];
}

long bpf_loop(__u32 times, void *callback, void *ctx, __u64 flags)
{
	long (*one)(__u32, void *) = callback;

	for (__u32 i = 0; i < times; i++)
		if (one(i, ctx))
			return i + 1;
	(void)flags;
	return times;
}

void *bpf_ringbuf_reserve(void *ring, __u64 size, __u64 flags)
{
	(void)ring;
	(void)flags;
	if (size != sizeof(native.sample))
		abort();
	if (native_fails(NATIVE_CALL_RING))
		return NULL;
	native.held++;
	return &native.sample;
}

void bpf_ringbuf_submit(void *data, __u64 flags)
{
	(void)data;
	(void)flags;
	native.held--;
}

struct bpf_sock *bpf_skc_lookup_tcp(void *ctx, struct bpf_sock_tuple *tuple,
				    __u32 size, __u64 netns, __u64 flags)
{
	__u16 port = size == sizeof(tuple->ipv4) ? tuple->ipv4.sport :
						    tuple->ipv6.sport;
	struct bpf_sock *sk = &native.socket;

	(void)ctx;
	(void)netns;
	(void)flags;
	if (size != sizeof(tuple->ipv4) && size != sizeof(tuple->ipv6))
		abort();
	if (!port && sk->state == 6 /* TIME_WAIT */)
		sk = &native.listener;
	if (native_fails(NATIVE_CALL_SOCKET) || !sk->state)
		return NULL;
	native.held++;
	return sk;
}

struct tcp_sock *bpf_skc_to_tcp_sock(void *sk)
{
	(void)sk;
	return native_fails(NATIVE_CALL_TO_TCP) ? NULL : &native.tcp;
}

struct tcp_request_sock *bpf_skc_to_tcp_request_sock(void *sk)
{
	(void)sk;
	return native_fails(NATIVE_CALL_TO_REQUEST) ? NULL : &native.request;
}

struct tcp_timewait_sock *bpf_skc_to_tcp_timewait_sock(void *sk)
{
	(void)sk;
	return native_fails(NATIVE_CALL_TO_TIME_WAIT) ? NULL :
							&native.time_wait;
}

long bpf_sk_release(void *sk)
{
	if (sk != &native.socket && sk != &native.listener)
		abort();
	native.held--;
	return 0;
}

long bpf_redirect(__u32 ifindex, __u64 flags)
{
	(void)flags;
	native.redirected = 1 + ifindex;
#ifdef TG_AT_XDP
	return XDP_REDIRECT;
#else
	return 7;	/* TC_ACT_REDIRECT */
#endif
}

/* Packet memory: shown to the hook up to `linear`, kept whole in `frame`. */
static void native_show(void)
{
	__u8 *data = native.guard - native.linear;

	memcpy(data, native.frame, native.linear);
#ifdef TG_AT_XDP
	((struct xdp_md *)native.ctx)->data = (__u64)data;
	((struct xdp_md *)native.ctx)->data_end = (__u64)native.guard;
#else
	((struct __sk_buff *)native.ctx)->data = (__u64)data;
	((struct __sk_buff *)native.ctx)->data_end = (__u64)native.guard;
	((struct __sk_buff *)native.ctx)->len = native.length;
#endif
}

static void native_take_back(void)
{
	memcpy(native.frame, native.guard - native.linear, native.linear);
}

static void native_set_length(__u32 length)
{
	native_take_back();
	if (length > native.length)
		memset(native.frame + native.length, 0, length - native.length);
	native.length = length;
	if (native.linear > length)
		native.linear = length;
	native_show();
}

__u64 bpf_xdp_get_buff_len(struct xdp_md *ctx)
{
	(void)ctx;
	return native.length;
}

long bpf_xdp_adjust_tail(struct xdp_md *ctx, int delta)
{
	(void)ctx;
	if (native_fails(NATIVE_CALL_TAIL))
		return NATIVE_ENOMEM;
	native_set_length(native.length + delta);
	return 0;
}

long bpf_skb_pull_data(struct __sk_buff *skb, __u32 length)
{
	(void)skb;
	if (native_fails(NATIVE_CALL_PULL) || length > native.length)
		return NATIVE_ENOMEM;
	native_take_back();
	if (native.linear < length)
		native.linear = length;
	native_show();
	return 0;
}

long bpf_skb_change_tail(struct __sk_buff *skb, __u32 length, __u64 flags)
{
	(void)skb;
	(void)flags;
	if (native_fails(NATIVE_CALL_TAIL) || length < native.tail_min)
		return NATIVE_ENOMEM;
	native_set_length(length);
	return 0;
}

static long native_load(__u32 offset, void *to, __u32 length)
{
	if (native_fails(NATIVE_CALL_LOAD) ||
	    (__u64)offset + length > native.length)
		return NATIVE_ENOMEM;
	native_take_back();
	memcpy(to, native.frame + offset, length);
	return 0;
}

long bpf_skb_load_bytes(const void *skb, __u32 offset, void *to, __u32 length)
{
	(void)skb;
	return native_load(offset, to, length);
}

long bpf_xdp_load_bytes(struct xdp_md *ctx, __u32 offset, void *to,
			__u32 length)
{
	(void)ctx;
	return native_load(offset, to, length);
}

static long native_store(__u32 offset, const void *from, __u32 length)
{
	if (native_fails(NATIVE_CALL_STORE) || offset + length > native.length)
		return NATIVE_ENOMEM;
	native_take_back();
	memcpy(native.frame + offset, from, length);
	native_show();
	return 0;
}

long bpf_skb_store_bytes(struct __sk_buff *skb, __u32 offset, const void *from,
			 __u32 length, __u64 flags)
{
	(void)skb;
	(void)flags;
	return native_store(offset, from, length);
}

long bpf_xdp_store_bytes(struct xdp_md *ctx, __u32 offset, void *from,
			 __u32 length)
{
	(void)ctx;
	return native_store(offset, from, length);
}

/* The clone goes out while the program waits. */
long bpf_clone_redirect(struct __sk_buff *skb, __u32 ifindex, __u64 flags)
{
	(void)ifindex;
	(void)flags;
	if (native_fails(NATIVE_CALL_CLONE))
		return NATIVE_ENOMEM;
	if (native.held || skb != native.ctx)
		abort();
	native_take_back();
	if (native.sent)
		native.sent();
	native_show();
	return 0;
}

/* The first `length` bytes of frame, of which `linear` can be read directly. */
static void native_put(__u32 length, __u32 linear)
{
	native.length = length;
	native.linear = linear < length ? linear : length;
	native_show();
}

static void native_memory(void)
{
	__u32 size = NATIVE_FRAME_MAX + NATIVE_PAGE;
	__u8 *area = mmap(NULL, size, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);

	if (area == MAP_FAILED)
		abort();
	native.guard = area + NATIVE_FRAME_MAX;
	if (mprotect(native.guard, NATIVE_PAGE, PROT_NONE))
		abort();
}

static void native_register(struct native_map m)
{
	static int count;

	m.keys = calloc(m.max, m.key_size);
	m.values = calloc(m.max, m.value_size);
	if (count == NATIVE_MAPS || !m.keys || !m.values)
		abort();
	native.maps[count++] = m;
}

/* Adds an entry to a hash or a trie. */
static void native_add(const void *map, const void *key, const void *value)
{
	struct native_map *m = native_map(map);

	if (m->used == m->max)
		abort();
	memcpy(m->keys + m->used * m->key_size, key, m->key_size);
	memcpy(m->values + m->used * m->value_size, value, m->value_size);
	m->used++;
}

#endif
