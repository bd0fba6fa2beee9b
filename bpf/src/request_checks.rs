// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What header rules may be: every bound of the tables and of what can stand in a request.

use crate::abi_request as abi;
use crate::{
    Busy, CookieTest, Error, HeaderRule, Host, HttpMatch, Plan, Refuse, Requests, Subject,
};
use std::collections::BTreeSet;

/// Longest host name (RFC 1035).
const HOST_BYTES_MAX: usize = 253;
/// Longest name or value of a cookie that a rule may ask for.
const COOKIE_BYTES_MAX: usize = 1024;
/// Longest Retry-After, in seconds: a day.
const RETRY_AFTER_MAX: u32 = 86_400;

/// Checks all rules of a plan.
pub(crate) fn check(plan: &Plan) -> Result<(), Error> {
    for service in &plan.services {
        if let Some(requests) = &service.requests {
            requests.check().map_err(|text| said(&service.name, &text))?;
        }
    }
    let all = || plan.services.iter().filter_map(|service| service.requests.as_ref());
    let rules: usize = all().map(|requests| requests.rules.len()).sum();
    bound("header rules", rules, abi::RULES_MAX - 1)?;
    let buckets: usize = all().map(|requests| requests.buckets.len()).sum();
    bound("request buckets", buckets, abi::BUCKETS_MAX)?;
    let http = || all().flat_map(|requests| &requests.rules).filter_map(HeaderRule::http);
    let cookies: BTreeSet<&CookieTest> = http().flat_map(HttpMatch::cookies).collect();
    bound("different cookies with their values in rules", cookies.len(), abi::COOKIE_TESTS_MAX)?;
    let texts: Vec<&Busy> = all().filter(|r| r.answers()).map(|r| &r.busy).collect();
    let different = texts.iter().enumerate().filter(|(at, text)| !texts[..*at].contains(text));
    bound("different texts of a 503", different.count(), abi::ANSWERS_MAX / abi::ANSWER_VARIANTS)
}

fn said(service: &str, text: &str) -> Error {
    Error::Plan(format!("service {service}: {text}"))
}

fn bound(what: &str, number: usize, most: usize) -> Result<(), Error> {
    if number > most {
        return Err(Error::Plan(format!("{number} {what}: at most {most} for all services")));
    }
    Ok(())
}

impl Requests {
    /// Whether a request of these rules may be answered with a 503.
    pub(crate) fn answers(&self) -> bool {
        self.rules.iter().any(|rule| {
            let tls = matches!(rule.subject, Subject::Tls(_));
            rule.bucket.is_some() && rule.refuse.answers() && !tls
        })
    }

    fn check(&self) -> Result<(), String> {
        let mut names = BTreeSet::new();
        for bucket in &self.buckets {
            if bucket.is_empty() || !names.insert(bucket) {
                return Err(format!("bucket {bucket:?}: its name is empty or taken"));
            }
        }
        for (at, rule) in self.rules.iter().enumerate() {
            rule.check(self.buckets.len()).map_err(|text| format!("rule {}: {text}", at + 1))?;
            let earlier = self.rules[..at].iter().position(|earlier| earlier.covers(rule));
            if let Some(earlier) = earlier {
                let (at, earlier) = (at + 1, earlier + 1);
                return Err(format!("rule {at}: never reached, rule {earlier} takes all of it"));
            }
        }
        if self.answers() { self.busy.check() } else { Ok(()) }
    }
}

impl HeaderRule {
    /// What it says about HTTP; `None`: it is about TLS.
    pub(crate) const fn http(&self) -> Option<&HttpMatch> {
        match &self.subject {
            Subject::Http(http) => Some(http),
            Subject::Tls(_) | Subject::Unevaluable => None,
        }
    }

    fn check(&self, buckets: usize) -> Result<(), String> {
        if self.bucket.is_some_and(|bucket| bucket >= buckets) {
            return Err(format!("bucket {:?}: there are {buckets}", self.bucket));
        }
        match &self.subject {
            Subject::Http(http) => http.check(),
            Subject::Tls(_) if self.refuse == Refuse::Answer503 => {
                Err("a 503 cannot be put into TLS: answer with reset or drop".into())
            }
            Subject::Tls(_) if self.close_persistent => {
                Err("requests inside TLS cannot be told apart: nothing to close".into())
            }
            Subject::Tls(host) => host.check(),
            Subject::Unevaluable if self.close_persistent => {
                Err("requests that cannot be told apart: nothing to close".into())
            }
            Subject::Unevaluable => Ok(()),
        }
    }

    /// Whether what `later` matches is matched by this rule first.
    fn covers(&self, later: &Self) -> bool {
        match (&self.subject, &later.subject) {
            (Subject::Http(earlier), Subject::Http(later)) => earlier.covers(later),
            (Subject::Tls(earlier), Subject::Tls(later)) => earlier.name() == later.name(),
            (Subject::Unevaluable, Subject::Unevaluable) => true,
            _ => false,
        }
    }
}

impl HttpMatch {
    /// Every cookie that it asks for.
    pub(crate) fn cookies(&self) -> impl Iterator<Item = &CookieTest> {
        self.cookies_all.iter().chain(&self.cookies_none).chain(&self.protect)
    }

    fn check(&self) -> Result<(), String> {
        let shown = String::from_utf8_lossy(&self.path);
        if self.path.first() != Some(&b'/') {
            return Err(format!("path {shown:?}: must begin with /"));
        }
        if self.path.len() > abi::PATH_MAX {
            let bytes = self.path.len();
            return Err(format!("path {shown:?}: {bytes} bytes, at most {}", abi::PATH_MAX));
        }
        if self.path.iter().any(|byte| *byte <= b' ' || *byte == 0x7f) {
            return Err(format!("path {shown:?}: spaces and control bytes cannot be in a path"));
        }
        if self.methods == crate::Methods::NONE {
            return Err("no method".into());
        }
        if let Some(host) = &self.host {
            host.check()?;
        }
        self.cookies().try_for_each(CookieTest::check)
    }

    fn covers(&self, later: &Self) -> bool {
        let all = |earlier: &[CookieTest], later: &[CookieTest]| {
            earlier.iter().all(|test| later.iter().any(|other| other.implies(test)))
        };
        // Not to have any cookie of a name implies not to have it with a value.
        let none = |earlier: &[CookieTest], later: &[CookieTest]| {
            earlier.iter().all(|test| later.iter().any(|other| test.implies(other)))
        };
        self.path == later.path
            && self.methods.0 & later.methods.0 == later.methods.0
            && self.host.as_ref().is_none_or(|host| {
                later.host.as_ref().is_some_and(|other| host.name() == other.name())
            })
            && all(&self.cookies_all, &later.cookies_all)
            && none(&self.cookies_none, &later.cookies_none)
    }
}

impl CookieTest {
    /// Whether a request that passes this test passes the other.
    fn implies(&self, other: &Self) -> bool {
        self.name == other.name && (other.value.is_none() || self.value == other.value)
    }

    /// RFC 6265, section 4.1.1: a token, and cookie-octets.
    fn check(&self) -> Result<(), String> {
        let token = |byte: u8| byte.is_ascii_graphic() && !b"()<>@,;:\\\"/[]?={}".contains(&byte);
        if self.name.is_empty() || !self.name.bytes().all(token) {
            return Err(format!("cookie {:?}: not a name that a cookie can have", self.name));
        }
        let octet = |byte: u8| byte.is_ascii_graphic() && !b"\",;\\".contains(&byte);
        let value = self.value.as_deref().unwrap_or_default();
        if !value.bytes().all(octet) {
            return Err(format!("cookie {}: {value:?} cannot be its value", self.name));
        }
        if self.name.len().max(value.len()) > COOKIE_BYTES_MAX {
            return Err(format!("cookie {}: more than {COOKIE_BYTES_MAX} bytes", self.name));
        }
        Ok(())
    }
}

impl Host {
    /// The name that is compared: in lower case; `*.name` without its star.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Exact(name) => name.to_ascii_lowercase(),
            Self::Below(name) => format!(".{}", name.to_ascii_lowercase()),
        }
    }

    fn check(&self) -> Result<(), String> {
        let (Self::Exact(name) | Self::Below(name)) = self;
        let literal = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let good = match (self, literal) {
            (Self::Exact(_), Some(address)) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            _ => {
                let byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
                !name.is_empty() && !name.starts_with('.') && name.bytes().all(byte)
            }
        };
        if !good || name.len() > HOST_BYTES_MAX {
            return Err(format!("host {name:?}: not a name of a host"));
        }
        Ok(())
    }
}

impl Busy {
    fn check(&self) -> Result<(), String> {
        let (from, to) = self.retry_after;
        if from == 0 || from > to || to > RETRY_AFTER_MAX {
            return Err(format!(
                "Retry-After from {from} to {to} s: at least 1, at most {RETRY_AFTER_MAX}, not falling"
            ));
        }
        let header = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
        if self.content_type.is_empty() || !self.content_type.bytes().all(header) {
            return Err(format!("content type {:?}: cannot be in a header", self.content_type));
        }
        let (head, bytes) = self.text(to);
        if bytes.len() > abi::ANSWER_BYTES_MAX {
            return Err(format!(
                "the body has {} bytes: with {head} of headers at most {}, one segment anywhere",
                self.body.len(),
                abi::ANSWER_BYTES_MAX
            ));
        }
        Ok(())
    }

    /// A whole answer with this Retry-After, and how much of it is not the body.
    pub(crate) fn text(&self, retry_after: u32) -> (usize, Vec<u8>) {
        let head = format!(
            "HTTP/1.1 503 Service Unavailable\r\n\
             Retry-After: {retry_after}\r\n\
             Content-Type: {}\r\n\
             Content-Length: {}\r\n\
             Connection: close\r\n\r\n",
            self.content_type,
            self.body.len()
        );
        (head.len(), [head.as_bytes(), self.body.as_bytes()].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Methods;
    use crate::examples::{http, service};

    fn cookie(name: &str, value: Option<&str>) -> CookieTest {
        CookieTest { name: name.into(), value: value.map(Into::into) }
    }

    fn said_of(requests: Requests) -> String {
        let services = vec![service("shop", requests)];
        match (Plan { services, ..Plan::default() }).validate() {
            Ok(()) => "fine".into(),
            Err(error) => error.to_string(),
        }
    }

    fn of_rule(rule: HeaderRule) -> String {
        said_of(Requests { buckets: vec!["a".into()], rules: vec![rule], ..Requests::default() })
    }

    /// Each bound, with a text that names what is wrong, and where.
    #[test]
    fn what_cannot_be_is_refused_with_its_place() {
        let on = |change: &dyn Fn(&mut HttpMatch)| {
            let mut matches = HttpMatch::default();
            change(&mut matches);
            HeaderRule { subject: Subject::Http(matches), ..http("/", Some(0)) }
        };
        let tls = |refuse, close_persistent| HeaderRule {
            subject: Subject::Tls(Host::Exact("a.example".into())),
            refuse,
            close_persistent,
            bucket: Some(0),
        };
        let all = |test: CookieTest| on(&move |m| m.cookies_all = vec![test.clone()]);
        let host = |host: Host| on(&move |m| m.host = Some(host.clone()));
        let cases = [
            (http("/", Some(1)), "rule 1: bucket Some(1): there are 1"),
            (http("cart", None), "must begin with /"),
            (http("", None), "must begin with /"),
            (http("/a b", None), "control bytes"),
            (http(&format!("/{}", "a".repeat(120)), None), "121 bytes, at most 120"),
            (on(&|m| m.methods = Methods::NONE), "no method"),
            (all(cookie("", None)), "not a name"),
            (all(cookie("a=b", None)), "not a name"),
            (all(cookie("a", Some("b;c"))), "cannot be its value"),
            (all(cookie("a", Some("grün"))), "cannot be its value"),
            (host(Host::Exact("*.shop".into())), "not a name of a host"),
            (host(Host::Exact(String::new())), "not a name of a host"),
            (host(Host::Below(".shop".into())), "not a name of a host"),
            (host(Host::Exact("[::g]".into())), "not a name of a host"),
            (host(Host::Exact("shop:80".into())), "not a name of a host"),
            (tls(Refuse::Answer503, false), "a 503 cannot be put into TLS"),
            (tls(Refuse::Reset, true), "nothing to close"),
        ];
        for (rule, text) in cases {
            let said = of_rule(rule);
            assert!(said.starts_with("service shop: ") && said.contains(text), "{said}");
        }
        for fine in [
            http(&format!("/{}", "a".repeat(119)), Some(0)),
            host(Host::Exact("[::1]".into())),
            host(Host::Below("Shop.example".into())),
            all(cookie("__Host-x", Some("a=b"))),
            tls(Refuse::Drop, false),
        ] {
            assert_eq!(of_rule(fine), "fine");
        }
    }

    #[test]
    fn the_text_of_an_answer_has_bounds_on_both_sides() {
        let with = |busy: Busy| {
            let (buckets, rules) = (vec!["a".into()], vec![http("/", Some(0))]);
            said_of(Requests { shadow: None, buckets, rules, busy })
        };
        for (from, to, fine) in [(1, 1, true), (0, 5, false), (5, 4, false), (1, 86_401, false)] {
            let said = with(Busy { retry_after: (from, to), ..Busy::default() });
            assert_eq!(said == "fine", fine, "{from} {to}: {said}");
        }
        let room = 524 - Busy { body: "x".repeat(100), ..Busy::default() }.text(9).0;
        for (bytes, fine) in [(room, true), (room + 1, false)] {
            let said = with(Busy { body: "x".repeat(bytes), ..Busy::default() });
            assert_eq!(said == "fine", fine, "{bytes}: {said}");
        }
        let said = with(Busy { content_type: "text/plain\r\nX: y".into(), ..Busy::default() });
        assert!(said.contains("cannot be in a header"), "{said}");
    }

    #[test]
    fn a_rule_behind_one_that_takes_all_of_it_is_an_error() {
        let with = |change: &dyn Fn(&mut HttpMatch)| {
            let mut rule = http("/a", Some(0));
            if let Subject::Http(matches) = &mut rule.subject {
                change(matches);
            }
            rule
        };
        let session = |value: Option<&'static str>| {
            with(&move |m| m.cookies_all = vec![cookie("session", value)])
        };
        let absent = |value: Option<&'static str>| {
            with(&move |m| m.cookies_none = vec![cookie("session", value)])
        };
        let get = || with(&|m| m.methods = Methods(1));
        let cases = [
            (with(&|_| ()), with(&|m| m.protect = vec![cookie("p", None)]), true),
            (with(&|_| ()), http("/ab", Some(0)), false),
            (get(), with(&|_| ()), false),
            (with(&|_| ()), get(), true),
            (session(None), session(Some("x")), true),
            (session(Some("x")), session(None), false),
            (absent(Some("x")), absent(None), true),
            (absent(None), absent(Some("x")), false),
            (session(None), with(&|_| ()), false),
        ];
        for (n, (first, second, covered)) in cases.into_iter().enumerate() {
            let rules = vec![first, second];
            let requests = Requests { buckets: vec!["a".into()], rules, ..Requests::default() };
            let said = said_of(requests);
            assert_eq!(said.contains("rule 2: never reached, rule 1"), covered, "{n}: {said}");
        }
    }

    #[test]
    fn the_rules_of_all_services_are_bounded_and_those_of_one_path_only_by_that() {
        // One rule for each of so many hosts, at two paths of which one begins with the other.
        let many = |long: usize, short: usize| {
            let rule = |(path, n): (&str, usize)| {
                let mut rule = http(path, None);
                if let Subject::Http(matches) = &mut rule.subject {
                    matches.host = Some(Host::Exact(format!("h{n}.example")));
                }
                rule
            };
            let long = (0..long).map(|n| ("/a/b", n));
            let rules = long.chain((0..short).map(|n| ("/a", n))).map(rule).collect();
            Requests { rules, ..Requests::default() }
        };
        assert_eq!(said_of(many(500, 500)), "fine");
        let paths = |n: usize, index: usize| {
            let rules = (0..n).map(|n| http(&format!("/{n}/"), None)).collect();
            let requests = Requests { rules, ..Requests::default() };
            service(&format!("s{index}"), requests)
        };
        for (last, fine) in [(23, true), (24, false)] {
            let services = vec![paths(1000, 0), paths(last, 1)];
            let said = Plan { services, ..Plan::default() }.validate();
            assert_eq!(said.is_ok(), fine, "{said:?}");
        }
    }

    #[test]
    fn cookies_and_texts_are_counted_once_however_often_they_are_named() {
        let rule = |n: usize| {
            let mut rule = http(&format!("/{n}/"), Some(0));
            if let Subject::Http(matches) = &mut rule.subject {
                matches.cookies_all = vec![cookie(&format!("c{}", n % 32), None)];
            }
            rule
        };
        let requests = |rules: Vec<HeaderRule>, body: usize| Requests {
            buckets: vec!["a".into()],
            rules,
            busy: Busy { body: format!("busy {body}"), ..Busy::default() },
            shadow: None,
        };
        assert_eq!(said_of(requests((0..64).map(rule).collect(), 0)), "fine");
        let mut rules: Vec<HeaderRule> = (0..32).map(rule).collect();
        rules.push(of_cookie("/x", cookie("another", None)));
        let said = said_of(requests(rules, 0));
        assert!(said.contains("33 different cookies"), "{said}");
        for (texts, fine) in [(16, true), (17, false)] {
            let services = (0..texts)
                .map(|n| service(&format!("s{n}"), requests(vec![http("/", Some(0))], n)));
            let said = Plan { services: services.collect(), ..Plan::default() }.validate();
            assert_eq!(said.is_ok(), fine, "{said:?}");
        }
    }

    fn of_cookie(path: &str, test: CookieTest) -> HeaderRule {
        let matches = HttpMatch { path: path.into(), protect: vec![test], ..HttpMatch::default() };
        HeaderRule { subject: Subject::Http(matches), ..http(path, Some(0)) }
    }
}
