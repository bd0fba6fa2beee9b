// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What nobody should find in a repository that is finished: unfinished work, skipped tests,
//! paths of somebody's machine.

use super::tree::{File, has_word};
use super::{Problem, Repository};

/// In code, not in comments or strings.
const IN_CODE: [(&str, &str); 4] = [
    ("#[ignore", "a test that is not run proves nothing: mend it or delete it"),
    (concat!("todo", "!"), "write it"),
    (concat!("unimplemented", "!"), "write it, or return an error"),
    (concat!("dbg", "!"), "take it out"),
];
/// In comments, and in all files that are not masked, except prose.
const NOTES: [&str; 2] = [concat!("FIX", "ME"), concat!("X", "XX")];
/// Beginnings of paths that exist on one machine only.
const PATHS: [&str; 4] =
    [concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/wo", "rk/"), concat!("/Us", "ers/")];

pub(super) fn check(repository: &Repository) -> Vec<Problem> {
    repository.tree.files().iter().flat_map(check_file).collect()
}

fn check_file(file: &File) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (line, code) in file.code_lines().filter(|_| file.is_rust()) {
        if let Some((word, fix)) = IN_CODE.iter().find(|(word, _)| code.contains(word)) {
            let why = "unfinished work looks finished from outside";
            problems.push(problem(file, line, word, (why, fix)));
        }
    }
    let notes: Vec<(usize, &str)> = if file.masked.is_some() {
        file.comment_lines().collect()
    } else if file.is_markdown() {
        Vec::new()
    } else {
        file.lines().collect()
    };
    for (line, text) in notes {
        if let Some(word) = NOTES.iter().find(|word| has_word(text, word)) {
            let why = "a note to oneself is not seen by whoever could act on it";
            problems.push(problem(file, line, word, (why, "do it, or open an issue")));
        }
    }
    for (line, text) in file.lines() {
        if let Some(path) = PATHS.iter().find(|path| names_path(text, path)) {
            let why = "on any other machine it is wrong, and it tells what it should not";
            let fix = "a path relative to the repository, a temporary folder, or an argument";
            problems.push(problem(file, line, path, (why, fix)));
        }
    }
    problems
}

/// The path starts here: behind the name of a host it is none.
fn names_path(text: &str, path: &str) -> bool {
    text.match_indices(path).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        !before.is_some_and(|letter| letter.is_alphanumeric() || "._-}>$*~".contains(letter))
    })
}

fn problem(file: &File, line: usize, word: &str, said: (&'static str, &str)) -> Problem {
    Problem {
        path: file.path.clone(),
        line,
        what: format!("`{word}` does not belong here"),
        why: said.0,
        fix: said.1.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(path: &str, text: &str) -> usize {
        check(&Repository::of(path, text)).len()
    }

    #[test]
    fn words_in_code_are_found_and_words_about_them_are_not() {
        for (word, _) in IN_CODE {
            assert_eq!(problems("a.rs", &format!("{word}(x)]\n")), 1, "{word}");
            assert_eq!(problems("a.rs", &format!("// {word}\nlet a = \"{word}\";\n")), 0, "{word}");
        }
    }

    #[test]
    fn notes_are_found_in_comments_and_scripts() {
        for word in NOTES {
            assert_eq!(problems("a.rs", &format!("// {word}: later\n")), 1);
            assert_eq!(problems("a.sh", &format!("# {word}\nmktemp a.{word}{word}\n")), 1);
            assert_eq!(problems("a.md", &format!("No {word} is left in.\n")), 0);
        }
    }

    #[test]
    fn paths_of_a_machine_are_found_everywhere() {
        for path in PATHS {
            assert_eq!(problems("docs/a.md", &format!("see `{path}x`\n")), 1, "{path}");
            assert_eq!(problems("a.rs", &format!("let a = \"{path}x\";\n")), 1, "{path}");
            assert_eq!(problems("a.md", &format!("see host.example{path}x\n")), 0, "{path}");
        }
    }
}
