// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The log: opened, unpacked, its format told, read line by line.

use super::args::{BadName, FormatName, ReadingArgs, UnitName};
use anyhow::{Context, bail};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_units::Nanos;
use tidegate_workload::readers::{self, Format, GUESS_BYTES, OnBad, Reader, TimeUnit};

/// Read at once, in bytes.
const BUFFER: usize = 256 << 10;
/// Access logs have whole seconds; requests come at any time within.
const LOG_SPREAD: Nanos = Nanos::SECOND;
/// Access logs are written when a request ends, with the time at which it began.
const LOG_SLACK: Nanos = Nanos::from_secs(10);

/// A stream of text.
type Text = Box<dyn BufRead>;

/// An open log.
pub(crate) struct Source {
    /// What it is called in messages.
    pub(crate) name: String,
    /// Its length in bytes, where it has one.
    pub(crate) size: Option<u64>,
    /// Bytes read so far, before unpacking.
    pub(crate) read: Arc<AtomicU64>,
    /// What its lines are.
    pub(crate) format: Format,
    /// What a request with a whole second is spread over.
    pub(crate) spread: Nanos,
    /// Its lines.
    pub(crate) reader: Reader<Text>,
}

/// Counts what passes.
struct Counted<R> {
    inner: R,
    read: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.read.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// A stream that has broken off, for whoever reads on.
struct Broken(Option<io::Error>);

impl Read for Broken {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

impl Source {
    /// Opens a log; `-` is standard input.
    pub(crate) fn open(path: &Path, args: &ReadingArgs) -> anyhow::Result<Self> {
        let (name, size, stream) = stream(path)?;
        Self::of((name, size), stream, args)
    }

    /// A log that was opened, with its name and its length.
    pub(crate) fn of(
        (name, size): (String, Option<u64>),
        stream: Box<dyn Read>,
        args: &ReadingArgs,
    ) -> anyhow::Result<Self> {
        let read = Arc::new(AtomicU64::new(0));
        let counted = Counted { inner: stream, read: Arc::clone(&read) };
        let buffered = BufReader::with_capacity(BUFFER, counted);
        let (text, _) =
            readers::unpacked(buffered).with_context(|| format!("cannot read {name}"))?;
        let (format, text) = told(&name, text, args)?;
        let on_bad = match args.on_bad {
            BadName::Fail => OnBad::Fail,
            BadName::Skip => OnBad::Skip,
        };
        let is_log = matches!(format, Format::Log { .. });
        let slack = args.slack.unwrap_or(if is_log { LOG_SLACK } else { Nanos::ZERO });
        let spread = args.spread.unwrap_or(if is_log { LOG_SPREAD } else { Nanos::ZERO });
        let reader = readers::open(format, text, on_bad).with_slack(slack);
        Ok(Self { name, size, read, format, spread, reader })
    }
}

fn stream(path: &Path) -> anyhow::Result<(String, Option<u64>, Box<dyn Read>)> {
    if path == Path::new("-") {
        return Ok(("standard input".to_owned(), None, Box::new(io::stdin())));
    }
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
    let about = file.metadata().with_context(|| format!("cannot look at {name}"))?;
    if about.is_dir() {
        bail!("{name} is a directory, not a log");
    }
    let size = about.is_file().then_some(about.len());
    Ok((name, size, Box::new(file)))
}

/// The format, from the options or from the beginning of the text; and the text, from its start.
fn told(name: &str, mut text: Text, args: &ReadingArgs) -> anyhow::Result<(Format, Text)> {
    let mut begin = Vec::with_capacity(GUESS_BYTES);
    // What breaks off within the beginning is told by the reader, with its line.
    let broken = text.by_ref().take(GUESS_BYTES as u64).read_to_end(&mut begin).err();
    if begin.is_empty() && broken.is_none() {
        bail!("{name}: the file is empty");
    }
    let guessed = readers::guess(&begin);
    let format = match (args.format, guessed, &broken) {
        (FormatName::Auto, None, None) => bail!(
            "{name}: its beginning does not tell what the lines are; say it with --format \
             (counts, times, log, csv)"
        ),
        (FormatName::Auto, None, Some(_)) => Format::Counts { period: Nanos::SECOND },
        (FormatName::Auto, Some(format), _) => with_period(format, args.period),
        (named, guessed, _) => chosen(named, guessed, args),
    };
    let text: Text = match broken {
        None => Box::new(Cursor::new(begin).chain(text)),
        Some(error) => Box::new(Cursor::new(begin).chain(BufReader::new(Broken(Some(error))))),
    };
    Ok((format, text))
}

fn chosen(named: FormatName, guessed: Option<Format>, args: &ReadingArgs) -> Format {
    let unit = match args.unit {
        UnitName::S => TimeUnit::Seconds,
        UnitName::Ms => TimeUnit::Millis,
        UnitName::Us => TimeUnit::Micros,
    };
    let of_rows = match guessed {
        Some(Format::Csv { period }) => period,
        _ => Nanos::SECOND,
    };
    match named {
        FormatName::Counts => Format::Counts { period: args.period.unwrap_or(Nanos::SECOND) },
        FormatName::Times => Format::Times { unit },
        FormatName::Csv => Format::Csv { period: args.period.unwrap_or(of_rows) },
        FormatName::Log | FormatName::Auto => Format::Log { took: None },
    }
}

/// A period that is given counts, and request times in a log are not needed.
fn with_period(format: Format, period: Option<Nanos>) -> Format {
    match (format, period) {
        (Format::Counts { .. }, Some(period)) => Format::Counts { period },
        (Format::Csv { .. }, Some(period)) => Format::Csv { period },
        (Format::Log { .. }, _) => Format::Log { took: None },
        (other, _) => other,
    }
}

/// The name of a format.
pub(crate) const fn format_name(format: Format) -> &'static str {
    match format {
        Format::Counts { .. } => "counts",
        Format::Times { .. } => "times",
        Format::Log { .. } => "log",
        Format::Csv { .. } => "csv",
    }
}
