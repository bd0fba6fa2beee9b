// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is usually in flight at a gateway, and a flash crowd that must not become usual.
//!
//! A gateway shows neither CPU nor accept queue, so only growth tells an overload. A crowd that is all in flight does not
//! grow: as many come as complete, and each waits. What is usual, by which the limit of calm is widened, would rise to it within seconds.

use super::Detector;
use super::harmless::HARMLESS_RESPONSES;
use super::history::TICKS_MAX;
use super::scale::{LASTING_TICKS, MEAN_EVENTS};
use tidegate_units::Nanos;

/// Responses that take so much of the objective, and so many times the baseline, are late.
const LATE_OBJECTIVE: f64 = 0.5;
const LATE_TIMES: f64 = 8.0;
/// So many times what usually completes is a crowd, if it is late: behind a dependency that has become slow no more completes than
/// before. Seconds in which what is usual is learned, and in which a crowd shows.
const LATE_MORE: f64 = 1.15;
const LATE_SECONDS: f64 = 10.0;

/// What is usual at a gateway while responses are not late: how many are in flight, and complete per second. And for how many
/// seconds they have been late, and no more of them than usual.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prompt {
    usual: f64,
    rate: f64,
    late_s: f64,
}

impl Detector {
    /// Restores what was usual before, while a crowd waits. Behind a slow dependency no more completes than before; where that is so for
    /// long, more later is no crowd that waits.
    pub(super) fn restore_usual(&mut self, now: Nanos, seconds: f64) {
        if self.history.len() < LASTING_TICKS {
            return;
        }
        let rate = self.history.recent(MEAN_EVENTS, LASTING_TICKS, TICKS_MAX).rate();
        let Some(late) = self.completes_late() else { return };
        if !late {
            if !self.stall.holds() {
                self.learn_usual(seconds, rate);
            }
            return;
        }
        if self.episode.is_some() || self.waited(now) {
            return;
        }
        let Some(prompt) = &mut self.prompt else { return };
        if rate > LATE_MORE * prompt.rate {
            prompt.late_s = 0.0;
            self.usual = self.usual.min(prompt.usual.max(self.harmless.jobs));
        } else {
            prompt.late_s += seconds;
            self.prompt = self.prompt.filter(|prompt| prompt.late_s <= LATE_SECONDS);
        }
    }

    /// While responses are not late. What completes in an overload may be less than usual, because of the limits, and so may be
    /// what is in flight.
    fn learn_usual(&mut self, seconds: f64, rate: f64) {
        let keep = libm::exp(-seconds / LATE_SECONDS);
        let before = self.prompt.unwrap_or(Prompt { usual: self.usual, rate, late_s: 0.0 });
        let lately = keep * before.rate + (1.0 - keep) * rate;
        let (usual, rate) = match self.episode {
            Some(_) => (before.usual, lately.max(before.rate)),
            None => (self.usual, lately),
        };
        self.prompt = Some(Prompt { usual, rate, late_s: 0.0 });
    }

    /// Whether half of what completes has waited, and not because it always takes long; `None`: too little completes.
    fn completes_late(&self) -> Option<bool> {
        let lately = self.history.responding(HARMLESS_RESPONSES, LASTING_TICKS);
        let late_s =
            (LATE_OBJECTIVE * self.objective_s).max(LATE_TIMES * self.baseline.median_s()?);
        let enough = lately.responses >= HARMLESS_RESPONSES;
        enough.then_some(lately.medians_s > late_s * lately.responses)
    }
}
