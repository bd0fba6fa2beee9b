// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Idle and interrupt time of each CPU from `/proc/stat`.

use crate::file::{Probe, malformed};
use std::io;
use tidegate_model::CpuList;

/// `/proc/stat` counts in ticks of 1/100 s on every architecture (USER_HZ).
const TICK_NS: u64 = 10_000_000;

/// Times of one CPU since boot, in nanoseconds (in steps of 10 ms).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuTimes {
    pub(crate) cpu: u16,
    /// Idle and waiting for a disk. With a tickless kernel this is measured, not sampled, and
    /// stops during interrupts: so what is *not* idle includes the softirq time that the sampled
    /// columns miss.
    pub(crate) idle_ns: u64,
    /// Interrupts and softirqs, sampled.
    pub(crate) irq_ns: u64,
    /// Tasks that yield to others (a nice value above 0), sampled.
    pub(crate) nice_ns: u64,
}

/// The CPUs that are online and their times; kept and refilled to allocate nothing per tick.
#[derive(Debug)]
pub(crate) struct Stat {
    probe: Probe,
    cpus: Vec<CpuTimes>,
}

impl Stat {
    pub(crate) fn new(proc: &std::path::Path) -> Self {
        Self { probe: Probe::new(proc.join("stat")), cpus: Vec::new() }
    }

    /// Reads the times of all CPUs.
    pub(crate) fn refresh(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.cpus.clear();
        let text = self.probe.read(buffer)?;
        for line in text.lines().skip(1).take_while(|line| line.starts_with("cpu")) {
            // A line cut off by the buffer has too few columns and is left out.
            self.cpus.extend(times(line));
        }
        match self.cpus.is_empty() {
            true => Err(malformed(self.probe.path(), "no CPU lines")),
            false => Ok(()),
        }
    }

    /// Sums over those of `allowed` that are online (all that are online if `None`).
    pub(crate) fn sum(&self, allowed: Option<&CpuList>) -> CpuSum {
        let mut sum = CpuSum::default();
        for times in &self.cpus {
            if allowed.is_none_or(|set| set.0.binary_search(&times.cpu).is_ok()) {
                sum.cpus += 1;
                sum.idle_ns += times.idle_ns;
                sum.irq_ns += times.irq_ns;
                sum.nice_ns += times.nice_ns;
            }
        }
        sum
    }
}

/// Times of several CPUs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuSum {
    pub(crate) cpus: u32,
    pub(crate) idle_ns: u64,
    pub(crate) irq_ns: u64,
    pub(crate) nice_ns: u64,
}

/// `cpuN user nice system idle iowait irq softirq …`
fn times(line: &str) -> Option<CpuTimes> {
    let mut columns = line.strip_prefix("cpu")?.split_ascii_whitespace();
    let cpu = columns.next()?.parse().ok()?;
    let mut values = [0_u64; 7];
    for value in &mut values {
        *value = columns.next()?.parse().ok()?;
    }
    let [_, nice, _, idle, iowait, irq, softirq] = values;
    Some(CpuTimes {
        cpu,
        idle_ns: idle.saturating_add(iowait).saturating_mul(TICK_NS),
        irq_ns: irq.saturating_add(softirq).saturating_mul(TICK_NS),
        nice_ns: nice.saturating_mul(TICK_NS),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_gives_idle_with_iowait_and_both_kinds_of_interrupts() {
        let got = times("cpu3 10 20 30 400 5 6 7 8 0 0");
        let expected = CpuTimes {
            cpu: 3,
            idle_ns: 405 * TICK_NS,
            irq_ns: 13 * TICK_NS,
            nice_ns: 20 * TICK_NS,
        };
        assert_eq!(got, Some(expected));
        for cut in ["cpu3 10 20 30 400", "cpu 1 2 3 4 5 6 x", "intr 7"] {
            assert_eq!(times(cut), None, "{cut:?}");
        }
    }
}
