// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The meaning of the keys of `threshold`, `gap` and `percent`: ladders rise, higher priorities have
//! thresholds at least as high, and what is written is needed.

use super::Check;
use crate::requests::BucketConfig;
use crate::text::show_span;
use crate::throttle::*;
use crate::types::{ControlConfig, PolicyConfig};
use tidegate_model::PRIORITIES;
use tidegate_units::{Nanos, Share};

/// The keys of `policy` that only some policies know, and which.
const KEYS: [(&str, &[&str]); 15] = [
    ("schedule", &["the abacus policies"]),
    ("window", &["the abacus policies"]),
    ("period", &["the abacus policies", "percent"]),
    ("level", &["threshold"]),
    ("abatement", &["threshold"]),
    ("onset", &["threshold"]),
    ("discard", &["threshold"]),
    ("severities", &["threshold"]),
    ("extra_severity", &["threshold"]),
    ("preferred", &["threshold"]),
    ("share", &["threshold", "percent"]),
    ("gap", &["threshold", "gap"]),
    ("tolerance", &["gap"]),
    ("tolerance_at_start", &["gap"]),
    ("priorities", &["threshold", "gap"]),
];

fn given(policy: &PolicyConfig) -> [bool; KEYS.len()] {
    [
        policy.schedule.is_some(),
        policy.window.is_some(),
        policy.period.is_some(),
        policy.level.is_some(),
        policy.abatement.is_some(),
        policy.onset.is_some(),
        policy.discard.is_some(),
        policy.severities.is_some(),
        policy.extra_severity.is_some(),
        policy.preferred.is_some(),
        policy.share.is_some(),
        policy.gap.is_some(),
        policy.tolerance.is_some(),
        policy.tolerance_at_start.is_some(),
        policy.priorities.is_some(),
    ]
}

/// `a, b and c have`.
fn owners(of: &[&str]) -> String {
    let plural = of.len() > 1 || of[0].starts_with("the ");
    let names = match of {
        [one] => (*one).to_owned(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
        [] => String::new(),
    };
    format!("{names} {}", if plural { "have" } else { "has" })
}

impl Check<'_> {
    /// Keys of other policies.
    pub(super) fn policy_keys(&mut self, path: &str, policy: &PolicyConfig) {
        let name = if policy.is_abacus() { "the abacus policies" } else { &policy.name };
        for ((key, of), given) in KEYS.iter().zip(given(policy)) {
            if given && !of.contains(&name) {
                let (name, owners) = (&policy.name, owners(of));
                self.fault(
                    &format!("{path}.{key}"),
                    format!("the policy {name:?} has no {key}; {owners}"),
                );
            }
        }
    }

    /// The keys of the policies that throttle; `lowest`: the lowest priority that there is.
    pub(super) fn throttle(&mut self, path: &str, policy: &PolicyConfig, lowest: usize) {
        match policy.name.as_str() {
            "threshold"
                if self.priorities(path, policy, lowest) && self.thresholds(path, policy) =>
            {
                self.ladders(path, policy);
            }
            "gap" => {
                self.gap(&format!("{path}.gap"), policy.gap);
                if self.priorities(path, policy, lowest) {
                    self.tolerances(path, policy);
                }
            }
            "percent" => self.percent(path, policy),
            _ => {}
        }
    }

    /// What a controller says of a rate that the policy has not, or finds by itself.
    pub(super) fn rate_of_policy(
        &mut self,
        path: &str,
        policy: &PolicyConfig,
        control: &ControlConfig,
    ) {
        let name = &policy.name;
        let rates = [
            ("rate", control.rate.is_some()),
            ("ceiling", control.ceiling.is_some()),
            ("burst", control.burst.is_some()),
        ];
        let bucket = !["threshold", "gap", "percent"].contains(&name.as_str());
        for (key, _) in rates.into_iter().filter(|(_, given)| *given) {
            if !policy.takes_rate() {
                let message = format!("the policy {name:?} takes no rate, so {key} has no meaning");
                self.fault(&format!("{path}.{key}"), message);
            } else if key == "burst" && !bucket {
                let message = format!("the policy {name:?} has no bucket, so burst has no meaning");
                self.fault(&format!("{path}.{key}"), message);
            }
        }
        if control.name == "fixed" && control.rate.is_none() && !policy.has_own_limits() {
            self.fault(path, "the key \"rate\" is missing: the controller \"fixed\" keeps it");
        }
    }

    /// The policy of a bucket of requests. Rules know three ranks, routes of gateways all priorities.
    pub(super) fn bucket_policy(&mut self, path: &str, bucket: &BucketConfig, of_a_rule: bool) {
        let Some(policy) = &bucket.policy else { return };
        let known = BUCKET_POLICIES.map(str::to_owned);
        self.known(&format!("{path}.name"), "policy for requests", &policy.name, &known);
        if policy.action.is_some() {
            let why = "rules say how a request is refused (action); leave the key out";
            self.fault(&format!("{path}.action"), why);
        }
        if policy.level == Some(LevelSignal::AcceptQueue) {
            let why = "found accept-queue, and the connection of a request is accepted or waits with \
                       its request; allowed: in-flight, unfinished-work, waiting-time";
            self.fault(&format!("{path}.level"), why);
        }
        self.policy_keys(path, policy);
        self.throttle(path, policy, if of_a_rule { RANK_LOWEST } else { PRIORITIES - 1 });
    }

    /// Each priority once, and one that there is; false: what they say cannot be told.
    fn priorities(&mut self, path: &str, policy: &PolicyConfig, lowest: usize) -> bool {
        let before = self.errors.len();
        let mut seen = [None; PRIORITIES];
        for (i, own) in policy.priorities.iter().flatten().enumerate() {
            let at = format!("{path}.priorities[{i}]");
            let priority = usize::from(own.priority);
            if priority > lowest {
                let message = format!("found {priority}; requests have 0 to {lowest}");
                self.fault(&format!("{at}.priority"), message);
            }
            if let Some(first) = seen[priority].replace(i) {
                let message = format!("found {priority}, which is priorities[{first}] already");
                self.fault(&format!("{at}.priority"), message);
            }
            let gap = policy.name == "gap";
            let keys = [
                ("abatement", own.abatement.is_some(), gap),
                ("onset", own.onset.is_some(), gap),
                ("discard", own.discard.is_some(), gap),
                ("extra_severity", own.extra_severity.is_some(), gap),
                ("tolerance", own.tolerance.is_some(), !gap),
            ];
            for (key, _, _) in keys.iter().filter(|(_, given, foreign)| *given && *foreign) {
                let message = format!("the policy {:?} has no {key}", policy.name);
                self.fault(&format!("{at}.{key}"), message);
            }
            if !keys.iter().any(|(_, given, foreign)| *given && !foreign) {
                self.fault(&at, "nothing is different for this priority; leave it out");
            }
        }
        self.errors.len() == before
    }

    /// Unit, kind and presence of thresholds; false: there are no ladders yet.
    fn thresholds(&mut self, path: &str, policy: &PolicyConfig) -> bool {
        let before = self.errors.len();
        self.severities(path, policy);
        let (onsets, throttle) = policy.steps();
        let throttles = throttle != ThrottleConfig::None;
        if onsets.is_empty() && policy.discard.is_none() {
            let what = "the policy needs a discard threshold, or an onset with a share or a gap";
            self.fault(path, what);
        }
        let units =
            [("abatement", policy.abatement), ("onset", policy.onset), ("discard", policy.discard)];
        for (key, value) in units {
            self.unit(&format!("{path}.{key}"), policy, value);
        }
        for (i, own) in policy.priorities.iter().flatten().enumerate() {
            let at = format!("{path}.priorities[{i}]");
            for (key, value) in
                [("abatement", own.abatement), ("onset", own.onset), ("discard", own.discard)]
            {
                self.unit(&format!("{at}.{key}"), policy, value);
            }
            if own.onset.is_some() && onsets.is_empty() {
                let what = "nothing is throttled; say so for all (onset with share or gap)";
                self.fault(&format!("{at}.onset"), what);
            }
        }
        if !throttles && let Some(at) = self.idle_throttle(path, policy) {
            self.fault(&at, "nothing is throttled; give an onset with a share or a gap");
        }
        self.errors.len() == before
    }

    /// Where something is said of throttling, and there is none.
    fn idle_throttle(&self, path: &str, policy: &PolicyConfig) -> Option<String> {
        let mut own = policy.priorities.iter().flatten();
        let at = own.position(|own| own.extra_severity.is_some());
        let said = [
            ("extra_severity", policy.extra_severity.is_some()),
            ("preferred", policy.preferred.is_some()),
        ];
        let key = said.iter().find(|(_, said)| *said).map(|(key, _)| format!("{path}.{key}"));
        key.or_else(|| at.map(|at| format!("{path}.priorities[{at}].extra_severity")))
    }

    fn unit(&mut self, path: &str, policy: &PolicyConfig, value: Option<Threshold>) {
        let level = policy.level.unwrap_or_default();
        let what = match value {
            Some(Threshold::Number(number)) if level.is_time() => {
                format!(
                    "found {number}; with level: waiting-time a threshold is a duration, such as 500ms"
                )
            }
            Some(Threshold::Time(time)) if !level.is_time() => {
                let (time, level) = (show_span(time), level.name());
                format!(
                    "found {time}; with level: {level} a threshold is a whole number; a duration needs level: waiting-time"
                )
            }
            _ => return,
        };
        self.fault(path, what);
    }

    /// One share or one gap for each severity, all of the same kind, not falling.
    fn severities(&mut self, path: &str, policy: &PolicyConfig) {
        let Some(list) = &policy.severities else { return self.one_severity(path, policy) };
        let plain = [
            ("onset", policy.onset.is_some()),
            ("share", policy.share.is_some()),
            ("gap", policy.gap.is_some()),
        ];
        for (key, _) in plain.iter().filter(|(_, given)| *given) {
            let message = format!("severities say it; give them, or {key}");
            self.fault(&format!("{path}.{key}"), message);
        }
        let shares = list[0].share.is_some();
        let mut before: Option<&SeverityConfig> = None;
        for (i, step) in list.iter().enumerate() {
            let at = format!("{path}.severities[{i}]");
            self.unit(&format!("{at}.onset"), policy, Some(step.onset));
            self.gap(&format!("{at}.gap"), step.gap);
            match (step.share, step.gap) {
                (Some(_), Some(_)) | (None, None) => {
                    self.fault(&at, "a severity has a share or a gap");
                }
                (Some(_), None) if !shares => {
                    self.fault(&format!("{at}.share"), "the first severity has a gap, so all have");
                }
                (None, Some(_)) if shares => {
                    self.fault(&format!("{at}.gap"), "the first severity has a share, so all have");
                }
                _ => {}
            }
            if let Some(before) = before {
                self.rises(&at, before, step);
            }
            before = Some(step);
        }
    }

    fn rises(&mut self, at: &str, before: &SeverityConfig, step: &SeverityConfig) {
        if step.onset.level() <= before.onset.level() {
            self.fault(
                &format!("{at}.onset"),
                "the onset is not above that of the severity before",
            );
        }
        if step.share < before.share {
            self.fault(&format!("{at}.share"), "the share is below that of the severity before");
        }
        if step.gap < before.gap {
            self.fault(&format!("{at}.gap"), "the gap is shorter than that of the severity before");
        }
    }

    fn one_severity(&mut self, path: &str, policy: &PolicyConfig) {
        self.gap(&format!("{path}.gap"), policy.gap);
        match (policy.onset, policy.share, policy.gap) {
            (Some(_), None, None) => self.fault(
                &format!("{path}.onset"),
                "nothing is done at the onset; give a share or a gap, or leave it out",
            ),
            (_, Some(_), Some(_)) => {
                self.fault(&format!("{path}.share"), "found share and gap; give one of them");
            }
            (None, Some(_), None) => {
                self.fault(&format!("{path}.share"), "from which onset on? give an onset");
            }
            (None, None, Some(_)) => {
                self.fault(&format!("{path}.gap"), "from which onset on? give an onset");
            }
            _ => {}
        }
    }

    /// Each ladder rises, and that of a higher priority is at least as high.
    fn ladders(&mut self, path: &str, policy: &PolicyConfig) {
        let config = policy.threshold();
        let top = config.rises.last().copied().unwrap_or(0);
        let mut below: Option<(usize, Ladder)> = None;
        for priority in (0..PRIORITIES).rev() {
            let own = policy.priorities.iter().flatten();
            let place = own.clone().position(|own| usize::from(own.priority) == priority);
            if place.is_none() && below.is_some() {
                continue;
            }
            let at = place.map_or_else(|| path.to_owned(), |i| format!("{path}.priorities[{i}]"));
            let ladder = config.ladders[priority];
            self.ladder(&at, ladder, top);
            if let Some((lower, below)) = below {
                self.order(&at, ladder, (lower, below));
            }
            below = Some((priority, ladder));
        }
    }

    fn ladder(&mut self, at: &str, ladder: Ladder, top: u32) {
        if ladder.abatement > ladder.onset {
            self.fault(&format!("{at}.abatement"), "the abatement is above the onset");
        }
        let last = ladder.onset.saturating_add(top);
        if ladder.discard.is_some_and(|discard| discard < last) {
            self.fault(
                &format!("{at}.discard"),
                "the discard threshold is below the last onset, or the abatement",
            );
        }
    }

    fn order(&mut self, at: &str, ladder: Ladder, (lower, below): (usize, Ladder)) {
        let discard = |ladder: Ladder| ladder.discard.unwrap_or(u32::MAX);
        let falls = [
            ("abatement", ladder.abatement < below.abatement),
            ("onset", ladder.onset < below.onset),
            ("discard", discard(ladder) < discard(below)),
        ];
        if let Some((key, _)) = falls.iter().find(|(_, falls)| *falls) {
            let message = format!(
                "the {key} is below that of priority {lower}; a higher priority has thresholds at least as high"
            );
            self.fault(&format!("{at}.{key}"), message);
        }
        if ladder.extra_severity > below.extra_severity {
            let message =
                format!("a higher priority is not throttled harder than priority {lower}");
            self.fault(&format!("{at}.extra_severity"), message);
        }
    }

    fn gap(&mut self, path: &str, gap: Option<Nanos>) {
        let (min, max) = GAP_RANGE;
        if let Some(gap) = gap
            && (gap < min || gap > max)
        {
            let [found, min, max] = [gap, min, max].map(show_span);
            let message = format!(
                "found {found}; allowed: {min} to {max} (what is refused must be able to try again)"
            );
            self.fault(path, message);
        }
    }

    /// A higher priority tolerates at least as much, and none less than is used at the start.
    fn tolerances(&mut self, path: &str, policy: &PolicyConfig) {
        let config = policy.gap();
        for (i, own) in policy.priorities.iter().flatten().enumerate() {
            let priority = usize::from(own.priority);
            let below = config.tolerance.get(priority + 1);
            let below = below.copied().or(policy.tolerance).unwrap_or(TOLERANCE_DEFAULT);
            if own.tolerance.is_some_and(|tolerance| tolerance < below) {
                let message = format!(
                    "the tolerance is below that of lower priorities, {below}; a higher priority tolerates at least as much"
                );
                self.fault(&format!("{path}.priorities[{i}].tolerance"), message);
            }
        }
        let least = config.tolerance[PRIORITIES - 1];
        if config.tolerance_at_start > least {
            let message = format!("it is more than the least tolerance, {least}");
            self.fault(&format!("{path}.tolerance_at_start"), message);
        }
    }

    fn percent(&mut self, path: &str, policy: &PolicyConfig) {
        if let Some(period) = policy.period {
            self.span(&format!("{path}.period"), period, PERCENT_PERIOD_RANGE);
        }
        if policy.share.is_some_and(|share| share == Share::ZERO || share == Share::ONE) {
            let what = "allowed: more than 0% and less than 100% (what is refused must be able to try again)";
            self.fault(&format!("{path}.share"), what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_may_have_any_number_of_owners() {
        assert_eq!(owners(&["gap"]), "gap has");
        assert_eq!(owners(&["the abacus policies"]), "the abacus policies have");
        assert_eq!(owners(&["a", "b"]), "a and b have");
        assert_eq!(owners(&["a", "b", "c"]), "a, b and c have");
    }
}
