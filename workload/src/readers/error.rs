// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What can be wrong with a trace, and where.

use std::fmt;
use tidegate_units::Nanos;

/// Longest excerpt of a line in a message, in bytes.
const EXCERPT_MAX: usize = 60;

/// Something wrong with a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// The line, from 1; 0 when it is the file as a whole. When the stream broke off, the last
    /// line that was read whole.
    pub line: u64,
    /// What is wrong.
    pub what: What,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The file has no bytes.
    Empty,
    /// The file has lines, and none could be used.
    NothingUsable {
        /// Lines that were skipped as bad.
        skipped: u64,
    },
    /// The line has no end within [`LINE_MAX`](super::LINE_MAX) bytes.
    TooLong,
    /// No time that can be read; an excerpt of what stands there.
    Time(String),
    /// No count, or one above [`COUNT_MAX`](super::COUNT_MAX); an excerpt.
    Count(String),
    /// Something that the format asks for is not there or cannot be read; its name, an excerpt.
    Field(&'static str, String),
    /// The time lies before that of an earlier line, by more than the slack.
    Back(Nanos),
    /// The time lies more than 30 days behind that of every earlier line.
    Ahead(Nanos),
    /// The stream ended within a compressed file, after so many bytes of text.
    Cut(u64),
    /// The stream could not be read on, after so many bytes of text; the reason.
    Io(u64, String),
}

impl What {
    /// Whether reading can go on behind it.
    pub(crate) const fn is_of_a_line(&self) -> bool {
        matches!(
            self,
            Self::TooLong
                | Self::Time(_)
                | Self::Count(_)
                | Self::Field(..)
                | Self::Back(_)
                | Self::Ahead(_)
        )
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the file is empty"),
            Self::NothingUsable { skipped } => {
                write!(f, "no line of the file could be used ({skipped} skipped as bad)")
            }
            Self::TooLong => write!(f, "longer than {} bytes", super::LINE_MAX),
            Self::Time(text) => write!(f, "no time can be read from {text:?}"),
            Self::Count(text) => {
                write!(f, "{text:?} is not a count from 0 to {}", super::COUNT_MAX)
            }
            Self::Field(name, text) => write!(f, "no {name} can be read from {text:?}"),
            Self::Back(by) => write!(f, "time goes back by {by}"),
            Self::Ahead(by) => write!(f, "time jumps by {:.0} days", by.as_secs_f64() / 86_400.0),
            Self::Cut(bytes) => {
                write!(f, "the compressed file is cut off here, after {bytes} bytes of text")
            }
            Self::Io(bytes, reason) => {
                write!(f, "cannot be read on after {bytes} bytes of text: {reason}")
            }
        }
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, &self.what) {
            (0, what) => write!(f, "{what}"),
            (line, what @ (What::Cut(_) | What::Io(..))) => write!(f, "after line {line}: {what}"),
            (line, what) => write!(f, "line {line}: {what}"),
        }
    }
}

impl std::error::Error for TraceError {}

/// How many lines were skipped, and why; with [`OnBad::Skip`](super::OnBad::Skip).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Lines without an end.
    pub too_long: u64,
    /// Lines without a readable time.
    pub time: u64,
    /// Lines without a readable count.
    pub count: u64,
    /// Lines where another field is not there or cannot be read.
    pub field: u64,
    /// Lines whose time lies before that of an earlier one.
    pub back: u64,
    /// Lines whose time lies more than 30 days ahead of all earlier ones.
    pub ahead: u64,
    /// The first of them all.
    pub first: Option<TraceError>,
}

impl Skipped {
    /// Lines skipped.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.too_long + self.time + self.count + self.field + self.back + self.ahead
    }

    pub(crate) fn add(&mut self, error: TraceError) {
        match error.what {
            What::TooLong => self.too_long += 1,
            What::Time(_) => self.time += 1,
            What::Count(_) => self.count += 1,
            What::Back(_) => self.back += 1,
            What::Ahead(_) => self.ahead += 1,
            _ => self.field += 1,
        }
        self.first.get_or_insert(error);
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} skipped", self.total())?;
        let reasons = [
            (self.too_long, "too long"),
            (self.time, "no time"),
            (self.count, "no count"),
            (self.field, "a field missing"),
            (self.back, "time going back"),
            (self.ahead, "time jumping"),
        ];
        let mut sep = ": ";
        for (lines, reason) in reasons.into_iter().filter(|(lines, _)| *lines > 0) {
            write!(f, "{sep}{lines} {reason}")?;
            sep = ", ";
        }
        match &self.first {
            Some(first) => write!(f, "; the first is {first}"),
            None => Ok(()),
        }
    }
}

/// The beginning of some bytes, for a message.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(EXCERPT_MAX)];
    let dots = if cut.len() < bytes.len() { "…" } else { "" };
    format!("{}{dots}", String::from_utf8_lossy(cut))
}
