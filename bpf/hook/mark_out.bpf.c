/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Marks in band, on what goes out. It drops nothing. */
#include "../packet/tc.h"
#include "../mark/mark.h"

SEC("tc")
int tg_marks_out(struct __sk_buff *skb)
{
	tg_mark_out(skb);
	return TG_TC_NEXT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
