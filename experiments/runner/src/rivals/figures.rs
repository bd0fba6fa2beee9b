// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The arms over the load, from the rows alone.

use crate::plot::{Figure, Panel, PlotError, Series};
use crate::results::{Row, over_capacity};

/// The figures with the arms that each shows beside `reject`: as many as there are colours.
const SHOWN: [(&str, &[&str]); 2] = [
    ("packets", &["none", "drop", "backlog", "nft", "nft-reject"]),
    ("proxies", &["haproxy", "nginx-req", "nginx-conn", "envoy", "failsafe", "failsafe-throttler"]),
];
/// The arm that all of them have.
const OURS: &str = "reject";

/// Names and SVG texts; none before two loads are there.
pub(super) fn all(rows: &[Row]) -> Result<Vec<(String, String)>, PlotError> {
    let mut figures = Vec::new();
    for (name, arms) in SHOWN {
        let shown = |row: &&Row| arms.contains(&&*row.variant) || row.variant == OURS;
        let steps = rows.iter().filter(|row| row.x_name == "load").filter(shown);
        let steps: Vec<&Row> = steps.collect();
        let rivals = steps.iter().any(|row| row.variant != OURS);
        if rivals && steps.iter().any(|row| (row.x - steps[0].x).abs() > 1e-9) {
            figures.push((format!("{name}.svg"), figure(&steps).svg()?));
        }
    }
    Ok(figures)
}

fn figure(steps: &[&Row]) -> Figure {
    let share = |row: &Row| over_capacity(row, steps);
    let time = |row: &Row| Some(row.value);
    let panels = vec![
        Panel {
            level: Some((1.0, "capacity".to_owned())),
            ..panel("responses within 1 s, over C", steps, "goodput", &share)
        },
        Panel { log: true, ..panel("p99 of the admitted, s", steps, "p99", &time) },
        Panel {
            log: true,
            ..panel("p99 from the intended start, s", steps, "p99_perceived", &time)
        },
    ];
    Figure {
        title: "Beside what an operator could do today".into(),
        x_label: "load, multiples of the capacity".into(),
        panels,
        ..Figure::default()
    }
}

fn panel(y_label: &str, rows: &[&Row], metric: &str, value: &dyn Fn(&Row) -> Option<f64>) -> Panel {
    let mut names: Vec<&str> = rows.iter().map(|row| row.variant.as_str()).collect();
    names.sort_unstable_by_key(|name| order(name));
    names.dedup();
    let series = names.into_iter().map(|name| {
        let mine = rows.iter().filter(|row| row.variant == name && row.metric == metric);
        let mut points: Vec<(f64, f64)> =
            mine.filter_map(|row| Some((row.x, value(row)?))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Series { name: name.to_owned(), points, errors: Vec::new() }
    });
    Panel { y_label: y_label.into(), series: series.collect(), ..Panel::default() }
}

/// Ours first: it has the same colour everywhere.
fn order(variant: &str) -> (bool, &str) {
    (variant != OURS, variant)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every arm has its line in the figure of its kind, and one load is no figure.
    #[test]
    fn every_arm_is_drawn_over_the_load() {
        let row = |variant: &str, x: f64, metric: &str, value: f64| Row {
            experiment: "product/rivals".into(),
            world: "lab".into(),
            variant: variant.into(),
            x_name: "load".into(),
            x,
            metric: metric.into(),
            unit: "1/s".into(),
            value,
            ci95: None,
            runs: 3,
        };
        let mut rows = Vec::new();
        for variant in ["nft", "reject", "none", "envoy"] {
            for x in [0.9, 3.0] {
                rows.push(row(variant, x, "goodput", 90.0));
                rows.push(row(variant, x, "capacity", 100.0));
                rows.push(row(variant, x, "p99", 0.1));
                rows.push(row(variant, x, "p99_perceived", 1.1));
            }
        }
        let figures = all(&rows).unwrap();
        assert_eq!(figures.len(), 2);
        let words: [&[&str]; 2] = [&["nft", "reject", "none", "over C"], &["envoy", "reject"]];
        for (figure, words) in figures.iter().zip(words) {
            for word in words {
                assert!(figure.1.contains(word), "{word} in {}", figure.0);
            }
        }
        assert!(!figures[1].1.contains("nft"));
        rows.retain(|row| row.x < 1.0);
        assert!(all(&rows).unwrap().is_empty());
        assert!(all(&[]).unwrap().is_empty());
    }
}
