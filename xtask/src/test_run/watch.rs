// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a command, shows and counts what it prints, and ends it when its time is over.

use std::io::{BufRead, BufReader};
use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Tally, descendants};
use crate::process;

/// How often a silent run is asked whether it has ended.
const IDLE: Duration = Duration::from_secs(1);
/// How many lines may wait between a test program and us.
const LINES_MAX: usize = 1024;

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
                tally.line(&line, process::uptime());
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            // A process that a test left behind may hold the pipe open for ever.
            Err(mpsc::RecvTimeoutError::Timeout) if child.try_wait()?.is_some() => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
    }
    let status = child.wait()?;
    if alarm.stop() {
        let why = format!("killed: not finished within its limit of {} s", limit.as_secs());
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
        watch(shell(script), LONG, "", &mut tally).expect("exit code 0");
        tally.end_of_programs(process::uptime());
        assert_eq!((tally.passed(), tally.failed()), (2, 0));
        assert!(tally.closing_lines()[0].starts_with("tests/a.rs: test result: ok."));
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
}
