// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A server: workers that share its capacity. A connection has a worker from when it is accepted until
//! its response is written. Where memory is short, more requests in service make all of it slower.

use super::spec::ServerSpec;
use crate::net::{FlowId, ListenerId, Net, Side};
use crate::sharing::Sharing;
use std::collections::BTreeMap;
use tidegate_units::Nanos;

/// What a connection has that is not yet responded to.
#[derive(Clone, Copy, Debug, Default)]
struct Seat {
    accepted: bool,
    /// Bytes of the response that is wanted.
    wants: Option<u64>,
    /// It is in service. A client that leaves then costs its worker no less.
    begun: bool,
    gone: bool,
}

/// A server at work.
#[derive(Debug)]
pub(super) struct Server {
    spec: ServerSpec,
    listener: ListenerId,
    /// Seconds of work of one request, at the whole capacity; its mean is 1 / capacity.
    sharing: Sharing,
    jobs: Vec<(FlowId, u64)>,
    seats: BTreeMap<FlowId, Seat>,
    accepted: usize,
    looked: Nanos,
    /// Wakes of older generations do not count.
    pub(super) generation: u64,
    slowed: f64,
    /// Most in service at once.
    pub(super) busiest: usize,
}

impl Server {
    pub(super) fn new(spec: ServerSpec, listener: ListenerId) -> Self {
        Self {
            spec,
            listener,
            sharing: Sharing::default(),
            jobs: Vec::new(),
            seats: BTreeMap::new(),
            accepted: 0,
            looked: Nanos::ZERO,
            generation: 0,
            slowed: 1.0,
            busiest: 0,
        }
    }

    pub(super) const fn listener(&self) -> ListenerId {
        self.listener
    }

    /// From now on the capacity is divided by this.
    pub(super) fn slow(&mut self, now: Nanos, by: f64) {
        self.run(now);
        self.slowed = by;
    }

    /// Capacity with so many in service, requests per second.
    fn capacity(&self, n: usize) -> f64 {
        let over = n.saturating_sub(self.spec.knee) as f64 / self.spec.knee.max(1) as f64;
        let thrash = if self.spec.knee > 0 { self.spec.thrash * over } else { 0.0 };
        self.spec.capacity / self.slowed / (1.0 + thrash)
    }

    /// Seconds that one of so many takes.
    fn each_s(&self, n: usize) -> f64 {
        (n as f64 / self.capacity(n)).max(self.spec.least_s)
    }

    /// Work is done until now.
    fn run(&mut self, now: Nanos) {
        let n = self.sharing.len();
        if n > 0 {
            self.sharing.run(now.since(self.looked).as_secs_f64() / self.each_s(n));
        }
        self.looked = now;
    }

    /// Accepts while there are workers.
    pub(super) fn accept(&mut self, net: &mut Net) {
        while self.accepted < self.spec.workers {
            let Some(id) = net.accept(self.listener) else { break };
            if net.connection(id, Side::Server).is_none_or(|conn| !conn.is_open) {
                continue; // it has ended while it waited
            }
            self.accepted += 1;
            self.seats.entry(id).or_default().accepted = true;
            self.begin(net, id);
        }
    }

    /// A request is here.
    pub(super) fn asked(&mut self, net: &mut Net, id: FlowId, bytes: u64) {
        self.seats.entry(id).or_default().wants = Some(bytes);
        self.begin(net, id);
    }

    fn begin(&mut self, net: &mut Net, id: FlowId) {
        let Some(seat) = self.seats.get_mut(&id) else { return };
        let Seat { accepted: true, wants: Some(bytes), begun: false, .. } = *seat else { return };
        seat.begun = true;
        if self.spec.capacity.is_infinite() {
            return self.respond(net, (id, bytes));
        }
        self.run(net.now());
        self.jobs.push((id, bytes));
        self.sharing.begin(self.jobs.len() - 1, 1.0);
        self.busiest = self.busiest.max(self.sharing.len());
    }

    fn respond(&mut self, net: &mut Net, (id, bytes): (FlowId, u64)) {
        if self.seats.get(&id).is_some_and(|seat| !seat.gone) {
            net.send(id, Side::Server, bytes, 0);
            net.close(id, Side::Server);
        }
        self.done(id);
    }

    fn done(&mut self, id: FlowId) {
        if self.seats.remove(&id).is_some_and(|seat| seat.accepted) {
            self.accepted -= 1;
        }
    }

    /// The connection is gone.
    pub(super) fn leaves(&mut self, id: FlowId) {
        match self.seats.get_mut(&id) {
            Some(seat) if seat.begun => seat.gone = true,
            _ => self.done(id),
        }
    }

    /// Responds to what is done, accepts what waits; when to look again.
    pub(super) fn work(&mut self, net: &mut Net) -> Option<Nanos> {
        self.run(net.now());
        while let Some(job) = self.sharing.finished() {
            let job = self.jobs[job];
            self.respond(net, job);
        }
        self.accept(net);
        let (left, n) = (self.sharing.left()?, self.sharing.len());
        let s = left.max(0.0) * self.each_s(n);
        self.generation += 1;
        // Rounded up: work is done when it is looked at.
        Some(net.now() + Nanos::from_secs_f64(s) + Nanos(1))
    }
}
