/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Exchanges: one request and its response, as a turn of payload in both
 * directions. What the server owes a client, and since when.
 *
 *	           client's first data            request
 *	silent ──────────────────────► handshake ◄──┐
 *	  │ request                        │ server's part of it: nothing owed
 *	  ▼                                ▼        │
 *	waiting ◄──────────────────── (nothing owed)┘
 *	  │ first byte of the response: the exchange is complete and timed
 *	  ▼
 *	responding ──── request with new bytes that acknowledge it ──► waiting
 *
 * - The handshake of TLS is owed by the server, too, and a queue that stands there
 *   is felt there: the first exchange takes the sum of both, so that what is in
 *   flight is arrivals times times (Little's law). A Finished alone owes nothing.
 * - Retransmitted bytes, and data that do not acknowledge the last response, open
 *   no turn: they are more of a body.
 * - In flight is what the server's stack has taken: it acknowledges a request at
 *   once, and drops it in silence where its accept queue is full.
 * - A client's FIN ends waiting; a response that comes all the same is counted. A
 *   client that still sends after a second is slow: the server owes it nothing
 *   that could be told, and its exchange is counted as unknown.
 * - A server of TLS 1.3 sends session tickets before its first response. Their
 *   number and size are learned for each service (struct tg_flights): records
 *   that were seen alone in a segment, and after which more came.
 */
#ifndef TG_TURN_H
#define TG_TURN_H

#include "../packet/context.h"
#include "flow.h"
#include "queue.h"
#include "said.h"

#define TG_FLIGHT_BYTES_MAX 2048	/* of a ticket */
#define TG_FLIGHT_RECORDS_MAX 4
#define TG_PREAMBLE_VOTES (1U << 16)

static __always_inline struct tg_flights *tg_flights_of(__u64 meta)
{
	return tg_at(&tg_flights,
		     meta >> TG_FLOW_GAUGE_SHIFT & (TG_GAUGES_MAX - 1));
}

static __always_inline __u8 tg_flow_talk(__u64 meta)
{
	return (meta & TG_FLOW_TALK_MASK) >> TG_FLOW_TALK_SHIFT;
}

/* Changes a word and moves the gauges; a lost race is tried once more. */
static __always_inline int tg_turn_change(const struct tg_flow *flow,
					  __u64 *meta, __u64 clear, __u64 set)
{
	struct tg_gauges *gauges = tg_flow_gauges(*meta);

	for (int i = 0; i < 2; i++) {
		__u64 from = *meta, to = (from & ~clear) | set;

		if (from == TG_FLOW_NONE || !gauges)
			return 0;
		if (from == to)
			return 1;
		if (tg_flow_change(flow, meta, clear, set)) {
			tg_flow_moved(gauges, tg_flow_number_of(flow), from,
				      to);
			return 1;
		}
	}
	return 0;
}

static __always_inline struct tg_said_ask
tg_turn_ask(const struct tg_flow_way *way, __u64 meta)
{
	const struct tg_flights *flights = tg_flights_of(meta);
	struct tg_said_ask ask = {
		.talk = tg_flow_talk(meta),
		.client = way->client,
		.h2 = !!(meta & TG_FLOW_H2),
		.preamble = !!(way->server & TG_SERVER_PREAMBLE),
		.likely_h2 = !flights || flights->h2 >= flights->h1,
		.unasked = !(meta & TG_FLOW_ASKED),
	};

	return ask;
}

/* ---- flights of tickets ---- */

/*
 * One more, or fewer, for records of this size at the head of a response. Not
 * static, as what follows: the verifier looks at it once.
 */
__noinline int tg_flight_vote(struct tg_flights *flights, __u16 bytes,
			      __u8 records, int up)
{
	struct tg_flight *least;

	if (!flights)
		return 0;
	least = &flights->flight[0];
	for (__u32 i = 0; i < TG_FLIGHTS_EACH; i++) {
		struct tg_flight *f = &flights->flight[i];

		if (f->bytes == bytes && f->votes) {
			if (up && f->votes < TG_FLIGHT_VOTES_MAX)
				f->votes++;
			else if (!up)
				f->votes -= f->votes > 1 ? 2 : 1;
			if (up && f->records < records)
				f->records = records;
			else if (!up && f->records == records && records > 1)
				f->records--;
			return 0;
		}
		if (f->votes < least->votes)
			least = f;
	}
	if (!up)
		return 0;
	if (least->votes) {	/* another size must come more often to take it */
		least->votes--;
		return 0;
	}
	least->bytes = bytes;
	least->records = records;
	least->votes = 1;
	return 0;
}

/* How many records of this size are known to come first. */
static __always_inline __u32 tg_flight_known(const struct tg_flights *flights,
					     __u16 bytes)
{
	for (__u32 i = 0; i < TG_FLIGHTS_EACH; i++)
		if (flights->flight[i].bytes == bytes &&
		    flights->flight[i].votes >= TG_FLIGHT_KNOWN)
			return flights->flight[i].records;
	return 0;
}

/* How many records at the head of a segment have the size of its first. */
static __always_inline __u32 tg_flight_alike(const struct tg_said_ask *ask)
{
	__u32 alike = 0;

	for (__u32 i = 0; i < TG_RECORDS_MAX; i++) {
		if (i >= ask->count || ask->record[i].length !=
					       ask->record[0].length)
			break;
		alike = i + 1;
	}
	return alike;
}

/* 1: a segment of nothing but a few small records of one size. */
static __always_inline int tg_flight_possible(const struct tg_said_ask *ask,
					      __u32 alike)
{
	return ask->exact && alike == ask->count &&
	       alike <= TG_FLIGHT_RECORDS_MAX &&
	       ask->record[0].length > TG_PREAMBLE_MAX &&
	       ask->record[0].length <= TG_FLIGHT_BYTES_MAX;
}

/*
 * 1: such records, and a control frame behind them in the same segment. The first
 * record of HTTP/2 is short (TG_PREAMBLE_MAX): what comes before it are tickets.
 */
static __always_inline int tg_flight_before(const struct tg_said_ask *ask,
					    __u32 alike)
{
	__u32 next = 0;

	if (!ask->h2 || !ask->likely_h2 || ask->preamble ||
	    alike > TG_FLIGHT_RECORDS_MAX ||
	    ask->record[0].length <= TG_PREAMBLE_MAX ||
	    ask->record[0].length > TG_FLIGHT_BYTES_MAX)
		return 0;
	for (__u32 i = 0; i < TG_RECORDS_MAX; i++)
		if (i == alike && i < ask->count)
			next = ask->record[i].length;
	return next && next <= TG_PREAMBLE_MAX;
}

/* 1: so many records more of this size are one flight with those before them. */
static __always_inline int tg_flight_fits(const struct tg_flow_way *way,
					  __u16 bytes, __u32 alike)
{
	return (!way->flight_records || way->flight == bytes) &&
	       way->flight_records + alike <= TG_FLIGHT_RECORDS_MAX;
}

/* 1: a segment that may begin a flight, or go on with it. */
static __always_inline int tg_flight_goes_on(const struct tg_said_ask *ask,
					     const struct tg_flow_way *way,
					     __u32 alike)
{
	return !(way->server & TG_SERVER_PREAMBLE) &&
	       !(way->client & TG_CLIENT_EARLY) &&
	       tg_flight_possible(ask, alike) &&
	       tg_flight_fits(way, ask->record[0].length, alike);
}

/* ---- the server's records ---- */

/* What is left of a segment of the server's in TLS, from record `at` on. */
static __always_inline __u8 tg_turn_rest(struct tg_said_ask *ask, __u32 at)
{
	for (__u32 i = 0; i < TG_RECORDS_MAX; i++) {
		__u32 length = ask->record[i].length;

		if (i < at || i >= ask->count)
			continue;
		if (ask->record[i].type != TG_RECORD_DATA || length <= TG_ALERT)
			continue;
		if (ask->h2 ? tg_is_control(length) : length == TG_CONTINUE)
			continue;
		return TG_SAID_RESPONSE;
	}
	return TG_SAID_CONTROL;
}

/* One more connection that offered HTTP/2, and got it or not. */
static __always_inline void tg_turn_chosen(struct tg_flow_way *way,
					   struct tg_flights *flights, int h2)
{
	way->server |= TG_SERVER_PREAMBLE;
	if (!flights)	/* which one it is is known all the same */
		return;
	if (h2)
		flights->h2++;
	else
		flights->h1++;
	if (flights->h2 + flights->h1 > TG_PREAMBLE_VOTES) {
		flights->h2 >>= 1;
		flights->h1 >>= 1;
	}
}

/* The first record after handshake and tickets says whether this is HTTP/2. */
static __always_inline __u32 tg_turn_preamble(struct tg_said_ask *ask,
					      struct tg_flow_way *way,
					      struct tg_flights *flights,
					      __u32 at)
{
	__u32 length = 0;

	for (__u32 i = 0; i < TG_RECORDS_MAX; i++)
		if (i == at && i < ask->count)
			length = ask->record[i].length;
	if (!ask->h2 || way->server & TG_SERVER_PREAMBLE || !length)
		return at;
	ask->h2 = length <= TG_PREAMBLE_MAX;
	tg_turn_chosen(way, flights, ask->h2);
	return ask->h2 ? at + 1 : at;
}

/* What a segment of the server's says, where it is made of records. */
__noinline int tg_turn_records(struct tg_said_ask *ask, struct tg_flow_way *way,
			       struct tg_flights *flights, __u64 meta)
{
	__u32 alike, known, at = 0;
	__u16 bytes;

	if (!ask || !way || !flights || !ask->count)
		return 0;	/* more of a record: of a response */
	alike = tg_flight_alike(ask);
	bytes = ask->record[0].length;
	if (ask->talk == TG_TALK_TLS13 && !(way->server & TG_SERVER_ANSWERED)) {
		known = tg_flight_known(flights, bytes);
		if (way->flight_records && way->flight != bytes)
			known = 0;	/* one size a flight */
		if (!(meta & TG_FLOW_TURN) &&
		    tg_flight_goes_on(ask, way, alike)) {
			/* nobody asked: it can be nothing else */
			way->flight = bytes;
			way->flight_records += alike;
			tg_flight_vote(flights, bytes, way->flight_records, 1);
			ask->said = TG_SAID_CONTROL;
			return 0;
		}
		if (known > way->flight_records) {
			at = known - way->flight_records;
			/* nothing but tickets: more of them than were seen so far */
			if (way->flight_records + alike <=
				    TG_FLIGHT_RECORDS_MAX &&
			    tg_flight_possible(ask, alike))
				at = alike;
			at = at < alike ? at : alike;
			way->flight = bytes;
			way->flight_records += at;
		} else if (tg_flight_fits(way, bytes, alike) &&
			   tg_flight_before(ask, alike)) {
			at = alike;
			way->flight = bytes;
			way->flight_records += alike;
		} else if (tg_flight_goes_on(ask, way, alike)) {
			/* the first of a size, or more of it than are known */
			way->flight = bytes;
			way->flight_records += alike;
			way->server |= TG_SERVER_CANDIDATE;
			return 0;
		}
	}
	ask->tickets = at;
	at = tg_turn_preamble(ask, way, flights, at);
	ask->said = tg_turn_rest(ask, at);
	return 0;
}

/* ---- the server speaks ---- */

/* One more exchange of a source; `first`: of its connection. */
__noinline int tg_turn_source(__u32 number, int first)
{
	__u32 *place = tg_flow_source(number);
	struct tg_source *source = place ? tg_source_at(READ_ONCE(*place)) : 0;

	if (!source)
		return 0;
	source->exchanges++;
	if (first) {
		source->good++;
		tg_source_forget(source);
	}
	return 0;
}

/* The server has responded; once for each exchange. */
static __always_inline void tg_turn_responded(const struct tg_flow *flow,
					      struct tg_flow_way *way,
					      struct tg_totals *totals)
{
	int first = !(way->server & TG_SERVER_ANSWERED);

	tg_turn_source(tg_flow_number_of(flow), first);
	if (!first)
		return;
	way->server |= TG_SERVER_ANSWERED;
	totals->answered++;
}

/* The first byte of a response. */
static __always_inline void tg_turn_complete(const struct tg_flow *flow,
					     struct tg_flow_way *way,
					     __u64 *meta, __u8 said)
{
	__u64 clear = TG_FLOW_WAITING | TG_FLOW_TURN | TG_FLOW_BEHIND |
		      TG_FLOW_SEEN_MASK | TG_FLOW_WATCH | TG_FLOW_H2 |
		      TG_FLOW_TALK_MASK | TG_FLOW_SLOW;
	struct tg_totals *totals = tg_flow_totals(*meta);
	__u64 now_ns = bpf_ktime_get_ns(), since_ns = way->request_ns;
	__u64 set = (now_ns >> TG_FLOW_TICK_SHIFT & TG_FLOW_SEEN_BITS)
		    << TG_FLOW_SEEN_SHIFT;

	set |= *meta & (TG_FLOW_H2 | TG_FLOW_TALK_MASK);
	if (said == TG_SAID_UPGRADE)
		set |= TG_FLOW_TALK_MASK;	/* TG_TALK_LONG */
	if (way->server & TG_SERVER_CANDIDATE)
		set |= TG_FLOW_WATCH;	/* whether more follows */
	if (!totals || !tg_turn_change(flow, meta, clear, set))
		return;
	way->request_ns = 0;
	tg_turn_responded(flow, way, totals);
	if (way->exchanges < 0xffff)
		way->exchanges++;
	if (way->client & TG_CLIENT_SLOW)
		totals->unknown++;
	else
		tg_record(&totals->first_byte,
			  tg_elapsed_ns(now_ns, since_ns));
	way->client &= ~TG_CLIENT_SLOW;
}

/* The server has done its part of a handshake: it owes nothing until more comes. */
static __always_inline void tg_turn_handshake(const struct tg_flow *flow,
					      struct tg_flow_way *way,
					      __u64 *meta)
{
	__u64 now_ns = bpf_ktime_get_ns();
	__u64 owed_ns = tg_elapsed_ns(now_ns, way->request_ns);

	if (tg_turn_change(flow, meta, TG_FLOW_WAITING, 0))
		way->request_ns = owed_ns;
}

/*
 * The server speaks, and nobody is known to have asked: a greeting; what it says
 * behind its handshake; or a response to what was not recognised as a request.
 * That is counted, and not timed.
 */
static __always_inline void tg_turn_unasked(const struct tg_flow *flow,
					    struct tg_flow_way *way,
					    __u64 *meta, __u8 said)
{
	struct tg_totals *totals = tg_flow_totals(*meta);
	__u64 clear = TG_FLOW_WATCH, set = TG_FLOW_ASKED;

	if (*meta & TG_FLOW_ASKED)
		tg_turn_change(flow, meta, clear, 0);
	if (said == TG_SAID_CONTROL || *meta & TG_FLOW_ASKED || !totals)
		return;
	if (tg_flow_talk(*meta) == TG_TALK_NEW)
		set |= (__u64)TG_TALK_OTHER << TG_FLOW_TALK_SHIFT;
	way->client |= TG_CLIENT_FINISHED;
	if (!tg_turn_change(flow, meta, clear, set))
		return;
	totals->asked++;
	totals->unknown++;
	tg_turn_responded(flow, way, totals);
}

/*
 * Something follows what looked like a flight of tickets, and was taken for the
 * response: more of the flight, the end of the connection, or what was asked for.
 */
static __always_inline void tg_turn_follows(const struct tg_flow *flow,
					    struct tg_flow_way *way,
					    __u64 *meta,
					    struct tg_said_ask *ask)
{
	struct tg_flights *flights = tg_flights_of(*meta);
	__u32 alike = tg_flight_alike(ask), at = 0;

	if (ask->count && ask->record[0].length <= TG_ALERT)
		return;
	if (ask->count && ask->record[0].length == way->flight &&
	    way->flight_records + alike <= TG_FLIGHT_RECORDS_MAX) {
		way->flight_records += alike;
		if (ask->exact && alike == ask->count)
			return;
		at = alike;
	}
	tg_flight_vote(flights, way->flight, way->flight_records, 1);
	way->server &= ~TG_SERVER_CANDIDATE;
	tg_turn_preamble(ask, way, flights, at);
	tg_turn_change(flow, meta, TG_FLOW_WATCH | (ask->h2 ? 0 : TG_FLOW_H2),
		       0);
}

/*
 * What the next request has to acknowledge. Tickets and control frames before any
 * request are not of it: a client asks behind its Finished, while they are on the
 * way to it. Those that come behind a request are: what does not acknowledge them
 * is more of that request, and no proof that they were the response.
 */
static __always_inline void tg_turn_spoke(struct tg_flow_way *way,
					  const struct tg_packet *p)
{
	way->reply = p->seq + 1;
	way->server |= TG_SERVER_SPOKE;
	if ((__s32)(p->ack - way->client_next) > 0)
		way->client_next = p->ack;
}

/* 1: it was said before, and is sent again. */
static __always_inline int tg_turn_repeated(const struct tg_flow_way *way,
					    const struct tg_packet *p)
{
	return way->server & TG_SERVER_SPOKE &&
	       (__s32)(p->seq + 1 - way->reply) <= 0;
}

/* A payload of the server's that is looked at; returns the word that now holds. */
static __always_inline __u64 tg_turn_server(TG_CONTEXT *ctx,
					    const struct tg_flow *flow,
					    const struct tg_packet *p,
					    __u64 meta)
{
	struct tg_flow_way *way = tg_flow_way(flow);
	struct tg_said_ask ask;

	if (!way || tg_turn_repeated(way, p))
		return meta;
	if (meta & TG_FLOW_WAITING && !(meta & TG_FLOW_TURN)) {
		tg_turn_spoke(way, p);
		tg_turn_handshake(flow, way, &meta);
		return meta;
	}
	ask = tg_turn_ask(way, meta);
	tg_said_server(ctx, p, &ask);
	if (way->server & TG_SERVER_CANDIDATE) {
		tg_turn_spoke(way, p);
		tg_turn_follows(flow, way, &meta, &ask);
		return meta;
	}
	if (ask.talk == TG_TALK_TLS12 || ask.talk == TG_TALK_TLS13)
		tg_turn_records(&ask, way, tg_flights_of(meta), meta);
	if (ask.said != TG_SAID_CONTROL || meta & TG_FLOW_TURN)
		tg_turn_spoke(way, p);
	if (!ask.h2 && meta & TG_FLOW_H2)
		tg_turn_change(flow, &meta, TG_FLOW_H2, 0);
	if (!(meta & TG_FLOW_TURN)) {
		if (ask.talk != TG_TALK_HELLO)
			tg_turn_unasked(flow, way, &meta, ask.said);
	} else if (ask.said != TG_SAID_CONTROL) {
		if (way->flight_records &&
		    !(way->server & (TG_SERVER_ANSWERED | TG_SERVER_CANDIDATE)))
			tg_flight_vote(tg_flights_of(meta), way->flight,
				       way->flight_records, 1);
		tg_turn_complete(flow, way, &meta, ask.said);
	} else if (ask.tickets) {
		tg_turn_change(flow, &meta, 0, TG_FLOW_BEHIND);
	} else {
		/* it says more: what came before was no response */
		tg_turn_change(flow, &meta, TG_FLOW_BEHIND, 0);
	}
	return meta;
}

/* ---- the client speaks ---- */

/*
 * A request that acknowledges the tickets which the last one waits behind: they
 * were its response, of the same size. When it came is not known any more.
 */
static __always_inline void tg_turn_mistaken(const struct tg_flow *flow,
					     struct tg_flow_way *way,
					     __u64 *meta)
{
	struct tg_totals *totals = tg_flow_totals(*meta);

	tg_flight_vote(tg_flights_of(*meta), way->flight, way->flight_records,
		       0);
	if (!totals ||
	    !tg_turn_change(flow, meta, TG_FLOW_WAITING | TG_FLOW_TURN |
					TG_FLOW_BEHIND | TG_FLOW_SLOW, 0))
		return;
	way->request_ns = 0;
	totals->unknown++;
	if (way->exchanges < 0xffff)
		way->exchanges++;
	tg_turn_responded(flow, way, totals);
}

/*
 * 1: bytes that are new, and that acknowledge what the server said last. One that
 * is not new asks whether the peer is there (RFC 1122, 4.2.3.6).
 */
static __always_inline int tg_turn_fresh(const struct tg_flow_way *way,
					 const struct tg_packet *p)
{
	if ((way->client & TG_CLIENT_SPOKE || p->payload == 1) &&
	    (__s32)(p->seq - way->client_next) < 0)
		return 0;
	return !(way->server & TG_SERVER_SPOKE) ||
	       (__s32)(p->ack - way->reply) >= 0;
}

/* What was said changes what is owed. */
static __always_inline void tg_turn_begin(const struct tg_flow *flow,
					  struct tg_flow_way *way,
					  const struct tg_packet *p,
					  __u64 *meta,
					  const struct tg_said_ask *ask)
{
	__u64 now_ns = bpf_ktime_get_ns(), before = *meta;
	__u64 clear = TG_FLOW_TALK_MASK | TG_FLOW_H2 | TG_FLOW_SEEN_MASK |
		      TG_FLOW_SLOW;
	__u64 set = (__u64)(ask->talk & TG_TALK_LONG) << TG_FLOW_TALK_SHIFT |
		    (ask->h2 ? TG_FLOW_H2 : 0) |
		    (now_ns >> TG_FLOW_TICK_SHIFT & TG_FLOW_SEEN_BITS)
			    << TG_FLOW_SEEN_SHIFT;
	struct tg_totals *totals = tg_flow_totals(before);
	__u64 owed_ns = way->request_ns;

	way->client = ask->client | TG_CLIENT_SPOKE;
	way->client_next = p->seq + p->payload;
	if (ask->said != TG_SAID_NOTHING) {
		set |= TG_FLOW_WAITING;
		/* before the word says so: the other direction reads it */
		way->request_ns = now_ns - owed_ns;
	}
	if (ask->said == TG_SAID_REQUEST)
		set |= TG_FLOW_TURN | TG_FLOW_ASKED;
	if (ask->said != TG_SAID_NOTHING || ask->unasked)
		set |= TG_FLOW_WATCH;
	if (!tg_turn_change(flow, meta, clear, set)) {
		way->request_ns = owed_ns;
		return;
	}
	if (totals && set & TG_FLOW_ASKED && !(before & TG_FLOW_ASKED))
		totals->asked++;
}

/* A payload at a turn, perhaps. */
static __always_inline void tg_turn_client(TG_CONTEXT *ctx,
					   const struct tg_flow *flow,
					   const struct tg_packet *p,
					   __u64 *meta)
{
	struct tg_flow_way *way = tg_flow_way(flow);
	struct tg_said_ask ask;

	if (tg_flow_talk(*meta) == TG_TALK_LONG || !way ||
	    !tg_turn_fresh(way, p))
		return;
	ask = tg_turn_ask(way, *meta);
	if (way->server & TG_SERVER_CANDIDATE) {
		/* nothing followed: it was the response, and too long for h2 */
		way->server &= ~TG_SERVER_CANDIDATE;
		if (ask.h2 && !ask.preamble) {
			tg_turn_chosen(way, tg_flights_of(*meta), 0);
			ask.h2 = 0;
		}
	}
	tg_said_client(ctx, p, &ask);
	if (*meta & TG_FLOW_BEHIND) {
		if (ask.said != TG_SAID_REQUEST)
			return;
		tg_turn_mistaken(flow, way, meta);
	}
	tg_turn_begin(flow, way, p, meta, &ask);
}

/*
 * 1: a payload while a request waits is more of it, or another one: not what the
 * server has yet to take, once more. A byte somewhere behind that may ask whether the
 * peer is there: then the same one comes again. Not static, as above.
 */
__noinline int tg_turn_sends(struct tg_flow_way *way, const struct tg_packet *p)
{
	if (!way || !p || (__s32)(p->seq - way->client_next) < 0)
		return 0;
	if (p->payload == 1 && p->seq != way->client_next) {
		way->client_next = p->seq + 1;
		return 0;
	}
	way->client |= TG_CLIENT_SLOW;
	return 1;
}

/* A payload while a request waits. A client that still sends it after a second is slow. */
static __always_inline void tg_turn_more(const struct tg_flow *flow,
					 const struct tg_packet *p,
					 __u64 *meta)
{
	/* HTTP/2 says other things meanwhile */
	if (tg_flow_idle(*meta, bpf_ktime_get_coarse_ns()) < TG_FLOW_TOUCH ||
	    *meta & TG_FLOW_H2 || tg_flow_talk(*meta) == TG_TALK_HTTP2)
		return;
	if (tg_turn_sends(tg_flow_way(flow), p))
		tg_turn_change(flow, meta, TG_FLOW_WAITING, TG_FLOW_SLOW);
}

/* ---- packets ---- */

/* 1: what a client says is more of what the server owes a response to. */
static __always_inline int tg_turn_owed(__u64 meta)
{
	return meta & (TG_FLOW_TURN | TG_FLOW_WAITING) &&
	       !(meta & TG_FLOW_BEHIND);
}

static __always_inline void tg_flow_end(const struct tg_flow *flow, __u64 meta)
{
	struct tg_totals *totals = tg_flow_totals(meta);
	struct tg_flow_way *way = tg_flow_way(flow);
	struct tg_flow_way last;

	if (!way)
		return;
	last = *way;
	if (!tg_flow_over(flow, meta) || !totals)
		return;
	tg_record(&totals->end,
		  tg_elapsed_ns(bpf_ktime_get_ns(), last.syn_ns));
	if (last.exchanges) {
		totals->ended++;
		totals->ended_exchanges += last.exchanges;
	} else if (meta & TG_FLOW_ASKED && !(last.server & TG_SERVER_ANSWERED)) {
		totals->lost++;
	}
}

/*
 * A packet of the client that may change something; `reset`: what the stack makes of
 * it, if it is a RST. One that it believes, or about which nobody can ask it, is the
 * end; another in the window ends waiting, as a FIN does, and nothing else. Whether
 * data came just before, which the stack has yet to take, is not known here: not all
 * of them are followed. 1: something is owed, and the stack has said nothing: it may have
 * dropped that, and this, too (syn/late.h). Inlined, unlike what follows: the stack
 * of the hook is deep, and has no room for one frame more.
 */
static __always_inline int tg_turn_in(TG_CONTEXT *ctx,
				      const struct tg_flow *flow,
				      const struct tg_packet *p, __u64 meta,
				      int reset)
{
	if (reset >= TG_RESET_UNKNOWN) {
		tg_flow_end(flow, meta);
		return 0;
	}
	if (unlikely(p->flags & TG_TCP_RST)) {
		if (!reset)
			return 0;
	} else if (unlikely(!(meta & TG_FLOW_TAKEN)) && tg_turn_owed(meta)) {
		return 1;
	} else if (p->payload) {
		if (!tg_turn_owed(meta))
			tg_turn_client(ctx, flow, p, &meta);
		else if (meta & TG_FLOW_TURN)
			tg_turn_more(flow, p, &meta);
	}
	if (unlikely(p->flags & (TG_TCP_FIN | TG_TCP_RST)))
		tg_turn_change(flow, &meta, TG_FLOW_WAITING, 0);
	if (meta != TG_FLOW_NONE)
		tg_flow_touch(flow, meta);
	return 0;
}

/*
 * A packet of the server's that may change something. Not inlined: most packets
 * need nothing of it, and what they run should lie together.
 */
static __noinline void tg_turn_out(TG_CONTEXT *ctx, const struct tg_flow *flow,
				   const struct tg_packet *p, __u64 meta)
{
	struct tg_flow_way *way;

	if (meta != TG_FLOW_NONE && !(meta & TG_FLOW_TAKEN))
		tg_turn_change(flow, &meta, 0, TG_FLOW_TAKEN);
	if (p->payload && meta & TG_FLOW_WATCH)
		meta = tg_turn_server(ctx, flow, p, meta);
	if (p->flags & (TG_TCP_FIN | TG_TCP_RST)) {
		way = tg_flow_way(flow);
		if (way && meta != TG_FLOW_NONE && meta & TG_FLOW_BEHIND &&
		    !(p->flags & TG_TCP_RST))
			tg_turn_mistaken(flow, way, &meta);
		tg_flow_end(flow, meta);
	} else if (meta != TG_FLOW_NONE) {
		tg_flow_touch(flow, meta);
	}
}

/* A packet of the client; `reset`, and what it says, as above. */
static __always_inline int tg_flow_ingress(TG_CONTEXT *ctx,
					   const struct tg_flow *flow,
					   const struct tg_packet *p,
					   int reset)
{
	__u64 meta = tg_flow_read(flow), now_ns;

	if (unlikely(meta == TG_FLOW_NONE))
		return 0;
	if (likely(!(p->flags & (TG_TCP_FIN | TG_TCP_RST)))) {
		now_ns = bpf_ktime_get_coarse_ns();
		if (likely(tg_flow_idle(meta, now_ns) < TG_FLOW_TOUCH) &&
		    (!p->payload || tg_turn_owed(meta)))
			return 0;
	}
	return tg_turn_in(ctx, flow, p, meta, reset);
}

/* A packet of the server. */
static __always_inline void tg_flow_egress(TG_CONTEXT *ctx,
					   const struct tg_flow *flow,
					   const struct tg_packet *p)
{
	__u64 meta = tg_flow_read(flow);

	if (unlikely(meta == TG_FLOW_NONE))
		return;
	if (likely(!(p->payload && meta & TG_FLOW_WATCH) &&
		   meta & TG_FLOW_TAKEN &&
		   !(p->flags & (TG_TCP_FIN | TG_TCP_RST))))
		tg_flow_touch(flow, meta);
	else
		tg_turn_out(ctx, flow, p, meta);
}

#endif
