// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limits in force: of services and of request buckets, swapped as one generation.

use crate::abi::{self, LimitsHead, Plain};
use crate::abi_request::BUCKETS_MAX;
use crate::bucket_limits::BucketLimits;
use crate::maps::Maps;
use crate::swapped::Swapped;
use crate::{Error, Plan, action_of};
use tidegate_model::{Mode, SERVICES_MAX};
use tidegate_policy::{Action, InFlight, MinRate, Params};

/// Rows: services, then buckets, then the generation.
const HEAD: usize = SERVICES_MAX + BUCKETS_MAX;
const ROWS: usize = HEAD + 1;

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
}

impl ServiceParams {
    /// The limits of the policy, and no others.
    #[must_use]
    pub const fn new(service: usize, params: Params) -> Self {
        Self {
            service,
            params,
            waiting_max: None,
            accept_queue_max_q10: 0,
            source_max: None,
            min_rate: None,
        }
    }
}

/// One entry as the kernel has it.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    head: LimitsHeadFields,
    params: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct LimitsHeadFields {
    flags: u32,
    accept_queue_max_q10: u32,
    in_flight: [u32; 5],
    source_max: u32,
    min_rate_us: u32,
}

/// See [`Limits::decided`].
pub(crate) struct Decided(Vec<Entry>, BucketLimits);

/// What is in force.
#[derive(Debug)]
pub(crate) struct Limits {
    generation: u64,
    entries: Vec<Entry>,
    pub(crate) buckets: BucketLimits,
    swapped: Swapped,
}

impl Limits {
    /// Takes over the limits that are in force, or starts with none. What the limit in flight says of the
    /// silent, and its lower level, were of a moment that is over.
    pub(crate) fn adopt(maps: &Maps) -> Result<Self, Error> {
        let swapped = Swapped::adopt(maps, "tg_limits", (abi::LIMITS_SIZE, ROWS))?;
        let rows = swapped.read()?;
        let generation = rows.get(HEAD).and_then(|row| row.first_chunk().copied());
        let none = Entry { head: LimitsHeadFields::default(), params: Vec::new() };
        let mut limits = Self {
            generation: generation.map_or(0, u64::from_ne_bytes),
            entries: vec![none; SERVICES_MAX],
            buckets: BucketLimits::read(rows.get(SERVICES_MAX..HEAD).unwrap_or_default()),
            swapped,
        };
        for (value, entry) in rows.iter().zip(&mut limits.entries) {
            let Some(head) = LimitsHead::read(value) else { continue };
            entry.head = LimitsHeadFields {
                flags: head.flags,
                accept_queue_max_q10: head.accept_queue_max_q10,
                in_flight: [head.in_flight[0], 0, 0, 0, 0],
                source_max: head.source_max,
                min_rate_us: head.min_rate_us,
            };
            entry.params = value[size_of::<LimitsHead>()..].to_vec();
        }
        Ok(limits)
    }

    /// Generation of the limits in force.
    pub(crate) const fn generation(&self) -> u64 {
        self.generation
    }

    /// Number of the policy that an index had; `None` if nothing was set.
    pub(crate) fn policy(&self, index: usize) -> Option<u32> {
        let bytes = self.entries.get(index)?.params.get(..4)?;
        bytes.try_into().ok().map(u32::from_ne_bytes)
    }

    /// Forgets the limits of an index: everything is admitted there until some are set.
    pub(crate) fn reset(&mut self, index: usize, params: &Params) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.params = params.as_bytes().to_vec();
            entry.head = LimitsHeadFields::default();
        }
    }

    /// The same, but it stays with what is done with the refused.
    pub(crate) fn forget(&mut self, index: usize, params: &Params) {
        let flags = self.entries.get(index).map_or(0, |entry| entry.head.flags);
        self.reset(index, params);
        if let Some(entry) = self.entries.get_mut(index) {
            entry.head.flags = flags;
        }
    }

    /// Takes shadow and action from the plan.
    pub(crate) fn follow(&mut self, plan: &Plan) {
        for (service, entry) in plan.config.services.iter().zip(&mut self.entries) {
            let action = match action_of(&service.policy) {
                Action::Drop => 0,
                Action::Reject => abi::LIMITS_REJECT,
                Action::Auto => abi::LIMITS_REJECT | abi::LIMITS_AUTO,
            };
            entry.head.flags =
                if service.mode == Mode::Shadow { abi::LIMITS_SHADOW } else { 0 } | action;
        }
    }

    /// Changes shadow of one index.
    pub(crate) fn shadow(&mut self, index: usize, shadow: bool) {
        if let Some(entry) = self.entries.get_mut(index) {
            entry.head.flags &= !abi::LIMITS_SHADOW;
            entry.head.flags |= if shadow { abi::LIMITS_SHADOW } else { 0 };
        }
    }

    /// Takes what the control loop decided.
    pub(crate) fn set(&mut self, service: &ServiceParams) {
        if let Some(entry) = self.entries.get_mut(service.service) {
            entry.params = service.params.as_bytes().to_vec();
            entry.head.accept_queue_max_q10 = service.accept_queue_max_q10;
            let InFlight { max, low, rest, silent, asks } = service.waiting_max.unwrap_or_default();
            entry.head.in_flight = [max, low, rest, silent, asks];
            entry.head.source_max = service.source_max.map_or(0, |max| max.max(1));
            entry.head.min_rate_us = service.min_rate.map_or(0, MinRate::interval_us);
        }
    }

    /// All that is decided, to be restored if it cannot be changed.
    pub(crate) fn decided(&self) -> Decided {
        Decided(self.entries.clone(), self.buckets.clone())
    }

    /// See [`Self::decided`].
    pub(crate) fn restore(&mut self, before: Decided) {
        Decided(self.entries, self.buckets) = before;
    }

    /// Writes everything and puts it in force at once. Returns when no packet reads what was in force
    /// before.
    pub(crate) fn swap(&mut self, maps: &Maps, generation: u64) -> Result<(), Error> {
        let service = |entry: &Entry| {
            let head = LimitsHead {
                flags: entry.head.flags,
                accept_queue_max_q10: entry.head.accept_queue_max_q10,
                in_flight: entry.head.in_flight,
                source_max: entry.head.source_max,
                min_rate_us: entry.head.min_rate_us,
                pad: [0; 3],
            };
            [head.bytes(), &entry.params].concat()
        };
        let rows = self.entries.iter().map(service).chain(self.buckets.rows());
        let rows = rows.chain(std::iter::once(generation.to_ne_bytes().to_vec()));
        self.swapped.swap(maps, rows)?;
        self.generation = generation;
        Ok(())
    }
}
