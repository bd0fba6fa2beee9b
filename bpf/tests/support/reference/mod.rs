// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The whole ingress decision once more, by another hand: parse, classify, chain of limits,
//! execution, answer. Written from design.md, the configuration's documentation and reasons.def;
//! slow, obvious, and without any state of its own. Tests compare it with the kernel.
//!
//! The order of what applies (first one wins): not understood · no service · no SYN · exempt ·
//! a socket of its own, unless in TIME_WAIT the stack opens another · released · lease over · limits: accept queue, waiting, policy. A refusal
//! is then executed, unless shadow or a relaxing lease says no; an answer that nobody could get,
//! or that is one too many, is not sent.

mod answer;
mod classify;
pub mod http;
mod limits;
pub mod parse;
pub mod rules;
pub mod tls;

use super::setup::{Heartbeat, SECOND, Setup};
use parse::Segment;
use tidegate_policy::{Reason, VerdictKind};

/// What the stack knows of the tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Socket {
    Nothing,
    /// A listener and its accept queue.
    Listener {
        length: u32,
        limit: u32,
    },
    Request,
    Established,
    /// The client has sent its FIN.
    CloseWait,
    TimeWait(TimeWait),
}

/// What a socket in TIME_WAIT remembers, and who listens behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeWait {
    /// The sequence number that it expects.
    pub next: u32,
    /// The client's last time stamp, if it sent any.
    pub stamp: Option<u32>,
    /// In FIN_WAIT2: the client may still send.
    pub closing: bool,
    /// Length and limit of the accept queue.
    pub listener: Option<(u32, u32)>,
}

impl TimeWait {
    /// Whether the stack opens a connection for a SYN (RFC 6191, as Linux has it).
    fn takes(&self, syn: &Segment) -> bool {
        // modulo 2^32, the half that lies behind counts as later
        let later = |a: u32, b: u32| (1..=1 << 31).contains(&a.wrapping_sub(b));
        let behind = later(syn.seq, self.next);
        let stamps = self.stamp.and_then(|last| Some((last, syn.stamp?)));
        let fits = match stamps {
            // of a connection that never had a stamp but zero, every stamp is good
            Some((0, _)) | None => true,
            Some((last, stamp)) => stamp == last || later(stamp, last),
        };
        let newer = stamps.is_some_and(|(last, stamp)| later(stamp, last));
        !self.closing && fits && (behind || newer)
    }
}

/// Everything but the frame.
#[derive(Clone, Debug)]
pub struct Scene<'a> {
    pub setup: &'a Setup,
    pub socket: Socket,
    /// Whether the frame came in on the loopback interface.
    pub loopback: bool,
    /// Whether this interface can answer at all.
    pub can_answer: bool,
    /// The random number where a lease relaxes: 0 … 65535.
    pub dice: u16,
}

/// What happens to the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Pass,
    Drop,
    /// Goes back as these bytes.
    Answer(Vec<u8>),
}

/// A verdict on new work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evaluated {
    pub service: usize,
    pub class: usize,
    pub kind: VerdictKind,
    pub reason: Reason,
    /// Computed, and not executed.
    pub shadow: bool,
}

/// Where the frame was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Passed without being evaluated.
    Passed(Reason),
    Evaluated(Evaluated),
}

impl Counted {
    pub fn reason(&self) -> Reason {
        match self {
            Self::Passed(reason) => *reason,
            Self::Evaluated(evaluated) => evaluated.reason,
        }
    }
}

/// The decision, and what it used up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub action: Action,
    pub counted: Counted,
    pub took_token: bool,
    pub took_min_rate: bool,
    pub took_answer: bool,
    /// Refused, by the policy or a limit before it: the policy remembers either.
    pub refused: bool,
}

impl Decision {
    fn pass(reason: Reason) -> Self {
        Self {
            action: Action::Pass,
            counted: Counted::Passed(reason),
            took_token: false,
            took_min_rate: false,
            took_answer: false,
            refused: false,
        }
    }
}

/// Decides on a frame.
pub fn decide(frame: &[u8], scene: &Scene<'_>) -> Decision {
    match new_work(frame, scene) {
        Err(reason) => Decision::pass(reason),
        Ok((segment, service)) => evaluate(frame, &segment, scene, service),
    }
}

/// The SYN and its service, or the reason why this is nothing to evaluate.
fn new_work(frame: &[u8], scene: &Scene<'_>) -> Result<(Segment, usize), Reason> {
    let segment = parse::parse(frame)?;
    let service = classify::service_of(scene.setup, &segment).ok_or(Reason::NotService)?;
    if !segment.is_syn() {
        return Err(Reason::NotNew);
    }
    if classify::exempt(scene.setup, &segment) {
        return Err(Reason::Exempt);
    }
    match scene.socket {
        Socket::Request => return Err(Reason::SocketRequest),
        Socket::Established | Socket::CloseWait => return Err(Reason::SocketEstablished),
        Socket::TimeWait(waits) if !waits.takes(&segment) => {
            return Err(Reason::SocketTimeWait);
        }
        Socket::TimeWait(_) | Socket::Nothing | Socket::Listener { .. } => {}
    }
    if scene.setup.released {
        return Err(Reason::Released);
    }
    let over = scene.setup.services[service].until_ms.is_some_and(|ms| ms <= 0);
    if over || executed_share(scene.setup.heartbeat) <= 0.0 {
        return Err(Reason::LeaseExpired);
    }
    Ok((segment, service))
}

/// The share of refusals that is executed: all for 3 s after a heartbeat, none from 10 s on.
fn executed_share(heartbeat: Heartbeat) -> f64 {
    match heartbeat {
        Heartbeat::Never => 0.0,
        // up to a second may be an error of a clock; beyond, it is no heartbeat
        Heartbeat::Ahead(ns) => f64::from(u8::from(ns <= SECOND)),
        Heartbeat::Ago(ns) => {
            let age = ns as f64 / SECOND as f64;
            ((10.0 - age) / 7.0).clamp(0.0, 1.0)
        }
    }
}

fn evaluate(frame: &[u8], segment: &Segment, scene: &Scene<'_>, service: usize) -> Decision {
    let setup = scene.setup;
    let class = classify::class_of(setup, service, segment);
    let asked = limits::ask(setup, service, class, scene.socket);
    let mut evaluated =
        Evaluated { service, class, kind: asked.kind, reason: asked.reason, shadow: false };
    let mut decision = Decision {
        action: Action::Pass,
        counted: Counted::Evaluated(evaluated),
        took_token: asked.took_token,
        took_min_rate: asked.took_min_rate,
        took_answer: false,
        refused: asked.kind != VerdictKind::Admit,
    };
    if evaluated.kind == VerdictKind::Admit {
        return decision;
    }
    let dice = f64::from(scene.dice) / 65536.0;
    evaluated.shadow = setup.services[service].shadow || dice >= executed_share(setup.heartbeat);
    if !evaluated.shadow {
        decision.action = Action::Drop;
        if evaluated.kind == VerdictKind::Reject {
            (evaluated.kind, evaluated.reason) = answer::settle(segment, scene, evaluated.reason);
        }
        if evaluated.kind == VerdictKind::Reject {
            decision.took_answer = true;
            decision.action = Action::Answer(answer::reset(frame, segment));
        }
    }
    decision.counted = Counted::Evaluated(evaluated);
    decision
}
