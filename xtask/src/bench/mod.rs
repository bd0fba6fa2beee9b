// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask bench`: figures that are compared side by side, in one run.
//!
//! This part does not measure. It asks *subjects* ([`Subject`]) for one short measurement after
//! the other, interleaved, so that the drift of a machine (10 to 35 % between runs) meets all of
//! them alike; then it forms medians, spread, and the ratios that are claimed ([`claims`]).
//!
//! Subjects live in *workers*, programs that know how to measure (an example of tidegate-bpf or
//! tidegate-sim, or a program on somebody else's simulator): they keep what they loaded between
//! rounds, and this crate builds without them. [`worker`] describes the protocol.

mod beside;
mod claims;
mod machine;
mod peers;
mod plan;
mod report;
mod stats;
mod worker;

pub(crate) use peers::reference;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};

use crate::process;

/// Options of `cargo xtask bench`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// What to measure; everything if not said
    #[command(subcommand)]
    what: Option<Bench>,
    /// How often each subject is measured (odd, so that a median was really seen)
    #[arg(long, global = true, default_value_t = 9, value_parser = clap::value_parser!(u32).range(3..=999))]
    rounds: u32,
    /// Where the results are written as JSON
    #[arg(long, global = true, default_value = "out/bench")]
    out: PathBuf,
    /// Only subjects whose name contains this
    #[arg(long, global = true)]
    only: Option<String>,
    /// A worker of another build: each of its subjects is measured beside ours of that name
    #[arg(long, global = true, value_name = "PROGRAM")]
    beside: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand, ValueEnum)]
enum Bench {
    /// Cost of one packet on each path, in nanoseconds
    Packets,
    /// Cost of one packet in the hooks that judge requests, in nanoseconds
    Requests,
    /// Cost of one packet by its place in an exchange, in nanoseconds
    Turns,
    /// Cost of one packet at a router that measures a million connections, in nanoseconds
    Router,
    /// Cost of one refusal, ours and what else an operator could take, in nanoseconds
    Refusals,
    /// Cost of one SYN in the simulator, beside the same model in SimPy and on ns-3
    Simulator,
}

impl Bench {
    const ALL: [Self; 6] =
        [Self::Packets, Self::Requests, Self::Turns, Self::Router, Self::Refusals, Self::Simulator];

    fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Requests => "requests",
            Self::Turns => "turns",
            Self::Router => "router",
            Self::Refusals => "refusals",
            Self::Simulator => "simulator",
        }
    }

    /// The crate whose example is the worker.
    fn package(self) -> &'static str {
        match self {
            Self::Packets | Self::Requests | Self::Turns | Self::Router | Self::Refusals => {
                "tidegate-bpf"
            }
            Self::Simulator => "tidegate-sim",
        }
    }

    fn subjects(self) -> Result<Vec<worker::Remote>> {
        let mut subjects = worker::start(self.package(), self.name())?;
        if self == Self::Simulator {
            subjects.extend(peers::start());
        }
        Ok(subjects)
    }

    fn claims(self) -> &'static [claims::Claim] {
        match self {
            Self::Packets => claims::PACKETS,
            Self::Requests => claims::REQUESTS,
            Self::Turns => claims::TURNS,
            Self::Router => claims::ROUTER,
            Self::Refusals => claims::REFUSALS,
            Self::Simulator => claims::SIMULATOR,
        }
    }
}

/// One thing that is measured again and again.
pub(crate) trait Subject {
    /// Unique in its bench: lower case, words joined by `-`.
    fn name(&self) -> &str;

    /// What the number says, for people.
    fn about(&self) -> &str;

    /// One measurement, in nanoseconds per packet or refusal. Takes around a second at most.
    fn measure(&mut self) -> Result<f64>;
}

/// Measures, prints tables, writes `OUT/<bench>.json`. A claim that does not hold is reported
/// and is no error: a measurement is not a test.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.what != Some(Bench::Simulator) {
        process::need_root("it loads BPF programs and makes network namespaces")?;
    }
    if options.beside.is_some() && options.what.is_none() {
        bail!("--beside needs the bench that the program is a worker of");
    }
    let out = process::root().join(&options.out);
    std::fs::create_dir_all(&out).with_context(|| format!("making {}", options.out.display()))?;
    let machine = machine::Machine::read();
    let benches = options.what.map_or(Bench::ALL.to_vec(), |bench| vec![bench]);
    for bench in benches {
        let mut subjects = bench.subjects()?;
        if let Some(only) = &options.only {
            subjects.retain(|subject| subject.name().contains(only.as_str()));
        }
        let mut subjects: Vec<Box<dyn Subject>> = match &options.beside {
            Some(program) => {
                let others = worker::connect(&mut process::command(program))?;
                beside::pairs(subjects, others)
            }
            None => subjects.into_iter().map(|subject| Box::new(subject) as _).collect(),
        };
        let rounds = usize::try_from(options.rounds)?;
        let samples = plan::interleave(&mut subjects, rounds, &mut |done, all| {
            eprint!("\rbench {}: {done} of {all}", bench.name());
        })?;
        eprintln!();
        let result = report::Report::new(bench.name(), &machine, samples, bench.claims());
        let result = if options.beside.is_some() { result.compared() } else { result };
        print!("{result}");
        let path = out.join(format!("{}.json", bench.name()));
        std::fs::write(&path, serde_json::to_string_pretty(&result)?)
            .with_context(|| format!("writing {}", path.display()))?;
        println!("written: {}/{}.json\n", options.out.display(), bench.name());
    }
    Ok(())
}
