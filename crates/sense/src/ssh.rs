// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ports on which ssh really listens: they are exempt.

use crate::finder::{Finder, pids};
use crate::listeners::{Listener, ListenerSource};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use tidegate_units::Nanos;

/// Names of ssh servers, as the kernel shows them (the first 15 characters).
const SERVERS: [&str; 4] = ["sshd", "sshd-session", "dropbear", "tinysshd"];
/// The port of ssh.
const SSH_PORT: u16 = 22;
/// Most bytes of one configuration file that are read.
const CONFIG_MAX: u64 = 256 * 1024;
/// Most files that are included.
const INCLUDES_MAX: usize = 64;

/// The ports on which an ssh server listens in the namespace of `listeners`, those that its
/// configuration (`etc`/ssh/sshd_config and sshd_config.d) names, and 22; rising.
///
/// The configuration counts too, because a service manager may hold the socket for it, and because
/// an sshd that is about to be restarted will listen there.
///
/// # Errors
/// When the listeners cannot be listed; the caller then still has 22 and what is configured.
pub fn ssh_ports(
    listeners: &mut dyn ListenerSource,
    proc: &Path,
    etc: &Path,
) -> (BTreeSet<u16>, io::Result<()>) {
    let mut ports = configured(etc);
    ports.insert(SSH_PORT);
    let listed = ssh_listeners(listeners, proc)
        .map(|found| ports.extend(found.iter().map(|listener| listener.port)));
    (ports, listed)
}

/// The sockets on which an ssh server really listens in the namespace of `listeners`; those of
/// processes into which we may not look are missing.
///
/// # Errors
/// When the listeners cannot be listed.
pub fn ssh_listeners(listeners: &mut dyn ListenerSource, proc: &Path) -> io::Result<Vec<Listener>> {
    let mut all = Vec::new();
    listeners.list(&mut all)?;
    let servers: BTreeSet<u32> =
        pids(proc).into_iter().filter(|pid| is_server(proc, *pid)).collect();
    if servers.is_empty() {
        return Ok(Vec::new());
    }
    let mut finder = Finder::new(proc);
    finder.complete(Nanos::ZERO, &all.iter().map(|listener| listener.inode).collect());
    all.retain(|listener| {
        let holders = finder.holders().get(&listener.inode);
        holders.is_some_and(|holders| !holders.is_disjoint(&servers))
    });
    Ok(all)
}

fn is_server(proc: &Path, pid: u32) -> bool {
    fs::read_to_string(proc.join(pid.to_string()).join("comm"))
        .is_ok_and(|comm| SERVERS.contains(&comm.trim()))
}

fn configured(etc: &Path) -> BTreeSet<u16> {
    let ssh = etc.join("ssh");
    let mut files = vec![ssh.join("sshd_config")];
    let more = fs::read_dir(ssh.join("sshd_config.d")).into_iter().flatten().flatten();
    files.extend(more.map(|entry| entry.path()).take(INCLUDES_MAX));
    let mut ports = BTreeSet::new();
    for file in files {
        let small = fs::metadata(&file).is_ok_and(|meta| meta.len() <= CONFIG_MAX);
        if let Some(text) = small.then(|| fs::read_to_string(file).ok()).flatten() {
            ports.extend(text.lines().filter_map(port_of));
        }
    }
    ports
}

/// `Port 2222`, `ListenAddress 192.0.2.1:2222`, `ListenAddress [2001:db8::1]:2222`.
fn port_of(line: &str) -> Option<u16> {
    let mut words = line.split(|c: char| c.is_whitespace() || c == '=').filter(|w| !w.is_empty());
    let (key, value) = (words.next()?, words.next()?);
    match key.to_ascii_lowercase().as_str() {
        "port" => value.parse().ok(),
        "listenaddress" => match value.rsplit_once(':')? {
            (host, port) if host.ends_with(']') || !host.contains(':') => port.parse().ok(),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(Vec<Listener>);
    impl ListenerSource for Fixed {
        fn list(&mut self, into: &mut Vec<Listener>) -> io::Result<()> {
            into.clone_from(&self.0);
            Ok(())
        }
    }

    #[test]
    fn ports_come_from_the_sockets_of_sshd_and_from_its_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let (proc, etc) = (dir.path().join("proc"), dir.path().join("etc"));
        for (pid, comm, inode) in [(7, "sshd", 70), (8, "nginx", 80)] {
            let path = proc.join(pid.to_string());
            fs::create_dir_all(path.join("fd")).unwrap();
            fs::write(path.join("comm"), format!("{comm}\n")).unwrap();
            std::os::unix::fs::symlink(format!("socket:[{inode}]"), path.join("fd/3")).unwrap();
        }
        fs::create_dir_all(etc.join("ssh/sshd_config.d")).unwrap();
        let config = "# Port 1\nPort 2200\nListenAddress 192.0.2.1:2201\nListenAddress ::1\n";
        fs::write(etc.join("ssh/sshd_config"), config).unwrap();
        fs::write(etc.join("ssh/sshd_config.d/a.conf"), "ListenAddress [::1]:2202\n").unwrap();
        let listener = |port, inode| Listener {
            address: "0.0.0.0".parse().unwrap(),
            port,
            v6_only: false,
            queue: 0,
            limit: 1,
            inode,
            cgroup_id: None,
        };
        let mut source = Fixed(vec![listener(4022, 70), listener(80, 80)]);
        let (ports, listed) = ssh_ports(&mut source, &proc, &etc);
        listed.unwrap();
        assert_eq!(Vec::from_iter(ports), [22, 2200, 2201, 2202, 4022]);
        let real = ssh_listeners(&mut source, &proc).unwrap();
        assert_eq!(real, [listener(4022, 70)], "what is only configured is no listener");
    }
}
