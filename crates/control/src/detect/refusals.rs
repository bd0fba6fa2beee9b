// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a detector must not take for the clients' doing: refusals of request rules, and of limits that
//! are not executed.

use super::detector::Actuator;
use crate::Mode;
use tidegate_model::signals::{ConnectionCounts, Counts, Signals};

/// Refusals of a tick that are not in the service's counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Connections whose first request was refused by request rules.
    pub by_rules: u64,
    /// SYNs that limits which are not executed would have refused. A detector by whose limits nobody is
    /// refused must not conclude that they are not needed.
    pub on_standby: u64,
    /// Request rules only count: whom they would refuse is served.
    pub only_counted: bool,
}

impl Refusals {
    /// Those of request rules. Later requests, whatever their rank, belong to connections that were
    /// counted long ago.
    #[must_use]
    pub fn of_rules(signals: &Signals, mode: Mode) -> Self {
        let counts = signals.buckets.iter().filter_map(|bucket| bucket.counts);
        let by_rules =
            counts.fold(0_u64, |sum, counts| sum.saturating_add(counts.value.refused_first));
        Self { by_rules, on_standby: 0, only_counted: mode == Mode::Shadow }
    }

    /// Those of request rules that kept a connection from the server.
    pub(crate) const fn executed(self) -> u64 {
        if self.only_counted { 0 } else { self.by_rules }
    }

    /// The counts as who refuses has to see them.
    pub(super) fn told_to(self, actuator: Actuator, counts: Counts) -> Counts {
        match actuator {
            Actuator::Syns => {
                let counts = residual(counts, self.executed());
                Counts { refused: counts.refused.max(self.on_standby), ..counts }
            }
            Actuator::Rules if self.only_counted => {
                Counts { refused: counts.refused.saturating_add(self.by_rules), ..counts }
            }
            Actuator::Rules => whole(counts, self.by_rules),
        }
    }
}

/// For SYN policing: what request rules refuse never came. What is left is what it has to decide by:
/// while that is no overload, it is not needed.
pub(crate) fn residual(counts: Counts, by_rules: u64) -> Counts {
    Counts {
        offered: counts.offered.saturating_sub(by_rules),
        admitted: counts.admitted.saturating_sub(by_rules),
        ..unasked(counts, by_rules)
    }
}

/// For request rules: what they refuse is refused work of the service. Otherwise it would look like
/// work that came and was never answered. None of that is a repeated SYN.
fn whole(counts: Counts, by_rules: u64) -> Counts {
    Counts {
        admitted: counts.admitted.saturating_sub(by_rules),
        refused: counts.refused.saturating_add(by_rules),
        repeated: counts.repeated.min(counts.offered.saturating_sub(counts.admitted)),
        ..unasked(counts, by_rules)
    }
}

/// Their connections were replied to, proved themselves and asked, and no server owes them anything.
fn unasked(mut counts: Counts, by_rules: u64) -> Counts {
    if let Some(connections) = &mut counts.connections {
        let ConnectionCounts { replied, proved, asked, .. } = connections;
        for count in [replied, proved, asked] {
            *count = count.saturating_sub(by_rules);
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::signals::{BucketCounts, BucketSignals, Reading};

    /// Of 80 connections 10 met a full accept queue, 5 did not complete their handshake, and rules
    /// refused 30: whichever they refuse, as many are left that got no reply, no proof and no request.
    #[test]
    fn who_was_refused_by_rules_is_no_connection_of_the_servers() {
        let connections =
            ConnectionCounts { replied: 70, proved: 65, asked: 60, ..ConnectionCounts::default() };
        let connections = Some(connections);
        let counts = Counts { offered: 80, admitted: 80, connections, ..Counts::default() };
        for seen in [whole(counts, 30), residual(counts, 30)] {
            let of = seen.connections.unwrap();
            assert_eq!((seen.admitted, of.replied, of.proved, of.asked), (50, 40, 35, 30));
        }
    }

    /// Of 25 repeated SYNs 10 at most were refused, and rules refused 30 more connections.
    #[test]
    fn what_rules_refuse_is_no_repeated_syn() {
        let counts = Counts { offered: 100, repeated: 25, admitted: 90, ..Counts::default() };
        let counts = whole(counts, 30);
        assert_eq!((counts.admitted, counts.repeated), (60, 10));
    }

    #[test]
    fn rules_refusals_are_refusals_for_rules_and_nothing_for_syn_policing() {
        let mut s = Signals::default();
        let counts =
            Counts { offered: 100, admitted: 90, refused: 10, completed: 40, ..Counts::default() };
        // Which rank was refused says nothing of whose first request it was.
        for (refused, refused_first) in [([900, 0, 0], 7), ([0, 29, 70], 20), ([0, 50, 1], 3)] {
            let refused = BucketCounts { refused, refused_first, ..BucketCounts::default() };
            let counts = Some(Reading::fresh(refused));
            s.buckets.push(BucketSignals { counts, ..BucketSignals::default() });
        }
        let refusals = Refusals::of_rules(&s, Mode::Enforce);
        let of = |refusals: Refusals, actuator| {
            let counts = refusals.told_to(actuator, counts);
            (counts.offered, counts.admitted, counts.refused, counts.completed)
        };
        assert_eq!(of(refusals, Actuator::Rules), (100, 60, 40, 40));
        assert_eq!(of(refusals, Actuator::Syns), (70, 60, 10, 40));
        for (on_standby, refused) in [(0, 10), (9, 10), (40, 40)] {
            let refusals = Refusals { on_standby, ..refusals };
            assert_eq!(of(refusals, Actuator::Syns), (70, 60, refused, 40));
        }
        // In shadow all of them reach the server.
        let refusals = Refusals::of_rules(&s, Mode::Shadow);
        assert_eq!(of(refusals, Actuator::Rules), (100, 90, 40, 40));
        assert_eq!(of(refusals, Actuator::Syns), (100, 90, 10, 40));
    }
}
