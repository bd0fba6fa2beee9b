// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Values of `requests` with a notation of their own: paths, hosts, cookies.

use super::{COOKIE_NAME_MAX, COOKIE_VALUE_MAX, PATH_MAX, path};
use crate::text::text_schema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use tidegate_model::written_as_text;

/// Longest name of a host, in bytes (RFC 1035).
pub(crate) const HOST_MAX: usize = 253;
/// Longest label of a name, in bytes (RFC 1035).
const LABEL_MAX: usize = 63;
/// Longest type of a body, in bytes.
const CONTENT_TYPE_MAX: usize = 100;

text_schema!(
    /// The schema of a path.
    PathText, "path", "type": "string", "pattern": "^/", "maxLength": 120
);
text_schema!(
    /// The schema of a host.
    HostText, "host", "type": "string", "maxLength": 255
);
text_schema!(
    /// The schema of a cookie's name.
    CookieNameText, "cookie-name", "type": "string", "minLength": 1, "maxLength": 64
);
text_schema!(
    /// The schema of a cookie's value.
    CookieValueText, "cookie-value", "type": "string", "maxLength": 256
);
text_schema!(
    /// The schema of a body's type.
    ContentTypeText, "content-type", "type": "string", "minLength": 3, "maxLength": 100
);

/// The beginning of a path in its normal form; never empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathPrefix(String);

impl PathPrefix {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this path, in its normal form, begins with it.
    #[must_use]
    pub fn begins(&self, path: &str) -> bool {
        path.starts_with(&self.0)
    }
}

impl fmt::Display for PathPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for PathPrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        check_path(text)?;
        Ok(Self(text.to_owned()))
    }
}

fn check_path(text: &str) -> Result<(), String> {
    if !text.starts_with('/') {
        return Err("a path begins with /".into());
    }
    if text.len() > PATH_MAX {
        return Err(format!("it has {} bytes; at most {PATH_MAX} are compared", text.len()));
    }
    for c in text.chars() {
        match c {
            '?' | '#' => {
                return Err(format!("only the path is compared, not what follows {c:?}"));
            }
            '*' => return Err("it is a prefix already; leave the * out".into()),
            c if c.is_control() || c == ' ' => {
                return Err(format!("a path cannot contain {c:?}"));
            }
            c if !c.is_ascii() => {
                let mut bytes = [0; 4];
                let encoded: String =
                    c.encode_utf8(&mut bytes).bytes().map(|b| format!("%{b:02X}")).collect();
                return Err(format!("clients send {c:?} as {encoded}; write it so"));
            }
            _ => {}
        }
    }
    check_normal(text)
}

/// Requests are compared in the normal form of their paths: what is written otherwise in a rule would
/// never match.
fn check_normal(text: &str) -> Result<(), String> {
    for (at, c) in text.char_indices().filter(|(_, c)| *c != '/') {
        let written = match c {
            '%' => text.get(at..at + 3).unwrap_or(&text[at..]).to_owned(),
            c => c.to_string(),
        };
        let byte = if c == '%' { path::escaped(&written) } else { u8::try_from(c).ok() };
        let Some(byte) = byte else {
            return Err(format!("{written:?} is no percent-encoded byte"));
        };
        let Some(kept) = path::kept(byte) else {
            return Err(format!(
                "servers differ in what {written} means in a path: such requests meet the rule with \
                 unevaluable: true"
            ));
        };
        if kept != written {
            return Err(format!(
                "paths are compared in their normal form; write {kept} for {written}"
            ));
        }
    }
    let odd = ["//", "/./", "/../"].into_iter().find(|odd| text.contains(odd));
    odd.map_or(Ok(()), |odd| {
        Err(format!("paths are compared in their normal form, which has no {odd}; leave it out"))
    })
}

/// A host name in lower case, or all names with one more label, as in certificates.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPattern {
    /// Whether it stands for every name with one more label before `name` (and not for `name`).
    pub below: bool,
    /// The name, in lower case.
    pub name: String,
}

impl HostPattern {
    /// Whether this name (in any case, without a port) is meant.
    #[must_use]
    pub fn matches(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        if self.below {
            host.split_once('.').is_some_and(|(_, rest)| rest == self.name)
        } else {
            host == self.name
        }
    }

    /// Whether every name that the other means is meant by this one, too.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        match (self.below, other.below) {
            (true, false) => self.matches(&other.name),
            (true, true) | (false, false) => self.name == other.name,
            (false, true) => false,
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.below { "*." } else { "" }, self.name)
    }
}

impl FromStr for HostPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (below, name) = text.strip_prefix("*.").map_or((false, text), |rest| (true, rest));
        if name.contains('*') {
            return Err("a * stands only at the beginning, as in *.example.com".into());
        }
        if let Some((_, port)) = name.rsplit_once(':')
            && !name.starts_with('[')
            && port.bytes().all(|b| b.is_ascii_digit())
        {
            return Err("names are compared without their port; leave it out".into());
        }
        if name.len() > HOST_MAX {
            return Err(format!("it has {} bytes; a name has at most {HOST_MAX}", name.len()));
        }
        let address = !below && is_address(name);
        if let Some(label) = name.split('.').find(|label| !address && !good_label(label)) {
            return Err(format!(
                "{label:?} is no label of a name: 1 to {LABEL_MAX} letters, digits, - or _, not at the ends -"
            ));
        }
        Ok(Self { below, name: name.to_ascii_lowercase() })
    }
}

/// An IPv6 address in brackets, as it stands in a Host header.
fn is_address(name: &str) -> bool {
    let inner = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    inner.is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok())
}

fn good_label(label: &str) -> bool {
    let inside = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    (1..=LABEL_MAX).contains(&label.len())
        && label.bytes().all(inside)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// A token of RFC 9110, section 5.6.2: what names of cookies and headers are made of.
fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

/// A byte of a cookie's value (RFC 6265, section 4.1.1).
fn is_cookie_octet(b: u8) -> bool {
    b.is_ascii_graphic() && !b"\",;\\".contains(&b)
}

fn only(text: &str, allowed: impl Fn(u8) -> bool) -> Result<(), String> {
    let wrong = text.chars().find(|c| !u8::try_from(*c).is_ok_and(&allowed));
    wrong.map_or(Ok(()), |c| Err(format!("it contains {c:?}")))
}

fn length(text: &str, (min, max): (usize, usize)) -> Result<(), String> {
    if (min..=max).contains(&text.len()) {
        Ok(())
    } else {
        Err(format!("it has {} bytes; {min} to {max} are allowed", text.len()))
    }
}

/// Whether a text is the name of a cookie.
pub(crate) fn check_cookie_name(text: &str) -> Result<(), String> {
    length(text, (1, COOKIE_NAME_MAX))?;
    only(text, is_token)
}

/// Whether a text is the value of a cookie.
pub(crate) fn check_cookie_value(text: &str) -> Result<(), String> {
    length(text, (0, COOKIE_VALUE_MAX))?;
    only(text, is_cookie_octet)
}

/// Whether a text is the type of a body: one line, `type/subtype` and parameters.
pub(crate) fn check_content_type(text: &str) -> Result<(), String> {
    length(text, (3, CONTENT_TYPE_MAX))?;
    only(text, |b| b == b' ' || b.is_ascii_graphic())?;
    let (essence, _) = text.split_once(';').unwrap_or((text, ""));
    let good = |part: &str| !part.is_empty() && part.bytes().all(is_token);
    match essence.trim_end().split_once('/') {
        Some((kind, sub)) if good(kind) && good(sub) => Ok(()),
        _ => Err("it is no type/subtype".into()),
    }
}

written_as_text!(PathPrefix, "path");
written_as_text!(HostPattern, "host");

#[cfg(test)]
mod tests {
    use super::*;

    /// What a rule could ask for and no request has: the rule would never match.
    #[test]
    fn what_no_request_can_have_is_refused() {
        let long = format!("/{}", "a".repeat(PATH_MAX));
        for path in ["", "cart", "/a b", "/a\tb", "/a?b", "/a*", "/%zz", "/a/../b", &long] {
            assert!(path.parse::<PathPrefix>().is_err(), "{path:?} was taken");
        }
        for host in ["", "a.*.shop", "*.", "*..shop", ".shop", "[::g]", "shop:80", "-a.example"] {
            assert!(host.parse::<HostPattern>().is_err(), "{host:?} was taken");
        }
        for name in ["", "a=b", "a b", "gr\u{fc}n", &"a".repeat(COOKIE_NAME_MAX + 1)] {
            assert!(check_cookie_name(name).is_err(), "{name:?} was taken");
        }
        for value in ["b;c", "b,c", "\"b\"", "gr\u{fc}n", &"a".repeat(COOKIE_VALUE_MAX + 1)] {
            assert!(check_cookie_value(value).is_err(), "{value:?} was taken");
        }
        for content_type in ["", "text", "text/plain\r\nX: y", "text/plain\u{e4}"] {
            assert!(check_content_type(content_type).is_err(), "{content_type:?} was taken");
        }
    }

    #[test]
    fn what_a_request_can_have_is_taken() {
        long_enough();
        for host in ["[::1]", "*.Shop.example", "x", "a_b.example"] {
            let shown = host.parse::<HostPattern>().unwrap().to_string();
            assert_eq!(shown, host.to_ascii_lowercase());
        }
        check_cookie_name("__Host-x").unwrap();
        check_cookie_value("a=b").unwrap();
        check_content_type("text/html; charset=utf-8").unwrap();
    }

    fn long_enough() {
        format!("/{}", "a".repeat(PATH_MAX - 1)).parse::<PathPrefix>().unwrap();
        check_cookie_name(&"a".repeat(COOKIE_NAME_MAX)).unwrap();
        check_cookie_value(&"a".repeat(COOKIE_VALUE_MAX)).unwrap();
    }
}
