// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What will happen, told before it happens: the system against the configuration.

mod in_use;
mod place;

pub(crate) use place::{
    Above, above, behind_bridges, inner_bridge, inner_port, is_own_page, listens, listens_here,
    on_top, serves_here, uplinks,
};

use crate::account::{Account, not_written, unreadable};
use crate::cluster;
use crate::exempt;
use crate::flowspec::{alike, password};
use crate::gateways::{open, short_queues};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use tidegate_bpf::{foreign_program, offload_notes, xdp_costs};
use tidegate_config::{Attach, Config, Side, SystemFault};
use tidegate_gate::TlsError;
use tidegate_peer::tls::TlsError as PeerTlsError;
use tidegate_sense::{LinkFacts, Listener, ListenerSource, links, ssh_listeners};

/// BPF_FS_MAGIC, linux/magic.h.
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
/// Where the dataplane mounts a BPF file system by itself.
const BPF_FS: &str = "/sys/fs/bpf";
/// Native XDP of many drivers takes frames of one page only; a larger MTU needs fragments.
const MTU_OF_ONE_PAGE: u32 = 3506;
/// Kinds of links on which the kernel itself runs native XDP.
const NATIVE_KINDS: [&str; 3] = ["veth", "tun", "bond"];

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preflight {
    /// What will be attached where, a line an interface.
    pub notes: Vec<String>,
    /// What does not fit; fatal ones are errors of the configuration.
    pub faults: Vec<SystemFault>,
}

/// Whether the daemon cannot begin with a fault that is an error in `check`. Certificates of peers
/// that are bad, or half renewed, must not keep a host from protecting itself: it begins without
/// peers, warns, and tries again. Likewise those of a gateway.
pub(crate) const fn forbids_to_run(fault: &SystemFault) -> bool {
    fault.fatal()
        && !matches!(
            fault,
            SystemFault::PeerFile { .. }
                | SystemFault::SpeakerMissing { .. }
                | SystemFault::PasswordFile { .. }
                | SystemFault::GatewayFile { .. }
                | SystemFault::UserMissing { .. }
        )
}

/// Where the kernel's files are: arguments, so that tests run on trees of their own.
#[derive(Clone, Copy, Debug)]
pub struct Trees<'a> {
    /// The device model.
    pub sys: &'a Path,
    /// The process file system.
    pub proc: &'a Path,
}

impl Default for Trees<'_> {
    fn default() -> Self {
        Self { sys: Path::new("/sys"), proc: Path::new("/proc") }
    }
}

/// Looks at the system. `listeners` is of the namespace in which the daemon runs.
pub fn examine(
    config: &Config,
    listeners: &mut dyn ListenerSource,
    trees: &Trees<'_>,
) -> Preflight {
    let mut found = Preflight::default();
    match links(trees.sys) {
        Ok(links) => {
            interfaces(config, &links, &foreign_program, &mut found);
            place::sides(config, &links, &mut found);
            place::bridges(config, &links, (&mut *listeners, trees.proc), &mut found);
        }
        Err(error) => found.notes.push(format!("interfaces cannot be looked at: {error}")),
    }
    place::interfaces_elsewhere(config, trees.sys, &mut found);
    if config.interfaces.is_empty() || on_bpffs(&config.daemon.pins) {
        // As it should be: without interfaces nothing is pinned.
    } else if config.daemon.pins.starts_with(BPF_FS) {
        found.notes.push(format!("no BPF file system on {BPF_FS} yet: one will be mounted"));
    } else {
        found.faults.push(SystemFault::PinsNotBpffs { path: config.daemon.pins.clone() });
    }
    user(config, &mut found);
    let node = exempt::node_of(config);
    found.notes.extend(config.exempt.presets.iter().map(|preset| preset.sentence(&node)));
    for service in &config.services {
        if let Some(path) = service.process.cgroup.as_ref().filter(|path| !path.is_dir()) {
            let (service, path) = (service.name.clone(), path.clone());
            found.faults.push(SystemFault::CgroupMissing { service, path });
        }
    }
    if let Err(PeerTlsError { path, why }) = cluster::examine(config) {
        found.faults.push(SystemFault::PeerFile { path, why });
    }
    routers(config, &mut found);
    place::listeners(config, listeners, trees.proc, &mut found);
    let told = open(config).into_iter().chain(short_queues(config, trees.proc));
    found.faults.extend(told.map(|(_, fault)| fault));
    gateways(config, listeners, trees.proc, &mut found);
    match ssh_listeners(listeners, trees.proc) {
        Ok(ssh) => found.faults.extend(on_ssh(config, &ssh)),
        Err(error) => found.notes.push(format!("ssh servers cannot be looked for: {error}")),
    }
    found
}

/// What the BGP speaker needs, and whom routers refuse that this host would not.
fn routers(config: &Config, found: &mut Preflight) {
    let Some(flowspec) = &config.flowspec else { return };
    if !flowspec.shadow {
        let named = flowspec.program.clone().unwrap_or_else(|| flowspec.speaker.program().into());
        if !is_program(&named) {
            found.faults.push(SystemFault::SpeakerMissing { program: named });
        }
    }
    for peer in &flowspec.peers {
        if let Err(why) = password(peer) {
            found.faults.push(SystemFault::PasswordFile { peer: peer.name.clone(), why });
        }
    }
    let alike = alike(config).into_iter();
    found.faults.extend(alike.map(|(index, whose)| SystemFault::RouteForAll { index, whose }));
}

/// Whether there is such a program, at this path or in a directory of PATH.
fn is_program(named: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let runs = |path: &Path| {
        path.metadata()
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    if named.is_absolute() {
        runs(named)
    } else {
        std::env::split_paths(&path).any(|directory| runs(&directory.join(named)))
    }
}

/// As whom the daemon will run, and what it cannot read then. What is wrong with a file for everybody is
/// said elsewhere.
fn user(config: &Config, found: &mut Preflight) {
    let account = match Account::configured(config) {
        Ok(account) => account,
        Err(error) => return found.notes.push(format!("daemon.user cannot be looked up: {error}")),
    };
    if let (Some(name), None) = (&config.daemon.user, &account) {
        found.faults.push(SystemFault::UserMissing { name: name.clone() });
    }
    let account = account.filter(|account| account.uid() != 0);
    if account.is_none() {
        let directories = not_written(config).into_iter();
        found.faults.extend(directories.map(|directory| SystemFault::NotKept { directory }));
    }
    let named = config.files();
    let files: BTreeSet<&Path> = named.iter().map(|(_, file)| *file).collect();
    let denied = match unreadable(account.as_ref(), &Vec::from_iter(files)) {
        Ok(failed) => failed,
        Err(error) => {
            let text =
                format!("whether its files can be read after the start is not known: {error}");
            return found.notes.push(text);
        }
    };
    let root = "root without capabilities".to_owned();
    let user = account.as_ref().map_or(root, |account| format!("the user {}", account.name()));
    for (path, error) in denied.iter().filter(|(_, error)| is_denied(error)) {
        let keys = named.iter().filter(|(_, file)| file == path);
        found.faults.extend(keys.map(|(at, file)| SystemFault::Unreadable {
            at: at.clone(),
            path: file.to_path_buf(),
            user: user.clone(),
            why: error.to_string(),
        }));
    }
}

fn is_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// The addresses of services on which an ssh server listens: they must never be shed, so a service
/// there is an error of the configuration and not a guess against it. What only sshd_config names
/// is no listener and does not count here.
pub(crate) fn on_ssh(config: &Config, ssh: &[Listener]) -> Vec<SystemFault> {
    let mut faults = Vec::new();
    for service in &config.services {
        for (index, listen) in service.listen.iter().enumerate() {
            if ssh.iter().any(|listener| listener.serves(listen).is_some()) {
                let (service, port) = (service.name.clone(), listen.port);
                faults.push(SystemFault::ListensOnSsh { service, index, port });
            }
        }
    }
    faults
}

/// The name of the program with this number, where it is not ours.
type Foreign<'a> = &'a dyn Fn(u32) -> io::Result<Option<String>>;

fn interfaces(config: &Config, links: &[LinkFacts], foreign: Foreign<'_>, found: &mut Preflight) {
    let present: BTreeMap<&str, &LinkFacts> =
        links.iter().map(|link| (link.name.as_str(), link)).collect();
    for interface in config.interfaces.iter().filter(|interface| interface.namespace.is_none()) {
        match present.get(interface.name.as_str()) {
            Some(link) if interface.side == Side::Servers => {
                found.notes.push(format!("{}: to the servers, no hook, watched", link.name));
            }
            Some(link) => {
                found.notes.push(note(link, interface.attach));
                if matches!(interface.attach, Attach::Xdp | Attach::XdpGeneric) {
                    let answers = config.replies.rst_per_second > 0;
                    found.notes.extend(offload_notes(&link.name, answers));
                }
                found.faults.extend(foreign_xdp(link, interface.attach, foreign));
                found.faults.extend(doubts(link, interface.attach));
            }
            None => found.faults.push(SystemFault::InterfaceMissing {
                name: interface.name.clone(),
                present: present.keys().map(|name| (*name).to_owned()).collect(),
            }),
        }
    }
}

/// XDP, native or generic, takes one program, and that of somebody else is never replaced. Where
/// the kernel does not tell whose it is (it has just gone, or we may not look), attaching will say.
fn foreign_xdp(link: &LinkFacts, attach: Attach, foreign: Foreign<'_>) -> Option<SystemFault> {
    if !matches!(attach, Attach::Xdp | Attach::XdpGeneric) {
        return None;
    }
    let id = link.xdp_program?;
    let name = foreign(id).ok()??;
    let program = format!("{id} {name}").trim_end().to_owned();
    Some(SystemFault::ForeignXdp { interface: link.name.clone(), program })
}

fn note(link: &LinkFacts, attach: Attach) -> String {
    let driver = match (&link.driver, &link.kind) {
        (Some(driver), _) => format!("driver {driver}"),
        (None, Some(kind)) => format!("virtual ({kind})"),
        (None, None) => "no driver of its own".into(),
    };
    let state = if link.up { "up" } else { "down" };
    let bond = link.kind.as_deref().filter(|kind| *kind == "bond").map(|_| "bonding");
    let costs =
        link.driver.as_deref().or(bond).and_then(|driver| xdp_costs(driver, bond.is_none()));
    let what = match attach {
        Attach::Xdp => "native XDP or an error",
        Attach::XdpGeneric => "generic XDP, as asked for: slower",
        Attach::Auto | Attach::Tcx => "tcx (clsact before Linux 6.6)",
    };
    let mut note =
        format!("{}: {driver}, MTU {}, {state}; will attach {what}", link.name, link.mtu);
    if link.plain {
        note += "; its packets have no Ethernet header, so XDP is not possible";
    } else if let (Attach::Auto | Attach::Xdp, Some(costs)) = (attach, costs) {
        note += &format!("; native XDP (attach: xdp) costs: {costs}");
    }
    if let Some(id) = link.xdp_program {
        note += &format!(
            "; XDP program {id} is attached now (ours is adopted, a foreign one is left alone)"
        );
    }
    if link.mtu > MTU_OF_ONE_PAGE && what.contains("XDP") {
        note += "; large frames arrive in fragments, which the program takes";
    }
    note
}

/// Whether there may be native XDP: on hardware, and on some virtual links.
fn has_native_xdp(link: &LinkFacts) -> bool {
    let kind = link.kind.as_deref();
    link.driver.is_some() || kind.is_some_and(|kind| NATIVE_KINDS.contains(&kind))
}

/// Why nothing is seen there, or not all of it is refused, as the link stands.
fn doubts(link: &LinkFacts, attach: Attach) -> impl Iterator<Item = SystemFault> {
    let LinkFacts { name, kind, .. } = link;
    let native = has_native_xdp(link);
    let xdp = attach == Attach::Xdp;
    let down = (!link.up)
        .then(|| format!("{name} is down, so no connection comes by it: `ip link set {name} up`"));
    let none = (xdp && !native).then(|| {
        format!("{name} has probably no native XDP, and without it the daemon does not start: write `attach: auto`")
    });
    let lost = (xdp && kind.as_deref() == Some("veth")).then(|| {
        format!(
            "a RST from native XDP on the veth {name} is lost where its peer has neither GRO nor an XDP \
             program: write `attach: auto`, or `replies.rst_per_second: 0`"
        )
    });
    let fault = |why| SystemFault::Unprotected { interface: name.clone(), why };
    [down, none, lost].map(|why| why.map(fault)).into_iter().flatten()
}

/// The directory itself may not exist yet: then its nearest ancestor counts.
fn on_bpffs(path: &Path) -> bool {
    path.ancestors()
        .find_map(|path| rustix::fs::statfs(path).ok())
        .is_some_and(|stat| stat.f_type as u64 == BPF_FS_MAGIC)
}

/// Gateways whose certificate cannot be used, and those of whose addresses one is taken. Likewise agent-checks.
fn gateways(
    config: &Config,
    listeners: &mut dyn ListenerSource,
    proc: &Path,
    found: &mut Preflight,
) {
    let used = in_use::Used::look(listeners, proc);
    for gateway in &config.gateways {
        if let Some(Err(error)) = gateway.tls.as_ref().map(tidegate_gate::examine_tls) {
            let (gateway, TlsError { path, why }) = (gateway.name.clone(), error);
            found.faults.push(SystemFault::GatewayFile { gateway, path, why });
        }
        for (key, endpoint) in gateway.endpoints() {
            let taken =
                if key == "listen" { used.stream(endpoint) } else { used.datagrams(endpoint) };
            if taken {
                let (gateway, endpoint) = (gateway.name.clone(), endpoint.clone());
                found.faults.push(SystemFault::GatewayInUse { gateway, key, endpoint });
            }
        }
    }
    for service in &config.services {
        let endpoint = service.agent_check.as_ref().map(|agent| &agent.listen);
        if let Some(endpoint) = endpoint.filter(|endpoint| used.stream(endpoint)) {
            let (service, endpoint) = (service.name.clone(), endpoint.clone());
            found.faults.push(SystemFault::AgentInUse { service, endpoint });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers;
    use std::fs;
    use tidegate_config::{Registry, parse};

    fn config(text: &str) -> Config {
        let registry = Registry::new(["fresh_first"], controllers::NAMES);
        parse(text, &registry).unwrap_or_else(|error| panic!("{error}"))
    }

    struct Sshd(Listener);
    impl ListenerSource for Sshd {
        fn list(&mut self, into: &mut Vec<Listener>) -> io::Result<()> {
            into.clear();
            into.push(self.0);
            Ok(())
        }
    }

    #[test]
    fn a_bad_certificate_of_peers_takes_no_local_protection_down() {
        let file = SystemFault::PeerFile { path: "/x.pem".into(), why: "half".into() };
        assert!(file.fatal() && !forbids_to_run(&file), "an error in check, a warning in run");
        assert!(forbids_to_run(&SystemFault::PinsNotBpffs { path: "/x".into() }));
    }

    #[test]
    fn what_the_speaker_needs_and_whom_routers_refuse_is_told() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        let found = |program: &str, more: &str| {
            let text = format!(
                "interfaces: [{{name: lo}}]\n{more}flowspec:\n  speaker: gobgp\n  program: {program}\n  as: 65001\n  \
                 router_id: 192.0.2.11\n  export: [{{service: shop}}]\n  peers: {{r1: {{address: 192.0.2.1, \
                 local: 192.0.2.11, as: 65002, password_file: {}}}}}\n",
                file.display()
            );
            let mut found = Preflight::default();
            routers(&config(&text), &mut found);
            assert!(found.faults.iter().all(|fault| !forbids_to_run(fault)), "{:?}", found.faults);
            found.faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        let shop = "services: {shop: {mode: enforce, listen: ['192.0.2.11:80']}}\n";
        let told = found("/nonexistent/gobgpd", shop);
        assert!(
            told.contains("/nonexistent/gobgpd is not there") && told.contains("No such file"),
            "{told}"
        );
        for (text, mode, wrong) in [
            ("secret\n", 0o600, ""),
            ("secret", 0o640, ""),
            ("secret\n", 0o644, "others may read it (mode 644)"),
            ("secret\n", 0o660, "others may read it (mode 660)"),
            ("two words\n", 0o600, "it is no password"),
            ("", 0o600, "it is no password"),
        ] {
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            let told = found("/bin/sh", shop);
            assert!(
                if wrong.is_empty() { told.is_empty() } else { told.contains(wrong) },
                "{told}"
            );
        }
        // A pipe that nobody writes is not waited for.
        fs::remove_file(&file).unwrap();
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let told = found("/bin/sh", shop);
        assert!(told.contains("it is no file"), "{told}");
        fs::remove_file(&file).unwrap();
        fs::write(&file, "secret\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let classes = "exempt: {sources: [192.0.2.0/24]}\nservices: {shop: {mode: enforce, listen: ['192.0.2.11:80'], \
                       classes: [{name: gold, priority: 0, sources: [198.51.100.0/24]}]}}\n";
        let told = found("/bin/sh", classes);
        assert!(told.contains("refuses exempt sources and connections of its classes"), "{told}");
    }

    /// Needs root: `check` as another user stays that user.
    #[test]
    fn files_that_the_daemons_user_cannot_read_are_told() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let file = |name: &str, mode: u32| {
            let path = dir.path().join(name);
            fs::write(&path, "x").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path.display().to_string()
        };
        let (open, closed) = (file("open", 0o644), file("closed", 0o600));
        let text = |user: &str| {
            format!(
                "services: {{shop: {{mode: shadow}}}}\ndaemon: {{{user}}}\ngateways:\n  edge:\n    adapter: traefik\n    \
                 listen: 192.0.2.1:9470\n    routes: [{{service: shop}}]\n    \
                 tls: {{certificate: {open}, key: {closed}, ca_file: {open}}}\n"
            )
        };
        let found = |user: &str| {
            let mut found = Preflight::default();
            super::user(&config(&text(user)), &mut found);
            assert!(found.notes.is_empty(), "{:?}", found.notes);
            found.faults
        };
        let [fault @ SystemFault::Unreadable { at, user, .. }] = &found("user: nobody")[..] else {
            panic!("{:?}", found("user: nobody"))
        };
        assert_eq!((&**at, &**user), ("gateways.edge.tls.key", "the user nobody"));
        assert!(!fault.fatal() && fault.to_string().contains("cannot read this"), "{fault}");
        assert_eq!(found(""), [], "root reads its own without a capability");
        assert_eq!(found("user: root"), []);
    }

    /// A unit with `User=`, and a configuration that was written without a user. Needs root.
    #[test]
    fn a_directory_that_the_daemon_cannot_write_in_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let found = |user: &str| {
            let socket = dir.path().join("control.sock");
            let text = format!(
                "interfaces: [{{name: lo}}]\nservices: {{shop: {{mode: shadow, listen: ['*:80']}}}}\n\
                 daemon: {{{user}socket: {}}}\n",
                socket.display()
            );
            let mut found = Preflight::default();
            super::user(&config(&text), &mut found);
            found.faults
        };
        assert_eq!(found(""), [], "root's own");
        std::os::unix::fs::chown(dir.path(), Some(65_534), Some(65_534)).unwrap();
        for user in ["", "user: root, "] {
            let [fault @ SystemFault::NotKept { directory }] = &found(user)[..] else {
                panic!("{user:?}: {:?}", found(user))
            };
            assert_eq!(directory, dir.path());
            assert!(!fault.fatal() && fault.to_string().contains("keeps nothing there"), "{fault}");
        }
        assert_eq!(found("user: nobody, "), []);
    }

    #[test]
    fn a_service_where_an_ssh_server_listens_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("7/fd")).unwrap();
        fs::write(dir.path().join("7/comm"), "sshd\n").unwrap();
        std::os::unix::fs::symlink("socket:[70]", dir.path().join("7/fd/3")).unwrap();
        let mut sshd = Sshd(Listener {
            address: "192.0.2.1".parse().unwrap(),
            port: 2222,
            v6_only: false,
            queue: 0,
            limit: 1,
            inode: 70,
            cgroup_id: None,
        });
        let text = "interfaces: [{name: lo}]\nservices:\n  git: {mode: enforce, \
                    listen: ['192.0.2.9:2222', '*:80', '*:2222']}\n";
        let config = config(text);
        let trees = Trees { proc: dir.path(), ..Trees::default() };
        let found = examine(&config, &mut sshd, &trees);
        let fatal = found.faults.iter().filter(|f| matches!(f, SystemFault::ListensOnSsh { .. }));
        let wanted = SystemFault::ListensOnSsh { service: "git".into(), index: 2, port: 2222 };
        assert_eq!(Vec::from_iter(fatal), [&wanted], "another address or port is the service's");
    }

    /// By stream and by datagram, at addresses and paths; what is bound and does not serve is no obstacle.
    #[test]
    fn addresses_of_gateways_and_agent_checks_that_are_taken_are_told() {
        let mut taken = Sshd(Listener {
            address: "0.0.0.0".parse().unwrap(),
            port: 9470,
            v6_only: false,
            queue: 0,
            limit: 1,
            inode: 70,
            cgroup_id: None,
        });
        let proc = tempfile::tempdir().unwrap();
        let table = |name: &str, text: &str| {
            fs::create_dir_all(proc.path().join("net")).unwrap();
            fs::write(proc.path().join("net").join(name), text).unwrap();
        };
        table("udp", "  sl  local_address rem_address\n   7: 0100007F:2500 00000000:0000 07 0 0\n");
        table(
            "udp6",
            "  sl  local_address\n  8: 00000000000000000000000000000000:2501 0:0 07\n  9: odd\n",
        );
        table(
            "unix",
            "Num       RefCount Protocol Flags    Type St Inode Path\n\
             0: 00000002 00000000 00010000 0001 01 11 /run/tidegate/s.sock\n\
             0: 00000003 00000000 00000000 0001 03 12 /run/tidegate/left.sock\n\
             0: 00000002 00000000 00000000 0002 01 13 /run/a log.sock\n\
             0: 00000002 00000000 00000000 0002 01 14\n",
        );
        let text = "interfaces: [{name: lo}]
services:
  shop: {mode: shadow}
  told: {mode: enforce, listen: ['*:80'], agent_check: {listen: '127.0.0.2:9470'}}
gateways:
  edge: {adapter: envoy, listen: '127.0.0.1:9470', routes: [{service: shop}]}
  mesh: {adapter: envoy, listen: '192.0.2.1:9471', insecure: true, routes: [{service: shop}]}
  four: {adapter: nginx, listen: '127.0.0.1:9472', completions: '127.0.0.1:9472', routes: [{service: shop}]}
  six: {adapter: nginx, listen: '127.0.0.1:9473', completions: '127.0.0.1:9473', routes: [{service: shop}]}
  free: {adapter: nginx, listen: '127.0.0.1:9474', completions: '127.0.0.1:9474', routes: [{service: shop}]}
  sock: {adapter: nginx, listen: 'unix:/run/tidegate/s.sock', completions: 'unix:/run/a log.sock', routes: [{service: shop}]}
  left: {adapter: envoy, listen: 'unix:/run/tidegate/left.sock', routes: [{service: shop}]}
";
        let mut found = Preflight::default();
        gateways(&config(text), &mut taken, proc.path(), &mut found);
        let told: Vec<_> = found
            .faults
            .iter()
            .map(|fault| match fault {
                SystemFault::GatewayInUse { gateway, key, .. } => format!("{gateway} {key}"),
                SystemFault::AgentInUse { service, .. } => format!("{service} agent_check"),
                other => panic!("{other}"),
            })
            .collect();
        assert_eq!(
            told,
            [
                "edge listen",
                "four completions",
                "six completions",
                "sock listen",
                "sock completions",
                "told agent_check",
            ]
        );
        let first = found.faults[0].to_string();
        assert!(first.contains("127.0.0.1:9470, where somebody listens already"), "{first}");
        assert!(found.faults.iter().all(|fault| !fault.fatal()));
    }

    #[test]
    fn an_xdp_program_of_somebody_else_is_an_error_where_xdp_alone_is_asked_for() {
        // 7 is a stranger's, 8 one without a name, 9 ours; of the others nothing is known.
        let foreign = |id: u32| -> io::Result<Option<String>> {
            match id {
                7 => Ok(Some("stranger".into())),
                8 => Ok(Some(String::new())),
                9 => Ok(None),
                _ => Err(io::ErrorKind::PermissionDenied.into()),
            }
        };
        let program = |attach: &str, id: Option<u32>| {
            let text = format!(
                "interfaces: [{{name: lo}}, {{name: eth7, attach: {attach}}}]\n\
                 services: {{web: {{mode: enforce, listen: ['*:80']}}}}\n"
            );
            let links = ["lo", "eth7"].map(|name| LinkFacts {
                name: name.into(),
                xdp_program: id.filter(|_| name == "eth7"),
                driver: Some("mlx5_core".into()),
                up: true,
                ..LinkFacts::default()
            });
            let mut found = Preflight::default();
            interfaces(&config(&text), &links, &foreign, &mut found);
            assert_eq!(found.notes.len(), 2);
            match found.faults.as_slice() {
                [] => None,
                [fault @ SystemFault::ForeignXdp { interface, program }] => {
                    assert!(interface == "eth7" && forbids_to_run(fault));
                    Some(program.clone())
                }
                other => panic!("{other:?}"),
            }
        };
        for (attach, id, wanted) in [
            ("xdp", Some(7), Some("7 stranger")),
            ("xdp-generic", Some(7), Some("7 stranger")),
            ("xdp", Some(8), Some("8")),
            ("auto", Some(7), None),
            ("tcx", Some(7), None),
            ("xdp", Some(9), None),
            ("xdp", Some(1), None),
            ("xdp", None, None),
        ] {
            assert_eq!(program(attach, id).as_deref(), wanted, "{attach} {id:?}");
        }
    }

    /// What is not protected as it stands is a warning, not one of many lines about what is.
    #[test]
    fn a_link_by_which_nothing_comes_is_a_warning() {
        let link = |kind: &str, up: bool| LinkFacts {
            name: "x0".into(),
            kind: Some(kind.to_owned()).filter(|kind| !kind.is_empty()),
            driver: Some("mlx5_core".to_owned()).filter(|_| kind.is_empty()),
            up,
            ..LinkFacts::default()
        };
        let told = |link: &LinkFacts, attach| {
            let all: Vec<SystemFault> = doubts(link, attach).collect();
            assert!(all.iter().all(|fault| !fault.fatal()));
            all.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(told(&link("", true), Attach::Xdp), "");
        assert!(told(&link("", false), Attach::Auto).contains("is down"));
        assert!(told(&link("vlan", true), Attach::Xdp).contains("no native XDP"));
        assert_eq!(told(&link("vlan", true), Attach::Auto), "");
        assert!(told(&link("veth", true), Attach::Xdp).contains("RST"));
        assert_eq!(told(&link("veth", true), Attach::Tcx), "");
    }

    /// The same hook that the daemon takes, and what concerns XDP only where it may be taken.
    #[test]
    fn the_note_of_a_link_names_the_hook_that_is_taken() {
        let of = |kind: &str, driver: &str| LinkFacts {
            name: "x0".into(),
            kind: Some(kind.to_owned()).filter(|kind| !kind.is_empty()),
            driver: Some(driver.to_owned()).filter(|driver| !driver.is_empty()),
            mtu: 9000,
            up: true,
            ..LinkFacts::default()
        };
        for (link, attach, xdp) in [
            (of("bridge", ""), Attach::Auto, false),
            (of("vlan", ""), Attach::Auto, false),
            (of("", ""), Attach::Auto, false),
            (of("", "mlx5_core"), Attach::Auto, false),
            (of("bond", ""), Attach::Auto, false),
            (of("veth", ""), Attach::Auto, false),
            (of("tun", ""), Attach::Auto, false),
            (of("", "a_driver_of_tomorrow"), Attach::Auto, false),
            (of("", "mlx5_core"), Attach::Xdp, true),
            (of("", "mlx5_core"), Attach::XdpGeneric, true),
            (of("", "mlx5_core"), Attach::Tcx, false),
        ] {
            let told = note(&link, attach);
            let takes_tcx = told.contains("will attach tcx");
            assert_eq!(takes_tcx, !xdp, "{told}");
            assert_eq!(told.contains("large frames"), xdp, "{told}");
        }
    }
}
