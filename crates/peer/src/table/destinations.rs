// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What other routers told of destinations, until somebody takes it out.

use super::{Peer, Table};
use crate::destinations::{AS_SERVICES, DestinationsMessage};
use crate::refusal::Refusal;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tidegate_model::SpiffeId;
use tidegate_model::sharing::{DestinationReport, RouterReports, SHARED_MAX};
use tidegate_units::Nanos;

/// A router that is silent on the bus for so long is not there.
const HEARD_WITHIN: Nanos = Nanos::from_secs(10);
const SILENT: &str = "it is not heard on the bus";

/// The last report of each destination, and when something was told.
#[derive(Clone, Debug, Default)]
pub(super) struct Destinations {
    reports: BTreeMap<SocketAddr, DestinationReport>,
    at: Option<Nanos>,
}

impl Table {
    /// The peers that are routers with which this host shares what it measures, from now on.
    pub fn share_with(&mut self, routers: &[SpiffeId]) {
        self.routers = routers.iter().cloned().collect();
        for (identity, peer) in &mut self.peers {
            if !self.routers.contains(identity) {
                peer.destinations = Destinations::default();
            }
        }
    }

    /// Whether they are heard over a bus, from now on.
    pub fn hear_by_bus(&mut self, by_bus: bool) {
        self.by_bus = by_bus;
    }

    /// Whether this peer is a router that is heard over a bus.
    pub(super) fn is_by_bus(&self, identity: &SpiffeId) -> bool {
        self.by_bus && self.shares(identity)
    }

    /// Whether the session of a peer is up. One over a bus does not end with a connection.
    pub(super) fn is_heard(&self, now: Nanos, identity: &SpiffeId, peer: &Peer) -> bool {
        let lately = peer.last.is_some_and(|at| now.since(at) <= HEARD_WITHIN);
        peer.session.is_some() && (lately || !self.is_by_bus(identity))
    }

    /// What is wrong with a peer.
    pub(super) fn problem_of(&self, now: Nanos, identity: &SpiffeId, peer: &Peer) -> String {
        if self.is_by_bus(identity) && !self.is_heard(now, identity, peer) {
            return match peer.problem.as_str() {
                "" => SILENT.to_owned(),
                problem => format!("{SILENT}; refused last: {problem}"),
            };
        }
        peer.problem.clone()
    }

    /// Whether this peer is such a router.
    #[must_use]
    pub fn shares(&self, identity: &SpiffeId) -> bool {
        self.routers.contains(identity)
    }

    /// As how many services such a router counts.
    pub(super) fn granted_as_router(&self, identity: &SpiffeId) -> usize {
        if self.shares(identity) { AS_SERVICES } else { 0 }
    }

    /// Takes in what a router tells of destinations.
    ///
    /// # Errors
    /// Why it was not taken; then nothing changed.
    pub fn accept_destinations(
        &mut self,
        now: Nanos,
        identity: &SpiffeId,
        message: DestinationsMessage,
    ) -> Result<(), Refusal> {
        let shares = self.shares(identity);
        let peer = self.peers.get_mut(identity).ok_or(Refusal::UnknownPeer)?;
        if peer.session != Some(message.session) {
            return Err(Refusal::OtherSession);
        }
        if message.epoch != peer.epoch || message.sequence <= peer.sequence {
            return Err(Refusal::Stale);
        }
        if !shares {
            return Err(Refusal::NotGranted);
        }
        if !message.is_sound() {
            return Err(Refusal::OutOfRange);
        }
        let known = &peer.destinations.reports;
        let is_new = |report: &&DestinationReport| !known.contains_key(&report.destination);
        if known.len() + message.reports.iter().filter(is_new).count() > SHARED_MAX {
            return Err(Refusal::Quota);
        }
        peer.sequence = message.sequence;
        peer.last = Some(now);
        peer.reports += 1;
        let late = peer.delay.excess(now, message.sent_ms);
        peer.destinations.at = Some(Nanos(now.0.saturating_sub(late.0)));
        let reports = message.reports.into_iter().map(|report| (report.destination, report));
        peer.destinations.reports.extend(reports);
        Ok(())
    }

    /// What routers told since the last call.
    pub fn take_destinations(&mut self) -> Vec<RouterReports> {
        let told = |peer: &mut Peer| {
            let Destinations { reports, at } = std::mem::take(&mut peer.destinations);
            let reports = reports.into_values().collect();
            Some(RouterReports { router: peer.name.clone(), at: at?, reports })
        };
        self.peers.values_mut().filter_map(told).collect()
    }
}
