// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The predictive greedy policy of section 4 of papers/abacus.txt, equations 3 to 16: a reference,
//! not a datapath policy (floating point, hundreds of model runs a period).
//!
//! Time goes in periods of T0. For each period the policy asks: how many excess SYNs are worth
//! dropping, that is, at which number would one more cost more than its rejection? It answers by
//! running the paper's recursive model forward: known retransmissions come back, the new requests
//! of this period are tried one after the other, later ones are not known and left out.
//!
//! As in the paper's own implementation (section 6) assumptions A3 and A4 do not hold: the filter
//! cannot tell new SYNs from repeated ones. It estimates λ(t) as what came less what the model
//! expected back, and drops and rejects across all classes. [`GreedySpec::sees_attempts`] holds A3
//! instead.
//!
//! Where we read the paper:
//! - λ_thresh is the last number *before* the cost rises (equation 16 names the first at which it
//!   has risen, its text the minimum). What is counted against it are the SYNs dropped: up to
//!   A(t) − W(t) at λ(t) = λ_thresh, the rest is rejected.
//! - The window is the period that is decided and S_G after it, so that S_G = T_N sees the last
//!   retransmission.
//! - Equation 7 subtracts all arrivals from the tokens; the consistent form subtracts the accepted
//!   ones. [`Tokens`] chooses.

use super::check::Broken;
use super::filter::{Filter, Verdict};
use super::spec::{Capacity, Cost};
use super::tokens::Bucket;
use tidegate_units::Nanos;

/// Periods of the past that are remembered: the longest wait between two SYNs.
const PAST: usize = 128;
/// Longest window S_G, in periods.
const WINDOW_MAX: usize = 256;
/// Retransmissions of a request, at most.
const STEPS_MAX: usize = 12;
/// Classes Z_0 … Z_N.
const CLASSES: usize = STEPS_MAX + 1;
/// Requests that are tried in one period, at most.
const TRIED_MAX: u32 = 1 << 16;

/// How the model accounts for tokens (equation 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokens {
    /// As printed: W(t) = min((W(t−T0) + T0·r_t − A(t−T0))⁺, W). An overloaded period eats the
    /// tokens of the next.
    Printed,
    /// With the accepted SYNs in place of all: W(t) = min(W(t−T0) + T0·r_t − accepted, W). Tokens
    /// can be used from the period after that in which they came: for a refill once a T0.
    Accepted,
    /// The same for tokens that come continuously: those of a period serve that period.
    Continuous,
}

/// Parameters of [`Greedy`].
#[derive(Clone, Debug, PartialEq)]
pub struct GreedySpec {
    /// Stage one: the token bucket and how it is refilled.
    pub capacity: Capacity,
    /// T0, above 0.
    pub period: Nanos,
    /// T_i in periods: when the i-th retransmission comes, since the first SYN; rising, 1 to 12,
    /// the waits between them at most 127.
    pub schedule: Vec<u16>,
    /// T_conn in periods: when a client gives up.
    pub timeout: u16,
    /// S_G in periods, at most 255.
    pub window: u16,
    /// r and h (h a period of one second; scaled for others). h above 0.
    pub cost: Cost,
    /// Equation 7.
    pub tokens: Tokens,
    /// Whether retransmissions are told apart (assumption A3), by the simulator.
    pub sees_attempts: bool,
    /// Whether the model expects new requests in later periods as well, as many as came on average
    /// (weight 1/8 a period). The paper leaves them out (section 4.3, before equation 12), and so
    /// takes all capacity to come for retransmissions.
    pub expects_new: bool,
}

impl GreedySpec {
    /// Section 6: classic schedule, T0 = 1 s, time-out at 75 s, S_G = 50 s; tokens continuously.
    #[must_use]
    pub fn paper(capacity: Capacity, cost: Cost) -> Self {
        Self {
            capacity,
            period: Nanos::SECOND,
            schedule: vec![3, 9, 21, 45],
            timeout: 75,
            window: 50,
            cost,
            tokens: Tokens::Continuous,
            sees_attempts: false,
            expects_new: false,
        }
    }
}

/// The requests dropped in one period, by class: X_i(t).
type Dropped = [f64; CLASSES];

/// The predictive greedy policy.
#[derive(Clone, Debug)]
pub struct Greedy {
    model: Model,
    bucket: Bucket,
    sees_attempts: bool,
    period_ns: u64,
    /// Number of the current period.
    period: u64,
    /// Drops that are worth it in this period; `None`: nobody asked yet.
    budget: Option<u32>,
    /// W(t), at the beginning of this period.
    tokens: f64,
    /// SYNs of this period: came, dropped; and by class, if they are told apart.
    came: u32,
    dropped: u32,
    dropped_by_class: [u32; CLASSES],
}

impl Greedy {
    /// A fresh policy.
    ///
    /// # Errors
    /// When schedule, window, period or cost are out of range.
    pub fn new(spec: &GreedySpec) -> Result<Self, Broken> {
        let mut bucket = Bucket::new(&spec.capacity);
        Ok(Self {
            model: Model::new(spec)?,
            tokens: bucket.level(0),
            bucket,
            sees_attempts: spec.sees_attempts,
            period_ns: spec.period.0,
            period: 0,
            budget: None,
            came: 0,
            dropped: 0,
            dropped_by_class: [0; CLASSES],
        })
    }

    /// Drops that are worth it in the current period: the excess at λ_thresh.
    pub fn budget(&mut self) -> u32 {
        let tokens = self.tokens;
        *self.budget.get_or_insert_with(|| self.model.excess_at_threshold(tokens))
    }

    /// Closes periods until `period` is the current one.
    fn turn(&mut self, period: u64, at: u64) {
        // whatever was dropped longer ago than the memory is back by now
        let steps = (period - self.period).min(PAST as u64 + 1);
        for _ in 0..steps {
            let seen = self.sees_attempts.then(|| self.dropped_by_class.map(f64::from));
            self.model.close(f64::from(self.came), f64::from(self.dropped), seen);
            (self.came, self.dropped) = (0, 0);
            self.dropped_by_class = [0; CLASSES];
        }
        self.period = period;
        self.tokens = self.bucket.level(at);
        self.budget = None;
    }
}

impl Filter for Greedy {
    fn evaluate(&mut self, now: Nanos, _key: u64, attempt: u8) -> Verdict {
        let period = now.0 / self.period_ns;
        if period > self.period {
            self.turn(period, period * self.period_ns);
        }
        self.came = self.came.saturating_add(1);
        if self.bucket.take(now.0) {
            return Verdict::Admit;
        }
        if self.dropped >= self.budget() {
            return Verdict::Reject;
        }
        self.dropped += 1;
        self.dropped_by_class[usize::from(attempt).min(CLASSES - 1)] += 1;
        Verdict::Drop
    }
}

/// The analytic model of section 4.2.
#[derive(Clone, Debug)]
struct Model {
    /// d_i in periods, i = 0 … N−1.
    waits: Vec<usize>,
    /// h·d_i, i = 0 … N; the last one is h·(T_conn − T_N) + r.
    costs: Vec<f64>,
    /// r.
    reject: f64,
    /// T0·r_t and W, in tokens.
    refill: f64,
    depth: f64,
    window: usize,
    tokens: Tokens,
    /// X_i of past periods: a ring, `past[(now − k) % PAST]` is k periods ago.
    past: Box<[Dropped; PAST]>,
    now: usize,
    /// New requests in each later period; stays 0 if none are expected.
    later: f64,
    /// Weight of a period in that average.
    weight: f64,
}

impl Model {
    fn new(spec: &GreedySpec) -> Result<Self, Broken> {
        let times: Vec<usize> = spec.schedule.iter().map(|t| usize::from(*t)).collect();
        let starts = std::iter::once(0).chain(times.iter().copied());
        let waits: Vec<usize> =
            times.iter().zip(starts).map(|(t, s)| t.saturating_sub(s)).collect();
        let fits = (1..=STEPS_MAX).contains(&waits.len())
            && waits.iter().all(|wait| (1..PAST).contains(wait));
        let last = times.last().copied().unwrap_or(0);
        let timeout = usize::from(spec.timeout);
        let costs_fit = spec.cost.delay > 0.0 && spec.cost.reject >= 0.0;
        if !fits || timeout < last || usize::from(spec.window) >= WINDOW_MAX || !costs_fit {
            return Err(Broken::Spec("a greedy policy with such a schedule, window or cost"));
        }
        if spec.period == Nanos::ZERO {
            return Err(Broken::Spec("a greedy policy with periods of no time"));
        }
        let seconds = spec.period.as_secs_f64();
        let per_period = spec.cost.delay * seconds;
        let mut costs: Vec<f64> = waits.iter().map(|wait| per_period * *wait as f64).collect();
        // d_N = T_conn − ΣT + r/h (text below equation 8): a time-out costs r on top of its wait
        costs.push(per_period * (timeout - last) as f64 + spec.cost.reject);
        Ok(Self {
            waits,
            costs,
            reject: spec.cost.reject,
            refill: spec.capacity.rate.get() * seconds,
            depth: f64::from(spec.capacity.burst),
            window: usize::from(spec.window),
            tokens: spec.tokens,
            past: Box::new([[0.0; CLASSES]; PAST]),
            now: 0,
            later: 0.0,
            weight: if spec.expects_new { 0.125 } else { 0.0 },
        })
    }

    /// Equation 5 for i > 0: A_i(t) = X_{i−1}(t − d_{i−1}), for the period `ahead` of the current
    /// one. `future` has the X_i of the current period and those after it.
    fn returning(&self, class: usize, ahead: usize, future: &[Dropped]) -> f64 {
        let wait = self.waits[class - 1];
        if wait <= ahead {
            return future[ahead - wait][class - 1];
        }
        let back = wait - ahead; // 1 … PAST − 1
        self.past[(self.now + PAST - back) % PAST][class - 1]
    }

    /// SYNs that a period with these tokens can accept.
    fn acceptable(&self, tokens: f64) -> f64 {
        match self.tokens {
            Tokens::Printed | Tokens::Accepted => tokens,
            Tokens::Continuous => tokens + self.refill,
        }
    }

    /// Equation 7: W(t + T0) from W(t) and A(t).
    fn next_tokens(&self, tokens: f64, arrivals: f64) -> f64 {
        let taken = match self.tokens {
            Tokens::Printed => arrivals,
            Tokens::Accepted | Tokens::Continuous => arrivals.min(self.acceptable(tokens)),
        };
        (tokens + self.refill - taken).max(0.0).min(self.depth)
    }

    /// H(t1, t) of equations 12 and 13, if `lambda` new requests are let in in this period and
    /// none after it: Σ_j Σ_i h·d_i·X_i(t1 + j·T0).
    fn holding(&self, lambda: f64, tokens: f64, future: &mut [Dropped]) -> f64 {
        let last = self.waits.len();
        let (mut tokens, mut cost) = (tokens, 0.0);
        for ahead in 0..=self.window {
            let mut by_class = [0.0; CLASSES];
            by_class[0] = if ahead == 0 { lambda } else { self.later };
            for (class, arrivals) in by_class.iter_mut().enumerate().skip(1).take(last) {
                *arrivals = self.returning(class, ahead, future);
            }
            let arrivals: f64 = by_class[..=last].iter().sum(); // equation 3
            // equations 4 and 6: P_d(t) = (1 − W(t)/A(t))⁺, X_i(t) = A_i(t)·P_d(t)
            let excess = (arrivals - self.acceptable(tokens)).max(0.0);
            let share = if excess > 0.0 { excess / arrivals } else { 0.0 };
            for class in 0..=last {
                future[ahead][class] = by_class[class] * share;
                cost += self.costs[class] * future[ahead][class];
            }
            tokens = self.next_tokens(tokens, arrivals);
        }
        cost
    }

    /// Equations 14 to 16: one request more is let in as long as H(t1, t) ≤ H′(t1, t) + r. The
    /// excess A(t) − W(t) at that λ: the SYNs that are worth dropping.
    fn excess_at_threshold(&self, tokens: f64) -> u32 {
        let mut future = [[0.0; CLASSES]; WINDOW_MAX];
        let classes = 1..=self.waits.len();
        let returning: f64 = classes.map(|class| self.returning(class, 0, &future)).sum();
        // as long as there are tokens for all, one more costs nothing
        let free = (self.acceptable(tokens) - returning).max(0.0) as u32;
        let mut lambda = free;
        let mut cost = self.holding(f64::from(lambda), tokens, &mut future);
        for _ in 0..TRIED_MAX {
            let more = self.holding(f64::from(lambda + 1), tokens, &mut future);
            if more > cost + self.reject {
                break;
            }
            (lambda, cost) = (lambda + 1, more);
        }
        (returning + f64::from(lambda) - self.acceptable(tokens)).max(0.0) as u32
    }

    /// The current period is over: `came` SYNs, `dropped` of them dropped. Without `seen` (X_i as
    /// they were) classes are what the model expects: retransmissions as dropped before, the rest
    /// new (equation 3 solved for λ), and all dropped alike (assumption A8).
    fn close(&mut self, came: f64, dropped: f64, seen: Option<Dropped>) {
        let mut by_class = [0.0; CLASSES];
        for (class, arrivals) in by_class.iter_mut().enumerate().skip(1).take(self.waits.len()) {
            *arrivals = self.returning(class, 0, &[]);
        }
        let expected: f64 = by_class.iter().sum();
        by_class[0] = (came - expected).max(0.0);
        self.later += self.weight * (by_class[0] - self.later);
        let all = expected + by_class[0]; // more than came, if fewer came than were expected
        let share = if all > 0.0 { dropped / all } else { 0.0 };
        self.past[self.now] = seen.unwrap_or(by_class.map(|arrivals| arrivals * share));
        self.now = (self.now + 1) % PAST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_units::Rate;

    /// d = (3), T_conn = 10 periods, 2 tokens a period, depth 2, h = 1.
    fn one_step(reject: f64, tokens: Tokens) -> GreedySpec {
        GreedySpec {
            schedule: vec![3],
            timeout: 10,
            window: 10,
            tokens,
            ..GreedySpec::paper(
                Capacity::continuous(Rate::per_second(2.0), 2),
                Cost { reject, delay: 1.0 },
            )
        }
    }

    fn model(spec: &GreedySpec) -> Model {
        Model::new(spec).expect("in range")
    }

    fn holding(model: &Model, lambda: f64, tokens: f64) -> f64 {
        model.holding(lambda, tokens, &mut [[0.0; CLASSES]; WINDOW_MAX])
    }

    /// By hand, r = 5, empty bucket, tokens of a period used from the next: λ requests are all
    /// dropped, 3 each (d_0); three periods on there are 2 tokens, and what is above them waits
    /// d_1 = 10 − 3 and costs r: 12 each.
    #[test]
    fn holding_cost_of_one_step_by_hand() {
        let model = model(&one_step(5.0, Tokens::Accepted));
        for (lambda, cost) in [(0.0, 0.0), (1.0, 3.0), (2.0, 6.0), (3.0, 21.0), (5.0, 51.0)] {
            assert_eq!(holding(&model, lambda, 0.0), cost, "λ = {lambda}");
        }
        // two tokens at once: the same with two requests more
        assert_eq!(holding(&model, 5.0, 2.0), 21.0);
        // an example like the paper's below equation 11: all accepted, no cost
        assert_eq!(holding(&model, 2.0, 2.0), 0.0);
    }

    /// Equation 7 in its forms, by hand: 6 requests, 2 tokens. Printed, the bucket of the next
    /// period is min((2 + 2 − 6)⁺, 2) = 0, otherwise min(2 + 2 − 2, 2) = 2.
    #[test]
    fn equation_7_as_printed_and_consistent() {
        let next = |tokens, w, a| model(&one_step(5.0, tokens)).next_tokens(w, a);
        assert_eq!(next(Tokens::Printed, 2.0, 6.0), 0.0);
        assert_eq!(next(Tokens::Accepted, 2.0, 6.0), 2.0);
        assert_eq!(next(Tokens::Continuous, 2.0, 6.0), 0.0, "4 of the 6 were accepted");
        assert_eq!(next(Tokens::Continuous, 2.0, 1.0), 2.0, "never above W");
        assert_eq!(next(Tokens::Printed, 1.0, 2.0), 1.0);
    }

    /// λ_thresh by hand: a drop that will be served costs 3, one that will not 15. So with r = 5
    /// two are dropped, with r = 2 none, and with r = 3 (not above r) two.
    #[test]
    fn the_threshold_by_hand() {
        for (reject, expected) in [(5.0, 2), (2.0, 0), (3.0, 2), (100.0, 2)] {
            let model = model(&one_step(reject, Tokens::Accepted));
            assert_eq!(model.excess_at_threshold(0.0), expected, "r = {reject}");
            // what a full bucket accepts at once is not excess
            assert_eq!(model.excess_at_threshold(2.0), expected, "r = {reject}, full");
        }
        let continuous = model(&one_step(5.0, Tokens::Continuous));
        // the third period on serves its own 2 tokens and the 2 in the bucket
        assert_eq!(continuous.excess_at_threshold(0.0), 4);
    }

    /// Two classes by hand: waits 1 and 2. Three dropped; one period on 2 tokens for them: P_d =
    /// 1/3, X_1 = 1, which comes two periods later and is served. 3·1 + 1·2 = 5.
    #[test]
    fn equations_4_to_6_over_two_classes_by_hand() {
        let spec = GreedySpec { schedule: vec![1, 3], ..one_step(5.0, Tokens::Accepted) };
        let model = model(&spec);
        let mut future = [[0.0; CLASSES]; WINDOW_MAX];
        let cost = model.holding(3.0, 0.0, &mut future);
        assert!((cost - 5.0).abs() < 1e-12, "{cost}");
        assert_eq!(future[0][0], 3.0);
        assert!((future[1][1] - 1.0).abs() < 1e-12);
        assert_eq!(future[3], [0.0; CLASSES]);
        // S_G = 0: what comes back is not seen, and dropping looks cheap (end of section 4.3)
        let blind = GreedySpec { window: 0, ..spec };
        assert_eq!(Model::new(&blind).expect("in range").holding(9.0, 0.0, &mut future), 9.0);
    }

    /// Retransmissions that are on their way take the tokens: 2 dropped a period ago come back in
    /// two, so only those 2 that come back a period later find room.
    #[test]
    fn known_retransmissions_count() {
        let mut model = model(&one_step(5.0, Tokens::Accepted));
        model.close(2.0, 2.0, None);
        assert_eq!(model.past[0][0], 2.0, "all were new");
        model.close(0.0, 0.0, None);
        model.close(0.0, 0.0, None);
        // they are due now: of 3 SYNs one is new (equation 3), dropped alike (A8)
        assert_eq!(model.returning(1, 0, &[]), 2.0);
        model.close(3.0, 1.5, None);
        assert_eq!(model.past[3][..2], [0.5, 1.0]);
        // told apart, the counts are taken as they are
        let mut seen = [0.0; CLASSES];
        seen[1] = 2.0;
        model.close(7.0, 2.0, Some(seen));
        assert_eq!(model.past[4], seen);
    }

    /// If one new request is expected in each later period, it takes one of the two tokens: of
    /// the requests dropped now only one finds room three periods on.
    #[test]
    fn expected_new_requests_take_tokens() {
        let mut model = model(&GreedySpec { expects_new: true, ..one_step(5.0, Tokens::Accepted) });
        assert_eq!(model.excess_at_threshold(0.0), 2, "nothing seen, nothing expected");
        model.close(8.0, 0.0, None);
        assert_eq!(model.later, 1.0);
        // two dropped and one new for two tokens: a third of each is dropped (again), 12·2/3 + 3/3
        assert_eq!(model.excess_at_threshold(0.0), 1);
    }

    /// The filter itself: depth 2, a burst of 10; 2 admitted, 4 dropped (two for the tokens that
    /// lie there in three seconds, two for those that come in it), the others rejected.
    #[test]
    fn a_burst_is_admitted_dropped_and_rejected_in_this_order() {
        let mut greedy = Greedy::new(&one_step(5.0, Tokens::Continuous)).expect("in range");
        let now = Nanos::from_secs(100);
        let verdicts: Vec<Verdict> = (0..10).map(|key| greedy.evaluate(now, key, 0)).collect();
        let count = |kind| verdicts.iter().filter(|v| **v == kind).count();
        assert_eq!(
            (count(Verdict::Admit), count(Verdict::Drop), count(Verdict::Reject)),
            (2, 4, 4)
        );
        assert!(verdicts.is_sorted(), "{verdicts:?}");
    }

    #[test]
    fn parameters_out_of_range_are_errors() {
        let good = one_step(5.0, Tokens::Printed);
        let cost = |reject, delay| Cost { reject, delay };
        for wrong in [
            GreedySpec { schedule: vec![], ..good.clone() },
            GreedySpec { schedule: vec![0, 3], ..good.clone() },
            GreedySpec { schedule: vec![128], timeout: 200, ..good.clone() },
            GreedySpec { schedule: (1..=13).collect(), timeout: 99, ..good.clone() },
            GreedySpec { timeout: 2, ..good.clone() },
            GreedySpec { window: 256, ..good.clone() },
            GreedySpec { period: Nanos::ZERO, ..good.clone() },
            GreedySpec { cost: cost(-1.0, 1.0), ..good.clone() },
            GreedySpec { cost: cost(f64::NAN, 1.0), ..good.clone() },
            GreedySpec { cost: cost(1.0, 0.0), ..good.clone() },
        ] {
            assert!(Greedy::new(&wrong).is_err(), "{wrong:?}");
        }
        let limits = GreedySpec { schedule: vec![127], timeout: 127, window: 255, ..good };
        assert!(Greedy::new(&limits).is_ok());
    }
}
