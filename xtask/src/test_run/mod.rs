// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask test`: builds and runs every test of the workspace.
//!
//! cargo builds all test programs at once, so that nothing is built twice with other features. Then they are
//! started from here, in groups:
//!
//! - *Pure* crates run their tests in parallel, two programs at a time.
//! - *Steady* programs are those of the other crates that need a processor and nothing else: they give
//!   packets to BPF programs, whose clock is the test's own. Two run at a time.
//! - *Beside* each other run programs that mostly wait: for a lease, a time-out, a real client. They come
//!   in four lanes. Only lane *loopback* takes ports of this host; *daemons*, *clients* and *routers* make
//!   namespaces of their own. None of them measures what a processor can do.
//! - *Idle* is the fifth lane. It takes what processors the others leave, as they mostly wait: it repeats, as
//!   a release build, the tests that hold results against recorded bytes (the same seed must give the same
//!   bytes however it was compiled), and it runs the examples in the documentation.
//! - All other programs use what the machine has only once – processors to pin to, time that passes,
//!   pins – so in the group *machine* their tests run one at a time, and one program after the other.
//!
//! What is new belongs to *machine* until it is named elsewhere: slower, never wrong.
//!
//! At the end stand the times of the groups and of the slowest programs, and the closing lines of all
//! runners. The last line of all is their sum, `N passed, N failed`, alone on its line. A program that dies
//! without a closing line counts as one failed test.

mod descendants;
mod programs;
mod tally;
mod targets;
mod watch;

use std::collections::{BTreeSet, VecDeque};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;

use crate::process;
pub(crate) use programs::{Program, build};
pub(crate) use tally::Tally;
use targets::Test;
pub(crate) use watch::watch;

/// Crates that touch neither network, processes nor kernel.
const PURE: [&str; 13] = [
    "tidegate-units",
    "tidegate-model",
    "tidegate-config",
    "tidegate-policy",
    "tidegate-params",
    "tidegate-control",
    "tidegate-workload",
    "tidegate-sim",
    "tidegate-telemetry",
    "tidegate-api",
    "tidegate-cli",
    "tidegate-results",
    "xtask",
];
/// Test programs by package.
type Programs = &'static [(&'static str, &'static [&'static str])];
/// Test programs of the other crates that need a processor and nothing else. What takes long stands first:
/// two run at a time, and nobody shall wait for the last one.
const STEADY: Programs = &[
    ("tidegate-gate", &["finds_its_limit", "fuzz_smoke"]),
    (
        "tidegate-bpf",
        &[
            "differential",
            "golden",
            "late",
            "oldest_kernel",
            "recognise",
            "recognise_gate",
            "senders",
            "turns",
            "budget",
            "canary",
            "connections",
            "coverage",
            "failures",
            "fuzz_smoke",
            "invariants",
            "proved",
            "replay",
            "requests_canary",
            "requests_coverage",
            "rules_shown",
            "sources",
        ],
    ),
    ("tidegate-daemon", &["fuzz_smoke"]),
    ("tidegate-flowspec", &["export", "fuzz_smoke", "import", "nlri"]),
    ("tidegate-peer", &["bus", "fuzz_smoke"]),
    ("tidegate-proxy", &["fuzz_smoke"]),
    ("tidegate-experiments", &["abacus", "dual", "news", "thresholds"]),
    ("tidegate", &["replay"]),
];
/// Test programs that mostly wait, in lanes that take about as long. One that company makes unreliable
/// belongs to *machine* again.
const BESIDE: [(&str, Programs); 4] = [
    (
        "loopback",
        &[
            ("tidegate-bpf", &["attach", "lost", "reload", "signals", "takeover"]),
            (
                "tidegate-gate",
                &[
                    "fuzz_listener",
                    "gate",
                    "lib",
                    "overlong",
                    "priorities",
                    "reload",
                    "remote",
                    "share",
                    "throttled",
                    "tls",
                    "traefik",
                    "unheard",
                ],
            ),
            (
                "tidegate-peer",
                &[
                    "authority",
                    "bus_nats",
                    "delegation",
                    "destinations",
                    "frame",
                    "lib",
                    "node",
                    "pushback",
                    "session",
                ],
            ),
            ("tidegate-proxy", &["attacks", "lib", "proxy"]),
            (
                "tidegate",
                &[
                    "bypassed",
                    "gateways",
                    "gateways_share",
                    "gateways_tls",
                    "only_gateways",
                    "proxy",
                ],
            ),
        ],
    ),
    (
        "daemons",
        &[
            (
                "tidegate",
                &[
                    "cluster",
                    "daemon",
                    "kept",
                    "log",
                    "lost_hooks",
                    "owners",
                    "packaging",
                    "record",
                    "requests",
                    "silent",
                ],
            ),
            ("tidegate-daemon", &["lost_hooks", "owner"]),
            ("tidegate-flowspec", &["lib", "routers"]),
            (
                "tidegate-bpf",
                &[
                    "border",
                    "datagrams",
                    "imported",
                    "lately",
                    "marks",
                    "removal",
                    "request_reload",
                    "requests",
                    "router_actions",
                    "router_limit",
                    "router_replay",
                    "tables",
                ],
            ),
        ],
    ),
    (
        "clients",
        &[
            (
                "tidegate-bpf",
                &[
                    "evaders_live",
                    "exchanges_live",
                    "hooks",
                    "late_live",
                    "programs",
                    "requests_odd_live",
                    "router",
                    "sockets",
                    "tls_live",
                ],
            ),
            ("tidegate", &["places", "router", "router_node"]),
        ],
    ),
    (
        "routers",
        &[(
            "tidegate",
            &[
                "pushback",
                "pushback_cascade",
                "pushback_ends",
                "pushback_marks",
                "router_actions",
                "routers",
                "routers_bus",
            ],
        )],
    ),
];
/// Tests of recorded bytes of the simulator, by the crates that have them. Tables of experiments are made of these, by
/// code whose tests run once.
const BYTES: ([&str; 2], [&str; 3]) =
    (["tidegate-workload", "tidegate-sim"], ["pinned", "syn", "net_bytes"]);
/// A program that takes longer than this has hung: it is killed, and the run has failed.
const PROGRAM_MAX: Duration = Duration::from_secs(10 * 60);
/// Continuous integration has an hour. What is not over after this time there is killed, so that the run says what it
/// counted.
const RUN_MAX: Duration = Duration::from_secs(56 * 60);
/// How many of the slowest programs are named.
const SLOWEST: usize = 15;

/// What a worker does in one go.
enum Job {
    Program(Program),
    /// Builds the tests of recorded bytes, and runs them.
    Bytes,
    /// Examples of documentation are compiled as they run: cargo knows no other way.
    Docs,
}

/// What runs together.
struct Group {
    name: &'static str,
    jobs: Mutex<VecDeque<Job>>,
    /// How many of the jobs run at once.
    workers: usize,
    how: How,
}

/// How a program runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// Its tests run side by side.
    AtOnce,
    OneAtATime,
    /// Side by side, with what all others leave of the processors.
    Idle,
}

/// The groups that run at once; most are alone.
type Turn = Vec<Group>;

/// Errors: no root, something does not build, a test failed, or no test ran.
pub(crate) fn run() -> Result<()> {
    process::need_root("tests make network namespaces and load BPF programs")?;
    let end = match std::env::var_os("CI") {
        Some(_) => process::uptime() + RUN_MAX,
        None => Duration::MAX,
    };
    let mut tally = Tally::default();
    // All of it first: nobody waits for a failure that a compiler finds. What users build are the same
    // crates as release programs: `cargo xtask build`, which the demo begins with.
    let all = built("build", &mut cargo_test(&["--workspace"]), &mut tally);
    if all.is_empty() {
        return report(&tally);
    }
    let tests = targets::all()?;
    missing(&tests, &all).for_each(|test| tally.broken(&format!("not built: {test:?}")));
    for turn in turns(all) {
        tally.add(run_turn(&turn, end));
    }
    report(&tally)
}

/// Those of all tests that no program is there for.
fn missing<'a>(all: &'a BTreeSet<Test>, built: &'a [Program]) -> impl Iterator<Item = &'a Test> {
    all.iter().filter(|test| built.iter().all(|program| program.test != **test))
}

fn built(name: &str, cargo: &mut Command, tally: &mut Tally) -> Vec<Program> {
    let since = process::uptime();
    let built = build(cargo);
    tally.part(name, process::uptime().saturating_sub(since));
    built.unwrap_or_else(|error| {
        tally.broken(&format!("{name}: {error:#}"));
        Vec::new()
    })
}

/// The groups in their order.
fn turns(mut all: Vec<Program>) -> Vec<Turn> {
    let group = |name, jobs, workers, how| Group { name, jobs: Mutex::new(jobs), workers, how };
    let jobs = |programs: Vec<Program>| programs.into_iter().map(Job::Program).collect();
    let pure = all.extract_if(.., |one| PURE.contains(&&*one.test.package)).collect();
    let mut named = |programs| jobs(take(&mut all, programs));
    let steady = named(STEADY);
    let lanes = BESIDE.map(|(name, programs)| group(name, named(programs), 1, How::OneAtATime));
    let idle = group("idle", [Job::Bytes, Job::Docs].into(), 1, How::Idle);
    vec![
        vec![group("pure", jobs(pure), 2, How::AtOnce)],
        vec![group("steady", steady, 2, How::OneAtATime)],
        lanes.into_iter().chain([idle]).collect(),
        vec![group("machine", jobs(all), 1, How::OneAtATime)],
    ]
}

/// Takes what is named, in that order.
fn take(from: &mut Vec<Program>, programs: Programs) -> Vec<Program> {
    let tests = programs
        .iter()
        .flat_map(|(package, names)| names.iter().map(|name| Test::new(package, name)));
    tests.flat_map(|test| Vec::from_iter(from.extract_if(.., |one| one.test == test))).collect()
}

/// `end`: when the whole run has to be over.
fn run_turn(turn: &[Group], end: Duration) -> Tally {
    let several = turn.len() > 1;
    at_once(turn.iter().map(|group| move || run_group(group, several, end)))
}

/// `several`: others run beside it.
fn run_group(group: &Group, several: bool, end: Duration) -> Tally {
    println!("test: group `{}`", group.name);
    let since = process::uptime();
    let before_line = |worker: usize| match (group.workers > 1, several) {
        (true, _) => format!("{} {worker}: ", group.name),
        (false, true) => format!("{}: ", group.name),
        (false, false) => String::new(),
    };
    let mut tally = at_once((1..=group.workers).map(|worker| {
        let before_line = before_line(worker);
        move || {
            let mut tally = Tally::default();
            while let Some(job) = group.next() {
                run_job(job, group.how, end, &before_line, &mut tally);
            }
            tally
        }
    }));
    tally.part(&format!("group {}", group.name), process::uptime().saturating_sub(since));
    tally
}

impl Group {
    fn next(&self) -> Option<Job> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// What all of them counted.
fn at_once(work: impl Iterator<Item = impl FnOnce() -> Tally + Send>) -> Tally {
    let mut sum = Tally::default();
    std::thread::scope(|scope| {
        let running: Vec<_> = work.map(|one| scope.spawn(one)).collect();
        for one in running {
            match one.join() {
                Ok(tally) => sum.add(tally),
                Err(_) => sum.broken("who ran a group panicked"),
            }
        }
    });
    sum
}

fn run_job(job: Job, how: How, end: Duration, before_line: &str, tally: &mut Tally) {
    match job {
        Job::Program(program) => run_program(&program, how, end, before_line, tally),
        Job::Bytes => {
            let mut cargo = cargo_test(&["--release"]);
            cargo.args(BYTES.0.iter().flat_map(|name| ["--package", name]));
            cargo.args(BYTES.1.iter().flat_map(|name| ["--test", name]));
            for program in built("build of recorded bytes", &mut how.runs(cargo), tally) {
                run_program(&program, how, end, before_line, tally);
            }
        }
        Job::Docs => {
            let cargo = how.runs(cargo_test(&["--workspace", "--doc"]));
            run_counted("docs", cargo, end, before_line, tally);
        }
    }
}

fn run_program(program: &Program, how: How, end: Duration, before_line: &str, tally: &mut Tally) {
    let name = program.name();
    if process::uptime() >= end {
        return tally.broken(&format!("{name}: not started, the time of the whole run is over"));
    }
    println!("{before_line}     Running {name} ({})", program.executable.display());
    let mut command = how.runs(as_ci(program.command()));
    if how == How::OneAtATime {
        command.arg("--test-threads=1");
    }
    tally.begins(name.clone(), process::uptime());
    run_counted(&name, command, end, before_line, tally);
}

/// What fails without a failed test counts as one.
fn run_counted(name: &str, command: Command, end: Duration, before_line: &str, tally: &mut Tally) {
    let failed_before = tally.failed();
    let left = end.saturating_sub(process::uptime()).min(PROGRAM_MAX);
    let ran = watch(command, left, before_line, tally);
    tally.end_of_programs(process::uptime());
    if let Err(error) = ran
        && tally.failed() == failed_before
    {
        tally.broken(&format!("{name}: {error:#}"));
    }
}

/// Below all other processes. One session shares its time with another one, so this gets a session of its
/// own, with least weight, where the kernel makes groups of them.
const IDLE: &str = "{ echo 19 >/proc/self/autogroup; } 2>/dev/null; exec chrt --idle 0 \"$@\"";

impl How {
    fn runs(self, command: Command) -> Command {
        if self != Self::Idle {
            return command;
        }
        let mut idle = Command::new("setsid");
        idle.args(["sh", "-c", IDLE, "sh"]).arg(command.get_program()).args(command.get_args());
        idle.stdin(Stdio::null());
        if let Some(folder) = command.get_current_dir() {
            idle.current_dir(folder);
        }
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => idle.env(name, value),
                None => idle.env_remove(name),
            };
        }
        idle
    }
}

fn cargo_test(words: &[&str]) -> Command {
    let mut command = as_ci(process::cargo());
    command.args(["test", "--locked", "--no-fail-fast"]).args(words);
    command
}

/// Golden files are compared here and never rewritten: `cargo xtask golden --bless` does.
fn as_ci(mut command: Command) -> Command {
    command.env("INSTA_UPDATE", "no").env("CARGO_TERM_COLOR", "never").env_remove("TIDEGATE_BLESS");
    command
}

/// Says what was counted; an error if something failed or nothing ran.
pub(crate) fn report(tally: &Tally) -> Result<()> {
    let show = |took: &tally::Took| println!("{:>8.1} s  {}", took.time.as_secs_f64(), took.what);
    println!("\ntest: how long the parts took");
    tally.parts().iter().for_each(show);
    println!("\ntest: the slowest programs");
    tally.slowest(SLOWEST).into_iter().for_each(show);
    println!("\ntest: the runners' closing lines");
    for line in tally.closing_lines() {
        println!("  {line}");
    }
    if tally.passed() + tally.failed() == 0 {
        println!("  no test ran: that is a failure");
    }
    println!("{} passed, {} failed", tally.passed(), tally.failed());
    if tally.failed() > 0 || tally.passed() == 0 {
        return Err(process::Said.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// A crate of its own in a temporary folder, with one test of each fate.
    struct Fixture(std::path::PathBuf);

    impl Fixture {
        fn new() -> Self {
            let folder =
                std::env::temp_dir().join(format!("tidegate-fixture-{}", std::process::id()));
            std::fs::create_dir_all(folder.join("src")).expect("a temporary folder");
            std::fs::create_dir_all(folder.join("tests")).expect("a temporary folder");
            for (path, text) in [
                ("Cargo.toml", "[package]\nname = \"fixture\"\nedition = \"2024\"\n[workspace]\n"),
                (
                    "src/lib.rs",
                    "/// ```\n/// assert!(true);\n/// ```\npub fn a() {}\n\
                     #[test]\nfn good() {}\n#[test]\nfn bad() { panic!(\"on purpose\") }\n",
                ),
                ("tests/dies.rs", "#[test]\nfn dies() { std::process::abort() }\n"),
            ] {
                std::fs::write(folder.join(path), text).expect("writable");
            }
            Self(folder)
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Programs of a crate of our own, built and run as those of the workspace are.
    #[test]
    fn what_cargo_really_builds_is_run_and_counted() {
        let fixture = Fixture::new();
        let cargo = |words: &[&str]| {
            let mut command = process::cargo();
            command
                .current_dir(&fixture.0)
                .args(["test", "--offline", "--no-fail-fast"])
                .args(words);
            command.env("CARGO_TARGET_DIR", fixture.0.join("target"));
            command
        };
        let programs = build(&mut cargo(&[])).expect("it builds");
        let names = |programs: &[Program]| -> Vec<String> {
            programs.iter().map(|program| program.test.name.clone()).collect()
        };
        assert_eq!(BTreeSet::from_iter(names(&programs)), ["dies", "lib"].map(String::from).into());
        let twice = [group("fixture", programs.clone(), 2), group("below", programs, 1)];
        let [first, mut below] = twice;
        below.how = How::Idle;
        let mut tally = run_turn(&[first, below], Duration::MAX);
        watch(cargo(&["--doc"]), PROGRAM_MAX, "", &mut tally).expect("the example is good");
        tally.end_of_programs(process::uptime());
        // Twice the unit tests: one good, one bad. The one that dies has no closing line. One doc test.
        assert_eq!((tally.passed(), tally.failed()), (3, 4), "{:?}", tally.closing_lines());
        let dies = |line: &String| line.contains("tests/dies.rs: ended without");
        assert!(tally.closing_lines().iter().any(dies), "{:?}", tally.closing_lines());
        assert_eq!(tally.slowest(SLOWEST).len(), 5);
        assert_eq!(tally.parts().len(), 2);
    }

    fn group(name: &'static str, programs: Vec<Program>, workers: usize) -> Group {
        let jobs = programs.into_iter().map(Job::Program).collect();
        Group { name, jobs: Mutex::new(jobs), workers, how: How::OneAtATime }
    }

    fn program(test: &Test) -> Program {
        let none = Path::new("/nowhere");
        let [folder, source, executable] = [none; 3].map(Path::to_path_buf);
        Program { test: test.clone(), folder, source, executable }
    }

    #[test]
    fn no_test_at_all_is_a_failure() {
        assert!(report(&Tally::default()).is_err());
    }

    /// A name that no program has would leave what it meant in the group of all others.
    #[test]
    fn every_program_that_is_named_exists_and_stands_in_one_place() {
        let all = targets::all().expect("cargo describes the workspace");
        let mut seen = BTreeSet::new();
        for (package, names) in
            [STEADY].into_iter().chain(BESIDE.map(|(_, programs)| programs)).flatten()
        {
            for name in *names {
                let test = Test::new(package, name);
                assert!(all.contains(&test), "no test program {test:?}");
                assert!(!PURE.contains(package), "{test:?} is of a pure crate");
                assert!(seen.insert(test), "{package}: {name} stands twice");
            }
        }
        for package in PURE {
            assert!(all.iter().any(|test| test.package == package), "no crate {package}");
        }
    }

    #[test]
    fn every_program_runs_once() {
        let all = targets::all().expect("cargo describes the workspace");
        let turns = turns(all.iter().map(program).collect());
        assert_eq!(missing(&all, &[]).count(), all.len());
        let mut run = Vec::new();
        for group in turns.iter().flatten() {
            while let Some(job) = group.next() {
                if let Job::Program(program) = job {
                    run.push((program.test, group.name));
                }
            }
        }
        run.sort();
        let once: Vec<&Test> = run.iter().map(|(test, _)| test).collect();
        assert_eq!(once, Vec::from_iter(&all));
        let place = |package: &str, name: &str| {
            let test = Test::new(package, name);
            run.iter().find(|(other, _)| *other == test).map(|(_, group)| *group)
        };
        assert_eq!(place("tidegate-policy", "abacus"), Some("pure"));
        assert_eq!(place("tidegate-experiments", "abacus"), Some("steady"));
        assert_eq!(place("tidegate", "router"), Some("clients"));
        assert_eq!(place("tidegate-daemon", "lib"), Some("machine"));
    }

    #[test]
    fn what_is_idle_runs_below_all_others_in_its_folder_with_its_environment() {
        let mut command = Command::new("sh");
        command
            .args(["-c", "chrt -p $$; pwd; echo \"$A$B\"", "x y"])
            .current_dir("/")
            .env("A", "a b");
        let output = process::output(&mut How::Idle.runs(command)).expect("it runs");
        assert!(output.contains("SCHED_IDLE") && output.contains("\n/\na b\n"), "{output}");
    }

    #[test]
    fn what_would_begin_after_the_end_of_the_run_is_counted_and_not_started() {
        let tally = run_turn(&[group("a", vec![program(&Test::new("a", "b"))], 1)], Duration::ZERO);
        assert_eq!((tally.passed(), tally.failed()), (0, 1));
        assert!(tally.closing_lines()[0].contains("not started"), "{:?}", tally.closing_lines());
    }

    #[test]
    fn groups_of_a_turn_run_at_once_and_both_are_counted() {
        let missing = || vec![program(&Test::new("a", "b"))];
        let tally = run_turn(&[group("a", missing(), 1), group("b", missing(), 2)], Duration::MAX);
        assert_eq!((tally.passed(), tally.failed()), (0, 2), "{:?}", tally.closing_lines());
        assert_eq!(tally.parts().len(), 2);
    }
}
