// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What this router and others tell each other of destinations goes from the senses, which know the peers, to the
//! dataplane, which measures; and back.

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
}
