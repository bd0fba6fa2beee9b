/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Who gets a reply beyond the cap for all. A RST to an address that nobody has verified is
 * what others could use as a weapon, so replies are capped per CPU (packet/tokens.h). Beyond that
 * cap a source that has completed a handshake lately is answered from a second bucket of
 * the CPU, which is larger. Of this no source takes more than a share; and while SYNs are
 * a flood of spoofed ones nobody is answered from it: then a known address does not say
 * who sent a SYN. docs/decisions/0014.
 */
#ifndef TG_ALLOWANCE_H
#define TG_ALLOWANCE_H

#include "../packet/maps.h"
#include "../track/source.h"

/* A source takes one in so many of a CPU's answers beyond the cap; of all CPUs. */
#define TG_ANSWER_SOURCE_SHARE 4

/*
 * Takes one of a source's own answers. They come one by one, and pile up for as
 * long as it takes to fill the CPU's bucket. Who loses a race gets none.
 */
static __always_inline int tg_answer_share(const struct tg_bucket_params *cap,
					   struct tg_source *source,
					   __u64 now_ns)
{
	__u64 each_ns = TG_TOKEN / cap->rate_milli * TG_ANSWER_SOURCE_SHARE;
	__u64 most_ns = cap->full_ns > each_ns ? cap->full_ns : each_ns;
	__u64 used_ns = READ_ONCE(source->answered_ns), from_ns = used_ns;

	if (tg_elapsed_ns(now_ns, used_ns) < each_ns)
		return 0;
	if (now_ns - used_ns > most_ns)
		from_ns = now_ns - most_ns;
	return __sync_val_compare_and_swap(&source->answered_ns, used_ns,
					   from_ns + each_ns) == used_ns;
}

/*
 * 1: beyond the cap for all, this SYN's source may be answered, and takes what that
 * costs. Not static: the verifier looks at it once.
 */
__noinline int tg_answer_proved(const struct tg_bucket_params *cap,
				__u32 service, __u64 key, __u64 now_ns)
{
	const struct tg_senders *senders = tg_at(&tg_senders, service);
	struct tg_source *source;
	__u32 open = 0;

	if (!cap || !cap->rate_milli || !senders || tg_senders_flood(senders))
		return 0;
	source = tg_source_at(tg_source_find(key, &open));
	if (!source || !tg_source_proved(source, now_ns))
		return 0;
	/* first the source's: a spoofed one takes nothing from the others */
	return tg_answer_share(cap, source, now_ns) &&
	       tg_answer_token(cap, TG_ANSWERS_PROVED, now_ns);
}

#endif
