// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kill switch without a daemon: on the map that is pinned.

use crate::abi::{Control, Plain};
use crate::{Error, maps};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::path::Path;

/// While released, everything passes, whoever runs or does not run; a daemon that starts later
/// leaves it as it is.
///
/// # Errors
/// When nothing of this version is pinned at `pins`, or the map cannot be written.
pub fn release(pins: &Path, released: bool) -> Result<(), Error> {
    let name = "tg_control";
    let path = maps::directory(pins).join(name);
    if !path.exists() {
        let source =
            std::io::Error::new(std::io::ErrorKind::NotFound, "no dataplane is pinned here");
        return Err(Error::Pins { path, source });
    }
    let map = MapHandle::from_pinned_path(&path).map_err(Error::map(name))?;
    if map.value_size() as usize != size_of::<Control>() {
        return Err(Error::Layout { map: name.into() });
    }
    write(&map, |control| control.released = released.into())
}

/// Changes some fields of the control block. The others are read immediately before the write:
/// whoever else writes at the same time loses as little as a map without a lock allows.
pub(crate) fn write(map: &MapHandle, change: impl FnOnce(&mut Control)) -> Result<(), Error> {
    let name = "tg_control";
    let key = 0_u32.to_ne_bytes();
    let bytes = map.lookup(&key, MapFlags::ANY).map_err(Error::map(name))?;
    let control = bytes.and_then(|bytes| Control::read(&bytes));
    let mut control = control.ok_or_else(|| Error::Layout { map: name.into() })?;
    change(&mut control);
    map.update(&key, control.bytes(), MapFlags::ANY).map_err(Error::map(name))
}
