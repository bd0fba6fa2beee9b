// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client's side: SYNs that are sent again, turns of requests, patience.

use super::conn::{Begun, Client, Draws, Id, Message, Place};
use super::spec::{HTTP2_AT_ONCE, Habit, Load, Session, Transport};
use super::{Happening, World};
use crate::clients::syn_of;
use crate::world::Arrival;
use crate::world::gate::{Gated, Queue};
use crate::world::report::Observer;
use tidegate_policy::Lease;
use tidegate_units::{Clock, Nanos};
use tidegate_workload::{OnReset, exponential};

/// First wait before the ACK and the first payload are sent again; doubles (Linux' least
/// retransmission time-out).
const RETRY: Nanos = Nanos::from_millis(200);
/// Doublings after which the wait stays.
const RETRY_DOUBLINGS_MAX: u32 = 9;
/// Mean pause of a closed loop's user between two sessions, at least; half of what a session thinks
/// where that is more. Without it users with constant times fall into step, and the server idles
/// while all of them think.
const CLOSED_PAUSE_S: f64 = 0.5;
/// What a pause's draw is for.
const PURPOSE_PAUSE: u32 = 17;
/// What the draw of the time before the first payload is for.
const PURPOSE_ASKS: u32 = 18;
/// What a think time's draw is for; stages of the server have lower numbers.
const PURPOSE_THINK: u32 = 16;

impl World {
    /// Schedules the next session of an open stream.
    pub(super) fn expect(&mut self, stream: usize) {
        let next = self.flows[stream].arrivals.as_mut().and_then(Iterator::next);
        if let Some(at) = next {
            self.engine.schedule(at, Happening::Arrive(stream));
        }
    }

    pub(super) fn arrive(&mut self, now: Nanos, index: usize) -> Result<(), String> {
        let stream = &self.spec.streams[index];
        if matches!(stream.load, Load::Closed(..)) && now >= self.flows[index].until {
            return Ok(());
        }
        let schedule = stream.session.clients.draw(&mut self.clients_rng[index]);
        let requests = match stream.session.habit {
            Habit::Silent(_) => 0,
            _ => stream.session.requests.max(1),
        };
        let ordinal = self.flows[index].report.firsts.len() as u64 + 1;
        let service = stream.service;
        let new = Begun { stream: index, service, ordinal, schedule, at: now, requests };
        let (half, habit) = (half(&stream.session), stream.session.habit);
        let id = self.conns.begin(new).ok_or("more connections than there is room for")?;
        self.flows[index].report.began(&Arrival::at(now));
        self.flows[index].begun += u64::from(requests.min(1));
        let patience = match habit {
            Habit::Silent(held) => held,
            Habit::Asks | Habit::Uploads(_) | Habit::Polls(_) => self.patience(id),
        };
        self.engine.after(patience + half, Happening::GiveUp(id, 0));
        self.engine.after(half, Happening::Syn(id));
        self.expect(index);
        Ok(())
    }

    pub(super) fn syn(&mut self, now: Nanos, id: Id) {
        if self.conns[id].client != Client::Trying {
            return;
        }
        self.conns[id].syns += 1;
        self.cpu.packet(self.spec.packets.syn_s);
        match self.evaluate(now, id) {
            Gated::Passed if self.servers[self.conns[id].service].accept_full() => {
                self.again(id, None);
            }
            Gated::Passed => {
                let conn = &mut self.conns[id];
                (conn.client, conn.admitted) = (Client::Open, now);
                let (service, rtt) = (conn.service, self.spec.streams[conn.stream].session.rtt);
                self.gates[service].tracked().connections.replied += 1;
                self.cpu.packet(self.spec.packets.accept_s);
                self.engine.after(rtt, Happening::Data(id));
            }
            Gated::Dropped => {
                self.refused(now, id);
                self.again(id, None);
            }
            Gated::Reset => {
                self.cpu.packet(self.spec.packets.reset_s);
                self.refused(now, id);
                match self.conns[id].schedule.on_reset {
                    OnReset::Fail => self.leave(now, id),
                    OnReset::Again(pause) => self.again(id, Some(now + pause)),
                }
            }
        }
    }

    fn evaluate(&mut self, now: Nanos, id: Id) -> Gated {
        let service = self.conns[id].service;
        let lease = self.silent_since;
        // zero would be a heartbeat that never was
        let lease = lease.map_or(Lease::WHOLE, |since| Lease::at(since.max(Nanos(1)), now));
        let syn = syn_of(self.conns[id].number);
        let server = &self.servers[service];
        let queue = Queue { length: server.accept_length(), limit: server.accept_limit() };
        let gate = &mut self.gates[service];
        gate.hold(lease);
        gate.evaluate(now, syn, queue)
    }

    /// Schedules the next SYN: at `at`, or as the client's table says. A client that has none left
    /// waits for the end of its patience.
    fn again(&mut self, id: Id, at: Option<Nanos>) {
        let conn = &self.conns[id];
        let half = half(&self.spec.streams[conn.stream].session);
        if let Some(offset) = conn.schedule.at(conn.syns) {
            let at = at.unwrap_or(conn.began + offset + half).max(self.engine.now());
            self.engine.schedule(at, Happening::Syn(id));
        } else if let Some(now) = at {
            self.leave(now, id);
        }
    }

    fn refused(&mut self, now: Nanos, id: Id) {
        let conn = &mut self.conns[id];
        let first = !std::mem::replace(&mut conn.refused, true);
        let flow = &mut self.flows[conn.stream];
        flow.report.refused(now, &conn.session(conn.began), first);
    }

    /// ACK and first payload arrive, for the first time or again; or the ACK alone.
    pub(super) fn data(&mut self, now: Nanos, id: Id) {
        let conn = &mut self.conns[id];
        let session = &self.spec.streams[conn.stream].session;
        let totals = self.gates[conn.service].tracked();
        conn.track.proved(now, totals);
        if let Some(after) = session.asks_after.filter(|_| !conn.asks_later) {
            conn.asks_later = true;
            let mut draws = Draws::new(self.spec.seed, conn.number, (0, PURPOSE_ASKS));
            let after_s = after.mean_s * after.shape.sample(&mut draws);
            self.engine.schedule(now + Nanos::from_secs_f64(after_s), Happening::Speak(id));
            let server = &self.servers[conn.service];
            if server.defers().is_none() && !server.accept_full() {
                conn.place = Place::Queued;
                self.queued(now, id);
            }
            return;
        }
        if let Habit::Silent(_) = session.habit {
            if let (0, Some(held)) = (conn.retries, self.servers[conn.service].defers()) {
                conn.retries += 1;
                self.engine.after(held, Happening::Data(id));
                return;
            }
        } else {
            self.first_payload(now, id);
        }
        let conn = &mut self.conns[id];
        if self.servers[conn.service].accept_full() {
            let doublings = conn.retries.min(RETRY_DOUBLINGS_MAX);
            conn.retries += 1;
            self.engine.after(Nanos(RETRY.0 << doublings), Happening::Data(id));
        } else {
            conn.place = Place::Queued;
            self.queued(now, id);
        }
    }

    /// What a client says first arrives.
    fn first_payload(&mut self, now: Nanos, id: Id) {
        let conn = &mut self.conns[id];
        let totals = self.gates[conn.service].tracked();
        if self.spec.streams[conn.stream].session.transport == Transport::Cleartext {
            conn.track.request(now, totals);
            conn.inbox = Some(Message::Requests);
        } else {
            conn.track.hello(now, totals);
            conn.inbox = Some(Message::Hello);
        }
    }

    /// The first payload of a client that needed some time for it: to the server, or to a stack that has
    /// not given it the connection.
    pub(super) fn speak(&mut self, now: Nanos, id: Id) {
        if self.conns[id].client != Client::Open {
            return;
        }
        if self.conns[id].place == Place::Away {
            self.data(now, id);
        } else {
            self.first_payload(now, id);
            self.readable(now, id);
        }
    }

    /// The server's handshake flight has left: the first request follows a round trip later.
    pub(super) fn flight(&mut self, now: Nanos, id: Id) {
        let conn = &mut self.conns[id];
        conn.track.flight(now, self.gates[conn.service].tracked());
        if conn.client == Client::Open {
            let rtt = self.spec.streams[conn.stream].session.rtt;
            self.engine.after(rtt, Happening::Message(id));
        }
    }

    /// The requests of a turn arrive.
    pub(super) fn message(&mut self, now: Nanos, id: Id) {
        let conn = &mut self.conns[id];
        if conn.client != Client::Open {
            return;
        }
        conn.track.request(now, self.gates[conn.service].tracked());
        conn.inbox = Some(Message::Requests);
        self.readable(now, id);
    }

    /// A response leaves the server; a client that is still there takes it.
    pub(super) fn respond(&mut self, now: Nanos, id: Id) {
        let conn = &mut self.conns[id];
        if conn.client != Client::Open {
            return;
        }
        let session = &self.spec.streams[conn.stream].session;
        let half = half(session);
        let read = now + half;
        conn.track.response(now, self.gates[conn.service].tracked());
        conn.pending -= 1;
        // What a long poll or an upload takes by itself is no fault of the server.
        let own = match session.habit {
            Habit::Uploads(takes) | Habit::Polls(takes) => takes,
            Habit::Asks | Habit::Silent(_) => Nanos::ZERO,
        };
        let good = read.since(conn.intended) <= self.spec.objective + own;
        // From the SYN that was admitted, of the first request; from its own start, of the others.
        let since = if conn.turn == 0 { conn.admitted } else { conn.intended };
        let flow = &mut self.flows[conn.stream];
        flow.ended += 1;
        // Later requests of a session say nothing of its first one.
        let arrival = match conn.turn {
            0 => conn.session(conn.intended),
            _ => Arrival::at(conn.intended),
        };
        flow.report.answered((read, since), &arrival, good);
        if conn.pending > 0 {
            return;
        }
        if conn.left > 0 {
            self.next_turn(read, id);
        } else if session.requests <= 1 && session.transport != Transport::Http2 {
            // It asked the server to close.
            self.over(now, id);
        } else {
            let (turn, rtt) = (conn.turn, session.rtt);
            self.engine.after(rtt, Happening::GiveUp(id, turn));
        }
    }

    fn next_turn(&mut self, read: Nanos, id: Id) {
        let conn = &mut self.conns[id];
        let session = &self.spec.streams[conn.stream].session;
        let http2 = session.transport == Transport::Http2;
        let at_once = if http2 { HTTP2_AT_ONCE } else { 1 };
        conn.index += if conn.turn == 0 { 1 } else { at_once };
        conn.turn += 1;
        conn.pending = at_once.min(conn.left);
        conn.left -= conn.pending;
        let think = session.think.map_or(0.0, |think| {
            let mut draws = Draws::new(self.spec.seed, conn.number, (conn.index, PURPOSE_THINK));
            think.mean_s * think.shape.sample(&mut draws)
        });
        conn.intended = read + Nanos::from_secs_f64(think);
        let (turn, intended, half) = (conn.turn, conn.intended, half(session));
        self.flows[conn.stream].begun += u64::from(conn.pending);
        self.engine.schedule(intended + half, Happening::Message(id));
        let patience = self.patience(id);
        self.engine.schedule(intended + patience + half, Happening::GiveUp(id, turn));
    }

    /// The client's patience, what its own habit takes added.
    fn patience(&self, id: Id) -> Nanos {
        match self.spec.streams[self.conns[id].stream].session.habit {
            Habit::Uploads(takes) | Habit::Polls(takes) => self.spec.patience + takes,
            Habit::Asks | Habit::Silent(_) => self.spec.patience,
        }
    }

    pub(super) fn give_up(&mut self, now: Nanos, id: Id, turn: u32) {
        let conn = &self.conns[id];
        if conn.client != Client::Over && conn.turn == turn {
            self.leave(now, id);
        }
    }

    /// The client leaves, or the server closes: what it still waits for has failed.
    pub(super) fn leave(&mut self, now: Nanos, id: Id) {
        let conn = &mut self.conns[id];
        for _ in 0..std::mem::take(&mut conn.pending) {
            self.flows[conn.stream].failed(conn.intended);
        }
        self.over(now, id);
        self.abandoned(now, id);
    }

    /// The client's part has come to its end.
    fn over(&mut self, now: Nanos, id: Id) {
        let conn = &mut self.conns[id];
        conn.client = Client::Over;
        conn.track.closed(now, self.gates[conn.service].tracked());
        let (stream, number) = (conn.stream, conn.number);
        if matches!(self.spec.streams[stream].load, Load::Closed(..)) {
            let thinks_s = self.spec.streams[stream].session.thinks_s();
            let mut draws = Draws::new(self.spec.seed, number, (0, PURPOSE_PAUSE));
            let pause = CLOSED_PAUSE_S.max(thinks_s / 2.0) * exponential(&mut draws);
            self.engine.schedule(now + Nanos::from_secs_f64(pause), Happening::Arrive(stream));
        }
    }
}

/// Half of a session's round trip.
fn half(session: &Session) -> Nanos {
    Nanos(session.rtt.0 / 2)
}
