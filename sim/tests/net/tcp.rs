// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TCP by traces that were computed by hand. A round trip is 100 ms.

use crate::world::{Line, MS, PORT, Seen, World};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use tidegate_sim::net::{
    Connect, Failure, Kind, ListenerSpec, Notice, Packet, Side, TcpSpec, Verdict,
};
use tidegate_units::Nanos;

const MSS: u64 = 1460;

/// Acknowledges each segment.
fn prompt(initial_window: u32) -> TcpSpec {
    TcpSpec { initial_window, delayed_ack: Nanos::ZERO, ..TcpSpec::rfc() }
}

/// One connection that asks for so many bytes.
fn fetch(mut line: Line, world: &mut World, tcp: TcpSpec, bytes: u64) -> Line {
    line.listen(10, tcp);
    let id = line.connect(tcp);
    world.asks.insert(id, bytes);
    line.net.run(world, Nanos::from_secs(1000));
    line.net.audit().expect("sound");
    line
}

/// How many segments pass in each round trip.
fn rounds(data: &[Seen]) -> Vec<usize> {
    let mut rounds = Vec::new();
    let mut begins = None;
    for seen in data {
        if begins.is_none_or(|at: u64| seen.ms() >= at + 90) {
            begins = Some(seen.ms());
            rounds.push(0);
        }
        *rounds.last_mut().expect("one") += 1;
    }
    rounds
}

#[test]
fn slow_start_doubles_in_each_round_trip() {
    for (initial, expected) in [
        (2, vec![2, 4, 8, 16, 32, 38]),
        (10, vec![10, 20, 40, 30]),
        (1, vec![1, 2, 4, 8, 16, 32, 37]),
    ] {
        let mut world = World::new();
        fetch(Line::fast(), &mut world, prompt(initial), 100 * MSS);
        let data = world.data(Side::Server);
        assert_eq!(rounds(&data), expected, "initial window {initial}");
        // SYN there and back, request there: the response passes the router after 50 ms more.
        assert_eq!(data[0].ms(), 200);
        let last = data[data.len() - 1].packet;
        assert_eq!((last.payload as u64, last.end()), (MSS, 100 * MSS));
    }
}

/// Every second segment is acknowledged: 2, 3, then half as many more in each round trip. What is
/// left over waits for its delayed acknowledgement.
#[test]
fn delayed_acknowledgements_slow_it_down() {
    let mut world = World::new();
    fetch(Line::fast(), &mut world, TcpSpec { initial_window: 2, ..TcpSpec::rfc() }, 40 * MSS);
    let rounds = rounds(&world.data(Side::Server));
    assert_eq!(rounds[..2], [2, 3]);
    let acks = world.of(Kind::Segment, Side::Client).len();
    assert!((22..32).contains(&acks), "{acks} acknowledgements of 40 segments");
}

#[test]
fn a_lone_segment_is_acknowledged_when_the_timer_fires() {
    for (bytes, at) in [(MSS, 400), (2 * MSS, 200)] {
        let mut world = World::new();
        fetch(Line::fast(), &mut world, TcpSpec::rfc(), bytes);
        // The response passes the router at 200 ms, and is there at once.
        let acks: Vec<u64> = world.of(Kind::Segment, Side::Client).iter().map(Seen::ms).collect();
        assert_eq!(acks, [100, 100, at], "handshake, request, then the response of {bytes}");
    }
}

/// Judges payload of the server by how often its position was seen.
fn losing(lost: impl Fn(u64, u32) -> bool + 'static) -> World {
    let mut times = std::collections::BTreeMap::new();
    World::judged(move |packet: &Packet| {
        if packet.payload == 0 || packet.sender == Side::Client {
            return Verdict::Pass;
        }
        let time = times.entry(packet.seq).or_insert(0);
        *time += 1;
        if lost(packet.seq / MSS, *time) { Verdict::Drop } else { Verdict::Pass }
    })
}

/// Segment 10 of a flight of 16 (6 to 21) is lost. Of the two segments that each acknowledgement of
/// 6 to 9 lets go, none is early; 11 and 12 allow one new segment each (limited transmit), and the
/// third duplicate sends 10 again, before anything else.
#[test]
fn the_third_duplicate_acknowledgement_sends_the_hole_again() {
    let mut world = losing(|segment, time| segment == 10 && time == 1);
    fetch(Line::fast(), &mut world, prompt(2), 60 * MSS);
    let order: Vec<u64> =
        world.data(Side::Server).iter().map(|seen| seen.packet.seq / MSS).collect();
    let acks = world.of(Kind::Segment, Side::Client);
    let duplicates = acks.iter().filter(|seen| seen.packet.ack == 10 * MSS).count();
    assert!(duplicates >= 4, "the first, and three at least: {duplicates}");
    let at = order.iter().rposition(|segment| *segment == 10).expect("sent again");
    // Flight 6 … 13; 14 … 21 answer the acknowledgements of 6 … 9; 22 and 23 are limited transmit.
    assert_eq!(order[..at], (0..24).collect::<Vec<u64>>());
    assert_eq!(order.iter().filter(|segment| **segment == 10).count(), 2);
    let sent: u64 = order.len() as u64;
    assert_eq!(sent, 61, "nothing else is sent again");
}

/// The window after the loss: 12 segments were outstanding (10 to 21), so the threshold is 6.
#[test]
fn recovery_halves_the_window_once() {
    let mut world = losing(|segment, time| (segment == 10 || segment == 12) && time == 1);
    let mut line = Line::fast();
    let tcp = prompt(2);
    line.listen(10, tcp);
    let id = line.connect(tcp);
    world.asks.insert(id, 600 * MSS);
    line.net.run(&mut world, MS(720));
    let facts = line.net.connection(id, Side::Server).expect("alive");
    assert_eq!(facts.threshold, 6 * MSS);
    assert_eq!(facts.sent_again, 2, "the partial acknowledgement sent the second hole again");
    line.net.run(&mut world, Nanos::from_secs(100));
    let order: Vec<u64> =
        world.data(Side::Server).iter().map(|seen| seen.packet.seq / MSS).collect();
    assert_eq!(order.len(), 602);
    assert!(world.times(|notice| matches!(notice, Notice::Message(_, Side::Client, 0))).len() == 1);
}

/// The handshake took 100 ms: 100 + 4 · 50 is below the least time-out of 1 s. The next ones double.
#[test]
fn time_outs_double_and_end() {
    let mut world = losing(|_, time| time <= 4);
    let tcp = prompt(2);
    fetch(Line::fast(), &mut world, tcp, MSS);
    let at: Vec<u64> = world.data(Side::Server).iter().map(Seen::ms).collect();
    assert_eq!(at, [200, 1200, 3200, 7200, 15_200]);

    let mut world = losing(|_, _| true);
    let tcp = TcpSpec { retries_max: 3, ..tcp };
    fetch(Line::fast(), &mut world, tcp, MSS);
    assert_eq!(world.data(Side::Server).len(), 4);
    let failed =
        |notice: &Notice| matches!(notice, Notice::Failed(_, Side::Server, Failure::TimedOut));
    assert_eq!(world.times(failed), [15_150]);
}

#[test]
fn a_time_out_begins_again_with_one_segment() {
    // 2, 4, then all of 6 … 13 is lost
    let mut world = losing(|segment, time| (6..14).contains(&segment) && time == 1);
    fetch(Line::fast(), &mut world, prompt(2), 40 * MSS);
    let data = world.data(Side::Server);
    assert_eq!(rounds(&data)[..6], [2, 4, 8, 1, 2, 4]);
    // The threshold is half of 8: from 4 on a little less than one segment more in each round trip.
    assert_eq!(rounds(&data)[6..9], [4, 5, 6]);
    assert_eq!(data[14].ms() - data[6].ms(), 1000);
}

/// Of 6 … 13 the first five are lost, 6 once more, and then the time-out sends 6, 7, 8, 9 and on. What
/// the receiver had already makes duplicate acknowledgements of 9, which was lost again. They say
/// nothing about new losses (RFC 6582, 3.2): 9 waits for the next time-out.
#[test]
fn duplicates_of_what_a_time_out_sent_again_are_no_loss() {
    let mut world = losing(|segment, time| match segment {
        6 | 9 => time <= 2,
        7 | 8 | 10 => time == 1,
        _ => false,
    });
    fetch(Line::fast(), &mut world, prompt(2), 40 * MSS);
    let of = |wanted: u64| -> Vec<u64> {
        let data = world.data(Side::Server);
        let found = data.iter().filter(|seen| seen.packet.seq / MSS == wanted);
        found.map(Seen::ms).collect()
    };
    let (first, ninth) = (of(6), of(9));
    assert_eq!((first.len(), ninth.len()), (3, 3), "{first:?} {ninth:?}");
    assert!(first[1] < first[0] + 200, "by the third duplicate: {first:?}");
    assert!(first[2] >= first[1] + 1000, "by the time-out: {first:?}");
    assert!(ninth[2] >= ninth[1] + 1000, "by the time-out: {ninth:?}");
    let acks = world.of(Kind::Segment, Side::Client);
    let duplicates = acks.iter().filter(|seen| seen.packet.ack == 9 * MSS).count();
    assert!(duplicates > 3, "{duplicates}");
}

#[test]
fn syns_are_sent_again_by_the_schedule_and_the_window_begins_with_one() {
    for (tcp, at) in [
        (TcpSpec::classic(), vec![0, 3000, 9000]),
        (TcpSpec::rfc(), vec![0, 1000, 3000]),
        (TcpSpec::today(), vec![0, 1020, 2040]),
    ] {
        let mut syns = 0;
        let mut world = World::judged(move |packet: &Packet| {
            syns += u32::from(packet.kind == Kind::Syn);
            if packet.kind == Kind::Syn && syns <= 2 { Verdict::Drop } else { Verdict::Pass }
        });
        let line = fetch(Line::fast(), &mut world, tcp, MSS);
        let seen = world.of(Kind::Syn, Side::Client);
        assert_eq!(seen.iter().map(Seen::ms).collect::<Vec<_>>(), at);
        let attempts: Vec<u8> = seen.iter().map(|seen| seen.packet.attempt).collect();
        assert_eq!(attempts, [0, 1, 2]);
        let connected = world.times(|notice| matches!(notice, Notice::Connected(_)));
        assert_eq!(connected, [at[2] + 100]);
        let id = *world.asks.keys().next().expect("one");
        let facts = line.net.connection(id, Side::Client).expect("it stays");
        assert!(facts.window <= 2 * MSS, "one segment, and what its acknowledgement added");
    }
}

#[test]
fn a_client_that_is_never_heard_gives_up_by_its_schedule() {
    let mut world = World::judged(|_| Verdict::Drop);
    let line = fetch(Line::fast(), &mut world, TcpSpec::classic(), MSS);
    assert_eq!(
        world.seen.iter().map(Seen::ms).collect::<Vec<_>>(),
        [0, 3000, 9000, 21_000, 45_000]
    );
    let refused = |n: &Notice| matches!(n, Notice::Refused(_, Failure::TimedOut));
    assert_eq!((world.times(refused), line.net.connections()), (vec![75_000], 0));
}

#[test]
fn a_lost_syn_ack_is_sent_again_and_a_half_open_connection_forgotten() {
    let mut world =
        World::judged(
            |packet: &Packet| {
                if packet.kind == Kind::SynAck { Verdict::Drop } else { Verdict::Pass }
            },
        );
    let mut line = Line::fast();
    let tcp = TcpSpec { syn_ack_retries: 2, ..TcpSpec::rfc() };
    let listener = line.listen(10, tcp);
    line.connect(tcp);
    line.net.run(&mut world, MS(900));
    let at: Vec<u64> = world.of(Kind::SynAck, Side::Server).iter().map(Seen::ms).collect();
    assert_eq!(at, [100]);
    line.net.run(&mut world, MS(6000));
    // After 1 and 2 s by the server's timer, and for each SYN of the client (1 and 3 s).
    let at: Vec<u64> = world.of(Kind::SynAck, Side::Server).iter().map(Seen::ms).collect();
    assert_eq!(at, [100, 1100, 1100, 3100, 3100]);
    line.net.run(&mut world, Nanos::from_secs(1000));
    let counts = line.net.listener(listener);
    assert_eq!(counts.begun, counts.forgotten);
    assert_eq!(line.net.connections(), 0);
}

/// Nobody accepts. Two connections wait; of the third both SYN and data are ignored until there
/// is room.
#[test]
fn a_full_accept_queue_ignores_syns() {
    let mut line = Line::fast();
    let mut world = World { accepts: false, ..World::new() };
    let listener = line.listen(2, TcpSpec::rfc());
    for _ in 0..2 {
        line.connect(TcpSpec::rfc());
    }
    line.net.run(&mut world, MS(500));
    assert_eq!(line.net.acceptable(listener), 2);
    line.connect(TcpSpec::rfc());
    line.net.run(&mut world, MS(1400)); // its first SYN is ignored
    assert_eq!(line.net.listener(listener).syns_ignored, 1);
    assert!(line.net.accept(listener).is_some());
    line.net.run(&mut world, MS(3000));
    let connected = world.times(|notice| matches!(notice, Notice::Connected(_)));
    assert_eq!(connected, [100, 100, 1600]);
    assert_eq!(line.net.listener(listener).established, 3);
}

/// Three handshakes at once for two places: the last ACK is ignored, the server asks again with its
/// SYN-ACK, and the request completes the handshake when there is room.
#[test]
fn the_end_of_a_handshake_is_ignored_while_the_queue_is_full() {
    let mut line = Line::fast();
    let mut world = World { accepts: false, ..World::new() };
    let listener = line.listen(2, TcpSpec::rfc());
    let ids: Vec<_> = (0..3).map(|_| line.connect(TcpSpec::rfc())).collect();
    world.asks.insert(ids[2], 100);
    line.net.run(&mut world, MS(600));
    let counts = line.net.listener(listener);
    assert_eq!((counts.established, counts.acks_ignored), (2, 2), "its ACK, its request");
    line.net.accept(listener);
    line.net.run(&mut world, MS(3000));
    assert_eq!(line.net.listener(listener).established, 3);
    let got = world.times(|notice| matches!(notice, Notice::Message(_, Side::Client, _)));
    assert_eq!(got.len(), 1);
}

#[test]
fn both_sides_close_and_the_record_is_gone() {
    let mut world = World { closes: true, ..World::new() };
    let line = fetch(Line::fast(), &mut world, TcpSpec::rfc(), 3 * MSS);
    assert_eq!(line.net.connections(), 0);
    let fins = |side| world.of(Kind::Segment, side).iter().filter(|s| s.packet.fin).count();
    assert_eq!((fins(Side::Server), fins(Side::Client)), (1, 1));
    let order: Vec<Notice> = world.notices.iter().map(|(_, notice)| *notice).collect();
    let id = *world.asks.keys().next().expect("one");
    let end = &order[order.len() - 4..];
    let expected = [
        Notice::Message(id, Side::Client, 0),
        Notice::Ended(id, Side::Client),
        Notice::Ended(id, Side::Server),
        Notice::Closed(id),
    ];
    assert_eq!(end, expected);
}

/// Whichever packet of a whole connection is lost, it ends, and what was asked for is there once.
#[test]
fn any_one_loss_is_repaired() {
    let bytes = 8 * MSS + 17;
    for lost in 0..40 {
        let count = Rc::new(Cell::new(0));
        let seen = Rc::clone(&count);
        let mut world = World::judged(move |_| {
            seen.set(seen.get() + 1);
            if seen.get() == lost + 1 { Verdict::Drop } else { Verdict::Pass }
        });
        world.closes = true;
        let line = fetch(Line::fast(), &mut world, TcpSpec::rfc(), bytes);
        let done = world.times(|notice| matches!(notice, Notice::Message(_, Side::Client, 0)));
        let closed = world.times(|notice| matches!(notice, Notice::Closed(_)));
        assert_eq!((done.len(), closed.len(), line.net.connections()), (1, 1, 0), "packet {lost}");
        if lost >= count.get() {
            return; // there was no such packet
        }
    }
    panic!("more packets than expected");
}

#[test]
fn a_port_where_nobody_listens_and_a_hook_answer_with_a_reset() {
    let refused = |n: &Notice| matches!(n, Notice::Refused(_, Failure::Reset));
    let mut world = World::new();
    let mut line = Line::fast();
    line.connect(TcpSpec::rfc());
    line.net.run(&mut world, MS(5000));
    assert_eq!(world.times(refused), [100]);

    let mut world = World::judged(|_| Verdict::Reset);
    let mut line = Line::fast();
    line.listen(10, TcpSpec::rfc());
    line.connect(TcpSpec::rfc());
    line.net.run(&mut world, MS(5000));
    assert_eq!(world.times(refused), [0], "the router is next to the client");
    assert_eq!((line.net.counts().refused, line.net.connections()), (1, 0));

    // Windows sends its SYN again half a second after a RST.
    let schedule = *tidegate_workload::Schedule::named("windows").expect("a schedule");
    let mut world = World::judged(|_| Verdict::Reset);
    line.connect(TcpSpec { schedule, ..TcpSpec::rfc() });
    let begun = line.net.now().0 / 1_000_000;
    line.net.run(&mut world, MS(20_000));
    let syns: Vec<u64> = world.seen.iter().map(|seen| seen.ms() - begun).collect();
    assert_eq!(syns, [0, 500, 1000, 1500, 2000]);
    assert_eq!(world.times(refused), [begun + 2000]);
}

#[test]
fn an_abort_reaches_the_peer_and_a_dead_end_answers_what_still_comes() {
    let mut world = World::new();
    let mut line = Line::fast();
    line.listen(10, TcpSpec::rfc());
    let id = line.connect(TcpSpec::rfc());
    world.asks.insert(id, 1000 * MSS);
    line.net.run(&mut world, MS(420));
    line.net.abort(id, Side::Client);
    assert!(!line.net.send(id, Side::Client, 1, 1));
    line.net.run(&mut world, MS(5000));
    let failed = |n: &Notice| matches!(n, Notice::Failed(_, Side::Server, Failure::Reset));
    assert_eq!(world.times(failed).len(), 1);
    assert_eq!(line.net.connections(), 0);
    line.net.audit().expect("sound");
    assert!(line.net.connection(id, Side::Client).is_none());
    assert!(!line.net.send(id, Side::Client, 1, 1), "its name is void");
}

/// The SYN-ACK finds nobody: a RST tells the server, which forgets the handshake at once.
#[test]
fn a_client_that_has_left_resets_the_handshake() {
    let mut world = World::new();
    let mut line = Line::fast();
    let listener = line.listen(10, TcpSpec::rfc());
    let id = line.connect(TcpSpec::rfc());
    line.net.run(&mut world, MS(60));
    line.net.abort(id, Side::Client);
    line.net.run(&mut world, MS(145));
    assert_eq!((line.net.connections(), line.net.listener(listener).forgotten), (1, 0));
    line.net.run(&mut world, MS(155));
    assert_eq!((line.net.connections(), line.net.listener(listener).forgotten), (0, 1));
    assert!(world.notices.is_empty(), "it was the client's own wish, and nobody was accepted");
}

/// Who sends less than the window allows does not widen it.
#[test]
fn the_window_grows_only_while_it_is_the_limit() {
    let mut world = World::new();
    let mut line = Line::fast();
    let tcp = prompt(10);
    line.listen(10, tcp);
    let id = line.connect(tcp);
    for exchange in 1..=20 {
        line.net.run(&mut world, MS(500 * exchange));
        line.net.send(id, Side::Client, 300, 4 * MSS);
    }
    line.net.run(&mut world, MS(11_000));
    let facts = line.net.connection(id, Side::Server).expect("alive");
    assert_eq!((facts.acknowledged, facts.window), (80 * MSS, 10 * MSS));
}

#[test]
fn keep_alive_carries_requests_one_after_the_other() {
    let mut world = World::new();
    let mut line = Line::fast();
    line.listen(10, TcpSpec::rfc());
    let id = line.connect(TcpSpec::rfc());
    line.net.run(&mut world, MS(1000));
    for request in 1..=3 {
        assert!(line.net.send(id, Side::Client, 300, 2 * MSS));
        line.net.run(&mut world, MS(1000 + request * 1000));
    }
    let got = world.times(|notice| matches!(notice, Notice::Message(_, Side::Client, _)));
    assert_eq!(got, [1100, 2100, 3100]);
    let facts = line.net.connection(id, Side::Client).expect("alive");
    assert_eq!((facts.acknowledged, facts.received), (900, 6 * MSS));
    line.net.close(id, Side::Client);
    line.net.run(&mut world, MS(6000));
    assert!(!line.net.send(id, Side::Client, 1, 1), "closed");
    assert!(line.net.send(id, Side::Server, 5, 1), "half open");
    line.net.run(&mut world, MS(7000));
    assert!(world.notices.iter().any(|(_, n)| *n == Notice::Message(id, Side::Client, 1)));
    line.net.close(id, Side::Server);
    line.net.run(&mut world, MS(8000));
    assert_eq!(line.net.connections(), 0);
}

/// A sender never has more under way than the peer takes.
#[test]
fn the_receive_window_bounds_the_flight() {
    let mut world = World::new();
    let tcp = TcpSpec { receive_window: 5 * MSS, ..prompt(2) };
    fetch(Line::fast(), &mut world, tcp, 50 * MSS);
    assert_eq!(rounds(&world.data(Side::Server)), [2, 4, 5, 5, 5, 5, 5, 5, 5, 5, 4]);
}

/// A flood of SYNs in wrong names: half-open connections are bounded, the server's SYN-ACKs go
/// unheard, and in the end nothing of it is left.
#[test]
fn spoofed_syns_are_forgotten() {
    let mut line = Line::fast();
    let mut world = World::new();
    let tcp = TcpSpec::rfc();
    let spec = ListenerSpec { backlog: 10, half_open_max: 20, tcp: Arc::new(tcp) };
    let listener = line.net.listen(line.server, PORT, spec);
    let (from, to, tcp) = (line.client, line.server, Arc::new(tcp));
    for client in 0..50 {
        line.net.spoof(&Connect { from, to, client, port: PORT, tcp: Arc::clone(&tcp) });
    }
    line.net.run(&mut world, MS(500));
    let counts = line.net.listener(listener);
    assert_eq!((counts.begun, counts.syns_ignored), (20, 30));
    assert_eq!(world.of(Kind::SynAck, Side::Server).len(), 20);
    let elsewhere = Connect { from, to, client: 1, port: 81, tcp };
    line.net.spoof(&elsewhere); // the RST is not heard either
    line.net.run(&mut world, Nanos::from_secs(15));
    assert_eq!(line.net.connections(), 20);
    line.net.run(&mut world, Nanos::from_secs(100));
    assert_eq!((line.net.connections(), line.net.listener(listener).forgotten), (0, 20));
    assert_eq!(world.of(Kind::SynAck, Side::Server).len(), 6 * 20);
    assert!(world.of(Kind::Rst, Side::Client).is_empty() && world.notices.is_empty());
    line.net.audit().expect("sound");
}

/// Windows that hold no whole segment do not stop a transfer.
#[test]
fn a_receive_window_may_be_smaller_than_a_segment() {
    for (window, segments) in [(500, 6), (1, 3000), (0, 3000)] {
        let mut world = World::new();
        let tcp = TcpSpec { receive_window: window, rto_min: MS(200), ..prompt(2) };
        let mut line = Line::fast();
        line.listen(10, tcp);
        let id = line.connect(tcp);
        world.asks.insert(id, 3000);
        line.net.run(&mut world, Nanos::from_secs(1000));
        let got = world.times(|notice| matches!(notice, Notice::Message(_, Side::Client, 0)));
        assert_eq!((got.len(), world.data(Side::Server).len()), (1, segments), "{window}");
    }
}

/// A connection that was idle for longer than its time-out begins with its first window again.
#[test]
fn an_idle_connection_begins_slowly() {
    let mut world = World::new();
    let mut line = Line::fast();
    let tcp = prompt(2);
    line.listen(10, tcp);
    let id = line.connect(tcp);
    world.asks.insert(id, 62 * MSS);
    line.net.run(&mut world, MS(5000));
    world.seen.clear();
    line.net.send(id, Side::Client, 100, 14 * MSS);
    line.net.run(&mut world, MS(9000));
    assert_eq!(rounds(&world.data(Side::Server)), [2, 4, 8]);
}
