// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The system clock is read in `units` only. clippy says so, too (clippy.toml), but an
//! `allow` silences clippy, and clippy does not see every way to ask.

use super::{Problem, Repository};

const PLACE: &str = "crates/units/src/";
const ASKS: [&str; 6] =
    ["Instant::now", "SystemTime::now", "clock_gettime", "Utc::now", "Local::now", "gettimeofday"];

pub(super) fn check(repository: &Repository) -> Vec<Problem> {
    let files = repository
        .tree
        .files()
        .iter()
        .filter(|file| file.is_rust() && !file.path.starts_with(PLACE));
    files
        .flat_map(|file| {
            let asks = file.code_lines().filter_map(|(line, code)| {
                ASKS.iter().find(|ask| code.contains(**ask)).map(|ask| (line, *ask))
            });
            asks.map(|(line, ask)| Problem {
                path: file.path.clone(),
                line,
                what: format!("`{ask}` outside crates/units"),
                why: "time is an argument: only so does the same code run in virtual time",
                fix: "take a `&impl Clock` (tidegate_units) or the time itself".to_owned(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tree::Tree;
    use super::*;

    #[test]
    fn only_units_asks_the_system() {
        let asks = "fn now() { std::time::Instant::now(); }\n";
        let repository = Repository {
            tree: Tree::of(&[
                ("crates/units/src/clock.rs", asks),
                ("sim/src/a.rs", asks),
                ("sim/src/b.rs", "// never Instant::now\nlet a = \"SystemTime::now\";\n"),
            ]),
            packages: Vec::new(),
        };
        let found = check(&repository);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].path.as_str(), found[0].line), ("sim/src/a.rs", 1));
    }
}
