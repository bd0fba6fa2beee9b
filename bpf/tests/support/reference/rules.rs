// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which rule a request meets, by another hand: every rule is looked at, longest path first, then
//! in the order of the file.

use super::http::{Cookie, Host, Request};

/// The name that a rule asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostTest {
    Exact(Vec<u8>),
    /// `.name`: one more label before it.
    Below(Vec<u8>),
}

impl HostTest {
    fn holds(&self, host: &Host) -> bool {
        match self {
            Self::Exact(name) => host.0 == *name,
            Self::Below(rest) => host.rest() == Some(rest.as_slice()),
        }
    }
}

/// A cookie by name, and by value, if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CookieTest {
    pub name: Vec<u8>,
    pub value: Option<Vec<u8>>,
}

impl CookieTest {
    fn holds(&self, cookies: &[Cookie]) -> bool {
        cookies.iter().any(|(name, value)| {
            *name == self.name && (self.value.is_none() || self.value == *value)
        })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    pub path: Vec<u8>,
    pub methods: u8,
    pub host: Option<HostTest>,
    pub all: Vec<CookieTest>,
    pub none: Vec<CookieTest>,
    pub protect: Vec<CookieTest>,
}

/// What the search finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The place of the rule, and whether a cookie protects.
    Rule(usize, bool),
    NoRule,
    /// It depends on what was not seen.
    Split,
}

/// The rule of a request whose method is this bit.
pub fn find(rules: &[Rule], request: &Request, method: u8) -> Found {
    let mut order: Vec<usize> = (0..rules.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(rules[*at].path.len()));
    for at in order {
        let rule = &rules[at];
        if !request.path.starts_with(&rule.path) || rule.methods & method == 0 {
            continue;
        }
        match (&rule.host, &request.host) {
            (Some(_), None) => return Found::Split,
            (Some(test), Some(host)) if !test.holds(host) => continue,
            _ => {}
        }
        let asks = [&rule.all, &rule.none, &rule.protect].iter().any(|tests| !tests.is_empty());
        if asks && (request.whole.is_none() || request.more_cookies) {
            return Found::Split;
        }
        let holds = |test: &CookieTest| test.holds(&request.cookies);
        if rule.all.iter().all(holds) && !rule.none.iter().any(holds) {
            return Found::Rule(at, rule.protect.iter().any(holds));
        }
    }
    Found::NoRule
}
