// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several routers in front of one server find its flash crowd together, and divide the limit.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod world;

use tidegate_model::sharing::DestinationReport;
use tidegate_units::Nanos;
use world::{CAPACITY, World};

/// What the sum of all limits may be, of what the server carries: the mean of any ten seconds.
const MOST: f64 = 1.1;
/// None of them designed a controller.
const SEEDS: [u64; 4] = [341, 342, 343, 344];

/// All of them learn what is usual.
fn calm(usual: &[f64], seed: u64) -> World {
    let mut world = World::new(usual, seed);
    world.run(120);
    assert!(world.limits().iter().all(Option::is_none), "seed {seed}: no crowd, no limit");
    world
}

/// The most that the mean of ten seconds is, of the capacity.
fn most(sums: &[f64]) -> f64 {
    let means = sums.windows(10).map(|ten| ten.iter().sum::<f64>() / 10.0);
    means.fold(0.0, f64::max) / CAPACITY
}

fn assert_divided(sums: &[f64], what: &str) {
    let most = most(sums);
    assert!(most <= MOST, "{what}: {most:.2} of the capacity: {sums:.0?}");
}

/// Good responses a second in so many seconds, of the capacity.
fn goodput(world: &mut World, seconds: u64) -> f64 {
    let before = world.good();
    world.run(seconds);
    (world.good() - before) as f64 / seconds as f64 / CAPACITY
}

/// A crowd of 1.6/s at each of two routers, in front of a server that carries two. Each alone sees too few.
#[test]
fn a_crowd_that_is_split_is_found_together() {
    for seed in SEEDS {
        let found = |apart: bool| {
            let world = World::new(&[0.5, 0.5], seed);
            let mut world = if apart { world.apart() } else { world };
            world.run(600);
            world.capacity = 2.0;
            world.offer(&[1.6, 1.6]);
            (0..120).find(|_| {
                world.run(1);
                world.routers.iter().any(|router| router.alarm)
            })
        };
        let (together, alone) = (found(false), found(true));
        assert!(together.is_some_and(|s| s <= 60), "seed {seed}: {together:?}, alone {alone:?}");
        assert!(alone.is_none_or(|s| Some(s) > together), "seed {seed}: {together:?}, {alone:?}");
    }
}

#[test]
fn the_limit_is_divided_by_demand() {
    for (parts, delay_ms, loss) in [
        (&[0.5, 0.5][..], 50, 0.0),
        (&[0.9, 0.1], 50, 0.0),
        (&[0.6, 0.3, 0.1], 50, 0.0),
        (&[0.5, 0.5], 1500, 0.3),
        (&[0.9, 0.1], 1500, 0.3),
        (&[0.6, 0.3, 0.1], 1500, 0.3),
        (&[0.5, 0.5], 5000, 0.0),
        (&[0.6, 0.3, 0.1], 5000, 0.3),
    ] {
        for seed in SEEDS {
            let what = format!("{parts:?}, {delay_ms} ms, loss {loss}, seed {seed}");
            let of = |all: f64| parts.iter().map(|part| part * all).collect::<Vec<_>>();
            let mut world = calm(&of(20.0), seed);
            (world.delay, world.loss) = (Nanos::from_millis(delay_ms), loss);
            world.offer(&of(200.0));
            world.run(40);
            assert!(world.limits().iter().all(Option::is_some), "{what}: {:?}", world.limits());
            let sums = world.run(60);
            assert_divided(&sums, &what);
            let good = goodput(&mut world, 30);
            assert!(good >= 0.85, "{what}: goodput {good:.2}");
            let means = world.means(60);
            let sum: f64 = means.iter().sum();
            for (mean, part) in means.iter().zip(parts) {
                let found = mean / sum;
                assert!((found - part).abs() <= 0.08, "{what}: {found:.2} of {part}: {means:.1?}");
            }
            // The crowd ends, and so does every limit.
            world.offer(&of(20.0));
            world.run(40);
            assert!(world.limits().iter().all(Option::is_none), "{what}: {:?}", world.limits());
        }
    }
}

/// Clients go over from one router to the other at once.
#[test]
fn a_demand_that_shifts_takes_its_part_along() {
    for (delay_ms, loss) in [(50, 0.0), (1000, 0.3), (5000, 0.0)] {
        for seed in SEEDS {
            let what = format!("{delay_ms} ms, loss {loss}, seed {seed}");
            let mut world = calm(&[10.0, 10.0], seed);
            (world.delay, world.loss) = (Nanos::from_millis(delay_ms), loss);
            world.offer(&[180.0, 20.0]);
            world.run(60);
            world.offer(&[20.0, 180.0]);
            let sums = world.run(60);
            assert_divided(&sums, &what);
            let means = world.means(20);
            assert!(means[1] > 4.0 * means[0], "{what}: {means:.1?}");
            let good = goodput(&mut world, 30);
            assert!(good >= 0.85, "{what}: goodput {good:.2}");
        }
    }
}

/// What sharing is for: each by itself remembers what it carried before the clients went over.
#[test]
fn apart_the_limits_add_up_to_more() {
    for seed in SEEDS {
        let shift = |mut world: World| {
            world.run(120);
            world.offer(&[180.0, 20.0]);
            world.run(60);
            world.offer(&[20.0, 180.0]);
            most(&world.run(60))
        };
        let apart = shift(World::new(&[10.0, 10.0], seed).apart());
        let together = shift(World::new(&[10.0, 10.0], seed));
        eprintln!("seed {seed}: {apart:.2} apart, {together:.2} together");
        assert!(apart > MOST && apart > together + 0.1, "seed {seed}: {apart:.2}, {together:.2}");
    }
}

/// A router is lost while its clients still come: the others keep their part, and do not take the lost one's.
#[test]
fn a_router_that_is_lost_leaves_each_its_part() {
    for seed in SEEDS {
        let mut world = calm(&[10.0, 5.0, 5.0], seed);
        world.offer(&[100.0, 50.0, 50.0]);
        world.run(60);
        let before = world.means(10);
        world.routers[2].cut = true;
        let sums = world.run(20);
        assert_divided(&sums, &format!("seed {seed}: just lost"));
        let after = world.means(10);
        for (before, after) in before.iter().zip(&after) {
            assert!((after / before - 1.0).abs() < 0.35, "{seed}: {before:.1}, {after:.1}");
        }
        // For good: each has a limit of its own, and the server still works.
        world.run(120);
        let good = goodput(&mut world, 30);
        assert!(good >= 0.8, "seed {seed}: {good:.2} apart");
        world.routers[2].cut = false;
        world.run(20);
        let sums = world.run(30);
        assert_divided(&sums, &format!("seed {seed}: heard again"));
    }
}

/// A router dies, and its clients come by the other one: that takes its part over.
#[test]
fn the_clients_of_a_router_that_died_are_served_by_the_other() {
    for seed in SEEDS {
        let mut world = calm(&[10.0, 10.0], seed);
        world.offer(&[100.0, 100.0]);
        world.run(60);
        world.routers[1].away = true;
        world.offer(&[200.0, 0.0]);
        let sums = world.run(60);
        assert!(most(&sums) <= 1.2, "seed {seed}: {sums:.0?}");
        let good = goodput(&mut world, 30);
        assert!(good >= 0.9, "seed {seed}: {good:.2}");
        let means = world.means(20);
        assert!(means[0] >= 0.85 * CAPACITY, "seed {seed}: {means:.1?}");
    }
}

#[test]
fn a_daemon_that_starts_again_goes_on_with_its_part() {
    for seed in SEEDS {
        let mut world = calm(&[10.0, 10.0], seed);
        world.offer(&[100.0, 100.0]);
        world.run(60);
        let before = world.means(10);
        world.routers[1].away = true;
        world.run(2);
        world.restart(1, true);
        let sums = world.run(30);
        assert_divided(&sums[2..], &format!("seed {seed}"));
        let after = world.means(20);
        // What both have together still changes: the crowd before drains.
        let part = |means: &[f64]| means[1] / means.iter().sum::<f64>();
        let moved = (part(&after) - part(&before)).abs();
        assert!(moved < 0.1, "{seed}: {before:.1?}, {after:.1?}");
    }
}

/// It says that more comes to it than to anybody, and that nothing completes.
fn claims_all(report: DestinationReport) -> DestinationReport {
    let waits = DestinationReport { in_flight: 1_000_000, overdue: 1_000_000, ..report };
    DestinationReport {
        completed: 0,
        given_up: 0,
        first_milli: 1 << 40,
        refused_milli: 1 << 40,
        demand_milli: 1 << 40,
        crowd_ms: Some(60_000),
        fast: false,
        took: vec![(4 * 64 + 60, 1_000_000)],
        ..waits
    }
}

/// It says that the server carries millions, and that hardly anybody comes to it.
fn claims_none(report: DestinationReport) -> DestinationReport {
    let carried = DestinationReport { completed: 10_000_000, given_up: 0, ..report };
    DestinationReport { demand_milli: 1, refused_milli: 1000, in_flight: 0, overdue: 0, ..carried }
}

/// A lie makes no limit where clients are served, leaves half of the usual where they are not, and opens nothing.
#[test]
fn a_router_that_lies_takes_a_part_at_most() {
    for seed in SEEDS {
        let mut world = calm(&[20.0, 5.0], seed);
        world.routers[1].lies = Some(claims_all);
        world.run(120);
        assert_eq!(world.routers[0].limit, None, "seed {seed}: its clients are served");
        world.offer(&[150.0, 5.0]);
        world.run(60);
        for second in 0..240 {
            world.run(1);
            let limit = world.routers[0].limit.unwrap_or(150.0);
            assert!(
                limit >= 9.0,
                "seed {seed}, {second} s: {limit:.1} is less than half of the usual"
            );
        }
    }
    for seed in SEEDS {
        let mut world = calm(&[10.0, 10.0], seed);
        world.routers[1].lies = Some(claims_none);
        world.offer(&[190.0, 10.0]);
        world.run(60);
        let sums = world.run(120);
        let mean = sums.iter().sum::<f64>() / sums.len() as f64;
        assert!(mean <= 1.3 * CAPACITY, "seed {seed}: {sums:.0?}");
        let good = goodput(&mut world, 60);
        assert!(good >= 0.5, "seed {seed}: {good:.2}");
    }
}

/// It says that its clients wait, with few in flight, so that refusing seems to work.
fn claims_a_wait(report: DestinationReport) -> DestinationReport {
    let waits = DestinationReport { in_flight: 5, overdue: 5, ..report };
    DestinationReport {
        completed: 1,
        given_up: 0,
        first_milli: 100_000,
        refused_milli: 90_000,
        demand_milli: 100_000,
        crowd_ms: Some(60_000),
        fast: false,
        took: vec![(4 * 64 + 60, 50)],
        ..waits
    }
}

/// A crowd is over, and a router goes on to say that it is there: where clients are served again, no limit stays.
#[test]
fn what_others_say_holds_no_limit_where_clients_are_served() {
    for seed in SEEDS {
        let mut world = calm(&[20.0, 5.0], seed);
        world.offer(&[150.0, 5.0]);
        world.run(60);
        world.routers[1].lies = Some(claims_a_wait);
        world.run(10);
        assert!(world.routers[0].limit.is_some(), "seed {seed}: there is a crowd");
        world.offer(&[20.0, 5.0]);
        world.run(110);
        let free = (0..120).filter(|_| {
            world.run(1);
            world.routers[0].limit.is_none()
        });
        let free = free.count();
        assert!(free >= 110, "seed {seed}: {free} of 120 s without a limit");
    }
}

/// Only the way behind one router is slow: the other one's clients are served, and nobody limits them.
#[test]
fn where_only_the_clients_of_one_router_wait_the_other_limits_nobody() {
    for seed in SEEDS {
        let mut world = calm(&[10.0, 10.0], seed);
        world.elsewhere = Some(1);
        world.offer(&[200.0, 10.0]);
        world.run(60);
        let means = world.means(60);
        assert!((0.8..=MOST).contains(&(means[0] / CAPACITY)), "seed {seed}: {means:.1?}");
        assert_eq!(world.limits()[1], None, "seed {seed}: its clients are served");
    }
}

/// A flood of reports, and reports of destinations that nobody knows, change nothing.
#[test]
fn reports_of_what_nobody_asks_for_do_no_harm() {
    use std::net::SocketAddr;
    use tidegate_model::sharing::RouterReports;
    let mut world = calm(&[10.0, 10.0], 1);
    for n in 0..10_000_u32 {
        let address = SocketAddr::from((n.to_be_bytes(), 80));
        let report = claims_all(DestinationReport::empty(address, 1000, 1));
        let told = RouterReports { router: "r1".into(), at: world.now, reports: vec![report] };
        world.routers[0].sharing.hear(world.now, told);
    }
    let states = world.routers[0].sharing.states(world.now);
    assert!(states.len() == 1 && states[0].destinations <= 64, "{states:?}");
    world.run(30);
    assert_eq!(world.limits(), [None, None]);
}
