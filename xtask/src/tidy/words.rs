// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Words that readers had to learn have plain ones in their place (docs/glossary.md). The rule holds where
//! users read: documents, packaging, and the sources of the configuration and of the commands. Names and
//! comments of the code may not bring back what was renamed there.

use super::tree::{File, has_word};
use super::{Problem, Repository};

/// The word, in lower case, and what is said instead.
const WORDS: [(&str, &str); 9] = [
    ("by the dice", "at random"),
    ("header rule", "request rule"),
    ("header rules", "request rules"),
    ("never shed", "exempt"),
    ("never_shed", "exempt"),
    ("stranger", "untracked connection, or what is meant"),
    ("taken off", "detached; of a number: subtracted"),
    ("to the letter", "as published"),
    ("worked off", "drained"),
];
const PLACES: [&str; 5] =
    ["README.md", "docs/", "packaging/", "crates/config/src/", "crates/cli/src/"];
const CODE: &[&str] = &["bpf/", "crates/", "fuzz/", "policy/", "sim/"];
const CONTROL: &[&str] = &["crates/control/", "crates/daemon/src/governor.rs"];
const DATAPLANE: &[&str] = &["bpf/", "fuzz/harness/"];
/// The word, what it is called now, and where. It is a part of a name, too.
const NAMES: [(&str, &str, &[&str]); 10] = [
    ("never-shed", "exempt", CODE),
    ("never_shed", "exempt", CODE),
    ("remnant", "closing", CODE),
    ("asleep", "on standby", CONTROL),
    ("squeezed", "lowered", CONTROL),
    ("judge", "evaluate", DATAPLANE),
    ("judged", "evaluated", DATAPLANE),
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
    for (word, plain) in WORDS.into_iter().filter(|_| is_below(path, &PLACES)) {
        if !all.iter().any(|(other, ..)| *other == word) {
            all.push((word, plain, has_word));
        }
    }
    all
}

fn check_file(file: &File) -> Vec<Problem> {
    let mut problems = Vec::new();
    let banned = banned(&file.path);
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
        for (word, _) in WORDS {
            assert_eq!(problems("docs/a.md", &format!("It is {word}.\n")), 1, "{word}");
            assert_eq!(problems("packaging/a.yaml", &format!("# {word}\n")), 1, "{word}");
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
        assert_eq!(problems("docs/a.md", "strangers, taken offline\n"), 0);
    }
}
