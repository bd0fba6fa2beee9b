// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Small helpers around other programs, files and waiting.

use crate::error::{LabError, Result};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// The file systems that are in memory themselves (linux/magic.h: tmpfs, ramfs).
pub(crate) const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// How often a condition is looked at while waiting for it.
const POLL: Nanos = Nanos::from_millis(5);
/// How much of a program's words an error repeats, in bytes.
const SAID_BYTES_MAX: usize = 2_000;

/// Runs a program to its end and gives its standard output.
pub(crate) fn run(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    finish(program, args, output)
}

/// Runs a program to its end with `input` on its standard input.
pub(crate) fn run_with_input(program: &str, args: &[&str], input: &str) -> Result<String> {
    let child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let output = child.and_then(|mut child| {
        // Dropped at the end of the statement: the program sees the end of its input.
        child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(input.as_bytes()))?;
        child.wait_with_output()
    });
    finish(program, args, output)
}

fn finish(program: &str, args: &[&str], output: std::io::Result<Output>) -> Result<String> {
    let what = format!("{program} {}", args.join(" "));
    let output = output.map_err(LabError::io(what.clone()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let mut said = String::from_utf8_lossy(&output.stderr).into_owned();
    said.push_str(&String::from_utf8_lossy(&output.stdout));
    Err(LabError::Command { what, status: output.status.to_string(), said: shorten(&said) })
}

/// The end of `text`, at most [`SAID_BYTES_MAX`] long.
pub(crate) fn shorten(text: &str) -> String {
    let text = text.trim();
    let mut from = text.len().saturating_sub(SAID_BYTES_MAX);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..].to_owned()
}

/// The end of a log file for an error message; empty when there is none.
pub(crate) fn log_tail(path: &Path) -> String {
    match std::fs::read(path) {
        Ok(bytes) if !bytes.is_empty() => {
            format!("; log: {}", shorten(&String::from_utf8_lossy(&bytes)))
        }
        _ => String::new(),
    }
}

/// Waits until `condition` holds, looking every few milliseconds; `false` after `limit`.
pub(crate) fn wait_until(limit: Nanos, mut condition: impl FnMut() -> bool) -> bool {
    let end = MonotonicClock.now() + limit;
    loop {
        if condition() {
            return true;
        }
        if MonotonicClock.now() >= end {
            return false;
        }
        std::thread::sleep(POLL.into());
    }
}

/// Like [`wait_until`], with an error that names what was waited for and shows the end of a log.
pub(crate) fn wait_or_fail(
    what: &str,
    limit: Nanos,
    log: Option<&Path>,
    condition: impl FnMut() -> bool,
) -> Result<()> {
    if wait_until(limit, condition) {
        return Ok(());
    }
    let said = log.map(log_tail).unwrap_or_default();
    Err(LabError::Timeout { what: what.to_owned(), limit_s: limit.as_secs_f64(), said })
}

/// Writes a whole file.
pub(crate) fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<()> {
    std::fs::write(path, text).map_err(LabError::io(format!("write {}", path.display())))
}

/// Makes a directory and those above it.
pub(crate) fn make_dir(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(LabError::io(format!("mkdir {}", path.display())))
}

/// Lets other users read a server's files: its workers are not root, and our umask may be strict.
pub(crate) fn share(dir: &Path) -> Result<()> {
    run("chmod", &["-R", "a+rX", &text(dir)]).map(drop)
}

/// Where a program lies: in PATH or in the places where servers are kept.
pub(crate) fn find_program(name: &str) -> Result<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let places = path.split(':').chain(["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"]);
    for place in places {
        let candidate = Path::new(place).join(name);
        if candidate.is_file() {
            return Ok(candidate);
        }
    }
    Err(LabError::Missing(format!("program {name}")))
}

/// A path as text; the lab makes its own paths, which are plain.
pub(crate) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
