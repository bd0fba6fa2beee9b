// SPDX-License-Identifier: Apache-2.0 OR MIT
//! After a crash: limits are in force that nobody handed over.

use crate::world::*;
use tidegate_units::Rate;

fn rate(rate: f64) -> Option<Rate> {
    Some(Rate::per_second(rate))
}

/// Rates of a service and of its buckets.
type InForce = (Option<Rate>, Vec<Option<Rate>>);

/// A dataplane that adopted limits of services and of their buckets.
fn plane(in_force: &[InForce]) -> FakePlane {
    let plane = FakePlane::default();
    let mut memory = plane.0.lock().unwrap();
    memory.in_force = in_force.to_vec();
    memory.adopted = true;
    drop(memory);
    plane
}

fn in_force(world: &World) -> Vec<Option<Rate>> {
    world.memory.lock().unwrap().in_force.iter().map(|(rate, _)| *rate).collect()
}

#[test]
fn what_was_adopted_stays_in_force_until_a_controller_sheds_and_not_for_longer_than_3_s() {
    let two = format!("{ONE}  blog: {{mode: enforce, listen: ['*:81']}}\n");
    let before = [(rate(77.0), vec![]), (rate(33.0), vec![])];
    let mut world = World::with(&two, None, plane(&before));
    for tick in 1..=29 {
        world.tick(Some(0));
        assert_eq!(in_force(&world), [rate(77.0), rate(33.0)], "tick {tick}");
    }
    assert_eq!(world.generations().len(), 1, "and is not written again and again");
    let why = &world.snapshot().services[0].limits.why.text;
    assert!(why.contains("in force before the start"), "{why}");
    world.tick(Some(0));
    assert_eq!(in_force(&world), [None, None], "the same decision is written after 3 s");
    let why = &world.snapshot().services[0].limits.why.text;
    assert!(!why.contains("before the start"), "{why}");

    let mut world = World::with(&two, None, plane(&before));
    world.tick(Some(500));
    assert_eq!(in_force(&world), [rate(77.0), rate(33.0)], "who does not shed has no word yet");
    world.tick(Some(2000));
    assert_eq!(in_force(&world), [rate(2000.0), rate(2000.0)], "who sheds has");
    world.tick(Some(0));
    assert_eq!(in_force(&world), [None, None], "and what it says afterwards, too");
}

#[test]
fn a_reload_ends_what_was_adopted() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::with(ONE, None, plane(&[(rate(77.0), vec![])]));
    world.tick(Some(0));
    assert_eq!(in_force(&world), [rate(77.0)]);
    world.owner.reload(&file(&dir, ONE), &registry(), &Ok).unwrap();
    world.tick(Some(0));
    assert_eq!(in_force(&world), [None], "indices are others now");
}

#[test]
fn nothing_is_kept_where_the_signals_are_lost_or_the_controller_fails() {
    let two = format!("{ONE}  bad: {{mode: enforce, listen: ['*:81']}}\n");
    let mut world = World::with(&two, None, plane(&[(rate(77.0), vec![]), (rate(33.0), vec![])]));
    world.tick(Some(0));
    assert_eq!(in_force(&world), [rate(77.0), None], "its controller panicked");
    world.tick(None);
    assert_eq!(in_force(&world), [None, None], "nothing was measured");
}

#[test]
fn a_rate_that_an_operator_set_counts_at_once() {
    let fixed =
        ONE.replace("    mode: enforce", "    mode: enforce\n    control: {name: fixed, rate: 5}");
    assert_ne!(fixed, ONE);
    let mut world = World::with(&fixed, None, plane(&[(rate(77.0), vec![])]));
    world.tick(Some(50));
    assert_eq!(in_force(&world), [rate(50.0)]);
}

#[test]
fn a_start_that_adopts_nothing_keeps_nothing() {
    let plane = FakePlane::default();
    plane.0.lock().unwrap().in_force = vec![(rate(77.0), vec![])];
    let mut world = World::with(ONE, None, plane);
    world.tick(Some(0));
    assert_eq!(in_force(&world), [None]);
}

#[test]
fn buckets_are_kept_likewise() {
    let requests = "    requests:
      buckets: {a: {resource: cpu}, b: {resource: cpu, control: {name: fixed, rate: 9}}}
      rules: [{path: /a, bucket: a}, {path: /b, bucket: b}, {unevaluable: true, action: allow}]
";
    let text = format!("{ONE}{requests}");
    let mut world = World::with(&text, None, plane(&[(None, vec![rate(7.0), rate(8.0)])]));
    let buckets = |world: &World| world.memory.lock().unwrap().in_force[0].1.clone();
    world.tick(Some(5));
    assert_eq!(buckets(&world), [rate(7.0), rate(6.0)], "only what is set by hand counts at once");
    for _ in 0..29 {
        world.tick(Some(5));
    }
    assert_eq!(buckets(&world), [rate(5.0), rate(6.0)], "after 3 s all do");
}
