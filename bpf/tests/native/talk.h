/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How the native programs are spoken to, over stdin and stdout: a length and
 * that many bytes of commands in, a length and that many bytes of results out.
 * Integers are little-endian.
 */
#ifndef TG_NATIVE_TALK_H
#define TG_NATIVE_TALK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOST_COMMANDS_MAX (1 << 20)	/* bytes in one message */
#define HOST_RESULTS_MAX (1 << 22)

struct host_bytes {
	__u8 *at;
	__u8 *end;
};

static inline void host_get(struct host_bytes *b, void *to, __u32 length)
{
	if (length > (__u64)(b->end - b->at))
		abort();	/* the other side is wrong */
	memcpy(to, b->at, length);
	b->at += length;
}

static inline void host_put(struct host_bytes *b, const void *from,
			    __u32 length)
{
	if (length > (__u64)(b->end - b->at))
		abort();
	memcpy(b->at, from, length);
	b->at += length;
}

static inline __u8 host_u8(struct host_bytes *b)
{
	__u8 value;

	host_get(b, &value, sizeof(value));
	return value;
}

static inline __u32 host_u32(struct host_bytes *b)
{
	__u32 value;

	host_get(b, &value, sizeof(value));
	return value;
}

static inline __u64 host_u64(struct host_bytes *b)
{
	__u64 value;

	host_get(b, &value, sizeof(value));
	return value;
}

static inline void host_put_u8(struct host_bytes *b, __u8 value)
{
	host_put(b, &value, sizeof(value));
}

static inline void host_put_u32(struct host_bytes *b, __u32 value)
{
	host_put(b, &value, sizeof(value));
}

static inline int host_read(void *to, __u32 length)
{
	return fread(to, 1, length, stdin) == length;
}

/* Answers messages until there are no more; what main returns. */
static inline int host_serve(void (*command)(struct host_bytes *in,
					     struct host_bytes *out))
{
	static __u8 commands[HOST_COMMANDS_MAX], results[HOST_RESULTS_MAX];
	__u32 length;

	while (host_read(&length, sizeof(length))) {
		struct host_bytes in = { commands, commands + length };
		struct host_bytes out = { results, results + sizeof(results) };

		if (length > sizeof(commands) || !host_read(commands, length))
			return 1;
		while (in.at < in.end)
			command(&in, &out);
		length = out.at - results;
		fwrite(&length, sizeof(length), 1, stdout);
		fwrite(results, 1, length, stdout);
		fflush(stdout);
	}
	return 0;
}

#endif
