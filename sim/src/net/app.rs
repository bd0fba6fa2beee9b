// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a world adds to the network: applications at its ends, and a hook at its routers.

use super::Net;
use super::packet::{FlowId, LinkId, NodeId, Packet, Side};
use super::tcp::ListenerId;
use tidegate_units::Nanos;

/// Where a hook sees a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The node.
    pub node: NodeId,
    /// The link it came by; none if this node sends it.
    pub came: Option<LinkId>,
    /// The link it will take; none if it is for this node.
    pub leaves: Option<LinkId>,
}

/// What a hook does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    Pass,
    /// It is gone, and nobody is told.
    Drop,
    /// It goes on after a pause, and the hook does not see it again.
    Delay(Nanos),
    /// It is gone, and its sender is told by a RST in the name of its destination. For datagrams
    /// and for a RST this is [`Verdict::Drop`].
    Reset,
}

/// Why a connection ended before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A RST came.
    Reset,
    /// Nothing came for too long.
    TimedOut,
}

/// What an application is told. While it is told that a connection has ended,
/// [`Net::connection`] still knows it. Operations on one that has ended do nothing, so a late reaction
/// does no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// At the client: the handshake has ended.
    Connected(FlowId),
    /// At the client: there will be no connection.
    Refused(FlowId, Failure),
    /// At the server: a connection waits to be accepted ([`Net::accept`]).
    Ready(ListenerId),
    /// At this side: a message of the peer is here, up to its last byte. It may come before its
    /// connection is accepted.
    Message(FlowId, Side, u64),
    /// At this side: the peer has ended its stream, everything has arrived.
    Ended(FlowId, Side),
    /// Both streams have ended, and both sides know.
    Closed(FlowId),
    /// At this side: the connection is gone.
    Failed(FlowId, Side, Failure),
    /// A time that the world asked for ([`Net::wake`]).
    Woken(u64),
}

/// A world around the network.
pub trait App {
    /// A packet passes a hooked node: it arrives there, whether it is for this node or not, or the
    /// node sends it. The hook may change size, marks and tag of the packet.
    fn ingress(&mut self, _net: &Net, _place: Place, _packet: &mut Packet) -> Verdict {
        Verdict::Pass
    }

    /// Something has happened. Notices come one at a time, in order, at the time of the event.
    fn told(&mut self, _net: &mut Net, _notice: Notice) {}
}

/// A world in which nobody reacts: for datagrams alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quiet;

impl App for Quiet {}
