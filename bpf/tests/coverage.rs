// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the cases, their failures and random input reach of the ingress hooks' C: every line, and all
//! branches but those that are named here with a reason.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::collections::BTreeMap;
use support::border;
use support::cases::all;
use support::connection::{
    COPIES, End, RESETS, copy, copy_in, crowd, early, give, handshake, life, play, play_losing,
    reset, slow, spent, together,
};
use support::engine::{Arrival, Hook};
use support::frames::frame;
use support::gcov::{Unreachable, Wanted, gcov, wrong};
use support::late;
use support::native::{How, Mode, NOW, Native, Program};
use support::packet::{ACK, FIN, SYN};
use support::proved;
use support::random::{Dice, seed};
use support::reference::{Action, Socket};
use support::scene;
use support::setup::{SECOND, base};
use support::setups::{answering, setup};
use support::time_wait;
use tidegate_policy::Action as PolicyAction;

/// Set-ups at random, and frames for each.
const SETUPS: usize = 150;
const FRAMES: usize = 200;
/// The files that are measured, and the share of their branches that must be taken, in percent.
/// What is missing there is said beside it; policies have their own tests (policy/tests).
const FILES: [Wanted; 25] = [
    ("ipv4.h", 95.0),
    ("border.h", 95.0), // the verifier wants a bound checked
    ("rst.h", 100.0),
    ("tokens.h", 100.0),
    ("allowance.h", 95.0), // two CPUs at once
    ("frame.h", 100.0),
    ("classify.h", 97.0), // the verifier wants a pointer checked
    ("emit.h", 100.0),
    ("flow.h", 85.0), // two CPUs at once
    ("hash.h", 100.0),
    ("evaluate.h", 96.0), // no policy delays yet; what fails only after a look-up that fails
    ("late.h", 88.0),     // the verifier wants pointers checked; two CPUs at once
    ("lease.h", 100.0),
    ("limits.h", 95.0),       // the verifier wants a pointer checked
    ("chain/chain.h", 86.0),  // no policy delays yet; limits that change meanwhile
    ("chain/decide.h", 90.0), // the verifier wants a pointer checked
    ("chain/lease.h", 100.0),
    ("options.h", 90.0),
    ("packet.h", 100.0),
    ("parse.h", 99.0),
    ("queue.h", 95.0),   // the verifier wants a pointer checked
    ("refused.h", 80.0), // the verifier wants a pointer checked
    ("tc.h", 75.0),      // the same
    ("tc.bpf.c", 95.0),
    ("xdp.bpf.c", 80.0), // the verifier wants bounds checked that were made just before
];
/// Lines that nothing can reach here, by what they say, with the reason.
const UNREACHABLE: [Unreachable; 11] = [
    ("refused.h", "return 0;", "the verifier wants a pointer checked"),
    ("queue.h", "return 0;", "the verifier wants a pointer checked"),
    ("chain/chain.h", "return 0;", "the queue was limited a moment ago (late.h)"),
    ("chain/chain.h", "*v = tg_verdict(TG_ADMIT, TG_REASON_NO_LIMIT);", "no policy delays yet"),
    ("xdp.bpf.c", "return XDP_DROP;", "the verifier wants bounds checked"),
    ("xdp.bpf.c", "return TG_REASON_LOOKUP_FAILED;", "the verifier wants a pointer checked"),
    ("chain/decide.h", "return TG_CHAIN_LOST;", "the verifier wants a pointer checked"),
    (
        "evaluate.h",
        "return reason == TG_REFUSED_EARLY ? TG_ACTION_DROP :",
        "no rule is imported, and no datagram counted here (imported.rs, datagrams.rs)",
    ),
    ("flow.h", "return;", "two CPUs at once"),
    ("flow.h", "return 0;", "two CPUs at once"),
    ("flow.h", "return meta;", "two CPUs at once, twice"),
];

/// Everything that we can make an ingress hook do.
fn exercise(native: &mut Native) {
    for case in all().iter().flat_map(|(_, cases)| cases) {
        let frame = case.packet.bytes();
        let socket = scene::socket(&frame);
        let arrival = Arrival { frame: &frame, socket, loopback: case.loopback };
        native.set(&case.setup);
        let how = How { linear: 54, ..How::default() };
        for fail_at in 1..=native.run(&arrival, how).calls.len() as u32 {
            native.set(&case.setup);
            native.run(&arrival, How { fail_at, ..how });
        }
    }
    for (_, options, _) in time_wait::OPTIONS {
        let (frame, socket) = time_wait::with_options(options);
        time_wait::run(native, (&frame, socket), How::default());
    }
    let (behind, socket) = time_wait::behind_an_extension();
    time_wait::run(native, (&behind, socket), How::default());
    for row in &time_wait::ROWS {
        let (frames, socket) = (time_wait::frames(row), time_wait::socket(row));
        for frame in &frames {
            let ran = time_wait::run(native, (frame, socket), How::default());
            for fail_at in 1..=ran.calls.len() as u32 {
                let how = How { fail_at, ..How::default() };
                time_wait::run(native, (frame, socket), how);
            }
        }
    }
    let mut dice = Dice::new(seed());
    for _ in 0..SETUPS {
        let setup = setup(&mut dice, true);
        let sample_every = *dice.pick(&[0, 1, 1000]);
        native.set_mode(
            &setup,
            Mode { answering: answering(&mut dice), sample_every, ..Mode::default() },
        );
        for _ in 0..FRAMES {
            let frame = frame(&mut dice);
            let socket = scene::listener(&frame);
            let arrival = Arrival { frame: &frame, socket, loopback: dice.one_in(2) };
            let how = How { dice: [dice.u32(), dice.u32()], ..How::default() };
            native.run(&arrival, how);
        }
    }
}

/// Packets from outside, at the border, with every failure; `plain`: without Ethernet header.
fn exercise_border(native: &mut Native, plain: bool) {
    for (_, before, _) in border::cases() {
        let frame = before.bytes();
        let frame = frame.get(if plain { 14 } else { 0 }..).unwrap_or_default();
        let arrival = Arrival { frame, socket: Socket::Nothing, loopback: false };
        let mut run = |fail_at| {
            native.set_mode(&base(), Mode { plain, ..Mode::default() });
            native.border(border::MARKS);
            native.run(&arrival, How { fail_at, ..How::default() })
        };
        for fail_at in 1..=run(0).calls.len() as u32 {
            run(fail_at);
        }
    }
}

/// The same frames on a link without Ethernet header: the same is done, to the same bytes.
fn exercise_plain(native: &mut Native) {
    let plain = Mode { plain: true, ..Mode::default() };
    let mut seen = 0;
    for case in all().iter().flat_map(|(_, cases)| cases) {
        let frame = case.packet.bytes();
        // What only Ethernet can say has no counterpart.
        let group = frame.len() < 14 || (frame[0] | frame[6]) & 1 == 1;
        let kind = frame.get(12..14).map(|kind| (kind[0], kind[1]));
        let version = frame.get(14).map(|first| first >> 4);
        let says = matches!(
            (kind, version),
            (Some((0x08, 0x00)), Some(4)) | (Some((0x86, 0xdd)), Some(6))
        );
        if group || !says {
            continue;
        }
        let arrival = |frame| Arrival {
            frame,
            socket: scene::socket(&case.packet.bytes()),
            loopback: case.loopback,
        };
        native.set(&case.setup);
        let framed = native.run(&arrival(&frame), How::default()).seen.unwrap();
        native.set_mode(&case.setup, plain);
        let bare = native.run(&arrival(&frame[14..]), How::default()).seen.unwrap();
        assert_eq!(bare.counted, framed.counted, "{}", case.name);
        match (&bare.action, &framed.action) {
            (Action::Answer(bare), Action::Answer(framed)) => {
                assert_eq!(bare[..], framed[14..], "{}", case.name);
            }
            (bare, framed) => assert_eq!(bare, framed, "{}", case.name),
        }
        seen += 1;
    }
    assert!(seen > 100, "{seen} cases");
    native.set_mode(&base(), plain);
    for frame in [&[][..], &[0x50; 60][..]] {
        let arrival = Arrival { frame, socket: Socket::Nothing, loopback: false };
        assert_eq!(native.run(&arrival, How::default()).seen.unwrap().action, Action::Pass);
    }
}

/// A source that may hold one connection: it is silent, then slow, and opens another one meanwhile.
/// `fail_at`: of that.
fn exercise_sources(native: &mut Native, fail_at: u32) -> u32 {
    native.set(&base().each(|service| service.source_max = 1));
    for (frame, egress) in &handshake(40_000) {
        give(native, (frame, *egress), How::default());
    }
    let syn = handshake(40_001)[0].0.clone();
    let ran = give(native, (&syn, false), How { fail_at, ..How::default() });
    for (piece, (frame, egress)) in slow(40_000).iter().enumerate() {
        native.advance_to(NOW + 3 * piece as u64 * SECOND);
        give(native, (frame, *egress), How::default());
    }
    ran.calls.len() as u32
}

/// Requests that the stack has dropped, come again: refused, passed, and with every failure.
fn exercise_late(native: &mut Native) {
    let calm = How::default();
    for setup in [base(), late::limited().shadow(), late::limited().released(), late::rejecting()] {
        let last = late::AGAIN_MS.len() - 1;
        let calls = late::until(native, &setup, (last, calm)).calls.len();
        for fail_at in 1..=calls as u32 {
            late::until(native, &setup, (last, How { fail_at, ..calm }));
        }
        for (ipv6, socket) in [(false, late::FULL), (true, late::FULL), (false, Socket::Nothing)] {
            let ran = late::unknown(native, (&setup, ipv6), (socket, calm), |p| p);
            for fail_at in 1..=ran.calls.len() as u32 {
                let how = How { fail_at, ..calm };
                late::unknown(native, (&setup, ipv6), (socket, how), |p| p);
            }
        }
    }
    let limited = late::limited();
    for socket in [Socket::Established, Socket::Request, Socket::Nothing] {
        late::until_with(native, &limited, socket);
    }
    for (flags, after_ms) in [(ACK, 900), (ACK, 3_000), (ACK | FIN, 3_000), (SYN | ACK, 3_000)] {
        late::crowded_out(native, &limited);
        late::other(native, after_ms, flags, late::FULL);
    }
    late::until(native, &limited, (0, calm));
    late::more(native, 9_000);
    for (setup, replied) in [(&limited, false), (&limited, true), (&base(), false)] {
        late::copy(native, setup, replied);
    }
    for taken in [0, late::ASKED] {
        late::fast_open(native, &limited, taken);
    }
    late::unknown(native, (&limited, false), (late::FULL, calm), |p| p);
    native.advance_to(NOW + 71 * SECOND);
    late::anew(native, calm);
}

/// Copies of SYNs that passed, where a remote limit holds.
fn exercise_copies(native: &mut Native) {
    for action in [PolicyAction::Drop, PolicyAction::Reject] {
        let setup = spent().each(|service| (service.copies, service.action) = (true, action));
        for (at, seq, _) in COPIES {
            native.set(&setup);
            copy_in(native, &setup, (at, seq));
        }
    }
}

/// The lives of connections, and every failure in them.
fn exercise_connections(native: &mut Native) {
    for end in End::ALL {
        let life = life(false, end);
        let normal = play(native, &base(), (&life, None));
        for (at, ran) in normal.iter().enumerate() {
            for call in 1..=ran.calls.len() as u32 {
                play(native, &base(), (&life, Some((at, call))));
            }
            play_losing(native, &base(), (&life, (at, 1)));
        }
    }
    for (frame, egress) in handshake(40_000).iter().chain(&handshake(40_000)) {
        give(native, (frame, *egress), How::default());
    }
    for fail_at in 0..=exercise_sources(native, 0) {
        exercise_sources(native, fail_at);
    }
    exercise_late(native);
    exercise_copies(native);
    proved::exercise(native);
    for (_, socket, seq, _) in RESETS {
        let calls = reset(native, (socket, seq), 0).calls.len() as u32;
        for fail_at in 1..=calls {
            reset(native, (socket, seq), fail_at);
        }
    }
    for connection in [early(40_001), together(40_002)] {
        for (frame, egress) in &connection {
            give(native, (frame, *egress), How::default());
        }
    }
    crowd(native, &base(), 10_000..16_000);
    // those that wait are forgotten when others need their place
    for (round, ports) in [(0, 10_000..16_000), (1_u64, 20_000..26_000)] {
        native.advance_to(NOW + (2_000 + 1_000 * round) * SECOND);
        for (frame, egress) in ports.flat_map(together) {
            give(native, (&frame, egress), How::default());
        }
    }
}

#[test]
fn every_line_and_nearly_every_branch_is_reached() {
    let directory = tempfile::tempdir().unwrap();
    let mut covered = BTreeMap::new();
    for (hook, name) in [(Hook::Xdp, "xdp"), (Hook::Tc, "tc")] {
        let mut native = Native::start_covered(Program::Ingress(hook), directory.path());
        exercise(&mut native);
        exercise_border(&mut native, false);
        if hook == Hook::Tc {
            exercise_border(&mut native, true);
            exercise_plain(&mut native);
            exercise_connections(&mut native);
        }
        for (at, seq, _) in COPIES {
            native.set(&spent());
            copy(&mut native, (at, seq));
        }
        native.finish();
        let data = format!("native-{name}-host.gcda");
        gcov((directory.path(), &data), &FILES, &mut covered);
    }
    let wrong = wrong(&covered, &FILES, &UNREACHABLE);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
