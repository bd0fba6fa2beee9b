// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connection: what its ends do about packets and timers.

use super::super::app::{Failure, Notice};
use super::super::effects::{Effects, Event};
use super::super::packet::{FlowId, HEADERS_TCP, Kind, NodeId, Packet, Side};
use super::listen::{Listener, ListenerId};
use super::receive::{Receiver, Respond};
use super::rto::Timer;
use super::send::{Chunk, Sender};
use super::spec::TcpSpec;
use std::sync::Arc;
use tidegate_units::{Clock as _, Nanos};
use tidegate_workload::{Answer, Reaction};

/// A SYN in a wrong name arrives within this, or never.
const SPOOFED_FOR: Nanos = Nanos::from_secs(10);

/// Which of an end's timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::net) enum Which {
    /// Sends again: a SYN, a SYN-ACK, data.
    Resend,
    /// Acknowledges what waits for that.
    Acknowledge,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A server that has seen no SYN.
    Idle,
    /// A client that waits for a SYN-ACK.
    Syn,
    /// A server that waits for the end of the handshake.
    SynGot,
    Open,
    /// A client that does not exist: somebody has sent a SYN in its name.
    Silent,
    /// Both streams have ended.
    Done,
    Dead,
}

/// One end.
#[derive(Debug)]
pub(super) struct End {
    node: NodeId,
    pub(super) spec: Arc<TcpSpec>,
    pub(super) state: State,
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    resend: Timer,
    acknowledge: Timer,
    /// SYNs or SYN-ACKs sent before the last one.
    attempt: u8,
    began: Nanos,
    /// When the timer fires there will be no further SYN.
    gives_up: bool,
    /// The application was told that the peer's stream has ended.
    told: bool,
}

impl End {
    fn new(node: NodeId, spec: Arc<TcpSpec>, state: State, peer_window: u64, now: Nanos) -> Self {
        Self {
            node,
            state,
            sender: Sender::new(&spec, peer_window),
            receiver: Receiver::default(),
            resend: Timer::default(),
            acknowledge: Timer::default(),
            attempt: 0,
            began: now,
            gives_up: false,
            told: false,
            spec,
        }
    }

    const fn is_over(&self) -> bool {
        matches!(self.state, State::Idle | State::Silent | State::Done | State::Dead)
    }
}

/// A connection as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnFacts {
    /// Which client ([`Packet::client`]).
    pub client: u32,
    /// Whether this end has finished its handshake and the connection has not ended.
    pub is_open: bool,
    /// Bytes of this end's stream that the peer has acknowledged.
    pub acknowledged: u64,
    /// Bytes of the peer's stream that are here in order.
    pub received: u64,
    /// Congestion window, bytes.
    pub window: u64,
    /// Slow-start threshold, bytes.
    pub threshold: u64,
    /// Sent and not acknowledged, bytes.
    pub flight: u64,
    /// Smoothed round-trip time.
    pub round_trip: Option<Nanos>,
    /// Retransmission time-out.
    pub time_out: Nanos,
    /// Segments that this end sent again.
    pub sent_again: u64,
}

#[derive(Debug)]
pub(in crate::net) struct Conn {
    id: FlowId,
    client: u32,
    port: u16,
    pub(super) ends: [End; 2],
    /// Where the server's end was listened for.
    pub(super) listener: Option<ListenerId>,
}

/// What is to be done about a connection after something has happened to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Goes,
    /// A handshake has failed at the server.
    Forget,
}

impl Conn {
    /// A client and, for when it hears of it, a server.
    pub(super) fn new(
        now: Nanos,
        (client, port): (u32, u16),
        nodes: [NodeId; 2],
        specs: [Arc<TcpSpec>; 2],
    ) -> Self {
        let [ours, theirs] = specs;
        let windows = [ours.receive_window, theirs.receive_window];
        let ends = [
            End::new(nodes[0], ours, State::Syn, windows[1], now),
            End::new(nodes[1], theirs, State::Idle, windows[0], now),
        ];
        Self { id: FlowId::default(), client, port, ends, listener: None }
    }

    pub(super) const fn named(&mut self, id: FlowId) {
        self.id = id;
    }

    pub(super) fn end(&mut self, side: Side) -> &mut End {
        &mut self.ends[side.index()]
    }

    fn packet(&self, side: Side, kind: Kind) -> Packet {
        let (own, peer) = (&self.ends[side.index()], &self.ends[side.other().index()]);
        Packet {
            flow: self.id,
            from: own.node,
            to: peer.node,
            client: self.client,
            bytes: HEADERS_TCP,
            payload: 0,
            tag: 0,
            port: self.port,
            kind,
            sender: side,
            fin: false,
            attempt: own.attempt,
            marks: 0,
            hops: 0,
            seq: own.sender.first,
            ack: own.receiver.next,
        }
    }

    fn set(&mut self, fx: &mut Effects, side: Side, which: Which, due: Nanos) {
        let id = self.id;
        let end = self.end(side);
        let timer = match which {
            Which::Resend => &mut end.resend,
            Which::Acknowledge => &mut end.acknowledge,
        };
        if let Some(at) = timer.set(due) {
            fx.engine.schedule(at, Event::Tcp(id, side, which));
        }
    }

    /// Sends the client's SYN; its schedule says what happens if nothing comes.
    pub(super) fn syn(&mut self, fx: &mut Effects) {
        fx.outbox.push_back(self.packet(Side::Client, Kind::Syn));
        self.await_syn_ack(fx, Answer::Silence);
    }

    /// Sends a SYN in the name of a client that does not exist. The record is kept for a while, in
    /// case the SYN is on its way for long.
    pub(super) fn spoof(&mut self, fx: &mut Effects) {
        self.end(Side::Client).state = State::Silent;
        fx.outbox.push_back(self.packet(Side::Client, Kind::Syn));
        let due = fx.engine.now() + SPOOFED_FOR;
        self.set(fx, Side::Client, Which::Resend, due);
    }

    /// Whether a SYN that arrives is of a client that still wants a connection.
    pub(super) const fn is_wanted(&self) -> bool {
        matches!(self.ends[Side::Client.index()].state, State::Syn | State::Silent)
    }

    /// Plans what the client does after this answer to its SYN. False if it has failed now.
    fn await_syn_ack(&mut self, fx: &mut Effects, answer: Answer) -> bool {
        let end = self.end(Side::Client);
        let (pause, gives_up) = match end.spec.schedule.after(usize::from(end.attempt), answer) {
            Reaction::SendsAgain(pause) => (pause, false),
            Reaction::GivesUp(pause) => (pause, true),
            Reaction::Fails => return false,
        };
        end.gives_up = gives_up;
        let due = fx.engine.now() + pause;
        self.set(fx, Side::Client, Which::Resend, due);
        true
    }

    /// Sends the server's SYN-ACK, and again after twice the time.
    fn syn_ack(&mut self, fx: &mut Effects) {
        fx.outbox.push_back(self.packet(Side::Server, Kind::SynAck));
        let end = &self.ends[Side::Server.index()];
        let pause = Nanos(end.spec.rto_initial.0.saturating_mul(1 << end.attempt.min(20)));
        let due = fx.engine.now() + pause;
        self.set(fx, Side::Server, Which::Resend, due);
    }

    /// The server begins a handshake.
    pub(super) fn begin(&mut self, fx: &mut Effects, listener: ListenerId, spec: Arc<TcpSpec>) {
        let window = self.ends[Side::Client.index()].spec.receive_window;
        self.end(Side::Client).sender.peer(spec.receive_window);
        let (node, now) = (self.ends[Side::Server.index()].node, fx.engine.now());
        let end = self.end(Side::Server);
        // What the client wants to write is known to the receiver already.
        let receiver = std::mem::take(&mut end.receiver);
        *end = End { receiver, ..End::new(node, spec, State::SynGot, window, now) };
        self.listener = Some(listener);
        self.syn_ack(fx);
    }

    /// A SYN comes to a server that knows it already.
    pub(super) fn syn_again(&mut self, fx: &mut Effects) {
        let kind = match self.ends[Side::Server.index()].state {
            State::SynGot => Kind::SynAck,
            State::Open | State::Done => Kind::Segment,
            _ => return,
        };
        fx.outbox.push_back(self.packet(Side::Server, kind));
    }

    /// A SYN-ACK comes to the client.
    pub(super) fn syn_ack_comes(&mut self, fx: &mut Effects) {
        let now = fx.engine.now();
        let end = self.end(Side::Client);
        match end.state {
            State::Syn => {
                end.state = State::Open;
                end.resend.stop();
                let trip = (end.attempt == 0).then(|| now - end.began);
                end.sender.open(now, trip);
                fx.outbox.push_back(self.packet(Side::Client, Kind::Segment));
                fx.notices.push_back(Notice::Connected(self.id));
                self.pump(fx, Side::Client);
            }
            State::Dead => self.refuse(fx, Side::Client),
            State::Silent => {}
            _ => fx.outbox.push_back(self.packet(Side::Client, Kind::Segment)),
        }
    }

    /// A dead end answers.
    fn refuse(&self, fx: &mut Effects, side: Side) {
        fx.outbox.push_back(self.packet(side, Kind::Rst));
    }

    /// A segment comes to `side`. `listener` is the server's while its handshake is under way.
    pub(super) fn segment(
        &mut self,
        fx: &mut Effects,
        side: Side,
        packet: &Packet,
        listener: Option<&mut Listener>,
    ) {
        match self.end(side).state {
            State::Dead => return self.refuse(fx, side),
            State::SynGot => {
                let Some(listener) = listener.filter(|_| side == Side::Server) else { return };
                if !listener.takes_ack(self.id) {
                    return;
                }
                self.establish(fx);
            }
            State::Idle | State::Syn | State::Silent => return,
            State::Open | State::Done => {}
        }
        let bare = packet.payload == 0 && !packet.fin;
        self.acknowledged(fx, side, packet.ack, bare);
        let respond = (!bare).then(|| self.receive(fx, side, packet));
        let sent = self.pump(fx, side);
        if let Some(respond) = respond.filter(|_| !sent) {
            self.respond(fx, side, respond);
        }
        self.finish(fx, side);
    }

    /// The server's handshake has ended.
    fn establish(&mut self, fx: &mut Effects) {
        let now = fx.engine.now();
        let listener = self.listener;
        let end = self.end(Side::Server);
        end.state = State::Open;
        end.resend.stop();
        let trip = (end.attempt == 0).then(|| now - end.began);
        end.sender.open(now, trip);
        fx.notices.extend(listener.map(Notice::Ready));
    }

    fn acknowledged(&mut self, fx: &mut Effects, side: Side, ack: u64, bare: bool) {
        let now = fx.engine.now();
        let end = self.end(side);
        let acked = end.sender.acknowledge(now, ack, bare);
        if acked.resend {
            let chunk = end.sender.resend(now);
            self.send(fx, side, chunk);
        }
        let end = self.end(side);
        if acked.restart {
            if end.sender.is_outstanding() {
                let due = now + end.sender.rto.get();
                self.set(fx, side, Which::Resend, due);
            } else {
                end.resend.stop();
            }
        }
    }

    fn receive(&mut self, fx: &mut Effects, side: Side, packet: &Packet) -> Respond {
        let id = self.id;
        let end = self.end(side);
        let window = end.spec.receive_window;
        let respond = end.receiver.take(packet.seq, packet.end(), packet.fin, window);
        while let Some(tag) = end.receiver.message() {
            fx.notices.push_back(Notice::Message(id, side, tag));
        }
        if end.receiver.has_ended() && !end.told {
            end.told = true;
            fx.notices.push_back(Notice::Ended(id, side));
        }
        respond
    }

    fn send(&mut self, fx: &mut Effects, side: Side, chunk: Chunk) {
        let packet = Packet {
            bytes: HEADERS_TCP.saturating_add(chunk.len),
            payload: chunk.len,
            fin: chunk.fin,
            seq: chunk.seq,
            ..self.packet(side, Kind::Segment)
        };
        fx.outbox.push_back(packet);
        let end = self.end(side);
        end.receiver.acknowledged();
        end.acknowledge.stop();
    }

    /// Sends what may be sent now; whether that was something.
    pub(super) fn pump(&mut self, fx: &mut Effects, side: Side) -> bool {
        let now = fx.engine.now();
        let mut sent = false;
        while self.end(side).state == State::Open
            && let Some(chunk) = self.end(side).sender.next(now)
        {
            self.send(fx, side, chunk);
            sent = true;
        }
        let end = self.end(side);
        if sent && !end.resend.is_set() {
            let due = now + end.sender.rto.get();
            self.set(fx, side, Which::Resend, due);
        }
        sent
    }

    fn respond(&mut self, fx: &mut Effects, side: Side, respond: Respond) {
        let end = self.end(side);
        let delay = end.spec.delayed_ack;
        if respond == Respond::Later && delay > Nanos::ZERO {
            if !end.acknowledge.is_set() {
                let due = fx.engine.now() + delay;
                self.set(fx, side, Which::Acknowledge, due);
            }
            return;
        }
        end.receiver.acknowledged();
        end.acknowledge.stop();
        fx.outbox.push_back(self.packet(side, Kind::Segment));
    }

    /// Whether this end has nothing left to do.
    fn finish(&mut self, fx: &mut Effects, side: Side) {
        let end = self.end(side);
        if end.state == State::Open && end.sender.has_ended() && end.receiver.has_ended() {
            end.state = State::Done;
            end.resend.stop();
            if self.ends.iter().all(|end| end.state == State::Done) {
                fx.notices.push_back(Notice::Closed(self.id));
            }
        }
    }

    /// This end is gone.
    pub(super) fn kill(&mut self, side: Side) {
        let end = self.end(side);
        end.state = State::Dead;
        end.resend.stop();
        end.acknowledge.stop();
    }

    fn fail(&mut self, fx: &mut Effects, side: Side, why: Failure) -> After {
        let state = self.end(side).state;
        self.kill(side);
        match state {
            State::Syn => fx.notices.push_back(Notice::Refused(self.id, why)),
            State::Open => fx.notices.push_back(Notice::Failed(self.id, side, why)),
            State::SynGot => return After::Forget,
            State::Idle | State::Silent | State::Done | State::Dead => {}
        }
        After::Goes
    }

    /// A RST comes to `side`.
    pub(super) fn reset(&mut self, fx: &mut Effects, side: Side) -> After {
        if self.end(side).state == State::Syn && self.await_syn_ack(fx, Answer::Reset) {
            return After::Goes;
        }
        if matches!(self.end(side).state, State::Idle | State::Silent) {
            return After::Goes;
        }
        self.fail(fx, side, Failure::Reset)
    }

    /// The application gives up.
    pub(super) fn abort(&mut self, fx: &mut Effects, side: Side) -> After {
        let state = self.end(side).state;
        if matches!(state, State::SynGot | State::Open) {
            self.refuse(fx, side);
        }
        self.kill(side);
        if state == State::SynGot { After::Forget } else { After::Goes }
    }

    /// A timer's event comes.
    pub(super) fn timer(&mut self, fx: &mut Effects, side: Side, which: Which) -> After {
        let now = fx.engine.now();
        let end = self.end(side);
        let timer = match which {
            Which::Resend => &mut end.resend,
            Which::Acknowledge => &mut end.acknowledge,
        };
        let (fires, next) = timer.comes(now);
        if let Some(at) = next {
            fx.engine.schedule(at, Event::Tcp(self.id, side, which));
        }
        if !fires {
            return After::Goes;
        }
        match which {
            Which::Resend => self.resend(fx, side),
            Which::Acknowledge => {
                if self.end(side).receiver.is_pending() {
                    self.end(side).receiver.acknowledged();
                    fx.outbox.push_back(self.packet(side, Kind::Segment));
                }
                After::Goes
            }
        }
    }

    fn resend(&mut self, fx: &mut Effects, side: Side) -> After {
        let end = self.end(side);
        match end.state {
            State::Syn if end.gives_up => return self.fail(fx, side, Failure::TimedOut),
            State::Syn => {
                end.attempt = end.attempt.saturating_add(1);
                self.syn(fx);
            }
            State::SynGot if u32::from(end.attempt) >= end.spec.syn_ack_retries => {
                return self.fail(fx, side, Failure::TimedOut);
            }
            State::SynGot => {
                end.attempt = end.attempt.saturating_add(1);
                self.syn_ack(fx);
            }
            State::Open if end.sender.timeouts >= end.spec.retries_max => {
                return self.fail(fx, side, Failure::TimedOut);
            }
            State::Open => {
                end.sender.timeout();
                self.pump(fx, side);
            }
            State::Idle | State::Silent | State::Done | State::Dead => {}
        }
        After::Goes
    }

    /// Whether the record is of no use to anybody.
    pub(super) fn is_over(&self) -> bool {
        self.ends.iter().all(End::is_over)
    }

    pub(super) fn is_sound(&self) -> bool {
        self.ends.iter().all(|end| end.sender.is_sound())
    }

    pub(super) fn facts(&self, side: Side) -> ConnFacts {
        let end = &self.ends[side.index()];
        let fin = end.receiver.has_ended();
        ConnFacts {
            client: self.client,
            is_open: end.state == State::Open,
            acknowledged: end.sender.first - u64::from(end.sender.has_ended()),
            received: end.receiver.next - u64::from(fin),
            window: end.sender.window,
            threshold: end.sender.threshold,
            flight: end.sender.flight(),
            round_trip: end.sender.rto.smoothed(),
            time_out: end.sender.rto.get(),
            sent_again: end.sender.again,
        }
    }
}
