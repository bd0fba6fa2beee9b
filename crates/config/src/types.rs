// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The configuration file as types. From here come the JSON Schema, the reference table in
//! docs/configuration.md, and the check of the file's shape.

use super::cluster::{BACKENDS_MAX, BackendConfig, ClusterConfig};
use super::flowspec::FlowspecConfig;
use super::gateways::{AgentCheckConfig, GATEWAYS_MAX, GatewayConfig};
use super::in_band::InBandConfig;
use super::named::{self, Named};
use super::presets::Preset;
use super::requests::{ControlVariant, GAIN_RANGE, RequestsConfig};
use super::router::RouterConfig;
use super::text::{self, HttpAddress};
use super::throttle::{
    LevelSignal, PriorityConfig, SEVERITIES_MAX, SeverityConfig, TOLERANCE_MAX, Threshold,
};
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tidegate_model::limits::Reserve;
use tidegate_model::{
    CLASSES_MAX, Canary, CpuList, Listen, Mode, Namespace, PRIORITIES, SERVICES_MAX,
};
use tidegate_units::{Nanos, Rate, Share};

/// Most interfaces of one daemon.
pub const INTERFACES_MAX: usize = 32;
/// Longest name of an interface, in bytes (the kernel's IFNAMSIZ without the final zero).
pub const INTERFACE_NAME_MAX: usize = 15;
/// Most listen addresses of one service.
pub const LISTEN_MAX: usize = 64;
/// Most source prefixes of one class.
pub const CLASS_SOURCES_MAX: usize = 4096;
/// Most exempt source prefixes.
pub const EXEMPT_SOURCES_MAX: usize = 4096;
/// Most exempt ports.
pub const EXEMPT_PORTS_MAX: usize = 64;
/// Largest burst, in admissions (policy/contract: TG_BURST_MAX).
pub const BURST_MAX: u32 = 1_000_000;
/// Largest rate, in admissions per second (policy/contract: TG_RATE_MILLI_MAX).
pub const RATE_MAX: f64 = 1e9;
/// Burst where none is given, in admissions: the SYN bucket of the dual admission paper.
pub const BURST_DEFAULT: u32 = 20;
/// Most retransmissions in an abacus schedule (policy/algo/abacus.h: TG_ABACUS_STEPS_MAX).
pub const ABACUS_STEPS_MAX: usize = 12;
/// Periods in the ring of abacus; a window must be shorter (TG_ABACUS_PERIODS).
pub const ABACUS_PERIODS: u64 = 128;
/// Shortest and longest period of the abacus policies.
pub const ABACUS_PERIOD_RANGE: (Nanos, Nanos) = (TICK_RANGE.0, Nanos::from_secs(60));
/// When a refused client tries again where no schedule is given: what the SYN retransmissions of
/// all common stacks of today have in common.
pub const ABACUS_SCHEDULE: [Nanos; 3] =
    [Nanos::from_secs(1), Nanos::from_secs(3), Nanos::from_secs(7)];
/// Shortest and longest tick of the daemon: each tick renews the lease, which holds for 3 s.
pub const TICK_RANGE: (Nanos, Nanos) = (Nanos::from_millis(10), Nanos::SECOND);
/// Shortest and longest objective of a service: what the default controller computes with.
pub const OBJECTIVE_RANGE: (Nanos, Nanos) = (Nanos::from_millis(10), Nanos::from_secs(60));
/// Largest share of a bucket that may be reserved for the classes above the default.
pub const RESERVE_MAX: f64 = 0.9;

/// The whole file.
// Its default is empty, which no file may be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The interfaces on which packets are evaluated. Without any, only gateways are served, without
    /// privileges.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = INTERFACES_MAX))]
    pub interfaces: Vec<InterfaceConfig>,
    /// What is protected, by name, in the order of the file: the index of a service is its place.
    #[serde(with = "named")]
    #[schemars(with = "std::collections::BTreeMap<String, ServiceConfig>")]
    #[schemars(extend("minProperties" = 1, "maxProperties" = SERVICES_MAX))]
    pub services: Vec<ServiceConfig>,
    /// HTTP proxies that ask before they pass a request on, by name.
    #[serde(default, with = "named", skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "std::collections::BTreeMap<String, GatewayConfig>")]
    #[schemars(extend("minProperties" = 1, "maxProperties" = GATEWAYS_MAX))]
    pub gateways: Vec<GatewayConfig>,
    /// What is never refused, whatever the limits say.
    #[serde(default)]
    pub exempt: Exempt,
    /// The reply packets that the dataplane sends itself.
    #[serde(default)]
    pub replies: Replies,
    /// The sizes of the dataplane's tables. They change by a restart only.
    #[serde(default)]
    pub tables: Tables,
    /// The daemon.
    #[serde(default)]
    pub daemon: DaemonConfig,
    /// Reports between hosts; without it there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterConfig>,
    /// Limits of services as BGP FlowSpec routes for routers that are not ours; without it there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flowspec: Option<FlowspecConfig>,
    /// What a router measures of the servers behind it; without it nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router: Option<RouterConfig>,
    /// Marks in packets (NetDraino) that are cleared where packets come from outside; without it none are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_band: Option<InBandConfig>,
}

/// One interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InterfaceConfig {
    /// Name of the interface, as `ip link` shows it.
    pub name: String,
    /// The network namespace in which it is, if not in the daemon's own: `pid:NUMBER`, `cgroup:/path` (that
    /// of a container's processes), or a path such as `/run/netns/web`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
    /// Where to attach. `auto` is tcx: XDP costs other traffic something on nearly every driver, so it is asked
    /// for (docs/places.md says by driver what it costs).
    #[serde(default)]
    pub attach: Attach,
    /// Whether the DSCP of packets that arrive here may choose a class. Anyone can set a DSCP:
    /// trust it only where your own network rewrites it.
    #[serde(default)]
    pub trust_dscp: bool,
    /// Of a router: whether clients or servers are behind it. Packets are evaluated where they come from
    /// clients. An interface to the servers evaluates nothing: its queue is watched, so that the router knows
    /// when the way to them is congested.
    #[serde(default)]
    pub side: Side,
    /// Whether packets that arrive here come from outside: their marks of `in_band`, and the IPv4 option 158, are
    /// cleared.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub border: bool,
}

/// Who is behind an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// Clients: packets that come from there are evaluated.
    #[default]
    Clients,
    /// Servers: its queue is watched.
    Servers,
}

impl Config {
    /// The interfaces on which packets are evaluated.
    pub fn hooked(&self) -> impl Iterator<Item = &InterfaceConfig> {
        self.interfaces.iter().filter(|interface| interface.side == Side::Clients)
    }

    /// The interfaces to the servers, whose queues are watched.
    pub fn links(&self) -> impl Iterator<Item = &InterfaceConfig> {
        self.interfaces.iter().filter(|interface| interface.side == Side::Servers)
    }

    /// Whether marks of packets from outside are cleared.
    #[must_use]
    pub fn has_border(&self) -> bool {
        self.in_band.is_some() && self.hooked().any(|interface| interface.border)
    }

    /// Whether the hooks count datagrams to services: a service says how many it can take, or a peer may limit this
    /// host while it is congested.
    #[must_use]
    pub fn counts_datagrams(&self) -> bool {
        let peers = self.cluster.iter().flat_map(|cluster| &cluster.peers);
        self.services.iter().any(|service| service.datagrams.is_some())
            || peers.into_iter().any(|peer| !peer.limits_when_congested.is_empty())
    }
}

/// Attach points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Attach {
    #[default]
    /// tcx (clsact on kernels before 6.6). XDP costs other traffic something on nearly every driver.
    Auto,
    /// Native XDP or nothing.
    Xdp,
    /// Generic XDP: slower, works on every driver, and must be asked for.
    XdpGeneric,
    /// tcx: the good neighbour where another XDP program owns the device.
    Tcx,
}

impl Attach {
    /// The word of the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Xdp => "xdp",
            Self::XdpGeneric => "xdp-generic",
            Self::Tcx => "tcx",
        }
    }
}

/// One service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceConfig {
    /// Its name: the key under `services`.
    #[serde(skip)]
    pub name: String,
    /// Whether refusals are executed (`enforce`) or only counted (`shadow`).
    pub mode: Mode,
    /// Of which sources refusals are executed: set by commands, not by the file.
    #[serde(skip)]
    pub canary: Canary,
    /// Where it listens; `*` is every address of both families. An exact address wins over `*`. A
    /// service that routes of gateways name needs none; where its server runs on this host, it tells
    /// whose CPU and accept queue are looked at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = LISTEN_MAX))]
    pub listen: Vec<Listen>,
    /// The network namespace in which its server listens, if not in the daemon's own: as
    /// `interfaces[].namespace`. Accept queue, listeners and connections are looked at there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
    /// Where its server listens, if addresses are changed behind the hooks (DNAT, IPVS, a container's
    /// published port); else it is `listen`. Only for looking at the server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = LISTEN_MAX))]
    pub target: Vec<Listen>,
    /// Responses later than this are worth nothing to its clients; 10 ms to 60 s.
    #[serde(default = "ServiceConfig::objective_default", with = "text::span")]
    #[schemars(with = "text::SpanText")]
    pub objective: Nanos,
    /// How new work is refused.
    #[serde(default)]
    pub policy: PolicyConfig,
    /// How the limit is found.
    #[serde(default)]
    pub control: ControlConfig,
    /// Whose CPU time counts; found from the listener where it is not given.
    #[serde(default)]
    pub process: ProcessConfig,
    /// Classes of requests; what none names belongs to class `default` with priority 7.
    #[serde(default)]
    #[schemars(length(max = CLASSES_MAX - 1))]
    pub classes: Vec<ClassConfig>,
    /// Share of the bucket that is kept for the classes above the lowest priority, divided among
    /// the priorities by the weights of their classes.
    #[serde(default = "ServiceConfig::reserve_default")]
    #[schemars(with = "f64", range(min = 0.0, max = RESERVE_MAX))]
    pub reserve: Share,
    /// Admission by what a request asks for; without it only connections are evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestsConfig>,
    /// On a router in front of it: whose reports tell how the service is. Its limits are then the
    /// sum over these back-ends; without a valid report nothing becomes tighter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = BACKENDS_MAX))]
    pub backends: Vec<BackendConfig>,
    /// Tells HAProxies in front of it how many requests they may have in flight at it, by agent-check.
    /// They refuse the rest, and no SYN of the service is refused here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_check: Option<AgentCheckConfig>,
    /// UDP datagrams per second that it can take at the addresses of `listen`. Congested routers of
    /// `cluster.report_to`, and those of `flowspec`, are told to let no more pass; this host refuses none.
    #[serde(default, with = "text::rate_opt", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "text::RateText")]
    pub datagrams: Option<Rate>,
}

impl Named for ServiceConfig {
    fn name(&self) -> &str {
        &self.name
    }

    fn named(self, name: String) -> Self {
        Self { name, ..self }
    }
}

impl ServiceConfig {
    /// A service that says no more than it must.
    #[must_use]
    pub fn new(name: &str, mode: Mode, listen: Vec<Listen>) -> Self {
        Self {
            name: name.to_owned(),
            mode,
            canary: Canary::ALL,
            listen,
            namespace: None,
            target: Vec::new(),
            objective: Self::objective_default(),
            policy: PolicyConfig::default(),
            control: ControlConfig::default(),
            process: ProcessConfig::default(),
            classes: Vec::new(),
            reserve: Self::reserve_default(),
            requests: None,
            backends: Vec::new(),
            agent_check: None,
            datagrams: None,
        }
    }

    /// Whether its requests are evaluated.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        self.requests.as_ref().is_some_and(|requests| !requests.rules.is_empty())
    }

    /// Where its server listens.
    #[must_use]
    pub fn target(&self) -> &[Listen] {
        if self.target.is_empty() { &self.listen } else { &self.target }
    }

    const fn objective_default() -> Nanos {
        Nanos::SECOND
    }

    fn reserve_default() -> Share {
        Share::new(0.5)
    }

    /// Trunk reservation of its classes, by their weights.
    #[must_use]
    pub fn reserved(&self) -> Reserve {
        let weight_above = |priority: usize| -> u64 {
            let above = self.classes.iter().filter(|c| usize::from(c.priority) < priority);
            above.map(|c| u64::from(c.weight)).sum()
        };
        let total = weight_above(PRIORITIES - 1);
        let mut reserve = Reserve::default();
        if total > 0 {
            for (priority, of) in reserve.0.iter_mut().enumerate() {
                let share = self.reserve.get() * weight_above(priority) as f64 / total as f64;
                // Weights at the lowest priority count for nobody: the share stays below one.
                *of = share.min(RESERVE_MAX);
            }
        }
        reserve
    }

    /// The same for a bucket of this depth: the tokens that a class of each priority must leave for the
    /// classes above it.
    #[must_use]
    pub fn reserve_tokens(&self, burst: u32) -> [u32; PRIORITIES] {
        self.reserved().tokens(burst)
    }
}

/// What is done with what is not admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Refusal {
    /// Nothing is sent: the client tries again by itself.
    Drop,
    #[default]
    /// A RST is sent: most clients fail at once.
    Reject,
    /// A RST to a source that looks like one client, nothing to a proxy, a NAT or an unknown source.
    Auto,
}

impl Refusal {
    /// The word of the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Reject => "reject",
            Self::Auto => "auto",
        }
    }
}

/// A policy and its parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyConfig {
    /// Name of the policy. That of a bucket has to be written.
    pub name: String,
    /// What is done with what is not admitted. The `abacus` policies choose by themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<Refusal>,
    /// Only the `abacus` policies: when a refused client tries again, after its first attempt; rising (1, 3 and 7 s, where these are multiples of the period).
    #[serde(with = "text::spans", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<text::SpanText>", length(min = 1, max = ABACUS_STEPS_MAX))]
    pub schedule: Option<Vec<Nanos>>,
    /// Only the `abacus` policies: how far ahead room may be borrowed, at most 127 periods (all of the schedule); 0 rejects every excess request. For `abacus_learned` what a rejection costs, in waiting time.
    #[serde(with = "text::span_opt", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "text::SpanText")]
    pub window: Option<Nanos>,
    /// The `abacus` policies: length of a period (1 s); schedule and window are multiples of it. `percent`: in which it counts who arrives (5 s).
    #[serde(with = "text::span_opt", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "text::SpanText")]
    pub period: Option<Nanos>,
    /// Only `threshold`: what its thresholds are on (`unfinished-work`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<LevelSignal>,
    /// Only `threshold`: throttling ends below it (half of the onset); without throttling, discarding (half of `discard`).
    #[serde(with = "text::threshold_opt", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "text::ThresholdText")]
    pub abatement: Option<Threshold>,
    /// Only `threshold`: throttling begins at it.
    #[serde(with = "text::threshold_opt", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "text::ThresholdText")]
    pub onset: Option<Threshold>,
    /// Only `threshold`: all are refused from it on, until the level is below the last onset (none).
    #[serde(with = "text::threshold_opt", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "text::ThresholdText")]
    pub discard: Option<Threshold>,
    /// `threshold`: the share that is refused from the onset on. `percent`: the share that is always refused; the controller may raise it.
    #[serde(with = "text::share_opt", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "text::ShareText")]
    pub share: Option<Share>,
    /// `threshold`: the least time between two that are let through, from the onset on. `gap`: the least time between two, on average, always; the controller may lengthen it.
    #[serde(with = "text::span_opt", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "text::SpanText")]
    pub gap: Option<Nanos>,
    /// Only `threshold`: rising onsets, each with its share or its gap; instead of `onset`, `share` and `gap`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<SeverityConfig>", length(min = 1, max = SEVERITIES_MAX))]
    pub severities: Option<Vec<SeverityConfig>>,
    /// Only `threshold`: so many severities above the one that is reached (0).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u8", range(max = SEVERITIES_MAX - 1))]
    pub extra_severity: Option<u8>,
    /// Only `threshold`: this priority and those above it are not throttled, only discarded (none).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u8", range(max = PRIORITIES - 1))]
    pub preferred: Option<u8>,
    /// Only `gap`: how early one may come, in gaps (4); 0 is a gap between any two.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "f64", range(min = 0.0, max = TOLERANCE_MAX))]
    pub tolerance: Option<f64>,
    /// Only `gap`: what of the tolerance is used when control begins, in gaps (0).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "f64", range(min = 0.0, max = TOLERANCE_MAX))]
    pub tolerance_at_start: Option<f64>,
    /// `threshold` and `gap`: what is different for a priority and those above it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Vec<PriorityConfig>", length(min = 1, max = PRIORITIES))]
    pub priorities: Option<Vec<PriorityConfig>>,
}

impl Default for PolicyConfig {
    fn default() -> Self {
        Self {
            name: "fresh_first".into(),
            action: None,
            schedule: None,
            window: None,
            period: None,
            level: None,
            abatement: None,
            onset: None,
            discard: None,
            share: None,
            gap: None,
            severities: None,
            extra_severity: None,
            preferred: None,
            tolerance: None,
            tolerance_at_start: None,
            priorities: None,
        }
    }
}

/// The parameters of the `abacus` policies, in periods, defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbacusConfig {
    /// When a refused client tries again, in periods after its first attempt; rising.
    pub schedule: Vec<u16>,
    /// How far ahead room may be borrowed, in periods; below [`ABACUS_PERIODS`].
    pub window: u16,
    /// Length of a period.
    pub period: Nanos,
}

impl PolicyConfig {
    /// What is done with what is not admitted, the default filled in.
    #[must_use]
    pub fn refusal(&self) -> Refusal {
        self.action.unwrap_or_default()
    }

    /// Whether it is one of the Abacus filters, which have a schedule and choose between drop and
    /// reject by themselves.
    #[must_use]
    pub fn is_abacus(&self) -> bool {
        ["abacus", "abacus_exact", "abacus_learned"].contains(&self.name.as_str())
    }

    /// The parameters of the `abacus` policies. The default schedule is [`ABACUS_SCHEDULE`]; the
    /// default window takes all of the schedule, the default period is 1 s. That these are whole
    /// periods, and the window not too many of them, the check of the configuration has seen to.
    #[must_use]
    pub fn abacus(&self) -> AbacusConfig {
        let period = self.period.filter(|p| *p > Nanos::ZERO).unwrap_or(Nanos::SECOND);
        let periods = |t: Nanos| u16::try_from(t.0 / period.0).unwrap_or(u16::MAX);
        let times = self.schedule.as_deref().unwrap_or(&ABACUS_SCHEDULE);
        let schedule: Vec<u16> = times.iter().copied().map(periods).collect();
        let last = schedule.last().copied().unwrap_or_default();
        let window = self.window.map_or(last, periods);
        AbacusConfig { schedule, window, period }
    }
}

/// A controller and its parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ControlConfig {
    /// Name of the controller: `default` finds the limit of a server of which nothing is known,
    /// `syn` is the published one for SYNs, `fixed` keeps one rate, or leaves the limits to the policy.
    pub name: String,
    /// `fixed`: the limit (required, but for a policy with limits of its own). `syn`: the rate to begin
    /// with (1000/s).
    #[serde(with = "text::rate_opt", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "text::RateText")]
    pub rate: Option<Rate>,
    /// `fixed` and `syn`: depth of the bucket, in admissions (20).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u32", range(min = 1, max = BURST_MAX))]
    pub burst: Option<u32>,
    /// `default` and `syn`: the limit never falls below this (1/s, which is the least allowed). `default`:
    /// so many are also admitted while as many connections wait as may, or the accept queue is at its
    /// limit (one in ten objectives, 1/s at most).
    #[serde(with = "text::rate_opt", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "text::RateText")]
    pub min_rate: Option<Rate>,
    /// `default` and `syn`: the limit never rises above this (none), also while request rules hold the
    /// load.
    #[serde(with = "text::rate_opt", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "text::RateText")]
    pub ceiling: Option<Rate>,
    /// Only `syn`: the accept queue that is aimed at, in connections (100).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u32", range(min = 1, max = 65_535))]
    pub accept_queue: Option<u32>,
    /// Only `syn`: the rate is raised only while the CPU is below this share (0.9).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "f64", range(min = 0.05, max = 1.0))]
    pub cpu: Option<Share>,
    /// Only `syn`: how many connections per second a second the rate moves for each connection that
    /// the accept queue is away from its aim (1/16).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "f64", range(min = GAIN_RANGE.0, max = GAIN_RANGE.1))]
    pub gain: Option<f64>,
    /// Only `syn`: how many connections per second the rate falls for each connection that the
    /// accept queue has grown (1/4).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "f64", range(min = 0.0, max = GAIN_RANGE.1))]
    pub derivative_gain: Option<f64>,
    /// Only `syn`: `published`: the law exactly as the paper has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variant: Option<ControlVariant>,
}

impl Default for ControlConfig {
    fn default() -> Self {
        Self {
            name: "default".into(),
            rate: None,
            burst: None,
            min_rate: None,
            ceiling: None,
            accept_queue: None,
            cpu: None,
            gain: None,
            derivative_gain: None,
            variant: None,
        }
    }
}

/// Whose CPU time counts for a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ProcessConfig {
    /// The service's cgroup (version 2), an absolute path.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    pub cgroup: Option<PathBuf>,
    /// The CPUs it may use, such as `0-1,4`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "CpuList")]
    pub cpus: Option<CpuList>,
}

/// One class of requests. A request belongs to the class with the longest of the source prefixes
/// that match it, else to the one of its DSCP, else to `default`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassConfig {
    /// Its name, unique in the service; `default` is taken.
    pub name: String,
    /// Source prefixes, such as `198.51.100.0/24`; a bare address is one host.
    #[serde(default, with = "text::prefixes", skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<text::PrefixText>", length(max = CLASS_SOURCES_MAX))]
    pub sources: Vec<IpNet>,
    /// DSCP, on interfaces with `trust_dscp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u8", range(max = 63))]
    pub dscp: Option<u8>,
    /// 0 is the highest, 7 the lowest.
    #[schemars(range(max = PRIORITIES - 1))]
    pub priority: u8,
    /// Weight among the classes when the reserve is divided.
    #[serde(default = "ClassConfig::weight_default")]
    #[schemars(range(min = 1, max = 1000))]
    pub weight: u32,
}

impl ClassConfig {
    const fn weight_default() -> u32 {
        1
    }
}

/// What is never refused. The real ports of sshd are added by the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Exempt {
    /// Sources: health probes, the control plane, your own network.
    #[serde(with = "text::prefixes")]
    #[schemars(with = "Vec<text::PrefixText>", length(max = EXEMPT_SOURCES_MAX))]
    pub sources: Vec<IpNet>,
    /// Health checkers that come from addresses of their own, by name: docs/exemptions.md says which.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub presets: Vec<Preset>,
    /// Local ports.
    #[schemars(length(max = EXEMPT_PORTS_MAX), inner(range(min = 1, max = 65_535)))]
    pub ports: Vec<u16>,
}

/// The reply packets that the dataplane sends itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Replies {
    /// Most RSTs per second and CPU to anybody; what is above is dropped silently. 0: none.
    #[schemars(range(max = 10_000_000))]
    pub rst_per_second: u32,
    /// Beyond these, most RSTs per second and CPU to sources that completed a handshake in the last 5
    /// minutes, not in a flood of spoofed SYNs; a quarter of it to each source. 0: none.
    #[schemars(range(max = 10_000_000))]
    pub rst_per_second_proved: u32,
}

impl Default for Replies {
    fn default() -> Self {
        Self { rst_per_second: 1000, rst_per_second_proved: 20_000 }
    }
}

/// The sizes of the dataplane's tables of connections, each a power of two; `tidegate check` shows
/// their memory. The defaults hold 100,000 connections a second of 100 ms each. What finds no room
/// passes, and is counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tables {
    /// SYNs that passed and whose handshake is not finished.
    #[schemars(range(min = TABLE_RANGE.0, max = TABLE_RANGE.1))]
    pub handshakes: u32,
    /// Connections of all services.
    #[schemars(range(min = TABLE_RANGE.0, max = TABLE_RANGE.1))]
    pub connections: u32,
    /// Connections of services with `requests`, whose requests are followed.
    #[schemars(range(min = TABLE_RANGE.0, max = TABLE_RANGE.1))]
    pub requests: u32,
    /// Sources (an address, of IPv6 a /64) with connections, of each service.
    #[schemars(range(min = TABLE_RANGE.0, max = TABLE_RANGE.1))]
    pub sources: u32,
    /// Refusals in a minute that `tidegate explain` tells from others (a client counts once in 4.3 s).
    #[schemars(range(min = TABLE_RANGE.0, max = TABLE_RANGE.1))]
    pub refusals: u32,
}

/// Smallest and largest size of a table of connections.
pub const TABLE_RANGE: (u32, u32) = (1024, 1 << 22);

impl Default for Tables {
    fn default() -> Self {
        Self {
            handshakes: 1 << 18,
            connections: 1 << 18,
            requests: 1 << 17,
            sources: 1 << 16,
            refusals: 1 << 19,
        }
    }
}

impl Tables {
    /// The keys and their values.
    #[must_use]
    pub const fn sizes(&self) -> [(&'static str, u32); 5] {
        [
            ("handshakes", self.handshakes),
            ("connections", self.connections),
            ("requests", self.requests),
            ("sources", self.sources),
            ("refusals", self.refusals),
        ]
    }
}

/// The daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DaemonConfig {
    /// Time between two decisions, 10 ms to 1 s: each renews the lease, which holds for 3 s.
    #[serde(with = "text::span")]
    #[schemars(with = "text::SpanText")]
    pub tick: Nanos,
    /// The control socket, an absolute path; only root may use it, and `socket_group` may look.
    #[schemars(with = "String")]
    pub socket: PathBuf,
    /// A group whose members may look by the control socket (`status`, `top`, `explain`, `history`,
    /// `shadow report`), and change nothing. Without it only root may use the socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub socket_group: Option<String>,
    /// The user as whom the daemon runs after its start, where root started it. Without it: whose the directory
    /// of the control socket is, if that is below /run (the unit's `User=`), otherwise root. It has no capability
    /// in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    pub user: Option<String>,
    /// Where /metrics, /healthz and /readyz are served, or `off`.
    pub http: HttpAddress,
    /// Directory for pinned state on a BPF file system, an absolute path.
    #[schemars(with = "String")]
    pub pins: PathBuf,
}

/// The control socket where none is configured.
pub const SOCKET_DEFAULT: &str = "/run/tidegate/control.sock";
/// The port of /metrics where none is configured: below those that exporters of Prometheus are given
/// (9100 to 9999, of which 9464 is OpenTelemetry's), and given to nobody by IANA.
const HTTP_PORT: u16 = 7118;
/// The directory for pinned state where none is configured.
pub const PINS_DEFAULT: &str = "/sys/fs/bpf/tidegate";

impl Default for DaemonConfig {
    fn default() -> Self {
        Self {
            tick: Nanos::from_millis(100),
            socket: SOCKET_DEFAULT.into(),
            socket_group: None,
            user: None,
            http: HttpAddress(Some(([127, 0, 0, 1], HTTP_PORT).into())),
            pins: PINS_DEFAULT.into(),
        }
    }
}
