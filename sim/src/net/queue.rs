// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When a packet is dropped in front of a link: at the end of a full queue, or early (RED).
//!
//! RED is Floyd and Jacobson, "Random Early Detection Gateways for Congestion Avoidance", 1993
//! (figure 2), in packets. `gentle` and `wait` are Floyd's later additions, which ns-2 and ns-3 have
//! switched on. The queue is what waits; the packet that is being sent is not part of it.

use tidegate_units::{Nanos, Random};

/// How much may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// So many packets.
    Packets(u32),
    /// So many bytes.
    Bytes(u64),
}

/// Random early detection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RedSpec {
    /// Average queue in packets below which nothing is dropped (`min_th`).
    pub min: f64,
    /// Average queue at which the share of drops is `max_p` (`max_th`).
    pub max: f64,
    /// Share of drops at `max`, before they are spread out (`max_p`).
    pub max_p: f64,
    /// Weight of the present queue in the average (`w_q`).
    pub weight: f64,
    /// Above `max` the share rises to 1 at twice `max`; otherwise it is 1 from `max` on.
    pub gentle: bool,
    /// Keeps a distance between two drops: 1 to 2 times the mean, where the paper has 0 to 2.
    pub wait: bool,
    /// Bytes of a usual packet: how fast the average falls while the link is idle.
    pub mean_packet: u32,
}

impl RedSpec {
    /// The defaults of ns-2: 5, 15, 0.1, 0.002, gentle, wait; packets of 1,000 bytes.
    pub const NS2: Self = Self {
        min: 5.0,
        max: 15.0,
        max_p: 0.1,
        weight: 0.002,
        gentle: true,
        wait: true,
        mean_packet: 1000,
    };

    /// As published in 1993: neither gentle nor wait; 5, 15, 0.02, 0.002.
    pub const PUBLISHED: Self = Self { max_p: 0.02, gentle: false, wait: false, ..Self::NS2 };

    pub(super) fn is_valid(&self) -> bool {
        let finite = self.min.is_finite() && self.max.is_finite();
        finite
            && self.min > 0.0
            && self.max > self.min
            && self.max_p > 0.0
            && self.max_p <= 1.0
            && self.weight > 0.0
            && self.weight <= 1.0
            && self.mean_packet > 0
    }
}

/// A queue in front of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueSpec {
    /// How much may wait.
    pub limit: Limit,
    /// Drops before that.
    pub red: Option<RedSpec>,
}

impl QueueSpec {
    /// Drop-tail with room for so many packets.
    #[must_use]
    pub const fn packets(limit: u32) -> Self {
        Self { limit: Limit::Packets(limit), red: None }
    }

    /// Drop-tail with room for so many bytes.
    #[must_use]
    pub const fn bytes(limit: u64) -> Self {
        Self { limit: Limit::Bytes(limit), red: None }
    }

    /// RED in a queue with room for so many packets.
    #[must_use]
    pub const fn red(limit: u32, red: RedSpec) -> Self {
        Self { limit: Limit::Packets(limit), red: Some(red) }
    }

    /// Whether a packet of `bytes` fits behind what waits.
    pub(super) const fn fits(&self, waiting: usize, waiting_bytes: u64, bytes: u32) -> bool {
        match self.limit {
            Limit::Packets(limit) => waiting < limit as usize,
            Limit::Bytes(limit) => waiting_bytes + bytes as u64 <= limit,
        }
    }
}

/// State of RED at one queue.
#[derive(Clone, Debug)]
pub(super) struct Red {
    spec: RedSpec,
    average: f64,
    /// Packets since the last drop; -1 while the average is below `min`.
    count: i64,
}

impl Red {
    pub(super) const fn new(spec: RedSpec) -> Self {
        Self { spec, average: 0.0, count: -1 }
    }

    pub(super) const fn average(&self) -> f64 {
        self.average
    }

    /// A packet arrives while `waiting` wait: updates the average.
    pub(super) fn arrives(&mut self, waiting: usize) {
        self.average += self.spec.weight * (waiting as f64 - self.average);
    }

    /// A packet arrives at a link that was idle for a time in which it could have sent so many
    /// nanoseconds' worth of usual packets.
    pub(super) fn arrives_after(&mut self, idle: Nanos, packet: Nanos) {
        let packets = idle.0 as f64 / packet.0.max(1) as f64;
        self.average *= libm::pow(1.0 - self.spec.weight, packets);
    }

    pub(super) const fn mean_packet(&self) -> u32 {
        self.spec.mean_packet
    }

    /// Share of packets that is to be dropped at the present average (p_b); 1 is all.
    fn share(&self) -> f64 {
        let RedSpec { min, max, max_p, gentle, .. } = self.spec;
        if self.average < max {
            max_p * (self.average - min) / (max - min)
        } else if gentle && self.average < 2.0 * max {
            max_p + (1.0 - max_p) * (self.average - max) / max
        } else {
            1.0
        }
    }

    /// Whether to drop the packet that has arrived.
    pub(super) fn drops(&mut self, random: &mut impl Random) -> bool {
        if self.average < self.spec.min {
            self.count = -1;
            return false;
        }
        let share = self.share();
        if share >= 1.0 {
            self.count = 0;
            return true;
        }
        self.count += 1;
        let due = self.count as f64 * share;
        let probability = if self.spec.wait {
            match due {
                due if due < 1.0 => 0.0,
                due if due < 2.0 => share / (2.0 - due),
                _ => 1.0,
            }
        } else if due < 1.0 {
            share / (1.0 - due)
        } else {
            1.0
        };
        let dropped = random.next_f64() < probability;
        if dropped {
            self.count = 0;
        }
        dropped
    }

    /// The queue was full: that is a drop, too.
    pub(super) const fn overflowed(&mut self) {
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_workload::Rng;

    fn at(average: f64, spec: RedSpec) -> Red {
        Red { spec, average, count: -1 }
    }

    #[test]
    fn the_share_of_drops_follows_the_average() {
        let share = |average| at(average, RedSpec::NS2).share();
        assert!((share(10.0) - 0.05).abs() < 1e-12);
        assert!((share(15.0) - 0.1).abs() < 1e-12);
        assert!((share(22.5) - 0.55).abs() < 1e-12);
        assert!(share(30.0) >= 1.0);
        assert!(at(15.0, RedSpec::PUBLISHED).share() >= 1.0, "not gentle: all from max on");
    }

    /// A drop comes 1 to 1/p - 1 packets after the last, evenly; with `wait`, 1/p to 2/p - 1.
    #[test]
    fn drops_are_spread_as_published() {
        let mut random = Rng::new(1, 0);
        for (spec, least, most) in [
            (RedSpec { wait: false, ..RedSpec::NS2 }, 1, 19),
            (RedSpec { wait: true, ..RedSpec::NS2 }, 20, 39),
        ] {
            let mut red = at(10.0, spec); // p is 1/20
            let mut gaps = [0_u32; 64];
            let mut gap = 0;
            for _ in 0..200_000 {
                gap += 1;
                if red.drops(&mut random) {
                    gaps[gap] += 1;
                    gap = 0;
                }
            }
            let seen: Vec<usize> = (0..64).filter(|gap| gaps[*gap] > 5).collect();
            assert_eq!((seen[0], seen[seen.len() - 1]), (least, most), "wait: {}", spec.wait);
            let (few, many) = (gaps[least + 1], gaps[most - 1]);
            assert!(few.abs_diff(many) < few / 4, "evenly: {few} and {many}");
        }
    }

    #[test]
    fn the_average_follows_the_queue_and_falls_while_idle() {
        let mut red = at(0.0, RedSpec { weight: 0.5, ..RedSpec::NS2 });
        red.arrives(8);
        red.arrives(8);
        assert!((red.average() - 6.0).abs() < 1e-12);
        red.arrives_after(Nanos(300), Nanos(100)); // three packets could have gone
        assert!((red.average() - 0.75).abs() < 1e-12);
    }
}
