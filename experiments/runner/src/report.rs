// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A page from folders of results: for each experiment its claim, its figures, paper beside
//! measured, and why where they differ.

use crate::folder::{self, Read};
use crate::judge::{self, Line, Show};
use crate::results::Row;
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Columns of a table, at most.
const COLUMNS_MAX: usize = 40;
/// A cell for which nothing was measured.
const NOTHING: &str = "–";

/// One folder of an experiment, judged.
struct Part {
    read: Read,
    lines: Vec<Line>,
    /// Its figures, as they are named beside the page.
    figures: Vec<String>,
}

/// Writes the page for these folders, and their figures into a folder beside it that has the
/// page's name. Folders of one experiment share a section, with their worlds beside each other.
/// Gives the number of claims that do not hold.
///
/// # Errors
/// When a folder cannot be read, two are of the same experiment in the same world, or the page
/// cannot be written.
pub fn write(dirs: &[PathBuf], page: &Path) -> Result<usize> {
    let figures = page.with_extension("");
    let folder = figures.file_name().and_then(|name| name.to_str()).unwrap_or("figures");
    fs::create_dir_all(&figures).with_context(|| format!("make {}", figures.display()))?;
    let mut sections: Vec<Vec<Part>> = Vec::new();
    for dir in dirs {
        let read = folder::read(dir).with_context(|| dir.display().to_string())?;
        let lines = judge::judge(&read.expect, &read.rows, read.run.quick);
        let (name, world) = (read.run.experiment.clone(), read.run.world.clone());
        let place = sections.iter().position(|section| section[0].read.run.experiment == name);
        let place = place.unwrap_or_else(|| {
            sections.push(Vec::new());
            sections.len() - 1
        });
        let taken: Vec<String> =
            sections.iter().flatten().flat_map(|part| part.figures.clone()).collect();
        let section = &mut sections[place];
        let twice = section.iter().any(|part| part.read.run.world == world);
        anyhow::ensure!(!twice, "{}: {name} in the {world}, a second time", dir.display());
        let end = if section.is_empty() { String::new() } else { format!("-{world}") };
        let short = name.rsplit('/').next().unwrap_or_default();
        // Figures of two experiments may have the same name: that of the later one has its own before.
        let named = |stem: &str| {
            let plain = format!("{stem}{end}.svg");
            if taken.contains(&plain) { format!("{short}-{plain}") } else { plain }
        };
        let figures = copy_figures(&dir.join("figures"), &figures, &named)?;
        section.push(Part { read, lines, figures });
    }
    let mut text = head(&sections);
    for parts in &sections {
        section(&mut text, parts, folder);
    }
    fs::write(page, text).with_context(|| format!("write {}", page.display()))?;
    Ok(sections.iter().flatten().flat_map(|part| &part.lines).filter(|l| !l.holds()).count())
}

fn head(sections: &[Vec<Part>]) -> String {
    let mut text = String::from("# Results, judged\n\n");
    let _ = writeln!(
        text,
        "Made by `tidegate experiment judge … --report` from the results of the runs; where rows are \
         of several runs, or a run was not the scenario as it stands, a note below the tables says so. \
         A claim that does not hold is said not to hold; no band was widened. Lines without a band \
         report what was seen, from the least to the largest value, and are not counted as claims. \
         Where the lab's capacity drifted beside a run by more than 3 %, a claim counts only if its \
         value stays in the band with that drift put on it, in either direction, and never beyond a \
         drift of 25 % (zero stays zero; the rule was set when results were known: before, a \
         drift above 3 % left nothing held). A value of three rounds or more that is compared as it \
         was measured is then judged by its 95 % interval instead, which has the drift in it: one that \
         reaches beyond the band does not count (set before table 1's last run, when one round of an \
         earlier one was known). Bands were set before measuring where the claim does not say otherwise.\n\n| experiment | what | world | runs | seed | claims that hold |\n| --- | --- | --- | --- | --- | --- |"
    );
    for part in sections.iter().flatten() {
        let runs = part.read.rows.iter().map(|row| row.runs).max().unwrap_or(0);
        let judged: Vec<&Line> = part.lines.iter().filter(|line| line.judged()).collect();
        let held = judged.iter().filter(|line| line.holds()).count();
        let run = &part.read.run;
        let quick = if run.quick { " (quick)" } else { "" };
        let _ = writeln!(
            text,
            "| [{}](#{}) | {} | {} | {runs}{quick} | {} | {held} of {} |",
            run.experiment,
            anchor(&run.experiment),
            part.read.experiment.title(),
            run.world,
            run.seed,
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

fn section(text: &mut String, parts: &[Part], folder: &str) {
    let Some(first) = parts.first().map(|part| &part.read) else { return };
    let _ = writeln!(text, "\n## {}\n", first.run.experiment);
    // the claim's own heading becomes the first sentence
    let _ = writeln!(text, "**{}**", first.experiment.title());
    let claim = first.experiment.claim.split_once('\n').map_or("", |(_, rest)| rest);
    let _ = writeln!(text, "\n{}\n", claim.trim());
    for part in parts {
        for name in &part.figures {
            let _ = writeln!(text, "![{name}]({folder}/{name})\n");
        }
    }
    claims(text, parts);
    for show in &first.expect.show {
        shown(text, show, parts);
    }
    for part in parts {
        for note in &part.read.run.notes {
            let _ = writeln!(text, "Note ({}): {note}\n", part.read.run.world);
        }
    }
}

/// The claims, a pair of columns for each world.
fn claims(text: &mut String, parts: &[Part]) {
    let Some(first) = parts.first() else { return };
    let worlds: Vec<String> = parts.iter().map(|part| beside(parts, part)).collect();
    let heads: Vec<String> =
        worlds.iter().map(|world| format!("measured{world} | holds{world}")).collect();
    let _ = writeln!(text, "| claim | source | band | {} |", heads.join(" | "));
    let _ = writeln!(text, "| --- | --- | --- |{}", " --- | --- |".repeat(parts.len()));
    for (index, line) in first.lines.iter().enumerate() {
        let source = if line.source.is_empty() { "–" } else { &line.source };
        let words = parts.iter().map(|part| judge::words(&part.lines[index].outcome));
        let cells: Vec<String> =
            words.map(|(measured, holds)| format!("{measured} | {holds}")).collect();
        let _ =
            writeln!(text, "| {} | {source} | {} | {} |", line.says, line.band, cells.join(" | "));
    }
    text.push('\n');
    let mut said: Vec<&str> = Vec::new();
    for (place, part) in parts.iter().enumerate() {
        for (line, claim) in part.lines.iter().zip(&part.read.expect.claims) {
            let why = claim.reason(&part.read.run.world, place == 0);
            if !why.is_empty() && !line.holds() && !said.contains(&why) {
                let world = if why == claim.why { "" } else { " in the lab" };
                let _ = writeln!(text, "- Why not “{}”{world}: {}", line.says, why.trim());
                said.push(why);
            }
        }
    }
    if !said.is_empty() {
        text.push('\n');
    }
}

/// What is said behind a name so that its world is known; nothing where there is only one.
fn beside(parts: &[Part], part: &Part) -> String {
    if parts.len() > 1 { format!(", {}", part.read.run.world) } else { String::new() }
}

/// A table: a row for each variant, its worlds one below the other.
fn shown(text: &mut String, show: &Show, parts: &[Part]) {
    let mut names: Vec<&str> = Vec::new();
    for row in parts.iter().flat_map(|part| &part.read.rows) {
        let wanted = show.variants.is_empty()
            || show.variants.iter().any(|pattern| judge::fits(pattern, &row.variant));
        let fits = row.metric == show.metric && row.x_name == show.x_name;
        if fits && wanted && !names.contains(&row.variant.as_str()) {
            names.push(&row.variant);
        }
    }
    let at = &show.at[..show.at.len().min(COLUMNS_MAX)];
    let mut lines = String::new();
    for name in names {
        for part in parts {
            let cells: Vec<String> =
                at.iter().map(|x| cell(&part.read.rows, show, name, *x)).collect();
            if cells.iter().any(|cell| cell != NOTHING) {
                let _ =
                    writeln!(lines, "| {name}{} | {} |", beside(parts, part), cells.join(" | "));
            }
        }
    }
    let width = if lines.contains('±') { " (± half the 95 % interval)" } else { "" };
    let columns: Vec<String> = at.iter().map(|x| judge::short(*x)).collect();
    let _ = writeln!(text, "{}{width}:\n", show.says);
    let _ = writeln!(text, "| variant, by {} | {} |", show.x_name, columns.join(" | "));
    let _ = writeln!(text, "| --- |{}\n{lines}", " --- |".repeat(at.len()));
}

fn cell(rows: &[Row], show: &Show, variant: &str, x: f64) -> String {
    let find = |metric: &str| {
        rows.iter().find(|row| {
            row.variant == variant
                && row.metric == metric
                && row.x_name == show.x_name
                && (row.x - x).abs() <= 1e-9 * x.abs().max(1.0)
        })
    };
    let Some(row) = find(&show.metric) else { return NOTHING.into() };
    let times = match &show.per {
        None => show.times.unwrap_or(1.0),
        Some(per) => match find(per) {
            Some(per) => show.times.unwrap_or(1.0) / per.value,
            None => return NOTHING.into(),
        },
    };
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

/// Copies a folder's figures under other names; gives those.
fn copy_figures(from: &Path, to: &Path, named: &dyn Fn(&str) -> String) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let Ok(entries) = fs::read_dir(from) else { return Ok(names) };
    for path in entries.flatten().map(|entry| entry.path()) {
        let Some(stem) = path.file_stem().and_then(|name| name.to_str()) else { continue };
        if path.extension().is_some_and(|end| end == "svg") {
            let name = named(stem);
            fs::copy(&path, to.join(&name)).with_context(|| format!("copy {}", path.display()))?;
            names.push(name);
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
        let rows = [row("lab", "goodput", 99.0)];
        let run = folder::Run {
            experiment: "product/survival".into(),
            quick: true,
            ..folder::Run::default()
        };
        let results = dir.join("results");
        folder::write(&results, &run, &rows, &[("a.svg".into(), "<svg/>".into())]).unwrap();
        // Another experiment, whose figure has the same name.
        let rivals = dir.join("rivals");
        let run = folder::Run { experiment: "product/rivals".into(), ..run };
        folder::write(&rivals, &run, &rows, &[("a.svg".into(), "<svg></svg>".into())]).unwrap();
        let page = dir.join("page.md");
        let failed = write(&[results, rivals], &page).unwrap();
        let text = fs::read_to_string(&page).unwrap();
        assert!(failed > 0, "nothing holds that was not measured");
        assert!(text.contains("NOT MEASURED") && text.contains("![a.svg](page/a.svg)"), "{text}");
        assert!(text.contains("![rivals-a.svg](page/rivals-a.svg)"), "{text}");
        for (name, figure) in [("a.svg", "<svg/>"), ("rivals-a.svg", "<svg></svg>")] {
            assert_eq!(fs::read_to_string(dir.join("page").join(name)).unwrap(), figure);
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    fn row(world: &str, metric: &str, value: f64) -> Row {
        Row {
            experiment: "product/survival".into(),
            world: world.into(),
            variant: "reject".into(),
            x_name: "load".into(),
            x: 2.0,
            metric: metric.into(),
            unit: "1/s".into(),
            value,
            ci95: Some(0.125),
            runs: 3,
        }
    }

    fn part(world: &str, rows: Vec<Row>) -> Part {
        let experiment = crate::catalog::find("product/survival").unwrap();
        let expect = serde_saphyr::from_str(experiment.expect).unwrap();
        let lines = judge::judge(&expect, &rows, false);
        let run = folder::Run {
            experiment: "product/survival".into(),
            world: world.into(),
            ..folder::Run::default()
        };
        Part { read: Read { run, experiment, expect, rows }, lines, figures: Vec::new() }
    }

    /// Two worlds stand beside each other, what scales with the server as a multiple of it.
    #[test]
    fn worlds_stand_beside_each_other() {
        let show = Show {
            metric: "goodput".into(),
            says: "Goodput".into(),
            x_name: "load".into(),
            at: vec![2.0, 3.0],
            variants: vec!["rej*".into()],
            times: None,
            per: None,
        };
        let sim = part("sim", vec![row("sim", "goodput", 99.0), row("sim", "capacity", 100.0)]);
        let mut table = String::new();
        shown(&mut table, &show, std::slice::from_ref(&sim));
        assert!(table.contains("| reject | 99 ± 0.1 | – |"), "{table}");
        let lab = part("lab", vec![row("lab", "goodput", 30.0), row("lab", "capacity", 40.0)]);
        let both = [sim, lab];
        let mut text = String::new();
        let scaled = Show { per: Some("capacity".into()), ..show };
        shown(&mut text, &scaled, &both);
        assert!(text.contains("| reject, sim | 0.99 ± 0.00 | – |"), "{text}");
        assert!(text.contains("| reject, lab | 0.75 ± 0.00 | – |"), "{text}");
        let mut text = String::new();
        claims(&mut text, &both);
        let head = "| measured, sim | holds, sim | measured, lab | holds, lab |";
        assert!(text.contains(head), "{text}");
    }

    /// Two folders of one experiment in one world: which of them counts would be chance.
    #[test]
    fn a_world_stands_once() {
        let dir = std::env::temp_dir().join(format!("tidegate-twice-{}", std::process::id()));
        let rows = [row("lab", "goodput", 99.0)];
        let run = part("lab", Vec::new()).read.run;
        let two = ["a", "b"].map(|name| dir.join(name));
        for dir in &two {
            folder::write(dir, &run, &rows, &[]).unwrap();
        }
        let error = write(&two, &dir.join("page.md")).unwrap_err().to_string();
        assert!(error.contains("product/survival in the lab, a second time"), "{error}");
        fs::remove_dir_all(&dir).unwrap();
    }
}
