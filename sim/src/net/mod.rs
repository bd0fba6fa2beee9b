// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A network, packet by packet: links with rate, delay, queue and loss; TCP and datagrams; a hook
//! at each router that wants one.
//!
//! ```text
//!          ┌─ App::ingress: pass, drop, delay, RST ─┐
//! client ──┤ router ──► queue ═ rate ═ delay ═ loss ├─► … ──► server
//!    ▲     └────────────────────────────────────────┘            │
//!    └───────── App::told: connected, message, closed … ◄────────┘
//! ```
//!
//! A [`Graph`] of nodes and links becomes a [`Net`] with a seed. The world around it is an [`App`]:
//! it is told what happens at the ends of connections, and sees packets at hooked nodes. Times are
//! whole nanoseconds, and one seed gives the same bytes on any machine. docs/simulator.md says what
//! is modelled.
//!
//! ```
//! use std::sync::Arc;
//! use tidegate_sim::net::*;
//! use tidegate_units::Nanos;
//!
//! /// Asks for 10 KB; the router drops every second SYN.
//! #[derive(Default)]
//! struct World { syns: u32, got: Option<Nanos> }
//!
//! impl App for World {
//!     fn ingress(&mut self, _: &Net, _: Place, packet: &mut Packet) -> Verdict {
//!         self.syns += u32::from(packet.kind == Kind::Syn);
//!         if packet.kind == Kind::Syn && self.syns % 2 == 1 { Verdict::Drop } else { Verdict::Pass }
//!     }
//!     fn told(&mut self, net: &mut Net, notice: Notice) {
//!         match notice {
//!             Notice::Connected(id) => _ = net.send(id, Side::Client, 300, 10_000),
//!             Notice::Ready(listener) => _ = net.accept(listener),
//!             Notice::Message(id, Side::Server, size) => _ = net.send(id, Side::Server, size, 0),
//!             Notice::Message(_, Side::Client, _) => self.got = Some(net.now()),
//!             _ => {}
//!         }
//!     }
//! }
//!
//! let mut graph = Graph::new();
//! let (client, router, server) = (graph.node(), graph.hooked(), graph.node());
//! graph.both(client, router, LinkSpec::new(2_000_000, Nanos::from_millis(20), 50));
//! graph.both(router, server, LinkSpec::new(100_000_000, Nanos::ZERO, 50));
//! let mut net = Net::new(graph, 1)?;
//! let tcp = Arc::new(TcpSpec::classic());
//! let spec = ListenerSpec { backlog: 128, half_open_max: 128, tcp: Arc::clone(&tcp) };
//! net.listen(server, 80, spec);
//! net.connect(&Connect { from: client, to: server, client: 0, port: 80, tcp });
//! let mut world = World::default();
//! net.run(&mut world, Nanos::from_secs(60));
//! assert!(world.got.is_some_and(|at| at > Nanos::from_secs(3)), "the second SYN came after 3 s");
//! # Ok::<(), GraphError>(())
//! ```

mod app;
mod effects;
mod graph;
mod link;
mod packet;
mod queue;
mod tap;
mod tcp;
mod udp;

pub use app::{App, Failure, Notice, Place, Quiet, Verdict};
pub use graph::{Graph, GraphError, NODES_MAX};
pub use link::{Count, LinkCounts, LinkSpec};
pub use packet::{FlowId, HEADERS_TCP, HEADERS_UDP, Kind, LinkId, NodeId, Packet, Side};
pub use queue::{Limit, QueueSpec, RedSpec};
pub use tap::{Filter, TapId, Tapped};
pub use tcp::{ConnFacts, Connect, ListenerCounts, ListenerId, ListenerSpec, TcpSpec};
pub use udp::{Times, UdpCounts, UdpSpec};

use effects::{Effects, Event};
use graph::Routes;
use link::Link;
use tap::Taps;
use tcp::{Listeners, Table};
use tidegate_units::{Clock as _, Nanos};
use udp::Source;

/// Links after which a packet has gone in circles.
const HOPS_MAX: u8 = 64;

/// What has happened in a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetCounts {
    /// Events: packets that arrived at the end of a link, timers, datagrams sent.
    pub events: u64,
    /// Packets that nodes sent.
    pub sent: u64,
    /// Packets that arrived at the node they were for.
    pub delivered: u64,
    /// Packets that hooks dropped, or turned into a RST.
    pub refused: u64,
    /// Packets that no link leads to the destination of.
    pub no_route: u64,
    /// Packets that went in circles.
    pub looped: u64,
    /// Packets for connections that have ended.
    pub stale: u64,
}

/// A network that runs. Its parts are made by a [`Graph`].
#[derive(Debug)]
pub struct Net {
    fx: Effects,
    links: Vec<Link>,
    routes: Routes,
    hooked: Vec<bool>,
    taps: Taps,
    /// Packets that hooks delay, and where.
    held: Vec<Option<(NodeId, Packet)>>,
    free: Vec<u32>,
    conns: Table,
    /// Connections that have ended; their records go when the world has been told.
    ended: Vec<FlowId>,
    listeners: Listeners,
    sources: Vec<Source>,
    counts: NetCounts,
}

impl Net {
    /// The network of this graph. Random loss and RED draw from `seed`.
    ///
    /// # Errors
    /// A graph that is none.
    pub fn new(graph: Graph, seed: u64) -> Result<Self, GraphError> {
        let (links, routes, hooked) = graph.parts(seed)?;
        Ok(Self {
            fx: Effects::default(),
            taps: Taps::new(links.len()),
            links,
            routes,
            hooked,
            held: Vec::new(),
            free: Vec::new(),
            conns: Table::default(),
            ended: Vec::new(),
            listeners: Listeners::default(),
            sources: Vec::new(),
            counts: NetCounts::default(),
        })
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.fx.engine.now()
    }

    /// Runs until a time, which is then the time.
    pub fn run(&mut self, app: &mut impl App, until: Nanos) {
        self.settle(app);
        while let Some(event) = self.fx.engine.step_until(until) {
            self.counts.events += 1;
            match event {
                Event::Arrive(link) => self.arrive(app, link),
                Event::Release(slot) => self.release(app, slot),
                Event::Tcp(id, side, which) => self.tcp_timer(id, side, which),
                Event::Udp(slot) => self.datagram(slot),
                Event::Wake(token) => self.fx.notices.push_back(Notice::Woken(token)),
            }
            self.settle(app);
        }
    }

    /// Asks for [`Notice::Woken`] at a time; one in the past is now.
    pub fn wake(&mut self, at: Nanos, token: u64) {
        let at = at.max(self.now());
        self.fx.engine.schedule(at, Event::Wake(token));
    }

    /// Adds a source of datagrams; its number.
    pub fn datagrams(&mut self, spec: UdpSpec, times: Times) -> usize {
        let slot = self.sources.len();
        let mut source = Source::new(spec, times);
        let first = source.times.next();
        self.sources.push(source);
        self.next_datagram(slot as u32, first);
        slot
    }

    fn next_datagram(&mut self, slot: u32, at: Option<Nanos>) {
        if let Some(at) = at {
            let at = at.max(self.now());
            self.fx.engine.schedule(at, Event::Udp(slot));
        }
    }

    fn datagram(&mut self, slot: u32) {
        let source = &mut self.sources[slot as usize];
        let packet = source.send(slot);
        let next = source.times.next();
        self.fx.outbox.push_back(packet);
        self.next_datagram(slot, next);
    }

    /// Sends what is to be sent, and tells what is to be told, until nothing is left.
    fn settle(&mut self, app: &mut impl App) {
        loop {
            if let Some(packet) = self.fx.outbox.pop_front() {
                self.counts.sent += 1;
                self.pass(app, packet.from, None, packet);
            } else if let Some(notice) = self.fx.notices.pop_front() {
                app.told(self, notice);
            } else {
                self.ended.drain(..).for_each(|id| self.conns.remove(id));
                return;
            }
        }
    }

    fn arrive(&mut self, app: &mut impl App, id: LinkId) {
        let now = self.now();
        let link = &mut self.links[id.0 as usize];
        let (packet, next) = link.arrive(now);
        let to = link.to;
        if let Some(at) = next {
            self.fx.engine.schedule(at, Event::Arrive(id));
        }
        if let Some(mut packet) = packet {
            self.taps.see(id, &packet);
            packet.hops = packet.hops.saturating_add(1);
            self.pass(app, to, Some(id), packet);
        }
    }

    /// A packet is at a node: the hook sees it, and it goes on.
    fn pass(&mut self, app: &mut impl App, node: NodeId, came: Option<LinkId>, mut packet: Packet) {
        if self.hooked[node.0 as usize] {
            let leaves = if node == packet.to { None } else { self.routes.next(node, packet.to) };
            match app.ingress(self, Place { node, came, leaves }, &mut packet) {
                Verdict::Pass => {}
                Verdict::Drop => {
                    self.counts.refused += 1;
                    return;
                }
                Verdict::Delay(pause) => return self.hold(node, packet, pause),
                Verdict::Reset => {
                    self.counts.refused += 1;
                    if packet.is_tcp() && packet.kind != Kind::Rst {
                        self.forward(node, packet.reset());
                    }
                    return;
                }
            }
        }
        self.forward(node, packet);
    }

    fn hold(&mut self, node: NodeId, packet: Packet, pause: Nanos) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.held.push(None);
            self.held.len() as u32 - 1
        });
        self.held[slot as usize] = Some((node, packet));
        self.fx.engine.after(pause, Event::Release(slot));
    }

    fn release(&mut self, _app: &mut impl App, slot: u32) {
        if let Some((node, packet)) = self.held[slot as usize].take() {
            self.free.push(slot);
            self.forward(node, packet);
        }
    }

    /// Delivers a packet, or gives it to the next link.
    fn forward(&mut self, node: NodeId, packet: Packet) {
        if node == packet.to {
            return self.deliver(&packet);
        }
        let Some(id) = self.routes.next(node, packet.to) else {
            self.counts.no_route += 1;
            return;
        };
        if packet.hops >= HOPS_MAX {
            self.counts.looped += 1;
            return;
        }
        let now = self.now();
        if let Some(at) = self.links[id.0 as usize].offer(now, packet) {
            self.fx.engine.schedule(at, Event::Arrive(id));
        }
    }

    fn deliver(&mut self, packet: &Packet) {
        self.counts.delivered += 1;
        if packet.is_tcp() {
            return self.tcp_arrives(packet);
        }
        self.sources[packet.flow.slot as usize].counts.arrived.add(packet);
    }

    /// What has happened so far.
    #[must_use]
    pub const fn counts(&self) -> &NetCounts {
        &self.counts
    }

    /// What became of the packets of a link.
    #[must_use]
    pub fn link(&self, link: LinkId) -> LinkCounts {
        self.links[link.0 as usize].counts
    }

    /// Packets that wait in front of a link; the one that is being sent does not.
    #[must_use]
    pub fn waiting(&self, link: LinkId) -> usize {
        self.links[link.0 as usize].waiting(self.now())
    }

    /// RED's average queue in front of a link, as of the last packet; none without RED.
    #[must_use]
    pub fn average(&self, link: LinkId) -> Option<f64> {
        self.links[link.0 as usize].average()
    }

    /// What a source of datagrams has sent, and what arrived.
    #[must_use]
    pub fn source(&self, source: usize) -> UdpCounts {
        self.sources.get(source).map_or_else(UdpCounts::default, |source| source.counts)
    }

    /// Counts packets that arrive at the end of a link.
    pub fn tap(&mut self, link: LinkId, filter: Filter) -> TapId {
        self.taps.add(link, filter)
    }

    /// What a tap has counted.
    #[must_use]
    pub fn tapped(&self, tap: TapId) -> Tapped {
        self.taps.get(tap)
    }

    /// Looks through the books: at each link every packet is somewhere, the ends of connections
    /// agree with themselves, and nothing was scheduled for the past.
    ///
    /// # Errors
    /// The first thing that does not agree.
    pub fn audit(&self) -> Result<(), String> {
        if let Some(link) = self.links.iter().position(|link| !link.is_sound()) {
            return Err(format!("link {link} has lost count: {:?}", self.links[link].counts));
        }
        if !self.conns.is_sound() {
            return Err("the positions of a connection are out of order".to_owned());
        }
        if self.listeners.half_open() > self.conns.live() {
            return Err("more handshakes than connections".to_owned());
        }
        match self.fx.engine.late() {
            0 => Ok(()),
            late => Err(format!("{late} events were scheduled for the past")),
        }
    }
}
