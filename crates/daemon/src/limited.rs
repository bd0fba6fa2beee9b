// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits of peers on connections that begin and end, for the history.

use std::collections::BTreeMap;
use tidegate_config::Config;
use tidegate_control::fleet::remote::{Flow, InForce};
use tidegate_model::record::What;
use tidegate_units::Nanos;

/// Since when a service is limited, and what came and was refused since then.
#[derive(Clone, Copy, Debug, Default)]
struct Since {
    at: Nanos,
    offered: u64,
    refused: u64,
}

/// By service.
#[derive(Debug, Default)]
pub(crate) struct Limited(BTreeMap<String, Since>);

impl Limited {
    /// A round: what came in it, and the limits from now on, both in the order of the configuration.
    pub(crate) fn turns(
        &mut self,
        now: Nanos,
        config: &Config,
        (flows, in_force): (&[Option<Flow>], &[Option<InForce>]),
    ) -> Vec<What> {
        let mut turns = Vec::new();
        let named = || config.services.iter().map(|service| &service.name);
        for (service, flow) in named().zip(flows) {
            if let Some((since, flow)) = self.0.get_mut(service).zip(flow.as_ref()) {
                since.offered = since.offered.saturating_add(flow.offered);
                since.refused = since.refused.saturating_add(flow.refused);
            }
        }
        for (service, limit) in named().zip(in_force) {
            let Some(limit) = limit.filter(|_| !self.0.contains_key(service)) else { continue };
            self.0.insert(service.clone(), Since { at: now, ..Since::default() });
            let rate = limit.rate.get();
            turns.push(What::ConnectionsLimited { service: service.clone(), rate });
        }
        self.0.retain(|service, since| {
            let goes_on = named().zip(in_force).any(|(name, of)| name == service && of.is_some());
            if !goes_on {
                turns.push(What::ConnectionsUnlimited {
                    service: service.clone(),
                    lasted: now.since(since.at),
                    offered: since.offered,
                    refused: since.refused,
                });
            }
            goes_on
        });
        turns
    }
}
