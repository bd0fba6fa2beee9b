// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The README is what a visitor reads first: it stays short, and no line of it is a page.

use super::{Problem, Repository};

const README: &str = "README.md";
const LINES_MAX: usize = 90;
/// Characters of a line; links count as they are written.
const LINE_MAX: usize = 400;

const WHY: &str = "a visitor decides on the first screen whether this fits";
const FIX: &str = "move it to a page in docs/ and link it";

pub(super) fn check(repository: &Repository) -> Vec<Problem> {
    let Some(file) = repository.tree.file(README) else { return Vec::new() };
    let problem =
        |line, what| Problem { path: README.to_owned(), line, what, why: WHY, fix: FIX.to_owned() };
    let lines = file.lines().count();
    let long = file.lines().filter_map(|(line, text)| {
        let characters = text.chars().count();
        let too_long = characters > LINE_MAX;
        too_long.then(|| problem(line, format!("{characters} characters, at most {LINE_MAX}")))
    });
    let many = (lines > LINES_MAX)
        .then(|| problem(LINES_MAX + 1, format!("{lines} lines, at most {LINES_MAX}")));
    long.chain(many).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(path: &str, text: &str) -> usize {
        check(&Repository::of(path, text)).len()
    }

    #[test]
    fn both_sides_of_the_limits() {
        for (path, more) in [(README, 1), ("docs/README.md", 0)] {
            assert_eq!(problems(path, &"a\n".repeat(LINES_MAX)), 0);
            assert_eq!(problems(path, &"a\n".repeat(LINES_MAX + 1)), more, "{path}");
            assert_eq!(problems(path, &"ä".repeat(LINE_MAX)), 0);
            assert_eq!(problems(path, &"ä".repeat(LINE_MAX + 1)), more, "{path}");
        }
    }
}
