// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What holds whatever the numbers are: the lease at both sides of each of its bounds, and what
//! about a packet must not matter. (Native build.)

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use support::engine::{Arrival, Hook};
use support::native::{How, NOW, Native, Program};
use support::packet::{Packet, SYN, eth};
use support::random::{Dice, seed};
use support::reference::{Action, Counted, Socket};
use support::setup::{SECOND, rejecting};
use support::setups::setup;
use tidegate_policy::Reason;

/// Pairs of packets that must meet the same verdict.
const PAIRS: usize = 4_000;

fn native() -> Native {
    Native::start(Program::Ingress(Hook::Xdp))
}

fn arrival(frame: &[u8]) -> Arrival<'_> {
    Arrival { frame, socket: Socket::Nothing, loopback: false }
}

/// What becomes of a SYN without a token, by clock, heartbeat and dice.
fn executed(native: &mut Native, (now, heartbeat): (u64, u64), dice: u32) -> Option<bool> {
    let frame = eth().ipv4().tcp(40_000, 80).syn().bytes();
    native.set(&rejecting());
    native.clock(now, heartbeat);
    let seen =
        native.run(&arrival(&frame), How { dice: [0, dice], ..How::default() }).seen.unwrap();
    match seen.counted {
        Counted::Passed(Reason::LeaseExpired) => None,
        Counted::Evaluated(evaluated) => {
            assert_eq!(evaluated.shadow, seen.action == Action::Pass);
            Some(!evaluated.shadow)
        }
        other => panic!("{now} {heartbeat}: {other:?}"),
    }
}

#[test]
fn the_lease_at_each_of_its_bounds() {
    let mut native = native();
    // dice that execute a refusal whenever anything is left of the lease, and dice that never do
    let (always, never) = (0, 65535);
    let age = |ns: u64| (NOW, NOW - ns);
    let cases = [
        // up to 3 s limits hold, whatever the random number is
        (age(0), never, Some(true)),
        (age(3 * SECOND), never, Some(true)),
        // then the random number decides: 6.5 s is half way
        (age(3 * SECOND + SECOND / 10), always, Some(true)),
        (age(3 * SECOND + SECOND / 10), never, Some(false)),
        (age(6 * SECOND + SECOND / 2), 32_700, Some(true)),
        (age(6 * SECOND + SECOND / 2), 32_800, Some(false)),
        (age(9 * SECOND), 9_300, Some(true)),
        (age(9 * SECOND), 9_400, Some(false)),
        // from 10 s on everything passes
        (age(10 * SECOND), always, None),
        (age(10 * SECOND + 1), always, None),
        (age(900 * SECOND), always, None),
        // no heartbeat, ever
        ((NOW, 0), always, None),
        // another CPU read the clock a moment later
        ((NOW, NOW + 1), never, Some(true)),
        ((NOW, NOW + 1_000_000), never, Some(true)),
    ];
    for (times, dice, expected) in cases {
        assert_eq!(executed(&mut native, times, dice), expected, "{times:?}, dice {dice}");
    }
    native.finish();
}

/// Only the upper bits of a random word may be missing: every share of it counts.
#[test]
fn a_lease_relaxes_evenly() {
    let mut native = native();
    for tenths in 31..100 {
        let age = tenths * SECOND / 10;
        let steps = 64;
        let dice = (0..steps).map(|n| n * 65_536 / steps);
        let count =
            dice.filter(|d| executed(&mut native, (NOW, NOW - age), *d) == Some(true)).count();
        let share = (10.0 - tenths as f64 / 10.0) / 7.0 * f64::from(steps);
        assert!((count as f64 - share).abs() <= 1.0, "{tenths}/10 s: {count} of {steps}, {share}");
    }
    native.finish();
}

/// The same request in other words.
fn twins(dice: &mut Dice) -> (Packet, Packet) {
    let port = *dice.pick(&[80, 81, 443, 8080, 22, 9999]);
    let flags = *dice.pick(&[SYN, SYN, SYN, SYN | 0xc0, 0x10, 0x12]);
    let ipv6 = dice.one_in(2);
    let source =
        *dice.pick(&[[198, 51, 100, 7], [10, 1, 2, 3], [203, 0, 113, 77], [198, 51, 100, 200]]);
    let twin = |dice: &mut Dice| {
        let mut packet = eth();
        for _ in 0..dice.below(3) {
            packet = packet.vlan(dice.u32() as u16);
        }
        packet = if ipv6 {
            packet.ipv6().flow(dice.u32() & 0xf_ffff).ttl(dice.u8())
        } else {
            packet.ipv4().from4(source).ttl(dice.u8()).id(dice.u32() as u16)
        };
        let from = 42_000 + (dice.u32() & 0x3fff) as u16;
        packet = packet.tcp(from, port).flags(flags).seq(dice.u32()).window(dice.u32() as u16);
        let (options, payload) = (dice.below(20), dice.below(40));
        packet.options(&dice.bytes(options)).data(&dice.bytes(payload))
    };
    (twin(dice), twin(dice))
}

#[test]
fn what_does_not_matter_changes_nothing() {
    let mut native = native();
    let mut dice = Dice::new(seed());
    for _ in 0..PAIRS {
        let setup = setup(&mut dice, false);
        let (one, other) = twins(&mut dice);
        let mut evaluate = |packet: &Packet| {
            native.set(&setup);
            let seen = native.run(&arrival(&packet.bytes()), How::default()).seen.unwrap();
            (seen.counted, seen.action.to_string())
        };
        assert_eq!(evaluate(&one), evaluate(&other), "{one:?}\n{other:?}\n{setup}");
    }
    native.finish();
}
