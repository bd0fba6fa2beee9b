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
//!   in three lanes. Only lane *loopback* takes ports of this host; *daemons* and *clients* make namespaces
//!   of their own. None of them measures what a server can do.
//! - All other programs use what the machine has only once – processors to pin to, time that passes,
//!   pins – so in the group *machine* their tests run one at a time, and one program after the other.
//! - *Docs*: the examples in the documentation.
//! - *Bytes* repeats, as a release build, the tests that hold results against recorded bytes: the same seed
//!   must give the same bytes however it was compiled.
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
use std::process::Command;
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
    ("tidegate-gate", &["fuzz_smoke"]),
    ("tidegate-peer", &["fuzz_smoke"]),
    ("tidegate-proxy", &["fuzz_smoke"]),
    ("tidegate-experiments", &["abacus", "dual", "news", "thresholds"]),
    ("tidegate", &["replay"]),
];
/// Test programs that mostly wait, in lanes that take about as long. One that company makes unreliable
/// belongs to *machine* again.
const BESIDE: [(&str, Programs); 3] = [
    (
        "loopback",
        &[
            ("tidegate-bpf", &["attach", "lost", "reload", "signals", "takeover"]),
            (
                "tidegate-gate",
                &[
                    "finds_its_limit",
                    "fuzz_listener",
                    "gate",
                    "priorities",
                    "reload",
                    "throttled",
                    "tls",
                    "traefik",
                ],
            ),
            ("tidegate-peer", &["delegation", "frame", "pushback", "session"]),
            ("tidegate-proxy", &["attacks", "proxy"]),
            ("tidegate", &["bypassed", "gateways_tls", "only_gateways", "proxy", "pushback"]),
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
            ("tidegate-daemon", &["lost_hooks"]),
            ("tidegate-flowspec", &["routers"]),
            ("tidegate-bpf", &["requests", "tables"]),
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
            ("tidegate", &["places", "router"]),
        ],
    ),
];
/// Tests of recorded bytes, by the crates that have them.
const BYTES: ([&str; 3], [&str; 5]) = (
    ["tidegate-workload", "tidegate-sim", "tidegate-experiments"],
    ["pinned", "syn", "net_bytes", "abacus", "dual"],
);
/// A group that takes longer than this has hung: it is killed, and the run has failed. Building
/// takes about ten minutes of the hour that the whole run has.
const GROUP_MAX: Duration = Duration::from_secs(30 * 60);
/// How many of the slowest programs are named.
const SLOWEST: usize = 15;

/// What runs as one process.
enum Job {
    Program(Program),
    /// Examples of documentation are compiled as they run: cargo knows no other way.
    Docs,
}

/// What runs together.
struct Group {
    name: &'static str,
    jobs: Mutex<VecDeque<Job>>,
    /// How many of the jobs run at once.
    workers: usize,
    /// Whether the tests of a program run one at a time.
    one_at_a_time: bool,
}

/// The groups that run at once; most are alone.
type Turn = Vec<Group>;

/// Errors: no root, something does not build, a test failed, or no test ran.
pub(crate) fn run() -> Result<()> {
    process::need_root("tests make network namespaces and load BPF programs")?;
    let mut tally = Tally::default();
    // All of it first: nobody waits for a failure that a compiler finds. What users build are the same
    // crates as release programs: `cargo xtask build`, which the demo begins with.
    let all = built("build", cargo_test().arg("--workspace"), &mut tally);
    let bytes = built(
        "build of bytes",
        cargo_test()
            .arg("--release")
            .args(BYTES.0.iter().flat_map(|name| ["--package", name]))
            .args(BYTES.1.iter().flat_map(|name| ["--test", name])),
        &mut tally,
    );
    if !all.is_empty() {
        let tests = targets::all()?;
        missing(&tests, &all).for_each(|test| tally.broken(&format!("not built: {test:?}")));
    }
    for turn in turns(all, bytes) {
        tally.add(run_turn(&turn));
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

/// The groups in their order: of all programs, and of those for recorded bytes.
fn turns(mut all: Vec<Program>, bytes: Vec<Program>) -> Vec<Turn> {
    let group = |name, programs: Vec<Program>, workers, one_at_a_time| {
        let jobs = programs.into_iter().map(Job::Program).collect();
        Group { name, jobs: Mutex::new(jobs), workers, one_at_a_time }
    };
    let pure = all.extract_if(.., |one| PURE.contains(&&*one.test.package)).collect();
    let mut named = |programs| take(&mut all, programs);
    let steady = named(STEADY);
    let beside = BESIDE.map(|(name, programs)| group(name, named(programs), 1, true));
    let docs =
        Group { jobs: Mutex::new([Job::Docs].into()), ..group("docs", Vec::new(), 1, false) };
    vec![
        vec![group("pure", pure, 2, false)],
        vec![group("steady", steady, 2, true)],
        beside.into(),
        vec![group("machine", all, 1, true)],
        vec![docs],
        vec![group("bytes", bytes, 1, false)],
    ]
}

/// Takes what is named, in that order.
fn take(from: &mut Vec<Program>, programs: Programs) -> Vec<Program> {
    let tests = programs
        .iter()
        .flat_map(|(package, names)| names.iter().map(|name| Test::new(package, name)));
    tests.flat_map(|test| Vec::from_iter(from.extract_if(.., |one| one.test == test))).collect()
}

fn run_turn(turn: &[Group]) -> Tally {
    let several = turn.len() > 1;
    at_once(turn.iter().map(|group| move || run_group(group, several)))
}

/// `several`: others run beside it.
fn run_group(group: &Group, several: bool) -> Tally {
    println!("test: group `{}`", group.name);
    let since = process::uptime();
    let end = since + GROUP_MAX;
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
                run_job(&job, group, end, &before_line, &mut tally);
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

fn run_job(job: &Job, group: &Group, end: Duration, before_line: &str, tally: &mut Tally) {
    let now = process::uptime();
    let (name, mut command) = match job {
        Job::Docs => ("docs".to_owned(), docs()),
        Job::Program(program) => {
            let name = program.name();
            println!("{before_line}     Running {name} ({})", program.executable.display());
            tally.begins(name.clone(), now);
            (name, as_ci(program.command()))
        }
    };
    if group.one_at_a_time {
        command.arg("--test-threads=1");
    }
    let failed_before = tally.failed();
    let ran = watch(command, end.saturating_sub(now), before_line, tally);
    tally.end_of_programs(process::uptime());
    if let Err(error) = ran
        && tally.failed() == failed_before
    {
        tally.broken(&format!("{name}: {error:#}"));
    }
}

fn cargo_test() -> Command {
    let mut command = as_ci(process::cargo());
    command.args(["test", "--locked", "--no-fail-fast"]);
    command
}

fn docs() -> Command {
    let mut command = cargo_test();
    command.args(["--workspace", "--doc"]);
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
        let mut tally = run_turn(&[group("fixture", programs, 2)]);
        watch(cargo(&["--doc"]), GROUP_MAX, "", &mut tally).expect("the example is good");
        tally.end_of_programs(process::uptime());
        // Unit tests: one good, one bad. The one that dies has no closing line. One doc test.
        assert_eq!((tally.passed(), tally.failed()), (2, 2), "{:?}", tally.closing_lines());
        let dies = |line: &String| line.contains("tests/dies.rs: ended without");
        assert!(tally.closing_lines().iter().any(dies), "{:?}", tally.closing_lines());
        assert_eq!(tally.slowest(SLOWEST).len(), 3);
        assert_eq!(tally.parts()[0].what, "group fixture");
    }

    fn group(name: &'static str, programs: Vec<Program>, workers: usize) -> Group {
        let jobs = programs.into_iter().map(Job::Program).collect();
        Group { name, jobs: Mutex::new(jobs), workers, one_at_a_time: true }
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
        let turns = turns(all.iter().map(program).collect(), Vec::new());
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
    fn groups_of_a_turn_run_at_once_and_both_are_counted() {
        let missing = || vec![program(&Test::new("a", "b"))];
        let tally = run_turn(&[group("a", missing(), 1), group("b", missing(), 2)]);
        assert_eq!((tally.passed(), tally.failed()), (0, 2), "{:?}", tally.closing_lines());
        assert_eq!(tally.parts().len(), 2);
    }
}
