// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Notices that were sent in a session, and the limits that answered them and that nobody has taken out yet.

use std::collections::{BTreeMap, VecDeque};
use tidegate_model::Listen;
use tidegate_model::remote::{Notice, Pushed, REMOTE_SCOPES_MAX, Scope, Unit};
use tidegate_units::Nanos;

/// A limit answers a notice that was sent within this time.
pub(crate) const ANSWERED_WITHIN: Nanos = Nanos::from_secs(3);
/// Most notices that are remembered: more than are sent in that time.
const NOTICES_MAX: usize = 512;

/// What a limit is about. Datagrams and connections of one scope have limits of their own.
pub(crate) type About = (Scope, Unit);

/// Those of one session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inbox {
    limits: BTreeMap<About, Pushed>,
    notices: VecDeque<Sent>,
    last: u64,
}

/// A notice that was sent, and about what.
#[derive(Clone, Debug)]
struct Sent {
    number: u64,
    at: Nanos,
    service: String,
    listens: Vec<Listen>,
    unit: Unit,
}

impl Inbox {
    /// What stays when the configuration changes: limits have to come again, what was asked is known.
    pub(crate) fn anew(mut self) -> Self {
        self.limits.clear();
        self
    }

    /// A notice is sent now; its number.
    pub(crate) fn notice(&mut self, now: Nanos, notice: &Notice) -> u64 {
        self.last = self.last.saturating_add(1);
        let (service, listens) = (notice.service.clone(), notice.listens.clone());
        let (number, unit) = (self.last, notice.unit);
        self.notices.push_back(Sent { number, at: now, service, listens, unit });
        let old = |sent: &Sent| now.since(sent.at) > ANSWERED_WITHIN;
        while self.notices.len() > NOTICES_MAX || self.notices.front().is_some_and(old) {
            self.notices.pop_front();
        }
        self.last
    }

    /// Whether a limit with this number answers a notice that counts, about a service in its scope and in its unit.
    pub(crate) fn answers(&self, now: Nanos, notice: u64, (scope, unit): &About) -> bool {
        let is = |sent: &Sent| {
            let counts = sent.number == notice && now.since(sent.at) <= ANSWERED_WITHIN;
            counts && sent.unit == *unit && scope.reaches(&sent.service, &sent.listens)
        };
        self.notices.iter().any(is)
    }

    pub(crate) fn has_room(&self, about: &About) -> bool {
        self.limits.len() < REMOTE_SCOPES_MAX || self.limits.contains_key(about)
    }

    pub(crate) fn put(&mut self, pushed: Pushed) {
        let limit = &pushed.received.limit;
        let about = (limit.scope.clone(), limit.restriction.unit());
        self.limits.insert(about, pushed);
    }

    pub(crate) fn take(&mut self) -> Vec<Pushed> {
        std::mem::take(&mut self.limits).into_values().collect()
    }
}
