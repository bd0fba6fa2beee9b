// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A router's measurement, and its limits on new connections: programs and maps of their own, beside the dataplane.
//!
//! Nothing is pinned: links and maps end with the process, and another one begins anew. So nothing is
//! left behind, whatever happens to the daemon. Its programs are at tcx (Linux 6.6 and newer), behind
//! ours and before those of others.

mod actions;
mod asked;
mod limits;
mod numbers;

pub use asked::RouterRequest;
pub use limits::RouterLimits;
pub use numbers::{RouterLimited, RouterLosses, RouterTimes};

use crate::abi::{self, RouterScope, RouterScopes, RouterSweep, Settings};
use crate::core::Core;
use crate::dataplane::Dataplane;
use crate::mapped::Mapped;
use crate::maps::Maps;
use crate::objects::{self, Load};
use crate::plan::{HASH_BYTES, mapped as address_of};
use crate::syscall::{self, Side};
use crate::taps::{Kind, Taps};
use crate::{Error, Interface, lately};
use ipnet::IpNet;
use libbpf_rs::{MapCore, MapHandle, ObjectBuilder, ProgramAttachType};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use tidegate_config::RouterConfig;
use tidegate_model::remote::Scope;
use tidegate_policy::{LatelyLine, LatelyTurn};
use tidegate_units::Nanos;
use zerocopy::IntoBytes;

/// Sweeps in which the whole table of connections is looked at.
pub const ROUTER_SWEEPS: u32 = 32;
/// What the programs say of a packet: others shall evaluate it, or (a SYN beyond a limit) it is dropped.
const TCX_NEXT: i32 = -1;
const TCX_DROP: i32 = 2;
/// Or it became a reply, which leaves by the interface that it came by.
const TCX_REDIRECT: i32 = 7;

/// The compiled programs. Those of the build by default; tests bring those of other compilers.
#[derive(Clone, Debug)]
pub struct RouterObjects {
    /// `hook/router_in.bpf.c`.
    pub ingress: Vec<u8>,
    /// `hook/router_out.bpf.c`.
    pub egress: Vec<u8>,
    /// `hook/router_sweep.bpf.c`.
    pub sweep: Vec<u8>,
}

impl Default for RouterObjects {
    fn default() -> Self {
        Self {
            ingress: include_bytes!(concat!(env!("OUT_DIR"), "/router_in.bpf.o")).to_vec(),
            egress: include_bytes!(concat!(env!("OUT_DIR"), "/router_out.bpf.o")).to_vec(),
            sweep: include_bytes!(concat!(env!("OUT_DIR"), "/router_sweep.bpf.o")).to_vec(),
        }
    }
}

/// The measurement of this machine.
#[derive(Debug)]
pub struct Router {
    objects: RouterObjects,
    maps: Maps,
    config: RouterConfig,
    settings: Settings,
    sweep: OwnedFd,
    taps: Taps,
    counts: Mapped,
    times: Mapped,
    /// Which part of the table comes next.
    slice: u32,
    /// When each part was looked at last, and how many connections were in it.
    looked: Vec<(Nanos, u32)>,
    /// Sources that no limit refuses, and the classes of others, as the kernel has them.
    exempt: BTreeSet<limits::PrefixKey>,
    classes: BTreeMap<limits::PrefixKey, u32>,
    /// Who has which filter.
    filters: Mutex<Vec<actions::Held>>,
}

impl Router {
    /// Makes the maps and loads what needs no interface. Nothing is measured before [`Self::attach`].
    ///
    /// # Errors
    /// When the kernel refuses a map or a program.
    pub fn load(config: &RouterConfig) -> Result<Self, Error> {
        Self::load_objects(config, RouterObjects::default())
    }

    /// The same with given objects.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_objects(config: &RouterConfig, objects: RouterObjects) -> Result<Self, Error> {
        Self::load_for(config, objects, crate::Settings::default().flow_timeout)
    }

    /// As [`Self::load`]; the kill switch of this dataplane opens the limits as well, in the kernel itself, and whom
    /// they refuse is noted where its hooks note it ([`crate::Lately`]).
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_beside(config: &RouterConfig, dataplane: &Core) -> Result<Self, Error> {
        let idle_after = crate::Settings::default().flow_timeout;
        Self::load_with(config, RouterObjects::default(), idle_after, Some(dataplane))
    }

    /// The same for tests, which cannot wait for as long until a connection is idle.
    ///
    /// # Errors
    /// As [`Self::load`].
    #[doc(hidden)]
    pub fn load_for(
        config: &RouterConfig,
        objects: RouterObjects,
        idle_after: Nanos,
    ) -> Result<Self, Error> {
        Self::load_with(config, objects, idle_after, None)
    }

    fn load_with(
        config: &RouterConfig,
        objects: RouterObjects,
        idle_after: Nanos,
        dataplane: Option<&Core>,
    ) -> Result<Self, Error> {
        objects::quiet();
        let mut maps = create_maps(&objects, config)?;
        let seed = match dataplane {
            // Who was refused is looked for by its seed.
            Some(dataplane) => limits::share(&mut maps, dataplane)?,
            None => crate::core::seed()?,
        };
        let sets = config.connections / abi::ROUTER_WAYS as u32;
        let settings = Settings {
            key: objects::keys(seed),
            flow_timeout_ns: idle_after.0,
            flow_mask: sets - 1,
            lately_mask: objects::lately_mask(&maps)?,
            ..Settings::default()
        };
        let load =
            Load { object: "router_sweep", bytes: &objects.sweep, settings, attach_type: None };
        let sweep = objects::load(&maps, &load)?;
        let counts = Mapped::new(maps.get(COUNTS)?, COUNTS)?;
        let times = Mapped::new(maps.get(TIMES)?, TIMES)?;
        let looked = vec![(Nanos::ZERO, 0); ROUTER_SWEEPS as usize];
        let kinds = [false, true].map(|trusts_dscp| Kind { trusts_dscp, ..Kind::default() });
        let kinds = Kind::on_every_link(&kinds);
        let (taps, slice) =
            (Taps::new(("the router's measurement at tcx", false), kind_of, kinds), 0);
        let filters = Mutex::new(vec![None; actions::filters(config.limit.as_ref())]);
        let config = config.clone();
        let mut router = Self {
            objects,
            maps,
            config,
            settings,
            sweep,
            taps,
            counts,
            times,
            slice,
            looked,
            exempt: BTreeSet::new(),
            classes: BTreeMap::new(),
            filters,
        };
        router.write_scopes()?;
        Ok(router)
    }

    /// About how many bytes of kernel memory it takes.
    #[must_use]
    pub fn memory(config: &RouterConfig) -> u64 {
        let limit = size_of::<abi::RouterLimit>() + size_of::<abi::RouterBucket>();
        let measured = size_of::<abi::RouterDestination>() + size_of::<abi::RouterTimes>();
        let known = measured + limit + size_of::<u64>() + size_of::<u32>();
        let place = size_of::<abi::RouterKey>() + size_of::<u32>() + HASH_BYTES;
        // A note of a handshake, and one of a SYN.
        let notes = abi::ROUTER_NOTES * (24 + 8);
        let of = |size: u32, bytes: usize| u64::from(size) * bytes as u64;
        let filters = actions::filters(config.limit.as_ref()) * size_of::<abi::RouterFilter>();
        of(config.connections, abi::ROUTER_FLOW_BYTES)
            + of(config.destinations_max, known + place)
            + (notes + filters) as u64
    }

    /// What it measures.
    #[must_use]
    pub const fn config(&self) -> &RouterConfig {
        &self.config
    }

    /// Whether this configuration can be followed without a restart.
    #[must_use]
    pub fn can_follow(&self, config: &RouterConfig) -> bool {
        config.connections == self.config.connections
            && config.destinations_max == self.config.destinations_max
            && config.sample == self.config.sample
            && actions::filters(config.limit.as_ref()) <= self.has_filters()
    }

    /// Looks for destinations elsewhere from now on; those that are known stay. Sizes stay as they were.
    ///
    /// # Errors
    /// When the map cannot be written.
    pub fn follow(&mut self, config: &RouterConfig) -> Result<(), Error> {
        let before = std::mem::replace(&mut self.config, config.clone());
        self.write_scopes().inspect_err(|_| self.config = before)
    }

    fn write_scopes(&mut self) -> Result<(), Error> {
        let mut scopes = RouterScopes { sample: self.config.sample, ..RouterScopes::default() };
        for (place, scope) in scopes.scope.iter_mut().zip(&self.config.destinations) {
            let Scope::Destination { prefix, port } = scope else { continue };
            *place = compiled(prefix, *port);
            scopes.count += 1;
        }
        self.maps.write(SCOPES, &0_u32.to_ne_bytes(), scopes.as_bytes())
    }

    /// Attaches to these interfaces where it is not attached yet, and detaches from others. Returns where it is
    /// not, one sentence each.
    pub fn attach(
        &mut self,
        interfaces: &[Interface],
        dataplane: Option<&Dataplane>,
    ) -> Vec<String> {
        let Self { objects, maps, settings, taps, .. } = self;
        let load = |side, kind: Kind| program(objects, maps, (*settings, side), (kind, true));
        taps.attach(interfaces, dataplane, &load)
    }

    /// Whether it measures at every interface that it was told.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.taps.is_attached()
    }

    /// Looks at the next part of the connections: to be called with each heartbeat.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub fn sweep(&mut self) -> Result<Nanos, Error> {
        let sets = (self.settings.flow_mask + 1).div_ceil(ROUTER_SWEEPS);
        let at = self.slice as usize;
        let mut argument = RouterSweep {
            since_ns: self.looked[at].0.0,
            from: self.slice * sets,
            sets,
            ..RouterSweep::default()
        };
        let failed = |source: io::Error| Error::Run { program: "router_sweep", source };
        syscall::run_syscall(self.sweep.as_fd(), &mut argument).map_err(failed)?;
        self.looked[at] = (Nanos(argument.now_ns), argument.open);
        self.slice = (self.slice + 1) % ROUTER_SWEEPS;
        Ok(Nanos(argument.now_ns))
    }

    /// How often sweeps ran, and for how many nanoseconds, while `kernel.bpf_stats_enabled` was on.
    ///
    /// # Errors
    /// When the kernel does not tell.
    #[doc(hidden)]
    pub fn sweep_runs(&self) -> Result<(u64, u64), Error> {
        Ok(syscall::program_info(self.sweep.as_fd()).map_err(failed_run)?.runs)
    }

    /// From now on an exchange of the destination at a place takes too long after this time; zero: none does.
    ///
    /// # Errors
    /// When the map cannot be written.
    pub fn set_overdue_after(&self, place: usize, after: Nanos) -> Result<(), Error> {
        let key = u32::try_from(place).unwrap_or(u32::MAX).to_ne_bytes();
        self.maps.write(OVERDUE, &key, &after.0.to_ne_bytes())
    }

    /// Connections that are followed, as of the last look at each part.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.looked.iter().map(|(_, open)| u64::from(*open)).sum()
    }

    /// The program of a side, for any kernel.
    fn program(&self, side: Side, kind: Kind) -> Result<OwnedFd, Error> {
        program(&self.objects, &self.maps, (self.settings, side), (kind, false))
    }

    /// Its programs without an interface, for tests.
    ///
    /// # Errors
    /// When one cannot be loaded.
    #[doc(hidden)]
    pub fn hooks(&self) -> Result<RouterHooks, Error> {
        self.hooks_of(Kind::default())
    }

    /// The same of an interface whose DSCP is trusted.
    ///
    /// # Errors
    /// When one cannot be loaded.
    #[doc(hidden)]
    pub fn trusting_hooks(&self) -> Result<RouterHooks, Error> {
        self.hooks_of(Kind { trusts_dscp: true, ..Kind::default() })
    }

    fn hooks_of(&self, kind: Kind) -> Result<RouterHooks, Error> {
        let program = |side| self.program(side, kind);
        Ok(RouterHooks([program(Side::Ingress)?, program(Side::Egress)?]))
    }

    /// Instructions that the verifier processed, by program, for tests.
    ///
    /// # Errors
    /// When one cannot be loaded.
    #[doc(hidden)]
    pub fn budgets(&self) -> Result<[(&'static str, u32); 3], Error> {
        let kind = Kind { trusts_dscp: true, ..Kind::default() };
        let of = |side| objects::verified_insns(&self.program(side, kind)?);
        Ok([
            ("router_in", of(Side::Ingress)?),
            ("router_out", of(Side::Egress)?),
            ("router_sweep", objects::verified_insns(&self.sweep)?),
        ])
    }
}

/// What its programs differ in.
fn kind_of(interface: &Interface, plain: bool) -> Kind {
    Kind { plain, trusts_dscp: interface.config.trust_dscp, ..Kind::default() }
}

/// The program of a side; for tcx, or for any kernel.
fn program(
    objects: &RouterObjects,
    maps: &Maps,
    (settings, side): (Settings, Side),
    (kind, tcx): (Kind, bool),
) -> Result<OwnedFd, Error> {
    let link = if kind.plain { abi::LINK_PLAIN } else { abi::LINK_ETHERNET };
    let settings = Settings { link, trust_dscp: kind.trusts_dscp.into(), ..settings };
    let (object, bytes, attach) = match side {
        Side::Ingress => ("router_in", &objects.ingress, ProgramAttachType::TcxIngress),
        Side::Egress => ("router_out", &objects.egress, ProgramAttachType::TcxEgress),
    };
    let load = Load { object, bytes, settings, attach_type: tcx.then_some(attach) };
    objects::load(maps, &load)
}

fn failed_run(source: io::Error) -> Error {
    Error::Run { program: "router", source }
}

/// The programs of both sides, for packets of tests.
#[doc(hidden)]
#[derive(Debug)]
pub struct RouterHooks([OwnedFd; 2]);

impl RouterHooks {
    /// Gives a packet to one of them.
    ///
    /// # Errors
    /// When it cannot be run, or the packet did not pass as it was.
    pub fn give(&self, egress: bool, frame: &[u8]) -> Result<(), Error> {
        match self.passes(egress, frame) {
            Ok(false) => Err(failed_run(io::Error::other("the packet did not pass"))),
            passes => passes.map(|_| ()),
        }
    }

    /// How often one of them ran, and for how many nanoseconds, while `kernel.bpf_stats_enabled` was on.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn runs(&self, egress: bool) -> Result<(u64, u64), Error> {
        let program = self.0[usize::from(egress)].as_fd();
        Ok(syscall::program_info(program).map_err(failed_run)?.runs)
    }

    /// The same where it may be dropped: whether it passed.
    ///
    /// # Errors
    /// When it cannot be run, or something else became of the packet.
    pub fn passes(&self, egress: bool, frame: &[u8]) -> Result<bool, Error> {
        match self.becomes(egress, frame)? {
            RouterOutcome::Passes => Ok(true),
            RouterOutcome::Dropped => Ok(false),
            RouterOutcome::Reply(_) => Err(failed_run(io::Error::other("a reply was sent"))),
        }
    }

    /// What becomes of a packet.
    ///
    /// # Errors
    /// When it cannot be run, or what becomes of it is none of these.
    pub fn becomes(&self, egress: bool, frame: &[u8]) -> Result<RouterOutcome, Error> {
        let program = &self.0[usize::from(egress)];
        let mut run = syscall::TestRun { data: frame, context: &mut [], repeat: 1 };
        let output = syscall::test_run(program.as_fd(), &mut run).map_err(failed_run)?;
        match output.returned.cast_signed() {
            TCX_NEXT if output.data == frame => Ok(RouterOutcome::Passes),
            TCX_DROP => Ok(RouterOutcome::Dropped),
            TCX_REDIRECT => Ok(RouterOutcome::Reply(output.data)),
            other => Err(failed_run(io::Error::other(format!("the verdict {other}")))),
        }
    }
}

/// What became of a packet of a test.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouterOutcome {
    /// It goes on as it was.
    Passes,
    /// It is gone.
    Dropped,
    /// It became this one.
    Reply(Vec<u8>),
}

const SCOPES: &str = "tg_router_scopes";
const COUNTS: &str = "tg_router_counts";
const TIMES: &str = "tg_router_times";
const OVERDUE: &str = "tg_router_overdue";
const LOSSES: &str = "tg_router_losses";
const TAKEN: &str = "tg_router_taken";

/// Sizes of the values, which the other side of the ABI has to have.
const SIZES: [(&str, usize); 13] = [
    (SCOPES, size_of::<RouterScopes>()),
    (COUNTS, size_of::<abi::RouterDestination>()),
    (TIMES, size_of::<abi::RouterTimes>()),
    ("tg_router_flows", abi::ROUTER_WAYS * abi::ROUTER_FLOW_BYTES),
    (limits::LIMITS, size_of::<abi::RouterLimit>()),
    (limits::BUCKETS, size_of::<abi::RouterBucket>()),
    (limits::CONTROL, size_of::<abi::RouterControl>()),
    (limits::SWITCH, size_of::<abi::Control>()),
    (actions::ACTIONS, size_of::<abi::RouterActions>()),
    (actions::FILTERS, size_of::<abi::RouterFilter>()),
    (actions::ROWS, size_of::<abi::AbacusExactParams>()),
    (lately::LINES, size_of::<LatelyLine>()),
    (lately::TURN, size_of::<LatelyTurn>()),
];

/// The maps, sized by the configuration; the program for ingress names all of them.
fn create_maps(objects: &RouterObjects, config: &RouterConfig) -> Result<Maps, Error> {
    let failed = |source| Error::Load { object: "maps of the router".into(), source };
    let mut builder = ObjectBuilder::default();
    let mut open = builder.open_memory(&objects.ingress).map_err(failed)?;
    let filters = actions::filters(config.limit.as_ref()) as u32;
    for mut map in open.maps_mut() {
        let entries = match map.name().to_str() {
            Some("tg_router_flows") => config.connections / abi::ROUTER_WAYS as u32,
            Some(
                "tg_router_places"
                | COUNTS
                | TIMES
                | OVERDUE
                | asked::LOOKS
                | limits::LIMITS
                | limits::BUCKETS,
            ) => config.destinations_max,
            // Those of the dataplane take their place.
            Some(lately::LINES) => LatelyTurn::SLICES,
            Some(actions::FILTERS) => filters.max(1),
            Some(actions::ROWS) => (abi::ROUTER_FILTER_ROWS as u32) * filters.max(1),
            _ => continue,
        };
        map.set_max_entries(entries).map_err(failed)?;
    }
    for mut program in open.progs_mut() {
        program.set_autoload(false);
    }
    let object = open.load().map_err(failed)?;
    let mut maps = Maps::default();
    for map in object.maps() {
        let name = map.name().to_string_lossy().into_owned();
        if name.starts_with("tg_router_") || limits::SHARED.contains(&&*name) {
            maps.insert(&name, MapHandle::try_from(&map).map_err(failed)?);
        }
    }
    maps.check_sizes(&SIZES)?;
    Ok(maps)
}

/// A prefix as the kernel compares it: address and mask, IPv4 mapped into IPv6.
fn compiled(prefix: &IpNet, port: Option<u16>) -> RouterScope {
    let beyond = if prefix.addr().is_ipv4() { 96 } else { 0 };
    let bits = u32::from(prefix.prefix_len()) + beyond;
    let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
    RouterScope {
        addr: words(address_of(prefix.network())),
        mask: words(mask.to_be_bytes()),
        port: port.unwrap_or(0).into(),
    }
}

/// Sixteen bytes as four words that lie as they are.
fn words(bytes: [u8; 16]) -> [u32; 4] {
    std::array::from_fn(|n| u32::from_ne_bytes(std::array::from_fn(|at| bytes[n * 4 + at])))
}

/// An address of the kernel's tables.
fn ip(words: [u32; 4]) -> IpAddr {
    let mut bytes = [0; 16];
    for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    IpAddr::from(bytes).to_canonical()
}
