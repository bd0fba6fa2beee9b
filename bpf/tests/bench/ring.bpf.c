/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Different packets for one test run. BPF_PROG_TEST_RUN with `repeat` gives a
 * program its own output again and again; this wrapper writes the next packet
 * of a ring into the frame first, whatever was left of it, and then calls the
 * program under test. The same wrapper around an empty program is what has to
 * be subtracted; two more show what no dataplane with our rules can do without:
 * reading the headers, and asking the kernel for the socket of a SYN.
 */
#include "../../packet/parse.h"
#include "../../track/queue.h"

/* The trimmed kernel types know what the product uses. */
#define BPF_MAP_TYPE_PROG_ARRAY 3

#define RING_MAX 65536
#define FRAME 54	/* Ethernet, IPv4, TCP: no options, no payload */
#define AT_SEQ 38	/* of the TCP header's sequence number */

struct slot {
	__u8 frame[FRAME];
	__u8 pad[64 - FRAME];
};

struct place {
	__u32 mask;	/* packets - 1 */
	__u32 vary;	/* 1: another sequence number in each turn */
	__u32 next;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RING_MAX);
	__type(key, __u32);
	__type(value, struct slot);
} ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct place);
} place SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} target SEC(".maps");

#define COPY(type, at) \
	(*(type *)((void *)to + (at)) = *(const type *)((void *)from + (at)))

/*
 * Field by field, in the widths in which a parser reads: a load that spans two
 * stores would wait for both, and the program under test would pay for it.
 */
static __always_inline void copy(__u8 *to, const __u8 *from)
{
	COPY(__u64, 0);		/* Ethernet */
	COPY(__u32, 8);
	COPY(__u16, 12);
	COPY(__u64, 14);	/* IPv4: version to fragment */
	COPY(__u32, 22);	/* time to live to checksum */
	COPY(__u32, 26);	/* addresses */
	COPY(__u32, 30);
	COPY(__u32, 34);	/* TCP: ports */
	COPY(__u32, AT_SEQ);
	COPY(__u32, 42);
	COPY(__u32, 46);
	COPY(__u32, 50);
}

SEC("xdp.frags")
int next_packet(struct xdp_md *ctx)
{
	__u32 zero = 0, index;
	struct place *p = bpf_map_lookup_elem(&place, &zero);
	int missing = FRAME - (int)(ctx->data_end - ctx->data);
	struct slot *slot;
	__u8 *data;

	if (!p)
		return XDP_ABORTED;
	if (missing && bpf_xdp_adjust_tail(ctx, missing))
		return XDP_ABORTED;
	index = p->next & p->mask;
	slot = bpf_map_lookup_elem(&ring, &index);
	data = (void *)(long)ctx->data;
	if (!slot || data + FRAME > (__u8 *)(long)ctx->data_end)
		return XDP_ABORTED;
	copy(data, slot->frame);
	if (p->vary)
		*(__u32 *)(data + AT_SEQ) += p->next;
	p->next++;
	bpf_tail_call(ctx, &target, 0);
	return XDP_ABORTED;
}

SEC("xdp.frags")
int empty(struct xdp_md *ctx)
{
	return XDP_PASS;
}

__noinline int tg_parse_frame(struct xdp_md *ctx, struct tg_packet *p)
{
	struct tg_view view = {
		.data = (void *)(long)ctx->data,
		.end = (void *)(long)ctx->data_end,
		.length = bpf_xdp_get_buff_len(ctx),
	};

	return p ? tg_parse(ctx, &view, p) : TG_REASON_LOOKUP_FAILED;
}

SEC("xdp.frags")
int parsed(struct xdp_md *ctx)
{
	struct tg_packet p = {};

	return tg_parse_frame(ctx, &p) ? XDP_ABORTED : XDP_PASS;
}

SEC("xdp.frags")
int socket_floor(struct xdp_md *ctx)
{
	struct tg_packet p = {};
	struct bpf_sock *sk;

	if (tg_parse_frame(ctx, &p))
		return XDP_ABORTED;
	sk = tg_socket(ctx, &p);
	if (sk)
		bpf_sk_release(sk);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
