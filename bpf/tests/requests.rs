// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Request rules: whole conversations, packet by packet, in the native build of all hooks. Each is
//! compared with golden/requests.golden, which a person can read; what must hold in all of them is
//! checked beside it.

#![allow(clippy::unwrap_used, reason = "a test may")]

#[path = "requests/dice.rs"]
mod dice;
#[path = "requests/talks.rs"]
mod talks;

mod support;

use support::golden::{Golden, report};
use support::packet::RST;
use support::random::{Dice, seed};
use support::talk::host::{Host, NEXT, Rules, Run};
use support::talk::{Style, Talk, tags};
use talks::{Case, all, get};

const ABOUT: &str = "Conversations of a client with a server behind the request hooks, and what becomes of each packet.
Written by `cargo xtask golden --bless` from bpf/tests/requests/talks.rs; reviewed by people.

rules     /busy 1: 503. /reset 2: reset. /drop 3: drop. /free 4: admitted, no bucket.
          TLS 5: reset. /close 6: 503, persistent connections first. /shop 7: 503, the cookie
          `session` last. Bucket 0, of rules 1, 2, 3 and 5, is empty unless said otherwise,
          bucket 1, of rules 6 and 7, is full. Rule 8 is that of unevaluable requests (503,
          bucket 2), in the conversations with evaders.
numbers   c+1 is the client's first byte, s+1 the server's
→         what the hooks send; a line without one says that the packet goes on as it is
[…]       where the connection stands afterwards, if it is followed";
const CASES_MIN: usize = 80;

fn play<'a>(host: &'a mut Host, case: &Case) -> Talk<'a> {
    host.set(&case.rules);
    let mut talk = Talk::new(host, case.style);
    (case.play)(&mut talk);
    talk
}

#[test]
fn conversations_are_the_golden_ones() {
    let mut host = Host::start();
    let mut golden = Golden::new("requests.golden", ABOUT);
    let cases = all();
    for case in &cases {
        let talk = play(&mut host, case);
        golden.add(case.name, talk.told);
    }
    assert!(cases.len() >= CASES_MIN, "{} conversations", cases.len());
    report(&golden.check());
}

/// What was refused is refused in every style; what the hooks send is well formed.
#[test]
fn what_is_sent_is_well_formed() {
    let mut host = Host::start();
    for case in &all() {
        let talk = play(&mut host, case);
        assert!(!talk.told.contains("SUMS"), "{}\n{}", case.name, talk.told);
        for (before, heard) in &talk.heard {
            for sent in &heard.sent {
                assert_eq!(sent[..6], before[6..12], "{}: to whom it came from", case.name);
                assert_eq!(sent[6..12], before[..6], "{}: from whom it was for", case.name);
                assert_eq!(tags(sent), tags(before), "{}: in the same VLAN", case.name);
            }
            if let Some(passed) = heard.passed(before) {
                assert_eq!(passed[..12], before[..12], "{}", case.name);
                assert_eq!(tags(&passed), tags(before), "{}", case.name);
            }
        }
    }
}

/// When a conversation is over and a minute has passed, nothing of it is left: no place in the
/// table, nothing in flight, nobody who waits.
#[test]
fn nothing_is_left_of_a_conversation() {
    let mut host = Host::start();
    for case in &all() {
        let mut talk = play(&mut host, case);
        talk.wait(61).sweep();
        let stray = talk.client_segment(RST, b"");
        talk.client_says(stray);
        let last = &talk.last;
        assert_eq!(last.conns, 0, "{}", case.name);
        for bucket in &last.buckets {
            assert_eq!(bucket[6], bucket[7], "{}: begun and ended", case.name);
            assert!(bucket[9] <= bucket[7] && bucket[8] <= bucket[6], "{}", case.name);
        }
    }
}

/// What the controller of a bucket is told was refused is what rules refused, or would have in
/// shadow: nothing that passed because the server's socket did not agree, or the lease had run out.
#[test]
fn a_bucket_counts_what_is_refused() {
    let (mut host, mut refused) = (Host::start(), 0);
    for case in &all() {
        let talk = play(&mut host, case);
        let cells = talk.heard.iter().flat_map(|(_, heard)| &heard.rules);
        let rules: u32 = cells.map(|cells| cells[1] + cells[2]).sum();
        let sums = talk.last.buckets.iter().map(|bucket| bucket[3..6].iter().sum::<u32>());
        assert_eq!(sums.sum::<u32>(), rules, "{}\n{}", case.name, talk.told);
        refused += rules;
    }
    assert!(refused > 30, "{refused} refused");
}

/// Offered, refused, and of these the first requests of their connections, of bucket 0.
#[test]
fn first_requests_that_are_refused_are_counted_apart() {
    fn twice(talk: &mut Talk<'_>) {
        talk.open().asks(&get("/busy")).answers(&talks::ok(1, 1)).asks(&get("/busy"));
    }
    fn once(talk: &mut Talk<'_>) {
        talk.open().asks(&get("/busy"));
    }
    fn later(talk: &mut Talk<'_>) {
        talk.open().asks(&get("/free")).answers(&talks::ok(1, 1)).asks(&get("/busy"));
    }
    fn unheard(talk: &mut Talk<'_>) {
        talk.open();
        talk.written = Some(talk.server + 100);
        talk.asks(&get("/busy"));
    }
    type Row = (&'static str, Rules, fn(&mut Talk<'_>), [u32; 3]);
    let rules = Rules::default;
    let rows: [Row; 8] = [
        ("a first request", rules(), once, [1, 1, 1]),
        ("a later one", rules(), later, [1, 1, 0]),
        ("in shadow", Rules { shadow: true, ..rules() }, twice, [2, 2, 1]),
        ("nearly no source is chosen", Rules { canary: 1, ..rules() }, twice, [2, 2, 1]),
        ("nearly all are", Rules { canary: u16::MAX, ..rules() }, once, [1, 1, 1]),
        ("admitted", Rules { used: [3, 0], ..rules() }, twice, [2, 0, 0]),
        ("the socket does not agree", rules(), unheard, [1, 0, 0]),
        ("the lease spares", Rules { lease: 5, dice: 0xffff, ..rules() }, twice, [2, 0, 0]),
    ];
    let mut host = Host::start();
    for (about, rules, conversation, expected) in rows {
        host.set(&rules);
        let mut talk = Talk::new(&mut host, Style::default());
        conversation(&mut talk);
        let bucket = &talk.last.buckets[0];
        let sum = |ranks: std::ops::Range<usize>| bucket[ranks].iter().sum::<u32>();
        assert_eq!([sum(0..3), sum(3..6), bucket[10]], expected, "{about}\n{}", talk.told);
    }
}

/// Every helper call of every packet of every conversation fails once. Nothing crashes; what would
/// have passed passes as it is; what would have been refused is refused, passes as it is, or is at
/// worst dropped: the server sees the request, a RST, or nothing.
#[test]
fn one_helper_call_fails() {
    let mut host = Host::start();
    let mut failed = 0;
    for case in all().iter().filter(|case| case.fails) {
        let normal = steps(&mut host, case, None);
        for (step, heard) in normal.iter().enumerate() {
            for call in 1..=heard.calls {
                let seen = steps(&mut host, case, Some((step, call)));
                let Some(seen) = seen.get(step) else { continue };
                let who = format!("{}: packet {step}, call {call} of {}", case.name, heard.calls);
                let same = seen.action == NEXT && seen.frame == seen.before;
                let spared = heard.action == NEXT && heard.frame == heard.before;
                let reset = seen.action == NEXT && is_reset(&seen.frame);
                assert!(!spared || same, "{who}: would have passed: {seen:?}");
                assert!(same || reset || seen.action != NEXT, "{who}: {seen:?}");
                failed += 1;
            }
        }
    }
    assert!(failed > 1_000, "{failed} calls failed");
}

/// One packet, as it went.
#[derive(Debug)]
struct Step {
    before: Vec<u8>,
    frame: Vec<u8>,
    action: i32,
    calls: u32,
}

fn is_reset(frame: &[u8]) -> bool {
    support::talk::read_segment(frame).flags & RST != 0
}

/// Plays a conversation; in one of its packets a call fails.
fn steps(host: &mut Host, case: &Case, fails: Option<(usize, u32)>) -> Vec<Step> {
    host.set(&case.rules);
    let mut talk = Talk::new(host, case.style);
    talk.fails = fails;
    (case.play)(&mut talk);
    let heard = talk.heard.into_iter();
    heard
        .map(|(before, heard)| Step {
            before,
            frame: heard.frame,
            action: heard.action,
            calls: heard.calls,
        })
        .collect()
}

/// A request of which only the first bytes are there, at every length: it passes, or it is refused
/// as a whole, and no byte of it reaches the server beside a RST.
#[test]
fn a_request_cut_at_every_byte() {
    let mut host = Host::start();
    let request = get("/busy/page");
    let (mut passed, mut refused) = (0, 0);
    for length in 1..=request.len() {
        host.set(&Rules::default());
        let mut talk = Talk::new(&mut host, Style::default());
        talk.open().asks(&request[..length]);
        match talk.last.sent.len() {
            0 => passed += 1,
            _ => refused += 1,
        }
        let line = request.find("\r\n").unwrap() + 2;
        assert_eq!(talk.last.sent.len(), usize::from(length >= line), "{length} bytes");
    }
    assert!(passed > 10 && refused > 10, "{passed} passed, {refused} refused");
}

/// A frame that is shorter than its headers say passes as it is, at every length.
#[test]
fn a_frame_cut_at_every_byte_passes() {
    let mut host = Host::start();
    for style in talks::styles() {
        host.set(&Rules::default());
        let mut talk = Talk::new(&mut host, style);
        talk.open().asks(&get("/busy"));
        let whole = talk.heard.last().unwrap().0.clone();
        for length in 15..whole.len() {
            let run = Run { linear: u32::MAX, tail_min: 0, fail_at: 0 };
            let heard = talk.host().packet(&whole[..length], false, run);
            assert_eq!((heard.action, heard.sent.len()), (NEXT, 0), "{length} bytes");
            assert_eq!(heard.frame, whole[..length], "{length} bytes");
        }
    }
}

/// Whatever both sides say in whatever order: one answer at most goes out for a packet, the server
/// sees the packet, a RST, or nothing; and in the end nothing is left, and each request that was in
/// flight has ended exactly once.
#[test]
fn conversations_by_the_dice() {
    const TALKS: u64 = 600;
    const PACKETS: usize = 40;
    let (mut host, seed, mut answered, mut begun) = (Host::start(), seed(), 0, 0);
    for n in 0..TALKS {
        let mut dice = Dice::new(seed ^ n);
        let unevaluable = dice.one_in(2).then(|| dice.below(6) as u64);
        host.set(&Rules { used: [5, dice.below(6) as u64], unevaluable, ..Rules::default() });
        let style = *dice.pick(&talks::styles());
        let mut talk = Talk::new(&mut host, Style { router: dice.one_in(2), ..style });
        talk.open();
        for _ in 0..PACKETS {
            dice::throw(&mut talk, &mut dice);
        }
        let (mut rules_begun, mut rules_ended) = (0, 0);
        for (before, heard) in &talk.heard {
            let same = heard.frame == *before;
            let reset = heard.action == NEXT && is_reset(&heard.frame);
            assert!(heard.sent.len() <= 1, "TIDEGATE_SEED={seed}, {n}: {heard:?}");
            assert!(same || reset || heard.action != NEXT, "TIDEGATE_SEED={seed}, {n}: {heard:?}");
            answered += heard.sent.len();
        }
        talk.wait(61).sweep();
        let stray = talk.client_segment(RST, b"");
        talk.client_says(stray);
        assert_eq!(talk.last.conns, 0, "TIDEGATE_SEED={seed}, {n}");
        for bucket in &talk.last.buckets {
            assert_eq!(bucket[6], bucket[7], "TIDEGATE_SEED={seed}, {n}: begun and ended");
            begun += bucket[6];
        }
        for rule in talk.heard.iter().flat_map(|(_, heard)| &heard.rules) {
            rules_begun += rule[6];
            rules_ended += rule[7];
            // What was answered has ended.
            assert!(rule[10] <= rule[7], "TIDEGATE_SEED={seed}, {n}: {rule:?}");
        }
        assert_eq!(rules_begun, rules_ended, "TIDEGATE_SEED={seed}, {n}: by rule");
        let on_buckets: u32 = talk.last.buckets.iter().map(|bucket| bucket[6]).sum();
        assert!(
            rules_begun >= on_buckets,
            "TIDEGATE_SEED={seed}, {n}: {rules_begun}, {on_buckets}"
        );
    }
    assert!(answered > 100 && begun > 40, "{answered} answers, {begun} requests in flight");
}

/// How much of a frame can be read without a helper does not matter.
#[test]
fn a_frame_that_can_be_read_in_part() {
    let mut host = Host::start();
    for case in &all() {
        let normal = play(&mut host, case).told;
        for linear in [14, 54, 66, 80] {
            host.set(&case.rules);
            let mut talk = Talk::new(&mut host, case.style);
            talk.linear = linear;
            (case.play)(&mut talk);
            assert_eq!(talk.told, normal, "{}: {linear} bytes", case.name);
        }
    }
}
