// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The limits that a service of this host gives to its control nodes: on connections, on requests, or those of one
//! of its request buckets. What decides is [`tidegate_control::fleet::remote`].

use crate::remote::only_shown;
use tidegate_config::{Config, SentLimitConfig, TargetConfig, When};
use tidegate_control::fleet::remote::{Feedback, Node, RequestLaw};
use tidegate_control::{DefaultSpec, Mode as ControlMode};
use tidegate_model::limits::ServiceLimits;
use tidegate_model::remote::{Form, Hits, RemoteLimit, Restriction, Scope, Unit};
use tidegate_model::snapshot::RemoteState;
use tidegate_model::{Mode, RATE_MIN};
use tidegate_peer::{OutgoingLimit, Plain};
use tidegate_sense::Sensed;
use tidegate_units::{Nanos, Rate};

/// How often a control node is told that there is no limit: it learns the scope by that, and sends its
/// hit counters.
const NONE_EVERY: Nanos = Nanos::SECOND;
/// How often a limit is renewed at most; less often than the receiver's quota, whatever the tick is.
const RATE_EVERY: Nanos = Nanos::from_millis(95);
/// The same of one that falls.
const FALLS_EVERY: Nanos = Nanos::from_millis(60);

/// What is limited.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    /// New connections.
    Connections,
    /// Requests of the service.
    Requests,
    /// Those of a bucket.
    Bucket(String),
}

impl Subject {
    fn of(limit: &SentLimitConfig) -> Self {
        match (&limit.bucket, limit.unit()) {
            (Some(bucket), _) => Self::Bucket(bucket.clone()),
            (None, Unit::Requests) => Self::Requests,
            (None, _) => Self::Connections,
        }
    }

    const fn unit(&self) -> Unit {
        match self {
            Self::Connections => Unit::Connections,
            Self::Requests | Self::Bucket(_) => Unit::Requests,
        }
    }
}

/// What one service gives to its control nodes of one subject.
pub(crate) struct Given {
    service: String,
    /// Its place in the configuration, and that of the bucket.
    pub(crate) index: usize,
    bucket: Option<usize>,
    subject: Subject,
    to: Vec<Target>,
    feedback: Feedback,
    /// What finds the limit on requests, where hooks measure the service.
    law: Option<RequestLaw>,
}

/// A control node.
#[derive(Clone)]
struct Target {
    name: String,
    scope: Scope,
    validity: Nanos,
    kind: Form,
    priority: u8,
    /// A host that knows only rates of connections is told something else.
    fine: bool,
    rate: Option<Rate>,
    restriction: Option<Restriction>,
    said: Option<Nanos>,
}

/// Those of a configuration. What stays goes on from where it was.
pub(crate) fn follow(config: &Config, mut old: Vec<Given>) -> Vec<Given> {
    let mut given = Vec::new();
    for (index, service) in config.services.iter().enumerate() {
        let mut of: Vec<(Subject, Vec<Target>)> = Vec::new();
        for (subject, target) in targets(config, &service.name) {
            match of.iter_mut().find(|(known, _)| *known == subject) {
                Some((_, to)) => to.push(target),
                None => of.push((subject, vec![target])),
            }
        }
        given.extend(of.into_iter().map(|of| Given::new((config, index), of, &mut old)));
    }
    given
}

fn targets(config: &Config, service: &str) -> Vec<(Subject, Target)> {
    let targets = config.cluster.iter().flat_map(|cluster| &cluster.report_to);
    let of = |target: &TargetConfig| {
        let validity = target.validity(config.daemon.tick);
        let own = target.limits.iter().filter(|limit| limit.service == service);
        let limits = own.filter(|limit| limit.when == When::Always);
        let to = limits.map(|limit| {
            let target = Target {
                name: target.name.clone(),
                scope: limit.scope.clone(),
                validity,
                kind: limit.kind,
                priority: limit.priority,
                fine: limit.is_fine(),
                rate: None,
                restriction: None,
                said: None,
            };
            (Subject::of(limit), target)
        });
        to.collect::<Vec<_>>()
    };
    targets.flat_map(of).collect()
}

impl Given {
    fn new(
        (config, index): (&Config, usize),
        (subject, mut to): (Subject, Vec<Target>),
        old: &mut Vec<Self>,
    ) -> Self {
        let service = &config.services[index];
        let bucket = match &subject {
            Subject::Bucket(name) => {
                service.requests.as_ref().and_then(|requests| requests.bucket(name))
            }
            Subject::Connections | Subject::Requests => None,
        };
        let same = |given: &Self| given.service == service.name && given.subject == subject;
        let before = old.iter().position(same).map(|at| old.swap_remove(at));
        let (feedback, law) = match before {
            Some(before) => {
                let places: Vec<_> = to.iter_mut().map(|to| to.go_on(&before.to)).collect();
                (before.feedback.with_nodes(&places), before.law)
            }
            None => (Feedback::new(to.len(), Rate::per_second(RATE_MIN)), None),
        };
        let by_hooks = subject == Subject::Requests && !config.is_routed(&service.name);
        let spec = DefaultSpec { objective: service.objective };
        let law = law.filter(|law| law.spec() == spec);
        let law = by_hooks.then(|| law.unwrap_or_else(|| RequestLaw::new(spec)));
        Self { service: service.name.clone(), index, bucket, subject, to, feedback, law }
    }

    /// What the service limits itself to of this; `None`: nothing, or its refusals are only counted.
    pub(crate) fn own(
        &mut self,
        (config, released): (&Config, bool),
        sensed: &[Sensed],
        own: &[ServiceLimits],
    ) -> Option<Rate> {
        let service = config.services.get(self.index)?;
        let shown = released || only_shown(service);
        let limits = own.get(self.index);
        let (rate, shown) = match (&self.subject, &mut self.law) {
            (Subject::Requests, Some(law)) => {
                let mode = if shown { ControlMode::Shadow } else { ControlMode::Enforce };
                let refused = self.feedback.take_refused();
                (law.tick(&sensed.get(self.index)?.signals, mode, refused), shown)
            }
            (Subject::Bucket(_), _) => {
                let mode = service.requests.as_ref()?.mode_within(service.mode);
                (limits?.buckets.get(self.bucket?)?.rate, shown || mode == Mode::Shadow)
            }
            (Subject::Connections | Subject::Requests, _) => (limits?.rate, shown),
        };
        rate.filter(|_| !shown)
    }

    /// Hit counters of a control node have come.
    pub(crate) fn hear(&mut self, now: Nanos, target: &str, hits: &Hits) {
        let node = self.to.iter().position(|to| to.name == target && to.scope == hits.scope);
        if let Some(node) = node {
            self.feedback.hear(now, node, hits);
        }
    }

    /// A round: what the control nodes are told.
    pub(crate) fn say(
        &mut self,
        (now, period): (Nanos, Nanos),
        own: Option<Rate>,
        out: &mut Vec<OutgoingLimit>,
    ) {
        let rates = self.feedback.tick(now, period, own);
        let begun = self.to.iter().any(|to| to.rate.is_some());
        let (subject, unit) = (&self.subject, self.subject.unit());
        let nodes = self.feedback.nodes().iter().map(|node| node.demand(now));
        for ((target, rate), demand) in self.to.iter_mut().zip(rates).zip(nodes) {
            if target.is_due(now, rate) {
                out.push(target.says((now, subject), rate, demand));
            }
        }
        let begins = self.to.iter().any(|to| to.rate.is_some());
        match (begun, begins, own) {
            (false, true, Some(rate)) => {
                let (service, of) = (&self.service, unit.name());
                tracing::info!(service, %rate, of, "limits its control nodes");
            }
            (true, false, _) => tracing::info!(service = self.service, "lifts their limits"),
            _ => {}
        }
    }

    /// The limits as they were told.
    pub(crate) fn states(&self, now: Nanos) -> Vec<RemoteState> {
        let nodes = self.to.iter().zip(self.feedback.nodes());
        let state = |(to, node): (&Target, &Node)| RemoteState {
            peer: to.name.clone(),
            role: "to".into(),
            scope: to.scope.to_string(),
            unit: self.subject.unit(),
            restriction: to.restriction,
            priority: to.priority,
            rate: to.rate,
            left: to.rate.map(|_| to.validity),
            steps: 0,
            sequence: 0,
            age: node.age(now),
            offered: node.offered,
            refused: node.refused,
            would_refuse: 0,
            why: self.law.as_ref().map_or_else(String::new, RequestLaw::why),
        };
        nodes.map(state).collect()
    }
}

impl Target {
    /// Its place among those of before; what it was told goes on.
    fn go_on(&mut self, before: &[Self]) -> Option<usize> {
        let same = |of: &Self| of.name == self.name && of.scope == self.scope;
        let at = before.iter().position(same)?;
        let Self { rate, restriction, said, .. } = before[at];
        (self.rate, self.restriction, self.said) = (rate, restriction, said);
        Some(at)
    }

    fn is_due(&self, now: Nanos, rate: Option<Rate>) -> bool {
        let ends = rate.is_none() && self.rate.is_some();
        let every = match (rate, self.rate) {
            (None, _) => NONE_EVERY,
            (Some(rate), Some(before)) if rate >= before => RATE_EVERY,
            (Some(_), _) => FALLS_EVERY,
        };
        ends || self.said.is_none_or(|at| now.since(at) >= every)
    }

    fn says(
        &mut self,
        (now, subject): (Nanos, &Subject),
        rate: Option<Rate>,
        demand: Option<Rate>,
    ) -> OutgoingLimit {
        // Without a limit the restriction says nothing: a validity of zero ends it.
        let said = rate.unwrap_or(Rate::per_second(RATE_MIN));
        let restriction = Restriction::in_form(subject.unit(), self.kind, said, demand);
        self.rate = rate;
        self.restriction = rate.map(|_| restriction);
        self.said = Some(now);
        let limit = RemoteLimit {
            scope: self.scope.clone(),
            restriction,
            validity: if rate.is_some() { self.validity } else { Nanos::ZERO },
            sequence: 0,
            priority: self.priority,
        };
        let plain = match subject {
            // It is not one of all connections of the scope.
            Subject::Bucket(_) => Plain::Nothing,
            _ if self.fine => Plain::Rate(said),
            _ => Plain::Same,
        };
        OutgoingLimit { target: self.name.clone(), limit, answers: None, plain }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers;
    use tidegate_config::{Registry, parse};

    const HOST: &str = "
interfaces: [{name: lo}]
services:
  shop: {mode: enforce, listen: ['192.0.2.11:80'], control: {name: fixed, rate: 60}}
cluster:
  certificate: /c.pem
  key: /k.pem
  ca_file: /a.pem
  report_to:
";

    fn config(targets: &[&str]) -> Config {
        let target = |name: &&str| {
            format!(
                "    {name}: {{address: '192.0.2.1:7416', identity: spiffe://example/{name}, \
                 limits: [{{service: shop, scope: shop, counts: requests}}]}}\n"
            )
        };
        let targets: String = targets.iter().map(target).collect();
        let registry = Registry::new(["fresh_first"], controllers::NAMES);
        parse(&[HOST, &targets].concat(), &registry).unwrap_or_else(|error| panic!("{error}"))
    }

    fn heard(given: &mut Given, second: u64, target: &str) {
        let hits = Hits {
            scope: "shop".parse().unwrap(),
            unit: Unit::Requests,
            span: Nanos::SECOND,
            offered: 40,
            refused: 20,
            probe: false,
        };
        given.hear(Nanos::from_secs(second), target, &hits);
    }

    /// What the service itself has learned, and what each target that stays has said and was told, goes on.
    #[test]
    fn targets_that_stay_go_on_when_others_come_and_go() {
        let mut given = follow(&config(&["f1", "f2"]), Vec::new());
        assert_eq!(given.len(), 1);
        let law = |given: &[Given]| format!("{:?}", given[0].law);
        let fresh = law(&given);
        let mut signals = tidegate_model::signals::Signals {
            period: Nanos::from_millis(100),
            ..Default::default()
        };
        signals.time.waiting = Some(tidegate_model::signals::Reading::fresh(7));
        given[0].law.as_mut().unwrap().tick(&signals, ControlMode::Enforce, 0);
        let learned = law(&given);
        assert_ne!(learned, fresh);
        ["f1", "f2"].iter().for_each(|target| heard(&mut given[0], 1, target));
        let (now, rate) = (Nanos::from_secs(1), Rate::per_second(60.0));
        let mut out = Vec::new();
        given[0].say((now, Nanos::SECOND), Some(rate), &mut out);
        let told = given[0].states(now);
        assert_eq!((out.len(), told[1].rate.is_some()), (2, true));

        // One comes, one goes, one stays at another place.
        let mut given = follow(&config(&["f0", "f2"]), given);
        assert_eq!(law(&given), learned);
        let states = given[0].states(now);
        let of = |at: usize| (states[at].peer.as_str(), states[at].offered, states[at].rate);
        assert_eq!((of(0), of(1)), (("f0", 0, None), ("f2", 40, told[1].rate)));
        out.clear();
        given[0].say((now + Nanos::from_millis(10), Nanos::SECOND), None, &mut out);
        assert_eq!(out.len(), 1, "the new one is told at once, the other one at its time: {out:?}");
        assert!(given[0].states(now)[0].rate.is_some(), "the limit goes on");

        // All are others: nobody is there whose refusals would end the limit.
        let mut given = follow(&config(&["f3"]), given);
        assert_eq!(law(&given), learned, "it is the service's");
        given[0].say((now + Nanos::SECOND, Nanos::SECOND), None, &mut out);
        assert_eq!(given[0].states(now)[0].rate, None);
    }
}
