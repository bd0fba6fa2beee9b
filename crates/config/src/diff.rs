// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a reload changes.

use super::types::Config;
use serde_json::Value;
use std::collections::BTreeSet;
use tidegate_model::Change;

/// What changes from one configuration to the other, sorted by path; the defaults count as values.
#[must_use]
pub fn diff(before: &Config, after: &Config) -> Vec<Change> {
    let mut changes = Vec::new();
    let [old, new] = [before, after].map(|c| serde_json::to_value(c).unwrap_or_default());
    compare("", Some(&old), Some(&new), &mut changes);
    order_of_services(before, after, &mut changes);
    changes
}

/// The index of a service is its place: a new order is a change, though no value differs.
fn order_of_services(before: &Config, after: &Config, changes: &mut Vec<Change>) {
    let names = |c: &Config, other: &Config| -> Vec<String> {
        let shared = c.services.iter().filter(|s| other.services.iter().any(|o| o.name == s.name));
        shared.map(|s| s.name.clone()).collect()
    };
    let (old, new) = (names(before, after), names(after, before));
    if old != new {
        let [before, after] = [old, new].map(|n| Some(n.join(", ")));
        changes.push(Change { path: "order of services".into(), before, after });
    }
}

fn compare(path: &str, before: Option<&Value>, after: Option<&Value>, changes: &mut Vec<Change>) {
    if before == after {
        return;
    }
    if let (Some(Value::Object(old)), Some(Value::Object(new))) = (before, after) {
        let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for key in keys {
            let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            compare(&below, old.get(key), new.get(key), changes);
        }
        return;
    }
    if let (Some(Value::Array(old)), Some(Value::Array(new))) = (before, after) {
        for i in 0..old.len().max(new.len()) {
            compare(&format!("{path}[{i}]"), old.get(i), new.get(i), changes);
        }
        return;
    }
    let show = |v: &Value| match without_secrets(path, v) {
        Value::String(text) => text,
        other => other.to_string(),
    };
    changes.push(Change {
        path: path.to_owned(),
        before: before.map(show),
        after: after.map(show),
    });
}

/// The value at a path as it may be shown: what a reload changes goes to screens and logs, and the
/// value of a cookie may open a session.
fn without_secrets(path: &str, value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let shown = |(key, value): (&String, &Value)| {
                (key.clone(), without_secrets(&format!("{path}.{key}"), value))
            };
            Value::Object(map.iter().map(shown).collect())
        }
        Value::Array(list) => {
            let shown = |(i, value)| without_secrets(&format!("{path}[{i}]"), value);
            Value::Array(list.iter().enumerate().map(shown).collect())
        }
        Value::String(_) if is_cookie_value(path) => Value::String("…".into()),
        other => other.clone(),
    }
}

fn is_cookie_value(path: &str) -> bool {
    path.strip_suffix(".value").is_some_and(|cookie| {
        let list = cookie.rsplit_once('[').map_or("", |(list, _)| list);
        cookie.ends_with("].cookie") || list.ends_with("].protect")
    })
}
