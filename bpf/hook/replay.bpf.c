/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Asks a policy about one event that the caller made up: the tests compare the
 * verdicts of the kernel with those of the native build. Never attached. The
 * question travels as a packet, behind 16 bytes that look like a header:
 * programs of type syscall may take no spin lock before Linux 6.2.
 */
#include "../syn/limits.h"

#define TG_REPLAY_AT 16

SEC("tc")
int tg_replay(struct __sk_buff *skb)
{
	struct tg_replay *ask = (void *)(long)skb->data + TG_REPLAY_AT;
	const struct tg_limits *limits;
	struct tg_event event;
	struct tg_chain *chain;

	if ((void *)(ask + 1) > (void *)(long)skb->data_end)
		return 0;
	limits = tg_host_limits(ask->service);
	chain = tg_host_chain(ask->service);
	if (!limits || !chain)
		return 0;
	event = ask->event;
	ask->verdict = tg_chain_policy(limits, chain, &event);
	ask->found = 1;
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
