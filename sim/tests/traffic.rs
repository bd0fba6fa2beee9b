// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Worlds of sessions: invariants, and what must hold already. The whole matrix is printed by
//! `cargo run --release -p tidegate-sim --example traffic`.

use proptest::prelude::*;
use tidegate_policy::Action;
use tidegate_sim::traffic::matrix::{Cell, Effort, NATURAL, cells, compare};
use tidegate_sim::traffic::spec::{Change, Habit, Load, Session, Stream};
use tidegate_sim::traffic::worlds::table;
use tidegate_sim::traffic::{Accounting, run};
use tidegate_sim::world::Phase;
use tidegate_units::Nanos;

fn cell(name: &str) -> Cell {
    cells(NATURAL).into_iter().find(|cell| cell.name == name).expect(name)
}

fn load(rates: &[f64]) -> Load {
    let phase = |rate: &f64| Phase { rate: *rate, lasts: Nanos::from_secs(4) };
    Load::Open(rates.iter().map(phase).collect())
}

fn habit(kind: u8) -> Habit {
    let held = Nanos::from_secs(3);
    match kind {
        0 => Habit::Silent(held),
        1 => Habit::Uploads(held),
        _ => Habit::Polls(held),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    /// Whatever comes, `run` finds every request ended once, every gauge at zero and no event in the
    /// past: its checkers fail the run otherwise.
    #[test]
    fn every_request_ends_once(
        index in 0..55_usize,
        (first, second) in (0.0..600.0, 0.0..3000.0),
        (others, kind) in (0.0..300.0, 0..3_u8),
        variant in 0..3_u8,
        stop in 1..8_u64,
        seed in 0..1000_u64,
    ) {
        let cell = cells(NATURAL).remove(index);
        let sessions = f64::from(cell.session.requests);
        let variant = [None, Some(Action::Drop), Some(Action::Reject)][usize::from(variant)];
        let rates = [first / sessions, second / sessions];
        let mut world = cell.world(load(&rates), variant, seed);
        let session = Session { habit: habit(kind), ..cell.session };
        world.streams.push(Stream { service: 0, session, load: load(&[others]) });
        world.services[0].accounting = Accounting::Machine;
        let at = Nanos::from_secs;
        world.changes = vec![
            (at(stop), Change::Daemon(false)),
            (at(stop), Change::Speed(0.0)),
            (at(stop + 1), Change::Speed(1.0)),
            (at(stop + 5), if seed % 2 == 0 { Change::Daemon(true) } else { Change::Restart }),
        ];
        prop_assert!(run(world).is_ok_and(|courses| courses.len() == 2));
    }
}

#[test]
fn there_are_fifty_five_cells_with_names_of_their_own() {
    let mut names: Vec<String> = cells(NATURAL).into_iter().map(|cell| cell.name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 55);
    assert!(names.contains(&"event-h2-20x0.5".to_owned()), "{names:?}");
}

#[test]
fn with_one_request_a_connection_goodput_survives_and_without_protection_it_does_not() {
    for name in ["prefork-tls-1x0", "event-h2-1x0", "nginx-clear-1x0"] {
        let compared =
            compare(&cell(name), &[Action::Reject], &Effort::QUICK).expect("a sound world");
        let (_, reject) = &compared.actions[0];
        for (none, reject) in compared.none.at.iter().zip(&reject.at).skip(1) {
            assert!(none.goodput < 0.3, "{name}: {} unprotected", none.goodput);
            assert!(reject.goodput >= 0.95, "{name}: {}", reject.goodput);
            assert_eq!((reject.alarms, reject.releases), (1, 0), "{name}");
        }
        assert_eq!(reject.calm.1, 0, "{name}: refused at 0.9");
    }
}

/// A dropped SYN comes back for 7 s. Two seconds after the crowd is gone, responses are those of a
/// server at 0.9 of its capacity all the same.
#[test]
fn the_repeated_syns_of_a_crowd_that_is_gone_make_nobody_wait() {
    for name in ["prefork-clear-1x0", "event-clear-1x0", "nginx-clear-1x0"] {
        let compared =
            compare(&cell(name), &[Action::Drop], &Effort::QUICK).expect("a sound world");
        let (_, drop) = &compared.actions[0];
        for at in &drop.at[1..] {
            assert!(at.recovery_s[0] <= 2.0, "{name}: {:?}", at.recovery_s);
            assert!(at.recovery_s[1] >= 4.0, "{name}: they do come back, {:?}", at.recovery_s);
            assert!(at.goodput >= 0.9, "{name}: {}", at.goodput);
        }
    }
}

/// The same seed gives the same work to the protected and the unprotected server, and the same
/// result twice.
#[test]
fn one_seed_gives_one_result() {
    let row = table().into_iter().find(|row| row.name == "two-services").expect("a known name");
    let told = |variant| format!("{:?}", run(row.world(variant, 3)).expect("a sound world"));
    assert!(told(Some(Action::Drop)) == told(Some(Action::Drop)));
    let began = |variant| run(row.world(variant, 3)).expect("sound")[0].report.phases[1].began;
    assert_eq!(began(None), began(Some(Action::Reject)));
}

/// Two seconds without progress, and slow dependencies with room for them, refuse nobody on Node and
/// nginx; idle connections, uploads and the neighbour's overload nobody anywhere.
#[test]
fn what_is_no_overload_refuses_nobody() {
    let calm = [
        "pause-node",
        "slow-wait-event",
        "slow-upstream-nginx",
        "idle-prefork-defer",
        "idle-prefork-5",
        "idle-event-15",
        "idle-nginx-20",
        "upload-prefork-10",
        "upload-event-100",
        "two-services",
    ];
    for row in table().into_iter().filter(|row| calm.contains(&row.name)) {
        let course = run(row.world(Some(Action::Reject), 1)).expect(row.name).remove(0);
        let refused: u64 = course.report.phases.iter().map(|phase| phase.refused).sum();
        assert_eq!(refused, 0, "{}", row.name);
    }
}
