/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef TG_RESET_H
#define TG_RESET_H

/*
 * What the stack would make of a client's RST now. What came before it in the same
 * batch, or waits while the application holds the socket, has yet to reach the stack:
 * then the stack makes something else of it.
 */
enum tg_reset {
	TG_RESET_NONE,		/* nothing: it lies outside of the window */
	TG_RESET_UNSURE,	/* an ACK: it is not the byte that comes next */
	TG_RESET_UNKNOWN,	/* nobody can say: a router, DNAT, or nothing but
				 * a listener. For signals it is the end: too few
				 * connections counted refuse nobody */
	TG_RESET_OVER,		/* the end of the connection */
};

#endif
