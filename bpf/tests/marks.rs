// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Marks in packets, in the kernel: what a congested router and a server that refuses set, who is noted, and what leaves
//! at a border.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::net::Ipv4Addr;
use support::checksum;
use support::netns::wait_for;
use support::object::{COMPILERS, mark_objects, require_root};
use support::packet::{Packet, eth};
use tidegate_bpf::{HostMarks, MarkHooks, Marks};
use tidegate_config::InBandConfig;
use tidegate_units::{Clock, MonotonicClock, Nanos};

const RCN: u8 = 2;
const SCN: u8 = 4;
const SERVER: [u8; 4] = [192, 0, 2, 10];
const PACKETS: usize = 2_000;

/// The interface by which packets of tests leave.
const HERE: u32 = 1;
const CALM: HostMarks = HostMarks { congested: Vec::new(), overloaded: false };
const OVERLOADED: HostMarks = HostMarks { congested: Vec::new(), overloaded: true };

/// A router of which these interfaces are congested.
fn congested(interfaces: &[u32]) -> HostMarks {
    HostMarks { congested: interfaces.to_vec(), ..CALM }
}

fn loaded() -> Marks {
    require_root();
    Marks::load(&InBandConfig { router_bit: 1, server_bit: 2, mark: true }).unwrap()
}

fn say(marks: &mut Marks, says: &HostMarks) {
    marks.say(MonotonicClock.now(), says).unwrap();
}

/// From a client to the server.
fn ask(client: u8, dscp: u8) -> Packet {
    eth().ipv4().dscp(dscp).ecn(1).from4([198, 51, 100, client]).to4(SERVER).tcp(9, 80).syn()
}

/// Back from the server.
fn reply(client: u8, dscp: u8) -> Packet {
    eth().ipv4().dscp(dscp).ecn(1).from4(SERVER).to4([198, 51, 100, client]).tcp(80, 9).ack(1)
}

/// The DSCP with which a packet passes; all else is as it was.
fn dscp(hooks: &MarkHooks, egress: bool, packet: &Packet) -> u8 {
    let (before, after) = (packet.bytes(), hooks.give(egress, &packet.bytes()).unwrap());
    assert!(checksum::holds(&after[14..34]), "{after:02x?}");
    assert_eq!((before[15] & 3, before.len()), (after[15] & 3, after.len()), "ECN");
    let rest = |frame: &[u8]| [&frame[..15], &frame[16..24], &frame[26..]].concat();
    assert_eq!(rest(&before), rest(&after));
    after[15] >> 2
}

#[test]
fn a_congested_router_marks_random_packets_of_no_class() {
    let mut marks = loaded();
    let hooks = marks.hooks_to_servers().unwrap();
    let marked = |packet: &Packet| {
        let of = |_: &usize| dscp(&hooks, true, packet) & RCN != 0;
        (0..PACKETS).filter(of).count()
    };
    assert_eq!(marked(&ask(1, 0)), 0, "nothing was said yet");
    say(&mut marks, &CALM);
    assert_eq!(marked(&ask(1, 0)), 0, "not congested");
    say(&mut marks, &congested(&[7, HERE]));
    let of_all = marked(&ask(1, 0));
    assert!((60..240).contains(&of_all), "{of_all} of {PACKETS}, one in 16 wanted");
    assert!((60..240).contains(&marked(&ask(1, SCN))), "beside the other mark");
    for class in [46, 3, 10] {
        assert_eq!(dscp(&hooks, true, &ask(1, class)), class, "a class is none");
    }
    let other_version = eth().ipv4().version(5).to4(SERVER).udp(9, 80);
    for other in [eth().ipv6().udp(9, 80), eth().arp(), other_version] {
        let frame = other.bytes();
        (0..64).for_each(|_| assert_eq!(hooks.give(true, &frame).unwrap(), frame));
    }
    let tagged = eth().vlan(7).ipv4().dscp(0).to4(SERVER).udp(9, 80).bytes();
    let of = |_: &usize| hooks.give(true, &tagged).unwrap()[19] >> 2 == RCN;
    assert!((60..240).contains(&(0..PACKETS).filter(of).count()), "behind a VLAN tag");
    // A daemon that hangs.
    let then = MonotonicClock.now() - Nanos::from_secs(4);
    marks.say(then, &congested(&[HERE])).unwrap();
    assert_eq!(marked(&ask(1, 0)), 0, "what was said has ended");
}

/// What goes through another interface, comes in, or goes back, waits in no queue that is congested.
#[test]
fn only_what_goes_out_where_it_is_congested_is_marked() {
    let mut marks = loaded();
    let (clients, servers) = (marks.hooks(false).unwrap(), marks.hooks_to_servers().unwrap());
    let marked = |(hooks, egress): (&MarkHooks, bool), packet: &Packet| {
        (0..PACKETS).filter(|_| dscp(hooks, egress, packet) != 0).count()
    };
    say(&mut marks, &congested(&[7, HERE]));
    assert!(marked((&servers, true), &ask(1, 0)) > 0);
    assert_eq!(marked((&clients, false), &ask(1, 0)), 0, "its way is not known yet");
    assert_eq!(marked((&clients, true), &reply(1, 0)), 0);
    assert_eq!(marked((&servers, false), &reply(1, 0)), 0);
    say(&mut marks, &congested(&[7]));
    assert_eq!(marked((&servers, true), &ask(1, 0)), 0, "another interface is congested");
    say(&mut marks, &congested(&[HERE]));
    assert!(marked((&servers, true), &ask(1, 0)) > 0);
    // What clients say of themselves notes no server.
    assert_eq!(dscp(&servers, true, &ask(1, SCN)) & SCN, SCN);
    assert!(marks.servers().unwrap().is_empty());
}

#[test]
fn a_server_that_refuses_tells_each_marked_source_once() {
    let mut marks = loaded();
    let hooks = marks.hooks(false).unwrap();
    say(&mut marks, &CALM);
    assert_eq!(dscp(&hooks, false, &ask(1, RCN)), RCN, "it stays");
    assert_eq!(dscp(&hooks, true, &reply(1, 0)), 0, "it refuses nobody");
    say(&mut marks, &OVERLOADED);
    assert_eq!(dscp(&hooks, true, &reply(1, 0)), 0, "that one was not noted");
    assert_eq!(dscp(&hooks, false, &ask(1, RCN)), RCN);
    assert_eq!(dscp(&hooks, false, &ask(2, 0)), 0);
    assert_eq!(dscp(&hooks, false, &ask(3, RCN | SCN)), RCN | SCN);
    assert_eq!(dscp(&hooks, true, &reply(2, 0)), 0, "not marked");
    assert_eq!(dscp(&hooks, true, &reply(1, 46)), 46, "a class");
    assert_eq!(dscp(&hooks, true, &reply(1, 0)), SCN);
    assert_eq!(dscp(&hooks, true, &reply(1, 0)), 0, "once");
    assert_eq!(dscp(&hooks, true, &reply(3, 0)), SCN);
    assert_eq!(dscp(&hooks, false, &ask(4, RCN)), RCN);
    let over = MonotonicClock.now() + Nanos::from_millis(1_100);
    wait_for("a second is over", || MonotonicClock.now() >= over);
    say(&mut marks, &OVERLOADED);
    assert_eq!(dscp(&hooks, true, &reply(4, 0)), 0, "too late");
}

#[test]
fn a_router_notes_servers_that_say_so_and_a_border_lets_no_mark_out() {
    let mut marks = loaded();
    say(&mut marks, &congested(&[HERE]));
    let [inner, border] = [false, true].map(|border| marks.hooks(border).unwrap());
    assert!(marks.servers().unwrap().is_empty());
    for (hooks, left) in [(&inner, SCN), (&border, 0)] {
        assert_eq!(dscp(hooks, true, &reply(1, 0)), 0);
        assert_eq!(dscp(hooks, true, &reply(1, 46)), 46, "contains the bit, and is a class");
        assert!(marks.servers().unwrap().is_empty());
        assert_eq!(dscp(hooks, true, &reply(1, SCN)), left);
        assert_eq!(marks.servers().unwrap(), [Ipv4Addr::from(SERVER)]);
        assert!(marks.servers().unwrap().is_empty(), "told once");
        assert_eq!(dscp(hooks, true, &reply(1, RCN)), if left > 0 { RCN } else { 0 });
    }
    // What comes in notes nobody.
    assert_eq!(dscp(&inner, false, &ask(1, SCN)) & SCN, SCN);
    assert!(marks.servers().unwrap().is_empty());
}

#[test]
fn other_bits_are_marks_once_they_are_said() {
    let mut marks = loaded();
    let hooks = marks.hooks(false).unwrap();
    marks.follow(&InBandConfig { router_bit: 4, server_bit: 5, mark: true });
    say(&mut marks, &OVERLOADED);
    assert_eq!(dscp(&hooks, false, &ask(1, 16)), 16);
    assert_eq!(dscp(&hooks, true, &reply(1, 0)), 32);
    assert_eq!(dscp(&hooks, false, &ask(2, RCN)), RCN, "a class now");
    assert_eq!(dscp(&hooks, true, &reply(2, 0)), 0);
}

#[test]
fn the_programs_of_every_compiler_load() {
    require_root();
    for compiler in COMPILERS {
        let bits = InBandConfig { router_bit: 1, server_bit: 2, mark: true };
        let marks = Marks::load_objects(&bits, mark_objects(compiler)).unwrap();
        marks.hooks(true).unwrap();
    }
}
