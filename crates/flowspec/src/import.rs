// SPDX-License-Identifier: Apache-2.0 OR MIT
//! FlowSpec routes of a router as a table of rules with rates: validated, bounded, and counted.
//!
//! A route counts only if all of this holds:
//! 1. Its destination is there, lies in a prefix of the configuration, and is not wider than [`Policy::widest`].
//! 2. RFC 8955 section 6 with RFC 9117: whoever sends it also sends the best route to that destination, or it began
//!    in our own AS; the AS that came last is the same; no more specific route comes from another AS.
//! 3. A rule can hold what it matches, and its action is a rate, or none: what it matches passes.
//! 4. No route that stands before it, matches some of the same packets, and holds at the router is missing here.
//!    Else it would drop what the router lets pass.
//!
//! [`Importer::update`] gets all routes each time, so a change of a unicast route takes back what hung on it.

use crate::attributes::Attributes;
use crate::nlri::{Family, Flow};
use crate::rule::{Flags, Rule, TCP, Unheld};
use ipnet::IpNet;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use tidegate_units::Rate;

/// Most entries of a table.
pub const ENTRIES_MAX: usize = 256;
/// Rates below are as good as a discard: one packet per second.
pub const PACKETS_MIN: f32 = 1.0;
/// The same in bytes: a packet of Ethernet's size.
pub const BYTES_MIN: f32 = 1_500.0;
/// Most entries whose destinations hold one address: what one packet may cost.
pub const ENTRIES_AT_MAX: usize = 16;

/// What may be imported.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Destinations of routes lie in one of these.
    pub prefixes: Vec<IpNet>,
    /// Shortest prefixes of a destination: IPv4, IPv6 (24, 48).
    pub widest: (u8, u8),
    /// Most routes, at most [`ENTRIES_MAX`].
    pub entries: usize,
    /// Our own AS.
    pub own_as: u32,
    /// The router from which routes come, and its AS.
    pub peer: (IpAddr, u32),
    /// Take routes with rate 0, or one below [`PACKETS_MIN`] or [`BYTES_MIN`], which drop everything or nearly so.
    pub discard: bool,
    /// Take routes that match packets of established connections of TCP.
    pub established: bool,
}

impl Policy {
    /// The defaults for prefixes and a peer.
    #[must_use]
    pub const fn new(prefixes: Vec<IpNet>, own_as: u32, peer: (IpAddr, u32)) -> Self {
        let (widest, entries) = ((24, 48), ENTRIES_MAX);
        Self { prefixes, widest, entries, own_as, peer, discard: false, established: false }
    }
}

/// A FlowSpec path as the speaker has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// Its family.
    pub family: Family,
    /// The NLRI with its length.
    pub nlri: Vec<u8>,
    /// Its attributes, each with flags, type and length.
    pub attributes: Vec<Vec<u8>>,
    /// From which peer it is.
    pub neighbor: IpAddr,
}

/// The best unicast route to a prefix.
#[derive(Clone, Debug, PartialEq)]
pub struct Unicast {
    /// The prefix.
    pub prefix: IpNet,
    /// From which peer it is.
    pub neighbor: IpAddr,
    /// ORIGINATOR_ID, if it came by a route reflector.
    pub originator: Option<Ipv4Addr>,
    /// The AS that was added last; `None`: its path is empty.
    pub last_as: Option<u32>,
}

/// Why a route does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// NLRI or attributes cannot be read.
    Malformed,
    /// Another peer has sent it.
    Peer,
    /// It has no destination.
    NoDestination,
    /// The destination lies in no prefix of the configuration.
    Outside,
    /// The destination is wider than allowed.
    Wide,
    /// It matches by what the table does not know.
    Unsupported,
    /// There is no unicast route to the destination (RFC 9117, section 4.1).
    NoRoute,
    /// Another one is the originator of the unicast route (RFC 9117, section 4.1).
    Originator,
    /// From outside, and its last AS is not that of the unicast route (RFC 9117, section 4.2).
    AsPath,
    /// A more specific unicast route comes from another AS (RFC 8955, section 6).
    MoreSpecific,
    /// It has an action that is no rate.
    Action,
    /// Two rates of one kind, a negative one, or no number.
    Rate,
    /// Rate 0 or nearly so, which the configuration does not allow.
    Discard,
    /// It matches more of TCP than first packets, which the configuration does not allow.
    Established,
    /// As many rules as one destination may have are there.
    Crowded,
    /// The table is full.
    Full,
    /// A route before it matches some of the same packets, and is refused though it counts at the router.
    Shadowed,
}

impl Refusal {
    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Peer => "peer",
            Self::NoDestination => "no-destination",
            Self::Outside => "outside",
            Self::Wide => "wide",
            Self::Unsupported => "unsupported",
            Self::NoRoute => "no-route",
            Self::Originator => "originator",
            Self::AsPath => "as-path",
            Self::MoreSpecific => "more-specific",
            Self::Action => "action",
            Self::Rate => "rate",
            Self::Discard => "discard",
            Self::Established => "established",
            Self::Crowded => "crowded",
            Self::Full => "full",
            Self::Shadowed => "shadowed",
        }
    }
}

/// One rule in force.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its place in the table of XDP and in its counters: the same for as long as the rule is there.
    pub slot: u16,
    /// How often that place has had another rule: counters of an earlier one do not count.
    pub generation: u32,
    /// Which packets.
    pub rule: Rule,
    /// Bytes per second.
    pub bytes: Option<Rate>,
    /// Packets per second.
    pub packets: Option<Rate>,
    /// What came and what was refused since the rule is there.
    pub hits: Hits,
}

/// What the place where the rule is enforced has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Packets that matched.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that were refused.
    pub refused: u64,
}

type Refused = HashMap<(Family, Vec<u8>), Refusal>;

/// Bytes and packets per second.
type Rates = (Option<Rate>, Option<Rate>);

/// A path that may count at the router.
struct Valid<'a> {
    path: &'a Path,
    flow: Flow,
    /// `None`: a rule cannot hold what it matches.
    rule: Option<Rule>,
    rates: Result<Rates, Refusal>,
}

/// One that counts here, too.
struct Taken {
    rule: Rule,
    rates: Rates,
}

/// The table, and what was refused.
#[derive(Debug)]
pub struct Importer {
    policy: Policy,
    /// In the order in which a packet meets them (RFC 8955, section 5.1).
    entries: Vec<Entry>,
    /// Of each slot.
    generations: Vec<u32>,
    /// Routes that are refused now.
    refused: Refused,
    counts: BTreeMap<Refusal, u64>,
}

impl Importer {
    /// Without routes.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        let generations = vec![0; policy.entries.min(ENTRIES_MAX)];
        Self {
            policy,
            entries: Vec::new(),
            generations,
            refused: HashMap::new(),
            counts: BTreeMap::new(),
        }
    }

    /// These are all routes that there are now. Whoever reads them bounds them ([`crate::gobgp::PATHS_MAX`]).
    pub fn update(&mut self, paths: &[Path], unicast: &[Unicast]) {
        let mut order = Vec::new();
        let mut refused = HashMap::new();
        for path in paths {
            match self.examine(path, unicast) {
                Ok(one) => order.push(one),
                Err(why) => self.refuse(&mut refused, path, why),
            }
        }
        order.sort_by(|one, other| one.flow.precedence(&other.flow));
        let taken = self.take(&order, &mut refused);
        self.entries = place(&self.entries, &mut self.generations, taken);
        self.refused = refused;
    }

    /// Those that count here, in their order. The first have room; one that is refused takes those behind it along
    /// that match some of the same packets.
    fn take(&mut self, order: &[Valid<'_>], refused: &mut Refused) -> Vec<Taken> {
        let (mut taken, mut missing): (Vec<Taken>, Vec<&Valid<'_>>) = (Vec::new(), Vec::new());
        let (mut crowd, mut seen) = (Crowd::default(), HashSet::new());
        for one in order {
            let verdict = one.rates.and_then(|rates| {
                let rule = one.rule.as_ref().ok_or(Refusal::Unsupported)?;
                match () {
                    () if missing.iter().any(|before| before.meets(rule)) => Err(Refusal::Shadowed),
                    () if seen.contains(rule) => Ok(None),
                    () if taken.len() >= self.generations.len() => Err(Refusal::Full),
                    () if !crowd.has_room(rule.destination) => Err(Refusal::Crowded),
                    () => Ok(Some(Taken { rule: rule.clone(), rates })),
                }
            });
            match verdict {
                Ok(Some(one)) => {
                    crowd.add(one.rule.destination);
                    seen.insert(one.rule.clone());
                    taken.push(one);
                }
                // Another encoding of a rule: the first holds.
                Ok(None) => {}
                Err(why) => {
                    self.refuse(refused, one.path, why);
                    // It drops all or nearly all: nothing passes by it that a rule behind could drop.
                    if why != Refusal::Discard {
                        missing.push(one);
                    }
                }
            }
        }
        taken
    }

    /// What was counted where the rule of this place is enforced, since that place has this rule. An earlier
    /// rule's counters are ignored.
    pub fn counted(&mut self, slot: u16, generation: u32, hits: Hits) {
        let entry = self.entries.iter_mut().find(|entry| entry.slot == slot);
        if let Some(entry) = entry.filter(|entry| entry.generation == generation) {
            entry.hits = hits;
        }
    }

    /// The rules in force, in the order in which a packet meets them. The first that matches holds.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// How many routes were refused for each reason; a route that stays refused counts once.
    #[must_use]
    pub const fn refused(&self) -> &BTreeMap<Refusal, u64> {
        &self.counts
    }

    /// Why a route is refused now.
    #[must_use]
    pub fn refusal(&self, family: Family, nlri: &[u8]) -> Option<Refusal> {
        self.refused.get(&(family, nlri.to_vec())).copied()
    }

    fn refuse(&mut self, now: &mut Refused, path: &Path, why: Refusal) {
        let key = (path.family, path.nlri.clone());
        if self.refused.get(&key) != Some(&why) {
            *self.counts.entry(why).or_default() += 1;
        }
        now.insert(key, why);
    }

    /// An error: it is not the router's, or matches nothing before rules of ours.
    fn examine<'a>(&self, path: &'a Path, unicast: &[Unicast]) -> Result<Valid<'a>, Refusal> {
        if path.neighbor != self.policy.peer.0 {
            return Err(Refusal::Peer);
        }
        let flow = Flow::decode(path.family, &path.nlri).map_err(|_| Refusal::Malformed)?;
        let attributes = Attributes::decode(&path.attributes).ok_or(Refusal::Malformed)?;
        let rule = match Rule::of(&flow) {
            Ok(rule) => rule,
            Err(Unheld::NoDestination) => return Err(Refusal::NoDestination),
            Err(Unheld::Component(_)) => {
                let rates = Err(Refusal::Unsupported);
                return Ok(Valid { path, flow, rule: None, rates });
            }
        };
        self.authorised(&rule)?;
        // A router may see unicast routes that we do not.
        let valid = self.validated(path, &attributes, &rule, unicast);
        let rates = valid.and_then(|()| self.rates(&attributes)).and_then(|rates| {
            let drops = rates != (None, None);
            let cuts = drops && !self.policy.established && touches_established(&rule);
            if cuts { Err(Refusal::Established) } else { Ok(rates) }
        });
        Ok(Valid { path, flow, rule: Some(rule), rates })
    }

    fn authorised(&self, rule: &Rule) -> Result<(), Refusal> {
        if !self.policy.prefixes.iter().any(|prefix| prefix.contains(&rule.destination)) {
            return Err(Refusal::Outside);
        }
        // What stands for IPv4 comes as IPv4, and the table holds both in one order.
        let mapped = IpNet::new(Ipv4Addr::UNSPECIFIED.to_ipv6_mapped().into(), 96);
        if mapped.is_ok_and(|mapped| {
            mapped.contains(&rule.destination) || rule.destination.contains(&mapped)
        }) {
            return Err(Refusal::Outside);
        }
        let (v4, v6) = self.policy.widest;
        let widest = if rule.family() == Family::V4 { v4 } else { v6 };
        if rule.destination.prefix_len() < widest { Err(Refusal::Wide) } else { Ok(()) }
    }

    /// RFC 8955 section 6, as RFC 9117 section 4 has it.
    fn validated(
        &self,
        path: &Path,
        attributes: &Attributes,
        rule: &Rule,
        unicast: &[Unicast],
    ) -> Result<(), Refusal> {
        let covers = |route: &&Unicast| route.prefix.contains(&rule.destination);
        let best = unicast.iter().filter(covers).max_by_key(|route| route.prefix.prefix_len());
        let outside = self.policy.peer.1 != self.policy.own_as;
        // An empty path over a session with another AS is malformed (RFC 4271, section 6.3).
        let local = attributes.local && !outside;
        let Some(best) = best else {
            return if local { Ok(()) } else { Err(Refusal::NoRoute) };
        };
        let same = match (attributes.originator, best.originator) {
            (None, None) => path.neighbor == best.neighbor,
            (own, its) => own == its,
        };
        if !local && !same {
            return Err(Refusal::Originator);
        }
        if outside && (attributes.last_as.is_none() || attributes.last_as != best.last_as) {
            return Err(Refusal::AsPath);
        }
        let specific = |route: &Unicast| {
            rule.destination.contains(&route.prefix)
                && route.prefix != best.prefix
                && route.last_as != best.last_as
        };
        if unicast.iter().any(specific) { Err(Refusal::MoreSpecific) } else { Ok(()) }
    }

    /// No rate at all: everything passes.
    fn rates(&self, attributes: &Attributes) -> Result<Rates, Refusal> {
        let rates = [attributes.bytes, attributes.packets];
        if attributes.other {
            return Err(Refusal::Action);
        }
        let bad = |rate: &f32| !rate.is_finite() || *rate < 0.0;
        if attributes.conflict || rates.iter().flatten().any(bad) {
            return Err(Refusal::Rate);
        }
        let least = [BYTES_MIN, PACKETS_MIN];
        let low =
            rates.iter().zip(least).any(|(rate, least)| rate.is_some_and(|rate| rate < least));
        if low && !self.policy.discard {
            return Err(Refusal::Discard);
        }
        let [bytes, packets] = rates.map(|rate| rate.map(|rate| Rate::per_second(rate.into())));
        Ok((bytes, packets))
    }
}

impl Valid<'_> {
    /// Whether a packet may match both. Of what no rule can hold only the destination is looked at.
    fn meets(&self, rule: &Rule) -> bool {
        match &self.rule {
            Some(own) => own.overlaps(rule),
            None => self.flow.destination().is_none_or(|destination| {
                destination.contains(&rule.destination) || rule.destination.contains(&destination)
            }),
        }
    }
}

/// Whether a rule matches more of TCP than packets with SYN and without ACK.
fn touches_established(rule: &Rule) -> bool {
    let first = |flags: Flags| {
        let (mask, value) = (Flags::FIRST.mask, Flags::FIRST.value);
        flags.mask & mask == mask && flags.value & mask == value
    };
    rule.protocol.is_none_or(|protocol| protocol == TCP) && !rule.flags.is_some_and(first)
}

/// Destinations of rules, and in how many of them each lies.
#[derive(Default)]
struct Crowd(Vec<(IpNet, usize)>);

impl Crowd {
    fn around(&self, net: IpNet) -> usize {
        self.0.iter().filter(|(other, _)| other.contains(&net)).count()
    }

    /// Whether one more rule for this destination leaves every address with few enough.
    fn has_room(&self, net: IpNet) -> bool {
        let inside =
            self.0.iter().filter(|(other, _)| net.contains(other)).map(|(_, depth)| *depth);
        inside.chain([self.around(net)]).all(|depth| depth < ENTRIES_AT_MAX)
    }

    fn add(&mut self, net: IpNet) {
        let depth = 1 + self.around(net);
        for (_, depth) in self.0.iter_mut().filter(|(other, _)| net.contains(other)) {
            *depth += 1;
        }
        self.0.push((net, depth));
    }
}

/// Rules that were there keep their place and their counters; others get a free place.
fn place(before: &[Entry], generations: &mut [u32], taken: Vec<Taken>) -> Vec<Entry> {
    let old: HashMap<&Rule, &Entry> = before.iter().map(|entry| (&entry.rule, entry)).collect();
    let stay: HashSet<u16> =
        taken.iter().filter_map(|one| old.get(&one.rule)).map(|entry| entry.slot).collect();
    let mut free = (0..generations.len() as u16).filter(|slot| !stay.contains(slot));
    let mut entries = Vec::with_capacity(taken.len());
    for Taken { rule, rates: (bytes, packets) } in taken {
        let (slot, generation, hits) = match old.get(&rule) {
            Some(entry) => (entry.slot, entry.generation, entry.hits),
            None => {
                // There are as many places as rules were taken.
                let Some(slot) = free.next() else { continue };
                let generation = &mut generations[usize::from(slot)];
                *generation = generation.wrapping_add(1);
                (slot, *generation, Hits::default())
            }
        };
        entries.push(Entry { slot, generation, rule, bytes, packets, hits });
    }
    entries
}
