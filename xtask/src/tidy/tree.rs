// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files of the repository, as text.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::mask::{Masked, mask};

/// Folders that hold no sources.
const SKIPPED: [&str; 5] = [".git", "target", "out", "__pycache__", "node_modules"];
/// Larger files are data.
const BYTES_MAX: u64 = 4 << 20;
/// Deeper than any folder of ours: a guard against loops.
const DEPTH_MAX: usize = 16;

/// One text file.
#[derive(Debug)]
pub(super) struct File {
    /// Relative to the root, with `/`.
    pub(super) path: String,
    pub(super) text: String,
    /// Code and comments apart; for Rust and C only.
    pub(super) masked: Option<Masked>,
}

impl File {
    fn new(path: String, text: String) -> Self {
        let masked = mask(&path, &text);
        Self { path, text, masked }
    }

    /// What is behind the last dot of the name.
    pub(super) fn extension(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        name.rsplit_once('.').map_or("", |(_, extension)| extension)
    }

    /// Code without comments and the contents of strings, line by line from 1; empty for
    /// languages that are not masked.
    pub(super) fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.masked.iter().flat_map(|masked| numbered(&masked.code))
    }

    /// Comments only, line by line from 1.
    pub(super) fn comment_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.masked.iter().flat_map(|masked| numbered(&masked.comments))
    }

    /// Everything, line by line from 1.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        numbered(&self.text)
    }

    pub(super) fn is_rust(&self) -> bool {
        self.extension() == "rs"
    }

    pub(super) fn is_c(&self) -> bool {
        matches!(self.extension(), "c" | "h")
    }

    pub(super) fn is_markdown(&self) -> bool {
        self.extension() == "md"
    }
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

/// All files.
#[derive(Debug, Default)]
pub(super) struct Tree {
    files: Vec<File>,
    /// All files, also those that are not text, and all folders.
    paths: BTreeSet<String>,
}

impl Tree {
    /// Reads everything below `root` that is text.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let mut tree = Self::default();
        tree.walk(root, "", 0)?;
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    /// A tree that a test makes up.
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let mut tree = Self::default();
        for (path, text) in files {
            for (at, _) in path.match_indices('/') {
                tree.paths.insert(path[..at].to_owned());
            }
            tree.paths.insert((*path).to_owned());
            tree.files.push(File::new((*path).to_owned(), (*text).to_owned()));
        }
        tree
    }

    /// All text files, in the order of their paths.
    pub(super) fn files(&self) -> &[File] {
        &self.files
    }

    /// The text file of this path.
    pub(super) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// True for every file and folder, text or not.
    pub(super) fn holds(&self, path: &str) -> bool {
        path.is_empty() || self.paths.contains(path)
    }

    fn walk(&mut self, root: &Path, folder: &str, depth: usize) -> Result<()> {
        let entries =
            fs::read_dir(root.join(folder)).with_context(|| format!("reading {folder}"))?;
        for entry in entries {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            let kind = entry.file_type()?;
            if kind.is_dir() {
                if !SKIPPED.contains(&name.as_str()) && depth < DEPTH_MAX {
                    self.paths.insert(path.clone());
                    self.walk(root, &path, depth + 1)?;
                }
                continue;
            }
            self.paths.insert(path.clone());
            // A file may vanish while others work in the tree.
            let Ok(meta) = entry.metadata() else { continue };
            if kind.is_file()
                && meta.len() <= BYTES_MAX
                && let Ok(text) = fs::read_to_string(root.join(&path))
            {
                self.files.push(File::new(path, text));
            }
        }
        Ok(())
    }
}

/// Joins a path relative to a folder and takes out `.` and `..`; none if it leaves the root.
pub(super) fn join(folder: &str, relative: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in relative.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The folder of a path; empty for the root.
pub(super) fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// True if `word` stands in `text` with no letter, digit or underscore beside it.
pub(super) fn has_word(text: &str, word: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].chars().next_back().is_some_and(is_part)
            && !text[at + word.len()..].chars().next().is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_joined_and_never_leave_the_root() {
        assert_eq!(join("docs/decisions", "../glossary.md").as_deref(), Some("docs/glossary.md"));
        assert_eq!(join("", "./a//b").as_deref(), Some("a/b"));
        assert_eq!(join("docs", "../../a"), None);
    }

    #[test]
    fn words_have_edges() {
        assert!(has_word("an unsafe block", "unsafe"));
        assert!(!has_word("deny(unsafe_code)", "unsafe"));
        assert!(!has_word("", "unsafe"));
    }

    #[test]
    fn our_own_tree_can_be_read() {
        let tree = Tree::read(&crate::process::root()).expect("readable");
        assert!(tree.file("Cargo.toml").is_some() && tree.holds("xtask/src"));
        assert!(tree.files().iter().all(|file| !file.path.starts_with("target/")));
    }
}
