// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The headers of a request, where a proxy gives them one by one.

use crate::Headers;
use std::borrow::Cow;

/// Most headers of a request that are looked at; proxies pass about a hundred on.
pub(super) const HEADERS_MAX: usize = 256;

/// Names and values; those of one name joined as RFC 9110 says (of Cookie by `; `).
#[derive(Default)]
pub struct Joined<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a, N: Into<Cow<'a, str>>, V: Into<Cow<'a, str>>> FromIterator<(N, V)> for Joined<'a> {
    fn from_iter<T: IntoIterator<Item = (N, V)>>(headers: T) -> Self {
        let mut joined = Self::default();
        for (name, value) in headers.into_iter().take(HEADERS_MAX) {
            joined.add(name.into(), value.into());
        }
        joined
    }
}

impl<'a> Joined<'a> {
    /// Of parts that name one thing several times, all with the same value: the first of each.
    pub(super) fn first_of_each(parts: impl Iterator<Item = (Cow<'a, str>, Cow<'a, str>)>) -> Self {
        let mut first = Self::default();
        for (name, value) in parts.take(HEADERS_MAX) {
            if first.get(&name).is_none() {
                first.0.push((name, value));
            }
        }
        first
    }

    fn add(&mut self, name: Cow<'a, str>, value: Cow<'a, str>) {
        match self.0.iter_mut().find(|(known, _)| known.eq_ignore_ascii_case(&name)) {
            None => self.0.push((name, value)),
            Some((_, joined)) => {
                let between = if name.eq_ignore_ascii_case("cookie") { "; " } else { ", " };
                *joined = Cow::Owned([joined.as_ref(), between, &value].concat());
            }
        }
    }
}

impl Headers for Joined<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_ref())
    }
}
