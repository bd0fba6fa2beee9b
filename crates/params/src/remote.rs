// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A remote limit on requests, as the chain of requests takes it: in the form in which it was given.
//!
//! | form | policy | who is refused first |
//! | --- | --- | --- |
//! | rate | `token_bucket` | each priority leaves tokens for those above it |
//! | loss | `percent` | the lowest priorities, as much of them as the share is |
//! | gap | `gap` | the lowest priority keeps the gap; those above have a tolerance |

use tidegate_config::ServiceConfig;
use tidegate_model::PRIORITIES;
use tidegate_model::limits::RequestLimit;
use tidegate_model::remote::Form;
use tidegate_policy::{
    Action, BucketSpec, GapSpec, Params, ParamsError, PercentSpec, RequestLimits,
};
use tidegate_units::{Nanos, Share};

/// Gaps that the highest priority may be ahead of the lowest.
const AHEAD: u32 = 8;
/// How often the mix of priorities is measured: limits change several times a second.
const MIX_PERIOD: Nanos = Nanos::SECOND;

/// The limits of a service that has these classes.
///
/// # Errors
/// When the policy refuses the parameters.
pub fn remote(config: &ServiceConfig, limit: &RequestLimit) -> Result<RequestLimits, String> {
    let made = params(config, limit).map_err(|error| error.to_string())?;
    let name = made.policy().name();
    let limits = RequestLimits::new(made).ok_or_else(|| format!("{name} serves no requests"))?;
    Ok(limits.from_priority(limit.priority))
}

fn params(config: &ServiceConfig, limit: &RequestLimit) -> Result<Params, ParamsError> {
    match limit.form {
        Form::Rate => {
            let mut bucket = BucketSpec::new(limit.rate, limit.burst.max(1), Action::Reject);
            bucket.reserve = config.reserve_tokens(bucket.burst);
            Params::token_bucket(&bucket)
        }
        Form::Loss => {
            let share = limit.loss.unwrap_or(Share::ZERO);
            let spec = PercentSpec::new(share, Action::Reject);
            Params::percent(&PercentSpec { period: MIX_PERIOD, ..spec })
        }
        Form::Gap => {
            let kept = config.reserve_tokens(AHEAD);
            let ahead = |kept_of: u32| 1000 * kept[PRIORITIES - 1].saturating_sub(kept_of);
            let spec = GapSpec::new(limit.rate, Action::Reject);
            Params::gap(&GapSpec { tau_milli: kept.map(ahead), ..spec })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::{Registry, parse};
    use tidegate_policy::{Circumstances, Event, Policy, RequestChain, VerdictKind};
    use tidegate_units::Rate;

    fn service(classes: &str) -> ServiceConfig {
        let text = format!(
            "interfaces: [{{name: lo}}]\nservices:\n  web: {{mode: enforce, listen: ['*:80'], classes: [{classes}]}}\n"
        );
        let config = parse(&text, &Registry::new(["fresh_first"], ["default"]));
        config.unwrap_or_else(|error| panic!("{error}")).services.remove(0)
    }

    fn limit(form: Form) -> RequestLimit {
        let loss = Some(Share::new(0.5));
        RequestLimit { form, rate: Rate::per_second(100.0), burst: 20, loss, priority: 0 }
    }

    /// Requests of both priorities, 100/s each, for 30 s; what passes of each in the last 20 s, per second.
    fn passed(limit: &RequestLimit) -> [u32; 2] {
        let gold = "{name: gold, sources: [192.0.2.0/24], priority: 0}";
        let mut chain = RequestChain::default();
        chain.set(remote(&service(gold), limit).unwrap());
        let (mut random, mut passed) = (1_u32, [0; 2]);
        for n in 0..3_000_u64 {
            for (class, priority) in [0, 7].into_iter().enumerate() {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let now = Nanos::SECOND + Nanos::from_millis(10 * n + 5 * class as u64);
                let event = Event { random, priority, ..Event::at(now.0) };
                let how = Circumstances::default();
                let admits = chain.decide_by_priority(&event, 0, &how).0.kind == VerdictKind::Admit;
                passed[class] += u32::from(admits && n >= 1_000);
            }
        }
        passed.map(|count| count / 20)
    }

    #[test]
    fn each_form_has_its_policy_and_refuses_the_lowest_first() {
        for (form, policy) in [
            (Form::Rate, Policy::TokenBucket),
            (Form::Loss, Policy::Percent),
            (Form::Gap, Policy::Gap),
        ] {
            let made = remote(&service(""), &limit(form)).unwrap();
            assert!(made.limited());
            assert_eq!(made.params().policy(), policy);
            // 100 of 200 may pass: all of those above, and none below.
            let [gold, other] = passed(&limit(form));
            assert!(gold >= 99 && other <= 1, "{form:?}: {gold} {other}");
            // It is about the lower ones alone: the same, though all of those above would pass.
            let less = RequestLimit {
                rate: Rate::per_second(50.0),
                loss: Some(Share::new(0.75)),
                priority: 7,
                ..limit(form)
            };
            assert_eq!(passed(&less), [100, 0], "{form:?}");
        }
    }

    #[test]
    fn without_classes_a_gap_is_kept_by_all() {
        let mut chain = RequestChain::default();
        chain.set(remote(&service(""), &limit(Form::Gap)).unwrap());
        let how = Circumstances::default();
        let mut admitted = Vec::new();
        for ms in 0..100_u64 {
            let event = Event { priority: 7, ..Event::at(1_000_000_000 + 1_000_000 * ms) };
            if chain.decide_by_priority(&event, 0, &how).0.kind == VerdictKind::Admit {
                admitted.push(ms);
            }
        }
        assert_eq!(admitted, [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]);
    }
}
