// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the lab's tests share.

#![allow(dead_code, reason = "no file of tests uses all of it")]

use std::sync::{Mutex, MutexGuard, PoisonError};
use tidegate_lab::{Arrive, Helper, Lab, LabOptions, LoadPlan, LoadReport, Server, Stream};
use tidegate_units::{Clock, MonotonicClock, Nanos};
use tidegate_workload::Profile;

/// Where the helper program lies.
pub(crate) fn helper() -> Helper {
    Helper::program(env!("CARGO_BIN_EXE_tidegate-load"))
}

/// Tests of one file run one after the other: they share two CPUs.
pub(crate) fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn lab() -> Lab {
    Lab::new(LabOptions::new(helper())).expect("a lab (needs root, cgroup2 and iproute2)")
}

/// Waits until a condition holds, at most `seconds`.
pub(crate) fn eventually(seconds: u64, mut condition: impl FnMut() -> bool) -> bool {
    let end = MonotonicClock.now() + Nanos::from_secs(seconds);
    while MonotonicClock.now() < end {
        if condition() {
            return true;
        }
        std::thread::yield_now();
    }
    condition()
}

/// `rate` arrivals per second at equal distances.
pub(crate) fn steady(rate: f64, millis: u64) -> Arrive {
    Arrive::constant(Profile::constant(Nanos::from_millis(millis), rate))
}

/// Runs streams with a time-out in milliseconds. Lateness is no matter here: a test proves what is
/// counted, on machines that may be busy.
pub(crate) fn run(lab: &Lab, streams: Vec<Stream>, timeout_ms: u64) -> LoadReport {
    let plan = LoadPlan {
        streams,
        timeout: Nanos::from_millis(timeout_ms),
        lag_bound: Nanos::from_secs(5),
        ..LoadPlan::default()
    };
    let report = lab.run_load(&plan, &mut |_| {}).expect("a load");
    assert!(report.void.is_empty(), "{:?}", report.void);
    for stream in &report.streams {
        let c = stream.total.counts;
        assert_eq!(c.offered, c.answered + c.failed, "{c:?}");
        let causes = c.refused_connect
            + c.refused_http
            + c.other_status
            + c.no_handshake
            + c.no_answer
            + c.broken
            + c.errors;
        assert_eq!(c.failed, causes, "{c:?}");
    }
    report
}

/// A few requests over both families; all must be answered well.
pub(crate) fn answers(lab: &Lab, server: &Server) {
    let streams =
        vec![server.stream("v4", steady(20.0, 1_000)), server.stream_v6("v6", steady(20.0, 1_000))];
    let report = run(lab, streams, 8_000);
    for stream in report.streams {
        assert_eq!(stream.total.counts.answered, 20, "{}: {:?}", stream.name, stream.total);
    }
}
