// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The numbers of a TCP.

use tidegate_units::Nanos;
use tidegate_workload::{OnIcmp, OnReset, Schedule};

/// SYNs after 1 s and twice the time after that, six times; no kernel adds anything to a wait.
const DOUBLING: Schedule = Schedule {
    name: "rfc-6298",
    at_ms: &[0, 1000, 3000, 7000, 15_000, 31_000, 63_000],
    stretch_ms: &[],
    gives_up_ms: 127_000,
    on_reset: OnReset::Fail,
    on_icmp: OnIcmp::Ignore,
};

fn named(name: &str) -> Schedule {
    Schedule::named(name).copied().unwrap_or(DOUBLING)
}

/// How an end of a connection behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSpec {
    /// Most payload of a segment, bytes.
    pub mss: u32,
    /// Segments before the first acknowledgement: 2 (RFC 2581) or 10 (RFC 6928).
    pub initial_window: u32,
    /// Bytes that this end takes ahead of what has arrived in order: its receive window.
    pub receive_window: u64,
    /// How long an acknowledgement may wait for a second segment; 0 acknowledges each segment.
    pub delayed_ack: Nanos,
    /// Retransmission time-out before the first measurement (RFC 6298: 1 s, before that 3 s).
    pub rto_initial: Nanos,
    /// Least retransmission time-out (RFC 6298: 1 s).
    pub rto_min: Nanos,
    /// Least distance of the time-out from the round trip (RFC 6298: the clock's granularity). Linux has
    /// its minimum of 200 ms here.
    pub rto_margin: Nanos,
    /// Most, when it has doubled (RFC 6298: at least 60 s).
    pub rto_max: Nanos,
    /// Time-outs in a row after which the connection has failed.
    pub retries_max: u32,
    /// Sends a new segment for each of the first two duplicate acknowledgements (RFC 3042).
    pub limited_transmit: bool,
    /// When a client sends its SYN again, and how it takes a RST.
    pub schedule: Schedule,
    /// How often a server sends its SYN-ACK again, after `rto_initial` and twice the time after that.
    pub syn_ack_retries: u32,
}

impl TcpSpec {
    /// As the RFCs say, with today's initial window: least time-out 1 s, delayed acknowledgements
    /// after 200 ms, SYNs at 0, 1, 3, 7 s and so on.
    #[must_use]
    pub fn rfc() -> Self {
        Self {
            mss: 1460,
            initial_window: 10,
            receive_window: 1 << 20,
            delayed_ack: Nanos::from_millis(200),
            rto_initial: Nanos::SECOND,
            rto_min: Nanos::SECOND,
            rto_margin: Nanos::from_millis(1),
            rto_max: Nanos::from_secs(60),
            retries_max: 15,
            limited_transmit: true,
            schedule: DOUBLING,
            syn_ack_retries: 5,
        }
    }

    /// With the times of Linux: time-out at least 200 ms above the round trip, delayed acknowledgements
    /// after 40 ms.
    #[must_use]
    pub fn today() -> Self {
        Self {
            delayed_ack: Nanos::from_millis(40),
            rto_min: Nanos::from_millis(200),
            rto_margin: Nanos::from_millis(200),
            rto_max: Nanos::from_secs(120),
            schedule: named("linux-6.5"),
            ..Self::rfc()
        }
    }

    /// As around 2003: an initial window of 2, 64 KB, SYNs at 0, 3, 9, 21 s.
    #[must_use]
    pub fn classic() -> Self {
        Self {
            initial_window: 2,
            receive_window: 65_535,
            rto_initial: Nanos::from_secs(3),
            schedule: named("classic"),
            ..Self::rfc()
        }
    }

    pub(super) const fn mss(&self) -> u64 {
        if self.mss == 0 { 1 } else { self.mss as u64 }
    }

    /// The window before the first acknowledgement. One segment if a SYN was lost (RFC 5681, 3.1).
    pub(super) const fn first_window(&self, syn_lost: bool) -> u64 {
        let segments = if syn_lost || self.initial_window == 0 { 1 } else { self.initial_window };
        segments as u64 * self.mss()
    }
}
