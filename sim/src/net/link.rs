// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A link in one direction: a queue, a rate, a propagation delay, random loss.
//!
//! A queue is served in order, so when a packet leaves is known when it arrives. One event per
//! packet and link is enough: the arrival at the other end. Of these only the first is scheduled.

use super::packet::{NodeId, Packet};
use super::queue::{QueueSpec, Red};
use std::collections::VecDeque;
use tidegate_units::{Nanos, Random};
use tidegate_workload::Rng;

/// A link in one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpec {
    /// Bits per second, above 0.
    pub rate: u64,
    /// Propagation delay.
    pub delay: Nanos,
    /// What waits in front of it.
    pub queue: QueueSpec,
    /// Share of the packets that is lost behind the queue, each for itself; 0 to 1.
    pub loss: f64,
}

impl LinkSpec {
    /// A link without random loss and with a drop-tail queue of so many packets.
    #[must_use]
    pub const fn new(rate: u64, delay: Nanos, packets: u32) -> Self {
        Self { rate, delay, queue: QueueSpec::packets(packets), loss: 0.0 }
    }

    /// How long a packet of `bytes` takes to send, rounded up.
    #[must_use]
    pub const fn takes(&self, bytes: u32) -> Nanos {
        Nanos((bytes as u64).saturating_mul(8_000_000_000).div_ceil(self.rate))
    }

    pub(super) fn is_valid(&self) -> bool {
        let red = self.queue.red.is_none_or(|red| red.is_valid());
        self.rate > 0 && (0.0..=1.0).contains(&self.loss) && red
    }
}

/// Packets and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes, headers included.
    pub bytes: u64,
}

impl Count {
    pub(super) const fn add(&mut self, packet: &Packet) {
        self.packets += 1;
        self.bytes += packet.bytes as u64;
    }
}

/// What became of the packets of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Came to its queue.
    pub offered: Count,
    /// Found the queue full.
    pub overflowed: Count,
    /// Dropped early by RED.
    pub early: Count,
    /// Lost behind the queue.
    pub lost: Count,
    /// Arrived at the other end.
    pub delivered: Count,
    /// Most packets that waited at once.
    pub waiting_max: u64,
}

impl LinkCounts {
    /// Dropped by the queue, for whatever reason.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.overflowed.packets + self.early.packets
    }
}

/// A packet on its way.
#[derive(Clone, Copy, Debug)]
struct Flying {
    /// When the first of its bits is sent.
    starts: Nanos,
    arrives: Nanos,
    packet: Packet,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) spec: LinkSpec,
    pub(super) to: NodeId,
    /// When the last packet is sent.
    busy_until: Nanos,
    /// In order: on the wire, being sent, waiting.
    line: VecDeque<Flying>,
    /// How many of them have been begun, by the last look.
    begun: usize,
    waiting_bytes: u64,
    red: Option<Red>,
    random: Rng,
    pub(super) counts: LinkCounts,
}

impl Link {
    pub(super) fn new(spec: LinkSpec, to: NodeId, random: Rng) -> Self {
        Self {
            spec,
            to,
            busy_until: Nanos::ZERO,
            line: VecDeque::new(),
            begun: 0,
            waiting_bytes: 0,
            red: spec.queue.red.map(Red::new),
            random,
            counts: LinkCounts::default(),
        }
    }

    /// Moves those whose turn has come from the queue to the wire.
    fn look(&mut self, now: Nanos) {
        while let Some(next) = self.line.get(self.begun) {
            if next.starts > now {
                break;
            }
            self.waiting_bytes -= u64::from(next.packet.bytes);
            self.begun += 1;
        }
    }

    /// Packets that wait now.
    pub(super) fn waiting(&self, now: Nanos) -> usize {
        let queue = self.line.range(self.begun..);
        self.line.len() - self.begun - queue.take_while(|flying| flying.starts <= now).count()
    }

    /// RED's average queue, where there is RED.
    pub(super) fn average(&self) -> Option<f64> {
        self.red.as_ref().map(Red::average)
    }

    /// Whether the queue has no place for this packet, or RED drops it.
    fn refuses(&mut self, now: Nanos, packet: &Packet) -> bool {
        let waiting = self.line.len() - self.begun;
        if let Some(red) = &mut self.red {
            if self.busy_until <= now {
                let usual = self.spec.takes(red.mean_packet());
                red.arrives_after(now - self.busy_until, usual);
            } else {
                red.arrives(waiting);
            }
            if red.drops(&mut self.random) {
                self.counts.early.add(packet);
                return true;
            }
        }
        // A packet that can be sent at once needs no place in the queue.
        let is_full = self.busy_until > now
            && !self.spec.queue.fits(waiting, self.waiting_bytes, packet.bytes);
        if is_full {
            self.counts.overflowed.add(packet);
            if let Some(red) = &mut self.red {
                red.overflowed();
            }
        }
        is_full
    }

    /// A packet comes. If it is the only one, returns when it arrives at the other end.
    pub(super) fn offer(&mut self, now: Nanos, packet: Packet) -> Option<Nanos> {
        self.counts.offered.add(&packet);
        self.look(now);
        if self.refuses(now, &packet) {
            return None;
        }
        let starts = self.busy_until.max(now);
        self.busy_until = starts + self.spec.takes(packet.bytes);
        let arrives = self.busy_until + self.spec.delay;
        self.line.push_back(Flying { starts, arrives, packet });
        self.waiting_bytes += u64::from(packet.bytes);
        self.look(now);
        let waiting = (self.line.len() - self.begun) as u64;
        self.counts.waiting_max = self.counts.waiting_max.max(waiting);
        (self.line.len() == 1).then_some(arrives)
    }

    /// The first packet arrives; none if it was lost. And when the next one does.
    pub(super) fn arrive(&mut self, now: Nanos) -> (Option<Packet>, Option<Nanos>) {
        self.look(now);
        let Some(first) = self.line.pop_front() else { return (None, None) };
        self.begun -= 1;
        let next = self.line.front().map(|next| next.arrives);
        let is_lost = self.spec.loss > 0.0 && self.random.next_f64() < self.spec.loss;
        if is_lost {
            self.counts.lost.add(&first.packet);
            return (None, next);
        }
        self.counts.delivered.add(&first.packet);
        (Some(first.packet), next)
    }

    /// Whether every packet is somewhere.
    pub(super) fn is_sound(&self) -> bool {
        let c = &self.counts;
        let ended = c.dropped() + c.lost.packets + c.delivered.packets;
        c.offered.packets == ended + self.line.len() as u64
    }
}
