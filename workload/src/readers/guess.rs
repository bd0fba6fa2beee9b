// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tells the format of a trace from its beginning.

use super::parse::{self, Columns};
use super::when;
use super::{Format, TimeUnit};
use tidegate_units::Nanos;

/// As much of a file's beginning is enough for [`guess`], in bytes.
pub const GUESS_BYTES: usize = 8 << 10;
/// Lines that are looked at.
const LINES_MAX: usize = 16;
/// A number from here on is a time, not a count of a period: 1973, in seconds.
const EPOCH_FROM: i64 = 100_000_000;

/// The format of a trace that begins like this (after decompression); `None` when no line of the
/// beginning tells. A guess: a plain list of small whole numbers is taken for counts per second.
#[must_use]
pub fn guess(beginning: &[u8]) -> Option<Format> {
    let beginning = &beginning[..beginning.len().min(GUESS_BYTES)];
    let beginning = beginning.strip_prefix("\u{feff}".as_bytes()).unwrap_or(beginning);
    // The last piece may be half a line; it is only looked at when it is the only one.
    let whole = beginning.iter().rposition(|b| *b == b'\n').map_or(beginning.len(), |end| end + 1);
    let lines: Vec<&[u8]> = beginning[..whole]
        .split(|b| *b == b'\n')
        .map(<[u8]>::trim_ascii)
        .filter(|line| !line.is_empty())
        .take(LINES_MAX)
        .collect();
    lines.iter().find_map(|line| log(line).or_else(|| plain(line))).or_else(|| rows(&lines))
}

fn log(line: &[u8]) -> Option<Format> {
    parse::log(line, None).ok()?;
    // nginx logs the request time in seconds with three decimals; a whole number could be many
    // things (a length, microseconds).
    let last = line.rsplit(|b| *b == b' ' || *b == b'=').next().unwrap_or(b"");
    let is_time = last.contains(&b'.') && parse::log(line, Some(TimeUnit::Seconds)).is_ok();
    Some(Format::Log { took: is_time.then_some(TimeUnit::Seconds) })
}

fn plain(line: &[u8]) -> Option<Format> {
    if when::iso(line).is_some() {
        return Some(Format::Times { unit: TimeUnit::Seconds });
    }
    let whole = when::decimal(line, 1)?;
    let is_time = whole >= EPOCH_FROM || line.contains(&b'.');
    let unit = match whole {
        // Numbers of this size are this century's milliseconds or microseconds since 1970.
        100_000_000_000_000.. => TimeUnit::Micros,
        100_000_000_000.. => TimeUnit::Millis,
        _ => TimeUnit::Seconds,
    };
    Some(if is_time { Format::Times { unit } } else { Format::Counts { period: Nanos::SECOND } })
}

/// The period of rows of counts is the time between the first two.
fn rows(lines: &[&[u8]]) -> Option<Format> {
    let (columns, _) = Columns::of(lines.iter().find(|line| line.contains(&b','))?);
    let mut times = lines.iter().filter_map(|line| parse::csv(columns, line).ok());
    let first = times.next()?;
    let period = times.next().map_or(0, |second| second.when.saturating_sub(first.when).max(0));
    let is_count = columns == Columns::Count;
    Some(Format::Csv { period: Nanos(if is_count { period as u64 } else { 0 }) })
}
