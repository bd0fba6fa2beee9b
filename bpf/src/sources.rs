// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of sources (track/source.h), as people and the control loop read it: mapped, so that a
//! look at all places takes no system call each.

use crate::Error;
use crate::abi::{self, Source, SourceSet};
use crate::core::Core;
use libbpf_rs::{MapCore, MapHandle};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::net::Ipv6Addr;
use std::os::fd::AsFd;
use tidegate_model::sources::SourceUse;
use zerocopy::FromBytes;

/// The values of an array that can be mapped, one behind the other.
struct Mapped {
    at: *mut c_void,
    bytes: usize,
    value: usize,
}

impl Mapped {
    fn new(map: &MapHandle, name: &'static str) -> Result<Self, Error> {
        let value = map.value_size() as usize;
        let bytes = value * map.max_entries() as usize;
        // SAFETY: a new mapping, wherever the kernel likes; nothing that exists is touched.
        let at = unsafe {
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, map.as_fd(), 0)
        };
        let failed = |source: rustix::io::Errno| Error::Map {
            map: name.into(),
            source: libbpf_rs::Error::from_raw_os_error(source.raw_os_error()),
        };
        Ok(Self { at: at.map_err(failed)?, bytes, value })
    }

    /// Entries.
    fn len(&self) -> usize {
        self.bytes / self.value
    }

    /// One value, as it is just now: another CPU may change it meanwhile.
    fn read<T: FromBytes>(&self, index: usize) -> Option<T> {
        if index >= self.len() || size_of::<T>() > self.value {
            return None;
        }
        // SAFETY: inside the mapping; values are aligned to 8 bytes, and any bytes are a value.
        Some(unsafe { self.at.cast::<u8>().add(index * self.value).cast::<T>().read_volatile() })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: our own mapping, of which nobody keeps a pointer.
        let _ = unsafe { munmap(self.at, self.bytes) };
    }
}

/// The sources that have connections open.
pub(crate) fn open(core: &Core) -> Result<Vec<SourceUse>, Error> {
    let map = |name: &'static str| Mapped::new(core.maps.get(name)?, name);
    let (sets, sources) = (map("tg_source_sets")?, map("tg_sources")?);
    let services = core.plan.config.services.len();
    let service_of: Vec<u8> = (0..services).map(|service| core.gauge(service)).collect();
    let mut found = Vec::new();
    for set in 0..sets.len() {
        let Some(SourceSet { word }) = sets.read(set) else { break };
        for (way, word) in word.into_iter().enumerate() {
            let open = (word & abi::SOURCE_OPEN) as u32;
            if open == 0 {
                continue;
            }
            let Some(raw) = sources.read::<Source>(set * abi::SOURCE_WAYS + way) else {
                continue;
            };
            let Some(service) = service_of.iter().position(|gauge| *gauge == raw.gauge) else {
                continue;
            };
            found.push(used(&raw, service, open));
        }
    }
    Ok(found)
}

fn used(raw: &Source, service: usize, open: u32) -> SourceUse {
    SourceUse {
        service,
        source: SourceUse::of(Ipv6Addr::from(raw.addr).into()),
        open,
        held: u32::try_from(raw.held).unwrap_or(0),
        peak: raw.peak,
        good: raw.good,
        bad: raw.bad,
        exchanges: raw.exchanges,
    }
}
