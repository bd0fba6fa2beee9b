// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tells code from comments from strings, for Rust and C, so that a rule about code is not
//! broken by a sentence about it. No parser: a cursor that knows how each of them ends.

/// The same text twice, of the same shape: what is left out became spaces.
#[derive(Debug, Default)]
pub(super) struct Masked {
    /// Without comments and without what stands in quotes.
    pub(super) code: String,
    /// Only comments.
    pub(super) comments: String,
}

/// None for languages other than Rust and C.
pub(super) fn mask(path: &str, text: &str) -> Option<Masked> {
    let rust = path.ends_with(".rs");
    if !rust && !path.ends_with(".c") && !path.ends_with(".h") {
        return None;
    }
    let mut cursor = Cursor { rest: text, rust, masked: Masked::default() };
    while cursor.step() {}
    Some(cursor.masked)
}

#[derive(Clone, Copy)]
enum Kind {
    Code,
    Comment,
    Text,
}

struct Cursor<'a> {
    rest: &'a str,
    rust: bool,
    masked: Masked,
}

impl Cursor<'_> {
    /// Takes one comment, string or letter; false at the end.
    fn step(&mut self) -> bool {
        let rest = self.rest;
        let (length, kind) = if rest.starts_with("//") {
            (rest.find('\n').unwrap_or(rest.len()), Kind::Comment)
        } else if rest.starts_with("/*") {
            (block_comment(rest, self.rust), Kind::Comment)
        } else if let Some(length) = self.rust.then(|| raw_string(rest)).flatten() {
            (length, Kind::Text)
        } else if rest.starts_with('"') {
            (quoted(rest, '"'), Kind::Text)
        } else if rest.starts_with('\'') {
            match character(rest, self.rust) {
                Some(length) => (length, Kind::Text),
                None => (1, Kind::Code),
            }
        } else {
            (word(rest), Kind::Code)
        };
        self.take(length, kind);
        length > 0
    }

    fn take(&mut self, length: usize, kind: Kind) {
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        for letter in taken.chars() {
            let blank = if letter == '\n' { '\n' } else { ' ' };
            let (code, comment) = match kind {
                Kind::Code => (letter, blank),
                Kind::Comment => (blank, letter),
                Kind::Text => (blank, blank),
            };
            self.masked.code.push(code);
            self.masked.comments.push(comment);
        }
    }
}

/// A whole word, so that the `r` of `bar"` starts no raw string; else one letter; 0 at the end.
fn word(rest: &str) -> usize {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    let word = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
    if word > 0 { word } else { rest.chars().next().map_or(0, char::len_utf8) }
}

/// Rust's comments nest, C's do not.
fn block_comment(rest: &str, nests: bool) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with("/*") && (nests || depth == 0) {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// `r"…"`, `r#"…"#`, also with `b` or `c` in front; none if no raw string starts here.
fn raw_string(rest: &str) -> Option<usize> {
    let after = rest.strip_prefix(['b', 'c']).unwrap_or(rest).strip_prefix('r')?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let body = after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let start = rest.len() - body.len();
    Some(body.find(&end).map_or(rest.len(), |at| start + at + end.len()))
}

/// Length of a quoted text, both quotes included.
fn quoted(rest: &str, quote: char) -> usize {
    let mut letters = rest.char_indices().skip(1);
    while let Some((at, letter)) = letters.next() {
        if letter == '\\' {
            letters.next();
        } else if letter == quote {
            return at + 1;
        }
    }
    rest.len()
}

/// A character literal; none for a lifetime or label.
fn character(rest: &str, rust: bool) -> Option<usize> {
    let mut letters = rest.chars().skip(1);
    let first = letters.next()?;
    let is_literal = !rust || first == '\\' || letters.next() == Some('\'');
    is_literal.then(|| quoted(rest, '\''))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        mask("a.rs", text).expect("Rust").code
    }

    #[test]
    fn comments_and_strings_become_spaces_and_lines_stay() {
        let text = "let a = \"{ // no\"; // yes {\n/* x\n y */ let b = 1;";
        let masked = mask("a.rs", text).expect("Rust");
        assert_eq!(masked.code.lines().count(), 3);
        assert!(!masked.code.contains('{') && masked.code.contains("let b = 1;"));
        assert!(masked.comments.contains("// yes {") && !masked.comments.contains("no"));
    }

    #[test]
    fn strings_of_every_kind_end_where_they_end() {
        for text in [
            r##"r#"a " b"# ;end"##,
            r##"br"\" ;end"##,
            r#""a \" b" ;end"#,
            r"'\'' ;end",
            r"b'{' ;end",
            "'{' ;end",
            r#"c"{" ;end"#,
        ] {
            let code = code(text);
            assert!(code.ends_with(";end") && !code.contains(['{', '"']), "{text}: {code}");
        }
    }

    #[test]
    fn lifetimes_and_names_ending_in_r_are_code() {
        assert_eq!(code("fn a<'a>(x: &'a str) {}"), "fn a<'a>(x: &'a str) {}");
        assert!(code("bar\"x\" {").ends_with(" {"));
        assert!(code("'outer: loop {").contains("loop {"));
    }

    #[test]
    fn rust_comments_nest_and_c_comments_do_not() {
        let text = "/* a /* b */ c */ d";
        assert_eq!(code(text).trim(), "d");
        assert_eq!(mask("a.h", text).expect("C").code.trim(), "c */ d");
    }

    #[test]
    fn what_never_ends_ends_with_the_file() {
        for text in ["\"abc", "/* abc", "r#\"abc", "'\\", "// abc", "é"] {
            assert_eq!(code(text).chars().count(), text.chars().count(), "{text}");
        }
    }
}
