// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What applications do with connections, and what the network does to them.

use super::super::Net;
use super::super::effects::Effects;
use super::super::packet::{FlowId, Kind, NodeId, Packet, Side};
use super::conn::{After, Conn, ConnFacts, State, Which};
use super::listen::{ListenerCounts, ListenerId, ListenerSpec};
use super::spec::TcpSpec;
use std::sync::Arc;
use tidegate_units::Clock as _;

/// A connection that a client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    /// The client's node.
    pub from: NodeId,
    /// The server's node.
    pub to: NodeId,
    /// Which client ([`Packet::client`]).
    pub client: u32,
    /// Port of the service.
    pub port: u16,
    /// How the client's end behaves.
    pub tcp: Arc<TcpSpec>,
}

impl Net {
    /// Listens at a port. Whoever listened there before gets no further connections.
    pub fn listen(&mut self, node: NodeId, port: u16, spec: ListenerSpec) -> ListenerId {
        self.listeners.add(node, port, spec)
    }

    /// Takes the connection that has waited longest. It may have ended meanwhile.
    pub fn accept(&mut self, listener: ListenerId) -> Option<FlowId> {
        self.listeners.get(listener)?.queue.pop_front()
    }

    /// Connections that wait to be accepted.
    #[must_use]
    pub fn acceptable(&self, listener: ListenerId) -> usize {
        self.listeners.look(listener).map_or(0, |listener| listener.queue.len())
    }

    /// What a listener has done.
    #[must_use]
    pub fn listener(&self, listener: ListenerId) -> ListenerCounts {
        self.listeners.look(listener).map_or_else(Default::default, |listener| listener.counts)
    }

    /// Begins a connection: sends a SYN.
    pub fn connect(&mut self, wanted: &Connect) -> FlowId {
        self.begin(wanted, Conn::syn)
    }

    /// Sends one SYN in the name of a client that does not exist. Nobody answers the SYN-ACK.
    pub fn spoof(&mut self, wanted: &Connect) -> FlowId {
        self.begin(wanted, Conn::spoof)
    }

    fn begin(&mut self, wanted: &Connect, first: fn(&mut Conn, &mut Effects)) -> FlowId {
        let Connect { from, to, client, port, tcp } = wanted;
        let (now, specs) = (self.fx.engine.now(), [Arc::clone(tcp), Arc::clone(tcp)]);
        let id = self.conns.add(Conn::new(now, (*client, *port), [*from, *to], specs));
        if let Some(conn) = self.conns.get(id) {
            conn.named(id);
            first(conn, &mut self.fx);
        }
        id
    }

    /// Writes a message of so many bytes, at least one, to this side's stream; the peer is told its
    /// tag when all of it is there. False if the connection has ended, or this side has closed it.
    pub fn send(&mut self, id: FlowId, side: Side, bytes: u64, tag: u64) -> bool {
        let Some(conn) = self.conns.get(id) else { return false };
        if !matches!(conn.end(side).state, State::Syn | State::Open) {
            return false;
        }
        let Some(end) = conn.end(side).sender.write(bytes.max(1)) else { return false };
        conn.end(side.other()).receiver.expect(end, tag);
        conn.pump(&mut self.fx, side);
        true
    }

    /// Ends this side's stream, behind what was written. The peer may go on sending.
    pub fn close(&mut self, id: FlowId, side: Side) {
        let Some(conn) = self.conns.get(id) else { return };
        conn.end(side).sender.finish();
        conn.pump(&mut self.fx, side);
    }

    /// Ends a connection at once; the peer gets a RST if it knows of the connection.
    pub fn abort(&mut self, id: FlowId, side: Side) {
        let Some(conn) = self.conns.get(id) else { return };
        let after = conn.abort(&mut self.fx, side);
        self.after(id, after);
    }

    /// One end of a connection; none if it has ended.
    #[must_use]
    pub fn connection(&self, id: FlowId, side: Side) -> Option<ConnFacts> {
        self.conns.look(id).map(|conn| conn.facts(side))
    }

    /// Connections that have not ended at both sides.
    #[must_use]
    pub const fn connections(&self) -> usize {
        self.conns.live()
    }

    /// Brings books in order after something has happened to a connection.
    fn after(&mut self, id: FlowId, after: After) {
        let Some(conn) = self.conns.look(id) else { return };
        let over = conn.is_over();
        if after == After::Forget
            && let Some(listener) = conn.listener
            && let Some(listener) = self.listeners.get(listener)
        {
            listener.forgets();
        }
        if over {
            self.ended.push(id); // the world is told first
        }
    }

    /// A packet of a connection has reached its node.
    pub(in crate::net) fn tcp_arrives(&mut self, packet: &Packet) {
        let (id, side) = (packet.flow, packet.sender.other());
        let Some(conn) = self.conns.get(id) else {
            self.counts.stale += 1;
            return;
        };
        let fx = &mut self.fx;
        let mut after = After::Goes;
        match packet.kind {
            Kind::Syn => return self.syn_arrives(packet),
            Kind::SynAck => conn.syn_ack_comes(fx),
            Kind::Segment => {
                let listener = conn.listener.and_then(|id| self.listeners.get(id));
                conn.segment(fx, side, packet, listener);
            }
            Kind::Rst => after = conn.reset(fx, side),
            Kind::Udp => {}
        }
        self.after(id, after);
    }

    fn syn_arrives(&mut self, packet: &Packet) {
        let Some(conn) = self.conns.get(packet.flow) else { return };
        let is_new = matches!(conn.end(Side::Server).state, State::Idle | State::Dead);
        if !is_new {
            return conn.syn_again(&mut self.fx);
        }
        let Some(id) = self.listeners.at(packet.to, packet.port) else {
            self.fx.outbox.push_back(packet.reset());
            return;
        };
        if conn.is_wanted()
            && let Some(listener) = self.listeners.get(id)
            && listener.takes_syn()
        {
            conn.begin(&mut self.fx, id, Arc::clone(&listener.spec.tcp));
        }
    }

    /// A timer's event has come.
    pub(in crate::net) fn tcp_timer(&mut self, id: FlowId, side: Side, which: Which) {
        if let Some(conn) = self.conns.get(id) {
            let after = conn.timer(&mut self.fx, side, which);
            self.after(id, after);
        }
    }
}
