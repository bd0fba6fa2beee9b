/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What a connection talks, and how far it has come (track/flow.h, track/turn.h). */
#ifndef TG_TALK_H
#define TG_TALK_H

enum tg_talk {
	TG_TALK_NEW,		/* the client has said nothing */
	TG_TALK_HELLO,		/* TLS: a ClientHello */
	TG_TALK_TLS12,
	TG_TALK_TLS13,
	TG_TALK_HTTP1,
	TG_TALK_HTTP2,		/* in the clear */
	TG_TALK_OTHER,		/* any payload is a turn */
	TG_TALK_LONG,		/* no turns: after a 101, or not to be told */
};

/* What a flow knows of its client, */
#define TG_CLIENT_SPOKE 1	/* client_next is valid */
#define TG_CLIENT_CERT 4	/* its Finished comes after a certificate */
#define TG_CLIENT_FINISHED 8
#define TG_CLIENT_SLOW 16	/* it still sends its request after a second */
#define TG_CLIENT_PREFACE 32	/* of HTTP/2, or something as long */
#define TG_CLIENT_EARLY 64	/* its request came with its hello (0-RTT) */

/* and of its server. */
#define TG_SERVER_SPOKE 1	/* it has said what a client acknowledges */
#define TG_SERVER_ANSWERED 2	/* … and a response */
#define TG_SERVER_PREAMBLE 4	/* its first record after the handshake is over */
#define TG_SERVER_CANDIDATE 8	/* a flight, if more follows */

#endif
