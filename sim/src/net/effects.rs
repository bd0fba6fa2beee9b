// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the parts of the network leave behind: events to come, packets to send, notices to give.

use super::app::Notice;
use super::packet::{FlowId, LinkId, Packet, Side};
use super::tcp::Which;
use crate::engine::{Classed, Engine};
use std::collections::VecDeque;

/// What happens at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The first packet of a link arrives.
    Arrive(LinkId),
    /// A packet that a hook holds goes on.
    Release(u32),
    /// A timer of an end of a connection.
    Tcp(FlowId, Side, Which),
    /// A source sends its next datagram.
    Udp(u32),
    /// The world wanted to be woken.
    Wake(u64),
}

impl Classed for Event {
    /// At one time packets come before timers: an acknowledgement that is just in time counts.
    fn class(&self) -> u8 {
        match self {
            Self::Arrive(_) | Self::Release(_) => 0,
            Self::Tcp(..) | Self::Udp(_) => 1,
            Self::Wake(_) => 2,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Effects {
    pub(super) engine: Engine<Event>,
    /// Packets that nodes send, in order.
    pub(super) outbox: VecDeque<Packet>,
    /// What applications are to be told, in order.
    pub(super) notices: VecDeque<Notice>,
}
