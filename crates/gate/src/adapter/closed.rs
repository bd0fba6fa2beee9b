// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What share of its requests nginx is to ask about (see [`crate::asked`]), by names of files.
//!
//! nginx puts each request into one of 256 slots at random, and looks whether there is a file for the slot in this tenth
//! of a second. That costs it a look-up of a name. The directory is beside the socket at which it asks:
//!
//! ```text
//! edge.sock.closed/
//!   from-28/28 29 … ff            the slots that are closed while 0x28 of 256 stay open
//!   1764350000.7 -> from-28       a tenth of a second to come, by nginx's clock
//! ```
//!
//! Names are written only for tenths to come, and only while questions come: they say what time nginx has.
//! So a name is a lease of less than a second, and nobody has to take it back. What was said of a tenth does not
//! change once it has begun; so each question of it has a known share.

use crate::asked::PARTS;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tidegate_config::Endpoint;

/// The values of two hexadecimal digits.
const SLOTS: u32 = 256;
/// Tenths after that of a question for which names are written: the first one no worker of nginx has begun,
/// though their clocks differ by some milliseconds.
const FIRST: u64 = 2;
const LAST: u64 = 8;
/// Tenths that are remembered for questions on their way.
const REMEMBERED: u64 = 30;
/// nginx runs as another user; who may enter the directory of the socket may look here.
const MODE: u32 = 0o755;

/// Where nginx has put a request, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    number: u8,
    tenth: u64,
}

impl Slot {
    /// From the query of a question: `slot=a7&at=1764350000.2`.
    pub(super) fn of(query: &str) -> Option<Self> {
        let (slot, time) = query.strip_prefix("slot=")?.split_once("&at=")?;
        let (second, tenth) = time.split_once('.')?;
        let digits = [second, tenth].iter().all(|text| text.bytes().all(|b| b.is_ascii_digit()));
        let hexadecimal = slot.len() == 2 && slot.bytes().all(|b| b.is_ascii_hexdigit());
        if !digits || !hexadecimal || tenth.len() != 1 {
            return None;
        }
        let seconds = second.parse::<u64>().ok()?.checked_mul(10)?;
        let tenth =
            seconds.checked_add(tenth.parse().ok()?).filter(|tenth| *tenth < u64::MAX / 2)?;
        Some(Self { number: u8::from_str_radix(slot, 16).ok()?, tenth })
    }
}

/// What one gateway has told its nginx.
#[derive(Debug, Default)]
pub(crate) struct Closed {
    /// `None`: nginx cannot look there.
    directory: Option<PathBuf>,
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    /// How many slots stay open in each tenth that has a name.
    open: BTreeMap<u64, u32>,
    /// Directories of slots that are complete.
    made: BTreeSet<u32>,
    /// The latest tenth of a question.
    at: u64,
}

impl Closed {
    /// Of the gateway that listens there; nothing is written yet.
    pub(super) fn beside(endpoint: &Endpoint) -> Self {
        let directory = match endpoint {
            Endpoint::Unix(path) => {
                let mut name = path.clone().into_os_string();
                name.push(".closed");
                Some(name.into())
            }
            Endpoint::Ip(_) => None,
        };
        Self { directory, told: Mutex::default() }
    }

    /// The share by which this request was asked about, of [`PARTS`]; `None`: nginx cannot be told any.
    pub(super) fn share(&self, slot: Slot) -> Option<u32> {
        self.directory.as_ref()?;
        let open = self.told().open.get(&slot.tenth).copied();
        // One that asks though its slot is closed has not looked: it stands for itself.
        let open = open.filter(|open| u32::from(slot.number) < *open).unwrap_or(SLOTS);
        Some(open * PARTS / SLOTS)
    }

    /// In the tenth of this question the gate wants to be asked about so many of [`PARTS`].
    pub(super) fn tell(&self, slot: Slot, parts: u32) {
        if let Some(directory) = &self.directory {
            self.told().follow(directory, slot.tenth, open(parts));
        }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        let Some(directory) = &self.directory else { return };
        let told = self.told.get_mut().unwrap_or_else(PoisonError::into_inner);
        for tenth in told.open.keys() {
            // It ends by itself.
            let _ = fs::remove_file(directory.join(name(*tenth)));
        }
    }
}

impl Told {
    /// Once a tenth. What cannot be written is not told: nginx asks about everything.
    fn follow(&mut self, directory: &Path, tenth: u64, open: u32) {
        let set_back = tenth + LAST < self.at;
        if tenth <= self.at && !set_back {
            return;
        }
        self.at = tenth;
        let useless = |of: &u64| of + REMEMBERED < tenth || *of > tenth + LAST;
        let useless: Vec<u64> = self.open.keys().copied().filter(useless).collect();
        useless.into_iter().for_each(|of| self.remove(directory, of));
        for of in tenth + FIRST..=tenth + LAST {
            if open == SLOTS {
                self.remove(directory, of);
            } else if self.open.get(&of) != Some(&open) && self.write(directory, (of, open)).is_ok()
            {
                self.open.insert(of, open);
            }
        }
    }

    fn write(&mut self, directory: &Path, (tenth, open): (u64, u32)) -> io::Result<()> {
        if !self.made.contains(&open) {
            make(directory, open)?;
            self.made.insert(open);
        }
        let new = directory.join("new");
        let _ = fs::remove_file(&new);
        symlink(level(open), &new)?;
        fs::rename(&new, directory.join(name(tenth)))
    }

    fn remove(&mut self, directory: &Path, tenth: u64) {
        if !self.open.contains_key(&tenth) {
            return;
        }
        let removed = fs::remove_file(directory.join(name(tenth)));
        let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        if removed.as_ref().err().is_none_or(gone) {
            self.open.remove(&tenth);
        }
    }
}

/// How many slots stay open: at least as many as the share says, with the precision of four bits, so that
/// there are few directories.
fn open(parts: u32) -> u32 {
    let open = (parts.min(PARTS) * SLOTS).div_ceil(PARTS).max(1);
    let step = 1 << (open - 1).checked_ilog2().unwrap_or(0).saturating_sub(3);
    open.div_ceil(step) * step
}

/// As nginx writes it.
fn name(tenth: u64) -> String {
    format!("{}.{}", tenth / 10, tenth % 10)
}

fn level(open: u32) -> String {
    format!("from-{open:02x}")
}

/// The directory of the slots from this one on.
fn make(directory: &Path, open: u32) -> io::Result<()> {
    let level = directory.join(level(open));
    for path in [directory, level.as_path()] {
        match fs::create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => fs::set_permissions(path, Permissions::from_mode(MODE))?,
        }
    }
    (open..SLOTS).try_for_each(|slot| File::create(level.join(format!("{slot:02x}"))).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(number: u8, tenth: u64) -> Slot {
        Slot { number, tenth }
    }

    #[test]
    fn a_slot_has_two_digits_and_a_time() {
        assert_eq!(Slot::of("slot=a7&at=1764350000.2"), Some(slot(0xa7, 17_643_500_002)));
        assert_eq!(Slot::of("slot=00&at=0.0"), Some(slot(0, 0)));
        for (number, time) in [
            ("", ""),
            ("", "1.2"),
            ("7", "1.2"),
            ("0a7", "1.2"),
            ("g0", "1.2"),
            ("+7", "1.2"),
            ("a7", ""),
            ("a7", "1"),
            ("a7", "1."),
            ("a7", "1.25"),
            ("a7", ".2"),
            ("a7", "-1.2"),
            ("a7", "1.-2"),
            ("a7", "1.2&at=1.2"),
            ("a7", "1844674407370955161.6"),
            ("a7", "99999999999999999999.2"),
        ] {
            let query = format!("slot={number}&at={time}");
            assert_eq!(Slot::of(&query), None, "{query}");
        }
        assert_eq!(Slot::of("at=1.2&slot=a7"), None);
    }

    #[test]
    fn enough_slots_stay_open() {
        let known =
            [(PARTS, 256), (9_999, 256), (5_000, 128), (1_500, 40), (640, 18), (100, 3), (0, 1)];
        for (parts, wanted) in known {
            assert_eq!(open(parts), wanted, "{parts}");
        }
        for parts in 1..=PARTS {
            let (open, exact) = (open(parts), f64::from(parts * SLOTS) / f64::from(PARTS));
            let most = (exact * 1.125).max(exact + 1.0);
            assert!((exact..=most).contains(&f64::from(open)), "{parts}: {open} of {exact}");
        }
        assert!((0..=PARTS).map(open).collect::<BTreeSet<_>>().len() <= 48);
    }

    /// What nginx sees: is this slot closed in this tenth?
    fn is_closed(closed: &Closed, of: Slot) -> bool {
        let directory = closed.directory.as_ref().unwrap();
        directory.join(name(of.tenth)).join(format!("{:02x}", of.number)).exists()
    }

    fn world() -> (tempfile::TempDir, Closed) {
        let dir = tempfile::tempdir().unwrap();
        let closed = Closed::beside(&Endpoint::Unix(dir.path().join("edge.sock")));
        (dir, closed)
    }

    const T: u64 = 17_643_500_000;

    #[test]
    fn a_share_holds_for_tenths_to_come_and_then_no_more() {
        let (dir, closed) = world();
        closed.tell(slot(0, T), PARTS);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is written while calm");
        closed.tell(slot(0, T + 1), PARTS / 2);
        for tenth in T..T + 20 {
            let told = (T + 3..=T + 9).contains(&tenth);
            assert_eq!(is_closed(&closed, slot(128, tenth)), told, "{tenth}");
            assert!(!is_closed(&closed, slot(127, tenth)), "{tenth}");
            let share = if told { PARTS / 2 } else { PARTS };
            assert_eq!(closed.share(slot(127, tenth)), Some(share), "{tenth}");
            assert_eq!(closed.share(slot(128, tenth)), Some(PARTS), "it has not looked");
        }
        // In the same tenth nothing changes, and what has begun stays.
        closed.tell(slot(0, T + 1), PARTS);
        assert!(is_closed(&closed, slot(128, T + 3)));
        closed.tell(slot(0, T + 3), PARTS);
        let still = |tenth| is_closed(&closed, slot(128, tenth));
        assert_eq!([T + 4, T + 5, T + 9].map(still), [true, false, false]);
        assert_eq!(closed.share(slot(0, T + 4)), Some(PARTS / 2));
        assert_eq!(closed.share(slot(0, T + 5)), Some(PARTS));
    }

    #[test]
    fn names_are_bounded_and_end_with_the_gateway() {
        let (dir, closed) = world();
        let directory = dir.path().join("edge.sock.closed");
        let names = || {
            let entries = fs::read_dir(&directory).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.filter(|name| !name.starts_with("from-")).count()
        };
        for tenth in T..T + 500 {
            closed.tell(slot(0, tenth), 100 + (tenth % 50) as u32 * 100);
            assert!(names() as u64 <= REMEMBERED + LAST + 1, "{}", names());
        }
        // The clock is set back: what was said for later holds no more.
        closed.tell(slot(0, T), PARTS / 2);
        assert_eq!(names() as u64, LAST - FIRST + 1);
        assert!(is_closed(&closed, slot(255, T + 2)));
        drop(closed);
        assert_eq!(names(), 0);
    }

    #[test]
    fn what_cannot_be_written_is_not_told() {
        let (dir, closed) = world();
        File::create(dir.path().join("edge.sock.closed")).unwrap();
        closed.tell(slot(0, T), PARTS / 2);
        assert_eq!(closed.share(slot(0, T + 3)), Some(PARTS));
        let remote = Closed::beside(&Endpoint::Ip("127.0.0.1:9470".parse().unwrap()));
        remote.tell(slot(0, T), PARTS / 2);
        assert_eq!(remote.share(slot(0, T)), None, "it cannot look there");
    }
}
