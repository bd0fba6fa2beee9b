// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a world of sessions is made of: machine, servers, sessions, loads, changes.

use super::sense::Accounting;
use crate::world::Phase;
use crate::world::gate::GateSpec;
pub use crate::world::server::Work;
use tidegate_control::Controller;
use tidegate_units::Nanos;
use tidegate_workload::{Mixture, Shape};

/// How a connection talks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Requests come with the end of the TCP handshake, one after the other.
    Cleartext,
    /// A handshake of one round trip goes before the first request.
    Tls,
    /// TLS, and after the first request up to [`HTTP2_AT_ONCE`] at once: the dataplane sees one turn.
    Http2,
}

/// Requests that an HTTP/2 client sends at once: a page, then what it names.
pub const HTTP2_AT_ONCE: u32 = 4;

/// What a client does with its connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Habit {
    /// Sends requests and reads responses.
    Asks,
    /// Says nothing for this long, and closes.
    Silent(Nanos),
    /// Takes this long to send its first request after the beginning of it.
    Uploads(Nanos),
    /// Asks for a response that the server holds back for this long.
    Polls(Nanos),
}

/// One kind of session: a connection and what happens on it.
#[derive(Clone, Debug)]
pub struct Session {
    /// How it talks.
    pub transport: Transport,
    /// Requests on the connection.
    pub requests: u32,
    /// Time between a response and the next request.
    pub think: Option<Work>,
    /// Round trip between client and server.
    pub rtt: Nanos,
    /// Time between the end of the TCP handshake and the first payload, where that does not come with it.
    pub asks_after: Option<Work>,
    /// What the client does.
    pub habit: Habit,
    /// Kinds of TCP.
    pub clients: Mixture,
}

/// When sessions begin.
#[derive(Clone, Debug)]
pub enum Load {
    /// Poisson, whatever becomes of them.
    Open(Vec<Phase>),
    /// So many users, each with one session after the other: a time to warm up, and one to measure.
    Closed(usize, [Nanos; 2]),
}

/// Sessions of one kind for one service.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Index of the service.
    pub service: usize,
    /// The kind.
    pub session: Session,
    /// When they begin.
    pub load: Load,
}

/// What a worker is held by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// The connection, from accept to close (Apache prefork).
    Connection,
    /// The first turn from accept on, then each turn from its first byte to its response (Apache event).
    Turn,
    /// Nothing: an event loop (nginx, Node).
    Nothing,
}

/// A server.
#[derive(Clone, Debug)]
pub struct ServerSpec {
    /// What holds a worker.
    pub held: Held,
    /// Workers.
    pub workers: usize,
    /// Connections at once; more wait in the accept queue.
    pub connections: usize,
    /// Threads that compute, each one task after the other in order of arrival; `None`: every
    /// worker computes by itself and the processors are shared.
    pub threads: Option<usize>,
    /// Connections that wait for accept; the kernel ignores SYNs and ACKs beyond it.
    pub accept_limit: usize,
    /// CPU seconds of an accept.
    pub accept_s: f64,
    /// Deferred accept: a silent connection is held in the kernel for so long.
    pub defer: Option<Nanos>,
    /// A connection is closed when nothing has come for so long after accept.
    pub first_data: Nanos,
    /// The same after a response.
    pub keep_alive: Nanos,
    /// CPU seconds of a TLS handshake.
    pub handshake_s: f64,
    /// Time that a request waits for something else before it is computed.
    pub wait: Option<Work>,
    /// CPU time of a request.
    pub cpu: Work,
    /// Requests that the upstream serves at once, and how long it takes for one.
    pub upstream: Option<(usize, Work)>,
}

/// A server with its protection and its signals.
pub struct Service {
    /// The server.
    pub server: ServerSpec,
    /// Who decides, and what executes it.
    pub protection: Option<(Box<dyn Controller>, GateSpec)>,
    /// Who decides after [`Change::Restart`].
    pub successor: Option<Box<dyn Controller>>,
    /// Where its CPU signal comes from.
    pub accounting: Accounting,
}

/// Something that changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// Speed of the machine's processors; 1 is full.
    Speed(f64),
    /// Mean of the wait of a service's requests, in seconds.
    Wait(usize, f64),
    /// Mean time of a service's upstream, in seconds.
    Upstream(usize, f64),
    /// The daemon is stopped or continued.
    Daemon(bool),
    /// A new daemon takes over from one that was killed: with the successors of the controllers, which
    /// get what was kept of those before them.
    Restart,
}

/// What the kernel takes for packets, in CPU seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PacketCost {
    /// A SYN that is evaluated.
    pub syn_s: f64,
    /// A SYN that passes, with the handshake that follows.
    pub accept_s: f64,
    /// A RST.
    pub reset_s: f64,
}

impl Default for PacketCost {
    /// Of the order of what the lab measures in softirq on veth.
    fn default() -> Self {
        Self { syn_s: 3e-6, accept_s: 20e-6, reset_s: 2e-6 }
    }
}

/// A world.
pub struct Spec {
    /// Processors of the machine.
    pub cpus: u32,
    /// What packets cost.
    pub packets: PacketCost,
    /// The services on it.
    pub services: Vec<Service>,
    /// Their sessions.
    pub streams: Vec<Stream>,
    /// What changes, and when.
    pub changes: Vec<(Nanos, Change)>,
    /// A client leaves when a response takes longer than this from the request's intended start.
    pub patience: Nanos,
    /// A response within this from the intended start is good.
    pub objective: Nanos,
    /// Period of the control loop.
    pub period: Nanos,
    /// When the control loop begins.
    pub control_from: Nanos,
    /// The seed of everything.
    pub seed: u64,
}

impl Session {
    /// One cleartext request of today's Linux client in the same data centre.
    ///
    /// # Panics
    /// Never; the schedule is in the table.
    #[must_use]
    pub fn one() -> Self {
        let schedule = tidegate_workload::SCHEDULES.first();
        Self {
            transport: Transport::Cleartext,
            requests: 1,
            think: None,
            rtt: Nanos::from_millis(1),
            asks_after: None,
            habit: Habit::Asks,
            clients: Mixture::only(schedule.expect("the table is not empty")),
        }
    }

    /// Seconds that a session takes by itself, its responses left out.
    #[must_use]
    pub fn thinks_s(&self) -> f64 {
        self.think.map_or(0.0, |think| think.mean_s * f64::from(self.requests - 1))
    }
}

/// Constant work of so many milliseconds.
#[must_use]
pub fn constant(ms: f64) -> Work {
    Work { mean_s: ms / 1e3, shape: Shape::Constant }
}

/// Exponential work of so many milliseconds on average.
#[must_use]
pub fn exponential(ms: f64) -> Work {
    Work { mean_s: ms / 1e3, shape: Shape::Exponential }
}
