// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the rounds, and sets what metrics tell beside what clients saw.

use crate::results::Row;
use crate::survival::arm::{Arm, Known, Place};
use crate::survival::{Options, Outcome, ServerSpec, Watch};
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;
use std::cell::RefCell;
use tidegate_lab::{
    Arrive, CapacityOptions, Lab, LabError, LabOptions, LoadPlan, Phase, Scrape, Script,
};
use tidegate_units::{Clock, DayClock, Nanos};
use tidegate_workload::{Profile, Segment};

/// Windows of the measurement of the capacity.
const WINDOWS: u32 = 6;
const TIMES: &str = "tidegate_service_first_byte_time_seconds_bucket";
const SHEDDING: &str = "tidegate_service_shedding_seconds_total";
const SYNS: &str = "tidegate_service_verdicts_syns_total";
/// Reasons of a refusal by what an overload limits.
const LIMITS: [&str; 3] = ["rate", "waiting", "accept-queue"];
/// Causes that are an overload: not a limit that is set, and not a peer's.
const OVERLOAD: [&str; 4] = ["in-flight", "growth", "accept-queue", "cpu"];
/// The stream, and the phase that counts.
const ALL: &str = "all";

/// scenario.yaml. Times in seconds, loads as multiples of the measured capacity.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Always `record`.
    pub kind: String,
    /// The server.
    pub server: ServerSpec,
    /// How tidegate refuses.
    pub arms: Vec<String>,
    /// Load before and after the overload.
    pub calm: f64,
    /// Between two scrapes.
    pub scrape_s: u64,
    /// All of it.
    pub full: Extent,
    /// In short.
    pub quick: Extent,
}

/// How much is run.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extent {
    /// The overload.
    pub load: f64,
    /// Before it.
    pub before_s: u64,
    /// How long it lasts.
    pub load_s: u64,
    /// After it.
    pub after_s: u64,
    /// Rounds.
    pub rounds: u32,
}

impl Scenario {
    /// Checks what the types do not say.
    ///
    /// # Errors
    /// Says what.
    pub fn check(&self) -> Result<()> {
        ensure!(self.scrape_s > 0, "scrape_s is 0");
        for extent in [self.full, self.quick] {
            let scraped = |s: u64| s.is_multiple_of(self.scrape_s);
            let both = scraped(extent.before_s) && scraped(extent.load_s);
            ensure!(both, "begin and end of the overload are scraped");
        }
        Ok(())
    }
}

struct Ran {
    arm: String,
    values: Vec<(&'static str, &'static str, f64)>,
}

/// Runs it.
///
/// # Errors
/// When lab, server, product or load fail, or the metrics lack something.
pub fn run(
    scenario: &Scenario,
    quick: bool,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    watch.step("making the lab");
    let lab = Lab::new(LabOptions::new(options.helper.clone())).context("the lab")?;
    let extent = if quick { scenario.quick } else { scenario.full };
    watch.step("measuring the capacity");
    let server = scenario.server.start(&lab, 80, None)?;
    let search = CapacityOptions { windows: WINDOWS, ..CapacityOptions::default() };
    let capacity = lab.capacity(&server, &search).context("the capacity")?.rate.get();
    drop(server);
    let (mut runs, mut notes) = (Vec::new(), Vec::new());
    for round in 0..extent.rounds {
        for arm in &scenario.arms {
            watch.step(&format!("{arm}, round {}", round + 1));
            let one = One { scenario, extent, options, lab: &lab, capacity, round };
            runs.push(one.run(arm, watch, &mut notes)?);
        }
    }
    let rows = scenario.arms.iter().flat_map(|arm| rows(&options.experiment, arm, extent, &runs));
    Ok(Outcome { rows: rows.collect(), notes, ..Outcome::default() })
}

struct One<'a> {
    scenario: &'a Scenario,
    extent: Extent,
    options: &'a Options,
    lab: &'a Lab,
    capacity: f64,
    round: u32,
}

impl One<'_> {
    fn plan(&self, server: &tidegate_lab::Server) -> LoadPlan {
        let Extent { load, before_s, load_s, after_s, .. } = self.extent;
        let piece =
            |seconds, of: f64| Segment::constant(Nanos::from_secs(seconds), of * self.capacity);
        let calm = self.scenario.calm;
        let pieces = [piece(before_s, calm), piece(load_s, load), piece(after_s, calm)];
        let (start, end) = (Nanos::from_secs(before_s), Nanos::from_secs(before_s + load_s));
        LoadPlan {
            seed: self.options.seed + u64::from(self.round),
            streams: vec![server.stream(ALL, Arrive::poisson(Profile::new(&pieces)))],
            phases: vec![Phase { name: ALL.into(), start, end }],
            ..LoadPlan::default()
        }
    }

    fn run(&self, arm: &str, watch: &mut dyn Watch, notes: &mut Vec<String>) -> Result<Ran> {
        let Self { scenario, extent, options, lab, capacity, round } = *self;
        let (program, requests) = (&*options.program, Value::Null);
        let place = Place { lab, server: &scenario.server, program, requests };
        let running = Arm::start(&place, arm, Known { capacity, clients: 1 })?;
        let plan = self.plan(running.server());
        let (scrapes, began) = (RefCell::new(Vec::new()), RefCell::new(0.0));
        let last = extent.before_s + extent.load_s + extent.after_s;
        let mut script = Script::new();
        for at in (0..last).step_by(scenario.scrape_s as usize) {
            script = script.at(Nanos::from_secs(at), "scrape", || {
                if scrapes.borrow().is_empty() {
                    *began.borrow_mut() = DayClock.now().as_secs_f64();
                }
                scrapes.borrow_mut().push(Scrape::take(lab)?);
                Ok::<(), LabError>(())
            });
        }
        let report = lab.run_script(&plan, &mut script, &mut |progress| watch.second(progress))?;
        drop(script);
        // Not at the end of the plan: clients are refused until the last of them has gone.
        scrapes.borrow_mut().push(Scrape::take(lab)?);
        running.end()?;
        if let Some(failed) = report.events.iter().find_map(|event| event.error.as_ref()) {
            bail!("{arm}, round {}: {failed}", round + 1);
        }
        notes.extend(report.void.iter().map(|why| format!("{arm}, round {}: {why}", round + 1)));
        let clients = report.stream(ALL).context("the report lacks its stream")?;
        let phase = &clients.phase(ALL).context("the report lacks its phase")?.totals;
        let told =
            Told { scrapes: scrapes.into_inner(), began: began.into_inner(), scenario, extent };
        let refused = clients.total.counts.refused_connect as f64;
        let times = (phase.first_byte.p50, phase.first_byte.p99);
        Ok(Ran { arm: arm.to_owned(), values: told.values(refused, times)? })
    }
}

/// What was scraped in a run.
struct Told<'a> {
    scrapes: Vec<Scrape>,
    /// When the run began, in seconds since 1970.
    began: f64,
    scenario: &'a Scenario,
    extent: Extent,
}

impl Told<'_> {
    /// What it tells, beside the clients' refusals and times.
    fn values(
        &self,
        refused: f64,
        (p50, p99): (f64, f64),
    ) -> Result<Vec<(&'static str, &'static str, f64)>> {
        let (first, last) = self.scrapes.first().zip(self.scrapes.last()).context("no scrape")?;
        let at = |seconds: u64| {
            let scrape = self.scrapes.get((seconds / self.scenario.scrape_s) as usize);
            scrape.context("a scrape is missing")
        };
        let Extent { before_s, load_s, .. } = self.extent;
        let (from, to) = (at(before_s)?, at(before_s + load_s)?);
        let moment = |what: &str| {
            let name = format!("tidegate_service_shedding_{what}_timestamp_seconds");
            last.sum(&name, &[])
        };
        let off = |told: f64, seconds: u64| (told - self.began - seconds as f64).abs();
        let shed = |cause: &str| last.sum(SHEDDING, &[&format!("cause=\"{cause}")]);
        let overload: f64 = OVERLOAD.iter().map(|cause| shed(cause)).sum();
        let rejects = ["verdict=\"reject\"", "shadow=\"false\""];
        let counted = last.sum(SYNS, &rejects) - first.sum(SYNS, &rejects);
        let by = |reason: &&str| {
            let labels = [rejects[0], rejects[1], &format!("reason=\"{reason}\"")];
            last.sum(SYNS, &labels) - first.sum(SYNS, &labels)
        };
        let by_limits: f64 = LIMITS.iter().map(by).sum();
        let share = |told: f64, seen: f64| (told / seen - 1.0).abs();
        let quantile = |of: f64, seen: f64| {
            let told = to.quantile(from, TIMES, of).context("no times were scraped")?;
            Ok::<f64, anyhow::Error>(share(told, seen))
        };
        Ok(vec![
            ("begin", "s", off(moment("began"), before_s)),
            ("end", "s", off(moment("ended"), before_s + load_s)),
            ("cause", "share", overload / shed("").max(f64::MIN_POSITIVE)),
            ("refused", "share", share(counted, refused)),
            ("reasons", "share", by_limits / counted.max(f64::MIN_POSITIVE)),
            ("p50", "share", quantile(0.5, p50)?),
            ("p99", "share", quantile(0.99, p99)?),
        ])
    }
}

/// The worst of all rounds.
fn rows(experiment: &str, arm: &str, extent: Extent, runs: &[Ran]) -> Vec<Row> {
    let mine: Vec<&Ran> = runs.iter().filter(|ran| ran.arm == arm).collect();
    let names = mine.first().map(|ran| ran.values.clone()).unwrap_or_default();
    let row = |(index, (metric, unit, first)): (usize, (&str, &str, f64))| {
        // Of a share that should be large the least is the worst.
        let worse = if matches!(metric, "cause" | "reasons") { f64::min } else { f64::max };
        let value = mine.iter().map(|ran| ran.values[index].2).fold(first, worse);
        Row {
            experiment: experiment.into(),
            world: "lab".into(),
            variant: arm.to_owned(),
            x_name: "load".into(),
            x: extent.load,
            metric: metric.into(),
            unit: unit.into(),
            value,
            ci95: None,
            runs: mine.len() as u32,
        }
    };
    names.into_iter().enumerate().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;

    fn scenario() -> Scenario {
        let experiment = catalog::find("product/record").unwrap();
        serde_saphyr::from_str(experiment.scenario).unwrap()
    }

    #[test]
    fn begin_and_end_of_the_overload_are_scraped() {
        let mut scenario = scenario();
        scenario.check().unwrap();
        scenario.quick.before_s = 7;
        assert!(scenario.check().is_err());
    }

    /// An overload of 30 s that is told right, but for a begin that is 2 s late and a tenth of the rejects.
    #[test]
    fn what_is_told_is_set_beside_what_was_seen() {
        let scenario = scenario();
        let text = |n: u64| {
            Scrape(format!(
                "{SYNS}{{verdict=\"reject\",reason=\"rate\",shadow=\"false\"}} {}\n\
                 {SYNS}{{verdict=\"reject\",reason=\"waiting\",shadow=\"false\"}} {}\n\
                 {SYNS}{{verdict=\"reject\",reason=\"source\",shadow=\"false\"}} {}\n{TIMES}{{le=\"0.1\"}} {}\n\
                 {SHEDDING}{{cause=\"growth\",shadow=\"false\"}} 27\n\
                 {SHEDDING}{{cause=\"limit\",shadow=\"false\"}} 3\n\
                 tidegate_service_shedding_began_timestamp_seconds{{service=\"web\"}} 1017\n\
                 tidegate_service_shedding_ended_timestamp_seconds{{service=\"web\"}} 1045\n",
                60 * n,
                21 * n,
                9 * n,
                10 * n
            ))
        };
        let scrapes = (0..5).map(text).collect();
        let told = Told { scrapes, began: 1000.0, extent: scenario.quick, scenario: &scenario };
        let values = told.values(400.0, (0.05, 0.1)).unwrap();
        let expected = [2.0, 0.0, 0.9, 0.1, 0.9, 0.0, 0.01];
        for ((name, _, value), expected) in values.iter().zip(expected) {
            assert!((value - expected).abs() < 1e-9, "{name}: {value}");
        }
        let ran = |values| Ran { arm: "reject".into(), values };
        let better = values.iter().map(|(name, unit, _)| (*name, *unit, 0.95)).collect();
        let rows = rows("e", "reject", scenario.quick, &[ran(values), ran(better)]);
        let value = |metric: &str| rows.iter().find(|row| row.metric == metric).unwrap().value;
        assert_eq!((value("begin"), value("cause"), value("refused")), (2.0, 0.9, 0.95));
        assert!((value("reasons") - 0.9).abs() < 1e-9);
    }
}
