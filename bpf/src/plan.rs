// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the daemon compiles from the configuration: plain data.

use crate::{Error, Requests, abi, abi_request, request_checks};
use ipnet::IpNet;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use tidegate_model::{CLASSES_MAX, LISTENS_MAX, PREFIXES_MAX, PRIORITIES, SERVICES_MAX};
use tidegate_policy::{Action, Policy};
use tidegate_units::Nanos;

/// Bytes that a hash of the kernel takes for an entry beside its value: the element's head and key,
/// a bucket, its place in the list of free ones (Linux 6.1 to 6.18, x86-64).
const HASH_BYTES: usize = 48 + 8 + 16;

/// What is protected, where, and how.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The services; their place here is their index everywhere.
    pub services: Vec<Service>,
    /// What is never refused.
    pub never_shed: NeverShed,
    /// Where the hooks go.
    pub interfaces: Vec<Interface>,
    /// Everything else.
    pub settings: Settings,
}

/// One service.
#[derive(Clone, Debug)]
pub struct Service {
    /// Name; state is kept across reloads for the same name at the same index.
    pub name: String,
    /// Where it listens.
    pub listen: Vec<Listen>,
    /// Verdicts are computed and counted, and not executed.
    pub shadow: bool,
    /// Which policy admits.
    pub policy: Policy,
    /// What happens to what the accept queue or `waiting_max` refuses (a policy has its own).
    pub action: Action,
    /// Classes 1, 2 …; class 0 is what no class names.
    pub classes: Vec<Class>,
    /// Header rules; `None`: requests are not looked at.
    pub requests: Option<Requests>,
}

/// Where a service listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listen {
    /// Local address.
    pub address: ListenAddress,
    /// Local port, not 0.
    pub port: u16,
    /// Transport protocol.
    pub protocol: Protocol,
}

/// A local address, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListenAddress {
    /// All IPv4 and IPv6 addresses.
    Any,
    /// All IPv4 addresses.
    AnyV4,
    /// All IPv6 addresses.
    AnyV6,
    /// This one.
    Ip(IpAddr),
}

/// Transport protocol. Only TCP has new work so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp = 6,
}

/// One class of a service.
#[derive(Clone, Debug, Default)]
pub struct Class {
    /// Name, for people.
    pub name: String,
    /// Sources that belong to it; the longest prefix of all classes wins.
    pub sources: Vec<IpNet>,
    /// DSCP (0…63) that belongs to it, on interfaces that trust it; prefixes come first.
    pub dscp: Option<u8>,
    /// 0 (highest) to 7.
    pub priority: u8,
}

/// What is never refused.
#[derive(Clone, Debug, Default)]
pub struct NeverShed {
    /// Sources.
    pub sources: Vec<IpNet>,
    /// Local ports, where a service listens on them.
    pub ports: Vec<u16>,
}

/// One interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its network namespace, as a path (`/run/netns/…`, `/proc/…/ns/net`); `None`: our own.
    pub namespace: Option<PathBuf>,
    /// Which hook.
    pub attach: AttachMode,
    /// Whether DSCP on this interface names classes.
    pub trust_dscp: bool,
}

/// Which ingress hook an interface gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttachMode {
    /// Native XDP, else tcx, else clsact.
    #[default]
    Auto,
    /// Native XDP or an error.
    Xdp,
    /// Generic XDP: works everywhere, slower; never chosen without being asked for.
    XdpGeneric,
    /// tcx, below Linux 6.6 clsact.
    Tcx,
    /// clsact: what `Tcx` falls back to; by itself for tests of that.
    #[doc(hidden)]
    Clsact,
}

/// Everything else.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Most answers (RST) per second and CPU; 0: never answer.
    pub rst_per_second: u32,
    /// Most of them beyond that, to sources that have completed a handshake lately; 0: none.
    pub rst_per_second_proved: u32,
    /// One admission in so many is sampled; 0: none.
    pub sample_admitted: u32,
    /// One refusal in so many is sampled; 0: none.
    pub sample_refused: u32,
    /// Connections in the flow table; a power of two from 1024 to 4 Mi.
    pub flows: u32,
    /// Unverified SYNs that are remembered; a power of two from 1024 to 4 Mi.
    pub pending: u32,
    /// Connections of services with rules that are followed; a power of two from 1024 to 4 Mi.
    pub conns: u32,
    /// Sources of all services; a power of two from 1024 to 4 Mi.
    pub sources: u32,
    /// A connection idle for longer is forgotten.
    pub flow_timeout: Nanos,
    /// Directory on a BPF filesystem; `None`: nothing is pinned, all ends with the process.
    pub pins: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rst_per_second: 1000,
            rst_per_second_proved: 20_000,
            sample_admitted: 256,
            sample_refused: 64,
            flows: 1 << 18,
            pending: 1 << 18,
            conns: 1 << 17,
            sources: 1 << 16,
            flow_timeout: Nanos::from_secs(60),
            pins: None,
        }
    }
}

impl Settings {
    /// Most answers beyond those for all: who is never to be answered is not, whoever asks.
    pub(crate) const fn proved(&self) -> u32 {
        if self.rst_per_second == 0 { 0 } else { self.rst_per_second_proved }
    }
}

impl Service {
    /// A service without classes and rules: a token bucket drops what is beyond its limits.
    #[must_use]
    pub fn new(name: &str, listen: Vec<Listen>) -> Self {
        Self {
            name: name.into(),
            listen,
            shadow: false,
            policy: Policy::TokenBucket,
            action: Action::Drop,
            classes: Vec::new(),
            requests: None,
        }
    }

    /// Whether its requests are judged.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        self.requests.as_ref().is_some_and(|requests| !requests.rules.is_empty())
    }
}

impl Plan {
    /// Checks every bound before anything is touched.
    ///
    /// # Errors
    /// [`Error::Plan`] names what is wrong and where.
    pub fn validate(&self) -> Result<(), Error> {
        let wrong = |text: String| Err(Error::Plan(text));
        if self.services.len() > SERVICES_MAX {
            return wrong(format!("{} services: at most {SERVICES_MAX}", self.services.len()));
        }
        let mut names = BTreeSet::new();
        for service in &self.services {
            if !names.insert(&service.name) {
                return wrong(format!("service {}: named twice", service.name));
            }
            service.validate()?;
        }
        let mut interfaces = BTreeSet::new();
        for interface in &self.interfaces {
            if !interfaces.insert((&interface.name, &interface.namespace)) {
                return wrong(format!("interface {}: named twice", interface.shown()));
            }
        }
        self.validate_listens()?;
        request_checks::check(self)?;
        let sources: usize =
            self.services.iter().flat_map(|s| &s.classes).map(|c| c.sources.len()).sum();
        if sources + self.never_shed.sources.len() > PREFIXES_MAX {
            return wrong(format!("more than {PREFIXES_MAX} source prefixes"));
        }
        let Settings { flows, pending, conns, sources, .. } = self.settings;
        for (what, size) in
            [("flows", flows), ("pending", pending), ("conns", conns), ("sources", sources)]
        {
            if !size.is_power_of_two() || !(1024..=1 << 22).contains(&size) {
                return wrong(format!("{what}: {size} is no power of two from 1024 to 4194304"));
            }
        }
        Ok(())
    }

    /// The tables whose size is configured: the key of the configuration, and about how many bytes
    /// of kernel memory each takes. That of requests is there once a service has rules.
    #[must_use]
    pub fn memory(&self) -> [(&'static str, u64); 4] {
        let Settings { flows, pending, conns, sources, .. } = self.settings;
        let of = |size: u32, bytes: usize| u64::from(size) * bytes as u64;
        [
            ("handshakes", of(pending, abi::PENDING_SIZE)),
            (
                "connections",
                of(flows, abi::FLOW_SIZE + abi::FLOW_TIMES_SIZE + abi::FLOW_SOURCE_SIZE),
            ),
            ("sources", of(sources, abi::SOURCE_WORD_SIZE + size_of::<abi::SourceRaw>())),
            ("requests", of(conns, abi_request::CONN_SIZE + HASH_BYTES)),
        ]
    }

    /// Whether a service has header rules: then there are hooks for them.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        self.services.iter().any(Service::has_rules)
    }

    fn validate_listens(&self) -> Result<(), Error> {
        let mut seen = BTreeSet::new();
        for service in &self.services {
            for listen in &service.listen {
                for key in listen.expand() {
                    if !seen.insert(key) {
                        return Err(Error::Plan(format!(
                            "service {}: {listen:?} is listed twice",
                            service.name
                        )));
                    }
                }
            }
        }
        if seen.len() > LISTENS_MAX {
            return Err(Error::Plan(format!("more than {LISTENS_MAX} listen addresses")));
        }
        Ok(())
    }
}

impl Service {
    fn validate(&self) -> Result<(), Error> {
        let wrong = |text: String| Err(Error::Plan(format!("service {}: {text}", self.name)));
        if self.classes.len() >= CLASSES_MAX {
            return wrong(format!("at most {} classes", CLASSES_MAX - 1));
        }
        if self.listen.iter().any(|listen| listen.port == 0) {
            return wrong("port 0".into());
        }
        for class in &self.classes {
            if usize::from(class.priority) >= PRIORITIES {
                return wrong(format!("class {}: priority {} above 7", class.name, class.priority));
            }
            if class.dscp.is_some_and(|dscp| dscp > 63) {
                return wrong(format!("class {}: DSCP above 63", class.name));
            }
        }
        Ok(())
    }
}

impl Listen {
    /// TCP at an address and port.
    #[must_use]
    pub const fn tcp(address: ListenAddress, port: u16) -> Self {
        Self { address, port, protocol: Protocol::Tcp }
    }

    /// The keys in the kernel's table: mapped address (zero: any) and port.
    pub(crate) fn expand(&self) -> Vec<([u8; 16], u16)> {
        let any_v4 = std::net::Ipv4Addr::UNSPECIFIED.to_ipv6_mapped().octets();
        let addresses = match self.address {
            ListenAddress::Any => vec![any_v4, [0; 16]],
            ListenAddress::AnyV4 => vec![any_v4],
            ListenAddress::AnyV6 => vec![[0; 16]],
            ListenAddress::Ip(ip) => vec![mapped(ip)],
        };
        addresses.into_iter().map(|address| (address, self.port)).collect()
    }
}

/// An address as the kernel's tables have it.
pub(crate) fn mapped(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}
