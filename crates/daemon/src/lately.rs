// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who has probably refused a client in the last minute: the kernel's filter and that of the gate,
//! asked about every service, enforced and in shadow. Of whom a proxy refuses by itself, nobody knows: then
//! the services are named.

use std::net::IpAddr;
use tidegate_bpf::{Core, Error};
use tidegate_config::Config;
use tidegate_gate::{Agents, Gate};
use tidegate_model::snapshot::{Lately, RefusedLately};
use tidegate_units::Nanos;

/// Questions about nobody, by which it is measured how often an answer is wrong.
const MEASURED: u32 = 4096;

/// What is asked about one client.
fn questions(config: &Config) -> impl Iterator<Item = (&str, bool)> {
    config.services.iter().flat_map(|service| [false, true].map(|shadow| (&*service.name, shadow)))
}

fn found(
    gateway: bool,
    (service, shadow): (&str, bool),
    (ago_min, ago_max): (Nanos, Nanos),
) -> RefusedLately {
    RefusedLately { service: service.to_owned(), gateway, shadow, ago_min, ago_max }
}

/// How often one of all questions about a client has a wrong answer.
fn share(wrong: u32, config: &Config) -> f64 {
    let one = f64::from(wrong) / f64::from(MEASURED);
    1.0 - (1.0 - one).powf(questions(config).count() as f64)
}

/// What the hooks have noted.
pub(crate) fn of_kernel(core: &Core, config: &Config, client: IpAddr) -> Result<Lately, Error> {
    let lately = core.lately()?;
    let refused = questions(config).filter_map(|(service, shadow)| {
        Some(found(false, (service, shadow), lately.find(client, service, shadow)?))
    });
    Ok(Lately {
        refused: refused.collect(),
        unnamed: Vec::new(),
        complete: lately.knows_a_minute(),
        wrong: share(lately.wrong(MEASURED), config),
    })
}

/// That, and what the gate has noted. A service may have been limited at both within a minute, and may refuse
/// connections at its hooks and requests at its gateways.
pub(crate) fn join(
    kernel: Option<Lately>,
    (gate, agents, now): (&Gate, Option<&Agents>, Nanos),
    config: &Config,
    client: IpAddr,
) -> Lately {
    // Without hooks they have refused nobody.
    let by_hooks = kernel.as_ref().is_none_or(|lately| lately.complete);
    let by_gate = gate.knows_a_minute(now);
    let mut all = kernel.unwrap_or_default();
    all.complete = config.services.iter().enumerate().all(|(at, service)| {
        (service.listen.is_empty() || by_hooks) && (!gate.serves(at) || by_gate)
    });
    for (service, shadow) in questions(config) {
        if let Some(ago) = gate.refused_lately(now, service, (client, shadow)) {
            all.refused.push(found(true, (service, shadow), ago));
        }
    }
    let by_proxy =
        |at: usize| gate.proxy_refused_lately(at, now) || agents.is_some_and(|a| a.limits(at));
    let services = config.services.iter().enumerate().filter(|(at, _)| by_proxy(*at));
    all.unnamed = services.map(|(_, service)| service.name.clone()).collect();
    let wrong = share(gate.wrongly_refused(now, MEASURED), config);
    all.wrong = 1.0 - (1.0 - all.wrong) * (1.0 - wrong);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers;
    use tidegate_config::{Registry, parse};

    /// Hooks that there are not have refused nobody; those that there are have to know a minute.
    #[test]
    fn without_hooks_the_word_of_the_gate_is_all() {
        let text = "services: {shop: {mode: enforce, listen: ['*:80']}}
gateways: {edge: {adapter: envoy, listen: '127.0.0.1:9470', routes: [{service: shop}]}}
";
        let registry = Registry::new(["fresh_first"], controllers::NAMES);
        let config = parse(text, &registry).unwrap();
        let gate = Gate::new(&config, 7);
        gate.tick(Nanos::SECOND);
        let client = [192, 0, 2, 7].into();
        let complete = |kernel: Option<Lately>, seconds| {
            join(kernel, (&gate, None, Nanos::from_secs(seconds)), &config, client).complete
        };
        assert!(!complete(None, 30) && complete(None, 61));
        let hooks = |complete| Some(Lately { complete, ..Lately::default() });
        assert!(!complete(hooks(false), 61) && complete(hooks(true), 61));
    }
}
