// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A flash crowd at a link of 2 Mbit/s, as in papers/news.txt: clients at eight distances ask one
//! server for pages. For tests of recorded bytes and for the bench.
//!
//! ```text
//! clients (10 … 80 ms) ── R1 ══ 2 Mbit/s, 50 packets ══ R0 (hooked) ── server
//! ```

use std::sync::Arc;
use tidegate_sim::net::{
    App, Connect, Failure, FlowId, Graph, GraphError, Kind, LinkCounts, LinkId, LinkSpec,
    ListenerSpec, Net, NetCounts, NodeId, Notice, Packet, Place, Side, TcpSpec, Verdict,
};
use tidegate_units::Nanos;
use tidegate_workload::{Rng, exponential};

const PORT: u16 = 80;
const DISTANCES: u64 = 8;
/// New clients per second before the crowd, and how many times that during it.
const CALM: f64 = 25.0;
const TIMES: f64 = 5.0;
/// Clients that have no response leave after this.
const PATIENCE: Nanos = Nanos::from_secs(10);
/// Token of the next arrival; others are the patience of a connection.
const ARRIVAL: u64 = u64::MAX;

/// What became of the clients, and of the packets towards them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Clients that came.
    pub(crate) clients: u64,
    /// Whose response was there in time.
    pub(crate) served: u64,
    /// Who could not connect.
    pub(crate) refused: u64,
    /// SYNs that the hook saw.
    pub(crate) syns: u64,
    /// The bottleneck.
    pub(crate) link: LinkCounts,
    /// The whole network.
    pub(crate) net: NetCounts,
}

struct Crowd {
    random: Rng,
    nodes: Vec<NodeId>,
    server: NodeId,
    tcp: Arc<TcpSpec>,
    /// From when on the crowd is there, and until when.
    crowd: (Nanos, Nanos),
    /// Connections by the number of their client.
    live: Vec<Option<FlowId>>,
    served: u64,
    refused: u64,
    syns: u64,
}

impl Crowd {
    fn arrive(&mut self, net: &mut Net) {
        let client = self.live.len();
        let tcp = Arc::clone(&self.tcp);
        let from = self.nodes[client % self.nodes.len()];
        let wanted = Connect { from, to: self.server, client: client as u32, port: PORT, tcp };
        self.live.push(Some(net.connect(&wanted)));
        net.wake(net.now() + PATIENCE, client as u64);
        let is_crowded = net.now() >= self.crowd.0 && net.now() < self.crowd.1;
        let rate = if is_crowded { CALM * TIMES } else { CALM };
        let gap = Nanos::from_secs_f64(exponential(&mut self.random) / rate);
        net.wake(net.now() + gap, ARRIVAL);
    }

    fn client(net: &Net, id: FlowId) -> Option<u32> {
        Some(net.connection(id, Side::Client)?.client)
    }

    fn leaves(&mut self, net: &mut Net, client: usize) {
        if let Some(id) = self.live[client].take() {
            net.abort(id, Side::Client);
        }
    }
}

impl App for Crowd {
    fn ingress(&mut self, _: &Net, _: Place, packet: &mut Packet) -> Verdict {
        self.syns += u64::from(packet.kind == Kind::Syn);
        Verdict::Pass
    }

    fn told(&mut self, net: &mut Net, notice: Notice) {
        match notice {
            Notice::Woken(ARRIVAL) => self.arrive(net),
            Notice::Woken(client) => self.leaves(net, client as usize),
            Notice::Ready(listener) => _ = net.accept(listener),
            Notice::Connected(id) => {
                // Pages of 4.5 KB on average, with a tail.
                let size = (3_000.0 * (0.5 + exponential(&mut self.random))) as u64;
                net.send(id, Side::Client, 300, size);
            }
            Notice::Message(id, Side::Server, size) => {
                net.send(id, Side::Server, size, 0);
                net.close(id, Side::Server);
            }
            Notice::Message(id, Side::Client, _) => {
                let client = Self::client(net, id).map(|client| client as usize);
                self.served += u64::from(client.is_some_and(|c| self.live[c].take().is_some()));
            }
            Notice::Ended(id, Side::Client) => net.close(id, Side::Client),
            Notice::Refused(_, Failure::Reset | Failure::TimedOut) => self.refused += 1,
            Notice::Ended(..) | Notice::Closed(_) | Notice::Failed(..) => {}
        }
    }
}

fn network(seed: u64) -> Result<(Net, Vec<NodeId>, NodeId, LinkId), GraphError> {
    let mut graph = Graph::new();
    let (near, far, server) = (graph.node(), graph.hooked(), graph.node());
    let bottleneck = LinkSpec::new(2_000_000, Nanos::from_millis(5), 50);
    let lan = |delay| LinkSpec::new(100_000_000, Nanos::from_millis(delay), 1000);
    graph.both(far, server, lan(0));
    let link = graph.link(far, near, bottleneck);
    graph.link(near, far, bottleneck);
    let nodes: Vec<NodeId> = (1..=DISTANCES)
        .map(|distance| {
            let node = graph.node();
            graph.both(near, node, lan(10 * distance));
            node
        })
        .collect();
    Ok((Net::new(graph, seed)?, nodes, server, link))
}

/// The crowd is there in the middle half of the time.
///
/// # Errors
/// The graph is none, or the books of the network do not agree.
pub(crate) fn run(seconds: u64, seed: u64) -> Result<Outcome, Box<dyn std::error::Error>> {
    let (mut net, nodes, server, link) = network(seed)?;
    let tcp = Arc::new(TcpSpec::today());
    let spec = ListenerSpec { backlog: 128, half_open_max: 1024, tcp: Arc::clone(&tcp) };
    net.listen(server, PORT, spec);
    let quarter = Nanos::from_secs(seconds / 4);
    let crowd = (quarter, quarter + quarter + quarter);
    let random = Rng::new(seed, 1);
    let (live, served, refused, syns) = (Vec::new(), 0, 0, 0);
    let mut app = Crowd { random, nodes, server, tcp, crowd, live, served, refused, syns };
    net.wake(Nanos::ZERO, ARRIVAL);
    net.run(&mut app, Nanos::from_secs(seconds));
    net.audit()?;
    Ok(Outcome {
        clients: app.live.len() as u64,
        served: app.served,
        refused: app.refused,
        syns: app.syns,
        link: net.link(link),
        net: *net.counts(),
    })
}
