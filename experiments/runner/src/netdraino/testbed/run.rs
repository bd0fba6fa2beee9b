// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a scenario: round by round all variants at each x, each with fresh servers and daemons.

use super::load::{self, AGENTS, Span};
use super::measure::Seen;
use super::scenario::{Extent, Scenario};
use super::setting::Setting;
use super::stand::{Look, Mark, Stand};
use crate::abacus::measure::{Place, Table};
use crate::abacus::{Variant, draw};
use crate::schedule::Schedule;
use crate::survival::{Options, Outcome, Watch};
use crate::testbed::{Made, drawable, tried};
use anyhow::{Context, Result, ensure};
use std::cell::Cell;
use tidegate_lab::{Lab, LabOptions, LoadReport, NetworkOptions, Road, Script, Shaping};
use tidegate_units::Nanos;

/// What S1 gets, and the same over what it gets while S0 is quiet.
const OF_QUIET: [(&str, &str); 2] =
    [("s1", "s1_of_quiet"), ("s1_within_1s", "s1_within_1s_of_quiet")];
/// Packets that wait before an agent's link: more than ever do.
const ACCESS_QUEUE: u32 = 10_000;

/// A run to be made.
struct Job<'a> {
    variant: &'a Variant,
    setting: Setting,
    place: usize,
    x: f64,
}

impl Job<'_> {
    fn at(&self, x_name: &str, x: usize, metric: &str) -> Place {
        let variant = self.variant.name.clone();
        Place { variant, x_name: x_name.into(), x, metric: metric.into() }
    }
}

struct Runner<'a> {
    scenario: &'a Scenario,
    extent: &'a Extent,
    options: &'a Options,
    watch: &'a mut dyn Watch,
    lab: &'a Lab,
    road: &'a Road<'a>,
    table: Table,
    notes: Vec<String>,
}

/// Runs it; `filter` chooses variants by name.
///
/// # Errors
/// When lab, servers, product or load fail, or what is done cannot be kept.
pub fn run(
    scenario: &Scenario,
    (quick, filter): (bool, Option<&str>),
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    let extent = scenario.extent(quick);
    let jobs = jobs(scenario, (extent, quick), filter)?;
    watch.step("making the lab, four routers and a narrow link");
    let network = NetworkOptions { segmentation: false, ..NetworkOptions::default() };
    let usual = LabOptions::new(options.helper.clone());
    // Attackers, BGP and programs of the published mode are on the load's CPU as well.
    let lab = Lab::new(LabOptions { network, load_first: true, ..usual }).context("the lab")?;
    let (link_mbit, queue, access_mbit) = jobs[0].setting.links();
    let shaping = |mbit: f64, queue: u32| Shaping { bits_per_second: (mbit * 1e6) as u64, queue };
    let narrow = shaping(link_mbit, queue as u32);
    let access = shaping(access_mbit, ACCESS_QUEUE);
    let road = lab.road(&narrow, Some(&access)).context("the road")?;
    let load = "load: synthetic (requests at random times, datagrams at a constant rate)";
    let (table, notes) = (Table::default(), vec![load.to_owned()]);
    let (lab, road) = (&lab, &road);
    let mut runner = Runner { scenario, extent, options, watch, lab, road, table, notes };
    let limit = Nanos::from_secs_f64(extent.minutes * 60.0);
    let mut schedule = Schedule::begin(Some(limit), jobs.len() * extent.rounds as usize);
    for round in 0..extent.rounds {
        runner.round(&jobs, round, &mut schedule)?;
    }
    runner.outcome(true)
}

/// All variants at one x after the other: they are compared.
fn jobs<'a>(
    scenario: &'a Scenario,
    (extent, quick): (&Extent, bool),
    filter: Option<&str>,
) -> Result<Vec<Job<'a>>> {
    let wanted = |name: &str| match filter {
        Some(filter) => crate::judge::fits(filter, name),
        None => extent.has(name),
    };
    let mut jobs = Vec::new();
    for (place, x) in scenario.x.points(quick).iter().enumerate() {
        for variant in scenario.variants.iter().filter(|variant| wanted(&variant.name)) {
            let setting = scenario.setting(variant, *x)?;
            jobs.push(Job { variant, setting, place, x: *x });
        }
    }
    ensure!(!jobs.is_empty(), "nothing is named {filter:?}");
    Ok(jobs)
}

impl Runner<'_> {
    fn outcome(&self, drawn: bool) -> Result<Outcome> {
        let mut rows = self.table.rows(&self.options.experiment);
        rows.iter_mut().for_each(|row| row.world = "lab".into());
        let mut figures = Vec::new();
        if drawn {
            let names: Vec<&str> = self.scenario.variants.iter().map(|v| v.name.as_str()).collect();
            let specs = drawable(&self.scenario.figures, &names, &rows);
            figures = draw(&specs, (&self.scenario.x.name, &names), &rows)?;
        }
        Ok(Outcome { rows, figures, notes: self.notes.clone(), ..Outcome::default() })
    }

    /// All jobs once.
    fn round(&mut self, jobs: &[Job<'_>], round: u32, schedule: &mut Schedule) -> Result<()> {
        let mut all: Vec<Option<Made>> = Vec::new();
        for job in jobs {
            let name = &self.scenario.x.name;
            let what = format!("round {}, {} at {name} {}", round + 1, job.variant.name, job.x);
            let mut notes = std::mem::take(&mut self.notes);
            let made = tried(&what, (&mut *schedule, &mut notes), || {
                self.watch.step(&what);
                self.once(job, round)
            });
            self.notes = notes;
            let made = made?;
            if let Some(made) = &made {
                self.add(job, made, round);
            }
            all.push(made);
            let so_far = self.outcome(false)?;
            self.watch.kept(&so_far)?;
        }
        self.relate(jobs, &all);
        Ok(())
    }

    /// Rows of a run.
    fn add(&mut self, job: &Job<'_>, made: &Made, round: u32) {
        let place = |x_name: &str, x: usize, metric: &str| job.at(x_name, x, metric);
        for (metric, unit, value) in &made.metrics {
            let place = place(&self.scenario.x.name, job.place, metric);
            self.table.add(place, job.x, unit, *value);
        }
        if round > 0 || job.x != self.scenario.course {
            return;
        }
        for (at, (time_s, metrics)) in made.course.iter().enumerate() {
            for (metric, unit, value) in metrics {
                self.table.add(place("time_s", at, metric), *time_s, unit, *value);
            }
        }
    }

    /// What runs are beside others of their round: the gain of all servers, and S1 beside a quiet S0.
    fn relate(&mut self, jobs: &[Job<'_>], all: &[Option<Made>]) {
        let scenario = self.scenario;
        let of = |variant: &str, x: f64, metric: &str| {
            let place = jobs.iter().position(|job| job.variant.name == variant && job.x == x)?;
            all.get(place)?.as_ref()?.value(metric)
        };
        for job in jobs {
            let name = job.variant.name.as_str();
            let pair = |metric: &str, base: (&str, f64)| {
                Some((of(name, job.x, metric)?, of(base.0, base.1, metric)?))
            };
            let mut add = |metric: &str, unit, value| {
                let place = job.at(&scenario.x.name, job.place, metric);
                self.table.add(place, job.x, unit, value);
            };
            if let Some((own, base)) = pair("throughput", (&scenario.gain_over, job.x))
                && name != scenario.gain_over
            {
                add("gain", "share", own / base - 1.0);
            }
            for (metric, of_quiet) in OF_QUIET {
                let quiet = scenario.quiet.and_then(|quiet| pair(metric, (name, quiet)));
                if let Some((own, quiet)) = quiet {
                    add(of_quiet, "ratio", own / quiet);
                }
            }
        }
    }

    /// One run; why it may not be judged.
    fn once(&mut self, job: &Job<'_>, round: u32) -> Result<(Vec<String>, Made)> {
        let setting = &job.setting;
        let stand = Stand::start(self.road, &self.options.program, setting)?;
        let from = self.extent.warm_s;
        let span = Span { from, to: from + self.extent.seconds };
        let (report, looks, marks) = self.play(&stand, (setting, span), round)?;
        let (fixed_rules, attacked) = (stand.fixed_rules(setting), stand.attacked()?);
        let looks = &looks;
        let seen = Seen { setting, report: &report, span, marks, looks, fixed_rules, attacked };
        let mut made = Made { metrics: seen.metrics(), course: seen.course() };
        let gone = stand.end((self.road, &self.options.program), setting)?;
        made.metrics.extend(gone.map(|gone| ("gone", "s", gone.as_secs_f64())));
        Ok((report.void, made))
    }

    /// The load, datagrams beside it, and what is seen meanwhile.
    fn play(
        &mut self,
        stand: &Stand,
        (setting, span): (&Setting, Span),
        round: u32,
    ) -> Result<(LoadReport, Vec<Look>, (Mark, Mark))> {
        let seed = self.options.seed + u64::from(round);
        let road = self.road;
        let plan = load::plan(road, stand, (setting, span), seed);
        let mut senders = Vec::new();
        let (datagrams, bytes) = (setting.datagrams(), setting.datagram_bytes as usize);
        for agent in (0..AGENTS).filter(|_| datagrams > 0.0) {
            let rate = datagrams / f64::from(AGENTS);
            senders.push(road.send_datagrams(agent, (rate, bytes))?);
        }
        let ends = [Cell::new(Mark::default()), Cell::new(Mark::default())];
        let note = |end: &Cell<Mark>| {
            end.set(stand.mark(road)?);
            Ok::<(), anyhow::Error>(())
        };
        let seconds = Nanos::from_secs_f64;
        let mut script = Script::new().at(seconds(span.from), "begin", || note(&ends[0])).at(
            seconds(span.to),
            "end",
            || note(&ends[1]),
        );
        let (lab, watch) = (self.lab, &mut *self.watch);
        let (report, looks) = stand.looking(|| {
            lab.run_script(&plan, &mut script, &mut |progress| watch.second(progress))
        })?;
        drop((script, senders));
        // A load that is all answered ends before its time, and the script with it.
        if ends[1].get() == Mark::default() {
            note(&ends[1])?;
        }
        Ok((report?, looks, (ends[0].get(), ends[1].get())))
    }
}
