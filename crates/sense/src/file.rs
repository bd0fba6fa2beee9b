// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A small file of the kernel's that is read again and again through one descriptor.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Most bytes of one file that are looked at: the CPU lines of `/proc/stat` for about 800 CPUs.
pub(crate) const FILE_MAX: usize = 64 * 1024;

/// A path and, once it was opened, its descriptor: kept, because it saves the path walk at every
/// tick and still works after the daemon has dropped its privileges.
#[derive(Debug)]
pub(crate) struct Probe {
    path: PathBuf,
    file: Option<File>,
}

impl Probe {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, file: None }
    }

    /// One that is open already, and that nobody can open by its path: of another namespace.
    pub(crate) fn of(file: File) -> Self {
        Self { path: PathBuf::new(), file: Some(file) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads from the beginning into `buffer`; after an error the file is opened again next time.
    pub(crate) fn read<'b>(&mut self, buffer: &'b mut [u8]) -> io::Result<&'b str> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(File::open(&self.path)?),
        };
        match file.read_at(buffer, 0) {
            Ok(n) => std::str::from_utf8(&buffer[..n])
                .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e)),
            Err(error) => {
                self.file = None;
                Err(error)
            }
        }
    }
}

/// An `InvalidData` error that names the file.
pub(crate) fn malformed(path: &Path, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display()))
}
