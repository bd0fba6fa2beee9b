// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one schema of results: a row a metric and point, as CSV.

use std::cmp::Ordering;
use std::fmt::Write as _;

/// The head line of every results.csv.
pub const HEADER: &str = "experiment,world,variant,x_name,x,metric,unit,value,ci95,runs";

/// One value of one metric at one point.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// `product/survival`, `abacus/fig8` …
    pub experiment: String,
    /// `sim` or `lab`.
    pub world: String,
    /// What is compared, lower case with hyphens.
    pub variant: String,
    /// What is varied, lower case with underscores; `time_s` for time series.
    pub x_name: String,
    /// Where on it.
    pub x: f64,
    /// What was measured, lower case with underscores.
    pub metric: String,
    /// Its unit: `1/s`, `s`, `share` …
    pub unit: String,
    /// The value.
    pub value: f64,
    /// Half width of the 95 % interval over runs; `None` for one run.
    pub ci95: Option<f64>,
    /// How many runs.
    pub runs: u32,
}

impl Row {
    /// One value of the simulator: whose, at which x, and what (metric, unit, value).
    #[must_use]
    pub fn simulated(
        experiment: &str,
        variant: String,
        (x_name, x): (&str, f64),
        (metric, unit, value): (&str, &str, f64),
    ) -> Self {
        Self {
            experiment: experiment.into(),
            world: "sim".into(),
            variant,
            x_name: x_name.into(),
            x,
            metric: metric.into(),
            unit: unit.into(),
            value,
            ci95: None,
            runs: 1,
        }
    }

    fn key(&self) -> (&str, &str, &str, &str) {
        (&self.experiment, &self.world, &self.variant, &self.x_name)
    }

    /// The order in results.csv: all columns up to metric.
    #[must_use]
    pub fn order(&self, other: &Self) -> Ordering {
        self.key()
            .cmp(&other.key())
            .then(self.x.total_cmp(&other.x))
            .then(self.metric.cmp(&other.metric))
    }
}

/// A number with up to 9 significant digits and no needless zeros.
#[must_use]
pub fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".into() } else { value.to_string() };
    }
    let magnitude = value.abs().log10().floor() as i32;
    if !(-5..15).contains(&magnitude) {
        let text = format!("{value:.8e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let mantissa = mantissa.trim_end_matches('0').trim_end_matches('.');
        return format!("{mantissa}e{exponent}");
    }
    trimmed(value, (8 - magnitude).max(0) as usize)
}

/// A number with so many decimals, without needless zeros.
#[must_use]
pub fn trimmed(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_string()
    } else {
        text
    }
}

/// Rows as the text of results.csv, sorted.
#[must_use]
pub fn to_csv(rows: &[Row]) -> String {
    let mut sorted: Vec<&Row> = rows.iter().collect();
    sorted.sort_by(|a, b| a.order(b));
    let mut text = format!("{HEADER}\n");
    for row in sorted {
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{},{},{},{}",
            row.experiment,
            row.world,
            row.variant,
            row.x_name,
            number(row.x),
            row.metric,
            row.unit,
            number(row.value),
            row.ci95.map(number).unwrap_or_default(),
            row.runs
        );
    }
    text
}

/// What was wrong with a results.csv, and in which line.
#[derive(Debug, thiserror::Error)]
#[error("results.csv, line {line}: {what}")]
pub struct CsvError {
    /// Line, from 1.
    pub line: usize,
    /// What was found and what is allowed.
    pub what: String,
}

/// Reads what [`to_csv`] writes.
///
/// # Errors
/// For a wrong head line, a wrong number of columns, or a column that is no number.
pub fn from_csv(text: &str) -> Result<Vec<Row>, CsvError> {
    let mut lines = text.lines();
    if lines.next() != Some(HEADER) {
        return Err(CsvError { line: 1, what: format!("the first line must be {HEADER}") });
    }
    lines
        .enumerate()
        .map(|(i, line)| row(line).map_err(|what| CsvError { line: i + 2, what }))
        .collect()
}

fn row(line: &str) -> Result<Row, String> {
    let columns: Vec<&str> = line.split(',').collect();
    let [experiment, world, variant, x_name, x, metric, unit, value, ci95, runs] = columns[..]
    else {
        return Err(format!("{} columns, 10 expected", columns.len()));
    };
    let float = |name: &str, text: &str| {
        text.parse::<f64>().map_err(|_| format!("{name} is {text:?}, a number expected"))
    };
    Ok(Row {
        experiment: experiment.into(),
        world: world.into(),
        variant: variant.into(),
        x_name: x_name.into(),
        x: float("x", x)?,
        metric: metric.into(),
        unit: unit.into(),
        value: float("value", value)?,
        ci95: if ci95.is_empty() { None } else { Some(float("ci95", ci95)?) },
        runs: runs.parse().map_err(|_| format!("runs is {runs:?}, a whole number expected"))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_nine_digits_and_no_needless_zeros() {
        let shown = [0.0, 1.0, 0.5, 100.0, 1.0 / 3.0, 123_456_789.123, 1e-7, 2.5e20].map(number);
        assert_eq!(shown, ["0", "1", "0.5", "100", "0.333333333", "123456789", "1e-7", "2.5e20"]);
    }

    #[test]
    fn rows_survive_the_round_trip_sorted() {
        let row = |variant: &str, x: f64, ci95| Row {
            experiment: "product/survival".into(),
            world: "lab".into(),
            variant: variant.into(),
            x_name: "load".into(),
            x,
            metric: "goodput".into(),
            unit: "1/s".into(),
            value: 259.25,
            ci95,
            runs: 3,
        };
        let rows =
            [row("reject", 10.0, Some(0.5)), row("reject", 2.0, None), row("none", 3.0, None)];
        let back = from_csv(&to_csv(&rows)).unwrap();
        assert_eq!(back, [rows[2].clone(), rows[1].clone(), rows[0].clone()]);
    }

    #[test]
    fn errors_name_the_line() {
        let text = format!("{HEADER}\na,lab,v,load,1,m,s,x,,1\n");
        assert_eq!(
            from_csv(&text).unwrap_err().to_string(),
            "results.csv, line 2: value is \"x\", a number expected"
        );
        assert!(from_csv("a,b\n").is_err());
    }
}
