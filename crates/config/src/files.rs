// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files that a configuration names, and that the daemon reads again while it runs.

use super::cluster::ClusterConfig;
use super::error::step;
use super::types::Config;
use std::path::Path;

impl Config {
    /// These files, each with the path of the key that names it.
    #[must_use]
    pub fn files(&self) -> Vec<(String, &Path)> {
        let cluster = self.cluster.iter().flat_map(of_cluster);
        let gateways = self.gateways.iter().flat_map(|gateway| {
            let files = gateway.tls.iter().flat_map(|tls| tls.files());
            let at = move |key: &str| format!("gateways.{}.tls.{key}", step(&gateway.name));
            files.map(move |(key, file)| (at(key), file))
        });
        let routers = self.flowspec.iter().flat_map(|flowspec| &flowspec.peers);
        let passwords = routers.filter_map(|peer| {
            let at = format!("flowspec.peers.{}.password_file", step(&peer.name));
            Some((at, peer.password_file.as_deref()?))
        });
        cluster.chain(gateways).chain(passwords).collect()
    }
}

fn of_cluster(cluster: &ClusterConfig) -> Vec<(String, &Path)> {
    let ClusterConfig { certificate, key, ca_file, grants, signing, bus, .. } = cluster;
    let own = [("certificate", certificate), ("key", key), ("ca_file", ca_file)];
    let mut files: Vec<(String, &Path)> =
        own.map(|(key, file)| (format!("cluster.{key}"), file.as_path())).into();
    if let Some(grants) = grants {
        files.push(("cluster.grants.operator".into(), &grants.operator));
        let each = grants.files.iter().enumerate();
        files.extend(each.map(|(n, file)| (format!("cluster.grants.files[{n}]"), file.as_path())));
        let revoked = grants.revoked.as_deref();
        files.extend(revoked.map(|file| ("cluster.grants.revoked".into(), file)));
    }
    if let Some(signing) = signing {
        files.push(("cluster.signing.key".into(), &signing.key));
        files.push(("cluster.signing.grant".into(), &signing.grant));
    }
    let of_bus = bus.iter().flat_map(|bus| bus.files());
    files.extend(of_bus.map(|(key, file)| (format!("cluster.bus.{key}"), file)));
    files
}

#[cfg(test)]
mod tests {
    use crate::{Registry, parse};

    #[test]
    fn each_file_stands_at_its_key() {
        let text = "
interfaces: [{name: eth0}, {name: eth1, side: servers}]
services: {shop: {mode: shadow, listen: ['192.0.2.11:80']}, mail: {mode: shadow, listen: ['192.0.2.11:25']}}
gateways:
  edge: {adapter: traefik, listen: '192.0.2.1:80', routes: [{service: shop}],
         tls: {certificate: /g/c, key: /g/k, ca_file: /g/a}}
cluster:
  certificate: /c
  key: /k
  ca_file: /a
  listen: 192.0.2.1:7416
  peers: {b1: {identity: 'spiffe://e/b1', services: [shop], limits_when_congested: ['192.0.2.11:80']}}
  grants: {operator: /o, files: [/g1, /g2], revoked: /r}
flowspec:
  speaker: gobgp
  as: 65001
  router_id: 192.0.2.11
  peers: {r1: {address: 192.0.2.1, local: 192.0.2.11, as: 65002, password_file: /p}}
  export: [{service: mail}]
";
        let config = parse(text, &Registry::new(["fresh_first"], ["default"])).unwrap();
        let files = config.files();
        let said: Vec<String> =
            files.iter().map(|(at, file)| format!("{at} {}", file.display())).collect();
        assert_eq!(
            said,
            [
                "cluster.certificate /c",
                "cluster.key /k",
                "cluster.ca_file /a",
                "cluster.grants.operator /o",
                "cluster.grants.files[0] /g1",
                "cluster.grants.files[1] /g2",
                "cluster.grants.revoked /r",
                "gateways.edge.tls.certificate /g/c",
                "gateways.edge.tls.key /g/k",
                "gateways.edge.tls.ca_file /g/a",
                "flowspec.peers.r1.password_file /p",
            ]
        );
    }
}
