// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The JSON Schema of the configuration, from the types.

use super::types::Config;
use schemars::generate::SchemaSettings;
use serde_json::Value;

/// The JSON Schema (2020-12) of the configuration file; published as
/// packaging/tidegate.schema.json.
#[must_use]
pub fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12();
    let mut schema = settings.into_generator().into_root_schema_for::<Config>().to_value();
    strict(&mut schema);
    if let Value::Object(root) = &mut schema {
        root.insert("title".into(), "tidegate configuration".into());
    }
    schema
}

/// A key is there with a value or it is not there: `null` is taken out wherever an optional field
/// brought it in.
fn strict(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(strict),
        Value::Object(map) => {
            map.retain(|key, value| !(key == "default" && value.is_null()));
            if let Some(Value::Array(variants)) = map.get_mut("anyOf") {
                variants.retain(|v| v.get("type").and_then(Value::as_str) != Some("null"));
                if let [Value::Object(only)] = variants.as_slice() {
                    let only = only.clone();
                    map.remove("anyOf");
                    for (key, value) in only {
                        map.entry(key).or_insert(value);
                    }
                }
            }
            map.values_mut().for_each(strict);
        }
        _ => {}
    }
}
