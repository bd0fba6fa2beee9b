// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What found no room in the tables of connections: harmless, and told.

use crate::abi::Gauges;
use crate::maps::Maps;
use crate::read::sum;
use crate::{Error, GAUGES_EACH};
use tidegate_model::SERVICES_MAX;

/// What was lost since the state was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableLosses {
    /// Young notes of SYNs that others took the place of: a copy of such a SYN may be refused, and
    /// its connection is in no passive signal.
    pub handshakes: u64,
    /// Connections that no service's passive signals have.
    pub connections: u64,
    /// Connections whose source found no room: no limit on sources applies to them.
    pub sources: u64,
}

pub(crate) fn losses(maps: &Maps) -> Result<TableLosses, Error> {
    let handshakes = sum(&maps.read_percpu("tg_notes", 0)?).iter().sum();
    let (mut connections, mut sources) = (0_u64, 0_u64);
    for gauge in 0..SERVICES_MAX as u32 * u32::from(GAUGES_EACH) {
        let gauges: Gauges = maps.read("tg_gauges", gauge)?;
        connections = connections.saturating_add(gauges.untracked);
        sources = sources.saturating_add(gauges.sourceless);
    }
    Ok(TableLosses { handshakes, connections, sources })
}
