// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask tidy`: the rules of the repository, enforced.
//!
//! One rule, one file below this one, with its own tests on trees made up in memory. A rule
//! reads, says where it is broken, why it stands, and what to do; it changes nothing.

mod banned;
mod cli_words;
mod clock;
mod commits;
mod crate_law;
mod dependencies;
mod first_screen;
mod hosts;
mod include_law;
mod kernel_names;
mod links;
mod mask;
mod pure;
mod register;
mod sizes;
mod spdx;
mod tree;
mod unsafe_code;
mod words;
mod workspace;

use anyhow::Result;

use crate::process;
use tree::Tree;

/// What a rule looks at.
pub(crate) struct Repository {
    tree: Tree,
    packages: Vec<workspace::Package>,
}

#[cfg(test)]
impl Repository {
    /// One with a single file, made up in memory.
    fn of(path: &str, text: &str) -> Self {
        Self { tree: Tree::of(&[(path, text)]), packages: Vec::new() }
    }
}

/// One place where a rule is broken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Problem {
    /// Relative to the root.
    path: String,
    /// From 1.
    line: usize,
    what: String,
    why: &'static str,
    fix: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { path, line, what, why, fix } = self;
        write!(f, "{path}:{line}: {what}\n    why: {why}\n    fix: {fix}")
    }
}

type Rule = fn(&Repository) -> Vec<Problem>;

const RULES: [(&str, Rule); 17] = [
    ("crate law", crate_law::check),
    ("include law", include_law::check),
    ("kernel library", kernel_names::check),
    ("unsafe code", unsafe_code::check),
    ("clock", clock::check),
    ("pure crates", pure::check),
    ("sizes", sizes::check),
    ("first screen", first_screen::check),
    ("licences", spdx::check),
    ("registers", register::check),
    ("banned words", banned::check),
    ("plain words", words::check),
    ("hosts", hosts::check),
    ("links", links::check),
    ("commands in documents", cli_words::check),
    ("dependencies", dependencies::check),
    ("commits", commits::check),
];

/// Checks every rule; with `ratchet`, lowers the recorded sizes first.
pub(crate) fn run(ratchet: bool) -> Result<()> {
    let repository = load()?;
    if ratchet {
        sizes::lower(&repository.tree, &process::root())?;
        return run(false);
    }
    let mut problems = Vec::new();
    for (name, rule) in RULES {
        let found = rule(&repository);
        if !found.is_empty() {
            println!("tidy: {name}: {}", found.len());
        }
        problems.extend(found);
    }
    problems.sort();
    for problem in &problems {
        println!("{problem}");
    }
    if !problems.is_empty() {
        println!("tidy: {} problems", problems.len());
        return Err(process::Said.into());
    }
    println!("tidy: {} files, {} rules: all is well", repository.tree.files().len(), RULES.len());
    Ok(())
}

fn load() -> Result<Repository> {
    Ok(Repository { tree: Tree::read(&process::root())?, packages: workspace::read()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rules are part of the tests, so that CI enforces them.
    #[test]
    fn this_repository_is_tidy() {
        let repository = load().expect("the repository can be read");
        let problems: Vec<String> = RULES
            .iter()
            .flat_map(|(_, rule)| rule(&repository))
            .map(|problem| problem.to_string())
            .collect();
        assert!(problems.is_empty(), "\n{}\n(cargo xtask tidy)", problems.join("\n"));
    }

    #[test]
    fn a_problem_says_where_what_why_and_how() {
        let problem = Problem {
            path: "a.rs".into(),
            line: 7,
            what: "wrong".into(),
            why: "reason",
            fix: "do this".into(),
        };
        assert_eq!(problem.to_string(), "a.rs:7: wrong\n    why: reason\n    fix: do this");
    }
}
