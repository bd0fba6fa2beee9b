// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who was refused in the last minute, against an exact set: nobody is missed, hardly anybody is found
//! by chance, and no CPU loses what another one notes.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::thread;
use tidegate_policy::{LatelyHash, LatelyLine, LatelyTurn};
use tidegate_units::Nanos;

/// The default of `tables.refusals`, by slices.
const LINES: u32 = 4096;
const KEY: [u64; LatelyHash::KEYS] = [11, 0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 77, 88, 99];
const START: Nanos = Nanos::from_secs(100_000);
const TICK: Nanos = Nanos::from_millis(100);
/// Services of a configuration, at most.
const SERVICES: u64 = 32;

/// What the kernel has: slices in an array, and a heartbeat that turns them.
struct Host {
    turn: LatelyTurn,
    lines: Vec<LatelyLine>,
    cleared: u32,
    last: Nanos,
}

impl Host {
    fn new() -> Self {
        let lines = (0..LINES * LatelyTurn::SLICES).map(|_| LatelyLine::default()).collect();
        Self { turn: LatelyTurn::default(), lines, cleared: 0, last: Nanos::ZERO }
    }

    fn beat(&mut self, now: Nanos) {
        let next = (self.turn.slice() + 1) % LatelyTurn::SLICES * LINES;
        let clear = self.ask(now);
        for line in next + self.cleared..next + self.cleared + clear {
            self.lines[line as usize].clear();
        }
        self.cleared += clear;
        self.turn.count_cleared(clear);
        if clear > 0 && self.cleared == LINES {
            assert_eq!(self.ask(now), 0);
        }
        self.last = now;
    }

    fn ask(&mut self, now: Nanos) -> u32 {
        let slice = self.turn.slice();
        let clear = self.turn.beat(LINES, (self.last, now));
        if self.turn.slice() != slice {
            assert_eq!(self.cleared, LINES, "a slice is used before all of it is cleared");
            self.cleared = 0;
        }
        clear
    }

    fn note(&self, hash: LatelyHash) {
        self.lines[(self.turn.slice() * LINES) as usize + hash.line(LINES)].note(hash);
    }

    /// How long ago, at least and at most.
    fn find(&self, now: Nanos, hash: LatelyHash) -> Option<(Nanos, Nanos)> {
        let mut spans = self.turn.spans(now);
        let found =
            spans.find(|s| self.lines[s.slice * LINES as usize + hash.line(LINES)].has(hash));
        found.map(|span| (now.since(span.end), now.since(span.begin)))
    }
}

fn hash(number: u32, service: u64, shadow: bool) -> LatelyHash {
    LatelyHash::new(&KEY, Ipv4Addr::from(number).to_ipv6_mapped().octets(), (service << 33, shadow))
}

/// 100 s of 10,000 refusals per second, each of another client.
#[test]
fn of_a_million_refused_those_of_the_last_minute_are_found_and_hardly_anyone_else() {
    let (mut host, each) = (Host::new(), TICK.0 / 1000);
    let all = 1_000_000_u32;
    let at = |number: u32| START + Nanos(u64::from(number) * each);
    for number in 0..all {
        if number % 1000 == 0 {
            host.beat(at(number));
        }
        host.note(hash(number, 1, false));
    }
    let now = at(all);
    assert!(host.turn.knows_a_minute(now));
    for number in all - 600_000..all {
        let ago = now.since(at(number));
        let found = host.find(now, hash(number, 1, false));
        // It may also look as if it were refused later, by chance.
        assert!(found.is_some_and(|(least, _)| least <= ago), "{number}: {found:?} of {ago}");
    }
    let (least, most) = host.find(now, hash(all - 600_000, 1, false)).unwrap();
    assert!(least < most && most < Nanos::from_secs(70), "{least} {most}");
    // All that `explain` asks about one address.
    let questions = || (0..SERVICES).flat_map(|s| [false, true].map(|shadow| (s, shadow)));
    let others = 20_000_u32;
    let wrong =
        |n: &u32| questions().any(|(s, h)| host.find(now, hash(1 << 30 | n, s, h)).is_some());
    let wrong = (0..others).filter(wrong).count();
    assert!(wrong * 100 < others as usize, "{wrong} of {others}");
    let old = (0..200_000).filter(|n| host.find(now, hash(*n, 1, false)).is_some()).count();
    assert!(old < 200, "{old} of those who were refused more than 80 s ago");
    let elsewhere = (900_000..all).filter(|n| host.find(now, hash(*n, 1, true)).is_some()).count();
    assert!(elsewhere < 100, "{elsewhere} were refused in shadow as well");
}

/// A client is known for a minute at least, however the heartbeats come, and not for much longer. The last
/// one before a pause is refused until the lease ends; after some pauses nobody comes for two seconds.
#[test]
fn slices_reach_back_for_a_minute_whenever_heartbeats_come() {
    let pause = |step: u64| match step % 127 {
        7 => Nanos::from_secs(3),
        40 => Nanos::from_millis(9_900),
        60 => Nanos::from_secs(11),
        80 => Nanos::from_secs(300),
        99 => Nanos::from_secs(70),
        _ => Nanos::from_millis(20 + step % 5 * 50),
    };
    let (mut host, mut now, mut noted) = (Host::new(), START, Vec::new());
    let mut quiet = Nanos::ZERO;
    host.beat(now);
    for step in 0..6000_u64 {
        let pause = pause(step);
        if now >= quiet {
            let client = LatelyHash::new(&KEY, u128::from(step).to_be_bytes(), (1, false));
            host.note(client);
            noted.push((now + pause.min(Nanos::from_millis(9_999)), client));
        }
        now += pause;
        if pause >= Nanos::from_secs(70) && step % 2 == 0 {
            quiet = now + Nanos::from_secs(2);
        }
        host.beat(now);
        let young = noted.iter().rev().take_while(|(at, _)| now.since(*at) <= Nanos::from_secs(60));
        for (at, client) in young {
            let ago = now.since(*at);
            let found = host.find(now, *client);
            assert!(found.is_some_and(|(least, most)| least <= ago && ago <= most), "{ago}");
        }
        let old = noted.iter().rev().find(|(at, _)| now.since(*at) > Nanos::from_secs(90));
        assert!(old.is_none_or(|(_, client)| host.find(now, *client).is_none()), "at {now}");
    }
}

#[test]
fn a_state_that_is_younger_than_a_minute_says_so() {
    let mut host = Host::new();
    assert!(!host.turn.knows_a_minute(START), "it has not begun");
    assert_eq!(host.find(START, hash(1, 1, false)), None);
    for tick in 0..700 {
        let now = START + Nanos(TICK.0 * tick);
        host.beat(now);
        assert_eq!(host.turn.knows_a_minute(now), tick >= 600, "after {tick} ticks");
    }
}

/// Two CPUs that note at the same time, into few lines.
#[test]
fn no_bit_is_lost_between_cpus() {
    let lines: Vec<LatelyLine> = (0..4).map(|_| LatelyLine::default()).collect();
    for round in 0..200_u32 {
        let client = |cpu: u32, n: u32| hash(round << 16 | cpu << 8 | n, 1, false);
        thread::scope(|scope| {
            for cpu in 0..2 {
                let lines = &lines;
                scope.spawn(move || {
                    (0..16).map(|n| client(cpu, n)).for_each(|hash| lines[hash.line(4)].note(hash));
                });
            }
        });
        for hash in (0..2).flat_map(|cpu| (0..16).map(move |n| client(cpu, n))) {
            assert!(lines[hash.line(4)].has(hash), "round {round}");
        }
        lines.iter().for_each(LatelyLine::clear);
    }
}

#[test]
fn questions_differ_by_address_service_mode_and_key() {
    let v4 = Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped();
    let of = |client: Ipv6Addr, by| LatelyHash::new(&KEY, client.octets(), by);
    let one = of(v4, (5 << 32, false));
    assert_eq!(one, of("::ffff:192.0.2.1".parse().unwrap(), (5 << 32, false)));
    for other in [
        of(Ipv4Addr::new(192, 0, 2, 2).to_ipv6_mapped(), (5 << 32, false)),
        of("2001:db8::192.0.2.1".parse().unwrap(), (5 << 32, false)),
        of(v4, (7 << 32, false)),
        of(v4, (5 << 32, true)),
        LatelyHash::new(&[1; LatelyHash::KEYS], v4.octets(), (5 << 32, false)),
    ] {
        assert_ne!(one, other);
    }
}

/// A host can fetch the line before it knows whether the refusal is executed.
#[test]
fn both_modes_have_one_line_and_neither_is_taken_for_the_other() {
    for number in 0..10_000 {
        let [enforced, shadow] = [false, true].map(|shadow| hash(number, 1, shadow));
        assert_eq!(enforced.line(LINES), shadow.line(LINES), "{number}");
        for (noted, other) in [(enforced, shadow), (shadow, enforced)] {
            let line = LatelyLine::default();
            line.note(noted);
            assert!(line.has(noted) && !line.has(other), "{number}");
        }
    }
}
