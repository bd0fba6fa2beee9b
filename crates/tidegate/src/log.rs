// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The form of the log: text or JSON, a line an event, on standard error (standard output is for data).
//!
//! Where standard error is the journal, each line begins with its priority (`<4>`, sd-daemon(3)), which the
//! journal removes, and text has no time: the journal keeps its own.

use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, IsTerminal, LineWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use tidegate_cli::LogFormat;
use tidegate_daemon::Log;
use tracing::field::Field;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer, debug_fn};
use tracing_subscriber::registry::LookupSpan;

/// What systemd sets for a program whose standard output or error is a socket of the journal: device and inode.
const JOURNAL: &str = "JOURNAL_STREAM";

/// Our own lines. The client of NATS would tell of each of its attempts; what becomes of them is in the status.
const FILTER: &str = "info,async_nats=off";

/// Begins the log of the process.
pub(crate) fn begin(format: LogFormat) {
    let filter = EnvFilter::try_from_env("TIDEGATE_LOG").unwrap_or_else(|_| EnvFilter::new(FILTER));
    let journal = in_journal();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(|| Log)
        // The subscriber would tell of a failed write on standard error, and panic where that fails.
        .log_internal_errors(false);
    if format == LogFormat::Text {
        let log = log.fmt_fields(debug_fn(for_people));
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

/// Fields whose figures the sentence has.
const SAID: &str = "shed.";

/// A field in a log for people: the message alone, others with their name.
fn for_people(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let mut line = Tame(writer);
    match field.name() {
        name if name.starts_with(SAID) => Ok(()),
        "message" => write!(line, "{value:?}"),
        // The message is always the first.
        name => write!(line, " {name}={value:?}"),
    }
}

/// Writes what others have said, without what would move a terminal's cursor or colour it.
struct Tame<'a, 'b>(&'a mut Writer<'b>);

impl fmt::Write for Tame<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|char| match char {
            '\n' | '\t' => self.0.write_char(char),
            char if char.is_control() => write!(self.0, "{}", char.escape_unicode()),
            char => self.0.write_char(char),
        })
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
    use std::sync::{Arc, Mutex};

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
    fn a_log_for_people_has_the_sentence_and_no_figure_twice_and_nothing_that_moves_a_cursor() {
        let all = Shared::default();
        let writer = all.clone();
        let log = tracing_subscriber::fmt().without_time().with_ansi(false);
        let log = log.fmt_fields(debug_fn(for_people)).with_writer(move || writer.clone());
        tracing::subscriber::with_default(log.finish(), || {
            tracing::info!(shed.refused = 3, interface = "s0", "shop\u{1b}[2J: shedding began");
        });
        let text = String::from_utf8(all.0.lock().unwrap().clone()).unwrap();
        assert!(text.ends_with(": shop\\u{1b}[2J: shedding began interface=\"s0\"\n"), "{text}");
    }

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
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
