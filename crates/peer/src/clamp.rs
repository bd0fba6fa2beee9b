// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a remote signal may do to a limit, whatever the controller makes of it.
//!
//! - Without a valid report nothing becomes tighter than it was; when there was none for
//!   [`RELEASE_AFTER`], everything passes.
//! - With one, a limit falls by at most half within an [`INTERVAL`], and never below the floor. A
//!   limit that was not there begins at half of what passed lately.

use tidegate_model::limits::{BucketLimits, ServiceLimits, Why};
use tidegate_units::{Nanos, Rate};

/// A limit is halved at most once in this time.
pub const INTERVAL: Nanos = Nanos::SECOND;
/// Without a valid report for this long, limits have no ground any more. The lease in the kernel
/// begins to open after the same time.
pub const RELEASE_AFTER: Nanos = Nanos::from_secs(3);

/// The limiter of one back-end.
#[derive(Clone, Debug)]
pub struct Clamp {
    floor: Rate,
    /// What was let through last.
    last: ServiceLimits,
    /// What a limit may not fall below half of until the interval is over, and since when.
    base: ServiceLimits,
    since: Option<Nanos>,
    valid_at: Option<Nanos>,
}

/// What the limiter has to know of a tick.
#[derive(Clone, Copy, Debug)]
pub struct Ground {
    /// The time of the tick.
    pub now: Nanos,
    /// Whether a valid report is behind it.
    pub valid: bool,
    /// What passed lately, per second: where a limit begins that was not there.
    pub passed: Rate,
    /// Connections that wait now: likewise.
    pub waiting: u64,
}

impl Clamp {
    /// A limiter that lets nothing fall below `floor`.
    #[must_use]
    pub fn new(floor: Rate) -> Self {
        let none = ServiceLimits::default();
        Self { floor, last: none.clone(), base: none, since: None, valid_at: None }
    }

    /// What remains of the limits that a controller wants.
    pub fn clamp(&mut self, wanted: ServiceLimits, ground: Ground) -> ServiceLimits {
        let limits = if ground.valid {
            self.valid_at = Some(ground.now);
            self.lower(wanted, ground)
        } else if self.lost(ground.now) {
            released(&wanted, ground.now)
        } else {
            keep(wanted, &self.last)
        };
        self.last = limits.clone();
        limits
    }

    /// Whether there was no valid report for so long that everything passes.
    #[must_use]
    pub fn lost(&self, now: Nanos) -> bool {
        self.valid_at.is_none_or(|at| now.since(at) >= RELEASE_AFTER)
    }

    fn lower(&mut self, mut wanted: ServiceLimits, ground: Ground) -> ServiceLimits {
        if self.since.is_none_or(|at| ground.now.since(at) >= INTERVAL) {
            self.since = Some(ground.now);
            self.base = self.last.clone();
        }
        let (floor, passed) = (self.floor, ground.passed);
        let not_below = |limit: Option<Rate>, base: Option<Rate>| {
            let least = half(base.unwrap_or(passed)).max(floor.get());
            limit.map(|limit| Rate::per_second(limit.get().max(least)))
        };
        wanted.rate = not_below(wanted.rate, self.base.rate);
        let waiting_base = self.base.waiting_max.unwrap_or(ground.waiting);
        wanted.waiting_max = wanted.waiting_max.map(|max| max.max(waiting_base.div_ceil(2)).max(1));
        for (index, bucket) in wanted.buckets.iter_mut().enumerate() {
            let base = self.base.buckets.get(index).and_then(|bucket| bucket.rate);
            bucket.rate = not_below(bucket.rate, base);
        }
        // The accept queue that the kernel can read in line is not the back-end's.
        wanted.accept_queue_max_q10 = 0;
        wanted
    }
}

fn half(rate: Rate) -> f64 {
    rate.get() / 2.0
}

/// Nothing tighter than before.
fn keep(mut wanted: ServiceLimits, before: &ServiceLimits) -> ServiceLimits {
    wanted.rate = looser(wanted.rate, before.rate);
    wanted.waiting_max = match (wanted.waiting_max, before.waiting_max) {
        (Some(now), Some(then)) => Some(now.max(then)),
        _ => None,
    };
    wanted.accept_queue_max_q10 = 0;
    for (index, bucket) in wanted.buckets.iter_mut().enumerate() {
        let then = before.buckets.get(index).and_then(|bucket| bucket.rate);
        bucket.rate = looser(bucket.rate, then);
    }
    wanted
}

fn looser(now: Option<Rate>, then: Option<Rate>) -> Option<Rate> {
    match (now, then) {
        (Some(now), Some(then)) => Some(if now < then { then } else { now }),
        _ => None,
    }
}

fn released(wanted: &ServiceLimits, now: Nanos) -> ServiceLimits {
    let text = "no valid report of the back-end: everything passes";
    let why = Why { shedding: false, since: now, alarmed: Vec::new(), text: text.into() };
    let open =
        |bucket: &BucketLimits| BucketLimits { rate: None, why: why.clone(), ..bucket.clone() };
    ServiceLimits {
        burst: wanted.burst,
        reserve: wanted.reserve,
        buckets: wanted.buckets.iter().map(open).collect(),
        why: why.clone(),
        ..ServiceLimits::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(rate: Option<f64>, waiting_max: Option<u64>) -> ServiceLimits {
        let rate = rate.map(Rate::per_second);
        let bucket = BucketLimits { rate, burst: 5, ..BucketLimits::default() };
        ServiceLimits { rate, burst: 20, waiting_max, buckets: vec![bucket], ..Default::default() }
    }

    fn at(ms: u64, valid: bool) -> Ground {
        let now = Nanos::from_millis(ms);
        Ground { now, valid, passed: Rate::per_second(1000.0), waiting: 100 }
    }

    fn rates(limits: &ServiceLimits) -> [Option<f64>; 2] {
        [limits.rate, limits.buckets[0].rate].map(|rate| rate.map(Rate::get))
    }

    #[test]
    fn a_limit_falls_by_half_in_an_interval_and_never_below_the_floor() {
        let mut clamp = Clamp::new(Rate::per_second(10.0));
        let mut seen = Vec::new();
        for tick in 0..120 {
            let limits = clamp.clamp(limits(Some(0.0), Some(0)), at(100 * tick, true));
            seen.push((rates(&limits)[0].unwrap(), limits.waiting_max.unwrap()));
            assert_eq!(rates(&limits)[0], rates(&limits)[1], "buckets as the service");
        }
        let each_second: Vec<f64> = seen.iter().step_by(10).map(|(rate, _)| *rate).collect();
        assert_eq!(each_second[..6], [500.0, 250.0, 125.0, 62.5, 31.25, 15.625]);
        assert_eq!(each_second[7..], [10.0; 5], "the floor");
        assert!(seen.chunks(10).all(|second| second.iter().all(|tick| *tick == second[0])));
        assert_eq!(seen.last().unwrap().1, 1, "one connection may always wait");
    }

    #[test]
    fn without_a_valid_report_nothing_tightens_and_after_three_seconds_all_passes() {
        let mut clamp = Clamp::new(Rate::per_second(1.0));
        let held = clamp.clamp(limits(Some(600.0), Some(80)), at(0, true));
        assert_eq!(rates(&held), [Some(600.0); 2]);
        for ms in (100..3_000).step_by(100) {
            let now = clamp.clamp(limits(Some(5.0), Some(1)), at(ms, false));
            assert_eq!((rates(&now), now.waiting_max), ([Some(600.0); 2], Some(80)), "{ms} ms");
        }
        let looser = clamp.clamp(limits(Some(700.0), None), at(2_999, false));
        assert_eq!((rates(&looser), looser.waiting_max), ([Some(700.0); 2], None));
        let open = clamp.clamp(limits(Some(5.0), Some(1)), at(3_000, false));
        assert_eq!((rates(&open), open.waiting_max), ([None; 2], None));
        assert!(clamp.lost(Nanos::from_secs(4)));
        let back = clamp.clamp(limits(Some(5.0), Some(1)), at(4_000, true));
        assert_eq!(rates(&back), [Some(500.0); 2], "begins at half of what passes");
    }

    #[test]
    fn before_the_first_report_everything_passes() {
        let mut clamp = Clamp::new(Rate::per_second(1.0));
        let open = clamp.clamp(limits(Some(5.0), Some(1)), at(0, false));
        assert_eq!((rates(&open), open.waiting_max), ([None; 2], None));
    }

    #[test]
    fn what_rises_rises_at_once() {
        let mut clamp = Clamp::new(Rate::per_second(1.0));
        clamp.clamp(limits(Some(600.0), None), at(0, true));
        let risen = clamp.clamp(limits(Some(9_000.0), None), at(100, true));
        assert_eq!(rates(&risen), [Some(9_000.0); 2]);
        assert_eq!(rates(&clamp.clamp(limits(None, None), at(200, true))), [None; 2]);
    }
}
