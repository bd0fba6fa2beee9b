// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When to look after the hooks and their pins, when to try to attach lost ones again, and what is
//! said of it.

use super::HOOKS_NEED_PRIVILEGES;
use std::collections::BTreeSet;
use std::path::Path;
use tidegate_bpf::{Attached, Dataplane, Error, Presence};
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

/// The hooks and pins that are looked after: see [`Dataplane`].
pub(super) trait Hooks {
    fn look(&mut self);
    fn hooks(&self) -> Vec<Attached>;
    fn lost(&self) -> Vec<String>;
    fn can_mend(&self) -> bool;
    fn mend(&mut self) -> Vec<String>;
    fn pin_again(&self) -> Result<bool, Error>;
    fn pins(&self) -> Option<&Path>;
}

impl Hooks for Dataplane {
    fn look(&mut self) {
        self.look();
    }

    fn hooks(&self) -> Vec<Attached> {
        self.hooks()
    }

    fn lost(&self) -> Vec<String> {
        self.lost()
    }

    fn can_mend(&self) -> bool {
        self.can_mend()
    }

    fn mend(&mut self) -> Vec<String> {
        self.mend()
    }

    fn pin_again(&self) -> Result<bool, Error> {
        self.pin_again()
    }

    fn pins(&self) -> Option<&Path> {
        self.pins()
    }
}

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
    pub(super) fn look(&mut self, now: Nanos, dataplane: &mut impl Hooks) -> bool {
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
    pub(super) fn mend(&mut self, may_attach: bool, dataplane: &mut impl Hooks) -> Vec<String> {
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

    fn attach(&mut self, now: Nanos, dataplane: &mut impl Hooks) {
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

    fn pin(&mut self, dataplane: &impl Hooks) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_bpf::Hook;

    /// An interface with its hooks; those that cannot come back stay lost.
    #[derive(Default)]
    struct Interface {
        name: &'static str,
        ingress_lost: bool,
        egress_lost: bool,
        hopeless: bool,
    }

    #[derive(Default)]
    struct Fake {
        interfaces: Vec<Interface>,
        tries: u32,
    }

    impl Hooks for Fake {
        fn look(&mut self) {}

        fn hooks(&self) -> Vec<Attached> {
            let attached = |interface: &Interface| Attached {
                interface: interface.name.into(),
                namespace: None,
                presence: Presence::Here,
                ingress: (!interface.ingress_lost).then_some(Hook::Tcx),
                egress: (!interface.egress_lost).then_some(Hook::Tcx),
                requests: None,
                lost: [(interface.ingress_lost, "in"), (interface.egress_lost, "out")]
                    .into_iter()
                    .filter(|(lost, _)| *lost)
                    .map(|(_, hook)| format!("{}: {hook}", interface.name))
                    .collect(),
                notes: Vec::new(),
                warnings: Vec::new(),
            };
            self.interfaces.iter().map(attached).collect()
        }

        fn lost(&self) -> Vec<String> {
            self.hooks().into_iter().flat_map(|hook| hook.lost).collect()
        }

        fn can_mend(&self) -> bool {
            !self.lost().is_empty()
        }

        fn mend(&mut self) -> Vec<String> {
            self.tries += 1;
            for interface in &mut self.interfaces {
                interface.ingress_lost = false;
                interface.egress_lost &= interface.hopeless;
            }
            self.lost()
        }

        fn pin_again(&self) -> Result<bool, Error> {
            Ok(false)
        }

        fn pins(&self) -> Option<&Path> {
            None
        }
    }

    /// A second: one look, and what is made of it. What was told since.
    fn second(watch: &mut Watch, now: &mut Nanos, hooks: &mut Fake) -> Vec<String> {
        *now += LOOK_EVERY;
        assert!(watch.look(*now, hooks));
        watch.mend(false, hooks);
        watch.events().iter().map(What::sentence).collect()
    }

    /// What is lost beside it comes back with the next look, at the same interface and at another one.
    #[test]
    fn a_hook_that_stays_lost_delays_no_other_and_is_tried_less_and_less() {
        let interface = |name| Interface { name, ..Interface::default() };
        let mut hooks =
            Fake { interfaces: vec![interface("a0"), interface("b0")], ..Fake::default() };
        let (mut watch, mut now) = (Watch::default(), Nanos::SECOND);
        assert_eq!(second(&mut watch, &mut now, &mut hooks), [""; 0]);
        hooks.interfaces[0] = Interface { egress_lost: true, hopeless: true, ..interface("a0") };
        let told = second(&mut watch, &mut now, &mut hooks);
        assert!(told.len() == 1 && told[0].contains("a0"), "{told:?}");
        for _ in 0..200 {
            assert_eq!(second(&mut watch, &mut now, &mut hooks), [""; 0], "told once");
        }
        // At 0, 1, 3, 7, 15 and 31 s, then every 32 s.
        assert_eq!(hooks.tries, 11);
        for at in [0, 1] {
            hooks.tries = 0;
            hooks.interfaces[at].ingress_lost = true;
            let told = second(&mut watch, &mut now, &mut hooks);
            let name = hooks.interfaces[at].name;
            assert_eq!(hooks.tries, 1, "{name}: at once");
            assert!(!hooks.interfaces[at].ingress_lost);
            assert!(told[0].contains(name) && told[0].contains("hooks are lost"), "{told:?}");
            second(&mut watch, &mut now, &mut hooks);
            assert_eq!(hooks.tries, 2, "{name}: the one that stays lost begins anew");
        }
        hooks.interfaces[0].hopeless = false;
        for _ in 0..40 {
            second(&mut watch, &mut now, &mut hooks);
        }
        assert!(hooks.lost().is_empty());
    }
}
