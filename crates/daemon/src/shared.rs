// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What goes between the senses, which know the peers, and the dataplane, and is no limit: what this router and others
//! tell each other of destinations, and what hosts say by marks in packets.

use crate::owner::Owner;
use tidegate_units::Nanos;

impl Owner {
    /// Once a tick.
    pub(crate) fn share(&mut self, now: Nanos) {
        let heard = self.senses.shared();
        if let Some(reports) = self.plane.share(now, heard) {
            self.senses.share(reports);
        }
        let events = self.senses.events(now);
        self.record.note_all(events);
    }

    /// Once a tick: what this host says by marks in packets, and who has said that it is overloaded.
    pub(crate) fn mark(&mut self, now: Nanos) {
        let says = self.remote.says((&self.intent.config, self.intent.released), &self.sensed);
        let servers = self.plane.mark(now, says);
        self.remote.marked(now, &self.intent.config, &servers);
    }
}
