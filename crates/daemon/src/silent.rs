// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Silent connections that hold a server's workers: whether they do, and what an operator can do
//! about them. The service's limit is not lowered for them: refusing clients that send their requests
//! frees no worker. Who holds most of them may open fewer (holders.rs).

use crate::governor::SIGNAL_AGE_MAX;
use tidegate_model::signals::{AcceptQueue, Reading, Signals};
use tidegate_units::Share;

/// Least part of the open connections that is silent.
const PART_MIN: f64 = 0.5;
/// An accept queue of this share of its limit waits for workers.
const QUEUE_MIN: f64 = 0.1;
/// Below this the CPU is free: it is not work that holds them.
const CPU_FREE: f64 = 0.7;

/// What silent and slow connections do to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    held: u64,
    open: u64,
    queue: AcceptQueue,
}

/// Whether silent or slow connections hold the workers of a service at this moment; `None`: nothing
/// of the kind, or it is not known.
pub(crate) fn cause(signals: &Signals) -> Option<Cause> {
    let young = |reading: Reading<u64>| reading.within(SIGNAL_AGE_MAX);
    let silent = young(signals.time.silent?)?;
    let held = silent + signals.time.slow.and_then(young).unwrap_or(0);
    let open = young(signals.time.open?)?;
    let queue = signals.queue.accept?.within(SIGNAL_AGE_MAX)?;
    let busy = [Some(signals.resource.cpu?), signals.resource.busiest_thread];
    let is_free = |cpu: Reading<Share>| {
        cpu.within(SIGNAL_AGE_MAX).is_some_and(|cpu| cpu < Share::new(CPU_FREE))
    };
    let free = busy.into_iter().flatten().all(is_free);
    let waits = queue.length as f64 >= QUEUE_MIN * queue.limit.max(1) as f64;
    let many = held > 0 && held as f64 >= PART_MIN * open as f64;
    (many && waits && free).then_some(Cause { held, open, queue })
}

/// Whether the accept queue is known, without which there is no cause.
pub(crate) fn is_known(signals: &Signals) -> bool {
    signals.queue.accept.is_some_and(|queue| queue.within(SIGNAL_AGE_MAX).is_some())
}

/// What an operator can do about it.
pub(crate) fn remedy(cause: Cause, defer_accept: Option<bool>) -> String {
    let Cause { held, open, queue } = cause;
    let time_out = "a shorter time-out for requests (Apache: RequestReadTimeout; nginx: \
                    client_header_timeout)";
    let remedy = match defer_accept {
        Some(true) => time_out.to_owned(),
        Some(false) | None => format!(
            "deferred accept (TCP_DEFER_ACCEPT; Apache: AcceptFilter; nginx: `listen … deferred`), or \
             {time_out}"
        ),
    };
    format!(
        "{held} of {open} connections have sent no request, or send one slowly, and the accept queue \
         is long ({} of {}) while the CPU is free: they hold the server's workers. The remedy: {remedy}",
        queue.length, queue.limit
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_units::Nanos;

    fn signals(silent: u64, open: u64, length: u64, cpu: f64) -> Signals {
        let mut signals = Signals::default();
        signals.time.silent = Some(Reading::fresh(silent));
        signals.time.open = Some(Reading::fresh(open));
        signals.queue.accept = Some(Reading::fresh(AcceptQueue { length, limit: 100 }));
        signals.resource.cpu = Some(Reading::fresh(Share::new(cpu)));
        signals
    }

    #[test]
    fn the_remedy_is_named_where_silent_connections_hold_workers_and_only_there() {
        let says = |silent, open, length, cpu| cause(&signals(silent, open, length, cpu)).is_some();
        assert!(says(60, 64, 40, 0.02));
        assert!(says(1, 2, 10, 0.69), "a small server has few workers");
        assert!(!says(0, 0, 40, 0.02), "nobody is silent");
        assert!(!says(60, 121, 40, 0.02), "most of them work");
        assert!(!says(60, 64, 9, 0.02), "nobody waits");
        assert!(!says(60, 64, 40, 0.7), "the CPU is what is short");
        let mut at_its_end = signals(60, 64, 40, 0.02);
        at_its_end.resource.busiest_thread = Some(Reading::fresh(Share::new(1.0)));
        assert_eq!(cause(&at_its_end), None, "a thread is what is short");
        let mut slow = signals(10, 64, 40, 0.02);
        assert_eq!(cause(&slow), None);
        slow.time.slow = Some(Reading::fresh(22));
        assert!(cause(&slow).is_some(), "slow requests hold workers, too");
        let mut old = signals(60, 64, 40, 0.02);
        old.time.silent = Some(Reading { value: 60, age: SIGNAL_AGE_MAX + Nanos(1) });
        assert_eq!(cause(&old), None, "what is old is no reason");
        let mut old = signals(60, 64, 40, 0.02);
        old.resource.cpu = Some(Reading { value: Share::ZERO, age: SIGNAL_AGE_MAX + Nanos(1) });
        assert_eq!(cause(&old), None, "the CPU may be busy by now");
        for missing in [
            (|s: &mut Signals| s.time.silent = None) as fn(&mut Signals),
            |s| s.time.open = None,
            |s| s.queue.accept = None,
            |s| s.resource.cpu = None,
        ] {
            let mut signals = signals(60, 64, 40, 0.02);
            missing(&mut signals);
            assert_eq!(cause(&signals), None, "what is not known is no reason");
        }
    }

    #[test]
    fn where_accept_is_deferred_already_only_the_time_out_helps() {
        let text = |defer| remedy(cause(&signals(60, 64, 40, 0.02)).unwrap(), defer);
        for defer in [Some(false), None] {
            assert!(text(defer).contains("TCP_DEFER_ACCEPT"), "{}", text(defer));
        }
        assert!(!text(Some(true)).contains("DEFER"), "{}", text(Some(true)));
        assert!(text(Some(true)).contains("RequestReadTimeout"));
    }
}
