// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the fuzz target of the kept state does with its bytes. Also run, bounded, by
//! crates/daemon/tests/fuzz_smoke.rs.

use serde_json::Value;
use tidegate_control::crowd::{Crowd, CrowdTick, Took};
use tidegate_control::{Controller, DefaultController, DefaultSpec, Mode, RATE_CEILING};
use tidegate_daemon::state::{FORMAT, Here, LEARNED_AGE_MAX, State, decode, encode};
use tidegate_model::RATE_MIN;
use tidegate_model::limits::ServiceLimits;
use tidegate_model::signals::{ConnectionCounts, Counts, Reading, Signals, Times};
use tidegate_units::Nanos;

/// Ticks of a controller after it was restored: calm, then an overload.
const CALM: u64 = 20;
const TICKS: u64 = 60;
const TICK: Nanos = Nanos::from_millis(100);

/// Any bytes as the file, and as what stands behind a first line that is right.
pub(crate) fn state(bytes: &[u8]) {
    read(bytes);
    read(&headed(bytes));
    if let Ok(value) = serde_json::from_slice(bytes) {
        crowd(&value, Nanos::SECOND);
        learn(value, Nanos::SECOND);
    }
}

/// The first line that belongs to this body: FNV-1a, as docs/decisions/0010-kept-state.md has it.
fn headed(body: &[u8]) -> Vec<u8> {
    let sum = body.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let head = format!("tidegate-state {FORMAT} {} {sum:016x}\n", body.len());
    [head.as_bytes(), body].concat()
}

/// A state, or a reason to begin anew; what was read can be written, and controllers live with it.
fn read(bytes: &[u8]) {
    let here = Here { boot: "b1".into(), now: Nanos::from_secs(1000) };
    let Ok((state, age)) = decode(bytes, &here) else { return };
    assert!(age <= LEARNED_AGE_MAX && state.boot == here.boot);
    // the last digit of a number may be another one then
    if let Ok(again) = encode(&state) {
        let sizes = |(state, age): (State, Nanos)| (state.services.len(), state.crowds.len(), age);
        let (services, crowds) = (state.services.len(), state.crowds.len());
        assert_eq!(decode(&again, &here).map(sizes), Ok((services, crowds, age)));
    }
    state.crowds.iter().for_each(|kept| crowd(&kept.detector, age));
    for kept in state.services.into_values() {
        if let Some(value) = kept.controller {
            learn(value, age);
        }
    }
}

/// The detector of a crowd lives with it, and its limits are some.
fn crowd(value: &Value, age: Nanos) {
    let Some(mut crowd) = Crowd::take(value, age) else { return };
    for tick in 0..TICKS {
        let said = crowd.tick(&busy(&took(tick >= CALM)), true);
        assert!(said.slow.is_finite() && crowd.demand().is_finite());
        if let Some(limit) = said.limit {
            assert!(limit.rate > 0.0 && limit.rate.is_finite() && limit.burst >= 2.0, "{limit:?}");
        }
    }
}

/// What was completed in a tick at a destination: as fast as usual, or four times as slow.
pub(crate) fn took(slow: bool) -> [Took; 1] {
    [Took { class: 4, bucket: if slow { 44 } else { 36 }, count: 15 }]
}

/// A tick at a destination to which five times as many come as complete.
pub(crate) fn busy(took: &[Took]) -> CrowdTick<'_> {
    CrowdTick {
        period: Nanos::from_millis(500),
        took,
        first_attempts: 75.0,
        connected: 75,
        started: 75,
        completed: 15,
        in_flight: 20,
        refused: 50.0,
        ..CrowdTick::default()
    }
}

/// A controller takes all of it or nothing, and its limits are what limits may be.
fn learn(value: Value, age: Nanos) {
    let mut controller = DefaultController::new(DefaultSpec::default());
    let taken = controller.restore(value, age);
    let limits = run(&mut controller);
    if !taken {
        assert_eq!(limits, run(&mut DefaultController::new(DefaultSpec::default())));
    }
}

fn run(controller: &mut DefaultController) -> Vec<ServiceLimits> {
    let limits: Vec<ServiceLimits> =
        (0..TICKS).map(|n| controller.tick(&signals(n, CALM), Mode::Enforce)).collect();
    for rate in limits.iter().filter_map(|limits| limits.rate) {
        let rate = rate.get();
        assert!((RATE_MIN..=RATE_CEILING).contains(&rate), "{rate}/s");
    }
    limits
}

/// What is sensed in one tick: 20 connections that 20 are completed of; after so many calm ticks 52
/// of which 26 are.
pub(crate) fn signals(n: u64, calm: u64) -> Signals {
    let overload = n >= calm;
    let (offered, completed) = if overload { (52, 26) } else { (20, 20) };
    let waiting = if overload { 26 * (n - calm) + 1 } else { 1 };
    let mut s = Signals { now: Nanos(TICK.0 * n), period: TICK, ..Signals::default() };
    let connections = ConnectionCounts {
        replied: offered,
        proved: offered,
        asked: offered,
        answered: completed,
        ended: completed,
        ended_exchanges: completed,
        ..ConnectionCounts::default()
    };
    s.balance.counts = Some(Reading::fresh(Counts {
        offered,
        admitted: offered,
        completed,
        connections: Some(connections),
        ..Counts::default()
    }));
    s.time.waiting = Some(Reading::fresh(waiting));
    let took = Nanos::from_millis(20);
    let times = Times { count: completed, sum: Nanos(took.0 * completed), p50: took, p99: took };
    s.time.first_byte = Some(Reading::fresh(times));
    s
}
