// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a router has measured, read where it lies: no system call for each destination.

use super::{LOSSES, Router, TAKEN, ip};
use crate::abi::{self, RouterCounts, RouterDestination};
use crate::{Error, abi::RouterTimes as Raw};
use std::net::SocketAddr;
use tidegate_model::router::{DestinationCounts, SizeFigures};
use tidegate_policy::Durations;
use tidegate_units::Nanos;

/// What could not be measured, since the measurement began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterLosses {
    /// Connections for which the table had no room.
    pub connections: u64,
    /// Handshakes that were forgotten before they were completed, for others.
    pub handshakes: u64,
    /// Connections to destinations for which there was no room.
    pub destinations: u64,
    /// SYNs to addresses that have not completed a handshake yet.
    pub unknown: u64,
}

/// What a limit has done to the SYNs of a destination, since the measurement began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterLimited {
    /// SYNs that took a token.
    pub tokens: u64,
    /// SYNs that came for the first time and were refused.
    pub refused_first: u64,
}

/// How long the exchanges of a destination took, and how fast its connections were, since the measurement
/// began; or what of that is new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterTimes {
    /// By size class, and bucket of the duration ([`Durations`]).
    pub durations: Vec<[u32; Durations::BUCKETS]>,
    /// Connections by bucket of their rate, which are those of durations: at 256 there are bytes per second in
    /// place of microseconds. Each connection that was sent something is counted about every 32 heartbeats, and
    /// once it has ended.
    pub rates: [u32; abi::ROUTER_RATES],
}

impl RouterTimes {
    /// What was counted since an earlier look; counts wrap. Where more was subtracted than came it is nothing.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let less = |(now, then): (&u32, &u32)| {
            let new = now.wrapping_sub(*then);
            if new.cast_signed() < 0 { 0 } else { new }
        };
        let mut new = self.clone();
        for (class, before) in new.durations.iter_mut().zip(&earlier.durations) {
            for (now, then) in class.iter_mut().zip(before) {
                *now = less((now, then));
            }
        }
        for (now, then) in new.rates.iter_mut().zip(&earlier.rates) {
            *now = less((now, then));
        }
        new
    }

    /// Exchanges that were completed since an earlier look, by size class and bucket of the duration. A response
    /// that went on after it was taken for complete is subtracted: less than nothing.
    #[must_use]
    pub fn took_since(&self, earlier: &Self) -> Vec<(usize, usize, i32)> {
        let mut took = Vec::new();
        for (class, (now, then)) in self.durations.iter().zip(&earlier.durations).enumerate() {
            let new = now.iter().zip(then).map(|(now, then)| now.wrapping_sub(*then).cast_signed());
            let new = new.enumerate().filter(|(_, new)| *new != 0);
            took.extend(new.map(|(bucket, new)| (class, bucket, new)));
        }
        took
    }

    /// So many of all exchanges took no longer (in parts of one): the end of the bucket. `None`: there is none.
    #[must_use]
    pub fn took(&self, part: f64) -> Option<Nanos> {
        quantile(part, |bucket| self.durations.iter().map(|class| u64::from(class[bucket])).sum())
    }

    /// How long exchanges took by the size of their response, over so many seconds, where each that is counted stands
    /// for so many: only sizes of which any was completed.
    #[must_use]
    pub fn by_size(&self, seconds: f64, sample: u64) -> Vec<SizeFigures> {
        let figures = |(class, counts): (usize, &[u32; Durations::BUCKETS])| {
            let took = |part| quantile(part, |bucket| counts[bucket].into());
            let completed: u64 = counts.iter().map(|n| u64::from(*n)).sum();
            Some(SizeFigures {
                below_bytes: Durations::class_below(class),
                completed: completed.saturating_mul(sample) as f64 / seconds,
                median: took(0.5)?,
                p99: took(0.99)?,
            })
        };
        self.durations.iter().enumerate().filter_map(figures).collect()
    }

    /// The mean rate of the fastest connections, in bytes per second: of `floor(share·n + 1)` of n, as the
    /// authors of NEWS have it. Each is taken for the middle of its bucket. `None`: there is none.
    #[must_use]
    pub fn fastest(&self, share: f64) -> Option<f64> {
        let all: u64 = self.rates.iter().map(|n| u64::from(*n)).sum();
        if all == 0 {
            return None;
        }
        let wanted = ((share.clamp(0.0, 1.0) * all as f64 + 1.0) as u64).min(all);
        let (mut left, mut sum) = (wanted, 0.0);
        for (bucket, count) in self.rates.iter().enumerate().rev() {
            let taken = u64::from(*count).min(left);
            sum += taken as f64 * middle(bucket);
            left -= taken;
        }
        Some(sum / wanted as f64)
    }
}

/// So many of those counted by bucket took no longer (in parts of one): the end of the bucket. `None`: there is none.
fn quantile(part: f64, count: impl Fn(usize) -> u64) -> Option<Nanos> {
    let all: u64 = (0..Durations::BUCKETS).map(&count).sum();
    let wanted = ((all as f64 * part).ceil() as u64).max(1);
    let mut seen = 0;
    for bucket in 0..Durations::BUCKETS {
        seen += count(bucket);
        if seen >= wanted {
            return Some(Durations::from((bucket + 1).min(Durations::BUCKETS - 1)));
        }
    }
    None
}

/// The rate that a bucket stands for: the middle between its ends; of the last one its beginning.
fn middle(bucket: usize) -> f64 {
    let from = |bucket: usize| Durations::from(bucket).0 as f64 / 1000.0;
    let next = (bucket + 1).min(Durations::BUCKETS - 1);
    (from(bucket) + from(next)) / 2.0
}

impl Router {
    /// Destinations that are known.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn known(&self) -> Result<usize, Error> {
        let taken: u32 = self.maps.read(TAKEN, 0)?;
        Ok((taken as usize).min(self.counts.len()))
    }

    /// The destinations, by place, with what was counted of each. Connections are counted as they are sampled.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn destinations(&self) -> Result<Vec<(usize, SocketAddr, DestinationCounts)>, Error> {
        let read = |place: usize| Some((place, self.address(place)?, self.counts(place)?));
        Ok((0..self.known()?).filter_map(read).collect())
    }

    /// The destination at a place, once it is known.
    pub(super) fn address(&self, place: usize) -> Option<SocketAddr> {
        let RouterDestination { key, .. } = self.counts.read(place)?;
        // A place that is taken and has no address yet is being filled, or stays empty.
        let port = u16::try_from(key.port).ok().filter(|port| *port != 0)?;
        Some(SocketAddr::new(ip(key.addr), port))
    }

    /// What was counted of the destination at a place.
    #[must_use]
    pub fn counts(&self, place: usize) -> Option<DestinationCounts> {
        self.counts.read(place).map(|RouterDestination { counts, .. }| public(&counts))
    }

    /// How often a sweep has seen an exchange of the destination at a place that took too long
    /// ([`Self::set_overdue_after`]). The sweeps of a whole round see each once.
    #[must_use]
    pub fn overdue(&self, place: usize) -> Option<u64> {
        self.counts.read(place).map(|RouterDestination { counts, .. }| counts.overdue)
    }

    /// What its limit has done to the SYNs of the destination at a place.
    #[must_use]
    pub fn limited(&self, place: usize) -> Option<RouterLimited> {
        let RouterDestination { counts, .. } = self.counts.read(place)?;
        Some(RouterLimited { tokens: counts.tokens, refused_first: counts.refused_first })
    }

    /// Durations and rates of the destination at a place.
    #[must_use]
    pub fn times(&self, place: usize) -> Option<RouterTimes> {
        let Raw { durations, rate } = self.times.read(place)?;
        Some(RouterTimes { durations: durations.count.to_vec(), rates: rate })
    }

    /// What could not be measured.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn losses(&self) -> Result<RouterLosses, Error> {
        let of = |why: u32| -> Result<u64, Error> {
            let each = self.maps.read_percpu(LOSSES, why)?;
            Ok(each.iter().filter_map(|bytes| abi::read::<u64>(bytes)).sum())
        };
        Ok(RouterLosses {
            connections: of(abi::TG_ROUTER_FULL)?,
            handshakes: of(abi::TG_ROUTER_PENDING)?,
            destinations: of(abi::TG_ROUTER_PLACES)?,
            unknown: of(abi::TG_ROUTER_UNKNOWN)?,
        })
    }
}

fn public(counts: &RouterCounts) -> DestinationCounts {
    DestinationCounts {
        syns: counts.syns,
        syns_repeated: counts.repeated,
        admitted: counts.admitted,
        begun: counts.begun,
        completed: counts.completed,
        given_up: counts.given_up,
        resumed: counts.resumed,
        sent_bytes: counts.sent,
        again_bytes: counts.again,
        delivered_bytes: counts.delivered,
        refused: counts.refused,
        reset: counts.reset,
        would_refuse: counts.would_refuse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times() -> RouterTimes {
        let durations = vec![[0; Durations::BUCKETS]; Durations::CLASSES];
        RouterTimes { durations, rates: [0; abi::ROUTER_RATES] }
    }

    #[test]
    fn a_part_of_the_exchanges_took_no_longer_whatever_their_size() {
        let mut times = times();
        assert_eq!((times.took(0.5), times.fastest(0.1)), (None, None));
        (times.durations[0][8], times.durations[3][20]) = (99, 1);
        assert_eq!(times.took(0.5), Some(Durations::from(9)));
        assert_eq!(times.took(0.99), Some(Durations::from(9)));
        assert_eq!(times.took(1.0), Some(Durations::from(21)));
    }

    #[test]
    fn sizes_are_told_apart_and_those_of_which_none_came_are_left_out() {
        let mut times = times();
        assert_eq!(times.by_size(5.0, 1), []);
        (times.durations[0][8], times.durations[3][20], times.durations[3][30]) = (99, 1, 1);
        times.durations[Durations::CLASSES - 1][63] = 5;
        let figures = times.by_size(10.0, 2);
        let of = |n: usize| (figures[n].below_bytes, figures[n].completed);
        assert_eq!([of(0), of(1), of(2)], [(Some(512), 19.8), (Some(4096), 0.4), (None, 1.0)]);
        assert_eq!((figures[1].median, figures[1].p99), (Durations::from(21), Durations::from(31)));
        let below = (0..Durations::CLASSES - 1).filter_map(Durations::class_below);
        for (class, bytes) in below.enumerate() {
            let of = (Durations::class_of(bytes - 1), Durations::class_of(bytes));
            assert_eq!(of, (class, class + 1));
        }
    }

    #[test]
    fn the_fastest_are_a_tenth_and_one() {
        let mut times = times();
        // 100 connections, 11 of them count: 3 at 4 KiB/s and more, 8 at 256 B/s and more.
        (times.rates[16], times.rates[0]) = (3, 97);
        let (fast, slow) = ((4096.0 + 5120.0) / 2.0, (0.0 + 320.0) / 2.0);
        let mean = (3.0 * fast + 8.0 * slow) / 11.0;
        assert!((times.fastest(0.1).unwrap() - mean).abs() < 0.001);
        assert!((times.fastest(1.0).unwrap() - (3.0 * fast + 97.0 * slow) / 100.0).abs() < 0.001);
    }

    #[test]
    fn what_is_new_is_what_was_counted_since_also_past_the_largest_number() {
        let (mut then, mut now) = (times(), times());
        (then.durations[1][2], now.durations[1][2]) = (u32::MAX, 3);
        (then.rates[5], now.rates[5]) = (7, 9);
        let new = now.since(&then);
        assert_eq!((new.durations[1][2], new.rates[5]), (4, 2));
        // One of another look went on.
        (then.durations[1][3], now.durations[1][3]) = (5, 4);
        assert_eq!(now.since(&then).durations[1][3], 0);
        assert_eq!(now.took_since(&then), [(1, 2, 4), (1, 3, -1)]);
    }
}
