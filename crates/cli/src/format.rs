// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Output for people and for programs.

use clap::ValueEnum;
use serde::Serialize;
use std::io::{self, Write};

/// How data is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// One JSON document.
    Json,
}

/// A value as an indented JSON document.
pub(crate) fn json<T: Serialize>(value: &T, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)
}

/// Text from elsewhere that cannot steer a terminal: control characters are shown, not sent.
pub(crate) fn plain(text: &str) -> String {
    text.chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect()
}
