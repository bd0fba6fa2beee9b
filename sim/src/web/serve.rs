// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Inside the server: accept queue, workers, CPU, and the response's way out.

use super::client::State;
use super::cpu::Cpu;
use super::link::{Offered, Packet};
use super::spec::WebServer;
use super::tcp::Flow;
use super::{Happening, World};
use std::collections::VecDeque;
use tidegate_units::Nanos;

/// Queue, workers and CPU.
#[derive(Debug)]
pub(super) struct Served {
    accept: VecDeque<usize>,
    accept_limit: usize,
    busy: usize,
    workers: usize,
    cpu: Cpu,
    cores: f64,
    finished: Vec<usize>,
}

impl Served {
    pub(super) fn new(spec: &WebServer) -> Self {
        Self {
            accept: VecDeque::new(),
            accept_limit: spec.accept_limit.max(1),
            busy: 0,
            workers: spec.workers.max(1),
            cpu: Cpu::new(spec.cpus),
            cores: f64::from(spec.cpus.max(1)),
            finished: Vec::new(),
        }
    }

    /// Length and limit of the accept queue.
    pub(super) fn accept(&self) -> (usize, usize) {
        (self.accept.len(), self.accept_limit)
    }

    pub(super) fn is_full(&self) -> bool {
        self.accept.len() >= self.accept_limit
    }

    /// Kernel work of so many seconds.
    pub(super) fn kernel(&mut self, now: Nanos, seconds: f64) {
        self.cpu.kernel(now, seconds);
    }

    pub(super) fn cpu(&mut self, now: Nanos) -> (f64, f64) {
        self.cpu.used(now)
    }

    /// Checks that everything was given back, and that no more CPU was used than there is.
    pub(super) fn check(&mut self, now: Nanos) -> Result<(), String> {
        let (used, _) = self.cpu.used(now);
        let there = now.as_secs_f64() * self.cores;
        if self.busy > 0 || !self.accept.is_empty() || self.cpu.present() > 0 {
            let (busy, waiting) = (self.busy, self.accept.len());
            return Err(format!("after the end {busy} workers are busy, {waiting} wait"));
        }
        if used > there * (1.0 + 1e-9) {
            return Err(format!("{used} s of CPU used in {there} s"));
        }
        Ok(())
    }
}

impl World {
    /// An admitted request waits for a worker.
    pub(super) fn queue(&mut self, now: Nanos, index: usize) {
        self.clients.hold(index);
        self.served.accept.push_back(index);
        self.accept_more(now);
    }

    fn accept_more(&mut self, now: Nanos) {
        while self.served.busy < self.served.workers {
            let Some(index) = self.served.accept.pop_front() else { return };
            self.served.busy += 1;
            self.clients[index].worker = true;
            let asked = &self.clients[index].asked;
            let seconds = self.scenario.server.costs.request_s(asked.kind, asked.size);
            let timer = self.served.cpu.begin(now, index, seconds);
            self.timer(timer);
        }
    }

    fn timer(&mut self, timer: Option<(Nanos, u64)>) {
        if let Some((at, epoch)) = timer {
            self.engine.schedule(at, Happening::Cpu(epoch));
        }
    }

    /// The worker takes the next request; its own is forgotten.
    pub(super) fn free_worker(&mut self, now: Nanos, index: usize) {
        if std::mem::take(&mut self.clients[index].worker) {
            self.served.busy -= 1;
            self.clients[index].flow = None;
            self.clients.release(index);
            self.accept_more(now);
        }
    }

    /// A timer of the CPU: requests may have had their time.
    pub(super) fn computed(&mut self, now: Nanos, epoch: u64) {
        let mut finished = std::mem::take(&mut self.served.finished);
        let timer = self.served.cpu.fire(now, epoch, &mut finished);
        self.timer(timer);
        for index in finished.drain(..) {
            self.answer(now, index);
        }
        self.served.finished = finished;
    }

    /// The response begins to leave.
    fn answer(&mut self, now: Nanos, index: usize) {
        let client = &mut self.clients[index];
        if client.state == State::Over {
            // Nobody is there any more: the worker finds out when it writes.
            self.free_worker(now, index);
            return;
        }
        client.state = State::Sending;
        let took = now.since(client.requested);
        let bucket = client.bucket;
        self.gate.answering(took);
        if let Some(bucket) = bucket {
            self.rules.answering(bucket, took);
        }
        if self.link.is_none() {
            self.clients.hold(index);
            self.engine.after(self.scenario.rtt, Happening::Delivered(index));
            return;
        }
        let client = &mut self.clients[index];
        let flow = Flow::new(client.asked.size, now);
        let due = flow.due();
        client.flow = Some(Box::new(flow));
        self.clients.hold(index);
        self.engine.schedule(due, Happening::Timeout(index));
        self.pump(now, index);
    }

    /// Sends what the window allows.
    fn pump(&mut self, now: Nanos, index: usize) {
        loop {
            let Some(flow) = self.clients[index].flow.as_mut() else { return };
            let Some((serial, bytes)) = flow.next() else { return };
            let packet = Packet { client: index, serial: Some(serial), bytes };
            if !self.send(now, packet)
                && let Some(flow) = self.clients[index].flow.as_mut()
            {
                flow.dropped(serial);
            }
        }
    }

    /// Whether the interface took a packet.
    pub(super) fn send(&mut self, now: Nanos, packet: Packet) -> bool {
        let Some(link) = &mut self.link else { return false };
        match link.offer(now, packet) {
            Offered::Dropped => return false,
            Offered::Queued => {}
            Offered::Sent(at) => self.engine.schedule(at, Happening::Out),
        }
        self.clients.hold(packet.client);
        true
    }

    /// A packet is out: it reaches the client, whose word comes back a round trip later.
    pub(super) fn out(&mut self, now: Nanos) {
        let Some(link) = &mut self.link else { return };
        let (gone, next) = link.out(now);
        if let Some(at) = next {
            self.engine.schedule(at, Happening::Out);
        }
        // The packet's hold goes over to what it causes.
        if let Some(Packet { client, serial, .. }) = gone {
            let caused = match serial {
                Some(serial) => Happening::Acknowledged(client, serial),
                None => Happening::Request(client),
            };
            self.engine.after(self.scenario.rtt, caused);
        }
    }

    pub(super) fn acknowledged(&mut self, now: Nanos, index: usize, serial: u64) {
        // A client that has left has no flow any more.
        if let Some(flow) = self.clients[index].flow.as_mut() {
            let whole = flow.acknowledged(now, serial);
            self.unsound += u64::from(!flow.is_sound());
            if whole {
                self.answered(now, index);
                self.free_worker(now, index);
            } else {
                self.pump(now, index);
            }
        }
        self.clients.release(index);
    }

    pub(super) fn delivered(&mut self, now: Nanos, index: usize) {
        if self.clients[index].state == State::Sending {
            self.answered(now, index);
            self.free_worker(now, index);
        }
        self.clients.release(index);
    }

    /// The retransmission timer: set again as long as there is something to wait for.
    pub(super) fn timed_out(&mut self, now: Nanos, index: usize) {
        let Some(flow) = self.clients[index].flow.as_mut() else {
            self.clients.release(index);
            return;
        };
        if now >= flow.due() {
            flow.timeout(now);
        }
        let due = flow.due();
        self.engine.schedule(due, Happening::Timeout(index));
        self.pump(now, index);
    }
}
