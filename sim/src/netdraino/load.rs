// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What clients send: TCP connections with Pareto on/off writes, and datagrams at a constant rate.

use super::spec::NetdrainoSpec;
use super::{PACKET, SERVERS};
use crate::net::{Connect, FlowId, HEADERS_TCP, HEADERS_UDP, Net, NodeId, Side, TcpSpec};
use crate::net::{Times, UdpSpec};
use std::sync::Arc;
use tidegate_units::{Nanos, Random as _};
use tidegate_workload::{OnOff, OnOffArrivals, Rng};

/// All begin within this time (section 5).
const BEGIN_S: f64 = 3.0;
/// Port of the service.
pub(super) const PORT: u16 = 80;
/// Streams of the seed.
const BEGINS: u64 = 0x4e44_1000;
const WRITES: u64 = 0x4e44_0001_0000;

/// One connection, which is opened again when it fails.
struct Conn {
    client: u32,
    server: usize,
    flow: Option<FlowId>,
    writes: OnOffArrivals,
}

/// All connections.
pub(super) struct Load {
    tcp: Arc<TcpSpec>,
    clients: Vec<NodeId>,
    servers: Vec<NodeId>,
    conns: Vec<Conn>,
}

/// When a source of datagrams sends.
struct Turn {
    from: Nanos,
    until: Nanos,
    rate: f64,
}

impl Load {
    /// Connections of this setting; and the times at which each is opened.
    pub(super) fn new(
        spec: &NetdrainoSpec,
        (clients, servers): (&[NodeId], &[NodeId]),
    ) -> Option<(Self, Vec<Nanos>)> {
        let tcp = TcpSpec { mss: PACKET - HEADERS_TCP, ..TcpSpec::classic() };
        let (mut conns, mut begins) = (Vec::new(), Vec::new());
        let mut random = Rng::new(spec.seed, BEGINS);
        for client in 0..spec.clients {
            for server in 0..SERVERS {
                for _ in 0..spec.load(server).0 {
                    let stream = WRITES + conns.len() as u64;
                    let writes = OnOff::netdraino(spec.on_rate);
                    let writes = writes.arrivals(spec.lasts, Rng::new(spec.seed, stream))?;
                    conns.push(Conn { client, server, flow: None, writes });
                    begins.push(Nanos::from_secs_f64(BEGIN_S * random.next_f64()));
                }
            }
        }
        let (clients, servers) = (clients.to_vec(), servers.to_vec());
        Some((Self { tcp: Arc::new(tcp), clients, servers, conns }, begins))
    }

    /// Sources of datagrams of all clients.
    pub(super) fn datagrams(
        spec: &NetdrainoSpec,
        net: &mut Net,
        (clients, servers): (&[NodeId], &[NodeId]),
    ) {
        let mut random = Rng::new(spec.seed, BEGINS + 1);
        for client in 0..spec.clients {
            for (server, to) in servers.iter().enumerate() {
                let phase = random.next_f64();
                for turn in turns(spec, client, server) {
                    let payload = PACKET - HEADERS_UDP;
                    let from = clients[client as usize];
                    let source = UdpSpec { from, to: *to, client, port: PORT, payload };
                    let gap = 1.0 / turn.rate;
                    let first = if turn.from == Nanos::ZERO {
                        Nanos::from_secs_f64(BEGIN_S * phase)
                    } else {
                        turn.from + Nanos::from_secs_f64(gap * phase)
                    };
                    let gap = Nanos::from_secs_f64(gap);
                    net.datagrams(source, Times::Constant { first, gap, until: turn.until });
                }
            }
        }
    }

    /// Opens a connection; when it writes first.
    pub(super) fn open(&mut self, net: &mut Net, number: usize) -> Option<Nanos> {
        let conn = &mut self.conns[number];
        let first = conn.flow.is_none();
        let wanted = Connect {
            from: self.clients[conn.client as usize],
            to: self.servers[conn.server],
            client: number as u32,
            port: PORT,
            tcp: Arc::clone(&self.tcp),
        };
        conn.flow = Some(net.connect(&wanted));
        if first { conn.writes.next() } else { None }
    }

    /// A connection writes a packet; when it does again.
    pub(super) fn write(&mut self, net: &mut Net, number: usize) -> Option<Nanos> {
        let conn = &mut self.conns[number];
        if let Some(flow) = conn.flow {
            net.send(flow, Side::Client, u64::from(PACKET - HEADERS_TCP), 0);
        }
        conn.writes.next()
    }

    /// Whether this is the present flow of the connection: then it is to be opened again.
    pub(super) fn failed(&self, number: usize, flow: FlowId) -> bool {
        self.conns.get(number).is_some_and(|conn| conn.flow == Some(flow))
    }
}

/// Which side a client is at.
pub(super) const fn side(client: u32) -> u32 {
    client % 2
}

/// The parts of a run in which a client sends datagrams to a server, each at its rate.
fn turns(spec: &NetdrainoSpec, client: u32, server: usize) -> Vec<Turn> {
    let rate = spec.load(server).1;
    if rate <= 0.0 {
        return Vec::new();
    }
    let Some(shift) = spec.shift.filter(|_| server == 0) else {
        return vec![Turn { from: Nanos::ZERO, until: spec.lasts, rate }];
    };
    let low = 2.0 * rate / (1.0 + shift.times);
    let turns = spec.lasts.0.div_ceil(shift.period.0.max(1));
    let turn = |number: u64| {
        let from = Nanos(shift.period.0 * number);
        let mine = u64::from(side(client)) == number % 2;
        let rate = if mine { low * shift.times } else { low };
        Turn { from, until: (from + shift.period).min(spec.lasts), rate }
    };
    (0..turns).map(turn).collect()
}
