// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a supervisor is told: that the daemon is ready, that its loop goes round, that it ends. The
//! protocol is systemd's (sd_notify(3)): a datagram of `NAME=value` lines to the socket in
//! `NOTIFY_SOCKET`.
//!
//! Nothing here may wait: a supervisor that does not read must not cost the lease. So the socket does
//! not block, and what cannot be sent is lost; the next message says the same.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;
use tidegate_units::Nanos;

/// The supervisor is told this often within the time in which it wants to hear of us.
const PINGS: u32 = 4;

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Supervisor {
    way: Option<(UnixDatagram, SocketAddr)>,
    /// How often it is told that the loop goes round; `None`: it does not ask.
    every: Option<Nanos>,
    told: Option<Nanos>,
}

impl Supervisor {
    /// The one that the environment names; where there is none, nobody is told anything.
    pub(crate) fn find() -> Self {
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        // A watchdog of another process, which has left its environment to us, is none of ours.
        let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|_| ours).map(Duration::from_micros);
        let found = Self::at(std::env::var_os("NOTIFY_SOCKET"), watchdog);
        found.unwrap_or_else(|error| {
            tracing::warn!(%error, "the supervisor cannot be told anything");
            Self::default()
        })
    }

    fn at(socket: Option<OsString>, watchdog: Option<Duration>) -> io::Result<Self> {
        let Some(socket) = socket.filter(|socket| !socket.is_empty()) else {
            return Ok(Self::default());
        };
        let address = match socket.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(&socket)?,
        };
        let way = UnixDatagram::unbound()?;
        way.set_nonblocking(true)?;
        let every = watchdog.filter(|time| !time.is_zero()).map(|time| (time / PINGS).into());
        Ok(Self { way: Some((way, address)), every, told: None })
    }

    /// The daemon is in charge.
    pub(crate) fn ready(&self) {
        self.send("READY=1\nSTATUS=in charge");
    }

    /// The loop has come round.
    pub(crate) fn alive(&mut self, now: Nanos) {
        let Some(every) = self.every else { return };
        if self.told.is_none_or(|told| now.since(told) >= every) {
            self.told = Some(now);
            self.send("WATCHDOG=1");
        }
    }

    /// The daemon ends.
    pub(crate) fn stopping(&self, why: &str) {
        self.send(&format!("STOPPING=1\nSTATUS={why}"));
    }

    fn send(&self, text: &str) {
        if let Some((way, address)) = &self.way
            && let Err(error) = way.send_to_addr(text.as_bytes(), address)
        {
            tracing::debug!(%error, text, "the supervisor was not told");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn heard(socket: &UnixDatagram) -> Option<String> {
        let mut text = [0; 256];
        socket.set_nonblocking(true).unwrap();
        let length = socket.recv(&mut text).ok()?;
        Some(String::from_utf8(text[..length].to_vec()).unwrap())
    }

    #[test]
    fn a_supervisor_hears_of_the_start_of_each_quarter_of_its_time_and_of_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let mut supervisor = Supervisor::at(Some(path.into()), Some(4 * SECOND)).unwrap();
        supervisor.ready();
        assert_eq!(heard(&socket).unwrap(), "READY=1\nSTATUS=in charge");
        let ticks = (0..31).map(|tick| Nanos::from_millis(100 * tick));
        ticks.for_each(|now| supervisor.alive(now));
        let pings = std::iter::from_fn(|| heard(&socket)).collect::<Vec<_>>();
        assert_eq!(pings, ["WATCHDOG=1"; 4], "at 0, 1, 2 and 3 s");
        supervisor.stopping("stopped");
        assert!(heard(&socket).unwrap().starts_with("STOPPING=1"));
    }

    #[test]
    fn names_without_a_file_are_known_and_nobody_is_nobody() {
        let name = format!("tidegate-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        let mut supervisor = Supervisor::at(Some(format!("@{name}").into()), None).unwrap();
        supervisor.ready();
        assert!(heard(&socket).is_some());
        supervisor.alive(Nanos::SECOND);
        assert_eq!(heard(&socket), None, "it did not ask");
        for nobody in [None, Some(OsString::new())] {
            Supervisor::at(nobody, Some(SECOND)).unwrap().ready();
        }
    }

    /// Its queue holds some messages, and then a write would wait.
    #[test]
    fn a_supervisor_that_does_not_read_or_is_gone_stops_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let supervisor = Supervisor::at(Some(path.into()), None).unwrap();
        (0..10_000).for_each(|_| supervisor.ready());
        drop(socket);
        supervisor.ready();
    }
}
