// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counting what became of each arrival: by stream and phase, and over time.

use super::ask::KINDS;
use super::hist::Hist;
use super::plan::LoadPlan;
use super::report::{Counts, Sessions};
use serde::{Deserialize, Serialize};
use tidegate_units::Nanos;
use tidegate_workload::RequestKind;

/// A handshake that took this long had its first SYN unanswered: in the lab's network a round trip
/// takes well below a millisecond, and the first retransmission comes after 1 s.
pub(crate) const SYN_REPEATED: Nanos = Nanos::from_millis(900);

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A complete answer with this status.
    Answer(u16),
    /// RST or ICMP to the SYN.
    Refused,
    /// The client gave up before the handshake was complete.
    NoHandshake,
    /// The client gave up while it waited for the rest of the answer.
    NoAnswer,
    /// The connection ended before the answer was complete.
    Broken,
    /// This process could not even try (descriptors, addresses): the run is void.
    Error,
}

/// One finished request; times on the run's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) intended: Nanos,
    pub(crate) started: Nanos,
    pub(crate) established: Option<Nanos>,
    pub(crate) first_byte: Option<Nanos>,
    pub(crate) ended: Nanos,
    pub(crate) outcome: Outcome,
    /// On a connection that had served a request before.
    pub(crate) reused: bool,
    /// Of which kind, where requests are drawn.
    pub(crate) kind: Option<RequestKind>,
}

impl Done {
    fn syn_repeated(&self) -> bool {
        let until = self.established.unwrap_or(self.ended);
        let connecting = self.established.is_some() || self.outcome == Outcome::Refused;
        let repeated = connecting && until - self.started >= SYN_REPEATED;
        // A client may give up connecting before it repeats its SYN: the first had no answer.
        !self.reused && (repeated || self.outcome == Outcome::NoHandshake)
    }

    fn ok(&self) -> bool {
        self.outcome == Outcome::Answer(200)
    }

    fn good(&self, objective: Nanos) -> bool {
        self.ok() && self.ended - self.intended <= objective
    }

    fn refused(&self) -> bool {
        matches!(self.outcome, Outcome::Refused | Outcome::Answer(503 | 429)) || self.syn_repeated()
    }

    pub(crate) fn service(&self) -> Nanos {
        self.ended - self.established.unwrap_or(self.intended)
    }

    pub(crate) fn counts(&self, objective: Nanos) -> Counts {
        let is = |outcome| u64::from(self.outcome == outcome);
        let (http, other) = match self.outcome {
            Outcome::Answer(200) => (0, 0),
            Outcome::Answer(503 | 429) => (1, 0),
            Outcome::Answer(_) => (0, 1),
            _ => (0, 0),
        };
        Counts {
            offered: 1,
            good: u64::from(self.good(objective)),
            answered: u64::from(self.ok()),
            refused: u64::from(self.refused()),
            failed: u64::from(!self.ok()),
            refused_connect: is(Outcome::Refused),
            syn_repeated: u64::from(self.syn_repeated()),
            refused_http: http,
            other_status: other,
            no_handshake: is(Outcome::NoHandshake),
            no_answer: is(Outcome::NoAnswer),
            broken: is(Outcome::Broken),
            errors: is(Outcome::Error),
            reused: u64::from(self.reused),
        }
    }
}

/// Counts and times of one stream in one phase.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) counts: Counts,
    pub(crate) service: Hist,
    pub(crate) perceived: Hist,
    pub(crate) handshake: Hist,
    pub(crate) first_byte: Hist,
    pub(crate) sessions: Sessions,
}

impl Tally {
    pub(crate) const fn new() -> Self {
        Self {
            counts: Counts::NONE,
            service: Hist::fine(),
            perceived: Hist::fine(),
            handshake: Hist::fine(),
            first_byte: Hist::fine(),
            sessions: Sessions::NONE,
        }
    }

    fn done(&mut self, done: &Done, objective: Nanos) {
        self.counts.add(&done.counts(objective));
        if let Some(at) = done.established
            && !done.reused
        {
            self.handshake.record(at - done.started);
        }
        if !done.ok() {
            return;
        }
        self.service.record(done.service());
        self.perceived.record(done.ended - done.intended);
        let since = done.established.unwrap_or(done.intended);
        self.first_byte.record(done.first_byte.unwrap_or(done.ended) - since);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        self.service.add(&other.service);
        self.perceived.add(&other.perceived);
        self.handshake.add(&other.handshake);
        self.first_byte.add(&other.first_byte);
        self.sessions.add(&other.sessions);
    }
}

/// What ended in one slot, or what started in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) counts: Counts,
    pub(crate) service: Hist,
    pub(crate) perceived: Hist,
}

impl Part {
    pub(crate) const fn new() -> Self {
        Self { counts: Counts::NONE, service: Hist::coarse(), perceived: Hist::coarse() }
    }

    fn done(&mut self, done: &Done, objective: Nanos) {
        self.counts.add(&done.counts(objective));
        if done.ok() {
            self.service.record(done.service());
            self.perceived.record(done.ended - done.intended);
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        self.service.add(&other.service);
        self.perceived.add(&other.perceived);
    }
}

/// One step of the time series.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Slot {
    /// By intended start.
    pub(crate) started: Part,
    /// By end.
    pub(crate) ended: Part,
}

/// One stream: phases (the last one is the whole run) and slots.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StreamTally {
    pub(crate) phases: Vec<Tally>,
    pub(crate) slots: Vec<Slot>,
    /// The same by kind, in the order of [`KINDS`], where requests are drawn.
    pub(crate) kinds: Vec<StreamTally>,
}

impl StreamTally {
    /// An empty one; `drawn` if it is to be told by kind, too.
    pub(crate) fn new(plan: &LoadPlan, drawn: bool) -> Self {
        let kinds =
            if drawn { Vec::from(KINDS.map(|_| Self::new(plan, false))) } else { Vec::new() };
        Self { phases: vec![Tally::new(); plan.phases.len() + 1], slots: Vec::new(), kinds }
    }

    /// Counts one finished request.
    pub(crate) fn done(&mut self, plan: &LoadPlan, done: &Done) {
        let at = done.intended;
        let phase = plan.phases.iter().position(|p| p.start <= at && at < p.end);
        if let Some(tally) = phase.and_then(|p| self.phases.get_mut(p)) {
            tally.done(done, plan.objective);
        }
        if let Some(whole) = self.phases.last_mut() {
            whole.done(done, plan.objective);
        }
        self.slot(plan, at).started.done(done, plan.objective);
        self.slot(plan, done.ended).ended.done(done, plan.objective);
        let kind = KINDS.iter().position(|(kind, _)| done.kind == Some(*kind));
        if let Some(tally) = kind.and_then(|k| self.kinds.get_mut(k)) {
            tally.done(plan, done);
        }
    }

    /// Counts one session that is over, by its start.
    pub(crate) fn session(&mut self, plan: &LoadPlan, start: Nanos, completed: bool) {
        let one = Sessions { ended: 1, completed: u64::from(completed) };
        let phase = plan.phases.iter().position(|p| p.start <= start && start < p.end);
        if let Some(tally) = phase.and_then(|p| self.phases.get_mut(p)) {
            tally.sessions.add(&one);
        }
        if let Some(whole) = self.phases.last_mut() {
            whole.sessions.add(&one);
        }
    }

    fn slot(&mut self, plan: &LoadPlan, at: Nanos) -> &mut Slot {
        // Bounded: the plan's check bounds its slots, later ends count in the last one.
        let last = plan.end().0 / plan.slot.0 + 1;
        let index = (at.0 / plan.slot.0).min(last) as usize;
        self.reach(index + 1);
        &mut self.slots[index]
    }

    fn reach(&mut self, length: usize) {
        if self.slots.len() < length {
            self.slots.resize(length, Slot { started: Part::new(), ended: Part::new() });
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.phases.iter_mut().zip(&other.phases).for_each(|(a, b)| a.add(b));
        self.reach(other.slots.len());
        for (a, b) in self.slots.iter_mut().zip(&other.slots) {
            a.started.add(&b.started);
            a.ended.add(&b.ended);
        }
        self.kinds.iter_mut().zip(&other.kinds).for_each(|(a, b)| a.add(b));
    }
}

/// What a shard sends when it is through.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ShardResult {
    pub(crate) streams: Vec<StreamTally>,
    pub(crate) lag: Hist,
    /// CPU time by second of the run; the last one has what came after the plan's end, too.
    pub(crate) cpu: Vec<Nanos>,
    /// Why the first arrival that counts as an error could not be tried.
    pub(crate) error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(outcome: Outcome, handshake_ms: Option<u64>, end_ms: u64) -> Done {
        Done {
            intended: Nanos::ZERO,
            started: Nanos::ZERO,
            established: handshake_ms.map(Nanos::from_millis),
            first_byte: None,
            ended: Nanos::from_millis(end_ms),
            outcome,
            reused: false,
            kind: None,
        }
    }

    #[test]
    fn each_outcome_counts_as_the_glossary_says() {
        // (request, good, answered, refused, failed)
        let cases = [
            (done(Outcome::Answer(200), Some(1), 999), [1, 1, 0, 0]),
            (done(Outcome::Answer(200), Some(1), 1_001), [0, 1, 0, 0]),
            (done(Outcome::Answer(200), Some(1_000), 1_010), [0, 1, 1, 0]),
            (done(Outcome::Answer(503), Some(1), 2), [0, 0, 1, 1]),
            (done(Outcome::Answer(404), Some(1), 2), [0, 0, 0, 1]),
            (done(Outcome::Refused, None, 1), [0, 0, 1, 1]),
            (done(Outcome::NoHandshake, None, 10_000), [0, 0, 1, 1]),
            (done(Outcome::NoAnswer, Some(1), 10_000), [0, 0, 0, 1]),
            (done(Outcome::Broken, Some(1), 5), [0, 0, 0, 1]),
        ];
        for (request, want) in cases {
            let c = request.counts(Nanos::SECOND);
            assert_eq!([c.good, c.answered, c.refused, c.failed], want, "{request:?}");
            assert_eq!(c.answered + c.failed, c.offered, "{request:?}");
        }
    }

    #[test]
    fn phases_go_by_start_and_slots_by_start_and_end() {
        let phase = |name: &str, a, b| super::super::Phase {
            name: name.into(),
            start: Nanos::from_secs(a),
            end: Nanos::from_secs(b),
        };
        let plan =
            LoadPlan { phases: vec![phase("a", 0, 1), phase("b", 1, 2)], ..LoadPlan::default() };
        let mut tally = StreamTally::new(&plan, true);
        let mut late = done(Outcome::Answer(200), Some(1_000), 2_500);
        late.intended = Nanos::from_secs(1);
        late.kind = Some(RequestKind::Large);
        tally.done(&plan, &late);
        tally.session(&plan, Nanos::ZERO, true);
        tally.session(&plan, Nanos::from_secs(3), false);
        let offered: Vec<u64> = tally.phases.iter().map(|p| p.counts.offered).collect();
        assert_eq!(offered, [0, 1, 1]);
        assert_eq!(tally.slots[1].started.counts.answered, 1);
        assert_eq!(tally.slots[2].ended.counts.answered, 1);
        let large: Vec<u64> = tally.kinds.iter().map(|k| k.phases[2].counts.offered).collect();
        assert_eq!(large, [0, 1, 0]);
        let sessions: Vec<u64> = tally.phases.iter().map(|p| p.sessions.ended).collect();
        assert_eq!((sessions, tally.phases[2].sessions.completed), (vec![1, 0, 2], 1));
        let mut sum = StreamTally::new(&plan, true);
        sum.add(&tally);
        sum.add(&tally);
        assert_eq!(sum.phases[2].counts.offered, 2);
        assert_eq!(sum.kinds[1].slots[2].ended.counts.answered, 2);
        assert_eq!(sum.slots[2].ended.perceived.count(), 2);
    }
}
