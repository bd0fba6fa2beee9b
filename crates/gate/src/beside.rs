// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is limited beside a service: the bucket of a route, and what a peer allows the service
//! (a remote limit on requests). All must admit.

use crate::service::{Bucket, Decided, Service, Who};
use std::sync::atomic::Ordering::Relaxed;
use tidegate_model::PRIORITY_DEFAULT;
use tidegate_policy::{Circumstances, Event, Execution, Lease, Rank, VerdictKind};
use tidegate_units::Nanos;

/// What is asked.
#[derive(Clone, Copy)]
pub(crate) struct Question {
    pub(crate) now: Nanos,
    pub(crate) who: Who,
    pub(crate) lease: Lease,
    /// Whether it can wait.
    pub(crate) waits: bool,
}

/// What a service says with the remote limit on it, and the bucket of the route.
pub(crate) fn decide(
    service: &Service,
    (told, bucket): (&Bucket, Option<&Bucket>),
    of: Question,
) -> Decided {
    let own = || service.decide(of.now, of.who, (of.lease, of.waits));
    let routed = || match bucket {
        Some(bucket) => both(service, bucket, of, own),
        None => own(),
    };
    if told.limited.load(Relaxed) { both(service, told, of, routed) } else { routed() }
}

/// What a bucket says, and those behind it: both must admit. What the bucket has given to one that they
/// refuse is given back, as if it had not come: else those whom the service sheds would drain it.
fn both(
    service: &Service,
    bucket: &Bucket,
    of: Question,
    behind: impl FnOnce() -> Decided,
) -> Decided {
    let Who { priority, random, source, .. } = of.who;
    let mut chain = bucket.chain();
    let before = chain.clone();
    let event = Event { random: random as u32, priority, ..Event::at(of.now.0) };
    let random = (random >> 32) as u32;
    let how = Circumstances { lease: of.lease, random, source, ..Circumstances::default() };
    let (verdict, execution) = chain.decide_by_priority(&event, service.in_flight(), &how);
    let refused = verdict.kind != VerdictKind::Admit;
    let passes = !refused || execution != Execution::Executed;
    let by_bucket = Decided { reason: verdict.reason, refused, execution, passes, delay: None };
    let by_others = by_bucket.passes.then(behind);
    let decided = match by_others {
        Some(decided) if !decided.passes => {
            *chain = before;
            return decided;
        }
        // In shadow the bucket's word is shown unless the others refuse.
        Some(decided) if decided.refused || decided.delay.is_some() || !by_bucket.refused => {
            decided
        }
        _ => by_bucket,
    };
    drop(chain);
    // Which requests of one connection belong together, the gate does not know.
    let rank = Rank::of(priority < PRIORITY_DEFAULT, true, false);
    bucket.offered[rank as usize].one();
    if refused {
        bucket.refused[rank as usize].one();
    }
    decided
}
