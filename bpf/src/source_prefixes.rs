// SPDX-License-Identifier: Apache-2.0 OR MIT
//! IPv4 prefixes of all services and of the exempt set, flattened into tables that are read,
//! not searched: at most four reads instead of two walks through a trie of thousands of prefixes.
//!
//! ```text
//! root[16 bits] ─► row, or block[8 bits] ─► row, or block[8 bits] ─► row
//! row: class of each service
//! ```
//!
//! What does not fit (a bound of blocks or rows) is left to the trie, which always has everything.

use crate::Plan;
use crate::abi::{SRC_BLOCK, SRC_BLOCKS, SRC_EXEMPT, SRC_ROWS, SrcPrefixes as Raw};
use crate::plan::mapped;
use ipnet::IpNet;
use std::collections::BTreeMap;
use tidegate_model::SERVICES_MAX;

/// Classes of one row, by service; 0: none.
type Row = [u8; SERVICES_MAX];

/// Bits of an address that the root looks at, and each block after it.
const ROOT_BITS: u32 = 16;
const BLOCK_BITS: u32 = 8;
const BLOCK_ENTRIES: usize = 1 << BLOCK_BITS;
/// Bits of a mapped address before those of IPv4.
const MAPPED_BITS: u8 = 96;

/// What a prefix says of its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    Never,
    Class { service: usize, class: u8 },
}

struct SrcPrefixes {
    root: Vec<u16>,
    blocks: Vec<[u16; BLOCK_ENTRIES]>,
    rows: Vec<Row>,
    numbers: BTreeMap<Row, u16>,
}

/// The tables of a plan as the kernel has them; `None` if they do not fit, or nothing is to be
/// said at all.
pub(crate) fn tables(plan: &Plan) -> Option<Vec<u8>> {
    let mut prefixes = prefixes(plan);
    if prefixes.is_empty() {
        return None;
    }
    // The longest come last and win; the order within a length does not matter.
    prefixes.sort_by_key(|(_, length, _)| *length);
    let mut flat = SrcPrefixes::new();
    for (address, length, says) in prefixes {
        flat.insert(address, length, says)?;
    }
    Some(flat.bytes())
}

/// What each prefix says of IPv4 addresses: address, length, meaning.
fn prefixes(plan: &Plan) -> Vec<(u32, u32, Says)> {
    let never = plan.config.exempt.sources.iter().map(|source| (source, Says::Never));
    let classes = plan.config.services.iter().enumerate().flat_map(|(service, planned)| {
        planned.classes.iter().zip(1_u8..).flat_map(move |(class, number)| {
            let says = Says::Class { service, class: number };
            class.sources.iter().map(move |source| (source, says))
        })
    });
    let all = never.chain(classes);
    all.filter_map(|(source, says)| v4(source).map(|(a, l)| (a, l, says))).collect()
}

/// The part of a prefix that lies in IPv4, seen as the trie sees it: mapped into IPv6.
fn v4(source: &IpNet) -> Option<(u32, u32)> {
    match source {
        IpNet::V4(net) => Some((net.network().to_bits(), net.prefix_len().into())),
        IpNet::V6(net) if net.prefix_len() >= MAPPED_BITS => {
            let address = net.network().to_ipv4_mapped()?;
            Some((address.to_bits(), (net.prefix_len() - MAPPED_BITS).into()))
        }
        IpNet::V6(net) => {
            let zero = std::net::Ipv4Addr::UNSPECIFIED;
            let covers = net.contains(&std::net::Ipv6Addr::from(mapped(zero.into())));
            covers.then_some((0, 0))
        }
    }
}

impl SrcPrefixes {
    fn new() -> Self {
        let nothing = [0; SERVICES_MAX];
        Self {
            root: vec![0; 1 << ROOT_BITS],
            blocks: Vec::new(),
            // Row 0 says nothing; row SRC_EXEMPT is known by its number.
            rows: vec![nothing; usize::from(SRC_EXEMPT) + 1],
            numbers: BTreeMap::from([(nothing, 0)]),
        }
    }

    /// Adds a prefix that is at least as long as all before it. `None`: there is no room.
    fn insert(&mut self, address: u32, length: u32, says: Says) -> Option<()> {
        let high = (address >> ROOT_BITS) as usize;
        if length <= ROOT_BITS {
            let count = 1_usize << (ROOT_BITS - length);
            for index in high..high + count {
                self.root[index] = self.overlay(self.root[index], says)?;
            }
            return Some(());
        }
        let block = self.block_at_root(high)?;
        let middle = (address >> BLOCK_BITS) as usize % BLOCK_ENTRIES;
        if length <= ROOT_BITS + BLOCK_BITS {
            let count = 1_usize << (ROOT_BITS + BLOCK_BITS - length);
            return self.fill(block, middle, (count, says));
        }
        let entry = self.blocks[block][middle];
        let below = self.block_of(entry)?;
        self.blocks[block][middle] = SRC_BLOCK | below as u16;
        let count = 1_usize << (32 - length);
        self.fill(below, address as usize % BLOCK_ENTRIES, (count, says))
    }

    fn fill(&mut self, block: usize, from: usize, (count, says): (usize, Says)) -> Option<()> {
        for index in from..from + count {
            self.blocks[block][index] = self.overlay(self.blocks[block][index], says)?;
        }
        Some(())
    }

    fn block_at_root(&mut self, index: usize) -> Option<usize> {
        let block = self.block_of(self.root[index])?;
        self.root[index] = SRC_BLOCK | block as u16;
        Some(block)
    }

    /// The block that an entry names, or a new one whose every entry is this one.
    fn block_of(&mut self, entry: u16) -> Option<usize> {
        if entry & SRC_BLOCK != 0 {
            return Some(usize::from(entry & !SRC_BLOCK));
        }
        if self.blocks.len() == SRC_BLOCKS {
            return None;
        }
        self.blocks.push([entry; BLOCK_ENTRIES]);
        Some(self.blocks.len() - 1)
    }

    /// The row of an entry, with this said of it, too.
    fn overlay(&mut self, entry: u16, says: Says) -> Option<u16> {
        debug_assert!(entry & SRC_BLOCK == 0, "shorter prefixes come first");
        let Says::Class { service, class } = says else { return Some(SRC_EXEMPT) };
        if entry == SRC_EXEMPT {
            return Some(SRC_EXEMPT);
        }
        let mut row = self.rows[usize::from(entry)];
        row[service] = class;
        if let Some(number) = self.numbers.get(&row) {
            return Some(*number);
        }
        if self.rows.len() == SRC_ROWS {
            return None;
        }
        let number = self.rows.len() as u16;
        self.rows.push(row);
        self.numbers.insert(row, number);
        Some(number)
    }

    /// `struct tg_src_prefixes`.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(size_of::<Raw>());
        let blocks = self.blocks.iter().flatten().copied();
        let entries = self.root.iter().copied().chain(blocks);
        entries.for_each(|entry| bytes.extend_from_slice(&entry.to_ne_bytes()));
        bytes.resize(2 * ((1 << ROOT_BITS) + SRC_BLOCKS * BLOCK_ENTRIES), 0);
        self.rows.iter().for_each(|row| bytes.extend_from_slice(row));
        bytes.resize(size_of::<Raw>(), 0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::plans;
    use std::net::Ipv4Addr;
    use tidegate_config::{ClassConfig, Exempt, ServiceConfig};

    /// What the kernel reads (`tg_src_row_of` in packet/classify.h): exempt, or a class.
    fn read(bytes: &[u8], address: Ipv4Addr, service: usize) -> Option<u8> {
        let entry = |index: usize| u16::from_ne_bytes([bytes[2 * index], bytes[2 * index + 1]]);
        let in_block = |entry: u16, below: u8| {
            let block = usize::from(entry & !SRC_BLOCK);
            (1 << 16) + block * BLOCK_ENTRIES + usize::from(below)
        };
        let [a, b, c, d] = address.octets();
        let mut found = entry(usize::from(u16::from_be_bytes([a, b])));
        for below in [c, d] {
            if found & SRC_BLOCK != 0 {
                found = entry(in_block(found, below));
            }
        }
        let rows = 2 * ((1 << 16) + SRC_BLOCKS * BLOCK_ENTRIES);
        let class = bytes[rows + usize::from(found) * SERVICES_MAX + service];
        (found != SRC_EXEMPT).then_some(class)
    }

    /// What the trie says: the longest prefix of each key.
    fn expected(plan: &Plan, address: Ipv4Addr, service: usize) -> Option<u8> {
        let fits = |source: &&IpNet| {
            v4(source).is_some_and(|(net, length)| {
                (net ^ address.to_bits()).checked_shr(32 - length).unwrap_or(0) == 0
            })
        };
        if plan.config.exempt.sources.iter().any(|source| fits(&source)) {
            return None;
        }
        let of_class = |(class, number): (&ClassConfig, u8)| {
            let longest = class.sources.iter().filter(fits).filter_map(v4).map(|(_, l)| l).max();
            longest.map(|length| (length, number))
        };
        let classes = plan.config.services[service].classes.iter().zip(1..).filter_map(of_class);
        Some(classes.max().map_or(0, |(_, number)| number))
    }

    fn plan(classes: &[&[&[&str]]], never: &[&str]) -> Plan {
        let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let class = |sources: &&[&str]| ClassConfig {
            name: String::new(),
            sources: nets(sources),
            dscp: None,
            priority: 0,
            weight: 1,
        };
        let service = |(index, classes): (usize, &&[&[&str]])| ServiceConfig {
            classes: classes.iter().map(class).collect(),
            ..plans::service(&format!("s{index}"), &[])
        };
        let mut plan = plans::plan(classes.iter().enumerate().map(service).collect());
        plan.config.exempt = Exempt { sources: nets(never), ..Exempt::default() };
        plan
    }

    fn assert_same(plan: &Plan, bytes: &[u8], address: Ipv4Addr) {
        for service in 0..plan.config.services.len() {
            let (read, wanted) = (read(bytes, address, service), expected(plan, address, service));
            assert_eq!(read, wanted, "{address} at service {service}");
        }
    }

    /// Both sides of both ends of every prefix, of every length.
    #[test]
    fn the_longest_prefix_of_each_service_wins_at_every_edge() {
        let plan = plan(
            &[
                &[&["0.0.0.0/0"], &["10.0.0.0/8", "10.1.2.128/25"], &["10.1.2.3/32"]],
                &[&["10.1.0.0/16"], &["10.1.2.0/24", "128.0.0.0/1"], &["10.1.2.0/23"]],
                &[],
            ],
            &["10.1.2.64/26", "192.0.2.0/31", "::ffff:198.51.100.0/120", "2001:db8::/32"],
        );
        let bytes = tables(&plan).unwrap();
        assert_eq!(bytes.len(), size_of::<Raw>());
        for (address, length, _) in prefixes(&plan) {
            let last = address | u32::MAX.checked_shr(length).unwrap_or(0);
            for near in [address.wrapping_sub(1), address, last, last.wrapping_add(1)] {
                assert_same(&plan, &bytes, Ipv4Addr::from_bits(near));
            }
        }
    }

    /// A prefix of all IPv6 holds for mapped addresses, too, in the trie; so it does here.
    #[test]
    fn short_ipv6_prefixes_cover_ipv4_as_in_the_trie() {
        let all = plan(&[&[&["::/0"]]], &[]);
        assert_eq!(read(&tables(&all).unwrap(), Ipv4Addr::new(192, 0, 2, 1), 0), Some(1));
        let other = plan(&[&[&["2001:db8::/32"]]], &[]);
        assert_eq!(tables(&other), None, "nothing is said about IPv4");
    }

    /// Thousands of prefixes of random lengths against the definition.
    #[test]
    fn random_prefixes_are_read_as_searched() {
        let mut state = 1_u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 32) as u32
        };
        let mut plan = plan(&[&[&[], &[], &[]], &[&[], &[]]], &[]);
        for n in 0..600 {
            // Dense enough that they nest.
            let address = Ipv4Addr::from_bits(0x0a00_0000 | random() & 0x0003_ffff);
            let length = 8 + (random() % 25) as u8;
            let net = ipnet::Ipv4Net::new(address, length).unwrap().trunc().into();
            let service = n % 3;
            match plan.config.services.get_mut(service) {
                Some(service) => {
                    let class = random() as usize % service.classes.len();
                    // One prefix belongs to one class of a service.
                    if !service.classes.iter().any(|class| class.sources.contains(&net)) {
                        service.classes[class].sources.push(net);
                    }
                }
                None if length > 20 => plan.config.exempt.sources.push(net),
                None => {}
            }
        }
        let bytes = tables(&plan).unwrap();
        for _ in 0..5000 {
            assert_same(&plan, &bytes, Ipv4Addr::from_bits(0x0a00_0000 | random() & 0x0003_ffff));
        }
    }

    #[test]
    fn what_does_not_fit_is_left_to_the_trie() {
        let nets = |count: usize| -> Vec<IpNet> {
            let net = |n: usize| Ipv4Addr::from_bits((n as u32) << ROOT_BITS | 1 << BLOCK_BITS);
            (0..count).map(|n| ipnet::Ipv4Net::new(net(n), 24).unwrap().into()).collect()
        };
        let mut plan = plan(&[], &[]);
        plan.config.exempt.sources = nets(SRC_BLOCKS);
        assert!(tables(&plan).is_some());
        plan.config.exempt.sources = nets(SRC_BLOCKS + 1);
        assert!(tables(&plan).is_none());
    }
}
