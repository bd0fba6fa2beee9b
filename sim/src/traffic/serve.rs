// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server's side: accept queue, workers, threads, upstream.

use super::conn::{Client, Draws, Id, Message, Place};
use super::spec::{HTTP2_AT_ONCE, Habit, Held, ServerSpec, Work};
use super::{Happening, World};
use std::collections::VecDeque;
use tidegate_units::Nanos;

/// Jobs that one connection may have: the requests of a turn.
const PARTS: usize = HTTP2_AT_ONCE as usize;
/// Share of a page's CPU time that the response to a long poll takes.
const POLL_SHARE: f64 = 0.02;
/// What draws are for.
const PURPOSE_WAIT: u32 = 0;
/// See [`PURPOSE_WAIT`].
const PURPOSE_CPU: u32 = 1;
/// See [`PURPOSE_WAIT`].
const PURPOSE_UPSTREAM: u32 = 2;

/// A task for a thread: a job of a connection, or an accept of all that wait.
#[derive(Clone, Copy, Debug)]
enum Task {
    Job(usize, f64),
    Accept,
}

/// A running server.
#[derive(Debug)]
pub(super) struct Server {
    spec: ServerSpec,
    accept: VecDeque<Id>,
    ready: VecDeque<Id>,
    busy: usize,
    connections: usize,
    /// Threads that compute, and what waits for one.
    running: usize,
    backlog: VecDeque<Task>,
    /// Connections that the accept under way takes; `None` when none is asked for.
    accepting: Option<usize>,
    upstream_busy: usize,
    upstream_queue: VecDeque<(Id, u32)>,
}

impl Server {
    pub(super) fn new(spec: ServerSpec) -> Self {
        Self {
            spec,
            accept: VecDeque::new(),
            ready: VecDeque::new(),
            busy: 0,
            connections: 0,
            running: 0,
            backlog: VecDeque::new(),
            accepting: None,
            upstream_busy: 0,
            upstream_queue: VecDeque::new(),
        }
    }

    pub(super) fn accept_length(&self) -> usize {
        self.accept.len()
    }

    pub(super) const fn accept_limit(&self) -> usize {
        self.spec.accept_limit
    }

    /// Whether the kernel would ignore a SYN or the ACK of a handshake now.
    pub(super) fn accept_full(&self) -> bool {
        self.accept.len() >= self.spec.accept_limit
    }

    pub(super) const fn is_one_thread(&self) -> bool {
        matches!(self.spec.threads, Some(1))
    }

    pub(super) const fn defers(&self) -> Option<Nanos> {
        self.spec.defer
    }

    pub(super) fn set_wait(&mut self, mean_s: f64) {
        if let Some(wait) = &mut self.spec.wait {
            wait.mean_s = mean_s;
        }
    }

    pub(super) fn set_upstream(&mut self, mean_s: f64) {
        if let Some((_, work)) = &mut self.spec.upstream {
            work.mean_s = mean_s;
        }
    }

    /// Checks after the end that nothing is held.
    pub(super) fn check(&self) -> Result<(), String> {
        let held = self.busy + self.connections + self.running + self.upstream_busy;
        let queued = self.accept.len() + self.ready.len() + self.backlog.len();
        if held + queued + self.upstream_queue.len() == 0 {
            return Ok(());
        }
        Err(format!("the server holds something after the end: {self:?}"))
    }
}

impl World {
    /// A connection came into the accept queue.
    pub(super) fn queued(&mut self, now: Nanos, id: Id) {
        let service = self.conns[id].service;
        self.servers[service].accept.push_back(id);
        self.accept_more(now, service);
    }

    /// A connection that was accepted has something to read.
    pub(super) fn readable(&mut self, now: Nanos, id: Id) {
        let conn = &mut self.conns[id];
        let server = &mut self.servers[conn.service];
        match (conn.place, server.spec.held) {
            (Place::Served, _) if conn.working == 0 => self.serve(now, id),
            (Place::Parked, Held::Turn) => {
                conn.place = Place::Ready;
                let service = conn.service;
                server.ready.push_back(id);
                self.accept_more(now, service);
            }
            (Place::Parked, Held::Connection | Held::Nothing) => self.serve(now, id),
            _ => {}
        }
    }

    /// The client has gone: whoever holds the connection idly closes it, the others find out.
    pub(super) fn abandoned(&mut self, now: Nanos, id: Id) {
        let conn = &self.conns[id];
        match conn.place {
            Place::Away => self.conns.end(id),
            Place::Parked | Place::Served if conn.working == 0 => self.close(now, id),
            _ => {}
        }
    }

    /// Nothing came for too long.
    pub(super) fn expire(&mut self, now: Nanos, id: Id, looks: u32) {
        let conn = &self.conns[id];
        if conn.looks != looks || conn.working > 0 || conn.inbox.is_some() {
            return;
        }
        if conn.client != Client::Over {
            self.cut[conn.stream] += 1;
            self.leave(now, id);
        }
    }

    fn accept_more(&mut self, now: Nanos, service: usize) {
        if self.servers[service].spec.held == Held::Nothing {
            return self.ask_accept(now, service);
        }
        loop {
            let server = &mut self.servers[service];
            if server.busy >= server.spec.workers {
                return;
            }
            let room = server.connections < server.spec.connections;
            let (id, new) = match (server.ready.pop_front(), room) {
                (Some(id), _) => (id, false),
                (None, true) => match server.accept.pop_front() {
                    Some(id) => (id, true),
                    None => return,
                },
                (None, false) => return,
            };
            server.busy += 1;
            server.connections += usize::from(new);
            self.conns[id].worker = true;
            self.serve(now, id);
        }
    }

    /// An event loop accepts when it comes round: all that wait then.
    fn ask_accept(&mut self, now: Nanos, service: usize) {
        let server = &mut self.servers[service];
        let room = server.connections < server.spec.connections;
        if server.accepting.is_none() && !server.accept.is_empty() && room {
            server.accepting = Some(0);
            self.task(now, service, Task::Accept);
        }
    }

    fn accepted(&mut self, now: Nanos, service: usize) {
        let count = self.servers[service].accepting.unwrap_or(0);
        for _ in 0..count {
            let server = &mut self.servers[service];
            let Some(id) = server.accept.pop_front() else { break };
            server.connections += 1;
            self.serve(now, id);
        }
        self.servers[service].accepting = None;
        self.ask_accept(now, service);
    }

    /// Looks at a connection that nobody works for.
    fn serve(&mut self, now: Nanos, id: Id) {
        let conn = &mut self.conns[id];
        conn.place = Place::Served;
        conn.looks += 1;
        match conn.inbox.take() {
            Some(Message::Hello) => {
                (conn.working, conn.shaking) = (1, true);
                let service = conn.service;
                let handshake_s = self.servers[service].spec.handshake_s;
                self.task(now, service, Task::Job(job(id, 0), handshake_s));
            }
            Some(Message::Requests) => {
                // The requests of a client that has gone were in the same packet as the others.
                conn.working = conn.pending.max(1);
                for part in 0..conn.working {
                    self.ask(now, id, part);
                }
            }
            None if conn.client == Client::Over => self.close(now, id),
            None => self.idle(now, id),
        }
    }

    /// The server waits for the client: a worker with it, or nobody.
    fn idle(&mut self, now: Nanos, id: Id) {
        let conn = &mut self.conns[id];
        let server = &mut self.servers[conn.service];
        let first = conn.turn == 0;
        let spec = &server.spec;
        let limit = if first { spec.first_data } else { spec.keep_alive };
        self.engine.schedule(now + limit, Happening::Expire(id, conn.looks));
        let parks = match spec.held {
            Held::Connection => false,
            Held::Turn => !first,
            Held::Nothing => true,
        };
        if parks {
            conn.place = Place::Parked;
            if std::mem::take(&mut conn.worker) {
                server.busy -= 1;
                let service = conn.service;
                self.accept_more(now, service);
            }
        }
    }

    fn close(&mut self, now: Nanos, id: Id) {
        let conn = &self.conns[id];
        let service = conn.service;
        let server = &mut self.servers[service];
        server.connections -= 1;
        server.busy -= usize::from(conn.worker);
        self.conns.end(id);
        self.accept_more(now, service);
    }

    /// One request begins: first with what it waits for.
    fn ask(&mut self, now: Nanos, id: Id, part: u32) {
        let conn = &self.conns[id];
        let own = match self.spec.streams[conn.stream].session.habit {
            Habit::Uploads(takes) if conn.turn == 0 => takes,
            Habit::Polls(takes) => takes,
            _ => Nanos::ZERO,
        };
        let wait = self.servers[conn.service].spec.wait;
        if wait.is_none() && own == Nanos::ZERO {
            return self.compute(now, id, part);
        }
        let wait_s = wait.map_or(0.0, |work| self.draw(id, part, (work, PURPOSE_WAIT)));
        self.engine.schedule(now + own + Nanos::from_secs_f64(wait_s), Happening::Wait(id, part));
    }

    pub(super) fn waited(&mut self, now: Nanos, id: Id, part: u32) {
        self.compute(now, id, part);
    }

    fn compute(&mut self, now: Nanos, id: Id, part: u32) {
        let service = self.conns[id].service;
        let work = self.servers[service].spec.cpu;
        let habit = self.spec.streams[self.conns[id].stream].session.habit;
        let share = if matches!(habit, Habit::Polls(_)) { POLL_SHARE } else { 1.0 };
        let amount = share * self.draw(id, part, (work, PURPOSE_CPU));
        self.task(now, service, Task::Job(job(id, part), amount));
    }

    fn draw(&self, id: Id, part: u32, (work, purpose): (Work, u32)) -> f64 {
        let conn = &self.conns[id];
        let mut draws = Draws::new(self.spec.seed, conn.number, (conn.index + part, purpose));
        work.mean_s * work.shape.sample(&mut draws)
    }

    fn task(&mut self, now: Nanos, service: usize, task: Task) {
        let server = &mut self.servers[service];
        if server.spec.threads.is_some_and(|threads| server.running >= threads) {
            server.backlog.push_back(task);
        } else {
            self.start(now, service, task);
        }
    }

    fn start(&mut self, now: Nanos, service: usize, task: Task) {
        let server = &mut self.servers[service];
        server.running += 1;
        let job = match task {
            Task::Job(job, amount) => (job, amount),
            Task::Accept => {
                let room = server.spec.connections - server.connections;
                let count = server.accept.len().min(room);
                server.accepting = Some(count);
                (accept_job(service), server.spec.accept_s * count as f64)
            }
        };
        self.cpu.begin(now, service, job);
        self.replan = true;
    }

    pub(super) fn computed(&mut self, now: Nanos, epoch: u64) {
        if !self.cpu.current(epoch) {
            return;
        }
        while let Some(job) = self.cpu.finished(now) {
            let service = self.service_of(job);
            self.cpu.ended(service);
            let server = &mut self.servers[service];
            server.running -= 1;
            if let Some(task) = server.backlog.pop_front() {
                self.start(now, service, task);
            }
            if job == accept_job(service) {
                self.accepted(now, service);
            } else {
                self.job_done(now, self.conns.id(job / PARTS), (job % PARTS) as u32);
            }
        }
        self.replan = true;
    }

    fn service_of(&self, job: usize) -> usize {
        let accept = usize::MAX - job;
        if accept < self.servers.len() {
            return accept;
        }
        self.conns[self.conns.id(job / PARTS)].service
    }

    fn job_done(&mut self, now: Nanos, id: Id, part: u32) {
        let conn = &mut self.conns[id];
        if std::mem::take(&mut conn.shaking) {
            conn.working = 0;
            self.flight(now, id);
            return self.serve(now, id);
        }
        let service = conn.service;
        if self.servers[service].spec.upstream.is_none() {
            return self.request_done(now, id);
        }
        self.servers[service].upstream_queue.push_back((id, part));
        self.upstream_more(now, service);
    }

    /// The upstream begins no request whose client has gone.
    fn upstream_more(&mut self, now: Nanos, service: usize) {
        let server = &mut self.servers[service];
        let Some((places, work)) = server.spec.upstream else { return };
        while self.servers[service].upstream_busy < places {
            let server = &mut self.servers[service];
            let Some((id, part)) = server.upstream_queue.pop_front() else { return };
            if self.conns[id].client == Client::Over {
                self.request_done(now, id);
                continue;
            }
            server.upstream_busy += 1;
            let amount = self.draw(id, part, (work, PURPOSE_UPSTREAM));
            let at = now + Nanos::from_secs_f64(amount);
            self.engine.schedule(at, Happening::Upstream(id, part));
        }
    }

    pub(super) fn upstream_done(&mut self, now: Nanos, id: Id, _part: u32) {
        let service = self.conns[id].service;
        self.servers[service].upstream_busy -= 1;
        self.request_done(now, id);
        self.upstream_more(now, service);
    }

    fn request_done(&mut self, now: Nanos, id: Id) {
        self.respond(now, id);
        let conn = &mut self.conns[id];
        conn.working -= 1;
        if conn.working == 0 {
            self.serve(now, id);
        }
    }
}

/// The number of a connection's job on the processors.
const fn job(id: Id, part: u32) -> usize {
    id.slot as usize * PARTS + part as usize
}

/// The number of a service's accept on the processors.
const fn accept_job(service: usize) -> usize {
    usize::MAX - service
}
