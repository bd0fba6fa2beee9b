// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The replay of some hours of a log, by the clock: what `tidegate shadow report` shows beside what was
//! counted.

use super::args::ReplayArgs;
use super::feed::DATED_FROM;
use super::run;
use super::source::Source;
use anyhow::{Context, bail};
use clap::parser::ValueSource;
use clap::{Args, Command, FromArgMatches};
use std::ffi::OsStr;
use std::path::Path;
use tidegate_cli::{ReplayAsked, Replayed, UsageError};
use tidegate_units::Nanos;

/// Options of replay that would be without effect here: the hours are those of the report, and so is its form.
const TAKEN: [&str; 4] = ["from", "until", "out", "output"];

/// What replay says of the part of a log that lies in these hours.
pub(crate) fn of_hours(asked: &ReplayAsked<'_>) -> anyhow::Result<Replayed> {
    let mut args = arguments(asked)?;
    if args.log == Path::new("-") {
        bail!("the log is to be a file: it is read twice");
    }
    let begins = begins(&args)?;
    let after = |unix_s: f64| Nanos::from_secs_f64(unix_s - begins);
    // What is before the log's first request is zero.
    (args.reading.from, args.reading.until) =
        (after(asked.from_unix_s), Some(after(asked.until_unix_s)));
    if asked.until_unix_s <= begins {
        bail!("the log begins after these hours");
    }
    let report = run(&args)?;
    Ok(Replayed {
        log: report.input.log,
        begins_unix_s: report.input.begins_unix_s.unwrap_or(begins),
        seconds: report.input.seconds,
        offered: report.with.offered,
        refused: report.with.refused,
        good: report.with.good,
        good_without: report.without.good,
        notes: report.notes,
    })
}

/// Those of `tidegate replay`.
fn arguments(asked: &ReplayAsked<'_>) -> anyhow::Result<ReplayArgs> {
    let command = ReplayArgs::augment_args(Command::new("replay")).disable_help_flag(true);
    let fixed: [&OsStr; 6] = [
        "replay".as_ref(),
        asked.log.as_ref(),
        "--config".as_ref(),
        asked.config.as_ref(),
        "--service".as_ref(),
        asked.service.as_ref(),
    ];
    let all = fixed.into_iter().chain(asked.options.iter().map(AsRef::as_ref));
    let wrong = |error: clap::Error| UsageError(format!("options of replay: {error}"));
    let matches = command.try_get_matches_from(all).map_err(wrong)?;
    let given = |option: &&&str| matches.value_source(option) == Some(ValueSource::CommandLine);
    if let Some(option) = TAKEN.iter().find(given) {
        let what =
            format!("options of replay: --{option} is not for a report, which says it itself");
        return Err(UsageError(what).into());
    }
    Ok(ReplayArgs::from_arg_matches(&matches).map_err(wrong)?)
}

/// When the first request of the log came, in seconds since 1970.
fn begins(args: &ReplayArgs) -> anyhow::Result<f64> {
    let mut source = Source::open(&args.log, &args.reading)?;
    while source.reader.begins().is_none() {
        source.reader.next().context("the log is empty")??;
    }
    match source.reader.begins() {
        Some(begins) if begins >= DATED_FROM => Ok(begins as f64 / 1e9),
        _ => bail!("the log has no dates: which part of it are these hours?"),
    }
}
