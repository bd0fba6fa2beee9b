// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Topology, messages between routers and servers, and what is measured.

use super::load::{Load, PORT, side};
use super::outcome::{Bin, Outcome};
use super::router::{Limit, Router, forged};
use super::server::{Notice, Server};
use super::spec::{Control, NetdrainoSpec};
use super::{PACKET, RCN, RELAYED, SCN, SERVERS, TICK};
use crate::net::{
    App, FlowId, Graph, LinkId, LinkSpec, ListenerSpec, Net, NodeId, Notice as Told, Packet, Place,
    QueueSpec, RedSpec, Side, TcpSpec, Verdict,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_units::{Nanos, Random as _};
use tidegate_workload::Rng;

/// Bits per second of all other links.
const FAST: u64 = 1_000_000_000;
/// A message takes so long from one host to another.
const MESSAGE: Nanos = Nanos::from_millis(20);
/// Ticks between two notices of a congested router.
const NOTICE_TICKS: u64 = 10;
/// At least so many, when what comes has changed.
const SOON_TICKS: u64 = 2;
/// A connection that has failed is opened again after this.
const AGAIN: Nanos = Nanos::SECOND;
/// A client relays SCN for so long.
const RELAYS: Nanos = Nanos::SECOND;

/// What a wake is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wake {
    Tick,
    Second,
    Open(usize),
    Write(usize),
    Message(u64),
}

impl Wake {
    const fn token(self) -> u64 {
        match self {
            Self::Tick => 0,
            Self::Second => 1,
            Self::Open(conn) => (1 << 56) | conn as u64,
            Self::Write(conn) => (2 << 56) | conn as u64,
            Self::Message(number) => (3 << 56) | number,
        }
    }

    const fn of(token: u64) -> Self {
        let low = token & ((1 << 56) - 1);
        match (token >> 56, low) {
            (0, 0) => Self::Tick,
            (0, _) => Self::Second,
            (1, conn) => Self::Open(conn as usize),
            (2, conn) => Self::Write(conn as usize),
            (_, number) => Self::Message(number),
        }
    }
}

/// Under way between hosts.
enum Message {
    Notice(usize, Notice),
    Limit(usize, Limit),
}

struct World<'a> {
    spec: &'a NetdrainoSpec,
    places: Places,
    load: Load,
    routers: Vec<Router>,
    servers: Vec<Server>,
    messages: BTreeMap<u64, Message>,
    number: u64,
    /// Limits that servers send: a hook cannot.
    pending: Vec<(usize, Limit)>,
    notices: u64,
    ticks: u64,
    random: Rng,
    /// Until when which clients relay for which servers.
    relays: BTreeMap<(NodeId, NodeId), Nanos>,
    bin: Bin,
    before: Before,
    out: Outcome,
}

#[derive(Default)]
struct Before {
    bytes: u64,
    dropped: u64,
    arrived: u64,
    accepted: u64,
    others: u64,
}

/// Where all are.
struct Places {
    clients: Vec<NodeId>,
    servers: Vec<NodeId>,
    routers: Vec<(NodeId, Option<LinkId>)>,
}

fn network(spec: &NetdrainoSpec) -> (Graph, Places) {
    let mut graph = Graph::new();
    let fast = |ms| LinkSpec::new(FAST, Nanos::from_millis(ms), 10_000);
    let core = graph.hooked();
    let servers: Vec<NodeId> = (0..SERVERS).map(|_| graph.hooked()).collect();
    servers.iter().for_each(|server| _ = graph.both(core, *server, fast(1)));
    let rate = (spec.network / 2.0 * f64::from(PACKET) * 8.0) as u64;
    let queue = QueueSpec::red(spec.queue, RedSpec::NS2);
    let slow = LinkSpec { queue, ..LinkSpec::new(rate, Nanos::from_millis(10), spec.queue) };
    let mut routers = vec![(core, None)];
    for _ in 0..2 {
        let router = graph.hooked();
        let link = graph.link(router, core, slow);
        graph.link(core, router, fast(10));
        routers.push((router, Some(link)));
    }
    let client = |client: u32| {
        let node = if spec.relay { graph.hooked() } else { graph.node() };
        let router = routers[1 + side(client) as usize].0;
        // 5 to 29 ms: the paper prints none.
        graph.both(router, node, fast(5 + u64::from(client)));
        if spec.asymmetric {
            graph.link(core, node, fast(10));
        }
        node
    };
    let clients = (0..spec.clients).map(client).collect();
    (graph, Places { clients, servers, routers })
}

/// Runs a setting.
///
/// # Errors
/// When a value is out of range, or the books of the network do not agree.
pub fn run(spec: &NetdrainoSpec) -> Result<Outcome, String> {
    let (graph, places) = network(spec);
    let mut net = Net::new(graph, spec.seed).map_err(|error| error.to_string())?;
    for server in &places.servers {
        let tcp = Arc::new(TcpSpec::classic());
        net.listen(*server, PORT, ListenerSpec { backlog: 1 << 20, half_open_max: 1 << 20, tcp });
    }
    let ends = (&places.clients[..], &places.servers[..]);
    Load::datagrams(spec, &mut net, ends);
    let (load, begins) = Load::new(spec, ends).ok_or("the times of connections")?;
    let router = |(number, (node, link)): (usize, &(NodeId, Option<LinkId>))| {
        Router::new(spec, (number, *node), *link)
    };
    let servers = (0..SERVERS).map(|number| Server::new(spec, number));
    let mut world = World {
        spec,
        load,
        routers: places.routers.iter().enumerate().map(router).collect(),
        servers: servers.collect::<Result<_, _>>().map_err(|error| error.to_string())?,
        places,
        messages: BTreeMap::new(),
        number: 0,
        pending: Vec::new(),
        notices: 0,
        ticks: 0,
        random: Rng::new(spec.seed, 0x4e44_2000),
        relays: BTreeMap::new(),
        bin: Bin::default(),
        before: Before::default(),
        out: Outcome::default(),
    };
    for (conn, at) in begins.into_iter().enumerate() {
        net.wake(at, Wake::Open(conn).token());
    }
    net.wake(TICK, Wake::Tick.token());
    net.wake(Nanos::SECOND, Wake::Second.token());
    net.run(&mut world, spec.lasts);
    net.audit()?;
    world.out.events = net.counts().events;
    Ok(world.out)
}

impl World<'_> {
    fn server_of(&self, node: NodeId) -> Option<usize> {
        self.places.servers.iter().position(|server| *server == node)
    }

    fn send(&mut self, net: &mut Net, message: Message) {
        self.number += 1;
        self.messages.insert(self.number, message);
        net.wake(net.now() + MESSAGE, Wake::Message(self.number).token());
    }

    fn tick(&mut self, net: &mut Net) {
        self.ticks += 1;
        for (router, limit) in std::mem::take(&mut self.pending) {
            self.bin.limits += 1;
            self.send(net, Message::Limit(router, limit));
        }
        self.servers.iter_mut().for_each(Server::tick);
        for number in 0..self.routers.len() {
            let begun = self.routers[number].tick(net);
            let due = self.ticks.is_multiple_of(NOTICE_TICKS);
            let soon = self.ticks.is_multiple_of(SOON_TICKS);
            let router = &self.routers[number];
            let wants = begun || due || (soon && router.has_changed());
            if self.spec.control == Control::OutOfBand && router.is_congested() && wants {
                self.notify(net, number);
            }
        }
        if let Control::Naive(hops) = self.spec.control
            && self.ticks.is_multiple_of(NOTICE_TICKS)
        {
            self.distribute(net, hops);
        }
        net.wake(net.now() + TICK, Wake::Tick.token());
    }

    /// A congested router tells all servers what it carries for them. The notice crosses its own link, and
    /// is lost with the share that is lost there.
    fn notify(&mut self, net: &mut Net, router: usize) {
        self.notices += 1;
        self.routers[router].tells();
        for server in 0..SERVERS {
            let own = &self.routers[router];
            let parts = [own.part(2 * server), own.part(2 * server + 1)];
            if parts.iter().all(|part| part.offered.get() < 1e-3) {
                continue;
            }
            self.bin.notices += 1;
            if self.random.next_f64() < own.loss {
                continue;
            }
            let notice = Notice { router, sequence: self.notices, parts };
            self.send(net, Message::Notice(server, notice));
        }
    }

    /// The intuitive way (section 2.1): the whole rule, to all routers within so many links.
    fn distribute(&mut self, net: &mut Net, hops: u32) {
        for server in 0..SERVERS {
            for limit in self.servers[server].exceeded() {
                for router in 0..self.routers.len() {
                    let far = if self.routers[router].link.is_some() { 2 } else { 1 };
                    if far <= hops {
                        self.bin.limits += 1;
                        self.send(net, Message::Limit(router, limit));
                    }
                }
            }
        }
    }

    fn deliver(&mut self, net: &mut Net, number: u64) {
        let now = net.now();
        match self.messages.remove(&number) {
            Some(Message::Notice(server, notice)) => {
                let router = notice.router;
                for limit in self.servers[server].notice(notice, now) {
                    self.bin.limits += 1;
                    self.send(net, Message::Limit(router, limit));
                }
            }
            Some(Message::Limit(router, limit)) => {
                let ttl = self.spec.pushback.ttl_min();
                let Some(router) = self.routers.get_mut(router) else { return };
                let congested = router.is_congested();
                let clamped = self.spec.control == Control::OutOfBand;
                let taken = router.limit(&limit, (ttl, clamped), now);
                self.out.needless += u64::from(!congested);
                self.out.refused_limits += u64::from(!taken);
                if taken && self.out.first_limit.is_none() {
                    self.out.first_limit = Some(now);
                }
            }
            None => {}
        }
    }

    fn second(&mut self, net: &mut Net) {
        let (now, mut bytes, mut dropped, mut limited) = (net.now(), 0, 0, 0);
        let bin = &mut self.bin;
        for router in &mut self.routers {
            let counted = std::mem::take(&mut router.counted);
            bin.offered += counted.offered;
            bin.refused += counted.refused;
            bin.refused_others += counted.refused_others;
            bin.option_bytes += counted.option_bytes;
            bin.congested += u64::from(router.is_congested());
            if let Some(limit) = router.limited(now) {
                bin.limit += limit;
                limited += 1;
            }
            if let Some(link) = router.link {
                bytes += net.link(link).delivered.bytes;
                dropped += net.link(link).dropped();
            }
        }
        self.out.limited_routers = self.out.limited_routers.max(limited);
        let others = self.servers[1..].iter().map(|server| server.accepted).sum::<u64>();
        let (arrived, accepted) = (self.servers[0].arrived, self.servers[0].accepted);
        let before = &self.before;
        (bin.bytes, bin.dropped) = (bytes - before.bytes, dropped - before.dropped);
        (bin.arrived, bin.accepted) = (arrived - before.arrived, accepted - before.accepted);
        bin.others = others - before.others;
        self.before = Before { bytes, dropped, arrived, accepted, others };
        self.out.bins.push(std::mem::take(bin));
        net.wake(now + Nanos::SECOND, Wake::Second.token());
    }

    fn fails(&self, net: &mut Net, flow: FlowId) {
        let Some(conn) = net.connection(flow, Side::Client) else { return };
        let number = conn.client as usize;
        if self.load.failed(number, flow) {
            net.wake(net.now() + AGAIN, Wake::Open(number).token());
        }
    }

    /// A client that forges sends what routers would write; here at the router that it comes to first.
    fn forge(&mut self, place: Place, packet: &mut Packet) {
        let edge = self.routers.iter().find(|router| router.node == place.node);
        let forging = self.places.clients.iter().take(self.spec.forging as usize);
        let forges = packet.sender == Side::Client
            && edge.is_some_and(|router| router.link.is_some())
            && forging.into_iter().any(|client| *client == packet.from);
        if forges {
            let (tag, bytes) = forged(self.random.next_u64());
            (packet.tag, packet.bytes) = (tag, packet.bytes + bytes);
            packet.marks |= RCN;
        }
    }

    /// A client that has been told by SCN tells the routers.
    fn relay(&mut self, now: Nanos, place: Place, packet: &mut Packet) {
        if packet.sender == Side::Server && packet.marks & SCN != 0 {
            self.relays.insert((place.node, packet.from), now + RELAYS);
        }
        let until = self.relays.get(&(place.node, packet.to));
        if packet.sender == Side::Client && until.is_some_and(|until| now < *until) {
            packet.marks |= RELAYED;
        }
    }
}

impl App for World<'_> {
    fn ingress(&mut self, net: &Net, place: Place, packet: &mut Packet) -> Verdict {
        let now = net.now();
        if let Some(server) = self.server_of(place.node) {
            if place.came.is_none() {
                self.servers[server].sends(packet);
                return Verdict::Pass;
            }
            let mut limits = Vec::new();
            let verdict = self.servers[server].packet(packet, now, &mut limits);
            self.pending.extend(limits);
            return verdict;
        }
        self.forge(place, packet);
        let to = self.server_of(packet.to);
        match self.routers.iter_mut().find(|router| router.node == place.node) {
            Some(router) => router.packet(net, (place, to), packet),
            None => {
                self.relay(now, place, packet);
                Verdict::Pass
            }
        }
    }

    fn told(&mut self, net: &mut Net, told: Told) {
        match told {
            Told::Woken(token) => match Wake::of(token) {
                Wake::Tick => self.tick(net),
                Wake::Second => self.second(net),
                Wake::Open(conn) => {
                    if let Some(at) = self.load.open(net, conn) {
                        net.wake(at, Wake::Write(conn).token());
                    }
                }
                Wake::Write(conn) => {
                    if let Some(at) = self.load.write(net, conn) {
                        net.wake(at, Wake::Write(conn).token());
                    }
                }
                Wake::Message(number) => self.deliver(net, number),
            },
            Told::Ready(listener) => _ = net.accept(listener),
            Told::Refused(flow, _) | Told::Failed(flow, Side::Client, _) => self.fails(net, flow),
            _ => {}
        }
    }
}
