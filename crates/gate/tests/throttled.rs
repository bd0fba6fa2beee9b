// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The policies that throttle, at the gate: what they are told, and that they say there what they say
//! everywhere.
#![allow(clippy::unwrap_used)] // helpers of tests: to panic is to fail

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use tidegate_config::{Config, Registry, parse};
use tidegate_gate::{Answer, Ask, Completion, Gate, Id, NoHeaders, Token};
use tidegate_model::limits::{BucketLimits, ServiceLimits};
use tidegate_policy::{
    Chain, Circumstances, Event, Level, Limits, Params, Policy, Reason, RequestLimits,
};
use tidegate_units::{Nanos, Rate, Share};

const NOW: Nanos = Nanos::from_secs(1000);
const SEED: u64 = 7;

fn config(policy: &str, bucket: &str) -> Config {
    let text = format!(
        "services:
  shop:
    mode: enforce
    policy: {policy}
    classes:
      - {{name: gold, sources: [198.51.100.0/24], priority: 0}}
      - {{name: bulk, sources: [203.0.113.0/24], priority: 7}}
    requests:
      buckets: {{search: {{resource: cpu, policy: {bucket}}}}}
      rules: [{{path: /search, bucket: search}}]
gateways:
  edge:
    adapter: nginx
    listen: 127.0.0.1:9470
    completions: 127.0.0.1:9471
    routes: [{{path: /search, service: shop, bucket: search}}, {{service: shop}}]
"
    );
    let names = ["fresh_first", "token_bucket", "threshold", "gap", "percent"];
    parse(&text, &Registry::new(names, ["default"])).unwrap_or_else(|e| panic!("{policy}: {e}"))
}

fn gate(policy: &str, limits: &ServiceLimits) -> Gate {
    let config = config(policy, "{name: token_bucket}");
    let gate = Gate::new(&config, SEED);
    gate.tick(NOW);
    assert!(gate.set_limits(&config, std::slice::from_ref(limits)).is_empty());
    gate
}

fn ask(target: &'static str, client: [u8; 4]) -> Ask<'static> {
    Ask {
        gateway: "edge",
        method: "GET",
        host: Some("shop.example"),
        target,
        client: Some(IpAddr::V4(Ipv4Addr::from(client))),
        request_id: None,
        reported_by_id: false,
        share: None,
        turn: None,
        headers: &NoHeaders,
    }
}

fn asks(gate: &Gate, number: usize, ask: &Ask<'_>) -> Vec<Answer> {
    (0..number).map(|_| gate.ask(NOW, ask)).collect()
}

fn passed(answers: &[Answer]) -> usize {
    answers.iter().filter(|answer| answer.passes()).count()
}

fn end(gate: &Gate, now: Nanos, token: Option<Token>) {
    let completion = Completion { status: 200, ..Completion::default() };
    gate.complete(now, Id::Token(token.unwrap()), &completion);
}

const GOLD: [u8; 4] = [198, 51, 100, 7];
const BULK: [u8; 4] = [203, 0, 113, 7];

/// A priority has its own thresholds, and what is kept free for it in the default policy is no work
/// that waits.
#[test]
fn thresholds_are_on_what_is_in_flight() {
    let policy = "{name: threshold, discard: 4, priorities: [{priority: 0, discard: 6}]}";
    // Of that limit an eighth is kept for gold where nobody has thresholds.
    let gate = gate(policy, &ServiceLimits { waiting_max: Some(16), ..ServiceLimits::default() });
    let bulk = asks(&gate, 6, &ask("/", BULK));
    assert_eq!(passed(&bulk), 4);
    assert!(bulk[4..].iter().all(|answer| answer.reason == Reason::Discard), "{bulk:?}");
    assert_eq!(passed(&asks(&gate, 4, &ask("/", GOLD))), 2);
    let rungs = gate.rungs(0).unwrap();
    assert!(rungs[0] > 0 && rungs[7] > 0, "{rungs:?}");
    // Half of the threshold is where it begins again.
    for answer in bulk[..4].iter() {
        assert!(!gate.ask(NOW, &ask("/", BULK)).passes());
        end(&gate, NOW, answer.token);
    }
    assert!(!gate.ask(NOW, &ask("/", BULK)).passes(), "two gold ones are in flight: not below two");
}

#[test]
fn a_gap_is_kept_and_the_longer_one_holds() {
    let rate = ServiceLimits { rate: Some(Rate::per_second(10.0)), ..ServiceLimits::default() };
    for (policy, limits, gap_ms) in [
        ("{name: gap, gap: 20ms, tolerance: 0}", ServiceLimits::default(), 20),
        ("{name: gap, gap: 20ms, tolerance: 0}", rate.clone(), 100),
        ("{name: gap, tolerance: 0}", rate, 100),
    ] {
        let gate = gate(policy, &limits);
        let times = (0..1000).map(|ms| NOW + Nanos::from_millis(ms));
        let passed = times.filter(|now| gate.ask(*now, &ask("/", BULK)).passes()).count();
        assert_eq!(passed, 1000 / gap_ms, "{policy}");
    }
}

#[test]
fn a_share_is_refused_from_below() {
    let gate = gate("{name: percent, share: 50%, period: 100ms}", &ServiceLimits::default());
    let (mut bulk, mut gold) = (0, 0);
    for ms in 0..2000 {
        let now = NOW + Nanos::from_millis(ms);
        gate.tick(now);
        bulk += u64::from(gate.ask(now, &ask("/", BULK)).passes());
        gold += u64::from(gate.ask(now, &ask("/", GOLD)).passes());
    }
    assert!(gold >= 1980 && bulk <= 100, "half of all are bulk: {gold} {bulk}");
}

/// What one policy has seen is nothing to another.
#[test]
fn another_policy_begins_fresh() {
    let limits = ServiceLimits {
        rate: Some(Rate::per_second(0.001)),
        burst: 1_000_000,
        ..ServiceLimits::default()
    };
    let gate = gate("{name: token_bucket}", &limits);
    asks(&gate, 100, &ask("/", BULK));
    let other = config("{name: threshold, discard: 1000}", "{name: token_bucket}");
    gate.reconfigure(&other);
    assert!(gate.set_limits(&other, &[ServiceLimits::default()]).is_empty());
    assert_eq!(gate.rungs(0), Some([0; 8]), "nothing of the bucket's tokens");
    assert_eq!(passed(&asks(&gate, 5, &ask("/", BULK))), 5);
}

#[test]
fn a_bucket_may_have_thresholds() {
    let config = config("{name: token_bucket}", "{name: threshold, level: in-flight, discard: 3}");
    let gate = Gate::new(&config, SEED);
    gate.tick(NOW);
    let limits = ServiceLimits { buckets: vec![BucketLimits::default()], ..Default::default() };
    assert!(gate.set_limits(&config, &[limits]).is_empty());
    assert_eq!(passed(&asks(&gate, 5, &ask("/search", BULK))), 3);
    assert_eq!(passed(&asks(&gate, 5, &ask("/other", BULK))), 5, "no bucket, no limit");
    assert!(gate.bucket_rungs(0, 0).is_some_and(|rungs| rungs[1] > 0));
    assert_eq!(gate.rungs(0), None);
}

/// SplitMix64, as in the gate.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

const EVENTS: u32 = 1_000_000;

/// The same events at a chain of its own, which the kernel's differential test holds against an
/// independent reference: so gate, kernel and simulator say the same.
fn same_verdicts(policy: &str, limits: &ServiceLimits, (params, level): (Params, Level)) {
    let gate = gate(policy, limits);
    let (mut of_gate, mut world) = (Random(SEED), Random(99));
    let mut alone = Limits::new(params);
    alone.level = level;
    alone.set_action(tidegate_policy::Action::Reject);
    let mut chain = Chain::new(alone);
    let (mut now, mut in_flight, mut said) = (NOW, VecDeque::new(), [0_u32; 2]);
    for at in 0..EVENTS {
        let draw = world.next();
        // crowded and calm by turns, 100 µs to 3 ms apart
        now += Nanos(draw % if at % 20_000 < 10_000 { 200_000 } else { 6_000_000 });
        let client = if draw >> 32 & 3 == 0 { GOLD } else { BULK };
        let priority = if client == GOLD { 0 } else { 7 };
        let random = of_gate.next();
        let event = Event { random: random as u32, priority, ..Event::at(now.0) };
        let asked = tidegate_policy::Ask {
            event,
            waiting: in_flight.len() as u64,
            ..tidegate_policy::Ask::default()
        };
        let how = Circumstances { random: (random >> 32) as u32, ..Circumstances::default() };
        let expected = chain.decide(&asked, &how, |_| Ok(()));
        if at % 100 == 0 {
            gate.tick(now);
        }
        let answer = gate.ask(now, &ask("/", client));
        assert_eq!(
            (answer.passes(), answer.reason),
            (expected.passes, expected.verdict.reason),
            "{policy}: event {at}"
        );
        if !answer.passes() {
            of_gate.next(); // for Retry-After
        }
        said[usize::from(answer.passes())] += 1;
        if answer.passes() {
            in_flight.push_back((now + Nanos::from_millis(20), answer.token));
        }
        let due = in_flight.iter().take_while(|(due, _)| *due <= now).count();
        in_flight.drain(..due).for_each(|(_, token)| end(&gate, now, token));
    }
    assert!(said.iter().all(|times| *times > EVENTS / 100), "{policy}: {said:?}");
}

#[test]
fn a_million_of_each_policy_are_as_in_a_chain_alone() {
    let none = ServiceLimits::default();
    let rate = ServiceLimits {
        rate: Some(Rate::per_second(700.0)),
        burst: 40,
        ..ServiceLimits::default()
    };
    let loss = ServiceLimits { loss: Some(Share::new(0.3)), ..ServiceLimits::default() };
    for (policy, limits) in [
        ("{name: threshold, onset: 8, share: 40%, discard: 14}", &none),
        ("{name: gap}", &rate),
        ("{name: percent}", &loss),
        ("{name: token_bucket}", &rate),
    ] {
        let config = config(policy, "{name: token_bucket}");
        let service = &config.services[0];
        let kind = Policy::from_name(&service.policy.name).unwrap();
        let burst = limits.burst.max(1);
        let reserving = ServiceLimits { reserve: service.reserve_tokens(burst), ..limits.clone() };
        let reject = tidegate_policy::Action::Reject;
        let params = tidegate_params::service(kind, reject, &service.policy, &reserving).unwrap();
        assert!(RequestLimits::new(params).is_some(), "{policy} serves requests");
        same_verdicts(policy, limits, (params, tidegate_params::level(service, limits)));
    }
}
