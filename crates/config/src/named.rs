// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is a map from names in the file and a list, in the file's order, in the program.

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::fmt;
use std::marker::PhantomData;

/// An entry that carries its own key.
pub(super) trait Named {
    /// The key.
    fn name(&self) -> &str;
    /// The same entry under this key.
    fn named(self, name: String) -> Self;
}

pub(super) fn serialize<T: Named + Serialize, S: Serializer>(
    entries: &[T],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(entries.len()))?;
    for entry in entries {
        map.serialize_entry(entry.name(), entry)?;
    }
    map.end()
}

pub(super) fn deserialize<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Named + Deserialize<'de>,
    D: Deserializer<'de>,
{
    deserializer.deserialize_map(InOrder(PhantomData))
}

struct InOrder<T>(PhantomData<T>);

impl<'de, T: Named + Deserialize<'de>> Visitor<'de> for InOrder<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map by name")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut entries = Vec::new();
        while let Some((name, entry)) = map.next_entry::<String, T>()? {
            entries.push(entry.named(name));
        }
        Ok(entries)
    }
}
