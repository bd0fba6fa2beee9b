// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plans for tests and benchmarks, which say no more than they must; a file would have to say more.

use crate::Plan;
use ipnet::{Ipv4Net, Ipv6Net};
use std::net::Ipv4Addr;
use tidegate_config::{
    BucketConfig, Config, ControlledResource, FlowspecConfig, ImportConfig, PolicyConfig, Refusal,
    RequestsConfig, RouteUnit, RouterConfig, RuleAction, RuleConfig, ServiceConfig, SpeakerKind,
    Tables,
};
use tidegate_model::{Listen, Mode};
use tidegate_policy::{Action, Policy};
use tidegate_units::{Nanos, Share};

fn parsed<T: std::str::FromStr<Err = String>>(text: &str) -> T {
    text.parse().unwrap_or_else(|why| panic!("{text:?}: {why}"))
}

/// These services, and nothing else.
#[must_use]
pub fn plan(services: Vec<ServiceConfig>) -> Plan {
    Plan { config: Config { services, ..Config::default() }, ..Plan::default() }
}

/// A service in enforce whose token bucket drops what is beyond its limits; it listens at `*:80`
/// and the like.
#[must_use]
pub fn service(name: &str, listen: &[&str]) -> ServiceConfig {
    let listen: Vec<Listen> = listen.iter().map(|text| parsed(text)).collect();
    let policy = policy(Policy::TokenBucket, Action::Drop);
    ServiceConfig { policy, ..ServiceConfig::new(name, Mode::Enforce, listen) }
}

/// A policy, and what it does with what it refuses.
#[must_use]
pub fn policy(policy: Policy, action: Action) -> PolicyConfig {
    let action = match action {
        Action::Drop => Refusal::Drop,
        Action::Reject => Refusal::Reject,
        Action::Auto => Refusal::Auto,
    };
    PolicyConfig { name: policy.name().to_owned(), action: Some(action), ..PolicyConfig::default() }
}

/// Rules of a service, with buckets of these names.
#[must_use]
pub fn requests(buckets: &[&str], rules: Vec<RuleConfig>) -> RequestsConfig {
    let bucket = |name: &&str| BucketConfig::new(name, ControlledResource::Cpu);
    let buckets = buckets.iter().map(bucket).collect();
    RequestsConfig { buckets, rules, ..RequestsConfig::default() }
}

/// A rule for all requests below a path; without a bucket it allows.
#[must_use]
pub fn rule(path: &str, bucket: Option<&str>) -> RuleConfig {
    RuleConfig { path: Some(parsed(path)), ..no_subject(bucket) }
}

/// A rule for TLS to a name.
#[must_use]
pub fn tls_rule(name: &str, bucket: Option<&str>) -> RuleConfig {
    RuleConfig { server_name: Some(parsed(name)), ..no_subject(bucket) }
}

/// The rule for what no other can evaluate.
#[must_use]
pub fn unevaluable_rule(bucket: Option<&str>) -> RuleConfig {
    RuleConfig { unevaluable: true, ..no_subject(bucket) }
}

fn no_subject(bucket: Option<&str>) -> RuleConfig {
    let action = bucket.is_none().then_some(RuleAction::Allow);
    RuleConfig { bucket: bucket.map(str::to_owned), action, ..RuleConfig::default() }
}

/// Tables of this size, but for that of sources.
#[must_use]
pub fn tables(size: u32) -> Tables {
    Tables { handshakes: size, connections: size, requests: size, ..Tables::default() }
}

/// A router that looks for destinations there, with small tables.
#[must_use]
pub fn router(destinations: &[&str]) -> RouterConfig {
    RouterConfig {
        destinations: destinations.iter().map(|text| parsed(text)).collect(),
        connections: 1024,
        destinations_max: 16,
        sample: 1,
        hot_spots: false,
        limit: None,
    }
}

/// Rules of a router are imported, of whatever prefix.
#[must_use]
pub fn importing(mut plan: Plan) -> Plan {
    let import = ImportConfig {
        peer: "edge".to_owned(),
        mode: Mode::Enforce,
        prefixes: vec![Ipv4Net::default().into(), Ipv6Net::default().into()],
        discard: true,
        established: true,
    };
    plan.config.flowspec = Some(FlowspecConfig {
        speaker: SpeakerKind::Gobgp,
        program: None,
        own_as: 65_001,
        router_id: Ipv4Addr::new(192, 0, 2, 1),
        peers: Vec::new(),
        export: Vec::new(),
        import: Some(import),
        shadow: false,
        unit: RouteUnit::default(),
        routes: 10,
        hysteresis: Share::new(0.2),
        between: Nanos::from_secs(10),
        lease: Nanos::from_secs(3),
        hold_time: Nanos::from_secs(9),
    });
    plan
}
