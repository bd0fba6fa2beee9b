// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a server listens that does not listen here: in the network namespace of a container, perhaps
//! behind a userland proxy of the container's engine. For `check`, which may take its time.

use crate::finder::{Finder, pids};
use crate::link::links;
use crate::listeners::{Listener, ListenerSource, SockDiag};
use crate::netns::in_namespace;
use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use tidegate_model::Listen;
use tidegate_units::Nanos;

/// Most other namespaces that are looked into.
const SPACES_MAX: usize = 256;
/// Most servers that are named.
const FOUND_MAX: usize = 3;

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
    let line = fs::read(proc.join(pid.to_string()).join("cmdline")).ok()?;
    let words: Vec<&str> =
        line.split(|byte| *byte == 0).filter_map(|word| std::str::from_utf8(word).ok()).collect();
    let after = |option: &str| {
        let at = words.iter().position(|word| word.trim_start_matches('-') == option)?;
        words.get(at + 1)
    };
    let address: IpAddr = after("container-ip")?.parse().ok()?;
    Some(SocketAddr::new(address, after("container-port")?.parse().ok()?))
}

/// Servers that listen on this port in other network namespaces, those that have the address first of
/// all. Namespaces that may not be entered are left out.
#[must_use]
pub fn listening_elsewhere(proc: &Path, listen: &Listen) -> Vec<Elsewhere> {
    let mut found = Vec::new();
    for (pid, path) in others(proc) {
        let Some(address) = listen.address.filter(|address| !address.is_unspecified()) else {
            found.extend(servers(proc, (pid, &path), listen));
            continue;
        };
        // Only who has an address can bind to it.
        let has = in_namespace(Some(&path), || UdpSocket::bind((address, 0))).is_ok();
        if has {
            found.extend(servers(proc, (pid, &path), listen));
        }
    }
    found.truncate(FOUND_MAX);
    found
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

fn servers(proc: &Path, (pid, path): (u32, &Path), listen: &Listen) -> Option<Elsewhere> {
    let mut all = Vec::new();
    SockDiag::open(Some(path)).ok()?.list(&mut all).ok()?;
    let listener = all.iter().find(|listener| listener.serves(listen).is_some())?;
    let (pid, name) = holder(proc, listener).unwrap_or_else(|| (pid, name(proc, pid)));
    let there = in_namespace(Some(path), || links(Path::new("/sys"))).unwrap_or_default();
    let up = there.into_iter().filter(|link| link.up && link.name != "lo");
    Some(Elsewhere {
        pid,
        name,
        namespace: group(proc, pid).unwrap_or_else(|| format!("pid:{pid}")),
        address: listener.address,
        port: listener.port,
        interfaces: up.map(|link| link.name).collect(),
    })
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
        assert_eq!(tells("nginx -g daemon"), None);
        assert_eq!(tells("x -container-ip 172.17.0.2 -container-port"), None);
    }
}
