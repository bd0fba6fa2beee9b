// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lab's own processes – guard, load generator, small server – as hidden subcommands of one
//! program, so that whatever binary uses the lab can also be what the lab starts.

use crate::load::{self, LoadPlan};
use crate::server::tiny;
use crate::{Lab, LabOptions, attack, bulk, datagrams, flood, guard, idle};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Largest plan read from standard input, in bytes.
const PLAN_BYTES_MAX: u64 = 256 << 20;

/// The program that serves the lab's subcommands, and the arguments that lead there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Helper {
    /// The program.
    pub program: PathBuf,
    /// Arguments before the subcommand.
    pub args: Vec<String>,
}

impl Helper {
    /// The running program itself, with the arguments after which it calls [`main`].
    #[must_use]
    pub fn this_program(args: &[&str]) -> Self {
        let program = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
        Self::program_with(program, args)
    }

    /// Another program that takes the subcommands after these arguments.
    #[must_use]
    pub fn program_with(program: impl Into<PathBuf>, args: &[&str]) -> Self {
        Self { program: program.into(), args: args.iter().map(|a| (*a).to_owned()).collect() }
    }

    /// A program such as `tidegate-load` that takes the subcommands directly.
    #[must_use]
    pub fn program(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), args: Vec::new() }
    }

    /// `tidegate-load` in the folder of another program. The product serves nothing of the lab; tests of the
    /// product find it beside the product.
    ///
    /// # Errors
    /// When it was not built.
    pub fn beside(program: impl AsRef<Path>) -> Result<Self, String> {
        let load = program.as_ref().with_file_name("tidegate-load");
        if load.is_file() {
            return Ok(Self::program(load));
        }
        Err(format!(
            "no {}: cargo build -p tidegate-lab makes it, in the same profile (--release?)",
            load.display()
        ))
    }

    pub(crate) fn command(&self, subcommand: &str) -> Vec<String> {
        let program = self.program.to_string_lossy().into_owned();
        std::iter::once(program).chain(self.args.clone()).chain([subcommand.to_owned()]).collect()
    }
}

const USAGE: &str =
    "usage: run | shard | serve JSON | flood JSON | datagrams JSON | attack JSON | bulk JSON | idle FILE | burn MICROS | guard ID | hold | sweep
  run    a load plan (JSON) on standard input; progress as JSON lines, then the report
  shard  one process of a load: plan on standard input
  serve  the small server, options as JSON
  flood  SYNs from senders that nobody has, options as JSON
  datagrams  datagrams of one size, options as JSON
  attack     attacks the limits between servers and routers, options as JSON
  bulk   one end of chunks at a pace, options as JSON
  idle   a loop that counts into a file what time is left (see chrt --idle)
  burn   use so much CPU time
  guard  remove a lab when standard input ends
  hold   make a lab and keep it until standard input ends
  sweep  remove the labs whose owners are dead";

/// Serves one subcommand; `args` are those after the program's name (and after what leads here).
#[must_use]
pub fn main(args: &[String]) -> ExitCode {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["run"] => run(),
        ["shard"] => load::shard_main(),
        ["serve", options] => serve(options),
        ["flood", options] => {
            let options = serde_json::from_str(options).map_err(|e| format!("options: {e}"));
            options.and_then(|o| flood::main(&o).map_err(|e| e.to_string()))
        }
        ["datagrams", options] => {
            let options = serde_json::from_str(options).map_err(|e| format!("options: {e}"));
            options.and_then(|o| datagrams::main(&o).map_err(|e| e.to_string()))
        }
        ["attack", options] => {
            let options = serde_json::from_str(options).map_err(|e| format!("options: {e}"));
            options.and_then(|o| attack::main(&o).map_err(|e| e.to_string()))
        }
        ["bulk", options] => {
            let options = serde_json::from_str(options).map_err(|e| format!("options: {e}"));
            options.and_then(|o| bulk::main(&o).map_err(|e| e.to_string()))
        }
        ["idle", file] => idle::main(file),
        ["burn", micros] => idle::burn(micros),
        ["guard", id] => report(&guard::watch(id)),
        ["hold"] => hold(),
        ["sweep"] => {
            let (removed, problems) = crate::registry::sweep();
            removed.iter().for_each(|id| println!("removed {id}"));
            report(&problems)
        }
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn report(problems: &[String]) -> Result<(), String> {
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

/// Reads a plan from standard input.
pub(crate) fn read_plan() -> Result<LoadPlan, String> {
    let mut text = String::new();
    let mut input = std::io::stdin().lock().take(PLAN_BYTES_MAX);
    input.read_to_string(&mut text).map_err(|e| format!("standard input: {e}"))?;
    serde_json::from_str(&text).map_err(|e| format!("plan: {e}"))
}

/// The load generator as a program: in whatever namespace it is started.
fn run() -> Result<(), String> {
    let plan = read_plan()?;
    let helper = Helper::this_program(&[]);
    let mut print = |progress: &load::Progress| {
        if let Ok(line) = serde_json::to_string(progress) {
            println!("{line}");
        }
    };
    let report = load::run_here(&helper, &plan, &mut print).map_err(|e| e.to_string())?;
    let line = serde_json::to_string(&report).map_err(|e| e.to_string())?;
    writeln!(std::io::stdout(), "{line}").map_err(|e| e.to_string())
}

fn serve(options: &str) -> Result<(), String> {
    let options = serde_json::from_str(options).map_err(|e| format!("options: {e}"))?;
    tiny::serve(&options).map_err(|e| e.to_string())
}

/// A lab that only exists: for tests of how labs end, and for looking around in one.
fn hold() -> Result<(), String> {
    let options = LabOptions::new(Helper::this_program(&[]));
    let lab = Lab::new(options).map_err(|e| e.to_string())?;
    let server = lab.start_tiny(&tiny::TinyOptions::default()).map_err(|e| e.to_string())?;
    println!("{} {}", lab.id(), lab.guard_pid());
    let mut byte = [0_u8; 64];
    while matches!(std::io::stdin().lock().read(&mut byte), Ok(n) if n > 0) {}
    drop(server);
    drop(lab);
    Ok(())
}
