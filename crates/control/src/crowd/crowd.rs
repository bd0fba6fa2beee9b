// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One destination: what a tick shows becomes an alarm, and a limit.

use super::demand::Demand;
use super::limit::{CrowdLimit, Limit, Shown, TakenBack};
use super::slow::{Seen, Slow, Took};
use crate::kept::number;
use serde_json::{Value, json};
use tidegate_units::Nanos;

/// A tick is no shorter, and after a pause no longer.
const PERIOD_S: (f64, f64) = (0.05, 5.0);
/// Time constant of the exchanges a connection, seconds.
const PER_CONNECTION_S: f64 = 30.0;
/// Raised whenever something that is kept changes its meaning.
const VERSION: u64 = 1;
/// A crowd that was kept this recently goes on; an older one may be over.
const GOES_ON: Nanos = Nanos::from_secs(60);
/// Handshakes count for half after so long.
const HITS_FADE_S: f64 = 10.0;
/// Most exchanges a connection that are believed.
const PER_CONNECTION_MAX: f64 = 1e6;

/// What happened at one destination since the last tick.
#[derive(Clone, Copy, Debug, Default)]
pub struct CrowdTick<'a> {
    /// Time since the last tick: half a second is usual.
    pub period: Nanos,
    /// Exchanges completed, by size and duration.
    pub took: &'a [Took],
    /// New connections that came for the first time, admitted or not. Where a part of the connections is followed, this
    /// and the next two are that part of what is counted of all, and no whole numbers.
    pub first_attempts: f64,
    /// New connections refused, repeated attempts included.
    pub refused: f64,
    /// SYNs that took a token of the limit, where that is counted.
    pub tokens: f64,
    /// Connections whose handshake was completed.
    pub connected: u32,
    /// Exchanges begun.
    pub started: u32,
    /// Exchanges completed, or ended otherwise.
    pub completed: u32,
    /// Of them those that ended without a response: nothing carried them.
    pub given_up: u32,
    /// Segments with payload that the server sent, and those of them that it had sent before.
    pub segments: (u32, u32),
    /// Exchanges in flight.
    pub in_flight: u32,
    /// Of them those in flight for longer than [`CrowdSaid::overdue_after`].
    pub overdue: u32,
    /// A flood of SYNs: of the connections some, or nearly all, were not seen. A limit that is there goes on, because its law
    /// corrects itself by what its tokens lead to. Nothing begins, and nothing is learned.
    pub flooded: bool,
}

/// What is known after a tick.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CrowdSaid {
    /// Whether there is a flash crowd.
    pub alarm: bool,
    /// Share of the exchanges that are slow for their size.
    pub slow: f64,
    /// The limit from now on; none admits everybody.
    pub limit: Option<CrowdLimit>,
    /// Why there is no limit for a while: it was taken back.
    pub taken_back: Option<TakenBack>,
    /// Where nothing is limited: the limit that would hold what completes, during an alarm.
    pub would: Option<CrowdLimit>,
    /// From how long on an exchange in flight is to be counted as overdue; none: not yet known.
    pub overdue_after: Option<Nanos>,
}

/// The detector of one destination.
#[derive(Clone, Debug, Default)]
pub struct Crowd {
    slow: Slow,
    demand: Demand,
    limit: Limit,
    per_connection: f64,
    /// Handshakes that were completed lately: spoofed SYNs complete none.
    hits: f64,
    /// The alarm where nothing is limited.
    alarm: bool,
}

impl Crowd {
    /// One tick. Where limits are not executed (`enforced` false: shadow, or a twin that is only
    /// watched) the alarm ends when the destination is no longer slow.
    pub fn tick(&mut self, tick: &CrowdTick<'_>, enforced: bool) -> CrowdSaid {
        let s = tick.period.as_secs_f64().clamp(PERIOD_S.0, PERIOD_S.1);
        let on = self.alarm;
        self.hits *= libm::exp2(-tick.period.as_secs_f64() / HITS_FADE_S);
        self.hits += f64::from(tick.connected);
        if !tick.flooded {
            let learn = !on && !self.slow.is_suspicious();
            let more = tick.started.saturating_sub(tick.connected);
            let demand = tick.first_attempts + f64::from(more);
            let turns = (f64::from(tick.started), f64::from(tick.completed));
            self.demand.tick(s, demand, turns, learn);
        }
        self.slow.tick(tick.took, &Seen { s, overdue: f64::from(tick.overdue), crowd: on });
        if tick.connected > 0 {
            let asked = tick.started.saturating_sub(tick.given_up);
            let now = f64::from(asked) / f64::from(tick.connected);
            let weight = -libm::expm1(-s / PER_CONNECTION_S);
            self.per_connection += weight * (now.max(1.0) - self.per_connection);
        }
        let begins = !tick.flooded && self.slow.is_certain() && self.demand.is_up();
        let shown = self.shown(tick, s);
        let (limit, would) = if enforced {
            // Where nothing was limited before there may be an alarm without a limit.
            let slow = on && self.slow.is_slow();
            let goes_on = slow && !self.limit.is_on() && !tick.flooded;
            let limit = self.limit.tick(&shown, begins || goes_on);
            // A limit that was taken back ends no crowd.
            let without = self.limit.taken_back().is_some() && (begins || slow);
            self.alarm = self.limit.is_on() || without;
            (limit, None)
        } else {
            let would = self.limit.would(&shown);
            self.alarm = begins || (on && self.slow.is_slow());
            (None, self.alarm.then_some(would))
        };
        if on && !self.alarm {
            self.slow.again();
        }
        let overdue_after = self.slow.overdue_after_s().map(Nanos::from_secs_f64);
        let taken_back = self.limit.taken_back().filter(|_| enforced);
        let (alarm, slow) = (self.alarm, self.slow.share());
        CrowdSaid { alarm, slow, limit, taken_back, would, overdue_after }
    }

    /// What the next process needs, which would take the crowd for usual; `None`: there is none.
    #[must_use]
    pub fn kept(&self) -> Option<Value> {
        self.alarm.then(|| {
            json!({
                "version": VERSION,
                "slow": self.slow.kept(),
                "demand": self.demand.kept(),
                "limit": self.limit.kept(),
                "per_connection": self.per_connection,
            })
        })
    }

    /// Goes on from what was kept so long ago: what was usual, and the crowd, unless it was long ago. `None`: it is of no
    /// use, and nothing of it is taken.
    #[must_use]
    pub fn take(value: &Value, age: Nanos) -> Option<Self> {
        if value.get("version")?.as_u64()? != VERSION {
            return None;
        }
        let goes_on = age <= GOES_ON;
        let mut crowd = Self {
            slow: Slow::take(value.get("slow")?)?,
            demand: Demand::take(value.get("demand")?, goes_on)?,
            limit: Limit::take(value.get("limit")?, (goes_on, age.as_secs_f64()))?,
            per_connection: number(value, "per_connection", (0.0, PER_CONNECTION_MAX))?,
            hits: 0.0,
            alarm: goes_on,
        };
        if !goes_on {
            crowd.slow.rest();
        }
        Some(crowd)
    }

    /// Whether there is a flash crowd.
    #[must_use]
    pub const fn has_alarm(&self) -> bool {
        self.alarm
    }

    fn shown(&self, tick: &CrowdTick<'_>, s: f64) -> Shown {
        Shown {
            s,
            completed: f64::from(tick.completed.saturating_sub(tick.given_up)),
            in_flight: f64::from(tick.in_flight),
            came: tick.first_attempts,
            refused: tick.refused,
            tokens: tick.tokens,
            connected: f64::from(tick.connected),
            started: f64::from(tick.started),
            segments: (f64::from(tick.segments.0), f64::from(tick.segments.1)),
            usual_s: self.slow.usual_s(),
            is_slow: self.slow.is_slow(),
            per_connection: self.per_connection,
            flooded: tick.flooded,
        }
    }

    /// Ends an alarm, and a limit, and forgets what led there; what is usual stays known.
    pub(super) const fn rest(&mut self) {
        self.slow.rest();
        self.alarm = false;
        if self.limit.is_on() {
            self.limit.end();
        }
    }

    /// Whether it is slow at the moment, crowd or not.
    #[must_use]
    pub fn is_slow(&self) -> bool {
        self.slow.is_slow()
    }

    /// How much longer than usual its exchanges take lately, seconds.
    pub(super) const fn delay_s(&self) -> f64 {
        self.slow.delay_s()
    }

    /// Whether enough exchanges say that it is as fast as usual.
    pub(super) fn is_fast(&self) -> bool {
        self.slow.is_fast()
    }

    /// Demand per second that is usual.
    pub(super) fn usual(&self) -> f64 {
        self.demand.usual()
    }

    /// Exchanges a connection.
    pub(super) const fn per_connection(&self) -> f64 {
        self.per_connection.max(1.0)
    }

    /// So many times as much of what comes is seen from now on: by routers that were not heard before, or are not any more.
    pub(super) fn scale(&mut self, times: f64) {
        self.slow.scale(times);
        self.demand.scale(times);
        self.limit.scale(times);
    }

    /// What comes beyond the usual while it is slow or has an alarm, per second.
    pub(super) fn excess(&self) -> f64 {
        if self.alarm || self.is_slow() { self.demand.excess() } else { 0.0 }
    }

    /// Handshakes that were completed lately.
    pub(super) const fn hits(&self) -> f64 {
        self.hits
    }

    /// Twice as much as usual comes.
    pub(super) fn is_doubled(&self) -> bool {
        self.demand.is_doubled()
    }

    /// Demand per second, lately: first attempts, and exchanges on known connections.
    #[must_use]
    pub const fn demand(&self) -> f64 {
        self.demand.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half a second of a destination: so many exchanges of one size, in this bucket.
    fn half(n: u32, completed: u32, bucket: usize) -> (CrowdTick<'static>, Vec<Took>) {
        let took = vec![Took { class: 4, bucket, count: completed }];
        let tick = CrowdTick {
            period: Nanos::from_millis(500),
            first_attempts: f64::from(n),
            connected: n,
            started: n,
            completed,
            in_flight: 4,
            ..CrowdTick::default()
        };
        (tick, took)
    }

    /// Half seconds until the alarm.
    fn alarm_after(crowd: &mut Crowd, n: u32, completed: u32, bucket: usize) -> Option<u32> {
        let (tick, took) = half(n, completed, bucket);
        (1..=240).find(|_| crowd.tick(&CrowdTick { took: &took, ..tick }, false).alarm)
    }

    fn calm() -> Crowd {
        let mut crowd = Crowd::default();
        for _ in 0..5 {
            assert_eq!(alarm_after(&mut crowd, 15, 15, 36), None);
        }
        crowd
    }

    #[test]
    fn slow_and_more_is_a_crowd_and_each_alone_is_none() {
        let found = alarm_after(&mut calm(), 75, 25, 44);
        assert!(found.is_some_and(|n| (11..=14).contains(&n)), "{found:?}");
        assert_eq!(alarm_after(&mut calm(), 15, 15, 44), None, "a dependency that slows");
        assert_eq!(alarm_after(&mut calm(), 75, 75, 36), None, "a crowd that the link carries");
    }

    #[test]
    fn unenforced_it_ends_when_responses_are_fast_again() {
        let mut crowd = calm();
        assert!(alarm_after(&mut crowd, 75, 25, 44).is_some());
        let (tick, took) = half(15, 15, 36);
        let ended = (1..=60).find(|_| !crowd.tick(&CrowdTick { took: &took, ..tick }, false).alarm);
        assert!(ended.is_some_and(|n| n < 20), "{ended:?}");
    }

    #[test]
    fn enforced_it_limits_to_what_completes() {
        let mut crowd = calm();
        let (tick, took) = half(75, 25, 44);
        let tick = CrowdTick { took: &took, refused: 50.0, in_flight: 30, ..tick };
        let limits: Vec<_> = (0..80).filter_map(|_| crowd.tick(&tick, true).limit).collect();
        assert!(limits.len() > 60, "{}", limits.len());
        assert!(limits.iter().all(|limit| (15.0..=60.0).contains(&limit.rate)), "{limits:?}");
    }

    /// A limit that changes nothing is taken back: the crowd is there all the same, and the limit is tried again.
    #[test]
    fn a_limit_that_is_taken_back_ends_no_crowd() {
        let mut crowd = calm();
        let (tick, took) = half(75, 25, 44);
        let tick = CrowdTick { took: &took, refused: 50.0, in_flight: 3000, ..tick };
        let said: Vec<_> = (0..400).map(|_| crowd.tick(&tick, true)).collect();
        let begun = said.iter().position(|said| said.limit.is_some()).unwrap_or(400);
        assert!(begun < 40, "{begun}");
        let without = said[begun..].iter().filter(|said| said.limit.is_none());
        assert!((100..=300).contains(&without.clone().count()), "{}", without.count());
        assert!(said[begun..].iter().all(|said| said.alarm), "one crowd");
        for said in &said[begun..] {
            let why = said.limit.is_none().then_some(TakenBack::NoEffect);
            assert_eq!(said.taken_back, why);
        }
        let again = said[begun..].iter().skip_while(|said| said.limit.is_some());
        assert!(again.skip_while(|said| said.limit.is_none()).count() > 0, "tried again");
    }

    /// A crowd with a limit, and its tick.
    fn limited() -> (Crowd, CrowdTick<'static>, Vec<Took>) {
        let mut crowd = calm();
        let (tick, took) = half(75, 25, 44);
        let tick = CrowdTick { refused: 50.0, in_flight: 30, ..tick };
        for _ in 0..80 {
            crowd.tick(&CrowdTick { took: &took, ..tick }, true);
        }
        assert!(crowd.limit.is_on());
        (crowd, tick, took)
    }

    /// The next process goes on, with the limit in its first tick. After long it knows what was usual, and finds the crowd
    /// anew; without that it never would.
    #[test]
    fn a_crowd_goes_on_in_the_next_process() {
        let (before, tick, took) = limited();
        let tick = CrowdTick { took: &took, ..tick };
        let kept = before.kept().unwrap();
        let mut after = Crowd::take(&kept, Nanos::from_secs(5)).unwrap();
        assert!(after.kept().is_some_and(|after| after["limit"]["on"] == kept["limit"]["on"]));
        let said = after.tick(&tick, true);
        let (now, then) =
            (said.limit.unwrap().rate, before.clone().tick(&tick, true).limit.unwrap().rate);
        assert!(said.alarm && (now / then - 1.0).abs() < 0.2, "{now} after {then}");
        // Not limited any more, and there all the same.
        let mut shown = Crowd::take(&kept, Nanos::from_secs(5)).unwrap();
        assert!((0..40).all(|_| shown.tick(&tick, false).alarm));
        let mut late = Crowd::take(&kept, Nanos::from_secs(61)).unwrap();
        assert!(!late.has_alarm() && late.kept().is_none());
        let found = (1..=40).find(|_| late.tick(&tick, true).limit.is_some());
        assert!(found.is_some_and(|halves| (2..=16).contains(&halves)), "{found:?}");
        // Slow, and no more than usual.
        let mut calm = Crowd::take(&kept, Nanos::from_secs(61)).unwrap();
        let (few, slow) = half(15, 15, 44);
        assert!((0..40).all(|_| !calm.tick(&CrowdTick { took: &slow, ..few }, true).alarm));
        assert!(Crowd::take(&kept, Nanos::from_secs(60)).unwrap().has_alarm());
        let mut fresh = Crowd::default();
        assert!((0..400).all(|_| !fresh.tick(&tick, true).alarm));
        // It ends where what comes is usual again.
        let (tick, took) = half(15, 15, 36);
        let ended = (1..=60).find(|_| !after.tick(&CrowdTick { took: &took, ..tick }, true).alarm);
        assert!(ended.is_some(), "{after:?}");
    }

    #[test]
    fn what_cannot_be_is_refused_as_a_whole() {
        let (crowd, ..) = limited();
        assert!(calm().kept().is_none(), "no crowd, nothing to go on from");
        let kept = crowd.kept().unwrap();
        let taken = |path: &str, value: Value| {
            let mut bad = kept.clone();
            *bad.pointer_mut(path).unwrap() = value;
            Crowd::take(&bad, Nanos::ZERO).is_some()
        };
        assert!(taken("/version", json!(VERSION)) && !taken("/version", json!(VERSION + 1)));
        let numbers = [
            "/per_connection",
            "/slow/share",
            "/slow/usual_share",
            "/slow/usual_overdue",
            "/slow/usual_rate",
            "/slow/usual_s",
            "/demand/seen_s",
            "/demand/now",
            "/demand/scales/0/0",
            "/demand/scales/2/1",
            "/limit/begins",
            "/limit/since_end_s",
            "/limit/pause_s",
            "/limit/next_pause_s",
            "/limit/mu",
            "/limit/best",
            "/limit/came",
            "/limit/needs_s",
            "/slow/usual/0/2",
        ];
        for path in numbers {
            for bad in [json!(-1.0), json!(1e300), json!("1"), Value::Null] {
                assert!(!taken(path, bad.clone()), "{path}: {bad}");
            }
        }
        let parts = [
            "/slow",
            "/demand",
            "/limit",
            "/limit/on",
            "/slow/usual",
            "/demand/scales",
            "/slow/usual/0",
        ];
        for path in parts {
            for bad in [json!([[1]]), json!({}), json!(3), Value::Null] {
                assert!(!taken(path, bad.clone()), "{path}: {bad}");
            }
        }
        for place in [json!([16, 0, 1]), json!([0, 64, 1]), json!([-1, 0, 1]), json!([0, 0])] {
            assert!(!taken("/slow/usual/0", place.clone()), "{place}");
        }
        for value in [json!([]), json!(3), Value::Null] {
            assert!(Crowd::take(&value, Nanos::ZERO).is_none());
        }
    }

    /// In a flood of SYNs hardly a connection is seen: nothing begins by that, and nothing is learned.
    #[test]
    fn in_a_flood_a_limit_goes_on_and_none_begins() {
        let mut crowd = calm();
        let demand = crowd.demand();
        let (tick, took) = half(75, 25, 44);
        let tick = CrowdTick { took: &took, refused: 50.0, in_flight: 30, ..tick };
        let flood = CrowdTick { flooded: true, ..tick };
        for _ in 0..80 {
            let said = crowd.tick(&flood, true);
            assert!(said.limit.is_none() && !said.alarm, "{said:?}");
        }
        assert_eq!(crowd.demand(), demand);
        let begun = (0..80).find(|_| crowd.tick(&tick, true).limit.is_some());
        assert!(begun.is_some());
        for _ in 0..80 {
            let said = crowd.tick(&CrowdTick { connected: 10, started: 10, ..flood }, true);
            assert!(said.limit.is_some() && said.alarm, "{said:?}");
        }
    }

    /// Clients that are refused and come again are no more demand than they were.
    #[test]
    fn repeated_attempts_are_no_demand() {
        let mut crowd = calm();
        let (tick, took) = half(15, 15, 36);
        let tick = CrowdTick { took: &took, refused: 500.0, ..tick };
        (0..100).for_each(|_| _ = crowd.tick(&tick, false));
        assert!(crowd.demand() < 33.0, "{}", crowd.demand());
    }

    /// A tick that is late, early or empty does no harm.
    #[test]
    fn odd_ticks_are_survived() {
        let mut crowd = Crowd::default();
        let odd = [Took { class: 99, bucket: 99, count: u32::MAX }];
        for period in [Nanos::ZERO, Nanos(u64::MAX), Nanos::from_secs(1)] {
            let tick =
                CrowdTick { period, took: &odd, completed: u32::MAX, ..CrowdTick::default() };
            let said = crowd.tick(&tick, true);
            assert!(said.slow.is_finite() && said.limit.is_none(), "{said:?}");
        }
    }
}
