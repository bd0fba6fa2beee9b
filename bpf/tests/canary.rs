// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A gate that finds nothing proves nothing: each of these bugs is planted into a copy of the
//! sources, and the cases must find it, by a difference or by a crash.
//!
//! A canary whose text is no longer in the source fails: plant it anew where the idea went.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::path::Path;
use support::canary::{Canary, Copy, plant};
use support::cases::{Case, all};
use support::engine::{Hook, Seen};
use support::native::{How, Native, Program};
use support::reference::Action;
use support::setup::rejecting;
use support::time_wait;

/// Bytes of a frame that are made unreadable one by one.
const READ_MAX: usize = 100;

const PARSER: [Canary; 12] = [
    ("bpf/packet/parse.h", "if (announced > there)", "if (announced > there + 1)"),
    ("bpf/packet/parse.h", "if (frag & 0x1fff)", "if (frag & 0x0fff)"),
    ("bpf/packet/parse.h", "length = (ext.len + 2) * 4;", "length = (ext.len + 1) * 8;"),
    ("bpf/packet/parse.h", "#define TG_EXTENSIONS_MAX 8", "#define TG_EXTENSIONS_MAX 9"),
    ("bpf/packet/parse.h", "#define TG_VLANS_MAX 2", "#define TG_VLANS_MAX 3"),
    ("bpf/packet/parse.h", "p->dscp = ip->tos >> 2;", "p->dscp = ip->tos;"),
    ("bpf/packet/parse.h", "p->payload = left - header;", "p->payload = left - sizeof(*tcp);"),
    ("bpf/packet/parse.h", "bpf_htons(0xfff8)", "bpf_htons(0xff00)"),
    ("bpf/packet/parse.h", "w->fragment |= bpf_ntohs(ext.frag) & 1;", ""),
    ("bpf/packet/parse.h", "if (header > left)", "if (header > left + 4)"),
    ("bpf/packet/parse.h", "if ((void *)(tcp + 1) > c->end)", "if ((void *)tcp > c->end)"),
    ("bpf/packet/parse.h", "if ((void *)(vlan + 1) > c->end)", "if ((void *)vlan > c->end)"),
];

const CLASSIFIER: [Canary; 14] = [
    ("bpf/packet/classify.h", "if (l->any)", "if (0)"),
    ("bpf/packet/classify.h", "l->addr[3] == addr[3] &&", ""),
    ("bpf/packet/classify.h", "if (!listener->more)", "if (1)"),
    ("bpf/packet/packet.h", "TG_TCP_FIN)) == TG_TCP_SYN", "0)) == TG_TCP_SYN"),
    ("bpf/packet/classify.h", "if (tg_listen_flags(listen) & TG_LISTEN_EXEMPT)", "if (0)"),
    ("bpf/packet/classify.h", "if (settings.trust_dscp &&", "if ("),
    ("bpf/packet/classify.h", "kinds & TG_PORT_EXACT", "0"),
    ("bpf/packet/classify.h", "tg_prefix_of(view, p, TG_SERVICES_MAX)", "0"),
    ("bpf/packet/classify.h", "return src_row == TG_SRC_EXEMPT;", "return 0;"),
    ("bpf/packet/classify.h", "[address >> 8 & 0xff]", "[address & 0xff]"),
    ("bpf/packet/classify.h", "return tg_src_class(view->slot, src_row, index);", "return 0;"),
    ("bpf/track/queue.h", "reason = TG_REASON_SOCKET_REQUEST;", "reason = 0;"),
    ("bpf/track/queue.h", "reason = TG_REASON_SOCKET_ESTABLISHED;", "reason = 0;"),
    ("bpf/track/queue.h", "return TG_REASON_SOCKET_TIME_WAIT;", "return 0;"),
];

const TIME_WAIT: [Canary; 6] = [
    ("bpf/track/queue.h", "(tw->next - p->seq) < 0", "(tw->next - p->seq) <= 0"),
    ("bpf/track/queue.h", "if (tw->closing)", "if (0)"),
    ("bpf/track/queue.h", "if (older > 0 && tw->stamp)", "if (older > 0)"),
    ("bpf/track/queue.h", "return later || older < 0;", "return later;"),
    ("bpf/track/queue.h", "tg_socket_from(ctx, p, 0);", "0;"),
    ("bpf/packet/options.h", "o->at += length;", "o->at++;"),
];

const CHAIN: [Canary; 19] = [
    ("policy/chain/chain.h", ">= share;", "> share;"),
    ("policy/chain/in_flight.h", "count >= (was", "count > (was"),
    ("policy/chain/in_flight.h", "l->asks >> TG_ASKS_SHIFT", "1024 >> TG_ASKS_SHIFT"),
    ("policy/chain/in_flight.h", "tg_min(pending, most)", "pending"),
    ("policy/chain/min_rate.h", ">= interval_ns", "< interval_ns"),
    ("policy/chain/lease.h", "until && past < (1U << 31) ? 0", "until && past >= (1U << 31) ? 0"),
    ("policy/chain/decide.h", "|| tg_chain_min_rate(limits, chain, ask, reason)", ""),
    ("policy/chain/decide.h", "\ttg_chain_level(limits, ask);\n", ""),
    ("policy/chain/level.h", "return one > two", "return one < two"),
    ("policy/chain/lease.h", "if (age_ns >= TG_LEASE_END_NS)", "if (0)"),
    ("policy/chain/lease.h", "(10 * TG_NS_PER_S)", "(11 * TG_NS_PER_S)"),
    ("policy/chain/lease.h", "if (released)", "if (0)"),
    ("policy/chain/lease.h", "if (shadow)", "if (0)"),
    ("bpf/syn/evaluate.h", "if (!tg_answer_possible(p, c->ifindex))", "if (0)"),
    ("bpf/packet/count.h", "!!shadow", "0"),
    ("policy/contract/contract.h", "reserve + TG_TOKEN > p->depth", "TG_TOKEN > p->depth"),
    ("policy/algo/fresh_first.h", "\t\ttg_fresh_remember(", "\t\t(void)("),
    ("policy/algo/abacus_exact.h", "c->print = tg_exact_print(e->key);", ""),
    ("policy/algo/abacus_learned.h", "c->print = tg_learned_print(e->key);", ""),
];

const ANSWER: [Canary; 11] = [
    ("bpf/reply/rst.h", "bpf_htonl(p->seq + 1 + p->payload)", "bpf_htonl(p->seq + 1)"),
    ("bpf/reply/rst.h", "src && src < 224", "src && src < 240"),
    ("bpf/reply/rst.h", "src == 127 &&", "src == 128 &&"),
    ("bpf/reply/rst.h", "TG_ANSWER_NEVER || p->group", "TG_ANSWER_NEVER"),
    ("bpf/reply/rst.h", "tcp->flags = TG_TCP_RST | TG_TCP_ACK;", "tcp->flags = TG_TCP_RST;"),
    ("bpf/reply/rst.h", "a->ip.id = 0;", "a->ip.id = 1;"),
    ("bpf/reply/rst.h", "\treturn (sum & 0xffff) + (sum >> 16);", "\treturn sum & 0xffff;"),
    ("bpf/reply/rst.h", "a->ip.hops = TG_ANSWER_TTL;", "a->ip.hops = 1;"),
    ("bpf/hook/xdp.bpf.c", "(int)length - (int)now", "0"),
    ("bpf/hook/xdp.bpf.c", "tg_xdp_swap(data);", ""),
    ("bpf/packet/tokens.h", "return tg_bucket_take(cap, bucket, 0);", "return 1;"),
];

/// The first case that, whole or in part, ends otherwise than the reference says, or kills the
/// program.
fn found(sources: &Path) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let mut native = Native::start_from(Program::Ingress(Hook::Xdp), sources, directory.path());
    let cases: Vec<Case> = all().into_iter().flat_map(|(_, cases)| cases).collect();
    let whole = |case: &Case| case.packet.bytes();
    let parts = cases.iter().filter(|case| case.setup == rejecting()).flat_map(|case| {
        let frame = whole(case);
        (0..frame.len()).map(move |length| (case, frame[..length].to_vec()))
    });
    let mut all = cases.iter().map(|case| (case, whole(case))).chain(parts);
    all.find_map(|(case, frame)| difference(&mut native, case, &frame))
        .or_else(|| {
            time_wait::OPTIONS.iter().find_map(|(about, options, taken)| {
                let (frame, socket) = time_wait::with_options(options);
                let seen = time_wait::run(&mut native, (&frame, socket), How::default()).seen;
                (seen.unwrap().action != Action::Pass).ne(taken).then(|| (*about).to_owned())
            })
        })
        .or_else(|| {
            let refuses = time_wait::full_queue_refuses(&mut native);
            (!refuses).then(|| "a full accept queue behind TIME_WAIT".to_owned())
        })
        .or_else(|| time_wait::ROWS.iter().find_map(|row| mistaken(&mut native, row)))
        .or_else(|| cases.iter().find_map(|case| death(&mut native, case)))
}

/// Whether the program dies on a frame that it can read in part.
fn death(native: &mut Native, case: &Case) -> Option<String> {
    let frame = case.packet.bytes();
    (0..frame.len().min(READ_MAX)).find_map(|linear| {
        let how = How { linear: linear as u32, ..How::default() };
        native.set(&case.setup);
        let died = native.try_run(&case.arrival(&frame), how).err();
        died.map(|died| format!("{}, {linear} bytes can be read: {died}", case.name))
    })
}

/// A SYN for a tuple in TIME_WAIT of which something else is said than the table says.
fn mistaken(native: &mut Native, row: &time_wait::Row) -> Option<String> {
    let of = |frame: Vec<u8>| {
        let run = time_wait::run(native, (&frame, time_wait::socket(row)), How::default());
        run.seen.unwrap().action != Action::Pass
    };
    let taken = time_wait::frames(row).map(of);
    (taken != [row.5; 2]).then(|| format!("{}: {taken:?}", row.0))
}

fn difference(native: &mut Native, case: &Case, frame: &[u8]) -> Option<String> {
    let arrival = case.arrival(frame);
    let expected = Seen::expected(&case.setup, &arrival);
    let about = format!("{}, {} bytes", case.name, frame.len());
    match case.run(native, &arrival).map(|ran| ran.seen) {
        Ok(seen) if seen.as_ref() == Ok(&expected) => None,
        Ok(seen) => Some(format!("{about}: {seen:x?}, the reference {expected:x?}")),
        Err(died) => Some(format!("{about}: {died}")),
    }
}

#[test]
fn untouched_sources_have_none() {
    assert_eq!(found(Copy::new().path()), None);
}

#[test]
fn bugs_in_the_parser_are_found() {
    plant(&PARSER, found);
}

#[test]
fn bugs_in_the_classifier_are_found() {
    plant(&CLASSIFIER, found);
}

#[test]
fn bugs_about_time_wait_are_found() {
    plant(&TIME_WAIT, found);
}

#[test]
fn bugs_in_the_chain_are_found() {
    plant(&CHAIN, found);
}

#[test]
fn bugs_in_the_answer_are_found() {
    plant(&ANSWER, found);
}
