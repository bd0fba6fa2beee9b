// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What share of its requests nginx or Caddy is to ask about (see [`crate::asked`]), by names of files.
//!
//! The proxy puts each request into one of 256 slots at random, and looks whether there is a file for the slot in this tenth
//! of a second. That costs it a look-up of a name. The directory is beside the socket at which it asks:
//!
//! ```text
//! edge.sock.closed/
//!   from-28/28 29 … ff            the slots that are closed while 0x28 of 256 stay open
//!   1764350000.7 -> from-28       a tenth of a second to come, by the proxy's clock
//! ```
//!
//! Names are written only for tenths to come, and only while questions come: they say what time the proxy has. A question may
//! have waited for its turn, so it is the later one of its time and our own (both are on one host).
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
use tidegate_units::Nanos;

/// The values of two hexadecimal digits.
const SLOTS: u32 = 256;
/// Tenths after that of a question for which names are written: the first one no worker of a proxy has begun,
/// though their clocks differ by some milliseconds.
const FIRST: u64 = 2;
const LAST: u64 = 8;
const TENTH: Nanos = Nanos::from_millis(100);
/// Further apart than this the two clocks are not one, or it was set: that of the proxy counts.
const APART: u64 = 50;
/// Tenths that are remembered for questions on their way.
const REMEMBERED: u64 = 30;
/// In so many tenths in a row the proxy has asked about what is closed: it does not look. Then it is told nothing for a while.
const UNHEEDED_MAX: u32 = 10;
const PAUSE: u64 = 600;
/// Questions about closed slots that are expected of one that does not look: with fewer a tenth says nothing.
const EXPECTED_MIN: u32 = 2;
/// The proxy runs as another user; who may enter the directory of the socket may look here.
const MODE: u32 = 0o755;

/// Where the proxy has put a request, and when.
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

    /// The tenth that it is now for the proxy, by the time of day: no earlier than that of the question.
    fn latest(self, now: Nanos) -> u64 {
        let now = now.0 / TENTH.0;
        if now.abs_diff(self.tenth) <= APART { now.max(self.tenth) } else { self.tenth }
    }
}

/// What one gateway has told its proxy.
#[derive(Debug, Default)]
pub(crate) struct Closed {
    /// `None`: the proxy cannot look there.
    directory: Option<PathBuf>,
    told: Mutex<Told>,
    /// Why the proxy is told nothing. Apart from the rest, which is locked while names are written.
    problem: Mutex<Option<String>>,
}

#[derive(Debug, Default)]
struct Told {
    /// How many slots stay open in each tenth that has a name.
    open: BTreeMap<u64, u32>,
    /// Directories of slots that are complete.
    made: BTreeSet<u32>,
    /// What another process left is taken away.
    cleaned: bool,
    /// The latest tenth of a question.
    at: u64,
    heeded: Heeded,
    /// Why the proxy is told nothing: names cannot be written, or it does not look.
    unwritten: Option<String>,
    unheeded: Option<String>,
}

/// Whether the proxy looks.
#[derive(Debug, Default)]
struct Heeded {
    /// Questions about closed slots since the latest tenth began.
    closed: u32,
    /// The same, of one that does not look, times [`SLOTS`].
    expected: u32,
    /// Tenths in a row in which it did not.
    not: u32,
    /// Nothing is told before this tenth.
    pause: u64,
}

impl Heeded {
    fn asked(&mut self, slot: Slot, open: u32) {
        self.closed = self.closed.saturating_add(u32::from(u32::from(slot.number) >= open));
        self.expected = self.expected.saturating_add(SLOTS - open);
    }

    /// Once a tenth; `None`: the last one said nothing.
    fn looks(&mut self) -> Option<bool> {
        let (closed, expected) = (self.closed, self.expected / SLOTS);
        if expected < EXPECTED_MIN {
            return None;
        }
        (self.closed, self.expected) = (0, 0);
        let looks = closed < expected.div_ceil(2);
        self.not = if looks { 0 } else { self.not + 1 };
        Some(looks)
    }
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
        Self { directory, told: Mutex::default(), problem: Mutex::default() }
    }

    /// The share by which this request was asked about, of [`PARTS`]; `None`: the proxy cannot be told any.
    pub(super) fn share(&self, slot: Slot) -> Option<u32> {
        self.directory.as_ref()?;
        let mut told = self.told();
        let open = told.open.get(&slot.tenth).copied();
        if let Some(open) = open {
            told.heeded.asked(slot, open);
        }
        // One that asks though its slot is closed has not looked: it stands for itself.
        let open = open.filter(|open| u32::from(slot.number) < *open).unwrap_or(SLOTS);
        Some(open * PARTS / SLOTS)
    }

    /// This question was answered now: from here on the gate wants to be asked about so many of [`PARTS`].
    pub(super) fn tell(&self, (slot, now): (Slot, Nanos), parts: u32) {
        if let Some(directory) = &self.directory {
            let mut told = self.told();
            if told.follow(directory, slot.latest(now), open(parts)) {
                let problem = told.unwritten.as_ref().or(told.unheeded.as_ref()).cloned();
                drop(told);
                *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
            }
        }
    }

    /// Why the proxy is told nothing; `None`: nothing keeps it from looking.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        let Some(directory) = &self.directory else { return };
        let told = self.told.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (tenth, open) in &told.open {
            let path = directory.join(name(*tenth));
            // Another process may have written it anew.
            if fs::read_link(&path).is_ok_and(|to| to == Path::new(&level(*open))) {
                // It ends by itself.
                let _ = fs::remove_file(path);
            }
        }
    }
}

impl Told {
    /// Once a tenth; whether this is the first time in it. What cannot be written is not told: the proxy asks
    /// about everything.
    fn follow(&mut self, directory: &Path, tenth: u64, open: u32) -> bool {
        let set_back = tenth + LAST < self.at;
        if tenth <= self.at && !set_back {
            return false;
        }
        self.at = tenth;
        let open = if self.may_be_told(directory, tenth, set_back) { open } else { SLOTS };
        let useless = |of: &u64| of + REMEMBERED < tenth || *of > tenth + LAST;
        let useless: Vec<u64> = self.open.keys().copied().filter(useless).collect();
        useless.into_iter().for_each(|of| self.remove(directory, of));
        if open == SLOTS {
            self.unwritten = None;
        }
        for of in tenth + FIRST..=tenth + LAST {
            if open == SLOTS {
                self.remove(directory, of);
            } else if self.open.get(&of) != Some(&open) {
                if let Err(error) = self.write(directory, (of, open)) {
                    // Somebody may have removed what was there.
                    self.made.clear();
                    self.open.retain(|of, _| *of < tenth + FIRST);
                    let text = format!("{} cannot be written: {error}", directory.display());
                    self.unwritten = Some(text);
                    break;
                }
                self.unwritten = None;
                self.open.insert(of, open);
            }
        }
        true
    }

    /// Whether the proxy looks, as far as that is known.
    fn may_be_told(&mut self, directory: &Path, tenth: u64, set_back: bool) -> bool {
        let looks = self.heeded.looks() == Some(true);
        let pauses = self.heeded.pause > tenth && !set_back;
        if self.heeded.pause > 0 && (looks || !pauses) {
            // It is tried again.
            (self.heeded, self.unheeded) = (Heeded::default(), None);
        }
        if self.heeded.not >= UNHEEDED_MAX {
            (self.heeded.not, self.heeded.pause) = (0, tenth + PAUSE);
            self.unheeded = Some(format!(
                "it asks about what is closed, so it does not look into {}. Is that the path in its \
                 configuration, and may it enter?",
                directory.display()
            ));
        }
        tenth >= self.heeded.pause
    }

    fn write(&mut self, directory: &Path, (tenth, open): (u64, u32)) -> io::Result<()> {
        if !self.cleaned {
            remove_left(directory)?;
            self.cleaned = true;
        }
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

/// As the proxy writes it.
fn name(tenth: u64) -> String {
    format!("{}.{}", tenth / 10, tenth % 10)
}

fn level(open: u32) -> String {
    format!("from-{open:02x}")
}

/// Takes away what a process has left that was killed.
fn remove_left(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_symlink() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The directory of the slots from this one on. They are names of one file: a gate that answers has no time to
/// make 255 of them.
fn make(directory: &Path, open: u32) -> io::Result<()> {
    let level = directory.join(level(open));
    for path in [directory, level.as_path()] {
        match fs::create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => fs::set_permissions(path, Permissions::from_mode(MODE))?,
        }
    }
    let path = |slot: u32| level.join(format!("{slot:02x}"));
    let first = path(open);
    File::create(&first)?;
    // It may be there, or the file system may have no further names for a file.
    let name =
        |slot| fs::hard_link(&first, path(slot)).or_else(|_| File::create(path(slot)).map(drop));
    (open + 1..SLOTS).try_for_each(name)
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

    /// Tells in this tenth.
    fn tell(closed: &Closed, slot: Slot, parts: u32) {
        closed.tell((slot, at(slot.tenth)), parts);
    }

    fn at(tenth: u64) -> Nanos {
        Nanos(TENTH.0 * tenth)
    }

    /// nginx had to wait for its answer, or looked at its clock long ago: no name is for a tenth that has begun.
    #[test]
    fn a_question_that_waited_closes_nothing_that_has_begun() {
        for (late, first) in [(0, 2), (1, 3), (5, 7), (50, 52), (51, 2), (600, 2)] {
            let (_dir, closed) = world();
            closed.tell((slot(0, T), at(T + late)), PARTS / 2);
            let begun = (T..T + 100).find(|tenth| is_closed(&closed, slot(255, *tenth)));
            assert_eq!(begun, Some(T + first), "{late}");
        }
        let (_dir, closed) = world();
        closed.tell((slot(0, T), at(T - 3)), PARTS / 2);
        assert!(is_closed(&closed, slot(255, T + 2)), "nginx is ahead");
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
        tell(&closed, slot(0, T), PARTS);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is written while calm");
        tell(&closed, slot(0, T + 1), PARTS / 2);
        for tenth in T..T + 20 {
            let told = (T + 3..=T + 9).contains(&tenth);
            assert_eq!(is_closed(&closed, slot(128, tenth)), told, "{tenth}");
            assert!(!is_closed(&closed, slot(127, tenth)), "{tenth}");
            let share = if told { PARTS / 2 } else { PARTS };
            assert_eq!(closed.share(slot(127, tenth)), Some(share), "{tenth}");
            assert_eq!(closed.share(slot(128, tenth)), Some(PARTS), "it has not looked");
        }
        // In the same tenth nothing changes, and what has begun stays.
        tell(&closed, slot(0, T + 1), PARTS);
        assert!(is_closed(&closed, slot(128, T + 3)));
        tell(&closed, slot(0, T + 3), PARTS);
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
            tell(&closed, slot(0, tenth), 100 + (tenth % 50) as u32 * 100);
            assert!(names() as u64 <= REMEMBERED + LAST + 1, "{}", names());
        }
        // The clock is set back: what was said for later holds no more.
        tell(&closed, slot(0, T), PARTS / 2);
        assert_eq!(names() as u64, LAST - FIRST + 1);
        assert!(is_closed(&closed, slot(255, T + 2)));
        drop(closed);
        assert_eq!(names(), 0);
    }

    /// Tenths in which nginx asks 32 times, and is to ask about a quarter. How many of them have a name, and whether
    /// there is a problem in the end.
    fn asks(closed: &Closed, tenths: std::ops::Range<u64>, looks: bool) -> (usize, bool) {
        let mut named = 0;
        for tenth in tenths {
            tell(closed, slot(0, tenth), PARTS / 4);
            named += usize::from(is_closed(closed, slot(255, tenth)));
            for number in (0..=255).step_by(8) {
                if !looks || !is_closed(closed, slot(number, tenth)) {
                    closed.share(slot(number, tenth));
                }
            }
        }
        (named, closed.problem().is_some())
    }

    #[test]
    fn an_nginx_that_does_not_look_is_told_nothing_for_a_minute() {
        let (_dir, closed) = world();
        assert_eq!(asks(&closed, T..T + 1000, true), (998, false));
        // The eleventh tenth begins when ten are known, and what was said of those to come is taken back.
        let begin = T + 1000;
        assert_eq!(asks(&closed, begin..begin + 10, false), (10, false));
        assert_eq!(asks(&closed, begin + 10..begin + 10 + PAUSE, false), (2, true));
        let begin = begin + 10 + PAUSE;
        assert_eq!(asks(&closed, begin..begin + 13, false), (11, true), "it is tried again");
        let begin = begin + 12 + PAUSE;
        assert_eq!(asks(&closed, begin..begin + 100, true), (98, false), "it looks now");
    }

    #[test]
    fn a_tenth_that_was_told_late_is_no_reason() {
        let (_dir, closed) = world();
        for begin in (T..T + 1000).step_by(10) {
            asks(&closed, begin..begin + 9, false);
            assert!(!asks(&closed, begin + 9..begin + 10, true).1, "{begin}");
        }
    }

    #[test]
    fn what_a_killed_process_left_is_taken_away_and_what_was_removed_is_written_again() {
        let (dir, closed) = world();
        let directory = dir.path().join("edge.sock.closed");
        fs::create_dir(&directory).unwrap();
        symlink("from-80", directory.join(name(T + 1000))).unwrap();
        tell(&closed, slot(0, T), PARTS / 2);
        assert!(is_closed(&closed, slot(255, T + 2)));
        assert!(fs::symlink_metadata(directory.join(name(T + 1000))).is_err());
        fs::remove_dir_all(&directory).unwrap();
        tell(&closed, slot(0, T + 1), PARTS / 2);
        assert!(closed.problem().is_some());
        tell(&closed, slot(0, T + 2), PARTS / 2);
        assert!(is_closed(&closed, slot(255, T + 10)) && closed.problem().is_none());
        // Another process has written it anew.
        let theirs = directory.join(name(T + 10));
        fs::remove_file(&theirs).unwrap();
        symlink("from-40", &theirs).unwrap();
        drop(closed);
        assert!(fs::symlink_metadata(theirs).is_ok());
        assert!(fs::symlink_metadata(directory.join(name(T + 9))).is_err());
    }

    #[test]
    fn what_cannot_be_written_is_not_told() {
        let (dir, closed) = world();
        File::create(dir.path().join("edge.sock.closed")).unwrap();
        tell(&closed, slot(0, T), PARTS / 2);
        assert_eq!(closed.share(slot(0, T + 3)), Some(PARTS));
        assert!(closed.problem().unwrap().contains("cannot be written"));
        let remote = Closed::beside(&Endpoint::Ip("127.0.0.1:9470".parse().unwrap()));
        tell(&remote, slot(0, T), PARTS / 2);
        assert_eq!(remote.share(slot(0, T)), None, "it cannot look there");
    }
}
