// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The process around the owner: start, loop, end.
//!
//! # Signals
//! - SIGTERM, SIGINT: a clean stop. Everything is detached, so everything passes at once; with
//!   `keep` it stays attached instead, and the lease opens within 10 s unless another daemon comes.
//! - SIGUSR2: the end before a restart (systemd: `RestartKillSignal=`). Everything stays attached, and
//!   what was learned is kept for the daemon that comes.
//! - SIGHUP: reload.
//! - SIGKILL, a panic: nothing is detached, the limits hold for 3 s and open until 10 s; a daemon
//!   that starts in the meantime adopts all of it.
//!
//! A supervisor that asks for it ([`crate::supervisor`]) hears when the daemon is in charge, that its loop
//! goes round, and that it ends. One that hears nothing kills it: nothing is detached, as above.
//!
//! SIGTERM, SIGINT and SIGHUP are listened to before anything is attached: what comes during the start is
//! followed at its end, and a stop leaves a predecessor in charge that still waits.

use crate::account::Reached;
use crate::cluster::{self, ClusterSenses};
use crate::exempt::node_of;
use crate::governed::Makers;
use crate::handover::{HandoverError, Leaving, Predecessor, Round, Step};
use crate::interface_lock::{Held, InterfaceLocks};
use crate::kernel::{plan, release_pinned};
use crate::lock::Lock;
use crate::overrides::modes_of;
use crate::owner::{Owner, Parts, keep_canaries, keep_modes};
use crate::plane::PlaneError;
use crate::planes::Planes;
use crate::preflight::{self, Preflight, Trees};
use crate::record::{Books, SHADOW_BYTES_MAX};
use crate::server::{Front, MESSAGES_MAX, Message, wanted};
use crate::state::{Directory, Keeper, KeptCommands, Store, checksum};
use crate::supervisor::Supervisor;
use crate::told::Told;
use crate::{controllers, http, privileges, sources};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tidegate_api::protocol::{ApiError, ErrorKind, Handover, HandoverPhase, Reply, Request};
use tidegate_api::server::{BindError, Bounds, ControlSocket, Place, bind, serve};
use tidegate_bpf::Leftovers;
use tidegate_config::{Config, LoadError, Places, Registry, SystemFault};
use tidegate_model::snapshot::Snapshot;
use tidegate_model::{Canary, Mode};
use tidegate_sense::{Listener, Roots, RouteSource, Sense, SockDiag, ssh_listeners, ssh_ports};
use tidegate_units::{BootClock, Clock, DayClock, MonotonicClock, Nanos};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Interval, MissedTickBehavior};

/// How long a daemon that hands over or stops waits for its last answers to be on their way.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// Subject of the warning that the process is not the user that it should be.
const USER: &str = "user";
/// Subject of the warning that nothing can be kept for the next process.
const KEPT: &str = "kept state";
/// Subject of the warning that nobody can reach us.
const SOCKET: &str = "control socket";
/// How often the queues of interfaces are looked at, where a bucket follows them: they fill and
/// empty within 20 ms.
const SAMPLE_EVERY: Duration = Duration::from_millis(15);

/// What `tidegate run` was told.
#[derive(Clone)]
pub struct Options {
    /// The configuration file.
    pub config: PathBuf,
    /// Names that it may use.
    pub registry: Registry,
    /// What an operator reads for a reason (policy/reasons.def).
    pub reason_text: fn(&str) -> String,
    /// Version of the program.
    pub version: String,
    /// On SIGTERM and SIGINT leave everything attached.
    pub keep: bool,
    /// Do not give up capabilities after the start.
    pub keep_privileges: bool,
}

/// Why the daemon could not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] LoadError),
    /// The configuration does not fit the system.
    #[error("{}", .0.join("\n"))]
    System(Vec<String>),
    /// The dataplane refused.
    #[error("the dataplane: {0}")]
    Plane(#[from] PlaneError),
    /// The control socket cannot be made.
    #[error(transparent)]
    Socket(#[from] BindError),
    /// Another daemon runs and does not hand over.
    #[error(transparent)]
    Handover(#[from] HandoverError),
    /// A daemon with another control socket, or one that has not made it yet, uses the same pins.
    #[error(
        "another daemon, with another control socket or starting or stopping just now, uses the pins \
         at {}; stop it first", .0.display()
    )]
    PinsInUse(PathBuf),
    /// The predecessor, or another that started at the same time, does not leave the pins.
    #[error("another daemon keeps the pins at {}: this one gives up and takes nothing off", .0.display())]
    PinsKept(PathBuf),
    /// Another daemon has an interface.
    #[error(transparent)]
    Held(#[from] Held),
    /// The system refused something else.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> RunError {
    move |source| RunError::Io { what, source }
}

/// Runs the daemon until it is told to stop, or another one has taken over.
///
/// # Errors
/// [`RunError`]; whatever ran before goes on then.
pub fn run(options: Options) -> Result<(), RunError> {
    let (config, places) = tidegate_config::load_located(&options.config, &options.registry)?;
    let mut listeners = SockDiag::open(None).map_err(io_error("sock_diag"))?;
    let found = preflight::examine(&config, &mut listeners, &Trees::default());
    tell(&found, &config, &places);
    let fatal: Vec<String> = found
        .faults
        .iter()
        .filter(|fault| preflight::forbids_to_run(fault))
        .map(|fault| fault.locate(&config, &places).error.to_string())
        .collect();
    if !fatal.is_empty() {
        return Err(RunError::System(fatal));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(io_error("the runtime"))?;
    // Sockets and signals want the runtime around them, from here on.
    let _inside = runtime.enter();
    let mut told = Told::listen().map_err(io_error("signals"))?;
    let started = start(&options, config, listeners, &mut || told.stop_came(&runtime))?;
    let Some(mut started) = started else {
        tracing::info!("told to stop before it took over; the other daemon goes on");
        return Ok(());
    };
    if !options.keep_privileges {
        let config = started.owner.config();
        let given_up = privileges::give_up(config, &locked(config))
            .map_err(io_error("giving up capabilities"))?;
        started.reached = given_up.reached;
        if let Some(why) = given_up.not_the_user {
            let text = format!("daemon.user: stays root, without capabilities: {why}");
            started.owner.warnings.stick(started.clock.now(), USER, text);
        }
        let kept = given_up
            .not_written
            .into_iter()
            .map(|directory| SystemFault::NotKept { directory }.to_string());
        let kept = kept.collect::<Vec<_>>().join("; ");
        if !kept.is_empty() {
            started.owner.warnings.stick(started.clock.now(), KEPT, format!("daemon.user: {kept}"));
        }
    }
    started.owner.join_peers();
    runtime.block_on(live(started, options, told))
}

fn tell(found: &Preflight, config: &Config, places: &Places) {
    for note in &found.notes {
        tracing::info!("{note}");
    }
    // What cannot be kept depends on the privileges that it gives up, and is told then.
    let told = |fault: &&SystemFault| {
        !preflight::forbids_to_run(fault) && !matches!(fault, SystemFault::NotKept { .. })
    };
    for fault in found.faults.iter().filter(told) {
        tracing::warn!("{}", fault.locate(config, places).error);
    }
}

/// Everything that runs.
struct Started {
    owner: Owner,
    snapshots: watch::Receiver<Option<Arc<Snapshot>>>,
    socket: ControlSocket,
    /// Who may look, by the control socket.
    group: Option<u32>,
    clock: Arc<dyn Clock + Send + Sync>,
    ssh: Ssh,
    /// On the pins, where no predecessor has it.
    lock: Option<Lock>,
    /// The directory that is locked, whoever the process is by now.
    reached: Option<Reached>,
}

/// Where ssh was found at the start; later the privileges to look are gone.
struct Ssh {
    /// Exempt.
    ports: Vec<u16>,
    /// The sockets of ssh servers.
    listeners: Vec<Listener>,
}

/// Takes over or starts afresh. Until the predecessor has said that it leaves, a failure leaves it in
/// charge, with the hooks that it had: nothing is detached before the commit. Without one, the lock
/// on the pins is had before anything is pinned. `None`: told to stop, and the predecessor goes on.
fn start(
    options: &Options,
    config: Config,
    listeners: SockDiag,
    told_to_stop: &mut dyn FnMut() -> bool,
) -> Result<Option<Started>, RunError> {
    let Some(mut old) = Predecessor::find(&config.daemon.socket)? else {
        return begin(options, config, listeners).map(Some);
    };
    if let Err(error) = old.shares(&locked(&config)) {
        old.abort();
        return Err(error.into());
    }
    match build(options, config, listeners, Some(&mut old)) {
        Ok(started) if told_to_stop() => {
            drop(started);
            old.abort();
            Ok(None)
        }
        Ok(mut started) => {
            // The first decision, and with it the lease, is ours before the old one leaves.
            started.owner.tick();
            old.finish()?;
            started.owner.commit();
            Ok(Some(started))
        }
        Err(error) => {
            old.abort();
            Err(error)
        }
    }
}

/// The directory that one daemon locks: that of the pins; without interfaces, and so without pins,
/// one beside the control socket.
fn locked(config: &Config) -> PathBuf {
    if !config.interfaces.is_empty() {
        return config.daemon.pins.clone();
    }
    let mut name = config.daemon.socket.clone().into_os_string();
    name.push(".lock");
    name.into()
}

/// Starts where nobody is in charge.
fn begin(options: &Options, config: Config, listeners: SockDiag) -> Result<Started, RunError> {
    let pins = locked(&config);
    let found = Lock::found(&pins).map_err(io_error("the directory of the pins"))?;
    let lock = found.ok_or_else(|| RunError::PinsInUse(pins.clone()))?;
    match build(options, config, listeners, None) {
        Ok(mut started) => {
            started.lock = Some(lock);
            started.owner.tick();
            started.owner.commit();
            Ok(started)
        }
        Err(error) => {
            lock.give_back(&pins);
            Err(error)
        }
    }
}

fn build(
    options: &Options,
    config: Config,
    mut listeners: SockDiag,
    mut predecessor: Option<&mut Predecessor>,
) -> Result<Started, RunError> {
    let inherited = predecessor.as_mut().map(|old| std::mem::take(&mut old.left));
    let roots = Roots::default();
    let (ssh, listed) = ssh_ports(&mut listeners, &roots.proc, Path::new("/etc"));
    if let Err(error) = listed {
        tracing::warn!(%error, "ssh's ports are those of its configuration only");
    }
    // A failure was told with the ports.
    let found = ssh_listeners(&mut listeners, &roots.proc).unwrap_or_default();
    let ssh = Ssh { ports: Vec::from_iter(ssh), listeners: found };
    let config = exempted(config, &ssh.ports);
    let file_modes = modes_of(&config);
    let mut keeper =
        Keeper::new(Box::new(Directory::beside(&config.daemon.socket)), options.version.clone())
            .with_commands(Box::new(Directory::of_commands(&config.daemon.socket)));
    let kept = match &inherited {
        Some(_) => KeptCommands::default(),
        None => keeper.commands(&file_modes),
    };
    let left = inherited.as_ref().unwrap_or(&kept.left);
    let config = keep_canaries(keep_modes(config, &left.modes), &left.canaries);
    let clock: Arc<dyn Clock + Send + Sync> = Arc::new(MonotonicClock);
    let locks = InterfaceLocks::take(&config, predecessor.as_ref().map(|old| old.pid()))?;
    leftovers(&config, clock.now())?;
    let plane = Planes::start(&config, locks, Arc::clone(&clock))?;
    let sources = sources::all(&config);
    let mut sense = Sense::new(sources, Box::new(listeners), roots);
    sense.find_namespaces_by(tidegate_config::namespace_path);
    sense.warm_up(clock.now());
    watch_interfaces(&mut sense, &config);
    match privileges::renice() {
        Ok(()) => tracing::info!(nice = privileges::NICE, "runs with a raised priority"),
        Err(error) => {
            tracing::warn!(%error, "no raised priority: a saturated CPU may delay decisions")
        }
    }
    if let Some(old) = predecessor {
        old.waits(clock.now())?;
    }
    let group = observers(&config);
    let socket = shared(bind(&config.daemon.socket, group)?);
    let books = books(&config);
    let (mut owner, snapshots) = Owner::new(Parts {
        clock: Arc::clone(&clock),
        books,
        plane: Box::new(plane),
        senses: Box::new(ClusterSenses::new(Box::new(sense), Arc::clone(&clock))),
        config,
        controllers: Makers { service: controllers::make, bucket: controllers::make_bucket },
        version: options.version.clone(),
        file_modes,
        inherited,
        kept,
        keeper: Some(keeper),
    });
    // Also where a service has such a port on another address.
    owner.remote.flowspec.never_limit(&ssh.ports);
    Ok(Started { owner, snapshots, socket, group, clock, ssh, lock: None, reached: None })
}

/// Detaches hooks of daemons that are gone and had other pins: ours would stand beside them.
fn leftovers(config: &Config, now: Nanos) -> Result<(), RunError> {
    let found = tidegate_bpf::leftovers(&plan(config), now, false).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot look for hooks of earlier daemons");
        Leftovers::default()
    });
    for what in &found.removed {
        tracing::warn!("detached what an earlier tidegate with other pins has left: {what}");
    }
    for what in &found.left {
        tracing::warn!("an earlier tidegate has left, and it stays attached: {what}");
    }
    found.alive.first().map_or(Ok(()), |alive| Err(Held::unlocked(alive).into()))
}

/// The group that may look, by the control socket. One that is not there leaves the socket to root: a
/// name is no reason to leave the host without protection.
fn observers(config: &Config) -> Option<u32> {
    let name = config.daemon.socket_group.as_ref()?;
    match group(name) {
        Ok(Some(group)) => Some(group),
        Ok(None) => {
            tracing::warn!(group = name, "daemon.socket_group: no such group; only root may look");
            None
        }
        Err(error) => {
            tracing::warn!(group = name, %error, "daemon.socket_group: only root may look");
            None
        }
    }
}

/// The same socket; the log hears if the group does not have it.
fn shared(socket: ControlSocket) -> ControlSocket {
    if let Some(error) = socket.ungrouped() {
        tracing::warn!(%error, "daemon.socket_group: the socket cannot be given to it; only root may look");
    }
    socket
}

/// The number of a group; `None`: there is none of this name.
pub(crate) fn group(name: &str) -> io::Result<Option<u32>> {
    Ok(nix::unistd::Group::from_name(name)?.map(|group| group.gid.as_raw()))
}

/// Where the record outlives the process: in the directory that a supervisor gives for what outlives a
/// boot (systemd: `StateDirectory=`), else beside the control socket.
fn books(config: &Config) -> Books {
    let given = std::env::var_os("STATE_DIRECTORY").filter(|given| !given.is_empty());
    // Several may be given, with colons between them.
    let first = given.and_then(|given| std::env::split_paths(&given).next());
    let place = |name: &str| match &first {
        Some(directory) => directory.join(name),
        None => {
            let mut path = config.daemon.socket.clone().into_os_string();
            path.push(format!(".{name}"));
            path.into()
        }
    };
    let store = Directory::at(place("history"));
    let boot = store.here().boot;
    let ledger = Directory::at(place("shadow")).holding(SHADOW_BYTES_MAX);
    let (up, day) = (Arc::new(BootClock), Arc::new(DayClock));
    Books {
        store: Some(Box::new(store)),
        ledger: Some(Box::new(ledger)),
        boot,
        machine: machine(),
        up,
        day,
    }
}

/// A checksum of this machine's id, which is not to be shown itself (machine-id(5)).
fn machine() -> String {
    let id = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    if id.trim().is_empty() { String::new() } else { format!("{:016x}", checksum(id.as_bytes())) }
}

/// Queues and bytes of the interfaces are one signal of many: without them the others go on.
fn watch_interfaces(sense: &mut Sense, config: &Config) {
    let names = cluster::interfaces_read(config);
    match RouteSource::open(None) {
        Ok(source) => sense.watch_interfaces(Box::new(source), names),
        Err(error) => tracing::warn!(%error, "the queues of the interfaces cannot be seen"),
    }
}

/// The node is exempt if a preset names it, and ssh's ports are exempt. Where a service listens on a port that is ssh's only by its
/// configuration, or on another address than ssh, the service is protected all the same; where
/// the ssh server really listens on the service's address, [`preflight`] has refused it.
fn exempted(mut config: Config, ssh: &[u16]) -> Config {
    let node = node_of(&config);
    config.exempt.complete_node(&node);
    for port in ssh {
        let of_service = config.services.iter().any(|s| s.listen.iter().any(|l| l.port == *port));
        if !of_service && !config.exempt.ports.contains(port) {
            config.exempt.ports.push(*port);
        }
    }
    config
}

/// Ends when the daemon shall end.
async fn live(started: Started, options: Options, told: Told) -> Result<(), RunError> {
    let Started { owner, snapshots, socket, group, clock, ssh, lock, reached } = started;
    let (sender, messages) = mpsc::channel(MESSAGES_MAX);
    let front =
        Front { owner: sender, snapshots: snapshots.clone(), version: options.version.clone() };
    let control = ServedSocket::open(socket, group, Arc::new(front));
    let pages = http::Pages { snapshots, clock: Arc::clone(&clock) };
    let pages = http::Server::start(owner.config().daemon.http.0, pages);
    let pins = locked(owner.config());
    let held = reached.as_ref().map_or_else(|| pins.clone(), Reached::path);
    let mut locking = Box::pin(hold(lock, &held));
    tracing::info!(version = options.version, "running");
    let (leaving, supervisor) = (Leaving::default(), Supervisor::find());
    supervisor.ready();
    let at = held.clone();
    let mut life =
        Life { owner, options, ssh, clock, leaving, pages, control, pins, at, supervisor };
    let end = life.until_end(told, messages, locking.as_mut()).await?;
    life.supervisor.stopping(match end {
        End::Succeeded => "another daemon is in charge",
        End::Stopped => "stopping",
    });
    // The socket's file and the HTTP address are free before we say the last word.
    drop(life.pages);
    tokio::time::sleep(LAST_WORDS).await;
    drop(life.control);
    let Life { mut owner, options, .. } = life;
    match end {
        End::Succeeded => tracing::info!("another daemon took over; everything stays attached"),
        End::Stopped if options.keep => {
            owner.keep_at_stop();
            tracing::info!("stopped; everything stays attached, the lease opens within 10 s");
        }
        End::Stopped => match owner.detach() {
            Ok(()) => tracing::info!("stopped; everything is detached, everything passes"),
            Err(left) => tracing::warn!(%left, "stopped; not everything could be detached"),
        },
    }
    // Not earlier: whoever starts meanwhile would lose what it has put in place.
    drop(locking);
    Ok(())
}

/// Holds the lock on the pins, ours or our predecessor's, until it is dropped; ends only when it
/// cannot be had.
async fn hold(lock: Option<Lock>, pins: &Path) -> RunError {
    let inherited = match lock {
        Some(lock) => Ok(Some(lock)),
        None => Lock::inherit(pins).await,
    };
    match held(inherited, pins) {
        Ok(lock) => lock.stay(pins).await,
        Err(error) => error,
    }
}

fn held(inherited: io::Result<Option<Lock>>, pins: &Path) -> Result<Lock, RunError> {
    let lock = inherited.map_err(io_error("the lock on the pins"))?;
    lock.ok_or_else(|| RunError::PinsKept(tidegate_bpf::shown_pins(pins)))
}

/// How it ended.
enum End {
    Stopped,
    Succeeded,
}

/// The control socket, and who serves it.
struct ServedSocket {
    front: Arc<Front>,
    group: Option<u32>,
    place: Place,
    serving: JoinHandle<()>,
    /// Those who came by the socket that was before, and are still served.
    before: Option<JoinHandle<()>>,
}

impl ServedSocket {
    fn open(socket: ControlSocket, group: Option<u32>, front: Arc<Front>) -> Self {
        let place = socket.place();
        let serving = Self::serve(socket, &front);
        Self { front, group, place, serving, before: None }
    }

    fn serve(socket: ControlSocket, front: &Arc<Front>) -> JoinHandle<()> {
        let stop = std::future::pending();
        tokio::spawn(serve(socket, Arc::clone(front), Bounds::default(), stop))
    }

    /// A daemon that did not come may have put its own socket in the place of ours, or have removed
    /// it: then we make ours again.
    fn reopen(&mut self) -> Result<(), BindError> {
        if self.place.is_held() {
            return Ok(());
        }
        let socket = shared(bind(self.place.path(), self.group)?);
        self.place = socket.place();
        let anew = Self::serve(socket, &self.front);
        let closed = std::mem::replace(&mut self.serving, anew);
        if let Some(older) = self.before.replace(closed) {
            older.abort();
        }
        Ok(())
    }
}

impl Drop for ServedSocket {
    fn drop(&mut self) {
        self.serving.abort();
        if let Some(before) = &self.before {
            before.abort();
        }
    }
}

/// The owner's loop and what it needs to serve commands.
struct Life {
    owner: Owner,
    options: Options,
    ssh: Ssh,
    clock: Arc<dyn Clock + Send + Sync>,
    /// Whether a successor is starting.
    leaving: Leaving,
    pages: http::Server,
    control: ServedSocket,
    /// Those of the start, whatever a reload says.
    pins: PathBuf,
    /// Their path for this process.
    at: PathBuf,
    supervisor: Supervisor,
}

impl Life {
    /// `locking` ends only with an error.
    async fn until_end(
        &mut self,
        mut told: Told,
        mut messages: mpsc::Receiver<Message>,
        mut locking: Pin<&mut impl Future<Output = RunError>>,
    ) -> Result<End, RunError> {
        let mut ticks = interval(self.owner.config());
        let mut samples = tokio::time::interval(SAMPLE_EVERY);
        samples.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            tokio::select! {
                biased;
                _ = told.term.recv() => return Ok(self.stopped()),
                _ = told.int.recv() => return Ok(self.stopped()),
                _ = told.restart.recv() => {
                    self.options.keep = true;
                    return Ok(self.stopped());
                }
                error = &mut locking => return Err(error),
                _ = ticks.tick() => self.tick(),
                _ = samples.tick(), if !self.leaving.begun() && self.owner.wants_samples() => {
                    self.owner.sample();
                }
                _ = told.hup.recv(), if !self.leaving.begun() => {
                    // The reason of a refusal is in the log and in the warnings.
                    let _ = self.reload(None);
                }
                Some(message) = wanted(&mut messages) => {
                    let answer = self.serve(message.request);
                    let finished = matches!(answer, Ok((_, true)));
                    // A client that left does not want the answer.
                    let _ = message.answer.send(answer.map(|(reply, _)| reply));
                    if finished {
                        return Ok(End::Succeeded);
                    }
                }
            }
            if ticks.period() != Duration::from(self.owner.config().daemon.tick) {
                ticks = interval(self.owner.config());
            }
        }
    }

    /// What a successor has taken over already is not ours to detach.
    fn stopped(&self) -> End {
        if self.leaving.begun() { End::Succeeded } else { End::Stopped }
    }

    fn tick(&mut self) {
        let round = self.leaving.round(self.clock.now());
        if round == Round::Resume {
            tracing::warn!("the daemon that began to take over was not heard of again; going on");
            self.resume();
        }
        self.pages.tell(self.clock.now(), &mut self.owner.warnings);
        match round {
            Round::Renew => self.owner.tick_leaving(),
            Round::Rest => {}
            Round::Resume | Round::Decide => self.owner.tick(),
        }
        self.supervisor.alive(self.clock.now());
    }

    /// The successor did not come.
    fn resume(&mut self) {
        self.owner.resume();
        match self.control.reopen() {
            Ok(()) => self.owner.warnings.clear(SOCKET),
            Err(error) => self.owner.warnings.stick(self.clock.now(), SOCKET, error.to_string()),
        }
    }

    /// Serves one request; true when it was the last.
    fn serve(&mut self, request: Request) -> Result<(Reply, bool), ApiError> {
        if let Request::Handover { phase } = request {
            return self.hand_over(phase);
        }
        if let (Request::Release { on, .. }, true) = (&request, self.leaving.begun()) {
            return self.release_leaving(*on).map(|reply| (reply, false));
        }
        if self.leaving.begun() {
            return Err(ApiError::new(ErrorKind::Busy, "another daemon is taking over; try again"));
        }
        let reply = match request {
            Request::Release { on, lasts } => self.owner.release_for(on, lasts),
            Request::Mode { service, mode, percent, lasts } => canary(mode, percent)
                .and_then(|canary| self.owner.set_mode_for(&service, (mode, canary), lasts)),
            Request::ModeOfFile { service } => self.owner.mode_of_file(&service),
            Request::Reload { path } => self.reload(path),
            Request::Explain { address, port } => {
                let explanation = self.owner.explain(&self.options.reason_text, address, port);
                Ok(Reply::Explain { explanation: Box::new(explanation) })
            }
            Request::History {} => Ok(self.owner.history()),
            Request::ShadowReport { service, since, class } => {
                self.owner.shadow_report(service.as_deref(), since, class.as_deref())
            }
            Request::ExplainRequest { id } => {
                let samples = self.owner.explain_request(&self.options.reason_text, &id);
                Ok(Reply::ExplainRequest { samples })
            }
            // Served from the snapshot, without the owner.
            Request::Ping {} | Request::Status {} | Request::Handover { .. } => {
                Err(ApiError::new(ErrorKind::Failed, "not for the owner"))
            }
        };
        reply.map(|reply| (reply, false))
    }

    /// The kill switch is nobody's to refuse. A successor that could not adopt our maps has pinned
    /// its own in their place: those are told, too.
    fn release_leaving(&mut self, on: bool) -> Result<Reply, ApiError> {
        let reply = self.owner.release(on)?;
        if let Err(error) = release_pinned(&self.at, on) {
            tracing::warn!(%error, "the kill switch that is pinned was not thrown");
        }
        Ok(reply)
    }

    fn hand_over(&mut self, phase: HandoverPhase) -> Result<(Reply, bool), ApiError> {
        let step = self.leaving.hear(phase, self.clock.now());
        match &step {
            Ok(Step::Wait) => {
                tracing::info!("another daemon begins to take over");
                // It reads this before it decides anything.
                self.owner.keep_for_successor();
            }
            Ok(Step::End) => {}
            Ok(Step::Stay) => {
                tracing::info!("the other daemon could not start; going on");
                self.resume();
            }
            Err(error) => {
                tracing::warn!(?phase, %error, "refused to another daemon");
                // One that finishes too late has written in the meantime.
                if phase == HandoverPhase::Finish {
                    self.resume();
                }
            }
        }
        let last = step? == Step::End;
        let left = Handover { pins: Some(self.pins.clone()), ..self.owner.handover() };
        Ok((Reply::Handover(left), last))
    }

    fn reload(&mut self, path: Option<PathBuf>) -> Result<Reply, ApiError> {
        let path = path.unwrap_or_else(|| self.options.config.clone());
        let ssh = &self.ssh;
        let prepare = |config: Config| match preflight::on_ssh(&config, &ssh.listeners).first() {
            Some(fault) => Err(ApiError::new(ErrorKind::ConfigInvalid, fault.to_string())),
            None => Ok(exempted(config, &ssh.ports)),
        };
        self.owner.reload(&path, &self.options.registry, &prepare)
    }
}

/// Whose refusals a command wants to be executed.
fn canary(mode: Mode, percent: Option<f64>) -> Result<Canary, ApiError> {
    let Some(percent) = percent else { return Ok(Canary::ALL) };
    let wrong = |message: &str| ApiError::new(ErrorKind::BadRequest, message);
    match (mode, Canary::of_percent(percent)) {
        (Mode::Shadow, _) => Err(wrong("in shadow nobody is refused: percent is for enforce")),
        (Mode::Enforce, Some(canary)) => Ok(canary),
        (Mode::Enforce, None) => Err(wrong("percent is above 0 and at most 100")),
    }
}

fn interval(config: &Config) -> Interval {
    let mut ticks = tokio::time::interval(config.daemon.tick.into());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_without_the_lock_on_its_pins_gives_up() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("nothing");
        let error = runtime.block_on(hold(None, &missing));
        assert!(matches!(error, RunError::Io { what: "the lock on the pins", .. }), "{error}");
        let lock = held(Lock::take(dir.path()), dir.path());
        assert!(lock.is_ok());
        let error = held(Lock::take(dir.path()), dir.path()).unwrap_err();
        assert!(matches!(error, RunError::PinsKept(_)), "{error}");
    }
}
