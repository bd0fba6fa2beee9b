// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figures of a folder that `tidegate replay --out` wrote. The product draws nothing: what draws is not
//! linked into a program that runs as root.

use crate::plot::{Figure, Panel, Series};
use crate::results::{self, Row};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};

/// The document that is read (docs/replay.md).
const SCHEMA: &str = "tidegate-replay/1";
/// Largest file that is read, in bytes: the product writes at most some megabytes.
const BYTES_MAX: u64 = 64 << 20;
/// Most points of a line: more cannot be told apart.
const POINTS_MAX: usize = 480;

/// What figures need of replay.json beside results.csv.
#[derive(Debug, Deserialize)]
struct Document {
    schema: String,
    input: Input,
    service: Service,
    model: Model,
}

#[derive(Debug, Deserialize)]
struct Input {
    seconds: f64,
}

#[derive(Debug, Deserialize)]
struct Service {
    name: String,
    objective_s: f64,
}

#[derive(Debug, Deserialize)]
struct Model {
    capacity_per_s: f64,
}

/// A line of a figure: its name, and the variant and metric that it shows.
type Line = (&'static str, &'static str, &'static str);

const RATES: [Line; 4] = [
    ("offered", "tidegate", "offered"),
    ("admitted with tidegate", "tidegate", "admitted"),
    ("refused with tidegate", "tidegate", "refused"),
    ("admitted without", "none", "admitted"),
];
const GOOD: [Line; 3] = [
    ("offered", "tidegate", "offered"),
    ("with tidegate", "tidegate", "goodput"),
    ("without", "none", "goodput"),
];
const TIMES: [Line; 4] = [
    ("p99 with tidegate", "tidegate", "p99"),
    ("p99 without", "none", "p99"),
    ("median with tidegate", "tidegate", "p50"),
    ("median without", "none", "p50"),
];

/// Draws `figures/` of a folder; gives the paths.
///
/// # Errors
/// When the folder is not one of `tidegate replay`, or the figures cannot be written.
pub fn draw(dir: &Path) -> Result<Vec<PathBuf>> {
    let document: Document = serde_json::from_str(&read(dir, "replay.json")?)
        .with_context(|| format!("{}: not what `tidegate replay` writes", dir.display()))?;
    ensure!(
        document.schema == SCHEMA,
        "replay.json is a {:?}, {SCHEMA:?} expected",
        document.schema
    );
    let rows = results::from_csv(&read(dir, "results.csv")?)?;
    let to = dir.join("figures");
    fs::create_dir_all(&to).with_context(|| format!("make {}", to.display()))?;
    let mut paths = Vec::new();
    let drawn = |(_, figure): &(&str, Figure)| {
        figure.panels.iter().flat_map(|panel| &panel.series).any(|line| !line.points.is_empty())
    };
    // Where nobody was answered there are no times.
    for (name, figure) in figures(&document, &rows).into_iter().filter(drawn) {
        let path = to.join(name);
        fs::write(&path, figure.svg()?).with_context(|| format!("write {}", path.display()))?;
        paths.push(path);
    }
    Ok(paths)
}

fn read(dir: &Path, name: &str) -> Result<String> {
    let path = dir.join(name);
    let why = || format!("{}: is it a folder of `tidegate replay --out`?", path.display());
    let size = fs::metadata(&path).with_context(why)?.len();
    ensure!(size <= BYTES_MAX, "{}: {size} bytes are too many", path.display());
    fs::read_to_string(&path).with_context(why)
}

fn figures(document: &Document, rows: &[Row]) -> [(&'static str, Figure); 3] {
    let (scale, unit) = match document.input.seconds {
        s if s > 3.0 * 86_400.0 => (86_400.0, "days"),
        s if s > 3.0 * 3600.0 => (3600.0, "hours"),
        s if s > 600.0 => (60.0, "minutes"),
        _ => (1.0, "s"),
    };
    let panel = |y_label: &str, lines: &[Line], level: Option<(f64, String)>| Panel {
        y_label: y_label.into(),
        level,
        series: lines.iter().map(|line| series(rows, line, scale)).collect(),
        ..Panel::default()
    };
    let figure = |title: &str, panel: Panel| Figure {
        title: format!("{title} ({})", document.service.name),
        x_label: format!("time, {unit}"),
        panels: vec![panel],
        ..Figure::default()
    };
    let capacity = Some((document.model.capacity_per_s, "capacity".to_owned()));
    let within = format!("answers within {} s, 1/s", document.service.objective_s);
    let times = Panel { log: true, ..panel("until the answer, s", &TIMES, None) };
    [
        ("load.svg", figure("New clients", panel("clients, 1/s", &RATES, capacity.clone()))),
        ("goodput.svg", figure("Answers in time", panel(&within, &GOOD, capacity))),
        ("times.svg", figure("From arrival to answer", times)),
    ]
}

/// Neighbours are averaged where there are more periods than a figure can show.
fn series(rows: &[Row], (name, variant, metric): &Line, scale: f64) -> Series {
    let shown =
        |row: &&Row| row.x_name == "time_s" && row.variant == *variant && row.metric == *metric;
    let mut points: Vec<(f64, f64)> =
        rows.iter().filter(shown).map(|row| (row.x / scale, row.value)).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let together = points.len().div_ceil(POINTS_MAX).max(1);
    let mean = |few: &[(f64, f64)]| few.iter().map(|(_, y)| y).sum::<f64>() / few.len() as f64;
    let points = points.chunks(together).map(|few| (few[0].0, mean(few))).collect();
    Series { name: (*name).to_owned(), points, errors: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(replay: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("replay.json"), replay).unwrap();
        fs::write(dir.path().join("results.csv"), format!("{}\n", results::HEADER)).unwrap();
        dir
    }

    #[test]
    fn a_folder_of_something_else_is_an_error_that_names_it() {
        let empty = tempfile::tempdir().unwrap();
        let error = format!("{:#}", draw(empty.path()).unwrap_err());
        assert!(
            error.contains("replay.json: is it a folder of `tidegate replay --out`?"),
            "{error}"
        );
        let error = format!("{:#}", draw(folder("{}").path()).unwrap_err());
        assert!(error.contains("not what `tidegate replay` writes"), "{error}");
        let other = r#"{"schema": "tidegate-replay/2", "input": {"seconds": 1.0},
            "service": {"name": "a", "objective_s": 1.0}, "model": {"capacity_per_s": 1.0}}"#;
        let error = format!("{:#}", draw(folder(other).path()).unwrap_err());
        assert!(error.contains("\"tidegate-replay/2\", \"tidegate-replay/1\" expected"), "{error}");
    }

    #[test]
    fn neighbours_are_averaged_where_there_are_many() {
        let row = |x: f64| Row::simulated("replay", "none".into(), ("time_s", x), ("p99", "s", x));
        let rows: Vec<Row> = (0..2 * POINTS_MAX).rev().map(|x| row(x as f64)).collect();
        let points = series(&rows, &("", "none", "p99"), 1.0).points;
        assert_eq!((points.len(), points[0], points[1]), (POINTS_MAX, (0.0, 0.5), (2.0, 2.5)));
        assert!(series(&rows, &("", "tidegate", "p99"), 1.0).points.is_empty());
    }
}
