// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What no schema can say of the other routers of a domain.

use super::{ClusterConfig, SharingRouterConfig};
use crate::error::step;
use crate::name::name_fault;
use crate::types::Config;

/// What is wrong, and where.
pub(super) fn faults(config: &Config, cluster: &ClusterConfig) -> Vec<(String, String)> {
    let mut faults = Vec::new();
    if !cluster.routers.is_empty() && config.router.is_none() {
        let why = "the section router is missing, so nothing is measured that can be shared";
        faults.push(("cluster.routers".to_owned(), why.to_owned()));
    }
    for (at, router) in cluster.routers.iter().enumerate() {
        let path = format!("cluster.routers.{}", step(&router.name));
        if let Some(why) = name_fault(&router.name) {
            faults.push((path.clone(), format!("found the name {:?}: {why}", router.name)));
        }
        if let Some(address) = router.address.filter(|_| cluster.listen == router.address) {
            let why = format!("found {address}, where this host listens itself");
            faults.push((format!("{path}.address"), why));
        }
        let fault = used(cluster, at, router).map(|(key, why)| (format!("{path}{key}"), why));
        faults.extend(fault);
    }
    faults
}

/// A name or an identity that somebody else has. A host has one session with another one.
fn used(
    cluster: &ClusterConfig,
    at: usize,
    router: &SharingRouterConfig,
) -> Option<(&'static str, String)> {
    let routers = cluster.routers[..at].iter().map(|r| ("routers", &r.name, &r.identity));
    let peers = cluster.peers.iter().map(|p| ("peers", &p.name, &p.identity));
    let targets = cluster.report_to.iter().map(|t| ("report_to", &t.name, &t.identity));
    let mut known = routers.chain(peers).chain(targets);
    known.find_map(|(section, name, identity)| match (name, identity) {
        (_, identity) if *identity == router.identity => {
            let why =
                format!("found {identity}, which is {name:?} under cluster.{section} already");
            Some((".identity", why))
        }
        (name, _) if *name == router.name => {
            let why = format!("found {name:?}, a name under cluster.{section}: take another one");
            Some(("", why))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may")]

    use crate::{Registry, parse};

    const R2: &str = "r2: {address: '192.0.2.2:7416', identity: 'spiffe://a.example/r2'}";

    fn faults(router: &str, cluster: &str) -> String {
        let text = format!(
            "interfaces: [{{name: eth0}}]\nservices:\n  web: {{mode: shadow, listen: ['*:80']}}\n{router}\
             cluster: {{certificate: /c, key: /k, ca_file: /a, {cluster}}}\n"
        );
        let registry = Registry::new(["fresh_first"], ["default"]);
        parse(&text, &registry).map_or_else(|errors| errors.to_string(), |_| String::new())
    }

    #[test]
    fn routers_that_share_measure_listen_and_are_others() {
        let measures = "router: {destinations: ['192.0.2.0/24:80']}\n";
        let listen = "listen: '192.0.2.1:7416'";
        assert_eq!(faults(measures, &format!("{listen}, routers: {{{R2}}}")), "");
        let peer = "peers: {r3: {identity: 'spiffe://a.example/r2', services: [web]}}";
        let report =
            "report_to: {r2: {address: '192.0.2.9:7416', identity: 'spiffe://a.example/f'}}";
        let twice = format!("{R2}, {}", R2.replacen("r2:", "r3:", 1));
        for (router, cluster, said) in [
            ("", format!("{listen}, routers: {{{R2}}}"), "the section router is missing"),
            (measures, format!("routers: {{{R2}}}"), "the key \"listen\" is missing"),
            (
                measures,
                format!("listen: '192.0.2.2:7416', routers: {{{R2}}}"),
                "where this host listens itself",
            ),
            (
                measures,
                format!("{listen}, routers: {{{R2}}}, {peer}"),
                "which is \"r3\" under cluster.peers already",
            ),
            (
                measures,
                format!("{listen}, routers: {{{R2}}}, {report}"),
                "found \"r2\", a name under cluster.report_to",
            ),
            (
                measures,
                format!("{listen}, routers: {{{twice}}}"),
                "which is \"r2\" under cluster.routers already",
            ),
            (measures, format!("{listen}, routers: {{r2: {{}}}}"), "identity"),
        ] {
            let found = faults(router, &cluster);
            assert!(found.contains(said), "{cluster}: {found:?} does not say {said:?}");
        }
    }
}
