// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A limit that a server gave to a congested router, as soft state (`policy/router/pushback.h`).

use super::authority::NotTaken;
use tidegate_model::remote::{PUSHED_HOLD, PUSHED_STEPS, Pushed, REMOTE_VALIDITY_MAX, Restriction};
use tidegate_policy::{Pushback, PushbackSpec};
use tidegate_units::{Nanos, Rate};

/// How it ages where nothing else is said: it holds for δ, relaxes in steps of δ, and is gone after δ · (steps + 1), which is the
/// longest validity of a remote limit. A router that is congested asks again twice within δ.
pub const PUSHBACK: PushbackSpec =
    PushbackSpec { delta: PUSHED_HOLD, steps: PUSHED_STEPS, burst: Nanos::from_millis(100) };
/// The time to live that a server gives.
pub const TTL: Nanos = REMOTE_VALIDITY_MAX;

/// One of them.
#[derive(Clone, Debug)]
pub(super) struct Relaxing {
    pushback: Pushback,
    enforced_from: Nanos,
    until: Nanos,
}

impl Relaxing {
    /// A limit that arrived.
    pub(super) fn new(pushed: &Pushed, spec: &PushbackSpec) -> Result<Self, NotTaken> {
        let received = &pushed.received;
        let (Restriction::Rate(rate) | Restriction::Datagrams(rate)) = received.limit.restriction
        else {
            return Err(NotTaken::Unsupported);
        };
        let mut pushback = Pushback::new(spec);
        let taken = pushback.install((rate, pushed.whole), received.limit.validity, received.at);
        taken.map_err(|_| NotTaken::OutOfRange)?;
        let until = received.at + received.limit.validity.min(spec.ttl_min());
        Ok(Self { pushback, enforced_from: pushed.enforced_from, until })
    }

    /// What it allows now; `None`: it is gone. A router that is not congested has none.
    pub(super) fn rate(&mut self, now: Nanos, idle: bool) -> Option<Rate> {
        self.pushback.rate(now, idle)
    }

    /// When it is gone.
    pub(super) const fn until(&self) -> Nanos {
        self.until
    }

    /// Whether it is only counted.
    pub(super) fn is_staged(&self, now: Nanos) -> bool {
        self.staged_for(now).is_some()
    }

    /// For how long it is still only counted.
    pub(super) fn staged_for(&self, now: Nanos) -> Option<Nanos> {
        (now < self.enforced_from).then(|| self.enforced_from.since(now))
    }
}
