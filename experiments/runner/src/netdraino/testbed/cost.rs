// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What limits cost in a run, and what became of an attack on them, as metrics.

use super::stand::{Attacked, Look, Mark};
use crate::testbed::Metric;
use tidegate_units::Nanos;

const MINUTE: f64 = 60.0;

/// Sessions, CPU, marks and options between two marks.
pub(super) fn of((begin, end): (Mark, Mark)) -> Vec<Metric> {
    let seconds = (end.at_s - begin.at_s).max(1e-9);
    let count = |of: fn(&Mark) -> u64| of(&end).saturating_sub(of(&begin)) as f64;
    let minute = |of: fn(&Mark) -> u64| count(of) * MINUTE / seconds;
    let cpu = |of: fn(&Mark) -> Nanos| (of(&end) - of(&begin)).as_secs_f64() / seconds;
    let grown = |of: fn(&Mark) -> f64| (of(&end) - of(&begin)).max(0.0);
    let carried = count(|mark| mark.narrow.bytes).max(1.0);
    let limits = minute(|mark| mark.costs.limits)
        + grown(|mark| mark.costs.in_band.limits) * MINUTE / seconds;
    let marked = grown(|mark| mark.costs.in_band.marked);
    vec![
        ("control_packets", "1/min", minute(|mark| mark.costs.control.packets)),
        ("control_bytes", "bytes/min", minute(|mark| mark.costs.control.bytes)),
        ("control_share", "share", count(|mark| mark.costs.control.bytes) / carried),
        ("control_said", "1/min", minute(|mark| mark.costs.control.said)),
        ("control_heard", "1/min", minute(|mark| mark.costs.control.heard)),
        ("reports", "1/min", minute(|mark| mark.costs.reports)),
        ("limits", "1/min", limits),
        ("cpu_server", "share", cpu(|mark| mark.costs.server)),
        ("cpu_router", "share", cpu(|mark| mark.costs.router)),
        ("options", "share", grown(|mark| mark.costs.in_band.option_bytes) / carried),
        ("marked", "share", marked / count(|mark| mark.narrow.packets).max(1.0)),
    ]
}

/// What was sent to limits, and what of it was taken.
pub(super) fn attack(attacked: &Attacked, looks: &[Look]) -> Vec<Metric> {
    let Attacked { counts, limits, refused, marks } = attacked;
    let foreign =
        looks.iter().filter(|look| look.routers.iter().any(|router| router.foreign)).count();
    let taken = counts.taken
        + limits.saturating_sub(counts.allowed)
        + foreign as u64
        + marks.options
        + marks.marks;
    vec![
        ("attack_sent", "messages", counts.sent as f64),
        ("attack_allowed", "messages", counts.allowed as f64),
        ("attack_refused", "messages", *refused as f64),
        ("attack_taken", "messages", taken as f64),
        ("attack_answers", "messages", counts.answers as f64),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::stand::{Costs, RouterLook};
    use super::*;
    use tidegate_lab::{AttackCounts, ControlCounts, InBandSeen, MarkCounts, ShapedCounts};

    fn value(all: &[Metric], name: &str) -> f64 {
        all.iter().find(|metric| metric.0 == name).map(|metric| metric.2).unwrap()
    }

    #[test]
    fn costs_are_of_the_time_between_the_marks() {
        let mark = |at_s: f64, many: u64| Mark {
            at_s,
            narrow: ShapedCounts { bytes: 1_000_000 * many, packets: 1_000 * many, dropped: 0 },
            costs: Costs {
                control: ControlCounts {
                    packets: 100 * many,
                    bytes: 20_000 * many,
                    said: 30,
                    heard: 9,
                },
                reports: 40 * many,
                limits: 10 * many,
                server: Nanos::from_secs(many),
                router: Nanos::from_millis(300 * many),
                in_band: InBandSeen {
                    option_bytes: 1_200.0 * many as f64,
                    marked: 50.0 * many as f64,
                    limits: 2.0 * many as f64,
                    ..InBandSeen::default()
                },
            },
            ..Mark::default()
        };
        let all = of((mark(5.0, 1), mark(35.0, 3)));
        for (name, wanted) in [
            ("control_packets", 400.0),
            ("control_bytes", 80_000.0),
            ("control_share", 0.02),
            ("control_said", 0.0),
            ("reports", 160.0),
            ("limits", 48.0),
            ("cpu_server", 2.0 / 30.0),
            ("cpu_router", 0.02),
            ("options", 0.0012),
            ("marked", 0.05),
        ] {
            let found = value(&all, name);
            assert!((found - wanted).abs() < 1e-9, "{name}: {found}, {wanted} wanted");
        }
    }

    /// What S1 may give is not counted as taken; whatever else came about is.
    #[test]
    fn what_was_taken_is_what_nobody_was_allowed() {
        let counts = AttackCounts { sent: 50, allowed: 6, ..AttackCounts::default() };
        let clean = Attacked { counts, limits: 6, refused: 44, marks: MarkCounts::default() };
        let calm = [Look { routers: vec![RouterLook::default()], ..Look::default() }];
        assert_eq!(value(&attack(&clean, &calm), "attack_taken"), 0.0);
        let marks = MarkCounts { options: 3, marks: 1 };
        let bad = Attacked { limits: 8, marks, ..clean };
        let router = RouterLook { foreign: true, ..RouterLook::default() };
        let limited = [Look { routers: vec![router], ..Look::default() }];
        assert_eq!(value(&attack(&bad, &limited), "attack_taken"), 7.0);
    }
}
