/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Asks a policy about one event that the caller made up: the tests compare the
 * verdicts of the kernel with those of the native build. Never attached.
 */
#include "../lib/limits.h"

SEC("syscall")
int tg_replay(struct tg_replay *ctx)
{
	const struct tg_limits *limits = tg_limits_of(ctx->service);
	struct tg_event event = ctx->event;

	ctx->found = 0;
	if (!limits)
		return 0;
	ctx->verdict = tg_limits_policy(limits, ctx->service, &event);
	ctx->found = 1;
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
