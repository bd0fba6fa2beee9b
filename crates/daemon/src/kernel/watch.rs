// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When to look after the hooks, and when to try to put lost ones on again.

use super::HOOKS_NEED_PRIVILEGES;
use tidegate_bpf::Dataplane;
use tidegate_units::Nanos;

/// How often it is looked whether the hooks are still there: a few system calls an interface.
const LOOK_EVERY: Nanos = Nanos::SECOND;
/// After hooks could not be put on again, how long until the next try: it loads programs, for which
/// a tick waits.
const TRY_EVERY: Nanos = Nanos::from_secs(30);

/// What was looked at and tried, in the time of the heartbeats.
#[derive(Default)]
pub(super) struct Watch {
    looked: Option<Nanos>,
    /// The last try, if it failed, and why.
    tried: Option<(Nanos, Vec<String>)>,
}

impl Watch {
    /// Looks, if it is time to; whether it did.
    pub(super) fn look(&mut self, now: Nanos, dataplane: &mut Dataplane) -> bool {
        let due = self.looked.is_none_or(|looked| now.since(looked) >= LOOK_EVERY);
        if due {
            self.looked = Some(now);
            dataplane.look();
        }
        due
    }

    /// Puts lost hooks on again if that is possible and it is time to; what stays lost, one sentence
    /// each.
    pub(super) fn mend(&mut self, may_attach: bool, dataplane: &mut Dataplane) -> Vec<String> {
        let now = self.looked.unwrap_or_default();
        let due = self.tried.as_ref().is_none_or(|(tried, _)| now.since(*tried) >= TRY_EVERY);
        if may_attach && due && dataplane.can_mend() {
            let why = dataplane.mend();
            for why in &why {
                tracing::warn!("{why}");
            }
            self.tried = dataplane.can_mend().then_some((now, why));
        }
        let mut lost = dataplane.lost();
        if lost.is_empty() {
            self.tried = None;
            return lost;
        }
        lost.extend(self.tried.iter().flat_map(|(_, why)| why.clone()));
        if !may_attach {
            lost.push(HOOKS_NEED_PRIVILEGES.to_owned());
        }
        lost
    }
}
