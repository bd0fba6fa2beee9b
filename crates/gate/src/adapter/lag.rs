// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How late a proxy itself is.
//!
//! A proxy without CPU time left reads what its server sends late, and says that the server took so long.
//! It reads our answers as late, and some proxies say how long they waited for them. What exceeds the
//! shortest recent wait is the proxy's own time: it is subtracted from the time with the server.

use crate::Completion;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tidegate_units::Nanos;

/// The shortest recent wait rises by one in so many of the time that passes, so that a way to us that has become
/// longer is known as that after minutes; of a time without reports a second counts.
const RISE: u64 = 10_000;
const RISES_FOR: Nanos = Nanos::SECOND;
/// Most that is subtracted: the examples wait no longer for us.
const LAG_MAX: Nanos = Nanos::from_millis(500);
/// At least one in so many of what the proxy says of its server is kept. A wait is a sample: the response may have
/// come in a shorter turn, or it is this host that has no CPU time left, for server and proxy alike.
const KEPT: u64 = 4;

/// What the reports of one gateway tell of its proxy.
#[derive(Default)]
pub(super) struct Lag {
    /// The shortest recent wait, and one nanosecond; 0: not known.
    shortest_ns: AtomicU64,
    heard_ns: AtomicU64,
}

impl Lag {
    /// The completion without what the proxy is late.
    pub(super) fn subtracted(&self, now: Nanos, completion: &Completion) -> Completion {
        let lag = completion.asked.map_or(Nanos::ZERO, |asked| self.of(now, asked));
        let less = |time: Nanos| time.since(lag.min(Nanos(time.0 - time.0 / KEPT)));
        Completion {
            first_byte: completion.first_byte.map(less),
            duration: completion.duration.map(less),
            ..*completion
        }
    }

    /// By how much the proxy waited longer than it lately had to.
    fn of(&self, now: Nanos, asked: Nanos) -> Nanos {
        let passed = now.since(Nanos(self.heard_ns.fetch_max(now.0, Relaxed))).min(RISES_FOR);
        let rise = passed.0 / RISE;
        let asked = asked.0.saturating_add(1);
        let next = |shortest: u64| {
            Some(if shortest == 0 { asked } else { asked.min(shortest.saturating_add(rise)) })
        };
        let _ = self.shortest_ns.fetch_update(Relaxed, Relaxed, next);
        Nanos(asked.saturating_sub(self.shortest_ns.load(Relaxed))).min(LAG_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Nanos = Nanos::from_millis;

    /// A proxy that asks over a long way is not late; one that waits longer than it lately had to is, and a
    /// way that has become longer is known after minutes.
    #[test]
    fn a_proxy_is_late_by_what_exceeds_its_shortest_wait() {
        let lag = Lag::default();
        let mut now = Nanos::from_secs(1000);
        assert_eq!(lag.of(now, MS(20)), Nanos::ZERO, "nothing is known");
        assert_eq!((lag.of(now, MS(20)), lag.of(now, MS(120))), (Nanos::ZERO, MS(100)));
        assert_eq!((lag.of(now, MS(2)), lag.of(now, MS(22))), (Nanos::ZERO, MS(20)));
        assert_eq!(lag.of(now, Nanos::from_secs(60)), LAG_MAX);
        now += Nanos::from_secs(12 * 3600);
        assert!(lag.of(now, MS(52)) > MS(49), "a night without reports");
        let mut pass = |seconds: u64| {
            (0..10 * seconds).for_each(|_| {
                now += MS(100);
                lag.of(now, MS(52));
            });
            lag.of(now, MS(52))
        };
        assert!((MS(30)..MS(45)).contains(&pass(100)));
        assert_eq!(pass(1000), Nanos::ZERO, "the way is as long as that");
    }

    #[test]
    fn what_the_proxy_is_late_is_no_time_of_its_server() {
        let lag = Lag::default();
        for (asked, first_byte, duration, found) in [
            (Some(1), 10, 30, (10, 30)),
            (Some(101), 210, 230, (110, 130)),
            (Some(101), 80, 120, (20, 30)),
            (None, 110, 130, (110, 130)),
        ] {
            let done = Completion {
                status: 200,
                first_byte: Some(MS(first_byte)),
                duration: Some(MS(duration)),
                asked: asked.map(MS),
            };
            let less = lag.subtracted(Nanos::SECOND, &done);
            let (first_byte, duration) = (less.first_byte.unwrap(), less.duration.unwrap());
            assert_eq!((first_byte, duration), (MS(found.0), MS(found.1)), "{done:?}");
            assert_eq!((less.status, less.asked), (done.status, done.asked));
        }
        let untold = Completion { asked: Some(MS(400)), ..Completion::default() };
        assert_eq!(lag.subtracted(Nanos::SECOND, &untold), untold);
    }
}
