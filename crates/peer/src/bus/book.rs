// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is known of the connection to a bus, and counted there.

use super::BusConfig;
use crate::refusal::Refusal;
use crate::table::{Counts, named};
use tidegate_model::sharing::BusState;
use tidegate_units::Nanos;

/// What the server says is shown for so long.
const COMPLAINT_FOR: Nanos = Nanos::from_secs(60);

/// The state of the bus. Counters go on when another one is followed.
#[derive(Debug, Default)]
pub(crate) struct Book {
    /// The bus that is followed, by the number of its client.
    config: Option<(u64, BusConfig)>,
    clients: u64,
    up: bool,
    since: Nanos,
    connections: u64,
    pub(crate) sent: u64,
    pub(crate) unsent: u64,
    pub(crate) taken: u64,
    refused: Counts,
    /// Why there is no connection.
    problem: String,
    /// What the server said, and when.
    complaint: Option<(String, Nanos)>,
}

impl Book {
    /// Another bus from now on, or none; the number of its client.
    pub(crate) fn follow(&mut self, config: Option<BusConfig>, now: Nanos) -> u64 {
        self.clients += 1;
        self.config = config.map(|config| (self.clients, config));
        (self.up, self.since) = (false, now);
        self.problem.clear();
        self.clients
    }

    /// Whether a client is the one that is followed: one that ends must not tell of another's connection.
    pub(crate) fn is_of(&self, client: u64) -> bool {
        self.config.as_ref().is_some_and(|(current, _)| *current == client)
    }

    pub(crate) fn connected(&mut self, now: Nanos) {
        (self.up, self.since) = (true, now);
        self.connections += 1;
        self.problem.clear();
    }

    /// There is no connection.
    pub(crate) fn lost(&mut self, why: &str, now: Nanos) {
        if self.up {
            (self.up, self.since) = (false, now);
        }
        why.clone_into(&mut self.problem);
        self.complaint = None;
    }

    /// The server says something, and says it again as long as it is so.
    pub(crate) fn complaint(&mut self, text: String, now: Nanos) {
        self.complaint = Some((text, now));
    }

    fn problem_at(&self, now: Nanos) -> String {
        let lately = |(_, at): &&(String, Nanos)| now.since(*at) <= COMPLAINT_FOR;
        match self.complaint.as_ref().filter(lately) {
            Some((text, _)) => text.clone(),
            None => self.problem.clone(),
        }
    }

    pub(crate) fn refuse(&mut self, why: Refusal, more: u64) {
        let count = &mut self.refused[why as usize];
        *count = count.saturating_add(more);
    }

    /// For people; `None` where there is no bus.
    pub(crate) fn state(&self, now: Nanos) -> Option<BusState> {
        let (_, config) = self.config.as_ref()?;
        Some(BusState {
            servers: config.servers.clone(),
            subject: config.subject.clone(),
            up: self.up,
            lasts: now.since(self.since),
            connections: self.connections,
            sent: self.sent,
            unsent: self.unsent,
            taken: self.taken,
            refused: named(&self.refused),
            problem: self.problem_at(now),
        })
    }
}
