// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The keys of the policies that throttle: `threshold`, `gap` and `percent`. What is written becomes a
//! ladder of thresholds for each priority; what is left out is derived.

use super::requests::BucketConfig;
use super::text;
use super::types::PolicyConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_model::{PRIORITIES, RANKS};
use tidegate_units::{Nanos, Share};

/// Most severities of a ladder (policy/algo/threshold.h: TG_SEVERITIES).
pub const SEVERITIES_MAX: usize = 3;
/// Largest threshold that is a number.
pub const THRESHOLD_MAX: u32 = 1_000_000_000;
/// Shortest and longest threshold that is a time.
pub const THRESHOLD_TIME_RANGE: (Nanos, Nanos) = (Nanos::from_micros(1), Nanos::from_secs(3600));
/// Shortest and longest gap: the longest is the lowest rate that may be set.
pub const GAP_RANGE: (Nanos, Nanos) = (Nanos::from_micros(1), Nanos::SECOND);
/// Largest tolerance, in gaps.
pub const TOLERANCE_MAX: f64 = 1000.0;
/// Tolerance where none is given, in gaps: what RFC 7415 calls a reasonable compromise.
pub const TOLERANCE_DEFAULT: f64 = 4.0;
/// Shortest and longest period in which `percent` counts.
pub const PERCENT_PERIOD_RANGE: (Nanos, Nanos) = (Nanos::from_millis(100), Nanos::from_secs(60));
/// The period where none is given (RFC 7339 names 5 to 10 s).
pub const PERCENT_PERIOD: Nanos = Nanos::from_secs(5);
/// Policies that may be a bucket's: those that serve requests (policy/policies.def).
pub const BUCKET_POLICIES: [&str; 4] = ["token_bucket", "threshold", "gap", "percent"];

/// What thresholds are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LevelSignal {
    /// Connections that wait for `accept`, of the listener that a SYN meets.
    AcceptQueue,
    /// Requests that wait for a response.
    InFlight,
    /// The larger of both: who waits for `accept` and has sent a request is in both.
    #[default]
    UnfinishedWork,
    /// Unfinished work times what one request takes of the service: the virtual waiting time. Thresholds
    /// are durations.
    WaitingTime,
}

impl LevelSignal {
    /// The word of the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AcceptQueue => "accept-queue",
            Self::InFlight => "in-flight",
            Self::UnfinishedWork => "unfinished-work",
            Self::WaitingTime => "waiting-time",
        }
    }

    /// Whether thresholds on it are durations.
    #[must_use]
    pub const fn is_time(self) -> bool {
        matches!(self, Self::WaitingTime)
    }
}

/// A threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    /// Connections or requests.
    Number(u32),
    /// Virtual waiting time.
    Time(Nanos),
}

impl Threshold {
    /// In the unit of the level: a number, or microseconds.
    #[must_use]
    pub fn level(self) -> u32 {
        match self {
            Self::Number(number) => number,
            Self::Time(time) => u32::try_from(time.0 / 1000).unwrap_or(u32::MAX),
        }
    }
}

/// One severity: from this onset on throttled so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SeverityConfig {
    /// Where it begins; rising from one to the next.
    #[serde(with = "text::threshold")]
    #[schemars(with = "text::ThresholdText")]
    pub onset: Threshold,
    /// This share is refused.
    #[serde(default, with = "text::share_opt", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "text::ShareText")]
    pub share: Option<Share>,
    /// At least so much time between two that are let through.
    #[serde(default, with = "text::span_opt", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "text::SpanText")]
    pub gap: Option<Nanos>,
}

/// What is different for a priority and those above it, up to the next that is named.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PriorityConfig {
    /// 0 is the highest, 7 the lowest. In a bucket that a rule names: 0 protected, 1 any other, 2 later
    /// requests of a connection where the rule closes it.
    #[schemars(range(max = PRIORITIES - 1))]
    pub priority: u8,
    /// `threshold`: throttling ends below it.
    #[serde(default, with = "text::threshold_opt", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "text::ThresholdText")]
    pub abatement: Option<Threshold>,
    /// `threshold`: throttling begins at it; further severities keep their distance.
    #[serde(default, with = "text::threshold_opt", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "text::ThresholdText")]
    pub onset: Option<Threshold>,
    /// `threshold`: all are refused from it on.
    #[serde(default, with = "text::threshold_opt", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "text::ThresholdText")]
    pub discard: Option<Threshold>,
    /// `threshold`: so many severities above the one that is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u8", range(max = SEVERITIES_MAX - 1))]
    pub extra_severity: Option<u8>,
    /// `gap`: how early it may come, in gaps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "f64", range(min = 0.0, max = TOLERANCE_MAX))]
    pub tolerance: Option<f64>,
}

/// The ladder of one priority, in the unit of the level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ladder {
    /// Throttling ends below it; without throttling, discarding.
    pub abatement: u32,
    /// Throttling begins at it.
    pub onset: u32,
    /// All are refused from it on.
    pub discard: Option<u32>,
    /// Severities above the one that is reached.
    pub extra_severity: u8,
}

/// What is done from the onset on, one value for each severity.
#[derive(Clone, Debug, PartialEq)]
pub enum ThrottleConfig {
    /// Nothing: only discards.
    None,
    /// This share is refused.
    Share(Vec<Share>),
    /// At least so much time between two that are let through.
    Gap(Vec<Nanos>),
}

/// The parameters of `threshold`, defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct ThresholdConfig {
    /// One ladder for each priority.
    pub ladders: [Ladder; PRIORITIES],
    /// From the first onset to those of further severities.
    pub rises: Vec<u32>,
    /// What is done from the onset on.
    pub throttle: ThrottleConfig,
    /// Bit i: priority i is never throttled.
    pub preferred: u8,
}

/// The parameters of `gap`, defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct GapConfig {
    /// The least gap; `None`: only the rate of the controller holds.
    pub gap: Option<Nanos>,
    /// Tolerance of each priority, in gaps.
    pub tolerance: [f64; PRIORITIES],
    /// What of it is used when control begins, in gaps.
    pub tolerance_at_start: f64,
}

impl PolicyConfig {
    /// Whether an operator set its limits by hand: then it needs no rate.
    #[must_use]
    pub fn has_own_limits(&self) -> bool {
        match self.name.as_str() {
            "threshold" => true,
            "gap" => self.gap.is_some(),
            "percent" => self.share.is_some(),
            _ => false,
        }
    }

    /// The name of the policy that limits requests at a gateway: those that know repeated SYNs have nothing
    /// to recognise there.
    #[must_use]
    pub fn for_requests(&self) -> &str {
        let serves = BUCKET_POLICIES.contains(&self.name.as_str());
        if serves { &self.name } else { BUCKET_POLICIES[0] }
    }

    /// Whether it takes a rate at all.
    #[must_use]
    pub fn takes_rate(&self) -> bool {
        self.name != "threshold"
    }

    /// What its thresholds are on; `None`: it has none.
    #[must_use]
    pub fn level_signal(&self) -> Option<LevelSignal> {
        (self.name == "threshold").then(|| self.level.unwrap_or_default())
    }

    /// What is done from the onset on, and the onsets: of `severities`, or of the plain keys.
    pub(crate) fn steps(&self) -> (Vec<Threshold>, ThrottleConfig) {
        let plain = || {
            let (onset, share, gap) = (self.onset?, self.share, self.gap);
            Some(SeverityConfig { onset, share, gap })
        };
        let steps = self.severities.clone().unwrap_or_else(|| plain().into_iter().collect());
        let onsets = steps.iter().map(|step| step.onset).collect();
        let shares: Vec<Share> = steps.iter().filter_map(|step| step.share).collect();
        let gaps: Vec<Nanos> = steps.iter().filter_map(|step| step.gap).collect();
        let throttle = match (shares.is_empty(), gaps.is_empty()) {
            (false, _) => ThrottleConfig::Share(shares),
            (true, false) => ThrottleConfig::Gap(gaps),
            (true, true) => ThrottleConfig::None,
        };
        (onsets, throttle)
    }

    /// The parameters of `threshold`. Left out, the abatement is half of the onset, or without
    /// throttling half of the discard threshold. That the ladders rise, the check of the configuration
    /// has seen to.
    #[must_use]
    pub fn threshold(&self) -> ThresholdConfig {
        let (onsets, throttle) = self.steps();
        let onset = onsets.first().map(|onset| onset.level());
        let rises = onsets.iter().skip(1);
        let rises = rises.map(|next| next.level().saturating_sub(onset.unwrap_or(0))).collect();
        let discard = self.discard.map(Threshold::level);
        let begin = onset.or(discard).unwrap_or(1);
        let abatement = self.abatement.map_or_else(|| half(begin), Threshold::level);
        let mut ladder = Ladder {
            abatement,
            onset: onset.unwrap_or(abatement),
            discard,
            extra_severity: self.extra_severity.unwrap_or(0),
        };
        let mut ladders = [ladder; PRIORITIES];
        for priority in (0..PRIORITIES).rev() {
            if let Some(own) = self.of_priority(priority) {
                ladder = above(ladder, own, onset.is_some());
            }
            ladders[priority] = ladder;
        }
        let highest = self.preferred.map_or(0, |lowest| u32::from(lowest) + 1);
        let preferred = ((1_u32 << highest.min(8)) - 1) as u8;
        ThresholdConfig { ladders, rises, throttle, preferred }
    }

    /// The parameters of `gap`.
    #[must_use]
    pub fn gap(&self) -> GapConfig {
        let mut tolerance = [self.tolerance.unwrap_or(TOLERANCE_DEFAULT); PRIORITIES];
        let mut last = tolerance[PRIORITIES - 1];
        for priority in (0..PRIORITIES).rev() {
            last = self.of_priority(priority).and_then(|own| own.tolerance).unwrap_or(last);
            tolerance[priority] = last;
        }
        let tolerance_at_start = self.tolerance_at_start.unwrap_or(0.0);
        GapConfig { gap: self.gap, tolerance, tolerance_at_start }
    }

    /// How long `percent` counts.
    #[must_use]
    pub fn percent_period(&self) -> Nanos {
        self.period.unwrap_or(PERCENT_PERIOD)
    }

    pub(crate) fn of_priority(&self, priority: usize) -> Option<&PriorityConfig> {
        let mut all = self.priorities.iter().flatten();
        all.find(|own| usize::from(own.priority) == priority)
    }
}

const fn half(threshold: u32) -> u32 {
    if threshold > 1 { threshold / 2 } else { 1 }
}

/// The ladder of a priority, from that below it and what is written of its own.
fn above(below: Ladder, own: &PriorityConfig, throttles: bool) -> Ladder {
    let discard = own.discard.map(Threshold::level).or(below.discard);
    let onset = own.onset.map_or(below.onset, Threshold::level);
    let begin = if throttles { own.onset } else { own.discard };
    let derived = begin.map_or(0, |begin| half(begin.level())).max(below.abatement);
    let abatement = own.abatement.map_or(derived, Threshold::level);
    Ladder {
        abatement,
        onset: if throttles { onset } else { abatement },
        discard,
        extra_severity: own.extra_severity.unwrap_or(below.extra_severity),
    }
}

impl BucketConfig {
    /// The policy of a bucket of which nothing is said.
    pub const POLICY_DEFAULT: &'static str = "token_bucket";

    /// The name of its policy.
    #[must_use]
    pub fn policy_name(&self) -> &str {
        self.policy.as_ref().map_or(Self::POLICY_DEFAULT, |policy| &policy.name)
    }

    /// Whether its policy takes a rate.
    #[must_use]
    pub fn takes_rate(&self) -> bool {
        self.policy.as_ref().is_none_or(PolicyConfig::takes_rate)
    }
}

/// The lowest priority of requests.
pub(crate) const RANK_LOWEST: usize = RANKS - 1;
