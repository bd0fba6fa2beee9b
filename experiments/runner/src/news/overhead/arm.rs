// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the router does beside forwarding, and the memory that it takes.

use super::ROUTER;
use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tidegate_lab::{Body, Cost, Graph, Group, Managed, Product, TinyOptions};
use tidegate_units::Nanos;
use tidegate_workload::Shape;

/// The server never is the limit.
const WORKERS: u32 = 256;
const BACKLOG: i32 = 4_096;
/// A service that the daemon must have.
const OWN_PAGE: &str = "127.0.0.1:7118";
/// Rules that need the state of each connection: the smallest useful ruleset of the nftables wiki.
const RULES: &str = "table inet tgtrack {
 chain forward {
  type filter hook forward priority 0; policy drop;
  ct state vmap { established : accept, related : accept, invalid : drop }
  ct state new accept
 }
}
";
/// A collector that takes NetFlow and does nothing with it: the exporter's cost is wanted, not the collector's.
const COLLECTOR: &str = "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('127.0.0.1', 2055))
while True: s.recv(65536)
";
const COLLECTS_AT: &str = "127.0.0.1:2055";
/// What a connection takes in conntrack where the kernel does not say: struct nf_conn with its extensions.
const TRACKED_BYTES: f64 = 320.0;

/// What the router does beside forwarding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Nothing.
    Plain,
    /// nftables with connection tracking.
    Conntrack,
    /// softflowd exports NetFlow version 9.
    Netflow,
    /// Both.
    ConntrackNetflow,
    /// tidegate measures.
    Tidegate,
    /// tidegate may limit, too.
    TidegateLimit,
}

impl Kind {
    /// Its name in the rows.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Conntrack => "conntrack",
            Self::Netflow => "netflow",
            Self::ConntrackNetflow => "conntrack-netflow",
            Self::Tidegate => "tidegate",
            Self::TidegateLimit => "tidegate-limit",
        }
    }

    const fn tracks(self) -> bool {
        matches!(self, Self::Conntrack | Self::ConntrackNetflow)
    }

    const fn exports(self) -> bool {
        matches!(self, Self::Netflow | Self::ConntrackNetflow)
    }

    const fn measures(self) -> bool {
        matches!(self, Self::Tidegate | Self::TidegateLimit)
    }
}

/// Bytes that an arm has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Memory {
    /// Of its programs, resident.
    pub(super) program: f64,
    /// In the kernel: BPF maps, or tracked connections.
    pub(super) kernel: f64,
    /// Connections that are tracked now.
    pub(super) tracked: Option<f64>,
}

/// What stands on the router; ended by drop.
pub(super) struct Arm {
    kind: Kind,
    product: Option<Product>,
    exporter: Option<Managed>,
    _collector: Option<Managed>,
}

/// The server.
pub(super) fn server(bytes: f64) -> TinyOptions {
    let body = Body { mean: bytes, shape: Shape::Constant, range: (1.0, bytes) };
    TinyOptions {
        workers: WORKERS,
        backlog: BACKLOG,
        cost: Cost::wait(Nanos::ZERO),
        body: Some(body),
        ..TinyOptions::default()
    }
}

impl Arm {
    pub(super) fn start(graph: &Graph<'_>, program: &Path, kind: Kind) -> Result<Self> {
        let mut arm = Self { kind, product: None, exporter: None, _collector: None };
        if kind.tracks() {
            graph.run_in(ROUTER, &["nft", "-f", "-"], RULES).context("nftables")?;
        }
        if kind.exports() {
            let collector = ["python3", "-c", COLLECTOR];
            arm._collector = Some(graph.start_in(ROUTER, "collector", &collector)?);
            // In the foreground, on the link to the servers, with its documented defaults; its sockets and files
            // would be the machine's.
            let files = ["-c", "none", "-p", "/dev/null"];
            let command = ["softflowd", "-d", "-i", "l1", "-v", "9", "-n", COLLECTS_AT];
            let command = [&command[..], &files].concat();
            arm.exporter = Some(graph.start_in(ROUTER, "softflowd", &command)?);
        }
        if kind.measures() {
            let mut router = json!({"destinations": ["10.64.1.0/24:*"]});
            if kind == Kind::TidegateLimit {
                router["limit"] = json!({"mode": "enforce"});
            }
            let services = json!({"page": {"mode": "shadow", "listen": [OWN_PAGE]}});
            let sections = json!({"services": services, "router": router});
            arm.product = Some(graph.start_product(program, ROUTER, &sections)?);
        }
        Ok(arm)
    }

    fn groups(&self) -> impl Iterator<Item = &Group> {
        let product = self.product.as_ref().map(|product| product.process().group());
        let exporter = self.exporter.as_ref().map(Managed::group);
        product.into_iter().chain(exporter)
    }

    /// CPU time of its programs so far, seconds.
    pub(super) fn cpu_used(&self) -> f64 {
        let used = self.groups().filter_map(Group::cpu_used);
        used.map(Nanos::as_secs_f64).sum()
    }

    /// What it has now.
    pub(super) fn memory(&self, graph: &Graph<'_>) -> Result<Memory> {
        let programs: Vec<u32> = self.groups().flat_map(Group::processes).collect();
        let mut memory = Memory {
            program: programs.iter().map(|pid| resident(*pid)).sum(),
            kernel: programs.iter().map(|pid| maps(*pid)).sum(),
            tracked: None,
        };
        if self.kind.tracks() {
            let file = "/proc/sys/net/netfilter/nf_conntrack_count";
            let count = graph.run_in(ROUTER, &["cat", file], "")?;
            let count: f64 = count.trim().parse().context("the count of conntrack")?;
            let slabs = fs::read_to_string("/proc/slabinfo").unwrap_or_default();
            memory.kernel += count * slab(&slabs, "nf_conntrack").unwrap_or(TRACKED_BYTES);
            memory.tracked = Some(count);
        }
        Ok(memory)
    }

    /// Ends it in good order; an exporter that has ended by itself exported nothing.
    pub(super) fn end(self) -> Result<()> {
        if let Some(mut exporter) = self.exporter {
            let log = fs::read_to_string(exporter.log()).unwrap_or_default();
            anyhow::ensure!(exporter.running(), "softflowd has ended: {log}");
        }
        self.product.map_or(Ok(()), |product| product.stop().context("tidegate does not end"))
    }
}

/// Bytes of a program in memory.
fn resident(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    field(&status, "VmRSS:").map_or(0.0, |kib| kib * 1024.0)
}

/// Bytes of the BPF maps that a program holds, each once.
fn maps(pid: u32) -> f64 {
    let folder = format!("/proc/{pid}/fdinfo");
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found = BTreeMap::new();
    for text in files.filter_map(|file| fs::read_to_string(file.path()).ok()) {
        if let Some(id) = field(&text, "map_id:") {
            found.insert(id as u64, field(&text, "memlock:").unwrap_or(0.0));
        }
    }
    found.values().sum()
}

/// The number behind a name.
fn field(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Bytes of an object of a cache of the kernel.
fn slab(slabs: &str, name: &str) -> Option<f64> {
    let line = slabs.lines().find(|line| line.split_whitespace().next() == Some(name))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_what_the_kernel_tells() {
        let status = "Name:\ttidegate\nVmRSS:\t   12000 kB\n";
        assert_eq!(field(status, "VmRSS:"), Some(12_000.0));
        let info = "pos:\t0\nmap_type:\t2\nmap_id:\t7\nmemlock:\t4096\n";
        assert_eq!((field(info, "map_id:"), field(info, "memlock:")), (Some(7.0), Some(4_096.0)));
        assert_eq!(field(info, "prog_id:"), None);
        let slabs = "# name <active_objs> <num_objs> <objsize>\nnf_conntrack_expect 1 2 208 3\nnf_conntrack 10 20 256 16\n";
        assert_eq!(slab(slabs, "nf_conntrack"), Some(256.0));
        assert_eq!(slab("", "nf_conntrack"), None);
    }
}
