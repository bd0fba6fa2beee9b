// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Datagrams to services at the ingress hooks, in the kernel: which are counted, which a limit refuses, and that
//! nothing else is touched.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use support::object::require_root;
use support::packet::{DEST_OPTIONS, ESP, Packet, eth};
use support::random::{Dice, seed};
use tidegate_bpf::testing::{Outcome, TestHook, TestPlane, plans};
use tidegate_bpf::{Plan, ServiceParams};
use tidegate_model::totals::DatagramTotals;
use tidegate_model::{Canary, Mode};
use tidegate_policy::{Action, BucketSpec, DatagramLimit, Params, Policy};
use tidegate_units::{Clock, MonotonicClock, Nanos, Rate};

const HOOKS: [TestHook; 2] = [TestHook::Xdp, TestHook::Tc];
const SHOP: usize = 0;
/// So slow that no token comes back while a test runs.
const SLOW: f64 = 0.001;
/// Packets that are made at random.
const RANDOM: usize = 20_000;

/// Two services; a source and a port are exempt.
fn plan() -> Plan {
    let shop = plans::service("shop", &["192.0.2.10:80", "[2001:db8::10]:80", "192.0.2.10:22"]);
    let mut plan = plans::plan(vec![shop, plans::service("any", &["*:443"])]);
    plan.config.services[SHOP].datagrams = Some(Rate::per_second(50.0));
    plan.config.exempt.sources = vec!["203.0.113.9/32".parse().unwrap()];
    plan.config.exempt.ports = vec![22];
    plan
}

fn loaded() -> TestPlane {
    require_root();
    TestPlane::load(&plan()).unwrap()
}

/// Puts a limit of so many at once in force, or none.
fn limit(plane: &mut TestPlane, service: usize, burst: Option<u32>) {
    let datagrams = burst.map(|burst| DatagramLimit::new(Rate::per_second(SLOW), burst).unwrap());
    let params = ServiceParams {
        datagrams: datagrams.unwrap_or_default(),
        ..ServiceParams::new(service, Params::no_limit(Policy::TokenBucket))
    };
    let next = plane.generation() + 1;
    plane.set_limits(&[params], &[], next).unwrap();
}

/// With a lease that is whole, however slow the machine is.
fn dropped(plane: &TestPlane, hook: TestHook, packet: &Packet) -> bool {
    plane.set_lease(MonotonicClock.now()).unwrap();
    evaluated_drop(plane, hook, packet)
}

fn evaluated_drop(plane: &TestPlane, hook: TestHook, packet: &Packet) -> bool {
    match plane.run(hook, &packet.bytes()).unwrap().outcome {
        Outcome::Drop => true,
        Outcome::Pass => false,
        other => panic!("{other:?}"),
    }
}

fn counted(plane: &TestPlane, service: usize) -> DatagramTotals {
    plane.totals(service).unwrap().datagrams.unwrap()
}

fn v4() -> Packet {
    eth().ipv4().to4([192, 0, 2, 10])
}

fn v6() -> Packet {
    eth().ipv6().to6("2001:db8::10")
}

/// A header of UDP that says so many bytes.
fn header(length: u16) -> [u8; 8] {
    let [high, low] = length.to_be_bytes();
    [0, 9, 0, 80, high, low, 0, 0]
}

/// What is a datagram to the service: whatever has its port.
fn datagrams() -> Vec<(&'static str, Packet)> {
    let options = |count: usize| (0..count).fold(v6(), |packet, _| packet.ext(DEST_OPTIONS));
    vec![
        ("IPv4", v4().udp(9, 80)),
        ("IPv6", v6().udp(9, 80)),
        ("with a payload", v4().udp(9, 80).data(&[0; 900])),
        ("behind VLAN tags", eth().svlan(7).vlan(8).ipv4().to4([192, 0, 2, 10]).udp(9, 80)),
        ("IP options", v4().options(&[1; 40]).udp(9, 80)),
        ("eight extension headers", options(8).udp(9, 80)),
        ("a first fragment", v4().frag4(0, true).udp(9, 80)),
        ("a first fragment of IPv6", v6().frag6(0, true).udp(9, 80)),
        ("the only fragment of IPv6", v6().frag6(0, false).udp(9, 80)),
        ("no more than its header", v4().proto(17, &header(8))),
        ("a length of zero", v4().proto(17, &header(0))),
        ("a length that is too large", v6().proto(17, &header(900))),
        ("a length that is too small", v4().proto(17, &[&header(8)[..], &[0; 99]].concat())),
    ]
}

/// What is none, though it looks like one.
fn others() -> Vec<(&'static str, Packet)> {
    let options = |count: usize| (0..count).fold(v6(), |packet, _| packet.ext(DEST_OPTIONS));
    vec![
        ("another port", v4().udp(9, 81)),
        ("its source port", v4().udp(80, 9)),
        ("another address", v4().to4([192, 0, 2, 11]).udp(9, 80)),
        ("another address of IPv6", v6().to6("2001:db8::11").udp(9, 80)),
        ("a later fragment", v4().frag4(64, true).udp(9, 80)),
        ("the last fragment", v4().frag4(64, false).udp(9, 80)),
        ("a later fragment of IPv6", v6().frag6(64, true).udp(9, 80)),
        ("seven bytes of a header", v4().proto(17, &header(8)[..7])),
        ("the same of IPv6", v6().proto(17, &header(8)[..7])),
        ("a frame that ends in the header", v4().udp(9, 80).cut(38)),
        ("an IP length that ends in it", v4().tot_len(24).udp(9, 80)),
        ("nine extension headers", options(9).udp(9, 80)),
        ("ESP", v4().proto(ESP, &header(8))),
        ("SCTP", v4().proto(132, &header(8))),
        ("UDP-Lite", v4().proto(136, &header(8))),
        ("ICMP", v4().icmp(8, 0)),
        ("a neighbour", v6().ttl(255).icmp6(136, 0)),
        ("ARP", eth().arp()),
        ("TCP", v4().tcp(9, 80).ack(1)),
        ("an exempt source", v4().from4([203, 0, 113, 9]).udp(9, 80)),
        ("an exempt port", v4().udp(9, 22)),
    ]
}

#[test]
fn datagrams_to_a_service_are_counted_and_nothing_else_is() {
    let plane = loaded();
    for hook in HOOKS {
        for (list, more) in [(datagrams(), 1), (others(), 0)] {
            for (what, packet) in list {
                let before = counted(&plane, SHOP);
                assert!(!dropped(&plane, hook, &packet), "{hook:?}: {what}");
                let now = counted(&plane, SHOP);
                assert_eq!(now.offered, before.offered + more, "{hook:?}: {what}");
                assert_eq!(DatagramTotals { offered: before.offered, ..now }, before, "{what}");
            }
        }
    }
    assert_eq!(counted(&plane, 1), DatagramTotals::default());
    assert!(!dropped(&plane, TestHook::Xdp, &v4().to4([192, 0, 2, 77]).udp(9, 443)));
    assert_eq!(counted(&plane, 1).offered, 1, "any address");
    // They are no connections, and are not among what passed for a reason.
    assert_eq!(plane.totals(SHOP).unwrap().offered, 0);
}

/// A server gave it until a time: nobody has to be there to end it.
#[test]
fn a_limit_is_over_at_its_time() {
    for hook in HOOKS {
        let mut plane = loaded();
        let ahead = Nanos::from_secs(600);
        let now = MonotonicClock.now();
        let past = now - Nanos::from_millis(50);
        for (until, refuses) in [(None, true), (Some(now + ahead), true), (Some(past), false)] {
            let mut datagrams = DatagramLimit::new(Rate::per_second(SLOW), 1).unwrap();
            datagrams.set_until(until);
            let params = ServiceParams {
                datagrams,
                ..ServiceParams::new(SHOP, Params::no_limit(Policy::TokenBucket))
            };
            let next = plane.generation() + 1;
            plane.set_limits(&[params], &[], next).unwrap();
            dropped(&plane, hook, &v4().udp(9, 80));
            let refused = dropped(&plane, hook, &v4().udp(9, 80));
            assert_eq!(refused, refuses, "{hook:?}, {until:?}");
        }
    }
}

#[test]
fn an_empty_bucket_refuses_datagrams_and_nothing_else() {
    for hook in HOOKS {
        let mut plane = loaded();
        limit(&mut plane, SHOP, Some(3));
        let first: Vec<bool> =
            (0..5).map(|_| dropped(&plane, hook, &v4().udp(9, 80).data(&[0; 72]))).collect();
        assert_eq!(first, [false, false, false, true, true], "{hook:?}");
        let expected =
            DatagramTotals { offered: 5, refused: 2, refused_bytes: 200, ..Default::default() };
        assert_eq!(counted(&plane, SHOP), expected);
        for (what, packet) in datagrams() {
            assert!(dropped(&plane, hook, &packet), "{hook:?}: {what}");
        }
        for (what, packet) in others() {
            assert!(!dropped(&plane, hook, &packet), "{hook:?}: {what}");
        }
        assert!(!dropped(&plane, hook, &v4().udp(9, 443)), "another service");
        assert!(!dropped(&plane, hook, &v4().tcp(9, 80).syn()), "a connection");
        // Both hooks have one bucket.
        let other = HOOKS.into_iter().find(|other| *other != hook).unwrap();
        assert!(dropped(&plane, other, &v6().udp(9, 80)));
        limit(&mut plane, SHOP, None);
        assert!(!dropped(&plane, hook, &v4().udp(9, 80)), "without a limit all pass");
    }
}

#[test]
fn a_limit_on_connections_is_none_on_datagrams() {
    let mut plane = loaded();
    let spec = BucketSpec::new(Rate::per_second(SLOW), 1, Action::Drop);
    let params = ServiceParams::new(SHOP, Params::token_bucket(&spec).unwrap());
    let next = plane.generation() + 1;
    plane.set_limits(&[params], &[], next).unwrap();
    for hook in HOOKS {
        (0..3).for_each(|_| assert!(!dropped(&plane, hook, &v4().udp(9, 80)), "{hook:?}"));
    }
    assert!(!dropped(&plane, TestHook::Xdp, &v4().tcp(9, 80).syn()));
    assert!(dropped(&plane, TestHook::Xdp, &v4().tcp(10, 80).syn()));
}

#[test]
fn what_lets_connections_pass_lets_datagrams_pass() {
    let mut plane = loaded();
    limit(&mut plane, SHOP, Some(1));
    let packet = v4().udp(9, 80).data(&[0; 72]);
    assert!(!dropped(&plane, TestHook::Tc, &packet) && dropped(&plane, TestHook::Tc, &packet));
    let is_dropped = |plane: &TestPlane| HOOKS.map(|hook| dropped(plane, hook, &packet));
    let spared = |plane: &TestPlane| counted(plane, SHOP).spared;
    plane.release(true).unwrap();
    assert_eq!((is_dropped(&plane), spared(&plane)), ([false; 2], 0), "the kill switch");
    plane.release(false).unwrap();
    plane.set_mode(SHOP, Mode::Shadow, Canary::ALL).unwrap();
    assert_eq!((is_dropped(&plane), spared(&plane)), ([false; 2], 2), "shadow counts");
    plane.set_mode(SHOP, Mode::Enforce, Canary::ALL).unwrap();
    assert_eq!(is_dropped(&plane), [true; 2]);
    // A limit that is written keeps the mode.
    plane.set_mode(SHOP, Mode::Shadow, Canary::ALL).unwrap();
    limit(&mut plane, SHOP, Some(1));
    assert_eq!(is_dropped(&plane), [false; 2]);
    plane.set_mode(SHOP, Mode::Enforce, Canary::ALL).unwrap();
    let share = |age: Nanos| {
        let evaluated = |_: &i32| {
            plane.set_lease(MonotonicClock.now() - age).unwrap();
            evaluated_drop(&plane, TestHook::Tc, &packet)
        };
        (0..400).filter(evaluated).count()
    };
    assert_eq!(share(Nanos::from_millis(2_000)), 400, "a lease that holds");
    let half = share(Nanos::from_millis(6_500));
    assert!((100..300).contains(&half), "{half} of 400 in the middle between 3 and 10 s");
    assert_eq!(share(Nanos::from_secs(11)), 0, "none");
}

/// The same sources as for connections: each as a whole.
#[test]
fn a_canary_chooses_among_sources() {
    let mut plane = loaded();
    let canary = Canary::of_percent(50.0).unwrap();
    plane.set_mode(SHOP, Mode::Enforce, canary).unwrap();
    limit(&mut plane, SHOP, Some(1));
    let from = |last: u8| v4().from4([198, 51, 100, last]).udp(9, 80);
    dropped(&plane, TestHook::Xdp, &from(0));
    let chosen: Vec<bool> = (0..=255).map(|n| dropped(&plane, TestHook::Xdp, &from(n))).collect();
    let refused = chosen.iter().filter(|refused| **refused).count();
    assert!((80..176).contains(&refused), "{refused} of 256");
    let again: Vec<bool> = (0..=255).map(|n| dropped(&plane, TestHook::Tc, &from(n))).collect();
    assert_eq!(again, chosen);
    assert_eq!(counted(&plane, SHOP).spared, 2 * (256 - refused as u64));
}

#[test]
fn a_merged_packet_pays_for_all_of_its_datagrams() {
    let mut plane = loaded();
    plane.load_hook(TestHook::Tc).unwrap();
    let udp = v4().udp(9, 80).data(&[0; 1000]);
    let walked = v6().ext(DEST_OPTIONS).udp(9, 80).data(&[0; 1000]);
    // Headers of IP and UDP stand before each segment; a number that is told is taken.
    let cases = [
        ("not merged", &udp, (0, 0), (1, 1_028)),
        ("segments", &udp, (10, 100), (10, 1_000 + 10 * 28)),
        ("virtio", &udp, (0, 100), (10, 1_000 + 10 * 28)),
        ("a last one that is shorter", &udp, (0, 300), (4, 1_000 + 4 * 28)),
        ("extension headers", &walked, (0, 500), (2, 1_000 + 2 * 56)),
    ];
    let run = |plane: &TestPlane, packet: &Packet, merged| {
        plane.set_lease(MonotonicClock.now()).unwrap();
        plane.is_merged_dropped(&packet.bytes(), merged).unwrap()
    };
    for (what, packet, merged, (datagrams, bytes)) in cases {
        let before = counted(&plane, SHOP);
        assert!(!run(&plane, packet, merged), "{what}");
        assert_eq!(counted(&plane, SHOP).offered, before.offered + datagrams, "{what}");
        // One that passes, with a token; the next is refused whole.
        limit(&mut plane, SHOP, Some(1));
        while !run(&plane, packet, merged) {}
        let before = counted(&plane, SHOP);
        assert!(run(&plane, packet, merged), "{what}");
        let now = counted(&plane, SHOP);
        let more = (now.refused - before.refused, now.refused_bytes - before.refused_bytes);
        assert_eq!(more, (datagrams, bytes), "{what}");
        limit(&mut plane, SHOP, None);
    }
    // 50 at once: one packet of 40 datagrams and one of 128 pass, and then nobody for long.
    let mut plane = loaded();
    limit(&mut plane, SHOP, Some(50));
    assert!(!run(&plane, &udp, (40, 25)) && !run(&plane, &udp, (128, 8)));
    assert!(run(&plane, &udp, (0, 0)), "in debt");
}

#[test]
fn hooks_that_count_none_look_at_none_and_a_reload_keeps_counts() {
    let mut plain = plan();
    plain.config.services[SHOP].datagrams = None;
    let mut plane = TestPlane::load(&plain).unwrap();
    limit(&mut plane, SHOP, Some(1));
    for hook in HOOKS {
        (0..3).for_each(|_| assert!(!dropped(&plane, hook, &v4().udp(9, 80)), "{hook:?}"));
    }
    assert_eq!(plane.totals(SHOP).unwrap().datagrams, None);
    let mut plane = loaded();
    limit(&mut plane, SHOP, Some(1));
    (0..4).for_each(|_| _ = dropped(&plane, TestHook::Xdp, &v4().udp(9, 80)));
    let before = counted(&plane, SHOP);
    assert_eq!((before.offered, before.refused), (4, 3));
    plane.apply(&plan()).unwrap();
    assert_eq!(counted(&plane, SHOP), before);
    assert!(dropped(&plane, TestHook::Xdp, &v4().udp(9, 80)), "its limit holds");
    // Another service in its place begins with neither.
    let mut other = plan();
    other.config.services[SHOP].name = "other".into();
    plane.apply(&other).unwrap();
    assert_eq!(counted(&plane, SHOP), DatagramTotals::default());
    assert!(!dropped(&plane, TestHook::Xdp, &v4().udp(9, 80)));
    limit(&mut plane, SHOP, Some(1));
    assert!(!dropped(&plane, TestHook::Xdp, &v4().udp(9, 80)), "nothing of its limit is used");
    assert!(dropped(&plane, TestHook::Xdp, &v4().udp(9, 80)));
}

/// A packet made at random, and whether it is a datagram to the service: its ports are there.
fn any(dice: &mut Dice) -> (Packet, bool) {
    let is4 = dice.one_in(2);
    let (address, port) = (10 + dice.u8() % 2, 79 + u16::from(dice.u8() % 3));
    let mut ip = if is4 {
        eth().ipv4().to4([192, 0, 2, address])
    } else {
        eth().ipv6().to6(&format!("2001:db8::{address}"))
    };
    let headers = if dice.one_in(3) { dice.below(11) } else { 0 };
    if is4 {
        ip = ip.options(&vec![1; 4 * headers.min(10)]);
    } else {
        ip = (0..headers).fold(ip, |ip, _| ip.ext(DEST_OPTIONS));
    }
    let (offset, more) = *dice.pick(&[(0, false), (0, false), (0, true), (64, true), (64, false)]);
    let is_fragment = (offset, more) != (0, false);
    if is_fragment {
        ip = if is4 { ip.frag4(offset, more) } else { ip.frag6(offset, more) };
    }
    let walked = headers + usize::from(is_fragment);
    let readable = offset == 0 && (is4 || walked <= 8);
    let (packet, is_udp) = match dice.below(4) {
        0 => (ip.tcp(9, port).ack(1), false),
        1 => (ip.proto(132, &header(8)), false),
        _ => (ip.udp(9, port).data(&vec![0; dice.below(40)]), true),
    };
    // IPv6 of service 192.0.2.10 is 2001:db8::10.
    (packet, is_udp && readable && address == 10 && port == 80)
}

#[test]
fn a_limit_refuses_just_the_datagrams_of_its_service() {
    let mut plane = loaded();
    limit(&mut plane, SHOP, Some(1));
    assert!(!dropped(&plane, TestHook::Xdp, &v4().udp(9, 80)));
    let seed = seed();
    let mut dice = Dice::new(seed);
    let mut refused = 0;
    for n in 0..RANDOM {
        let (packet, is_refused) = any(&mut dice);
        let hook = HOOKS[n % 2];
        let found = dropped(&plane, hook, &packet);
        assert_eq!(found, is_refused, "{hook:?}, seed {seed}: packet {n}: {packet:?}");
        refused += u64::from(is_refused);
    }
    let counts = counted(&plane, SHOP);
    assert!(refused > 100, "{refused}");
    assert_eq!((counts.offered, counts.refused), (refused + 1, refused));
}
