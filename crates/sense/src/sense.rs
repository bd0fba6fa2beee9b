// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All sources together: one tick, one [`Signals`] a service.

use crate::cgroup::{Group, Usage};
use crate::cpu::{Cpu, Sample};
use crate::file::FILE_MAX;
use crate::finder::{self, Finder, Place};
use crate::listeners::{Listener, ListenerSource, serving};
use crate::passive::Passive;
use crate::pressure::Pressure;
use crate::stat::Stat;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use tidegate_model::intent::{CpuList, Listen, ServiceConfig};
use tidegate_model::signals::{AcceptQueue, Queue, Reading, Resource, Signals};
use tidegate_model::totals::Totals;
use tidegate_units::{Nanos, Share};

/// How long a level (a queue, a share) is still shown, with its age, after it could not be read.
pub const HOLD_MAX: Nanos = Nanos::from_secs(10);
/// How often the place of a service (its CPUs, groups, quota) is looked at while nothing changes.
const PLACE_EVERY: Nanos = Nanos::from_secs(5);

/// Why there are no times.
const NO_EGRESS: &str = "an interface has no egress hook, so answers are not seen: no response \
    times, no in-flight, no completions, and no limits that need them";

/// Where the kernel's files are: arguments, so that tests run on trees of their own.
#[derive(Clone, Debug)]
pub struct Roots {
    /// The process file system.
    pub proc: PathBuf,
    /// The cgroup file system, whichever version, or hybrid.
    pub cgroup: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { proc: "/proc".into(), cgroup: "/sys/fs/cgroup".into() }
    }
}

/// What has to be known of a service to sense it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceSource {
    /// Its listen addresses.
    pub listen: Vec<Listen>,
    /// Its cgroup, if the operator named it.
    pub cgroup: Option<PathBuf>,
    /// Its CPUs, if the operator named them.
    pub cpus: Option<CpuList>,
}

impl From<&ServiceConfig> for ServiceSource {
    fn from(config: &ServiceConfig) -> Self {
        Self {
            listen: config.listen.clone(),
            cgroup: config.process.cgroup.clone(),
            cpus: config.process.cpus.clone(),
        }
    }
}

/// A source that could not be read in this tick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The signal that is missing or old: `cpu`, `cpu pressure`, `accept queue`, `counters` …
    pub signal: &'static str,
    /// Why.
    pub why: String,
}

/// What one tick gave for one service.
#[derive(Clone, Debug, Default)]
pub struct Sensed {
    /// The signals.
    pub signals: Signals,
    /// The sources that failed.
    pub troubles: Vec<Trouble>,
}

/// All sources of all services.
pub struct Sense {
    roots: Roots,
    listeners: Box<dyn ListenerSource + Send>,
    stat: Stat,
    finder: Finder,
    services: Vec<Service>,
    /// Reused at every tick.
    all: Vec<Listener>,
    buffer: Vec<u8>,
    last: Option<Nanos>,
}

impl Sense {
    /// A sense for these services, in the order of the configuration.
    #[must_use]
    pub fn new(
        services: Vec<ServiceSource>,
        listeners: Box<dyn ListenerSource + Send>,
        roots: Roots,
    ) -> Self {
        Self {
            stat: Stat::new(&roots.proc),
            finder: Finder::new(&roots.proc),
            services: services.into_iter().map(Service::new).collect(),
            all: Vec::new(),
            buffer: vec![0; FILE_MAX],
            last: None,
            roots,
            listeners,
        }
    }

    /// Other services from now on; the state of those that stay the same is kept if they also keep
    /// their place.
    pub fn reconfigure(&mut self, services: Vec<ServiceSource>) {
        let mut old = std::mem::take(&mut self.services).into_iter();
        self.services = services
            .into_iter()
            .map(|source| match old.next() {
                Some(service) if service.source == source => service,
                _ => Service::new(source),
            })
            .collect();
    }

    /// Finds the processes of all services at once, without the bound of a tick: for the start.
    pub fn warm_up(&mut self, now: Nanos) {
        if self.listeners.list(&mut self.all).is_ok() {
            let wanted = self.match_listeners();
            self.finder.complete(now, &wanted);
            self.locate(now, true);
        }
    }

    /// Senses everything once.
    pub fn tick(&mut self, now: Nanos, totals: &dyn Totals) -> Vec<Sensed> {
        let listed = self.listeners.list(&mut self.all);
        if listed.is_ok() {
            let wanted = self.match_listeners();
            let found = self.finder.tick(now, &wanted);
            self.locate(now, found);
        }
        let stat = self.stat.refresh(&mut self.buffer);
        let period = self.last.replace(now).map_or(Nanos::ZERO, |last| now.since(last));
        let Self { services, stat: cpus, buffer, .. } = self;
        let mut sensed = Vec::with_capacity(services.len());
        for (index, service) in services.iter_mut().enumerate() {
            let mut out = Sensed::default();
            out.signals.now = now;
            out.signals.period = period;
            out.signals.queue = service.queue(now, &listed, &mut out.troubles);
            out.signals.resource = service.resource(
                &mut Tick { now, stat: cpus, stat_error: stat.as_ref().err(), buffer },
                &mut out.troubles,
            );
            match service.passive.tick(now, index, totals) {
                Ok((time, balance)) => {
                    (out.signals.time, out.signals.balance) = (time, balance);
                    if !totals.sees_answers() {
                        out.troubles.push(Trouble { signal: "answers", why: NO_EGRESS.into() });
                    }
                }
                Err(error) => {
                    out.signals.time = service.passive.levels(now);
                    out.troubles.push(Trouble { signal: "counters", why: error.to_string() });
                }
            }
            sensed.push(out);
        }
        sensed
    }

    /// Gives each service its listeners; the inodes of all of them.
    fn match_listeners(&mut self) -> BTreeSet<u32> {
        let mut wanted = BTreeSet::new();
        for service in &mut self.services {
            serving(&self.all, &service.source.listen, &mut service.listeners);
            wanted.extend(service.listeners.iter().map(|listener| listener.inode));
        }
        wanted
    }

    /// Looks where the services run, those that are due or all after a search has ended.
    fn locate(&mut self, now: Nanos, found: bool) {
        for service in &mut self.services {
            let due = service.located.is_none_or(|at| now.since(at) >= PLACE_EVERY);
            if due || found {
                service.located = Some(now);
                service.locate(self.finder.holders(), &self.roots);
            }
        }
    }
}

/// What a service needs from the tick to read its resources.
struct Tick<'a> {
    now: Nanos,
    stat: &'a Stat,
    stat_error: Option<&'a io::Error>,
    buffer: &'a mut [u8],
}

/// The last value of a level and when it was read.
type Held<T> = Option<(Nanos, T)>;

fn shown<T: Copy>(held: &Held<T>, now: Nanos) -> Option<Reading<T>> {
    held.map(|(at, value)| Reading { value, age: now.since(at) }).filter(|r| r.age <= HOLD_MAX)
}

/// The sources of one service.
struct Service {
    source: ServiceSource,
    listeners: Vec<Listener>,
    located: Option<Nanos>,
    place: Place,
    quota: Option<f64>,
    usages: Vec<Usage>,
    cpu: Cpu,
    /// Processor, memory, input and output.
    pressures: Option<[Pressure; 3]>,
    pressure_held: [Held<Share>; 3],
    accept_held: Held<AcceptQueue>,
    cpu_held: Held<Share>,
    passive: Passive,
}

/// Names of the three kinds of pressure: file and signal.
const PRESSURES: [(&str, &str); 3] =
    [("cpu", "cpu pressure"), ("memory", "memory pressure"), ("io", "io pressure")];

impl Service {
    fn new(source: ServiceSource) -> Self {
        Self {
            source,
            listeners: Vec::new(),
            located: None,
            place: Place::default(),
            quota: None,
            usages: Vec::new(),
            cpu: Cpu::default(),
            pressures: None,
            pressure_held: [None; 3],
            accept_held: None,
            cpu_held: None,
            passive: Passive::default(),
        }
    }

    fn locate(&mut self, holders: &finder::Holders, roots: &Roots) {
        let configured = self.source.cgroup.as_deref().and_then(Group::at);
        let mut place = match configured {
            Some(group) => finder::place_in(group, &roots.proc),
            None => finder::place(&self.listeners, holders, &roots.proc, &roots.cgroup),
        };
        if place.processes == 0 && !self.listeners.is_empty() {
            // The service is up and its processes cannot be seen: where it ran it still runs.
            place.cpus = place.cpus.or_else(|| self.place.cpus.clone());
            if place.groups.is_empty() {
                place.groups.clone_from(&self.place.groups);
            }
        }
        if self.source.cpus.is_some() {
            place.cpus.clone_from(&self.source.cpus);
        }
        self.quota = place
            .groups
            .iter()
            .map(|group| group.quota(&roots.cgroup))
            .try_fold(0.0, |sum, quota| quota.map(|quota| sum + quota))
            .filter(|sum| *sum > 0.0);
        if place.groups != self.place.groups
            || place.cpus != self.place.cpus
            || self.pressures.is_none()
        {
            self.cpu.reset();
            self.usages = place.groups.iter().map(Usage::new).collect();
            self.pressures = Some(pressures(&place, roots));
        }
        self.place = place;
    }

    fn queue(&mut self, now: Nanos, listed: &io::Result<()>, troubles: &mut Vec<Trouble>) -> Queue {
        let trouble = |why: String| Trouble { signal: "accept queue", why };
        match listed {
            Err(error) => troubles.push(trouble(error.to_string())),
            Ok(()) if self.listeners.is_empty() => {
                self.accept_held = None;
                troubles.push(trouble("nothing listens on the service's addresses here".into()));
            }
            Ok(()) => {
                let mut queue = AcceptQueue::default();
                for listener in &self.listeners {
                    queue.length += u64::from(listener.queue);
                    queue.limit += u64::from(listener.limit);
                }
                self.accept_held = Some((now, queue));
            }
        }
        Queue { accept: shown(&self.accept_held, now), ..Queue::default() }
    }

    fn resource(&mut self, tick: &mut Tick<'_>, troubles: &mut Vec<Trouble>) -> Resource {
        for kind in 0..PRESSURES.len() {
            let Some(pressures) = &mut self.pressures else { break };
            match pressures[kind].tick(tick.now, tick.buffer) {
                Ok(Some(reading)) => self.pressure_held[kind] = Some((tick.now, reading.value)),
                Ok(None) => {}
                Err(error) => {
                    let signal = PRESSURES[kind].1;
                    troubles.push(Trouble { signal, why: error.to_string() });
                }
            }
        }
        match self.cpu(tick) {
            Ok(Some(share)) => self.cpu_held = Some((tick.now, share)),
            Ok(None) => {}
            Err(why) => troubles.push(Trouble { signal: "cpu", why }),
        }
        let [cpu, memory, io] = &self.pressure_held;
        Resource {
            cpu: shown(&self.cpu_held, tick.now),
            cpu_pressure: shown(cpu, tick.now),
            memory_pressure: shown(memory, tick.now),
            io_pressure: shown(io, tick.now),
            ..Resource::default()
        }
    }

    fn cpu(&mut self, tick: &mut Tick<'_>) -> Result<Option<Share>, String> {
        if let Some(error) = tick.stat_error {
            return Err(error.to_string());
        }
        if self.place.cpus.is_none() && self.place.groups.is_empty() {
            return Err("its processes were not found or may not be looked at; name its cgroup or CPUs under `process`".into());
        }
        let mut used_ns = (!self.usages.is_empty()).then_some(0_u64);
        for usage in &mut self.usages {
            // Without its groups the CPUs still tell: fall back to the busy share.
            let read = usage.read_ns(tick.buffer).ok();
            used_ns = used_ns.zip(read).map(|(sum, ns)| sum.saturating_add(ns));
        }
        let sum = tick.stat.sum(self.place.cpus.as_ref());
        if sum.cpus == 0 {
            return Err("none of its CPUs is online".into());
        }
        // Only the group's own pressure tells what the service waited for.
        let own = self.place.groups.iter().any(|group| group.pressure().is_some());
        let pressure = shown(&self.pressure_held[0], tick.now).filter(|_| own).map(|r| r.value);
        Ok(self.cpu.tick(Sample { at: tick.now, sum, used_ns }, self.quota, pressure))
    }
}

/// The pressure files of the service's first group that has them, or of the machine.
fn pressures(place: &Place, roots: &Roots) -> [Pressure; 3] {
    let group = place.groups.iter().find_map(Group::pressure);
    PRESSURES.map(|(kind, _)| {
        Pressure::new(match group {
            Some(group) => group.join(format!("{kind}.pressure")),
            None => machine_pressure(&roots.proc, kind),
        })
    })
}

fn machine_pressure(proc: &Path, kind: &str) -> PathBuf {
    proc.join("pressure").join(kind)
}
