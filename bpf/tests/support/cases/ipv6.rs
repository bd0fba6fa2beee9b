// SPDX-License-Identifier: Apache-2.0 OR MIT
//! IPv6: extension headers in every order, fragments, lengths that lie, other protocols.

use super::{Case, cases, pass, reject};
use crate::support::packet::{
    AUTH, DEST_OPTIONS, ESP, HOP_BY_HOP, MOBILITY, NO_NEXT, ROUTING, eth, syn6,
};
use crate::support::setup::rejecting;
use tidegate_policy::Reason::{
    Extensions, Fragment, Malformed, NotIp, NotService, Rate, Truncated,
};

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    fields(&mut all);
    single(&mut all);
    orders(&mut all);
    many(&mut all);
    unreadable(&mut all);
    fragments(&mut all);
    lengths(&mut all);
    protocols(&mut all);
    all
}

fn fields(v: &mut Vec<Case>) {
    cases! { v, rejecting(), reject(Rate);
        "ipv6-hops-0" "a hop limit of 0" => eth().ipv6().ttl(0).tcp(40000, 80).syn();
        "ipv6-hops-255" "a hop limit of 255" => eth().ipv6().ttl(255).tcp(40000, 80).syn();
        "ipv6-dscp" "a traffic class does not come back" =>
            eth().ipv6().dscp(46).ecn(1).tcp(40000, 80).syn();
        "ipv6-flow-0" "no flow label" => eth().ipv6().flow(0).tcp(40000, 80).syn();
        "ipv6-flow-max" "a flow label does not come back" =>
            eth().ipv6().flow(0xfffff).tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), pass(Malformed);
        "ipv6-version-4" "version 4 under the ethertype of IPv6" =>
            eth().ipv6().version(4).tcp(40000, 80).syn();
        "ipv6-version-7" "version 7" => eth().ipv6().version(7).tcp(40000, 80).syn();
        "ipv6-version-0" "version 0" => eth().ipv6().version(0).tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), pass(NotIp);
        "ipv6-ethertype" "IPv6 under a foreign ethertype" =>
            eth().ethertype(0x86de).ipv6().tcp(40000, 80).syn();
    }
}

fn single(v: &mut Vec<Case>) {
    cases! { v, rejecting(), pass(Extensions);
        "ipv6-routing-on-its-way" "a routing header with a segment left: not its last destination" =>
            eth().ipv6().ext_with(ROUTING, &[4, 1, 0, 0, 0, 0]).tcp(40000, 80).syn();
        "ipv6-routing-many" "the same with the most that there can be" =>
            eth().ipv6().ext_with(ROUTING, &[0, 255, 0, 0, 0, 0]).tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), reject(Rate);
        "ipv6-hop-by-hop" "hop by hop header before TCP" =>
            eth().ipv6().ext(HOP_BY_HOP).tcp(40000, 80).syn();
        "ipv6-routing" "routing header before TCP" =>
            eth().ipv6().ext(ROUTING).tcp(40000, 80).syn();
        "ipv6-destination" "destination header before TCP" =>
            eth().ipv6().ext(DEST_OPTIONS).tcp(40000, 80).syn();
        "ipv6-auth" "auth header before TCP" => eth().ipv6().ext(AUTH).tcp(40000, 80).syn();
        "ipv6-atomic" "an atomic fragment is whole" =>
            eth().ipv6().frag6(0, false).tcp(40000, 80).syn();
        "ipv6-atomic-reserved" "its reserved bits decide nothing" =>
            eth().ipv6().frag6(0, false).reserved().tcp(40000, 80).syn();
        "ipv6-hop-by-hop-16" "a header of 16 bytes" =>
            eth().ipv6().ext_with(HOP_BY_HOP, &[0; 14]).tcp(40000, 80).syn();
        "ipv6-destination-256" "a header of 256 bytes" =>
            eth().ipv6().ext_with(DEST_OPTIONS, &[0; 254]).tcp(40000, 80).syn();
        "ipv6-destination-2048" "the longest header there can be" =>
            eth().ipv6().ext_with(DEST_OPTIONS, &[0; 2046]).tcp(40000, 80).syn();
        "ipv6-auth-8" "AH of 8 bytes: its length counts words of four" =>
            eth().ipv6().ext_with(AUTH, &[0; 6]).tcp(40000, 80).syn();
        "ipv6-auth-12" "AH of 12 bytes, no multiple of eight" =>
            eth().ipv6().ext_with(AUTH, &[0; 10]).tcp(40000, 80).syn();
        "ipv6-auth-1028" "the longest AH there can be" =>
            eth().ipv6().ext_with(AUTH, &[0; 1026]).tcp(40000, 80).syn();
        "ipv6-vlan-extension" "an extension header behind two tags" =>
            eth().svlan(5).vlan(10).ipv6().ext(DEST_OPTIONS).tcp(40000, 80).syn();
        "ipv6-extension-data" "an extension header, and data behind the SYN" =>
            eth().ipv6().ext(DEST_OPTIONS).tcp(40000, 80).syn().data(b"hello");
    }
}

fn orders(v: &mut Vec<Case>) {
    cases! { v, rejecting(), reject(Rate);
        "ipv6-hop-hop" "hop twice" =>
            eth().ipv6().ext(HOP_BY_HOP).ext(HOP_BY_HOP).tcp(40000, 80).syn();
        "ipv6-hop-routing" "hop then routing" =>
            eth().ipv6().ext(HOP_BY_HOP).ext(ROUTING).tcp(40000, 80).syn();
        "ipv6-hop-destination" "hop then destination" =>
            eth().ipv6().ext(HOP_BY_HOP).ext(DEST_OPTIONS).tcp(40000, 80).syn();
        "ipv6-hop-auth" "hop then auth" =>
            eth().ipv6().ext(HOP_BY_HOP).ext(AUTH).tcp(40000, 80).syn();
        "ipv6-routing-hop" "routing then hop" =>
            eth().ipv6().ext(ROUTING).ext(HOP_BY_HOP).tcp(40000, 80).syn();
        "ipv6-routing-routing" "routing twice" =>
            eth().ipv6().ext(ROUTING).ext(ROUTING).tcp(40000, 80).syn();
        "ipv6-routing-destination" "routing then destination" =>
            eth().ipv6().ext(ROUTING).ext(DEST_OPTIONS).tcp(40000, 80).syn();
        "ipv6-routing-auth" "routing then auth" =>
            eth().ipv6().ext(ROUTING).ext(AUTH).tcp(40000, 80).syn();
        "ipv6-destination-hop" "destination then hop" =>
            eth().ipv6().ext(DEST_OPTIONS).ext(HOP_BY_HOP).tcp(40000, 80).syn();
        "ipv6-destination-routing" "destination then routing" =>
            eth().ipv6().ext(DEST_OPTIONS).ext(ROUTING).tcp(40000, 80).syn();
        "ipv6-destination-destination" "destination twice" =>
            eth().ipv6().ext(DEST_OPTIONS).ext(DEST_OPTIONS).tcp(40000, 80).syn();
        "ipv6-destination-auth" "destination then auth" =>
            eth().ipv6().ext(DEST_OPTIONS).ext(AUTH).tcp(40000, 80).syn();
        "ipv6-auth-hop" "auth then hop" =>
            eth().ipv6().ext(AUTH).ext(HOP_BY_HOP).tcp(40000, 80).syn();
        "ipv6-auth-routing" "auth then routing" =>
            eth().ipv6().ext(AUTH).ext(ROUTING).tcp(40000, 80).syn();
        "ipv6-auth-destination" "auth then destination" =>
            eth().ipv6().ext(AUTH).ext(DEST_OPTIONS).tcp(40000, 80).syn();
        "ipv6-auth-auth" "auth twice" => eth().ipv6().ext(AUTH).ext(AUTH).tcp(40000, 80).syn();
        "ipv6-order-rfc" "all of them in the order of RFC 8200" =>
            eth().ipv6().ext(HOP_BY_HOP).ext(DEST_OPTIONS).ext(ROUTING).frag6(0, false).ext(AUTH)
                .ext(DEST_OPTIONS).tcp(40000, 80).syn();
        "ipv6-order-reverse" "all of them in the opposite order" =>
            eth().ipv6().ext(DEST_OPTIONS).ext(AUTH).frag6(0, false).ext(ROUTING).ext(DEST_OPTIONS)
                .ext(HOP_BY_HOP).tcp(40000, 80).syn();
    }
}

fn many(v: &mut Vec<Case>) {
    cases! { v, rejecting(), reject(Rate);
        "ipv6-seven" "seven extension headers" =>
            eth().ipv6().ext(DEST_OPTIONS).ext(DEST_OPTIONS).ext(DEST_OPTIONS).ext(DEST_OPTIONS)
                .ext(DEST_OPTIONS).ext(DEST_OPTIONS).ext(DEST_OPTIONS).tcp(40000, 80).syn();
        "ipv6-eight" "eight extension headers, the most that are followed" =>
            eth().ipv6().ext(DEST_OPTIONS).ext(DEST_OPTIONS).ext(DEST_OPTIONS).ext(DEST_OPTIONS)
                .ext(DEST_OPTIONS).ext(DEST_OPTIONS).ext(DEST_OPTIONS).ext(DEST_OPTIONS)
                .tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), pass(Extensions);
        "ipv6-nine" "nine extension headers" =>
            eth().ipv6().ext(DEST_OPTIONS).ext(DEST_OPTIONS).ext(DEST_OPTIONS).ext(DEST_OPTIONS)
                .ext(DEST_OPTIONS).ext(DEST_OPTIONS).ext(DEST_OPTIONS).ext(DEST_OPTIONS)
                .ext(DEST_OPTIONS).tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), reject(Rate);
        "ipv6-eight-mixed" "eight of all kinds" =>
            eth().ipv6().ext(HOP_BY_HOP).ext(DEST_OPTIONS).ext(ROUTING).frag6(0, false).ext(AUTH)
                .ext(AUTH).ext(DEST_OPTIONS).ext(ROUTING).tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), pass(Extensions);
        "ipv6-nine-fragment" "the ninth is a fragment header" =>
            eth().ipv6().ext(DEST_OPTIONS).ext(DEST_OPTIONS).ext(DEST_OPTIONS).ext(DEST_OPTIONS)
                .ext(DEST_OPTIONS).ext(DEST_OPTIONS).ext(DEST_OPTIONS).ext(DEST_OPTIONS)
                .frag6(0, false).tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), pass(NotService);
        "ipv6-eight-udp" "eight, then UDP" =>
            eth().ipv6().ext(DEST_OPTIONS).ext(DEST_OPTIONS).ext(DEST_OPTIONS).ext(DEST_OPTIONS)
                .ext(DEST_OPTIONS).ext(DEST_OPTIONS).ext(DEST_OPTIONS).ext(DEST_OPTIONS)
                .udp(40000, 80);
    }
}

fn unreadable(v: &mut Vec<Case>) {
    cases! { v, rejecting(), pass(Extensions);
        "ipv6-esp" "ESP: nothing behind it can be read" => eth().ipv6().proto(ESP, &[0; 40]);
        "ipv6-no-next" "no next header" => eth().ipv6().next(NO_NEXT).data(&[0; 20]);
        "ipv6-mobility" "mobility header" => eth().ipv6().ext(MOBILITY).tcp(40000, 80).syn();
        "ipv6-hip" "host identity protocol" => eth().ipv6().ext(139).tcp(40000, 80).syn();
        "ipv6-shim6" "shim6" => eth().ipv6().ext(140).tcp(40000, 80).syn();
        "ipv6-esp-late" "ESP behind other headers" =>
            eth().ipv6().ext(HOP_BY_HOP).ext(ROUTING).proto(ESP, &[0; 40]);
        "ipv6-no-next-late" "no next header behind another" =>
            eth().ipv6().ext(DEST_OPTIONS).next(NO_NEXT).tcp(40000, 80).syn();
    }
}

fn fragments(v: &mut Vec<Case>) {
    cases! { v, rejecting(), reject(Rate);
        "ipv6-fragment-first" "a first fragment with the whole TCP header is evaluated" =>
            eth().ipv6().frag6(0, true).tcp(40000, 80).syn().data(&[0x41; 4]);
        "ipv6-fragment-first-extension" "a header between fragment and TCP" =>
            eth().ipv6().frag6(0, true).ext(DEST_OPTIONS).tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), pass(Fragment);
        "ipv6-fragment-first-16" "a first fragment with 16 bytes of TCP" =>
            eth().ipv6().payload_len(24).frag6(0, true).tcp(40000, 80).syn().cut(78);
        "ipv6-fragment-first-0" "a first fragment with no TCP at all" =>
            eth().ipv6().payload_len(8).frag6(0, true).tcp(40000, 80).syn().cut(62);
        "ipv6-fragment-first-options" "a first fragment that ends inside the TCP options" =>
            eth().ipv6().frag6(0, true).tcp(40000, 80).syn().doff(9).data(&[1; 4]);
        "ipv6-fragment-first-cut-extension" "a first fragment that ends inside an extension header" =>
            eth().ipv6().payload_len(16).frag6(0, true).ext(DEST_OPTIONS).ext_len(1).cut(70);
        "ipv6-fragment-middle" "a fragment from the middle" =>
            eth().ipv6().frag6(8, true).tcp(40000, 80).syn();
        "ipv6-fragment-last" "a last fragment" =>
            eth().ipv6().frag6(1448, false).tcp(40000, 80).syn();
        "ipv6-fragment-32768" "an offset of which only the first bit is set" =>
            eth().ipv6().frag6(32768, false).tcp(40000, 80).syn();
        "ipv6-fragment-farthest" "the last possible offset" =>
            eth().ipv6().frag6(65528, false).tcp(40000, 80).syn();
        "ipv6-fragment-late" "a later fragment behind other headers" =>
            eth().ipv6().ext(HOP_BY_HOP).ext(ROUTING).frag6(8, true).tcp(40000, 80).syn();
        "ipv6-fragment-twice" "two fragment headers, the second of a later fragment" =>
            eth().ipv6().frag6(0, true).frag6(8, false).tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), reject(Rate);
        "ipv6-fragment-atomic-twice" "two atomic ones" =>
            eth().ipv6().frag6(0, false).frag6(0, false).tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), pass(Fragment);
        "ipv6-fragment-udp" "a later fragment says nothing of its protocol" =>
            eth().ipv6().frag6(8, false).udp(40000, 80);
    }
}

fn lengths(v: &mut Vec<Case>) {
    cases! { v, rejecting(), pass(Malformed);
        "ipv6-length-0" "a payload length of 0" => eth().ipv6().payload_len(0).tcp(40000, 80).syn();
        "ipv6-length-19" "one byte of TCP is not announced" =>
            eth().ipv6().payload_len(19).tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), pass(Truncated);
        "ipv6-length-21" "one byte more than there is" =>
            eth().ipv6().payload_len(21).tcp(40000, 80).syn();
        "ipv6-length-65535" "far more than there is" =>
            eth().ipv6().payload_len(65535).tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), reject(Rate);
        "ipv6-length-less" "less than there is: the rest is a trailer" =>
            eth().ipv6().payload_len(20).tcp(40000, 80).syn().data(&[0x55; 16]);
        "ipv6-length-padding" "within the padding: counts as payload" =>
            eth().ipv6().payload_len(26).tcp(40000, 80).syn().pad(80);
    }
    cases! { v, rejecting(), pass(Malformed);
        "ipv6-length-jumbogram" "length 0 and a jumbo option, in a small packet" =>
            eth().ipv6().payload_len(0).ext_with(HOP_BY_HOP, &[0xc2, 4, 0, 0, 0, 28])
                .tcp(40000, 80).syn();
        "ipv6-length-extension-7" "the packet ends inside the first 8 bytes of an extension header" =>
            eth().ipv6().payload_len(7).ext(DEST_OPTIONS).tcp(40000, 80).syn();
        "ipv6-length-extension-8" "the packet ends behind an extension header" =>
            eth().ipv6().payload_len(8).ext(DEST_OPTIONS).tcp(40000, 80).syn();
        "ipv6-length-extension-long" "an extension header longer than the packet" =>
            eth().ipv6().ext(DEST_OPTIONS).ext_len(4).tcp(40000, 80).syn();
        "ipv6-length-extension-exact" "an extension header as long as the packet" =>
            eth().ipv6().ext(ROUTING).next(6).ext_len(2).data(&[0; 16]);
        "ipv6-length-auth-long" "AH longer than the packet" =>
            eth().ipv6().ext(AUTH).ext_len(255).tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), pass(Truncated);
        "ipv6-length-cut-ip" "a frame that ends inside the IP header" => syn6().cut(53);
        "ipv6-length-cut-tcp" "a frame that ends inside the TCP header" => syn6().cut(73);
        "ipv6-length-cut-extension" "a frame that ends inside an extension header" =>
            eth().ipv6().ext(ROUTING).tcp(40000, 80).syn().cut(60);
    }
}

fn protocols(v: &mut Vec<Case>) {
    cases! { v, rejecting(), pass(NotService);
        "ipv6-icmp-echo" "an ICMPv6 echo request" => eth().ipv6().icmp6(128, 0);
        "ipv6-icmp-too-big" "packet too big, carrying our flow" =>
            eth().ipv6().icmp6(2, 0).ipv6().tcp(80, 40000);
        "ipv6-neighbour" "neighbour solicitation" => eth().ipv6().ttl(255).icmp6(135, 0);
        "ipv6-router" "router advertisement" => eth().ipv6().ttl(255).icmp6(134, 0);
        "ipv6-mld" "multicast listener report behind its router alert" =>
            eth().ipv6().ttl(1).ext_with(HOP_BY_HOP, &[5, 2, 0, 0, 1, 0]).icmp6(143, 0);
        "ipv6-udp" "UDP to the port of a service" => eth().ipv6().udp(40000, 80).data(&[0; 20]);
        "ipv6-udp-extension" "UDP behind an extension header" =>
            eth().ipv6().ext(DEST_OPTIONS).udp(40000, 80);
        "ipv6-sctp" "SCTP" => eth().ipv6().proto(132, &[0; 20]);
        "ipv6-6in6" "a SYN in an IPv6 tunnel" => eth().ipv6().ipv6().tcp(40000, 80).syn();
        "ipv6-4in6" "a SYN in an IPv4 tunnel" => eth().ipv6().ipv4().tcp(40000, 80).syn();
        "ipv6-255" "protocol 255" => eth().ipv6().proto(255, &[0; 20]);
    }
}
