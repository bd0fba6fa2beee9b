// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The normal form of a path (bpf/http/http_path.h): as servers understand it, however it is written.

use super::PATH_MAX;

/// What stands in a segment and means itself (RFC 3986, pchar), but for the semicolon.
fn means_itself(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,=:@".contains(&byte)
}

/// One character of a segment, as it is kept. `None`: servers differ in what it means.
pub(super) fn kept(byte: u8) -> Option<String> {
    match byte {
        b'/' | b';' | b'\\' | 0..b' ' | 0x7f => None,
        _ if means_itself(byte) => Some(char::from(byte).to_string()),
        _ => Some(format!("%{byte:02X}")),
    }
}

/// The byte of an escape that a text begins with.
pub(super) fn escaped(text: &str) -> Option<u8> {
    let digits = text.strip_prefix('%')?.get(..2)?;
    let hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    hex.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// One segment. `None`: servers differ in what it means.
fn segment(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(first) = rest.bytes().next() {
        let c = rest.chars().next()?;
        let width = match (first, escaped(rest)) {
            (b'%', None) => return None,
            (b'%', Some(byte)) => {
                out += &kept(byte)?;
                3
            }
            _ => {
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    out += &kept(byte)?;
                }
                c.len_utf8()
            }
        };
        rest = &rest[width..];
    }
    Some(out)
}

/// A path that begins with a slash, without its query. `None`: servers differ in which it is.
pub(super) fn normal(path: &str) -> Option<String> {
    let mut kept = String::from("/");
    // Where each segment begins.
    let mut starts: Vec<usize> = Vec::new();
    // There was more than is compared: what `..` takes away is unknown then.
    let mut full = false;
    let mut texts = path.strip_prefix('/')?.split('/').peekable();
    while let Some(text) = texts.next() {
        let segment = segment(text)?;
        full |= kept.len() + segment.len() > PATH_MAX;
        match segment.as_str() {
            "" | "." => {}
            ".." if full => return None,
            ".." => kept.truncate(starts.pop()?),
            _ => {
                starts.push(kept.len());
                kept += &segment;
                if texts.peek().is_some() {
                    kept.push('/');
                    full |= kept.len() > PATH_MAX;
                }
            }
        }
    }
    Some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_form_however_it_is_written() {
        let cases = [
            ("/", Some("/")),
            ("//a//b/", Some("/a/b/")),
            ("/./a/./b/../c", Some("/a/c")),
            ("/a/b/..", Some("/a/")),
            ("/a/.", Some("/a/")),
            ("/a/..", Some("/")),
            ("/%63gi%2dbin/%7E", Some("/cgi-bin/~")),
            ("/%2e%2E/a", None),
            ("/a/%2e%2E/b", Some("/b")),
            ("/\u{fc}|%20%c3%25%3f", Some("/%C3%BC%7C%20%C3%25%3F")),
            ("/a%40%2C", Some("/a@,")),
            ("/a%2Fb", None),
            ("/a;b", None),
            ("/a\\b", None),
            ("/a%5c", None),
            ("/a%00", None),
            ("/a%6", None),
            ("/a%zz", None),
            ("*", None),
        ];
        for (path, expected) in cases {
            assert_eq!(normal(path).as_deref(), expected, "{path}");
        }
        let long = |letters: usize| format!("/{}/../b", "a".repeat(letters));
        assert_eq!(normal(&long(PATH_MAX - 4)).as_deref(), Some("/b"));
        assert_eq!(normal(&long(PATH_MAX - 3)), None, "more than is compared");
    }
}
