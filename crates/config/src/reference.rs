// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tables of docs/configuration.md: the reference, from the schema, and the bounds.

use super::cluster::{BACKENDS_MAX, BUS_SERVERS_MAX, SUBJECT_MAX, TARGETS_MAX, VALIDITY_RANGE};
use super::flowspec::{IMPORT_PREFIXES_MAX, SPEAKER_PEERS_MAX};
use super::gateways::{GATEWAYS_MAX, ROUTES_MAX};
use super::requests::*;
use super::schema::schema;
use super::shape::allowed;
use super::text::show_span;
use super::types::*;
use serde_json::Value;
use std::fmt::Write;
use tidegate_model::remote::REMOTE_SCOPES_MAX;
use tidegate_model::sharing::ROUTERS_MAX;
use tidegate_model::{
    CLASSES_MAX, LISTENS_MAX, NAME_MAX, PEERS_MAX, PREFIXES_MAX, RATE_MIN, SERVICES_MAX,
};
use tidegate_units::Nanos;

/// Deepest path in the table: a bound for a schema that would contain itself.
const DEPTH_MAX: usize = 12;

/// A Markdown table with one row a key: path, what is allowed, default, meaning.
#[must_use]
pub fn reference() -> String {
    let schema = schema();
    let mut table =
        String::from("| key | allowed | default | meaning |\n| --- | --- | --- | --- |\n");
    rows(&schema, &schema, ("", 0), &mut table);
    table
}

/// A Markdown table of how much a configuration may hold: what no single key shows.
#[must_use]
pub fn bounds() -> String {
    let mut table = String::from("| of what | bound |\n| --- | --- |\n");
    for (of, bound) in of_services().into_iter().chain(of_requests()).chain(of_peers()) {
        let _ = writeln!(table, "| {of} | {bound} |");
    }
    table
}

fn range((min, max): (Nanos, Nanos)) -> String {
    format!("{} to {}", show_span(min), show_span(max))
}

fn of_services() -> Vec<(&'static str, String)> {
    let window = ABACUS_PERIODS - 1;
    vec![
        ("names of services, classes, buckets, rules, peers", format!("{NAME_MAX} characters")),
        ("interfaces", INTERFACES_MAX.to_string()),
        ("services", SERVICES_MAX.to_string()),
        (
            "`listen`",
            format!("{LISTEN_MAX} a service, {LISTENS_MAX} in all, of which `*` takes two"),
        ),
        ("`classes`", format!("{0} a service, {0} of a router's limit", CLASSES_MAX - 1)),
        (
            "source prefixes",
            format!(
                "{CLASS_SOURCES_MAX} a class, {EXEMPT_SOURCES_MAX} in `exempt`, {PREFIXES_MAX} in all"
            ),
        ),
        ("`exempt.ports`", EXEMPT_PORTS_MAX.to_string()),
        ("`objective`", range(OBJECTIVE_RANGE)),
        ("`daemon.tick`", range(TICK_RANGE)),
        ("rates", format!("{RATE_MIN}/s to {RATE_MAX}/s")),
        ("bursts", format!("1 to {BURST_MAX}")),
        ("`policy.period`", range(ABACUS_PERIOD_RANGE)),
        ("`policy.schedule`", format!("{ABACUS_STEPS_MAX} attempts")),
        ("`policy.window`", format!("{window} periods")),
    ]
}

fn of_requests() -> Vec<(&'static str, String)> {
    vec![
        ("request rules", format!("{RULES_MAX} in all services")),
        ("buckets", format!("{RULE_BUCKETS_MAX} in all services")),
        (
            "different cookies, with their values",
            format!("{COOKIE_TESTS_MAX} in all services, {PROTECT_MAX} in `protect` of a rule"),
        ),
        ("a cookie", format!("name {COOKIE_NAME_MAX} bytes, value {COOKIE_VALUE_MAX}")),
        ("a path, a host", format!("{PATH_MAX} bytes, {HOST_MAX} bytes")),
        (
            "texts of a 503",
            format!(
                "{ANSWER_TEXTS_MAX} in all services, {ANSWER_BYTES_MAX} bytes with their headers"
            ),
        ),
        ("`retry_after`", range(RETRY_AFTER_RANGE)),
        ("`gateways`", format!("{GATEWAYS_MAX}, with {ROUTES_MAX} routes each")),
    ]
}

fn of_peers() -> Vec<(&'static str, String)> {
    vec![
        ("`cluster.peers`", PEERS_MAX.to_string()),
        ("`cluster.routers`", ROUTERS_MAX.to_string()),
        ("`cluster.bus.servers`", BUS_SERVERS_MAX.to_string()),
        ("`cluster.bus.subject`", format!("{SUBJECT_MAX} bytes")),
        ("`cluster.report_to`", TARGETS_MAX.to_string()),
        (
            "`services` of a peer or target, `limits` of a target, `backends` of a service",
            format!("{BACKENDS_MAX} each"),
        ),
        ("`limits` and `limits_when_congested` of a peer", format!("{REMOTE_SCOPES_MAX} each")),
        ("`flowspec.peers`", SPEAKER_PEERS_MAX.to_string()),
        ("`flowspec.import.prefixes`", IMPORT_PREFIXES_MAX.to_string()),
        ("`report_to.NAME.validity`", format!("{}, two ticks at least", range(VALIDITY_RANGE))),
    ]
}

fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let name = schema.get("$ref").and_then(Value::as_str);
    name.and_then(|n| root.pointer(n.trim_start_matches('#'))).unwrap_or(schema)
}

fn rows(root: &Value, schema: &Value, (path, depth): (&str, usize), table: &mut String) {
    let schema = resolve(root, schema);
    if depth > DEPTH_MAX {
        return;
    }
    if let Some(item) = schema.get("items") {
        rows(root, item, (&format!("{path}[]"), depth + 1), table);
    }
    if let Some(free) = schema.get("additionalProperties").filter(|v| v.is_object()) {
        rows(root, free, (&format!("{path}.NAME"), depth + 1), table);
    }
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .map(|r| r.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    for (key, child) in properties {
        let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        row(root, (&below, required.contains(&key.as_str())), child, table);
        rows(root, child, (&below, depth + 1), table);
    }
}

fn row(root: &Value, (path, required): (&str, bool), child: &Value, table: &mut String) {
    let target = resolve(root, child);
    let text =
        |v: &Value| v.get("description").and_then(Value::as_str).map(|t| t.replace('\n', " "));
    let default = match child.get("default") {
        _ if required => "required".into(),
        Some(Value::Object(_) | Value::Array(_)) | None => String::new(),
        Some(Value::String(word)) => format!("`{}`", word.escape_default()),
        Some(value) => format!("`{value}`"),
    };
    let mut allowed = allowed(target);
    if let Some(item) = target.get("items") {
        let item = resolve(root, item);
        if item.get("properties").is_none() {
            allowed = format!("a list of: {}", self::allowed(item));
        }
    }
    let meaning = text(child).or_else(|| text(target)).unwrap_or_default();
    let cell = |t: &str| t.replace('|', "\\|");
    let _ = writeln!(table, "| `{path}` | {} | {default} | {} |", cell(&allowed), cell(&meaning));
}
