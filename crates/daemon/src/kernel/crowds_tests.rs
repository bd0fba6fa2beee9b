// SPDX-License-Identifier: Apache-2.0 OR MIT
#![allow(clippy::unwrap_used, reason = "a test may")]

use super::*;
use std::cell::{Cell, RefCell};
use tidegate_bpf::policy::{BucketSpec, Durations};

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
    limited: RouterLimited,
    /// Connections per second, as they were written.
    limit: Option<f64>,
}

/// What a kernel would count: at each place, and what was overwritten; when the lease was renewed, and how limits hold;
/// whether it takes no limit, and does not say what was overwritten.
struct Fake(RefCell<Vec<Place>>, Cell<u64>, Cell<(Nanos, Option<Mode>)>, Cell<bool>, Cell<bool>);

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

    fn set_overdue_after(&self, place: usize, after: Nanos) -> Result<(), Error> {
        self.0.borrow_mut()[place].overdue_after = after;
        Ok(())
    }

    fn overwritten(&self) -> Result<u64, Error> {
        match self.4.get() {
            true => Err(Error::Plan("it is not said".into())),
            false => Ok(self.1.get()),
        }
    }

    fn limited(&self, place: usize) -> Option<RouterLimited> {
        self.0.borrow().get(place).map(|place| place.limited)
    }

    fn set_limit(&self, place: usize, limit: Option<&BucketSpec>) -> Result<(), Error> {
        if self.3.get() {
            return Err(Error::Plan("no limit is taken".into()));
        }
        self.0.borrow_mut()[place].limit = limit.map(|limit| limit.rate.get());
        Ok(())
    }

    fn has_filter(&self, _: usize) -> Option<bool> {
        None
    }

    fn renew(&self, now: Nanos, mode: Option<Mode>) -> Result<(), Error> {
        self.2.set((now, mode));
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
    given_up: u64,
    /// The sweep sees so many that take too long, once there is a time from which on they do.
    overdue: u64,
}

const NOTHING: Came = Came { admitted: 0, begun: 0, completed: (0, 0), given_up: 0, overdue: 0 };
const CALM: Came = Came { admitted: 2, begun: 2, completed: (2, USUAL), ..NOTHING };
const CROWD: Came = Came { admitted: 10, begun: 10, completed: (3, SLOW), ..NOTHING };

struct World {
    fake: Fake,
    crowds: FlashCrowds,
    now: Nanos,
}

impl World {
    /// So many servers, each with one port.
    fn new(places: usize) -> Self {
        Self::at((0..places).map(|n| SocketAddr::from(([192, 0, 2, n as u8], 80))).collect())
    }

    fn at(addresses: Vec<SocketAddr>) -> Self {
        let times = RouterTimes {
            durations: vec![[0; Durations::BUCKETS]; Durations::CLASSES],
            rates: std::array::from_fn(|_| 0),
        };
        let counts = DestinationCounts::default();
        let (overdue_after, limited, limit) = (Nanos::ZERO, RouterLimited::default(), None);
        let place = Place { counts, times, overdue: 0, overdue_after, limited, limit };
        let places = RefCell::new(vec![place; addresses.len()]);
        let fake = Fake(places, Cell::new(0), Cell::default(), Cell::new(false), Cell::new(false));
        let mut world = Self { fake, crowds: FlashCrowds::default(), now: Nanos::from_secs(1) };
        world.crowds.watch(&world.fake, addresses.iter().enumerate(), world.now);
        world
    }

    /// One that has seen two minutes of [`CALM`].
    fn calm(places: usize) -> Self {
        let mut world = Self::new(places);
        assert_eq!(world.run(120, |_| CALM), []);
        world
    }

    /// The same at each place, for so many seconds; what happened, with the second of it.
    fn run(&mut self, seconds: u64, each: impl Fn(usize) -> Came) -> Vec<(u64, String)> {
        let mut told = Vec::new();
        for n in 0..seconds * 10 {
            for (at, place) in self.fake.0.borrow_mut().iter_mut().enumerate() {
                place.comes(each(at));
            }
            self.now += SWEEP;
            self.crowds.swept(&self.fake, self.now, 1).unwrap();
            let events = self.crowds.events();
            told.extend(events.iter().map(|what| (n / 10, what.sentence())));
        }
        told
    }

    /// The only crowd that is there.
    fn crowd(&self) -> CrowdState {
        let now = Vec::from_iter(self.crowds.now(self.now).into_values());
        assert!(now.len() == 1 && now[0].slow <= 1.0, "{now:?}");
        now[0].clone()
    }
}

impl Place {
    fn comes(&mut self, came: Came) {
        self.counts.admitted += came.admitted;
        self.counts.begun += came.begun;
        self.counts.completed += u64::from(came.completed.0);
        self.counts.given_up += came.given_up;
        self.times.durations[CLASS][came.completed.1] += came.completed.0;
        self.overdue += if self.overdue_after > Nanos::ZERO { came.overdue } else { 0 };
    }

    /// Exchanges of this bucket that were complete go on.
    fn resume(&mut self, count: u32, bucket: usize) {
        self.counts.resumed += u64::from(count);
        let place = &mut self.times.durations[CLASS][bucket];
        *place = place.wrapping_sub(count);
    }
}

#[test]
fn a_crowd_is_told_with_its_reason_and_its_end() {
    let mut world = World::calm(2);
    let began = world.run(30, |at| if at == 0 { CROWD } else { CALM });
    let [(second, sentence)] = &began[..] else { panic!("{began:?}") };
    assert!(*second <= 10, "{sentence}");
    let wanted = "192.0.2.0:80: flash crowd began: only its server is slow; ";
    assert!(sentence.starts_with(wanted), "{sentence}");
    let state = world.crowd();
    assert!(state.demand > 60.0 && state.slow > 0.9, "{state:?}");
    assert!(state.lasts >= Nanos::from_secs(20) && world.crowds.began() == 1, "{state:?}");
    let ended = world.run(60, |_| CALM);
    assert!(ended.len() == 1 && ended[0].1.contains("flash crowd ended after"), "{ended:?}");
    assert!(world.crowds.now(world.now).is_empty());
    let lasted = world.crowds.lasted();
    assert!(lasted >= state.lasts && lasted < Nanos::from_secs(60), "{lasted}");
}

/// Its server has died, or was taken out of service: nothing is fast again, and there is no crowd.
#[test]
fn it_also_ends_where_nothing_comes_any_more() {
    let trickle = Came { admitted: 1, begun: 1, completed: (1, SLOW), ..NOTHING };
    for comes in [NOTHING, trickle] {
        let mut world = World::calm(1);
        assert_eq!(world.run(20, |_| CROWD).len(), 1);
        let mut told = Vec::new();
        for _ in 0..60 {
            // In one second of five.
            told.extend(world.run(1, |_| comes));
            told.extend(world.run(4, |_| NOTHING));
        }
        assert!(told.len() == 1 && told[0].1.contains("flash crowd ended after"), "{told:?}");
        assert!(world.crowds.now(world.now).is_empty());
        // What was known then says nothing of those who come back.
        assert_eq!(world.run(60, |_| Came { begun: 10, completed: (10, USUAL), ..CROWD }), []);
    }
}

#[test]
fn slow_without_more_and_more_without_slow_is_none() {
    for odd in [
        Came { completed: (2, SLOW), ..CALM },
        Came { begun: 10, admitted: 10, completed: (10, USUAL), ..CALM },
        // Connections that are idle, beside a server that is slow: nothing more is asked.
        Came { admitted: 200, completed: (2, SLOW), ..CALM },
    ] {
        assert_eq!(World::calm(1).run(60, |_| odd), []);
    }
}

/// Inside TLS a client says goodbye when it closes: an exchange without a response. That is not more than completes.
#[test]
fn a_slow_dependency_inside_tls_is_no_crowd() {
    let usual = Came { admitted: 1, begun: 3, given_up: 1, completed: (2, USUAL), ..NOTHING };
    let mut world = World::new(1);
    assert_eq!(world.run(180, |_| usual), []);
    assert_eq!(world.run(60, |_| Came { completed: (2, SLOW), ..usual }), []);
}

/// Nothing is completed, so there are no durations: what takes too long is counted by the sweeps.
#[test]
fn a_server_that_hangs_in_a_crowd_is_found() {
    let mut world = World::calm(1);
    let after = world.fake.0.borrow()[0].overdue_after;
    assert!(after > Durations::from(USUAL), "{after}");
    let hangs = Came { completed: (0, 0), overdue: 4, ..CROWD };
    let told = world.run(20, |_| hangs);
    assert!(told.len() == 1 && told[0].0 <= 12, "{told:?}");
}

/// A response that went on is subtracted: the short one was not fast.
#[test]
fn what_goes_on_after_a_pause_is_one_slow_exchange() {
    let mut world = World::calm(1);
    let mut told = Vec::new();
    for _ in 0..20 {
        told.extend(world.run(1, |_| Came { completed: (3, USUAL), ..CROWD }));
        let place = &mut world.fake.0.borrow_mut()[0];
        place.resume(30, USUAL);
        place.comes(Came { completed: (30, SLOW), ..NOTHING });
    }
    assert!(told.len() == 1 && told[0].1.contains("began"), "{told:?}");
    assert!(world.crowd().slow > 0.5);
}

/// A stall of two seconds, after which a hundred responses go on, is no crowd, and neither are streams that send
/// an event each ten seconds beside pages.
#[test]
fn a_moment_in_which_much_goes_on_is_no_crowd() {
    let mut world = World::calm(1);
    let more = Came { begun: 4, admitted: 4, completed: (4, USUAL), ..NOTHING };
    let mut told = world.run(3, |_| more);
    let stall = |world: &mut World, count: u32, (from, to): (usize, usize)| {
        let place = &mut world.fake.0.borrow_mut()[0];
        place.resume(count, from);
        place.comes(Came { completed: (count, to), ..NOTHING });
    };
    stall(&mut world, 100, (USUAL, SLOW));
    told.extend(world.run(20, |_| more));
    // The streams are in the last bucket from then on.
    let last = Durations::BUCKETS - 1;
    world.fake.0.borrow_mut()[0].comes(Came { completed: (1000, last), ..NOTHING });
    told.extend(world.run(60, |_| CALM));
    for _ in 0..12 {
        stall(&mut world, 1000, (last, last));
        told.extend(world.run(10, |_| CALM));
    }
    assert_eq!(told, []);
}

/// Behind a slow link each destination has a crowd: the history keeps room for something else.
#[test]
fn many_at_once_are_few_events() {
    let mut world = World::calm(40);
    let began = world.run(20, |_| CROWD);
    let now = world.crowds.now(world.now);
    assert_eq!((began.len(), now.len()), (EVENTS_MAX, 40));
    assert!(now.values().all(|crowd| crowd.why.contains("the link")), "{now:?}");
    let ended = world.run(60, |_| CALM);
    assert_eq!(ended.len(), EVENTS_MAX, "the end of each that was told");
    // Again soon: those that had an event have none, and others have their first.
    assert_eq!(world.run(20, |_| CROWD).len(), EVENTS_MAX);
    world.run(60, |_| CALM);
    assert_eq!(world.run(20, |_| CROWD).len(), 40 - 2 * EVENTS_MAX);
}

/// Two ports of one server say nothing of the link.
#[test]
fn ports_of_one_address_are_no_neighbours() {
    let at = |host: u8, port| SocketAddr::from(([192, 0, 2, host], port));
    for (third, why) in [(None, Why::Unknown), (Some(at(2, 80)), Why::Server)] {
        let addresses: Vec<_> = [at(1, 80), at(1, 443)].into_iter().chain(third).collect();
        let mut world = World::at(addresses);
        assert_eq!(world.run(120, |_| CALM), []);
        world.run(30, |at| if at < 2 { CROWD } else { CALM });
        let whys: Vec<_> = world.crowds.now(world.now).into_values().map(|c| c.why).collect();
        assert_eq!(whys, [why.text(); 2]);
    }
}

/// The daemon was stopped for a while: what came meanwhile is not what comes in a tick.
#[test]
fn a_pause_of_the_daemon_is_no_demand() {
    let mut world = World::calm(1);
    for _ in 0..5 {
        (0..200).for_each(|_| world.fake.0.borrow_mut()[0].comes(CALM));
        world.now += Nanos::from_secs(20);
        world.run(1, |_| CALM);
        let demand = world.crowds.detectors.demand(0);
        assert!((18.0..22.0).contains(&demand), "{demand}");
    }
}

/// A flood of SYNs overwrites the handshakes of clients: their demand falls, and comes back at its end.
#[test]
fn in_a_flood_of_syns_nothing_is_concluded_and_that_is_said() {
    let mut world = World::calm(1);
    let few = Came { admitted: 0, begun: 0, completed: (1, SLOW), ..NOTHING };
    for _ in 0..60 {
        world.fake.1.set(world.fake.1.get() + 10_000);
        assert_eq!(world.run(1, |_| few), []);
    }
    assert!(world.crowds.blind(world.now).is_some_and(|text| text.contains("flood")));
    assert_eq!(world.run(60, |_| Came { completed: (2, SLOW), ..CALM }), []);
    assert_eq!(world.crowds.blind(world.now), None);
}

#[test]
fn what_is_shown_of_a_sample_is_multiplied() {
    let mut world = World::new(1);
    for n in 0..600 {
        world.fake.0.borrow_mut()[0].comes(CALM);
        world.now += SWEEP;
        world.crowds.swept(&world.fake, world.now, 4).unwrap();
        assert_eq!(world.crowds.events(), [], "{n}");
    }
    assert!((world.crowds.demand(0) - 80.0).abs() < 2.0, "{}", world.crowds.demand(0));
}

/// What is not measured any more has ended.
#[test]
fn an_end_of_the_measurement_ends_its_crowds() {
    let mut world = World::calm(1);
    assert_eq!(world.run(20, |_| CROWD).len(), 1);
    let ended = world.crowds.end();
    assert!(ended.len() == 1 && matches!(ended[0], What::CrowdEnded { .. }), "{ended:?}");
}

/// The process before had a crowd at the first of two servers; so many seconds later another one watches both.
fn next_process(seconds: u64) -> World {
    let mut before = World::calm(2);
    before.run(40, |at| if at == 0 { CROWD } else { CALM });
    let kept = before.crowds.kept();
    assert_eq!(kept.len(), 1, "those that have a crowd");
    let mut next = World::at(Vec::new());
    next.now = before.now + Nanos::from_secs(seconds);
    next.crowds.restore(kept, Nanos::from_secs(seconds));
    next.crowds.swept(&next.fake, next.now, 1).unwrap();
    assert_eq!(next.crowds.kept().len(), 1, "still waiting");
    let addresses = Vec::from_iter(before.crowds.watched.values().map(|one| one.address));
    next.fake = World::at(addresses.clone()).fake;
    assert!(!next.crowds.waits(0, next.now), "no destination is known");
    assert!(next.crowds.waits(2, next.now) && next.crowds.waits_for(&addresses[0]));
    next.now += Nanos::from_secs(1);
    assert!(!next.crowds.waits(2, next.now), "no other destination is known");
    next.crowds.watch(&next.fake, addresses.iter().enumerate(), next.now);
    next
}

#[test]
fn a_crowd_goes_on_in_the_next_process() {
    let mut next = next_process(5);
    let crowd = next.crowd();
    assert!(crowd.lasts > Nanos::from_secs(30) && crowd.why == Why::Server.text(), "{crowd:?}");
    assert_eq!(next.run(20, |at| if at == 0 { CROWD } else { CALM }), [], "it began before");
    let ended = next.run(60, |_| CALM);
    assert!(ended.len() == 1 && ended[0].1.contains("flash crowd ended after"), "{ended:?}");
    // Without that a process that starts in a crowd takes it for usual.
    let mut fresh = World::new(2);
    assert_eq!(fresh.run(60, |at| if at == 0 { CROWD } else { CALM }), []);
}

#[test]
fn one_of_long_ago_may_be_over() {
    let mut next = next_process(300);
    assert!(next.crowds.now(next.now).is_empty());
    let told = next.run(30, |at| if at == 0 { CROWD } else { CALM });
    assert!(told.len() == 1 && told[0].0 <= 10 && told[0].1.contains("began"), "{told:?}");
    // Slow, with no more than usual.
    let mut next = next_process(300);
    assert_eq!(next.run(30, |_| Came { completed: (2, SLOW), ..CALM }), []);
}

/// What waits is carried on to one more process, and gets older meanwhile; and it is not waited for without end.
#[test]
fn a_crowd_that_waits_grows_older() {
    let minutes = |n: u64| Nanos::from_secs(60 * n);
    let mut before = World::calm(1);
    before.run(20, |_| CROWD);
    let restored = |kept, age| {
        let mut next = World::at(Vec::new());
        next.crowds.restore(kept, age);
        next.crowds.swept(&next.fake, next.now, 1).unwrap();
        next
    };
    let mut second = restored(before.crowds.kept(), minutes(40));
    assert!(second.crowds.waits(1, second.now));
    second.now += Nanos::from_secs(50);
    second.crowds.swept(&second.fake, second.now, 1).unwrap();
    let kept = second.crowds.kept();
    assert_eq!(kept[0].age, minutes(40) + Nanos::from_secs(50));
    let third = restored(kept.clone(), minutes(1));
    assert!(third.crowds.waits_for(&kept[0].destination));
    assert_eq!(third.crowds.kept(), [], "not twice");
    assert!(!restored(kept.clone(), minutes(30)).crowds.waits_for(&kept[0].destination), "old");
    second.now += Nanos::from_secs(11);
    assert!(!second.crowds.waits(2, second.now) && second.crowds.kept().is_empty());
}

#[test]
fn those_with_a_limit_and_the_most_demand_are_kept_and_another_sample_is_none() {
    let mut world = World::calm(20);
    let more = Came { admitted: 20, begun: 20, completed: (3, SLOW), ..NOTHING };
    world.run(20, |at| if at == 19 { more } else { CROWD });
    assert_eq!(world.crowds.now(world.now).len(), 20);
    let kept = world.crowds.kept();
    assert_eq!(kept.len(), kept::KEPT_MAX);
    assert_eq!(kept[0].destination.ip().to_string(), "192.0.2.19");
    let mut next = World::at(Vec::new());
    let first = kept[0].destination;
    next.crowds.restore(kept, Nanos::ZERO);
    next.crowds.swept(&next.fake, next.now, 2).unwrap();
    next.fake = World::new(1).fake;
    next.crowds.watch(&next.fake, [(0, &first)].into_iter(), next.now);
    assert!(next.crowds.now(next.now).is_empty());
}

#[test]
fn destinations_beyond_the_bound_wait_until_one_is_watched_for_nothing() {
    let at = |n: usize| SocketAddr::from(([192, 0, (n >> 8) as u8, n as u8], 80));
    let mut world = World::at((0..=WATCHED_MAX).map(at).collect());
    let is_watched = |world: &World| world.crowds.watched.contains_key(&WATCHED_MAX);
    assert_eq!(world.crowds.watched.len(), WATCHED_MAX);
    assert!(!is_watched(&world));
    assert!(world.crowds.blind(world.now).is_some_and(|text| text.contains("not at 1 others")));
    let later = world.now + FORGOTTEN_AFTER;
    world.crowds.watch(&world.fake, [(WATCHED_MAX, &at(WATCHED_MAX))].into_iter(), later);
    assert!(is_watched(&world) && world.crowds.blind(later).is_none());
}

#[path = "limiting_tests.rs"]
mod limiting;
#[path = "shared_tests.rs"]
mod shared;
