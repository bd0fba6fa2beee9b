// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the best filter could reach if it knew the future: a proven lower bound on cost.
//!
//! **The problem.** Everything is known beforehand: each request and the time of each of its SYNs,
//! jitter included. A request costs `h·delay` if its k-th SYN is admitted and `r` if it is rejected
//! at once; a later rejection or a time-out costs more and is never better. Admissions obey the
//! capacity: at most `W + rate·t` in any time t.
//!
//! **Relaxation, optimistic only.** Time is cut into bins. All tokens that arrive in a bin may be
//! used anywhere in it, and at most W are carried from one bin to the next. Whatever the true
//! bucket allows fulfils this: admissions in n bins in a row lie within `n·bin`, so they are at
//! most `W + rate·n·bin`, which is all that the binned bucket asks. What is left is a flow of
//! least cost: requests → bins (cost: delay) → the bin before (at most W: a token carried over) or
//! the tokens that arrived; and requests → rejection (cost: r).
//!
//! **The bound is its dual.** With any price y ≥ 0 of a token in each bin, every filter pays at
//! least
//!
//! ```text
//! Σ_requests min(r, min_k(delay_k + y(bin_k))) − W·y(0) − Σ_bins rate·bin·y(b) − W·Σ_b max(0, y(b+1) − y(b))
//! ```
//!
//! (each request pays for its token, or r; the rest is the most that the tokens can earn at these
//! prices: W to begin with, what arrives, and W times each rise, by carrying). The prices need no
//! trust: a wrong price makes the bound weaker, never wrong. They come from [`flow`], which solves
//! the flow for delays without jitter; then the bound is within jitter and bins of the optimum.
//!
//! **How far it can be from the truth.** [`Bound::plan`] is the cost of the best plan that was
//! found for the binned bucket. A bucket that is `rate·bin` tokens deeper would allow it.

mod flow;

use super::check::Broken;
use super::draws::Draws;
use super::spec::{Capacity, Plan, Refill, Spec};
use flow::{Flow, Tokens};
use tidegate_units::Nanos;

/// Bins in one run: bounds memory.
const BINS_MAX: u64 = 1 << 20;
/// Cost of a rejection in time: bounds every sum below.
const REJECT_NS_MAX: f64 = 1e15;

/// Lower bound on the mean cost of any filter, and how it came about.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// Requests that came.
    pub offered: u64,
    /// No filter has a lower cost per request.
    pub cost: f64,
    /// Cost per request of the best plan found with the binned bucket; at least `cost`.
    pub plan: f64,
    /// Requests that this plan admits.
    pub connected: u64,
    /// Width of a bin.
    pub bin: Nanos,
    /// Price of a token in each bin, in units of cost: what one more would save.
    pub prices: Vec<f64>,
}

impl Bound {
    /// Share of requests that the best plan admits; 0 without requests.
    #[must_use]
    pub fn throughput(&self) -> f64 {
        if self.offered == 0 { 0.0 } else { self.connected as f64 / self.offered as f64 }
    }
}

/// Share of the gap between `reject` (cost of a token bucket that rejects) and `bound` that a
/// filter with this cost closes: 0 as good as rejecting, 1 as good as knowing the future. `None`
/// where there is no gap.
#[must_use]
pub fn share_of_gap(reject: f64, filter: f64, bound: f64) -> Option<f64> {
    let gap = reject - bound;
    (gap > 0.0).then(|| (reject - filter) / gap)
}

/// All SYNs of one run, request by request, as the world would send them if all were dropped.
#[derive(Debug, Default)]
struct Sendings {
    /// Where each request's SYNs begin in the lists below, and the end.
    starts: Vec<usize>,
    at: Vec<u64>,
    /// Time since the request's first SYN.
    delay: Vec<u64>,
    /// The same without jitter.
    nominal: Vec<u64>,
}

/// Bounds the cost of every filter for the run that [`run`](super::run) makes from the same
/// arguments. `bin` is the width of a bin of time; 0.1 s is tight to some thousandths.
///
/// # Errors
/// [`Broken::Spec`] without a capacity, without a cost of delay, or where a RST does not end a
/// request; [`Broken::Past`] for arrivals out of order; [`Broken::TooMany`] bins.
pub fn bound(
    spec: &Spec,
    arrivals: impl Iterator<Item = Nanos>,
    seed: u64,
    bin: Nanos,
) -> Result<Bound, Broken> {
    let Some(capacity) = spec.capacity else {
        return Err(Broken::Spec("a bound needs a capacity"));
    };
    let reject_ns = spec.cost.reject / spec.cost.delay * 1e9;
    if !(0.0..=REJECT_NS_MAX).contains(&reject_ns) {
        return Err(Broken::Spec("a bound needs a cost of delay above 0 and of rejection from 0"));
    }
    let reject = reject_ns as u64;
    let sendings = Sendings::new(&Plan::new(spec)?, arrivals, seed, reject)?;
    let bin = width(&capacity, bin)?;
    let last = sendings.at.iter().max().copied().unwrap_or(0);
    if last / bin.0 >= BINS_MAX {
        return Err(Broken::TooMany("bins of a bound"));
    }
    let bins: Vec<u32> = sendings.at.iter().map(|at| (at / bin.0) as u32).collect();
    let tokens = Tokens::new(&capacity, bin, (last / bin.0) as usize + 1);
    let mut flow = Flow::new(&sendings.starts, &bins, &sendings.nominal, &tokens, reject);
    flow.solve();
    Ok(judge(spec, &sendings, &bins, &flow, &tokens, bin))
}

/// Tokens that come once a period must not be split over bins.
fn width(capacity: &Capacity, bin: Nanos) -> Result<Nanos, Broken> {
    let bin = match capacity.refill {
        Refill::Continuous => bin,
        Refill::Every(period) => period,
    };
    if bin == Nanos::ZERO { Err(Broken::Spec("a bound with bins of no width")) } else { Ok(bin) }
}

/// The dual, with true delays, and the plan's cost.
fn judge(
    spec: &Spec,
    sendings: &Sendings,
    bins: &[u32],
    flow: &Flow<'_>,
    tokens: &Tokens,
    bin: Nanos,
) -> Bound {
    let (mut paid, mut plan, mut connected) = (0_u128, 0_u128, 0);
    let reject = flow.reject();
    for (request, pair) in sendings.starts.windows(2).enumerate() {
        let price = |k: usize| sendings.delay[k] + flow.prices()[bins[k] as usize];
        let least = (pair[0]..pair[1]).map(price).min();
        paid += u128::from(least.map_or(reject, |least| least.min(reject)));
        let chosen = flow.chosen(request);
        plan += u128::from(chosen.map_or(reject, |k| sendings.delay[k]));
        connected += u64::from(chosen.is_some());
    }
    let offered = sendings.starts.len() as u64 - 1;
    let unit = spec.cost.delay / 1e9;
    let mean = |sum: f64| if offered == 0 { 0.0 } else { sum * unit / offered as f64 };
    let dual = paid as f64 - tokens.earn(flow.prices());
    Bound {
        offered,
        cost: mean(dual).max(0.0),
        plan: mean(plan as f64),
        connected,
        bin,
        prices: flow.prices().iter().map(|price| *price as f64 * unit).collect(),
    }
}

impl Sendings {
    /// SYNs after which waiting has cost more than a rejection are left out: never the best.
    fn new(
        plan: &Plan,
        arrivals: impl Iterator<Item = Nanos>,
        seed: u64,
        reject: u64,
    ) -> Result<Self, Broken> {
        if plan.kinds.iter().any(|kind| kind.again.is_some()) {
            return Err(Broken::Spec("no bound for clients that try again after a RST"));
        }
        let draws = Draws::new(seed);
        let mut all = Self { starts: vec![0], ..Self::default() };
        let mut now = Nanos::ZERO;
        for (id, at) in arrivals.enumerate() {
            let id = u32::try_from(id).map_err(|_| Broken::TooMany("requests"))?;
            if at < now {
                return Err(Broken::Past { at, now });
            }
            now = at;
            all.follow((plan, draws, reject), id, at.0);
            while all.delay.last().is_some_and(|delay| *delay > reject) {
                let _ = (all.at.pop(), all.delay.pop(), all.nominal.pop());
            }
            all.starts.push(all.at.len());
        }
        Ok(all)
    }

    /// As `World::again` has it, all dropped; a test compares the two.
    fn follow(&mut self, (plan, draws, reject): (&Plan, Draws, u64), id: u32, start: u64) {
        let draw = draws.client(id) >> 32;
        let kind = plan.kinds.iter().find(|kind| draw < kind.share).unwrap_or(&plan.kinds[0]);
        let (mut due, mut nominal) = (start, 0);
        for attempt in 0..=kind.gaps.len() {
            if due - start >= kind.gives_up && attempt > 0 {
                return;
            }
            self.at.push(due);
            self.delay.push(due - start);
            self.nominal.push(nominal.min(reject));
            let Some(gap) = kind.gaps.get(attempt) else { return };
            let (now, next) = (attempt as u8, attempt as u8 + 1);
            let stray = draws.timer(id, next, &plan.jitter) + draws.delay(id, next, &plan.jitter)
                - draws.delay(id, now, &plan.jitter);
            nominal += gap;
            due = (due + gap).saturating_add_signed(stray).max(due);
        }
    }
}

#[cfg(test)]
mod tests;
