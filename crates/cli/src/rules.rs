// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `tidegate rules`: what request rules would do, from the configuration alone.

use crate::args::RulesTestArgs;
use crate::failure::UsageError;
use crate::format::{Format, json, plain};
use crate::host::Host;
use serde::Serialize;
use std::io::Write;
use tidegate_api::exit::Exit;
use tidegate_config::{
    BucketConfig, Config, RequestHead, RequestsConfig, RuleConfig, RuleRefusal, Selection,
    ServiceConfig, Unevaluable, Unevaluated, load,
};
use tidegate_model::Mode;
use tidegate_units::Nanos;

/// What would happen to one request in one service.
#[derive(Debug, Serialize)]
struct Tested {
    service: String,
    /// `shadow` or `enforce`.
    mode: String,
    /// Index of the rule that it meets.
    rule: Option<usize>,
    /// Why no rule of its own evaluates it, as it is counted; `None`: one does, or none matches.
    reason: Option<&'static str>,
    /// Its bucket; `None` where nothing limits it.
    bucket: Option<String>,
    /// What becomes of it when the bucket refuses it.
    action: Option<String>,
    /// Who is refused last: `protected`, `new`, `persistent`.
    rank: Option<&'static str>,
    /// All of it in sentences.
    words: Vec<String>,
}

/// The document.
#[derive(Serialize)]
struct Document<'a> {
    services: &'a [Tested],
}

/// Which rule a request meets in each service that has rules (or the named one).
pub(crate) fn test(
    args: &RulesTestArgs,
    host: &dyn Host,
    out: &mut dyn Write,
) -> anyhow::Result<Exit> {
    let asked = asked(args)?;
    let config = load(&args.config, &host.registry())?;
    let services = services(&config, args)?;
    let tested: Vec<Tested> =
        services.iter().map(|(service, rules)| tested(service, rules, (&asked, args))).collect();
    match args.output.output {
        Format::Json => json("tidegate-rules-test/1", &Document { services: &tested }, out)?,
        Format::Table => {
            let words = tested.iter().flat_map(|service| &service.words);
            words.map(|w| plain(w)).try_for_each(|w| writeln!(out, "{w}"))?;
        }
    }
    Ok(Exit::Ok)
}

/// What was asked about.
enum Asked {
    Request(RequestHead),
    /// A server name.
    Tls(String),
    /// What no rule of its own evaluates, and why.
    Unevaluable(Unevaluable),
}

fn asked(args: &RulesTestArgs) -> anyhow::Result<Asked> {
    match (&args.request, &args.tls) {
        (Some(line), None) => {
            let parsed = RequestHead::parse(line, &args.header);
            Ok(parsed.map_or_else(Asked::Unevaluable, Asked::Request))
        }
        (None, Some(name)) => Ok(Asked::Tls(name.to_ascii_lowercase())),
        _ => Err(UsageError(
            "ask about a request such as \"GET /path HTTP/1.1\", or about --tls NAME".into(),
        )
        .into()),
    }
}

type WithRules<'a> = (&'a ServiceConfig, &'a RequestsConfig);

fn services<'a>(config: &'a Config, args: &RulesTestArgs) -> anyhow::Result<Vec<WithRules<'a>>> {
    let all = config.services.iter().filter_map(|s| Some((s, s.requests.as_ref()?)));
    let wanted = all.filter(|(s, _)| args.service.as_ref().is_none_or(|name| *name == s.name));
    let found: Vec<_> = wanted.collect();
    if found.is_empty() {
        let file = args.config.display();
        let what = match &args.service {
            Some(name) => format!("no service {name:?} with request rules"),
            None => "no service with request rules".into(),
        };
        return Err(UsageError(format!("{file} has {what}")).into());
    }
    Ok(found)
}

fn tested(
    service: &ServiceConfig,
    rules: &RequestsConfig,
    (asked, args): (&Asked, &RulesTestArgs),
) -> Tested {
    let mode = rules.mode_within(service.mode);
    let mut tested = Tested {
        service: service.name.clone(),
        mode: mode.name().into(),
        rule: None,
        reason: None,
        bucket: None,
        action: None,
        rank: None,
        words: Vec::new(),
    };
    let selection = match asked {
        Asked::Request(head) => {
            tested.words.push(format!("{} ({}): {}", service.name, mode.name(), shown(head)));
            rules.select(head)
        }
        Asked::Tls(name) => {
            tested.words.push(format!("{} ({}): TLS to {name}", service.name, mode.name()));
            rules.select_tls(name)
        }
        Asked::Unevaluable(Unevaluable { reason, why }) => {
            tested.words.push(format!("{} ({}): {why}", service.name, mode.name()));
            let rule = rules.unevaluable_rule();
            Selection { rule, unevaluated: Some(*reason), ..Selection::default() }
        }
    };
    compared(rules, &selection, &mut tested.words);
    if let Some(reason) = selection.unevaluated {
        let reason = reason.name();
        tested.reason = Some(reason);
        tested.words.push(format!(
            "no rule of its own evaluates it ({reason}), so it meets the one with unevaluable: true"
        ));
    }
    match selection.rule.and_then(|index| Some((index, rules.rules.get(index)?))) {
        None => tested.words.push("it passes: no rule matches".into()),
        Some((index, rule)) => {
            tested.rule = Some(index);
            meets(&mut tested, (rules, rule), (&selection, mode, args.later));
        }
    }
    tested
}

/// The request as it was understood.
fn shown(head: &RequestHead) -> String {
    let host = head.host.as_ref().map_or_else(String::new, |host| format!(", host {host}"));
    let names: Vec<&str> = head.cookies.iter().map(|(name, _)| name.as_str()).collect();
    let cookies =
        if names.is_empty() { String::new() } else { format!(", cookies {}", names.join(", ")) };
    format!("{} {}{host}{cookies}", head.method, head.target)
}

/// Every rule that was looked at, in that order.
fn compared(rules: &RequestsConfig, selection: &Selection, words: &mut Vec<String>) {
    for compared in &selection.compared {
        let rule = rules.rules.get(compared.rule).map(|rule| match &rule.name {
            Some(name) => format!("{name}: {rule}"),
            None => rule.to_string(),
        });
        let result = compared
            .mismatch
            .as_deref()
            .map_or_else(|| "matches".to_owned(), |why| format!("does not match: {why}"));
        words.push(format!("  rules[{}] {}: {result}", compared.rule, rule.unwrap_or_default()));
    }
}

fn meets(
    tested: &mut Tested,
    (rules, rule): (&RequestsConfig, &RuleConfig),
    (selection, mode, later): (&Selection, Mode, bool),
) {
    let found = rule.bucket.as_ref().and_then(|name| rules.bucket(name));
    let Some(bucket) = found.and_then(|index| rules.buckets.get(index)) else {
        tested.words.push("it is admitted: the rule says so, and no other rule is asked".into());
        return;
    };
    let (rank, why) = match (&selection.protected_by, later && rule.close_persistent) {
        (Some(cookie), _) => ("protected", format!("it has the cookie {cookie}: refused last")),
        (None, true) => ("persistent", "later request of its connection: refused first".to_owned()),
        (None, false) if rule.server_name.is_some() => {
            ("new", "the connection as a whole".to_owned())
        }
        (None, false) if later => {
            ("new", "later request of its connection, treated as a first one".to_owned())
        }
        (None, false) => ("new", "first request of its connection".to_owned()),
    };
    tested.bucket = Some(bucket.name.clone());
    tested.rank = Some(rank);
    tested.action = Some(rule.refusal().name().into());
    tested.words.push(format!("it takes from the bucket {}", described(bucket)));
    tested.words.push(format!("rank {rank}: {why}"));
    // Of TLS and HTTP/2, a 503 would be no response.
    let plain = !matches!(selection.unevaluated, Some(Unevaluated::Http2 | Unevaluated::Tls));
    tested.words.push(refused(rules, (rule, plain), mode));
}

fn described(bucket: &BucketConfig) -> String {
    let control = &bucket.control;
    let rate = match (control.name, control.rate) {
        (tidegate_config::BucketController::Fixed, Some(rate)) => format!("at {rate}"),
        _ => format!("never below {}", bucket.min_rate),
    };
    let (name, resource, burst) = (&bucket.name, bucket.resource.name(), bucket.burst);
    let begun = format!("{name}: {resource}");
    match bucket.policy_name() {
        BucketConfig::POLICY_DEFAULT => {
            format!("{begun}, controller {}, {rate}, bursts of {burst}", control.name.name())
        }
        policy if !bucket.takes_rate() => format!("{begun}, policy {policy}"),
        policy => format!("{begun}, policy {policy}, controller {}, {rate}", control.name.name()),
    }
}

fn busy(rules: &RequestsConfig) -> String {
    let seconds = rules.retry_after_seconds();
    let (from, to) = (seconds[0], seconds[seconds.len() - 1]);
    let (text, _) = rules.busy_text(Nanos::from_secs(to));
    format!("a 503 of {} bytes with Retry-After {from} to {to} s", text.len())
}

fn refused(rules: &RequestsConfig, (rule, plain): (&RuleConfig, bool), mode: Mode) -> String {
    let how = match rule.refusal() {
        RuleRefusal::Busy | RuleRefusal::Auto if plain && rule.sends_503() => busy(rules),
        RuleRefusal::Auto => "a reset for a source that looks like one client, else nothing".into(),
        RuleRefusal::Reset | RuleRefusal::Busy => "a reset of the connection".into(),
        RuleRefusal::Drop => "nothing: it is dropped".into(),
    };
    match mode {
        Mode::Enforce => format!("while the bucket is empty: {how}"),
        Mode::Shadow => {
            format!("in shadow it passes; in enforce, while the bucket is empty: {how}")
        }
    }
}
