// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections that carry many exchanges: refusing new ones comes late, or meets the wrong clients.
//! Which layer would help is for the operator to know.

use tidegate_model::signals::Signals;

/// Seconds in which exchanges and first responses are averaged.
const SECONDS: f64 = 20.0;
/// Fewest first responses that say something.
const ANSWERED_MIN: f64 = 16.0;
/// From so many exchanges a connection on, refusing connections is the wrong layer.
const EXCHANGES_MIN: f64 = 8.0;

/// What a service's connections carry, lately.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pooled {
    answered: f64,
    completed: f64,
}

impl Pooled {
    /// Takes a tick.
    pub(crate) fn see(&mut self, signals: &Signals) {
        let Some(counts) = signals.balance.counts.map(|counts| counts.value) else { return };
        let Some(connections) = counts.connections else { return };
        let keep = (-signals.period.as_secs_f64() / SECONDS).exp();
        self.answered = keep * self.answered + connections.answered as f64;
        self.completed = keep * self.completed + counts.completed as f64;
    }

    /// What would help a service that sheds by its SYNs; `None`: that is the right layer.
    pub(crate) fn advice(&self, shedding: bool, has_rules: bool) -> Option<String> {
        let each = self.completed / self.answered.max(1.0);
        if !shedding || self.answered < ANSWERED_MIN || each < EXCHANGES_MIN {
            return None;
        }
        let layer = if has_rules {
            "the request rules, with lower limits"
        } else {
            "request rules (docs/requests.md), or, inside TLS, the proxy in front"
        };
        Some(format!(
            "connections carry {each:.0} requests each: refusing new connections acts late, and does \
             not reach those that are open. The layer that helps: {layer}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::signals::{ConnectionCounts, Counts, Reading};
    use tidegate_units::Nanos;

    fn seen(answered: u64, completed: u64, ticks: usize) -> Pooled {
        let connections = Some(ConnectionCounts { answered, ..ConnectionCounts::default() });
        let counts = Counts { completed, connections, ..Counts::default() };
        let mut signals = Signals { period: Nanos::from_millis(100), ..Signals::default() };
        signals.balance.counts = Some(Reading::fresh(counts));
        let mut pooled = Pooled::default();
        (0..ticks).for_each(|_| pooled.see(&signals));
        pooled
    }

    #[test]
    fn the_layer_is_named_where_connections_carry_many_requests_and_it_sheds() {
        for (answered, completed, ticks, named) in
            [(2, 16, 100, true), (2, 15, 100, false), (1, 40, 12, false), (1, 40, 30, true)]
        {
            let pooled = seen(answered, completed, ticks);
            let text = pooled.advice(true, false);
            assert_eq!(text.is_some(), named, "{completed} of {answered}, {ticks} ticks");
            assert!(pooled.advice(false, false).is_none());
            assert!(text.is_none_or(|text| text.contains("request rules")));
        }
    }

    #[test]
    fn where_connections_are_not_known_nothing_is_said() {
        let mut signals = Signals { period: Nanos::from_millis(100), ..Signals::default() };
        let counts = Counts { completed: 100, ..Counts::default() };
        signals.balance.counts = Some(Reading::fresh(counts));
        let mut pooled = Pooled::default();
        (0..100).for_each(|_| pooled.see(&signals));
        assert!(pooled.advice(true, false).is_none());
    }
}
