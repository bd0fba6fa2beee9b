// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What will happen, told before it happens: the system against the configuration.

use std::collections::BTreeMap;
use std::path::Path;
use tidegate_model::intent::{Attach, Config, SystemFault};
use tidegate_sense::{LinkFacts, ListenerSource, links};

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
    /// What does not fit; fatal ones forbid to run.
    pub faults: Vec<SystemFault>,
}

/// Looks at the system. `listeners` is of the namespace in which the daemon runs.
pub fn examine(config: &Config, listeners: &mut dyn ListenerSource, sys: &Path) -> Preflight {
    let mut found = Preflight::default();
    match links(sys) {
        Ok(links) => interfaces(config, &links, &mut found),
        Err(error) => found.notes.push(format!("interfaces cannot be looked at: {error}")),
    }
    if on_bpffs(&config.daemon.pins) {
        // As it should be.
    } else if config.daemon.pins.starts_with(BPF_FS) {
        found.notes.push(format!("no BPF file system on {BPF_FS} yet: one will be mounted"));
    } else {
        found.faults.push(SystemFault::PinsNotBpffs { path: config.daemon.pins.clone() });
    }
    for service in &config.services {
        if let Some(path) = service.process.cgroup.as_ref().filter(|path| !path.is_dir()) {
            let (service, path) = (service.name.clone(), path.clone());
            found.faults.push(SystemFault::CgroupMissing { service, path });
        }
    }
    nothing_listens(config, listeners, &mut found);
    found
}

fn interfaces(config: &Config, links: &[LinkFacts], found: &mut Preflight) {
    let present: BTreeMap<&str, &LinkFacts> =
        links.iter().map(|link| (link.name.as_str(), link)).collect();
    for interface in &config.interfaces {
        match present.get(interface.name.as_str()) {
            Some(link) => found.notes.push(note(link, interface.attach)),
            None => found.faults.push(SystemFault::InterfaceMissing {
                name: interface.name.clone(),
                present: present.keys().map(|name| (*name).to_owned()).collect(),
            }),
        }
    }
}

fn note(link: &LinkFacts, attach: Attach) -> String {
    let driver = match (&link.driver, &link.kind) {
        (Some(driver), _) => format!("driver {driver}"),
        (None, Some(kind)) => format!("virtual ({kind})"),
        (None, None) => "no driver of its own".into(),
    };
    let state = if link.up { "up" } else { "down" };
    let what = match attach {
        Attach::Auto => "native XDP if the driver can, else tcx (clsact before Linux 6.6)",
        Attach::Xdp => "native XDP or an error",
        Attach::XdpGeneric => "generic XDP, as asked for: slower",
        Attach::Tcx => "tcx (clsact before Linux 6.6)",
    };
    let mut note =
        format!("{}: {driver}, MTU {}, {state}; will attach {what}", link.name, link.mtu);
    if let Some(id) = link.xdp_program {
        note += &format!(
            "; XDP program {id} is attached now (ours is adopted, a foreign one is left alone)"
        );
    }
    let native = link.driver.is_some()
        || link.kind.as_deref().is_some_and(|kind| NATIVE_KINDS.contains(&kind));
    if attach == Attach::Xdp && !native {
        note += "; this link has probably no native XDP";
    }
    if link.mtu > MTU_OF_ONE_PAGE && attach != Attach::Tcx {
        note += "; large frames arrive in fragments, which the program takes";
    }
    note
}

/// The directory itself may not exist yet: then its nearest ancestor counts.
fn on_bpffs(path: &Path) -> bool {
    path.ancestors()
        .find_map(|path| rustix::fs::statfs(path).ok())
        .is_some_and(|stat| stat.f_type as u64 == BPF_FS_MAGIC)
}

fn nothing_listens(config: &Config, listeners: &mut dyn ListenerSource, found: &mut Preflight) {
    let mut all = Vec::new();
    if let Err(error) = listeners.list(&mut all) {
        found.notes.push(format!("listeners cannot be looked at: {error}"));
        return;
    }
    for service in &config.services {
        for (index, listen) in service.listen.iter().enumerate() {
            let mut serving = all.iter().filter(|listener| listener.port == listen.port);
            let open = serving.any(|listener| {
                listener.address.is_unspecified()
                    || listen.address.is_none_or(|a| a.is_unspecified() || a == listener.address)
            });
            if !open {
                let service = service.name.clone();
                found.faults.push(SystemFault::NothingListens { service, index });
            }
        }
    }
}
