// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same signals as two actuators have to see them.

use crate::period_s;
use tidegate_model::signals::{Counts, Signals};
use tidegate_units::Rate;

/// First requests of connections that header rules refused in this period. Later ones, whatever their
/// rank, belong to connections that were counted long ago.
fn refused_by_rules(signals: &Signals) -> u64 {
    let counts = signals.buckets.iter().filter_map(|bucket| bucket.counts);
    counts.fold(0, |sum, counts| sum.saturating_add(counts.value.refused_first))
}

fn with(signals: &Signals, change: impl Fn(Counts, u64) -> Counts) -> Signals {
    let mut view = Signals {
        now: signals.now,
        period: signals.period,
        resource: signals.resource.clone(),
        queue: signals.queue.clone(),
        time: signals.time.clone(),
        balance: signals.balance.clone(),
        ..Signals::default()
    };
    if let Some(counts) = &mut view.balance.counts {
        let refused = refused_by_rules(signals);
        counts.value = change(counts.value, refused);
        if let Some(connections) = &mut counts.value.connections {
            // Their connections asked, and no server owes them anything.
            connections.asked = connections.asked.saturating_sub(refused);
        }
    }
    view
}

/// For header rules: what they refuse is refused work of the service. Otherwise it would look like
/// work that came and was never answered. None of that is a repeated SYN.
pub(crate) fn whole(signals: &Signals) -> Signals {
    with(signals, |counts, refused| Counts {
        admitted: counts.admitted.saturating_sub(refused),
        refused: counts.refused.saturating_add(refused),
        repeated: counts.repeated.min(counts.offered.saturating_sub(counts.admitted)),
        ..counts
    })
}

/// For SYN policing: what header rules refuse never came. What is left is what it has to judge by:
/// while that is no overload, it is not needed.
pub(crate) fn residual(signals: &Signals) -> Signals {
    with(signals, |counts, refused| Counts {
        offered: counts.offered.saturating_sub(refused),
        admitted: counts.admitted.saturating_sub(refused),
        ..counts
    })
}

/// What a rate that is not executed would have refused of these arrivals counts as refused.
pub(crate) fn pretend(view: &mut Signals, rate: Option<Rate>) {
    let seconds = period_s(view);
    if let (Some(counts), Some(rate)) = (&mut view.balance.counts, rate) {
        let admitted = (rate.get() * seconds).ceil() as u64;
        let refused = counts.value.offered.saturating_sub(admitted);
        counts.value.refused = counts.value.refused.max(refused);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::signals::{BucketCounts, BucketSignals, ConnectionCounts, Reading};

    #[test]
    fn who_was_refused_by_rules_did_not_ask_the_server() {
        let connections = Some(ConnectionCounts { asked: 80, ..ConnectionCounts::default() });
        let counts = Counts { offered: 80, admitted: 80, connections, ..Counts::default() };
        let refused = BucketCounts { refused_first: 30, ..BucketCounts::default() };
        let mut s = Signals::default();
        s.balance.counts = Some(Reading::fresh(counts));
        let counts = Some(Reading::fresh(refused));
        s.buckets.push(BucketSignals { counts, ..BucketSignals::default() });
        for view in [whole(&s), residual(&s)] {
            let counts = view.balance.counts.unwrap().value;
            assert_eq!((counts.admitted, counts.connections.unwrap().asked), (50, 50));
        }
    }

    /// Of 25 repeated SYNs 10 at most were refused, and header rules refused 30 more connections.
    #[test]
    fn what_rules_refuse_is_no_repeated_syn() {
        let counts = Counts { offered: 100, repeated: 25, admitted: 90, ..Counts::default() };
        let refused = BucketCounts { refused_first: 30, ..BucketCounts::default() };
        let mut s = Signals::default();
        s.balance.counts = Some(Reading::fresh(counts));
        let counts = Some(Reading::fresh(refused));
        s.buckets.push(BucketSignals { counts, ..BucketSignals::default() });
        let counts = whole(&s).balance.counts.unwrap().value;
        assert_eq!((counts.admitted, counts.repeated), (60, 10));
    }

    #[test]
    fn rules_refusals_are_refusals_for_rules_and_nothing_for_syn_policing() {
        let mut s = Signals::default();
        let counts =
            Counts { offered: 100, admitted: 90, refused: 10, completed: 40, ..Counts::default() };
        s.balance.counts = Some(Reading::fresh(counts));
        // Which rank was refused says nothing of whose first request it was.
        for (refused, refused_first) in [([900, 0, 0], 7), ([0, 29, 70], 20), ([0, 50, 1], 3)] {
            let refused = BucketCounts { refused, refused_first, ..BucketCounts::default() };
            let counts = Some(Reading::fresh(refused));
            s.buckets.push(BucketSignals { counts, ..BucketSignals::default() });
        }
        let of = |view: Signals| {
            let counts = view.balance.counts.unwrap().value;
            (counts.offered, counts.admitted, counts.refused, counts.completed)
        };
        assert_eq!(of(whole(&s)), (100, 60, 40, 40));
        assert_eq!(of(residual(&s)), (70, 60, 10, 40));
        let mut asleep = residual(&s);
        asleep.period = tidegate_units::Nanos::SECOND;
        pretend(&mut asleep, None);
        assert_eq!(of(asleep.clone()), (70, 60, 10, 40));
        pretend(&mut asleep, Some(Rate::per_second(30.0)));
        assert_eq!(of(asleep), (70, 60, 40, 40));
    }
}
