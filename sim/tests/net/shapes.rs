// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Long transfers: throughput over loss beside the formula, and a bottleneck that is shared.

use crate::world::{FAST, MS};
use std::sync::Arc;
use tidegate_sim::net::{
    App, Connect, FlowId, Graph, LinkId, LinkSpec, ListenerSpec, Net, Notice, QueueSpec, RedSpec,
    Side, TcpSpec,
};
use tidegate_units::Nanos;

/// Servers that send without end to everybody who comes.
#[derive(Default)]
pub(crate) struct Endless {
    pub(crate) flows: Vec<FlowId>,
}

const ENDLESS: u64 = 1 << 50;

impl App for Endless {
    fn told(&mut self, net: &mut Net, notice: Notice) {
        if let Notice::Ready(listener) = notice
            && let Some(id) = net.accept(listener)
        {
            net.send(id, Side::Server, ENDLESS, 0);
            self.flows.push(id);
        }
    }
}

/// A dumb-bell: n clients on links of their own, a router each side, one bottleneck towards the clients.
pub(crate) struct Bell {
    pub(crate) net: Net,
    pub(crate) bottleneck: LinkId,
    pub(crate) app: Endless,
}

pub(crate) fn bell(flows: u32, bottleneck: LinkSpec, tcp: TcpSpec, seed: u64) -> Bell {
    let mut graph = Graph::new();
    let (server, router) = (graph.node(), graph.node());
    let near = graph.link(server, router, bottleneck);
    graph.link(
        router,
        server,
        LinkSpec { loss: 0.0, ..LinkSpec::new(FAST, bottleneck.delay, 10_000) },
    );
    let access = LinkSpec::new(FAST, MS(1), 10_000);
    let clients: Vec<_> = (0..flows).map(|_| graph.node()).collect();
    for client in &clients {
        graph.both(router, *client, access);
    }
    let mut net = Net::new(graph, seed).expect("a graph");
    let tcp = Arc::new(tcp);
    let spec = ListenerSpec { backlog: 1000, half_open_max: 1000, tcp: Arc::clone(&tcp) };
    net.listen(server, 80, spec);
    let mut app = Endless::default();
    for (n, from) in clients.into_iter().enumerate() {
        // Not all at the same instant.
        net.run(&mut app, MS(97 * n as u64));
        let tcp = Arc::clone(&tcp);
        net.connect(&Connect { from, to: server, client: n as u32, port: 80, tcp });
    }
    Bell { net, bottleneck: near, app }
}

impl Bell {
    /// Bits per second that each flow has got from second `from` to `until`.
    pub(crate) fn rates(&mut self, from: u64, until: u64) -> Vec<f64> {
        let got = |bell: &Self| -> Vec<u64> {
            let facts = |id: &FlowId| bell.net.connection(*id, Side::Client).map(|f| f.received);
            bell.app.flows.iter().map(|id| facts(id).expect("endless")).collect()
        };
        self.net.run(&mut self.app, Nanos::from_secs(from));
        let before = got(self);
        self.net.run(&mut self.app, Nanos::from_secs(until));
        self.net.audit().expect("sound");
        let bits = |(after, before): (u64, u64)| (after - before) as f64 * 8.0;
        got(self).into_iter().zip(before).map(bits).map(|b| b / (until - from) as f64).collect()
    }
}

/// Padhye, Firoiu, Towsley and Kurose 1998, equation 30, in segments per second.
fn pftk(trip: f64, time_out: f64, p: f64) -> f64 {
    let b = 2.0;
    let fast = trip * libm::sqrt(2.0 * b * p / 3.0);
    let slow = time_out * (3.0 * libm::sqrt(3.0 * b * p / 8.0)).min(1.0) * p * (1.0 + 32.0 * p * p);
    1.0 / (fast + slow)
}

/// At 5 % limited transmit saves time-outs that the formula expects.
#[test]
fn throughput_over_loss_is_near_the_formula() {
    for (loss, most) in [(0.002, 1.1), (0.005, 1.1), (0.01, 1.1), (0.02, 1.15), (0.05, 1.5)] {
        let link = LinkSpec { loss, ..LinkSpec::new(100_000_000, MS(49), 1000) };
        let rates = |seed| bell(1, link, TcpSpec::rfc(), seed).rates(20, 1020)[0];
        let mean = (rates(1) + rates(2)) / 2.0;
        let ratio = mean / (pftk(0.1, 1.0, loss) * 1460.0 * 8.0);
        assert!((0.9..most).contains(&ratio), "loss {loss}: {ratio} of the formula");
    }
}

#[test]
fn a_bottleneck_is_full_and_shared() {
    let red = RedSpec { min: 5.0, max: 15.0, ..RedSpec::NS2 };
    for (flows, queue) in [
        (2, QueueSpec::packets(50)),
        (10, QueueSpec::packets(50)),
        (2, QueueSpec::red(50, red)),
        (10, QueueSpec::red(50, red)),
    ] {
        let link = LinkSpec { queue, ..LinkSpec::new(2_000_000, MS(20), 0) };
        let mut bell = bell(flows, link, TcpSpec::today(), 3);
        let rates = bell.rates(20, 620);
        let sum: f64 = rates.iter().sum();
        let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
        let fairness = sum * sum / squares / f64::from(flows);
        let used = sum * 1500.0 / 1460.0 / 2_000_000.0;
        assert!((0.98..=1.0).contains(&used), "{flows} flows use {used}");
        assert!(fairness > 0.95, "{flows} flows: {fairness}");
    }
}

/// With RED the average stays between its thresholds, and hardly anything finds the queue full.
#[test]
fn red_keeps_the_average_between_its_thresholds() {
    let queue = QueueSpec::red(50, RedSpec::NS2);
    let link = LinkSpec { queue, ..LinkSpec::new(2_000_000, MS(20), 0) };
    let mut bell = bell(5, link, TcpSpec::today(), 3);
    bell.rates(5, 20);
    let (mut sum, mut looks) = (0.0, 0.0);
    for second in 21..=620 {
        bell.net.run(&mut bell.app, Nanos::from_secs(second));
        sum += bell.net.average(bell.bottleneck).expect("RED");
        looks += 1.0;
    }
    let counts = bell.net.link(bell.bottleneck);
    let mean = sum / looks;
    assert!((5.0..15.0).contains(&mean), "{mean}");
    assert!(counts.overflowed.packets * 50 < counts.early.packets, "{counts:?}");
}
