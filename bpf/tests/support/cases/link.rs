// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ethernet and VLAN: what carries IP, and what does not.

use super::{Case, cases, drop, pass, reject};
use crate::support::packet::{eth, raw, syn4, syn6};
use crate::support::setup::rejecting;
use tidegate_policy::Reason::{Malformed, NotIp, Rate, ReplyImpossible, Truncated, VlanDepth};

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    tags(&mut all);
    foreign(&mut all);
    edges(&mut all);
    all
}

fn tags(v: &mut Vec<Case>) {
    cases! { v, rejecting(), reject(Rate);
        "link-ipv4" "a plain IPv4 SYN, refused" => syn4();
        "link-ipv6" "a plain IPv6 SYN, refused" => syn6();
        "link-vlan-ipv4" "one tag stays on the answer" =>
            eth().vlan(10).ipv4().tcp(40000, 80).syn();
        "link-vlan-ipv6" "one tag, IPv6" => eth().vlan(10).ipv6().tcp(40000, 80).syn();
        "link-vlan-twice" "two customer tags" => eth().vlan(5).vlan(10).ipv4().tcp(40000, 80).syn();
        "link-qinq-ipv4" "service tag and customer tag" =>
            eth().svlan(5).vlan(10).ipv4().tcp(40000, 80).syn();
        "link-qinq-ipv6" "service tag and customer tag, IPv6" =>
            eth().svlan(5).vlan(10).ipv6().tcp(40000, 80).syn();
        "link-svlan-alone" "a service tag alone" => eth().svlan(5).ipv4().tcp(40000, 80).syn();
        "link-vlan-priority" "the tag's priority bits stay, too" =>
            eth().vlan(10).pcp(5).ipv4().tcp(40000, 80).syn();
        "link-vlan-0" "a priority tag (VLAN 0)" => eth().vlan(0).pcp(7).ipv4().tcp(40000, 80).syn();
        "link-vlan-4095" "the reserved VLAN number is not our concern" =>
            eth().vlan(4095).ipv4().tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), pass(VlanDepth);
        "link-vlan-three" "three tags are one too many" =>
            eth().vlan(1).vlan(2).vlan(3).ipv4().tcp(40000, 80).syn();
        "link-qinq-three" "also with a service tag" =>
            eth().svlan(1).svlan(2).vlan(3).ipv6().tcp(40000, 80).syn();
        "link-vlan-three-arp" "three tags, whatever they carry" =>
            eth().vlan(1).vlan(2).vlan(3).arp();
    }
    cases! { v, rejecting(), pass(NotIp);
        "link-vlan-9100" "the old vendor tag is no tag here" =>
            eth().vlan(10).tpid(0x9100).ipv4().tcp(40000, 80).syn();
    }
}

fn foreign(v: &mut Vec<Case>) {
    cases! { v, rejecting(), pass(NotIp);
        "link-arp" "ARP" => eth().arp();
        "link-vlan-arp" "ARP behind a tag" => eth().vlan(10).arp();
        "link-lldp" "LLDP" => eth().other(0x88cc, &[2, 7, 4, 0]);
        "link-unknown" "unknown ethertype" => eth().other(0x1234, &[0; 46]);
        "link-length" "an 802.3 frame with a length field" => eth().other(0x0026, &[0x42; 38]);
        "link-mpls" "a SYN behind an MPLS label" =>
            eth().ethertype(0x8847).data(&[0, 0, 0x11, 64]).ipv4().tcp(40000, 80).syn();
        "link-pppoe" "a SYN in a PPPoE session" =>
            eth().ethertype(0x8864).data(&[0x11, 0, 0, 1, 0, 42, 0, 0x21]).ipv4().tcp(40000, 80)
                .syn();
    }
    cases! { v, rejecting(), pass(Malformed);
        "link-ipv6-as-ipv4" "the ethertype says IPv4, the header IPv6" =>
            eth().ethertype(0x0800).ipv6().tcp(40000, 80).syn();
        "link-ipv4-as-ipv6" "the ethertype says IPv6, the header IPv4" =>
            eth().ethertype(0x86dd).ipv4().tcp(40000, 80).syn();
    }
}

fn edges(v: &mut Vec<Case>) {
    const BROADCAST: [u8; 6] = [0xff; 6];
    const GROUP: [u8; 6] = [0x01, 0, 0x5e, 0, 0, 1];
    const CLIENT: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const SERVER: [u8; 6] = [2, 0, 0, 0, 0, 2];
    cases! { v, rejecting(), pass(Truncated);
        "link-nothing" "an empty frame" => raw(&[]);
        "link-13" "a frame of 13 bytes" => syn4().cut(13);
        "link-14" "an Ethernet header and no more" => syn4().cut(14);
        "link-vlan-cut" "a frame that ends inside its tag" =>
            eth().vlan(10).ipv4().tcp(40000, 80).syn().cut(17);
        "link-vlan-second-cut" "a frame that ends inside its second tag" =>
            eth().vlan(5).vlan(10).ipv4().tcp(40000, 80).syn().cut(20);
    }
    cases! { v, rejecting(), reject(Rate);
        "link-padded" "padding to 60 bytes is not payload: not acknowledged, not sent back" =>
            syn4().pad(60);
        "link-trailer" "a long trailer behind the packet" => syn4().pad(120);
        "link-trailer-ipv6" "the same, IPv6" => syn6().pad(120);
    }
    cases! { v, rejecting(), drop(ReplyImpossible);
        "link-broadcast" "sent to all: refused, never answered" =>
            eth().mac(CLIENT, BROADCAST).ipv4().tcp(40000, 80).syn();
        "link-multicast" "sent to a group: refused, never answered" =>
            eth().mac(CLIENT, GROUP).ipv6().tcp(40000, 80).syn();
        "link-from-broadcast" "its sender is all: the answer would be for everybody" =>
            eth().mac(BROADCAST, SERVER).ipv4().tcp(40000, 80).syn();
        "link-from-group" "the same from a group" =>
            eth().mac(GROUP, SERVER).ipv6().tcp(40000, 80).syn();
    }
}
