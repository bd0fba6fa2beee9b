// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of the survival experiment, from its rows alone.

use super::scenario::Scenario;
use crate::plot::{Figure, Panel, PlotError, Series};
use crate::results::Row;

/// File names and SVG texts of all figures that the rows allow.
pub(crate) fn all(scenario: &Scenario, rows: &[Row]) -> Result<Vec<(String, String)>, PlotError> {
    let mut figures = Vec::new();
    let plain = |row: &&Row| !row.variant.starts_with("halved-");
    let course: Vec<&Row> = rows.iter().filter(|r| r.x_name == "time_s").filter(plain).collect();
    let capacity = mean_capacity(rows);
    if !course.is_empty() {
        let title = format!("A crowd of {} times the capacity", scenario.trace_load);
        let figure = over_time(&title, &course, capacity);
        figures.push(("survival.svg".to_owned(), figure.svg()?));
    }
    let halved: Vec<&Row> =
        rows.iter().filter(|r| r.x_name == "time_s").filter(|row| !plain(row)).collect();
    if !halved.is_empty() {
        let title =
            format!("Half the CPU taken away under {} of the capacity", scenario.halved_load);
        figures.push(("halved.svg".to_owned(), over_time(&title, &halved, capacity).svg()?));
    }
    let loads: Vec<&Row> = rows.iter().filter(|row| row.x_name == "load").collect();
    let distinct = loads.iter().any(|row| (row.x - loads[0].x).abs() > 1e-9);
    if distinct {
        figures.push(("loads.svg".to_owned(), over_load(&loads, capacity).svg()?));
    }
    Ok(figures)
}

/// Each point has its own; the figures show one line.
fn mean_capacity(rows: &[Row]) -> Option<f64> {
    let all = rows.iter().filter(|row| row.metric == "capacity" && row.x_name == "load");
    let (sum, count) = all.fold((0.0, 0_u32), |(sum, count), row| (sum + row.value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

fn over_time(title: &str, rows: &[&Row], capacity: Option<f64>) -> Figure {
    let level = capacity.map(|capacity| (capacity, "capacity".to_owned()));
    let panels = vec![
        panel("answers within 1 s, 1/s", rows, "goodput", level),
        Panel { log: true, ..panel("p99 of the answers, s", rows, "p99", None) },
    ];
    Figure { title: title.into(), x_label: "time, s".into(), panels, ..Figure::default() }
}

fn over_load(rows: &[&Row], capacity: Option<f64>) -> Figure {
    let level = capacity.map(|capacity| (capacity, "capacity".to_owned()));
    let panels = vec![
        panel("answers within 1 s, 1/s", rows, "goodput", level),
        Panel { log: true, ..panel("p99 of the admitted, s", rows, "p99", None) },
        panel("refused, share of clients", rows, "refused", None),
    ];
    let x_label = "load, multiples of the capacity".into();
    let title = "From half to ten times the capacity".into();
    Figure { title, x_label, panels, ..Figure::default() }
}

fn panel(y_label: &str, rows: &[&Row], metric: &str, level: Option<(f64, String)>) -> Panel {
    let mut names: Vec<&str> = rows.iter().map(|row| row.variant.as_str()).collect();
    names.sort_unstable_by_key(|name| order(name));
    names.dedup();
    let series = names.into_iter().map(|name| {
        let mine = rows.iter().filter(|row| row.variant == name && row.metric == metric);
        let mut points: Vec<(f64, f64)> = mine.map(|row| (row.x, row.value)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Series { name: label(name), points, errors: Vec::new() }
    });
    Panel { y_label: y_label.into(), level, series: series.collect(), ..Panel::default() }
}

/// Without first: it has the same colour everywhere.
fn order(variant: &str) -> (bool, &str) {
    (!variant.ends_with("none"), variant)
}

fn label(variant: &str) -> String {
    match variant.trim_start_matches("halved-") {
        "none" => "without tidegate".into(),
        action => format!("with tidegate, {action}"),
    }
}
