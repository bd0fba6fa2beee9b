// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who was refused in the last minute, as the kernel's programs note it. (The filter against an exact set
//! of a million: policy/tests/lately.rs.)

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use support::packet::{Packet, between, syn4};
use tidegate_bpf::testing::{Outcome, TestHook, TestPlane, plans};
use tidegate_bpf::{Plan, ServiceParams};
use tidegate_model::{Canary, Mode, service_identity};
use tidegate_policy::{Action, BucketSpec, Params, Policy};
use tidegate_units::{Nanos, Rate};

/// Refused in one slice at 10,000/s.
const CLIENTS: u32 = 43_000;
/// More than a slice lasts.
const SPAN: Nanos = Nanos::from_millis(4286);

fn plan(mode: Mode) -> Plan {
    let service = |name: &str, listen: &str| tidegate_config::ServiceConfig {
        mode,
        policy: plans::policy(Policy::TokenBucket, Action::Drop),
        ..plans::service(name, &[listen])
    };
    plans::plan(vec![service("other", "0.0.0.0:81"), service("web", "*:80")])
}

/// One token, which is taken at once; then everything is refused.
fn refusing(plan: &Plan) -> TestPlane {
    let mut plane = TestPlane::load(plan).unwrap();
    TestPlane::stay_on_one_cpu();
    let spec = BucketSpec::new(Rate::per_second(0.001), 1, Action::Drop);
    let params = Params::token_bucket(&spec).unwrap();
    plane.set_limits(&[ServiceParams::new(1, params)], &[], 2).unwrap();
    let first = plane.run(TestHook::Xdp, &syn4().bytes()).unwrap();
    assert_eq!(first.outcome, Outcome::Pass);
    plane
}

fn v4(number: u32) -> IpAddr {
    Ipv4Addr::from(0x0b00_0000 | number).into()
}

/// A frame from this client, which is the other's but for its address.
fn from(frame: &mut [u8], number: u32) {
    frame[26..30].copy_from_slice(&(0x0b00_0000 | number).to_be_bytes());
}

fn refuse(plane: &mut TestPlane, clients: std::ops::Range<u32>) {
    let mut frame = between(v4(0), (40_000, 80), false).syn().bytes();
    for number in clients {
        // On a loaded machine all of them take longer than a lease.
        if number % 1000 == 999 {
            plane.heartbeat().unwrap();
        }
        from(&mut frame, number);
        let run = plane.run(TestHook::Xdp, &frame).unwrap();
        assert_eq!(run.outcome, Outcome::Drop, "{number}");
    }
}

#[test]
fn everyone_who_was_refused_is_found_and_hardly_anyone_else() {
    let mut plane = refusing(&plan(Mode::Enforce));
    refuse(&mut plane, 0..CLIENTS);
    let lately = plane.lately().unwrap();
    let missed = (0..CLIENTS).find(|n| lately.find(v4(*n), "web", false).is_none());
    assert_eq!(missed, None);
    let others = 20_000_u32;
    let of = |from: u32, service, shadow| {
        let numbers = from..from + others;
        numbers.filter(|n| lately.find(v4(*n), service, shadow).is_some()).count()
    };
    // One slice of 15: of 64 questions about a minute one answer in 100 is wrong at most.
    let most = (f64::from(others) * 0.01 / 64.0 / 15.0 + 4.0) as usize;
    for (what, wrong) in [
        ("others", of(CLIENTS, "web", false)),
        ("in shadow", of(0, "web", true)),
        ("by the other service", of(0, "other", false)),
    ] {
        assert!(wrong <= most, "{what}: {wrong} of {others}");
    }
    assert!(lately.wrong(4096) < 10, "{} of 4096", lately.wrong(4096));
    assert!(!lately.knows_a_minute(), "the state is younger");
}

#[test]
fn a_client_is_found_for_a_minute_and_then_forgotten() {
    let mut plane = refusing(&plan(Mode::Enforce));
    refuse(&mut plane, 0..1);
    for second in 0..=14_u32 {
        refuse(&mut plane, 1 + second..2 + second);
        let lately = plane.lately().unwrap();
        for number in 0..=1 + second {
            let found = lately.find(v4(number), "web", false);
            assert!(found.is_some(), "{number} after {second} slices");
        }
        plane.age_refusals(SPAN).unwrap();
        for _ in 0..10 {
            plane.heartbeat().unwrap();
        }
    }
    let lately = plane.lately().unwrap();
    assert!(lately.knows_a_minute());
    assert_eq!(lately.find(v4(0), "web", false), None, "64 s ago");
    let (least, most) = lately.find(v4(15), "web", false).unwrap();
    assert!(least < Nanos::from_secs(1) && most >= SPAN, "{least} {most}");
    // All slices once more: what they held is gone.
    for _ in 0..16 {
        plane.age_refusals(SPAN).unwrap();
        for _ in 0..10 {
            plane.heartbeat().unwrap();
        }
    }
    let lately = plane.lately().unwrap();
    assert!((0..20).all(|n| lately.find(v4(n), "web", false).is_none()));
    assert_eq!(lately.wrong(4096), 0, "nothing is left in any slice");
}

/// Nobody is refused without a lease: who was refused before the daemon was away is not found behind that,
/// and who is refused then is. The next slice need not be clear yet.
#[test]
fn a_slice_does_not_span_an_outage() {
    const AWAY: Nanos = Nanos::from_secs(90);
    for beats in [0, 3, 20] {
        let mut plane = refusing(&plan(Mode::Enforce));
        let mut last = plane.heartbeat().unwrap();
        for _ in 0..beats {
            last = plane.heartbeat().unwrap();
        }
        refuse(&mut plane, 0..1);
        plane.age_refusals(AWAY).unwrap();
        plane.set_lease(last.since(AWAY)).unwrap();
        plane.heartbeat().unwrap();
        refuse(&mut plane, 1..2);
        let lately = plane.lately().unwrap();
        assert_eq!(lately.find(v4(0), "web", false), None, "{beats} heartbeats");
        assert!(lately.find(v4(1), "web", false).is_some(), "{beats} heartbeats");
        assert!(lately.knows_a_minute(), "nobody was refused in it");
    }
}

#[test]
fn shadow_both_families_and_another_plan() {
    let mut plane = refusing(&plan(Mode::Shadow));
    let v6: Ipv6Addr = "2001:db8::7".parse().unwrap();
    let neighbour: Ipv6Addr = "2001:db8::8".parse().unwrap();
    for client in [v4(1), v6.into()] {
        let packet: Packet = between(client, (40_000, 80), false).syn();
        let run = plane.run(TestHook::Xdp, &packet.bytes()).unwrap();
        assert_eq!(run.outcome, Outcome::Pass);
    }
    let found = |plane: &TestPlane, client: IpAddr, shadow| {
        plane.lately().unwrap().find(client, "web", shadow).is_some()
    };
    assert!(found(&plane, v4(1), true) && !found(&plane, v4(1), false));
    assert!(found(&plane, v6.into(), true) && !found(&plane, neighbour.into(), true));
    // Services are known by name: another configuration moves them.
    let mut moved = plan(Mode::Enforce);
    moved.config.services.reverse();
    plane.apply(&moved).unwrap();
    assert!(found(&plane, v4(1), true));
}

/// Another boot, another key: what collides here does not there. In a small table, so that much does.
#[test]
fn the_key_is_that_of_the_state() {
    let mut small = plan(Mode::Enforce);
    small.config.tables.refusals = 1024;
    let wrong = || -> Vec<u32> {
        let mut plane = refusing(&small);
        refuse(&mut plane, 0..500);
        let lately = plane.lately().unwrap();
        assert!((0..500).all(|n| lately.find(v4(n), "web", false).is_some()));
        (10_000..30_000).filter(|n| lately.find(v4(*n), "web", false).is_some()).collect()
    };
    let (a, b) = (wrong(), wrong());
    assert!(a.len() > 50 && b.len() > 50, "{} and {} of 20,000", a.len(), b.len());
    let both = a.iter().filter(|n| b.contains(n)).count();
    assert!(both < a.len() / 4, "{both} of {} and {}", a.len(), b.len());
}

/// Whose refusals a canary executes depends on the address and on the name of the service, not on where that
/// stands in the file; gateways with the same key choose the same.
#[test]
fn a_canary_chooses_the_same_sources_wherever_its_service_stands() {
    let mut plane = refusing(&plan(Mode::Enforce));
    let key = plane.source_key().unwrap();
    let half = Canary::of_percent(50.0).unwrap();
    let v6 = |number: u32| -> IpAddr { format!("2001:db8:{number:x}::7").parse().unwrap() };
    let clients: Vec<IpAddr> = (0..64).flat_map(|n| [v4(n), v6(n)]).collect();
    let refused = |plane: &TestPlane| -> Vec<IpAddr> {
        let run = |client: IpAddr| {
            plane.run(TestHook::Xdp, &between(client, (40_000, 80), false).syn().bytes())
        };
        let chosen =
            clients.iter().filter(|client| run(**client).unwrap().outcome == Outcome::Drop);
        chosen.copied().collect()
    };
    plane.set_mode(1, Mode::Enforce, half).unwrap();
    let chosen = |client: &&IpAddr| {
        let octets = match client {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        key.source(octets, service_identity("web")) >> 48 < u64::from(half.share_q16())
    };
    let expected: Vec<IpAddr> = clients.iter().filter(chosen).copied().collect();
    assert!((32..=96).contains(&expected.len()), "{}", expected.len());
    assert_eq!(refused(&plane), expected);
    let mut moved = plan(Mode::Enforce);
    moved.config.services.reverse();
    plane.apply(&moved).unwrap();
    let spec = BucketSpec::new(Rate::per_second(0.001), 1, Action::Drop);
    plane
        .set_limits(&[ServiceParams::new(0, Params::token_bucket(&spec).unwrap())], &[], 3)
        .unwrap();
    plane.run(TestHook::Xdp, &syn4().bytes()).unwrap();
    plane.set_mode(0, Mode::Enforce, half).unwrap();
    assert_eq!(refused(&plane), expected, "at another place");
    // The other bits of an IPv6 /64 are one client's.
    let neighbour: Ipv6Addr = "2001:db8:5::ffff".parse().unwrap();
    let source = |client: Ipv6Addr| key.source(client.octets(), 1);
    assert_eq!(source(neighbour), source("2001:db8:5::7".parse().unwrap()));
    assert_ne!(source(neighbour), source("2001:db8:5:1::7".parse().unwrap()));
}
