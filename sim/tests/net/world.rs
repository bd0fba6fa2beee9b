// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A world for tests: notes packets at hooked nodes, drops chosen ones, serves what is asked for.

use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_sim::net::{
    App, Connect, FlowId, Graph, Kind, LinkSpec, ListenerId, ListenerSpec, Net, NodeId, Notice,
    Packet, Place, QueueSpec, Side, TcpSpec, Verdict,
};
use tidegate_units::Nanos;

pub(crate) const MS: fn(u64) -> Nanos = Nanos::from_millis;
pub(crate) const PORT: u16 = 80;
/// A byte in a nanosecond: next to nothing beside milliseconds.
pub(crate) const FAST: u64 = 8_000_000_000;

/// A packet as a hook saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) at: Nanos,
    pub(crate) packet: Packet,
}

impl Seen {
    pub(crate) fn ms(&self) -> u64 {
        self.at.0 / 1_000_000
    }
}

type Judge = Box<dyn FnMut(&Packet) -> Verdict>;

/// Accepts at once, and answers each message with as many bytes as its tag says.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) seen: Vec<Seen>,
    pub(crate) notices: Vec<(Nanos, Notice)>,
    /// What the hook does with a packet.
    pub(crate) judge: Option<Judge>,
    pub(crate) accepts: bool,
    /// Bytes that each connection asks for as soon as it is there.
    pub(crate) asks: BTreeMap<FlowId, u64>,
    /// The server closes behind its response.
    pub(crate) closes: bool,
    pub(crate) notes: bool,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { accepts: true, notes: true, ..Self::default() }
    }

    pub(crate) fn judged(judge: impl FnMut(&Packet) -> Verdict + 'static) -> Self {
        Self { judge: Some(Box::new(judge)), ..Self::new() }
    }

    pub(crate) fn times(&self, wanted: impl Fn(&Notice) -> bool) -> Vec<u64> {
        let found = self.notices.iter().filter(|(_, notice)| wanted(notice));
        found.map(|(at, _)| at.0 / 1_000_000).collect()
    }

    pub(crate) fn of(&self, kind: Kind, sender: Side) -> Vec<Seen> {
        let wanted = |seen: &&Seen| seen.packet.kind == kind && seen.packet.sender == sender;
        self.seen.iter().filter(wanted).copied().collect()
    }

    /// Segments of this side that carry payload.
    pub(crate) fn data(&self, sender: Side) -> Vec<Seen> {
        let mut data = self.of(Kind::Segment, sender);
        data.retain(|seen| seen.packet.payload > 0);
        data
    }
}

impl App for World {
    fn ingress(&mut self, net: &Net, place: Place, packet: &mut Packet) -> Verdict {
        assert!(place.came.is_some() || packet.from == place.node);
        if self.notes {
            self.seen.push(Seen { at: net.now(), packet: *packet });
        }
        self.judge.as_mut().map_or(Verdict::Pass, |judge| judge(packet))
    }

    fn told(&mut self, net: &mut Net, notice: Notice) {
        self.notices.push((net.now(), notice));
        match notice {
            Notice::Ready(listener) if self.accepts => {
                net.accept(listener).expect("one is ready");
            }
            Notice::Connected(id) => {
                if let Some(bytes) = self.asks.get(&id) {
                    assert!(net.send(id, Side::Client, 100, *bytes));
                }
            }
            Notice::Message(id, Side::Server, bytes) => {
                net.send(id, Side::Server, bytes, 0);
                if self.closes {
                    net.close(id, Side::Server);
                }
            }
            Notice::Ended(id, Side::Client) => net.close(id, Side::Client),
            _ => {}
        }
    }
}

/// client – router (hooked) – server, 100 ms there and back, all of it behind the router.
pub(crate) struct Line {
    pub(crate) net: Net,
    pub(crate) client: NodeId,
    pub(crate) server: NodeId,
}

pub(crate) fn line(queue: QueueSpec, rate: u64) -> Line {
    let mut graph = Graph::new();
    let (client, router, server) = (graph.node(), graph.hooked(), graph.node());
    let near = LinkSpec::new(FAST, Nanos::ZERO, 10_000);
    let far = LinkSpec { rate, delay: MS(50), queue, loss: 0.0 };
    graph.both(client, router, near);
    graph.both(router, server, far);
    let net = Net::new(graph, 1).expect("a graph");
    Line { net, client, server }
}

impl Line {
    pub(crate) fn fast() -> Self {
        line(QueueSpec::packets(10_000), FAST)
    }

    pub(crate) fn listen(&mut self, backlog: usize, tcp: TcpSpec) -> ListenerId {
        let spec = ListenerSpec { backlog, half_open_max: 1000, tcp: Arc::new(tcp) };
        self.net.listen(self.server, PORT, spec)
    }

    pub(crate) fn connect(&mut self, tcp: TcpSpec) -> FlowId {
        let (from, to) = (self.client, self.server);
        let tcp = Arc::new(tcp);
        self.net.connect(&Connect { from, to, client: 7, port: PORT, tcp })
    }
}
