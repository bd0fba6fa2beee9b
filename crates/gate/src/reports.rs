// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What reports tell of the requests of one service that are in flight.
//!
//! A request is in flight from its admission until the server is done with it. Only its report says
//! when that was, and it comes later: when the client has received everything, and never for some.
//! Neither may keep the limit shut, and no few requests may change what holds for all others:
//!
//! - **Lost, or slow to be reported**: where requests that began later are reported, one that is older
//!   than the *margin* is *overtaken*. It counts as completed, with a time that is not known, whether its
//!   report is lost, its client slow, or it is one of the few that are long: these hold few seats. The
//!   margin is twice what 19 of 20 requests take of the server, and what reports are usually late. Of
//!   those within the margin the usual share is dead already; so many are subtracted. A report that comes
//!   after all says whether its request was dead. Where nothing is reported nothing is overtaken: that
//!   may be a server that hangs.
//! - **Late**: a report says how long the server took. A request is counted as in flight for that and
//!   for the delay of its report. So those who were admitted in an interval as long as the delay, and
//!   have had their time, are subtracted; at most as many as the server has lately served in such an
//!   interval, since a queue that grows is not reported yet. Only requests that were not overtaken
//!   count in the mean delay, so that it is short.
//!   What is left is never less than rate × time of the server (Little's law).
//! - **None while the limit is full**: those in flight may be dead, and then nobody would ever be let in
//!   whose report says so. So after a second, or what 19 of 20 requests take, one a second is let in past the limit
//!   where a least rate is let in at all ([`Reports::silent`]): the report of one of them frees all that
//!   were lost before it. A server that hangs gets these few more. With 16 of them reports are missing.
//! - **None at all**: then nothing is known of what is in flight ([`Reports::missing`]), and a signal
//!   that is missing never tightens.

use crate::counters::{Counter, Times};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use tidegate_model::totals::{HISTOGRAM_BUCKETS, Histogram};
use tidegate_units::Nanos;

/// Time in which throughput and delays are averaged, in seconds.
const AVERAGE_SECONDS: f64 = 1.0;
/// Time in which what was seen of times fades to half, in seconds; nothing fades while nothing comes.
const TIMES_HALF_LIFE: f64 = 2.0;
/// The same of the times of the server whose mean tells how many it has now: those of a backlog that it
/// has drained are not its times any more. It is at least so many delays of the reports, for a quick mean
/// of what was so a while ago only adds noise, and the time of so many responses; at most the one above.
const NOW_HALF_LIFE: f64 = 0.5;
const NOW_DELAYS: f64 = 2.0;
const NOW_RESPONSES: f64 = 16.0;
/// So many requests take no longer than what is usual.
const USUAL: f64 = 0.95;
/// So many reports are no later than what is usual: at least half of all clients are not slow.
const USUALLY_LATE: f64 = 0.5;
/// Reports come by batches and through queues: at least so much of the margin is for that, and at most,
/// in seconds.
const LATE_SECONDS: (f64, f64) = (0.1, 1.0);
/// Longest margin, in seconds. Of requests that usually take longer only so much is seen.
const MARGIN_SECONDS: f64 = 10.0;
/// Longest delay that is subtracted, in seconds. After longer silence reports are missing.
const DELAY_SECONDS: f64 = 5.0;
/// Time in which the highest throughput fades to half, in seconds.
const PEAK_HALF_LIFE: f64 = 30.0;
/// Time in which the share of dead requests is averaged, in seconds.
const DEAD_SECONDS: f64 = 10.0;
/// Time in which the share of reports that never come is averaged, in seconds, and the fewest of which there is one.
const LOST_SECONDS: f64 = 60.0;
const LOST_MIN: f64 = 16.0;
/// Ticks for which it is remembered how many were admitted.
const TICKS_MAX: usize = 256;
/// So many requests without one report in so long: reports are missing.
const MISSING_REQUESTS: u64 = 16;
/// Without a report for so long, and for what 19 of 20 requests take, one asks whether those in flight are
/// dead.
const SILENT_SECONDS: f64 = 1.0;
/// See [`MISSING_REQUESTS`]; at least the margin as well.
const MISSING_SECONDS: f64 = 5.0;

/// Times of late, of which older ones fade.
struct Lately {
    before: Histogram,
    weights: Box<[f64]>,
}

impl Default for Lately {
    fn default() -> Self {
        Self { before: Histogram::default(), weights: Box::new([0.0; HISTOGRAM_BUCKETS]) }
    }
}

impl Lately {
    /// Takes in what came since the last call.
    fn take(&mut self, now: Histogram, half_lives: f64) {
        let new = now.since(&self.before);
        if new.buckets.iter().all(|count| *count == 0) {
            return;
        }
        let keep = (-half_lives).exp2();
        for (weight, count) in self.weights.iter_mut().zip(&new.buckets) {
            *weight = *weight * keep + *count as f64;
        }
        self.before = now;
    }

    /// The time that this share of them does not exceed, in seconds; 0 before there is one.
    fn quantile(&self, share: f64) -> f64 {
        let wanted = share * self.weights.iter().sum::<f64>();
        let mut seen = 0.0;
        let found = self.weights.iter().position(|weight| {
            seen += weight;
            *weight > 0.0 && seen >= wanted
        });
        found.map_or(0.0, |bucket| Histogram::value(bucket).as_secs_f64())
    }

    /// Their mean, in seconds, where none counts for more than that.
    fn mean_up_to(&self, most: f64) -> f64 {
        let all: f64 = self.weights.iter().sum();
        let time = |bucket| Histogram::value(bucket).as_secs_f64().min(most);
        let each = self.weights.iter().enumerate();
        let sum: f64 = each.map(|(bucket, weight)| weight * time(bucket)).sum();
        if all > 0.0 { sum / all } else { 0.0 }
    }
}

/// What a tick remembers of the one before.
#[derive(Default)]
struct Pace {
    at: Option<Nanos>,
    answered: u64,
    ended: u64,
    reported: u64,
    delay_ns: u64,
    overtaken: u64,
    alive: u64,
    late_after_all: u64,
    /// Of the requests in flight that were reported lately: the sum of their delays in seconds, and
    /// how many.
    delay: (f64, f64),
    took: Lately,
    took_now: Lately,
    late: Lately,
    /// Highest throughput of late, per second.
    peak: f64,
    /// Of the requests that ended lately: those that were dead before, and all.
    dead: (f64, f64),
    /// The same of those that were never reported.
    lost: (f64, f64),
    /// Times of ticks, and how many had been admitted.
    admitted: VecDeque<(Nanos, u64)>,
}

impl Pace {
    /// The share of requests that are overtaken when the server is done with them.
    fn dead_share(&self) -> f64 {
        let (dead, all) = self.dead;
        if all > 0.0 { (dead / all).clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Mean delay of reports, in seconds.
    fn delay_s(&self) -> f64 {
        let (sum, number) = self.delay;
        if number > 0.0 { sum / number } else { 0.0 }
    }

    /// Requests that had been admitted at that time: between two ticks as many as if they came evenly.
    fn admitted_at(&self, then: f64) -> f64 {
        let after = self.admitted.partition_point(|(at, _)| at.as_secs_f64() <= then);
        let at = |place: usize| {
            self.admitted.get(place).map(|(at, total)| (at.as_secs_f64(), *total as f64))
        };
        match (after.checked_sub(1).and_then(at), at(after)) {
            (Some((from, less)), Some((to, more))) => {
                less + (more - less) * (then - from) / (to - from)
            }
            (one, other) => one.or(other).map_or(0.0, |(_, total)| total),
        }
    }

    /// What is more since the last tick than a counter had then.
    fn more(before: &mut u64, now: u64) -> f64 {
        now.saturating_sub(std::mem::replace(before, now)) as f64
    }
}

/// What reports tell of one service.
#[derive(Default)]
pub(crate) struct Reports {
    /// Admitted, not reported and not overtaken; only those that are followed.
    present: AtomicU64,
    /// Of them, those that the server is done with.
    delayed: AtomicU64,
    missing: AtomicBool,
    /// Times of the server, also of those that were overtaken.
    took: Times,
    /// What lay between the end of these and their reports.
    late: Times,
    /// Those that were in flight when their report came, and the sum of its delays.
    reported: Counter,
    delay_ns: Counter,
    /// Were in flight, and are not any more.
    ended: Counter,
    overtaken: Counter,
    /// Of these, those that were reported after all.
    late_after_all: Counter,
    /// Of these, those that turned out to be with the server for longer than the margin.
    alive: Counter,
    margin_ns: AtomicU64,
    /// What 19 of 20 requests take, with the usual way of their reports.
    usual_ns: AtomicU64,
    /// The latest beginning of a request that was reported.
    latest_ns: AtomicU64,
    /// When something was reported.
    heard_ns: AtomicU64,
    /// Whatever began before is overtaken.
    overtaken_ns: AtomicU64,
    /// Requests since the last report, and when the first of them came.
    unreported: AtomicU64,
    silent_ns: AtomicU64,
    /// Responses per second, as bits of an f64.
    throughput: AtomicU64,
    pace: Mutex<Pace>,
}

impl Reports {
    /// A request goes to the server.
    pub(crate) fn begin(&self) {
        self.present.fetch_add(1, Relaxed);
    }

    /// A report of it is expected from now on.
    pub(crate) fn expect(&self, now: Nanos) {
        if self.unreported.fetch_add(1, Relaxed) == 0 {
            self.silent_ns.store(now.0, Relaxed);
        }
    }

    /// It will not be followed.
    pub(crate) fn leave(&self) {
        // Below zero only if a request left twice, which the table does not let happen.
        let less = |present: u64| present.checked_sub(1);
        let _ = self.present.fetch_update(Relaxed, Relaxed, less);
    }

    /// No server had it: its report tells nothing of the others, neither how long they take nor that they are late.
    pub(crate) fn withdraw(&self) {
        self.leave();
        let less = |unreported: u64| unreported.checked_sub(1);
        let _ = self.unreported.fetch_update(Relaxed, Relaxed, less);
    }

    /// The same of one that was not in flight any more.
    pub(crate) fn withdraw_late(&self) {
        self.late_after_all.one();
    }

    /// The report of a request in flight, which took so long of the server.
    pub(crate) fn complete(&self, (started, now): (Nanos, Nanos), took: Nanos) {
        self.leave();
        self.ended.one();
        let delay = self.learn((started, now), took);
        self.reported.one();
        self.delay_ns.add(delay.0.min(Nanos::from_secs_f64(DELAY_SECONDS).0));
    }

    /// The same of one that was not in flight any more.
    pub(crate) fn complete_late(&self, times: (Nanos, Nanos), took: Nanos) {
        self.learn(times, took);
        self.late_after_all.one();
        if took.0 >= self.margin_ns.load(Relaxed) {
            self.alive.one();
        }
    }

    /// How late the report is. One that is about an older request than others tells nothing of what
    /// comes now.
    fn learn(&self, (started, now): (Nanos, Nanos), took: Nanos) -> Nanos {
        if self.latest_ns.fetch_max(started.0, Relaxed) <= started.0 {
            self.unreported.store(0, Relaxed);
            self.heard_ns.fetch_max(now.0, Relaxed);
        }
        let delay = now.since(started).since(took);
        self.took.record(took);
        self.late.record(delay);
        delay
    }

    /// Whether requests that began well after this time are reported.
    pub(crate) fn has_overtaken(&self, started: Nanos) -> bool {
        started.0 < self.overtaken_ns.load(Relaxed)
    }

    /// A request does not count as in flight any more: it was overtaken, or is too old.
    pub(crate) fn out_of_sight(&self, overtaken: bool) {
        self.leave();
        if overtaken {
            self.ended.one();
            self.overtaken.one();
        }
    }

    /// Requests in flight, as far as reports tell.
    pub(crate) fn in_flight(&self) -> u64 {
        if self.missing() {
            return 0;
        }
        self.present.load(Relaxed).saturating_sub(self.delayed.load(Relaxed))
    }

    /// Whether requests pass and nothing is reported: what is in flight is not known.
    pub(crate) fn missing(&self) -> bool {
        self.missing.load(Relaxed)
    }

    /// Whether reports came, and none has for longer than one takes.
    pub(crate) fn silent(&self, now: Nanos) -> bool {
        let heard = self.heard_ns.load(Relaxed);
        let since = heard.max(self.silent_ns.load(Relaxed));
        let usual = Nanos(self.usual_ns.load(Relaxed));
        // Nothing is to be heard where nobody was let in.
        let owed = heard > 0 && self.unreported.load(Relaxed) > 0;
        owed && now.since(Nanos(since)) >= usual.max(Nanos::from_secs_f64(SILENT_SECONDS))
    }

    /// Responses per second.
    pub(crate) fn throughput(&self) -> f64 {
        f64::from_bits(self.throughput.load(Relaxed))
    }

    /// How late reports are on average, and what responses take of the server, the margin at most.
    pub(crate) fn usual(&self) -> (Nanos, Nanos) {
        let pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let margin = Nanos(self.margin_ns.load(Relaxed));
        let took_s = pace.took_now.mean_up_to(margin.as_secs_f64());
        (Nanos::from_secs_f64(pace.delay_s()), Nanos::from_secs_f64(took_s))
    }

    /// Of the reports of the last minute: the share that never came, or has not come yet; and how late the others were
    /// on average.
    pub(crate) fn quality(&self) -> (f64, Nanos) {
        let pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let (lost, of) = pace.lost;
        let share = if lost < LOST_MIN { 0.0 } else { (lost / of.max(1.0)).min(1.0) };
        (share, Nanos::from_secs_f64(pace.delay_s()))
    }

    /// Once a tick: how fast, how long, how late, how many are dead. The totals are those of the service.
    pub(crate) fn tick(&self, now: Nanos, admitted: u64, answered: u64) {
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let pace = &mut *pace;
        let seconds = pace.at.replace(now).map_or(0.0, |at| now.since(at).as_secs_f64());
        let done = Pace::more(&mut pace.answered, answered);
        let ended = Pace::more(&mut pace.ended, self.ended.get());
        let reported = Pace::more(&mut pace.reported, self.reported.get());
        let delay = Pace::more(&mut pace.delay_ns, self.delay_ns.get()) / Nanos::SECOND.0 as f64;
        let alive = Pace::more(&mut pace.alive, self.alive.get());
        let overtaken = Pace::more(&mut pace.overtaken, self.overtaken.get());
        let after_all = Pace::more(&mut pace.late_after_all, self.late_after_all.get());
        let (dead, lost) = (overtaken - alive, overtaken - after_all);
        let took = self.took.read();
        let quick_s = (NOW_DELAYS * pace.delay_s()).max(NOW_RESPONSES / self.throughput());
        let quick_s = quick_s.clamp(NOW_HALF_LIFE, TIMES_HALF_LIFE);
        pace.took_now.take(took.clone(), seconds / quick_s);
        pace.took.take(took, seconds / TIMES_HALF_LIFE);
        pace.late.take(self.late.read(), seconds / TIMES_HALF_LIFE);
        pace.admitted.push_back((now, admitted));
        if pace.admitted.len() > TICKS_MAX {
            pace.admitted.pop_front();
        }
        if seconds > 0.0 {
            let keep = (-seconds / AVERAGE_SECONDS).exp();
            let throughput = keep * self.throughput() + (1.0 - keep) * done / seconds;
            self.throughput.store(throughput.to_bits(), Relaxed);
            pace.peak = throughput.max(pace.peak * (-seconds / PEAK_HALF_LIFE).exp2());
            let (sum, number) = pace.delay;
            pace.delay = (keep * sum + delay, keep * number + reported);
            let keep = (-seconds / DEAD_SECONDS).exp();
            let (before, of) = pace.dead;
            pace.dead = ((keep * before + dead).max(0.0), keep * of + ended);
            let keep = (-seconds / LOST_SECONDS).exp();
            let (before, of) = pace.lost;
            pace.lost = ((keep * before + lost).max(0.0), keep * of + ended);
        }
        self.look(now, seconds, pace);
    }

    /// What the tick makes of that.
    fn look(&self, now: Nanos, period_s: f64, pace: &Pace) {
        let late_s = (2.0 * pace.late.quantile(USUALLY_LATE)).clamp(LATE_SECONDS.0, LATE_SECONDS.1);
        let usual_s = pace.took.quantile(USUAL) + late_s / 2.0;
        self.usual_ns.store(Nanos::from_secs_f64(usual_s).0, Relaxed);
        let margin_s = (2.0 * usual_s).min(MARGIN_SECONDS);
        let margin = Nanos::from_secs_f64(margin_s);
        self.margin_ns.store(margin.0, Relaxed);
        let overtaken = self.latest_ns.load(Relaxed).saturating_sub(margin.0);
        self.overtaken_ns.store(overtaken, Relaxed);
        let now_s = now.as_secs_f64();
        // Who is overtaken is found at a tick: half a period later, on average.
        let found_s = Nanos(overtaken).as_secs_f64() - period_s / 2.0;
        let since = pace.admitted_at(now_s) - pace.admitted_at(found_s);
        let there = self.throughput() * pace.took_now.mean_up_to(now_s - found_s);
        let dead = pace.dead_share() * (since - there).max(0.0);
        let over_s = now_s - pace.took_now.mean_up_to(margin_s);
        let over = pace.admitted_at(over_s) - pace.admitted_at(over_s - pace.delay_s());
        let late = (1.0 - pace.dead_share()) * over.min(pace.peak * pace.delay_s());
        let most = (self.present.load(Relaxed) as f64 - there).max(0.0);
        self.delayed.store((dead + late).min(most).round() as u64, Relaxed);
        let silent_s = now.since(Nanos(self.silent_ns.load(Relaxed))).as_secs_f64();
        let missing = self.unreported.load(Relaxed) >= MISSING_REQUESTS
            && silent_s >= MISSING_SECONDS.max(margin_s);
        self.missing.store(missing, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(of: &[(f64, u64)]) -> Histogram {
        let mut times = Histogram::default();
        for (seconds, count) in of {
            (0..*count).for_each(|_| times.record(Nanos::from_secs_f64(*seconds)));
        }
        times
    }

    /// Within 7 %, as a histogram tells times.
    fn is_near(found: f64, wanted: f64) -> bool {
        (found / wanted - 1.0).abs() < 0.07
    }

    #[test]
    fn what_is_usual_is_what_most_take_and_old_times_fade() {
        let mut lately = Lately::default();
        assert_eq!((lately.quantile(USUAL), lately.mean_up_to(1.0)), (0.0, 0.0));
        let first = seconds(&[(0.01, 960), (60.0, 40)]);
        lately.take(first.clone(), 0.05);
        assert!(is_near(lately.quantile(USUAL), 0.01), "few are long");
        assert!(is_near(lately.mean_up_to(1.0), 0.96 * 0.01 + 0.04));
        (0..1000).for_each(|_| lately.take(first.clone(), 0.05));
        assert!(is_near(lately.quantile(0.97), 60.0), "nothing came and nothing fades");
        let second = seconds(&[(0.01, 960), (60.0, 40), (1.0, 100)]);
        lately.take(second, 10.0);
        assert!(is_near(lately.quantile(0.05), 1.0), "after ten half-lives");
    }

    /// So many a second that take so long, reported at once.
    fn pass(reports: &Reports, now: &mut Nanos, (number, took): (u64, Nanos), seconds: u64) {
        let mut done = reports.reported.get();
        for _ in 0..10 * seconds {
            for _ in 0..number / 10 {
                reports.begin();
                reports.expect(*now);
                reports.complete((*now, *now + took), took);
                done += 1;
            }
            *now += Nanos::from_millis(100);
            reports.tick(*now, done, done);
        }
    }

    /// What the server took for a backlog is forgotten when it has drained; of few responses it takes longer.
    #[test]
    fn a_drained_backlog_is_no_time_of_now() {
        for (number, left) in [(800, 0.2..0.3), (20, 0.35..0.5)] {
            let (reports, mut now) = (Reports::default(), Nanos::from_secs(1000));
            pass(&reports, &mut now, (number, Nanos::SECOND), 10);
            assert!(reports.usual().1 > Nanos::from_millis(900), "{number}");
            pass(&reports, &mut now, (number, Nanos::from_millis(10)), 1);
            let took = reports.usual().1.as_secs_f64();
            assert!(left.contains(&took), "{number}: {took}");
        }
    }

    /// Whether they are dead is asked when 19 of 20 would have been reported, and not before.
    #[test]
    fn silence_is_as_long_as_responses_usually_take() {
        for (took, from_s, to_s) in [(0.01, 1.0, 1.1), (3.0, 3.0, 3.7), (12.0, 12.0, 13.5)] {
            let (reports, mut now) = (Reports::default(), Nanos::from_secs(1000));
            pass(&reports, &mut now, (100, Nanos::from_secs_f64(took)), 5);
            let last = now + Nanos::from_secs_f64(took);
            reports.begin();
            reports.expect(last);
            assert!(!reports.silent(last + Nanos::from_secs_f64(from_s - 0.1)), "{took}");
            assert!(reports.silent(last + Nanos::from_secs_f64(to_s)), "{took}");
        }
    }

    /// A report that is 10 min late, one request that took as long: neither moves the margin of others.
    #[test]
    fn one_request_changes_nothing_for_the_others() {
        let reports = Reports::default();
        let mut now = Nanos::from_secs(1000);
        let short = Nanos::from_millis(10);
        for step in 0..100_u64 {
            for _ in 0..20 {
                reports.begin();
                reports.expect(now);
                reports.complete((now, now + short), short);
            }
            if step == 50 {
                let long = (Nanos::from_secs(400), now);
                reports.complete_late(long, Nanos::from_secs(600));
                reports.begin();
                reports.complete(long, short);
            }
            now += Nanos::from_millis(100);
            reports.tick(now, 20 * (step + 1), 20 * (step + 1));
        }
        let margin = Nanos(reports.margin_ns.load(Relaxed)).as_secs_f64();
        assert!((0.1..0.13).contains(&margin), "{margin}");
        assert!(reports.delayed.load(Relaxed) <= 1);
    }
}
