// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Request rules as people see them: counts of rules, what could not be evaluated and why, and the
//! warnings that belong to it.

use crate::plane::{Counters, RequestCounts};
use crate::rule_signals::{GAP, RuleWatch};
use crate::warnings::Warnings;
use std::collections::{BTreeMap, VecDeque};
use tidegate_config::{Config, RequestsConfig, ServiceConfig};
use tidegate_model::Mode;
use tidegate_model::RANKS;
use tidegate_model::limits::ServiceLimits;
use tidegate_model::record::Sums;
use tidegate_model::signals::Signals;
use tidegate_model::snapshot::{
    BucketState, Followed, RequestsState, RuleCounts, RuleState, UnevaluatedCount,
};
use tidegate_units::Nanos;

/// Over how long the share of what could not be evaluated is taken.
const WINDOW: Nanos = Nanos::from_secs(10);
/// Most looks in it.
const LOOKS_MAX: usize = 64;
/// More than this share is worth a warning.
const UNEVALUATED_SHARE: f64 = 0.2;
/// Of fewer segments than this nothing is said.
const SEGMENTS_MIN: u64 = 100;
/// The table of connections is called full from this share on.
const FULL_SHARE: f64 = 0.95;
/// What is no request that escaped: bodies, what no rule asks for, what the operator wanted.
const EXPECTED: [&str; 6] = ["none", "no-rule", "body", "exempt", "released", "lease-expired"];

/// The counts at one moment.
#[derive(Clone, Debug, Default)]
struct Look {
    at: Nanos,
    met: u64,
    unevaluated: Vec<UnevaluatedCount>,
}

/// One service.
#[derive(Clone, Debug, Default)]
struct Watched {
    name: String,
    counts: RequestCounts,
    rules: RuleWatch,
    offered: Vec<[u64; RANKS]>,
    refused: Vec<[u64; RANKS]>,
    looks: VecDeque<Look>,
}

/// All services.
#[derive(Debug, Default)]
pub(crate) struct RequestWatch {
    services: Vec<Watched>,
    followed: Option<Followed>,
    /// Followed connections summed over time, in seconds, and when they were read last.
    followed_sum: f64,
    followed_read: Option<Nanos>,
}

impl RequestWatch {
    /// Other rules from now on, some of which count from zero: shares begin anew. What was summed over time goes
    /// on with its rule, whose counter does not begin again.
    pub(crate) fn begin_anew(&mut self, (before, after): (&Config, &Config)) {
        let old = std::mem::take(&mut self.services).into_iter();
        let mut old: BTreeMap<String, Watched> = old.map(|of| (of.name.clone(), of)).collect();
        let follow = |service: &ServiceConfig| {
            let was = before.services.iter().find(|was| was.name == service.name);
            let known = old.remove(&service.name).unwrap_or_default();
            let (name, looks) = (service.name.clone(), VecDeque::new());
            let mut watched = Watched { name, looks, ..known };
            watched.rules.follow(&places(was, service));
            watched
        };
        self.services = after.services.iter().map(follow).collect();
    }

    /// Reads what the rules counted; what cannot be read is shown as it was.
    pub(crate) fn look(
        &mut self,
        now: Nanos,
        (config, counters): (&Config, &dyn Counters),
        warnings: &mut Warnings,
    ) {
        self.services.resize_with(config.services.len(), Watched::default);
        if config.services.iter().all(|service| service.requests.is_none()) {
            self.followed = None;
            return;
        }
        match counters.request_counts(config) {
            Ok((counts, followed)) => {
                self.take(now, config, counts);
                self.follow(now, followed);
            }
            Err(error) => warnings.raise(now, "rules", format!("cannot be read: {error}")),
        }
        for (index, service) in config.services.iter().enumerate() {
            if service.requests.is_none() {
                continue;
            }
            self.totals(index, counters);
            if let Some(text) = self.services[index].unseen() {
                warnings.raise(now, &format!("{}: rules", service.name), text);
            }
        }
        if let Some(full) = self
            .followed
            .filter(|f| f.limit > 0 && f.connections as f64 >= FULL_SHARE * f.limit as f64)
        {
            let text = format!(
                "the table of connections is full ({} of {}): requests of new ones pass without being evaluated",
                full.connections, full.limit
            );
            warnings.raise(now, "connections", text);
        }
    }

    fn follow(&mut self, now: Nanos, followed: Option<Followed>) {
        let span = self.followed_read.replace(now).map_or(Nanos::ZERO, |last| now.since(last));
        if let Some(followed) = followed.filter(|_| span <= GAP) {
            self.followed_sum += followed.connections as f64 * span.as_secs_f64();
        }
        self.followed = followed;
    }

    fn take(&mut self, now: Nanos, config: &Config, counts: Vec<RequestCounts>) {
        for ((watched, counts), service) in
            self.services.iter_mut().zip(counts).zip(&config.services)
        {
            if watched.name != service.name {
                *watched = Watched { name: service.name.clone(), ..Watched::default() };
            }
            let met = counts.rules.iter().fold(0_u64, |sum, rule| sum.saturating_add(rule.met()));
            let look = Look { at: now, met, unevaluated: counts.unevaluated.clone() };
            watched.looks.push_back(look);
            let old = |look: &Look| now.since(look.at) > WINDOW;
            while watched.looks.len() > LOOKS_MAX || watched.looks.front().is_some_and(old) {
                watched.looks.pop_front();
            }
            watched.rules.take(now, &counts.rules);
            watched.counts = counts;
        }
    }

    /// What the rules of a service counted, in the order of the configuration.
    pub(crate) fn rule_counts(&self, index: usize) -> &[RuleCounts] {
        self.services.get(index).map_or(&[], |watched| &watched.counts.rules)
    }

    /// Requests by rank; a service whose totals cannot be read keeps those before.
    fn totals(&mut self, index: usize, counters: &dyn Counters) {
        if let Ok(totals) = counters.totals(index) {
            let watched = &mut self.services[index];
            watched.offered = totals.buckets.iter().map(|bucket| bucket.offered).collect();
            watched.refused = totals.buckets.iter().map(|bucket| bucket.refused).collect();
        }
    }

    /// What the snapshot shows of one service's rules.
    pub(crate) fn state(
        &self,
        now: Nanos,
        (index, service): (usize, &ServiceConfig),
        (signals, limits): (&Signals, &ServiceLimits),
        defer_accept: Option<bool>,
    ) -> Option<RequestsState> {
        let requests = service.requests.as_ref()?;
        let unknown = Watched::default();
        let watched = self.services.get(index).unwrap_or(&unknown);
        Some(RequestsState {
            mode: requests.mode_within(service.mode).name().into(),
            buckets: buckets(requests, watched, (signals, limits)),
            rules: rules(requests, watched, now),
            unevaluated: watched.counts.unevaluated.clone(),
            defer_accept,
            followed: self.followed,
            followed_sum: self.followed_sum,
        })
    }
}

impl Watched {
    /// A sentence when too much could not be evaluated.
    fn unseen(&self) -> Option<String> {
        let (first, last) = (self.looks.front()?, self.looks.back()?);
        let grown = |now: &UnevaluatedCount| {
            let before = first.unevaluated.iter().find(|then| then.reason == now.reason);
            now.count.saturating_sub(before.map_or(0, |then| then.count))
        };
        let escaped = last.unevaluated.iter().filter(|u| !EXPECTED.contains(&u.reason.as_str()));
        let by_reason: Vec<(u64, &UnevaluatedCount)> = escaped.map(|u| (grown(u), u)).collect();
        let unseen: u64 = by_reason.iter().map(|(count, _)| count).sum();
        let passed = last.unevaluated.iter().filter(|u| u.reason == "no-rule").map(grown);
        let all = unseen + passed.sum::<u64>() + last.met.saturating_sub(first.met);
        let share = unseen as f64 / all.max(1) as f64;
        let (most, reason) = by_reason.iter().max_by_key(|(count, _)| *count)?;
        (all >= SEGMENTS_MIN && share > UNEVALUATED_SHARE).then(|| {
            format!(
                "{:.0} % of the requests of the last {WINDOW} could not be evaluated, {most} of {unseen} for {}: {}",
                100.0 * share,
                reason.reason,
                reason.text
            )
        })
    }
}

fn buckets(
    requests: &RequestsConfig,
    watched: &Watched,
    (signals, limits): (&Signals, &ServiceLimits),
) -> Vec<BucketState> {
    let state = |(i, bucket): (usize, &tidegate_config::BucketConfig)| BucketState {
        name: bucket.name.clone(),
        resource: bucket.resource.name().into(),
        controller: bucket.control.name.name().into(),
        limits: limits.buckets.get(i).cloned().unwrap_or_default(),
        signals: signals.buckets.get(i).cloned().unwrap_or_default(),
        offered: watched.offered.get(i).copied().unwrap_or_default(),
        refused: watched.refused.get(i).copied().unwrap_or_default(),
        level: None,
        sums: Sums::default(),
    };
    requests.buckets.iter().enumerate().map(state).collect()
}

/// The place of each rule among those that the service had before; `None`: it is new. A rule is what its metrics
/// are labelled with.
fn places(before: Option<&ServiceConfig>, after: &ServiceConfig) -> Vec<Option<usize>> {
    let rules = |service: &ServiceConfig| -> Vec<(String, String, Option<String>)> {
        let rules = service.requests.iter().flat_map(|requests| &requests.rules);
        rules.map(|rule| (rule.label(), rule.to_string(), rule.bucket.clone())).collect()
    };
    let old = before.map(rules).unwrap_or_default();
    rules(after).iter().map(|rule| old.iter().position(|was| was == rule)).collect()
}

fn rules(requests: &RequestsConfig, watched: &Watched, now: Nanos) -> Vec<RuleState> {
    let states = requests.rules.iter().enumerate().map(|(i, rule)| RuleState {
        name: rule.label(),
        rule: rule.to_string(),
        bucket: rule.bucket.clone(),
        action: rule.refusal().name().into(),
        counts: watched.counts.rules.get(i).copied().unwrap_or_default(),
        signals: watched.rules.signals(i, now),
        in_flight_sum: watched.rules.in_flight_sum(i),
    });
    states.collect()
}

/// What an operator should know of a service whose requests are evaluated; by subject.
pub(crate) fn advice(
    service: &ServiceConfig,
    sees_answers: bool,
    defer_accept: Option<bool>,
) -> Vec<(String, &'static str)> {
    let Some(requests) = &service.requests else { return Vec::new() };
    let name = &service.name;
    let mut said = Vec::new();
    if !sees_answers {
        said.push((
            format!("{name}: responses"),
            "an interface has no egress hook: only the first request of a connection is evaluated, \
             and how many are in flight is not known",
        ));
    }
    let refuses = requests.mode_within(service.mode) == Mode::Enforce;
    if refuses && defer_accept == Some(false) {
        said.push((
            format!("{name}: TCP_DEFER_ACCEPT"),
            "is off, as its handshakes show: the server accepts a connection whose request is then \
             refused (docs/requests.md says how to turn it on)",
        ));
    }
    said
}
