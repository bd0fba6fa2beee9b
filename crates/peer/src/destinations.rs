// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a router tells another one of the destinations that both of them reach. One message a second at least, so that
//! a router to whose destinations nothing comes is not taken for one that is lost.

use serde::{Deserialize, Serialize};
use tidegate_model::sharing::{DestinationReport, SHARED_MAX};

/// Bytes of a message that its reports may take, and how many one of them takes at most besides its histogram.
const BYTES_MAX: usize = 3900;
const REPORT_BYTES: usize = 128;
/// A place of the histogram and its count.
const PLACE_BYTES: usize = 7;
/// Messages and bytes a second that such a router may send count like those of so many services.
pub(crate) const AS_SERVICES: usize = 64;

/// Reports of destinations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DestinationsMessage {
    /// The number of the session.
    pub session: u64,
    /// The epoch of the session.
    pub epoch: u64,
    /// One more than that of the message before, from 1.
    pub sequence: u64,
    /// The sender's monotonic clock when it was sent, in ms, from any origin.
    pub sent_ms: u64,
    /// The reports; none is a sign of life.
    pub reports: Vec<DestinationReport>,
}

impl DestinationsMessage {
    /// Whether every report is within its bounds.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.reports.len() <= SHARED_MAX && self.reports.iter().all(DestinationReport::is_sound)
    }
}

/// Reports as they fit into messages: one message at least.
#[must_use]
pub fn packed(reports: &[DestinationReport]) -> Vec<&[DestinationReport]> {
    let size = |report: &DestinationReport| REPORT_BYTES + PLACE_BYTES * report.took.len();
    let (mut packed, mut first, mut bytes) = (Vec::new(), 0, 0);
    for (at, report) in reports.iter().enumerate() {
        if bytes + size(report) > BYTES_MAX && at > first {
            packed.push(&reports[first..at]);
            (first, bytes) = (at, 0);
        }
        bytes += size(report);
    }
    packed.push(&reports[first..]);
    packed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Frame, VERSION};

    /// The largest report that there can be.
    fn largest(port: u16) -> DestinationReport {
        let address = "[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:1".parse().unwrap();
        let mut report = DestinationReport::empty(address, 10_000, 1024);
        report.destination.set_port(port);
        (report.first_milli, report.refused_milli, report.demand_milli) =
            (1 << 40, 1 << 40, 1 << 40);
        (report.connected, report.started, report.in_flight) = (u32::MAX, u32::MAX, u32::MAX);
        (report.completed, report.given_up, report.overdue) = (u32::MAX, u32::MAX, u32::MAX);
        (report.sent_bytes, report.again_bytes) = (1 << 48, 1 << 48);
        report.crowd_ms = Some(u32::MAX);
        report.took = (768..1024).map(|place| (place, u32::MAX)).collect();
        assert!(report.is_sound());
        report
    }

    #[test]
    fn all_reports_fit_in_their_order() {
        let reports: Vec<_> = (1..=64).map(largest).collect();
        for reports in [&reports[..], &reports[..1], &[]] {
            let messages = packed(reports);
            assert_eq!(messages.concat(), reports);
            for part in messages {
                let (session, epoch, sequence, sent_ms) = (u64::MAX, u64::MAX, u64::MAX, u64::MAX);
                let reports = part.to_vec();
                let message = DestinationsMessage { session, epoch, sequence, sent_ms, reports };
                let frame = Frame::Destinations(Box::new(message));
                assert!(frame.encode(VERSION).is_some(), "{} reports", part.len());
            }
        }
    }
}
