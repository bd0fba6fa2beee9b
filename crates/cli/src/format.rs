// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Output for people and for programs.

use clap::ValueEnum;
use serde::Serialize;
use std::io::{self, Write};
use tidegate_units::Nanos;

/// How data is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// One JSON document.
    Json,
}

/// A JSON document (docs/json.md). New fields may come under the same version; anything else raises it.
#[derive(Serialize)]
struct Document<'a, T> {
    /// Name and version.
    schema: &'a str,
    #[serde(flatten)]
    fields: &'a T,
}

/// The fields of a value as an indented JSON document, behind its name and version.
pub(crate) fn json<T: Serialize>(schema: &str, fields: &T, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &Document { schema, fields })?;
    writeln!(out)
}

/// Text from elsewhere that cannot steer a terminal: control characters are shown, not sent.
pub(crate) fn plain(text: &str) -> String {
    text.chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect()
}

/// A time in the largest unit that has no rest, as it may be written.
pub(crate) fn duration(time: Nanos) -> String {
    let seconds = time.0.div_ceil(1_000_000_000);
    match seconds {
        s if s >= 3600 && s.is_multiple_of(3600) => format!("{}h", s / 3600),
        s if s >= 60 && s.is_multiple_of(60) => format!("{}m", s / 60),
        s => format!("{s}s"),
    }
}
