// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From limits to routes, and which of them the speaker is told.

#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

use proptest::prelude::*;
use tidegate_flowspec::attributes::{self, community};
use tidegate_flowspec::rule::Action::{Bytes, Packets};
use tidegate_flowspec::{
    Attributes, Bounds, Change, Flags, Plan, Route, Rule, Unfit, Unit, What, Withheld, route,
};
use tidegate_model::remote::{RemoteLimit, Restriction};
use tidegate_units::{Nanos, Rate, Share};

fn limit(scope: &str, restriction: Restriction) -> RemoteLimit {
    RemoteLimit {
        scope: scope.parse().unwrap(),
        restriction,
        validity: Nanos::from_secs(5),
        sequence: 1,
        priority: 0,
    }
}

fn rate(rate: f64) -> Restriction {
    Restriction::Rate(Rate::per_second(rate))
}

#[test]
fn limits_are_rounded_up_and_never_to_nothing() {
    use Unit::{Bytes as InBytes, Packets as InPackets};
    use What::{Connections, Datagrams};
    let v4 = "192.0.2.7:80";
    for (scope, restriction, what, unit, value) in [
        (v4, rate(100.0), Connections, InPackets, 100.0),
        (v4, rate(100.2), Connections, InPackets, 101.0),
        (v4, rate(0.001), Connections, InPackets, 1.0),
        (v4, Restriction::Gap(Nanos::from_millis(300)), Connections, InPackets, 4.0),
        (v4, rate(100.0), Connections, InBytes, 6_000.0),
        (v4, rate(100.005), Connections, InBytes, 6_001.0),
        (v4, rate(0.5), Connections, InBytes, 60.0),
        ("[2001:db8::7]:80", rate(100.0), Connections, InBytes, 8_000.0),
        (v4, rate(250.0), Datagrams, InPackets, 250.0),
        // A single cannot hold 2^24 + 1.
        (v4, rate(16_777_217.0), Connections, InPackets, 16_777_218.0),
    ] {
        let route = route(&limit(scope, restriction), what, unit).unwrap();
        let wanted = Rate::per_second(value);
        let wanted = if unit == InPackets { Packets(wanted) } else { Bytes(wanted) };
        assert_eq!(route.action, wanted, "{scope} {restriction}");
    }
}

#[test]
fn a_limit_on_connections_matches_first_syns_only() {
    let limits = [
        ("192.0.2.7:80", What::Connections, "to 192.0.2.7/32 protocol 6 port 80 syn"),
        ("192.0.2.0/24:*", What::Connections, "to 192.0.2.0/24 protocol 6 syn"),
        ("[2001:db8::/64]:443", What::Datagrams, "to 2001:db8::/64 protocol 17 port 443"),
    ];
    for (scope, what, shown) in limits {
        let route = route(&limit(scope, rate(5.0)), what, Unit::Packets).unwrap();
        assert_eq!(route.rule.to_string(), shown);
    }
}

#[test]
fn limits_that_no_router_can_hold_are_refused() {
    let good = limit("192.0.2.7:80", rate(5.0));
    let loss = limit("192.0.2.7:80", Restriction::Loss(Share::new(0.5)));
    let ended = RemoteLimit { validity: Nanos::ZERO, ..good.clone() };
    let some = RemoteLimit { priority: 1, ..good.clone() };
    for (limit, what, unit, why) in [
        (&limit("shop", rate(5.0)), What::Connections, Unit::Packets, Unfit::Service),
        (&loss, What::Connections, Unit::Packets, Unfit::NoRate),
        (&ended, What::Connections, Unit::Packets, Unfit::Ended),
        (&some, What::Connections, Unit::Packets, Unfit::Classes),
        (&good, What::Datagrams, Unit::Bytes, Unfit::Size),
    ] {
        assert_eq!(route(limit, what, unit), Err(why), "{limit:?}");
    }
}

#[test]
fn actions_travel_as_extended_communities() {
    let rate = Rate::per_second(1_000.0);
    assert_eq!(community(Bytes(rate)), [0x80, 0x06, 0, 0, 0x44, 0x7a, 0, 0]);
    assert_eq!(community(Packets(rate)), [0x80, 0x0c, 0, 0, 0x44, 0x7a, 0, 0]);
    let read = Attributes::decode(&attributes::encode(Packets(rate))).unwrap();
    assert_eq!((read.packets, read.bytes), (Some(1_000.0), None));
    assert!(read.local && !read.other && !read.conflict);
}

fn to(host: u8, packets: f64) -> Route {
    let rule = Rule {
        protocol: Some(6),
        flags: Some(Flags::FIRST),
        ..Rule::to(format!("192.0.2.{host}/32").parse().unwrap())
    };
    Route { rule, action: Packets(Rate::per_second(packets)) }
}

/// Gives what is told at this second, and tells it.
fn tell(plan: &mut Plan, second: u64) -> Vec<Change> {
    let now = Nanos::from_secs(second);
    let changes = plan.changes(now);
    for change in &changes {
        plan.done(now, change);
    }
    changes
}

fn want(plan: &mut Plan, second: u64, routes: &[Route]) -> usize {
    plan.want(Nanos::from_secs(second), routes).unwrap()
}

#[test]
fn a_rate_changes_rarely_and_by_much() {
    let mut plan = Plan::new(Bounds::default());
    want(&mut plan, 0, &[to(1, 100.0)]);
    assert_eq!(tell(&mut plan, 0), [Change::Announce(to(1, 100.0))]);
    for (second, packets, told) in [
        // too early
        (2, 200.0, false),
        (9, 200.0, false),
        // just not another by 20 %, on both sides
        (10, 119.9, false),
        (11, 80.1, false),
        (12, 120.0, true),
        // 10 s after that
        (21, 60.0, false),
        (22, 60.0, true),
        (40, 60.0, false),
    ] {
        want(&mut plan, second, &[to(1, packets)]);
        let expected = Vec::from_iter(told.then(|| Change::Announce(to(1, packets))));
        assert_eq!(tell(&mut plan, second), expected, "at {second} s");
    }
}

#[test]
fn without_renewal_everything_ends_with_the_lease() {
    let mut plan = Plan::new(Bounds::default());
    want(&mut plan, 10, &[to(1, 100.0), to(2, 100.0)]);
    assert_eq!(tell(&mut plan, 10).len(), 2);
    assert_eq!(tell(&mut plan, 12), []);
    let gone = [Change::Withdraw(to(1, 1.0).rule), Change::Withdraw(to(2, 1.0).rule)];
    assert_eq!(tell(&mut plan, 13), gone);
    assert_eq!(plan.announced(), 0);
    // What was withdrawn comes back no earlier than 10 s later.
    want(&mut plan, 14, &[to(1, 100.0)]);
    assert_eq!(tell(&mut plan, 14), []);
    want(&mut plan, 23, &[to(1, 100.0)]);
    assert_eq!(tell(&mut plan, 23), [Change::Announce(to(1, 100.0))]);
    // Before anything was wanted nothing is announced.
    assert_eq!(Plan::new(Bounds::default()).changes(Nanos::from_secs(1)), []);
}

#[test]
fn what_ends_is_withdrawn_at_once() {
    let mut plan = Plan::new(Bounds::default());
    want(&mut plan, 0, &[to(1, 100.0), to(2, 100.0)]);
    tell(&mut plan, 0);
    want(&mut plan, 1, &[to(2, 100.0)]);
    assert_eq!(tell(&mut plan, 1), [Change::Withdraw(to(1, 1.0).rule)]);
}

#[test]
fn the_budget_holds_and_who_is_there_stays() {
    let bounds = Bounds { routes: 2, ..Bounds::default() };
    let mut plan = Plan::new(bounds);
    assert_eq!(want(&mut plan, 0, &[to(1, 9.0), to(2, 9.0), to(3, 9.0)]), 1);
    assert_eq!(tell(&mut plan, 0).len(), 2);
    // Another order changes nothing.
    assert_eq!(want(&mut plan, 1, &[to(3, 9.0), to(2, 9.0), to(1, 9.0)]), 1);
    assert_eq!(tell(&mut plan, 1), []);
    assert_eq!(want(&mut plan, 2, &[to(3, 9.0), to(2, 9.0)]), 0);
    assert_eq!(tell(&mut plan, 2), [Change::Withdraw(to(1, 1.0).rule)]);
    // Its place is free 10 s later.
    for (second, told) in [(11, vec![]), (12, vec![Change::Announce(to(3, 9.0))])] {
        want(&mut plan, second, &[to(3, 9.0), to(2, 9.0)]);
        assert_eq!(tell(&mut plan, second), told, "at {second} s");
    }
}

#[test]
fn another_speaker_is_told_everything() {
    let mut plan = Plan::new(Bounds::default());
    want(&mut plan, 0, &[to(1, 100.0)]);
    tell(&mut plan, 0);
    plan.forget();
    assert_eq!(tell(&mut plan, 1), [Change::Announce(to(1, 100.0))]);
}

#[test]
fn a_route_that_the_speaker_does_not_take_is_tried_again_later() {
    let mut plan = Plan::new(Bounds { routes: 2, ..Bounds::default() });
    let at = Nanos::from_secs;
    want(&mut plan, 0, &[to(1, 100.0), to(2, 100.0)]);
    let changes = plan.changes(at(0));
    assert!(plan.refuse(at(0), &changes[0]));
    plan.done(at(0), &changes[1]);
    assert_eq!(plan.announced(), 1);
    for (second, told) in [(1, vec![]), (9, vec![]), (10, vec![Change::Announce(to(1, 100.0))])] {
        want(&mut plan, second, &[to(1, 100.0), to(2, 100.0)]);
        assert_eq!(plan.changes(at(second)), told, "at {second} s");
    }
    // What is there with another rate, or should go, does not stay as it is.
    want(&mut plan, 20, &[to(2, 500.0)]);
    let changes = plan.changes(at(20));
    assert_eq!(changes, [Change::Announce(to(2, 500.0))]);
    assert!(!plan.refuse(at(20), &changes[0]));
    assert!(!plan.refuse(at(20), &Change::Withdraw(to(2, 1.0).rule)));
    assert_eq!(plan.announced(), 1);
}

#[test]
fn what_is_withheld_says_why() {
    let mut plan = Plan::new(Bounds { routes: 2, ..Bounds::default() });
    let shown = |plan: &Plan, second| {
        let stands = plan.stands(Nanos::from_secs(second)).into_iter();
        stands.map(|stand| (stand.told.is_some(), stand.withheld)).collect::<Vec<_>>()
    };
    want(&mut plan, 0, &[to(1, 100.0), to(2, 100.0), to(3, 100.0)]);
    let (budget, speaker) = (Some(Withheld::Budget), Some(Withheld::Speaker));
    assert_eq!(shown(&plan, 0), [(false, speaker), (false, speaker), (false, budget)]);
    let changes = plan.changes(Nanos::ZERO);
    plan.done(Nanos::ZERO, &changes[0]);
    assert!(plan.refuse(Nanos::ZERO, &changes[1]));
    assert_eq!(shown(&plan, 1), [(true, None), (false, Some(Withheld::Refused)), (false, budget)]);
    want(&mut plan, 2, &[to(1, 110.0), to(2, 100.0)]);
    assert_eq!(shown(&plan, 2)[0], (true, Some(Withheld::Hysteresis)));
    want(&mut plan, 3, &[to(1, 200.0), to(2, 100.0)]);
    assert_eq!(shown(&plan, 3)[0], (true, Some(Withheld::Between)));
    // One that was withdrawn holds its place, so another one waits; one that shall end is shown.
    want(&mut plan, 11, &[]);
    assert_eq!(shown(&plan, 11), [(true, None)]);
    assert_eq!(tell(&mut plan, 11), [Change::Withdraw(to(1, 1.0).rule)]);
    want(&mut plan, 12, &[to(1, 100.0), to(4, 100.0)]);
    assert_eq!(shown(&plan, 12), [(false, Some(Withheld::Between)), (false, speaker)]);
}

/// What was not done is proposed again.
#[test]
fn only_what_the_speaker_has_taken_counts() {
    let mut plan = Plan::new(Bounds::default());
    want(&mut plan, 0, &[to(1, 100.0)]);
    assert_eq!(plan.changes(Nanos::ZERO).len(), 1);
    assert_eq!(plan.changes(Nanos::ZERO).len(), 1);
    assert_eq!(plan.announced(), 0);
}

proptest! {
    /// For any wishes: never more routes than the budget, no rule twice within 10 s but by its withdrawal, no more
    /// rules within 10 s than the budget, and none after the lease.
    #[test]
    fn bounds_hold_for_any_wishes(
        steps in prop::collection::vec((0..5_u64, prop::collection::vec((1..8_u8, 1..5_u32), 0..8)), 1..60)
    ) {
        let bounds = Bounds { routes: 4, ..Bounds::default() };
        let mut plan = Plan::new(bounds);
        let mut second = 0;
        let mut renewed = 0;
        let mut last = std::collections::HashMap::new();
        for (wait, wishes) in steps {
            second += wait;
            // Every fourth time nothing is wanted, nor renewed.
            if wait != 4 {
                let routes: Vec<Route> =
                    wishes.iter().map(|(host, rate)| to(*host, f64::from(*rate) * 100.0)).collect();
                want(&mut plan, second, &routes);
                renewed = second;
            }
            for change in tell(&mut plan, second) {
                match change {
                    Change::Announce(route) => {
                        prop_assert!(second - renewed < 3);
                        let recent = last.iter().filter(|(rule, at): &(&Rule, &u64)| {
                            **rule != route.rule && second - **at < 10
                        });
                        prop_assert!(recent.count() < 4);
                        let before = last.insert(route.rule, second);
                        prop_assert!(before.is_none_or(|before| second - before >= 10));
                    }
                    Change::Withdraw(rule) => {
                        last.insert(rule, second);
                    }
                }
            }
            prop_assert!(plan.announced() <= 4);
            if second - renewed >= 3 {
                prop_assert_eq!(plan.announced(), 0);
            }
        }
    }
}
