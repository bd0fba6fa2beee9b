// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of a scenario, from its rows alone.

use super::scenario::{FigureSpec, PanelSpec, Scenario};
use crate::plot::{Figure, Panel, PlotError, Series};
use crate::results::Row;

/// File names and SVG texts of all figures of a scenario.
///
/// # Errors
/// When a figure has nothing to show.
pub fn all(scenario: &Scenario, rows: &[Row]) -> Result<Vec<(String, String)>, PlotError> {
    let variants: Vec<&str> = scenario.variants.iter().map(|v| v.name.as_str()).collect();
    draw(&scenario.figures, (&scenario.x.name, &variants), rows)
}

/// File names and SVG texts of these figures; where one does not name its x axis or its variants,
/// they are the experiment's.
///
/// # Errors
/// When a figure has nothing to show.
pub fn draw(
    specs: &[FigureSpec],
    of: (&str, &[&str]),
    rows: &[Row],
) -> Result<Vec<(String, String)>, PlotError> {
    let one = |spec: &FigureSpec| {
        let svg = figure(of, spec, rows).svg()?;
        Ok((format!("{}.svg", spec.file), svg))
    };
    specs.iter().map(one).collect()
}

fn figure((x_name, variants): (&str, &[&str]), spec: &FigureSpec, rows: &[Row]) -> Figure {
    let x_name = spec.x_name.as_deref().unwrap_or(x_name);
    let mut names: Vec<&str> = spec.variants.iter().map(String::as_str).collect();
    if names.is_empty() {
        names = variants.to_vec();
    }
    let course = x_name == "time_s";
    let panel = |panel: &PanelSpec, names: &[&str]| Panel {
        y_label: match names {
            [one] if spec.each => format!("{one}: {}", panel.label),
            _ => panel.label.clone(),
        },
        range: panel.range,
        series: panel_names(panel, names)
            .iter()
            .map(|name| series(rows, (name, x_name), panel))
            .map(|series| if course { Series { errors: Vec::new(), ..series } } else { series })
            .collect(),
        ..Panel::default()
    };
    let panels = if spec.each {
        let each = |p: &PanelSpec| names.iter().map(|name| panel(p, &[name])).collect::<Vec<_>>();
        spec.panels.iter().flat_map(each).collect()
    } else {
        spec.panels.iter().map(|p| panel(p, &names)).collect()
    };
    Figure {
        title: spec.title.clone(),
        x_label: spec.x_label.clone(),
        panels,
        across: !spec.each && !course,
        x_log: spec.x_log,
        labelled: spec.each,
    }
}

/// A panel that names variants shows these.
fn panel_names<'a>(panel: &'a PanelSpec, names: &[&'a str]) -> Vec<&'a str> {
    if panel.variants.is_empty() {
        return names.to_vec();
    }
    panel.variants.iter().map(String::as_str).collect()
}

fn series(rows: &[Row], (variant, x_name): (&str, &str), panel: &PanelSpec) -> Series {
    let mine =
        |row: &&Row| row.variant == variant && row.x_name == x_name && row.metric == panel.metric;
    let mut found: Vec<&Row> = rows.iter().filter(mine).collect();
    found.sort_by(|a, b| a.x.total_cmp(&b.x));
    Series {
        name: variant.to_owned(),
        points: found.iter().map(|row| (row.x, row.value * panel.times)).collect(),
        errors: found.iter().map(|row| row.ci95.unwrap_or(0.0) * panel.times).collect(),
    }
}
