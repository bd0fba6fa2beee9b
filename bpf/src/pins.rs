// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The BPF filesystem under the pins: found, mounted where it belongs, or an error that says so.

use crate::Error;
use rustix::mount::MountFlags;
use std::io;
use std::path::Path;

/// `BPF_FS_MAGIC`.
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
/// Where the BPF filesystem belongs; the only place where it is mounted for the operator.
const MOUNT_POINT: &str = "/sys/fs/bpf";

/// Makes sure that `pins` lies on a BPF filesystem: mounts one where it belongs and none is.
///
/// # Errors
/// [`Error::Pins`] says what is in the way.
pub fn prepare(pins: &Path) -> Result<(), Error> {
    let failed = |source: io::Error| Error::Pins { path: pins.to_path_buf(), source };
    if is_bpf(pins).map_err(failed)? {
        return Ok(());
    }
    if pins.starts_with(MOUNT_POINT) {
        rustix::mount::mount("bpf", MOUNT_POINT, "bpf", MountFlags::empty(), c"mode=0700")
            .map_err(|error| failed(error.into()))?;
        if is_bpf(pins).map_err(failed)? {
            return Ok(());
        }
    }
    let text = format!("not on a BPF filesystem; mount one: mount -t bpf bpf {MOUNT_POINT}");
    Err(failed(io::Error::new(io::ErrorKind::Unsupported, text)))
}

/// Whether the nearest directory that exists is on a BPF filesystem.
fn is_bpf(path: &Path) -> io::Result<bool> {
    let existing = path.ancestors().find(|path| path.exists());
    let Some(existing) = existing else {
        return Ok(false);
    };
    Ok(rustix::fs::statfs(existing)?.f_type as u64 == BPF_FS_MAGIC)
}
