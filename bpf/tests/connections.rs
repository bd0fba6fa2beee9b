// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The passive signals, in the native build: the life of a connection as both tc hooks see it, with
//! every helper failing in turn, and more connections than the table holds. (In the kernel, with
//! real connections: signals.rs.)

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use support::connection::{
    COPIES, End, RESETS, Said, copy, copy_in, crowd, early, give, handshake, life, play,
    play_losing, reset, spent, together,
};
use support::engine::Hook;
use support::native::{How, NOW, Native, Program, Signals};
use support::reference::Action;
use support::setup::{SECOND, Setup, base};

/// Sets of four of the native build's table.
const TABLE: i32 = 4 * 1024;

fn tc() -> Native {
    Native::start(Program::Ingress(Hook::Tc))
}

/// The passive signals of a connection, at tc, both directions; and the same with each helper call
/// failing in turn: nothing is ever dropped, and no gauge leaves its range.
#[test]
fn a_connection_is_followed() {
    let mut native = tc();
    let setup = base();
    for (ipv6, end) in [false, true].iter().flat_map(|six| End::ALL.map(|end| (*six, end))) {
        let life = life(ipv6, end);
        let normal = play(&mut native, &setup, (&life, None));
        for (step, ran) in life.iter().zip(&normal) {
            assert_eq!(
                Said::of(&ran.signals),
                step.signals,
                "{end:?}, IPv6 {ipv6}: after {}",
                step.about
            );
            assert_eq!(ran.frame, step.frame, "{}", step.about);
        }
        let calls = |at: usize| 1..=normal[at].calls.len() as u32;
        for fails in (0..life.len()).flat_map(|at| calls(at).map(move |call| (at, call))) {
            for (step, ran) in life.iter().zip(play(&mut native, &setup, (&life, Some(fails)))) {
                let who = format!("{end:?}: {fails:?} fails, after {}", step.about);
                assert_eq!(ran.seen.unwrap().action, Action::Pass, "{who}");
                let range = 0..=1;
                let Signals { waiting, open, .. } = ran.signals;
                assert!(range.contains(&waiting) && range.contains(&open), "{who}: {open} open");
                assert!(waiting <= open, "{who}: {waiting} of {open} wait");
            }
        }
    }
    native.finish();
}

/// A SYN that passed and comes again without a socket that says so (SYN cookies, a router) passes,
/// without a token, until its handshake has ended: as often as a client sends it, not in quick
/// succession, for as long as a client tries. Another SYN of the same tuple is new work.
#[test]
fn a_copy_of_a_syn_that_passed_passes() {
    for hook in Hook::ALL {
        let mut native = Native::start(Program::Ingress(hook));
        for (at, seq, passes) in COPIES {
            native.set(&spent());
            let said = copy(&mut native, (at, seq));
            assert_eq!(said == "socket-request", passes, "{hook:?}: seq {seq} at {at} ns: {said}");
            assert!(passes || said == "shop/default drop rate", "{hook:?}: {said}");
        }
        native.finish();
    }
    let mut native = tc();
    native.set(&spent());
    for (frame, egress) in &handshake(40_000) {
        native.use_tokens(0, 0);
        give(&mut native, (frame, *egress), How::default());
    }
    native.use_tokens(0, 1);
    native.advance_to(NOW + SECOND);
    let syn = handshake(40_000)[0].0.clone();
    let seen = give(&mut native, (&syn, false), How::default()).seen.unwrap();
    assert_eq!(seen.words(&spent()), "shop/default drop rate", "its handshake has ended");
    native.finish();
}

/// Where a remote limit holds, a copy takes a token, unless the server has replied to the first. It is refused in
/// silence, for the first one may still be on its way: a RST would end what that opens.
#[test]
fn a_copy_that_nobody_has_replied_to_is_asked_about_where_a_remote_limit_holds() {
    let limited = |setup: Setup| setup.each(|service| service.copies = true);
    let rejecting =
        limited(spent().each(|service| service.action = tidegate_policy::Action::Reject));
    for hook in Hook::ALL {
        let mut native = Native::start(Program::Ingress(hook));
        for (at, seq, _) in COPIES {
            native.set(&limited(spent()));
            let said = copy_in(&mut native, &limited(spent()), (at, seq));
            assert_eq!(said, "shop/default drop rate", "{hook:?}: seq {seq} at {at} ns");
        }
        native.set(&rejecting);
        for (at, seq, passes) in COPIES {
            native.set(&rejecting);
            let said = copy_in(&mut native, &rejecting, (at, seq));
            let expected =
                if passes { "shop/default drop rate" } else { "shop/default reject rate" };
            assert_eq!(said, expected, "{hook:?}: seq {seq} at {at} ns");
        }
        native.finish();
    }
    // Where there are tokens it passes.
    let mut native = tc();
    let open = limited(spent().bucket(9, 0));
    native.set(&open);
    let syn = handshake(40_000)[0].0.clone();
    for (at, expected) in [(0, "token"), (1, "token"), (3, "token")] {
        native.use_tokens(0, 0);
        native.advance_to(NOW + at * SECOND);
        let seen = give(&mut native, (&syn, false), How::default()).seen.unwrap();
        assert_eq!(seen.words(&open), format!("shop/default admit {expected}"), "{at} s");
    }
    // The server has replied: its client waits for nothing of ours.
    native.set(&limited(spent()));
    native.advance_to(NOW + 9 * SECOND);
    for (frame, egress) in &handshake(40_001)[..2] {
        native.use_tokens(0, 0);
        give(&mut native, (frame, *egress), How::default());
    }
    native.use_tokens(0, 1);
    native.advance_to(NOW + 10 * SECOND);
    let syn = handshake(40_001)[0].0.clone();
    let seen = give(&mut native, (&syn, false), How::default()).seen.unwrap();
    assert_eq!(seen.words(&spent()), "socket-request");
    native.finish();
}

/// Another CPU sees a packet of the same connection at the same moment, once, whenever that is: no
/// signal differs from what it would have been. No connection stays open, and none keeps waiting.
#[test]
fn a_word_that_another_cpu_changed_is_changed_all_the_same() {
    const SWAPS: u32 = 4;
    let mut native = tc();
    for (ipv6, end) in [false, true].iter().flat_map(|six| End::ALL.map(|end| (*six, end))) {
        let life = life(ipv6, end);
        for lost in (0..life.len()).flat_map(|at| (1..=SWAPS).map(move |swap| (at, swap))) {
            let seen = play_losing(&mut native, &base(), (&life, lost));
            for (step, signals) in life.iter().zip(seen) {
                assert_eq!(
                    Said::of(&signals),
                    step.signals,
                    "{end:?}: {lost:?} lost, after {}",
                    step.about
                );
            }
        }
    }
    native.finish();
}

/// A request that came before the SYN-ACK was seen, or with the end of the handshake, waits.
#[test]
fn a_request_that_comes_early_waits() {
    let mut native = tc();
    native.set(&base());
    let last = |native: &mut Native, packets: &[(Vec<u8>, bool)]| {
        let signals = packets
            .iter()
            .map(|(frame, egress)| give(native, (frame, *egress), How::default()).signals);
        signals.last().unwrap()
    };
    let connection = early(40_001);
    let waits = last(&mut native, &connection[..5]);
    assert_eq!((waits.waiting, waits.silent, waits.connections.asked), (1, 0, 1));
    let over = last(&mut native, &connection[5..]);
    assert_eq!((over.waiting, over.first_bytes, over.connections.answered), (0, 1, 1));
    let waits = last(&mut native, &together(40_002));
    assert_eq!((waits.waiting, waits.silent, waits.connections.asked), (1, 0, 2));
    native.finish();
}

/// A handshake anew on a tuple whose flow is still there: the old one is over.
#[test]
fn a_tuple_is_used_again() {
    let mut native = tc();
    native.set(&base());
    let mut opened = Vec::new();
    for (frame, egress) in handshake(40_000).iter().chain(&handshake(40_000)) {
        let ran = give(&mut native, (frame, *egress), How::default());
        opened.push((ran.signals.open, ran.signals.silent));
    }
    // the second SYN changes nothing: anyone can send one; the SYN-ACK ends the first connection
    assert_eq!(opened, [(0, 0), (0, 0), (1, 1), (1, 1), (0, 0), (1, 1)]);
    native.finish();
}

/// A RST that the stack will not believe ends no connection here either; whoever guesses the tuple
/// cannot talk our gauges down.
#[test]
fn a_reset_that_the_stack_does_not_believe_ends_nothing() {
    let mut native = tc();
    for (about, socket, seq, over) in RESETS {
        let ran = reset(&mut native, (socket, seq), 0);
        assert_eq!(ran.seen.unwrap().action, Action::Pass, "{about}");
        assert_eq!(ran.signals.open, i32::from(!over), "{about}");
        for fail_at in 1..=ran.calls.len() as u32 {
            let failed = reset(&mut native, (socket, seq), fail_at);
            assert_eq!(failed.seen.unwrap().action, Action::Pass, "{about}: {fail_at} fails");
        }
    }
    native.finish();
}

/// More connections than fit: the rest is counted and passes; later the idle ones make room.
#[test]
fn a_full_table_tracks_what_it_can() {
    let mut native = tc();
    let ports = 10_000..16_000;
    let [first, second] = crowd(&mut native, &base(), ports.clone());
    let all = ports.len() as i32;
    assert!(first.open <= TABLE && first.open > TABLE * 3 / 4, "{first:?}");
    assert_eq!((first.open, first.waiting), (first.silent, 0));
    assert_eq!(first.open + first.untracked as i32, all, "{first:?}");
    assert_eq!(first.evicted, 0);
    assert!(second.evicted > 1000, "{second:?}");
    let known = second.open + (second.untracked + second.evicted) as i32;
    assert_eq!(known, 2 * all, "{second:?}");
    native.finish();
}
