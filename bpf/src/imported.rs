// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules that a router has sent, as the ingress hooks enforce them (bpf/import): rates of packets or bytes to a
//! destination. All of them are swapped in as one generation.

use crate::abi::{
    self, ImportCounts, ImportHead, ImportPeers, ImportPorts, ImportRule, ImportSpan,
};
use crate::core::Core;
use crate::plan::mapped;
use crate::swapped::Swapped;
use crate::{Error, maps::Maps};
use ipnet::IpNet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use tidegate_units::Rate;
use zerocopy::IntoBytes;

/// The map of the table.
pub(crate) const TABLE: &str = "tg_import";
/// The map of what was counted.
pub(crate) const COUNTS: &str = "tg_import_counts";

/// Longest time that one packet may take of a bucket: lower rates count as this one, 1 per 17 s.
const PACKET_COST_MAX: u64 = 1 << 46;
/// And one byte, 2 per second: a packet has up to 2^22 of them, and their product must fit.
const BYTE_COST_MAX: u64 = 1 << 41;
/// In a nanosecond.
const COST_UNIT: f64 = 4096.0;

/// All rules, and what holds for all of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imported {
    /// In the order of RFC 8955, section 5.1: the first that matches a packet holds for it.
    pub rules: Vec<ImportedRule>,
    /// Nothing is dropped, only counted.
    pub shadow: bool,
    /// Routers with which this host has BGP sessions: no rule applies to those.
    pub peers: Vec<IpAddr>,
    /// Destination ports of TCP to which no rule applies.
    pub never: Vec<u16>,
}

/// One rule. A packet has to match all that is said.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportedRule {
    /// The place of its buckets and counters, below 256; no other rule has it.
    pub slot: u16,
    /// How often that place has had another rule: buckets and counters begin anew with it.
    pub generation: u32,
    /// Where packets go.
    pub destination: IpNet,
    /// Where they come from.
    pub source: Option<IpNet>,
    /// Their protocol.
    pub protocol: Option<u8>,
    /// Destination ports, at most four ranges; none: any.
    pub to: Vec<RangeInclusive<u16>>,
    /// Source ports, likewise.
    pub from: Vec<RangeInclusive<u16>>,
    /// Flags of TCP: mask and value.
    pub flags: Option<(u8, u8)>,
    /// Packets per second.
    pub packets: Option<Rate>,
    /// Bytes of IP packets per second.
    pub bytes: Option<Rate>,
}

/// What a rule has matched and refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportedHits {
    /// See [`ImportedRule::slot`].
    pub slot: u16,
    /// See [`ImportedRule::generation`].
    pub generation: u32,
    /// Packets for which it was the first rule.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets above its rates, also those that shadow mode let pass.
    pub refused: u64,
}

/// The table, and which rules are in it.
#[derive(Debug)]
pub(crate) struct Table {
    swapped: Swapped,
    /// Slot and generation of each rule.
    slots: Vec<(u16, u32)>,
}

impl Core {
    /// Puts these rules in force, all at once, in place of those of before. Without [`crate::Plan::has_import`] no
    /// hook looks at them.
    ///
    /// # Errors
    /// More rules, ranges or peers than there is room for, or more than 16 rules for one destination; a map that
    /// cannot be written. Then the rules of before hold.
    pub fn set_imported(&mut self, imported: &Imported) -> Result<(), Error> {
        let rows = rows(imported)?;
        self.open_imported()?;
        let Some(table) = &mut self.imported else { return Ok(()) };
        table.swapped.swap(&self.maps, rows.into_iter())?;
        table.slots = imported.rules.iter().map(|rule| (rule.slot, rule.generation)).collect();
        Ok(())
    }

    /// Ends all rules: hooks find no table, and every packet goes on. It makes and writes no map.
    ///
    /// # Errors
    /// When the kernel refuses it; then the rules of before hold.
    pub fn clear_imported(&mut self) -> Result<(), Error> {
        self.maps.clear(TABLE)?;
        if let Some(table) = &mut self.imported {
            table.slots.clear();
        }
        Ok(())
    }

    /// Makes room for rules, if there is none yet: to make maps needs the privileges of a start. Rules of an earlier
    /// process stay in force.
    pub(crate) fn open_imported(&mut self) -> Result<(), Error> {
        if self.imported.is_some() {
            return Ok(());
        }
        let size = (abi::IMPORT_ROW_BYTES, abi::IMPORT_ROWS);
        let mut swapped = Swapped::adopt(&self.maps, TABLE, size)?;
        if !swapped.is_in_force() {
            swapped.swap(&self.maps, rows(&Imported::default())?.into_iter())?;
        }
        self.imported = Some(Table { swapped, slots: Vec::new() });
        Ok(())
    }

    /// What the rules in force have matched and refused, in their order.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn imported_hits(&self) -> Result<Vec<ImportedHits>, Error> {
        let slots = self.imported.iter().flat_map(|table| &table.slots);
        slots.map(|(slot, generation)| hits(&self.maps, *slot, *generation)).collect()
    }
}

fn hits(maps: &Maps, slot: u16, generation: u32) -> Result<ImportedHits, Error> {
    let mut hits = ImportedHits { slot, generation, ..ImportedHits::default() };
    for of_cpu in maps.read_percpu(COUNTS, slot.into())? {
        let counts: ImportCounts = abi::read(&of_cpu).unwrap_or_default();
        // Of an earlier rule, or of none.
        if counts.generation == generation {
            hits.packets += counts.packets;
            hits.bytes += counts.bytes;
            hits.refused += counts.refused;
        }
    }
    Ok(hits)
}

fn too_many(what: &str) -> Error {
    Error::Plan(format!("imported rules: too many {what}"))
}

/// All rows up to the last span.
fn rows(imported: &Imported) -> Result<Vec<Vec<u8>>, Error> {
    let Imported { rules, shadow, peers, never } = imported;
    if rules.len() > abi::IMPORT_RULES {
        return Err(too_many("rules"));
    }
    if peers.len() > abi::IMPORT_PEERS_MAX {
        return Err(too_many("peers"));
    }
    let spans = spans(rules)?;
    let head = ImportHead { spans: spans.len() as u32, shadow: (*shadow).into() };
    // Rows that stay empty become zeros: no peers, no rules.
    let mut rows = vec![Vec::new(); abi::IMPORT_FIRST_SPAN];
    rows[abi::IMPORT_HEAD] = head.as_bytes().to_vec();
    for (row, peers) in peers.chunks(abi::IMPORT_PEERS_ROW).enumerate() {
        let mut addr = ImportPeers::default();
        for (place, peer) in addr.addr.iter_mut().zip(peers) {
            *place = words(mapped(*peer), u32::from_ne_bytes);
        }
        rows[abi::IMPORT_PEERS + row] = addr.as_bytes().to_vec();
    }
    for port in never {
        let row = &mut rows[abi::IMPORT_PORTS + usize::from(port >> 10)];
        row.resize(abi::IMPORT_ROW_BYTES, 0);
        row[usize::from(port >> 3) % abi::IMPORT_ROW_BYTES] |= 1 << (port & 7);
    }
    for (at, one) in rules.iter().enumerate() {
        rows[abi::IMPORT_FIRST_RULE + at] = rule(one)?.as_bytes().to_vec();
    }
    rows.extend(spans.iter().map(|span| span.as_bytes().to_vec()));
    Ok(rows)
}

fn rule(rule: &ImportedRule) -> Result<ImportRule, Error> {
    if usize::from(rule.slot) >= abi::IMPORT_RULES {
        return Err(too_many("slots"));
    }
    let of = |asks: bool, bit: u8| if asks { bit } else { 0 };
    let (mask, source) = rule.source.map_or((0, 0), |net| (mask(&net), first(&net)));
    let (flags_mask, flags_value) = rule.flags.unwrap_or_default();
    let rates = [rule.packets, rule.bytes];
    let packet_cost = rule.packets.map_or(0, |rate| cost(rate, PACKET_COST_MAX));
    let byte_cost = rule.bytes.map_or(0, |rate| cost(rate, BYTE_COST_MAX));
    Ok(ImportRule {
        source: words(source.to_be_bytes(), u32::from_ne_bytes),
        source_mask: words(mask.to_be_bytes(), u32::from_ne_bytes),
        to: ports(&rule.to)?,
        from: ports(&rule.from)?,
        packet_cost,
        byte_cost,
        generation: rule.generation,
        slot: rule.slot,
        asks: of(rule.protocol.is_some(), abi::IMPORT_ASKS_PROTOCOL)
            | of(!rule.to.is_empty(), abi::IMPORT_ASKS_TO)
            | of(!rule.from.is_empty(), abi::IMPORT_ASKS_FROM)
            | of(rule.flags.is_some(), abi::IMPORT_ASKS_FLAGS)
            | of(matches!(rule.destination, IpNet::V6(_)), abi::IMPORT_ASKS_IPV6),
        protocol: rule.protocol.unwrap_or_default(),
        flags_mask,
        flags_value: flags_value & flags_mask,
        discards: rates.iter().flatten().any(|rate| rate.get() <= 0.0).into(),
        ..ImportRule::default()
    })
}

/// Time that one packet or byte takes, in 1/4096 ns; not 0.
fn cost(rate: Rate, most: u64) -> u64 {
    let cost = COST_UNIT * 1e9 / rate.get();
    if cost.is_finite() { (cost.round() as u64).clamp(1, most) } else { most }
}

fn ports(ranges: &[RangeInclusive<u16>]) -> Result<[ImportPorts; abi::IMPORT_RANGES], Error> {
    // What is unused holds no port.
    let mut ports = [ImportPorts { first: 1, last: 0 }; abi::IMPORT_RANGES];
    if ranges.len() > ports.len() {
        return Err(too_many("ranges of ports"));
    }
    for (place, range) in ports.iter_mut().zip(ranges) {
        *place = ImportPorts { first: *range.start(), last: *range.end() };
    }
    Ok(ports)
}

/// Spans of destinations that have the same rules, by rising begin. The first begins at zero.
fn spans(rules: &[ImportedRule]) -> Result<Vec<ImportSpan>, Error> {
    let nets: Vec<(u128, u128)> =
        rules.iter().map(|rule| (first(&rule.destination), last(&rule.destination))).collect();
    let ends = nets.iter().filter_map(|(_, last)| last.checked_add(1));
    let mut begins: Vec<u128> = nets.iter().map(|(first, _)| *first).chain(ends).collect();
    if !begins.is_empty() {
        begins.push(0);
    }
    begins.sort_unstable();
    begins.dedup();
    let span = |begin: u128| {
        let mut span = ImportSpan {
            first: words(begin.to_be_bytes(), u32::from_be_bytes),
            ..ImportSpan::default()
        };
        let holds = |(_, (first, last)): &(usize, &(u128, u128))| (*first..=*last).contains(&begin);
        for (at, _) in nets.iter().enumerate().filter(holds) {
            let place = span.rule.get_mut(span.rules as usize);
            *place.ok_or_else(|| too_many("rules for one destination"))? = at as u16;
            span.rules += 1;
        }
        Ok(span)
    };
    begins.into_iter().map(span).collect()
}

fn words(bytes: [u8; 16], word: impl Fn([u8; 4]) -> u32) -> [u32; 4] {
    std::array::from_fn(|at| word(std::array::from_fn(|byte| bytes[at * 4 + byte])))
}

/// The first address of a prefix, mapped.
fn first(net: &IpNet) -> u128 {
    u128::from_be_bytes(mapped(net.network()))
}

/// The last one.
fn last(net: &IpNet) -> u128 {
    first(net) | !mask(net)
}

/// The bits of a mapped address that a prefix fixes.
fn mask(net: &IpNet) -> u128 {
    let bits = u32::from(net.prefix_len()) + if matches!(net, IpNet::V4(_)) { 96 } else { 0 };
    u128::MAX.checked_shl(128 - bits).unwrap_or(0)
}
