// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Everyday commands: `cargo xtask --help`, and docs/development.md.
//!
//! This crate uses no other crate of the workspace: it must build before the tools are there
//! that the others need.

mod bench;
mod build;
mod check;
mod demo;
mod golden;
mod guest;
mod package;
mod process;
mod registers;
mod setup;
mod test_run;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Everyday commands of the tidegate repository")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install what build, tests and demo need (needs root where something is missing)
    Setup {
        /// Also fetch what only comparisons run against
        #[arg(long)]
        rivals: bool,
        /// Also install Node and Chromium, which the full test of real clients runs (400 MB)
        #[arg(long)]
        clients: bool,
    },
    /// Build target/release/tidegate and target/release/tidegate-lab, stripped
    Build,
    /// Build those, and a Debian package of the product below target/package
    Package,
    /// Build and run every test; the last line says `N passed, N failed` (needs root)
    Test,
    /// Overload a real server, without and with tidegate (needs root)
    Demo,
    /// Format, lints, tidy; cargo-deny where it is installed
    Check,
    /// Check the rules of the repository
    Tidy {
        /// Lower the recorded exceptions from the size limits to the present sizes
        #[arg(long)]
        ratchet: bool,
    },
    /// Compare golden tables and generated documents
    Golden {
        /// Write them anew instead
        #[arg(long)]
        bless: bool,
        /// Only the documents that are made from the registers
        #[arg(long)]
        pages: bool,
    },
    /// Run the dataplane's tests on another kernel, under software emulation (needs root)
    Guest(guest::Options),
    /// Measure packets, requests and refusals, side by side (needs root)
    Bench(bench::Options),
    /// Make anew the numbers of ns-3 that the simulator's network is held against (`setup --rivals`)
    Reference,
    /// Remove build results and outputs
    Clean,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Task::Setup { rivals, clients } => setup::run(rivals, clients),
        Task::Build => build::run(),
        Task::Package => package::run(),
        Task::Test => test_run::run(),
        Task::Demo => demo::run(),
        Task::Check => check::run(),
        Task::Tidy { ratchet } => tidy::run(ratchet),
        Task::Golden { bless, pages } => golden::run(bless, pages),
        Task::Guest(options) => guest::run(&options),
        Task::Bench(options) => bench::run(&options),
        Task::Reference => bench::reference(),
        Task::Clean => build::clean(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !error.is::<process::Said>() {
                eprintln!("xtask: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}
