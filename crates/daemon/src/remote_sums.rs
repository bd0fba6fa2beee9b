// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Remote limits summed over time, by service, peer and role: a scrape sees only the limit of its moment.

use std::collections::BTreeMap;
use tidegate_config::Config;
use tidegate_model::remote::Unit;
use tidegate_model::snapshot::{RemoteState, RemoteSum};
use tidegate_units::Nanos;

/// So much of a tick counts at most: what was so in a longer one nobody knows.
const PERIOD_MAX: Nanos = Nanos::from_secs(3);

/// Service, peer, role and unit.
type Key = (String, String, String, Unit);

/// See the head of this file. As many as services times peers, twice.
#[derive(Debug, Default)]
pub(crate) struct RemoteSums(BTreeMap<Key, RemoteSum>);

impl RemoteSums {
    /// Forgets services and peers that a configuration has no more.
    pub(crate) fn follow(&mut self, config: &Config) {
        let cluster = || config.cluster.iter();
        let peers = cluster().flat_map(|cluster| &cluster.peers).map(|peer| &peer.name);
        let targets = cluster().flat_map(|cluster| &cluster.report_to).map(|target| &target.name);
        let names: Vec<&String> = peers.chain(targets).collect();
        self.0.retain(|(service, peer, ..), _| {
            names.contains(&peer) && config.services.iter().any(|known| known.name == *service)
        });
    }

    /// A tick of a service: of several scopes the tightest limit counts.
    pub(crate) fn add(&mut self, service: &str, period: Nanos, states: &[RemoteState]) {
        let mut tightest: BTreeMap<(&str, &str, Unit), f64> = BTreeMap::new();
        for state in states {
            let Some(rate) = state.rate else { continue };
            let key = (state.peer.as_str(), state.role.as_str(), state.unit);
            let least = tightest.entry(key).or_insert(f64::INFINITY);
            *least = least.min(rate.get());
        }
        let period = Nanos(period.0.min(PERIOD_MAX.0));
        for ((peer, role, unit), rate) in tightest {
            let key = (service.to_owned(), peer.to_owned(), role.to_owned(), unit);
            let sum = self.0.entry(key).or_insert_with(|| RemoteSum {
                peer: peer.into(),
                role: role.into(),
                unit,
                ..RemoteSum::default()
            });
            sum.allowed += rate * period.as_secs_f64();
            sum.in_force += period;
        }
    }

    /// Those of a service.
    pub(crate) fn of(&self, service: &str) -> Vec<RemoteSum> {
        let own = self.0.iter().filter(|((name, ..), _)| name == service);
        own.map(|(_, sum)| sum.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_units::Rate;

    #[test]
    fn the_tightest_scope_counts_and_of_a_gap_its_end() {
        let state = |peer: &str, role: &str, rate: Option<f64>| RemoteState {
            peer: peer.into(),
            role: role.into(),
            rate: rate.map(Rate::per_second),
            ..RemoteState::default()
        };
        let mut sums = RemoteSums::default();
        let both = [
            state("b1", "from", Some(90.0)),
            state("b1", "from", Some(40.0)),
            state("b1", "from", None),
            state("b1", "to", Some(7.0)),
            RemoteState { unit: Unit::Datagrams, ..state("b1", "from", Some(5.0)) },
        ];
        (0..20).for_each(|_| sums.add("shop", Nanos::from_millis(100), &both));
        sums.add("shop", Nanos::from_secs(60), &[state("b1", "to", Some(7.0))]);
        sums.add("api", Nanos::SECOND, &[state("b1", "from", None)]);
        let of = |service| {
            let all = sums.of(service).into_iter();
            all.map(|s| (s.role, (s.allowed * 10.0).round() / 10.0, s.in_force)).collect::<Vec<_>>()
        };
        let expected = [
            ("from".to_owned(), 80.0, Nanos::from_secs(2)),
            ("from".to_owned(), 10.0, Nanos::from_secs(2)),
            ("to".to_owned(), 35.0, Nanos::from_secs(5)),
        ];
        assert_eq!((of("shop"), of("api")), (expected.to_vec(), Vec::new()));
    }
}
