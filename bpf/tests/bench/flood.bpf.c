/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A flood of SYNs for live test runs (BPF_F_TEST_XDP_LIVE_FRAMES), and what
 * swallows packets at the end of a path.
 */
#include "../../packet/parse.h"
#include "../../track/queue.h"

#define FRAME 54	/* Ethernet, IPv4, TCP: no options, no payload */
#define AT_IP_CHECK 24
#define AT_SOURCE 26
#define AT_PORT 34
#define AT_SEQ 38
#define AT_TCP_CHECK 50
#define PORT_FIRST 1024
#define PORTS 32768

/*
 * The frame with zero in source port, sequence number, both checksums and the
 * lower half of the source address; the sums are those of this frame.
 */
struct aim {
	__u8 frame[FRAME];
	__u8 pad[2];
	__u32 ip_sum;
	__u32 tcp_sum;	/* with the pseudo header */
	__u32 ifindex;	/* where to */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct aim);
} aim SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} swallowed SEC(".maps");

static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

SEC("xdp")
int flood(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data;
	__u32 zero = 0, seq;
	struct aim *a = bpf_map_lookup_elem(&aim, &zero);
	__u16 low, port;

	if (!a || data + FRAME > (__u8 *)(long)ctx->data_end)
		return XDP_ABORTED;
	seq = bpf_get_prandom_u32();
	low = seq;
	port = bpf_htons(PORT_FIRST + (seq >> 16 & (PORTS - 1)));
	seq *= 2654435761U;
	__builtin_memcpy(data, a->frame, FRAME);
	*(__u16 *)(data + AT_SOURCE + 2) = low;
	*(__u16 *)(data + AT_PORT) = port;
	*(__u32 *)(data + AT_SEQ) = seq;
	*(__u16 *)(data + AT_IP_CHECK) = fold(a->ip_sum + low);
	*(__u16 *)(data + AT_TCP_CHECK) = fold(a->tcp_sum + low + port +
					       (seq & 0xffff) + (seq >> 16));
	return bpf_redirect(a->ifindex, 0);
}

SEC("xdp")
int swallow(struct xdp_md *ctx)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&swallowed, &zero);

	if (count)
		++*count;
	return XDP_DROP;
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

/* What every refusal contains: the headers, and the kernel's socket. */
SEC("xdp")
int ask_and_swallow(struct xdp_md *ctx)
{
	struct tg_packet p = {};
	struct bpf_sock *sk;

	if (tg_parse_frame(ctx, &p))
		return XDP_PASS;
	sk = tg_socket(ctx, &p);
	if (sk)
		bpf_sk_release(sk);
	return swallow(ctx);
}

char _license[] SEC("license") = "Dual BSD/GPL";
