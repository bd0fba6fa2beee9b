// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `tidegate replay`: what a configuration would have done to a recorded load (docs/replay.md).

mod args;
mod classes;
mod feed;
mod hours;
mod model;
mod progress;
mod report;
mod rows;
mod source;
mod table;

use crate::host::Machine;
use anyhow::{Context, Result, bail};
use args::{Output, ReplayArgs};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use classes::Classes;
use feed::{Feed, Read};
pub(crate) use hours::of_hours;
use report::{ClassRow, Input, Model, Report, Service};
use source::Source;
use std::fs;
use std::io::Write;
use std::path::Path;
use tidegate_api::protocol::{ApiError, ErrorKind};
use tidegate_cli::{Exit, Extension, Host, UsageError};
use tidegate_config::{Config, ServiceConfig, UnknownService, load};
use tidegate_model::Mode;
use tidegate_results::Run;
use tidegate_sim::whatif::{Answer, Spec, WhatIf};
use tidegate_sim::world::server::ServerSpec;

/// The command.
pub(crate) struct Replay;

impl Extension for Replay {
    fn command(&self) -> Command {
        let about = "Replay a log against a modelled server: what would have been admitted, refused and when";
        // The arguments bring the comment of their type, which is not meant for users.
        ReplayArgs::augment_args(Command::new("replay")).about(about).long_about(None)
    }

    fn run(&self, matches: &ArgMatches, out: &mut dyn Write) -> Result<Exit> {
        let args = ReplayArgs::from_arg_matches(matches).context("the arguments")?;
        let report = run(&args)?;
        if let Some(dir) = &args.out {
            write(dir, &args, &report)?;
        }
        match args.output {
            Output::Table => table::print(&report, out)?,
            Output::Json => {
                serde_json::to_writer_pretty(&mut *out, &report)?;
                writeln!(out)?;
            }
        }
        if let (Some(dir), Output::Table) = (&args.out, args.output) {
            writeln!(out, "\nresults: {}", dir.join("results.csv").display())?;
            writeln!(out, "figures: tidegate-lab experiment draw {}", dir.display())?;
        }
        Ok(Exit::Ok)
    }
}

/// The replay that the arguments ask for.
fn run(args: &ReplayArgs) -> Result<Report> {
    let config = load(&args.config, &Machine.registry())?;
    let service = chosen(args, &config)?;
    replay(args, &config, service)
}

/// The service that was named, or the only one.
fn chosen<'a>(args: &ReplayArgs, config: &'a Config) -> Result<&'a ServiceConfig> {
    if let Some(name) = &args.service {
        let found = config.services.iter().find(|s| s.name == *name);
        return found.ok_or_else(|| {
            let unknown = UnknownService::new(name, config).to_string();
            ApiError::new(ErrorKind::UnknownService, unknown).into()
        });
    }
    match config.services.as_slice() {
        [only] => Ok(only),
        several => {
            let names: Vec<&str> = several.iter().map(|s| s.name.as_str()).collect();
            let names = names.join(", ");
            Err(UsageError(format!("say which service with --service; configured: {names}")).into())
        }
    }
}

fn replay(args: &ReplayArgs, config: &Config, service: &ServiceConfig) -> Result<Report> {
    if let (from, Some(until)) = (args.reading.from, args.reading.until)
        && from >= until
    {
        return Err(UsageError("--from must be before --until".into()).into());
    }
    let server = model::server(&args.server);
    let classes = Classes::new(config, service);
    let mut whatif = whatif(args, (config, service), &server)?;
    let mut source = Source::open(&args.log, &args.reading)?;
    let bar = progress::Progress::new();
    let read = Feed::new(args, &classes, &mut whatif).all(&mut source, &bar);
    bar.finish();
    let read = read?;
    if whatif.offered() == 0 {
        bail!("{}: no request lies in the time that was asked for", source.name);
    }
    let answer = whatif.finish().map_err(anyhow::Error::msg)?;
    let told = Told { args, service, classes: &classes, server: &server };
    Ok(told.report(&source, read, &answer))
}

/// Both worlds, idle.
fn whatif(
    args: &ReplayArgs,
    (config, service): (&Config, &ServiceConfig),
    server: &ServerSpec,
) -> Result<WhatIf> {
    let spec = Spec {
        server: server.clone(),
        clients: args.load.mixture()?,
        timeout: args.load.timeout,
        objective: service.objective,
        period: config.daemon.tick,
        classes: Classes::new(config, service).all.len() as u8,
        seed: args.seed,
    };
    Ok(WhatIf::new(&spec, model::protection(config, service, args.server.cpus)?))
}

/// What a report says beside the numbers.
struct Told<'a> {
    args: &'a ReplayArgs,
    service: &'a ServiceConfig,
    classes: &'a Classes,
    server: &'a ServerSpec,
}

impl Told<'_> {
    fn report(&self, source: &Source, read: Read, answer: &Answer) -> Report {
        let (without, with) = (&answer.without, &answer.with);
        let (period_s, periods) = report::periods(without, with);
        let rows = self.classes.all.iter().zip(without.classes.iter().zip(&with.classes));
        let rows = rows.map(|(class, (without, with))| ClassRow {
            name: class.name.clone(),
            priority: class.priority,
            without: without.into(),
            with: with.into(),
        });
        let requests = with.total().offered;
        Report {
            schema: report::SCHEMA,
            notes: self.notes(&read),
            input: Input {
                log: source.name.clone(),
                format: source::format_name(source.format),
                lines: read.lines,
                skipped: read.skipped,
                skipped_why: read.why,
                cut: read.cut,
                begins_unix_s: read.begins.map(|ns| ns as f64 / 1e9),
                requests,
                seconds: answer.last.as_secs_f64(),
            },
            service: self.service(),
            model: self.model(),
            without: (&without.total()).into(),
            with: (&with.total()).into(),
            classes: rows.filter(|row| row.with.offered > 0).collect(),
            episodes: report::episodes(with),
            episodes_more: with.episodes.more(),
            period_s,
            periods,
        }
    }

    fn service(&self) -> Service {
        let policy = &self.service.policy;
        // An Abacus filter takes no action: it chooses for each SYN.
        let chooses = policy.name.starts_with("abacus");
        Service {
            name: self.service.name.clone(),
            policy: policy.name.clone(),
            action: if chooses { "drop or reject" } else { policy.refusal().name() },
            controller: self.service.control.name.clone(),
            objective_s: self.service.objective.as_secs_f64(),
        }
    }

    fn model(&self) -> Model {
        let (args, server) = (self.args, self.server);
        let work = server.cpu.or(server.wait);
        Model {
            workers: server.workers,
            cpus: server.cpus,
            accept_queue: server.accept_limit,
            service_time_s: work.map_or(0.0, |w| w.mean_s),
            shape: args.server.shape.name(),
            bound: if server.cpu.is_some() { "cpu" } else { "waiting" },
            capacity_per_s: server.capacity(),
            clients: args.load.clients.clone(),
            timeout_s: args.load.timeout.as_secs_f64(),
            scale: args.load.scale,
            speed: args.load.speed,
            seed: args.seed,
        }
    }

    /// What a reader of the result should know.
    fn notes(&self, read: &Read) -> Vec<String> {
        let mut notes = Vec::new();
        if self.service.mode == Mode::Shadow {
            notes.push("the configuration says shadow; replayed as if it were enforce".to_owned());
        }
        if self.classes.need_addresses() && !read.addresses {
            let what = "the log has no addresses of clients: all are of class default";
            notes.push(what.to_owned());
        }
        if self.service.classes.iter().any(|c| c.dscp.is_some()) {
            notes.push("a log has no DSCP: classes by DSCP are not replayed".to_owned());
        }
        if !read.why.is_empty() {
            notes.push(format!("lines: {}", read.why));
        }
        if let Some(cut) = &read.cut {
            notes.push(format!("the log broke off {cut}; what was before it counts"));
        }
        notes
    }
}

/// The folder of a result.
fn write(dir: &Path, args: &ReplayArgs, report: &Report) -> Result<()> {
    let run = Run {
        experiment: "replay".into(),
        world: "sim".into(),
        quick: false,
        seed: args.seed,
        machine: tidegate_results::machine(),
        program: tidegate_results::PROGRAM.to_owned(),
        minutes: None,
        // The log is named in replay.json.
        data: None,
        notes: report.notes.clone(),
    };
    let path = dir.join("replay.json");
    if path.is_file() {
        forget_figures(&dir.join("figures"))?;
    }
    tidegate_results::write(dir, &run, &rows::rows(report), &[])?;
    let text = serde_json::to_string_pretty(report)? + "\n";
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

/// Figures of the results that were in a folder before would be taken for those of the new ones.
fn forget_figures(figures: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(figures) else { return Ok(()) };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "svg") {
            fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_sim::whatif::bins::BINS_MAX;

    #[test]
    fn figures_of_results_before_are_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let figures = dir.path().join("figures");
        forget_figures(&figures).unwrap();
        fs::create_dir(&figures).unwrap();
        for name in ["load.svg", "times.svg", "notes.txt"] {
            fs::write(figures.join(name), "x").unwrap();
        }
        forget_figures(&figures).unwrap();
        let left: Vec<_> =
            fs::read_dir(&figures).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["notes.txt"]);
    }

    /// An access log that is made while it is read: so many lines, `PER_SECOND` in each second.
    struct Endless {
        lines: u64,
        written: u64,
        line: Vec<u8>,
        taken: usize,
    }

    const PER_SECOND: u64 = 100;

    impl std::io::Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            if self.taken == self.line.len() && self.written < self.lines {
                let s = self.written / PER_SECOND;
                let (h, m, s) = (s / 3600, s / 60 % 60, s % 60);
                let client = self.written % 251;
                self.line = format!(
                    "203.0.113.{client} - - [01/Jan/2026:{h:02}:{m:02}:{s:02} +0000] \
                     \"GET / HTTP/1.1\" 200 1234 \"-\" \"Mozilla/5.0\"\n"
                )
                .into_bytes();
                self.written += 1;
                self.taken = 0;
            }
            let n = (&self.line[self.taken..]).read(buffer)?;
            self.taken += n;
            Ok(n)
        }
    }

    /// 58 MB of access log, most of it above the capacity, in memory that depends on the time-out
    /// and on the server, not on the log: who is under way, and the periods that are kept.
    #[test]
    fn a_long_log_needs_no_more_memory_than_a_short_one() {
        let command = ReplayArgs::augment_args(Command::new("replay"));
        let options = ["replay", "log", "--capacity", "60", "--timeout", "5s"];
        let matches = command.try_get_matches_from(options).unwrap();
        let args = ReplayArgs::from_arg_matches(&matches).unwrap();
        let text =
            "interfaces: [{name: lo}]\nservices: {web: {mode: enforce, listen: [\"*:80\"]}}\n";
        let config = tidegate_config::parse(text, &Machine.registry()).unwrap();
        let service = &config.services[0];
        let lines = 600_000;
        let endless = Endless { lines, written: 0, line: Vec::new(), taken: 0 };
        let about = ("made".to_owned(), None);
        let mut source = Source::of(about, Box::new(endless), &args.reading).unwrap();
        let server = model::server(&args.server);
        let mut whatif = whatif(&args, (&config, service), &server).unwrap();
        let bar = progress::Progress::new();
        let classes = Classes::new(&config, service);
        let read = Feed::new(&args, &classes, &mut whatif).all(&mut source, &bar).unwrap();
        assert_eq!((read.lines, whatif.offered()), (lines, lines));
        assert!(source.reader.bytes() > 50_000_000, "{}", source.reader.bytes());
        let answer = whatif.finish().unwrap();
        // Everybody who came within a time-out, and whoever is still in the server.
        let most = 5 * PER_SECOND as usize * 2 + server.workers + server.accept_limit;
        assert!(answer.clients_most <= most, "{} under way", answer.clients_most);
        let seconds = lines / PER_SECOND;
        assert!(seconds as usize > BINS_MAX, "longer than the periods at their first width");
        assert!(answer.with.bins.all().len() <= BINS_MAX);
    }
}
