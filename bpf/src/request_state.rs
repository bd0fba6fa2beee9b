// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the loader keeps about request rules: who has which number, and the sweep. It exists once a plan
//! has rules, or an earlier process left some.

use crate::abi::{
    self, ANSWER_VARIANTS, ANSWERS_MAX, KEYS, RULE_BUCKETS_MAX, RULES_MAX, RequestControl, SLOTS,
    Sweep,
};
use crate::limits::Limits;
use crate::maps::Maps;
use crate::numbers::{self, Assigned, Numbers};
use crate::objects::{self, Load, Objects, Variant};
use crate::programs::{self, Runs};
use crate::rules::{self, Identities, Seats, Tables};
use crate::syscall::{self, TestRun};
use crate::text_hash::text_hash;
use crate::{Error, Plan};
use libbpf_rs::MapCore;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use tidegate_config::ServiceConfig;
use tidegate_model::snapshot::Followed;
use tidegate_units::Nanos;
use zerocopy::IntoBytes;

/// Numbers of the texts of 503s.
const TEXTS_MAX: usize = ANSWERS_MAX / ANSWER_VARIANTS;
/// All numbers that the map of numbers remembers: rules, buckets, texts.
const NUMBERS: usize = RULES_MAX + RULE_BUCKETS_MAX + TEXTS_MAX;
/// How often the table of connections is looked at for those that were idle too long: all of it
/// takes about a millisecond.
const SWEEP_PERIOD: Nanos = Nanos::SECOND;
/// Where the result of the sweep stands in its packet (hook/sweep.bpf.c).
const SWEEP_AT: usize = 16;

/// See above.
#[derive(Debug)]
pub(crate) struct RequestState {
    rules: Numbers,
    buckets: Numbers,
    texts: Numbers,
    /// By service.
    seats: Vec<Seats>,
    /// Of the hash of names and values.
    key: [u64; KEYS],
    sweep: OwnedFd,
    swept: Option<Nanos>,
    followed: u64,
    /// Connections that can be followed at once.
    room: u64,
}

impl RequestState {
    /// Takes over the maps of request rules that are among `maps`, or creates them there.
    pub(crate) fn open(maps: &mut Maps, objects: &Objects, plan: &Plan) -> Result<Self, Error> {
        if maps.find(numbers::MAP).is_none() {
            objects::create_request_maps(objects, maps, plan)?;
            maps.insert(numbers::MAP, numbers::create_map(NUMBERS as u32)?);
        }
        let settings = objects::settings(maps, plan, Variant::default())?;
        let load = Load { object: "sweep", bytes: &objects.sweep, settings, attach_type: None };
        let (rules, buckets, all) =
            (RULES_MAX as u32, (RULES_MAX + RULE_BUCKETS_MAX) as u32, NUMBERS);
        Ok(Self {
            rules: Numbers::adopt(maps, 0..rules, 1)?,
            buckets: Numbers::adopt(maps, rules..buckets, 0)?,
            texts: Numbers::adopt(maps, buckets..all as u32, 0)?,
            seats: Vec::new(),
            key: settings.key,
            sweep: programs::load(plan.settings.pins.as_deref(), maps, &load, &Runs::Us)?,
            swept: None,
            followed: 0,
            room: maps.get("tg_conns")?.max_entries().into(),
        })
    }

    /// Takes the rules of services out of force whose index is about to change hands (bit by
    /// bit), and forgets what was counted for them.
    pub(crate) fn pause(
        &mut self,
        maps: &Maps,
        limits: &mut Limits,
        services: u32,
    ) -> Result<(), Error> {
        rules::pause(&mut Kernel { maps, limits }, services)?;
        for service in (0..u32::BITS).filter(|service| services >> service & 1 != 0) {
            maps.clear_percpu("tg_request_reasons", service)?;
        }
        Ok(())
    }

    /// Puts the rules of a plan in force; the classification of the same plan is in force already.
    /// Connections of services that the hooks may have `missed` packets of, bit by bit, are
    /// forgotten.
    pub(crate) fn apply(
        &mut self,
        maps: &Maps,
        limits: &mut Limits,
        (plan, missed): (&Plan, u32),
    ) -> Result<(), Error> {
        let wanted = rules::identities(plan);
        let assign = |numbers: &Numbers, wanted: &[u64]| {
            numbers.assign(wanted).ok_or_else(|| Error::Plan("too many request rules".into()))
        };
        let (of_rules, of_buckets, of_texts) = (
            assign(&self.rules, &wanted.rules)?,
            assign(&self.buckets, &wanted.buckets)?,
            assign(&self.texts, &wanted.answers)?,
        );
        begin_at_zero(maps, limits, (&of_rules, &of_buckets))?;
        self.rules.hold(maps, &holders(&of_rules, &wanted.rules))?;
        self.buckets.hold(maps, &holders(&of_buckets, &wanted.buckets))?;
        self.texts.hold(maps, &holders(&of_texts, &wanted.answers))?;
        self.seats = seats(plan, [&of_rules, &of_buckets, &of_texts]);
        self.follow(limits, plan);
        // Also waits for the packets that were classified by the plan before.
        limits.swap(maps, limits.generation())?;
        let key = self.key;
        let set = rules::compile(plan, &self.seats, &|text| text_hash(&key, text));
        let mut tables = Kernel { maps, limits };
        // Services that had no rules until now may have had some before: nobody followed them then.
        self.forget(missed | set.services & !tables.control()?.services)?;
        rules::put_in_force(&mut tables, &set)?;
        self.let_go(maps, &wanted)
    }

    /// Which connections belong to services with rules is about to change.
    pub(crate) fn listen_to_nobody(
        &mut self,
        maps: &Maps,
        limits: &mut Limits,
    ) -> Result<(), Error> {
        rules::listen_to_nobody(&mut Kernel { maps, limits })
    }

    /// The hooks were away: connections that are followed are forgotten, and pass. No connection is
    /// given a place until [`Self::listening`].
    pub(crate) fn missed(&mut self, maps: &Maps, limits: &mut Limits) -> Result<(), Error> {
        let mut tables = Kernel { maps, limits };
        rules::listen_to_nobody(&mut tables)?;
        tables.wait()?;
        self.forget(u32::MAX)
    }

    /// The hooks see every packet from `now` on: connections that begin from then are evaluated.
    /// Unless `anew`, only where that was still to be told.
    pub(crate) fn listening(
        &mut self,
        maps: &Maps,
        limits: &mut Limits,
        (now, anew): (Nanos, bool),
    ) -> Result<(), Error> {
        let mut tables = Kernel { maps, limits };
        if anew || tables.control()?.since_ns == rules::NOBODY {
            rules::listen_from(&mut tables, now)?;
        }
        Ok(())
    }

    fn let_go(&mut self, maps: &Maps, wanted: &Identities) -> Result<(), Error> {
        let free = |numbers: &mut Numbers, wanted: &[u64]| {
            let free: Vec<(u32, u64)> = numbers.others(wanted).iter().map(|n| (*n, 0)).collect();
            numbers.hold(maps, &free)
        };
        free(&mut self.rules, &wanted.rules)?;
        free(&mut self.buckets, &wanted.buckets)?;
        free(&mut self.texts, &wanted.answers)
    }

    /// Takes from the plan whether refusals are executed.
    pub(crate) fn follow(&self, limits: &mut Limits, plan: &Plan) {
        for (service, seats) in plan.config.services.iter().zip(&self.seats) {
            let Some(requests) = &service.requests else { continue };
            let mode = requests.mode_within(service.mode);
            for number in &seats.buckets {
                limits.buckets.set_mode(*number, mode, service.canary);
            }
        }
    }

    /// The number of a bucket, once its rules are in force.
    pub(crate) fn bucket(&self, service: usize, bucket: usize) -> Option<u32> {
        self.seats.get(service)?.buckets.get(bucket).copied()
    }

    /// The numbers of each service's rules and buckets.
    pub(crate) fn seats(&self) -> &[Seats] {
        &self.seats
    }

    /// Forgets connections that were idle too long, if it is time to look.
    pub(crate) fn sweep(&mut self, now: Nanos) -> Result<(), Error> {
        if self.swept.is_some_and(|swept| now.since(swept) < SWEEP_PERIOD) {
            return Ok(());
        }
        self.run_sweep(0)?;
        self.swept = Some(now);
        Ok(())
    }

    /// Forgets all connections of these services, bit by bit.
    fn forget(&mut self, services: u32) -> Result<(), Error> {
        if services == 0 { Ok(()) } else { self.run_sweep(services) }
    }

    /// See hook/sweep.bpf.c.
    fn run_sweep(&mut self, missed: u32) -> Result<(), Error> {
        let failed = |source| Error::Run { program: "sweep", source };
        let mut packet = vec![0; SWEEP_AT];
        packet.extend_from_slice(Sweep { missed, ..Sweep::default() }.as_bytes());
        let mut run = TestRun { data: &packet, context: &mut [], repeat: 1 };
        let output = syscall::test_run(self.sweep.as_fd(), &mut run).map_err(failed)?;
        let swept = output.data.get(SWEEP_AT..).and_then(abi::read::<Sweep>);
        let swept = swept.filter(|swept| swept.now_ns != 0);
        let swept = swept.ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?;
        self.followed = swept.kept.into();
        Ok(())
    }

    /// The program that sweeps.
    pub(crate) const fn sweep_program(&self) -> &OwnedFd {
        &self.sweep
    }

    pub(crate) const fn followed(&self) -> Followed {
        Followed { connections: self.followed, limit: self.room }
    }
}

/// Numbers that change hands: nothing is counted, used or limited there.
fn begin_at_zero(
    maps: &Maps,
    limits: &mut Limits,
    (rules, buckets): (&Assigned, &Assigned),
) -> Result<(), Error> {
    for number in &rules.fresh {
        for slot in 0..SLOTS {
            maps.clear_percpu("tg_rule_counts", slot * RULES_MAX as u32 + number)?;
        }
    }
    for number in &buckets.fresh {
        maps.write("tg_buckets", &number.to_ne_bytes(), abi::RequestChain::default().as_bytes())?;
        maps.clear_percpu("tg_bucket_totals", *number)?;
        limits.buckets.reset(*number);
    }
    Ok(())
}

/// Number and identity of those whose number changes hands.
fn holders(assigned: &Assigned, wanted: &[u64]) -> Vec<(u32, u64)> {
    let all = assigned.numbers.iter().copied().zip(wanted.iter().copied());
    all.filter(|(number, _)| assigned.fresh.contains(number)).collect()
}

/// The numbers, service by service; they were assigned in the same order.
fn seats(plan: &Plan, [rules, buckets, texts]: [&Assigned; 3]) -> Vec<Seats> {
    let mut rules = rules.numbers.iter().copied();
    let mut buckets = buckets.numbers.iter().copied();
    let mut texts = texts.numbers.iter().copied();
    let seat = |service: &ServiceConfig| {
        let Some(requests) = &service.requests else {
            return Seats::default();
        };
        Seats {
            rules: rules.by_ref().take(requests.rules.len()).collect(),
            buckets: buckets.by_ref().take(requests.buckets.len()).collect(),
            answer: if requests.sends_503() { texts.next() } else { None },
        }
    };
    plan.config.services.iter().map(seat).collect()
}

/// The tables of the kernel.
struct Kernel<'a> {
    maps: &'a Maps,
    limits: &'a mut Limits,
}

impl Tables for Kernel<'_> {
    fn control(&self) -> Result<RequestControl, Error> {
        self.maps.read("tg_request_control", 0)
    }

    fn keys(&self, table: &'static str) -> Vec<Vec<u8>> {
        self.maps.find(table).map(|map| map.keys().collect()).unwrap_or_default()
    }

    fn write(&mut self, table: &'static str, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.maps.write(table, key, value)
    }

    fn delete(&mut self, table: &'static str, key: &[u8]) -> Result<(), Error> {
        self.maps.get(table)?.delete(key).map_err(Error::map(table))
    }

    /// The kernel lets every packet through before the swap of an inner map returns.
    fn wait(&mut self) -> Result<(), Error> {
        self.limits.swap(self.maps, self.limits.generation())
    }
}

#[cfg(test)]
mod tests;
