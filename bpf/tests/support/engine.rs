// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a hook did with a frame, whoever ran it: the kernel, the native build, the reference.

use super::reference::{Action, Counted, Decision, Evaluated, Scene, Socket, decide};
use super::setup::Setup;
use std::fmt;

/// The ingress hooks. They share their body; what differs is how they change a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    Xdp,
    Tc,
}

impl Hook {
    pub const ALL: [Self; 2] = [Self::Xdp, Self::Tc];
}

/// A frame, and where it arrives.
#[derive(Clone, Debug)]
pub struct Arrival<'a> {
    pub frame: &'a [u8],
    pub socket: Socket,
    /// On the loopback interface.
    pub loopback: bool,
}

/// What a hook did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub action: Action,
    pub counted: Counted,
}

impl Seen {
    /// What the documents say it must do (with dice that execute every refusal of a lease that
    /// still holds at all).
    pub fn expected(setup: &Setup, arrival: &Arrival<'_>) -> Self {
        let scene = Scene {
            setup,
            socket: arrival.socket,
            loopback: arrival.loopback,
            can_answer: true,
            dice: 0,
        };
        decide(arrival.frame, &scene).into()
    }

    /// What was counted, in words: `token`, or `shop/default reject rate (shadow)`.
    pub fn words(&self, setup: &Setup) -> String {
        match self.counted {
            Counted::Passed(reason) => reason.name().to_owned(),
            Counted::Evaluated(Evaluated { service, class, kind, reason, shadow }) => format!(
                "{}/{} {} {}{}",
                setup.services[service].name,
                setup.class_name(service, class),
                kind.name(),
                reason.name(),
                if shadow { " (shadow)" } else { "" }
            ),
        }
    }
}

impl From<Decision> for Seen {
    fn from(decision: Decision) -> Self {
        Self { action: decision.action, counted: decision.counted }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pass => "pass",
            Self::Drop => "drop",
            Self::Answer(_) => "answer",
        })
    }
}
