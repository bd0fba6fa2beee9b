// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What claims need beside the metrics of single points; from the rows of either world.

use crate::results::Row;

/// `of_peak`: a throughput over the highest that the same variant has at this or a lower x. Below 1
/// only beyond a peak.
#[must_use]
pub fn of_peak(rows: &[Row], x_name: &str) -> Vec<Row> {
    let mine = |row: &&Row| row.x_name == x_name && row.metric == "throughput";
    let peak = |row: &Row| {
        let before = rows.iter().filter(mine).filter(|r| r.variant == row.variant && r.x <= row.x);
        before.map(|r| r.value).fold(0.0, f64::max)
    };
    let derived = |row: &Row| Row {
        metric: "of_peak".into(),
        unit: "ratio".into(),
        value: row.value / peak(row).max(1e-9),
        ci95: None,
        ..row.clone()
    };
    rows.iter().filter(mine).map(derived).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_is_of_the_same_variant_and_of_no_higher_load() {
        let row = |variant: &str, x: f64, value: f64| Row {
            experiment: "dual-admission/fig4".into(),
            world: "sim".into(),
            variant: variant.into(),
            x_name: "load".into(),
            x,
            metric: "throughput".into(),
            unit: "1/s".into(),
            value,
            ci95: None,
            runs: 1,
        };
        let rows = [row("a", 2.0, 90.0), row("a", 1.0, 100.0), row("b", 1.0, 50.0)];
        let mut peaks: Vec<(String, f64, f64)> =
            of_peak(&rows, "load").into_iter().map(|r| (r.variant, r.x, r.value)).collect();
        peaks.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let expected = [("a", 1.0, 1.0), ("a", 2.0, 0.9), ("b", 1.0, 1.0)];
        assert_eq!(peaks, expected.map(|(v, x, p)| (v.to_owned(), x, p)));
        assert!(of_peak(&rows, "time_s").is_empty());
    }
}
