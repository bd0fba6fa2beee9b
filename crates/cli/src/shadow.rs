// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `tidegate shadow report`: what would have been refused, how much of it wrongly, and whether to enforce.

use crate::args::{CONFIG_DEFAULT, Output, Remote, span};
use crate::control::UNEXPECTED;
use crate::failure::UsageError;
use crate::format::{Format, json, plain};
use crate::history::time_of_day;
use crate::host::Host;
use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use tidegate_api::exit::Exit;
use tidegate_api::protocol::{Reply, Request};
use tidegate_model::shadow::{Of, ShadowLine, ShadowPart, ShadowReport};
use tidegate_telemetry::render_rows;
use tidegate_units::Nanos;

/// Commands about shadow mode.
#[derive(Debug, Subcommand)]
pub(crate) enum ShadowCommand {
    /// Say what would have been refused, how much of it while the service was healthy, and whether it is
    /// safe to enforce. Also of the share of a canary that is only counted.
    Report(ShadowReportArgs),
}

/// Arguments of `shadow report`.
#[derive(Debug, Args)]
pub(crate) struct ShadowReportArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    /// Name of the service; else all that are in shadow or have been.
    pub(crate) service: Option<String>,
    /// Of so long ago until now, such as 1h; else since the service is in shadow. To the minute for two
    /// hours, to the hour for eight days.
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) since: Option<Nanos>,
    /// Only this class.
    #[arg(long)]
    pub(crate) class: Option<String>,
    /// An access log of these hours: say what `tidegate replay` makes of it. Needs the capacity of the
    /// server, as an option of `replay`: `-- --capacity 400`.
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// With `--log`: the configuration file.
    #[arg(short, long, value_name = "FILE", default_value = CONFIG_DEFAULT)]
    pub(crate) config: PathBuf,
    #[command(flatten)]
    pub(crate) output: Output,
    /// With `--log`, behind `--`: options of `replay`, such as the modelled server. Not `--from`, `--until`,
    /// `--out` and `--output`, which the report says itself.
    #[arg(last = true, requires = "log", value_name = "REPLAY OPTIONS")]
    pub(crate) options: Vec<String>,
}

/// What is to be replayed.
#[derive(Clone, Copy, Debug)]
pub struct ReplayAsked<'a> {
    /// An access log.
    pub log: &'a Path,
    /// The configuration file.
    pub config: &'a Path,
    /// The service.
    pub service: &'a str,
    /// From when, in seconds since 1970.
    pub from_unix_s: f64,
    /// Until when.
    pub until_unix_s: f64,
    /// Options of `tidegate replay`.
    pub options: &'a [String],
}

/// What `tidegate replay` makes of the same hours.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Replayed {
    /// Name of the log.
    pub log: String,
    /// When its part begins, in seconds since 1970.
    pub begins_unix_s: f64,
    /// How long its part is.
    pub seconds: f64,
    /// Clients in it.
    pub offered: u64,
    /// Of them refused at least once.
    pub refused: u64,
    /// Answered within the objective.
    pub good: u64,
    /// The same without tidegate.
    pub good_without: u64,
    /// What a reader should know.
    pub notes: Vec<String>,
}

#[derive(Serialize)]
struct Document<'a> {
    services: &'a [ShadowReport],
    replay: Option<Replayed>,
}

pub(crate) fn report(
    args: &ShadowReportArgs,
    host: &dyn Host,
    out: &mut dyn Write,
) -> anyhow::Result<Exit> {
    let (service, class) = (args.service.clone(), args.class.clone());
    let request = Request::ShadowReport { service, since: args.since, class };
    let Reply::ShadowReport { services } = args.remote.connect()?.ask(&request)? else {
        bail!(UNEXPECTED)
    };
    let replay = args.log.as_ref().map(|log| replayed(args, log, host, &services)).transpose()?;
    if args.output.output == Format::Json {
        json("tidegate-shadow-report/1", &Document { services: &services, replay }, out)?;
        return Ok(Exit::Ok);
    }
    if services.is_empty() {
        writeln!(out, "no service is in shadow, or has been as far as is remembered")?;
    }
    for report in &services {
        // The last words are what to act upon; what replay says comes before.
        write_figures(report, out)?;
        if report.since_unix_s.is_some() {
            writeln!(out, "\n{}", plain(&counterfactual(args, replay.as_ref())))?;
        }
        writeln!(out, "\n{}", plain(&report.sentence))?;
    }
    Ok(Exit::Ok)
}

fn replayed(
    args: &ShadowReportArgs,
    log: &Path,
    host: &dyn Host,
    services: &[ShadowReport],
) -> anyhow::Result<Replayed> {
    let [report] = services else {
        let what = "--log is about one service: say which, such as `shadow report NAME --log FILE`";
        return Err(UsageError(what.into()).into());
    };
    let (Some(from_unix_s), Some(until_unix_s)) = (report.since_unix_s, report.until_unix_s) else {
        bail!("nothing is remembered of {}: there are no hours to replay", report.service)
    };
    let asked = ReplayAsked {
        log,
        config: &args.config,
        service: &report.service,
        from_unix_s,
        until_unix_s,
        options: &args.options,
    };
    host.replay(&asked).context("the log cannot be replayed")
}

fn counterfactual(args: &ShadowReportArgs, replay: Option<&Replayed>) -> String {
    let Some(replay) = replay else {
        let service = args.service.as_deref().unwrap_or("NAME");
        return format!(
            "replay: there is no recording of these hours; with an access log, `tidegate shadow report {service} \
             --log FILE -- --capacity RATE` says what would have been refused on a modelled server"
        );
    };
    let Replayed { log, seconds, offered, refused, good, good_without, notes, .. } = replay;
    let mut text = format!(
        "replay of {log}, {seconds:.0} s of these hours: {refused} of {offered} clients would have been refused; \
         good responses {good}, without tidegate {good_without} (on the modelled server)"
    );
    notes.iter().for_each(|note| text += &format!("; {note}"));
    text
}

fn write_figures(report: &ShadowReport, out: &mut dyn Write) -> anyhow::Result<()> {
    let ShadowReport { service, mode, percent, class, since_unix_s, until_unix_s, .. } = report;
    let (Some(since), Some(until)) = (since_unix_s, until_unix_s) else { return Ok(()) };
    let share = percent.map(|percent| format!(" for {percent} % of the sources"));
    let class = class.as_ref().map(|class| format!(", class {}", plain(class)));
    let day = |unix| time_of_day(Nanos::from_secs_f64(unix));
    writeln!(
        out,
        "{}: {}{}{}; from {} to {}\n",
        plain(service),
        mode.name(),
        share.unwrap_or_default(),
        class.unwrap_or_default(),
        day(*since),
        day(*until)
    )?;
    let heads = ["while", "watched", "offered", "would be refused"];
    let row = |name: &str, part: &ShadowPart| {
        let watched = format!("{:.0} min", (part.watched_s / 60.0).round());
        vec![name.to_owned(), watched, part.offered.to_string(), part.refused.to_string()]
    };
    let rows = [
        heads.map(str::to_owned).to_vec(),
        row("healthy", &report.healthy),
        row("overloaded", &report.overloaded),
        row("unknown", &report.unknown),
    ];
    write!(out, "{}", render_rows(&rows, &[false, true, true, true]))?;
    if report.refused_by.is_empty() {
        return Ok(());
    }
    let heads = ["class or rule", "reason", "refused", "healthy", "overloaded", "unknown"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(report.refused_by.iter().map(cells));
    write!(out, "\n{}", render_rows(&rows, &[false, false, true, true, true, true]))?;
    Ok(())
}

fn cells(line: &ShadowLine) -> Vec<String> {
    let of = match &line.of {
        Of::Class(name) => plain(name),
        Of::Rule(label) => format!("rule {}", plain(label)),
    };
    let reason = line.reason.as_deref().map_or_else(|| "-".to_owned(), plain);
    let counts = [line.refused, line.healthy, line.overloaded, line.unknown];
    [of, reason].into_iter().chain(counts.map(|count| count.to_string())).collect()
}
