// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which service, which class, and who is never refused.

use super::{Case, admit, cases, drop, pass, reject};
use crate::support::packet::{SEQ, eth, syn4, syn6};
use crate::support::setup::{Setup, base, dropping, rejecting};
use tidegate_policy::Reason::{
    Exempt, NoLimit, NotNew, NotService, Rate, Released, Reserved, SocketEstablished,
    SocketRequest, SocketTimeWait, Token,
};

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    services(&mut all);
    many_addresses(&mut all);
    prefixes(&mut all);
    marks(&mut all);
    priorities(&mut all);
    never(&mut all);
    sockets(&mut all);
    all
}

/// Classes that contain each other, and one by DSCP.
fn classes() -> Setup {
    base()
        .class("wide", &["198.0.0.0/8", "2001:db8::/32"], 5)
        .class("partners", &["198.51.100.0/24", "2001:db8:c::/48"], 2)
        .class("host", &["198.51.100.200/32", "2001:db8:c::200/128"], 0)
        .class("voice", &[], 1)
        .dscp(46)
}

/// Trunk reservation: 4 of 10 tokens are left, and each priority must leave these.
fn reserved() -> Setup {
    dropping()
        .bucket(10, 6)
        .reserve([0, 1, 2, 3, 4, 5, 6, 7])
        .class("first", &["198.51.100.1/32"], 0)
        .class("third", &["198.51.100.3/32"], 3)
        .class("fourth", &["198.51.100.4/32"], 4)
}

fn services(v: &mut Vec<Case>) {
    cases! { v, base(), admit(NoLimit);
        "service-exact" "the address and port of a service" => syn4();
        "service-exact-ipv6" "the same, IPv6" => syn6();
    }
    cases! { v, rejecting(), pass(NotService);
        "service-other-port" "another port" => eth().ipv4().tcp(40000, 8081).syn();
        "service-other-address" "another address, same port" =>
            eth().ipv4().to4([192, 0, 2, 11]).tcp(40000, 80).syn();
        "service-other-address-ipv6" "the same, IPv6" =>
            eth().ipv6().to6("2001:db8::11").tcp(40000, 80).syn();
        "service-other-family" "a port that has an IPv4 address only" =>
            eth().ipv6().tcp(40000, 8080).syn();
    }
    cases! { v, rejecting(), reject(Rate).service("any");
        "service-any" "a port of any address" =>
            eth().ipv4().to4([203, 0, 113, 77]).tcp(40000, 443).syn();
        "service-any-ipv6" "the same, IPv6" =>
            eth().ipv6().to6("2001:db8:ffff::1").tcp(40000, 443).syn();
    }
    cases! { v, rejecting().listening(0, "192.0.2.10:443"), reject(Rate);
        "service-exact-beside-any" "an exact address wins over any address" =>
            eth().ipv4().tcp(40000, 443).syn();
    }
    cases! { v, rejecting().listening(0, "192.0.2.10:443"), reject(Rate).service("any");
        "service-any-beside-exact" "and the other addresses stay with the other service" =>
            eth().ipv4().to4([192, 0, 2, 11]).tcp(40000, 443).syn();
    }
    cases! { v, rejecting(), reject(Rate).service("any");
        "service-second" "a service with two addresses" => eth().ipv4().tcp(40000, 8080).syn();
    }
    cases! { v, base(), admit(NoLimit);
        "service-mapped" "an IPv6 packet to the mapped IPv4 address: no wire carries it, the stack drops it" =>
            eth().ipv6().to6("::ffff:192.0.2.10").tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), pass(NotService);
        "service-answer" "what a service sends out" =>
            eth().ipv4().from4([192, 0, 2, 10]).to4([198, 51, 100, 7]).tcp(80, 40000).syn().ack(1);
        "service-outgoing" "the server as a client of another server" =>
            eth().ipv4().tcp(443, 40000).syn().ack(1);
    }
}

/// More addresses at one port than are read there: the hash is asked.
fn many() -> Setup {
    let addresses = [10, 11, 12, 13, 14].map(|last| format!("192.0.2.{last}:443"));
    addresses.iter().fold(rejecting(), |setup, at| setup.listening(0, at))
}

fn many_addresses(v: &mut Vec<Case>) {
    cases! { v, many(), reject(Rate);
        "service-many" "one of five addresses at a port" =>
            eth().ipv4().to4([192, 0, 2, 14]).tcp(40000, 443).syn();
    }
    cases! { v, many(), reject(Rate).service("any");
        "service-many-any" "another address at this port: any address" =>
            eth().ipv4().to4([192, 0, 2, 15]).tcp(40000, 443).syn();
        "service-many-any-ipv6" "the same, IPv6" =>
            eth().ipv6().tcp(40000, 443).syn();
    }
    cases! { v, many().listening(0, "192.0.2.20:80").listening(0, "192.0.2.21:80")
        .listening(0, "192.0.2.22:80"), pass(NotService);
        "service-many-other" "an address that is none of five" =>
            eth().ipv4().to4([192, 0, 2, 23]).tcp(40000, 80).syn();
    }
}

fn prefixes(v: &mut Vec<Case>) {
    cases! { v, classes(), admit(NoLimit).class("partners");
        "class-prefix" "a source inside a prefix" => syn4();
        "class-prefix-ipv6" "the same, IPv6" => syn6();
    }
    cases! { v, classes(), admit(NoLimit).class("wide");
        "class-shorter" "inside the shorter prefix only" =>
            eth().ipv4().from4([198, 51, 101, 7]).tcp(40000, 80).syn();
        "class-shorter-ipv6" "the same, IPv6" =>
            eth().ipv6().from6("2001:db8:d::7").tcp(40000, 80).syn();
    }
    cases! { v, classes(), admit(NoLimit).class("host");
        "class-host" "the longest prefix wins" =>
            eth().ipv4().from4([198, 51, 100, 200]).tcp(40000, 80).syn();
        "class-host-ipv6" "the same, IPv6" =>
            eth().ipv6().from6("2001:db8:c::200").tcp(40000, 80).syn();
    }
    cases! { v, classes(), admit(NoLimit).class("partners");
        "class-host-beside" "one address beside it" =>
            eth().ipv4().from4([198, 51, 100, 201]).tcp(40000, 80).syn();
    }
    cases! { v, classes(), admit(NoLimit);
        "class-none" "outside of all prefixes" =>
            eth().ipv4().from4([203, 0, 113, 7]).tcp(40000, 80).syn();
    }
    cases! { v, classes(), admit(NoLimit).class("partners");
        "class-first-address" "the first address of a prefix" =>
            eth().ipv4().from4([198, 51, 100, 0]).tcp(40000, 80).syn();
        "class-last-address" "the last address of a prefix" =>
            eth().ipv4().from4([198, 51, 100, 255]).tcp(40000, 80).syn();
    }
    cases! { v, base().class("all", &["0.0.0.0/0"], 3), admit(NoLimit).class("all");
        "class-all" "a prefix of length 0 is the IPv4 Internet" => syn4();
    }
    cases! { v, base().class("all", &["0.0.0.0/0"], 3), admit(NoLimit);
        "class-all-other-family" "and not IPv6" => syn6();
    }
    cases! { v, base().class("all", &["2000::/3"], 3), admit(NoLimit).class("all");
        "class-all-ipv6" "a prefix of length 0 of IPv6" => syn6();
    }
}

fn marks(v: &mut Vec<Case>) {
    let outside = [203, 0, 113, 7];
    cases! { v, classes().trusting(), admit(NoLimit).class("voice");
        "class-dscp" "a DSCP where it is trusted" =>
            eth().ipv4().from4(outside).dscp(46).tcp(40000, 80).syn();
        "class-dscp-ipv6" "the same, IPv6" =>
            eth().ipv6().from6("2001:dead::7").dscp(46).tcp(40000, 80).syn();
        "class-dscp-ecn" "ECN bits are no part of it" =>
            eth().ipv4().from4(outside).dscp(46).ecn(3).tcp(40000, 80).syn();
    }
    cases! { v, classes(), admit(NoLimit);
        "class-dscp-distrusted" "a DSCP where it is not trusted" =>
            eth().ipv4().from4(outside).dscp(46).tcp(40000, 80).syn();
    }
    cases! { v, classes().trusting(), admit(NoLimit);
        "class-dscp-other" "another DSCP" =>
            eth().ipv4().from4(outside).dscp(47).tcp(40000, 80).syn();
    }
    cases! { v, classes().trusting(), admit(NoLimit).class("partners");
        "class-dscp-and-prefix" "a prefix comes before a DSCP" =>
            eth().ipv4().dscp(46).tcp(40000, 80).syn();
    }
    cases! { v, base().class("bulk", &[], 6).dscp(0).trusting(), admit(NoLimit).class("bulk");
        "class-dscp-0" "DSCP 0 may have a class, too" => syn4();
    }
    cases! { v, base().class("control", &[], 0).dscp(63).trusting(), admit(NoLimit).class("control");
        "class-dscp-63" "the last DSCP" => eth().ipv4().dscp(63).tcp(40000, 80).syn();
    }
}

fn priorities(v: &mut Vec<Case>) {
    cases! { v, reserved(), admit(Token).class("first");
        "priority-first" "priority 0 may take every token" =>
            eth().ipv4().from4([198, 51, 100, 1]).tcp(40000, 80).syn();
    }
    cases! { v, reserved(), admit(Token).class("third");
        "priority-third" "priority 3 must leave 3 of 4: one is above" =>
            eth().ipv4().from4([198, 51, 100, 3]).tcp(40000, 80).syn();
    }
    cases! { v, reserved(), drop(Reserved).class("fourth");
        "priority-fourth" "priority 4 must leave all 4" =>
            eth().ipv4().from4([198, 51, 100, 4]).tcp(40000, 80).syn();
    }
    cases! { v, reserved(), drop(Reserved);
        "priority-default" "what no class names has the lowest priority" =>
            eth().ipv4().from4([203, 0, 113, 1]).tcp(40000, 80).syn();
    }
    cases! { v, reserved().bucket(10, 10), drop(Rate).class("first");
        "priority-empty" "an empty bucket is empty for all" =>
            eth().ipv4().from4([198, 51, 100, 1]).tcp(40000, 80).syn();
    }
    cases! { v, reserved().class("voice", &[], 0).dscp(46).trusting(), admit(Token).class("voice");
        "priority-dscp" "a DSCP lifts a request over the reserve" =>
            eth().ipv4().from4([203, 0, 113, 1]).dscp(46).tcp(40000, 80).syn();
    }
}

fn never(v: &mut Vec<Case>) {
    cases! { v, rejecting(), pass(Exempt);
        "never-source" "a source that is never refused" =>
            eth().ipv4().from4([10, 1, 2, 3]).tcp(40000, 80).syn();
        "never-source-ipv6" "the same, IPv6" =>
            eth().ipv6().from6("2001:db8:aaaa::1").tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), reject(Rate);
        "never-source-outside" "one address outside of it" =>
            eth().ipv4().from4([11, 0, 0, 0]).tcp(40000, 80).syn();
        "never-source-outside-ipv6" "the same, IPv6" =>
            eth().ipv6().from6("2001:db8:aaab::1").tcp(40000, 80).syn();
    }
    cases! { v, rejecting().class("inside", &["10.1.0.0/16"], 7), pass(Exempt);
        "never-source-and-class" "the list comes before every class" =>
            eth().ipv4().from4([10, 1, 2, 3]).tcp(40000, 80).syn();
    }
    cases! { v, rejecting(), pass(NotNew);
        "never-source-ack" "only new work is asked" =>
            eth().ipv4().from4([10, 1, 2, 3]).tcp(40000, 80).ack(1);
    }
    cases! { v, rejecting().listening(0, "192.0.2.10:22"), pass(Exempt);
        "never-port" "a port that is never refused, though a service has it" =>
            eth().ipv4().tcp(40000, 22).syn();
    }
    cases! { v, rejecting().listening(1, "*:22"), pass(Exempt);
        "never-port-any" "the same at any address" => eth().ipv6().tcp(40000, 22).syn();
    }
    cases! { v, rejecting(), pass(NotService);
        "never-port-no-service" "without a service there is nothing to ask" =>
            eth().ipv4().tcp(40000, 22).syn();
    }
    cases! { v, rejecting(), reject(Rate);
        "never-from-port" "the source port does not matter" => eth().ipv4().tcp(22, 80).syn();
    }
}

fn sockets(v: &mut Vec<Case>) {
    cases! { v, rejecting(), pass(SocketRequest);
        "socket-request" "a SYN again, its first copy was admitted: a request socket" =>
            eth().ipv4().tcp(40003, 80).syn();
    }
    cases! { v, rejecting(), pass(SocketEstablished);
        "socket-established" "a SYN again, the connection is established" =>
            eth().ipv4().tcp(40001, 80).syn();
    }
    time_wait(v);
    cases! { v, rejecting(), pass(SocketEstablished);
        "socket-established-ipv6" "a SYN again, IPv6" => eth().ipv6().tcp(40001, 80).syn();
    }
    cases! { v, rejecting(), reject(Rate);
        "socket-other-client" "the same port of another client" =>
            eth().ipv4().from4([198, 51, 100, 8]).tcp(40001, 80).syn();
    }
    cases! { v, rejecting().released(), pass(SocketEstablished);
        "socket-released" "a socket is found before the kill switch" =>
            eth().ipv4().tcp(40001, 80).syn();
    }
    cases! { v, rejecting().listening(0, "192.0.2.10:22"), pass(Exempt);
        "socket-never" "the list of exemptions comes before the sockets" =>
            eth().ipv4().tcp(40001, 22).syn();
    }
}

/// The socket expects [`SEQ`](crate::support::packet::SEQ), and knows no time stamps.
fn time_wait(v: &mut Vec<Case>) {
    cases! { v, rejecting(), pass(SocketTimeWait);
        "socket-time-wait" "a SYN for a tuple in TIME_WAIT that the stack does not take" =>
            eth().ipv4().tcp(40002, 80).syn();
        "socket-time-wait-ipv6" "the same, IPv6" => eth().ipv6().tcp(40002, 80).syn();
        "socket-time-wait-older" "an older sequence number" =>
            eth().ipv4().tcp(40002, 80).syn().seq(SEQ - 1);
        "socket-time-wait-half" "just less than half of the numbers behind it" =>
            eth().ipv4().tcp(40002, 80).syn().seq(SEQ.wrapping_add((1 << 31) + 1));
        "socket-time-wait-stamp" "a time stamp, where the connection had none" =>
            eth().ipv4().tcp(40002, 80).syn().options(&[1, 1, 8, 10, 255, 0, 0, 0, 0, 0, 0, 0]);
        "socket-closing" "FIN_WAIT2: the client may still send" =>
            eth().ipv4().tcp(40004, 80).syn().seq(SEQ + 1);
        "socket-closing-ipv6" "the same, IPv6" =>
            eth().ipv6().tcp(40004, 80).syn().seq(SEQ + 1);
    }
    cases! { v, rejecting(), reject(Rate);
        "reuse" "a SYN that reuses a tuple in TIME_WAIT is a new connection" =>
            eth().ipv4().tcp(40002, 80).syn().seq(SEQ + 1);
        "reuse-ipv6" "the same, IPv6" => eth().ipv6().tcp(40002, 80).syn().seq(SEQ + 1);
        "reuse-half" "half of the numbers ahead" =>
            eth().ipv4().tcp(40002, 80).syn().seq(SEQ.wrapping_add(1 << 31));
    }
    cases! { v, base().bucket(5, 4), admit(Token);
        "reuse-admitted" "it takes a token" => eth().ipv4().tcp(40002, 80).syn().seq(SEQ + 1);
    }
    cases! { v, rejecting().released(), pass(Released);
        "reuse-released" "under the kill switch it passes as others do" =>
            eth().ipv4().tcp(40002, 80).syn().seq(SEQ + 1);
    }
    cases! { v, base().accept_queue_max(1), admit(NoLimit);
        "reuse-queue" "the accept queue of the listener behind it is empty" =>
            eth().ipv4().tcp(40002, 80).syn().seq(SEQ + 1);
    }
}
