// SPDX-License-Identifier: Apache-2.0 OR MIT
#![allow(clippy::unwrap_used, reason = "a test may")]

use super::*;
use std::cell::RefCell;
use tidegate_bpf::policy::Durations;

/// From one sweep to the next.
const SWEEP: Nanos = Nanos::from_millis(100);
/// Buckets of a usual exchange, and of one that takes four times as long.
const USUAL: usize = 30;
const SLOW: usize = USUAL + 8;
const CLASS: usize = 4;

#[derive(Clone)]
struct Place {
    counts: DestinationCounts,
    times: RouterTimes,
    overdue: u64,
    overdue_after: Nanos,
}

/// What a kernel would count.
struct Fake(RefCell<Vec<Place>>);

impl Counted for Fake {
    fn counts(&self, place: usize) -> Option<DestinationCounts> {
        self.0.borrow().get(place).map(|place| place.counts)
    }

    fn times(&self, place: usize) -> Option<RouterTimes> {
        self.0.borrow().get(place).map(|place| place.times.clone())
    }

    fn overdue(&self, place: usize) -> Option<u64> {
        self.0.borrow().get(place).map(|place| place.overdue)
    }

    fn set_overdue_after(&self, place: usize, after: Nanos) -> Result<(), tidegate_bpf::Error> {
        self.0.borrow_mut()[place].overdue_after = after;
        Ok(())
    }
}

/// What comes to a place within a sweep.
#[derive(Clone, Copy, Default)]
struct Came {
    admitted: u64,
    begun: u64,
    /// So many are completed, in this bucket.
    completed: (u32, usize),
    /// The sweep sees so many that take too long, once there is a time from which on they do.
    overdue: u64,
}

const CALM: Came = Came { admitted: 2, begun: 2, completed: (2, USUAL), overdue: 0 };
const CROWD: Came = Came { admitted: 10, begun: 10, completed: (3, SLOW), overdue: 0 };

struct World {
    fake: Fake,
    crowds: FlashCrowds,
    now: Nanos,
    sample: u32,
}

impl World {
    fn new(places: usize) -> Self {
        let times = RouterTimes {
            durations: vec![[0; Durations::BUCKETS]; Durations::CLASSES],
            rates: std::array::from_fn(|_| 0),
        };
        let counts = DestinationCounts::default();
        let place = Place { counts, times, overdue: 0, overdue_after: Nanos::ZERO };
        let fake = Fake(RefCell::new(vec![place; places]));
        let mut world =
            Self { fake, crowds: FlashCrowds::default(), now: Nanos::from_secs(1), sample: 1 };
        for at in 0..places {
            world.crowds.watch(&world.fake, (at, format!("192.0.2.{at}:80")), world.now);
        }
        world
    }

    /// The same at each place, for so many seconds; what happened, with the second of it.
    fn run(&mut self, seconds: u64, each: impl Fn(usize) -> Came) -> Vec<(u64, String)> {
        let mut told = Vec::new();
        for n in 0..seconds * 10 {
            for (at, place) in self.fake.0.borrow_mut().iter_mut().enumerate() {
                let came = each(at);
                place.counts.admitted += came.admitted;
                place.counts.begun += came.begun;
                place.counts.completed += u64::from(came.completed.0);
                place.times.durations[CLASS][came.completed.1] += came.completed.0;
                let counted = place.overdue_after > Nanos::ZERO;
                place.overdue += if counted { came.overdue } else { 0 };
            }
            self.now = self.now + SWEEP;
            self.crowds.swept(&self.fake, self.now, self.sample).unwrap();
            let events = self.crowds.events();
            told.extend(events.iter().map(|what| (n / 10, what.sentence())));
        }
        told
    }
}

#[test]
fn a_crowd_is_told_with_its_reason_and_its_end() {
    let mut world = World::new(2);
    assert_eq!(world.run(120, |_| CALM), []);
    let began = world.run(30, |at| if at == 0 { CROWD } else { CALM });
    let [(second, sentence)] = &began[..] else { panic!("{began:?}") };
    assert!(*second <= 10, "{sentence}");
    assert!(sentence.starts_with("192.0.2.0:80: flash crowd began: "), "{sentence}");
    assert!(sentence.ends_with("its server is at its limit"), "{sentence}");
    let now = world.crowds.now(world.now);
    let [(0, state)] = &now[..] else { panic!("{now:?}") };
    assert!(state.demand > 60.0 && state.slow > 0.9, "{state:?}");
    assert!(state.lasts >= Nanos::from_secs(20) && world.crowds.began() == 1, "{state:?}");
    let ended = world.run(60, |_| CALM);
    assert!(ended.len() == 1 && ended[0].1.contains("flash crowd ended after"), "{ended:?}");
    assert_eq!(world.crowds.now(world.now), []);
    let lasted = world.crowds.lasted();
    assert!(lasted >= state.lasts && lasted < Nanos::from_secs(60), "{lasted}");
}

#[test]
fn slow_without_more_and_more_without_slow_is_none() {
    for odd in [
        Came { completed: (2, SLOW), ..CALM },
        Came { begun: 10, admitted: 10, completed: (10, USUAL), ..CALM },
        // Connections that are idle, beside a server that is slow: nothing more is asked.
        Came { admitted: 200, completed: (2, SLOW), ..CALM },
    ] {
        let mut world = World::new(1);
        assert_eq!(world.run(120, |_| CALM), []);
        assert_eq!(world.run(60, |_| odd), []);
    }
}

/// Nothing is completed, so there are no durations: what takes too long is counted by the sweeps.
#[test]
fn a_server_that_hangs_in_a_crowd_is_found() {
    let mut world = World::new(1);
    world.run(120, |_| CALM);
    let after = world.fake.0.borrow()[0].overdue_after;
    assert!(after > Durations::from(USUAL), "{after}");
    let hangs = Came { completed: (0, 0), overdue: 4, ..CROWD };
    let told = world.run(20, |_| hangs);
    assert!(told.len() == 1 && told[0].0 <= 12, "{told:?}");
}

/// A response that went on is taken back: the short one was not fast.
#[test]
fn what_goes_on_after_a_pause_is_one_slow_exchange() {
    let mut world = World::new(1);
    world.run(120, |_| CALM);
    let mut told = Vec::new();
    for _ in 0..20 {
        told.extend(world.run(1, |_| Came { completed: (3, USUAL), ..CROWD }));
        let mut places = world.fake.0.borrow_mut();
        let place = &mut places[0];
        place.counts.resumed += 30;
        place.counts.completed += 30;
        place.times.durations[CLASS][USUAL] -= 30;
        place.times.durations[CLASS][SLOW] += 30;
    }
    assert!(told.len() == 1 && told[0].1.contains("began"), "{told:?}");
}

/// Behind a slow link each destination has a crowd: the history keeps room for something else.
#[test]
fn many_at_once_are_few_events() {
    let mut world = World::new(40);
    world.run(120, |_| CALM);
    let began = world.run(20, |_| CROWD);
    assert_eq!((began.len(), world.crowds.now(world.now).len()), (EVENTS_MAX, 40));
    assert!(world.crowds.now(world.now).iter().all(|(_, crowd)| crowd.why.contains("link")));
    let ended = world.run(60, |_| CALM);
    assert_eq!(ended.len(), EVENTS_MAX, "the end of each that was told");
}

/// With one connection in four followed, the same crowd is found.
#[test]
fn a_sample_shows_the_same_crowd() {
    let mut world = World::new(1);
    world.sample = 4;
    world.run(240, |_| Came { admitted: 1, begun: 1, completed: (1, USUAL), ..CALM });
    assert!((world.crowds.detectors.demand(0) - 40.0).abs() < 1.0);
    let told = world.run(30, |_| Came { admitted: 5, begun: 5, completed: (1, SLOW), ..CALM });
    assert_eq!(told.len(), 1, "{told:?}");
}

#[test]
fn destinations_beyond_the_bound_wait_until_one_is_watched_for_nothing() {
    let mut world = World::new(WATCHED_MAX + 1);
    assert_eq!(world.crowds.watched.len(), WATCHED_MAX);
    let late = (WATCHED_MAX, "late".to_owned());
    world.crowds.watch(&world.fake, late.clone(), world.now);
    assert!(!world.crowds.watched.contains_key(&WATCHED_MAX));
    let much_later = world.now + FORGOTTEN_AFTER;
    world.crowds.watch(&world.fake, late, much_later);
    assert!(world.crowds.watched.contains_key(&WATCHED_MAX));
    assert_eq!(world.crowds.watched.len(), WATCHED_MAX);
}
