// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a flash crowd asks for, where its packets show it: hosts and paths, by Space-Saving counters (`hotspot.h`). Keys
//! come from strangers, so lists are bounded, and what is said of a key is certain.
//!
//! Only shown: a SYN names no host, so no limit can be for one.

mod request;

use self::request::Request;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_bpf::policy::HotSpots;
use tidegate_bpf::{Error, Router, RouterRequest};
use tidegate_model::Fnv;
use tidegate_model::router::HotSpotState;
use tidegate_units::Nanos;

/// Of one connection in so many it is read how exchanges begin, once a second.
const EVERY: u32 = 4;
/// So many connections are known by the host that the first record of their TLS named, of each destination, and for so
/// long after their last request.
const TLS_MAX: usize = 4096;
const TLS_FORGOTTEN: Nanos = Nanos::from_secs(60);
/// Read at once, with each heartbeat: all that the kernel keeps.
const READ_MAX: usize = 256;
/// Counts are halved after so long, as those of handshakes are.
const FADES: Nanos = Nanos::from_secs(10);
/// What has this share is shown; of each kind no more than so many.
const SHARE: f64 = 0.1;
const SHOWN_MAX: usize = 3;

/// Of one destination.
#[derive(Debug, Default)]
struct Counted {
    hosts: HotSpots,
    paths: HotSpots,
    /// What the keys of both lists stand for: a host, and a path of it.
    names: BTreeMap<u64, (String, String)>,
    /// The host of a TLS connection, and when it asked last.
    tls: BTreeMap<u64, (String, Nanos)>,
    faded: Nanos,
}

/// What is asked for, by destination with a flash crowd.
#[derive(Debug, Default)]
pub(super) struct Asked {
    wanted: bool,
    counted: BTreeMap<usize, Counted>,
}

impl Asked {
    /// Whether requests are looked at.
    pub(super) const fn want(&mut self, wanted: bool) {
        self.wanted = wanted;
    }

    /// Looks at the requests of destinations with a flash crowd, and at no others.
    ///
    /// # Errors
    /// When the kernel cannot be told or asked.
    pub(super) fn tick(
        &mut self,
        router: &Router,
        crowded: &BTreeSet<usize>,
        now: Nanos,
    ) -> Result<(), Error> {
        let looked = |place: &usize| self.wanted && crowded.contains(place);
        let over: Vec<usize> =
            self.counted.keys().copied().filter(|place| !looked(place)).collect();
        for place in over {
            router.look_at_requests(place, 0)?;
            self.counted.remove(&place);
        }
        for place in crowded.iter().filter(|_| self.wanted) {
            if let Entry::Vacant(free) = self.counted.entry(*place) {
                router.look_at_requests(*place, EVERY)?;
                free.insert(Counted { faded: now, ..Counted::default() });
            }
        }
        if self.counted.is_empty() {
            return Ok(());
        }
        self.counted.values_mut().for_each(|one| one.fade(now));
        for request in router.requests(READ_MAX)? {
            self.note(&request, now);
        }
        Ok(())
    }

    fn note(&mut self, request: &RouterRequest, now: Nanos) {
        let RouterRequest { place, connection, payload } = request;
        let Some(counted) = self.counted.get_mut(place) else { return };
        let seen = Request::of(payload);
        let seen = match is_tls(payload) {
            true => counted.in_tls(*connection, seen, now),
            false => seen,
        };
        counted.hit(seen);
    }

    /// What most ask for at a destination.
    pub(super) fn hot_spots(&self, place: usize) -> Vec<HotSpotState> {
        self.counted.get(&place).map(Counted::hot_spots).unwrap_or_default()
    }
}

impl Counted {
    fn fade(&mut self, now: Nanos) {
        if now.since(self.faded) < FADES {
            return;
        }
        self.faded = now;
        self.hosts.fade();
        self.paths.fade();
        self.tls.retain(|_, (_, last)| now.since(*last) < TLS_FORGOTTEN);
        self.forget();
    }

    /// Only the first record of a connection names its host: later ones are about the same.
    fn in_tls(&mut self, connection: u64, seen: Option<Request>, now: Nanos) -> Option<Request> {
        if let Some(Request { host, .. }) = &seen {
            if self.tls.len() >= TLS_MAX && !self.tls.contains_key(&connection) {
                self.make_room();
            }
            self.tls.insert(connection, (host.clone(), now));
            return seen;
        }
        let (host, last) = self.tls.get_mut(&connection)?;
        *last = now;
        Some(Request { host: host.clone(), path: String::new() })
    }

    /// Half of the connections of TLS are forgotten, those first that have asked for nothing for the longest time: in a large crowd
    /// they have left.
    fn make_room(&mut self) {
        let mut asked: Vec<(Nanos, u64)> =
            self.tls.iter().map(|(connection, (_, last))| (*last, *connection)).collect();
        asked.sort_unstable();
        for (_, connection) in &asked[..asked.len() / 2] {
            self.tls.remove(connection);
        }
    }

    /// What shows nothing counts as well: else the rest would look like all.
    fn hit(&mut self, request: Option<Request>) {
        let Some(Request { host, path }) = request else {
            self.hosts.hit(key("", ""));
            self.paths.hit(key("", ""));
            return;
        };
        let of_host = key(&host, "");
        let of_path = if path.is_empty() { key("", "") } else { key(&host, &path) };
        self.hosts.hit(of_host);
        self.paths.hit(of_path);
        if !host.is_empty() {
            self.names.entry(of_host).or_insert_with(|| (host.clone(), String::new()));
        }
        if !path.is_empty() {
            self.names.entry(of_path).or_insert((host, path));
        }
        if self.names.len() > 4 * HotSpots::ENTRIES {
            self.forget();
        }
    }

    /// Names of keys that have left the lists.
    fn forget(&mut self) {
        let (hosts, paths) = (&self.hosts, &self.paths);
        self.names.retain(|key, _| hosts.at_most(*key) > 0 || paths.at_most(*key) > 0);
    }

    fn hot_spots(&self) -> Vec<HotSpotState> {
        let mut all = self.of(&self.hosts);
        all.extend(self.of(&self.paths));
        all
    }

    fn of(&self, list: &HotSpots) -> Vec<HotSpotState> {
        let looked_at = f64::from(list.all().max(1));
        let of = |(key, (host, path)): (&u64, &(String, String))| {
            let share = f64::from(list.certain(*key)) / looked_at;
            let (host, path) = (host.clone(), path.clone());
            (share >= SHARE).then_some(HotSpotState { host, path, share })
        };
        let mut hot: Vec<HotSpotState> = self.names.iter().filter_map(of).collect();
        hot.sort_by(|one, two| two.share.total_cmp(&one.share));
        hot.truncate(SHOWN_MAX);
        hot
    }
}

/// A record of TLS 1.0 to 1.3.
fn is_tls(payload: &[u8]) -> bool {
    matches!(payload, [20..=24, 3, ..])
}

/// The key of a host, or of a path of it; not 0.
fn key(host: &str, path: &str) -> u64 {
    let hash = Fnv::default().with(host.bytes()).with([b' ']).with(path.bytes());
    hash.get().max(1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may")]

    use super::request::tests::hello;
    use super::*;

    const NOW: Nanos = Nanos::from_secs(1);

    fn asked() -> Asked {
        Asked { wanted: true, counted: BTreeMap::from([(3, Counted::default())]) }
    }

    fn get(host: &str, path: &str) -> RouterRequest {
        let payload = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes();
        RouterRequest { place: 3, connection: 1, payload }
    }

    #[test]
    fn what_most_ask_for_is_shown_and_what_shows_nothing_counts() {
        let mut asked = asked();
        for n in 0..100 {
            match n % 10 {
                0..5 => asked.note(&get("shop.example", "/live?n=1"), NOW),
                5..7 => asked.note(&get("shop.example", &format!("/item/{n}")), NOW),
                7 => asked.note(&get("other.example", "/"), NOW),
                _ => asked.note(&RouterRequest { payload: vec![0xff; 40], ..get("", "") }, NOW),
            }
        }
        asked.note(&RouterRequest { place: 9, ..get("nobody.example", "/") }, NOW);
        let hot = asked.hot_spots(3);
        let text = |one: &HotSpotState| format!("{}{} {:.2}", one.host, one.path, one.share);
        let text: Vec<String> = hot.iter().map(text).collect();
        let wanted = [
            "shop.example 0.70",
            "other.example 0.10",
            "shop.example/live 0.50",
            "other.example/ 0.10",
        ];
        assert_eq!(text, wanted);
        assert!(asked.hot_spots(9).is_empty());
    }

    /// A million different hosts, as one client may send them, hide no hot one, and fill no memory.
    #[test]
    fn strangers_neither_hide_a_hot_spot_nor_fill_the_memory() {
        let mut asked = asked();
        for n in 0..20_000 {
            asked.note(&get(&format!("h{n}.example"), &format!("/{n}")), NOW);
            if n % 4 == 0 {
                asked.note(&get("shop.example", "/live"), NOW);
            }
        }
        let counted = &asked.counted[&3];
        assert!(counted.names.len() <= 4 * HotSpots::ENTRIES + 2, "{}", counted.names.len());
        let hot = asked.hot_spots(3);
        assert_eq!(hot.len(), 2, "{hot:?}");
        assert!(hot.iter().all(|one| one.host == "shop.example" && one.share > 0.15), "{hot:?}");
    }

    #[test]
    fn what_is_asked_for_no_more_fades() {
        let mut asked = asked();
        (0..100).for_each(|_| asked.note(&get("shop.example", "/live"), NOW));
        assert_eq!(asked.hot_spots(3).len(), 2);
        let counted = asked.counted.get_mut(&3).unwrap();
        (1..=9).for_each(|n| counted.fade(Nanos::from_secs(10 * n)));
        assert!(asked.hot_spots(3).is_empty());
    }

    /// Inside TLS later requests show nothing: they are for the host that the first record named.
    #[test]
    fn requests_inside_tls_count_for_the_host_of_their_connection() {
        let mut asked = asked();
        let data = vec![23, 3, 3, 0, 2, 0xff, 0xff];
        for connection in 0..10 {
            let tls = |payload| RouterRequest { place: 3, connection, payload };
            // Of two the beginning was not seen.
            if connection < 8 {
                asked.note(&tls(hello("shop.example")), NOW);
            }
            (0..9).for_each(|_| asked.note(&tls(data.clone()), NOW));
        }
        let hot = asked.hot_spots(3);
        let text = |one: &HotSpotState| format!("{}{} {:.3}", one.host, one.path, one.share);
        assert_eq!(hot.iter().map(text).collect::<Vec<_>>(), ["shop.example 0.816"], "80 of 98");
        // Another connection of the same addresses says so itself.
        let other = RouterRequest { place: 3, connection: 1, payload: hello("mail.example") };
        asked.note(&other, NOW);
        let counted = asked.counted.get_mut(&3).unwrap();
        assert_eq!(counted.tls[&1].0, "mail.example");
        let later = NOW + Nanos::from_millis(1);
        for connection in 100..100 + 2 * TLS_MAX as u64 {
            let seen = Request { host: "h".into(), path: String::new() };
            counted.in_tls(connection, Some(seen), later);
            counted.in_tls(2, None, later + Nanos(connection));
            assert!(counted.tls.len() <= TLS_MAX);
            assert!(counted.in_tls(connection, None, later).is_some(), "a new one is known");
        }
        assert_eq!(counted.tls[&2].0, "shop.example", "it has never stopped asking");
        assert!(!counted.tls.contains_key(&3), "it has");
        counted.fade(later + TLS_FORGOTTEN + TLS_FORGOTTEN);
        assert!(counted.tls.is_empty());
    }
}
