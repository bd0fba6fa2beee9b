// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of sources (track/source.h), as people and the control loop read it: mapped, so that a
//! look at all places takes no system call each.

use crate::Error;
use crate::abi::{self, Source, SourceSet};
use crate::core::Core;
use crate::mapped::Mapped;
use std::net::Ipv6Addr;
use tidegate_model::sources::SourceUse;

/// The sources that have connections open.
pub(crate) fn open(core: &Core) -> Result<Vec<SourceUse>, Error> {
    let map = |name: &'static str| Mapped::new(core.maps.get(name)?, name);
    let (sets, sources) = (map("tg_source_sets")?, map("tg_sources")?);
    let services = core.plan.config.services.len();
    let service_of: Vec<u8> = (0..services).map(|service| core.gauge(service)).collect();
    let mut found = Vec::new();
    for set in 0..sets.len() {
        let Some(SourceSet { word }) = sets.read(set) else { break };
        for (way, word) in word.into_iter().enumerate() {
            let open = (word & abi::SOURCE_OPEN) as u32;
            if open == 0 {
                continue;
            }
            let Some(raw) = sources.read::<Source>(set * abi::SOURCE_WAYS + way) else {
                continue;
            };
            let Some(service) = service_of.iter().position(|gauge| *gauge == raw.gauge) else {
                continue;
            };
            found.push(used(&raw, service, open));
        }
    }
    Ok(found)
}

fn used(raw: &Source, service: usize, open: u32) -> SourceUse {
    SourceUse {
        service,
        source: SourceUse::of(Ipv6Addr::from(raw.addr).into()),
        open,
        held: u32::try_from(raw.held).unwrap_or(0),
        peak: raw.peak,
        good: raw.good,
        bad: raw.bad,
        exchanges: raw.exchanges,
    }
}
