// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a scenario in the lab: first the capacity of slow servers and the best limit by hand, then round by round all
//! variants at each x, each with a fresh graph.

use super::super::scenario::Scenario;
use super::super::setting::{Control, Server, Setting};
use super::super::traces::{Data, Source, Trace};
use super::load;
use super::measure::Seen;
use super::stand::{KNEE, Look, Stand};
use super::{Extent, Lab, LabVariant};
use crate::abacus::draw;
use crate::abacus::measure::{Place, Table};
use crate::schedule::Schedule;
use crate::survival::{Options, Outcome, Watch};
use crate::testbed::{self, Made, drawable, tried};
use anyhow::{Context, Result, ensure};
use tidegate_lab::{CapacityOptions, LabOptions, LoadReport, NetworkOptions};
use tidegate_units::Nanos;

/// What is paired with another variant, round by round, and the name of the ratio.
const PAIRED: [(&str, &str); 3] = [
    ("goodput", "goodput_of_pair"),
    ("bystander_mean", "bystander_mean_of_pair"),
    ("bulk", "bulk_of_pair"),
];
/// Where a server's capacity is measured: its link is none.
const FREE_MBIT: f64 = 100.0;

/// A run to be made.
struct Job<'a> {
    variant: &'a LabVariant,
    setting: Setting,
    place: usize,
    x: f64,
}

impl Job<'_> {
    fn at(&self, x_name: &str, x: usize, metric: &str) -> Place {
        let variant = self.variant.name.clone();
        Place { variant, x_name: x_name.into(), x, metric: metric.into() }
    }

    fn is_tried(&self) -> bool {
        self.setting.control == Control::Static && self.setting.rate <= 0.0
    }
}

struct Runner<'a> {
    scenario: &'a Scenario,
    section: &'a Lab,
    quick: bool,
    options: &'a Options,
    data: Data,
    watch: &'a mut dyn Watch,
    lab: &'a tidegate_lab::Lab,
    table: Table,
    notes: Vec<String>,
    /// Of servers that are a limit.
    capacities: Vec<(Server, f64)>,
}

/// Runs it; `filter` chooses variants by name. Real traces are read from `data`.
///
/// # Errors
/// When lab, servers, product or load fail, a trace cannot be read, or what is done cannot be kept.
pub fn run(
    scenario: &Scenario,
    (quick, filter): (bool, Option<&str>),
    (options, data): (&Options, Option<&Source>),
    watch: &mut dyn Watch,
) -> Result<Outcome> {
    let section = scenario.lab.as_ref().context("it has no lab")?;
    let extent = section.extent(quick);
    let mut jobs = jobs(scenario, section, (quick, filter))?;
    let traces = jobs.iter().map(|job| Trace::numbered(job.setting.trace));
    let traces = traces.collect::<Result<Vec<_>>>()?;
    let data = Data::read(data, &traces)?;
    let used = data.used(&traces);
    watch.step("making the lab");
    let network = NetworkOptions { segmentation: false, ..NetworkOptions::default() };
    let usual = LabOptions::new(options.helper.clone());
    let lab = LabOptions { network, load_first: true, ..usual };
    let lab = tidegate_lab::Lab::new(lab).context("the lab")?;
    let mut runner = Runner {
        scenario,
        section,
        quick,
        options,
        data,
        watch,
        lab: &lab,
        table: Table::default(),
        notes: notes(&jobs),
        capacities: Vec::new(),
    };
    let limit = Nanos::from_secs_f64(extent.minutes * 60.0);
    let mut schedule = Schedule::begin(Some(limit), jobs.len() * extent.rounds as usize);
    runner.measure_capacities(&jobs)?;
    runner.try_rates(&mut jobs)?;
    for round in 0..extent.rounds {
        runner.round(&jobs, round, &mut schedule)?;
    }
    let outcome = runner.outcome(true)?;
    Ok(Outcome { data: Some(used), ..outcome })
}

/// Who comes, and how much faster than it was.
fn notes(jobs: &[Job<'_>]) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    for Setting { trace, times, ramp_s, compress, .. } in jobs.iter().map(|job| &job.setting) {
        let note = if *trace > 0.0 {
            format!("arrivals: a window of the World Cup, {compress} times as fast")
        } else if *times > 1.0 {
            format!(
                "arrivals: synthetic, {times} times as many within {ramp_s} s, in the paper within minutes"
            )
        } else {
            continue;
        };
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    notes
}

/// All variants at one x after the other: they are compared.
fn jobs<'a>(
    scenario: &Scenario,
    section: &'a Lab,
    (quick, filter): (bool, Option<&str>),
) -> Result<Vec<Job<'a>>> {
    let extent = section.extent(quick);
    let wanted = |name: &str| match filter {
        Some(filter) => crate::judge::fits(filter, name),
        None => testbed::listed(&extent.variants, name),
    };
    let mut jobs = Vec::new();
    for (place, x) in extent.at.iter().enumerate() {
        for variant in section.variants.iter().filter(|v| wanted(&v.name) && v.is_at(*x)) {
            let setting = section.setting(scenario, (variant, *x), quick)?;
            jobs.push(Job { variant, setting, place, x: *x });
        }
    }
    ensure!(!jobs.is_empty(), "nothing is named {filter:?}");
    Ok(jobs)
}

impl Runner<'_> {
    fn extent(&self) -> &Extent {
        self.section.extent(self.quick)
    }

    fn outcome(&self, drawn: bool) -> Result<Outcome> {
        let mut rows = self.table.rows(&self.options.experiment);
        rows.iter_mut().for_each(|row| row.world = "lab".into());
        let mut figures = Vec::new();
        if drawn {
            let names = self.section.names();
            let specs = drawable(&self.scenario.figures, &names, &rows);
            figures = draw(&specs, (&self.scenario.x.name, &names), &rows)?;
        }
        Ok(Outcome { rows, figures, notes: self.notes.clone(), ..Outcome::default() })
    }

    /// What servers do at their best, behind a link that is none.
    fn measure_capacities(&mut self, jobs: &[Job<'_>]) -> Result<()> {
        for job in jobs.iter().filter(|job| job.setting.server != Server::Fast) {
            let server = job.setting.server;
            if self.capacity(server).is_some() {
                continue;
            }
            self.watch
                .step(&format!("measuring the capacity of the server of {}", job.variant.name));
            let control = Control::None;
            let setting = Setting { link_mbit: FREE_MBIT, control, ..job.setting.clone() };
            let stand = Stand::start(self.lab, &self.options.program, &setting)?;
            let stream = load::busy(&stand);
            let options = CapacityOptions {
                // With as many as memory is enough for among them.
                clients_from: KNEE / 4,
                clients_max: 2 * KNEE,
                // Clients who begin together are served together for a while: a window has to hold some rounds of all.
                probe: Nanos::from_secs(5),
                window: Nanos::from_secs(4),
                windows: 4,
                objective: Nanos::from_secs_f64(setting.objective_s),
                warm_up: Nanos::from_secs(2),
                ..CapacityOptions::default()
            };
            let capacity = self.lab.capacity_of(&stream, &options).context("the capacity")?;
            stand.end()?;
            let (rate, spread) = (capacity.rate.get(), capacity.spread());
            self.notes.push(format!(
                "{}: {rate:.1} responses/s with {} clients, windows within {:.0} %",
                job.variant.name,
                capacity.clients,
                spread * 100.0
            ));
            self.capacities.push((server, rate));
        }
        Ok(())
    }

    fn capacity(&self, server: Server) -> Option<f64> {
        self.capacities.iter().find(|(of, _)| *of == server).map(|(_, rate)| *rate)
    }

    /// Gives limits by hand the rate whose goodput is best.
    fn try_rates(&mut self, jobs: &mut [Job<'_>]) -> Result<()> {
        let rates = self.extent().sweep.clone();
        let any = jobs.iter().any(Job::is_tried);
        ensure!(!any || !rates.is_empty(), "a limit by hand has no rates to try here");
        for job in jobs.iter_mut().filter(|job| job.is_tried()) {
            let of = (job.variant, job.x);
            let trial = self.section.trial(self.scenario, of, self.quick)?;
            let mut best = (0.0, f64::NEG_INFINITY);
            for (place, rate) in rates.iter().enumerate() {
                let what = format!("{} at {}: trying {rate}/s", job.variant.name, job.x);
                self.watch.step(&what);
                let setting = Setting { rate: *rate, ..trial.clone() };
                let (void, made) = self.once(&setting, 0).context(what)?;
                let goodput = made.value("goodput").unwrap_or(0.0);
                if !void.is_empty() {
                    self.notes.push(format!("a limit of {rate}/s: void, {}", void.join("; ")));
                    continue;
                }
                let variant = job.variant.name.clone();
                let (x_name, metric) = ("rate".into(), "tried_goodput".into());
                self.table.add(Place { variant, x_name, x: place, metric }, *rate, "1/s", goodput);
                if goodput > best.1 {
                    best = (*rate, goodput);
                }
            }
            ensure!(best.0 > 0.0, "no limit by hand could be judged");
            job.setting.rate = best.0;
            let place = job.at(&self.scenario.x.name, job.place, "best_rate");
            self.table.add(place, job.x, "1/s", best.0);
        }
        Ok(())
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
                self.once(&job.setting, round)
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

    /// Rows of a run. The course is of the first point.
    fn add(&mut self, job: &Job<'_>, made: &Made, round: u32) {
        for (metric, unit, value) in &made.metrics {
            let place = job.at(&self.scenario.x.name, job.place, metric);
            self.table.add(place, job.x, unit, *value);
        }
        if let Some(capacity) = self.capacity(job.setting.server) {
            let place = job.at(&self.scenario.x.name, job.place, "server_capacity");
            self.table.add(place, job.x, "1/s", capacity);
        }
        if round > 0 || job.place > 0 {
            return;
        }
        for (at, (time_s, metrics)) in made.course.iter().enumerate() {
            for (metric, unit, value) in metrics {
                self.table.add(job.at("time_s", at, metric), *time_s, unit, *value);
            }
        }
    }

    /// What runs are beside the one of their round and server that they are paired with.
    fn relate(&mut self, jobs: &[Job<'_>], all: &[Option<Made>]) {
        let over = &self.section.pairs_over;
        for (job, made) in jobs.iter().zip(all) {
            let is_pair = |other: &Job<'_>| {
                let name = &other.variant.name;
                let named = name == over || name.ends_with(&format!("-{over}"));
                let same = other.x == job.x && other.setting.server == job.setting.server;
                named && same && other.variant.name != job.variant.name
            };
            let pair = jobs.iter().position(is_pair).and_then(|place| all[place].as_ref());
            let (Some(made), Some(pair)) = (made, pair) else { continue };
            for (metric, ratio) in PAIRED {
                let values = made.value(metric).zip(pair.value(metric));
                let Some((own, base)) = values.filter(|(_, base)| *base > 0.0) else { continue };
                let place = job.at(&self.scenario.x.name, job.place, ratio);
                self.table.add(place, job.x, "ratio", own / base);
            }
        }
    }

    /// One run; why it may not be judged.
    fn once(&mut self, setting: &Setting, round: u32) -> Result<(Vec<String>, Made)> {
        let stand = Stand::start(self.lab, &self.options.program, setting)?;
        let seed = self.options.seed + u64::from(round);
        let (plan, real) = load::plan(&stand, (setting, &self.data), seed)?;
        let (lab, watch) = (self.lab, &mut *self.watch);
        let (report, looks): (Result<LoadReport, _>, Vec<Look>) =
            stand.looking(|| lab.run_load(&plan, &mut |progress| watch.second(progress)))?;
        let report = report?;
        let (capacity, looks) = (self.capacity(setting.server), &looks);
        let seen = Seen { setting, report: &report, looks, capacity, real };
        let made = Made { metrics: seen.metrics(), course: seen.course() };
        stand.end()?;
        Ok((report.void, made))
    }
}
