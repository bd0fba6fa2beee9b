// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a connection costs that HAProxy refuses (`tcp-request connection reject`, its earliest
//! rule): CPU time of the whole machine for a connection to it, less that for one to a closed port
//! of the same host, which is what the client pays anyway.

use super::arena::{Answers, Arena, SERVICE, SOURCES};
use super::idle::{IdleLoops, Rates};
use super::space::{Guard, last_cpu};
use super::worker::Subject;
use anyhow::{Context, Result, bail, ensure};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrAny, SocketType, bind, connect, recv, socket,
};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::rc::Rc;
use std::time::Duration;
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// A connection that takes longer than this was not refused.
const PATIENCE: Duration = Duration::from_secs(2);
/// Sources of connections, one after the other.
const SOURCES_USED: u32 = 4096;
/// The proxy runs there; the client on the last CPU.
const CPU: &str = "0";
/// How long the proxy may take to listen.
const START_LIMIT: Nanos = Nanos::from_secs(10);
/// What else runs on the machine is counted, too: it may spoil so many measurements.
const ATTEMPTS: u32 = 5;
/// A port of the host where nobody listens.
const CLOSED: u16 = 81;

/// The proxy, its client, and what measures them.
pub struct Proxy {
    arena: Arena,
    child: Child,
    folder: tempfile::TempDir,
    connections: u32,
    next: u32,
    rates: Rates,
}

fn config(stats: &str) -> String {
    format!(
        "global\n nbthread 1\n maxconn 4000\n stats socket {stats} mode 600\n\
         defaults\n mode tcp\n timeout client 5s\n timeout server 5s\n timeout connect 5s\n\
         frontend refuse\n bind {SERVICE}\n tcp-request connection reject\n"
    )
}

impl Proxy {
    /// Starts the proxy; waits until it listens.
    pub fn new(guard: &Rc<Guard>, connections: u32) -> Result<Self> {
        let arena = Arena::new(guard, Answers::ToClients)?;
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("haproxy.cfg");
        let stats = folder.path().join("stats");
        std::fs::write(&file, config(&stats.display().to_string()))?;
        let mut command = arena.server.command("taskset");
        command.args(["-c", CPU, "haproxy", "-db", "-f"]).arg(&file);
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = quiet.spawn().context("starting haproxy")?;
        let mut proxy = Self { arena, child, folder, connections, next: 0, rates: Rates::new() };
        let end = MonotonicClock.now().0 + START_LIMIT.0;
        while proxy.refused().is_err() {
            let ended = proxy.child.try_wait()?;
            ensure!(ended.is_none(), "haproxy ended: {ended:?}");
            ensure!(MonotonicClock.now().0 < end, "haproxy does not answer");
            std::thread::park_timeout(Duration::from_millis(10));
        }
        Ok(proxy)
    }

    fn stats(&self) -> PathBuf {
        self.folder.path().join("stats")
    }

    /// Connections that the proxy says it denied: the column `dcon` of its frontend.
    fn refused(&self) -> Result<u64> {
        let mut socket = UnixStream::connect(self.stats())?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.write_all(b"show stat\n")?;
        socket.shutdown(Shutdown::Write)?;
        let mut text = String::new();
        socket.read_to_string(&mut text)?;
        let mut lines = text.trim_start_matches("# ").lines();
        let names: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
        let column = names.iter().position(|name| *name == "dcon").context("no column dcon")?;
        let row = lines.find(|line| line.starts_with("refuse,FRONTEND")).context("no frontend")?;
        row.split(',').nth(column).and_then(|n| n.parse().ok()).context("dcon is no number")
    }

    /// So many connections to a port, one after the other; CPU time of one, ns.
    fn cost(&mut self, port: u16, loops: &IdleLoops) -> Result<f64> {
        let to = SocketAddrV4::new(*SERVICE.ip(), port);
        let (first, count) = (self.next, self.connections);
        self.next += count;
        let (done, spent) = loops.spent(&mut self.rates, || {
            self.arena
                .clients
                .on_cpu(last_cpu(), || (first..first + count).try_for_each(|n| refuse(n, to)))
        })?;
        done?;
        Ok(spent / f64::from(count))
    }
}

/// Connects; fails unless it was refused.
fn refuse(number: u32, to: SocketAddrV4) -> Result<()> {
    let from = Ipv4Addr::from_bits(SOURCES.to_bits() + 1 + number % SOURCES_USED);
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    set_socket_timeout(&fd, Timeout::Send, Some(PATIENCE))?;
    set_socket_timeout(&fd, Timeout::Recv, Some(PATIENCE))?;
    bind(&fd, &SocketAddrAny::from(SocketAddrV4::new(from, 0)))?;
    match connect(&fd, &SocketAddrAny::from(to)) {
        Err(Errno::CONNREFUSED | Errno::CONNRESET) => return Ok(()),
        other => other.with_context(|| format!("from {from} to {to}"))?,
    }
    match recv(&fd, &mut [0_u8; 16], RecvFlags::empty()) {
        Ok((0, _)) | Err(Errno::CONNRESET) => Ok(()),
        other => bail!("{to} did not refuse: {other:?}"),
    }
}

impl Subject for Proxy {
    fn name(&self) -> &str {
        "haproxy"
    }

    fn about(&self) -> &str {
        "HAProxy: tcp-request connection reject; CPU time beyond that for a closed port"
    }

    fn measure(&mut self) -> Result<f64> {
        let loops = IdleLoops::start();
        let mut said = String::new();
        for _ in 0..ATTEMPTS {
            let anyway = self.cost(CLOSED, &loops)?;
            let before = self.refused()?;
            let cost = self.cost(SERVICE.port(), &loops)?;
            let refused = self.refused()? - before;
            ensure!(refused == u64::from(self.connections), "haproxy counted {refused} refusals");
            if cost > anyway {
                return Ok(cost - anyway);
            }
            said = format!("{cost} ns beside {anyway} ns");
        }
        bail!("the machine is too busy: {said}")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
