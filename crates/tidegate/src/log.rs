// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The form of the log: text or JSON, a line an event, on standard error (standard output is for data).
//!
//! Where standard error is the journal, each line begins with its priority (`<4>`, sd-daemon(3)), which the
//! journal takes off, and text has no time: the journal keeps its own.

use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal, LineWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use tidegate_cli::LogFormat;
use tidegate_daemon::Log;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

/// What systemd sets for a program whose standard output or error is a socket of the journal: device and inode.
const JOURNAL: &str = "JOURNAL_STREAM";

/// Begins the log of the process.
pub(crate) fn begin(format: LogFormat) {
    let filter = EnvFilter::try_from_env("TIDEGATE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let journal = in_journal();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(|| Log)
        // The subscriber would tell of a failed write on standard error, and panic where that fails.
        .log_internal_errors(false);
    if format == LogFormat::Text {
        return match journal {
            false => log.init(),
            true => log.without_time().map_event_format(Prioritised).init(),
        };
    }
    let log = log.json().flatten_event(true).with_current_span(false).with_span_list(false);
    match journal {
        false => log.init(),
        true => log.map_event_format(Prioritised).init(),
    }
}

/// Where errors of commands go, the last words of a daemon that does not start among them.
pub(crate) fn errors() -> Box<dyn Write> {
    if in_journal() {
        Box::new(LineWriter::new(Errors(io::stderr())))
    } else {
        Box::new(io::stderr())
    }
}

/// Gives each line the priority of an error. Takes whole lines.
struct Errors<W>(W);

impl<W: Write> Write for Errors<W> {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let prefix = format!("<{}>", priority(&Level::ERROR));
            self.0.write_all(&[prefix.as_bytes(), line].concat())?;
        }
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn in_journal() -> bool {
    std::env::var(JOURNAL).is_ok_and(|said| is_stream(&said, io::stderr()))
}

/// Whether a file is the one that systemd names as `device:inode`.
fn is_stream(said: &str, file: impl AsFd) -> bool {
    let found = file.as_fd().try_clone_to_owned().and_then(|fd| File::from(fd).metadata());
    found.is_ok_and(|found| said == format!("{}:{}", found.dev(), found.ino()))
}

/// Writes the priority before what another format writes.
struct Prioritised<F>(F);

impl<S, N, F> FormatEvent<S, N> for Prioritised<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "<{}>", priority(event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

/// As in syslog(3).
fn priority(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_an_error_has_its_priority() {
        let mut said = Vec::new();
        let mut errors = LineWriter::new(Errors(&mut said));
        let what = "no start";
        write!(errors, "tidegate: {what}\n  because: it").unwrap();
        errors.write_all(b" is so\n").unwrap();
        drop(errors);
        assert_eq!(said, b"<3>tidegate: no start\n<3>  because: it is so\n");
    }

    #[test]
    fn the_journal_is_recognised_by_device_and_inode() {
        let (reader, _writer) = io::pipe().unwrap();
        let metadata = File::from(reader.as_fd().try_clone_to_owned().unwrap()).metadata().unwrap();
        let (device, inode) = (metadata.dev(), metadata.ino());
        assert!(is_stream(&format!("{device}:{inode}"), &reader));
        for other in [format!("{device}:{}", inode + 1), format!("{inode}"), String::new()] {
            assert!(!is_stream(&other, &reader), "{other:?}");
        }
    }
}
