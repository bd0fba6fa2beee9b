// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A page from folders of results: for each experiment its claim, its figures, paper beside
//! measured, and why where they differ.

mod kept;

use self::kept::Section;
use crate::folder::{self, Read};
use crate::judge::{self, Line, Show};
use crate::results::Row;
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Columns of a table, at most.
const COLUMNS_MAX: usize = 40;
/// Rows over this are a course.
const COURSE: &str = "time_s";
/// A cell for which nothing was measured.
const NOTHING: &str = "–";

/// One folder of an experiment, judged.
struct Part {
    dir: PathBuf,
    read: Read,
    lines: Vec<Line>,
    /// Its figures, as the page finds them.
    figures: Vec<String>,
}

impl Part {
    fn of(dir: &Path) -> Result<Self> {
        let read = folder::read(dir).with_context(|| dir.display().to_string())?;
        let lines = judge::judge(&read.expect, &read.rows, read.run.quick);
        Ok(Self { dir: dir.to_owned(), read, lines, figures: Vec::new() })
    }
}

/// Writes the page for these folders, and what they hold into folders beside it, so that everybody
/// can judge it again: figures, run.json and the rows without courses over time. Folders of one
/// experiment share a section, with their worlds beside each other. With `keep` the sections of other
/// experiments that the page already has stay as they are, and so does the other world of one that is
/// judged anew. Gives the number of claims that do not hold.
///
/// # Errors
/// When a folder cannot be read, two are of the same experiment in the same world, results of the
/// other world are not beside the page any more, or something cannot be written.
pub fn write(dirs: &[PathBuf], page: &Path, keep: bool) -> Result<usize> {
    let beside = page.with_extension("");
    let folder = beside.file_name().and_then(|name| name.to_str()).unwrap_or("figures").to_owned();
    let before = match fs::read_to_string(page) {
        Ok(text) if keep => kept::read(&text),
        Err(error) if keep && error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("read {}", page.display()));
        }
        _ => Vec::new(),
    };
    let mut sections: Vec<Vec<Part>> = Vec::new();
    for dir in dirs {
        let part = Part::of(dir)?;
        let run = &part.read.run;
        let same = |section: &&mut Vec<Part>| section[0].read.run.experiment == run.experiment;
        let Some(section) = sections.iter_mut().find(same) else {
            sections.push(vec![part]);
            continue;
        };
        let twice = section.iter().any(|other| other.read.run.world == run.world);
        let (name, world) = (&run.experiment, &run.world);
        anyhow::ensure!(!twice, "{}: {name} in the {world}, a second time", dir.display());
        section.push(part);
    }
    for section in &mut sections {
        let name = section[0].read.run.experiment.clone();
        if let Some(old) = before.iter().find(|old| old.name == name) {
            other_worlds(section, old, &beside.join(short(&name, &folder)))?;
        }
    }
    // All is read and known to be good: now it is written.
    for part in sections.iter_mut().flatten() {
        let run = &part.read.run;
        let short = format!("{}-{}", short(&run.experiment, &folder), run.world);
        let figures = record(&part.dir, &part.read, &beside.join(&short))?;
        let figures = figures.iter().map(|name| format!("{folder}/{short}/figures/{name}"));
        part.figures = figures.collect();
    }
    let new = sections.iter().map(|parts| {
        let mut text = String::new();
        section(&mut text, parts);
        let name = parts.first().map(|part| part.read.run.experiment.clone()).unwrap_or_default();
        let text = format!("{}\n", text.trim_end());
        Section { name, rows: parts.iter().map(row).collect(), text }
    });
    let all = kept::renew(before, new.collect());
    let mut text = head(&folder);
    text.extend(all.iter().map(|section| section.rows.as_str()));
    text.extend(all.iter().map(|section| section.text.as_str()));
    replace(page, &text)?;
    Ok(sections.iter().flatten().flat_map(|part| &part.lines).filter(|l| !l.holds()).count())
}

/// The name of an experiment in a folder: without its group where that is the folder's.
fn short(experiment: &str, folder: &str) -> String {
    let own = experiment.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/'));
    own.unwrap_or(experiment).replace('/', "-")
}

/// Adds the worlds of an experiment that the page has and that are not judged anew.
fn other_worlds(section: &mut Vec<Part>, old: &Section, beside: &Path) -> Result<()> {
    for world in folder::WORLDS {
        let had = old.rows.contains(&format!("| {world} |"));
        if !had || section.iter().any(|part| part.read.run.world == world) {
            continue;
        }
        let dir = PathBuf::from(format!("{}-{world}", beside.display()));
        let what = || format!("the page has {} in the {world}: give its results, too", old.name);
        section.push(Part::of(&dir).with_context(what)?);
    }
    let place = |part: &Part| folder::WORLDS.iter().position(|world| *world == part.read.run.world);
    section.sort_by_key(place);
    Ok(())
}

/// Writes a file whole or not at all.
fn replace(path: &Path, text: &str) -> Result<()> {
    let new = path.with_extension("md.new");
    fs::write(&new, text).with_context(|| format!("write {}", new.display()))?;
    fs::rename(&new, path).with_context(|| format!("write {}", path.display()))
}

fn head(folder: &str) -> String {
    format!(
        "# Results, judged\n\n\
         Made by `tidegate-lab experiment judge … --report` from the results of the runs; where rows are \
         of several runs, or a run was not the scenario as it stands, a note below the tables says so. \
         Those results are kept in folders of {folder}/, without their courses over time; a section \
         without one is of an earlier page. \
         A claim that does not hold is said not to hold; no band was widened. Lines without a band \
         report what was seen, from the least to the largest value, and are not counted as claims. \
         Where the lab's capacity drifted beside a run by more than 3 %, a claim counts only if its \
         value stays in the band with that drift put on it, in either direction, and never beyond a \
         drift of 25 % (zero stays zero; the rule was set when results were known: before, a \
         drift above 3 % left nothing held). A value of three rounds or more that is compared as it \
         was measured is then judged by its 95 % interval instead, which has the drift in it: one that \
         reaches beyond the band does not count (set before table 1's last run, when one round of an \
         earlier one was known). Bands were set before measuring where the claim does not say otherwise.\n\n\
         | experiment | what | world | runs | seed | claims that hold |\n| --- | --- | --- | --- | --- | --- |\n"
    )
}

/// A line of the table at the head.
fn row(part: &Part) -> String {
    let runs = part.read.rows.iter().map(|row| row.runs).max().unwrap_or(0);
    let judged: Vec<&Line> = part.lines.iter().filter(|line| line.judged()).collect();
    let held = judged.iter().filter(|line| line.holds()).count();
    let run = &part.read.run;
    format!(
        "| [{}](#{}) | {} | {} | {runs}{} | {} | {held} of {} |\n",
        run.experiment,
        anchor(&run.experiment),
        part.read.experiment.title(),
        run.world,
        if run.quick { " (quick)" } else { "" },
        run.seed,
        judged.len()
    )
}

/// The anchor that a heading gets.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || *c == '-' || *c == ' ');
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn section(text: &mut String, parts: &[Part]) {
    let Some(first) = parts.first().map(|part| &part.read) else { return };
    let _ = writeln!(text, "\n## {}\n", first.run.experiment);
    // the claim's own heading becomes the first sentence
    let _ = writeln!(text, "**{}**", first.experiment.title());
    let claim = first.experiment.claim.split_once('\n').map_or("", |(_, rest)| rest);
    let _ = writeln!(text, "\n{}\n", claim.trim());
    for part in parts {
        if !part.figures.is_empty() {
            let _ = writeln!(text, "Figures{}:\n", beside(parts, part));
        }
        for path in &part.figures {
            let name = path.rsplit('/').next().unwrap_or_default();
            let _ = writeln!(text, "![{name}]({path})\n");
        }
    }
    claims(text, parts);
    for show in &first.expect.show {
        shown(text, show, parts);
    }
    for run in parts.iter().map(|part| &part.read.run) {
        let of = match run.program.as_str() {
            "" => "a version of tidegate that was not noted, older than those that are".to_owned(),
            program => format!("tidegate {program}"),
        };
        let took = run.minutes.map_or_else(String::new, |minutes| format!(", in {minutes} min"));
        let _ = writeln!(text, "Note ({}): measured with {of}{took}\n", run.world);
        for note in &run.notes {
            let _ = writeln!(text, "Note ({}): {note}\n", run.world);
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

/// Keeps a folder beside the page, without the courses over time, in the place of an older one; gives
/// the names of its figures. The folder that is read is not touched.
fn record(from: &Path, read: &Read, to: &Path) -> Result<Vec<String>> {
    let mut figures = Vec::new();
    let entries = fs::read_dir(from.join("figures")).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.extension().is_some_and(|end| end == "svg") {
            let svg = fs::read_to_string(&path);
            figures.push((name.to_owned(), svg.with_context(|| path.display().to_string())?));
        }
    }
    figures.sort();
    let same =
        fs::canonicalize(to).is_ok_and(|to| fs::canonicalize(from).is_ok_and(|from| from == to));
    if !same {
        let old = to.join("figures");
        if old.exists() {
            fs::remove_dir_all(&old).with_context(|| format!("remove {}", old.display()))?;
        }
        let rows: Vec<Row> = read.rows.iter().filter(|row| row.x_name != COURSE).cloned().collect();
        folder::write(to, &read.run, &rows, &figures)?;
    }
    Ok(figures.into_iter().map(|(name, _)| name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page names every claim of every folder, what was measured, and its figures; the folders
    /// beside it give the same page again, and an experiment that is not judged anew stays on it.
    #[test]
    fn a_page_has_claims_tables_and_figures() {
        let dir = std::env::temp_dir().join(format!("tidegate-report-{}", std::process::id()));
        let course = Row { x_name: "time_s".into(), ..result("lab", "goodput", 1.0) };
        let rows = [result("lab", "goodput", 99.0), course];
        let run = folder::Run {
            experiment: "product/survival".into(),
            world: "lab".into(),
            quick: true,
            ..folder::Run::default()
        };
        let results = dir.join("results");
        folder::write(&results, &run, &rows, &[("a.svg".into(), "<svg/>".into())]).unwrap();
        // Another experiment, whose figure has the same name.
        let rivals = dir.join("rivals");
        let run = folder::Run { experiment: "product/rivals".into(), quick: false, ..run };
        folder::write(&rivals, &run, &rows, &[("a.svg".into(), "<svg></svg>".into())]).unwrap();
        let page = dir.join("page.md");
        let failed = write(&[results.clone(), rivals], &page, false).unwrap();
        let text = fs::read_to_string(&page).unwrap();
        assert!(failed > 0, "nothing holds that was not measured");
        assert!(text.contains("NOT MEASURED"), "{text}");
        for (short, figure) in [("survival", "<svg/>"), ("rivals", "<svg></svg>")] {
            let path = format!("page/product-{short}-lab/figures/a.svg");
            assert!(text.contains(&format!("![a.svg]({path})")), "{text}");
            assert_eq!(fs::read_to_string(dir.join(path)).unwrap(), figure);
        }
        let kept =
            ["product-survival-lab", "product-rivals-lab"].map(|name| dir.join("page").join(name));
        assert_eq!(folder::read(&kept[0]).unwrap().rows, rows[..1], "courses are left out");
        for (dirs, keep) in [(&kept[..], false), (&kept[1..], true), (&[results][..], true)] {
            assert_eq!(write(dirs, &page, keep).unwrap() > 0, failed > 0);
            assert_eq!(fs::read_to_string(&page).unwrap(), text, "{dirs:?} {keep}");
        }
        write(&kept[..1], &page, false).unwrap();
        assert!(!fs::read_to_string(&page).unwrap().contains("\n## product/rivals"));
        fs::remove_dir_all(&dir).unwrap();
    }

    fn result(world: &str, metric: &str, value: f64) -> Row {
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
        Part {
            dir: PathBuf::new(),
            read: Read { run, experiment, expect, rows },
            lines,
            figures: Vec::new(),
        }
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
        let sim =
            part("sim", vec![result("sim", "goodput", 99.0), result("sim", "capacity", 100.0)]);
        let mut table = String::new();
        shown(&mut table, &show, std::slice::from_ref(&sim));
        assert!(table.contains("| reject | 99 ± 0.1 | – |"), "{table}");
        let lab =
            part("lab", vec![result("lab", "goodput", 30.0), result("lab", "capacity", 40.0)]);
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

    /// What is not judged anew is not lost: of the other world the results beside the page are taken,
    /// and without them nothing is written.
    #[test]
    fn the_other_world_stays() {
        let dir = std::env::temp_dir().join(format!("tidegate-worlds-{}", std::process::id()));
        let [sim, lab] = ["sim", "lab"].map(|world| {
            let to = dir.join(world);
            let run = part(world, Vec::new()).read.run;
            folder::write(&to, &run, &[result(world, "goodput", 99.0)], &[]).unwrap();
            to
        });
        let page = dir.join("product.md");
        write(&[sim, lab.clone()], &page, false).unwrap();
        let both = fs::read_to_string(&page).unwrap();
        assert!(both.contains("| sim |") && both.contains("| lab |"), "{both}");
        write(std::slice::from_ref(&lab), &page, true).unwrap();
        assert_eq!(fs::read_to_string(&page).unwrap(), both);
        fs::remove_dir_all(dir.join("product/survival-sim")).unwrap();
        let error = write(std::slice::from_ref(&lab), &page, true).unwrap_err().to_string();
        assert!(error.contains("product/survival in the sim"), "{error}");
        assert_eq!(fs::read_to_string(&page).unwrap(), both, "as it was");
        let strange = folder::Run { world: "../x".into(), ..part("lab", Vec::new()).read.run };
        folder::write(&lab, &strange, &[], &[]).unwrap();
        assert!(write(&[lab], &page, false).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }

    /// Two folders of one experiment in one world: which of them counts would be chance.
    #[test]
    fn a_world_stands_once() {
        let dir = std::env::temp_dir().join(format!("tidegate-twice-{}", std::process::id()));
        let rows = [result("lab", "goodput", 99.0)];
        let run = part("lab", Vec::new()).read.run;
        let two = ["a", "b"].map(|name| dir.join(name));
        for dir in &two {
            folder::write(dir, &run, &rows, &[]).unwrap();
        }
        let error = write(&two, &dir.join("page.md"), false).unwrap_err().to_string();
        assert!(error.contains("product/survival in the lab, a second time"), "{error}");
        fs::remove_dir_all(&dir).unwrap();
    }
}
