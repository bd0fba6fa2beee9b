// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The meaning of the keys of the `abacus` policies: all of their times are whole periods, and the
//! ring of periods is finite. That holds for what is given and for the defaults.

use super::Check;
use crate::text::show_span;
use crate::types::{ABACUS_PERIOD_RANGE, ABACUS_PERIODS, ABACUS_SCHEDULE, PolicyConfig};
use tidegate_units::Nanos;

impl Check<'_> {
    pub(super) fn abacus(&mut self, path: &str, policy: &PolicyConfig) {
        if policy.action.is_some() {
            let name = &policy.name;
            let why =
                format!("{name} chooses between drop and reject by itself; leave the key out");
            self.fault(&format!("{path}.action"), why);
        }
        let period = policy.period.unwrap_or(Nanos::SECOND);
        let (min, max) = ABACUS_PERIOD_RANGE;
        if period < min || period > max {
            let [found, min, max] = [period, min, max].map(show_span);
            let message = format!("found {found}; allowed: {min} to {max}");
            self.fault(&format!("{path}.period"), message);
            return;
        }
        self.window(path, policy, period);
        match &policy.schedule {
            Some(schedule) => self.schedule(path, schedule, period),
            None if ABACUS_SCHEDULE.iter().all(|time| time.0.is_multiple_of(period.0)) => {}
            None => {
                let (found, default) =
                    (show_span(period), ABACUS_SCHEDULE.map(show_span).join(", "));
                let message = format!(
                    "found {found}, and the default schedule, {default}, is not in multiples of it; give a schedule, or another period"
                );
                self.fault(&format!("{path}.period"), message);
            }
        }
    }

    /// The ring of periods is finite, for a window that is given and for the one that is not.
    fn window(&mut self, path: &str, policy: &PolicyConfig, period: Nanos) {
        let unit = show_span(period);
        let longest = show_span(Nanos(period.0.saturating_mul(ABACUS_PERIODS - 1)));
        let fits = |time: Nanos| time.0 / period.0 < ABACUS_PERIODS;
        if let Some(window) = policy.window {
            if !window.0.is_multiple_of(period.0) || !fits(window) {
                let found = show_span(window);
                let message = format!(
                    "found {found}; allowed: multiples of the period {unit}, 0s to {longest}"
                );
                self.fault(&format!("{path}.window"), message);
            }
            return;
        }
        let schedule = policy.schedule.as_deref().unwrap_or(&ABACUS_SCHEDULE);
        let Some(last) = schedule.last().copied().filter(|last| !fits(*last)) else { return };
        let at = match &policy.schedule {
            Some(schedule) => format!("{path}.schedule[{}]", schedule.len() - 1),
            None => format!("{path}.period"),
        };
        let (last, most) = (show_span(last), ABACUS_PERIODS - 1);
        let message = format!(
            "the default window takes all of the schedule, up to {last}, which is more than {most} periods of {unit}; give a window, 0s to {longest}"
        );
        self.fault(&at, message);
    }

    fn schedule(&mut self, path: &str, schedule: &[Nanos], period: Nanos) {
        let unit = show_span(period);
        let mut before = Nanos::ZERO;
        for (i, time) in schedule.iter().enumerate() {
            let at = format!("{path}.schedule[{i}]");
            let found = show_span(*time);
            if *time <= before {
                let last = show_span(before);
                self.fault(
                    &at,
                    format!("found {found} after {last}; a schedule rises from above 0s"),
                );
            } else if !time.0.is_multiple_of(period.0) || time.0 / period.0 > u64::from(u16::MAX) {
                let most = show_span(Nanos(period.0.saturating_mul(u64::from(u16::MAX))));
                self.fault(
                    &at,
                    format!("found {found}; allowed: multiples of the period {unit}, up to {most}"),
                );
            }
            before = before.max(*time);
        }
    }
}
