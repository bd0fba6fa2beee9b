// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which routes of a router become rules, and what is refused: each clause with a route that just passes.

#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use std::net::{IpAddr, Ipv4Addr};
use tidegate_flowspec::attributes;
use tidegate_flowspec::import::{ENTRIES_AT_MAX, ENTRIES_MAX, Hits};
use tidegate_flowspec::{Action, Family, Flags, Importer, Path, Policy, Refusal, Rule, Unicast};
use tidegate_units::Rate;

const OWN: u32 = 65_001;
const PEER_AS: u32 = 65_002;
const OTHER_AS: u32 = 65_003;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn peer() -> IpAddr {
    address("10.9.0.2")
}

fn policy(peer_as: u32) -> Policy {
    let prefixes = ["192.0.2.0/24", "198.51.0.0/16", "2001:db8::/32"];
    let prefixes = prefixes.map(|net| net.parse().unwrap()).into();
    Policy { established: true, ..Policy::new(prefixes, OWN, (peer(), peer_as)) }
}

fn as_path(segments: &[(u8, &[u32])]) -> Vec<u8> {
    let body: Vec<u8> = segments
        .iter()
        .flat_map(|(kind, path)| {
            let numbers = path.iter().flat_map(|number| number.to_be_bytes());
            [*kind, path.len() as u8].into_iter().chain(numbers).collect::<Vec<u8>>()
        })
        .collect();
    [vec![0x40, 2, body.len() as u8], body].concat()
}

fn community(kind: u16, rate: f32) -> Vec<u8> {
    let [a, b] = kind.to_be_bytes();
    [vec![0xc0, 16, 8, a, b, 0, 0], rate.to_be_bytes().to_vec()].concat()
}

const BYTES: u16 = 0x8006;
const PACKETS: u16 = 0x800c;

fn rule(destination: &str) -> Rule {
    let destination = destination.parse().unwrap();
    Rule {
        protocol: Some(6),
        flags: Some(Flags::FIRST),
        to: vec![80..=80],
        ..Rule::to(destination)
    }
}

/// A path over a session with another AS.
fn path(destination: &str) -> Path {
    of(&rule(destination))
}

fn of(rule: &Rule) -> Path {
    Path {
        family: rule.family(),
        nlri: rule.flow().unwrap().encode().unwrap(),
        attributes: vec![as_path(&[(2, &[PEER_AS])]), community(PACKETS, 100.0)],
        neighbor: peer(),
    }
}

fn unicast(prefix: &str, last_as: Option<u32>) -> Unicast {
    Unicast { prefix: prefix.parse().unwrap(), neighbor: peer(), originator: None, last_as }
}

fn routes() -> Vec<Unicast> {
    ["192.0.2.0/24", "198.51.0.0/16", "2001:db8::/32"]
        .map(|prefix| unicast(prefix, Some(PEER_AS)))
        .into()
}

/// What becomes of one path.
fn evaluated(policy: Policy, path: &Path, routes: &[Unicast]) -> Result<(), Refusal> {
    let mut importer = Importer::new(policy);
    importer.update(std::slice::from_ref(path), routes);
    match importer.refusal(path.family, &path.nlri) {
        Some(why) => {
            assert!(importer.entries().is_empty());
            assert_eq!(importer.refused().get(&why), Some(&1));
            Err(why)
        }
        None => {
            assert_eq!(importer.entries().len(), 1);
            assert!(importer.refused().is_empty());
            Ok(())
        }
    }
}

fn outside(path: &Path, routes: &[Unicast]) -> Result<(), Refusal> {
    evaluated(policy(PEER_AS), path, routes)
}

#[test]
fn only_destinations_of_the_configuration_are_taken() {
    for (destination, verdict) in [
        ("192.0.2.7/32", Ok(())),
        ("192.0.2.0/24", Ok(())),
        ("192.0.2.0/23", Err(Refusal::Outside)),
        ("192.0.3.7/32", Err(Refusal::Outside)),
        ("0.0.0.0/0", Err(Refusal::Outside)),
        ("198.51.100.0/24", Ok(())),
        ("198.51.100.0/23", Err(Refusal::Wide)),
        ("2001:db8:5::/48", Ok(())),
        ("2001:db8:4::/47", Err(Refusal::Wide)),
        ("2001:db9::1/128", Err(Refusal::Outside)),
        // as IPv6 that stands for an address of the configuration
        ("::ffff:192.0.2.7/128", Err(Refusal::Outside)),
    ] {
        assert_eq!(outside(&path(destination), &routes()), verdict, "{destination}");
    }
}

#[test]
fn what_cannot_be_read_or_held_is_refused() {
    let good = path("192.0.2.7/32");
    let with = |nlri: &[u8]| Path { nlri: nlri.to_vec(), ..good.clone() };
    for (nlri, why) in [
        (&[0x03, 0x01, 0x08][..], Refusal::Malformed),
        (&[0x03, 0x03, 0x81, 0x06], Refusal::NoDestination),
        // from this prefix
        (&[0x05, 0x02, 0x18, 192, 0, 2], Refusal::NoDestination),
        // port 80 on either side
        (&[0x08, 0x01, 0x18, 192, 0, 2, 0x04, 0x81, 0x50], Refusal::Unsupported),
    ] {
        assert_eq!(outside(&with(nlri), &routes()), Err(why), "{nlri:?}");
    }
    // An offset would let bits of the prefix be anything.
    let offset =
        Path { family: Family::V6, nlri: vec![0x07, 0x01, 0x40, 0x20, 0, 0, 0, 0], ..good.clone() };
    assert_eq!(outside(&offset, &routes()), Err(Refusal::Unsupported));
    let cut = Path { attributes: vec![vec![0x40, 2, 9, 2]], ..good.clone() };
    assert_eq!(outside(&cut, &routes()), Err(Refusal::Malformed));
    let other = Path { neighbor: address("10.9.0.3"), ..good };
    assert_eq!(outside(&other, &routes()), Err(Refusal::Peer));
}

/// RFC 9117, section 4.1: condition b) 1 over eBGP, and section 4.2.
#[test]
fn from_another_as_who_sends_the_route_may_limit_it() {
    let good = path("192.0.2.7/32");
    let best = |change: fn(&mut Unicast)| {
        let mut one = unicast("192.0.2.0/24", Some(PEER_AS));
        change(&mut one);
        vec![one]
    };
    let with =
        |path: Vec<u8>| Path { attributes: vec![path, community(PACKETS, 100.0)], ..good.clone() };
    for (path, routes, verdict) in [
        (good.clone(), best(|_| ()), Ok(())),
        (good.clone(), vec![], Err(Refusal::NoRoute)),
        // The best route is the longest that covers the destination, whoever sends others.
        (
            good.clone(),
            [best(|_| ()), vec![unicast("192.0.0.0/16", Some(OTHER_AS))]].concat(),
            Ok(()),
        ),
        (
            good.clone(),
            [best(|_| ()), vec![unicast("192.0.2.7/32", Some(OTHER_AS))]].concat(),
            Err(Refusal::AsPath),
        ),
        (good.clone(), best(|one| one.neighbor = address("10.9.0.3")), Err(Refusal::Originator)),
        (good.clone(), best(|one| one.last_as = Some(OTHER_AS)), Err(Refusal::AsPath)),
        (good.clone(), best(|one| one.last_as = None), Err(Refusal::AsPath)),
        (with(as_path(&[(2, &[OTHER_AS, PEER_AS])])), best(|_| ()), Err(Refusal::AsPath)),
        (with(as_path(&[(2, &[PEER_AS, OTHER_AS])])), best(|_| ()), Ok(())),
        // An empty path over eBGP is no route of our own AS.
        (with(as_path(&[])), best(|_| ()), Err(Refusal::AsPath)),
        (with(as_path(&[])), vec![], Err(Refusal::NoRoute)),
        (with(as_path(&[(3, &[PEER_AS])])), best(|_| ()), Err(Refusal::AsPath)),
        (with(as_path(&[(1, &[PEER_AS])])), best(|_| ()), Err(Refusal::AsPath)),
    ] {
        assert_eq!(outside(&path, &routes), verdict, "{path:?} {routes:?}");
    }
}

/// RFC 9117, section 4.1: conditions b) 1 and b) 2 over iBGP.
#[test]
fn in_our_own_as_a_controller_may_limit_too() {
    let good = path("192.0.2.7/32");
    let originator = |id: [u8; 4]| [vec![0x80, 9, 4], id.to_vec()].concat();
    let with = |more: Vec<Vec<u8>>| Path {
        attributes: [vec![community(PACKETS, 100.0)], more].concat(),
        ..good.clone()
    };
    let foreign = as_path(&[(2, &[OTHER_AS])]);
    let best = |originator: Option<Ipv4Addr>| {
        vec![Unicast { originator, ..unicast("192.0.2.0/24", Some(OTHER_AS)) }]
    };
    let id = Some(Ipv4Addr::new(10, 9, 0, 7));
    for (path, routes, verdict) in [
        // b) 2: it began in our AS; there need be no route
        (with(vec![]), vec![], Ok(())),
        (with(vec![]), best(None), Ok(())),
        (with(vec![as_path(&[])]), best(id), Ok(())),
        (with(vec![as_path(&[(3, &[64_512])])]), best(id), Ok(())),
        // b) 1: it came from outside, by the same router as the route
        (with(vec![foreign.clone()]), best(None), Ok(())),
        (with(vec![foreign.clone()]), vec![], Err(Refusal::NoRoute)),
        (with(vec![foreign.clone(), originator([10, 9, 0, 7])]), best(id), Ok(())),
        (
            with(vec![foreign.clone(), originator([10, 9, 0, 8])]),
            best(id),
            Err(Refusal::Originator),
        ),
        (with(vec![foreign.clone()]), best(id), Err(Refusal::Originator)),
        (with(vec![foreign, originator([10, 9, 0, 7])]), best(None), Err(Refusal::Originator)),
    ] {
        assert_eq!(evaluated(policy(OWN), &path, &routes), verdict, "{path:?} {routes:?}");
    }
}

/// RFC 8955, section 6, condition c).
#[test]
fn a_more_specific_route_of_another_as_refuses_it() {
    let wide = path("198.51.100.0/24");
    for (prefix, last_as, verdict) in [
        ("198.51.100.7/32", OTHER_AS, Err(Refusal::MoreSpecific)),
        ("198.51.100.128/25", OTHER_AS, Err(Refusal::MoreSpecific)),
        ("198.51.100.7/32", PEER_AS, Ok(())),
        ("198.51.101.7/32", OTHER_AS, Ok(())),
    ] {
        let routes = [routes(), vec![unicast(prefix, Some(last_as))]].concat();
        assert_eq!(outside(&wide, &routes), verdict, "{prefix} from {last_as}");
    }
}

#[test]
fn only_rates_are_taken_as_actions() {
    let with = |communities: &[(u16, f32)]| Path {
        attributes: [
            vec![as_path(&[(2, &[PEER_AS])])],
            vec![
                [
                    vec![0xd0, 16, 0, 8 * communities.len() as u8],
                    communities
                        .iter()
                        .flat_map(|(kind, rate)| community(*kind, *rate)[3..].to_vec())
                        .collect(),
                ]
                .concat(),
            ],
        ]
        .concat(),
        ..path("192.0.2.7/32")
    };
    for (communities, verdict) in [
        (&[(BYTES, 6_000.0)][..], Ok(())),
        (&[(PACKETS, 1.0)], Ok(())),
        (&[(PACKETS, 0.99)], Err(Refusal::Discard)),
        (&[(PACKETS, 1e-30)], Err(Refusal::Discard)),
        (&[(BYTES, 1_500.0)], Ok(())),
        (&[(BYTES, 1_499.0)], Err(Refusal::Discard)),
        (&[(BYTES, 6_000.0), (PACKETS, 0.5)], Err(Refusal::Discard)),
        (&[(BYTES, 6_000.0), (PACKETS, 100.0)], Ok(())),
        // a community of other purpose
        (&[(BYTES, 6_000.0), (0x0002, 1.0)], Ok(())),
        // without an action: it lets pass
        (&[], Ok(())),
        (&[(0x0002, 1.0)], Ok(())),
        (&[(0x8007, 1.0)], Err(Refusal::Action)),
        (&[(BYTES, 6_000.0), (0x8008, 1.0)], Err(Refusal::Action)),
        (&[(BYTES, 6_000.0), (0x8009, 1.0)], Err(Refusal::Action)),
        (&[(BYTES, 0.0)], Err(Refusal::Discard)),
        (&[(PACKETS, -0.0)], Err(Refusal::Discard)),
        (&[(BYTES, -1.0)], Err(Refusal::Rate)),
        (&[(BYTES, f32::NAN)], Err(Refusal::Rate)),
        (&[(PACKETS, f32::INFINITY)], Err(Refusal::Rate)),
        (&[(BYTES, 5e3), (BYTES, 6e3)], Err(Refusal::Rate)),
        (&[(BYTES, 5e3), (BYTES, 5e3)], Ok(())),
    ] {
        assert_eq!(outside(&with(communities), &routes()), verdict, "{communities:?}");
    }
    let discards = Policy { discard: true, ..policy(PEER_AS) };
    for rate in [0.0, 1e-30, 1_499.0] {
        assert_eq!(
            evaluated(discards.clone(), &with(&[(BYTES, rate)]), &routes()),
            Ok(()),
            "{rate}"
        );
    }
    // What is exported can be imported.
    let rate = Rate::per_second(6_000.0);
    for action in [Action::Bytes(rate), Action::Packets(rate)] {
        let mut one = path("192.0.2.7/32");
        one.attributes = attributes::encode(action);
        assert_eq!(evaluated(policy(OWN), &one, &[]), Ok(()), "{action}");
    }
}

#[test]
fn rules_stand_in_the_order_in_which_packets_meet_them() {
    let mut importer = Importer::new(policy(PEER_AS));
    let paths =
        ["192.0.2.0/24", "192.0.2.9/32", "2001:db8::1/128", "192.0.2.7/32"].map(path).to_vec();
    importer.update(&paths, &routes());
    let order: Vec<String> =
        importer.entries().iter().map(|entry| entry.rule.destination.to_string()).collect();
    assert_eq!(order, ["192.0.2.7/32", "192.0.2.9/32", "192.0.2.0/24", "2001:db8::1/128"]);
}

#[test]
fn counters_stay_with_their_rule() {
    let mut importer = Importer::new(policy(PEER_AS));
    let (a, b) = (path("192.0.2.7/32"), path("192.0.2.9/32"));
    let hits = Hits { packets: 9, bytes: 540, refused: 4 };
    importer.update(std::slice::from_ref(&b), &routes());
    let (slot, generation) = (importer.entries()[0].slot, importer.entries()[0].generation);
    importer.counted(slot, generation, hits);
    // Another rule before it, and another rate: place and counters stay.
    let faster =
        Path { attributes: vec![as_path(&[(2, &[PEER_AS])]), community(PACKETS, 200.0)], ..b };
    importer.update(&[a.clone(), faster.clone()], &routes());
    let entry = &importer.entries()[1];
    assert_eq!((entry.slot, entry.generation, entry.hits), (slot, generation, hits));
    assert_eq!(entry.packets, Some(Rate::per_second(200.0)));
    // It goes and comes back: a new rule, for which what was counted before does not count.
    importer.update(std::slice::from_ref(&a), &routes());
    importer.update(&[a, faster], &routes());
    let entry = &importer.entries()[1];
    assert_eq!(entry.hits, Hits::default());
    assert_ne!((entry.slot, entry.generation), (slot, generation));
    importer.counted(slot, generation, hits);
    assert!(importer.entries().iter().all(|entry| entry.hits == Hits::default()));
}

#[test]
fn a_route_is_taken_back_with_its_unicast_route() {
    let mut importer = Importer::new(policy(PEER_AS));
    let one = path("192.0.2.7/32");
    importer.update(std::slice::from_ref(&one), &routes());
    assert_eq!(importer.entries().len(), 1);
    for round in 0..3 {
        importer.update(std::slice::from_ref(&one), &[]);
        assert!(importer.entries().is_empty());
        assert_eq!(importer.refused().get(&Refusal::NoRoute), Some(&1), "counted once: {round}");
    }
    importer.update(std::slice::from_ref(&one), &routes());
    assert_eq!(importer.refusal(Family::V4, &one.nlri), None);
    importer.update(std::slice::from_ref(&one), &[]);
    assert_eq!(importer.refused().get(&Refusal::NoRoute), Some(&2), "refused anew");
}

#[test]
fn the_table_has_a_bound_and_the_first_are_in_it() {
    let mut importer = Importer::new(Policy { entries: 3, ..policy(PEER_AS) });
    let paths: Vec<Path> = (10..14).map(|host| path(&format!("192.0.2.{host}/32"))).collect();
    importer.update(&paths[1..], &routes());
    assert_eq!(importer.entries().len(), 3);
    // One that stands before them takes the place of the last.
    importer.update(&paths, &routes());
    assert_eq!(importer.entries().len(), 3);
    assert_eq!(importer.refusal(Family::V4, &paths[3].nlri), Some(Refusal::Full));
    let mut slots: Vec<u16> = importer.entries().iter().map(|entry| entry.slot).collect();
    slots.sort_unstable();
    assert_eq!(slots, [0, 1, 2]);
    // A place that is free is taken.
    importer.update(&paths[1..], &routes());
    assert_eq!(importer.entries().len(), 3);
    assert_eq!(importer.refusal(Family::V4, &paths[3].nlri), None);
    let wish = Policy { entries: 100_000, ..policy(PEER_AS) };
    let mut importer = Importer::new(wish);
    let many: Vec<Path> =
        (0..=255).flat_map(|a| [1, 2].map(|b| path(&format!("198.51.{a}.{b}/32")))).collect();
    importer.update(&many, &routes());
    assert_eq!(importer.entries().len(), ENTRIES_MAX);
}

#[test]
fn one_destination_has_a_bound_of_its_own() {
    let mut importer = Importer::new(policy(PEER_AS));
    // 14 around one address, from /19 to /32, and two more that differ by their port.
    let nested: Vec<Path> = (19..=32).map(|bits| path(&format!("198.51.96.0/{bits}"))).collect();
    let port = |destination: &str, port| of(&Rule { to: vec![port..=port], ..rule(destination) });
    let mut paths = nested;
    paths.extend([port("198.51.96.0/24", 81), port("198.51.96.0/24", 82)]);
    let wide = Policy { widest: (16, 48), ..policy(PEER_AS) };
    let mut importer_of = |paths: &[Path]| {
        importer = Importer::new(wide.clone());
        importer.update(paths, &routes());
        importer.entries().len()
    };
    assert_eq!(importer_of(&paths), ENTRIES_AT_MAX);
    // Beside them, and around all of them, behind which it stands.
    for (more, taken) in [("198.51.0.0/18", true), ("198.51.64.0/18", false)] {
        paths.push(port(more, 83));
        assert_eq!(importer_of(&paths), ENTRIES_AT_MAX + usize::from(taken), "{more}");
        paths.pop();
    }
    // One that stands before all of them pushes out the last, whether it was there or not.
    let (other, last) = (port("198.51.96.0/32", 83), paths[0].clone());
    paths.push(other.clone());
    for before in [&paths[..ENTRIES_AT_MAX], &[]] {
        let mut importer = Importer::new(wide.clone());
        importer.update(before, &routes());
        importer.update(&paths, &routes());
        assert_eq!(importer.refusal(Family::V4, &other.nlri), None);
        assert_eq!(importer.refusal(Family::V4, &last.nlri), Some(Refusal::Crowded));
        assert_eq!(importer.entries().len(), ENTRIES_AT_MAX);
    }
}

#[test]
fn established_connections_need_consent() {
    let careful = || Policy { established: false, ..policy(PEER_AS) };
    let first = rule("192.0.2.7/32");
    let flags = |mask, value| Rule { flags: Some(Flags { mask, value }), ..first.clone() };
    for (rule, safe) in [
        (first.clone(), true),
        (flags(0x16, 0x02), true),
        (flags(0x02, 0x02), false),
        (flags(0x12, 0x12), false),
        (Rule { flags: None, ..first.clone() }, false),
        (Rule { protocol: None, ..first.clone() }, true),
        (Rule { protocol: None, flags: None, ..first.clone() }, false),
        (Rule { protocol: Some(17), flags: None, ..first.clone() }, true),
    ] {
        let expected = if safe { Ok(()) } else { Err(Refusal::Established) };
        assert_eq!(evaluated(careful(), &of(&rule), &routes()), expected, "{rule}");
        assert_eq!(evaluated(policy(PEER_AS), &of(&rule), &routes()), Ok(()), "{rule}");
        assert_eq!(evaluated(careful(), &open(&of(&rule)), &routes()), Ok(()), "it drops nothing");
    }
}

/// The same without an action.
fn open(path: &Path) -> Path {
    Path { attributes: vec![as_path(&[(2, &[PEER_AS])])], ..path.clone() }
}

#[test]
fn a_route_that_is_refused_takes_along_those_behind_it_that_meet_it() {
    let careful = Policy { established: false, ..policy(PEER_AS) };
    let udp = |destination: &str, port: u16| Rule {
        protocol: Some(17),
        flags: None,
        to: vec![port..=port],
        ..rule(destination)
    };
    let https = Rule { flags: None, to: vec![443..=443], ..rule("192.0.2.7/32") };
    let marks = |of: Path| Path {
        attributes: [of.attributes, vec![community(0x8009, 1.0)]].concat(),
        ..of
    };
    let never = |of: Path| Path {
        attributes: vec![as_path(&[(2, &[PEER_AS])]), community(PACKETS, 0.0)],
        ..of
    };
    let behind = of(&Rule { to: Vec::new(), ..rule("192.0.2.0/24") });
    // ICMP type 8 at one address, which no rule holds: 2 components.
    let unheld = Path { nlri: vec![9, 1, 32, 192, 0, 2, 7, 7, 0x81, 8], ..path("192.0.2.7/32") };
    let foreign = Path {
        attributes: vec![as_path(&[(2, &[OTHER_AS])]), community(0x8009, 1.0)],
        ..path("192.0.2.7/32")
    };
    let other = Path { neighbor: address("10.9.0.3"), ..marks(path("192.0.2.7/32")) };
    let cases = [
        ("established", of(&https), Some(Refusal::Established), Err(Refusal::Shadowed)),
        ("no action", open(&of(&https)), None, Ok(())),
        (
            "another action",
            marks(path("192.0.2.7/32")),
            Some(Refusal::Action),
            Err(Refusal::Shadowed),
        ),
        ("a match", unheld, Some(Refusal::Unsupported), Err(Refusal::Shadowed)),
        ("it drops all", never(path("192.0.2.7/32")), Some(Refusal::Discard), Ok(())),
        ("not valid", foreign, Some(Refusal::AsPath), Err(Refusal::Shadowed)),
        ("of another peer", other, Some(Refusal::Peer), Ok(())),
        ("another protocol", marks(of(&udp("192.0.2.7/32", 53))), Some(Refusal::Action), Ok(())),
        (
            "behind",
            marks(of(&Rule { to: vec![81..=81], ..rule("192.0.2.0/24") })),
            Some(Refusal::Action),
            Err(Refusal::Shadowed),
        ),
    ];
    for (what, first, refused, verdict) in cases {
        let mut importer = Importer::new(careful.clone());
        importer.update(&[behind.clone(), first.clone()], &routes()[..1]);
        let family = first.family;
        assert_eq!(importer.refusal(family, &first.nlri), refused, "{what}");
        let found = importer.refusal(family, &behind.nlri).map_or(Ok(()), Err);
        assert_eq!(found, verdict, "{what}: {:?}", importer.entries());
    }
    // And those behind that one, which do not meet the first.
    let mut importer = Importer::new(careful);
    let chain = [
        marks(of(&udp("192.0.2.7/32", 53))),
        of(&Rule { to: vec![53..=80], ..udp("192.0.2.0/28", 1) }),
        of(&udp("192.0.2.0/24", 80)),
        of(&udp("192.0.2.0/24", 81)),
    ];
    importer.update(&chain, &routes());
    let found = chain.map(|path| importer.refusal(Family::V4, &path.nlri));
    let [shadowed, action] = [Some(Refusal::Shadowed), Some(Refusal::Action)];
    assert_eq!(found, [action, shadowed, shadowed, None]);
}

#[test]
fn two_rules_meet_if_one_packet_can_match_both() {
    let any = Rule::to("192.0.2.0/24".parse().unwrap());
    let net = |text: &str| Some(text.parse().unwrap());
    let flags = |mask, value| Some(Flags { mask, value });
    let with = |change: &dyn Fn(&mut Rule)| {
        let mut rule = any.clone();
        change(&mut rule);
        rule
    };
    let cases = [
        (any.clone(), Rule::to("192.0.2.9/32".parse().unwrap()), true),
        (any.clone(), Rule::to("192.0.3.0/24".parse().unwrap()), false),
        (with(&|r| r.source = net("10.0.0.0/8")), with(&|r| r.source = net("10.1.0.0/16")), true),
        (with(&|r| r.source = net("10.0.0.0/8")), with(&|r| r.source = net("11.0.0.0/8")), false),
        (with(&|r| r.source = net("10.0.0.0/8")), any.clone(), true),
        (with(&|r| r.protocol = Some(6)), with(&|r| r.protocol = Some(17)), false),
        (with(&|r| r.flags = flags(2, 2)), with(&|r| r.protocol = Some(17)), false),
        (with(&|r| r.flags = flags(2, 2)), with(&|r| r.flags = flags(0x12, 0x10)), false),
        (with(&|r| r.flags = flags(2, 2)), with(&|r| r.flags = flags(0x10, 0x10)), true),
        (with(&|r| r.to = vec![1..=5, 9..=9]), with(&|r| r.to = vec![6..=8, 10..=20]), false),
        (with(&|r| r.to = vec![1..=5, 9..=9]), with(&|r| r.to = vec![6..=9]), true),
        (with(&|r| r.from = vec![1..=5]), with(&|r| r.from = vec![6..=9]), false),
        (with(&|r| r.from = vec![1..=5]), with(&|r| r.to = vec![6..=9]), true),
    ];
    for (one, other, meet) in cases {
        assert_eq!(one.overlaps(&other), meet, "{one} and {other}");
        assert_eq!(other.overlaps(&one), meet, "{other} and {one}");
    }
}

/// What a made-up path says. Few values of each, so that many paths fit together.
#[derive(Clone, Debug)]
struct Made {
    destination: &'static str,
    neighbor: bool,
    path: &'static [(u8, &'static [u32])],
    originator: Option<u8>,
    communities: Vec<(u16, f32)>,
    internal: bool,
    unicast: Vec<(&'static str, bool, Option<u8>, Option<u32>)>,
}

const PATHS: [&[(u8, &[u32])]; 7] = [
    &[],
    &[(2, &[PEER_AS])],
    &[(2, &[PEER_AS, OTHER_AS])],
    &[(2, &[OTHER_AS])],
    &[(3, &[64_512])],
    &[(3, &[64_512]), (2, &[PEER_AS])],
    &[(1, &[PEER_AS])],
];

fn made() -> impl Strategy<Value = Made> {
    let nets = [
        "192.0.2.0/24",
        "192.0.2.7/32",
        "192.0.0.0/16",
        "198.51.100.0/24",
        "198.51.100.0/23",
        "203.0.113.1/32",
    ];
    let of = move || prop::sample::select(nets.to_vec());
    let originator = || prop::option::weighted(0.3, 1..3_u8);
    let rate = prop::sample::select(vec![1e5, 0.0, -1.0, f32::NAN, 5.0]);
    let kind = prop::sample::select(vec![BYTES, PACKETS, PACKETS, 0x8008, 0x0002]);
    let last = prop::option::weighted(0.9, prop::sample::select(vec![PEER_AS, OTHER_AS]));
    let unicast = (of(), prop::bool::weighted(0.8), originator(), last);
    (
        of(),
        prop::bool::weighted(0.9),
        prop::sample::select(PATHS.to_vec()),
        originator(),
        prop::collection::vec((kind, rate), 0..3),
        any::<bool>(),
        prop::collection::vec(unicast, 0..4),
    )
        .prop_map(
            |(destination, neighbor, path, originator, communities, internal, unicast)| Made {
                destination,
                neighbor,
                path,
                originator,
                communities,
                internal,
                unicast,
            },
        )
}

fn id(host: Option<u8>) -> Option<Ipv4Addr> {
    host.map(|host| Ipv4Addr::new(10, 9, 9, host))
}

impl Made {
    fn neighbor(peers: bool) -> IpAddr {
        if peers { peer() } else { address("10.9.0.3") }
    }

    fn path(&self) -> Path {
        let mut attributes = vec![as_path(self.path)];
        attributes.extend(
            id(self.originator).map(|id| [vec![0x80, 9, 4], id.octets().to_vec()].concat()),
        );
        if !self.communities.is_empty() {
            let all = self
                .communities
                .iter()
                .flat_map(|(kind, rate)| community(*kind, *rate)[3..].to_vec());
            let all: Vec<u8> = all.collect();
            attributes.push([vec![0xc0, 16, all.len() as u8], all].concat());
        }
        Path { attributes, neighbor: Self::neighbor(self.neighbor), ..path(self.destination) }
    }

    /// The latest of each prefix: a table has one best route to it.
    fn routes(&self) -> Vec<Unicast> {
        let mut routes: Vec<Unicast> = Vec::new();
        for (prefix, neighbor, originator, last_as) in &self.unicast {
            let prefix = prefix.parse().unwrap();
            routes.retain(|route| route.prefix != prefix);
            let (neighbor, originator) = (Self::neighbor(*neighbor), id(*originator));
            routes.push(Unicast { prefix, neighbor, originator, last_as: *last_as });
        }
        routes
    }

    /// The rules once more, written from the RFCs and the documentation, and not from the code.
    fn may_count(&self) -> bool {
        let bits = |net: &str| -> (u32, u32) {
            let net: ipnet::Ipv4Net = net.parse().unwrap();
            (net.addr().to_bits(), u32::from(net.prefix_len()))
        };
        let inside = |inner: &str, outer: &str| {
            let ((inner, long), (outer, short)) = (bits(inner), bits(outer));
            long >= short && (inner ^ outer).checked_shr(32 - short).unwrap_or(0) == 0
        };
        let configured = ["192.0.2.0/24", "198.51.0.0/16"];
        let owned = configured.iter().any(|net| inside(self.destination, net));
        let long = bits(self.destination).1 >= 24;
        // The last of each prefix, as in `routes`.
        let table: std::collections::BTreeMap<&str, _> =
            self.unicast.iter().map(|(net, a, b, c)| (*net, (*a, *b, *c))).collect();
        let covering = table.iter().filter(|(net, _)| inside(self.destination, net));
        let best = covering.max_by_key(|(net, _)| bits(net).1);
        let began_here = self.internal && self.path.iter().all(|(kind, _)| *kind == 3);
        let last_as = match self.path {
            [(2, path), ..] | [(3, _), (2, path)] => path.first().copied(),
            _ => None,
        };
        let valid = match best {
            None => began_here,
            Some((best_net, (by_peer, originator, best_as))) => {
                let same = match (self.originator, originator) {
                    (None, None) => self.neighbor == *by_peer,
                    (Some(own), Some(its)) => own == *its,
                    _ => false,
                };
                let outside = self.internal || (last_as.is_some() && last_as == *best_as);
                let specific = table.iter().any(|(net, (_, _, last))| {
                    net != best_net && inside(net, self.destination) && last != best_as
                });
                (began_here || same) && outside && !specific
            }
        };
        let of = |kind: u16| -> Vec<u32> {
            let found = self.communities.iter().filter(|(is, _)| *is == kind);
            found.map(|(_, rate)| rate.to_bits()).collect()
        };
        let rates = [of(BYTES), of(PACKETS)];
        let one_each = rates.iter().all(|all| all.windows(2).all(|two| two[0] == two[1]));
        let least = [1_500.0, 1.0];
        let good = rates.iter().zip(least).all(|(all, least)| {
            all.iter().all(|bits| f32::from_bits(*bits) >= least && f32::from_bits(*bits) < 1e30)
        });
        let acts = one_each && good && of(0x8008).is_empty();
        self.neighbor && owned && long && valid && acts
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// A second check, by other code, agrees on every made-up path.
    #[test]
    fn another_check_agrees(made in made()) {
        let policy = policy(if made.internal { OWN } else { PEER_AS });
        let verdict = evaluated(policy, &made.path(), &made.routes());
        prop_assert_eq!(verdict.is_ok(), made.may_count(), "{:?}", verdict);
    }
}

/// Made-up paths often enough count, or the check above would prove nothing.
#[test]
fn made_up_paths_are_taken_and_refused() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut taken = 0;
    let mut reasons = std::collections::BTreeSet::new();
    for _ in 0..10_000 {
        let made = made().new_tree(&mut runner).unwrap().current();
        let policy = policy(if made.internal { OWN } else { PEER_AS });
        match evaluated(policy, &made.path(), &made.routes()) {
            Ok(()) => taken += 1,
            Err(why) => drop(reasons.insert(why)),
        }
    }
    assert!(taken > 100, "{taken}");
    let expected = [
        Refusal::Peer,
        Refusal::Outside,
        Refusal::Wide,
        Refusal::NoRoute,
        Refusal::Originator,
        Refusal::AsPath,
        Refusal::MoreSpecific,
        Refusal::Action,
        Refusal::Rate,
        Refusal::Discard,
    ];
    for why in expected {
        assert!(reasons.contains(&why), "{why:?} is missing: {reasons:?}");
    }
}
