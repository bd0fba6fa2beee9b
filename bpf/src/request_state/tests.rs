// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Request rules in the kernel's tables: numbers, counts, limits, and what a reload leaves.

use crate::abi::{self, RequestControl, Rule, RuleCounts};
use crate::core::Core;
use crate::objects::{self, Load, Objects, Variant};
use crate::syscall::{self, TestRun};
use crate::testing::plans::{self, plan, rule};
use crate::{BucketParams, Plan, RuleCount, ServiceParams};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use tidegate_config::{Cookie, CookieMatch, RequestsConfig, RuleConfig, ServiceConfig};
use tidegate_model::{Mode, SERVICES_MAX};
use tidegate_policy::{Action, BucketSpec, Params, Policy, Reason, RequestLimits};
use tidegate_units::Rate;
use zerocopy::IntoBytes;

/// A service with rules; it listens nowhere.
fn service(name: &str, requests: RequestsConfig) -> ServiceConfig {
    ServiceConfig { requests: Some(requests), ..plans::service(name, &[]) }
}

fn shop(buckets: &[&str], rules: Vec<RuleConfig>) -> ServiceConfig {
    service("shop", plans::requests(buckets, rules))
}

fn start(plan: &Plan) -> Core {
    Core::start(plan, Objects::default()).unwrap()
}

/// Numbers of a service's rules.
fn numbers(core: &Core, service: usize) -> Vec<u32> {
    core.requests().unwrap().seats()[service].rules.clone()
}

fn bucket_number(core: &Core, service: usize, bucket: usize) -> u32 {
    core.requests().unwrap().seats()[service].buckets[bucket]
}

/// As a packet would: one admission and `refused` refusals, in the slot in force.
fn count(core: &Core, number: u32, refused: u64) {
    let control: RequestControl = core.maps.read("tg_request_control", 0).unwrap();
    let key = (control.slot * abi::RULES_MAX as u32 + number).to_ne_bytes();
    let map = core.maps.get("tg_rule_counts").unwrap();
    let mut cpus = map.lookup_percpu(&key, MapFlags::ANY).unwrap().unwrap();
    let mut counts = abi::read::<RuleCounts>(&cpus[0]).unwrap();
    counts.cell[0] += 1;
    counts.cell[1] += refused;
    cpus[0] = counts.as_bytes().to_vec();
    map.update_percpu(&key, &cpus, MapFlags::ANY).unwrap();
}

/// All limits as the kernel has them: services, buckets, the generation.
fn all_in_force(core: &Core) -> Vec<Vec<u8>> {
    let outer = core.maps.get("tg_limits").unwrap();
    let id = outer.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
    let inner = MapHandle::from_map_id(u32::from_ne_bytes(id.try_into().unwrap())).unwrap();
    let row = |row: u32| inner.lookup(&row.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
    (0..inner.max_entries()).map(row).collect()
}

/// What is in force for a bucket.
fn in_force(core: &Core, number: u32) -> RequestLimits {
    abi::read(&all_in_force(core)[SERVICES_MAX + number as usize]).unwrap()
}

fn generation(core: &Core) -> u64 {
    u64::from_ne_bytes(*all_in_force(core).pop().unwrap().first_chunk().unwrap())
}

fn limit(service: usize, bucket: usize, burst: u32) -> BucketParams {
    let rate = Some(Rate::per_second(10.0));
    BucketParams::tokens((service, bucket), rate, burst, [0, 0, 1]).unwrap()
}

/// What [`limit`] becomes.
fn bucket(burst: u32) -> RequestLimits {
    RequestLimits::bucket(Some(Rate::per_second(10.0)), burst, [0, 0, 1]).unwrap()
}

#[test]
fn a_rule_keeps_its_number_and_its_counts_while_it_is_the_same() {
    let (a, b, c) = (rule("/a", Some("x")), rule("/b", Some("x")), rule("/c", Some("x")));
    let mut core = start(&plan(vec![shop(&["x"], vec![a.clone(), b.clone()])]));
    let first = numbers(&core, 0);
    count(&core, first[0], 4);
    core.apply(&plan(vec![shop(&["x"], vec![c.clone(), b.clone(), a.clone()])])).unwrap();
    let second = numbers(&core, 0);
    assert_eq!((second[1], second[2]), (first[1], first[0]), "wherever it stands now");
    assert!(!first.contains(&second[0]));
    count(&core, second[2], 1);
    let counts = core.rule_counts().unwrap();
    let of_a = RuleCount { service: 0, rule: 2, admitted: 2, refused: 5, ..RuleCount::default() };
    assert_eq!(counts[2], of_a, "of both slots");
    assert_eq!(counts[0], RuleCount::default(), "c is new");
    // Without "a", and with it again: it begins anew.
    core.apply(&plan(vec![shop(&["x"], vec![b.clone()])])).unwrap();
    core.apply(&plan(vec![shop(&["x"], vec![b, a])])).unwrap();
    assert_eq!(core.rule_counts().unwrap()[1], RuleCount { rule: 1, ..RuleCount::default() });
}

#[test]
fn after_a_reload_only_the_slot_in_force_leads_to_rules() {
    let rules = |n: usize| (0..n).map(|n| rule(&format!("/{n}"), Some("x"))).collect();
    let mut core = start(&plan(vec![shop(&["x"], rules(7))]));
    for n in [300, 2] {
        let before: RequestControl = core.maps.read("tg_request_control", 0).unwrap();
        core.apply(&plan(vec![shop(&["x"], rules(n))])).unwrap();
        let control: RequestControl = core.maps.read("tg_request_control", 0).unwrap();
        assert_eq!((control.slot, control.services), (1 - before.slot, 1));
        let paths: Vec<Vec<u8>> = core.maps.get("tg_paths").unwrap().keys().collect();
        assert_eq!(paths.len(), n);
        assert!(
            paths.iter().all(|key| u32::from(key[offset_of!(abi::PathKey, slot)]) == control.slot)
        );
    }
    let number = numbers(&core, 0)[1];
    let control: RequestControl = core.maps.read("tg_request_control", 0).unwrap();
    let at = control.slot * abi::RULES_MAX as u32 + number;
    let rule: Rule = core.maps.read("tg_rules", at).unwrap();
    assert_eq!((u32::from(rule.bucket), rule.refuse), (bucket_number(&core, 0, 0), 1));
    core.apply(&plan(vec![plans::service("shop", &["0.0.0.0:80"])])).unwrap();
    assert_eq!(core.maps.get("tg_paths").unwrap().keys().count(), 0, "no rules any more");
    let control: RequestControl = core.maps.read("tg_request_control", 0).unwrap();
    assert_eq!(control.services, 0);
}

#[test]
fn limits_of_buckets_are_swapped_whole_and_follow_the_name() {
    let rules = vec![rule("/", Some("y"))];
    let mut core = start(&plan(vec![shop(&["x", "y"], rules.clone())]));
    core.set_limits(&[], &[limit(0, 0, 3), limit(0, 1, 5)], 40).unwrap();
    core.set_limits(&[], &[limit(0, 1, 7)], 41).unwrap();
    let (x, y) = (bucket_number(&core, 0, 0), bucket_number(&core, 0, 1));
    let tokens = |core: &Core, number| in_force(core, number);
    let named = (tokens(&core, x), tokens(&core, y));
    assert_eq!(named, (bucket(3), bucket(7)), "x was not named and keeps its limit");
    assert_eq!(generation(&core), 41);
    // "y" stands first now, and "z" is new.
    core.apply(&plan(vec![shop(&["y", "z"], vec![rule("/", Some("y"))])])).unwrap();
    assert_eq!(bucket_number(&core, 0, 0), y);
    assert_eq!(tokens(&core, y), bucket(7));
    let z = bucket_number(&core, 0, 1);
    assert!(!in_force(&core, z).limited(), "z has no limit yet");
    // A bucket of this name of another service is another bucket.
    let other = service("other", plans::requests(&["y"], rules));
    core.apply(&plan(vec![other])).unwrap();
    let number = bucket_number(&core, 0, 0);
    assert!(!in_force(&core, number).limited());
    core.forget_limits().unwrap();
    assert!(!in_force(&core, y).limited());
}

#[test]
fn refusals_of_requests_are_executed_as_the_service_or_their_own_mode_says() {
    let mut own = shop(&["x"], vec![rule("/", Some("x"))]);
    own.name = "own".into();
    own.requests.as_mut().unwrap().mode = Some(Mode::Shadow);
    let mut core = start(&plan(vec![shop(&["x"], vec![rule("/", Some("x"))]), own]));
    let shadow =
        |core: &Core| [0, 1].map(|s| u8::from(in_force(core, bucket_number(core, s, 0)).shadow()));
    assert_eq!(shadow(&core), [0, 1]);
    for service in [0, 1] {
        core.set_shadow(service, true).unwrap();
    }
    assert_eq!(shadow(&core), [1, 1]);
    core.set_limits(&[], &[limit(0, 0, 3)], 9).unwrap();
    for service in [0, 1] {
        core.set_shadow(service, false).unwrap();
    }
    assert_eq!(shadow(&core), [0, 1], "rules in shadow by themselves stay there");
    assert_eq!(generation(&core), 9);
}

#[test]
fn limits_for_buckets_that_are_not_there_or_cannot_be_are_refused_by_name() {
    let mut core = start(&plan(vec![shop(&["x"], vec![rule("/", Some("x"))])]));
    let gap = RequestLimits::new(Params::no_limit(Policy::Gap)).unwrap();
    let other = BucketParams { service: 0, bucket: 0, limits: gap };
    let cases = [
        (limit(0, 1, 3), "bucket 1 of service 0: none such"),
        (limit(1, 0, 3), "bucket 0 of service 1: none such"),
        (other, "service shop: bucket x: limits for policy gap, but token_bucket is in use"),
    ];
    let before = all_in_force(&core);
    for (wrong, text) in cases {
        let buckets = [limit(0, 0, 9), wrong];
        let error = core.set_limits(&[tokens(9)], &buckets, 5).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    let wrong = ServiceParams { service: 1, ..tokens(9) };
    core.set_limits(&[wrong], &[limit(0, 0, 9)], 5).unwrap_err();
    assert!(all_in_force(&core) == before, "nothing of a refused set is in force");
    // Nor does the next write bring it.
    core.set_shadow(0, false).unwrap();
    assert!(all_in_force(&core) == before);
}

/// The limit of the first service: so many tokens.
fn tokens(burst: u32) -> ServiceParams {
    let spec = BucketSpec::new(Rate::per_second(5.0), burst, Action::Drop);
    ServiceParams::new(0, Params::token_bucket(&spec).unwrap())
}

/// A daemon knows by this number whether it took over from somebody.
#[test]
fn a_first_start_is_the_first_generation_with_rules_or_without() {
    for services in [vec![], vec![shop(&["x"], vec![rule("/", Some("x"))])]] {
        let core = start(&plan(services));
        assert_eq!((core.generation(), generation(&core)), (1, 1));
    }
}

/// Services and buckets are one generation: where the kernel refuses the write, both stay.
#[test]
fn a_write_that_fails_leaves_the_limits_of_services_and_buckets_as_they_were() {
    let mut core = start(&plan(vec![shop(&["x"], vec![rule("/", Some("x"))])]));
    core.set_limits(&[tokens(3)], &[limit(0, 0, 3)], 40).unwrap();
    let before = all_in_force(&core);
    let outer = core.maps.get("tg_limits").unwrap();
    outer.freeze().unwrap();
    core.set_limits(&[tokens(7)], &[limit(0, 0, 7)], 41).unwrap_err();
    assert!(all_in_force(&core) == before, "of one generation, the one before");
    assert_eq!((core.generation(), generation(&core)), (40, 40));
}

#[test]
fn an_index_that_changes_hands_begins_without_counts_of_reasons() {
    let mut core = start(&plan(vec![shop(&["x"], vec![rule("/", Some("x"))])]));
    let map = core.maps.get("tg_request_reasons").unwrap();
    let each = abi::ReasonCounts { reason: [1; _] };
    let cpus = vec![each.as_bytes().to_vec(); libbpf_rs::num_possible_cpus().unwrap()];
    map.update_percpu(&0_u32.to_ne_bytes(), &cpus, MapFlags::ANY).unwrap();
    let counted = core.request_reasons().unwrap();
    assert_eq!(counted.len(), Reason::ALL.len() - 1, "evaluated is no reason");
    assert!(counted.iter().all(|c| c.reason != Reason::None && c.count == cpus.len() as u64));
    core.apply(&plan(vec![shop(&["x"], vec![rule("/b", Some("x"))])])).unwrap();
    assert_eq!(core.request_reasons().unwrap(), counted, "the same service");
    let mut other = shop(&["x"], vec![rule("/", Some("x"))]);
    other.name = "other".into();
    core.apply(&plan(vec![other])).unwrap();
    assert_eq!(core.request_reasons().unwrap(), []);
}

#[test]
fn a_plan_without_rules_needs_no_tables_for_them() {
    let mut core = start(&plan(vec![plans::service("shop", &["0.0.0.0:80"])]));
    assert!(core.requests().is_none() && core.maps.find("tg_conns").is_none());
    assert_eq!((core.rule_counts().unwrap(), core.request_reasons().unwrap()), (vec![], vec![]));
    core.apply(&plan(vec![shop(&["x"], vec![rule("/", Some("x"))])])).unwrap();
    assert!(core.requests().is_some());
    assert_eq!(core.totals(0).unwrap().buckets.len(), 1);
    core.heartbeat().unwrap();
    assert_eq!((core.followed().connections, core.followed().limit), (0, 1 << 17));
}

/// Reloads while requests flow: how often.
const RELOADS: usize = 12;

/// A frame between 198.51.100.7 and port 80 of 192.0.2.10: a segment with these flags, numbers and
/// payload.
fn frame(
    port: u16,
    from_server: bool,
    (flags, seq, ack): (u8, u32, u32),
    payload: &[u8],
) -> Vec<u8> {
    let (client, server) = ([198, 51, 100, 7], [192, 0, 2, 10]);
    let ((src, dst), (from, to)) =
        if from_server { ((server, client), (80, port)) } else { ((client, server), (port, 80)) };
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    frame.extend((40 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 1, 0x40, 0, 64, 6, 0, 0]);
    frame.extend(src.into_iter().chain(dst));
    frame.extend(from.to_be_bytes().into_iter().chain(to.to_be_bytes()));
    frame.extend(seq.to_be_bytes().into_iter().chain(ack.to_be_bytes()));
    frame.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    frame.extend(payload);
    frame
}

/// The hooks that a connection meets.
struct Hooks {
    ingress: OwnedFd,
    egress: OwnedFd,
    request_in: OwnedFd,
    request_out: OwnedFd,
}

impl Hooks {
    fn load(core: &Core) -> Self {
        let settings = Variant::default();
        let settings = objects::settings(&core.maps, &core.plan, settings).unwrap();
        let load = |object, bytes: &[u8]| {
            let load = Load { object, bytes, settings, attach_type: None };
            objects::load(&core.maps, &load).unwrap()
        };
        Self {
            ingress: load("tc", &core.objects.tc),
            egress: load("egress", &core.objects.egress),
            request_in: load("request_in", &core.objects.request_in),
            request_out: load("request_out", &core.objects.request_out),
        }
    }

    /// What the last hook says of a frame that both pass.
    fn pass(&self, frame: &[u8], from_server: bool) -> i32 {
        let hooks = if from_server {
            [&self.egress, &self.request_out]
        } else {
            [&self.ingress, &self.request_in]
        };
        let mut last = 0;
        for hook in hooks {
            let mut context = vec![0; 176];
            context[40] = 1; // ifindex: loopback
            let mut run = TestRun { data: frame, context: &mut context, repeat: 1 };
            last = syscall::test_run(hook.as_fd(), &mut run).unwrap().returned as i32;
        }
        last
    }

    /// A connection with one request; what is said of the request.
    fn request(&self, port: u16, request: &[u8]) -> i32 {
        self.pass(&frame(port, false, (0x02, 10, 0), b""), false);
        self.pass(&frame(port, true, (0x12, 77, 11), b""), true);
        self.pass(&frame(port, false, (0x10, 11, 78), b""), false);
        let said = self.pass(&frame(port, false, (0x18, 11, 78), request), false);
        // The server resets: the next connection of this port is another one.
        self.pass(&frame(port, true, (0x14, 78, 11), b""), true);
        said
    }
}

/// A request that needs all tables to be matched: path, host, cookies. Around it so many rules
/// that filling and emptying a slot takes long, each time at other places.
fn crowded(bucket: &str, spare: usize) -> Plan {
    let cookie = |name: String| CookieMatch { name, value: Some("v".into()), absent: false };
    let other = |n: usize| RuleConfig {
        host: Some(format!("h{n}.example").parse().unwrap()),
        cookie: Some(cookie(format!("c{}", n % 20))),
        ..rule(&format!("/{n}/"), Some("x"))
    };
    let mut rules: Vec<RuleConfig> = (0..spare).map(other).collect();
    rules.push(RuleConfig {
        host: Some("*.example".parse().unwrap()),
        cookie: Some(cookie("session".into())),
        protect: vec![Cookie { name: "member".into(), value: None }],
        ..rule("/img", Some(bucket))
    });
    // What a packet would find that sees half of it.
    rules.push(rule("/", None));
    let mut shop = shop(&["x", "y"], rules);
    shop.listen = vec!["0.0.0.0:80".parse().unwrap()];
    plan(vec![shop])
}

#[test]
fn every_request_finds_one_of_two_rule_sets_while_they_are_exchanged() {
    let plans = [crowded("x", 300), crowded("y", 40)];
    let mut core = start(&plans[0]);
    core.heartbeat().unwrap();
    core.listening(tidegate_units::Nanos::ZERO, true).unwrap();
    let hooks = Hooks::load(&core);
    let request = b"GET /img/a HTTP/1.1\r\nHost: a.example\r\nCookie: session=v\r\n\r\n";
    let done = AtomicBool::new(false);
    let requests = std::thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let mut requests = 0_u64;
            while !done.load(Ordering::Relaxed) {
                assert_eq!(hooks.request(1024 + (requests % 60_000) as u16, request), -1);
                requests += 1;
            }
            requests
        });
        for n in 0..RELOADS {
            core.apply(&plans[(n + 1) % 2]).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        traffic.join().unwrap()
    });
    let reasons = core.request_reasons().unwrap();
    assert_eq!(reasons, [], "of {requests} requests");
    let totals = core.totals(0).unwrap();
    let offered: Vec<u64> = totals.buckets.iter().map(|b| b.offered.iter().sum()).collect();
    assert_eq!(offered.iter().sum::<u64>(), requests, "{offered:?}");
    assert!(offered.iter().all(|count| *count > 0), "{offered:?} in {RELOADS} reloads");
}
