// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One client's connection.
//!
//! ```text
//!  connect ─► Connecting ─ writable ─► Waiting ─ answer complete ─► Draining ─ FIN ─► closed
//!                 │ error                 │ cut, time-out               ▲
//!                 ▼                       ▼                          Idle (kept) ─ next request ─► Waiting
//!              refused                 broken
//! ```
//!
//! Draining: the client has its answer and waits for the server's FIN before it closes, so that the
//! TIME_WAIT stays with the server, as with real clients, and the client's ports stay free.

use super::http::Progress;
use super::manner::Drip;
use super::plan::Stream;
use super::table::Key;
use super::tally::Outcome;
use super::wire::{Heard, Wire};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, ErrorKind, Read};
use std::net::SocketAddr;
use std::time::Duration;
use tidegate_units::Nanos;
use tidegate_workload::SurgeRequest;

/// Bytes a read takes at most.
pub(crate) const BUFFER_BYTES: usize = 16_384;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Connecting,
    Waiting,
    Idle,
    Draining,
}

/// One arrival; times on the run's clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request {
    pub(crate) number: u64,
    /// Its place in its session, from 0.
    pub(crate) place: u32,
    /// How many of the next places go out with it and have not ended.
    pub(crate) beside: u32,
    /// One of those that went out with it ended without a 200.
    pub(crate) spoiled: bool,
    /// What it asks for, where that is drawn.
    pub(crate) asked: Option<SurgeRequest>,
    /// When its session began.
    pub(crate) session_start: Nanos,
    /// The connection that its session has kept.
    pub(crate) kept: Option<Key>,
    pub(crate) intended: Nanos,
    pub(crate) started: Nanos,
    /// A kept connection turned out to be closed: this is the second try, on a new one.
    pub(crate) again: bool,
}

pub(crate) struct Conn {
    pub(crate) socket: Socket,
    pub(crate) state: State,
    pub(crate) stream: usize,
    pub(crate) request: Request,
    pub(crate) established: Option<Nanos>,
    pub(crate) first_byte: Option<Nanos>,
    /// Requests served before the present one.
    pub(crate) served: u32,
    /// What the client sends later.
    pub(crate) drip: Option<Drip>,
    wire: Wire,
}

/// What an event led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing yet.
    Wait,
    /// The handshake is complete and the request sent: from now on only input matters.
    Sent,
    /// The answer is complete; `open` if the server leaves the connection open.
    Answered { status: u16, open: bool },
    /// A connection without a request has ended.
    Closed,
    /// The request has ended without an answer.
    Failed(Outcome),
}

/// Starts a connection. A failure here is the generator's own.
pub(crate) fn open(stream: &Stream, number: u64) -> io::Result<Socket> {
    let domain = if stream.target.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    // The port is chosen by connect, among those free towards this very target.
    setsockopt(&socket, sockopt::IpBindAddressNoPort, &true)?;
    // Whoever chooses its ports meets those that the kernel keeps for a while.
    socket.set_reuse_address(stream.ports.is_some())?;
    let port = stream.ports.map_or(0, |(first, count)| first + (number % u64::from(count)) as u16);
    socket.bind(&SocketAddr::new(stream.sources.get(number), port).into())?;
    let traffic_class = u32::from(stream.dscp) << 2;
    match (traffic_class, domain) {
        (0, _) => {}
        (_, Domain::IPV4) => socket.set_tos_v4(traffic_class)?,
        _ => socket.set_tclass_v6(traffic_class)?,
    }
    if stream.abortive {
        socket.set_linger(Some(Duration::ZERO))?;
    }
    match socket.connect(&stream.target.into()) {
        Ok(()) => Ok(socket),
        Err(e) if e.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {
            Ok(socket)
        }
        Err(e) => Err(e),
    }
}

impl Conn {
    pub(crate) fn new(socket: Socket, wire: Wire, stream: usize, request: Request) -> Self {
        Self {
            socket,
            state: State::Connecting,
            stream,
            request,
            established: None,
            first_byte: None,
            served: 0,
            drip: None,
            wire,
        }
    }

    /// Puts the next request on a kept connection; `false` when it does not take it.
    pub(crate) fn reuse(&mut self, request: Request, bytes: &[u8]) -> bool {
        self.request = request;
        self.first_byte = None;
        self.served += 1;
        self.state = State::Waiting;
        self.send(bytes) == Step::Sent
    }

    /// Handles an event at time `now`.
    pub(crate) fn on_event(&mut self, now: Nanos, bytes: &[u8], buffer: &mut [u8]) -> Step {
        match self.state {
            State::Connecting => self.on_connect(now, bytes),
            State::Waiting => self.on_answer(now, buffer),
            State::Idle => self.on_idle(buffer),
            State::Draining => self.on_rest(buffer),
        }
    }

    fn on_connect(&mut self, now: Nanos, bytes: &[u8]) -> Step {
        match self.socket.take_error() {
            Ok(None) => {}
            Ok(Some(e)) | Err(e) => return Step::Failed(self.connect_error(now, &e)),
        }
        self.established = Some(now);
        self.state = State::Waiting;
        self.send(bytes)
    }

    fn connect_error(&mut self, now: Nanos, error: &io::Error) -> Outcome {
        match error.kind() {
            // In SYN_SENT a RST is ECONNREFUSED: a reset connection had been established.
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                self.established = Some(now);
                Outcome::Broken
            }
            ErrorKind::TimedOut => Outcome::NoHandshake,
            ErrorKind::ConnectionRefused
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::PermissionDenied => Outcome::Refused,
            _ => Outcome::Error,
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Step {
        let times = 1 + self.request.beside;
        if self.wire.send(&self.socket, (bytes, times)) {
            Step::Sent
        } else {
            Step::Failed(Outcome::Broken)
        }
    }

    /// Sends the next part of what drips; `false` when there is nothing more to come, or the
    /// connection does not take it (its end comes as an event).
    pub(crate) fn drip(&mut self) -> bool {
        let Some((bytes, rest)) = self.drip.take().map(Drip::next) else { return false };
        self.drip = rest;
        self.wire.send_more(&self.socket, &bytes) && self.drip.is_some()
    }

    fn on_answer(&mut self, now: Nanos, buffer: &mut [u8]) -> Step {
        let Heard { progress, any, ended } = self.wire.hear(&self.socket, buffer);
        if any {
            self.first_byte.get_or_insert(now);
        }
        match progress {
            Progress::Partial => Step::Wait,
            Progress::Broken => Step::Failed(Outcome::Broken),
            Progress::Complete => {
                let open = !ended && self.wire.keeps_open();
                Step::Answered { status: self.wire.status(), open }
            }
        }
    }

    /// The statuses of those that have ended while others that went out with them are under way.
    pub(crate) fn take_early(&mut self) -> Vec<u16> {
        self.wire.take_early()
    }

    /// Between two requests: control frames of HTTP/2 and TLS are taken, anything else ends it.
    fn on_idle(&mut self, buffer: &mut [u8]) -> Step {
        let heard = self.wire.hear(&self.socket, buffer);
        if heard.ended || heard.progress != Progress::Partial || !self.wire.stays_idle(heard) {
            return Step::Closed;
        }
        Step::Wait
    }

    fn on_rest(&mut self, buffer: &mut [u8]) -> Step {
        match (&self.socket).read(buffer) {
            Ok(n) if n > 0 => Step::Wait,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Step::Wait
            }
            _ => Step::Closed,
        }
    }

    /// The client itself closes a connection that the server would have kept.
    pub(crate) fn farewell(&mut self) {
        self.wire.farewell(&self.socket);
    }

    /// Looks whether the server's FIN is there already: spares a wake-up.
    pub(crate) fn drained(&mut self, buffer: &mut [u8]) -> bool {
        self.state = State::Draining;
        self.on_rest(buffer) == Step::Closed
    }
}
