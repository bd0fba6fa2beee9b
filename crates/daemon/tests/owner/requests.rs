// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Request rules in the owner's hands: limits of buckets, reloads, modes, warnings.

use crate::world::*;
use tidegate_api::protocol::Handover;
use tidegate_daemon::plane::RequestCounts;
use tidegate_model::Mode;
use tidegate_model::limits::{BucketLimits, ServiceLimits};
use tidegate_model::snapshot::{Followed, RuleCounts, RuleServed, UnevaluatedCount};
use tidegate_units::Rate;

const RULES: &str = "
interfaces: [{name: lo}]
services:
  shop:
    mode: enforce
    listen: ['*:80']
    requests:
      buckets: {a: {resource: cpu}, b: {resource: bandwidth}}
      rules: [{path: /a, bucket: a}, {name: rest, path: /, methods: [GET], bucket: b, action: reset}, {unevaluable: true, action: allow}]
";

impl World {
    /// The rates of the first service's buckets that were written last.
    fn bucket_rates(&self) -> Vec<Option<f64>> {
        let memory = self.memory.lock().unwrap();
        let services = &memory.written.last().unwrap().services;
        services[0].buckets.iter().map(|bucket| bucket.rate.map(Rate::get)).collect()
    }
}

#[test]
fn limits_of_buckets_are_written_with_those_of_the_service_when_they_change() {
    let mut world = World::new(RULES);
    world.tick(Some(50));
    assert_eq!(world.bucket_rates(), [Some(50.0), Some(51.0)]);
    world.tick(Some(50));
    assert_eq!(world.generations(), [1], "nothing changed");
    world.tick(Some(70));
    assert_eq!(world.bucket_rates(), [Some(70.0), Some(71.0)]);
    assert_eq!(world.generations(), [1, 2]);
}

#[test]
fn missing_signals_never_tighten_a_bucket() {
    let mut world = World::new(RULES);
    world.tick(None);
    assert_eq!(world.snapshot().services[0].limits.buckets[0].rate, None);
    world.tick(Some(50));
    for _ in 0..50 {
        world.tick(None);
        assert_eq!(world.bucket_rates()[0], Some(50.0), "the controller wanted 1/s");
    }
}

#[test]
fn a_reload_keeps_the_buckets_that_stay_and_makes_the_others_anew() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(RULES);
    world.tick(Some(500));
    world.tick(Some(50));
    assert_eq!(world.bucket_rates(), [Some(500.0), Some(501.0)], "they remember");
    // b stays and comes first, a changes, c is new.
    let text = RULES
        .replace(
            "{a: {resource: cpu}, b: {resource: bandwidth}}",
            "{b: {resource: bandwidth}, a: {resource: cpu, burst: 7}, c: {resource: disk}}",
        )
        .replace("rules: [", "rules: [{path: /c, bucket: c}, ");
    world.owner.reload(&file(&dir, &text), &registry(), &Ok).unwrap();
    let limits = &world.owner.handover().limits["shop"];
    let kept: Vec<_> = limits.buckets.iter().map(|b| b.rate.map(Rate::get)).collect();
    assert_eq!(kept, [Some(501.0), None, None], "until the next tick");
    world.tick(Some(50));
    assert_eq!(world.bucket_rates(), [Some(501.0), Some(51.0), Some(52.0)]);
    let rules = text.replace("path: /c", "path: /d");
    world.owner.reload(&file(&dir, &rules), &registry(), &Ok).unwrap();
    world.tick(Some(20));
    assert_eq!(world.bucket_rates(), [Some(501.0), Some(51.0), Some(52.0)], "rules alone changed");
}

/// Whoever draws the mean of what is in flight sees no counter begin again because somebody reloaded.
#[test]
fn a_reload_keeps_what_was_summed_of_the_rules_that_stay() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(RULES);
    let served = |begun| {
        let served = RuleServed { begun, ..RuleServed::default() };
        RuleCounts { served, ..RuleCounts::default() }
    };
    let hold = |world: &World, in_flight: &[u64]| {
        let rules = in_flight.iter().map(|begun| served(*begun));
        world.memory.lock().unwrap().requests.rules = rules.collect();
    };
    let sums = |world: &mut World| -> Vec<f64> {
        (0..20).for_each(|_| drop(world.tick(Some(50))));
        let snapshot = world.snapshot();
        let requests = snapshot.services[0].requests.as_ref().unwrap();
        requests.rules.iter().map(|rule| rule.in_flight_sum).collect()
    };
    hold(&world, &[4, 2, 1]);
    let before = sums(&mut world);
    assert!(before.iter().all(|sum| *sum > 0.0), "{before:?}");
    let more = RULES.replace("rules: [", "rules: [{path: /c, bucket: b}, ");
    hold(&world, &[0, 4, 2, 1]);
    world.owner.reload(&file(&dir, &more), &registry(), &Ok).unwrap();
    let after = sums(&mut world);
    assert_eq!(after[0], 0.0, "a new one");
    assert!((0..3).all(|at| after[at + 1] > 2.0 * before[at]), "{before:?}, {after:?}");
    let other = more.replace("path: /a, bucket: a", "path: /z, bucket: a");
    world.owner.reload(&file(&dir, &other), &registry(), &Ok).unwrap();
    let last = sums(&mut world);
    assert!(last[1] < after[1] && last[2] > after[2], "another rule: {after:?}, {last:?}");
}

#[test]
fn a_take_over_inherits_the_limits_of_buckets_where_they_are_as_many() {
    let bucket = |rate| BucketLimits { rate: Some(Rate::per_second(rate)), ..Default::default() };
    for (inherited, wanted) in [
        (vec![bucket(7.0), bucket(8.0)], [Some(7.0), Some(8.0)]),
        (vec![bucket(7.0)], [Some(50.0), Some(51.0)]),
    ] {
        let limits = ServiceLimits { buckets: inherited, ..ServiceLimits::default() };
        let left = Handover { limits: [("shop".into(), limits)].into(), ..Handover::default() };
        let mut world = World::with(RULES, Some(left), FakePlane::default());
        world.tick(Some(50));
        assert_eq!(world.bucket_rates(), wanted, "until the new daemon has an own opinion");
    }
}

#[test]
fn rules_in_shadow_are_told_so_whoever_says_it() {
    let said = |world: &World| {
        let snapshot = world.snapshot();
        let requests = snapshot.services[0].requests.clone().unwrap();
        (requests.mode, requests.buckets[0].limits.why.text.clone())
    };
    let wanted = |mode: &str, text: &str| (mode.to_owned(), text.to_owned());
    let mut world = World::new(RULES);
    world.tick(Some(50));
    assert_eq!(said(&world), wanted("enforce", "Enforce"));
    world.owner.set_mode("shop", Mode::Shadow).unwrap();
    world.tick(Some(50));
    assert_eq!(said(&world), wanted("shadow", "Shadow"));

    let mut world = World::new(&RULES.replace("requests:", "requests:\n      mode: shadow"));
    let snapshot = world.tick(Some(50));
    assert_eq!(said(&world), wanted("shadow", "Shadow"));
    assert_eq!(snapshot.services[0].mode, "enforce", "connections are evaluated in earnest");

    let mut world = World::new(RULES);
    world.owner.release(true).unwrap();
    world.tick(Some(50));
    assert_eq!(said(&world).1, "Shadow", "released: nothing is shed");
}

#[test]
fn the_snapshot_shows_rules_buckets_and_what_was_not_evaluated() {
    let mut world = World::new(RULES);
    let counted = RuleCounts { admitted: 7, refused: 3, ..RuleCounts::default() };
    world.memory.lock().unwrap().requests = RequestCounts {
        rules: vec![counted, RuleCounts::default()],
        unevaluated: vec![UnevaluatedCount { reason: "tls".into(), text: "TLS".into(), count: 2 }],
    };
    world.memory.lock().unwrap().followed = Some(Followed { connections: 4, limit: 100 });
    *world.defer_accept.lock().unwrap() = Some(true);
    let requests = world.tick(Some(50)).services[0].requests.clone().unwrap();
    let rules: Vec<_> =
        requests.rules.iter().map(|r| (r.name.as_str(), r.action.as_str())).collect();
    assert_eq!(rules[..2], [("/a", "503"), ("rest", "reset")]);
    assert_eq!((rules.len(), rules[2].0), (3, "unevaluable"));
    assert_eq!(requests.rules[1].rule, "GET /");
    assert_eq!((requests.rules[0].counts, requests.rules[0].counts.met()), (counted, 10));
    let bucket = &requests.buckets[0];
    assert_eq!((bucket.resource.as_str(), bucket.controller.as_str()), ("cpu", "default"));
    assert_eq!((bucket.offered, bucket.limits.burst), ([1, 20, 3], 5));
    assert_eq!(bucket.signals.counts.unwrap().value.offered[1], 50);
    assert_eq!((requests.unevaluated.len(), requests.defer_accept), (1, Some(true)));
    assert_eq!(requests.followed.unwrap().limit, 100);
    assert_eq!(World::new(ONE).tick(Some(5)).services[0].requests, None, "no rules, no state");
}

#[test]
fn the_value_of_a_cookie_is_in_no_snapshot_no_metric_and_no_table() {
    let rules = RULES
        .replace("path: /a,", "path: /a, cookie: {name: sid, value: s3cret},")
        .replace("path: /,", "path: /, protect: [{name: sid, value: s3cret}],");
    let snapshot = World::new(&rules).tick(Some(50));
    let state = snapshot.services[0].requests.clone().unwrap();
    assert_eq!(state.rules[0].name, "/a cookie sid=…", "a rule without a name");
    let metrics = tidegate_telemetry::openmetrics(&snapshot);
    assert!(metrics.contains("/a cookie sid"));
    let whole = format!("{snapshot:?}");
    for text in [metrics, tidegate_telemetry::rules_table(&snapshot), whole] {
        assert!(!text.contains("s3cret"), "{text}");
    }
}

#[test]
fn what_costs_or_blinds_is_warned_of() {
    let mut world = World::new(RULES);
    *world.defer_accept.lock().unwrap() = Some(false);
    world.memory.lock().unwrap().blind = true;
    world.memory.lock().unwrap().followed = Some(Followed { connections: 96, limit: 100 });
    world.tick(Some(50));
    for of in ["shop: TCP_DEFER_ACCEPT", "shop: responses", "connections: the table"] {
        assert!(world.warns(of), "{of}: {:?}", world.snapshot().warnings);
    }
    let mut world = World::new(&RULES.replace("requests:", "requests:\n      mode: shadow"));
    *world.defer_accept.lock().unwrap() = Some(false);
    world.memory.lock().unwrap().followed = Some(Followed { connections: 90, limit: 100 });
    world.tick(Some(50));
    assert!(world.snapshot().warnings.is_empty(), "nothing is refused in shadow, nothing is full");
}

#[test]
fn requests_that_cannot_be_evaluated_are_warned_of_with_the_most_frequent_reason() {
    for (met, tls, warns) in [(79, 21, true), (81, 19, false), (7, 3, false), (790, 210, true)] {
        let mut world = World::new(RULES);
        let counts = |met, tls| RequestCounts {
            rules: vec![RuleCounts { admitted: met, ..RuleCounts::default() }; 2],
            unevaluated: [("tls", tls), ("body", 10_000), ("split", tls / 10)]
                .map(|(reason, count)| UnevaluatedCount {
                    reason: reason.into(),
                    text: format!("text of {reason}"),
                    count,
                })
                .into(),
        };
        // What was counted before the daemon looked for the first time is history.
        world.memory.lock().unwrap().requests = counts(0, 100_000);
        world.tick(Some(50));
        world.memory.lock().unwrap().requests = RequestCounts {
            rules: vec![RuleCounts { admitted: met, ..RuleCounts::default() }],
            ..counts(0, 100_000 + tls)
        };
        for _ in 0..10 {
            world.tick(Some(50));
        }
        let warned = world.warns("shop: rules");
        assert_eq!(warned, warns, "{met} {tls}: {:?}", world.snapshot().warnings);
        assert!(!warns || world.warns("for tls: text of tls"), "{:?}", world.snapshot().warnings);
    }
}

/// Rules that changed count from zero; what passed without being evaluated counts on.
#[test]
fn a_reload_is_no_reason_to_warn_of_unevaluated_requests() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(RULES);
    let counts = |met, tls| RequestCounts {
        rules: vec![RuleCounts { admitted: met, ..RuleCounts::default() }],
        unevaluated: vec![UnevaluatedCount {
            reason: "tls".into(),
            text: "TLS".into(),
            count: tls,
        }],
    };
    world.memory.lock().unwrap().requests = counts(0, 0);
    world.tick(Some(50));
    world.memory.lock().unwrap().requests = counts(10_000, 500);
    (0..10).for_each(|_| drop(world.tick(Some(50))));
    assert!(!world.warns("shop: rules"));
    let text = RULES.replace("path: /a", "path: /b");
    world.owner.reload(&file(&dir, &text), &registry(), &Ok).unwrap();
    world.memory.lock().unwrap().requests = counts(10, 510);
    (0..10).for_each(|_| drop(world.tick(Some(50))));
    assert!(!world.warns("shop: rules"), "{:?}", world.snapshot().warnings);
}

#[test]
fn a_bucket_whose_controller_panics_releases_its_service_and_no_other() {
    let two = format!("{RULES}  blog: {{mode: enforce, listen: ['*:81']}}\n");
    let mut world = World::new(&two);
    world.tick(Some(50));
    let snapshot = world.tick(Some(666));
    assert!(snapshot.services[0].limits.buckets.is_empty(), "everything passes");
    assert_eq!(snapshot.services[1].limits.rate.map(Rate::get), Some(666.0));
    assert!(world.warns("shop: control"), "{:?}", world.snapshot().warnings);
    world.tick(Some(50));
    assert_eq!(world.bucket_rates()[0], Some(50.0), "made anew, without what it remembered");
}
