// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether the hooks are where the connections are: interfaces and servers in other network namespaces,
//! ports of bridges, what is on top of each other, userland proxies of containers.

use super::{Preflight, doubts, note};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tidegate_config::{Config, InterfaceConfig, ServiceConfig, SystemFault, namespace_path};
use tidegate_model::{Listen, Namespace};
use tidegate_sense::{
    Elsewhere, LinkFacts, Listener, ListenerSource, Others, SockDiag, default_way, forwards_to,
    holder, in_namespace, is_silent_proxy, links_within, proxied_ports,
};

/// Most interfaces that are named as places to attach to.
const OUTER_MAX: usize = 4;

fn enter(namespace: &Namespace) -> io::Result<PathBuf> {
    let path = namespace_path(namespace)?;
    // Whether it can be entered shows when it is.
    in_namespace(Some(&path), || Ok(()))?;
    Ok(path)
}

/// Interfaces of other namespaces: whether they are there, and what will be attached.
pub(super) fn interfaces_elsewhere(config: &Config, sys: &Path, found: &mut Preflight) {
    for (index, interface) in config.interfaces.iter().enumerate() {
        let Some(namespace) = &interface.namespace else { continue };
        match enter(namespace).and_then(|path| links_within(&path, sys)) {
            Err(error) => found.faults.push(SystemFault::NamespaceMissing {
                at: format!("interfaces[{index}].namespace"),
                why: format!("{namespace}: {error}"),
                fatal: true,
            }),
            Ok(there) => match there.iter().find(|link| link.name == interface.name) {
                Some(link) => {
                    let text = note(link, interface.attach);
                    found.notes.push(format!("{text} (in {namespace})"));
                    found.faults.extend(doubts(link, interface.attach));
                    let interface = interface.name.clone();
                    let wrong = inner_port(&interface, &there);
                    found.faults.extend(wrong.map(|why| SystemFault::WrongSide { interface, why }));
                }
                None => found.faults.push(SystemFault::InterfaceMissing {
                    name: interface.name.clone(),
                    present: there.into_iter().map(|link| link.name).collect(),
                }),
            },
        }
    }
}

/// Interfaces of ours that see less than their names promise.
pub(super) fn sides(config: &Config, all: &[LinkFacts], found: &mut Preflight) {
    for (interface, lower) in on_top(config, all) {
        found.faults.push(SystemFault::OnTop { interface, namespace: None, lower });
    }
    for Above { interface, namespace, lower } in above(config, all, &[]) {
        found.faults.push(SystemFault::OnTop { interface, namespace: Some(namespace), lower });
    }
    let own = config.hooked().filter(|interface| interface.namespace.is_none());
    for name in own.map(|interface| &interface.name) {
        if let Some(why) = inner_port(name, all) {
            found.faults.push(SystemFault::WrongSide { interface: name.clone(), why });
        }
    }
}

/// Bridges of ours to containers alone, where every hook is on one or on a port of one, and nobody listens here
/// whom the containers could ask.
pub(super) fn bridges(
    config: &Config,
    all: &[LinkFacts],
    (own, proc): (&mut dyn ListenerSource, &Path),
    found: &mut Preflight,
) {
    let is_inner = |name: &str| inner_port(name, all).or_else(|| inner_bridge(name, all)).is_some();
    let inside = config.hooked().all(|of| of.namespace.is_none() && is_inner(&of.name));
    let told = |name: &str| Some((name.to_owned(), inner_bridge(name, all)?));
    let told: Vec<_> = config.hooked().filter_map(|of| told(&of.name)).collect();
    if !inside || told.is_empty() || listens_here(&listens(config), own, proc).unwrap_or(true) {
        return;
    }
    let fault = |(interface, why)| SystemFault::WrongSide { interface, why };
    found.faults.extend(told.into_iter().map(fault));
}

/// Where services listen in our own network namespace.
pub(crate) fn listens(config: &Config) -> Vec<Listen> {
    let here = |service: &&ServiceConfig| serves_here(service);
    config.services.iter().filter(here).flat_map(|service| service.target().to_vec()).collect()
}

/// Whether its server should be in our own network namespace.
pub(crate) fn serves_here(service: &ServiceConfig) -> bool {
    service.namespace.is_none() && service.backends.is_empty()
}

/// Whether it is the daemon's own page, which is there once the daemon runs: what a file names that needs a service,
/// and has none.
pub(crate) fn is_own_page(config: &Config, service: &ServiceConfig) -> bool {
    let own =
        |page: SocketAddr, of: &Listen| (of.address, of.port) == (Some(page.ip()), page.port());
    let all = |page: SocketAddr| service.target().iter().all(|of| own(page, of));
    serves_here(service) && config.daemon.http.0.is_some_and(all)
}

/// Whether anybody listens at any of these, userland proxies of containers aside.
pub(crate) fn listens_here(
    listens: &[Listen],
    own: &mut dyn ListenerSource,
    proc: &Path,
) -> io::Result<bool> {
    let mut all = Vec::new();
    own.list(&mut all)?;
    all.retain(|of| listens.iter().any(|listen| of.serves(listen).is_some()));
    if all.is_empty() {
        return Ok(false);
    }
    let proxied = proxied_ports(proc, &all);
    Ok(all.iter().any(|of| !proxied.contains(&of.port)))
}

/// Interfaces that are on top of others that are configured, too, each with the one below: their packets
/// would be evaluated twice.
pub(crate) fn on_top(config: &Config, all: &[LinkFacts]) -> Vec<(String, String)> {
    let hooked = all.iter().filter(|link| is_hooked(config, &link.name, None));
    let pair = |link: &LinkFacts| {
        Some((link.name.clone(), hooked_below(config, None, (link.on_top_of(all)?, all))?))
    };
    hooked.filter_map(pair).collect()
}

/// An interface of another namespace that is on top of one that is configured, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Above {
    pub(crate) interface: String,
    pub(crate) namespace: Namespace,
    /// The one below: in the daemon's namespace, or in the same.
    lower: String,
}

impl Above {
    pub(crate) fn is(&self, interface: &InterfaceConfig) -> bool {
        (&self.interface, Some(&self.namespace)) == (&interface.name, interface.namespace.as_ref())
    }
}

/// The interfaces of other namespaces that are on top of others that are configured, too: of these `here`, or in
/// their own. What was `known` holds where a namespace cannot be entered (any more).
pub(crate) fn above(config: &Config, here: &[LinkFacts], known: &[Above]) -> Vec<Above> {
    let is_there = |of: &Above| {
        [None, Some(&of.namespace)].iter().any(|place| is_hooked(config, &of.lower, *place))
    };
    let of = |interface: &InterfaceConfig| {
        let namespace = interface.namespace.as_ref()?;
        let there = enter(namespace).and_then(|path| links_within(&path, Path::new("/sys")));
        let Ok(there) = there else {
            return known.iter().find(|of| of.is(interface) && is_there(of)).cloned();
        };
        let lower = lower_of(config, interface, &there, here)?;
        Some(Above { interface: interface.name.clone(), namespace: namespace.clone(), lower })
    };
    config.hooked().filter_map(of).collect()
}

/// The first below an interface of another namespace that is configured.
fn lower_of(
    config: &Config,
    interface: &InterfaceConfig,
    there: &[LinkFacts],
    here: &[LinkFacts],
) -> Option<String> {
    let namespace = interface.namespace.as_ref();
    let mut link = there.iter().find(|link| link.name == interface.name)?;
    for _ in 0..there.len() {
        if let Some(below) = link.on_top_of_outside(here) {
            return hooked_below(config, None, (below, here));
        }
        link = link.on_top_of(there)?;
        if is_hooked(config, &link.name, namespace) {
            return Some(link.name.clone());
        }
    }
    None
}

/// The first that is configured of an interface and those below it, all in one namespace.
fn hooked_below(
    config: &Config,
    namespace: Option<&Namespace>,
    (mut below, all): (&LinkFacts, &[LinkFacts]),
) -> Option<String> {
    // A VLAN on a macvlan on the card, say; no further than there are interfaces.
    for _ in 0..all.len() {
        if is_hooked(config, &below.name, namespace) {
            return Some(below.name.clone());
        }
        below = below.on_top_of(all)?;
    }
    None
}

fn is_hooked(config: &Config, name: &str, namespace: Option<&Namespace>) -> bool {
    config.hooked().any(|of| (of.name.as_str(), of.namespace.as_ref()) == (name, namespace))
}

/// Why a hook there does not see the connections to a container, and where they can be seen.
pub(crate) fn inner_port(name: &str, all: &[LinkFacts]) -> Option<String> {
    let link = all.iter().find(|link| link.name == name)?;
    let bridge = &link.inner_port_of(all)?.name;
    let members = all.iter().filter(|port| port.master == link.master);
    let uplinks = members.filter(|port| port.inner_port_of(all).is_none() && port.up);
    let outer: Vec<&str> = uplinks.map(|port| port.name.as_str()).collect();
    let outer = if outer.is_empty() { routed(all) } else { outer.join(" or ") };
    Some(format!(
        "{name} is the port of the bridge {bridge} to a container or virtual machine: connections to \
         there leave by it, and no hook on it sees them come. Attach to {outer}, or inside (`namespace:`)"
    ))
}

/// Why a hook on a bridge to containers alone does not see the connections to them, and where they can be seen.
pub(crate) fn inner_bridge(name: &str, all: &[LinkFacts]) -> Option<String> {
    let link = all.iter().find(|link| link.name == name)?;
    let outer = link.is_inner_bridge(all).then(|| routed(all))?;
    Some(format!(
        "{name} is a bridge to containers or virtual machines of this host: connections to them leave by it, \
         and no hook on it sees them come. Attach to {outer}, or inside (`namespace:`)"
    ))
}

/// Where packets come from that are routed to a bridge without a card (Docker's).
fn routed(all: &[LinkFacts]) -> String {
    let names = uplinks(all);
    match names.is_empty() {
        true => "the interface by which clients come".to_owned(),
        false => names.join(" or "),
    }
}

/// The interfaces by which they may come, that of the default route first: most clients come by it, whatever number
/// it has.
pub(crate) fn uplinks(all: &[LinkFacts]) -> Vec<String> {
    uplinks_from(all, default_way().as_deref())
}

fn uplinks_from(all: &[LinkFacts], default: Option<&str>) -> Vec<String> {
    let routed = all.iter().filter(|link| link.up && link.master.is_none());
    let card = |link: &&LinkFacts| link.driver.is_some() || link.kind.is_none();
    let (cards, others): (Vec<_>, Vec<_>) = routed.filter(|link| link.name != "lo").partition(card);
    let others = others.into_iter().filter(|link| link.kind.as_deref() != Some("bridge"));
    let others: Vec<_> = others.collect();
    let chosen = if cards.is_empty() { others } else { cards };
    let mut names: Vec<String> = chosen.into_iter().map(|link| link.name.clone()).collect();
    names.sort_by_key(|name| default != Some(name));
    names.truncate(OUTER_MAX);
    names
}

/// Whether somebody listens for each service where it says; else where.
pub(super) fn listeners(
    config: &Config,
    own: &mut dyn ListenerSource,
    proc: &Path,
    found: &mut Preflight,
) {
    let mut known: BTreeMap<Option<Namespace>, Vec<Listener>> = BTreeMap::new();
    let (mut here, mut others) = (Vec::new(), Others::new(proc));
    if let Err(error) = own.list(&mut here) {
        found.notes.push(format!("listeners cannot be looked at: {error}"));
        return;
    }
    known.insert(None, here);
    // A service with back-ends runs on them.
    let looked_for = |of: &&ServiceConfig| of.backends.is_empty() && !is_own_page(config, of);
    for service in config.services.iter().filter(looked_for) {
        if !known.contains_key(&service.namespace)
            && let Some(namespace) = &service.namespace
        {
            let mut there = Vec::new();
            let path = enter(namespace);
            let listed = path.and_then(|p| SockDiag::open(Some(&p))?.list(&mut there));
            if let Err(error) = listed {
                found.faults.push(SystemFault::NamespaceMissing {
                    at: format!("services.{}.namespace", service.name),
                    why: format!("{namespace}: {error}"),
                    fatal: false,
                });
                continue;
            }
            known.insert(Some(namespace.clone()), there);
        }
        if let Some(all) = known.get(&service.namespace) {
            listening(service, all, (proc, &mut others), found);
        }
    }
}

fn listening(
    service: &ServiceConfig,
    all: &[Listener],
    (proc, others): (&Path, &mut Others),
    found: &mut Preflight,
) {
    for (index, listen) in service.target().iter().enumerate() {
        let name = service.name.clone();
        match all.iter().find(|listener| listener.serves(listen).is_some()) {
            Some(listener) => {
                let told = proxied(listener, listen, (proc, others));
                let told = told.filter(|_| service.target.is_empty());
                let fault = |found| SystemFault::ListensElsewhere { service: name, index, found };
                found.faults.extend(told.map(fault));
            }
            None if service.namespace.is_some() => {
                found.faults.push(SystemFault::NothingListens { service: name, index });
            }
            None => {
                let there = others.listening(listen).first().map(elsewhere);
                let behind = |text| format!("nobody listens here at the moment; {text}");
                let told = there.or_else(|| behind_bridges(others.behind_bridges()).map(behind));
                found.faults.push(match told {
                    Some(found) => SystemFault::ListensElsewhere { service: name, index, found },
                    None => SystemFault::NothingListens { service: name, index },
                });
            }
        }
    }
}

/// A userland proxy that listens in a container's place.
fn proxied(
    listener: &Listener,
    listen: &Listen,
    (proc, others): (&Path, &mut Others),
) -> Option<String> {
    let (pid, name) = holder(proc, listener)?;
    let Some(to) = forwards_to(proc, pid) else {
        return is_silent_proxy(&name).then(|| silent(pid, &name));
    };
    let target = Listen { address: Some(to.ip()), port: to.port(), protocol: listen.protocol };
    let there = others.listening(&target);
    let write = match there.first() {
        Some(there) => format!(
            "write `namespace: {}` and `target: [\"{target}\"]` here, and attach to the interface by which \
             clients come; or attach inside, {}",
            there.namespace,
            inside(there)
        ),
        None => format!("write `target: [\"{target}\"]` and the container's `namespace` here"),
    };
    Some(format!(
        "{name} (pid {pid}) listens here and passes connections on to {target}: its accept queue and CPU \
         are not the service's; {write}"
    ))
}

/// One that does not say where its connections go.
fn silent(pid: u32, name: &str) -> String {
    format!(
        "{name} (pid {pid}) listens here and passes connections on to a container: its accept queue and CPU are \
         not the service's; write the container's `namespace` here, and `target` with where it listens there"
    )
}

fn elsewhere(there: &Elsewhere) -> String {
    let Elsewhere { pid, name, namespace, port, .. } = there;
    format!(
        "nobody listens here, but {name} (pid {pid}) listens on port {port} in another network \
         namespace: write `namespace: {namespace}` here (with `target` where the address is another), \
         and attach to the interface by which clients come; or attach inside, {}",
        inside(there)
    )
}

/// Who might be meant where no server listens here: connections to another port may be passed on to them.
pub(crate) fn behind_bridges(there: &[Elsewhere]) -> Option<String> {
    let first = there.first()?;
    let name = |of: &Elsewhere| {
        let Elsewhere { pid, name, address, port, .. } = of;
        format!("{name} (pid {pid}) at {}", SocketAddr::new(*address, *port))
    };
    let all: Vec<String> = there.iter().map(name).collect();
    Some(format!(
        "behind a bridge of this host listens {}. If connections are passed on to there, write (for the first) \
         `namespace: {}` and `target: [\"{}\"]` here, and attach to the interface by which clients come; or \
         attach inside, {}",
        all.join(", "),
        first.namespace,
        SocketAddr::new(first.address, first.port),
        inside(first)
    ))
}

fn inside(there: &Elsewhere) -> String {
    let names = &there.interfaces;
    let name = names.first().map_or("eth0", String::as_str);
    format!("`interfaces: [{{name: {name}, namespace: \"{}\"}}]`", there.namespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers;
    use tidegate_config::{Registry, parse};

    fn config(interfaces: &str) -> Config {
        let text = format!(
            "interfaces: [{interfaces}]\nservices: {{web: {{mode: enforce, listen: ['*:80']}}}}\n"
        );
        let registry = Registry::new(["fresh_first"], controllers::NAMES);
        parse(&text, &registry).unwrap_or_else(|error| panic!("{error}"))
    }

    fn link(index: u32, name: &str, kind: &str) -> LinkFacts {
        let kind = Some(kind.to_owned()).filter(|kind| !kind.is_empty());
        LinkFacts { index, name: name.into(), kind, up: true, ..LinkFacts::default() }
    }

    #[test]
    fn the_daemons_own_page_is_not_missed_before_it_runs() {
        struct Nobody;
        impl ListenerSource for Nobody {
            fn list(&mut self, into: &mut Vec<Listener>) -> io::Result<()> {
                into.clear();
                Ok(())
            }
        }
        for (listen, http, told) in [
            ("127.0.0.1:7118", "127.0.0.1:7118", 0),
            ("127.0.0.1:7119", "127.0.0.1:7118", 1),
            ("127.0.0.1:7118', '*:81", "127.0.0.1:7118", 2),
            ("*:7118", "127.0.0.1:7118", 1),
            ("127.0.0.1:7118", "off", 1),
        ] {
            let text = format!(
                "interfaces: [{{name: eth0}}]\nservices: {{self: {{mode: shadow, listen: ['{listen}']}}}}\n\
                 daemon: {{http: '{http}'}}\n"
            );
            let registry = Registry::new(["fresh_first"], controllers::NAMES);
            let config = parse(&text, &registry).unwrap_or_else(|error| panic!("{error}"));
            let (mut found, nowhere) = (Preflight::default(), Path::new("/nonexistent"));
            listeners(&config, &mut Nobody, nowhere, &mut found);
            assert_eq!(found.faults.len(), told, "{listen} {http}: {:?}", found.faults);
        }
    }

    #[test]
    fn what_is_on_top_of_another_is_evaluated_below() {
        let below = |lower, link| LinkFacts { lower: Some(lower), ..link };
        let all = [
            link(2, "eth0", ""),
            below(2, link(3, "eth0.7", "vlan")),
            below(3, link(4, "mac0", "macvlan")),
            // the other end of a pair is no lower interface
            below(2, link(5, "veth0", "veth")),
        ];
        let told = |interfaces| on_top(&config(interfaces), &all);
        assert_eq!(told("{name: eth0.7}, {name: veth0}"), []);
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(told("{name: eth0}, {name: eth0.7}"), [pair("eth0.7", "eth0")]);
        assert_eq!(told("{name: mac0}, {name: eth0}"), [pair("mac0", "eth0")]);
        assert_eq!(
            told("{name: eth0}, {name: mac0}, {name: eth0.7}, {name: veth0}"),
            [pair("eth0.7", "eth0"), pair("mac0", "eth0.7")]
        );
        assert_eq!(told("{name: eth0}, {name: eth0.7, namespace: 'pid:1'}"), []);
    }

    /// A macvlan or VLAN that was moved into a container: there its card has no name, and often its own.
    #[test]
    fn what_is_on_top_of_an_interface_of_another_namespace_is_evaluated_below() {
        let here = [link(2, "card", ""), LinkFacts { lower: Some(2), ..link(3, "v7", "vlan") }];
        let outside = |lower, link| LinkFacts { lower_outside: Some(lower), ..link };
        let there = [
            outside(2, link(5, "eth0", "macvlan")),
            outside(3, link(6, "eth1", "ipvlan")),
            outside(2, link(7, "veth0", "veth")),
            LinkFacts { lower: Some(5), ..link(8, "eth0.9", "vlan") },
            LinkFacts { lower: Some(2), ..link(9, "m9", "macvlan") },
        ];
        let lower = |interfaces: &str| {
            let config = config(interfaces);
            lower_of(&config, config.interfaces.first().unwrap(), &there, &here)
        };
        let inside = |name: &str| format!("{{name: {name}, namespace: 'pid:1'}}");
        for (name, with, below) in [
            ("eth0", "{name: card}", Some("card")),
            ("eth0", "{name: v7}", None),
            ("eth0", "{name: card, namespace: 'pid:2'}", None),
            ("eth1", "{name: card}", Some("card")),
            ("eth1", "{name: card}, {name: v7}", Some("v7")),
            ("eth0.9", "{name: card}", Some("card")),
            ("eth0.9", "{name: eth0, namespace: 'pid:1'}, {name: card}", Some("eth0")),
            ("veth0", "{name: card}", None),
            ("m9", "{name: card}", None),
        ] {
            let interfaces = format!("{}, {with}", inside(name));
            assert_eq!(lower(&interfaces).as_deref(), below, "{interfaces}");
        }
    }

    /// Without privileges nobody enters a namespace: what was found at the start holds.
    #[test]
    fn what_is_known_of_a_namespace_holds_while_the_interface_below_is_configured() {
        let namespace: Namespace = "/nonexistent/ns".parse().unwrap();
        let known = [Above { interface: "eth0".into(), namespace, lower: "card".into() }];
        let there = "{name: eth0, namespace: /nonexistent/ns}";
        let found = |with: &str| above(&config(&format!("{there}, {with}")), &[], &known);
        assert_eq!(found("{name: card}"), known);
        assert_eq!(found("{name: other}"), []);
        assert_eq!(above(&config("{name: card}"), &[], &known), []);
    }

    /// Podman's: its command line does not say where connections go.
    #[test]
    fn a_userland_proxy_that_does_not_say_where_connections_go_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let fd = dir.path().join("7/fd");
        std::fs::create_dir_all(&fd).unwrap();
        std::os::unix::fs::symlink("socket:[11]", fd.join("5")).unwrap();
        std::fs::write(dir.path().join("7/cmdline"), "pasta\0-t\08080-8080:80-80").unwrap();
        let listener = Listener {
            address: [0, 0, 0, 0].into(),
            port: 8080,
            v6_only: false,
            queue: 0,
            limit: 128,
            inode: 11,
            cgroup_id: None,
        };
        let told = |name: &str| {
            std::fs::write(dir.path().join("7/comm"), name).unwrap();
            let listen = "*:8080".parse().unwrap();
            proxied(&listener, &listen, (dir.path(), &mut Others::new(dir.path())))
        };
        let text = told("pasta.avx2\n").unwrap();
        assert!(text.starts_with("pasta.avx2 (pid 7) listens here") && text.contains("`target`"));
        assert_eq!(told("nginx\n"), None);
    }

    #[test]
    fn a_port_of_a_bridge_to_a_container_is_told_with_the_place_outside() {
        let port = |link| LinkFacts { master: Some(9), ..link };
        let mut all = vec![
            link(1, "lo", ""),
            link(2, "eth0", ""),
            link(9, "br0", "bridge"),
            port(link(10, "veth1", "veth")),
        ];
        assert_eq!(inner_port("eth0", &all), None);
        assert_eq!(inner_port("br0", &all), None, "the host's own connections come by it");
        let told = inner_port("veth1", &all).unwrap();
        assert!(told.contains("bridge br0") && told.contains("Attach to eth0,"), "{told}");
        let told = inner_bridge("br0", &all).unwrap();
        assert!(told.contains("br0 is a bridge to containers") && told.contains("Attach to eth0,"));
        assert_eq!(inner_bridge("eth0", &all), None);
        assert_eq!(inner_bridge("br0", &all[..3]), None, "it leads nowhere");
        all[1] = port(link(2, "eth0", ""));
        let told = inner_port("veth1", &all).unwrap();
        assert!(told.contains("Attach to eth0,"), "the bridge's own card: {told}");
        assert_eq!(
            inner_bridge("br0", &all),
            None,
            "so is the host's own traffic, and what is passed on"
        );
        assert_eq!(inner_port("eth0", &all), None, "whatever comes from outside comes by it");
    }
    #[test]
    fn of_many_uplinks_that_of_the_default_route_is_named_first() {
        let eth = |n: u32| link(n, &format!("eth{n}"), "");
        let all: Vec<_> = (1..=6).map(eth).chain([link(9, "br0", "bridge")]).collect();
        assert_eq!(uplinks_from(&all, None), ["eth1", "eth2", "eth3", "eth4"]);
        assert_eq!(uplinks_from(&all, Some("eth6")), ["eth6", "eth1", "eth2", "eth3"]);
        assert_eq!(uplinks_from(&all, Some("br0")), ["eth1", "eth2", "eth3", "eth4"]);
        assert_eq!(routed(&all[6..]), "the interface by which clients come");
    }
}
