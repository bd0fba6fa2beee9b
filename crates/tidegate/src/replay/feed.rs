// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One pass over a log, line by line into both worlds.

use super::args::{BadName, ReplayArgs};
use super::classes::Classes;
use super::progress::Progress;
use super::source::Source;
use anyhow::bail;
use tidegate_sim::whatif::WhatIf;
use tidegate_sim::whatif::spread::{Factors, Load, Spread};
use tidegate_workload::readers::{Entry, Format, TraceError, What};

/// What was read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Read {
    /// Lines read.
    pub(crate) lines: u64,
    /// Lines passed over: how many, and why.
    pub(crate) skipped: u64,
    /// See `skipped`.
    pub(crate) why: String,
    /// Where the log broke off.
    pub(crate) cut: Option<String>,
    /// Whether a request had a client's address.
    pub(crate) addresses: bool,
    /// The first request's time, in nanoseconds since 1970, where the log has dates.
    pub(crate) begins: Option<i64>,
}

/// See the module.
pub(crate) struct Feed<'a> {
    args: &'a ReplayArgs,
    classes: &'a Classes,
    whatif: &'a mut WhatIf,
    spread: Spread,
    read: Read,
}

impl<'a> Feed<'a> {
    pub(crate) fn new(args: &'a ReplayArgs, classes: &'a Classes, whatif: &'a mut WhatIf) -> Self {
        let factors = Factors { scale: args.load.scale, speed: args.load.speed };
        let spread = Spread::new(factors, args.seed);
        Self { args, classes, whatif, spread, read: Read::default() }
    }

    /// Reads to the end of the log, or to `--until`.
    pub(crate) fn all(mut self, source: &mut Source, bar: &Progress) -> anyhow::Result<Read> {
        while let Some(next) = source.reader.next() {
            match next {
                Ok(entry) => {
                    if self.args.reading.until.is_some_and(|until| entry.at >= until) {
                        break;
                    }
                    self.entry(source, &entry)?;
                    bar.advance(source, self.whatif);
                }
                Err(error) => self.broken(source, error)?,
            }
        }
        let whatif = &mut *self.whatif;
        let told = self.spread.finish(&mut |arrival| whatif.offer(arrival));
        told.map_err(anyhow::Error::msg)?;
        Ok(self.report(source))
    }

    fn entry(&mut self, source: &Source, entry: &Entry) -> anyhow::Result<()> {
        let from = self.args.reading.from;
        if entry.at < from {
            return Ok(());
        }
        self.read.addresses |= entry.client.is_some();
        let counted = matches!(source.format, Format::Counts { .. } | Format::Csv { .. });
        let over = if counted { entry.lasts } else { source.spread };
        let load = Load {
            at: entry.at.since(from),
            over,
            count: entry.count,
            kind: self.classes.of(entry.client),
        };
        let whatif = &mut *self.whatif;
        let told = self.spread.push(load, &mut |arrival| whatif.offer(arrival));
        told.map_err(|what| anyhow::anyhow!("{}: line {}: {what}", source.name, entry.line))
    }

    /// A stream that broke off is what was there, where bad lines may be passed over.
    fn broken(&mut self, source: &Source, error: TraceError) -> anyhow::Result<()> {
        let cut = matches!(error.what, What::Cut(_) | What::Io(..));
        if cut && self.args.reading.on_bad == BadName::Skip && source.reader.begins().is_some() {
            self.read.cut = Some(error.to_string());
            return Ok(());
        }
        let barren = matches!(error.what, What::Empty | What::NothingUsable { .. });
        let hint = if barren { "" } else { HINT };
        bail!("{}: {error}{hint}", source.name)
    }

    fn report(self, source: &Source) -> Read {
        let skipped = source.reader.skipped();
        let why = if skipped.total() > 0 { skipped.to_string() } else { String::new() };
        let dated = source.reader.begins().filter(|ns| *ns >= DATED_FROM);
        Read {
            lines: source.reader.lines(),
            skipped: skipped.total(),
            why,
            begins: dated.map(|ns| ns.saturating_add(self.args.reading.from.0 as i64)),
            ..self.read
        }
    }
}

/// What can be done about a bad line.
const HINT: &str = " (--on-bad skip passes over what cannot be used, and counts it)";
/// A time from 1990 on is a date; below, the log counts from wherever it began.
pub(crate) const DATED_FROM: i64 = 631_152_000 * 1_000_000_000;
