// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of the dataplane without its hooks: maps, plan in force, limits, heartbeat.

use crate::abi::{self, Control, GAUGES_EACH, Heartbeat, Plain, Table};
use crate::limits::Limits;
use crate::maps::Maps;
use crate::objects::{self, Load, Objects, Variant};
use crate::{Error, Plan, ServiceParams, classification, switch, syscall};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use tidegate_model::SERVICES_MAX;
use tidegate_policy::{Params, State};
use tidegate_units::Nanos;

/// Sets of the flow table that one heartbeat looks at: the whole default table in 32 heartbeats.
const REAP_SETS: u32 = 512;

/// What a clean stop writes as `released`; 1 is an operator's.
const STOPPED: u32 = 2;

/// Maps, plan, limits.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) maps: Maps,
    pub(crate) plan: Plan,
    pub(crate) objects: Objects,
    limits: Limits,
    /// Gauges in use, by index of the service.
    gauges: Vec<u8>,
    heartbeat: OwnedFd,
    reap_from: u32,
}

impl Core {
    /// Adopts the maps or creates them, and puts the plan in force.
    pub(crate) fn start(plan: &Plan, objects: Objects) -> Result<Self, Error> {
        plan.validate()?;
        objects::quiet();
        let mut maps = match &plan.settings.pins {
            Some(pins) => Maps::adopt(pins, &objects::SHARED),
            None => Maps::default(),
        };
        if maps.is_empty() {
            maps = objects::create_maps(&objects, plan)?;
            let control = Control { seed: seed()?, ..Control::default() };
            maps.write("tg_control", &0_u32.to_ne_bytes(), control.bytes())?;
        }
        // A clean stop whose pins stayed behind was no operator: what it threw is not kept.
        let control: Control = maps.read("tg_control", 0)?;
        if control.released == STOPPED {
            switch::write(maps.get("tg_control")?, |control| control.released = 0)?;
        }
        let limits = Limits::adopt(&maps)?;
        let settings = objects::settings(&maps, plan, Variant { answer: 0, trust_dscp: false })?;
        let load =
            Load { object: "heartbeat", bytes: &objects.heartbeat, settings, attach_type: None };
        let heartbeat = objects::load(&maps, &load)?;
        let empty = Plan { settings: plan.settings.clone(), ..Plan::default() };
        let mut core = Self {
            maps,
            plan: empty,
            objects,
            limits,
            gauges: Vec::new(),
            heartbeat,
            reap_from: 0,
        };
        core.apply(plan)?;
        Ok(core)
    }

    /// Puts a plan in force: limits of indices that change hands are dropped first, then the
    /// classification is swapped as a whole.
    pub(crate) fn apply(&mut self, plan: &Plan) -> Result<(), Error> {
        plan.validate()?;
        let control: Control = self.maps.read("tg_control", 0)?;
        let slot = (control.slot + 1) % abi::SLOTS;
        let table: Table = self.maps.read("tg_tables", control.slot % abi::SLOTS)?;
        let mut gauges = Vec::new();
        let mut fresh = Vec::new();
        for index in 0..SERVICES_MAX {
            let old = &table.service[index];
            let name = plan.services.get(index).map(|service| &service.name);
            let same = name.is_some_and(|name| classification::identity(name) == old.identity);
            let policy = plan.services.get(index).map(|service| service.policy as u32);
            let unused = name.is_none() && old.identity == 0;
            if !unused && (!same || self.limits.policy(index) != policy) {
                fresh.push((index, same));
            }
            gauges.push(next_gauge(index, old.gauge, same || old.identity == 0));
        }
        for (index, _) in &fresh {
            let policy = plan
                .services
                .get(*index)
                .map_or(tidegate_policy::Policy::TokenBucket, |s| s.policy);
            self.limits.reset(*index, &Params::no_limit(policy));
        }
        self.limits.follow(plan);
        self.limits.swap(&self.maps, self.limits.generation() + 1)?;
        for (index, same) in fresh {
            self.reset_state(index, gauges[index], same)?;
        }
        classification::fill(&self.maps, plan, slot as u8, &gauges)?;
        // Read again: somebody may have thrown the kill switch since.
        switch::write(self.maps.get("tg_control")?, |control| control.slot = slot)?;
        self.gauges = gauges;
        self.plan = plan.clone();
        Ok(())
    }

    /// A policy's memory is fresh; with another service, its gauges and counters too.
    fn reset_state(&self, index: usize, gauge: u8, same: bool) -> Result<(), Error> {
        let key = (index as u32).to_ne_bytes();
        let mut state = vec![0_u8; abi::STATE_AT];
        state.extend_from_slice(State::fresh().as_bytes());
        self.maps.write("tg_states", &key, &state)?;
        if same {
            return Ok(());
        }
        self.maps.write("tg_gauges", &u32::from(gauge).to_ne_bytes(), &[0; 64])?;
        self.maps.clear_percpu("tg_totals", index as u32)?;
        for class in 0..tidegate_model::CLASSES_MAX {
            let index = index * tidegate_model::CLASSES_MAX + class;
            self.maps.clear_percpu("tg_counts", index as u32)?;
        }
        Ok(())
    }

    /// Puts limits in force; services that are not named keep theirs.
    pub(crate) fn set_limits(
        &mut self,
        services: &[ServiceParams],
        generation: u64,
    ) -> Result<(), Error> {
        for service in services {
            let Some(planned) = self.plan.services.get(service.service) else {
                return Err(Error::Plan(format!(
                    "limits for service {}: none such",
                    service.service
                )));
            };
            if service.params.policy() != planned.policy {
                return Err(Error::Plan(format!(
                    "service {}: limits for policy {}, but {} is in use",
                    planned.name,
                    service.params.policy().name(),
                    planned.policy.name()
                )));
            }
        }
        for service in services {
            self.limits.set(service);
        }
        self.limits.swap(&self.maps, generation)
    }

    /// Changes whether refusals of a service are executed.
    pub(crate) fn set_shadow(&mut self, service: usize, shadow: bool) -> Result<(), Error> {
        let Some(planned) = self.plan.services.get_mut(service) else {
            return Err(Error::Plan(format!("service {service}: none such")));
        };
        planned.shadow = shadow;
        self.limits.shadow(service, shadow);
        self.limits.swap(&self.maps, self.limits.generation())
    }

    pub(crate) const fn generation(&self) -> u64 {
        self.limits.generation()
    }

    /// Renews the lease; returns the time on the dataplane's clock.
    pub(crate) fn heartbeat(&mut self) -> Result<Nanos, Error> {
        let mut argument =
            Heartbeat { reap_from: self.reap_from, reap_sets: REAP_SETS, ..Heartbeat::default() };
        let failed = |source| Error::Run { program: "heartbeat", source };
        let returned =
            syscall::run_syscall(self.heartbeat.as_fd(), &mut argument).map_err(failed)?;
        if returned != 0 {
            return Err(failed(io::ErrorKind::NotFound.into()));
        }
        self.reap_from = argument.reap_from;
        Ok(Nanos(argument.now_ns))
    }

    /// The program that renews the lease.
    pub(crate) const fn heartbeat_program(&self) -> &OwnedFd {
        &self.heartbeat
    }

    /// The kill switch.
    pub(crate) fn release(&self, released: bool) -> Result<(), Error> {
        let control = self.maps.get("tg_control")?;
        switch::write(control, |control| control.released = released.into())
    }

    /// Lets everything pass because the dataplane is taken away; an operator's switch stays his.
    pub(crate) fn stop(&self) -> Result<(), Error> {
        switch::write(self.maps.get("tg_control")?, |control| {
            if control.released == 0 {
                control.released = STOPPED;
            }
        })
    }

    pub(crate) fn released(&self) -> Result<bool, Error> {
        Ok(self.maps.read::<Control>("tg_control", 0)?.released != 0)
    }

    /// Index of the gauges that a service uses.
    pub(crate) fn gauge(&self, service: usize) -> u8 {
        self.gauges.get(service).copied().unwrap_or_default()
    }
}

/// The gauges of an index: the same as before, or the next for another service.
fn next_gauge(index: usize, old: u8, same: bool) -> u8 {
    let base = index as u8 * GAUGES_EACH;
    let n = if same { old % GAUGES_EACH } else { (old + 1) % GAUGES_EACH };
    base + n
}

fn seed() -> Result<[u64; 2], Error> {
    let path = "/dev/urandom";
    let mut bytes = [0_u8; 16];
    File::open(path)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|source| Error::Pins { path: path.into(), source })?;
    let (low, high) = bytes.split_at(8);
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
    Ok([word(low), word(high)])
}
