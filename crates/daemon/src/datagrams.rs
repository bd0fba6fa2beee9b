// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Datagrams to services, as the hooks count them: what came since the round before.

use crate::remote::only_shown;
use std::collections::BTreeMap;
use tidegate_config::{Config, ServiceConfig};
use tidegate_control::fleet::remote::{Flow, InForce};
use tidegate_model::record::What;
use tidegate_model::totals::DatagramTotals;
use tidegate_sense::Sensed;
use tidegate_units::Nanos;

/// By service.
#[derive(Default)]
pub(crate) struct Datagrams {
    /// The totals of the round before.
    totals: BTreeMap<String, DatagramTotals>,
    /// Since when they are limited, and the totals then.
    limited: BTreeMap<String, (Nanos, DatagramTotals)>,
}

/// What came in a round.
#[derive(Default)]
pub(crate) struct Came {
    /// By service, in the order of the configuration; `None`: nothing was counted.
    pub(crate) flows: Vec<Option<Flow>>,
    /// Bytes of what limits refused.
    pub(crate) refused_bytes: u64,
}

impl Datagrams {
    /// A round. In shadow what would have been refused is counted, and passes.
    pub(crate) fn tick(&mut self, (config, released): (&Config, bool), sensed: &[Sensed]) -> Came {
        self.totals.retain(|name, _| config.services.iter().any(|of| of.name == *name));
        let mut came = Came::default();
        for (index, service) in config.services.iter().enumerate() {
            let totals = sensed.get(index).and_then(|sensed| sensed.totals.as_ref()?.datagrams);
            let shadow = released || only_shown(service);
            if totals.is_none() {
                // What comes meanwhile came in no round.
                self.totals.remove(&service.name);
            }
            let flow = totals.and_then(|totals| self.since(service, totals, shadow));
            came.refused_bytes += flow.map_or(0, |(_, bytes)| bytes);
            came.flows.push(flow.map(|(flow, _)| flow));
        }
        came
    }

    /// What came since the totals before, and bytes of what was refused; `None`: there are none to compare with.
    fn since(
        &mut self,
        service: &ServiceConfig,
        now: DatagramTotals,
        shadow: bool,
    ) -> Option<(Flow, u64)> {
        let before = self.totals.insert(service.name.clone(), now)?;
        let new = |of: fn(&DatagramTotals) -> u64| of(&now).checked_sub(of(&before));
        let (offered, refused) = (new(|t| t.offered)?, new(|t| t.refused)?);
        let (bytes, spared) = (new(|t| t.refused_bytes)?, new(|t| t.spared)?);
        let passed = offered.saturating_sub(refused);
        let refused = if shadow { spared } else { refused };
        Some((Flow { offered, repeated: 0, passed, refused, shadow }, bytes))
    }
}

impl Datagrams {
    /// Limits that began and ended, in a round after [`Self::tick`]: those in force now, in the order of the configuration.
    pub(crate) fn turns(
        &mut self,
        now: Nanos,
        config: &Config,
        in_force: &[Option<InForce>],
    ) -> Vec<What> {
        let Self { totals, limited } = self;
        let at = |name: &str| totals.get(name).copied().unwrap_or_default();
        let named = || config.services.iter().map(|service| &service.name).zip(in_force);
        let mut turns = Vec::new();
        for (service, limit) in named() {
            let Some(limit) = limit.filter(|_| !limited.contains_key(service)) else { continue };
            limited.insert(service.clone(), (now, at(service)));
            let rate = limit.rate.get();
            turns.push(What::DatagramsLimited { service: service.clone(), rate });
        }
        limited.retain(|service, (since, before)| {
            let goes_on = named().any(|(name, limit)| name == service && limit.is_some());
            if !goes_on {
                let after = at(service);
                turns.push(What::DatagramsUnlimited {
                    service: service.clone(),
                    lasted: now.since(*since),
                    offered: after.offered.saturating_sub(before.offered),
                    refused: after.refused.saturating_sub(before.refused),
                    would_refuse: after.spared.saturating_sub(before.spared),
                });
            }
            goes_on
        });
        turns
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may")]

    use super::*;
    use tidegate_config::{Registry, parse};
    use tidegate_model::totals::ServiceTotals;
    use tidegate_units::Rate;

    #[test]
    fn what_came_is_the_difference_and_a_counter_that_began_anew_says_nothing() {
        let text =
            "interfaces: [{name: lo}]\nservices: {shop: {mode: enforce, listen: ['*:80']}}\n";
        let config = parse(text, &Registry::new(["fresh_first"], ["default"])).unwrap();
        let mut datagrams = Datagrams::default();
        let mut tick = |counts: Option<[u64; 4]>, released: bool| {
            let of = |[offered, refused, refused_bytes, spared]: [u64; 4]| DatagramTotals {
                offered,
                refused,
                refused_bytes,
                spared,
            };
            let totals = ServiceTotals { datagrams: counts.map(of), ..ServiceTotals::default() };
            let sensed = Sensed { totals: Some(totals), ..Sensed::default() };
            let came = datagrams.tick((&config, released), &[sensed]);
            let flow = came.flows[0].map(|f| (f.offered, f.passed, f.refused, f.shadow));
            (flow, came.refused_bytes)
        };
        assert_eq!(tick(None, false), (None, 0), "not counted here");
        assert_eq!(tick(Some([100, 10, 9_000, 0]), false), (None, 0), "nothing to compare with");
        assert_eq!(tick(Some([130, 18, 9_800, 1]), false), (Some((30, 22, 8, false)), 800));
        assert_eq!(tick(Some([150, 18, 9_800, 6]), true), (Some((20, 20, 5, true)), 0));
        assert_eq!(tick(Some([5, 0, 0, 0]), false), (None, 0), "counted anew");
        assert_eq!(tick(Some([6, 0, 0, 0]), false), (Some((1, 1, 0, false)), 0));
        assert_eq!(tick(None, false), (None, 0));
        assert_eq!(tick(Some([9000, 0, 0, 0]), false), (None, 0), "that came in no round");
        assert_eq!(tick(Some([9001, 0, 0, 0]), false), (Some((1, 1, 0, false)), 0));
    }

    #[test]
    fn a_limit_has_one_begin_and_one_end_with_what_came() {
        let text =
            "interfaces: [{name: lo}]\nservices: {shop: {mode: enforce, listen: ['*:80']}}\n";
        let config = parse(text, &Registry::new(["fresh_first"], ["default"])).unwrap();
        let mut datagrams = Datagrams::default();
        let mut tick = |second: u64, offered: u64, rate: Option<f64>| {
            let refused = offered / 2;
            let of = DatagramTotals { offered, refused, ..DatagramTotals::default() };
            let totals = ServiceTotals { datagrams: Some(of), ..ServiceTotals::default() };
            datagrams
                .tick((&config, false), &[Sensed { totals: Some(totals), ..Sensed::default() }]);
            let limit =
                |rate| InForce { rate: Rate::per_second(rate), burst: 20, ..InForce::default() };
            let turns = datagrams.turns(Nanos::from_secs(second), &config, &[rate.map(limit)]);
            turns.iter().map(What::sentence).collect::<Vec<_>>()
        };
        assert!(tick(1, 100, None).is_empty());
        assert_eq!(tick(2, 200, Some(50.0)), ["shop: a peer limits datagrams to 50.0/s"]);
        assert!(tick(3, 300, Some(40.0)).is_empty());
        let ended = "shop: datagrams are not limited any more, after 5.00 s: 500 came, 250 refused";
        assert_eq!(tick(7, 700, None), [ended]);
        assert!(tick(8, 800, None).is_empty());
    }
}
