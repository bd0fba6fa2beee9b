// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The coordinator: starts the shards, adds up what they say, runs the script beside them.

use super::plan::LoadPlan;
use super::report::{EventDone, LoadReport, Progress};
use super::shard::{Job, Message};
use super::tally::ShardResult;
use crate::error::{LabError, Result};
use crate::helper::Helper;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// Time between starting the shards and the run's time zero, and what each shard adds to it: a
/// shard that is not ready at zero starts its first arrivals late.
const LEAD: Nanos = Nanos::from_millis(400);
const LEAD_PER_SHARD: Nanos = Nanos::from_millis(50);
/// How much longer than its plan a load may take.
const GRACE: Nanos = Nanos::from_secs(30);
/// Longest message of a shard, in bytes.
const MESSAGE_BYTES_MAX: u64 = 256 << 20;

type Action<'a> = Box<dyn FnMut() -> std::result::Result<(), String> + 'a>;

/// Things that happen at set times of a run: CPU taken away, a daemon killed …
///
/// They run one after the other on the coordinator's thread; the report says when each began, how
/// long it took and whether it failed.
#[derive(Default)]
pub struct Script<'a> {
    events: Vec<(Nanos, String, Action<'a>)>,
}

impl<'a> Script<'a> {
    /// An empty script.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an event at a time since the start of the run.
    #[must_use]
    pub fn at<E: std::fmt::Display>(
        mut self,
        time: Nanos,
        name: &str,
        mut action: impl FnMut() -> std::result::Result<(), E> + 'a,
    ) -> Self {
        let action = Box::new(move || action().map_err(|e| e.to_string()));
        self.events.push((time, name.to_owned(), action));
        self.events.sort_by_key(|(time, ..)| *time);
        self
    }

    fn next_at(&self) -> Option<Nanos> {
        self.events.first().map(|(time, ..)| *time)
    }

    fn run_due(&mut self, start: Nanos, done: &mut Vec<EventDone>) {
        while self.next_at().is_some_and(|at| start + at <= MonotonicClock.now()) {
            let (planned, name, mut action) = self.events.remove(0);
            let began = MonotonicClock.now();
            let error = action().err();
            let took = (MonotonicClock.now() - began).as_secs_f64();
            let at = (began - start).as_secs_f64();
            done.push(EventDone { name, planned: planned.as_secs_f64(), at, took, error });
        }
    }
}

/// A shard with its pipes; ended by drop.
pub(crate) trait Place {
    /// What keeps the process; dropping it ends the process.
    type Process;
    /// Starts the helper's subcommand `shard` with piped input and output.
    fn start(&mut self, shard: u32) -> Result<Self::Process>;
    /// The process behind it.
    fn child(process: &mut Self::Process) -> &mut Child;
}

/// Runs a load from the present namespace, on whatever CPUs the process may use.
///
/// # Errors
/// A plan that contradicts itself, or a shard that fails.
pub fn run_here(
    helper: &Helper,
    plan: &LoadPlan,
    on_progress: &mut dyn FnMut(&Progress),
) -> Result<LoadReport> {
    struct Here<'a>(&'a Helper);
    struct Owned(Child);
    impl Drop for Owned {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    impl Place for Here<'_> {
        type Process = Owned;
        fn start(&mut self, _: u32) -> Result<Owned> {
            let mut command = Command::new(&self.0.program);
            command.args(&self.0.args).arg("shard").stdin(Stdio::piped()).stdout(Stdio::piped());
            command.spawn().map(Owned).map_err(LabError::io("start a load process"))
        }
        fn child(process: &mut Owned) -> &mut Child {
            &mut process.0
        }
    }
    run(&mut Here(helper), plan, &mut Script::new(), on_progress)
}

/// Runs a load with its script; `place` says where the shards run.
pub(crate) fn run<P: Place>(
    place: &mut P,
    plan: &LoadPlan,
    script: &mut Script<'_>,
    on_progress: &mut dyn FnMut(&Progress),
) -> Result<LoadReport> {
    plan.check()?;
    let shards = plan.shard_count();
    let mut processes = Vec::new();
    for shard in 0..shards {
        processes.push(place.start(shard)?);
    }
    let start = MonotonicClock.now() + LEAD + Nanos(LEAD_PER_SHARD.0 * u64::from(shards));
    let (sender, receiver) = channel();
    let mut readers = Vec::new();
    for (shard, process) in processes.iter_mut().enumerate() {
        let job = Job { plan: plan.clone(), shard: shard as u64, shards: u64::from(shards), start };
        readers.push(hand_over(P::child(process), shard, &job, sender.clone())?);
    }
    drop(sender);
    let mut merge =
        Merge { shards: shards as usize, pending: BTreeMap::new(), results: Vec::new() };
    let mut events = Vec::new();
    let limit = start + plan.end() + GRACE;
    let collected =
        collect(&receiver, (start, limit), &mut merge, script, &mut events, on_progress);
    // Ends the processes, so that the readers meet the end of their pipes, whatever happened.
    drop(processes);
    readers.into_iter().for_each(|r| drop(r.join()));
    collected?;
    let mut report = LoadReport::of(plan, start, &merge.results);
    report.void.extend(merge.missing());
    let failed = |e: &EventDone| e.error.as_ref().map(|m| format!("event {}: {m}", e.name));
    report.void.extend(events.iter().filter_map(failed));
    report.events = events;
    Ok(report)
}

type Said = (usize, std::result::Result<Message, String>);

/// Gives a shard its job and reads what it says on a thread of its own.
fn hand_over(
    child: &mut Child,
    shard: usize,
    job: &Job,
    sender: Sender<Said>,
) -> Result<std::thread::JoinHandle<()>> {
    let text = serde_json::to_vec(job).map_err(|e| LabError::Load(e.to_string()))?;
    let pipe = || LabError::Load("a shard without pipes".into());
    let mut input = child.stdin.take().ok_or_else(pipe)?;
    let output = child.stdout.take().ok_or_else(pipe)?;
    input.write_all(&text).map_err(LabError::io("hand a shard its job"))?;
    drop(input);
    let read = move || {
        let mut reader = BufReader::new(output);
        let mut line = String::new();
        // Ends with the pipe; each line is bounded.
        while reader.by_ref().take(MESSAGE_BYTES_MAX).read_line(&mut line).is_ok_and(|n| n > 0) {
            let message = serde_json::from_str(&line).map_err(|e| format!("shard {shard}: {e}"));
            if sender.send((shard, message)).is_err() {
                return;
            }
            line.clear();
        }
    };
    Ok(std::thread::spawn(read))
}

struct Merge {
    shards: usize,
    /// Progress of seconds that not all shards have reported yet.
    pending: BTreeMap<u64, (usize, Progress)>,
    results: Vec<ShardResult>,
}

impl Merge {
    /// Takes a message; gives the progress of a second once it is whole.
    fn take(&mut self, message: Message) -> Option<Progress> {
        let progress = match message {
            Message::Result(result) => {
                self.results.push(result);
                return None;
            }
            Message::Progress(progress) => progress,
        };
        let second = progress.second;
        match self.pending.get_mut(&second) {
            None => drop(self.pending.insert(second, (1, progress))),
            Some((count, sum)) => {
                *count += 1;
                sum.streams.iter_mut().zip(&progress.streams).for_each(|(a, b)| a.add(b));
            }
        }
        let whole = self.pending.get(&second).is_some_and(|(count, _)| *count == self.shards);
        whole.then(|| self.pending.remove(&second).map(|(_, progress)| progress))?
    }

    fn missing(&self) -> Option<String> {
        let missing = self.shards - self.results.len().min(self.shards);
        (missing > 0).then(|| format!("{missing} of {} load processes died", self.shards))
    }
}

fn collect(
    receiver: &Receiver<Said>,
    (start, limit): (Nanos, Nanos),
    merge: &mut Merge,
    script: &mut Script<'_>,
    events: &mut Vec<EventDone>,
    on_progress: &mut dyn FnMut(&Progress),
) -> Result<()> {
    // Ends when all shards have closed their pipes, or at the limit.
    loop {
        script.run_due(start, events);
        let now = MonotonicClock.now();
        if now >= limit {
            return Err(LabError::Load("did not end with its plan".into()));
        }
        let wake = script.next_at().map_or(limit, |at| limit.min(start + at));
        match receiver.recv_timeout((wake - now).into()) {
            Ok((_, Ok(message))) => {
                if let Some(progress) = merge.take(message) {
                    on_progress(&progress);
                }
            }
            Ok((_, Err(error))) => return Err(LabError::Load(error)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}
