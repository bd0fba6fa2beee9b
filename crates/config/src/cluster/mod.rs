// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The section `cluster`: who reports to this host and limits it, and to whom it reports and whom it
//! limits; and `backends` of a service.

mod bus;
mod check;
mod routers;
mod text;

pub use bus::{BUS_SERVERS_MAX, BusConfig, BusServer, BusTls, SUBJECT_MAX, Subject};
pub(super) use check::check;
pub use text::PeerAddress;

use super::named::{self, Named};
use super::text as common;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tidegate_model::remote::{Form, PUSHED_HOLD, PUSHED_STEPS, REMOTE_SCOPES_MAX, Scope, Unit};
use tidegate_model::sharing::ROUTERS_MAX;
use tidegate_model::{PEERS_MAX, PRIORITIES, SpiffeId};
use tidegate_units::Nanos;

/// Most front-ends to which one host reports.
pub const TARGETS_MAX: usize = 8;
/// Most services that one peer may report, and most back-ends of one service.
pub const BACKENDS_MAX: usize = 16;
/// Most grants of a router: one for each peer.
pub const GRANTS_MAX: usize = PEERS_MAX;
/// Shortest and longest time for which a limit of a congested router holds before it relaxes. A router that stays congested asks
/// for another one every second.
pub(crate) const HOLD_RANGE: (Nanos, Nanos) = (PUSHED_HOLD, Nanos::from_secs(5));
/// Most steps: with the shortest time they fill the longest validity of a remote limit.
const RELAX_STEPS_MAX: u32 = PUSHED_STEPS;
/// Shortest and longest time for which a report may be valid. Longer than any limit is held without
/// one would be no validity at all.
pub const VALIDITY_RANGE: (Nanos, Nanos) = (Nanos::from_millis(50), Nanos::from_secs(10));
/// How long a report is valid where nothing else is said (RFC 7339, section 4.3).
pub const VALIDITY_DEFAULT: Nanos = Nanos::from_millis(500);
/// And at least so many ticks: a lost report or two are no lost peer.
const VALIDITY_TICKS: u64 = 5;

/// Reports between hosts, over TLS 1.3 with certificates on both sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterConfig {
    /// This host's certificate (PEM, intermediates after it), an absolute path. It names exactly one
    /// URI, its SPIFFE identity; renewed files are read within 30 s, or with a reload.
    #[schemars(with = "String")]
    pub certificate: PathBuf,
    /// The key of the certificate (PEM), an absolute path.
    #[schemars(with = "String")]
    pub key: PathBuf,
    /// Whoever signs the certificates of peers (PEM), an absolute path.
    #[schemars(with = "String")]
    pub ca_file: PathBuf,
    /// Front-end: where reports are taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PeerAddress")]
    pub listen: Option<PeerAddress>,
    /// Front-end: who may report, by a name of your choice.
    #[serde(default, with = "named", skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "std::collections::BTreeMap<String, PeerConfig>")]
    #[schemars(extend("maxProperties" = PEERS_MAX))]
    pub peers: Vec<PeerConfig>,
    /// Router: who may limit it while the way to the servers is congested. Without it nobody may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grants: Option<GrantsConfig>,
    /// Back-end: with what it signs its limits for congested routers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing: Option<SigningConfig>,
    /// Back-end: to whom this host reports, by a name of your choice.
    #[serde(default, with = "named", skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "std::collections::BTreeMap<String, TargetConfig>")]
    #[schemars(extend("maxProperties" = TARGETS_MAX))]
    pub report_to: Vec<TargetConfig>,
    /// Router: the other routers to the same destinations, by a name of your choice. They share what they measure of
    /// destinations, never connections or clients, and divide the limits of `router.limit`. Each names all others.
    #[serde(default, with = "named", skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "std::collections::BTreeMap<String, SharingRouterConfig>")]
    #[schemars(extend("maxProperties" = ROUTERS_MAX))]
    pub routers: Vec<SharingRouterConfig>,
    /// Router: NATS servers over which `routers` share, in place of a session with each. Each router still names all
    /// others, and takes only what one of them has signed with the key of its certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<BusConfig>,
}

/// Another router to the same destinations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SharingRouterConfig {
    /// Its name: the key under `routers`.
    #[serde(skip)]
    pub name: String,
    /// Where it listens for this host; without `bus` only, and then required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PeerAddress")]
    pub address: Option<PeerAddress>,
    /// The one URI of its certificate, compared letter by letter.
    pub identity: SpiffeId,
}

/// Grants of the operator: which servers may limit this router while it is congested (`tidegate grants`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GrantsConfig {
    /// The operator's public key (PEM), an absolute path.
    #[schemars(with = "String")]
    pub operator: PathBuf,
    /// Grants, one a file, absolute paths. Changed files are read within 5 s.
    #[schemars(with = "Vec<String>", length(min = 1, max = GRANTS_MAX))]
    pub files: Vec<PathBuf>,
    /// The last list of grants that are taken back, an absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub revoked: Option<PathBuf>,
    /// How long a limit holds as it was told, and each step after that; where nothing is said 2s, which is the least. All
    /// together is at most 10s.
    #[serde(default, with = "common::span_opt", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "common::SpanText")]
    pub hold: Option<Nanos>,
    /// In how many steps it relaxes to what its server takes in all; then it is gone. Where nothing is said 4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u32", range(min = 1, max = RELAX_STEPS_MAX))]
    pub steps: Option<u32>,
}

impl GrantsConfig {
    /// How long a limit holds, and each step after that; and how many.
    #[must_use]
    pub fn relaxation(&self) -> (Nanos, u32) {
        (self.hold.unwrap_or(PUSHED_HOLD), self.steps.unwrap_or(PUSHED_STEPS))
    }
}

/// With what a server signs its limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SigningConfig {
    /// Its private key (PEM, Ed25519), an absolute path.
    #[schemars(with = "String")]
    pub key: PathBuf,
    /// Its grant, for that key, an absolute path.
    #[schemars(with = "String")]
    pub grant: PathBuf,
}

/// A host that may report to this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PeerConfig {
    /// Its name: the key under `peers`.
    #[serde(skip)]
    pub name: String,
    /// The one URI of its certificate, compared letter by letter.
    pub identity: SpiffeId,
    /// The services (by the names that they have on that host) which it may report.
    #[schemars(length(min = 1, max = BACKENDS_MAX))]
    pub services: Vec<String>,
    /// What it owns, so that its remote limits of it are taken: services of this host, request buckets of them
    /// ("shop/search"), or a prefix with a port. Nothing else is taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = REMOTE_SCOPES_MAX))]
    pub limits: Vec<Scope>,
    /// What it owns and may limit only while this host is congested, with limits that it signs and a grant allows:
    /// prefixes with a port. No other limit of these is taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = REMOTE_SCOPES_MAX))]
    pub limits_when_congested: Vec<Scope>,
}

/// A front-end to which this host reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetConfig {
    /// Its name: the key under `report_to`.
    #[serde(skip)]
    pub name: String,
    /// Where it takes reports.
    pub address: PeerAddress,
    /// The one URI of its certificate, compared letter by letter.
    pub identity: SpiffeId,
    /// Services of this host that are reported; all where none is named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = BACKENDS_MAX))]
    pub services: Vec<String>,
    /// How long each report and remote limit is valid; where nothing is said 500ms, or five ticks if that is longer.
    #[serde(default, with = "common::span_opt", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "common::SpanText")]
    pub validity: Option<Nanos>,
    /// Another one of these, through which what this one passes comes here: a router nearer to this host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<String>,
    /// Services of this host whose limits are sent there, so that it refuses what they cannot take.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = BACKENDS_MAX))]
    pub limits: Vec<SentLimitConfig>,
}

/// A service whose limit is sent to another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SentLimitConfig {
    /// A service of this host.
    pub service: String,
    /// What it is there: the name of a service, of a request bucket ("shop/search"), or this host's address with
    /// the port, such as "192.0.2.11:80".
    pub scope: Scope,
    /// A request bucket of the service, whose limit is sent instead of the service's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<String>,
    /// What that host limits: connections (a router), or requests (a gateway, or a host with request rules). Of a
    /// bucket these are requests.
    #[serde(default)]
    pub counts: Counts,
    /// In what form it is sent. A host that knows only rates gets a rate.
    #[serde(default)]
    pub kind: Form,
    /// There only requests of this priority and of lower ones are refused for it; 0: of all. What those above take
    /// is not there for the others.
    #[serde(default)]
    #[schemars(range(max = PRIORITIES - 1))]
    pub priority: u8,
    /// Whether it is always sent, or only while that host is a router that is congested.
    #[serde(default)]
    pub when: When,
}

impl SentLimitConfig {
    /// What it counts.
    #[must_use]
    pub fn unit(&self) -> Unit {
        match (self.counts, &self.bucket) {
            (Counts::Connections, None) => Unit::Connections,
            _ => Unit::Requests,
        }
    }

    /// Whether a host has to know more than rates of connections to take it as it is.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        self.unit() != Unit::Connections || self.kind != Form::Rate || self.priority > 0
    }
}

/// What a limit that is sent counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Counts {
    /// Connections.
    #[default]
    Connections,
    /// Requests.
    Requests,
}

/// When a limit is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum When {
    /// Always.
    #[default]
    Always,
    /// In answer to a router that says that it is congested, signed.
    Congested,
}

impl TargetConfig {
    /// How long a report is valid on a host with this tick.
    #[must_use]
    pub fn validity(&self, tick: Nanos) -> Nanos {
        let ticks = Nanos(tick.0.saturating_mul(VALIDITY_TICKS));
        self.validity.unwrap_or(VALIDITY_DEFAULT.max(ticks)).min(VALIDITY_RANGE.1)
    }
}

/// A back-end of a service: the service's limits follow what it reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BackendConfig {
    /// The peer, a name under `cluster.peers`.
    pub peer: String,
    /// The name that the service has there.
    pub service: String,
}

impl Named for PeerConfig {
    fn name(&self) -> &str {
        &self.name
    }

    fn named(self, name: String) -> Self {
        Self { name, ..self }
    }
}

impl Named for TargetConfig {
    fn name(&self) -> &str {
        &self.name
    }

    fn named(self, name: String) -> Self {
        Self { name, ..self }
    }
}

impl Named for SharingRouterConfig {
    fn name(&self) -> &str {
        &self.name
    }

    fn named(self, name: String) -> Self {
        Self { name, ..self }
    }
}
