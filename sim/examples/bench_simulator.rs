// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The worker of `cargo xtask bench simulator` for the shipped engine: checkers on, policies
//! through their binding. The protocol stands in xtask/src/bench/worker.rs.
//!
//! Subjects: the speed model under each policy, in nanoseconds of processor time per SYN; one
//! point of figure 8 (30 runs of 600 s, about 1.8 million new requests), in nanoseconds per point;
//! and 54 days of that load, as 54 times one day; a flash crowd in a network, packet by packet, per
//! event and per hour.

use std::io::{BufRead, Write};
use tidegate_policy::{AbacusExactSpec, AbacusSpec, Action, BucketSpec, Params};
use tidegate_sim::syn::{self, Broken, Capacity, Outcome, PolicyFilter, Spec};
use tidegate_units::{Clock, Nanos, Rate, ThreadCpuClock};
use tidegate_workload::mwm::{Mwm, MwmSpec, Root, rates_to_counts};
use tidegate_workload::{Jitter, OnReset, Poisson, Rng, Schedule, Trace};

#[path = "../tests/net/crowd.rs"]
mod crowd;

type Failure = Box<dyn std::error::Error>;

/// Simulated seconds of one measurement of the speed model: some 5.6 million SYNs.
const SPEED_SECONDS: u64 = 20_000;
/// Runs of 600 s in a point of figure 8, and in a day.
const RUNS_OF_A_POINT: u64 = 30;
const RUNS_OF_A_DAY: u64 = 144;
const DAYS: f64 = 54.0;
/// Seconds of the flash crowd.
const CROWD_SECONDS: u64 = 1200;

fn main() -> Result<(), Failure> {
    let subjects: Vec<String> = SUBJECTS
        .iter()
        .map(|(name, about, _)| format!(r#"{{"name": "{name}", "about": "{about}"}}"#))
        .collect();
    println!(r#"{{"subjects": [{}]}}"#, subjects.join(", "));
    std::io::stdout().flush()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let asked = line.trim().trim_matches('"');
        let found = SUBJECTS.iter().find(|(name, _, _)| *name == asked);
        let measured = found.ok_or_else(|| "no such subject".into()).and_then(|(_, _, run)| run());
        match measured {
            Ok(ns) => println!(r#"{{"ns": {ns}}}"#),
            Err(error) => println!(r#"{{"error": "{error}"}}"#),
        }
        std::io::stdout().flush()?;
    }
    Ok(())
}

type Run = fn() -> Result<f64, Failure>;

const SUBJECTS: &[(&str, &str, Run)] = &[
    ("token-bucket", "speed model, per SYN", || speed(&token_bucket(80.0, 80)?)),
    ("abacus", "speed model behind an Abacus filter, per SYN", || speed(&abacus(80.0, 80)?)),
    ("abacus-exact", "speed model behind an exact Abacus filter, per SYN", || {
        speed(&abacus_exact(80.0, 80)?)
    }),
    ("figure-8-point", "30 runs of 600 s, sd 80, token bucket", || figure_8(RUNS_OF_A_POINT)),
    ("figure-8-54-days", "54 times one day of that load", || Ok(DAYS * figure_8(RUNS_OF_A_DAY)?)),
    ("network", "a flash crowd at 2 Mbit/s, per event", || network(|out| out.net.events as f64)),
    ("network-hour", "an hour of it: thrice 20 minutes", || {
        network(|_| CROWD_SECONDS as f64 / 3600.0)
    }),
];

fn token_bucket(rate: f64, burst: u32) -> Result<Params, Failure> {
    Ok(Params::token_bucket(&BucketSpec::new(Rate::per_second(rate), burst, Action::Drop))?)
}

fn abacus(rate: f64, burst: u32) -> Result<Params, Failure> {
    let bucket = BucketSpec::new(Rate::per_second(rate), burst, Action::Drop);
    Ok(Params::abacus(&AbacusSpec::classic(bucket, 45))?)
}

fn abacus_exact(rate: f64, burst: u32) -> Result<Params, Failure> {
    let bucket = BucketSpec::new(Rate::per_second(rate), burst, Action::Drop);
    Ok(Params::abacus_exact(&AbacusExactSpec::classic(bucket, 45))?)
}

/// Poisson 100/s against 80/s; SYNs at 0, 3, 9, 21, 45, 93 s. Nanoseconds per SYN.
fn speed(params: &Params) -> Result<f64, Failure> {
    let schedule = Schedule {
        at_ms: &[0, 3_000, 9_000, 21_000, 45_000, 93_000],
        gives_up_ms: 189_000,
        on_reset: OnReset::Fail,
        ..*Schedule::named("classic").ok_or("no classic schedule")?
    };
    let capacity = Some(Capacity::continuous(Rate::per_second(80.0), 80));
    let base = Spec { jitter: Jitter::NONE, capacity, ..Spec::paper() };
    let spec = base.with_clients(schedule);
    let arrivals = Poisson::new(100.0, Nanos::from_secs(SPEED_SECONDS), Rng::new(1, 0));
    let (ns, out) = timed(|| Ok(syn::run(&spec, PolicyFilter::new(*params), arrivals, 1)?))?;
    Ok(ns / out.syns as f64)
}

/// Runs of figure 8 at a standard deviation of 80, arrivals and all. Nanoseconds for all runs.
fn figure_8(runs: u64) -> Result<f64, Failure> {
    let model = MwmSpec { mean: 100.0, sd: 80.0, hurst: 0.8, scales: 10, root: Root::Fixed };
    let (ns, _) = timed(|| {
        let (mwm, params) = (Mwm::new(model)?, token_bucket(120.0, 120)?);
        let mut last = Err("no run".into());
        for seed in 0..runs {
            last = Ok(one_run(&mwm, params, seed)?);
        }
        last
    })?;
    Ok(ns)
}

fn one_run(mwm: &Mwm, params: Params, seed: u64) -> Result<Outcome, Broken> {
    let mut rng = Rng::new(seed, 1);
    let rates = mwm.rates(&mut rng);
    let counts = rates_to_counts(&rates[..600], &mut rng);
    let arrivals = Trace::new(counts, Nanos::SECOND, rng);
    syn::run(&Spec::paper(), PolicyFilter::new(params), arrivals, seed)
}

/// Nanoseconds of the flash crowd, for one of so many.
fn network(of: fn(&crowd::Outcome) -> f64) -> Result<f64, Failure> {
    let (ns, out) = timed(|| crowd::run(CROWD_SECONDS, 1))?;
    Ok(ns / of(&out))
}

fn timed<T>(run: impl FnOnce() -> Result<T, Failure>) -> Result<(f64, T), Failure> {
    let begun = ThreadCpuClock.now();
    let out = run()?;
    Ok((ThreadCpuClock.now().since(begun).0 as f64, out))
}
