// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a router costs that measures: table 1, and the memory of section 5.5. tidegate is beside nftables with conntrack
//! and a NetFlow exporter, at the same paced traffic.
//!
//! ```text
//!   arm up ── load: warm-up │ measured │ ── next arm, another one first each round
//!                 idle-priority loops on both CPUs
//!   cost of an arm = (busy in its measured part − busy of the plain router in that round) / connections
//! ```
//!
//! In the kernel nobody's softirq work is counted apart: so it is what both CPUs have less time for.

mod arm;

use crate::abacus::measure::{Place, Table};
use crate::setting::within;
use crate::survival::{Options, Outcome, Watch};
use anyhow::{Context, Result, bail, ensure};
use arm::Arm;
pub use arm::Kind;
use serde::Deserialize;
use std::cell::RefCell;
use tidegate_lab::{
    Arrive, Graph, GraphSpec, HostSpec, IdleMark, IdleMeter, Lab, LabError, LabOptions, LinkSpec,
    LoadPlan, NetworkOptions, Phase, Script,
};
use tidegate_units::{Clock, MonotonicClock, Nanos};
use tidegate_workload::Profile;

/// How long the loops are calibrated at the beginning, and between two arms.
const CALIBRATION: (Nanos, Nanos) = (Nanos::from_secs(5), Nanos::from_millis(500));
/// A run that may not be judged is made so often.
const TRIES: u32 = 2;
/// The router between clients and server.
pub(super) const ROUTER: usize = 0;
const SERVER: usize = 1;
const HOSTS: [HostSpec; 2] =
    [HostSpec { name: "r0", forwards: true }, HostSpec { name: "s1", forwards: false }];
/// The measured part.
const MEASURED: &str = "measured";

/// scenario.yaml.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Always `router-overhead`.
    pub kind: String,
    /// What the router does; the first is related to.
    pub variants: Vec<Kind>,
    /// Connections per second, each with one request.
    pub rate: f64,
    /// Bytes of a response.
    pub bytes: f64,
    /// The full run.
    pub full: Extent,
    /// The quick one.
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
    /// The measured part.
    pub seconds: f64,
}

impl Scenario {
    /// Whether it can be run.
    ///
    /// # Errors
    /// Names what is out of range.
    pub fn check(&self) -> Result<()> {
        ensure!(self.variants.first() == Some(&Kind::Plain), "variants: the first is `plain`");
        within("rate", self.rate, (1.0, 5e3))?;
        within("bytes", self.bytes, (1.0, 1e6))?;
        for extent in [self.full, self.quick] {
            within("rounds", f64::from(extent.rounds), (1.0, 100.0))?;
            within("warm_s", extent.warm_s, (1.0, 1e3))?;
            within("seconds", extent.seconds, (1.0, 1e3))?;
        }
        Ok(())
    }
}

/// What one run gave.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Measured {
    kind: Kind,
    /// CPU time of all CPUs, and of the arm's processes, in seconds.
    busy_s: f64,
    own_s: f64,
    seconds: f64,
    answered: f64,
    failed: f64,
    memory: arm::Memory,
}

/// Runs it; `filter` chooses variants by name, beside the first.
///
/// # Errors
/// When lab, server, product or load fail.
pub fn run(
    scenario: &Scenario,
    (quick, filter): (bool, Option<&str>),
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    let extent = if quick { scenario.quick } else { scenario.full };
    let wanted = |kind: &&Kind| {
        **kind == Kind::Plain || filter.is_none_or(|f| crate::judge::fits(f, kind.name()))
    };
    let kinds: Vec<Kind> = scenario.variants.iter().filter(wanted).copied().collect();
    watch.step("making the lab");
    let network = NetworkOptions { segmentation: false, ..NetworkOptions::default() };
    let usual = LabOptions::new(options.helper.clone());
    let lab = Lab::new(LabOptions { network, ..usual }).context("the lab")?;
    let mut meter = lab.idle_meter(CALIBRATION.0).context("the idle loops")?;
    let (mut table, mut outcome) = (Table::default(), Outcome::default());
    for round in 0..extent.rounds {
        let mut all = Vec::new();
        for index in 0..kinds.len() {
            let kind = kinds[(index + round as usize) % kinds.len()];
            let what = format!("round {}, {}", round + 1, kind.name());
            watch.step(&what);
            meter.calibrate(CALIBRATION.1)?;
            let bench = Bench { lab: &lab, meter: &meter, options, scenario, extent };
            for attempt in 1..=TRIES {
                let (measured, void) = bench.one(kind, watch).with_context(|| what.clone())?;
                if void.is_empty() {
                    all.push(measured);
                    break;
                }
                outcome.notes.push(format!("{what}, try {attempt}: void, {}", void.join("; ")));
            }
        }
        add(&mut table, scenario.rate, &all);
        outcome.rows = table.rows(&options.experiment);
        outcome.rows.iter_mut().for_each(|row| row.world = "lab".into());
        watch.kept(&outcome)?;
    }
    Ok(outcome)
}

/// Clients – the router – a server, as wide as the machine can.
fn graph_spec() -> GraphSpec {
    let links = vec![LinkSpec::plain(None, ROUTER), LinkSpec::plain(Some(ROUTER), SERVER)];
    GraphSpec { hosts: HOSTS.to_vec(), links }
}

struct Bench<'a> {
    lab: &'a Lab,
    meter: &'a IdleMeter,
    options: &'a Options,
    scenario: &'a Scenario,
    extent: Extent,
}

impl Bench<'_> {
    /// One run; why it may not be judged.
    fn one(&self, kind: Kind, watch: &mut dyn Watch) -> Result<(Measured, Vec<String>)> {
        let graph = self.lab.graph(&graph_spec()).context("the graph")?;
        let server = graph.start_tiny(SERVER, &arm::server(self.scenario.bytes))?;
        let arm = Arm::start(&graph, &self.options.program, kind)?;
        let plan = self.plan(&graph, &server);
        let seconds = Nanos::from_secs_f64;
        let (from, to) = (self.extent.warm_s, self.extent.warm_s + self.extent.seconds);
        let marks: RefCell<Vec<(IdleMark, f64, Nanos)>> = RefCell::new(Vec::new());
        let mark = || {
            let now = (self.meter.mark()?, arm.cpu_used(), MonotonicClock.now());
            marks.borrow_mut().push(now);
            Ok::<(), LabError>(())
        };
        let mut script = Script::new().at(seconds(from), "from", mark).at(seconds(to), "to", mark);
        let report =
            self.lab.run_script(&plan, &mut script, &mut |progress| watch.second(progress))?;
        drop(script);
        let memory = arm.memory(&graph)?;
        let marks = marks.into_inner();
        let [first, last] = &marks[..] else { bail!("the load ended before its marks") };
        let phase = report.stream("all").and_then(|stream| stream.phase(MEASURED));
        let counts = phase.context("the report lacks its phase")?.totals.counts;
        let measured = Measured {
            kind,
            busy_s: self.meter.busy(&first.0, &last.0).as_secs_f64(),
            own_s: last.1 - first.1,
            seconds: (last.2 - first.2).as_secs_f64(),
            answered: counts.answered as f64,
            failed: counts.failed as f64,
            memory,
        };
        arm.end()?;
        Ok((measured, report.void))
    }

    fn plan(&self, graph: &Graph<'_>, server: &tidegate_lab::Server) -> LoadPlan {
        let Extent { warm_s, seconds, .. } = self.extent;
        let (start, end) = (Nanos::from_secs_f64(warm_s), Nanos::from_secs_f64(warm_s + seconds));
        let arrive = Arrive::constant(Profile::constant(end, self.scenario.rate));
        LoadPlan {
            seed: self.options.seed,
            streams: vec![graph.stream(("all", 0), (SERVER, server), arrive)],
            phases: vec![Phase { name: MEASURED.into(), start, end }],
            ..LoadPlan::default()
        }
    }
}

/// Rows of a round; costs are those beyond the plain router of the same round.
fn add(table: &mut Table, rate: f64, all: &[Measured]) {
    let plain = all.iter().find(|measured| measured.kind == Kind::Plain);
    for measured in all {
        let mut put = |metric: &str, unit, value| {
            let (variant, x_name) = (measured.kind.name().into(), "rate".into());
            table.add(Place { variant, x_name, x: 0, metric: metric.into() }, rate, unit, value);
        };
        put("busy", "CPUs", measured.busy_s / measured.seconds);
        put("daemon_cpu", "share", measured.own_s / measured.seconds);
        put("answered", "1/s", measured.answered / measured.seconds);
        put("failed", "connections", measured.failed);
        put("memory_program", "MiB", measured.memory.program / MIB);
        put("memory_kernel", "MiB", measured.memory.kernel / MIB);
        if let Some(tracked) = measured.memory.tracked {
            put("tracked", "connections", tracked);
        }
        if let Some(plain) = plain.filter(|_| measured.kind != Kind::Plain) {
            let more = measured.busy_s / measured.seconds - plain.busy_s / plain.seconds;
            put("router_cpu", "share", more);
            put("cost", "us", more / (measured.answered / measured.seconds).max(1.0) * 1e6);
        }
    }
}

const MIB: f64 = 1_048_576.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(kind: Kind, busy_s: f64) -> Measured {
        let memory = arm::Memory { program: MIB, kernel: 3.0 * MIB, tracked: None };
        let (own_s, seconds, answered, failed) = (0.2, 10.0, 5_000.0, 0.0);
        Measured { kind, busy_s, own_s, seconds, answered, failed, memory }
    }

    #[test]
    fn costs_are_those_beyond_a_plain_router() {
        let mut table = Table::default();
        add(&mut table, 500.0, &[measured(Kind::Tidegate, 6.0), measured(Kind::Plain, 5.0)]);
        let of = |kind: Kind, metric: &str| {
            table.runs(kind.name(), ("rate", 0), metric).map(|runs| runs[0])
        };
        let near = |value: Option<f64>, wanted: f64| (value.unwrap() - wanted).abs() < 1e-9;
        assert!(near(of(Kind::Tidegate, "router_cpu"), 0.1));
        assert!(near(of(Kind::Tidegate, "cost"), 200.0));
        assert!(near(of(Kind::Tidegate, "daemon_cpu"), 0.02));
        assert!(near(of(Kind::Tidegate, "memory_kernel"), 3.0));
        assert_eq!(of(Kind::Plain, "router_cpu"), None);
    }
}
