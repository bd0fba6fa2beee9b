/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The policies under a fuzzer: parameters, memory and events are whatever the
 * bytes say, as an older or hostile version may have left them in pinned maps.
 * Beyond what the sanitizers find, these must hold:
 *	- a verdict is admit, drop or reject, for a known reason; of a gap, delay
 *	- the same memory and the same event give the same verdict and memory
 *	- without a rate everything is admitted
 *	- with parameters as the loader makes them, a bucket never holds more
 *	  than its depth, and an admitted event used what it costs
 *
 * Input: one byte of switches, the parameters, a number of words to put into
 * the memory, those words (offset, value), and events to the end.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policies.h"

#include "harness.h"

#define FUZZ_POKES_MAX 16	/* words put into the memory */
#define FUZZ_EVENTS_MAX 64
#define FUZZ_SANE 1		/* parameters as the loader makes them */

struct fuzz_poke {
	uint32_t offset;
	uint32_t pad;
	uint64_t value;
};

struct fuzz_bytes {
	const unsigned char *at;
	unsigned long left;
};

static struct tg_state fuzz_states[2];

static int fuzz_get(struct fuzz_bytes *b, void *to, unsigned long length)
{
	if (b->left < length)
		return 0;
	memcpy(to, b->at, length);
	b->at += length;
	b->left -= length;
	return 1;
}

/* The bounds that policy/src/params.rs keeps. */
static void fuzz_sane_bucket(struct tg_bucket_params *b, tg_u64 *reserve)
{
	b->rate_milli %= TG_RATE_MILLI_MAX + 1;
	b->depth = (1 + b->depth % TG_BURST_MAX) * TG_TOKEN;
	b->full_ns = b->rate_milli ?
		     (b->depth + b->rate_milli - 1) / b->rate_milli : 0;
	for (int i = 0; i < TG_PRIORITIES; i++)
		reserve[i] %= b->depth;
}

static void fuzz_sane_exact(struct tg_abacus_exact_params *a)
{
	a->period_ns = 1000000 + a->period_ns % (3600 * TG_NS_PER_S);
	a->window %= TG_EXACT_PERIODS;
	a->steps %= TG_EXACT_STEPS_MAX + 1;
	for (int i = 0; i < TG_EXACT_TABLE; i++)
		a->schedule[i] = a->schedule[i] % 200 + 1;
}

static void fuzz_sane_learned(struct tg_abacus_learned_params *a)
{
	a->slot_ns = 1000000 + a->slot_ns % (900 * TG_NS_PER_S);
	a->reject_milli %= (1U << 27) + 1;
	a->steps %= TG_LEARNED_STEPS_MAX + 1;
	for (int i = 0; i < TG_LEARNED_ATTEMPTS; i++)
		a->gap[i] = a->gap[i] % 248 + 1;
}

static void fuzz_sane_gap(struct tg_gap_params *g)
{
	tg_u64 most = g->bucket.depth - TG_TOKEN;

	g->wait %= most + 1;
	g->start %= most - g->wait + 1;
	for (int i = 0; i < TG_PRIORITIES; i++)
		g->reserve[i] = g->wait + g->reserve[i] % (most - g->wait + 1);
}

enum {
#define TG_POLICY(number, name, serves, key, state, text) FUZZ_POLICY_##name,
#include "policies.def"
#undef TG_POLICY
	FUZZ_POLICIES
};

/* Whether a policy's parameters begin with bucket and reserve. */
static int fuzz_has_bucket(const struct tg_params *p)
{
	return p->policy != TG_POLICY_threshold &&
	       p->policy != TG_POLICY_percent;
}

static void fuzz_sane(struct tg_params *p)
{
	struct tg_abacus_params *a = &p->u.abacus;

	p->policy %= FUZZ_POLICIES;
	/* those of the others may be anything: nothing below depends on them */
	if (!fuzz_has_bucket(p))
		return;
	fuzz_sane_bucket(&a->bucket, a->reserve);
	if (p->policy == TG_POLICY_gap)
		fuzz_sane_gap(&p->u.gap);
	if (p->policy == TG_POLICY_fresh_first)
		p->u.fresh_first.fresh_reserve %= a->bucket.depth;
	if (p->policy == TG_POLICY_abacus_exact)
		fuzz_sane_exact(&p->u.abacus_exact);
	if (p->policy == TG_POLICY_abacus_learned)
		fuzz_sane_learned(&p->u.abacus_learned);
	if (p->policy != TG_POLICY_abacus)
		return;
	a->period_ns = 1000000 + a->period_ns % (3600 * TG_NS_PER_S);
	a->window %= TG_ABACUS_PERIODS;
	a->steps %= TG_ABACUS_STEPS_MAX + 1;
	for (int i = 0; i < TG_ABACUS_STEPS_MAX; i++)
		a->schedule[i] = a->schedule[i] % 200 + 1;
	a->ewma_shift %= 16;
}

static void fuzz_pokes(struct fuzz_bytes *b)
{
	unsigned char count = 0;
	struct fuzz_poke poke;

	fuzz_get(b, &count, sizeof(count));
	for (int i = 0; i < count % FUZZ_POKES_MAX; i++) {
		if (!fuzz_get(b, &poke, sizeof(poke)))
			break;
		poke.offset %= sizeof(fuzz_states[0]) / 8;
		memcpy((char *)&fuzz_states[0] + poke.offset * 8UL,
		       &poke.value, sizeof(poke.value));
	}
	memcpy(&fuzz_states[1], &fuzz_states[0], sizeof(fuzz_states[0]));
}

static int fuzz_reason_known(int reason)
{
#undef TG_REASON
#define TG_REASON(number, NAME, name, text) if (reason == number) return 1;
#include "reasons.def"
#undef TG_REASON
	return 0;
}

static void fuzz_event(const struct tg_params *p, const struct tg_event *e,
		       int sane)
{
	const struct tg_bucket_params *limit = &p->u.token_bucket.bucket;
	const struct tg_bucket *bucket = &fuzz_states[0].u.token_bucket.bucket;
	struct tg_verdict v = tg_policy_admit(p, &fuzz_states[0], e);
	struct tg_verdict again = tg_policy_admit(p, &fuzz_states[1], e);

	fuzz_must(!memcmp(&v, &again, sizeof(v)), "same event, same verdict");
	fuzz_must(v.kind == TG_ADMIT || v.kind == TG_DROP ||
		  v.kind == TG_REJECT ||
		  (v.kind == TG_DELAY && p->policy == TG_POLICY_gap &&
		   p->u.gap.wait), "a verdict is one of three, or a wait");
	fuzz_must(fuzz_reason_known(v.reason), "the reason is registered");
	fuzz_must(v.repeated <= 1 && !v.pad, "nothing else");
	fuzz_must(v.kind == TG_DELAY || !v.delay_us, "who waits is delayed");
	if (!fuzz_has_bucket(p))
		return;
	if (!limit->rate_milli)
		fuzz_must(v.kind == TG_ADMIT, "no rate, no refusal");
	if (!sane || !limit->rate_milli)
		return;
	fuzz_must(bucket->used <= limit->depth, "no more than the bucket");
	fuzz_must(v.kind != TG_ADMIT || bucket->used >= TG_TOKEN -
		  e->spared * (TG_TOKEN / TG_SHARE_ONE),
		  "an admission used what of a token it costs");
}

int fuzz_one(const unsigned char *data, unsigned long size)
{
	struct fuzz_bytes b = { data, size };
	struct tg_params params = {};
	unsigned char switches = 0;
	struct tg_event e;

	memset(&fuzz_states[0], 0, sizeof(fuzz_states[0]));
	if (!fuzz_get(&b, &switches, sizeof(switches)) ||
	    !fuzz_get(&b, &params, sizeof(params)))
		return 0;
	if (switches & FUZZ_SANE)
		fuzz_sane(&params);
	fuzz_pokes(&b);
	for (int i = 0; i < FUZZ_EVENTS_MAX && fuzz_get(&b, &e, sizeof(e)); i++)
		fuzz_event(&params, &e, switches & FUZZ_SANE);
	fuzz_must(!memcmp(&fuzz_states[0], &fuzz_states[1],
			  sizeof(fuzz_states[0])), "same events, same memory");
	return 0;
}
