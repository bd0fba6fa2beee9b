// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Delay and loss on links, where the kernel has no netem: a program between two interfaces passes frames on.
//!
//! ```text
//!  host ── ln ═ veth ═ an ── relay ── bn ═ veth ═ ln ── host
//! ```
//!
//! What it costs it says itself: how late frames are beyond their delay, from the kernel's time of arrival on, and its
//! CPU time.

use crate::error::{LabError, Result};
use crate::lab::{Lab, START_LIMIT};
use crate::os;
use crate::process::Managed;
use serde::{Deserialize, Serialize};
use tidegate_units::Nanos;

const PROGRAM: &str = include_str!("relay/relay.py");
/// What it says once it passes frames.
const READY: &str = "ready";
/// Longest delay.
const DELAY_MAX: Nanos = Nanos::from_secs(2);
/// Most frames that wait, of one link in one direction.
const QUEUE_MAX: u32 = 100_000;

/// What a link does to frames, in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Way {
    /// How long each takes, at most 2 s.
    pub delay: Nanos,
    /// Share of them that is lost, at random.
    pub loss: f64,
    /// How many can be under way; more are lost.
    pub queue: u32,
}

impl Way {
    /// A delay, without loss.
    #[must_use]
    pub const fn of(delay: Nanos) -> Self {
        Self { delay, loss: 0.0, queue: 10_000 }
    }

    /// What `tc -batch` does to a device, where the kernel has netem.
    pub(crate) fn netem(&self, device: &str) -> String {
        let Self { delay, loss, queue } = *self;
        let (delay_us, percent) = (delay.0 / 1_000, loss * 100.0);
        format!(
            "qdisc add dev {device} root netem limit {queue} delay {delay_us}us loss {percent}%\n"
        )
    }
}

/// What the relay has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct RelayCounts {
    /// Frames that it passed on.
    pub passed: u64,
    /// Frames that it lost on purpose.
    pub lost: u64,
    /// Frames for which there was no room.
    pub overflowed: u64,
    /// How late frames were beyond their delay, in seconds: half of them, and 99 in 100, no later.
    pub late_p50: f64,
    /// See `late_p50`.
    pub late_p99: f64,
    /// CPU time that it used, in seconds.
    pub cpu: f64,
}

/// The relay of all links that have one; ended by drop.
#[derive(Debug)]
pub(crate) struct Relay {
    process: Managed,
}

impl Relay {
    /// Starts it in the namespace that lies at `net`, for pairs of interfaces there, and waits until it passes frames.
    pub(crate) fn start(lab: &Lab, net: String, ways: &[(String, String, Way)]) -> Result<Self> {
        let mut command = vec!["nice".into(), "-n".into(), "-20".into()];
        command.extend(["python3", "-c", PROGRAM, "1"].map(str::to_owned));
        for (one, other, way) in ways {
            let Way { delay, loss, queue } = *way;
            let fits = delay <= DELAY_MAX && (0.0..1.0).contains(&loss);
            if !fits || !(1..=QUEUE_MAX).contains(&queue) {
                return Err(LabError::Plan(format!("a link with {way:?}")));
            }
            let delay_us = delay.0 / 1_000;
            command.extend([one.clone(), other.clone(), delay_us.to_string()]);
            command.extend([loss.to_string(), queue.to_string()]);
        }
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let mut process = lab.start_at(net, lab.load_cpu(), "relay", &words)?;
        let log = process.log().to_path_buf();
        let says = || std::fs::read_to_string(&log).is_ok_and(|text| text.starts_with(READY));
        if os::wait_until(START_LIMIT, || says() || !process.running()) && process.running() {
            return Ok(Self { process });
        }
        Err(LabError::Missing(format!("a relay{}", os::log_tail(&log))))
    }

    /// What it has done, at most a second ago.
    pub(crate) fn counts(&self) -> Result<RelayCounts> {
        let log = self.process.log();
        let text = std::fs::read_to_string(log).map_err(LabError::io(os::text(log)))?;
        last(&text).ok_or_else(|| LabError::Missing(format!("counts of the relay in {text:?}")))
    }
}

/// The last whole line; nothing was done before the first.
fn last(log: &str) -> Option<RelayCounts> {
    let whole = log.rsplit_once('\n')?.0;
    match whole.rsplit('\n').next() {
        Some(READY) => Some(RelayCounts::default()),
        Some(line) => serde_json::from_str(line).ok(),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netem_does_the_same() {
        let way = Way { loss: 0.1, ..Way::of(Nanos::from_millis(30)) };
        let wanted = "qdisc add dev l0 root netem limit 10000 delay 30000us loss 10%\n";
        assert_eq!(way.netem("l0"), wanted);
    }

    #[test]
    fn the_last_whole_line_counts() {
        let line = r#"{"passed": 3, "lost": 1, "overflowed": 0, "late_p50": 1e-05, "late_p99": 2e-04, "cpu": 0.5}"#;
        let counts = last(&format!("ready\n{line}\n{{\"pass")).unwrap();
        assert_eq!((counts.passed, counts.lost, counts.late_p99), (3, 1, 2e-4));
        assert_eq!(last("ready\n"), Some(RelayCounts::default()));
        assert_eq!(last("Traceback\n"), None);
        assert_eq!(last("rea"), None);
    }
}
