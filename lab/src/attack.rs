// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who attacks the limits between servers and routers, as a process of its own: it speaks the protocol of peers, and
//! has what an attacker of its kind would have.
//!
//! | kind | where | what it has |
//! | --- | --- | --- |
//! | strangers | beside S1 | certificates of an authority that nobody trusts |
//! | forged | S1, which is compromised | all keys of S1, and what is public of S0 |
//! | replays | the same | the same, and every limit that was ever signed with these keys |
//! | impostor | in the place of a router | the keys of S1, and certificates of another authority |
//! | liar | a router, which is compromised | all keys of this router |
//!
//! It says once a second what it has done, as a line of JSON.

mod line;
mod router;
mod server;

use crate::error::{LabError, Result};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use tidegate_peer::tls::{Credentials, Files};
use tidegate_units::{Clock, MonotonicClock, Nanos};

/// How often it says what it has done.
const SAY_EVERY: Nanos = Nanos::SECOND;
/// Between two forged messages: half of what a receiver takes from a peer.
const FORGE_EVERY: Nanos = Nanos::from_millis(100);
/// Between two tries to connect.
const AGAIN: Nanos = Nanos::from_millis(250);

/// What kind of attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttackKind {
    /// Whoever can connect says that it is a server, and gives limits.
    Strangers,
    /// A server limits others: unsigned, signed with its own key, beyond its grant, for another receiver.
    Forged,
    /// A server repeats limits: in its session, in a later one, at another router.
    Replays,
    /// In the place of a router somebody else sends notices.
    Impostor,
    /// A router says that a thousand times more comes than does, also for a server that did not ask.
    Liar,
}

/// What an attacker has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttackCounts {
    /// Messages and handshakes that nobody may take.
    pub sent: u64,
    /// Limits on itself, which it may give.
    pub allowed: u64,
    /// Of what was sent, what the other side took, as far as that is seen here: sessions, and limits on others.
    pub taken: u64,
    /// Limits that a server gave to a router that lied, on itself.
    pub answers: u64,
}

/// A router, as an attacker knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Receiver {
    pub(crate) identity: String,
    pub(crate) address: SocketAddrV4,
}

/// A server, its grant, and its key for limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limiter {
    pub(crate) service: String,
    pub(crate) scope: String,
    pub(crate) grant: u64,
    pub(crate) key: PathBuf,
}

/// An attack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Attack {
    pub(crate) kind: AttackKind,
    /// Who it is: name of its files.
    pub(crate) name: String,
    /// Where the keys are, and those of the authority that nobody trusts.
    pub(crate) keys: PathBuf,
    pub(crate) foreign: PathBuf,
    /// The routers; the first one is attacked.
    pub(crate) routers: Vec<Receiver>,
    /// Where it stands as a router.
    pub(crate) listen: SocketAddrV4,
    /// Whose keys it has, and whom it wants to limit.
    pub(crate) own: Limiter,
    pub(crate) victim: Limiter,
}

impl Attack {
    /// As an argument of the helper.
    pub(crate) fn json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|e| LabError::Plan(e.to_string()))
    }

    /// Certificates of a name, and the authority that is trusted by whoever holds them.
    fn credentials(&self, name: &str, folder: &Path) -> std::io::Result<Credentials> {
        let files = Files {
            certificate: folder.join(format!("{name}.pem")),
            key: folder.join(format!("{name}.key")),
            authority: self.keys.join("authority.pem"),
        };
        Credentials::load(&files).map_err(std::io::Error::other)
    }
}

/// Attacks until killed.
pub(crate) fn main(attack: &Attack) -> std::io::Result<()> {
    let mut said = Said { counts: AttackCounts::default(), next: MonotonicClock.now() };
    match attack.kind {
        AttackKind::Strangers => server::strangers(attack, &mut said),
        AttackKind::Forged => server::forged(attack, &mut said),
        AttackKind::Replays => server::replays(attack, &mut said),
        AttackKind::Impostor => router::impostor(attack, &mut said),
        AttackKind::Liar => router::liar(attack, &mut said),
    }
}

/// What it has done, and when it says so next.
struct Said {
    counts: AttackCounts,
    next: Nanos,
}

impl Said {
    fn now_and_then(&mut self) -> std::io::Result<()> {
        let now = MonotonicClock.now();
        if now < self.next {
            return Ok(());
        }
        self.next = now + SAY_EVERY;
        let line = serde_json::to_string(&self.counts)?;
        let mut out = std::io::stdout();
        writeln!(out, "{line}")?;
        out.flush()
    }
}

/// What it has said last.
pub(crate) fn last(log: &Path) -> AttackCounts {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let counts = |line: &str| serde_json::from_str(line).ok();
    whole.lines().rev().find_map(counts).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line that is not whole yet does not count, and what a library says neither.
    #[test]
    fn the_last_whole_line_counts() {
        let dir = std::env::temp_dir().join(format!("tg-attack-{}", std::process::id()));
        let line = |sent: u64| {
            let counts = AttackCounts { sent, ..AttackCounts::default() };
            serde_json::to_string(&counts).unwrap()
        };
        let text = format!("{}\n{}\na word\n{}", line(1), line(2), &line(3)[..9]);
        std::fs::write(&dir, text).unwrap();
        assert_eq!(last(&dir).sent, 2);
        std::fs::remove_file(&dir).unwrap();
        assert_eq!(last(&dir), AttackCounts::default());
    }
}
