// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Marks of congested routers and overloaded servers in packets (bpf/mark): programs and maps of their own, beside the
//! dataplane. Nothing is pinned: without the daemon nothing is marked.

use crate::abi::{self, MarkCounts, MarkRouter, MarkSeen, RouterOption, Settings};
use crate::dataplane::Dataplane;
use crate::maps::Maps;
use crate::objects::{self, Load};
use crate::syscall::{self, Side as Way};
use crate::taps::{Kind, Taps};
use crate::{Error, Interface};
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle, ObjectBuilder, ProgramAttachType};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use tidegate_config::{InBandConfig, OptionConfig, Side};
use tidegate_units::Nanos;
use zerocopy::{FromZeros, IntoBytes};

/// One packet in so many is marked by a router that is congested.
const ONE_IN: u32 = 16;
/// A router that has added nothing for so long begins anew: the servers count from there.
const PAUSE: Nanos = Nanos::SECOND;
/// Of 1/65535, as a chance of 2^32.
const SHARE_TO_CHANCE: u32 = 0x1_0001;
/// What the daemon says holds for so long: a daemon that hangs marks nothing.
const HOLDS: Nanos = Nanos::from_secs(3);

const MARKS: &str = "tg_marks";
const SOURCES: &str = "tg_mark_sources";
const SERVERS: &str = "tg_mark_servers";
const LINKS: &str = "tg_mark_links";
const ROUTERS: &str = "tg_mark_routers";
const COUNTS: &str = "tg_mark_counts";
/// Sizes of the values, which the other side of the ABI has to have.
const SIZES: [(&str, usize); 6] = [
    (MARKS, size_of::<abi::Marks>()),
    (SOURCES, size_of::<MarkSeen>()),
    (SERVERS, size_of::<MarkSeen>()),
    (LINKS, size_of::<u64>()),
    (ROUTERS, size_of::<MarkRouter>()),
    (COUNTS, size_of::<MarkCounts>()),
];
/// Size of `struct __sk_buff` (linux/bpf.h), and where its `gso_size` stands.
const SKB_SIZE: usize = 192;
const SKB_GSO_SIZE: usize = 176;
/// What the programs say of every packet.
const TCX_NEXT: i32 = -1;

/// The compiled programs. Those of the build by default; tests bring those of other compilers.
#[derive(Clone, Debug)]
pub struct MarkObjects {
    /// `hook/mark_in.bpf.c`.
    pub ingress: Vec<u8>,
    /// `hook/mark_out.bpf.c`.
    pub egress: Vec<u8>,
}

impl Default for MarkObjects {
    fn default() -> Self {
        Self {
            ingress: include_bytes!(concat!(env!("OUT_DIR"), "/mark_in.bpf.o")).to_vec(),
            egress: include_bytes!(concat!(env!("OUT_DIR"), "/mark_out.bpf.o")).to_vec(),
        }
    }
}

/// What this host says by marks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostMarks {
    /// As a router: the numbers of the interfaces to its servers that are congested.
    pub congested: Vec<u32>,
    /// As a server: it refuses.
    pub overloaded: bool,
}

/// Options of routers (bpf/mark/option.h), since this was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OptionCounts {
    /// As a router: packets that got one.
    pub added: u64,
    /// As a router: packets that should have got one and had no room.
    pub no_room: u64,
    /// As a server: what routers that are known have said since they began last, by their addresses.
    pub routers: BTreeMap<Ipv4Addr, RouterEntries>,
    /// As a server: entries of others.
    pub unknown_routers: u64,
}

/// What one router has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouterEntries {
    /// Entries that were read.
    pub entries: u64,
    /// About so many packets that have passed it stand behind them.
    pub packets: u64,
    /// When the last was read.
    pub at: Nanos,
}

/// What this host adds as a router, and when it has done so last.
#[derive(Debug, Default)]
struct Adding {
    /// Another one each time that it begins.
    sequence: u16,
    added: u64,
    /// `None`: it has not begun since.
    at: Option<Nanos>,
}

impl Adding {
    /// Takes the count of a tick.
    fn see(&mut self, now: Nanos, added: u64) {
        if added != self.added {
            (self.added, self.at) = (added, Some(now));
        } else if self.at.is_some_and(|at| now.since(at) >= PAUSE) {
            (self.sequence, self.at) = (self.sequence.wrapping_add(1), None);
        }
    }
}

/// The share of packets that get the option, in 1/65535.
fn share(option: &OptionConfig) -> u16 {
    u16::MAX / option.one_in.max(1)
}

/// The marks of this host.
#[derive(Debug)]
pub struct Marks {
    objects: MarkObjects,
    maps: Maps,
    /// Of the hash by which addresses have their places.
    key: [u64; abi::KEYS],
    bits: InBandConfig,
    adding: Adding,
    /// Options end here: this host is no router.
    ends: bool,
    /// The routers whose options are read, as the kernel has them.
    routers: BTreeSet<Ipv4Addr>,
    taps: Taps,
    /// The interfaces that are congested, as the kernel has them.
    congested: BTreeSet<u32>,
    /// The latest time at which a server was noted that was told of.
    told: Nanos,
}

impl Marks {
    /// Makes the maps. Nothing is marked before [`Self::attach`] and [`Self::say`].
    ///
    /// # Errors
    /// When the kernel refuses a map.
    pub fn load(bits: &InBandConfig) -> Result<Self, Error> {
        Self::load_objects(bits, MarkObjects::default())
    }

    /// The same with given objects.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_objects(bits: &InBandConfig, objects: MarkObjects) -> Result<Self, Error> {
        objects::quiet();
        let maps = create_maps(&objects)?;
        let [plain, at_border] = [false, true].map(|border| Kind { border, ..Kind::default() });
        let kinds = [plain, at_border, Kind { to_servers: true, ..plain }];
        let taps = Taps::new(("marks at tcx", true), kind_of, Kind::on_every_link(&kinds));
        let key = objects::keys(crate::core::seed()?);
        Ok(Self {
            objects,
            maps,
            key,
            bits: bits.clone(),
            adding: Adding { sequence: crate::core::seed()?[0] as u16, ..Adding::default() },
            ends: false,
            routers: BTreeSet::new(),
            taps,
            congested: BTreeSet::new(),
            told: Nanos::ZERO,
        })
    }

    /// The bits that are marks.
    #[must_use]
    pub const fn bits(&self) -> &InBandConfig {
        &self.bits
    }

    /// Other bits are marks from the next [`Self::say`] on.
    pub fn follow(&mut self, bits: &InBandConfig) {
        self.bits.clone_from(bits);
    }

    /// Attaches to these interfaces where it is not attached yet, and detaches from others. Returns where it is
    /// not, one sentence each.
    pub fn attach(
        &mut self,
        interfaces: &[Interface],
        dataplane: Option<&Dataplane>,
    ) -> Vec<String> {
        let Self { objects, maps, key, taps, .. } = self;
        let load = |side, kind| program(objects, (maps, *key), (side, kind), true);
        taps.attach(interfaces, dataplane, &load)
    }

    /// Whether it is attached to every interface that it was told.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.taps.is_attached()
    }

    /// What this host says from now on, for 3 s.
    ///
    /// # Errors
    /// When the map cannot be written.
    pub fn say(&mut self, now: Nanos, says: &HostMarks) -> Result<(), Error> {
        self.say_congested(now + HOLDS, &says.congested)?;
        let counts: MarkCounts = self.maps.read(COUNTS, 0)?;
        self.adding.see(now, counts.added);
        let option = self.bits.option.as_ref();
        let marks = abi::Marks {
            until_ns: (now + HOLDS).0,
            chance: if says.congested.is_empty() { 0 } else { u32::MAX / ONE_IN },
            overloaded: says.overloaded.into(),
            router: 1 << self.bits.router_bit,
            server: 1 << self.bits.server_bit,
            adds: option.map_or(0, |option| u32::from(share(option)) * SHARE_TO_CHANCE),
            ends: self.ends.into(),
            option: option.map_or_else(RouterOption::new_zeroed, |option| self.entry(option)),
            pad: 0,
        };
        self.maps.write(MARKS, &0_u32.to_ne_bytes(), marks.as_bytes())
    }

    /// The option as it stands in a packet.
    fn entry(&self, of: &OptionConfig) -> RouterOption {
        RouterOption {
            kind: abi::OPTION_KIND as u8,
            length: size_of::<RouterOption>() as u8,
            pad: 0,
            addr: u32::from_ne_bytes(of.address.octets()),
            share: share(of).to_be(),
            sequence: self.adding.sequence.to_be(),
        }
    }

    /// Options end at this host, and those of these routers are read; `None`: it is a router, and they go on.
    ///
    /// # Errors
    /// When the map cannot be written. What is missing is written by the next call.
    pub fn know(&mut self, routers: Option<&[Ipv4Addr]>) -> Result<(), Error> {
        self.ends = routers.is_some();
        let routers = routers.unwrap_or_default();
        let routers: BTreeSet<_> = routers.iter().copied().take(abi::MARK_ROUTERS).collect();
        let map = self.maps.get(ROUTERS)?;
        for gone in self.routers.difference(&routers) {
            match map.delete(&gone.octets()) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                deleted => deleted.map_err(Error::map(ROUTERS))?,
            }
        }
        self.routers.retain(|router| routers.contains(router));
        for router in routers {
            if !self.routers.contains(&router) {
                let nothing = [0_u8; size_of::<MarkRouter>()];
                self.maps.write(ROUTERS, &router.octets(), &nothing)?;
                self.routers.insert(router);
            }
        }
        Ok(())
    }

    /// What was added to packets, and what routers have said in them.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn options(&self) -> Result<OptionCounts, Error> {
        let counts: MarkCounts = self.maps.read(COUNTS, 0)?;
        let mut options = OptionCounts {
            added: counts.added,
            no_room: counts.no_room,
            unknown_routers: counts.unknown_routers,
            ..OptionCounts::default()
        };
        let map = self.maps.get(ROUTERS)?;
        for router in &self.routers {
            let value = map.lookup(&router.octets(), MapFlags::ANY).map_err(Error::map(ROUTERS))?;
            let value = value.as_deref().and_then(abi::read::<MarkRouter>);
            let Some(said) = value.filter(|said| said.entries > 0) else { continue };
            let each = f64::from(u16::MAX) / f64::from(said.share.max(1));
            let packets = (said.entries as f64 * each).round() as u64;
            let said = RouterEntries { entries: said.entries, packets, at: Nanos(said.at_ns) };
            options.routers.insert(*router, said);
        }
        Ok(options)
    }

    fn say_congested(&mut self, until: Nanos, numbers: &[u32]) -> Result<(), Error> {
        let numbers: BTreeSet<u32> = numbers.iter().copied().take(abi::MARK_LINKS).collect();
        let map = self.maps.get(LINKS)?;
        for over in self.congested.difference(&numbers) {
            match map.delete(&over.to_ne_bytes()) {
                // A write that failed: it is not there.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                deleted => deleted.map_err(Error::map(LINKS))?,
            }
        }
        // Those that are written from here on are deleted in any case.
        self.congested = numbers;
        for number in &self.congested {
            self.maps.write(LINKS, &number.to_ne_bytes(), &until.0.to_ne_bytes())?;
        }
        Ok(())
    }

    /// Servers that have said since the last call that they are overloaded: what packets say, which anyone can send who
    /// is inside the border.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn servers(&mut self) -> Result<Vec<Ipv4Addr>, Error> {
        let (mut servers, mut latest) = (Vec::new(), self.told);
        for slot in 0..abi::MARK_SERVERS as u32 {
            let seen: MarkSeen = self.maps.read(SERVERS, slot)?;
            if seen.addr != 0 && seen.at_ns > self.told.0 {
                servers.push(Ipv4Addr::from(seen.addr.to_ne_bytes()));
                latest = latest.max(Nanos(seen.at_ns));
            }
        }
        self.told = latest;
        Ok(servers)
    }

    /// Its programs without an interface, for tests; at a border or not.
    ///
    /// # Errors
    /// When one cannot be loaded.
    #[doc(hidden)]
    pub fn hooks(&self, border: bool) -> Result<MarkHooks, Error> {
        self.hooks_of(Kind { border, ..Kind::default() })
    }

    /// The same of an interface to servers. Packets of tests leave by the number 1.
    ///
    /// # Errors
    /// When one cannot be loaded.
    #[doc(hidden)]
    pub fn hooks_to_servers(&self) -> Result<MarkHooks, Error> {
        self.hooks_of(Kind { to_servers: true, ..Kind::default() })
    }

    fn hooks_of(&self, kind: Kind) -> Result<MarkHooks, Error> {
        let of = |side| program(&self.objects, (&self.maps, self.key), (side, kind), false);
        Ok(MarkHooks([of(Way::Ingress)?, of(Way::Egress)?]))
    }

    /// Instructions that the verifier processed, by program, for tests.
    ///
    /// # Errors
    /// When one cannot be loaded.
    #[doc(hidden)]
    pub fn budgets(&self) -> Result<[(&'static str, u32); 2], Error> {
        let MarkHooks([ingress, egress]) = self.hooks(true)?;
        let of = objects::verified_insns;
        Ok([("mark_in", of(&ingress)?), ("mark_out", of(&egress)?)])
    }
}

/// What its programs differ in.
fn kind_of(interface: &Interface, plain: bool) -> Kind {
    let to_servers = interface.config.side == Side::Servers;
    Kind { plain, border: interface.border != 0 && !to_servers, to_servers, ..Kind::default() }
}

/// The programs of both sides, for packets of tests.
#[doc(hidden)]
#[derive(Debug)]
pub struct MarkHooks([OwnedFd; 2]);

impl MarkHooks {
    /// Gives a packet to one of them: what passes.
    ///
    /// # Errors
    /// When it cannot be run, or the packet did not pass.
    pub fn give(&self, egress: bool, frame: &[u8]) -> Result<Vec<u8>, Error> {
        self.run(egress, frame, &mut [])
    }

    /// The same on the way out for several segments in one, of so many bytes.
    ///
    /// # Errors
    /// As [`Self::give`].
    pub fn give_merged(&self, frame: &[u8], bytes: u32) -> Result<Vec<u8>, Error> {
        let mut skb = [0; SKB_SIZE];
        skb[SKB_GSO_SIZE..SKB_GSO_SIZE + 4].copy_from_slice(&bytes.to_ne_bytes());
        self.run(true, frame, &mut skb)
    }

    fn run(&self, egress: bool, frame: &[u8], context: &mut [u8]) -> Result<Vec<u8>, Error> {
        let failed = |source| Error::Run { program: "marks", source };
        let program = &self.0[usize::from(egress)];
        let mut run = syscall::TestRun { data: frame, context, repeat: 1 };
        let output = syscall::test_run(program.as_fd(), &mut run).map_err(failed)?;
        match output.returned.cast_signed() {
            TCX_NEXT => Ok(output.data),
            other => Err(failed(io::Error::other(format!("the verdict {other}")))),
        }
    }
}

/// The program of a side; for tcx, or for any kernel.
fn program(
    objects: &MarkObjects,
    (maps, key): (&Maps, [u64; abi::KEYS]),
    (side, kind): (Way, Kind),
    tcx: bool,
) -> Result<OwnedFd, Error> {
    let link = if kind.plain { abi::LINK_PLAIN } else { abi::LINK_ETHERNET };
    let (border, to_servers) = (kind.border.into(), kind.to_servers.into());
    let settings = Settings { key, link, border, to_servers, ..Settings::default() };
    let (object, bytes, kind) = match side {
        Way::Ingress => ("mark_in", &objects.ingress, ProgramAttachType::TcxIngress),
        Way::Egress => ("mark_out", &objects.egress, ProgramAttachType::TcxEgress),
    };
    let load = Load { object, bytes, settings, attach_type: tcx.then_some(kind) };
    objects::load(maps, &load)
}

/// Both programs name all maps.
fn create_maps(objects: &MarkObjects) -> Result<Maps, Error> {
    let failed = |source| Error::Load { object: "maps of marks".into(), source };
    let mut builder = ObjectBuilder::default();
    let mut open = builder.open_memory(&objects.ingress).map_err(failed)?;
    for mut program in open.progs_mut() {
        program.set_autoload(false);
    }
    let object = open.load().map_err(failed)?;
    let mut maps = Maps::default();
    for map in object.maps() {
        let name = map.name().to_string_lossy().into_owned();
        if SIZES.iter().any(|(known, _)| *known == name) {
            maps.insert(&name, MapHandle::try_from(&map).map_err(failed)?);
        }
    }
    maps.check_sizes(&SIZES)?;
    Ok(maps)
}
