// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The arms over the load, from the rows alone: a figure for each transport.

use crate::plot::{Figure, Panel, PlotError, Series};
use crate::results::{Row, over_capacity};

/// What is drawn: ours behind each proxy, and those that find their limit by themselves.
const SHOWN: [&str; 9] = [
    "nginx-*-gate",
    "haproxy-*-gate",
    "envoy-*-gate",
    "caddy-*-gate",
    "own-*-gate",
    "envoy-*-adaptive",
    "envoy-*-admission",
    "failsafe-*-limiter",
    "failsafe-*-throttler",
];

/// Names and SVG texts; none before two loads are there.
pub(super) fn all(rows: &[Row]) -> Result<Vec<(String, String)>, PlotError> {
    let mut figures = Vec::new();
    for transport in ["tls", "h2"] {
        let names = SHOWN.map(|name| name.replace('*', transport));
        let shown = |row: &&Row| row.x_name == "load" && names.contains(&row.variant);
        let steps: Vec<&Row> = rows.iter().filter(shown).collect();
        if steps.iter().any(|row| (row.x - steps[0].x).abs() > 1e-9) {
            figures.push((format!("{transport}.svg"), figure(&steps, (&names, transport)).svg()?));
        }
    }
    Ok(figures)
}

fn figure(steps: &[&Row], (names, transport): (&[String], &str)) -> Figure {
    let share = |row: &Row| over_capacity(row, steps);
    let time = |row: &Row| Some(row.value);
    let panels = vec![
        Panel {
            level: Some((1.0, "capacity".to_owned())),
            ..panel("responses within 1 s, over C", (steps, names), "goodput", &share)
        },
        Panel { log: true, ..panel("p99 of the admitted, s", (steps, names), "p99", &time) },
    ];
    let spoken = if transport == "h2" { "HTTP/2" } else { "HTTP/1.1" };
    Figure {
        title: format!("Behind each proxy, {spoken} in TLS"),
        x_label: "load, multiples of the capacity".into(),
        panels,
        ..Figure::default()
    }
}

fn panel(
    y_label: &str,
    (rows, names): (&[&Row], &[String]),
    metric: &str,
    value: &dyn Fn(&Row) -> Option<f64>,
) -> Panel {
    let there = names.iter().filter(|name| rows.iter().any(|row| row.variant == **name));
    let series = there.map(|name| {
        let mine = rows.iter().filter(|row| row.variant == *name && row.metric == metric);
        let mut points: Vec<(f64, f64)> =
            mine.filter_map(|row| Some((row.x, value(row)?))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Series { name: name.clone(), points, errors: Vec::new() }
    });
    Panel { y_label: y_label.into(), series: series.collect(), ..Panel::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was run by a transport is drawn in its figure, and one load is no figure.
    #[test]
    fn each_transport_has_a_figure_of_what_was_run() {
        let mut rows = Vec::new();
        for variant in ["nginx-h2-gate", "envoy-h2-adaptive", "nginx-h2-limit-req"] {
            for x in [0.9, 3.0] {
                let one = |metric: &str, value: f64| {
                    let mut row = Row::simulated(
                        "product/gateways",
                        variant.to_owned(),
                        ("load", x),
                        (metric, "1/s", value),
                    );
                    row.world = "lab".into();
                    row
                };
                rows.extend([one("goodput", 90.0), one("capacity", 100.0), one("p99", 0.1)]);
            }
        }
        let figures = all(&rows).unwrap();
        assert_eq!(figures.iter().map(|f| f.0.as_str()).collect::<Vec<_>>(), ["h2.svg"]);
        for word in ["nginx-h2-gate", "envoy-h2-adaptive", "HTTP/2"] {
            assert!(figures[0].1.contains(word), "{word}");
        }
        assert!(!figures[0].1.contains("limit-req"));
        rows.retain(|row| row.x < 1.0);
        assert!(all(&rows).unwrap().is_empty());
    }
}
