// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server: its own limits, what it knows of routers, and the limits that it gives them.

use super::router::{Limit, class, entries};
use super::spec::{Control, NetdrainoSpec};
use super::{RCN, SCN, TICK};
use crate::net::{NodeId, Packet, Side, Verdict};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_policy::{
    Action, BucketSpec, Event, Offered, Params, ParamsError, Part, State, TailorSpec, VerdictKind,
    admit,
};
use tidegate_units::{Nanos, Rate, Share};

/// A notice counts for so long.
const NOTICE_FOR: Nanos = Nanos::from_secs(3);
/// Depth of a server's bucket, in time at its rate.
const BURST_S: f64 = 0.1;

/// What a router says.
#[derive(Clone, Debug)]
pub(super) struct Notice {
    pub(super) router: usize,
    pub(super) sequence: u64,
    /// TCP, UDP.
    pub(super) parts: [Part; 2],
}

/// Samples of one router (section 6.2).
#[derive(Clone, Copy, Debug)]
struct Samples {
    sequence: u8,
    info: u64,
    /// All packets of the class when they began.
    since: u64,
}

struct Own {
    rate: f64,
    params: Params,
    state: State,
    arrived: Offered,
    /// All packets so far.
    total: u64,
}

/// One server.
pub(super) struct Server {
    number: usize,
    control: Control,
    classes: [Option<Own>; 2],
    notices: BTreeMap<usize, (Nanos, Notice)>,
    samples: BTreeMap<(usize, usize), Samples>,
    /// Clients whose next packet gets SCN.
    marked: BTreeSet<NodeId>,
    tailor: (f64, f64),
    append: f64,
    wanted: u64,
    pub(super) arrived: u64,
    pub(super) accepted: u64,
}

impl Server {
    pub(super) fn new(spec: &NetdrainoSpec, number: usize) -> Result<Self, ParamsError> {
        let own = |rate: f64| -> Result<Own, ParamsError> {
            let burst = (rate * BURST_S).round().max(1.0) as u32;
            let bucket = BucketSpec::new(Rate::per_second(rate), burst, Action::Drop);
            let (params, state) = (Params::token_bucket(&bucket)?, State::fresh());
            Ok(Own { rate, params, state, arrived: Offered::default(), total: 0 })
        };
        let class = |udp: usize| spec.rate(2 * number + udp).map(own).transpose();
        Ok(Self {
            number,
            control: spec.control,
            classes: [class(0)?, class(1)?],
            notices: BTreeMap::new(),
            samples: BTreeMap::new(),
            marked: BTreeSet::new(),
            tailor: (spec.k, spec.min_rate),
            append: spec.append,
            wanted: spec.samples,
            arrived: 0,
            accepted: 0,
        })
    }

    /// A packet that it sends.
    pub(super) fn sends(&mut self, packet: &mut Packet) {
        if packet.sender == Side::Server && self.marked.remove(&packet.to) {
            packet.marks |= SCN;
        }
    }

    /// A packet arrives; limits that it now has to send, with the routers.
    pub(super) fn packet(
        &mut self,
        packet: &Packet,
        now: Nanos,
        out: &mut Vec<(usize, Limit)>,
    ) -> Verdict {
        let Some(class) = class(packet, self.number) else { return Verdict::Pass };
        // SYNs are limited, too; what is measured is packets of 1 KB.
        let counts = u64::from(packet.payload > 0);
        self.arrived += counts;
        let Some(own) = &mut self.classes[class % 2] else {
            self.accepted += counts;
            return Verdict::Pass;
        };
        let event = Event::at(now.0);
        let refused = admit(&own.params, &mut own.state, &event).kind != VerdictKind::Admit;
        own.arrived.add(refused);
        own.total += 1;
        self.accepted += if refused { 0 } else { counts };
        if self.control == Control::InBand {
            if refused && packet.marks & RCN != 0 {
                self.marked.insert(packet.from);
            }
            for (router, sequence) in entries(packet.tag) {
                out.extend(self.sample((class, router), sequence));
            }
        }
        // Without its own limit it cannot use what is above it, but takes it.
        let drops = refused && self.control != Control::None;
        if drops { Verdict::Drop } else { Verdict::Pass }
    }

    /// An entry of an option, as published: with enough of them the router's share is known.
    fn sample(&mut self, key: (usize, usize), sequence: u8) -> Option<(usize, Limit)> {
        let own = self.classes[key.0 % 2].as_ref()?;
        // What is counted begins behind a sample: with it the share of the router would be too large, by one
        // in so many samples as a rule needs.
        let fresh = Samples { sequence, info: 0, since: own.total };
        let known = self.samples.get(&key).is_some_and(|known| known.sequence == sequence);
        if !known {
            self.samples.insert(key, fresh);
            return None;
        }
        let samples = self.samples.get_mut(&key)?;
        samples.info += 1;
        let from = (samples.info as f64 / self.append) as u64;
        if from < self.wanted {
            return None;
        }
        let total = own.total - samples.since;
        self.samples.insert(key, fresh);
        let whole = Rate::per_second(own.rate);
        let spec =
            TailorSpec { rate: whole, min_rate: Rate::per_second(self.tailor.1), k: self.tailor.0 };
        let rate = spec.published(from, total);
        Some((key.1, Limit { class: key.0, rate, whole }))
    }

    /// A notice of a router comes; limits for it.
    pub(super) fn notice(&mut self, notice: Notice, now: Nanos) -> Vec<Limit> {
        let router = notice.router;
        let stale = |(_, known): &(Nanos, Notice)| known.sequence >= notice.sequence;
        if self.notices.get(&router).is_some_and(stale) {
            return Vec::new();
        }
        self.notices.insert(router, (now, notice));
        self.notices.retain(|_, (at, _)| now.since(*at) <= NOTICE_FOR);
        let limits = (0..2).filter_map(|udp| self.tailored(router, udp));
        limits.collect()
    }

    /// The limit of a router, if this class is above its rate, counting what routers refuse of it.
    fn tailored(&self, router: usize, udp: usize) -> Option<Limit> {
        let own = self.classes[udp].as_ref()?;
        let parts: Vec<Part> = self.notices.values().map(|(_, n)| n.parts[udp]).collect();
        let refused: f64 = parts.iter().map(|part| part.refused.get()).sum();
        let arrived = own.arrived.offered();
        if arrived.get() + refused <= own.rate {
            return None;
        }
        let whole = Rate::per_second(own.rate);
        let spec =
            TailorSpec { rate: whole, min_rate: Rate::per_second(self.tailor.1), k: self.tailor.0 };
        let limits = spec.limits(&parts, arrived);
        let place = self.notices.keys().position(|known| *known == router)?;
        Some(Limit { class: 2 * self.number + udp, rate: *limits.get(place)?, whole })
    }

    /// A tick has ended.
    pub(super) fn tick(&mut self) {
        for own in self.classes.iter_mut().flatten() {
            own.arrived.tick(TICK, Share::new(0.2));
        }
    }

    /// Its whole rates, where it is above them: what it would give to any router.
    pub(super) fn exceeded(&self) -> Vec<Limit> {
        let one = |udp: usize| {
            let own = self.classes[udp].as_ref()?;
            let whole = Rate::per_second(own.rate);
            let above = own.arrived.offered().get() > own.rate;
            above.then_some(Limit { class: 2 * self.number + udp, rate: whole, whole })
        };
        (0..2).filter_map(one).collect()
    }
}
