// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sizes of files and functions, with a ratchet: what is too big today is listed in
//! xtask/ratchet.txt and may only shrink.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

use super::tree::{File, Tree};
use super::{Problem, Repository};

/// Lines of a function, from its first to its closing brace.
const FUNCTION_MAX: usize = 70;
/// Lines of a source file, tests included.
const FILE_MAX: usize = 800;
/// Lines of a policy.
const POLICY_MAX: usize = 200;

/// The list of exceptions.
const RATCHET: &str = "xtask/ratchet.txt";
const POLICIES: &str = "policy/algo/";
/// Generated from the kernel.
const GENERATED: &str = "bpf/vmlinux/";

const WHY: &str = "what does not fit on a screen or in one sitting is not reviewed";

/// What is measured: a path, or `path function`.
type Sizes = BTreeMap<String, Size>;

#[derive(Clone, Debug)]
struct Size {
    lines: usize,
    limit: usize,
    path: String,
    line: usize,
}

pub(super) fn check(repository: &Repository) -> Vec<Problem> {
    let sizes = measure(&repository.tree);
    let mut problems = Vec::new();
    let allowed = match recorded(&repository.tree) {
        Ok(allowed) => allowed,
        Err(problem) => return vec![problem],
    };
    for (name, size) in &sizes {
        let limit = allowed.get(name).map_or(size.limit, |(lines, _)| (*lines).max(size.limit));
        if size.lines > limit {
            problems.push(Problem {
                path: size.path.clone(),
                line: size.line,
                what: format!("{name}: {} lines, at most {limit}", size.lines),
                why: WHY,
                fix: "split it along its jobs".to_owned(),
            });
        }
    }
    for (name, (lines, line)) in &allowed {
        let now = sizes.get(name).filter(|size| size.lines > size.limit);
        if now.is_none_or(|size| size.lines < *lines) {
            problems.push(Problem {
                path: RATCHET.to_owned(),
                line: *line,
                what: format!("{name} has shrunk below the {lines} lines recorded here"),
                why: "an exception may only shrink",
                fix: "cargo xtask tidy --ratchet".to_owned(),
            });
        }
    }
    problems
}

/// Rewrites the list: lower where something shrank, without what needs no exception any more.
/// Never adds a line and never raises one.
pub(super) fn lower(tree: &Tree, root: &Path) -> Result<()> {
    let Ok(recorded) = recorded(tree) else {
        return Ok(()); // the check that follows names the bad line
    };
    let Some(old) = tree.file(RATCHET) else { return Ok(()) };
    let text = lowered(&old.text, &recorded, &measure(tree));
    if text != old.text {
        std::fs::write(root.join(RATCHET), text).with_context(|| format!("writing {RATCHET}"))?;
        println!("tidy: {RATCHET} lowered");
    }
    Ok(())
}

fn lowered(old: &str, recorded: &BTreeMap<String, (usize, usize)>, sizes: &Sizes) -> String {
    let mut text = String::new();
    for comment in old.lines().take_while(|line| line.starts_with('#')) {
        let _ = writeln!(text, "{comment}");
    }
    for (name, (lines, _)) in recorded {
        if let Some(size) = sizes.get(name).filter(|size| size.lines > size.limit) {
            let _ = writeln!(text, "{} {name}", size.lines.min(*lines));
        }
    }
    text
}

/// Name → (lines, line of the list).
fn recorded(tree: &Tree) -> std::result::Result<BTreeMap<String, (usize, usize)>, Problem> {
    let mut recorded = BTreeMap::new();
    let Some(file) = tree.file(RATCHET) else { return Ok(recorded) };
    for (line, text) in file.lines().filter(|(_, text)| !text.starts_with('#') && !text.is_empty())
    {
        let parsed =
            text.split_once(' ').and_then(|(lines, name)| Some((name, lines.parse().ok()?)));
        let Some((name, lines)) = parsed else {
            return Err(Problem {
                path: RATCHET.to_owned(),
                line,
                what: format!("not understood: {text}"),
                why: "an exception that is not understood would be none, or for ever",
                fix: "write `lines path` or `lines path function`".to_owned(),
            });
        };
        recorded.insert(name.to_owned(), (lines, line));
    }
    Ok(recorded)
}

fn measure(tree: &Tree) -> Sizes {
    let mut sizes = Sizes::new();
    let files = tree.files().iter().filter(|file| {
        let is_source = matches!(file.extension(), "rs" | "c" | "h" | "sh" | "py");
        is_source && !file.path.starts_with(GENERATED)
    });
    for file in files {
        let is_policy = file.path.starts_with(POLICIES);
        let limit = if is_policy { POLICY_MAX } else { FILE_MAX };
        let lines = file.text.lines().count();
        let size = Size { lines, limit, path: file.path.clone(), line: 1 };
        sizes.insert(file.path.clone(), size);
        for (name, line, lines) in functions(file) {
            let size = Size { lines, limit: FUNCTION_MAX, path: file.path.clone(), line };
            let name = format!("{} {name}", file.path);
            // Functions of one name: the biggest stands for all.
            let biggest = sizes.get(&name).is_none_or(|other| other.lines < lines);
            if biggest {
                sizes.insert(name, size);
            }
        }
    }
    sizes
}

/// Functions as (name, first line, lines).
fn functions(file: &File) -> Vec<(String, usize, usize)> {
    let code: Vec<&str> = file.code_lines().map(|(_, code)| code).collect();
    let mut functions = Vec::new();
    for (index, text) in code.iter().enumerate() {
        let name = if file.is_rust() { rust_function(text) } else { c_function(&code, index) };
        if let Some(name) = name
            && let Some(end) = end_of_body(&code, index)
        {
            functions.push((name, index + 1, end - index + 1));
        }
    }
    functions
}

/// The name behind `fn`, if the line begins a function.
fn rust_function(text: &str) -> Option<String> {
    const BEFORE: [&str; 6] = ["pub", "const", "async", "unsafe", "extern", "default"];
    let (before, after) = text.split_once("fn ")?;
    let is_start = before
        .split_whitespace()
        .all(|word| BEFORE.contains(&word) || word.starts_with("pub(") || word.ends_with(')'));
    let name: String =
        after.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
    (is_start && !name.is_empty()).then_some(name)
}

/// The name before the parenthesis of a C function, whose lines begin in the first column and
/// whose body opens with a brace in the first column (kernel style).
fn c_function(code: &[&str], index: usize) -> Option<String> {
    let text = code[index];
    let first = text.chars().next()?;
    let is_head = (first.is_alphabetic() || first == '_') && !text.trim_end().ends_with(';');
    if !is_head || text.starts_with("struct ") && !text.contains('(') {
        return None;
    }
    let opens = code[index + 1..].iter().take_while(|line| !line.is_empty());
    let mut opens = opens.skip_while(|line| line.starts_with([' ', '\t']));
    if !opens.next().is_some_and(|line| line.starts_with('{')) {
        return None;
    }
    let before = text.split('(').next()?.trim_end();
    let name = before.rsplit(|letter: char| !letter.is_alphanumeric() && letter != '_').next()?;
    (!name.is_empty() && text.contains('(')).then(|| name.to_owned())
}

/// The line of the brace that closes the first one opened at or after `start`; none if a
/// semicolon comes first: a declaration.
fn end_of_body(code: &[&str], start: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let mut brackets = 0_usize;
    for (index, text) in code.iter().enumerate().skip(start) {
        for letter in text.chars() {
            match letter {
                '[' | '(' => brackets += 1,
                ']' | ')' => brackets = brackets.saturating_sub(1),
                '{' => depth += 1,
                '}' if depth <= 1 => return (depth == 1).then_some(index),
                '}' => depth -= 1,
                ';' if depth == 0 && brackets == 0 => return None,
                _ => {}
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository(files: &[(&str, &str)]) -> Repository {
        Repository { tree: Tree::of(files), packages: Vec::new() }
    }

    fn rust(name: &str, lines: usize) -> String {
        format!("pub(crate) fn {name}(a: [u8; 2]) {{\n{}}}\n", "    a();\n".repeat(lines - 2))
    }

    fn c(lines: usize) -> String {
        format!("static int f(int a,\n\t\tint b)\n{{\n{}}}\n", "\ta();\n".repeat(lines - 4))
    }

    #[test]
    fn both_sides_of_the_limit_of_a_function() {
        for (lines, problems) in [(FUNCTION_MAX, 0), (FUNCTION_MAX + 1, 1)] {
            for (path, text) in [("a.rs", rust("f", lines)), ("bpf/http/a.h", c(lines))] {
                let found = check(&repository(&[(path, &text)]));
                assert_eq!(found.len(), problems, "{path}: {lines} lines: {found:?}");
            }
        }
    }

    #[test]
    fn both_sides_of_the_limits_of_files() {
        for (path, limit) in [("a.rs", FILE_MAX), ("policy/algo/a.h", POLICY_MAX)] {
            assert!(check(&repository(&[(path, &"\n".repeat(limit))])).is_empty());
            assert_eq!(check(&repository(&[(path, &"\n".repeat(limit + 1))])).len(), 1, "{path}");
        }
        let generated = "\n".repeat(FILE_MAX + 1);
        assert!(check(&repository(&[("bpf/vmlinux/vmlinux.h", &generated)])).is_empty());
    }

    #[test]
    fn an_exception_holds_until_it_has_shrunk() {
        let text = rust("f", 80);
        let check_with = |ratchet: &str| {
            check(&repository(&[("a.rs", &text), (RATCHET, ratchet)]))
                .into_iter()
                .map(|problem| problem.path)
                .collect::<Vec<_>>()
        };
        assert!(check_with("# head\n80 a.rs f\n").is_empty());
        assert_eq!(check_with("79 a.rs f\n"), ["a.rs"]);
        assert_eq!(check_with("81 a.rs f\n"), [RATCHET]);
        assert_eq!(check_with("80 a.rs f\n90 gone.rs\n"), [RATCHET]);
        assert_eq!(check_with("many a.rs\n"), [RATCHET]);
    }

    #[test]
    fn the_list_is_lowered_never_raised_and_never_added_to() {
        let (f, g) = (rust("f", 80), rust("g", 90));
        let text = format!("{f}{g}");
        let ratchet = "# head\n85 a.rs f\n70 a.rs g\n99 gone.rs\n";
        let tree = Tree::of(&[("a.rs", &text), ("b.rs", &f), (RATCHET, ratchet)]);
        let recorded = recorded(&tree).expect("well-formed");
        assert_eq!(lowered(ratchet, &recorded, &measure(&tree)), "# head\n80 a.rs f\n70 a.rs g\n");
    }

    #[test]
    fn declarations_and_pointers_are_no_functions() {
        let text = "trait A {\n    fn a(&self) -> [u8; 4];\n    fn b(&self) {\n    }\n}\n\
            type F = fn (u8);\nlet f: fn (u8) = g;\n";
        let tree = Tree::of(&[("a.rs", text)]);
        let names: Vec<String> = functions(&tree.files()[0]).into_iter().map(|f| f.0).collect();
        assert_eq!(names, ["b"]);
        let text = "struct a {\n\tint b;\n};\n\nint f(void);\n\nint\nmain(void)\n{\n}\n";
        let tree = Tree::of(&[("policy/a.c", text)]);
        let names: Vec<String> = functions(&tree.files()[0]).into_iter().map(|f| f.0).collect();
        assert_eq!(names, ["main"]);
    }
}
