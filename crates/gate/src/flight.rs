// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests in flight, and what was decided lately: by token or request id, spread over locks.

use crate::service::{Bucket, Service};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_policy::{Execution, Reason};
use tidegate_units::Nanos;

/// Locks over which requests in flight are spread.
pub const SHARDS: usize = 64;
/// Most requests in flight that are followed. One that finds no room passes and is not followed.
pub const REQUESTS_MAX: usize = 1 << 16;
/// The same of one shard.
const SHARD_MAX: usize = REQUESTS_MAX / SHARDS;
/// Requests that are not in flight any more and may still be reported, of one shard.
const GONE_MAX: usize = SHARD_MAX / 2;
/// Decisions of one shard that are remembered.
const SEEN_MAX: usize = 64;
/// A request that was not reported for so long is not in flight any more.
const AGE_MAX: Nanos = Nanos::from_secs(120);
/// For so long a report of it counts as late, and not as unknown.
const GONE_AGE_MAX: Nanos = Nanos::from_secs(600);
/// Longest request id that is remembered, in bytes.
const REQUEST_ID_MAX: usize = 64;

/// Names one request in flight; 16 hexadecimal digits where it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub(crate) u64);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for Token {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let number = digits.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        number.map(Self).ok_or_else(|| format!("{text:?} is no token of 16 hexadecimal digits"))
    }
}

/// By what a report names its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Id<'a> {
    /// The token of its answer.
    Token(Token),
    /// The proxy's own id, which was in the question.
    Request(&'a str),
}

impl Id<'_> {
    pub(crate) fn key(self) -> u64 {
        match self {
            Self::Token(Token(key)) => key,
            Self::Request(id) => request_key(id),
        }
    }
}

/// The key of a request id. The proxy makes the ids; a client that may choose its own makes its own
/// requests share a key, which keeps their count right.
pub(crate) fn request_key(id: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

/// What became of a request that was passed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// Status of the response; 0, or nginx's 499: the client left before there was one.
    pub status: u16,
    /// Time from the request to the first byte of the response, where the proxy tells it.
    pub first_byte: Option<Nanos>,
    /// Time from the request to the end of the response, where the proxy tells it; else the time
    /// between question and report counts.
    pub duration: Option<Nanos>,
    /// How long the proxy waited for the answer to its question, where it tells it.
    pub waited: Option<Nanos>,
}

impl Completion {
    /// Whether the client left before there was a response.
    #[must_use]
    pub const fn client_left(&self) -> bool {
        matches!(self.status, 0 | 499)
    }

    /// The status that the client has seen; 0: none.
    pub(crate) const fn status_seen(&self) -> u16 {
        if self.client_left() { 0 } else { self.status }
    }
}

/// What a report was good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    /// It ended a request in flight.
    Counted,
    /// It came when its request was not counted as in flight any more.
    Late,
    /// Nothing is known of its request: refused, not followed, or of another process.
    Unknown,
}

/// A decision, as it is remembered for `explain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When it was made.
    pub at: Nanos,
    /// The proxy's id of the request, at most 64 bytes of it; empty where it gave none.
    pub request_id: Box<str>,
    /// The client's address, as the proxy knows it.
    pub client: Option<IpAddr>,
    /// Name of the service.
    pub service: Arc<str>,
    /// Number of the class: 0 is `default`, then those of the service in their order.
    pub class: usize,
    /// Its priority, 0 the highest.
    pub priority: u8,
    /// Why.
    pub reason: Reason,
    /// Whether the verdict was a refusal.
    pub refused: bool,
    /// Whether a refusal was executed.
    pub execution: Execution,
}

impl Seen {
    /// Whether the verdict was carried out, and not only counted.
    #[must_use]
    pub const fn executed(&self) -> bool {
        matches!(self.execution, Execution::Executed)
    }
}

/// A request in flight.
pub(crate) struct Flight {
    pub(crate) service: Arc<Service>,
    pub(crate) bucket: Option<Arc<Bucket>>,
    pub(crate) started: Nanos,
    /// It does not count as in flight any more.
    gone: bool,
    /// Another one with the same key, which began before it.
    next: Option<Box<Flight>>,
}

impl Flight {
    pub(crate) const fn new(
        service: Arc<Service>,
        bucket: Option<Arc<Bucket>>,
        started: Nanos,
    ) -> Self {
        Self { service, bucket, started, gone: false, next: None }
    }
}

/// Keys are hashes already.
#[derive(Default)]
pub(crate) struct Plain(u64);

impl Hasher for Plain {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

#[derive(Default)]
struct Shard {
    by_key: HashMap<u64, Flight, BuildHasherDefault<Plain>>,
    /// With those behind the first of a key.
    flights: usize,
    gone: usize,
    seen: VecDeque<(u64, Seen)>,
}

/// All of them.
pub(crate) struct Flights {
    shards: Box<[Mutex<Shard>]>,
}

impl Default for Flights {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

/// What a report ended.
pub(crate) enum Ended {
    Flight(Flight),
    /// It was not in flight any more.
    Gone(Flight),
    Unknown,
}

impl Flights {
    fn shard(&self, key: u64) -> MutexGuard<'_, Shard> {
        // The lower bits choose the place in the map, the upper ones the shard.
        let at = (key >> 58) as usize % SHARDS;
        self.shards[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows a request; false: there is no room.
    pub(crate) fn begin(&self, key: u64, mut flight: Flight) -> bool {
        let mut shard = self.shard(key);
        if shard.flights >= SHARD_MAX {
            shard.forget_gone();
        }
        if shard.flights >= SHARD_MAX {
            return false;
        }
        flight.next = shard.by_key.remove(&key).map(Box::new);
        shard.by_key.insert(key, flight);
        shard.flights += 1;
        true
    }

    /// Ends the request with this key that began last.
    pub(crate) fn end(&self, key: u64) -> Ended {
        let mut shard = self.shard(key);
        let Some(mut flight) = shard.by_key.remove(&key) else { return Ended::Unknown };
        if let Some(next) = flight.next.take() {
            shard.by_key.insert(key, *next);
        }
        shard.flights -= 1;
        if flight.gone {
            shard.gone -= 1;
            return Ended::Gone(flight);
        }
        Ended::Flight(flight)
    }

    /// Remembers a decision.
    pub(crate) fn note(&self, key: u64, seen: Seen) {
        let mut shard = self.shard(key);
        if shard.seen.len() >= SEEN_MAX {
            shard.seen.pop_front();
        }
        shard.seen.push_back((key, seen));
    }

    /// The decisions about this request id that are remembered, the latest last.
    pub(crate) fn seen(&self, request_id: &str) -> Vec<Seen> {
        let key = request_key(request_id);
        let shard = self.shard(key);
        let of = shard.seen.iter().filter(|(other, _)| *other == key);
        of.map(|(_, seen)| seen.clone()).collect()
    }

    /// The decisions since then, at most so many, in the order of their time.
    pub(crate) fn seen_since(&self, then: Nanos, most: usize) -> Vec<Seen> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let new = shard.seen.iter().rev().take_while(|(_, seen)| seen.at > then);
            all.extend(new.map(|(_, seen)| seen.clone()));
        }
        all.sort_by_key(|seen| seen.at);
        let surplus = all.len().saturating_sub(most);
        all.drain(..surplus);
        all
    }

    /// Takes out of the count who is not in flight any more: what a service's reports have overtaken,
    /// and what is too old. Each is told to its service.
    pub(crate) fn age(&self, now: Nanos) {
        for shard in &self.shards {
            shard.lock().unwrap_or_else(PoisonError::into_inner).age(now);
        }
    }
}

impl Shard {
    fn age(&mut self, now: Nanos) {
        let (mut left, mut gone) = (0, 0);
        let forget = self.gone > GONE_MAX;
        self.by_key.retain(|_, first| {
            // Only the first of a key moves on its own; one that has others behind it is rare.
            let mut at = Some(&mut *first);
            let mut keep = false;
            while let Some(flight) = at {
                let age = now.since(flight.started);
                if !flight.gone {
                    let overtaken = flight.service.has_overtaken(flight.started);
                    if overtaken || age > AGE_MAX {
                        flight.gone = true;
                        flight.service.out_of_sight(flight.bucket.as_deref(), overtaken);
                    }
                }
                keep |= !flight.gone || (!forget && age <= GONE_AGE_MAX);
                at = flight.next.as_deref_mut();
            }
            if keep {
                let (all, of_gone) = first.count();
                left += all;
                gone += of_gone;
            }
            keep
        });
        (self.flights, self.gone) = (left, gone);
    }

    /// Room for those that are in flight.
    fn forget_gone(&mut self) {
        self.by_key.retain(|_, first| !first.all_gone());
        let counts = self.by_key.values().map(Flight::count);
        (self.flights, self.gone) =
            counts.fold((0, 0), |(all, gone), (more, of)| (all + more, gone + of));
    }
}

impl Flight {
    /// With those behind it: how many, and how many of them are gone.
    fn count(&self) -> (usize, usize) {
        let (mut all, mut gone, mut at) = (0, 0, Some(self));
        while let Some(flight) = at {
            all += 1;
            gone += usize::from(flight.gone);
            at = flight.next.as_deref();
        }
        (all, gone)
    }

    fn all_gone(&self) -> bool {
        let (all, gone) = self.count();
        all == gone
    }
}

/// What of a request id is remembered.
pub(crate) fn shortened(id: &str) -> Box<str> {
    let mut end = id.len().min(REQUEST_ID_MAX);
    while !id.is_char_boundary(end) {
        end -= 1;
    }
    id[..end].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flight(service: &Arc<Service>, started: u64) -> Flight {
        Flight::new(Arc::clone(service), None, Nanos::from_secs(started))
    }

    fn ended(flights: &Flights, key: u64) -> Option<u64> {
        match flights.end(key) {
            Ended::Flight(flight) => Some(flight.started.0 / Nanos::SECOND.0),
            Ended::Gone(_) | Ended::Unknown => None,
        }
    }

    #[test]
    fn a_token_is_what_it_is_written_as() {
        for key in [0, 1, u64::MAX] {
            assert_eq!(Token(key).to_string().parse(), Ok(Token(key)));
        }
        for text in ["", "-", "1", "+000000000000001", "00000000000000000", "000000000000000g"] {
            assert!(text.parse::<Token>().is_err(), "{text:?}");
        }
    }

    /// A proxy that gives two requests one id, or a client that chooses its own.
    #[test]
    fn requests_with_one_key_are_counted_one_by_one() {
        let (flights, service) = (Flights::default(), Arc::new(Service::new("shop")));
        for started in 1..=3 {
            assert!(flights.begin(7, flight(&service, started)));
        }
        assert_eq!([(); 4].map(|()| ended(&flights, 7)), [Some(3), Some(2), Some(1), None]);
        assert_eq!(flights.shard(7).flights, 0);
    }

    #[test]
    fn there_is_a_bound_and_what_is_gone_makes_room() {
        let (flights, service) = (Flights::default(), Arc::new(Service::new("shop")));
        let all = 0..SHARD_MAX as u64;
        assert!(all.clone().all(|key| flights.begin(key, flight(&service, 1))));
        assert!(!flights.begin(u64::MAX >> 6, flight(&service, 1)), "full");
        flights.age(Nanos::from_secs(1) + AGE_MAX);
        assert_eq!(flights.shard(0).gone, 0, "not older than that");
        flights.age(Nanos::from_secs(2) + AGE_MAX);
        assert_eq!(flights.shard(0).gone, SHARD_MAX);
        assert!(matches!(flights.end(3), Ended::Gone(_)), "a report would be late");
        assert!(flights.begin(1 << 20, flight(&service, 1)));
        assert!(flights.begin(1 << 21, flight(&service, 1)));
        assert!(matches!(flights.end(4), Ended::Unknown), "forgotten for those in flight");
        assert_eq!(ended(&flights, 1 << 20), Some(1));
    }

    #[test]
    fn decisions_are_found_by_request_id_and_the_oldest_is_forgotten() {
        let flights = Flights::default();
        let note = |id: &str, at: u64| {
            let seen = Seen {
                at: Nanos(at),
                request_id: shortened(id),
                client: None,
                service: "shop".into(),
                class: 0,
                priority: 7,
                reason: Reason::Token,
                refused: false,
                execution: Execution::Executed,
            };
            flights.note(request_key(id), seen);
        };
        note("a", 1);
        assert_eq!(flights.seen("a").len(), 1);
        assert!(flights.seen("b").is_empty());
        (2..10).for_each(|at| note("a", at));
        let since: Vec<u64> = flights.seen_since(Nanos(5), 3).iter().map(|s| s.at.0).collect();
        assert_eq!(since, [7, 8, 9]);
        (0..SEEN_MAX as u64 + 1).for_each(|at| note("a", 100 + at));
        let found = flights.seen("a");
        assert_eq!((found.len(), found[0].at), (SEEN_MAX, Nanos(101)));
        assert_eq!(shortened(&"é".repeat(40)).len(), 64);
        assert_eq!(shortened(&format!("x{}", "é".repeat(40))).len(), 63);
    }
}
