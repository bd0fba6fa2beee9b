// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A value that is swapped whole: two inner maps of one entry, one in the outer map's only slot, the
//! other to be filled and put in its place. The kernel waits for the packets that read the old one
//! before the swap returns.

use crate::Error;
use crate::maps::Maps;
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle, MapType};
use std::os::fd::{AsFd, AsRawFd};

/// The only entry of each of these maps.
const AT: [u8; 4] = [0; 4];

/// Both inner maps of one outer map.
#[derive(Debug)]
pub(crate) struct Swapped {
    outer: &'static str,
    value_size: u32,
    spare: MapHandle,
    active: Option<MapHandle>,
}

impl Swapped {
    /// Takes over the inner map that is in force, if there is one. To open a map by its number the
    /// kernel wants CAP_SYS_ADMIN: without it there is a warning, and nothing is taken over.
    pub(crate) fn adopt(
        maps: &Maps,
        outer: &'static str,
        value_size: usize,
    ) -> Result<Self, Error> {
        let value_size = value_size as u32;
        let id = maps.get(outer)?.lookup(&AT, MapFlags::ANY).map_err(Error::map(outer))?;
        let id = id.and_then(|id| id.try_into().ok()).map(u32::from_ne_bytes);
        let active = id.map(|id| in_force(outer, id)).transpose()?.flatten();
        let spare = inner(outer, value_size)?;
        Ok(Self { outer, value_size, spare, active })
    }

    /// What is in force; `None` where nothing was set yet.
    pub(crate) fn read(&self) -> Result<Option<Vec<u8>>, Error> {
        let read = |map: &MapHandle| map.lookup(&AT, MapFlags::ANY).map_err(Error::map(self.outer));
        Ok(self.active.as_ref().map(read).transpose()?.flatten())
    }

    /// Puts a value in force, all at once. When it returns, no packet reads what was in force before;
    /// when it fails, what was in force still is.
    pub(crate) fn swap(&mut self, maps: &Maps, value: &[u8]) -> Result<(), Error> {
        let written = self.spare.update(&AT, value, MapFlags::ANY);
        written.map_err(Error::map(self.outer))?;
        let fd = self.spare.as_fd().as_raw_fd().to_ne_bytes();
        maps.write(self.outer, &AT, &fd)?;
        let next = match self.active.take() {
            Some(active) => active,
            None => inner(self.outer, self.value_size)?,
        };
        self.active = Some(std::mem::replace(&mut self.spare, next));
        Ok(())
    }
}

/// Opens the inner map that is in force. A daemon that may not begins without it: what its
/// predecessor decided is lost, and protection is not.
fn in_force(outer: &str, id: u32) -> Result<Option<MapHandle>, Error> {
    match MapHandle::from_map_id(id) {
        Ok(map) => Ok(Some(map)),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            tracing::warn!(
                map = outer,
                "what is in force cannot be taken over without CAP_SYS_ADMIN ({error}): begins anew, \
                 without limits and with other numbers; give the daemon this capability for its start"
            );
            Ok(None)
        }
        Err(error) => Err(Error::map(outer)(error)),
    }
}

fn inner(outer: &str, value_size: u32) -> Result<MapHandle, Error> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // The kernel takes names of 15 bytes.
    let name = outer.get(..15).unwrap_or(outer);
    MapHandle::create(MapType::Array, Some(name), 4, value_size, 1, &options)
        .map_err(Error::map(outer))
}
