// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections that carry many exchanges: refusing new ones comes late, or meets the wrong clients.
//! Which layer would help is for the operator to know. It is told by the count of exchanges a
//! connection, by the effect of refusals (effect.rs), and by the requests in flight of connections that
//! stay, which the controller has found.

use crate::effect::{Effect, InVain};
use ipnet::IpNet;
use tidegate_model::limits::ServiceLimits;
use tidegate_model::signals::Signals;
use tidegate_model::sources::SourceUse;

/// Seconds in which exchanges and first responses are averaged.
const SECONDS: f64 = 20.0;
/// Fewest first responses that say something.
const ANSWERED_MIN: f64 = 16.0;
/// From so many exchanges a connection on, refusing connections is the wrong layer.
const EXCHANGES_MIN: f64 = 8.0;
/// Requests in flight of connections that stay are named from this part of all on, and so many: the
/// standing queue that the default controller allows.
const STAYING_PART_MIN: f64 = 0.25;
/// See [`STAYING_PART_MIN`].
const STAYING_MIN: u64 = 16;
/// One client has no more connections at once (track/source.h).
const SINGLE_OPEN_MAX: u32 = 6;
/// A source with this part of the connections is most of the traffic.
const SHARED_PART_MIN: f64 = 0.5;

/// What a service's connections carry, lately.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pooled {
    answered: f64,
    completed: f64,
    effect: Effect,
    /// Of connections that stay, and all.
    staying: Option<(u64, u64)>,
    /// At the last look.
    shared: Option<Shared>,
}

impl Pooled {
    /// Takes a tick, and the limits that were in force in it.
    pub(crate) fn see(&mut self, signals: &Signals, limits: &ServiceLimits) {
        self.effect.see(signals, limits);
        self.staying = staying(signals, limits);
        let Some(counts) = signals.balance.counts.map(|counts| counts.value) else { return };
        let Some(connections) = counts.connections else { return };
        let keep = (-signals.period.as_secs_f64() / SECONDS).exp();
        self.answered = keep * self.answered + connections.answered as f64;
        self.completed = keep * self.completed + counts.done() as f64;
    }

    /// Takes a look at the service's sources.
    pub(crate) fn look(&mut self, sources: &[SourceUse]) {
        let all: u64 = sources.iter().map(|source| u64::from(source.open)).sum();
        let most = sources.iter().max_by_key(|source| (source.open, source.source));
        let many = |source: &&SourceUse| source.completes() && source.peak > SINGLE_OPEN_MAX;
        self.shared = most.filter(many).and_then(|source| {
            let part = f64::from(source.open) / all as f64;
            let each = f64::from(source.exchanges) / f64::from(source.good.max(1));
            (part >= SHARED_PART_MIN).then_some(Shared { source: source.source, part, each })
        });
    }

    /// What would help a service that sheds by its SYNs; `None`: that is the right layer.
    pub(crate) fn advice(&self, shedding: bool, has_rules: bool) -> Option<String> {
        if !shedding {
            return None;
        }
        let staying = self.staying.map(|(staying, all)| {
            format!(
                "{staying} of {all} requests in flight are on connections that stay: no refusal \
                 reaches them"
            )
        });
        let reasons = [self.many(), self.effect.in_vain().map(InVain::words), staying];
        let mut reasons: Vec<String> = reasons.into_iter().flatten().collect();
        if reasons.is_empty() {
            return self.shared.map(|shared| shared.advice(has_rules));
        }
        reasons.extend(self.shared.map(Shared::words));
        let layer = if has_rules {
            "the request rules, with lower limits, or, inside TLS, the proxy in front"
        } else {
            "request rules (docs/requests.md), or, inside TLS, the proxy in front"
        };
        Some(format!("{}. The layer that helps: {layer}", reasons.join("; ")))
    }

    /// Many exchanges a connection, in words.
    fn many(&self) -> Option<String> {
        let each = self.completed / self.answered.max(1.0);
        (self.answered >= ANSWERED_MIN && each >= EXCHANGES_MIN).then(|| {
            format!(
                "connections carry {each:.0} requests each: refusing new connections acts late, and \
                 does not reach those that are open"
            )
        })
    }
}

/// Requests in flight of connections that stay, and all, where they are a good part of them.
fn staying(signals: &Signals, limits: &ServiceLimits) -> Option<(u64, u64)> {
    let all = signals.time.waiting?.value;
    let staying = limits.waiting_staying.min(all);
    let part = staying as f64 / all.max(1) as f64;
    (staying >= STAYING_MIN && part >= STAYING_PART_MIN).then_some((staying, all))
}

/// A source behind which many clients sit, and that has most of the connections.
#[derive(Clone, Copy, Debug)]
struct Shared {
    source: IpNet,
    part: f64,
    each: f64,
}

impl Shared {
    fn words(self) -> String {
        let (source, percent, each) = (self.source, self.part * 100.0, self.each);
        format!(
            "{source} has {percent:.0} % of the connections, with {each:.0} requests each: a proxy or \
             a NAT"
        )
    }

    fn advice(self, has_rules: bool) -> String {
        let layer = if has_rules {
            "the request rules, with lower limits"
        } else {
            "that proxy, or request rules (docs/requests.md)"
        };
        format!(
            "{}. A refused connection there hits any of its clients. The layer that helps: {layer}",
            self.words()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::limits::Why;
    use tidegate_model::signals::{ConnectionCounts, Counts, Reading};
    use tidegate_units::Nanos;

    fn seen(answered: u64, completed: u64, ticks: usize) -> Pooled {
        let connections = Some(ConnectionCounts { answered, ..ConnectionCounts::default() });
        let counts = Counts { completed, connections, ..Counts::default() };
        let mut signals = Signals { period: Nanos::from_millis(100), ..Signals::default() };
        signals.balance.counts = Some(Reading::fresh(counts));
        let mut pooled = Pooled::default();
        (0..ticks).for_each(|_| pooled.see(&signals, &ServiceLimits::default()));
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

    /// Three exchanges a connection are few, and far more than the limit stays in flight.
    #[test]
    fn the_layer_is_named_where_refusals_bring_nothing_down() {
        let connections = Some(ConnectionCounts { answered: 2, ..ConnectionCounts::default() });
        let counts = Counts { completed: 6, refused: 4, connections, ..Counts::default() };
        let mut signals = Signals { period: Nanos::from_millis(100), ..Signals::default() };
        signals.balance.counts = Some(Reading::fresh(counts));
        signals.time.waiting = Some(Reading::fresh(110));
        let why = Why { shedding: true, ..Why::default() };
        let limits = ServiceLimits { waiting_max: Some(40), why, ..ServiceLimits::default() };
        let mut pooled = Pooled::default();
        (0..20).for_each(|_| pooled.see(&signals, &limits));
        assert!(pooled.advice(true, false).is_none());
        (0..20).for_each(|_| pooled.see(&signals, &limits));
        for has_rules in [false, true] {
            let text = pooled.advice(true, has_rules).unwrap();
            assert!(text.starts_with("4 s of refusing new connections"), "{text}");
            assert!(text.contains("The layer that helps:") && text.contains("the proxy in front"));
            assert_eq!(text.contains("lower limits"), has_rules);
        }
        assert!(pooled.advice(false, false).is_none());
    }

    #[test]
    fn the_layer_is_named_where_connections_stay() {
        for (staying, waiting, named) in
            [(50, 100, true), (16, 64, true), (15, 20, false), (50, 201, false), (50, 30, true)]
        {
            let mut signals = Signals { period: Nanos::from_millis(100), ..Signals::default() };
            signals.time.waiting = Some(Reading::fresh(waiting));
            let limits = ServiceLimits { waiting_staying: staying, ..ServiceLimits::default() };
            let mut pooled = Pooled::default();
            pooled.see(&signals, &limits);
            let text = pooled.advice(true, false);
            assert_eq!(text.is_some(), named, "{staying} of {waiting}: {text:?}");
            assert!(text.is_none_or(|text| text.contains("on connections that stay")));
            assert!(pooled.advice(false, false).is_none(), "it sheds nothing");
        }
    }

    fn source(last: u8, open: u32, held: u32, exchanges: u32) -> SourceUse {
        SourceUse {
            service: 0,
            source: SourceUse::of([192, 0, 2, last].into()),
            open,
            held,
            peak: open,
            good: 100,
            bad: 0,
            exchanges,
        }
    }

    #[test]
    fn a_source_with_most_of_the_connections_is_named_as_a_proxy() {
        for (sources, named) in [
            (vec![source(1, 60, 0, 100), source(2, 60, 0, 100)], true),
            (vec![source(1, 60, 0, 100), source(2, 61, 0, 100)], true),
            (vec![source(1, 60, 0, 100), source(2, 30, 0, 100), source(3, 31, 0, 100)], false),
            (vec![source(1, SINGLE_OPEN_MAX, 0, 100)], false),
            (vec![source(1, SINGLE_OPEN_MAX + 1, 0, 100)], true),
            (vec![source(1, 300, 300, 0)], false),
            (vec![], false),
        ] {
            let mut pooled = seen(2, 2, 100);
            pooled.look(&sources);
            let text = pooled.advice(true, false);
            assert_eq!(text.is_some(), named, "{sources:?}: {text:?}");
            assert!(pooled.advice(false, false).is_none(), "it sheds nothing");
        }
        let mut pooled = seen(2, 40, 100);
        pooled.look(&[source(7, 60, 0, 2_000)]);
        let text = pooled.advice(true, false).unwrap();
        assert!(text.contains("192.0.2.7/32 has 100 %") && text.contains("20 requests"), "{text}");
    }

    #[test]
    fn where_connections_are_not_known_nothing_is_said() {
        let mut signals = Signals { period: Nanos::from_millis(100), ..Signals::default() };
        let counts = Counts { completed: 100, ..Counts::default() };
        signals.balance.counts = Some(Reading::fresh(counts));
        let mut pooled = Pooled::default();
        (0..100).for_each(|_| pooled.see(&signals, &ServiceLimits::default()));
        assert!(pooled.advice(true, false).is_none());
    }
}
