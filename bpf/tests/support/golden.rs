// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Golden files: text that a person can read and review, one block a case. A block begins with
//! `case NAME`; its other lines are indented. Compared by the tests; written only with
//! `TIDEGATE_BLESS=1` (`cargo xtask golden --bless`).

use super::place::root;
use std::fmt::Write as _;
use std::path::PathBuf;

/// The environment variable that rewrites golden files instead of comparing them.
const BLESS: &str = "TIDEGATE_BLESS";
/// Bytes in a line of hex.
const HEX_LINE: usize = 32;
/// Differences that are shown.
const SHOWN_MAX: usize = 12;

/// Whether golden files are rewritten.
pub fn blessing() -> bool {
    std::env::var(BLESS).is_ok_and(|value| value == "1")
}

/// Bytes as hex, in lines under a label of ten columns.
pub fn hex(label: &str, bytes: &[u8]) -> String {
    let mut text = String::new();
    if bytes.is_empty() {
        let _ = writeln!(text, "  {label:<8}(no bytes)");
    }
    for (at, line) in bytes.chunks(HEX_LINE).enumerate() {
        let label = if at == 0 { label } else { "" };
        let _ = write!(text, "  {label:<8}");
        for byte in line {
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
    }
    text
}

/// A golden file: a comment, then blocks.
pub struct Golden {
    path: PathBuf,
    about: &'static str,
    blocks: Vec<(String, String)>,
}

impl Golden {
    /// A file under bpf/tests/golden.
    pub fn new(name: &str, about: &'static str) -> Self {
        let path = root().join("bpf/tests/golden").join(name);
        Self { path, about, blocks: Vec::new() }
    }

    /// Adds a block: its name, and its lines, indented.
    pub fn add(&mut self, name: &str, lines: String) {
        assert!(!self.blocks.iter().any(|(known, _)| known == name), "two cases are called {name}");
        self.blocks.push((name.to_owned(), lines));
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for line in
            ["SPDX-License-Identifier: Apache-2.0 OR MIT"].into_iter().chain(self.about.lines())
        {
            let _ = writeln!(text, "{}", format!("# {line}").trim_end());
        }
        for (name, lines) in &self.blocks {
            let _ = write!(text, "\ncase {name}\n{lines}");
        }
        text
    }

    /// Compares with the file, or writes it; what differs, one entry a block.
    pub fn check(&self) -> Vec<String> {
        if blessing() {
            std::fs::create_dir_all(self.path.parent().unwrap()).unwrap();
            std::fs::write(&self.path, self.text()).unwrap();
            return Vec::new();
        }
        let name = self.path.display();
        let Ok(recorded) = std::fs::read_to_string(&self.path) else {
            return vec![format!("{name} is missing: cargo xtask golden --bless")];
        };
        let recorded = blocks(&recorded);
        let mut wrong = Vec::new();
        for (case, lines) in &self.blocks {
            match recorded.iter().find(|(known, _)| known == case) {
                None => wrong.push(format!("{name}: no block for case {case}")),
                Some((_, then)) if then != lines => {
                    wrong.push(format!("{name}: case {case}\n-{then}\n+{lines}"));
                }
                Some(_) => {}
            }
        }
        for (known, _) in &recorded {
            if !self.blocks.iter().any(|(case, _)| case == known) {
                wrong.push(format!("{name}: block {known} belongs to no case"));
            }
        }
        let order = recorded.iter().map(|(name, _)| name);
        if wrong.is_empty() && !order.eq(self.blocks.iter().map(|(name, _)| name)) {
            wrong.push(format!("{name}: the blocks are in another order"));
        }
        wrong
    }
}

/// The blocks of a file. Comments and empty lines stand outside of blocks.
fn blocks(text: &str) -> Vec<(String, String)> {
    let mut blocks: Vec<(String, String)> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match (line.strip_prefix("case "), blocks.last_mut()) {
            (Some(name), _) => blocks.push((name.to_owned(), String::new())),
            (None, Some((_, lines))) => {
                lines.push_str(line);
                lines.push('\n');
            }
            (None, None) => panic!("a line outside of any block: {line}"),
        }
    }
    blocks
}

/// Fails with the differences, if there are any.
pub fn report(wrong: &[String]) {
    let shown: Vec<&str> = wrong.iter().take(SHOWN_MAX).map(String::as_str).collect();
    assert!(
        wrong.is_empty(),
        "{} differences:\n{}\n(rewrite with `cargo xtask golden --bless`, and explain them)",
        wrong.len(),
        shown.join("\n")
    );
}
