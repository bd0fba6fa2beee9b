// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Documents name only commands that exist: of `tidegate`, of `cargo xtask`, of make.
//!
//! The commands are read from the sources: variants of enums that derive clap's `Subcommand`,
//! `Command::new("…")` in files that implement the command line's `Extension`, targets of the
//! Makefile.

use std::collections::BTreeSet;

use super::tree::{File, Tree};
use super::{Problem, Repository};

/// How a command begins, and the crates (or the Makefile) whose sources say how it goes on.
const PROGRAMS: [(&str, &[&str]); 6] = [
    ("cargo xtask ", &["xtask/src/main.rs"]),
    ("make ", &["Makefile"]),
    ("tidegate ", &["crates/cli/src/", "crates/tidegate/src/"]),
    ("target/release/tidegate ", &["crates/cli/src/", "crates/tidegate/src/"]),
    ("tidegate-lab ", &["crates/cli/src/pages.rs", "crates/lab-cli/src/"]),
    ("target/release/tidegate-lab ", &["crates/cli/src/pages.rs", "crates/lab-cli/src/"]),
];

pub(super) fn check(repository: &Repository) -> Vec<Problem> {
    let tree = &repository.tree;
    let mut problems = Vec::new();
    for (program, sources) in PROGRAMS {
        let known = commands(tree, sources);
        for file in tree.files().iter().filter(|file| file.is_markdown()) {
            for (line, word) in mentions(file, program) {
                if !known.contains(&word) {
                    let list = known.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
                    problems.push(Problem {
                        path: file.path.clone(),
                        line,
                        what: format!("there is no command `{program}{word}`"),
                        why: "a stranger types what the document says",
                        fix: format!("known are: {list}"),
                    });
                }
            }
        }
    }
    problems
}

fn commands(tree: &Tree, sources: &[&str]) -> BTreeSet<String> {
    let files = tree
        .files()
        .iter()
        .filter(|file| sources.iter().any(|source| file.path.starts_with(source)));
    files
        .flat_map(|file| match file.is_rust() {
            true => [subcommands(file), extensions(file)].concat(),
            false => targets(file),
        })
        .chain(["help".to_owned()])
        .collect()
}

/// Variants of every enum that derives `Subcommand`, as clap names them.
fn subcommands(file: &File) -> Vec<String> {
    let mut names = Vec::new();
    let mut lines = file.code_lines().map(|(_, code)| code);
    while lines.by_ref().any(|code| code.contains("derive(") && code.contains("Subcommand")) {
        let body = lines.by_ref().skip_while(|code| !code.contains("enum ")).skip(1);
        let mut depth = 1_i32;
        let mut flattened = false;
        for code in body {
            let at_top = depth == 1;
            depth += brackets(code);
            let text = code.trim();
            if at_top && text.starts_with(|letter: char| letter.is_ascii_uppercase()) {
                // Its commands are those of another enum.
                if !std::mem::take(&mut flattened) {
                    names.push(kebab(text));
                }
            }
            flattened |= at_top && text.starts_with("#[command(flatten)]");
            if depth == 0 {
                break;
            }
        }
    }
    names
}

/// The names of commands that a file builds, where it adds them to the command line.
fn extensions(file: &File) -> Vec<String> {
    let adds = file.lines().any(|(_, line)| line.starts_with("impl Extension for "));
    let built = file.lines().filter_map(|(_, line)| line.split_once("Command::new(\""));
    let names = built.filter_map(|(_, rest)| rest.split_once('"')).map(|(name, _)| name.to_owned());
    if adds { names.collect() } else { Vec::new() }
}

fn brackets(code: &str) -> i32 {
    code.chars()
        .map(|letter| match letter {
            '{' | '(' | '[' => 1,
            '}' | ')' | ']' => -1,
            _ => 0,
        })
        .sum()
}

fn kebab(variant: &str) -> String {
    let mut name = String::new();
    for letter in variant.chars().take_while(|letter| letter.is_alphanumeric()) {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.extend(letter.to_lowercase());
    }
    name
}

fn targets(makefile: &File) -> Vec<String> {
    let phony = makefile.lines().filter_map(|(_, line)| line.strip_prefix(".PHONY:"));
    phony.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

/// Words that follow the program where it begins a code span or a line of a fenced block.
fn mentions(file: &File, program: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut found = Vec::new();
    for (line, text) in file.lines() {
        if text.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        let spans: Vec<&str> = if fenced {
            vec![text.trim_start().trim_start_matches("$ ").trim_start_matches("sudo ")]
        } else {
            text.split('`').skip(1).step_by(2).collect()
        };
        for span in spans {
            let span = span.trim_start_matches("sudo ");
            let Some(rest) = span.strip_prefix(program) else { continue };
            let end =
                rest.find(|l: char| !l.is_ascii_lowercase() && l != '-').unwrap_or(rest.len());
            let word = &rest[..end];
            if !word.is_empty() && !word.starts_with('-') {
                found.push((line, word.to_owned()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLI: &str = "#[derive(Debug, Subcommand)]\nenum Command {\n    /// Runs\n    Run {\n        \
        #[arg(long)]\n        Upper: bool,\n    },\n    TopView(Options),\n    \
        #[command(flatten)]\n    More(More),\n    Check,\n}\n\
        enum Other {\n    Nothing,\n}\n";

    const EXTENSION: &str = "impl Extension for Lab {\n    fn command(&self) -> Command {\n        \
        Command::new(\"lab\").about(\"try\")\n    }\n}\n";

    fn problems(text: &str) -> Vec<String> {
        let tree = Tree::of(&[
            ("crates/cli/src/lib.rs", CLI),
            ("crates/lab-cli/src/lab.rs", EXTENSION),
            ("crates/tidegate/src/start.rs", "let child = Command::new(\"sh\");\n"),
            ("Makefile", ".PHONY: demo test\ndemo:\n"),
            ("xtask/src/main.rs", "#[derive(Subcommand)]\nenum Task {\n    Tidy,\n}\n"),
            ("README.md", text),
        ]);
        let repository = Repository { tree, packages: Vec::new() };
        check(&repository).into_iter().map(|problem| problem.what).collect()
    }

    #[test]
    fn commands_that_exist_may_be_named() {
        let text = "`tidegate run`, `tidegate-lab lab hold`, `tidegate top-view --x`, `make demo`, tidegate is nice,\n\
            `cargo xtask tidy --ratchet`, `tidegate --help`\n```\n$ sudo tidegate check a\n```\n";
        assert!(problems(text).is_empty(), "{:?}", problems(text));
    }

    #[test]
    fn commands_that_do_not_exist_are_found() {
        let text = "`tidegate nothing`, `make coffee`, `tidegate sh`, `tidegate lab hold`,\n\
            `tidegate-lab run`, `tidegate more`\n```\ncargo xtask fly\n```\n";
        assert_eq!(problems(text).len(), 7, "{:?}", problems(text));
    }

    #[test]
    fn only_variants_of_subcommands_are_commands() {
        let tree = Tree::of(&[("a.rs", CLI)]);
        assert_eq!(subcommands(&tree.files()[0]), ["run", "top-view", "check"]);
    }
}
