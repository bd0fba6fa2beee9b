// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a server sends to its control nodes: its own limit, divided among them.
//!
//! A limit that works is soon not needed where it was found: the server is calm, because its control
//! nodes refuse. So its own limit says when to begin and where, and the hit counters say when to end:
//! while the server has no limit and the nodes still refuse, the rate grows; once all that comes fits,
//! the limit ends.

use super::divide::{DEMAND_COUNTS, divide};
use tidegate_model::remote::{Hits, REMOTE_RATE_MAX};
use tidegate_units::{Nanos, Rate};

/// By how much the rate grows in a second while the server itself has no limit. At a delay of 5 s it
/// is a third too high before the server's own limit comes back: refusing that third costs a server that
/// spends a fifth of a response on each refusal less than a tenth of its goodput.
pub const GROWTH_PER_SECOND: f64 = 0.05;
/// Demand is averaged over this many seconds.
const DEMAND_SECONDS: f64 = 2.0;
/// A node of which nothing was heard for so long is silent: it has the minimum rate.
const SILENT_AFTER: Nanos = Nanos::from_secs(2);
/// The rate grows to so many times the demand, not further.
const DEMAND_MOST: f64 = 2.0;
/// All that comes must fit for so long before the limit ends.
const CALM_AFTER: Nanos = Nanos::from_secs(2);
/// Without hit counters of any node nobody knows whether the limit is needed: it ends after this.
const UNKNOWN_AFTER: Nanos = Nanos::from_secs(30);

/// The remote limits of one service, as its server gives them.
#[derive(Clone, Debug)]
pub struct Feedback {
    min_rate: f64,
    nodes: Vec<Node>,
    /// Admissions per second that all nodes have together.
    total: Option<f64>,
    /// Since when all that comes has fitted, or nothing has been heard.
    calm: Option<Nanos>,
    unknown: Option<Nanos>,
}

/// What a control node told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Node {
    demand: Option<f64>,
    heard: Option<Nanos>,
    /// Its last hit counters had refusals.
    refuses: bool,
    /// It has lost its limit, and wants to know what holds.
    pub probes: bool,
    /// New work that came there, with what was refused.
    pub offered: u64,
    /// Of this refused because of the limit.
    pub refused: u64,
    /// The same since it was taken ([`Feedback::take_refused`]).
    fresh: u64,
}

impl Node {
    /// Time since its last hit counters; `None` before the first.
    #[must_use]
    pub fn age(&self, now: Nanos) -> Option<Nanos> {
        self.heard.map(|at| now.since(at))
    }

    /// What comes there per second, with what is refused; `None`: it is silent.
    #[must_use]
    pub fn demand(&self, now: Nanos) -> Option<Rate> {
        self.recent(now).map(Rate::per_second)
    }

    fn recent(&self, now: Nanos) -> Option<f64> {
        self.demand.filter(|_| self.age(now).is_some_and(|age| age < SILENT_AFTER))
    }
}

impl Feedback {
    /// Of a service with so many control nodes, none of which gets less than `min_rate` while the rate is
    /// enough for that.
    #[must_use]
    pub fn new(nodes: usize, min_rate: Rate) -> Self {
        let nodes = vec![Node::default(); nodes];
        Self { min_rate: min_rate.get(), nodes, total: None, calm: None, unknown: None }
    }

    /// The same for other nodes: each goes on from the place that it had, or begins. If none had one, all begin anew.
    #[must_use]
    pub fn with_nodes(self, places: &[Option<usize>]) -> Self {
        let node = |at: usize| self.nodes.get(at).copied();
        let nodes: Vec<Option<Node>> = places.iter().map(|at| at.and_then(node)).collect();
        if nodes.iter().all(Option::is_none) {
            return Self::new(places.len(), Rate::per_second(self.min_rate));
        }
        let nodes = nodes.into_iter().map(Option::unwrap_or_default).collect();
        Self { nodes, ..self }
    }

    /// The control nodes.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// What all nodes may let through together; `None`: there is no limit.
    #[must_use]
    pub fn total(&self) -> Option<Rate> {
        self.total.map(Rate::per_second)
    }

    /// Takes hit counters of a control node in.
    pub fn hear(&mut self, now: Nanos, node: usize, hits: &Hits) {
        let Some(node) = self.nodes.get_mut(node) else { return };
        node.heard = Some(now);
        node.probes = hits.probe;
        node.refuses = hits.refused > 0;
        node.offered = node.offered.saturating_add(hits.offered);
        node.refused = node.refused.saturating_add(hits.refused);
        let span = hits.span.as_secs_f64();
        // More than any limit may be is no refusal.
        let most = (REMOTE_RATE_MAX * span) as u64;
        node.fresh = node.fresh.saturating_add(hits.refused.min(hits.offered).min(most));
        if span > 0.0 {
            // More than any limit may be is no demand, and would stay in the mean for long.
            let now = (hits.offered as f64 / span).min(REMOTE_RATE_MAX);
            let keep = libm::exp(-span / DEMAND_SECONDS);
            node.demand = Some(node.demand.map_or(now, |mean| keep * mean + (1.0 - keep) * now));
        }
    }

    /// What control nodes have refused because of a limit since this was asked last; nothing while there is none.
    pub fn take_refused(&mut self) -> u64 {
        let fresh = |node: &mut Node| std::mem::take(&mut node.fresh);
        let sum = self.nodes.iter_mut().map(fresh).fold(0, u64::saturating_add);
        if self.total.is_some() { sum } else { 0 }
    }

    /// A round: the rate of each control node until the next; `None`: no limit. `own` is what the
    /// service limits itself to.
    pub fn tick(&mut self, now: Nanos, period: Nanos, own: Option<Rate>) -> Vec<Option<Rate>> {
        if let Some(own) = own {
            self.total = Some(own.get());
            (self.calm, self.unknown) = (None, None);
        } else if let Some(total) = self.total {
            self.total = self.grown(now, period, total);
        }
        match self.total {
            Some(total) => {
                let counts = |node: &Node| node.recent(now).map(|d| d.min(DEMAND_COUNTS * total));
                let demands: Vec<_> = self.nodes.iter().map(counts).collect();
                let shares = divide(total, self.min_rate, &demands).into_iter();
                shares.map(|share| Some(Rate::per_second(share))).collect()
            }
            None => vec![None; self.nodes.len()],
        }
    }

    fn grown(&mut self, now: Nanos, period: Nanos, total: f64) -> Option<f64> {
        let recent: Vec<f64> = self.nodes.iter().filter_map(|node| node.recent(now)).collect();
        let needed = if recent.is_empty() {
            self.calm = None;
            now.since(*self.unknown.get_or_insert(now)) < UNKNOWN_AFTER
        } else {
            self.unknown = None;
            let refuses = self.nodes.iter().any(|n| n.refuses && n.recent(now).is_some());
            if refuses || recent.iter().sum::<f64>() > total {
                self.calm = None;
                true
            } else {
                now.since(*self.calm.get_or_insert(now)) < CALM_AFTER
            }
        };
        let seconds = period.clamp(Nanos::ZERO, Nanos::SECOND).as_secs_f64();
        let grown = total * (1.0 + GROWTH_PER_SECOND * seconds);
        // Who still refuses while far less comes does it for a reason of its own.
        let most = total.max(DEMAND_MOST * recent.iter().sum::<f64>());
        needed.then_some(if recent.is_empty() { grown } else { grown.min(most) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::remote::Unit;

    fn hits(offered: u64, span_ms: u64) -> Hits {
        let (scope, unit) =
            (tidegate_model::remote::Scope::Service("shop".into()), Unit::Connections);
        Hits { scope, unit, span: Nanos::from_millis(span_ms), offered, refused: 1, probe: false }
    }

    /// What each node gets of 100 in a round, once they have said this for a second.
    fn shares(said: &[(u64, u64)]) -> Vec<f64> {
        let mut feedback = Feedback::new(said.len(), Rate::per_second(0.0));
        let period = Nanos::from_millis(100);
        let mut rates = Vec::new();
        for round in 0..10 {
            let now = Nanos::from_millis(1_000 + 100 * round);
            for (node, (offered, span_ms)) in said.iter().enumerate() {
                feedback.hear(now, node, &hits(*offered, *span_ms));
            }
            rates = feedback.tick(now, period, Some(Rate::per_second(100.0)));
        }
        rates.into_iter().flatten().map(|rate| rate.get().round()).collect()
    }

    #[test]
    fn who_claims_any_demand_leaves_the_others_a_quarter() {
        assert_eq!(shares(&[(30, 100), (10, 100)]), [75.0, 25.0], "as they say");
        assert_eq!(shares(&[(u64::MAX, 1), (10, 100)]), [75.0, 25.0]);
        assert_eq!(shares(&[(u64::MAX, 1), (4, 100), (6, 100)]), [75.0, 10.0, 15.0]);
        // Of several that want as much as the liar may claim each has its part.
        let equal = [(u64::MAX, 1), (30, 100), (30, 100), (30, 100)];
        assert_eq!(shares(&equal), [25.0; 4]);
    }

    #[test]
    fn a_claim_is_forgotten_soon() {
        let mut feedback = Feedback::new(1, Rate::per_second(1.0));
        feedback.hear(Nanos::SECOND, 0, &hits(u64::MAX, 2_000));
        let mut now = Nanos::SECOND;
        for _ in 0..300 {
            now += Nanos::from_millis(100);
            feedback.hear(now, 0, &hits(10, 100));
        }
        let demand = feedback.nodes()[0].demand(now).map(Rate::get);
        assert!(demand.is_some_and(|demand| demand < 1_000.0), "{demand:?}");
    }
}
