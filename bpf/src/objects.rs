// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The compiled hooks: loading them over the shared maps.

use crate::abi::Settings;
use crate::maps::{Maps, REQUEST_SIZES};
use crate::{Error, Plan, abi, datagrams, imported, lately, numbers, syscall};
use libbpf_rs::{MapCore, MapHandle, ObjectBuilder, ProgramAttachType};
use std::os::fd::{AsFd, OwnedFd};
use tidegate_config::Tables;
use tidegate_policy::LatelyTurn;
use tidegate_units::{Clock, MonotonicClock};
use zerocopy::IntoBytes;

/// Objects, compiled. Those of the build by default; tests bring those of other compilers.
#[derive(Clone, Debug)]
pub struct Objects {
    /// `hook/xdp.bpf.c`.
    pub xdp: Vec<u8>,
    /// `hook/tc.bpf.c`.
    pub tc: Vec<u8>,
    /// `hook/egress.bpf.c`.
    pub egress: Vec<u8>,
    /// `hook/heartbeat.bpf.c`.
    pub heartbeat: Vec<u8>,
    /// `hook/replay.bpf.c`.
    pub replay: Vec<u8>,
    /// `hook/request_in.bpf.c`.
    pub request_in: Vec<u8>,
    /// `hook/request_out.bpf.c`.
    pub request_out: Vec<u8>,
    /// `hook/sweep.bpf.c`.
    pub sweep: Vec<u8>,
}

impl Default for Objects {
    fn default() -> Self {
        macro_rules! object {
            ($name:literal) => {
                include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o")).to_vec()
            };
        }
        Self {
            xdp: object!("xdp"),
            tc: object!("tc"),
            egress: object!("egress"),
            heartbeat: object!("heartbeat"),
            replay: object!("replay"),
            request_in: object!("request_in"),
            request_out: object!("request_out"),
            sweep: object!("sweep"),
        }
    }
}

/// Names of the maps that are shared and pinned.
pub(crate) const SHARED: [&str; 32] = [
    "tg_control",
    "tg_lease",
    "tg_tables",
    "tg_listens",
    "tg_listeners",
    "tg_prefixes",
    "tg_src_prefixes",
    "tg_limits",
    "tg_states",
    "tg_copies",
    "tg_counts",
    "tg_passed",
    "tg_totals",
    "tg_gauges",
    "tg_answers",
    "tg_pending",
    "tg_senders",
    "tg_notes",
    "tg_flows",
    "tg_times",
    "tg_flow_sources",
    "tg_source_sets",
    "tg_sources",
    "tg_flights",
    lately::LINES,
    lately::TURN,
    "tg_samples",
    imported::TABLE,
    "tg_import_states",
    imported::COUNTS,
    "tg_datagram_states",
    datagrams::COUNTS,
];

/// Names of the maps of request rules, which are there when a plan has some; all or none of them.
pub(crate) const REQUESTS: [&str; 13] = [
    "tg_request_control",
    "tg_paths",
    "tg_rules",
    "tg_hosts",
    "tg_cookie_tests",
    "tg_answer_texts",
    "tg_buckets",
    "tg_unevaluable",
    "tg_bucket_totals",
    "tg_rule_counts",
    "tg_request_reasons",
    "tg_conns",
    numbers::MAP,
];

/// What libbpf prints goes to the log: what it complains about while we try one hook after the
/// other is no matter for the operator's terminal.
pub(crate) fn quiet() {
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Info, |_, text| {
        tracing::debug!(target: "libbpf", "{}", text.trim_end());
    })));
}

/// How the hooks of one interface are built.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Variant {
    pub(crate) answer: u32,
    pub(crate) trust_dscp: bool,
    /// The link has no Ethernet header.
    pub(crate) plain: bool,
    /// Imported rules hold here.
    pub(crate) import: bool,
    /// Datagrams to services are counted.
    pub(crate) datagrams: bool,
    /// Bits of DSCP that are cleared; 0: none.
    pub(crate) border: u32,
}

/// The read-only settings of a hook.
pub(crate) fn settings(maps: &Maps, plan: &Plan, variant: Variant) -> Result<Settings, Error> {
    let control: abi::Control = maps.read("tg_control", 0)?;
    Ok(Settings {
        key: keys(control.seed),
        flow_timeout_ns: plan.settings.flow_timeout.0,
        loaded_ns: MonotonicClock.now().0,
        flow_mask: maps.get("tg_flows")?.max_entries() - 1,
        pending_mask: maps.get("tg_pending")?.max_entries() - 1,
        answer: variant.answer,
        trust_dscp: variant.trust_dscp.into(),
        source_mask: maps.get("tg_source_sets")?.max_entries() - 1,
        lately_mask: lately_mask(maps)?,
        link: if variant.plain { abi::LINK_PLAIN } else { abi::LINK_ETHERNET },
        import: variant.import.into(),
        datagrams: variant.datagrams.into(),
        border: variant.border,
        ..Settings::default()
    })
}

/// Lines of a slice of those who were refused lately, less one.
pub(crate) fn lately_mask(maps: &Maps) -> Result<u32, Error> {
    Ok(maps.get(lately::LINES)?.max_entries() / LatelyTurn::SLICES - 1)
}

/// The words of the hash's key: the seed of this boot, drawn out (SplitMix64, twice).
pub(crate) fn keys(seed: [u64; 2]) -> [u64; abi::KEYS] {
    std::array::from_fn(|n| spread(seed[0], n) ^ spread(seed[1], n).rotate_left(32))
}

/// A random word by a seed and a number.
pub(crate) fn spread(seed: u64, n: usize) -> u64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(n as u64 + 1));
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// What is loaded, and how.
pub(crate) struct Load<'a> {
    /// Name, for messages.
    pub(crate) object: &'a str,
    /// The compiled object.
    pub(crate) bytes: &'a [u8],
    /// Its read-only settings.
    pub(crate) settings: Settings,
    /// tcx must be told before loading; `None` for everything else.
    pub(crate) attach_type: Option<ProgramAttachType>,
}

/// A map whose size the plan says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sized {
    /// Its name.
    pub(crate) map: &'static str,
    /// What people call the table.
    pub(crate) table: &'static str,
    /// Entries of the map.
    pub(crate) entries: u32,
    /// What people call the size of the table: connections, sources, clients.
    pub(crate) room: u32,
}

/// See [`Sized`].
pub(crate) fn sized(plan: &Plan) -> [Sized; 8] {
    let Tables { handshakes, connections: flows, requests, sources, refusals } = plan.config.tables;
    let (each, ways) = (abi::FLOW_WAYS as u32, abi::SOURCE_WAYS as u32);
    let of = |map, table, size, each| Sized { map, table, entries: size / each, room: size };
    let lately = refusals / lately::EACH * LatelyTurn::SLICES;
    [
        of("tg_flows", "connections", flows, each),
        of("tg_times", "connections", flows, each),
        of("tg_flow_sources", "connections", flows, each),
        of("tg_source_sets", "sources", sources, ways),
        of("tg_sources", "sources", sources, 1),
        of("tg_pending", "handshakes", handshakes, 1),
        of("tg_conns", "requests", requests, 1),
        Sized { map: lately::LINES, table: "refusals", entries: lately, room: refusals },
    ]
}

/// Creates the shared maps, sized by the plan, without loading a program.
pub(crate) fn create_maps(objects: &Objects, plan: &Plan) -> Result<Maps, Error> {
    let failed = |source| Error::Load { object: "maps".into(), source };
    let mut builder = ObjectBuilder::default();
    let mut open = builder.open_memory(&objects.xdp).map_err(failed)?;
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if let Some(sized) = sized(plan).into_iter().find(|sized| sized.map == name) {
            map.set_max_entries(sized.entries).map_err(failed)?;
        }
    }
    for mut program in open.progs_mut() {
        program.set_autoload(false);
    }
    let object = open.load().map_err(failed)?;
    let mut maps = Maps::default();
    for map in object.maps() {
        let name = map.name().to_string_lossy().into_owned();
        if SHARED.contains(&name.as_str()) {
            maps.insert(&name, MapHandle::try_from(&map).map_err(failed)?);
        }
    }
    maps.check()?;
    Ok(maps)
}

/// Creates the maps of request rules beside the shared ones, without loading a program.
pub(crate) fn create_request_maps(
    objects: &Objects,
    maps: &mut Maps,
    plan: &Plan,
) -> Result<(), Error> {
    let failed = |source| Error::Load { object: "maps of request rules".into(), source };
    let mut builder = ObjectBuilder::default();
    let mut open = builder.open_memory(&objects.request_in).map_err(failed)?;
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if let Some(shared) = maps.find(&name) {
            map.reuse_fd(shared.as_fd()).map_err(failed)?;
        } else if name == "tg_conns" {
            map.set_max_entries(plan.config.tables.requests).map_err(failed)?;
        }
    }
    for mut program in open.progs_mut() {
        program.set_autoload(false);
    }
    let object = open.load().map_err(failed)?;
    for map in object.maps() {
        let name = map.name().to_string_lossy().into_owned();
        if REQUESTS.contains(&name.as_str()) {
            maps.insert(&name, MapHandle::try_from(&map).map_err(failed)?);
        }
    }
    maps.check_sizes(&REQUEST_SIZES)
}

/// Loads the one program of an object over the shared maps.
pub(crate) fn load(maps: &Maps, load: &Load<'_>) -> Result<OwnedFd, Error> {
    let failed = |source| Error::Load { object: load.object.to_string(), source };
    let mut builder = ObjectBuilder::default();
    let mut open = builder.open_memory(load.bytes).map_err(failed)?;
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if name == ".rodata.settings" {
            map.set_initial_value(load.settings.as_bytes()).map_err(failed)?;
        } else if let Some(shared) = maps.find(&name) {
            map.reuse_fd(shared.as_fd()).map_err(failed)?;
        }
    }
    if let Some(attach_type) = &load.attach_type {
        for mut program in open.progs_mut() {
            program.set_attach_type(attach_type.clone());
        }
    }
    let object = open.load().map_err(failed)?;
    let program = object.progs().next();
    let program = program.ok_or_else(|| Error::Layout { map: load.object.to_string() })?;
    let fd = program.as_fd().try_clone_to_owned();
    fd.map_err(|source| Error::Run { program: "load", source })
}

/// Instructions that the verifier processed for a program.
pub(crate) fn verified_insns(program: &OwnedFd) -> Result<u32, Error> {
    let info = syscall::program_info(program.as_fd());
    Ok(info.map_err(|source| Error::Run { program: "info", source })?.verified_insns)
}
