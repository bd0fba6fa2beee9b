// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maps whose values are read where they lie: a look at many takes no system call each.

use crate::Error;
use libbpf_rs::{MapCore, MapHandle};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::os::fd::AsFd;
use zerocopy::FromBytes;

/// The values of an array that can be mapped, one behind the other.
#[derive(Debug)]
pub(crate) struct Mapped {
    at: *mut c_void,
    bytes: usize,
    value: usize,
}

impl Mapped {
    pub(crate) fn new(map: &MapHandle, name: &'static str) -> Result<Self, Error> {
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
    pub(crate) const fn len(&self) -> usize {
        self.bytes / self.value
    }

    /// One value, as it is just now: another CPU may change it meanwhile.
    pub(crate) fn read<T: FromBytes>(&self, index: usize) -> Option<T> {
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
