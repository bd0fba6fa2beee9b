// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What happened to a service: summed up for whoever looks every 15 s ([`Sums`]).

use crate::limits::Cause;
use crate::signals::Family;
use serde::{Deserialize, Serialize};
use tidegate_units::Nanos;

/// What a service went through since the process began. A rate over any span is a difference of two
/// looks, so that nothing between them is lost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sums {
    /// How long it shed, by cause and mode.
    pub shedding: Vec<Shed>,
    /// How often that began.
    pub episodes: u64,
    /// When the last episode began (monotonic clock); `None`: there was none.
    pub began: Option<Nanos>,
    /// When the last episode that is over ended.
    pub ended: Option<Nanos>,
    /// How long each family of signals reported trouble, in the order of [`FAMILIES`].
    pub alarmed: [Nanos; 4],
    /// Levels times the time for which they held, in seconds; `None`: never known.
    pub levels: Levels,
}

/// How long a service shed for one cause in one mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shed {
    /// Why.
    pub cause: Cause,
    /// Whether it was only computed.
    pub shadow: bool,
    /// How long.
    pub time: Nanos,
}

/// Levels times the time for which they held: the difference of two looks over the time between
/// them is the mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Levels {
    /// Share of the CPU time that the service may use.
    pub cpu: Option<f64>,
    /// Share of a CPU that its busiest thread used.
    pub busiest_thread: Option<f64>,
    /// Exchanges in flight.
    pub waiting: Option<f64>,
    /// Connections that wait for accept.
    pub accept_queue: Option<f64>,
    /// Bytes per second, so this is bytes.
    pub sent: Option<f64>,
}

/// The families in the order of [`Sums::alarmed`].
pub const FAMILIES: [Family; 4] = [Family::Resource, Family::Queue, Family::Time, Family::Balance];

impl Sums {
    /// Adds to the time of a cause.
    pub fn shed(&mut self, cause: Cause, shadow: bool, more: Nanos) {
        let known = self.shedding.iter_mut().find(|s| s.cause == cause && s.shadow == shadow);
        match known {
            Some(shed) => shed.time += more,
            None => self.shedding.push(Shed { cause, shadow, time: more }),
        }
    }
}
