// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fq_codel`, and a card with byte queue limits (BQL), which not every kernel and machine has: only
//! `cargo xtask guest --kernel 6.12 guest_queues` builds and runs this (feature `guest`; needs root).
//!
//! ```text
//!   UDP sockets ─► v0 (tbf, 1 Mbit/s; fq_codel inside) ═ veth ═ v1
//!   UDP sockets ─► the guest's e1000 (fq_codel; the card's ring with BQL) ─ nobody
//! ```
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

mod space;

use rustix::net::sockopt::set_ip_tos;
use space::{Namespace, PACKET, PACKET_WIRE, Queue, fill, queues, run};
use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use tidegate_model::signals::LinkUse;
use tidegate_sense::{InterfaceSource, RouteSource};
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// Of each condition that is waited for. The machine is emulated.
const PATIENCE: Nanos = Nanos::from_secs(60);
/// Packets that the queue in the shaper holds, and what sends more at once.
const LIMIT: u32 = 100;
const BURST: usize = 300;
/// Packets that the queue of the card holds: fewer than a socket may have under way.
const LIMIT_OF_CARD: u32 = 20;
/// The IP header's ECN field: the sender understands marks (RFC 3168).
const ECT_0: u8 = 2;

fn look(source: &mut RouteSource, interface: &str) -> LinkUse {
    source.links(&[interface.to_owned()], Path::new("/sys")).unwrap().remove(0)
}

/// Until `found` gives something; `what` was not there in time otherwise.
fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let clock = MonotonicClock;
    let begin = clock.now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(clock.now().since(begin) < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

/// A veth that sends 1 Mbit/s, out of `fq_codel`.
fn shaped(name: &str, options: &str) -> (Namespace, RouteSource) {
    let namespace = Namespace::new(name);
    namespace.run("tc qdisc replace dev v0 root handle 1: tbf rate 1mbit burst 2kb limit 900000");
    let inside = format!("fq_codel limit {LIMIT} {options}");
    namespace.run(&format!("tc qdisc replace dev v0 parent 1:1 handle 10: {inside}"));
    let source = RouteSource::open(Some(&namespace.path())).unwrap();
    (namespace, source)
}

fn fq_codel(queues: Vec<Queue>) -> Queue {
    queues.into_iter().find(|q| q.kind == "fq_codel").unwrap()
}

#[test]
fn fq_codel_in_a_shaper_fills_drops_and_empties() {
    let (namespace, mut source) = shaped("fq-codel", "noecn");
    let before = look(&mut source, "v0");
    assert_eq!(before.capacity, Some(125_000.0));
    let queue = before.queue.unwrap();
    assert_eq!((queue.length, queue.limit), (0.0, f64::from(LIMIT)));

    fill(&namespace.sender(), BURST);
    let full = look(&mut source, "v0");
    let queue = full.queue.unwrap();
    // Above its limit it drops many at once: up to half of the longest flow.
    assert!((1.0..=f64::from(LIMIT)).contains(&queue.length), "{queue:?}");
    let mut service = Vec::new();
    let mut found = Vec::new();
    source.interfaces(&["v0".to_owned()], &mut found).unwrap();
    source.queues(&found, &mut service).unwrap();
    assert!(service[0].1.length > 0.0, "the signal of a service sees it, too: {service:?}");
    assert!(full.dropped_packets > 0, "{full:?}");

    let empty = wait_for("it does not empty", || {
        Some(look(&mut source, "v0")).filter(|link| link.queue.unwrap().length == 0.0)
    });
    let shown = fq_codel(namespace.queues("v0"));
    assert_eq!(empty.dropped_packets, shown.dropped);
    assert_eq!((empty.sent_packets, empty.sent_packets + empty.dropped_packets), (shown.sent, 300));
}

/// CoDel drops before the queue is full: when packets have waited for more than 5 ms for 100 ms.
#[test]
fn what_codel_drops_early_in_a_shaper_is_seen() {
    let (namespace, mut source) = shaped("codel", "noecn");
    keep_it_long(&namespace.sender(), &mut source);
    let shown = fq_codel(namespace.queues("v0"));
    assert!(shown.dropped > 0 && look(&mut source, "v0").dropped_packets > 0, "{shown:?}");
}

/// Marks (ECN) take the place of drops, as soon as senders understand them: they are a sign of congestion as well,
/// in a shaper as in `fq_codel` at the root.
#[test]
fn what_codel_marks_in_a_shaper_counts_as_drops() {
    let (namespace, mut source) = shaped("marks", "ecn");
    let sender = namespace.sender();
    set_ip_tos(&sender, ECT_0).unwrap();
    keep_it_long(&sender, &mut source);
    wait_for("it does not empty", || {
        Some(look(&mut source, "v0")).filter(|link| link.queue.unwrap().length == 0.0)
    });
    let printed = namespace.run("tc -s qdisc show dev v0");
    let marks: u32 = number_after(&printed, "ecn_mark ");
    assert!(marks > 0, "{printed}");
    let dropped = fq_codel(queues(&printed)).dropped;
    assert_eq!(look(&mut source, "v0").dropped_packets, marks + dropped, "{printed}");
}

/// Keeps about half of the limit in the queue for two seconds: CoDel takes 100 ms to act.
fn keep_it_long(sender: &UdpSocket, source: &mut RouteSource) {
    let long = f64::from(LIMIT) / 2.0;
    let (clock, mut held) = (MonotonicClock, Nanos::ZERO);
    let begin = clock.now();
    while held < Nanos::from_secs(2) {
        let length = look(source, "v0").queue.unwrap().length;
        assert!(length < f64::from(LIMIT), "it must not be full");
        if length < long {
            fill(sender, 10);
        }
        held = clock.now().since(begin);
    }
}

fn number_after(printed: &str, word: &str) -> u32 {
    let after = printed.split(word).nth(1).unwrap();
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// `mq` of a card with several queues, as distributions set it up: a `fq_codel` in each.
#[test]
fn fq_codel_below_mq_is_summed() {
    let namespace = Namespace::with_queues("mq-codel", 2);
    namespace.run("tc qdisc replace dev v0 root handle 1: mq");
    for child in [1, 2] {
        namespace.run(&format!("tc qdisc replace dev v0 parent 1:{child} fq_codel limit {LIMIT}"));
    }
    let mut source = RouteSource::open(Some(&namespace.path())).unwrap();
    let flows = namespace.flows("192.0.2.1", "192.0.2.2", 64);
    flows.iter().for_each(|flow| fill(flow, 1));
    let seen = look(&mut source, "v0");
    let shown = namespace.queues("v0");
    let used = |parent: &str| shown.iter().any(|q| q.parent == parent && q.sent > 0);
    assert!(used("1:1") && used("1:2"), "{shown:?}");
    assert_eq!(seen.sent_packets, 64);
    assert_eq!(seen.sent_bytes, 64 * PACKET_WIRE as u64);
    assert_eq!(seen.queue.map(|q| (q.length, q.limit)), Some((0.0, f64::from(LIMIT))));
}

/// The name of the guest's card.
fn card() -> String {
    run("modprobe e1000");
    wait_for("no card of the driver e1000", || {
        let names = fs::read_dir("/sys/class/net").unwrap().flatten();
        let mut names = names.map(|entry| entry.file_name().into_string().unwrap());
        names.find(|name| {
            let driver = fs::read_link(format!("/sys/class/net/{name}/device/driver"));
            driver.is_ok_and(|driver| driver.ends_with("e1000"))
        })
    })
}

/// The rate of the link, the ring in front of the queue, and a queue that fills since the ring takes no more.
#[test]
fn a_card_with_byte_queue_limits_tells_its_rate_ring_and_queue() {
    let card = card();
    run(&format!("ip address add 192.0.2.1/24 dev {card}"));
    run(&format!("ip link set {card} addrgenmode none"));
    run(&format!("ip link set {card} up"));
    run(&format!("ip neighbour add 192.0.2.2 lladdr 02:00:00:00:00:02 nud permanent dev {card}"));
    run(&format!("tc qdisc replace dev {card} root fq_codel limit {LIMIT_OF_CARD} noecn"));
    let mut source = RouteSource::open(None).unwrap();
    wait_for("the link does not come up", || {
        let state = fs::read_to_string(format!("/sys/class/net/{card}/operstate")).unwrap();
        (state.trim() == "up").then_some(())
    });
    let rate = wait_for("no rate", || look(&mut source, &card).capacity);
    assert_eq!(rate, 125e6, "e1000: 1 Gbit/s");
    let bql = |file: &str| -> f64 {
        let at = format!("/sys/class/net/{card}/queues/tx-0/byte_queue_limits/{file}");
        fs::read_to_string(at).unwrap().trim().parse().unwrap()
    };

    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flood = || {
            let sender = UdpSocket::bind("192.0.2.1:0").unwrap();
            sender.connect("192.0.2.2:9").unwrap();
            while !done.load(Ordering::Relaxed) {
                fill(&sender, 64);
            }
        };
        scope.spawn(flood);
        // Ended also where an assertion fails: the scope waits for it.
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let seen = wait_for("nothing is in the ring", || {
                let seen = look(&mut source, &card);
                // Whole packets wait in the queue; bytes of the ring are a fraction of the longest.
                Some(seen).filter(|seen| seen.queue.is_some_and(|q| q.length.fract() > 0.0))
            });
            println!("in the ring and the queue: {:?}", seen.queue);
            let seen = wait_for("nothing was dropped", || {
                Some(look(&mut source, &card)).filter(|seen| seen.dropped_packets > 0)
            });
            println!("dropped: {seen:?}");
        }));
        done.store(true, Ordering::Relaxed);
        ended.unwrap();
    });
    let still = wait_for("the ring does not empty", || {
        let seen = look(&mut source, &card);
        (seen.queue?.length == 0.0 && bql("inflight") == 0.0).then_some(seen)
    });
    let (limit, mtu) = (bql("limit"), 1500.0);
    assert!(limit > 0.0);
    assert_eq!(still.queue.unwrap().limit, f64::from(LIMIT_OF_CARD) + limit / mtu);
    let shown = fq_codel(queues(&run(&format!("tc -s qdisc show dev {card}"))));
    assert_eq!((still.sent_packets, still.dropped_packets), (shown.sent, shown.dropped));
    assert!(u64::from(still.sent_packets) * PACKET as u64 <= still.sent_bytes);
}
