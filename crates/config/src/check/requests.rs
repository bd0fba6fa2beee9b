// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The meaning of `requests`: buckets, their controllers, rules, answers, and the bounds of all
//! services together.

use super::{Check, gateways};
use crate::error::step;
use crate::gateways::RouteConfig;
use crate::name::name_fault;
use crate::requests::*;
use crate::suggest;
use crate::text::show_span;
use crate::types::{PolicyConfig, ServiceConfig};
use std::collections::{BTreeMap, BTreeSet};
use tidegate_units::Nanos;

/// The keys of a bucket's `control` that its controller knows, `name` aside.
const fn keys_of(bucket: &BucketConfig) -> &'static [&'static str] {
    match bucket.control.name {
        BucketController::Default if bucket.resource.is_number() => &["reference", "ceiling"],
        BucketController::Default => &["ceiling"],
        BucketController::P => &["rate", "reference", "gain", "ceiling", "variant"],
        BucketController::Pd => {
            &["rate", "reference", "gain", "derivative_gain", "ceiling", "variant"]
        }
        BucketController::Fixed => &["rate"],
    }
}

/// Smallest and largest reference of a resource, and what it is.
const fn reference_range(resource: ControlledResource) -> (f64, f64, &'static str) {
    match resource {
        ControlledResource::InFlight => (1.0, IN_FLIGHT_MAX, "requests"),
        ControlledResource::Waiting => (1.0, IN_FLIGHT_MAX, "connections"),
        ControlledResource::BytesSent => (BYTES_RANGE.0, BYTES_RANGE.1, "bytes per second"),
        ControlledResource::FirstByte | ControlledResource::ResponseTime => {
            (0.01, 1.0, "share of the service's objective")
        }
        ControlledResource::Bandwidth | ControlledResource::AcceptQueue => {
            (0.01, 0.95, "share of the queue's limit")
        }
        _ => (0.05, 1.0, "share of the resource"),
    }
}

impl Check<'_> {
    pub(super) fn requests(&mut self, service: &ServiceConfig) {
        let Some(requests) = &service.requests else { return };
        let path = format!("services.{}.requests", step(&service.name));
        let to_a_bucket = |route: &RouteConfig| route.bucket.is_some();
        if requests.rules.is_empty() && !gateways::names(self.config, &service.name, to_a_bucket) {
            let what = "the key \"rules\" is missing; allowed: a list (a service needs none if a route of a \
                        gateway names a bucket of it)";
            self.fault(&path, what);
        }
        for bucket in &requests.buckets {
            let by_route = |route: &RouteConfig| route.bucket.as_ref() == Some(&bucket.name);
            let routed = gateways::names(self.config, &service.name, by_route);
            let at = format!("{path}.buckets.{}", step(&bucket.name));
            self.bucket(&at, bucket, (requests, routed));
        }
        let mut names = BTreeMap::new();
        for (i, rule) in requests.rules.iter().enumerate() {
            let at = format!("{path}.rules[{i}]");
            self.rule(&at, rule, requests);
            if let Some(name) = &rule.name
                && let Some(first) = names.insert(name, i)
            {
                self.fault(
                    &format!("{at}.name"),
                    format!("found {name:?}, which is rules[{first}] already"),
                );
            }
        }
        self.never_reached(&path, &requests.rules);
        self.answers(&path, requests);
    }

    fn bucket(
        &mut self,
        path: &str,
        bucket: &BucketConfig,
        (requests, routed): (&RequestsConfig, bool),
    ) {
        if let Some(why) = name_fault(&bucket.name) {
            self.fault(path, format!("found the name {:?}: {why}", bucket.name));
        }
        self.rate(&format!("{path}.min_rate"), Some(bucket.min_rate));
        let used = |rule: &RuleConfig| rule.bucket.as_ref() == Some(&bucket.name);
        let of_a_rule = requests.rules.iter().any(used);
        self.bucket_policy(&format!("{path}.policy"), bucket, of_a_rule);
        self.bucket_control(path, bucket);
        if !routed && !of_a_rule {
            self.fault(path, "no rule names this bucket; name it in a rule or leave it out");
        }
    }

    fn bucket_control(&mut self, bucket_path: &str, bucket: &BucketConfig) {
        let control = &bucket.control;
        let (name, path) = (control.name, format!("{bucket_path}.control"));
        let given = [
            ("rate", control.rate.is_some()),
            ("reference", control.reference.is_some()),
            ("gain", control.gain.is_some()),
            ("derivative_gain", control.derivative_gain.is_some()),
            ("ceiling", control.ceiling.is_some()),
            ("variant", control.variant.is_some()),
        ];
        let keys = keys_of(bucket);
        for (key, _) in given.iter().filter(|(key, given)| *given && !keys.contains(key)) {
            let (name, allowed) = (name.name(), keys.join(", "));
            let message = format!("the controller {name:?} has no {key}; it has: {allowed}");
            self.fault(&format!("{path}.{key}"), message);
        }
        if !bucket.takes_rate() {
            let name = bucket.policy_name();
            let rates = [("rate", control.rate), ("ceiling", control.ceiling)];
            for (key, _) in rates.iter().filter(|(_, rate)| rate.is_some()) {
                let message = format!("the policy {name:?} takes no rate, so {key} has no meaning");
                self.fault(&format!("{path}.{key}"), message);
            }
            return;
        }
        let own = bucket.policy.as_ref().is_some_and(PolicyConfig::has_own_limits);
        if name == BucketController::Fixed && control.rate.is_none() && !own {
            self.fault(&path, "the key \"rate\" is missing: the controller \"fixed\" keeps it");
        }
        self.rate(&format!("{path}.rate"), control.rate);
        self.rate(&format!("{path}.ceiling"), control.ceiling);
        if control.ceiling.is_some_and(|ceiling| ceiling < bucket.min_rate) {
            let min_rate = bucket.min_rate;
            let message = format!("it is below the bucket's min_rate of {min_rate}");
            self.fault(&format!("{path}.ceiling"), message);
        }
        self.suits(&path, bucket);
        self.reference(&path, bucket);
    }

    /// `p` follows a share, `pd` a queue and its change.
    fn suits(&mut self, path: &str, bucket: &BucketConfig) {
        let at = format!("{path}.name");
        let resource = bucket.resource.name();
        match (bucket.control.name, bucket.resource.is_queue()) {
            (BucketController::Pd, false) => self.fault(
                &at,
                format!("found \"pd\", which needs a queue, and {resource} has none; allowed: default, p, fixed"),
            ),
            (BucketController::P, true) => self.fault(
                &at,
                format!("found \"p\", which follows a share, and {resource} is a queue; allowed: default, pd, fixed"),
            ),
            _ => {}
        }
    }

    fn reference(&mut self, path: &str, bucket: &BucketConfig) {
        let (min, max, what) = reference_range(bucket.resource);
        let control = &bucket.control;
        match control.reference {
            Some(found) if found < min || found > max => self.fault(
                &format!("{path}.reference"),
                format!("found {found}; allowed: {min} to {max} ({what})"),
            ),
            None if control.name != BucketController::Fixed && bucket.resource.is_number() => {
                let message = match bucket.resource {
                    ControlledResource::InFlight => "how many requests in flight to aim at",
                    ControlledResource::Waiting => "how many connections that wait to aim at",
                    _ => "how many bytes per second to aim at",
                };
                self.fault(path, format!("the key \"reference\" is missing: {message}"));
            }
            _ => {}
        }
    }

    fn rule(&mut self, path: &str, rule: &RuleConfig, requests: &RequestsConfig) {
        match (&rule.path, &rule.server_name) {
            (None, None) if rule.unevaluable => self.unevaluable_rule(path, rule, requests),
            (None, None) => {
                self.fault(path, "the rule has neither path nor server_name nor unevaluable; it needs one");
            }
            _ if rule.unevaluable => self.fault(
                &format!("{path}.unevaluable"),
                "the rule is for what no rule can evaluate, so path and server_name have no meaning",
            ),
            (Some(_), Some(_)) => self.fault(
                &format!("{path}.server_name"),
                "the rule has path and server_name; what is inside TLS is invisible here: write two rules",
            ),
            (None, Some(_)) => {
                self.tls_rule(path, rule);
                self.tls_bucket(path, rule, requests);
            }
            (Some(_), None) => self.path_rule(path, rule),
        }
        match (&rule.bucket, rule.allows()) {
            (None, false) => {
                self.fault(path, "the rule names no bucket; name one, or say action: allow");
            }
            (Some(_), true) => self.fault(
                &format!("{path}.action"),
                "the rule has a bucket, and what is allowed goes through none; leave out one of the two",
            ),
            (Some(name), false) if requests.bucket(name).is_none() => {
                let names: Vec<&str> = requests.buckets.iter().map(|b| b.name.as_str()).collect();
                let (hint, list) = (suggest::phrase(name, &names), names.join(", "));
                self.fault(
                    &format!("{path}.bucket"),
                    format!("found {name:?}: no such bucket{hint}; configured: {list}"),
                );
            }
            (None, true) => self.allowing(path, rule),
            (Some(_), false) => {}
        }
        if let Some(why) = rule.name.as_deref().and_then(name_fault) {
            let name = rule.name.as_deref().unwrap_or_default();
            self.fault(&format!("{path}.name"), format!("found the name {name:?}: {why}"));
        }
    }

    /// Nothing is refused: what says how has no meaning.
    fn allowing(&mut self, path: &str, rule: &RuleConfig) {
        let given =
            [("protect", !rule.protect.is_empty()), ("close_persistent", rule.close_persistent)];
        for (key, _) in given.iter().filter(|(_, given)| *given) {
            let message = format!("the rule allows everything, so {key} has no meaning");
            self.fault(&format!("{path}.{key}"), message);
        }
    }

    /// Nothing of such a request is known.
    fn unevaluable_rule(&mut self, path: &str, rule: &RuleConfig, requests: &RequestsConfig) {
        let given = [
            ("methods", !rule.methods.is_empty()),
            ("host", rule.host.is_some()),
            ("cookie", rule.cookie.is_some()),
            ("protect", !rule.protect.is_empty()),
            ("close_persistent", rule.close_persistent),
        ];
        for (key, _) in given.iter().filter(|(_, given)| *given) {
            let message =
                format!("the rule is for what no rule can evaluate; {key} is unknown of it");
            self.fault(&format!("{path}.{key}"), message);
        }
        self.tls_bucket(path, rule, requests);
    }

    fn tls_rule(&mut self, path: &str, rule: &RuleConfig) {
        let given = [
            ("methods", !rule.methods.is_empty()),
            ("host", rule.host.is_some()),
            ("cookie", rule.cookie.is_some()),
            ("protect", !rule.protect.is_empty()),
            ("close_persistent", rule.close_persistent),
        ];
        for (key, _) in given.iter().filter(|(_, given)| *given) {
            let message = format!(
                "a TLS connection is evaluated by its server name; {key} is invisible here"
            );
            self.fault(&format!("{path}.{key}"), message);
        }
        if rule.action == Some(RuleAction::Refuse(RuleRefusal::Busy)) {
            self.fault(
                &format!("{path}.action"),
                "found 503: without the key of the connection no 503 can be written into TLS; allowed: reset, drop, auto",
            );
        }
    }

    /// An admitted TLS connection is not followed: it is never in flight, and nobody sees when it is
    /// answered, so a bucket that looks at that would never limit it.
    fn tls_bucket(&mut self, path: &str, rule: &RuleConfig, requests: &RequestsConfig) {
        let blind = |bucket: &&BucketConfig| {
            bucket.resource.is_followed() && bucket.control.name != BucketController::Fixed
        };
        let name = rule.bucket.as_ref();
        let bucket = requests.buckets.iter().find(|bucket| Some(&bucket.name) == name);
        if let Some(bucket) = bucket.filter(blind) {
            let (found, what) = match bucket.resource {
                ControlledResource::InFlight => (&bucket.name, "requests in flight"),
                _ => (&bucket.name, "the times of responses"),
            };
            let where_ = if rule.unevaluable { "of this rule" } else { "inside TLS" };
            let message = format!(
                "found {found:?}, a bucket by {what}, and those {where_} are invisible here; name a bucket of another resource, or one with control: fixed"
            );
            self.fault(&format!("{path}.bucket"), message);
        }
    }

    fn path_rule(&mut self, path: &str, rule: &RuleConfig) {
        let mut seen = BTreeSet::new();
        for (i, method) in rule.methods.iter().enumerate() {
            if !seen.insert(method) {
                let message = format!("found {} twice", method.name());
                self.fault(&format!("{path}.methods[{i}]"), message);
            }
        }
        let Some(without) = rule.cookie.as_ref().filter(|cookie| cookie.absent) else { return };
        for (i, cookie) in rule.protect.iter().enumerate() {
            let same = cookie.name == without.name;
            if same && (without.value.is_none() || without.value == cookie.value) {
                let message = "the rule matches only requests without this cookie";
                self.fault(&format!("{path}.protect[{i}]"), message);
            }
        }
    }

    /// A rule behind one that takes all of its requests is a mistake, whatever was meant.
    fn never_reached(&mut self, path: &str, rules: &[RuleConfig]) {
        for (i, rule) in rules.iter().enumerate() {
            let Some(first) = rules[..i].iter().position(|earlier| earlier.covers(rule)) else {
                continue;
            };
            let line = self.places.of(&format!("{path}.rules[{first}]")).line;
            let earlier = format!("rules[{first}] (line {line})");
            let message = if rule.covers(&rules[first]) {
                format!("it matches exactly what {earlier} matches, which comes first")
            } else {
                format!(
                    "it is never reached: {earlier} comes first and matches all of its requests"
                )
            };
            self.fault(&format!("{path}.rules[{i}]"), message);
        }
    }

    fn answers(&mut self, path: &str, requests: &RequestsConfig) {
        self.retry_after(path, (requests.retry_after.min, requests.retry_after.max));
        self.answer_length(path, requests);
    }

    pub(super) fn retry_after(&mut self, path: &str, (min, max): (Nanos, Nanos)) {
        for (key, time) in [("min", min), ("max", max)] {
            let at = format!("{path}.retry_after.{key}");
            if !time.0.is_multiple_of(Nanos::SECOND.0) {
                let found = show_span(time);
                self.fault(&at, format!("found {found}; Retry-After is in whole seconds"));
            } else {
                self.span(&at, time, RETRY_AFTER_RANGE);
            }
        }
        if min > max {
            let [min, max] = [min, max].map(show_span);
            self.fault(
                &format!("{path}.retry_after.min"),
                format!("found {min}, which is above max: {max}"),
            );
        }
    }

    pub(super) fn answer_length(&mut self, path: &str, requests: &RequestsConfig) {
        let (longest, _) = requests.busy_text(requests.retry_after.max);
        if longest.len() > ANSWER_BYTES_MAX {
            let room =
                (ANSWER_BYTES_MAX + requests.response_body.len()).saturating_sub(longest.len());
            self.fault(
                &format!("{path}.response_body"),
                format!(
                    "found {} bytes; with its headers the 503 has at most {ANSWER_BYTES_MAX}, so the body at most {room}",
                    requests.response_body.len()
                ),
            );
        }
    }

    /// What the dataplane's tables hold, of all services.
    pub(super) fn request_tables(&mut self) {
        let config = self.config;
        let mut used = Tables::default();
        for service in &config.services {
            let Some(requests) = &service.requests else { continue };
            let before = used.faults().len();
            used.take(requests);
            let path = format!("services.{}.requests", step(&service.name));
            for (key, message) in used.faults().into_iter().skip(before) {
                self.fault(&format!("{path}{key}"), message);
            }
        }
    }
}

/// What the rules of all services fill.
#[derive(Default)]
struct Tables {
    rules: usize,
    buckets: usize,
    cookies: BTreeSet<Cookie>,
    texts: BTreeSet<(String, String, Nanos, Nanos)>,
}

impl Tables {
    fn take(&mut self, requests: &RequestsConfig) {
        self.rules += requests.rules.len();
        self.buckets += requests.buckets.len();
        for rule in &requests.rules {
            self.cookies.extend(rule.cookie.iter().map(CookieMatch::cookie));
            self.cookies.extend(rule.protect.iter().cloned());
        }
        if requests.sends_503() {
            let RetryAfter { min, max } = requests.retry_after;
            self.texts.insert((
                requests.response_body.clone(),
                requests.content_type.clone(),
                min,
                max,
            ));
        }
    }

    /// What does not fit, with the key that brought it.
    fn faults(&self) -> Vec<(&'static str, String)> {
        let together = [
            (".rules", "rules", self.rules, RULES_MAX),
            (".buckets", "buckets", self.buckets, RULE_BUCKETS_MAX),
            (".rules", "different cookies", self.cookies.len(), COOKIE_TESTS_MAX),
            (".response_body", "different texts of a 503", self.texts.len(), ANSWER_TEXTS_MAX),
        ];
        let over = together.into_iter().filter(|(_, _, found, most)| found > most);
        over.map(|(key, what, found, most)| {
            (key, format!("with it there are {found} {what} in all services; at most {most}"))
        })
        .collect()
    }
}
