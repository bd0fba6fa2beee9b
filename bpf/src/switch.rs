// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kill switch without a daemon: on the map that is pinned, by whatever version.

use crate::abi::Control;
use crate::{Error, abi, maps};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::path::{Path, PathBuf};
use zerocopy::IntoBytes;

/// The map, and where the switch stands in it: there it is in every version of the ABI.
const CONTROL: &str = "tg_control";
const RELEASED_AT: usize = 4;
const _: () = assert!(std::mem::offset_of!(Control, released) == RELEASED_AT);
/// What an operator's switch says; a clean stop says something else.
const OPERATOR: u32 = 1;

/// While released, everything passes, whoever runs or does not run; a daemon that starts later
/// leaves it as it is, also one of another version.
///
/// # Errors
/// When nothing is pinned at `pins`, or a map cannot be written.
pub fn release(pins: &Path, released: bool) -> Result<(), Error> {
    let found = pinned(pins);
    if found.is_empty() {
        let source =
            std::io::Error::new(std::io::ErrorKind::NotFound, "no dataplane is pinned here");
        return Err(Error::Pins { path: maps::directory(pins).join(CONTROL), source });
    }
    for path in found {
        let map = MapHandle::from_pinned_path(&path).map_err(Error::map(CONTROL))?;
        let mut control = read(&map)?;
        control[RELEASED_AT..RELEASED_AT + 4].copy_from_slice(&u32::from(released).to_ne_bytes());
        let key = 0_u32.to_ne_bytes();
        map.update(&key, &control, MapFlags::ANY).map_err(Error::map(CONTROL))?;
    }
    Ok(())
}

/// Whether an operator has thrown the switch of what is pinned at `pins`: of the newest version
/// that is there. What cannot be read says nothing.
pub(crate) fn thrown(pins: &Path) -> bool {
    let newest = pinned(pins).into_iter().rev().find_map(|path| {
        let control = read(&MapHandle::from_pinned_path(path).ok()?).ok()?;
        Some(u32::from_ne_bytes(*control.get(RELEASED_AT..)?.first_chunk()?))
    });
    newest == Some(OPERATOR)
}

/// The control blocks that are pinned, the newest version last.
fn pinned(pins: &Path) -> Vec<PathBuf> {
    let paths = maps::versions(pins).into_iter().map(|version| version.join(CONTROL));
    paths.filter(|path| path.exists()).collect()
}

/// The bytes of a control block of any version.
fn read(map: &MapHandle) -> Result<Vec<u8>, Error> {
    let bytes = map.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).map_err(Error::map(CONTROL))?;
    let long = bytes.filter(|bytes| bytes.len() >= RELEASED_AT + 4);
    long.ok_or_else(|| Error::Layout { map: CONTROL.into() })
}

/// Changes some fields of the control block. The others are read immediately before the write:
/// whoever else writes at the same time loses as little as a map without a lock allows.
pub(crate) fn write(map: &MapHandle, change: impl FnOnce(&mut Control)) -> Result<(), Error> {
    let control = abi::read::<Control>(&read(map)?);
    let mut control = control.ok_or_else(|| Error::Layout { map: CONTROL.into() })?;
    change(&mut control);
    let key = 0_u32.to_ne_bytes();
    map.update(&key, control.as_bytes(), MapFlags::ANY).map_err(Error::map(CONTROL))
}
