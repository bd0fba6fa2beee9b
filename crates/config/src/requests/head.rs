// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A request as a client would send it, recognised as strictly as the dataplane does (bpf/http/http.h
//! and http_fields.h): what servers could read in different ways has no rule of its own.
//! bpf/tests/rules_shown.rs holds this, and the choice of the rule, against the C.

use super::{Cookie, Method, path};

/// What a rule can see of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHead {
    /// The method, as it was sent.
    pub method: String,
    /// Path and query, as they were sent.
    pub target: String,
    /// The path in its normal form; empty: the target has none.
    pub path: String,
    /// Host, without its port.
    pub host: Option<String>,
    /// Cookies in their order; without a value where there is no `=`.
    pub cookies: Vec<(String, Option<String>)>,
    /// There is more than is looked at: of the cookies, or of the head.
    pub more: bool,
    /// The head is longer than what is looked at, so that a host which was not seen is unknown.
    pub cut: bool,
}

/// Why no rule of its own evaluates a request, as it is counted (policy/reasons.def).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unevaluated {
    /// No HTTP/1 that every server reads in the same way.
    NotHttp,
    /// The preface of HTTP/2.
    Http2,
    /// It depends on what is not looked at.
    Split,
    /// Servers differ in which path it is.
    AmbiguousPath,
    /// TLS without a name, or with one that is none, where rules ask for names.
    Tls,
}

impl Unevaluated {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::NotHttp, Self::Http2, Self::Split, Self::AmbiguousPath, Self::Tls];

    /// Its name in counters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotHttp => "not-http",
            Self::Http2 => "http2",
            Self::Split => "split",
            Self::AmbiguousPath => "ambiguous-path",
            Self::Tls => "tls",
        }
    }
}

/// A request that no rule of its own evaluates: it meets the rule with `unevaluable: true`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Unevaluable {
    /// What it is counted as.
    pub reason: Unevaluated,
    /// What is wrong with it.
    pub why: String,
}

impl Unevaluable {
    fn new(reason: Unevaluated, why: impl Into<String>) -> Self {
        Self { reason, why: why.into() }
    }
}

/// What the grammar does not have.
impl From<String> for Unevaluable {
    fn from(why: String) -> Self {
        Self::new(Unevaluated::NotHttp, why)
    }
}

/// Bytes of a request that are looked at (bpf/http/head.h: TG_HEAD_MAX).
const HEAD_MAX: usize = 4096;
/// Cookies of a request that are looked at (bpf/http/head.h: TG_COOKIES_MAX).
const COOKIES_MAX: usize = 128;
/// A body is shorter (bpf/http/head.h: TG_BODY_MAX).
const BODY_MAX: u64 = 1_000_000_000_000_000_000;

/// What of a request only tells whether it can be evaluated.
#[derive(Default)]
struct Seen {
    host: bool,
    length: bool,
    coding: bool,
}

impl RequestHead {
    /// From what a proxy says of a request that it has read by itself: whatever its protocol was, one
    /// host and one target are known. `cookies` are the values of its Cookie headers.
    ///
    /// # Errors
    /// Says why no rule of its own evaluates it: no method, no host, or a path in which servers
    /// differ.
    pub fn of(
        method: &str,
        authority: Option<&str>,
        target: &str,
        cookies: &[&str],
    ) -> Result<Self, Unevaluable> {
        if !is_token(method) {
            return Err(format!("{method:?} is no method").into());
        }
        // What has no path a proxy passes on with one, or with none: who sent it chose that.
        let (_, whole) = split_target(target);
        let whole = if whole.starts_with('?') { format!("/{whole}") } else { whole };
        let Some(path) = path_of(&whole).filter(|path| !path.is_empty()) else {
            let why = format!("{:?}: servers differ in which path this is", path_text(target));
            return Err(Unevaluable::new(Unevaluated::AmbiguousPath, why));
        };
        let named = |text: &str| host(text).ok_or_else(|| format!("{text:?} is no host"));
        let host = authority.map(named).transpose()?;
        let (method, target) = (method.to_owned(), target.to_owned());
        let mut head = Self { method, target, path, host, ..Self::default() };
        cookies.iter().for_each(|value| head.cookies(value));
        Ok(head)
    }

    /// From a request line and headers, as a client would send them.
    ///
    /// # Errors
    /// Says why the dataplane would evaluate it by no rule of its own.
    pub fn parse(line: &str, headers: &[String]) -> Result<Self, Unevaluable> {
        let line = line.trim_end_matches(['\r', '\n']);
        let (target, old) = read_line(line)?;
        let (authority, target) = split_target(target);
        let path = path_of(&target);
        let method = line.split(' ').next().unwrap_or_default().to_owned();
        let path_or_none = path.clone().unwrap_or_default();
        let mut head = Self { method, target, path: path_or_none, ..Self::default() };
        let mut seen = Seen::default();
        let mut read = line.len() + LINE_END.len();
        for header in headers {
            read += header.len() + LINE_END.len();
            if read > HEAD_MAX {
                break;
            }
            head.header(header, (authority.is_some(), &mut seen))?;
        }
        if read + LINE_END.len() > HEAD_MAX {
            (head.cut, head.more) = (true, true);
            head.cookies.clear();
        } else {
            body_fault(&seen, old)?;
        }
        // What the request line says wins over the Host header (RFC 9112, section 3.2.2).
        if let Some(authority) = authority {
            head.host =
                Some(host(&authority).filter(|name| !name.is_empty()).ok_or_else(|| {
                    format!("{authority:?} in the target is no host, or one with a user name")
                })?);
        }
        if path.is_none() {
            return Err(Unevaluable::new(
                Unevaluated::AmbiguousPath,
                format!("{:?}: servers differ in which path this is", path_text(&head.target)),
            ));
        }
        Ok(head)
    }

    fn header(&mut self, header: &str, (targeted, seen): (bool, &mut Seen)) -> Result<(), String> {
        let Some((name, value)) = header.split_once(':') else {
            return Err(format!("{header:?} is no header such as \"Cookie: a=b\""));
        };
        if !is_token(name) || value.bytes().any(|b| b.is_ascii_control() && b != b'\t') {
            return Err(format!(
                "{header:?}: a name stands right before its colon, and control characters nowhere"
            ));
        }
        let value = value.trim_matches(BLANK);
        match name.to_ascii_lowercase().as_str() {
            "host" => {
                once(&mut seen.host, "Host")?;
                if !targeted {
                    self.host = Some(host(value).ok_or_else(|| format!("{value:?} is no host"))?);
                }
            }
            "cookie" => self.cookies(value),
            "content-length" => {
                once(&mut seen.length, "Content-Length")?;
                length_fault(value)?;
            }
            "transfer-encoding" => {
                once(&mut seen.coding, "Transfer-Encoding")?;
                if !value.eq_ignore_ascii_case("chunked") {
                    return Err(format!("Transfer-Encoding {value:?} is not \"chunked\" alone"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn cookies(&mut self, value: &str) {
        let pairs = value.split(';').map(|pair| pair.trim_matches(BLANK));
        for pair in pairs.filter(|pair| !pair.is_empty()) {
            if self.cookies.len() == COOKIES_MAX {
                self.more = true;
                return;
            }
            if pair.contains(BLANK) {
                continue;
            }
            self.cookies.push(match pair.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (pair.to_owned(), None),
            });
        }
    }

    pub(super) fn has(&self, cookie: &Cookie) -> bool {
        let wanted = cookie.value.as_deref();
        let has = |(name, value): &(String, Option<String>)| {
            *name == cookie.name && (wanted.is_none() || wanted == value.as_deref())
        };
        self.cookies.iter().any(has)
    }

    pub(super) fn method_kind(&self) -> Method {
        let known = Method::ALL.into_iter().find(|m| m.name() == self.method);
        known.unwrap_or(Method::Other)
    }
}

/// The target of a request line, and whether it is HTTP/1.0.
fn read_line(line: &str) -> Result<(&str, bool), Unevaluable> {
    let mut words = line.split(' ');
    let (Some(method), Some(target), version, None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(format!("{line:?} is no request line such as \"GET /path HTTP/1.1\"").into());
    };
    if !is_token(method) {
        return Err(format!("{method:?} is no method").into());
    }
    if target.is_empty() || target.bytes().any(|b| b.is_ascii_control()) {
        return Err(format!("{target:?} is no target").into());
    }
    if line.len() + LINE_END.len() > HEAD_MAX {
        let why = format!("the request line ends behind {HEAD_MAX} bytes");
        return Err(Unevaluable::new(Unevaluated::Split, why));
    }
    match version {
        Some("HTTP/1.1") => Ok((target, false)),
        Some("HTTP/1.0") => Ok((target, true)),
        Some("HTTP/2.0") if method == "PRI" && target.starts_with('*') => {
            Err(Unevaluable::new(Unevaluated::Http2, "what is in HTTP/2 is invisible here"))
        }
        Some(other) => Err(format!("{other:?}: only HTTP/1.0 and HTTP/1.1 are recognised").into()),
        None => Err(format!("{line:?} has no version, such as HTTP/1.1").into()),
    }
}

/// A target without what is behind its path.
fn path_text(target: &str) -> &str {
    target.split(['?', '#']).next().unwrap_or_default()
}

/// The path of a target in its normal form; empty where it has none (`*`, an authority). `None`:
/// servers differ in which it is.
fn path_of(target: &str) -> Option<String> {
    let path = path_text(target);
    if path.starts_with('/') { path::normal(path) } else { Some(String::new()) }
}

/// The authority of an absolute target, and the path. Of any other form (`*`, an authority) it
/// begins no path of a rule.
fn split_target(target: &str) -> (Option<String>, String) {
    let rest = ["http://", "https://"].iter().find_map(|scheme| {
        let head = target.get(..scheme.len())?;
        head.eq_ignore_ascii_case(scheme).then(|| &target[scheme.len()..])
    });
    let Some(rest) = rest else { return (None, target.to_owned()) };
    let at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(at);
    let slash = if path.starts_with('/') { "" } else { "/" };
    (Some(authority.to_owned()), format!("{slash}{path}"))
}

/// The name without its port, in lower case; `None`: it is no host, or has a user name.
fn host(text: &str) -> Option<String> {
    let name = match text.rfind(':') {
        Some(0) => return None,
        Some(at) if !text[at..].contains(']') => {
            let port = &text[at + 1..];
            port.bytes().all(|b| b.is_ascii_digit()).then(|| &text[..at])?
        }
        _ => text,
    };
    let good = match name.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').is_some_and(|literal| {
            literal.bytes().all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.'))
        }),
        None => name.bytes().all(|b| b.is_ascii_alphanumeric() || HOST_MARKS.contains(&b)),
    };
    good.then(|| name.to_ascii_lowercase())
}

/// What a name of a host has besides letters and digits (RFC 3986, section 3.2.2).
const HOST_MARKS: &[u8] = b"-._~!$&'()*+,;=%";
/// What ends a line.
const LINE_END: &str = "\r\n";
/// What may stand around a value.
const BLANK: [char; 2] = [' ', '\t'];

/// RFC 9110, section 5.6.2.
fn is_token(text: &str) -> bool {
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !text.is_empty() && text.bytes().all(token)
}

fn once(seen: &mut bool, name: &str) -> Result<(), String> {
    if std::mem::replace(seen, true) {
        return Err(format!("there are two of {name}, and servers differ in which one counts"));
    }
    Ok(())
}

fn length_fault(value: &str) -> Result<(), String> {
    let digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
    let length = value.parse::<u64>().ok().filter(|length| digits && *length < BODY_MAX);
    match length {
        Some(_) => Ok(()),
        None => Err(format!("Content-Length {value:?} is not one number of digits below 10^18")),
    }
}

fn body_fault(seen: &Seen, old: bool) -> Result<(), String> {
    match (seen.coding, seen.length) {
        (true, true) => {
            Err("there are Content-Length and Transfer-Encoding, and servers differ in which one counts".into())
        }
        (true, false) if old => Err("HTTP/1.0 has no chunks, and Transfer-Encoding is there".into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str, headers: &[&str]) -> Result<RequestHead, String> {
        let headers: Vec<String> = headers.iter().map(|h| (*h).to_owned()).collect();
        RequestHead::parse(line, &headers).map_err(|unevaluable| unevaluable.why)
    }

    /// docs/requests.md, "What is recognised": what is left alone there is refused here.
    #[test]
    fn what_the_dataplane_does_not_evaluate_is_refused_with_its_reason() {
        for (line, headers, why) in [
            ("GET /", &[][..], "has no version"),
            ("GET / HTTP/2.0", &[], "only HTTP/1.0 and HTTP/1.1"),
            ("GET / HTTP/1.1 ", &[], "no request line"),
            ("G(T / HTTP/1.1", &[], "no method"),
            ("GET http://shop.example@x.example/ HTTP/1.1", &[], "a user name"),
            ("GET http:///a HTTP/1.1", &[], "is no host"),
            ("GET / HTTP/1.1", &["Host: a", "HOST: a"], "two of Host"),
            ("GET http://x.example/ HTTP/1.1", &["Host: a", "Host: a"], "two of Host"),
            ("GET / HTTP/1.1", &["Host: a, b"], "no host"),
            ("GET / HTTP/1.1", &["Host: u@a"], "no host"),
            ("GET / HTTP/1.1", &["Host: a:b"], "no host"),
            ("GET / HTTP/1.1", &["Host: :80"], "no host"),
            ("GET / HTTP/1.1", &["Host : a"], "right before its colon"),
            ("GET / HTTP/1.1", &[" Host: a"], "right before its colon"),
            ("GET / HTTP/1.1", &["x: a\rb"], "control characters"),
            ("POST / HTTP/1.1", &["Content-Length: 1", "content-length: 1"], "two of Content-"),
            ("POST / HTTP/1.1", &["Content-Length: +1"], "not one number"),
            ("POST / HTTP/1.1", &["Content-Length: -1"], "not one number"),
            ("POST / HTTP/1.1", &["Content-Length: 1, 1"], "not one number"),
            ("POST / HTTP/1.1", &["Content-Length:"], "not one number"),
            ("POST / HTTP/1.1", &["Content-Length: 1000000000000000000"], "below 10^18"),
            ("POST / HTTP/1.1", &["Content-Length: 99999999999999999999"], "below 10^18"),
            (
                "POST / HTTP/1.1",
                &["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
                "two of Transfer-Encoding",
            ),
            ("POST / HTTP/1.1", &["Transfer-Encoding: gzip, chunked"], "not \"chunked\" alone"),
            ("POST / HTTP/1.0", &["Transfer-Encoding: chunked"], "HTTP/1.0 has no chunks"),
            (
                "POST / HTTP/1.1",
                &["Transfer-Encoding: chunked", "Content-Length: 1"],
                "Content-Length and Transfer-Encoding",
            ),
        ] {
            let found = parse(line, headers).unwrap_err();
            assert!(found.contains(why), "{line} {headers:?}: {found}");
        }
    }

    #[test]
    fn what_the_dataplane_evaluates_is_understood() {
        for (line, headers, host) in [
            ("GET / HTTP/1.0", &[][..], None),
            ("GET / HTTP/1.1\r\n", &["Host:"], Some("")),
            ("GET / HTTP/1.1", &["Host:\tA.example:80 "], Some("a.example")),
            ("GET / HTTP/1.1", &["Host: [2001:DB8::1]:80"], Some("[2001:db8::1]")),
            ("GET https://X.example:1?x HTTP/1.1", &["Host: b"], Some("x.example")),
            ("POST / HTTP/1.1", &["Content-Length: 999999999999999999"], None),
            ("POST / HTTP/1.1", &["transfer-encoding: Chunked"], None),
            ("GET / HTTP/1.1", &["x: 1", "x: 2", "x:"], None),
        ] {
            let found = parse(line, headers).unwrap_or_else(|why| panic!("{line}: {why}"));
            assert_eq!(found.host.as_deref(), host, "{line} {headers:?}");
        }
    }
}
