// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program that measures, and how we talk with it.
//!
//! `cargo run --release --package <package> --example bench_<name>`, or any other program: one JSON
//! value a line, over its standard input and output (what it logs goes to standard error):
//!
//! ```text
//! worker → {"subjects": [{"name": "empty", "about": "XDP_PASS, nothing else"}, …]}
//! bench  → "empty"
//! worker → {"ns": 29.4}            or {"error": "why it could not be measured"}
//! …
//! bench closes standard input: the worker takes down what it set up, and ends
//! ```

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::Subject;
use crate::process;

#[derive(Deserialize)]
struct Offer {
    subjects: Vec<Described>,
}

#[derive(Deserialize)]
struct Described {
    name: String,
    about: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Ns(f64),
    Error(String),
}

/// A subject that a worker measures.
pub(super) struct Remote {
    described: Described,
    worker: Rc<RefCell<Worker>>,
}

impl Subject for Remote {
    fn name(&self) -> &str {
        &self.described.name
    }

    fn about(&self) -> &str {
        &self.described.about
    }

    fn measure(&mut self) -> Result<f64> {
        self.worker.borrow_mut().measure(&self.described.name)
    }
}

/// Builds and starts the worker of a bench, an example of `package`; it ends when the last of its
/// subjects is dropped.
pub(super) fn start(package: &str, bench: &str) -> Result<Vec<Remote>> {
    let example = format!("bench_{bench}");
    let select = ["--release", "--locked", "--package", package, "--example", &example];
    process::run(process::cargo().arg("build").args(select))
        .with_context(|| format!("no worker for `{bench}`"))?;
    connect(process::cargo().args(["run", "--quiet"]).args(select))
}

/// Starts a program that is a worker.
pub(super) fn connect(command: &mut Command) -> Result<Vec<Remote>> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the worker")?;
    let stdin = child.stdin.take();
    let stdout = child.stdout.take().context("the worker has no output")?;
    let mut worker = Worker { child, stdin, stdout: BufReader::new(stdout) };
    let offer: Offer = worker.receive()?;
    let worker = Rc::new(RefCell::new(worker));
    let remote = |described| Remote { described, worker: Rc::clone(&worker) };
    Ok(offer.subjects.into_iter().map(remote).collect())
}

struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Worker {
    fn measure(&mut self, name: &str) -> Result<f64> {
        let stdin = self.stdin.as_mut().context("the worker takes no input")?;
        let ask = serde_json::to_string(name)?;
        writeln!(stdin, "{ask}").context("the worker is gone")?;
        match self.receive()? {
            Answer::Ns(ns) => Ok(ns),
            Answer::Error(why) => bail!("{why}"),
        }
    }

    fn receive<T: serde::de::DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        if self.stdout.read_line(&mut line)? == 0 {
            bail!("the worker ended: {}", self.child.wait()?);
        }
        serde_json::from_str(&line).with_context(|| format!("the worker said: {}", line.trim()))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.stdin.take()); // its sign to take down what it set up
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(script: &str) -> Result<Vec<Remote>> {
        connect(process::command("sh").args(["-c", script]))
    }

    const OFFER: &str =
        r#"echo '{"subjects":[{"name":"a","about":"x"},{"name":"b","about":"y"}]}'"#;

    #[test]
    fn subjects_are_offered_asked_and_answered() {
        let script = format!(
            r#"{OFFER}; while read name; do case $name in
            '"a"') echo '{{"ns": 1.5}}';; *) echo '{{"error": "no rule hit"}}';; esac; done"#
        );
        let mut subjects = worker(&script).expect("a worker");
        assert_eq!((subjects[1].name(), subjects[1].about()), ("b", "y"));
        assert_eq!(subjects[0].measure().expect("a number"), 1.5);
        let error = subjects[1].measure().expect_err("an error");
        assert_eq!(error.to_string(), "no rule hit");
        assert_eq!(subjects[0].measure().expect("again"), 1.5);
    }

    #[test]
    fn a_worker_that_dies_or_babbles_is_an_error() {
        assert!(worker("exit 3").is_err());
        let error = worker("echo hello").err().expect("no offer");
        assert!(format!("{error:#}").contains("hello"));
        let mut subjects = worker(&format!("{OFFER}; exit 4")).expect("an offer");
        assert!(subjects[0].measure().is_err());
    }
}
