// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits as policies take them: from the configuration, and what the control loop decided, to what is
//! written beside a chain. The kernel's dataplane, the gate and replay have it from here, so that one
//! configuration means the same in all of them.
//!
//! Pure: no tables, no sockets, no clock.

mod remote;
mod throttle;

pub use remote::remote;

use tidegate_config::{AbacusConfig, BucketConfig, PolicyConfig, ServiceConfig};
use tidegate_model::limits::{BucketLimits, Pending, ServiceLimits};
use tidegate_policy::{
    AbacusExactSpec, AbacusLearnedSpec, AbacusSpec, Action, BucketSpec, InFlight, Level, Params,
    ParamsError, Policy, RequestLimits,
};
use tidegate_units::{Nanos, Rate, Share};

/// What the control loop decided, for a policy that throttles.
#[derive(Clone, Copy, Debug, Default)]
struct Decided {
    rate: Option<Rate>,
    loss: Option<Share>,
}

/// The limits of a service as this policy takes them; without a rate only what an operator set holds.
///
/// # Errors
/// When the policy refuses the parameters.
pub fn service(
    policy: Policy,
    action: Action,
    config: &PolicyConfig,
    limits: &ServiceLimits,
) -> Result<Params, ParamsError> {
    let decided = Decided { rate: limits.rate, loss: limits.loss };
    if let Some(params) = throttle::params(policy, config, action, decided) {
        return params;
    }
    let Some(rate) = limits.rate else { return Ok(Params::no_limit(policy)) };
    let mut bucket = BucketSpec::new(rate, limits.burst.max(1), action);
    bucket.reserve = limits.reserve;
    match policy {
        Policy::TokenBucket => Params::token_bucket(&bucket),
        Policy::FreshFirst => Params::fresh_first(&bucket),
        Policy::Abacus => Params::abacus(&abacus(config, bucket)),
        Policy::AbacusExact => Params::abacus_exact(&abacus_exact(config, bucket)),
        Policy::AbacusLearned => Params::abacus_learned(&abacus_learned(config, bucket)),
        Policy::Threshold | Policy::Gap | Policy::Percent => Ok(Params::no_limit(policy)),
    }
}

/// The same of the policy `gap` where a request may wait for so long, in user space. Other policies let
/// nobody wait.
///
/// # Errors
/// When the policy refuses the parameters.
pub fn waiting(
    config: &PolicyConfig,
    limits: &ServiceLimits,
    longest: Nanos,
) -> Result<Params, ParamsError> {
    throttle::waiting(config, limits.rate, longest)
}

/// The limits of one request bucket, with its level; `service`: those of its service. How a request is
/// refused, its rule says.
///
/// # Errors
/// When the policy refuses the parameters, or serves no requests.
pub fn bucket(
    config: &BucketConfig,
    limits: &BucketLimits,
    service: &ServiceLimits,
) -> Result<RequestLimits, String> {
    let throttled = |policy: &PolicyConfig| {
        let decided = Decided { rate: limits.rate, loss: limits.loss };
        throttle::params(Policy::from_name(&policy.name)?, policy, Action::Reject, decided)
    };
    let made = match config.policy.as_ref().and_then(throttled) {
        Some(params) => {
            let name = config.policy_name();
            let params = params.map_err(|error| error.to_string())?;
            RequestLimits::new(params).ok_or_else(|| format!("{name} serves no requests"))?
        }
        None => {
            let burst = limits.burst.max(1);
            let reserve = limits.reserve.map(|tokens| tokens.min(burst - 1));
            let made = RequestLimits::bucket(limits.rate, burst, reserve);
            made.map_err(|error| error.to_string())?
        }
    };
    Ok(made.with_level(bucket_level(config, service)))
}

/// The limit in flight as the chain takes it; `None`: there is none.
#[must_use]
pub fn in_flight(limits: &ServiceLimits) -> Option<InFlight> {
    let low = limits.waiting_low.map_or((0, 0), |low| (low.most, low.rest));
    let Pending { silent, asks_q10 } = limits.pending;
    limits.waiting_max.map(|max| InFlight::up_to(max).tight(low).counting(silent, asks_q10))
}

/// What the policy of a service is told of the work that waits.
#[must_use]
pub fn level(config: &ServiceConfig, limits: &ServiceLimits) -> Level {
    throttle::level(&config.policy, limits.per_request)
}

/// What the policy of a request bucket is told of it.
#[must_use]
pub fn bucket_level(config: &BucketConfig, limits: &ServiceLimits) -> Level {
    let policy = config.policy.as_ref();
    policy.map_or(Level::NONE, |policy| throttle::level(policy, limits.per_request))
}

/// The defaults are those of [`PolicyConfig::abacus`].
fn abacus(config: &PolicyConfig, bucket: BucketSpec) -> AbacusSpec {
    let AbacusConfig { schedule, window, period } = config.abacus();
    AbacusSpec { schedule, period, ..AbacusSpec::classic(bucket, window) }
}

/// As [`abacus`].
fn abacus_exact(config: &PolicyConfig, bucket: BucketSpec) -> AbacusExactSpec {
    let AbacusConfig { schedule, window, period } = config.abacus();
    AbacusExactSpec { bucket, schedule, window, period }
}

/// As [`abacus`]; the window is the wait that costs as much as a rejection.
fn abacus_learned(config: &PolicyConfig, bucket: BucketSpec) -> AbacusLearnedSpec {
    let AbacusConfig { schedule, window, period } = config.abacus();
    let reject = Nanos(period.0.saturating_mul(u64::from(window)));
    AbacusLearnedSpec { bucket, schedule, reject, period }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::Threshold;

    #[test]
    fn abacus_takes_the_defaults_of_the_configuration_in_its_periods() {
        let bucket = BucketSpec::new(Rate::per_second(10.0), 20, Action::Drop);
        let half = Nanos::from_millis(500);
        let mut config =
            PolicyConfig { name: "abacus".into(), period: Some(half), ..PolicyConfig::default() };
        let spec = abacus(&config, bucket.clone());
        assert_eq!((spec.schedule, spec.window), (vec![2, 6, 14], 14), "1, 3 and 7 s");
        assert_eq!((spec.period, spec.bucket.clone()), (half, bucket.clone()));
        config.window = Some(Nanos::ZERO);
        assert_eq!(abacus(&config, bucket.clone()).window, 0, "what is given counts");
        let exact = abacus_exact(&config, bucket);
        assert_eq!((exact.schedule, exact.window), (vec![2, 6, 14], 0), "the same keys");
    }

    /// Of each policy of the register: the configuration takes its name, and with the least that it needs
    /// and what a controller decides it has a limit.
    #[test]
    fn every_policy_of_the_register_can_be_configured() {
        let names = || Policy::ALL.iter().map(|policy| policy.name());
        let registry = tidegate_config::Registry::new(names(), ["default"]);
        let decided = ServiceLimits {
            rate: Some(Rate::per_second(40.0)),
            burst: 5,
            loss: Some(Share::new(0.4)),
            ..ServiceLimits::default()
        };
        for policy in Policy::ALL {
            let own = if *policy == Policy::Threshold { ", discard: 9" } else { "" };
            let text = format!(
                "interfaces: [{{name: lo}}]\nservices:\n  web: {{mode: enforce, listen: ['*:80'], policy: {{name: {}{own}}}}}\n",
                policy.name()
            );
            let config = tidegate_config::parse(&text, &registry).unwrap_or_else(|e| panic!("{e}"));
            let config = &config.services[0].policy;
            let made = service(*policy, Action::Drop, config, &decided).unwrap();
            assert_eq!(made.policy(), *policy);
            assert_ne!(made, Params::no_limit(*policy), "{}", policy.name());
        }
    }

    fn a_bucket(policy: Option<PolicyConfig>) -> BucketConfig {
        let text = "interfaces: [{name: lo}]\nservices:\n  web:\n    mode: enforce\n    listen: ['*:80']\n    \
                    requests: {buckets: {a: {resource: cpu}}, rules: [{path: /a, bucket: a}]}\n";
        let registry = tidegate_config::Registry::new(["fresh_first"], ["default"]);
        let config = tidegate_config::parse(text, &registry).unwrap();
        let mut bucket = config.services[0].requests.as_ref().unwrap().buckets[0].clone();
        bucket.policy = policy;
        bucket
    }

    #[test]
    fn reserves_leave_a_token_to_the_lowest_rank() {
        let decided = BucketLimits {
            rate: Some(Rate::per_second(40.0)),
            burst: 5,
            reserve: [0, 2, 9],
            ..BucketLimits::default()
        };
        let none = ServiceLimits::default();
        let made = bucket(&a_bucket(None), &decided, &none).unwrap();
        let same = RequestLimits::bucket(Some(Rate::per_second(40.0)), 5, [0, 2, 4]).unwrap();
        assert_eq!(made, same);
        let nothing = bucket(&a_bucket(None), &BucketLimits::default(), &none).unwrap();
        assert!(!nothing.limited());
    }

    /// Of the policies that throttle; the level is that of the service.
    #[test]
    fn a_bucket_may_have_another_policy() {
        let policy = |name: &str| PolicyConfig { name: name.into(), ..PolicyConfig::default() };
        let discard = Some(Threshold::Number(9));
        let threshold = a_bucket(Some(PolicyConfig { discard, ..policy("threshold") }));
        let (none, nothing) = (BucketLimits::default(), ServiceLimits::default());
        let made = bucket(&threshold, &none, &nothing).unwrap();
        assert_eq!(made.params().policy(), Policy::Threshold);
        assert!(made.limited(), "without a word of the control loop");
        assert_eq!(made, made.with_level(Level::UNFINISHED_WORK));
        let percent = a_bucket(Some(policy("percent")));
        assert!(bucket(&percent, &none, &nothing).unwrap().limited(), "it counts who arrives");
        let share = BucketLimits { loss: Some(Share::new(0.4)), ..none };
        let made = bucket(&percent, &share, &nothing).unwrap();
        assert!(made.limited());
        assert_eq!(made.params().policy(), Policy::Percent);
    }
}
