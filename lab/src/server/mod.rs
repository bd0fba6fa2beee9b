// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real servers, unmodified, with configurations of their own in the lab's directory.

pub(crate) mod apache;
pub(crate) mod edge;
pub(crate) mod envoy;
pub(crate) mod front;
pub(crate) mod nft;
pub(crate) mod nginx;
pub(crate) mod node;
pub(crate) mod pages;
pub(crate) mod queued;
pub mod tiny;
pub(crate) mod tls;
pub(crate) mod unasked;

pub use apache::{ApacheOptions, Cgi, Mpm};
pub(crate) use edge::CADDY_REPORT;
pub use edge::{EdgeLimit, EdgeOptions, EdgeProxy};
pub use front::{FailsafePolicy, Front, FrontKind};
pub use nft::{DatagramCounts, DatagramRule, NftHook, NftLimit, NftRule};
pub use nginx::NginxOptions;
pub use node::NodeOptions;
pub use pages::PagesOptions;
pub use queued::{Change, QueueSeen, QueueWatch, QueuedOptions, Rungs};

use crate::cgroup::Group;
use crate::error::{LabError, Result};
use crate::load::{Arrive, KeepAlive, Manner, Mix, Session, Sources, Stream, Transport};
use crate::process::Managed;
use crate::topology::{CLIENTS_V4, CLIENTS_V6, SERVER_V4, SERVER_V6};
use serde::{Deserialize, Serialize};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tidegate_units::Nanos;
use tidegate_workload::Shape;

/// How many source addresses a stream takes unless told otherwise.
pub const SOURCES: u32 = 65_536;

/// What a request costs the server.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Mean.
    pub mean: Nanos,
    /// Distribution around it.
    pub shape: Shape,
    /// CPU time, or time only.
    pub kind: CostKind,
}

/// What is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CostKind {
    /// CPU time of one thread.
    Busy,
    /// Time in which the worker sleeps, as for a slow disk or database.
    Wait,
}

impl Cost {
    /// A constant amount of CPU time.
    #[must_use]
    pub const fn busy(mean: Nanos) -> Self {
        Self { mean, shape: Shape::Constant, kind: CostKind::Busy }
    }

    /// A constant wait.
    #[must_use]
    pub const fn wait(mean: Nanos) -> Self {
        Self { mean, shape: Shape::Constant, kind: CostKind::Wait }
    }

    /// The same mean in another shape.
    #[must_use]
    pub const fn shaped(self, shape: Shape) -> Self {
        Self { shape, ..self }
    }

    /// The query string that the CGI program understands.
    fn query(&self) -> String {
        let (shape, a, b) = match self.shape {
            Shape::Constant => ("constant", 0.0, 0.0),
            Shape::Exponential => ("exponential", 0.0, 0.0),
            Shape::Lognormal { cv } => ("lognormal", cv, 0.0),
            Shape::Pareto { alpha, ratio } => ("pareto", alpha, ratio),
            Shape::Bimodal { heavy, ratio } => ("bimodal", heavy, ratio),
        };
        let kind = match self.kind {
            CostKind::Busy => "busy",
            CostKind::Wait => "wait",
        };
        let mean_us = self.mean.0 as f64 / 1e3;
        format!("kind={kind}&mean_us={mean_us}&shape={shape}&a={a}&b={b}")
    }
}

/// A running server; ended by drop.
#[derive(Debug)]
pub struct Server {
    /// The process and what it started.
    pub(crate) process: Managed,
    /// Processes that it needs (the upstream of a proxy), ended after it.
    pub(crate) behind: Vec<Managed>,
    pub(crate) port: u16,
    pub(crate) path: String,
    pub(crate) access_log: Option<PathBuf>,
    /// What its usual requests are, where they are not all for `path`.
    pub(crate) mix: Option<Mix>,
    /// How requests to it are carried.
    pub(crate) transport: Transport,
    /// Where it counts what it passed without an answer of the gate, if it is to ask one.
    pub(crate) unasked: Option<unasked::Unasked>,
}

impl Server {
    /// One that serves requests for `/` in cleartext, alone and without a log; what differs is set behind it.
    pub(crate) fn new(process: Managed, port: u16) -> Self {
        Self {
            process,
            behind: Vec::new(),
            port,
            path: "/".to_owned(),
            access_log: None,
            mix: None,
            transport: Transport::Clear,
            unasked: None,
        }
    }

    /// Requests that a proxy at the edge passed because it had no answer of the gate; `None`: it asks none.
    ///
    /// # Errors
    /// When the proxy does not tell.
    pub fn unasked(&self) -> Result<Option<u64>> {
        self.unasked.as_ref().map(unasked::Unasked::count).transpose()
    }

    /// Where it listens, IPv4.
    #[must_use]
    pub fn target(&self) -> SocketAddr {
        SocketAddr::new(SERVER_V4, self.port)
    }

    /// Where it listens, IPv6.
    #[must_use]
    pub fn target_v6(&self) -> SocketAddr {
        SocketAddr::new(SERVER_V6, self.port)
    }

    /// Path and query of its usual request.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its process.
    #[must_use]
    pub const fn process(&self) -> &Managed {
        &self.process
    }

    /// Its cgroup.
    #[must_use]
    pub const fn group(&self) -> &Group {
        self.process.group()
    }

    /// The cgroups of the processes behind it (the upstream of a proxy), if any.
    pub fn groups_behind(&self) -> impl Iterator<Item = &Group> {
        self.behind.iter().map(Managed::group)
    }

    /// A stream of its usual requests over IPv4, from [`SOURCES`] addresses.
    #[must_use]
    pub fn stream(&self, name: &str, arrive: Arrive) -> Stream {
        Stream {
            name: name.to_owned(),
            arrive,
            target: self.target(),
            sources: Sources { first: CLIENTS_V4, count: SOURCES },
            path: self.path.clone(),
            host: "lab.test".to_owned(),
            dscp: 0,
            transport: self.transport,
            manner: Manner::Plain,
            ports: None,
            keep_alive: None,
            abortive: false,
            mix: self.mix.clone(),
            session: None,
            throttle: None,
        }
    }

    /// The same as sessions: so many requests on one connection, with `think` from a response to
    /// the next request. The client closes after the last; a single one in HTTP/1.1 asks the server
    /// to close.
    #[must_use]
    pub fn sessions(&self, name: &str, arrive: Arrive, requests: u32, think: Nanos) -> Stream {
        let keep = requests > 1 || self.transport == Transport::H2;
        Stream {
            keep_alive: keep.then_some(KeepAlive::of(requests)),
            session: Some(Session { requests, think, streams: 1, cookie: String::new() }),
            ..self.stream(name, arrive)
        }
    }

    /// The same from clients who keep their connections, whatever the status of a response: a request
    /// takes a connection that is idle, else a new one, up to so many.
    #[must_use]
    pub fn kept(&self, name: &str, arrive: Arrive, connections: u32) -> Stream {
        let keep_alive = Some(KeepAlive { requests: u32::MAX, connections });
        Stream { keep_alive, ..self.stream(name, arrive) }
    }

    /// The same over IPv6.
    #[must_use]
    pub fn stream_v6(&self, name: &str, arrive: Arrive) -> Stream {
        let sources = Sources { first: CLIENTS_V6, count: SOURCES };
        Stream { target: self.target_v6(), sources, ..self.stream(name, arrive) }
    }

    /// How many requests it has logged, where it logs each; clients that gave up may be among them.
    ///
    /// # Errors
    /// When the server keeps no log of requests, or it cannot be read.
    pub fn requests_logged(&self) -> Result<u64> {
        let missing = || LabError::Missing("a log of requests".into());
        let path = self.access_log.as_deref().ok_or_else(missing)?;
        count_lines(path, |_| true)
    }
}

/// Counts the lines of a log that fit.
fn count_lines(path: &Path, fits: impl Fn(&str) -> bool) -> Result<u64> {
    let text = fs::read(path).map_err(LabError::io(path.display().to_string()))?;
    Ok(String::from_utf8_lossy(&text).lines().filter(|l| fits(l)).count() as u64)
}

/// Whether someone listens on a TCP port in the namespace of a process.
pub(crate) fn listens(pid: u32, port: u16) -> bool {
    let wanted = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|table| {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        text.lines().skip(1).any(|line| {
            let mut fields = line.split_whitespace();
            let local = fields.nth(1).unwrap_or_default();
            // State 0A is LISTEN.
            local.ends_with(&wanted) && fields.nth(1) == Some("0A")
        })
    })
}
