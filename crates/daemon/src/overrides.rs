// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What commands set against the file: modes and the kill switch, and for how long.
//!
//! A mode that was set holds until its time is over, another is set, or the file's is asked for
//! (`tidegate mode NAME file`); shadow also ends when the file says it. A reload keeps it and says so: whoever
//! reloads for another reason, or whose tools do, must not end what somebody set in an incident. Nor does a
//! restart in the same boot end it ([`crate::state`]), unless the file was edited meanwhile.

use crate::commands::unknown;
use crate::owner::Owner;
use crate::state::{Commanded, CommandedMode, Here, KeptCommands};
use std::collections::BTreeMap;
use tidegate_api::protocol::{ApiError, ErrorKind, Handover, Reply};
use tidegate_config::{Command, Config, UnknownService};
use tidegate_control::Misfired;
use tidegate_model::record::{By, What};
use tidegate_model::snapshot::ModeSet;
use tidegate_model::{Canary, Mode};
use tidegate_units::Nanos;

/// A mode that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Set {
    mode: Mode,
    /// Whose refusals are executed.
    canary: Canary,
    /// What the file says.
    file: Mode,
    until: Option<Nanos>,
    /// An operator, or the guard.
    by: By,
}

/// See the head of this file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Overrides {
    modes: BTreeMap<String, Set>,
    released_until: Option<Nanos>,
}

/// The modes that a configuration says, by service.
#[must_use]
pub fn modes_of(config: &Config) -> BTreeMap<String, Mode> {
    config.services.iter().map(|service| (service.name.clone(), service.mode)).collect()
}

/// The configuration with the modes that an operator had set: a take-over is no reload.
#[must_use]
pub fn keep_modes(mut config: Config, modes: &BTreeMap<String, Mode>) -> Config {
    for service in &mut config.services {
        let set = modes.get(&service.name).copied();
        if let Some(mode) = set.filter(|mode| *mode != service.mode) {
            let (set, file) = (mode.name(), service.mode.name());
            tracing::warn!(service = service.name, set, file, "keeps the mode that was set");
            service.mode = mode;
        }
    }
    config
}

/// The same with the canaries of the modes.
#[must_use]
pub fn keep_canaries(mut config: Config, canaries: &BTreeMap<String, Canary>) -> Config {
    for service in &mut config.services {
        service.canary = canaries.get(&service.name).copied().unwrap_or_default();
    }
    config
}

/// Subject of the warning that a service went back to shadow by itself.
pub(crate) fn guarded(service: &str) -> String {
    format!("{service}: guard")
}

/// The share of a canary, where there is one.
fn percent(canary: Canary) -> Option<f64> {
    (!canary.is_all()).then(|| canary.percent())
}

/// The same in words.
fn share(canary: Canary) -> String {
    let percent = percent(canary);
    percent.map_or_else(String::new, |percent| format!(" for {percent} % of the sources"))
}

impl Overrides {
    /// Those of a process before; `files`: what the file says.
    pub(crate) fn inherit(left: &Handover, files: &BTreeMap<String, Mode>, now: Nanos) -> Self {
        // What the daemon did by itself to a service that is not there, or is in shadow by now, is over.
        let over = |name: &String| {
            left.guarded.contains(name) && files.get(name).is_none_or(|file| *file == Mode::Shadow)
        };
        let set = left.modes.iter().filter(|(name, _)| !over(name)).map(|(name, mode)| {
            let file = files.get(name).copied().unwrap_or(*mode);
            let until = left.modes_left.get(name).map(|left| now + *left);
            let canary = left.canaries.get(name).copied().unwrap_or_default();
            let by = if left.guarded.contains(name) { By::Guard } else { By::Operator };
            (name.clone(), Set { mode: *mode, canary, file, until, by })
        });
        let released_until = left.release_left.map(|left| now + left);
        Self { modes: set.collect(), released_until }
    }

    /// What the successor is to know.
    pub(crate) fn hand_over(&self, now: Nanos, handover: &mut Handover) {
        for (name, set) in &self.modes {
            handover.modes.insert(name.clone(), set.mode);
            if !set.canary.is_all() {
                handover.canaries.insert(name.clone(), set.canary);
            }
            if set.by == By::Guard {
                handover.guarded.insert(name.clone());
            }
            if let Some(until) = set.until {
                handover.modes_left.insert(name.clone(), until.since(now));
            }
        }
        handover.release_left = self.released_until.map(|until| until.since(now));
    }

    /// The same for whoever starts after this process, on the clock of the boot.
    pub(crate) fn commanded(&self, now: Nanos, released: bool, here: Here) -> Commanded {
        let at = |until: Nanos| here.now + until.since(now);
        let modes = self.modes.iter().map(|(name, set)| {
            let Set { mode, canary, file, until, by } = *set;
            (name.clone(), CommandedMode { mode, canary, file, until: until.map(at), by })
        });
        let released_until = self.released_until.filter(|_| released).map(at);
        Commanded { boot: here.boot, modes: modes.collect(), released, released_until }
    }

    /// Puts the modes that hold into a configuration that was read; a sentence for each that is not
    /// the file's.
    pub(crate) fn keep(&mut self, config: &mut Config, now: Nanos) -> Vec<String> {
        let mut kept = Vec::new();
        let mut modes = BTreeMap::new();
        for service in &mut config.services {
            let Some(set) = self.modes.get(&service.name) else { continue };
            let file = service.mode;
            if set.mode == file && set.canary.is_all() {
                // An operator's word holds against the guard, also where the file says the same.
                if set.mode == Mode::Enforce {
                    modes.insert(service.name.clone(), Set { file, ..*set });
                }
                continue;
            }
            let (name, mode) = (&service.name, set.mode.name());
            let time = set.until.map(|until| format!(" for {} more", until.since(now)));
            kept.push(format!(
                "{name}: keeps {mode}{}, for the file says {}{}; `tidegate mode \
                 {name} file` ends that",
                share(set.canary),
                file.name(),
                time.unwrap_or_default()
            ));
            (service.mode, service.canary) = (set.mode, set.canary);
            modes.insert(service.name.clone(), Set { file, ..*set });
        }
        self.modes = modes;
        kept
    }

    /// Of a service, for whoever looks.
    pub(crate) fn of(&self, service: &str, now: Nanos) -> Option<ModeSet> {
        let set = self.modes.get(service)?;
        let left = set.until.map(|until| until.since(now));
        let percent = percent(set.canary);
        let guard = set.by == By::Guard;
        Some(ModeSet { file: set.file.name().into(), percent, left, guard })
    }

    /// Services whose mode is the guard's.
    pub(crate) fn guarded(&self) -> impl Iterator<Item = &str> {
        self.modes.iter().filter(|(_, set)| set.by == By::Guard).map(|(name, _)| name.as_str())
    }

    /// How long the kill switch stays on; `None`: until it is switched.
    pub(crate) fn release_left(&self, now: Nanos) -> Option<Nanos> {
        self.released_until.map(|until| until.since(now))
    }
}

/// Subject of warnings about what commands had set.
const COMMANDS: &str = "commands";

impl Owner {
    /// What commands had set before a restart: a kill switch that the dataplane does not have any more is thrown
    /// again, and what does not hold any more is told. What the guard did is told until somebody decides.
    pub(crate) fn begin_commands(&mut self, kept: KeptCommands) {
        if kept.released && !self.intent.released && !self.plane.adopted() {
            match self.switch(true) {
                Ok(_) => {
                    let lasts = kept.left.release_left;
                    self.record.note(What::Release { on: true, lasts, by: By::Operator });
                    tracing::warn!("keeps the kill switch on, as before the restart");
                }
                Err(error) => self.warnings.raise(self.started, COMMANDS, error.to_string()),
            }
        }
        for text in &kept.told {
            tracing::warn!("{text}");
        }
        if !kept.told.is_empty() {
            self.warnings.raise(self.started, COMMANDS, kept.told.join("; "));
        }
        for service in self.overrides.guarded() {
            let text = format!(
                "went back to shadow before this process began; `tidegate mode {service} enforce` enforces it all \
                 the same"
            );
            self.warnings.stick(self.started, &guarded(service), text);
        }
    }

    /// Writes down what commands have set, for the process that comes next.
    pub(crate) fn keep_commands(&mut self, now: Nanos) {
        let Self { keeper, overrides, intent, warnings, .. } = self;
        let kept = keeper.as_mut().map(|k| k.keep_commands(now, overrides, intent.released));
        if let Some(Err(why)) = kept {
            let text = format!("what they set cannot be kept for a restart: {why}");
            warnings.raise(now, COMMANDS, text);
        }
    }

    /// The kill switch. On works at once and without a tick.
    ///
    /// # Errors
    /// When the dataplane does not take it; then nothing changed.
    pub fn release(&mut self, on: bool) -> Result<Reply, ApiError> {
        self.release_for(on, None)
    }

    /// The kill switch, and for how long it stays on; the last word counts.
    ///
    /// # Errors
    /// As [`Self::release`].
    pub fn release_for(&mut self, on: bool, lasts: Option<Nanos>) -> Result<Reply, ApiError> {
        let before = self.switch(on)?;
        let lasts = lasts.filter(|_| on);
        self.overrides.released_until = lasts.map(|lasts| self.clock.now() + lasts);
        self.record.note(What::Release { on, lasts, by: By::Operator });
        self.publish(self.clock.now());
        Ok(Reply::Release { on, before, lasts })
    }

    fn switch(&mut self, on: bool) -> Result<bool, ApiError> {
        let before = self.intent.released;
        self.plane
            .release(on)
            .map_err(|e| ApiError::new(ErrorKind::Failed, format!("the kill switch: {e}")))?;
        self.intent.released = on;
        tracing::info!(on, before, "kill switch");
        Ok(before)
    }

    /// The mode of one service, until another is set; a daemon that takes over keeps it.
    ///
    /// # Errors
    /// When there is no such service or the dataplane does not take it; then nothing changed.
    pub fn set_mode(&mut self, service: &str, mode: Mode) -> Result<Reply, ApiError> {
        self.set_mode_for(service, (mode, Canary::ALL), None)
    }

    /// The mode of one service for a time; then that of the file holds again.
    ///
    /// # Errors
    /// As [`Self::set_mode`].
    pub fn set_mode_for(
        &mut self,
        service: &str,
        (mode, canary): (Mode, Canary),
        lasts: Option<Nanos>,
    ) -> Result<Reply, ApiError> {
        let file = self.overrides.modes.get(service).map(|set| set.file);
        let before = self.change_mode(service, (mode, canary))?;
        let until = lasts.map(|lasts| self.clock.now() + lasts);
        let set = Set { mode, canary, file: file.unwrap_or(before), until, by: By::Operator };
        self.overrides.modes.insert(service.to_owned(), set);
        let span = lasts.map(|lasts| lasts.to_string());
        let percent = percent(canary);
        tracing::info!(
            service,
            mode = mode.name(),
            percent,
            before = before.name(),
            lasts = span,
            "mode"
        );
        let (service, by) = (service.to_owned(), By::Operator);
        self.record.note(What::Mode { service: service.clone(), mode, percent, before, lasts, by });
        self.publish(self.clock.now());
        Ok(Reply::Mode { service, mode, percent, before, lasts })
    }

    /// The mode that the file says holds again.
    ///
    /// # Errors
    /// As [`Self::set_mode`].
    pub fn mode_of_file(&mut self, service: &str) -> Result<Reply, ApiError> {
        let reply = self.end_mode(service, By::Operator);
        self.publish(self.clock.now());
        reply
    }

    fn end_mode(&mut self, service: &str, by: By) -> Result<Reply, ApiError> {
        let set = self.overrides.modes.get(service).copied();
        let services = &self.intent.config.services;
        let now = services.iter().find(|s| s.name == service).map(|s| s.mode);
        let file = set.map(|set| set.file).or(now).unwrap_or(Mode::Shadow);
        let before = self.change_mode(service, (file, Canary::ALL))?;
        self.overrides.modes.remove(service);
        let (service, mode, lasts, percent) = (service.to_owned(), file, None, None);
        tracing::info!(service, mode = mode.name(), before = before.name(), "mode of the file");
        self.record.note(What::Mode { service: service.clone(), mode, percent, before, lasts, by });
        Ok(Reply::Mode { service, mode, percent, before, lasts })
    }

    /// Where refusals do harm and no good, a service goes back to shadow, until somebody says otherwise. What
    /// a command enforces stays enforced: its operator has decided.
    pub(crate) fn guard(&mut self, now: Nanos) {
        let Self { governors, intent, sensed, overrides, remote, .. } = self;
        let mut found = Vec::new();
        let services = governors.iter_mut().zip(&intent.config.services).zip(&*sensed);
        for (index, ((governor, config), sensed)) in services.enumerate() {
            let seen = governor.misfires(config, &sensed.signals);
            let set = overrides.modes.get(&config.name);
            let by_hand = set.is_some_and(|s| s.mode == Mode::Enforce && s.canary.is_all());
            let enforced = config.mode == Mode::Enforce && !intent.released;
            let asked = enforced && !by_hand && !remote.holds(index);
            found.extend(seen.filter(|_| asked).map(|seen| (config.name.clone(), seen)));
        }
        for (service, seen) in found {
            self.return_to_shadow(now, &service, &seen);
        }
    }

    fn return_to_shadow(&mut self, now: Nanos, service: &str, seen: &Misfired) {
        let file = self.overrides.modes.get(service).map(|set| set.file);
        let (mode, subject) = (Mode::Shadow, guarded(service));
        let before = match self.change_mode(service, (mode, Canary::ALL)) {
            Ok(before) => before,
            Err(error) => return self.warnings.raise(now, &subject, error.to_string()),
        };
        let file = file.unwrap_or(before);
        let set = Set { mode, canary: Canary::ALL, file, until: None, by: By::Guard };
        self.overrides.modes.insert(service.to_owned(), set);
        let Misfired { refused, done: (done, usual) } = seen;
        let text = format!(
            "went back to shadow: {refused:.0}/s were refused while no more came than usual, the service was \
             calm, and {done:.0}/s completed where {usual:.0}/s are usual; `tidegate mode {service} enforce` \
             enforces it all the same"
        );
        self.warnings.stick(now, &subject, text);
        let (service, percent, lasts, by) = (service.to_owned(), None, None, By::Guard);
        self.record.note(What::Mode { service, mode, percent, before, lasts, by });
    }

    /// Returns the mode before.
    fn change_mode(
        &mut self,
        service: &str,
        (mode, canary): (Mode, Canary),
    ) -> Result<Mode, ApiError> {
        let services = &self.intent.config.services;
        let (index, before) = services
            .iter()
            .position(|s| s.name == service)
            .map(|index| (index, (services[index].mode, services[index].canary)))
            .ok_or_else(|| unknown(&UnknownService::new(service, &self.intent.config)))?;
        let mut next = self.intent.clone();
        let wanted = Command::Mode { service: service.to_owned(), mode, canary };
        next.apply(wanted).map_err(|error| unknown(&error))?;
        if let Err(error) = self.plane.set_mode(index, mode, canary) {
            // What the plane remembers of it must not come with the next limits.
            if let Err(back) = self.plane.set_mode(index, before.0, before.1) {
                tracing::warn!(service, %back, "the mode before could not be written again");
            }
            return Err(ApiError::new(ErrorKind::Failed, format!("{service}: {error}")));
        }
        self.intent = next;
        self.warnings.clear(&guarded(service));
        Ok(before.0)
    }

    /// Ends what was set for a time that is over. What the dataplane does not take is tried again at
    /// every tick.
    pub(crate) fn end_overrides(&mut self, now: Nanos) {
        let over = |until: &Option<Nanos>| until.is_some_and(|until| now >= until);
        let modes = self.overrides.modes.iter().filter(|(_, set)| over(&set.until));
        let due: Vec<String> = modes.map(|(name, _)| name.clone()).collect();
        for service in due {
            if let Err(error) = self.end_mode(&service, By::Time) {
                self.warnings.raise(now, &format!("{service}: mode"), error.to_string());
            }
        }
        if !self.intent.released {
            self.overrides.released_until = None;
        }
        if over(&self.overrides.released_until) {
            match self.switch(false) {
                Ok(_) => {
                    self.overrides.released_until = None;
                    self.record.note(What::Release { on: false, lasts: None, by: By::Time });
                }
                Err(error) => self.warnings.raise(now, "kill switch", error.to_string()),
            }
        }
    }
}
