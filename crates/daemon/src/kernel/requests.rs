// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Header rules: from the configuration to the plan, and from the dataplane's numbers to names.

use super::failed;
use crate::plane::{PlaneError, RequestCounts};
use tidegate_bpf::{
    BucketParams, Busy, CookieTest, Dataplane, HeaderRule, Host, HttpMatch, Methods, Refuse,
    Requests, Subject,
};
use tidegate_config::{
    Config, Cookie, CookieMatch, HostPattern, Method, RequestsConfig, RuleAnswer, RuleConfig,
};
use tidegate_model::Mode;
use tidegate_model::limits::{BucketLimits, Limits};
use tidegate_model::snapshot::{RuleCounts, RuleServed, UnevaluatedCount};
use tidegate_units::Nanos;

/// The rules of a service as the dataplane takes them.
///
/// # Errors
/// When a rule is none (the configuration's own check refuses it before).
pub(super) fn plan(config: &RequestsConfig) -> Result<Requests, PlaneError> {
    Ok(Requests {
        // Where it is not in shadow by itself it follows its service, also when that changes.
        shadow: (config.mode == Some(Mode::Shadow)).then_some(true),
        buckets: config.buckets.iter().map(|bucket| bucket.name.clone()).collect(),
        rules: config.rules.iter().map(|r| rule(config, r)).collect::<Result<_, _>>()?,
        busy: Busy {
            retry_after: (seconds(config.retry_after.from), seconds(config.retry_after.to)),
            content_type: config.content_type.clone(),
            body: config.body.clone(),
        },
    })
}

/// Whole seconds, at least one.
fn seconds(time: Nanos) -> u32 {
    u32::try_from(time.0 / Nanos::SECOND.0).unwrap_or(u32::MAX).max(1)
}

fn rule(config: &RequestsConfig, rule: &RuleConfig) -> Result<HeaderRule, PlaneError> {
    let subject = match (&rule.path, &rule.tls) {
        (Some(path), None) => Subject::Http(HttpMatch {
            path: path.as_str().as_bytes().to_vec(),
            methods: methods(&rule.methods)?,
            host: rule.host.as_ref().map(host),
            cookies_all: cookies(rule, false),
            cookies_none: cookies(rule, true),
            protect: rule.protect.iter().map(cookie).collect(),
        }),
        (None, Some(name)) => Subject::Tls(host(name)),
        (None, None) if rule.unevaluable => Subject::Unevaluable,
        _ => return Err(PlaneError(format!("rule {rule}: it has either a path or a TLS name"))),
    };
    let bucket = match &rule.bucket {
        None => None,
        Some(name) => Some(
            config
                .bucket(name)
                .ok_or_else(|| PlaneError(format!("rule {rule}: no bucket is called {name:?}")))?,
        ),
    };
    Ok(HeaderRule {
        subject,
        bucket,
        refuse: match rule.answer_or_default() {
            RuleAnswer::Busy => Refuse::Answer503,
            RuleAnswer::Reset => Refuse::Reset,
            RuleAnswer::Drop => Refuse::Drop,
            RuleAnswer::Auto => Refuse::Auto,
        },
        close_persistent: rule.close_persistent,
    })
}

/// None given means all.
fn methods(named: &[Method]) -> Result<Methods, PlaneError> {
    if named.is_empty() {
        return Ok(Methods::ANY);
    }
    named.iter().try_fold(Methods::NONE, |set, method| {
        let name = method.name();
        set.with(name).ok_or_else(|| PlaneError(format!("no method is called {name:?}")))
    })
}

fn host(pattern: &HostPattern) -> Host {
    let name = pattern.name.clone();
    if pattern.below { Host::Below(name) } else { Host::Exact(name) }
}

fn cookies(rule: &RuleConfig, absent: bool) -> Vec<CookieTest> {
    let wanted = rule.cookie.iter().filter(|wanted| wanted.absent == absent);
    wanted.map(CookieMatch::cookie).map(|wanted| cookie(&wanted)).collect()
}

fn cookie(wanted: &Cookie) -> CookieTest {
    CookieTest { name: wanted.name.clone(), value: wanted.value.clone() }
}

/// The limits of all buckets; one of which nothing was decided has none.
pub(super) fn params(config: &Config, limits: &Limits) -> Vec<BucketParams> {
    let mut all = Vec::new();
    for (service, wanted) in config.services.iter().enumerate() {
        let buckets = wanted.requests.as_ref().map_or(0, |requests| requests.buckets.len());
        let decided = limits.services.get(service).map_or(&[][..], |limits| &limits.buckets);
        for bucket in 0..buckets {
            let default = BucketLimits::default();
            let limits = decided.get(bucket).unwrap_or(&default);
            all.push(BucketParams {
                service,
                bucket,
                rate: limits.rate,
                burst: limits.burst.max(1),
                reserve: limits.reserve.map(|tokens| tokens.min(limits.burst.max(1) - 1)),
            });
        }
    }
    all
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
    use tidegate_config::{ANSWER_BYTES_MAX, Registry, parse};
    use tidegate_model::limits::ServiceLimits;
    use tidegate_units::Rate;

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
    fn a_rule_becomes_what_it_says() {
        let config = config(&format!("{RULES}      retry_after: {{from: 3s, to: 1m}}\n"));
        let plan = plan(config.services[0].requests.as_ref().unwrap()).unwrap();
        assert_eq!(plan.buckets, ["a", "b"]);
        assert_eq!((plan.shadow, plan.busy.retry_after), (None, (3, 60)));
        let test = |name: &str, value: Option<&str>| CookieTest {
            name: name.into(),
            value: value.map(Into::into),
        };
        let first = &plan.rules[0];
        let methods = Methods::NONE.with("GET").unwrap().with("OTHER").unwrap();
        let Subject::Http(found) = &first.subject else { panic!("{first:?}") };
        assert_eq!((found.path.as_slice(), found.methods), (&b"/a"[..], methods));
        assert_eq!(found.host, Some(Host::Below("x.example".into())));
        assert_eq!(found.cookies_all, [test("s", None)]);
        assert_eq!(found.protect, [test("p", Some("gold"))]);
        assert_eq!((first.bucket, first.close_persistent), (Some(1), true));
        assert_eq!(first.refuse, Refuse::Answer503);
        let Subject::Http(found) = &plan.rules[1].subject else { panic!("{plan:?}") };
        assert_eq!(found.cookies_none, [test("s", Some("v"))]);
        assert_eq!((plan.rules[1].bucket, found.methods), (None, Methods::ANY));
        assert_eq!(plan.rules[2].subject, Subject::Tls(Host::Exact("y.example".into())));
        assert_eq!(plan.rules[2].refuse, Refuse::Reset, "no 503 can be put into TLS");
        assert_eq!(plan.rules[3].refuse, Refuse::Drop);
        assert_eq!((&plan.rules[4].subject, plan.rules[4].bucket), (&Subject::Unevaluable, None));
    }

    #[test]
    fn shadow_of_the_section_stays_and_else_follows_the_service() {
        let config = config(&format!("{RULES}      mode: shadow\n"));
        let requests = config.services[0].requests.as_ref().unwrap();
        assert_eq!(plan(requests).unwrap().shadow, Some(true));
    }

    /// The configuration's own check of a length and the dataplane's must be one.
    #[test]
    fn the_longest_body_that_the_configuration_allows_is_taken_by_the_dataplane() {
        let head =
            config(RULES).services[0].requests.as_ref().unwrap().busy_text(Nanos::from_secs(9));
        let room = ANSWER_BYTES_MAX - head.1 - 2;
        let config = config(&format!("{RULES}      body: {}\n", "x".repeat(room)));
        super::super::plan(&config).unwrap().validate().unwrap();
    }

    /// The bounds of the configuration's check lie inside those of the dataplane.
    #[test]
    fn what_fills_the_tables_is_taken_by_the_dataplane() {
        let rules = |n: usize, rule: &dyn Fn(usize) -> String| {
            (0..n).map(|i| format!("        - {{{}, bucket: a}}\n", rule(i))).collect::<String>()
        };
        let spread = |i: usize| format!("path: /p{i}/");
        let hosts = |i: usize| format!("path: /p/, host: \"*.h{i}.example\"");
        let cookies = |i: usize| format!("path: /p{i}, protect: [{{name: c, value: v{i}}}]");
        let values = |i: usize| format!("path: /p, cookie: {{name: c{i}, absent: true}}");
        let last = "        - {tls: \"*.last.example\", bucket: b}\n";
        for rules in
            [rules(1021, &spread), rules(64, &hosts), rules(32, &cookies), rules(32, &values)]
        {
            let config = config(&format!("      rules:\n{rules}{last}"));
            super::super::plan(&config).unwrap().validate().unwrap();
        }
        let everything = include_str!("../../../config/tests/config/good/requests.yaml");
        let config = parse(everything, &Registry::new(["fresh_first"], ["default"])).unwrap();
        super::super::plan(&config).unwrap().validate().unwrap();
    }

    /// What is there unless it is written.
    #[test]
    fn what_no_rule_can_evaluate_has_a_bucket_of_its_own() {
        let config = config("      rules: [{path: /a, bucket: a}, {path: /b, bucket: b}]\n");
        let plan = plan(config.services[0].requests.as_ref().unwrap()).unwrap();
        assert_eq!(plan.buckets, ["a", "b", "unevaluable"]);
        let last = plan.rules.last().unwrap();
        assert_eq!((&last.subject, last.bucket), (&Subject::Unevaluable, Some(2)));
        assert_eq!(last.refuse, Refuse::Answer503);
    }

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
        let params = params(&config, &limits);
        assert_eq!(params.len(), 2);
        assert_eq!((params[0].rate, params[0].reserve), (Some(Rate::per_second(40.0)), [0, 2, 4]));
        assert_eq!((params[1].bucket, params[1].rate, params[1].burst), (1, None, 1));
    }
}
