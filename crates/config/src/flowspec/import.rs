// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The section `flowspec.import`: routes of a router whose rates hold at the interfaces of this host.

use crate::text;
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_model::Mode;

/// Most prefixes in which destinations may lie.
pub const PREFIXES_MAX: usize = 64;

/// FlowSpec routes of one router, enforced here with their rates in packets or bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportConfig {
    /// The router from which routes come: a name under `peers`.
    pub peer: String,
    /// Whether packets above the rates are dropped (`enforce`) or only counted (`shadow`).
    pub mode: Mode,
    /// Destinations of routes lie in one of these prefixes: your own.
    #[serde(with = "text::prefixes")]
    #[schemars(with = "Vec<text::PrefixText>", length(min = 1, max = PREFIXES_MAX))]
    pub prefixes: Vec<IpNet>,
    /// Takes routes with a rate of 0, below 1 packet/s or below 1,500 bytes/s, which drop everything or nearly so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub discard: bool,
    /// Takes routes that match more of TCP than first packets (SYN without ACK): they drop packets of connections
    /// that are established.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub established: bool,
}
