// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The BPF library is named in one place only, so that it can be exchanged there.

use super::{Problem, Repository};

/// In parts, so that this file does not break its own rule.
const NAME: &str = concat!("lib", "bpf");
/// `bpf/build…` is the build script and its parts. Support of the crate's own tests compiles and
/// loads objects of its own, by other compilers than the product's (docs/decisions/0001).
const PLACES: [&str; 3] = ["bpf/src/", "bpf/build", "bpf/tests/support/"];

pub(super) fn check(repository: &Repository) -> Vec<Problem> {
    let files = repository.tree.files().iter().filter(|file| {
        (file.is_rust() || file.is_c()) && !PLACES.iter().any(|place| file.path.starts_with(place))
    });
    files
        .flat_map(|file| {
            file.code_lines().filter(|(_, code)| code.contains(NAME)).map(|(line, _)| Problem {
                path: file.path.clone(),
                line,
                what: format!("`{NAME}` is named outside bpf/src"),
                why: "only bpf/src knows which library talks to the kernel",
                fix: "use the types of tidegate_bpf; add what is missing there".to_owned(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tree::Tree;
    use super::*;

    #[test]
    fn only_the_loader_names_it_and_words_about_it_are_free() {
        let uses = format!("use {NAME}_rs::Map;\n");
        let says = format!("// as {NAME} does\n");
        let repository = Repository {
            tree: Tree::of(&[
                ("bpf/src/maps.rs", &uses),
                ("bpf/tests/a.rs", &uses),
                ("crates/daemon/src/a.rs", &uses),
                ("crates/sense/src/a.rs", &says),
            ]),
            packages: Vec::new(),
        };
        let paths: Vec<String> = check(&repository).into_iter().map(|found| found.path).collect();
        assert_eq!(paths, ["bpf/tests/a.rs", "crates/daemon/src/a.rs"]);
    }
}
