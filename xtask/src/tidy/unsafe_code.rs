// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `unsafe` only where Rust meets C, each with its reason.

use super::tree::{File, has_word};
use super::{Problem, Repository};

const PLACES: [&str; 2] = ["policy/src/", "bpf/src/"];
/// A reason further above than this belongs to something else.
const REASON_LINES_MAX: usize = 12;

const WHY: &str = "what the compiler cannot check, a reader must be able to";

pub(super) fn check(repository: &Repository) -> Vec<Problem> {
    let files = repository.tree.files().iter().filter(|file| file.is_rust());
    files.flat_map(check_file).collect()
}

fn check_file(file: &File) -> Vec<Problem> {
    let is_allowed = PLACES.iter().any(|place| file.path.starts_with(place));
    let comments: Vec<&str> = file.comment_lines().map(|(_, text)| text).collect();
    let code: Vec<&str> = file.code_lines().map(|(_, text)| text).collect();
    let mut problems = Vec::new();
    for (index, _) in code.iter().enumerate().filter(|(_, text)| has_word(text, "unsafe")) {
        let (what, fix) = if !is_allowed {
            ("`unsafe` outside policy/src and bpf/src", "use a safe crate (rustix), or the binding")
        } else if !has_reason(&code, &comments, index) {
            (
                "`unsafe` without a reason",
                "write `// SAFETY: …` directly above, saying why it holds",
            )
        } else {
            continue;
        };
        problems.push(Problem {
            path: file.path.clone(),
            line: index + 1,
            what: what.to_owned(),
            why: WHY,
            fix: fix.to_owned(),
        });
    }
    problems
}

/// A comment with `SAFETY:` (or a documented `# Safety`) on the line, or above it with only
/// comments, attributes and the beginning of the same statement between.
fn has_reason(code: &[&str], comments: &[&str], index: usize) -> bool {
    let is_reason = |text: &str| text.contains("SAFETY:") || text.contains("# Safety");
    if is_reason(comments[index]) {
        return true;
    }
    for above in (0..index).rev().take(REASON_LINES_MAX) {
        if is_reason(comments[above]) {
            return true;
        }
        let text = code[above].trim_end();
        let ends_something = text.ends_with([';', '}', '{']);
        if ends_something && !text.trim_start().starts_with('#') {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(path: &str, text: &str) -> Vec<String> {
        let repository = Repository::of(path, text);
        check(&repository).into_iter().map(|problem| problem.what).collect()
    }

    #[test]
    fn outside_the_two_places_nothing_is_unsafe() {
        let text = "// SAFETY: none\nunsafe { x() }\n";
        assert_eq!(problems("crates/daemon/src/a.rs", text).len(), 1);
        assert!(
            problems("crates/daemon/src/a.rs", "// unsafe\n#![deny(unsafe_code)]\n").is_empty()
        );
    }

    #[test]
    fn inside_them_a_reason_stands_above() {
        for good in [
            "// SAFETY: x is valid\nlet a = unsafe { x() };\n",
            "// SAFETY: it is\n// valid\nlet a =\n    unsafe { x() };\n",
            "let a = unsafe { x() }; // SAFETY: constant\n",
            "/// # Safety\n/// x must be valid\n#[inline]\npub unsafe fn a() {}\n",
        ] {
            assert!(problems("bpf/src/a.rs", good).is_empty(), "{good}");
        }
        for bad in [
            "let a = unsafe { x() };\n",
            "// SAFETY: for b\nlet b = unsafe { y() };\nlet a = unsafe { x() };\n",
        ] {
            assert_eq!(problems("policy/src/a.rs", bad).len(), 1, "{bad}");
        }
    }
}
