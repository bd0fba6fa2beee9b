// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who may limit whom on the road: certificates, keys, grants, and what daemons are told of them.

use super::{PEERS, Road, RoadHost};
use crate::error::Result;
use crate::os;
use crate::server::tls;
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};

/// The operator's keys, and those of S0 and S1 for limits.
const OPERATOR: &str = "operator";
/// Numbers of the grants of S0 and S1.
pub(crate) const GRANTS: [(RoadHost, u64); 2] = [(RoadHost::S0, 1), (RoadHost::S1, 2)];

/// What daemons say of each other, so that S0 limits congested routers.
#[derive(Clone, Debug)]
pub struct Pushback {
    /// The section `cluster` of S0's daemon.
    pub server: Value,
    /// The same of each router's.
    pub routers: Vec<(RoadHost, Value)>,
    /// Where the keys of all hosts are.
    pub(crate) keys: PathBuf,
    /// Keys for the same names, by an authority that nobody trusts.
    pub(crate) foreign: PathBuf,
}

impl Pushback {
    /// The section of a router.
    #[must_use]
    pub fn router(&self, host: RoadHost) -> Option<&Value> {
        self.routers.iter().find(|(of, _)| *of == host).map(|(_, section)| section)
    }
}

impl Road<'_> {
    /// Certificates, keys and grants, made anew, and what daemons are told of them: each of these hosts may limit its
    /// service of this name at these routers while they are congested. S0 is the first.
    ///
    /// # Errors
    /// When they cannot be made or written, or the product issues no grant.
    pub fn pushback(
        &self,
        program: &Path,
        services: &[(RoadHost, &str)],
        routers: &[RoadHost],
    ) -> Result<Pushback> {
        let (dir, foreign) = (self.lab.private_dir("peers")?, self.lab.private_dir("foreign")?);
        let all = RoadHost::ALL.map(|host| (host.name(), 0));
        for folder in [&dir, &foreign] {
            tls::make_peers(folder, &all)?;
            tls::make_signer(folder, OPERATOR)?;
            for (host, _) in GRANTS {
                tls::make_signer(folder, &signer(host))?;
            }
        }
        for (host, _) in services {
            os::write(&grant(&dir, *host), issue(program, &dir, *host)?)?;
        }
        let mut server = own(&dir, RoadHost::S0);
        server["signing"] = json!({
            "key": os::text(&dir.join(format!("{}.key", signer(RoadHost::S0)))),
            "grant": os::text(&grant(&dir, RoadHost::S0)),
        });
        server["report_to"] = json!({});
        let mut sections = Vec::new();
        for router in routers {
            for (_, service) in services.iter().filter(|(host, _)| *host == RoadHost::S0) {
                server["report_to"][router.name()] = told(*router, routers, service);
            }
            sections.push((*router, section(&dir, *router, services)));
        }
        Ok(Pushback { server, routers: sections, keys: dir, foreign })
    }
}

/// The name of a host's key for limits.
pub(crate) fn signer(host: RoadHost) -> String {
    format!("{}-limits", host.name())
}

pub(crate) fn identity(host: RoadHost) -> String {
    format!("spiffe://example.org/{}", host.name())
}

/// What a host may limit: itself.
pub(crate) fn scope(host: RoadHost) -> String {
    host.target().to_string()
}

fn grant(dir: &Path, host: RoadHost) -> PathBuf {
    dir.join(format!("{}.grant", host.name()))
}

fn issue(program: &Path, dir: &Path, host: RoadHost) -> Result<String> {
    let number = GRANTS.iter().find(|(of, _)| *of == host).map_or(0, |(_, number)| *number);
    let file = |name: String| os::text(&dir.join(name));
    let (operator, key) = (file(format!("{OPERATOR}.key")), file(format!("{}.pub", signer(host))));
    let (identity, scope, number) = (identity(host), scope(host), number.to_string());
    let issue = ["grants", "issue", "--kind", "rate", "--kind", "datagrams", "--waive-staging"];
    let of = ["--holder", &identity, "--scope", &scope, "--operator-key", &operator];
    let args = [&issue[..], &of[..], &["--holder-key", &key, "--serial", &number]].concat();
    os::run(&os::text(program), &args)
}

/// A host's own part of the section `cluster`.
fn own(dir: &Path, host: RoadHost) -> Value {
    let file = |end: &str| os::text(&dir.join(format!("{}.{end}", host.name())));
    json!({
        "certificate": file("pem"),
        "key": file("key"),
        "ca_file": os::text(&dir.join("authority.pem")),
    })
}

/// That of a router.
fn section(dir: &Path, router: RoadHost, services: &[(RoadHost, &str)]) -> Value {
    let mut section = own(dir, router);
    let grants: Vec<String> =
        services.iter().map(|(host, _)| os::text(&grant(dir, *host))).collect();
    section["listen"] = json!(format!("{}:{PEERS}", Ipv4Addr::UNSPECIFIED));
    let operator = os::text(&dir.join(format!("{OPERATOR}.pub")));
    section["grants"] = json!({"operator": operator, "files": grants});
    section["peers"] = json!({});
    for (host, service) in services {
        section["peers"][host.name()] = json!({
            "identity": identity(*host),
            "services": [service],
            "limits_when_congested": [scope(*host)],
        });
    }
    section
}

/// What S0 is told of a router.
fn told(router: RoadHost, routers: &[RoadHost], service: &str) -> Value {
    let mut target = json!({
        "address": SocketAddrV4::new(router.address(), PEERS).to_string(),
        "identity": identity(router),
        "services": [service],
        "limits": [{"service": service, "scope": scope(RoadHost::S0), "when": "congested"}],
    });
    if let Some(before) = router.before().filter(|before| routers.contains(before)) {
        target["behind"] = json!(before.name());
    }
    target
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next router towards the server is named only where it has a daemon.
    #[test]
    fn routers_stand_behind_each_other() {
        let of = |routers: &[RoadHost]| told(RoadHost::R0, routers, "s0");
        assert_eq!(of(&RoadHost::ROUTERS)["behind"], json!("r2"));
        assert_eq!(of(&[RoadHost::R0]).get("behind"), None);
        assert_eq!(of(&[RoadHost::R0])["address"], json!("10.64.2.1:7416"));
        assert_eq!(of(&[RoadHost::R0])["limits"][0]["scope"], json!("10.64.5.2:80"));
    }

    /// Each server may limit itself, and nobody else.
    #[test]
    fn a_router_knows_who_may_limit_what() {
        let services = [(RoadHost::S0, "s0"), (RoadHost::S1, "s1")];
        let section = section(Path::new("/x"), RoadHost::R2, &services);
        assert_eq!(section["peers"]["s1"]["limits_when_congested"], json!(["10.64.6.2:80"]));
        assert_eq!(section["peers"]["s0"]["limits_when_congested"], json!(["10.64.5.2:80"]));
        assert_eq!(section["grants"]["files"], json!(["/x/s0.grant", "/x/s1.grant"]));
    }
}
