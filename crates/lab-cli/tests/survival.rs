// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The demo as a stranger runs it: real Apache, real crowd, a table and a figure.
//!
//! ```text
//!   cl: 0.5, 3, 0.5 times the capacity ── rt ── sv: Apache prefork with a CGI, tidegate or not
//! ```
//!
//! What it shows is judged by `tidegate-lab experiment judge`, not here: a busy machine must not fail a
//! test. Here: it ends, it leaves nothing, its files are whole, its last line names the figure, and
//! the difference is there at all (a factor of ten in the numbers, so any sign of it will do).

mod common;

#[test]
fn the_demo_shows_the_difference() {
    let ran = common::experiment("product/survival", &["--demo"]);
    let figure =
        ran.last.strip_prefix("figure: ").unwrap_or_else(|| panic!("last line: {}", ran.last));
    let svg = std::fs::read_to_string(figure).unwrap();
    assert!(svg.contains("without tidegate") && svg.contains("with tidegate, reject"), "{figure}");
    let values = ran.at_load();
    let value = |variant: &str, metric: &str| values[&[variant.to_owned(), metric.to_owned()]];
    for variant in ["none", "drop", "reject"] {
        assert!(value(variant, "capacity") > 0.0);
        assert!(value(variant, "offered") > value(variant, "goodput"), "{variant}: overloaded");
    }
    assert!(value("reject", "refused") > 0.2, "{values:?}");
    assert!(value("reject", "goodput") > value("none", "goodput"), "{values:?}");
    assert!(value("drop", "goodput") > value("none", "goodput"), "{values:?}");
}
