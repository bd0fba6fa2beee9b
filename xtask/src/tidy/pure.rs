// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pure crates do no input or output, start nothing, and repeat themselves exactly.

use super::tree::has_word;
use super::{Problem, Repository};

const PURE: [&str; 4] = ["policy/src/", "crates/control/src/", "workload/src/", "sim/src/"];

/// What they may not name, and what to do instead.
const BANNED: [(&str, &str); 10] = [
    ("std::fs", "take a reader or the data"),
    ("std::net", "no network here; an address type comes from the caller"),
    ("std::process", "the caller starts processes"),
    ("std::env", "take what is needed as an argument"),
    ("std::thread", "the caller decides about threads"),
    ("tokio", "pure crates are synchronous"),
    ("println!", "return what is to be said"),
    ("eprintln!", "return what is to be said"),
    ("HashMap", "its order differs from run to run: take a BTreeMap or a Vec"),
    ("HashSet", "its order differs from run to run: take a BTreeSet or a Vec"),
];
/// On the line or the one above it: a hash map whose order nobody sees.
const NEVER_ITERATED: &str = "never iterated";

pub(super) fn check(repository: &Repository) -> Vec<Problem> {
    let mut problems = Vec::new();
    let files = repository
        .tree
        .files()
        .iter()
        .filter(|file| file.is_rust() && PURE.iter().any(|place| file.path.starts_with(place)));
    for file in files {
        let comments: Vec<&str> = file.comment_lines().map(|(_, text)| text).collect();
        for (line, code) in file.code_lines() {
            let Some((word, fix)) = BANNED.iter().find(|(word, _)| names(code, word)) else {
                continue;
            };
            let above = line.checked_sub(2).and_then(|index| comments.get(index));
            let said = [comments.get(line - 1), above];
            let is_lookup_only = said.iter().flatten().any(|text| text.contains(NEVER_ITERATED));
            if word.starts_with("Hash") && is_lookup_only {
                continue;
            }
            problems.push(Problem {
                path: file.path.clone(),
                line,
                what: format!("`{word}` in a pure crate"),
                why: "the same input must give the same bytes, on any machine",
                fix: (*fix).to_owned(),
            });
        }
    }
    problems
}

fn names(code: &str, word: &str) -> bool {
    match word.strip_suffix('!') {
        Some(name) => has_word(code, name) && code.contains(word),
        None => has_word(code, word),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::Tree;
    use super::*;

    #[test]
    fn pure_crates_touch_nothing_outside() {
        let text = "use std::fs::File;\n// std::net is fine in a comment\n\
            use std::collections::HashMap;\n\
            // never iterated\nuse std::collections::HashMap;\nprintln!(\"\");\n";
        let repository = Repository {
            tree: Tree::of(&[("sim/src/a.rs", text), ("lab/src/a.rs", text)]),
            packages: Vec::new(),
        };
        let lines: Vec<(String, usize)> =
            check(&repository).into_iter().map(|found| (found.path, found.line)).collect();
        assert_eq!(lines, [1, 3, 6].map(|line| ("sim/src/a.rs".to_owned(), line)));
    }
}
