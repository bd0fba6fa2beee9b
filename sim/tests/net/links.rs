// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Links, queues, routes, hooks and datagrams.

use crate::world::{FAST, MS, World};
use tidegate_sim::net::{
    App, Filter, Graph, GraphError, Kind, Limit, LinkSpec, Net, NodeId, Packet, Place, QueueSpec,
    Quiet, RedSpec, Times, UdpSpec, Verdict,
};
use tidegate_units::Nanos;
use tidegate_workload::{OnOff, Rng};

/// Two nodes and a link there.
fn pair(spec: LinkSpec) -> (Net, UdpSpec, tidegate_sim::net::LinkId) {
    let mut graph = Graph::new();
    let (from, to) = (graph.node(), graph.node());
    let link = graph.link(from, to, spec);
    let udp = UdpSpec { from, to, client: 0, port: 9, payload: 972 };
    (Net::new(graph, 1).expect("a graph"), udp, link)
}

/// 1,000 bytes at 1 Mbit/s are 8 ms: a burst of five finds one place on the link and two in the
/// queue, and the rest is dropped.
#[test]
fn a_burst_waits_in_order_and_what_has_no_place_is_dropped() {
    let (mut net, udp, link) = pair(LinkSpec::new(1_000_000, MS(10), 2));
    for _ in 0..5 {
        net.datagrams(udp, Times::Constant { first: MS(1), gap: MS(1000), until: MS(2) });
    }
    for (until, arrived, waiting) in [
        (1, 0, 2),
        (8, 0, 2),
        (9, 0, 1),
        (17, 0, 0),
        (18, 0, 0),
        (19, 1, 0),
        (27, 2, 0),
        (35, 3, 0),
    ] {
        net.run(&mut Quiet, MS(until));
        let counts = net.link(link);
        assert_eq!((counts.delivered.packets, net.waiting(link)), (arrived, waiting), "{until} ms");
    }
    let counts = net.link(link);
    assert_eq!((counts.offered.packets, counts.overflowed.packets), (5, 2));
    assert_eq!((counts.delivered.bytes, counts.waiting_max), (3000, 2));
    assert_eq!((net.source(0).arrived.packets, net.source(4).arrived.packets), (1, 0));
    net.audit().expect("sound");
}

#[test]
fn a_queue_of_bytes_is_full_of_bytes() {
    for (limit, delivered) in [(1999, 2), (2000, 3)] {
        let queue = QueueSpec { limit: Limit::Bytes(limit), red: None };
        let spec = LinkSpec { queue, ..LinkSpec::new(1_000_000, MS(1), 0) };
        let (mut net, udp, link) = pair(spec);
        for _ in 0..5 {
            net.datagrams(udp, Times::Constant { first: MS(1), gap: MS(1000), until: MS(2) });
        }
        net.run(&mut Quiet, MS(1000));
        assert_eq!(net.link(link).delivered.packets, delivered, "{limit} bytes");
    }
}

/// A link gives its rate and no more, to the nanosecond.
#[test]
fn a_full_link_delivers_its_rate() {
    let (mut net, udp, link) = pair(LinkSpec::new(2_000_000, MS(30), 50));
    let times = Times::rate(4_000_000, udp.payload, Nanos::ZERO, MS(10_000)).expect("a rate");
    net.datagrams(udp, times);
    net.run(&mut Quiet, MS(10_030));
    assert_eq!(net.link(link).delivered.packets, 2500); // 4 ms each, the last at 10.03 s
    assert_eq!(net.link(link).waiting_max, 50);
}

#[test]
fn loss_is_as_often_as_said_and_repeats_itself() {
    let spec = LinkSpec { loss: 0.02, ..LinkSpec::new(FAST, MS(1), 10) };
    let run = || {
        let (mut net, udp, link) = pair(spec);
        let gap = Nanos::from_micros(10);
        let times = Times::Constant { first: Nanos::ZERO, gap, until: MS(1000) };
        net.datagrams(udp, times);
        net.run(&mut Quiet, MS(2000));
        net.audit().expect("sound");
        net.link(link)
    };
    let counts = run();
    assert_eq!(counts, run());
    assert_eq!(counts.offered.packets, 100_000);
    let lost = counts.lost.packets as f64 / 100_000.0;
    assert!((lost - 0.02).abs() < 0.002, "{lost}"); // 4.5 deviations
}

#[test]
fn on_off_sources_send_their_mean_rate() {
    let (mut net, udp, _) = pair(LinkSpec::new(FAST, MS(1), 10));
    let spec = OnOff { sources: 50, ..OnOff::netdraino(30.0) };
    let times = Times::on_off(spec, MS(200_000), Rng::new(1, 1)).expect("a source");
    let source = net.datagrams(udp, times);
    net.run(&mut Quiet, MS(300_000));
    let counts = net.source(source);
    assert_eq!(counts.sent, counts.arrived);
    let rate = counts.sent.packets as f64 / 200.0;
    assert!((rate / spec.mean_rate() - 1.0).abs() < 0.1, "{rate} of {}", spec.mean_rate());
}

/// RED settles where it drops the excess, 51 and 19 %. A drop comes after 1 to 1/p - 1 packets,
/// evenly: p is 0.26 and 0.095 of `max_p` 0.5 at the upper threshold.
#[test]
fn the_average_of_red_settles_where_it_drops_the_excess() {
    let red = RedSpec { max_p: 0.5, wait: false, ..RedSpec::NS2 };
    for (rate, least, most) in [(1_000_000, 9.7, 10.7), (600_000, 6.4, 7.4)] {
        let spec = LinkSpec { queue: QueueSpec::red(100, red), ..LinkSpec::new(500_000, MS(1), 0) };
        let (mut net, udp, link) = pair(spec);
        let times = Times::rate(rate, udp.payload, Nanos::ZERO, MS(200_000)).expect("a rate");
        net.datagrams(udp, times);
        let (mut sum, mut looks) = (0.0, 0.0);
        for second in 50..200 {
            net.run(&mut Quiet, MS(second * 1000));
            sum += net.average(link).expect("RED");
            looks += 1.0;
        }
        let average = sum / looks;
        assert!((least..most).contains(&average), "{average} at {rate}");
        assert_eq!(net.link(link).overflowed.packets, 0, "it drops early");
    }
}

/// The link is idle for 80 ms, in which ten packets could have gone: the average is what it would be
/// after ten looks at an empty queue.
#[test]
fn the_average_of_red_falls_while_the_link_is_idle() {
    let red = RedSpec { min: 50.0, max: 100.0, weight: 0.1, ..RedSpec::NS2 };
    let spec = LinkSpec { queue: QueueSpec::red(100, red), ..LinkSpec::new(1_000_000, MS(1), 0) };
    let (mut net, udp, link) = pair(spec);
    for _ in 0..20 {
        net.datagrams(udp, Times::Constant { first: MS(1), gap: MS(1000), until: MS(2) });
    }
    net.datagrams(udp, Times::Constant { first: MS(241), gap: MS(1000), until: MS(242) });
    net.run(&mut Quiet, MS(240));
    let before = net.average(link).expect("RED");
    assert!((1.0..18.0).contains(&before) && net.link(link).delivered.packets == 20);
    net.run(&mut Quiet, MS(300));
    let share = net.average(link).expect("RED") / before;
    assert!((share - 0.9_f64.powi(10)).abs() < 1e-9, "{share}");
}

/// A triangle: the way back is fixed over the third node.
#[test]
fn paths_are_shortest_unless_said_otherwise_and_may_be_asymmetric() {
    let mut graph = Graph::new();
    let (a, b, c) = (graph.node(), graph.node(), graph.node());
    let spec = LinkSpec::new(FAST, MS(1), 10);
    let (direct, _) = graph.both(a, b, spec);
    let (_, detour_last) = graph.both(a, c, spec);
    let (detour, _) = graph.both(b, c, spec);
    graph.route(b, a, detour);
    let mut net = Net::new(graph, 1).expect("a graph");
    let once = || Times::Constant { first: Nanos::ZERO, gap: MS(1000), until: MS(1) };
    let udp = |from, to| UdpSpec { from, to, client: 0, port: 9, payload: 100 };
    net.datagrams(udp(a, b), once());
    net.datagrams(udp(b, a), once());
    net.run(&mut Quiet, MS(10));
    let delivered = |link| net.link(link).delivered.packets;
    assert_eq!([direct, detour, detour_last].map(delivered), [1, 1, 1]);
    assert_eq!(net.counts().delivered, 2);
}

#[test]
fn packets_without_a_way_and_in_circles_are_counted() {
    let mut graph = Graph::new();
    let (a, b, c) = (graph.node(), graph.node(), graph.node());
    let (there, back) = graph.both(a, b, LinkSpec::new(FAST, Nanos::ZERO, 10));
    let mut net = Net::new(graph.clone(), 1).expect("a graph");
    let times = || Times::Constant { first: Nanos::ZERO, gap: MS(1000), until: MS(1) };
    let udp = UdpSpec { from: a, to: c, client: 0, port: 9, payload: 100 };
    net.datagrams(udp, times());
    net.run(&mut Quiet, MS(10));
    assert_eq!(net.counts().no_route, 1);

    graph.route(a, c, there);
    graph.route(b, c, back);
    let mut net = Net::new(graph, 1).expect("a graph");
    net.datagrams(udp, times());
    net.run(&mut Quiet, MS(10));
    assert_eq!(net.counts().looped, 1);
    net.audit().expect("sound");
}

/// A hook that holds every packet for a while, and marks it.
struct Marks(Vec<(NodeId, u8, u32)>);

impl App for Marks {
    fn ingress(&mut self, _: &Net, place: Place, packet: &mut Packet) -> Verdict {
        self.0.push((place.node, packet.marks, packet.bytes));
        packet.marks += 1;
        packet.bytes += 4;
        if place.leaves.is_none() { Verdict::Pass } else { Verdict::Delay(MS(5)) }
    }
}

#[test]
fn hooks_see_packets_once_at_each_node_and_may_mark_and_delay_them() {
    let mut graph = Graph::new();
    let (a, b, c) = (graph.hooked(), graph.hooked(), graph.hooked());
    let spec = LinkSpec::new(FAST, MS(1), 10);
    graph.link(a, b, spec);
    let last = graph.link(b, c, spec);
    let mut net = Net::new(graph, 1).expect("a graph");
    let tap = net.tap(last, Filter { kind: Some(Kind::Udp), to: Some(c), ..Filter::default() });
    let other = net.tap(last, Filter { port: Some(1), ..Filter::default() });
    let udp = UdpSpec { from: a, to: c, client: 0, port: 9, payload: 100 };
    net.datagrams(udp, Times::Constant { first: Nanos::ZERO, gap: MS(1000), until: MS(1) });
    let mut app = Marks(Vec::new());
    net.run(&mut app, MS(12));
    assert_eq!(net.counts().delivered, 0, "two pauses of 5 ms, and two links");
    net.run(&mut app, MS(13));
    assert_eq!(app.0, [(a, 0, 128), (b, 1, 132), (c, 2, 136)]);
    assert_eq!((net.tapped(tap).all.bytes, net.tapped(tap).payload), (136, 100));
    assert_eq!(net.tapped(other).all.packets, 0);
}

#[test]
fn a_hook_that_drops_is_counted_and_datagrams_are_never_reset() {
    for verdict in [Verdict::Drop, Verdict::Reset] {
        let mut graph = Graph::new();
        let (a, b) = (graph.node(), graph.hooked());
        graph.both(a, b, LinkSpec::new(FAST, MS(1), 10));
        let mut net = Net::new(graph, 1).expect("a graph");
        let udp = UdpSpec { from: a, to: b, client: 0, port: 9, payload: 100 };
        net.datagrams(udp, Times::Constant { first: MS(0), gap: MS(1), until: MS(10) });
        net.run(&mut World::judged(move |_| verdict), MS(100));
        let counts = *net.counts();
        assert_eq!((counts.sent, counts.refused, counts.delivered), (10, 10, 0));
    }
}

#[test]
fn graphs_that_are_none_are_refused() {
    let good = LinkSpec::new(1, MS(1), 1);
    let wrong = [
        LinkSpec { rate: 0, ..good },
        LinkSpec { loss: 1.1, ..good },
        LinkSpec { loss: f64::NAN, ..good },
        LinkSpec { queue: QueueSpec::red(9, RedSpec { max: 5.0, ..RedSpec::NS2 }), ..good },
    ];
    for spec in wrong {
        let mut graph = Graph::new();
        let (a, b) = (graph.node(), graph.node());
        let link = graph.link(a, b, spec);
        assert_eq!(Net::new(graph, 1).expect_err("wrong"), GraphError::Link(link));
    }
    let mut graph = Graph::new();
    let (a, b) = (graph.node(), graph.node());
    let link = graph.link(a, b, good);
    graph.route(b, a, link);
    let error = Net::new(graph, 1).expect_err("it begins elsewhere");
    assert_eq!(error, GraphError::Ends(link));
    assert_eq!(error.to_string(), "link 0 does not begin and end at two nodes");
    let mut graph = Graph::new();
    let a = graph.node();
    let link = graph.link(a, a, good);
    assert_eq!(Net::new(graph, 1).expect_err("a loop"), GraphError::Ends(link));
    let mut graph = Graph::new();
    (0..=tidegate_sim::net::NODES_MAX).for_each(|_| _ = graph.node());
    assert_eq!(Net::new(graph, 1).expect_err("too many"), GraphError::Nodes);
}
