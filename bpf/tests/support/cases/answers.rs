// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is answered, and what never.

use super::{Case, admit, cases, drop, pass, reject};
use crate::support::packet::{AUTH, DEST_OPTIONS, HOP_BY_HOP, RST, eth, syn4, syn6};
use crate::support::setup::{dropping, rejecting};
use tidegate_policy::Reason::{NotNew, Rate, ReplyCap, ReplyImpossible, Token};

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    bytes(&mut all);
    cap(&mut all);
    sources4(&mut all);
    sources6(&mut all);
    destinations(&mut all);
    loopback(&mut all);
    others(&mut all);
    all
}

fn bytes(v: &mut Vec<Case>) {
    cases! { v, rejecting(), reject(Rate);
        "answer-ipv4" "54 bytes in, 54 bytes out" => syn4();
        "answer-ipv6" "74 bytes in, 74 bytes out" => syn6();
        "answer-all-ipv4" "tags stay; IP options, TCP options, payload and padding go; data is acknowledged" =>
            eth().svlan(5).vlan(10).pcp(3).ipv4().dscp(10).ecn(2).options(&[7, 11, 4])
                .tcp(40000, 80).syn().seq(0xffff_fffe).options(&[2, 4, 5, 180, 34, 4, 1, 2])
                .data(b"GET /").pad(128);
        "answer-all-ipv6" "the same, IPv6" =>
            eth().svlan(5).vlan(10).pcp(3).ipv6().dscp(10).ecn(2).ext(HOP_BY_HOP).ext(AUTH)
                .ext(DEST_OPTIONS).tcp(40000, 80).syn().seq(0xffff_fffe)
                .options(&[2, 4, 5, 180, 34, 4, 1, 2]).data(b"GET /").pad(200);
        "answer-jumbo" "a SYN of 3,000 bytes" => syn4().data(&[0x41; 2960]);
        "answer-checksum-carry" "addresses and ports whose checksum carries twice" =>
            eth().ipv4().from4([223, 255, 255, 255]).tcp(65535, 80).syn().seq(0xfffe_fffe);
        "answer-checksum-fold" "a TCP checksum that must be folded twice" => syn4().seq(0x27fa);
        "answer-checksum-fold-ipv6" "the same, IPv6" => syn6().seq(0xb8aa);
        "answer-checksum-fold-ip" "an IP checksum that must be folded twice" =>
            eth().ipv4().from4([7, 199, 113, 255]).tcp(40000, 80).syn();
        "answer-checksum-zero" "an acknowledgement that makes the sum of the segment zero" =>
            eth().ipv4().from4([198, 51, 100, 7]).tcp(40000, 80).syn().seq(0x0001_26f9);
    }
}

fn cap(v: &mut Vec<Case>) {
    cases! { v, rejecting().answers(4, 0), drop(ReplyCap);
        "cap-reached" "no answer is left: silently" => syn4();
    }
    cases! { v, rejecting().answers(4, 1), reject(Rate);
        "cap-last" "the last answer" => syn4();
    }
    cases! { v, rejecting().answers(0, 0), drop(ReplyCap);
        "cap-never" "answers are switched off" => syn6();
    }
    cases! { v, rejecting().shadow().answers(4, 0), reject(Rate).shadow();
        "cap-shadow" "what is not sent takes no answer" => syn4();
    }
    cases! { v, dropping().answers(4, 0), drop(Rate);
        "cap-drop" "a drop needs no answer" => syn4();
    }
}

fn sources4(v: &mut Vec<Case>) {
    cases! { v, rejecting(), drop(ReplyImpossible);
        "source-zero" "from 0.0.0.0" => eth().ipv4().from4([0, 0, 0, 0]).tcp(40000, 80).syn();
        "source-this-network" "from 0.1.2.3" =>
            eth().ipv4().from4([0, 1, 2, 3]).tcp(40000, 80).syn();
        "source-loopback" "from 127.0.0.1, over a wire" =>
            eth().ipv4().from4([127, 0, 0, 1]).tcp(40000, 80).syn();
        "source-loopback-last" "from 127.255.255.255" =>
            eth().ipv4().from4([127, 255, 255, 255]).tcp(40000, 80).syn();
        "source-multicast" "from a multicast address" =>
            eth().ipv4().from4([224, 0, 0, 1]).tcp(40000, 80).syn();
        "source-multicast-last" "from the last one" =>
            eth().ipv4().from4([239, 255, 255, 255]).tcp(40000, 80).syn();
        "source-reserved" "from a reserved address" =>
            eth().ipv4().from4([240, 0, 0, 1]).tcp(40000, 80).syn();
        "source-broadcast" "from 255.255.255.255" =>
            eth().ipv4().from4([255, 255, 255, 255]).tcp(40000, 80).syn();
        "source-itself" "from the address of the service" =>
            eth().ipv4().from4([192, 0, 2, 10]).tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), reject(Rate);
        "source-first" "from 1.0.0.0" => eth().ipv4().from4([1, 0, 0, 0]).tcp(40000, 80).syn();
        "source-last" "from 223.255.255.255" =>
            eth().ipv4().from4([223, 255, 255, 255]).tcp(40000, 80).syn();
        "source-126" "from 126.255.255.255" =>
            eth().ipv4().from4([126, 255, 255, 255]).tcp(40000, 80).syn();
        "source-128" "from 128.0.0.0" => eth().ipv4().from4([128, 0, 0, 0]).tcp(40000, 80).syn();
        "source-private" "from a private address" =>
            eth().ipv4().from4([192, 168, 1, 1]).tcp(40000, 80).syn();
        "source-link-local" "from a link-local address" =>
            eth().ipv4().from4([169, 254, 1, 1]).tcp(40000, 80).syn();
    }
}

fn sources6(v: &mut Vec<Case>) {
    cases! { v, rejecting(), drop(ReplyImpossible);
        "source6-zero" "from ::" => eth().ipv6().from6("::").tcp(40000, 80).syn();
        "source6-loopback" "from ::1, over a wire" =>
            eth().ipv6().from6("::1").tcp(40000, 80).syn();
        "source6-multicast" "from a multicast address" =>
            eth().ipv6().from6("ff02::1").tcp(40000, 80).syn();
        "source6-mapped" "from a mapped IPv4 address" =>
            eth().ipv6().from6("::ffff:198.51.100.7").tcp(40000, 80).syn();
        "source6-itself" "from the address of the service" =>
            eth().ipv6().from6("2001:db8::10").tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), reject(Rate);
        "source6-compatible" "from ::2: an address as any other" =>
            eth().ipv6().from6("::2").tcp(40000, 80).syn();
        "source6-link-local" "from a link-local address" =>
            eth().ipv6().from6("fe80::1").tcp(40000, 80).syn();
        "source6-local" "from a unique local address" =>
            eth().ipv6().from6("fd00::1").tcp(40000, 80).syn();
    }
}

fn destinations(v: &mut Vec<Case>) {
    cases! { v, rejecting(), drop(ReplyImpossible).service("any");
        "to-broadcast" "to 255.255.255.255" =>
            eth().ipv4().to4([255, 255, 255, 255]).tcp(40000, 443).syn();
        "to-multicast" "to a multicast address" =>
            eth().ipv4().to4([224, 0, 0, 251]).tcp(40000, 443).syn();
        "to-zero" "to 0.0.0.0" => eth().ipv4().to4([0, 0, 0, 0]).tcp(40000, 443).syn();
        "to-reserved" "to a reserved address" =>
            eth().ipv4().to4([241, 0, 0, 1]).tcp(40000, 443).syn();
        "to-multicast-ipv6" "to a multicast address, IPv6" =>
            eth().ipv6().to6("ff02::1").tcp(40000, 443).syn();
    }
    cases! { v, rejecting(), reject(Rate).service("any");
        "to-private" "to a private address" =>
            eth().ipv4().to4([10, 0, 0, 1]).tcp(40000, 443).syn();
        "to-link-local-ipv6" "to a link-local address, IPv6" =>
            eth().ipv6().to6("fe80::2").tcp(40000, 443).syn();
    }
}

fn loopback(v: &mut Vec<Case>) {
    let first = v.len();
    cases! { v, rejecting(), reject(Rate);
        "loopback-source" "from 127.0.0.1, on the loopback interface" =>
            eth().ipv4().from4([127, 0, 0, 1]).tcp(40000, 80).syn();
        "loopback-itself" "from the address of the service, on the loopback interface" =>
            eth().ipv4().from4([192, 0, 2, 10]).tcp(40000, 80).syn();
        "loopback-source-ipv6" "from ::1, on the loopback interface" =>
            eth().ipv6().from6("::1").tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), drop(ReplyImpossible);
        "loopback-multicast" "never to a group, not even there" =>
            eth().ipv4().from4([224, 0, 0, 1]).tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), reject(Rate);
        "loopback-mac" "with the addresses of the loopback interface" =>
            eth().mac([0; 6], [0; 6]).ipv4().from4([127, 0, 0, 1]).tcp(40000, 80).syn();
    }
    v[first..].iter_mut().for_each(|case| case.loopback = true);
}

fn others(v: &mut Vec<Case>) {
    cases! { v, dropping(), drop(Rate);
        "impossible-drop" "a drop stays what it is, whoever sent the SYN" =>
            eth().ipv4().from4([0, 0, 0, 0]).tcp(40000, 80).syn();
    }
    cases! { v, rejecting().shadow(), reject(Rate).shadow();
        "impossible-shadow" "in shadow nobody would have been answered either" =>
            eth().ipv4().from4([0, 0, 0, 0]).tcp(40000, 80).syn();
    }
    cases! { v, rejecting().answers(4, 0), drop(ReplyImpossible);
        "impossible-cap" "an impossible answer is named before the cap" =>
            eth().ipv4().from4([0, 0, 0, 0]).tcp(40000, 80).syn();
    }
    cases! { v, rejecting().bucket(5, 0), admit(Token);
        "impossible-admit" "an odd source with a token is the stack's concern" =>
            eth().ipv4().from4([0, 0, 0, 0]).tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), pass(NotNew);
        "answer-to-rst" "a RST is never answered" => eth().ipv4().tcp(40000, 80).flags(RST);
    }
}
