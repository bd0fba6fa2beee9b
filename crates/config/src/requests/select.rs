// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which rule a request meets, and why: the dataplane's choice again, in words, for people who ask
//! before they trust it. bpf/tests/rules_shown.rs holds it against the C.

use super::{
    Cookie, CookieMatch, HostPattern, Method, RequestHead, RequestsConfig, RuleConfig, Unevaluated,
};

/// Longest name in a hello, in bytes (TG_TLS_NAME_MAX).
const SERVER_NAME_MAX: usize = 255;

/// A rule that was compared, and why it does not match; `None`: it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compared {
    /// Its place in `rules`.
    pub rule: usize,
    /// Why it does not match.
    pub mismatch: Option<String>,
}

/// A condition of a rule that a request does not meet.
enum Differs<'a> {
    Method,
    NoHost(&'a HostPattern),
    Host(&'a str, &'a HostPattern),
    HasCookie(&'a CookieMatch),
    NoCookie(&'a CookieMatch),
}

/// What came out for a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// The rules whose path begins the request's, in the order in which they were compared; the
    /// last one matches, if any does.
    pub compared: Vec<Compared>,
    /// The rule that it meets.
    pub rule: Option<usize>,
    /// No rule of its own evaluates it: the last one that was compared asks for what is not looked
    /// at. Then `rule` is the one for such requests.
    pub unevaluated: Option<Unevaluated>,
    /// The cookie by which it is refused last.
    pub protected_by: Option<Cookie>,
}

impl RequestsConfig {
    /// The rule that a request meets: the longest path first, then the order of the file.
    #[must_use]
    pub fn select(&self, head: &RequestHead) -> Selection {
        let mut candidates: Vec<(usize, &RuleConfig, usize)> = Vec::new();
        for (index, rule) in self.rules.iter().enumerate() {
            let path = rule.path.as_ref().filter(|path| path.begins(&head.path));
            candidates.extend(path.map(|path| (index, rule, path.as_str().len())));
        }
        // A stable sort: within a length, that is within a path, the order of the file stays.
        candidates.sort_by_key(|(_, _, length)| std::cmp::Reverse(*length));
        let mut selection = Selection::default();
        for (index, rule, _) in candidates {
            if let Some(why) = rule.depends(head) {
                selection.compared.push(Compared { rule: index, mismatch: Some(why) });
                selection.unevaluated = Some(Unevaluated::Split);
                selection.rule = self.unevaluable_rule();
                break;
            }
            let mismatch = rule.mismatch(head);
            let matches = mismatch.is_none();
            selection.compared.push(Compared { rule: index, mismatch });
            if matches {
                selection.rule = Some(index);
                selection.protected_by = rule.protect.iter().find(|c| head.has(c)).cloned();
                break;
            }
        }
        selection
    }

    /// The rule of what no rule of its own evaluates.
    #[must_use]
    pub fn unevaluable_rule(&self) -> Option<usize> {
        self.rules.iter().position(|rule| rule.unevaluable)
    }

    /// The rule that a TLS connection to this server name meets: the first that matches.
    #[must_use]
    pub fn select_tls(&self, name: &str) -> Selection {
        let mut selection = Selection::default();
        if !is_server_name(name) && self.rules.iter().any(|rule| rule.server_name.is_some()) {
            selection.unevaluated = Some(Unevaluated::Tls);
            selection.rule = self.unevaluable_rule();
            return selection;
        }
        for (index, rule) in self.rules.iter().enumerate() {
            let Some(pattern) = &rule.server_name else { continue };
            let matches = pattern.matches(name);
            let mismatch = (!matches).then(|| format!("the server name is not {pattern}"));
            selection.compared.push(Compared { rule: index, mismatch });
            if matches {
                selection.rule = Some(index);
                break;
            }
        }
        selection
    }
}

impl RuleConfig {
    /// Why it cannot be told whether such a request meets it: it asks for what is not looked at.
    pub(crate) fn depends(&self, head: &RequestHead) -> Option<String> {
        if self.methods_differ(head) {
            return None;
        }
        match (&self.host, &head.host) {
            (Some(pattern), None) if head.cut => {
                return Some(format!(
                    "it asks for the host {pattern}, which is not in what is seen"
                ));
            }
            (Some(pattern), Some(host)) if !pattern.matches(host) => return None,
            (Some(_), None) => return None,
            _ => {}
        }
        let asks = self.cookie.is_some() || !self.protect.is_empty();
        (asks && head.more).then(|| "it asks for cookies, and not all of them are seen".to_owned())
    }

    fn methods_differ(&self, head: &RequestHead) -> bool {
        !self.methods.is_empty() && !self.methods.contains(&head.method_kind())
    }

    /// Whether a request whose path it begins meets it.
    pub(crate) fn meets(&self, head: &RequestHead) -> bool {
        self.differs(head).is_none()
    }

    /// Why a request whose path it begins does not meet it.
    fn mismatch(&self, head: &RequestHead) -> Option<String> {
        Some(match self.differs(head)? {
            Differs::Method => format!("the method is {}", head.method),
            Differs::NoHost(pattern) => format!("there is no host, and {pattern} is asked for"),
            Differs::Host(host, pattern) => format!("the host is {host}, not {pattern}"),
            Differs::HasCookie(cookie) => format!("it has the cookie {}", cookie.cookie()),
            Differs::NoCookie(cookie) => format!("it has no cookie {}", cookie.cookie()),
        })
    }

    /// The first condition that such a request does not meet.
    fn differs<'a>(&'a self, head: &'a RequestHead) -> Option<Differs<'a>> {
        if self.methods_differ(head) {
            return Some(Differs::Method);
        }
        if let Some(pattern) = &self.host {
            match &head.host {
                None => return Some(Differs::NoHost(pattern)),
                Some(host) if !pattern.matches(host) => return Some(Differs::Host(host, pattern)),
                Some(_) => {}
            }
        }
        let cookie = self.cookie.as_ref()?;
        match (head.has(&cookie.cookie()), cookie.absent) {
            (true, true) => Some(Differs::HasCookie(cookie)),
            (false, false) => Some(Differs::NoCookie(cookie)),
            _ => None,
        }
    }

    /// Whether every request that meets the other's conditions meets this one's, too; the same
    /// path (or both TLS) only, for else the longer path decides.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        if self.unevaluable || other.unevaluable {
            return self.unevaluable && other.unevaluable;
        }
        match (&self.server_name, &other.server_name) {
            (Some(mine), Some(theirs)) => return mine.covers(theirs),
            (None, None) => {}
            _ => return false,
        }
        self.path.is_some()
            && self.path == other.path
            && self.covers_methods(other)
            && self.covers_host(other)
            && covers_cookie(self.cookie.as_ref(), other.cookie.as_ref())
    }

    fn covers_methods(&self, other: &Self) -> bool {
        let theirs: &[Method] =
            if other.methods.is_empty() { &Method::ALL } else { &other.methods };
        self.methods.is_empty() || theirs.iter().all(|method| self.methods.contains(method))
    }

    fn covers_host(&self, other: &Self) -> bool {
        match (&self.host, &other.host) {
            (None, _) => true,
            (Some(mine), Some(theirs)) => mine.covers(theirs),
            (Some(_), None) => false,
        }
    }
}

/// What a name in a hello is made of (bpf/http/tls_hello.h).
fn is_server_name(name: &str) -> bool {
    let usual = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    (1..=SERVER_NAME_MAX).contains(&name.len()) && name.bytes().all(usual)
}

/// Whether the second's condition implies the first's.
pub(crate) fn covers_cookie(mine: Option<&CookieMatch>, theirs: Option<&CookieMatch>) -> bool {
    let Some(mine) = mine else { return true };
    let Some(theirs) = theirs.filter(|t| t.name == mine.name && t.absent == mine.absent) else {
        return false;
    };
    // Present with a value implies present; absent altogether implies absent with a value.
    let weaker = if mine.absent { &theirs.value } else { &mine.value };
    mine.value == theirs.value || weaker.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Registry, parse};

    fn requests(rules: &str) -> RequestsConfig {
        let text = format!(
            "interfaces: [{{name: lo}}]\nservices:\n  web:\n    mode: shadow\n    listen: [\"*:80\"]\n    requests:\n      buckets: {{b: {{resource: cpu}}}}\n      rules: {rules}\n"
        );
        let registry = Registry::new(["fresh_first"], ["default"]);
        parse(&text, &registry).unwrap().services.remove(0).requests.unwrap()
    }

    fn met(requests: &RequestsConfig, line: &str, headers: &[&str]) -> Option<usize> {
        let headers: Vec<String> = headers.iter().map(|h| (*h).to_owned()).collect();
        requests.select(&RequestHead::parse(line, &headers).unwrap()).rule
    }

    #[test]
    fn the_longest_path_wins_and_falls_back_to_shorter_ones() {
        let rules = requests(
            "[{path: /, bucket: b}, {path: /a/, methods: [POST], bucket: b}, {path: /a/b, host: x.example, bucket: b}]",
        );
        assert_eq!(met(&rules, "GET /a/b HTTP/1.1", &["Host: x.example"]), Some(2));
        assert_eq!(met(&rules, "POST /a/b HTTP/1.1", &["Host: y.example"]), Some(1));
        assert_eq!(met(&rules, "GET /a/b HTTP/1.1", &[]), Some(0));
        assert_eq!(met(&rules, "GET http://x.example/a/b HTTP/1.1", &["Host: y"]), Some(2));
        assert_eq!(met(&rules, "GET /A/b HTTP/1.1", &["host: X.EXAMPLE:8080"]), Some(0));
    }

    #[test]
    fn hosts_and_cookies_are_compared_as_the_dataplane_does() {
        let rules = requests(
            "[{path: /, host: '*.shop.example', bucket: b}, {path: /, cookie: {name: s, value: '1'}, bucket: b}, {path: /, cookie: {name: s, absent: true}, bucket: b}]",
        );
        for (host, rule) in [
            ("a.shop.example", 0),
            ("a.b.shop.example:80", 2),
            ("b.shop.example:80", 0),
            ("shop.example", 2),
            ("ashop.example", 2),
        ] {
            let header = format!("Host: {host}");
            assert_eq!(met(&rules, "GET / HTTP/1.1", &[&header]), Some(rule), "{host}");
        }
        assert_eq!(met(&rules, "GET / HTTP/1.1", &["Cookie: t=2; s=1"]), Some(1));
        assert_eq!(met(&rules, "GET / HTTP/1.1", &["Cookie: s=2"]), None);
        assert_eq!(met(&rules, "GET / HTTP/1.1", &["Cookie: S=1"]), Some(2), "case differs");
        assert_eq!(met(&rules, "GET / HTTP/1.1", &["Cookie: s"]), None, "there, without a value");
        assert_eq!(
            met(&rules, "GET / HTTP/1.1", &["Cookie: s=\"1\""]),
            None,
            "quotes belong to it"
        );
        assert_eq!(met(&rules, "GET / HTTP/1.1", &["Cookie: s=1 2"]), Some(2), "that is no pair");
    }

    #[test]
    fn what_is_not_recognised_is_said() {
        for line in
            ["", "GET", "PRI * HTTP/2.0", "GET / HTTP/3", "GET  / HTTP/1.1", "GET / x HTTP/1.1"]
        {
            assert!(RequestHead::parse(line, &[]).is_err(), "{line:?}");
        }
        assert!(RequestHead::parse("GET / HTTP/1.1", &["nothing".into()]).is_err());
        let all = requests("[{path: /, bucket: b}]");
        assert_eq!(met(&all, "OPTIONS * HTTP/1.1", &[]), None);
        assert_eq!(met(&all, "CONNECT a:80 HTTP/1.1", &[]), None);
        assert_eq!(
            met(&all, "GET http://shop.example?b HTTP/1.1", &[]),
            Some(0),
            "an empty path is /"
        );
    }
}
