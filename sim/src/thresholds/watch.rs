// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The threshold policy at the server: it evaluates each SYN, and tells which priorities are to be
//! throttled elsewhere, and how hard.
//!
//! One policy with one state does both. Where throttling is not at the interface, its shares are marks:
//! severity n refuses n/8 of the random numbers, and an event with the largest random number is never
//! throttled. So a SYN is only discarded or let through, and events with chosen random numbers, which
//! are nobody's, find the severity.

use super::spec::{Control, PRIORITIES, SEVERITIES_MAX, Throttling};
use tidegate_policy::{Event, Params, Reason, State, Verdict, VerdictKind, admit};
use tidegate_units::{Nanos, Random};
use tidegate_workload::Rng;

/// What a severity's share is more than that of the one before.
pub(super) const MARK: f64 = 1.0 / 8.0;

/// Severity by priority; 0: not throttled.
pub(super) type Severities = [u8; PRIORITIES];

/// Thresholds on the server's queue.
pub(super) struct Watch {
    params: Params,
    state: State,
    /// Whether the interface throttles, so that its random numbers count.
    at_interface: bool,
    /// The last sample, where the queue is sampled.
    sample: Option<u32>,
    dice: Rng,
}

impl Watch {
    pub(super) fn new(control: &Control, dice: Rng) -> Result<Self, String> {
        let at_interface = matches!(control.throttling, Throttling::Drop(..));
        let sample = control.monitor.map(|_| 0);
        Ok(Self {
            params: control.thresholds()?,
            state: State::fresh(),
            at_interface,
            sample,
            dice,
        })
    }

    /// The monitor reads the queue.
    pub(super) fn sampled(&mut self, queue: usize) {
        if let Some(sample) = &mut self.sample {
            *sample = word(queue);
        }
    }

    fn ask(&mut self, now: Nanos, (queue, priority): (usize, u8), random: u32) -> Verdict {
        let level = self.sample.unwrap_or(word(queue));
        let event = Event { level, priority, random, ..Event::at(now.0) };
        admit(&self.params, &mut self.state, &event)
    }

    /// Whether a SYN of this priority passes the interface.
    pub(super) fn passes(&mut self, now: Nanos, at: (usize, u8)) -> bool {
        let random = self.dice.next_u64() as u32;
        let random = if self.at_interface { random } else { u32::MAX };
        self.ask(now, at, random).kind == VerdictKind::Admit
    }

    /// How hard each controlled priority is to be throttled.
    pub(super) fn severities(&mut self, now: Nanos, queue: usize) -> Severities {
        let mut all = [0; PRIORITIES];
        for (priority, severity) in (0_u8..).zip(all.iter_mut()).skip(1) {
            *severity = self.severity(now, (queue, priority));
        }
        all
    }

    fn severity(&mut self, now: Nanos, at: (usize, u8)) -> u8 {
        let below = |n: u32| ((f64::from(n) - 0.5) * MARK * 4_294_967_296.0) as u32;
        let mut severity = 0;
        for n in 1..=SEVERITIES_MAX as u32 {
            match self.ask(now, at, below(n)).reason {
                Reason::Throttled => severity += 1,
                // Discarding is above all severities.
                Reason::Discard => return SEVERITIES_MAX as u8,
                _ => break,
            }
        }
        severity
    }
}

fn word(queue: usize) -> u32 {
    u32::try_from(queue).unwrap_or(u32::MAX)
}
