// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Health checkers that can be told by their source addresses alone. Whose address is that of everybody
//! (balancers that open connections of their own) is none of them: an exemption would exempt all.

use super::types::NeverShed;
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A preset of `never_shed.presets`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Google Cloud, passthrough Network Load Balancers: their health checkers. Not behind an Application
    /// or proxy Load Balancer, whose clients come from the same addresses.
    GcpPassthrough,
    /// Azure Load Balancer: its health probes.
    AzureLoadBalancer,
    /// Kubernetes: the kubelet of this node, by the addresses of the network namespace in which the daemon
    /// starts. Only for hooks in other namespaces (pods).
    Node,
}

impl Preset {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::GcpPassthrough, Self::AzureLoadBalancer, Self::Node];

    /// The word of the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::GcpPassthrough => "gcp-passthrough",
            Self::AzureLoadBalancer => "azure-load-balancer",
            Self::Node => "node",
        }
    }

    /// Its prefixes, as documented by whom they belong to, looked up on 2026-11-26. Those of a node are known there.
    #[must_use]
    pub const fn prefixes(self) -> &'static [&'static str] {
        match self {
            // cloud.google.com/load-balancing/docs/firewall-rules and health-check-concepts#ip-ranges:
            // internal and regional external passthrough Network Load Balancers.
            Self::GcpPassthrough => &[
                "35.191.0.0/16",
                "130.211.0.0/22",
                "209.85.152.0/22",
                "209.85.204.0/22",
                "2600:1901:8001::/48",
                "2600:2d00:1:b029::/64",
            ],
            // learn.microsoft.com/azure/load-balancer/load-balancer-custom-probe-overview: one address in
            // all regions; over IPv6 the link-local address of the host.
            Self::AzureLoadBalancer => &["168.63.129.16/32", "fe80::1234:5678:9abc/128"],
            Self::Node => &[],
        }
    }

    /// What it stands for, in a sentence, for `check`. `node`: the addresses of this node.
    #[must_use]
    pub fn sentence(self, node: &[IpAddr]) -> String {
        let node: Vec<String> = node.iter().map(ToString::to_string).collect();
        let prefixes = match self {
            Self::Node if node.is_empty() => "no address".to_owned(),
            Self::Node => node.join(", "),
            _ => self.prefixes().join(", "),
        };
        let name = self.name();
        let who = match self {
            Self::GcpPassthrough => {
                "health checkers of Google's passthrough Network Load Balancers. Behind an Application or a \
                 proxy Network Load Balancer all clients come from these addresses, and nobody would ever be \
                 refused: leave it out there"
            }
            Self::AzureLoadBalancer => "health probes of Azure Load Balancer",
            Self::Node => {
                "the kubelet of this node. A connection that this node passes on for a Service gets its address, \
                 too, and is never refused: such Services need `externalTrafficPolicy: Local`"
            }
        };
        format!("never_shed.presets: {name} exempts {prefixes}: {who}")
    }
}

impl NeverShed {
    /// Adds the prefixes of its presets to its sources.
    pub(super) fn complete(&mut self) {
        for preset in self.presets.clone() {
            // A test reads each of them.
            let prefixes = preset.prefixes().iter().filter_map(|text| text.parse::<IpNet>().ok());
            for prefix in prefixes {
                self.exempt(prefix);
            }
        }
    }

    /// Whether [`Self::complete_node`] is to be called.
    #[must_use]
    pub fn needs_node(&self) -> bool {
        self.presets.contains(&Preset::Node)
    }

    /// Adds the addresses of this node to its sources, if its presets name it.
    pub fn complete_node(&mut self, addresses: &[IpAddr]) {
        let named = self.needs_node();
        for address in addresses.iter().filter(|_| named) {
            self.exempt(IpNet::from(*address));
        }
    }

    fn exempt(&mut self, prefix: IpNet) {
        if !self.sources.contains(&prefix) {
            self.sources.push(prefix);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Registry, parse};
    use super::*;

    #[test]
    fn presets_become_sources_once() {
        for preset in [Preset::GcpPassthrough, Preset::AzureLoadBalancer] {
            let text = format!(
                "interfaces: [{{name: lo}}]\nnever_shed: {{presets: [{name}, {name}], sources: ['{first}']}}\n\
                 services: {{web: {{mode: shadow, listen: ['*:80']}}}}\n",
                name = preset.name(),
                first = preset.prefixes()[0]
            );
            let config = parse(&text, &Registry::new(["fresh_first"], ["default"])).unwrap();
            let shown: Vec<String> =
                config.never_shed.sources.iter().map(ToString::to_string).collect();
            assert_eq!(shown, preset.prefixes(), "canonical, each once");
            assert!(config.never_shed.sources.iter().all(|net| net.trunc() == *net));
            assert!(preset.sentence(&[]).contains(preset.name()));
        }
    }

    /// Its kubelet comes by interfaces of pods, and by no uplink.
    #[test]
    fn a_node_is_exempt_at_hooks_in_other_namespaces() {
        let config = |interfaces: &str, presets: &str| {
            let text = format!(
                "interfaces: [{interfaces}]\nnever_shed: {{presets: [{presets}]}}\n\
                 services: {{web: {{mode: shadow, listen: ['*:80']}}}}\n"
            );
            parse(&text, &Registry::new(["fresh_first"], ["default"]))
        };
        let said = config("{name: lo}", "node").unwrap_err().to_string();
        assert!(said.contains("never_shed.presets[0]") && said.contains("`namespace`"), "{said}");
        let pod = "{name: lo}, {name: eth0, namespace: 'pid:7'}";
        let nodes = ["10.0.0.5", "2001:db8::5", "10.0.0.5"].map(|text| text.parse().unwrap());
        let sources = |presets: &str| {
            let mut config = config(pod, presets).unwrap();
            config.never_shed.complete_node(&nodes);
            config.never_shed.sources.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(sources("node"), ["10.0.0.5/32", "2001:db8::5/128"]);
        assert_eq!(sources("azure-load-balancer"), Preset::AzureLoadBalancer.prefixes());
        let says = Preset::Node.sentence(&nodes);
        assert!(says.contains("node exempts 10.0.0.5, 2001:db8::5, "), "{says}");
        assert!(says.contains("externalTrafficPolicy"), "{says}");
    }

    /// Nodes, and balancers that open connections of their own, are no presets: the error says what is.
    #[test]
    fn what_would_exempt_everybody_is_refused() {
        for name in ["kubelet", "aws", "gcp", "gcp-application"] {
            let text = format!(
                "interfaces: [{{name: lo}}]\nnever_shed: {{presets: [{name}]}}\n\
                 services: {{web: {{mode: shadow, listen: ['*:80']}}}}\n"
            );
            let error = parse(&text, &Registry::new(["fresh_first"], ["default"])).unwrap_err();
            let said = error.to_string();
            assert!(
                said.contains("never_shed.presets[0]") && said.contains("azure-load-balancer"),
                "{said}"
            );
        }
    }
}
