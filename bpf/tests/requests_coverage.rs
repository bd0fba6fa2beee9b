// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the conversations, their failures and random input reach of the request hooks' C: every line, and
//! all branches but those that are named here with a reason. The recogniser has tests of its own
//! beside it (recognise.rs); here counts what whole packets reach of it.

#![allow(clippy::unwrap_used, reason = "a test may")]

#[path = "requests/dice.rs"]
mod dice;
#[path = "requests/talks.rs"]
mod talks;

mod support;

use std::collections::BTreeMap;
use support::gcov::{Unreachable, Wanted, gcov, wrong};
use support::random::{Dice, seed};
use support::talk::host::{Host, Rules};
use support::talk::{Style, Talk};
use talks::all;

/// Conversations at random, and packets in each.
const TALKS: u64 = 300;
const PACKETS: usize = 40;
/// The files that are measured, and the share of their branches that must be taken, in percent.
const FILES: [Wanted; 9] = [
    ("conn.h", 88.0),            // two CPUs at once
    ("exchange.h", 86.0),        // the same
    ("refusal.h", 85.0),         // the same; the verifier wants pointers checked
    ("segment.h", 89.0),         // the verifier wants bounds checked
    ("request.h", 89.0),         // the same
    ("request_in.bpf.c", 94.0),  // the verifier wants pointers checked
    ("request_out.bpf.c", 85.0), // two CPUs at once
    ("socket.h", 74.0),          // the verifier wants pointers checked
    ("sweep.bpf.c", 87.0),       // it wants a bound checked
];
/// Lines that nothing can reach here, by what they say, with the reason.
const TWO: &str = "two CPUs at once";
const VERIFIER: &str = "the verifier wants a pointer, or a bound, checked";
const UNREACHABLE: [Unreachable; 12] = [
    (
        "request.h",
        "reason = TG_REASON_TLS;",
        "rules of these conversations ask for names; requests_odd_live.rs has some that do not",
    ),
    ("conn.h", "return;", TWO),
    ("conn.h", "begun = 0;", "the sweep on another CPU"),
    ("exchange.h", "return 0;", VERIFIER),
    ("exchange.h", "return;", TWO),
    ("refusal.h", "return -1;", TWO),
    ("refusal.h", "return TG_REFUSAL_BUSY;", TWO),
    ("segment.h", "return -1;", VERIFIER),
    ("request_in.bpf.c", "return;", TWO),
    ("request_out.bpf.c", "return;", TWO),
    ("socket.h", "return TG_SOCKET_BUSY;", VERIFIER),
    ("sweep.bpf.c", "return 0;", VERIFIER),
];

/// Everything that we can make the hooks do.
fn exercise(host: &mut Host) {
    for case in &all() {
        host.set(&case.rules);
        let mut talk = Talk::new(host, case.style);
        (case.play)(&mut talk);
        assert!(!talk.heard.is_empty(), "{}", case.name);
        talk.wait(61).sweep();
        let calls: Vec<u32> = talk.heard.iter().map(|(_, heard)| heard.calls).collect();
        for (step, calls) in calls.into_iter().enumerate().filter(|_| case.fails) {
            for call in 1..=calls {
                host.set(&case.rules);
                let mut talk = Talk::new(host, case.style);
                talk.fails = Some((step, call));
                (case.play)(&mut talk);
            }
        }
        for linear in [14, 54, 66, 80] {
            host.set(&case.rules);
            let mut talk = Talk::new(host, case.style);
            talk.linear = linear;
            (case.play)(&mut talk);
        }
    }
    let seed = seed();
    for n in 0..TALKS {
        let mut dice = Dice::new(seed ^ n);
        let unevaluable = dice.one_in(2).then(|| dice.below(6) as u64);
        // From the number of the talk and not from `dice`, so that the talks stay what they were.
        let canary = if n % 4 == 0 { (n << 7) as u16 } else { 0 };
        let used = [5, dice.below(6) as u64];
        host.set(&Rules { used, unevaluable, canary, ..Rules::default() });
        let style = *dice.pick(&talks::styles());
        let mut talk = Talk::new(host, Style { router: dice.one_in(2), ..style });
        talk.open();
        for _ in 0..PACKETS {
            dice::throw(&mut talk, &mut dice);
        }
    }
}

#[test]
fn every_line_and_nearly_every_branch_is_reached() {
    let directory = tempfile::tempdir().unwrap();
    let mut covered = BTreeMap::new();
    let mut host = Host::start_covered(directory.path());
    exercise(&mut host);
    host.finish();
    gcov((directory.path(), "native-requests-requests.gcda"), &FILES, &mut covered);
    let wrong = wrong(&covered, &FILES, &UNREACHABLE);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
