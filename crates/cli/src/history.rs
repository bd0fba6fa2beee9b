// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `tidegate history`: what happened, an event a line.

use crate::args::{Output, Remote};
use crate::control::UNEXPECTED;
use crate::format::{Format, json, plain};
use anyhow::bail;
use clap::Args;
use serde::Serialize;
use std::io::Write;
use tidegate_api::exit::Exit;
use tidegate_api::protocol::{Reply, Request};
use tidegate_model::record::{Event, Moment};
use tidegate_units::Nanos;

/// Arguments of `history`.
#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    /// Only what is about this service, and what is about all.
    #[arg(long)]
    pub(crate) service: Option<String>,
    /// Only the last so many events.
    #[arg(short = 'n', long, default_value_t = 50)]
    pub(crate) last: usize,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Serialize)]
struct Document<'a> {
    now: &'a Moment,
    events: &'a [Event],
}

pub(crate) fn history(args: &HistoryArgs, out: &mut dyn Write) -> anyhow::Result<Exit> {
    let reply = args.remote.connect()?.ask(&Request::History {})?;
    let Reply::History { now, mut events } = reply else { bail!(UNEXPECTED) };
    if let Some(service) = &args.service {
        events.retain(|event| event.what.service().is_none_or(|of| of == service));
    }
    events.drain(..events.len().saturating_sub(args.last));
    match args.output.output {
        Format::Json => json("tidegate-history/1", &Document { now: &now, events: &events }, out)?,
        Format::Table => {
            for event in &events {
                let said = plain(&event.what.sentence());
                writeln!(out, "{}  {said}", time_of_day(event.at.unix))?;
            }
        }
    }
    Ok(Exit::Ok)
}

/// Days since 1970 as year, month and day of the Gregorian calendar (H. Hinnant,
/// "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`).
const fn date(days: u64) -> (u64, u64, u64) {
    // Counted from the first of March of the year 0, so that the leap day is the last of a year.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, day)
}

/// As in ISO 8601, in UTC, to the second.
pub(crate) fn time_of_day(unix: Nanos) -> String {
    let seconds = unix.0 / 1_000_000_000;
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_day_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_868_799, "2000-02-29T23:59:59Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_800_000_000, "2027-01-15T08:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(time_of_day(Nanos::from_secs(seconds)), expected);
        }
    }
}
