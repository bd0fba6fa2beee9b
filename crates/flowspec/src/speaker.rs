// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The BGP speaker as a process of ours, and what it is told.
//!
//! ```text
//!              start                 API answers                  a change fails, the process ends
//! (no process) ─────► starting ─────────────────► told changes ─────────────────────────────┐
//!      ▲                  │ START_MAX                                                        │
//!      └──────────────────┴───────────── killed, all routes forgotten, waits ◄───────────────┘
//! ```

use crate::export::{Bounds, Change, Plan, Stand};
use crate::nlri::Malformed;
use crate::rule::Route;
use crate::{exabgp, gobgp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid,
};
use std::fmt;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tidegate_units::Nanos;
use tokio::net::UnixListener;

/// Longest hold time: routes of a speaker that cannot be reached end after it.
pub const HOLD_TIME_MAX_S: u16 = 9;
/// Shortest hold time that BGP allows (RFC 4271, section 4.2).
pub const HOLD_TIME_MIN_S: u16 = 3;
/// Most neighbors of one speaker.
pub const NEIGHBORS_MAX: usize = 16;
/// How long a speaker may take until its API answers.
const START_MAX: Nanos = Nanos::from_secs(15);
/// How long one attempt to reach the API may take.
const TRY_MAX: Duration = Duration::from_millis(200);
/// How long the keeper may take to end the speaker and itself.
const END_MAX: Duration = Duration::from_secs(1);
/// Most of a log's end that an error shows.
const LINE_MAX: u64 = 400;
/// Longest log; then it begins anew.
const LOG_MAX: u64 = 1 << 20;
/// First wait before another speaker is started, and the longest. A speaker that has run for the longest is a good one.
const AGAIN: (Nanos, Nanos) = (Nanos::from_secs(1), Nanos::from_secs(60));

/// What went wrong with a speaker.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its options cannot work.
    #[error("{0}")]
    Options(&'static str),
    /// The process, or its files.
    #[error("cannot start {program}: {why}")]
    Start {
        /// Which.
        program: PathBuf,
        /// What the system said.
        why: io::Error,
    },
    /// Its API cannot be reached.
    #[error("its socket: {0}")]
    Socket(io::Error),
    /// The API does not speak HTTP/2.
    #[error("its API: {0}")]
    Http(hyper::Error),
    /// It says no.
    #[error("it refuses: {0}")]
    Refused(String),
    /// It does not answer.
    #[error("it does not answer")]
    Silent,
    /// The process has ended; with the last line of its log.
    #[error("it has ended: {0}")]
    Ended(String),
    /// More than [`gobgp::PATHS_MAX`] paths.
    #[error("it has more than {} paths", gobgp::PATHS_MAX)]
    TooMany,
    /// A rule that has no encoding.
    #[error("a rule cannot be encoded: {0}")]
    Rule(Malformed),
    /// TCP flags for which ExaBGP has no name.
    #[error("ExaBGP has no names for these TCP flags")]
    Flags,
}

/// Which program speaks BGP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `gobgpd`, by gRPC.
    GoBgp,
    /// `exabgp`, by the pipe of its child.
    ExaBgp,
}

/// A program whose main hands the arguments after these to [`crate::keeper::main`].
#[derive(Clone, Debug)]
pub struct Helper {
    /// The program.
    pub program: PathBuf,
    /// Its first arguments.
    pub arguments: Vec<String>,
}

/// A router.
#[derive(Clone, Debug)]
pub struct Neighbor {
    /// Its address.
    pub address: IpAddr,
    /// Our address in this session.
    pub local: IpAddr,
    /// Its AS.
    pub peer_as: u32,
    /// Both ends sign their TCP segments with it (RFC 2385); `None`: not signed.
    pub password: Option<Password>,
    /// It is one hop away: what comes from farther is dropped (RFC 5082). Both ends need it.
    pub ttl_security: bool,
}

/// A password of TCP MD5: 1 to 80 characters, letters, digits and `+/=._-:@`, which both speakers can be told.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    /// Longest, in characters: what the kernel takes.
    pub const MAX: usize = 80;

    /// `None`: too long, empty, or with other characters.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"+/=._-:@".contains(&b);
        let good = (1..=Self::MAX).contains(&text.len()) && text.bytes().all(plain);
        good.then(|| Self(text.to_owned()))
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

/// How a speaker is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which.
    pub kind: Kind,
    /// The program, as the system finds it.
    pub program: PathBuf,
    /// The keeper.
    pub helper: Helper,
    /// A directory for its configuration, socket and log. It is made if it is missing, and has to be ours alone
    /// (mode 0700): whoever reaches the socket of GoBGP can announce routes.
    pub dir: PathBuf,
    /// Our AS.
    pub own_as: u32,
    /// Our BGP identifier.
    pub router_id: Ipv4Addr,
    /// Routers; the speaker connects to them.
    pub neighbors: Vec<Neighbor>,
    /// Port of the routers (179).
    pub port: u16,
    /// Hold time in seconds: 3 to 9.
    pub hold_time_s: u16,
    /// Without a sign of life from us for so long the keeper ends the speaker.
    pub lease: Nanos,
    /// The neighbor whose FlowSpec and unicast routes are taken: for import (GoBGP only). Of the others nothing is.
    pub receive: Option<IpAddr>,
}

impl Options {
    /// Whether they can work.
    ///
    /// # Errors
    /// What cannot.
    pub fn check(&self) -> Result<(), Error> {
        let hold = HOLD_TIME_MIN_S..=HOLD_TIME_MAX_S;
        let families = |neighbor: &Neighbor| neighbor.address.is_ipv4() == neighbor.local.is_ipv4();
        Err(Error::Options(match () {
            () if !hold.contains(&self.hold_time_s) => "the hold time is from 3 to 9 s",
            () if self.neighbors.is_empty() => "there is no neighbor",
            () if self.neighbors.len() > NEIGHBORS_MAX => "there are more than 16 neighbors",
            () if !self.neighbors.iter().all(families) => "both ends of a session have one family",
            () if self.own_as == 0 || self.neighbors.iter().any(|n| n.peer_as == 0) => "0 is no AS",
            () if self.receive.is_some() && self.kind != Kind::GoBgp => {
                "only GoBGP tells what it receives"
            }
            () if self
                .receive
                .is_some_and(|from| !self.neighbors.iter().any(|n| n.address == from)) =>
            {
                "routes are taken of no neighbor"
            }
            () if self.lease == Nanos::ZERO => "the lease is 0",
            () if !self.paths_are_plain() => {
                "a path has a character that ExaBGP's configuration cannot hold"
            }
            () => return Ok(()),
        }))
    }

    /// ExaBGP splits the command of its child at blanks and ends it at a semicolon.
    fn paths_are_plain(&self) -> bool {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-+:@,=".contains(&b);
        let paths = [self.dir.to_str(), self.helper.program.to_str()];
        let words = self.helper.arguments.iter().map(|word| Some(word.as_str()));
        paths.into_iter().chain(words).all(|path| path.is_some_and(|path| path.bytes().all(plain)))
    }
}

/// A session with a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// The router.
    pub router: IpAddr,
    /// Without a sign of life for so long both ends give the session up; `None`: never, because the router has
    /// switched that off.
    pub hold_time: Option<Nanos>,
}

/// Talks with a speaker that runs.
#[derive(Debug)]
pub enum Speaker {
    /// GoBGP.
    GoBgp(gobgp::Client),
    /// ExaBGP.
    ExaBgp(Pipe),
}

/// A connection to ExaBGP's child.
#[derive(Debug)]
pub struct Pipe(exabgp::Session);

impl Error {
    /// The speaker works, and does not take this one rule.
    const fn is_about_a_rule(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Rule(_) | Self::Flags)
    }
}

impl Speaker {
    /// The sessions that are up; `None`: the speaker does not tell (ExaBGP).
    ///
    /// # Errors
    /// The speaker does not answer.
    pub async fn sessions(&mut self) -> Result<Option<Vec<Session>>, Error> {
        match self {
            Self::GoBgp(client) => client.sessions().await.map(Some),
            Self::ExaBgp(_) => Ok(None),
        }
    }

    async fn tell(&mut self, change: &Change) -> Result<(), Error> {
        match (self, change) {
            (Self::GoBgp(client), Change::Announce(route)) => client.announce(route).await,
            (Self::GoBgp(client), Change::Withdraw(rule)) => client.withdraw(rule).await,
            (Self::ExaBgp(pipe), Change::Announce(route)) => pipe.0.announce(route).await,
            (Self::ExaBgp(pipe), Change::Withdraw(rule)) => pipe.0.withdraw(rule).await,
        }
    }
}

/// Writes a file of our directory anew: that of a process before may be another user's.
pub(crate) fn write(file: &Path, text: &str) -> io::Result<()> {
    unlink(file)?;
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(file)?;
    file.write_all(text.as_bytes())
}

/// Removes what a process that was killed has left.
pub(crate) fn unlink(file: &Path) -> io::Result<()> {
    match std::fs::remove_file(file) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => Err(why),
        _ => Ok(()),
    }
}

/// Makes the directory if it is missing. It may belong to nobody else.
fn private(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(why) if why.kind() != io::ErrorKind::AlreadyExists => return Err(why),
        _ => {}
    }
    let found = std::fs::symlink_metadata(dir)?;
    let ours = found.uid() == rustix::process::geteuid().as_raw();
    if found.is_dir() && ours && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(io::Error::other(format!("{} is not a directory of ours alone (mode 0700)", dir.display())))
}

/// A speaker with its keeper. Both end by drop.
#[derive(Debug)]
struct Running {
    keeper: Child,
    /// Of ExaBGP's child.
    listener: Option<UnixListener>,
    speaker: Option<Speaker>,
    since: Nanos,
    file: Written,
}

/// A configuration that was written: it may have passwords. A successor writes its own at the same place.
#[derive(Debug)]
struct Written {
    path: PathBuf,
    /// Device and inode.
    is: Option<(u64, u64)>,
}

impl Written {
    fn at(path: PathBuf) -> Self {
        let is = Self::found(&path);
        Self { path, is }
    }

    fn found(path: &Path) -> Option<(u64, u64)> {
        std::fs::symlink_metadata(path).map(|found| (found.dev(), found.ino())).ok()
    }

    fn remove(&self) {
        if self.is.is_some() && Self::found(&self.path) == self.is {
            let _ = unlink(&self.path);
        }
    }
}

impl Running {
    fn start(options: &Options, now: Nanos) -> Result<Self, Error> {
        let failed = |why| Error::Start { program: options.program.clone(), why };
        private(&options.dir).map_err(failed)?;
        let (name, arguments, listener) = match options.kind {
            Kind::GoBgp => (gobgp::FILE, gobgp::prepare(options).map_err(failed)?, None),
            Kind::ExaBgp => {
                let (arguments, listener) = exabgp::prepare(options).map_err(failed)?;
                (exabgp::FILE, arguments, Some(listener))
            }
        };
        let file = Written::at(options.dir.join(name));
        let log = log(&options.dir);
        write(&log, "").map_err(failed)?;
        let log = File::options().append(true).open(log).map_err(failed)?;
        let helper = &options.helper;
        let lease_ms = Duration::from(options.lease).as_millis().max(1).to_string();
        let mut command = Command::new(&helper.program);
        command.args(&helper.arguments).args(["watch", &lease_ms]);
        command.arg(&helper.program).args(&helper.arguments).arg("exec");
        command.arg(&options.program).args(arguments);
        if options.kind == Kind::ExaBgp {
            command.envs(exabgp::ENVIRONMENT);
        }
        // A group of its own: Ctrl-C on a terminal is ours to pass on, and drop kills all of it.
        command.process_group(0).stdin(Stdio::piped());
        command.stdout(log.try_clone().map_err(failed)?).stderr(log);
        let keeper = command.spawn().map_err(failed)?;
        if let Some(pipe) = &keeper.stdin {
            rustix::io::ioctl_fionbio(pipe, true).map_err(|why| failed(why.into()))?;
        }
        Ok(Self { keeper, listener, speaker: None, since: now, file })
    }

    /// A sign of life; whether the keeper lives.
    fn beat(&mut self) -> bool {
        let Some(pipe) = &mut self.keeper.stdin else { return false };
        match pipe.write(&[0]) {
            Ok(_) => {}
            // The keeper is stopped: it has signs enough to read.
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
        // Who has ended stays until drop: its number is that of the group, and nobody else shall get it.
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        matches!(waitid(WaitId::Pid(Pid::from_child(&self.keeper)), ended), Ok(None))
    }

    async fn reach(&mut self, options: &Options) -> Result<(), Error> {
        let reached = match &self.listener {
            None => {
                let socket = gobgp::socket(options);
                Speaker::GoBgp(gobgp::Client::connect(&socket).await?)
            }
            Some(listener) => {
                let accepted = tokio::time::timeout(TRY_MAX, listener.accept()).await;
                let (stream, _) = accepted.map_err(|_| Error::Silent)?.map_err(Error::Socket)?;
                Speaker::ExaBgp(Pipe(exabgp::Session::new(stream)))
            }
        };
        self.speaker = Some(reached);
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The keeper ends the speaker and then itself. One that is stopped does not.
        drop(self.keeper.stdin.take());
        let id = Pid::from_child(&self.keeper);
        if let Ok(keeper) = pidfd_open(id, PidfdFlags::empty()) {
            let end = Timespec::try_from(END_MAX).ok();
            let _ = poll(&mut [PollFd::new(&keeper, PollFlags::IN)], end.as_ref());
        }
        // What the speaker has started, and a keeper that was killed cannot end.
        let _ = kill_process_group(id, Signal::KILL);
        let _ = self.keeper.wait();
        self.file.remove();
    }
}

/// Keeps a speaker running and its routes as they are wanted. Drop ends the speaker, and so the routes.
///
/// [`Exporter::tick`] has to be called several times within [`Options::lease`], in a task of its own: a speaker
/// may take seconds to answer. One that takes longer than the lease is ended by the keeper.
#[derive(Debug)]
pub struct Exporter {
    options: Options,
    plan: Plan,
    running: Option<Running>,
    /// Not before then, and after that wait.
    again: (Nanos, Nanos),
    started: u64,
    refused: u64,
    /// What the speaker has taken, or lost, and nobody has asked for yet.
    done: Vec<Change>,
}

impl Exporter {
    /// Nothing is started yet.
    ///
    /// # Errors
    /// Options that cannot work.
    pub fn new(options: Options, bounds: Bounds) -> Result<Self, Error> {
        options.check()?;
        let plan = Plan::new(bounds);
        let again = (Nanos::ZERO, AGAIN.0);
        let (running, done) = (None, Vec::new());
        Ok(Self { options, plan, running, again, started: 0, refused: 0, done })
    }

    /// See [`Plan::want`].
    ///
    /// # Errors
    /// A rule that cannot be encoded; then nothing changes.
    pub fn want(&mut self, now: Nanos, routes: &[Route]) -> Result<usize, Error> {
        self.plan.want(now, routes).map_err(Error::Rule)
    }

    /// Keeps the speaker alive and tells it what has changed.
    ///
    /// # Errors
    /// Why the speaker was ended. It is started again after a while, and told everything anew.
    pub async fn tick(&mut self, now: Nanos) -> Result<(), Error> {
        let done = self.step(now).await;
        if done.is_err() {
            self.running = None;
            self.done.extend(self.plan.rules().into_iter().map(Change::Withdraw));
            self.plan.forget();
            let (_, wait) = self.again;
            self.again = (now + wait, Nanos(wait.0.saturating_mul(2).min(AGAIN.1.0)));
        }
        done
    }

    /// What the speaker has taken since the last call, and what went with a speaker that has ended. To be asked
    /// after each [`Self::tick`].
    pub fn done(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.done)
    }

    /// See [`Plan::stands`].
    #[must_use]
    pub fn stands(&self, now: Nanos) -> Vec<Stand> {
        self.plan.stands(now)
    }

    /// Whether the speaker runs and its API answers.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.speaker.is_some())
    }

    /// The connection to the speaker, once its API answers: for import.
    pub fn speaker(&mut self) -> Option<&mut Speaker> {
        self.running.as_mut()?.speaker.as_mut()
    }

    /// How many routes the speaker has.
    #[must_use]
    pub fn announced(&self) -> usize {
        self.plan.announced()
    }

    /// How often a speaker was started.
    #[must_use]
    pub const fn started(&self) -> u64 {
        self.started
    }

    /// How often the speaker did not take a route. It is tried again after [`Bounds::between`].
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }

    /// The keeper's process id.
    #[must_use]
    pub fn keeper(&self) -> Option<u32> {
        self.running.as_ref().map(|running| running.keeper.id())
    }

    /// Where the speaker's log is.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        log(&self.options.dir)
    }

    async fn step(&mut self, now: Nanos) -> Result<(), Error> {
        let log = self.log();
        let running = match &mut self.running {
            Some(running) => running,
            None if now < self.again.0 => return Ok(()),
            None => {
                self.started += 1;
                self.running.insert(Running::start(&self.options, now)?)
            }
        };
        if !running.beat() {
            return Err(Error::Ended(last_line(&log).unwrap_or_default()));
        }
        shorten(&log);
        if now.since(running.since) >= AGAIN.1 {
            self.again.1 = AGAIN.0;
        }
        if running.speaker.is_none() {
            match running.reach(&self.options).await {
                Ok(()) => {}
                Err(why) if now.since(running.since) >= START_MAX => return Err(why),
                // Not yet.
                Err(_) => return Ok(()),
            }
        }
        let Some(speaker) = &mut running.speaker else { return Ok(()) };
        for change in self.plan.changes(now) {
            match speaker.tell(&change).await {
                Ok(()) => {
                    tracing::debug!(?change, "told the BGP speaker");
                    self.plan.done(now, &change);
                    self.done.push(change);
                }
                // The other routes stay. One that is there, and cannot be changed, must not stay as it is.
                Err(why) if why.is_about_a_rule() && self.plan.refuse(now, &change) => {
                    tracing::warn!(%why, ?change, "the BGP speaker does not take a route");
                    self.refused += 1;
                }
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }
}

fn log(dir: &Path) -> PathBuf {
    dir.join("speaker.log")
}

/// Empties a log that has become too long. The speaker appends, so it goes on at its beginning.
fn shorten(log: &Path) {
    let long = std::fs::metadata(log).is_ok_and(|found| found.len() > LOG_MAX);
    let emptied = || File::options().write(true).open(log)?.set_len(0);
    if long && let Err(why) = emptied() {
        tracing::warn!(%why, "the BGP speaker's log cannot be emptied: {}", log.display());
    }
}

/// Of a log, without what is no text.
fn last_line(log: &Path) -> Option<String> {
    let mut file = File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LINE_MAX))).ok()?;
    let mut end = Vec::new();
    file.take(LINE_MAX).read_to_end(&mut end).ok()?;
    let text = String::from_utf8_lossy(&end).into_owned();
    text.lines().rfind(|line| !line.trim().is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options {
            kind: Kind::GoBgp,
            program: "gobgpd".into(),
            helper: Helper {
                program: "/usr/bin/tidegate".into(),
                arguments: vec!["keeper".into()],
            },
            dir: "/run/tidegate/bgp".into(),
            own_as: 65_001,
            router_id: Ipv4Addr::new(10, 9, 0, 1),
            neighbors: vec![Neighbor {
                address: IpAddr::from([10, 9, 0, 2]),
                local: IpAddr::from([10, 9, 0, 1]),
                peer_as: 65_002,
                password: None,
                ttl_security: false,
            }],
            port: 179,
            hold_time_s: 9,
            lease: Nanos::from_secs(3),
            receive: Some(IpAddr::from([10, 9, 0, 2])),
        }
    }

    #[test]
    fn every_bound_of_the_options_on_both_sides() {
        let six = IpAddr::from(std::net::Ipv6Addr::LOCALHOST);
        type Changed = fn(&mut Options, IpAddr);
        let changes: [(&str, bool, Changed); 15] = [
            ("as it is", true, |_, _| ()),
            ("hold time 3", true, |o, _| o.hold_time_s = 3),
            ("hold time 2", false, |o, _| o.hold_time_s = 2),
            ("hold time 0, which is for ever", false, |o, _| o.hold_time_s = 0),
            ("hold time 10", false, |o, _| o.hold_time_s = 10),
            ("no neighbor", false, |o, _| o.neighbors.clear()),
            ("16 neighbors", true, |o, _| o.neighbors = vec![o.neighbors[0].clone(); 16]),
            ("17 neighbors", false, |o, _| o.neighbors = vec![o.neighbors[0].clone(); 17]),
            ("two families", false, |o, six| o.neighbors[0].local = six),
            ("AS 0", false, |o, _| o.neighbors[0].peer_as = 0),
            ("import by ExaBGP", false, |o, _| o.kind = Kind::ExaBgp),
            ("export by ExaBGP", true, |o, _| (o.kind, o.receive) = (Kind::ExaBgp, None)),
            ("import of nobody", false, |o, six| o.receive = Some(six)),
            ("no lease", false, |o, _| o.lease = Nanos::ZERO),
            ("a blank in a path", false, |o, _| o.dir = "/run/a b".into()),
        ];
        for (what, good, change) in changes {
            let mut options = options();
            change(&mut options, six);
            assert_eq!(options.check().is_ok(), good, "{what}");
        }
    }

    #[test]
    fn passwords_are_what_both_speakers_can_be_told_and_are_not_shown() {
        let long = "x".repeat(80);
        for good in ["a", "Az09+/=._-:@", &long] {
            let password = Password::new(good).unwrap();
            assert_eq!((password.text(), format!("{password:?}")), (good, "Password(…)".into()));
        }
        for bad in ["", "a b", "a\"b", "a'b", "a;b", "a{b", "a#b", "a\\b", "ä", &format!("{long}x")]
        {
            assert_eq!(Password::new(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_long_log_begins_anew_and_only_the_own_configuration_goes() {
        let dir = tempfile::tempdir().unwrap();
        let log = log(dir.path());
        let mut appends = File::options().append(true).create(true).open(&log).unwrap();
        let line = vec![b'x'; usize::try_from(LOG_MAX).unwrap()];
        appends.write_all(&line).unwrap();
        shorten(&log);
        assert_eq!(log.metadata().unwrap().len(), LOG_MAX, "as long as it may be");
        appends.write_all(b"y").unwrap();
        shorten(&log);
        appends.write_all(b"the end\n").unwrap();
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "the end\n");
        // A successor's file at the same place stays.
        let path = dir.path().join(gobgp::FILE);
        write(&path, "auth-password").unwrap();
        let mine = Written::at(path.clone());
        let kept = File::open(&path).unwrap();
        write(&path, "another").unwrap();
        mine.remove();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "another");
        Written::at(path.clone()).remove();
        assert!(!path.exists());
        drop(kept);
    }

    #[test]
    fn only_a_directory_of_ours_alone_is_used() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let made = dir.path().join("bgp");
        private(&made).unwrap();
        private(&made).unwrap();
        for (mode, good) in [(0o700, true), (0o710, false), (0o701, false)] {
            std::fs::set_permissions(&made, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(private(&made).is_ok(), good, "{mode:o}");
        }
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(private(&link).is_err(), "a link to a directory of ours");
    }
}
