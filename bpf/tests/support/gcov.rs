// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a native build of the hooks has executed, as gcov (which comes with gcc) tells it.

use super::place::{HOOK_FOLDERS, root};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// A file that is measured, and the share of its branches that must be taken, in percent.
pub type Wanted = (&'static str, f64);
/// A line that nothing can reach: its file, what it says, the reason.
pub type Unreachable = (&'static str, &'static str, &'static str);

/// What was executed of one file.
#[derive(Debug, Default)]
pub struct Covered {
    /// Line to times executed, and its branches to times taken.
    lines: BTreeMap<u64, (u64, BTreeMap<usize, u64>)>,
}

/// Where the product's C stands; a file of the chain is named with its folder.
fn folders() -> impl Iterator<Item = &'static str> {
    HOOK_FOLDERS.into_iter().chain(["policy"])
}

impl Covered {
    /// Lines that were never executed, and what they say.
    fn missed_lines(&self, file: &str) -> Vec<(u64, String)> {
        let path =
            folders().map(|folder| root().join(folder).join(file)).find(|path| path.exists());
        let source = std::fs::read_to_string(path.unwrap()).unwrap();
        let source: Vec<&str> = source.lines().collect();
        let missed = self.lines.iter().filter(|(_, (times, _))| *times == 0);
        missed.map(|(line, _)| (*line, source[*line as usize - 1].trim().to_owned())).collect()
    }

    /// How many branches there are, and the lines of those that were never taken.
    fn branches(&self) -> (usize, Vec<u64>) {
        let lines = self.lines.iter();
        let all = lines.flat_map(|(line, (_, taken))| taken.values().map(|n| (*line, *n)));
        let (count, missed) = (all.clone().count(), all.filter(|(_, n)| *n == 0));
        (count, missed.map(|(line, _)| line).collect())
    }
}

/// What gcov says of the product's files in the data of a program that has ended.
pub fn gcov(
    (directory, data): (&Path, &str),
    files: &[Wanted],
    into: &mut BTreeMap<String, Covered>,
) {
    let output = Command::new("gcov")
        .args(["--branch-probabilities", "--json-format", "--stdout", data])
        .current_dir(directory)
        .output()
        .unwrap_or_else(|error| panic!("gcov (comes with gcc): {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for file in report["files"].as_array().unwrap() {
        let path = file["file"].as_str().unwrap();
        let name = path.rsplit('/').next().unwrap();
        let chain = path.contains("/policy/chain/");
        let name = if chain { format!("chain/{name}") } else { name.to_owned() };
        let ours = chain || folders().any(|folder| path.contains(&format!("/{folder}/")));
        let measured = files.iter().any(|(known, _)| *known == name);
        if !ours || !measured {
            continue;
        }
        let covered = into.entry(name).or_default();
        for line in file["lines"].as_array().unwrap() {
            let number = line["line_number"].as_u64().unwrap();
            let (times, branches) = covered.lines.entry(number).or_default();
            *times += line["count"].as_u64().unwrap();
            for (at, branch) in line["branches"].as_array().unwrap().iter().enumerate() {
                *branches.entry(at).or_default() += branch["count"].as_u64().unwrap();
            }
        }
    }
}

/// What is wrong: files that were not measured, branches and lines that were not reached.
pub fn wrong(
    covered: &BTreeMap<String, Covered>,
    files: &[Wanted],
    unreachable: &[Unreachable],
) -> Vec<String> {
    let mut wrong = Vec::new();
    for &(file, least) in files {
        let Some(covered) = covered.get(file) else {
            wrong.push(format!("{file} was not measured"));
            continue;
        };
        let (branches, missed) = covered.branches();
        let share = 100.0 * (branches - missed.len()) as f64 / branches.max(1) as f64;
        let share = if branches == 0 { 100.0 } else { share };
        println!("{file}: {share:.1} % of {branches} branches, not taken in lines {missed:?}");
        if share < least {
            wrong.push(format!("{file}: {share:.1} % of the branches, {least} % wanted"));
        }
        for (line, text) in covered.missed_lines(file) {
            println!("{file}:{line}: not reached: {text}");
            if !unreachable.iter().any(|(at, known, _)| *at == file && *known == text) {
                wrong.push(format!("{file}:{line} is not reached: {text}"));
            }
        }
    }
    wrong
}
