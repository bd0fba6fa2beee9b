// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Taking over from a daemon that runs already.
//!
//! ```text
//! new: begin ──► old: decides nothing any more, renews the lease, says what it had decided
//! new: adopts the pinned state, applies its configuration, binds the socket in place of the old
//! new: finish ─► old: ends, and leaves everything attached      (new fails: abort ─► old goes on)
//! new: ticks
//! ```
//!
//! An old daemon that hears neither `finish` nor `abort` for [`WAIT_MAX`] goes on.

use crate::owner::Legacy;
use std::path::Path;
use std::time::Duration;
use tidegate_api::client::{Client, ClientError};
use tidegate_api::protocol::{HandoverPhase, Reply, Request};
use tidegate_units::Nanos;

/// How long the old daemon waits for the new one to start.
pub(crate) const WAIT_MAX: Nanos = Nanos::from_secs(20);
/// How long the new daemon waits for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// A daemon that runs and is ready to hand over.
pub(crate) struct Predecessor {
    client: Client,
    pid: u32,
    pub(crate) legacy: Legacy,
}

/// A daemon is there and cannot be succeeded.
#[derive(Debug, thiserror::Error)]
#[error("a daemon runs on this socket and does not hand over: {0}; stop it first")]
pub struct HandoverError(String);

impl Predecessor {
    /// Asks whoever listens on the socket to hand over; `None` if nobody does (a socket that a
    /// killed daemon left is nobody).
    pub(crate) fn find(socket: &Path) -> Result<Option<Self>, HandoverError> {
        let mut client = match Client::connect(socket, ANSWER_MAX) {
            Ok(client) => client,
            Err(ClientError::NoDaemon { .. }) => return Ok(None),
            Err(error) => return Err(HandoverError(error.to_string())),
        };
        let pid = match client.ask(&Request::Ping {}) {
            Ok(Reply::Pong { pid, .. }) => pid,
            Ok(_) => return Err(HandoverError("it is no daemon of ours".into())),
            // It ended between our connect and its answer.
            Err(ClientError::Broken { .. }) => return Ok(None),
            Err(error) => return Err(HandoverError(error.to_string())),
        };
        let legacy = match client.ask(&Request::Handover { phase: HandoverPhase::Begin }) {
            Ok(Reply::Handover { generation, limits, modes }) => {
                Legacy { generation, limits, modes }
            }
            Ok(_) => return Err(HandoverError(format!("pid {pid} gave another answer"))),
            Err(error) => return Err(HandoverError(format!("pid {pid}: {error}"))),
        };
        tracing::info!(pid, "taking over from a running daemon");
        Ok(Some(Self { client, pid, legacy }))
    }

    /// We are in charge now.
    pub(crate) fn finish(mut self) {
        let asked = self.client.ask(&Request::Handover { phase: HandoverPhase::Finish });
        match asked {
            Ok(_) => tracing::info!(pid = self.pid, "took over"),
            Err(error) => {
                tracing::warn!(pid = self.pid, %error, "the old daemon did not say goodbye")
            }
        }
    }

    /// We cannot start: the old daemon goes on.
    pub(crate) fn abort(mut self) {
        if let Err(error) = self.client.ask(&Request::Handover { phase: HandoverPhase::Abort }) {
            tracing::warn!(pid = self.pid, %error, "could not tell the old daemon to go on");
        }
    }
}
