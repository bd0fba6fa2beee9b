/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a segment with payload says: whether it begins a request, or a response.
 * Only segments at a turn of a connection are looked into (track/turn.h).
 *
 *	HTTP/1		a method, or a status; 1xx is no response yet
 *	HTTP/2		frames (RFC 9113, 4.1): HEADERS begin both, control
 *			frames neither
 *	TLS		records (RFC 8446, 5.1): handshake, change of cipher
 *			and alerts are visible until TLS 1.2; in TLS 1.3 all of
 *			them look like data after the ServerHello, and their
 *			length has to tell
 *	other		any payload is a request, or a response
 *
 * Lengths inside TLS 1.3: a record is one byte for its type and 16 for its seal
 * longer than its content. A Finished is 4 + 32 or 48 bytes. The shortest HTTP/1.1
 * request, with the Host that it must have, is 27 bytes; "100 Continue" is 25.
 * Control frames of HTTP/2 have a few lengths, and no list of fields is as short.
 * Where two things have one length, the likelier is taken; what follows from an
 * error is one exchange that is not timed (track/turn.h).
 */
#ifndef TG_SAID_H
#define TG_SAID_H

#include "../packet/context.h"
#include "../packet/packet.h"
#include "talk.h"

enum tg_said {
	TG_SAID_NOTHING,	/* nothing that anybody waits for */
	TG_SAID_HANDSHAKE,	/* client: the server owes its part of it */
	TG_SAID_REQUEST,
	TG_SAID_RESPONSE,
	TG_SAID_UPGRADE,	/* a response after which there are no turns */
	TG_SAID_CONTROL,	/* server: records that are no response */
};

#define TG_RECORD_CIPHER 20	/* change_cipher_spec */
#define TG_RECORD_ALERT 21
#define TG_RECORD_HANDSHAKE 22
#define TG_RECORD_DATA 23
#define TG_RECORD_HEADER 5
#define TG_RECORD_MAX (16384 + 256)
#define TG_RECORDS_MAX 6	/* of one segment that are looked at */
#define TG_MESSAGE_CLIENT_HELLO 1
#define TG_HELLO_MIN 64

/* Lengths of records of TLS 1.3. */
#define TG_SEALED 17		/* what a record is longer than its content */
#define TG_SEAL12_MIN 16	/* what one of TLS 1.2 is, or … */
#define TG_SEAL12_MAX 24
#define TG_FINISHED_SHA256 (36 + TG_SEALED)
#define TG_FINISHED_SHA384 (52 + TG_SEALED)
#define TG_END_OF_EARLY_DATA (4 + TG_SEALED)
#define TG_REQUEST_MIN (27 + TG_SEALED)
#define TG_ALERT (2 + TG_SEALED)
#define TG_CONTINUE (25 + TG_SEALED)	/* "HTTP/1.1 100 Continue" */
/* An HTTP/2 server's first record: SETTINGS, and what may follow at once. */
#define TG_PREAMBLE_MAX (64 + TG_SEALED)
/* A HEADERS frame has 9 bytes of header and 5 fields at least. */
#define TG_HEADERS_MIN (14 + TG_SEALED)
/*
 * Content of HTTP/2 control frames beyond that: PING and GOAWAY; SETTINGS and a
 * window; two windows; PING and a window; three windows.
 */
#define TG_CONTROL_SET (1ULL << 17 | 1ULL << 22 | 1ULL << 26 | 1ULL << 30 | \
			1ULL << 39)
/* A client's preface: 24 bytes, SETTINGS of 0 … 8 entries, perhaps a window. */
#define TG_PREFACE_MIN 33
#define TG_PREFACE_MAX (33 + 8 * 6 + 13)

#define TG_FRAME_HEADER 9
#define TG_FRAMES_MAX 8
#define TG_FRAME_MAX (1U << 20)
#define TG_FRAME_DATA 0
#define TG_FRAME_HEADERS 1
#define TG_FRAME_LAST 0x10	/* PRIORITY_UPDATE: no type above it is known */
#define TG_PREFACE 24

struct tg_record {
	__u16 length;
	__u8 type;
	__u8 message;		/* first byte of its content */
};

/* What is known of a connection, what is asked, and what was found. */
struct tg_said_ask {
	__u8 talk;		/* in and out: enum tg_talk */
	__u8 client;		/* in and out: TG_CLIENT_… */
	__u8 h2;		/* in and out: HTTP/2 was offered, or chosen */
	__u8 preamble;		/* in: h2 says what was chosen */
	__u8 likely_h2;		/* in: what this listener chooses */
	__u8 unasked;		/* in: nobody has sent a request */
	__u8 said;		/* out: enum tg_said */
	__u8 count;		/* of records */
	__u8 exact;		/* 1: the last record ends with the segment */
	__u8 had_cert;		/* a segment before held a certificate */
	__u8 tickets;		/* out: of the records at its head, track/turn.h */
	__u8 pad;
	struct tg_record record[TG_RECORDS_MAX];
};

/* Reads the headers of the TLS records of a segment; zero: it begins with one. */
static __always_inline int tg_records(TG_CONTEXT *ctx,
				      const struct tg_packet *p,
				      struct tg_said_ask *ask)
{
	__u32 at = 0, length;
	__u8 b[8];

	ask->count = ask->exact = 0;
	for (__u32 i = 0; i < TG_RECORDS_MAX; i++) {
		if (at + TG_RECORD_HEADER + 1 > p->payload ||
		    TG_LOAD_BYTES(ctx, p->data + at, b, TG_RECORD_HEADER + 1))
			break;
		length = (__u32)b[3] << 8 | b[4];
		if (b[0] < TG_RECORD_CIPHER || b[0] > TG_RECORD_DATA ||
		    b[1] != 3 || b[2] > 4 || !length || length > TG_RECORD_MAX)
			break;
		ask->record[i].type = b[0];
		ask->record[i].length = length;
		ask->record[i].message = b[5];
		ask->count = i + 1;
		at += TG_RECORD_HEADER + length;
		if (at >= p->payload)
			break;
	}
	ask->exact = at == p->payload;
	return ask->count ? 0 : -1;
}

/* What a ClientHello offers for the protocol inside: 1 if that is HTTP/2. */
#define TG_HELLO_RANDOM 43	/* offset of the session id, in the record */
#define TG_HELLO_EXTENSIONS 32	/* that are looked at */
#define TG_EXTENSION_ALPN 16

struct tg_hello_walk {
	TG_CONTEXT *ctx;
	__u32 at;		/* offset in the frame */
	__u32 end;		/* of the segment, or of the extensions */
	__u32 h2;		/* once `at` has passed the end: what to say then */
};

static long tg_hello_alpn(__u32 i, struct tg_hello_walk *w)
{
	__u8 b[10];

	if (w->at + 4 > w->end || TG_LOAD_BYTES(w->ctx, w->at, b, 4))
		return 1;
	if (((__u32)b[0] << 8 | b[1]) == TG_EXTENSION_ALPN) {
		/* browsers and libraries name it first: 02 "h2" */
		if (!TG_LOAD_BYTES(w->ctx, w->at, b, sizeof(b)))
			w->h2 = b[6] == 2 && b[7] == 'h' && b[8] == '2';
		return 1;
	}
	w->at += 4 + ((__u32)b[2] << 8 | b[3]);
	return 0;
}

static __always_inline __u32 tg_hello_offers(TG_CONTEXT *ctx,
					     const struct tg_packet *p)
{
	struct tg_hello_walk w = { .ctx = ctx, .end = p->data + p->payload };
	__u32 at = p->data + TG_HELLO_RANDOM, last;
	__u8 b[4];

	/* session id, cipher suites, compressions, then the extensions */
	if (TG_LOAD_BYTES(ctx, at, b, 1))
		return 0;
	at += 1 + b[0];
	if (TG_LOAD_BYTES(ctx, at, b, 2))
		return 0;
	at += 2 + ((__u32)b[0] << 8 | b[1]);
	if (TG_LOAD_BYTES(ctx, at, b, 1))
		return 0;
	at += 1 + b[0];
	if (TG_LOAD_BYTES(ctx, at, b, 2))
		return 0;
	last = at + 2 + ((__u32)b[0] << 8 | b[1]);
	w.h2 = last > w.end;	/* goes on in the next segment: it may */
	if (last < w.end)
		w.end = last;
	w.at = at + 2;
	bpf_loop(TG_HELLO_EXTENSIONS, tg_hello_alpn, &w, 0);
	return w.h2;
}

/* The first payload of a connection. */
static __always_inline void tg_said_first(TG_CONTEXT *ctx,
					  const struct tg_packet *p,
					  struct tg_said_ask *ask)
{
	__u8 b[8];

	ask->said = TG_SAID_REQUEST;
	ask->talk = TG_TALK_OTHER;
	if (p->payload < 6 || TG_LOAD_BYTES(ctx, p->data, b, 6))
		return;
	if (b[0] == TG_RECORD_HANDSHAKE && b[1] == 3 &&
	    b[5] == TG_MESSAGE_CLIENT_HELLO) {
		ask->talk = TG_TALK_HELLO;
		ask->said = TG_SAID_HANDSHAKE;
		ask->h2 = tg_hello_offers(ctx, p);
	} else if (b[0] == 'P' && b[1] == 'R' && b[2] == 'I' && b[3] == ' ') {
		ask->talk = TG_TALK_HTTP2;
	} else if (b[0] - 'A' < 26U && b[1] - 'A' < 26U && b[2] - 'A' < 26U) {
		ask->talk = TG_TALK_HTTP1;
	}
}

/* A later payload of the client's in HTTP/1: a method, or more of a body. */
static __always_inline void tg_said_method(TG_CONTEXT *ctx,
					   const struct tg_packet *p,
					   struct tg_said_ask *ask)
{
	__u8 b[4];

	if (p->payload >= 4 && !TG_LOAD_BYTES(ctx, p->data, b, 3) &&
	    b[0] - 'A' < 26U && b[1] - 'A' < 26U && b[2] - 'A' < 26U)
		ask->said = TG_SAID_REQUEST;
}

/* The first payload of the server's after a request, in HTTP/1. */
static __always_inline void tg_said_status(TG_CONTEXT *ctx,
					   const struct tg_packet *p,
					   struct tg_said_ask *ask)
{
	__u8 b[12];

	ask->said = TG_SAID_RESPONSE;
	if (p->payload < sizeof(b) ||
	    TG_LOAD_BYTES(ctx, p->data, b, sizeof(b)) || b[0] != 'H' ||
	    b[4] != '/' || b[8] != ' ' || b[9] != '1')
		return;
	if (b[11] == '1' && b[10] == '0')
		ask->said = TG_SAID_UPGRADE;
	else if (b[11] != '0' || p->payload < TG_CONTINUE)
		ask->said = TG_SAID_CONTROL;	/* 100 is alone, or is followed */
}

/* HTTP/2 in the clear: 1 if one of a segment's frames is of an exchange. */
static __always_inline int tg_said_frames(TG_CONTEXT *ctx,
					  const struct tg_packet *p, __u32 at,
					  int server)
{
	__u32 length;
	__u8 b[12];

	for (__u32 i = 0; i < TG_FRAMES_MAX; i++) {
		if (at + TG_FRAME_HEADER > p->payload ||
		    TG_LOAD_BYTES(ctx, p->data + at, b, TG_FRAME_HEADER))
			return 0;
		length = (__u32)b[0] << 16 | (__u32)b[1] << 8 | b[2];
		/* not at the beginning of a frame: more of a body */
		if (b[3] > TG_FRAME_LAST || b[5] & 0x80 || length > TG_FRAME_MAX)
			return server;
		if (b[3] == TG_FRAME_HEADERS || (server && b[3] == TG_FRAME_DATA))
			return 1;
		at += TG_FRAME_HEADER + length;
	}
	return 0;
}

/* 1: content of this length is a control frame, or several, of HTTP/2. */
static __always_inline int tg_is_control(__u32 length)
{
	__u32 content = length - TG_SEALED;

	return length < TG_HEADERS_MIN ||
	       (content < 64 && TG_CONTROL_SET >> content & 1);
}

/* 1: as long as a client's preface with SETTINGS, and nothing more. */
static __always_inline int tg_is_preface(__u32 length)
{
	__u32 content = length - TG_SEALED;

	return content >= TG_PREFACE_MIN && content <= TG_PREFACE_MAX &&
	       (!((content - TG_PREFACE_MIN) % 6) ||
		!((content - TG_PREFACE_MIN - 13) % 6));
}

static __always_inline int tg_is_finished(__u32 length)
{
	return length == TG_FINISHED_SHA256 || length == TG_FINISHED_SHA384;
}

/* 1: a record of data of this length, in TLS 1.3, may begin a request. */
static __always_inline int tg_is_request(struct tg_said_ask *ask, __u32 length)
{
	if (!ask->h2)
		return length >= TG_REQUEST_MIN;
	if (tg_is_control(length))
		return 0;
	if (!ask->unasked || ask->client & TG_CLIENT_PREFACE ||
	    !tg_is_preface(length))
		return 1;
	/* what was chosen may not be known yet, but what usually is */
	ask->client |= TG_CLIENT_PREFACE;
	return !ask->preamble && !ask->likely_h2;
}

/* The same in TLS 1.2, where the seal has 16 or 24 bytes, and no type. */
static __always_inline int tg_is_request12(struct tg_said_ask *ask,
					   __u32 length)
{
	return tg_is_request(ask, length + TG_SEALED - TG_SEAL12_MIN) &&
	       (!ask->h2 ||
		tg_is_request(ask, length + TG_SEALED - TG_SEAL12_MAX));
}

/*
 * A record that belongs to the client's handshake in TLS 1.3: its certificate may
 * come first. Some clients send all of that as one record; then what begins
 * another segment is the first after it.
 */
static __always_inline void tg_said_end(struct tg_said_ask *ask, __u32 length)
{
	if (tg_is_finished(length)) {
		ask->client |= TG_CLIENT_FINISHED;
	} else if (ask->had_cert) {
		ask->client |= TG_CLIENT_FINISHED;
		if (tg_is_request(ask, length))
			ask->said = TG_SAID_REQUEST;
	} else if (length > TG_FINISHED_SHA384) {
		ask->client |= TG_CLIENT_CERT;
	}
}

/* One record of the client's; the end of its handshake comes first. */
static __always_inline void tg_said_record(struct tg_said_ask *ask,
					   const struct tg_record *r, int first)
{
	if (ask->talk == TG_TALK_HELLO) {
		/* a Finished of TLS 1.2 is sealed, and shorter than any hello */
		if (r->type == TG_RECORD_HANDSHAKE &&
		    r->message == TG_MESSAGE_CLIENT_HELLO &&
		    r->length >= TG_HELLO_MIN) {
			ask->said = TG_SAID_HANDSHAKE;	/* once more */
			return;
		}
		if (r->type == TG_RECORD_HANDSHAKE) {
			/* keys first: all of a handshake; else its end */
			ask->talk = TG_TALK_TLS12;
			ask->said = first ? TG_SAID_HANDSHAKE : TG_SAID_NOTHING;
			return;
		}
		if (r->type == TG_RECORD_DATA)
			ask->talk = TG_TALK_TLS13;
	}
	if (r->type != TG_RECORD_DATA)
		return;
	if (ask->talk != TG_TALK_TLS13) {
		if (tg_is_request12(ask, r->length))
			ask->said = TG_SAID_REQUEST;
	} else if (r->length == TG_END_OF_EARLY_DATA) {
		/* its Finished follows, also where the server has replied to
		 * early data before it */
		ask->client |= TG_CLIENT_EARLY;
		ask->client &= ~TG_CLIENT_FINISHED;
	} else if (!(ask->client & TG_CLIENT_FINISHED)) {
		tg_said_end(ask, r->length);
	} else if (tg_is_request(ask, r->length)) {
		ask->said = TG_SAID_REQUEST;
	}
}

static __always_inline void tg_said_tls(TG_CONTEXT *ctx,
					const struct tg_packet *p,
					struct tg_said_ask *ask)
{
	if (tg_records(ctx, p, ask))
		return;		/* more of a record, or none */
	ask->had_cert = !!(ask->client & TG_CLIENT_CERT);
	for (__u32 i = 0; i < TG_RECORDS_MAX; i++)
		if (i < ask->count)
			tg_said_record(ask, &ask->record[i], !i);
}

/* What a client says. Not static: the verifier looks at it once. */
__noinline int tg_said_client(TG_CONTEXT *ctx, const struct tg_packet *p,
			      struct tg_said_ask *ask)
{
	if (!ctx || !p || !ask)
		return 0;
	ask->said = TG_SAID_NOTHING;
	if (ask->talk == TG_TALK_NEW)
		tg_said_first(ctx, p, ask);
	else if (ask->talk == TG_TALK_HTTP1)
		tg_said_method(ctx, p, ask);
	else if (ask->talk == TG_TALK_OTHER)
		ask->said = TG_SAID_REQUEST;
	else if (ask->talk <= TG_TALK_TLS13)
		tg_said_tls(ctx, p, ask);
	if (ask->talk == TG_TALK_HTTP2)
		ask->said = tg_said_frames(ctx, p, ask->unasked &&
					   !(ask->client & TG_CLIENT_SPOKE) ?
					   TG_PREFACE : 0, 0) ?
				TG_SAID_REQUEST : TG_SAID_NOTHING;
	return 0;
}

/* What a server says to a request. Not static: the verifier looks at it once. */
__noinline int tg_said_server(TG_CONTEXT *ctx, const struct tg_packet *p,
			      struct tg_said_ask *ask)
{
	if (!ctx || !p || !ask)
		return 0;
	ask->said = TG_SAID_RESPONSE;
	ask->count = 0;
	if (ask->talk == TG_TALK_HTTP1) {
		tg_said_status(ctx, p, ask);
	} else if (ask->talk == TG_TALK_HTTP2) {
		if (!tg_said_frames(ctx, p, 0, 1))
			ask->said = TG_SAID_CONTROL;
	} else if (ask->talk == TG_TALK_TLS12) {
		if (!tg_records(ctx, p, ask) &&
		    ask->record[0].type != TG_RECORD_DATA)
			ask->said = TG_SAID_CONTROL;
	} else if (ask->talk == TG_TALK_TLS13) {
		tg_records(ctx, p, ask);	/* track/turn.h says the rest */
	}
	return 0;
}

#endif
