// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who is sent a RST beyond the cap on answers: a source that has completed a handshake lately, from a
//! bucket of its own; nobody while there is a flood of spoofed SYNs. (Native build; the last test with
//! the hooks in the kernel.)

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use support::canary::{Canary, Copy, plant};
use support::engine::{Arrival, Hook};
use support::late::{self, AGAIN_MS, FULL, LATE};
use support::native::{Built, Call, How, NOW, Native, Program};
use support::object::require_root;
use support::proved::{PROVED, World, capped, handshake, outcome, syn, syn_to, v4};
use support::reference::Socket;
use support::setup::{SECOND, Setup};
use tidegate_bpf::testing::plans;
use tidegate_bpf::testing::{Options, Outcome, TestHook, TestPlane};
use tidegate_bpf::{Plan, ServiceParams};
use tidegate_config::{Replies, ServiceConfig};
use tidegate_policy::{Action, BucketSpec, Params, Policy};
use tidegate_units::Rate;

/// What is said where no RST is sent.
const CAP: &str = "reply-cap";
/// How long a handshake proves something.
const LATELY: u64 = 300 * SECOND;

fn v6(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn a_source_that_completed_a_handshake_is_told(native: &mut Native) {
    for (known, stranger) in [(v4(1), v4(2)), (v6("2001:db8:7:1::1"), v6("2001:db8:7:2::1"))] {
        let mut w = World::new(native, capped());
        assert_eq!(w.refused(known), CAP, "{known}: nothing is known of it");
        w.open(known);
        assert_eq!(w.refused(known), "rst", "{known}");
        assert_eq!(w.refused(stranger), CAP, "{stranger} is somebody else");
    }
    let mut w = World::new(native, capped());
    w.open(v6("2001:db8:7:1::1"));
    assert_eq!(w.refused(v6("2001:db8:7:1:ffff::9")), "rst", "a /64 is one source");
}

fn a_syn_proves_nothing(native: &mut Native) {
    let mut w = World::new(native, capped());
    (0..3).for_each(|_| w.half_open(v4(1)));
    assert_eq!(w.refused(v4(1)), CAP);
}

fn another_service_knows_nothing_of_it(native: &mut Native) {
    let mut w = World::new(native, capped());
    w.open(v4(1));
    let frame = syn_to(v4(1), (9_000, 443)).bytes();
    let arrival = Arrival { frame: &frame, socket: Socket::Nothing, loopback: false };
    let seen = w.native.run(&arrival, How::default()).seen.unwrap();
    assert_eq!(seen.words(&w.setup), "any/default drop reply-cap");
}

fn below_the_cap_nobody_is_looked_up(native: &mut Native) {
    let mut w = World::new(native, capped().answers(400, 60));
    w.open(v4(1));
    let ran = w.run(v4(1), How::default());
    assert_eq!(outcome(&ran, &w.setup), "rst");
    let answers = ran.calls.iter().filter(|call| **call == Call::Answers).count();
    let sources = ran.calls.iter().filter(|call| **call == Call::SourceSets).count();
    assert_eq!((answers, sources), (1, 0), "one bucket, no source: {:?}", ran.calls);
    assert_eq!(w.rsts(v4(2), 60), 59, "and it took what is for all");
    assert_eq!(w.rsts(v4(1), 20), 2, "before its own");
}

fn a_handshake_proves_for_five_minutes(native: &mut Native) {
    for (after, told) in [(LATELY, "rst"), (LATELY + 1, CAP)] {
        let mut w = World::new(native, capped());
        w.open(v4(1));
        w.after(after);
        w.drain();
        assert_eq!(w.refused(v4(1)), told, "after {after} ns");
        w.after(SECOND);
        w.open(v4(1));
        w.drain();
        assert_eq!(w.refused(v4(1)), "rst", "another handshake");
    }
}

fn in_a_flood_a_known_address_proves_nothing(native: &mut Native) {
    let mut w = World::new(native, capped());
    w.open(v4(1));
    assert_eq!(w.refused(v4(1)), "rst");
    w.flood();
    w.drain();
    assert_eq!(w.refused(v4(1)), CAP, "who sent it?");
    assert_eq!(w.refused(v4(2)), CAP);
}

fn the_second_cap_holds_for_all_and_a_share_of_it_for_each(native: &mut Native) {
    let mut w = World::new(native, capped());
    (1..=20).for_each(|last| w.open(v4(last)));
    let one = w.rsts(v4(1), 100);
    assert_eq!(one, 2, "of {PROVED}/s: a quarter of them, of a quarter of a second");
    let others: u32 = (2..=20).map(|last| w.rsts(v4(last), 100)).sum();
    assert_eq!(one + others, PROVED / 4, "a quarter of a second");
    w.after(SECOND / 10);
    w.drain();
    assert_eq!(w.rsts(v4(1), 100), 1, "one in 100 ms");
    // over ten seconds
    let mut sum = 0;
    for _ in 0..100 {
        w.after(SECOND / 10);
        w.drain();
        sum += (1..=20).map(|last| w.rsts(v4(last), 5)).sum::<u32>();
    }
    assert!((10 * PROVED - 5..=10 * PROVED + PROVED / 4).contains(&sum), "{sum} in 10 s");
    let mut w = World::new(native, capped());
    w.open(v4(1));
    let mut sum = 0;
    for _ in 0..1_000 {
        w.after(SECOND / 100);
        w.drain();
        sum += w.rsts(v4(1), 1);
    }
    assert!((100..=102).contains(&sum), "{sum} to one source in 10 s");
}

fn a_rate_below_one_for_each_still_answers(native: &mut Native) {
    let mut w = World::new(native, capped().proved(1));
    w.open(v4(1));
    assert_eq!(w.rsts(v4(1), 10), 1);
    w.after(4 * SECOND - 1);
    w.drain();
    assert_eq!(w.refused(v4(1)), CAP, "one in four seconds");
    w.after(1);
    w.drain();
    assert_eq!(w.refused(v4(1)), "rst");
}

fn zero_is_none(native: &mut Native) {
    for (setup, why) in [
        (capped().proved(0), "none beyond the cap"),
        (Setup { answers: 0, answers_left: None, ..capped() }, "never answer"),
    ] {
        let mut w = World::new(native, setup);
        w.open(v4(1));
        assert_eq!(w.refused(v4(1)), CAP, "{why}");
    }
}

fn auto_sends_a_single_client_its_rst(native: &mut Native) {
    let mut w = World::new(native, capped().each(|service| service.action = Action::Auto));
    w.open(v4(1));
    assert_eq!(w.refused(v4(1)), "rate", "nothing that it was served: a drop, and no answer");
    w.served(v4(1));
    assert_eq!(w.refused(v4(1)), "rst");
}

fn a_late_request_is_refused_by_the_same_rule(native: &mut Native) {
    for (proved, told) in [(PROVED, "rst"), (0, CAP)] {
        let setup = late::rejecting().answers(4, 0).proved(proved);
        late::until(native, &setup, (LATE - 1, How::default()));
        native.advance_to(NOW + AGAIN_MS[LATE] * (SECOND / 1000));
        let stranger = syn([203, 0, 113, 250].into(), 9_000);
        for _ in 0..2 {
            late::run(native, &stranger, (FULL, How::default()));
        }
        let ran = late::anew(native, How::default());
        assert_eq!(outcome(&ran, &setup), told, "{proved}/s");
    }
}

fn whatever_fails_is_silent(native: &mut Native) {
    let play = |native: &mut Native, fail_at| {
        let mut w = World::new(native, capped());
        w.open(v4(1));
        let ran = w.run(v4(1), How { fail_at, ..How::default() });
        let told = outcome(&ran, &w.setup);
        (ran.calls, told)
    };
    let (calls, told) = play(native, 0);
    assert_eq!(told, "rst");
    let first = calls.iter().position(|call| *call == Call::Answers).unwrap();
    let mut failed = 0;
    for (n, call) in calls.iter().enumerate().skip(first + 1) {
        if matches!(call, Call::Senders | Call::SourceSets | Call::Sources | Call::Answers) {
            failed += 1;
            assert_eq!(play(native, n as u32 + 1).1, CAP, "{call:?}");
        }
    }
    assert_eq!(failed, 4, "{calls:?}");
}

type Scene = (&'static str, fn(&mut Native));
const SCENES: [Scene; 12] = [
    ("told", a_source_that_completed_a_handshake_is_told),
    ("a SYN", a_syn_proves_nothing),
    ("services", another_service_knows_nothing_of_it),
    ("below", below_the_cap_nobody_is_looked_up),
    ("age", a_handshake_proves_for_five_minutes),
    ("flood", in_a_flood_a_known_address_proves_nothing),
    ("caps", the_second_cap_holds_for_all_and_a_share_of_it_for_each),
    ("slow", a_rate_below_one_for_each_still_answers),
    ("zero", zero_is_none),
    ("auto", auto_sends_a_single_client_its_rst),
    ("late", a_late_request_is_refused_by_the_same_rule),
    ("failures", whatever_fails_is_silent),
];

#[test]
fn beyond_the_cap_a_proved_source_is_told_and_nobody_else() {
    static NATIVE: Mutex<()> = Mutex::new(());
    let _one = NATIVE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut native = Native::start(Program::Ingress(Hook::Tc));
    for (name, scene) in &SCENES {
        println!("{name}");
        scene(&mut native);
    }
    native.finish();
}

const ALLOWANCE_H: &str = "bpf/reply/allowance.h";
const CANARIES: [Canary; 14] = [
    (ALLOWANCE_H, "|| tg_senders_flood(senders))", ")"),
    (ALLOWANCE_H, "|| !tg_source_proved(source, now_ns))", ")"),
    (ALLOWANCE_H, "if (!source || !tg_source_proved", "if (source && !tg_source_proved"),
    (ALLOWANCE_H, "return tg_answer_share(cap, source, now_ns) &&", "return"),
    (ALLOWANCE_H, "tg_answer_token(cap, TG_ANSWERS_PROVED, now_ns);", "1;"),
    (
        ALLOWANCE_H,
        "tg_answer_token(cap, TG_ANSWERS_PROVED, now_ns);",
        "tg_answer_token(cap, TG_ANSWERS_ALL, now_ns);",
    ),
    (ALLOWANCE_H, "cap->full_ns > each_ns ? cap->full_ns : each_ns;", "cap->full_ns;"),
    (ALLOWANCE_H, "if (now_ns - used_ns > most_ns)", "if (0)"),
    (ALLOWANCE_H, "#define TG_ANSWER_SOURCE_SHARE 4", "#define TG_ANSWER_SOURCE_SHARE 3"),
    ("bpf/track/source.h", "(300 * TG_NS_PER_S)", "(301 * TG_NS_PER_S)"),
    ("bpf/track/source.h", "<=\n\t       TG_SOURCE_PROVED_NS", "<\n\t       TG_SOURCE_PROVED_NS"),
    (
        "bpf/syn/evaluate.h",
        "c->ask.event.now_ns) ||\n\t       tg_answer_proved",
        "c->ask.event.now_ns) &&\n\t       tg_answer_proved",
    ),
    (
        "bpf/syn/evaluate.h",
        "\t\t\t\tc->source, c->ask.event.now_ns);",
        "\t\t\t\t~c->source, c->ask.event.now_ns);",
    ),
    (
        "bpf/syn/evaluate.h",
        "&table->answers_proved, c->ask.service,",
        "&table->answers_proved, 1 - c->ask.service,",
    ),
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
fn bugs_about_who_is_told_are_found() {
    plant(&CANARIES, found);
}

/// A plan whose only service refuses once its token is used, and how many RSTs it may send.
fn plan((all, proved): (u32, u32)) -> Plan {
    let policy = plans::policy(Policy::TokenBucket, Action::Reject);
    let mut plan = plans::plan(vec![ServiceConfig { policy, ..plans::service("shop", &["*:80"]) }]);
    plan.config.replies = Replies { rst_per_second: all, rst_per_second_proved: proved };
    plan
}

/// Both ingress hooks in the kernel, both families: an answer is used up, and then the known are told.
#[test]
fn the_hooks_in_the_kernel_tell_the_known() {
    require_root();
    for (hook, from) in [TestHook::Xdp, TestHook::Tc]
        .into_iter()
        .flat_map(|hook| [(hook, v4(1)), (hook, v6("2001:db8:7:1::1"))])
    {
        for (caps, told) in [((1, 8), true), ((1, 0), false), ((0, 8), false)] {
            let mut plane = TestPlane::load_objects(
                &plan(caps),
                tidegate_bpf::testing::Objects::default(),
                Options::default(),
            )
            .unwrap();
            let give = |plane: &TestPlane, hook, packet: &support::packet::Packet| {
                plane.run(hook, &packet.bytes()).unwrap().outcome
            };
            let spec = BucketSpec::new(Rate::per_second(0.001), 1, Action::Reject);
            let params = Params::token_bucket(&spec).unwrap();
            plane.set_limits(&[ServiceParams::new(0, params)], &[], 1).unwrap();
            plane.heartbeat().unwrap();
            assert_eq!(give(&plane, hook, &syn(from, 9_000)), Outcome::Pass);
            let [reply, end] = handshake(from, 9_000);
            give(&plane, TestHook::Egress, &reply);
            give(&plane, hook, &end);
            let strangers = (0..2).map(|n| give(&plane, hook, &syn(v4(9), 9_100 + n)));
            let first = strangers.collect::<Vec<_>>();
            assert_eq!(first[1], Outcome::Drop, "{hook:?} {caps:?}: one in a second");
            let said = give(&plane, hook, &syn(from, 9_001));
            let answered = match said {
                Outcome::Transmit | Outcome::Redirect => true,
                Outcome::Drop => false,
                other => panic!("{hook:?} {from} {caps:?}: {other:?}"),
            };
            assert_eq!(answered, told, "{hook:?} {from} {caps:?}: {said:?}");
            let other = give(&plane, hook, &syn(v4(8), 9_002));
            assert_eq!(other, Outcome::Drop, "{hook:?} {caps:?}: a stranger");
        }
    }
}
