// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Four routers and two servers: the testbed of NetDraino (papers/netdraino.txt, section 7.1).
//!
//! ```text
//!  cl ── l0 ── R0 ── l2 ──┐                             ┌── l5 ── S0 10.64.5.2
//!                         R2 ── l4: the narrow one ── R3
//!  cl ── l1 ── R1 ── l3 ──┘                             └── l6 ── S1 10.64.6.2
//! ```
//!
//! It is a [`Graph`]: there it stands which addresses links and clients have.
//!
//! The links of the agents (l0, l1) may be narrowed at the clients as well. One kernel sends the SYNs of thousands of
//! clients again in bursts, those of a slot of its timers (8 to 64 ms) at once; there they come apart, as those of many
//! hosts do.

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
use crate::graph::{self, Graph, GraphSpec, HostSpec, LinkSpec};
use crate::lab::Lab;
use crate::os;
use crate::process::Managed;
use crate::product::Product;
use crate::server::Server;
use crate::server::nft::{self, DatagramRule};
use crate::server::tiny::TinyOptions;
use crate::shape::{Shaped, Shaping};
use crate::topology::{self, Role};
use crate::{Arrive, Stream};
use serde_json::{Map, Value, json};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

/// The narrow link, at R2.
const NARROW: usize = 4;
/// The links of the agents.
const ACCESS: [usize; 2] = [0, 1];
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

    /// Its place in [`RoadHost::ALL`]: its number in the graph.
    fn number(self) -> usize {
        Self::ALL.iter().position(|host| *host == self).unwrap_or_default()
    }

    /// The section `interfaces` of its daemon.
    #[must_use]
    pub fn interfaces(self, sections: &Sections) -> Value {
        let spec = graph_spec();
        let mut all = spec.interfaces(self.number());
        let ends = spec.ends(Some(self.number()));
        for (interface, (link, near)) in all.as_array_mut().into_iter().flatten().zip(ends) {
            if sections.xdp && !near {
                interface["attach"] = json!("xdp");
            }
            // Clients are behind the links that nobody else has an end of.
            if sections.border && LINKS[link].0.is_none() {
                interface["border"] = json!(true);
            }
        }
        all
    }

    /// Where it is found: a router by its end towards the servers, which S0 reaches.
    #[must_use]
    pub fn address(self) -> Ipv4Addr {
        let spec = graph_spec();
        let mut ends: Vec<graph::End> = spec.ends(Some(self.number())).collect();
        ends.sort_by_key(|(_, near)| !near);
        ends.first().map_or(Ipv4Addr::UNSPECIFIED, |end| graph::address(*end))
    }

    /// Where a server listens.
    #[must_use]
    pub fn target(self) -> SocketAddrV4 {
        SocketAddrV4::new(self.address(), PORT)
    }
}

/// Hosts and links, all as wide as the machine can.
fn graph_spec() -> GraphSpec {
    let host = |host: RoadHost| HostSpec { name: host.name(), forwards: host.hops() > 0 };
    let link = |(near, far): (Option<RoadHost>, RoadHost)| {
        LinkSpec::plain(near.map(RoadHost::number), far.number())
    };
    GraphSpec { hosts: RoadHost::ALL.map(host).to_vec(), links: LINKS.map(link).to_vec() }
}

/// The road, until it is dropped.
#[derive(Debug)]
pub struct Road<'a> {
    lab: &'a Lab,
    graph: Graph<'a>,
}

impl<'a> Road<'a> {
    pub(crate) fn make(lab: &'a Lab, narrow: &Shaping, access: Option<&Shaping>) -> Result<Self> {
        let mut spec = graph_spec();
        spec.links[NARROW].up = Some(*narrow);
        for link in ACCESS {
            spec.links[link].up = access.copied();
        }
        Ok(Self { lab, graph: lab.graph(&spec)? })
    }

    /// The narrow link.
    ///
    /// # Errors
    /// As [`Graph::shaped`].
    pub fn narrow(&self) -> Result<&Shaped> {
        self.graph.shaped((NARROW, true))
    }

    fn net(&self, host: RoadHost) -> String {
        self.graph.net(Some(host.number()))
    }

    /// Starts the small server on a host, on port 80, and waits until it listens.
    ///
    /// # Errors
    /// As [`Lab::start_tiny`].
    pub fn start_tiny(&self, host: RoadHost, options: &TinyOptions) -> Result<Server> {
        self.graph.start_tiny(host.number(), options)
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
        let door = usize::from(agent) % ACCESS.len();
        self.graph.stream((name, door), (host.number(), server), arrive).padded(bytes)
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
        let mut whole = sections.others.clone();
        whole.insert("interfaces".into(), host.interfaces(sections));
        whole.insert("services".into(), services.clone());
        self.graph.start_product(program, host.number(), &Value::Object(whole))
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
    let [a, b, ..] = graph::clients(usize::from(agent) % ACCESS.len()).octets();
    Ipv4Addr::new(a, b, 255, 255)
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
        let spec = graph_spec();
        let r2 = spec.addresses(Some(RoadHost::R2.number()));
        for line in ["route add 10.16.0.0/16 via 10.64.2.1", "route add 10.17.0.0/16 via 10.64.3.1"]
        {
            assert!(r2.contains(line), "{r2}");
        }
        let clients = spec.addresses(None);
        assert!(clients.contains("rule add from 10.17.0.0/16 lookup 102 pref 102"));
        assert_eq!(sender(1).to_string(), "10.17.255.255");
    }
}
