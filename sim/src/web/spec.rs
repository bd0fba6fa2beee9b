// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a run is made of: the server, its interface, the load, what stands in front of it.

use crate::world::gate::GateSpec;
use tidegate_control::Controller;
use tidegate_units::Nanos;
use tidegate_workload::{Mixture, Process, Profile, RequestKind, Surge};

/// CPU time that things take, in seconds of one core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// A file, whatever its size; connection set-up included.
    pub file_s: f64,
    /// What a dynamic request takes beside that.
    pub dynamic_s: f64,
    /// Each byte of a response.
    pub byte_s: f64,
    /// A connection whose request is refused by its header: set-up, recognition, reset.
    pub refuse_s: f64,
    /// A SYN that is refused.
    pub police_s: f64,
}

/// Two capacities that are known of a server, from which its costs follow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// Requests per second, none of them dynamic.
    pub without: f64,
    /// Requests per second with a share `dynamic` of the small ones dynamic.
    pub with: f64,
    /// That share, above 0.
    pub dynamic: f64,
}

impl Costs {
    /// Costs of files and dynamic requests such that one core has the known capacities for the
    /// requests of this catalogue; the other costs are given. A file costs at least a tenth of the
    /// mean request, whatever its bytes.
    #[must_use]
    pub fn of(known: Known, files: &Surge, others: Self) -> Self {
        let mean_s = 1.0 / known.without.max(1e-3);
        let bytes_s = (others.byte_s * files.mean_size()).min(0.9 * mean_s);
        let (large, _) = files.expected(RequestKind::Large);
        let dynamic = ((1.0 - large) * known.dynamic).max(1e-6);
        Self {
            file_s: mean_s - bytes_s,
            byte_s: bytes_s / files.mean_size().max(1.0),
            dynamic_s: ((1.0 / known.with.max(1e-3) - mean_s) / dynamic).max(0.0),
            ..others
        }
    }

    /// What one request costs.
    #[must_use]
    pub fn request_s(&self, kind: RequestKind, size: u64) -> f64 {
        let dynamic = if kind == RequestKind::Dynamic { self.dynamic_s } else { 0.0 };
        self.file_s + dynamic + self.byte_s * size as f64
    }

    /// Requests of this catalogue per second and core.
    #[must_use]
    pub fn capacity(&self, files: &Surge) -> f64 {
        let (dynamic, _) = files.expected(RequestKind::Dynamic);
        1.0 / (self.file_s + self.byte_s * files.mean_size() + dynamic * self.dynamic_s)
    }
}

/// The server.
#[derive(Clone, Debug, PartialEq)]
pub struct WebServer {
    /// Cores.
    pub cpus: u32,
    /// Requests in service at once: a worker is held until the client has the whole response.
    pub workers: usize,
    /// Connections that wait for a worker; what comes beyond is ignored by the kernel.
    pub accept_limit: usize,
    /// What things cost.
    pub costs: Costs,
}

/// The outgoing interface.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interface {
    /// Bytes per second on the wire, headers and framing included.
    pub rate: f64,
    /// Packets that may wait; what comes beyond is dropped.
    pub limit: usize,
}

/// Requests for one large file beside the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LargeLoad {
    /// Per second.
    pub rate: f64,
    /// Bytes.
    pub size: u64,
}

/// Clients that come for several requests, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sessions {
    /// Requests of one; 1: every client comes for one request.
    pub requests: u32,
    /// From a response to the next request.
    pub think: Nanos,
}

/// A run.
#[derive(Clone, Debug)]
pub struct WebScenario {
    /// The server.
    pub server: WebServer,
    /// Its interface; `None`: never a bottleneck.
    pub interface: Option<Interface>,
    /// What is asked for.
    pub files: Surge,
    /// How arrivals are spread.
    pub process: Process,
    /// New clients per second, piece by piece.
    pub load: Profile,
    /// Beside it, all the time.
    pub large: Option<LargeLoad>,
    /// Whether clients have more than one request.
    pub sessions: Sessions,
    /// Kinds of clients: when they send SYNs again.
    pub clients: Mixture,
    /// Not connected after so long: gives up. `None`: only `timeout` counts.
    pub connect_timeout: Option<Nanos>,
    /// No response after so long from the intended start: gives up.
    pub timeout: Nanos,
    /// Round trip without queues.
    pub rtt: Nanos,
    /// What begins (and, for rates, ends) from here on until the end of the load is measured.
    pub measure_from: Nanos,
    /// Period of the control loop.
    pub period: Nanos,
    /// The seed of everything.
    pub seed: u64,
}

impl WebScenario {
    /// When the load ends.
    #[must_use]
    pub fn until(&self) -> Nanos {
        self.load.segments.iter().fold(Nanos::ZERO, |sum, piece| sum + piece.lasts)
    }
}

/// Which requests a rule is for. The more special path wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// `/cgi-bin/`.
    Dynamic,
    /// `/islarge/`.
    Large,
    /// `/`.
    Any,
}

impl Match {
    /// Whether the rule is for such a request.
    #[must_use]
    pub fn fits(self, kind: RequestKind) -> bool {
        match self {
            Self::Dynamic => kind == RequestKind::Dynamic,
            Self::Large => kind == RequestKind::Large,
            Self::Any => true,
        }
    }
}

/// A request rule with a bucket of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleSpec {
    /// For which requests.
    pub matches: Match,
    /// Whether requests with a session's cookie are refused last.
    pub protect: bool,
}

/// What stands in front of the server.
pub struct WebProtection {
    /// Who decides, about SYNs and buckets.
    pub controller: Box<dyn Controller>,
    /// What evaluates SYNs.
    pub gate: GateSpec,
    /// What evaluates requests: a bucket each, in the order of the controller's.
    pub rules: Vec<RuleSpec>,
}
