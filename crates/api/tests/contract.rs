// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The words of the contract: lines on the socket, HTTP responses, explanations.
#![allow(clippy::unwrap_used)] // helpers of tests: to panic is to fail

use proptest::prelude::*;
use tidegate_api::explain::{Known, SAMPLES_MAX, explain};
use tidegate_api::http::{HEARTBEAT_AGE_MAX, Response, SNAPSHOT_AGE_MAX, respond};
use tidegate_api::protocol::{
    ApiError, ErrorKind, Handover, HandoverPhase, Reply, Request, decode_reply, decode_request,
    encode_reply, encode_request,
};
use tidegate_config::{Config, Registry, parse};
use tidegate_model::Mode;
use tidegate_model::limits::{BucketLimits, Cause, ServiceLimits, Why};
use tidegate_model::record::{Ended, Episode, Event, Levels, Moment, Outcome, Sums, What};
use tidegate_model::signals::Family;
use tidegate_model::snapshot::{
    BucketState, Bypassed, InterfaceState, Lately, RefusedLately, RequestsState, RuleState, Sample,
    ServiceState, Snapshot,
};
use tidegate_model::totals::Histogram;
use tidegate_units::{Nanos, Rate};

const CONFIG: &str = r#"
interfaces: [{name: eth0, trust_dscp: true}]
services:
  shop:
    mode: enforce
    listen: ["*:80"]
    classes:
      - {name: partners, sources: [198.51.100.0/24], priority: 0}
      - {name: crawler, sources: [198.51.100.64/26], priority: 5}
      - {name: voice, dscp: 46, priority: 1}
exempt: {sources: [10.0.0.0/8]}
"#;

fn config() -> Config {
    parse(CONFIG, &Registry::new(["fresh_first"], ["default"])).unwrap()
}

fn snapshot() -> Snapshot {
    let why = Why {
        shedding: true,
        since: Nanos::from_secs(90),
        alarmed: vec![Family::Resource, Family::Queue],
        cause: Some(Cause::Growth),
        text: "resource and queue agree: CPU 100 %, accept queue 511 of 511.".into(),
    };
    let limits = ServiceLimits {
        rate: Some(Rate::per_second(187.25)),
        burst: 20,
        waiting_max: Some(150),
        min_rate: Some(Rate::per_second(0.1)),
        why,
        ..ServiceLimits::default()
    };
    let shop =
        ServiceState { name: "shop".into(), mode: "enforce".into(), limits, ..Default::default() };
    Snapshot {
        now: Nanos::from_secs(100),
        heartbeat: Some(Nanos::from_secs(100)),
        interfaces: vec![InterfaceState {
            name: "eth0".into(),
            attached: "xdp".into(),
            ..InterfaceState::default()
        }],
        services: vec![shop],
        ..Snapshot::default()
    }
}

fn sample(at_s: u64, client: &str) -> Sample {
    Sample {
        at: Nanos::from_secs(at_s),
        client: client.into(),
        request: None,
        service: "shop".into(),
        class: "default".into(),
        verdict: "reject".into(),
        shadow: false,
        reason: "rate".into(),
    }
}

#[test]
fn the_lines_are_what_the_contract_says() {
    let line = |request: &Request| String::from_utf8(encode_request(request)).unwrap();
    let mode =
        Request::Mode { service: "shop".into(), mode: Mode::Shadow, percent: None, lasts: None };
    let cases = [
        (Request::Ping {}, r#"{"version":1,"request":"ping"}"#),
        (Request::Status {}, r#"{"version":1,"request":"status"}"#),
        (Request::History {}, r#"{"version":1,"request":"history"}"#),
        (
            Request::ShadowReport {
                service: Some("shop".into()),
                since: Some(Nanos::from_secs(1)),
                class: None,
            },
            r#"{"version":1,"request":"shadow-report","service":"shop","since":1000000000}"#,
        ),
        (
            Request::Release { on: true, lasts: None },
            r#"{"version":1,"request":"release","on":true}"#,
        ),
        (mode, r#"{"version":1,"request":"mode","service":"shop","mode":"shadow"}"#),
        (Request::Reload { path: None }, r#"{"version":1,"request":"reload"}"#),
        (
            Request::Handover { phase: HandoverPhase::Begin },
            r#"{"version":1,"request":"handover","phase":"begin"}"#,
        ),
        (
            Request::Explain { address: "2001:db8::1".parse().unwrap(), port: Some(5) },
            r#"{"version":1,"request":"explain","address":"2001:db8::1","port":5}"#,
        ),
        (
            Request::ExplainRequest { id: "r-1".into() },
            r#"{"version":1,"request":"explain-request","id":"r-1"}"#,
        ),
    ];
    for (request, wanted) in cases {
        assert_eq!(line(&request), format!("{wanted}\n"));
        assert_eq!(decode_request(wanted.as_bytes()).unwrap(), request);
    }
}

#[test]
fn replies_survive_the_way() {
    let explanation = explain(
        &Known {
            classes: &config().classify("192.0.2.1".parse().unwrap()),
            snapshot: &snapshot(),
            samples: &[sample(99, "192.0.2.1:5000")],
            refused: Lately::default(),
            reason_text: &|_| String::new(),
        },
        "192.0.2.1".parse().unwrap(),
        None,
    );
    for reply in [
        Reply::Pong { program: "0.1.0".into(), pid: 1 },
        Reply::Status { snapshot: Box::new(snapshot()) },
        Reply::Explain { explanation: Box::new(explanation) },
        handover(),
        Reply::Error(ApiError::new(ErrorKind::Failed, "no").with_details(vec!["why".into()])),
    ] {
        let line = encode_reply(reply.clone());
        assert_eq!(line.iter().filter(|b| **b == b'\n').count(), 1, "one line");
        assert_eq!(decode_reply(&line).unwrap(), reply);
    }
}

fn handover() -> Reply {
    Reply::Handover(Handover {
        generation: 7,
        limits: [("shop".into(), ServiceLimits { burst: 3, ..ServiceLimits::default() })].into(),
        modes: [("shop".into(), Mode::Shadow)].into(),
        pins: Some("/sys/fs/bpf/tidegate".into()),
        ..Handover::default()
    })
}

/// An older daemon, or a newer one, is the other side of a take-over.
#[test]
fn a_handover_stands_on_the_line_as_it_always_did() {
    let text = String::from_utf8(encode_reply(handover())).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["reply"], "handover");
    assert_eq!(value["generation"], 7);
    assert_eq!(value["limits"]["shop"]["burst"], 3);
    assert_eq!(value["modes"]["shop"], "shadow");
    assert_eq!(value["pins"], "/sys/fs/bpf/tidegate");
    let older = br#"{"version":1,"reply":"handover","generation":7,"limits":{}}"#;
    let wanted = Handover { generation: 7, ..Handover::default() };
    assert_eq!(decode_reply(older).unwrap(), Reply::Handover(wanted));
}

#[test]
fn a_reply_that_is_too_long_becomes_an_error() {
    let warnings = vec!["x".repeat(17 << 20)];
    let reply = Reply::Status { snapshot: Box::new(Snapshot { warnings, ..snapshot() }) };
    let decoded = decode_reply(&encode_reply(reply)).unwrap();
    assert!(matches!(decoded, Reply::Error(ApiError { kind: ErrorKind::Failed, .. })));
}

fn get(path: &str, snapshot: Option<&Snapshot>, now: Nanos) -> Response {
    respond("GET", path, snapshot, now)
}

#[test]
fn ready_means_attached_and_the_lease_fresh() {
    let good = snapshot();
    let now = good.now;
    assert_eq!(get("/readyz", Some(&good), now).status, 200);
    assert_eq!(get("/readyz", Some(&good), now + HEARTBEAT_AGE_MAX).status, 200);
    let late = get("/readyz", Some(&good), now + HEARTBEAT_AGE_MAX + Nanos(1));
    assert_eq!((late.status, late.body.contains("limits do not hold")), (503, true));
    let never = Snapshot { heartbeat: None, ..good.clone() };
    assert_eq!(&*get("/readyz", Some(&never), now).body, "the lease was never renewed\n");
    let detached = Snapshot {
        interfaces: vec![InterfaceState { name: "eth0".into(), ..Default::default() }],
        ..good.clone()
    };
    assert_eq!(&*get("/readyz", Some(&detached), now).body, "interface eth0 is not attached\n");
    let mut passed_by = good.clone();
    let found = Bypassed { connections: 12, span: Nanos::from_secs(14), ..Bypassed::default() };
    passed_by.services[0].bypassed = Some(found.clone());
    let page = get("/readyz", Some(&passed_by), now);
    assert_eq!((page.status, page.body.starts_with("service shop: 12 connections")), (503, true));
    assert_eq!(get("/healthz", Some(&passed_by), now).status, 200, "alive, though not ready");
    passed_by.services[0].bypassed = None;
    let interface = "eth1".to_owned();
    passed_by.services[0].unreplied = Some(Bypassed { interface, ..found });
    let page = get("/readyz", Some(&passed_by), now);
    assert_eq!(page.status, 503);
    let says = "the hooks saw no reply of the server; the last client is reached by eth1; `tidegate status` \
                says what to do";
    assert!(page.body.contains(says), "{}", page.body);
    let mut barred = good.clone();
    barred.services[0].barred = "its container was started after the daemon".into();
    let page = get("/readyz", Some(&barred), now);
    let body = "service shop: its container was started after the daemon\n";
    assert_eq!((page.status, &*page.body), (503, body));
    let bare = Snapshot { interfaces: vec![], ..good };
    assert_eq!(get("/readyz", Some(&bare), now).status, 503);
    assert_eq!(get("/healthz", Some(&bare), now).status, 200, "alive, though not ready");
}

#[test]
fn healthy_means_that_the_owner_task_ticks() {
    let snapshot = snapshot();
    let last = snapshot.now + SNAPSHOT_AGE_MAX;
    assert_eq!(get("/healthz", Some(&snapshot), last).status, 200);
    assert_eq!(get("/healthz", Some(&snapshot), last + Nanos(1)).status, 503);
    assert_eq!(get("/healthz", None, last).status, 503);
}

#[test]
fn other_paths_and_methods_are_refused_and_queries_do_not_matter() {
    let snapshot = snapshot();
    let status = |method, path| respond(method, path, Some(&snapshot), snapshot.now).status;
    assert_eq!(status("GET", "/metrics?x=1"), 200);
    assert_eq!(status("HEAD", "/healthz"), 200);
    assert_eq!(status("POST", "/metrics"), 405);
    assert_eq!([status("GET", "/"), status("GET", "/metrics/../etc"), status("GET", "")], [404; 3]);
    let page = get("/metrics", Some(&snapshot), snapshot.now);
    assert!(page.body.ends_with("# EOF\n"));
}

#[test]
fn an_explanation_says_class_limit_reason_and_signal() {
    let mut samples: Vec<Sample> = (0..50).map(|i| sample(i, "198.51.100.70:4000")).collect();
    samples.push(sample(99, "[::ffff:198.51.100.70]:4001"));
    samples.push(sample(99, "198.51.100.71:4000"));
    let (config, snapshot) = (config(), snapshot());
    let text = |reason: &str| format!("text of {reason}");
    let client = "198.51.100.70".parse().unwrap();
    let classes = &config.classify(client);
    let known = Known {
        classes,
        snapshot: &snapshot,
        samples: &samples,
        refused: Lately::default(),
        reason_text: &text,
    };
    let found = explain(&known, client, None);
    assert_eq!(found.samples.len(), SAMPLES_MAX);
    assert_eq!(
        found.words[..6],
        [
            "shop (enforce): class crawler, priority 5, by its source in 198.51.100.64/26.",
            "shop: new work is limited to 187.2/s, bursts of 20.",
            "shop: at most 150 connections may wait for a response.",
            "shop: one connection in 10.00 s is admitted even if as many wait as may, or the accept queue \
             is at its limit.",
            "shop: resource and queue agree: CPU 100 %, accept queue 511 of 511.",
            "1.00 s ago [::ffff:198.51.100.70]:4001 to shop, class default: reject for rate: text of rate.",
        ]
    );
    let one = explain(&known, client, Some(4001));
    assert_eq!(one.samples.len(), 1, "the port chooses one connection");
}

#[test]
fn an_unknown_client_and_a_protected_one_are_told_apart() {
    let (config, snapshot) = (config(), snapshot());
    let explained = |client: &str| {
        let client = client.parse().unwrap();
        let known = Known {
            classes: &config.classify(client),
            snapshot: &snapshot,
            samples: &[],
            refused: Lately::default(),
            reason_text: &|_| String::new(),
        };
        explain(&known, client, None)
    };
    let stranger = explained("203.0.113.1");
    assert_eq!(
        stranger.words[0],
        "shop (enforce): class default, priority 7, as no class names its source."
    );
    assert_eq!(
        stranger.words[1],
        "shop: where its DSCP is trusted it may be instead in voice (DSCP 46)."
    );
    assert!(stranger.words.last().unwrap().starts_with("No sample of this client"));
    let own = explained("10.1.2.3");
    assert_eq!(own.services[0].exempt.as_deref(), Some("10.0.0.0/8"));
}

#[test]
fn request_rules_are_mentioned_with_the_limits_of_their_buckets() {
    let bucket = |name: &str, rate: Option<f64>, text: &str| BucketState {
        name: name.into(),
        resource: "cpu".into(),
        limits: BucketLimits {
            rate: rate.map(Rate::per_second),
            burst: 5,
            why: Why { text: text.into(), ..Why::default() },
            ..BucketLimits::default()
        },
        ..BucketState::default()
    };
    let mut snapshot = snapshot();
    snapshot.services[0].requests = Some(RequestsState {
        mode: "shadow".into(),
        buckets: vec![bucket("cgi", Some(40.0), "CPU 0.97"), bucket("large", None, "calm")],
        rules: vec![RuleState::default(); 3],
        ..RequestsState::default()
    });
    let config = config();
    let client = "203.0.113.1".parse().unwrap();
    let known = Known {
        classes: &config.classify(client),
        snapshot: &snapshot,
        samples: &[],
        refused: Lately::default(),
        reason_text: &|_| String::new(),
    };
    let found = explain(&known, client, None);
    assert_eq!(
        found.words[found.words.len() - 3..found.words.len() - 1],
        [
            "shop: its requests go through 3 request rule(s) (shadow); `tidegate rules test` says which one a request meets.",
            "shop: requests of the bucket cgi (cpu) are limited to 40.0/s, bursts of 5: CPU 0.97.",
        ]
    );
}

proptest! {
    #[test]
    fn no_line_makes_the_decoders_panic(line in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode_request(&line);
        let _ = decode_reply(&line);
    }

    #[test]
    fn no_http_request_makes_it_panic(method in any::<String>(), path in any::<String>(), now in any::<u64>()) {
        let _ = respond(&method, &path, Some(&snapshot()), Nanos(now));
    }
}

#[test]
fn a_histogram_is_written_without_its_empty_buckets() {
    let mut some = Histogram::default();
    some.record(Nanos::from_millis(7));
    let text = serde_json::to_string(&some).unwrap();
    assert!(text.len() < 60, "{text}");
    assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), some);
    let beyond = text.replace("[[", "[[999,1],[");
    assert!(serde_json::from_str::<Histogram>(&beyond).is_err());
}

/// Sums of levels are plain numbers, and what a daemon of before did not sum is not known.
#[test]
fn sums_of_levels_are_numbers_and_may_be_missing() {
    let levels = Levels { cpu: Some(1.5), limit_rate: Some(80.0), ..Levels::default() };
    let known = Levels { limit_rate: Some(2.0), ..Levels::default() };
    let written = serde_json::to_value(Sums { levels, known, ..Sums::default() }).unwrap();
    assert_eq!(written["levels"]["cpu"], 1.5);
    assert_eq!(
        (&written["levels"]["limit_rate"], &written["known"]["limit_rate"]),
        (&80.0.into(), &2.0.into())
    );
    let before = r#"{"shedding":[],"episodes":2,"began":null,"ended":null,"alarmed":[0,0,0,0],
        "levels":{"cpu":1.5,"busiest_thread":null,"waiting":null,"accept_queue":null,"sent":null}}"#;
    let read: Sums = serde_json::from_str(before).unwrap();
    let levels = Levels { cpu: Some(1.5), ..Levels::default() };
    assert_eq!(read, Sums { episodes: 2, levels, ..Sums::default() });
}

#[test]
fn an_event_is_one_flat_object() {
    let (service, bucket, mode) = ("shop".to_owned(), None, Mode::Enforce);
    let episode = Episode { service, bucket, mode, cause: Cause::Growth };
    let outcome = Outcome { offered: 9, refused: 4, ..Outcome::default() };
    let what = What::SheddingEnded(Ended {
        episode,
        lasted: Nanos::SECOND,
        cut: false,
        removed: false,
        killed: false,
        outcome,
    });
    let event = Event { number: 7, at: Moment::default(), what };
    let value = serde_json::to_value(&event).unwrap();
    for (key, expected) in [("event", "shedding-ended"), ("service", "shop"), ("cause", "growth")] {
        assert_eq!(value[key], expected, "{value}");
    }
    assert_eq!(serde_json::from_value::<Event>(value).unwrap(), event);
}

#[test]
fn a_client_that_was_refused_lately_is_probably_known_without_a_sample() {
    let snapshot = snapshot();
    let lately = |shadow| RefusedLately {
        service: "shop".into(),
        shadow,
        ago_min: Nanos::from_secs(9),
        ago_max: Nanos::from_secs(17),
        ..RefusedLately::default()
    };
    let said_of = |(refused, complete, wrong), unnamed: Vec<String>| {
        let known = Known {
            classes: &[],
            snapshot: &snapshot,
            samples: &[],
            refused: Lately { refused, complete, unnamed, wrong },
            reason_text: &|_: &str| String::new(),
        };
        explain(&known, "192.0.2.1".parse().unwrap(), None).words.join("\n")
    };
    let said = |of| said_of(of, Vec::new());
    let words = said((vec![lately(false)], true, 0.0));
    let both = vec![lately(false), RefusedLately { gateway: true, ..lately(false) }];
    let both = said((both, true, 0.0));
    assert!(both.contains("has refused this address at a gateway 9.00 s"), "{both}");
    assert!(both.contains("has refused this address 9.00 s"), "{both}");
    let service = "192.0.2.10:80".to_owned();
    let limited = RefusedLately { service, router: true, ..lately(false) };
    let (class, action) = ("shops".to_owned(), "dropped".to_owned());
    let by_class = RefusedLately { class, action, ..limited.clone() };
    let by_class = said((vec![by_class], true, 0.0));
    let words_of =
        "beyond the limit a SYN of class shops, to which its source belongs, is dropped.";
    assert!(by_class.contains(words_of), "{by_class}");
    let limited = said((vec![limited], true, 0.0));
    assert!(!limited.contains("of class"), "{limited}");
    let words_of =
        "192.0.2.10:80: its limit at this router probably has refused this address 9.00 s";
    assert!(limited.contains(words_of), "{limited}");
    // What a proxy refuses by itself is asked nobody about.
    let proxy = said_of((Vec::new(), true, 0.0), vec!["shop".into()]);
    assert!(proxy.contains("shop: its proxy refuses some by itself"), "{proxy}");
    assert!(!proxy.contains("No service"), "{proxy}");
    assert!(
        words.contains("shop: it probably has refused this address 9.00 s to 17.00 s ago"),
        "{words}"
    );
    assert!(
        said((vec![lately(true)], true, 0.0)).contains("probably would have refused (only counted")
    );
    assert!(said((Vec::new(), true, 0.0)).contains("No service has refused this address"));
    assert!(
        !said((Vec::new(), false, 0.0)).contains("No service"),
        "what is not known is not said"
    );
    let flood = said((vec![lately(false)], true, 0.123));
    assert!(flood.contains("13 % of all others look refused, too"), "{flood}");
    assert!(!flood.contains("1 in 100") && words.contains("one such answer in 100"), "{words}");
}
