// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The subject of a commit says where and what: `area: subject`, in at most 60 characters (CONTRIBUTING.md).
//! Merges have subjects of their own. Where there is no history, nothing is checked.

use super::{Problem, Repository};
use crate::process;

/// The newest commit when the rule came. What does not descend from it keeps its subject.
const SINCE: &str = "125b7a5326f9a954b8d2491ab8f8ce2099b8ae1e";
/// As many of the newest commits are looked at; older ones were when they were made.
const COMMITS_MAX: usize = 500;
const CHARACTERS_MAX: usize = 60;

pub(super) fn check(_: &Repository) -> Vec<Problem> {
    problems(&log().unwrap_or_default())
}

/// Hash and subject of each commit, a line each; `None` without git, or without [`SINCE`], as in a shallow clone.
fn log() -> Option<String> {
    let count = format!("--max-count={COMMITS_MAX}");
    let range = format!("{SINCE}..HEAD");
    let mut git = process::command("git");
    git.args(["-c", "log.showSignature=false", "log", "--no-merges", "--ancestry-path"]);
    let output = git.args(["--format=%h %s", &count, &range]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn problems(log: &str) -> Vec<Problem> {
    let commits = log.lines().filter_map(|line| line.split_once(' '));
    commits.filter_map(|(hash, subject)| Some(problem(hash, wrong(subject)?))).collect()
}

fn wrong(subject: &str) -> Option<String> {
    let length = subject.chars().count();
    if length > CHARACTERS_MAX {
        return Some(format!("a subject of {length} characters: `{subject}`"));
    }
    (!is_of_the_form(subject)).then(|| format!("a subject without area: `{subject}`"))
}

/// `area: subject`, or `area, area: subject`.
fn is_of_the_form(subject: &str) -> bool {
    let Some((areas, rest)) = subject.split_once(": ") else { return false };
    let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_./".contains(c);
    let is_area = |area: &str| !area.is_empty() && area.chars().all(is_letter);
    areas.split(", ").all(is_area) && !rest.trim().is_empty()
}

fn problem(hash: &str, what: String) -> Problem {
    Problem {
        path: format!("commit {hash}"),
        line: 1,
        what,
        why: "a list of commits is read by subjects alone",
        fix: format!("write `area: imperative subject`, at most {CHARACTERS_MAX} characters"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_say_where_and_what_on_one_short_line() {
        let longest = format!("bpf: {}", "a".repeat(55));
        for subject in ["bpf: pass", "bpf/tests, x-y: it: is", "ä: b", "docs: ünï", &longest] {
            let expected = usize::from(subject.starts_with('ä'));
            assert_eq!(problems(&format!("1a2b {subject}\n")).len(), expected, "{subject}");
        }
        let long = format!("{longest}a");
        for subject in ["wip", "bpf:pass", "bpf: ", "Bpf: pass", "bpf,x: pass", ": a", &long] {
            assert_eq!(problems(&format!("1a2b {subject}\n")).len(), 1, "{subject}");
        }
        assert_eq!(problems(""), []);
    }

    #[test]
    fn a_commit_is_named_by_its_hash() {
        let found = problems("1a2b bpf: pass\n3c4d wip\n");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "commit 3c4d");
    }
}
