// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether the server's listener has TCP_DEFER_ACCEPT on: then a refused request never was a socket.
//!
//! No interface tells. sock_diag has neither the option nor a field for it (`tcp_info` of a listener
//! ends before, INET_DIAG_SOCKOPT has `defer_connect`, the client's side), and /proc has no file.
//! What the kernel does tell, by network namespace, is how often such a listener let an empty ACK pass:
//! TcpExt TCPDeferAcceptDrop. Nearly every client sends that ACK, so over some handshakes
//! - none of them, and the kernel has opened connections: it is off (an admitted SYN with a forged
//!   source is no handshake, and never opens one);
//! - about one each, on a machine where nearly all connections are the service's: it is on;
//! - anything else (another listener in the namespace has it): not known.

use crate::file::Probe;
use std::io;
use std::path::Path;
use tidegate_units::Nanos;

/// How often the counters are read.
const EVERY: Nanos = Nanos::SECOND;
/// Handshakes of the service after which something can be said.
const HANDSHAKES_MIN: u64 = 32;
/// Connections that the namespace must have opened meanwhile before "none" says anything.
const OPENED_MIN: u64 = 32;
/// Empty ACKs a handshake that show the option: some clients send none.
const DEFERRED_MIN: f64 = 0.5;
/// Share of all connections of the namespace that must be the service's.
const OWN_MIN: f64 = 0.8;

/// Counters of a network namespace since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counters {
    deferred: u64,
    opened: u64,
}

/// What is known so far.
#[derive(Debug, Default)]
pub(crate) struct Defer {
    netstat: Option<Probe>,
    snmp: Option<Probe>,
    before: Option<Counters>,
    read: Option<Nanos>,
    handshakes: u64,
    known: Option<bool>,
}

impl Defer {
    /// The counters of this process' network namespace; another process is a new beginning.
    pub(crate) fn look_at(&mut self, net: &Path) {
        let netstat = net.join("netstat");
        if self.netstat.as_ref().is_none_or(|probe| probe.path() != netstat) {
            let snmp = Some(Probe::new(net.join("snmp")));
            *self = Self { netstat: Some(Probe::new(netstat)), snmp, ..Self::default() };
        }
    }

    /// Whether it is on, as of the last tick.
    pub(crate) const fn known(&self) -> Option<bool> {
        self.known
    }

    /// Takes the connections that were admitted since the tick before.
    pub(crate) fn tick(&mut self, now: Nanos, admitted: u64, buffer: &mut [u8]) -> Option<bool> {
        self.handshakes = self.handshakes.saturating_add(admitted);
        if self.read.is_some_and(|read| now.since(read) < EVERY) {
            return self.known;
        }
        self.read = Some(now);
        match (self.counters(buffer), self.before) {
            (Ok(counters), None) => self.begin(counters),
            (Ok(counters), Some(before)) if self.handshakes >= HANDSHAKES_MIN => {
                let deferred = counters.deferred.saturating_sub(before.deferred);
                let opened = counters.opened.saturating_sub(before.opened);
                if deferred == 0 && opened < OPENED_MIN {
                    return self.known;
                }
                self.conclude(deferred, opened);
                self.begin(counters);
            }
            (Ok(_), Some(_)) => {}
            (Err(_), _) => (self.before, self.known) = (None, None),
        }
        self.known
    }

    fn begin(&mut self, counters: Counters) {
        self.before = Some(counters);
        self.handshakes = 0;
    }

    fn conclude(&mut self, deferred: u64, opened: u64) {
        let own = self.handshakes as f64;
        if deferred == 0 {
            self.known = Some(false);
        } else if deferred as f64 >= DEFERRED_MIN * own && own >= OWN_MIN * opened as f64 {
            self.known = Some(true);
        } else {
            self.known = None;
        }
    }

    fn counters(&mut self, buffer: &mut [u8]) -> io::Result<Counters> {
        let missing = || io::Error::new(io::ErrorKind::InvalidData, "no such counter");
        let mut read = |probe: &mut Option<Probe>, group: &str, name: &str| {
            let probe = probe.as_mut().ok_or_else(missing)?;
            counter(probe.read(buffer)?, group, name).ok_or_else(missing)
        };
        Ok(Counters {
            deferred: read(&mut self.netstat, "TcpExt:", "TCPDeferAcceptDrop")?,
            opened: read(&mut self.snmp, "Tcp:", "PassiveOpens")?,
        })
    }
}

/// A value of the two-line form: names after their group, values after the same.
pub(crate) fn counter(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(group));
    let (names, values) = (lines.next()?, lines.next()?);
    let place = names.split_whitespace().position(|word| word == name)?;
    values.split_whitespace().nth(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write(dir: &Path, deferred: u64, opened: u64) {
        let netstat = format!(
            "TcpExt: SyncookiesSent TCPDeferAcceptDrop ListenDrops\nTcpExt: 7 {deferred} 9\n\
             IpExt: InOctets\nIpExt: 5\n"
        );
        fs::write(dir.join("netstat"), netstat).unwrap();
        let snmp =
            format!("Ip: Forwarding\nIp: 1\nTcp: ActiveOpens PassiveOpens\nTcp: 3 {opened}\n");
        fs::write(dir.join("snmp"), snmp).unwrap();
    }

    /// What 50 handshakes of the service say, with these counts in its namespace.
    fn after(deferred: u64, opened: u64) -> Option<bool> {
        let dir = tempfile::tempdir().unwrap();
        let mut buffer = vec![0; 4096];
        let mut defer = Defer::default();
        defer.look_at(dir.path());
        write(dir.path(), 1000, 2000);
        assert_eq!(defer.tick(Nanos::ZERO, 0, &mut buffer), None);
        write(dir.path(), 1000 + deferred, 2000 + opened);
        assert_eq!(defer.tick(Nanos::from_millis(500), 25, &mut buffer), None, "not read");
        defer.tick(Nanos::SECOND, 25, &mut buffer)
    }

    #[test]
    fn one_empty_ack_a_handshake_is_on_none_is_off_and_else_nobody_knows() {
        let table = [
            (0, 50, Some(false)),
            (0, 500, Some(false)),
            (0, 32, Some(false)),
            (0, 31, None),
            (0, 0, None),
            (48, 50, Some(true)),
            (30, 40, Some(true)),
            (10, 50, None),
            (48, 200, None),
        ];
        for (deferred, opened, expected) in table {
            assert_eq!(after(deferred, opened), expected, "{deferred} of {opened}");
        }
    }

    #[test]
    fn few_handshakes_and_files_that_cannot_be_read_say_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut buffer = vec![0; 4096];
        let mut defer = Defer::default();
        assert_eq!(defer.tick(Nanos::ZERO, 100, &mut buffer), None, "no process is known");
        defer.look_at(dir.path());
        assert_eq!(defer.tick(Nanos::from_secs(1), 100, &mut buffer), None, "no files");
        write(dir.path(), 0, 0);
        assert_eq!(defer.tick(Nanos::from_secs(2), 100, &mut buffer), None, "the first reading");
        assert_eq!(defer.tick(Nanos::from_secs(3), 31, &mut buffer), None, "31 handshakes");
        assert_eq!(defer.tick(Nanos::from_secs(4), 1, &mut buffer), None, "32 SYNs may be forged");
        write(dir.path(), 0, 31);
        assert_eq!(defer.tick(Nanos::from_secs(5), 900, &mut buffer), None, "31 connections");
        write(dir.path(), 0, 32);
        assert_eq!(defer.tick(Nanos::from_secs(6), 0, &mut buffer), Some(false), "32");
        fs::write(dir.path().join("netstat"), "TcpExt: Other\nTcpExt: 1\n").unwrap();
        assert_eq!(defer.tick(Nanos::from_secs(7), 1, &mut buffer), None, "an older kernel");
    }
}
