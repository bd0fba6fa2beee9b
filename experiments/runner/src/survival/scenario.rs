// SPDX-License-Identifier: Apache-2.0 OR MIT
//! scenario.yaml of a survival experiment.

use serde::Deserialize;
use tidegate_lab::{
    ApacheOptions, Cost, Lab, LabError, Mpm, NginxOptions, NodeOptions, Server, TinyOptions,
    Transport,
};
use tidegate_units::Nanos;

/// Port of an upstream.
const UPSTREAM: u16 = 9000;

/// The whole file. Times in seconds, loads as multiples of the measured capacity.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Always `survival`.
    pub kind: String,
    /// Which server.
    pub server: ServerSpec,
    /// `none`, `drop`, `reject`.
    pub variants: Vec<String>,
    /// Loads of the full run.
    pub loads: Vec<f64>,
    /// Load after each of them.
    pub after: f64,
    /// The load whose course over time is kept.
    pub trace_load: f64,
    /// Load under which the CPU is halved.
    pub halved_load: f64,
    /// Largest drift of the capacity from before to after a run; more makes it void.
    pub drift_max: f64,
    /// The full run.
    pub full: Extent,
    /// The quick run.
    pub quick: Extent,
    /// The demo.
    pub demo: Extent,
}

/// How much of it is run.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Extent {
    /// Loads instead of the scenario's; empty for those.
    pub loads: Vec<f64>,
    /// Load before the load.
    pub before: f64,
    /// How long before.
    pub before_s: f64,
    /// How long the load lasts, at least.
    pub load_s: f64,
    /// How long the lower load after it.
    pub after_s: f64,
    /// At these loads, so many arrivals at least (not with `none`, which refuses nobody).
    pub arrivals_at: Vec<(f64, f64)>,
    /// Loads that are also offered from the first second on, to a tidegate that has just been
    /// started: x_name `load_cold`.
    pub cold: Vec<f64>,
    /// CPU whole, halved, whole again; empty to leave it out.
    pub halved_s: Vec<f64>,
    /// Between which runs the capacity is measured.
    pub capacity: Beside,
    /// Runs are kept, with a remark, also when they are void: nothing is judged by them.
    pub keep_void: bool,
}

/// What stands between two measurements of the capacity, and is void by their drift.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Beside {
    /// One run: each point has a capacity of its own.
    #[default]
    Each,
    /// All runs of a load: shorter, and blind to a machine that changes between them.
    Group,
}

impl Extent {
    /// How long a load lasts at this capacity (answers per second).
    #[must_use]
    pub fn load_seconds(&self, load: f64, capacity: f64) -> f64 {
        let wanted = self.arrivals_at.iter().find(|(at, _)| (at - load).abs() < 1e-9);
        let needed = wanted.map_or(0.0, |(_, arrivals)| arrivals / (load * capacity).max(1.0));
        self.load_s.max(needed.ceil())
    }
}

/// Which server, and what a request costs it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSpec {
    /// Which one.
    pub kind: ServerKind,
    /// CPU time of a request in milliseconds.
    #[serde(default)]
    pub busy_ms: f64,
    /// Waiting time of a request in milliseconds.
    #[serde(default)]
    pub wait_ms: f64,
    /// Workers, where the kind leaves it open.
    #[serde(default)]
    pub workers: Option<u32>,
    /// Whether times are exponential instead of constant.
    #[serde(default)]
    pub exponential: bool,
    /// How requests are carried; the server with workers of its own speaks cleartext only.
    #[serde(default)]
    pub transport: Transport,
    /// Whether the server with workers keeps connections.
    #[serde(default)]
    pub keep_alive: bool,
    /// Whether Apache sees connections only once they have sent something, its own default.
    #[serde(default = "deferred")]
    pub defer_accept: bool,
}

const fn deferred() -> bool {
    true
}

/// The servers that the lab starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServerKind {
    /// Apache, one process a connection, CGI by fork.
    ApachePrefork,
    /// Apache, threads, CGI through its daemon.
    ApacheEvent,
    /// nginx in front of an upstream of bounded concurrency.
    NginxUpstream,
    /// Node.js by its own modules.
    Node,
    /// A server with a fixed number of workers.
    Workers,
}

impl ServerSpec {
    fn cost(&self) -> Cost {
        let cost = if self.busy_ms > 0.0 {
            Cost::busy(Nanos::from_secs_f64(self.busy_ms / 1e3))
        } else {
            Cost::wait(Nanos::from_secs_f64(self.wait_ms / 1e3))
        };
        if self.exponential { cost.shaped(tidegate_workload::Shape::Exponential) } else { cost }
    }

    /// Starts it on a port; `backlog` is the length of its listen queue, of Apache and of the server with
    /// workers.
    ///
    /// # Errors
    /// When it does not listen in time.
    pub fn start(&self, lab: &Lab, port: u16, backlog: Option<u32>) -> Result<Server, LabError> {
        let tiny = TinyOptions {
            workers: self.workers.unwrap_or(1),
            cost: self.cost(),
            port,
            backlog: backlog.map_or(TinyOptions::default().backlog, |b| b.cast_signed()),
            keep_alive: self.keep_alive,
            ..TinyOptions::default()
        };
        let apache = |mpm| {
            let options = ApacheOptions::cgi(mpm, self.cost());
            let Self { transport, defer_accept, .. } = *self;
            let listen_backlog = backlog;
            lab.start_apache(&ApacheOptions {
                port,
                listen_backlog,
                transport,
                defer_accept,
                ..options
            })
        };
        match self.kind {
            ServerKind::ApachePrefork => apache(Mpm::Prefork),
            ServerKind::ApacheEvent => apache(Mpm::Event),
            ServerKind::NginxUpstream => lab.start_nginx(&NginxOptions {
                port,
                upstream: Some(TinyOptions { port: UPSTREAM, ..tiny }),
                transport: self.transport,
                ..NginxOptions::default()
            }),
            ServerKind::Node => lab.start_node(&NodeOptions {
                port,
                transport: self.transport,
                cost: self.cost(),
                ..NodeOptions::default()
            }),
            ServerKind::Workers => lab.start_tiny(&tiny),
        }
    }
}
