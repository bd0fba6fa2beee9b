/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Kernel types, helpers, ABI: what every header here starts from. */
#ifndef TG_BASE_H
#define TG_BASE_H

#include "../vmlinux/vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "../abi/tidegate.h"

/* Constants of the user interface that are macros there. */
#define BPF_F_CURRENT_NETNS (-1L)
#define BPF_F_RECOMPUTE_CSUM 1ULL
#define BPF_ADJ_ROOM_NET 0	/* of enum bpf_adj_room_mode */
#define BPF_RB_NO_WAKEUP 1ULL
#define TG_TC_NEXT (-1)		/* TC_ACT_UNSPEC, TCX_NEXT: others go on */
#define TG_TC_SHOT 2		/* TC_ACT_SHOT, TCX_DROP */
#define TG_LOOPBACK_IFINDEX 1
#define TG_PAGE_ALIGNED 1024	/* BPF_F_MMAPABLE: also aligned to a page */

#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile typeof(x) *)&(x) = (v))

const volatile struct tg_settings settings SEC(".rodata.settings");

#endif
