// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A control node: the shipped policies `gap` and `percent` decide which request of a throttled priority
//! goes to the server, waits, or is told "too busy" by the node.

use super::spec::{Control, Node as Bounds, PRIORITIES};
use super::watch::Severities;
use std::collections::VecDeque;
use tidegate_policy::{Event, Params, ParamsError, State, VerdictKind, admit};
use tidegate_units::{Nanos, Random};
use tidegate_workload::Rng;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// To the server, now.
    Now,
    /// To the server after this time.
    After(Nanos),
    /// "Too busy", by the node.
    Refused,
}

/// What the server said last, to one who throttles.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    sequence: u64,
    severities: Severities,
}

impl Told {
    /// Takes a message, unless a later one was here before. Whether it was taken.
    pub(super) fn take(&mut self, sequence: u64, severities: Severities) -> bool {
        let newer = sequence > self.sequence;
        if newer {
            *self = Self { sequence, severities };
        }
        newer
    }

    /// How hard this priority is to be throttled; 0: not at all.
    pub(super) fn severity(&self, priority: u8) -> u8 {
        self.severities[usize::from(priority) % PRIORITIES]
    }
}

/// See the module.
pub(super) struct Node {
    told: Told,
    /// By severity, the first for severity 1.
    params: Vec<Params>,
    state: State,
    /// In order; with their priorities.
    waiting: VecDeque<(usize, u8)>,
    dice: Rng,
}

impl Node {
    pub(super) fn new(control: &Control, bounds: Bounds, dice: Rng) -> Result<Self, ParamsError> {
        let each = 1..=control.gaps.len();
        let params = each.map(|severity| control.at_node(bounds, severity));
        let params = params.collect::<Result<_, _>>()?;
        let told = Told::default();
        Ok(Self { told, params, state: State::fresh(), waiting: VecDeque::new(), dice })
    }

    /// A request of a client.
    pub(super) fn evaluate(&mut self, now: Nanos, (request, priority): (usize, u8)) -> Sent {
        let severity = usize::from(self.told.severity(priority));
        let Some(last) = severity.checked_sub(1) else { return Sent::Now };
        let params = &self.params[last.min(self.params.len() - 1)];
        let random = self.dice.next_u64() as u32;
        let event = Event { random, priority, ..Event::at(now.0) };
        let verdict = admit(params, &mut self.state, &event);
        match verdict.kind {
            VerdictKind::Admit => Sent::Now,
            VerdictKind::Delay => {
                self.waiting.push_back((request, priority));
                Sent::After(verdict.delay)
            }
            VerdictKind::Drop | VerdictKind::Reject => Sent::Refused,
        }
    }

    /// The time of one that waits has come. Whether it still waits.
    pub(super) fn leave(&mut self, request: usize) -> bool {
        let place = self.waiting.iter().position(|waiting| waiting.0 == request);
        place.and_then(|place| self.waiting.remove(place)).is_some()
    }

    /// A message of the server. Gives those who waited and need not any more, in their order. Once nobody
    /// is throttled the policy starts afresh: what waited has no claim on later gaps.
    pub(super) fn take(&mut self, sequence: u64, severities: Severities) -> Vec<usize> {
        if !self.told.take(sequence, severities) {
            return Vec::new();
        }
        if severities.iter().all(|severity| *severity == 0) {
            self.state = State::fresh();
        }
        let told = self.told;
        let (held, free): (VecDeque<_>, VecDeque<_>) =
            self.waiting.drain(..).partition(|waiting| told.severity(waiting.1) > 0);
        self.waiting = held;
        free.into_iter().map(|waiting| waiting.0).collect()
    }

    /// Requests that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}
