// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who refuses, how it is told to, and how its clients see that it did.

use serde::Deserialize;
use serde_json::json;
use tidegate_lab::{Counts, FrontKind, ProductConfig};

/// Who refuses, and how. `-plain`: in front of a server without TCP_DEFER_ACCEPT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refuser {
    /// tidegate, a request, by 503.
    #[serde(rename = "ours-503")]
    Busy,
    /// The same.
    #[serde(rename = "ours-503-plain")]
    BusyPlain,
    /// tidegate, a request, by RST.
    OursReset,
    /// The same.
    OursResetPlain,
    /// tidegate, a SYN, by RST.
    OursSyn,
    /// The same.
    OursSynPlain,
    /// Apache itself: 503 by mod_rewrite.
    Apache,
    /// The same.
    ApachePlain,
    /// nginx in front: `limit_req` with its own 503.
    Nginx,
    /// HAProxy in front: `http-request deny` with 503.
    Haproxy,
    /// nftables: a SYN, by RST (`input`, `limit rate over`, `reject with tcp reset`).
    Nft,
}

impl Refuser {
    /// Its name in the rows.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Busy => "ours-503",
            Self::BusyPlain => "ours-503-plain",
            Self::OursReset => "ours-reset",
            Self::OursResetPlain => "ours-reset-plain",
            Self::OursSyn => "ours-syn",
            Self::OursSynPlain => "ours-syn-plain",
            Self::Apache => "apache",
            Self::ApachePlain => "apache-plain",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Nft => "nft",
        }
    }

    pub(super) const fn defer_accept(self) -> bool {
        !matches!(
            self,
            Self::BusyPlain | Self::OursResetPlain | Self::OursSynPlain | Self::ApachePlain
        )
    }

    /// How many of these clients it refused, as they saw it.
    pub(super) const fn refused(self, counts: &Counts) -> u64 {
        match self {
            Self::OursReset | Self::OursResetPlain => counts.broken,
            Self::OursSyn | Self::OursSynPlain | Self::Nft => counts.refused_connect,
            _ => counts.refused_http,
        }
    }

    /// The service's configuration where it is tidegate that refuses.
    pub(super) fn config(self) -> Option<ProductConfig> {
        let fixed = |rate: f64, burst: u32| json!({"name": "fixed", "rate": rate, "burst": burst});
        let request = |answer: &str| {
            json!({
                "mode": "enforce", "listen": ["*:80"], "control": fixed(1e6, 1_000_000),
                "requests": {
                    "buckets": {"all": {"resource": "cpu", "burst": 1, "min_rate": "1/s",
                                        "control": {"name": "fixed", "rate": "1/s"}}},
                    "rules": [{"path": "/", "bucket": "all", "action": answer}],
                },
            })
        };
        let web = match self {
            Self::Busy | Self::BusyPlain => request("503"),
            Self::OursReset | Self::OursResetPlain => request("reset"),
            Self::OursSyn | Self::OursSynPlain => json!({
                "mode": "enforce", "listen": ["*:80"], "control": fixed(1.0, 1),
                "policy": {"name": "token_bucket", "action": "reject"},
            }),
            _ => return None,
        };
        let others = json!({"replies": {"rst_per_second": 100_000}});
        Some(ProductConfig {
            services: json!({"web": web}),
            others,
            ..ProductConfig::one("web", &[])
        })
    }

    pub(super) fn front(self) -> Option<FrontKind> {
        match self {
            Self::Nginx => Some(FrontKind::NginxLimitReq { rate: 1, burst: 0 }),
            Self::Haproxy => Some(FrontKind::HaproxyDeny),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of ours refuses by the thing that its name says, everything, and nothing else.
    #[test]
    fn configurations_refuse_what_they_say() {
        let web = |refuser: Refuser| refuser.config().unwrap().services["web"].clone();
        assert_eq!(web(Refuser::Busy)["requests"]["rules"][0]["action"], "503");
        assert_eq!(web(Refuser::OursResetPlain)["requests"]["rules"][0]["action"], "reset");
        assert_eq!(web(Refuser::OursSyn).get("requests"), None::<&serde_json::Value>);
        assert!(Refuser::Apache.config().is_none() && Refuser::Haproxy.front().is_some());
        let names: Vec<Refuser> = serde_json::from_value(json!([
            "ours-503",
            "ours-503-plain",
            "ours-reset",
            "ours-reset-plain",
            "ours-syn",
            "ours-syn-plain",
            "apache",
            "apache-plain",
            "nginx",
            "haproxy",
            "nft"
        ]))
        .unwrap();
        for refuser in names {
            assert_eq!(serde_json::from_value::<Refuser>(json!(refuser.name())).unwrap(), refuser);
        }
    }
}
