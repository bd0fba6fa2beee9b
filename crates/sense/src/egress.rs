// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an interface to the servers of a router has sent and dropped, and how much it can send.
//!
//! | what | counts and rate |
//! | --- | --- |
//! | one queue, a shaper included | those of the root qdisc, in which its children count, too, but for what they marked |
//! | `mq`, `mqprio` | the sum over the children; waiting is the fullest, because it drops alone |
//! | no queue | those of the interface |
//! | a card | in front of all that its own ring (BQL), and the rate of the link where nothing shapes |

use crate::qdisc::{Interface, Qdisc, TC_H_ROOT, fullest};
use std::fs;
use std::path::Path;
use tidegate_model::Fnv;
use tidegate_model::signals::{InterfaceQueue, LinkUse};

/// Most queues of a card whose rings are read.
const RINGS_MAX: usize = 64;
/// Bits per second in a Mbit/s, and bits in a byte.
const MEGABIT: f64 = 1e6;
const BITS: f64 = 8.0;

/// What only a card has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Egress {
    /// Bytes per second of its link.
    pub(crate) rate: Option<f64>,
    /// Bytes in its rings, and how many its driver lets in (byte queue limits).
    pub(crate) rings: Option<(f64, f64)>,
}

impl Egress {
    /// Of an interface in the namespace of which `sys` tells: another one with its name and number is
    /// taken for it, so only cards are looked for, which have names of their own.
    pub(crate) fn of_card(sys: &Path, name: &str, interface: &Interface) -> Self {
        let at = sys.join("class/net").join(name);
        let number = |file: &Path| fs::read_to_string(file).ok()?.trim().parse::<f64>().ok();
        if interface.software || number(&at.join("ifindex")) != Some(interface.index.into()) {
            return Self::default();
        }
        // -1 where the link does not know.
        let speed = number(&at.join("speed")).filter(|mbit| *mbit > 0.0);
        let mut rings: Option<(f64, f64)> = None;
        for ring in 0..RINGS_MAX {
            let bql = at.join(format!("queues/tx-{ring}/byte_queue_limits"));
            let (inside, limit) = (number(&bql.join("inflight")), number(&bql.join("limit")));
            let Some((inside, limit)) = inside.zip(limit) else { break };
            let (all, limits) = rings.unwrap_or_default();
            rings = Some((all + inside, limits + limit));
        }
        // Without anything sent the limit is 0, and says nothing.
        let rings = rings.filter(|(_, limit)| *limit > 0.0);
        Self { rate: speed.map(|mbit| mbit * MEGABIT / BITS), rings }
    }
}

/// The use of one interface by what all qdiscs tell.
pub(crate) fn link_use(
    name: &str,
    interface: &Interface,
    qdiscs: &[Qdisc],
    card: &Egress,
) -> LinkUse {
    let here = || qdiscs.iter().filter(|q| q.interface == interface.index);
    let root = here().find(|q| q.parent == TC_H_ROOT);
    let mut link = LinkUse {
        interface: name.to_owned(),
        identity: (interface.index, 0),
        sent_bytes: interface.sent_bytes,
        sent_packets: interface.packets.0,
        dropped_packets: interface.packets.1,
        queue: fullest(qdiscs, interface),
        capacity: card.rate,
    };
    let Some(root) = root else { return link };
    let child = |q: &&Qdisc| q.parent != TC_H_ROOT && q.parent >> 16 == root.handle >> 16;
    let queues: Vec<&Qdisc> = if root.many { here().filter(child).collect() } else { vec![root] };
    // Without a queue (`noqueue`) nothing is counted there.
    if link.queue.is_some() && !queues.is_empty() {
        link.sent_bytes = queues.iter().fold(0, |sum, q| sum.wrapping_add(q.sent.0));
        let sum = |of: fn(&Qdisc) -> u32| queues.iter().fold(0_u32, |s, q| s.wrapping_add(of(q)));
        link.sent_packets = sum(|q| q.sent.1);
        // Marks are counted only where they are made: also those of a queue in a shaper.
        let marked = here().filter_map(|q| q.marked).fold(0_u32, u32::wrapping_add);
        link.dropped_packets = sum(|q| q.dropped).wrapping_add(marked);
        let deeper =
            |q: &&Qdisc| q.marked.is_some() && !queues.iter().any(|of| std::ptr::eq(*of, *q));
        link.identity.1 = number_of(queues.iter().copied().chain(here().filter(deeper)));
    }
    let rates: Option<Vec<u64>> = queues.iter().map(|q| q.rate).collect();
    let shaped = rates.filter(|rates| !rates.is_empty()).map(|rates| rates.iter().sum::<u64>());
    link.capacity = shaped.map(|rate| rate as f64).or(card.rate);
    let packet = f64::from(interface.mtu.max(1));
    link.queue = match (link.queue, card.rings) {
        (Some(queue), Some((inside, limit))) => Some(InterfaceQueue {
            length: queue.length + inside / packet,
            limit: queue.limit + limit / packet,
        }),
        (queue, _) => queue,
    };
    link
}

/// A number for these queues: one that takes the place of another may have its handle, such as 0.
fn number_of<'a>(queues: impl Iterator<Item = &'a Qdisc>) -> u64 {
    let one = |q: &'a Qdisc| {
        let place = [q.handle, q.parent].into_iter().flat_map(u32::to_ne_bytes);
        place.chain(q.kind.bytes()).collect::<Vec<u8>>()
    };
    Fnv::default().with(queues.flat_map(one)).get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{HEADER, request};
    use crate::qdisc::qdisc;

    const CARD: Interface = Interface {
        index: 2,
        mtu: 1500,
        tx_queue: 1000,
        sent_bytes: 77,
        packets: (7, 1),
        software: false,
    };

    /// Messages of `tc -s qdisc show` on a router of this lab (tbf 2 Mbit/s with a pfifo of 50 inside, while
    /// it was full), and of a card with two queues (mq with a tbf each), as rtnetlink gave them.
    fn recorded(text: &str) -> Vec<Qdisc> {
        let byte = |pair: &[u8]| {
            let pair = std::str::from_utf8(pair).unwrap();
            u8::from_str_radix(pair, 16).unwrap()
        };
        let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
        let messages = lines.map(|line| line.as_bytes().chunks(2).map(byte).collect::<Vec<u8>>());
        messages.filter_map(|message| qdisc(&message, &[CARD])).collect()
    }

    fn attribute(number: u16, value: &[u8]) -> Vec<u8> {
        request(0, 0, &[], &[(number, value)])[HEADER..].to_vec()
    }

    #[test]
    fn a_dump_of_a_full_shaper_gives_its_rate_counts_and_queue() {
        let seen =
            link_use("v1", &CARD, &recorded(include_str!("dumps/tbf.hex")), &Egress::default());
        assert_eq!(seen.capacity, Some(250_000.0));
        assert_eq!((seen.sent_bytes, seen.sent_packets), (5300, 6));
        assert_eq!(seen.dropped_packets, 145);
        assert_eq!(seen.queue, Some(InterfaceQueue { length: 50.0, limit: 50.0 }));
    }

    #[test]
    fn many_queues_are_summed_and_the_fullest_waits() {
        let dump = recorded(include_str!("dumps/mq.hex"));
        let seen = link_use("v1", &CARD, &dump, &Egress::default());
        assert_eq!(seen.capacity, Some(375_000.0), "1 and 2 Mbit/s");
        let each: Vec<&Qdisc> = dump.iter().filter(|q| q.parent >> 16 == 1).collect();
        assert_eq!(each.len(), 2);
        assert_eq!(seen.sent_bytes, each[0].sent.0 + each[1].sent.0);
        assert!(seen.sent_bytes > 0 && seen.dropped_packets > 0, "{seen:?}");
    }

    /// Whatever is replaced counts anew, also under the handle of the one before; 0 is that of most.
    #[test]
    fn counters_of_another_queue_have_another_number() {
        let identity = |dump: &[Qdisc]| link_use("v1", &CARD, dump, &Egress::default()).identity;
        let tbf = recorded(include_str!("dumps/tbf.hex"));
        let seen = identity(&tbf);
        assert_eq!((seen, seen.0), (identity(&tbf), CARD.index));
        let root = tbf.iter().position(|q| q.parent == TC_H_ROOT).unwrap();
        let mut other = tbf.clone();
        other[root].kind = "cake".into();
        assert_ne!(identity(&other), seen, "another kind");
        // What is inside counts in its parent.
        let inner = other.iter().position(|q| q.parent != TC_H_ROOT).unwrap();
        (other[root].kind, other[inner].kind) = ("tbf".into(), "bfifo".into());
        assert_eq!(identity(&other), seen);
        assert_ne!(identity(&[]), seen, "those of the interface");
        let mq = recorded(include_str!("dumps/mq.hex"));
        let seen = identity(&mq);
        for at in (0..mq.len()).filter(|at| mq[*at].parent >> 16 == 1) {
            let mut other = mq.clone();
            other[at].kind = "fq_codel".into();
            assert_ne!(identity(&other), seen, "one of several");
        }
    }

    #[test]
    fn a_card_without_a_qdisc_that_shapes_has_the_rate_of_its_link() {
        let sys = tempfile::tempdir().unwrap();
        let at = sys.path().join("class/net/e0");
        let write = |file: &str, text: &str| {
            fs::create_dir_all(at.join(file).parent().unwrap()).unwrap();
            fs::write(at.join(file), text).unwrap();
        };
        write("speed", "1000\n");
        assert_eq!(Egress::of_card(sys.path(), "e0", &CARD), Egress::default(), "no number");
        write("ifindex", "3\n");
        assert_eq!(Egress::of_card(sys.path(), "e0", &CARD), Egress::default(), "another one");
        write("ifindex", "2\n");
        for ring in ["tx-0", "tx-1"] {
            write(&format!("queues/{ring}/byte_queue_limits/inflight"), "3000\n");
            write(&format!("queues/{ring}/byte_queue_limits/limit"), "15000\n");
        }
        let card = Egress::of_card(sys.path(), "e0", &CARD);
        assert_eq!(card, Egress { rate: Some(125e6), rings: Some((6000.0, 30_000.0)) });
        let veth = Interface { software: true, ..CARD };
        assert_eq!(Egress::of_card(sys.path(), "e0", &veth), Egress::default());
        write("speed", "-1\n");
        assert_eq!(Egress::of_card(sys.path(), "e0", &CARD).rate, None);
        // Rings stand in front of the queue.
        let dump = recorded(include_str!("dumps/tbf.hex"));
        let seen = link_use("e0", &CARD, &dump, &card);
        assert_eq!(seen.queue, Some(InterfaceQueue { length: 54.0, limit: 70.0 }));
        let bare = link_use("e0", &CARD, &[], &card);
        assert_eq!((bare.capacity, bare.sent_bytes, bare.queue), (Some(125e6), 77, None));
        assert_eq!((bare.sent_packets, bare.dropped_packets), CARD.packets);
    }

    /// `fq_codel` with 4 packets of at most 100, 5 that it dropped, and 9 that it marked.
    fn fq_codel(parent: u32, handle: u32) -> Qdisc {
        // type, maxpacket, drop_overlimit, ecn_mark.
        let own: Vec<u8> = [0_u32, 1514, 0, 9].iter().flat_map(|n| n.to_ne_bytes()).collect();
        let queue: Vec<u8> = [4_u32, 6000, 5].iter().flat_map(|n| n.to_ne_bytes()).collect();
        let stats = [attribute(3, &queue), attribute(4, &own)].concat();
        let mut fixed = vec![0; 20];
        fixed[4..8].copy_from_slice(&2_u32.to_ne_bytes());
        fixed[8..12].copy_from_slice(&handle.to_ne_bytes());
        fixed[12..16].copy_from_slice(&parent.to_ne_bytes());
        let limit = attribute(2, &100_u32.to_ne_bytes());
        let attributes: [(u16, &[u8]); 3] = [(1, b"fq_codel\0"), (2, &limit), (7, &stats)];
        let message = request(36, 0, &fixed, &attributes)[HEADER..].to_vec();
        qdisc(&message, &[CARD]).unwrap()
    }

    #[test]
    fn marks_of_fq_codel_count_as_drops() {
        let dump = [fq_codel(TC_H_ROOT, 0)];
        let seen = link_use("e0", &CARD, &dump, &Egress::default());
        assert_eq!(seen.dropped_packets, 14);
        assert_eq!(seen.queue, Some(InterfaceQueue { length: 4.0, limit: 100.0 }));
        assert_eq!(seen.capacity, None);
    }

    /// What is dropped inside counts in the shaper as well, and what is marked does not.
    #[test]
    fn marks_of_fq_codel_in_a_shaper_count_once() {
        let mut dump = recorded(include_str!("dumps/tbf.hex"));
        dump.retain(|q| q.parent == TC_H_ROOT);
        let (shaper, dropped) = (dump[0].handle, dump[0].dropped);
        let bare = link_use("v1", &CARD, &dump, &Egress::default());
        dump.push(fq_codel(shaper | 1, 0x10_0000));
        let seen = link_use("v1", &CARD, &dump, &Egress::default());
        assert_eq!(seen.dropped_packets, dropped + 9);
        assert_ne!(seen.identity, bare.identity);
        dump[1].handle = 0x11_0000;
        let anew = link_use("v1", &CARD, &dump, &Egress::default());
        assert_ne!(anew.identity, seen.identity, "another one marks anew");
    }
}
