// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of the dataplane, which is the same with hooks in place ([`crate::Dataplane`]) and
//! without ([`crate::testing::TestPlane`]): maps, plan in force, limits, heartbeat.

use crate::abi::{self, Control, GAUGES_EACH, Heartbeat, Table};
use crate::imported::Table as ImportTable;
use crate::limits::Limits;
use crate::maps::{Maps, REQUEST_SIZES};
use crate::objects::{self, Load, Objects, Variant};
use crate::programs::{self, Runs};
use crate::request_state::RequestState;
use crate::{
    BucketParams, Count, Error, Lately, Passed, Plan, RequestReason, RuleCount, Sample,
    ServiceParams, TableLosses, classification, datagrams, read, request_read, sources, switch,
    syscall, tables,
};
use libbpf_rs::{MapCore, MapFlags};
use std::fs::File;
use std::io::{self, Read};
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use tidegate_model::snapshot::Followed;
use tidegate_model::sources::SourceUse;
use tidegate_model::totals::ServiceTotals;
use tidegate_model::{Canary, Listen, Mode, PRIORITIES, SERVICES_MAX, service_identity};
use tidegate_policy::{Params, Policy, RequestChain, RequestLimits, SourceKey, State};
use tidegate_units::Nanos;
use zerocopy::IntoBytes;

/// Heartbeats in which the whole flow table is looked at, however large it is.
const REAP_HEARTBEATS: u32 = 32;

/// What a clean stop writes as `released`; 1 is an operator's.
const STOPPED: u32 = 2;

/// The state of a dataplane: what can be told to it and read from it, wherever its hooks are.
#[derive(Debug)]
pub struct Core {
    pub(crate) maps: Maps,
    pub(crate) plan: Plan,
    /// Of its services.
    policies: Vec<Policy>,
    pub(crate) objects: Objects,
    limits: Limits,
    /// Imported rules; `None` as long as there were none.
    pub(crate) imported: Option<ImportTable>,
    /// Request rules; `None` as long as there were none.
    requests: Option<RequestState>,
    /// Gauges in use, by index of the service.
    gauges: Vec<u8>,
    heartbeat: OwnedFd,
    reap_from: u32,
    /// Sets of the flow table that one heartbeat looks at.
    reap_sets: u32,
}

/// All that is listened to: by which service, and whether its requests are evaluated.
fn evaluated(plan: &Plan) -> Vec<(usize, bool, &Listen)> {
    let services = plan.config.services.iter().enumerate();
    let all = services.flat_map(|(index, service)| {
        let evaluated = service.has_rules();
        service.listen.iter().map(move |listen| (index, evaluated, listen))
    });
    all.collect()
}

/// Services, bit by bit, one of whose ports has another listener in another plan: it may take
/// connections from them, or give some back of which the hooks have missed packets.
fn handed_over(before: &[(usize, bool, &Listen)], after: &[(usize, bool, &Listen)]) -> u32 {
    let both = || before.iter().chain(after);
    let differs = |one: &&(usize, bool, &Listen)| before.contains(one) != after.contains(one);
    let ports: Vec<u16> = both().filter(differs).map(|(_, _, listen)| listen.port).collect();
    let services = both().filter(|(_, _, listen)| ports.contains(&listen.port));
    services.fold(0, |all, (service, ..)| all | 1 << service)
}

impl Core {
    /// Adopts the maps or creates them, and puts the plan in force.
    pub(crate) fn start(plan: &Plan, objects: Objects) -> Result<Self, Error> {
        plan.policies()?;
        objects::quiet();
        let mut maps = match &plan.settings.pins {
            Some(pins) => Maps::adopt(pins, &objects::SHARED),
            None => Maps::default(),
        };
        let mut resized = None;
        if let Some(pins) = plan.settings.pins.as_deref().filter(|_| !maps.is_empty()) {
            maps.adopt_more(pins, &objects::REQUESTS, &REQUEST_SIZES);
            resized = maps.resized(&objects::sized(plan));
        }
        // State is adopted whole or not at all: connections are counted by who is in the tables.
        if let Some(text) = &resized {
            tracing::warn!("{text}: begins with fresh state (connections, counters, limits)");
            maps = Maps::default();
        }
        if maps.is_empty() {
            maps = objects::create_maps(&objects, plan)?;
            // An operator's switch outlives the layout of what it was thrown in.
            let released = plan.settings.pins.as_deref().is_some_and(switch::thrown);
            let control =
                Control { seed: seed()?, released: released.into(), ..Control::default() };
            maps.write("tg_control", &0_u32.to_ne_bytes(), control.as_bytes())?;
        }
        let left = maps.find(objects::REQUESTS[0]).is_some();
        let requests =
            if left { Some(RequestState::open(&mut maps, &objects, plan)?) } else { None };
        // A clean stop whose pins stayed behind was no operator: what it threw is not kept.
        let control: Control = maps.read("tg_control", 0)?;
        if control.released == STOPPED {
            switch::write(maps.get("tg_control")?, |control| control.released = 0)?;
        }
        let limits = Limits::adopt(&maps)?;
        let settings = objects::settings(&maps, plan, Variant::default())?;
        let load =
            Load { object: "heartbeat", bytes: &objects.heartbeat, settings, attach_type: None };
        let pins = plan.settings.pins.as_deref();
        let heartbeat = programs::load(pins, &maps, &load, &Runs::Us)?;
        let reap_sets = maps.get("tg_flows")?.max_entries().div_ceil(REAP_HEARTBEATS);
        let empty = Plan { settings: plan.settings.clone(), ..Plan::default() };
        let mut core = Self {
            maps,
            plan: empty,
            policies: Vec::new(),
            objects,
            limits,
            imported: None,
            requests,
            gauges: Vec::new(),
            heartbeat,
            reap_from: 0,
            reap_sets,
        };
        core.apply(plan)?;
        Ok(core)
    }

    /// Puts a plan in force: limits of indices that change hands are dropped first, then the
    /// classification is swapped as a whole.
    pub(crate) fn apply(&mut self, plan: &Plan) -> Result<(), Error> {
        let policies = plan.policies()?;
        if let Some(text) = self.maps.resized(&objects::sized(plan)) {
            return Err(Error::Plan(format!("{text}: its size changes by a restart only")));
        }
        if plan.has_rules() && self.requests.is_none() {
            self.requests = Some(RequestState::open(&mut self.maps, &self.objects, plan)?);
        }
        if plan.has_import() {
            self.open_imported()?;
        }
        let control: Control = self.maps.read("tg_control", 0)?;
        let slot = (control.slot + 1) % abi::SLOTS;
        let table: Table = self.maps.read("tg_tables", control.slot % abi::SLOTS)?;
        let mut gauges = Vec::new();
        let (mut fresh, mut missed) = (Vec::new(), 0);
        let (mut moved, mut left) = (0, 0);
        for index in 0..SERVICES_MAX {
            let old = &table.service[index];
            let name = plan.config.services.get(index).map(|service| &service.name);
            let same = name.is_some_and(|name| service_identity(name) == old.identity);
            let policy = policies.get(index).map(|policy| *policy as u32);
            let unused = name.is_none() && old.identity == 0;
            if !unused && (!same || self.limits.policy(index) != policy) {
                fresh.push((index, same));
                moved |= u32::from(!same) << index;
                left |= u32::from(!same && old.identity != 0) << index;
            }
            gauges.push(next_gauge(index, old.gauge, same || old.identity == 0));
        }
        if let Some(requests) = &mut self.requests {
            requests.pause(&self.maps, &mut self.limits, moved)?;
            // Before the first plan of a process nothing is known of the one in force; its hooks
            // say when they listen.
            if !self.plan.config.services.is_empty() {
                missed = handed_over(&evaluated(&self.plan), &evaluated(plan));
            }
            if missed != 0 {
                requests.listen_to_nobody(&self.maps, &mut self.limits)?;
            }
        }
        for (index, _) in &fresh {
            let policy = policies.get(*index).copied().unwrap_or(Policy::TokenBucket);
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
        if let Some(requests) = &mut self.requests {
            // What connections said of a service that has left its index was not followed meanwhile.
            requests.apply(&self.maps, &mut self.limits, (plan, missed | left))?;
        }
        self.gauges = gauges;
        self.plan = plan.clone();
        self.policies = policies;
        Ok(())
    }

    /// A policy's memory is fresh; with another service, its gauges and counters too.
    fn reset_state(&self, index: usize, gauge: u8, same: bool) -> Result<(), Error> {
        let key = (index as u32).to_ne_bytes();
        let mut state = vec![0_u8; offset_of!(abi::Chain, state)];
        state.extend_from_slice(State::fresh().as_bytes());
        self.maps.write("tg_states", &key, &state)?;
        self.maps.clear_percpu("tg_copies", index as u32)?;
        if same {
            return Ok(());
        }
        self.maps.write("tg_senders", &key, abi::Senders::default().as_bytes())?;
        self.maps.write(
            "tg_gauges",
            &u32::from(gauge).to_ne_bytes(),
            abi::Gauges::default().as_bytes(),
        )?;
        self.maps.clear_percpu("tg_totals", index as u32)?;
        self.maps.clear_percpu(datagrams::COUNTS, index as u32)?;
        self.maps.clear_value(datagrams::STATES, index as u32)?;
        for class in 0..tidegate_model::CLASSES_MAX {
            let index = index * tidegate_model::CLASSES_MAX + class;
            self.maps.clear_percpu("tg_counts", index as u32)?;
        }
        Ok(())
    }

    /// Puts limits of services and of request buckets in force, all at once, under a generation
    /// number: none of it is in force before all of it is. Services and buckets that are not named
    /// keep what they have.
    ///
    /// # Errors
    /// When a service or bucket does not exist, uses another policy, or its limit breaks a bound, or a
    /// map cannot be written. Then what was in force still is, all of it.
    pub fn set_limits(
        &mut self,
        services: &[ServiceParams],
        buckets: &[BucketParams],
        generation: u64,
    ) -> Result<(), Error> {
        services.iter().try_for_each(|service| self.check(service))?;
        let compiled = buckets.iter().map(|bucket| self.compile(bucket));
        let compiled: Vec<_> = compiled.collect::<Result<_, _>>()?;
        let before = self.limits.decided();
        services.iter().for_each(|service| self.limits.set(service));
        for (number, limit) in compiled.iter().flatten() {
            self.limits.buckets.set(*number, limit);
        }
        // Else the next write, of something else, would bring them.
        self.limits.swap(&self.maps, generation).inspect_err(|_| self.limits.restore(before))
    }

    fn check(&self, service: &ServiceParams) -> Result<(), Error> {
        let planned = self.plan.config.services.get(service.service);
        let policy = self.policies.get(service.service);
        let (Some(planned), Some(policy)) = (planned, policy) else {
            return Err(Error::Plan(format!("limits for service {}: none such", service.service)));
        };
        if service.params.policy() != *policy {
            return Err(Error::Plan(format!(
                "service {}: limits for policy {}, but {} is in use",
                planned.name,
                service.params.policy().name(),
                policy.name()
            )));
        }
        Ok(())
    }

    /// Number and limit of a bucket; `None` where no rule is in force.
    fn compile(&self, params: &BucketParams) -> Result<Option<(u32, RequestLimits)>, Error> {
        let service = self.plan.config.services.get(params.service);
        let requests = service.and_then(|service| service.requests.as_ref());
        let bucket = requests.and_then(|requests| requests.buckets.get(params.bucket));
        let (Some(service), Some(planned)) = (service, bucket) else {
            let BucketParams { service, bucket, .. } = params;
            return Err(Error::Plan(format!("bucket {bucket} of service {service}: none such")));
        };
        let (found, used) = (params.limits.params().policy(), planned.policy_name());
        if found.name() != used {
            let (service, name, found) = (&service.name, &planned.name, found.name());
            return Err(Error::Plan(format!(
                "service {service}: bucket {name}: limits for policy {found}, but {used} is in use"
            )));
        }
        let requests = self.requests.as_ref();
        let number = requests.and_then(|state| state.bucket(params.service, params.bucket));
        Ok(number.map(|number| (number, params.limits)))
    }

    /// Changes whether refusals of a service are executed (`false`) or only counted (`true`).
    ///
    /// # Errors
    /// When there is no such service, or a map cannot be written.
    pub fn set_shadow(&mut self, service: usize, shadow: bool) -> Result<(), Error> {
        self.set_mode(service, if shadow { Mode::Shadow } else { Mode::Enforce }, Canary::ALL)
    }

    /// Changes whose refusals of a service are executed: nobody's, or those of a share of the sources.
    ///
    /// # Errors
    /// As [`Self::set_shadow`].
    pub fn set_mode(&mut self, service: usize, mode: Mode, canary: Canary) -> Result<(), Error> {
        let Some(planned) = self.plan.config.services.get_mut(service) else {
            return Err(Error::Plan(format!("service {service}: none such")));
        };
        (planned.mode, planned.canary) = (mode, canary);
        self.limits.set_mode(service, mode, canary);
        if let Some(requests) = &self.requests {
            requests.follow(&mut self.limits, &self.plan);
        }
        self.limits.swap(&self.maps, self.limits.generation())
    }

    /// Forgets all limits: everything is admitted until some are set.
    pub(crate) fn forget_limits(&mut self) -> Result<(), Error> {
        let before = self.limits.decided();
        for (index, policy) in self.policies.iter().enumerate() {
            self.limits.forget(index, &Params::no_limit(*policy));
        }
        self.limits.buckets.reset_all();
        let next = self.limits.generation() + 1;
        self.limits.swap(&self.maps, next).inspect_err(|_| self.limits.restore(before))
    }

    /// See [`RequestState::missed`]: of all services.
    pub(crate) fn missed(&mut self) -> Result<(), Error> {
        match &mut self.requests {
            Some(requests) => requests.missed(&self.maps, &mut self.limits),
            None => Ok(()),
        }
    }

    /// See [`RequestState::listening`].
    pub(crate) fn listening(&mut self, now: Nanos, anew: bool) -> Result<(), Error> {
        match &mut self.requests {
            Some(requests) => requests.listening(&self.maps, &mut self.limits, (now, anew)),
            None => Ok(()),
        }
    }

    /// Request rules, once there were some.
    pub(crate) const fn requests(&self) -> Option<&RequestState> {
        self.requests.as_ref()
    }

    /// The generation of the limits in force; after a restart, that of the process before.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.limits.generation()
    }

    /// Whether a bucket has a limit.
    #[cfg(test)]
    pub(crate) fn limited(&self, service: usize, bucket: usize) -> bool {
        let number = self.requests.as_ref().and_then(|requests| requests.bucket(service, bucket));
        number.is_some_and(|number| self.limits.buckets.limited(number))
    }

    /// Verdicts since the state was created, by service, class, verdict, shadow and reason.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn counts(&self) -> Result<Vec<Count>, Error> {
        read::counts(&self.maps, self.plan.config.services.len())
    }

    /// Packets that passed without being evaluated since the state was created, by reason.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn passed(&self) -> Result<Vec<Passed>, Error> {
        read::passed(&self.maps)
    }

    /// Packets whose marks a border has cleared since the state was created.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn cleared(&self) -> Result<u64, Error> {
        read::cleared(&self.maps)
    }

    /// What found no room in the tables of connections since the state was created.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn table_losses(&self) -> Result<TableLosses, Error> {
        tables::losses(&self.maps)
    }

    /// The sources that have connections open now, of all services.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn sources(&self) -> Result<Vec<SourceUse>, Error> {
        sources::open(self)
    }

    /// By which a canary chooses among sources. Whatever else limits these services takes it, too: a client
    /// meets the same thing everywhere.
    ///
    /// # Errors
    /// When the table of the seed cannot be read.
    pub fn source_key(&self) -> Result<SourceKey, Error> {
        let control: Control = self.maps.read("tg_control", 0)?;
        Ok(SourceKey::new(objects::keys(control.seed)))
    }

    /// Who was refused in the last minute.
    ///
    /// # Errors
    /// When a table cannot be read.
    pub fn lately(&self) -> Result<Lately, Error> {
        Lately::new(self)
    }

    /// Up to `max` sampled verdicts, oldest first.
    ///
    /// # Errors
    /// When the ring cannot be read.
    pub fn samples(&self, max: usize) -> Result<Vec<Sample>, Error> {
        read::samples(&self.maps, max)
    }

    /// The totals of a service, with those of its request buckets.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn totals(&self, service: usize) -> Result<ServiceTotals, Error> {
        let mut totals = read::totals(&self.maps, service, self.gauge(service))?;
        if self.plan.config.counts_datagrams() {
            totals.datagrams = Some(datagrams::totals(&self.maps, service)?);
        }
        if let Some(seats) = self.requests.as_ref().and_then(|r| r.seats().get(service)) {
            totals.buckets = request_read::bucket_totals(&self.maps, &seats.buckets)?;
        }
        Ok(totals)
    }

    /// The rung of each priority on its ladder of thresholds, as of the last SYN; `None` where the policy
    /// of the service has no thresholds.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn rungs(&self, service: usize) -> Result<Option<[u8; PRIORITIES]>, Error> {
        if self.policies.get(service) != Some(&Policy::Threshold) {
            return Ok(None);
        }
        let key = (service as u32).to_ne_bytes();
        let value = self.maps.get("tg_states")?.lookup(&key, MapFlags::ANY);
        let value = value.map_err(Error::map("tg_states"))?.unwrap_or_default();
        Ok(value.get(offset_of!(abi::Chain, state)..).and_then(State::rungs))
    }

    /// The same of a request bucket, as of the last request.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn bucket_rungs(
        &self,
        service: usize,
        bucket: usize,
    ) -> Result<Option<[u8; PRIORITIES]>, Error> {
        let of_service = self.plan.config.services.get(service);
        let requests = of_service.and_then(|service| service.requests.as_ref());
        let planned = requests.and_then(|requests| requests.buckets.get(bucket));
        let number = self.requests.as_ref().and_then(|state| state.bucket(service, bucket));
        let (Some(planned), Some(number)) = (planned, number) else { return Ok(None) };
        if planned.policy_name() != Policy::Threshold.name() {
            return Ok(None);
        }
        let value = self.maps.get("tg_buckets")?.lookup(&number.to_ne_bytes(), MapFlags::ANY);
        let value = value.map_err(Error::map("tg_buckets"))?.unwrap_or_default();
        Ok(RequestChain::rungs_in(&value))
    }

    /// What the rules matched since the state was created, in the order of the plan; a rule that
    /// stays the same across a reload keeps its counts.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn rule_counts(&self) -> Result<Vec<RuleCount>, Error> {
        let seats = self.requests.as_ref().map(RequestState::seats).unwrap_or_default();
        request_read::rule_counts(&self.maps, seats)
    }

    /// Segments of services with rules that no rule of their own evaluated, by reason.
    ///
    /// # Errors
    /// When a map cannot be read.
    pub fn request_reasons(&self) -> Result<Vec<RequestReason>, Error> {
        let services = self.requests.as_ref().map_or(0, |_| self.plan.config.services.len());
        request_read::reasons(&self.maps, services)
    }

    /// How full the table of connections with evaluated requests was when all of it was looked at last.
    #[must_use]
    pub fn followed(&self) -> Followed {
        self.requests.as_ref().map(RequestState::followed).unwrap_or_default()
    }

    /// Renews the lease and forgets connections that were idle too long; returns the time on the
    /// dataplane's clock. To be called at least every second: from 3 s on limits are relaxed.
    ///
    /// # Errors
    /// When the program cannot be run.
    pub fn heartbeat(&mut self) -> Result<Nanos, Error> {
        let (reap_from, reap_sets) = (self.reap_from, self.reap_sets);
        let mut argument = Heartbeat { reap_from, reap_sets, ..Heartbeat::default() };
        let failed = |source| Error::Run { program: "heartbeat", source };
        let returned =
            syscall::run_syscall(self.heartbeat.as_fd(), &mut argument).map_err(failed)?;
        if returned != 0 {
            return Err(failed(io::ErrorKind::NotFound.into()));
        }
        self.reap_from = argument.reap_from;
        let now = Nanos(argument.now_ns);
        if let Some(requests) = &mut self.requests {
            requests.sweep(now)?;
        }
        Ok(now)
    }

    /// The program that renews the lease.
    pub(crate) const fn heartbeat_program(&self) -> &OwnedFd {
        &self.heartbeat
    }

    /// The kill switch: while released, everything passes. Outlives the process if pinned.
    ///
    /// # Errors
    /// When the map cannot be written.
    pub fn release(&self, released: bool) -> Result<(), Error> {
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

    /// Whether the kill switch is on.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn released(&self) -> Result<bool, Error> {
        Ok(self.maps.read::<Control>("tg_control", 0)?.released != 0)
    }

    /// The programs that belong to no hook.
    pub(crate) fn programs(&self) -> impl Iterator<Item = &OwnedFd> {
        let sweep = self.requests.as_ref().map(RequestState::sweep_program);
        std::iter::once(&self.heartbeat).chain(sweep)
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

pub(crate) fn seed() -> Result<[u64; 2], Error> {
    let path = "/dev/urandom";
    let mut bytes = [0_u8; 16];
    File::open(path)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|source| Error::Pins { path: path.into(), source })?;
    let (low, high) = bytes.split_at(8);
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
    Ok([word(low), word(high)])
}
