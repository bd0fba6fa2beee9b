// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A snapshot of everything.

use tidegate_model::Mode;
use tidegate_model::in_band::{InBandState, RouterSaid};
use tidegate_model::limits::{BucketLimits, Cause, ServiceLimits, Why};
use tidegate_model::record::{Levels, Shed, Sums};
use tidegate_model::remote::{Restriction, Unit};
use tidegate_model::router::{
    CrowdState, DestinationCounts, DestinationFigures, DestinationState, HotSpotState, RouterState,
    SizeFigures,
};
use tidegate_model::shadow::ShadowSums;
use tidegate_model::sharing::{BusState, PartState, SharingState};
use tidegate_model::signals::{
    AcceptQueue, Balance, BucketCounts, BucketSignals, Counts, Family, InterfaceQueue, Queue,
    Reading, Resource, Signals, Time, Times,
};
use tidegate_model::snapshot::{
    BucketState, Bypassed, FlowspecState, Followed, GatewayState, GatewaysState, ImportState,
    ImportedState, InterfaceState, LinkState, LinkSums, PeerState, ProxyCounts, ReasonCount,
    RefusedRoutes, RemoteState, RemoteSum, ReportCounts, RequestsState, ResponseCounts, RouteState,
    RuleCounts, RuleServed, RuleSignals, RuleState, ServiceState, SessionState, Snapshot,
    TlsCounts, UnevaluatedCount, VerdictCount,
};
use tidegate_model::totals::{
    BucketTotals, ConnectionTotals, DatagramTotals, Histogram, ServiceTotals,
};
use tidegate_units::{Nanos, Rate, Share};

pub(crate) fn signals() -> Signals {
    let times = Times {
        count: 18,
        sum: Nanos::from_millis(1800),
        p50: Nanos::from_millis(90),
        p99: Nanos::from_millis(450),
    };
    Signals {
        now: Nanos::from_secs(100),
        period: Nanos::from_millis(100),
        resource: Resource {
            cpu: Some(Reading { value: Share::new(0.97), age: Nanos::from_millis(100) }),
            busiest_thread: Some(Reading::fresh(Share::new(0.99))),
            cpu_pressure: Some(Reading::fresh(Share::new(0.5))),
            bandwidth: Some(Reading::fresh(1.25e6)),
            ..Resource::default()
        },
        queue: Queue {
            accept: Some(Reading::fresh(AcceptQueue { length: 12, limit: 511 })),
            interface: Some(Reading::fresh(InterfaceQueue { length: 34.5, limit: 100.0 })),
        },
        time: Time {
            waiting: Some(Reading::fresh(140)),
            open: Some(Reading::fresh(300)),
            silent: Some(Reading::fresh(60)),
            slow: Some(Reading::fresh(7)),
            proxy_turn: Some(Reading::fresh(Nanos::from_millis(40))),
            first_byte: Some(Reading::fresh(times)),
            end: None,
        },
        balance: Balance {
            counts: Some(Reading::fresh(Counts {
                offered: 60,
                repeated: 20,
                admitted: 18,
                refused: 42,
                refused_remote: None,
                completed: 18,
                unknown: 3,
                unseen: 2,
                connections: None,
            })),
        },
        ..Signals::default()
    }
}

pub(crate) fn count(
    class: &str,
    verdict: &str,
    reason: &str,
    shadow: bool,
    count: u64,
) -> VerdictCount {
    VerdictCount {
        class: class.into(),
        verdict: verdict.into(),
        shadow,
        reason: reason.into(),
        count,
    }
}

/// What a busy rule counted and sensed.
pub(crate) fn scripts() -> (RuleCounts, RuleSignals) {
    let served = RuleServed { begun: 1400, ended: 1388, answered: 1380, ..RuleServed::default() };
    let counts = RuleCounts {
        admitted: 1400,
        refused: 720,
        lease: 5,
        repeated: 2,
        served,
        ..RuleCounts::default()
    };
    let age = Nanos::from_millis(300);
    let signals = RuleSignals {
        in_flight: Some(Reading { value: 12, age }),
        responses: Some(Reading { value: Rate::per_second(69.5), age }),
        first_byte: Some(Reading { value: Nanos::from_millis(7), age }),
        end: Some(Reading { value: Nanos::from_millis(9), age }),
    };
    (counts, signals)
}

pub(crate) fn sums_of_a_bucket() -> Sums {
    Sums {
        shedding: vec![Shed { cause: Cause::Reference, shadow: false, time: Nanos::from_secs(3) }],
        episodes: 1,
        levels: Levels {
            waiting: Some(270.0),
            limit_rate: Some(222.0),
            limit_burst: Some(15.0),
            ..Levels::default()
        },
        known: Levels { limit_rate: Some(3.0), ..Levels::default() },
        ..Sums::default()
    }
}

pub(crate) fn requests() -> RequestsState {
    let times = signals().time.first_byte;
    let cgi = BucketState {
        name: "cgi".into(),
        resource: "cpu".into(),
        controller: "p".into(),
        limits: BucketLimits {
            rate: Some(Rate::per_second(74.0)),
            burst: 5,
            why: Why { shedding: true, ..Why::default() },
            ..BucketLimits::default()
        },
        signals: BucketSignals {
            counts: Some(Reading::fresh(BucketCounts {
                offered: [1, 12, 2],
                refused: [0, 6, 2],
                refused_first: 6,
                begun: 7,
                ended: 6,
            })),
            in_flight: Some(Reading::fresh(9)),
            first_byte: times,
            end: times,
        },
        offered: [100, 2000, 30],
        refused: [0, 700, 25],
        level: None,
        sums: sums_of_a_bucket(),
    };
    let idle = BucketState {
        name: "large".into(),
        resource: "bandwidth".into(),
        controller: "pd".into(),
        ..BucketState::default()
    };
    let rule = |name: &str, rule: &str, bucket: Option<&str>, counts| RuleState {
        name: name.into(),
        rule: rule.into(),
        bucket: bucket.map(Into::into),
        action: "503".into(),
        counts,
        signals: RuleSignals::default(),
        in_flight_sum: 36.5,
    };
    let (counts, signals) = scripts();
    let unevaluated = |reason: &str, count| UnevaluatedCount {
        reason: reason.into(),
        text: format!("text of {reason}"),
        count,
    };
    RequestsState {
        mode: "enforce".into(),
        buckets: vec![cgi, idle],
        rules: vec![
            RuleState { signals, ..rule("scripts", "GET,POST /cgi-bin/", Some("cgi"), counts) },
            rule("/large/", "/large/", Some("large"), RuleCounts::default()),
            rule("/healthz", "/healthz", None, RuleCounts { admitted: 8, ..RuleCounts::default() }),
        ],
        unevaluated: vec![unevaluated("body", 3), unevaluated("tls", 40), unevaluated("split", 0)],
        defer_accept: Some(false),
        followed: Some(Followed { connections: 70, limit: 65_536 }),
        followed_sum: 4200.5,
    }
}

pub(crate) fn shop() -> ServiceState {
    ServiceState {
        name: "shop".into(),
        mode: "enforce".into(),
        mode_set: None,
        policy: "fresh_first".into(),
        action: "reject".into(),
        controller: "default".into(),
        signals: signals(),
        limits: ServiceLimits {
            rate: Some(Rate::per_second(182.5)),
            burst: 20,
            waiting_max: Some(150),
            why: Why {
                shedding: true,
                alarmed: vec![Family::Resource, Family::Balance],
                ..Why::default()
            },
            ..ServiceLimits::default()
        },
        counts: vec![
            count("default", "admit", "token", false, 1000),
            count("default", "reject", "rate", false, 400),
        ],
        requests: Some(requests()),
        restored: None,
        bypassed: Some(Bypassed { connections: 12, ..Bypassed::default() }),
        unreplied: Some(Bypassed { connections: 7, ..Bypassed::default() }),
        barred: String::new(),
        remote: remote_limits(),
        remote_sums: vec![
            RemoteSum {
                peer: "b1".into(),
                role: "from".into(),
                allowed: 455.0,
                in_force: Nanos::from_secs(10),
                unit: Unit::Connections,
            },
            RemoteSum {
                peer: "b1".into(),
                role: "from".into(),
                allowed: 700.0,
                in_force: Nanos::from_secs(5),
                unit: Unit::Datagrams,
            },
            RemoteSum {
                peer: "b1".into(),
                role: "from".into(),
                allowed: 900.0,
                in_force: Nanos::from_secs(3),
                unit: Unit::Requests,
            },
        ],
        level: None,
        totals: Some(totals()),
        sees_answers: true,
        sums: sums(),
        shadow: Some(ShadowSums {
            span: [Nanos::from_secs(60), Nanos::from_secs(120), Nanos::ZERO],
            offered: [900, 4000, 3],
            refused: [1, 700, 0],
        }),
    }
}

pub(crate) fn remote_limits() -> Vec<RemoteState> {
    let mut all = taken();
    all.extend(given());
    all
}

/// What peers limit here.
fn taken() -> Vec<RemoteState> {
    vec![
        RemoteState {
            peer: "b1".into(),
            role: "from".into(),
            scope: "192.0.2.11:80".into(),
            restriction: Some(Restriction::Rate(Rate::per_second(40.0))),
            priority: 0,
            rate: Some(Rate::per_second(45.5)),
            left: Some(Nanos::from_millis(420)),
            sequence: 411,
            age: Some(Nanos::from_millis(80)),
            offered: 9000,
            refused: 4000,
            would_refuse: 0,
            steps: 0,
            unit: Unit::Connections,
            why: String::new(),
        },
        RemoteState {
            peer: "b1".into(),
            role: "from".into(),
            scope: "192.0.2.11:80".into(),
            unit: Unit::Datagrams,
            restriction: Some(Restriction::Datagrams(Rate::per_second(120.0))),
            priority: 0,
            rate: Some(Rate::per_second(140.0)),
            left: Some(Nanos::from_secs(9)),
            sequence: 412,
            age: Some(Nanos::from_secs(1)),
            offered: 90_000,
            refused: 60_000,
            would_refuse: 0,
            steps: 0,
            why: String::new(),
        },
        RemoteState {
            peer: "b1".into(),
            role: "from".into(),
            scope: "shop".into(),
            restriction: Some(Restriction::Gap(Nanos::from_millis(10))),
            rate: Some(Rate::per_second(200.0)),
            steps: 1,
            ..RemoteState::default()
        },
        RemoteState {
            peer: "b1".into(),
            role: "from".into(),
            scope: "shop".into(),
            unit: Unit::Requests,
            restriction: Some(Restriction::RequestLoss(Share::new(0.25))),
            priority: 3,
            rate: Some(Rate::per_second(300.0)),
            left: Some(Nanos::from_millis(380)),
            offered: 4000,
            refused: 1000,
            ..RemoteState::default()
        },
    ]
}

/// What limits peers.
fn given() -> Vec<RemoteState> {
    vec![
        RemoteState {
            peer: "front".into(),
            role: "to".into(),
            scope: "shop-1".into(),
            ..RemoteState::default()
        },
        RemoteState {
            peer: "front".into(),
            role: "to".into(),
            scope: "shop".into(),
            unit: Unit::Requests,
            restriction: Some(Restriction::Requests(Rate::per_second(860.0))),
            rate: Some(Rate::per_second(860.0)),
            left: Some(Nanos::from_millis(900)),
            offered: 3000,
            refused: 2100,
            why: "shedding: capacity 871.2/s".into(),
            ..RemoteState::default()
        },
    ]
}

pub(crate) fn times(millis: &[u64]) -> Histogram {
    let mut times = Histogram::default();
    millis.iter().for_each(|ms| times.record(Nanos::from_millis(*ms)));
    times
}

/// Buckets: cgi and large.
pub(crate) fn totals() -> ServiceTotals {
    let cgi = BucketTotals {
        begun: 1400,
        ended: 1391,
        first_byte: times(&[80, 90, 450]),
        end: times(&[90, 95, 460]),
        ..BucketTotals::default()
    };
    ServiceTotals {
        offered: 1400,
        repeated: 300,
        admitted: 1000,
        refused: 400,
        first_byte: times(&[0, 80, 90, 90, 450, 60_000]),
        unknown: 3,
        unseen: 2,
        end: times(&[100, 4_000_000, 5_000_000]),
        connections: ConnectionTotals {
            replied: 1000,
            proved: 990,
            asked: 980,
            answered: 900,
            lost: 5,
            ended: 850,
            ended_exchanges: 1700,
        },
        buckets: vec![cgi, BucketTotals::default()],
        datagrams: Some(DatagramTotals {
            offered: 90_000,
            refused: 60_000,
            refused_bytes: 60_000_000,
            spared: 40,
        }),
        ..ServiceTotals::default()
    }
}

pub(crate) fn sums() -> Sums {
    let shed = |cause, shadow, seconds| Shed { cause, shadow, time: Nanos::from_secs(seconds) };
    Sums {
        shedding: vec![shed(Cause::Growth, false, 30), shed(Cause::Limit, true, 2)],
        episodes: 2,
        began: Some(Nanos::from_secs(70)),
        ended: Some(Nanos::from_secs(50)),
        alarmed: [30, 0, 31, 32].map(Nanos::from_secs),
        levels: Levels {
            cpu: Some(41.5),
            busiest_thread: Some(52.25),
            waiting: Some(4200.0),
            accept_queue: Some(300.5),
            sent: Some(1.25e8),
            open: Some(9000.0),
            silent: Some(1800.0),
            slow: Some(210.0),
            interface_queue: Some(1035.5),
            cpu_pressure: Some(15.0),
            memory_pressure: Some(0.25),
            io_pressure: Some(0.5),
            limit_rate: Some(5475.0),
            limit_burst: Some(600.0),
            limit_waiting: Some(4500.0),
        },
        known: Levels { cpu: Some(60.0), limit_rate: Some(30.0), ..Levels::default() },
    }
}

pub(crate) fn gateways() -> GatewaysState {
    GatewaysState {
        agents: Vec::new(),
        gateways: vec![
            GatewayState {
                name: "edge".into(),
                adapter: "nginx".into(),
                listen: "127.0.0.1:9470".into(),
                ..GatewayState::default()
            },
            GatewayState {
                name: "mesh".into(),
                adapter: "envoy".into(),
                listen: "127.0.0.1:9472".into(),
                problem: "127.0.0.1:9472 cannot be opened: Address already in use".into(),
                tls: Some(TlsCounts { handshakes_failed: 13, last: "no certificate".into() }),
                ..GatewayState::default()
            },
            GatewayState {
                name: "door".into(),
                adapter: "proxy".into(),
                listen: "0.0.0.0:443".into(),
                proxy: Some(ProxyCounts {
                    connections: 12,
                    turned_away: 1,
                    handshakes_failed: 2,
                    malformed: 3,
                    unreachable: 4,
                    broken: 5,
                    timed_out: 6,
                    full: 7,
                    waiting: 8,
                    waited: 9,
                    waited_ns: 2_500_000_000,
                    queue_full: 10,
                    waited_too_long: 11,
                    left_queue: 12,
                    connections_ms: 36_500,
                    waiting_ms: 2_750,
                }),
                ..GatewayState::default()
            },
        ],
        reports: ReportCounts { completed: 900, late: 3, unknown: 2, untracked: 1 },
        misunderstood: 4,
        responses: vec![ResponseCounts {
            service: "shop".into(),
            by_hundreds: [5, 0, 880, 10, 3, 2],
            lost_percent: 12,
            late: Nanos::from_millis(40),
        }],
    }
}

pub(crate) fn links() -> Vec<LinkState> {
    vec![
        LinkState {
            interface: "v1".into(),
            congested: true,
            lasts: Some(Nanos::from_secs(12)),
            signs: vec!["drops".into(), "rate".into()],
            episodes: 3,
            sent: Some(249_000.0),
            capacity: Some(250_000.0),
            dropped: Some(0.125),
            filled: Some(1.0),
            sums: LinkSums {
                sent: 14_940_000,
                congested: Nanos::from_secs(12),
                signs: [Nanos::ZERO, Nanos::from_secs(2), Nanos::from_secs(11)],
            },
            problem: String::new(),
        },
        LinkState {
            interface: "v2".into(),
            problem: "there is no such interface".into(),
            ..LinkState::default()
        },
    ]
}

fn in_band() -> InBandState {
    let router = RouterSaid {
        router: "r1".into(),
        address: [192, 0, 2, 1].into(),
        entries: 150,
        packets: 1200,
        packets_ever: 4800,
        at: Nanos::from_millis(99_700),
    };
    InBandState { added: 40, no_room: 2, routers: vec![router], unknown_routers: 5 }
}

pub(crate) fn snapshot() -> Snapshot {
    let watched = ServiceState {
        name: "watched".into(),
        mode: "shadow".into(),
        signals: signals(),
        counts: vec![count("default", "drop", "rate", true, 7)],
        requests: Some(RequestsState { mode: "shadow".into(), ..requests() }),
        ..ServiceState::default()
    };
    let unknown =
        ServiceState { name: "silent".into(), mode: "shadow".into(), ..ServiceState::default() };
    Snapshot {
        version: "0.1.0".into(),
        now: Nanos::from_secs(100),
        unix: Some(Nanos::from_secs(1_800_000_100)),
        started: Nanos::from_secs(40),
        config_generation: 2,
        limits_generation: 31,
        released: false,
        release_left: None,
        heartbeat: Some(Nanos::from_millis(99_900)),
        interfaces: vec![InterfaceState {
            name: "eth0".into(),
            namespace: String::new(),
            attached: "xdp".into(),
            ..InterfaceState::default()
        }],
        links: links(),
        services: vec![shop(), watched, unknown],
        passed: vec![ReasonCount { reason: "not-service".into(), count: 12 }],
        cleared: Some(12),
        in_band: Some(in_band()),
        table_losses: vec![ReasonCount { reason: "handshakes".into(), count: 3 }],
        warnings: vec!["the accept queue of silent cannot be read".into()],
        peers: vec![
            PeerState {
                name: "b1".into(),
                role: "reports".into(),
                identity: "spiffe://example.org/b1".into(),
                up: true,
                version: 2,
                epoch: 2,
                sequence: 410,
                age: Some(Nanos::from_millis(80)),
                reports: 1400,
                limits: 70,
                refused: vec![ReasonCount { reason: "not-granted".into(), count: 3 }],
                problem: String::new(),
            },
            PeerState {
                name: "front".into(),
                role: "receives".into(),
                problem: "Connection refused".into(),
                ..PeerState::default()
            },
        ],
        bus: Some(bus()),
        gateways: Some(gateways()),
        flowspec: Some(flowspec()),
        router: Some(router()),
    }
}

fn bus() -> BusState {
    BusState {
        servers: vec!["nats-1.example.org:4222".into(), "nats-2.example.org:4222".into()],
        subject: "tidegate.routers".into(),
        up: true,
        lasts: Nanos::from_secs(90),
        connections: 2,
        sent: 311,
        unsent: 4,
        taken: 298,
        refused: vec![
            ReasonCount { reason: "stale".into(), count: 2 },
            ReasonCount { reason: "signature".into(), count: 7 },
        ],
        problem: String::new(),
    }
}

fn crowd() -> CrowdState {
    CrowdState {
        destination: "192.0.2.1:80".into(),
        lasts: Nanos::from_secs(12),
        why: "only its server is slow".into(),
        demand: 75.0,
        slow: 0.61,
        limit: Some(48.25),
        unlimited: String::new(),
        refused: 900,
        reset: 120,
        would_refuse: 31,
        abacus: Some(false),
        hot_spots: [("", 0.91), ("/live", 0.64)]
            .map(|(path, share)| HotSpotState {
                host: "shop.example".into(),
                path: path.into(),
                share,
            })
            .into(),
        part: Some(PartState { routers: 2, whole: 80.5, share: 0.6 }),
    }
}

fn size(below_bytes: Option<u64>, completed: f64, ms: [u64; 2]) -> SizeFigures {
    let [median, p99] = ms.map(Nanos::from_millis);
    SizeFigures { below_bytes, completed, median, p99 }
}

fn figures() -> DestinationFigures {
    DestinationFigures {
        syns: 8.2,
        admitted: 8.0,
        completed: 17.6,
        delivered: 178_000.0,
        again: Some(0.01),
        median: Some(Nanos::from_millis(57)),
        p99: Some(Nanos::from_millis(655)),
        fastest: Some(61_000.0),
        sizes: vec![size(Some(4096), 17.2, [57, 128]), size(None, 0.4, [655, 655])],
    }
}

pub(crate) fn router() -> RouterState {
    let counts = DestinationCounts {
        syns: 410,
        syns_repeated: 12,
        admitted: 400,
        begun: 900,
        completed: 880,
        given_up: 5,
        resumed: 0,
        sent_bytes: 9_000_000,
        again_bytes: 90_000,
        delivered_bytes: 8_900_000,
        refused: 913,
        reset: 120,
        would_refuse: 31,
    };
    let figures = figures();
    let quiet = DestinationFigures {
        median: None,
        p99: None,
        fastest: None,
        sizes: Vec::new(),
        ..figures.clone()
    };
    RouterState {
        problem: String::new(),
        connections: 37,
        connections_max: 65_536,
        sample: 4,
        known: 2,
        known_max: 4096,
        losses: vec![
            ReasonCount { reason: "connections".into(), count: 0 },
            ReasonCount { reason: "unknown".into(), count: 3 },
        ],
        crowds_missed: String::new(),
        crowds: vec![crowd()],
        sharing: vec![
            SharingState {
                router: "r2".into(),
                age: Some(Nanos::from_millis(400)),
                destinations: 2,
                crowds: 1,
            },
            SharingState { router: "r3".into(), ..SharingState::default() },
        ],
        limit_mode: Some(Mode::Enforce),
        limits_open: String::new(),
        limits_time: Nanos::from_secs(40),
        limits_allowed: 1930.0,
        crowds_total: 3,
        crowds_time: Nanos::from_secs(95),
        all: DestinationState { address: "all".into(), counts, last: Some(quiet) },
        destinations: vec![
            DestinationState { address: "192.0.2.1:80".into(), counts, last: Some(figures) },
            DestinationState {
                address: "[2001:db8::1]:443".into(),
                counts: DestinationCounts::default(),
                last: None,
            },
        ],
    }
}

pub(crate) fn flowspec() -> FlowspecState {
    let peer = |name: &str, address: &str, up| SessionState {
        name: name.into(),
        address: address.into(),
        up: Some(up),
    };
    let route = |rule: &str, wanted, told, withheld: &str| RouteState {
        service: "shop".into(),
        rule: rule.into(),
        unit: "packets".into(),
        wanted,
        told,
        withheld: withheld.into(),
    };
    FlowspecState {
        speaker: "gobgp".into(),
        up: true,
        started: 2,
        refused: 3,
        peers: vec![peer("r1", "192.0.2.1", true), peer("r2", "192.0.2.2", false)],
        budget: 10,
        routes: vec![
            route(
                "to 192.0.2.11/32 protocol 6 port 80 syn",
                Some(130.0),
                Some(120.0),
                "hysteresis",
            ),
            route("to 192.0.2.12/32 protocol 6 port 80 syn", Some(130.0), None, "budget"),
        ],
        import: Some(import()),
        ..FlowspecState::default()
    }
}

fn import() -> ImportState {
    let rule = |rule: &str, packets_rate, bytes_rate, refused| ImportedState {
        rule: rule.into(),
        packets_rate,
        bytes_rate,
        packets: 6000,
        bytes: 6_168_000,
        refused,
    };
    ImportState {
        peer: "r1".into(),
        shadow: false,
        heard: true,
        problem: String::new(),
        rules: vec![
            rule("to 192.0.2.11/32 protocol 17 port 53", None, Some(257_000.0), 4500),
            rule("to 192.0.2.11/32 protocol 6 port 443", None, None, 0),
            rule("to 192.0.2.0/24", Some(20.0), Some(1_000.0), 0),
        ],
        refused: vec![RefusedRoutes { reason: "no-route".into(), count: 2 }],
    }
}
