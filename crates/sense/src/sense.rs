// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All sources together: one tick, one [`Signals`] a service.

use crate::file::FILE_MAX;
use crate::finder::Finder;
use crate::groups::Groups;
use crate::interfaces::Interfaces;
use crate::listeners::{ListenerSource, serving};
use crate::passive::Passive;
use crate::qdisc::InterfaceSource;
use crate::service::{Service, Tick};
use crate::space::{FindNamespace, Space};
use crate::stat::Stat;
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use tidegate_model::signals::Signals;
use tidegate_model::snapshot::Bypassed;
use tidegate_model::totals::{ServiceTotals, Totals};
use tidegate_model::{CpuList, Listen, Namespace};
use tidegate_units::Nanos;

/// How long a level (a queue, a share) is still shown, with its age, after it could not be read.
pub const HOLD_MAX: Nanos = Nanos::from_secs(10);
/// How often the place of a service (its CPUs, groups, quota) is looked at while nothing changes.
const PLACE_EVERY: Nanos = Nanos::from_secs(5);

/// Why there are no times.
const NO_EGRESS: &str = "an interface has no egress hook, so responses are not seen: no response \
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
    /// Where its server listens.
    pub listen: Vec<Listen>,
    /// In which network namespace; `None`: our own.
    pub namespace: Option<Namespace>,
    /// Its cgroup, if the operator named it.
    pub cgroup: Option<PathBuf>,
    /// Its CPUs, if the operator named them.
    pub cpus: Option<CpuList>,
    /// Whether something is decided by the queue of the interfaces: then its absence is a problem.
    pub needs_interface: bool,
    /// Sources whose SYNs no service counts.
    pub exempt: Vec<IpNet>,
    /// The names of its request buckets, in the order in which they are counted.
    pub buckets: Vec<String>,
}

impl ServiceSource {
    /// Whether it is sensed where another one is.
    fn is_where(&self, other: &Self) -> bool {
        *self == Self { buckets: self.buckets.clone(), ..other.clone() }
    }
}

/// A source that could not be read in this tick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
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
    pub problems: Vec<Problem>,
    /// Whether the listener has TCP_DEFER_ACCEPT on, where that could be inferred.
    pub defer_accept: Option<bool>,
    /// Connections that the listeners accepted and that no hook saw.
    pub bypassed: Option<Bypassed>,
    /// Connections that the listeners accepted, whose SYN a hook saw, and no packet of the server.
    pub unreplied: Option<Bypassed>,
    /// Why the network namespace of its server cannot be entered although it is there; empty: it is entered, or
    /// gone.
    pub barred: String,
    /// The totals of which the signals are the differences; `None`: they could not be read.
    pub totals: Option<ServiceTotals>,
}

/// All sources of all services.
pub struct Sense {
    roots: Roots,
    /// The namespaces in which services listen; the first is our own.
    spaces: Vec<Space>,
    find: FindNamespace,
    stat: Stat,
    finder: Finder,
    groups: Groups,
    services: Vec<Service>,
    interfaces: Interfaces,
    /// Reused at every tick.
    buffer: Vec<u8>,
    last: Option<Nanos>,
}

/// Without anybody who knows more, only files are namespaces.
fn find_path(namespace: &Namespace) -> io::Result<PathBuf> {
    match namespace {
        Namespace::Path(path) => Ok(path.clone()),
        Namespace::Pid(_) | Namespace::Cgroup(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

impl Sense {
    /// A sense for these services, in the order of the configuration.
    #[must_use]
    pub fn new(
        services: Vec<ServiceSource>,
        listeners: Box<dyn ListenerSource + Send>,
        roots: Roots,
    ) -> Self {
        let spaces = vec![Space::own(listeners, &roots.proc)];
        let mut sense = Self {
            spaces,
            find: find_path,
            stat: Stat::new(&roots.proc),
            finder: Finder::new(&roots.proc),
            groups: Groups::new(&roots.cgroup),
            services: services.into_iter().map(Service::new).collect(),
            interfaces: Interfaces::default(),
            buffer: vec![0; FILE_MAX],
            last: None,
            roots,
        };
        sense.follow_spaces();
        sense
    }

    /// From now on the namespaces of services are found by this.
    pub fn find_namespaces_by(&mut self, find: FindNamespace) {
        self.find = find;
    }

    /// One space for each namespace of a service, and our own.
    fn follow_spaces(&mut self) {
        let Self { spaces, services, .. } = self;
        let wanted = |of: &Option<Namespace>| services.iter().any(|s| s.source.namespace == *of);
        spaces.retain(|space| space.namespace.is_none() || wanted(&space.namespace));
        for service in services {
            let namespace = &service.source.namespace;
            let known = spaces.iter().position(|space| space.namespace == *namespace);
            service.space = known.unwrap_or_else(|| {
                spaces.push(Space::of(namespace.clone()));
                spaces.len() - 1
            });
        }
    }

    /// Other services from now on; those that stay the same keep their state, wherever they stand
    /// now. But where one stands elsewhere, what was counted of it begins anew: the dataplane's totals
    /// go by names, which are not known here.
    pub fn reconfigure(&mut self, services: Vec<ServiceSource>) {
        let mut old: Vec<(usize, Service)> =
            std::mem::take(&mut self.services).into_iter().enumerate().collect();
        let kept = |(now, source): (usize, ServiceSource)| {
            let place = old.iter().position(|(_, service)| service.source.is_where(&source));
            let Some(place) = place else { return Service::new(source) };
            let (then, mut service) = old.swap_remove(place);
            if then != now {
                service.passive = Passive::default();
            } else if service.source.buckets != source.buckets {
                service.passive.forget_buckets();
            }
            service.source = source;
            service
        };
        self.services = services.into_iter().enumerate().map(kept).collect();
        self.follow_spaces();
    }

    /// From now on also the queues of these interfaces, by which the answers leave, and what they
    /// send. Without this there are no such signals.
    pub fn watch_interfaces(
        &mut self,
        source: Box<dyn InterfaceSource + Send>,
        names: Vec<String>,
    ) {
        self.interfaces.watch(source, names);
    }

    /// Other interfaces from now on, in the same namespace; none: the kernel is not asked, which
    /// may wait for whoever changes interfaces.
    pub fn rename_interfaces(&mut self, names: Vec<String>) {
        self.interfaces.rename(names);
    }

    /// Looks at the queues of the interfaces, and at nothing else: to be called every 10 to 20 ms,
    /// because they fill and empty in that time. A tick looks too, so that without this the signal
    /// is there, and coarse.
    pub fn sample(&mut self, now: Nanos) {
        self.interfaces.sample(now);
    }

    /// Finds the processes of all services at once, without the bound of a tick: for the start.
    pub fn warm_up(&mut self, now: Nanos) {
        self.look_at_spaces(now);
        let wanted = self.match_listeners();
        self.finder.complete(now, &wanted);
        self.locate(now, true);
        if self.groups.complete(now) {
            self.locate(now, true);
        }
    }

    /// Senses everything once.
    pub fn tick(&mut self, now: Nanos, totals: &dyn Totals) -> Vec<Sensed> {
        self.look_at_spaces(now);
        // Where a namespace cannot be looked at, only its services know less; who listens is looked for
        // in our own.
        let wanted = self.match_listeners();
        if self.spaces[0].listed.is_ok() {
            let found = self.finder.tick(now, &wanted);
            let grouped = self.groups.tick(now);
            self.locate(now, found || grouped);
        }
        let stat = self.stat.refresh(&mut self.buffer);
        self.interfaces.tick(now);
        let period = self.last.replace(now).map_or(Nanos::ZERO, |last| now.since(last));
        let Self { services, spaces, stat: cpus, buffer, interfaces, .. } = self;
        let mut sensed = Vec::with_capacity(services.len());
        for (index, service) in services.iter_mut().enumerate() {
            let mut out = Sensed::default();
            out.signals.now = now;
            out.signals.period = period;
            let space = &mut spaces[service.space];
            out.signals.queue = service.queue(now, &space.listed, &mut out.problems);
            out.barred = space.barred();
            if !out.barred.is_empty() {
                // Another matter than a server that does not listen, so it is logged at once.
                out.problems.iter_mut().for_each(|problem| problem.signal = "namespace");
            }
            out.signals.queue.interface = interfaces.queue(now);
            if service.source.needs_interface
                && let Some(why) = interfaces.problem(now)
            {
                out.problems.push(Problem { signal: "interface queue", why });
            }
            out.signals.resource = service.resource(
                &mut Tick { now, stat: cpus, stat_error: stat.as_ref().err(), buffer },
                &mut out.problems,
            );
            out.signals.resource.bandwidth = interfaces.sent(now);
            match service.passive.tick(now, index, totals) {
                Ok((time, balance)) => {
                    (out.signals.time, out.signals.balance) = (time, balance);
                    if !totals.sees_answers() {
                        out.problems.push(Problem { signal: "responses", why: NO_EGRESS.into() });
                    }
                }
                Err(error) => {
                    out.signals.time = service.passive.levels(now);
                    out.problems.push(Problem { signal: "counters", why: error.to_string() });
                }
            }
            out.totals = service.passive.totals().cloned();
            out.signals.buckets = service.passive.buckets(now);
            let admitted = out.signals.balance.counts.map_or(0, |counts| counts.value.admitted);
            out.defer_accept = service.defer.tick(now, admitted, buffer);
            let counts = out.signals.balance.counts.map(|counts| counts.value);
            let found = service.bypassed(now, counts, space);
            (out.bypassed, out.unreplied) = (found.bypassed, found.unreplied);
            sensed.push(out);
        }
        sensed
    }

    fn look_at_spaces(&mut self, now: Nanos) {
        for space in &mut self.spaces {
            space.tick(now, self.find, &mut self.buffer);
        }
    }

    /// Gives each service its listeners; the inodes of all of them.
    fn match_listeners(&mut self) -> BTreeSet<u32> {
        let mut wanted = BTreeSet::new();
        for service in &mut self.services {
            let space = &self.spaces[service.space];
            // What cannot be listed stays as it was, and grows old.
            if space.listed.is_ok() {
                serving(&space.all, &service.source.listen, &mut service.listeners);
            }
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
                service.locate(self.finder.holders(), &self.roots, &mut self.groups);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listeners::Listener;
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use tidegate_model::signals::BucketSignals;
    use tidegate_model::totals::BucketTotals;
    use tidegate_units::Share;

    struct Nothing;
    impl Totals for Nothing {
        fn totals(&self, _: usize) -> io::Result<ServiceTotals> {
            Ok(ServiceTotals::default())
        }
    }

    /// A listener whose holders cannot be seen.
    struct Hidden(u64);
    impl ListenerSource for Hidden {
        fn list(&mut self, out: &mut Vec<Listener>) -> io::Result<()> {
            let address = "0.0.0.0".parse().map_err(io::Error::other)?;
            let cgroup_id = Some(self.0);
            *out = vec![Listener {
                address,
                port: 80,
                v6_only: false,
                queue: 0,
                limit: 1,
                inode: 11,
                cgroup_id,
            }];
            Ok(())
        }
    }

    fn sense(dir: &std::path::Path) -> Sense {
        let roots = Roots { proc: dir.join("proc"), cgroup: dir.join("cgroup") };
        let group = roots.cgroup.join("shop");
        fs::create_dir_all(&group).unwrap();
        fs::create_dir_all(&roots.proc).unwrap();
        fs::write(roots.proc.join("stat"), "cpu\ncpu0 1 0 1 8 0 0 0 0 0 0\n").unwrap();
        fs::write(roots.cgroup.join("cgroup.controllers"), "").unwrap();
        fs::write(group.join("cpu.stat"), "usage_usec 1\n").unwrap();
        fs::write(group.join("cgroup.procs"), "").unwrap();
        let hidden = Hidden(fs::metadata(&group).unwrap().ino());
        let source =
            ServiceSource { listen: vec!["*:80".parse().unwrap()], ..ServiceSource::default() };
        Sense::new(vec![source], Box::new(hidden), roots)
    }

    /// Version 1 counts CPU time and has no pressure; a kernel with psi=0 has none, either.
    #[test]
    fn without_version_2_and_without_pressure_the_cpu_is_known_and_nothing_is_a_problem() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots { proc: dir.path().join("proc"), cgroup: dir.path().join("cgroup") };
        let group = roots.cgroup.join("cpu,cpuacct/shop");
        fs::create_dir_all(&group).unwrap();
        fs::create_dir_all(roots.proc.join("7/task/7")).unwrap();
        fs::write(group.join("cgroup.procs"), "7\n").unwrap();
        let status = "Name:\tnode\nPPid:\t1\nCpus_allowed_list:\t0-1\n";
        fs::write(roots.proc.join("7/status"), status).unwrap();
        let source = ServiceSource {
            listen: vec!["*:80".parse().unwrap()],
            cgroup: Some(group.clone()),
            ..ServiceSource::default()
        };
        let mut sense = Sense::new(vec![source], Box::new(Hidden(0)), roots.clone());
        let mut now = Nanos::SECOND;
        let mut sensed = Vec::new();
        // Two CPUs, of which the service's one thread uses one, and nobody the other.
        for step in 0..20_u64 {
            let ticks = step * 10;
            let stat = format!("cpu\ncpu0 {ticks} 0 0 0 0 0 0 0\ncpu1 0 0 0 {ticks} 0 0 0 0\n");
            fs::write(roots.proc.join("stat"), stat).unwrap();
            let used = step * 100_000_000;
            fs::write(group.join("cpuacct.usage"), format!("{used}\n")).unwrap();
            fs::write(roots.proc.join("7/task/7/schedstat"), format!("{used} 0 1\n")).unwrap();
            let stat = format!("7 (node) R 1 7 7 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 0\n");
            fs::write(roots.proc.join("7/stat"), stat).unwrap();
            if step == 0 {
                sense.warm_up(now);
            }
            sensed = sense.tick(now, &Nothing);
            now += Nanos::from_millis(100);
        }
        let resource = &sensed[0].signals.resource;
        let share = |reading: Option<tidegate_model::signals::Reading<Share>>| {
            reading.map(|reading| (reading.value.get() * 100.0).round())
        };
        assert_eq!(share(resource.cpu), Some(50.0), "{:?}", sensed[0].problems);
        assert_eq!(share(resource.busiest_thread), Some(100.0), "its thread is at its end");
        assert_eq!(resource.cpu_pressure, None);
        assert!(sensed[0].problems.is_empty(), "{:?}", sensed[0].problems);
    }

    fn knows_its_place(sensed: &[Sensed]) -> bool {
        !sensed[0].problems.iter().any(|problem| problem.signal == "cpu")
    }

    #[test]
    fn a_service_that_moves_in_the_configuration_keeps_what_is_known_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut sense = sense(dir.path());
        sense.warm_up(Nanos::ZERO);
        assert!(knows_its_place(&sense.tick(Nanos::from_millis(100), &Nothing)));
        let source = |listen: &str| ServiceSource {
            listen: vec![listen.parse().unwrap()],
            ..ServiceSource::default()
        };
        sense.reconfigure(vec![source("*:81"), source("*:80")]);
        let sensed = sense.tick(Nanos::from_millis(200), &Nothing);
        assert!(!knows_its_place(&sensed), "a new one");
        assert!(knows_its_place(&sensed[1..]), "{:?}", sensed[1].problems);
    }

    /// Two buckets, of which the first has counted more.
    struct Buckets(u64, u64);

    impl Totals for Buckets {
        fn totals(&self, _: usize) -> io::Result<ServiceTotals> {
            let bucket = |new| BucketTotals { offered: [0, new, 0], ..BucketTotals::default() };
            let buckets = vec![bucket(self.0), bucket(self.1)];
            Ok(ServiceTotals { buckets, ..ServiceTotals::default() })
        }
    }

    /// A reload gives two buckets each other's place: their counts are compared with nobody else's.
    #[test]
    fn buckets_that_change_places_are_not_compared_with_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let mut sense = sense(dir.path());
        let source = |names: [&str; 2]| ServiceSource {
            listen: vec!["*:80".parse().unwrap()],
            buckets: names.map(String::from).to_vec(),
            ..ServiceSource::default()
        };
        sense.reconfigure(vec![source(["a", "b"])]);
        let came = |now, totals: &Buckets, sense: &mut Sense| {
            let sensed = sense.tick(Nanos::from_millis(now), totals);
            let counts = |bucket: &BucketSignals| Some(bucket.counts?.value.offered[1]);
            sensed[0].signals.buckets.iter().map(counts).collect::<Vec<_>>()
        };
        assert_eq!(came(100, &Buckets(1000, 10), &mut sense), [None, None]);
        assert_eq!(came(200, &Buckets(1007, 12), &mut sense), [Some(7), Some(2)]);
        sense.reconfigure(vec![source(["b", "a"])]);
        assert_eq!(came(300, &Buckets(13, 1009), &mut sense), [None, None]);
        assert_eq!(came(400, &Buckets(16, 1010), &mut sense), [Some(3), Some(1)]);
        sense.reconfigure(vec![source(["b", "a"])]);
        assert_eq!(came(500, &Buckets(17, 1012), &mut sense), [Some(1), Some(2)], "as before");
    }

    #[test]
    fn a_group_that_was_looked_for_is_used_as_soon_as_it_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let mut running = sense(dir.path());
        assert!(!knows_its_place(&running.tick(Nanos::ZERO, &Nothing)), "not looked for yet");
        let soon = running.tick(Nanos::from_millis(100), &Nothing);
        assert!(knows_its_place(&soon), "{:?}", soon[0].problems);
        let mut starting = sense(dir.path());
        starting.warm_up(Nanos::ZERO);
        assert!(knows_its_place(&starting.tick(Nanos::ZERO, &Nothing)), "at the first tick");
    }
}
