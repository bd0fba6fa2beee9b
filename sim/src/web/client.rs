// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A client with its request: who asks, for what, and where the request stands.

use super::tcp::Flow;
use tidegate_units::Nanos;
use tidegate_workload::{RequestKind, Schedule};

/// Whose request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Of the load.
    Surge,
    /// For the one large file beside it.
    Large,
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Its SYN was not let through yet.
    Trying,
    /// It was; the handshake goes on.
    Connecting,
    /// Admitted: waits for a worker, or has one.
    Waiting,
    /// The response is under way.
    Sending,
    /// Answered, refused or given up.
    Over,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) stream: Stream,
    pub(super) kind: RequestKind,
    pub(super) size: u64,
    /// Requests of its session that come after it.
    pub(super) later: u32,
    /// Whether it has the session's cookie.
    pub(super) cookie: bool,
    /// When its session began: for the count of sessions.
    pub(super) session: Nanos,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) asked: Asked,
    pub(super) began: Nanos,
    pub(super) schedule: &'static Schedule,
    /// Counted from 1 over the whole run: what the policy's key is made of.
    pub(super) serial: u64,
    pub(super) syns: usize,
    pub(super) policed: bool,
    pub(super) state: State,
    pub(super) requested: Nanos,
    /// Times that its request found the accept queue full.
    pub(super) unheard: u32,
    pub(super) bucket: Option<usize>,
    pub(super) worker: bool,
    pub(super) flow: Option<Box<Flow>>,
}

impl Client {
    /// One that sends its first SYN now.
    pub(super) fn new(now: Nanos, asked: Asked, schedule: &'static Schedule, serial: u64) -> Self {
        Self {
            asked,
            began: now,
            schedule,
            serial,
            syns: 0,
            policed: false,
            state: State::Trying,
            requested: now,
            unheard: 0,
            bucket: None,
            worker: false,
            flow: None,
        }
    }
}
