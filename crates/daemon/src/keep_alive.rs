// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Connections that are idle after a response and hold a server's workers: whether they do, and what an
//! operator can do about them (docs/decisions/0014-sources.md). Nothing is limited for it: such a
//! connection looks like that of any browser, and the server's own time-out ends it.

use tidegate_control::IdleWorkers;
use tidegate_control::fleet::SIGNAL_AGE_MAX;
use tidegate_model::signals::Signals;
use tidegate_units::Nanos;

/// For so long they have to hold the workers: longer than the queue of one burst.
const LASTS: Nanos = Nanos::SECOND;

/// For how long idle connections have held a service's workers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeepAlive {
    /// Since when.
    since: Option<Nanos>,
    /// Whether something has completed since then: where nothing does, the server hangs.
    completes: bool,
}

impl KeepAlive {
    /// Takes a tick, and says what is to be told.
    pub(crate) fn see(
        &mut self,
        now: Nanos,
        signals: &Signals,
        defer_accept: Option<bool>,
    ) -> Option<String> {
        let Some(cause) = IdleWorkers::of(signals, defer_accept == Some(true), SIGNAL_AGE_MAX)
        else {
            *self = Self::default();
            return None;
        };
        let since = *self.since.get_or_insert(now);
        let counts = signals.balance.counts.and_then(|counts| counts.within(SIGNAL_AGE_MAX));
        self.completes |= counts.is_some_and(|counts| counts.done() > 0);
        (self.completes && now.since(since) >= LASTS).then(|| remedy(cause))
    }
}

fn remedy(cause: IdleWorkers) -> String {
    let IdleWorkers { idle, open, queue } = cause;
    format!(
        "{idle} of {open} connections are idle after a response, or still receive one, and the accept \
         queue is long ({} of {}) while the CPU is free: if each of them holds a worker, they hold the \
         server's workers. The remedy: a shorter keep-alive time-out (Apache: KeepAliveTimeout; nginx: \
         keepalive_timeout), or a server without a worker for each connection (Apache: the event MPM)",
        queue.length, queue.limit
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::signals::{AcceptQueue, Counts, Reading};
    use tidegate_units::Share;

    /// A tick of a prefork server with 64 workers at a free CPU: `idle` of them are held by clients
    /// that had a response, the others work, and so many connections stand in the accept queue.
    fn prefork(idle: u64, length: u64, completed: u64) -> Signals {
        let mut signals = Signals { period: Nanos::from_millis(100), ..Signals::default() };
        signals.time.silent = Some(Reading::fresh(0));
        signals.time.waiting = Some(Reading::fresh(64 - idle + length));
        signals.time.open = Some(Reading::fresh(64 + length));
        signals.queue.accept = Some(Reading::fresh(AcceptQueue { length, limit: 511 }));
        signals.resource.cpu = Some(Reading::fresh(Share::new(0.05)));
        let counts = Counts { completed, ..Counts::default() };
        signals.balance.counts = Some(Reading::fresh(counts));
        signals
    }

    /// The first tick of 100 ms in which it is told.
    fn told(of: impl Fn(u64) -> Signals) -> Option<u64> {
        let mut keep_alive = KeepAlive::default();
        (0..50).find(|n| {
            let now = Nanos(Nanos::from_millis(100).0 * n);
            keep_alive.see(now, &of(*n), None).is_some()
        })
    }

    #[test]
    fn idle_connections_that_hold_the_workers_for_longer_than_a_burst_are_told() {
        assert_eq!(told(|_| prefork(62, 60, 2)), Some(10));
        assert_eq!(told(|n| prefork(62, 60, u64::from(n == 20))), Some(20), "few workers are free");
        assert_eq!(told(|n| prefork(62, if n % 9 == 8 { 0 } else { 60 }, 2)), None, "bursts");
        assert_eq!(told(|_| prefork(62, 60, 0)), None, "a server that hangs");
        let text = KeepAlive { since: Some(Nanos::ZERO), completes: true }
            .see(Nanos::SECOND, &prefork(62, 60, 0), None)
            .unwrap();
        for word in ["62 of 124", "60 of 511", "KeepAliveTimeout", "keepalive_timeout", "event MPM"]
        {
            assert!(text.contains(word), "{word}: {text}");
        }
    }

    #[test]
    fn an_event_server_has_idle_connections_and_no_queue() {
        let event = |_| {
            let mut event = prefork(62, 0, 20);
            event.time.open = Some(Reading::fresh(10_000));
            event
        };
        assert_eq!(told(event), None);
    }
}
