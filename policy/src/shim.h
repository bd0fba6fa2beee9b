/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The policies and the chain, as native host programs call them. */
#ifndef TG_SHIM_H
#define TG_SHIM_H

#include "../chain/chain.h"
#include "../chain/datagram.h"
#include "../chain/lately.h"
#include "../chain/refusal.h"
#include "../chain/request.h"
#include "../router/congestion.h"
#include "../router/crowd.h"
#include "../router/durations.h"
#include "../router/hotspot.h"
#include "../router/pushback.h"
#include "../router/tailor.h"
#include "../router/tsw.h"

void tg_native_admit(const struct tg_params *p, struct tg_state *s,
		     const struct tg_event *e, struct tg_verdict *v);
int tg_native_decide(const struct tg_limits *limits, struct tg_chain *chain,
		     struct tg_bucket_copy *copy,
		     struct tg_senders *senders, struct tg_ask *ask);
void tg_native_execute(struct tg_ask *ask, tg_u64 source, int single,
		       tg_u32 strength, tg_u32 random);
void tg_native_datagram_admit(const struct tg_datagram_limit *limit,
			      struct tg_datagram_chain *chain,
			      struct tg_bucket_copy *copy, tg_u64 now_ns,
			      tg_u32 merged, struct tg_verdict *v);
int tg_native_spares(tg_u32 flags, tg_u64 source);
tg_u64 tg_native_canary_source(const tg_u32 *addr, tg_u64 service,
			       const tg_u64 *key);
int tg_native_replies(const struct tg_ask *ask);
void tg_native_silent(struct tg_ask *ask, tg_u8 reason);
int tg_native_passes(const struct tg_ask *ask);
tg_u32 tg_native_lease(tg_u64 heartbeat_ns, tg_u64 now_ns);
tg_u32 tg_native_lease_until(tg_u32 strength, tg_u32 until, tg_u64 now_ns);
tg_u8 tg_native_lease_passes(tg_u32 released, tg_u32 strength);
void tg_native_request(const struct tg_request_limits *limits,
		       struct tg_request_chain *chain, struct tg_event *e,
		       long long waiting, int waits, struct tg_verdict *v);
tg_u32 tg_native_level(const struct tg_level *level, tg_u32 queue,
		       long long waiting);
int tg_native_request_execution(const struct tg_request_limits *limits,
				const struct tg_verdict *v, tg_u64 source,
				tg_u32 strength, tg_u32 random);
tg_u32 tg_native_rank(int protected, int first, int closes);
int tg_native_weigh(struct tg_senders *s, struct tg_event *e);
tg_u8 tg_native_settle(struct tg_senders *s, const struct tg_event *e,
		       const struct tg_verdict *v);
void tg_native_replied(struct tg_senders *s, tg_u64 syn_ns, tg_u8 noted);
void tg_native_proved(struct tg_senders *s, tg_u64 syn_ns, tg_u8 noted);
int tg_native_refused(const struct tg_params *p, struct tg_state *s,
		      const struct tg_event *e);
int tg_native_full(const struct tg_in_flight *l, tg_u32 *tight,
		   long long waiting, long long silent);
int tg_native_min_rate(tg_u32 interval_us, tg_u64 *at_ns, tg_u64 now_ns);
tg_u64 tg_native_lately_hash(const tg_u32 *addr, tg_u64 service, int shadow,
			     const tg_u64 *key);
tg_u32 tg_native_lately_line(tg_u64 hash, tg_u32 mask);
void tg_native_lately_note(struct tg_lately_line *line, tg_u64 hash);
int tg_native_lately_has(const struct tg_lately_line *line, tg_u64 hash);
tg_u32 tg_native_lately_beat(struct tg_lately_turn *turn, tg_u32 lines,
			     tg_u64 last_ns, tg_u64 now_ns);
void tg_native_tsw_add(const struct tg_tsw_params *p, struct tg_tsw *s,
		       tg_u64 now_ns, tg_u32 bytes);
tg_u32 tg_native_tsw_rate(const struct tg_tsw_params *p,
			  const struct tg_tsw *s, tg_u64 now_ns);
tg_u32 tg_native_size_class(tg_u64 bytes);
tg_u32 tg_native_duration_bucket(tg_u64 us);
tg_u64 tg_native_duration_from_us(tg_u32 bucket);
void tg_native_durations_add(struct tg_durations *d, tg_u64 bytes, tg_u64 us);
void tg_native_hot_hit(struct tg_hot_list *l, tg_u64 key);
void tg_native_hot_fade(struct tg_hot_list *l);
void tg_native_hot_admitted(struct tg_hot_list *l, tg_u64 key);
tg_u32 tg_native_hot_certain(const struct tg_hot_list *l, tg_u64 key);
int tg_native_hot_is(const struct tg_hot_list *l, tg_u64 key, tg_u32 share);
tg_u32 tg_native_hot_share(const struct tg_hot_list *l, tg_u64 key);
void tg_native_hot_aged_hit(const struct tg_hot_aged_params *p,
			    struct tg_hot_list *l, tg_u64 key, tg_u32 random,
			    tg_u32 now_s);
tg_u64 tg_native_hot_aged_top(const struct tg_hot_aged_params *p,
			      struct tg_hot_list *l, tg_u32 now_s);
void tg_native_crowd_admit(const struct tg_crowd_params *p,
			   struct tg_crowd_state *s,
			   const struct tg_hot_list *hot,
			   const struct tg_event *e, struct tg_verdict *v);
void tg_native_crowd_filtered(const struct tg_abacus_exact_params *p,
			      struct tg_crowd_filter *f, tg_u32 action,
			      const struct tg_event *e, struct tg_verdict *v);
void tg_native_congestion_queue(const struct tg_congestion_params *p,
				struct tg_congestion *s, tg_u32 waiting);
void tg_native_congestion_look(struct tg_congestion *s, tg_u32 waiting,
			       tg_u32 share);
void tg_native_congestion_unknown(struct tg_congestion *s);
int tg_native_congestion_is_long(const struct tg_congestion_params *p,
				 const struct tg_congestion *s);
int tg_native_congestion_tick(const struct tg_congestion_params *p,
			      struct tg_congestion *s,
			      const struct tg_link_tick *t);
void tg_native_offered_add(struct tg_offered *o, int refused);
void tg_native_offered_tick(struct tg_offered *o, tg_u64 elapsed_ns,
			    tg_u32 weight);
int tg_native_pushback_install(const struct tg_pushback_params *p,
			       struct tg_pushback_state *s, tg_u64 rate_milli,
			       tg_u64 whole_milli, tg_u64 ttl_ns, tg_u64 now_ns);
tg_u64 tg_native_pushback_rate(const struct tg_pushback_params *p,
			       struct tg_pushback_state *s, tg_u64 now_ns,
			       int idle);
void tg_native_pushback_admit(const struct tg_pushback_params *p,
			      struct tg_pushback_state *s,
			      const struct tg_event *e, struct tg_verdict *v);
void tg_native_tailor_demand(struct tg_tailor *t,
			     const struct tg_tailor_part *part, tg_u32 n,
			     tg_u64 arrived_milli);
tg_u64 tg_native_tailor_limit(const struct tg_tailor_params *p,
			      tg_u64 demand_milli, tg_u64 all_milli);
tg_u64 tg_native_tailor_published(const struct tg_tailor_params *p, tg_u64 from,
				  tg_u64 total);

#endif
