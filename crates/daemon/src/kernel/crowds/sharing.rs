// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What this router tells others of the destinations behind it, and hears of them (`tidegate_control::crowd::Sharing`).

use super::{BUSY, FlashCrowds, Scale, Watched};
use std::net::SocketAddr;
use tidegate_control::crowd::Sight;
use tidegate_model::record::What;
use tidegate_model::sharing::{DestinationReport, RouterReports, SharingState};
use tidegate_units::Nanos;

/// A router that is silent for so long is lost; one that is heard is heard again.
const LOST_AFTER: Nanos = Nanos::from_secs(10);
const HEARD_WITHIN: Nanos = Nanos::from_secs(4);

impl FlashCrowds {
    /// Shares with these routers from now on.
    pub(in crate::kernel) fn share_with(&mut self, routers: &[String]) {
        self.sharing.follow(routers);
    }

    /// Takes in what others told; what they are to be told, if it is time to.
    pub(in crate::kernel) fn share(
        &mut self,
        now: Nanos,
        heard: Vec<RouterReports>,
    ) -> Option<Vec<DestinationReport>> {
        heard.into_iter().for_each(|told| self.sharing.hear(now, told));
        let told = self.sharing.tell(now);
        if told.is_some() {
            self.note_others(now);
        }
        told
    }

    /// Routers that are heard, or not any more.
    fn note_others(&mut self, now: Nanos) {
        let states = self.sharing.states(now);
        self.heard.retain(|router| states.iter().any(|state| state.router == *router));
        for state in states {
            let (router, silent) = (state.router, state.age.unwrap_or(Nanos(u64::MAX)));
            if silent <= HEARD_WITHIN && self.heard.insert(router.clone()) {
                self.events.push(What::RouterHeard { router });
            } else if silent >= LOST_AFTER && self.heard.remove(&router) {
                self.events.push(What::RouterLost { router, silent });
            }
        }
    }

    /// Exchanges a second here from which on a destination is watched. What several routers see is enough together.
    pub(in crate::kernel) fn busy_from(&self) -> f64 {
        BUSY / (1.0 + self.sharing.routers() as f64)
    }

    /// Whether another router tells of a destination.
    pub(in crate::kernel) fn others_tell_of(&self, destination: &SocketAddr, now: Nanos) -> bool {
        self.sharing.tell_of(destination, now)
    }

    /// The other routers.
    pub(in crate::kernel) fn others(&self, now: Nanos) -> Vec<SharingState> {
        self.sharing.states(now)
    }
}

impl Watched {
    /// A tick of it, as other routers know it.
    pub(super) fn sight(&self, place: usize, scale: &Scale, now: Nanos) -> Sight {
        Sight {
            now,
            key: place as u64,
            destination: self.address,
            sample: scale.sample,
            enforced: scale.enforced,
        }
    }
}
