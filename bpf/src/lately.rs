// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who was refused in the last minute, as the hooks noted it (policy/chain/lately.h).

use crate::core::Core;
use crate::mapped::Mapped;
use crate::plan::mapped;
use crate::{Error, abi, objects};
use std::net::{IpAddr, SocketAddr};
use tidegate_model::service_identity;
use tidegate_policy::{LatelyHash, LatelyLine, LatelyTurn};
use tidegate_units::Nanos;

/// The map of all slices.
pub(crate) const LINES: &str = "tg_lately";
/// The map that says which slice is written to.
pub(crate) const TURN: &str = "tg_lately_turn";
/// Clients of a minute (`tables.refusals`) that share a line of a slice.
pub(crate) const EACH: u32 = 128;

/// A destination behind a router, as services are told apart: no service has a space in its name.
pub(crate) fn router_identity(destination: SocketAddr) -> u64 {
    service_identity(&format!("router {destination}"))
}

/// What the hooks and the router know of the last minute, as of the last heartbeat.
pub struct Lately {
    lines: Mapped,
    /// Of a slice.
    each: u32,
    turn: LatelyTurn,
    now: Nanos,
    key: [u64; LatelyHash::KEYS],
}

impl Lately {
    pub(crate) fn new(core: &Core) -> Result<Self, Error> {
        let maps = &core.maps;
        let lease: abi::Lease = maps.read("tg_lease", 0)?;
        let control: abi::Control = maps.read("tg_control", 0)?;
        let lines = Mapped::new(maps.get(LINES)?, LINES)?;
        let each = lines.len() as u32 / LatelyTurn::SLICES;
        let (now, key) = (Nanos(lease.heartbeat_ns), objects::keys(control.seed));
        Ok(Self { lines, each, turn: maps.read(TURN, 0)?, now, key })
    }

    /// How long ago a service, by its name, last refused this client: at least and at most, if that
    /// was within the last minute. A client that was is always found, another one hardly ever.
    /// `shadow`: the refusal was only computed.
    #[must_use]
    pub fn find(&self, client: IpAddr, service: &str, shadow: bool) -> Option<(Nanos, Nanos)> {
        self.find_hash(LatelyHash::new(
            &self.key,
            mapped(client),
            (service_identity(service), shadow),
        ))
    }

    /// The same of the limit of a router on new connections to a destination.
    #[must_use]
    pub fn find_at_router(
        &self,
        client: IpAddr,
        destination: SocketAddr,
        shadow: bool,
    ) -> Option<(Nanos, Nanos)> {
        let identity = router_identity(destination);
        self.find_hash(LatelyHash::new(&self.key, mapped(client), (identity, shadow)))
    }

    fn find_hash(&self, hash: LatelyHash) -> Option<(Nanos, Nanos)> {
        let line = hash.line(self.each);
        let has = |slice: usize| {
            let words =
                self.lines.read::<[u64; LatelyLine::WORDS]>(slice * self.each as usize + line);
            words.is_some_and(|words| LatelyLine::of(words).has(hash))
        };
        let span = self.turn.spans(self.now).find(|span| has(span.slice))?;
        Some((self.now.since(span.end), self.now.since(span.begin)))
    }

    /// Of so many questions about nobody, how many find somebody. In a flood that fills the table it
    /// is not known any more who was refused.
    #[must_use]
    pub fn wrong(&self, questions: u32) -> u32 {
        let nobody = |n: u32| LatelyHash::of_nobody(objects::spread(self.now.0, n as usize));
        let found = (0..questions).filter(|n| self.find_hash(nobody(*n)).is_some());
        found.count() as u32
    }

    /// Whether all of the last minute is known: not if the state is younger.
    #[must_use]
    pub fn knows_a_minute(&self) -> bool {
        self.turn.knows_a_minute(self.now)
    }
}
