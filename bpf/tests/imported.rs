// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules of a router at the ingress hooks: what each part of one matches, which of several holds, and how many
//! packets and bytes pass. Frames are given to the hooks in the kernel; the oracle knows only what a frame is.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use ipnet::IpNet;
use std::ops::RangeInclusive;
use support::object::require_root;
use support::packet::{ACK, DEST_OPTIONS, ESP, Packet, SYN, eth};
use support::random::{Dice, seed};
use tidegate_bpf::testing::{Outcome, TestHook, TestPlane, plans};
use tidegate_bpf::{Imported, ImportedHits, ImportedRule, Plan};
use tidegate_units::{Clock, MonotonicClock, Nanos, Rate};

const HOOKS: [TestHook; 2] = [TestHook::Xdp, TestHook::Tc];
/// Tables of rules at random, and frames for each.
const TABLES: usize = 60;
const FRAMES: usize = 120;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// Everything to a prefix, at most so many packets per second.
fn rule(slot: u16, destination: &str, packets: f64) -> ImportedRule {
    ImportedRule {
        slot,
        generation: 1,
        destination: net(destination),
        source: None,
        protocol: None,
        to: Vec::new(),
        from: Vec::new(),
        flags: None,
        packets: Some(Rate::per_second(packets)),
        bytes: None,
    }
}

fn table(rules: Vec<ImportedRule>) -> Imported {
    Imported { rules, ..Imported::default() }
}

/// One service on port 80; a source is never refused anything.
fn plan() -> Plan {
    let mut plan = plans::importing(plans::plan(vec![plans::service("shop", &["*:80"])]));
    plan.config.exempt.sources = vec![net("203.0.113.9/32"), net("2001:db8:9::/48")];
    plan
}

fn loaded() -> TestPlane {
    require_root();
    TestPlane::load(&plan()).unwrap()
}

/// With a lease that is whole, however slow the machine is.
fn dropped(plane: &TestPlane, hook: TestHook, packet: &Packet) -> bool {
    plane.set_lease(MonotonicClock.now()).unwrap();
    evaluated_drop(plane, hook, packet)
}

/// The same of a packet that was merged: segments, and bytes of each.
fn is_merged_dropped(plane: &TestPlane, packet: &Packet, merged: (u32, u32)) -> bool {
    plane.set_lease(MonotonicClock.now()).unwrap();
    plane.is_merged_dropped(&packet.bytes(), merged).unwrap()
}

fn evaluated_drop(plane: &TestPlane, hook: TestHook, packet: &Packet) -> bool {
    match plane.run(hook, &packet.bytes()).unwrap().outcome {
        Outcome::Drop => true,
        Outcome::Pass => false,
        other => panic!("{other:?}"),
    }
}

fn v4() -> Packet {
    eth().ipv4().to4([192, 0, 2, 7])
}

fn v6() -> Packet {
    eth().ipv6().to6("2001:db8:1::7")
}

/// A rule that drops all that it matches, with frames that it matches and frames that it does not.
type Part = (&'static str, ImportedRule, Vec<Packet>, Vec<Packet>);

fn all4() -> ImportedRule {
    rule(0, "192.0.2.0/24", 0.0)
}

fn all6() -> ImportedRule {
    rule(0, "2001:db8:1::/48", 0.0)
}

fn late(packet: Packet) -> Packet {
    packet.frag4(64, true)
}

fn addresses() -> Vec<Part> {
    vec![
        (
            "a destination",
            all4(),
            vec![
                v4().tcp(9, 80),
                v4().udp(9, 53),
                v4().icmp(8, 0),
                late(v4()).udp(9, 53),
                v4().proto(50, &[0; 16]),
                v4().to4([192, 0, 2, 255]).udp(9, 53),
                v4().to4([192, 0, 2, 0]).udp(9, 53),
                eth().vlan(7).ipv4().to4([192, 0, 2, 7]).udp(1, 2),
            ],
            vec![
                v4().to4([192, 0, 3, 0]).udp(9, 53),
                v4().to4([192, 0, 1, 255]).udp(9, 53),
                v6().udp(9, 53),
                eth().arp(),
            ],
        ),
        (
            "a destination of IPv6",
            all6(),
            vec![
                v6().tcp(9, 80),
                v6().udp(9, 53),
                v6().icmp6(128, 0),
                v6().ext(DEST_OPTIONS).udp(9, 53),
                v6().frag6(64, true).udp(9, 53),
                v6().proto(ESP, &[0; 16]),
            ],
            vec![v6().to6("2001:db8:2::").udp(9, 53), v4().udp(9, 53)],
        ),
        (
            "a source",
            ImportedRule { source: Some(net("198.51.100.128/25")), ..all4() },
            vec![v4().from4([198, 51, 100, 200]).udp(9, 53)],
            vec![v4().from4([198, 51, 100, 127]).udp(9, 53)],
        ),
    ]
}

fn ports() -> Vec<Part> {
    let udp =
        |ports: RangeInclusive<u16>| ImportedRule { protocol: Some(17), to: vec![ports], ..all4() };
    let udp6 = |ports| ImportedRule { destination: all6().destination, ..udp(ports) };
    let first = Some((SYN | ACK, SYN));
    vec![
        (
            "ports of UDP",
            udp(1000..=2000),
            vec![
                v4().udp(9, 1000),
                v4().udp(9, 2000),
                v4().frag4(0, true).udp(9, 1500),
                v4().options(&[1; 8]).udp(9, 1500),
            ],
            vec![
                v4().udp(9, 999),
                v4().udp(9, 2001),
                v4().udp(1500, 9),
                late(v4()).udp(9, 1500),
                v4().tcp(9, 1500),
                v4().proto(17, &[0, 9, 5, 220]),
                v4().proto(132, &[0, 9, 5, 220, 0, 0, 0, 0]),
            ],
        ),
        (
            "ports of UDP over IPv6",
            udp6(1000..=2000),
            vec![
                v6().udp(9, 1000),
                v6().ext(DEST_OPTIONS).udp(9, 2000),
                v6().frag6(0, true).udp(9, 1500),
            ],
            vec![v6().udp(9, 2001), v6().frag6(64, true).udp(9, 1500), v6().tcp(9, 1500)],
        ),
        (
            "source ports",
            ImportedRule { from: vec![53..=53, 123..=123, 389..=389, 1900..=1901], ..all4() },
            vec![v4().udp(53, 9), v4().udp(1901, 9), v4().tcp(389, 9)],
            vec![v4().udp(54, 53), v4().udp(1902, 9), v4().icmp(8, 0)],
        ),
        (
            "first packets of TCP",
            ImportedRule { protocol: Some(6), flags: first, to: vec![80..=80], ..all4() },
            vec![v4().tcp(9, 80).syn(), v4().tcp(9, 80).syn().flags(0x08)],
            vec![v4().tcp(9, 80).syn().ack(1), v4().tcp(9, 80).ack(1), v4().udp(9, 80)],
        ),
        (
            "flags without a protocol are of TCP",
            ImportedRule { flags: Some((ACK, 0)), ..all4() },
            vec![v4().tcp(9, 81).syn()],
            vec![v4().udp(9, 80), late(v4()).tcp(9, 80)],
        ),
    ]
}

#[test]
fn each_part_of_a_rule_says_which_packets() {
    let mut plane = loaded();
    for (what, rule, hit, missed) in addresses().into_iter().chain(ports()) {
        plane.set_imported(&table(vec![rule])).unwrap();
        for hook in HOOKS {
            for (packets, expected) in [(&hit, true), (&missed, false)] {
                for (at, packet) in packets.iter().enumerate() {
                    let found = dropped(&plane, hook, packet);
                    assert_eq!(found, expected, "{what}: {hook:?}, frame {at} of {expected}");
                }
            }
        }
    }
}

#[test]
fn nothing_is_dropped_that_must_pass() {
    let mut plane = loaded();
    let peer = [192, 0, 2, 1];
    let all = Imported {
        rules: vec![rule(0, "2001:db8:1::/48", 0.0), rule(1, "192.0.2.0/24", 0.0)],
        peers: vec!["2001:db8::1".parse().unwrap(), peer.into()],
        never: vec![22, 65_535, 0],
        ..Imported::default()
    };
    plane.set_imported(&all).unwrap();
    for hook in HOOKS {
        let is_dropped = |packet: Packet| dropped(&plane, hook, &packet);
        assert!(is_dropped(v4().tcp(9, 23)) && !is_dropped(v4().tcp(9, 22)), "a port");
        assert!(!is_dropped(v4().tcp(9, 65_535)) && is_dropped(v4().tcp(9, 65_534)));
        assert!(!is_dropped(v6().tcp(9, 0)) && is_dropped(v6().tcp(9, 1_024 + 22)));
        assert!(is_dropped(v4().udp(9, 22)), "the same of UDP");
        assert!(!is_dropped(v6().ttl(255).icmp6(136, 0)), "a neighbour");
        assert!(is_dropped(v6().ttl(64).icmp6(136, 0)), "no neighbour");
        assert!(!is_dropped(v4().from4([203, 0, 113, 9]).udp(9, 53)), "a source");
        assert!(!is_dropped(v6().from6("2001:db8:9::1").udp(9, 53)), "a source of IPv6");
        assert!(!is_dropped(v4().from4(peer).tcp(179, 9)), "a session to a peer");
        assert!(!is_dropped(v4().from4(peer).tcp(179, 9).flags(SYN | ACK)), "its beginning");
        assert!(is_dropped(v4().from4(peer).tcp(179, 9).flags(SYN)), "another beginning");
        assert!(is_dropped(v4().from4(peer).tcp(9, 179)), "to a listener, and there is none");
        assert!(is_dropped(v4().from4(peer).udp(179, 9)), "no session");
        assert!(is_dropped(v4().from4([192, 0, 2, 2]).tcp(9, 179)), "of somebody else");
        assert!(!is_dropped(v6().from6("2001:db8::1").tcp(179, 9)), "a peer of IPv6");
        // Whatever the parser cannot read.
        assert!(!is_dropped(v4().tot_len(10).udp(9, 53)));
        assert!(!is_dropped(v4().udp(9, 53).data(&[0; 40]).cut(40)));
    }
    let hit = |plane: &TestPlane| dropped(plane, TestHook::Xdp, &v4().udp(9, 53));
    let counted = |plane: &TestPlane| {
        let hits = plane.imported_hits().unwrap()[1];
        (hits.packets, hits.refused)
    };
    let before = counted(&plane);
    plane.release(true).unwrap();
    assert!(!hit(&plane), "the kill switch");
    plane.release(false).unwrap();
    plane.set_lease(Nanos::ZERO).unwrap();
    assert!(!evaluated_drop(&plane, TestHook::Xdp, &v4().udp(9, 53)), "the lease");
    assert_eq!(counted(&plane), before, "neither counts");
    plane.heartbeat().unwrap();
    assert!(hit(&plane));
    plane.set_imported(&Imported { shadow: true, ..all.clone() }).unwrap();
    assert!(!hit(&plane), "shadow");
    assert_eq!(counted(&plane), (before.0 + 2, before.1 + 2), "it counts");
    plane.set_imported(&Imported::default()).unwrap();
    assert!(!hit(&plane), "no rules");
    plane.set_imported(&all).unwrap();
    assert!(hit(&plane));
    plane.clear_imported().unwrap();
    plane.clear_imported().unwrap();
    assert!(!hit(&plane) && plane.imported_hits().unwrap().is_empty(), "no table");
    plane.set_imported(&all).unwrap();
    assert!(hit(&plane), "again");
    // A hook that was loaded without an import looks at none.
    let mut without = plan();
    without.config.flowspec = None;
    let mut plane = TestPlane::load(&without).unwrap();
    plane.set_imported(&all).unwrap();
    assert!(!hit(&plane), "not imported");
}

#[test]
fn what_does_not_fit_is_refused_and_what_held_still_holds() {
    let mut plane = loaded();
    plane.set_imported(&table(vec![rule(0, "192.0.2.7/32", 0.0)])).unwrap();
    let numbered =
        |count: u16, each: fn(u16) -> ImportedRule| table((0..count).map(each).collect());
    let apart = |slot: u16| rule(slot, &format!("10.0.{}.0/24", slot & 0xff), 0.0);
    let nested = |slot: u16| rule(slot, &format!("192.0.2.0/{}", 9 + slot % 16), 0.0);
    let ports = ImportedRule { to: (0..5).map(|n| 2 * n..=2 * n).collect(), ..apart(0) };
    let bad = [
        numbered(257, apart),
        numbered(17, nested),
        table(vec![ports]),
        table(vec![rule(256, "192.0.2.7/32", 0.0)]),
        Imported { peers: vec![[10, 0, 0, 1].into(); 17], ..Imported::default() },
    ];
    for (at, bad) in bad.iter().enumerate() {
        assert!(plane.set_imported(bad).is_err(), "{at}");
        assert!(dropped(&plane, TestHook::Xdp, &v4().udp(9, 53)), "{at}");
    }
    for good in [numbered(256, apart), numbered(16, nested)] {
        plane.set_imported(&good).unwrap();
    }
    assert!(dropped(&plane, TestHook::Xdp, &v4().udp(9, 53)), "the first of 16");
}

/// A frame, and what the oracle knows of it.
#[derive(Clone, Debug)]
struct Frame {
    packet: Packet,
    from: std::net::IpAddr,
    to: std::net::IpAddr,
    protocol: u8,
    /// Source and destination.
    ports: Option<(u16, u16)>,
    flags: Option<u8>,
}

fn frame(dice: &mut Dice) -> Frame {
    let host = [dice.u8() & 1, dice.u8() & 3];
    let source = dice.u8() & 7;
    let (from, to): (std::net::IpAddr, std::net::IpAddr) = match dice.one_in(2) {
        true => ([198, 51, 100, source].into(), [192, 0, host[0], host[1]].into()),
        false => (
            std::net::Ipv6Addr::new(0x2001, 0xdb8, 0xc, 0, 0, 0, 0, source.into()).into(),
            std::net::Ipv6Addr::new(0x2001, 0xdb8, host[0].into(), 0, 0, 0, 0, host[1].into())
                .into(),
        ),
    };
    let ip = match (from, to) {
        (std::net::IpAddr::V4(from), std::net::IpAddr::V4(to)) => {
            eth().ipv4().from4(from.octets()).to4(to.octets())
        }
        _ => eth().ipv6().from6(&from.to_string()).to6(&to.to_string()),
    };
    let is4 = from.is_ipv4();
    let ip = if !is4 && dice.one_in(4) { ip.ext(DEST_OPTIONS) } else { ip };
    let ports = (dice.u8() as u16 & 7, dice.u8() as u16 & 7);
    let later = dice.one_in(6);
    let ip = match (later, is4) {
        (false, _) => ip,
        (true, true) => ip.frag4(64, true),
        (true, false) => ip.frag6(64, true),
    };
    let flags = *dice.pick(&[SYN, SYN | ACK, ACK]);
    let (packet, protocol) = match dice.below(3) {
        0 => (ip.tcp(ports.0, ports.1).flags(flags), 6),
        1 => (ip.udp(ports.0, ports.1), 17),
        _ if is4 => (ip.icmp(8, 0), 1),
        _ => (ip.icmp6(128, 0), 58),
    };
    let ports = (!later && matches!(protocol, 6 | 17)).then_some(ports);
    let flags = (ports.is_some() && protocol == 6).then_some(flags);
    Frame { packet, from, to, protocol, ports, flags }
}

/// A rule over few addresses and ports, so that many match one frame. It drops all or nothing.
fn any_rule(dice: &mut Dice, slot: u16) -> ImportedRule {
    let is4 = dice.one_in(2);
    let [third, last] = [dice.u8() & 1, dice.u8() & 3];
    let destination = match is4 {
        true => format!("192.0.{third}.{last}/{}", dice.pick(&[8, 23, 24, 30, 31, 32])),
        false => format!("2001:db8:{third}::{last}/{}", dice.pick(&[32, 48, 64, 126, 127, 128])),
    };
    let source = match is4 {
        true => format!("198.51.100.{}/{}", dice.u8() & 7, dice.pick(&[24, 29, 30, 32])),
        false => format!("2001:db8:c::{}/{}", dice.u8() & 7, dice.pick(&[48, 125, 128])),
    };
    let ranges = |dice: &mut Dice| {
        let count = if dice.one_in(2) { 0 } else { 1 + dice.below(4) };
        let range = |at: usize| {
            let first = 2 * at as u16;
            first..=first
        };
        (0..count).map(range).collect::<Vec<_>>()
    };
    let passes = dice.one_in(3);
    let mut rule = rule(slot, "0.0.0.0/0", if passes { 1e9 } else { 0.0 });
    rule.destination = net(&destination).trunc();
    rule.source = dice.one_in(2).then(|| net(&source).trunc());
    rule.protocol = dice.one_in(2).then(|| *dice.pick(&[1, 6, 17, 58]));
    rule.to = ranges(dice);
    rule.from = if dice.one_in(2) { ranges(dice) } else { Vec::new() };
    rule.flags = dice.one_in(4).then_some((SYN | ACK, SYN));
    rule
}

fn matches(rule: &ImportedRule, frame: &Frame) -> bool {
    let within = |ranges: &[RangeInclusive<u16>], port: Option<u16>| {
        ranges.is_empty() || port.is_some_and(|port| ranges.iter().any(|r| r.contains(&port)))
    };
    rule.destination.contains(&frame.to)
        && rule.source.is_none_or(|source| source.contains(&frame.from))
        && rule.protocol.is_none_or(|protocol| protocol == frame.protocol)
        && within(&rule.to, frame.ports.map(|ports| ports.1))
        && within(&rule.from, frame.ports.map(|ports| ports.0))
        && rule.flags.is_none_or(|(mask, value)| frame.flags.is_some_and(|f| f & mask == value))
}

#[test]
fn of_many_rules_the_first_that_matches_holds() {
    let mut plane = loaded();
    let (mut dice, mut seen) = (Dice::new(seed()), [0_usize; 3]);
    for round in 0..TABLES {
        let generation = 1 + round as u32;
        let rules: Vec<ImportedRule> =
            (0..16).map(|slot| ImportedRule { generation, ..any_rule(&mut dice, slot) }).collect();
        plane.set_imported(&table(rules.clone())).unwrap();
        let mut expected: Vec<ImportedHits> = rules
            .iter()
            .map(|rule| ImportedHits { slot: rule.slot, generation, ..ImportedHits::default() })
            .collect();
        for _ in 0..FRAMES {
            let frame = frame(&mut dice);
            let first = rules.iter().position(|rule| matches(rule, &frame));
            let drops = first.is_some_and(|at| rules[at].packets == Some(Rate::ZERO));
            let found = dropped(&plane, *dice.pick(&HOOKS), &frame.packet);
            assert_eq!(found, drops, "rule {first:?} of {rules:#?} and {frame:?}");
            seen[first.map_or(0, |_| 1 + usize::from(drops))] += 1;
            let Some(hits) = first.map(|at| &mut expected[at]) else { continue };
            hits.packets += 1;
            hits.bytes += frame.packet.bytes().len() as u64 - 14;
            hits.refused += u64::from(drops);
        }
        assert_eq!(plane.imported_hits().unwrap(), expected, "{rules:#?}");
    }
    assert!(seen.iter().all(|count| *count > TABLES * FRAMES / 20), "{seen:?}");
}

#[test]
fn merged_packets_count_one_by_one() {
    let mut plane = loaded();
    plane.load_hook(TestHook::Tc).unwrap();
    let udp = v4().udp(9, 53).data(&[0; 1000]);
    let tcp = v4().tcp(9, 80).data(&[0; 1000]);
    let later = v4().frag4(64, true).udp(9, 53);
    let walked = v6().ext(DEST_OPTIONS).udp(9, 53).data(&[0; 1000]);
    // Headers of IP and above stand before each segment; a number that is told is taken.
    let cases = [
        ("not merged", &udp, (0, 0), (1, 1028)),
        ("segments", &udp, (10, 100), (10, 1000 + 10 * 28)),
        ("virtio", &udp, (0, 100), (10, 1000 + 10 * 28)),
        ("a last one that is shorter", &udp, (0, 300), (4, 1000 + 4 * 28)),
        ("TCP", &tcp, (10, 100), (10, 1000 + 10 * 40)),
        ("TCP at virtio", &tcp, (0, 334), (3, 1000 + 3 * 40)),
        ("extension headers", &walked, (0, 500), (2, 1000 + 2 * 56)),
    ];
    let rules = || ["192.0.2.0/24", "2001:db8:1::/48"].into_iter().zip(0..);
    for (generation, (what, packet, merged, expected)) in (1..).zip(cases) {
        let rules = rules().map(|(net, slot)| ImportedRule { generation, ..rule(slot, net, 1e6) });
        plane.set_imported(&table(rules.collect())).unwrap();
        assert!(!is_merged_dropped(&plane, packet, merged), "{what}");
        let hits = plane.imported_hits().unwrap();
        let found = hits.iter().fold((0, 0), |all, one| (all.0 + one.packets, all.1 + one.bytes));
        assert_eq!(found, expected, "{what}");
    }
    // Of what has no header that is known, only the number.
    plane.set_imported(&table(vec![rule(0, "192.0.2.0/24", 0.1)])).unwrap();
    assert!(!is_merged_dropped(&plane, &later, (3, 0)));
    assert!(is_merged_dropped(&plane, &later, (3, 0)), "the rate is of packets");
}

#[test]
fn a_rule_without_a_rate_lets_pass_and_counts() {
    let mut plane = loaded();
    let open = ImportedRule { packets: None, to: vec![53..=53], ..rule(0, "192.0.2.7/32", 1.0) };
    plane.set_imported(&table(vec![open, rule(1, "192.0.2.0/24", 0.0)])).unwrap();
    for hook in HOOKS {
        for _ in 0..3 {
            assert!(!dropped(&plane, hook, &v4().udp(9, 53)), "{hook:?}");
        }
        assert!(dropped(&plane, hook, &v4().udp(9, 54)), "{hook:?}: the rule behind it");
    }
    let hits = plane.imported_hits().unwrap();
    assert_eq!((hits[0].packets, hits[0].refused, hits[1].refused), (6, 0, 2));
}

#[test]
fn the_lease_ends_rules_by_and_by() {
    let mut plane = loaded();
    plane.set_imported(&table(vec![rule(0, "192.0.2.0/24", 0.0)])).unwrap();
    let share = |age: Nanos| {
        let evaluated = |_: &i32| {
            plane.set_lease(MonotonicClock.now() - age).unwrap();
            evaluated_drop(&plane, TestHook::Tc, &v4().udp(9, 53))
        };
        (0..400).filter(evaluated).count()
    };
    assert_eq!(share(Nanos::from_millis(2_000)), 400, "whole");
    let half = share(Nanos::from_millis(6_500));
    assert!((100..300).contains(&half), "{half} of 400 in the middle between 3 and 10 s");
    assert_eq!(share(Nanos::from_secs(11)), 0, "none");
}

#[test]
fn another_rate_does_not_pay_what_the_one_before_owed() {
    let mut plane = loaded();
    let slow = ImportedRule {
        packets: None,
        bytes: Some(Rate::per_second(1.0)),
        ..rule(0, "192.0.2.0/24", 1.0)
    };
    let packet = v4().udp(9, 53);
    plane.set_imported(&table(vec![slow.clone()])).unwrap();
    assert!(!dropped(&plane, TestHook::Xdp, &packet) && dropped(&plane, TestHook::Xdp, &packet));
    plane.set_imported(&table(vec![slow.clone()])).unwrap();
    assert!(dropped(&plane, TestHook::Xdp, &packet), "the same rate does");
    let fast = ImportedRule { bytes: Some(Rate::per_second(1e6)), ..slow };
    plane.set_imported(&table(vec![fast])).unwrap();
    assert!(!dropped(&plane, TestHook::Xdp, &packet));
}

/// What passed of one rule in about a second, on two CPUs at once, and for how long it was offered.
fn offered(plane: &TestPlane, packet: &[u8]) -> (u64, Nanos) {
    let begin = MonotonicClock.now();
    std::thread::scope(|scope| {
        for hook in HOOKS {
            scope.spawn(move || {
                while MonotonicClock.now().since(begin) < Nanos::SECOND {
                    plane.time(hook, packet, 1_000).unwrap();
                }
            });
        }
    });
    let hits = plane.imported_hits().unwrap()[0];
    (hits.packets - hits.refused, MonotonicClock.now().since(begin))
}

#[test]
fn a_rate_holds_within_five_percent_over_all_cpus() {
    let mut plane = loaded();
    HOOKS.iter().for_each(|hook| plane.load_hook(*hook).unwrap());
    let packet = v4().udp(9, 53).data(&[0; 172]).bytes();
    let rates: [(&str, Option<f64>, Option<f64>, f64); 3] = [
        ("packets", Some(2_000.0), None, 2_000.0),
        ("bytes", None, Some(400_000.0), 2_000.0),
        ("the lower of both", Some(2_000.0), Some(200_000.0), 1_000.0),
    ];
    let mut generation = 0;
    for (what, packets, bytes, expected) in rates {
        let [packets, bytes] = [packets, bytes].map(|rate| rate.map(Rate::per_second));
        // A machine that is busy with other things offers too little for a while: at most three times.
        let held = (0..3).any(|_| {
            generation += 1;
            plane.heartbeat().unwrap();
            let one = ImportedRule { generation, packets, bytes, ..rule(3, "192.0.2.0/24", 1.0) };
            plane.set_imported(&table(vec![one])).unwrap();
            let (passed, time) = offered(&plane, &packet);
            // Full at its begin, a bucket holds 50 ms.
            let most = expected * (time.as_secs_f64() + 0.05);
            println!("{what}: {passed} of {most:.0} in {time}");
            // The lease began to end meanwhile.
            if time > Nanos::from_secs(2) {
                return false;
            }
            assert!((passed as f64) <= most + 2.0, "{what}: {passed} passed, {most} may");
            passed as f64 >= 0.95 * most
        });
        assert!(held, "{what}: too few pass");
    }
}
