// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The result as rows of the schema of results, and as figures.

use super::report::{ClassTotal, PeriodRow, Report, Total};
use anyhow::Result;
use tidegate_experiments::plot::{Figure, Panel, Series};
use tidegate_experiments::results::Row;

/// Most points of a line: more cannot be told apart.
const POINTS_MAX: usize = 480;

type Value = fn(&PeriodRow, f64) -> Option<f64>;

/// File names and SVG texts.
pub(crate) fn figures(report: &Report) -> Result<Vec<(String, String)>> {
    let (scale, unit) = match report.input.seconds {
        s if s > 3.0 * 86_400.0 => (86_400.0, "days"),
        s if s > 3.0 * 3600.0 => (3600.0, "hours"),
        s if s > 600.0 => (60.0, "minutes"),
        _ => (1.0, "s"),
    };
    let lines = Lines { report, scale };
    let rates: [(&str, Value); 4] = [
        ("offered", |p, w| Some(p.with.offered as f64 / w)),
        ("admitted with tidegate", |p, w| Some(p.with.admitted as f64 / w)),
        ("refused with tidegate", |p, w| Some(p.with.refused as f64 / w)),
        ("admitted without", |p, w| Some(p.without.admitted as f64 / w)),
    ];
    let good: [(&str, Value); 3] = [
        ("offered", |p, w| Some(p.with.offered as f64 / w)),
        ("with tidegate", |p, w| Some(p.with.good as f64 / w)),
        ("without", |p, w| Some(p.without.good as f64 / w)),
    ];
    let times: [(&str, Value); 4] = [
        ("p99 with tidegate", |p, _| p.with.p99_s),
        ("p99 without", |p, _| p.without.p99_s),
        ("median with tidegate", |p, _| p.with.p50_s),
        ("median without", |p, _| p.without.p50_s),
    ];
    let capacity = Some((report.model.capacity_per_s, "capacity".to_owned()));
    let figure = |title: &str, panel: Panel| Figure {
        title: format!("{title} ({})", report.service.name),
        x_label: format!("time, {unit}"),
        panels: vec![panel],
        ..Figure::default()
    };
    let within = format!("answers within {} s, 1/s", report.service.objective_s);
    let all = [
        ("load.svg", "New clients", lines.panel("clients, 1/s", &rates, capacity.clone())),
        ("goodput.svg", "Answers in time", lines.panel(&within, &good, capacity)),
        (
            "times.svg",
            "From arrival to answer",
            Panel { log: true, ..lines.panel("until the answer, s", &times, None) },
        ),
    ];
    let drawn = all
        .into_iter()
        .map(|(name, title, panel)| Ok((name.to_owned(), figure(title, panel).svg()?)));
    drawn.collect()
}

/// Lines over time.
struct Lines<'a> {
    report: &'a Report,
    scale: f64,
}

impl Lines<'_> {
    fn panel(
        &self,
        y_label: &str,
        values: &[(&str, Value)],
        level: Option<(f64, String)>,
    ) -> Panel {
        let series = values.iter().map(|(name, value)| self.series(name, *value)).collect();
        Panel { y_label: y_label.into(), level, series, ..Panel::default() }
    }

    /// Neighbours are averaged where there are more periods than a figure can show.
    fn series(&self, name: &str, value: Value) -> Series {
        let width = self.report.period_s;
        let together = self.report.periods.len().div_ceil(POINTS_MAX).max(1);
        let mut points = Vec::new();
        for few in self.report.periods.chunks(together) {
            let values: Vec<f64> = few.iter().filter_map(|p| value(p, width)).collect();
            if let (Some(first), false) = (few.first(), values.is_empty()) {
                let mean = values.iter().sum::<f64>() / values.len() as f64;
                points.push((first.at_s / self.scale, mean));
            }
        }
        Series { name: name.to_owned(), points, errors: Vec::new() }
    }
}

/// All rows of results.csv.
pub(crate) fn rows(report: &Report) -> Vec<Row> {
    let mut rows = Vec::new();
    for (variant, pick) in [("none", false), ("tidegate", true)] {
        let total = if pick { &report.with } else { &report.without };
        totals(&mut rows, (variant, report.input.seconds), total);
        for (i, class) in report.classes.iter().enumerate() {
            let counts = if pick { &class.with } else { &class.without };
            of_class(&mut rows, (variant, i), counts);
        }
        for period in &report.periods {
            let total = if pick { &period.with } else { &period.without };
            over_time(&mut rows, (variant, period.at_s, report.period_s), total);
        }
    }
    for period in &report.periods {
        if let Some(limit) = period.limit_per_s {
            rows.push(row(("tidegate", "time_s", period.at_s), "limit", ("1/s", limit)));
        }
    }
    rows
}

fn row((variant, x_name, x): (&str, &str, f64), metric: &str, value: (&str, f64)) -> Row {
    Row {
        experiment: "replay".into(),
        world: "sim".into(),
        variant: variant.into(),
        x_name: x_name.into(),
        x,
        metric: metric.into(),
        unit: value.0.into(),
        value: value.1,
        ci95: None,
        runs: 1,
    }
}

/// Counts of the whole load, at its length.
fn totals(rows: &mut Vec<Row>, (variant, seconds): (&str, f64), total: &Total) {
    for (metric, count) in [
        ("offered", total.offered),
        ("admitted", total.admitted),
        ("refused", total.refused),
        ("answered", total.answered),
        ("good", total.good),
        ("failed", total.failed),
    ] {
        rows.push(row((variant, "length_s", seconds), metric, ("1", count as f64)));
    }
    for (metric, value) in [("p50", total.p50_s), ("p99", total.p99_s)] {
        if let Some(s) = value {
            rows.push(row((variant, "length_s", seconds), metric, ("s", s)));
        }
    }
}

/// Counts of a class, at its place among the classes.
fn of_class(rows: &mut Vec<Row>, (variant, index): (&str, usize), counts: &ClassTotal) {
    for (metric, count) in [
        ("offered", counts.offered),
        ("refused", counts.refused),
        ("answered", counts.answered),
        ("good", counts.good),
        ("failed", counts.failed),
    ] {
        rows.push(row((variant, "class", index as f64), metric, ("1", count as f64)));
    }
}

fn over_time(rows: &mut Vec<Row>, (variant, at_s, width_s): (&str, f64, f64), total: &Total) {
    for (metric, count) in [
        ("offered", total.offered),
        ("admitted", total.admitted),
        ("refused", total.refused),
        ("answered", total.answered),
        ("goodput", total.good),
    ] {
        let rate = count as f64 / width_s;
        rows.push(row((variant, "time_s", at_s), metric, ("1/s", rate)));
    }
    for (metric, value) in [("p50", total.p50_s), ("p99", total.p99_s)] {
        if let Some(s) = value {
            rows.push(row((variant, "time_s", at_s), metric, ("s", s)));
        }
    }
}
