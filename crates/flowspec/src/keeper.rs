// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The process between us and the BGP speaker: the speaker ends when we end, and when we hang.
//!
//! ```text
//! we ── pipe: a byte now and then ──► keeper `watch` ── its child, SIGKILL on the keeper's death ──► speaker
//! └──────────────────── one process group: SIGKILL when the speaker or the keeper has ended ───────────────┘
//! ```
//!
//! The keeper kills the speaker once the pipe is closed, or silent for the lease. A keeper that is killed takes
//! the speaker with it. What the speaker has started itself is in the keeper's process group, unless it has left it,
//! and the keeper kills this group, or we do. So do we with a speaker whose file has capabilities: for that one the
//! kernel forgets the signal. BGP sessions end with the speaker, and routers withdraw its routes, because it does not
//! speak graceful restart. Routes stay only if both we and the keeper are stopped and not killed.
//!
//! A program offers this by handing its arguments to [`main`]; see [`crate::Helper`].

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, getpgrp, getpid, getppid, kill_current_process_group, pidfd_open,
    set_parent_process_death_signal,
};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, Stdio};
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// The word before the arguments of [`main`], in the program of the product. It stands in no help.
pub const COMMAND: &str = "flowspec-keeper";
/// In the speaker's environment until it is the speaker: its keeper's process id.
const KEEPER: &str = "TIDEGATE_KEEPER";
/// The program could not be started, as a shell has it.
const NOT_STARTED: u8 = 127;

/// Does what the arguments say, until its end:
///
/// - `watch MILLISECONDS PROGRAM ARGUMENTS…`: keeps this program, which is `exec` below.
/// - `exec PROGRAM ARGUMENTS…`: becomes this program, which ends with its parent.
/// - `relay SOCKET`: ExaBGP's child. Copies lines from the socket to standard output, and back.
#[must_use]
pub fn main(arguments: &[OsString]) -> ExitCode {
    let [what, rest @ ..] = arguments else { return wrong("no command") };
    match (what.to_str(), rest) {
        (Some("watch"), [lease, command @ ..]) if !command.is_empty() => {
            let lease = lease.to_str().and_then(|lease| lease.parse().ok());
            match lease {
                Some(lease) => watch(Nanos::from_millis(lease), command),
                None => wrong("the lease is no number"),
            }
        }
        (Some("exec"), [program, rest @ ..]) => exec(program, rest),
        (Some("relay"), [socket]) => match relay(socket) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => wrong(&format!("relay: {why}")),
        },
        _ => wrong("unknown command"),
    }
}

fn wrong(why: &str) -> ExitCode {
    eprintln!("keeper: {why}");
    ExitCode::from(NOT_STARTED)
}

/// Ends with the speaker's exit code, or once it has killed it. As the head of a process group it ends by SIGKILL,
/// with whatever the speaker has started.
fn watch(lease: Nanos, command: &[OsString]) -> ExitCode {
    let mut child = Command::new(&command[0]);
    child.args(&command[1..]).stdin(Stdio::null());
    child.env(KEEPER, std::process::id().to_string());
    let mut child = match child.spawn() {
        Ok(child) => child,
        Err(why) => return wrong(&format!("{}: {why}", command[0].display())),
    };
    if let Err(why) = kept(lease, &child) {
        eprintln!("keeper: {why}");
    }
    let _ = child.kill();
    let code = child
        .wait()
        .ok()
        .map_or(NOT_STARTED.into(), |status| status.code().or(status.signal()).unwrap_or_default());
    if getpgrp() == getpid() {
        let _ = kill_current_process_group(Signal::KILL);
    }
    ExitCode::from(u8::try_from(code).unwrap_or(NOT_STARTED))
}

/// Returns when the child has ended, or its time has.
fn kept(lease: Nanos, child: &Child) -> io::Result<()> {
    let ended = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let beats = io::stdin();
    let mut until = MonotonicClock.now() + lease;
    loop {
        let left = until.since(MonotonicClock.now());
        if left == Nanos::ZERO {
            return Ok(());
        }
        let mut events = [
            PollFd::new(&beats, PollFlags::IN),
            PollFd::from_borrowed_fd(ended.as_fd(), PollFlags::IN),
        ];
        let timeout = std::time::Duration::from(left).try_into().ok();
        match poll(&mut events, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(why) => return Err(why.into()),
        }
        if !events[1].revents().is_empty() {
            return Ok(());
        }
        if !events[0].revents().is_empty() {
            let mut bytes = [0; 64];
            if rustix::io::read(&beats, &mut bytes)? == 0 {
                return Ok(());
            }
            until = MonotonicClock.now() + lease;
        }
    }
}

/// Returns only if it fails.
fn exec(program: &OsString, arguments: &[OsString]) -> ExitCode {
    if let Err(why) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return wrong(&why.to_string());
    }
    // The keeper may have died before the kernel knew what to do about it.
    let keeper = std::env::var(KEEPER).ok().and_then(|id| id.parse().ok());
    if keeper != getppid().map(Pid::as_raw_nonzero).map(i32::from) {
        return wrong("the keeper is gone");
    }
    let why = Command::new(program).args(arguments).env_remove(KEEPER).exec();
    wrong(&format!("{}: {why}", program.display()))
}

/// Ends when either side does.
fn relay(socket: &OsString) -> io::Result<()> {
    let mut commands = UnixStream::connect(socket)?;
    let mut answers = commands.try_clone()?;
    std::thread::spawn(move || {
        // ExaBGP is gone, or the socket: the other direction ends as well.
        let _ = copy(&mut io::stdin().lock(), &mut answers);
        let _ = answers.shutdown(std::net::Shutdown::Both);
    });
    copy(&mut commands, &mut io::stdout().lock())
}

fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut bytes = [0; 4_096];
    loop {
        let count = from.read(&mut bytes)?;
        if count == 0 {
            return Ok(());
        }
        to.write_all(&bytes[..count])?;
        to.flush()?;
    }
}
