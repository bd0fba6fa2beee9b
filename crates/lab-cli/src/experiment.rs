// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `tidegate-lab experiment list | run | judge | draw`.

use anyhow::Result;
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use tidegate_cli::{Exit, Extension};
use tidegate_experiments::catalog::{self, Experiment};
use tidegate_experiments::folder::{self, Run, Stopwatch};
use tidegate_experiments::judge;
use tidegate_experiments::news::Source;
use tidegate_experiments::news::traces::FOLDER;
use tidegate_experiments::start::{self, Effort, Options, Outcome};
use tidegate_experiments::survival::Watch;
use tidegate_lab::Progress;

use crate::progress::Screen;

/// The command.
pub(crate) struct Experiments;

impl Extension for Experiments {
    fn command(&self) -> Command {
        let draw = Command::new("draw")
            .about("Draw the figures of a result of `tidegate replay --out`")
            .arg(
                Arg::new("dir")
                    .required(true)
                    .value_parser(clap::value_parser!(PathBuf))
                    .help("the folder; figures/ is written into it"),
            );
        Command::new("experiment")
            .about("What we claim, run and judged")
            .subcommand_required(true)
            .subcommand(Command::new("list").about("The experiments that there are"))
            .subcommand(run_command())
            .subcommand(judge_command())
            .subcommand(draw)
    }

    fn run(&self, matches: &ArgMatches, out: &mut dyn Write) -> Result<Exit> {
        match matches.subcommand() {
            Some(("run", matches)) => run(matches, out),
            Some(("judge", matches)) => {
                let dirs: Vec<PathBuf> =
                    matches.get_many::<PathBuf>("dir").into_iter().flatten().cloned().collect();
                if let Some(page) = matches.get_one::<PathBuf>("report") {
                    tidegate_experiments::report::write(&dirs, page, matches.get_flag("keep"))?;
                }
                judge_dirs(&dirs, out)
            }
            Some(("draw", matches)) => {
                let dir = matches.get_one::<PathBuf>("dir").cloned().unwrap_or_default();
                for path in tidegate_experiments::replay::draw(&dir)? {
                    writeln!(out, "figure: {}", path.display())?;
                }
                Ok(Exit::Ok)
            }
            _ => {
                for experiment in catalog::all() {
                    writeln!(out, "{:24} {}", experiment.name, experiment.title())?;
                }
                Ok(Exit::Ok)
            }
        }
    }
}

/// The arguments of `run`.
fn run_command() -> Command {
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
    };
    Command::new("run")
        .about("Run an experiment and write results.csv and figures")
        .arg(Arg::new("name").required(true).help("its name, as `list` shows it"))
        .arg(Arg::new("world").long("world").value_parser(["sim", "lab"]))
        .arg(flag("quick", "fewer points and arrivals"))
        .arg(flag("demo", "what fits in a few minutes").conflicts_with("quick"))
        .arg(flag("all", "every point of an experiment that runs a subset of them"))
        .arg(
            Arg::new("cell")
                .long("cell")
                .conflicts_with("all")
                .help("only the cells of this name, * for anything, where there are cells"),
        )
        .arg(
            Arg::new("seed").long("seed").value_parser(clap::value_parser!(u64)).default_value("1"),
        )
        .arg(Arg::new("data").long("data").value_parser(clap::value_parser!(PathBuf)).help(
            "folder with the real traces, for experiments that take them (news/…); without it \
                     ../shared/data, and stand-ins for what is not there",
        ))
        .arg(
            Arg::new("program")
                .long("program")
                .value_parser(clap::value_parser!(PathBuf))
                .help("the product that the lab starts; else `tidegate` beside this program"),
        )
        .arg(
            Arg::new("out")
                .long("out")
                .value_parser(clap::value_parser!(PathBuf))
                .required(true)
                .help("folder for results.csv, run.json and figures/"),
        )
}

/// The arguments of `judge`.
fn judge_command() -> Command {
    Command::new("judge")
        .about("Compare results with what is claimed; exit code 8 when a claim does not hold")
        .arg(
            Arg::new("dir")
                .required(true)
                .num_args(1..)
                .value_parser(clap::value_parser!(PathBuf))
                .help("folders that `run` wrote"),
        )
        .arg(
            Arg::new("report")
                .long("report")
                .value_parser(clap::value_parser!(PathBuf))
                .help("also write a page (Markdown) with figures and results beside it"),
        )
        .arg(
            Arg::new("keep")
                .long("keep")
                .action(ArgAction::SetTrue)
                .requires("report")
                .help("leave what the page says of other experiments and worlds"),
        )
}

fn effort(matches: &ArgMatches) -> Effort {
    if matches.get_flag("demo") {
        Effort::Demo
    } else if matches.get_flag("quick") {
        Effort::Quick
    } else {
        Effort::Full
    }
}

/// The product: what was named, or what was built beside this program.
fn product(matches: &ArgMatches) -> Result<PathBuf> {
    match matches.get_one::<PathBuf>("program") {
        // The lab has its own working directory.
        Some(named) => Ok(std::path::absolute(named)?),
        None => Ok(std::env::current_exe()?.with_file_name("tidegate")),
    }
}

/// The real traces: those of the folder that was named, or what is there without.
fn source(matches: &ArgMatches) -> Source {
    match matches.get_one::<PathBuf>("data") {
        Some(named) => Source::named(named.clone()),
        None => Source::beside(Path::new(FOLDER)),
    }
}

fn run(matches: &ArgMatches, out: &mut dyn Write) -> Result<Exit> {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let experiment = catalog::find(&text("name"))?;
    let dir = matches.get_one::<PathBuf>("out").cloned().unwrap_or_default();
    let options = Options {
        effort: effort(matches),
        world: matches.get_one::<String>("world").cloned(),
        seed: matches.get_one::<u64>("seed").copied().unwrap_or(1),
        program: product(matches)?,
        helper: crate::lab::helper(),
        all: matches.get_flag("all"),
        data: Some(source(matches)),
        cell: matches.get_one::<String>("cell").cloned(),
    };
    let takes_traces = experiment.name.starts_with("news/");
    if matches.contains_id("data") && !takes_traces {
        writeln!(out, "note: {} takes no traces; --data is not used", experiment.name)?;
    }
    let run = Run {
        experiment: experiment.name.to_string(),
        // A part of the cells is judged as a quick run is.
        quick: options.effort != Effort::Full || options.cell.is_some(),
        seed: options.seed,
        machine: folder::machine(),
        program: folder::PROGRAM.to_owned(),
        ..Run::default()
    };
    let screen = Screen::new(std::io::stderr().is_terminal());
    let begun = Stopwatch::start();
    let mut keeper = Keeper { screen, dir: &dir, run: &run, begun };
    let outcome = start::start(&experiment, &options, &mut keeper)?;
    keeper.screen.finish();
    let figures = keeper.write(&outcome, &[])?;
    finish((&experiment, &options), &dir, &outcome, out)?;
    // The last line says where the figure lies.
    for path in figures.iter().rev() {
        writeln!(out, "figure: {}", path.display())?;
    }
    Ok(Exit::Ok)
}

/// Shows what happens, and writes what is done: an interrupted run loses only the point it is at.
struct Keeper<'a> {
    screen: Screen,
    dir: &'a Path,
    run: &'a Run,
    begun: Stopwatch,
}

impl Keeper<'_> {
    fn write(&self, outcome: &Outcome, remarks: &[String]) -> Result<Vec<PathBuf>> {
        let run = Run {
            minutes: Some(self.begun.minutes()),
            world: outcome.rows.first().map(|row| row.world.clone()).unwrap_or_default(),
            notes: [remarks, &outcome.notes].concat(),
            data: outcome.data.clone(),
            ..self.run.clone()
        };
        folder::write(self.dir, &run, &outcome.rows, &outcome.figures)
    }
}

impl Watch for Keeper<'_> {
    fn step(&mut self, what: &str) {
        self.screen.step(what);
    }

    fn second(&mut self, progress: &Progress) {
        self.screen.second(progress);
    }

    fn kept(&mut self, so_far: &Outcome) -> Result<()> {
        self.write(so_far, &["not finished: the rest was not run".to_string()]).map(|_| ())
    }
}

fn finish(
    (experiment, options): (&Experiment, &Options),
    dir: &Path,
    outcome: &Outcome,
    out: &mut dyn Write,
) -> Result<()> {
    for note in &outcome.notes {
        writeln!(out, "note: {note}")?;
    }
    if options.effort == Effort::Demo {
        out.write_all(tidegate_experiments::summary::of(&outcome.rows).as_bytes())?;
    } else {
        let (_, lines) = folder::judge(dir)?;
        writeln!(out, "{}\n\n{}", experiment.title(), judge::table(&lines))?;
    }
    writeln!(out, "results: {}", dir.join("results.csv").display())?;
    Ok(())
}

fn judge_dirs(dirs: &[PathBuf], out: &mut dyn Write) -> Result<Exit> {
    let mut all_hold = true;
    for dir in dirs {
        let (run, lines) = folder::judge(dir)?;
        writeln!(out, "{} ({}), {}\n", run.experiment, run.world, run.machine)?;
        out.write_all(judge::table(&lines).as_bytes())?;
        let judged: Vec<_> = lines.iter().filter(|line| line.judged()).collect();
        let held = judged.iter().filter(|line| line.holds()).count();
        writeln!(out, "\n{held} of {} claims hold", judged.len())?;
        all_hold &= lines.iter().all(|line| line.holds());
    }
    Ok(if all_hold { Exit::Ok } else { Exit::ClaimFails })
}
