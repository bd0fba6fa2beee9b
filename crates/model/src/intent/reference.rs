// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The reference table of docs/configuration.md, from the schema.

use super::schema::schema;
use super::shape::allowed;
use serde_json::Value;
use std::fmt::Write;

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
