// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Four routers and two servers: the testbed of NetDraino (papers/netdraino.txt, section 7.1).
//!
//! ```text
//!  cl ── l0 ── R0 ── l2 ──┐                             ┌── l5 ── S0 10.64.5.2
//!                         R2 ── l4: the narrow one ── R3
//!  cl ── l1 ── R1 ── l3 ──┘                             └── l6 ── S1 10.64.6.2
//! ```
//!
//! Both ends of link n are named `ln`; that nearer to the clients is 10.64.n.1, the other 10.64.n.2. Clients of
//! 10.16.0.0/16 take l0, those of 10.17.0.0/16 take l1. Each host is the namespace of a process of the lab, and
//! so it ends with the lab.
//!
//! The links of the agents (l0, l1) may be narrowed at the clients as well. One kernel sends the SYNs of thousands of
//! clients again in bursts, those of a slot of its timers (8 to 64 ms) at once; there they come apart, as those of many
//! hosts do. Neighbours are entered by hand: ARP would be lost on the full link.

mod attack;
mod bgp;
mod control;
mod in_band;
mod peers;

pub use attack::{Attacker, MarkCounts, MarkMeter};
pub use bgp::Bird;
pub use control::{ControlCounts, ControlMeter};
pub use in_band::{InBand, InBandOptions, InBandSeen};
pub use peers::Pushback;

use crate::datagrams::Datagrams;
use crate::error::{LabError, Result};
use crate::lab::Lab;
use crate::os;
use crate::process::Managed;
use crate::product::{self, Product};
use crate::server::Server;
use crate::server::nft::{self, DatagramRule};
use crate::server::tiny::TinyOptions;
use crate::shape::{self, Shaped, Shaping};
use crate::site;
use crate::topology::{self, Role};
use crate::{Arrive, Sources, Stream};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::Path;

/// The narrow link, at R2.
const NARROW: &str = "l4";
/// Links, each with its end nearer to the clients and the other; `None`: the clients.
const LINKS: [(Option<RoadHost>, RoadHost); 7] = [
    (None, RoadHost::R0),
    (None, RoadHost::R1),
    (Some(RoadHost::R0), RoadHost::R2),
    (Some(RoadHost::R1), RoadHost::R2),
    (Some(RoadHost::R2), RoadHost::R3),
    (Some(RoadHost::R3), RoadHost::S0),
    (Some(RoadHost::R3), RoadHost::S1),
];
/// Their names, for what outlives a format.
const NAMES: [&str; 7] = ["l0", "l1", "l2", "l3", NARROW, "l5", "l6"];
/// Bytes that a narrow link lets out at once: a packet. What does not fit waits in its queue.
const BURST_BYTES: u64 = 1_600;
/// Addresses of an agent's clients.
const CLIENTS: u32 = 60_000;
/// Port of the servers, and of the sessions between daemons.
const PORT: u16 = 80;
const PEERS: u16 = 7_416;
/// Port of BGP, and of the agents of the published mode.
const BGP: u16 = 179;
const AGENTS: u16 = 7_417;

/// What a daemon is told beside its services.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sections {
    /// Its hooks are at XDP, and not at tcx.
    pub xdp: bool,
    /// Its interfaces to clients are a border: marks of what comes from there are cleared.
    pub border: bool,
    /// Other sections by name.
    pub others: Map<String, Value>,
}

/// A host on the road.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RoadHost {
    /// The router of the first agent's clients.
    R0,
    /// The router of the second agent's clients.
    R1,
    /// The router before the narrow link.
    R2,
    /// The router of the servers.
    R3,
    /// The server that is overloaded.
    S0,
    /// Its neighbour.
    S1,
}

impl RoadHost {
    /// All hosts.
    pub const ALL: [Self; 6] = [Self::R0, Self::R1, Self::R2, Self::R3, Self::S0, Self::S1];
    /// The routers.
    pub const ROUTERS: [Self; 4] = [Self::R0, Self::R1, Self::R2, Self::R3];

    /// Its name in configurations.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::R0 => "r0",
            Self::R1 => "r1",
            Self::R2 => "r2",
            Self::R3 => "r3",
            Self::S0 => "s0",
            Self::S1 => "s1",
        }
    }

    /// Links between a router and S0.
    #[must_use]
    pub const fn hops(self) -> u32 {
        match self {
            Self::R0 | Self::R1 => 3,
            Self::R2 => 2,
            Self::R3 => 1,
            Self::S0 | Self::S1 => 0,
        }
    }

    /// The next router towards the servers.
    const fn before(self) -> Option<Self> {
        match self {
            Self::R0 | Self::R1 => Some(Self::R2),
            Self::R2 => Some(Self::R3),
            _ => None,
        }
    }

    /// Its links, and whether it is the end nearer to the clients.
    fn links(self) -> impl Iterator<Item = (usize, bool)> {
        let all = LINKS.iter().enumerate();
        all.filter_map(move |(link, (near, far))| {
            (*near == Some(self))
                .then_some((link, true))
                .or((*far == self).then_some((link, false)))
        })
    }

    /// The section `interfaces` of its daemon.
    #[must_use]
    pub fn interfaces(self, sections: &Sections) -> Value {
        let one = |(link, near): (usize, bool)| {
            if near {
                return json!({"name": NAMES[link], "side": "servers"});
            }
            let attach = if sections.xdp { "xdp" } else { "tcx" };
            let mut interface = json!({"name": NAMES[link], "attach": attach});
            // Clients are behind the links that nobody else has an end of.
            if sections.border && LINKS[link].0.is_none() {
                interface["border"] = json!(true);
            }
            interface
        };
        self.links().map(one).collect()
    }

    /// Where it is found: a router by its end towards the servers, which S0 reaches.
    #[must_use]
    pub fn address(self) -> Ipv4Addr {
        let far = self.links().find(|(_, near)| *near).or_else(|| self.links().next());
        far.map_or(Ipv4Addr::UNSPECIFIED, |(link, near)| end(link, near))
    }

    /// Where a server listens.
    #[must_use]
    pub fn target(self) -> SocketAddrV4 {
        SocketAddrV4::new(self.address(), PORT)
    }
}

/// The address of an end of a link.
fn end(link: usize, near: bool) -> Ipv4Addr {
    Ipv4Addr::new(10, 64, u8::try_from(link).unwrap_or(u8::MAX), if near { 1 } else { 2 })
}

fn hardware(link: usize, near: bool) -> String {
    format!("02:00:00:00:{link:02x}:{:02x}", if near { 1 } else { 2 })
}

/// The clients of an agent, of two.
const fn clients(agent: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 16 + agent % 2, 0, 0)
}

/// The road, until it is dropped.
#[derive(Debug)]
pub struct Road<'a> {
    lab: &'a Lab,
    narrow: Shaped,
    /// Wide again with it.
    _access: Vec<Shaped>,
    hosts: Vec<(RoadHost, Managed)>,
}

impl<'a> Road<'a> {
    pub(crate) fn make(lab: &'a Lab, narrow: &Shaping, access: Option<&Shaping>) -> Result<Self> {
        let mut hosts = Vec::new();
        for host in RoadHost::ALL {
            hosts.push((host, site::container(lab)?));
        }
        let net = |host: Option<RoadHost>| {
            host.map_or_else(|| Role::Client.path(lab.id()), |host| path(&hosts, host))
        };
        let mut add = String::new();
        for (link, (near, far)) in LINKS.iter().enumerate() {
            let name = NAMES[link];
            let (ours, theirs) = (hardware(link, true), hardware(link, false));
            let (here, there) = (owner(lab, &hosts, *near), owner(lab, &hosts, Some(*far)));
            let _ = writeln!(
                add,
                "link add {name} address {ours} netns {here} type veth peer name {name} \
                 address {theirs} netns {there}"
            );
        }
        os::run_with_input("ip", &["-batch", "-"], &add)?;
        for host in std::iter::once(None).chain(RoadHost::ALL.map(Some)) {
            let net = net(host);
            topology::within(&net, &["sh"], &sysctls(host))?;
            topology::within(&net, &["ip", "-batch", "-"], &addresses(host))?;
        }
        for (link, (near, far)) in LINKS.iter().enumerate() {
            for host in [*near, Some(*far)] {
                let off = ["ethtool", "-K", NAMES[link], "gro", "off", "tso", "off", "gso", "off"];
                topology::within(&net(host), &off, "")?;
            }
        }
        let narrow = shape::apply(net(Some(RoadHost::R2)), NARROW, (narrow, BURST_BYTES))?;
        let mut narrowed = Vec::new();
        for (shaping, device) in access.into_iter().flat_map(|s| [(s, NAMES[0]), (s, NAMES[1])]) {
            narrowed.push(shape::apply(net(None), device, (shaping, BURST_BYTES))?);
        }
        Ok(Self { lab, narrow, _access: narrowed, hosts })
    }

    /// The narrow link.
    #[must_use]
    pub const fn narrow(&self) -> &Shaped {
        &self.narrow
    }

    fn net(&self, host: RoadHost) -> String {
        path(&self.hosts, host)
    }

    /// Starts the small server on a host, on port 80, and waits until it listens.
    ///
    /// # Errors
    /// As [`Lab::start_tiny`].
    pub fn start_tiny(&self, host: RoadHost, options: &TinyOptions) -> Result<Server> {
        self.lab.serve_in(Some(self.net(host)));
        let server = self.lab.start_tiny(&TinyOptions { port: PORT, ..options.clone() });
        self.lab.serve_in(None);
        server
    }

    /// Requests for a host from the clients of an agent, each of so many bytes or as long as it is anyway.
    #[must_use]
    pub fn stream(
        &self,
        (name, agent): (&str, u8),
        (host, server): (RoadHost, &Server),
        bytes: usize,
        arrive: Arrive,
    ) -> Stream {
        let stream = Stream {
            target: SocketAddr::V4(host.target()),
            sources: Sources { first: IpAddr::V4(clients(agent)), count: CLIENTS },
            ..server.stream(name, arrive)
        };
        stream.padded(bytes)
    }

    /// Starts the product on a host with these services and other sections, and waits until it answers.
    ///
    /// # Errors
    /// As [`Lab::start_product`].
    pub fn start_product(
        &self,
        program: &Path,
        host: RoadHost,
        (services, sections): (&Value, &Sections),
    ) -> Result<Product> {
        let dir = self.lab.private_dir(&format!("tidegate-{}", host.name()))?;
        let (file, socket) = (dir.join("tidegate.yaml"), dir.join("control.sock"));
        // On the lab's BPF file system, under a name of its own.
        let pins = self.lab.pins().with_file_name(dir.file_name().unwrap_or_default());
        let mut whole = json!({
            "interfaces": host.interfaces(sections),
            "services": services,
            "daemon": {"socket": socket, "http": "off", "pins": pins},
        });
        for (name, section) in &sections.others {
            whole[name] = section.clone();
        }
        os::write(&file, whole.to_string())?;
        product::start_in(self.lab, self.net(host), program, (&file, &socket))
    }

    /// Detaches what a daemon has left on a host that was killed with this configuration.
    ///
    /// # Errors
    /// What the product says, or when the file is none.
    pub fn detach(&self, program: &Path, host: RoadHost, file: &Path) -> Result<()> {
        let missing = LabError::Missing;
        let text = std::fs::read_to_string(file).map_err(LabError::io(os::text(file)))?;
        let whole: Value = serde_json::from_str(&text).map_err(|e| missing(e.to_string()))?;
        let pins = whole["daemon"]["pins"].as_str();
        let pins = pins.ok_or_else(|| missing(format!("pins in {}", file.display())))?;
        let command = [&os::text(program), "detach", "--pins", pins];
        topology::within(&self.net(host), &command, "").map(drop)
    }

    /// Sends datagrams for S0 until what it gives is dropped.
    ///
    /// # Errors
    /// A rate or a size that cannot be sent.
    pub fn send_datagrams(&self, agent: u8, (rate, bytes): (f64, usize)) -> Result<Managed> {
        let (from, to) = (sender(agent), RoadHost::S0.target());
        let datagrams = Datagrams { from, to, rate, bytes, seed: u64::from(agent) };
        let mut command = self.lab.helper().command("datagrams");
        command.push(datagrams.json()?);
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        self.lab.start_in(Role::Client, self.lab.load_cpu(), "datagrams", &words)
    }

    /// Limits datagrams for S0 on a host by nftables: what an operator does. Without a rate they are only
    /// counted. At S0 all end in the rule, so that nobody answers that the port is closed.
    ///
    /// # Errors
    /// What nft says; also when the rule is not there afterwards.
    pub fn limit_datagrams(&self, host: RoadHost, rate: Option<u32>) -> Result<DatagramRule> {
        let to = (RoadHost::S0.target(), host == RoadHost::S0);
        nft::limit_datagrams(self.net(host), to, rate)
    }
}

/// Where datagrams of an agent come from: an address that none of its clients has.
fn sender(agent: u8) -> Ipv4Addr {
    let [a, b, ..] = clients(agent).octets();
    Ipv4Addr::new(a, b, 255, 255)
}

fn process(hosts: &[(RoadHost, Managed)], host: RoadHost) -> u32 {
    hosts.iter().find(|(of, _)| *of == host).map_or(0, |(_, process)| process.pid())
}

fn path(hosts: &[(RoadHost, Managed)], host: RoadHost) -> String {
    format!("/proc/{}/ns/net", process(hosts, host))
}

/// A namespace as `ip link` takes it.
fn owner(lab: &Lab, hosts: &[(RoadHost, Managed)], host: Option<RoadHost>) -> String {
    host.map_or_else(
        || Role::Client.path(lab.id()).rsplit('/').next().unwrap_or_default().to_owned(),
        |host| process(hosts, host).to_string(),
    )
}

fn sysctls(host: Option<RoadHost>) -> String {
    let mut script = "set -e\ncd /proc/sys/net\n\
        for all in ipv4/conf/*/rp_filter; do echo 0 >$all; done\n\
        echo 1 >ipv4/tcp_no_metrics_save\n"
        .to_owned();
    match host {
        // As today's clients send SYNs again: 1, 2, 3, 4 and 5 s after the first, then later and later.
        None => {
            script.push_str("echo 4 >ipv4/tcp_syn_linear_timeouts\necho 6 >ipv4/tcp_syn_retries\n")
        }
        Some(host) => {
            // Nothing but the load is on the narrow link.
            script.push_str("echo 1 >ipv6/conf/all/disable_ipv6\n");
            if host.hops() > 0 {
                script.push_str("echo 1 >ipv4/ip_forward\n");
            }
        }
    }
    script
}

/// What `ip -batch` does on a host.
fn addresses(host: Option<RoadHost>) -> String {
    let ends: Vec<(usize, bool)> = match host {
        None => vec![(0, true), (1, true)],
        Some(host) => host.links().collect(),
    };
    let mut lines = if host.is_some() { "link set lo up\n".to_owned() } else { String::new() };
    for (link, near) in ends {
        let name = NAMES[link];
        let (own, other) = (end(link, near), end(link, !near));
        let hardware = hardware(link, !near);
        let _ = writeln!(
            lines,
            "addr add {own}/24 dev {name}\nlink set {name} up\n\
             neigh add {other} lladdr {hardware} dev {name} nud permanent"
        );
    }
    let both = [clients(0), clients(1)];
    match host {
        None => {
            for (agent, first) in both.iter().enumerate() {
                let (table, gateway) = (101 + agent, end(agent, false));
                let _ = writeln!(
                    lines,
                    "rule add from {first}/16 lookup {table} pref {table}\n\
                     route add default via {gateway} table {table}"
                );
            }
        }
        Some(host) => {
            let back = match host {
                RoadHost::R0 => vec![(both[0], 0)],
                RoadHost::R1 => vec![(both[1], 1)],
                RoadHost::R2 => vec![(both[0], 2), (both[1], 3)],
                _ => Vec::new(),
            };
            for (first, link) in back {
                let _ = writeln!(lines, "route add {first}/16 via {}", end(link, true));
            }
            let (link, near) = match host {
                RoadHost::R0 => (2, false),
                RoadHost::R1 => (3, false),
                RoadHost::R2 => (4, false),
                RoadHost::R3 => (4, true),
                RoadHost::S0 => (5, true),
                RoadHost::S1 => (6, true),
            };
            let _ = writeln!(lines, "route add default via {}", end(link, near));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Routers are where S0 finds them, and know which of their links lead to servers.
    #[test]
    fn hosts_have_addresses_and_sides() {
        let addresses = RoadHost::ALL.map(|host| host.address().to_string());
        let wanted = ["10.64.2.1", "10.64.3.1", "10.64.4.1", "10.64.5.1", "10.64.5.2", "10.64.6.2"];
        assert_eq!(addresses, wanted);
        let tcx = |name: &str| json!({"name": name, "attach": "tcx"});
        let servers = |name: &str| json!({"name": name, "side": "servers"});
        let sides = json!([tcx("l2"), tcx("l3"), servers("l4")]);
        assert_eq!(RoadHost::R2.interfaces(&Sections::default()), sides);
        assert_eq!(RoadHost::S0.interfaces(&Sections::default()), json!([tcx("l5")]));
        let edge = Sections { xdp: true, border: true, ..Sections::default() };
        let wanted = json!({"name": "l0", "attach": "xdp", "border": true});
        assert_eq!(RoadHost::R0.interfaces(&edge)[0], wanted);
        assert_eq!(RoadHost::R2.interfaces(&edge)[0].get("border"), None);
    }

    /// Each agent's clients have a way back, and datagrams come from outside of their range.
    #[test]
    fn ways_lead_back() {
        let r2 = addresses(Some(RoadHost::R2));
        for line in ["route add 10.16.0.0/16 via 10.64.2.1", "route add 10.17.0.0/16 via 10.64.3.1"]
        {
            assert!(r2.contains(line), "{r2}");
        }
        assert!(addresses(None).contains("rule add from 10.17.0.0/16 lookup 102 pref 102"));
        assert_eq!(sender(1).to_string(), "10.17.255.255");
    }
}
