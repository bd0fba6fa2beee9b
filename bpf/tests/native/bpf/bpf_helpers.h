/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Stands in for libbpf's header in the native build: the helpers that the hooks
 * call, as ordinary functions (kernel.h), and the map macros, readable at run
 * time.
 */
#ifndef TG_NATIVE_HELPERS_H
#define TG_NATIVE_HELPERS_H

#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#define __noinline __attribute__((noinline))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define SEC(name)
#define barrier_var(var) asm volatile("" : "+r"(var))
#define __uint(name, value) int (*name)[value]
#define __type(name, value) typeof(value) *name
#define __array(name, value) typeof(value) *name[0]

void *bpf_map_lookup_elem(const void *map, const void *key);
long bpf_map_update_elem(const void *map, const void *key, const void *value,
			 __u64 flags);
long bpf_map_delete_elem(const void *map, const void *key);
long bpf_for_each_map_elem(const void *map, void *callback, void *ctx,
			   __u64 flags);
void bpf_spin_lock(struct bpf_spin_lock *lock);
void bpf_spin_unlock(struct bpf_spin_lock *lock);
__u64 bpf_ktime_get_ns(void);
__u64 bpf_ktime_get_coarse_ns(void);
__u32 bpf_get_prandom_u32(void);
long bpf_loop(__u32 times, void *callback, void *ctx, __u64 flags);
void *bpf_ringbuf_reserve(void *ring, __u64 size, __u64 flags);
void bpf_ringbuf_submit(void *data, __u64 flags);

struct tcp_sock;
struct bpf_sock *bpf_skc_lookup_tcp(void *ctx, struct bpf_sock_tuple *tuple,
				    __u32 size, __u64 netns, __u64 flags);
struct tcp_sock *bpf_skc_to_tcp_sock(void *sk);
struct tcp_request_sock;
struct tcp_request_sock *bpf_skc_to_tcp_request_sock(void *sk);
struct tcp_timewait_sock *bpf_skc_to_tcp_timewait_sock(void *sk);
long bpf_sk_release(void *sk);

/* A word of 64 bits is about to be exchanged; kernel.h may change it first. */
void native_swapping(__u64 *word);

#define __sync_val_compare_and_swap(at, old, new)			\
	({								\
		if (sizeof(*(at)) == sizeof(__u64))			\
			native_swapping((void *)(at));			\
		__sync_val_compare_and_swap(at, old, new);		\
	})

struct tcphdr;
long bpf_tcp_check_syncookie(void *sk, void *iph, __u32 iph_len,
			     struct tcphdr *th, __u32 th_len);
long bpf_redirect(__u32 ifindex, __u64 flags);
long bpf_clone_redirect(struct __sk_buff *skb, __u32 ifindex, __u64 flags);
__u64 bpf_xdp_get_buff_len(struct xdp_md *ctx);
long bpf_xdp_load_bytes(struct xdp_md *ctx, __u32 offset, void *to,
			__u32 length);
long bpf_xdp_store_bytes(struct xdp_md *ctx, __u32 offset, void *from,
			 __u32 length);
long bpf_xdp_adjust_tail(struct xdp_md *ctx, int delta);
long bpf_skb_pull_data(struct __sk_buff *skb, __u32 length);
long bpf_skb_change_tail(struct __sk_buff *skb, __u32 length, __u64 flags);
long bpf_skb_load_bytes(const void *skb, __u32 offset, void *to, __u32 length);
long bpf_skb_store_bytes(struct __sk_buff *skb, __u32 offset, const void *from,
			 __u32 length, __u64 flags);

#endif
