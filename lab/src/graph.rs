// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A graph of hosts and links, beside the lab's own three.
//!
//! ```text
//!  cl ── l0: delay, loss ── host 0 ── l1: a rate and a queue at either end ── host 1 ── l2 ── host 2
//! ```
//!
//! Both ends of link n are named `ln`; that nearer to the clients is 10.64.n.1, the other 10.64.n.2. Clients of
//! 10.(16 + k).0.0/16 take the k-th link that begins at the clients. Packets take a way with the fewest links. Each host
//! is the namespace of a process of the lab, and so it ends with the lab. Neighbours are entered by hand: ARP would be
//! lost on a full link.

use crate::bulk::{Bulk, BulkEnd};
use crate::error::{LabError, Result};
use crate::lab::Lab;
use crate::os;
use crate::process::Managed;
use crate::product::{self, Product};
use crate::relay::{Relay, RelayCounts, Way};
use crate::server::Server;
use crate::server::tiny::TinyOptions;
use crate::shape::{self, Shaped, Shaping};
use crate::site;
use crate::topology::{self, Role};
use crate::{Arrive, Sources, Stream};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::Path;

/// Most hosts and links, and links that begin at the clients.
const HOSTS_MAX: usize = 64;
const LINKS_MAX: usize = 200;
const CLIENT_LINKS_MAX: usize = 15;
/// Bytes that a narrow link lets out at once: a packet. What does not fit waits in its queue.
const BURST_BYTES: u64 = 1_600;
/// Addresses of the clients of a link.
const CLIENTS: u32 = 60_000;
/// Port of the servers.
const PORT: u16 = 80;
/// Port of bulk.
const BULK_PORT: u16 = 81;

/// A host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSpec {
    /// Its name, for directories.
    pub name: &'static str,
    /// Whether it is a router.
    pub forwards: bool,
}

/// A link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpec {
    /// The host at the end that is nearer to the clients, by its number; `None`: the clients.
    pub near: Option<usize>,
    /// The host at the other end.
    pub far: usize,
    /// How narrow it is from the near end to the far one, if not as wide as the machine can.
    pub up: Option<Shaping>,
    /// The same in the other direction.
    pub down: Option<Shaping>,
    /// What it does to packets besides, in both directions.
    pub way: Option<Way>,
}

impl LinkSpec {
    /// One as wide and as short as the machine can.
    #[must_use]
    pub const fn plain(near: Option<usize>, far: usize) -> Self {
        Self { near, far, up: None, down: None, way: None }
    }

    /// The host beyond it, seen from another one.
    fn beyond(&self, at: usize) -> Option<usize> {
        if self.far == at { self.near } else { (self.near == Some(at)).then_some(self.far) }
    }
}

/// Hosts and links.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GraphSpec {
    /// The hosts, by number.
    pub hosts: Vec<HostSpec>,
    /// The links, by number.
    pub links: Vec<LinkSpec>,
}

/// An end of a link: its number, and whether it is the one nearer to the clients.
pub type End = (usize, bool);

impl GraphSpec {
    fn check(&self) -> Result<()> {
        let Self { hosts, links } = self;
        let known = |link: &LinkSpec| {
            link.far < hosts.len() && link.near.is_none_or(|near| near < hosts.len())
        };
        let counts = hosts.len() <= HOSTS_MAX && links.len() <= LINKS_MAX;
        if counts && links.iter().all(known) && self.doors().count() <= CLIENT_LINKS_MAX {
            return Ok(());
        }
        Err(LabError::Plan(format!("a graph of {} hosts and {links:?}", hosts.len())))
    }

    /// Links that begin at the clients, by number.
    fn doors(&self) -> impl Iterator<Item = usize> {
        let all = self.links.iter().enumerate();
        all.filter_map(|(number, link)| link.near.is_none().then_some(number))
    }

    /// The ends at a host; of the clients for `None`.
    pub(crate) fn ends(&self, host: Option<usize>) -> impl Iterator<Item = End> {
        let all = self.links.iter().enumerate();
        all.filter_map(move |(number, link)| {
            let far = (host == Some(link.far)).then_some((number, false));
            (link.near == host).then_some((number, true)).or(far)
        })
    }

    /// The section `interfaces` of a daemon on a host.
    #[must_use]
    pub fn interfaces(&self, host: usize) -> Value {
        let one = |(link, near): End| {
            let name = name(link);
            if near {
                json!({"name": name, "side": "servers"})
            } else {
                json!({"name": name, "attach": "tcx"})
            }
        };
        self.ends(Some(host)).map(one).collect()
    }

    /// By which link each host is reached from another one, if it is.
    fn first_links(&self, from: usize) -> Vec<Option<usize>> {
        let mut first = vec![None; self.hosts.len()];
        let mut waiting = VecDeque::from([from]);
        while let Some(at) = waiting.pop_front() {
            for (number, link) in self.links.iter().enumerate() {
                let next = link.beyond(at).filter(|next| *next != from && first[*next].is_none());
                let Some(next) = next else { continue };
                first[next] = first[at].or(Some(number));
                waiting.push_back(next);
            }
        }
        first
    }

    /// The address behind the link that leads from a host to another one.
    fn gateway(&self, (from, to): (usize, usize)) -> Option<Ipv4Addr> {
        let link = self.first_links(from)[to]?;
        Some(address((link, self.links[link].far == from)))
    }

    /// What `ip -batch` does on a host, or at the clients.
    pub(crate) fn addresses(&self, host: Option<usize>) -> String {
        let mut lines = if host.is_some() { "link set lo up\n".to_owned() } else { String::new() };
        for (link, near) in self.ends(host) {
            let name = name(link);
            let (own, other) = (address((link, near)), address((link, !near)));
            let hardware = hardware((link, !near));
            let _ = writeln!(
                lines,
                "addr add {own}/24 dev {name}\nlink set {name} up\n\
                 neigh add {other} lladdr {hardware} dev {name} nud permanent"
            );
        }
        match host {
            None => {
                for (door, link) in self.doors().enumerate() {
                    let (first, gateway) = (clients(door), address((link, false)));
                    let table = table(door);
                    let _ = writeln!(
                        lines,
                        "rule add from {first}/16 lookup {table} pref {table}\n\
                         route add default via {gateway} table {table}"
                    );
                }
            }
            Some(host) => self.routes(host, &mut lines),
        }
        lines
    }

    fn routes(&self, host: usize, lines: &mut String) {
        let own: Vec<usize> = self.ends(Some(host)).map(|(link, _)| link).collect();
        for (number, link) in self.links.iter().enumerate().filter(|(n, _)| !own.contains(n)) {
            let mut ends = std::iter::once(link.far).chain(link.near);
            if let Some(gateway) = ends.find_map(|end| self.gateway((host, end))) {
                let net = address((number, true));
                let [a, b, c, _] = net.octets();
                let _ = writeln!(lines, "route add {a}.{b}.{c}.0/24 via {gateway}");
            }
        }
        for (door, link) in self.doors().enumerate() {
            let far = self.links[link].far;
            let own = (far == host).then(|| address((link, true)));
            if let Some(gateway) = own.or_else(|| self.gateway((host, far))) {
                let _ = writeln!(lines, "route add {}/16 via {gateway}", clients(door));
            }
        }
    }

    fn sysctls(&self, host: Option<usize>) -> String {
        let mut script = "set -e\ncd /proc/sys/net\n\
            for all in ipv4/conf/*/rp_filter; do echo 0 >$all; done\n\
            echo 1 >ipv4/tcp_no_metrics_save\n"
            .to_owned();
        let Some(host) = host else {
            // As today's clients send SYNs again: 1, 2, 3, 4 and 5 s after the first, then later and later.
            script.push_str("echo 4 >ipv4/tcp_syn_linear_timeouts\necho 6 >ipv4/tcp_syn_retries\n");
            for link in self.doors() {
                let _ = writeln!(script, "echo 1 >ipv6/conf/{}/disable_ipv6", name(link));
            }
            return script;
        };
        script.push_str(SILENT);
        if self.hosts[host].forwards {
            script.push_str("echo 1 >ipv4/ip_forward\n");
        }
        script
    }
}

/// Nothing but the load is on a link.
const SILENT: &str = "echo 1 >ipv6/conf/all/disable_ipv6\n";

/// Both ends of a link have its name.
pub(crate) fn name(link: usize) -> String {
    format!("l{link}")
}

/// The address of an end.
pub(crate) fn address((link, near): End) -> Ipv4Addr {
    Ipv4Addr::new(10, 64, u8::try_from(link).unwrap_or(u8::MAX), if near { 1 } else { 2 })
}

fn hardware((link, near): End) -> String {
    format!("02:00:00:00:{link:02x}:{:02x}", if near { 1 } else { 2 })
}

/// The clients of a link that begins there.
pub(crate) fn clients(door: usize) -> Ipv4Addr {
    let door = u8::try_from(door.min(CLIENT_LINKS_MAX)).unwrap_or_default();
    Ipv4Addr::new(10, 16 + door, 0, 0)
}

/// The table of routes of a link's clients, and the place of the rule that leads to it.
const fn table(door: usize) -> usize {
    101 + door
}

/// A graph, until it is dropped.
#[derive(Debug)]
pub struct Graph<'a> {
    lab: &'a Lab,
    spec: GraphSpec,
    /// Wide again with it.
    shaped: Vec<(End, Shaped)>,
    /// Whether the kernel delays and loses.
    netem: bool,
    relay: Option<Relay>,
    relay_host: Option<Managed>,
    hosts: Vec<Managed>,
}

/// The clients stay for the next graph: nothing of this one is left there. The kernel would take interfaces away with the
/// hosts, but only some time later.
impl Drop for Graph<'_> {
    fn drop(&mut self) {
        let mut lines = String::new();
        for (door, link) in self.spec.doors().enumerate() {
            let _ = writeln!(lines, "rule del pref {}\nlink del {}", table(door), name(link));
        }
        // One that was not finished has not all of it.
        let _ = topology::within(&self.net(None), &["ip", "-force", "-batch", "-"], &lines);
    }
}

impl<'a> Graph<'a> {
    pub(crate) fn make(lab: &'a Lab, spec: &GraphSpec) -> Result<Self> {
        spec.check()?;
        let hosts = spec.hosts.iter().map(|_| site::container(lab)).collect::<Result<Vec<_>>>()?;
        let (spec, shaped) = (spec.clone(), Vec::new());
        let mut graph =
            Self { lab, spec, shaped, netem: false, relay: None, relay_host: None, hosts };
        graph.netem = graph.hosts.first().is_some_and(|host| has_netem(&path(host.pid())));
        if graph.spec.links.iter().any(|link| graph.relays(link)) {
            graph.relay_host = Some(site::container(lab)?);
        }
        let relay = graph.relay_host.as_ref().map(Managed::pid);
        os::run_with_input("ip", &["-batch", "-"], &graph.pairs(relay))?;
        if let Some(pid) = relay {
            graph.relay = Some(graph.start_relay(&path(pid))?);
        }
        let all = (0..graph.hosts.len()).map(Some);
        for host in std::iter::once(None).chain(all) {
            let net = graph.net(host);
            topology::within(&net, &["sh"], &graph.spec.sysctls(host))?;
            topology::within(&net, &["ip", "-batch", "-"], &graph.spec.addresses(host))?;
            for (link, _) in graph.spec.ends(host) {
                let spec = &graph.spec.links[link];
                offloads(&net, &name(link), graph.relays(spec))?;
                if let Some(way) = spec.way.filter(|_| !graph.relays(spec)) {
                    topology::within(&net, &["tc", "-batch", "-"], &way.netem(&name(link)))?;
                }
            }
        }
        for number in 0..graph.spec.links.len() {
            let LinkSpec { up, down, .. } = graph.spec.links[number];
            for (shaping, near) in [(up, true), (down, false)] {
                if let Some(shaping) = shaping {
                    graph.narrow((number, near), &shaping)?;
                }
            }
        }
        Ok(graph)
    }

    /// Whether a link has a relay: where the kernel has no netem, and beside a rate, whose queue is to stay its own.
    const fn relays(&self, link: &LinkSpec) -> bool {
        let narrow = link.up.is_some() || link.down.is_some();
        link.way.is_some() && (narrow || !self.netem)
    }

    /// Pairs of interfaces as `ip -batch` makes them; two for a link with a relay in between.
    fn pairs(&self, relay: Option<u32>) -> String {
        let mut lines = String::new();
        for (number, link) in self.spec.links.iter().enumerate() {
            let name = name(number);
            let (ours, theirs) = (hardware((number, true)), hardware((number, false)));
            let (here, there) = (self.owner(link.near), self.owner(Some(link.far)));
            let near = format!("link add {name} address {ours} netns {here} type veth peer");
            let far = format!("name {name} address {theirs} netns {there}");
            let _ = match relay.filter(|_| self.relays(link)) {
                None => writeln!(lines, "{near} {far}"),
                Some(relay) => writeln!(
                    lines,
                    "{near} name a{number} netns {relay}\n\
                     link add b{number} netns {relay} type veth peer {far}"
                ),
            };
        }
        lines
    }

    fn start_relay(&self, net: &str) -> Result<Relay> {
        let mut ways = Vec::new();
        let mut up = String::new();
        let relayed = self.spec.links.iter().enumerate().filter(|(_, link)| self.relays(link));
        for (number, way) in relayed.filter_map(|(n, link)| link.way.map(|way| (n, way))) {
            let (one, other) = (format!("a{number}"), format!("b{number}"));
            let _ = writeln!(up, "link set {one} up\nlink set {other} up");
            ways.push((one, other, way));
        }
        topology::within(net, &["sh"], &format!("cd /proc/sys/net\n{SILENT}"))?;
        topology::within(net, &["ip", "-batch", "-"], &up)?;
        for (one, other, _) in &ways {
            offloads(net, one, false)?;
            offloads(net, other, false)?;
        }
        Relay::start(self.lab, net.to_owned(), &ways)
    }

    fn narrow(&mut self, end: End, shaping: &Shaping) -> Result<()> {
        let (link, near) = end;
        let spec = &self.spec.links[link];
        let net = self.net(if near { spec.near } else { Some(spec.far) });
        let shaped = shape::apply(net, &name(link), (shaping, BURST_BYTES))?;
        self.shaped.push((end, shaped));
        Ok(())
    }

    /// What it consists of.
    #[must_use]
    pub const fn spec(&self) -> &GraphSpec {
        &self.spec
    }

    /// The narrow way out of an end of a link.
    ///
    /// # Errors
    /// When it is not narrow.
    pub fn shaped(&self, end: End) -> Result<&Shaped> {
        let found = self.shaped.iter().find(|(of, _)| *of == end).map(|(_, shaped)| shaped);
        found.ok_or_else(|| LabError::Missing(format!("a narrow way out of {end:?}")))
    }

    /// What the relay has done, if a link has one.
    ///
    /// # Errors
    /// When it does not tell.
    pub fn relayed(&self) -> Result<Option<RelayCounts>> {
        self.relay.as_ref().map(Relay::counts).transpose()
    }

    /// The namespace of a host; of the clients for `None`.
    pub(crate) fn net(&self, host: Option<usize>) -> String {
        let pid = host.and_then(|host| self.hosts.get(host)).map(Managed::pid);
        pid.map_or_else(|| Role::Client.path(self.lab.id()), path)
    }

    /// The same as `ip link` takes it.
    fn owner(&self, host: Option<usize>) -> String {
        let pid = host.and_then(|host| self.hosts.get(host)).map(Managed::pid);
        let net = || Role::Client.path(self.lab.id());
        pid.map_or_else(
            || net().rsplit('/').next().unwrap_or_default().to_owned(),
            |pid| pid.to_string(),
        )
    }

    /// Where a server on a host listens: at the address of its first link.
    #[must_use]
    pub fn target(&self, host: usize) -> SocketAddrV4 {
        let end = self.spec.ends(Some(host)).next();
        SocketAddrV4::new(end.map_or(Ipv4Addr::UNSPECIFIED, address), PORT)
    }

    /// Starts the small server on a host, on port 80, and waits until it listens.
    ///
    /// # Errors
    /// As [`Lab::start_tiny`].
    pub fn start_tiny(&self, host: usize, options: &TinyOptions) -> Result<Server> {
        self.lab.serve_in(Some(self.net(Some(host))));
        let server = self.lab.start_tiny(&TinyOptions { port: PORT, ..options.clone() });
        self.lab.serve_in(None);
        server
    }

    /// Requests for a host from the clients of the `door`-th link that begins at the clients.
    #[must_use]
    pub fn stream(
        &self,
        (name, door): (&str, usize),
        (host, server): (usize, &Server),
        arrive: Arrive,
    ) -> Stream {
        Stream {
            target: SocketAddr::V4(self.target(host)),
            sources: Sources { first: IpAddr::V4(clients(door)), count: CLIENTS },
            ..server.stream(name, arrive)
        }
    }

    /// Runs a program to its end on a host, with text on its standard input; gives its output.
    ///
    /// # Errors
    /// When it cannot be started or ends badly, with what it said.
    pub fn run_in(&self, host: usize, command: &[&str], input: &str) -> Result<String> {
        topology::within(&self.net(Some(host)), command, input)
    }

    /// Starts a process on a host, on the CPU of the servers; killed by drop.
    ///
    /// # Errors
    /// As [`Lab::start_in`].
    pub fn start_in(&self, host: usize, name: &str, command: &[&str]) -> Result<Managed> {
        let (net, cpu) = (self.net(Some(host)), self.lab.server_cpu());
        self.lab.start_at(net, cpu, name, command)
    }

    /// Sends bulk from a host, on port 81, to one of the clients of the `door`-th link, until what it gives is dropped.
    ///
    /// # Errors
    /// A pace that cannot be kept, or what the helper says.
    pub fn bulk(&self, (door, host): (usize, usize), bulk: &Bulk) -> Result<Vec<Managed>> {
        let to = SocketAddrV4::new(*self.target(host).ip(), BULK_PORT);
        let [a, b, ..] = clients(door).octets();
        let from = Ipv4Addr::new(a, b, 255, 254);
        let ends = [
            (Some(host), "bulk-send", BulkEnd::Send(BULK_PORT, *bulk)),
            (None, "bulk-take", BulkEnd::Take(from, to)),
        ];
        let mut started = Vec::new();
        for (host, name, end) in ends {
            let mut command = self.lab.helper().command("bulk");
            command.push(end.json()?);
            let words: Vec<&str> = command.iter().map(String::as_str).collect();
            let cpu = self.lab.load_cpu();
            started.push(self.lab.start_at(self.net(host), cpu, name, &words)?);
        }
        Ok(started)
    }

    /// Starts the product on a host with these sections beside daemon, and interfaces unless they are among them; waits
    /// until it answers.
    ///
    /// # Errors
    /// As [`Lab::start_product`].
    pub fn start_product(&self, program: &Path, host: usize, sections: &Value) -> Result<Product> {
        let dir = self.lab.private_dir(&format!("tidegate-{}", self.spec.hosts[host].name))?;
        let (file, socket) = (dir.join("tidegate.yaml"), dir.join("control.sock"));
        // On the lab's BPF file system, under a name of its own.
        let pins = self.lab.pins().with_file_name(dir.file_name().unwrap_or_default());
        let mut whole = json!({
            "interfaces": self.spec.interfaces(host),
            "daemon": {"socket": socket, "http": "off", "pins": pins},
        });
        for (key, section) in sections.as_object().into_iter().flatten() {
            whole[key] = section.clone();
        }
        os::write(&file, whole.to_string())?;
        product::start_in(self.lab, self.net(Some(host)), program, (&file, &socket))
    }
}

fn path(pid: u32) -> String {
    format!("/proc/{pid}/ns/net")
}

/// Whether the kernel of a host delays and loses.
fn has_netem(net: &str) -> bool {
    let add = ["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"];
    topology::within(net, &add, "").is_ok()
        && topology::within(net, &["tc", "qdisc", "del", "dev", "lo", "root"], "").is_ok()
}

/// One packet in a queue is one on the wire; before a relay each has its checksum.
fn offloads(net: &str, device: &str, relayed: bool) -> Result<()> {
    let mut off = vec!["ethtool", "-K", device, "gro", "off", "tso", "off", "gso", "off"];
    if relayed {
        off.extend(["tx", "off"]);
    }
    topology::within(net, &off, "").map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients – 0 – 1 – 2, another way for clients to 0, and 3 behind 1.
    fn spec() -> GraphSpec {
        let host = |name, forwards| HostSpec { name, forwards };
        let hosts = vec![host("r1", true), host("r0", true), host("s1", false), host("s2", false)];
        let ends = [(None, 0), (None, 0), (Some(0), 1), (Some(1), 2), (Some(1), 3)];
        let links = ends.map(|(near, far)| LinkSpec::plain(near, far)).to_vec();
        GraphSpec { hosts, links }
    }

    #[test]
    fn every_host_knows_the_way_to_every_other_one() {
        let spec = spec();
        let s1 = spec.addresses(Some(2));
        for line in [
            "addr add 10.64.3.2/24 dev l3",
            "route add 10.64.4.0/24 via 10.64.3.1",
            "route add 10.64.0.0/24 via 10.64.3.1",
            "route add 10.16.0.0/16 via 10.64.3.1",
            "route add 10.17.0.0/16 via 10.64.3.1",
        ] {
            assert!(s1.contains(line), "{line}: {s1}");
        }
        let r1 = spec.addresses(Some(0));
        assert!(r1.contains("route add 10.64.4.0/24 via 10.64.2.2"), "{r1}");
        assert!(r1.contains("route add 10.17.0.0/16 via 10.64.1.1"), "{r1}");
        let clients = spec.addresses(None);
        assert!(clients.contains("rule add from 10.17.0.0/16 lookup 102 pref 102"), "{clients}");
        assert!(clients.contains("route add default via 10.64.1.2 table 102"), "{clients}");
    }

    /// A daemon knows which of its links lead to servers.
    #[test]
    fn links_to_servers_are_said_to_be() {
        let servers = |name: &str| json!({"name": name, "side": "servers"});
        let own = json!({"name": "l2", "attach": "tcx"});
        assert_eq!(spec().interfaces(1), json!([own, servers("l3"), servers("l4")]));
    }

    #[test]
    fn a_link_to_nowhere_is_an_error() {
        spec().check().unwrap();
        let mut wrong = spec();
        wrong.links.push(LinkSpec::plain(Some(1), 4));
        assert!(wrong.check().is_err());
        let mut many = spec();
        many.links = vec![LinkSpec::plain(None, 0); CLIENT_LINKS_MAX + 1];
        assert!(many.check().is_err());
    }
}
