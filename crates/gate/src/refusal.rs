// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a refused client is told: 503, when to come back, and why.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tidegate_policy::Reason;
use tidegate_units::{Nanos, Rate};

/// The status of a refusal (RFC 9110, section 15.6.4).
pub const STATUS: u16 = 503;
/// The type of the problem (draft-ietf-httpapi-ratelimit-headers).
pub const PROBLEM_TYPE: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
/// The media type of the body (RFC 9457).
const PROBLEM_MEDIA_TYPE: &str = "application/problem+json";

/// A refusal, as it is told to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why, from the one list of reasons.
    pub reason: Reason,
    /// Seconds after which the client may come back, at least 1.
    pub retry_after_s: u64,
    /// The fields RateLimit-Policy and RateLimit, where the gateway sends them.
    pub rate_limit: Option<RateLimit>,
}

/// The two fields of draft-ietf-httpapi-ratelimit-headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// RateLimit-Policy: name of the service, quota, window in seconds.
    pub policy: String,
    /// RateLimit: name of the service, what is left, seconds until there is more.
    pub limit: String,
}

impl RateLimit {
    /// Of a service that admits so many per second.
    pub(crate) fn new(service: &str, rate: Rate, retry_after_s: u64) -> Self {
        // Names have letters, digits, - and _ only: nothing to escape in a structured field.
        let quota = rate.get().floor().max(1.0);
        Self {
            policy: format!("\"{service}\";q={quota};w=1"),
            limit: format!("\"{service}\";r=0;t={retry_after_s}"),
        }
    }
}

impl Refusal {
    /// The headers of the response: names in lower case, and values.
    #[must_use]
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = vec![
            ("retry-after", self.retry_after_s.to_string()),
            ("content-type", PROBLEM_MEDIA_TYPE.to_owned()),
            ("cache-control", "no-store".to_owned()),
        ];
        if let Some(RateLimit { policy, limit }) = &self.rate_limit {
            headers.push(("ratelimit-policy", policy.clone()));
            headers.push(("ratelimit", limit.clone()));
        }
        headers
    }

    /// The body of the response, a problem of RFC 9457.
    #[must_use]
    pub fn body(&self) -> String {
        let mut body = String::with_capacity(256);
        let _ = write!(
            body,
            "{{\"type\":\"{PROBLEM_TYPE}\",\"title\":\"Temporary reduced capacity\",\"status\":{STATUS},\
             \"detail\":\"The service is overloaded. Try again in {} s.\"}}",
            self.retry_after_s
        );
        body
    }
}

/// When the backlog of refused clients is served, if each of them comes back once: it grows by one
/// service time with each refusal. Retry-After is spread evenly over the time that this needs, so
/// that those who come back together are no more than the service can take.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// When it is served, in nanoseconds of the clock.
    end_ns: AtomicU64,
}

impl Backlog {
    /// Takes one more in, of a service that serves so many per second. Seconds after which it shall
    /// come back, from `min` to `max`; `random` chooses within the backlog.
    pub(crate) fn refuse(
        &self,
        now: Nanos,
        per_second: f64,
        (min, max): (Nanos, Nanos),
        random: u64,
    ) -> u64 {
        let end = self.grow(now, per_second, (1, max));
        let span = Nanos(end).since(now).clamp(min, max.max(min)).since(min);
        // An even share of the span, by the upper bits: 64 of them times 64 need 128.
        let within = (u128::from(random) * u128::from(span.0 + 1)) >> 64;
        let wait = min.0.saturating_add(u64::try_from(within).unwrap_or(span.0));
        wait.div_ceil(Nanos::SECOND.0).max(1)
    }

    /// Takes so many in. When what was there before is served, at most `longest` from now.
    pub(crate) fn grow(&self, now: Nanos, per_second: f64, (count, longest): (u64, Nanos)) -> u64 {
        let each = Nanos::from_secs_f64(1.0 / per_second.clamp(1.0, 1e9));
        let (more, latest) = (each.0.saturating_mul(count), now + longest);
        let next = |end: u64| Some((end.max(now.0).saturating_add(more)).min(latest.0));
        self.end_ns.fetch_update(Relaxed, Relaxed, next).unwrap_or_else(|end| end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos::from_secs(100);
    const BOUNDS: (Nanos, Nanos) = (Nanos::SECOND, Nanos::from_secs(60));

    /// 100/s are served and 3,000 were refused: that is a backlog of 30 s.
    #[test]
    fn retry_after_is_spread_over_what_the_backlog_needs() {
        let backlog = Backlog::default();
        let first = backlog.refuse(NOW, 100.0, BOUNDS, u64::MAX);
        assert_eq!(first, 1, "nobody else waits");
        (0..3_000).for_each(|_| {
            backlog.refuse(NOW, 100.0, BOUNDS, 0);
        });
        let at = |random: u64| backlog.refuse(NOW, 1e9, BOUNDS, random);
        assert_eq!((at(0), at(u64::MAX / 2), at(u64::MAX)), (1, 16, 31));
        let later = NOW + Nanos::from_secs(20);
        assert_eq!(backlog.refuse(later, 1e9, BOUNDS, u64::MAX), 11, "it drains");
        let after = NOW + Nanos::from_secs(40);
        assert_eq!(backlog.refuse(after, 1e9, BOUNDS, u64::MAX), 1, "it is gone");
    }

    /// Clients that come back at once make no backlog beyond the longest time, and a slow service
    /// sends nobody away for longer.
    #[test]
    fn the_bounds_hold() {
        let backlog = Backlog::default();
        (0..1_000_000).for_each(|_| {
            backlog.refuse(NOW, 1.0, BOUNDS, 0);
        });
        assert_eq!(backlog.refuse(NOW, 0.0, BOUNDS, u64::MAX), 60);
        assert_eq!(backlog.refuse(NOW, f64::NAN, BOUNDS, 0), 1);
        let later = NOW + Nanos::from_secs(61);
        assert_eq!(backlog.refuse(later, 1000.0, BOUNDS, u64::MAX), 1);
    }

    #[test]
    fn what_is_told_is_small_and_has_the_fields_of_the_draft() {
        let rate_limit = Some(RateLimit::new("shop", Rate::per_second(812.7), 7));
        let refusal = Refusal { reason: Reason::Rate, retry_after_s: 7, rate_limit };
        let headers = refusal.headers();
        let value =
            |name: &str| headers.iter().find(|(n, _)| *n == name).map(|(_, value)| value.as_str());
        assert_eq!(value("retry-after"), Some("7"));
        assert_eq!(value("content-type"), Some("application/problem+json"));
        assert_eq!(value("ratelimit-policy"), Some("\"shop\";q=812;w=1"));
        assert_eq!(value("ratelimit"), Some("\"shop\";r=0;t=7"));
        let plain = Refusal { rate_limit: None, ..refusal };
        let bytes: usize = plain.headers().iter().map(|(n, v)| n.len() + v.len() + 4).sum();
        assert!(plain.body().len() + bytes < 320, "{}", plain.body());
        assert!(plain.body().contains("#temporary-reduced-capacity\""));
    }
}
