// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How busy the CPUs are, by what idle-priority loops no longer get.
//!
//! ```text
//!   CPU 0:  loop at SCHED_IDLE ── rounds ─► file      busy = time − rounds / (rounds per second at rest)
//!   CPU 1:  loop at SCHED_IDLE ── rounds ─► file      summed over the CPUs
//! ```
//!
//! Clock ticks do not see the network's softirq work, and on veth that of the server is done on the
//! CPU of whoever sends; both miss from a process's own CPU time. A loop that runs whenever nothing
//! else does misses nothing: it is slower by exactly what was taken from it, by whomever. It is as
//! exact as the machine is steady: some ±5 % of the CPUs' time, more (15 % was seen) where the two
//! threads of a core count as CPUs and other machines run on it.

use crate::error::{LabError, Result};
use crate::helper::Helper;
use crate::os;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// Steps between two looks at the clock: some microseconds.
const STEPS: u32 = 2_000;
/// How often a loop writes down how far it is.
const WRITE_EVERY: Nanos = Nanos::from_micros(500);
/// How long a loop may take to begin.
const START_LIMIT: Nanos = Nanos::from_secs(10);
/// CPU time that a loop must have had in a window, for the window to count.
const OWN_LEAST: Nanos = Nanos::from_millis(2);
/// Windows of a calibration; the best of them counts, because nothing makes a loop too fast.
const WINDOWS: u32 = 5;

/// The loops; ended by drop.
#[derive(Debug)]
pub struct IdleMeter {
    loops: Vec<Loop>,
    /// Rounds per second of each loop on a machine at rest.
    at_rest: Vec<f64>,
}

#[derive(Debug)]
struct Loop {
    child: Child,
    file: PathBuf,
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.file);
    }
}

/// How far the loops were at one moment.
#[derive(Clone, Debug)]
pub struct IdleMark {
    at: Nanos,
    rounds: Vec<u64>,
}

/// What a CPU's loop joins: the root of the hierarchies, where its priority is compared with
/// everything else's; the automatic group of its session would count as much as a whole server.
const JOIN: &str = "echo $$ >\"$1\"
shift
echo 19 >/proc/self/autogroup
exec chrt --idle 0 taskset -c \"$@\"";

impl IdleMeter {
    /// Starts a loop on each CPU and measures what they do when nothing is taken from them; best
    /// when nothing else runs.
    ///
    /// # Errors
    /// Without `chrt`, or when a loop does not begin.
    pub(crate) fn start(
        helper: &Helper,
        dir: &Path,
        cpu_root: &Path,
        calibration: Nanos,
    ) -> Result<Self> {
        for program in ["chrt", "setsid", "taskset"] {
            os::find_program(program)?;
        }
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let mut loops = Vec::new();
        for cpu in 0..cpus {
            let file = dir.join(format!("idle-{cpu}"));
            let mut command = Command::new("setsid");
            command.args(["sh", "-c", JOIN, "sh"]).arg(cpu_root.join("cgroup.procs"));
            command.arg(cpu.to_string()).args(helper.command("idle")).arg(&file);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let child = command.spawn().map_err(LabError::io("start an idle loop"))?;
            loops.push(Loop { child, file });
        }
        for idle in &loops {
            let begun = || read(&idle.file).is_some_and(|rounds| rounds > 0);
            os::wait_or_fail("an idle loop to begin", START_LIMIT, None, begun)?;
        }
        let mut meter = Self { at_rest: vec![0.0; loops.len()], loops };
        meter.calibrate(calibration)?;
        Ok(meter)
    }

    /// Measures again what the loops do when nothing is taken from them: rounds per second of
    /// their own CPU time, so that processes beside them do not matter, only softirq work and a
    /// slower machine do; a faster one counts, a slower one does not.
    ///
    /// # Errors
    /// When a loop has ended, or never gets a CPU.
    pub fn calibrate(&mut self, lasts: Nanos) -> Result<()> {
        let mut before = (self.mark()?, self.own_each()?);
        for _ in 0..WINDOWS {
            std::thread::sleep(Nanos(lasts.0 / u64::from(WINDOWS)).into());
            let after = (self.mark()?, self.own_each()?);
            for (index, best) in self.at_rest.iter_mut().enumerate() {
                let used = after.1[index] - before.1[index];
                let rounds = after.0.rounds[index] - before.0.rounds[index];
                if used >= OWN_LEAST {
                    *best = best.max(rounds as f64 / used.as_secs_f64());
                }
            }
            before = after;
        }
        let never = self.at_rest.iter().any(|rate| *rate <= 0.0);
        let busy = || LabError::Missing("a CPU for an idle loop: the machine is busy".into());
        if never { Err(busy()) } else { Ok(()) }
    }

    /// CPU time that the loops themselves have used: what clock ticks count beside it is what they
    /// see of everything else.
    ///
    /// # Errors
    /// When a loop has ended.
    pub fn own(&self) -> Result<Nanos> {
        Ok(self.own_each()?.into_iter().fold(Nanos::ZERO, |sum, each| sum + each))
    }

    fn own_each(&self) -> Result<Vec<Nanos>> {
        let used = |idle: &Loop| {
            let path = format!("/proc/{}/schedstat", idle.child.id());
            let text = std::fs::read_to_string(path).ok()?;
            text.split(' ').next()?.parse().ok().map(Nanos)
        };
        let all: Option<Vec<Nanos>> = self.loops.iter().map(used).collect();
        all.ok_or_else(|| LabError::Missing("an idle loop".into()))
    }

    /// How far the loops are now.
    ///
    /// # Errors
    /// When a loop has ended.
    pub fn mark(&self) -> Result<IdleMark> {
        let at = MonotonicClock.now();
        let rounds: Option<Vec<u64>> = self.loops.iter().map(|idle| read(&idle.file)).collect();
        let rounds = rounds.ok_or_else(|| LabError::Missing("an idle loop".into()))?;
        Ok(IdleMark { at, rounds })
    }

    /// CPU time that was used between two marks, all CPUs and all kinds of work together.
    #[must_use]
    pub fn busy(&self, from: &IdleMark, to: &IdleMark) -> Nanos {
        let seconds = (to.at - from.at).as_secs_f64();
        let idle: f64 = rates(from, to)
            .zip(&self.at_rest)
            .map(|(rate, at_rest)| (rate / at_rest.max(1.0)).min(1.0) * seconds)
            .sum();
        Nanos::from_secs_f64((self.loops.len() as f64).mul_add(seconds, -idle).max(0.0))
    }
}

fn rates(from: &IdleMark, to: &IdleMark) -> impl Iterator<Item = f64> {
    let seconds = (to.at - from.at).as_secs_f64().max(1e-9);
    from.rounds.iter().zip(&to.rounds).map(move |(a, b)| b.saturating_sub(*a) as f64 / seconds)
}

fn read(file: &Path) -> Option<u64> {
    let bytes = std::fs::read(file).ok()?;
    Some(u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?))
}

/// One loop: counts until its starter is gone.
pub(crate) fn main(file: &str) -> std::result::Result<(), String> {
    let file = std::fs::File::create(file).map_err(|e| format!("{file}: {e}"))?;
    let parent = rustix::process::getppid();
    let (mut state, mut rounds, mut written) = (1_u64, 0_u64, Nanos::ZERO);
    while rustix::process::getppid() == parent {
        // A few of them between two looks at who the parent is: bounded by the clock.
        loop {
            for _ in 0..STEPS {
                state = black_box(state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1));
            }
            rounds += 1;
            let now = MonotonicClock.now();
            if now - written >= WRITE_EVERY {
                written = now;
                break;
            }
        }
        file.write_all_at(&rounds.to_le_bytes(), 0).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Uses this much CPU time: a known load.
pub(crate) fn burn(micros: &str) -> std::result::Result<(), String> {
    let span = Nanos::from_micros(micros.parse().map_err(|_| "microseconds".to_owned())?);
    let end = tidegate_units::ThreadCpuClock.now() + span;
    while tidegate_units::ThreadCpuClock.now() < end {}
    Ok(())
}
