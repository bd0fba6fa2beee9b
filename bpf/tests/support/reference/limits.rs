// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The chain: accept queue, waiting, policy; the first refusal gives the reason, and a token is
//! taken only if all admit. One in an interval passes the first two when they are full.
//! The policies here know whole tokens and no time: the tests keep both
//! still.

use super::Socket;
use crate::support::setup::{Limit, Service, Setup};
use tidegate_policy::{Action, Policy, Reason, VerdictKind};

/// The priority of what no class names.
const PRIORITY_DEFAULT: u8 = 7;

/// When the first retransmission comes on the classic schedule, in seconds.
const ABACUS_FIRST: u16 = 3;

pub struct Asked {
    pub kind: VerdictKind,
    pub reason: Reason,
    pub took_token: bool,
    /// Came past a full limit, by the least rate.
    pub took_min_rate: bool,
}

fn say(kind: VerdictKind, reason: Reason) -> Asked {
    Asked { kind, reason, took_token: false, took_min_rate: false }
}

fn kind_of(action: Action) -> VerdictKind {
    match action {
        Action::Drop => VerdictKind::Drop,
        Action::Reject => VerdictKind::Reject,
        // a source of which nothing is known is never sent a RST
        Action::Auto => VerdictKind::Drop,
    }
}

/// What the limits of a service say to one more request of this class.
pub fn ask(setup: &Setup, service: usize, class: usize, socket: Socket) -> Asked {
    let service = &setup.services[service];
    let kind = kind_of(service.action);
    let share = u64::from(service.accept_queue_max_q10);
    let queue = match socket {
        Socket::Listener { length, limit } => Some((length, limit)),
        Socket::TimeWait(waits) => waits.listener,
        _ => None,
    };
    let queue_full = queue.is_some_and(|(length, limit)| {
        share > 0 && u64::from(length) * 1024 >= share * u64::from(limit.max(1))
    });
    let no_place = queue.is_some_and(|(length, limit)| length > limit);
    // whatever both say, but not past what the stack says
    let least = service.min_rate_us > 0
        && service.min_rate_ago >= u64::from(service.min_rate_us) * 1000
        && !no_place;
    let first = if queue_full {
        Some(Reason::AcceptQueue)
    } else {
        in_flight_full(service).then_some(Reason::Waiting)
    };
    if let Some(reason) = first.filter(|_| !least) {
        return say(kind, reason);
    }
    let priority = class.checked_sub(1).map_or(PRIORITY_DEFAULT, |at| service.classes[at].priority);
    let asked = policy(service, usize::from(priority), queue.map_or(0, |(length, _)| length));
    let rejects = asked.kind == VerdictKind::Reject;
    let kind = if rejects && service.action == Action::Auto { kind } else { asked.kind };
    Asked { kind, took_min_rate: first.is_some(), ..asked }
}

/// Those that wait, and those of the silent that will ask, beside what may: all that the limit allows,
/// or, once it has refused, less until few are left.
fn in_flight_full(service: &Service) -> bool {
    let (max, (low, rest)) = (service.waiting_max, service.waiting_low);
    if max == 0 {
        return false;
    }
    let beyond = service.silent.saturating_sub(service.silent_usual);
    let ask = beyond * u64::from(service.asks_q10) / 1024;
    let most = max.saturating_sub(low);
    let count = service.waiting + ask.min(if low > 0 { most.min(low - 1) } else { most });
    let two_levels = (1..max).contains(&low);
    let tight = two_levels && service.tight && count > rest;
    count >= if tight { low } else { max }
}

fn policy(service: &Service, priority: usize, queue: u32) -> Asked {
    let Some(limit) = &service.limit else {
        return say(VerdictKind::Admit, Reason::NoLimit);
    };
    match service.policy {
        // all from the discard threshold on, which is the abatement as well: nothing is remembered
        Policy::Threshold if queue >= limit.burst => {
            return say(kind_of(service.action), Reason::Discard);
        }
        Policy::Threshold => return say(VerdictKind::Admit, Reason::BelowThreshold),
        // three quarters, which is all of the lowest priority, and nobody above it
        Policy::Percent if priority == 7 => {
            return say(kind_of(service.action), Reason::Throttled);
        }
        Policy::Percent => return say(VerdictKind::Admit, Reason::LetThrough),
        _ => {}
    }
    let left = limit.burst - limit.used;
    let kept = limit.reserve[priority] + kept_for_first_attempts(service, limit);
    if left > kept {
        return Asked { took_token: true, ..say(VerdictKind::Admit, Reason::Token) };
    }
    match service.policy {
        // nothing was borrowed yet, and every period has room for one: dropped if the first
        // retransmission falls into the window, else rejected
        Policy::Abacus | Policy::AbacusExact | Policy::AbacusLearned
            if service.abacus_window < ABACUS_FIRST =>
        {
            say(VerdictKind::Reject, Reason::NoRoom)
        }
        // a copy that comes at once is before its time: dropped again, and no older for it
        Policy::AbacusExact | Policy::AbacusLearned if service.refused_before => {
            say(VerdictKind::Drop, Reason::ExpectedAgain)
        }
        Policy::Abacus | Policy::AbacusExact | Policy::AbacusLearned => {
            say(VerdictKind::Drop, Reason::Borrowed)
        }
        Policy::FreshFirst if left > limit.reserve[priority] => {
            say(kind_of(service.action), Reason::Repeated)
        }
        _ if left > 0 => say(kind_of(service.action), Reason::Reserved),
        _ => say(kind_of(service.action), Reason::Rate),
    }
}

/// fresh_first: half of what the lowest priority may use is kept from repeated SYNs.
fn kept_for_first_attempts(service: &Service, limit: &Limit) -> u32 {
    if service.policy == Policy::FreshFirst && service.refused_before {
        (limit.burst - limit.reserve[7]) / 2
    } else {
        0
    }
}
