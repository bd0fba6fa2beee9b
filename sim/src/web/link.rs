// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The outgoing interface: packets in order of arrival at a rate, a finite queue in front of it.

use super::spec::Interface;
use std::collections::VecDeque;
use tidegate_model::signals::{InterfaceQueue, Reading, Signals};
use tidegate_units::Nanos;

/// How often the queue's length is looked at.
pub(super) const SAMPLE_EVERY: Nanos = Nanos::from_millis(10);
/// Looks over which it is averaged: a second.
const SAMPLES: usize = 100;

/// A packet on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) client: usize,
    /// Number among its flow's; `None` for a SYN-ACK.
    pub(super) serial: Option<u64>,
    pub(super) bytes: u32,
}

/// What the interface says to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offered {
    /// The queue is full.
    Dropped,
    /// It waits.
    Queued,
    /// It leaves, and is out by then.
    Sent(Nanos),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Link {
    spec: Interface,
    queue: VecDeque<Packet>,
    leaving: Option<Packet>,
    samples: VecDeque<usize>,
    bytes: u64,
    /// Of them, those that a tick was told of.
    told: u64,
    offered: u64,
    dropped: u64,
    sent: u64,
}

impl Link {
    pub(super) fn new(spec: Interface) -> Self {
        Self {
            spec,
            queue: VecDeque::new(),
            leaving: None,
            samples: VecDeque::new(),
            bytes: 0,
            told: 0,
            offered: 0,
            dropped: 0,
            sent: 0,
        }
    }

    fn takes(&self, packet: Packet) -> Nanos {
        Nanos::from_secs_f64(f64::from(packet.bytes) / self.spec.rate.max(1.0))
    }

    pub(super) fn offer(&mut self, now: Nanos, packet: Packet) -> Offered {
        self.offered += 1;
        if self.leaving.is_none() {
            self.leaving = Some(packet);
            return Offered::Sent(now + self.takes(packet));
        }
        if self.queue.len() >= self.spec.limit {
            self.dropped += 1;
            return Offered::Dropped;
        }
        self.queue.push_back(packet);
        Offered::Queued
    }

    /// The packet that was leaving is out; the next leaves, until then.
    pub(super) fn out(&mut self, now: Nanos) -> (Option<Packet>, Option<Nanos>) {
        let gone = self.leaving.take();
        self.sent += u64::from(gone.is_some());
        self.bytes += gone.map_or(0, |packet| u64::from(packet.bytes));
        self.leaving = self.queue.pop_front();
        (gone, self.leaving.map(|packet| now + self.takes(packet)))
    }

    pub(super) fn sample(&mut self) {
        if self.samples.len() >= SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(self.queue.len());
    }

    /// Mean length over the last second, and the limit.
    fn length(&self) -> (f64, f64) {
        let sum: usize = self.samples.iter().sum();
        (sum as f64 / self.samples.len().max(1) as f64, self.spec.limit as f64)
    }

    /// Adds its queue over the last second, and what went out since this was asked last.
    pub(super) fn tell(&mut self, s: &mut Signals) {
        let (length, limit) = self.length();
        s.queue.interface = Some(Reading::fresh(InterfaceQueue { length, limit }));
        let sent = (self.bytes - self.told) as f64 / s.period.as_secs_f64().max(1e-9);
        s.resource.bandwidth = Some(Reading::fresh(sent));
        self.told = self.bytes;
    }

    /// Packets offered and dropped since the beginning.
    pub(super) const fn packets(&self) -> (u64, u64) {
        (self.offered, self.dropped)
    }

    /// Whether every packet was either sent or dropped.
    pub(super) fn is_settled(&self) -> bool {
        self.queue.is_empty() && self.leaving.is_none() && self.offered == self.sent + self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_in_order_at_the_rate_and_the_queue_is_finite() {
        let mut link = Link::new(Interface { rate: 1500.0, limit: 1 });
        let packet = |client| Packet { client, serial: Some(1), bytes: 1500 };
        assert_eq!(link.offer(Nanos::ZERO, packet(1)), Offered::Sent(Nanos::SECOND));
        assert_eq!(link.offer(Nanos::ZERO, packet(2)), Offered::Queued);
        assert_eq!(link.offer(Nanos::ZERO, packet(3)), Offered::Dropped);
        link.sample();
        assert_eq!(link.length(), (1.0, 1.0));
        let (gone, next) = link.out(Nanos::SECOND);
        assert_eq!((gone, next), (Some(packet(1)), Some(Nanos::from_secs(2))));
        assert!(!link.is_settled());
        link.out(Nanos::from_secs(2));
        assert!(link.is_settled());
        assert_eq!(link.packets(), (3, 1));
        let mut bandwidth = |period| {
            let mut signals = Signals { period, ..Signals::default() };
            link.tell(&mut signals);
            signals.resource.bandwidth.map(|reading| reading.value)
        };
        let period = Nanos::from_secs(2);
        assert_eq!([period, period].map(&mut bandwidth), [Some(1500.0), Some(0.0)]);
    }
}
