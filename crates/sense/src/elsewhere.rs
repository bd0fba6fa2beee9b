// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a server listens that does not listen here: in the network namespace of a container, perhaps
//! behind a userland proxy of the container's engine. For `check`, which may take its time.

use crate::addresses::{addresses, inner_networks};
use crate::finder::{Finder, Holders, pids};
use crate::link::links;
use crate::listeners::{Listener, ListenerSource, SockDiag};
use crate::netns::in_namespace;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use tidegate_model::Listen;
use tidegate_units::Nanos;

/// Most other namespaces that are looked into.
const SPACES_MAX: usize = 256;
/// Most servers that are named.
const FOUND_MAX: usize = 3;
/// Names of userland proxies, as far as the kernel keeps them: Docker's and that of rootless engines, whose
/// command lines say what they pass on.
const TELLING: [&str; 2] = ["docker-proxy", "rootlesskit-doc"];
/// Those that are told it in another way: of Podman and of RootlessKit, and passt of virtual machines.
const SILENT: [&str; 7] =
    ["rootlessport", "rootlesskit", "slirp4netns", "pasta", "pasta.avx2", "passt", "passt.avx2"];

/// A server in another network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// A process that has its listener.
    pub pid: u32,
    /// That process's name.
    pub name: String,
    /// What names its network namespace in a configuration: a cgroup, which outlives a restart, where
    /// it has one of its own.
    pub namespace: String,
    /// Where it listens.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// The interfaces there that are up, the loopback aside.
    pub interfaces: Vec<String>,
}

/// The process that holds a listener, and its name.
#[must_use]
pub fn holder(proc: &Path, listener: &Listener) -> Option<(u32, String)> {
    let mut finder = Finder::new(proc);
    finder.complete(Nanos::ZERO, &[listener.inode].into());
    let pid = *finder.holders().get(&listener.inode)?.first()?;
    Some((pid, name(proc, pid)))
}

/// Where a userland proxy passes its connections on to: Docker's says it on its command line.
#[must_use]
pub fn forwards_to(proc: &Path, pid: u32) -> Option<SocketAddr> {
    let address: IpAddr = option_of(proc, pid, "container-ip")?.parse().ok()?;
    Some(SocketAddr::new(address, option_of(proc, pid, "container-port")?.parse().ok()?))
}

/// Whether a process of this name passes connections on to containers, and nothing says to where.
#[must_use]
pub fn is_silent_proxy(name: &str) -> bool {
    SILENT.contains(&name)
}

/// What follows an option on the command line of a process.
fn option_of(proc: &Path, pid: u32, option: &str) -> Option<String> {
    let line = fs::read(proc.join(pid.to_string()).join("cmdline")).ok()?;
    let mut words = line.split(|byte| *byte == 0).filter_map(|word| std::str::from_utf8(word).ok());
    words.find(|word| word.trim_start_matches('-') == option)?;
    words.next().map(str::to_owned)
}

/// The ports of these listeners of this host that are userland proxies' of containers. Who cannot be one by its
/// name is not looked at any further. What others hold shows only to who may see it.
#[must_use]
pub fn proxied_ports(proc: &Path, listeners: &[Listener]) -> BTreeSet<u16> {
    let mut ports = BTreeSet::new();
    for pid in pids(proc) {
        let name = name(proc, pid);
        if TELLING.contains(&name.as_str()) && forwards_to(proc, pid).is_some() {
            ports.extend(
                option_of(proc, pid, "host-port").and_then(|port| port.parse::<u16>().ok()),
            );
        } else if is_silent_proxy(&name) {
            let held = sockets(proc, pid);
            let of = listeners.iter().filter(|listener| held.contains(&listener.inode));
            ports.extend(of.map(|listener| listener.port));
        }
    }
    ports
}

/// The sockets among these that userland proxies of containers hold, by their inodes. Where nobody may look at what one
/// of Docker's holds, those on its port.
#[must_use]
pub fn proxy_sockets(proc: &Path, listeners: &[Listener]) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    for pid in pids(proc) {
        let name = name(proc, pid);
        let telling = TELLING.contains(&name.as_str()) && forwards_to(proc, pid).is_some();
        if !telling && !is_silent_proxy(&name) {
            continue;
        }
        let held = sockets(proc, pid);
        let port = option_of(proc, pid, "host-port").and_then(|port| port.parse::<u16>().ok());
        let port = port.filter(|_| telling && held.is_empty());
        let of = |of: &&Listener| held.contains(&of.inode) || port == Some(of.port);
        found.extend(listeners.iter().filter(of).map(|listener| listener.inode));
    }
    found
}

/// The sockets of a process, by their inodes.
fn sockets(proc: &Path, pid: u32) -> BTreeSet<u32> {
    let files = fs::read_dir(proc.join(pid.to_string()).join("fd"));
    let inode = |file: fs::DirEntry| {
        let to = fs::read_link(file.path()).ok()?;
        to.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    files.into_iter().flatten().flatten().filter_map(inode).collect()
}

/// Servers in the other network namespaces of this host, which are looked at once.
pub struct Others {
    proc: PathBuf,
    spaces: Option<Vec<Space>>,
    holders: Holders,
    behind_bridges: Option<Vec<Elsewhere>>,
}

/// One of them, by one of its processes.
struct Space {
    pid: u32,
    path: PathBuf,
    listeners: Vec<Listener>,
}

impl Others {
    /// Looks at nothing yet.
    #[must_use]
    pub fn new(proc: &Path) -> Self {
        let (spaces, holders, behind_bridges) = (None, Holders::new(), None);
        Self { proc: proc.to_owned(), spaces, holders, behind_bridges }
    }

    /// Servers that listen where this says, those that have the address where it says one. Namespaces that may
    /// not be entered are left out.
    pub fn listening(&mut self, listen: &Listen) -> Vec<Elsewhere> {
        let wanted = listen.address.filter(|address| !address.is_unspecified());
        // Only who has an address can bind to it.
        let has = |space: &Space| {
            let bind = |address| in_namespace(Some(&space.path), || UdpSocket::bind((address, 0)));
            wanted.is_none_or(|address| bind(address).is_ok())
        };
        let server =
            |space: &Space| space.listeners.iter().find(|of| of.serves(listen).is_some()).copied();
        self.load();
        let all = self.spaces.iter().flatten();
        let serving = all.filter_map(|space| Some((space, server(space)?)));
        let found = serving.filter(|(space, _)| has(space)).take(FOUND_MAX);
        found.map(|(space, listener)| self.server(space, &listener)).collect()
    }

    /// Servers behind those bridges of ours that lead to containers alone, whatever their ports, each with an
    /// address that is reached there.
    pub fn behind_bridges(&mut self) -> &[Elsewhere] {
        if self.behind_bridges.is_none() {
            self.behind_bridges = Some(self.find_behind_bridges());
        }
        self.behind_bridges.as_deref().unwrap_or_default()
    }

    fn find_behind_bridges(&mut self) -> Vec<Elsewhere> {
        let inner = inner_networks().unwrap_or_default();
        let behind = |address: &IpAddr| inner.iter().any(|net| net.contains(address));
        let mut found = Vec::new();
        if inner.is_empty() {
            return found;
        }
        self.load();
        for space in self.spaces.iter().flatten() {
            let there = in_namespace(Some(&space.path), addresses).unwrap_or_default();
            let Some(own) = there.iter().map(|(_, net)| net.addr()).find(behind) else { continue };
            let reached = |of: &&Listener| of.address.is_unspecified() || behind(&of.address);
            for listener in space.listeners.iter().filter(reached) {
                if found.len() >= FOUND_MAX {
                    return found;
                }
                found.push(Elsewhere { address: own, ..self.server(space, listener) });
            }
        }
        found
    }

    fn load(&mut self) {
        if self.spaces.is_some() {
            return;
        }
        let list = |(pid, path): (u32, PathBuf)| {
            let mut listeners = Vec::new();
            SockDiag::open(Some(&path)).and_then(|mut diag| diag.list(&mut listeners)).ok()?;
            Some(Space { pid, path, listeners })
        };
        let spaces: Vec<_> = others(&self.proc).into_iter().filter_map(list).collect();
        let mut finder = Finder::new(&self.proc);
        let inodes = spaces.iter().flat_map(|of| &of.listeners).map(|of| of.inode);
        finder.complete(Nanos::ZERO, &inodes.collect());
        self.holders.clone_from(finder.holders());
        self.spaces = Some(spaces);
    }

    fn server(&self, space: &Space, listener: &Listener) -> Elsewhere {
        let holder = self.holders.get(&listener.inode).and_then(|pids| pids.first());
        let pid = *holder.unwrap_or(&space.pid);
        let there = in_namespace(Some(&space.path), || links(Path::new("/sys")));
        let up = there.unwrap_or_default().into_iter().filter(|link| link.up && link.name != "lo");
        Elsewhere {
            pid,
            name: name(&self.proc, pid),
            namespace: group(&self.proc, pid).unwrap_or_else(|| format!("pid:{pid}")),
            address: listener.address,
            port: listener.port,
            interfaces: up.map(|link| link.name).collect(),
        }
    }
}

/// One process of each network namespace but our own.
fn others(proc: &Path) -> BTreeMap<u32, PathBuf> {
    let inode = |pid: &str| fs::read_link(proc.join(pid).join("ns/net")).ok();
    let mut spaces = BTreeMap::new();
    let own = inode("self");
    for pid in pids(proc) {
        let Some(space) = inode(&pid.to_string()).filter(|space| Some(space) != own.as_ref())
        else {
            continue;
        };
        let first = spaces.entry(space).or_insert(pid);
        *first = pid.min(*first);
        if spaces.len() >= SPACES_MAX {
            break;
        }
    }
    let path = |pid: u32| (pid, proc.join(pid.to_string()).join("ns/net"));
    spaces.into_values().map(path).collect()
}

fn name(proc: &Path, pid: u32) -> String {
    let text = fs::read_to_string(proc.join(pid.to_string()).join("comm"));
    text.unwrap_or_default().trim().to_owned()
}

/// The cgroup (version 2) of a process, if it is one of a container: there is nobody of another network
/// namespace in it.
fn group(proc: &Path, pid: u32) -> Option<String> {
    let text = fs::read_to_string(proc.join(pid.to_string()).join("cgroup")).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(|root| Path::new(root).join(path));
    let path = root.into_iter().find(|path| path.join("cgroup.procs").exists())?;
    let space = |pid: &str| fs::read_link(proc.join(pid).join("ns/net")).ok();
    let own = space(&pid.to_string())?;
    let members = fs::read_to_string(path.join("cgroup.procs")).ok()?;
    let alone = members.lines().all(|member| space(member).is_none_or(|other| other == own));
    alone.then(|| format!("cgroup:{}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_userland_proxy_says_where_its_connections_go() {
        let dir = tempfile::tempdir().unwrap();
        let tells = |line: &str| {
            fs::create_dir_all(dir.path().join("7")).unwrap();
            fs::write(dir.path().join("7/cmdline"), line.replace(' ', "\0")).unwrap();
            forwards_to(dir.path(), 7).map(|to| to.to_string())
        };
        let line = "/usr/bin/docker-proxy -proto tcp -host-ip 0.0.0.0 -host-port 8080 \
                    -container-ip 172.17.0.2 -container-port 80 -use-listen-fd";
        assert_eq!(tells(line).as_deref(), Some("172.17.0.2:80"));
        let named = |name: &str| {
            fs::write(dir.path().join("7/comm"), format!("{name}\n")).unwrap();
            proxied_ports(dir.path(), &[listener(9000, 77), listener(9001, 78)])
        };
        assert_eq!(named("docker-proxy"), [8080].into());
        let beside = [listener(8080, 77), listener(8080, 78), listener(9000, 79)];
        assert_eq!(proxy_sockets(dir.path(), &beside), [77, 78].into(), "nobody may look");
        assert_eq!(named("rootlesskit-doc"), [8080].into());
        assert_eq!(named("nginx"), [].into(), "not looked at");
        assert_eq!(tells("nginx -g daemon"), None);
        assert_eq!(named("docker-proxy"), [].into());
        assert_eq!(tells("x -container-ip 172.17.0.2 -container-port"), None);
        // Podman's: what they hold says it, and an engine that cannot be looked into holds nothing.
        let fd = dir.path().join("7/fd");
        assert_eq!(named("rootlessport"), [].into());
        fs::create_dir(&fd).unwrap();
        for (number, to) in [("0", "/dev/null"), ("5", "socket:[77]"), ("6", "socket:[79]")] {
            std::os::unix::fs::symlink(to, fd.join(number)).unwrap();
        }
        for name in ["rootlessport", "slirp4netns", "pasta.avx2"] {
            assert_eq!(named(name), [9000].into(), "{name}");
        }
        assert_eq!(named("nginx"), [].into(), "holds it, too");
        assert_eq!(proxy_sockets(dir.path(), &beside), [].into());
        assert_eq!(named("pasta"), [9000].into());
        assert_eq!(proxy_sockets(dir.path(), &beside), [77, 79].into());
        // Of another address on the same port is a server.
        tells(line);
        assert_eq!(named("docker-proxy"), [8080].into());
        assert_eq!(proxy_sockets(dir.path(), &beside), [77, 79].into());
    }

    fn listener(port: u16, inode: u32) -> Listener {
        let (queue, limit, v6_only, cgroup_id) = (0, 128, false, None);
        let address = IpAddr::from([0, 0, 0, 0]);
        Listener { address, port, v6_only, queue, limit, inode, cgroup_id }
    }
}
