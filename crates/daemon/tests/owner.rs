// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The owner's logic, with a dataplane that remembers, senses that say what they are told, and a
//! clock that stands still.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tidegate_api::protocol::{ErrorKind, Reply};
use tidegate_control::{BucketController, Controller, Mode as ControlMode, Room};
use tidegate_daemon::Makers;
use tidegate_daemon::owner::{Legacy, Owner, Parts, SAMPLES_MAX};
use tidegate_daemon::plane::{Plane, PlaneError, RequestCounts, Senses};
use tidegate_model::intent::{self, BucketConfig, Config, Mode, Registry, ServiceConfig};
use tidegate_model::limits::{BucketLimits, Limits, ServiceLimits};
use tidegate_model::signals::{BucketCounts, BucketSignals, Counts, Reading, Signals};
use tidegate_model::snapshot::{
    Followed, InterfaceState, ReasonCount, RuleCounts, Sample, Snapshot, UnjudgedCount,
    VerdictCount,
};
use tidegate_model::totals::{BucketTotals, ServiceTotals, Totals};
use tidegate_sense::{Sensed, ServiceSource};
use tidegate_units::{Clock, ManualClock, Nanos, Rate};
use tokio::sync::watch;

/// What the dataplane was told, and what it shall refuse.
#[derive(Default)]
struct Memory {
    applied: Vec<Config>,
    written: Vec<Limits>,
    heartbeats: u32,
    released: bool,
    detached: bool,
    samples: Vec<Sample>,
    refuse_apply: bool,
    /// Shadow of each service that was set, in order.
    shadows: Vec<(usize, bool)>,
    refuse_shadow: bool,
    unprivileged: bool,
    refuse_limits: bool,
    refuse_release: bool,
    /// Order of what happened in a tick.
    order: Vec<&'static str>,
    /// What the rules of every service counted.
    requests: RequestCounts,
    followed: Option<Followed>,
    /// An interface without an egress hook.
    blind: bool,
}

#[derive(Clone, Default)]
struct FakePlane(Arc<Mutex<Memory>>);

fn refused() -> PlaneError {
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

impl Plane for FakePlane {
    fn apply(&mut self, config: &Config) -> Result<(), PlaneError> {
        let mut memory = self.0.lock().unwrap();
        if std::mem::take(&mut memory.refuse_apply) {
            return Err(refused());
        }
        memory.applied.push(config.clone());
        Ok(())
    }

    fn set_shadow(&mut self, service: usize, shadow: bool) -> Result<(), PlaneError> {
        let mut memory = self.0.lock().unwrap();
        memory.shadows.push((service, shadow));
        if std::mem::take(&mut memory.refuse_shadow) { Err(refused()) } else { Ok(()) }
    }

    fn may_attach(&self) -> bool {
        !self.0.lock().unwrap().unprivileged
    }

    fn needs_attach(&self, config: &Config) -> bool {
        config.interfaces.iter().any(|interface| interface.name != "lo")
    }

    fn request_counts(&self, config: &Config) -> Result<Vec<RequestCounts>, PlaneError> {
        Ok(vec![self.0.lock().unwrap().requests.clone(); config.services.len()])
    }

    fn followed(&self) -> Option<Followed> {
        self.0.lock().unwrap().followed
    }

    fn set_limits(&mut self, _: &Config, limits: &Limits) -> Result<(), PlaneError> {
        let mut memory = self.0.lock().unwrap();
        if memory.refuse_limits {
            return Err(refused());
        }
        memory.order.push("limits");
        memory.written.push(limits.clone());
        Ok(())
    }

    fn generation(&self) -> u64 {
        self.0.lock().unwrap().written.last().map_or(0, |limits| limits.generation)
    }

    fn heartbeat(&mut self) -> Result<(), PlaneError> {
        let mut memory = self.0.lock().unwrap();
        memory.heartbeats += 1;
        memory.order.push("heartbeat");
        Ok(())
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

    fn counts(&self, config: &Config) -> Result<Vec<Vec<VerdictCount>>, PlaneError> {
        Ok(vec![Vec::new(); config.services.len()])
    }

    fn passed(&self) -> Result<Vec<ReasonCount>, PlaneError> {
        Ok(Vec::new())
    }

    fn samples(&mut self, _: &Config, most: usize) -> Result<Vec<Sample>, PlaneError> {
        let samples = &mut self.0.lock().unwrap().samples;
        let most = most.min(samples.len());
        Ok(samples.drain(..most).collect())
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
struct FakeSenses {
    offered: Arc<Mutex<Option<u64>>>,
    memory: Arc<Mutex<Memory>>,
    services: usize,
    defer_accept: Arc<Mutex<Option<bool>>>,
}

/// Most buckets of a service in these tests.
const BUCKETS: u64 = 3;

/// Bucket i is asked for i more than the first.
fn buckets(offered: u64) -> Vec<BucketSignals> {
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
        sensed.signals.now = now;
        sensed.signals.balance.counts = self
            .offered
            .lock()
            .unwrap()
            .map(|offered| Reading::fresh(Counts { offered, ..Counts::default() }));
        sensed.signals.buckets = self.offered.lock().unwrap().map(buckets).unwrap_or_default();
        sensed.defer_accept = *self.defer_accept.lock().unwrap();
        vec![sensed; self.services]
    }

    fn reconfigure(&mut self, services: Vec<ServiceSource>) {
        self.services = services.len();
    }
}

/// Takes the arrivals for the rate; without signals the tightest there is, as no controller should.
/// From 1000 arrivals on it says that it sheds.
struct Echo;

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

struct Panics;

impl Controller for Panics {
    fn tick(&mut self, _: &Signals, _: ControlMode) -> ServiceLimits {
        panic!("a controller that fails, on purpose");
    }
}

fn make(service: &ServiceConfig) -> Box<dyn Controller> {
    if service.name == "bad" { Box::new(Panics) } else { Box::new(Echo) }
}

/// Takes the most that its bucket was ever asked for in one tick for the rate.
#[derive(Default)]
struct EchoBucket {
    most: u64,
}

impl BucketController for EchoBucket {
    fn tick(&mut self, signals: &Signals, bucket: usize, mode: ControlMode) -> BucketLimits {
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
        limits.why.text = format!("{mode:?}");
        limits
    }

    fn room(&self) -> Room {
        Room { pressed: false, spent: true }
    }

    fn squeeze(&mut self, _: f64) {}

    fn lowest(&mut self) -> Option<Rate> {
        None
    }
}

fn make_bucket(_: &ServiceConfig, _: &BucketConfig) -> Box<dyn BucketController> {
    Box::new(EchoBucket::default())
}

fn registry() -> Registry {
    Registry::new(["fresh_first", "token_bucket", "abacus"], ["default", "fixed", "syn"])
}

const ONE: &str = "
interfaces: [{name: lo}]
services:
  shop:
    mode: enforce
    listen: ['*:80']
    classes: [{name: partners, sources: [198.51.100.0/24], priority: 0}]
";

fn config(text: &str) -> Config {
    intent::parse(text, &registry()).unwrap()
}

struct World {
    owner: Owner,
    snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    clock: Arc<ManualClock>,
    memory: Arc<Mutex<Memory>>,
    offered: Arc<Mutex<Option<u64>>>,
    defer_accept: Arc<Mutex<Option<bool>>>,
}

impl World {
    fn new(text: &str) -> Self {
        Self::with(text, None, FakePlane::default())
    }

    fn with(text: &str, inherited: Option<Legacy>, plane: FakePlane) -> Self {
        let clock = Arc::new(ManualClock::default());
        clock.advance(Nanos::from_secs(1000));
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
        let (owner, snapshots) = Owner::new(Parts {
            clock: Arc::clone(&clock) as Arc<dyn Clock + Send + Sync>,
            plane: Box::new(plane),
            senses: Box::new(senses),
            config,
            controllers: Makers { service: make, bucket: make_bucket },
            version: "test".into(),
            inherited,
        });
        Self { owner, snapshots, clock, memory, offered, defer_accept }
    }

    /// One tick, a period after the last, with so many arrivals.
    fn tick(&mut self, offered: Option<u64>) -> Arc<Snapshot> {
        *self.offered.lock().unwrap() = offered;
        self.clock.advance(Nanos::from_millis(100));
        self.owner.tick();
        self.snapshot()
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshots.borrow().clone().unwrap()
    }

    fn rate(&self) -> Option<f64> {
        self.snapshot().services[0].limits.rate.map(Rate::get)
    }

    fn generations(&self) -> Vec<u64> {
        self.memory.lock().unwrap().written.iter().map(|limits| limits.generation).collect()
    }

    fn warns(&self, of: &str) -> bool {
        self.snapshot().warnings.iter().any(|warning| warning.contains(of))
    }
}

fn file(dir: &tempfile::TempDir, text: &str) -> PathBuf {
    let path = dir.path().join("tidegate.yaml");
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn limits_are_written_when_they_change_and_their_number_only_grows() {
    let mut world = World::new(ONE);
    for offered in [50, 50, 50, 70, 70, 50] {
        world.tick(Some(offered));
    }
    assert_eq!(world.generations(), [1, 2, 3]);
    assert_eq!(world.snapshot().limits_generation, 3);
    assert_eq!(world.memory.lock().unwrap().heartbeats, 6, "the lease is renewed at every tick");
}

#[test]
fn the_lease_is_renewed_before_anything_that_could_be_slow() {
    let mut world = World::new(ONE);
    world.tick(Some(5));
    assert_eq!(world.memory.lock().unwrap().order, ["heartbeat", "sense", "limits"]);
}

#[test]
fn a_write_that_fails_is_repeated_under_a_new_number() {
    let mut world = World::new(ONE);
    world.memory.lock().unwrap().refuse_limits = true;
    world.tick(Some(50));
    assert!(world.generations().is_empty() && world.warns("limits: cannot be written"));
    world.memory.lock().unwrap().refuse_limits = false;
    world.tick(Some(50));
    world.tick(Some(50));
    assert_eq!(world.generations(), [2]);
}

#[test]
fn missing_signals_never_tighten_whatever_the_controller_says() {
    let mut world = World::new(ONE);
    world.tick(Some(500));
    assert_eq!(world.rate(), Some(500.0));
    for _ in 0..50 {
        world.tick(None);
        assert_eq!(world.rate(), Some(500.0), "the controller wanted 1/s without any signal");
    }
    world.tick(Some(300));
    assert_eq!(world.rate(), Some(300.0), "with signals it may");
}

#[test]
fn without_any_signal_from_the_start_there_is_no_limit() {
    let mut world = World::new(ONE);
    world.tick(None);
    assert_eq!(world.rate(), None);
}

#[test]
fn a_reload_that_is_wrong_changes_nothing_and_is_remembered_until_one_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(ONE);
    world.tick(Some(50));
    let before = world.owner.config().clone();
    let keep = Ok;
    let wrong = ["nonsense: true", "", "interfaces: [{name: lo}]\nservices: {}\n", "\u{0}"];
    for text in wrong {
        let error = world.owner.reload(&file(&dir, text), &registry(), &keep).unwrap_err();
        assert_eq!(error.kind, ErrorKind::ConfigInvalid, "{text:?}");
        assert_eq!(world.owner.config(), &before);
        assert!(world.memory.lock().unwrap().applied.is_empty(), "{text:?} reached the dataplane");
        assert!(world.warns("reload"));
    }
    let missing = dir.path().join("nothing");
    assert!(world.owner.reload(&missing, &registry(), &keep).is_err());
    assert_eq!(world.snapshot().config_generation, 1);

    let good = ONE.replace("*:80", "*:81");
    let reply = world.owner.reload(&file(&dir, &good), &registry(), &keep).unwrap();
    let Reply::Reload { generation: 2, changes } = reply else { panic!("{reply:?}") };
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert!(!world.warns("reload"), "a success ends the warning");
    assert_eq!(world.memory.lock().unwrap().applied.len(), 1);
}

#[test]
fn a_reload_that_the_dataplane_refuses_goes_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(ONE);
    world.tick(Some(50));
    let before = world.owner.config().clone();
    world.memory.lock().unwrap().refuse_apply = true;
    let path = file(&dir, &ONE.replace("*:80", "*:81"));
    let error = world.owner.reload(&path, &registry(), &Ok).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Failed);
    assert_eq!(world.owner.config(), &before);
    assert_eq!(world.memory.lock().unwrap().applied, [before], "the old one is put in force again");
    world.tick(Some(50));
    assert_eq!(world.snapshot().config_generation, 1);
}

#[test]
fn a_reload_writes_the_limits_again_and_keeps_those_of_services_that_stay() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(ONE);
    world.tick(Some(500));
    let two = format!("{ONE}  blog: {{mode: shadow, listen: ['*:81']}}\n");
    world.owner.reload(&file(&dir, &two), &registry(), &Ok).unwrap();
    let snapshot = world.tick(Some(500));
    assert_eq!(snapshot.services.len(), 2);
    assert_eq!(world.memory.lock().unwrap().written.last().unwrap().services.len(), 2);
    assert_eq!(world.generations(), [1, 2]);
}

#[test]
fn the_kill_switch_works_at_once_and_the_controller_knows() {
    let mut world = World::new(ONE);
    world.tick(Some(50));
    let reply = world.owner.release(true).unwrap();
    assert_eq!(reply, Reply::Release { on: true, before: false });
    assert!(world.memory.lock().unwrap().released, "without waiting for a tick");
    assert!(world.snapshot().released);
    let snapshot = world.tick(Some(50));
    assert!(world.warns("everything passes"));
    assert_eq!(snapshot.services[0].limits.why.text, "Shadow", "nothing is shed: as in shadow");
    world.owner.release(false).unwrap();
    assert!(!world.tick(Some(50)).released);
}

#[test]
fn a_kill_switch_that_cannot_be_set_is_not_said_to_be() {
    let mut world = World::new(ONE);
    world.tick(Some(50));
    world.memory.lock().unwrap().refuse_release = true;
    assert!(world.owner.release(true).is_err());
    assert!(!world.snapshot().released);
}

#[test]
fn a_kill_switch_thrown_without_a_daemon_stays_thrown() {
    let plane = FakePlane::default();
    plane.0.lock().unwrap().released = true;
    let mut world = World::with(ONE, None, plane);
    assert!(world.tick(Some(5)).released);
}

#[test]
fn a_mode_is_changed_in_the_dataplane_and_a_wrong_name_is_explained() {
    let mut world = World::new(ONE);
    world.tick(Some(50));
    let reply = world.owner.set_mode("shop", Mode::Shadow).unwrap();
    let wanted = Reply::Mode { service: "shop".into(), mode: Mode::Shadow, before: Mode::Enforce };
    assert_eq!(reply, wanted);
    assert_eq!(world.memory.lock().unwrap().shadows, [(0, true)]);
    assert!(world.memory.lock().unwrap().applied.is_empty(), "the rest is not touched");
    assert_eq!(world.snapshot().services[0].mode, "shadow");
    let error = world.owner.set_mode("shp", Mode::Shadow).unwrap_err();
    assert_eq!(error.kind, ErrorKind::UnknownService);
    assert!(error.message.contains("shop"), "{error}");
    world.memory.lock().unwrap().refuse_shadow = true;
    assert!(world.owner.set_mode("shop", Mode::Enforce).is_err());
    assert_eq!(world.memory.lock().unwrap().shadows[1..], [(0, false), (0, true)], "put back");
    assert_eq!(world.owner.legacy().modes, [("shop".into(), Mode::Shadow)].into());
    assert_eq!(world.owner.config().services[0].mode, Mode::Shadow, "nothing changed");
}

#[test]
fn a_mode_that_was_set_survives_a_take_over_and_ends_with_a_reload() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(ONE);
    assert_eq!(world.owner.legacy().modes, [].into(), "what the file says is not handed over");
    world.owner.set_mode("shop", Mode::Shadow).unwrap();
    let legacy = world.owner.legacy();
    assert_eq!(legacy.keep_modes(config(ONE)).services[0].mode, Mode::Shadow);
    let mut next = World::with(ONE, Some(legacy), FakePlane::default());
    assert_eq!(next.owner.legacy().modes.len(), 1, "and the take-over after that");
    next.owner.reload(&file(&dir, ONE), &registry(), &Ok).unwrap();
    assert_eq!(next.owner.legacy().modes, [].into(), "the file wins");
    assert_eq!(next.owner.config().services[0].mode, Mode::Enforce);
}

#[test]
fn other_interfaces_without_privileges_are_refused_before_anything_is_applied() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(ONE);
    world.memory.lock().unwrap().unprivileged = true;
    let other = ONE.replace("name: lo", "name: eth7");
    let error = world.owner.reload(&file(&dir, &other), &registry(), &Ok).unwrap_err();
    assert!(error.message.contains("privileges"), "{error}");
    assert!(world.memory.lock().unwrap().applied.is_empty());
    let ports = ONE.replace("*:80", "*:81");
    world.owner.reload(&file(&dir, &ports), &registry(), &Ok).unwrap();
}

#[test]
fn a_late_tick_is_counted_and_said() {
    let mut world = World::new(ONE);
    world.tick(Some(5));
    world.tick(Some(5));
    assert!(!world.warns("late"));
    world.clock.advance(Nanos::from_secs(3));
    world.tick(Some(5));
    assert!(world.warns("1 late so far"), "{:?}", world.snapshot().warnings);
}

#[test]
fn a_controller_that_panics_releases_its_service_only() {
    let two = format!("{ONE}  bad: {{mode: enforce, listen: ['*:81']}}\n");
    let mut world = World::new(&two);
    for tick in 1..=6 {
        let snapshot = world.tick(Some(50));
        assert_eq!(snapshot.services[0].limits.rate.map(Rate::get), Some(50.0));
        assert_eq!(snapshot.services[1].limits.rate, None);
        assert_eq!(world.memory.lock().unwrap().heartbeats, tick);
    }
    assert!(world.warns("bad: control"), "{:?}", world.snapshot().warnings);
}

#[test]
fn what_a_predecessor_decided_holds_until_there_is_an_own_opinion() {
    let rate =
        |rate: f64| ServiceLimits { rate: Some(Rate::per_second(rate)), ..Default::default() };
    let legacy = || Legacy {
        generation: 41,
        limits: [("shop".into(), rate(77.0))].into(),
        ..Legacy::default()
    };
    let mut world = World::with(ONE, Some(legacy()), FakePlane::default());
    world.tick(Some(0));
    assert_eq!((world.rate(), world.generations()), (Some(77.0), vec![42]));
    world.tick(Some(2000));
    assert_eq!(world.rate(), Some(2000.0), "the new controller sheds: its word counts");

    let mut world = World::with(ONE, Some(legacy()), FakePlane::default());
    for _ in 0..29 {
        world.tick(Some(0));
    }
    assert_eq!(world.rate(), Some(77.0));
    world.tick(Some(0));
    world.tick(Some(0));
    assert_eq!(world.rate(), None, "not for longer than 3 s");
}

#[test]
fn an_owner_that_is_being_succeeded_only_renews_the_lease_and_can_go_on() {
    let mut world = World::new(ONE);
    world.tick(Some(50));
    *world.offered.lock().unwrap() = Some(90);
    for _ in 0..5 {
        world.owner.tick_leaving();
    }
    assert_eq!(world.memory.lock().unwrap().heartbeats, 6);
    assert_eq!(world.generations(), [1], "nothing is decided");
    world.owner.resume();
    world.tick(Some(90));
    assert_eq!(world.memory.lock().unwrap().applied.len(), 1, "its own configuration is back");
    assert_eq!(world.generations(), [1, 2]);
}

#[test]
fn a_client_is_explained_from_its_prefix_and_the_samples() {
    let mut world = World::new(ONE);
    let sample = |client: &str| Sample {
        at: world.clock.now(),
        client: client.into(),
        service: "shop".into(),
        class: "partners".into(),
        verdict: "reject".into(),
        reason: "rate".into(),
        ..Sample::default()
    };
    world.memory.lock().unwrap().samples =
        vec![sample("198.51.100.7:4000"), sample("203.0.113.9:4001")];
    world.tick(Some(50));
    let text = |reason: &str| format!("text of {reason}");
    let got = world.owner.explain(&text, "198.51.100.7".parse().unwrap(), None);
    assert_eq!((got.services[0].class.as_str(), got.services[0].priority), ("partners", 0));
    assert_eq!(got.samples.len(), 1);
    assert_eq!(got.samples[0].text, "text of rate");
}

#[test]
fn the_ring_of_samples_is_bounded() {
    let mut world = World::new(ONE);
    let sample = Sample { client: "192.0.2.1:1".into(), ..Sample::default() };
    world.memory.lock().unwrap().samples = vec![sample; 3 * SAMPLES_MAX];
    for _ in 0..30 {
        world.tick(Some(5));
    }
    let left = world.memory.lock().unwrap().samples.len();
    assert_eq!(left, 0, "all were taken");
    let seen = world.owner.explain(&|_| String::new(), "192.0.2.1".parse().unwrap(), None);
    assert!(!seen.samples.is_empty() && seen.samples.len() <= SAMPLES_MAX);
}

#[test]
fn a_clean_stop_takes_everything_off() {
    let mut world = World::new(ONE);
    world.tick(Some(5));
    let World { owner, memory, .. } = world;
    owner.detach().unwrap();
    assert!(memory.lock().unwrap().detached);
}

#[test]
fn reserves_follow_the_weights_of_the_configuration() {
    let mut world = World::new(ONE);
    world.tick(Some(50));
    let written = world.memory.lock().unwrap().written.last().unwrap().services[0].clone();
    assert_eq!(written.reserve, world.owner.config().services[0].reserve_tokens(written.burst));
    assert!(written.reserve[7] > 0 && written.reserve[0] == 0, "{:?}", written.reserve);
}

const RULES: &str = "
interfaces: [{name: lo}]
services:
  shop:
    mode: enforce
    listen: ['*:80']
    requests:
      buckets: {a: {resource: cpu}, b: {resource: bandwidth}}
      rules: [{path: /a, bucket: a}, {name: rest, path: /, methods: [GET], bucket: b, answer: reset}]
";

impl World {
    /// The rates of the first service's buckets that were written last.
    fn bucket_rates(&self) -> Vec<Option<f64>> {
        let memory = self.memory.lock().unwrap();
        let services = &memory.written.last().unwrap().services;
        services[0].buckets.iter().map(|bucket| bucket.rate.map(Rate::get)).collect()
    }
}

#[test]
fn limits_of_buckets_are_written_with_those_of_the_service_when_they_change() {
    let mut world = World::new(RULES);
    world.tick(Some(50));
    assert_eq!(world.bucket_rates(), [Some(50.0), Some(51.0)]);
    world.tick(Some(50));
    assert_eq!(world.generations(), [1], "nothing changed");
    world.tick(Some(70));
    assert_eq!(world.bucket_rates(), [Some(70.0), Some(71.0)]);
    assert_eq!(world.generations(), [1, 2]);
}

#[test]
fn missing_signals_never_tighten_a_bucket() {
    let mut world = World::new(RULES);
    world.tick(None);
    assert_eq!(world.snapshot().services[0].limits.buckets[0].rate, None);
    world.tick(Some(50));
    for _ in 0..50 {
        world.tick(None);
        assert_eq!(world.bucket_rates()[0], Some(50.0), "the controller wanted 1/s");
    }
}

#[test]
fn a_reload_keeps_the_buckets_that_stay_and_makes_the_others_anew() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::new(RULES);
    world.tick(Some(500));
    world.tick(Some(50));
    assert_eq!(world.bucket_rates(), [Some(500.0), Some(501.0)], "they remember");
    // b stays and comes first, a changes, c is new.
    let text = RULES
        .replace(
            "{a: {resource: cpu}, b: {resource: bandwidth}}",
            "{b: {resource: bandwidth}, a: {resource: cpu, burst: 7}, c: {resource: disk}}",
        )
        .replace("rules: [", "rules: [{path: /c, bucket: c}, ");
    world.owner.reload(&file(&dir, &text), &registry(), &Ok).unwrap();
    let limits = &world.owner.legacy().limits["shop"];
    let kept: Vec<_> = limits.buckets.iter().map(|b| b.rate.map(Rate::get)).collect();
    assert_eq!(kept, [Some(501.0), None, None], "until the next tick");
    world.tick(Some(50));
    assert_eq!(world.bucket_rates(), [Some(501.0), Some(51.0), Some(52.0)]);
    let rules = text.replace("path: /c", "path: /d");
    world.owner.reload(&file(&dir, &rules), &registry(), &Ok).unwrap();
    world.tick(Some(20));
    assert_eq!(world.bucket_rates(), [Some(501.0), Some(51.0), Some(52.0)], "rules alone changed");
}

#[test]
fn a_take_over_inherits_the_limits_of_buckets_where_they_are_as_many() {
    let bucket = |rate| BucketLimits { rate: Some(Rate::per_second(rate)), ..Default::default() };
    for (inherited, wanted) in [
        (vec![bucket(7.0), bucket(8.0)], [Some(7.0), Some(8.0)]),
        (vec![bucket(7.0)], [Some(50.0), Some(51.0)]),
    ] {
        let limits = ServiceLimits { buckets: inherited, ..ServiceLimits::default() };
        let legacy = Legacy { limits: [("shop".into(), limits)].into(), ..Legacy::default() };
        let mut world = World::with(RULES, Some(legacy), FakePlane::default());
        world.tick(Some(50));
        assert_eq!(world.bucket_rates(), wanted, "until the new daemon has an own opinion");
    }
}

#[test]
fn rules_in_shadow_are_told_so_whoever_says_it() {
    let said = |world: &World| {
        let snapshot = world.snapshot();
        let requests = snapshot.services[0].requests.clone().unwrap();
        (requests.mode, requests.buckets[0].limits.why.text.clone())
    };
    let wanted = |mode: &str, text: &str| (mode.to_owned(), text.to_owned());
    let mut world = World::new(RULES);
    world.tick(Some(50));
    assert_eq!(said(&world), wanted("enforce", "Enforce"));
    world.owner.set_mode("shop", Mode::Shadow).unwrap();
    world.tick(Some(50));
    assert_eq!(said(&world), wanted("shadow", "Shadow"));

    let mut world = World::new(&RULES.replace("requests:", "requests:\n      mode: shadow"));
    let snapshot = world.tick(Some(50));
    assert_eq!(said(&world), wanted("shadow", "Shadow"));
    assert_eq!(snapshot.services[0].mode, "enforce", "connections are judged in earnest");

    let mut world = World::new(RULES);
    world.owner.release(true).unwrap();
    world.tick(Some(50));
    assert_eq!(said(&world).1, "Shadow", "released: nothing is shed");
}

#[test]
fn the_snapshot_shows_rules_buckets_and_what_was_not_judged() {
    let mut world = World::new(RULES);
    let counted = RuleCounts { admitted: 7, refused: 3, ..RuleCounts::default() };
    world.memory.lock().unwrap().requests = RequestCounts {
        rules: vec![counted, RuleCounts::default()],
        unjudged: vec![UnjudgedCount { reason: "tls".into(), text: "TLS".into(), count: 2 }],
    };
    world.memory.lock().unwrap().followed = Some(Followed { connections: 4, limit: 100 });
    *world.defer_accept.lock().unwrap() = Some(true);
    let requests = world.tick(Some(50)).services[0].requests.clone().unwrap();
    let rules: Vec<_> =
        requests.rules.iter().map(|r| (r.name.as_str(), r.answer.as_str())).collect();
    assert_eq!(rules, [("/a", "503"), ("rest", "reset")]);
    assert_eq!(requests.rules[1].rule, "GET /");
    assert_eq!((requests.rules[0].counts, requests.rules[0].counts.met()), (counted, 10));
    let bucket = &requests.buckets[0];
    assert_eq!((bucket.resource.as_str(), bucket.controller.as_str()), ("cpu", "default"));
    assert_eq!((bucket.offered, bucket.limits.burst), ([1, 20, 3], 5));
    assert_eq!(bucket.signals.counts.unwrap().value.offered[1], 50);
    assert_eq!((requests.unjudged.len(), requests.defer_accept), (1, Some(true)));
    assert_eq!(requests.followed.unwrap().limit, 100);
    assert_eq!(World::new(ONE).tick(Some(5)).services[0].requests, None, "no rules, no state");
}

#[test]
fn what_costs_or_blinds_is_warned_of() {
    let mut world = World::new(RULES);
    *world.defer_accept.lock().unwrap() = Some(false);
    world.memory.lock().unwrap().blind = true;
    world.memory.lock().unwrap().followed = Some(Followed { connections: 96, limit: 100 });
    world.tick(Some(50));
    for of in ["shop: TCP_DEFER_ACCEPT", "shop: answers", "connections: the table"] {
        assert!(world.warns(of), "{of}: {:?}", world.snapshot().warnings);
    }
    let mut world = World::new(&RULES.replace("requests:", "requests:\n      mode: shadow"));
    *world.defer_accept.lock().unwrap() = Some(false);
    world.memory.lock().unwrap().followed = Some(Followed { connections: 90, limit: 100 });
    world.tick(Some(50));
    assert!(world.snapshot().warnings.is_empty(), "nothing is refused in shadow, nothing is full");
}

#[test]
fn requests_that_cannot_be_judged_are_warned_of_with_the_most_frequent_reason() {
    for (met, tls, warns) in [(79, 21, true), (81, 19, false), (7, 3, false), (790, 210, true)] {
        let mut world = World::new(RULES);
        let counts = |met, tls| RequestCounts {
            rules: vec![RuleCounts { admitted: met, ..RuleCounts::default() }; 2],
            unjudged: [("tls", tls), ("body", 10_000), ("split", tls / 10)]
                .map(|(reason, count)| UnjudgedCount {
                    reason: reason.into(),
                    text: format!("text of {reason}"),
                    count,
                })
                .into(),
        };
        // What was counted before the daemon looked for the first time is history.
        world.memory.lock().unwrap().requests = counts(0, 100_000);
        world.tick(Some(50));
        world.memory.lock().unwrap().requests = RequestCounts {
            rules: vec![RuleCounts { admitted: met, ..RuleCounts::default() }],
            ..counts(0, 100_000 + tls)
        };
        for _ in 0..10 {
            world.tick(Some(50));
        }
        let warned = world.warns("shop: rules");
        assert_eq!(warned, warns, "{met} {tls}: {:?}", world.snapshot().warnings);
        assert!(!warns || world.warns("for tls: text of tls"), "{:?}", world.snapshot().warnings);
    }
}

#[test]
fn a_bucket_whose_controller_panics_releases_its_service_and_no_other() {
    let two = format!("{RULES}  blog: {{mode: enforce, listen: ['*:81']}}\n");
    let mut world = World::new(&two);
    world.tick(Some(50));
    let snapshot = world.tick(Some(666));
    assert!(snapshot.services[0].limits.buckets.is_empty(), "everything passes");
    assert_eq!(snapshot.services[1].limits.rate.map(Rate::get), Some(666.0));
    assert!(world.warns("shop: control"), "{:?}", world.snapshot().warnings);
    world.tick(Some(50));
    assert_eq!(world.bucket_rates()[0], Some(50.0), "made anew, without what it remembered");
}
