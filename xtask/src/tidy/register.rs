// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The registers, the policies' sources and tests, and the documents tell the same story. The names in
//! the configuration are those of the register: a test of tidegate-params.

use std::collections::BTreeSet;

use super::tree::{File, Tree};
use super::{Problem, Repository};
use crate::registers::{
    POLICIES, POLICIES_PAGE, Policy, REASONS, REASONS_PAGE, Reason, policies, policies_page,
    reasons, reasons_page,
};

const CONTRACT: &str = "policy/contract/contract.h";
const ALGORITHMS: &str = "policy/algo/";

const WHY: &str = "one register, from which everything else follows: a second copy must not differ";

pub(super) fn check(repository: &Repository) -> Vec<Problem> {
    let tree = &repository.tree;
    let mut problems = Vec::new();
    match tree.file(POLICIES).map(|file| policies(&file.text)) {
        Some(Ok(list)) => check_policies(tree, &list, &mut problems),
        Some(Err(error)) => problems.push(at(POLICIES, 1, format!("{error:#}"), "mend the line")),
        None => {}
    }
    match tree.file(REASONS).map(|file| reasons(&file.text)) {
        Some(Ok(list)) => {
            check_reasons(tree, &list, &mut problems);
            check_page(tree, REASONS_PAGE, &reasons_page(&list), &mut problems);
        }
        Some(Err(error)) => problems.push(at(REASONS, 1, format!("{error:#}"), "mend the line")),
        None => {}
    }
    problems
}

fn check_policies(tree: &Tree, list: &[Policy], problems: &mut Vec<Problem>) {
    let names = |policy: &Policy| (policy.number, policy.name.clone(), policy.line);
    check_entries(POLICIES, &list.iter().map(names).collect::<Vec<_>>(), '_', problems);
    for Policy { name, line, .. } in list {
        for path in [format!("{ALGORITHMS}{name}.h"), format!("policy/tests/{name}.rs")] {
            if tree.file(&path).is_none() {
                let what = format!("policy `{name}` has no {path}");
                problems.push(at(POLICIES, *line, what, "a policy is a header, a line and a test"));
            }
        }
    }
    for file in tree.files().iter().filter(|file| file.path.starts_with(ALGORITHMS)) {
        let name = file.path.trim_start_matches(ALGORITHMS).trim_end_matches(".h");
        if !list.iter().any(|policy| policy.name == name) {
            let what = format!("`{name}` is not in {POLICIES}");
            problems.push(at(&file.path, 1, what, "add its line, or take the file away"));
        }
    }
    check_page(tree, POLICIES_PAGE, &policies_page(list), problems);
}

fn check_reasons(tree: &Tree, list: &[Reason], problems: &mut Vec<Problem>) {
    let names = |reason: &Reason| (reason.number, reason.name.clone(), reason.line);
    check_entries(REASONS, &list.iter().map(names).collect::<Vec<_>>(), '-', problems);
    let max = tree.file(CONTRACT).and_then(reasons_max);
    for Reason { number, constant, name, text, line, .. } in list {
        if max.is_some_and(|max| *number >= max) {
            let what = format!("reason {number} is not below TG_REASONS_MAX");
            problems.push(at(REASONS, *line, what, "raise TG_REASONS_MAX: an ABI change"));
        }
        if *constant != name.to_uppercase().replace('-', "_") {
            let what = format!("`{constant}` and `{name}` are not the same words");
            problems.push(at(REASONS, *line, what, "name them alike"));
        }
        if text.is_empty() {
            let what = format!("reason `{name}` has no explanation");
            problems.push(at(REASONS, *line, what, "say what an operator needs to know"));
        }
    }
}

/// Numbers rise, names are unique and in lower case with `separator`.
fn check_entries(
    path: &str,
    entries: &[(u32, String, usize)],
    separator: char,
    problems: &mut Vec<Problem>,
) {
    let mut seen = BTreeSet::new();
    let mut last = None;
    for (number, name, line) in entries {
        if last.is_some_and(|last| *number <= last) {
            let what = format!("number {number} does not follow {}", last.unwrap_or_default());
            problems.push(at(path, *line, what, "numbers are unique and rise: append"));
        }
        last = Some(*number);
        if !seen.insert(name) {
            problems.push(at(path, *line, format!("`{name}` stands twice"), "choose another"));
        }
        let is_lower = |part: &str| {
            part.starts_with(|letter: char| letter.is_ascii_lowercase())
                && part.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit())
        };
        if !name.split(separator).all(is_lower) {
            let fix = format!("lower case words joined by `{separator}`");
            problems.push(at(path, *line, format!("`{name}` is no good name"), &fix));
        }
    }
}

fn check_page(tree: &Tree, path: &str, expected: &str, problems: &mut Vec<Problem>) {
    let text = tree.file(path).map_or("", |file| file.text.as_str());
    if text != expected {
        let same = text.lines().zip(expected.lines()).take_while(|(is, should)| is == should);
        let line = same.count() + 1;
        problems.push(at(
            path,
            line,
            "differs from the register that it is made from".to_owned(),
            "cargo xtask golden --bless",
        ));
    }
}

fn reasons_max(contract: &File) -> Option<u32> {
    let (_, line) = contract.lines().find(|(_, line)| line.contains("TG_REASONS_MAX ="))?;
    line.split_once('=')?.1.trim().trim_end_matches(',').parse().ok()
}

fn at(path: &str, line: usize, what: String, fix: &str) -> Problem {
    Problem { path: path.to_owned(), line, what, why: WHY, fix: fix.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD_POLICIES: &str = "TG_POLICY(0, token_bucket, ANY, NONE, COPIED, \"a rate\")\n";
    const GOOD_REASONS: &str = "/* all */\nTG_REASON(0, NONE, \"none\", \"x\")\nTG_REASON(3, NOT_NEW, \"not-new\", \"y\")\n";

    fn whats(defs: (&str, &str), extra: &[(&str, &str)]) -> Vec<String> {
        let policies_page = policies(defs.0).map(|list| policies_page(&list)).unwrap_or_default();
        let reasons_page = reasons(defs.1).map(|list| reasons_page(&list)).unwrap_or_default();
        let mut files = vec![
            (POLICIES, defs.0),
            (REASONS, defs.1),
            (POLICIES_PAGE, policies_page.as_str()),
            (REASONS_PAGE, reasons_page.as_str()),
            (CONTRACT, "enum { TG_REASONS_MAX_\n\tTG_REASONS_MAX = 48,\n};\n"),
            ("policy/algo/token_bucket.h", ""),
            ("policy/tests/token_bucket.rs", ""),
        ];
        files.extend(extra);
        let repository = Repository { tree: Tree::of(&files), packages: Vec::new() };
        check(&repository).into_iter().map(|problem| problem.what).collect()
    }

    #[test]
    fn a_story_told_once_everywhere_is_well() {
        let found = whats((GOOD_POLICIES, GOOD_REASONS), &[]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn a_policy_needs_a_header_and_a_test() {
        let defs = format!("{GOOD_POLICIES}TG_POLICY(1, gap, ANY, NONE, LOCKED, \"b\")\n");
        let found = whats((&defs, GOOD_REASONS), &[]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().all(|what| what.contains("`gap`")));
        let found = whats((GOOD_POLICIES, GOOD_REASONS), &[("policy/algo/gap.h", "")]);
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn every_mistake_in_the_reasons_is_found() {
        for (line, what) in [
            ("TG_REASON(3, B, \"b\", \"x\")\n", "does not follow"),
            ("TG_REASON(4, NONE, \"none\", \"x\")\n", "twice"),
            ("TG_REASON(4, A_B, \"a_b\", \"x\")\n", "no good name"),
            ("TG_REASON(48, B, \"b\", \"x\")\n", "not below"),
            ("TG_REASON(4, B, \"c\", \"x\")\n", "same words"),
            ("TG_REASON(4, B, \"b\", \"\")\n", "no explanation"),
            ("TG_REASON(4, B)\n", "expected TG_REASON"),
        ] {
            let found = whats((GOOD_POLICIES, &format!("{GOOD_REASONS}{line}")), &[]);
            assert!(found.iter().any(|found| found.contains(what)), "{line}: {found:?}");
        }
        assert!(whats((GOOD_POLICIES, "TG_REASON(47, B, \"b\", \"x\")\n"), &[]).is_empty());
    }

    #[test]
    fn a_page_that_differs_is_found() {
        let tree = Tree::of(&[(REASONS, GOOD_REASONS), (REASONS_PAGE, "# Reasons\n")]);
        let repository = Repository { tree, packages: Vec::new() };
        let found = check(&repository);
        assert_eq!((found[0].path.as_str(), found[0].line), (REASONS_PAGE, 2));
    }
}
