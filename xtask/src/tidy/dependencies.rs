// SPDX-License-Identifier: Apache-2.0 OR MIT
//! docs/dependencies.md names every crate of others that we use, and only those.

use std::collections::BTreeMap;

use super::{Problem, Repository};

const PAGE: &str = "docs/dependencies.md";
const WHY: &str = "a dependency is code that we answer for: each needs its reason";

pub(super) fn check(repository: &Repository) -> Vec<Problem> {
    let mut used: BTreeMap<&str, &str> = BTreeMap::new();
    for package in &repository.packages {
        for other in package.dependencies.iter().filter(|other| !other.is_ours()) {
            used.entry(&other.name).or_insert(&package.manifest_path);
        }
    }
    let mut listed: BTreeMap<&str, usize> = BTreeMap::new();
    let page = repository.tree.file(PAGE);
    for (line, text) in page.into_iter().flat_map(|page| page.lines()) {
        if let Some(name) = row(text) {
            listed.insert(name, line);
        }
    }
    let missing = used.iter().filter(|(name, _)| !listed.contains_key(**name)).map(|(name, by)| {
        let fix = format!("add a line `| \\`{name}\\` | why this one |`, or do without it");
        (1, format!("`{name}`, used by {by}, is not explained"), fix)
    });
    let surplus =
        listed.iter().filter(|(name, _)| !used.contains_key(**name)).map(|(name, line)| {
            (
                *line,
                format!("`{name}` is explained, but nothing uses it"),
                "take the line out".into(),
            )
        });
    missing
        .chain(surplus)
        .map(|(line, what, fix)| Problem { path: PAGE.to_owned(), line, what, why: WHY, fix })
        .collect()
}

/// The name of a row `| `name` | reason |` that has a reason.
fn row(text: &str) -> Option<&str> {
    let (name, rest) = text.strip_prefix("| `")?.split_once("` |")?;
    (rest.trim_matches([' ', '|']).len() > 3).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::super::tree::Tree;
    use super::super::workspace::package;
    use super::*;

    #[test]
    fn the_page_and_the_manifests_agree() {
        let uses = [("serde", "normal", false), ("insta", "dev", false), ("ours", "build", true)];
        for (page, found) in [
            ("| `serde` | data |\n| `insta` | golden |\n", 0),
            ("| `serde` | data |\n", 1),
            ("| `serde` | data |\n| `insta` | |\n", 1),
            ("| `serde` | data |\n| `insta` | golden |\n| `old` | gone |\n", 1),
            ("", 2),
        ] {
            let tree = Tree::of(&[(PAGE, page)]);
            let repository = Repository { tree, packages: vec![package("a", &uses)] };
            assert_eq!(check(&repository).len(), found, "{page}");
        }
    }
}
