// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A dataplane that remembers, senses that say what they are told, and a clock that stands still.

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use tidegate_api::protocol::Handover;
use tidegate_bpf::HostMarks;
use tidegate_config::{BucketConfig, Config, Registry, ServiceConfig};
use tidegate_control::{
    BucketController, Context, Controller, Demand, Headroom, Mode as ControlMode,
};
use tidegate_daemon::outlet::{Kept, Outlet, Refused};
use tidegate_daemon::owner::{Owner, Parts, keep_canaries, keep_modes};
use tidegate_daemon::plane::{
    Counted, Counters, Heard, Lifecycle, PlaneError, RequestCounts, Said, Senses,
};
use tidegate_daemon::record::Books;
use tidegate_daemon::state::{Keeper, KeptCommands, KeptCrowd};
use tidegate_daemon::{Makers, modes_of};
use tidegate_model::limits::{BucketLimits, Limits, ServiceLimits};
use tidegate_model::signals::{
    AcceptQueue, BucketCounts, BucketSignals, Counts, LinkUse, Reading, Signals,
};
use tidegate_model::snapshot::{Followed, InterfaceState, Sample, Snapshot, VerdictCount};
use tidegate_model::sources::SourceUse;
use tidegate_model::totals::{BucketTotals, ServiceTotals, Totals};
use tidegate_model::{Canary, Mode};
use tidegate_sense::{Sensed, ServiceSource};
use tidegate_units::{Clock, ManualClock, Nanos, Rate, Share};
use tokio::sync::watch;

/// What the dataplane was told, and what it shall refuse.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) applied: Vec<Config>,
    pub(crate) written: Vec<Limits>,
    /// What was adopted, and what took its place: rates of services and of their buckets.
    pub(crate) in_force: Vec<(Option<Rate>, Vec<Option<Rate>>)>,
    pub(crate) adopted: bool,
    pub(crate) heartbeats: u32,
    pub(crate) released: bool,
    pub(crate) detached: bool,
    pub(crate) samples: Vec<Sample>,
    /// How many configurations it refuses from now on.
    pub(crate) refuse_applies: u32,
    /// Shadow of each service that was set, in order.
    pub(crate) shadows: Vec<(usize, bool)>,
    pub(crate) refuse_shadow: bool,
    pub(crate) unprivileged: bool,
    pub(crate) refuse_limits: bool,
    pub(crate) refuse_release: bool,
    /// Order of what happened in a tick.
    pub(crate) order: Vec<&'static str>,
    /// What the rules of every service counted.
    pub(crate) requests: RequestCounts,
    pub(crate) followed: Option<Followed>,
    /// Who has connections open, and how often that was asked.
    pub(crate) sources: Vec<SourceUse>,
    pub(crate) looks: Arc<AtomicU32>,
    /// So many silent connections hold the workers of every service.
    pub(crate) silent: Option<u64>,
    /// So many connections that are idle after a response do.
    pub(crate) idle: Option<u64>,
    /// What peers say of remote limits, and what they are told.
    pub(crate) heard: Heard,
    pub(crate) said: Vec<Said>,
    /// What the interfaces to the servers did.
    pub(crate) links: Vec<LinkUse>,
    /// Servers that say by marks that they are overloaded, and what this host says.
    pub(crate) marked: Vec<Ipv4Addr>,
    pub(crate) says: HostMarks,
    /// The kernel cannot be asked for them.
    pub(crate) unreadable: bool,
    /// An interface without an egress hook.
    pub(crate) blind: bool,
    /// Services whose limits are refused, and why.
    pub(crate) refused: Vec<Refused>,
    /// Hooks that are not there any more.
    pub(crate) unhooked: Vec<String>,
    /// What is not ours any more after a take-over that failed.
    pub(crate) lost: Vec<String>,
    /// What every service has counted; then ticks have a length, too.
    pub(crate) totals: Option<ServiceTotals>,
    /// Services are limited at the kernel, in spite of their routes.
    pub(crate) at_kernel: bool,
    /// Refused and completed in a tick, and in flight; then ticks have a length.
    pub(crate) flow: Option<(u64, u64, u64)>,
    /// Canaries that were written.
    pub(crate) canaries: Vec<Canary>,
    /// Its verdicts.
    pub(crate) verdicts: Vec<VerdictCount>,
    /// So many requests are refused in each tick, by place of the bucket.
    pub(crate) bucket_refused: Vec<u64>,
    /// Flash crowds that are there, and those that it was to go on with.
    pub(crate) crowds: Vec<KeptCrowd>,
    pub(crate) restored_crowds: Option<(Vec<KeptCrowd>, Nanos)>,
}

#[derive(Clone, Default)]
pub(crate) struct FakePlane(pub(crate) Arc<Mutex<Memory>>);

pub(crate) fn refused() -> PlaneError {
    PlaneError("refused by the test".into())
}

impl Totals for FakePlane {
    fn totals(&self, _: usize) -> io::Result<ServiceTotals> {
        let bucket = BucketTotals { offered: [1, 20, 3], ..BucketTotals::default() };
        Ok(ServiceTotals { buckets: vec![bucket], ..ServiceTotals::default() })
    }

    fn sees_answers(&self) -> bool {
        !self.0.lock().unwrap().blind
    }
}

impl Outlet for FakePlane {
    fn set_limits(
        &mut self,
        _: &Config,
        limits: &Limits,
        kept: &Kept,
    ) -> Result<Vec<Refused>, PlaneError> {
        let mut memory = self.0.lock().unwrap();
        if memory.refuse_limits {
            return Err(refused());
        }
        memory.order.push("limits");
        memory.in_force.resize_with(limits.services.len(), Default::default);
        for (at, limits) in limits.services.iter().enumerate() {
            let (rate, buckets) = &mut memory.in_force[at];
            if !kept.services.contains(&at) {
                *rate = limits.rate;
            }
            buckets.resize(limits.buckets.len(), None);
            for (bucket, limits) in limits.buckets.iter().enumerate() {
                if !kept.buckets.contains(&(at, bucket)) {
                    buckets[bucket] = limits.rate;
                }
            }
        }
        memory.written.push(limits.clone());
        Ok(memory.refused.clone())
    }

    fn generation(&self) -> u64 {
        self.0.lock().unwrap().written.last().map_or(0, |limits| limits.generation)
    }

    fn adopted(&self) -> bool {
        self.0.lock().unwrap().adopted
    }

    fn heartbeat(&mut self) -> Result<(), PlaneError> {
        let mut memory = self.0.lock().unwrap();
        memory.heartbeats += 1;
        memory.order.push("heartbeat");
        Ok(())
    }

    fn set_mode(&mut self, service: usize, mode: Mode, canary: Canary) -> Result<(), PlaneError> {
        let mut memory = self.0.lock().unwrap();
        memory.shadows.push((service, mode == Mode::Shadow));
        memory.canaries.push(canary);
        if std::mem::take(&mut memory.refuse_shadow) { Err(refused()) } else { Ok(()) }
    }

    fn release(&mut self, on: bool) -> Result<(), PlaneError> {
        let mut memory = self.0.lock().unwrap();
        if memory.refuse_release {
            return Err(refused());
        }
        memory.released = on;
        Ok(())
    }

    fn released(&self) -> Result<bool, PlaneError> {
        Ok(self.0.lock().unwrap().released)
    }
}

impl Counters for FakePlane {
    fn counts(&self, _: &Config) -> Result<Counted, PlaneError> {
        let services = vec![self.0.lock().unwrap().verdicts.clone()];
        Ok(Counted { services, ..Counted::default() })
    }

    fn request_counts(
        &self,
        config: &Config,
    ) -> Result<(Vec<RequestCounts>, Option<Followed>), PlaneError> {
        let memory = self.0.lock().unwrap();
        Ok((vec![memory.requests.clone(); config.services.len()], memory.followed))
    }

    fn sources(&self) -> Result<Vec<SourceUse>, PlaneError> {
        let memory = self.0.lock().unwrap();
        memory.looks.fetch_add(1, Ordering::Relaxed);
        Ok(memory.sources.clone())
    }

    fn samples(&mut self, _: &Config, most: usize) -> Result<Vec<Sample>, PlaneError> {
        let samples = &mut self.0.lock().unwrap().samples;
        let most = most.min(samples.len());
        Ok(samples.drain(..most).collect())
    }
}

impl Lifecycle for FakePlane {
    fn examine(&self, config: &Config) -> Result<(), PlaneError> {
        let other = config.interfaces.iter().any(|interface| interface.name != "lo");
        let refuses = other && self.0.lock().unwrap().unprivileged;
        if refuses { Err(PlaneError("the test has no privileges".into())) } else { Ok(()) }
    }

    fn apply(&mut self, config: &Config) -> Result<(), PlaneError> {
        let mut memory = self.0.lock().unwrap();
        if memory.refuse_applies > 0 {
            memory.refuse_applies -= 1;
            return Err(refused());
        }
        memory.applied.push(config.clone());
        Ok(())
    }

    fn commit(&mut self) -> Vec<String> {
        Vec::new()
    }

    fn kept_crowds(&self) -> Vec<KeptCrowd> {
        self.0.lock().unwrap().crowds.clone()
    }

    fn restore_crowds(&mut self, kept: Vec<KeptCrowd>, age: Nanos) {
        self.0.lock().unwrap().restored_crowds = Some((kept, age));
    }

    fn reassert(&mut self) -> Vec<String> {
        self.0.lock().unwrap().lost.clone()
    }

    fn mend(&mut self) -> Vec<String> {
        self.0.lock().unwrap().unhooked.clone()
    }

    fn mark(&mut self, _: Nanos, says: HostMarks) -> Vec<Ipv4Addr> {
        let mut memory = self.0.lock().unwrap();
        memory.says = says;
        std::mem::take(&mut memory.marked)
    }

    fn at_gate(&self, _: usize) -> bool {
        !self.0.lock().unwrap().at_kernel
    }

    fn doubts(&self) -> Vec<String> {
        Vec::new()
    }

    fn hooks(&self) -> Vec<InterfaceState> {
        Vec::new()
    }

    fn detach(self: Box<Self>) -> Result<(), PlaneError> {
        self.0.lock().unwrap().detached = true;
        Ok(())
    }
}

/// Arrivals that every service shows; `None`: no source can be read.
#[derive(Clone, Default)]
pub(crate) struct FakeSenses {
    pub(crate) offered: Arc<Mutex<Option<u64>>>,
    pub(crate) memory: Arc<Mutex<Memory>>,
    pub(crate) services: usize,
    pub(crate) defer_accept: Arc<Mutex<Option<bool>>>,
}

/// Most buckets of a service in these tests.
pub(crate) const BUCKETS: u64 = 3;

/// Bucket i is asked for i more than the first.
pub(crate) fn buckets(offered: u64) -> Vec<BucketSignals> {
    let bucket = |i| BucketSignals {
        counts: Some(Reading::fresh(BucketCounts {
            offered: [0, offered + i, 0],
            ..BucketCounts::default()
        })),
        ..BucketSignals::default()
    };
    (0..BUCKETS).map(bucket).collect()
}

impl Senses for FakeSenses {
    fn tick(&mut self, now: Nanos, _: &dyn Totals) -> Vec<Sensed> {
        self.memory.lock().unwrap().order.push("sense");
        let mut sensed = Sensed::default();
        if let Some(silent) = self.memory.lock().unwrap().silent {
            let queue = AcceptQueue { length: silent, limit: 2 * silent };
            sensed.signals.time.silent = Some(Reading::fresh(silent));
            // As many wait in the accept queue, for a worker that is free.
            sensed.signals.time.waiting = Some(Reading::fresh(silent));
            sensed.signals.time.open = Some(Reading::fresh(2 * silent));
            sensed.signals.queue.accept = Some(Reading::fresh(queue));
            sensed.signals.resource.cpu = Some(Reading::fresh(Share::new(0.02)));
        }
        let idle = self.memory.lock().unwrap().idle;
        if let Some(idle) = idle {
            let queue = AcceptQueue { length: idle, limit: 2 * idle };
            sensed.signals.time.silent = Some(Reading::fresh(0));
            sensed.signals.time.waiting = Some(Reading::fresh(idle));
            sensed.signals.time.open = Some(Reading::fresh(2 * idle));
            sensed.signals.queue.accept = Some(Reading::fresh(queue));
            sensed.signals.resource.cpu = Some(Reading::fresh(Share::new(0.02)));
        }
        let completed = u64::from(idle.is_some());
        sensed.signals.now = now;
        sensed.totals = self.memory.lock().unwrap().totals.clone();
        if sensed.totals.is_some() {
            sensed.signals.period = Nanos::from_millis(100);
        }
        sensed.signals.balance.counts = self
            .offered
            .lock()
            .unwrap()
            .map(|offered| Counts { offered, admitted: offered, completed, ..Counts::default() })
            .map(Reading::fresh);
        if let Some((refused, completed, waiting)) = self.memory.lock().unwrap().flow {
            sensed.signals.period = Nanos::from_millis(100);
            sensed.signals.time.waiting = Some(Reading::fresh(waiting));
            if let Some(counts) = &mut sensed.signals.balance.counts {
                (counts.value.refused, counts.value.completed) = (refused, completed);
            }
        }
        sensed.signals.buckets = self.offered.lock().unwrap().map(buckets).unwrap_or_default();
        let refused = self.memory.lock().unwrap().bucket_refused.clone();
        for (bucket, refused) in sensed.signals.buckets.iter_mut().zip(refused) {
            if let Some(counts) = &mut bucket.counts {
                counts.value.refused[1] = refused;
            }
        }
        sensed.defer_accept = *self.defer_accept.lock().unwrap();
        vec![sensed; self.services]
    }

    fn remote(&mut self) -> Heard {
        std::mem::take(&mut self.memory.lock().unwrap().heard)
    }

    fn links(&mut self) -> Result<Vec<LinkUse>, String> {
        let memory = self.memory.lock().unwrap();
        if memory.unreadable { Err("not now, on purpose".into()) } else { Ok(memory.links.clone()) }
    }

    fn say(&mut self, said: Said) {
        self.memory.lock().unwrap().said.push(said);
    }

    fn reconfigure(&mut self, services: Vec<ServiceSource>) {
        self.services = services.len();
    }
}

/// Takes the arrivals for the rate; without signals the tightest there is, as no controller should.
/// From 1000 arrivals on it says that it sheds.
pub(crate) struct Echo;

impl Controller for Echo {
    fn tick(&mut self, signals: &Signals, mode: ControlMode) -> ServiceLimits {
        let offered = signals.balance.counts.map_or(1, |counts| counts.value.offered);
        let mut limits = ServiceLimits {
            rate: (offered > 0).then(|| Rate::per_second(offered as f64)),
            burst: 10,
            ..ServiceLimits::default()
        };
        limits.why.shedding = offered >= 1000;
        limits.why.text = format!("{mode:?}");
        limits
    }
}

pub(crate) struct Panics;

impl Controller for Panics {
    fn tick(&mut self, _: &Signals, _: ControlMode) -> ServiceLimits {
        panic!("a controller that fails, on purpose");
    }
}

/// Counts its ticks, and shows them as its burst; keeps them. It cannot bear to be told of 666.
#[derive(Default)]
pub(crate) struct Learner(u32);

impl Controller for Learner {
    fn tick(&mut self, signals: &Signals, mode: ControlMode) -> ServiceLimits {
        self.0 += 1;
        ServiceLimits { burst: self.0, ..Echo.tick(signals, mode) }
    }

    fn save(&self) -> Option<serde_json::Value> {
        Some(serde_json::json!({ "ticks": self.0 }))
    }

    fn restore(&mut self, value: serde_json::Value, _: Nanos) -> bool {
        let ticks = value.get("ticks").and_then(serde_json::Value::as_u64);
        let Some(ticks) = ticks.and_then(|ticks| u32::try_from(ticks).ok()) else { return false };
        self.0 = ticks;
        assert_ne!(ticks, 666, "a controller that fails half-way, on purpose");
        true
    }
}

pub(crate) fn make(service: &ServiceConfig) -> Box<dyn Controller> {
    match service.name.as_str() {
        "bad" => Box::new(Panics),
        "learner" => Box::new(Learner::default()),
        _ => Box::new(Echo),
    }
}

/// Takes the most that its bucket was ever asked for in one tick for the rate.
#[derive(Default)]
pub(crate) struct EchoBucket {
    most: u64,
}

impl BucketController for EchoBucket {
    fn tick(&mut self, signals: &Signals, bucket: usize, context: Context<'_>) -> BucketLimits {
        let counts = signals.buckets.get(bucket).and_then(|bucket| bucket.counts);
        let Some(counts) = counts else {
            let rate = Some(Rate::per_second(1.0));
            return BucketLimits { rate, burst: 1, ..BucketLimits::default() };
        };
        self.most = self.most.max(counts.value.offered[1]);
        assert_ne!(counts.value.offered[1], 666, "a controller that fails, on purpose");
        let mut limits = BucketLimits {
            rate: Some(Rate::per_second(self.most as f64)),
            burst: 5,
            ..BucketLimits::default()
        };
        limits.why.text = format!("{:?}", context.mode);
        limits
    }

    fn headroom(&self, _: Demand, _: f64) -> Headroom {
        Headroom { under_pressure: false, exhausted: true }
    }
}

pub(crate) fn make_bucket(_: &ServiceConfig, _: &BucketConfig) -> Box<dyn BucketController> {
    Box::new(EchoBucket::default())
}

pub(crate) fn registry() -> Registry {
    Registry::new(["fresh_first", "token_bucket", "abacus"], ["default", "fixed", "syn"])
}

pub(crate) const ONE: &str = "
interfaces: [{name: lo}]
services:
  shop:
    mode: enforce
    listen: ['*:80']
    classes: [{name: partners, sources: [198.51.100.0/24], priority: 0}]
";

pub(crate) fn config(text: &str) -> Config {
    tidegate_config::parse(text, &registry()).unwrap()
}

pub(crate) struct World {
    pub(crate) owner: Owner,
    pub(crate) snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) memory: Arc<Mutex<Memory>>,
    pub(crate) offered: Arc<Mutex<Option<u64>>>,
    pub(crate) defer_accept: Arc<Mutex<Option<bool>>>,
}

impl World {
    pub(crate) fn new(text: &str) -> Self {
        Self::with(text, None, FakePlane::default())
    }

    pub(crate) fn with(text: &str, inherited: Option<Handover>, plane: FakePlane) -> Self {
        Self::with_keeper(text, inherited, plane, None)
    }

    pub(crate) fn with_keeper(
        text: &str,
        inherited: Option<Handover>,
        plane: FakePlane,
        keeper: Option<Keeper>,
    ) -> Self {
        let clock = Arc::new(ManualClock::default());
        clock.advance(Nanos::from_secs(1000));
        let day = Arc::new(ManualClock::default());
        day.advance(Nanos::from_secs(1_800_000_000));
        let up = Arc::clone(&clock) as Arc<dyn Clock + Send + Sync>;
        let books = Books {
            store: None,
            ledger: None,
            boot: "test".into(),
            machine: String::new(),
            up,
            day,
        };
        Self::with_books(text, inherited, plane, (clock, keeper, books))
    }

    pub(crate) fn with_books(
        text: &str,
        inherited: Option<Handover>,
        plane: FakePlane,
        (clock, keeper, books): (Arc<ManualClock>, Option<Keeper>, Books),
    ) -> Self {
        let config = config(text);
        let senses = FakeSenses {
            services: config.services.len(),
            memory: Arc::clone(&plane.0),
            ..FakeSenses::default()
        };
        *senses.offered.lock().unwrap() = Some(0);
        let memory = Arc::clone(&plane.0);
        let offered = Arc::clone(&senses.offered);
        let defer_accept = Arc::clone(&senses.defer_accept);
        let file_modes = modes_of(&config);
        let mut keeper = keeper;
        let commands = |keeper: &mut Keeper| keeper.commands(&file_modes);
        let kept = match &inherited {
            Some(_) => KeptCommands::default(),
            None => keeper.as_mut().map(commands).unwrap_or_default(),
        };
        let left = inherited.as_ref().unwrap_or(&kept.left);
        let config = keep_canaries(keep_modes(config, &left.modes), &left.canaries);
        let (owner, snapshots) = Owner::new(Parts {
            clock: Arc::clone(&clock) as Arc<dyn Clock + Send + Sync>,
            books,
            plane: Box::new(plane),
            senses: Box::new(senses),
            config,
            controllers: Makers { service: make, bucket: make_bucket },
            version: "test".into(),
            file_modes,
            inherited,
            kept,
            keeper,
        });
        Self { owner, snapshots, clock, memory, offered, defer_accept }
    }

    /// What the record writes is written.
    pub(crate) fn settle(&mut self) {
        self.owner.write_record();
    }

    /// One tick, a period after the last, with so many arrivals.
    pub(crate) fn tick(&mut self, offered: Option<u64>) -> Arc<Snapshot> {
        *self.offered.lock().unwrap() = offered;
        self.clock.advance(Nanos::from_millis(100));
        self.owner.tick();
        self.snapshot()
    }

    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshots.borrow().clone().unwrap()
    }

    pub(crate) fn rate(&self) -> Option<f64> {
        self.snapshot().services[0].limits.rate.map(Rate::get)
    }

    pub(crate) fn generations(&self) -> Vec<u64> {
        self.memory.lock().unwrap().written.iter().map(|limits| limits.generation).collect()
    }

    pub(crate) fn warns(&self, of: &str) -> bool {
        self.snapshot().warnings.iter().any(|warning| warning.contains(of))
    }
}

pub(crate) fn file(dir: &tempfile::TempDir, text: &str) -> PathBuf {
    let path = dir.path().join("tidegate.yaml");
    std::fs::write(&path, text).unwrap();
    path
}
