// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Taking over from a daemon that runs already.
//!
//! ```text
//! new: begin ──► old: decides nothing any more, renews the lease, says what it had decided
//! new: adopts the pinned state, applies its configuration, binds the socket in place of the old
//! new: finish ─► old: ends, and leaves everything attached      (new fails: abort ─► old goes on)
//! new: detaches what was the old one's and is not its own; ticks
//! ```
//!
//! Until `finish` the new one only adds hooks and gives links its programs. An old daemon that goes
//! on puts back what it needs (tables, programs of links, pins), which takes no privileges.
//!
//! While it waits, the old daemon renews the lease for as long as a lease lasts ([`RENEW_MAX`]) and no
//! longer: then the limits open, as they do without a daemon.
//!
//! An old daemon that hears neither `finish` nor `abort` for [`WAIT_MAX`] goes on, and at once where
//! the connection of the new one ends; it refuses a `finish` that comes after that, and a second
//! `begin` before. Where the new one had bound the socket, the old one binds it again. The new one then gives up: two
//! daemons on one set of maps would fight. Where no answer comes, the lock on the pins decides.

use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_api::client::{Client, ClientError};
use tidegate_api::protocol::{ApiError, ErrorKind, Handover, HandoverPhase, Reply, Request};
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// How long the old daemon waits for the new one to start.
pub(crate) const WAIT_MAX: Nanos = Nanos::from_secs(20);
/// How long it renews the lease meanwhile: for as long as limits hold and open without a daemon
/// (policy/chain/lease.h). It decides nothing, so limits that hold for longer are nobody's.
pub(crate) const RENEW_MAX: Nanos = Nanos::from_secs(10);
/// How long the new daemon waits for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// A daemon that runs and is ready to hand over.
pub(crate) struct Predecessor {
    client: Client,
    pid: u32,
    /// Not after it has begun to wait.
    since: Nanos,
    pub(crate) left: Handover,
}

/// A daemon is there and cannot be succeeded.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// It did not begin.
    #[error("a daemon runs on this socket and does not hand over: {0}; stop it first")]
    Refused(String),
    /// It uses other pins: nothing could be adopted, and both would evaluate.
    #[error(
        "the daemon that runs on this socket (pid {pid}) has its pins at {}, not at {}; stop it first",
        theirs.display(), ours.display()
    )]
    OtherPins {
        /// Its process id.
        pid: u32,
        /// Where its pins are.
        theirs: PathBuf,
        /// Where ours would be.
        ours: PathBuf,
    },
    /// It began and did not end.
    #[error("the daemon that was to be succeeded goes on, and this one gives up: {0}")]
    GoesOn(String),
}

fn refused(why: impl Into<String>) -> HandoverError {
    HandoverError::Refused(why.into())
}

/// What a daemon that is asked to hand over remembers.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    since: Option<Nanos>,
}

/// What it does then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Decide nothing and wait.
    Wait,
    /// Go on as before.
    Stay,
    /// End; everything stays attached.
    End,
}

/// What a tick does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    /// Decide, as always.
    Decide,
    /// Decide nothing, and renew the lease.
    Renew,
    /// Nothing: limits that nobody stands for any more open by themselves.
    Rest,
    /// Nobody came: take everything back first, then decide.
    Resume,
}

impl Leaving {
    /// Whether a successor is starting.
    pub(crate) fn begun(&self) -> bool {
        self.since.is_some()
    }

    /// What a tick does: limits that nobody decides about are renewed for [`RENEW_MAX`], and a successor that was not
    /// heard of for [`WAIT_MAX`] is given up.
    pub(crate) fn round(&mut self, now: Nanos) -> Round {
        match self.since.map(|since| now.since(since)) {
            None => Round::Decide,
            Some(waited) if waited <= RENEW_MAX => Round::Renew,
            Some(waited) if waited <= WAIT_MAX => Round::Rest,
            Some(_) => {
                self.since = None;
                Round::Resume
            }
        }
    }

    /// A message of the successor.
    ///
    /// # Errors
    /// A second successor, or one that finishes too late.
    pub(crate) fn hear(&mut self, phase: HandoverPhase, now: Nanos) -> Result<Step, ApiError> {
        match (phase, self.since) {
            (HandoverPhase::Begin, None) => {
                self.since = Some(now);
                Ok(Step::Wait)
            }
            (HandoverPhase::Begin, Some(_)) => {
                let why = format!("another one is taking over already; try again in {WAIT_MAX}");
                Err(ApiError::new(ErrorKind::Busy, why))
            }
            // One that comes late has perhaps changed something, too.
            (HandoverPhase::Abort, _) => {
                self.since = None;
                Ok(Step::Stay)
            }
            (HandoverPhase::Finish, Some(_)) => Ok(Step::End),
            (HandoverPhase::Finish, None) => {
                let why = format!("it waits for {WAIT_MAX} at most, and was asked to end later");
                Err(ApiError::new(ErrorKind::Failed, why))
            }
        }
    }
}

impl Predecessor {
    /// Asks whoever listens on the socket to hand over; `None` if nobody does (a socket that a
    /// killed daemon left is nobody).
    pub(crate) fn find(socket: &Path) -> Result<Option<Self>, HandoverError> {
        Self::find_within(socket, ANSWER_MAX)
    }

    /// As [`Self::find`], with another patience.
    fn find_within(socket: &Path, patience: Duration) -> Result<Option<Self>, HandoverError> {
        let mut client = match Client::connect(socket, patience) {
            Ok(client) => client,
            Err(ClientError::NoDaemon { .. }) => return Ok(None),
            Err(error) => return Err(refused(error.to_string())),
        };
        let pid = match client.ask(&Request::Ping {}) {
            Ok(Reply::Pong { pid, .. }) => pid,
            Ok(_) => return Err(refused("it is no daemon of ours")),
            // It ended between our connect and its answer.
            Err(ClientError::Broken { .. }) => return Ok(None),
            Err(error) => return Err(refused(error.to_string())),
        };
        let since = MonotonicClock.now();
        let left = match client.ask(&Request::Handover { phase: HandoverPhase::Begin }) {
            Ok(Reply::Handover(left)) => left,
            Ok(_) => return Err(refused(format!("pid {pid} gave another answer"))),
            Err(error @ ClientError::Refused(_)) => {
                return Err(refused(format!("pid {pid}: {error}")));
            }
            Err(error) => {
                // It may get to it later, and would wait for nobody.
                withdraw(socket, patience);
                return Err(refused(format!("pid {pid}: {error}")));
            }
        };
        tracing::info!(pid, "taking over from a running daemon");
        Ok(Some(Self { client, pid, since, left }))
    }

    /// Its process id, as it sees it.
    pub(crate) const fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it uses the same pins, as far as it says; to be asked before anything is attached.
    ///
    /// # Errors
    /// When it uses others.
    pub(crate) fn shares(&self, pins: &Path) -> Result<(), HandoverError> {
        match &self.left.pins {
            Some(theirs) if theirs != pins => Err(HandoverError::OtherPins {
                pid: self.pid,
                theirs: theirs.clone(),
                ours: pins.to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Whether it still waits, before its socket is replaced: it could not be reached otherwise.
    ///
    /// # Errors
    /// When it does not, and goes on.
    pub(crate) fn waits(&self, now: Nanos) -> Result<(), HandoverError> {
        let took = now.since(self.since);
        if took <= WAIT_MAX {
            return Ok(());
        }
        let why = format!("the start took {took}, and it waits for {WAIT_MAX} at most");
        Err(HandoverError::GoesOn(why))
    }

    /// We are in charge now.
    ///
    /// # Errors
    /// When it says that it goes on.
    pub(crate) fn finish(mut self) -> Result<(), HandoverError> {
        let pid = self.pid;
        match self.client.ask(&Request::Handover { phase: HandoverPhase::Finish }) {
            Ok(_) => tracing::info!(pid, "took over"),
            Err(ClientError::Refused(error)) if error.kind == ErrorKind::Failed => {
                return Err(HandoverError::GoesOn(format!("pid {pid}: {error}")));
            }
            // The lock on the pins says whether it is gone.
            Err(error) => tracing::warn!(pid, %error, "the old daemon did not say goodbye"),
        }
        Ok(())
    }

    /// We cannot start: the old daemon goes on.
    pub(crate) fn abort(mut self) {
        if let Err(error) = self.client.ask(&Request::Handover { phase: HandoverPhase::Abort }) {
            tracing::warn!(pid = self.pid, %error, "could not tell the old daemon to go on");
        }
    }
}

/// Tells a daemon that did not answer to `begin` that nobody comes.
fn withdraw(socket: &Path, patience: Duration) {
    if let Ok(mut client) = Client::connect(socket, patience) {
        // One that does not hear this, either, goes on after WAIT_MAX.
        let _ = client.ask(&Request::Handover { phase: HandoverPhase::Abort });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use tidegate_api::protocol::{decode_request, encode_reply};
    use tidegate_bpf::policy::Lease;

    const T0: Nanos = Nanos::from_secs(100);

    #[test]
    fn one_successor_at_a_time() {
        let mut leaving = Leaving::default();
        assert_eq!(leaving.hear(HandoverPhase::Begin, T0).unwrap(), Step::Wait);
        let second = leaving.hear(HandoverPhase::Begin, T0 + Nanos::SECOND).unwrap_err();
        assert_eq!(second.kind, ErrorKind::Busy);
        assert_eq!(leaving.since, Some(T0), "the second prolongs nothing");
        assert_eq!(leaving.hear(HandoverPhase::Abort, T0).unwrap(), Step::Stay);
        assert_eq!(leaving.hear(HandoverPhase::Begin, T0).unwrap(), Step::Wait);
        assert_eq!(leaving.hear(HandoverPhase::Finish, T0).unwrap(), Step::End);
    }

    /// A daemon that is stuck gets to the message later; by then it is to know that nobody comes.
    #[test]
    fn a_daemon_that_does_not_answer_to_begin_is_told_that_nobody_comes() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("control.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let daemon = std::thread::spawn(move || {
            let (begun, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(&begun).lines();
            let heard = |lines: &mut dyn Iterator<Item = std::io::Result<String>>| {
                decode_request(lines.next().unwrap().unwrap().as_bytes()).unwrap()
            };
            assert_eq!(heard(&mut lines), Request::Ping {});
            let pong = Reply::Pong { program: "test".into(), pid: 7 };
            (&begun).write_all(&encode_reply(pong)).unwrap();
            let begin = heard(&mut lines);
            let (other, _) = listener.accept().unwrap();
            (begin, heard(&mut BufReader::new(&other).lines()))
        });
        let error = Predecessor::find_within(&socket, Duration::from_millis(200)).err().unwrap();
        assert!(matches!(error, HandoverError::Refused(_)), "{error}");
        let phase = |phase| Request::Handover { phase };
        let heard = daemon.join().unwrap();
        assert_eq!(heard, (phase(HandoverPhase::Begin), phase(HandoverPhase::Abort)));
    }

    /// While nobody decides, limits are renewed for no longer than the lease lasts.
    #[test]
    fn a_daemon_that_waits_renews_no_longer_than_a_lease_lasts() {
        let mut leaving = Leaving::default();
        assert_eq!(leaving.round(T0), Round::Decide, "nobody has begun");
        leaving.hear(HandoverPhase::Begin, T0).unwrap();
        for (after, round) in [
            (0, Round::Renew),
            (10_000, Round::Renew),
            (10_001, Round::Rest),
            (20_000, Round::Rest),
            (20_001, Round::Resume),
            (20_002, Round::Decide),
        ] {
            assert_eq!(leaving.round(T0 + Nanos::from_millis(after)), round, "{after} ms");
        }
        leaving.hear(HandoverPhase::Begin, T0).unwrap();
        leaving.hear(HandoverPhase::Abort, T0 + Nanos::SECOND).unwrap();
        assert_eq!(leaving.round(T0 + Nanos::SECOND), Round::Decide, "it does not come");
        let ended = Lease::at(T0, T0 + RENEW_MAX);
        assert!(ended.passes(false).is_some(), "a lease lasts for as long");
        assert!(Lease::at(T0, T0 + RENEW_MAX - Nanos::SECOND).passes(false).is_none());
    }

    #[test]
    fn who_finishes_after_the_old_daemon_went_on_is_told_so() {
        let mut leaving = Leaving::default();
        leaving.hear(HandoverPhase::Begin, T0).unwrap();
        assert_eq!((leaving.round(T0 + WAIT_MAX), leaving.begun()), (Round::Rest, true));
        let late = T0 + WAIT_MAX + Nanos(1);
        assert_eq!((leaving.round(late), leaving.begun()), (Round::Resume, false));
        let late = leaving.hear(HandoverPhase::Finish, T0 + WAIT_MAX + Nanos(3)).unwrap_err();
        assert_eq!(late.kind, ErrorKind::Failed);
    }
}
