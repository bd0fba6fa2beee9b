// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a run gives, over the measured time.

use tidegate_units::Nanos;

/// One client machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientReport {
    /// Requests begun.
    pub offered: u64,
    /// Requests served; their response times in seconds, from the first SYN or from the arrival at the
    /// control node.
    pub response_s: Vec<f64>,
    /// Requests that the server answered "too busy".
    pub busy: u64,
    /// Requests that the control node answered "too busy".
    pub refused: u64,
    /// Requests whose SYNs were dropped until the client gave up.
    pub gave_up: u64,
    /// SYNs dropped at the interface.
    pub dropped: u64,
}

/// All.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// By client.
    pub clients: Vec<ClientReport>,
    /// Length of the measured time.
    pub seconds: f64,
    /// CPU seconds used in it.
    pub cpu_s: f64,
    /// Mean number of waiting requests.
    pub queue_mean: f64,
    /// Feedback messages that were sent, to one receiver each.
    pub messages: u64,
    /// Of them those that were lost.
    pub lost: u64,
    /// Share of the time in which the server wanted somebody throttled.
    pub throttled: f64,
    /// Times that it began to.
    pub onsets: u64,
    /// Of remote limits, where there are any.
    pub remote: Option<RemoteReport>,
}

/// Remote limits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemoteReport {
    /// Measured ticks.
    pub ticks: u64,
    /// Of them those in which every control node had a limit; without those of a cut link.
    pub limited: u64,
    /// In these: mean of what all nodes may admit, per second.
    pub limit_mean: f64,
    /// And its coefficient of variation.
    pub limit_variation: f64,
    /// The lowest rate of a node; infinite if there was none.
    pub least_rate: f64,
    /// From the last message that counted to the first step of the opening, of the slowest node.
    pub first_step: Option<Nanos>,
    /// The same until the limit is gone.
    pub open: Option<Nanos>,
    /// Messages of a forger.
    pub forged: u64,
    /// Of them those that a control node took.
    pub forged_taken: u64,
}

impl Report {
    /// Requests served, of all clients.
    #[must_use]
    pub fn served(&self) -> u64 {
        self.clients.iter().map(|client| client.response_s.len() as u64).sum()
    }

    /// Responses "too busy" of the server.
    #[must_use]
    pub fn busy(&self) -> u64 {
        self.clients.iter().map(|client| client.busy).sum()
    }
}

/// The server's wish to throttle, over time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wish {
    since: Option<Nanos>,
    lasted: Nanos,
}

impl Wish {
    /// It is so from now on. Whether that is a beginning.
    pub(super) fn set(&mut self, now: Nanos, throttled: bool) -> bool {
        match (self.since, throttled) {
            (None, true) => {
                self.since = Some(now);
                return true;
            }
            (Some(since), false) => {
                self.lasted += now.since(since);
                self.since = None;
            }
            _ => {}
        }
        false
    }

    /// How long it was so until now.
    pub(super) fn lasted(&self, now: Nanos) -> Nanos {
        self.lasted + self.since.map_or(Nanos::ZERO, |since| now.since(since))
    }
}
