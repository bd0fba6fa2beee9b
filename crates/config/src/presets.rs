// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Health checkers that can be told by their source addresses alone. Whose address is that of everybody
//! (balancers that open connections of their own, nodes that translate addresses) is none of them: an
//! exemption would exempt all.

use super::types::Exempt;
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A preset of `exempt.presets`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Google Cloud, passthrough Network Load Balancers: their health checkers. Not behind an Application
    /// or proxy Load Balancer, whose clients come from the same addresses.
    GcpPassthrough,
    /// Azure Load Balancer: its health probes.
    AzureLoadBalancer,
}

impl Preset {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::GcpPassthrough, Self::AzureLoadBalancer];

    /// The word of the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::GcpPassthrough => "gcp-passthrough",
            Self::AzureLoadBalancer => "azure-load-balancer",
        }
    }

    /// Its prefixes, as documented by whom they belong to, looked up on 2026-11-26.
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
        }
    }

    /// What it stands for, in a sentence, for `check`.
    #[must_use]
    pub fn sentence(self) -> String {
        let (name, prefixes) = (self.name(), self.prefixes().join(", "));
        let who = match self {
            Self::GcpPassthrough => {
                "health checkers of Google's passthrough Network Load Balancers. Behind an Application or a \
                 proxy Network Load Balancer all clients come from these addresses, and nobody would ever be \
                 refused: leave it out there"
            }
            Self::AzureLoadBalancer => "health probes of Azure Load Balancer",
        };
        format!("exempt.presets: {name} exempts {prefixes}: {who}")
    }
}

impl Exempt {
    /// Adds the prefixes of its presets to its sources.
    pub(super) fn complete(&mut self) {
        for preset in &self.presets {
            // A test reads each of them.
            let prefixes = preset.prefixes().iter().filter_map(|text| text.parse::<IpNet>().ok());
            for prefix in prefixes {
                if !self.sources.contains(&prefix) {
                    self.sources.push(prefix);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Registry, parse};
    use super::*;

    #[test]
    fn presets_become_sources_once() {
        for preset in Preset::ALL {
            let text = format!(
                "interfaces: [{{name: lo}}]\nexempt: {{presets: [{name}, {name}], sources: ['{first}']}}\n\
                 services: {{web: {{mode: shadow, listen: ['*:80']}}}}\n",
                name = preset.name(),
                first = preset.prefixes()[0]
            );
            let config = parse(&text, &Registry::new(["fresh_first"], ["default"])).unwrap();
            let shown: Vec<String> =
                config.exempt.sources.iter().map(ToString::to_string).collect();
            assert_eq!(shown, preset.prefixes(), "canonical, each once");
            assert!(config.exempt.sources.iter().all(|net| net.trunc() == *net));
            assert!(preset.sentence().contains(preset.name()));
        }
    }

    /// Nodes, and balancers that open connections of their own, are no presets: the error says what is.
    #[test]
    fn what_would_exempt_everybody_is_refused() {
        for name in ["kubelet", "aws", "gcp", "gcp-application"] {
            let text = format!(
                "interfaces: [{{name: lo}}]\nexempt: {{presets: [{name}]}}\n\
                 services: {{web: {{mode: shadow, listen: ['*:80']}}}}\n"
            );
            let error = parse(&text, &Registry::new(["fresh_first"], ["default"])).unwrap_err();
            let said = error.to_string();
            assert!(
                said.contains("exempt.presets[0]") && said.contains("azure-load-balancer"),
                "{said}"
            );
        }
    }
}
