// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a remote signal may do to a limit, whatever the controller makes of it.
//!
//! - Without a valid report nothing becomes tighter than it was; when there was none for
//!   [`RELEASE_AFTER`], everything passes.
//! - With one, a limit falls by at most half within an [`INTERVAL`], and never below its minimum rate. A
//!   limit that was not there begins at half of what passed lately, in its own unit: connections
//!   for the service, requests for a bucket. Where that is not known it does not begin.
//! - What an operator set by hand, a fixed rate or a ceiling, is no matter of reports: it holds
//!   with them and without.

use super::bounds::{Bounds, Operator};
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
    operator: Operator,
    /// What was let through last, without what is the operator's own.
    last: ServiceLimits,
    /// What a limit may not fall below half of until the interval is over, and since when.
    base: ServiceLimits,
    since: Option<Nanos>,
    valid_at: Option<Nanos>,
}

/// What the limits of a tick rest on.
#[derive(Clone, Copy, Debug)]
pub struct Basis<'a> {
    /// The time of the tick.
    pub now: Nanos,
    /// Whether a valid report is behind it.
    pub valid: bool,
    /// Connections that passed lately, per second: where a limit of the service begins that was
    /// not there. `None`: not known.
    pub passed: Option<Rate>,
    /// Requests of each bucket that passed lately, per second: likewise.
    pub requests: &'a [Option<Rate>],
    /// Connections that wait now: likewise.
    pub waiting: u64,
}

impl Clamp {
    /// A limiter of which an operator said this.
    #[must_use]
    pub fn new(operator: Operator) -> Self {
        let none = ServiceLimits::default();
        Self { operator, last: none.clone(), base: none, since: None, valid_at: None }
    }

    /// What remains of the limits that a controller wants.
    pub fn clamp(&mut self, wanted: &ServiceLimits, basis: Basis<'_>) -> ServiceLimits {
        let limits = if basis.valid {
            self.valid_at = Some(basis.now);
            self.lower(self.reported(wanted), basis)
        } else if self.lost(basis.now) {
            self.released(wanted, basis.now)
        } else {
            keep(self.reported(wanted), &self.last)
        };
        self.last = limits.clone();
        self.with_own(limits, wanted)
    }

    /// Whether there was no valid report for so long that everything passes.
    #[must_use]
    pub fn lost(&self, now: Nanos) -> bool {
        self.valid_at.is_none_or(|at| now.since(at) >= RELEASE_AFTER)
    }

    fn reported(&self, wanted: &ServiceLimits) -> ServiceLimits {
        let mut limits = wanted.clone();
        limits.rate = self.operator.service.reported(wanted.rate);
        for (index, bucket) in limits.buckets.iter_mut().enumerate() {
            bucket.rate = self.operator.bucket(index).reported(bucket.rate);
        }
        limits
    }

    fn with_own(&self, mut limits: ServiceLimits, wanted: &ServiceLimits) -> ServiceLimits {
        limits.rate = self.operator.service.with_own(limits.rate, wanted.rate);
        let buckets = limits.buckets.iter_mut().zip(&wanted.buckets).enumerate();
        for (index, (bucket, wanted)) in buckets {
            bucket.rate = self.operator.bucket(index).with_own(bucket.rate, wanted.rate);
        }
        limits
    }

    fn lower(&mut self, mut wanted: ServiceLimits, basis: Basis<'_>) -> ServiceLimits {
        if self.since.is_none_or(|at| basis.now.since(at) >= INTERVAL) {
            self.since = Some(basis.now);
            self.base = self.last.clone();
        }
        self.begin(&basis, wanted.buckets.len());
        wanted.rate = self.operator.service.lowered(wanted.rate, self.base.rate);
        let waiting_base = self.base.waiting_max.unwrap_or(basis.waiting);
        let least = waiting_base.div_ceil(2).max(1);
        if wanted.waiting_max.is_some_and(|max| max < least) {
            wanted.plain_waiting();
        }
        wanted.waiting_max = wanted.waiting_max.map(|max| max.max(least));
        for (index, bucket) in wanted.buckets.iter_mut().enumerate() {
            let base = self.base.buckets.get(index).and_then(|bucket| bucket.rate);
            bucket.rate = self.operator.bucket(index).lowered(bucket.rate, base);
        }
        // The accept queue that the kernel can read in line is not the back-end's.
        wanted.accept_queue_max_q10 = 0;
        wanted
    }

    /// Where limits begin that are not there: it stays the base of the interval, because what
    /// passes falls with them.
    fn begin(&mut self, basis: &Basis<'_>, buckets: usize) {
        raise(&mut self.base.rate, self.last.rate, basis.passed);
        if self.last.waiting_max.is_none() {
            let base = self.base.waiting_max.unwrap_or(0);
            self.base.waiting_max = Some(base.max(basis.waiting));
        }
        self.base.buckets.resize_with(buckets, BucketLimits::default);
        for (index, base) in self.base.buckets.iter_mut().enumerate() {
            let last = self.last.buckets.get(index).and_then(|bucket| bucket.rate);
            let passed = basis.requests.get(index).copied().flatten();
            raise(&mut base.rate, last, passed);
        }
    }

    fn released(&self, wanted: &ServiceLimits, now: Nanos) -> ServiceLimits {
        let why = |bounds: Bounds, rate: Option<Rate>| {
            let passes = bounds.with_own(None, rate).map_or_else(
                || "everything passes".to_owned(),
                |own| format!("up to {own} pass, as set by hand"),
            );
            let text = format!("no valid report of the back-end: {passes}");
            Why { shedding: false, since: now, alarmed: Vec::new(), cause: None, text }
        };
        let open = |(index, bucket): (usize, &BucketLimits)| BucketLimits {
            rate: None,
            why: why(self.operator.bucket(index), bucket.rate),
            ..bucket.clone()
        };
        ServiceLimits {
            burst: wanted.burst,
            reserve: wanted.reserve,
            buckets: wanted.buckets.iter().enumerate().map(open).collect(),
            why: why(self.operator.service, wanted.rate),
            ..ServiceLimits::default()
        }
    }
}

/// Where there was no limit in the tick before, at least what passes now is the base.
fn raise(base: &mut Option<Rate>, last: Option<Rate>, passed: Option<Rate>) {
    if last.is_none() && base.is_none_or(|base| passed.is_some_and(|passed| base < passed)) {
        *base = passed;
    }
}

/// Nothing tighter than before.
fn keep(mut wanted: ServiceLimits, before: &ServiceLimits) -> ServiceLimits {
    wanted.no_tighter_than(before);
    wanted.accept_queue_max_q10 = 0;
    for (index, bucket) in wanted.buckets.iter_mut().enumerate() {
        bucket.no_tighter_than(before.buckets.get(index));
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(rate: Option<f64>, waiting_max: Option<u64>) -> ServiceLimits {
        let rate = rate.map(Rate::per_second);
        let bucket = BucketLimits { rate, burst: 5, ..BucketLimits::default() };
        ServiceLimits { rate, burst: 20, waiting_max, buckets: vec![bucket], ..Default::default() }
    }

    fn clamp(min_rate: f64, own: Option<f64>) -> Clamp {
        let own = own.map(Rate::per_second);
        let bounds = Bounds { min_rate: Rate::per_second(min_rate), own, ..Bounds::default() };
        Clamp::new(Operator { service: bounds, buckets: vec![bounds] })
    }

    /// A tick, and what passes then, per second.
    struct At {
        ms: u64,
        valid: bool,
        passed: Option<f64>,
        requests: Option<f64>,
    }

    impl At {
        fn clamp(&self, clamp: &mut Clamp, wanted: &ServiceLimits) -> ServiceLimits {
            let basis = Basis {
                now: Nanos::from_millis(self.ms),
                valid: self.valid,
                passed: self.passed.map(Rate::per_second),
                requests: &[self.requests.map(Rate::per_second)],
                waiting: 100,
            };
            clamp.clamp(wanted, basis)
        }
    }

    fn at(ms: u64, valid: bool) -> At {
        At { ms, valid, passed: Some(1000.0), requests: Some(1000.0) }
    }

    fn rates(limits: &ServiceLimits) -> [Option<f64>; 2] {
        [limits.rate, limits.buckets[0].rate].map(|rate| rate.map(Rate::get))
    }

    #[test]
    fn a_limit_falls_by_half_in_an_interval_and_never_below_the_floor() {
        let mut clamp = clamp(10.0, None);
        let mut seen = Vec::new();
        for tick in 0..120 {
            let limits = at(100 * tick, true).clamp(&mut clamp, &limits(Some(0.0), Some(0)));
            seen.push((rates(&limits)[0].unwrap(), limits.waiting_max.unwrap()));
            assert_eq!(rates(&limits)[0], rates(&limits)[1], "buckets as the service");
        }
        let each_second: Vec<f64> = seen.iter().step_by(10).map(|(rate, _)| *rate).collect();
        assert_eq!(each_second[..6], [500.0, 250.0, 125.0, 62.5, 31.25, 15.625]);
        assert_eq!(each_second[7..], [10.0; 5], "the minimum rate");
        assert!(seen.chunks(10).all(|second| second.iter().all(|tick| *tick == second[0])));
        assert_eq!(seen.last().unwrap().1, 1, "one connection may always wait");
    }

    /// What passes falls with the limit, and is the base of nothing more in the same interval.
    #[test]
    fn a_limit_begins_at_half_of_what_passed_in_its_own_unit() {
        let mut clamp = clamp(1.0, None);
        for (ms, passed, requests) in [(0, 20.0, 1000.0), (100, 18.0, 900.0), (900, 11.0, 520.0)] {
            let at = At { passed: Some(passed), requests: Some(requests), ..at(ms, true) };
            let begun = at.clamp(&mut clamp, &limits(Some(0.0), None));
            assert_eq!(rates(&begun), [Some(10.0), Some(500.0)], "{ms} ms");
        }
        // It ends and comes back in the same interval: not below what passes meanwhile.
        at(920, true).clamp(&mut clamp, &limits(None, None));
        let back = at(940, true).clamp(&mut clamp, &limits(Some(0.0), None));
        assert_eq!(rates(&back), [Some(500.0); 2]);
    }

    #[test]
    fn what_is_not_known_to_pass_gives_no_limit_to_begin_with() {
        let mut clamp = clamp(1.0, None);
        let blind = At { passed: None, requests: None, ..at(0, true) };
        assert_eq!(rates(&blind.clamp(&mut clamp, &limits(Some(5.0), None))), [None; 2]);
        let one = At { requests: None, ..at(100, true) };
        let begun = one.clamp(&mut clamp, &limits(Some(5.0), None));
        assert_eq!(rates(&begun), [Some(500.0), None]);
    }

    /// 300/s and 5/s, below and above the minimum rate: what an operator set himself is neither lifted nor
    /// lowered, whatever is reported.
    #[test]
    fn what_was_set_by_hand_holds_with_reports_and_without() {
        for own in [300.0, 5.0] {
            let mut clamp = clamp(10.0, Some(own));
            for (ms, valid) in
                [(0, false), (100, true), (1_200, true), (2_000, false), (9_000, false)]
            {
                let held = at(ms, valid).clamp(&mut clamp, &limits(Some(own), None));
                assert_eq!(rates(&held), [Some(own); 2], "{ms} ms, valid: {valid}");
            }
            let texts = at(9_100, false).clamp(&mut clamp, &limits(Some(own), None));
            let texts = [&texts.why.text, &texts.buckets[0].why.text];
            assert!(texts.iter().all(|text| text.contains("as set by hand")), "{texts:?}");
        }
    }

    #[test]
    fn below_a_ceiling_reports_lower_and_without_them_the_ceiling_is_left() {
        let mut clamp = clamp(10.0, Some(800.0));
        let course = [
            (0, true, Some(800.0), Some(800.0)),
            // From the ceiling down it begins as where no limit was.
            (100, true, Some(20.0), Some(500.0)),
            (1_000, true, Some(20.0), Some(250.0)),
            (2_000, true, Some(20.0), Some(125.0)),
            (2_100, false, Some(20.0), Some(125.0)),
            (5_100, false, Some(20.0), Some(800.0)),
            (5_200, true, None, None),
        ];
        for (ms, valid, wanted, expected) in course {
            let now = at(ms, valid).clamp(&mut clamp, &limits(wanted, None));
            assert_eq!(rates(&now), [expected; 2], "{ms} ms");
        }
    }

    #[test]
    fn without_a_valid_report_nothing_tightens_and_after_three_seconds_all_passes() {
        let mut clamp = clamp(1.0, None);
        let held = at(0, true).clamp(&mut clamp, &limits(Some(600.0), Some(80)));
        assert_eq!(rates(&held), [Some(600.0); 2]);
        for ms in (100..3_000).step_by(100) {
            let now = at(ms, false).clamp(&mut clamp, &limits(Some(5.0), Some(1)));
            assert_eq!((rates(&now), now.waiting_max), ([Some(600.0); 2], Some(80)), "{ms} ms");
        }
        let looser = at(2_999, false).clamp(&mut clamp, &limits(Some(700.0), None));
        assert_eq!((rates(&looser), looser.waiting_max), ([Some(700.0); 2], None));
        let open = at(3_000, false).clamp(&mut clamp, &limits(Some(5.0), Some(1)));
        assert_eq!((rates(&open), open.waiting_max), ([None; 2], None));
        assert!(open.why.text.ends_with("everything passes"), "{}", open.why.text);
        assert!(clamp.lost(Nanos::from_secs(4)));
        let back = at(4_000, true).clamp(&mut clamp, &limits(Some(5.0), Some(1)));
        assert_eq!(rates(&back), [Some(500.0); 2], "begins at half of what passes");
    }

    #[test]
    fn before_the_first_report_everything_passes() {
        let open = at(0, false).clamp(&mut clamp(1.0, None), &limits(Some(5.0), Some(1)));
        assert_eq!((rates(&open), open.waiting_max), ([None; 2], None));
    }

    #[test]
    fn what_rises_rises_at_once() {
        let mut clamp = clamp(1.0, None);
        at(0, true).clamp(&mut clamp, &limits(Some(600.0), None));
        let risen = at(100, true).clamp(&mut clamp, &limits(Some(9_000.0), None));
        assert_eq!(rates(&risen), [Some(9_000.0); 2]);
        assert_eq!(rates(&at(200, true).clamp(&mut clamp, &limits(None, None))), [None; 2]);
    }
}
