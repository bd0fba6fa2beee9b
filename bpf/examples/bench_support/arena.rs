// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where refusals are measured: two namespaces and a veth pair, a flood from the one to the other.
//!
//! ```text
//! G: g0 192.0.2.1 ──────────── s0 192.0.2.10: S
//! SYNs from 10.16.0.0/16 to 192.0.2.10:80
//! ```
//!
//! The flood is made of live frames; between its batches the kernel handles what arrived at s0, on
//! the same CPU: the time of a frame is that of making it and of receiving it.

use super::compile::Object;
use super::frames::{Frame, MAC_NOBODY, MAC_SERVER, SYN, Tuple, bare, sums};
use super::space::{Guard, Space, last_cpu, run};
use anyhow::{Context, Result};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::rc::Rc;
use tidegate_bpf::Interface;
use tidegate_bpf::testing::bench::{Attachment, Bench, ifindex};

/// Where the service is.
pub const SERVICE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 10), 80);
/// The other end of the link.
pub const PEER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Where SYNs come from: the first of 65536 addresses.
pub const SOURCES: Ipv4Addr = Ipv4Addr::new(10, 16, 0, 0);
/// Address of g0.
const MAC_PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Who gets the answers of S.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    /// Nobody: their address is not that of g0.
    ToNobody,
    /// Sockets in G.
    ToClients,
}

/// Both namespaces.
#[derive(Debug)]
pub struct Arena {
    pub clients: Space,
    pub server: Space,
}

fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}

impl Arena {
    /// The two, linked.
    pub fn new(guard: &Rc<Guard>, answers: Answers) -> Result<Self> {
        let arena = Self { clients: Space::new(guard)?, server: Space::new(guard)? };
        let (clients, server) = (&arena.clients, &arena.server);
        let (ours, theirs) = (mac(MAC_PEER), mac(MAC_SERVER));
        let peer = server.name();
        clients.ip(&format!(
            "link add g0 address {ours} type veth peer name s0 address {theirs} netns {peer}"
        ))?;
        clients.ip(&format!("address add {PEER}/24 dev g0"))?;
        clients.ip(&format!("route add local {SOURCES}/16 dev lo"))?;
        clients.ip("link set g0 up")?;
        // Takes frames and throws them away, as nobody holds its other end.
        clients.ip("tuntap add dev nowhere mode tap")?;
        clients.ip("link set nowhere up")?;
        server.ip(&format!("address add {}/24 dev s0", SERVICE.ip()))?;
        server.ip("link set s0 up")?;
        server.ip(&format!("route add {SOURCES}/16 via {PEER} dev s0"))?;
        let to = if answers == Answers::ToClients { MAC_PEER } else { MAC_NOBODY };
        server.ip(&format!("neighbour replace {PEER} lladdr {} dev s0", mac(to)))?;
        clients.ip(&format!("neighbour replace {} lladdr {theirs} dev g0", SERVICE.ip()))?;
        Ok(arena)
    }

    /// s0 takes frames without an XDP program of its own.
    pub fn receive_without_xdp(&self) -> Result<()> {
        self.server.run("ethtool", &["-K", "s0", "gro", "on"], "").map(drop)
    }

    /// The interface that is flooded.
    pub fn s0(&self) -> Interface {
        interface(&self.server, "s0")
    }

    /// Where frames end at once.
    fn nowhere(&self) -> Interface {
        interface(&self.clients, "nowhere")
    }

    /// The interface that answers reach.
    pub fn g0(&self) -> Interface {
        interface(&self.clients, "g0")
    }
}

fn interface(space: &Space, name: &str) -> Interface {
    Interface::named(name, Some(space.path().to_owned()))
}

/// The flood into an arena, and what it costs alone.
#[derive(Debug)]
pub struct Flood {
    bench: Bench,
    /// `struct aim`: to the service, and to nowhere.
    aimed: Vec<u8>,
    lost: Vec<u8>,
    frame: Frame,
    frames: u32,
    swallow: Option<Attachment>,
}

impl Flood {
    /// So many frames a measurement.
    pub fn new(object: &Object, arena: &Arena, frames: u32) -> Result<Self> {
        let tuple = Tuple { src: SOURCES, dst: *SERVICE.ip(), sport: 0, dport: SERVICE.port() };
        let frame = bare(&tuple, SYN, 0, 0);
        let (ip, tcp) = sums(&frame);
        let aim = |interface| -> Result<Vec<u8>> {
            let words = [ip, tcp, ifindex(&interface)?].map(u32::to_ne_bytes);
            Ok([&frame[..], &[0; 2], &words.concat()].concat())
        };
        let (aimed, lost) = (aim(arena.g0())?, aim(arena.nowhere())?);
        Ok(Self { bench: object.load()?, aimed, lost, frame, frames, swallow: None })
    }

    /// What arrives at g0 is counted and dropped at once (and answers by XDP arrive at all: a
    /// veth delivers them only where the other end has a program).
    pub fn swallow_answers(&mut self, arena: &Arena) -> Result<()> {
        self.swallow = Some(self.bench.attach("swallow", &arena.g0())?);
        Ok(())
    }

    /// How many answers arrived; none where they are not swallowed.
    pub fn swallowed(&self) -> Result<Option<u64>> {
        self.swallow.as_ref().map(|_| swallowed(&self.bench)).transpose()
    }

    /// Frames of one measurement.
    pub const fn frames(&self) -> u32 {
        self.frames
    }

    /// Time to make a frame and to receive it, ns.
    pub fn received(&self, arena: &Arena) -> Result<f64> {
        self.bench.write("aim", 0, &self.aimed)?;
        self.run(arena)
    }

    /// Time to make a frame and to hand it to an interface that frees it, ns.
    pub fn alone(&self, arena: &Arena) -> Result<f64> {
        self.bench.write("aim", 0, &self.lost)?;
        self.run(arena)
    }

    fn run(&self, arena: &Arena) -> Result<f64> {
        let cpu = last_cpu();
        let before = softirq_thread_ns(cpu);
        let mean = arena
            .clients
            .on_cpu(cpu, || Ok(self.bench.flood("flood", &self.frame, self.frames)?))?;
        // What was too much for the softirq is done by a thread, while the flood waits.
        let late = softirq_thread_ns(cpu) - before;
        Ok(mean.as_nanos() as f64 + late / f64::from(self.frames))
    }
}

/// How many frames the program `swallow` of this object dropped.
pub fn swallowed(bench: &Bench) -> Result<u64> {
    let bytes = bench.read("swallowed", 0)?.try_into().ok();
    bytes.map(u64::from_ne_bytes).context("a counter of another size")
}

/// CPU time of the thread that handles softirqs on a CPU when there are too many, ns; 0 where
/// it cannot be seen.
fn softirq_thread_ns(cpu: usize) -> f64 {
    let name = format!("ksoftirqd/{cpu}");
    let find = || {
        let entries = std::fs::read_dir("/proc").ok()?;
        let mut paths = entries.flatten().map(|entry| entry.path());
        let path = paths.find(|path| {
            std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == name)
        })?;
        let stat = std::fs::read_to_string(path.join("schedstat")).ok()?;
        stat.split(' ').next()?.parse().ok()
    };
    find().unwrap_or(0.0)
}

/// A counter of the kernel's TCP in a namespace (`/proc/net/netstat`).
pub fn tcp_counter(space: &Space, name: &str) -> Result<u64> {
    let text = run(space.command("cat").arg("/proc/net/netstat"), "")?;
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let names = lines.next().unwrap_or_default().split(' ');
    let values = lines.next().unwrap_or_default().split(' ');
    let found = names.zip(values).find(|(known, _)| *known == name);
    let value = found.and_then(|(_, value)| value.parse().ok());
    value.with_context(|| format!("the kernel has no counter {name}"))
}
