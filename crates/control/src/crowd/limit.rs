// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limit while a crowd is there, and when it is over.
//!
//! What the bottleneck carries, μ, is measured: exchanges completed per second while more than enough
//! are in flight. The limit is μ, a little more or less, so that as many are in flight as Little's law
//! says the bottleneck needs (μ times their usual duration), and some for chance. That holds for a
//! link as for a server, and needs no number from anybody. Where segments are lost on the way, fewer
//! are held. A backlog drains within seconds: clients admitted before that wait for all of it.
//!
//! It is over when it refuses nobody any more, or what comes for the first time fits well: then lifting
//! it changes nothing. Coming back soon makes the next end slower. A limit that changes nothing about what is in flight is taken back.
//! Not so where hardly anything completes: a server that swaps, or still answers what its clients have given up, is stalled. Whoever is
//! let in then makes it worse, and how long it takes says nothing of the limit.
//!
//! A process that starts during a limit goes on from what the one before has measured.
//!
//! A token may lead to no exchange: its SYN was spoofed, or its connection stays idle. What completes is then less than
//! the limit, and a limit that followed it would sink round by round to nothing. So the limit is divided by the share
//! of its tokens that lead to an exchange. Where hardly one does, it is taken back.

use crate::RATE_CEILING;
use crate::kept::number;
use serde_json::{Value, json};

/// Time constant of μ, seconds.
const MU_S: f64 = 4.0;
/// The best μ, of the time before the crowd as well, fades with this one: a bottleneck that wastes its
/// capacity (retransmissions, swapping) completes less than it can.
const BEST_S: f64 = 120.0;
/// How much of the best is believed to be there still.
const BEST: f64 = 0.95;
/// In flight: what Little's law says, so many standard deviations of that, and so many more. A server that swaps
/// gets slower with each one more, and all wait for it; with fewer it is idle at times.
const DEVIATIONS: f64 = 2.0;
const SPARE: f64 = 3.0;
/// A link with a short queue drops before that many are in flight. Servers send again what it drops: with
/// more than this share of the segments the target shrinks, by a share a second, to no less than a
/// quarter; with less it grows back.
const LOST: f64 = 0.025;
const SHRINKS: f64 = 0.03;
const GROWS: f64 = 0.02;
const HELD_LEAST: f64 = 0.25;
/// Time constant of that share, seconds.
const LOST_S: f64 = 4.0;
/// How far the limit goes from μ, down and up; and down where segments are lost.
const GAIN: (f64, f64) = (0.3, 0.4);
const GAIN_LOST: f64 = 0.35;
/// What is missing is made up for in no less than this, seconds: three ticks, else limit and requests in flight chase each other.
const LOOP_S: f64 = 1.5;
/// What is in flight beyond so many times the target drains within this time, seconds, if a limit of this share of μ can do
/// that. Up to there it drains slowly: it may be slow readers, or long polls.
const DRAINS: f64 = 2.0;
const DRAINS_S: f64 = 3.0;
const DRAINS_AT: f64 = 0.1;
/// It drains if so much fewer are in flight after so long, in seconds of μ. What does not is held.
const LOOKS_S: f64 = 2.0;
const DRAINED: f64 = 0.1;
/// The bucket, in seconds of the rate. In a crowd it is empty; after it, it is what chance needs.
const BURST_S: f64 = 0.25;
/// What begins is what completes, within this share: nothing piles up, and nothing drains. If what completes is as fast as
/// usual, what is in flight beyond the target then is held, by slow readers or long polls, and says nothing of what the
/// bottleneck carries.
const STEADY: f64 = 0.15;
/// Where that is slow it may be held by a server that thrashes, which gets out of it with fewer, or be slow for another reason,
/// as with clients that are far away, for whom fewer change nothing. So the limit is no less than this share of the best there.
const SLOW_AT: f64 = 0.4;
/// Time constant of what comes, and the share of what is there from which on it is no crowd. A longer one keeps the limit after the
/// crowd: from five times the usual it has to fall far.
const CAME_S: f64 = 1.5;
const FITS: f64 = 0.85;
/// It fits, or nobody was refused, for so long: the crowd is over. At least, and at most.
const QUIET_S: (f64, f64) = (4.0, 64.0);
/// Coming back within this time is soon.
const SOON_S: f64 = 300.0;
/// So many times the target in flight, for so long, although clients are refused: it changes nothing.
const WITHOUT_EFFECT: f64 = 3.0;
const EFFECT_S: f64 = 30.0;
/// Of the best so little completes, while more than enough is in flight: it is stalled, unless as many complete as begin, and that
/// is something. For so long in all a limit holds then: it may be that responses are not seen any more.
const STALLED: f64 = 0.1;
const WORKS: f64 = 0.05;
const STALLED_S: f64 = 180.0;
/// Fewer in flight by this share are an effect.
const FALLS: f64 = 0.95;
/// Time constant of the share of tokens that lead to an exchange, seconds; and no smaller share raises the limit.
const LEADS_S: f64 = 4.0;
pub(super) const LEADS: f64 = 0.25;
/// So many of the last tokens count in any case, and fewer than so many say nothing.
const TOKENS: f64 = 20.0;
const TOKENS_LEAST: f64 = 5.0;
/// A smaller share than [`LEADS`], of this time and of [`TOKENS`]: others take the tokens of clients. For so long there is
/// no limit then: it is no fault of the limit, and the crowd is still there.
const UNUSED_S: f64 = 10.0;
const UNUSED_PAUSE_S: f64 = 10.0;
/// Of one tick the lower bound of this share counts as well: so many standard deviations below it. That of n tokens
/// is at most 1/(2√n).
const CERTAIN: f64 = 2.0;
/// For so long a limit without effect is not tried again: at first, and at most.
const PAUSE_S: (f64, f64) = (60.0, 480.0);

/// A limit on new connections to one destination.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrowdLimit {
    /// Connections per second.
    pub rate: f64,
    /// Bucket, in connections; at least 2: half of it is for first attempts.
    pub burst: f64,
    /// Share of its tokens that leads to an exchange, by which the rate is divided: from a quarter to 1.
    pub leads: f64,
}

/// What a tick shows of a destination.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shown {
    pub(super) s: f64,
    /// Exchanges completed in it.
    pub(super) completed: f64,
    pub(super) in_flight: f64,
    /// New connections that came for the first time.
    pub(super) came: f64,
    /// New connections refused in it, repeated attempts included.
    pub(super) refused: f64,
    /// SYNs that took a token, and what they led to: handshakes completed, exchanges begun.
    pub(super) tokens: f64,
    pub(super) connected: f64,
    pub(super) started: f64,
    /// Segments that the server sent in it, and those of them that it had sent before.
    pub(super) segments: (f64, f64),
    /// How long exchanges usually take, seconds.
    pub(super) usual_s: f64,
    /// Those that complete take longer than that.
    pub(super) is_slow: bool,
    /// Exchanges a connection.
    pub(super) per_connection: f64,
    /// Not all that came was seen: that it was little is no end of a crowd.
    pub(super) flooded: bool,
}

/// Why a limit was taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenBack {
    /// No fewer are in flight.
    NoEffect,
    /// Its tokens lead to no exchange.
    TokensUnused,
}

impl TakenBack {
    /// For people.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::NoEffect => "it changed nothing; it is tried again within minutes",
            Self::TokensUnused => {
                "hardly a SYN that passed led to a request: spoofed SYNs, or idle connections; it is tried again in seconds"
            }
        }
    }
}

/// Tokens, and what they led to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Led {
    tokens: f64,
    connected: f64,
    started: f64,
}

impl Led {
    pub(super) fn add(&mut self, shown: &Shown) {
        self.tokens += shown.tokens;
        self.connected += shown.connected;
        self.started += shown.started;
    }

    /// What is older than [`LEADS_S`] counts less and less, but for the last tokens.
    pub(super) fn fade(&mut self, s: f64) {
        let last = (TOKENS / self.tokens.max(f64::MIN_POSITIVE)).min(1.0);
        let keeps = libm::exp(-s / LEADS_S).max(last);
        self.tokens *= keeps;
        self.connected *= keeps;
        self.started *= keeps;
    }

    /// The share of the tokens that led to an exchange. Few tokens say nothing, and none that were not counted.
    pub(super) fn share(&self) -> f64 {
        match self.tokens {
            tokens if tokens < TOKENS_LEAST => 1.0,
            tokens => (self.connected.min(self.started) / tokens).min(1.0),
        }
    }
}

#[derive(Clone, Debug)]
struct Begun {
    quiet_s: f64,
    /// Whether what is in flight drains; since when that is looked at, and how many there were.
    drains: bool,
    looked_s: f64,
    then: f64,
    /// It has changed nothing for so long: no fewer than the least are in flight.
    no_effect_s: f64,
    /// For so long hardly anything has completed.
    stalled_s: f64,
    least: f64,
    /// What its tokens led to: lately, and since so long.
    lately: Led,
    led: Led,
    led_s: f64,
}

impl Begun {
    /// The share of the tokens that leads to an exchange. Once the spoofed SYNs end, the tick says so before the mean does: a limit
    /// that is still raised would let in several times what the bottleneck carries.
    fn leads(&self, shown: &Shown) -> f64 {
        let mut now = Led::default();
        now.add(shown);
        let at_least = now.share() - CERTAIN * 0.5 / libm::sqrt(now.tokens).max(1.0);
        let certain = if now.tokens < TOKENS_LEAST { LEADS } else { at_least };
        self.lately.share().max(certain).max(LEADS)
    }

    /// Looks at whether what is in flight drains.
    fn drain(&mut self, in_flight: f64, (mu, s): (f64, f64)) {
        if self.then == f64::MAX {
            self.then = in_flight;
        }
        self.looked_s += s;
        if self.looked_s >= LOOKS_S {
            self.drains = self.then - in_flight >= DRAINED * mu * self.looked_s;
            (self.looked_s, self.then) = (0.0, in_flight);
        }
    }

    /// Whether hardly a token leads to an exchange, once enough were seen.
    fn are_unused(&mut self, shown: &Shown, s: f64) -> bool {
        self.lately.fade(s);
        self.lately.add(shown);
        self.led.add(shown);
        self.led_s += s;
        if self.led_s < UNUSED_S || self.led.tokens < TOKENS {
            return false;
        }
        let share = self.led.share();
        (self.led, self.led_s) = (Led::default(), 0.0);
        share < LEADS
    }
}

#[derive(Clone, Debug)]
pub(super) struct Limit {
    mu: f64,
    best: f64,
    /// Exchanges begun per second, over the time of μ.
    begins: f64,
    came: f64,
    lost: f64,
    /// What is held of the target.
    held: f64,
    /// Known since so many seconds.
    seen_s: f64,
    /// More than the target is in flight, and none of it drains.
    is_held: bool,
    /// Hardly anything completes, and that is no measure.
    is_stalled: bool,
    begun: Option<Begun>,
    /// How long it has to be quiet.
    needs_s: f64,
    since_end_s: f64,
    /// How long no limit is to be tried, and how long the next time.
    pause_s: f64,
    next_pause_s: f64,
    taken_back: Option<TakenBack>,
}

impl Default for Limit {
    fn default() -> Self {
        Self {
            mu: 0.0,
            best: 0.0,
            begins: 0.0,
            came: 0.0,
            lost: 0.0,
            held: 1.0,
            seen_s: 0.0,
            is_held: false,
            is_stalled: false,
            begun: None,
            needs_s: QUIET_S.0,
            since_end_s: f64::MAX,
            pause_s: 0.0,
            next_pause_s: PAUSE_S.0,
            taken_back: None,
        }
    }
}

impl Limit {
    pub(super) const fn is_on(&self) -> bool {
        self.begun.is_some()
    }

    /// Why there is none, although it may be wanted: it was taken back, and is not tried yet.
    pub(super) fn taken_back(&self) -> Option<TakenBack> {
        self.taken_back.filter(|_| self.pause_s > 0.0)
    }

    /// A tick; `crowd`: the detector sees one. The limit until the next.
    pub(super) fn tick(&mut self, shown: &Shown, crowd: bool) -> Option<CrowdLimit> {
        let s = self.measure(shown);
        if self.begun.is_none() {
            if !crowd || self.pause_s > 0.0 {
                return None;
            }
            self.begin();
        }
        self.go_on(shown, s)
    }

    /// A tick in which nothing is limited; the limit that would hold what completes. What it changes is not seen, so
    /// it is not corrected by what is in flight.
    pub(super) fn would(&mut self, shown: &Shown) -> CrowdLimit {
        if self.is_on() {
            self.end();
        }
        self.measure(shown);
        limit(self.mu.max(BEST * self.best).max(0.1) / shown.per_connection.max(1.0))
    }

    /// What the bottleneck carries, for the process that comes next.
    pub(super) fn kept(&self) -> Value {
        json!({
            "on": self.is_on(),
            "mu": self.mu,
            "best": self.best,
            "begins": self.begins,
            "came": self.came,
            "needs_s": self.needs_s,
            "since_end_s": self.since_end_s.min(SOON_S),
            "pause_s": self.pause_s,
            "next_pause_s": self.next_pause_s,
            "tokens_unused": self.taken_back == Some(TakenBack::TokensUnused),
        })
    }

    /// Goes on from there, so many seconds later. `goes_on`: with the limit that was there, or the pause; else what
    /// came then says nothing of now. `None`: it is of no use.
    pub(super) fn take(value: &Value, (goes_on, age_s): (bool, f64)) -> Option<Self> {
        let rate = |name| number(value, name, (0.0, RATE_CEILING));
        let [mu, best, begins, came] = [rate("mu")?, rate("best")?, rate("begins")?, rate("came")?];
        let on = value.get("on")?.as_bool()?;
        let unused = value.get("tokens_unused")?.as_bool()?;
        let mut limit = Self {
            best: best * libm::exp(-age_s / BEST_S),
            needs_s: number(value, "needs_s", QUIET_S)?,
            since_end_s: number(value, "since_end_s", (0.0, SOON_S))? + age_s,
            pause_s: (number(value, "pause_s", (0.0, PAUSE_S.1))? - age_s).max(0.0),
            next_pause_s: number(value, "next_pause_s", PAUSE_S)?,
            ..Self::default()
        };
        if goes_on {
            (limit.mu, limit.begins, limit.came, limit.seen_s) = (mu, begins, came, MU_S);
        }
        let why = if unused { TakenBack::TokensUnused } else { TakenBack::NoEffect };
        limit.taken_back = (limit.pause_s > 0.0).then_some(why);
        if on && goes_on {
            let needs_s = limit.needs_s;
            limit.begin();
            limit.needs_s = needs_s;
        }
        Some(limit)
    }

    /// So many times as much of it is seen from now on.
    pub(super) fn scale(&mut self, times: f64) {
        for rate in [&mut self.mu, &mut self.best, &mut self.begins, &mut self.came] {
            *rate = (*rate * times).min(RATE_CEILING);
        }
    }

    /// What completes and comes; the seconds of the tick.
    fn measure(&mut self, shown: &Shown) -> f64 {
        let s = shown.s.max(1e-3);
        self.seen_s += s;
        let weight = -libm::expm1(-s / MU_S.min(self.seen_s));
        self.mu += weight * (shown.completed / s - self.mu);
        self.came += -libm::expm1(-s / CAME_S.min(self.seen_s)) * (shown.came / s - self.came);
        self.begins += weight * (shown.started / s - self.begins);
        // What completes under a limit that lets hardly anybody pass, or in a stall, is no measure of the best.
        let fades = if self.is_held || self.is_stalled { 0.0 } else { s / BEST_S };
        self.best = self.mu.max(self.best * (1.0 - fades).max(0.0));
        self.pause_s = (self.pause_s - s).max(0.0);
        self.since_end_s += if self.is_on() { 0.0 } else { s };
        s
    }

    fn begin(&mut self) {
        self.needs_s = match self.since_end_s < SOON_S {
            true => (2.0 * self.needs_s).min(QUIET_S.1),
            false => QUIET_S.0,
        };
        self.held = 1.0;
        let (lately, led) = (Led::default(), Led::default());
        self.begun = Some(Begun {
            quiet_s: 0.0,
            drains: true,
            looked_s: 0.0,
            then: f64::MAX,
            no_effect_s: 0.0,
            stalled_s: 0.0,
            least: f64::MAX,
            lately,
            led,
            led_s: 0.0,
        });
    }

    fn go_on(&mut self, shown: &Shown, s: f64) -> Option<CrowdLimit> {
        let (mu, best, came) = (self.mu, self.mu.max(BEST * self.best).max(0.1), self.came);
        let per_connection = shown.per_connection.max(1.0);
        let (sent, again) = shown.segments;
        if sent > 0.0 {
            self.lost += -libm::expm1(-s / LOST_S) * (again / sent - self.lost);
        }
        let change = if self.lost > LOST { -SHRINKS * s } else { GROWS * s };
        self.held = (self.held * (1.0 + change)).clamp(HELD_LEAST, 1.0);
        let begun = self.begun.as_mut()?;
        let little = !shown.flooded && !self.is_stalled && came * per_connection < FITS * best;
        let fits = shown.refused <= 0.0 || little;
        begun.quiet_s = if fits { begun.quiet_s + s } else { 0.0 };
        let needs = best * shown.usual_s;
        let target = self.held * (needs + DEVIATIONS * libm::sqrt(needs) + SPARE);
        let falls = shown.in_flight < FALLS * begun.least;
        let steady = (self.begins - mu).abs() <= STEADY * mu;
        let works = steady && mu >= WORKS;
        let stalls =
            shown.in_flight > target && mu < STALLED * self.best && !works && !shown.flooded;
        begun.stalled_s += if stalls { s } else { 0.0 };
        self.is_stalled = stalls && begun.stalled_s <= STALLED_S;
        let no_effect = shown.in_flight > WITHOUT_EFFECT * target && !falls && !self.is_stalled;
        begun.least = if falls { shown.in_flight } else { begun.least };
        begun.no_effect_s = match (self.is_stalled, no_effect) {
            (true, _) => begun.no_effect_s,
            (false, true) => begun.no_effect_s + s,
            (false, false) => 0.0,
        };
        let unused = begun.are_unused(shown, s) && !self.is_stalled;
        let unused = unused.then_some(TakenBack::TokensUnused);
        let leads = begun.leads(shown);
        begun.drain(shown.in_flight, (mu, s));
        let drains = begun.drains;
        if let Some(why) = (begun.no_effect_s > EFFECT_S).then_some(TakenBack::NoEffect).or(unused)
        {
            self.take_back(why);
            return None;
        }
        if begun.quiet_s >= self.needs_s {
            self.next_pause_s = PAUSE_S.0;
            self.end();
            return None;
        }
        // Slow readers neither delay nor lose anything. A server that thrashes delays; a queue that is too long delays and loses.
        let (room, down) = match self.lost > LOST {
            true => (target, GAIN_LOST),
            false if shown.in_flight > target && !shown.is_slow => (DRAINS * target, GAIN.0),
            false => (target, GAIN.0),
        };
        let off = ((target - shown.in_flight) / room).clamp(-1.0, 1.0);
        self.is_held = off < 0.0 && steady && !shown.flooded && !self.is_stalled;
        // What is too much drains at what completes now; what is missing is tried up to the best.
        let slowly = (best + off * (best - mu)) * (1.0 + down * off);
        let rate = if off >= 0.0 {
            best * (1.0 + off * GAIN.1.min(target / (best * LOOP_S)))
        } else if self.is_held && !shown.is_slow {
            best * (1.0 + down * off)
        } else if drains {
            let soon = mu - (shown.in_flight - DRAINS * target) / DRAINS_S;
            slowly.min(soon.max(DRAINS_AT * mu))
        } else if self.is_held {
            slowly.max(SLOW_AT * best)
        } else {
            slowly
        };
        let rate = rate.max(0.1) / (per_connection * leads);
        Some(CrowdLimit { leads, ..limit(rate) })
    }

    const fn take_back(&mut self, why: TakenBack) {
        self.pause_s = match why {
            TakenBack::NoEffect => self.next_pause_s,
            TakenBack::TokensUnused => UNUSED_PAUSE_S,
        };
        if matches!(why, TakenBack::NoEffect) {
            self.next_pause_s = (2.0 * self.next_pause_s).min(PAUSE_S.1);
        }
        self.taken_back = Some(why);
        self.end();
    }

    pub(super) const fn end(&mut self) {
        self.begun = None;
        (self.is_held, self.is_stalled) = (false, false);
        self.since_end_s = 0.0;
    }
}

/// A rate with its bucket.
pub(super) const fn limit(rate: f64) -> CrowdLimit {
    CrowdLimit { rate, burst: (rate * BURST_S).max(2.0), leads: 1.0 }
}

#[cfg(test)]
#[path = "limit_tests.rs"]
mod tests;
