/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Samples of verdicts, for people. Never waits: a full buffer loses them. */
#ifndef TG_EMIT_H
#define TG_EMIT_H

#include "maps.h"
#include "packet.h"

/* One in `every`; 0: none. */
static __always_inline int tg_emit_chosen(__u32 every, __u32 random)
{
	return every && !((__u64)random * every >> 32);
}

struct tg_emit {
	struct tg_verdict verdict;
	__u8 service;
	__u8 class;
	__u8 shadow;
	__u8 priority;
	__u64 now_ns;
	__s64 waiting;
};

static __always_inline void tg_emit(const struct tg_packet *p,
				    const struct tg_queue *queue,
				    const struct tg_emit *e)
{
	struct tg_sample *sample;

	sample = bpf_ringbuf_reserve(&tg_samples, sizeof(*sample), 0);
	if (!sample)
		return;
	sample->now_ns = e->now_ns;
	__builtin_memcpy(sample->src, p->src, sizeof(sample->src));
	__builtin_memcpy(sample->dst, p->dst, sizeof(sample->dst));
	sample->sport = p->sport;
	sample->dport = p->dport;
	sample->service = e->service;
	sample->class = e->class;
	sample->verdict = e->verdict.kind;
	sample->reason = e->verdict.reason;
	sample->shadow = e->shadow;
	sample->repeated = e->verdict.repeated;
	sample->priority = e->priority;
	sample->listener = queue->known;
	sample->accept_length = queue->length;
	sample->accept_limit = queue->limit;
	sample->pad = 0;
	sample->waiting = e->waiting;
	bpf_ringbuf_submit(sample, BPF_RB_NO_WAKEUP);
}

#endif
