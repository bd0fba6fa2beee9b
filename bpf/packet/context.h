/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The packet as the program's hook has it, and the helpers that read and write its bytes.
 * TG_AT_XDP is given to the compiler for programs at XDP (builder.rs); all others
 * run at tc.
 */
#ifndef TG_CONTEXT_H
#define TG_CONTEXT_H

#include "base.h"

#ifdef TG_AT_XDP
#define TG_CONTEXT struct xdp_md
#define TG_LOAD_BYTES bpf_xdp_load_bytes
#define TG_STORE_BYTES bpf_xdp_store_bytes
#else
#define TG_CONTEXT struct __sk_buff
#define TG_LOAD_BYTES bpf_skb_load_bytes
#define TG_STORE_BYTES(skb, at, from, length)				\
	bpf_skb_store_bytes(skb, at, from, length, BPF_F_RECOMPUTE_CSUM)
#endif

#endif
