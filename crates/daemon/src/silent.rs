// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Silent connections that hold a server's workers: what an operator can do about them. No limit
//! of ours helps there: refusing new clients does not free a worker.

use tidegate_model::signals::Signals;
use tidegate_units::Share;

/// Fewer silent connections are those of browsers that connect in advance.
const SILENT_MIN: u64 = 16;
/// Least part of the open connections that is silent.
const PART_MIN: f64 = 0.5;
/// An accept queue of this share of its limit waits for workers.
const QUEUE_MIN: f64 = 0.1;
/// Below this the CPU is free: it is not work that holds them.
const CPU_FREE: f64 = 0.7;

/// What holds the workers of a service, and the remedy; `None`: nothing of the kind.
pub(crate) fn remedy(signals: &Signals, defer_accept: Option<bool>) -> Option<String> {
    let silent = signals.time.silent?.value;
    let open = signals.time.open?.value;
    let queue = signals.queue.accept?.value;
    let busy = [Some(signals.resource.cpu?), signals.resource.busiest_thread];
    let free = busy.iter().flatten().all(|reading| reading.value < Share::new(CPU_FREE));
    let waits = queue.length as f64 >= QUEUE_MIN * queue.limit.max(1) as f64;
    let many = silent >= SILENT_MIN && silent as f64 >= PART_MIN * open as f64;
    if !(many && waits && free) {
        return None;
    }
    let time_out = "a shorter time-out for requests (Apache: RequestReadTimeout; nginx: \
                    client_header_timeout)";
    let remedy = match defer_accept {
        Some(true) => time_out.to_owned(),
        Some(false) | None => format!(
            "deferred accept (TCP_DEFER_ACCEPT; Apache: AcceptFilter; nginx: `listen … deferred`), or \
             {time_out}"
        ),
    };
    Some(format!(
        "{silent} of {open} connections have sent no request, and the accept queue is long ({} of {}) \
         while the CPU is free: they hold the server's workers. The remedy: {remedy}",
        queue.length, queue.limit
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::signals::{AcceptQueue, Reading};

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
        let says = |silent, open, length, cpu| {
            remedy(&signals(silent, open, length, cpu), Some(false)).is_some()
        };
        assert!(says(60, 64, 40, 0.02));
        assert!(says(SILENT_MIN, 2 * SILENT_MIN, 10, 0.69));
        assert!(!says(SILENT_MIN - 1, SILENT_MIN, 40, 0.02), "browsers that connect in advance");
        assert!(!says(60, 121, 40, 0.02), "most of them work");
        assert!(!says(60, 64, 9, 0.02), "nobody waits");
        assert!(!says(60, 64, 40, 0.7), "the CPU is what is short");
        let mut at_its_end = signals(60, 64, 40, 0.02);
        at_its_end.resource.busiest_thread = Some(Reading::fresh(Share::new(1.0)));
        assert_eq!(remedy(&at_its_end, None), None, "a thread is what is short");
        for missing in [
            (|s: &mut Signals| s.time.silent = None) as fn(&mut Signals),
            |s| s.time.open = None,
            |s| s.queue.accept = None,
            |s| s.resource.cpu = None,
        ] {
            let mut signals = signals(60, 64, 40, 0.02);
            missing(&mut signals);
            assert_eq!(remedy(&signals, None), None, "what is not known is no reason");
        }
    }

    #[test]
    fn where_accept_is_deferred_already_only_the_time_out_helps() {
        let text = |defer| remedy(&signals(60, 64, 40, 0.02), defer).unwrap();
        for defer in [Some(false), None] {
            assert!(text(defer).contains("TCP_DEFER_ACCEPT"), "{}", text(defer));
        }
        assert!(!text(Some(true)).contains("DEFER"), "{}", text(Some(true)));
        assert!(text(Some(true)).contains("RequestReadTimeout"));
    }
}
