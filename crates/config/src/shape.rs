// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The shape of a file against the schema: keys, types, ranges, words. All faults at once.
//!
//! Understands what our own schema uses (type, properties, required, additionalProperties, items,
//! enum/const, minimum/maximum, lengths, $ref, x-kind). What it accepts it writes as JSON, each
//! scalar typed as the schema wants it, so that serde can read it into the types.

use super::error::{ConfigError, ConfigErrors, Place, quoted, step};
use super::renamed;
use super::suggest;
use super::text::Kind;
use super::tree::{Node, Value as Tree};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The places of all keys of a file, by their path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places(BTreeMap<String, Place>);

impl Places {
    /// The place of a path such as `services.shop.listen[0]`; of what contains it where it is not
    /// in the file.
    #[must_use]
    pub fn of(&self, path: &str) -> Place {
        let mut path = path;
        loop {
            if let Some(place) = self.0.get(path) {
                return *place;
            }
            let Some(cut) = path.rfind(['.', '[']) else {
                return Place::default();
            };
            path = &path[..cut];
        }
    }

    /// A fault at a path: for checks against the system, which know no places.
    pub fn error(&self, path: &str, message: impl Into<String>) -> ConfigError {
        ConfigError::new(self.of(path), path, message)
    }
}

/// Checks the shape; the file as JSON, and its places.
pub(super) fn check(tree: &Node, schema: &Value) -> Result<(String, Places), ConfigErrors> {
    let mut shape =
        Shape { root: schema, json: String::new(), places: Places::default(), errors: vec![] };
    shape.node(tree, schema, "");
    if shape.errors.is_empty() {
        Ok((shape.json, shape.places))
    } else {
        Err(ConfigErrors::new(shape.errors))
    }
}

struct Shape<'a> {
    root: &'a Value,
    json: String,
    places: Places,
    errors: Vec<ConfigError>,
}

impl<'a> Shape<'a> {
    fn fault(&mut self, place: Place, path: &str, message: String) {
        self.errors.push(ConfigError::new(place, path, message));
    }

    /// Follows references; the schema is ours, so every one of them resolves.
    fn resolve(&self, schema: &'a Value) -> &'a Value {
        let name = schema.get("$ref").and_then(Value::as_str);
        let target = name.and_then(|n| self.root.pointer(n.trim_start_matches('#')));
        target.unwrap_or(schema)
    }

    fn node(&mut self, node: &Node, schema: &'a Value, path: &str) {
        self.places.0.entry(path.to_owned()).or_insert(node.place);
        let schema = self.resolve(schema);
        match (types(schema).first().copied(), &node.value) {
            (Some("object"), Tree::Map(entries)) => {
                let entries: Vec<_> =
                    entries.iter().map(|(k, v)| (k.text.as_str(), k.place, v)).collect();
                self.map(&entries, schema, (node.place, path));
            }
            (Some("array"), Tree::List(items)) => self.list(items, schema, (node.place, path)),
            (Some("object" | "array"), _) | (_, Tree::Map(_) | Tree::List(_)) => {
                self.fault(node.place, path, wrong(&node.found(), schema));
            }
            (_, Tree::Scalar { text, plain }) => match scalar(text, *plain, schema) {
                Ok(json) => self.json.push_str(&json.to_string()),
                Err(None) => self.fault(node.place, path, wrong(&node.found(), schema)),
                Err(Some(why)) => self.fault(node.place, path, why),
            },
        }
    }

    fn list(&mut self, items: &[Node], schema: &'a Value, (place, path): (Place, &str)) {
        if let Some(message) = count(items.len(), schema, ["minItems", "maxItems"], "entries") {
            self.fault(place, path, message);
        }
        let item_schema = schema.get("items").unwrap_or(&Value::Null);
        self.json.push('[');
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.json.push(',');
            }
            self.node(item, item_schema, &format!("{path}[{i}]"));
        }
        self.json.push(']');
    }

    fn map(
        &mut self,
        entries: &[(&str, Place, &Node)],
        schema: &'a Value,
        (place, path): (Place, &str),
    ) {
        let bounds = ["minProperties", "maxProperties"];
        if let Some(message) = count(entries.len(), schema, bounds, "entries") {
            self.fault(place, path, message);
        }
        let none = Map::new();
        let known = schema.get("properties").and_then(Value::as_object);
        let free = schema.get("additionalProperties").filter(|v| v.is_object());
        self.json.push('{');
        let mut first = true;
        for (key, key_place, value) in entries {
            let below = if path.is_empty() { step(key) } else { format!("{path}.{}", step(key)) };
            let Some(child) = known.and_then(|k| k.get(*key)).or(free) else {
                let names: Vec<&String> = known.unwrap_or(&none).keys().collect();
                self.fault(*key_place, path, unknown_key(key, &names));
                continue;
            };
            if !std::mem::take(&mut first) {
                self.json.push(',');
            }
            self.json.push_str(&Value::from(*key).to_string());
            self.json.push(':');
            if matches!(value.value, Tree::Map(_)) {
                self.places.0.insert(below.clone(), *key_place);
            }
            self.node(value, child, &below);
        }
        self.json.push('}');
        let required = schema.get("required").and_then(Value::as_array);
        for name in required.into_iter().flatten().filter_map(Value::as_str) {
            let given = |key: &str| key == name || renamed::now(key, &[name]).is_some();
            if !entries.iter().any(|(key, ..)| given(key)) {
                let child = known.and_then(|k| k.get(name)).map(|c| self.resolve(c));
                let allowed =
                    child.map_or_else(String::new, |c| format!("; allowed: {}", allowed(c)));
                let at = self.places.of(path);
                self.fault(at, path, format!("the key {name:?} is missing{allowed}"));
            }
        }
    }
}

fn unknown_key(key: &str, names: &[&String]) -> String {
    if let Some(now) = renamed::now(key, names) {
        return format!("found {}: {now}", step(key));
    }
    let list: Vec<&str> = names.iter().map(|n| n.as_str()).collect();
    let hint = suggest::phrase(key, &list);
    format!("the key {} is unknown{hint}; allowed: {}", quoted(key), list.join(", "))
}

fn count(found: usize, schema: &Value, [min, max]: [&str; 2], what: &str) -> Option<String> {
    let bound = |name: &str| schema.get(name).and_then(Value::as_u64);
    let (min, max) = (bound(min).unwrap_or(0), bound(max).unwrap_or(u64::MAX));
    let outside = (found as u64) < min || found as u64 > max;
    let most = if max == u64::MAX { "any number".into() } else { max.to_string() };
    outside.then(|| format!("found {found} {what}; allowed: {min} to {most}"))
}

fn types(schema: &Value) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).collect(),
        _ => vec![],
    }
}

/// The words that an enumeration allows.
fn words(schema: &Value) -> Option<Vec<&str>> {
    if let Some(list) = schema.get("enum").and_then(Value::as_array) {
        return Some(list.iter().filter_map(Value::as_str).collect());
    }
    let variants = schema.get("oneOf").and_then(Value::as_array)?;
    Some(variants.iter().filter_map(|v| v.get("const")).filter_map(Value::as_str).collect())
}

/// The range of a number.
fn range(schema: &Value) -> (Option<f64>, Option<f64>) {
    let bound = |name: &str| schema.get(name).and_then(Value::as_f64);
    (bound("minimum"), bound("maximum"))
}

/// What a schema allows, for people.
pub(super) fn allowed(schema: &Value) -> String {
    if let Some(kind) = kind(schema) {
        return kind.allowed().to_owned();
    }
    if let Some(words) = words(schema) {
        return words.join(", ");
    }
    let number = |what: &str| match range(schema) {
        (Some(min), Some(max)) => format!("{what} from {min} to {max}"),
        (Some(min), None) => format!("{what} of at least {min}"),
        (None, Some(max)) => format!("{what} up to {max}"),
        (None, None) => what.to_owned(),
    };
    match types(schema).first().copied() {
        Some("object") => "a map".into(),
        Some("array") => "a list".into(),
        Some("boolean") => "true, false".into(),
        Some("integer") => number("a whole number"),
        Some("number") => number("a number"),
        _ => "text".into(),
    }
}

fn kind(schema: &Value) -> Option<Kind> {
    schema.get("x-kind").and_then(Value::as_str).and_then(Kind::of)
}

fn wrong(found: &str, schema: &Value) -> String {
    format!("found {found}; allowed: {}", allowed(schema))
}

/// The scalar as JSON, or what is wrong with it (`None`: just not what is allowed).
fn scalar(text: &str, plain: bool, schema: &Value) -> Result<Value, Option<String>> {
    if plain && (text.is_empty() || text == "~") {
        return Err(None);
    }
    if let Some(kind) = kind(schema) {
        // The value of a cookie may open a session: a message is read by more than its author.
        let secret = matches!(kind, Kind::CookieValue);
        let found = if secret { "a value".into() } else { quoted(text) };
        let say = |why| format!("found {found}: {why}; allowed: {}", kind.allowed());
        return kind.check(text).map(|()| text.into()).map_err(|why| Some(say(why)));
    }
    if let Some(words) = words(schema) {
        let hint = suggest::phrase(text, &words);
        let say = format!("found {}{hint}; allowed: {}", quoted(text), words.join(", "));
        return if words.contains(&text) { Ok(text.into()) } else { Err(Some(say)) };
    }
    match types(schema).first().copied() {
        Some("boolean") if plain => text.parse::<bool>().map(Value::from).map_err(|_| None),
        Some("integer") if plain => number(text.parse::<i64>().ok(), text, schema),
        Some("number") if plain => {
            let finite = text.parse::<f64>().ok().filter(|v| v.is_finite());
            number(finite, text, schema)
        }
        Some("string") => Ok(text.into()),
        _ => Err(None),
    }
}

fn number<T>(value: Option<T>, text: &str, schema: &Value) -> Result<Value, Option<String>>
where
    T: Copy + Into<Value>,
{
    let (min, max) = range(schema);
    let value: Value = value.ok_or(None)?.into();
    let size = value.as_f64().ok_or(None)?;
    let inside = min.is_none_or(|m| size >= m) && max.is_none_or(|m| size <= m);
    // What other YAML readers take for octal is refused, and a sign that says nothing.
    let octal = text.len() > 1 && text.starts_with('0') && !text.starts_with("0.");
    let decimal = !octal && !text.starts_with('+');
    if inside && decimal { Ok(value) } else { Err(None) }
}
