// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hooks without a network: packets in, verdicts and packets out (`BPF_PROG_TEST_RUN`). For
//! tests and benchmarks; nothing is attached or pinned.

pub mod bench;
mod foreign;
pub mod plans;

pub use foreign::{Foreign, Neighbour, Verdict as ForeignVerdict};

use crate::abi::{Replay, Settings, XdpMd};
use crate::core::Core;
use crate::mount::program_name;
pub use crate::objects::Objects;
use crate::objects::{self, Load, Variant};
use crate::syscall::{self, Side, TestRun};
use crate::{Error, Interface, Plan, abi, lately, namespace, read};
use libbpf_rs::{MapCore, MapFlags, MapType, ObjectBuilder, ProgramAttachType};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;
use tidegate_policy::{Event, LatelyTurn, Verdict};
use tidegate_units::{Clock, MonotonicClock, Nanos};
use zerocopy::IntoBytes;

/// A program that packets can be given to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TestHook {
    /// Ingress at XDP.
    Xdp,
    /// Ingress at tc.
    Tc,
    /// Egress at tc (signals only).
    Egress,
    /// Request rules at tc ingress; only where the plan has rules.
    RequestIn,
    /// What follows the answers to requests, at tc egress; only where the plan has rules.
    RequestOut,
}

/// What a hook did with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It goes on its way.
    Pass,
    /// It is gone.
    Drop,
    /// It goes back out (`XDP_TX`).
    Transmit,
    /// It goes back out (`bpf_redirect`).
    Redirect,
    /// Something that no hook should say.
    Other(u32),
}

/// Result of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// What the hook did.
    pub outcome: Outcome,
    /// The packet afterwards.
    pub packet: Vec<u8>,
}

/// Interface on which a test packet arrives, unless said otherwise: the loopback device.
pub const LOOPBACK: u32 = 1;

/// Bytes of `struct __sk_buff`, as far as all kernels know it, and where its parts are.
const SKB_SIZE: usize = 184;
const SKB_IFINDEX: usize = 40;
const SKB_GSO_SEGMENTS: usize = 164;
const SKB_GSO_SIZE: usize = 176;

/// Where the question stands in a packet for the replay program (hook/replay.bpf.c).
const REPLAY_AT: usize = 16;

/// How the answer leaves, and whether DSCP counts: what the loader chooses per interface.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Answers leave by `bpf_redirect`, as on veth.
    pub redirect: bool,
}

/// Names of the programs at tcx of an interface, in the order in which they run: ingress, egress.
///
/// # Errors
/// When the interface is not there or the kernel knows no tcx.
pub fn tcx_programs(interface: &Interface) -> Result<[Vec<String>; 2], Error> {
    namespace::of(interface, || {
        let device = namespace::device(interface)?;
        let names = |side| {
            let programs = syscall::tcx_programs(device.ifindex, side);
            let programs = programs.map_err(|source| Error::Run { program: "query", source })?;
            let names = programs.into_iter().map(program_name).collect::<Result<_, _>>();
            names.map_err(|source| Error::Run { program: "query", source })
        };
        Ok([names(Side::Ingress)?, names(Side::Egress)?])
    })
}

/// A program of the dataplane that a plan has, beside the heartbeat and the sweep.
#[derive(Clone, Copy, Debug)]
enum Program {
    Xdp,
    Tc,
    Egress,
    Replay,
    RequestIn,
    RequestOut,
}

impl Program {
    const ALL: [Self; 6] =
        [Self::Xdp, Self::Tc, Self::Egress, Self::Replay, Self::RequestIn, Self::RequestOut];

    const fn of_rules(self) -> bool {
        matches!(self, Self::RequestIn | Self::RequestOut)
    }

    fn object(self, objects: &Objects) -> (&'static str, &[u8]) {
        match self {
            Self::Xdp => ("xdp", &objects.xdp),
            Self::Tc => ("tc", &objects.tc),
            Self::Egress => ("egress", &objects.egress),
            Self::Replay => ("replay", &objects.replay),
            Self::RequestIn => ("request_in", &objects.request_in),
            Self::RequestOut => ("request_out", &objects.request_out),
        }
    }
}

/// The whole dataplane but its attachment. `trust_dscp` and `border` are those of the plan's first interface.
#[derive(Debug)]
pub struct TestPlane {
    core: Core,
    /// Loaded when they are asked for: most tests look at one or two of them.
    programs: [OnceLock<OwnedFd>; Program::ALL.len()],
    settings: Settings,
}

impl TestPlane {
    /// Loads the hooks of this build; renews the lease once.
    ///
    /// # Errors
    /// When the plan breaks a bound or the kernel refuses something.
    pub fn load(plan: &Plan) -> Result<Self, Error> {
        Self::load_objects(plan, Objects::default(), Options::default())
    }

    /// Loads given objects.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_objects(plan: &Plan, objects: Objects, options: Options) -> Result<Self, Error> {
        let mut core = Core::start(plan, objects)?;
        core.heartbeat()?;
        let interface = plan.config.interfaces.first();
        let trust_dscp = interface.is_some_and(|interface| interface.trust_dscp);
        let border = interface.map_or(0, |interface| plan.border(interface));
        let answer = if options.redirect { abi::ANSWER_REDIRECT } else { abi::ANSWER_TX };
        let import = plan.has_import();
        let datagrams = plan.config.counts_datagrams();
        let variant = Variant { answer, trust_dscp, plain: false, import, datagrams, border };
        let settings = objects::settings(&core.maps, plan, variant)?;
        core.listening(MonotonicClock.now(), false)?;
        Ok(Self { core, programs: Default::default(), settings })
    }

    /// The program, which is loaded now if it was not yet.
    fn loaded(&self, program: Program) -> Result<&OwnedFd, Error> {
        if program.of_rules() && !self.core.plan.has_rules() {
            let text = "no service has request rules: their hooks are not there";
            return Err(Error::Plan(text.into()));
        }
        let cell = &self.programs[program as usize];
        if let Some(loaded) = cell.get() {
            return Ok(loaded);
        }
        let (object, bytes) = program.object(&self.core.objects);
        let mut settings = self.settings;
        if !matches!(program, Program::Xdp | Program::Tc) {
            (settings.import, settings.datagrams) = (0, 0);
        }
        let load = Load { object, bytes, settings, attach_type: None };
        let loaded = objects::load(&self.core.maps, &load)?;
        Ok(cell.get_or_init(|| loaded))
    }

    /// Whether the tcx variants of the tc hooks load, too (Linux 6.6 and newer).
    ///
    /// # Errors
    /// When the kernel refuses one.
    pub fn load_tcx(&self) -> Result<(), Error> {
        let variant = Variant { answer: abi::ANSWER_TX, ..Variant::default() };
        let settings = objects::settings(&self.core.maps, &self.core.plan, variant)?;
        let hooks = [
            ("tc", &self.core.objects.tc, ProgramAttachType::TcxIngress),
            ("egress", &self.core.objects.egress, ProgramAttachType::TcxEgress),
        ];
        let requests = [
            ("request_in", &self.core.objects.request_in, ProgramAttachType::TcxIngress),
            ("request_out", &self.core.objects.request_out, ProgramAttachType::TcxEgress),
        ];
        let requests = requests.into_iter().filter(|_| self.core.plan.has_rules());
        for (object, bytes, kind) in hooks.into_iter().chain(requests) {
            let load = Load { object, bytes, settings, attach_type: Some(kind) };
            objects::load(&self.core.maps, &load)?;
        }
        Ok(())
    }

    fn program(&self, hook: TestHook) -> Result<&OwnedFd, Error> {
        self.loaded(match hook {
            TestHook::Xdp => Program::Xdp,
            TestHook::Tc => Program::Tc,
            TestHook::Egress => Program::Egress,
            TestHook::RequestIn => Program::RequestIn,
            TestHook::RequestOut => Program::RequestOut,
        })
    }

    /// Keeps the calling thread on the CPU that it is on. A test run is on the CPU of its thread, and
    /// each CPU has a copy of a bucket: on one alone verdicts are those of the policy, to the reason.
    pub fn stay_on_one_cpu() {
        let mut here = rustix::thread::CpuSet::new();
        here.set(rustix::thread::sched_getcpu());
        let stays = rustix::thread::sched_setaffinity(None, &here);
        stays.unwrap_or_else(|error| tracing::warn!(%error, "the thread may change its CPU"));
    }

    /// Gives a hook one packet (at least 14 bytes: the kernel takes no less).
    ///
    /// # Errors
    /// What the kernel says to a test run.
    pub fn run(&self, hook: TestHook, packet: &[u8]) -> Result<Run, Error> {
        self.run_on(hook, packet, LOOPBACK)
    }

    /// Gives a hook one packet that arrives on the interface with this number, in the namespace
    /// of the calling thread.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_on(&self, hook: TestHook, packet: &[u8], ifindex: u32) -> Result<Run, Error> {
        let output = self.test(hook, packet, (ifindex, 1))?;
        let outcome = match (hook, output.returned as i32) {
            (TestHook::Xdp, 1) => Outcome::Drop,
            (TestHook::Xdp, 2) => Outcome::Pass,
            (TestHook::Xdp, 3) => Outcome::Transmit,
            (TestHook::Xdp, 4) => Outcome::Redirect,
            (TestHook::Xdp, other) => Outcome::Other(other as u32),
            (_, 2) => Outcome::Drop,
            (_, -1) => Outcome::Pass,
            (TestHook::Tc | TestHook::RequestIn, 7) => Outcome::Redirect,
            (_, other) => Outcome::Other(other as u32),
        };
        Ok(Run { outcome, packet: output.data })
    }

    /// Mean time of `repeat` runs on one packet. Only for packets that the hook leaves as they
    /// are: each run sees what the last one left.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn time(&self, hook: TestHook, packet: &[u8], repeat: u32) -> Result<Duration, Error> {
        let output = self.test(hook, packet, (LOOPBACK, repeat))?;
        Ok(Duration::from_nanos(output.duration_ns.into()))
    }

    /// Gives tc's ingress a packet that was merged of so many segments of so many bytes. 0: not known. Whether it is
    /// dropped.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn is_merged_dropped(&self, packet: &[u8], merged: (u32, u32)) -> Result<bool, Error> {
        let output = self.test_skb(TestHook::Tc, packet, ((LOOPBACK, 1), merged))?;
        Ok(output.returned == 2)
    }

    fn test(
        &self,
        hook: TestHook,
        packet: &[u8],
        (ifindex, repeat): (u32, u32),
    ) -> Result<syscall::TestOutput, Error> {
        if hook != TestHook::Xdp {
            return self.test_skb(hook, packet, ((ifindex, repeat), (0, 0)));
        }
        let md =
            XdpMd { data_end: packet.len() as u32, ingress_ifindex: ifindex, ..XdpMd::default() };
        let mut context = md.as_bytes().to_vec();
        let mut run = TestRun { data: packet, context: &mut context, repeat };
        syscall::test_run(self.program(hook)?.as_fd(), &mut run)
            .map_err(|source| Error::Run { program: "test", source })
    }

    fn test_skb(
        &self,
        hook: TestHook,
        packet: &[u8],
        ((ifindex, repeat), (segments, segment)): ((u32, u32), (u32, u32)),
    ) -> Result<syscall::TestOutput, Error> {
        let mut skb = [0_u8; SKB_SIZE];
        for (at, value) in
            [(SKB_IFINDEX, ifindex), (SKB_GSO_SEGMENTS, segments), (SKB_GSO_SIZE, segment)]
        {
            skb[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        let mut run = TestRun { data: packet, context: &mut skb, repeat };
        syscall::test_run(self.program(hook)?.as_fd(), &mut run)
            .map_err(|source| Error::Run { program: "test", source })
    }

    /// Asks the policy of a service, in the kernel, about an event: what `tidegate_policy::admit`
    /// says natively.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub fn replay(&self, service: usize, event: &Event) -> Result<Verdict, Error> {
        let argument = Replay {
            event: abi::Event {
                now_ns: event.now_ns,
                key: event.key,
                random: event.random,
                priority: event.priority,
                level: event.level,
                ..abi::Event::default()
            },
            service: service as u32,
            ..Replay::default()
        };
        let failed = |source| Error::Run { program: "replay", source };
        let mut packet = vec![0_u8; REPLAY_AT];
        packet.extend_from_slice(argument.as_bytes());
        let mut run = TestRun { data: &packet, context: &mut [], repeat: 1 };
        let output =
            syscall::test_run(self.loaded(Program::Replay)?.as_fd(), &mut run).map_err(failed)?;
        let answer = output.data.get(REPLAY_AT..).and_then(abi::read::<Replay>).unwrap_or_default();
        let kind = read::verdict(answer.verdict.kind).filter(|_| answer.found == 1);
        match (kind, read::reason(answer.verdict.reason.into())) {
            (Some(kind), Some(reason)) => {
                let delay = Nanos::from_micros(answer.verdict.delay_us.into());
                Ok(Verdict { kind, reason, repeated: answer.verdict.repeated != 0, delay })
            }
            _ => Err(failed(std::io::ErrorKind::InvalidData.into())),
        }
    }

    /// Bytes of the state of a service's policy (`tidegate_policy::State::from_bytes`), with what the
    /// copies of all CPUs have counted, and the bucket as the CPU has it that changed it last.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn state(&self, service: usize) -> Result<Vec<u8>, Error> {
        let key = (service as u32).to_ne_bytes();
        let value = self.core.maps.get("tg_states")?.lookup(&key, MapFlags::ANY);
        let value = value.map_err(Error::map("tg_states"))?.unwrap_or_default();
        let mut state = value.get(offset_of!(abi::Chain, state)..).unwrap_or_default().to_vec();
        for copy in self.core.maps.read_percpu("tg_copies", service as u32)? {
            abi::put_copy_back(&mut state, &copy);
        }
        Ok(state)
    }

    /// Loads a hook now, and not with its first packet.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn load_hook(&self, hook: TestHook) -> Result<(), Error> {
        self.program(hook).map(|_| ())
    }

    /// Instructions that the verifier processed for a hook.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn verified_insns(&self, hook: TestHook) -> Result<u32, Error> {
        objects::verified_insns(self.program(hook)?)
    }

    /// How often a hook ran, and for how many nanoseconds, while `kernel.bpf_stats_enabled` was on.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn runs(&self, hook: TestHook) -> Result<(u64, u64), Error> {
        let info = syscall::program_info(self.program(hook)?.as_fd());
        Ok(info.map_err(|source| Error::Run { program: "info", source })?.runs)
    }

    /// Instructions that the verifier processed, for every program of the dataplane.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn budgets(&self) -> Result<Vec<(&'static str, u32)>, Error> {
        let rules = self.core.plan.has_rules();
        let planned = Program::ALL.into_iter().filter(|program| rules || !program.of_rules());
        let load =
            |program: Program| Ok((program.object(&self.core.objects).0, self.loaded(program)?));
        let mut all = vec![("heartbeat", self.core.heartbeat_program())];
        for program in planned {
            all.push(load(program)?);
        }
        all.extend(self.core.requests().map(|requests| ("sweep", requests.sweep_program())));
        all.into_iter().map(|(name, fd)| Ok((name, objects::verified_insns(fd)?))).collect()
    }

    /// As [`crate::Dataplane::apply`].
    ///
    /// # Errors
    /// As there.
    pub fn apply(&mut self, plan: &Plan) -> Result<(), Error> {
        self.core.apply(plan)?;
        self.core.listening(MonotonicClock.now(), false)
    }

    /// Writes the lease: the daemon was last heard of at this time of the dataplane's clock;
    /// zero: never.
    ///
    /// # Errors
    /// When the map cannot be written.
    pub fn set_lease(&self, heartbeat: Nanos) -> Result<(), Error> {
        self.core.maps.write("tg_lease", &0_u32.to_ne_bytes(), &heartbeat.0.to_ne_bytes())
    }

    /// Moves back when the slices of who was refused lately began, as if so much time had passed.
    ///
    /// # Errors
    /// When the map cannot be written.
    pub fn age_refusals(&self, by: Nanos) -> Result<(), Error> {
        let mut turn: LatelyTurn = self.core.maps.read(lately::TURN, 0)?;
        turn.age(by);
        self.core.maps.write(lately::TURN, &0_u32.to_ne_bytes(), turn.as_bytes())
    }

    /// Forgets the SYNs that passed and are not verified: what runs next sees none of them.
    ///
    /// # Errors
    /// When the map cannot be written.
    pub fn forget_syns(&self) -> Result<(), Error> {
        let map = self.core.maps.get("tg_pending")?;
        let (count, size) = (map.max_entries(), map.value_size() as usize);
        let keys: Vec<u8> = (0..count).flat_map(u32::to_ne_bytes).collect();
        let values = vec![0; size * count as usize];
        map.update_batch(&keys, &values, count, MapFlags::ANY, MapFlags::ANY)
            .map_err(Error::map("tg_pending"))
    }
}

/// The maps of objects by their names: whether each CPU has its own, and the bytes of its values.
///
/// # Errors
/// When an object cannot be read.
pub fn maps_of(objects: &[Vec<u8>]) -> Result<BTreeMap<String, (bool, u64)>, Error> {
    let failed = |source| Error::Load { object: "maps to look at".into(), source };
    let mut maps = BTreeMap::new();
    for object in objects {
        let object = ObjectBuilder::default().open_memory(object).map_err(failed)?;
        for map in object.maps() {
            let each = map.map_type() == MapType::PercpuArray;
            let value = u64::from(map.value_size()).next_multiple_of(8);
            let name = map.name().to_string_lossy().into_owned();
            maps.insert(name, (each, u64::from(map.max_entries()) * value));
        }
    }
    Ok(maps)
}

impl Deref for TestPlane {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl DerefMut for TestPlane {
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.core
    }
}
