// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits of flash crowds at a server that completes so many exchanges a second.

use super::*;

/// A server that completes up to `capacity` a second, offered `offered`; all have one exchange.
struct Plant {
    limit: Limit,
    in_flight: f64,
    capacity: f64,
    usual_s: f64,
    /// What is offered is not what makes it slow: it completes nothing more or less.
    deaf: bool,
    /// Share of the segments that are sent again.
    again: f64,
    /// Spoofed SYNs a second. They are first attempts, as likely to find a token as a client's.
    spoofed: f64,
    /// Clients that passed, a second.
    clients: f64,
    /// Exchanges that stay in flight: slow readers, long polls.
    stays: f64,
    /// With more in flight than this it thrashes: with twice as many it is half as fast.
    thrashes: f64,
    /// The clients of a crowd are so many seconds farther away than the usual ones.
    away_s: f64,
    /// How long what completes waits at the server lately, seconds, and how many a second it is.
    waits_s: f64,
    completes: f64,
    /// Share of the connections that are seen: with less it is a flood.
    seen: f64,
    /// SYNs a second of clients that were refused before, and are again.
    repeated: f64,
    rates: Vec<f64>,
}

impl Plant {
    fn new() -> Self {
        let (limit, rates) = (Limit::default(), Vec::new());
        Self {
            limit,
            in_flight: 10.0,
            capacity: 50.0,
            usual_s: 0.2,
            deaf: false,
            again: 0.0,
            spoofed: 0.0,
            clients: 0.0,
            stays: 0.0,
            thrashes: f64::INFINITY,
            away_s: 0.0,
            waits_s: 0.0,
            completes: 0.0,
            seen: 1.0,
            repeated: 0.0,
            rates,
        }
    }

    /// So many seconds; whether the limit was on at the end.
    fn run(&mut self, seconds: u32, offered: f64, crowd: bool) -> bool {
        let all = offered + self.spoofed;
        for _ in 0..2 * seconds {
            let limited = self.limit.is_on();
            let passed = if limited { all.min(*self.rates.last().unwrap_or(&all)) } else { all };
            self.clients = passed * offered / all;
            self.in_flight += 0.5 * self.clients;
            let beyond = (self.in_flight / self.thrashes - 1.0).max(0.0);
            let completed = self.in_flight.min(0.5 * self.capacity / (1.0 + beyond));
            self.in_flight -= completed;
            self.waits_s += 0.15 * (0.5 * self.in_flight / completed.max(0.01) - self.waits_s);
            self.completes += 0.15 * (2.0 * completed - self.completes);
            let away = self.completes * self.away_s;
            let shown = Shown {
                s: 0.5,
                completed: self.seen * completed,
                came: 0.5 * (self.seen * self.clients + all - passed),
                in_flight: if self.deaf {
                    500.0
                } else {
                    self.seen * (self.in_flight + away) + self.stays
                },
                refused: 0.5 * (all - passed + self.repeated),
                tokens: if limited { 0.5 * passed } else { 0.0 },
                connected: 0.5 * self.seen * self.clients,
                started: 0.5 * self.seen * self.clients,
                segments: (100.0, 100.0 * self.again),
                usual_s: self.usual_s,
                is_slow: self.waits_s + self.away_s > 0.68 * self.usual_s,
                per_connection: 1.0,
                flooded: self.seen < 1.0,
            };
            let limit = self.limit.tick(&shown, crowd);
            self.rates.extend(limit.map(|limit| limit.rate));
        }
        self.limit.is_on()
    }
}

#[test]
fn it_finds_the_capacity_and_holds_it() {
    let mut plant = Plant::new();
    plant.run(20, 30.0, false);
    assert!(plant.rates.is_empty(), "no crowd, no limit");
    plant.run(5, 200.0, false);
    assert!(plant.run(90, 200.0, true));
    // Five seconds of a crowd are in flight at first.
    let late = &plant.rates[110..];
    assert!(late.iter().all(|rate| (45.0..=55.0).contains(rate)), "{late:?}");
    assert!(plant.in_flight < 30.0, "{}", plant.in_flight);
}

/// Whoever is let in while hundreds wait is late: they drain first, at what completes, and some are let in all the same.
#[test]
fn what_is_there_when_it_begins_drains_within_seconds() {
    let mut plant = Plant::new();
    plant.run(20, 30.0, false);
    plant.run(5, 200.0, false);
    let before = plant.in_flight;
    assert!(before > 600.0, "{before}");
    assert!(plant.run(25, 200.0, true));
    assert!(plant.in_flight < 60.0, "{}", plant.in_flight);
    let least = plant.rates.iter().copied().fold(f64::MAX, f64::min);
    assert!(least >= 3.0, "{least}");
}

/// A crowd that comes slowly finds little in flight at first: that more stands there later is no reason
/// to lift the limit.
#[test]
fn a_limit_that_holds_a_crowd_is_not_taken_back() {
    let mut plant = Plant { usual_s: 0.05, ..Plant::new() };
    plant.run(20, 45.0, false);
    for offered in [50.0, 60.0, 80.0, 110.0] {
        plant.run(20, offered, true);
    }
    let held = plant.rates.len();
    assert!(plant.run(200, 110.0, true));
    assert_eq!(plant.rates.len(), held + 400, "never lifted");
}

#[test]
fn it_is_over_when_nobody_is_refused_and_comes_back_more_slowly() {
    let mut plant = Plant::new();
    plant.run(20, 30.0, false);
    assert!(plant.run(30, 200.0, true));
    assert!(!plant.run(8, 20.0, false), "full use within seconds");
    assert!(plant.run(20, 200.0, true));
    assert!(plant.run(6, 20.0, false), "soon again: the end takes longer");
    assert!(!plant.run(8, 20.0, false));
}

/// Clients of the crowd still come back and are refused: what comes for the first time says that it is over, once it is little on average.
#[test]
fn it_is_over_within_eight_seconds_although_clients_come_back() {
    let mut plant = Plant::new();
    plant.run(20, 30.0, false);
    assert!(plant.run(30, 200.0, true));
    plant.repeated = 30.0;
    assert!(plant.run(6, 20.0, false), "a moment is no end");
    assert!(!plant.run(2, 20.0, false));
}

/// A link drops what does not fit its queue: fewer are in flight then, but not next to none.
#[test]
fn where_segments_are_lost_fewer_are_held() {
    let mut held = [0.0; 2];
    for (held, again) in held.iter_mut().zip([0.0, 0.1]) {
        let mut plant = Plant { again, ..Plant::new() };
        plant.run(20, 30.0, false);
        plant.run(90, 200.0, true);
        *held = plant.in_flight;
    }
    assert!(held[1] < 0.7 * held[0], "{held:?}");
    assert!(held[1] > 0.0);
}

/// A server that swaps completes nothing for minutes, whatever the limit is. It is not let in what would keep it there,
/// and has its load back soon after it works again.
#[test]
fn a_stall_is_no_reason_to_take_a_limit_back() {
    for stalled_s in [60, 160] {
        let mut plant = Plant::new();
        plant.run(60, 40.0, false);
        assert!(plant.run(8, 200.0, true));
        plant.capacity = 0.0;
        assert!(plant.run(stalled_s, 200.0, true), "{stalled_s} s");
        let most = plant.rates.iter().rev().take(60).copied().fold(0.0, f64::max);
        assert!(most < 5.0, "{stalled_s} s: {most}/s are let in");
        plant.capacity = 50.0;
        plant.run(40, 200.0, true);
        let rate = plant.rates.last().copied().unwrap_or_default();
        assert!(rate >= 0.6 * plant.capacity, "{stalled_s} s: {rate}/s after 40 s");
    }
    // Clients have given up, it works again, and some slow readers stay.
    let mut plant = Plant::new();
    plant.run(60, 40.0, false);
    assert!(plant.run(8, 200.0, true));
    plant.capacity = 0.0;
    assert!(plant.run(60, 200.0, true));
    (plant.in_flight, plant.stays, plant.capacity) = (0.0, 50.0, 50.0);
    plant.run(60, 200.0, true);
    let rate = plant.rates.last().copied().unwrap_or_default();
    assert!(rate >= 0.6 * plant.capacity || !plant.limit.is_on(), "{rate}/s with some held");
    // It completes something now and then.
    let mut plant = Plant::new();
    plant.run(60, 40.0, false);
    assert!(plant.run(8, 200.0, true));
    let lifted = (0..60).any(|_| {
        plant.capacity = 0.0;
        let on = plant.run(26, 200.0, true);
        plant.capacity = 10.0;
        !on || !plant.run(4, 200.0, true)
    });
    assert!(lifted, "it does not go on for ever");
    // Responses may be unseen.
    let mut plant = Plant::new();
    plant.run(60, 40.0, false);
    assert!(plant.run(8, 200.0, true));
    plant.capacity = 0.0;
    assert!(!plant.run(230, 200.0, true));
}

#[test]
fn a_limit_without_effect_is_taken_back_for_a_while() {
    let mut plant = Plant { deaf: true, ..Plant::new() };
    plant.run(20, 30.0, false);
    assert!(plant.run(25, 60.0, true));
    // What is in flight does not shrink, whatever is refused.
    assert!(!plant.run(10, 60.0, true));
    let tried = plant.rates.len();
    plant.run(20, 60.0, true);
    assert_eq!(plant.rates.len(), tried, "not at once again");
}

/// Tokens that lead to no exchange make what completes less than the limit: it must not follow that downwards, and
/// must end when the crowd is over, whoever goes on to send SYNs.
#[test]
fn spoofed_syns_do_not_sink_a_limit() {
    for spoofed in [0.0, 20.0, 50.0, 100.0, 250.0] {
        let mut plant = Plant::new();
        plant.run(60, 20.0, false);
        assert!(plant.run(15, 100.0, true));
        plant.spoofed = spoofed;
        let held: Vec<_> = (0..9).map(|_| (plant.run(60, 100.0, true), plant.clients)).collect();
        let carried = |(on, clients): &(bool, f64)| *on && (40.0..=60.0).contains(clients);
        assert!(held.iter().all(carried), "{spoofed} spoofed: {held:?}");
    }
    let mut plant = Plant::new();
    plant.run(60, 20.0, false);
    assert!(plant.run(60, 100.0, true));
    plant.spoofed = 40.0;
    assert!(!plant.run(120, 20.0, false), "the usual load: {}", plant.clients);
}

/// A limit that was raised for tokens that lead nowhere comes down with the tick in which they lead somewhere again.
#[test]
fn when_spoofed_syns_end_a_limit_is_not_raised_for_seconds() {
    let mut plant = Plant::new();
    plant.run(60, 20.0, false);
    assert!(plant.run(60, 300.0, true));
    plant.spoofed = 700.0;
    assert!(plant.run(60, 300.0, true));
    assert!(plant.rates.last().is_some_and(|rate| *rate > 2.0 * plant.capacity));
    plant.spoofed = 0.0;
    let before = plant.rates.len();
    assert!(plant.run(10, 300.0, true));
    let raised = plant.rates[before..].iter().filter(|rate| **rate > 1.6 * plant.capacity);
    assert!(raised.clone().count() <= 1, "{:?}", &plant.rates[before..]);
}

/// Where hardly a token leads to an exchange, a limit helps nobody.
#[test]
fn a_limit_whose_tokens_lead_nowhere_is_taken_back() {
    for (spoofed, held) in [(200.0, true), (1800.0, false)] {
        let mut plant = Plant::new();
        plant.run(20, 30.0, false);
        assert!(plant.run(8, 200.0, true));
        plant.spoofed = spoofed;
        assert_eq!(plant.run(21, 200.0, true), held, "{spoofed}");
        let why = (!held).then_some(TakenBack::TokensUnused);
        assert_eq!(plant.limit.taken_back(), why, "{spoofed}");
    }
}

/// Some slow readers, or long polls, beside a crowd: they are no backlog, and the limit does not sink below what is
/// carried without them.
#[test]
fn what_is_held_sinks_no_limit() {
    for stays in [0.0, 10.0, 20.0, 30.0] {
        let mut plant = Plant { stays, ..Plant::new() };
        plant.run(60, 30.0, false);
        assert!(plant.run(20, 200.0, true));
        for _ in 0..20 {
            plant.run(30, 200.0, true);
            let rate = plant.rates.last().copied().unwrap_or_default();
            assert!(rate >= 0.6 * plant.capacity, "{stays} held: {rate}");
        }
    }
}

/// As much begins as completes there as well, and none of what is in flight drains; but what completes is slow.
#[test]
fn a_server_that_thrashes_is_no_server_with_slow_readers() {
    let mut plant = Plant { usual_s: 0.4, ..Plant::new() };
    plant.run(60, 50.0, false);
    (plant.thrashes, plant.in_flight) = (60.0, 62.0);
    assert!(plant.run(60, 200.0, true));
    assert!(plant.in_flight < 40.0, "{}", plant.in_flight);
    let rates = &plant.rates[plant.rates.len() - 20..];
    assert!(rates.iter().all(|rate| *rate > 0.85 * plant.capacity), "{rates:?}");
}

/// What completes is slow there whatever the limit is, and as long as the crowd lasts.
#[test]
fn clients_that_are_far_away_sink_no_limit() {
    for times in [1.5, 2.0, 2.5, 4.0, 8.0] {
        let mut plant = Plant { usual_s: 0.5, ..Plant::new() };
        plant.run(60, 40.0, false);
        plant.away_s = (times - 1.0) * plant.usual_s;
        let mut least = f64::MAX;
        for _ in 0..20 {
            plant.run(30, 200.0, true);
            if plant.limit.is_on() {
                least = least.min(plant.rates.last().copied().unwrap_or_default());
            }
        }
        assert!(least >= SLOW_AT * 40.0, "{times} times as long: {least}");
    }
}

/// A backlog drains beside them, and what is left then is no backlog, however much it is: the server is not starved.
#[test]
fn what_stays_beside_a_backlog_starves_no_server() {
    for stays in [0.0, 45.0, 60.0, 100.0] {
        let mut plant = Plant { stays, ..Plant::new() };
        plant.run(60, 30.0, false);
        plant.run(4, 200.0, false);
        assert!(plant.in_flight > 500.0, "{}", plant.in_flight);
        plant.run(20, 200.0, true);
        let mut idle_s = 0;
        for _ in 0..20 {
            plant.run(1, 200.0, true);
            let rate = plant.rates.last().copied().unwrap_or_default();
            idle_s += u32::from(
                plant.limit.is_on() && plant.in_flight < 30.0 && rate < 0.4 * plant.capacity,
            );
        }
        assert!(idle_s <= 5, "{stays} held: {idle_s} s");
    }
}

/// It holds what it held, although less and less is seen of it, and is over when nobody is refused.
#[test]
fn in_a_flood_a_limit_goes_on() {
    let mut plant = Plant::new();
    plant.run(20, 30.0, false);
    assert!(plant.run(30, 100.0, true));
    for seen in [0.7, 0.4] {
        plant.seen = seen;
        for _ in 0..6 {
            assert!(plant.run(10, 100.0, false), "{seen}");
            assert!((35.0..=65.0).contains(&plant.clients), "{seen}: {}", plant.clients);
        }
    }
    // It seems to be little, and clients are refused.
    plant.seen = 0.3;
    assert!(plant.run(20, 65.0, false), "{}", plant.clients);
    assert!(!plant.run(10, 20.0, false));
}

/// The crowd is still there, and others took the tokens: it is tried again as soon as that can be over.
#[test]
fn a_limit_whose_tokens_led_nowhere_is_tried_again_soon() {
    let mut plant = Plant::new();
    plant.run(20, 30.0, false);
    for _ in 0..5 {
        plant.spoofed = 1800.0;
        let lost = (0..60).find(|_| !plant.run(1, 200.0, true));
        assert!(lost.is_some_and(|seconds| seconds <= 20), "{lost:?}");
        plant.spoofed = 0.0;
        let back = (0..60).find(|_| plant.run(1, 200.0, true));
        assert!(back.is_some_and(|seconds| (8..=11).contains(&seconds)), "{back:?}");
    }
}

/// At a least rate of an operator few tokens are given: one that leads nowhere by chance does not raise the limit,
/// and what was so four seconds ago still counts.
#[test]
fn few_tokens_say_little() {
    let mut led = Led::default();
    for n in 0..4 {
        led.add(&Shown { tokens: 1.0, ..Shown::default() });
        assert_eq!(led.share(), 1.0, "{n}");
    }
    for n in 0..200 {
        led.fade(0.5);
        let leads = if n % 4 == 0 { 0.0 } else { 0.5 };
        let (tokens, started) = (0.5, leads);
        led.add(&Shown { tokens, connected: tokens, started, ..Shown::default() });
    }
    assert!((led.share() - 0.75).abs() < 0.03, "{}", led.share());
    assert!((TOKENS..=TOKENS + 0.5).contains(&led.tokens), "{}", led.tokens);
    (0..100).for_each(|_| led.add(&Shown { tokens: 1.0, ..Shown::default() }));
    led.fade(LEADS_S);
    assert!(led.tokens < 50.0, "many tokens fade: {}", led.tokens);
}

/// Also at the least rate of an operator, where few tokens are given.
#[test]
fn few_tokens_that_lead_nowhere_are_enough() {
    for (started, held) in [(0.0, false), (0.4, true)] {
        let mut plant = Plant::new();
        plant.run(20, 30.0, false);
        assert!(plant.run(8, 200.0, true));
        let mut shown =
            Shown { s: 0.5, came: 50.0, refused: 50.0, tokens: 0.5, ..Shown::default() };
        (shown.connected, shown.started) = (0.5, started);
        let limited = (0..90).all(|_| plant.limit.tick(&shown, true).is_some());
        assert_eq!(limited, held, "{started}");
    }
}

/// A limit that is taken back time and again is tried less and less often, and is tried.
#[test]
fn no_pause_is_longer_than_the_longest() {
    let mut plant = Plant { deaf: true, ..Plant::new() };
    plant.run(20, 30.0, false);
    let tried = |plant: &mut Plant| {
        let before = plant.rates.len();
        plant.run(PAUSE_S.1 as u32 + 40, 60.0, true);
        plant.rates.len() - before
    };
    let found = [(); 8].map(|()| tried(&mut plant));
    assert!(found.iter().all(|tried| *tried > 0) && found[7] < 160, "{found:?}");
}

/// In shadow nothing is corrected: it is what the server carries.
#[test]
fn what_would_be_limited_is_what_completes() {
    let mut plant = Plant::new();
    plant.run(20, 30.0, false);
    let shown = Shown { s: 0.5, completed: 25.0, in_flight: 900.0, ..Shown::default() };
    let would = (0..40).map(|_| plant.limit.would(&shown)).last();
    assert!(would.is_some_and(|limit| (45.0..=50.0).contains(&limit.rate)), "{would:?}");
    assert!(plant.run(20, 200.0, true));
    plant.limit.would(&shown);
    assert!(!plant.limit.is_on(), "not enforced any more");
}
