// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Links between documents lead somewhere.

use super::tree::{File, Tree, folder, join};
use super::{Problem, Repository};

const WHY: &str = "a dead link sends the reader away";

pub(super) fn check(repository: &Repository) -> Vec<Problem> {
    let tree = &repository.tree;
    let files = tree.files().iter().filter(|file| file.is_markdown());
    files.flat_map(|file| check_file(tree, file)).collect()
}

fn check_file(tree: &Tree, file: &File) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (line, text) in prose(file) {
        for target in targets(&text) {
            if let Some(what) = judge(tree, file, target) {
                problems.push(Problem {
                    path: file.path.clone(),
                    line,
                    what,
                    why: WHY,
                    fix: "mend the path (relative to this file) or the name of the section"
                        .to_owned(),
                });
            }
        }
    }
    problems
}

/// Lines outside fenced blocks, with code spans blanked.
fn prose(file: &File) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (line, text) in file.lines() {
        if text.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let outside = text.split('`').step_by(2).collect::<Vec<_>>().join(" ");
            lines.push((line, outside));
        }
    }
    lines
}

/// What stands in the parentheses of `[…](…)`.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| {
        let target = rest.split(')').next()?;
        target.split_whitespace().next()
    })
}

fn judge(tree: &Tree, file: &File, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, section) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() { file.path.clone() } else { join(folder(&file.path), path)? };
    if !tree.holds(&path) {
        return Some(format!("`{target}` leads nowhere"));
    }
    let page = tree.file(&path)?;
    let is_there =
        section.is_empty() || !page.is_markdown() || sections(page).any(|s| s == section);
    (!is_there).then(|| format!("`{path}` has no section `{section}`"))
}

/// The names that a heading is linked by, as GitHub makes them.
fn sections(page: &File) -> impl Iterator<Item = String> {
    page.lines().filter(|(_, line)| line.starts_with('#')).map(|(_, line)| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept =
            title.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
        kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_files_folders_and_sections() {
        for (link, found) in [
            ("[a](b.md)", 0),
            ("[a](../README.md#try-it-in-a-minute)", 0),
            ("[a](#here)", 0),
            ("[a](decisions)", 0),
            ("[a](https://docs.rs/x)", 0),
            ("`[a](gone.md)`", 0),
            ("[a](gone.md)", 1),
            ("[a](#gone) and [b](b.md#gone)", 2),
        ] {
            let text = format!("# Here\n{link}\n");
            let tree = Tree::of(&[
                ("docs/a.md", &text),
                ("docs/b.md", "# B\n"),
                ("docs/decisions/0001.md", ""),
                ("README.md", "## Try it, in a minute!\n"),
            ]);
            let repository = Repository { tree, packages: Vec::new() };
            assert_eq!(check(&repository).len(), found, "{link}");
        }
    }
}
