// SPDX-License-Identifier: Apache-2.0 OR MIT
//! This host among its peers: a thread with its own runtime, so that handshakes cost the control
//! loop nothing. Between the two: the table, under a lock that is held for microseconds, and three
//! watched values (what is wanted, what is to be told, whether to stop).

use crate::bus::{self, Book, BusConfig, Wires};
use crate::delegation::{Delegation, DelegationFiles, GRANTS, SIGNING, Signer};
use crate::dial::{self, Sources};
use crate::frame::WITH_REQUESTS;
use crate::listen;
use crate::refusal::Refusal;
use crate::said::Said;
use crate::table::{Ended, Grant, Sessions, Table};
use crate::tls::{Credentials, Files, TlsError};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};
use tidegate_model::SpiffeId;
use tidegate_model::remote::{Arrived, Hits, Notice, RemoteLimit, Restriction, Scope};
use tidegate_model::sharing::{BusState, DestinationReport, RouterReports};
use tidegate_model::signals::{Backend, Signals};
use tidegate_model::snapshot::{PeerState, ReasonCount};
use tidegate_units::{Clock, DayClock, Nanos, Rate};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// How often the files are looked at: what is revoked ends soon.
const FILES_EVERY: Duration = Duration::from_secs(5);
/// The subject of what is said of the end of our certificate.
const EXPIRY: &str = "cluster.certificate (its end)";
/// How long a stopping host may take to say so.
const FAREWELL_MAX: Duration = Duration::from_millis(500);

/// What a host does among its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// Its certificates.
    pub files: Files,
    /// Where it takes reports, if it does.
    pub listen: Option<SocketAddr>,
    /// Who may report.
    pub grants: Vec<Grant>,
    /// To whom it reports.
    pub targets: Vec<Target>,
    /// Who may limit it while it is congested, and with what it signs its own limits.
    pub delegation: DelegationFiles,
    /// Of those who may report and to whom it reports the routers with which it shares what it measures.
    pub routers: Vec<SpiffeId>,
    /// The bus over which it shares with them, in place of sessions.
    pub bus: Option<BusConfig>,
}

/// A receiver of reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name in the configuration.
    pub name: String,
    /// Where it takes reports.
    pub address: SocketAddr,
    /// Who it must be.
    pub identity: SpiffeId,
    /// The services that are reported to it.
    pub services: Vec<String>,
    /// How long a report is valid.
    pub validity: Nanos,
}

/// What is to be told of a service.
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing {
    /// Its name on this host.
    pub service: String,
    /// How it is.
    pub signals: Signals,
    /// Answers completed since this host began to count.
    pub completed: Option<u64>,
}

/// A remote limit that is to be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct OutgoingLimit {
    /// The receiver, by its name in the configuration.
    pub target: String,
    /// The limit; its sequence is the session's to fill in.
    pub limit: RemoteLimit,
    /// It answers a notice of this number and is signed, with what the service can take in all.
    pub answers: Option<(Rate, u64)>,
    /// What a host is told that knows neither requests nor priorities.
    pub plain: Plain,
}

/// What such a host is told of a limit. Of the scope of a bucket it is told nothing in any case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Plain {
    /// The same.
    Same,
    /// A rate of connections.
    Rate(Rate),
    /// Nothing.
    Nothing,
}

impl OutgoingLimit {
    /// What a host of this version is told; `None`: nothing.
    #[must_use]
    pub fn within(&self, version: u8) -> Option<RemoteLimit> {
        let limit = self.limit.clone();
        if version >= WITH_REQUESTS {
            return Some(limit);
        }
        match (self.plain, &limit.scope) {
            (Plain::Nothing, _) | (_, Scope::Bucket { .. }) => None,
            (Plain::Same, _) => Some(limit),
            (Plain::Rate(rate), _) => {
                Some(RemoteLimit { restriction: Restriction::Rate(rate), priority: 0, ..limit })
            }
        }
    }
}

/// Notices of receivers that are congested, each with its number.
pub type Notices = Vec<(String, u64, Notice)>;

/// What tasks and owner share.
pub(crate) struct Shared {
    pub(crate) clock: Arc<dyn Clock + Send + Sync>,
    table: Mutex<Table>,
    targets: Mutex<BTreeMap<String, TargetState>>,
    /// Hit counters for those who limit this host, by peer.
    told: watch::Sender<Arc<Vec<(String, Hits)>>>,
    /// Notices for those who limit this host.
    notices: watch::Sender<Arc<Vec<(String, Notice)>>>,
    /// What the files about limits for congested routers said last; locked while they are read, so that no earlier
    /// configuration is followed after a later one.
    delegation: Mutex<Delegation>,
    signer: Mutex<Option<Arc<Signer>>>,
    problems: Mutex<BTreeMap<&'static str, String>>,
    bus: Mutex<Book>,
}

/// The state of a receiver, as far as the sender knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct TargetState {
    pub(crate) up: bool,
    pub(crate) version: u8,
    pub(crate) epoch: u64,
    pub(crate) sequence: u64,
    pub(crate) sent: Option<Nanos>,
    pub(crate) reports: u64,
    pub(crate) limits: u64,
    pub(crate) refused: Vec<ReasonCount>,
    pub(crate) problem: String,
    /// What it said since the owner asked last.
    pub(crate) said: Said,
    identity: String,
}

/// A lock whose holder panicked guards plain counts and texts: they are still good to read.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    pub(crate) fn bus(&self) -> MutexGuard<'_, Book> {
        lock(&self.bus)
    }

    pub(crate) fn refuse(&self, identity: Option<&SpiffeId>, why: Refusal, problem: &str) {
        tracing::debug!(why = why.name(), problem, "refused");
        self.table().refuse(identity, why, problem);
    }

    pub(crate) fn target(&self, target: &Target, change: impl FnOnce(&mut TargetState)) {
        // A task that is being replaced must not bring back what was forgotten.
        if let Some(state) = lock(&self.targets).get_mut(&target.name) {
            change(state);
        }
    }

    /// Notices as they are told.
    pub(crate) fn notices(&self) -> watch::Receiver<Arc<Vec<(String, Notice)>>> {
        self.notices.subscribe()
    }

    /// Seconds since 1970, by which grants expire.
    pub(crate) fn today_s(&self) -> u64 {
        DayClock.now().0 / Nanos::SECOND.0
    }

    /// Hit counters as they are told.
    pub(crate) fn told(&self) -> watch::Receiver<Arc<Vec<(String, Hits)>>> {
        self.told.subscribe()
    }

    /// With what limits for congested routers are signed.
    pub(crate) fn signer(&self) -> Option<Arc<Signer>> {
        lock(&self.signer).clone()
    }

    /// Reads the files about limits for congested routers and follows them, each by itself. Whether all can be used.
    fn delegate(&self, known: &mut Delegation, files: &DelegationFiles, name: &SpiffeId) -> bool {
        let (found, faults) = known.renewed(files);
        {
            let mut table = self.table();
            table.at_day(self.today_s());
            table.trust(found.receiver(name, self.clock.now()));
        }
        *lock(&self.signer) = found.signer();
        *known = found;
        for key in [GRANTS, SIGNING] {
            let of_key = faults.iter().filter(|(of, _)| *of == key);
            let texts: Vec<String> = of_key.map(|(_, error)| error.to_string()).collect();
            if texts.is_empty() {
                self.no_problem(key);
            } else {
                self.problem(key, format!("what it said before stays: {}", texts.join("; ")));
            }
        }
        faults.is_empty()
    }

    pub(crate) fn problem(&self, subject: &'static str, text: String) {
        lock(&self.problems).insert(subject, text);
    }

    pub(crate) fn no_problem(&self, subject: &'static str) {
        lock(&self.problems).remove(subject);
    }
}

/// What dialers send: reports, remote limits, and what a router sees of destinations.
type Sent = (
    watch::Receiver<Arc<Vec<Outgoing>>>,
    watch::Receiver<Arc<Vec<OutgoingLimit>>>,
    watch::Receiver<Arc<Vec<DestinationReport>>>,
);

/// What is wanted of the thread.
#[derive(Clone)]
struct Wanted {
    config: NodeConfig,
    credentials: Arc<Credentials>,
    /// All of its files could be used.
    whole: bool,
}

/// This host among its peers. Ends, with a word to everyone to whom it reports, when it is dropped.
pub struct Node {
    shared: Arc<Shared>,
    wanted: watch::Sender<Option<Arc<Wanted>>>,
    outgoing: watch::Sender<Arc<Vec<Outgoing>>>,
    limits: watch::Sender<Arc<Vec<OutgoingLimit>>>,
    destinations: watch::Sender<Arc<Vec<DestinationReport>>>,
    stopping: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Node {
    /// Starts the thread; it does nothing before [`Self::follow`].
    ///
    /// # Errors
    /// When the system gives no thread or runtime.
    pub fn start(clock: Arc<dyn Clock + Send + Sync>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            clock,
            table: Mutex::default(),
            targets: Mutex::default(),
            told: watch::channel(Arc::default()).0,
            notices: watch::channel(Arc::default()).0,
            delegation: Mutex::default(),
            signer: Mutex::default(),
            problems: Mutex::default(),
            bus: Mutex::default(),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (wanted, wants) = watch::channel(None);
        let (outgoing, told) = watch::channel(Arc::default());
        let (limits, limited) = watch::channel(Arc::default());
        let (destinations, seen) = watch::channel(Arc::default());
        let (stopping, stops) = watch::channel(false);
        let supervisor = Supervisor::new(Arc::clone(&shared), (told, limited, seen), stops);
        let thread = std::thread::Builder::new()
            .name("tidegate-peer".into())
            .spawn(move || runtime.block_on(supervisor.run(wants)))?;
        let thread = Some(thread);
        Ok(Self { shared, wanted, outgoing, limits, destinations, stopping, thread })
    }

    /// Follows another configuration; `None` ends all sessions. What stays the same goes on. Of the files about
    /// limits for congested routers each counts by itself; what is wrong with one is among [`Self::problems`].
    ///
    /// # Errors
    /// When its certificates cannot be used: nothing changed then, but that what is revoked is revoked.
    pub fn follow(&self, config: Option<NodeConfig>) -> Result<(), TlsError> {
        let mut delegation = lock(&self.shared.delegation);
        let Some(config) = config else {
            self.shared.table().follow(&[]);
            self.shared.table().share_with(&[]);
            self.shared.table().hear_by_bus(false);
            self.shared.table().trust(None);
            *delegation = Delegation::default();
            *lock(&self.shared.signer) = None;
            lock(&self.shared.targets).clear();
            lock(&self.shared.problems).clear();
            self.wanted.send_replace(None);
            return Ok(());
        };
        let credentials = Credentials::load(&config.files).inspect_err(|_| {
            let (found, _) = delegation.renewed(&config.delegation);
            found.revoked().into_iter().for_each(|list| self.shared.table().revoke(list));
        })?;
        lock(&self.shared.problems).clear();
        self.shared.table().follow(&config.grants);
        self.shared.table().share_with(&config.routers);
        self.shared.table().hear_by_bus(config.bus.is_some());
        let name = credentials.identity();
        let whole = self.shared.delegate(&mut delegation, &config.delegation, name);
        let credentials = Arc::new(credentials);
        {
            let mut targets = lock(&self.shared.targets);
            targets.retain(|name, _| config.targets.iter().any(|target| target.name == *name));
            for target in &config.targets {
                let state = targets.entry(target.name.clone()).or_default();
                state.identity = target.identity.to_string();
            }
        }
        self.wanted.send_replace(Some(Arc::new(Wanted { config, credentials, whole })));
        Ok(())
    }

    /// Tells the peers how the services of this host are.
    pub fn tell(&self, outgoing: Vec<Outgoing>) {
        self.outgoing.send_replace(Arc::new(outgoing));
    }

    /// Limits what these receivers let through: sent at once, and as often as this is called.
    pub fn limit(&self, limits: Vec<OutgoingLimit>) {
        self.limits.send_replace(Arc::new(limits));
    }

    /// Tells the routers that share what this one sees of destinations.
    pub fn share(&self, reports: Vec<DestinationReport>) {
        self.destinations.send_replace(Arc::new(reports));
    }

    /// What the routers that share told since the last call.
    #[must_use]
    pub fn shared(&self) -> Vec<RouterReports> {
        self.shared.table().take_destinations()
    }

    /// The hit counters of limits that this host gave, by receiver, since the last call.
    #[must_use]
    pub fn hits(&self) -> Vec<(String, Hits)> {
        let mut targets = lock(&self.shared.targets);
        let hits = targets.iter_mut().flat_map(|(name, target)| {
            target.said.take_hits().into_iter().map(|hits| (name.clone(), hits))
        });
        hits.collect()
    }

    /// The notices of receivers since the last call.
    #[must_use]
    pub fn notices(&self) -> Notices {
        let mut targets = lock(&self.shared.targets);
        let notices = targets.iter_mut().flat_map(|(name, target)| {
            let notices = target.said.take_notices().into_iter();
            notices.map(|(number, notice)| (name.clone(), number, notice))
        });
        notices.collect()
    }

    /// Tells holders of grants, by name, that this host is congested, and what comes for them.
    pub fn notify(&self, notices: Vec<(String, Notice)>) {
        self.shared.notices.send_replace(Arc::new(notices));
    }

    /// Tells peers, by name, what came to the scopes of their limits.
    pub fn tell_hits(&self, hits: Vec<(String, Hits)>) {
        self.shared.told.send_replace(Arc::new(hits));
    }

    /// The limits that arrived since the last call, of each peer in the order of their numbers; the
    /// session of each peer that is up at that moment, its random number and its epoch; and the limits whose grant has ended.
    #[must_use]
    pub fn take_limits(&self) -> (Vec<Arrived>, Sessions, Ended) {
        let mut table = self.shared.table();
        (table.take_limits(), table.sessions(), table.take_ended())
    }

    /// What `peer` last said of `service`, as far as it is valid.
    #[must_use]
    pub fn backend(&self, now: Nanos, peer: &str, service: &str) -> Backend {
        self.shared.table().backend(now, peer, service)
    }

    /// The state of all peers.
    #[must_use]
    pub fn states(&self, now: Nanos) -> Vec<PeerState> {
        let mut states = self.shared.table().states(now);
        let targets = lock(&self.shared.targets);
        states.extend(targets.iter().map(|(name, target)| PeerState {
            name: name.clone(),
            role: "receives".into(),
            identity: target.identity.clone(),
            up: target.up,
            version: target.version,
            epoch: target.epoch,
            sequence: target.sequence,
            age: target.sent.map(|at| now.since(at)),
            reports: target.reports,
            limits: target.limits,
            refused: target.refused.clone(),
            problem: target.problem.clone(),
        }));
        states
    }

    /// The bus; `None`: there is none.
    #[must_use]
    pub fn bus(&self, now: Nanos) -> Option<BusState> {
        self.shared.bus().state(now)
    }

    /// What is wrong with this host itself: a subject (a key of the configuration) and a sentence.
    #[must_use]
    pub fn problems(&self) -> Vec<(&'static str, String)> {
        let problems = lock(&self.shared.problems);
        problems.iter().map(|(subject, text)| (*subject, text.clone())).collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stopping.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // Bounded by FAREWELL_MAX; a thread that panicked has nothing left to say.
            let _ = thread.join();
        }
    }
}

/// A task and what it was made for.
type Running<T> = Option<(T, AbortHandle)>;

struct Supervisor {
    shared: Arc<Shared>,
    credentials: watch::Sender<Option<Arc<Credentials>>>,
    outgoing: watch::Receiver<Arc<Vec<Outgoing>>>,
    limits: watch::Receiver<Arc<Vec<OutgoingLimit>>>,
    destinations: watch::Receiver<Arc<Vec<DestinationReport>>>,
    stopping: watch::Receiver<bool>,
    listening: Running<SocketAddr>,
    dialing: Vec<(Target, tokio::task::JoinHandle<()>)>,
    bus: Option<((BusConfig, Vec<SpiffeId>), bus::Running)>,
    written: Vec<Option<SystemTime>>,
    /// A file could not be used the last time.
    again: bool,
}

impl Supervisor {
    fn new(shared: Arc<Shared>, sent: Sent, stopping: watch::Receiver<bool>) -> Self {
        let (outgoing, limits, destinations) = sent;
        Self {
            shared,
            credentials: watch::channel(None).0,
            outgoing,
            limits,
            destinations,
            stopping,
            listening: None,
            dialing: Vec::new(),
            bus: None,
            written: Vec::new(),
            again: false,
        }
    }

    /// Says when our own certificate ends soon, or has: nobody else would before sessions fail.
    fn tell_the_end(&self) {
        let credentials = self.credentials.borrow();
        match credentials.as_ref().and_then(|credentials| credentials.ends_soon()) {
            Some(why) => self.shared.problem(EXPIRY, why),
            None => self.shared.no_problem(EXPIRY),
        }
    }

    async fn run(mut self, mut wants: watch::Receiver<Option<Arc<Wanted>>>) {
        loop {
            tokio::select! {
                changed = wants.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    let wanted = wants.borrow_and_update().clone();
                    self.follow(wanted.as_deref());
                    self.tell_the_end();
                }
                _ = self.stopping.changed() => break,
                () = sleep(FILES_EVERY) => {
                    self.renew(&wants);
                    self.tell_the_end();
                }
            }
        }
        // The dialers say goodbye by themselves.
        let farewells = async {
            for (_, task) in self.dialing {
                let _ = task.await;
            }
        };
        let _ = timeout(FAREWELL_MAX, farewells).await;
    }

    fn follow(&mut self, wanted: Option<&Wanted>) {
        let credentials = wanted.map(|wanted| Arc::clone(&wanted.credentials));
        self.credentials.send_replace(credentials);
        self.written = wanted.map(|w| written(&w.config)).unwrap_or_default();
        self.again = wanted.is_some_and(|wanted| !wanted.whole);
        self.listen(wanted.and_then(|wanted| wanted.config.listen));
        self.dial(wanted.map_or(&[], |wanted| &wanted.config.targets));
        self.follow_bus(wanted.and_then(|wanted| {
            let bus = wanted.config.bus.clone()?;
            Some((bus, wanted.config.routers.clone()))
        }));
    }

    /// A client for each bus, with a thread of its own. One that is not wanted any more ends by itself.
    fn follow_bus(&mut self, wanted: Option<(BusConfig, Vec<SpiffeId>)>) {
        if self.bus.as_ref().map(|(running, _)| running) == wanted.as_ref() {
            return;
        }
        self.bus = None;
        let config = wanted.as_ref().map(|(bus, _)| bus.clone());
        let number = self.shared.bus().follow(config, self.shared.clock.now());
        let Some(wanted) = wanted else { return };
        let wires = Wires {
            shared: Arc::clone(&self.shared),
            credentials: self.credentials.subscribe(),
            destinations: self.destinations.clone(),
        };
        match bus::start(wires, number, wanted.clone()) {
            Ok(running) => self.bus = Some((wanted, running)),
            Err(error) => {
                let now = self.shared.clock.now();
                self.shared.bus().lost(&error.to_string(), now);
            }
        }
    }

    fn listen(&mut self, address: Option<SocketAddr>) {
        if self.listening.as_ref().map(|(at, _)| *at) == address {
            return;
        }
        if let Some((_, task)) = self.listening.take() {
            task.abort();
        }
        self.listening = address.map(|address| {
            let credentials = self.credentials.subscribe();
            let task = tokio::spawn(listen::serve(Arc::clone(&self.shared), credentials, address));
            (address, task.abort_handle())
        });
    }

    fn dial(&mut self, targets: &[Target]) {
        self.dialing.retain(|(target, task)| {
            let stays = targets.contains(target);
            if !stays {
                task.abort();
            }
            stays
        });
        for target in targets {
            if self.dialing.iter().all(|(running, _)| running != target) {
                let sources = Sources {
                    credentials: self.credentials.subscribe(),
                    outgoing: self.outgoing.clone(),
                    limits: self.limits.clone(),
                    destinations: self.destinations.clone(),
                    stopping: self.stopping.clone(),
                };
                let shared = Arc::clone(&self.shared);
                let task = tokio::spawn(dial::report(shared, target.clone(), sources));
                self.dialing.push((target.clone(), task));
            }
        }
    }

    /// Reads the files again when one was written, and those that could not be used. Sessions that are up stay;
    /// new ones use the new certificates. Files that cannot be used change nothing, and keep no other from counting.
    fn renew(&mut self, wants: &watch::Receiver<Option<Arc<Wanted>>>) {
        let shared = Arc::clone(&self.shared);
        let mut delegation = lock(&shared.delegation);
        let Some(wanted) = wants.borrow().clone() else { return };
        let now = written(&wanted.config);
        let changed = now != self.written;
        if !changed && !self.again {
            return;
        }
        self.written = now;
        let loaded = Credentials::load(&wanted.config.files);
        let name = loaded.as_ref().map_or(wanted.credentials.identity(), Credentials::identity);
        let whole = shared.delegate(&mut delegation, &wanted.config.delegation, name);
        self.again = !whole || loaded.is_err();
        match loaded {
            Ok(credentials) => {
                if changed {
                    let identity = credentials.identity();
                    tracing::info!(%identity, "certificates were read again");
                }
                self.credentials.send_replace(Some(Arc::new(credentials)));
                self.shared.no_problem("cluster.certificate");
            }
            Err(error) => {
                let text = format!("the new one cannot be used, the old one stays: {error}");
                self.shared.problem("cluster.certificate", text);
            }
        }
    }
}

/// When each file was last written.
fn written(config: &NodeConfig) -> Vec<Option<SystemTime>> {
    let time = |path: &Path| std::fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let files = &config.files;
    let own = [&files.certificate, &files.key, &files.authority].into_iter();
    own.chain(config.delegation.all()).map(|path| time(path)).collect()
}
