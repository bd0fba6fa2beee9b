// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests of connections that the server's stack had no room for, in the native build: they are not
//! in flight, and while the accept queue is limited they are refused when they come again. (With a
//! real stack: late_live.rs.)

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use support::canary::{Canary, Copy, plant};
use support::engine::Hook;
use support::late::{
    AGAIN_MS, ASKED, FULL, LATE, again, anew, copy, crowded_out, fast_open, limited, more, other,
    rejecting, taken, unknown, until, until_with,
};
use support::native::{Built, Call, How, NOW, Native, Program, Ran};
use support::packet::{ACK, FIN, Packet, RST, SYN};
use support::reference::{Action, Socket};
use support::setup::{Prefix, SECOND, Setup, base};
use tidegate_policy::Reason;

const CALM: How = How { linear: u32::MAX, tail_min: 0, fail_at: 0, dice: [7, 0] };

fn start() -> Native {
    Native::start(Program::Ingress(Hook::Tc))
}

/// One native build for all tests: it takes longer to build than all that they say.
fn with(test: impl FnOnce(&mut Native)) {
    static NATIVE: Mutex<Option<Native>> = Mutex::new(None);
    let mut native = NATIVE.lock().unwrap_or_else(PoisonError::into_inner);
    test(native.get_or_insert_with(start));
}

/// `pass`, `drop` or `answer`, and what was counted.
fn said(ran: &Ran, setup: &Setup) -> String {
    let seen = ran.seen.clone().unwrap();
    format!("{}: {}", seen.action, seen.words(setup))
}

const PASSES: &str = "pass: not-new";

fn a_request_is_in_flight_from_when_the_stack_has_it(native: &mut Native) {
    let asked = crowded_out(native, &base()).signals;
    assert_eq!((asked.waiting, asked.silent, asked.open), (0, 0, 1));
    assert_eq!(asked.connections.asked, 1, "its client has asked all the same");
    assert_eq!(again(native, 0, CALM).signals.waiting, 0);
    assert_eq!(taken(native).signals.waiting, 1);
    assert_eq!(again(native, 1, CALM).signals.waiting, 1);
}

fn it_is_refused_when_it_comes_again_after_a_second(native: &mut Native) {
    let setup = limited();
    assert_eq!(said(&crowded_out(native, &setup), &setup), PASSES);
    for (n, after_ms) in AGAIN_MS.into_iter().enumerate() {
        let expected = if n < LATE { PASSES } else { "drop: shop/default drop late" };
        let ran = again(native, n, CALM);
        assert_eq!(said(&ran, &setup), expected, "after {after_ms} ms");
        let s = ran.signals;
        assert_eq!((s.waiting, s.open, s.connections.lost), (0, 1, 0), "its client goes on");
    }
}

fn its_client_is_told_and_the_connection_is_over(native: &mut Native) {
    let setup = rejecting();
    let ran = until(native, &setup, (LATE, CALM));
    assert_eq!(said(&ran, &setup), "answer: shop/default reject late");
    let Action::Answer(rst) = ran.seen.clone().unwrap().action else { panic!("an answer") };
    let tcp = &rst[14 + 20..];
    assert_eq!(&tcp[4..8], 501_u32.to_be_bytes(), "what the client expects next");
    assert_eq!((&tcp[8..12], tcp[13]), ([0; 4].as_slice(), 4), "a RST and nothing else");
    let s = ran.signals;
    assert_eq!((s.open, s.connections.lost, s.connections.ended), (0, 0, 0), "it was refused");
    assert!(ran.sample.is_some(), "and can be explained");
}

fn where_nothing_is_limited_it_passes(native: &mut Native) {
    let shadow = limited().shadow();
    let ran = until(native, &shadow, (LATE, CALM));
    assert_eq!(said(&ran, &shadow), "pass: shop/default drop late (shadow)");
    for setup in [base(), limited().released()] {
        let ran = until(native, &setup, (LATE, CALM));
        assert_eq!(said(&ran, &setup), PASSES, "{setup}");
        assert_eq!(ran.signals.open, 1, "{setup}");
    }
    let setup = limited();
    until(native, &setup, (0, CALM));
    native.clock(NOW + 2 * SECOND, NOW - 60 * SECOND);
    assert_eq!(said(&anew(native, CALM), &setup), PASSES, "the lease has ended");
}

fn what_is_not_late_passes(native: &mut Native) {
    let setup = limited();
    until(native, &setup, (0, CALM));
    taken(native);
    for n in 1..AGAIN_MS.len() {
        assert_eq!(said(&again(native, n, CALM), &setup), PASSES, "the stack has it");
    }
    until(native, &setup, (0, CALM));
    assert_eq!(said(&more(native, 3_000), &setup), PASSES, "new bytes: a slow client");
}

fn the_stack_is_asked_whether_it_has_a_socket(native: &mut Native) {
    let setup = limited();
    let ran = until_with(native, &setup, Socket::Request);
    assert_eq!(
        said(&ran, &setup),
        "drop: shop/default drop late",
        "a handshake that has not ended"
    );
    let ran = until_with(native, &setup, Socket::Nothing);
    assert_eq!(said(&ran, &setup), PASSES, "a router");
    let ran = until_with(native, &setup, Socket::Established);
    assert_eq!(said(&ran, &setup), PASSES, "what it said was not seen");
    assert_eq!(ran.signals.waiting, 1, "and now it is known");
}

fn what_else_would_end_the_handshake_is_late(native: &mut Native) {
    let setup = limited();
    for flags in [ACK, ACK | FIN] {
        crowded_out(native, &setup);
        let early = other(native, 900, flags, FULL);
        assert_eq!(said(&early, &setup), PASSES, "{flags}: within a second");
        crowded_out(native, &setup);
        let late = other(native, 3_000, flags, FULL);
        assert_eq!(said(&late, &setup), "drop: shop/default drop late", "{flags}");
    }
    crowded_out(native, &setup);
    let odd = other(native, 3_000, SYN, FULL);
    assert_eq!(said(&odd, &setup), PASSES, "the stack knows what to say to that");
    crowded_out(native, &setup);
    let reset = other(native, 3_000, RST, FULL);
    assert_eq!((said(&reset, &setup).as_str(), reset.signals.open), (PASSES, 0), "it gives up");
}

fn a_syn_that_the_stack_ignored_is_new_work_when_it_comes_again(native: &mut Native) {
    const COPY: &str = "pass: socket-request";
    const NEW: &str = "pass: shop/default admit no-limit";
    for (setup, replied, expected) in
        [(limited(), false, NEW), (limited(), true, COPY), (base(), false, COPY)]
    {
        let ran = copy(native, &setup, replied);
        assert_eq!(said(&ran, &setup), expected, "replied: {replied}");
    }
}

fn data_in_a_syn_are_in_flight_where_the_stack_has_them(native: &mut Native) {
    assert_eq!(fast_open(native, &base(), ASKED).signals.waiting, 1);
    assert_eq!(fast_open(native, &base(), 0).signals.waiting, 0);
}

fn of_a_connection_that_is_not_followed_the_cookie_tells(native: &mut Native) {
    for ipv6 in [false, true] {
        let setup = limited();
        let ran = unknown(native, (&setup, ipv6), (FULL, CALM), |p| p);
        assert_eq!(said(&ran, &setup), "drop: shop/default drop late", "IPv6: {ipv6}");
        let setup = rejecting();
        let ran = unknown(native, (&setup, ipv6), (FULL, CALM), |p| p);
        assert_eq!(said(&ran, &setup), "answer: shop/default reject late", "IPv6: {ipv6}");
    }
    let setup = limited();
    let other = |native: &mut Native, socket| {
        said(&unknown(native, (&setup, false), (socket, CALM), |p| p), &setup)
    };
    for socket in [Socket::Nothing, Socket::Request, Socket::Established] {
        assert_eq!(other(native, socket), PASSES, "{socket:?}");
    }
    type Change = fn(Packet) -> Packet;
    let changes: [Change; 2] = [|p| p.seq(2), |p| p.ack(7)];
    for change in changes {
        let ran = unknown(native, (&setup, false), (FULL, CALM), change);
        assert_eq!(said(&ran, &setup), PASSES, "no cookie of this server");
    }
    for setup in [
        Setup { exempt_ports: vec![80], ..limited() },
        Setup { exempt_sources: vec![Prefix::new("198.51.100.0/24")], ..limited() },
    ] {
        let ran = unknown(native, (&setup, false), (FULL, CALM), |p| p);
        assert_eq!(said(&ran, &setup), PASSES, "exempt");
    }
    unknown(native, (&setup, false), (FULL, CALM), |p| p);
    native.advance_to(NOW + 71 * SECOND);
    let ran = anew(native, CALM);
    assert_eq!(said(&ran, &setup), PASSES, "nobody's handshake is as old");
    let ran = unknown(native, (&base(), false), (FULL, CALM), |p| p);
    assert_eq!(said(&ran, &base()), PASSES);
    assert!(!ran.calls.contains(&Call::Socket), "without a limit nobody is asked");
}

fn whatever_fails_passes(native: &mut Native) {
    let setup = rejecting();
    let calls = until(native, &setup, (LATE, CALM)).calls.len() as u32;
    let unknowns = unknown(native, (&setup, false), (FULL, CALM), |p| p).calls.len() as u32;
    // what cannot be counted happens all the same
    let fails_open = |ran: &Ran, fail_at: u32| {
        let seen = ran.seen.clone().unwrap();
        let refused = [Reason::Late, Reason::ReplyCap, Reason::ReplyImpossible];
        let uncounted = ran.calls[fail_at as usize - 1] == Call::Counts;
        let told = uncounted || refused.contains(&seen.counted.reason());
        assert!(seen.action == Action::Pass || told, "{fail_at}: {seen:?}");
    };
    for fail_at in 1..=calls {
        fails_open(&until(native, &setup, (LATE, How { fail_at, ..CALM })), fail_at);
    }
    for fail_at in 1..=unknowns {
        let how = How { fail_at, ..CALM };
        fails_open(&unknown(native, (&setup, false), (FULL, how), |p| p), fail_at);
    }
}

type Scene = (&'static str, fn(&mut Native));
const SCENES: [Scene; 11] = [
    ("in flight", a_request_is_in_flight_from_when_the_stack_has_it),
    ("after a second", it_is_refused_when_it_comes_again_after_a_second),
    ("told", its_client_is_told_and_the_connection_is_over),
    ("unlimited", where_nothing_is_limited_it_passes),
    ("not late", what_is_not_late_passes),
    ("asked", the_stack_is_asked_whether_it_has_a_socket),
    ("what else", what_else_would_end_the_handshake_is_late),
    ("copies", a_syn_that_the_stack_ignored_is_new_work_when_it_comes_again),
    ("fast open", data_in_a_syn_are_in_flight_where_the_stack_has_them),
    ("cookies", of_a_connection_that_is_not_followed_the_cookie_tells),
    ("failures", whatever_fails_passes),
];

#[test]
fn a_request_that_the_stack_drops_is_not_in_flight_and_is_refused_when_it_comes_again() {
    with(|native| SCENES.iter().for_each(|(_, scene)| scene(native)));
}

const LATE_H: &str = "bpf/syn/late.h";
const CANARIES: [Canary; 24] = [
    (LATE_H, "return limits && limits->accept_queue_max_q10;", "return 1;"),
    (LATE_H, "h.ipv6.flow = bpf_htonl(6U << 28);", "h.ipv6.flow = bpf_htonl(4U << 28);"),
    (LATE_H, "h.ipv4.src = p->src[3];", "h.ipv4.src = p->dst[3];"),
    (LATE_H, "h.tcp.seq = bpf_htonl(p->seq);", "h.tcp.seq = 0;"),
    (LATE_H, "h.tcp.ack = bpf_htonl(p->ack);", "h.tcp.ack = 0;"),
    (LATE_H, "if (sk->state == TG_STATE_LISTEN)", "if (sk->state != TG_STATE_REQUEST)"),
    (LATE_H, "\tbpf_sk_release(sk);\n\treturn late;", "\treturn late;"),
    (LATE_H, "\tbpf_sk_release(sk);\n\tif (taken)", "\tif (taken)"),
    (LATE_H, "sk->state != TG_STATE_LISTEN && sk->state != TG_STATE_REQUEST", "0"),
    (LATE_H, "&& sk->state != TG_STATE_REQUEST;", ";"),
    (LATE_H, "!= TG_TCP_ACK ||", "== 0xff ||"),
    (LATE_H, "bpf_ktime_get_coarse_ns()) < TG_FLOW_TOUCH)", "bpf_ktime_get_coarse_ns()) < 1)"),
    (LATE_H, "return way && (p->payload <= 1 ||", "return way && (0 ||"),
    (LATE_H, "(__s32)(p->seq - way->client_next) < 0);", "1);"),
    (LATE_H, "copy == TG_COPY_IGNORED && ask->queue.known", "0 && ask->queue.known"),
    (LATE_H, "TG_LATE_UNSEEN_NS TG_COPY_NS", "TG_LATE_UNSEEN_NS (9 * TG_COPY_NS)"),
    (LATE_H, "return tg_flow_over(&flow, tg_flow_read(&flow));", "return 0;"),
    ("bpf/syn/evaluate.h", "if (c->late && c->ask.verdict.kind == TG_REJECT)", "if (0)"),
    ("bpf/syn/evaluate.h", ".late = !tg_is_syn(p),", ".late = 0,"),
    (LATE_H, "if (taken)", "if (0)"),
    ("bpf/track/turn.h", "tg_turn_change(flow, &meta, 0, TG_FLOW_TAKEN);", ";"),
    ("bpf/track/flow.h", "(meta & TG_FLOW_WAITING) && (meta & TG_FLOW_TAKEN);", "meta & 1;"),
    ("bpf/track/flow.h", "pending->syn_ns &= ~TG_FLOW_FAST;", ";"),
    ("bpf/reply/rst.h", "tcp->seq = bpf_htonl(p->ack);", ""),
];

/// The first scene that goes otherwise with these sources, or kills the program.
fn found(sources: &Path) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let built = Built::from(Program::Ingress(Hook::Tc), sources, directory.path());
    let wrong = SCENES.iter().find(|(_, scene)| {
        let mut native = built.start();
        catch_unwind(AssertUnwindSafe(|| scene(&mut native))).is_err()
    });
    wrong.map(|(name, _)| (*name).to_owned())
}

#[test]
fn untouched_sources_have_none() {
    assert_eq!(found(Copy::new().path()), None);
}

#[test]
fn bugs_about_what_is_late_are_found() {
    plant(&CANARIES, found);
}
