// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the dataplane has counted since its state was created. `tidegate-bpf` reads them from the
//! kernel, `tidegate-sense` makes [`crate::signals::Signals`] of their differences, and the
//! simulator offers the same through the same trait.

use crate::RANKS;
use serde::{Deserialize, Serialize};
use std::io;
use tidegate_units::Nanos;

/// Buckets of a response time histogram.
pub const HISTOGRAM_BUCKETS: usize = 256;

/// Totals of one service; all but `waiting` and `open` only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceTotals {
    /// New work seen.
    pub offered: u64,
    /// Of it, known copies of refused SYNs.
    pub repeated: u64,
    /// Verdict admit, or refused in shadow and therefore passed.
    pub admitted: u64,
    /// Verdict drop or reject, executed or (in shadow) not.
    pub refused: u64,
    /// Of the refused, those that a remote limit on requests has refused; `None`: they are not told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_remote: Option<u64>,
    /// Exchanges in flight now: connections whose client has sent something that the server has not
    /// responded to yet. A connection whose client is silent is not among them.
    pub waiting: u64,
    /// Verified connections that are open now.
    pub open: u64,
    /// Of them, those whose client has sent no request yet, and waits for nothing.
    #[serde(default)]
    pub silent: u64,
    /// Open connections whose client is slow to send a request.
    #[serde(default)]
    pub slow: u64,
    /// How long a turn of a busy proxy's loop takes, on average over time lately; 0: none is seen. `None` without gateways.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_turn: Option<Nanos>,
    /// What became of connections, each counted once.
    #[serde(default)]
    pub connections: ConnectionTotals,
    /// Connections whose answer will not be seen: the table had no room for them, or they waited in
    /// silence for so long that they were forgotten.
    #[serde(default)]
    pub unseen: u64,
    /// Exchanges: how long the server had the request (and, before the first one, the handshake of
    /// TLS) until the first byte of the response.
    pub first_byte: Histogram,
    /// Exchanges whose beginning or end cannot be told from the packets: left out above.
    #[serde(default)]
    pub unknown: u64,
    /// Times from SYN to the end of the connection.
    pub end: Histogram,
    /// Totals of the request buckets, in the order of the configuration; empty without rules.
    #[serde(default)]
    pub buckets: Vec<BucketTotals>,
    /// Datagrams to the addresses of the service; `None`: they are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datagrams: Option<DatagramTotals>,
}

/// Datagrams (UDP) to the addresses of one service; all of it only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatagramTotals {
    /// That came, with those that were refused.
    pub offered: u64,
    /// That were dropped because of a limit.
    pub refused: u64,
    /// Bytes of these.
    pub refused_bytes: u64,
    /// That a limit refused without effect: in shadow mode, for sources that are not in a canary, and while the
    /// lease ends.
    pub spared: u64,
}

/// What became of the connections of one service; all of it only grows, and each connection is
/// counted once in each. An exchange is one request and its response, a connection has many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionTotals {
    /// SYNs that the server replied to by a SYN-ACK, repetitions left out.
    pub replied: u64,
    /// Handshakes that the client completed: it receives what is sent to its address.
    pub proved: u64,
    /// Connections that sent a first request.
    pub asked: u64,
    /// Connections that got the first byte of their first response.
    pub answered: u64,
    /// Connections that asked and ended without a response: their client left, or was cut off.
    pub lost: u64,
    /// Of the answered, those that have ended.
    pub ended: u64,
    /// Exchanges that these had.
    pub ended_exchanges: u64,
}

/// Totals of one request bucket; all of them only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketTotals {
    /// Requests seen, by rank ([`RANKS`]).
    pub offered: [u64; RANKS],
    /// Refused, by rank (in shadow: what would have been).
    pub refused: [u64; RANKS],
    /// Of the refused those that were the first request of their connection.
    #[serde(default)]
    pub refused_first: u64,
    /// Requests that were handed to the server.
    pub begun: u64,
    /// Requests whose answer is complete, or whose connection ended: `begun - ended` are in flight.
    pub ended: u64,
    /// Times from request to first byte of the answer.
    pub first_byte: Histogram,
    /// Times from request to the end of the answer.
    pub end: Histogram,
}

/// A log-linear histogram of times: 8 buckets an octave above 1024 ns, so a relative error of
/// about 6 %; see [`Histogram::bucket`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// How many times were counted.
    pub count: u64,
    /// Their sum in nanoseconds.
    pub sum_ns: u64,
    /// Counts by bucket; written as pairs of a bucket and its count, the empty ones left out.
    #[serde(with = "sparse")]
    pub buckets: Vec<u64>,
}

/// Most buckets are empty.
mod sparse {
    use super::HISTOGRAM_BUCKETS;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(all: &[u64], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(all.iter().enumerate().filter(|(_, count)| **count > 0))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u64>, D::Error> {
        let mut all = vec![0; HISTOGRAM_BUCKETS];
        for (bucket, count) in <Vec<(usize, u64)>>::deserialize(from)? {
            let place = all.get_mut(bucket).ok_or_else(|| D::Error::custom("no such bucket"))?;
            *place = count;
        }
        Ok(all)
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self { count: 0, sum_ns: 0, buckets: vec![0; HISTOGRAM_BUCKETS] }
    }
}

impl Histogram {
    /// The bucket of a time; the same arithmetic as in bpf/packet/count.h.
    ///
    /// In units of 1024 ns: values below 8 have a bucket each, then every octave has 8.
    #[must_use]
    pub fn bucket(time: Nanos) -> usize {
        let v = time.0 >> 10;
        if v < 8 {
            return v as usize;
        }
        let octave = 63 - v.leading_zeros() as usize;
        let index = (octave - 2) * 8 + ((v >> (octave - 3)) & 7) as usize;
        index.min(HISTOGRAM_BUCKETS - 1)
    }

    /// The middle of a bucket.
    #[must_use]
    pub fn value(bucket: usize) -> Nanos {
        if bucket < 8 {
            return Nanos(((bucket as u64) << 10) + 512);
        }
        let octave = bucket / 8 + 2;
        let low = (8 + (bucket % 8) as u64) << (octave - 3);
        let width = 1_u64 << (octave - 3);
        Nanos(((low << 10) + (width << 9)).min(u64::MAX >> 1))
    }

    /// The end of a bucket: what is in it is below.
    #[must_use]
    pub fn end(bucket: usize) -> Nanos {
        if bucket < 8 {
            return Nanos((bucket as u64 + 1) << 10);
        }
        let octave = bucket / 8 + 2;
        Nanos(((9 + (bucket % 8) as u64) << (octave - 3)).saturating_mul(1 << 10))
    }

    /// Counts one time.
    pub fn record(&mut self, time: Nanos) {
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(time.0);
        self.buckets[Self::bucket(time)] += 1;
    }

    /// What was added since `before`; an older or foreign `before` gives zeros, never nonsense.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            count: self.count.saturating_sub(before.count),
            sum_ns: self.sum_ns.saturating_sub(before.sum_ns),
            buckets: self
                .buckets
                .iter()
                .zip(&before.buckets)
                .map(|(now, then)| now.saturating_sub(*then))
                .collect(),
        }
    }

    /// The smallest bucket value that at least `share` of the counts do not exceed; zero if empty.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Nanos {
        let total: u64 = self.buckets.iter().sum();
        let wanted = ((total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Self::value(bucket);
            }
        }
        Nanos::ZERO
    }
}

/// Whoever can tell the totals of a service.
pub trait Totals {
    /// The totals of the service with this index.
    ///
    /// # Errors
    /// When they cannot be read at the moment; the caller then has no signal, not a zero.
    fn totals(&self, service: usize) -> io::Result<ServiceTotals>;

    /// Whether the answers of the services are seen on every interface. Where they are not,
    /// `waiting` only grows and first bytes and ends are missing: neither is a signal.
    fn sees_answers(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_middle_and_errs_by_at_most_one_sixteenth() {
        for bucket in 0..HISTOGRAM_BUCKETS - 1 {
            assert_eq!(Histogram::bucket(Histogram::value(bucket)), bucket);
        }
        for ns in [10_000_u64, 123_456, 7_654_321, 1_000_000_007, 60_000_000_000] {
            let shown = Histogram::value(Histogram::bucket(Nanos(ns))).0 as f64;
            assert!((shown / ns as f64 - 1.0).abs() < 1.0 / 15.0, "{ns} ns shown as {shown}");
        }
    }

    #[test]
    fn a_bucket_ends_where_the_next_begins() {
        for bucket in 0..HISTOGRAM_BUCKETS - 9 {
            let end = Histogram::end(bucket);
            assert_eq!(Histogram::bucket(end), bucket + 1, "{end}");
            assert_eq!(Histogram::bucket(Nanos(end.0 - 1)), bucket, "{end}");
        }
    }

    #[test]
    fn the_largest_time_has_a_bucket() {
        assert_eq!(Histogram::bucket(Nanos(u64::MAX)), HISTOGRAM_BUCKETS - 1);
    }
}
