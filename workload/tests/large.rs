// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A trace of any size streams in bounded memory. Alone in its program: the peak of the program's
//! memory is what is measured.

use std::io::{BufReader, Read};
use tidegate_units::Nanos;
use tidegate_workload::readers::{Format, OnBad, open};

/// Bytes of each stream.
const SIZE: u64 = 128 << 20;
/// What reading may add to the peak: well below a stream. Nearly all of it is for the lines that
/// are held to be put in order, of which there are as many as there may be.
const MEMORY_MAX_KIB: u64 = 48 << 10;

/// Repeats a text for ever.
struct Endless {
    text: Vec<u8>,
    at: usize,
}

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let piece = &self.text[self.at..];
        let size = piece.len().min(buffer.len());
        buffer[..size].copy_from_slice(&piece[..size]);
        self.at = (self.at + size) % self.text.len();
        Ok(size)
    }
}

fn stream(text: &str) -> BufReader<impl Read> {
    let copies = (64 << 10) / text.len();
    BufReader::new(Endless { text: text.repeat(copies).into(), at: 0 }.take(SIZE))
}

/// The peak of this program's memory so far.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn hundreds_of_megabytes_of_lines_garbage_or_one_line_take_no_memory() {
    let before = peak_kib();
    let line = "h - - [10/Oct/2025:13:55:36 -0700] \"GET / HTTP/1.1\" 200 9 \"-\" \"browser\"\n";
    let log = Format::Log { took: None };
    let mut reader = open(log, stream(line), OnBad::Fail).with_slack(Nanos::SECOND);
    let whole = reader.by_ref().take_while(Result::is_ok).count() as u64;
    assert_eq!(whole, SIZE / line.len() as u64, "the last line is cut in two");

    let garbage = "no line at all\n";
    let mut reader = open(log, stream(garbage), OnBad::Skip);
    assert!(reader.next().is_some_and(|item| item.is_err()), "nothing can be used");
    assert_eq!(reader.skipped().total(), SIZE.div_ceil(garbage.len() as u64));

    let mut reader = open(log, stream("x"), OnBad::Skip);
    assert!(reader.next().is_some_and(|item| item.is_err()), "one line without an end");
    assert_eq!((reader.skipped().too_long, reader.bytes()), (1, SIZE));

    let grown = peak_kib() - before;
    assert!(grown < MEMORY_MAX_KIB, "the peak has grown by {grown} KiB");
}
