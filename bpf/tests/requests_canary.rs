// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A gate that finds nothing proves nothing: each of these bugs is planted into a copy of the request
//! hooks, and the conversations must go otherwise, or the program must die.

#![allow(clippy::unwrap_used, reason = "a test may")]

#[path = "requests/talks.rs"]
mod talks;

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::OnceLock;
use support::canary::{Canary, Copy, plant};
use support::talk::Talk;
use support::talk::host::Host;
use talks::{Case, all};

const CONNECTION: [Canary; 8] = [
    ("bpf/track/conn.h", "step->lacks = p->ack != conn->server_next;", "step->lacks = 0;"),
    ("bpf/track/conn.h", "if (fresh > conn->request_left) {", "if (0) {"),
    ("bpf/track/conn.h", "} else if (conn->phase != TG_CONN_IDLE) {", "} else if (0) {"),
    ("bpf/track/conn.h", "conn->flags = TG_CONN_FIRST;", "conn->flags = 0;"),
    ("bpf/track/conn.h", "if (step->first && p->payload > 1)", "if (step->first)"),
    ("bpf/track/conn.h", "conn->flags = begin->flags;", "conn->flags = 0;"),
    ("bpf/track/conn.h", "rule->cell[TG_RULE_ENDED]++;", ""),
    ("bpf/abi/request.h", "#define TG_CONN_EXPIRE_NS (60 *", "#define TG_CONN_EXPIRE_NS (90 *"),
];

const ANSWER: [Canary; 4] = [
    ("bpf/track/exchange.h", "#define TG_REPLY_HEADS 2", "#define TG_REPLY_HEADS 3"),
    ("bpf/track/exchange.h", "head->reply.flags & TG_REPLY_TUNNEL ||", ""),
    ("bpf/hook/request_out.bpf.c", "if (p->flags & TG_TCP_ACK && !same)", "if (0)"),
    (
        "bpf/track/exchange.h",
        "found->interim = head->reply.flags",
        "found->interim = 0 & head->reply.flags",
    ),
];

const REQUEST: [Canary; 12] = [
    ("bpf/hook/request_in.bpf.c", "if (w->step.lacks)", "if (0)"),
    ("bpf/request/request.h", "tg_lease_passes(v->view.released,", "tg_lease_passes(0,"),
    ("policy/chain/request.h", "return !first && closes", "return closes"),
    ("policy/chain/request.h", "return TG_RANK_PROTECTED;", "return TG_RANK_NEW;"),
    ("bpf/http/rule.h", "s->cookies & rule->protect", "1"),
    ("bpf/hook/request_in.bpf.c", "return w->found.at.plain ?", "return 1 ?"),
    ("bpf/request/request.h", "if (found->at.fragment) {", "if (0) {"),
    ("bpf/request/request.h", ".priority = rank", ".priority = 0"),
    (
        "bpf/hook/request_in.bpf.c",
        "return tg_socket_agrees(skb, &v->p, 1) == TG_SOCKET_HERE;",
        "return 1;",
    ),
    ("bpf/hook/request_in.bpf.c", "tg_flow_spoke(&flow);", ";"),
    ("bpf/hook/request_in.bpf.c", "if (reason == TG_REASON_UNVERIFIED &&", "if (0 &&"),
    ("bpf/hook/request_in.bpf.c", "if (verdict == TG_RULE_REFUSED) {", "if (0) {"),
];

const RESET: [Canary; 6] = [
    ("bpf/track/conn.h", "return ahead >= 0;", "return 1;"),
    ("bpf/track/conn.h", "return reset == TG_RESET_UNKNOWN && ahead", "return ahead"),
    ("bpf/track/conn.h", "ahead <= !!(conn->flags & TG_CONN_CLIENT_DONE)", "ahead <= 1"),
    ("bpf/track/conn.h", "(reset == TG_RESET_OVER ||", "(0 ||"),
    ("bpf/track/queue.h", "reset = TG_RESET_UNKNOWN;", "reset = TG_RESET_OVER;"),
    ("bpf/hook/sweep.bpf.c", "!(s->missed >> service & 1)", "1"),
];

const EVADER: [Canary; 19] = [
    ("bpf/track/conn.h", "tg_ahead(p->ack, conn->server_next) > 0;", "1;"),
    ("bpf/track/conn.h", "!tg_conn_probes(conn, p) &&", "p->payload > 1 &&"),
    ("bpf/track/conn.h", "!tg_conn_probes(conn, p) &&", ""),
    ("bpf/hook/request_out.bpf.c", "!(READ_ONCE(conn->flags) & TG_CONN_EVADES))", "1)"),
    (
        "bpf/track/exchange.h",
        "\t\ttg_reply_has(conn, p->ack);\n\t\treturn;\n\t}\n\tr->step",
        "\t\treturn;\n\t}\n\tr->step",
    ),
    ("bpf/track/conn.h", "tg_conn_evades(conn, p->ack - 1)", "tg_conn_evades(conn, p->ack)"),
    ("bpf/track/conn.h", "conn->flags |= TG_CONN_EVADES;", ""),
    ("bpf/request/request.h", "TG_EVADED(AMBIGUOUS_PATH))", "0)"),
    ("bpf/request/request.h", "TG_EVADED(SPLIT) |", ""),
    ("bpf/request/request.h", "TG_EVADED(IP_OPTIONS) |", ""),
    ("bpf/request/request.h", "if (!reason && head->http.ambiguous)", "if (0)"),
    ("bpf/request/refusal.h", "agrees == TG_SOCKET_BUSY || !found->at.plain ||", "0 ||"),
    ("bpf/request/refusal.h", "reason == TG_REASON_HTTP2 ||", ""),
    ("bpf/request/refusal.h", "reason == TG_REASON_OPAQUE ||", ""),
    (
        "bpf/request/refusal.h",
        "tg_elapsed_ns(now_ns, conn->repeated_ns) < TG_REPEAT_SPACING_NS",
        "0",
    ),
    ("bpf/request/refusal.h", "if (tg_ahead(upto, conn->client_next) > 0 ||", "if ("),
    ("bpf/request/refusal.h", "done & TG_CONN_OWED ||", "0 ||"),
    (
        "bpf/hook/request_in.bpf.c",
        "return spared ? 0 : w->found.asked.rule;",
        "return w->found.asked.rule;",
    ),
    ("bpf/track/conn.h", "conn->server_next = paid;", ""),
];

const REFUSAL: [Canary; 10] = [
    ("bpf/request/refusal.h", "v->p.flags & TG_TCP_FIN ?", "0 ?"),
    ("bpf/reply/segment.h", "s->stamp[0] = stamp[1];", "s->stamp[0] = stamp[0];"),
    ("bpf/packet/options.h", "o->at += length;", "o->at += 2;"),
    ("bpf/track/socket.h", "tcp->write_seq == p->ack &&", ""),
    ("bpf/track/socket.h", "!(first && tcp->bytes_received)", "1"),
    ("bpf/track/socket.h", "p->ack == request->snt_isn + 1", "1"),
    ("bpf/request/refusal.h", "tg_refusal_flow(v->key);", ";"),
    ("bpf/hook/request_in.bpf.c", "return !v->view.released && tg_lease", "return tg_lease"),
    ("bpf/hook/request_in.bpf.c", "tg_lease_now(now_ns) &&", ""),
    ("bpf/abi/request.h", "_REFUSED_EXPIRE_NS (30 *", "_REFUSED_EXPIRE_NS (90 *"),
];

/// All that is seen of a conversation: what is told of it, and what was counted.
fn seen(host: &mut Host, case: &Case) -> String {
    host.set(&case.rules);
    let mut talk = Talk::new(host, case.style);
    (case.play)(&mut talk);
    let rules: Vec<_> = talk.heard.iter().map(|(_, heard)| heard.rules.clone()).collect();
    format!(
        "{}{rules:?}{:?} {} {}",
        talk.told, talk.last.buckets, talk.last.waiting, talk.last.open
    )
}

/// The first conversation that goes otherwise than with the sources as they are.
fn found(sources: &Path) -> Option<String> {
    static EXPECTED: OnceLock<Vec<String>> = OnceLock::new();
    let expected = EXPECTED.get_or_init(|| {
        let mut host = Host::start();
        all().iter().map(|case| seen(&mut host, case)).collect()
    });
    let directory = tempfile::tempdir().unwrap();
    let mut host = Host::start_from(sources, directory.path());
    all().iter().zip(expected).find_map(|(case, expected)| {
        // A program that died answers nothing.
        match catch_unwind(AssertUnwindSafe(|| seen(&mut host, case))) {
            Ok(seen) if seen == *expected => None,
            Ok(_) => Some(case.name.to_owned()),
            Err(_) => Some(format!("{}: it died", case.name)),
        }
    })
}

#[test]
fn untouched_sources_have_none() {
    assert_eq!(found(Copy::new().path()), None);
}

#[test]
fn bugs_in_what_is_kept_of_a_connection_are_found() {
    plant(&CONNECTION, found);
}

#[test]
fn bugs_in_following_answers_are_found() {
    plant(&ANSWER, found);
}

#[test]
fn bugs_in_evaluating_requests_are_found() {
    plant(&REQUEST, found);
}

#[test]
fn bugs_about_resets_and_gaps_are_found() {
    plant(&RESET, found);
}

#[test]
fn bugs_about_evaders_are_found() {
    plant(&EVADER, found);
}

#[test]
fn bugs_in_refusing_are_found() {
    plant(&REFUSAL, found);
}
