// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How far a limit may go, whatever the law says: it begins at half of what passes, falls by no more than half in a
//! second, and is never below the least rate that the operator wants. A law that is wrong for a moment strangles nobody.

use super::limit::{CrowdLimit, limit};
use tidegate_units::Nanos;

/// Time constant of what passes, seconds.
const PASSES_S: f64 = 4.0;
/// The least that a limit begins with, of what passes; and the least after a second, of what it was.
const BEGINS: f64 = 0.5;
const FALLS: f64 = 0.5;
/// What a bucket can be: connections per second.
const RATE: (f64, f64) = (0.01, 1e6);

/// The bounds of the limit of one destination.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LimitBounds {
    passes: f64,
    seen_s: f64,
    before: Option<f64>,
}

impl LimitBounds {
    /// What is in force after a tick of such a length in which so many connections were opened. `wanted`: what the
    /// law says, `None`: no limit. `least`: connections per second. What falls by half at most is what the tokens lead to: when
    /// more of them lead to an exchange, fewer are given at once.
    pub fn hold(
        &mut self,
        (period, connected): (Nanos, f64),
        wanted: Option<CrowdLimit>,
        least: f64,
    ) -> Option<CrowdLimit> {
        let s = period.as_secs_f64().max(1e-3);
        self.seen_s += s;
        let weight = -libm::expm1(-s / PASSES_S.min(self.seen_s));
        self.passes += weight * (connected / s - self.passes);
        let above = match self.before {
            Some(before) => before * libm::pow(FALLS, s),
            None => BEGINS * self.passes,
        };
        let led = wanted.map(|wanted| (wanted.rate * wanted.leads).max(above).max(RATE.0));
        self.before = led;
        let rate = led.zip(wanted).map(|(led, wanted)| (led / wanted.leads).max(least));
        rate.map(|rate| limit(rate.clamp(RATE.0, RATE.1)))
    }

    /// The limit that was there says nothing of the next.
    pub const fn begin_anew(&mut self) {
        self.before = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: Nanos = Nanos::from_millis(500);

    fn wants(rate: f64) -> Option<CrowdLimit> {
        Some(CrowdLimit { rate, burst: 2.0, leads: 1.0 })
    }

    /// So many ticks with ten connections each.
    fn held(bounds: &mut LimitBounds, ticks: u32, wanted: Option<CrowdLimit>) -> Option<f64> {
        let held = (0..ticks).map(|_| bounds.hold((HALF, 10.0), wanted, 1.5)).last();
        held.flatten().map(|limit| limit.rate)
    }

    #[test]
    fn a_limit_begins_at_half_of_what_passes_and_halves_in_a_second_at_most() {
        let mut bounds = LimitBounds::default();
        assert_eq!(held(&mut bounds, 100, None), None);
        let near = |found: Option<f64>, wanted: f64| {
            assert!(
                found.is_some_and(|found| (found / wanted - 1.0).abs() < 0.01),
                "{found:?}, {wanted}"
            );
        };
        near(held(&mut bounds, 1, wants(0.1)), 10.0);
        near(held(&mut bounds, 2, wants(0.1)), 5.0);
        near(held(&mut bounds, 20, wants(0.1)), 1.5);
        near(held(&mut bounds, 1, wants(60.0)), 60.0);
        near(held(&mut bounds, 2, wants(0.1)), 30.0);
        bounds.begin_anew();
        near(held(&mut bounds, 1, wants(0.1)), 10.0);
        assert_eq!(held(&mut bounds, 1, None), None);
        near(held(&mut bounds, 1, wants(1e9)), 1e6);
    }

    /// A limit that was divided by the share of its tokens that lead to an exchange is not held up there when all of them do.
    #[test]
    fn what_the_tokens_lead_to_is_bounded_and_not_their_number() {
        let mut bounds = LimitBounds::default();
        let raised = CrowdLimit { rate: 200.0, burst: 2.0, leads: 0.25 };
        assert_eq!(held(&mut bounds, 20, Some(raised)), Some(200.0));
        assert_eq!(held(&mut bounds, 1, wants(50.0)), Some(50.0));
        let fell = held(&mut bounds, 2, wants(1.0));
        assert!(fell.is_some_and(|fell| (24.9..25.1).contains(&fell)), "{fell:?}");
        let strict = CrowdLimit { rate: 0.4, burst: 2.0, leads: 0.25 };
        let least = held(&mut bounds, 40, Some(strict));
        assert_eq!(least, Some(1.5), "what the operator wants passes in any case");
    }

    /// The bucket is that of the rate that holds.
    #[test]
    fn the_bucket_follows_the_rate() {
        let mut bounds = LimitBounds::default();
        let of = |bounds: &mut LimitBounds, rate| bounds.hold((HALF, 10.0), wants(rate), 1.5);
        assert_eq!(of(&mut bounds, 100.0).map(|limit| limit.burst), Some(25.0));
        let odd = LimitBounds::default().hold((Nanos::ZERO, 0.0), wants(0.0), 0.0);
        assert_eq!(odd.map(|limit| (limit.rate, limit.burst)), Some((0.01, 2.0)));
    }
}
