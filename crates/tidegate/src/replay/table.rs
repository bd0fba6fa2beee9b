// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The result for people.

use super::report::{ClassTotal, EpisodeRow, Report, Total};
use std::io::{self, Write};

/// Most episodes that are printed, the largest ones; all are in the JSON document.
const EPISODES_SHOWN: usize = 20;
/// Longest reason that is printed, in characters.
const WHY_MAX: usize = 100;

/// Prints everything.
pub(crate) fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    head(report, out)?;
    totals(report, out)?;
    if report.classes.len() > 1 {
        classes(report, out)?;
    }
    episodes(report, out)?;
    if !report.notes.is_empty() {
        writeln!(out)?;
    }
    report.notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))
}

fn head(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let (input, service, model) = (&report.input, &report.service, &report.model);
    let begins = input.begins_unix_s.map_or(String::new(), |s| format!(" from {}", date(s)));
    writeln!(
        out,
        "log      {} ({}): {} requests in {}{begins}, {} lines, {} skipped",
        input.log,
        input.format,
        input.requests,
        clock(input.seconds),
        input.lines,
        input.skipped
    )?;
    writeln!(
        out,
        "service  {}: policy {}, {}, controller {}",
        service.name, service.policy, service.action, service.controller
    )?;
    writeln!(
        out,
        "server   modelled: {:.1}/s at best; {} ms a request ({}, {}), {} workers, {} CPU(s), accept queue {}",
        model.capacity_per_s,
        number(model.service_time_s * 1e3),
        model.shape,
        model.bound,
        model.workers,
        model.cpus,
        model.accept_queue
    )?;
    writeln!(
        out,
        "clients  {}, leaving after {} s; load x {}, time x {}, seed {}",
        model.clients,
        number(model.timeout_s),
        number(model.scale),
        number(model.speed),
        model.seed
    )
}

fn totals(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let good = format!("answered within {} s", number(report.service.objective_s));
    type Cell = fn(&Total) -> String;
    let rows: [(&str, Cell); 9] = [
        ("clients", |t| t.offered.to_string()),
        (&good, |t| share(t.good, t.offered)),
        ("answered", |t| share(t.answered, t.offered)),
        ("never answered", |t| share(t.failed, t.offered)),
        ("refused at least once", |t| share(t.refused, t.offered)),
        ("SYNs refused", |t| t.refusals.to_string()),
        ("SYNs at a full accept queue", |t| t.ignored.to_string()),
        ("median until the response", |t| seconds(t.p50_s)),
        ("99th percentile", |t| seconds(t.p99_s)),
    ];
    writeln!(out, "\n{:28} {:>20} {:>20}", "", "without tidegate", "with tidegate")?;
    for (name, cell) in rows {
        let (without, with) = (cell(&report.without), cell(&report.with));
        writeln!(out, "{name:28} {without:>20} {with:>20}")?;
    }
    Ok(())
}

fn classes(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "\n{:16} {:>8} {:>10} {:>18} {:>18} {:>18} {:>9} {:>9}",
        "class",
        "priority",
        "clients",
        "refused",
        "good without",
        "good with",
        "p99 w/o",
        "p99 with"
    )?;
    for class in &report.classes {
        let good = |t: &ClassTotal| share(t.good, t.offered);
        writeln!(
            out,
            "{:16} {:>8} {:>10} {:>18} {:>18} {:>18} {:>9} {:>9}",
            class.name,
            class.priority,
            class.with.offered,
            share(class.with.refused, class.with.offered),
            good(&class.without),
            good(&class.with),
            seconds(class.without.p99_s),
            seconds(class.with.p99_s)
        )?;
    }
    Ok(())
}

fn episodes(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    if report.episodes.is_empty() {
        return writeln!(out, "\nNothing would have been refused.");
    }
    let mut largest: Vec<&EpisodeRow> = report.episodes.iter().collect();
    largest.sort_by_key(|e| std::cmp::Reverse(e.refusals));
    largest.truncate(EPISODES_SHOWN);
    largest.sort_by(|a, b| a.from_s.total_cmp(&b.from_s));
    let all = report.episodes.len() as u64 + report.episodes_more;
    let which = if all > largest.len() as u64 { ", the largest" } else { "" };
    writeln!(out, "\nrefused {all} time(s){which}:")?;
    writeln!(out, "{:>12} {:>12} {:>10} {:>18}  why it began", "from", "to", "clients", "refused")?;
    for e in largest {
        let mut why: String = e.why.chars().take(WHY_MAX).collect();
        if why.len() < e.why.len() {
            why.push('…');
        }
        let (from, to) = (clock(e.from_s), clock(e.to_s));
        let refused = share(e.refused, e.offered);
        writeln!(out, "{from:>12} {to:>12} {:>10} {refused:>18}  {why}", e.offered)?;
    }
    Ok(())
}

/// `1234 (56.7 %)`
fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return part.to_string();
    }
    format!("{part} ({:.1} %)", 100.0 * part as f64 / whole as f64)
}

fn seconds(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |s| format!("{} s", number(s)))
}

/// A number with three digits that count.
fn number(value: f64) -> String {
    let text = match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// `1:02:03.4`, with days in front where there are any.
pub(super) fn clock(seconds: f64) -> String {
    let tenths = (seconds * 10.0).round() as u64;
    let (s, rest) = (tenths / 10, tenths % 10);
    let (days, h, m, s) = (s / 86_400, s / 3600 % 24, s / 60 % 60, s % 60);
    let days = if days > 0 { format!("{days}d ") } else { String::new() };
    format!("{days}{h}:{m:02}:{s:02}.{rest}")
}

/// Seconds since 1970 as a date in UTC (the calendar after Howard Hinnant's `civil_from_days`).
fn date(unix_s: f64) -> String {
    let all = unix_s.max(0.0) as u64;
    let (days, second) = (all / 86_400, all % 86_400);
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let year = yoe + era * 400 + u64::from(month <= 2);
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {h:02}:{m:02}:{s:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_numbers_read_well() {
        assert_eq!(clock(0.04), "0:00:00.0");
        assert_eq!(clock(3_723.36), "1:02:03.4");
        assert_eq!(clock(90_000.0), "1d 1:00:00.0");
        assert_eq!(date(951_782_400.0), "2000-02-29 00:00:00 UTC");
        assert_eq!(date(1_700_158_623.9), "2023-11-16 18:17:03 UTC");
        assert_eq!([0.02, 1.0, 20.0, 1234.0].map(number), ["0.02", "1", "20", "1234"]);
        assert_eq!(share(1, 3), "1 (33.3 %)");
        assert_eq!(share(0, 0), "0");
    }
}
