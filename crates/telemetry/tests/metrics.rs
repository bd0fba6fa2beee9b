// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The schema and what is made of it. `TIDEGATE_BLESS=1` writes the golden files.
#![allow(clippy::unwrap_used)] // helpers of tests: to panic is to fail

use proptest::prelude::*;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use tidegate_model::limits::{BucketLimits, Cause, ServiceLimits, Why};
use tidegate_model::record::{Levels, Shed, Sums};
use tidegate_model::remote::Restriction;
use tidegate_model::shadow::ShadowSums;
use tidegate_model::signals::{
    AcceptQueue, Balance, BucketCounts, BucketSignals, Counts, Family, InterfaceQueue, Queue,
    Reading, Resource, Signals, Time, Times,
};
use tidegate_model::snapshot::{
    BucketState, Bypassed, FlowspecState, Followed, GatewayState, GatewaysState, InterfaceState,
    LinkState, LinkSums, PeerState, ProxyCounts, ReasonCount, RemoteState, RemoteSum, ReportCounts,
    RequestsState, ResponseCounts, RouteState, RuleCounts, RuleServed, RuleSignals, RuleState,
    ServiceState, SessionState, Snapshot, TlsCounts, UnevaluatedCount, VerdictCount,
};
use tidegate_model::totals::{BucketTotals, ConnectionTotals, Histogram, ServiceTotals};
use tidegate_telemetry::{
    Kind, LABEL_BYTES_MAX, OVER_TIME, OverTime, buckets_table, flowspec_lines, links_table,
    metrics, openmetrics, peers_table, points, reference, remote_table, rules_table,
    services_table, unevaluated_lines,
};
use tidegate_units::{Nanos, Rate, Share};

fn golden(path: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("TIDEGATE_BLESS").is_some() {
        fs::write(&path, found).unwrap();
    }
    let wanted = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        wanted == found,
        "{} is not up to date (TIDEGATE_BLESS=1 writes it):\n{found}",
        path.display()
    );
}

fn signals() -> Signals {
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
            first_byte: Some(Reading::fresh(times)),
            end: None,
        },
        balance: Balance {
            counts: Some(Reading::fresh(Counts {
                offered: 60,
                repeated: 20,
                admitted: 18,
                refused: 42,
                completed: 18,
                unknown: 3,
                unseen: 2,
                connections: None,
            })),
        },
        ..Signals::default()
    }
}

fn count(class: &str, verdict: &str, reason: &str, shadow: bool, count: u64) -> VerdictCount {
    VerdictCount {
        class: class.into(),
        verdict: verdict.into(),
        shadow,
        reason: reason.into(),
        count,
    }
}

/// What a busy rule counted and sensed.
fn scripts() -> (RuleCounts, RuleSignals) {
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
        answers: Some(Reading { value: Rate::per_second(69.5), age }),
        first_byte: Some(Reading { value: Nanos::from_millis(7), age }),
        end: Some(Reading { value: Nanos::from_millis(9), age }),
    };
    (counts, signals)
}

fn sums_of_a_bucket() -> Sums {
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

fn requests() -> RequestsState {
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
        answer: "503".into(),
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

fn shop() -> ServiceState {
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
        remote: remote_limits(),
        remote_sums: vec![RemoteSum {
            peer: "b1".into(),
            role: "from".into(),
            allowed: 455.0,
            in_force: Nanos::from_secs(10),
        }],
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

fn remote_limits() -> Vec<RemoteState> {
    vec![
        RemoteState {
            peer: "b1".into(),
            role: "from".into(),
            scope: "192.0.2.11:80".into(),
            restriction: Some(Restriction::Rate(Rate::per_second(40.0))),
            rate: Some(Rate::per_second(45.5)),
            left: Some(Nanos::from_millis(420)),
            sequence: 411,
            age: Some(Nanos::from_millis(80)),
            offered: 9000,
            refused: 4000,
            steps: 0,
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
            peer: "front".into(),
            role: "to".into(),
            scope: "shop-1".into(),
            ..RemoteState::default()
        },
    ]
}

fn times(millis: &[u64]) -> Histogram {
    let mut times = Histogram::default();
    millis.iter().for_each(|ms| times.record(Nanos::from_millis(*ms)));
    times
}

/// Buckets: cgi and large.
fn totals() -> ServiceTotals {
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
        ..ServiceTotals::default()
    }
}

fn sums() -> Sums {
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

fn gateways() -> GatewaysState {
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
        }],
    }
}

fn links() -> Vec<LinkState> {
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

fn snapshot() -> Snapshot {
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
                trouble: String::new(),
            },
            PeerState {
                name: "front".into(),
                role: "receives".into(),
                trouble: "Connection refused".into(),
                ..PeerState::default()
            },
        ],
        gateways: Some(gateways()),
        flowspec: Some(flowspec()),
    }
}

fn flowspec() -> FlowspecState {
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
        ..FlowspecState::default()
    }
}

#[test]
fn what_routers_are_told_is_shown() {
    golden("tests/golden/flowspec.txt", &flowspec_lines(&snapshot()));
    let shadow = FlowspecState { shadow: true, ..flowspec() };
    let shown = flowspec_lines(&Snapshot { flowspec: Some(shadow), ..Snapshot::default() });
    assert!(shown.starts_with("flowspec (gobgp): shadow: nothing is announced\nroute"), "{shown}");
    assert_eq!(flowspec_lines(&Snapshot::default()), "");
}

#[test]
fn the_table_of_peers_is_what_it_was() {
    golden("tests/golden/links.txt", &links_table(&snapshot()));
    golden("tests/golden/peers.txt", &peers_table(&snapshot()));
    golden("tests/golden/remote.txt", &remote_table(&snapshot()));
    assert_eq!(peers_table(&Snapshot::default()) + &remote_table(&Snapshot::default()), "");
}

#[test]
fn the_page_is_what_it_was() {
    golden("tests/golden/openmetrics.txt", &openmetrics(&snapshot()));
}

#[test]
fn the_table_is_what_it_was() {
    golden("tests/golden/services.txt", &services_table(&snapshot()));
}

#[test]
fn the_tables_of_request_rules_are_what_they_were() {
    let snapshot = snapshot();
    let lines = unevaluated_lines(&snapshot).join("\n");
    let all = [buckets_table(&snapshot, None), rules_table(&snapshot), lines].join("\n");
    golden("tests/golden/rules.txt", &format!("{all}\n"));
    let one = buckets_table(&snapshot, Some("watched"));
    assert!(one.contains("watched") && !one.contains("shop"), "{one}");
}

#[test]
fn without_request_rules_nothing_is_said_of_them() {
    let mut none = snapshot();
    none.services.iter_mut().for_each(|service| service.requests = None);
    assert_eq!((buckets_table(&none, None), rules_table(&none)), (String::new(), String::new()));
    assert!(unevaluated_lines(&none).is_empty());
    assert!(!openmetrics(&none).contains("tidegate_requests_rule_outcomes_requests_total{"));
}

#[test]
fn the_document_is_made_from_the_schema() {
    golden("../../docs/metrics.md", &reference());
}

#[test]
fn names_follow_the_rule_and_are_unique() {
    let names: Vec<String> = metrics().map(|m| m.full_name()).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    for (metric, name) in metrics().zip(&names) {
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
        assert_eq!(name.ends_with("_total"), metric.kind == Kind::Counter, "{name}");
        assert!(metric.kind != Kind::Histogram || name.ends_with("_seconds"), "{name}");
        assert!(metric.help.ends_with('.'), "{name} has a sentence");
        let allowed = [
            "service",
            "class",
            "verdict",
            "reason",
            "shadow",
            "layer",
            "interface",
            "namespace",
            "family",
            "signal",
            "resource",
            "cause",
            "stage",
            "timed",
            "mode",
            "version",
            "rule",
            "name",
            "bucket",
            "rank",
            "outcome",
            "status",
            "peer",
            "role",
            "table",
            "gateway",
            "adapter",
            "sign",
            "health",
            "level",
            "speaker",
            "state",
            "route",
            "unit",
        ];
        assert!(
            metric.labels.iter().all(|l| allowed.contains(l)),
            "{name}: a label beyond the list"
        );
    }
}

/// A gauge without a sum shows nothing of the time between two scrapes: each has one, or says why not.
#[test]
fn each_gauge_is_drawn_over_time() {
    let gauges = metrics().filter(|metric| metric.kind == Kind::Gauge);
    let gauges: Vec<String> = gauges.map(|gauge| gauge.full_name()).collect();
    let told: Vec<String> = OVER_TIME.iter().map(|(name, _)| format!("tidegate_{name}")).collect();
    assert_eq!(gauges, told, "each gauge stands in OVER_TIME, in the order of the schema");
    for (gauge, over) in OVER_TIME {
        let OverTime::Sum(sum) = over else { continue };
        let sum = metrics().find(|metric| metric.full_name() == format!("tidegate_{sum}"));
        assert!(sum.is_some_and(|sum| sum.kind == Kind::Counter), "the counter of {gauge}");
    }
}

#[test]
fn every_metric_appears_for_a_full_snapshot_with_as_many_values_as_labels() {
    let full = snapshot();
    let found: BTreeSet<String> = points(&full).into_iter().map(|p| p.name).collect();
    for metric in metrics() {
        assert!(found.contains(&metric.full_name()), "{} never appears", metric.full_name());
    }
    for point in points(&full) {
        let metric = metrics().find(|m| m.full_name() == point.name).unwrap();
        assert_eq!(point.labels.len(), metric.labels.len(), "{}", point.name);
    }
}

/// A counter that appears with its first increase hides that increase from a rate.
#[test]
fn what_never_shed_and_was_never_limited_counts_from_zero() {
    let page = openmetrics(&snapshot());
    for line in [
        "service_limit_allowed_syns_total{service=\"watched\"}",
        "service_level_known_seconds_total{service=\"watched\",level=\"limit_rate\"}",
        "service_shedding_seconds_total{service=\"watched\",cause=\"growth\",shadow=\"false\"}",
        "requests_bucket_limit_allowed_requests_total{service=\"shop\",bucket=\"large\"}",
    ] {
        assert_eq!(value(&page, &format!("tidegate_{line}")), 0.0, "{line}");
    }
    assert!(!page.contains("service_cpu_share_seconds_total{service=\"watched\"}"), "not known");
}

#[test]
fn what_is_not_known_is_absent_and_never_zero() {
    let page = openmetrics(&snapshot());
    assert!(!page.contains("tidegate_service_waiting_connections{service=\"silent\"}"));
    assert!(!page.contains("tidegate_service_limit_rate_per_second{service=\"watched\"}"));
}

/// The value of a line of the page.
fn value(page: &str, line: &str) -> f64 {
    let found = page.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("{line} is missing")).parse().unwrap()
}

/// As Prometheus does it (`histogram_quantile`): linear between the bounds around the rank.
fn quantile(page: &str, name: &str, share: f64) -> f64 {
    let prefix = format!("{name}_bucket{{le=\"");
    let bounds: Vec<(f64, f64)> = page
        .lines()
        .filter_map(|line| line.strip_prefix(&prefix)?.split_once("\",service=\"shop\"} "))
        .map(|(bound, count)| (bound.replace("+Inf", "inf"), count))
        .map(|(bound, count)| (bound.parse().unwrap(), count.parse().unwrap()))
        .collect();
    let rank = share * bounds.last().unwrap().1;
    let at = bounds.iter().position(|(_, count)| *count >= rank).unwrap();
    let (low, below) = if at == 0 { (0.0, 0.0) } else { bounds[at - 1] };
    let (high, count) = bounds[at];
    low + (high - low) * (rank - below) / (count - below)
}

/// Whatever the times are: their quantiles in Prometheus are within 13 % of the true ones.
#[test]
fn quantiles_of_the_page_are_those_of_the_times() {
    let mut seed = 1_u64;
    let mut uniform = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 11) as f64 / (1_u64 << 53) as f64
    };
    for mean_ms in [0.3, 4.0, 110.0, 3000.0] {
        // Exponential, and all the same.
        let spread: Vec<f64> = (0..5000).map(|_| -mean_ms * uniform().ln()).collect();
        for mut all in [spread, vec![mean_ms; 100]] {
            let mut shop = snapshot();
            let mut times = Histogram::default();
            all.iter().for_each(|ms| times.record(Nanos::from_secs_f64(ms / 1e3)));
            let totals = shop.services[0].totals.get_or_insert_default();
            totals.first_byte = times;
            let page = openmetrics(&shop);
            all.sort_by(f64::total_cmp);
            for share in [0.5, 0.99] {
                let told = quantile(&page, "tidegate_service_first_byte_time_seconds", share) * 1e3;
                let is = all[((all.len() as f64 * share).ceil() as usize).max(1) - 1];
                assert!((told / is - 1.0).abs() < 0.13, "{share} of {mean_ms} ms: {told} for {is}");
            }
        }
    }
}

#[test]
fn a_histogram_holds_every_time_once() {
    let page = openmetrics(&snapshot());
    let name = "tidegate_service_first_byte_time_seconds";
    assert_eq!(value(&page, &format!("{name}_count{{service=\"shop\"}}")), 6.0);
    assert!((value(&page, &format!("{name}_sum{{service=\"shop\"}}")) - 60.71).abs() < 1e-9);
    let below = value(&page, &format!("{name}_bucket{{le=\"0.000131072\",service=\"shop\"}}"));
    let all = value(&page, &format!("{name}_bucket{{le=\"+Inf\",service=\"shop\"}}"));
    assert_eq!((below, all), (1.0, 6.0), "one of 0 ms, and one beyond the last bound");
    // A metric without responses says nothing, and not zero.
    let mut blind = snapshot();
    blind.services[0].sees_answers = false;
    assert!(!openmetrics(&blind).contains(&format!("{name}_bucket")));
}

#[test]
fn moments_are_times_of_day_by_the_clocks_of_the_snapshot() {
    let page = openmetrics(&snapshot());
    let began = value(&page, "tidegate_service_shedding_began_timestamp_seconds{service=\"shop\"}");
    assert_eq!(began, 1_800_000_070.0);
    let mut unknown = snapshot();
    unknown.unix = None;
    assert!(!openmetrics(&unknown).contains("began_timestamp_seconds{"));
}

/// Reads a page as a strict reader would: every line is a comment or `name{labels} value`.
fn samples(page: &str) -> Result<usize, String> {
    let mut count = 0;
    for line in page.lines().filter(|l| !l.starts_with('#')) {
        let wrong = || format!("not a sample: {line:?}");
        let name = line.find(['{', ' ']).ok_or_else(wrong)?;
        let mut rest = &line[name..];
        if let Some(labels) = rest.strip_prefix('{') {
            rest = after_labels(labels).ok_or_else(wrong)?;
        }
        rest.strip_prefix(' ').and_then(|v| v.parse::<f64>().ok()).ok_or_else(wrong)?;
        count += 1;
    }
    Ok(count)
}

/// What follows `key="value",…}`; escapes are `\\`, `\"` and `\n`.
fn after_labels(mut text: &str) -> Option<&str> {
    loop {
        if let Some(rest) = text.strip_prefix('}') {
            return Some(rest);
        }
        text = text.strip_prefix(',').unwrap_or(text);
        let (key, rest) = text.split_once("=\"")?;
        key.bytes().all(|b| b.is_ascii_lowercase()).then_some(())?;
        let mut chars = rest.char_indices();
        text = loop {
            match chars.next()? {
                (_, '\\') => {
                    chars.next().filter(|(_, c)| matches!(c, '\\' | '"' | 'n'))?;
                }
                (i, '"') => break &rest[i + 1..],
                _ => {}
            }
        };
    }
}

#[test]
fn hostile_names_cannot_break_out_of_a_label() {
    for name in ["a\"} 1\nevil_total 9", "back\\slash", "new\nline", "\u{1f525}", "", "\\\"", "}"] {
        let mut hostile = snapshot();
        let before = samples(&openmetrics(&hostile)).unwrap();
        hostile.services[0].name = name.into();
        hostile.services[0].counts[0].class = name.into();
        let rules = hostile.services[0].requests.as_mut().unwrap();
        rules.buckets[0].name = name.into();
        rules.rules[0].name = name.into();
        let page = openmetrics(&hostile);
        assert_eq!(samples(&page), Ok(before), "{name:?}");
        assert!(!page.contains("\nevil"), "{name:?}");
        assert!(!services_table(&hostile).contains("\nevil"));
        assert!(!buckets_table(&hostile, None).contains("\nevil"));
        assert!(!rules_table(&hostile).contains("\nevil"));
    }
}

#[test]
fn a_long_name_is_cut_between_characters() {
    let mut long = snapshot();
    long.services[0].name = "é".repeat(LABEL_BYTES_MAX);
    let cut = points(&long).into_iter().filter_map(|p| p.labels.get("service").cloned());
    assert!(cut.map(|v| v.len()).all(|n| n <= LABEL_BYTES_MAX));
}

proptest! {
    #[test]
    fn any_name_gives_a_page_that_can_be_read(name in any::<String>(), reason in any::<String>()) {
        let mut hostile = snapshot();
        hostile.services[0].name = name;
        hostile.passed[0].reason = reason;
        prop_assert!(samples(&openmetrics(&hostile)).is_ok());
    }
}
