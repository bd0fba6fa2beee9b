// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Set-ups at random.

use super::native::Answering;
use super::random::Dice;
use super::scene::CROWD;
use super::setup::{ANSWERS, Heartbeat, Limit, SECOND, Service, Setup, base};
use tidegate_policy::{Action, Policy};

/// Most tokens of a bucket.
const BURST_MAX: usize = 40;

/// A set-up. `exact_clock`: whether the engine can hold its clock between two frames.
pub fn setup(dice: &mut Dice, exact_clock: bool) -> Setup {
    let mut setup = base().trusting();
    setup.trust_dscp = dice.one_in(2);
    if dice.one_in(3) {
        setup = setup.listening(0, "192.0.2.10:22").listening(0, "192.0.2.10:443");
    }
    let known = [
        ("wide", &["198.0.0.0/8", "2001:db8::/32"][..]),
        ("partners", &["198.51.100.0/24", "2001:db8:c::/48"][..]),
        ("host", &["198.51.100.200/32", "203.0.113.77/32", "2001:db8:c::200/128"][..]),
        ("half", &["128.0.0.0/1", "8000::/1"][..]),
        ("voice", &[][..]),
    ];
    for (at, (name, sources)) in known.into_iter().enumerate() {
        if dice.one_in(2) {
            setup = setup.class(name, sources, dice.below(8) as u8);
            if sources.is_empty() || dice.one_in(4) {
                setup = setup.dscp([0, 1, 63, 2, 46][at]);
            }
        }
    }
    if dice.one_in(4) {
        setup.exempt_sources.clear();
    }
    setup.services.iter_mut().for_each(|service| limits(service, dice, exact_clock));
    setup.released = dice.one_in(30);
    setup.heartbeat = heartbeat(dice, exact_clock);
    setup.answers = if dice.one_in(20) { 0 } else { ANSWERS };
    if exact_clock && dice.one_in(10) {
        setup = setup.answers(40, dice.below(11) as u32);
    }
    setup
}

fn limits(service: &mut Service, dice: &mut Dice, exact_clock: bool) {
    service.policy = *dice.pick(Policy::ALL);
    // a window would need a model of the ring: that is what the replay is for
    service.abacus_window = 0;
    service.action = *dice.pick(&[Action::Drop, Action::Reject, Action::Reject, Action::Auto]);
    service.shadow = dice.one_in(6);
    if dice.one_in(6) {
        service.waiting_max = 1 + dice.below(3) as u64;
        service.waiting = dice.below(3) as u64;
        service.silent = dice.below(4) as u64;
        service.silent_usual = dice.below(3) as u64;
        service.asks_q10 = *dice.pick(&[0, 511, 512, 1024]);
        service.waiting_low = (dice.below(4) as u64, dice.below(3) as u64);
        // only there the state of a limit can be given
        service.tight = exact_clock && dice.one_in(2);
    }
    if dice.one_in(4) {
        service.accept_queue_max_q10 = *dice.pick(&[1, 512, 768, 769, 1024]);
    }
    if exact_clock && dice.one_in(2) {
        service.min_rate_us = 1 + dice.below(3) as u32;
        service.min_rate_ago = (dice.below(5) as u64 * 1000).saturating_sub(dice.below(2) as u64);
    }
    if dice.one_in(12) {
        return;
    }
    // a threshold is on the queue, and where there are real ones few are long
    let is_threshold = service.policy == Policy::Threshold;
    let most = if is_threshold { CROWD as usize } else { BURST_MAX };
    let burst = 1 + dice.below(most) as u32;
    let used = if dice.one_in(2) { burst } else { dice.below(burst as usize + 1) as u32 };
    let used = if service.takes_tokens() { used } else { 0 };
    let mut limit = Limit::new(burst, used);
    if dice.one_in(2) {
        // priority 0 reserves nothing: the tests use up tokens with it
        for reserve in &mut limit.reserve[1..] {
            *reserve = dice.below(burst as usize) as u32;
        }
        limit.reserve.sort_unstable();
    }
    service.limit = Some(limit);
}

fn heartbeat(dice: &mut Dice, exact_clock: bool) -> Heartbeat {
    let ms = match dice.below(10) {
        0 => return Heartbeat::Never,
        1 => 10_000 + dice.u64() % 100_000,
        2..4 if exact_clock => 3_000 + dice.u64() % 7_000,
        _ => dice.u64() % 1_000,
    };
    Heartbeat::Ago(ms * (SECOND / 1000))
}

/// A way to answer.
pub fn answering(dice: &mut Dice) -> Answering {
    *dice.pick(&[Answering::Transmit, Answering::Transmit, Answering::Redirect, Answering::Never])
}
