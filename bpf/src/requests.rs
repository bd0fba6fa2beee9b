// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Header rules as a plan has them: plain data, and every bound that it must keep.

use crate::abi_request::METHOD_OTHER;
use tidegate_policy::Reason;

/// The header rules of one service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Refusals are computed and counted, and not executed; `None`: as [`crate::Service::shadow`]
    /// says, also when that changes.
    pub shadow: Option<bool>,
    /// Names of the buckets, in the order of the configuration; a rule names one by its place.
    pub buckets: Vec<String>,
    /// The rules: of those with the longest path that fits, the first that matches.
    pub rules: Vec<HeaderRule>,
    /// What a refused request is told where the rule answers with a 503.
    pub busy: Busy,
}

/// One rule: which requests, and what limits them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeaderRule {
    /// Which requests or connections.
    pub subject: Subject,
    /// Place of the bucket in [`Requests::buckets`]; `None`: the rule admits.
    pub bucket: Option<usize>,
    /// How a request that the bucket refuses is answered.
    pub refuse: Refuse,
    /// While the bucket refuses, later requests of persistent connections are refused first.
    pub close_persistent: bool,
}

/// What a rule is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// HTTP/1 requests.
    Http(HttpMatch),
    /// TLS connections by the server name that they ask for; a 503 is impossible.
    Tls(Host),
    /// What no rule of its own can evaluate because of how its sender wrote or sent it; at most one
    /// rule of a service.
    Unevaluable,
}

/// Which HTTP requests; all that is said must hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HttpMatch {
    /// What the path begins with, in the normal form of http/http_path.h: at least `/`, at most 120
    /// bytes.
    pub path: Vec<u8>,
    /// With which methods.
    pub methods: Methods,
    /// For which host; `None`: any.
    pub host: Option<Host>,
    /// Cookies that must be there.
    pub cookies_all: Vec<CookieTest>,
    /// Cookies that must not be there.
    pub cookies_none: Vec<CookieTest>,
    /// With any of these cookies a request is refused last.
    pub protect: Vec<CookieTest>,
}

impl Default for HttpMatch {
    fn default() -> Self {
        Self {
            path: b"/".to_vec(),
            methods: Methods::ANY,
            host: None,
            cookies_all: Vec::new(),
            cookies_none: Vec::new(),
            protect: Vec::new(),
        }
    }
}

/// A set of methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Methods(pub(crate) u8);

impl Methods {
    /// None; no rule may have it.
    pub const NONE: Self = Self(0);
    /// All.
    pub const ANY: Self = Self(255);
    /// All that have none of these names.
    pub const OTHER: Self = Self(METHOD_OTHER);
    /// The names that rules may use, in the order of their bits; `OTHER` is any other method.
    pub const NAMES: [&str; 8] =
        ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "OTHER"];

    /// With the method of this name, too (upper case, one of [`Self::NAMES`]); `None`: another.
    #[must_use]
    pub fn with(self, name: &str) -> Option<Self> {
        let bit = Self::NAMES.iter().position(|known| *known == name)?;
        Some(Self(self.0 | 1 << bit))
    }
}

/// A host name, compared without regard to case and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// This one.
    Exact(String),
    /// Those with one more label before this name (`*.name`).
    Below(String),
}

/// A cookie that a rule asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CookieTest {
    /// Its name.
    pub name: String,
    /// Its value; `None`: any.
    pub value: Option<String>,
}

/// How a refused request is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Refuse {
    /// 503 with Retry-After; the server's socket is reset.
    #[default]
    Answer503 = 1,
    /// Both sides are reset.
    Reset = 2,
    /// The client hears nothing; the server's socket is reset.
    Drop = 3,
    /// 503 to a request that can be answered; else a reset for a source that looks like one client,
    /// and nothing for any other.
    Auto = 4,
}

impl Refuse {
    /// Whether a 503 may be sent.
    pub(crate) const fn answers(self) -> bool {
        matches!(self, Self::Answer503 | Self::Auto)
    }
}

/// The text of a 503.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Busy {
    /// Retry-After in seconds: from, to; spread over the clients; from is at least 1.
    pub retry_after: (u32, u32),
    /// Content-Type of the body.
    pub content_type: String,
    /// The body; with the headers at most 524 bytes.
    pub body: String,
}

impl Default for Busy {
    fn default() -> Self {
        Self {
            retry_after: (2, 9),
            content_type: "text/plain".into(),
            body: "The server is busy. Please try again.\n".into(),
        }
    }
}

/// What the control loop decided for one bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BucketParams {
    /// Index of the service in the plan.
    pub service: usize,
    /// Place of the bucket in the service's [`Requests::buckets`].
    pub bucket: usize,
    /// Requests per second; `None`: no limit.
    pub rate: Option<tidegate_units::Rate>,
    /// Depth in requests; at least 1 where there is a rate.
    pub burst: u32,
    /// Tokens that a request of each rank must leave: protected, new, persistent; not falling,
    /// each below the depth.
    pub reserve: [u32; 3],
}

/// How often a rule of a service matched, and what became of the requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCount {
    /// Index of the service.
    pub service: usize,
    /// Place of the rule in [`Requests::rules`].
    pub rule: usize,
    /// Admitted.
    pub admitted: u64,
    /// Refused, and the refusal executed.
    pub refused: u64,
    /// Refused, and only counted.
    pub shadowed: u64,
    /// Refused, but passed because the lease has run out.
    pub lease: u64,
    /// Answers that were sent again.
    pub repeated: u64,
    /// Refused, but passed or dropped because the answer could not be sent.
    pub failed: u64,
    /// Of what was admitted: handed to the server, and followed.
    pub begun: u64,
    /// Of these: answered, or their connection ended, or cannot be followed any more.
    pub ended: u64,
    /// Answers whose first byte was seen.
    pub started: u64,
    /// Time from their requests to their first bytes, summed.
    pub started_ns: u64,
    /// Answers whose last byte was seen.
    pub answered: u64,
    /// Time from their requests to their last bytes, summed.
    pub answered_ns: u64,
}

/// How many segments of a service with rules no rule of their own evaluated, for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestReason {
    /// Index of the service.
    pub service: usize,
    /// Why.
    pub reason: Reason,
    /// How many segments.
    pub count: u64,
}
