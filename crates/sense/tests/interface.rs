// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's own queues: a shaped interface in a namespace of its own fills, tells its limit, and
//! empties. Needs root and `ip`, `tc`.
//!
//! ```text
//!   UDP socket ─► v0 (tbf, 1 Mbit/s, 30,000 bytes) ═ veth ═ v1
//! ```
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

use std::io;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use tidegate_model::signals::Signals;
use tidegate_model::totals::{ServiceTotals, Totals};
use tidegate_sense::{
    InterfaceSource, Roots, RouteSource, Sense, ServiceSource, SockDiag, in_namespace,
};
use tidegate_units::{Clock, MonotonicClock, Nanos};

const PACKET: usize = 1000;
/// As the qdisc counts it: IP, UDP and the link's header.
const PACKET_WIRE: f64 = 1042.0;
const LIMIT_BYTES: f64 = 30_000.0;
/// Of the longest packet: MTU 1500 and the link's header.
const LIMIT: f64 = LIMIT_BYTES / 1514.0;

fn run(command: &str) {
    let words: Vec<&str> = command.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command}: {said}");
}

/// A network namespace that is removed by drop.
struct Namespace(String);

impl Namespace {
    fn new(name: &str) -> Self {
        let name = format!("tidegate-sense-{name}-{}", std::process::id());
        run(&format!("ip netns add {name}"));
        let made = Self(name);
        made.run("ip link add v0 type veth peer name v1");
        made.run("ip address add 192.0.2.1/24 dev v0");
        made.run("ip link set v1 up");
        made.run("ip link set v0 up");
        made.run("ip neighbour add 192.0.2.2 lladdr 02:00:00:00:00:02 nud permanent dev v0");
        made
    }

    fn run(&self, command: &str) {
        run(&format!("ip netns exec {} {command}", self.0));
    }

    fn path(&self) -> PathBuf {
        PathBuf::from("/run/netns").join(&self.0)
    }

    fn sender(&self) -> UdpSocket {
        let socket = in_namespace(Some(&self.path()), || UdpSocket::bind("192.0.2.1:0")).unwrap();
        socket.connect("192.0.2.2:9").unwrap();
        socket
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

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

fn fill(sender: &UdpSocket, packets: usize) {
    for _ in 0..packets {
        // A full queue may say so.
        let _ = sender.send(&[0; PACKET]);
    }
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
fn a_packet_limit_inside_a_shaper_and_one_of_many_queues_are_found() {
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
