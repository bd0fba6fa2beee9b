// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Listeners: connections that are half open, and those that wait to be accepted.

use super::super::packet::{FlowId, NodeId};
use super::spec::TcpSpec;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A listening port of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListenerId(pub(super) u32);

/// What a listener holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSpec {
    /// Connections that may wait to be accepted. While they do, SYNs are ignored, and so is the
    /// end of a handshake, as Linux does.
    pub backlog: usize,
    /// Handshakes that may be under way. SYNs beyond are ignored; there are no SYN cookies.
    pub half_open_max: usize,
    /// How the server's end of each connection behaves.
    pub tcp: Arc<TcpSpec>,
}

/// What a listener has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerCounts {
    /// SYNs that began a handshake.
    pub begun: u64,
    /// SYNs that were ignored: no room.
    pub syns_ignored: u64,
    /// Ends of handshakes that were ignored: no room in the accept queue.
    pub acks_ignored: u64,
    /// Handshakes that have ended.
    pub established: u64,
    /// Handshakes whose client was not heard of again, or was reset.
    pub forgotten: u64,
}

#[derive(Debug)]
pub(in crate::net) struct Listener {
    pub(super) spec: ListenerSpec,
    pub(super) queue: VecDeque<FlowId>,
    pub(super) half_open: usize,
    pub(super) counts: ListenerCounts,
}

impl Listener {
    pub(super) fn is_full(&self) -> bool {
        self.queue.len() >= self.spec.backlog
    }

    /// Whether a SYN begins a handshake.
    pub(super) fn takes_syn(&mut self) -> bool {
        if self.is_full() || self.half_open >= self.spec.half_open_max {
            self.counts.syns_ignored += 1;
            return false;
        }
        self.counts.begun += 1;
        self.half_open += 1;
        true
    }

    /// Whether a handshake may end.
    pub(super) fn takes_ack(&mut self, id: FlowId) -> bool {
        if self.is_full() {
            self.counts.acks_ignored += 1;
            return false;
        }
        self.half_open -= 1;
        self.counts.established += 1;
        self.queue.push_back(id);
        true
    }

    /// A handshake will not end.
    pub(super) const fn forgets(&mut self) {
        self.half_open -= 1;
        self.counts.forgotten += 1;
    }
}

#[derive(Debug, Default)]
pub(in crate::net) struct Listeners {
    all: Vec<Listener>,
    by_port: BTreeMap<(NodeId, u16), ListenerId>,
}

impl Listeners {
    /// Listens; instead of whoever listened there before.
    pub(super) fn add(&mut self, node: NodeId, port: u16, spec: ListenerSpec) -> ListenerId {
        let id = ListenerId(self.all.len() as u32);
        let (queue, counts) = (VecDeque::new(), ListenerCounts::default());
        self.all.push(Listener { spec, queue, half_open: 0, counts });
        self.by_port.insert((node, port), id);
        id
    }

    pub(super) fn at(&self, node: NodeId, port: u16) -> Option<ListenerId> {
        self.by_port.get(&(node, port)).copied()
    }

    pub(super) fn get(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.all.get_mut(id.0 as usize)
    }

    pub(super) fn look(&self, id: ListenerId) -> Option<&Listener> {
        self.all.get(id.0 as usize)
    }

    pub(in crate::net) fn half_open(&self) -> usize {
        self.all.iter().map(|listener| listener.half_open).sum()
    }
}
