// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How rules are shown, and the text of a 503.

use super::{ANSWER_VARIANTS, Cookie, Method, RequestsConfig, RuleConfig};
use std::fmt;
use tidegate_units::Nanos;

/// Its name; that a value is asked for, but never which: it may open a session, and what is shown
/// here stands in metrics, on screens and in logs.
impl fmt::Display for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        f.write_str(if self.value.is_some() { "=…" } else { "" })
    }
}

/// What the rule matches, in one line.
impl fmt::Display for RuleConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.unevaluable {
            return f.write_str("unevaluable");
        }
        if let Some(name) = &self.server_name {
            return write!(f, "tls {name}");
        }
        if !self.methods.is_empty() {
            let names: Vec<&str> = self.methods.iter().copied().map(Method::name).collect();
            write!(f, "{} ", names.join(","))?;
        }
        f.write_str(self.path.as_ref().map_or("", |path| path.as_str()))?;
        self.host.iter().try_for_each(|host| write!(f, " host {host}"))?;
        self.cookie.iter().try_for_each(|cookie| {
            let without = if cookie.absent { "without " } else { "" };
            write!(f, " {without}cookie {}", cookie.cookie())
        })
    }
}

impl RuleConfig {
    /// Its name, else what it matches.
    #[must_use]
    pub fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.to_string())
    }
}

impl RequestsConfig {
    /// The seconds of Retry-After of each variant of the 503: evenly from the shortest to the
    /// longest, never below 1.
    #[must_use]
    pub fn retry_after_seconds(&self) -> [u64; ANSWER_VARIANTS] {
        let seconds = |time: Nanos| (time.0 / Nanos::SECOND.0).max(1);
        let from = seconds(self.retry_after.min);
        let span = seconds(self.retry_after.max).saturating_sub(from);
        let last = ANSWER_VARIANTS as u64 - 1;
        std::array::from_fn(|variant| from + (span * variant as u64 + last / 2) / last)
    }

    /// The whole 503 with this Retry-After, and how many of its bytes are head.
    #[must_use]
    pub fn busy_text(&self, retry_after: Nanos) -> (String, usize) {
        let (seconds, length) =
            ((retry_after.0 / Nanos::SECOND.0).max(1), self.response_body.len());
        let head = format!(
            "HTTP/1.1 503 Service Unavailable\r\nRetry-After: {seconds}\r\nContent-Type: {}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n",
            self.content_type
        );
        let bytes = head.len();
        (head + &self.response_body, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::RetryAfter;

    fn with(min: u64, max: u64) -> [u64; ANSWER_VARIANTS] {
        let retry_after = RetryAfter { min: Nanos::from_secs(min), max: Nanos::from_secs(max) };
        let config = RequestsConfig { retry_after, ..RequestsConfig::default() };
        config.retry_after_seconds()
    }

    #[test]
    fn retry_after_is_spread_over_all_that_was_asked_for_and_is_never_zero() {
        assert_eq!(with(2, 9), [2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(with(1, 1), [1; 8]);
        assert_eq!(with(1, 3), [1, 1, 2, 2, 2, 2, 3, 3]);
        assert_eq!(with(10, 80)[..2], [10, 20]);
        assert_eq!(with(0, 0), [1; 8]);
    }
}
