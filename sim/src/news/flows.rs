// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The router's table of connections. A SYN is noted; a connection is in the table once its handshake is
//! proved. Both tables are bounded: of notes the oldest is forgotten, of connections those that do not
//! fit are passed and counted.
//!
//! What clients get is measured by what they acknowledge: a response has ended when the client has
//! acknowledged all of it. The published rate counts what is sent, as the paper does.

use crate::net::{Kind, Packet, Side};
use std::collections::{BTreeMap, VecDeque};
use tidegate_policy::{Durations, Tsw, TswSpec};
use tidegate_units::Nanos;

/// SYNs that are noted at once.
const NOTES: usize = 1 << 16;
/// A connection without a packet for so long is forgotten.
const IDLE: Nanos = Nanos::from_secs(60);
/// All is acknowledged, and nothing new came for so long: the exchange has ended.
const SETTLED: Nanos = Nanos::from_millis(250);
/// Rates of ended connections are kept for the longest interval.
const KEPT: Nanos = Nanos::from_secs(600);

/// A response under way.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    began: Nanos,
    /// Position of the server's stream before it.
    from: u64,
    /// When the client acknowledged something of it last.
    progress: Nanos,
}

/// A SYN that was seen.
#[derive(Clone, Copy, Debug)]
struct Note {
    key: u64,
    /// It was let pass: a copy of it is never refused.
    admitted: bool,
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    key: u64,
    seen: Nanos,
    rate: Tsw,
    /// Ends of both streams, as sent; what the client has acknowledged.
    asked: u64,
    sent: u64,
    acked: u64,
    exchange: Option<Exchange>,
}

/// What happened at one destination since the last look.
#[derive(Clone, Debug, Default)]
pub(super) struct Happened {
    pub(super) durations: Durations,
    pub(super) first_attempts: u32,
    pub(super) refused: u32,
    pub(super) connected: u32,
    pub(super) started: u32,
    pub(super) completed: u32,
    /// Segments with payload of the server, and those of them that were sent before.
    pub(super) segments: (u32, u32),
}

/// An exchange that has ended, for the truth: when, how large, how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ended {
    /// When.
    pub at: Nanos,
    /// The destination.
    pub key: u64,
    /// Bytes of the response that arrived.
    pub bytes: u64,
    /// How long it took.
    pub took: Nanos,
}

/// The table.
#[derive(Debug)]
pub(super) struct Flows {
    notes: BTreeMap<u64, Note>,
    /// In the order in which they came; the oldest first.
    order: VecDeque<u64>,
    all: BTreeMap<u64, Flow>,
    max: usize,
    window: TswSpec,
    /// Rates of connections that ended: when, bits per second.
    gone: VecDeque<(Nanos, f64)>,
    happened: BTreeMap<u64, Happened>,
    /// Exchanges that ended, if they are kept.
    pub(super) log: Option<Vec<Ended>>,
    /// Connections that did not fit.
    pub(super) untracked: u64,
}

/// What a SYN is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syn {
    /// Never seen, or nothing is known of it.
    First,
    /// A copy of one that was refused.
    Again,
    /// A copy of one that was admitted.
    Admitted,
}

impl Flows {
    pub(super) fn new(max: usize) -> Self {
        Self {
            notes: BTreeMap::new(),
            order: VecDeque::new(),
            all: BTreeMap::new(),
            max,
            // w = 1 s. The SYN-ACK comes before the flow is there, so nothing is to be skipped (section 4.1).
            window: TswSpec::new(Nanos::SECOND, 0),
            gone: VecDeque::new(),
            happened: BTreeMap::new(),
            log: None,
            untracked: 0,
        }
    }

    /// Connections in the table.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    fn at(&mut self, key: u64) -> &mut Happened {
        self.happened.entry(key).or_default()
    }

    /// What a SYN to this destination is.
    pub(super) fn syn(&mut self, packet: &Packet, key: u64) -> Syn {
        let id = packet.flow.as_u64();
        match self.notes.get(&id) {
            Some(note) if note.admitted => Syn::Admitted,
            None if self.all.contains_key(&id) => Syn::Admitted,
            Some(_) => Syn::Again,
            None => {
                self.at(key).first_attempts += 1;
                Syn::First
            }
        }
    }

    /// A SYN was evaluated.
    pub(super) fn evaluated(&mut self, packet: &Packet, key: u64, admitted: bool) {
        if !admitted {
            self.at(key).refused += 1;
        }
        let id = packet.flow.as_u64();
        if self.notes.insert(id, Note { key, admitted }).is_none() {
            self.order.push_back(id);
        }
        while self.order.len() > NOTES {
            let oldest = self.order.pop_front();
            oldest.and_then(|oldest| self.notes.remove(&oldest));
        }
    }

    /// A packet of a client proves the handshake of a SYN that was noted.
    fn proves(&mut self, id: u64, now: Nanos) -> bool {
        let Some(note) = self.notes.remove(&id) else { return false };
        if self.all.len() >= self.max {
            self.untracked += 1;
            return false;
        }
        let (rate, exchange) = (Tsw::default(), None);
        let flow = Flow { key: note.key, seen: now, rate, asked: 0, sent: 0, acked: 0, exchange };
        self.all.insert(id, flow);
        self.at(note.key).connected += 1;
        true
    }

    /// Any other packet. Whether it proves a handshake.
    pub(super) fn packet(&mut self, packet: &Packet, now: Nanos) -> bool {
        let id = packet.flow.as_u64();
        if packet.kind == Kind::Rst {
            self.ends(id, now);
            return false;
        }
        let proves = packet.sender == Side::Client && self.proves(id, now);
        let Some(flow) = self.all.get_mut(&id) else { return false };
        flow.seen = now;
        if packet.sender == Side::Client {
            self.of_client(packet, now);
            return proves;
        }
        flow.rate.add(&self.window, now, packet.bytes);
        if packet.payload > 0 {
            let (key, end) = (flow.key, packet.seq + u64::from(packet.payload));
            let again = u32::from(end <= flow.sent);
            flow.sent = flow.sent.max(end);
            let segments = &mut self.at(key).segments;
            *segments = (segments.0 + 1, segments.1 + again);
        }
        false
    }

    fn of_client(&mut self, packet: &Packet, now: Nanos) {
        let id = packet.flow.as_u64();
        let Some(flow) = self.all.get_mut(&id) else { return };
        if packet.ack > flow.acked {
            flow.acked = packet.ack.min(flow.sent.max(flow.acked));
            if let Some(exchange) = &mut flow.exchange {
                exchange.progress = now;
            }
        }
        let end = packet.seq + u64::from(packet.payload);
        let asks = packet.payload > 0 && end > flow.asked;
        flow.asked = flow.asked.max(end);
        let answered = flow.acked >= flow.sent && flow.exchange.is_some_and(|e| flow.sent > e.from);
        if (asks || packet.fin) && answered {
            self.completes(id);
        }
        if asks {
            self.begins(id, now);
        }
        if packet.fin {
            self.ends(id, now);
        }
    }

    fn begins(&mut self, id: u64, now: Nanos) {
        let Some(flow) = self.all.get_mut(&id) else { return };
        if flow.exchange.is_none() {
            flow.exchange = Some(Exchange { began: now, from: flow.sent, progress: now });
            let key = flow.key;
            self.at(key).started += 1;
        }
    }

    /// The response is all there.
    fn completes(&mut self, id: u64) {
        let Some(flow) = self.all.get_mut(&id) else { return };
        let (key, acked) = (flow.key, flow.acked);
        let Some(exchange) = flow.exchange.take() else { return };
        let (bytes, took) = (acked - exchange.from, exchange.progress.since(exchange.began));
        let happened = self.at(key);
        happened.completed += 1;
        happened.durations.add(bytes, took);
        if let Some(log) = &mut self.log {
            log.push(Ended { at: exchange.progress, key, bytes, took });
        }
    }

    /// The connection is gone.
    fn ends(&mut self, id: u64, now: Nanos) {
        let Some(flow) = self.all.remove(&id) else { return };
        if flow.sent > 0 {
            self.gone.push_back((now, f64::from(flow.rate.last()) * 8.0));
        }
        // Left without its response: to the client it took that long.
        if let (Some(exchange), Some(log)) = (flow.exchange, &mut self.log) {
            let (bytes, took) = (flow.sent - exchange.from, now.since(exchange.began));
            log.push(Ended { at: now, key: flow.key, bytes, took });
        }
    }

    /// What happened at each destination since the last look, with what is in flight there, and how much
    /// of it is overdue by `overdue(key)`. Forgets what has long been silent.
    pub(super) fn look(
        &mut self,
        now: Nanos,
        overdue: impl Fn(u64) -> Option<Nanos>,
    ) -> BTreeMap<u64, (Happened, u32, u32)> {
        let settled: Vec<u64> =
            self.all.iter().filter(|(_, f)| f.settled(now)).map(first).collect();
        settled.into_iter().for_each(|id| self.completes(id));
        let old: Vec<u64> = self.all.iter().filter(|(_, f)| f.is_old(now)).map(first).collect();
        old.into_iter().for_each(|id| self.ends(id, now));
        while self.gone.front().is_some_and(|(at, _)| now.since(*at) > KEPT) {
            self.gone.pop_front();
        }
        let mut all: BTreeMap<u64, (Happened, u32, u32)> = BTreeMap::new();
        for (key, happened) in &mut self.happened {
            all.insert(*key, (std::mem::take(happened), 0, 0));
        }
        for flow in self.all.values() {
            let Some(exchange) = flow.exchange else { continue };
            let entry = all.entry(flow.key).or_default();
            entry.1 += 1;
            let late = overdue(flow.key).is_some_and(|after| now.since(exchange.began) > after);
            entry.2 += u32::from(late);
        }
        all
    }

    /// Rates of all connections that were there in the last `interval`, bits per second.
    pub(super) fn rates(&self, now: Nanos, interval: Nanos) -> Vec<f64> {
        let recent = |at: Nanos| now.since(at) <= interval;
        let gone = self.gone.iter().rev().take_while(|(at, _)| recent(*at)).map(|(_, rate)| *rate);
        let live = self.all.values().filter(|flow| flow.sent > 0);
        let live = live.filter(|flow| recent(flow.seen));
        gone.chain(live.map(|flow| f64::from(flow.rate.last()) * 8.0)).collect()
    }
}

fn first((id, _): (&u64, &Flow)) -> u64 {
    *id
}

impl Flow {
    fn settled(&self, now: Nanos) -> bool {
        let rests = |e: Exchange| self.sent > e.from && now.since(e.progress) > SETTLED;
        self.acked >= self.sent && self.exchange.is_some_and(rests)
    }

    fn is_old(&self, now: Nanos) -> bool {
        now.since(self.seen) > IDLE
    }
}
