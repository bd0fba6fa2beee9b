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
use tidegate_bpf::{HostMarks, MarkHooks, Marks, OptionCounts};
use tidegate_config::{InBandConfig, OptionConfig};
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
    Marks::load(&InBandConfig { router_bit: 1, server_bit: 2, mark: true, option: None }).unwrap()
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

const ROUTER: [u8; 4] = [192, 0, 2, 1];

/// A router that adds its option to half of the packets.
fn adding() -> Marks {
    let mut marks = loaded();
    let option = OptionConfig { address: ROUTER.into(), one_in: 2 };
    marks.follow(&InBandConfig { option: Some(option), ..marks.bits().clone() });
    marks
}

/// Packets without the 20 bytes of IPv4's header, and these of it: all but TOS, length and checksum.
fn rest(frame: &[u8]) -> [Vec<u8>; 2] {
    [[&frame[..14], &frame[34..]].concat(), [&frame[18..24], &frame[26..34]].concat()]
}

/// The option with which a packet leaves, if it gets one: all else is as it was, but RCN.
fn option_of(hooks: &MarkHooks, packet: &Packet) -> Option<Vec<u8>> {
    let (before, mut after) = (packet.bytes(), hooks.give(true, &packet.bytes()).unwrap());
    let header = |frame: &[u8]| 14 + 4 * usize::from(frame[14] & 15);
    let right = checksum::holds(&before[14..header(&before)]);
    assert_eq!(checksum::holds(&after[14..header(&after)]), right, "{after:02x?}");
    assert_eq!(after[15] & !(RCN << 2), before[15] & !(RCN << 2), "all but RCN");
    let grown = after.len() - before.len();
    let option = (grown > 0).then(|| after.drain(34..46).collect());
    assert_eq!(usize::from(after[14]), usize::from(before[14]) + grown / 4);
    let length = |frame: &[u8]| usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    assert_eq!(length(&after), length(&before) + grown);
    assert_eq!(rest(&before), rest(&after), "other options stand behind it");
    option
}

/// How many of the packets get an option.
fn added(hooks: &MarkHooks, packet: &Packet) -> usize {
    (0..PACKETS).filter(|_| option_of(hooks, packet).is_some()).count()
}

/// The server has said that it is overloaded.
fn overload(marks: &Marks) {
    let clients = marks.hooks(false).unwrap();
    assert_eq!(dscp(&clients, true, &reply(1, SCN)), SCN);
}

#[test]
fn a_congested_router_adds_its_address_to_packets_for_overloaded_servers() {
    let mut marks = adding();
    let hooks = marks.hooks_to_servers().unwrap();
    say(&mut marks, &congested(&[HERE]));
    assert_eq!(added(&hooks, &ask(1, 0)), 0, "the server has said nothing");
    overload(&marks);
    say(&mut marks, &CALM);
    assert_eq!(added(&hooks, &ask(1, 0)), 0, "not congested");
    say(&mut marks, &congested(&[7]));
    assert_eq!(added(&hooks, &ask(1, 0)), 0, "another interface is");
    say(&mut marks, &congested(&[HERE]));
    let of_all = added(&hooks, &ask(1, 0));
    assert!((850..1150).contains(&of_all), "{of_all} of {PACKETS}, half wanted");
    assert_eq!(marks.options().unwrap().added, of_all as u64);
    let option = (0..64).find_map(|_| option_of(&hooks, &ask(1, 46))).unwrap();
    assert_eq!(option[..10], [158, 12, 0, 0, 192, 0, 2, 1, 0x7f, 0xff], "of any class");
    let elsewhere = eth().ipv4().to4([192, 0, 2, 11]).udp(9, 80);
    assert_eq!(added(&hooks, &elsewhere), 0, "another server");
    let clients = marks.hooks(false).unwrap();
    (0..64).for_each(|_| assert!(option_of(&clients, &ask(1, 0)).is_none()));
    // A daemon that hangs.
    let now = MonotonicClock.now();
    marks.say(now - Nanos::from_secs(4), &congested(&[HERE])).unwrap();
    assert_eq!(added(&hooks, &ask(1, 0)), 0, "what was said has ended");
    say(&mut marks, &congested(&[HERE]));
    assert!(added(&hooks, &ask(1, 0)) > 0);
    marks.follow(&InBandConfig { option: None, ..marks.bits().clone() });
    say(&mut marks, &congested(&[HERE]));
    assert_eq!(added(&hooks, &ask(1, 0)), 0, "it is not configured any more");
}

/// Servers count from the beginning: after a second without an option another number begins.
#[test]
fn a_router_that_begins_again_says_so() {
    let mut marks = adding();
    let hooks = marks.hooks_to_servers().unwrap();
    say(&mut marks, &CALM);
    overload(&marks);
    let mut sequence_at = |now: Nanos| {
        marks.say(now, &congested(&[HERE])).unwrap();
        let option = (0..64).find_map(|_| option_of(&hooks, &ask(1, 0))).unwrap();
        u16::from_be_bytes([option[10], option[11]])
    };
    let (now, ms) = (MonotonicClock.now(), Nanos::from_millis);
    let first = sequence_at(now);
    assert_eq!([900, 1_800].map(|later| sequence_at(now + ms(later))), [first; 2]);
    let mut silent = |later: u64| marks.say(now + ms(later), &congested(&[HERE])).unwrap();
    [1_900, 2_800, 3_000, 9_000].into_iter().for_each(&mut silent);
    overload(&marks);
    let option = (0..64).find_map(|_| option_of(&hooks, &ask(1, 0))).unwrap();
    assert_eq!(u16::from_be_bytes([option[10], option[11]]), first.wrapping_add(1));
}

/// Options of others stay, behind it; a packet without room for it stays as it was.
#[test]
fn an_option_is_added_where_there_is_room() {
    let mut marks = adding();
    let hooks = marks.hooks_to_servers().unwrap();
    let mut fresh = || {
        say(&mut marks, &congested(&[HERE]));
        overload(&marks);
        marks.options().unwrap()
    };
    let to = |options: &[u8]| eth().ipv4().to4(SERVER).options(options).udp(9, 80);
    let long = |bytes: usize| to(&[]).data(&vec![7; bytes]);
    let wrong_sum = eth().ipv4().sum(0x1234).to4(SERVER).udp(9, 80);
    for packet in [
        to(&[1; 4]),
        to(&[1; 28]),
        long(972),
        eth().ipv4().frag4(0, false).to4(SERVER).udp(9, 80),
        wrong_sum,
    ] {
        let before = fresh();
        assert!(added(&hooks, &packet) > 0, "{packet:?}");
        assert_eq!(fresh().no_room, before.no_room);
    }
    for packet in [
        to(&[1; 32]),
        long(973),
        // Its header says that it is short.
        eth().ipv4().tot_len(60).to4(SERVER).udp(9, 80).data(&[7; 1_000]),
        eth().ipv4().frag4(0, true).to4(SERVER).udp(9, 80),
        eth().ipv4().frag4(8, false).to4(SERVER).udp(9, 80),
        eth().ipv4().ihl(4).to4(SERVER).udp(9, 80),
        eth().ipv4().to4(SERVER).proto(51, &[0; 24]),
        eth().vlan(7).ipv4().to4(SERVER).udp(9, 80),
    ] {
        let (before, frame) = (fresh(), packet.bytes());
        for _ in 0..64 {
            assert_eq!(hooks.give(true, &frame).unwrap().len(), frame.len());
        }
        let after = fresh();
        assert_eq!(after.added, before.added, "{packet:?}");
        assert!(after.no_room > before.no_room, "{packet:?}");
    }
    let (before, frame) = (fresh(), long(400).bytes());
    for _ in 0..64 {
        assert_eq!(hooks.give_merged(&frame, 100).unwrap().len(), frame.len());
    }
    assert_eq!(fresh().added, before.added, "several segments in one");
    let other_version = eth().ipv4().version(5).to4(SERVER).udp(9, 80);
    for other in [eth().ipv6().udp(9, 80), eth().arp(), other_version] {
        (0..64).for_each(|_| assert_eq!(hooks.give(true, &other.bytes()).unwrap(), other.bytes()));
    }
}

/// One entry with the address, the share and the sequence number.
fn entry(router: [u8; 4], share: u16, sequence: u16) -> Vec<u8> {
    [&router[..], &share.to_be_bytes(), &sequence.to_be_bytes()].concat()
}

/// An option with these entries.
fn option(entries: &[Vec<u8>]) -> Vec<u8> {
    let entries = entries.concat();
    [&[158, 4 + entries.len() as u8, 0, 0][..], &entries].concat()
}

const SECOND: [u8; 4] = [192, 0, 2, 2];

/// A server that knows two routers.
fn server() -> Marks {
    let mut marks = loaded();
    marks.know(Some(&[ROUTER.into(), SECOND.into()])).unwrap();
    marks
}

/// Entries and packets of a router.
fn said(marks: &Marks, router: [u8; 4]) -> Option<(u64, u64)> {
    let said = marks.options().unwrap().routers.get(&router.into()).copied();
    said.map(|said| (said.entries, said.packets))
}

/// A datagram for the server.
fn with(options: &[u8]) -> Vec<u8> {
    eth().ipv4().to4(SERVER).options(options).udp(9, 80).data(b"hello").bytes()
}

#[test]
fn a_server_that_refuses_counts_what_routers_that_it_knows_say() {
    let mut marks = server();
    let hooks = marks.hooks(false).unwrap();
    let give = |options: &[u8]| drop(hooks.give(false, &with(options)).unwrap());
    say(&mut marks, &CALM);
    give(&option(&[entry(ROUTER, 8191, 1)]));
    assert_eq!(marks.options().unwrap(), OptionCounts::default(), "it refuses nobody");
    say(&mut marks, &OVERLOADED);
    (0..100).for_each(|_| give(&option(&[entry(ROUTER, 8191, 1)])));
    assert_eq!(said(&marks, ROUTER), Some((100, 800)));
    // Two options, one with two entries; of others, and behind NOPs; as many as have room.
    give(&[option(&[entry(ROUTER, 8191, 1)]), option(&[entry(SECOND, 65535, 3)])].concat());
    give(&option(&[entry(SECOND, 65535, 3), entry(ROUTER, 8191, 1)]));
    give(&[&[148, 4, 0, 0, 1, 1, 1, 1][..], &option(&[entry(SECOND, 65535, 3)])].concat());
    give(&option(&vec![entry(SECOND, 65535, 3); 4]));
    assert_eq!(said(&marks, ROUTER), Some((102, 816)));
    assert_eq!(said(&marks, SECOND), Some((7, 7)));
    // It begins anew; one of before comes late.
    give(&option(&[entry(ROUTER, 8191, 2)]));
    give(&option(&[entry(ROUTER, 8191, 1)]));
    assert_eq!(said(&marks, ROUTER), Some((1, 8)));
    give(&option(&[entry(ROUTER, 0, 3)]));
    assert_eq!((said(&marks, ROUTER), marks.options().unwrap().unknown_routers), (Some((1, 8)), 0));
    give(&option(&[entry([203, 0, 113, 9], 8191, 2)]));
    assert_eq!(marks.options().unwrap().unknown_routers, 1);
    // Nothing of these is an entry.
    let known = entry(ROUTER, 8191, 2);
    for nothing in [
        [&[0, 0, 0, 0][..], &option(std::slice::from_ref(&known))].concat(),
        [&[158, 1, 0, 0][..], &known].concat(),
        [&[158, 16, 0, 0][..], &known].concat(),
        [&[158, 8, 0, 0][..], &known[..4]].concat(),
        [&[1, 158, 12, 0, 0][..], &known, &[0, 0, 0]].concat(),
        [&[159, 12, 0, 0][..], &known].concat(),
        [&[148, 16, 0, 0][..], &option(std::slice::from_ref(&known))].concat(),
    ] {
        give(&nothing);
    }
    assert_eq!((said(&marks, ROUTER), marks.options().unwrap().unknown_routers), (Some((1, 8)), 1));
}

#[test]
fn only_routers_that_are_known_count() {
    let mut marks = server();
    let hooks = marks.hooks(false).unwrap();
    say(&mut marks, &OVERLOADED);
    let options = option(&[entry(SECOND, 65535, 3), entry(ROUTER, 8191, 1)]);
    let give = || hooks.give(false, &with(&options)).unwrap();
    let counts = |marks: &Marks| (said(marks, ROUTER), said(marks, SECOND));
    give();
    assert_eq!(counts(&marks), (Some((1, 8)), Some((1, 1))));
    marks.know(Some(&[SECOND.into()])).unwrap();
    give();
    assert_eq!(counts(&marks), (None, Some((2, 2))), "what is known stays");
    assert_eq!(marks.options().unwrap().unknown_routers, 1);
    marks.know(Some(&[ROUTER.into()])).unwrap();
    assert_eq!(counts(&marks), (None, None));
    // A router lets them pass to whom they are for.
    marks.know(None).unwrap();
    say(&mut marks, &OVERLOADED);
    assert_eq!((give(), counts(&marks)), (with(&options), (None, None)));
}

/// From two routers to the server, of which nobody behind its hook sees anything.
#[test]
fn what_routers_add_a_server_reads_and_takes_out() {
    let mut routers = [adding(), adding()];
    let second = OptionConfig { address: SECOND.into(), one_in: 2 };
    routers[1].follow(&InBandConfig { option: Some(second), ..routers[0].bits().clone() });
    let out = routers.each_mut().map(|router| {
        say(router, &congested(&[HERE]));
        overload(router);
        router.hooks_to_servers().unwrap()
    });
    let mut server = server();
    say(&mut server, &OVERLOADED);
    let inward = server.hooks(false).unwrap();
    let sent = [ask(1, 0), ask(1, 0).data(b"GET / HTTP/1.1"), eth().ipv4().to4(SERVER).udp(9, 80)];
    for packet in sent.iter().cycle().take(PACKETS) {
        let mut frame = packet.bytes();
        out.iter().for_each(|router| frame = router.give(true, &frame).unwrap());
        let found = inward.give(false, &frame).unwrap();
        assert!(checksum::holds(&found[14..34]), "{found:02x?}");
        let (found, sent) = ((found[14], rest(&found)), packet.bytes());
        assert_eq!(found, (sent[14], rest(&sent)));
    }
    for (router, address) in routers.iter().zip([ROUTER, SECOND]) {
        let (entries, packets) = said(&server, address).unwrap();
        assert_eq!(entries, router.options().unwrap().added);
        assert!((1700..2300).contains(&packets), "{packets} of {PACKETS}");
    }
    // Also while it refuses nobody, and its daemon hangs; options of others stay.
    let then = MonotonicClock.now() - Nanos::from_secs(4);
    server.say(then, &CALM).unwrap();
    let ours = option(&[entry(ROUTER, 8191, 1)]);
    for (options, left) in [
        (ours.repeat(3), vec![]),
        ([&ours[..], &[148, 4, 0, 0]].concat(), vec![148, 4, 0, 0]),
        ([&[148, 4, 0, 0][..], &ours].concat(), [&[148, 4, 0, 0][..], &ours].concat()),
        (option(&vec![entry(ROUTER, 8191, 1); 2]), option(&vec![entry(ROUTER, 8191, 1); 2])),
    ] {
        assert_eq!(inward.give(false, &with(&options)).unwrap(), with(&left), "{options:?}");
    }
}

#[test]
fn other_bits_are_marks_once_they_are_said() {
    let mut marks = loaded();
    let hooks = marks.hooks(false).unwrap();
    marks.follow(&InBandConfig { router_bit: 4, server_bit: 5, mark: true, option: None });
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
        let bits = InBandConfig { router_bit: 1, server_bit: 2, mark: true, option: None };
        let marks = Marks::load_objects(&bits, mark_objects(compiler)).unwrap();
        marks.hooks(true).unwrap();
    }
}
