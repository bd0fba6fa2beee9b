// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The policies that throttle: from the configuration, and what the control loop decided, to their
//! parameters and the level that they are told.

use super::Decided;
use tidegate_config::{GapConfig, LevelSignal, PolicyConfig, ThresholdConfig, ThrottleConfig};
use tidegate_policy::{
    Action, GapSpec, Level, Params, ParamsError, PercentSpec, Policy, ThresholdSpec, Thresholds,
    Throttle,
};
use tidegate_units::{Nanos, Rate, Share};

/// Most requests that wait at once; far below what the policy takes.
const WAITING_MAX: f64 = 65_536.0;

/// The parameters of a policy that throttles; `None`: it is none of these.
pub(super) fn params(
    policy: Policy,
    config: &PolicyConfig,
    action: Action,
    decided: Decided,
) -> Option<Result<Params, ParamsError>> {
    match policy {
        Policy::Threshold => Some(Params::threshold(&threshold(&config.threshold(), action))),
        Policy::Gap => Some(match gap(&config.gap(), action, decided.rate) {
            Some(spec) => Params::gap(&spec),
            None => Ok(Params::no_limit(policy)),
        }),
        Policy::Percent => Some(Params::percent(&percent(config, action, decided.loss))),
        _ => None,
    }
}

/// What a policy is told of the work that waits. `per_request`: what one request takes of the service.
pub(super) fn level(config: &PolicyConfig, per_request: Option<Nanos>) -> Level {
    match config.level_signal() {
        None => Level::NONE,
        Some(LevelSignal::AcceptQueue) => Level::ACCEPT_QUEUE,
        Some(LevelSignal::InFlight) => Level::IN_FLIGHT,
        Some(LevelSignal::UnfinishedWork) => Level::UNFINISHED_WORK,
        // until it was measured nothing is refused
        Some(LevelSignal::WaitingTime) => per_request.map_or(Level::NONE, Level::waiting_time),
    }
}

fn threshold(config: &ThresholdConfig, action: Action) -> ThresholdSpec {
    ThresholdSpec {
        priorities: config.ladders.map(|ladder| Thresholds {
            abatement: ladder.abatement,
            onset: ladder.onset,
            discard: ladder.discard,
            harder: ladder.extra_severity,
        }),
        rises: config.rises.clone(),
        throttle: match &config.throttle {
            ThrottleConfig::None => Throttle::None,
            ThrottleConfig::Share(shares) => Throttle::Share(shares.clone()),
            ThrottleConfig::Gap(gaps) => Throttle::Gap(gaps.clone()),
        },
        preferred: config.preferred,
        action,
    }
}

/// The longer of the two gaps holds; `None`: there is none.
fn gap(config: &GapConfig, action: Action, rate: Option<Rate>) -> Option<GapSpec> {
    let own = config.gap.map(|gap| GapSpec::least(gap, action).rate);
    let rate = match (own, rate) {
        (Some(own), Some(rate)) => Some(if own < rate { own } else { rate }),
        (own, rate) => own.or(rate),
    }?;
    let milli = |gaps: f64| (gaps * 1e3).round() as u32;
    Some(GapSpec {
        tau_milli: config.tolerance.map(milli),
        tau0_milli: milli(config.tolerance_at_start),
        ..GapSpec::new(rate, action)
    })
}

/// A gap whose requests may wait: as long as given, and as many as the policy can count.
pub(super) fn waiting(
    config: &PolicyConfig,
    rate: Option<Rate>,
    longest: Nanos,
) -> Result<Params, ParamsError> {
    let Some(spec) = gap(&config.gap(), Action::Reject, rate) else {
        return Ok(Params::no_limit(Policy::Gap));
    };
    let most = Nanos::from_secs_f64(WAITING_MAX / spec.rate.get());
    Params::gap(&GapSpec { wait_max: longest.min(most), ..spec })
}

/// The larger of the two shares holds. Without any nobody is refused, and arrivals are counted: the first
/// share finds a mix.
fn percent(config: &PolicyConfig, action: Action, loss: Option<Share>) -> PercentSpec {
    let shares = [config.share, loss].into_iter().flatten();
    let share = shares.fold(Share::ZERO, |one, two| if one < two { two } else { one });
    PercentSpec { period: config.percent_period(), ..PercentSpec::new(share, action) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::{BUCKET_POLICIES, Registry, parse};

    /// The longest wait is what the operator said; what a fast gap could not count is cut.
    #[test]
    fn a_gap_lets_requests_wait_where_they_can() {
        let config = config("{name: gap, gap: 20ms, tolerance: 0}");
        let event = tidegate_policy::Event::at(1_000_000_000);
        let mut state = tidegate_policy::RequestChain::default();
        let params = waiting(&config, None, Nanos::from_millis(40)).unwrap();
        state.set(tidegate_policy::RequestLimits::new(params).unwrap());
        let how = tidegate_policy::Circumstances { waits: true, ..Default::default() };
        let rank = tidegate_policy::Rank::New;
        let delays: Vec<_> =
            (0..4).map(|_| state.decide(&event, (rank, 0), &how).0.delay.0 / 1_000_000).collect();
        assert_eq!(delays, [0, 20, 40, 0], "the last one is refused");
        let fast = Some(Rate::per_second(1e6));
        let none = PolicyConfig { gap: None, ..config };
        assert!(waiting(&none, fast, Nanos::from_secs(60)).is_ok());
        assert_eq!(waiting(&none, None, Nanos::SECOND), Ok(Params::no_limit(Policy::Gap)));
    }

    fn config(policy: &str) -> PolicyConfig {
        let text = format!(
            "interfaces: [{{name: lo}}]\nservices:\n  web: {{mode: enforce, listen: ['*:80'], policy: {policy}}}\n"
        );
        let registry = Registry::new(["threshold", "gap", "percent"], ["default"]);
        let mut config = parse(&text, &registry).unwrap_or_else(|e| panic!("{policy}: {e}"));
        config.services.remove(0).policy
    }

    fn made(policy: &str, rate: Option<f64>, loss: Option<f64>) -> Params {
        let config = config(policy);
        let decided = Decided { rate: rate.map(Rate::per_second), loss: loss.map(Share::new) };
        let policy = Policy::from_name(&config.name).unwrap();
        params(policy, &config, Action::Drop, decided).unwrap().unwrap()
    }

    /// What the check of the configuration accepts, the policy takes.
    #[test]
    fn every_policy_that_is_accepted_has_parameters() {
        let none = |policy| Params::no_limit(policy);
        for (policy, kind) in [
            ("{name: threshold, discard: 1}", Policy::Threshold),
            ("{name: threshold, onset: 1, share: 100%}", Policy::Threshold),
            ("{name: threshold, abatement: 9, onset: 9, gap: 1us, discard: 9}", Policy::Threshold),
            (
                "{name: threshold, level: waiting-time, preferred: 7, extra_severity: 2, discard: 1h, \
                 severities: [{onset: 1us, share: 0}, {onset: 2us, share: 0.1}, {onset: 1h, share: 1}]}",
                Policy::Threshold,
            ),
            (
                "{name: threshold, discard: 10, priorities: [{priority: 7, discard: 20}, \
                 {priority: 5, abatement: 15}, {priority: 0, discard: 1000000000}]}",
                Policy::Threshold,
            ),
            ("{name: gap, gap: 1us, tolerance: 1000}", Policy::Gap),
            ("{name: gap, gap: 1s, tolerance: 0}", Policy::Gap),
            (
                "{name: gap, gap: 3ms, tolerance_at_start: 4, priorities: [{priority: 7, tolerance: 4.5}]}",
                Policy::Gap,
            ),
            ("{name: percent, share: 0.1%, period: 100ms}", Policy::Percent),
            ("{name: percent, share: 99.9%, period: 1m}", Policy::Percent),
        ] {
            let params = made(policy, None, None);
            assert_eq!(params.policy(), kind, "{policy}");
            assert_ne!(params, none(kind), "{policy}");
        }
        assert_eq!(made("{name: gap}", None, None), none(Policy::Gap), "nobody limits");
        let counts = made("{name: percent}", None, None);
        assert_eq!(
            counts,
            made("{name: percent}", None, Some(0.0)),
            "nobody limits, and it counts"
        );
        assert_ne!(counts, none(Policy::Percent));
    }

    /// An operator's own limit holds whatever the controller says, and becomes tighter by it.
    #[test]
    fn the_tighter_of_operator_and_controller_holds() {
        let gap = "{name: gap, gap: 20ms}";
        assert_eq!(made(gap, Some(80.0), None), made(gap, None, None));
        assert_eq!(made(gap, Some(20.0), None), made("{name: gap}", Some(20.0), None));
        let share = "{name: percent, share: 30%}";
        assert_eq!(made(share, None, Some(0.2)), made(share, None, None));
        assert_eq!(made(share, None, Some(0.5)), made("{name: percent}", None, Some(0.5)));
        assert_eq!(made(share, Some(1.0), None), made(share, None, None), "no rate but a share");
    }

    #[test]
    fn a_level_is_what_its_word_says() {
        let of = |level: &str, per_request: Option<Nanos>| {
            let unit = if level == "waiting-time" { "9ms" } else { "9" };
            let config = config(&format!("{{name: threshold, level: {level}, discard: {unit}}}"));
            super::level(&config, per_request).of(3, 5)
        };
        let per_request = Some(Nanos::from_millis(20));
        assert_eq!(of("accept-queue", per_request), 3);
        assert_eq!(of("in-flight", per_request), 5);
        assert_eq!(of("unfinished-work", None), 5);
        assert_eq!(of("waiting-time", per_request), 100_000);
        assert_eq!(of("waiting-time", None), 0, "not measured yet");
        assert_eq!(super::level(&config("{name: gap}"), per_request), Level::NONE);
    }

    /// The configuration cannot ask the register.
    #[test]
    fn the_policies_of_buckets_are_those_that_serve_requests() {
        let serve = Policy::ALL.iter().filter(|policy| policy.serves_requests());
        let serve: Vec<&str> = serve.map(|policy| policy.name()).collect();
        assert_eq!(serve, BUCKET_POLICIES);
    }
}
