// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cases: each a packet, what is configured, and what a person expects of it. What the golden
//! files add is every byte.

mod answers;
mod classes;
pub mod heads;
mod ipv4;
mod ipv6;
mod limits;
mod link;
mod tcp;

use super::engine::{Arrival, Seen};
use super::native::{How, Native, Ran};
use super::packet::Packet;
use super::reference::{Action, Counted};
use super::scene;
use super::setup::Setup;
use tidegate_policy::{Reason, VerdictKind};

/// One packet and what must become of it.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: &'static str,
    pub about: &'static str,
    pub setup: Setup,
    /// The packet as it is written in the source.
    pub source: &'static str,
    pub packet: Packet,
    /// Arrives on the loopback interface.
    pub loopback: bool,
    pub expect: Expect,
}

/// What a person expects.
#[derive(Clone, Copy, Debug)]
pub struct Expect {
    /// `None`: passed without being evaluated.
    pub kind: Option<VerdictKind>,
    pub reason: Reason,
    pub service: &'static str,
    pub class: &'static str,
    pub shadow: bool,
}

/// Passed without being evaluated.
pub const fn pass(reason: Reason) -> Expect {
    Expect { kind: None, reason, service: "shop", class: "default", shadow: false }
}

const fn evaluated(kind: VerdictKind, reason: Reason) -> Expect {
    Expect { kind: Some(kind), ..pass(reason) }
}

pub const fn admit(reason: Reason) -> Expect {
    evaluated(VerdictKind::Admit, reason)
}

pub const fn drop(reason: Reason) -> Expect {
    evaluated(VerdictKind::Drop, reason)
}

pub const fn reject(reason: Reason) -> Expect {
    evaluated(VerdictKind::Reject, reason)
}

impl Expect {
    pub const fn service(self, service: &'static str) -> Self {
        Self { service, ..self }
    }

    pub const fn class(self, class: &'static str) -> Self {
        Self { class, ..self }
    }

    pub const fn shadow(self) -> Self {
        Self { shadow: true, ..self }
    }

    /// Whether this was seen.
    pub fn is(&self, seen: &Seen, setup: &Setup) -> bool {
        let action = match (self.kind, self.shadow) {
            (None | Some(VerdictKind::Admit), _) | (_, true) => seen.action == Action::Pass,
            (Some(VerdictKind::Reject), false) => matches!(seen.action, Action::Answer(_)),
            _ => seen.action == Action::Drop,
        };
        let counted = match seen.counted {
            Counted::Passed(reason) => self.kind.is_none() && reason == self.reason,
            Counted::Evaluated(evaluated) => {
                self.kind == Some(evaluated.kind)
                    && self.reason == evaluated.reason
                    && self.shadow == evaluated.shadow
                    && self.service == setup.services[evaluated.service].name
                    && self.class == setup.class_name(evaluated.service, evaluated.class)
            }
        };
        action && counted
    }
}

impl Case {
    /// How a frame of this case arrives: its own, or a part of it.
    pub fn arrival<'a>(&self, frame: &'a [u8]) -> Arrival<'a> {
        Arrival { frame, socket: scene::socket(frame), loopback: self.loopback }
    }

    /// Puts the case into the native build and runs it: where the SYN was refused before, it is,
    /// and then tokens come back.
    pub fn run(&self, native: &mut Native, arrival: &Arrival<'_>) -> Result<Ran, String> {
        native.set(&self.setup);
        if self.setup.services.iter().any(|service| service.refused_before) {
            let limits = || self.setup.services.iter().map(|service| service.limit.as_ref());
            for (service, limit) in limits().enumerate() {
                native.use_tokens(service, limit.map_or(0, |limit| limit.burst));
            }
            native.try_run(arrival, How::default())?;
            for (service, limit) in limits().enumerate() {
                native.use_tokens(service, limit.map_or(0, |limit| limit.used));
            }
        }
        native.try_run(arrival, How::default())
    }
}

/// Adds cases with one set-up and one expectation: name, what it shows, packet.
macro_rules! cases {
    ($to:ident, $setup:expr, $expect:expr; $($name:literal $about:literal => $packet:expr;)*) => {
        $($to.push($crate::support::cases::Case {
            name: $name,
            about: $about,
            setup: $setup,
            source: stringify!($packet),
            packet: $packet,
            loopback: false,
            expect: $expect,
        });)*
    };
}
pub(crate) use cases;

/// A golden file: its name and its cases.
pub type Group = (&'static str, Vec<Case>);

/// All cases, by golden file.
pub fn all() -> Vec<Group> {
    vec![
        ("link", link::cases()),
        ("ipv4", ipv4::cases()),
        ("ipv6", ipv6::cases()),
        ("tcp", tcp::cases()),
        ("classes", classes::cases()),
        ("limits", limits::cases()),
        ("answers", answers::cases()),
    ]
}
