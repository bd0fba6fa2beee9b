// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a refusal costs: the same requests at the same rate, all of them refused, by each of those
//! who can.
//!
//! ```text
//!   arm up ── standing (no load) ── load: warm-up │ measured │ ── next arm, another one first each round
//!                 │ idle-priority loops on both CPUs │
//!   CPU per refusal = (busy in the measured part − busy standing, for as long) / refusals in it
//! ```
//!
//! The client's part is in it: it is the same for all who let it connect, and less for who refuses
//! its SYN. What is subtracted is what runs without any request: tidegate's ticks, timers.

mod refuser;

pub use refuser::Refuser;

use super::lab;
use crate::results::Row;
use crate::survival::{Outcome, Watch};
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::cell::RefCell;
use std::collections::BTreeMap;
use tidegate_lab::{
    ApacheOptions, Arrive, Cost, Front, Group, IdleMark, IdleMeter, Lab, LabOptions, LoadPlan,
    LoadReport, Mpm, NftHook, NftLimit, NftRule, Phase, Product, Script, Server,
};
use tidegate_units::Nanos;
use tidegate_workload::Profile;

/// Port of the server where a proxy stands in front of it.
const BEHIND: u16 = 8080;
/// How long the loops are calibrated at the beginning, and between two arms.
const CALIBRATION: (Nanos, Nanos) = (Nanos::from_secs(5), Nanos::from_millis(500));
/// Most rounds.
const ROUNDS_MAX: u32 = 100;
/// An arm that refuses less than this share of the requests was not in force: what it cost is not
/// what its refusals cost.
const REFUSED_LEAST: f64 = 0.99;
/// A run is void where more than this share of the CPUs is busy without any load.
const OTHERS_MOST: f64 = 0.1;
/// To whose cost in the same round that of the others is related, and by which metric.
const REFERENCES: [(Refuser, &str); 4] = [
    (Refuser::Nft, "cpu_over_nft"),
    (Refuser::Nginx, "cpu_over_nginx"),
    (Refuser::Haproxy, "cpu_over_haproxy"),
    (Refuser::Apache, "cpu_over_apache"),
];
/// What is void is run so often.
const TRIES: u32 = 3;

/// scenario.yaml.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Always `refusal`.
    pub kind: String,
    /// Who refuses: see [`Refuser`].
    pub variants: Vec<Refuser>,
    /// Requests per second, each on a connection of its own.
    pub rate: f64,
    /// The full run.
    pub full: Extent,
    /// The quick run.
    pub quick: Extent,
}

/// How much is run.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extent {
    /// Rounds: each runs every variant once.
    pub rounds: u32,
    /// Load before the measured part, in seconds.
    pub warm_s: f64,
    /// The measured part, and the standing part before it, in seconds.
    pub seconds: f64,
}

impl Scenario {
    /// Whether it can be run.
    ///
    /// # Errors
    /// Names what is out of range.
    pub fn check(&self) -> Result<()> {
        ensure!(!self.variants.is_empty(), "no variants");
        ensure!((1.0..=1e5).contains(&self.rate), "rate: 1 to 100000");
        for extent in [self.full, self.quick] {
            ensure!((1..=ROUNDS_MAX).contains(&extent.rounds), "rounds: 1 to {ROUNDS_MAX}");
            ensure!((0.5..=1e4).contains(&extent.seconds), "seconds: 0.5 to 10000");
            ensure!((0.0..=1e4).contains(&extent.warm_s), "warm_s: 0 to 10000");
        }
        Ok(())
    }
}

/// What runs; dropped in this order.
struct Arm {
    product: Option<Product>,
    front: Option<Front>,
    rule: Option<NftRule>,
    server: Server,
}

impl Arm {
    fn start(lab: &Lab, program: &std::path::Path, refuser: Refuser) -> Result<Self> {
        let front = refuser.front();
        let options = ApacheOptions {
            cgi: None,
            port: if front.is_some() { BEHIND } else { 80 },
            defer_accept: refuser.defer_accept(),
            busy: matches!(refuser, Refuser::Apache | Refuser::ApachePlain),
            ..ApacheOptions::cgi(Mpm::Prefork, Cost::busy(Nanos::ZERO))
        };
        let server = lab.start_apache(&options).context("Apache")?;
        let mut arm = Self { product: None, front: None, rule: None, server };
        if let Some(kind) = front {
            arm.front = Some(lab.start_front(&kind, &arm.server, 80).context("the proxy")?);
        }
        if let Some(config) = refuser.config() {
            arm.product = Some(lab.start_product(program, &config).context("tidegate")?);
        }
        if refuser == Refuser::Nft {
            let limit =
                NftLimit { hook: NftHook::Input, port: 80, rate: 1, burst: 1, reject: true };
            arm.rule = Some(lab.limit_by_nft(&limit).context("nftables")?);
        }
        Ok(arm)
    }

    fn target(&self) -> &Server {
        self.front.as_ref().map_or(&self.server, |front| &front.server)
    }

    /// CPU time of the processes of the server's side so far: without softirq.
    fn cpu_used(&self) -> f64 {
        let front = self.front.as_ref().map(|front| front.server.group());
        let product = self.product.as_ref().map(|product| product.process().group());
        let groups = [Some(self.server.group()), front, product];
        groups.into_iter().flatten().filter_map(Group::cpu_used).map(Nanos::as_secs_f64).sum()
    }

    /// What the refuser itself has counted; where the kernel answers, the clients' count is all.
    fn own_count(&self) -> Result<Option<u64>> {
        let front = self.front.as_ref().map(Front::refused).transpose()?;
        let rule = self.rule.as_ref().map(NftRule::refused).transpose()?;
        Ok(front.or(rule))
    }

    fn end(mut self) -> Result<()> {
        self.product.take().map_or(Ok(()), Product::stop).context("tidegate does not end")
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Measured {
    /// The round that it belongs to.
    round: u32,
    refused: u64,
    offered: u64,
    busy_s: f64,
    server_s: f64,
}

impl Measured {
    fn share(&self) -> f64 {
        self.refused as f64 / self.offered.max(1) as f64
    }

    fn in_force(&self) -> bool {
        self.share() >= REFUSED_LEAST
    }

    /// CPU time per refusal, in seconds.
    fn cost(&self) -> f64 {
        self.busy_s / self.refused.max(1) as f64
    }
}

/// How to run: see [`lab::Options`].
///
/// # Errors
/// When lab, server, product or load fail, or a refuser counts less than its clients saw.
pub fn run(scenario: &Scenario, options: &lab::Options, watch: &mut dyn Watch) -> Result<Outcome> {
    scenario.check()?;
    let extent = if options.quick { scenario.quick } else { scenario.full };
    watch.step("making the lab");
    let lab = Lab::new(LabOptions::new(options.helper.clone())).context("the lab")?;
    let mut meter = lab.idle_meter(CALIBRATION.0).context("the idle loops")?;
    let mut found: BTreeMap<&'static str, Vec<Measured>> = BTreeMap::new();
    let mut outcome = Outcome::default();
    for round in 0..extent.rounds {
        for index in 0..scenario.variants.len() {
            let refuser = scenario.variants[(index + round as usize) % scenario.variants.len()];
            watch.step(&format!("round {}, {}", round + 1, refuser.name()));
            meter.calibrate(CALIBRATION.1)?;
            let bench = Bench { lab: &lab, meter: &meter, options, scenario, extent, round };
            match bench.tries(refuser, watch, &mut outcome.notes)? {
                Some(measured) => found.entry(refuser.name()).or_default().push(measured),
                None => outcome.notes.push(format!("{}: left out of a round", refuser.name())),
            }
        }
        outcome.rows = rows(&options.experiment, scenario.rate, &found);
        watch.kept(&outcome)?;
    }
    Ok(outcome)
}

struct Bench<'a> {
    lab: &'a Lab,
    meter: &'a IdleMeter,
    options: &'a lab::Options,
    scenario: &'a Scenario,
    extent: Extent,
    round: u32,
}

impl Bench<'_> {
    /// A run, again while it is void. One that stays out of force is kept: a claim judges its share.
    fn tries(
        &self,
        refuser: Refuser,
        watch: &mut dyn Watch,
        notes: &mut Vec<String>,
    ) -> Result<Option<Measured>> {
        let mut out_of_force = None;
        for _ in 0..TRIES {
            let (measured, mut void) = self.one(refuser, watch)?;
            if !measured.in_force() {
                out_of_force = void.is_empty().then_some(measured).or(out_of_force);
                void.push(format!("it refused {:.3} of the requests only", measured.share()));
            }
            if !void.is_empty() {
                notes.push(format!("{}: void, {}", refuser.name(), void.join("; ")));
            }
            if void.is_empty() || self.options.quick {
                return Ok(Some(measured));
            }
        }
        Ok(out_of_force)
    }

    fn one(&self, refuser: Refuser, watch: &mut dyn Watch) -> Result<(Measured, Vec<String>)> {
        let arm = Arm::start(self.lab, &self.options.program, refuser)?;
        let seconds = self.extent.seconds;
        let from = (self.meter.mark()?, arm.cpu_used());
        std::thread::sleep(Nanos::from_secs_f64(seconds).into());
        let to = (self.meter.mark()?, arm.cpu_used());
        let standing = (self.meter.busy(&from.0, &to.0).as_secs_f64(), to.1 - from.1);
        let (report, busy, server) = self.load(&arm, watch)?;
        let phase = report.stream("all").and_then(|s| s.phase("measured"));
        let counts = phase.context("the report lacks its phase")?.totals.counts;
        let measured = Measured {
            round: self.round,
            refused: refuser.refused(&counts),
            offered: counts.offered,
            busy_s: (busy - standing.0).max(0.0),
            server_s: (server - standing.1).max(0.0),
        };
        if let Some(own) = arm.own_count()?
            && own < measured.refused
        {
            bail!("{}: {} refusals seen, {own} by its own count", refuser.name(), measured.refused);
        }
        arm.end()?;
        let mut void = report.void;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let others = standing.0 / (cpus * seconds);
        if others > OTHERS_MOST {
            void.push(format!("{others:.2} of the CPUs were busy without any load"));
        }
        Ok((measured, void))
    }

    /// The load; busy time and the server's CPU time in the measured part.
    fn load(&self, arm: &Arm, watch: &mut dyn Watch) -> Result<(LoadReport, f64, f64)> {
        let (from, to) = (self.extent.warm_s, self.extent.warm_s + self.extent.seconds);
        let whole = Profile::constant(Nanos::from_secs_f64(to), self.scenario.rate);
        let mut stream = arm.target().stream("all", Arrive::constant(whole));
        stream.path = "/index.html".into();
        let (start, end) = (Nanos::from_secs_f64(from), Nanos::from_secs_f64(to));
        let plan = LoadPlan {
            seed: self.options.seed,
            streams: vec![stream],
            phases: vec![Phase { name: "measured".into(), start, end }],
            ..LoadPlan::default()
        };
        let marks: RefCell<Vec<(IdleMark, f64)>> = RefCell::new(Vec::new());
        let mark = || {
            marks.borrow_mut().push((self.meter.mark()?, arm.cpu_used()));
            Ok::<(), tidegate_lab::LabError>(())
        };
        let mut script = Script::new().at(start, "from", mark).at(end, "to", mark);
        let report =
            self.lab.run_script(&plan, &mut script, &mut |progress| watch.second(progress))?;
        drop(script);
        let marks = marks.into_inner();
        let [first, last] = &marks[..] else { bail!("the load ended before its marks") };
        let busy = self.meter.busy(&first.0, &last.0).as_secs_f64();
        Ok((report, busy, last.1 - first.1))
    }
}

/// The median, and how far the values reach.
fn median(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_unstable_by(f64::total_cmp);
    let n = values.len();
    let (Some(first), Some(last)) = (values.first(), values.last()) else { return (0.0, 0.0, 0.0) };
    let middle = f64::midpoint(values[(n - 1) / 2], values[n / 2]);
    (middle, *first, *last)
}

/// Ratios of the cost in each round in which both were in force: the machine changes between
/// rounds, and a ratio of medians may be of two different ones.
fn paired(all: &[Measured], reference: &[Measured]) -> Vec<f64> {
    let other = |m: &Measured| reference.iter().find(|r| r.round == m.round && r.in_force());
    let ratio = |m: &Measured| Some(m.cost() / other(m)?.cost());
    all.iter().filter(|m| m.in_force()).filter_map(ratio).collect()
}

fn rows(experiment: &str, rate: f64, found: &BTreeMap<&'static str, Vec<Measured>>) -> Vec<Row> {
    let mut rows = Vec::new();
    for (variant, all) in found {
        let mut row = |metric: &str, unit: &str, value: f64, runs: usize| {
            rows.push(Row {
                experiment: experiment.into(),
                world: "lab".into(),
                variant: (*variant).into(),
                x_name: "rate".into(),
                x: rate,
                metric: metric.into(),
                unit: unit.into(),
                value,
                ci95: None,
                runs: runs as u32,
            });
        };
        let (share, least, _) = median(&mut all.iter().map(Measured::share).collect::<Vec<f64>>());
        row("refused", "share", share, all.len());
        row("refused_least", "share", least, all.len());
        let forced: Vec<&Measured> = all.iter().filter(|m| m.in_force()).collect();
        if forced.is_empty() {
            continue;
        }
        let (n, each) = (forced.len(), |value: fn(&Measured) -> f64| {
            forced.iter().map(|m| value(m)).collect::<Vec<f64>>()
        });
        let (middle, least, most) = median(&mut each(Measured::cost));
        row("cpu_per_refusal", "s", middle, n);
        row("cpu_per_refusal_least", "s", least, n);
        row("cpu_per_refusal_most", "s", most, n);
        row("refused_per_cpu_second", "1/s", 1.0 / middle.max(1e-9), n);
        let (server, ..) = median(&mut each(|m| m.server_s / m.refused.max(1) as f64));
        row("server_cpu_per_refusal", "s", server, n);
        for (reference, metric) in REFERENCES.iter().filter(|r| r.0.name() != *variant) {
            let mut ratios = paired(all, found.get(reference.name()).map_or(&[], Vec::as_slice));
            if !ratios.is_empty() {
                row(metric, "ratio", median(&mut ratios).0, ratios.len());
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_few_and_many() {
        assert_eq!(median(&mut []), (0.0, 0.0, 0.0));
        assert_eq!(median(&mut [3.0, 1.0]), (2.0, 1.0, 3.0));
        assert_eq!(median(&mut [9.0, 1.0, 2.0]), (2.0, 1.0, 9.0));
    }

    fn measured(refused: u64, busy_s: f64) -> Measured {
        Measured { round: 0, refused, offered: 1000, busy_s, server_s: 0.0 }
    }

    fn find(rows: &[Row], variant: &str, metric: &str) -> Option<(f64, u32)> {
        let row = rows.iter().find(|row| row.variant == variant && row.metric == metric)?;
        Some((row.value, row.runs))
    }

    /// A round out of force shows in the smallest share and not in the cost; who never was in force
    /// has a share and no cost.
    #[test]
    fn who_is_not_in_force_has_no_cost() {
        let found = BTreeMap::from([
            ("nft", vec![measured(1000, 2.0), measured(500, 90.0)]),
            ("nginx", vec![measured(0, 1.0)]),
        ]);
        let rows = rows("dual-admission/refusal-cost", 4000.0, &found);
        assert_eq!(find(&rows, "nft", "refused_least"), Some((0.5, 2)));
        assert_eq!(find(&rows, "nft", "cpu_per_refusal"), Some((0.002, 1)));
        assert_eq!(find(&rows, "nginx", "refused_least"), Some((0.0, 1)));
        assert_eq!(find(&rows, "nginx", "cpu_per_refusal"), None);
    }

    /// Ratios are of the same round: here each is 0.5 or 2, while both medians are 4 ms. A round
    /// that lacks one of the two, or in which one was out of force, has none.
    #[test]
    fn ratios_are_taken_within_a_round() {
        let at = |round: u32, busy_s: f64| Measured { round, ..measured(1000, busy_s) };
        let ours = vec![at(0, 1.0), at(1, 4.0), at(2, 8.0), at(4, 4.0)];
        let mut nft = vec![at(0, 2.0), at(1, 8.0), at(2, 4.0), at(3, 4.0)];
        assert_eq!(paired(&ours, &nft), [0.5, 0.5, 2.0]);
        nft[2].refused = 0;
        let rows = rows("x", 1.0, &BTreeMap::from([("ours-syn", ours), ("nft", nft)]));
        assert_eq!(find(&rows, "ours-syn", "cpu_over_nft"), Some((0.5, 2)));
        assert_eq!(find(&rows, "nft", "cpu_over_nft"), None);
    }
}
