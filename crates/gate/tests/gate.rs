// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The gate as an adapter and the daemon see it.
#![allow(clippy::unwrap_used)] // helpers of tests: to panic is to fail

use std::net::{IpAddr, Ipv4Addr};
use tidegate_config::{Config, Registry, parse};
use tidegate_gate::{Answer, Ask, Completed, Completion, Gate, Headers, Id, NoHeaders};
use tidegate_model::limits::{BucketLimits, Low, Onset, ServiceLimits};
use tidegate_model::{Canary, service_identity};
use tidegate_policy::{Execution, Reason, SourceKey};
use tidegate_units::{Nanos, Rate};

const NOW: Nanos = Nanos::from_secs(1000);

fn config(mode: &str) -> Config {
    let text = format!(
        "services:
  shop:
    mode: {mode}
    classes:
      - {{name: gold, sources: [198.51.100.0/24], priority: 0}}
      - {{name: bulk, sources: [203.0.113.0/24], priority: 7}}
    requests:
      buckets: {{search: {{resource: cpu}}}}
      rules: [{{path: /search, bucket: search}}]
  mail: {{mode: {mode}, listen: ['*:25']}}
interfaces: [{{name: lo}}]
gateways:
  edge:
    adapter: nginx
    listen: 127.0.0.1:9470
    completions: 127.0.0.1:9471
    rate_limit_fields: true
    routes:
      - {{path: /search, service: shop, bucket: search}}
      - {{path: /cart/, service: shop, priority: 1}}
      - {{path: /, host: shop.example, header: {{name: x-tier, value: gold}}, service: shop, class: gold}}
      - {{path: /, host: shop.example, service: shop}}
exempt: {{sources: [10.0.0.0/8]}}
"
    );
    parse(&text, &Registry::new(["fresh_first"], ["default"])).unwrap()
}

fn gate(mode: &str, limits: ServiceLimits) -> (Gate, Config) {
    gate_by(mode, limits, |gate| gate)
}

fn gate_by(mode: &str, limits: ServiceLimits, made: impl Fn(Gate) -> Gate) -> (Gate, Config) {
    let config = config(mode);
    let gate = made(Gate::new(&config, 7));
    gate.tick(NOW);
    assert!(gate.set_limits(&config, &[limits, ServiceLimits::default()]).is_empty());
    (gate, config)
}

fn ask<'a>(target: &'a str, client: &str) -> Ask<'a> {
    Ask {
        gateway: "edge",
        method: "GET",
        host: Some("shop.example"),
        target,
        client: Some(client.parse::<IpAddr>().unwrap()),
        request_id: None,
        reported_by_id: false,
        share: None,
        turn: None,
        headers: &NoHeaders,
    }
}

/// A rate so low that it admits its burst, and then nothing.
fn burst(burst: u32) -> ServiceLimits {
    ServiceLimits { rate: Some(Rate::per_second(0.001)), burst, ..ServiceLimits::default() }
}

struct Tier(&'static str);
impl Headers for Tier {
    fn get(&self, name: &str) -> Option<&str> {
        name.eq_ignore_ascii_case("x-tier").then_some(self.0)
    }
}

#[test]
fn what_is_routed_to_no_service_passes_and_is_counted() {
    let (gate, _) = gate("enforce", burst(1));
    let other = Ask { host: Some("other.example"), ..ask("/", "192.0.2.1") };
    for (ask, reason) in [
        (other, Reason::NoRule),
        (Ask { gateway: "other", ..ask("/", "192.0.2.1") }, Reason::NoRule),
        (ask("/", "10.1.2.3"), Reason::Exempt),
        (ask("/", "::ffff:10.1.2.3"), Reason::Exempt),
    ] {
        let answer = gate.ask(NOW, &ask);
        assert_eq!((answer.passes(), answer.reason, answer.token), (true, reason, None));
    }
    let counted: u64 = gate.state().passed.iter().map(|(_, count)| count).sum();
    assert_eq!((counted, gate.totals(0).unwrap().offered), (4, 0));
    assert!(gate.totals(1).is_none() && gate.serves(0) && !gate.serves(1), "no route to mail");
}

/// Who writes a request so that nobody can tell its route goes past no limit, and is refused first.
#[test]
fn a_request_that_nobody_can_route_is_limited() {
    let (gate, _) = gate("enforce", burst(1));
    let odd = [
        ask("/a%2fb", "192.0.2.1"),
        ask("/a%2fb", "2001:db8::1"),
        Ask { method: "G T", ..ask("/", "192.0.2.1") },
        Ask { host: Some("a b"), ..ask("/", "192.0.2.1") },
        Ask { method: "", host: Some(""), ..ask("", "192.0.2.1") },
        ask("", "192.0.2.1"),
        ask("*", "192.0.2.1"),
        ask("?x=1", "192.0.2.1"),
        ask("x", "192.0.2.1"),
        ask("shop.example:443", "192.0.2.1"),
        ask("http://shop.example?x=1", "192.0.2.1"),
        ask("HTTP://shop.example", "192.0.2.1"),
    ];
    let first = gate.ask(NOW, &ask("/", "192.0.2.1"));
    assert!(first.passes(), "the only token");
    for odd in &odd {
        let answer = gate.ask(NOW, odd);
        assert_eq!((answer.passes(), answer.service), (false, Some(0)), "{:?}", odd.target);
    }
    let totals = gate.totals(0).unwrap();
    assert_eq!((totals.offered, totals.refused), (1 + odd.len() as u64, odd.len() as u64));
}

#[test]
fn a_refusal_is_a_503_that_says_when_to_come_back() {
    let (gate, _) = gate("enforce", burst(2));
    let answers: Vec<Answer> = (0..3).map(|_| gate.ask(NOW, &ask("/", "192.0.2.1"))).collect();
    assert!(answers[0].passes() && answers[0].reason == Reason::Token);
    let refused = answers.iter().rev().find(|answer| !answer.passes()).unwrap();
    let refusal = refused.refusal.as_ref().unwrap();
    assert!(refused.refused && refused.token.is_none() && refused.service == Some(0));
    assert!((1..=60).contains(&refusal.retry_after_s));
    assert!(refusal.rate_limit.as_ref().unwrap().limit.starts_with("\"shop\";r=0;t="));
    let totals = gate.totals(0).unwrap();
    assert_eq!(totals.offered, totals.admitted + totals.refused);
    let counted: u64 = gate.counts(0).iter().map(|count| count.count).sum();
    assert_eq!(counted, totals.offered);
}

#[test]
fn shadow_refuses_nothing_and_counts_everything() {
    let (gate, config) = gate("shadow", burst(1));
    let answers: Vec<Answer> = (0..5).map(|_| gate.ask(NOW, &ask("/", "192.0.2.1"))).collect();
    assert!(answers.iter().all(Answer::passes));
    let totals = gate.totals(0).unwrap();
    assert_eq!((totals.offered, totals.admitted, totals.waiting), (5, 5, 5));
    assert_eq!(totals.refused, 4, "there was one token");
    let shadowed = gate.counts(0).into_iter().find(|c| c.execution == Execution::Shadowed).unwrap();
    assert_eq!((shadowed.reason, shadowed.count), (Reason::Rate, 4));
    gate.set_mode(0, tidegate_model::Mode::Enforce, Canary::ALL);
    assert!(!gate.ask(NOW, &ask("/", "192.0.2.1")).passes());
    gate.set_limits(&config, &[burst(1)]);
    assert!(gate.ask(NOW, &ask("/", "192.0.2.1")).passes(), "the mode of the configuration");
}

/// A bucket that its configuration keeps in shadow mode stays there when the service goes on.
#[test]
fn a_bucket_in_shadow_stays_there() {
    let mut config = config("enforce");
    config.services[0].requests.as_mut().unwrap().mode = Some(tidegate_model::Mode::Shadow);
    let gate = Gate::new(&config, 7);
    gate.tick(NOW);
    let rate = Some(Rate::per_second(0.001));
    let bucket = BucketLimits { rate, burst: 1, ..BucketLimits::default() };
    let limits = ServiceLimits { buckets: vec![bucket], ..ServiceLimits::default() };
    assert!(gate.set_limits(&config, &[limits, ServiceLimits::default()]).is_empty());
    let passes = |gate: &Gate| (0..5).all(|_| gate.ask(NOW, &ask("/search", "192.0.2.1")).passes());
    assert!(passes(&gate));
    gate.set_mode(0, tidegate_model::Mode::Shadow, Canary::ALL);
    gate.set_mode(0, tidegate_model::Mode::Enforce, Canary::ALL);
    assert!(passes(&gate), "`tidegate mode` is about the service");
    config.services[0].requests.as_mut().unwrap().mode = None;
    let bucket = BucketLimits { rate, burst: 1, ..BucketLimits::default() };
    let limits = ServiceLimits { buckets: vec![bucket], ..ServiceLimits::default() };
    gate.reconfigure(&config);
    assert!(gate.set_limits(&config, &[limits, ServiceLimits::default()]).is_empty());
    assert!(!passes(&gate));
}

#[test]
fn the_kill_switch_and_a_lease_that_ends_let_everything_pass() {
    let (gate, _) = gate("enforce", burst(1));
    let passes = |at: Nanos| {
        let answer = gate.ask(at, &ask("/", "192.0.2.1"));
        (answer.passes(), answer.reason)
    };
    assert_eq!(passes(NOW), (true, Reason::Token));
    assert_eq!(passes(NOW), (false, Reason::Rate));
    gate.release(true);
    assert!(gate.released());
    assert_eq!(passes(NOW), (true, Reason::Released));
    gate.release(false);
    let after = |ms: u64| NOW + Nanos::from_millis(ms);
    assert_eq!(passes(after(3000)), (false, Reason::Rate), "limits hold for 3 s");
    let open = (0..1000).filter(|_| passes(after(6500)).0).count();
    assert!((400..600).contains(&open), "half way: {open} of 1000");
    assert_eq!(passes(after(10_000)), (true, Reason::LeaseExpired));
    gate.tick(after(10_000));
    assert_eq!(passes(after(10_000)), (false, Reason::Rate), "a lease that is renewed");
    let fresh = Gate::new(&config("enforce"), 1);
    assert_eq!(fresh.ask(NOW, &ask("/", "192.0.2.1")).reason, Reason::LeaseExpired);
}

/// By address, by route, by a header that the proxy vouches for.
#[test]
fn a_lower_priority_is_refused_before_any_of_a_higher_one() {
    let gold = "198.51.100.7";
    let (gate, _) = gate("enforce", burst(100));
    let low = (0..1000).filter(|_| gate.ask(NOW, &ask("/", "192.0.2.1")).passes()).count();
    let passes = |ask: &Ask<'_>| (0..1000).filter(|_| gate.ask(NOW, ask).passes()).count();
    // the weights of gold and of the route's priority 1 are the same: half of the reserve is gold's
    let cart = passes(&ask("/cart/1", "192.0.2.1"));
    let marked = Ask { headers: &Tier("gold"), ..ask("/", "192.0.2.1") };
    let by_header = (0..10).filter(|_| gate.ask(NOW, &marked).passes()).count();
    let high = passes(&ask("/", gold));
    assert_eq!((low, cart, by_header, high), (50, 25, 10, 15));
    assert_eq!(passes(&ask("/", gold)), 0);
}

/// The limit in flight keeps seats for those above, and who fills it from below does not shut it for
/// them.
#[test]
fn the_limit_in_flight_is_shut_from_below() {
    let limits = ServiceLimits {
        waiting_max: Some(100),
        waiting_low: Some(Low { most: 60, rest: 40 }),
        ..ServiceLimits::default()
    };
    let (gate, _) = gate("enforce", limits);
    let admitted = |client: &str, n: usize| {
        (0..n).filter(|_| gate.ask(NOW, &ask("/", client)).passes()).count()
    };
    // of the 40 seats between the levels half are reserved
    assert_eq!(admitted("203.0.113.1", 200), 80);
    assert_eq!(admitted("198.51.100.1", 200), 20);
    assert_eq!(admitted("203.0.113.1", 10), 0);
    assert_eq!(gate.totals(0).unwrap().waiting, 100);
    assert!(gate.counts(0).iter().any(|count| count.reason == Reason::Waiting));
}

/// So it is where an overload begins.
#[test]
fn a_beginning_is_shut_from_below() {
    let onset = Onset {
        pace: Rate::per_second(100.0),
        response: Nanos::from_millis(10),
        usual: 0,
        most: 40,
        piles: 0,
    };
    let limits = ServiceLimits {
        waiting_max: Some(100),
        waiting_low: Some(Low { most: 40, rest: 20 }),
        onset: Some(onset),
        ..ServiceLimits::default()
    };
    let (gate, _) = gate("enforce", limits);
    gate.tick(NOW + Nanos::from_millis(500));
    gate.tick(NOW + Nanos::from_millis(800));
    let mut now = NOW + Nanos::SECOND;
    let mut ask_for = |client: &str, n: usize| -> Vec<Answer> {
        let answers = (0..n).map(|_| {
            now += Nanos::from_millis(1);
            gate.ask(now, &ask("/", client))
        });
        answers.filter(Answer::passes).collect()
    };
    // Half of the 40 are reserved. Who has come just now does not count.
    let low = ask_for("203.0.113.1", 200);
    assert!((30..60).contains(&low.len()), "{}", low.len());
    for answer in &low[25..] {
        let completion = Completion { status: 200, ..Completion::default() };
        gate.complete(NOW + Nanos::SECOND, Id::Token(answer.token.unwrap()), &completion);
    }
    assert_eq!(ask_for("203.0.113.1", 50).len(), 0, "20 are enough");
    assert_eq!(gate.totals(0).unwrap().waiting, 25);
    assert!(ask_for("198.51.100.1", 50).len() >= 15, "40 for those above");
    assert_eq!(ask_for("203.0.113.1", 10).len(), 0);
}

#[test]
fn a_bucket_of_a_route_refuses_before_the_service() {
    let bucket =
        BucketLimits { rate: Some(Rate::per_second(0.001)), burst: 3, ..BucketLimits::default() };
    let (gate, _) =
        gate("enforce", ServiceLimits { buckets: vec![bucket], ..ServiceLimits::default() });
    let search: Vec<bool> =
        (0..5).map(|_| gate.ask(NOW, &ask("/search?q", "192.0.2.1")).passes()).collect();
    assert_eq!(search, [true, true, true, false, false]);
    assert!(gate.ask(NOW, &ask("/", "192.0.2.1")).passes());
    let totals = gate.totals(0).unwrap();
    let of = &totals.buckets[0];
    assert_eq!((of.offered, of.refused, of.begun), ([0, 5, 0], [0, 2, 0], 3));
    assert_eq!((totals.offered, totals.refused, totals.waiting), (6, 2, 4));
}

#[test]
fn a_report_ends_a_request_and_its_times_are_counted() {
    let (gate, _) = gate("enforce", ServiceLimits::default());
    let answer = gate.ask(NOW, &ask("/search", "192.0.2.1"));
    let done = Completion {
        status: 200,
        first_byte: Some(Nanos::from_millis(10)),
        duration: Some(Nanos::from_millis(30)),
        waited: None,
    };
    let later = NOW + Nanos::from_millis(40);
    let token = Id::Token(answer.token.unwrap());
    assert_eq!(gate.complete(later, token, &done), Completed::Counted);
    assert_eq!(gate.complete(later, token, &done), Completed::Unknown, "only once");
    let by_id = Ask { request_id: Some("r-1"), reported_by_id: true, ..ask("/", "192.0.2.1") };
    gate.ask(NOW, &by_id);
    let left = Completion { status: 499, ..Completion::default() };
    assert_eq!(gate.complete(later, Id::Request("r-1"), &left), Completed::Counted);
    let totals = gate.totals(0).unwrap();
    assert_eq!((totals.waiting, totals.first_byte.count, totals.end.count), (0, 1, 1));
    assert_eq!((totals.first_byte.sum_ns, totals.end.sum_ns), (10_000_000, 30_000_000));
    assert_eq!((totals.connections.answered, totals.connections.lost), (1, 1));
    assert_eq!(totals.buckets[0].ended, totals.buckets[0].begun);
    assert_eq!(gate.statuses(0), [1, 0, 1, 0, 0, 0], "who leaves has no response");
    let seen = gate.seen("r-1");
    assert_eq!((seen.len(), seen[0].reason, &*seen[0].service), (1, Reason::NoLimit, "shop"));
}

/// Clients that are slow to receive are reported when they have received everything. The server is done
/// with them long before, and neither that they are there nor that they end moves what is in flight.
#[test]
fn slow_clients_are_not_in_flight_and_leave_no_hole() {
    let (gate, _) = gate("enforce", ServiceLimits::default());
    let took = Nanos::from_millis(100);
    let done = Completion { status: 200, duration: Some(took), ..Completion::default() };
    let (mut reports, mut levels) = (std::collections::VecDeque::new(), Vec::new());
    let slow: Vec<_> =
        (0..50).filter_map(|_| gate.ask(NOW, &ask("/", "192.0.2.1")).token).collect();
    // 100/s, 100 ms each: 10 are in flight
    for step in 0..12_000_u64 {
        let now = NOW + Nanos::from_millis(10 * step);
        reports.push_back((now + took, gate.ask(now, &ask("/", "192.0.2.1")).token.unwrap()));
        while let Some((_, token)) = reports.pop_front_if(|(at, _)| *at <= now) {
            assert_eq!(gate.complete(now, Id::Token(token), &done), Completed::Counted);
        }
        let ends: &[_] = match step {
            10_000 => &slow[..10],
            10_500 => &slow[10..],
            _ => &[],
        };
        for token in ends {
            assert_eq!(gate.complete(now, Id::Token(*token), &done), Completed::Late, "{step}");
        }
        if step % 10 == 0 {
            gate.tick(now);
            levels.push(gate.totals(0).unwrap().waiting);
        }
    }
    assert!(levels[..3].iter().all(|waiting| *waiting >= 50), "{:?}", &levels[..3]);
    let later = &levels[20..];
    assert!(later.iter().all(|waiting| (7..=13).contains(waiting)), "{later:?}");
}

#[test]
fn a_reload_keeps_what_was_counted_and_what_is_in_flight() {
    let (gate, mut config) = gate("enforce", ServiceLimits::default());
    let answer = gate.ask(NOW, &ask("/", "192.0.2.1"));
    config.services.reverse();
    gate.reconfigure(&config);
    assert_eq!(gate.totals(1).unwrap().waiting, 1);
    let token = Id::Token(answer.token.unwrap());
    gate.complete(NOW, token, &Completion { status: 200, ..Completion::default() });
    assert_eq!(gate.totals(1).unwrap().waiting, 0);
    let counted = |gate: &Gate| gate.counts(1).iter().map(|count| count.count).sum::<u64>();
    assert_eq!(counted(&gate), 1, "by class, of the same classes");
    config.services[1].classes.reverse();
    gate.reconfigure(&config);
    assert_eq!(
        (counted(&gate), gate.totals(1).unwrap().offered),
        (0, 1),
        "of others it is unknown"
    );
    config.gateways.clear();
    gate.reconfigure(&config);
    assert_eq!(gate.ask(NOW, &ask("/", "192.0.2.1")).reason, Reason::NoRule);
}

/// Answers that a proxy took for none leave requests in flight of which nothing is reported. One a second
/// asks whether they are dead, and its report frees them all.
#[test]
fn requests_that_are_never_reported_do_not_shut_the_limit() {
    let limits = ServiceLimits {
        waiting_max: Some(60),
        min_rate: Some(Rate::per_second(0.1)),
        ..ServiceLimits::default()
    };
    let (gate, _) = gate("enforce", limits);
    let mut now = NOW;
    let done = Completion { status: 200, ..Completion::default() };
    let pass = |now| gate.ask(now, &ask("/", "192.0.2.1")).token;
    for _ in 0..50 {
        now += Nanos::from_millis(10);
        let token = pass(now).unwrap();
        gate.complete(now + Nanos::from_millis(5), Id::Token(token), &done);
    }
    gate.tick(now);
    let dead = (0..100).filter(|_| pass(now).is_some()).count();
    assert!((50..=61).contains(&dead), "the limit, and one by the least rate: {dead}");
    let (mut probes, mut passed) = (Vec::new(), 0);
    for step in 1..=400_u64 {
        now += Nanos::from_millis(10);
        if step % 10 == 0 {
            gate.tick(now);
        }
        if let Some(token) = pass(now) {
            // The first ones are lost as well.
            if probes.len() < 2 {
                probes.push(now.since(NOW));
            } else {
                gate.complete(now + Nanos::from_millis(5), Id::Token(token), &done);
                passed += 1;
            }
        }
    }
    assert!(probes[1].since(probes[0]) >= Nanos::from_millis(900), "one a second: {probes:?}");
    assert!(passed > 50, "{passed} passed in the rest of 4 s");
}

/// `explain` finds them without a sample.
#[test]
fn who_was_refused_in_the_last_minute_is_found() {
    for mode in ["enforce", "shadow"] {
        let shadow = mode == "shadow";
        let (gate, config) = gate(mode, burst(1));
        gate.ask(NOW, &ask("/x", "192.0.2.9"));
        gate.ask(NOW, &ask("/x", "::ffff:192.0.2.1"));
        let client: IpAddr = "192.0.2.1".parse().unwrap();
        let later = NOW + Nanos::from_secs(60);
        let found = |at, client, shadow| gate.refused_lately(at, "shop", (client, shadow));
        let (least, most) = found(later, client, shadow).unwrap();
        assert!(least <= Nanos::from_secs(60) && Nanos::from_secs(60) <= most, "{least} {most}");
        assert_eq!(found(later, client, !shadow), None, "the other way of being refused");
        assert_eq!(found(later, "192.0.2.9".parse().unwrap(), shadow), None, "was admitted");
        assert_eq!(found(NOW + Nanos::from_secs(70), client, shadow), None);
        // Services are known by name: another configuration moves them.
        gate.reconfigure(&config);
        assert!(found(later, client, shadow).is_some());
        assert_eq!(gate.refused_lately(later, "mail", (client, shadow)), None);
    }
}

/// Of a canary the chosen sources are refused, each time, and the others never; whose client the proxy does
/// not name is not among the chosen.
#[test]
fn a_canary_refuses_a_share_of_the_clients() {
    let (gate, _) = gate("enforce", burst(1));
    gate.set_mode(0, tidegate_model::Mode::Enforce, Canary::of_percent(25.0).unwrap());
    gate.ask(NOW, &ask("/", "192.0.2.1"));
    let mut refused = 0;
    for n in 0..400 {
        let client = format!("198.51.{}.{}", n / 200, n % 200);
        let passes = [(); 3].map(|()| gate.ask(NOW, &ask("/", &client)).passes());
        assert!(passes == [passes[0]; 3], "{client} meets one thing: {passes:?}");
        refused += u32::from(!passes[0]);
    }
    // Four deviations around a quarter.
    assert!((65..=135).contains(&refused), "{refused} of 400");
    // With the key of the hooks they are those that the hooks choose.
    let key = SourceKey::new([1, 2, 3, 4, 5, 6]);
    let of_hooks = gate_by("enforce", burst(1), |gate| gate.with_sources(key)).0;
    let quarter = Canary::of_percent(25.0).unwrap();
    of_hooks.set_mode(0, tidegate_model::Mode::Enforce, quarter);
    of_hooks.ask(NOW, &ask("/", "192.0.2.1"));
    for n in 0..200 {
        let client = Ipv4Addr::new(198, 51, 100, n);
        let source = key.source(client.to_ipv6_mapped().octets(), service_identity("shop"));
        let chosen = source >> 48 < u64::from(quarter.share_q16());
        assert_eq!(of_hooks.ask(NOW, &ask("/", &client.to_string())).passes(), !chosen, "{client}");
    }
    let unknown = Ask { client: None, ..ask("/", "192.0.2.1") };
    assert!((0..50).all(|_| gate.ask(NOW, &unknown).passes()));
}

/// The state of SplitMix64 that gives this number.
fn state(number: u64) -> u64 {
    let mut z = number ^ (number >> 31) ^ (number >> 62);
    z = z.wrapping_mul(0x3196_42b2_d24d_8ec3);
    z = (z ^ (z >> 27) ^ (z >> 54)).wrapping_mul(0x96de_1b17_3f11_9089);
    z ^ (z >> 30) ^ (z >> 60)
}

/// Who has read a token must not know the next one: whoever reports it empties what is in flight.
#[test]
fn a_token_tells_no_other_token() {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let (gate, _) = gate("enforce", ServiceLimits::default());
    let states: Vec<u64> = (0..4)
        .map(|_| gate.ask(NOW, &ask("/", "192.0.2.1")).token.unwrap().to_string())
        .map(|token| state(u64::from_str_radix(&token, 16).unwrap()))
        .collect();
    for pair in states.windows(2) {
        let steps = (1..64).find(|n| pair[0].wrapping_add(STEP.wrapping_mul(*n)) == pair[1]);
        assert_eq!(steps, None, "the next one is as many steps ahead");
    }
}

/// What no server had tells nothing: neither that the service is fast, nor that reports are missing, nor that those
/// before it are overtaken.
#[test]
fn a_request_that_no_server_had_tells_nothing_of_the_service() {
    let (gate, _) = gate("enforce", ServiceLimits::default());
    let begun = |at: Nanos| gate.ask(at, &ask("/search", "192.0.2.1")).token.unwrap();
    let stays = begun(NOW);
    let mut now = NOW;
    for _ in 0..100 {
        now += Nanos::from_millis(100);
        let unserved = Id::Token(begun(now));
        assert_eq!(gate.unserved(unserved, 503), Completed::Counted);
        assert_eq!(gate.unserved(unserved, 503), Completed::Unknown);
        gate.tick(now);
    }
    let totals = gate.totals(0).unwrap();
    assert!(!gate.reports_missing(0));
    assert_eq!((totals.admitted, totals.waiting, totals.unseen), (101, 1, 100));
    assert_eq!((totals.connections.answered, totals.connections.lost), (0, 0));
    assert_eq!((totals.first_byte.count, totals.end.count, totals.unknown), (0, 0, 0));
    assert_eq!((totals.buckets[0].begun, totals.buckets[0].ended), (101, 100));
    assert_eq!(gate.statuses(0)[5], 100);
    let completion = Completion { status: 200, ..Completion::default() };
    assert_eq!(gate.complete(now, Id::Token(stays), &completion), Completed::Counted);
    assert_eq!((gate.totals(0).unwrap().waiting, gate.state().completed), (0, 101));
}
