// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guard of request rules: where what they refuse at the hooks does harm and no good, they go back to shadow,
//! and connections stay limited. Until an operator sets a mode of the service, or asks for the file's; a reload,
//! a take-over and a restart keep it.

use super::Overrides;
use crate::commands::unknown;
use crate::owner::Owner;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_api::protocol::{ApiError, ErrorKind};
use tidegate_config::{Config, RequestsConfig, ServiceConfig, UnknownService};
use tidegate_control::Misfired;
use tidegate_model::Mode;
use tidegate_model::record::{By, What};
use tidegate_units::Nanos;

/// The request rules of a service, where they would refuse something.
fn enforced(service: &mut ServiceConfig) -> Option<&mut RequestsConfig> {
    let mode = service.mode;
    service.requests.as_mut().filter(|requests| requests.mode_within(mode) == Mode::Enforce)
}

/// The configuration with the rules in shadow that a process before put there. Where they refuse nothing anyway,
/// its word is over.
#[must_use]
pub fn keep_rules(mut config: Config, guarded: &mut BTreeSet<String>) -> Config {
    let mut kept = BTreeSet::new();
    for service in &mut config.services {
        let name = service.name.clone();
        let asked = guarded.contains(&name);
        if let Some(requests) = enforced(service).filter(|_| asked) {
            requests.mode = Some(Mode::Shadow);
            kept.insert(name);
        }
    }
    *guarded = kept;
    config
}

/// Subject of the warning that request rules went back to shadow by themselves.
pub(crate) fn rules_guarded(service: &str) -> String {
    format!("{service}: guard of request rules")
}

impl Overrides {
    /// Services whose request rules the guard put into shadow.
    pub(crate) fn rules_guarded(&self) -> impl Iterator<Item = &String> {
        self.rules.keys()
    }

    /// As [`keep_rules`], of a configuration that was read anew; a sentence for each that is kept.
    pub(super) fn keep_rules(&mut self, config: &mut Config, kept: &mut Vec<String>) {
        let mut rules = BTreeMap::new();
        for service in &mut config.services {
            let name = service.name.clone();
            let asked = self.rules.contains_key(&name);
            let Some(requests) = enforced(service).filter(|_| asked) else { continue };
            kept.push(format!(
                "{name}: keeps its request rules in shadow, where the daemon put them; `tidegate mode {name} \
                 file` ends that"
            ));
            rules.insert(name, requests.mode.replace(Mode::Shadow));
        }
        self.rules = rules;
    }
}

impl Owner {
    /// What the guard did to request rules before this process began is told until somebody decides.
    pub(super) fn tell_guarded_rules(&mut self) {
        for service in self.overrides.rules_guarded() {
            let text = format!(
                "they went back to shadow before this process began; `tidegate mode {service} enforce` enforces \
                 them all the same"
            );
            self.warnings.stick(self.started, &rules_guarded(service), text);
        }
    }

    /// Only rules at the hooks: what is refused at a gateway is new work of the service.
    pub(super) fn guard_rules(&mut self, now: Nanos) {
        let Self { governors, intent, sensed, overrides, remote, plane, .. } = self;
        let mut found = Vec::new();
        let services = governors.iter_mut().zip(&intent.config.services).zip(&*sensed);
        for (index, ((governor, config), sensed)) in services.enumerate() {
            let seen = governor.rules_misfire(config, &sensed.signals);
            let rules = config.requests.as_ref().map(|rules| rules.mode_within(config.mode));
            let refuse = rules == Some(Mode::Enforce) && !intent.released;
            let ours = !plane.at_gate(index) && !remote.holds(index);
            let asked = refuse && ours && !overrides.by_hand(&config.name);
            found.extend(seen.filter(|_| asked).map(|seen| (config.name.clone(), seen)));
        }
        for (service, seen) in found {
            self.rules_to_shadow(now, &service, &seen);
        }
    }

    fn rules_to_shadow(&mut self, now: Nanos, service: &str, seen: &Misfired) {
        let subject = rules_guarded(service);
        let file = match self.change_rules_mode(service, Some(Mode::Shadow)) {
            Ok(file) => file,
            Err(error) => return self.warnings.raise(now, &subject, error.to_string()),
        };
        self.overrides.rules.insert(service.to_owned(), file);
        let Misfired { refused, done: (done, usual) } = seen;
        let text = format!(
            "they went back to shadow: {refused:.0}/s were refused while no more came than usual, the service was \
             calm, and {done:.0}/s were answered where {usual:.0}/s are usual; `tidegate mode {service} enforce` \
             enforces them all the same"
        );
        self.warnings.stick(now, &subject, text);
        self.note_rules(service, [Mode::Enforce, Mode::Shadow], By::Guard);
    }

    /// An operator has decided about the service: its rules have the mode that the file says. What the dataplane
    /// does not take is told, and they stay in shadow.
    pub(super) fn end_rules_guard(&mut self, now: Nanos, service: &str) {
        let Some(file) = self.overrides.rules.get(service).copied() else { return };
        match self.change_rules_mode(service, file) {
            Ok(_) => {
                self.overrides.rules.remove(service);
                self.warnings.clear(&rules_guarded(service));
                self.note_rules(service, [Mode::Shadow, Mode::Enforce], By::Operator);
            }
            Err(error) => {
                let text = format!("they stay in shadow: {error}");
                self.warnings.stick(now, &rules_guarded(service), text);
            }
        }
    }

    fn note_rules(&mut self, service: &str, [before, mode]: [Mode; 2], by: By) {
        let (was, is, service) = (before.name(), mode.name(), service.to_owned());
        tracing::info!(service, mode = is, before = was, "mode of the request rules");
        self.record.note(What::RulesMode { service, mode, before, by });
    }

    /// Returns what the configuration in force said before.
    fn change_rules_mode(
        &mut self,
        service: &str,
        mode: Option<Mode>,
    ) -> Result<Option<Mode>, ApiError> {
        let Self { intent, plane, .. } = self;
        let mut services = intent.config.services.iter().enumerate();
        let found = services.find(|(_, of)| of.name == service);
        let found = found.and_then(|(at, of)| Some((at, of.requests.as_ref()?.mode)));
        let Some((at, before)) = found else {
            return Err(unknown(&UnknownService::new(service, &intent.config)));
        };
        if let Err(error) = plane.set_rules_mode(at, mode) {
            // What the plane remembers of it must not come with the next limits.
            if let Err(back) = plane.set_rules_mode(at, before) {
                tracing::warn!(service, %back, "the mode before could not be written again");
            }
            return Err(ApiError::new(ErrorKind::Failed, format!("{service}: {error}")));
        }
        if let Some(requests) = &mut intent.config.services[at].requests {
            requests.mode = mode;
        }
        Ok(before)
    }
}
