// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Datagrams to services: their limits, as a part of what is in force, and what was counted.

use crate::Error;
use crate::abi;
use crate::maps::Maps;
use tidegate_model::totals::DatagramTotals;
use tidegate_model::{Canary, Mode, SERVICES_MAX};
use tidegate_policy::DatagramLimit;
use zerocopy::IntoBytes;

/// What each CPU has counted, by service.
pub(crate) const COUNTS: &str = "tg_datagrams";
/// What all CPUs share of limits on datagrams.
pub(crate) const STATES: &str = "tg_datagram_states";

/// The limits of all services, by their index.
#[derive(Clone, Debug)]
pub(crate) struct DatagramLimits(Vec<DatagramLimit>);

impl DatagramLimits {
    /// From what is in force, or none.
    pub(crate) fn read(rows: &[Vec<u8>]) -> Self {
        let mut entries = vec![DatagramLimit::default(); SERVICES_MAX];
        for (value, entry) in rows.iter().zip(&mut entries) {
            *entry = abi::read(value).unwrap_or_default();
        }
        Self(entries)
    }

    /// As the kernel has them.
    pub(crate) fn rows(&self) -> impl Iterator<Item = Vec<u8>> {
        self.0.iter().map(|entry| entry.as_bytes().to_vec())
    }

    /// Takes what the control loop decided; refusals are carried out as before.
    pub(crate) fn set(&mut self, service: usize, limit: DatagramLimit) {
        if let Some(entry) = self.0.get_mut(service) {
            *entry = limit.with_mode_of(entry);
        }
    }

    /// Changes whose refusals are executed.
    pub(crate) fn set_mode(&mut self, service: usize, mode: Mode, canary: Canary) {
        if let Some(entry) = self.0.get_mut(service) {
            entry.set_shadow(mode == Mode::Shadow);
            entry.set_canary(canary.share_q16());
        }
    }
}

/// What has come for a service, and what was refused, on all CPUs.
pub(crate) fn totals(maps: &Maps, service: usize) -> Result<DatagramTotals, Error> {
    let mut totals = DatagramTotals::default();
    for value in maps.read_percpu(COUNTS, service as u32)? {
        let cpu: abi::Datagrams = abi::read(&value).unwrap_or_default();
        totals.offered += cpu.offered;
        totals.refused += cpu.refused;
        totals.refused_bytes += cpu.refused_bytes;
        totals.spared += cpu.spared;
    }
    Ok(totals)
}
