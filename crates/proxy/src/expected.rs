// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests that the gate has passed and whose clients were told to send their bodies (`Expect: 100-continue`).
//!
//! They are in flight, and no server has them. Beyond as many as a server may have connections the oldest ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

#[derive(Default)]
struct Clients {
    begun: u64,
    by_id: BTreeMap<u64, Arc<Notify>>,
}

#[derive(Default)]
pub(crate) struct Expected(Mutex<Clients>);

impl Expected {
    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more, where there may be so many.
    pub(crate) fn enter(&self, most: usize) -> Place<'_> {
        let mut clients = self.clients();
        while clients.by_id.len() >= most.max(1) {
            let Some((_, oldest)) = clients.by_id.pop_first() else { break };
            oldest.notify_one();
        }
        clients.begun += 1;
        let (id, end) = (clients.begun, Arc::new(Notify::new()));
        clients.by_id.insert(id, Arc::clone(&end));
        Place { of: self, id, end }
    }
}

/// Of one of them, until it is dropped.
pub(crate) struct Place<'a> {
    of: &'a Expected,
    id: u64,
    end: Arc<Notify>,
}

impl Place<'_> {
    /// Until others have pushed it out.
    pub(crate) async fn ends(&self) {
        self.end.notified().await;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.of.clients().by_id.remove(&self.id);
    }
}
