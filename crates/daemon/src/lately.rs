// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who has probably refused a client in the last minute: the kernel's filter and that of the gate,
//! asked about every service, enforced and in shadow.

use std::net::IpAddr;
use tidegate_bpf::{Core, Error};
use tidegate_config::Config;
use tidegate_gate::Gate;
use tidegate_model::snapshot::{Lately, RefusedLately};
use tidegate_units::Nanos;

/// Questions about nobody, by which it is measured how often an answer is wrong.
const MEASURED: u32 = 4096;

/// What is asked about one client.
fn questions(config: &Config) -> impl Iterator<Item = (&str, bool)> {
    config.services.iter().flat_map(|service| [false, true].map(|shadow| (&*service.name, shadow)))
}

fn found((service, shadow): (&str, bool), (ago_min, ago_max): (Nanos, Nanos)) -> RefusedLately {
    RefusedLately { service: service.to_owned(), shadow, ago_min, ago_max }
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
        Some(found((service, shadow), lately.find(client, service, shadow)?))
    });
    Ok(Lately {
        refused: refused.collect(),
        complete: lately.knows_a_minute(),
        wrong: share(lately.wrong(MEASURED), config),
    })
}

/// That, and what the gate has noted. A service may have been limited at both within a minute.
pub(crate) fn join(
    kernel: Option<Lately>,
    (gate, now): (&Gate, Nanos),
    config: &Config,
    client: IpAddr,
) -> Lately {
    let by_hooks = kernel.as_ref().is_some_and(|lately| lately.complete);
    let by_gate = gate.knows_a_minute(now);
    let mut all = kernel.unwrap_or_default();
    all.complete = config.services.iter().enumerate().all(|(at, service)| {
        (service.listen.is_empty() || by_hooks) && (!gate.serves(at) || by_gate)
    });
    for (service, shadow) in questions(config) {
        let Some(ago) = gate.refused_lately(now, service, (client, shadow)) else { continue };
        let new = found((service, shadow), ago);
        let same = |old: &&mut RefusedLately| old.service == service && old.shadow == shadow;
        match all.refused.iter_mut().find(same) {
            Some(old) if old.ago_min <= new.ago_min => {}
            Some(old) => *old = new,
            None => all.refused.push(new),
        }
    }
    let wrong = share(gate.wrongly_refused(now, MEASURED), config);
    all.wrong = 1.0 - (1.0 - all.wrong) * (1.0 - wrong);
    all
}
