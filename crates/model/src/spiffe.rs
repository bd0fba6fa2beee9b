// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Identities of peers, as they are written.

use std::fmt;
use std::str::FromStr;

/// Longest identity, in bytes; SPIFFE allows more (2048), a name needs less.
pub const SPIFFE_MAX: usize = 255;

/// An identity: `spiffe://trust-domain/path`, in the one form in which it may be written. Two are
/// the same when their bytes are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpiffeId(String);

impl SpiffeId {
    /// The URI.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SpiffeId {
    type Err = String;

    /// SPIFFE-ID 2.1 to 2.3: scheme and trust domain in lower case, no port, no user, no query, no
    /// escape, path segments that are neither empty nor dots.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.len() > SPIFFE_MAX {
            return Err(format!("it is longer than {SPIFFE_MAX} bytes"));
        }
        let rest = text.strip_prefix("spiffe://").ok_or("it does not begin with spiffe://")?;
        let (domain, path) =
            rest.split_once('/').ok_or("it has no path behind the trust domain")?;
        let domain_byte = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_');
        if domain.is_empty() || !domain.bytes().all(domain_byte) {
            return Err(format!(
                "the trust domain {domain:?} has other characters than a-z, 0-9, '.', '-' and '_'"
            ));
        }
        let path_byte = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        for segment in path.split('/') {
            if segment.is_empty() || segment == "." || segment == ".." {
                return Err("a segment of its path is empty or made of dots".into());
            }
            if !segment.bytes().all(path_byte) {
                return Err(format!(
                    "{segment:?} has other characters than letters, digits, '.', '-' and '_'"
                ));
            }
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

crate::written_as_text!(SpiffeId, "spiffe");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_has_one_form() {
        for good in ["spiffe://example.org/shop-1", "spiffe://a_b.c-d.1/ns/Web/sa/x.y"] {
            assert_eq!(good.parse::<SpiffeId>().unwrap().as_str(), good);
        }
        let long = format!("spiffe://example.org/{}", "x".repeat(SPIFFE_MAX));
        let bad = [
            "",
            "spiffe://",
            "spiffe://example.org",
            "spiffe://example.org/",
            "spiffe:///shop",
            "SPIFFE://example.org/shop",
            "spiffe://Example.org/shop",
            "https://example.org/shop",
            "spiffe://example.org:443/shop",
            "spiffe://user@example.org/shop",
            "spiffe://example.org//shop",
            "spiffe://example.org/shop/",
            "spiffe://example.org/./shop",
            "spiffe://example.org/../shop",
            "spiffe://example.org/shop?x",
            "spiffe://example.org/shop#x",
            "spiffe://example.org/sh%6Fp",
            "spiffe://example.org/*",
            "spiffe://*/shop",
            " spiffe://example.org/shop",
            "spiffe://example.org/shop\0",
            "spiffe://exämple.org/shop",
            &long,
        ];
        for text in bad {
            assert!(text.parse::<SpiffeId>().is_err(), "{text:?} was taken");
        }
        let longest = format!("spiffe://e/{}", "x".repeat(SPIFFE_MAX - 11));
        assert_eq!(longest.len(), SPIFFE_MAX);
        longest.parse::<SpiffeId>().unwrap();
    }
}
