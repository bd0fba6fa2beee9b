/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Test only: the recogniser in the kernel, one call a run (tests/recognise.rs):
 * for the verifier, and to be compared with the native build. The frame is an
 * Ethernet header and then what a segment carries.
 */
#include "../http/http.h"
#include "../http/response.h"
#include "../http/tls_hello.h"
#include "../http/rule.h"

#define RECOGNISE_HEADER 14	/* bytes before the payload */

/* Where recognise.rs reads. */
TG_ASSERT(__builtin_offsetof(struct tg_head, http) == 200);
TG_ASSERT(__builtin_offsetof(struct tg_head, reply) == 200 + 40);
TG_ASSERT(__builtin_offsetof(struct tg_head, key) == 200 + 40 + 16);
TG_ASSERT(__builtin_offsetof(struct tg_head, pair) == 200 + 40 + 16 + 128);

struct recognise_args {
	__u32 call;	/* q, a, t, b, f: as in native/recognise.c */
	__u32 to;
	__u32 result;	/* out */
	__u32 pad;
	struct tg_follow follow;
	struct tg_asked asked;
};

#define ONE_ENTRY(type_of_value, name)				\
	struct {						\
		__uint(type, BPF_MAP_TYPE_ARRAY);		\
		__uint(max_entries, 1);				\
		__type(key, __u32);				\
		__type(value, type_of_value);			\
	} name SEC(".maps")

ONE_ENTRY(struct recognise_args, args);
ONE_ENTRY(struct tg_head, scratch);

static __always_inline __u32 recognise_load(struct __sk_buff *skb,
					    struct tg_head *head)
{
	__u32 length = skb->len - RECOGNISE_HEADER;

	if (length > TG_HEAD_MAX)
		length = TG_HEAD_MAX;
	if (!length || tg_head_load(skb, RECOGNISE_HEADER, length, head))
		return 0;
	return length;
}

SEC("tc")
int recognise(struct __sk_buff *skb)
{
	struct recognise_args *a = tg_at(&args, 0);
	struct tg_head *head = tg_at(&scratch, 0);
	__u32 length;

	if (!a || !head || skb->len <= RECOGNISE_HEADER)
		return TG_TC_SHOT;
	if (a->call == 'f') {
		struct tg_asked asked = a->asked;

		a->result = tg_rule_find(head, &asked);
		a->asked = asked;
		return TG_TC_NEXT;
	}
	if (a->call == 'b') {
		a->result = tg_follow(skb, RECOGNISE_HEADER,
				      skb->len - RECOGNISE_HEADER, &a->follow);
		return TG_TC_NEXT;
	}
	length = recognise_load(skb, head);
	if (!length)
		return TG_TC_SHOT;
	if (a->call == 'q')
		a->result = tg_http_request(head, length);
	else if (a->call == 'a')
		a->result = tg_answer_head(head, length, a->to);
	else
		a->result = tg_tls_hello(head, length);
	return TG_TC_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
