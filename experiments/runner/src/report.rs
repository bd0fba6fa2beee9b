// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A page from folders of results: for each experiment its claim, its figures, paper beside
//! measured, and why where they differ.

use crate::folder::{self, Read};
use crate::judge::{self, Line, Outcome, Show};
use crate::results::Row;
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Columns of a table, at most.
const COLUMNS_MAX: usize = 40;

/// Writes the page for these folders, and their figures into a folder beside it that has the
/// page's name. Gives the number of claims that do not hold.
///
/// # Errors
/// When a folder cannot be read or the page cannot be written.
pub fn write(dirs: &[PathBuf], page: &Path) -> Result<usize> {
    let figures = page.with_extension("");
    let folder = figures.file_name().and_then(|name| name.to_str()).unwrap_or("figures");
    fs::create_dir_all(&figures).with_context(|| format!("make {}", figures.display()))?;
    let mut sections = Vec::new();
    for dir in dirs {
        let read = folder::read(dir).with_context(|| dir.display().to_string())?;
        let lines = judge::judge(&read.expect, &read.rows, read.run.quick);
        let names = copy_figures(&dir.join("figures"), &figures)?;
        sections.push((read, lines, names));
    }
    let mut text = head(&sections);
    for (read, lines, names) in &sections {
        section(&mut text, (read, lines), (folder, names));
    }
    fs::write(page, text).with_context(|| format!("write {}", page.display()))?;
    Ok(sections.iter().flat_map(|(_, lines, _)| lines).filter(|line| !line.holds()).count())
}

type Section = (Read, Vec<Line>, Vec<String>);

fn head(sections: &[Section]) -> String {
    let mut text = String::from("# Results, judged\n\n");
    let _ = writeln!(
        text,
        "Made by `tidegate experiment judge … --report`; nothing here is written by hand. A claim \
         that does not hold is said not to hold; no band was widened. Bands were set before \
         measuring where the claim does not say otherwise.\n\n| experiment | what | runs | seed | claims that hold |\n| --- | --- | --- | --- | --- |"
    );
    for (read, lines, _) in sections {
        let runs = read.rows.iter().map(|row| row.runs).max().unwrap_or(0);
        let judged =
            |line: &&Line| !matches!(line.outcome, Outcome::NotJudged | Outcome::OtherWorld);
        let judged: Vec<&Line> = lines.iter().filter(judged).collect();
        let held = judged.iter().filter(|line| line.holds()).count();
        let quick = if read.run.quick { " (quick)" } else { "" };
        let name = &read.run.experiment;
        let _ = writeln!(
            text,
            "| [{name}](#{}) | {} | {runs}{quick} | {} | {held} of {} |",
            anchor(name),
            read.experiment.title(),
            read.run.seed,
            judged.len()
        );
    }
    text
}

/// The anchor that a heading gets.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || *c == '-' || *c == ' ');
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn section(text: &mut String, (read, lines): (&Read, &[Line]), (folder, names): (&str, &[String])) {
    let _ = writeln!(text, "\n## {}\n", read.run.experiment);
    // the claim's own heading becomes the first sentence
    let _ = writeln!(text, "**{}**", read.experiment.title());
    let claim = read.experiment.claim.split_once('\n').map_or("", |(_, rest)| rest);
    let _ = writeln!(text, "\n{}\n", claim.trim());
    for name in names {
        let _ = writeln!(text, "![{name}]({folder}/{name})\n");
    }
    claims(text, lines);
    for show in &read.expect.show {
        shown(text, show, &read.rows);
    }
    for note in &read.run.notes {
        let _ = writeln!(text, "Note: {note}\n");
    }
}

fn claims(text: &mut String, lines: &[Line]) {
    let head = "| claim | paper | measured | band | holds |\n| --- | --- | --- | --- | --- |";
    let _ = writeln!(text, "{head}");
    for line in lines {
        let (measured, holds) = judge::words(&line.outcome);
        let source = if line.source.is_empty() { "–" } else { &line.source };
        let _ =
            writeln!(text, "| {} | {source} | {measured} | {} | {holds} |", line.says, line.band);
    }
    text.push('\n');
    let differs = |line: &&Line| !line.why.is_empty() && !line.holds();
    let mut said: Vec<&str> = Vec::new();
    for line in lines.iter().filter(differs) {
        if !said.contains(&line.why.as_str()) {
            let _ = writeln!(text, "- Why not “{}”: {}", line.says, line.why.trim());
            said.push(&line.why);
        }
    }
    if !said.is_empty() {
        text.push('\n');
    }
}

fn shown(text: &mut String, show: &Show, rows: &[Row]) {
    let mut names: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|r| r.metric == show.metric && r.x_name == show.x_name) {
        let wanted = show.variants.is_empty()
            || show.variants.iter().any(|pattern| judge::fits(pattern, &row.variant));
        if wanted && !names.contains(&row.variant.as_str()) {
            names.push(&row.variant);
        }
    }
    let at = &show.at[..show.at.len().min(COLUMNS_MAX)];
    let columns: Vec<String> = at.iter().map(|x| judge::short(*x)).collect();
    let _ = writeln!(text, "{} (± half the 95 % interval):\n", show.says);
    let _ = writeln!(text, "| variant, by {} | {} |", show.x_name, columns.join(" | "));
    let _ = writeln!(text, "| --- |{}", " --- |".repeat(at.len()));
    for name in names {
        let cells: Vec<String> = at.iter().map(|x| cell(rows, show, name, *x)).collect();
        let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
    }
    text.push('\n');
}

fn cell(rows: &[Row], show: &Show, variant: &str, x: f64) -> String {
    let times = show.times.unwrap_or(1.0);
    let found = rows.iter().find(|row| {
        row.variant == variant
            && row.metric == show.metric
            && row.x_name == show.x_name
            && (row.x - x).abs() <= 1e-9 * x.abs().max(1.0)
    });
    let Some(row) = found else { return "–".into() };
    let value = judge::short(row.value * times);
    match row.ci95.filter(|ci| *ci > 0.0) {
        Some(ci) => format!("{value} ± {:.*}", decimals(&value), ci * times),
        None => value,
    }
}

/// Digits behind the point, so that a width is as fine as its value.
fn decimals(value: &str) -> usize {
    value.split_once('.').map_or(1, |(_, digits)| digits.len())
}

fn copy_figures(from: &Path, to: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let Ok(entries) = fs::read_dir(from) else { return Ok(names) };
    for path in entries.flatten().map(|entry| entry.path()) {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if path.extension().is_some_and(|end| end == "svg") {
            fs::copy(&path, to.join(name)).with_context(|| format!("copy {}", path.display()))?;
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page names every claim of every folder, what was measured, and its figures.
    #[test]
    fn a_page_has_claims_tables_and_figures() {
        let dir = std::env::temp_dir().join(format!("tidegate-report-{}", std::process::id()));
        let row = |metric: &str, value| Row {
            experiment: "product/survival".into(),
            world: "lab".into(),
            variant: "reject".into(),
            x_name: "load".into(),
            x: 2.0,
            metric: metric.into(),
            unit: "1/s".into(),
            value,
            ci95: Some(0.125),
            runs: 3,
        };
        let rows = [row("goodput", 99.0)];
        let run = folder::Run {
            experiment: "product/survival".into(),
            quick: true,
            ..folder::Run::default()
        };
        let results = dir.join("results");
        folder::write(&results, &run, &rows, &[("a.svg".into(), "<svg/>".into())]).unwrap();
        let page = dir.join("page.md");
        let failed = write(&[results], &page).unwrap();
        let text = fs::read_to_string(&page).unwrap();
        assert!(failed > 0, "nothing holds that was not measured");
        assert!(text.contains("NOT MEASURED") && text.contains("![a.svg](page/a.svg)"), "{text}");
        assert!(dir.join("page/a.svg").is_file());
        let show = Show {
            metric: "goodput".into(),
            says: "Goodput".into(),
            x_name: "load".into(),
            at: vec![2.0, 3.0],
            variants: vec!["rej*".into()],
            times: None,
        };
        let mut table = String::new();
        shown(&mut table, &show, &rows);
        assert!(table.contains("| reject | 99 ± 0.1 | – |"), "{table}");
        fs::remove_dir_all(&dir).unwrap();
    }
}
