// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exactly one licence line in every source file, and the right one for its place.

use super::tree::File;
use super::{Problem, Repository};

/// In parts, so that this file has one such line and not two.
const TAG: &str = concat!("SPDX-License-", "Identifier:");

const RUST: &str = "Apache-2.0 OR MIT";
const C: &str = "GPL-2.0-only OR BSD-2-Clause";
const KERNEL: &str = "GPL-2.0-only";

/// What counts as source, by the end of the name.
const SOURCES: [&str; 15] = [
    "rs", "c", "h", "def", "toml", "sh", "py", "yaml", "yml", "html", "css", "js", "conf",
    "service", "mk",
];
const SOURCES_BY_NAME: [&str; 4] = ["Makefile", ".ci/run", "Dockerfile", ".clang-format"];
/// The line stands among the first ones: behind `#!` or `<!doctype>`.
const LINE_MAX: usize = 3;

const WHY: &str = "a file that is copied alone must still say under which terms";

pub(super) fn check(repository: &Repository) -> Vec<Problem> {
    repository.tree.files().iter().filter(|file| is_source(file)).filter_map(judge).collect()
}

fn is_source(file: &File) -> bool {
    SOURCES.contains(&file.extension()) || SOURCES_BY_NAME.contains(&file.path.as_str())
}

fn expected(file: &File) -> &'static str {
    let is_c = file.is_c() || file.extension() == "def";
    if is_c && file.path.starts_with("bpf/vmlinux/") {
        KERNEL
    } else if is_c && (file.path.starts_with("policy/") || file.path.starts_with("bpf/")) {
        C
    } else {
        RUST
    }
}

fn judge(file: &File) -> Option<Problem> {
    let expected = expected(file);
    let tags: Vec<(usize, &str)> = file.lines().filter(|(_, line)| is_tag(file, line)).collect();
    let (line, what) = match tags.as_slice() {
        [] => (1, "no licence line".to_owned()),
        [(line, text)] => {
            let licence = licence(text);
            if licence != expected {
                (*line, format!("licence `{licence}`, but here it is `{expected}`"))
            } else if *line > LINE_MAX {
                (*line, format!("the licence line stands below line {LINE_MAX}"))
            } else {
                return None;
            }
        }
        [_, (line, _), ..] => (*line, "a second licence line".to_owned()),
    };
    let fix = format!("one line at the top: {TAG} {expected}");
    Some(Problem { path: file.path.clone(), line, what, why: WHY, fix })
}

/// A comment with the tag: a script that writes such a line into another file has none.
fn is_tag(file: &File, line: &str) -> bool {
    let marks: &[&str] = match file.extension() {
        "rs" | "c" | "h" | "def" | "css" | "js" => &["//", "/*", "*"],
        "html" => &["<!--"],
        _ => &["#"],
    };
    line.contains(TAG) && marks.iter().any(|mark| line.trim_start().starts_with(mark))
}

/// The expression behind the tag, without the end of a comment.
fn licence(line: &str) -> &str {
    let rest = line.split_once(TAG).map_or("", |(_, rest)| rest).trim();
    rest.trim_end_matches("*/").trim_end_matches("-->").trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(path: &str, text: &str) -> usize {
        check(&Repository::of(path, text)).len()
    }

    #[test]
    fn the_right_line_for_its_place() {
        let rust = format!("// {TAG} {RUST}\n");
        let c = format!("/* {TAG} {C} */\n");
        let kernel = format!("/* {TAG} {KERNEL} */\n");
        for (path, text, found) in [
            ("sim/src/a.rs", &rust, 0),
            ("policy/algo/a.h", &c, 0),
            ("policy/reasons.def", &c, 0),
            ("policy/src/lib.rs", &rust, 0),
            ("bpf/vmlinux/vmlinux.h", &kernel, 0),
            ("policy/algo/a.h", &rust, 1),
            ("bpf/src/a.rs", &c, 1),
            ("bpf/vmlinux/vmlinux.h", &c, 1),
            ("docs/a.md", &String::new(), 0),
        ] {
            assert_eq!(problems(path, text), found, "{path}: {text}");
        }
    }

    #[test]
    fn exactly_one_line_and_at_the_top() {
        let line = format!("# {TAG} {RUST}\n");
        assert_eq!(problems("a.toml", ""), 1);
        assert_eq!(problems("a.toml", &line.repeat(2)), 1);
        assert_eq!(problems("a.sh", &format!("#!/bin/sh\n{line}")), 0);
        assert_eq!(problems("a.sh", &format!("\n\n\n{line}")), 1);
        assert_eq!(problems("Makefile", ""), 1);
        assert_eq!(
            problems("bpf/vmlinux/make.sh", &format!("{line}cat <<E\n/* {TAG} {C} */\nE\n")),
            0
        );
    }
}
