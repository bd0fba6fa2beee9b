// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a demo says at its end: the variants side by side.

use crate::judge::short;
use crate::results::Row;
use std::fmt::Write as _;

/// The metrics shown, with the words for them.
const SHOWN: [(&str, &str); 7] = [
    ("offered", "requests offered, 1/s"),
    ("goodput", "answered within 1 s, 1/s"),
    ("answered", "answered within 10 s, 1/s"),
    ("p50", "median of the answered, s"),
    ("p99", "p99 of the answered, s"),
    ("refused", "share of clients refused"),
    ("failed", "share of clients never answered"),
];

/// A table of the variants at the highest load, and the recovery after it.
#[must_use]
pub fn of(rows: &[Row]) -> String {
    let load = rows.iter().filter(|r| r.x_name == "load").map(|r| r.x).fold(0.0, f64::max);
    let mut variants: Vec<&str> = rows
        .iter()
        .filter(|row| row.x_name == "load" && !row.variant.starts_with("halved-"))
        .map(|row| row.variant.as_str())
        .collect();
    variants.sort_unstable_by_key(|name| (*name != "none", *name));
    variants.dedup();
    let value = |metric: &str, x_name: &str, variant: &str| {
        let found = rows.iter().find(|row| {
            row.metric == metric && row.variant == variant && row.x_name == x_name && row.x >= load
        });
        found.map_or_else(|| "-".to_owned(), |row| short(row.value))
    };
    let mut text = String::new();
    let capacity = value("capacity", "load", variants.first().copied().unwrap_or("none"));
    let _ = writeln!(text, "\n{} times the capacity of {capacity} answers/s:\n", short(load));
    let _ = write!(text, "{:34}", "");
    for variant in &variants {
        let name = if *variant == "none" { "without" } else { variant };
        let _ = write!(text, "{name:>12}");
    }
    text.push('\n');
    for (metric, words) in SHOWN {
        let _ = write!(text, "{words:34}");
        for variant in &variants {
            let _ = write!(text, "{:>12}", value(metric, "load", variant));
        }
        text.push('\n');
    }
    let _ = write!(text, "{:34}", "seconds to recover afterwards");
    for variant in &variants {
        let _ = write!(text, "{:>12}", value("recovery", "load_after", variant));
    }
    text.push_str("\n\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variants_stand_side_by_side_without_first() {
        let row = |variant: &str, metric: &str, value: f64| Row {
            experiment: "product/survival".into(),
            world: "lab".into(),
            variant: variant.into(),
            x_name: "load".into(),
            x: 3.0,
            metric: metric.into(),
            unit: "1/s".into(),
            value,
            ci95: None,
            runs: 1,
        };
        let text = of(&[
            row("drop", "goodput", 250.0),
            row("none", "goodput", 3.5),
            row("none", "capacity", 260.0),
        ]);
        assert!(text.contains("3 times the capacity of 260 answers/s"), "{text}");
        let line = text.lines().find(|line| line.starts_with("answered within 1 s")).unwrap();
        let values: Vec<&str> = line.split_whitespace().rev().take(2).collect();
        assert_eq!(values, ["250", "3.5"]);
    }
}
