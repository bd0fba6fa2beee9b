// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was learned outlives the process: how it is kept, when it counts, and that nothing that is
//! wrong with it does any harm.

use crate::world::*;
use serde_json::json;
use std::io;
use std::sync::{Arc, Mutex};
use tidegate_daemon::state::{
    Here, Keeper, KeptCrowd, LEARNED_AGE_MAX, LIMITS_AGE_MAX, Store, decode, encode,
};
use tidegate_model::snapshot::Restored;
use tidegate_units::{Nanos, Rate};

/// What lies in the store, how often it was written, and the time.
#[derive(Default)]
struct Shelf {
    bytes: Option<Vec<u8>>,
    writes: u32,
    here: Here,
    full: bool,
}

#[derive(Clone, Default)]
pub(crate) struct FakeStore(Arc<Mutex<Shelf>>);

impl Store for FakeStore {
    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.lock().unwrap().bytes.clone())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut shelf = self.0.lock().unwrap();
        shelf.writes += 1;
        if shelf.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        shelf.bytes = Some(bytes.to_vec());
        Ok(())
    }

    fn remove(&mut self) -> io::Result<()> {
        self.0.lock().unwrap().bytes = None;
        Ok(())
    }

    fn here(&self) -> Here {
        self.0.lock().unwrap().here.clone()
    }
}

impl FakeStore {
    fn writes(&self) -> u32 {
        self.0.lock().unwrap().writes
    }

    fn has_some(&self) -> bool {
        self.0.lock().unwrap().bytes.is_some()
    }

    pub(crate) fn age_by(&self, by: Nanos) {
        let mut shelf = self.0.lock().unwrap();
        shelf.here.now += by;
    }

    /// Another one in which the same lies, at the same time.
    pub(crate) fn copy(&self) -> Self {
        let shelf = self.0.lock().unwrap();
        let (bytes, here) = (shelf.bytes.clone(), shelf.here.clone());
        Self(Arc::new(Mutex::new(Shelf { bytes, here, ..Shelf::default() })))
    }

    pub(crate) fn boot_again(&self, boot: &str) {
        self.0.lock().unwrap().here.boot = boot.into();
    }

    pub(crate) fn fill(&self) {
        self.0.lock().unwrap().full = true;
    }

    /// There is room again, and this lies there.
    pub(crate) fn put(&self, bytes: &[u8]) {
        let mut shelf = self.0.lock().unwrap();
        (shelf.bytes, shelf.full) = (Some(bytes.to_vec()), false);
    }

    /// Changes what lies there, with a good checksum.
    fn rewrite(&self, from: &str, to: &str) {
        let mut shelf = self.0.lock().unwrap();
        let (state, _) = decode(shelf.bytes.as_ref().unwrap(), &shelf.here).unwrap();
        let text = serde_json::to_string(&state).unwrap();
        assert!(text.contains(from), "{text}");
        let state = serde_json::from_str(&text.replace(from, to)).unwrap();
        shelf.bytes = Some(encode(&state).unwrap());
    }
}

const LEARNS: &str = "
interfaces: [{name: lo}]
services:
  learner: {mode: enforce, listen: ['*:80']}
  echo: {mode: enforce, listen: ['*:81']}
";

fn start(store: &FakeStore) -> World {
    let keeper = Keeper::new(Box::new(store.clone()), "test".into());
    World::with_keeper(LEARNS, None, FakePlane::default(), Some(keeper))
}

fn ticks(world: &mut World, count: u32) {
    (0..count).for_each(|_| drop(world.tick(Some(2000))));
}

/// A store in which a process that shed has left its state, after so many ticks.
fn left(count: u32) -> FakeStore {
    let store = FakeStore::default();
    ticks(&mut start(&store), count);
    assert!(store.has_some());
    store
}

fn burst(world: &World) -> u32 {
    world.snapshot().services[0].limits.burst
}

#[test]
fn a_killed_process_leaves_what_it_learned_and_the_next_goes_on_with_it() {
    let store = left(35);
    store.age_by(Nanos::from_secs(2));
    let mut next = start(&store);
    ticks(&mut next, 1);
    assert!(burst(&next) > 30, "{}", burst(&next));
    let restored = |learned| Some(Restored { age: Nanos::from_secs(2), limits: true, learned });
    let snapshot = next.snapshot();
    assert_eq!(snapshot.services[0].restored, restored(true));
    assert_eq!(snapshot.services[1].restored, restored(false), "one that keeps nothing");
    assert!(snapshot.warnings.is_empty(), "{:?}", snapshot.warnings);
}

#[test]
fn flash_crowds_behind_a_router_go_to_the_next_process() {
    let store = FakeStore::default();
    let crowd = KeptCrowd {
        destination: ([192, 0, 2, 1], 80).into(),
        lasted: Nanos::from_secs(30),
        age: Nanos::ZERO,
        carried: false,
        had_limit: Some(Nanos::ZERO),
        refused: 17,
        would_refuse: 0,
        why: "its server".into(),
        told: true,
        limited: true,
        sample: 1,
        detector: json!({"version": 1}),
    };
    let keeper = Keeper::new(Box::new(store.clone()), "test".into());
    let plane = FakePlane::default();
    plane.0.lock().unwrap().crowds.push(crowd.clone());
    ticks(&mut World::with_keeper(LEARNS, None, plane.clone(), Some(keeper)), 35);
    let (first, age) = plane.0.lock().unwrap().restored_crowds.take().unwrap();
    assert_eq!((first, age), (vec![], Nanos::ZERO), "there was no process before");
    store.age_by(Nanos::from_secs(2));
    let keeper = Keeper::new(Box::new(store), "test".into());
    World::with_keeper(LEARNS, None, plane.clone(), Some(keeper));
    let restored = plane.0.lock().unwrap().restored_crowds.take();
    assert_eq!(restored, Some((vec![crowd], Nanos::from_secs(2))));
}

#[test]
fn limits_are_in_force_again_at_once_and_for_3_s_while_the_controller_has_no_word() {
    let mut next = start(&left(35));
    let rate = |world: &World| world.snapshot().services[1].limits.rate;
    for tick in 1..30 {
        next.tick(Some(0));
        assert_eq!(rate(&next), Some(Rate::per_second(2000.0)), "tick {tick}");
    }
    next.tick(Some(0));
    next.tick(Some(0));
    assert_eq!(rate(&next), None);
}

/// After a crash the kernel still has limits, and a gateway has none: there those of the file hold.
#[test]
fn limits_of_a_gateway_are_in_force_again_where_the_kernel_kept_those_of_hooks() {
    const ROUTED: &str = "gateways:
  edge: {adapter: envoy, listen: '127.0.0.1:9470', routes: [{service: echo}]}
";
    let text = format!("{LEARNS}{ROUTED}");
    let begin = |store: &FakeStore, plane: FakePlane| {
        let keeper = Keeper::new(Box::new(store.clone()), "test".into());
        World::with_keeper(&text, None, plane, Some(keeper))
    };
    let store = FakeStore::default();
    ticks(&mut begin(&store, FakePlane::default()), 35);
    let plane = FakePlane::default();
    plane.0.lock().unwrap().in_force = vec![(Some(Rate::per_second(77.0)), vec![]), (None, vec![])];
    plane.0.lock().unwrap().adopted = true;
    let mut next = begin(&store, plane);
    for tick in 1..30 {
        next.tick(Some(0));
        let rate = next.snapshot().services[1].limits.rate;
        assert_eq!(rate, Some(Rate::per_second(2000.0)), "tick {tick}");
    }
    next.tick(Some(0));
    next.tick(Some(0));
    assert_eq!(next.snapshot().services[1].limits.rate, None);
}

#[test]
fn it_is_written_once_a_second_and_at_each_start_and_end_of_shedding() {
    let store = FakeStore::default();
    let mut world = start(&store);
    (0..10).for_each(|_| drop(world.tick(Some(0))));
    assert_eq!(store.writes(), 0, "not before it has run for a second");
    (0..50).for_each(|_| drop(world.tick(Some(0))));
    assert_eq!(store.writes(), 5);
    world.tick(Some(2000));
    assert_eq!(store.writes(), 6, "shedding begins");
    world.tick(Some(2000));
    assert_eq!(store.writes(), 6);
    world.tick(Some(0));
    assert_eq!(store.writes(), 7, "and ends");
    world.owner.keep_for_successor();
    assert_eq!(store.writes(), 8);
}

#[test]
fn what_is_old_of_another_boot_or_configured_otherwise_is_a_fresh_start_without_a_warning() {
    let fresh = |store: &FakeStore| {
        let mut next = start(store);
        ticks(&mut next, 1);
        let snapshot = next.snapshot();
        assert!(snapshot.warnings.is_empty(), "{:?}", snapshot.warnings);
        assert!(!store.has_some(), "it is not looked at twice");
        (burst(&next) == 1, snapshot.services[0].restored)
    };
    let store = left(35);
    store.age_by(LIMITS_AGE_MAX + Nanos::SECOND);
    let age = LIMITS_AGE_MAX + Nanos::SECOND;
    let learned = Some(Restored { age, limits: false, learned: true });
    assert_eq!(fresh(&store), (false, learned), "old limits, young lessons");
    let store = left(35);
    store.age_by(LEARNED_AGE_MAX + Nanos::SECOND);
    assert_eq!(fresh(&store), (true, None), "old");
    let store = left(35);
    store.0.lock().unwrap().here.boot = "another".into();
    assert_eq!(fresh(&store), (true, None), "another boot");
    let keeper = Keeper::new(Box::new(left(35)), "test".into());
    let text = LEARNS.replace("'*:80'", "'*:82'");
    let mut moved = World::with_keeper(&text, None, FakePlane::default(), Some(keeper));
    ticks(&mut moved, 1);
    assert_eq!((burst(&moved), moved.snapshot().services[0].restored), (1, None), "elsewhere");
}

#[test]
fn what_is_damaged_is_a_fresh_start_and_one_warning() {
    for damage in [
        (|bytes: &mut Vec<u8>| bytes.truncate(100)) as fn(&mut Vec<u8>),
        |bytes| bytes[200] ^= 4,
        |bytes| bytes.clear(),
        |bytes| bytes.resize(2 << 20, 0),
    ] {
        let store = left(35);
        damage(store.0.lock().unwrap().bytes.as_mut().unwrap());
        let mut next = start(&store);
        ticks(&mut next, 1);
        assert_eq!(burst(&next), 1);
        let snapshot = next.snapshot();
        assert_eq!(snapshot.warnings.len(), 1);
        assert!(snapshot.warnings[0].starts_with("state: not used: "), "{:?}", snapshot.warnings);
        assert!(!store.has_some());
    }
}

/// What brings a controller down does so once: the service starts afresh, the others go on.
#[test]
fn a_state_that_its_controller_cannot_bear_or_read_is_a_fresh_start() {
    for (ticks_kept, learned) in [("666", false), ("\"x\"", false), ("-1", false), ("77", true)] {
        let store = left(35);
        let text = serde_json::to_string(
            &decode(store.0.lock().unwrap().bytes.as_ref().unwrap(), &Here::default()).unwrap().0,
        );
        let text = text.unwrap();
        let (_, rest) = text.split_once("\"ticks\":").unwrap();
        let (before, _) = rest.split_once('}').unwrap();
        store.rewrite(&format!("\"ticks\":{before}"), &format!("\"ticks\":{ticks_kept}"));
        let mut next = start(&store);
        assert!(!store.has_some(), "removed before it is used");
        ticks(&mut next, 1);
        let snapshot = next.snapshot();
        assert_eq!(snapshot.services[0].restored.unwrap().learned, learned, "{ticks_kept}");
        assert_eq!(burst(&next), if learned { 78 } else { 1 }, "{ticks_kept}");
        assert!(snapshot.services[1].restored.is_some(), "{ticks_kept}");
    }
}

#[test]
fn a_full_disk_is_told_and_a_stop_on_purpose_forgets() {
    let store = FakeStore::default();
    store.0.lock().unwrap().full = true;
    let mut world = start(&store);
    ticks(&mut world, 20);
    let warnings = &world.snapshot().warnings;
    assert!(warnings.iter().any(|text| text.contains("cannot be kept")), "{warnings:?}");
    store.0.lock().unwrap().full = false;
    ticks(&mut world, 20);
    assert!(store.has_some());
    world.owner.detach().unwrap();
    assert!(!store.has_some());
}
