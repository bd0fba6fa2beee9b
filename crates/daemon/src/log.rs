// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the log goes: standard error, without ever ending or stopping the daemon.
//!
//! Whatever is behind standard error may fail: a disk may be full, the reader of a pipe may have
//! left, or may have stopped to read. A line that cannot be written is lost and counted, and the
//! next line that can be written says how many were lost before it. A pipe that is full would make
//! a write wait, and with it the loop that renews the lease: so nothing is written to what is not
//! ready to take it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is said to be ready takes at least this much at once (`PIPE_BUF` on Linux).
const PIECE_MAX: usize = 4096;

/// Lines that were lost since the process began.
static LOST: AtomicU64 = AtomicU64::new(0);
/// Of these, those that the log itself has told of.
static TOLD: AtomicU64 = AtomicU64::new(0);

/// Lines of the log that could not be written since the process began.
#[must_use]
pub fn lines_lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// The log of the process. Writing to it always succeeds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Log;

impl Write for Log {
    /// Takes one line as a whole: the subscriber writes each event at once.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        put(io::stderr().as_fd(), line, (&LOST, &TOLD));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a line, and before it how many were lost; what cannot be written is counted in `lost`.
fn put(out: impl AsFd, line: &[u8], (lost, told): (&AtomicU64, &AtomicU64)) {
    let missing = lost.load(Ordering::Relaxed).saturating_sub(told.load(Ordering::Relaxed));
    if missing > 0 {
        let gap = format!("tidegate: {missing} lines of this log could not be written\n");
        if pieces(&out, gap.as_bytes()).is_ok() {
            told.fetch_add(missing, Ordering::Relaxed);
        }
    }
    if pieces(&out, line).is_err() {
        lost.fetch_add(1, Ordering::Relaxed);
    }
}

fn pieces(out: &impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        if !is_ready(out)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let piece = &bytes[..bytes.len().min(PIECE_MAX)];
        match rustix::io::write(out, piece) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Whether a piece can be written without a wait; an error shows when it is written.
fn is_ready(out: &impl AsFd) -> io::Result<bool> {
    let mut files = [PollFd::new(out, PollFlags::OUT)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut files, Some(&at_once)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::io::{PipeReader, Read};
    use std::time::Duration;
    use tidegate_units::{Clock, MonotonicClock};

    #[derive(Default)]
    struct Counters {
        lost: AtomicU64,
        told: AtomicU64,
    }

    impl Counters {
        fn put(&self, out: impl AsFd, line: &[u8]) {
            put(out, line, (&self.lost, &self.told));
        }

        fn lost(&self) -> u64 {
            self.lost.load(Ordering::Relaxed)
        }
    }

    /// All that waits in a pipe whose writers are gone.
    fn text(mut reader: PipeReader) -> String {
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_full_disk_and_a_reader_that_left_cost_lines_and_nothing_else() {
        let counters = Counters::default();
        counters.put(OpenOptions::new().write(true).open("/dev/full").unwrap(), b"one\n");
        assert_eq!(counters.lost(), 1);
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        counters.put(&writer, b"two\n");
        assert_eq!(counters.lost(), 2);
        let (reader, writer) = io::pipe().unwrap();
        counters.put(&writer, b"three\n");
        counters.put(&writer, b"four\n");
        drop(writer);
        assert_eq!(counters.lost(), 2);
        assert_eq!(
            text(reader),
            "tidegate: 2 lines of this log could not be written\nthree\nfour\n"
        );
    }

    #[test]
    fn a_reader_that_stopped_to_read_costs_no_wait() {
        let counters = Counters::default();
        let (reader, writer) = io::pipe().unwrap();
        let line = [b'x'; 1000];
        let begin = MonotonicClock.now();
        // Far more than a pipe holds (64 KiB, or 1 MiB where it was made larger).
        (0..4000).for_each(|_| counters.put(&writer, &line));
        let took = Duration::from(MonotonicClock.now().since(begin));
        assert!(counters.lost() > 1000, "{} lost", counters.lost());
        assert!(took < Duration::from_secs(10), "{took:?}");
        drop(writer);
        assert!(text(reader).starts_with("xxx"));
    }

    #[test]
    fn a_line_that_is_longer_than_a_piece_comes_whole() {
        let counters = Counters::default();
        let (reader, writer) = io::pipe().unwrap();
        let line = "y".repeat(3 * PIECE_MAX + 1);
        counters.put(&writer, line.as_bytes());
        drop(writer);
        assert_eq!((text(reader), counters.lost()), (line, 0));
    }
}
