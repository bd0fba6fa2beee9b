/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The maps of limits on datagrams: only the ingress hooks have them. */
#ifndef TG_DATAGRAM_MAPS_H
#define TG_DATAGRAM_MAPS_H

#include "../packet/maps.h"

/* By service. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TG_SERVICES_MAX);
	__type(key, __u32);
	__type(value, struct tg_datagram_chain);
} tg_datagram_states SEC(".maps");

/* By service, of each CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TG_SERVICES_MAX);
	__type(key, __u32);
	__type(value, struct tg_datagrams);
} tg_datagrams SEC(".maps");

#endif
