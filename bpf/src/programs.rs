// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loaded programs, pinned by what they are made of.
//!
//! To load the hooks takes some 0.6 s of CPU time, nearly all of it in the kernel's verifier. After
//! a crash, and at an upgrade, that time is taken from a server that is overloaded. A program that is
//! made of the same object, the same settings and the same maps is the same program, and the one
//! that an earlier process has loaded is still there: it is used again.
//!
//! A hook uses it again only where it is at work. The settings hold when a program was loaded, and the
//! hook counts from there since when it has seen every handshake (syn/late.h).

use crate::abi::Settings;
use crate::maps::Maps;
use crate::mount::OUR_PREFIX;
use crate::objects::{self, Load};
use crate::{Error, attach, pins, syscall};
use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use zerocopy::IntoBytes;

/// Where programs are pinned: beside the versions of the maps.
pub(crate) fn directory(pins: &Path) -> PathBuf {
    pins.join("programs")
}

/// The maps that a program uses whose name begins as ours do; `None`: another's, or one that is gone.
pub(crate) fn maps_of_ours(id: u32) -> io::Result<Option<Vec<u32>>> {
    let program = match syscall::program_by_id(id) {
        Ok(program) => program,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if !syscall::program_info(program.as_fd())?.name.starts_with(OUR_PREFIX) {
        return Ok(None);
    }
    syscall::program_maps(program.as_fd()).map(Some)
}

/// Who runs a program.
pub(crate) enum Runs<'a> {
    /// Whoever has its descriptor.
    Us,
    /// A hook of this name, and the number of the program that is at work there.
    Hook(&'a str, Option<u32>),
}

/// The program of an object over these maps: the one that is pinned at `pins`, or a new one, which
/// is pinned there.
pub(crate) fn load(
    pins: Option<&Path>,
    maps: &Maps,
    load: &Load<'_>,
    runs: &Runs<'_>,
) -> Result<OwnedFd, Error> {
    let Some(pins) = pins else { return objects::load(maps, load) };
    let (whose, running) = match runs {
        Runs::Us => (load.object, None),
        Runs::Hook(whose, running) => (*whose, Some(*running)),
    };
    let path = directory(pins).join(format!("{whose}_{:016x}", identity(maps, load)?));
    if let Some(program) = open(&path).ok().filter(|program| is_at_work(program, running)) {
        tracing::debug!(object = load.object, "the program of before is used again");
        return Ok(program);
    }
    attach::remove_pin(&path);
    let program = objects::load(maps, load)?;
    // Without the pin the next start takes longer: no reason to give up this one.
    let pinned =
        fs::create_dir_all(directory(pins)).and_then(|()| syscall::pin(program.as_fd(), &path));
    if let Err(error) = pinned {
        tracing::warn!(path = %pins::shown(&path).display(), %error, "a program is not pinned");
    }
    Ok(program)
}

/// Removes the pins of programs that are not among `used`.
pub(crate) fn remove_others<'a>(pins: &Path, used: impl Iterator<Item = &'a OwnedFd>) {
    let Ok(entries) = fs::read_dir(directory(pins)) else { return };
    let id = |program: &OwnedFd| Some(syscall::program_info(program.as_fd()).ok()?.id);
    let used: BTreeSet<u32> = used.filter_map(id).collect();
    for path in entries.flatten().map(|entry| entry.path()) {
        let pinned = open(&path).ok().and_then(|program| id(&program));
        if pinned.is_none_or(|id| !used.contains(&id)) {
            attach::remove_pin(&path);
        }
    }
}

/// Whether it is the one that has to run, if one has to.
fn is_at_work(program: &OwnedFd, running: Option<Option<u32>>) -> bool {
    let Some(running) = running else { return true };
    let id = syscall::program_info(program.as_fd()).ok().map(|info| info.id);
    running.is_some() && id == running
}

/// What is pinned there, if it is a program of ours.
fn open(path: &Path) -> io::Result<OwnedFd> {
    let program = syscall::open_pin(path)?;
    // Fails for what is no program.
    let info = syscall::program_info(program.as_fd())?;
    if !info.name.starts_with(OUR_PREFIX) {
        return Err(io::Error::other(format!("the program {} is not ours", info.name)));
    }
    Ok(program)
}

/// What a program is made of. The numbers of maps are given away once in a boot, and pins do not outlive
/// it.
fn identity(maps: &Maps, load: &Load<'_>) -> Result<u64, Error> {
    // The first load says since when the hook is there.
    let settings = Settings { loaded_ns: 0, ..load.settings };
    let mut hasher = DefaultHasher::new();
    load.bytes.hash(&mut hasher);
    settings.as_bytes().hash(&mut hasher);
    load.attach_type.as_ref().map(std::mem::discriminant).hash(&mut hasher);
    maps.ids()?.hash(&mut hasher);
    Ok(hasher.finish())
}
