// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask test`: builds and runs every test of the workspace.
//!
//! Three groups. *Pure* crates run their tests in parallel. All other crates use what the machine
//! has only once – processors to pin to, namespaces, BPF objects – so their tests run one at a
//! time; cargo itself runs one test program after the other. A new crate belongs to the second
//! group until it is named in the first: slower, never wrong. The third repeats, as a release
//! build, the tests that hold results against recorded bytes: the same seed must give the same
//! bytes however it was compiled.
//!
//! The closing lines of all runners are printed again at the end, and the last line of all is
//! their sum, `N passed, N failed`, alone on its line. A program that dies without a closing
//! line counts as one failed test.

mod descendants;
mod tally;

use std::io::{BufRead, BufReader};
use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::{build, process};
pub(crate) use tally::Tally;

/// Crates that touch neither network, processes nor kernel.
const PURE: [&str; 11] = [
    "tidegate-units",
    "tidegate-model",
    "tidegate-config",
    "tidegate-policy",
    "tidegate-control",
    "tidegate-workload",
    "tidegate-sim",
    "tidegate-telemetry",
    "tidegate-api",
    "tidegate-cli",
    "xtask",
];
/// Tests of recorded bytes, by the crates that have them.
const BYTES: ([&str; 3], [&str; 4]) = (
    ["tidegate-workload", "tidegate-sim", "tidegate-experiments"],
    ["pinned", "syn", "abacus", "dual"],
);
/// A group that takes longer than this has hung: it is killed, and the run has failed. Building
/// takes about ten minutes of the hour that the whole run has.
const GROUP_MAX: Duration = Duration::from_secs(42 * 60);
/// How often a silent run is asked whether it has ended.
const IDLE: Duration = Duration::from_secs(1);
/// How many lines may wait between a test program and us.
const LINES_MAX: usize = 1024;

/// Which tests run, and how many at a time.
struct Group {
    name: &'static str,
    selection: Vec<&'static str>,
    one_at_a_time: bool,
}

/// Errors: no root, something does not build, a test failed, or no test ran.
pub(crate) fn run() -> Result<()> {
    process::need_root("tests make network namespaces and load BPF programs")?;
    let mut tally = Tally::default();
    // Tests of the lab and of the daemon start the product as an operator would.
    match build::run() {
        Ok(()) => {
            let groups = groups();
            let built = groups.map(|group| (build_group(&group, &mut tally), group));
            for (_, group) in built.iter().filter(|(is_built, _)| *is_built) {
                run_group(group, &mut tally);
            }
        }
        Err(error) => tally.broken(&format!("the product does not build: {error:#}")),
    }
    report(&tally)
}

fn build_group(group: &Group, tally: &mut Tally) -> bool {
    let built = process::run(cargo_test(group).arg("--no-run"));
    if let Err(error) = &built {
        tally.broken(&format!("group `{}` does not build: {error:#}", group.name));
    }
    built.is_ok()
}

fn run_group(group: &Group, tally: &mut Tally) {
    println!("test: group `{}`", group.name);
    let mut command = cargo_test(group);
    if group.one_at_a_time {
        command.args(["--", "--test-threads=1"]);
    }
    let failed_before = tally.failed();
    let ran = watch(command, GROUP_MAX, tally);
    tally.end_of_programs();
    if let Err(error) = ran
        && tally.failed() == failed_before
    {
        tally.broken(&format!("group `{}`: {error:#}", group.name));
    }
}

fn groups() -> [Group; 3] {
    let pure = PURE.iter().flat_map(|name| ["--package", name]).collect();
    let others = std::iter::once("--workspace")
        .chain(PURE.iter().flat_map(|name| ["--exclude", name]))
        .collect();
    let bytes = std::iter::once("--release")
        .chain(BYTES.0.iter().flat_map(|name| ["--package", name]))
        .chain(BYTES.1.iter().flat_map(|name| ["--test", name]))
        .collect();
    [
        Group { name: "pure", selection: pure, one_at_a_time: false },
        Group { name: "machine", selection: others, one_at_a_time: true },
        Group { name: "bytes", selection: bytes, one_at_a_time: false },
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

/// Runs it, shows what it prints, counts; kills it and all its descendants after `limit`.
pub(crate) fn watch(mut command: Command, limit: Duration, tally: &mut Tally) -> Result<()> {
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
                println!("{line}");
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
        watch(shell(script), LONG, &mut tally).expect("exit code 0");
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
        watch(command, LONG, &mut tally).expect_err("a test fails");
        tally.end_of_programs();
        // Unit tests: one good, one bad. The one that dies has no closing line. One doc test.
        assert_eq!((tally.passed(), tally.failed()), (2, 2), "{:?}", tally.closing_lines());
        assert!(tally.closing_lines().iter().any(|line| line.starts_with("tests/dies.rs: ended")));
    }

    #[test]
    fn what_hangs_is_killed_with_its_children() {
        let mut tally = Tally::default();
        let error = watch(shell("sleep 1000 & wait"), Duration::from_millis(200), &mut tally)
            .expect_err("it never ends");
        assert!(error.to_string().contains("killed"), "{error}");
    }

    #[test]
    fn a_process_left_behind_does_not_hold_us_up() {
        let mut tally = Tally::default();
        watch(shell("sleep 5 & exit 0"), LONG, &mut tally).expect("exit code 0");
    }

    #[test]
    fn no_test_at_all_is_a_failure() {
        assert!(report(&Tally::default()).is_err());
    }

    #[test]
    fn every_pure_crate_is_left_out_of_the_other_group() {
        let [pure, machine, _] = groups();
        assert!(!pure.one_at_a_time && machine.one_at_a_time);
        for name in PURE {
            assert!(pure.selection.contains(&name) && machine.selection.contains(&name));
        }
    }
}
