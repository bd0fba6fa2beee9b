// SPDX-License-Identifier: Apache-2.0 OR MIT
use super::*;
use crate::syn::{self, Clients, Cost, Filter, PolicyFilter, Verdict};
use tidegate_policy::{AbacusLearnedSpec, AbacusSpec, Action, BucketSpec, Params};
use tidegate_units::{Random, Rate};
use tidegate_workload::{Jitter, Mixture, Rng, Schedule, Trace};

const TENTH: Nanos = Nanos::from_millis(100);

fn paper(jitter: Jitter) -> Spec {
    Spec { jitter, ..Spec::paper() }
}

/// Seconds of calm and of crowds, long and short.
fn crowds(seconds: usize, mean: u64, seed: u64) -> Trace {
    let mut rng = Rng::new(seed, 3);
    let mut counts = Vec::new();
    while counts.len() < seconds {
        let level = [mean / 3, mean, 3 * mean][(rng.next_u64() % 3) as usize];
        counts.extend((0..1 + rng.next_u64() % 9).map(|_| level + rng.next_u64() % 20));
    }
    Trace::new(counts, Nanos::SECOND, Rng::new(seed, 4))
}

/// Least cost over all choices of each request that a true token bucket allows, milliseconds.
fn brute(starts: &[u64], waits: &[u64], rate_milli: u64, burst: u64, reject: u64) -> u64 {
    let ways = waits.len() as u32 + 1;
    let mut least = u64::MAX;
    for mut code in 0..ways.pow(starts.len() as u32) {
        let (mut cost, mut served) = (0, Vec::new());
        for start in starts {
            match waits.get((code % ways) as usize) {
                Some(wait) => {
                    cost += wait;
                    served.push(start + wait);
                }
                None => cost += reject,
            }
            code /= ways;
        }
        served.sort_unstable();
        // millitokens × ms are exact
        let (mut level, mut then) = (burst * 1_000_000, 0);
        let fits = served.iter().all(|at| {
            level = (level + (at - then) * rate_milli).min(burst * 1_000_000);
            then = *at;
            let has = level >= 1_000_000;
            level = level.saturating_sub(1_000_000);
            has
        });
        if fits {
            least = least.min(cost);
        }
    }
    least
}

/// Starts, waits and tokens are whole bins here: a bucket of one token more, which is all that
/// binning gives, then costs exactly as much as the bound says.
#[test]
fn small_instances_equal_brute_force() {
    let schedule = *Schedule::named("classic").expect("known");
    let mut rng = Rng::new(5, 0);
    let mut middling = 0;
    for case in 0..24_u64 {
        let mut starts: Vec<u64> = (0..7).map(|_| rng.next_u64() % 4 * 1000).collect();
        starts.sort_unstable();
        let burst = 1 + case as u32 % 2;
        let reject = [8, 12, 30][case as usize % 3];
        let least = brute(&starts, &[0, 3000, 9000, 21_000], 1000, burst.into(), reject * 1000);
        let with = |burst| {
            let spec = Spec {
                clients: vec![Clients { schedule, weight: 1.0 }],
                jitter: Jitter::NONE,
                capacity: Some(Capacity::continuous(Rate::per_second(1.0), burst)),
                cost: Cost { reject: reject as f64, delay: 1.0 },
                ..Spec::paper()
            };
            let arrivals = starts.iter().map(|ms| Nanos::from_millis(*ms));
            bound(&spec, arrivals, 1, Nanos::SECOND).expect("sound")
        };
        let least = least as f64 / 1000.0 / 7.0;
        let exact = with(burst - 1);
        assert!((exact.cost - least).abs() < 1e-9, "case {case}: {} for {least}", exact.cost);
        assert!((exact.plan - least).abs() < 1e-9, "case {case}");
        assert!(with(burst).cost <= least + 1e-9, "case {case}: not a bound");
        middling += usize::from(least > 0.0 && exact.connected > 3);
    }
    assert!(middling >= 20, "{middling} that are not trivial");
}

/// Without jitter and with whole tokens a bin, the dual equals the plan: the flow is optimal.
#[test]
fn the_bound_equals_the_plan_when_nothing_is_rounded() {
    for seed in 0..6 {
        for (rate, mean) in [(120.0, 100), (120.0, 180), (30.0, 100)] {
            let capacity = Capacity::continuous(Rate::per_second(rate), 40);
            let spec = Spec { capacity: Some(capacity), ..paper(Jitter::NONE) };
            let found = bound(&spec, crowds(60, mean, seed), seed, TENTH).expect("sound");
            assert!(found.plan > 0.3, "not trivial: {}", found.plan);
            let apart = (found.cost - found.plan).abs();
            assert!(apart < 1e-6, "{} and {}", found.cost, found.plan);
        }
    }
}

/// With jitter the two are close: the bound is as good as the best plan, to a few hundredths.
#[test]
fn jitter_costs_the_bound_next_to_nothing() {
    let found = bound(&paper(Jitter::PAPER), crowds(100, 110, 1), 1, TENTH).expect("sound");
    assert!(found.cost <= found.plan);
    assert!(found.cost > 0.98 * found.plan, "{} and {}", found.cost, found.plan);
    assert!(found.throughput() > 0.5 && found.throughput() <= 1.0);
    assert!(found.prices.iter().all(|price| (0.0..=75.0).contains(price)));
}

/// Narrower bins give the filter less, so that the bound rises.
#[test]
fn narrower_bins_are_tighter() {
    let with = |bin| bound(&paper(Jitter::NONE), crowds(60, 130, 2), 2, bin).expect("sound").cost;
    let costs: Vec<f64> = [800, 400, 200, 100, 50].map(|ms| with(Nanos::from_millis(ms))).into();
    assert!(costs.windows(2).all(|pair| pair[0] <= pair[1] + 1e-9), "{costs:?}");
    assert!(costs[4] - costs[3] < 0.02 * costs[4], "{costs:?}");
}

/// No filter is better than the bound, on the same clients with the same jitter.
#[test]
fn no_filter_beats_the_bound() {
    let bucket = |action| BucketSpec::new(Rate::per_second(120.0), 120, action);
    for seed in 0..3 {
        let spec = paper(Jitter::PAPER);
        let found = bound(&spec, crowds(120, 100, seed), seed, TENTH).expect("sound");
        let abacus = AbacusSpec::classic(bucket(Action::Drop), 45);
        for params in [
            Params::token_bucket(&bucket(Action::Drop)),
            Params::token_bucket(&bucket(Action::Reject)),
            Params::abacus(&abacus),
            Params::abacus_learned(&AbacusLearnedSpec::classic(bucket(Action::Drop))),
        ] {
            let filter = PolicyFilter::new(params.expect("in range"));
            let out = syn::run(&spec, filter, crowds(120, 100, seed), seed).expect("sound");
            assert!(out.cost() >= found.cost, "{} below {}", out.cost(), found.cost);
        }
    }
}

/// Drops all, and notes when each request's SYNs came.
#[derive(Default)]
struct Noting(std::collections::BTreeMap<u64, Vec<u64>>);

impl Filter for Noting {
    fn evaluate(&mut self, now: Nanos, key: u64, _attempt: u8) -> Verdict {
        self.0.entry(key).or_default().push(now.0);
        Verdict::Drop
    }
}

/// The bound knows every SYN at the time at which the world sends it.
#[test]
fn the_bound_sees_the_worlds_own_syns() {
    let mixed = Mixture::new(&[("classic", 2.0), ("linux-6.5", 1.0)]).expect("known");
    let jitter = Jitter::uniform(Nanos::from_millis(300));
    for spec in [paper(Jitter::PAPER), paper(jitter).with_mixture(&mixed)] {
        let mut noting = Noting::default();
        let all = Spec { capacity: None, ..spec.clone() };
        syn::run(&all, &mut noting, crowds(5, 30, 1), 9).expect("sound");
        let plan = Plan::new(&spec).expect("sound");
        let sendings = Sendings::new(&plan, crowds(5, 30, 1), 9, u64::MAX).expect("sound");
        let draws = Draws::new(9);
        for (id, pair) in sendings.starts.windows(2).enumerate() {
            assert_eq!(noting.0[&draws.client(id as u32)], sendings.at[pair[0]..pair[1]]);
        }
        assert_eq!(noting.0.len() + 1, sendings.starts.len());
    }
}

#[test]
fn what_cannot_be_bounded_is_refused() {
    let one = || std::iter::once(Nanos::SECOND);
    let refused = |spec: Spec, bin| bound(&spec, one(), 1, bin).expect_err("unsound");
    let none = Spec { capacity: None, ..Spec::paper() };
    assert!(matches!(refused(none, TENTH), Broken::Spec(_)));
    let free = Spec { cost: Cost { reject: 75.0, delay: 0.0 }, ..Spec::paper() };
    assert!(matches!(refused(free, TENTH), Broken::Spec(_)));
    assert!(matches!(refused(Spec::paper(), Nanos::ZERO), Broken::Spec(_)));
    assert!(matches!(refused(Spec::paper(), Nanos(1)), Broken::TooMany(_)));
    let windows = *Schedule::named("windows").expect("known");
    assert!(matches!(refused(Spec::paper().with_clients(windows), TENTH), Broken::Spec(_)));
    let back = [Nanos::SECOND, Nanos::ZERO].into_iter();
    assert!(matches!(bound(&Spec::paper(), back, 1, TENTH), Err(Broken::Past { .. })));
    let empty = bound(&Spec::paper(), std::iter::empty(), 1, TENTH).expect("sound");
    assert_eq!((empty.offered, empty.cost, empty.throughput()), (0, 0.0, 0.0));
}

#[test]
fn the_share_of_the_gap() {
    assert_eq!(share_of_gap(6.0, 6.0, 2.0), Some(0.0));
    assert_eq!(share_of_gap(6.0, 3.0, 2.0), Some(0.75));
    assert_eq!(share_of_gap(6.0, 8.0, 2.0), Some(-0.5));
    assert_eq!(share_of_gap(2.0, 2.0, 2.0), None);
}
