/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What kernel and user space share: the layout of every map, of samples, of
 * the settings. The Rust side is generated from this (build.rs). TG_ABI_VERSION is
 * part of the path of the pins: raise it with every change of a layout or of a
 * meaning; another version gets fresh state.
 *
 * Addresses are in network order, IPv4 mapped into IPv6 (::ffff:a.b.c.d).
 * Ports and everything else are in host order.
 */
#ifndef TG_ABI_H
#define TG_ABI_H

/* A policy's state is under the kernel's lock. */
#define TG_LOCK_TYPE struct bpf_spin_lock
#define TG_LOCK(lock) bpf_spin_lock(lock)
#define TG_UNLOCK(lock) bpf_spin_unlock(lock)

#include "../../policy/chain/chain.h"
#include "../../policy/chain/datagram.h"
#include "../../policy/chain/lately.h"
#include "../../policy/chain/request.h"

#define TG_ABI_VERSION 20
#define TG_SERVICES_MAX 32
#define TG_CLASSES_MAX 16
#define TG_DSCP_MAX 64
#define TG_SLOTS 2	/* of classification: one in force, one to fill */

/* Two bits a port: whether a service listens there, and at which addresses. */
#define TG_PORT_EXACT 1
#define TG_PORT_ANY 2
#define TG_PORT_BYTES (65536 / 4)

/*
 * The switches of the operator; one entry. The first two stay where they are in
 * every version: a switch that is thrown is carried over.
 */
struct tg_control {
	__u32 slot;		/* which classification is in force */
	__u32 released;		/* not 0: everything passes; 2: left by a
				 * clean stop, and no operator */
	__u64 seed[2];		/* of all hashes; as old as the state */
};

/* The daemon's sign of life; one entry. */
struct tg_lease {
	__u64 heartbeat_ns;	/* bpf_ktime_get_ns; 0: never */
};

#define TG_TABLE_EXEMPT 1	/* there are exempt prefixes */
#define TG_TABLE_SRC_PREFIXES 2	/* tg_src_prefixes has all of IPv4 */

#define TG_SERVICE_PREFIXES 1	/* the service has classes by prefix */
#define TG_SERVICE_DSCP 2	/* the service has classes by DSCP */

struct tg_service {
	__u8 flags;
	__u8 gauge;		/* index of its gauges: service * 4 + n */
	__u8 pad[6];
	__u64 identity;		/* hash of its name; 0: no service */
	__u8 priority[TG_CLASSES_MAX];
	__u8 dscp[TG_DSCP_MAX];	/* class of a DSCP; 0: none */
};
TG_ASSERT(sizeof(struct tg_service) == 96);

/* One classification, whole; TG_SLOTS entries. */
struct tg_table {
	__u32 flags;
	__u32 sample_admitted;	/* one in so many; 0: none */
	__u32 sample_refused;
	__u32 pad;
	struct tg_bucket_params answers;	/* per CPU */
	struct tg_bucket_params answers_proved;	/* see reply/rst.h */
	struct tg_service service[TG_SERVICES_MAX];
	__u8 ports[TG_PORT_BYTES];
};

struct tg_listen_key {
	__u32 addr[4];		/* zero (mapped for IPv4): any */
	__u16 port;
	__u8 proto;
	__u8 slot;
};

#define TG_LISTEN_EXEMPT 1	/* a port that is exempt */

struct tg_listen {
	__u8 service;
	__u8 flags;
	__u8 pad[2];
};

/*
 * The same once more, by port: read, not searched. first[port] is the number of
 * the first listener there; 0: none, or more than TG_LISTENERS_AT, then the
 * hash must be asked. Listeners of a port follow each other, those of one
 * address come first.
 */
#define TG_LISTENERS_MAX 2048
#define TG_LISTENERS_AT 4
#define TG_LISTENER_IPV4 1		/* any address of IPv4 */
#define TG_LISTENER_IPV6 2

struct tg_listener {
	__u32 addr[4];
	struct tg_listen listen;
	__u8 any;		/* TG_LISTENER_…; 0: this address */
	__u8 more;		/* 1: the next is of this port, too */
	__u8 pad[2];
};
TG_ASSERT(sizeof(struct tg_listener) == 24);

struct tg_listeners {
	__u16 first[65536];
	struct tg_listener listener[TG_LISTENERS_MAX];	/* [0] is unused */
};

/* Longest prefix: slot and service are the first 16 bits. */
struct tg_prefix_key {
	__u32 bits;		/* 16 + prefix length of the mapped address */
	__u8 slot;
	__u8 service;		/* TG_SERVICES_MAX: the exempt set */
	__u8 addr[16];
	__u8 pad[2];
};
#define TG_PREFIX_BITS_MAX (16 + 128)

/*
 * The prefixes once more, for IPv4: all services and the exempt set
 * flattened into tables that are read, not searched. An entry is the number of
 * a row, or TG_SRC_BLOCK and the number of a block that looks at the next 8
 * bits. Prefixes that do not fit stay in the trie, and the flag is not set.
 */
#define TG_SRC_BLOCK 32768
#define TG_SRC_BLOCKS 2048
#define TG_SRC_ROWS 8192
#define TG_SRC_EXEMPT 1	/* row of what is exempt */

struct tg_src_row {
	__u8 class[TG_SERVICES_MAX];	/* 0: none */
};

struct tg_src_prefixes {
	__u16 root[65536];		/* by the upper 16 bits */
	__u16 block[TG_SRC_BLOCKS][256];
	struct tg_src_row row[TG_SRC_ROWS];
};

/*
 * Counters of verdicts, by service and class. Reasons to admit are 20…29, to
 * refuse 30…47; a refusal is counted by verdict and by whether it was executed.
 * Reasons from 48 on are those of requests, counted in tg_request_reasons.
 */
#define TG_REASON_FIRST 20
#define TG_REASON_REFUSED 30
#define TG_REASON_VERDICTS 48
#define TG_COUNT_ADMIT (TG_REASON_REFUSED - TG_REASON_FIRST)
#define TG_COUNT_REFUSE (TG_REASON_VERDICTS - TG_REASON_REFUSED)
#define TG_COUNT_KINDS 6	/* (drop, reject, delay) x (executed, shadow) */
#define TG_COUNTS (TG_COUNT_ADMIT + TG_COUNT_KINDS * TG_COUNT_REFUSE)
TG_ASSERT(TG_REASON_NO_RULE == TG_REASON_VERDICTS);

struct tg_counts {
	__u64 cell[TG_COUNTS];
};

/*
 * By reason, per CPU: packets that passed without being evaluated; and by service,
 * segments with data that no request rule of their own evaluated.
 */
struct tg_reason_counts {
	__u64 reason[TG_REASONS_MAX];
};

/* Beside the reasons of packets, and none: those whose marks a border cleared. */
#define TG_PASSED_CLEARED 79
TG_ASSERT(TG_PASSED_CLEARED == TG_REASONS_MAX - 1);

/*
 * Of one service, of each CPU: its copy of the bucket for datagrams, and the datagrams
 * that came. Counts only grow.
 */
struct tg_datagrams {
	struct tg_bucket_copy copy;
	__u64 offered;		/* with what was refused */
	__u64 refused;		/* dropped, */
	__u64 refused_bytes;	/* of IP */
	__u64 spared;		/* refused, but only counted: shadow, lease, canary */
};
TG_ASSERT(sizeof(struct tg_datagrams) == 112);

#define TG_HISTOGRAM_BUCKETS 256

struct tg_histogram {
	__u64 count;
	__u64 sum_ns;
	__u64 bucket[TG_HISTOGRAM_BUCKETS];
};

/* Totals of one service, per CPU; they only grow. */
struct tg_totals {
	__u64 offered;
	__u64 repeated;
	__u64 admitted;
	__u64 refused;
	/* connections, each once: */
	__u64 replied;		/* by a SYN-ACK */
	__u64 proved;		/* completed the handshake */
	__u64 asked;		/* sent a first request */
	__u64 answered;		/* got the first byte of its response */
	__u64 ended;		/* of the answered */
	__u64 ended_exchanges;	/* that these had */
	__u64 unknown;		/* exchanges that could not be timed */
	__u64 lost;		/* connections that asked and got nothing */
	struct tg_histogram first_byte;
	struct tg_histogram end;
};

/*
 * Gauges of one service, on a cache line of their own. Each service has four:
 * a reload that gives an index to another service moves on to the next, and
 * what is left of the old one's connections falls on a gauge nobody reads.
 */
#define TG_GAUGES_EACH 4
#define TG_GAUGES_MAX (TG_SERVICES_MAX * TG_GAUGES_EACH)

struct tg_gauges {
	__s64 waiting;
	__s64 open;
	__u64 untracked;	/* verified, but the table had no room */
	__u64 evicted;		/* idle too long */
	__u64 forgotten;	/* of these, those that waited for an answer */
	__s64 silent;		/* open, no request yet, nothing owed */
	__s64 slow;		/* that send a request slowly */
	__u64 sourceless;	/* verified, and no room for their source */
};
TG_ASSERT(sizeof(struct tg_gauges) == 64);

/* A SYN that passed and is not verified yet; lost without harm. */
struct tg_pending {
	__u32 fingerprint;
	__u32 isn;		/* of the server; 0: not known yet */
	__u64 syn_ns;		/* bit 0: the client has sent data */
	__u64 copy_ns;		/* when it passed last */
	__u32 seq;		/* of the client's */
	__u8 copies;		/* that passed after it */
	__u8 gauge;		/* of its service */
	__u8 noted;		/* TG_SENDER_… of policy/chain/senders.h */
	__u8 pad;
};
TG_ASSERT(sizeof(struct tg_pending) == 32);

/* Of all services, per CPU. */
struct tg_notes {
	__u64 lost;		/* young notes of SYNs that others took the place of */
};

#define TG_FLOW_WAYS 4

/*
 * Verified connections that share a place: their state, one word each (see
 * track/flow.h; 0: free). Every packet reads this: half a cache line.
 */
struct tg_flow_set {
	__u64 meta[TG_FLOW_WAYS];
};
TG_ASSERT(sizeof(struct tg_flow_set) == 32);

/* Of one connection, what few packets need. */
struct tg_flow_way {
	__u64 syn_ns;		/* bit 0: the client has sent data */
	/*
	 * While the server owes something: since when, moved back by what it had
	 * owed before in this exchange. Otherwise: what it has owed so far.
	 */
	__u64 request_ns;
	/* after the first segment of the last turn, and what the server had of
	 * its client when it responded */
	__u32 client_next;
	__u32 reply;		/* after the first byte of what the server said last */
	__u16 exchanges;	/* that it had; no more than fit */
	__u16 flight;		/* bytes of a record that may be a ticket */
	__u8 flight_records;	/* of that size that were seen */
	__u8 client;		/* TG_CLIENT_… */
	__u8 server;		/* TG_SERVER_… */
	__u8 pad;
};
TG_ASSERT(sizeof(struct tg_flow_way) == 32);

/* In the same order; each has half a cache line. */
struct tg_flow_times {
	struct tg_flow_way way[TG_FLOW_WAYS];
};
TG_ASSERT(sizeof(struct tg_flow_times) == 128);

/*
 * What the responses of a service's TLS listeners begin with that is none:
 * session tickets, which a server of TLS 1.3 sends after the handshake. Learned
 * from connections on which more followed.
 */
#define TG_FLIGHTS_EACH 4
#define TG_FLIGHT_KNOWN 8	/* votes */
#define TG_FLIGHT_VOTES_MAX 32

struct tg_flight {
	__u16 bytes;		/* of one record */
	__u8 records;
	__u8 votes;
};

struct tg_flights {
	struct tg_flight flight[TG_FLIGHTS_EACH];
	__u32 h2;		/* connections that offered HTTP/2 and got it */
	__u32 h1;		/* and those that did not */
	__u32 pad[2];
};
TG_ASSERT(sizeof(struct tg_flights) == 32);

/*
 * The place of a source in tg_sources, for each connection in the same order as
 * tg_flows: 1 + it; 0: its source found no room.
 */
struct tg_flow_sources {
	__u32 place[TG_FLOW_WAYS];
};
TG_ASSERT(sizeof(struct tg_flow_sources) == 16);

/*
 * Sources of a service: an address, of IPv6 a /64. Only one whose client has
 * completed a handshake gets a place (track/source.h). A word each: 40 bits of the
 * key, and below them how many of its connections are open; 0: free.
 */
#define TG_SOURCE_WAYS 4
#define TG_SOURCE_OPEN_BITS 24

struct tg_source_set {
	__u64 word[TG_SOURCE_WAYS];
};
TG_ASSERT(sizeof(struct tg_source_set) == 32);

struct tg_source {
	__u8 addr[16];		/* as sent; of IPv6 the last 64 bits are zero */
	__u64 proved_ns;	/* when a handshake was completed last */
	__s32 held;		/* connections that are open and silent, or slow */
	__u32 peak;		/* most that were open at once, lately */
	/* of its last connections; halved together (track/source.h): */
	__u32 good;		/* that got a response */
	__u32 bad;		/* that ended silent or slow */
	__u32 exchanges;	/* that were completed */
	__u8 gauge;		/* of the service */
	__u8 pad[3];
	__u64 answered_ns;	/* answers beyond the cap are used up to here */
	__u64 spare;
};
TG_ASSERT(sizeof(struct tg_source) == 64);

struct tg_sample {
	__u64 now_ns;
	__u32 src[4];
	__u32 dst[4];
	__u16 sport;
	__u16 dport;
	__u8 service;
	__u8 class;
	__u8 verdict;
	__u8 reason;
	__u8 shadow;
	__u8 repeated;
	__u8 priority;
	__u8 listener;		/* 1: the next two were read */
	__u32 accept_length;
	__u32 accept_limit;
	__u32 pad;
	__s64 waiting;
};
TG_ASSERT(sizeof(struct tg_sample) == 72);

/* How an answer leaves XDP. */
#define TG_ANSWER_TX 0
#define TG_ANSWER_REDIRECT 1	/* veth: see docs, XDP_TX may be lost there */
#define TG_ANSWER_NEVER 2

/* What a packet begins with: an Ethernet header, or IP. */
#define TG_LINK_ETHERNET 0
#define TG_LINK_PLAIN 1

#define TG_KEYS 6

/* Read-only: the verifier prunes what is not chosen. One set an interface. */
struct tg_settings {
	__u64 key[TG_KEYS];	/* of the hash: the seed of this boot, drawn out */
	__u64 flow_timeout_ns;
	__u64 loaded_ns;	/* when the hook was loaded */
	__u32 flow_mask;	/* sets - 1 */
	__u32 pending_mask;	/* slots - 1 */
	__u32 answer;
	__u32 trust_dscp;
	__u32 source_mask;	/* sets - 1 */
	__u32 lately_mask;	/* lines of a slice - 1 */
	__u32 link;		/* TG_LINK_… */
	__u32 import;		/* 1: rules of routers hold here (import/import.h) */
	__u32 datagrams;	/* 1: datagrams are counted (datagram/datagram.h) */
	__u32 border;		/* bits of DSCP to clear (border/border.h) */
	__u32 to_servers;	/* 1: marks tell of congestion here (mark/mark.h) */
	__u32 pad;
};

/* In and out of the heartbeat program. */
struct tg_heartbeat {
	__u64 now_ns;		/* out */
	__u32 reap_from;	/* in and out: next set to look at */
	__u32 reap_sets;	/* in: how many */
};

/* In and out of the replay program (tests). */
struct tg_replay {
	struct tg_event event;
	struct tg_verdict verdict;
	__u32 service;
	__u32 found;		/* out: 1 if the policy was asked */
};

#endif
