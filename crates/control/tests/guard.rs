// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guard of the default controller while calm: how much may pile up before the loop sees it.

use tidegate_control::{Controller, DefaultController, DefaultSpec, Mode};
use tidegate_model::signals::{Counts, Reading, Signals, Times};
use tidegate_units::{Nanos, Share};

/// A tick of 100 ms of a server that answers 20 in it, in 5 ms each; what is known of its CPU.
fn tick(now: u64, cpu: Option<Reading<Share>>) -> Signals {
    let counts = Counts { offered: 20, admitted: 20, completed: 20, ..Counts::default() };
    let took = Nanos::from_millis(5);
    let times = Times { count: 20, sum: Nanos(took.0 * 20), p50: took, p99: took };
    let mut signals = Signals {
        now: Nanos::from_millis(100 * now),
        period: Nanos::from_millis(100),
        ..Signals::default()
    };
    signals.balance.counts = Some(Reading::fresh(counts));
    signals.time.waiting = Some(Reading::fresh(1));
    signals.time.first_byte = Some(Reading::fresh(times));
    signals.resource.cpu = cpu;
    signals
}

/// The guard after 20 s in which the CPU was as given.
fn guard_after(controller: &mut DefaultController, cpu: Option<Reading<Share>>) -> Option<u64> {
    let run = (1..=200).map(|now| controller.tick(&tick(now, cpu), Mode::Enforce));
    let last = run.last().expect("200 ticks");
    assert!(last.rate.is_none() && !last.why.shedding, "calm: {}", last.why.text);
    last.waiting_max
}

#[test]
fn the_cpu_narrows_the_guard_to_what_the_server_can_reach() {
    let guard = |cpu: f64| {
        let mut controller = DefaultController::new(DefaultSpec::default());
        let cpu = Some(Reading::fresh(Share::new(cpu)));
        guard_after(&mut controller, cpu).expect("a guard")
    };
    // 200/s at a quarter of the CPU: 800/s, of which 0.28 s are 224
    assert_eq!(guard(0.25), 224 + 1);
    // at 0.95 it is 59: the least is 128
    assert_eq!(guard(0.95), 128 + 1);
    // a server that mostly waits could reach anything: 256, as without a CPU
    assert_eq!(guard(0.05), 256 + 1);
}

/// Missing and stale signals never tighten, also not by what was learned from them before.
#[test]
fn a_cpu_that_is_not_known_any_more_does_not_narrow() {
    let stale = Reading { value: Share::new(0.5), age: Nanos::from_secs(5) };
    for unknown in [None, Some(stale)] {
        let mut controller = DefaultController::new(DefaultSpec::default());
        let known = Some(Reading::fresh(Share::new(0.25)));
        assert_eq!(guard_after(&mut controller, known), Some(225));
        assert_eq!(guard_after(&mut controller, unknown), Some(257), "{unknown:?}");
    }
}

/// Ten long polls a second, each answered after 90 s of silence, which the dataplane follows for 60:
/// what goes out of sight is not lost, and sheds nothing.
#[test]
fn polls_that_outlast_the_table_are_not_lost() {
    let mut controller = DefaultController::new(DefaultSpec::default());
    for now in 1..=6000 {
        let (offered, forgotten) = (1, u64::from(now > 600));
        let counts = Counts { offered, admitted: 1, unseen: forgotten, ..Counts::default() };
        let mut signals = Signals {
            now: Nanos::from_millis(100 * now),
            period: Nanos::from_millis(100),
            ..Signals::default()
        };
        signals.balance.counts = Some(Reading::fresh(counts));
        signals.time.waiting = Some(Reading::fresh(now.min(600)));
        signals.time.first_byte = Some(Reading::fresh(Times::default()));
        let limits = controller.tick(&signals, Mode::Enforce);
        assert!(!limits.why.shedding, "after {now} ticks: {}", limits.why.text);
        assert!(limits.rate.is_none() && limits.waiting_max.is_none());
    }
}

/// Past the guard, the ceiling and the accept queue's limit one in ten objectives is admitted, and at
/// most one a second.
#[test]
fn one_in_ten_objectives_is_admitted_calm_or_not() {
    for (objective_ms, least) in
        [(10, 1.0), (100, 1.0), (200, 0.5), (1000, 0.1), (60_000, 1.0 / 600.0)]
    {
        let spec = DefaultSpec { objective: Nanos::from_millis(objective_ms) };
        let mut controller = DefaultController::new(spec);
        let mut tick = |now: u64, offered: u64, waiting: u64, cpu: f64| {
            let mut signals = tick(now, Some(Reading::fresh(Share::new(cpu))));
            let counts = Counts { offered, admitted: offered, completed: 20, ..Counts::default() };
            signals.balance.counts = Some(Reading::fresh(counts));
            signals.time.waiting = Some(Reading::fresh(waiting));
            controller.tick(&signals, Mode::Enforce)
        };
        let calm = (1..=200).map(|now| tick(now, 20, 1, 0.25)).last().unwrap();
        assert!(!calm.why.shedding && calm.waiting_max.is_some(), "{}", calm.why.text);
        let mut crowd = (201..400).map(|now| tick(now, 60, 40 * (now - 200), 1.0));
        let shed = crowd.find(|limits| limits.why.shedding).expect("an alarm");
        assert!(shed.waiting_max.is_some() && shed.accept_queue_max_q10 > 0);
        for limits in [calm, shed] {
            let rate = limits.min_rate.expect("a least rate").get();
            assert!((rate / least - 1.0).abs() < 1e-9, "{rate} of {least}, {objective_ms} ms");
        }
    }
}
