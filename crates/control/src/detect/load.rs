// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a detector says of a tick.

use super::echo::Echo;
use tidegate_model::limits::Cause;
use tidegate_model::limits::Pending;
use tidegate_model::signals::Family;
use tidegate_units::Nanos;

/// How loaded a service is.
#[derive(Clone, Debug)]
pub enum Load {
    /// Counts or jobs in flight are not known: what was decided stands.
    Unknown,
    /// They have been unknown for long: what was decided is not known to be needed any more. Since when.
    Lost(Nanos),
    /// No overload that refusals would help against.
    Calm(Calm),
    /// More than the server can do.
    Overload(Overload),
}

/// A service that is not overloaded.
#[derive(Clone, Debug)]
pub struct Calm {
    /// Since when.
    pub since: Nanos,
    /// Families that report a problem all the same.
    pub evidence: Vec<Family>,
    /// Exchanges completed per second.
    pub completes: f64,
    /// Jobs usually in flight.
    pub usual: f64,
    /// What one job takes, in seconds, as far as it is known.
    pub baseline_s: Option<f64>,
    /// How much longer queues are than with exponential times: 1 or more.
    pub variability: f64,
    /// Jobs beyond the usual that the server answers within the objective.
    pub headroom: f64,
    /// Jobs beyond these that are tried: see probe.rs.
    pub tried: f64,
    /// Jobs beyond the usual that are evidence of an overload.
    pub excess: f64,
    /// Jobs beyond the usual that chance does not bring, nor a small burst.
    pub beyond_chance: f64,
    /// Exchanges completed per second at most, lately; `None` within a second of a start, a gap or an
    /// overload, from which on they are counted.
    pub peak: Option<f64>,
    /// Enough was seen to know all that.
    pub known: bool,
    /// Nothing completes for a moment, or what piled up meanwhile still drains; not at a gateway.
    pub stalls: bool,
    /// The same at a gateway, where it is no reason to let in whoever comes: what usually comes in that time.
    pub piles: f64,
    /// Something was refused in this tick.
    pub refused: bool,
    /// Who is silent and will ask in a moment.
    pub pending: Pending,
}

/// An overload.
#[derive(Clone, Debug)]
pub struct Overload {
    /// Since when.
    pub since: Nanos,
    /// What it was seen by at first; `None` where a process before has seen it.
    pub cause: Option<Cause>,
    /// Families that report a problem now.
    pub evidence: Vec<Family>,
    /// Jobs in flight now.
    pub in_flight: f64,
    /// Exchanges completed per second under saturation: μ, at least 1.
    pub capacity: f64,
    /// Exchanges that a connection brings, at least 1.
    pub each: f64,
    /// Connections per second that complete with the target in flight.
    pub departures: f64,
    /// What one job takes, in seconds: r0.
    pub baseline_s: f64,
    /// Whether that is what each waits for, however few are in flight: see fall.rs.
    pub waits: bool,
    /// Jobs in flight of connections that stay: refusing does not bring them down.
    pub staying: f64,
    /// Jobs in flight to hold: N*.
    pub target: f64,
    /// Of them, those that a trial adds.
    pub tried: f64,
    /// Of them, the standing queue.
    pub queue: f64,
    /// Most jobs in flight beside that target.
    pub ceiling: f64,
    /// Seconds from one request of a connection to its next; 0 where it has one.
    pub cycle_s: f64,
    /// Connections that were admitted and have not asked yet.
    pub coming: f64,
    /// As many are on their way while as many come as complete.
    pub on_their_way: f64,
    /// Of these, jobs that are in proxies whose loops take long turns.
    pub in_proxies: f64,
    /// As many complete in one such turn: so many come at once, and none until the next.
    pub a_turn: f64,
    /// The server starts workers, for which connections wait: see seats.rs.
    pub workers_grow: bool,
    pub(super) echo: Echo,
}

impl Overload {
    /// Connections per second to admit at most while only repeated SYNs are too many, and so many
    /// fewer as long as a queue has to drain; `None`: new work is too much as well.
    pub(crate) fn echo_limit(&self, surplus: f64) -> Option<f64> {
        self.echo.limit(surplus)
    }

    /// Whether only repeated SYNs are too many.
    #[must_use]
    pub const fn only_repeated(&self) -> bool {
        self.echo.is_on()
    }
}
