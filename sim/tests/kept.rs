// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections that stay, each with its next request as soon as it has a response, beside clients who
//! come and go. Refusing SYNs does not move them: others must not be refused in their place, and they
//! must not lift the limits for everybody.

use tidegate_policy::Action;
use tidegate_sim::traffic::matrix::{Cell, NATURAL, cells};
use tidegate_sim::traffic::spec::{Habit, Load, Session, Stream, Transport};
use tidegate_sim::traffic::worlds::table;
use tidegate_sim::traffic::{Course, run};
use tidegate_sim::world::Phase;
use tidegate_units::Nanos;

/// None of them designed a controller.
const SEEDS: std::ops::RangeInclusive<u64> = 341..=344;
const ACTIONS: [Action; 2] = [Action::Drop, Action::Reject];

fn cell(name: &str) -> Cell {
    cells(NATURAL).into_iter().find(|cell| cell.name == name).expect(name)
}

fn load(rates: &[(f64, f64)]) -> Load {
    let phase = |(rate, s): &(f64, f64)| Phase { rate: *rate, lasts: Nanos::from_secs_f64(*s) };
    Load::Open(rates.iter().map(phase).collect())
}

/// So many connections that come within a tenth of a second, and stay for so many requests.
fn kept(transport: Transport, connections: f64, requests: u32, habit: Habit) -> Stream {
    let rates = [(0.0, 20.0), (10.0 * connections, 0.1)];
    let session = Session { transport, requests, habit, ..Session::one() };
    Stream { service: 0, session, load: load(&rates) }
}

/// A cell for 20 s at 0.5, for 30 s at so many times the capacity, and for 20 s at 0.5 again, of
/// `capacity` requests per second; beside it from second 20 on others.
fn beside(
    (name, capacity): (&str, f64),
    times: f64,
    others: Option<Stream>,
    variant: Option<Action>,
) -> Course {
    let cell = cell(name);
    let sessions = capacity / f64::from(cell.session.requests);
    let loads = load(&[(0.5 * sessions, 20.0), (times * sessions, 30.0), (0.5 * sessions, 20.0)]);
    let mut world = cell.world(loads, variant, *SEEDS.end());
    world.streams.extend(others);
    run(world).expect("a sound world").remove(0)
}

/// Goodput and p99 of the admitted in the middle.
fn middle(course: &Course) -> (f64, f64) {
    let phase = &course.report.phases[1];
    (phase.goodput(), phase.took(0.99))
}

/// At 0.3 of the capacity, whether they were there from the beginning or come later.
#[test]
fn beside_connections_that_stay_nobody_is_refused() {
    for row in table().into_iter().filter(|row| row.name.starts_with("kept-")) {
        for seed in SEEDS {
            let bare = run(row.world(None, seed)).expect(row.name).remove(0);
            for action in ACTIONS {
                let course = run(row.world(Some(action), seed)).expect(row.name).remove(0);
                let phases = &course.report.phases;
                let refused: u64 = phases.iter().map(|phase| phase.refused).sum();
                let began: u64 = phases.iter().map(|phase| phase.began).sum();
                println!("{} {action:?} {seed}: {refused} of {began}", row.name);
                assert!(refused * 1000 <= began, "{}: {refused} of {began}", row.name);
                for (own, bare) in phases.iter().zip(&bare.report.phases) {
                    assert!(own.good as f64 >= 0.97 * bare.good as f64, "{}", row.name);
                }
            }
        }
    }
}

/// A crowd comes and goes beside them. Its alarm ends with it, although they stay.
#[test]
fn the_alarm_of_a_crowd_ends_beside_them() {
    for seed in SEEDS {
        for action in ACTIONS {
            let loads = [(150.0, 20.0), (1000.0, 5.0), (150.0, 10.0), (150.0, 30.0)];
            let mut world = cell("event-clear-1x0").world(load(&loads), Some(action), seed);
            world.streams.push(kept(Transport::Cleartext, 50.0, 800, Habit::Asks));
            let course = run(world).expect("a sound world").remove(0);
            let shares = course.report.phases.iter().map(|p| p.refused_share());
            println!("{action:?} {seed}: {:?}", shares.collect::<Vec<_>>());
            assert!(course.report.phases[1].refused > 0, "{action:?}: an alarm");
            assert!(course.report.phases[3].refused_share() <= 0.001, "{action:?}");
        }
    }
}

/// An overload of those who come and go is held beside them: they have their half of the server.
#[test]
fn newcomers_have_half_of_the_server_in_an_overload() {
    let fifty = || Some(kept(Transport::Cleartext, 50.0, 1500, Habit::Asks));
    let at = |variant| middle(&beside(("event-clear-1x0", 500.0), 3.0, fifty(), variant));
    let (bare, _) = at(None);
    for action in ACTIONS {
        let (goodput, p99_s) = at(Some(action));
        println!("{action:?}: {goodput}/s, p99 {p99_s} s, {bare}/s without");
        assert!(goodput >= 0.4 * 500.0 && p99_s <= 1.0, "{goodput}/s, {p99_s} s");
        assert!(bare < 0.2 * 500.0, "{bare}/s without");
    }
}

/// More of them than the server answers within the objective: nobody new is served well, with or
/// without limits, and everybody is once they have gone.
#[test]
fn too_many_of_them_shut_nobody_out_for_longer_than_they_stay() {
    let many = || Some(kept(Transport::Cleartext, 600.0, 15, Habit::Asks));
    for action in ACTIONS {
        let course = beside(("event-clear-1x0", 500.0), 0.3, many(), Some(action));
        let phases = &course.report.phases;
        println!("{action:?}: {:?}", phases.iter().map(|p| p.refused_share()).collect::<Vec<_>>());
        assert_eq!(phases[2].refused, 0, "{action:?}");
    }
}

/// Sessions of 20 requests come and go: they are held as they are without such a rule.
#[test]
fn sessions_that_come_and_go_are_held() {
    for (name, capacity) in [("event-clear-20x0", 500.0), ("event-clear-20x0.5", 500.0)] {
        for action in ACTIONS {
            let course = beside((name, capacity), 3.0, None, Some(action));
            let (goodput, p99_s) = middle(&course);
            let traces = &course.report.traces;
            let alarms = traces.windows(2).filter(|w| !w[0].shedding && w[1].shedding).count();
            println!("{name} {action:?}: {goodput}/s, p99 {p99_s} s, {alarms} alarms");
            assert!(goodput >= 0.85 * capacity && p99_s <= 1.0, "{name}: {goodput}/s, {p99_s} s");
        }
    }
}

/// Requests that cost nearly nothing, on five connections that stay, complete far more often than all
/// others. They are hardly ever in flight, so they lift no limit for the rest.
#[test]
fn cheap_requests_on_connections_that_stay_lift_no_limit() {
    let cells = [
        ("event-clear-1x0", Transport::Cleartext, 500.0),
        ("event-clear-5x0", Transport::Cleartext, 500.0),
        ("event-tls-1x0", Transport::Tls, 360.0),
        ("event-tls-5x0", Transport::Tls, 460.0),
    ];
    for (name, transport, capacity) in cells {
        for action in ACTIONS {
            let cheap = || Some(kept(transport, 5.0, 40_000, Habit::Polls(Nanos::ZERO)));
            let (with, p99_s) = middle(&beside((name, capacity), 3.0, cheap(), Some(action)));
            let (without, _) = middle(&beside((name, capacity), 3.0, None, Some(action)));
            println!("{name} {action:?}: {with}/s, p99 {p99_s} s, {without}/s without them");
            assert!(p99_s <= 1.0 && with >= 0.5 * without, "{name}: {with}/s, {p99_s} s");
        }
    }
}
