/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The recogniser of requests as an ordinary program, with sanitizers.
 *
 * Spoken to as talk.h says; tests/support/recogniser.rs is the other side.
 */
#include "http/http.h"
#include "http/response.h"
#include "http/tls_hello.h"
#include "http/rule.h"

#include "kernel.h"
#include "talk.h"

static struct tg_head host_head;

/* Settings are read-only for the recogniser, and written here. */
static void host_key(struct host_bytes *b)
{
	__u64 from = (__u64)&settings & ~(__u64)(NATIVE_PAGE - 1);
	__u64 size = (__u64)(&settings + 1) - from;

	if (mprotect((void *)from, size, PROT_READ | PROT_WRITE))
		abort();
	host_get(b, (void *)settings.key, sizeof(settings.key));
}

/* Bytes as a segment has them; what lies behind them is of another packet. */
static __u32 host_load(struct host_bytes *b)
{
	__u32 length = host_u32(b);

	if (length > TG_HEAD_MAX)
		abort();
	host_get(b, host_head.bytes, length);
	return length;
}

static void host_request(struct host_bytes *b, struct host_bytes *out)
{
	const struct tg_http *http = &host_head.http;
	__u32 length = host_load(b);

	host_put_u32(out, tg_http_request(&host_head, length));
	host_put(out, http, sizeof(*http));
	host_put(out, host_head.key.path, http->path);
	host_put(out, host_head.pair, http->pairs * sizeof(host_head.pair[0]));
}

static void host_answer(struct host_bytes *b, struct host_bytes *out)
{
	__u32 to = host_u32(b), length = host_load(b);

	host_put_u32(out, tg_answer_head(&host_head, length, to));
	host_put(out, &host_head.reply, sizeof(host_head.reply));
}

static void host_hello(struct host_bytes *b, struct host_bytes *out)
{
	__u32 length = host_load(b);

	host_put_u32(out, tg_tls_hello(&host_head, length));
	host_put(out, &host_head.http.host, sizeof(host_head.http.host));
}

static void host_body(struct host_bytes *b, struct host_bytes *out)
{
	struct tg_follow follow;

	host_get(b, &follow, sizeof(follow));
	native.length = host_u32(b);
	if (native.length > NATIVE_FRAME_MAX)
		abort();
	host_get(b, native.frame, native.length);
	host_put_u32(out, tg_follow(NULL, 0, native.length, &follow));
	host_put(out, &follow, sizeof(follow));
}

static void host_hash(struct host_bytes *b, struct host_bytes *out)
{
	struct tg_text text;
	__u32 length = host_load(b);
	__u64 hash;

	tg_text_begin(&text);
	for (__u32 i = 0; i < length; i++)
		tg_text_byte(&text, host_head.bytes[i]);
	hash = tg_text_end(&text);
	host_put(out, &hash, sizeof(hash));
}

/* A key and a value, of a hash or a trie. */
static void host_entry(struct host_bytes *b, const void *map, __u32 key_size,
		       __u32 value_size)
{
	__u8 key[sizeof(struct tg_path_key)], value[8];

	host_get(b, key, key_size);
	host_get(b, value, value_size);
	native_add(map, key, value);
}

static void host_find(struct host_bytes *b, struct host_bytes *out)
{
	struct tg_asked asked;

	host_get(b, &asked, sizeof(asked));
	native.calls = 0;
	host_put_u32(out, tg_rule_find(&host_head, &asked));
	host_put(out, &asked, sizeof(asked));
}

static void host_forget(void)
{
	for (int i = 0; i < NATIVE_MAPS; i++)
		if (native.maps[i].map)
			native_clear(&native.maps[i]);
}

static void host_command(struct host_bytes *b, struct host_bytes *out)
{
	__u8 command;
	__u32 at;

	host_get(b, &command, sizeof(command));
	switch (command) {
	case 'k': return host_key(b);
	case 'q': return host_request(b, out);
	case 'a': return host_answer(b, out);
	case 't': return host_hello(b, out);
	case 'b': return host_body(b, out);
	case 'x': return host_hash(b, out);
	case 'f': return host_find(b, out);
	case 'z': return host_forget();
	case 'p': return host_entry(b, &tg_paths, sizeof(struct tg_path_key), 4);
	case 'h': return host_entry(b, &tg_hosts, sizeof(struct tg_host_key), 4);
	case 'r':
		at = host_u32(b);
		host_get(b, native_entry(&tg_rules, at),
			 sizeof(struct tg_rule));
		return;
	case 'c':
		at = host_u32(b);
		host_get(b, native_entry(&tg_cookie_tests, at),
			 sizeof(struct tg_cookie_test));
		return;
	}
	abort();
}

static void host_map(const void *map, const char *name, __u32 type,
		     struct native_map m)
{
	m.map = map;
	m.name = name;
	m.type = type;
	native_register(m);
}

static void host_maps(void)
{
	host_map(&tg_rules, "tg_rules", BPF_MAP_TYPE_ARRAY,
		 (struct native_map){
			 .key_size = sizeof(__u32),
			 .value_size = sizeof(struct tg_rule),
			 .max = TG_SLOTS * TG_RULES_MAX,
		 });
	host_map(&tg_cookie_tests, "tg_cookie_tests", BPF_MAP_TYPE_ARRAY,
		 (struct native_map){
			 .key_size = sizeof(__u32),
			 .value_size = sizeof(struct tg_cookie_test),
			 .max = TG_SLOTS * TG_COOKIE_TESTS_MAX,
		 });
	host_map(&tg_paths, "tg_paths", BPF_MAP_TYPE_LPM_TRIE,
		 (struct native_map){
			 .key_size = sizeof(struct tg_path_key),
			 .value_size = sizeof(__u32),
			 .max = TG_SLOTS * TG_RULES_MAX,
		 });
	host_map(&tg_hosts, "tg_hosts", BPF_MAP_TYPE_HASH,
		 (struct native_map){
			 .key_size = sizeof(struct tg_host_key),
			 .value_size = sizeof(__u32),
			 .max = TG_SLOTS * TG_HOSTS_MAX,
		 });
}

#ifndef TG_NATIVE_NO_MAIN
int main(void)
{
	native_memory();
	host_maps();
	return host_serve(host_command);
}
#endif
