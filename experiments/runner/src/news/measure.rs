// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a run to its metrics.

use super::setting::{Control, Server, Setting};
use tidegate_sim::news::{Alarm, Bin, Detector, Outcome, Why, truth};
use tidegate_units::Nanos;

/// Name, unit, value.
pub type Metric = (&'static str, &'static str, f64);

/// A sustained overload: true for this share of the next minute.
const SUSTAINED: f64 = 0.8;
const MINUTE: usize = 60;
/// A full packet.
const PACKET_BITS: f64 = 1500.0 * 8.0;
/// What ends before the crowd, or in the first minutes, is usual; seconds.
const USUAL_S: f64 = 590.0;
/// An alarm so long before the truth is about the same thing.
const EARLY_S: f64 = 10.0;

fn sum(bins: &[Bin], of: impl Fn(&Bin) -> u64) -> f64 {
    bins.iter().map(of).sum::<u64>() as f64
}

/// The mean of what is not 0.
fn mean_of_known(bins: &[Bin], of: impl Fn(&Bin) -> f64) -> Option<f64> {
    let known: Vec<f64> = bins.iter().map(of).filter(|value| *value > 0.0).collect();
    (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
}

fn seconds(at: Nanos) -> usize {
    (at.0 / 1_000_000_000) as usize
}

/// What became of clients, link and detectors under a control.
#[must_use]
pub fn of(setting: &Setting, out: &Outcome, real: bool) -> Vec<Metric> {
    let (from, to) = setting.window(out.bins.len() as f64 - 12.0);
    let bins = out.part(from as usize, to as usize);
    let s = (to - from).max(1.0);
    let crowd = &out.crowd;
    let of_came = |count: u64| count as f64 / crowd.came.max(1) as f64;
    let (offered, admitted) = (sum(bins, |bin| bin.offered), sum(bins, |bin| bin.admitted));
    let goodput = crowd.good as f64 / s;
    let connected = (crowd.came - crowd.unconnected).max(1) as f64;
    let mut all = vec![
        ("came", "1/s", crowd.came as f64 / s),
        ("offered", "1/s", offered / s),
        ("admitted", "1/s", admitted / s),
        ("goodput", "1/s", goodput),
        ("served", "1/s", crowd.served as f64 / s),
        ("loss", "share", sum(bins, |bin| bin.dropped) / sum(bins, |bin| bin.packets).max(1.0)),
        ("link", "share", sum(bins, |bin| bin.bytes) * 8.0 / s / (setting.link_mbit * 1e6)),
        ("timed_out", "share", crowd.timed_out as f64 / connected),
        ("timed_out_of_all", "share", of_came(crowd.timed_out)),
        ("unconnected", "share", of_came(crowd.unconnected)),
        ("response_p50", "s", crowd.quantile(0.5)),
        ("response_p99", "s", crowd.quantile(0.99)),
        ("busiest", "requests", out.busiest as f64),
        ("flows", "connections", out.flows.0 as f64),
        ("real", "share", f64::from(u8::from(real))),
    ];
    if setting.server != Server::Fast {
        all.push(("of_capacity", "ratio", goodput / setting.capacity));
    }
    all.extend(arr(setting, out, bins));
    all.extend(beside(setting, out, bins, s));
    all.extend(control(setting, out));
    all
}

/// Aggregate response rate of the fastest connections, before and during.
fn arr(setting: &Setting, out: &Outcome, bins: &[Bin]) -> Vec<Metric> {
    let calm = out.part(setting.at_s as usize / 2, setting.at_s as usize);
    let (before, during) = (mean_of_known(calm, |b| b.arr), mean_of_known(bins, |b| b.arr));
    let mut all = Vec::new();
    all.extend(before.map(|rate| ("arr_before", "kbit/s", rate / 1e3)));
    all.extend(during.map(|rate| ("arr", "kbit/s", rate / 1e3)));
    if let (Some(before), Some(during)) = (before, during) {
        all.push(("arr_fall", "share", 1.0 - during / before));
    }
    all
}

fn beside(setting: &Setting, out: &Outcome, bins: &[Bin], s: f64) -> Vec<Metric> {
    let bystander = &out.bystander;
    let mut all = vec![("bulk", "kbit/s", sum(bins, |bin| bin.bulk) * 8.0 / s / 1e3)];
    if bystander.came > 0 {
        let came = bystander.came as f64;
        let bits = f64::from(setting.queue) * PACKET_BITS;
        let full_queue_s = bits / (setting.link_mbit * 1e6);
        all.extend([
            ("bystanders", "connections", came),
            ("bystanders_refused", "connections", bystander.refused as f64),
            ("bystanders_refused_share", "share", bystander.refused as f64 / came),
            ("bystander_mean", "s", bystander.mean()),
            ("bystander_beyond_queue", "s", bystander.mean() - full_queue_s),
            ("bystander_p50", "s", bystander.quantile(0.5)),
        ]);
    }
    all
}

/// The alarms of what is in force: of the crowd's destination, where they are of one.
fn own<'a>(setting: &Setting, out: &'a Outcome) -> impl Iterator<Item = &'a Alarm> {
    let detector = match setting.control {
        Control::News | Control::NewsHsi => {
            Detector::Published(Nanos::from_secs_f64(setting.interval_s))
        }
        _ => Detector::Fast,
    };
    out.alarms.iter().filter(move |a| a.detector == detector && (a.key == 0 || a.key == out.keys.0))
}

fn control(setting: &Setting, out: &Outcome) -> Vec<Metric> {
    let mut all = Vec::new();
    if setting.trace > 0.0 {
        return all;
    }
    let at = Nanos::from_secs_f64(setting.at_s);
    let first = own(setting, out).find(|alarm| alarm.at >= at);
    if let Some(alarm) = first {
        let after = alarm.at.since(at).as_secs_f64();
        all.push(("detected", "s", after));
        all.push(("detected_intervals", "T", after / setting.interval_s));
        if let Some(why) = alarm.why {
            all.push(("says_link", "share", f64::from(u8::from(why == Why::Link))));
            all.push(("says_server", "share", f64::from(u8::from(why == Why::Server))));
        }
    }
    all.push(("early_alarms", "alarms", own(setting, out).filter(|a| a.at < at).count() as f64));
    if setting.until_s < setting.lasts_s {
        // The last second in which somebody was refused who came for the first time, or again.
        let end = setting.until_s as usize;
        let refused = |bin: &Bin| bin.refused > bin.offered / 50;
        let last = out.part(end, out.bins.len()).iter().rposition(refused);
        all.push(("full_use", "s", last.map_or(0.0, |last| last as f64 + 1.0)));
        let again = own(setting, out).filter(|a| seconds(a.at) >= end).count();
        all.push(("alarms_after", "alarms", again as f64));
    }
    all
}

/// Whether it hurts, second by second of an uncontrolled run.
fn hurts(setting: &Setting, out: &Outcome) -> Vec<bool> {
    let calm = if setting.trace > 0.0 { USUAL_S } else { setting.at_s - 10.0 };
    truth::seconds(&out.ended, out.keys.0, Nanos::from_secs_f64(calm), out.bins.len())
}

/// Whom ours refuses where it does not hurt without it: SYNs, repeated ones included, in seconds for which an alarm would be
/// false.
#[must_use]
pub fn refused_wrongly(setting: &Setting, (none, ours): (&Outcome, &Outcome)) -> Vec<Metric> {
    let truth = hurts(setting, none);
    let refused = |wrongly: bool| -> u64 {
        let all = ours.bins.iter().enumerate();
        all.filter(|(s, _)| truth::is_false(&truth, *s) == wrongly)
            .map(|(_, bin)| bin.refused)
            .sum()
    };
    vec![
        ("came", "connections", sum(&ours.bins, |bin| bin.came)),
        ("refused_wrongly", "SYNs", refused(true) as f64),
        ("refused_rightly", "SYNs", refused(false) as f64),
    ]
}

/// What one detector saw of an uncontrolled run.
#[must_use]
pub fn detector(
    setting: &Setting,
    out: &Outcome,
    (detector, real): (Detector, bool),
) -> Vec<Metric> {
    let truth = hurts(setting, out);
    let mine = |a: &&Alarm| a.detector == detector && (a.key == 0 || a.key == out.keys.0);
    let alarms: Vec<&Alarm> = out.alarms.iter().filter(mine).collect();
    let is_false = |a: &&&Alarm| truth::is_false(&truth, seconds(a.at));
    let mut all = vec![
        ("false_alarms", "alarms", alarms.iter().filter(is_false).count() as f64),
        ("alarms", "alarms", alarms.len() as f64),
        ("true_seconds", "s", truth.iter().filter(|now| **now).count() as f64),
        ("brown_outs", "times", truth::onsets(&truth).len() as f64),
        ("real", "share", f64::from(u8::from(real))),
    ];
    let hurts = sustained(&truth);
    all.push(("overloads", "times", f64::from(u8::from(hurts.is_some()))));
    if let Some(hurts) = hurts {
        let hurts = hurts as f64;
        // On at that time, or the first one after it.
        let found = alarms.iter().find(|a| {
            a.until.is_none_or(|until| until.as_secs_f64() >= hurts)
                || a.at.as_secs_f64() >= hurts - EARLY_S
        });
        let delay = found.map(|a| (a.at.as_secs_f64() - hurts).max(-EARLY_S));
        let in_time = delay.is_some_and(|delay| delay <= 10.0);
        all.push(("found_in_10_s", "share", f64::from(u8::from(in_time))));
        all.extend(delay.map(|delay| ("delay", "s", delay)));
    }
    all
}

/// When an overload begins that stays for a minute.
fn sustained(truth: &[bool]) -> Option<usize> {
    (0..truth.len().saturating_sub(MINUTE)).find(|second| {
        let minute = &truth[*second..*second + MINUTE];
        let share = minute.iter().filter(|now| **now).count() as f64 / MINUTE as f64;
        minute[0] && share >= SUSTAINED
    })
}

/// The course over time, a point for each `step` seconds.
#[must_use]
pub fn course(out: &Outcome, step: usize) -> Vec<(f64, Vec<Metric>)> {
    let one = |(index, bins): (usize, &[Bin])| {
        let s = bins.len() as f64;
        let mut all = vec![
            ("offered_at", "1/s", sum(bins, |bin| bin.offered) / s),
            ("admitted_at", "1/s", sum(bins, |bin| bin.admitted) / s),
            ("came_at", "1/s", sum(bins, |bin| bin.came) / s),
            ("goodput_at", "1/s", sum(bins, |bin| bin.good) / s),
            ("loss_at", "share", sum(bins, |b| b.dropped) / sum(bins, |b| b.packets).max(1.0)),
        ];
        all.extend(mean_of_known(bins, |bin| bin.arr).map(|arr| ("arr_at", "kbit/s", arr / 1e3)));
        (index as f64 * step as f64, all)
    };
    out.bins.chunks(step).enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_sim::news::Ended;

    /// It hurts from second 1,000 to 1,100 without control; ours refuses before that, then, and long after it.
    #[test]
    fn who_is_refused_where_it_hurts_is_not_refused_wrongly() {
        let mut none =
            Outcome { keys: (1, 2), bins: vec![Bin::default(); 1500], ..Outcome::default() };
        for ms in (0..1_500_000_u64).step_by(100) {
            let slow = (1_000_000..1_100_000).contains(&ms);
            let took = Nanos::from_millis(if slow { 400 } else { 100 });
            none.ended.push(Ended { at: Nanos::from_millis(ms), key: 1, bytes: 1_000, took });
        }
        let mut ours =
            Outcome { bins: vec![Bin { came: 10, ..Bin::default() }; 1500], ..Outcome::default() };
        for (second, refused) in [(700, 3), (1_050, 50), (1_400, 4)] {
            ours.bins[second].refused = refused;
        }
        let setting = Setting { trace: 101.0, ..Setting::default() };
        let all = refused_wrongly(&setting, (&none, &ours));
        let values: Vec<f64> = all.iter().map(|(_, _, value)| *value).collect();
        assert_eq!(values, [15_000.0, 7.0, 50.0]);
    }

    #[test]
    fn an_overload_that_stays_is_one_and_a_brown_out_is_none() {
        let mut truth = vec![false; 300];
        truth[20..30].fill(true);
        assert_eq!(sustained(&truth), None);
        truth[100..110].fill(true);
        truth[115..200].fill(true);
        assert_eq!(sustained(&truth), Some(100));
        assert_eq!(sustained(&[true; 10]), None);
    }
}
