// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limits in force: two inner maps, one in the outer map's only slot, the other to be filled
//! and swapped in. The kernel waits for the packets that read the old one before the swap returns.

use crate::abi::{self, LimitsHead, Plain};
use crate::maps::Maps;
use crate::{Error, Plan};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use std::os::fd::{AsFd, AsRawFd};
use tidegate_model::SERVICES_MAX;
use tidegate_policy::{Action, Params};

/// What the control loop decided for one service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceParams {
    /// Index of the service in the plan.
    pub service: usize,
    /// Parameters of its policy.
    pub params: Params,
    /// Most connections that may wait for an answer; `None`: no limit.
    pub waiting_max: Option<u64>,
    /// Refuse while the accept queue is at this share of its limit or above, in 1/1024; 0: never.
    pub accept_queue_max_q10: u32,
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
    waiting_max: u64,
}

/// Both inner maps and what is in force.
#[derive(Debug)]
pub(crate) struct Limits {
    generation: u64,
    entries: Vec<Entry>,
    spare: MapHandle,
    active: Option<MapHandle>,
}

impl Limits {
    /// Takes over the limits that are in force, or starts with none.
    pub(crate) fn adopt(maps: &Maps) -> Result<Self, Error> {
        let outer = maps.get("tg_limits")?;
        let id =
            outer.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).map_err(Error::map("tg_limits"))?;
        let id = id.and_then(|id| id.try_into().ok()).map(u32::from_ne_bytes);
        let active = id.and_then(|id| MapHandle::from_map_id(id).ok());
        let mut limits = Self {
            generation: 0,
            entries: vec![
                Entry { head: LimitsHeadFields::default(), params: Vec::new() };
                SERVICES_MAX
            ],
            spare: inner()?,
            active: None,
        };
        if let Some(active) = active {
            limits.read(&active)?;
            limits.active = Some(active);
        }
        Ok(limits)
    }

    fn read(&mut self, map: &MapHandle) -> Result<(), Error> {
        for (index, entry) in (0_u32..).zip(&mut self.entries) {
            let value = map.lookup(&index.to_ne_bytes(), MapFlags::ANY);
            let Some(value) = value.map_err(Error::map("limits"))? else { continue };
            let Some(head) = LimitsHead::read(&value) else { continue };
            self.generation = self.generation.max(head.generation);
            entry.head = LimitsHeadFields {
                flags: head.flags,
                accept_queue_max_q10: head.accept_queue_max_q10,
                waiting_max: head.waiting_max,
            };
            entry.params = value[size_of::<LimitsHead>()..].to_vec();
        }
        Ok(())
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

    /// Takes shadow and action from the plan.
    pub(crate) fn follow(&mut self, plan: &Plan) {
        for (service, entry) in plan.services.iter().zip(&mut self.entries) {
            let reject = if service.action == Action::Reject { abi::LIMITS_REJECT } else { 0 };
            entry.head.flags = if service.shadow { abi::LIMITS_SHADOW } else { 0 } | reject;
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
            entry.head.waiting_max =
                service.waiting_max.map_or(0, |max| max.clamp(1, i64::MAX as u64));
        }
    }

    /// Writes all entries and puts them in force at once.
    pub(crate) fn swap(&mut self, maps: &Maps, generation: u64) -> Result<(), Error> {
        for (index, entry) in (0_u32..).zip(&self.entries) {
            let head = LimitsHead {
                generation,
                flags: entry.head.flags,
                accept_queue_max_q10: entry.head.accept_queue_max_q10,
                waiting_max: entry.head.waiting_max,
            };
            let mut value = head.bytes().to_vec();
            value.extend_from_slice(&entry.params);
            value.resize(abi::LIMITS_SIZE, 0);
            let written = self.spare.update(&index.to_ne_bytes(), &value, MapFlags::ANY);
            written.map_err(Error::map("limits"))?;
        }
        let fd = self.spare.as_fd().as_raw_fd().to_ne_bytes();
        maps.write("tg_limits", &0_u32.to_ne_bytes(), &fd)?;
        let next = match self.active.take() {
            Some(active) => active,
            None => inner()?,
        };
        self.active = Some(std::mem::replace(&mut self.spare, next));
        self.generation = generation;
        Ok(())
    }
}

fn inner() -> Result<MapHandle, Error> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    let size = abi::LIMITS_SIZE as u32;
    MapHandle::create(MapType::Array, Some("tg_limits"), 4, size, SERVICES_MAX as u32, &options)
        .map_err(Error::map("limits"))
}
