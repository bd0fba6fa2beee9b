// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Queues of the interfaces that answers leave by, and what is sent there: rtnetlink, RTM_GETQDISC
//! and RTM_GETLINK. No privileges are needed.
//!
//! An interface has one queue (its root qdisc, which counts what its classes hold) or, below `mq` and
//! `mqprio`, one for each of the card's: then the fullest counts, because it drops alone.

use crate::egress::{Egress, link_use};
use crate::netlink::{NLM_F_DUMP, Route, attributes, nested, request, text, u32_at, u64_at};
use std::io;
use std::path::Path;
use tidegate_model::signals::{InterfaceQueue, LinkUse};

/// Most queues of all interfaces that are looked at.
const QDISCS_MAX: usize = 8192;
/// linux/rtnetlink.h, linux/if_link.h, linux/pkt_sched.h
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWQDISC: u16 = 36;
const RTM_GETQDISC: u16 = 38;
const IFINFO: usize = 16;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_TXQLEN: u16 = 13;
const IFLA_LINKINFO: u16 = 18;
const IFLA_STATS64: u16 = 23;
/// Packets and bytes sent, and packets dropped when they were to be sent, in `rtnl_link_stats64`.
const STATS64_TX_PACKETS: usize = 8;
const STATS64_TX_BYTES: usize = 24;
const STATS64_TX_DROPPED: usize = 56;
const TCMSG: usize = 20;
pub(crate) const TC_H_ROOT: u32 = u32::MAX;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_STATS2: u16 = 7;
const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_QUEUE: u16 = 3;
const TCA_STATS_APP: u16 = 4;
/// Packets that were marked and not dropped (ECN), in `tc_fq_codel_xstats`.
const FQ_CODEL_MARKED: usize = 12;
/// Bytes of a link's header, about: byte limits count it.
const LINK_HEADER: f64 = 14.0;

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its number.
    pub index: u32,
    /// Largest packet in bytes, without the link's header.
    pub mtu: u32,
    /// Packets that fit into a queue without a limit of its own.
    pub tx_queue: u32,
    /// Bytes sent since it was made.
    pub sent_bytes: u64,
    /// Packets sent, and packets dropped before that: the counters wrap at 32 bits.
    pub packets: (u32, u32),
    /// Whether it is software (veth, bridge, tunnel …): then it has no rate of its own.
    pub software: bool,
}

/// Whoever can tell about interfaces and their queues.
pub trait InterfaceSource {
    /// Fills `into` with those of the wanted interfaces that are there.
    ///
    /// # Errors
    /// When the kernel cannot be asked at the moment; `into` is then to be ignored.
    fn interfaces(&mut self, wanted: &[String], into: &mut Vec<Interface>) -> io::Result<()>;

    /// Fills `into` with the queue of each of these interfaces, by number; an interface without a
    /// queue is left out. Called often: it must be cheap.
    ///
    /// # Errors
    /// As above.
    fn queues(&mut self, of: &[Interface], into: &mut Vec<(u32, InterfaceQueue)>)
    -> io::Result<()>;
}

/// rtnetlink in one network namespace.
pub struct RouteSource {
    route: Route,
    all_qdiscs: Vec<u8>,
    qdiscs: Vec<Qdisc>,
    found: Vec<Interface>,
}

impl RouteSource {
    /// Opens the socket in the namespace at `path` (`None`: the caller's).
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn open(path: Option<&Path>) -> io::Result<Self> {
        Ok(Self {
            route: Route::open(path)?,
            all_qdiscs: request(RTM_GETQDISC, NLM_F_DUMP, &[0; TCMSG], &[]),
            qdiscs: Vec::new(),
            found: Vec::new(),
        })
    }

    /// What these interfaces sent and dropped, and what waits there; one that is not there is left out.
    /// `sys` is where /sys is: cards tell their rate and their own queue there.
    ///
    /// # Errors
    /// When the kernel cannot be asked at the moment.
    pub fn links(&mut self, wanted: &[String], sys: &Path) -> io::Result<Vec<LinkUse>> {
        let mut found = std::mem::take(&mut self.found);
        let mut links = Vec::new();
        for name in wanted {
            // One by one: an answer does not say which was asked for.
            self.interfaces(std::slice::from_ref(name), &mut found)?;
            links.extend(found.first().cloned().map(|interface| (name.clone(), interface)));
        }
        found.clear();
        found.extend(links.iter().map(|(_, interface)| interface.clone()));
        let dumped = self.dump(&found);
        self.found = found;
        dumped?;
        let of = |(name, interface): &(String, Interface)| {
            let egress = Egress::of_card(sys, name, interface);
            link_use(name, interface, &self.qdiscs, &egress)
        };
        Ok(links.iter().map(of).collect())
    }

    fn dump(&mut self, of: &[Interface]) -> io::Result<()> {
        let qdiscs = &mut self.qdiscs;
        qdiscs.clear();
        self.route.ask(&self.all_qdiscs, |kind, message| {
            if kind == RTM_NEWQDISC && qdiscs.len() < QDISCS_MAX {
                qdiscs.extend(qdisc(message, of));
            }
        })
    }
}

impl InterfaceSource for RouteSource {
    fn interfaces(&mut self, wanted: &[String], into: &mut Vec<Interface>) -> io::Result<()> {
        into.clear();
        for name in wanted {
            let mut value = name.clone().into_bytes();
            value.push(0);
            let one = request(RTM_GETLINK, 0, &[0; IFINFO], &[(IFLA_IFNAME, &value)]);
            let asked = self.route.ask(&one, |kind, message| {
                if kind == RTM_NEWLINK
                    && let Some(interface) = interface(message)
                {
                    into.push(interface);
                }
            });
            match asked {
                // Taken away for the moment, or for good: the others still tell.
                Err(error)
                    if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => {}
                other => other?,
            }
        }
        Ok(())
    }

    fn queues(
        &mut self,
        of: &[Interface],
        into: &mut Vec<(u32, InterfaceQueue)>,
    ) -> io::Result<()> {
        self.dump(of)?;
        into.clear();
        into.extend(of.iter().filter_map(|interface| {
            fullest(&self.qdiscs, interface).map(|queue| (interface.index, queue))
        }));
        Ok(())
    }
}

fn interface(message: &[u8]) -> Option<Interface> {
    let mut found = Interface { index: u32_at(message, 4), ..Interface::default() };
    for (kind, value) in attributes(message.get(IFINFO..)?) {
        match kind {
            IFLA_MTU => found.mtu = u32_at(value, 0),
            IFLA_TXQLEN => found.tx_queue = u32_at(value, 0),
            IFLA_LINKINFO => found.software = true,
            IFLA_STATS64 => {
                found.sent_bytes = u64_at(value, STATS64_TX_BYTES);
                let wrapped = |at| u64_at(value, at) as u32;
                found.packets = (wrapped(STATS64_TX_PACKETS), wrapped(STATS64_TX_DROPPED));
            }
            _ => {}
        }
    }
    Some(found)
}

/// How much fits into a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Packets(u32),
    Bytes(u32),
    /// What the interface says.
    Interface,
    /// Nothing waits here.
    None,
}

/// A queueing discipline.
#[derive(Clone, Debug)]
pub(crate) struct Qdisc {
    pub(crate) interface: u32,
    pub(crate) handle: u32,
    pub(crate) parent: u32,
    pub(crate) kind: String,
    /// Its children are queues of their own.
    pub(crate) many: bool,
    limit: Limit,
    packets: u32,
    bytes: u32,
    /// Bytes and packets sent; packets dropped, those of its children among them.
    pub(crate) sent: (u64, u32),
    pub(crate) dropped: u32,
    /// Packets that it marked instead, where it is of a kind that marks: its parent does not count them.
    pub(crate) marked: Option<u32>,
    /// Bytes per second, of a shaper.
    pub(crate) rate: Option<u64>,
}

/// The queue of one message, if it belongs to one of these interfaces.
pub(crate) fn qdisc(message: &[u8], of: &[Interface]) -> Option<Qdisc> {
    let index = u32_at(message, 4);
    if message.len() < TCMSG || !of.iter().any(|interface| interface.index == index) {
        return None;
    }
    let body = &message[TCMSG..];
    let kind = text(nested(body, TCA_KIND)?);
    let all = nested(body, TCA_STATS2).unwrap_or_default();
    let stats = nested(all, TCA_STATS_QUEUE).unwrap_or_default();
    let basic = nested(all, TCA_STATS_BASIC).unwrap_or_default();
    let options = nested(body, TCA_OPTIONS).unwrap_or_default();
    let marked = match (kind.as_str(), nested(all, TCA_STATS_APP)) {
        ("fq_codel", Some(own)) => Some(u32_at(own, FQ_CODEL_MARKED)),
        _ => None,
    };
    Some(Qdisc {
        interface: index,
        handle: u32_at(message, 8),
        parent: u32_at(message, 12),
        many: kind == "mq" || kind == "mqprio",
        limit: limit(&kind, options),
        packets: u32_at(stats, 0),
        bytes: u32_at(stats, 4),
        sent: (u64_at(basic, 0), u32_at(basic, 8)),
        dropped: u32_at(stats, 8),
        marked,
        rate: rate(&kind, options),
        kind,
    })
}

/// The rate to which a qdisc shapes what it sends, in bytes per second. Above 4 GB/s it stands in an
/// attribute of its own. The classes of htb and hfsc are not looked at.
fn rate(kind: &str, options: &[u8]) -> Option<u64> {
    let wide = |number| nested(options, number).map(|value| u64_at(value, 0));
    let rate = match kind {
        // `tc_ratespec`: its rate is the last of its 12 bytes.
        "tbf" => wide(4).or_else(|| Some(u32_at(nested(options, 1)?, 8).into())),
        "cake" => wide(2),
        _ => None,
    };
    rate.filter(|rate| *rate > 0)
}

/// The limit as each kind tells it (linux/pkt_sched.h); 0 or absent is no limit of its own.
fn limit(kind: &str, options: &[u8]) -> Limit {
    let attribute = |number| nested(options, number).map_or(0, |value| u32_at(value, 0));
    let limit = match kind {
        "noqueue" => return Limit::None,
        "pfifo" | "pfifo_head_drop" => Limit::Packets(u32_at(options, 0)),
        "bfifo" => Limit::Bytes(u32_at(options, 0)),
        "netem" => Limit::Packets(u32_at(options, 4)),
        // Two rates of 12 bytes stand before it.
        "tbf" => Limit::Bytes(nested(options, 1).map_or(0, |parameters| u32_at(parameters, 24))),
        "fq" => Limit::Packets(attribute(1)),
        "fq_codel" | "codel" => Limit::Packets(attribute(2)),
        "fq_pie" | "pie" => Limit::Packets(attribute(if kind == "pie" { 2 } else { 1 })),
        _ => Limit::Interface,
    };
    match limit {
        Limit::Packets(0) | Limit::Bytes(0) => Limit::Interface,
        limit => limit,
    }
}

/// The queue of an interface that is fullest for its limit.
pub(crate) fn fullest(qdiscs: &[Qdisc], interface: &Interface) -> Option<InterfaceQueue> {
    let here = || qdiscs.iter().filter(|q| q.interface == interface.index);
    let root = here().find(|q| q.parent == TC_H_ROOT)?;
    // `1:` is the parent of what hangs at `1:1`.
    let child = |q: &&Qdisc| q.parent != TC_H_ROOT && q.parent >> 16 == root.handle >> 16;
    if root.many {
        let queues = here().filter(child).filter_map(|q| q.as_queue(q.limit, interface));
        return queues.max_by(|a, b| (a.length / a.limit).total_cmp(&(b.length / b.limit)));
    }
    // A shaper's own limit does not count where something else was put into it.
    let inner = here().filter(child).map(|q| q.limit).find(|limit| *limit != Limit::Interface);
    root.as_queue(inner.unwrap_or(root.limit), interface)
}

impl Qdisc {
    fn as_queue(&self, limit: Limit, interface: &Interface) -> Option<InterfaceQueue> {
        let packets = f64::from(self.packets);
        let (length, limit) = match limit {
            Limit::None => return None,
            Limit::Packets(limit) => (packets, f64::from(limit)),
            Limit::Interface => (packets, f64::from(interface.tx_queue)),
            Limit::Bytes(limit) => {
                let packet = f64::from(interface.mtu) + LINK_HEADER;
                (f64::from(self.bytes) / packet, f64::from(limit) / packet)
            }
        };
        (limit > 0.0).then_some(InterfaceQueue { length, limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETH: Interface = Interface {
        index: 3,
        mtu: 1486,
        tx_queue: 1000,
        sent_bytes: 0,
        packets: (0, 0),
        software: true,
    };

    /// A message of the kernel's: kind, parent, handle, options, packets and bytes that wait.
    fn message(kind: &str, place: (u32, u32), options: &[u8], queue: (u32, u32)) -> Vec<u8> {
        let mut fixed = vec![0; TCMSG];
        fixed[4..8].copy_from_slice(&3_u32.to_ne_bytes());
        fixed[8..12].copy_from_slice(&place.1.to_ne_bytes());
        fixed[12..16].copy_from_slice(&place.0.to_ne_bytes());
        let counts = [queue.0.to_ne_bytes(), queue.1.to_ne_bytes()].concat();
        let stats = request(0, 0, &[], &[(TCA_STATS_QUEUE, &counts)]);
        let name = format!("{kind}\0");
        let attributes: [(u16, &[u8]); 3] = [
            (TCA_KIND, name.as_bytes()),
            (TCA_OPTIONS, options),
            (TCA_STATS2, &stats[crate::netlink::HEADER..]),
        ];
        request(RTM_NEWQDISC, 0, &fixed, &attributes)[crate::netlink::HEADER..].to_vec()
    }

    fn of(messages: &[Vec<u8>]) -> Option<(f64, f64)> {
        let qdiscs: Vec<Qdisc> = messages.iter().filter_map(|m| qdisc(m, &[ETH])).collect();
        fullest(&qdiscs, &ETH).map(|queue| (queue.length, queue.limit))
    }

    fn attribute(number: u16, value: &[u8]) -> Vec<u8> {
        request(0, 0, &[], &[(number, value)])[crate::netlink::HEADER..].to_vec()
    }

    const ROOT: (u32, u32) = (TC_H_ROOT, 0x1_0000);

    #[test]
    fn the_limit_of_every_kind() {
        let hundred = 100_u32.to_ne_bytes();
        let mut tbf = vec![0_u8; 36];
        tbf[24..28].copy_from_slice(&150_000_u32.to_ne_bytes());
        let netem = [0_u32.to_ne_bytes(), hundred].concat();
        type Row = (&'static str, Vec<u8>, Option<(f64, f64)>);
        let table: [Row; 9] = [
            ("pfifo", hundred.to_vec(), Some((7.0, 100.0))),
            ("bfifo", 150_000_u32.to_ne_bytes().to_vec(), Some((6.0, 100.0))),
            ("tbf", attribute(1, &tbf), Some((6.0, 100.0))),
            ("netem", netem, Some((7.0, 100.0))),
            ("fq", attribute(1, &hundred), Some((7.0, 100.0))),
            ("fq_codel", attribute(2, &hundred), Some((7.0, 100.0))),
            ("pfifo_fast", vec![0; 20], Some((7.0, 1000.0))),
            ("htb", attribute(2, &[0; 20]), Some((7.0, 1000.0))),
            ("noqueue", Vec::new(), None),
        ];
        for (kind, options, expected) in table {
            assert_eq!(of(&[message(kind, ROOT, &options, (7, 9000))]), expected, "{kind}");
        }
    }

    #[test]
    fn a_card_with_many_queues_is_as_full_as_its_fullest() {
        let limit = 100_u32.to_ne_bytes();
        let queues = [
            message("mq", ROOT, &[], (60, 0)),
            message("pfifo", (0x1_0001, 0), &limit, (10, 0)),
            message("pfifo", (0x1_0002, 0), &limit, (50, 0)),
            message("noqueue", (0x1_0003, 0), &[], (0, 0)),
        ];
        assert_eq!(of(&queues), Some((50.0, 100.0)));
        assert_eq!(of(&queues[..1]), None);
    }

    #[test]
    fn what_was_put_into_a_shaper_has_the_limit() {
        let mut tbf = vec![0_u8; 36];
        tbf[24..28].copy_from_slice(&150_000_u32.to_ne_bytes());
        let queues = [
            message("tbf", ROOT, &attribute(1, &tbf), (40, 60_000)),
            message("pfifo", (0x1_0001, 0x2_0000), &50_u32.to_ne_bytes(), (40, 60_000)),
        ];
        assert_eq!(of(&queues), Some((40.0, 50.0)));
    }

    #[test]
    fn interfaces_that_nobody_asked_for_and_garbage_are_no_queues() {
        let mut other = message("pfifo", ROOT, &[0; 4], (1, 1));
        other[4..8].copy_from_slice(&9_u32.to_ne_bytes());
        assert_eq!(of(&[other]), None);
        let whole = message("tbf", ROOT, &attribute(1, &[0; 36]), (1, 1));
        for length in 0..whole.len() {
            let _ = of(&[whole[..length].to_vec()]);
        }
    }

    #[test]
    fn the_loopback_is_there_and_what_is_not_there_is_left_out() {
        let mut source = RouteSource::open(None).unwrap();
        let mut found = Vec::new();
        let wanted = ["none-such".to_owned(), "lo".to_owned()];
        source.interfaces(&wanted, &mut found).unwrap();
        assert!(found.len() == 1 && found[0].index > 0 && found[0].mtu >= 1500, "{found:?}");
        let mut queues = Vec::new();
        source.queues(&found, &mut queues).unwrap();
        assert!(queues.len() <= 1, "{queues:?}");
    }
}
