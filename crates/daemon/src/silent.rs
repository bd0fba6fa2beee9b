// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Silent connections that hold a server's workers: whether they do, and what an operator can do
//! about them. There is no alarm for them: refusing clients that send their requests frees no worker. Who holds most of them may open fewer (holders.rs).

use tidegate_control::HeldWorkers;
use tidegate_control::fleet::SIGNAL_AGE_MAX;
use tidegate_model::signals::Signals;

/// Whether the accept queue is known, without which there is no cause.
pub(crate) fn is_known(signals: &Signals) -> bool {
    signals.queue.accept.is_some_and(|queue| queue.within(SIGNAL_AGE_MAX).is_some())
}

/// What an operator can do about it.
pub(crate) fn remedy(cause: HeldWorkers, defer_accept: Option<bool>) -> String {
    let HeldWorkers { held, open, queue } = cause;
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
    use tidegate_model::signals::AcceptQueue;

    #[test]
    fn where_accept_is_deferred_already_only_the_time_out_helps() {
        let queue = AcceptQueue { length: 40, limit: 100 };
        let text = |defer| remedy(HeldWorkers { held: 60, open: 64, queue }, defer);
        for defer in [Some(false), None] {
            assert!(text(defer).contains("TCP_DEFER_ACCEPT"), "{}", text(defer));
        }
        assert!(!text(Some(true)).contains("DEFER"), "{}", text(Some(true)));
        assert!(text(Some(true)).contains("RequestReadTimeout"));
    }
}
