// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The chain of limits, and what decides whether a refusal is executed.

use super::{Case, admit, cases, drop, pass, reject};
use crate::support::packet::{eth, syn4, syn6};
use crate::support::setup::{Heartbeat, SECOND, Setup, base, dropping, rejecting};
use tidegate_policy::Policy::{Abacus, AbacusExact, AbacusLearned, FreshFirst, Threshold};
use tidegate_policy::Reason::{
    AcceptQueue, BelowThreshold, Borrowed, Discard, Exempt, ExpectedAgain, LeaseExpired, NoLimit,
    NoRoom, Rate, Released, Repeated, Reserved, Token, Waiting,
};

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    bucket(&mut all);
    shadow(&mut all);
    waiting(&mut all);
    accept_queue(&mut all);
    min_rate(&mut all);
    level(&mut all);
    chain(&mut all);
    fresh_first(&mut all);
    abacus(&mut all);
    abacus_exact(&mut all);
    abacus_learned(&mut all);
    switches(&mut all);
    lease(&mut all);
    all
}

fn bucket(v: &mut Vec<Case>) {
    cases! { v, base(), admit(NoLimit);
        "bucket-none" "no limit is set" => syn4();
    }
    cases! { v, dropping().bucket(5, 0), admit(Token);
        "bucket-full" "a full bucket" => syn4();
    }
    cases! { v, dropping().bucket(5, 4), admit(Token);
        "bucket-last" "the last token" => syn4();
    }
    cases! { v, dropping(), drop(Rate);
        "bucket-empty" "no token left: dropped" => syn4();
        "bucket-empty-ipv6" "the same, IPv6" => syn6();
    }
    cases! { v, rejecting(), reject(Rate);
        "bucket-reject" "no token left: rejected" => syn4();
    }
    cases! { v, dropping().bucket(1, 0), admit(Token);
        "bucket-one" "a bucket of one token" => syn4();
    }
    cases! { v, rejecting().bucket(8, 4).reserve([0, 0, 0, 0, 0, 0, 0, 4]), reject(Reserved);
        "bucket-reserved" "tokens are left, for others" => syn4();
    }
    cases! { v, rejecting().bucket(8, 3).reserve([0, 0, 0, 0, 0, 0, 0, 4]), admit(Token);
        "bucket-reserved-above" "one more than is reserved" => syn4();
    }
}

fn shadow(v: &mut Vec<Case>) {
    cases! { v, dropping().shadow(), drop(Rate).shadow();
        "shadow-drop" "a drop in shadow" => syn4();
    }
    cases! { v, rejecting().shadow(), reject(Rate).shadow();
        "shadow-reject" "a reject in shadow: nothing is sent" => syn6();
    }
    cases! { v, dropping().bucket(5, 0).shadow(), admit(Token);
        "shadow-admit" "an admission in shadow is an admission" => syn4();
    }
    cases! { v, base().waiting(2, 2).shadow(), drop(Waiting).shadow();
        "shadow-waiting" "every limit is in shadow" => syn4();
    }
}

fn waiting(v: &mut Vec<Case>) {
    let reject_base = || rejecting().bucket(5, 0);
    cases! { v, base().waiting(1, 2), admit(NoLimit);
        "waiting-below" "one place is left" => syn4();
    }
    cases! { v, base().waiting(2, 2), drop(Waiting);
        "waiting-at" "no place is left" => syn4();
    }
    cases! { v, base().waiting(3, 1), drop(Waiting);
        "waiting-above" "the limit fell" => syn4();
    }
    cases! { v, base().waiting(0, 1), admit(NoLimit);
        "waiting-none" "nobody waits" => syn4();
    }
    let silent = |now, usual, asks| base().waiting(1, 3).silent(now, usual, asks);
    cases! { v, silent(4, 2, 1024), drop(Waiting);
        "silent-ask" "two more than usual are silent, and will ask" => syn4();
    }
    cases! { v, silent(3, 2, 1024), admit(NoLimit);
        "silent-one" "one will ask: a place is left" => syn4();
    }
    cases! { v, silent(4, 2, 1023), admit(NoLimit);
        "silent-share" "not quite two of two will ask" => syn4();
    }
    cases! { v, silent(2, 2, 1024), admit(NoLimit);
        "silent-usual" "as many as usual are silent" => syn4();
    }
    cases! { v, silent(4, 2, 0), admit(NoLimit);
        "silent-never" "none of them will ask" => syn4();
    }
    cases! { v, silent(4, 0, 1024).low(2, 0), admit(NoLimit);
        "silent-most" "they take no more than what is left once the limit has refused" => syn4();
    }
    cases! { v, base().waiting(2, 3).silent(4, 0, 1024).low(2, 0), drop(Waiting);
        "silent-and-waiting" "with those that wait it is enough" => syn4();
    }
    cases! { v, reject_base().waiting(2, 2), reject(Waiting);
        "waiting-reject" "refused with an answer" => syn4();
    }
    cases! { v, base().waiting(2, 2).class("first", &["198.51.100.0/24"], 0), drop(Waiting).class("first");
        "waiting-priority" "no priority passes it" => syn4();
    }
}

/// The listener at port 81 has three of four places taken.
fn accept_queue(v: &mut Vec<Case>) {
    cases! { v, base().accept_queue_max(769), admit(NoLimit);
        "queue-below" "three quarters are taken, and a little more is allowed" =>
            eth().ipv4().tcp(40000, 81).syn();
    }
    cases! { v, base().accept_queue_max(768), drop(AcceptQueue);
        "queue-at" "three quarters are taken, and no more is allowed" =>
            eth().ipv4().tcp(40000, 81).syn();
    }
    cases! { v, rejecting().bucket(5, 0).accept_queue_max(1), reject(AcceptQueue);
        "queue-reject" "refused with an answer" => eth().ipv4().tcp(40000, 81).syn();
    }
    cases! { v, base().accept_queue_max(1), admit(NoLimit);
        "queue-empty" "nobody waits in the queue of port 80" => syn4();
        "queue-ipv6" "an empty queue, IPv6" => syn6();
    }
    cases! { v, base().accept_queue_max(1), admit(NoLimit).service("any");
        "queue-unknown" "without a listener there is no queue to look at" =>
            eth().ipv4().tcp(40000, 8080).syn();
    }
}

/// One a millisecond, and the last one long ago.
fn min_rate(v: &mut Vec<Case>) {
    let with = || dropping().bucket(5, 0).min_rate(1000);
    cases! { v, with().waiting(2, 2), admit(Token);
        "min-rate-waiting" "no place is left, and nobody came for an interval" => syn4();
    }
    cases! { v, with().waiting(2, 2).shadow(), admit(Token);
        "min-rate-shadow" "in shadow it is no refusal, either" => syn6();
    }
    cases! { v, with().accept_queue_max(768), admit(Token);
        "min-rate-queue" "the queue is at its limit, and the stack has a place" =>
            eth().ipv4().tcp(40000, 81).syn();
    }
    cases! { v, with().bucket(5, 5).waiting(2, 2), drop(Rate);
        "min-rate-policy" "the policy is asked all the same" => syn4();
    }
}

/// Thresholds on the accept queue: all are refused from as many on as the bucket has tokens.
fn level(v: &mut Vec<Case>) {
    let with = |burst| dropping().policy(Threshold).bucket(burst, 0);
    cases! { v, with(3), drop(Discard);
        "level-discard" "as many wait as the discard threshold says" =>
            eth().ipv4().tcp(40000, 81).syn();
    }
    cases! { v, with(3).shadow(), drop(Discard).shadow();
        "level-shadow" "the same in shadow" => eth().ipv4().tcp(40000, 81).syn();
    }
    cases! { v, with(4), admit(BelowThreshold);
        "level-below" "one less" => eth().ipv4().tcp(40000, 81).syn();
    }
    cases! { v, with(1), admit(BelowThreshold);
        "level-none" "nobody waits" => syn4();
    }
    cases! { v, with(1), admit(BelowThreshold).service("any");
        "level-unknown" "without a listener there is no queue to look at" =>
            eth().ipv4().tcp(40000, 8080).syn();
    }
}

fn chain(v: &mut Vec<Case>) {
    cases! { v, dropping().accept_queue_max(768).waiting(2, 2), drop(AcceptQueue);
        "chain-all" "all limits refuse: the accept queue is named" =>
            eth().ipv4().tcp(40000, 81).syn();
    }
    cases! { v, dropping().waiting(2, 2), drop(Waiting);
        "chain-waiting-rate" "waiting and rate refuse: waiting is named" => syn4();
    }
    cases! { v, dropping().bucket(1, 0).waiting(2, 2), drop(Waiting);
        "chain-no-token" "waiting refuses while tokens are there: none is taken" => syn4();
    }
}

fn fresh_first(v: &mut Vec<Case>) {
    let with = |burst, used| -> Setup { dropping().policy(FreshFirst).bucket(burst, used) };
    cases! { v, with(8, 4), admit(Token);
        "fresh-token" "a first attempt" => syn4();
    }
    cases! { v, with(8, 8), drop(Rate);
        "fresh-empty" "no token" => syn4();
    }
    cases! { v, base().policy(FreshFirst), admit(NoLimit);
        "fresh-none" "no limit" => syn4();
    }
    cases! { v, with(8, 4).refused_before(), drop(Repeated);
        "fresh-repeated" "half of the bucket is for first attempts: four are left, none above" =>
            syn4();
    }
    cases! { v, with(8, 3).refused_before(), admit(Token);
        "fresh-repeated-above" "five are left: one above" => syn4();
    }
    cases! { v, with(8, 8).refused_before(), drop(Rate);
        "fresh-repeated-empty" "again, and still no token" => syn4();
    }
    cases! { v, rejecting().policy(FreshFirst).bucket(8, 4).refused_before(), reject(Repeated);
        "fresh-repeated-ipv6" "refused with an answer, IPv6" => syn6();
    }
    cases! { v, with(8, 5).reserve([0, 0, 0, 0, 0, 0, 0, 4]), drop(Reserved);
        "fresh-reserved" "the reserve of the priorities counts first" => syn4();
    }
    cases! { v, with(8, 4).refused_before().class("first", &["198.51.100.0/24"], 0), drop(Repeated).class("first");
        "fresh-repeated-first" "priority 0 waits behind first attempts, too" => syn4();
    }
}

fn abacus(v: &mut Vec<Case>) {
    cases! { v, dropping().abacus(45).bucket(5, 4), admit(Token);
        "abacus-token" "a token" => syn4();
    }
    cases! { v, rejecting().abacus(45), drop(Borrowed);
        "abacus-borrowed" "room is expected when the SYN comes back: dropped, whatever the action" =>
            syn4();
    }
    cases! { v, dropping().abacus(0), reject(NoRoom);
        "abacus-no-room" "no window: rejected, whatever the action" => syn4();
    }
    cases! { v, dropping().abacus(2), reject(NoRoom);
        "abacus-window" "a window that ends before the first retransmission" => syn6();
    }
    cases! { v, base().policy(Abacus), admit(NoLimit);
        "abacus-none" "no limit" => syn4();
    }
    cases! { v, dropping().abacus(0).shadow(), reject(NoRoom).shadow();
        "abacus-shadow" "a reject in shadow" => syn4();
    }
}

fn abacus_exact(v: &mut Vec<Case>) {
    cases! { v, dropping().abacus_exact(45).bucket(5, 4), admit(Token);
        "exact-token" "a token" => syn4();
    }
    cases! { v, rejecting().abacus_exact(45), drop(Borrowed);
        "exact-borrowed" "room is expected when the SYN comes back: dropped, whatever the action" =>
            syn4();
        "exact-borrowed-ipv6" "the same, IPv6" => syn6();
    }
    cases! { v, dropping().abacus_exact(0), reject(NoRoom);
        "exact-no-room" "no window: rejected, whatever the action" => syn4();
    }
    cases! { v, dropping().abacus_exact(2), reject(NoRoom);
        "exact-window" "a window that ends before the first retransmission" => syn6();
    }
    cases! { v, rejecting().abacus_exact(45).refused_before(), drop(ExpectedAgain);
        "exact-again" "a copy of a SYN that was dropped: dropped again, not rejected" => syn4();
        "exact-again-ipv6" "the same, IPv6" => syn6();
    }
    cases! { v, base().policy(AbacusExact), admit(NoLimit);
        "exact-none" "no limit" => syn4();
    }
    cases! { v, dropping().abacus_exact(0).shadow(), reject(NoRoom).shadow();
        "exact-shadow" "a reject in shadow" => syn4();
    }
}

fn abacus_learned(v: &mut Vec<Case>) {
    cases! { v, dropping().abacus_learned(45).bucket(5, 4), admit(Token);
        "learned-token" "a token" => syn4();
    }
    cases! { v, rejecting().abacus_learned(45), drop(Borrowed);
        "learned-dropped" "nothing learned yet, nobody waits: dropped, whatever the action" => syn4();
        "learned-dropped-ipv6" "the same, IPv6" => syn6();
    }
    cases! { v, dropping().abacus_learned(0), reject(NoRoom);
        "learned-no-wait" "a rejection costs nothing: rejected, whatever the action" => syn4();
    }
    cases! { v, dropping().abacus_learned(2), reject(NoRoom);
        "learned-wait" "the first retransmission lies further away than a rejection is worth" =>
            syn6();
    }
    cases! { v, rejecting().abacus_learned(45).refused_before(), drop(ExpectedAgain);
        "learned-again" "a copy of a SYN that was dropped: dropped again, not rejected" => syn4();
        "learned-again-ipv6" "the same, IPv6" => syn6();
    }
    cases! { v, base().policy(AbacusLearned), admit(NoLimit);
        "learned-none" "no limit" => syn4();
    }
    cases! { v, dropping().abacus_learned(0).shadow(), reject(NoRoom).shadow();
        "learned-shadow" "a reject in shadow" => syn4();
    }
}

fn switches(v: &mut Vec<Case>) {
    cases! { v, rejecting().released(), pass(Released);
        "released" "the kill switch: everything passes" => syn4();
    }
    cases! { v, rejecting().shadow().released(), pass(Released);
        "released-shadow" "also in shadow" => syn6();
    }
    cases! { v, rejecting().released(), pass(Exempt);
        "released-never" "what is never refused is still counted so" =>
            eth().ipv4().from4([10, 0, 0, 1]).tcp(40000, 80).syn();
    }
    cases! { v, rejecting().released().heartbeat(Heartbeat::Never), pass(Released);
        "released-lease" "the kill switch is named before a lease that ended" => syn4();
    }
}

fn lease(v: &mut Vec<Case>) {
    let ago = |ms: u64| Heartbeat::Ago(ms * SECOND / 1000);
    let at = |heartbeat| rejecting().heartbeat(heartbeat);
    cases! { v, at(ago(0)), reject(Rate);
        "lease-0" "a fresh heartbeat" => syn4();
    }
    cases! { v, at(ago(2000)), reject(Rate);
        "lease-2" "two seconds old" => syn4();
    }
    cases! { v, at(ago(3000)), reject(Rate);
        "lease-3" "three seconds old: limits hold" => syn4();
    }
    cases! { v, at(ago(6500)), reject(Rate);
        "lease-6.5" "half way to the end: this random number refuses" => syn4();
    }
    cases! { v, at(ago(9900)), reject(Rate);
        "lease-9.9" "shortly before the end: this random number refuses" => syn4();
    }
    cases! { v, at(ago(10_000)), pass(LeaseExpired);
        "lease-10" "ten seconds old" => syn4();
    }
    cases! { v, at(ago(11_000)), pass(LeaseExpired);
        "lease-11" "older" => syn4();
    }
    cases! { v, at(Heartbeat::Never), pass(LeaseExpired);
        "lease-never" "no heartbeat ever" => syn4();
    }
    cases! { v, at(Heartbeat::Ahead(SECOND / 2)), reject(Rate);
        "lease-ahead" "half a second ahead: a clock may err" => syn4();
    }
    cases! { v, at(Heartbeat::Ahead(3600 * SECOND)), pass(LeaseExpired);
        "lease-far-ahead" "an hour ahead: it would hold for an hour without a daemon" => syn4();
    }
    cases! { v, at(ago(6500)).bucket(5, 0), admit(Token);
        "lease-admit" "an admission asks no lease that still holds" => syn4();
    }
    cases! { v, rejecting().until(-50), pass(LeaseExpired);
        "until-past" "a server gave the limit until a moment ago" => syn4();
    }
    cases! { v, rejecting().until(60_000), reject(Rate);
        "until-ahead" "until in a minute" => syn4();
    }
    cases! { v, at(ago(10_000)).until(60_000), pass(LeaseExpired);
        "until-lease" "the lease has ended before" => syn4();
    }
    cases! { v, at(ago(20_000)).shadow(), pass(LeaseExpired);
        "lease-ended-shadow" "a lease that ended is named before shadow" => syn6();
    }
}
