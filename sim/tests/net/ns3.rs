// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Beside ns-3: the numbers of `ns3.csv` within 10 %. `cargo xtask reference` makes that file, with
//! `xtask/src/bench/peers/ns3_net.cc`; the models and their parameters are described there.

use crate::shapes::{Bell, bell};
use crate::world::MS;
use std::sync::Arc;
use tidegate_sim::net::{
    App, Connect, Graph, LinkSpec, ListenerSpec, Net, Notice, QueueSpec, RedSpec, Side, TcpSpec,
};
use tidegate_units::Nanos;

const REFERENCE: &str = include_str!("ns3.csv");
const WITHIN: f64 = 0.10;
/// Of the share that a drop-tail queue drops. There one packet of a burst finds the queue full, or two,
/// and which it is depends on the phase in which bursts arrive (Floyd and Jacobson 1991).
const WITHIN_PHASE: f64 = 0.35;
const SEEDS: u64 = 5;

/// A number of ns-3: case, x, metric, value.
struct Row {
    case: String,
    x: f64,
    metric: String,
    value: f64,
}

fn rows(case: &str) -> Vec<Row> {
    let lines = REFERENCE.lines().filter(|line| !line.starts_with('#')).skip(1);
    let rows = lines.map(|line| {
        let fields: Vec<&str> = line.split(',').collect();
        let [case, x, metric, value] = fields[..] else { panic!("{line}") };
        let number = |text: &str| text.parse().expect("a number");
        Row { case: case.into(), x: number(x), metric: metric.into(), value: number(value) }
    });
    rows.filter(|row| row.case == case).collect()
}

/// Every number of this case that is too far from that of ns-3.
fn far(case: &str, measure: impl Fn(f64) -> Vec<(&'static str, f64)>) -> Vec<String> {
    let rows = rows(case);
    assert!(!rows.is_empty(), "{case} is in the file");
    let mut points: Vec<f64> = rows.iter().map(|row| row.x).collect();
    points.dedup();
    let mut far = Vec::new();
    for x in points {
        let measured = measure(x);
        for row in rows.iter().filter(|row| row.x == x) {
            let ours = measured.iter().find(|(metric, _)| *metric == row.metric);
            let ours = ours.expect("a metric that is measured").1;
            let ratio = ours / row.value;
            eprintln!("{case} {x} {}: {ratio:.2} of ns-3", row.metric); // for docs/simulator.md
            let is_phase = case == "drop-tail" && row.metric == "dropped";
            if (ratio - 1.0).abs() > if is_phase { WITHIN_PHASE } else { WITHIN } {
                far.push(format!("{case} {x} {}: {ours} of {}", row.metric, row.value));
            }
        }
    }
    far
}

fn mean(of: impl Fn(u64) -> f64) -> f64 {
    (1..=SEEDS).map(of).sum::<f64>() / SEEDS as f64
}

#[test]
fn throughput_over_loss_is_that_of_ns3() {
    let far = far("loss", |loss| {
        let link = LinkSpec { loss, ..LinkSpec::new(100_000_000, MS(49), 1000) };
        let goodput = |seed| bell(1, link, TcpSpec::rfc(), seed).rates(20, 720)[0];
        vec![("goodput", mean(goodput))]
    });
    assert!(far.is_empty(), "{far:#?}");
}

/// What one run of a shared bottleneck gives: goodput, share dropped, mean queue, fairness.
fn shared(bell: &mut Bell) -> [f64; 4] {
    const LOOKS: u64 = 30_000; // in five minutes
    bell.rates(19, 20);
    let flows = bell.app.flows.len() as f64;
    let begun = bell.net.link(bell.bottleneck);
    let got = |bell: &Bell| -> Vec<f64> {
        let facts = |id| bell.net.connection(id, Side::Client).expect("endless").received as f64;
        bell.app.flows.iter().map(|id| facts(*id)).collect()
    };
    let (before, mut waiting) = (got(bell), 0);
    for look in 1..=LOOKS {
        bell.net.run(&mut bell.app, Nanos::from_secs(20) + MS(10 * look));
        waiting += bell.net.waiting(bell.bottleneck);
    }
    let rates: Vec<f64> = got(bell)
        .iter()
        .zip(&before)
        .map(|(after, before)| (after - before) * 8.0 / 300.0)
        .collect();
    let ended = bell.net.link(bell.bottleneck);
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    let offered = ended.offered.packets - begun.offered.packets;
    let dropped = (ended.dropped() - begun.dropped()) as f64 / offered as f64;
    [sum, dropped, waiting as f64 / LOOKS as f64, sum * sum / squares / flows]
}

fn shared_is_that_of_ns3(case: &str, queue: QueueSpec) {
    let link = LinkSpec { queue, ..LinkSpec::new(2_000_000, MS(20), 0) };
    let far = far(case, |flows| {
        let run = |seed| shared(&mut bell(flows as u32, link, TcpSpec::rfc(), seed));
        let runs: Vec<[f64; 4]> = (1..=SEEDS).map(run).collect();
        let of = |index: usize| mean(|seed| runs[seed as usize - 1][index]);
        ["goodput", "dropped", "queue", "fairness"].into_iter().zip((0..4).map(of)).collect()
    });
    assert!(far.is_empty(), "{far:#?}");
}

#[test]
fn a_shared_drop_tail_queue_is_that_of_ns3() {
    shared_is_that_of_ns3("drop-tail", QueueSpec::packets(50));
}

#[test]
fn a_shared_red_queue_is_that_of_ns3() {
    shared_is_that_of_ns3("red", QueueSpec::red(50, RedSpec::NS2));
}

/// Sends 100 segments as soon as it is connected, and notes when they are there.
#[derive(Default)]
struct Transfer(Option<Nanos>);

impl App for Transfer {
    fn told(&mut self, net: &mut Net, notice: Notice) {
        match notice {
            Notice::Connected(id) => assert!(net.send(id, Side::Client, 146_000, 0)),
            Notice::Message(..) => self.0 = Some(net.now()),
            _ => {}
        }
    }
}

#[test]
fn a_short_transfer_takes_as_long_as_on_ns3() {
    let far = far("transfer", |window| {
        let mut graph = Graph::new();
        let (from, router, to) = (graph.node(), graph.node(), graph.node());
        graph.both(from, router, LinkSpec::new(10_000_000, MS(49), 1000));
        graph.both(router, to, LinkSpec::new(8_000_000_000, MS(1), 1000));
        let mut net = Net::new(graph, 1).expect("a graph");
        let tcp = Arc::new(TcpSpec { initial_window: window as u32, ..TcpSpec::rfc() });
        let spec = ListenerSpec { backlog: 1, half_open_max: 1, tcp: Arc::clone(&tcp) };
        net.listen(to, 80, spec);
        net.connect(&Connect { from, to, client: 0, port: 80, tcp });
        let mut app = Transfer::default();
        net.run(&mut app, Nanos::from_secs(100));
        vec![("time", app.0.expect("it ends").as_secs_f64())]
    });
    assert!(far.is_empty(), "{far:#?}");
}
