// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The default controller: for a server of which nothing is known. What a [`Detector`] says becomes
//! limits; see ../detect for how it knows.
//!
//! # Calm
//! No rate; only a limit on the jobs in flight, at what the server can complete within the objective on
//! top of what it usually holds, which bounds what can pile up between two ticks. Once it has refused
//! it is tighter, for a second at most: no more than the excess that alarms, until half of that is left.
//!
//! # Overload
//! Jobs in flight are held at the target N*, beside those on their way: of clients, and in proxies. Two actuators,
//! and a limit at a full accept queue:
//! - rate = λ + (N* − N)/τ, with λ = μ/k: μ are the exchanges completed per second under saturation, less
//!   what connections that stay have of them, k those that a connection brings; who was let in and has not asked yet counts into N. A rate,
//!   not only a ceiling, so that the policy can give tokens to first attempts before repeated SYNs;
//! - a ceiling on the jobs in flight, N* + 1.5·Q, in line with the packets: exact, without delay.
//!   While a server starts workers, for which connections wait, it decides alone.
//!
//! When first attempts alone are clearly below the capacity and only repeated SYNs exceed it, the
//! overload of new work is over: rate = 0.85·μ/k at most, so that everybody is served as at that load
//! while the refused come back.
//!
//! # Always
//! One connection in ten objectives, and at most one a second, is admitted whatever these limits say.
//! Else nothing is learned of a server that hangs. Signals that are missing never tighten: old ones
//! freeze the limits, lost ones lift them. In shadow nothing is shed: then the rate is the measured
//! completion rate, and no ceiling is set.

use crate::detect::{
    Calm, Detector, LASTING_SECONDS, Load, Overload, QUEUE_MAX, RATE_EVENTS, TAU_SECONDS_MIN,
    is_gap,
};
use crate::{Beside, Controller, Decision, Mode, bounded, period_s};
use tidegate_model::RATE_MIN;
use tidegate_model::limits::{Cause, Low, Onset, Pending, ServiceLimits, Why};
use tidegate_model::signals::Signals;
use tidegate_units::{Nanos, Rate};

/// Largest bucket while shedding, in tokens.
const SHED_BURST_MAX: f64 = 1024.0;
/// Cycles of a connection, from one request to the next, in the time constant of the correction.
const TAU_CYCLES: f64 = 2.0;
/// While shedding, the rate never falls below this share of μ: the queue drains by the ceiling.
const RATE_SHARE_MIN: f64 = 0.5;
/// In so many objectives one connection is admitted even if the other limits are full (decision 20).
/// Whoever serves anybody within the objective serves one in each with a single worker, so this is a
/// tenth of the least capacity that is worth protecting.
const MIN_RATE_OBJECTIVES: f64 = 10.0;
/// While workers are started, the rate is at least so many times the departures, or the
/// standing queue of other servers each second.
const SEATS_AHEAD: f64 = 4.0;
/// The whole accept queue, in 1/1024: the limit in line while shedding.
const ACCEPT_QUEUE_FULL_Q10: u32 = 1024;
/// The limit of calm once it has refused, in headrooms at most.
const LOW_HEADROOM: f64 = 0.5;
/// The share of that, above the usual, at which the whole limit holds again.
const LOW_REST: f64 = 0.5;
/// A tick counts for so many times the one before at most: for what nobody looked at no alarm could come.
const LATE_TICKS: f64 = 2.0;
/// Seconds without a refusal after which the limit of calm is as it was before, at most.
const FULL_SECONDS_MAX: f64 = 2.0;

/// What an operator may say; nothing here depends on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefaultSpec {
    /// What a good response may take: 1 s. From 10 ms to 60 s.
    pub objective: Nanos,
}

impl Default for DefaultSpec {
    fn default() -> Self {
        Self { objective: Nanos::SECOND }
    }
}

/// The controller.
#[derive(Clone, Debug)]
pub struct DefaultController {
    pub(crate) detector: Detector,
    /// Seconds in which the limit of calm has refused, less those in which it did not.
    full_s: f64,
    /// The length of the last tick.
    period_s: Option<f64>,
    pub(crate) last: ServiceLimits,
}

impl DefaultController {
    /// A controller that has seen nothing.
    #[must_use]
    pub fn new(spec: DefaultSpec) -> Self {
        Self {
            detector: Detector::new(spec.objective),
            full_s: 0.0,
            period_s: None,
            last: ServiceLimits::default(),
        }
    }

    /// What is admitted past full limits. A short objective says nothing of how many there are, so the
    /// rate's own minimum is the most.
    fn min_rate(&self) -> Rate {
        let rate = 1.0 / (MIN_RATE_OBJECTIVES * self.detector.objective_s);
        Rate::per_second(rate.min(RATE_MIN))
    }

    /// Limits while calm: that on the jobs in flight alone.
    fn calm(&self, calm: Calm) -> ServiceLimits {
        let headroom = calm.headroom + calm.tried;
        let text = format!(
            "calm: {:.1}/s completed, {:.0} usually in flight, baseline {:.1} ms, variability {:.1}",
            calm.completes,
            calm.usual,
            calm.baseline_s.unwrap_or(0.0) * 1e3,
            calm.variability,
        );
        let max = (calm.usual + headroom).ceil();
        let low = self.low(&calm, max).filter(|low| calm.known && (low.most as f64) < max);
        ServiceLimits {
            waiting_max: calm.known.then_some(max as u64),
            waiting_low: low,
            onset: low.and_then(|_| onset(&calm)),
            pending: low.map_or_else(Pending::default, |_| calm.pending),
            min_rate: Some(self.min_rate()),
            why: Why {
                shedding: false,
                since: calm.since,
                alarmed: calm.evidence,
                cause: None,
                text,
            },
            ..ServiceLimits::default()
        }
    }

    /// What holds once the limit of calm, `max`, has refused. `None` where nobody leaves: in a stall, and while
    /// more is tried than the headroom; and where no alarm has come in time.
    fn low(&self, calm: &Calm, max: f64) -> Option<Low> {
        // An overload is alarmed by then. What is none may be a dependency that has become slow.
        if self.full_s > LASTING_SECONDS || calm.stalls || calm.tried > 0.0 {
            return None;
        }
        let low = calm.excess.min(LOW_HEADROOM * calm.headroom);
        // Behind a gateway: what usually comes in the time of a stall is no crowd. However long it lasts, that
        // the limit has refused, and who came, is not forgotten.
        let most = if calm.piles > 0.0 { (max - 1.0).max(1.0) } else { f64::INFINITY };
        let level = |jobs: f64| (calm.usual + calm.piles + jobs).ceil().min(most) as u64;
        Some(Low { most: level(low).max(1), rest: level(low * LOW_REST) })
    }

    /// Limits while shedding.
    fn shedding(&self, overload: &Overload, mode: Mode) -> ServiceLimits {
        let rate = rate(overload, mode);
        // Who is refused now would have asked only when so many more have been answered.
        let cause = overload.cause.unwrap_or(Cause::Earlier);
        let ceiling = overload.ceiling + overload.on_their_way;
        let ceiling = ceiling.round().max(1.0) as u64;
        let text = format!(
            "shedding: capacity {:.1}/s, {:.1} exchanges a connection, {:.0} in flight{}, \
             target {:.0}{} ({} {:.1} ms), rate {rate}{}; begun because {}",
            overload.capacity,
            overload.each,
            overload.in_flight,
            staying(overload),
            overload.target,
            in_proxies(overload),
            if overload.waits { "each waits" } else { "baseline" },
            overload.baseline_s * 1e3,
            if overload.only_repeated() { ", only repeated SYNs are too many" } else { "" },
            cause.text(),
        );
        let alarmed = overload.evidence.clone();
        ServiceLimits {
            rate: Some(rate),
            burst: (overload.queue + overload.a_turn).ceil().clamp(2.0, SHED_BURST_MAX) as u32,
            waiting_max: (mode == Mode::Enforce).then_some(ceiling),
            waiting_staying: overload.staying.round() as u64,
            // A full accept queue loses what comes, in silence, after the handshake.
            accept_queue_max_q10: ACCEPT_QUEUE_FULL_Q10,
            min_rate: Some(self.min_rate()),
            why: Why { shedding: true, since: overload.since, alarmed, cause: Some(cause), text },
            ..ServiceLimits::default()
        }
    }
}

/// By what a gate that hears of each request's end sees an overload before the next tick does. For as
/// long as the lower level may hold, and no longer.
fn onset(calm: &Calm) -> Option<Onset> {
    let response = Nanos::from_secs_f64(calm.baseline_s?);
    Some(Onset {
        // A fading peak is no new limit each tick.
        pace: Rate::per_second(calm.peak?.ceil()),
        response,
        usual: calm.usual.ceil() as u64,
        most: calm.beyond_chance.ceil() as u64,
        piles: calm.piles.ceil() as u64,
    })
}

/// Those in flight that no refusal brings down, in words.
fn staying(overload: &Overload) -> String {
    let jobs = overload.staying.round();
    if jobs < 1.0 { String::new() } else { format!(" ({jobs} on connections that stay)") }
}

/// Those who may be in proxies beside the target, in words.
fn in_proxies(overload: &Overload) -> String {
    let jobs = overload.in_proxies.round();
    if jobs < 1.0 { String::new() } else { format!(" and {jobs} in proxies") }
}

/// Connections per second to admit.
fn rate(overload: &Overload, mode: Mode) -> Rate {
    // A connection brings its exchanges with it: what it adds in flight is one.
    let departures = overload.departures;
    // Those who think come back: nobody new is let in for them meanwhile.
    let tau =
        (RATE_EVENTS / overload.capacity).max(TAU_SECONDS_MIN).max(TAU_CYCLES * overload.cycle_s);
    // What was let in and has not asked yet will: where handshakes take long, it is many, and as
    // many as come during one delay have to be on their way.
    let ahead = (overload.in_flight + overload.coming).max(0.0);
    let wanted = overload.target + overload.on_their_way;
    let correction = if mode == Mode::Shadow { 0.0 } else { (wanted - ahead) / tau };
    let mut rate = (departures + correction).max(RATE_SHARE_MIN * departures);
    if overload.workers_grow && mode == Mode::Enforce {
        // The accept queue tells at once of a worker that was started; what is completed, later.
        rate = rate.max(SEATS_AHEAD * departures.max(QUEUE_MAX));
    }
    // In shadow no queue drains by what we decide.
    let surplus = if mode == Mode::Shadow { 0.0 } else { ahead - wanted + overload.queue / 2.0 };
    let surplus = surplus.max(0.0) / tau;
    bounded(overload.echo_limit(surplus).map_or(rate, |most| rate.min(most)))
}

impl Controller for DefaultController {
    fn tick(&mut self, signals: &Signals, mode: Mode) -> ServiceLimits {
        self.decide(signals, mode, Beside::default()).limits
    }

    fn decide(&mut self, signals: &Signals, mode: Mode, beside: Beside) -> Decision {
        let load = self.detector.tick(signals, mode, self.last.waiting_max, beside.refusals);
        let (gap, known) = (is_gap(signals), matches!(load, Load::Calm(_) | Load::Overload(_)));
        if known && !gap {
            let full = matches!(&load, Load::Calm(calm) if calm.refused);
            // It leaks: where few come, most ticks have no refusal. A tick that is late has seen no more than another.
            let period = period_s(signals);
            let before = self.period_s.replace(period).unwrap_or(period);
            let seconds = period.min(LATE_TICKS * before);
            let seconds = if full { seconds } else { -seconds };
            self.full_s = (self.full_s + seconds).clamp(0.0, FULL_SECONDS_MAX);
        }
        match load {
            Load::Unknown => {
                self.last.why.text = "held: counts or in-flight are not known now".to_owned();
            }
            Load::Lost(since) => {
                let text = "no limits: counts or in-flight have been unknown for long".to_owned();
                let why = Why { shedding: false, since, alarmed: Vec::new(), cause: None, text };
                self.last = ServiceLimits { why, ..ServiceLimits::default() };
            }
            Load::Calm(calm) => self.last = self.calm(calm),
            Load::Overload(overload) => self.last = self.shedding(&overload, mode),
        }
        if known && gap {
            self.last.why.text.push_str(", after a gap");
        }
        Decision {
            limits: self.last.clone(),
            fresh: self.detector.is_fresh(),
            ..Decision::default()
        }
    }

    fn save(&self) -> Option<serde_json::Value> {
        self.detector.kept()
    }

    fn restore(&mut self, value: serde_json::Value, age: Nanos) -> bool {
        self.detector.take(&value, age).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::tests::{calm, tick as signals};

    /// After a second of refusals it ends: what has not alarmed by then may need more in flight. As many
    /// ticks without one, and it is there again.
    #[test]
    fn the_limit_is_tight_while_it_refuses_for_a_second_at_most() {
        let mut controller = calm();
        let mut tick = |n: u64, refused: u64| {
            let mut signals = signals(400 + n, (20, 20, 2), 10);
            if let Some(counts) = &mut signals.balance.counts {
                (counts.value.offered, counts.value.refused) = (20 + refused, refused);
            }
            controller.tick(&signals, Mode::Enforce)
        };
        for n in 0..10 {
            let limits = tick(n, 1);
            assert!(!limits.why.shedding, "{}", limits.why.text);
            let (max, low) = (limits.waiting_max.unwrap(), limits.waiting_low.unwrap());
            assert!(low.rest < low.most && 2 * low.most <= max + 2, "{low:?} of {max}");
            assert!(low.rest > 2, "what is usual ends it: {low:?}");
            let onset = limits.onset.unwrap();
            let seen = (onset.usual, onset.most, onset.pace.get());
            assert_eq!(seen, (2, 128, 200.0), "a burst of 100 is none");
        }
        for limits in [tick(10, 1), tick(11, 1)] {
            assert_eq!((limits.waiting_low, limits.onset), (None, None));
        }
        assert!(tick(12, 0).waiting_low.is_none(), "a tick without one");
        assert!((13..16).any(|n| tick(n, 0).waiting_low.is_some()));
    }

    /// What comes to a full accept queue is lost in silence after its handshake, and what comes to any other is not.
    #[test]
    fn while_it_sheds_no_accept_queue_runs_over() {
        let mut controller = calm();
        let mut shed = (0..100).map(|n| {
            controller.tick(&signals(400 + n, (200, 20, 10 + 180 * n), 500), Mode::Enforce)
        });
        let limits = shed.find(|limits| limits.why.shedding).unwrap();
        assert_eq!(limits.accept_queue_max_q10, 1024);
    }

    /// In a tick of 0.8 s, for which nobody has looked, no alarm could come.
    #[test]
    fn a_tick_that_is_late_does_not_end_it() {
        let mut controller = calm();
        let mut tick = |ms: u64, period: u64| {
            let mut signals = signals(400, (20, 20, 2), 10);
            (signals.now, signals.period) = (Nanos::from_millis(ms), Nanos::from_millis(period));
            if let Some(counts) = &mut signals.balance.counts {
                (counts.value.offered, counts.value.refused) = (20 + period / 100, period / 100);
            }
            controller.tick(&signals, Mode::Enforce).waiting_low.is_some()
        };
        assert!((1..=4).all(|n| tick(40_000 + 100 * n, 100)));
        assert!(tick(41_200, 800), "only two tenths of a second of it count");
        assert!((1..=3).all(|n| tick(41_200 + 100 * n, 100)));
        assert!(!(4..=8).all(|n| tick(41_200 + 100 * n, 100)), "it ends all the same");
    }
}
