// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a client is treated as it is: from what the configuration holds of it, the snapshot and the
//! ring of samples, without any state of its own.

use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use tidegate_model::ClientClass;
use tidegate_model::limits::{DatagramLimit, ServiceLimits};
use tidegate_model::remote::Unit;
use tidegate_model::snapshot::{
    Lately, RefusedLately, RemoteState, Sample, ServiceState, Snapshot,
};
use tidegate_units::Nanos;

/// Most samples in one explanation.
pub const SAMPLES_MAX: usize = 20;
/// So many wrong answers are promised at most.
const WRONG_MAX: f64 = 0.01;

/// Everything that is known about one client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The client's address.
    pub address: String,
    /// The client's port, if one was asked for.
    pub port: Option<u16>,
    /// What holds for it in each service, in the order of the configuration.
    pub services: Vec<ServiceExplanation>,
    /// What happened to it lately, newest first, at most [`SAMPLES_MAX`].
    pub samples: Vec<ExplainedSample>,
    /// Services, and limits of a router, that have probably refused it in the last minute, as far as that is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedLately>,
    /// The share of clients that were not refused and would be in there all the same; 0.01 at most,
    /// but in a flood of more refusals than `tables.refusals` has room for.
    #[serde(default)]
    pub refused_wrong: f64,
    /// Services whose proxy refused clients by itself in that minute, without naming them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unnamed: Vec<String>,
    /// All of it in sentences.
    pub words: Vec<String>,
}

/// What holds for a client in one service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceExplanation {
    /// Name of the service.
    pub service: String,
    /// `shadow` or `enforce`.
    pub mode: String,
    /// The class by its source address.
    pub class: String,
    /// The prefix that chose the class; `None` for the default class.
    pub prefix: Option<String>,
    /// Priority, 0 the highest.
    pub priority: u8,
    /// Classes that its DSCP could choose instead, on interfaces that trust it.
    pub by_dscp: Vec<String>,
    /// The exempt prefix it falls into, if it does.
    pub exempt: Option<String>,
    /// The limits in force, with the reasoning behind them.
    pub limits: ServiceLimits,
    /// Remote limits that peers give to it, and that it gives to its control nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remote: Vec<RemoteState>,
    /// What its requests go through, in sentences; empty where the service has no request rules.
    #[serde(default)]
    pub rules: Vec<String>,
}

/// A sample, with how long ago it was and its reason in words.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExplainedSample {
    /// The sample.
    pub sample: Sample,
    /// How long ago.
    pub ago: Nanos,
    /// The reason in words, where the daemon has them.
    pub text: String,
}

/// Where explanations come from.
pub struct Known<'a> {
    /// What each service of the configuration in force holds of the client, in its order.
    pub classes: &'a [ClientClass],
    /// The last snapshot.
    pub snapshot: &'a Snapshot,
    /// The ring of samples, any order.
    pub samples: &'a [Sample],
    /// Who has probably refused it in the last minute.
    pub refused: Lately,
    /// What an operator reads for a reason (policy/reasons.def); empty if unknown.
    pub reason_text: &'a dyn Fn(&str) -> String,
}

/// Explains a client.
#[must_use]
pub fn explain(known: &Known<'_>, address: IpAddr, port: Option<u16>) -> Explanation {
    let address = address.to_canonical();
    let mut services = Vec::new();
    for class in known.classes {
        let state = known.snapshot.services.iter().find(|s| s.name == class.service);
        services.push(service(class, state));
    }
    let samples = samples(known, address, port);
    let Lately { refused, complete, unnamed, wrong: refused_wrong } = known.refused.clone();
    let (address, words) = (address.to_string(), Vec::new());
    let mut explanation = Explanation {
        address,
        port,
        services,
        samples,
        refused,
        refused_wrong,
        words,
        ..Explanation::default()
    };
    explanation.unnamed = unnamed;
    explanation.words = self::words(&explanation, (known.snapshot, complete));
    explanation
}

fn service(of: &ClientClass, state: Option<&ServiceState>) -> ServiceExplanation {
    let by_dscp = of.by_dscp.iter().map(|(class, dscp)| format!("{class} (DSCP {dscp})"));
    ServiceExplanation {
        service: of.service.clone(),
        mode: state.map_or(of.mode.name(), |s| &s.mode).to_owned(),
        class: of.class.clone(),
        prefix: of.prefix.map(|prefix| prefix.to_string()),
        priority: of.priority,
        by_dscp: by_dscp.collect(),
        exempt: of.exempt.map(|prefix| prefix.to_string()),
        limits: state.map(|s| s.limits.clone()).unwrap_or_default(),
        remote: state.map(|s| s.remote.clone()).unwrap_or_default(),
        rules: state.map(rules).unwrap_or_default(),
    }
}

/// An address says nothing of requests: what holds for all of them, and who can say more.
fn rules(state: &ServiceState) -> Vec<String> {
    let Some(requests) = &state.requests else { return Vec::new() };
    let mut said = vec![format!(
        "its requests go through {} request rule(s) ({}); `tidegate rules test` says which one a request meets",
        requests.rules.len(),
        requests.mode
    )];
    for bucket in &requests.buckets {
        if let Some(rate) = bucket.limits.rate {
            let (name, resource, burst) = (&bucket.name, &bucket.resource, bucket.limits.burst);
            let why = &bucket.limits.why.text;
            let why = if why.is_empty() { String::new() } else { format!(": {why}") };
            said.push(format!(
                "requests of the bucket {name} ({resource}) are limited to {rate}, bursts of {burst}{why}"
            ));
        }
    }
    said
}

fn samples(known: &Known<'_>, address: IpAddr, port: Option<u16>) -> Vec<ExplainedSample> {
    let of_client = |s: &&Sample| match s.client.parse::<SocketAddr>() {
        Ok(client) => {
            client.ip().to_canonical() == address && port.is_none_or(|p| p == client.port())
        }
        Err(_) => s.client.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical() == address),
    };
    let found: Vec<Sample> = known.samples.iter().filter(of_client).cloned().collect();
    explain_samples(found, known.snapshot.now, known.reason_text)
}

/// Most rules of a router that are told.
const RULES_TOLD_MAX: usize = 16;

/// Samples, the newest first, at most [`SAMPLES_MAX`].
#[must_use]
pub fn explain_samples(
    mut found: Vec<Sample>,
    now: Nanos,
    reason_text: &dyn Fn(&str) -> String,
) -> Vec<ExplainedSample> {
    found.sort_by_key(|s| std::cmp::Reverse(s.at));
    found.truncate(SAMPLES_MAX);
    let explained = found.into_iter().map(|sample| ExplainedSample {
        ago: now.since(sample.at),
        text: reason_text(&sample.reason),
        sample,
    });
    explained.collect()
}

/// What is known of refusals without any sample.
fn refused_words(
    explanation: &Explanation,
    (complete, routes): (bool, bool),
    words: &mut Vec<String>,
) {
    let wrong = explanation.refused_wrong;
    let sure = if wrong <= WRONG_MAX {
        "one such answer in 100 is wrong at most".to_owned()
    } else {
        let (percent, key) = ((100.0 * wrong).ceil().min(100.0), "tables.refusals");
        format!("so many are refused that {percent} % of all others look refused, too; see {key}")
    };
    for found in &explanation.refused {
        let RefusedLately { service, gateway, router, shadow, ago_min, ago_max, .. } = found;
        let who = if *router { "its limit at this router" } else { "it" };
        let place = if *gateway { " at a gateway" } else { "" };
        let how = if *shadow {
            "would have refused (only counted: shadow, canary or an old lease)"
        } else {
            "has refused"
        };
        words.push(format!(
            "{service}: {who} probably {how} this address{place} {ago_min} to {ago_max} ago ({sure})."
        ));
        if !found.action.is_empty() {
            let (class, action) = (&found.class, &found.action);
            words.push(format!(
                "{service}: beyond the limit a SYN of class {class}, to which its source belongs, is {action}."
            ));
        }
    }
    for service in &explanation.unnamed {
        words.push(format!(
            "{service}: its proxy refuses some by itself and does not say whom: this address may have been one."
        ));
    }
    if explanation.refused.is_empty() && explanation.unnamed.is_empty() && complete {
        let who = if routes { "No service, and no limit of this router," } else { "No service" };
        words.push(format!("{who} has refused this address in the last 60 s."));
    }
}

fn words(explanation: &Explanation, (snapshot, complete): (&Snapshot, bool)) -> Vec<String> {
    let mut words = Vec::new();
    if snapshot.released {
        words.push("The kill switch is on: everything passes.".into());
    }
    for service in &explanation.services {
        service_words(service, &mut words);
        words.extend(route_words(&service.service, snapshot));
    }
    words.extend(imported_words(snapshot));
    refused_words(explanation, (complete, snapshot.router.is_some()), &mut words);
    if explanation.samples.is_empty() {
        words.push(
            "No sample of this client is in the ring: it sent nothing new lately, or was not sampled."
                .into(),
        );
    }
    words.extend(explanation.samples.iter().map(ExplainedSample::sentence));
    words
}

/// What routers were told to let pass (BGP FlowSpec).
fn route_words(service: &str, snapshot: &Snapshot) -> impl Iterator<Item = String> {
    let live = snapshot.flowspec.iter().filter(|flowspec| !flowspec.shadow);
    let routes = live.flat_map(|flowspec| &flowspec.routes);
    routes.filter(move |route| route.service == service).filter_map(|route| {
        let (service, rule, unit, told) = (&route.service, &route.rule, &route.unit, route.told?);
        Some(format!(
            "{service}: routers are told to let {told:.0} {unit}/s {rule} pass; of what they refuse nothing is known here."
        ))
    })
}

/// Rules of a router that have refused something, whoever it was: no client is known of them.
fn imported_words(snapshot: &Snapshot) -> impl Iterator<Item = String> {
    let imports = snapshot.flowspec.iter().filter_map(|flowspec| flowspec.import.as_ref());
    imports.flat_map(|import| {
        let refusing = import.rules.iter().filter(|rule| rule.refused > 0).take(RULES_TOLD_MAX);
        refusing.map(|of| {
            let (peer, rule, refused, packets) = (&import.peer, &of.rule, of.refused, of.packets);
            let how = if import.shadow { "would have refused" } else { "has refused" };
            format!("a rule of the router {peer} ({rule}) {how} {refused} of {packets} packets.")
        })
    })
}

/// A remote limit in force: who gave it, until when, what it refused.
fn remote_words(limit: &RemoteState) -> Option<String> {
    if limit.role != "to" && !limit.why.is_empty() {
        let (peer, scope, said, why) = (&limit.peer, &limit.scope, limit.words(), &limit.why);
        return Some(format!("the peer {peer} wants {scope} limited ({said}): {why}"));
    }
    let (rate, restriction) = (limit.rate?, limit.restriction.map(|_| limit.words())?);
    let (peer, scope, refused, offered) = (&limit.peer, &limit.scope, limit.refused, limit.offered);
    let why = if limit.why.is_empty() { String::new() } else { format!("; {}", limit.why) };
    let counts = format!("it refused {refused} of {offered}{why}");
    let rate = match limit.unit {
        Unit::Connections => rate.to_string(),
        of @ (Unit::Datagrams | Unit::Requests) => format!("{rate} {}", of.name()),
    };
    Some(match (limit.role.as_str(), limit.left) {
        ("to", _) if limit.is_plain() => {
            format!("the peer {peer} admits {rate} for it (as {scope}); {counts}")
        }
        ("to", _) => {
            format!("the peer {peer} admits {rate} for it (as {scope}, {restriction}); {counts}")
        }
        (_, Some(left)) => {
            format!(
                "the peer {peer} limits {scope} ({restriction}): {rate} for {left} more; {counts}"
            )
        }
        (_, None) => format!(
            "the limit of the peer {peer} for {scope} has expired and opens in steps: {rate}; {counts}"
        ),
    })
}

impl ExplainedSample {
    /// All of it in one sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        let Sample { client, service, class, verdict, reason, .. } = &self.sample;
        let shadow = if self.sample.shadow { " (in shadow: it passed)" } else { "" };
        let text = if self.text.is_empty() { String::new() } else { format!(": {}", self.text) };
        let request = self.sample.request.as_ref();
        let request = request.map_or_else(String::new, |id| format!("request {id} of "));
        format!(
            "{} ago {request}{client} to {service}, class {class}: {verdict}{shadow} for {reason}{text}.",
            self.ago
        )
    }
}

fn service_words(service: &ServiceExplanation, words: &mut Vec<String>) {
    let name = &service.service;
    let by = match &service.prefix {
        Some(prefix) => format!("by its source in {prefix}"),
        None => "as no class names its source".into(),
    };
    let (class, priority, mode) = (&service.class, service.priority, &service.mode);
    words.push(format!("{name} ({mode}): class {class}, priority {priority}, {by}."));
    if !service.by_dscp.is_empty() {
        let list = service.by_dscp.join(", ");
        words.push(format!("{name}: where its DSCP is trusted it may be instead in {list}."));
    }
    if let Some(prefix) = &service.exempt {
        words.push(format!("{name}: it is never refused: its source is in {prefix} (exempt)."));
    }
    let limits = &service.limits;
    match limits.rate {
        Some(rate) => words
            .push(format!("{name}: new work is limited to {rate}, bursts of {}.", limits.burst)),
        None => words.push(format!("{name}: no rate limit is set.")),
    }
    if let Some(of) = limits.requests {
        let (rate, form) = (of.rate, of.form.name());
        let who = match of.priority {
            0 => String::new(),
            priority => format!(" of priority {priority} and lower"),
        };
        words.push(format!("{name}: a peer limits requests{who} to {rate} ({form})."));
    }
    if let Some(DatagramLimit { rate, burst, .. }) = limits.datagrams {
        words.push(format!("{name}: datagrams are limited to {rate}, bursts of {burst}."));
    }
    if let Some(most) = limits.waiting_max {
        words.push(format!("{name}: at most {most} connections may wait for a response."));
    }
    if let (Some(rate), true) = (limits.min_rate, limits.counts_who_is_there()) {
        let every = Nanos::from_secs_f64(1.0 / rate.get());
        words.push(format!(
            "{name}: one connection in {every} is admitted even if as many wait as may, or the \
             accept queue is at its limit."
        ));
    }
    if let Some(most) = limits.source_max {
        words.push(format!(
            "{name}: a source with {most} silent or slow connections opens no more, unless its \
             exchanges complete."
        ));
    }
    if !limits.why.text.is_empty() {
        words.push(format!("{name}: {}", limits.why.text));
    }
    words.extend(
        service.remote.iter().filter_map(remote_words).map(|said| format!("{name}: {said}.")),
    );
    words.extend(service.rules.iter().map(|said| format!("{name}: {said}.")));
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::remote::Restriction;
    use tidegate_units::{Rate, Share};

    #[test]
    fn a_remote_limit_says_who_gave_it_what_it_is_and_what_it_refused() {
        let limit = RemoteState {
            peer: "b1".into(),
            role: "from".into(),
            scope: "shop".into(),
            rate: Some(Rate::per_second(40.0)),
            left: Some(Nanos::from_millis(400)),
            offered: 90,
            refused: 50,
            ..RemoteState::default()
        };
        let of = |unit, restriction, priority| RemoteState {
            unit,
            restriction: Some(restriction),
            priority,
            ..limit.clone()
        };
        let rate = of(Unit::Connections, Restriction::Rate(Rate::per_second(40.0)), 0);
        let loss = of(Unit::Requests, Restriction::RequestLoss(Share::new(0.25)), 3);
        let to = |limit: &RemoteState| RemoteState { role: "to".into(), ..limit.clone() };
        let opened = RemoteState { left: None, ..loss.clone() };
        let waits = RemoteState { why: "it is not in force".into(), rate: None, ..rate.clone() };
        let found = RemoteState { why: "shedding: capacity 41/s".into(), ..to(&rate) };
        for (limit, expected) in [
            (
                &rate,
                "the peer b1 limits shop (rate 40.0/s): 40.0/s for 400.0 ms more; it refused 50 of 90",
            ),
            (
                &loss,
                "the peer b1 limits shop (loss 25.0 % of requests, priority 3 and lower): 40.0/s requests for \
                 400.0 ms more; it refused 50 of 90",
            ),
            (&waits, "the peer b1 wants shop limited (rate 40.0/s): it is not in force"),
            (&to(&rate), "the peer b1 admits 40.0/s for it (as shop); it refused 50 of 90"),
            (
                &found,
                "the peer b1 admits 40.0/s for it (as shop); it refused 50 of 90; shedding: capacity 41/s",
            ),
            (
                &to(&loss),
                "the peer b1 admits 40.0/s requests for it (as shop, loss 25.0 % of requests, priority 3 and \
                 lower); it refused 50 of 90",
            ),
            (
                &opened,
                "the limit of the peer b1 for shop has expired and opens in steps: 40.0/s requests; it refused \
                 50 of 90",
            ),
        ] {
            assert_eq!(remote_words(limit).as_deref(), Some(expected));
        }
        assert_eq!(remote_words(&RemoteState { restriction: None, ..limit }), None);
    }
}
