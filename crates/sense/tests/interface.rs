// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's own queues: a shaped interface in a namespace of its own fills, tells its limit, and
//! empties; below `mq` each queue is seen. Needs root and `ip`, `tc`.
//!
//! ```text
//!   UDP socket ─► v0 (tbf, 1 Mbit/s, 30,000 bytes) ═ veth ═ v1
//!
//!                      ┌ 1:1 pfifo
//!   256 flows ─► v0 mq ┼ 1:2 tbf, the longest queue ═ veth ═ v1
//!                      ├ 1:3 tbf, full
//!                      └ 1:4 tbf, full
//! ```
//!
//! `fq_codel`, and a card with byte queue limits, are in `guest_queues.rs`: not every kernel has them.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod space;

use space::{Namespace, PACKET, PACKET_WIRE, fill};
use std::io;
use std::path::Path;
use tidegate_model::signals::Signals;
use tidegate_model::totals::{ServiceTotals, Totals};
use tidegate_sense::{InterfaceSource, Roots, RouteSource, Sense, ServiceSource, SockDiag};
use tidegate_units::{Clock, MonotonicClock, Nanos};

const LIMIT_BYTES: f64 = 30_000.0;
/// Of the longest packet: MTU 1500 and the link's header.
const LIMIT: f64 = LIMIT_BYTES / 1514.0;
/// Queues of an interface below `mq`. The kernel spreads flows over them by a hash with a secret of its own: so
/// many that a queue with less than a tenth of them is out of the question.
const QUEUES: u32 = 4;
const FLOWS: usize = 256;
const PACKETS_OF_FLOW: usize = 3;
/// So slow that one packet leaves at once and the next within a minute: what waits, stays.
const FROZEN: &str = "tbf rate 80bit burst 1600 limit";
/// Bytes per second of that.
const FROZEN_RATE: f64 = 10.0;

struct NoTotals;
impl Totals for NoTotals {
    fn totals(&self, _: usize) -> io::Result<ServiceTotals> {
        Err(io::Error::other("no dataplane in this test"))
    }
}

/// What the source says of v0: length and limit, and bytes sent.
fn look(source: &mut RouteSource) -> (Option<(f64, f64)>, u64) {
    let (mut found, mut queues) = (Vec::new(), Vec::new());
    source.interfaces(&["v0".to_owned()], &mut found).unwrap();
    source.queues(&found, &mut queues).unwrap();
    (queues.first().map(|(_, q)| (q.length, q.limit)), found[0].sent_bytes)
}

#[test]
fn a_shaped_interface_fills_to_its_limit_and_empties() {
    let namespace = Namespace::new("tbf");
    let mut source = RouteSource::open(Some(&namespace.path())).unwrap();
    assert_eq!(look(&mut source).0, None, "a veth has no queue");
    namespace.run("tc qdisc replace dev v0 root tbf rate 1mbit burst 2kb limit 30000");
    let (queue, sent) = look(&mut source);
    let (length, limit) = queue.unwrap();
    assert!(length == 0.0 && (limit - LIMIT).abs() < 0.01, "{length} of {limit}");

    fill(&namespace.sender(), 100);
    let (length, limit) = look(&mut source).0.unwrap();
    let full = (LIMIT_BYTES / PACKET_WIRE).floor() * PACKET_WIRE / 1514.0;
    assert!(length > full - 3.0 && length <= limit, "{length} of {limit}, full at {full}");

    let clock = MonotonicClock;
    let begin = clock.now();
    loop {
        let (queue, now) = look(&mut source);
        if queue.unwrap().0 == 0.0 && now >= sent + 20 * PACKET as u64 {
            break;
        }
        assert!(clock.now().since(begin) < Nanos::from_secs(10), "it does not empty: {queue:?}");
        std::thread::yield_now();
    }
}

#[test]
fn a_packet_limit_inside_a_shaper_is_found() {
    let namespace = Namespace::new("kinds");
    let mut source = RouteSource::open(Some(&namespace.path())).unwrap();
    namespace.run("tc qdisc replace dev v0 root handle 1: tbf rate 1mbit burst 2kb limit 30000");
    namespace.run("tc qdisc add dev v0 parent 1:1 handle 10: pfifo limit 25");
    fill(&namespace.sender(), 100);
    let (length, limit) = look(&mut source).0.unwrap();
    assert!(limit == 25.0 && (22.0..=25.0).contains(&length), "{length} of {limit}");
}

#[test]
fn the_signal_is_a_mean_with_the_bytes_that_are_sent() {
    let namespace = Namespace::new("mean");
    namespace.run("tc qdisc replace dev v0 root tbf rate 1mbit burst 2kb limit 30000");
    let service = ServiceSource { needs_interface: true, ..ServiceSource::default() };
    let diag = SockDiag::open(Some(&namespace.path())).unwrap();
    let mut sense = Sense::new(vec![service], Box::new(diag), Roots::default());
    let problem = |sense: &mut Sense, now| {
        let sensed = sense.tick(now, &NoTotals).remove(0);
        let problem = sensed.problems.iter().any(|t| t.signal == "interface queue");
        (sensed.signals, problem)
    };
    let clock = MonotonicClock;
    assert!(problem(&mut sense, clock.now()).1, "it is needed, and nobody watches");
    let source = RouteSource::open(Some(&namespace.path())).unwrap();
    sense.watch_interfaces(Box::new(source), vec!["v0".into()]);
    let sender = namespace.sender();
    let begin = clock.now();
    // Kept full for a second: the mean comes near the limit, and what is sent near the rate.
    let last: Signals = loop {
        fill(&sender, 5);
        sense.sample(clock.now());
        let (signals, problem) = problem(&mut sense, clock.now());
        assert!(!problem);
        let spent = clock.now().since(begin);
        let queue = signals.queue.interface.map_or(0.0, |q| q.value.length);
        let sent = signals.resource.bandwidth.map_or(0.0, |sent| sent.value);
        // 1 Mbit/s, give or take a packet at each end.
        if queue > 0.8 * LIMIT && (100_000.0..150_000.0).contains(&sent) {
            break signals;
        }
        assert!(spent < Nanos::from_secs(10), "queue {queue} of {LIMIT}, sent {sent}");
    };
    let queue = last.queue.interface.unwrap();
    assert!((queue.value.limit - LIMIT).abs() < 0.01 && queue.age < Nanos::SECOND);
}

#[test]
fn a_shaper_tells_its_rate_and_what_it_sent_and_dropped() {
    let namespace = Namespace::new("links");
    let mut source = RouteSource::open(Some(&namespace.path())).unwrap();
    let names = ["none-such".to_owned(), "v0".to_owned()];
    let mut look = || source.links(&names, Path::new("/sys")).unwrap();
    let bare = look().remove(0);
    assert_eq!((bare.interface.as_str(), bare.queue, bare.capacity), ("v0", None, None));
    namespace.run("tc qdisc replace dev v0 root tbf rate 2mbit burst 2kb limit 52000");
    let before = look();
    assert_eq!(before.len(), 1, "{before:?}");
    assert_ne!(before[0].identity, bare.identity, "another queue counts by itself");
    fill(&namespace.sender(), 100);
    let after = look().remove(0);
    assert_eq!(after.capacity, Some(250_000.0));
    let sent = after.sent_packets - before[0].sent_packets;
    let dropped = after.dropped_packets - before[0].dropped_packets;
    let queue = after.queue.unwrap();
    let waiting = (queue.length * 1514.0 / PACKET_WIRE).round();
    assert!(sent > 0 && dropped > 0 && waiting > 40.0, "{sent} {dropped} {queue:?}");
    // Others (router solicitations) may be among them.
    let all = f64::from(sent + dropped) + waiting;
    assert!((100.0..110.0).contains(&all), "{sent} {dropped} {queue:?}");
}

#[test]
fn below_mq_drops_of_all_queues_are_summed_and_the_fullest_waits() {
    let namespace = Namespace::with_queues("mq", QUEUES);
    let mut source = RouteSource::open(Some(&namespace.path())).unwrap();
    namespace.run("tc qdisc replace dev v0 root handle 1: mq");
    namespace.run("tc qdisc replace dev v0 parent 1:1 handle 10: pfifo limit 1000");
    // 30,000 bytes hold 28 packets, with a remainder; 19,800 are 19 packets and 2 bytes.
    for (child, limit) in [(2, 900_000), (3, 30_000), (4, 19_800)] {
        let (handle, parent) = (10 * child, format!("1:{child}"));
        namespace.run(&format!(
            "tc qdisc replace dev v0 parent {parent} handle {handle}: {FROZEN} {limit}"
        ));
    }
    let mut look_at_links =
        || source.links(&["v0".to_owned()], Path::new("/sys")).unwrap().remove(0);
    let before = look_at_links();
    assert_eq!(before.capacity, None, "one of its queues has no rate");
    assert_eq!((before.sent_packets, before.dropped_packets), (0, 0));

    let flows = namespace.flows("192.0.2.1", "192.0.2.2", FLOWS);
    flows.iter().for_each(|flow| fill(flow, PACKETS_OF_FLOW));
    let after = look_at_links();
    let children = namespace.queues("v0");
    let of = |parent: &str| children.iter().find(|q| q.parent == parent).unwrap();
    let [open, long, full, fullest] = ["1:1", "1:2", "1:3", "1:4"].map(of);
    assert_eq!((open.kind.as_str(), full.kind.as_str()), ("pfifo", "tbf"));
    assert!(open.sent > 0 && (open.dropped, open.waiting) == (0, 0), "{children:?}");
    assert!(long.waiting > full.waiting && long.dropped == 0, "{children:?}");
    assert!(full.dropped > 0 && fullest.dropped > 0, "{children:?}");
    assert_eq!((full.waiting, fullest.waiting), (28, 19), "{children:?}");
    // Not what `mq` says of itself, nor one of them.
    assert_eq!(after.dropped_packets, full.dropped + fullest.dropped, "{children:?}");
    let sent: u32 = children.iter().filter(|q| q.parent != "root").map(|q| q.sent).sum();
    assert_eq!(after.sent_packets, sent, "{children:?}");
    let waiting = long.waiting + full.waiting + fullest.waiting;
    let all = u32::try_from(FLOWS * PACKETS_OF_FLOW).unwrap();
    assert_eq!(sent + after.dropped_packets + waiting, all, "{children:?}");
    let queue = after.queue.unwrap();
    let expected = (19.0 * PACKET_WIRE / 1514.0, 19_800.0 / 1514.0);
    assert_eq!((queue.length, queue.limit), expected, "the fullest, and not the longest");
    assert_eq!(look(&mut source).0, Some(expected), "the signal of a service sees the same");

    namespace.run(&format!("tc qdisc replace dev v0 parent 1:1 handle 50: {FROZEN} 30000"));
    let shaped = source.links(&["v0".to_owned()], Path::new("/sys")).unwrap().remove(0);
    assert_eq!(shaped.capacity, Some(FROZEN_RATE * f64::from(QUEUES)));
    assert_ne!(shaped.identity, after.identity, "one of its queues counts anew");
    assert!(shaped.sent_packets < after.sent_packets);
}

/// What a card with several queues has by itself: `mq` with the handle 0, as its children have, too.
#[test]
fn below_the_mq_of_the_kernel_all_queues_are_summed() {
    let namespace = Namespace::new("mq-0");
    namespace.run(&format!("ip link add i0 numtxqueues {QUEUES} type ifb"));
    namespace.run("ip link set i0 addrgenmode none");
    namespace.run("ip link set i0 up");
    namespace.run("ip address add 198.51.100.1/24 dev i0");
    let root = namespace.run("tc qdisc show dev i0");
    assert!(root.contains("qdisc mq 0: root"), "{root}");
    let flows = namespace.flows("198.51.100.1", "198.51.100.2", FLOWS);
    flows.iter().for_each(|flow| fill(flow, 1));
    let mut source = RouteSource::open(Some(&namespace.path())).unwrap();
    let seen = source.links(&["i0".to_owned()], Path::new("/sys")).unwrap().remove(0);
    let queues = namespace.queues("i0");
    let used = queues.iter().filter(|q| q.parent != "root" && q.sent > 0).count();
    assert_eq!(used, QUEUES as usize, "{queues:?}");
    // The interface itself sends on only what was redirected to it, and counts none of these.
    assert_eq!(seen.sent_packets as usize, FLOWS, "{queues:?}");
    assert_eq!(seen.queue.map(|q| q.length), Some(0.0));
}
