// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sources of one service: its accept queue, its CPUs and pressure, its counters.

use crate::bypass::{Bypass, Found, LATE_MAX, Look, Seen};
use crate::cgroup::{Group, Usage};
use crate::cpu::{Beside, Cpu, Sample};
use crate::defer::Defer;
use crate::finder::{self, Place};
use crate::groups::Groups;
use crate::link::is_of_host;
use crate::listeners::Listener;
use crate::passive::Passive;
use crate::pressure::Pressure;
use crate::sense::{HOLD_MAX, Problem, Roots, ServiceSource};
use crate::space::Space;
use crate::stat::Stat;
use crate::threads::Watch;
use std::io;
use std::path::{Path, PathBuf};
use tidegate_model::signals::{AcceptQueue, Counts, Queue, Reading, Resource};
use tidegate_units::{Nanos, Share};

/// What a service needs from the tick to read its resources.
pub(crate) struct Tick<'a> {
    pub(crate) now: Nanos,
    pub(crate) stat: &'a Stat,
    pub(crate) stat_error: Option<&'a io::Error>,
    pub(crate) buffer: &'a mut [u8],
}

/// The last value of a level and when it was read.
type Held<T> = Option<(Nanos, T)>;

fn shown<T: Copy>(held: &Held<T>, now: Nanos) -> Option<Reading<T>> {
    held.map(|(at, value)| Reading { value, age: now.since(at) }).filter(|r| r.age <= HOLD_MAX)
}

/// The sources of one service.
pub(crate) struct Service {
    pub(crate) source: ServiceSource,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) located: Option<Nanos>,
    pub(crate) passive: Passive,
    pub(crate) defer: Defer,
    /// Place of its network namespace among those that are looked at.
    pub(crate) space: usize,
    bypass: Bypass,
    threads: Watch,
    thread_held: Held<Share>,
    place: Place,
    quota: Option<f64>,
    usages: Vec<Usage>,
    cpu: Cpu,
    /// Processor, memory, input and output.
    pressures: Option<[Pressure; 3]>,
    pressure_held: [Held<Share>; 3],
    accept_held: Held<AcceptQueue>,
    /// When a listener's accept queue was full last.
    full: Option<Nanos>,
    cpu_held: Held<Share>,
}

/// Names of the three kinds of pressure: file and signal.
const PRESSURES: [(&str, &str); 3] =
    [("cpu", "cpu pressure"), ("memory", "memory pressure"), ("io", "io pressure")];

impl Service {
    pub(crate) fn new(source: ServiceSource) -> Self {
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
            full: None,
            cpu_held: None,
            passive: Passive::default(),
            defer: Defer::default(),
            space: 0,
            bypass: Bypass::default(),
            threads: Watch::default(),
            thread_held: None,
        }
    }

    pub(crate) fn locate(&mut self, holders: &finder::Holders, roots: &Roots, groups: &mut Groups) {
        let holder = self.listeners.iter().filter_map(|l| holders.get(&l.inode)).flatten().next();
        if let Some(pid) = holder {
            self.defer.look_at(&roots.proc.join(pid.to_string()).join("net"));
        }
        let configured = self.source.cgroup.as_deref().and_then(Group::at);
        let mut place = match configured {
            Some(group) => finder::place_in(group, (&self.listeners, holders), &roots.proc),
            None => finder::place(&self.listeners, holders, &roots.proc, groups),
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
        self.threads.locate(&place.serving, &roots.proc);
        self.place = place;
    }

    /// Whether nothing says where on this host its server runs: a gateway knows it by its requests.
    fn is_elsewhere(&self) -> bool {
        let ServiceSource { listen, cgroup, cpus, .. } = &self.source;
        listen.is_empty() && cgroup.is_none() && cpus.is_none()
    }

    pub(crate) fn queue(
        &mut self,
        now: Nanos,
        listed: &io::Result<()>,
        problems: &mut Vec<Problem>,
    ) -> Queue {
        let problem = |why: String| Problem { signal: "accept queue", why };
        match listed {
            Err(error) => problems.push(problem(error.to_string())),
            Ok(()) if self.listeners.is_empty() => {
                self.accept_held = None;
                if self.is_elsewhere() {
                    return Queue::default();
                }
                problems.push(problem("nothing listens on the service's addresses here".into()));
            }
            Ok(()) => {
                let mut queue = AcceptQueue::default();
                for listener in &self.listeners {
                    queue.length += u64::from(listener.queue);
                    queue.limit += u64::from(listener.limit);
                    if listener.queue >= listener.limit {
                        self.full = Some(now);
                    }
                }
                self.accept_held = Some((now, queue));
            }
        }
        Queue { accept: shown(&self.accept_held, now), ..Queue::default() }
    }

    pub(crate) fn resource(
        &mut self,
        tick: &mut Tick<'_>,
        problems: &mut Vec<Problem>,
    ) -> Resource {
        if self.is_elsewhere() {
            return Resource::default();
        }
        for kind in 0..PRESSURES.len() {
            let Some(pressures) = &mut self.pressures else { break };
            match pressures[kind].tick(tick.now, tick.buffer) {
                Ok(Some(reading)) => self.pressure_held[kind] = Some((tick.now, reading.value)),
                Ok(None) => {}
                // A kernel that does not count it (before 4.20, or psi=0) has nothing to be mended:
                // every use of it has another way.
                Err(error) if is_absent(&error) => {}
                Err(error) => {
                    let signal = PRESSURES[kind].1;
                    problems.push(Problem { signal, why: error.to_string() });
                }
            }
        }
        let threads = self.threads.tick(tick.now);
        self.thread_held = threads.busiest.map(|share| (tick.now, share));
        match self.cpu(tick, threads.waited) {
            Ok(Some(share)) => self.cpu_held = Some((tick.now, share)),
            Ok(None) => {}
            Err(why) => problems.push(Problem { signal: "cpu", why }),
        }
        let [cpu, memory, io] = &self.pressure_held;
        Resource {
            cpu: shown(&self.cpu_held, tick.now),
            busiest_thread: shown(&self.thread_held, tick.now),
            cpu_pressure: shown(cpu, tick.now),
            memory_pressure: shown(memory, tick.now),
            io_pressure: shown(io, tick.now),
            ..Resource::default()
        }
    }

    /// Whether an accept queue of its was full of late: connections may be opened that much after their handshakes.
    fn was_full(&self, now: Nanos) -> bool {
        self.full.is_some_and(|at| now.since(at) <= LATE_MAX)
    }

    /// What came past the hooks of late. `counts`: what they have seen since the tick before; `None`:
    /// not known.
    pub(crate) fn bypassed(
        &mut self,
        now: Nanos,
        counts: Option<Counts>,
        space: &mut Space,
    ) -> Found {
        let (defers, full) = (self.defer.known(), self.was_full(now));
        let seen = counts.map_or_else(Seen::default, |counts| Seen::of(&counts, defers, full));
        let ports = self.listeners.iter().map(|listener| listener.port).collect();
        let exempt = &self.source.exempt[..];
        let (grew, own) = (space.grew, space.namespace.is_none());
        let source = space.connections().filter(|_| grew);
        let listen = &self.source.listen[..];
        let look = source.map(|source| Look {
            ports: &ports,
            listen,
            exempt,
            of_host: is_of_host,
            own,
            source,
        });
        self.bypass.tick(now, &seen, look)
    }

    fn cpu(&mut self, tick: &mut Tick<'_>, waited: Option<Share>) -> Result<Option<Share>, String> {
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
        let beside = Beside { quota: self.quota, pressure, waited };
        Ok(self.cpu.tick(Sample { at: tick.now, sum, used_ns }, beside))
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::Unsupported)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of them by itself: the kernel fills one while others have room (SO_REUSEPORT).
    #[test]
    fn a_full_accept_queue_is_remembered_for_as_long_as_connections_may_be_late() {
        let listener = |queue| Listener {
            address: [0, 0, 0, 0].into(),
            port: 80,
            v6_only: false,
            queue,
            limit: 4,
            inode: queue,
            cgroup_id: None,
        };
        let mut service = Service::new(ServiceSource::default());
        let mut full = |second, queues: &[u32]| {
            let now = Nanos::from_secs(second);
            service.listeners = queues.iter().map(|queue| listener(*queue)).collect();
            service.queue(now, &Ok(()), &mut Vec::new());
            service.was_full(now)
        };
        assert!(!full(1, &[3, 0]));
        assert!(full(2, &[4, 0]));
        assert!(full(12, &[3, 0]) && !full(13, &[3, 0]));
    }
}
