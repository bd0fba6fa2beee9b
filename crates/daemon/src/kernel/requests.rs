// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Request rules: limits of buckets, and from the dataplane's numbers to names.

use super::failed;
use crate::plane::{PlaneError, RequestCounts};
use tidegate_bpf::{BucketParams, Dataplane};
use tidegate_config::{Config, RequestsConfig};
use tidegate_model::limits::{Limits, ServiceLimits};
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
            let limits = tidegate_params::bucket(config, &own, decided).map_err(|error| {
                PlaneError(format!("service {}: bucket {}: {error}", wanted.name, config.name))
            })?;
            all.push(BucketParams { service, bucket, limits });
        }
    }
    Ok(all)
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
    use tidegate_model::limits::BucketLimits;
    use tidegate_units::Rate;

    fn config(more: &str) -> Config {
        let text = format!(
            "interfaces: [{{name: lo}}]\nservices:\n  web:\n    mode: enforce\n    listen: [\"*:80\"]\n    requests:\n      buckets: {{a: {{resource: cpu}}, b: {{resource: bandwidth}}}}\n{more}"
        );
        parse(&text, &Registry::new(["fresh_first"], ["default"])).unwrap()
    }

    const RULES: &str = "      rules:
        - {path: /a, methods: [GET, OTHER], host: \"*.x.example\", cookie: {name: s}, protect: [{name: p, value: gold}], close_persistent: true, bucket: b}
        - {path: /a, cookie: {name: s, value: v, absent: true}, action: allow}
        - {server_name: y.example, bucket: a}
        - {path: /b, bucket: a, action: drop}
        - {unevaluable: true, action: allow}
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
}
