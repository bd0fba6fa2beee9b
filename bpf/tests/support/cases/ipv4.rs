// SPDX-License-Identifier: Apache-2.0 OR MIT
//! IPv4: options, lengths that lie, fragments, other protocols.

use super::{Case, cases, pass, reject};
use crate::support::packet::{eth, syn4};
use crate::support::setup::rejecting;
use tidegate_policy::Reason::{Fragment, Malformed, NotService, Rate, Truncated};

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    fields(&mut all);
    options(&mut all);
    lengths(&mut all);
    fragments(&mut all);
    protocols(&mut all);
    all
}

fn fields(v: &mut Vec<Case>) {
    cases! { v, rejecting(), reject(Rate);
        "ipv4-ttl-0" "a TTL of 0 is not our concern" => eth().ipv4().ttl(0).tcp(40000, 80).syn();
        "ipv4-ttl-1" "a TTL of 1" => eth().ipv4().ttl(1).tcp(40000, 80).syn();
        "ipv4-ttl-255" "a TTL of 255" => eth().ipv4().ttl(255).tcp(40000, 80).syn();
        "ipv4-dscp" "a DSCP does not come back" => eth().ipv4().dscp(46).tcp(40000, 80).syn();
        "ipv4-ecn" "ECN bits do not come back" => eth().ipv4().ecn(3).tcp(40000, 80).syn();
        "ipv4-df" "do not fragment" => eth().ipv4().df().tcp(40000, 80).syn();
        "ipv4-evil" "the reserved flag is no fragment" => eth().ipv4().evil().tcp(40000, 80).syn();
        "ipv4-id" "an identification" => eth().ipv4().id(0xffff).tcp(40000, 80).syn();
        "ipv4-checksum-wrong" "a wrong header checksum decides nothing: the stack will see to it" =>
            eth().ipv4().sum(0x1234).tcp(40000, 80).syn();
        "ipv4-checksum-zero" "no header checksum at all" =>
            eth().ipv4().sum(0).tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), pass(Malformed);
        "ipv4-version-0" "version 0 under the ethertype of IPv4" =>
            eth().ipv4().version(0).tcp(40000, 80).syn();
        "ipv4-version-5" "version 5 under the ethertype of IPv4" =>
            eth().ipv4().version(5).tcp(40000, 80).syn();
        "ipv4-version-6" "version 6 under the ethertype of IPv4" =>
            eth().ipv4().version(6).tcp(40000, 80).syn();
        "ipv4-version-15" "version 15 under the ethertype of IPv4" =>
            eth().ipv4().version(15).tcp(40000, 80).syn();
    }
}

fn options(v: &mut Vec<Case>) {
    cases! { v, rejecting(), reject(Rate);
        "ipv4-options-nop" "four bytes of padding" =>
            eth().ipv4().options(&[1, 1, 1, 0]).tcp(40000, 80).syn();
        "ipv4-options-router-alert" "router alert" =>
            eth().ipv4().options(&[0x94, 4, 0, 0]).tcp(40000, 80).syn();
        "ipv4-options-timestamp" "timestamps" =>
            eth().ipv4().options(&[0x44, 12, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0]).tcp(40000, 80).syn();
        "ipv4-options-record-route" "record route, nearly full" =>
            eth().ipv4().options(&[7, 39, 4]).tcp(40000, 80).syn();
        "ipv4-options-source-route" "a loose source route is not followed" =>
            eth().ipv4().options(&[0x83, 7, 4, 10, 1, 1, 1, 0]).tcp(40000, 80).syn();
        "ipv4-options-experimental" "an experimental option" =>
            eth().ipv4().options(&[222, 8, 1, 2, 3, 4, 5, 6]).tcp(40000, 80).syn();
        "ipv4-options-broken" "an option of length 0 is not looked at" =>
            eth().ipv4().options(&[0x44, 0, 0, 0]).tcp(40000, 80).syn();
        "ipv4-options-40" "40 bytes, the most there can be: the answer has none" =>
            eth().ipv4().options(&[1; 40]).tcp(40000, 80).syn();
        "ipv4-options-vlan" "options behind two tags" =>
            eth().svlan(5).vlan(10).ipv4().options(&[1; 40]).tcp(40000, 80).syn();
        "ipv4-options-data" "options, and data behind the SYN" =>
            eth().ipv4().options(&[1; 12]).tcp(40000, 80).syn().data(b"hello");
    }
}

fn lengths(v: &mut Vec<Case>) {
    cases! { v, rejecting(), pass(Malformed);
        "ipv4-ihl-0" "a header of 0 bytes" => eth().ipv4().ihl(0).tcp(40000, 80).syn();
        "ipv4-ihl-1" "a header of 4 bytes" => eth().ipv4().ihl(1).tcp(40000, 80).syn();
        "ipv4-ihl-2" "a header of 8 bytes" => eth().ipv4().ihl(2).tcp(40000, 80).syn();
        "ipv4-ihl-3" "a header of 12 bytes" => eth().ipv4().ihl(3).tcp(40000, 80).syn();
        "ipv4-ihl-4" "a header of 16 bytes" => eth().ipv4().ihl(4).tcp(40000, 80).syn();
        "ipv4-ihl-6" "the header takes four bytes of TCP" =>
            eth().ipv4().ihl(6).tcp(40000, 80).syn();
        "ipv4-ihl-15" "the header is longer than the packet" =>
            eth().ipv4().ihl(15).tcp(40000, 80).syn();
        "ipv4-length-0" "a total length of 0" => eth().ipv4().tot_len(0).tcp(40000, 80).syn();
        "ipv4-length-19" "a total length below the header" =>
            eth().ipv4().tot_len(19).tcp(40000, 80).syn();
        "ipv4-length-20" "a total length without TCP" =>
            eth().ipv4().tot_len(20).tcp(40000, 80).syn();
        "ipv4-length-39" "a total length that lacks one byte of TCP" =>
            eth().ipv4().tot_len(39).tcp(40000, 80).syn();
        "ipv4-length-options" "a total length that ends inside the options" =>
            eth().ipv4().options(&[1; 12]).tot_len(24).tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), pass(Truncated);
        "ipv4-length-41" "one byte more than there is" =>
            eth().ipv4().tot_len(41).tcp(40000, 80).syn();
        "ipv4-length-65535" "far more than there is" =>
            eth().ipv4().tot_len(65535).tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), reject(Rate);
        "ipv4-length-padding" "more than there was, but within the padding: counts as payload" =>
            eth().ipv4().tot_len(46).tcp(40000, 80).syn().pad(60);
        "ipv4-length-less" "less than there is: the rest is a trailer" =>
            eth().ipv4().tot_len(40).tcp(40000, 80).syn().data(&[0x55; 32]);
    }
    cases! { v, rejecting(), pass(Truncated);
        "ipv4-cut-ip" "a frame that ends inside the IP header" => syn4().cut(33);
        "ipv4-cut-tcp" "a frame that ends inside the TCP header" => syn4().cut(53);
    }
}

fn fragments(v: &mut Vec<Case>) {
    cases! { v, rejecting(), reject(Rate);
        "ipv4-fragment-first" "a first fragment with the whole TCP header is evaluated" =>
            eth().ipv4().frag4(0, true).tcp(40000, 80).syn().data(&[0x41; 8]);
        "ipv4-fragment-first-df" "the same with the flag that forbids it" =>
            eth().ipv4().frag4(0, true).df().tcp(40000, 80).syn();
        "ipv4-fragment-first-options" "a first fragment with all TCP options" =>
            eth().ipv4().frag4(0, true).tcp(40000, 80).syn().options(&[2, 4, 5, 0xb4]);
    }
    cases! { v, rejecting(), pass(Fragment);
        "ipv4-fragment-first-16" "a first fragment with 16 bytes of TCP" =>
            eth().ipv4().frag4(0, true).tot_len(36).tcp(40000, 80).syn().cut(50);
        "ipv4-fragment-first-8" "a first fragment with the ports and no flags" =>
            eth().ipv4().frag4(0, true).tot_len(28).tcp(40000, 80).syn().cut(42);
        "ipv4-fragment-first-0" "a first fragment with no TCP at all" =>
            eth().ipv4().frag4(0, true).tot_len(20).tcp(40000, 80).syn().cut(34);
        "ipv4-fragment-first-options-missing" "a first fragment that ends inside the TCP options" =>
            eth().ipv4().frag4(0, true).tcp(40000, 80).syn().doff(10).data(&[1; 4]);
        "ipv4-fragment-middle" "a fragment from the middle, though it looks like a SYN" =>
            eth().ipv4().frag4(24, true).tcp(40000, 80).syn();
        "ipv4-fragment-last" "a last fragment, though it looks like a SYN" =>
            eth().ipv4().frag4(1480, false).tcp(40000, 80).syn();
        "ipv4-fragment-8" "a fragment at offset 8: it could overwrite flags" =>
            eth().ipv4().frag4(8, false).tcp(40000, 80).syn();
        "ipv4-fragment-32768" "an offset of which only the first bit is set" =>
            eth().ipv4().frag4(32768, false).tcp(40000, 80).syn();
        "ipv4-fragment-farthest" "the last possible offset" =>
            eth().ipv4().frag4(65528, false).tcp(40000, 80).syn();
        "ipv4-fragment-options" "a later fragment with IP options" =>
            eth().ipv4().options(&[1; 8]).frag4(8, true).tcp(40000, 80).syn();
        "ipv4-fragment-vlan" "a later fragment behind a tag" =>
            eth().vlan(10).ipv4().frag4(8, true).tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), pass(NotService);
        "ipv4-fragment-udp" "a fragment of UDP is none of ours" =>
            eth().ipv4().frag4(8, true).udp(40000, 80);
        "ipv4-fragment-udp-first" "a first fragment of UDP, too" =>
            eth().ipv4().frag4(0, true).udp(40000, 80);
    }
}

fn protocols(v: &mut Vec<Case>) {
    cases! { v, rejecting(), pass(NotService);
        "ipv4-icmp-echo" "an ICMP echo request" => eth().ipv4().icmp(8, 0);
        "ipv4-icmp-unreachable" "an ICMP error that carries our flow" =>
            eth().ipv4().icmp(3, 3).ipv4().tcp(80, 40000);
        "ipv4-udp" "UDP to the port of a service" => eth().ipv4().udp(40000, 80).data(&[0; 20]);
        "ipv4-udp-no-checksum" "UDP without a checksum" => eth().ipv4().udp(40000, 80).sum(0);
        "ipv4-igmp" "IGMP" => eth().ipv4().proto(2, &[0x16, 0, 9, 4, 224, 0, 0, 251]);
        "ipv4-ipip" "a SYN in an IPv4 tunnel" => eth().ipv4().ipv4().tcp(40000, 80).syn();
        "ipv4-6in4" "a SYN in an IPv6 tunnel" => eth().ipv4().ipv6().tcp(40000, 80).syn();
        "ipv4-gre" "GRE" => eth().ipv4().proto(47, &[0; 24]);
        "ipv4-esp" "ESP" => eth().ipv4().proto(50, &[0; 24]);
        "ipv4-ah" "AH before TCP is not followed over IPv4" =>
            eth().ipv4().next(51).ext(51).tcp(40000, 80).syn();
        "ipv4-sctp" "SCTP to the port of a service" =>
            eth().ipv4().proto(132, &[0x9c, 0x40, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0]);
        "ipv4-0" "protocol 0" => eth().ipv4().proto(0, &[0; 20]);
        "ipv4-255" "protocol 255" => eth().ipv4().proto(255, &[0; 20]);
    }
}
