// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A router's measurement: of packets of a test, which say exactly what has to be counted, and of a real
//! server behind a real router, against what its client saw.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod support;

use std::net::IpAddr;
use std::process::Stdio;
use support::netns::{AttachMode, Net, inside, plan, says, sh, wait_for, within};
use support::packet::{FIN, Packet, RST, between};
use tidegate_bpf::testing::{plans, tcx_programs};
use tidegate_bpf::{Dataplane, Router, RouterHooks, RouterObjects, RouterTimes};
use tidegate_config::RouterConfig;
use tidegate_model::router::DestinationCounts;
use tidegate_policy::{Action, Durations};
use tidegate_units::{Clock, MonotonicClock, Nanos};

const V4: &str = "198.51.100.7";
const V6: &str = "2001:db8:7::7";
/// All addresses of the server of the test packets, port 80.
const WHERE: [&str; 2] = ["192.0.2.0/24:80", "[2001:db8::/48]:80"];
/// First sequence numbers of both sides: the server's wraps within its response.
const ISN_CLIENT: u32 = 7_000;
const ISN_SERVER: u32 = u32::MAX - 1000;
const REQUEST: usize = 100;

/// A router, and packets for it.
struct World {
    router: Router,
    hooks: RouterHooks,
}

/// A connection of a test: what both sides have said so far.
#[derive(Clone, Copy)]
struct Talk {
    client: IpAddr,
    port: u16,
    asked: u32,
    said: u32,
}

impl World {
    fn new(config: &RouterConfig) -> Self {
        let router = Router::load(config).unwrap();
        let hooks = router.hooks().unwrap();
        Self { router, hooks }
    }

    fn give(&self, talk: &Talk, egress: bool, packet: impl FnOnce(Packet) -> Packet) {
        let ports = if egress { (80, talk.port) } else { (talk.port, 80) };
        self.hooks.give(egress, &packet(between(talk.client, ports, egress)).bytes()).unwrap();
    }

    /// The SYN and its SYN-ACK.
    fn offer(&self, client: &str, port: u16) -> Talk {
        let (asked, said) = (ISN_CLIENT + 1, ISN_SERVER.wrapping_add(1));
        let talk = Talk { client: client.parse().unwrap(), port, asked, said };
        self.give(&talk, false, |packet| packet.syn().seq(ISN_CLIENT));
        self.give(&talk, true, |packet| packet.syn().seq(ISN_SERVER).ack(ISN_CLIENT + 1));
        talk
    }

    fn open(&self, client: &str, port: u16) -> Talk {
        let talk = self.offer(client, port);
        self.acks(&talk, 0);
        talk
    }

    /// The client acknowledges all that was said, and so much more.
    fn acks(&self, talk: &Talk, more: u32) {
        let ack = talk.said.wrapping_add(more);
        self.give(talk, false, |packet| packet.seq(talk.asked).ack(ack));
    }

    fn asks(&self, talk: &mut Talk) {
        let (seq, ack) = (talk.asked, talk.said);
        self.give(talk, false, |packet| packet.seq(seq).ack(ack).data(&[b'q'; REQUEST]));
        talk.asked = seq.wrapping_add(REQUEST as u32);
    }

    /// The server sends so many bytes, in segments.
    fn says(&self, talk: &mut Talk, mut bytes: usize) {
        while bytes > 0 {
            let segment = bytes.min(1400);
            let (seq, ack) = (talk.said, talk.asked);
            self.give(talk, true, |packet| packet.seq(seq).ack(ack).data(&vec![b'r'; segment]));
            talk.said = seq.wrapping_add(segment as u32);
            bytes -= segment;
        }
    }

    /// Both sides close, the server first.
    fn closes(&self, talk: &Talk) {
        self.give(talk, true, |packet| packet.seq(talk.said).ack(talk.asked).flags(FIN));
        self.acks(talk, 1);
    }

    fn sweep(&mut self) {
        (0..32).for_each(|_| assert!(self.router.sweep().is_ok()));
    }

    fn followed(&mut self) -> u64 {
        self.sweep();
        self.router.connections()
    }

    /// Counts of the only destination.
    fn counts(&self) -> DestinationCounts {
        let all = self.router.destinations().unwrap();
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].2
    }

    fn times(&self) -> RouterTimes {
        self.router.times(0).unwrap()
    }
}

/// Exchanges by class and bucket.
fn took(times: &RouterTimes) -> Vec<(usize, usize, u32)> {
    let classes = times.durations.iter().enumerate();
    let all = classes.flat_map(|(class, buckets)| {
        buckets.iter().enumerate().map(move |(bucket, count)| (class, bucket, *count))
    });
    all.filter(|(.., count)| *count > 0).collect()
}

/// The second of a connection, as the program tells them apart.
fn second() -> u64 {
    MonotonicClock.now().0 >> 30
}

/// The first segment of an exchange goes to user space where that is wanted, and nothing else.
#[test]
fn how_an_exchange_begins_is_told_where_it_is_wanted() {
    for client in [V4, V6] {
        let world = World::new(&plans::router(&WHERE));
        let mut talk = world.open(client, 40_000);
        let told = || world.router.requests(10).unwrap();
        let texts = || -> Vec<(usize, Vec<u8>)> {
            told().into_iter().map(|one| (one.place, one.payload)).collect()
        };
        let answered = |talk: &mut Talk| {
            world.says(talk, 1000);
            world.acks(talk, 0);
        };
        world.asks(&mut talk);
        answered(&mut talk);
        assert_eq!(texts(), [], "{client}: nobody wants it");
        world.router.look_at_requests(0, 1).unwrap();
        let mut talk = world.open(client, 40_001);
        world.asks(&mut talk);
        // It goes on: that is no other exchange.
        world.asks(&mut talk);
        answered(&mut talk);
        assert_eq!(texts(), [(0, vec![b'q'; REQUEST])], "{client}");
        let mut talk = world.open(client, 40_002);
        let (seq, ack) = (talk.asked, talk.said);
        world.give(&talk, false, |packet| packet.seq(seq).ack(ack).data(&[b'z'; 1400]));
        talk.asked = seq + 1400;
        answered(&mut talk);
        assert_eq!(texts(), [(0, vec![b'z'; 512])], "{client}: no more than its begin");
        // One connection in a hundred: of as many at least one, and not all.
        world.router.look_at_requests(0, 100).unwrap();
        let mut found = 0;
        for port in 20_000..22_000 {
            let mut talk = world.open(client, port);
            world.asks(&mut talk);
            answered(&mut talk);
            world.closes(&talk);
            found += told().len();
        }
        assert!((1..100).contains(&found), "{client}: {found} of 2000");
        world.router.look_at_requests(0, 0).unwrap();
        let mut talk = world.open(client, 40_003);
        world.asks(&mut talk);
        assert_eq!(texts(), [], "{client}: nobody wants it any more");
    }
}

/// One client that asks again and again on its connection has the weight of one that waits.
#[test]
fn of_a_connection_it_is_told_once_a_second() {
    let world = World::new(&plans::router(&WHERE));
    world.router.look_at_requests(0, 1).unwrap();
    let [mut busy, mut other] = [40_000, 40_001].map(|port| world.open(V4, port));
    let told = || -> Vec<u64> {
        world.router.requests(100).unwrap().into_iter().map(|one| one.connection).collect()
    };
    let asks = |talk: &mut Talk, often: usize| {
        let from = second();
        for _ in 0..often {
            world.asks(talk);
            world.says(talk, 1000);
            world.acks(talk, 0);
        }
        (told(), (second() - from) as usize)
    };
    let (first, passed) = asks(&mut busy, 50);
    assert!((1..=1 + passed).contains(&first.len()), "{first:?} in {passed} s");
    let (of_other, _) = asks(&mut other, 1);
    assert!(of_other.len() == 1 && of_other[0] != first[0], "{of_other:?}");
    let then = second();
    wait_for("the next second", || second() > then);
    let (next, passed) = asks(&mut busy, 50);
    assert!((1..=1 + passed).contains(&next.len()), "{next:?} in {passed} s");
    assert!(next.iter().chain(&first).all(|one| *one == first[0]), "the same connection");
}

#[test]
fn an_exchange_has_the_class_and_the_bucket_that_user_space_knows() {
    let clock = MonotonicClock;
    for client in [V4, V6] {
        let mut world = World::new(&plans::router(&WHERE));
        let mut talk = world.open(client, 40_000);
        let bytes = 3000;
        let before = clock.now();
        world.asks(&mut talk);
        let begun = clock.now();
        world.says(&mut talk, bytes);
        // So that it cannot be taken for nothing: the first bucket ends at 320 us.
        wait_for("a millisecond", || clock.now().since(begun) >= Nanos::from_millis(1));
        let said = clock.now();
        world.acks(&talk, 0);
        let acked = clock.now();
        assert_eq!(world.counts().in_flight(), 1, "as long as the server may say more");
        world.closes(&talk);
        let counts = world.counts();
        let wanted = DestinationCounts {
            admitted: 1,
            begun: 1,
            completed: 1,
            sent_bytes: bytes as u64,
            delivered_bytes: bytes as u64,
            ..DestinationCounts::default()
        };
        assert_eq!(DestinationCounts { syns: 0, ..counts }, wanted, "{client}");
        // The first SYN came before anything was known there.
        assert_eq!((counts.syns, world.router.losses().unwrap().unknown), (0, 1));
        let (least, most) = (said.since(begun), acked.since(before));
        let found = took(&world.times());
        let [(class, bucket, 1)] = found[..] else { panic!("{client}: {found:?}") };
        assert_eq!(class, Durations::class_of(bytes as u64));
        let range = Durations::bucket_of(least)..=Durations::bucket_of(most);
        assert!(range.contains(&bucket), "{client}: {bucket} is not within {range:?}");
        assert_eq!(world.times().rates.iter().sum::<u32>(), 1, "no sweep has seen it");
        assert_eq!(world.followed(), 0, "both sides have closed");
    }
}

#[test]
fn exchanges_of_one_connection_end_where_the_next_begins_or_after_a_second() {
    let mut world = World::new(&plans::router(&WHERE));
    let mut talk = world.open(V4, 40_000);
    for bytes in [200, 600, 70_000] {
        world.asks(&mut talk);
        world.says(&mut talk, bytes);
        world.acks(&talk, 0);
    }
    let counts = world.counts();
    assert_eq!((counts.begun, counts.completed, counts.in_flight()), (3, 2, 1));
    wait_for("the response is over", || {
        world.sweep();
        world.counts().completed == 3
    });
    let classes: Vec<usize> = took(&world.times()).into_iter().map(|(class, ..)| class).collect();
    assert_eq!(classes, [200, 600, 70_000].map(Durations::class_of));
    assert_eq!(world.followed(), 1, "the connection is still there");
    let rates: u32 = world.times().rates.iter().sum();
    assert!(rates >= 1, "the rate of a connection that got bytes is noted");
    world.asks(&mut talk);
    world.give(&talk, false, |packet| packet.seq(talk.asked).flags(RST));
    let counts = world.counts();
    assert_eq!((counts.begun, counts.given_up, counts.in_flight()), (4, 1, 0));
    assert_eq!(world.followed(), 0);
}

#[test]
fn a_response_is_complete_once_all_of_it_is_acknowledged_also_with_its_fin() {
    let world = World::new(&plans::router(&WHERE));
    let mut talk = world.open(V4, 40_000);
    world.asks(&mut talk);
    let before = talk;
    world.says(&mut talk, 2800);
    // The client asks again before it has seen anything, and when it has seen a half.
    for seen in [0, 1400] {
        let mut early = Talk { said: before.said.wrapping_add(seen), ..talk };
        world.asks(&mut early);
        talk.asked = early.asked;
    }
    let counts = world.counts();
    assert_eq!((counts.begun, counts.delivered_bytes), (1, 1400), "it is the same exchange");
    world.closes(&talk);
    let counts = world.counts();
    assert_eq!((counts.completed, counts.given_up, counts.delivered_bytes), (1, 0, 2800));
    assert_eq!(took(&world.times())[0].0, Durations::class_of(2800));
}

/// A page whose head comes at once, and the rest after a second. An alert of TLS is no part of it.
#[test]
fn a_response_that_goes_on_after_a_pause_is_one_exchange() {
    let mut world = World::new(&plans::router(&WHERE));
    let mut talk = world.open(V4, 40_000);
    world.asks(&mut talk);
    world.says(&mut talk, 600);
    world.acks(&talk, 0);
    wait_for("a pause is taken for the end", || {
        world.sweep();
        world.counts().completed == 1
    });
    assert_eq!(took(&world.times()).len(), 1);
    world.says(&mut talk, 31);
    world.acks(&talk, 0);
    assert_eq!((world.counts().resumed, world.counts().in_flight()), (0, 0), "an alert");
    world.says(&mut talk, 3000);
    assert_eq!((world.counts().resumed, world.counts().in_flight()), (1, 1));
    assert_eq!(took(&world.times()), [], "it is subtracted");
    world.acks(&talk, 0);
    world.closes(&talk);
    let counts = world.counts();
    assert_eq!((counts.begun, counts.completed, counts.responses()), (1, 2, 1));
    let found = took(&world.times());
    let [(class, bucket, 1)] = found[..] else { panic!("{found:?}") };
    assert_eq!(class, Durations::class_of(3600));
    assert!(bucket >= Durations::bucket_of(Nanos::SECOND), "{bucket}: from its request on");
}

#[test]
fn after_a_pause_another_request_is_another_exchange() {
    let mut world = World::new(&plans::router(&WHERE));
    let mut talk = world.open(V4, 40_000);
    world.asks(&mut talk);
    world.says(&mut talk, 600);
    world.acks(&talk, 0);
    wait_for("the first is over", || {
        world.sweep();
        world.counts().completed == 1
    });
    world.asks(&mut talk);
    world.says(&mut talk, 600);
    world.closes(&talk);
    let counts = world.counts();
    assert_eq!((counts.begun, counts.completed, counts.resumed), (2, 2, 0));
}

/// Somebody who knows the tuple and not the sequence numbers.
#[test]
fn what_does_not_fit_a_connection_changes_nothing() {
    let mut world = World::new(&plans::router(&WHERE));
    let mut talk = world.open(V4, 40_000);
    world.asks(&mut talk);
    // The nearest that do not fit are 1 MiB ahead and a byte more behind.
    for far in [1 << 30, 1 << 31, 3 << 30, 1 << 20, u32::MAX - (1 << 20)] {
        let seq = talk.asked.wrapping_add(far);
        world.give(&talk, false, |packet| packet.seq(seq).flags(RST));
        world.give(&talk, false, |packet| packet.seq(seq).ack(talk.said).data(b"blind"));
    }
    world.says(&mut talk, 600);
    world.acks(&talk, 0);
    world.asks(&mut talk);
    let counts = world.counts();
    assert_eq!((counts.begun, counts.completed, counts.given_up), (2, 1, 0));
    assert_eq!(world.followed(), 1);
    // Where a part of what the client sent did not come by here, its server tells how far it is.
    world.says(&mut talk, 600);
    world.acks(&talk, 0);
    talk.asked = talk.asked.wrapping_add(5 << 20);
    world.asks(&mut talk);
    assert_eq!(world.counts().begun, 2, "not yet");
    world.give(&talk, true, |packet| packet.seq(talk.said).ack(talk.asked));
    world.asks(&mut talk);
    assert_eq!(world.counts().begun, 3);
}

#[test]
fn a_round_of_sweeps_counts_each_exchange_that_takes_too_long_once() {
    let mut world = World::new(&plans::router(&WHERE));
    let mut talks = [1, 2, 3].map(|port| world.open(V4, 40_000 + port));
    talks.iter_mut().for_each(|talk| world.asks(talk));
    let begun = MonotonicClock.now();
    let after = Nanos::from_millis(2);
    wait_for("it takes too long", || MonotonicClock.now().since(begun) > after);
    world.sweep();
    assert_eq!(world.router.overdue(0), Some(0), "nobody asks");
    world.router.set_overdue_after(0, after).unwrap();
    world.sweep();
    assert_eq!(world.router.overdue(0), Some(3));
    world.says(&mut talks[0], 600);
    world.sweep();
    assert_eq!(world.router.overdue(0), Some(6), "its client has not got it");
    world.acks(&talks[0], 0);
    world.sweep();
    assert_eq!(world.router.overdue(0), Some(8));
    world.router.set_overdue_after(0, Nanos::from_secs(60)).unwrap();
    world.sweep();
    assert_eq!(world.router.overdue(0), Some(8));
}

/// The end of the first was not seen: its client vanished, or a NAT gave the port to another.
#[test]
fn another_connection_of_the_same_ports_begins_anew() {
    for isn in [ISN_SERVER.wrapping_add(1 << 31), ISN_SERVER.wrapping_sub(1 << 30), ISN_SERVER + 9]
    {
        let mut world = World::new(&plans::router(&WHERE));
        let mut first = world.open(V4, 40_000);
        world.asks(&mut first);
        world.says(&mut first, 600);
        let mut talk = Talk { said: isn.wrapping_add(1), ..world.open(V4, 40_001) };
        talk.port = 40_000;
        world.give(&talk, false, |packet| packet.syn().seq(ISN_CLIENT));
        world.give(&talk, true, |packet| packet.syn().seq(isn).ack(ISN_CLIENT + 1));
        // It comes once more, which ends nothing.
        world.acks(&talk, 0);
        world.give(&talk, true, |packet| packet.syn().seq(isn).ack(ISN_CLIENT + 1));
        world.asks(&mut talk);
        world.says(&mut talk, 3000);
        world.closes(&talk);
        let counts = world.counts();
        assert_eq!((counts.admitted, counts.begun, counts.given_up), (3, 2, 1), "{isn}");
        assert_eq!((counts.completed, counts.delivered_bytes), (1, 3000), "{isn}");
        assert_eq!((counts.sent_bytes, counts.again_bytes), (3600, 0), "{isn}");
        assert_eq!(world.followed(), 1, "the one of the other port");
    }
}

#[test]
fn what_is_sent_again_and_what_was_never_sent_is_no_progress() {
    let world = World::new(&plans::router(&WHERE));
    let mut talk = world.open(V4, 40_000);
    world.asks(&mut talk);
    let first = talk;
    world.says(&mut talk, 2800);
    // the second segment, and once more with new bytes behind it
    world.says(&mut Talk { said: first.said.wrapping_add(1400), ..talk }, 1400);
    world.says(&mut Talk { said: first.said.wrapping_add(2100), ..talk }, 1400);
    talk.said = first.said.wrapping_add(3500);
    let counts = world.counts();
    assert_eq!((counts.sent_bytes, counts.again_bytes), (3500, 1400 + 700));
    world.acks(&talk, 1);
    world.acks(&talk, 100_000);
    assert_eq!(world.counts().delivered_bytes, 0, "nobody has sent that");
    world.acks(&first, 500);
    world.acks(&first, 500);
    world.acks(&first, 200);
    assert_eq!(world.counts().delivered_bytes, 500);
    world.acks(&talk, 0);
    assert_eq!(world.counts().delivered_bytes, 3500);
    // A request that comes again is not another one.
    world.asks(&mut Talk { asked: first.asked - REQUEST as u32, ..talk });
    assert_eq!((world.counts().begun, world.counts().completed), (1, 0));
}

#[test]
fn spoofed_syns_make_neither_connections_nor_destinations() {
    let mut world = World::new(&plans::router(&WHERE));
    for port in 1..=2000 {
        let talk = world.offer(V4, port);
        world.acks(&talk, 1);
        world.give(&talk, false, |packet| packet.seq(talk.asked).ack(12_345).data(b"blind"));
    }
    assert_eq!((world.followed(), world.router.known().unwrap()), (0, 0));
    assert_eq!(world.router.losses().unwrap().unknown, 2000);
    // Once a destination is known, they are counted, and each copy as what it is.
    world.open(V4, 40_000);
    for _ in 0..3 {
        world.offer(V4, 50_000);
    }
    let counts = world.counts();
    assert_eq!((counts.syns, counts.syns_repeated, counts.admitted), (1, 2, 1));
    assert_eq!(world.followed(), 1);
}

#[test]
fn what_lies_outside_the_prefixes_is_not_measured() {
    for elsewhere in [["192.0.2.0/24:81"], ["192.0.3.0/24:*"], ["[2001:db8::/64]:80"]] {
        let mut world = World::new(&plans::router(&elsewhere));
        world.open(V4, 40_000);
        assert_eq!((world.followed(), world.router.known().unwrap()), (0, 0), "{elsewhere:?}");
        assert_eq!(world.router.losses().unwrap(), tidegate_bpf::RouterLosses::default());
        world.router.follow(&plans::router(&["192.0.2.0/24:*"])).unwrap();
        world.open(V4, 40_000);
        assert_eq!((world.followed(), world.router.known().unwrap()), (1, 1));
    }
}

#[test]
fn a_full_table_follows_no_more_and_counts_what_it_misses() {
    let mut world = World::new(&plans::router(&WHERE));
    let offered = 2 * u64::from(world.router.config().connections);
    for port in 1..=offered {
        world.open(V4, port as u16);
    }
    let (admitted, lost) = (world.counts().admitted, world.router.losses().unwrap());
    assert_eq!(admitted + lost.handshakes, offered, "{lost:?}");
    let followed = world.followed();
    assert_eq!(followed + lost.connections, admitted, "admitted is who completed a handshake");
    let room = u64::from(world.router.config().connections);
    assert!((room * 8 / 10..=room).contains(&followed), "{followed} of {room}");
}

/// A pool that is used once in a while is followed for as long as there are other places.
#[test]
fn an_idle_connection_gives_its_place_only_where_none_is_free() {
    // One set.
    let config = RouterConfig { connections: 4, ..plans::router(&WHERE) };
    let router = Router::load_for(&config, RouterObjects::default(), Nanos(1)).unwrap();
    let mut world = World { hooks: router.hooks().unwrap(), router };
    let mut idle = world.open(V4, 40_000);
    wait_for("idle", || world.followed() == 0);
    for port in 1..=3 {
        world.open(V4, port);
    }
    world.asks(&mut idle);
    assert_eq!(world.counts().begun, 1, "three other places were free");
    // Another one needs a place: it gets that of one that is idle again.
    wait_for("idle again", || world.followed() == 0);
    let mut fifth = world.open(V4, 50_000);
    world.asks(&mut fifth);
    assert_eq!(world.counts().begun, 2);
    assert_eq!(world.router.losses().unwrap().connections, 0);
}

#[test]
fn a_full_table_of_destinations_keeps_those_that_it_has() {
    let mut world = World::new(&plans::router(&["192.0.2.0/24:*"]));
    let client = V4.parse().unwrap();
    for server in 1..=20 {
        let give = |egress, packet: Packet| world.hooks.give(egress, &packet.bytes()).unwrap();
        give(true, between(client, (server, 4000), true).syn().seq(1).ack(2));
        give(false, between(client, (4000, server), false).seq(2).ack(2));
    }
    let known = world.router.destinations().unwrap();
    assert_eq!((known.len(), world.router.losses().unwrap().destinations), (16, 4));
    let ports: Vec<u16> = known.iter().map(|(_, address, _)| address.port()).collect();
    assert_eq!(ports, (1..=16).collect::<Vec<_>>());
    assert_eq!(world.followed(), 16);
}

#[test]
fn one_connection_in_four_is_followed_and_all_syns_are_counted() {
    let mut world = World::new(&RouterConfig { sample: 4, ..plans::router(&WHERE) });
    let offered = 1200;
    for port in 1..=offered {
        world.open(V4, port);
    }
    let (counts, followed) = (world.counts(), world.followed());
    let lost = world.router.losses().unwrap();
    assert_eq!(counts.admitted, followed + lost.connections, "what is sampled has a place or not");
    // Binomial: 300 with a deviation of 15; eight of them are chance once in 10^15 runs.
    assert!((180..=420).contains(&counts.admitted), "{} of {offered}", counts.admitted);
    let syns = counts.syns + lost.unknown;
    assert_eq!(syns, u64::from(offered));
}

/// A page of 40,000 bytes after 30 ms, over a connection that stays.
const SERVER: &str = r"
import socket, time
s = socket.create_server(('10.78.0.1', 80))
while True:
    c, _ = s.accept()
    while c.recv(4096):
        time.sleep(0.03)
        c.sendall(b'x' * 40000)
    c.close()
";

/// Five requests on one connection; prints how long each took, in microseconds.
const CLIENT: &str = r"
import socket, time
c = socket.create_connection(('10.78.0.1', 80), timeout=5)
for n in range(5):
    began = time.monotonic()
    c.sendall(b'q' * 100)
    left = 40000
    while left: left -= len(c.recv(left))
    print(int((time.monotonic() - began) * 1e6))
c.close()
";

/// A client, a router, and a server behind it:
///
/// ```text
///  near.client ── c0, s0 ── near.server (the router) ── r0, b0 ── far.server
/// ```
fn routed() -> (Net, Net) {
    let (near, far) = (Net::new(), Net::new());
    let name = |path: &std::path::Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let [client, router, behind] = [&near.client, &near.server, &far.server].map(|path| name(path));
    sh(&format!(
        "ip -n {router} link add r0 type veth peer name b0 netns {behind}
         ip -n {router} addr add 10.78.0.254/24 dev r0; ip -n {router} link set r0 up
         ip -n {behind} addr add 10.78.0.1/24 dev b0; ip -n {behind} link set b0 up
         ip -n {behind} route add 10.77.0.2 via 10.78.0.254
         ip -n {client} route add 10.78.0.0/24 via 10.77.0.1"
    ));
    near.server_sh("sysctl -qw net.ipv4.ip_forward=1");
    (near, far)
}

#[test]
fn a_real_server_behind_a_router_is_measured_as_its_client_sees_it() {
    let (near, far) = routed();
    let mut server =
        inside(&far.server, &["python3", "-c", SERVER]).stdin(Stdio::null()).spawn().unwrap();
    wait_for("the server listens", || says(&far.server, &["ss", "-tlnH"]).contains("10.78.0.1:80"));
    let interface = near.interface(AttachMode::Tcx);
    let plane = Dataplane::start(&plan(vec![interface.clone()], Action::Drop)).unwrap();
    let mut router = Router::load(&plans::router(&["10.78.0.0/24:80"])).unwrap();
    assert_eq!(router.attach(std::slice::from_ref(&interface), Some(&plane)), [""; 0]);
    assert!(router.is_attached());
    let names = || tcx_programs(&interface).unwrap();
    assert_eq!(names(), [["tg_ingress", "tg_router_in"], ["tg_egress", "tg_router_out"]]);
    let client = says(&near.client, &["timeout", "20", "python3", "-c", CLIENT]);
    let client: Vec<Nanos> =
        client.lines().map(|us| Nanos::from_micros(us.parse().unwrap())).collect();
    assert_eq!(client.len(), 5);
    let counts = || {
        let all = router.destinations().unwrap();
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!(all[0].1.to_string(), "10.78.0.1:80");
        all[0].2
    };
    wait_for("the last exchange ends with its connection", || counts().completed == 5);
    let counts = counts();
    assert_eq!((counts.admitted, counts.begun, counts.given_up), (1, 5, 0));
    assert_eq!((counts.sent_bytes, counts.delivered_bytes), (200_000, 200_000));
    let found = took(&router.times(0).unwrap());
    // A router sees no more than its client, and at least the pause of the server.
    let least = Durations::bucket_of(Nanos::from_millis(30));
    assert!(found.iter().all(|(class, ..)| *class == Durations::class_of(40_000)), "{found:?}");
    let each = |(_, bucket, count): &(usize, usize, u32)| vec![*bucket; *count as usize];
    let mut most: Vec<usize> = client.iter().map(|took| Durations::bucket_of(*took)).collect();
    most.sort_unstable();
    for (bucket, most) in found.iter().flat_map(each).zip(most) {
        assert!((least..=most).contains(&bucket), "{bucket} is not in {least} to {most}");
    }
    router.sweep().unwrap();
    drop(router);
    assert_eq!(names(), [["tg_ingress"], ["tg_egress"]], "nothing is left behind");
    let _ = server.kill();
    let _ = server.wait();
}

#[test]
fn links_come_back_with_their_interface_and_go_where_it_is_not_wanted() {
    let net = Net::new();
    let interface = net.interface(AttachMode::Tcx);
    let mut router = Router::load(&plans::router(&WHERE)).unwrap();
    let wanted = std::slice::from_ref(&interface);
    assert_eq!(router.attach(wanted, None), [""; 0]);
    net.server_sh("ip link del s0");
    assert!(!router.is_attached());
    let problems = router.attach(wanted, None);
    assert!(problems.len() == 1 && problems[0].contains("s0"), "{problems:?}");
    net.plug();
    assert_eq!(router.attach(wanted, None), [""; 0]);
    let names = || tcx_programs(&interface).unwrap();
    assert_eq!(names(), [["tg_router_in"], ["tg_router_out"]]);
    assert_eq!(router.attach(&[], None), [""; 0]);
    assert_eq!(names(), [[""; 0], [""; 0]]);
}

/// An interface that comes later, or that a reload makes another one, needs no privilege to load.
#[test]
fn programs_for_interfaces_of_every_kind_are_there_from_the_start() {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    let net = Net::new();
    net.server_sh("ip tuntap add t0 mode tun");
    let [lo, mut later, plain] =
        ["lo", "s0", "t0"].map(|name| AttachMode::Tcx.interface(name, None));
    later.config.trust_dscp = true;
    within(&net.server, || {
        let mut router = Router::load(&plans::router(&WHERE)).unwrap();
        assert_eq!(router.attach(std::slice::from_ref(&lo), None), [""; 0]);
        let none = CapabilitySet::empty();
        let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
        set_capabilities(None, none).unwrap();
        assert_eq!(router.attach(&[lo, later, plain], None), [""; 0]);
    });
}
