// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One line of each format.

use super::error::{What, excerpt};
use super::when;
use super::{COUNT_MAX, Format, TimeUnit};
use core::net::IpAddr;
use tidegate_units::Nanos;

/// Longest time in the brackets of an access log, in bytes.
const LOG_TIME_MAX: usize = 64;

/// Words of an access log among which the client's address is.
const CLIENT_WORDS: usize = 2;

/// What a line says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    /// Nanoseconds since 1970, or since wherever the file counts from.
    pub(crate) when: i64,
    pub(crate) count: u64,
    pub(crate) took: Option<Nanos>,
    pub(crate) status: Option<u16>,
    pub(crate) cost: Option<u64>,
    pub(crate) client: Option<IpAddr>,
}

/// What the columns of a CSV file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Columns {
    /// A time and a count.
    Count,
    /// A request's time, and numbers that add up to its cost.
    Cost,
}

impl Columns {
    /// From the header, or from the first row where there is no header (its first field is a
    /// time): two columns are a count, unless the header calls the second something else.
    pub(crate) fn of(first: &[u8]) -> (Self, bool) {
        let mut fields = first.split(|b| *b == b',').map(bare);
        let has_header = time(fields.next().unwrap_or(b""), TimeUnit::Seconds).is_none();
        let second = fields.next().unwrap_or(b"");
        let named = [&b"count"[..], b"value", b"requests"]
            .iter()
            .any(|name| second.eq_ignore_ascii_case(name));
        let is_count = if has_header { named } else { fields.next().is_none() };
        (if is_count { Self::Count } else { Self::Cost }, has_header)
    }
}

/// A line of any format but CSV; a count's time is not in its line.
pub(crate) fn line(format: Format, text: &[u8]) -> Result<Line, What> {
    match format {
        Format::Counts { .. } => Ok(Line { count: count(bare(text))?, ..Line::default() }),
        Format::Times { unit } => {
            let when = time(bare(text), unit).ok_or_else(|| What::Time(excerpt(text)))?;
            Ok(Line { when, count: 1, ..Line::default() })
        }
        Format::Log { took } => log(text, took),
        Format::Csv { .. } => csv(Columns::Count, text),
    }
}

/// A row of a CSV file.
pub(crate) fn csv(columns: Columns, text: &[u8]) -> Result<Line, What> {
    let mut fields = text.split(|b| *b == b',').map(bare);
    let first = fields.next().unwrap_or(b"");
    let when = time(first, TimeUnit::Seconds).ok_or_else(|| What::Time(excerpt(first)))?;
    match columns {
        Columns::Count => {
            let second = fields.next().ok_or_else(|| What::Field("count", excerpt(text)))?;
            Ok(Line { when, count: count(second)?, ..Line::default() })
        }
        Columns::Cost => {
            let mut cost = 0_u64;
            for field in fields {
                let part = count(field).map_err(|_| What::Field("cost", excerpt(text)))?;
                cost = cost.saturating_add(part);
            }
            Ok(Line { when, count: 1, cost: Some(cost), ..Line::default() })
        }
    }
}

/// A line of the common or combined log format: what stands before the time does not matter, so
/// that a virtual host in front is read too.
pub(crate) fn log(text: &[u8], unit: Option<TimeUnit>) -> Result<Line, What> {
    let (when, rest) = log_time(text).ok_or_else(|| What::Time(excerpt(text)))?;
    let after = after_quoted(rest).ok_or_else(|| What::Field("request", excerpt(rest)))?;
    let code = after.split(|b| *b == b' ').next().unwrap_or(b"");
    let status = when::digits(code)
        .filter(|_| code.len() == 3)
        .and_then(|code| u16::try_from(code).ok())
        .ok_or_else(|| What::Field("status", excerpt(after)))?;
    let took = match unit {
        None => None,
        Some(unit) => Some(last_time(after, unit)?),
    };
    Ok(Line { when, count: 1, took, status: Some(status), cost: None, client: client(text) })
}

/// The first of the words in front that is an address: where a virtual host is logged, it stands
/// before the client.
fn client(text: &[u8]) -> Option<IpAddr> {
    let words = text.split(|b| *b == b' ').take(CLIENT_WORDS);
    words.filter_map(|word| std::str::from_utf8(word).ok()).find_map(|word| word.parse().ok())
}

/// The time in the first brackets that hold one, and what follows them.
fn log_time(text: &[u8]) -> Option<(i64, &[u8])> {
    let mut rest = text;
    while let Some(open) = rest.iter().position(|b| *b == b'[') {
        rest = &rest[open + 1..];
        let near = &rest[..rest.len().min(LOG_TIME_MAX)];
        let Some(close) = near.iter().position(|b| *b == b']') else { continue };
        if let Some(when) = when::of_log(&rest[..close]) {
            return Some((when, rest[close + 1..].trim_ascii_start()));
        }
    }
    None
}

/// What follows a text in quotation marks; a backslash protects what is behind it.
fn after_quoted(text: &[u8]) -> Option<&[u8]> {
    let inner = text.strip_prefix(b"\"")?;
    let mut protected = false;
    let end = inner.iter().position(|b| {
        let ends = *b == b'"' && !protected;
        protected = *b == b'\\' && !protected;
        ends
    })?;
    Some(inner[end + 1..].trim_ascii_start())
}

/// The request time: the last word of a line, in quotation marks or behind an `=` or not.
fn last_time(text: &[u8], unit: TimeUnit) -> Result<Nanos, What> {
    let text = text.trim_ascii_end();
    let word = text.rsplit(|b| *b == b' ' || *b == b'=').next().unwrap_or(b"");
    let nanos = when::decimal(bare(word), unit.nanos());
    nanos
        .and_then(|n| u64::try_from(n).ok())
        .map(Nanos)
        .ok_or_else(|| What::Field("request time", excerpt(word)))
}

/// A decimal number of units, or a date with a time.
pub(crate) fn time(text: &[u8], unit: TimeUnit) -> Option<i64> {
    when::decimal(text, unit.nanos()).or_else(|| when::iso(text))
}

/// A count; a fraction (some files write `94.0`) is rounded.
pub(crate) fn count(text: &[u8]) -> Result<u64, What> {
    let dot = text.iter().position(|b| *b == b'.').unwrap_or(text.len());
    let fraction = text.get(dot + 1..).unwrap_or(b"");
    let whole = when::digits(&text[..dot]).and_then(|n| u64::try_from(n).ok());
    let up = u64::from(fraction.first().is_some_and(|digit| *digit >= b'5'));
    whole
        .filter(|_| dot > 0 && fraction.iter().all(u8::is_ascii_digit))
        .map(|n| n.saturating_add(up))
        .filter(|n| *n <= COUNT_MAX)
        .ok_or_else(|| What::Count(excerpt(text)))
}

/// Without the white space and the quotation marks around it.
fn bare(text: &[u8]) -> &[u8] {
    let text = text.trim_ascii();
    text.strip_prefix(b"\"").and_then(|t| t.strip_suffix(b"\"")).unwrap_or(text)
}
