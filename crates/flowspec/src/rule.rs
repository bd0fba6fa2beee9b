// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The part of FlowSpec that a limit needs, and that XDP can enforce: which packets, and how many.

use crate::nlri::{Bits, Component, Family, Flow, Malformed, Numeric, Pattern, kind};
use ipnet::IpNet;
use std::fmt;
use std::ops::RangeInclusive;
use tidegate_units::Rate;

/// Most ranges of destination or source ports in one rule: what one look-up may cost.
pub const RANGES_MAX: usize = 4;
/// TCP's number.
pub const TCP: u8 = 6;
/// UDP's number.
pub const UDP: u8 = 17;

/// TCP flags: those under the mask have to have this value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flags {
    /// Which are looked at (bit 1: SYN, bit 4: ACK).
    pub mask: u8,
    /// What they have to be.
    pub value: u8,
}

impl Flags {
    /// A connection's first packet: SYN without ACK. A SYN-ACK goes to who has opened a connection itself.
    pub const FIRST: Self = Self { mask: 0x12, value: 0x02 };
}

/// Ranges of ports, by rising begin, none touching another. Empty: every port.
pub type Ports = Vec<RangeInclusive<u16>>;

/// Which packets. A packet has to match all that is said.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Where they go.
    pub destination: IpNet,
    /// Where they come from; `None`: anywhere.
    pub source: Option<IpNet>,
    /// The protocol; `None`: every one.
    pub protocol: Option<u8>,
    /// Destination ports.
    pub to: Ports,
    /// Source ports.
    pub from: Ports,
    /// TCP flags; `None`: any.
    pub flags: Option<Flags>,
}

/// How many of them pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// Bytes per second: traffic-rate-bytes (RFC 8955, section 7.1).
    Bytes(Rate),
    /// Packets per second: traffic-rate-packets (RFC 8955, section 7.2).
    Packets(Rate),
}

/// A rule with what holds for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Which packets.
    pub rule: Rule,
    /// How many pass.
    pub action: Action,
}

/// Why a match is no rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unheld {
    /// It has no destination.
    #[error("it has no destination")]
    NoDestination,
    /// It has a component, or a value of it, that a rule cannot hold.
    #[error("component type {0} is not supported as it is used")]
    Component(u8),
}

impl Rule {
    /// Everything that goes to a prefix.
    #[must_use]
    pub const fn to(destination: IpNet) -> Self {
        Self {
            destination,
            source: None,
            protocol: None,
            to: Vec::new(),
            from: Vec::new(),
            flags: None,
        }
    }

    /// Its family.
    #[must_use]
    pub const fn family(&self) -> Family {
        Family::of(&self.destination)
    }

    /// Whether one packet can match both. It errs to that side.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let nets = |one: &IpNet, other: &IpNet| one.contains(other) || other.contains(one);
        let protocol = |rule: &Self| rule.protocol.or(rule.flags.map(|_| TCP));
        let ports = |one: &Ports, other: &Ports| {
            let meets = |a: &RangeInclusive<u16>| {
                other.iter().any(|b| a.start() <= b.end() && b.start() <= a.end())
            };
            one.is_empty() || other.is_empty() || one.iter().any(meets)
        };
        let both = |one: Option<Flags>, other: Option<Flags>| match (one, other) {
            (Some(one), Some(other)) => (one.value ^ other.value) & one.mask & other.mask == 0,
            _ => true,
        };
        let sources = match (&self.source, &other.source) {
            (Some(one), Some(other)) => nets(one, other),
            _ => true,
        };
        let protocols = match (protocol(self), protocol(other)) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        };
        nets(&self.destination, &other.destination)
            && sources
            && protocols
            && ports(&self.to, &other.to)
            && ports(&self.from, &other.from)
            && both(self.flags, other.flags)
    }

    /// As FlowSpec components.
    ///
    /// # Errors
    /// The source is of another family than the destination.
    pub fn flow(&self) -> Result<Flow, Malformed> {
        let mut components =
            vec![Component::Prefix(kind::DESTINATION, Pattern::of(self.destination))];
        components.extend(self.source.map(|net| Component::Prefix(kind::SOURCE, Pattern::of(net))));
        let equal =
            |value: u64| Numeric { and: false, less: false, greater: false, equal: true, value };
        if let Some(protocol) = self.protocol {
            components.push(Component::Numbers(kind::PROTOCOL, vec![equal(protocol.into())]));
        }
        for (kind, ports) in [(kind::DESTINATION_PORT, &self.to), (kind::SOURCE_PORT, &self.from)] {
            let list: Vec<Numeric> = ports
                .iter()
                .flat_map(|range| {
                    let (from, to) = (u64::from(*range.start()), u64::from(*range.end()));
                    if from == to {
                        return vec![equal(from)];
                    }
                    let least = Numeric { greater: true, ..equal(from) };
                    vec![least, Numeric { and: true, less: true, ..equal(to) }]
                })
                .collect();
            if !list.is_empty() {
                components.push(Component::Numbers(kind, list));
            }
        }
        if let Some(Flags { mask, value }) = self.flags {
            let set = (value & mask != 0).then_some((false, value & mask));
            let clear = (0..8).map(|bit| mask & !value & 1 << bit).filter(|bit| *bit != 0);
            let all = set.into_iter().chain(clear.map(|bit| (true, bit)));
            let list: Vec<Bits> = all
                .enumerate()
                .map(|(at, (not, bits))| Bits { and: at > 0, not, all: !not, value: bits.into() })
                .collect();
            if !list.is_empty() {
                components.push(Component::Bits(kind::TCP_FLAGS, list));
            }
        }
        Flow::new(self.family(), components)
    }

    /// The rule that these components are.
    ///
    /// # Errors
    /// The first component that a rule cannot hold.
    pub fn of(flow: &Flow) -> Result<Self, Unheld> {
        let mut rule: Option<Self> = None;
        for component in flow.components() {
            let unfit = Unheld::Component(component.kind());
            // Types rise, so the destination comes first.
            let known = rule.as_mut().ok_or(Unheld::NoDestination);
            match component {
                Component::Prefix(_, pattern) if pattern.offset != 0 => return Err(unfit),
                Component::Prefix(kind::DESTINATION, pattern) => rule = Some(Self::to(pattern.net)),
                Component::Prefix(_, pattern) => known?.source = Some(pattern.net),
                Component::Numbers(kind::PROTOCOL, list) => match ranges(list).as_deref() {
                    Some([one]) if one.start() == one.end() => {
                        known?.protocol = u8::try_from(*one.start()).ok();
                    }
                    _ => return Err(unfit),
                },
                Component::Numbers(kind::DESTINATION_PORT, list) => {
                    known?.to = ranges(list).ok_or(unfit)?;
                }
                Component::Numbers(kind::SOURCE_PORT, list) => {
                    known?.from = ranges(list).ok_or(unfit)?;
                }
                Component::Bits(kind::TCP_FLAGS, list) => {
                    known?.flags = Some(flags(list).ok_or(unfit)?);
                }
                Component::Numbers(..) | Component::Bits(..) => return Err(unfit),
            }
        }
        rule.ok_or(Unheld::NoDestination)
    }
}

/// The values for which a list is true, as few ranges; `None`: none, or too many ranges.
fn ranges(list: &[Numeric]) -> Option<Ports> {
    let mut found: Vec<(u64, u64)> = Vec::new();
    let mut rest = list;
    while let Some(first) = rest.first() {
        // "And" binds closer than "or".
        let more = rest[1..].iter().take_while(|one| one.and).count();
        let (group, others) = rest.split_at(more + 1);
        rest = others;
        let mut range = span(first)?;
        for one in &group[1..] {
            let (from, to) = span(one)?;
            range = (range.0.max(from), range.1.min(to));
        }
        if range.0 <= range.1 {
            found.push(range);
        }
    }
    found.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (from, to) in found {
        match joined.last_mut() {
            Some(last) if from <= last.1 + 1 => last.1 = last.1.max(to),
            _ => joined.push((from, to)),
        }
    }
    let port = |value: u64| u16::try_from(value).ok();
    let ports: Option<Ports> =
        joined.into_iter().map(|(from, to)| Some(port(from)?..=port(to)?)).collect();
    ports.filter(|ports| !ports.is_empty() && ports.len() <= RANGES_MAX)
}

/// The values for which one comparison is true; `None`: they are not one range, or there are none.
const fn span(one: &Numeric) -> Option<(u64, u64)> {
    const LAST: u64 = u16::MAX as u64;
    let value = one.value;
    Some(match (one.less, one.greater, one.equal) {
        (false, false, true) => (value, value),
        (false, true, true) => (value, LAST),
        (false, true, false) if value < LAST => (value + 1, LAST),
        (true, false, true) => (0, value),
        (true, false, false) if value > 0 => (0, value - 1),
        (true, true, true) => (0, LAST),
        _ => return None,
    })
}

/// A list of flags as mask and value; `None`: it has an "or", or contradicts itself.
fn flags(list: &[Bits]) -> Option<Flags> {
    let (mut set, mut clear) = (0_u8, 0_u8);
    for (at, one) in list.iter().enumerate() {
        let bits = u8::try_from(one.value).ok().filter(|bits| *bits != 0)?;
        let single = bits.count_ones() == 1;
        match () {
            () if at > 0 && !one.and => return None,
            () if !one.not && (one.all || single) => set |= bits,
            // "Not all of them" says of no single bit what it is; "not any" does.
            () if one.not && (!one.all || single) => clear |= bits,
            () => return None,
        }
    }
    (set & clear == 0).then_some(Flags { mask: set | clear, value: set })
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(rate) => write!(f, "{} bytes/s", rate.get()),
            Self::Packets(rate) => write!(f, "{} packets/s", rate.get()),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "to {}", self.destination)?;
        if let Some(source) = self.source {
            write!(f, " from {source}")?;
        }
        if let Some(protocol) = self.protocol {
            write!(f, " protocol {protocol}")?;
        }
        for (name, ports) in [("port", &self.to), ("source-port", &self.from)] {
            for (at, range) in ports.iter().enumerate() {
                let sign = if at == 0 { format!(" {name} ") } else { ",".to_owned() };
                write!(f, "{sign}{}", range.start())?;
                if range.start() != range.end() {
                    write!(f, "-{}", range.end())?;
                }
            }
        }
        match self.flags {
            Some(Flags::FIRST) => f.write_str(" syn"),
            Some(Flags { mask, value }) => write!(f, " flags {value:#x}/{mask:#x}"),
            None => Ok(()),
        }
    }
}
