// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Responses that hold connections to a server because their clients do not take them.
//!
//! While there are connections, such a client has `body_timeout`. When all are in use and no upload gives way, the
//! response whose client has taken nothing for longest ends for the next request: its client sees that it broke off.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use tidegate_units::Nanos;
use tokio::task::AbortHandle;

/// A client that took something within this time keeps its response: less than 32 KiB a second, at a part of 64 KiB.
const UNTAKEN_MIN: Nanos = Nanos::from_secs(2);

/// What is known of a response on its way to its client.
#[derive(Debug, Default)]
pub(crate) struct Download {
    /// Since when its client has not taken what there is; 0: it is the server that is waited for.
    since_ns: AtomicU64,
    /// It has given way.
    cut: AtomicBool,
}

impl Download {
    /// A part was given to the client, who asks for more once it has taken this one.
    pub(crate) fn gave(&self, now: Nanos) {
        self.since_ns.store(now.0, Relaxed);
    }

    /// The client has taken it.
    pub(crate) fn taken(&self) {
        self.since_ns.store(0, Relaxed);
    }

    pub(crate) fn cut(&self) -> bool {
        self.cut.load(Relaxed)
    }

    fn untaken(&self, now: Nanos) -> Nanos {
        let since = self.since_ns.load(Relaxed);
        if since == 0 { Nanos::ZERO } else { now.since(Nanos(since)) }
    }
}

/// A response that is under way, and what runs its connection to the server.
struct Receiving {
    download: Arc<Download>,
    task: AbortHandle,
}

/// Those of one server.
#[derive(Default)]
pub(crate) struct Downloads {
    begun: u64,
    by_id: BTreeMap<u64, Receiving>,
}

impl Downloads {
    pub(crate) fn begin(&mut self, download: Arc<Download>, task: AbortHandle) -> u64 {
        self.begun += 1;
        self.by_id.insert(self.begun, Receiving { download, task });
        self.begun
    }

    pub(crate) fn end(&mut self, id: u64) {
        self.by_id.remove(&id);
    }

    /// Ends the one that was not taken for longest. False: none gives way.
    pub(crate) fn give_way(&mut self, now: Nanos) -> bool {
        let untaken = |(id, of): (&u64, &Receiving)| (of.download.untaken(now), *id);
        let longest = self.by_id.iter().map(untaken).max_by_key(|(untaken, _)| *untaken);
        let longest = longest.filter(|(untaken, _)| *untaken >= UNTAKEN_MIN);
        let Some(of) = longest.and_then(|(_, id)| self.by_id.remove(&id)) else { return false };
        of.download.cut.store(true, Relaxed);
        of.task.abort();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::Builder;

    #[test]
    fn the_response_that_was_not_taken_for_longest_gives_way() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let (now, mut downloads) = (Nanos::from_secs(100), Downloads::default());
        // In milliseconds; none: the server is waited for.
        let all = [Some(2000), None, Some(5000), Some(1999)].map(|untaken| {
            let download = Arc::new(Download::default());
            if let Some(ms) = untaken {
                download.gave(Nanos(now.0 - Nanos::from_millis(ms).0));
            }
            let task = runtime.spawn(std::future::pending::<()>()).abort_handle();
            downloads.begin(Arc::clone(&download), task);
            download
        });
        let cut = || all.each_ref().map(|download| download.cut());
        assert!(downloads.give_way(now));
        assert_eq!(cut(), [false, false, true, false]);
        assert!(downloads.give_way(now));
        assert_eq!(cut(), [true, false, true, false]);
        assert!(!downloads.give_way(now), "the others have taken something just now");
        all[3].taken();
        assert!(!downloads.give_way(now + Nanos::SECOND));
    }
}
