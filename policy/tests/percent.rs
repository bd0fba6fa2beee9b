// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loss algorithm of RFC 7339: its examples, the share that is reached, and who is refused first.

#![allow(clippy::unwrap_used, reason = "a test may")]

use tidegate_policy::{
    Action, Event, Params, PercentSpec, Policy, Reason, State, Verdict, VerdictKind, admit,
};
use tidegate_units::{Nanos, Share};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

fn percent(share: f64) -> Params {
    Params::percent(&PercentSpec::new(Share::new(share), Action::Drop)).unwrap()
}

/// One request every 10 ms, priorities in turn as the mix says (of 100).
struct Load {
    params: Params,
    state: State,
    now: u64,
    random: u64,
}

/// Refused and offered, of each priority.
type Counts = [(u32, u32); 8];

impl Load {
    fn new(params: Params) -> Self {
        Self { params, state: State::fresh(), now: SECOND, random: 1 }
    }

    fn ask(&mut self, priority: u8) -> Verdict {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let random = (self.random >> 32) as u32;
        admit(&self.params, &mut self.state, &Event { priority, random, ..Event::at(self.now) })
    }

    fn run(&mut self, seconds: u64, mix: [u32; 8]) -> Counts {
        let mut counts = Counts::default();
        for n in 0..seconds * 100 {
            // 61 and 100 have no common factor: all hundredths occur, well mixed
            let mut at = (n * 61 % 100) as u32;
            let mut priority = 0;
            while at >= mix[priority] {
                at -= mix[priority];
                priority += 1;
            }
            let verdict = self.ask(priority as u8);
            counts[priority].0 += u32::from(verdict.kind != VerdictKind::Admit);
            counts[priority].1 += 1;
            self.now += 10 * MS;
        }
        counts
    }
}

fn share(counts: &[(u32, u32)]) -> f64 {
    let refused: u32 = counts.iter().map(|count| count.0).sum();
    let offered: u32 = counts.iter().map(|count| count.1).sum();
    f64::from(refused) / f64::from(offered)
}

/// RFC 7339, section 7.2: in 5 s 450 requests of 500 are subject to reduction and 50 are not, so the mix
/// is 90/10. Up to 90 % only the former are reduced, by oc/cat1; above it all of them, and of the others
/// (oc - cat1)/cat2.
#[test]
fn the_rfcs_mix_of_90_and_10() {
    for (oc, cat1, cat2) in [(0.2, 0.2 / 0.9, 0.0), (0.9, 1.0, 0.0), (0.95, 1.0, 0.5)] {
        let mut load = Load::new(percent(oc));
        // two periods of 5 s with 500 requests, so that the mix is measured
        load.run(10, [10, 0, 0, 0, 0, 0, 0, 90]);
        let counts = load.run(300, [10, 0, 0, 0, 0, 0, 0, 90]);
        let found = (share(&counts), share(&counts[7..]), share(&counts[..1]));
        let near = |found: f64, wanted: f64| (found - wanted).abs() < 0.01;
        assert!(near(found.0, oc) && near(found.1, cat1), "{oc}: {found:?}");
        // 3000 requests: 0.5 has a standard error of 0.009
        assert!((found.2 - cat2).abs() < 0.03, "{oc}: {found:?}");
    }
}

/// Before anything was counted the mix is that of the RFC's pseudo-code, 80/20: of cat1 oc/80 % is reduced.
#[test]
fn at_first_80_percent_are_believed_to_be_reducible() {
    let events = |priority: u8, params: Params| {
        let mut load = Load::new(params);
        (0..400).filter(|_| load.ask(priority).kind != VerdictKind::Admit).count()
    };
    // time stands still: nothing is measured
    assert!((170..=230).contains(&events(7, percent(0.4))), "a half of cat1");
    assert_eq!(events(0, percent(0.8)), 0);
    assert_eq!(events(7, percent(0.8)), 400);
    assert!((170..=230).contains(&events(0, percent(0.9))), "a half of cat2");
}

/// The whole is the share, at each share and for a mix of eight priorities; and nothing of a priority is
/// refused while anything below it is admitted.
#[test]
fn the_share_is_reached_from_the_lowest_priority_up() {
    let mix = [5, 10, 15, 5, 0, 20, 15, 30];
    for oc in [0.01, 0.1, 0.3, 0.37, 0.45, 0.5, 0.8, 0.99] {
        let mut load = Load::new(percent(oc));
        load.run(10, mix);
        let counts = load.run(200, mix);
        let all = share(&counts);
        assert!((all - oc).abs() < 0.006, "{oc}: {all}, {counts:?}");
        let edge = counts.iter().position(|count| count.0 > 0).unwrap();
        for (refused, offered) in &counts[edge + 1..] {
            assert_eq!(refused, offered, "{oc}: {counts:?}");
        }
    }
}

/// All or nothing, exactly; and the reason is the same.
#[test]
fn no_share_and_the_whole_need_no_luck() {
    let mut none = Load::new(percent(0.0));
    assert_eq!(share(&none.run(20, [50, 0, 0, 0, 0, 0, 0, 50])), 0.0);
    assert_eq!(none.ask(7).reason, Reason::NoLimit);
    let mut all = Load::new(percent(1.0));
    assert_eq!(share(&all.run(20, [50, 0, 0, 0, 0, 0, 0, 50])), 1.0);
    let refused = all.ask(0);
    assert_eq!((refused.kind, refused.reason), (VerdictKind::Drop, Reason::Throttled));
}

/// Everybody has the priority of a class that nobody configured. What came while nothing was refused is the
/// mix that the first share finds: nobody waits for a period.
#[test]
fn the_first_share_finds_the_mix_that_came_before() {
    let mix = [0, 0, 0, 100, 0, 0, 0, 0];
    let mut load = Load::new(percent(0.0));
    assert_eq!(share(&load.run(12, mix)), 0.0);
    load.params = percent(0.5);
    let counts = load.run(2, mix);
    assert!((share(&counts) - 0.5).abs() < 0.15, "{counts:?}");
}

/// The mix changes: after a period it is the new one, and the share holds again.
#[test]
fn a_new_mix_is_known_after_a_period() {
    let mut load = Load::new(percent(0.3));
    load.run(10, [60, 0, 0, 0, 0, 0, 0, 40]);
    assert_eq!(load.run(5, [60, 0, 0, 0, 0, 0, 0, 40])[0].0, 0);
    // the low priority nearly vanishes: until the period ends only its tenth is there to be refused
    load.run(5, [90, 0, 0, 0, 0, 0, 0, 10]);
    let counts = load.run(100, [90, 0, 0, 0, 0, 0, 0, 10]);
    assert!((share(&counts) - 0.3).abs() < 0.02, "{counts:?}");
    assert_eq!(counts[7].0, counts[7].1);
}

/// A new share counts at once, with the mix that is known.
#[test]
fn a_new_share_counts_at_once() {
    let mix = [50, 0, 0, 0, 0, 0, 0, 50];
    let mut load = Load::new(percent(0.1));
    load.run(12, mix);
    load.params = percent(0.75);
    let counts = load.run(2, mix);
    assert_eq!(counts[7].0, counts[7].1);
    assert!((share(&counts[..1]) - 0.5).abs() < 0.15, "{counts:?}");
}

/// A handful of requests says nothing about the mix: they are added to those of the next periods, until
/// there are 64.
#[test]
fn few_requests_do_not_make_a_mix() {
    let mut load = Load::new(percent(0.2));
    // 63 of the highest priority in a minute: the mix is still 80/20, so none of them is refused
    for _ in 0..63 {
        assert_eq!(load.ask(0).kind, VerdictKind::Admit);
        load.now += SECOND;
    }
    load.now += 5 * SECOND;
    // the 64th is counted, so the next period has a mix: only the highest priority, of which a fifth
    let refused = |load: &mut Load| {
        load.now += 5 * SECOND;
        (0..500).filter(|_| load.ask(0).kind != VerdictKind::Admit).count()
    };
    assert_eq!(load.ask(0).kind, VerdictKind::Admit);
    assert!((60..=140).contains(&refused(&mut load)));
}

/// A clock that goes back by a year, or leaps ahead, leaves the share as it is, and the mix is measured
/// again within a period.
#[test]
fn clocks_that_jump_are_survived() {
    let mix = [50, 0, 0, 0, 0, 0, 0, 50];
    let mut load = Load::new(percent(0.25));
    load.now = 365 * 24 * 3600 * SECOND;
    load.run(12, mix);
    load.now = SECOND;
    assert!((share(&load.run(30, mix)) - 0.25).abs() < 0.03);
    load.now += 24 * 3600 * SECOND;
    assert!((share(&load.run(30, mix)) - 0.25).abs() < 0.03);
    load.run(5, [90, 0, 0, 0, 0, 0, 0, 10]);
    let counts = load.run(20, [90, 0, 0, 0, 0, 0, 0, 10]);
    assert!((share(&counts) - 0.25).abs() < 0.04, "{counts:?}");
}

/// What is out of range is refused where it is said, with the range.
#[test]
fn parameters_out_of_range_are_errors() {
    let good = PercentSpec::new(Share::new(0.5), Action::Reject);
    let wrong = [
        (PercentSpec { period: Nanos::from_millis(99), ..good.clone() }, "period"),
        (PercentSpec { period: Nanos(3600 * SECOND + 1), ..good.clone() }, "period"),
        (PercentSpec { mix: [20, 0, 0, 0, 0, 0, 0, 81], ..good.clone() }, "mix"),
        (PercentSpec { mix: [0; 8], ..good.clone() }, "mix"),
    ];
    for (spec, word) in wrong {
        let error = Params::percent(&spec).unwrap_err().to_string();
        assert!(error.starts_with(word), "{error}");
    }
    for period in [Nanos::from_millis(100), Nanos::from_secs(3600)] {
        let params = Params::percent(&PercentSpec { period, ..good.clone() }).unwrap();
        assert_eq!(params.policy(), Policy::Percent);
    }
}
