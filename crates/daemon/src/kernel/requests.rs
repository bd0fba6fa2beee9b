// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Header rules: limits of buckets, and from the dataplane's numbers to names.

use super::throttle::{self, Decided};
use super::{bucket_level, failed};
use crate::plane::{PlaneError, RequestCounts};
use tidegate_bpf::policy::{Action, Policy, RequestLimits};
use tidegate_bpf::{BucketParams, Dataplane};
use tidegate_config::{BucketConfig, Config, PolicyConfig, RequestsConfig};
use tidegate_model::limits::{BucketLimits, Limits, ServiceLimits};
use tidegate_model::snapshot::{RuleCounts, RuleServed, UnevaluatedCount};
use tidegate_units::Nanos;

/// The limits of all buckets; one of which nothing was decided has none but its policy's own.
///
/// # Errors
/// When a policy refuses its parameters.
pub(super) fn params(config: &Config, limits: &Limits) -> Result<Vec<BucketParams>, PlaneError> {
    let mut all = Vec::new();
    let nothing = ServiceLimits::default();
    for (service, wanted) in config.services.iter().enumerate() {
        let decided = limits.services.get(service).unwrap_or(&nothing);
        let buckets = wanted.requests.iter().flat_map(|requests| &requests.buckets);
        for (bucket, config) in buckets.enumerate() {
            let own = decided.buckets.get(bucket).cloned().unwrap_or_default();
            let limits = compiled(config, &own).map_err(|error| {
                PlaneError(format!("service {}: bucket {}: {error}", wanted.name, config.name))
            })?;
            let limits = limits.with_level(bucket_level(config, decided));
            all.push(BucketParams { service, bucket, limits });
        }
    }
    Ok(all)
}

/// The limits of one bucket as its policy takes them.
fn compiled(config: &BucketConfig, limits: &BucketLimits) -> Result<RequestLimits, String> {
    let throttled = |policy: &PolicyConfig| {
        let decided = Decided { rate: limits.rate, loss: limits.loss };
        // how a request is refused, its rule says
        throttle::params(Policy::from_name(&policy.name)?, policy, Action::Reject, decided)
    };
    if let Some(params) = config.policy.as_ref().and_then(throttled) {
        let params = params.map_err(|error| error.to_string())?;
        let name = config.policy_name();
        return RequestLimits::new(params).ok_or_else(|| format!("{name} serves no requests"));
    }
    let burst = limits.burst.max(1);
    let reserve = limits.reserve.map(|tokens| tokens.min(burst - 1));
    RequestLimits::bucket(limits.rate, burst, reserve).map_err(|error| error.to_string())
}

/// What the rules of all services counted.
pub(super) fn counts(
    dataplane: &Dataplane,
    config: &Config,
) -> Result<Vec<RequestCounts>, PlaneError> {
    let rules = |requests: &RequestsConfig| vec![RuleCounts::default(); requests.rules.len()];
    let mut all: Vec<RequestCounts> = config
        .services
        .iter()
        .map(|service| RequestCounts {
            rules: service.requests.as_ref().map(rules).unwrap_or_default(),
            unevaluated: Vec::new(),
        })
        .collect();
    for count in dataplane.rule_counts().map_err(failed)? {
        let service = all.get_mut(count.service);
        if let Some(rule) = service.and_then(|service| service.rules.get_mut(count.rule)) {
            *rule = RuleCounts {
                admitted: count.admitted,
                refused: count.refused,
                shadowed: count.shadowed,
                lease: count.lease,
                repeated: count.repeated,
                failed: count.failed,
                served: RuleServed {
                    begun: count.begun,
                    ended: count.ended,
                    started: count.started,
                    started_time: Nanos(count.started_ns),
                    answered: count.answered,
                    answered_time: Nanos(count.answered_ns),
                },
            };
        }
    }
    for counted in dataplane.request_reasons().map_err(failed)? {
        if let Some(service) = all.get_mut(counted.service) {
            service.unevaluated.push(UnevaluatedCount {
                reason: counted.reason.name().into(),
                text: counted.reason.text().into(),
                count: counted.count,
            });
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::{Registry, parse};
    use tidegate_units::{Rate, Share};

    fn config(more: &str) -> Config {
        let text = format!(
            "interfaces: [{{name: lo}}]\nservices:\n  web:\n    mode: enforce\n    listen: [\"*:80\"]\n    requests:\n      buckets: {{a: {{resource: cpu}}, b: {{resource: bandwidth}}}}\n{more}"
        );
        parse(&text, &Registry::new(["fresh_first"], ["default"])).unwrap()
    }

    const RULES: &str = "      rules:
        - {path: /a, methods: [GET, OTHER], host: \"*.x.example\", cookie: {name: s}, protect: [{name: p, value: gold}], close_persistent: true, bucket: b}
        - {path: /a, cookie: {name: s, value: v, absent: true}, admit: true}
        - {tls: y.example, bucket: a}
        - {path: /b, bucket: a, answer: drop}
        - {unevaluable: true, admit: true}
";

    #[test]
    fn every_bucket_has_parameters_whatever_was_decided() {
        let config = config(RULES);
        let decided = BucketLimits {
            rate: Some(Rate::per_second(40.0)),
            burst: 5,
            reserve: [0, 2, 9],
            ..BucketLimits::default()
        };
        let service = ServiceLimits { buckets: vec![decided], ..ServiceLimits::default() };
        let limits = Limits { generation: 1, services: vec![service] };
        let found = params(&config, &limits).unwrap();
        let rate = Some(Rate::per_second(40.0));
        let expected = [
            BucketParams::tokens((0, 0), rate, 5, [0, 2, 4]).unwrap(),
            BucketParams::tokens((0, 1), None, 1, [0; 3]).unwrap(),
        ];
        assert_eq!(found, expected);
    }

    /// Of the policies that throttle; the level is that of the service.
    #[test]
    fn a_bucket_may_have_another_policy() {
        let text = RULES.replace("bucket: b", "bucket: a");
        let mut config = config(&text.replace("bucket: a, answer", "bucket: b, answer"));
        let buckets = &mut config.services[0].requests.as_mut().unwrap().buckets;
        let policy = |name: &str| PolicyConfig { name: name.into(), ..PolicyConfig::default() };
        let discard = Some(tidegate_config::Threshold::Number(9));
        buckets[0].policy = Some(PolicyConfig { discard, ..policy("threshold") });
        buckets[1].policy = Some(policy("percent"));
        let mut limits = Limits { generation: 1, services: vec![ServiceLimits::default()] };
        let before = params(&config, &limits).unwrap();
        assert_eq!(before[0].limits.params().policy(), Policy::Threshold);
        assert!(before[0].limits.limited(), "without a word of the control loop");
        let level = tidegate_bpf::policy::Level::UNFINISHED_WORK;
        assert_eq!(before[0].limits, before[0].limits.with_level(level));
        assert!(!before[1].limits.limited());
        let share = BucketLimits { loss: Some(Share::new(0.4)), ..BucketLimits::default() };
        limits.services[0].buckets = vec![BucketLimits::default(), share];
        let after = params(&config, &limits).unwrap();
        assert_eq!(after[0], before[0]);
        assert!(after[1].limits.limited());
        assert_eq!(after[1].limits.params().policy(), Policy::Percent);
    }
}
