// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Headroom: jobs beyond the usual that a calm server answers within the objective. So many may pile up
//! before the loop has seen them.

use super::Detector;
use super::scale::OBJECTIVE_SHARE;

/// At least this many jobs, whatever the server: what a healthy burst may bring before its server has
/// shown how fast it is.
const HEADROOM_MIN: f64 = 256.0;
/// In objectives of what the CPU tells that the server can reach. What a crowd brings in before the loop
/// has seen it is slow for everybody in it. A server of 1,000/s serves bursts of 200, and what comes
/// until it is seen that it completes nothing meanwhile (at half load 71, with chance).
const REACH_OBJECTIVE: f64 = 0.28;
/// The same while what is in flight may be harmless (see harmless.rs): within the second in which that
/// is found out, so much may come.
const SPARED_OBJECTIVE: f64 = 0.33;
/// There in jobs at least: a burst of 100, and what comes until it is seen that a server which
/// shares itself among all of them completes nothing (28, with chance). At 0.9 load a single server
/// exceeds it with chance 0.9^128, one in a million.
const REACH_MIN: f64 = 128.0;

impl Detector {
    /// Jobs that the server has answered within the objective, if they came at once.
    pub(super) fn headroom_of_peak(&self) -> f64 {
        let blind = HEADROOM_MIN * self.baseline.variability();
        blind.max(OBJECTIVE_SHARE * self.objective_s * self.peak)
    }

    /// Jobs above the usual that an overload brings, and neither chance nor a small burst.
    pub(super) fn beyond_chance(&self) -> f64 {
        (REACH_MIN * self.baseline.variability()).max(self.excess(0.0).1)
    }

    /// Jobs above the usual that are let pile up before the loop has seen them.
    pub(super) fn headroom(&self) -> f64 {
        let variability = self.baseline.variability();
        let blind = self.headroom_of_peak();
        let Some(rate) = self.reach.own_rate() else { return blind };
        let objectives = if self.harmless.spares() { SPARED_OBJECTIVE } else { REACH_OBJECTIVE };
        let objective = objectives * self.objective_s * rate;
        let headroom = blind.min((REACH_MIN * variability).max(objective));
        if !self.stall.holds() {
            return headroom;
        }
        let rate = self.reach.rate().unwrap_or(rate);
        let most = blind.max(OBJECTIVE_SHARE * self.objective_s * rate);
        (headroom + self.stall.piles()).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::super::harmless::tests::{calm, tick as signals};
    use crate::{Controller, Mode};

    /// At 200/s, 0.3 of the CPU used: 220 jobs are let pile up, in a stall up to 533.
    #[test]
    fn a_stall_widens_the_limit_by_what_usually_comes() {
        let mut controller = calm();
        let mut waiting = 2;
        for n in 0..40 {
            waiting += 20;
            let limits = controller.tick(&signals(400 + n, (20, 0, waiting), 0), Mode::Enforce);
            let most = limits.waiting_max.expect("a limit in flight");
            assert!(most > (waiting + 20).min(500), "tick {n}: {most} for {waiting}");
            assert!(most <= (2 + 224 + 20 * (n + 2)).min(540), "tick {n}: {most}");
        }
    }
}
