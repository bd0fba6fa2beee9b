// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Readers of traces: one pass over a stream that the caller opened, in bounded memory however
//! long the stream.
//!
//! ```
//! use tidegate_units::Nanos;
//! use tidegate_workload::readers::{self, Format, OnBad};
//!
//! let text = b"2026-01-01 00:00:00,12\n2026-01-01 00:01:00,7\n";
//! let format = readers::guess(text).expect("rows of times and counts");
//! assert_eq!(format, Format::Csv { period: Nanos::from_secs(60) });
//! let mut reader = readers::open(format, &text[..], OnBad::Skip);
//! let counts: Vec<u64> = reader.by_ref().map_while(Result::ok).map(|e| e.count).collect();
//! assert_eq!(counts, [12, 7]);
//! assert_eq!(reader.skipped().total(), 0);
//! ```
//!
//! A bad line is an error with its number that ends the reading ([`OnBad::Fail`]), or it is passed
//! over and counted by reason ([`OnBad::Skip`], [`Reader::skipped`]). A stream that breaks off, an
//! empty file and a file without one usable line are errors in both cases. Compressed files:
//! [`unpacked`], or [`discover`], which guesses the format too. Times of arrivals: [`spread`].

mod error;
mod guess;
mod lines;
mod order;
mod packed;
mod parse;
mod spread;
mod when;

pub use error::{Skipped, TraceError, What};
pub use guess::{GUESS_BYTES, guess};
pub use lines::LINE_MAX;
pub use order::PENDING_MAX;
pub use packed::{Discovered, Packing, discover, unpacked};
pub use spread::{Spreader, spread};

use core::net::IpAddr;
use lines::Lines;
use order::Order;
use parse::{Columns, Line};
use serde::{Deserialize, Serialize};
use std::io::BufRead;
use tidegate_units::Nanos;

/// Largest count of one line.
pub const COUNT_MAX: u64 = 1_000_000_000;

/// What the lines of a trace are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// A count a line, for periods of this length, one after the other. A line that is skipped
    /// still takes its period.
    Counts {
        /// Length of a period.
        period: Nanos,
    },
    /// The time of one request a line: a decimal number of units, or a date such as
    /// `2026-01-31 23:59:59.5` or `2026-01-31T23:59:59Z`.
    Times {
        /// What numbers count.
        unit: TimeUnit,
    },
    /// The common or combined log format, as Apache and nginx write it: a request a line.
    Log {
        /// The unit of the request time at the line's end (`$request_time` of nginx: seconds;
        /// `%D` of Apache: microseconds); `None` when it is not logged.
        took: Option<TimeUnit>,
    },
    /// Rows with a time first. With two columns, or when the header calls the second `count`,
    /// `value` or `requests`, that is the count of a period. Otherwise a row is a request, and
    /// its other columns are numbers that add up to its cost (such as the tokens of the Azure
    /// LLM traces). A header is optional.
    Csv {
        /// Length of a counted period; zero when all of a count falls on the row's time.
        period: Nanos,
    },
}

/// A unit of time in text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeUnit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Millis,
    /// Microseconds.
    Micros,
}

impl TimeUnit {
    pub(crate) const fn nanos(self) -> i64 {
        match self {
            Self::Seconds => 1_000_000_000,
            Self::Millis => 1_000_000,
            Self::Micros => 1_000,
        }
    }
}

/// What to do with a bad line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnBad {
    /// It is an error, and the last item.
    Fail,
    /// It is passed over and counted.
    Skip,
}

/// One line of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When it begins, from the first entry; never falls.
    pub at: Nanos,
    /// Length of the period that it counts; zero for a request.
    pub lasts: Nanos,
    /// Requests; may be 0 in a period.
    pub count: u64,
    /// Its line, from 1.
    pub line: u64,
    /// How long the request took, where the log says so.
    pub took: Option<Nanos>,
    /// The status of the answer, where the log says so.
    pub status: Option<u16>,
    /// What the request cost, in the file's own unit, where it says so.
    pub cost: Option<u64>,
    /// The address of the client, where the log says so.
    pub client: Option<IpAddr>,
}

/// Reads a trace.
#[must_use]
pub fn open<R: BufRead>(format: Format, reader: R, on_bad: OnBad) -> Reader<R> {
    Reader {
        format,
        on_bad,
        lines: Lines::new(reader),
        columns: None,
        order: Order::new(Nanos::ZERO),
        skipped: Skipped::default(),
        first: None,
        ended: false,
        failure: None,
        told: false,
    }
}

/// Iterates over the entries of a trace, or the error that ends it.
#[derive(Debug)]
pub struct Reader<R> {
    format: Format,
    on_bad: OnBad,
    lines: Lines<R>,
    columns: Option<Columns>,
    order: Order,
    skipped: Skipped,
    /// Time of the first entry that was handed out.
    first: Option<i64>,
    /// Nothing more is read; what is held is handed out, and then this error.
    ended: bool,
    failure: Option<TraceError>,
    told: bool,
}

impl<R: BufRead> Reader<R> {
    /// Lines may go back in time by this much, and are put in order: access logs have the time of
    /// a request's arrival, and are written when it ends. At most [`PENDING_MAX`] lines are held
    /// for it. To be called before the first entry is asked for.
    #[must_use]
    pub fn with_slack(mut self, slack: Nanos) -> Self {
        self.order = Order::new(slack);
        self
    }

    /// What was passed over so far.
    #[must_use]
    pub const fn skipped(&self) -> &Skipped {
        &self.skipped
    }

    /// The time of the first entry that was handed out, in nanoseconds since 1970 (UTC), or since
    /// wherever the file counts from; `None` before it.
    #[must_use]
    pub const fn begins(&self) -> Option<i64> {
        self.first
    }

    /// Lines read so far, good or bad.
    #[must_use]
    pub const fn lines(&self) -> u64 {
        self.lines.number()
    }

    /// Bytes read so far, after decompression.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.lines.bytes()
    }

    /// The next line that says something; `None` at the end of the stream.
    fn next_line(&mut self) -> Result<Option<Line>, TraceError> {
        loop {
            let Some(text) = self.lines.next_line()? else { return Ok(None) };
            let is_blank = text.trim_ascii().is_empty();
            let parsed = match self.format {
                // In a list of counts a blank line stands for a period that is not known.
                Format::Counts { .. } => parse::line(self.format, text).map(Some),
                _ if is_blank => Ok(None),
                Format::Csv { .. } => csv(&mut self.columns, text),
                _ => parse::line(self.format, text).map(Some),
            };
            match parsed {
                Ok(Some(line)) => return Ok(Some(line)),
                Ok(None) => {}
                Err(what) => return Err(TraceError { line: self.lines.number(), what }),
            }
        }
    }

    /// Reads until an entry is due; `None` at the end of the stream. What is held is left then.
    fn advance(&mut self) -> Result<Option<Entry>, TraceError> {
        loop {
            if let Some((line, number)) = self.order.due() {
                return Ok(Some(self.entry(line, number)));
            }
            let Some(mut line) = self.next_line()? else { break };
            let number = self.lines.number();
            if let Format::Counts { period } = self.format {
                let periods = u128::from(number - 1) * u128::from(period.0);
                line.when = i64::try_from(periods).unwrap_or(i64::MAX);
            }
            self.order.push(line, number).map_err(|what| TraceError { line: number, what })?;
        }
        Ok(None)
    }

    fn entry(&mut self, line: Line, number: u64) -> Entry {
        // Counts begin with the file, even if its first lines could not be read.
        let (start, lasts) = match self.format {
            Format::Counts { period } => (0, period),
            Format::Csv { period } if line.cost.is_none() => (line.when, period),
            _ => (line.when, Nanos::ZERO),
        };
        let first = *self.first.get_or_insert(start);
        Entry {
            at: Nanos(line.when.saturating_sub(first).max(0) as u64),
            lasts,
            count: line.count,
            line: number,
            took: line.took,
            status: line.status,
            cost: line.cost,
            client: line.client,
        }
    }

    /// The error of a file that gave nothing.
    fn barren(&self) -> Option<TraceError> {
        let what = match (self.first, self.lines.bytes()) {
            (Some(_), _) => return None,
            (None, 0) => What::Empty,
            (None, _) => What::NothingUsable { skipped: self.skipped.total() },
        };
        Some(TraceError { line: 0, what })
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Entry, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            match self.advance() {
                Ok(Some(entry)) => return Some(Ok(entry)),
                Ok(None) => self.ended = true,
                Err(error) if self.on_bad == OnBad::Skip && error.what.is_of_a_line() => {
                    self.skipped.add(error);
                }
                Err(error) => {
                    self.ended = true;
                    self.failure = Some(error);
                }
            }
        }
        if let Some((line, number)) = self.order.rest() {
            return Some(Ok(self.entry(line, number)));
        }
        if self.told {
            return None;
        }
        self.told = true;
        self.failure.take().or_else(|| self.barren()).map(Err)
    }
}

/// A row, or nothing for a header; the first line tells what the columns are.
fn csv(columns: &mut Option<Columns>, text: &[u8]) -> Result<Option<Line>, What> {
    let known = match *columns {
        Some(known) => known,
        None => {
            let (found, has_header) = Columns::of(text);
            *columns = Some(found);
            if has_header {
                return Ok(None);
            }
            found
        }
    };
    parse::csv(known, text).map(Some)
}
