// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What holds in every network: whatever is lost, dropped or late, each byte arrives once and in
//! order, no packet is forgotten, no queue is longer than allowed, and a seed repeats itself.

use crate::world::MS;
use proptest::prelude::*;
use std::sync::Arc;
use tidegate_sim::net::{
    App, Connect, FlowId, Graph, Kind, Limit, LinkCounts, LinkId, LinkSpec, ListenerSpec, Net,
    NetCounts, Notice, Packet, Place, QueueSpec, RedSpec, Side, TcpSpec, Times, UdpSpec, Verdict,
};
use tidegate_units::{Nanos, Random as _};
use tidegate_workload::Rng;

/// A network and what is sent over it.
#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    rate: u64,
    delays: [u64; 3],
    limit: Limit,
    red: bool,
    loss: f64,
    hook: f64,
    window: u64,
    initial: u32,
    prompt: bool,
    /// Sizes that each connection asks for, one after the other.
    asks: Vec<Vec<u64>>,
}

fn cases() -> impl Strategy<Value = Case> {
    let limit = prop_oneof![
        (1..60_u32).prop_map(Limit::Packets),
        (3_000..90_000_u64).prop_map(Limit::Bytes),
    ];
    let link = (100_000..20_000_000_u64, prop::array::uniform3(0..80_u64), limit, any::<bool>());
    let tcp = (3_000..200_000_u64, 1..12_u32, any::<bool>());
    let asks = prop::collection::vec(prop::collection::vec(1..60_000_u64, 0..4), 1..8);
    (any::<u64>(), link, (0.0..0.15_f64, 0.0..0.1_f64), tcp, asks).prop_map(
        |(seed, (rate, delays, limit, red), (loss, hook), (window, initial, prompt), asks)| Case {
            seed,
            rate,
            delays,
            limit,
            red,
            loss,
            hook,
            window,
            initial,
            prompt,
            asks,
        },
    )
}

/// Clients that ask and close; a hook that drops and delays without reason.
struct Run {
    random: Rng,
    hook: f64,
    asks: Vec<Vec<u64>>,
    ids: Vec<FlowId>,
    /// What each client has got, in order.
    got: Vec<Vec<u64>>,
    ended: Vec<u32>,
    last: Nanos,
    seen: u64,
}

impl Run {
    fn of(&self, id: FlowId) -> usize {
        self.ids.iter().position(|known| *known == id).expect("ours")
    }
}

impl App for Run {
    fn ingress(&mut self, net: &Net, _: Place, packet: &mut Packet) -> Verdict {
        assert!(net.now() >= self.last, "time goes back");
        assert!(packet.kind == Kind::Udp || packet.bytes >= 40);
        self.last = net.now();
        self.seen += 1;
        let draw = self.random.next_f64();
        if draw < self.hook {
            Verdict::Drop
        } else if draw < 2.0 * self.hook {
            Verdict::Delay(MS(30)) // overtaken by those behind it
        } else {
            Verdict::Pass
        }
    }

    fn told(&mut self, net: &mut Net, notice: Notice) {
        match notice {
            Notice::Ready(listener) => _ = net.accept(listener),
            Notice::Connected(id) => {
                for size in &self.asks[self.of(id)] {
                    assert!(net.send(id, Side::Client, 200, *size));
                }
                net.close(id, Side::Client);
            }
            Notice::Message(id, Side::Server, size) => {
                assert!(net.send(id, Side::Server, size, size))
            }
            Notice::Message(id, Side::Client, size) => {
                let index = self.of(id);
                self.got[index].push(size);
            }
            Notice::Ended(id, Side::Server) => net.close(id, Side::Server),
            Notice::Closed(id) | Notice::Refused(id, _) | Notice::Failed(id, ..) => {
                let index = self.of(id);
                self.ended[index] += 1;
                let facts = net.connection(id, Side::Client).expect("its record is there");
                assert_eq!(facts.client as usize, index);
                if matches!(notice, Notice::Closed(_)) {
                    assert_eq!(facts.received, self.got[index].iter().sum::<u64>());
                }
            }
            Notice::Ended(..) | Notice::Woken(_) => {}
        }
    }
}

type Outcome = (Vec<Vec<u64>>, Vec<LinkCounts>, NetCounts, Vec<u32>);

fn run(case: &Case) -> Outcome {
    let mut graph = Graph::new();
    let (client, router, server) = (graph.node(), graph.hooked(), graph.node());
    let red = case.red.then_some(RedSpec { min: 2.0, max: 6.0, weight: 0.1, ..RedSpec::NS2 });
    let queue = QueueSpec { limit: case.limit, red };
    let [near, far, back] = case.delays.map(MS);
    let spec = |delay| LinkSpec { rate: case.rate, delay, queue, loss: case.loss };
    let (a, b) = graph.both(client, router, spec(near));
    let c = graph.link(router, server, spec(far));
    let d = graph.link(server, router, spec(back));
    let mut net = Net::new(graph, case.seed).expect("a graph");
    let delayed_ack = if case.prompt { Nanos::ZERO } else { MS(100) };
    let tcp = Arc::new(TcpSpec {
        receive_window: case.window,
        initial_window: case.initial,
        delayed_ack,
        retries_max: 60,
        ..TcpSpec::today()
    });
    let listener = ListenerSpec { backlog: 3, half_open_max: 4, tcp: Arc::clone(&tcp) };
    net.listen(server, 80, listener);
    let udp = UdpSpec { from: server, to: client, client: 9, port: 9, payload: 700 };
    let gap = Nanos(5_600_000_000_000 / case.rate);
    net.datagrams(udp, Times::Constant { first: MS(200), gap, until: MS(900) });
    let clients = case.asks.len();
    let mut app = Run {
        random: Rng::new(case.seed, 7),
        hook: case.hook,
        asks: case.asks.clone(),
        ids: Vec::new(),
        got: vec![Vec::new(); clients],
        ended: vec![0; clients],
        last: Nanos::ZERO,
        seen: 0,
    };
    for n in 0..clients {
        let tcp = Arc::clone(&tcp);
        let wanted = Connect { from: client, to: server, client: n as u32, port: 80, tcp };
        app.ids.push(net.connect(&wanted));
    }
    for second in 1..=60 {
        net.run(&mut app, Nanos::from_secs(second * second * 4));
        net.audit().expect("sound");
    }
    assert_eq!(net.connections(), 0, "four hours are enough for everybody");
    let counts: Vec<LinkCounts> = [a, b, c, d].map(|link: LinkId| net.link(link)).into();
    for link in &counts {
        let ended = link.dropped() + link.lost.packets + link.delivered.packets;
        assert_eq!(link.offered.packets, ended, "nothing is under way");
        if let Limit::Packets(limit) = case.limit {
            assert!(link.waiting_max <= u64::from(limit));
        }
    }
    (app.got, counts, *net.counts(), app.ended)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_arrives_once_and_in_order(case in cases()) {
        let first = run(&case);
        for (asked, (got, ended)) in case.asks.iter().zip(first.0.iter().zip(&first.3)) {
            // A connection that has failed (once at each side, at the most) got a beginning of it.
            prop_assert!(asked.starts_with(got), "asked {asked:?}, got {got:?}");
            prop_assert!(*ended == 1 || *ended == 2);
            prop_assert!(*ended == 2 || asked == got || got.is_empty());
        }
        prop_assert_eq!(first, run(&case), "the same seed");
    }
}

/// The other random numbers of another seed reach the network.
#[test]
fn another_seed_is_another_run() {
    let case = Case {
        seed: 1,
        rate: 1_000_000,
        delays: [1, 20, 20],
        limit: Limit::Packets(10),
        red: true,
        loss: 0.02,
        hook: 0.01,
        window: 65_535,
        initial: 10,
        prompt: false,
        asks: vec![vec![50_000; 3]; 4],
    };
    let other = Case { seed: 2, ..case.clone() };
    assert_ne!(run(&case).1, run(&other).1);
    assert_eq!(run(&case).0, case.asks);
}
