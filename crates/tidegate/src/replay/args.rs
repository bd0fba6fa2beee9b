// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The arguments of `tidegate replay`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;
use tidegate_units::Nanos;
use tidegate_workload::Mixture;

/// Longest time that an option takes: 400 days.
const SPAN_MAX: Nanos = Nanos::from_secs(400 * 86_400);
/// Largest and smallest factor on the load or on time.
const FACTOR_RANGE: (f64, f64) = (1e-6, 1e6);
/// Most workers, CPUs, and places in the accept queue of the modelled server.
const PLACES_MAX: u32 = 1_000_000;

/// What a line of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatName {
    /// Told from the beginning of the log.
    Auto,
    /// A count of requests a line, for one period after the other.
    Counts,
    /// The time of one request a line: a number, or a date such as 2026-01-31T23:59:59.5Z.
    Times,
    /// An access log in the common or combined format, as Apache and nginx write it.
    #[value(alias = "clf", alias = "common", alias = "combined")]
    Log,
    /// Rows of a time and a count, or of a time and further numbers: then a row is a request.
    Csv,
}

/// What a number in the log counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum UnitName {
    /// Seconds.
    S,
    /// Milliseconds.
    Ms,
    /// Microseconds.
    Us,
}

/// How service times are distributed around their mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShapeName {
    /// All the same.
    Constant,
    /// Exponential.
    Exponential,
    /// Log-normal, the standard deviation three times the mean.
    Heavy,
}

impl ShapeName {
    /// The word of the option.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::Exponential => "exponential",
            Self::Heavy => "heavy",
        }
    }
}

/// What is done about a line that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BadName {
    /// The replay ends with an error that names the line.
    Fail,
    /// It is passed over and counted; a log that breaks off counts as far as it goes.
    Skip,
}

/// How the result is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Table,
    /// One JSON document, as docs/replay.md describes it.
    Json,
}

/// Everything that can be said.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReplayArgs {
    /// The log; `-` is standard input. What is compressed with gzip or xz is unpacked.
    pub(crate) log: PathBuf,
    /// The configuration file.
    #[arg(short, long, value_name = "FILE", default_value = tidegate_cli::CONFIG_DEFAULT)]
    pub(crate) config: PathBuf,
    /// The service of the configuration; may be left out where there is one.
    #[arg(long)]
    pub(crate) service: Option<String>,
    /// The seed of every draw: the same one gives the same result.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Folder for results.csv, run.json and replay.json; `tidegate-lab experiment draw` draws them.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// How the result is printed.
    #[arg(short, long, default_value = "table")]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// How the log is read.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Log")]
pub(crate) struct ReadingArgs {
    /// What a line is.
    #[arg(long, default_value = "auto")]
    pub(crate) format: FormatName,
    /// `counts` and `csv`: the time that one count stands for (1s; the distance of the first rows).
    #[arg(long, value_parser = span, value_name = "TIME")]
    pub(crate) period: Option<Nanos>,
    /// `times`: what a number counts.
    #[arg(long, default_value = "s")]
    pub(crate) unit: UnitName,
    /// Requests with whole seconds come at any time within this (1s for access logs, else 0s).
    #[arg(long, value_parser = span, value_name = "TIME")]
    pub(crate) spread: Option<Nanos>,
    /// Lines may be out of order by this much and are sorted (10s for access logs, else 0s).
    #[arg(long, value_parser = span, value_name = "TIME")]
    pub(crate) slack: Option<Nanos>,
    /// What is done about a line that cannot be used.
    #[arg(long, default_value = "fail")]
    pub(crate) on_bad: BadName,
    /// Begin so long after the first request.
    #[arg(long, value_parser = span, value_name = "TIME", default_value = "0s")]
    pub(crate) from: Nanos,
    /// End so long after the first request.
    #[arg(long, value_parser = span, value_name = "TIME")]
    pub(crate) until: Option<Nanos>,
}

/// What is made of the load.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Load")]
pub(crate) struct LoadArgs {
    /// How many requests come for each in the log: 3 is three times the load.
    #[arg(long, value_parser = factor, default_value = "1")]
    pub(crate) scale: f64,
    /// How much faster time passes: 2 puts two hours of the log into one.
    #[arg(long, value_parser = factor, default_value = "1")]
    pub(crate) speed: f64,
    /// When refused clients try again: `today` (a mix of common systems), or NAME, or NAME=SHARE,…
    /// of linux-6.5, linux-3.7, windows, apple, freebsd, classic.
    #[arg(long, value_name = "MIX", default_value = "today")]
    pub(crate) clients: String,
    /// A client leaves after this long without a response.
    #[arg(long, value_parser = span, value_name = "TIME", default_value = "10s")]
    pub(crate) timeout: Nanos,
}

/// The modelled server.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct ServerArgs {
    /// Mean time that one request takes on an idle server. This or `--capacity` is needed.
    #[arg(long, value_parser = span, value_name = "TIME", required_unless_present = "capacity")]
    pub(crate) service_time: Option<Nanos>,
    /// Requests per second that the server can serve; the service time follows from it.
    #[arg(long, value_parser = factor, value_name = "RATE", conflicts_with = "service_time")]
    pub(crate) capacity: Option<f64>,
    /// Distribution of the service time.
    #[arg(long, default_value = "exponential")]
    pub(crate) shape: ShapeName,
    /// A request computes: the CPUs are shared by all that are in service (the default).
    #[arg(long, conflicts_with = "waiting")]
    pub(crate) cpu_bound: bool,
    /// A request waits (for a database, say) and holds its worker, but no CPU.
    #[arg(long)]
    pub(crate) waiting: bool,
    /// Requests in service at once.
    #[arg(long, value_parser = places, default_value = "150")]
    pub(crate) workers: u32,
    /// CPUs of the server.
    #[arg(long, value_parser = places, default_value = "1")]
    pub(crate) cpus: u32,
    /// Accept queue: connections that wait for a worker; a SYN beyond it is ignored.
    #[arg(long, value_parser = places, default_value = "511")]
    pub(crate) queue: u32,
}

impl LoadArgs {
    /// The kinds of clients.
    pub(crate) fn mixture(&self) -> anyhow::Result<Mixture> {
        if self.clients == "today" {
            return Ok(Mixture::today()?);
        }
        let mut parts = Vec::new();
        for part in self.clients.split(',') {
            let (name, share) = part.split_once('=').unwrap_or((part, "1"));
            let share: f64 = share.trim().parse().map_err(|_| {
                tidegate_cli::UsageError(format!("--clients: {share:?} is not a share"))
            })?;
            parts.push((name.trim(), share));
        }
        let wrong = |e| tidegate_cli::UsageError(format!("--clients: {e}")).into();
        Mixture::new(&parts).map_err(wrong)
    }
}

/// `20ms`, `1.5s`, `2h`.
fn span(text: &str) -> Result<Nanos, String> {
    let wrong =
        || format!("{text:?} is not a time such as 20ms, 1.5s, 10m or 2h (at most 400 days)");
    let end = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len();
    let (number, unit) = text.split_at(end);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(wrong()),
    };
    let value = number.parse::<f64>().map_err(|_| wrong())? * seconds;
    if !(0.0..=SPAN_MAX.as_secs_f64()).contains(&value) {
        return Err(wrong());
    }
    Ok(Nanos::from_secs_f64(value))
}

fn factor(text: &str) -> Result<f64, String> {
    let (low, high) = FACTOR_RANGE;
    let found = text.parse::<f64>().ok().filter(|value| (low..=high).contains(value));
    found.ok_or_else(|| format!("{text:?} is not a number from {low} to {high}"))
}

fn places(text: &str) -> Result<u32, String> {
    let found = text.parse::<u32>().ok().filter(|value| (1..=PLACES_MAX).contains(value));
    found.ok_or_else(|| format!("{text:?} is not a whole number from 1 to {PLACES_MAX}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_and_a_bound() {
        for (text, nanos) in [
            ("20ms", 20_000_000),
            ("1.5s", 1_500_000_000),
            ("250us", 250_000),
            ("2h", 7_200_000_000_000),
            ("400d", SPAN_MAX.0),
            ("0s", 0),
        ] {
            assert_eq!(span(text), Ok(Nanos(nanos)), "{text}");
        }
        for text in ["", "20", "s", "-1s", "401d", "1y", "nans", "infs", "1 s"] {
            assert!(span(text).is_err(), "{text}");
        }
    }

    #[test]
    fn factors_and_places_are_bounded() {
        assert_eq!(factor("0.5"), Ok(0.5));
        assert!(["0", "-1", "1e7", "nan", "x"].iter().all(|text| factor(text).is_err()));
        assert_eq!(places("1"), Ok(1));
        assert!(["0", "1000001", "1.5"].iter().all(|text| places(text).is_err()));
    }
}
