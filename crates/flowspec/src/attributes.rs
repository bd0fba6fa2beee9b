// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attributes of BGP paths as bytes: what a route of ours carries, and what is read of those of others.

use crate::rule::Action;
use std::net::Ipv4Addr;
use tidegate_units::Rate;

const ORIGIN: u8 = 1;
const AS_PATH: u8 = 2;
const NEXT_HOP: u8 = 3;
const ORIGINATOR_ID: u8 = 9;
const COMMUNITIES: u8 = 16;
/// Extended communities with an IPv6 address (RFC 5701): redirects.
const COMMUNITIES_IPV6: u8 = 25;
/// The length has two octets.
const EXTENDED_LENGTH: u8 = 0x10;
const AS_SEQUENCE: u8 = 2;
const AS_CONFED_SEQUENCE: u8 = 3;
/// Kinds of extended communities (RFC 8955, section 7).
const RATE_BYTES: [u8; 2] = [0x80, 0x06];
const RATE_PACKETS: [u8; 2] = [0x80, 0x0c];

/// What is read of a path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attributes {
    /// The AS that was added last, if the path has one.
    pub last_as: Option<u32>,
    /// The path is empty, or has nothing but AS_CONFED_SEQUENCE: it began in our own AS or confederation.
    pub local: bool,
    /// ORIGINATOR_ID of a route reflector.
    pub originator: Option<Ipv4Addr>,
    /// Bytes per second, as it stands there.
    pub bytes: Option<f32>,
    /// Packets per second, as it stands there.
    pub packets: Option<f32>,
    /// Two actions of one kind say different things.
    pub conflict: bool,
    /// Another action of FlowSpec: redirect, mark, sample.
    pub other: bool,
}

impl Attributes {
    /// Reads attributes, each with its flags, type and length. AS numbers have four octets.
    /// `None`: one of them is malformed.
    #[must_use]
    pub fn decode(attributes: &[Vec<u8>]) -> Option<Self> {
        let mut found = Self { local: true, ..Self::default() };
        for attribute in attributes {
            let [flags, kind, rest @ ..] = attribute.as_slice() else { return None };
            let (length, value) = if flags & EXTENDED_LENGTH == 0 {
                let (length, value) = rest.split_first()?;
                (usize::from(*length), value)
            } else {
                let (length, value) = rest.split_first_chunk::<2>()?;
                (usize::from(u16::from_be_bytes(*length)), value)
            };
            if length != value.len() {
                return None;
            }
            match *kind {
                AS_PATH => found.path(value)?,
                ORIGINATOR_ID => {
                    found.originator = Some(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?));
                }
                COMMUNITIES => found.communities(value)?,
                COMMUNITIES_IPV6 => found.other = true,
                _ => {}
            }
        }
        Some(found)
    }

    fn path(&mut self, mut value: &[u8]) -> Option<()> {
        let mut first = true;
        while let [segment, count, rest @ ..] = value {
            let (numbers, others) = rest.split_at_checked(usize::from(*count) * 4)?;
            if *segment != AS_CONFED_SEQUENCE {
                self.local = false;
            }
            if first && *segment == AS_SEQUENCE {
                self.last_as = numbers.first_chunk().map(|number| u32::from_be_bytes(*number));
            }
            // Parts of a confederation stand before what is outside of it.
            first &= *segment == AS_CONFED_SEQUENCE;
            value = others;
        }
        value.is_empty().then_some(())
    }

    fn communities(&mut self, value: &[u8]) -> Option<()> {
        let (all, rest) = value.as_chunks::<8>();
        if !rest.is_empty() {
            return None;
        }
        for [a, b, _, _, rate @ ..] in all {
            let rate = f32::from_be_bytes(*rate);
            let held = match [*a, *b] {
                RATE_BYTES => &mut self.bytes,
                RATE_PACKETS => &mut self.packets,
                // traffic-action, redirect in its three forms, marking; and redirect to an address (IPv4, IPv6)
                [0x80, 0x07..=0x09 | 0x0b]
                | [0x81 | 0x82, 0x08]
                | [0x01 | 0x00, 0x0c]
                | [0x08, 0x00] => {
                    self.other = true;
                    continue;
                }
                _ => continue,
            };
            self.conflict |= held.is_some_and(|held| held.to_bits() != rate.to_bits());
            *held = Some(rate);
        }
        Some(())
    }
}

/// The extended community of an action: 0x8006 or 0x800c, no AS, the rate as IEEE single.
#[must_use]
pub fn community(action: Action) -> [u8; 8] {
    let (kind, rate) = match action {
        Action::Bytes(rate) => (RATE_BYTES, rate),
        Action::Packets(rate) => (RATE_PACKETS, rate),
    };
    let [a, b, c, d] = single(rate).to_be_bytes();
    [kind[0], kind[1], 0, 0, a, b, c, d]
}

/// The attributes of a route of ours, one by one.
#[must_use]
pub fn encode(action: Action) -> Vec<Vec<u8>> {
    let well_known = 0x40;
    let optional_transitive = 0xc0;
    let mut communities = vec![optional_transitive, COMMUNITIES, 8];
    communities.extend(community(action));
    vec![
        // IGP
        vec![well_known, ORIGIN, 1, 0],
        // FlowSpec has no next hop. GoBGP asks for one and sends none.
        vec![well_known, NEXT_HOP, 4, 0, 0, 0, 0],
        communities,
    ]
}

/// Finite, whatever the rate.
fn single(rate: Rate) -> f32 {
    (rate.get() as f32).min(f32::MAX)
}
