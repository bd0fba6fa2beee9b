// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each number of the default controller is good for: `cargo run --release -p tidegate-sim
//! --features ablate --example ablate -- [--full] [--threads=N] [--factors=0,0.5,2,1000000]
//! [--design=S] [--judge=S] [part of a file, or name, or name=factor …]`.
//!
//! Each number is multiplied by each factor in turn, alone. 0 and a million switch its effect off, one
//! way or the other. A value of the suite has changed where it is worse, in the mean of three seeds,
//! by more than the spread of the unchanged controller over eight seeds; that spread is measured before
//! anything is changed. What has changed is judged with other seeds. A number without any such value
//! is not needed.
//!
//! Rows as in results.csv: `value` is the change in spreads, of the value that is named as metric; of a
//! number that is not needed, the largest change of all. `--list` prints the numbers, `--base` the
//! values of the unchanged controller with their spreads.

mod suite;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use suite::{Bare, Unit, Value, units};
use tidegate_control::ablate::{Number, numbers, with};
use tidegate_sim::syn::parallel;

/// Seeds that the spread is taken of.
const SPREAD_SEEDS: u64 = 8;
/// Seeds in a mean.
const MEAN_SEEDS: u64 = 3;
/// Files whose numbers the suite runs.
const FILES: [&str; 2] = ["detect/", "law/default.rs"];
/// Loops that would not end.
const ENDLESS: [(&str, f64); 1] = [("WINDOW_MIN", 0.0)];

/// What the command line says.
struct Args {
    full: bool,
    threads: usize,
    factors: Vec<f64>,
    design: u64,
    judge: u64,
    parts: Vec<String>,
    list: bool,
    base: bool,
}

impl Args {
    fn parse() -> Result<Self, String> {
        let all: Vec<String> = std::env::args().skip(1).collect();
        let given = |name: &str| all.iter().find_map(|arg| arg.strip_prefix(name));
        let number = |name: &str, default: u64| {
            given(name).map_or(Ok(default), |text| text.parse().map_err(|e| format!("{name}{e}")))
        };
        let factors = given("--factors=").unwrap_or("0,1000000,0.5,2").split(',');
        Ok(Self {
            full: all.iter().any(|arg| arg == "--full"),
            threads: usize::try_from(number("--threads=", 2)?).unwrap_or(2),
            factors: factors
                .map(str::parse)
                .collect::<Result<_, _>>()
                .map_err(|e| format!("{e}"))?,
            design: number("--design=", 1)?,
            judge: number("--judge=", 101)?,
            parts: all.iter().filter(|arg| !arg.starts_with("--")).cloned().collect(),
            list: all.iter().any(|arg| arg == "--list"),
            base: all.iter().any(|arg| arg == "--base"),
        })
    }

    /// The changes that are wanted, in the order of the command line, or of the sources.
    fn changes(&self) -> Vec<(Number, f64)> {
        let all = || numbers().filter(|n| FILES.iter().any(|file| n.file.starts_with(file)));
        let each = |n: Number| self.factors.iter().map(move |factor| (n, *factor));
        let changes: Vec<(Number, f64)> = if self.parts.is_empty() {
            all().flat_map(each).collect()
        } else {
            let named = |part: &String| {
                let (part, only) = match part.split_once('=') {
                    Some((part, factor)) => (part.to_owned(), factor.parse::<f64>().ok()),
                    None => (part.clone(), None),
                };
                let is = move |n: &Number| format!("{} {}", n.file, n.name).contains(&part);
                let found: Vec<Number> = numbers().filter(is).collect();
                let of = |n: Number| only.map_or_else(|| each(n).collect(), |only| vec![(n, only)]);
                found.into_iter().flat_map(of).collect::<Vec<_>>()
            };
            self.parts.iter().flat_map(named).collect()
        };
        let ends = |(number, factor): &(Number, f64)| {
            !ENDLESS.iter().any(|(name, of)| *name == number.name && of.total_cmp(factor).is_eq())
        };
        changes.into_iter().filter(ends).collect()
    }
}

/// The unchanged controller in a unit, by seed, and the spread of each value.
struct Base {
    unit: Unit,
    runs: BTreeMap<u64, (Bare, Vec<Value>)>,
    spreads: Vec<f64>,
}

impl Base {
    fn new(unit: &Unit, args: &Args) -> Result<Self, String> {
        let spread = args.design..args.design + SPREAD_SEEDS;
        let judge = args.judge..args.judge + MEAN_SEEDS;
        let mut runs = BTreeMap::new();
        for seed in spread.clone().chain(judge) {
            let bare = unit.bare(seed)?;
            let values = unit.run(&bare, seed)?;
            let keeps = seed < args.design + MEAN_SEEDS || seed >= args.judge;
            runs.insert(seed, (if keeps { bare } else { Bare::Nothing }, values));
        }
        let count = runs.values().next().map_or(0, |(_, values)| values.len());
        let spreads = (0..count).map(|n| {
            let of: Vec<&Value> = spread.clone().map(|seed| &runs[&seed].1[n]).collect();
            let most = of.iter().map(|v| v.bad).fold(f64::MIN, f64::max);
            let least = of.iter().map(|v| v.bad).fold(f64::MAX, f64::min);
            (most - least).max(of[0].floor)
        });
        let spreads = spreads.collect();
        Ok(Self { unit: unit.clone(), runs, spreads })
    }

    /// By how many spreads each value is worse than that of the unchanged controller, in the mean of
    /// so many seeds.
    fn changes(&self, first: u64, seeds: u64) -> Option<Vec<f64>> {
        let mut sums = vec![0.0; self.spreads.len()];
        for seed in first..first + seeds {
            let (bare, before) = &self.runs[&seed];
            let after = catch_unwind(AssertUnwindSafe(|| self.unit.run(bare, seed)));
            let after = after.ok()?.ok()?;
            for (n, sum) in sums.iter_mut().enumerate() {
                *sum += (after[n].bad - before[n].bad) / self.spreads[n];
            }
        }
        Some(sums.into_iter().map(|sum| sum / seeds as f64).collect())
    }
}

fn worst(changes: &[f64]) -> (usize, f64) {
    let all = changes.iter().copied().enumerate();
    all.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, 0.0))
}

/// The row in results.csv of one change.
fn tried(number: &Number, factor: f64, bases: &[Base], args: &Args) -> String {
    let row = |metric: &str, value: f64, runs: u64| {
        let variant = format!("{} {}", number.file, number.name);
        format!(
            "control/ablation,sim,{variant},factor,{factor},{metric},spreads,{value:.2},,{runs}"
        )
    };
    let mut most = ("nothing".to_owned(), 0.0);
    for base in bases {
        let name =
            |n: usize| format!("{}: {}", base.unit.name, base.runs[&args.design].1[n].metric);
        let Some(one) = base.changes(args.design, 1) else {
            return row(&format!("{}: does not run", base.unit.name), f64::INFINITY, 1);
        };
        let (at, change) = worst(&one);
        if change > most.1 {
            most = (name(at), change);
        }
        if change <= 1.0 {
            continue;
        }
        let Some(design) = base.changes(args.design, MEAN_SEEDS) else {
            return row(&format!("{}: does not run", base.unit.name), f64::INFINITY, 1);
        };
        let (at, change) = worst(&design);
        if change <= 1.0 {
            continue;
        }
        // The same value has to be worse with other seeds.
        let judged = base.changes(args.judge, MEAN_SEEDS).map_or(f64::INFINITY, |all| all[at]);
        if judged > 1.0 {
            return row(&name(at), judged, MEAN_SEEDS);
        }
    }
    row(&format!("none; most {}", most.0), most.1.min(1.0), 1)
}

fn main() -> Result<(), String> {
    let args = Args::parse()?;
    let jobs = args.changes();
    if args.list {
        jobs.iter()
            .for_each(|(n, factor)| println!("{} {} {} x {factor}", n.file, n.name, n.value));
        return Ok(());
    }
    std::panic::set_hook(Box::new(|_| ()));
    let units = units(!args.full);
    let make = |unit: &Unit| Base::new(unit, &args);
    let bases = parallel::map(&units, args.threads, make, |_| {}).map_err(|e| e.to_string())?;
    let bases = bases.into_iter().collect::<Result<Vec<Base>, String>>()?;
    if args.base {
        for base in &bases {
            for (n, spread) in base.spreads.iter().enumerate() {
                let values = base.runs.values().map(|(_, values)| format!("{:.4}", values[n].bad));
                let values: Vec<String> = values.collect();
                let metric = &base.runs[&args.design].1[n].metric;
                println!("{}: {metric}: spread {spread:.4}, {}", base.unit.name, values.join(" "));
            }
        }
        return Ok(());
    }
    let out = Mutex::new(std::io::stdout());
    let one = |(number, factor): &(Number, f64)| {
        let row = with(Some((number.index, *factor)), || tried(number, *factor, &bases, &args));
        if let Ok(mut out) = out.lock() {
            // Whoever reads it may have gone.
            let _ = writeln!(out, "{row}");
        }
    };
    parallel::map(&jobs, args.threads, one, |_| {}).map_err(|e| e.to_string())?;
    Ok(())
}
