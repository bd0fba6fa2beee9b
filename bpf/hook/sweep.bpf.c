/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Forgets connections of services with request rules that were idle too long, and
 * those of which the hooks may have missed something: where their requests stand
 * nobody knows, and what was missed looks like the doing of their clients. No rule
 * evaluates them any more (track/first.h).
 * Run by the daemon about once a second and where hooks or rules come back, never
 * attached. What it is told and its result travel as a packet, behind 16 bytes
 * that look like a header: before Linux 6.2, programs of type syscall may use no
 * map that has a spin lock.
 */
#include "../track/conn.h"

#define TG_SWEEP_AT 16

struct tg_sweeping {
	__u64 now_ns;
	__u32 freed;
	__u32 kept;
	__u32 missed;		/* struct tg_sweep */
};

/*
 * No lock: the place is taken away by an exchange of its key, and a packet that
 * still writes to it finds that out (tg_conn_begin).
 */
static long tg_sweep_one(void *map, const __u64 *at, struct tg_conn *conn,
			 struct tg_sweeping *s)
{
	__u64 limit_ns = conn->phase == TG_CONN_REFUSED ?
		TG_CONN_REFUSED_EXPIRE_NS : TG_CONN_EXPIRE_NS;
	__u32 service = conn->service & (TG_SERVICES_MAX - 1);
	__u64 key = *at;

	if ((tg_elapsed_ns(s->now_ns, READ_ONCE(conn->seen_ns)) <= limit_ns &&
	     !(s->missed >> service & 1)) ||
	    __sync_val_compare_and_swap(&conn->key, key, 0) != key) {
		s->kept++;
		return 0;
	}
	tg_flight_end(tg_conn_take(conn), 0, 0);
	bpf_map_delete_elem(&tg_conns, &key);
	s->freed++;
	return 0;
}

SEC("tc")
int tg_sweep(struct __sk_buff *skb)
{
	struct tg_sweeping s = { .now_ns = bpf_ktime_get_ns() };
	struct tg_sweep *out = (void *)(long)skb->data + TG_SWEEP_AT;

	if ((void *)(out + 1) > (void *)(long)skb->data_end)
		return 0;
	s.missed = out->missed;
	bpf_for_each_map_elem(&tg_conns, tg_sweep_one, &s, 0);
	out->now_ns = s.now_ns;
	out->freed = s.freed;
	out->kept = s.kept;
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
