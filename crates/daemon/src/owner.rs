// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The owner: the one place where intent, signals, limits and the dataplane meet.
//!
//! A plain state machine: [`Owner::tick`] once a tick, the commands in between, a snapshot after
//! each. It does no waiting and knows no sockets; its time is a [`Clock`]'s.

use crate::exempt::ExemptWatch;
use crate::gateways::GatewayWatch;
use crate::governed::{Governed, Makers};
use crate::levels;
use crate::log::lines_lost;
use crate::outlet::{InForce, Kept};
use crate::overrides::Overrides;
pub use crate::overrides::{keep_canaries, keep_modes};
use crate::past::past_the_hooks;
use crate::plane::{Counted, Plane, PlaneError, Senses};
use crate::record::{Books, Record, Seen, Shadowed};
use crate::remote::Remote;
use crate::request_watch::{RequestWatch, advice};
use crate::sources::of_service;
use crate::state::{Keeper, KeptCommands, take};
use crate::warnings::Warnings;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tidegate_api::protocol::Handover;
use tidegate_config::{Config, ControlledResource, Intent, Refusal, ServiceConfig};
use tidegate_control::Mode as ControlMode;
use tidegate_control::fleet::INHERIT;
use tidegate_model::Mode;
use tidegate_model::limits::ServiceLimits;
use tidegate_model::record::{By, What};
use tidegate_model::snapshot::{ReasonCount, Restored, Sample, ServiceState, Snapshot};
use tidegate_model::sources::SourceUse;
use tidegate_sense::Sensed;
use tidegate_units::{Clock, Nanos};
use tokio::sync::watch;

/// Subject of warnings about what is kept for the next process.
const STATE: &str = "state";
/// Subject of warnings about what a take-over left.
const TAKE_OVER: &str = "take-over";
/// Subject of the warning that the dataplane does not follow the configuration in force.
const DATAPLANE: &str = "dataplane";
/// How often going back to it is tried again: programs may have to be loaded for that, which takes
/// longer than a tick.
const GO_BACK_EVERY: Nanos = Nanos::SECOND;
/// Most samples that are kept for `explain`.
pub const SAMPLES_MAX: usize = 4096;
/// Most samples that are taken in one tick.
const SAMPLES_PER_TICK: usize = 512;
/// A tick that comes later than this many ticks after the one before is late.
const LATE_TICKS: u64 = 2;
/// What is done with the refused requests of a service that a route leads to.
const GATE_ACTION: &str = "503";
/// What stands before the words of a controller whose service keeps what was adopted.
const ADOPTED: &str = "keeps for now what was in force before the start";
/// How often the counters for people are read: a read per class, service and CPU.
const COUNT_EVERY: Nanos = Nanos::from_millis(500);
/// How often the table of sources is read; and how often while silent connections hold a service's
/// workers. It takes about a millisecond for 65,536 places.
const SOURCES_EVERY: Nanos = Nanos::SECOND;
/// See [`SOURCES_EVERY`].
const SOURCES_URGENT: Nanos = Nanos::from_millis(250);
/// What an owner is made of.
pub struct Parts {
    /// Its time.
    pub clock: Arc<dyn Clock + Send + Sync>,
    /// What the record is made of.
    pub books: Books,
    /// What it steers; already following `config`.
    pub plane: Box<dyn Plane>,
    /// What it senses with; already set to `config`.
    pub senses: Box<dyn Senses>,
    /// The configuration.
    pub config: Config,
    /// How controllers are made.
    pub controllers: Makers,
    /// Version of the program, for the snapshot.
    pub version: String,
    /// The modes that the file says: `config` may have those that commands had set.
    pub file_modes: BTreeMap<String, Mode>,
    /// What the predecessor had decided, if there was one.
    pub inherited: Option<Handover>,
    /// What commands had set before a restart; nothing where there was a predecessor.
    pub kept: KeptCommands,
    /// Where controllers keep what they have learned; `None`: nowhere.
    pub keeper: Option<Keeper>,
}

/// The owner of all state.
pub struct Owner {
    pub(crate) clock: Arc<dyn Clock + Send + Sync>,
    pub(crate) plane: Box<dyn Plane>,
    pub(crate) senses: Box<dyn Senses>,
    pub(crate) intent: Intent,
    pub(crate) warnings: Warnings,
    pub(crate) config_generation: u64,
    pub(crate) samples: VecDeque<Sample>,
    pub(crate) governors: Vec<Governed>,
    pub(crate) overrides: Overrides,
    pub(crate) make: Makers,
    pub(crate) requests: RequestWatch,
    pub(crate) remote: Remote,
    pub(crate) record: Record,
    gateways: GatewayWatch,
    /// The limits that were decided last, joined with those of peers.
    joined: Vec<ServiceLimits>,
    pub(crate) sensed: Vec<Sensed>,
    in_force: InForce,
    /// When the dataplane is made to follow the configuration again; `None`: it does.
    astray: Option<Nanos>,
    pub(crate) counted: Option<Nanos>,
    pub(crate) counts: Counted,
    /// When the table of sources was read.
    looked: Option<Nanos>,
    /// What is in force and nobody said why, until its controller has a word of its own.
    adopted: Kept,
    heartbeat: Option<Nanos>,
    last_tick: Option<Nanos>,
    late: u64,
    pub(crate) keeper: Option<Keeper>,
    /// What services took over from the process before, by name.
    restored: BTreeMap<String, Restored>,
    exempt: ExemptWatch,
    /// Lines of the log that were lost when it was looked at last.
    lines_lost: u64,
    pub(crate) started: Nanos,
    version: String,
    out: watch::Sender<Option<Arc<Snapshot>>>,
}

impl Owner {
    /// An owner that has not ticked yet, and where its snapshots appear.
    #[must_use]
    pub fn new(parts: Parts) -> (Self, watch::Receiver<Option<Arc<Snapshot>>>) {
        let (out, snapshots) = watch::channel(None);
        let (started, make) = (parts.clock.now(), parts.controllers);
        let mut governors: Vec<Governed> =
            parts.config.services.iter().map(|service| Governed::new(service, make)).collect();
        let adopts = parts.inherited.is_none() && parts.plane.adopted();
        let adopted = if adopts { Kept::all(&parts.config) } else { Kept::default() };
        let (mut keeper, mut plane) = (parts.keeper, parts.plane);
        let (restored, fault) = take(keeper.as_mut(), &parts.config, &mut governors, &mut *plane);
        let took_over = parts.inherited.is_some();
        let mut left = parts.inherited.unwrap_or_default();
        let services = parts.config.services.iter().zip(&mut governors).enumerate();
        for (index, (service, governor)) in services {
            let handed_over = left.limits.remove(&service.name);
            let kept = restored.get(&service.name).is_some_and(|restored| restored.limits);
            let Some(limits) = handed_over.or_else(|| kept.then(|| governor.limits().clone()))
            else {
                continue;
            };
            // What is adopted stays in the kernel, by a rule of its own.
            let stays = !adopted.services.contains(&index);
            governor.inherit(service, limits, stays.then_some(started + INHERIT));
            let sources = governor.limits().source_max;
            governor.holders.inherit(started, sources);
        }
        let (record, damaged) = Record::new(parts.books);
        let said = if took_over { &left } else { &parts.kept.left };
        let mut owner = Self {
            clock: parts.clock,
            plane,
            senses: parts.senses,
            remote: Remote::new(&parts.config),
            intent: Intent::new(parts.config),
            warnings: Warnings::default(),
            config_generation: 1,
            samples: VecDeque::new(),
            governors,
            overrides: Overrides::inherit(said, &parts.file_modes, started),
            make,
            requests: RequestWatch::default(),
            record,
            gateways: GatewayWatch::default(),
            joined: Vec::new(),
            sensed: Vec::new(),
            in_force: InForce::after(left.generation),
            astray: None,
            counted: None,
            counts: Counted::default(),
            looked: None,
            adopted,
            heartbeat: None,
            last_tick: None,
            late: 0,
            keeper,
            restored,
            exempt: ExemptWatch::default(),
            lines_lost: 0,
            started,
            version: parts.version,
            out,
        };
        owner.begin(took_over, damaged, fault);
        owner.begin_commands(parts.kept);
        (owner, snapshots)
    }

    /// What is told of a start: what was wrong with files of the record, and with what was learned.
    fn begin(
        &mut self,
        took_over: bool,
        damaged: Vec<(&'static str, String)>,
        fault: Option<String>,
    ) {
        let version = self.version.clone();
        self.record.follow(&self.intent.config, self.started);
        self.record.note(What::Started { version, took_over });
        self.adopt_kill_switch(self.started);
        for (subject, why) in damaged {
            self.warnings.raise(self.started, subject, why);
        }
        if let Some(fault) = fault {
            self.warnings.raise(self.started, STATE, format!("{fault}; started afresh"));
        }
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.intent.config
    }

    /// What is left to a successor; it is also to know where the pins are.
    #[must_use]
    pub fn handover(&self) -> Handover {
        let services = self.intent.config.services.iter().zip(&self.governors);
        let limits = services.map(|(s, governor)| (s.name.clone(), governor.limits().clone()));
        let generation = self.in_force.generation();
        let mut left = Handover { generation, limits: limits.collect(), ..Handover::default() };
        self.overrides.hand_over(self.clock.now(), &mut left);
        left
    }

    /// Begins to speak with the peers of the configuration, and serves its gateways.
    pub fn join_peers(&mut self) {
        self.senses.join(&self.intent.config);
        self.plane.open(&self.intent.config);
        self.remote.flowspec.open(&self.intent.config);
        for (subject, why) in self.record.open() {
            self.warnings.stick(self.clock.now(), subject, format!("is not written: {why}"));
        }
    }

    /// A round of an owner that is being succeeded: it decides nothing and keeps the lease.
    pub fn tick_leaving(&mut self) {
        self.renew(self.clock.now());
    }

    /// The predecessor has left: what was its and is not ours is detached. To be called while the
    /// process still has its privileges.
    pub fn commit(&mut self) {
        let left = self.plane.commit();
        if !left.is_empty() {
            self.warnings.stick(self.clock.now(), TAKE_OVER, left.join("; "));
        }
    }

    /// The successor did not come: what it may have changed is put back. What cannot be is told for
    /// as long as it is so.
    pub fn resume(&mut self) {
        let now = self.clock.now();
        let lost = self.plane.reassert();
        if lost.is_empty() {
            self.warnings.clear(TAKE_OVER);
        } else {
            self.warnings.stick(now, TAKE_OVER, lost.join("; "));
        }
        // What cannot be put back is told, and tried again.
        let _ = self.go_back();
        self.remote.flowspec.resume();
        self.last_tick = None;
        self.publish(now);
    }

    /// The kernel's word holds: a kill switch that was thrown while no daemon ran, or past the
    /// daemon, stays thrown, and the snapshot says so.
    fn adopt_kill_switch(&mut self, now: Nanos) {
        match self.plane.released() {
            Ok(on) => {
                let before = std::mem::replace(&mut self.intent.released, on);
                if on != before {
                    self.record.note(What::Release { on, lasts: None, by: By::Pins });
                }
            }
            Err(error) => {
                self.warnings.raise(now, "kill switch", format!("cannot be read: {error}"));
            }
        }
    }

    /// One round: renew the lease, sense, decide, write, tell.
    pub fn tick(&mut self) {
        let now = self.clock.now();
        self.renew(now);
        self.adopt_kill_switch(now);
        self.end_overrides(now);
        if self.astray.is_some_and(|due| now >= due) {
            // The reason of a refusal is in the warnings.
            let _ = self.go_back();
        }
        self.note_lateness(now);
        self.share(now);
        self.sensed = self.senses.tick(now, &*self.plane);
        self.note_bypassed(now);
        for (subject, text) in self.senses.problems(now) {
            self.warnings.raise(now, &subject, text);
        }
        let kept = self.decide(now);
        self.mark(now);
        self.join_remote(now);
        self.note_record(now);
        self.write(now, kept);
        self.guard(now);
        for (service, why) in self.in_force.refused() {
            let text = format!("refused, so that everything passes: {why}");
            self.warnings.raise(now, &format!("{service}: limits"), text);
        }
        let lost = self.plane.mend();
        if !lost.is_empty() {
            self.warnings.raise(now, "hooks", lost.join("; "));
        }
        self.record.note_all(self.plane.events());
        let gateways = self.plane.gateways(&self.intent.config).unwrap_or_default();
        self.gateways.look(now, (&self.intent.config, gateways), &mut self.warnings);
        self.follow_places(now);
        let doubts = self.plane.doubts();
        if !doubts.is_empty() {
            self.warnings.raise(now, "interfaces", doubts.join("; "));
        }
        self.take_samples(now);
        self.keep(now, false);
        self.note_lost_lines(now);
        if self.intent.released {
            let left = self.overrides.release_left(now);
            let time = left.map(|left| format!(" for {left} more")).unwrap_or_default();
            let text = format!("released: everything passes{time}");
            self.warnings.raise(now, "kill switch", text);
        } else {
            self.warnings.clear("kill switch");
        }
        self.warnings.expire(now);
        self.publish(now);
    }

    /// A service whose gateways opened, or did not, is limited at another place from now on.
    fn follow_places(&mut self, now: Nanos) {
        let Self { gateways, intent, plane, warnings, governors, .. } = self;
        let moved = gateways.moved(now, (&intent.config, &**plane), warnings);
        for at in &moved {
            governors[*at] = Governed::new(&intent.config.services[*at], self.make);
        }
        if !moved.is_empty() {
            self.rewrite();
        }
    }

    /// Whether something is decided by what [`Self::sample`] looks at.
    #[must_use]
    pub fn wants_samples(&self) -> bool {
        let requests = self.intent.config.services.iter().filter_map(|s| s.requests.as_ref());
        let mut buckets = requests.flat_map(|requests| &requests.buckets);
        buckets.any(|bucket| bucket.resource == ControlledResource::Bandwidth)
    }

    /// Between two ticks: looks at what fills and empties faster than they come.
    pub fn sample(&mut self) {
        self.senses.sample(self.clock.now());
    }

    /// First of all, so that nothing that is slow or fails later costs the lease.
    fn renew(&mut self, now: Nanos) {
        match self.plane.heartbeat() {
            Ok(()) => self.heartbeat = Some(now),
            Err(error) => {
                self.warnings.raise(now, "lease", format!("cannot be renewed: {error}"));
            }
        }
    }

    fn note_lateness(&mut self, now: Nanos) {
        let tick = self.intent.config.daemon.tick;
        let Some(last) = self.last_tick.replace(now) else { return };
        let took = now.since(last);
        if took.0 > tick.0.saturating_mul(LATE_TICKS) {
            self.late += 1;
            let late = self.late;
            self.warnings.raise(
                now,
                "tick",
                format!("came {took} after the one before instead of {tick}; {late} late so far"),
            );
        }
    }

    /// Connections that came past the hooks: the service is not protected.
    fn note_bypassed(&mut self, now: Nanos) {
        let Self { sensed, intent, warnings, .. } = self;
        for (sensed, service) in sensed.iter_mut().zip(&intent.config.services) {
            // Where a gateway stands in front, no SYN needs to be seen, nor an accept queue.
            if intent.config.is_routed(&service.name) {
                (sensed.bypassed, sensed.unreplied, sensed.barred) = Default::default();
            }
            for text in past_the_hooks(&intent.config, sensed) {
                warnings.raise(now, &format!("{}: hooks", service.name), text);
            }
        }
    }

    /// Keeps what was learned for the process that comes next: when it is time to, or now.
    fn keep(&mut self, now: Nanos, at_once: bool) {
        let Self { keeper, plane, intent, governors, warnings, .. } = self;
        let Some(keeper) = keeper else { return };
        let (services, learned) = (&intent.config.services, (&**governors, &**plane));
        let kept = match at_once {
            true => keeper.save(services, learned),
            false => keeper.tick(now, services, learned),
        };
        if let Err(why) = kept {
            warnings.raise(now, STATE, format!("cannot be kept for the next process: {why}"));
        }
    }

    /// What was learned is for a successor now: the last word before it begins, or before the end.
    pub fn keep_for_successor(&mut self) {
        let now = self.clock.now();
        self.keep(now, true);
        self.record.close(now);
        self.record.flush();
    }

    /// The same of a stop that leaves everything attached.
    pub fn keep_at_stop(&mut self) {
        self.record.note(What::Stopped { kept: true });
        self.keep_for_successor();
    }

    /// A log that cannot be written costs its lines, and is told where it can be.
    fn note_lost_lines(&mut self, now: Nanos) {
        let lost = lines_lost();
        if lost > std::mem::replace(&mut self.lines_lost, lost) {
            let text = format!("cannot be written (full disk, closed pipe?); {lost} lines lost");
            self.warnings.raise(now, "log", text);
        }
    }

    /// Returns what keeps the limits that were adopted.
    fn decide(&mut self, now: Nanos) -> Kept {
        let adopting = !self.adopted.is_empty() && now < self.started + INHERIT;
        let mut undecided = Kept::default();
        let sources = self.look_at_sources(now);
        let Self { governors, sensed, intent, warnings, plane, remote, .. } = self;
        let services = governors.iter_mut().zip(&intent.config.services).enumerate();
        for (index, (governor, config)) in services {
            let name = &config.name;
            let Some(sensed) = sensed.get(index) else {
                // Whatever was sensed with does not know this service: no ground for any limit.
                governor.release(config, now, "nothing was sensed");
                warnings.raise(now, name, "nothing was sensed");
                continue;
            };
            for (subject, text) in advice(config, plane.sees_answers(), sensed.defer_accept) {
                warnings.raise(now, &subject, text);
            }
            let own = sources.as_deref().map(|sources| of_service(sources, index));
            for (subject, text) in governor.look_at_sources(now, sensed, own.as_deref()) {
                warnings.raise(now, &format!("{name}: {subject}"), text);
            }
            if let Some(text) = governor.layer(&sensed.signals, config.requests.is_some()) {
                warnings.raise(now, &format!("{name}: layer"), text);
            }
            for problem in &sensed.problems {
                warnings.raise(now, &format!("{name}: {}", problem.signal), problem.why.clone());
            }
            let mode = control_mode(config, intent.released);
            let apart = remote.apart(index, &sensed.signals);
            match governor.tick(config, apart.as_ref().unwrap_or(&sensed.signals), mode) {
                Ok(()) if adopting => {
                    let buckets = governor.undecided_buckets(config, &sensed.signals);
                    undecided.buckets.extend(buckets.into_iter().map(|bucket| (index, bucket)));
                    let known = self.adopted.services.contains(&index);
                    if known && governor.is_undecided(config, &sensed.signals) {
                        let why = &mut governor.limits_mut().why;
                        why.text = format!("{ADOPTED}; {}", why.text);
                        undecided.services.insert(index);
                    }
                }
                Ok(()) => {}
                Err(why) => {
                    warnings.raise(now, &format!("{name}: control"), why);
                }
            }
            governor.limits_mut().source_max = governor.holders.limit();
        }
        self.adopted.retain(&undecided);
        self.adopted.clone()
    }

    /// The sources of all services, when it is time to look at them.
    fn look_at_sources(&mut self, now: Nanos) -> Option<Vec<SourceUse>> {
        let urgent = self.governors.iter().any(|governor| governor.holders.urgent());
        let every = if urgent { SOURCES_URGENT } else { SOURCES_EVERY };
        if self.looked.is_some_and(|at| now.since(at) < every) {
            return None;
        }
        self.looked = Some(now);
        match self.plane.sources() {
            Ok(sources) => Some(sources),
            Err(error) => {
                self.warnings.raise(now, "sources", format!("cannot be read: {error}"));
                None
            }
        }
    }

    /// Joins what was decided with the limits of peers, and tells peers theirs.
    fn join_remote(&mut self, now: Nanos) {
        let own = self.governors.iter().map(|governor| governor.limits().clone()).collect();
        let Self { remote, sensed, intent, senses, plane, record, warnings, .. } = self;
        let of = (&intent.config, intent.released);
        self.joined = remote.tick(now, of, (sensed, own), &mut **senses);
        remote.flowspec.enforce(now, &mut **plane);
        record.note_all(remote.events());
        remote.problems().for_each(|(subject, text)| warnings.raise(now, &subject, text));
    }

    fn note_record(&mut self, now: Nanos) {
        let Self { record, remote, sensed, intent, joined, counts, warnings, .. } = self;
        let (remote, released) = (&|index| remote.holds(index), intent.released);
        let config = &intent.config;
        record.see(&Seen { now, config, released, sensed, limits: joined, counts, remote });
        for (subject, why) in record.write(now) {
            let text = format!("cannot be written, and is kept in memory: {why}");
            warnings.raise(now, subject, text);
        }
    }

    /// Writes what is remembered, now.
    pub fn write_record(&mut self) {
        self.record.flush();
    }

    /// Writes what changed.
    fn write(&mut self, now: Nanos, kept: Kept) {
        let (limits, config) = (self.joined.clone(), &self.intent.config);
        if let Err(error) = self.in_force.write(&mut *self.plane, config, (limits, kept)) {
            self.warnings.raise(now, "limits", format!("cannot be written: {error}"));
        }
    }

    /// The dataplane forgot its limits (a new configuration): the next tick writes them all.
    pub(crate) fn rewrite(&mut self) {
        self.joined.clear();
        self.in_force.forget();
        self.adopted = Kept::default();
        self.governors.iter_mut().for_each(Governed::forget_predecessor);
    }

    /// The dataplane may follow something else, in part: it is made to follow the configuration in
    /// force. That forgets the limits of services that change places, so all are written again.
    ///
    /// # Errors
    /// When it is refused; then it is tried again every second, and a warning says so meanwhile.
    pub(crate) fn go_back(&mut self) -> Result<(), PlaneError> {
        let now = self.clock.now();
        self.rewrite();
        let applied = self.plane.apply(&self.intent.config);
        match &applied {
            Ok(()) => self.followed(),
            Err(error) => {
                self.astray = Some(now + GO_BACK_EVERY);
                let text = format!("cannot go back to the configuration in force: {error}");
                self.warnings.stick(now, DATAPLANE, text);
            }
        }
        applied
    }

    /// The dataplane follows the configuration in force, or the one that is put in force now.
    pub(crate) fn followed(&mut self) {
        self.astray = None;
        self.warnings.clear(DATAPLANE);
    }

    fn take_samples(&mut self, now: Nanos) {
        match self.plane.samples(&self.intent.config, SAMPLES_PER_TICK) {
            Ok(new) => {
                self.samples.extend(new);
                let surplus = self.samples.len().saturating_sub(SAMPLES_MAX);
                self.samples.drain(..surplus);
            }
            Err(error) => self.warnings.raise(now, "samples", format!("cannot be read: {error}")),
        }
    }

    /// Publishes a snapshot: after every tick and after every command.
    pub(crate) fn publish(&mut self, now: Nanos) {
        self.keep_commands(now);
        if self.counted.is_none_or(|at| now.since(at) >= COUNT_EVERY) {
            self.counted = Some(now);
            self.count(now);
        }
        let mut peers = self.senses.peers(now);
        self.remote.count_refused(&mut peers);
        let services = self.intent.config.services.iter().enumerate();
        let services = services.map(|(index, config)| self.service_state(now, config, index));
        let snapshot = Snapshot {
            version: self.version.clone(),
            now,
            unix: Some(self.record.day()),
            started: self.started,
            config_generation: self.config_generation,
            limits_generation: self.in_force.generation(),
            released: self.intent.released,
            release_left: self.overrides.release_left(now),
            heartbeat: self.heartbeat,
            interfaces: self.plane.hooks(),
            links: self.remote.links.states(now),
            services: services.collect(),
            passed: self.counts.passed.clone(),
            cleared: self.counts.cleared,
            in_band: self.counts.in_band.clone(),
            table_losses: self.counts.table_losses.clone(),
            warnings: self.warnings.sentences(now),
            peers,
            bus: self.senses.bus(now),
            gateways: self.gateways.summed(self.plane.gateways(&self.intent.config)),
            flowspec: self.remote.flowspec.state(),
            router: self.counts.router.clone(),
        };
        self.out.send_replace(Some(Arc::new(snapshot)));
    }

    pub(crate) fn last_snapshot(&self) -> Arc<Snapshot> {
        self.out.borrow().clone().unwrap_or_default()
    }

    /// Reads the counters for people; what cannot be read is shown as it was.
    fn count(&mut self, now: Nanos) {
        let read = self.plane.counts(&self.intent.config);
        let known = read.is_ok();
        match read {
            Ok(counts) => {
                self.full_tables(now, &counts.table_losses);
                self.exempt.look(now, (&self.intent.config, &counts), &mut self.warnings);
                self.counts = counts;
            }
            Err(error) => self.warnings.raise(now, "counters", format!("cannot be read: {error}")),
        }
        let Self { requests, intent, plane, warnings, record, counts, .. } = self;
        requests.look(now, (&intent.config, &**plane), warnings);
        if !known {
            return;
        }
        let rules = &|index| requests.rule_counts(index);
        let (config, released) = (&intent.config, intent.released);
        record.see_shadow(&Shadowed { config, released, counts, rules });
    }

    /// A table that turned something away since the last look is full.
    fn full_tables(&mut self, now: Nanos, losses: &[ReasonCount]) {
        for loss in losses {
            let before =
                self.counts.table_losses.iter().find(|before| before.reason == loss.reason);
            let Some(more) = before.and_then(|before| loss.count.checked_sub(before.count)) else {
                continue;
            };
            if more > 0 {
                let text = format!(
                    "tables.{} is full: {more} since the last look found no room or lost it; they \
                     pass, and are missing in the signals",
                    loss.reason
                );
                self.warnings.raise(now, &format!("table {}", loss.reason), text);
            }
        }
    }

    fn service_state(&self, now: Nanos, service: &ServiceConfig, index: usize) -> ServiceState {
        let nothing = Sensed::default();
        let sensed = self.sensed.get(index).unwrap_or(&nothing);
        let own = || self.governors.get(index).map(|governor| governor.limits().clone());
        let limits = self.joined.get(index).cloned().or_else(own).unwrap_or_default();
        let routed = self.intent.config.is_routed(&service.name);
        let (of, seen) = ((index, service), (&sensed.signals, &limits));
        let mut requests = self.requests.state(now, of, seen, sensed.defer_accept);
        let level = levels::of_service(&*self.plane, of, seen);
        if let Some(requests) = &mut requests {
            for bucket in &mut requests.buckets {
                bucket.sums = self.record.sums(&service.name, Some(&bucket.name));
            }
            levels::of_buckets(&*self.plane, of, seen, requests);
        }
        ServiceState {
            name: service.name.clone(),
            mode: service.mode.name().into(),
            mode_set: self.overrides.of(&service.name, now),
            policy: if routed { service.policy.for_requests() } else { &service.policy.name }
                .into(),
            action: if routed { GATE_ACTION } else { action_name(service) }.into(),
            controller: service.control.name.clone(),
            signals: sensed.signals.clone(),
            limits,
            counts: self.counts.services.get(index).cloned().unwrap_or_default(),
            requests,
            restored: self.restored.get(&service.name).copied(),
            bypassed: sensed.bypassed.clone(),
            unreplied: sensed.unreplied.clone(),
            barred: sensed.barred.clone(),
            remote: self.remote.states(now, index),
            remote_sums: self.remote.sums(&service.name),
            level,
            totals: self.record.totals(&service.name).cloned(),
            sees_answers: self.plane.sees_answers(),
            sums: self.record.sums(&service.name, None),
            shadow: self.record.shadow_sums(&service.name),
        }
    }

    /// A clean stop: detaches everything, so that all passes at once, and forgets what was learned.
    ///
    /// # Errors
    /// When something could not be detached; the lease opens within 10 s then.
    pub fn detach(mut self) -> Result<(), PlaneError> {
        if let Some(keeper) = &mut self.keeper {
            keeper.forget();
        }
        self.record.note(What::Stopped { kept: false });
        self.record.close(self.clock.now());
        let detached = self.plane.detach();
        // What the disk takes is not subtracted later for it.
        self.record.flush();
        detached
    }
}

/// While nothing is really shed, or only to a share of the sources, a controller must not believe that
/// its limits had an effect.
fn control_mode(config: &ServiceConfig, released: bool) -> ControlMode {
    match config.mode {
        Mode::Enforce if !released && config.canary.is_all() => ControlMode::Enforce,
        Mode::Enforce | Mode::Shadow => ControlMode::Shadow,
    }
}

/// `abacus` and `abacus_exact` choose by themselves.
fn action_name(service: &ServiceConfig) -> &'static str {
    match service.policy.action {
        Some(action) => action.name(),
        None if service.policy.is_abacus() => "drop or reject",
        None => Refusal::default().name(),
    }
}
