// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a route matches, as bytes: examples of the RFCs, and what holds for all of them.

#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use proptest::prelude::*;
use std::cmp::Ordering;
use std::net::{Ipv4Addr, Ipv6Addr};
use tidegate_flowspec::nlri::{Bits, Component, Numeric, Pattern, kind};
use tidegate_flowspec::{Family, Flags, Flow, Malformed, Rule, Unheld};

fn bytes(text: &str) -> Vec<u8> {
    text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

fn equal(value: u64) -> Numeric {
    Numeric { and: false, less: false, greater: false, equal: true, value }
}

fn prefix(kind: u8, net: &str) -> Component {
    Component::Prefix(kind, Pattern::of(net.parse().unwrap()))
}

#[test]
fn examples_of_the_rfcs_are_read_and_written() {
    let rules = [
        // RFC 8955, section 4.3: to 192.0.2.0/24, TCP, port 25
        (
            Family::V4,
            "0b 01 18 c0 00 02 03 81 06 04 81 19",
            vec![
                prefix(kind::DESTINATION, "192.0.2.0/24"),
                Component::Numbers(kind::PROTOCOL, vec![equal(6)]),
                Component::Numbers(kind::PORT, vec![equal(25)]),
            ],
        ),
        // the same section: from 203.0.113.0/24, port 137 to 139 or 8080
        (
            Family::V4,
            "12 01 18 c0 00 02 02 18 cb 00 71 04 03 89 45 8b 91 1f 90",
            vec![
                prefix(kind::DESTINATION, "192.0.2.0/24"),
                prefix(kind::SOURCE, "203.0.113.0/24"),
                Component::Numbers(
                    kind::PORT,
                    vec![
                        Numeric { greater: true, ..equal(137) },
                        Numeric { and: true, less: true, ..equal(139) },
                        equal(8_080),
                    ],
                ),
            ],
        ),
        // RFC 8956, section 3.8.1: to 2001:db8::/32, from ::1234:5678:9a00:0/64-104, TCP
        (
            Family::V6,
            "12 01 20 00 20 01 0d b8 02 68 40 12 34 56 78 9a 03 81 06",
            vec![
                prefix(kind::DESTINATION, "2001:db8::/32"),
                Component::Prefix(
                    kind::SOURCE,
                    Pattern { net: "::1234:5678:9a00:0/104".parse().unwrap(), offset: 64 },
                ),
                Component::Numbers(kind::PROTOCOL, vec![equal(6)]),
            ],
        ),
        // section 3.8.2: the pattern begins in the middle of an octet
        (
            Family::V6,
            "0f 01 20 00 20 01 0d b8 02 68 41 24 68 ac f1 34",
            vec![
                prefix(kind::DESTINATION, "2001:db8::/32"),
                Component::Prefix(
                    kind::SOURCE,
                    Pattern { net: "::1234:5678:9a00:0/104".parse().unwrap(), offset: 65 },
                ),
            ],
        ),
    ];
    for (family, wire, components) in rules {
        let flow = Flow::new(family, components).unwrap();
        assert_eq!(flow.encode().unwrap(), bytes(wire), "{flow:?}");
        assert_eq!(Flow::decode(family, &bytes(wire)).as_ref(), Ok(&flow), "{wire}");
    }
}

#[test]
fn what_breaks_the_encoding_is_refused() {
    use Malformed::{Length, Order, Prefix, Short, Type, Value};
    for (family, wire, why) in [
        (Family::V4, "", Short),
        (Family::V4, "00", Order),
        (Family::V4, "f0", Short),
        (Family::V4, "03 01 08", Length),
        (Family::V4, "03 01 08 0a 00", Length),
        (Family::V4, "02 01 08", Short),
        (Family::V4, "06 01 21 0a 00 00 01", Short),
        (Family::V4, "07 01 21 0a 00 00 01 00", Prefix),
        (Family::V4, "06 03 81 06 01 08 0a", Order),
        (Family::V4, "06 03 81 06 03 81 11", Order),
        (Family::V4, "03 0d 81 01", Type(13)),
        (Family::V4, "03 0e 81 01", Type(14)),
        (Family::V4, "03 03 01 06", Short),
        (Family::V4, "04 03 91 01 06", Value),
        (Family::V4, "06 05 a1 00 01 00 00", Value),
        // length and offset of IPv6: the same, larger, too large
        (Family::V6, "03 01 08 08", Prefix),
        (Family::V6, "03 01 08 09", Prefix),
        (Family::V6, "03 01 00 01", Prefix),
        (Family::V6, "03 01 81 00", Prefix),
    ] {
        assert_eq!(Flow::decode(family, &bytes(wire)), Err(why), "{wire}");
    }
    for (family, wire) in [
        (Family::V4, "02 01 00"),
        (Family::V4, "06 01 20 0a 00 00 01"),
        (Family::V6, "03 01 00 00"),
        (Family::V6, "04 01 08 07 80"),
        // a longer value than needed, and an "and" before the first
        (Family::V4, "04 05 d1 00 50"),
    ] {
        assert!(Flow::decode(family, &bytes(wire)).is_ok(), "{wire}");
    }
}

/// The bound of the length with one octet, and of the whole.
#[test]
fn long_matches_have_a_longer_length() {
    let ports = |count: usize| {
        let list = (0..count).map(|_| equal(1)).collect();
        Flow::new(Family::V4, vec![Component::Numbers(kind::PORT, list)]).unwrap()
    };
    for (count, first) in [(119, vec![239]), (120, vec![0xf0, 241]), (2_047, vec![0xff, 0xff])] {
        let wire = ports(count).encode().unwrap();
        assert!(wire.starts_with(&first), "{count}: {:?}", &wire[..2]);
        assert_eq!(Flow::decode(Family::V4, &wire), Ok(ports(count)));
    }
    assert_eq!(ports(2_048).encode(), Err(Malformed::Length));
}

/// RFC 8955, section 5.1, each of its steps; and section 4 of RFC 8956.
#[test]
fn rules_have_one_order() {
    let wire = |family, text: &str| Flow::decode(family, &bytes(text)).unwrap();
    let v4 = [
        // destination: lowest address first, of one beginning the longest
        "06 01 20 0a 00 00 01",
        "05 01 18 0a 00 01",
        "04 01 10 0a 00",
        "03 01 08 0b",
        // no destination; fewer components later
        "06 03 81 06 05 81 50",
        "03 03 81 06",
        // strings of octets: lower first, then longer
        "05 05 01 50 81 51",
        "03 05 81 50",
        "03 05 81 51",
    ];
    let v6 = ["05 01 10 00 20 01", "04 01 08 00 20", "05 01 10 01 40 02", "03 03 81 06"];
    for (family, rules) in [(Family::V4, &v4[..]), (Family::V6, &v6[..])] {
        for (at, one) in rules.iter().enumerate() {
            for (its, other) in rules.iter().enumerate() {
                let order = wire(family, one).precedence(&wire(family, other));
                assert_eq!(order, at.cmp(&its), "{one} and {other}");
            }
        }
    }
}

#[test]
fn the_match_of_a_limit_is_this() {
    let rule = Rule {
        protocol: Some(6),
        flags: Some(Flags::FIRST),
        to: vec![80..=80],
        ..Rule::to("192.0.2.7/32".parse().unwrap())
    };
    // SYN, and not ACK
    let wire = "11 01 20 c0 00 02 07 03 81 06 05 81 50 09 01 02 c2 10";
    assert_eq!(rule.flow().unwrap().encode().unwrap(), bytes(wire));
    assert_eq!(rule.to_string(), "to 192.0.2.7/32 protocol 6 port 80 syn");
    let rule = Rule { protocol: Some(17), ..Rule::to("2001:db8::/48".parse().unwrap()) };
    let wire = "0c 01 30 00 20 01 0d b8 00 00 03 81 11";
    assert_eq!(rule.flow().unwrap().encode().unwrap(), bytes(wire));
}

/// What a rule cannot hold is named by its component, and never taken as something else.
#[test]
fn matches_that_no_rule_holds_are_named() {
    for (wire, unfit) in [
        // TCP or UDP
        ("09 01 10 0a 00 03 01 06 81 11", 3),
        // not TCP
        ("07 01 10 0a 00 03 86 06", 3),
        // source or destination port
        ("07 01 10 0a 00 04 81 50", 4),
        // five ranges
        ("0f 01 10 0a 00 05 01 01 01 03 01 05 01 07 81 09", 5),
        // not port 80
        ("07 01 10 0a 00 05 86 50", 5),
        // less than 80 and greater than 90
        ("09 01 10 0a 00 05 04 50 c2 5a", 5),
        // ICMP
        ("07 01 10 0a 00 07 81 08", 7),
        // SYN or ACK
        ("09 01 10 0a 00 09 01 02 81 10", 9),
        // any of SYN and ACK
        ("07 01 10 0a 00 09 80 12", 9),
        // not (SYN and ACK)
        ("07 01 10 0a 00 09 83 12", 9),
        // SYN and not SYN
        ("09 01 10 0a 00 09 01 02 c3 02", 9),
        // fragments
        ("07 01 10 0a 00 0c 81 02", 12),
    ] {
        let flow = Flow::decode(Family::V4, &bytes(wire)).unwrap();
        assert_eq!(Rule::of(&flow), Err(Unheld::Component(unfit)), "{wire}");
    }
    for wire in ["03 03 81 06", "05 02 18 cb 00 71"] {
        let flow = Flow::decode(Family::V4, &bytes(wire)).unwrap();
        assert_eq!(Rule::of(&flow), Err(Unheld::NoDestination), "{wire}");
    }
    let flow = Flow::decode(Family::V6, &bytes("07 01 40 20 00 00 00 00")).unwrap();
    assert_eq!(Rule::of(&flow), Err(Unheld::Component(kind::DESTINATION)), "an offset");
    for (wire, shown) in [
        ("09 01 10 0a 00 05 02 50 c4 5a", "to 10.0.0.0/16 port 81-89"),
        ("0c 01 10 0a 00 05 01 50 01 51 91 01 bb", "to 10.0.0.0/16 port 80-81,443"),
        ("0b 01 10 0a 00 05 01 51 01 50 81 53", "to 10.0.0.0/16 port 80-81,83"),
        ("07 01 10 0a 00 09 82 12", "to 10.0.0.0/16 flags 0x0/0x12"),
        ("07 01 10 0a 00 09 80 02", "to 10.0.0.0/16 flags 0x2/0x2"),
    ] {
        let flow = Flow::decode(Family::V4, &bytes(wire)).unwrap();
        assert_eq!(Rule::of(&flow).unwrap().to_string(), shown, "{wire}");
    }
}

fn net(family: Family) -> impl Strategy<Value = IpNet> {
    (any::<u128>(), 0..=128_u8).prop_map(move |(bits, length)| match family {
        Family::V4 => {
            let address = Ipv4Addr::from_bits(bits as u32);
            IpNet::from(Ipv4Net::new(address, length % 33).unwrap().trunc())
        }
        Family::V6 => IpNet::from(Ipv6Net::new(Ipv6Addr::from_bits(bits), length).unwrap().trunc()),
    })
}

fn components(family: Family) -> impl Strategy<Value = Vec<Component>> {
    let numeric =
        |most: u64| {
            (any::<[bool; 4]>(), 0..=most).prop_map(|([and, less, greater, equal], value)| {
                Numeric { and, less, greater, equal, value }
            })
        };
    let numbers = move |kind: u8, most: u64| {
        prop::collection::vec(numeric(most), 1..6).prop_map(move |mut list| {
            list[0].and = false;
            Component::Numbers(kind, list)
        })
    };
    let bits = (any::<[bool; 3]>(), 0..=0xffff_u64).prop_map(|([and, not, all], value)| Bits {
        and,
        not,
        all,
        value,
    });
    let bits = prop::collection::vec(bits, 1..4).prop_map(|mut list| {
        list[0].and = false;
        Component::Bits(kind::TCP_FLAGS, list)
    });
    let one =
        move |kind: u8| net(family).prop_map(move |net| Component::Prefix(kind, Pattern::of(net)));
    let option = prop::option::of::<BoxedStrategy<Component>>;
    (
        option(one(kind::DESTINATION).boxed()),
        option(one(kind::SOURCE).boxed()),
        option(numbers(kind::PROTOCOL, 0xff).boxed()),
        option(numbers(kind::PORT, 0xffff).boxed()),
        option(numbers(kind::DESTINATION_PORT, 0xffff).boxed()),
        option(bits.boxed()),
    )
        .prop_map(|(a, b, c, d, e, f)| [a, b, c, d, e, f].into_iter().flatten().collect())
}

fn flow() -> impl Strategy<Value = Flow> {
    prop_oneof![
        components(Family::V4).prop_map(|all| (Family::V4, all)),
        components(Family::V6).prop_map(|all| (Family::V6, all)),
    ]
    .prop_filter_map("no component", |(family, all)| Flow::new(family, all).ok())
}

fn rule() -> impl Strategy<Value = Rule> {
    let ports = prop::collection::btree_map(0..60_000_u16, 0..900_u16, 0..4);
    let ports = ports.prop_map(|map| {
        let mut list: Vec<std::ops::RangeInclusive<u16>> = Vec::new();
        for (from, more) in map {
            // A list has no ranges that touch.
            if list.last().is_none_or(|last| u32::from(*last.end()) + 1 < u32::from(from)) {
                list.push(from..=from + more);
            }
        }
        list
    });
    let flags =
        (1..=255_u8, any::<u8>()).prop_map(|(mask, value)| Flags { mask, value: value & mask });
    let nets = prop_oneof![
        (net(Family::V4), prop::option::of(net(Family::V4))),
        (net(Family::V6), prop::option::of(net(Family::V6))),
    ];
    (nets, prop::option::of(any::<u8>()), ports.clone(), ports, prop::option::of(flags)).prop_map(
        |((destination, source), protocol, to, from, flags)| Rule {
            destination,
            source,
            protocol,
            to,
            from,
            flags,
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(flow in flow()) {
        let wire = flow.encode().unwrap();
        prop_assert_eq!(Flow::decode(flow.family(), &wire), Ok(flow));
    }

    #[test]
    fn a_rule_is_the_same_after_its_bytes(rule in rule()) {
        let wire = rule.flow().unwrap().encode().unwrap();
        let flow = Flow::decode(rule.family(), &wire).unwrap();
        prop_assert_eq!(Rule::of(&flow), Ok(rule));
    }

    #[test]
    fn the_order_is_total(a in flow(), b in flow(), c in flow()) {
        prop_assert_eq!(a.precedence(&b), b.precedence(&a).reverse());
        prop_assert_eq!(a.precedence(&b) == Ordering::Equal, a == b);
        if a.precedence(&b).is_le() && b.precedence(&c).is_le() {
            prop_assert!(a.precedence(&c).is_le());
        }
    }
}
