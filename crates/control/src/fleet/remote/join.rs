// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a host's own controllers decided, joined with the limits of peers: the tighter of the two holds. An operator's
//! own limit always does.

use super::{DATAGRAMS_AT_ONCE, InForce};
use tidegate_model::RANKS;
use tidegate_model::limits::{
    BucketLimits, DatagramLimit, RequestLimit, Reserve, ServiceLimits, Why,
};
use tidegate_model::remote::Form;
use tidegate_units::{Nanos, Rate};

/// The kernel ends a limit so much later than the daemon, which lives as a rule and then writes the service's own limits: they
/// do not end meanwhile. With a tick it is less than the second within which no limit is alive any more.
const SLACK: Nanos = Nanos::from_millis(800);
/// A bucket keeps so much for each rank above, where its own law keeps nothing: 1/4 of it.
const KEPT_PART: u32 = 4;

/// What the policy of a service or of a bucket needs to know of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Takes {
    /// It goes by a rate; another takes no limit of a peer.
    pub rate: bool,
    /// It refuses a share.
    pub share: bool,
    /// The depth of its bucket where its own law set no rate.
    pub burst: u32,
}

/// Joins the limit on a service's connections; whether the peer's is the tighter one.
pub fn connections(
    limits: &mut ServiceLimits,
    remote: &InForce,
    (shares, reserve): (bool, Reserve),
) -> bool {
    if limits.rate.is_some_and(|rate| rate <= remote.rate) {
        return false;
    }
    // The end of a plain limit opens the whole service: not where something else limits it.
    let ends = remote.ends.filter(|_| is_free(limits));
    limits.until = remote.until.or(ends).map(|end| end + SLACK);
    // Its sender counts what arrives, and its own stack or limit may drop SYNs in silence.
    limits.copies = true;
    limits.rate = Some(remote.rate);
    limits.burst = remote.burst.max(1);
    limits.reserve = reserve.tokens(limits.burst);
    if shares {
        limits.loss = remote.loss;
    }
    limits.why.text = format!("a remote limit of {} holds; {}", remote.rate, limits.why.text);
    true
}

/// The limit on a service's datagrams. They have no other one. Their senders send several at once, more of a higher
/// limit.
#[must_use]
pub fn datagrams(remote: InForce) -> DatagramLimit {
    let at_once = remote.rate.get() * DATAGRAMS_AT_ONCE.as_secs_f64();
    let most = f64::from(crate::BURST_MAX);
    let burst = remote.burst.max(at_once.ceil().min(most) as u32).max(1);
    let until = remote.until.map(|end| end + SLACK);
    DatagramLimit { rate: remote.rate, burst, until }
}

/// Puts the limit on all requests of a service beside its own; whether the peer's is the tighter one.
pub fn requests(limits: &mut ServiceLimits, remote: &InForce) -> bool {
    let InForce { rate, burst, loss, form, priority, .. } = *remote;
    let loss = loss.filter(|_| form == Form::Loss);
    limits.requests = Some(RequestLimit { form, rate, burst: burst.max(1), loss, priority });
    let binds = limits.rate.is_none_or(|own| rate < own);
    if binds {
        say_why(&mut limits.why, remote);
    }
    binds
}

/// Joins the limit on the requests of a bucket; whether the peer's is the tighter one.
pub fn bucket(limits: &mut BucketLimits, remote: &InForce, takes: Takes) -> bool {
    if !takes.rate || limits.rate.is_some_and(|rate| rate <= remote.rate) {
        return false;
    }
    if limits.rate.is_none() {
        limits.burst = takes.burst.max(1);
        let kept = limits.burst / KEPT_PART;
        limits.reserve = [0, kept, 2 * kept];
    }
    if remote.form == Form::Gap {
        // The last rank needs a full bucket, so it keeps the gap; the first may be ahead by all of it.
        let kept = std::array::from_fn(|rank| rank as u32);
        (limits.burst, limits.reserve) = (RANKS as u32, kept);
    }
    limits.rate = Some(remote.rate);
    if takes.share {
        limits.loss = remote.loss;
    }
    say_why(&mut limits.why, remote);
    true
}

fn say_why(why: &mut Why, remote: &InForce) {
    let rate: Rate = remote.rate;
    why.text = format!("a remote limit of {rate} on requests holds; {}", why.text);
}

/// Nothing but a remote limit would refuse a SYN.
fn is_free(own: &ServiceLimits) -> bool {
    let none = (own.rate, own.waiting_max, own.source_max) == (None, None, None);
    none && own.accept_queue_max_q10 == 0
}

/// Others refuse as well: what the rate leaves out of so many is the most that it can have refused.
#[must_use]
pub fn left_out(offered: u64, rate: Option<Rate>, period: Nanos) -> u64 {
    let fits = rate.map_or(0.0, |rate| rate.get() * period.as_secs_f64());
    (offered as f64 - fits).max(0.0).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::PRIORITIES;
    use tidegate_units::Share;

    const BUCKET: Takes = Takes { rate: true, share: false, burst: 8 };

    fn remote(rate: f64, form: Form) -> InForce {
        let loss = Some(Share::new(0.5));
        InForce { rate: Rate::per_second(rate), burst: 20, loss, form, ..InForce::default() }
    }

    #[test]
    fn of_a_bucket_the_tighter_limit_holds_and_ranks_stay() {
        let mut limits = BucketLimits::default();
        assert!(!bucket(&mut limits, &remote(40.0, Form::Rate), Takes { rate: false, ..BUCKET }));
        assert!(bucket(&mut limits, &remote(40.0, Form::Rate), BUCKET));
        let seen = (limits.rate.map(Rate::get), limits.burst, limits.reserve, limits.loss);
        assert_eq!(seen, (Some(40.0), 8, [0, 2, 4], None));
        limits.reserve = [0, 1, 3];
        assert!(!bucket(&mut limits, &remote(40.0, Form::Rate), BUCKET), "not below its own");
        assert!(bucket(&mut limits, &remote(30.0, Form::Loss), BUCKET));
        assert_eq!((limits.rate.map(Rate::get), limits.reserve), (Some(30.0), [0, 1, 3]));
        assert!(bucket(&mut limits, &remote(20.0, Form::Gap), Takes { share: true, ..BUCKET }));
        assert_eq!((limits.burst, limits.reserve), (3, [0, 1, 2]), "the last rank, one at a time");
        assert_eq!(limits.loss.map(Share::get), Some(0.5), "its policy refuses a share");
    }

    /// A plain limit ends with the service open: only where nothing else limits it.
    #[test]
    fn of_a_service_the_tighter_limit_holds_and_ends_where_it_is_the_only_one() {
        let end = Nanos::from_secs(7);
        let told = InForce { ends: Some(end), ..remote(40.0, Form::Rate) };
        let mut reserve = Reserve::default();
        reserve.0[PRIORITIES - 1] = 0.25;
        let joined = |own: ServiceLimits, shares| {
            let mut limits = own;
            connections(&mut limits, &told, (shares, reserve)).then_some(limits)
        };
        let free = joined(ServiceLimits::default(), false).unwrap();
        let seen = (free.rate.map(Rate::get), free.burst, free.reserve[PRIORITIES - 1]);
        assert_eq!(seen, (Some(40.0), 20, 5));
        assert_eq!((free.until, free.copies, free.loss), (Some(end + SLACK), true, None));
        let waits = ServiceLimits { waiting_max: Some(9), ..ServiceLimits::default() };
        let held = joined(waits, true).unwrap();
        assert_eq!((held.until, held.waiting_max), (None, Some(9)));
        assert_eq!(held.loss.map(Share::get), Some(0.5));
        for own in [39.0, 40.0] {
            let rate = Some(Rate::per_second(own));
            assert_eq!(joined(ServiceLimits { rate, ..ServiceLimits::default() }, false), None);
        }
    }

    #[test]
    fn of_requests_it_stands_beside_the_rate() {
        let rate = Some(Rate::per_second(50.0));
        let mut limits = ServiceLimits { rate, ..ServiceLimits::default() };
        assert!(!requests(&mut limits, &remote(60.0, Form::Loss)));
        assert_eq!(limits.requests.and_then(|of| of.loss).map(Share::get), Some(0.5));
        assert!(requests(&mut limits, &remote(40.0, Form::Rate)));
        let told = limits.requests.unwrap();
        assert_eq!((told.rate.get(), told.burst, told.loss), (40.0, 20, None));
        assert_eq!(limits.rate.map(Rate::get), Some(50.0));
    }
}
