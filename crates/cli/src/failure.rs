// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors for people, and their exit codes.

use std::fmt::Write;
use std::io;
use tidegate_api::client::ClientError;
use tidegate_api::exit::Exit;
use tidegate_api::protocol::ApiError;
use tidegate_config::{ConfigErrors, LoadError};

/// Deepest chain of causes that is shown.
const CAUSES_MAX: usize = 16;

/// Arguments that are right one by one and wrong together, or for this configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// One sentence, then the details and causes, one a line. Never a backtrace.
#[must_use]
pub fn describe(program: &str, error: &anyhow::Error) -> String {
    let mut text = format!("{program}: {error}\n");
    for detail in details(error) {
        let _ = writeln!(text, "  {detail}");
    }
    let mut shown = error.to_string();
    for cause in error.chain().skip(1).take(CAUSES_MAX) {
        let cause = cause.to_string();
        // Some errors repeat their cause in their own sentence.
        if !shown.contains(&cause) {
            let _ = writeln!(text, "  because: {cause}");
            shown.push_str(&cause);
        }
    }
    text
}

fn details(error: &anyhow::Error) -> &[String] {
    error
        .chain()
        .find_map(|cause| match cause.downcast_ref::<ClientError>() {
            Some(ClientError::Refused(refused)) => Some(refused.details.as_slice()),
            _ => cause.downcast_ref::<ApiError>().map(|e| e.details.as_slice()),
        })
        .unwrap_or_default()
}

/// The exit code of an error: that of the first cause that has one of its own.
#[must_use]
pub fn exit_of(error: &anyhow::Error) -> Exit {
    let of = |cause: &(dyn std::error::Error + 'static)| {
        if let Some(client) = cause.downcast_ref::<ClientError>() {
            return Some(Exit::from(client));
        }
        if let Some(api) = cause.downcast_ref::<ApiError>() {
            return Some(Exit::from(api.kind));
        }
        if cause.is::<UsageError>() {
            return Some(Exit::Usage);
        }
        let config = cause.is::<ConfigErrors>() || cause.is::<LoadError>();
        config.then_some(Exit::Config)
    };
    error.chain().find_map(of).unwrap_or(Exit::Failure)
}

/// Whether the reader of our output is gone (`tidegate status | head -1`).
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let direct = error.downcast_ref::<io::Error>();
    direct.is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
