// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `requests`: which requests consume which resource, and what happens to those that are too many.

mod head;
mod path;
mod select;
mod text;
mod words;

pub use head::{RequestHead, Unevaluable, Unevaluated};
pub(crate) use select::covers_cookie;
pub use select::{Compared, Selection};
pub(super) use text::{HOST_MAX, check_content_type, check_cookie_name, check_cookie_value};
pub use text::{HostPattern, PathPrefix};

use super::named::{self, Named};
use super::text::{self as forms};
use super::types::{BURST_MAX, PolicyConfig};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use text::{ContentTypeText, CookieValueText};
pub(super) use text::{CookieNameText, HostText, PathText};
use tidegate_model::Mode;
use tidegate_units::{Nanos, Rate};

/// Most rules of all services (bpf/abi/request.h: TG_RULES_MAX - 1, since number 0 is not used).
pub const RULES_MAX: usize = 1023;
/// Most buckets of all services (TG_RULE_BUCKETS_MAX).
pub const RULE_BUCKETS_MAX: usize = 128;
/// Most different cookies, with their values, that all rules ask for (TG_COOKIE_TESTS_MAX).
pub const COOKIE_TESTS_MAX: usize = 32;
/// Most different texts of a 503 (TG_ANSWERS_MAX / TG_ANSWER_VARIANTS).
pub const ANSWER_TEXTS_MAX: usize = 16;
/// Longest path of a rule, in bytes (TG_PATH_MAX).
pub const PATH_MAX: usize = 120;
/// Longest 503, headers and body together, in bytes (TG_ANSWER_BYTES_MAX): one segment, however small the
/// MSS of the client is (536 bytes are the least, 12 are time stamps).
pub const ANSWER_BYTES_MAX: usize = 524;
/// Into how many values Retry-After is spread (TG_ANSWER_VARIANTS).
pub const ANSWER_VARIANTS: usize = 8;
/// Longest name of a cookie, in bytes.
pub const COOKIE_NAME_MAX: usize = 64;
/// Longest value of a cookie, in bytes.
pub const COOKIE_VALUE_MAX: usize = 256;
/// Most cookies that one rule protects by.
pub const PROTECT_MAX: usize = 8;
/// Shortest and longest Retry-After.
pub const RETRY_AFTER_RANGE: (Nanos, Nanos) = (Nanos::SECOND, Nanos::from_secs(86_400));
/// The least that a bucket admits where nothing is said.
pub const BUCKET_MIN_RATE: f64 = 10.0;
/// Depth of a bucket where nothing is said: the header bucket of the dual admission paper.
pub const BUCKET_BURST: u32 = 5;
/// The bucket of requests that no rule can evaluate, where no rule says another.
pub const UNEVALUABLE_BUCKET: &str = "unevaluable";

/// Admission of requests by their header, before the server sees them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestsConfig {
    /// Whether refused requests are really refused (`enforce`) or only counted (`shadow`); where
    /// it is not given, as the service. A service in `shadow` refuses no request either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// One bucket for each resource that requests compete for, by name; rules name them.
    #[serde(with = "named")]
    #[schemars(with = "std::collections::BTreeMap<String, BucketConfig>")]
    #[schemars(extend("minProperties" = 1, "maxProperties" = RULE_BUCKETS_MAX))]
    pub buckets: Vec<BucketConfig>,
    /// Which requests go through which bucket. The longest path that begins the request's wins;
    /// among rules of one path the first that matches; what no rule matches passes. Required, unless a route
    /// of a gateway names a bucket: then there may be none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = RULES_MAX))]
    pub rules: Vec<RuleConfig>,
    /// When connections are refused as well, by the service's own controller. What an operator sets in
    /// `control`, a `fixed` rate or a `ceiling`, holds always.
    #[serde(default)]
    pub syn_policing: SynPolicing,
    /// How long a 503 asks its client to stay away.
    #[serde(default)]
    pub retry_after: RetryAfter,
    /// Body of the 503. With its headers it has at most 524 bytes.
    #[serde(default = "RequestsConfig::body_default")]
    pub response_body: String,
    /// Type of `response_body`.
    #[serde(default = "RequestsConfig::content_type_default")]
    #[schemars(with = "ContentTypeText")]
    pub content_type: String,
}

/// Without buckets and rules, which no file may have.
impl Default for RequestsConfig {
    fn default() -> Self {
        Self {
            mode: None,
            buckets: Vec::new(),
            rules: Vec::new(),
            syn_policing: SynPolicing::default(),
            retry_after: RetryAfter::default(),
            response_body: Self::body_default(),
            content_type: Self::content_type_default(),
        }
    }
}

impl RequestsConfig {
    fn body_default() -> String {
        "The server is busy. Please try again.\n".into()
    }

    fn content_type_default() -> String {
        "text/plain".into()
    }

    /// Whether refusals are executed, in a service of this mode.
    #[must_use]
    pub fn mode_within(&self, service: Mode) -> Mode {
        match (service, self.mode) {
            (Mode::Shadow, _) | (_, Some(Mode::Shadow)) => Mode::Shadow,
            (Mode::Enforce, _) => Mode::Enforce,
        }
    }

    /// Adds what is there unless it is written: the rule for unevaluable requests, and its bucket. Without
    /// rules nothing is evaluated by them.
    pub(crate) fn complete(&mut self) {
        if self.rules.is_empty() || self.rules.iter().any(|rule| rule.unevaluable) {
            return;
        }
        if self.bucket(UNEVALUABLE_BUCKET).is_none() {
            self.buckets.push(BucketConfig::new(UNEVALUABLE_BUCKET, ControlledResource::Cpu));
        }
        let bucket = Some(UNEVALUABLE_BUCKET.into());
        self.rules.push(RuleConfig { unevaluable: true, bucket, ..RuleConfig::default() });
    }

    /// Whether a refused request may get a 503.
    #[must_use]
    pub fn sends_503(&self) -> bool {
        self.rules.iter().any(|rule| rule.bucket.is_some() && rule.sends_503())
    }

    /// The place of a bucket.
    #[must_use]
    pub fn bucket(&self, name: &str) -> Option<usize> {
        self.buckets.iter().position(|bucket| bucket.name == name)
    }
}

/// When connections are refused besides requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SynPolicing {
    /// Only when the buckets of what is short have nothing left to refuse.
    #[default]
    LastResort,
    /// Each controller on its own, as in the paper.
    Always,
}

impl SynPolicing {
    /// The word of the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LastResort => "last-resort",
            Self::Always => "always",
        }
    }
}

/// One bucket: a rate of requests, found by feedback from the resource that they consume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BucketConfig {
    /// Its name: the key under `buckets`.
    #[serde(skip)]
    pub name: String,
    /// What its requests consume.
    pub resource: ControlledResource,
    /// The rate never falls below this, for all rules of the bucket together. (`fixed` keeps its own.)
    #[serde(default = "BucketConfig::min_rate_default", with = "forms::rate")]
    #[schemars(with = "forms::RateText")]
    pub min_rate: Rate,
    /// Depth, in requests: how many may come at once.
    #[serde(default = "BucketConfig::burst_default")]
    #[schemars(range(min = 1, max = BURST_MAX))]
    pub burst: u32,
    /// How requests are refused: a `token_bucket` of the rate (where nothing is said), `gap`, `percent` or
    /// `threshold`; `name` has to be written, and `action` and the level `accept-queue` are not for buckets. What
    /// becomes of the refused, the rules say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyConfig>,
    /// How its rate is found.
    #[serde(default)]
    pub control: BucketControl,
}

impl BucketConfig {
    /// A bucket that says no more than it must.
    #[must_use]
    pub fn new(name: &str, resource: ControlledResource) -> Self {
        Self {
            name: name.to_owned(),
            resource,
            min_rate: Self::min_rate_default(),
            burst: BUCKET_BURST,
            policy: None,
            control: BucketControl::default(),
        }
    }

    fn min_rate_default() -> Rate {
        Rate::per_second(BUCKET_MIN_RATE)
    }

    const fn burst_default() -> u32 {
        BUCKET_BURST
    }
}

impl Named for BucketConfig {
    fn name(&self) -> &str {
        &self.name
    }

    fn named(self, name: String) -> Self {
        Self { name, ..self }
    }
}

/// What requests compete for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ControlledResource {
    /// CPU of the service.
    Cpu,
    /// The outgoing interface: the queue of packets in front of it.
    Bandwidth,
    /// Memory: the share of time that tasks waited for it (PSI).
    Memory,
    /// Disk: the share of time that tasks waited for input and output (PSI).
    Disk,
    /// Connections that wait for `accept`.
    AcceptQueue,
    /// Requests of the bucket that are admitted and not responded to yet; unknown inside TLS.
    InFlight,
    /// CPU of the service: the share of time that tasks waited for it (PSI).
    CpuPressure,
    /// Time to the first byte of the bucket's responses, of the service's objective; unknown inside TLS.
    FirstByte,
    /// Time to the last byte of the bucket's responses, of the service's objective; unknown inside TLS.
    ResponseTime,
    /// Connections of the service that wait for a response.
    Waiting,
    /// Bytes per second that the outgoing interface sends.
    BytesSent,
}

impl ControlledResource {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Cpu,
        Self::Bandwidth,
        Self::Memory,
        Self::Disk,
        Self::AcceptQueue,
        Self::InFlight,
        Self::CpuPressure,
        Self::FirstByte,
        Self::ResponseTime,
        Self::Waiting,
        Self::BytesSent,
    ];

    /// The word of the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Bandwidth => "bandwidth",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::AcceptQueue => "accept-queue",
            Self::InFlight => "in-flight",
            Self::CpuPressure => "cpu-pressure",
            Self::FirstByte => "first-byte",
            Self::ResponseTime => "response-time",
            Self::Waiting => "waiting",
            Self::BytesSent => "bytes-sent",
        }
    }

    /// Whether it is seen as a queue, whose change tells the trend.
    #[must_use]
    pub const fn is_queue(self) -> bool {
        matches!(self, Self::Bandwidth | Self::AcceptQueue | Self::InFlight | Self::Waiting)
    }

    /// Whether it is a number of which only the operator knows how large it may become: its
    /// `reference` is that number, and must be given.
    #[must_use]
    pub const fn is_number(self) -> bool {
        matches!(self, Self::InFlight | Self::Waiting | Self::BytesSent)
    }

    /// Whether it is seen in what was admitted, which is invisible inside TLS.
    #[must_use]
    pub const fn is_followed(self) -> bool {
        matches!(self, Self::InFlight | Self::FirstByte | Self::ResponseTime)
    }

    /// Whether the outgoing interface must be looked at for it.
    #[must_use]
    pub const fn is_of_interface(self) -> bool {
        matches!(self, Self::Bandwidth | Self::BytesSent)
    }
}

/// How the rate of a bucket is found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BucketControl {
    /// `default` finds the rate of a server of which nothing is known; `p` and `pd` are the
    /// published ones, for shares (CPU, pressure) and for queues; `fixed` keeps one rate.
    pub name: BucketController,
    /// `fixed`: the rate (required). `p` and `pd`: the rate to begin with; none until the resource
    /// is short for the first time.
    #[serde(with = "forms::rate_opt", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "forms::RateText")]
    pub rate: Option<Rate>,
    /// `p` and `pd`: what is aimed at. A share: of the CPU (0.9), of the time waited for it (0.5), for
    /// memory (0.1) or disk (0.4), of the limit of the interface's queue (0.35) or the accept queue
    /// (0.1), of the service's objective (0.5 for both times). A number, required, also for `default`:
    /// requests `in-flight`, connections `waiting`, `bytes-sent` per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "f64", range(min = 0.0, max = REFERENCE_MAX))]
    pub reference: Option<f64>,
    /// `p` and `pd`: how many requests per second a second the rate moves for each percent of
    /// error (1/5 for `p`, 1/16 for `pd`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "f64", range(min = GAIN_RANGE.0, max = GAIN_RANGE.1))]
    pub gain: Option<f64>,
    /// Only `pd`: how many requests per second the rate falls for each percent that the queue has
    /// grown (1/4).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "f64", range(min = 0.0, max = GAIN_RANGE.1))]
    pub derivative_gain: Option<f64>,
    /// `default`, `p` and `pd`: the rate never rises above this (none).
    #[serde(with = "forms::rate_opt", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "forms::RateText")]
    pub ceiling: Option<Rate>,
    /// Only `p` and `pd`: `published`: the law exactly as the paper has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub variant: Option<ControlVariant>,
}

/// Variants of the published controllers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ControlVariant {
    /// As printed: a rate that the crowd has pushed down stays there when it leaves.
    Published,
    /// The default: raised while it refuses and the resource is below its reference.
    #[default]
    Released,
}

impl ControlVariant {
    /// The word of the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::Released => "released",
        }
    }
}

/// Most requests in flight, or connections that wait, that may be aimed at.
pub const IN_FLIGHT_MAX: f64 = 65_536.0;
/// Fewest and most bytes per second that may be aimed at.
pub const BYTES_RANGE: (f64, f64) = (1_000.0, 1e12);
/// Largest reference of all.
pub const REFERENCE_MAX: f64 = BYTES_RANGE.1;
/// Smallest and largest gain.
pub const GAIN_RANGE: (f64, f64) = (0.001, 1000.0);

/// The controllers of buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BucketController {
    /// The default controller of a service, with the bucket as its valve.
    #[default]
    Default,
    /// Proportional: for shares.
    P,
    /// Proportional and derivative: for queues.
    Pd,
    /// One rate.
    Fixed,
}

impl BucketController {
    /// The word of the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::P => "p",
            Self::Pd => "pd",
            Self::Fixed => "fixed",
        }
    }
}

/// One rule: which requests, which bucket, which action. It has one of `path`, `server_name` and
/// `unevaluable`, and either `bucket` or `action: allow`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleConfig {
    /// Name for counters and screens, unique in the service; else what it matches is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Requests whose path begins with this; `/` is all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PathText")]
    pub path: Option<PathPrefix>,
    /// TLS connections to this server name (SNI), or `*.` and a name for all with one label more.
    /// What is inside them is invisible here: the whole connection is evaluated, once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "HostText")]
    pub server_name: Option<HostPattern>,
    /// What no other rule can evaluate because of how its sender wrote or sent it: an ambiguous path,
    /// a head in several segments, pipelining, HTTP/2. Without such a rule there is one with the bucket
    /// `unevaluable`, which limits by the CPU unless it is configured.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unevaluable: bool,
    /// Only these methods; none given: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = Method::ALL.len()))]
    pub methods: Vec<Method>,
    /// Only requests to this host (Host header, without its port), or `*.` and a name for all with
    /// one label more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "HostText")]
    pub host: Option<HostPattern>,
    /// Only requests with this cookie, or without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cookie: Option<CookieMatch>,
    /// Requests with any of these cookies are refused last: ongoing sessions, premium users.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = PROTECT_MAX))]
    pub protect: Vec<Cookie>,
    /// While the bucket refuses, later requests of persistent connections are refused first, and
    /// their connections closed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub close_persistent: bool,
    /// The bucket that these requests go through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<String>,
    /// What becomes of a request that the bucket refuses (503; for `server_name` reset). Instead of a
    /// bucket: `allow`, these requests are admitted, whatever other rules say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<RuleAction>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls it with")]
const fn is_false(value: &bool) -> bool {
    !*value
}

impl RuleConfig {
    /// Whether its requests are admitted, whatever other rules say.
    #[must_use]
    pub fn allows(&self) -> bool {
        self.action == Some(RuleAction::Allow)
    }

    /// What becomes of a refused request, the default filled in.
    #[must_use]
    pub fn refusal(&self) -> RuleRefusal {
        match self.action {
            Some(RuleAction::Refuse(refusal)) => refusal,
            _ if self.server_name.is_some() => RuleRefusal::Reset,
            _ => RuleRefusal::Busy,
        }
    }

    /// Whether a refused request may get a 503.
    #[must_use]
    pub fn sends_503(&self) -> bool {
        self.server_name.is_none()
            && matches!(self.refusal(), RuleRefusal::Busy | RuleRefusal::Auto)
    }
}

/// A cookie by name, and by value where one is given.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(deny_unknown_fields)]
pub struct Cookie {
    /// Its name; upper and lower case differ.
    #[schemars(with = "CookieNameText")]
    pub name: String,
    /// Its value, exactly; any where none is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "CookieValueText")]
    pub value: Option<String>,
}

/// A cookie that must be there, or must not.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CookieMatch {
    /// Its name; upper and lower case differ.
    #[schemars(with = "CookieNameText")]
    pub name: String,
    /// Its value, exactly; any where none is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "CookieValueText")]
    pub value: Option<String>,
    /// Matches requests without it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub absent: bool,
}

impl CookieMatch {
    /// Which cookie it is about.
    #[must_use]
    pub fn cookie(&self) -> Cookie {
        Cookie { name: self.name.clone(), value: self.value.clone() }
    }
}

/// Request methods; `OTHER` is every one that has no name here.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "UPPERCASE")]
pub enum Method {
    /// GET.
    Get,
    /// HEAD.
    Head,
    /// POST.
    Post,
    /// PUT.
    Put,
    /// DELETE.
    Delete,
    /// OPTIONS.
    Options,
    /// PATCH.
    Patch,
    /// Any other.
    Other,
}

impl Method {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Get,
        Self::Head,
        Self::Post,
        Self::Put,
        Self::Delete,
        Self::Options,
        Self::Patch,
        Self::Other,
    ];

    /// The word of the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Options => "OPTIONS",
            Self::Patch => "PATCH",
            Self::Other => "OTHER",
        }
    }
}

/// What becomes of the requests of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RuleAction {
    /// All are admitted.
    #[serde(rename = "allow")]
    Allow,
    /// Those that the bucket refuses are refused so.
    #[serde(untagged)]
    Refuse(RuleRefusal),
}

/// How a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RuleRefusal {
    /// A complete 503 with Retry-After.
    #[serde(rename = "503")]
    Busy,
    /// The connection is reset.
    #[serde(rename = "reset")]
    Reset,
    /// Nothing is sent: the client waits until it gives up.
    #[serde(rename = "drop")]
    Drop,
    /// A 503 where a request can be answered. Else a reset for a source that looks like one client,
    /// and nothing for a proxy, a NAT or an unknown source.
    #[serde(rename = "auto")]
    Auto,
}

impl RuleRefusal {
    /// The word of the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Busy => "503",
            Self::Reset => "reset",
            Self::Drop => "drop",
            Self::Auto => "auto",
        }
    }
}

impl JsonSchema for RuleAction {
    fn schema_name() -> Cow<'static, str> {
        "RuleAction".into()
    }

    /// `503` is a number to most YAML readers.
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "enum": ["allow", 503, "503", "reset", "drop", "auto"] })
    }
}

/// How long a client is asked to stay away: whole seconds, spread so that not all come back at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetryAfter {
    /// The shortest, at least 1s.
    #[serde(with = "forms::span")]
    #[schemars(with = "forms::SpanText")]
    pub min: Nanos,
    /// The longest, at most 24h.
    #[serde(with = "forms::span")]
    #[schemars(with = "forms::SpanText")]
    pub max: Nanos,
}

impl Default for RetryAfter {
    fn default() -> Self {
        Self { min: Nanos::from_secs(2), max: Nanos::from_secs(9) }
    }
}
