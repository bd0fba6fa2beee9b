// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Uploads that hold connections to a server, and which of them gives way when all are in use.
//!
//! A client that sends its body slowly, or stops, holds a connection for as long as `body_timeout` lets it. That
//! is harmless while there are connections. When there are none, the upload that let the server wait for
//! longest ends for the next request, also behind its response. Where the uploads of one source hold more than
//! [`SHARE`] of the connections they end for a request of another source after a shorter pause ([`PAUSE_MIN`]), and
//! no other upload ends for a request of that source. Nothing is refused to a source for what it holds: a proxy or
//! load balancer in front, whose clients all have its address, may use every connection that nobody else wants.

use crate::body::Upload;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tidegate_units::Nanos;
use tokio::task::AbortHandle;

/// An upload that has let the server wait for less does not end for a request of its own source.
const OVERDUE_MIN: Nanos = Nanos::from_millis(500);
/// Nor one that has for less than this for a request of another source: a body that comes without a stop pauses for a
/// round trip now and then.
const PAUSE_MIN: Nanos = Nanos::from_millis(100);
/// Of the connections to a server, the part that the uploads of one source keep while others want some.
const SHARE: f64 = 0.5;

/// An upload that is under way.
struct Sending {
    source: IpAddr,
    upload: Arc<Upload>,
    /// Runs the connection to the server.
    task: AbortHandle,
}

/// Those to one server.
#[derive(Default)]
pub(crate) struct Uploads {
    begun: u64,
    by_id: BTreeMap<u64, Sending>,
}

impl Uploads {
    /// A client of this source sends a body, over the connection that this task runs.
    pub(crate) fn begin(&mut self, source: IpAddr, upload: Arc<Upload>, task: AbortHandle) -> u64 {
        self.begun += 1;
        self.by_id.insert(self.begun, Sending { source, upload, task });
        self.begun
    }

    pub(crate) fn end(&mut self, id: u64) {
        self.by_id.remove(&id);
    }

    /// Forgets what has ended, or whose connection has.
    pub(crate) fn prune(&mut self) {
        let goes_on =
            |sending: &Sending| !sending.upload.ended.load(Relaxed) && !sending.task.is_finished();
        self.by_id.retain(|_, sending| goes_on(sending));
    }

    /// Ends one of them for a request of this source, where there are at most so many connections. False: none
    /// gives way.
    pub(crate) fn give_way(&mut self, now: Nanos, asks: IpAddr, connections: u32) -> bool {
        // What has ended waits for the server.
        self.prune();
        let Some(sending) = self.next(now, asks, connections).and_then(|id| self.by_id.remove(&id))
        else {
            return false;
        };
        sending.upload.slow.store(true, Relaxed);
        sending.task.abort();
        true
    }

    fn next(&self, now: Nanos, asks: IpAddr, connections: u32) -> Option<u64> {
        let greedy = self.greedy(connections);
        let rank = |sending: &Sending| {
            let (own, overdue) = (sending.source == asks, sending.upload.overdue(now));
            let of_greedy = greedy == Some(sending.source) && !own;
            let least = if of_greedy { PAUSE_MIN } else { OVERDUE_MIN };
            let spared = greedy == Some(asks) && !own;
            (overdue >= least && !spared).then_some((of_greedy, overdue))
        };
        let ranked = self.by_id.iter().filter_map(|(id, sending)| Some((rank(sending)?, *id)));
        ranked.max_by_key(|(rank, _)| *rank).map(|(_, id)| id)
    }

    /// The source whose uploads hold more than their share.
    fn greedy(&self, connections: u32) -> Option<IpAddr> {
        let mut held: BTreeMap<IpAddr, u32> = BTreeMap::new();
        for sending in self.by_id.values() {
            *held.entry(sending.source).or_default() += 1;
        }
        let most = held.into_iter().max_by_key(|(_, held)| *held);
        most.filter(|(_, held)| f64::from(*held) > SHARE * f64::from(connections))
            .map(|(source, _)| source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::{Builder, Runtime};

    const NOW: Nanos = Nanos::from_secs(100);
    const CONNECTIONS: u32 = 4;

    struct World {
        runtime: Runtime,
        uploads: Uploads,
    }

    impl World {
        /// Uploads of these hosts, each with the milliseconds for which it was paused so far and what has come of it.
        fn new(all: &[(u8, u64, u64)]) -> Self {
            let runtime = Builder::new_current_thread().build().unwrap();
            let mut world = Self { runtime, uploads: Uploads::default() };
            for (host, ms, received) in all {
                let since = Nanos(NOW.0 - Nanos::from_millis(*ms).0);
                let task = world.runtime.spawn(std::future::pending::<()>()).abort_handle();
                let upload = Upload::paused(since, *received);
                world.uploads.begin(source(*host), Arc::new(upload), task);
            }
            world
        }

        /// The one that gives way to a request of this host.
        fn next(&self, host: u8) -> Option<u64> {
            self.uploads.next(NOW, source(host), CONNECTIONS)
        }
    }

    fn source(host: u8) -> IpAddr {
        [192, 0, 2, host].into()
    }

    #[test]
    fn the_upload_that_let_the_server_wait_for_longest_gives_way() {
        let mut world = World::new(&[(1, 600, 0), (2, 900, 0), (3, 499, 0), (1, 0, 0)]);
        assert_eq!(world.next(4), Some(2));
        assert!(world.uploads.give_way(NOW, source(4), CONNECTIONS));
        assert_eq!(world.next(4), Some(1));
        assert!(world.uploads.give_way(NOW, source(4), CONNECTIONS));
        assert_eq!(world.next(4), None, "the others have only just paused");
        assert!(!world.uploads.give_way(NOW, source(4), CONNECTIONS));
    }

    /// A byte now and then ends each pause in time, and not what all of them come to.
    #[test]
    fn drops_buy_no_time() {
        let mut world = World::new(&[(1, 10, 20), (2, 10, 1_000_000)]);
        for sending in world.uploads.by_id.values() {
            sending.upload.waited_before(Nanos::from_secs(5));
        }
        assert_eq!(world.next(3), Some(1), "the other one sends more than it has to");
        world.uploads.end(1);
        assert_eq!(world.next(3), None);
    }

    #[test]
    fn who_holds_more_than_half_gives_way_to_others_soon() {
        let half = World::new(&[(1, 101, 0), (1, 102, 0), (2, 103, 0)]);
        assert_eq!(half.next(2), None);
        let more = World::new(&[(1, 101, 0), (1, 102, 0), (1, 0, 0), (2, 900, 0)]);
        assert_eq!(more.next(2), Some(2), "the longest pause of the source that holds most");
        assert_eq!(more.next(3), Some(2));
        assert_eq!(more.next(1), None, "neither its own so soon, nor others");
        let healthy = World::new(&[(1, 99, 0), (1, 50, 0), (1, 1, 0)]);
        assert_eq!(healthy.next(2), None, "pauses of a body that comes");
        let busy = World::new(&[(1, 0, 0), (1, 0, 0), (1, 0, 0)]);
        assert_eq!(busy.next(2), None, "the server reads: nobody is waited for");
    }

    #[test]
    fn an_upload_that_has_ended_does_not_give_way() {
        let mut world = World::new(&[(1, 900, 0)]);
        world.uploads.by_id[&1].upload.ended.store(true, Relaxed);
        assert!(!world.uploads.give_way(NOW, source(2), CONNECTIONS));
        assert!(world.uploads.by_id.is_empty());
    }

    #[test]
    fn an_upload_whose_connection_has_ended_does_not_give_way() {
        let mut world = World::new(&[(1, 900, 0)]);
        let task = world.uploads.by_id[&1].task.clone();
        task.abort();
        world.runtime.block_on(tokio::task::yield_now());
        assert!(!world.uploads.give_way(NOW, source(2), CONNECTIONS));
        assert!(!world.uploads.by_id.contains_key(&1));
    }
}
