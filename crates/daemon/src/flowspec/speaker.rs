// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread that keeps the BGP speaker: a speaker may take seconds to answer, and the control loop must not wait.

use super::lister::{Lister, News};
use super::{Done, Told};
use rustix::fs::{Mode, OFlags, open};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tidegate_config::{FlowspecConfig, SpeakerKind, SpeakerPeerConfig};
use tidegate_flowspec::{
    Bounds, Exporter, Helper, Kind, Neighbor, Options, Password, Route, Session, keeper,
};
use tidegate_units::{Clock, MonotonicClock, Nanos};
use tokio::sync::oneshot;

/// How often the speaker is looked at: often within the shortest lease.
const ROUND: Duration = Duration::from_millis(200);
/// How often it is asked for its sessions.
const SESSIONS_EVERY: Nanos = Nanos::SECOND;
/// Without a sign of life from this process for so long the keeper ends the speaker.
const KEEPER_LEASE: Nanos = Nanos::from_secs(3);
/// The port of BGP.
const PORT: u16 = 179;
/// Longest file of a password: it has one line.
const PASSWORD_BYTES_MAX: u64 = 256;

/// The thread; drop ends it, and with it the speaker and its routes.
pub(super) struct Handle {
    shared: Arc<Mutex<Shared>>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// What is wanted, and since when.
    wanted: Option<(Nanos, Vec<Route>)>,
    told: Told,
    /// The last list of routes, if nobody has taken it yet.
    news: Option<News>,
}

impl Handle {
    /// Starts the thread; the speaker follows.
    ///
    /// # Errors
    /// Options that cannot work, or no thread.
    pub(super) fn start(
        options: Options,
        bounds: Bounds,
        lister: Option<Lister>,
    ) -> Result<Self, String> {
        let lease = bounds.lease;
        let exporter = Exporter::new(options, bounds).map_err(|why| why.to_string())?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|why| why.to_string())?;
        let shared = Arc::new(Mutex::new(Shared::default()));
        let (end, ended) = oneshot::channel();
        let inside = Arc::clone(&shared);
        let run = move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = ended => {}
                    () = keep(exporter, lease, (lister, &inside)) => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name("flowspec".into()).spawn(run);
        let thread = thread.map_err(|why| why.to_string())?;
        Ok(Self { shared, end: Some(end), thread: Some(thread) })
    }

    /// From now on these routes are wanted; what was done since the last call.
    pub(super) fn want(&self, now: Nanos, routes: Vec<Route>) -> Vec<Done> {
        let mut shared = lock(&self.shared);
        shared.wanted = Some((now, routes));
        std::mem::take(&mut shared.told.done)
    }

    /// The last list of routes since the last call.
    pub(super) fn news(&self) -> Option<News> {
        lock(&self.shared).news.take()
    }

    /// Whether this router has a session; `None`: it is not known.
    pub(super) fn has_session(&self, router: IpAddr) -> Option<bool> {
        let shared = lock(&self.shared);
        let sessions = shared.told.sessions.as_ref().filter(|_| !self.has_failed())?;
        Some(sessions.iter().any(|session| session.router == router))
    }

    fn has_failed(&self) -> bool {
        self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }

    pub(super) fn told(&self) -> Told {
        let shared = lock(&self.shared);
        let told = &shared.told;
        if self.has_failed() {
            // Without its signs of life the keeper has ended the speaker.
            let problem = "the thread that keeps the BGP speaker has failed".into();
            return Told {
                problem,
                started: told.started,
                refused: told.refused,
                ..Told::default()
            };
        }
        Told { done: Vec::new(), ..told.clone() }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> std::sync::MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Never ends.
async fn keep(
    mut exporter: Exporter,
    lease: Nanos,
    (mut lister, shared): (Option<Lister>, &Mutex<Shared>),
) {
    let (mut sessions, mut asked, mut problem) = (None, Nanos::ZERO, String::new());
    loop {
        let wanted = lock(shared).wanted.clone();
        let now = MonotonicClock.now();
        let silent = wanted.as_ref().is_some_and(|(at, _)| now.since(*at) >= lease);
        let mut why = silent.then(|| "the control loop was silent".to_owned());
        // The lease is that of the control loop: it counts from what it wanted last.
        if let Some((at, routes)) = wanted
            && let Err(why) = exporter.want(at, &routes)
        {
            problem = why.to_string();
        }
        match exporter.tick(now).await {
            Ok(()) if exporter.is_up() => problem.clear(),
            Ok(()) => sessions = None,
            Err(error) => {
                problem = error.to_string();
                why = Some(format!("the BGP speaker has ended: {error}"));
                lock(shared).news =
                    Some(News::Ended(format!("the BGP speaker has ended: {error}")));
            }
        }
        if now.since(asked) >= SESSIONS_EVERY
            && let Some(speaker) = exporter.speaker()
        {
            asked = now;
            // One that does not answer is ended by its next change, or by its hold time.
            sessions = speaker.sessions().await.unwrap_or_default();
            if let Some(lister) = &mut lister
                && let Some(news) = lister.list(speaker, now).await
            {
                lock(shared).news = Some(news);
            }
        }
        publish(&mut exporter, shared, (&problem, &sessions, why));
        tokio::time::sleep(ROUND).await;
    }
}

fn publish(
    exporter: &mut Exporter,
    shared: &Mutex<Shared>,
    (problem, sessions, why): (&str, &Option<Vec<Session>>, Option<String>),
) {
    let stands = exporter.stands(MonotonicClock.now());
    let done: Vec<Done> = exporter.done().into_iter().map(|change| (change, why.clone())).collect();
    let told = &mut lock(shared).told;
    told.up = exporter.is_up();
    told.started = exporter.started();
    told.refused = exporter.refused();
    problem.clone_into(&mut told.problem);
    told.sessions.clone_from(sessions);
    told.stands = stands;
    told.done.extend(done);
}

/// How the speaker is started, with its files beside the control socket.
///
/// # Errors
/// The program is not known, or a password cannot be used.
pub(crate) fn options(config: &FlowspecConfig, socket: &Path) -> Result<Options, String> {
    let kind = match config.speaker {
        SpeakerKind::Gobgp => Kind::GoBgp,
        SpeakerKind::Exabgp => Kind::ExaBgp,
    };
    let neighbor = |peer: &SpeakerPeerConfig| {
        Ok(Neighbor {
            address: peer.address,
            local: peer.local,
            peer_as: peer.peer_as,
            password: password(peer)?,
            ttl_security: peer.ttl_security,
        })
    };
    let neighbors: Result<Vec<Neighbor>, String> = config.peers.iter().map(neighbor).collect();
    let seconds = config.hold_time.0 / Nanos::SECOND.0;
    let receive = config.import.as_ref().and_then(|import| {
        let peer = config.peers.iter().find(|peer| peer.name == import.peer)?;
        Some(peer.address)
    });
    let options = Options {
        kind,
        program: config.program.clone().unwrap_or_else(|| config.speaker.program().into()),
        helper: Helper { program: ourselves(kind)?, arguments: vec![keeper::COMMAND.into()] },
        dir: socket.with_file_name("bgp"),
        own_as: config.own_as,
        router_id: config.router_id,
        neighbors: neighbors?,
        port: PORT,
        hold_time_s: u16::try_from(seconds).unwrap_or(u16::MAX),
        lease: KEEPER_LEASE,
        receive,
    };
    options.check().map_err(|why| why.to_string())?;
    Ok(options)
}

/// This program, which keeps the speaker. A link that the kernel holds needs no way that the daemon's user may go.
/// ExaBGP starts it itself: it gets the path as it is now, where an upgrade may have put another one.
fn ourselves(kind: Kind) -> Result<PathBuf, String> {
    if kind == Kind::GoBgp {
        return Ok("/proc/self/exe".into());
    }
    let path =
        std::env::current_exe().map_err(|why| format!("this program is not found: {why}"))?;
    let text = path.to_string_lossy();
    Ok(text.strip_suffix(" (deleted)").map_or_else(|| path.clone(), PathBuf::from))
}

/// The password of a session; `None`: it has none.
///
/// # Errors
/// The file, and what is wrong with it.
pub(crate) fn password(peer: &SpeakerPeerConfig) -> Result<Option<Password>, String> {
    let Some(path) = &peer.password_file else { return Ok(None) };
    let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    // A pipe must not be waited for.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = open(path, flags, Mode::empty()).map_err(|why| failed(&why))?;
    let file = std::fs::File::from(file);
    let found = file.metadata().map_err(|why| failed(&why))?;
    if !found.is_file() {
        return Err(failed(&"it is no file"));
    }
    let mode = found.permissions().mode();
    if mode & 0o037 != 0 {
        let why = format!("others may read it (mode {:o}): chmod 0600, or 0640", mode & 0o777);
        return Err(failed(&why));
    }
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(file, PASSWORD_BYTES_MAX), &mut text)
        .map_err(|why| failed(&why))?;
    let password = Password::new(text.strip_suffix('\n').unwrap_or(&text));
    let rule = "it is no password: one line of 1 to 80 letters, digits and +/=._-:@";
    password.map(Some).ok_or_else(|| failed(&rule))
}
