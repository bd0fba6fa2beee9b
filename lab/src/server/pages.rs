// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that does not suffice for all requests at once: each needs pages of a file again and again, and the
//! server's cgroup holds those of a few requests. With more in service pages are evicted before they are
//! needed again, and each has to be read from the disk: the server thrashes, also without swap.

use crate::os;
use rustix::fs::{Advice, Mode, OFlags, fadvise, fstatfs, open};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use tidegate_units::Nanos;

/// What is read at once: a miss is one access to the disk.
const PIECE_BYTES: usize = 16 << 10;
/// What is written at once, at the start.
const WRITE_BYTES: usize = 1 << 20;
/// Most bytes of the whole file, and most rounds of a request.
const FILE_BYTES_MAX: u64 = 4 << 30;
const ROUNDS_MAX: u32 = 1_000;

/// What requests read, and the memory for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PagesOptions {
    /// A folder on a disk. The file in it has no name: it is gone with the server.
    pub folder: PathBuf,
    /// Bytes that one request needs; each worker has its own.
    pub bytes: u64,
    /// How many times a request reads them all. Its cost is spent in as many parts, one after each.
    pub rounds: u32,
    /// Bytes that the server's cgroup may have: that of its own, and pages of the file.
    pub memory: u64,
}

/// The file.
pub(crate) struct Pages {
    file: File,
    bytes: u64,
    rounds: u32,
}

impl Pages {
    /// Writes the file: as large as all workers need.
    pub(crate) fn make(options: &PagesOptions, workers: u32) -> io::Result<Self> {
        let PagesOptions { folder, bytes, rounds, .. } = options;
        let whole = bytes.saturating_mul(u64::from(workers));
        let fits = (1..=ROUNDS_MAX).contains(rounds) && (1..=FILE_BYTES_MAX).contains(&whole);
        if !fits {
            return Err(io::Error::other(format!("{whole} bytes of pages, {rounds} rounds")));
        }
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = File::from(open(folder.as_path(), flags, Mode::RUSR | Mode::WUSR)?);
        if os::IN_MEMORY.contains(&fstatfs(&file)?.f_type) {
            return Err(io::Error::other(format!("{}: it is no disk", folder.display())));
        }
        let piece = vec![0x5a; WRITE_BYTES];
        let mut at = 0;
        while at < whole {
            file.write_all_at(&piece, at)?;
            at += piece.len() as u64;
            // Not all of it dirty at once, in little memory.
            file.sync_data()?;
            fadvise(&file, 0, None, Advice::DontNeed)?;
        }
        // Else the kernel would read ahead.
        fadvise(&file, 0, None, Advice::Random)?;
        Ok(Self { file, bytes: *bytes, rounds: *rounds })
    }

    /// Serves a request of a worker: reads its pages, and spends a part of its cost, round by round.
    pub(crate) fn read(&self, worker: u32, cost: Nanos, spend: impl Fn(Nanos)) -> io::Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        let from = self.bytes * u64::from(worker);
        for _ in 0..self.rounds {
            for at in (0..self.bytes).step_by(PIECE_BYTES) {
                let length = PIECE_BYTES.min((self.bytes - at) as usize);
                self.file.read_exact_at(&mut piece[..length], from + at)?;
            }
            spend(Nanos(cost.0 / u64::from(self.rounds)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn options(rounds: u32) -> PagesOptions {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        PagesOptions { folder, bytes: 40_000, rounds, memory: 1 << 20 }
    }

    #[test]
    fn a_request_reads_its_pages_and_spends_its_cost_in_rounds() {
        let pages = Pages::make(&options(5), 3).unwrap();
        let spent = Cell::new((0, Nanos::ZERO));
        let spend = |part| spent.set((spent.get().0 + 1, spent.get().1 + part));
        pages.read(2, Nanos::from_millis(10), spend).unwrap();
        assert_eq!(spent.get(), (5, Nanos::from_millis(10)));
        // Of a worker that there is not.
        assert!(pages.read(40, Nanos::ZERO, |_| {}).is_err());
    }

    #[test]
    fn pages_in_memory_are_none() {
        let folder = PathBuf::from("/dev/shm");
        assert!(Pages::make(&PagesOptions { folder, ..options(5) }, 3).is_err());
        assert!(Pages::make(&options(0), 3).is_err());
    }
}
