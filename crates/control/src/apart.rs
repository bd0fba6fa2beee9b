// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Signals apart from what others refused: an operator's ceiling, or a limit of a peer. What these refuse never came
//! to the controller's server, so it is no sign of an overload there.

use tidegate_model::signals::{BucketCounts, Reading, Signals};

/// Without all that was refused.
#[must_use]
pub fn without_refused(signals: &Signals) -> Signals {
    let mut signals = signals.clone();
    if let Some(Reading { value: counts, .. }) = &mut signals.balance.counts {
        (counts.offered, counts.refused, counts.repeated) = (counts.admitted, 0, 0);
    }
    signals
}

/// Without what a limit of a peer on all requests of the service has refused; `None`: nothing. What its own limits
/// refused beside that stays, and its controller sees it.
#[must_use]
pub fn without_remote(signals: &Signals) -> Option<Signals> {
    let remote = signals.balance.counts?.value.refused_remote.filter(|refused| *refused > 0)?;
    let mut signals = signals.clone();
    if let Some(Reading { value: counts, .. }) = &mut signals.balance.counts {
        // In shadow all passed, also those whom the limit would have refused.
        counts.offered = counts.offered.saturating_sub(remote).max(counts.admitted);
        counts.refused = counts.refused.saturating_sub(remote);
        counts.refused_remote = Some(0);
    }
    Some(signals)
}

/// A bucket's counts without all that was refused.
pub fn leave_out_refused(counts: &mut BucketCounts) {
    for (offered, refused) in counts.offered.iter_mut().zip(&mut counts.refused) {
        *offered = offered.saturating_sub(std::mem::take(refused));
    }
    counts.refused_first = 0;
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::RANKS;
    use tidegate_model::signals::Counts;

    #[test]
    fn what_a_service_refuses_beside_a_limit_of_a_peer_is_its_own() {
        let of = |admitted, remote| {
            let counts = Counts {
                offered: 100,
                admitted,
                refused: 40,
                refused_remote: remote,
                ..Counts::default()
            };
            let mut signals = Signals::default();
            signals.balance.counts = Some(Reading::fresh(counts));
            let apart = without_remote(&signals)?.balance.counts?.value;
            Some((apart.offered, apart.admitted, apart.refused))
        };
        assert_eq!(of(60, Some(30)), Some((70, 60, 10)));
        assert_eq!(of(60, Some(40)), Some((60, 60, 0)));
        assert_eq!(of(100, Some(30)), Some((100, 100, 10)), "in shadow");
        assert_eq!((of(60, Some(0)), of(60, None)), (None, None), "all are its own");
    }

    #[test]
    fn what_a_peer_refuses_never_came() {
        let mut counts = BucketCounts {
            offered: [5, 50, 7],
            refused: [0, 20, 7],
            refused_first: 9,
            begun: 35,
            ended: 30,
        };
        leave_out_refused(&mut counts);
        assert_eq!((counts.offered, counts.refused), ([5, 30, 0], [0; RANKS]));
        assert_eq!((counts.refused_first, counts.begun), (0, 35));
    }
}
