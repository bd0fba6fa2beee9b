// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A router: whether its link is congested, what comes for whom, limits, and (as published) marks and
//! options.

use super::spec::{Control, NetdrainoSpec};
use super::{CLASSES, PACKET, RCN, RELAYED, SCN, TICK};
use crate::net::{Kind, LinkCounts, LinkId, Net, NodeId, Packet, Place, Side, Verdict};
use std::collections::VecDeque;
use tidegate_policy::{
    Congestion, CongestionSpec, Event, LinkTick, Offered, Part, Pushback, VerdictKind,
};
use tidegate_units::{Nanos, Random as _, Rate, Share};
use tidegate_workload::Rng;

/// Weight of a tick in the counts: they follow within half a second.
const WEIGHT: f64 = 0.2;
/// A router that had no packet to append to for so long begins a new sequence number.
const PAUSE: Nanos = Nanos::SECOND;
/// Shares of packets and of the rate are over so many ticks: 45 packets of one tick say little.
const WINDOW_TICKS: usize = 10;
/// A notice is due at once when what comes for a destination has changed by this share, and by at least so
/// many packets per second.
const CHANGE: f64 = 0.25;
const CHANGED: f64 = 25.0;
/// Entries that fit in an option of 40 bytes: 4 bytes of head, 8 an entry.
const ENTRIES: u32 = 4;
/// Bytes of an option with two.
const OPTION_OF_TWO: u32 = 20;
/// As published a router is lightly loaded when its average queue is below this share of the threshold.
const LIGHT: f64 = 1.0 / 3.0;

/// A limit for a router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Limit {
    pub(super) class: usize,
    pub(super) rate: Rate,
    pub(super) whole: Rate,
}

/// What a packet counts as: the class of its destination; none of an acknowledgement.
pub(super) fn class(packet: &Packet, server: usize) -> Option<usize> {
    let counts = match packet.kind {
        Kind::Udp | Kind::Syn => true,
        Kind::Segment => packet.payload > 0,
        Kind::SynAck | Kind::Rst => false,
    };
    let udp = usize::from(packet.kind == Kind::Udp);
    (counts && packet.sender == Side::Client).then_some(2 * server + udp)
}

/// The entries of a packet's option: routers and their sequence numbers.
pub(super) fn entries(tag: u32) -> impl Iterator<Item = (usize, u8)> {
    (0..ENTRIES).map(move |at| (tag >> (8 * at)) as u8).filter(|entry| *entry > 0).map(|entry| {
        let router = usize::from(entry >> 4);
        (router - usize::from(router > 0), entry & 15)
    })
}

/// Appends an entry, if there is room. The bytes that the packet grows by.
fn append(packet: &mut Packet, router: usize, sequence: u8) -> u32 {
    let entry = (router as u32 + 1) << 4 | u32::from(sequence & 15);
    for at in 0..ENTRIES {
        if (packet.tag >> (8 * at)) & 255 == 0 {
            packet.tag |= entry << (8 * at);
            return if at == 0 { 12 } else { 8 };
        }
    }
    0
}

/// Entries of both congested routers with sequence numbers that they do not have, as an option of somebody else.
pub(super) fn forged(random: u64) -> (u32, u32) {
    let entry = |router: u32, sequence: u64| (router + 1) << 4 | sequence as u32 & 15;
    (entry(1, random) | entry(2, random >> 4) << 8, OPTION_OF_TWO)
}

fn sum(ticks: &VecDeque<LinkTick>) -> LinkTick {
    ticks.iter().fold(LinkTick::default(), |sum, tick| LinkTick {
        elapsed: tick.elapsed,
        capacity_bytes: sum.capacity_bytes + tick.capacity_bytes,
        sent_bytes: sum.sent_bytes + tick.sent_bytes,
        dropped_bytes: sum.dropped_bytes + tick.dropped_bytes,
        refused_bytes: sum.refused_bytes + tick.refused_bytes,
        packets: sum.packets + tick.packets,
        dropped: sum.dropped + tick.dropped,
    })
}

/// What a router counts in a second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) offered: u64,
    pub(super) refused: u64,
    pub(super) refused_others: u64,
    pub(super) option_bytes: u64,
}

/// One router.
pub(super) struct Router {
    number: usize,
    pub(super) node: NodeId,
    /// The link to the servers that may be congested; none: it is never.
    pub(super) link: Option<LinkId>,
    control: Control,
    congestion: Congestion,
    light: Congestion,
    offered: Vec<Offered>,
    limits: Vec<Pushback>,
    /// When the last limit of each class came.
    installed: Vec<Nanos>,
    /// What the last notice said.
    told: Vec<f64>,
    cservs: VecDeque<(NodeId, Nanos)>,
    cservs_spec: (usize, Nanos),
    sequence: u8,
    due: Option<Nanos>,
    mark: f64,
    append: f64,
    random: Rng,
    refused_bytes: u64,
    before: LinkCounts,
    /// The ticks of the last second.
    lately: VecDeque<LinkTick>,
    /// Share of the packets that the queue dropped in that time.
    pub(super) loss: f64,
    capacity: u64,
    pub(super) counted: Counted,
}

impl Router {
    pub(super) fn new(
        spec: &NetdrainoSpec,
        (number, node): (usize, NodeId),
        link: Option<LinkId>,
    ) -> Self {
        let light = spec.congestion.queue * LIGHT;
        let light = super::spec::NetdrainoSpec::published(light);
        let light = CongestionSpec { weight: spec.congestion.weight, ..light };
        Self {
            number,
            node,
            link,
            control: spec.control,
            congestion: Congestion::new(&spec.congestion),
            light: Congestion::new(&light),
            offered: vec![Offered::default(); CLASSES],
            limits: (0..CLASSES).map(|_| Pushback::new(&spec.pushback)).collect(),
            installed: vec![Nanos::ZERO; CLASSES],
            told: vec![0.0; CLASSES],
            cservs: VecDeque::new(),
            cservs_spec: spec.cservs,
            sequence: 0,
            due: None,
            mark: spec.mark,
            append: spec.append,
            random: Rng::new(spec.seed, 0x4e44_0000 + number as u64),
            refused_bytes: 0,
            before: LinkCounts::default(),
            lately: VecDeque::new(),
            loss: 0.0,
            capacity: (spec.network / 2.0 * f64::from(PACKET) * TICK.as_secs_f64()) as u64,
            counted: Counted::default(),
        }
    }

    /// A packet passes; `server` is the one it is for.
    pub(super) fn packet(
        &mut self,
        net: &Net,
        (place, server): (Place, Option<usize>),
        packet: &mut Packet,
    ) -> Verdict {
        let now = net.now();
        if packet.sender == Side::Server {
            if packet.marks & SCN != 0 && self.congestion.is_long() {
                self.notes(packet.from, now);
            }
            return Verdict::Pass;
        }
        let Some(class) = server.and_then(|server| class(packet, server)) else {
            return Verdict::Pass;
        };
        if packet.marks & RELAYED != 0 && self.congestion.is_long() {
            self.notes(packet.to, now);
        }
        let verdict = self.limits[class].admit(&Event::at(now.0));
        let refused = verdict.kind != VerdictKind::Admit;
        self.offered[class].add(refused);
        let own = class < 2;
        self.counted.offered += u64::from(own);
        if refused {
            self.refused_bytes += u64::from(packet.bytes);
            self.counted.refused += u64::from(own);
            self.counted.refused_others += u64::from(!own);
            return Verdict::Drop;
        }
        if let Some(link) = self.link.filter(|link| place.leaves == Some(*link)) {
            let waiting = net.waiting(link);
            self.congestion.queue(waiting);
            self.light.queue(waiting);
            if self.control == Control::InBand && self.congestion.is_long() {
                self.mark(packet, now);
            }
        }
        Verdict::Pass
    }

    /// As published (section 4.1): who is congested, in a short list whose entries age.
    fn notes(&mut self, server: NodeId, now: Nanos) {
        self.cservs.retain(|(known, at)| *known != server && now.since(*at) <= self.cservs_spec.1);
        self.cservs.push_back((server, now));
        if self.cservs.len() > self.cservs_spec.0 {
            self.cservs.pop_front();
        }
    }

    /// As published (sections 4.1 and 4.2): a mark on random packets, our address on those for congested
    /// servers.
    fn mark(&mut self, packet: &mut Packet, now: Nanos) {
        if self.random.next_f64() < self.mark {
            packet.marks |= RCN;
        }
        let known = |(server, at): &(NodeId, Nanos)| {
            *server == packet.to && now.since(*at) <= self.cservs_spec.1
        };
        if !self.cservs.iter().any(known) {
            return;
        }
        // A pause is one of packets that may carry an option, not of those that do.
        if self.due.is_none_or(|at| now.since(at) > PAUSE) {
            self.sequence = self.sequence.wrapping_add(1);
        }
        self.due = Some(now);
        if self.random.next_f64() >= self.append {
            return;
        }
        let grows = append(packet, self.number, self.sequence);
        packet.bytes += grows;
        self.counted.option_bytes += u64::from(grows);
    }

    /// A tick has ended. Whether congestion has just begun.
    pub(super) fn tick(&mut self, net: &Net) -> bool {
        let now = net.now();
        self.offered.iter_mut().for_each(|offered| offered.tick(TICK, Share::new(WEIGHT)));
        let Some(link) = self.link else { return false };
        let (counts, before) = (net.link(link), self.before);
        let of = |count: fn(&LinkCounts) -> u64| count(&counts) - count(&before);
        let dropped_bytes = of(|c| c.early.bytes + c.overflowed.bytes);
        let packets = of(|c| c.offered.packets);
        let dropped = of(LinkCounts::dropped);
        self.lately.push_back(LinkTick {
            elapsed: TICK,
            capacity_bytes: self.capacity,
            sent_bytes: of(|c| c.offered.bytes) - dropped_bytes,
            dropped_bytes,
            refused_bytes: self.refused_bytes,
            packets: packets as u32,
            dropped: dropped as u32,
        });
        if self.lately.len() > WINDOW_TICKS {
            self.lately.pop_front();
        }
        (self.before, self.refused_bytes) = (counts, 0);
        let seen = sum(&self.lately);
        self.loss = f64::from(seen.dropped) / f64::from(seen.packets.max(1));
        let sequence = self.congestion.sequence();
        self.congestion.tick(&seen);
        let idle = match self.control {
            Control::InBand | Control::Naive(_) => !self.light.is_long(),
            _ => !self.congestion.is_congested(),
        };
        self.limits.iter_mut().for_each(|limit| _ = limit.rate(now, idle));
        self.congestion.sequence() != sequence
    }

    pub(super) const fn is_congested(&self) -> bool {
        self.congestion.is_congested()
    }

    /// Whether what comes is another than the last notice said.
    pub(super) fn has_changed(&self) -> bool {
        let other = |(offered, told): (&Offered, &f64)| {
            let offered = offered.offered().get();
            (offered - told).abs() > CHANGED.max(CHANGE * told)
        };
        self.offered.iter().zip(&self.told).any(other)
    }

    /// A notice is sent.
    pub(super) fn tells(&mut self) {
        self.told = self.offered.iter().map(|offered| offered.offered().get()).collect();
    }

    /// What it says of a class.
    pub(super) fn part(&self, class: usize) -> Part {
        let offered = &self.offered[class];
        Part { offered: offered.offered(), refused: offered.refused(), before: None }
    }

    /// A limit comes. Whether it is taken.
    pub(super) fn limit(
        &mut self,
        limit: &Limit,
        (ttl, clamped): (Nanos, bool),
        now: Nanos,
    ) -> bool {
        let mut rate = limit.rate;
        if clamped {
            // Falls by at most half within a second, from what passes or what holds.
            let held = self.limits[limit.class].rate(now, false);
            let part = self.part(limit.class);
            let passes = part.offered.get() - part.refused.get();
            let s = now.since(self.installed[limit.class]).as_secs_f64().min(1.0);
            let least = libm::exp2(-s) * held.map_or(passes, Rate::get);
            rate = Rate::per_second(rate.get().max(least).min(limit.whole.get()));
            self.installed[limit.class] = now;
        }
        self.limits[limit.class].install((rate, limit.whole), ttl, now).is_ok()
    }

    /// The sum of the limits for S0 in force.
    pub(super) fn limited(&mut self, now: Nanos) -> Option<f64> {
        let rates = self.limits.iter_mut().take(2).filter_map(|limit| limit.rate(now, false));
        rates.map(Rate::get).reduce(|a, b| a + b)
    }
}
