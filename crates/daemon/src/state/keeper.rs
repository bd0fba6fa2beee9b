// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When a state is read and written.
//!
//! It is read once, at the start, and removed before anything of it is used: a state that brings a
//! process down does so once. It is written again once the process has run for [`SAVE_EVERY`], then
//! at most that often, and at once when shedding begins or ends; and for a successor.

use super::{
    BYTES_MAX, CONTROLLER_BYTES_MAX, Commanded, Kept, KeptCommands, KeptCrowd, LIMITS_AGE_MAX,
    State, StateError, Store, decode, encode, identity,
};
use crate::governed::Governed;
use crate::overrides::Overrides;
use crate::plane::Plane;
use std::collections::BTreeMap;
use tidegate_config::{Config, ServiceConfig};
use tidegate_model::Mode;
use tidegate_model::snapshot::Restored;
use tidegate_units::Nanos;

/// Time between two writes while nothing happens.
const SAVE_EVERY: Nanos = Nanos::SECOND;

/// What became of a state that was to be saved; for tests.
pub type StateSaved = Result<usize, String>;

/// Reads and writes the state of one daemon.
pub struct Keeper {
    store: Box<dyn Store>,
    /// Where it is kept what commands set; `None`: nowhere.
    commands: Option<Box<dyn Store>>,
    /// What of that was written last.
    commanded: Option<(Overrides, bool)>,
    version: String,
    saved: Option<Nanos>,
    /// Which services shed when it was written last.
    shedding: Vec<bool>,
}

/// What a start found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// By name of the service.
    pub(crate) services: BTreeMap<String, Kept>,
    pub(crate) crowds: Vec<KeptCrowd>,
    pub(crate) age: Nanos,
    /// Why there is nothing, where something was there.
    pub(crate) fault: Option<String>,
}

impl Keeper {
    /// One that has read nothing yet.
    #[must_use]
    pub fn new(store: Box<dyn Store>, version: String) -> Self {
        let (commands, commanded, saved) = (None, None, None);
        Self { store, commands, commanded, version, saved, shedding: Vec::new() }
    }

    /// The same, which also keeps what commands set.
    #[must_use]
    pub fn with_commands(self, store: Box<dyn Store>) -> Self {
        Self { commands: Some(store), ..self }
    }

    /// What commands had set in this boot and still holds, where there was no predecessor to ask. `files`: the
    /// modes that the file says.
    pub fn commands(&mut self, files: &BTreeMap<String, Mode>) -> KeptCommands {
        let Some(store) = &mut self.commands else { return KeptCommands::default() };
        let here = store.here();
        let read = store.read().map_err(|error| error.to_string());
        let said = read.and_then(|bytes| match bytes.map(|b| Commanded::decode(&b, &here.boot)) {
            None | Some(Err(StateError::OtherBoot)) => Ok(None),
            Some(said) => said.map(Some).map_err(|error| error.to_string()),
        });
        match said {
            Ok(said) => said.unwrap_or_default().kept(here.now, files),
            Err(why) => {
                let why = format!("what commands had set is not known: {why}; the file holds");
                KeptCommands { told: vec![why], ..KeptCommands::default() }
            }
        }
    }

    /// Writes what commands have set, if that changed.
    ///
    /// # Errors
    /// Why it could not be written; it is tried again the next time.
    pub(crate) fn keep_commands(
        &mut self,
        now: Nanos,
        overrides: &Overrides,
        released: bool,
    ) -> StateSaved {
        let Some(store) = &mut self.commands else { return Ok(0) };
        let same = |(old, on): &(Overrides, bool)| old == overrides && *on == released;
        if self.commanded.as_ref().is_some_and(same) {
            return Ok(0);
        }
        let said = overrides.commanded(now, released, store.here());
        let bytes = said.encode().map_err(|error| error.to_string())?;
        store.write(&bytes).map_err(|error| error.to_string())?;
        self.commanded = Some((overrides.clone(), released));
        Ok(bytes.len())
    }

    /// Takes what is there.
    pub(crate) fn take(&mut self) -> Found {
        let failed = |text: String| Found { fault: Some(text), ..Found::default() };
        let bytes = match self.store.read() {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Found::default(),
            Err(error) => return failed(format!("cannot be read: {error}")),
        };
        if let Err(error) = self.store.remove() {
            return failed(format!("cannot be removed, and is not used: {error}"));
        }
        match decode(&bytes, &self.store.here()) {
            Ok((state, age)) => {
                let State { version, services, crowds, .. } = state;
                tracing::info!(%age, version, services = services.len(), "found a state");
                Found { services, crowds, age, fault: None }
            }
            // As it should be after a boot, or a long stop.
            Err(error @ (StateError::OtherBoot | StateError::Old(_))) => {
                tracing::info!("the state that was found is not used: {error}");
                Found::default()
            }
            Err(error) => failed(format!("not used: {error}")),
        }
    }

    /// Writes, if it is time to.
    ///
    /// # Errors
    /// Why it could not be written; it is tried again after [`SAVE_EVERY`].
    pub(crate) fn tick(
        &mut self,
        now: Nanos,
        services: &[ServiceConfig],
        (governors, plane): (&[Governed], &dyn Plane),
    ) -> StateSaved {
        let saved = *self.saved.get_or_insert(now);
        let shedding = governors.iter().map(|governor| governor.limits().why.shedding);
        let changed = self.shedding.iter().copied().ne(shedding);
        // A start is no end of shedding, and what it brought has to prove itself first.
        let begun = !self.shedding.is_empty() || now.since(saved) >= SAVE_EVERY;
        let due = begun && (changed || now.since(saved) >= SAVE_EVERY);
        if !due {
            return Ok(0);
        }
        self.saved = Some(now);
        self.save(services, (governors, plane))
    }

    /// Writes now.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn save(
        &mut self,
        services: &[ServiceConfig],
        (governors, plane): (&[Governed], &dyn Plane),
    ) -> StateSaved {
        self.shedding = governors.iter().map(|governor| governor.limits().why.shedding).collect();
        let here = self.store.here();
        let kept = services.iter().zip(governors).map(|(service, governor)| {
            let controller = governor.save().filter(|value| fits(&service.name, value));
            let limits = governor.limits().clone();
            (service.name.clone(), Kept { identity: identity(service), limits, controller })
        });
        let mut crowds = plane.kept_crowds();
        crowds.retain(|crowd| fits(&crowd.destination.to_string(), &crowd.detector));
        let state = State {
            boot: here.boot,
            at: here.now,
            version: self.version.clone(),
            services: kept.collect(),
            crowds,
        };
        let bytes = encode(&state).map_err(|error| error.to_string())?;
        debug_assert!(bytes.len() <= BYTES_MAX);
        self.store.write(&bytes).map_err(|error| error.to_string())?;
        Ok(bytes.len())
    }

    /// Forgets what is there: whoever stops the daemon on purpose begins anew.
    pub(crate) fn forget(&mut self) {
        if let Err(error) = self.store.remove() {
            tracing::warn!(%error, "the state could not be removed");
        }
    }
}

fn fits(of: &str, value: &serde_json::Value) -> bool {
    let length = serde_json::to_vec(value).map_or(usize::MAX, |bytes| bytes.len());
    if length > CONTROLLER_BYTES_MAX {
        tracing::debug!(of, length, "what is kept of it is too large");
    }
    length <= CONTROLLER_BYTES_MAX
}

/// Gives services and routers what is kept of them: what each service got, and what was wrong.
pub(crate) fn take(
    keeper: Option<&mut Keeper>,
    config: &Config,
    governors: &mut [Governed],
    plane: &mut dyn Plane,
) -> (BTreeMap<String, Restored>, Option<String>) {
    let mut found = keeper.map(Keeper::take).unwrap_or_default();
    let mut restored = BTreeMap::new();
    for (service, governor) in config.services.iter().zip(governors) {
        let kept = found.services.remove(&service.name);
        let got = kept.and_then(|kept| restore(service, governor, kept, found.age));
        restored.extend(got.map(|got| (service.name.clone(), got)));
    }
    plane.restore_crowds(found.crowds, found.age);
    (restored, found.fault)
}

/// Gives a service what is kept of it.
fn restore(
    service: &ServiceConfig,
    governor: &mut Governed,
    kept: Kept,
    age: Nanos,
) -> Option<Restored> {
    if kept.identity != identity(service) {
        tracing::info!(service = service.name, "is configured otherwise; starts afresh");
        return None;
    }
    let learned = kept.controller.is_some_and(|value| governor.restore(value, age));
    let limits = age <= LIMITS_AGE_MAX;
    if limits {
        governor.inherit(service, kept.limits, None);
    }
    (learned || limits).then_some(Restored { age, limits, learned })
}
