// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Topology, clients and bystanders.

use super::outcome::{Bin, Outcome, Served};
use super::router::{Router, TICK};
use super::serve::Server;
use super::spec::{Bystander, NewsSpec, Protocol, ServerSpec};
use crate::net::{
    App, Connect, FlowId, Graph, LinkId, LinkSpec, ListenerSpec, Net, NodeId, Notice, Packet,
    Place, Side, TcpSpec, Verdict,
};
use std::sync::Arc;
use tidegate_units::Nanos;
use tidegate_workload::{Mixture, Rng, Shape, Trace, exponential};

const PORT: u16 = 80;
/// Clients are at one of so many distances: 10 to 80 ms one way, as the paper measured "different
/// propagation delays" and prints none.
const DISTANCES: u64 = 8;
/// Bytes of a request.
const REQUEST: u64 = 300;
/// Responses have at least so many bytes, and at most.
const SIZES: (f64, f64) = (200.0, 500_000.0);
/// A chunk of bulk.
const CHUNK: u64 = 8_192;
/// After the last client the run goes on for so long.
const AFTER: Nanos = Nanos::from_secs(12);

/// What a wake is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wake {
    Arrival,
    Bystander,
    Chunk,
    Tick,
    Second,
    Slow,
    Spoof,
    /// A client's patience has ended.
    Patience(usize),
    /// A server looks, if this is its generation.
    Work(usize, u64),
}

impl Wake {
    const fn token(self) -> u64 {
        match self {
            Self::Arrival => 0,
            Self::Bystander => 1,
            Self::Chunk => 2,
            Self::Tick => 3,
            Self::Second => 4,
            Self::Slow => 5,
            Self::Spoof => 6,
            Self::Patience(client) => (1 << 56) | client as u64,
            Self::Work(server, generation) => (2 + server as u64) << 56 | generation,
        }
    }

    const fn of(token: u64) -> Self {
        let low = token & ((1 << 56) - 1);
        match (token >> 56, low) {
            (0, 0) => Self::Arrival,
            (0, 1) => Self::Bystander,
            (0, 2) => Self::Chunk,
            (0, 3) => Self::Tick,
            (0, 4) => Self::Second,
            (0, 5) => Self::Slow,
            (0, _) => Self::Spoof,
            (1, client) => Self::Patience(client as usize),
            (server, generation) => Self::Work(server as usize - 2, generation),
        }
    }
}

/// The crowd's server, the bystander's.
const CROWD: usize = 0;
const QUIET: usize = 1;

#[derive(Clone, Copy, Debug)]
struct Client {
    flow: Option<FlowId>,
    came: Nanos,
    server: usize,
    size: u64,
    connected: bool,
    refused: bool,
}

struct World<'a> {
    spec: &'a NewsSpec,
    places: Places,
    router: Router,
    servers: [Server; 2],
    arrivals: Trace,
    /// Draws of sizes and distances, of the bystander's times.
    random: Rng,
    beside: Rng,
    size: Shape,
    tcp: Vec<(Arc<TcpSpec>, f64)>,
    clients: Vec<Client>,
    bulk: Option<FlowId>,
    out: Outcome,
    bin: Bin,
    counted: (u64, u64, u64),
    before: (u64, u64, u64),
}

/// Where all are.
#[derive(Clone, Debug)]
struct Places {
    clients: Vec<NodeId>,
    bystander: NodeId,
    servers: [NodeId; 2],
    bottleneck: LinkId,
}

fn network(spec: &NewsSpec) -> (Graph, Places) {
    let mut graph = Graph::new();
    let (near, router) = (graph.node(), graph.hooked());
    let lan = |delay| LinkSpec::new(100_000_000, Nanos::from_millis(delay), 1000);
    let servers = [graph.node(), graph.node()];
    for server in servers {
        graph.both(router, server, lan(0));
    }
    let slow = LinkSpec::new(spec.link, Nanos::from_millis(5), spec.queue);
    let bottleneck = graph.link(router, near, slow);
    graph.link(near, router, slow);
    let mut beyond = |delay| {
        let node = graph.node();
        graph.both(near, node, lan(delay));
        node
    };
    let bystander = beyond(20);
    let clients = (1..=DISTANCES).map(|distance| beyond(10 * distance)).collect();
    (graph, Places { clients, bystander, servers, bottleneck })
}

/// The TCP of clients, with the share of each.
fn tcp(protocol: Protocol) -> Vec<(Arc<TcpSpec>, f64)> {
    match (protocol, Mixture::today()) {
        (Protocol::Today, Ok(mixture)) => {
            let one = |(schedule, share): &(&'static tidegate_workload::Schedule, f64)| {
                (Arc::new(TcpSpec { schedule: **schedule, ..TcpSpec::today() }), *share)
            };
            mixture.parts().iter().map(one).collect()
        }
        _ => vec![(Arc::new(TcpSpec::classic()), 1.0)],
    }
}

/// A destination's key: never 0.
fn key(server: usize) -> u64 {
    (server as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Runs a setting.
///
/// # Errors
/// When the books of the network do not agree.
pub fn run(spec: &NewsSpec) -> Result<Outcome, String> {
    let (graph, places) = network(spec);
    let mut net = Net::new(graph, spec.seed).map_err(|error| error.to_string())?;
    let tcp = tcp(spec.protocol);
    let servers = [spec.server, ServerSpec::FAST];
    let mut node = places.servers.iter();
    let servers = servers.map(|server| {
        let tcp = Arc::clone(&tcp[0].0);
        let listens = ListenerSpec { backlog: 1024, half_open_max: 4096, tcp };
        let node = node.next().copied().unwrap_or_default();
        Server::new(server, net.listen(node, PORT, listens))
    });
    let (router, out) = (Router::new(spec, key(CROWD)), Outcome::default());
    let mut world = World {
        spec,
        places,
        router,
        servers,
        arrivals: Trace::new(spec.counts.clone(), spec.period, Rng::new(spec.seed, 1)),
        random: Rng::new(spec.seed, 2),
        beside: Rng::new(spec.seed, 3),
        size: Shape::Lognormal { cv: spec.size_cv },
        tcp,
        clients: Vec::new(),
        bulk: None,
        out,
        bin: Bin::default(),
        counted: (0, 0, 0),
        before: (0, 0, 0),
    };
    world.router.flows.log = Some(Vec::new());
    world.begin(&mut net);
    net.run(&mut world, spec.lasts() + AFTER);
    net.audit()?;
    Ok(world.finish(&net))
}

impl World<'_> {
    fn begin(&mut self, net: &mut Net) {
        self.next_arrival(net);
        net.wake(TICK, Wake::Tick.token());
        net.wake(Nanos::SECOND, Wake::Second.token());
        match self.spec.bystander {
            Bystander::None => {}
            Bystander::Web(_) => net.wake(Nanos::SECOND, Wake::Bystander.token()),
            Bystander::Bulk(_) => {
                let wanted = self.wanted((self.places.bystander, QUIET), u32::MAX, 0);
                self.bulk = Some(net.connect(&wanted));
            }
        }
        if let Some((at, _)) = self.spec.slows {
            net.wake(at, Wake::Slow.token());
        }
        if let Some((_, from, _)) = self.spec.spoofed {
            net.wake(from, Wake::Spoof.token());
        }
    }

    fn finish(mut self, net: &Net) -> Outcome {
        self.out.alarms = std::mem::take(&mut self.router.alarms);
        self.out.ended = self.router.flows.log.take().unwrap_or_default();
        self.out.keys = (key(CROWD), key(QUIET));
        self.out.busiest = self.servers[CROWD].busiest;
        self.out.flows.1 = self.router.flows.untracked;
        self.out.events = net.counts().events;
        self.out
    }

    fn wanted(&self, (from, server): (NodeId, usize), client: u32, tcp: usize) -> Connect {
        let (to, tcp) = (self.places.servers[server], Arc::clone(&self.tcp[tcp].0));
        Connect { from, to, client, port: PORT, tcp }
    }

    fn next_arrival(&mut self, net: &mut Net) {
        if let Some(at) = self.arrivals.next() {
            net.wake(at, Wake::Arrival.token());
        }
    }

    /// A client comes: at one of the distances, with one of the schedules.
    fn arrives(&mut self, net: &mut Net, server: usize) {
        let now = net.now();
        let random = if server == CROWD { &mut self.random } else { &mut self.beside };
        let mut size = self.spec.size * self.size.sample(random);
        if let Some((_, times)) = self.spec.resized.filter(|(at, _)| now >= *at) {
            size *= times;
        }
        let size = size.clamp(SIZES.0, SIZES.1) as u64;
        let draw = exponential(random);
        let place = self.places.clients[(draw * 1e6) as usize % self.places.clients.len()];
        let from = if server == CROWD { place } else { self.places.bystander };
        let mut left = libm::exp(-draw);
        let tcp = self.tcp.iter().position(|(_, share)| {
            left -= share;
            left <= 0.0
        });
        let client = self.clients.len();
        let wanted = self.wanted((from, server), client as u32, tcp.unwrap_or(0));
        let flow = Some(net.connect(&wanted));
        let (connected, refused) = (false, false);
        self.clients.push(Client { flow, came: now, server, size, connected, refused });
        net.wake(now + self.spec.patience, Wake::Patience(client).token());
        if server == CROWD {
            self.bin.came += 1;
        }
    }

    fn served(&mut self, client: &Client) -> Option<&mut Served> {
        let (from, until) = self.spec.window;
        let of = if client.server == CROWD { &mut self.out.crowd } else { &mut self.out.bystander };
        (client.came >= from && client.came < until).then_some(of)
    }

    /// A client has its response, or its patience has ended.
    fn ends(&mut self, net: &mut Net, number: usize, is_served: bool) {
        let Some(client) = self.clients.get_mut(number) else { return };
        let Some(flow) = client.flow.take() else { return };
        let client = *client;
        let took = net.now().since(client.came);
        let is_good = is_served && took <= self.spec.objective;
        self.bin.good += u64::from(is_good && client.server == CROWD);
        if !is_served {
            net.abort(flow, Side::Client);
        }
        let Some(served) = self.served(&client) else { return };
        served.came += 1;
        served.refused += u64::from(client.refused);
        served.good += u64::from(is_good);
        if is_served {
            served.served += 1;
            served.took_s.push(took.as_secs_f64());
        } else if client.connected {
            served.timed_out += 1;
        } else {
            served.unconnected += 1;
        }
    }

    /// Paces a chunk.
    fn chunk(&mut self, net: &mut Net) {
        let (Some(bulk), Bystander::Bulk(bits)) = (self.bulk, self.spec.bystander) else { return };
        net.send(bulk, Side::Server, CHUNK, u64::MAX);
        let gap = CHUNK as f64 * 8.0 / bits.max(1.0);
        net.wake(net.now() + Nanos::from_secs_f64(gap), Wake::Chunk.token());
    }

    fn spoof(&mut self, net: &mut Net) {
        let Some((rate, _, until)) = self.spec.spoofed else { return };
        let wanted = self.wanted((self.places.bystander, QUIET), u32::MAX - 1, 0);
        net.spoof(&wanted);
        let gap = exponential(&mut self.beside) / rate.max(1e-3);
        let at = net.now() + Nanos::from_secs_f64(gap);
        if at < until {
            net.wake(at, Wake::Spoof.token());
        }
    }

    fn work(&mut self, net: &mut Net, server: usize) {
        if let Some(at) = self.servers[server].work(net) {
            net.wake(at, Wake::Work(server, self.servers[server].generation).token());
        }
    }

    fn second(&mut self, net: &mut Net) {
        let link = net.link(self.places.bottleneck);
        let now = (link.offered.packets, link.dropped(), link.delivered.bytes);
        let (offered, admitted) = (self.router.offered, self.router.admitted);
        let refused = self.router.refused.values().sum();
        let bin = Bin {
            offered: offered - self.before.0,
            admitted: admitted - self.before.1,
            refused: refused - self.before.2,
            packets: now.0 - self.counted.0,
            dropped: now.1 - self.counted.1,
            bytes: now.2 - self.counted.2,
            arr: self.router.arr().unwrap_or(0.0),
            limit: self.router.limit().unwrap_or(0.0),
            ..self.bin
        };
        self.out.bins.push(bin);
        (self.bin, self.counted) = (Bin::default(), now);
        self.before = (offered, admitted, refused);
        self.out.flows.0 = self.out.flows.0.max(self.router.flows.len());
        net.wake(net.now() + Nanos::SECOND, Wake::Second.token());
    }

    fn woken(&mut self, net: &mut Net, wake: Wake) {
        match wake {
            Wake::Arrival => {
                self.arrives(net, CROWD);
                self.next_arrival(net);
            }
            Wake::Bystander => {
                let Bystander::Web(rate) = self.spec.bystander else { return };
                self.arrives(net, QUIET);
                let gap = Nanos::from_secs_f64(exponential(&mut self.beside) / rate.max(1e-3));
                if net.now() + gap < self.spec.lasts() {
                    net.wake(net.now() + gap, Wake::Bystander.token());
                }
            }
            Wake::Chunk => self.chunk(net),
            Wake::Tick => {
                self.router.tick(net.now());
                net.wake(net.now() + TICK, Wake::Tick.token());
            }
            Wake::Second => self.second(net),
            Wake::Slow => {
                let by = self.spec.slows.map_or(1.0, |(_, by)| by);
                self.servers[CROWD].slow(net.now(), by);
                self.work(net, CROWD);
            }
            Wake::Spoof => self.spoof(net),
            Wake::Patience(client) => self.ends(net, client, false),
            Wake::Work(server, generation) => {
                if self.servers[server].generation == generation {
                    self.work(net, server);
                }
            }
        }
    }

    fn client_of(net: &Net, id: FlowId) -> Option<usize> {
        net.connection(id, Side::Client).map(|conn| conn.client as usize)
    }

    fn server_of(&self, net: &Net, id: FlowId) -> usize {
        let client = Self::client_of(net, id).and_then(|client| self.clients.get(client));
        client.map_or(QUIET, |client| client.server)
    }
}

impl App for World<'_> {
    fn ingress(&mut self, net: &Net, _: Place, packet: &mut Packet) -> Verdict {
        let end = if packet.sender == Side::Client { packet.to } else { packet.from };
        let server = usize::from(end == self.places.servers[QUIET]);
        let verdict = self.router.packet(packet, (net.now(), key(server)));
        if verdict != Verdict::Pass
            && let Some(client) = self.clients.get_mut(packet.client as usize)
        {
            client.refused = true;
        }
        verdict
    }

    fn told(&mut self, net: &mut Net, notice: Notice) {
        match notice {
            Notice::Woken(token) => self.woken(net, Wake::of(token)),
            Notice::Connected(id) if Some(id) == self.bulk => self.chunk(net),
            Notice::Connected(id) => {
                let Some(number) = Self::client_of(net, id) else { return };
                let Some(client) = self.clients.get_mut(number) else { return };
                client.connected = true;
                net.send(id, Side::Client, REQUEST, client.size);
            }
            Notice::Ready(listener) => {
                let server = usize::from(self.servers[CROWD].listener() != listener);
                self.servers[server].accept(net);
                self.work(net, server);
            }
            Notice::Message(id, Side::Server, size) => {
                let server = self.server_of(net, id);
                self.servers[server].asked(net, id, size);
                self.work(net, server);
            }
            Notice::Message(id, Side::Client, u64::MAX) if Some(id) == self.bulk => {
                self.bin.bulk += CHUNK;
            }
            Notice::Message(id, Side::Client, _) => {
                if let Some(client) = Self::client_of(net, id) {
                    self.ends(net, client, true);
                }
            }
            Notice::Ended(id, Side::Client) => net.close(id, Side::Client),
            Notice::Failed(id, Side::Server, _) => {
                let server = self.server_of(net, id);
                self.servers[server].leaves(id);
                self.work(net, server);
            }
            Notice::Refused(..) | Notice::Ended(..) | Notice::Closed(_) | Notice::Failed(..) => {}
        }
    }
}
