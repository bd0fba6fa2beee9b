// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limits in force: of services, of request buckets and of datagrams, swapped as one generation.

use crate::abi::{self, LIMITS_DATAGRAMS, LIMITS_HEAD, LIMITS_ROWS};
use crate::bucket_limits::BucketLimits;
use crate::datagrams::DatagramLimits;
use crate::maps::Maps;
use crate::swapped::Swapped;
use crate::{Error, Plan, action_of};
use tidegate_model::{Canary, Mode, SERVICES_MAX};
use tidegate_policy::{DatagramLimit, InFlight, Level, Limits as Chain, MinRate, Params};
use tidegate_units::Nanos;
use zerocopy::IntoBytes;

/// What the control loop decided for one service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceParams {
    /// Index of the service in the plan.
    pub service: usize,
    /// Parameters of its policy.
    pub params: Params,
    /// Most connections that may wait for an answer; `None`: no limit.
    pub waiting_max: Option<InFlight>,
    /// Refuse while the accept queue is at this share of its limit or above, in 1/1024; 0: never.
    pub accept_queue_max_q10: u32,
    /// Connections that a source may hold, silent or slow, before it opens no more; `None`: no
    /// limit.
    pub source_max: Option<u32>,
    /// So many pass the limit in flight and the one on the accept queue, even if they are full; `None`:
    /// nobody does.
    pub min_rate: Option<MinRate>,
    /// What its policy is told of the work that waits.
    pub level: Level,
    /// Copies of SYNs that passed are asked about where nobody has replied to the first.
    pub copies: bool,
    /// When its limits end if nobody says otherwise; `None`: with the lease.
    pub until: Option<Nanos>,
    /// The limit on datagrams to it.
    pub datagrams: DatagramLimit,
}

impl ServiceParams {
    /// The limits of the policy, and no others.
    #[must_use]
    pub fn new(service: usize, params: Params) -> Self {
        Self {
            service,
            params,
            waiting_max: None,
            accept_queue_max_q10: 0,
            source_max: None,
            min_rate: None,
            level: Level::NONE,
            copies: false,
            until: None,
            datagrams: DatagramLimit::default(),
        }
    }

    /// As the chain takes them.
    fn limits(&self) -> Chain {
        let mut limits = Chain::new(self.params);
        limits.accept_queue_max_q10 = self.accept_queue_max_q10;
        limits.in_flight = self.waiting_max.unwrap_or_default();
        limits.source_max = self.source_max.map_or(0, |max| max.max(1));
        limits.set_min_rate(self.min_rate);
        limits.level = self.level;
        limits.set_copies(self.copies);
        limits.set_until(self.until);
        limits
    }
}

/// See [`Limits::decided`].
pub(crate) struct Decided(Vec<Chain>, BucketLimits, DatagramLimits);

/// What is in force.
#[derive(Debug)]
pub(crate) struct Limits {
    generation: u64,
    entries: Vec<Chain>,
    /// Of these, what was ever set.
    known: Vec<bool>,
    pub(crate) buckets: BucketLimits,
    datagrams: DatagramLimits,
    swapped: Swapped,
}

impl Limits {
    /// Takes over the limits that are in force, or starts with none. What the limit in flight says of the
    /// silent, and its lower level, were of a moment that is over.
    pub(crate) fn adopt(maps: &Maps) -> Result<Self, Error> {
        let swapped =
            Swapped::adopt(maps, "tg_limits", (size_of::<abi::LimitsRow>(), LIMITS_ROWS))?;
        let rows = swapped.read()?;
        let generation = rows.get(LIMITS_HEAD).and_then(|row| row.first_chunk().copied());
        let mut limits = Self {
            generation: generation.map_or(0, u64::from_ne_bytes),
            entries: vec![Chain::default(); SERVICES_MAX],
            known: vec![false; SERVICES_MAX],
            buckets: BucketLimits::read(
                rows.get(SERVICES_MAX..LIMITS_DATAGRAMS).unwrap_or_default(),
            ),
            datagrams: DatagramLimits::read(
                rows.get(LIMITS_DATAGRAMS..LIMITS_HEAD).unwrap_or_default(),
            ),
            swapped,
        };
        let entries = limits.entries.iter_mut().zip(&mut limits.known);
        for (value, (entry, known)) in rows.iter().zip(entries) {
            let Some(found) = abi::read::<Chain>(value) else { continue };
            *entry = found;
            let max = found.in_flight.max;
            entry.in_flight = InFlight { max, ..InFlight::default() };
            *known = true;
        }
        Ok(limits)
    }

    /// Generation of the limits in force.
    pub(crate) const fn generation(&self) -> u64 {
        self.generation
    }

    /// Number of the policy that an index had; `None` if nothing was set.
    pub(crate) fn policy(&self, index: usize) -> Option<u32> {
        let known = *self.known.get(index)?;
        self.entries.get(index).filter(|_| known).map(|entry| entry.params.number())
    }

    /// Forgets the limits of an index: everything is admitted there until some are set.
    pub(crate) fn reset(&mut self, index: usize, params: &Params) {
        if let Some(entry) = self.entries.get_mut(index) {
            *entry = Chain::new(*params);
            self.known[index] = true;
        }
        self.datagrams.set(index, DatagramLimit::default());
    }

    /// The same, but it stays with what is done with the refused.
    pub(crate) fn forget(&mut self, index: usize, params: &Params) {
        let before = self.entries.get(index).copied().unwrap_or_default();
        self.reset(index, params);
        if let Some(entry) = self.entries.get_mut(index) {
            *entry = entry.with_mode_of(&before);
        }
    }

    /// Takes shadow and action from the plan.
    pub(crate) fn follow(&mut self, plan: &Plan) {
        for (index, service) in plan.config.services.iter().enumerate() {
            self.datagrams.set_mode(index, service.mode, service.canary);
            let Some(entry) = self.entries.get_mut(index) else { continue };
            entry.set_action(action_of(&service.policy));
            entry.set_shadow(service.mode == Mode::Shadow);
            entry.set_canary(service.canary.share_q16());
        }
    }

    /// Changes whose refusals are executed at one index.
    pub(crate) fn set_mode(&mut self, index: usize, mode: Mode, canary: Canary) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.set_shadow(mode == Mode::Shadow);
            entry.set_canary(canary.share_q16());
        }
        self.datagrams.set_mode(index, mode, canary);
    }

    /// Takes what the control loop decided.
    pub(crate) fn set(&mut self, service: &ServiceParams) {
        let index = service.service;
        if let Some(entry) = self.entries.get_mut(index) {
            *entry = service.limits().with_mode_of(entry);
            self.known[index] = true;
        }
        self.datagrams.set(index, service.datagrams);
    }

    /// All that is decided, to be restored if it cannot be changed.
    pub(crate) fn decided(&self) -> Decided {
        Decided(self.entries.clone(), self.buckets.clone(), self.datagrams.clone())
    }

    /// See [`Self::decided`].
    pub(crate) fn restore(&mut self, before: Decided) {
        Decided(self.entries, self.buckets, self.datagrams) = before;
    }

    /// Writes everything and puts it in force at once. Returns when no packet reads what was in force
    /// before.
    pub(crate) fn swap(&mut self, maps: &Maps, generation: u64) -> Result<(), Error> {
        let services = self.entries.iter().map(|entry| entry.as_bytes().to_vec());
        let rows = services.chain(self.buckets.rows()).chain(self.datagrams.rows());
        let rows = rows.chain(std::iter::once(generation.to_ne_bytes().to_vec()));
        self.swapped.swap(maps, rows)?;
        self.generation = generation;
        Ok(())
    }
}
