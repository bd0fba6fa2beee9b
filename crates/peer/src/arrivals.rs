// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who comes up at the listener: how many handshakes there may be, and which of them makes room for another.
//!
//! Nobody has shown a certificate yet. Whoever has been here with a good one is known by its address: what all others
//! do takes neither its share of the rate nor its room.

use std::collections::{BTreeMap, VecDeque};
use std::future::pending;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_model::{PEERS_MAX, SpiffeId};
use tidegate_units::Nanos;
use tokio::task::{AbortHandle, JoinSet};

/// Most handshakes per second: each costs about a millisecond of CPU.
const HANDSHAKES: Bucket = Bucket { per_second: 100.0, burst: 100.0 + HANDSHAKES_KEPT };
/// Of those at once, what is left for known sources: one for each peer.
const HANDSHAKES_KEPT: f64 = PEERS_MAX as f64;
/// Of these, most that one source may have: a stranger at the port must not use them all, since
/// sessions begin anew every hour.
const HANDSHAKES_OF_SOURCE: Bucket = Bucket { per_second: 10.0, burst: 20.0 };
/// Most sources whose share is counted; above, the one that was silent for longest is forgotten.
const SOURCES_MAX: usize = 1024;
/// Most handshakes under way of known sources, and as many of all others.
const HALF_OPEN_MAX: usize = 64;

/// Rate and depth of a bucket of handshakes.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    per_second: f64,
    burst: f64,
}

/// What is in a bucket.
#[derive(Clone, Copy, Debug)]
struct Level {
    tokens: f64,
    at: Nanos,
}

impl Level {
    const fn full(bucket: Bucket, now: Nanos) -> Self {
        Self { tokens: bucket.burst, at: now }
    }

    /// Takes one, if that leaves so many.
    fn takes(&mut self, bucket: Bucket, now: Nanos, leaves: f64) -> bool {
        let earned = now.since(self.at).as_secs_f64() * bucket.per_second;
        self.tokens = (self.tokens + earned).min(bucket.burst);
        self.at = now;
        let taken = self.tokens >= 1.0 + leaves;
        if taken {
            self.tokens -= 1.0;
        }
        taken
    }
}

/// How many handshakes there may be: of all sources together, and of each.
pub(crate) struct Pace {
    all: Level,
    /// Networks, or hosts that are known.
    sources: BTreeMap<(IpAddr, bool), Level>,
}

impl Pace {
    pub(crate) const fn new(now: Nanos) -> Self {
        Self { all: Level::full(HANDSHAKES, now), sources: BTreeMap::new() }
    }

    /// A source that is above its share takes nothing from the others.
    pub(crate) fn allows(&mut self, now: Nanos, from: IpAddr, known: bool) -> bool {
        // A known host is no part of its network: others there do not use its share up.
        let source = (if known { from.to_canonical() } else { source(from) }, known);
        if !self.sources.contains_key(&source) && self.sources.len() >= SOURCES_MAX {
            let oldest = self.sources.iter().min_by_key(|(_, level)| level.at);
            if let Some(oldest) = oldest.map(|(source, _)| *source) {
                self.sources.remove(&oldest);
            }
        }
        let fresh = Level::full(HANDSHAKES_OF_SOURCE, now);
        let share = self.sources.entry(source).or_insert(fresh);
        let kept = if known { 0.0 } else { HANDSHAKES_KEPT };
        share.takes(HANDSHAKES_OF_SOURCE, now, 0.0) && self.all.takes(HANDSHAKES, now, kept)
    }
}

/// One host of IPv6 has a whole /64.
fn source(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        v4 => v4,
    }
}

/// From where the last session of each peer came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known(Arc<Mutex<BTreeMap<SpiffeId, IpAddr>>>);

impl Known {
    /// Most of them. A reload may name others, and those before are of no use.
    const MAX: usize = 2 * PEERS_MAX;

    pub(crate) fn note(&self, peer: &SpiffeId, from: IpAddr) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= Self::MAX && !known.contains_key(peer) {
            known.pop_first();
        }
        known.insert(peer.clone(), from.to_canonical());
    }

    pub(crate) fn has(&self, from: IpAddr) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.values().any(|address| *address == from.to_canonical())
    }
}

/// Handshakes under way.
pub(crate) struct HalfOpen<T> {
    running: JoinSet<Option<T>>,
    /// The same, the oldest first: of known sources, and of all others.
    known: VecDeque<AbortHandle>,
    others: VecDeque<AbortHandle>,
}

impl<T: Send + 'static> HalfOpen<T> {
    pub(crate) fn new() -> Self {
        Self { running: JoinSet::new(), known: VecDeque::new(), others: VecDeque::new() }
    }

    /// Begins one. Whether the oldest had to make room.
    pub(crate) fn enter(
        &mut self,
        known: bool,
        handshake: impl Future<Output = Option<T>> + Send + 'static,
    ) -> bool {
        let queue = if known { &mut self.known } else { &mut self.others };
        queue.retain(|handshake| !handshake.is_finished());
        let oldest = if queue.len() >= HALF_OPEN_MAX { queue.pop_front() } else { None };
        if let Some(oldest) = &oldest {
            oldest.abort();
        }
        queue.push_back(self.running.spawn(handshake));
        oldest.is_some()
    }

    /// The next that ends well. May be cancelled without loss.
    pub(crate) async fn next(&mut self) -> T {
        loop {
            match self.running.join_next().await {
                Some(Ok(Some(done))) => return done,
                Some(_) => {}
                None => return pending().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::time::Duration;
    use tokio::time::{sleep, timeout};

    fn v4(host: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x0a00_0000 + host).into()
    }

    #[test]
    fn a_stranger_who_connects_without_end_does_not_keep_a_peer_out() {
        let mut pace = Pace::new(Nanos::ZERO);
        let (mut stranger, mut peer) = (0, 0);
        for ms in 0..10_000 {
            let now = Nanos::from_millis(ms);
            stranger += u32::from(pace.allows(now, v4(1), false));
            if ms.is_multiple_of(200) {
                peer += u32::from(pace.allows(now, v4(2), false));
            }
        }
        assert_eq!(peer, 50, "all of its handshakes");
        assert!((119..=120).contains(&stranger), "{stranger}: 20 at once, 10 a second");
    }

    #[test]
    fn many_strangers_do_not_keep_known_peers_out() {
        let mut pace = Pace::new(Nanos::ZERO);
        let (mut strangers, mut known) = (0, 0);
        for ms in 0..10_000_u32 {
            let now = Nanos::from_millis(ms.into());
            strangers += u32::from(pace.allows(now, v4(1_000 + ms % 500), false));
            // 64 peers, each once a second.
            if ms % 1_000 < 64 {
                known += u32::from(pace.allows(now, v4(ms % 1_000), true));
            }
        }
        assert_eq!(known, 640, "all of them");
        assert!(strangers <= 164 + 1_000 - known, "{strangers}: what is left of 100 a second");
    }

    #[test]
    fn all_sources_together_have_a_limit_and_the_table_has_one() {
        let mut pace = Pace::new(Nanos::ZERO);
        let allowed = (0..5_000).filter(|host| pace.allows(Nanos::ZERO, v4(*host), false)).count();
        assert_eq!((allowed, pace.sources.len()), (100, SOURCES_MAX));
        let known = (0..5_000).filter(|host| pace.allows(Nanos::ZERO, v4(*host), true)).count();
        assert_eq!(known, PEERS_MAX, "what was left for them");
    }

    #[test]
    fn a_host_with_many_addresses_of_ipv6_is_one_source() {
        let mut pace = Pace::new(Nanos::ZERO);
        let addresses = (0..100_u128).map(|host| Ipv6Addr::from_bits(0x2001_0db8 << 96 | host));
        let allowed =
            addresses.filter(|from| pace.allows(Nanos::ZERO, (*from).into(), false)).count();
        assert_eq!(allowed, 20);
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(source(mapped), v4(1));
    }

    #[test]
    fn a_host_of_the_same_network_of_ipv6_does_not_keep_a_known_peer_out() {
        let mut pace = Pace::new(Nanos::ZERO);
        let at = |host: u128| IpAddr::from(Ipv6Addr::from_bits(0x2001_0db8 << 96 | host));
        let known = Known::default();
        known.note(&"spiffe://example.org/b1".parse().unwrap(), at(1));
        assert!(known.has(at(1)) && !known.has(at(2)), "its neighbour is not");
        let mut peer = 0;
        for ms in 0..10_000 {
            let now = Nanos::from_millis(ms);
            pace.allows(now, at(2), false);
            if ms.is_multiple_of(200) {
                peer += u32::from(pace.allows(now, at(1), true));
            }
        }
        assert_eq!(peer, 50, "all of its handshakes");
    }

    #[test]
    fn a_peer_is_known_by_its_last_address_and_the_list_has_a_bound() {
        let known = Known::default();
        let id = |n: usize| format!("spiffe://example.org/b{n}").parse::<SpiffeId>().unwrap();
        known.note(&id(1), v4(1));
        assert!(known.has(v4(1)) && !known.has(v4(2)));
        known.note(&id(1), v4(2));
        assert!(known.has(v4(2)) && !known.has(v4(1)));
        (0..1_000).for_each(|n| known.note(&id(n), v4(n as u32)));
        assert_eq!(known.0.lock().unwrap().len(), Known::MAX);
    }

    #[test]
    fn the_oldest_of_the_others_makes_room_and_no_known_one_does() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut half_open = HalfOpen::new();
            let silent = || async {
                sleep(Duration::from_secs(3_600)).await;
                None
            };
            let soon = |name: &'static str| async move {
                sleep(Duration::from_millis(20)).await;
                Some(name)
            };
            assert!(!half_open.enter(false, soon("the oldest")));
            assert!(!half_open.enter(true, soon("a known one")));
            let room = (0..HALF_OPEN_MAX).filter(|_| half_open.enter(false, silent())).count();
            assert_eq!(room, 1);
            assert_eq!(half_open.next().await, "a known one");
            let none = timeout(Duration::from_millis(200), half_open.next()).await;
            assert!(none.is_err(), "{none:?}");
            half_open.enter(false, soon("the last"));
            assert_eq!(half_open.next().await, "the last");
            assert!(half_open.others.len() <= HALF_OPEN_MAX);
        });
    }
}
