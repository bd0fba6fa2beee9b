// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a FlowSpec route matches, as bytes: RFC 8955 section 4, RFC 8956 section 3.
//!
//! Any bytes are read without a panic and within bounds. What is read and written again has the same meaning;
//! bytes that follow the rules of encoding are the same afterwards.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::cmp::Ordering;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Longest NLRI: its length has 12 bits.
pub const NLRI_MAX: usize = 4_095;
/// From this length on it takes two octets.
const LONG: usize = 0xf0;
/// The last entry of a list.
const END: u8 = 0x80;
const AND: u8 = 0x40;
const LESS: u8 = 0x04;
const GREATER: u8 = 0x02;
const EQUAL: u8 = 0x01;
const NOT: u8 = 0x02;
const MATCH: u8 = 0x01;

/// Numbers of component types (RFC 8955, section 4.2.2; RFC 8956, section 3).
pub mod kind {
    /// Destination prefix.
    pub const DESTINATION: u8 = 1;
    /// Source prefix.
    pub const SOURCE: u8 = 2;
    /// IP protocol; for IPv6 the upper-layer protocol.
    pub const PROTOCOL: u8 = 3;
    /// Source or destination port.
    pub const PORT: u8 = 4;
    /// Destination port.
    pub const DESTINATION_PORT: u8 = 5;
    /// Source port.
    pub const SOURCE_PORT: u8 = 6;
    /// TCP flags.
    pub const TCP_FLAGS: u8 = 9;
    /// Fragment.
    pub const FRAGMENT: u8 = 12;
    /// Flow label, IPv6 only.
    pub const FLOW_LABEL: u8 = 13;
}

/// IPv4 or IPv6: the same bytes mean different things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// AFI 1, SAFI 133.
    V4,
    /// AFI 2, SAFI 133.
    V6,
}

impl Family {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of a prefix.
    #[must_use]
    pub const fn of(net: &IpNet) -> Self {
        match net {
            IpNet::V4(_) => Self::V4,
            IpNet::V6(_) => Self::V6,
        }
    }
}

/// Why bytes are no FlowSpec NLRI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// They end too early.
    #[error("it ends inside of a component")]
    Short,
    /// Something follows, or the length is another.
    #[error("its length does not fit")]
    Length,
    /// Types do not rise, or none is there.
    #[error("its components are not in order")]
    Order,
    /// A type that is not defined for this family.
    #[error("component type {0} is not known")]
    Type(u8),
    /// A prefix that cannot be.
    #[error("a prefix is longer than an address")]
    Prefix,
    /// A value longer than its component may have.
    #[error("a value is too long")]
    Value,
}

/// A prefix; `offset` leading bits of IPv6 addresses match whatever they are (RFC 8956, section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The prefix; its host bits, and the bits before the offset, are zero.
    pub net: IpNet,
    /// 0 for IPv4.
    pub offset: u8,
}

impl Pattern {
    /// The addresses of a prefix.
    #[must_use]
    pub fn of(net: IpNet) -> Self {
        Self { net: net.trunc(), offset: 0 }
    }
}

/// One comparison of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numeric {
    /// Joined to the one before by "and" instead of "or".
    pub and: bool,
    /// True if the value of the packet is less.
    pub less: bool,
    /// True if it is greater.
    pub greater: bool,
    /// True if it is equal.
    pub equal: bool,
    /// With what it is compared.
    pub value: u64,
}

/// One comparison of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits {
    /// Joined to the one before by "and" instead of "or".
    pub and: bool,
    /// The result is negated.
    pub not: bool,
    /// All bits have to be set; else any of them.
    pub all: bool,
    /// Which bits.
    pub value: u64,
}

/// One part of a match. A packet has to match all parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Component {
    /// Types 1 and 2.
    Prefix(u8, Pattern),
    /// Types of numbers; the list is not empty.
    Numbers(u8, Vec<Numeric>),
    /// Types 9 and 12; the list is not empty.
    Bits(u8, Vec<Bits>),
}

impl Component {
    /// Its number.
    #[must_use]
    pub const fn kind(&self) -> u8 {
        match self {
            Self::Prefix(kind, _) | Self::Numbers(kind, _) | Self::Bits(kind, _) => *kind,
        }
    }
}

/// What a route matches: components by rising type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    family: Family,
    components: Vec<Component>,
}

impl Flow {
    /// # Errors
    /// No component, two of a type or types out of order, a type that is not of this family, an empty list.
    pub fn new(family: Family, components: Vec<Component>) -> Result<Self, Malformed> {
        let rising = components.windows(2).all(|two| two[0].kind() < two[1].kind());
        if components.is_empty() || !rising {
            return Err(Malformed::Order);
        }
        for component in &components {
            let kind = component.kind();
            let fits = match component {
                Component::Prefix(_, pattern) => {
                    let v4 = family == Family::V4 && pattern.offset == 0;
                    shape(family, kind) == Some(Shape::Prefix)
                        && Family::of(&pattern.net) == family
                        && (v4 || family == Family::V6)
                }
                Component::Numbers(_, list) => {
                    matches!(shape(family, kind), Some(Shape::Numbers(_))) && !list.is_empty()
                }
                Component::Bits(_, list) => {
                    matches!(shape(family, kind), Some(Shape::Bits(_))) && !list.is_empty()
                }
            };
            if !fits {
                return Err(Malformed::Type(kind));
            }
        }
        Ok(Self { family, components })
    }

    /// Its family.
    #[must_use]
    pub const fn family(&self) -> Family {
        self.family
    }

    /// Its components, by rising type.
    #[must_use]
    pub fn components(&self) -> &[Component] {
        &self.components
    }

    /// Reads one NLRI with its length.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(family: Family, bytes: &[u8]) -> Result<Self, Malformed> {
        let mut bytes = Bytes(bytes);
        let first = usize::from(bytes.one()?);
        let length =
            if first < LONG { first } else { (first & 0x0f) << 8 | usize::from(bytes.one()?) };
        if length != bytes.0.len() {
            return Err(Malformed::Length);
        }
        let mut components = Vec::new();
        // At most one of each type: they rise.
        while !bytes.0.is_empty() {
            let kind = bytes.one()?;
            if components.last().is_some_and(|last: &Component| last.kind() >= kind) {
                return Err(Malformed::Order);
            }
            components.push(component(family, kind, &mut bytes)?);
        }
        Self::new(family, components)
    }

    /// The NLRI with its length; values take as few octets as they can.
    ///
    /// # Errors
    /// [`Malformed::Length`]: it would be longer than [`NLRI_MAX`].
    pub fn encode(&self) -> Result<Vec<u8>, Malformed> {
        let body: Vec<u8> = self.components.iter().flat_map(written).collect();
        if body.len() > NLRI_MAX {
            return Err(Malformed::Length);
        }
        let mut out = Vec::with_capacity(body.len() + 2);
        if body.len() >= LONG {
            out.push(0xf0 | (body.len() >> 8) as u8);
        }
        out.push(body.len() as u8);
        out.extend(body);
        Ok(out)
    }

    /// The prefix of its destination; `None`: it has none, or only an end of one.
    #[must_use]
    pub fn destination(&self) -> Option<IpNet> {
        self.components.iter().find_map(|component| match component {
            Component::Prefix(kind::DESTINATION, Pattern { net, offset: 0 }) => Some(*net),
            _ => None,
        })
    }

    /// Which of two rules is looked at first: less is earlier (RFC 8955, section 5.1; RFC 8956, section 4).
    #[must_use]
    pub fn precedence(&self, other: &Self) -> Ordering {
        if self.family != other.family {
            // They never meet in one packet.
            return self.family.cmp(&other.family);
        }
        for (own, its) in self.components.iter().zip(&other.components) {
            let order = own.kind().cmp(&its.kind()).then_with(|| match (own, its) {
                (Component::Prefix(_, own), Component::Prefix(_, its)) => patterns(own, its),
                _ => contents(&written(own), &written(its)),
            });
            if order != Ordering::Equal {
                return order;
            }
        }
        // Who has a further component is more specific.
        other.components.len().cmp(&self.components.len())
    }
}

/// Lower offset, then lower address within the common length, then the longer prefix.
fn patterns(own: &Pattern, its: &Pattern) -> Ordering {
    let common = own.net.prefix_len().min(its.net.prefix_len());
    let cut = |net: &IpNet| match net {
        IpNet::V4(net) => u128::from(net.addr().to_bits()) << 96,
        IpNet::V6(net) => net.addr().to_bits(),
    };
    let mask = u128::MAX.checked_shl(128 - u32::from(common)).unwrap_or(0);
    own.offset
        .cmp(&its.offset)
        .then((cut(&own.net) & mask).cmp(&(cut(&its.net) & mask)))
        .then(its.net.prefix_len().cmp(&own.net.prefix_len()))
}

/// As strings of octets, but the longer of two with the same beginning comes first.
fn contents(own: &[u8], its: &[u8]) -> Ordering {
    let common = own.len().min(its.len());
    own[..common].cmp(&its[..common]).then(its.len().cmp(&own.len()))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Prefix,
    /// With the largest value.
    Numbers(u64),
    /// With the largest value.
    Bits(u64),
}

/// How a type is encoded; `None`: not defined.
const fn shape(family: Family, kind: u8) -> Option<Shape> {
    Some(match kind {
        kind::DESTINATION | kind::SOURCE => Shape::Prefix,
        // protocol, ICMP type and code
        kind::PROTOCOL | 7 | 8 => Shape::Numbers(0xff),
        // ports, packet length
        kind::PORT | kind::DESTINATION_PORT | kind::SOURCE_PORT | 10 => Shape::Numbers(0xffff),
        kind::TCP_FLAGS => Shape::Bits(0xffff),
        // DSCP
        11 => Shape::Numbers(0x3f),
        kind::FRAGMENT => Shape::Bits(0xff),
        kind::FLOW_LABEL if matches!(family, Family::V6) => Shape::Numbers(0xf_ffff),
        _ => return None,
    })
}

/// Bytes that are still to be read.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn one(&mut self) -> Result<u8, Malformed> {
        self.take(1).map(|one| one[0])
    }

    /// An operator and its value, which has 1, 2, 4 or 8 octets.
    fn operand(&mut self, most: u64) -> Result<(u8, u64), Malformed> {
        let operator = self.one()?;
        let octets = self.take(1 << (operator >> 4 & 3))?;
        let value = octets.iter().fold(0, |value: u64, octet| value << 8 | u64::from(*octet));
        if value > most { Err(Malformed::Value) } else { Ok((operator, value)) }
    }
}

fn component(family: Family, kind: u8, bytes: &mut Bytes<'_>) -> Result<Component, Malformed> {
    match shape(family, kind).ok_or(Malformed::Type(kind))? {
        Shape::Prefix => Ok(Component::Prefix(kind, pattern(family, bytes)?)),
        Shape::Numbers(most) => {
            let mut list = Vec::new();
            // Each entry takes bytes of at most NLRI_MAX.
            loop {
                let (operator, value) = bytes.operand(most)?;
                list.push(Numeric {
                    // There is nothing before the first to be joined with.
                    and: operator & AND != 0 && !list.is_empty(),
                    less: operator & LESS != 0,
                    greater: operator & GREATER != 0,
                    equal: operator & EQUAL != 0,
                    value,
                });
                if operator & END != 0 {
                    return Ok(Component::Numbers(kind, list));
                }
            }
        }
        Shape::Bits(most) => {
            let mut list = Vec::new();
            loop {
                let (operator, value) = bytes.operand(most)?;
                list.push(Bits {
                    and: operator & AND != 0 && !list.is_empty(),
                    not: operator & NOT != 0,
                    all: operator & MATCH != 0,
                    value,
                });
                if operator & END != 0 {
                    return Ok(Component::Bits(kind, list));
                }
            }
        }
    }
}

fn pattern(family: Family, bytes: &mut Bytes<'_>) -> Result<Pattern, Malformed> {
    let length = bytes.one()?;
    if family == Family::V4 {
        let octets = bytes.take(usize::from(length).div_ceil(8))?;
        let mut address = [0; 4];
        address.get_mut(..octets.len()).ok_or(Malformed::Prefix)?.copy_from_slice(octets);
        let net = Ipv4Net::new(Ipv4Addr::from(address), length).map_err(|_| Malformed::Prefix)?;
        return Ok(Pattern::of(net.into()));
    }
    let offset = bytes.one()?;
    // RFC 8956: offset < length < 129, or both are 0.
    if length > 128 || (offset >= length && (offset, length) != (0, 0)) {
        return Err(Malformed::Prefix);
    }
    let octets = bytes.take(usize::from(length - offset).div_ceil(8))?;
    let mut address = [0; 16];
    address[..octets.len()].copy_from_slice(octets);
    let bits = u128::from_be_bytes(address).checked_shr(u32::from(offset)).unwrap_or(0);
    let net =
        Ipv6Net::new(Ipv6Addr::from_bits(bits), length).map_err(|_| Malformed::Prefix)?.trunc();
    Ok(Pattern { net: net.into(), offset })
}

/// The octets of a component.
fn written(component: &Component) -> Vec<u8> {
    let mut out = vec![component.kind()];
    match component {
        Component::Prefix(_, pattern) => {
            let length = pattern.net.prefix_len();
            out.push(length);
            match pattern.net {
                IpNet::V4(net) => {
                    out.extend(&net.addr().octets()[..usize::from(length).div_ceil(8)]);
                }
                IpNet::V6(net) => {
                    out.push(pattern.offset);
                    let shift = u32::from(pattern.offset);
                    let bits = net.addr().to_bits().checked_shl(shift).unwrap_or(0);
                    let octets = usize::from(length.saturating_sub(pattern.offset)).div_ceil(8);
                    out.extend(&bits.to_be_bytes()[..octets]);
                }
            }
        }
        Component::Numbers(_, list) => {
            for (at, one) in list.iter().enumerate() {
                let bits = [(one.less, LESS), (one.greater, GREATER), (one.equal, EQUAL)];
                operand(&mut out, (at, list.len(), one.and), &bits, one.value);
            }
        }
        Component::Bits(_, list) => {
            for (at, one) in list.iter().enumerate() {
                let bits = [(one.not, NOT), (one.all, MATCH)];
                operand(&mut out, (at, list.len(), one.and), &bits, one.value);
            }
        }
    }
    out
}

fn operand(
    out: &mut Vec<u8>,
    (at, of, and): (usize, usize, bool),
    bits: &[(bool, u8)],
    value: u64,
) {
    let octets = value.to_be_bytes();
    let (size, first) = match value {
        0..=0xff => (0, 7),
        0x100..=0xffff => (1, 6),
        0x1_0000..=0xffff_ffff => (2, 4),
        _ => (3, 0),
    };
    let set = |(on, bit): &(bool, u8)| if *on { *bit } else { 0 };
    let end = if at + 1 == of { END } else { 0 };
    let and = if and && at > 0 { AND } else { 0 };
    out.push(end | and | size << 4 | bits.iter().map(set).fold(0, |all, bit| all | bit));
    out.extend(&octets[first..]);
}
