// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPU time of everything, by what is missing of it: a loop on every CPU, of the lowest priority,
//! counts its turns. Accounting by ticks does not see softirqs; a loop that did not run does.

use super::space::{pin, run};
use anyhow::{Result, bail};
use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// Steps of one turn: short beside any window, long beside counting it.
const STEPS: u32 = 2000;
/// Time of a window in which nothing else runs.
const CALIBRATION: Duration = Duration::from_millis(50);

#[derive(Debug)]
struct Loop {
    turns: Arc<AtomicU64>,
    thread: JoinHandle<Result<()>>,
}

/// Turns per ns of each loop when nothing else runs: the most that was ever seen.
pub type Rates = Vec<f64>;

/// The loops; they run while this exists.
#[derive(Debug)]
pub struct IdleLoops {
    loops: Vec<Loop>,
    stop: Arc<AtomicBool>,
}

fn spin(cpu: usize, turns: &AtomicU64, stop: &AtomicBool) -> Result<()> {
    pin(cpu)?;
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    run(Command::new("chrt").args(["--idle", "--pid", "0", &thread]), "")?;
    while !stop.load(Ordering::Relaxed) {
        for step in 0..STEPS {
            black_box(step);
        }
        turns.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

impl IdleLoops {
    /// One loop a CPU.
    pub fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let start = |cpu| {
            let turns = Arc::new(AtomicU64::new(0));
            let (counted, stop) = (Arc::clone(&turns), Arc::clone(&stop));
            let thread = std::thread::spawn(move || spin(cpu, &counted, &stop));
            Loop { turns, thread }
        };
        Self { loops: (0..cpus).map(start).collect(), stop }
    }

    fn window<T>(&self, work: impl FnOnce() -> T) -> (T, Nanos, Vec<u64>) {
        let count = || self.loops.iter().map(|l| l.turns.load(Ordering::Relaxed)).collect();
        let (before, from): (Vec<u64>, Nanos) = (count(), MonotonicClock.now());
        let result = work();
        let (after, to): (Vec<u64>, Nanos) = (count(), MonotonicClock.now());
        let turns = after.iter().zip(&before).map(|(after, before)| after - before).collect();
        (result, Nanos(to.0 - from.0), turns)
    }

    /// CPU time, in ns, that all CPUs spent on something else while this ran.
    pub fn spent<T>(&self, rates: &mut Rates, work: impl FnOnce() -> T) -> Result<(T, f64)> {
        if self.loops.iter().any(|each| each.thread.is_finished()) {
            bail!("an idle loop ended");
        }
        let ((), time, turns) = self.window(|| std::thread::park_timeout(CALIBRATION));
        rates.resize(turns.len(), f64::MIN_POSITIVE);
        for (rate, turns) in rates.iter_mut().zip(turns) {
            *rate = rate.max(turns as f64 / time.0 as f64);
        }
        let (result, time, turns) = self.window(work);
        let missing = rates
            .iter()
            .zip(turns)
            .map(|(rate, turns)| (time.0 as f64 - turns as f64 / rate).max(0.0));
        Ok((result, missing.sum()))
    }
}

impl Drop for IdleLoops {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for each in self.loops.drain(..) {
            let _ = each.thread.join();
        }
    }
}
