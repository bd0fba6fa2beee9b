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
	struct tg_replay *said = (void *)(long)skb->data + TG_REPLAY_AT;
	struct tg_ask ask = {};

	if ((void *)(said + 1) > (void *)(long)skb->data_end)
		return 0;
	ask.event = said->event;
	ask.service = said->service;
	if (tg_chain_ask_policy(tg_host_limits(ask.service), &ask))
		return 0;
	said->verdict = ask.verdict;
	said->found = 1;
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
