// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Golden packets: what each of some hundred frames becomes, byte for byte, at both hooks – in the
//! kernel, in the native build and by the reference, which must all agree with each other, with
//! what a person wrote down (support/cases), and with the golden files (tests/golden).
//!
//! And each of them cut at every length: nothing crashes, nothing that is cut is answered.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use support::cases::{Case, all};
use support::decode::describe;
use support::engine::{Arrival, Hook, Seen};
use support::golden::{Golden, hex, report};
use support::namespace::Namespace;
use support::native::{How, Native, Program};
use support::object::require_root;
use support::plane::Kernel;
use support::reference::Action;
use support::setup::{Heartbeat, SECOND};

/// The least that must be there.
const CASES_MIN: usize = 300;
const ABOUT: &str = "Packets and what becomes of them, at the XDP and the tc hook alike.
Written by `cargo xtask golden --bless` from bpf/tests/support/cases; reviewed by people.

services  shop at 192.0.2.10:80, [2001:db8::10]:80 and 192.0.2.10:81; any at *:443 and
          192.0.2.10:8080. Said once where both have the same limits.
never     10.0.0.0/8, 2001:db8:aaaa::/48, port 22
sockets   port 80 has a listener with an empty queue of 128, port 81 one with 3 of 4 waiting;
          from port 40001 the client has an established connection, from 40002 one in
          TIME_WAIT, from 40003 a request, from 40004 one in FIN_WAIT2 without a process;
          those two expect the sequence number that frames have by default
frames    arrive on an interface that is not the loopback device, unless said otherwise";

fn natives() -> Vec<(Hook, Native)> {
    let start = |hook: &Hook| (*hook, Native::start(Program::Ingress(*hook)));
    Hook::ALL.iter().map(start).collect()
}

/// The kernel's clock cannot be held: what depends on a second of it is for the native build.
fn for_kernel(case: &Case) -> bool {
    match case.setup.heartbeat {
        Heartbeat::Never | Heartbeat::Ahead(_) => true,
        Heartbeat::Ago(ns) => !(2 * SECOND + 1..10 * SECOND).contains(&ns),
    }
}

fn block(case: &Case, frame: &[u8], seen: &Seen) -> String {
    let mut text = format!("  about   {}\n", case.about);
    text += &format!("  setup   {}\n", case.setup);
    text +=
        &format!("  packet  {}\n", case.source.split_whitespace().collect::<Vec<_>>().join(" "));
    if case.loopback {
        text += "  on      the loopback interface\n";
    }
    text += &format!("  in      {}\n", describe(frame));
    text += &hex("", frame);
    text += &format!("  verdict {}\n", seen.action);
    text += &format!("  reason  {}\n", seen.words(&case.setup));
    if let Action::Answer(bytes) = &seen.action {
        text += &format!("  out     {}\n", describe(bytes));
        text += &hex("", bytes);
    }
    text
}

/// Everyone who has an opinion on a case agrees with what a person expects, or it is told.
fn disagreement(case: &Case, who: &str, seen: &Seen, expected: &Seen) -> Option<String> {
    let name = case.name;
    if !case.expect.is(seen, &case.setup) {
        let words = seen.words(&case.setup);
        return Some(format!("{name}: {who} {}, {words}; wanted {:?}", seen.action, case.expect));
    }
    (seen != expected).then(|| format!("{name}: {who} {seen:x?}, the reference {expected:x?}"))
}

#[test]
fn the_reference_agrees_with_people_and_the_golden_files() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for (group, cases) in all() {
        let mut golden = Golden::new(&format!("{group}.golden"), ABOUT);
        for case in &cases {
            let frame = case.packet.bytes();
            let expected = Seen::expected(&case.setup, &case.arrival(&frame));
            wrong.extend(disagreement(case, "the reference:", &expected, &expected));
            golden.add(case.name, block(case, &frame, &expected));
            count += 1;
        }
        wrong.extend(golden.check());
    }
    println!("{count} cases");
    assert!(count >= CASES_MIN, "{count} cases, {CASES_MIN} were there");
    report(&wrong);
}

#[test]
fn the_native_build_agrees() {
    let mut wrong = Vec::new();
    for (hook, mut native) in natives() {
        for case in all().iter().flat_map(|(_, cases)| cases) {
            let frame = case.packet.bytes();
            let arrival = case.arrival(&frame);
            let expected = Seen::expected(&case.setup, &arrival);
            let ran = case.run(&mut native, &arrival).unwrap();
            assert_eq!(ran.counted, 1, "{}", case.name);
            let seen = ran.seen.unwrap();
            assert!(seen.action != Action::Pass || !ran.changed, "{}: changed", case.name);
            wrong.extend(disagreement(case, &format!("{hook:?}, native:"), &seen, &expected));
        }
        native.finish();
    }
    report(&wrong);
}

#[test]
fn the_kernel_agrees() {
    require_root();
    let namespace = Namespace::new();
    let wrong = namespace.within(|interface| {
        let mut wrong = Vec::new();
        let mut kernel: Option<Kernel> = None;
        for case in all().iter().flat_map(|(_, cases)| cases) {
            let frame = case.packet.bytes();
            if !for_kernel(case) {
                continue;
            }
            let arrival = case.arrival(&frame);
            let expected = Seen::expected(&case.setup, &arrival);
            for hook in Kernel::hooks_for(&frame) {
                let ready = prepared(kernel.take(), case, (&arrival, interface));
                let kernel = kernel.insert(ready);
                let seen = kernel.run(hook, &arrival);
                let who = format!("{hook:?}, kernel:");
                wrong.extend(disagreement(case, &who, &seen, &expected));
            }
        }
        wrong
    });
    report(&wrong);
}

/// The kernel with the case's set-up in force and nothing of it used up by cases before.
fn prepared(
    kernel: Option<Kernel>,
    case: &Case,
    (arrival, interface): (&Arrival<'_>, u32),
) -> Kernel {
    let mut kernel = match kernel {
        Some(kernel) if kernel.is_untouched(&case.setup) => {
            kernel.forget_syns();
            // a busy machine takes longer for one set-up's cases than the lease holds
            kernel.refresh(&case.setup);
            return kernel;
        }
        Some(mut kernel) if kernel.fits(&case.setup) => {
            kernel.put(&case.setup);
            kernel
        }
        _ => Kernel::load(&case.setup, interface),
    };
    kernel.prepare(&case.setup, arrival);
    kernel
}

/// Bytes up to the end of what IP announces: what lies behind decides nothing.
fn needed(frame: &[u8], ip_at: usize) -> usize {
    let word = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    if frame[ip_at] >> 4 == 4 { ip_at + word(ip_at + 2) } else { ip_at + 40 + word(ip_at + 4) }
}

/// Every case cut at every length: what the reference says of it, which is to let it pass.
fn cuts(case: &Case, mut check: impl FnMut(&Arrival<'_>, &Seen)) {
    let frame = case.packet.bytes();
    let whole = support::reference::parse::parse(&frame).map(|s| needed(&frame, s.ip_at));
    for length in 0..frame.len() {
        let cut = &frame[..length];
        let arrival = case.arrival(cut);
        let expected = Seen::expected(&case.setup, &arrival);
        if length < whole.unwrap_or(usize::MAX) {
            assert_eq!(expected.action, Action::Pass, "{} cut to {length} bytes", case.name);
        }
        check(&arrival, &expected);
    }
}

/// Cases whose cuts say something: each packet once, with one set-up that refuses what it can.
fn cut_cases() -> Vec<Case> {
    let groups = ["link", "ipv4", "ipv6", "tcp", "answers"];
    let cases = all().into_iter().filter(|(group, _)| groups.contains(group));
    let cases = cases.flat_map(|(_, cases)| cases);
    cases.filter(|case| case.setup == support::setup::rejecting()).collect()
}

#[test]
fn cut_at_every_length_the_native_build_passes_what_is_not_whole() {
    for (hook, mut native) in natives() {
        let mut count = 0;
        for case in cut_cases() {
            native.set(&case.setup);
            cuts(&case, |arrival, expected| {
                let seen = native.run(arrival, How::default()).seen.unwrap();
                let length = arrival.frame.len();
                assert_eq!(&seen, expected, "{hook:?}: {} cut to {length} bytes", case.name);
                count += 1;
            });
        }
        native.finish();
        println!("{hook:?}: {count} cut frames");
    }
}

#[test]
fn cut_at_every_length_the_kernel_passes_what_is_not_whole() {
    require_root();
    let namespace = Namespace::new();
    namespace.within(|interface| {
        let cases = cut_cases();
        let mut kernel = Kernel::load(&cases[0].setup, interface);
        let frame = cases[0].packet.bytes();
        kernel.prepare(&cases[0].setup, &cases[0].arrival(&frame));
        for case in &cases {
            kernel.refresh(&case.setup);
            cuts(case, |arrival, expected| {
                for hook in Kernel::hooks_for(arrival.frame) {
                    let seen = kernel.run(hook, arrival);
                    let length = arrival.frame.len();
                    assert_eq!(&seen, expected, "{hook:?}: {} cut to {length}", case.name);
                }
            });
        }
    });
}
