// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Other daemons, as they are known by sockets with an abstract name: who is at the other end.
//!
//! Any process may take a name. Only one that listens there as root, as this process's user or as
//! `daemon.user` counts as a daemon. Those who only look connect and say nothing; one that wants to be heard
//! sends a byte.

use crate::account::Account;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    connect, recv, send, socket_with,
};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use tidegate_config::Config;
use tidegate_units::{BootClock, Clock, Nanos};

/// What one sends that wants to be heard.
const KNOCK: &[u8] = b"r";
/// `USER_HZ`: the unit of times in /proc, the same wherever we run.
const USER_HZ: u64 = 100;
/// Longest command line that is shown, in bytes.
const COMMAND_MAX: usize = 120;

/// A process that has a name, or connected to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// `None`: it is in a PID namespace that cannot be seen from here.
    pub(crate) pid: Option<u32>,
    user: u32,
    /// How long it has run.
    age: Option<Nanos>,
    command: String,
}

impl Holder {
    /// Whoever is at the other end of a connection.
    fn of(socket: &OwnedFd) -> io::Result<Self> {
        // Not rustix's: its process ids are never 0, and those of another PID namespace are.
        let peer = getsockopt(socket, PeerCredentials)?;
        let pid = u32::try_from(peer.pid()).ok().filter(|pid| *pid != 0);
        let process = pid.map(|pid| PathBuf::from(format!("/proc/{pid}")));
        let age = process.as_deref().and_then(age);
        let command = process.as_deref().map(command).unwrap_or_default();
        Ok(Self { pid, user: peer.uid(), age, command })
    }
}

/// Users whose processes count as daemons.
#[derive(Clone, Debug, Default)]
pub(crate) struct Daemons(Vec<u32>);

impl Daemons {
    /// Root, who runs this process, and the user that a daemon of this configuration becomes: a successor
    /// gets its locks only then.
    pub(crate) fn of(config: &Config) -> Self {
        let own = rustix::process::geteuid().as_raw();
        let other = Account::configured(config).ok().flatten();
        Self([0, own].into_iter().chain(other.map(|account| account.uid())).collect())
    }

    pub(crate) fn have(&self, holder: &Holder) -> bool {
        self.0.contains(&holder.user)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "pid {pid}")?,
            None => f.write_str("a process in another PID namespace")?,
        }
        if let Some(age) = self.age {
            write!(f, ", started {} ago", words(age))?;
        }
        if self.command.is_empty() { Ok(()) } else { write!(f, ": {}", self.command) }
    }
}

/// A span for people.
fn words(span: Nanos) -> String {
    let seconds = span.as_secs_f64() as u64;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// How long a process has run.
fn age(process: &Path) -> Option<Nanos> {
    let text = std::fs::read_to_string(process.join("stat")).ok()?;
    // Behind the name, which may contain anything, comes the third field; the start is the 22nd.
    let began: u64 = text.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let began = Nanos(began.saturating_mul(1_000_000_000 / USER_HZ));
    Some(BootClock.now().since(began))
}

fn command(process: &Path) -> String {
    let mut bytes = std::fs::read(process.join("cmdline")).unwrap_or_default();
    bytes.truncate(COMMAND_MAX);
    let text = String::from_utf8_lossy(&bytes).replace('\0', " ");
    text.chars().filter(|c| !c.is_control()).collect::<String>().trim_end().to_owned()
}

/// A socket of the calling thread's network namespace.
pub(crate) fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Who listens at a name, in the namespace of this socket; `knocks` says who shall hear of it. The socket is
/// used up once it is answered. Without an answer nobody is there:
/// - nobody listens: the name is free, or is held without listening, which no daemon does for long;
/// - nobody takes the calls: its process stands still, or somebody fills its queue. Whose it is cannot be
///   told. Hooks that are in force are found all the same.
pub(crate) fn ask_by(
    socket: &OwnedFd,
    address: &SocketAddrUnix,
    knocks: impl Fn(&Holder) -> bool,
) -> io::Result<Option<Holder>> {
    match connect(socket, address) {
        Ok(()) => {}
        Err(Errno::CONNREFUSED | Errno::AGAIN) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let holder = Holder::of(socket)?;
    if knocks(&holder) {
        // Who has gone needs no news.
        let _ = send(socket, KNOCK, SendFlags::NOSIGNAL);
    }
    Ok(Some(holder))
}

/// The daemon at a control socket.
pub(crate) fn at(path: &Path) -> Option<Holder> {
    let socket = socket().ok()?;
    connect(&socket, &SocketAddrUnix::new(path).ok()?).ok()?;
    Holder::of(&socket).ok()
}

/// The last daemon of those that wanted to be heard; `calls_max` are taken at a time.
pub(crate) fn heard(socket: &OwnedFd, calls_max: usize, daemons: &Daemons) -> Option<Holder> {
    let calls = std::iter::repeat_with(|| accept_with(socket, SocketFlags::CLOEXEC));
    let mut last = None;
    for call in calls.take(calls_max) {
        let Ok(call) = call else { break };
        let mut byte = [0];
        let knocked = recv(&call, &mut byte, RecvFlags::DONTWAIT).is_ok_and(|(_, n)| n == 1);
        let from = Holder::of(&call).ok().filter(|from| knocked && daemons.have(from));
        last = from.or(last);
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_told_in_the_unit_that_fits() {
        for (seconds, text) in [(3, "3 s"), (180, "3 min"), (7200, "2 h"), (200_000, "2 days")] {
            assert_eq!(words(Nanos::from_secs(seconds)), text);
        }
    }
}
