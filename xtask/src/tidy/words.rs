// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Words that readers had to learn have plain ones in their place (docs/glossary.md). Most are banned wherever
//! there is prose: documents, packaging, claims of experiments, sources. Some are banned where users read, or
//! where a part of the code had them. Names of the code may not bring back what was renamed there.

use super::tree::{File, has_word};
use super::{Problem, Repository};

const ALL: &[&str] = &[
    "README.md",
    "bpf/",
    "crates/",
    "docs/",
    "experiments/",
    "fuzz/",
    "packaging/",
    "policy/",
    "sim/",
];
const READ: &[&str] = &[
    "README.md",
    "crates/cli/src/",
    "crates/config/src/",
    "docs/",
    "experiments/papers/",
    "experiments/product/",
    "packaging/",
];
/// Where statuses and warnings come from.
const SAID: &[&str] = &[
    "README.md",
    "crates/api/src/",
    "crates/cli/src/",
    "crates/config/src/",
    "crates/control/",
    "crates/daemon/src/",
    "crates/gate/src/",
    "crates/model/src/",
    "crates/peer/src/",
    "crates/telemetry/src/",
    "docs/",
    "experiments/papers/",
    "experiments/product/",
    "packaging/",
];
const LAWS: &[&str] = &["crates/control/", "experiments/papers/", "experiments/product/"];
/// The word, in lower case, what is said instead, and where.
const WORDS: [(&str, &str, &[&str]); 32] = [
    ("by the dice", "at random", ALL),
    ("header rule", "request rule", ALL),
    ("header rules", "request rules", ALL),
    ("never shed", "exempt", ALL),
    ("never_shed", "exempt", READ),
    ("reckon", "compute", ALL),
    ("reckoned", "computed", ALL),
    ("reckons", "computes", ALL),
    ("taken off", "detached; of a number: subtracted", ALL),
    ("takes off", "detaches; of a number: subtracts", ALL),
    ("took off", "detached; of a number: subtracted", ALL),
    ("to the letter", "as published", ALL),
    ("work off", "drain", ALL),
    ("worked off", "drained", ALL),
    ("working off", "draining", ALL),
    ("works off", "drains", ALL),
    ("work it off", "drain it", ALL),
    ("take it off", "remove it, detach it", ALL),
    ("takes it off", "removes it, detaches it", ALL),
    ("stranger", "untracked connection, or what is meant", READ),
    ("trouble", "problem, fault", READ),
    ("troubles", "problems, faults", READ),
    ("let go", "lifted", SAID),
    ("lets go", "lifts, is lifted", SAID),
    ("letting go", "lifting", SAID),
    ("pressed", "under pressure, overloaded", SAID),
    ("asleep", "on standby", LAWS),
    ("awake", "active", LAWS),
    ("sleeps", "is on standby", LAWS),
    ("wakes", "activates", LAWS),
    ("squeezes", "lowers", LAWS),
    ("squeezed", "lowered", LAWS),
];
const CODE: &[&str] = &["bpf/", "crates/", "fuzz/", "policy/", "sim/"];
const CONTROL: &[&str] = &["crates/control/", "crates/daemon/src/governed.rs"];
const DATAPLANE: &[&str] = &["bpf/", "fuzz/harness/"];
const VERDICTS: &[&str] = &["bpf/", "crates/control/", "crates/sense/", "fuzz/harness/", "policy/"];
/// The word, what it is called now, and where. It is a part of a name, too.
const NAMES: [(&str, &str, &[&str]); 11] = [
    ("never-shed", "exempt", CODE),
    ("never_shed", "exempt", CODE),
    ("remnant", "closing", CODE),
    ("asleep", "on standby", CONTROL),
    ("grounded", "signals fresh", CONTROL),
    ("squeezed", "lowered", CONTROL),
    ("judge", "evaluate", VERDICTS),
    ("judged", "evaluated", VERDICTS),
    ("door", "listener", DATAPLANE),
    ("doors", "listeners", DATAPLANE),
    ("origins", "source prefixes", DATAPLANE),
];
/// What tells of older words: the glossary, old names of keys, and records of their time.
const ALLOWED: [&str; 5] = [
    "crates/config/src/renamed.rs",
    "docs/decisions/",
    "docs/glossary.md",
    "docs/reports/",
    "docs/research/",
];

pub(super) fn check(repository: &Repository) -> Vec<Problem> {
    repository.tree.files().iter().flat_map(check_file).collect()
}

/// True if `word` stands in `text` with no letter or digit beside it.
fn is_part_of_a_name(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let behind = text[at + word.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !behind.is_some_and(char::is_alphanumeric)
    })
}

fn is_below(path: &str, all: &[&str]) -> bool {
    all.iter().any(|begin| path.starts_with(begin))
}

/// A word that may not stand in a file, its plain one, and what tells that it is there.
type Banned = (&'static str, &'static str, fn(&str, &str) -> bool);

fn banned(path: &str) -> Vec<Banned> {
    if is_below(path, &ALLOWED) {
        return Vec::new();
    }
    let named = NAMES.into_iter().filter(|(_, _, places)| is_below(path, places));
    let mut all: Vec<Banned> =
        named.map(|(word, plain, _)| (word, plain, is_part_of_a_name as _)).collect();
    for (word, plain, _) in WORDS.into_iter().filter(|(_, _, places)| is_below(path, places)) {
        if !all.iter().any(|(other, ..)| *other == word) {
            all.push((word, plain, has_word));
        }
    }
    all
}

fn check_file(file: &File) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut banned = banned(&file.path);
    if !banned.is_empty() {
        let whole = file.text.to_lowercase();
        banned.retain(|(word, ..)| whole.contains(word));
    }
    for (line, text) in file.lines().filter(|_| !banned.is_empty()) {
        let text = text.to_lowercase();
        for (word, plain, _) in banned.iter().filter(|(word, _, stands)| stands(&text, word)) {
            problems.push(Problem {
                path: file.path.clone(),
                line,
                what: format!("`{word}` is a word of our own"),
                why: "who reads this is on call, and should not have to learn words first",
                fix: (*plain).to_owned(),
            });
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(path: &str, text: &str) -> usize {
        check(&Repository::of(path, text)).len()
    }

    #[test]
    fn own_words_are_found_where_users_read() {
        for (word, _, places) in WORDS {
            for place in places {
                let path =
                    if place.ends_with(".md") { (*place).into() } else { format!("{place}a.md") };
                assert_eq!(problems(&path, &format!("It is {word}.\n")), 1, "{word} in {path}");
            }
            assert_eq!(problems("docs/decisions/1.md", &format!("It was {word}.\n")), 0, "{word}");
            assert_eq!(problems("lab/src/a.rs", &format!("// {word}\n")), 0, "{word}");
        }
        for (word, _, places) in NAMES {
            for place in places {
                assert_eq!(problems(&format!("{place}a.rs"), &format!("// {word}\n")), 1, "{word}");
            }
            assert_eq!(problems("lab/src/a.rs", &format!("// {word}\n")), 0, "{word}");
        }
        assert_eq!(problems("bpf/a.h", "int tg_judge_syn(int TG_DOOR);\n"), 2);
        assert_eq!(problems("bpf/a.h", "int outdoors(int originators);\n"), 0);
        assert_eq!(problems("README.md", "Taken off.\n"), 1);
        assert_eq!(problems("docs/a.md", "strangers, taken offline, compressed\n"), 0);
        assert_eq!(problems("crates/daemon/tests/a.rs", "let go = 1;\n"), 0);
    }
}
