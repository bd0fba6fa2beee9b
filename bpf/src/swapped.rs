// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows that are swapped whole: two inner maps, one in the outer map's only slot, the other to be
//! filled and put in its place. The kernel waits for the packets that read the old one before the
//! swap returns.

use crate::Error;
use crate::maps::Maps;
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle, MapType};
use std::os::fd::{AsFd, AsRawFd};

/// The slot of the outer map.
const SLOT: [u8; 4] = [0; 4];

/// Both inner maps of one outer map.
#[derive(Debug)]
pub(crate) struct Swapped {
    outer: &'static str,
    value_size: u32,
    rows: u32,
    spare: MapHandle,
    active: Option<MapHandle>,
}

impl Swapped {
    /// Takes over the inner map that is in force, if there is one. To open a map by its number the
    /// kernel wants CAP_SYS_ADMIN: without it there is a warning, and nothing is taken over.
    pub(crate) fn adopt(
        maps: &Maps,
        outer: &'static str,
        (value_size, rows): (usize, usize),
    ) -> Result<Self, Error> {
        let (value_size, rows) = (value_size as u32, rows as u32);
        let id = maps.get(outer)?.lookup(&SLOT, MapFlags::ANY).map_err(Error::map(outer))?;
        let id = id.and_then(|id| id.try_into().ok()).map(u32::from_ne_bytes);
        let active = id.map(|id| in_force(outer, id)).transpose()?.flatten();
        let spare = inner(outer, (value_size, rows))?;
        Ok(Self { outer, value_size, rows, spare, active })
    }

    /// Whether something is in force: then no map has to be made any more.
    pub(crate) const fn is_in_force(&self) -> bool {
        self.active.is_some()
    }

    /// What is in force, row by row; empty where nothing was set yet.
    pub(crate) fn read(&self) -> Result<Vec<Vec<u8>>, Error> {
        let Some(active) = &self.active else {
            return Ok(Vec::new());
        };
        (0..self.rows)
            .map(|row| {
                let value = active.lookup(&row.to_ne_bytes(), MapFlags::ANY);
                Ok(value.map_err(Error::map(self.outer))?.unwrap_or_default())
            })
            .collect()
    }

    /// Puts rows in force, all at once; those that are too short are filled with zeros. When it
    /// returns, no packet reads what was in force before; when it fails, that still is in force.
    pub(crate) fn swap(
        &mut self,
        maps: &Maps,
        rows: impl Iterator<Item = Vec<u8>>,
    ) -> Result<(), Error> {
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (row, value) in (0..self.rows).zip(rows) {
            keys.extend_from_slice(&row.to_ne_bytes());
            values.extend_from_slice(&value);
            values.resize(keys.len() / 4 * self.value_size as usize, 0);
        }
        let count = (keys.len() / 4) as u32;
        let written = self.spare.update_batch(&keys, &values, count, MapFlags::ANY, MapFlags::ANY);
        written.map_err(Error::map(self.outer))?;
        // Made before: from the write on, what it puts in force is no spare any more.
        let next = match &self.active {
            Some(_) => None,
            None => Some(inner(self.outer, (self.value_size, self.rows))?),
        };
        let fd = self.spare.as_fd().as_raw_fd().to_ne_bytes();
        maps.write(self.outer, &SLOT, &fd)?;
        let Some(next) = self.active.take().or(next) else { return Ok(()) };
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

fn inner(outer: &str, (value_size, rows): (u32, u32)) -> Result<MapHandle, Error> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // The kernel takes names of 15 bytes.
    let name = outer.get(..15).unwrap_or(outer);
    MapHandle::create(MapType::Array, Some(name), 4, value_size, rows, &options)
        .map_err(Error::map(outer))
}
