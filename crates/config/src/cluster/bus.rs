// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The key `bus` of a cluster: routers share over a NATS server, in place of sessions with each other.

use super::ClusterConfig;
use crate::error::step;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use tidegate_model::written_as_text;

/// Most servers of a bus.
pub const BUS_SERVERS_MAX: usize = 8;
/// Longest subject, in bytes.
pub const SUBJECT_MAX: usize = 128;
/// Longest name of a host, and of one of its labels.
const HOST_MAX: usize = 253;
const LABEL_MAX: usize = 63;

/// A bus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BusConfig {
    /// NATS servers of one cluster. The daemon is connected to one of them; if that is lost, it tries all.
    #[schemars(length(min = 1, max = BUS_SERVERS_MAX))]
    pub servers: Vec<BusServer>,
    /// Where reports are published. Nobody but these routers should be allowed to publish there.
    #[serde(default)]
    pub subject: Subject,
    /// TLS to the server. Without it a connection is not encrypted; reports are signed in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<BusTls>,
    /// What the server knows this host by: a credentials file of NATS (JWT and seed), an absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub credentials_file: Option<PathBuf>,
}

/// Certificates for the connection to a NATS server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BusTls {
    /// Whoever signs the certificates of the servers (PEM), an absolute path. A certificate has to be for the name or
    /// address under `servers`.
    #[schemars(with = "String")]
    pub ca_file: PathBuf,
    /// What this host shows the server, where the server asks for it (PEM), an absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub certificate: Option<PathBuf>,
    /// The key of that certificate (PEM), an absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub key: Option<PathBuf>,
}

impl BusConfig {
    /// Its files, with the keys below `cluster.bus` that name them.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let tls = self.tls.iter().flat_map(|tls| {
            let own = [("tls.certificate", &tls.certificate), ("tls.key", &tls.key)];
            let own = own.into_iter().filter_map(|(key, file)| Some((key, file.as_deref()?)));
            std::iter::once(("tls.ca_file", tls.ca_file.as_path())).chain(own)
        });
        let credentials = self.credentials_file.as_deref();
        tls.chain(credentials.map(|file| ("credentials_file", file)))
    }
}

/// A server of a bus: the name or the address of a host, with a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BusServer(String);

impl FromStr for BusServer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "it is no name or address with a port".to_owned();
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        match port.parse::<u16>() {
            Ok(0) => return Err("port 0 is no port".into()),
            Ok(_) if digits => {}
            _ => return Err(wrong()),
        }
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let known = match inner {
            Some(address) => address.parse::<Ipv6Addr>().is_ok(),
            None if host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') => {
                matches!(host.parse(), Ok(IpAddr::V4(_)))
            }
            None => is_host(host),
        };
        if known { Ok(Self(text.to_owned())) } else { Err(wrong()) }
    }
}

fn is_host(host: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let label = |label: &str| {
        (1..=LABEL_MAX).contains(&label.len())
            && label.bytes().all(allowed)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    host.len() <= HOST_MAX && host.split('.').all(label)
}

impl fmt::Display for BusServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

written_as_text!(BusServer, "bus-server");

/// A subject of NATS, without wildcards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject(String);

impl Default for Subject {
    fn default() -> Self {
        Self("tidegate.routers".into())
    }
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let token = |token: &str| !token.is_empty() && token.bytes().all(allowed);
        if text.len() > SUBJECT_MAX {
            return Err(format!("it is longer than {SUBJECT_MAX} bytes"));
        }
        if !text.split('.').all(token) {
            return Err("it is no subject without wildcards".into());
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

written_as_text!(Subject, "subject");

/// What is wrong with a bus, or is missing without one, and where.
pub(super) fn faults(cluster: &ClusterConfig) -> Vec<(String, String)> {
    let Some(bus) = &cluster.bus else {
        let unreached = cluster.routers.iter().filter(|router| router.address.is_none());
        let fault = |name: &String| {
            let why = "the key \"address\" is missing: without cluster.bus each router is connected to all others";
            (format!("cluster.routers.{}", step(name)), why.to_owned())
        };
        return unreached.map(|router| fault(&router.name)).collect();
    };
    let mut faults = Vec::new();
    if cluster.routers.is_empty() {
        let why = "nobody shares over it: name the other routers under \"routers\"";
        faults.push(("cluster.bus".to_owned(), why.to_owned()));
    }
    for router in cluster.routers.iter().filter(|router| router.address.is_some()) {
        let why = "found an address, but routers share over cluster.bus: leave it out";
        let path = format!("cluster.routers.{}.address", step(&router.name));
        faults.push((path, why.to_owned()));
    }
    let mut seen = BTreeSet::new();
    for (at, server) in bus.servers.iter().enumerate() {
        if !seen.insert(server) {
            let path = format!("cluster.bus.servers[{at}]");
            faults.push((path, format!("found {server} a second time")));
        }
    }
    if let Some(tls) = &bus.tls {
        let missing = match (&tls.certificate, &tls.key) {
            (Some(_), None) => Some(("certificate", "key")),
            (None, Some(_)) => Some(("key", "certificate")),
            _ => None,
        };
        faults.extend(missing.map(|(there, missing)| {
            let why =
                format!("the key \"{missing}\" is missing: {there} and {missing} go together");
            ("cluster.bus.tls".to_owned(), why)
        }));
    }
    faults
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may")]

    use super::*;
    use crate::{Config, Registry, parse};

    const R2: &str = "r2: {identity: 'spiffe://a.example/r2'}";

    fn config(cluster: &str) -> Result<Config, String> {
        let text = format!(
            "interfaces: [{{name: eth0}}]\nservices:\n  web: {{mode: shadow, listen: ['*:80']}}\n\
             router: {{destinations: ['192.0.2.0/24:80']}}\n\
             cluster:\n  certificate: /c\n  key: /k\n  ca_file: /a\n{cluster}"
        );
        let registry = Registry::new(["fresh_first"], ["default"]);
        parse(&text, &registry).map_err(|errors| errors.to_string())
    }

    #[test]
    fn a_bus_needs_servers_and_routers_without_addresses() {
        let config = config(&format!(
            "  routers: {{{R2}}}\n  bus:\n    servers: ['n1.example:4222', '[2001:db8::1]:4222']\n    \
             tls: {{ca_file: /b/a, certificate: /b/c, key: /b/k}}\n    credentials_file: /b/n\n"
        ));
        let cluster = config.unwrap().cluster.unwrap();
        let bus = cluster.bus.unwrap();
        assert_eq!(bus.subject.to_string(), "tidegate.routers");
        let files: Vec<String> =
            bus.files().map(|(key, file)| format!("{key} {}", file.display())).collect();
        let expected =
            ["tls.ca_file /b/a", "tls.certificate /b/c", "tls.key /b/k", "credentials_file /b/n"];
        assert_eq!(files, expected);
    }

    #[test]
    fn each_fault_is_at_its_line() {
        let (all, bus) = (format!("  routers: {{{R2}}}\n"), "  bus: {servers: ['n:4222']}\n");
        let address = all.replace("{identity", "{address: '192.0.2.2:7416', identity");
        for (cluster, place, said) in [
            (all.clone(), "9:", "cluster.routers.r2: the key \"address\" is missing"),
            (bus.to_owned(), "9:", "cluster.bus: nobody shares over it"),
            (address + bus, "9:", "cluster.routers.r2.address: found an address"),
            (format!("{all}  bus: {{servers: []}}\n"), "10:", "cluster.bus.servers"),
            (format!("{all}  bus: {{servers: ['n']}}\n"), "10:", "no name or address with a port"),
            (format!("{all}  bus: {{servers: ['n:0']}}\n"), "10:", "port 0 is no port"),
            (
                format!("{all}  bus: {{servers: ['n:1', 'n:1']}}\n"),
                "10:",
                "found n:1 a second time",
            ),
            (format!("{all}  bus: {{servers: ['n:1'], subject: 'a.>'}}\n"), "10:", "no subject"),
            (
                format!("{all}  bus: {{servers: ['n:1'], tls: {{ca_file: /a, key: /k}}}}\n"),
                "10:",
                "cluster.bus.tls: the key \"certificate\" is missing",
            ),
            (
                format!("{all}  bus: {{servers: ['n:1'], tls: {{ca_file: a}}}}\n"),
                "10:",
                "cluster.bus.tls.ca_file: found \"a\"; allowed: an absolute path",
            ),
            (
                format!("{all}  bus: {{servers: ['n:1'], credentials_file: /a/../b}}\n"),
                "10:",
                "cluster.bus.credentials_file: found \"/a/../b\"",
            ),
        ] {
            let found = config(&cluster).unwrap_err();
            assert!(found.contains(said) && found.contains(place), "{cluster}: {found}");
        }
    }

    #[test]
    fn servers_and_subjects_have_one_form() {
        let server = |text: &str| text.parse::<BusServer>().is_ok();
        let longest = format!("{}:1", ["a".repeat(63).as_str(); 3].join("."));
        for good in ["n:1", "nats.example.org:4222", "192.0.2.1:65535", "[::1]:4222", &longest] {
            assert!(server(good), "{good}");
        }
        let long = format!("{}:1", "a".repeat(64));
        for bad in [
            "",
            "n",
            "n:",
            ":1",
            "n:65536",
            "n:+1",
            "-n:1",
            "n-:1",
            "n..m:1",
            "192.0.2:1",
            "::1:1",
            "[n]:1",
            "nats://n:1",
            "u:p@n:1",
            "n m:1",
            &long,
        ] {
            assert!(!server(bad), "{bad}");
        }
        let subject = |text: &str| text.parse::<Subject>().is_ok();
        assert!(subject("a.b-c_d.E9") && subject(&"a".repeat(SUBJECT_MAX)));
        for bad in ["", ".", "a.", ".a", "a..b", "a.*", ">", "a b", "$SYS.x", "a\r\nb"] {
            assert!(!subject(bad), "{bad}");
        }
        assert!(!subject(&"a".repeat(SUBJECT_MAX + 1)));
    }
}
