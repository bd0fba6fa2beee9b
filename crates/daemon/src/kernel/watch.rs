// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When to look after the hooks and their pins, when to try to attach lost ones again, and what is
//! said of it.

use super::HOOKS_NEED_PRIVILEGES;
use std::collections::BTreeSet;
use tidegate_bpf::{Attached, Dataplane, Presence};
use tidegate_model::record::What;
use tidegate_units::Nanos;

/// How often it is looked whether the hooks are still there: a few system calls an interface.
const LOOK_EVERY: Nanos = Nanos::SECOND;
/// After hooks could not be attached again, how long until the next try; it doubles with each, up to
/// the longest: a try may load programs, for which a tick waits.
const TRY_AFTER: Nanos = Nanos::SECOND;
const TRY_AFTER_MAX: Nanos = Nanos::from_secs(32);

/// What to do where there is no interface of that name.
const COMES_BACK: &str = "hooks come back with an interface of that name and kind, in the same network \
    namespace; if it has another name or namespace now, write that in `interfaces`";

/// A try that failed.
struct Tried {
    at: Nanos,
    again_after: Nanos,
    why: Vec<String>,
}

/// What was looked at and tried, in the time of the heartbeats.
#[derive(Default)]
pub(super) struct Watch {
    looked: Option<Nanos>,
    /// Nothing was made of the last look yet.
    fresh: bool,
    tried: Option<Tried>,
    /// Interfaces with lost hooks, and whether nothing is limited there.
    lost: BTreeSet<(String, bool)>,
    /// Why pins are missing.
    unpinned: Option<String>,
    /// What nobody was told yet.
    events: Vec<What>,
}

impl Watch {
    /// Looks, if it is time to; whether it did.
    pub(super) fn look(&mut self, now: Nanos, dataplane: &mut Dataplane) -> bool {
        let due = self.looked.is_none_or(|looked| now.since(looked) >= LOOK_EVERY);
        if due {
            self.looked = Some(now);
            self.fresh = true;
            dataplane.look();
        }
        due
    }

    /// Attaches lost hooks again, and makes removed pins again, where that is possible and something
    /// was looked at; what stays lost, one sentence each.
    pub(super) fn mend(&mut self, may_attach: bool, dataplane: &mut Dataplane) -> Vec<String> {
        if std::mem::take(&mut self.fresh) {
            self.attach(self.looked.unwrap_or_default(), dataplane);
            self.pin(dataplane);
        }
        let mut left = dataplane.lost();
        if !left.is_empty() {
            left.extend(self.tried.iter().flat_map(|tried| tried.why.iter().cloned()));
            left.extend(self.remedies(may_attach, &dataplane.hooks()));
        }
        left.extend(self.unpinned.clone());
        left
    }

    /// What to do about lost hooks, each sentence once.
    fn remedies(&self, may_attach: bool, hooks: &[Attached]) -> Vec<String> {
        let lost = |hook: &&Attached| !hook.lost.is_empty();
        let is = |presence: Presence| hooks.iter().filter(lost).any(|h| h.presence == presence);
        let mut remedies = Vec::new();
        if is(Presence::Gone) {
            remedies.push(COMES_BACK.to_owned());
        }
        // Where the interface is there it may do without: that is tried first.
        let needs = is(Presence::Gone) || is(Presence::Unreachable) || self.tried.is_some();
        if needs && !may_attach {
            remedies.push(HOOKS_NEED_PRIVILEGES.to_owned());
        }
        remedies
    }

    fn attach(&mut self, now: Nanos, dataplane: &mut Dataplane) {
        for hook in dataplane.hooks().into_iter().filter(|hook| !hook.lost.is_empty()) {
            let (interface, why) = (shown(&hook), hook.lost.join("; "));
            let open = hook.ingress.is_none();
            if self.lost.insert((interface.clone(), open)) {
                // What failed before, at this hook or another one, is no reason to wait with this.
                self.tried = None;
                self.say(What::HooksLost { interface, why, open });
            }
        }
        if self.lost.is_empty() {
            self.tried = None;
            return;
        }
        let due = self.tried.as_ref().is_none_or(|tried| now.since(tried.at) >= tried.again_after);
        if due && dataplane.can_mend() {
            let why = dataplane.mend();
            why.iter().for_each(|why| tracing::warn!("{why}"));
            let longer = |tried: &Tried| Nanos(tried.again_after.0.saturating_mul(2));
            let again_after = self.tried.as_ref().map_or(TRY_AFTER, longer).min(TRY_AFTER_MAX);
            self.tried = dataplane.can_mend().then_some(Tried { at: now, again_after, why });
        }
        let left = dataplane.hooks().into_iter().filter(|hook| !hook.lost.is_empty());
        let left: BTreeSet<(String, bool)> =
            left.map(|hook| (shown(&hook), hook.ingress.is_none())).collect();
        let before = std::mem::replace(&mut self.lost, left);
        let before: BTreeSet<String> = before.into_iter().map(|(interface, _)| interface).collect();
        for interface in before {
            if !self.lost.iter().any(|(lost, _)| *lost == interface) {
                self.say(What::HooksAttached { interface });
            }
        }
    }

    fn pin(&mut self, dataplane: &Dataplane) {
        let made = dataplane.pin_again();
        if let (Ok(true), Some(path)) = (&made, dataplane.pins()) {
            self.say(What::PinsMade { path: tidegate_bpf::shown_pins(path).display().to_string() });
        }
        self.unpinned = made.err().map(|error| {
            format!(
                "pins are missing and cannot be made again ({error}): the next start begins afresh"
            )
        });
    }

    fn say(&mut self, what: What) {
        let (warns, sentence) = (!matches!(what, What::HooksAttached { .. }), what.sentence());
        if warns {
            tracing::warn!("{sentence}");
        } else {
            tracing::info!("{sentence}");
        }
        self.events.push(what);
    }

    /// What happened since the last call.
    pub(super) fn events(&mut self) -> Vec<What> {
        std::mem::take(&mut self.events)
    }
}

/// The interface, with its namespace.
fn shown(hook: &Attached) -> String {
    match &hook.namespace {
        Some(namespace) => format!("{} in {}", hook.interface, namespace.display()),
        None => hook.interface.clone(),
    }
}
