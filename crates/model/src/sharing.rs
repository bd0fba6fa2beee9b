// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What routers of one domain tell each other of the destinations behind them: counts and durations. Never a
//! connection, and never the address of a client.

use crate::snapshot::ReasonCount;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use tidegate_units::Nanos;

/// What routers share is about: an address with a port.
pub type Destination = SocketAddr;

/// Most other routers with which one shares.
pub const ROUTERS_MAX: usize = 8;
/// Most destinations of which one router tells.
pub const SHARED_MAX: usize = 64;
/// Size classes and buckets of durations, as `policy/router/durations.h` counts them.
pub const SHARED_CLASSES: u16 = 16;
/// See [`SHARED_CLASSES`].
pub const SHARED_BUCKETS: u16 = 64;
/// Most places of the histogram in a report: more than the exchanges of a second take.
pub const TOOK_MAX: usize = 256;
/// Shortest and longest time over which a report counts, in ms.
pub const SPAN_MS: (u32, u32) = (250, 10_000);
/// One connection in so many is followed, at most.
const SAMPLE_MAX: u32 = 1024;
/// Largest rate or count, in thousandths.
const MILLI_MAX: u64 = 1 << 40;
/// Most bytes in a span.
const BYTES_MAX: u64 = 1 << 48;

/// What one router saw of a destination within a span.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DestinationReport {
    /// The destination.
    pub destination: Destination,
    /// The span, in ms.
    pub span_ms: u32,
    /// One connection in so many is followed. All counts are of those that are followed.
    pub sample: u32,
    /// New connections that came for the first time, admitted or not, in thousandths.
    pub first_milli: u64,
    /// New connections refused, repeated attempts included, in thousandths.
    pub refused_milli: u64,
    /// Handshakes completed.
    pub connected: u32,
    /// Exchanges begun.
    pub started: u32,
    /// Exchanges completed, or ended otherwise.
    pub completed: u32,
    /// Of them those without a response.
    pub given_up: u32,
    /// Bytes that the server sent, with those that it had sent before.
    pub sent_bytes: u64,
    /// Bytes that it had sent before.
    pub again_bytes: u64,
    /// Exchanges in flight at the end of the span.
    pub in_flight: u32,
    /// Of them those that take too long.
    pub overdue: u32,
    /// Exchanges a second that clients want, lately, those included that a limit refuses; in thousandths. Limits are
    /// divided by it.
    pub demand_milli: u64,
    /// For how long there has been a flash crowd, in ms; none: there is none.
    pub crowd_ms: Option<u32>,
    /// Its clients get their responses as fast as usual, and it limits nobody.
    pub fast: bool,
    /// A flood of SYNs: some connections were not seen.
    pub flooded: bool,
    /// Exchanges completed, by place in the histogram (size class times [`SHARED_BUCKETS`] plus bucket), in the order
    /// of the places.
    pub took: Vec<(u16, u32)>,
}

impl DestinationReport {
    /// A report without any count.
    #[must_use]
    pub const fn empty(destination: Destination, span_ms: u32, sample: u32) -> Self {
        Self {
            destination,
            span_ms,
            sample,
            first_milli: 0,
            refused_milli: 0,
            connected: 0,
            started: 0,
            completed: 0,
            given_up: 0,
            sent_bytes: 0,
            again_bytes: 0,
            in_flight: 0,
            overdue: 0,
            demand_milli: 0,
            crowd_ms: None,
            fast: false,
            flooded: false,
            took: Vec::new(),
        }
    }

    /// The span.
    #[must_use]
    pub fn span(&self) -> Nanos {
        Nanos::from_millis(self.span_ms.into())
    }

    /// Whether every field is within its bounds. What is sent is, and what arrives has to be.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let address = self.destination.ip();
        let rates = [self.first_milli, self.refused_milli, self.demand_milli];
        let places = self.took.windows(2).all(|two| two[0].0 < two[1].0);
        let counts =
            |(place, count): &(u16, u32)| *place < SHARED_CLASSES * SHARED_BUCKETS && *count > 0;
        self.destination.port() != 0
            && address == address.to_canonical()
            && (SPAN_MS.0..=SPAN_MS.1).contains(&self.span_ms)
            && (1..=SAMPLE_MAX).contains(&self.sample)
            && rates.iter().all(|rate| *rate <= MILLI_MAX)
            && self.again_bytes <= self.sent_bytes
            && self.sent_bytes <= BYTES_MAX
            && self.given_up <= self.completed
            && self.overdue <= self.in_flight
            && self.took.len() <= TOOK_MAX
            && places
            && self.took.iter().all(counts)
    }
}

/// Reports of a router that arrived together; none is a sign of life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterReports {
    /// The router, by its name in the configuration.
    pub router: String,
    /// When they arrived; what was held up on its way counts from earlier.
    pub at: Nanos,
    /// The reports, one a destination.
    pub reports: Vec<DestinationReport>,
}

/// Another router, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SharingState {
    /// Its name in the configuration.
    pub router: String,
    /// Since its last report; `None`: there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age: Option<Nanos>,
    /// Destinations of which it tells.
    pub destinations: u64,
    /// Of them those with a flash crowd there.
    pub crowds: u64,
}

/// The bus over which routers share, as far as this one is concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusState {
    /// Its servers, as the configuration names them.
    pub servers: Vec<String>,
    /// Its subject.
    pub subject: String,
    /// Whether there is a connection to a server.
    pub up: bool,
    /// For how long that has been so.
    pub lasts: Nanos,
    /// Connections that came up since the process began.
    pub connections: u64,
    /// Reports published.
    pub sent: u64,
    /// Reports that the server did not take in time.
    pub unsent: u64,
    /// Reports of other routers that were taken.
    pub taken: u64,
    /// Messages that were refused, by reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<ReasonCount>,
    /// What is wrong now, in one sentence; empty if nothing is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub problem: String,
}

/// The part of a limit that one router has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartState {
    /// Routers that divide it, this one included.
    pub routers: u64,
    /// New connections per second that the destination carries, by what all of them see.
    pub whole: f64,
    /// This router's part of the demand, by which it is divided.
    pub share: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bound_of_a_report_on_both_sides() {
        let good = || {
            let mut report = DestinationReport::empty("192.0.2.1:80".parse().unwrap(), 1000, 1);
            (report.completed, report.given_up, report.in_flight) = (5, 2, 3);
            (report.sent_bytes, report.took) = (100, vec![(64, 1), (65, 2)]);
            report
        };
        assert!(good().is_sound());
        let with = |change: fn(&mut DestinationReport)| {
            let mut report = good();
            change(&mut report);
            report.is_sound()
        };
        assert!(with(|r| r.span_ms = 250) && !with(|r| r.span_ms = 249));
        assert!(with(|r| r.span_ms = 10_000) && !with(|r| r.span_ms = 10_001));
        assert!(with(|r| r.sample = 1024) && !with(|r| r.sample = 1025));
        assert!(!with(|r| r.sample = 0));
        assert!(with(|r| r.first_milli = 1 << 40) && !with(|r| r.first_milli = (1 << 40) + 1));
        assert!(!with(|r| r.refused_milli = u64::MAX) && !with(|r| r.demand_milli = u64::MAX));
        assert!(with(|r| r.again_bytes = 100) && !with(|r| r.again_bytes = 101));
        assert!(!with(|r| r.sent_bytes = u64::MAX));
        assert!(with(|r| r.given_up = 5) && !with(|r| r.given_up = 6));
        assert!(with(|r| r.overdue = 3) && !with(|r| r.overdue = 4));
        assert!(with(|r| r.took = vec![(1023, 1)]) && !with(|r| r.took = vec![(1024, 1)]));
        assert!(!with(|r| r.took = vec![(3, 0)]) && !with(|r| r.took = vec![(3, 1), (3, 1)]));
        assert!(!with(|r| r.took = vec![(4, 1), (3, 1)]));
        assert!(with(|r| r.took = (0..256).map(|place| (place, 1)).collect()));
        assert!(!with(|r| r.took = (0..257).map(|place| (place, 1)).collect()));
        assert!(!with(|r| r.destination = "192.0.2.1:0".parse().unwrap()));
        assert!(!with(|r| r.destination = "[::ffff:192.0.2.1]:80".parse().unwrap()));
    }
}
