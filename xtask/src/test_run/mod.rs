// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask test`: builds and runs every test of the workspace.
//!
//! - *Pure* crates run their tests in parallel.
//! - All other crates use what the machine has only once – processors to pin to, time that passes,
//!   pins – so in the group *machine* their tests run one at a time; cargo itself runs one test program
//!   after the other.
//! - *Steady* programs are those of the other crates that need a processor and nothing else: they give
//!   packets to BPF programs, whose clock is the test's own. They run in two halves, side by side.
//! - *Beside* each other run programs that mostly wait: for a lease, a time-out, a real client. They come
//!   in three lanes. Only lane *loopback* takes ports of this host; *daemons* and *clients* make namespaces
//!   of their own. None of them measures what a server can do.
//! - *Docs*: the examples in the documentation of the other crates.
//! - *Bytes* repeats, as a release build, the tests that hold results against recorded bytes: the same seed
//!   must give the same bytes however it was compiled.
//!
//! What is new belongs to *machine* until it is named elsewhere: slower, never wrong.
//!
//! The closing lines of all runners are printed again at the end, and the last line of all is
//! their sum, `N passed, N failed`, alone on its line. A program that dies without a closing
//! line counts as one failed test.

mod descendants;
mod tally;
mod targets;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process;
pub(crate) use tally::Tally;

/// Crates that touch neither network, processes nor kernel.
pub(crate) const PURE: [&str; 13] = [
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
/// Test programs of the other crates that need a processor and nothing else, in halves that take about as
/// long.
const STEADY: [Programs; 2] = [
    &[(
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
        ],
    )],
    &[
        (
            "tidegate-bpf",
            &[
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
    ],
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
/// How often a silent run is asked whether it has ended.
const IDLE: Duration = Duration::from_secs(1);
/// How many lines may wait between a test program and us.
const LINES_MAX: usize = 1024;

/// Which tests run, and how many at a time.
struct Group {
    name: &'static str,
    selection: Vec<String>,
    one_at_a_time: bool,
}

/// The groups that run at once; most are alone.
type Turn = Vec<Group>;

/// Errors: no root, something does not build, a test failed, or no test ran.
pub(crate) fn run() -> Result<()> {
    process::need_root("tests make network namespaces and load BPF programs")?;
    let mut tally = Tally::default();
    let mut turns = turns(&targets::names(&PURE)?);
    // All of it first: nobody waits for a failure that a compiler finds. What users build are the same
    // crates as release programs: `cargo xtask build`, which the demo begins with.
    for turn in &mut turns {
        turn.retain(|group| build_group(group, &mut tally));
    }
    turns.iter().for_each(|turn| run_turn(turn, &mut tally));
    report(&tally)
}

fn build_group(group: &Group, tally: &mut Tally) -> bool {
    // Examples of documentation are compiled as they run: cargo knows no other way.
    if group.selection.iter().any(|word| word == "--doc") {
        return true;
    }
    let built = process::run(cargo_test(group).arg("--no-run"));
    if let Err(error) = &built {
        tally.broken(&format!("group `{}` does not build: {error:#}", group.name));
    }
    built.is_ok()
}

fn run_turn(turn: &[Group], tally: &mut Tally) {
    let side_by_side = turn.len() > 1;
    let tallies: Vec<Tally> = std::thread::scope(|scope| {
        let one = |group| {
            scope.spawn(move || {
                let mut tally = Tally::default();
                run_group(group, side_by_side, &mut tally);
                tally
            })
        };
        let running: Vec<_> = turn.iter().map(one).collect();
        let panicked = || {
            let mut tally = Tally::default();
            tally.broken("who ran this group panicked");
            tally
        };
        running.into_iter().map(|one| one.join().unwrap_or_else(|_| panicked())).collect()
    });
    tallies.into_iter().for_each(|one| tally.add(one));
}

fn run_group(group: &Group, named: bool, tally: &mut Tally) {
    println!("test: group `{}`", group.name);
    let mut command = cargo_test(group);
    if group.one_at_a_time {
        command.args(["--", "--test-threads=1"]);
    }
    let failed_before = tally.failed();
    let before_line = if named { format!("{}: ", group.name) } else { String::new() };
    let ran = watch(command, GROUP_MAX, &before_line, tally);
    tally.end_of_programs();
    if let Err(error) = ran
        && tally.failed() == failed_before
    {
        tally.broken(&format!("group `{}`: {error:#}", group.name));
    }
}

/// All programs that have a place, by the number of it.
fn placed() -> impl Iterator<Item = (usize, Programs)> {
    STEADY.into_iter().chain(BESIDE.map(|(_, programs)| programs)).enumerate()
}

/// Names of programs, each once. cargo selects them in all packages at once, because a selection of packages
/// would build other features; so all programs of a name stand in the same place.
fn names(programs: Programs) -> Vec<&'static str> {
    let names: BTreeSet<&str> = programs.iter().flat_map(|(_, names)| *names).copied().collect();
    Vec::from_iter(names)
}

/// The groups in their order. `targets`: of the crates that are not pure, what has tests.
fn turns(targets: &targets::Names) -> Vec<Turn> {
    let each = |flag: &str, names: &[&str]| -> Vec<String> {
        names.iter().flat_map(|name| [flag.to_owned(), (*name).to_owned()]).collect()
    };
    let others = || -> Vec<String> {
        std::iter::once("--workspace".to_owned()).chain(each("--exclude", &PURE)).collect()
    };
    let with = |more: Vec<String>| others().into_iter().chain(more).collect();
    let placed: Vec<&str> = placed().flat_map(|(_, programs)| names(programs)).collect();
    let tests: BTreeSet<&str> = targets.tests.iter().map(|test| &*test.name).collect();
    let rest: Vec<&str> = tests.into_iter().filter(|name| !placed.contains(name)).collect();
    // Examples are not run, but they must build.
    let programs = ["--lib", "--bins", "--examples"].map(str::to_owned);
    let bytes = std::iter::once("--release".to_owned())
        .chain(each("--package", &BYTES.0))
        .chain(each("--test", &BYTES.1))
        .collect();
    let machine = programs.into_iter().chain(each("--test", &rest)).collect();
    let group = |name, selection, one_at_a_time| Group { name, selection, one_at_a_time };
    vec![
        vec![group("pure", each("--package", &PURE), false)],
        vec![
            group("steady 1", with(each("--test", &names(STEADY[0]))), true),
            group("steady 2", with(each("--test", &names(STEADY[1]))), true),
        ],
        BESIDE.map(|(name, tests)| group(name, with(each("--test", &names(tests))), true)).into(),
        vec![group("machine", with(machine), true)],
        vec![group("docs", with(vec!["--doc".to_owned()]), false)],
        vec![group("bytes", bytes, false)],
    ]
}

fn cargo_test(group: &Group) -> Command {
    let mut command = process::cargo();
    command
        .args(["test", "--locked", "--no-fail-fast"])
        .args(&group.selection)
        // Golden files are compared here and never rewritten: `cargo xtask golden --bless` does.
        .env("INSTA_UPDATE", "no")
        .env("CARGO_TERM_COLOR", "never")
        .env_remove("TIDEGATE_BLESS");
    command
}

/// Runs it, shows what it prints behind `before_line`, counts; kills it and all its descendants after
/// `limit`.
pub(crate) fn watch(
    mut command: Command,
    limit: Duration,
    before_line: &str,
    tally: &mut Tally,
) -> Result<()> {
    // One pipe for both streams keeps headings (stderr) and results (stdout) in order.
    let (reader, writer) = std::io::pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().context("cannot start the tests")?;
    drop(command); // and with it our ends of the pipe
    let (send, lines) = mpsc::sync_channel(LINES_MAX);
    std::thread::spawn(move || {
        for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
            if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    let alarm = Alarm::set(child.id(), limit);
    loop {
        match lines.recv_timeout(IDLE) {
            Ok(line) => {
                println!("{before_line}{line}");
                tally.line(&line);
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            // A process that a test left behind may hold the pipe open for ever.
            Err(mpsc::RecvTimeoutError::Timeout) if child.try_wait()?.is_some() => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
    }
    let status = child.wait()?;
    if alarm.stop() {
        let why = format!("killed: not finished within {} minutes", limit.as_secs() / 60);
        tally.note(&why);
        bail!(why);
    }
    if !status.success() {
        bail!("the tests ended with {status}");
    }
    Ok(())
}

/// Kills a process and its descendants when its time is over.
struct Alarm {
    done: mpsc::Sender<()>,
    thread: JoinHandle<bool>,
}

impl Alarm {
    fn set(pid: u32, limit: Duration) -> Self {
        let (done, wait) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let struck = wait.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
            if struck {
                descendants::kill(pid);
            }
            struck
        });
        Self { done, thread }
    }

    /// True if it struck.
    fn stop(self) -> bool {
        drop(self.done);
        self.thread.join().unwrap_or(false)
    }
}

/// Says what was counted; an error if something failed or nothing ran.
pub(crate) fn report(tally: &Tally) -> Result<()> {
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
    use std::collections::BTreeMap;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = process::command("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn both_streams_arrive_in_the_order_they_were_written() {
        let mut tally = Tally::default();
        let script = "echo '     Running tests/a.rs (target/debug/deps/a-0123)' >&2
            echo 'test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out'";
        watch(shell(script), LONG, "", &mut tally).expect("exit code 0");
        tally.end_of_programs();
        assert_eq!((tally.passed(), tally.failed()), (2, 0));
        assert!(tally.closing_lines()[0].starts_with("tests/a.rs: test result: ok."));
        assert!(report(&tally).is_ok());
    }

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

    #[test]
    fn what_cargo_really_prints_is_understood() {
        let fixture = Fixture::new();
        let mut command = process::cargo();
        command.current_dir(&fixture.0).args(["test", "--offline", "--no-fail-fast"]);
        command.env("CARGO_TARGET_DIR", fixture.0.join("target"));
        let mut tally = Tally::default();
        watch(command, LONG, "", &mut tally).expect_err("a test fails");
        tally.end_of_programs();
        // Unit tests: one good, one bad. The one that dies has no closing line. One doc test.
        assert_eq!((tally.passed(), tally.failed()), (2, 2), "{:?}", tally.closing_lines());
        assert!(tally.closing_lines().iter().any(|line| line.starts_with("tests/dies.rs: ended")));
    }

    #[test]
    fn what_hangs_is_killed_with_its_children() {
        let mut tally = Tally::default();
        let error = watch(shell("sleep 1000 & wait"), Duration::from_millis(200), "", &mut tally)
            .expect_err("it never ends");
        assert!(error.to_string().contains("killed"), "{error}");
    }

    #[test]
    fn a_process_left_behind_does_not_hold_us_up() {
        let mut tally = Tally::default();
        watch(shell("sleep 5 & exit 0"), LONG, "", &mut tally).expect("exit code 0");
    }

    #[test]
    fn no_test_at_all_is_a_failure() {
        assert!(report(&Tally::default()).is_err());
    }

    /// A name that no test has would select nothing; one that a pure crate has, the wrong program.
    #[test]
    fn every_test_of_the_other_crates_is_in_one_group() {
        let targets = targets::names(&PURE).expect("cargo describes the workspace");
        let turns = turns(&targets);
        let tests = |group: &Group| -> Vec<String> {
            let pairs = group.selection.windows(2);
            pairs.filter(|pair| pair[0] == "--test").map(|pair| pair[1].clone()).collect()
        };
        let mut named: Vec<String> = turns[1..=3].iter().flatten().flat_map(tests).collect();
        named.sort();
        let all: BTreeSet<String> = targets.tests.iter().map(|test| test.name.clone()).collect();
        assert_eq!(named, Vec::from_iter(all));
        for name in PURE {
            let excluded = |group: &Group| group.selection.iter().any(|word| word == name);
            assert!(turns.iter().take(5).flatten().all(excluded), "{name}");
        }
    }

    /// A new program with the name of another one would run beside others without anybody having said so.
    #[test]
    fn a_name_stands_for_the_programs_that_are_meant_and_for_no_other() {
        let targets = targets::names(&PURE).expect("cargo describes the workspace");
        let mut place = BTreeMap::new();
        for (number, programs) in placed() {
            for (package, names) in programs {
                for name in *names {
                    let test = targets::Test::new(package, name);
                    assert!(targets.tests.contains(&test), "no test program {test:?}");
                    assert_eq!(place.insert(test, number), None, "{package}: {name} stands twice");
                }
            }
        }
        for test in &targets.tests {
            let alike = |(other, number): (&targets::Test, &usize)| {
                (other.name == test.name && place.get(test) != Some(number)).then(|| other.clone())
            };
            let other = place.iter().find_map(alike);
            assert_eq!(
                other, None,
                "and {test:?} have one name, so they need one place, or another name"
            );
        }
    }

    #[test]
    fn groups_of_a_turn_run_at_once_and_both_are_counted() {
        let group = |name| Group { name, selection: vec!["--bogus".into()], one_at_a_time: false };
        let mut tally = Tally::default();
        run_turn(&[group("a"), group("b")], &mut tally);
        assert_eq!((tally.passed(), tally.failed()), (0, 2), "{:?}", tally.closing_lines());
    }
}
