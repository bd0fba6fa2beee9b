// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The threads that a service works in: how busy the busiest is, and how long they wait for a CPU.
//!
//! A server that works in one thread (Node, Redis, an nginx or prefork process) is at its end when
//! that thread uses a whole CPU, on a machine with any number of them. A server that works in
//! several threads is not at its end because one of them is busy: it may be its garbage collector. So a
//! thread counts only where it is what its process *is*: it has done at least [`MAIN_SHARE`] of the
//! process' work since the process began, and also now. A process with a few long requests in a pool
//! of threads has no such thread, nor has one whose collector runs. Of several processes (workers
//! of nginx, a cluster of Node) each is a place to work: the mean of theirs counts, because as long
//! as one is idle it takes what comes (docs/decisions/0011-busiest-thread.md).
//!
//! Bounded: a service of more than [`PROCESSES_MAX`] processes is not looked at, because then its
//! CPUs end before its threads do; nor is a process with more than [`THREADS_MAX`] threads.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use tidegate_units::{Nanos, Share};

/// Most processes of a service.
const PROCESSES_MAX: usize = 32;
/// Most threads of a process.
const THREADS_MAX: usize = 64;
/// Most threads of a service that are asked how long they waited.
const WAITERS_MAX: usize = 64;
/// Least part of its process' CPU time for a thread to be what the process works in.
const MAIN_SHARE: f64 = 2.0 / 3.0;
/// A process that has used less CPU time than this has not shown how it works: its main thread counts.
const YOUNG_NS: u64 = 1_000_000_000;
/// Below this share of a CPU a process is idle, and how it divides its work says nothing.
const IDLE: f64 = 0.1;
/// Time between two samples.
const SAMPLE_EVERY: Nanos = Nanos::from_millis(200);
/// Span that a reading is the mean of.
const WINDOW: Nanos = Nanos::SECOND;
/// No reading over less than this: the process' time comes in steps of 10 ms.
const WINDOW_MIN: Nanos = Nanos::from_millis(500);
/// A hole in the samples longer than this starts the window anew.
const GAP_MAX: Nanos = Nanos::from_millis(1500);
/// Most samples kept.
const SAMPLES_MAX: usize = 16;
/// `/proc/PID/stat` counts in ticks of 1/100 s on every architecture (USER_HZ).
const TICK_NS: u64 = 10_000_000;

/// What was read of the threads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Threads {
    /// Share of a CPU that the thread used which the service works in.
    pub(crate) busiest: Option<Share>,
    /// Share of time in which threads of the service waited for a CPU, all of them summed;
    /// `None`: not known, or they yield to others themselves.
    pub(crate) waited: Option<Share>,
}

/// The thread that a process works in.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lane {
    process: PathBuf,
    thread: PathBuf,
}

/// Where a service works.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Places {
    /// One for each process; `None`: it works in several threads of one, or is not known.
    lanes: Option<Vec<Lane>>,
    /// All threads; `None`: too many, or not known.
    waiters: Option<Vec<PathBuf>>,
}

#[derive(Clone, Debug)]
struct Sample {
    at: Nanos,
    /// CPU time of each lane: its thread, its process.
    lanes: Option<Vec<(u64, u64)>>,
    /// Time that all threads have waited.
    waited: Option<u64>,
}

/// The threads of one service.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    places: Places,
    samples: VecDeque<Sample>,
    last: Threads,
}

impl Watch {
    /// The processes that serve, as they are now.
    pub(crate) fn locate(&mut self, pids: &[u32], proc: &Path) {
        let places = Places::of(pids, proc);
        if places != self.places {
            *self = Self { places, ..Self::default() };
        }
    }

    /// Samples, if it is time to.
    pub(crate) fn tick(&mut self, now: Nanos) -> Threads {
        if self.samples.back().is_some_and(|last| now.since(last.at) < SAMPLE_EVERY) {
            return self.last;
        }
        if self.samples.back().is_some_and(|last| now.since(last.at) > GAP_MAX) {
            self.samples.clear();
        }
        let sample = self.places.sample(now);
        while self.samples.len() >= SAMPLES_MAX
            || self.samples.get(1).is_some_and(|second| now.since(second.at) >= WINDOW)
        {
            self.samples.pop_front();
        }
        self.last = self.samples.front().map_or_else(Threads::default, |first| {
            let span = now.since(first.at);
            if span < WINDOW_MIN { Threads::default() } else { over(span, first, &sample) }
        });
        self.samples.push_back(sample);
        self.last
    }
}

/// What two samples say that lie so far apart.
fn over(span: Nanos, first: &Sample, last: &Sample) -> Threads {
    let part = |ns: u64| ns as f64 / span.0 as f64;
    let waited = first.waited.zip(last.waited).and_then(|(then, now)| now.checked_sub(then));
    let lanes = first.lanes.as_ref().zip(last.lanes.as_ref());
    let busiest = lanes.filter(|(then, now)| then.len() == now.len() && !now.is_empty());
    let busiest = busiest.and_then(|(then, now)| {
        let mut sum = 0.0;
        for ((thread0, process0), (thread1, process1)) in then.iter().zip(now) {
            let thread = part(thread1.checked_sub(*thread0)?);
            // In steps: up to one may belong to another window.
            let process = part(process1.checked_sub(*process0)?.saturating_sub(TICK_NS));
            if process > IDLE && thread < MAIN_SHARE * process {
                return None;
            }
            sum += thread;
        }
        Some(sum / now.len() as f64)
    });
    Threads { busiest: busiest.map(Share::new), waited: waited.map(part).map(Share::new) }
}

impl Places {
    fn of(pids: &[u32], proc: &Path) -> Self {
        if pids.is_empty() || pids.len() > PROCESSES_MAX {
            return Self::default();
        }
        let (mut lanes, mut waiters) = (Some(Vec::new()), Some(Vec::new()));
        for pid in pids {
            let process = proc.join(pid.to_string());
            // One that has ended meanwhile is no place to work.
            let Some(stat) = ProcessStat::read(&process) else { continue };
            let threads = threads(&process);
            waiters = waiters.filter(|_| stat.nice <= 0);
            match (&threads, &mut waiters) {
                (Some(threads), Some(all)) if all.len() + threads.len() <= WAITERS_MAX => {
                    all.extend(threads.iter().cloned());
                }
                _ => waiters = None,
            }
            let lane = threads.and_then(|threads| lane(process, &threads, &stat));
            lanes = lanes.zip(lane).map(|(mut lanes, lane)| {
                lanes.push(lane);
                lanes
            });
        }
        Self { lanes, waiters }
    }

    fn sample(&self, at: Nanos) -> Sample {
        let lanes = self.lanes.as_ref().and_then(|lanes| {
            let read = |lane: &Lane| {
                let thread = schedule(&lane.thread)?.0;
                Some((thread, ProcessStat::read(&lane.process)?.used_ns))
            };
            lanes.iter().map(read).collect()
        });
        let waited = self.waiters.as_ref().and_then(|threads| {
            let waited = threads.iter().map(|thread| Some(schedule(thread)?.1));
            waited.sum::<Option<u64>>()
        });
        Sample { at, lanes, waited }
    }
}

/// The thread that has done most of this process' work; `None`: none has.
fn lane(process: PathBuf, threads: &[PathBuf], stat: &ProcessStat) -> Option<Lane> {
    if stat.used_ns < YOUNG_NS {
        let main = process.file_name().map(|pid| process.join("task").join(pid))?;
        return Some(Lane { process, thread: main });
    }
    let used = threads.iter().filter_map(|thread| Some((schedule(thread)?.0, thread)));
    let (most, thread) = used.max()?;
    let thread = thread.clone();
    (most as f64 >= MAIN_SHARE * stat.used_ns as f64).then_some(Lane { process, thread })
}

/// The threads of a process; `None`: too many.
fn threads(process: &Path) -> Option<Vec<PathBuf>> {
    let entries = fs::read_dir(process.join("task")).ok()?;
    let found: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).take(THREADS_MAX + 1).collect();
    (found.len() <= THREADS_MAX).then_some(found)
}

/// Time on a CPU and time waiting for one since a thread began, in nanoseconds (`schedstat`).
fn schedule(thread: &Path) -> Option<(u64, u64)> {
    let text = fs::read_to_string(thread.join("schedstat")).ok()?;
    let mut words = text.split_ascii_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// What `/proc/PID/stat` says of a process with all its threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessStat {
    /// CPU time since it began, of threads that have ended, too.
    used_ns: u64,
    nice: i32,
}

impl ProcessStat {
    fn read(process: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(process.join("stat")).ok()?)
    }

    /// `PID (NAME) STATE …`: the name may hold anything, parentheses and spaces too.
    fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once(')')?;
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        // Fields 14, 15 and 19 of proc_pid_stat(5); the state is field 3.
        let field = |number: usize| words.get(number - 3);
        let ticks = |number| field(number)?.parse::<u64>().ok();
        let used = ticks(14)?.saturating_add(ticks(15)?);
        Some(Self { used_ns: used.saturating_mul(TICK_NS), nice: field(19)?.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processes in a fixture tree, with threads that use CPU time and wait for it.
    struct World {
        dir: tempfile::TempDir,
        now: Nanos,
        processes: Vec<Process>,
    }

    #[derive(Clone, Default)]
    struct Process {
        nice: i32,
        /// CPU time so far and per second, time waited per second: in CPUs.
        threads: Vec<(f64, f64, f64)>,
        waited: Vec<f64>,
    }

    /// Of one that has worked for long: what its threads have used, and use now.
    fn process(threads: &[(f64, f64)]) -> Process {
        let threads: Vec<_> = threads.iter().map(|(used, rate)| (*used, *rate, 0.0)).collect();
        Process { nice: 0, waited: vec![0.0; threads.len()], threads }
    }

    impl World {
        fn new(processes: &[Process]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let world = Self { dir, now: Nanos::SECOND, processes: processes.to_vec() };
            world.write();
            world
        }

        fn pid(index: usize) -> u32 {
            100 * (1 + index as u32)
        }

        fn write(&self) {
            for (index, process) in self.processes.iter().enumerate() {
                let pid = Self::pid(index);
                let path = self.dir.path().join(pid.to_string());
                let used: f64 = process.threads.iter().map(|(used, ..)| used).sum();
                let ticks = (used * 100.0) as u64;
                let stat = format!(
                    "{pid} (no (de) 1) S 1 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 {} 1 0 0\n",
                    process.nice
                );
                for (thread, (used, ..)) in process.threads.iter().enumerate() {
                    let task = path.join("task").join((pid as usize + thread).to_string());
                    fs::create_dir_all(&task).unwrap();
                    let (used, waited) =
                        ((used * 1e9) as u64, (process.waited[thread] * 1e9) as u64);
                    fs::write(task.join("schedstat"), format!("{used} {waited} 7\n")).unwrap();
                }
                fs::write(path.join("stat"), stat).unwrap();
            }
        }

        /// Two seconds later.
        fn settle(&mut self) -> Threads {
            let pids: Vec<u32> = (0..self.processes.len()).map(Self::pid).collect();
            let mut watch = Watch::default();
            watch.locate(&pids, self.dir.path());
            let mut last = watch.tick(self.now);
            for _ in 0..20 {
                self.now += Nanos::from_millis(100);
                for process in &mut self.processes {
                    for (thread, (used, rate, wait)) in process.threads.iter_mut().enumerate() {
                        *used += *rate / 10.0;
                        process.waited[thread] += *wait / 10.0;
                    }
                }
                self.write();
                last = watch.tick(self.now);
            }
            last
        }
    }

    #[test]
    fn what_counts_is_the_thread_that_a_process_works_in() {
        let (idle, busy) = ((0.1, 0.0), (0.1, 1.0));
        let node = |rate| process(&[(90.0, rate), (3.0, 0.02), (3.0, 0.02), idle]);
        let worker = |rate| process(&[(50.0, rate)]);
        let table: Vec<(&str, Vec<Process>, Option<f64>)> = vec![
            ("Node at its end", vec![node(1.0)], Some(1.0)),
            ("Node at half", vec![node(0.5)], Some(0.5)),
            ("its helpers help for a while", vec![process(&[(90.0, 0.9), (3.0, 0.3)])], Some(0.9)),
            ("a cluster of two, one idle", vec![node(1.0), node(0.0)], Some(0.5)),
            ("a cluster of two at its end", vec![node(1.0), node(1.0)], Some(1.0)),
            (
                "four workers of nginx",
                vec![worker(1.0), worker(0.2), worker(0.2), worker(0.2)],
                Some(0.4),
            ),
            (
                "one prefork process is busy",
                [vec![worker(1.0)], vec![worker(0.0); 9]].concat(),
                Some(0.1),
            ),
            (
                "a loop that is not the main thread",
                vec![process(&[(0.2, 0.0), (80.0, 1.0)])],
                Some(1.0),
            ),
            // Java: many threads have worked, one of them collects garbage now.
            (
                "a collector beside idle workers",
                vec![process(&[idle, (10.0, 1.0), (20.0, 0.0), (20.0, 0.0), (20.0, 0.05)])],
                None,
            ),
            (
                "one long request in a pool",
                vec![process(&[idle, (30.0, 1.0), (30.0, 0.0), (30.0, 0.0)])],
                None,
            ),
            ("threads that share the work", vec![process(&[(50.0, 1.0), (50.0, 1.0)])], None),
            // It has worked in one thread for long, and does not now.
            (
                "a compaction in a server of one thread",
                vec![process(&[(90.0, 0.2), (5.0, 1.0)])],
                None,
            ),
            (
                "one process of two works in many",
                vec![node(1.0), process(&[(50.0, 1.0), (50.0, 1.0)])],
                None,
            ),
            ("a young one", vec![process(&[(0.1, 0.3), (0.05, 0.0)])], Some(0.3)),
            ("too many threads", vec![process(&vec![busy; THREADS_MAX + 1])], None),
            ("too many processes", vec![worker(1.0); PROCESSES_MAX + 1], None),
            ("none", vec![], None),
        ];
        for (what, processes, expected) in table {
            let got = World::new(&processes).settle().busiest.map(Share::get);
            let same = match (got, expected) {
                (Some(got), Some(expected)) => (got - expected).abs() < 0.03,
                (got, expected) => got.is_none() && expected.is_none(),
            };
            assert!(same, "{what}: {got:?}, expected {expected:?}");
        }
    }

    #[test]
    fn what_threads_waited_is_summed_unless_they_yield_themselves() {
        let waits = |nice, waits: &[f64]| {
            let threads: Vec<_> = waits.iter().map(|wait| (10.0, 0.1, *wait)).collect();
            let process = Process { nice, waited: vec![0.0; threads.len()], threads };
            World::new(&[process]).settle().waited.map(Share::get)
        };
        assert!(waits(0, &[0.2, 0.1]).is_some_and(|waited| (waited - 0.3).abs() < 0.02));
        assert_eq!(waits(0, &[1.0, 1.0, 1.0]), Some(1.0), "a share");
        assert_eq!(waits(5, &[0.2]), None, "niced itself");
        assert_eq!(waits(-5, &[0.0]), Some(0.0));
    }

    #[test]
    fn a_thread_that_ends_or_a_hole_in_time_gives_nothing() {
        let mut world = World::new(&[process(&[(50.0, 1.0)])]);
        let mut watch = Watch::default();
        watch.locate(&[100], world.dir.path());
        for _ in 0..6 {
            world.now += SAMPLE_EVERY;
            world.processes[0].threads[0].0 += 0.2;
            world.write();
            watch.tick(world.now);
        }
        assert!(watch.tick(world.now).busiest.is_some());
        fs::remove_dir_all(world.dir.path().join("100/task")).unwrap();
        world.now += SAMPLE_EVERY;
        assert_eq!(watch.tick(world.now).busiest, None);
        world.write();
        world.now += GAP_MAX + Nanos(1);
        assert_eq!(watch.tick(world.now).busiest, None, "over a hole nothing is new");
    }

    #[test]
    fn garbage_is_no_process() {
        for text in ["", "1 (a", "1 (a) S", "1 (a) S 1 1 1 0 -1 0 0 0 0 0 x 0 0 0 20 0 1"] {
            assert_eq!(ProcessStat::parse(text), None, "{text:?}");
        }
    }
}
