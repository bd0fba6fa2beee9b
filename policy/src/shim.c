/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The policies and the chain for native host programs. */
#include <stdint.h>

#define TG_WAITS(ask) ((ask)->waits)
#include "shim.h"

/* Where a native host program has what the chain asks for. */
struct tg_native {
	struct tg_chain *chain;
	struct tg_bucket_copy *copy;
	struct tg_senders *senders;
};

TG_INLINE const struct tg_native *tg_native_of(tg_u64 service)
{
	return (const struct tg_native *)(uintptr_t)service;
}

TG_INLINE struct tg_chain *tg_host_chain(tg_u64 service)
{
	return tg_native_of(service)->chain;
}

TG_INLINE struct tg_bucket_copy *tg_host_copy(tg_u64 service)
{
	return tg_native_of(service)->copy;
}

TG_INLINE struct tg_senders *tg_host_senders(tg_u64 service)
{
	return tg_native_of(service)->senders;
}

#include "chain/decide.h"

void tg_native_admit(const struct tg_params *p, struct tg_state *s,
		     const struct tg_event *e, struct tg_verdict *v)
{
	*v = tg_policy_admit(p, s, e);
}

int tg_native_decide(const struct tg_limits *limits, struct tg_chain *chain,
		     struct tg_bucket_copy *copy,
		     struct tg_senders *senders, struct tg_ask *ask)
{
	const struct tg_native host = { chain, copy, senders };

	ask->service = (uintptr_t)&host;
	return tg_chain_decide(limits, ask);
}

void tg_native_execute(struct tg_ask *ask, tg_u64 source, int single,
		       tg_u32 strength, tg_u32 random)
{
	tg_chain_execute(ask, source, single, strength, random);
}

void tg_native_datagram_admit(const struct tg_datagram_limit *limit,
			      struct tg_datagram_chain *chain,
			      struct tg_bucket_copy *copy, tg_u64 now_ns,
			      tg_u32 merged, struct tg_verdict *v)
{
	*v = tg_datagram_admit(limit, chain, copy, now_ns, merged);
}

int tg_native_spares(tg_u32 flags, tg_u64 source)
{
	return tg_canary_spares(flags, source);
}

tg_u64 tg_native_canary_source(const tg_u32 *addr, tg_u64 service,
			       const tg_u64 *key)
{
	return tg_canary_source(addr, service, key);
}

int tg_native_replies(const struct tg_ask *ask)
{
	return tg_chain_replies(ask);
}

void tg_native_silent(struct tg_ask *ask, tg_u8 reason)
{
	tg_chain_silent(ask, reason);
}

int tg_native_passes(const struct tg_ask *ask)
{
	return tg_chain_passes(ask);
}

tg_u32 tg_native_lease(tg_u64 heartbeat_ns, tg_u64 now_ns)
{
	return tg_lease_strength(heartbeat_ns, now_ns);
}

tg_u32 tg_native_lease_until(tg_u32 strength, tg_u32 until, tg_u64 now_ns)
{
	return tg_lease_until(strength, until, now_ns);
}

tg_u8 tg_native_lease_passes(tg_u32 released, tg_u32 strength)
{
	return tg_lease_passes(released, strength);
}

void tg_native_request(const struct tg_request_limits *limits,
		       struct tg_request_chain *chain, struct tg_event *e,
		       long long waiting, int waits, struct tg_verdict *v)
{
	*v = tg_request_decide_from(limits, chain, e, waiting, waits);
}

tg_u32 tg_native_level(const struct tg_level *level, tg_u32 queue,
		       long long waiting)
{
	return tg_level(level, queue, waiting);
}

int tg_native_request_execution(const struct tg_request_limits *limits,
				const struct tg_verdict *v, tg_u64 source,
				tg_u32 strength, tg_u32 random)
{
	return tg_request_execution(limits, *v, source, strength, random);
}

tg_u32 tg_native_rank(int protected, int first, int closes)
{
	return tg_request_rank(protected, first, closes);
}

int tg_native_weigh(struct tg_senders *s, struct tg_event *e)
{
	return tg_senders_weigh(s, e);
}

tg_u8 tg_native_settle(struct tg_senders *s, const struct tg_event *e,
		       const struct tg_verdict *v)
{
	return tg_senders_settle(s, e, *v);
}

void tg_native_replied(struct tg_senders *s, tg_u64 syn_ns, tg_u8 noted)
{
	tg_senders_replied(s, syn_ns, noted);
}

void tg_native_proved(struct tg_senders *s, tg_u64 syn_ns, tg_u8 noted)
{
	tg_senders_proved(s, syn_ns, noted);
}

int tg_native_refused(const struct tg_params *p, struct tg_state *s,
		      const struct tg_event *e)
{
	return tg_policy_refused(p, s, e);
}

int tg_native_full(const struct tg_in_flight *l, tg_u32 *tight,
		   long long waiting, long long silent)
{
	return tg_in_flight_full(l, tight, waiting, silent);
}

int tg_native_min_rate(tg_u32 interval_us, tg_u64 *at_ns, tg_u64 now_ns)
{
	return tg_min_rate_admits(interval_us, at_ns, now_ns);
}

tg_u64 tg_native_lately_hash(const tg_u32 *addr, tg_u64 service, int shadow,
			     const tg_u64 *key)
{
	return tg_lately_hash(addr, service, key) |
	       (shadow ? TG_LATELY_SHADOW : 0);
}

tg_u32 tg_native_lately_line(tg_u64 hash, tg_u32 mask)
{
	return tg_lately_line_of(hash, mask);
}

void tg_native_lately_note(struct tg_lately_line *line, tg_u64 hash)
{
	tg_lately_note(line, hash);
}

int tg_native_lately_has(const struct tg_lately_line *line, tg_u64 hash)
{
	return tg_lately_has(line, hash);
}

tg_u32 tg_native_lately_beat(struct tg_lately_turn *turn, tg_u32 lines,
			     tg_u64 last_ns, tg_u64 now_ns)
{
	return tg_lately_beat(turn, lines, last_ns, now_ns);
}

void tg_native_tsw_add(const struct tg_tsw_params *p, struct tg_tsw *s,
		       tg_u64 now_ns, tg_u32 bytes)
{
	tg_tsw_add(p, s, now_ns, bytes);
}

tg_u32 tg_native_tsw_rate(const struct tg_tsw_params *p,
			  const struct tg_tsw *s, tg_u64 now_ns)
{
	return tg_tsw_rate(p, s, now_ns);
}

tg_u32 tg_native_size_class(tg_u64 bytes)
{
	return tg_size_class(bytes);
}

tg_u32 tg_native_duration_bucket(tg_u64 us)
{
	return tg_duration_bucket(us);
}

tg_u64 tg_native_duration_from_us(tg_u32 bucket)
{
	return tg_duration_from_us(bucket);
}

void tg_native_durations_add(struct tg_durations *d, tg_u64 bytes, tg_u64 us)
{
	tg_durations_add(d, bytes, us);
}

void tg_native_hot_hit(struct tg_hot_list *l, tg_u64 key)
{
	tg_hot_hit(l, key);
}

void tg_native_hot_fade(struct tg_hot_list *l)
{
	tg_hot_fade(l);
}

void tg_native_hot_admitted(struct tg_hot_list *l, tg_u64 key)
{
	tg_hot_admitted(l, key);
}

tg_u32 tg_native_hot_certain(const struct tg_hot_list *l, tg_u64 key)
{
	return tg_hot_certain(l, key);
}

int tg_native_hot_is(const struct tg_hot_list *l, tg_u64 key, tg_u32 share)
{
	return tg_hot_is(l, key, share);
}

tg_u32 tg_native_hot_share(const struct tg_hot_list *l, tg_u64 key)
{
	return tg_hot_admitted_share(l, key);
}

void tg_native_hot_aged_hit(const struct tg_hot_aged_params *p,
			    struct tg_hot_list *l, tg_u64 key, tg_u32 random,
			    tg_u32 now_s)
{
	tg_hot_aged_hit(p, l, key, random, now_s);
}

tg_u64 tg_native_hot_aged_top(const struct tg_hot_aged_params *p,
			      struct tg_hot_list *l, tg_u32 now_s)
{
	return tg_hot_aged_top(p, l, now_s);
}

void tg_native_crowd_admit(const struct tg_crowd_params *p,
			   struct tg_crowd_state *s,
			   const struct tg_hot_list *hot,
			   const struct tg_event *e, struct tg_verdict *v)
{
	*v = tg_crowd_admit(p, s, hot, e);
}

void tg_native_crowd_filtered(const struct tg_abacus_exact_params *p,
			      struct tg_crowd_filter *f, tg_u32 action,
			      const struct tg_event *e, struct tg_verdict *v)
{
	*v = tg_crowd_filtered(p, f, action, e);
}

void tg_native_congestion_queue(const struct tg_congestion_params *p,
				struct tg_congestion *s, tg_u32 waiting)
{
	tg_congestion_queue(p, s, waiting);
}

void tg_native_congestion_look(struct tg_congestion *s, tg_u32 waiting,
			       tg_u32 share)
{
	tg_congestion_look(s, waiting, share);
}

void tg_native_congestion_unknown(struct tg_congestion *s)
{
	tg_congestion_unknown(s);
}

int tg_native_congestion_is_long(const struct tg_congestion_params *p,
				 const struct tg_congestion *s)
{
	return tg_congestion_is_long(p, s);
}

int tg_native_congestion_tick(const struct tg_congestion_params *p,
			      struct tg_congestion *s,
			      const struct tg_link_tick *t)
{
	return tg_congestion_tick(p, s, t);
}

void tg_native_offered_add(struct tg_offered *o, int refused)
{
	tg_offered_add(o, refused);
}

void tg_native_offered_tick(struct tg_offered *o, tg_u64 elapsed_ns,
			    tg_u32 weight)
{
	tg_offered_tick(o, elapsed_ns, weight);
}

int tg_native_pushback_install(const struct tg_pushback_params *p,
			       struct tg_pushback_state *s, tg_u64 rate_milli,
			       tg_u64 whole_milli, tg_u64 ttl_ns, tg_u64 now_ns)
{
	return tg_pushback_install(p, s, rate_milli, whole_milli, ttl_ns, now_ns);
}

tg_u64 tg_native_pushback_rate(const struct tg_pushback_params *p,
			       struct tg_pushback_state *s, tg_u64 now_ns,
			       int idle)
{
	return tg_pushback_rate(p, s, now_ns, idle);
}

void tg_native_pushback_admit(const struct tg_pushback_params *p,
			      struct tg_pushback_state *s,
			      const struct tg_event *e, struct tg_verdict *v)
{
	*v = tg_pushback_admit(p, s, e);
}

void tg_native_tailor_demand(struct tg_tailor *t,
			     const struct tg_tailor_part *part, tg_u32 n,
			     tg_u64 arrived_milli)
{
	tg_tailor_demand(t, part, n, arrived_milli);
}

tg_u64 tg_native_tailor_limit(const struct tg_tailor_params *p,
			      tg_u64 demand_milli, tg_u64 all_milli)
{
	return tg_tailor_limit(p, demand_milli, all_milli);
}

tg_u64 tg_native_tailor_published(const struct tg_tailor_params *p, tg_u64 from,
				  tg_u64 total)
{
	return tg_tailor_published(p, from, total);
}
