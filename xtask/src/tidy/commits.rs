// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The subject of a commit says where and what: `area: subject`, in at most 60 characters, as a command (CONTRIBUTING.md).
//! Merges have subjects of their own. Where there is no history, nothing is checked.

use super::{Problem, Repository};
use crate::process;

/// The newest commit when the rule came. What does not descend from it keeps its subject.
const SINCE: &str = "125b7a5326f9a954b8d2491ab8f8ce2099b8ae1e";
/// The same of the rule that a subject begins with a verb.
const VERBS_SINCE: &str = "52e8a87957ead697a027453cc046e95c4116b5a0";
/// Words that begin a subject that is none: few can be told by their first word, and these are the usual ones.
const NO_VERBS: [&str; 24] = [
    "a", "all", "an", "and", "at", "each", "every", "figure", "for", "how", "in", "it", "no",
    "not", "of", "on", "one", "some", "that", "the", "what", "when", "where", "who",
];
/// As many of the newest commits are looked at; older ones were when they were made.
const COMMITS_MAX: usize = 500;
const CHARACTERS_MAX: usize = 60;

pub(super) fn check(_: &Repository) -> Vec<Problem> {
    let of = |since, wrong| problems(&log(since).unwrap_or_default(), wrong);
    let mut found = of(SINCE, wrong);
    found.extend(of(VERBS_SINCE, no_command));
    found
}

/// Hash and subject of each commit since this one, a line each; `None` without git, or without that commit, as in a
/// shallow clone.
fn log(since: &str) -> Option<String> {
    let count = format!("--max-count={COMMITS_MAX}");
    let range = format!("{since}..HEAD");
    let mut git = process::command("git");
    git.args(["-c", "log.showSignature=false", "log", "--no-merges", "--ancestry-path"]);
    let output = git.args(["--format=%h %s", &count, &range]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn problems(log: &str, wrong: fn(&str) -> Option<String>) -> Vec<Problem> {
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

/// Does not begin with a verb.
fn no_command(subject: &str) -> Option<String> {
    let (_, rest) = subject.split_once(": ")?;
    let first = rest.split(' ').next()?.to_lowercase();
    NO_VERBS.contains(&&*first).then(|| format!("a subject that is no command: `{subject}`"))
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
            assert_eq!(problems(&format!("1a2b {subject}\n"), wrong).len(), expected, "{subject}");
        }
        let long = format!("{longest}a");
        for subject in ["wip", "bpf:pass", "bpf: ", "Bpf: pass", "bpf,x: pass", ": a", &long] {
            assert_eq!(problems(&format!("1a2b {subject}\n"), wrong).len(), 1, "{subject}");
        }
        assert_eq!(problems("", wrong), []);
    }

    #[test]
    fn subjects_are_commands() {
        for (subject, found) in [
            ("bpf: take one", 0),
            ("bpf: one is taken", 1),
            ("control: The house", 1),
            ("control, sim: what holds: all", 1),
            ("bpf", 0),
        ] {
            assert_eq!(
                problems(&format!("1a2b {subject}\n"), no_command).len(),
                found,
                "{subject}"
            );
        }
    }

    #[test]
    fn a_commit_is_named_by_its_hash() {
        let found = problems("1a2b bpf: pass\n3c4d wip\n", wrong);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "commit 3c4d");
    }
}
