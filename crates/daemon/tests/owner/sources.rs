// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limit on sources that hold silent connections: when it is written, and when it is not.

use super::world::*;
use std::sync::atomic::Ordering;
use tidegate_api::protocol::Handover;
use tidegate_model::limits::ServiceLimits;
use tidegate_model::sources::SourceUse;

/// A source that holds so many of its open connections.
fn source(service: usize, last: u8, (open, held): (u32, u32)) -> SourceUse {
    SourceUse {
        service,
        source: SourceUse::of([192, 0, 2, last].into()),
        open,
        held,
        peak: open,
        good: 0,
        bad: 0,
        exchanges: 0,
    }
}

/// The limits on sources that were written, without repetitions.
fn written(world: &World) -> Vec<Option<u32>> {
    let memory = world.memory.lock().unwrap();
    let mut limits: Vec<_> =
        memory.written.iter().map(|limits| limits.services[0].source_max).collect();
    limits.dedup();
    limits
}

#[test]
fn who_holds_the_workers_gets_a_limit_and_the_service_keeps_its_rate() {
    let mut world = World::new(ONE);
    world.tick(Some(50));
    {
        let mut memory = world.memory.lock().unwrap();
        memory.silent = Some(300);
        memory.sources = vec![source(0, 1, (300, 300)), source(0, 2, (4, 3))];
    }
    (0..5).for_each(|_| drop(world.tick(Some(50))));
    assert_eq!(written(&world), [None], "half a second may be one burst");
    (0..20).for_each(|_| drop(world.tick(Some(50))));
    assert_eq!(written(&world), [None, Some(3)], "what the next source holds");
    assert_eq!(world.rate(), Some(50.0));
    assert!(world.warns("192.0.2.1/32 (300)") && world.warns("TCP_DEFER_ACCEPT"));
    {
        let mut memory = world.memory.lock().unwrap();
        memory.silent = Some(0);
        memory.sources.clear();
    }
    (0..590).for_each(|_| drop(world.tick(Some(50))));
    assert_eq!(written(&world), [None, Some(3)], "it may come back");
    (0..40).for_each(|_| drop(world.tick(Some(50))));
    assert_eq!(written(&world), [None, Some(3), None], "a minute later it is lifted");
}

#[test]
fn idle_connections_that_hold_the_workers_are_told_and_nobody_gets_a_limit() {
    let mut world = World::new(ONE);
    world.tick(Some(50));
    {
        let mut memory = world.memory.lock().unwrap();
        memory.idle = Some(300);
        memory.sources = vec![source(0, 1, (300, 0))];
    }
    (0..5).for_each(|_| drop(world.tick(Some(50))));
    assert!(!world.warns("KeepAliveTimeout"), "half a second may be one burst");
    (0..20).for_each(|_| drop(world.tick(Some(50))));
    assert!(world.warns("shop: idle connections") && world.warns("KeepAliveTimeout"));
    assert!(!world.warns("silent connections"));
    assert_eq!((written(&world), world.rate()), (vec![None], Some(50.0)));
    world.memory.lock().unwrap().idle = None;
    (0..200).for_each(|_| drop(world.tick(Some(50))));
    assert!(!world.warns("KeepAliveTimeout"));
}

#[test]
fn nobody_is_capped_where_nothing_is_short() {
    let mut world = World::new(ONE);
    world.memory.lock().unwrap().sources = vec![source(0, 1, (300, 300))];
    (0..50).for_each(|_| drop(world.tick(Some(50))));
    assert_eq!(written(&world), [None]);
}

#[test]
fn the_sources_of_another_service_are_not_counted() {
    let mut world = World::new(ONE);
    world.memory.lock().unwrap().silent = Some(300);
    world.memory.lock().unwrap().sources = vec![source(1, 1, (300, 300))];
    (0..50).for_each(|_| drop(world.tick(Some(50))));
    assert_eq!(written(&world), [None]);
}

#[test]
fn the_table_is_read_once_a_second_and_more_often_in_need() {
    let mut world = World::new(ONE);
    let looks = |world: &World| world.memory.lock().unwrap().looks.swap(0, Ordering::Relaxed);
    (0..50).for_each(|_| drop(world.tick(Some(50))));
    assert_eq!(looks(&world), 5);
    world.memory.lock().unwrap().silent = Some(300);
    (0..51).for_each(|_| drop(world.tick(Some(50))));
    let urgent = looks(&world);
    assert!((15..=21).contains(&urgent), "{urgent} in five seconds");
}

#[test]
fn a_take_over_keeps_the_limit_for_as_long_as_it_may_be_needed() {
    let limits = ServiceLimits { source_max: Some(3), ..ServiceLimits::default() };
    let left = Handover { limits: [("shop".into(), limits)].into(), ..Handover::default() };
    let mut world = World::with(ONE, Some(left), FakePlane::default());
    world.memory.lock().unwrap().silent = Some(0);
    (0..590).for_each(|_| drop(world.tick(Some(50))));
    assert_eq!(written(&world), [Some(3)], "while it works there is no cause to see");
    (0..40).for_each(|_| drop(world.tick(Some(50))));
    assert_eq!(written(&world), [Some(3), None], "a minute later it is lifted");
}

#[test]
fn a_limit_on_sources_is_let_go_where_nobody_can_tell_whether_it_is_needed() {
    let mut world = World::new(ONE);
    {
        let mut memory = world.memory.lock().unwrap();
        memory.silent = Some(300);
        memory.sources = vec![source(0, 1, (300, 300))];
    }
    (0..20).for_each(|_| drop(world.tick(Some(50))));
    assert_eq!(written(&world), [None, Some(2)]);
    world.memory.lock().unwrap().silent = None;
    (0..29).for_each(|_| drop(world.tick(Some(50))));
    assert_eq!(written(&world), [None, Some(2)], "as long as the others");
    (0..5).for_each(|_| drop(world.tick(Some(50))));
    assert_eq!(written(&world), [None, Some(2), None]);
}
