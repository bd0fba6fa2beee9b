// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The BPF filesystem under the pins: found, mounted where it belongs, or an error that says so.

use crate::{Error, maps};
use rustix::mount::MountFlags;
use std::io;
use std::path::{Path, PathBuf};

/// `BPF_FS_MAGIC`.
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
/// Where the BPF filesystem belongs; the only place where it is mounted for the operator.
const MOUNT_POINT: &str = "/sys/fs/bpf";
/// What is mounted.
const MOUNTS: &str = "/proc/self/mounts";
/// Pins of a dataplane lie at most so many directories below a mount, and so many are looked at.
const DEPTH_MAX: u32 = 3;
const DIRECTORIES_MAX: usize = 4096;
/// Where a process reaches by descriptor what it has open.
const DESCRIPTORS: &str = "/proc/self/fd";

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

/// A path as people know it. A process that became another user reaches its pins by a descriptor
/// (`/proc/self/fd/N`), which says nothing to anybody else.
#[must_use]
pub fn shown(path: &Path) -> PathBuf {
    let Ok(below) = path.strip_prefix(DESCRIPTORS) else { return path.to_path_buf() };
    let mut names = below.components();
    let named = names.next().and_then(|number| {
        std::fs::read_link(Path::new(DESCRIPTORS).join(number.as_os_str())).ok()
    });
    // `join` of nothing would leave a slash at the end.
    match named {
        Some(named) if names.as_path().as_os_str().is_empty() => named,
        Some(named) => named.join(names.as_path()),
        None => path.to_path_buf(),
    }
}

/// Directories with pins of any version of tidegate, on every BPF filesystem that is mounted.
pub(crate) fn all() -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string(MOUNTS).unwrap_or_default();
    let mut found = Vec::new();
    let mut open: Vec<(PathBuf, u32)> = bpf_mounts(&mounts).map(|path| (path, 0)).collect();
    let mut looked = 0;
    while let Some((directory, depth)) = open.pop() {
        looked += 1;
        if looked > DIRECTORIES_MAX {
            break;
        }
        if !maps::versions(&directory).is_empty() {
            found.push(directory);
        } else if depth < DEPTH_MAX {
            let entries = std::fs::read_dir(&directory).into_iter().flatten().flatten();
            let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            open.extend(below.map(|entry| (entry.path(), depth + 1)));
        }
    }
    found.sort();
    found.dedup();
    found
}

/// The BPF filesystems in a table of mounts (fstab(5)); one whose path has a space or a backslash is not
/// looked for.
fn bpf_mounts(table: &str) -> impl Iterator<Item = PathBuf> {
    table.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind) = (fields.next()?, fields.next()?);
        (kind == "bpf" && !path.contains('\\')).then(|| path.into())
    })
}

/// Whether the nearest directory that exists is on a BPF filesystem.
fn is_bpf(path: &Path) -> io::Result<bool> {
    let existing = path.ancestors().find(|path| path.exists());
    let Some(existing) = existing else {
        return Ok(false);
    };
    Ok(rustix::fs::statfs(existing)?.f_type as u64 == BPF_FS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn bpf_filesystems_are_found_in_the_table_of_mounts() {
        let table = "proc /proc proc rw 0 0\nbpf /sys/fs/bpf bpf rw,mode=700 0 0\n\
                     none /srv/a\\040b bpf rw 0 0\nbpf /tmp/bpf tmpfs rw 0 0\nbroken\nbpf /x bpf rw 0 0\n";
        let found: Vec<PathBuf> = bpf_mounts(table).collect();
        assert_eq!(found, [Path::new("/sys/fs/bpf"), Path::new("/x")]);
    }

    #[test]
    fn what_is_reached_by_a_descriptor_is_shown_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let open = std::fs::File::open(dir.path()).unwrap();
        let reached = Path::new(DESCRIPTORS).join(open.as_raw_fd().to_string());
        assert_eq!(shown(&reached), dir.path());
        assert_eq!(shown(&reached.join("links/1_2")), dir.path().join("links/1_2"));
        let error =
            Error::Pins { path: reached.join("links"), source: io::ErrorKind::NotFound.into() };
        let begin = format!("pins at {}/links: ", dir.path().display());
        assert!(error.to_string().starts_with(&begin), "{error}");
        drop(open);
        for other in ["/sys/fs/bpf/tidegate", "/proc/self/fd/none", "/proc/self/fd"] {
            assert_eq!(shown(Path::new(other)), Path::new(other));
        }
    }
}
