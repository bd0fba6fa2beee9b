// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lines of a stream, each of bounded length, with their numbers.

use super::error::{TraceError, What};
use std::io::{BufRead, ErrorKind};

/// Longest line, in bytes; the rest of a longer one is passed over without being kept.
pub const LINE_MAX: usize = 64 << 10;
/// A read that was interrupted is tried again so often.
const INTERRUPTIONS_MAX: u32 = 1000;

/// See the module.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    reader: R,
    line: Vec<u8>,
    number: u64,
    bytes: u64,
}

impl<R: BufRead> Lines<R> {
    pub(crate) const fn new(reader: R) -> Self {
        Self { reader, line: Vec::new(), number: 0, bytes: 0 }
    }

    /// Number of the last line, from 1.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// Bytes read so far.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next line without its end; `None` at the end of the stream.
    pub(crate) fn next_line(&mut self) -> Result<Option<&[u8]>, TraceError> {
        self.line.clear();
        let mut length = 0_usize;
        loop {
            let (used, ended) = self.take(length)?;
            length += used;
            if ended || used == 0 {
                break;
            }
        }
        if length == 0 {
            return Ok(None);
        }
        self.number += 1;
        if self.line.len() > LINE_MAX {
            return Err(TraceError { line: self.number, what: What::TooLong });
        }
        let mut line = self.line.as_slice();
        if self.number == 1 {
            line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line);
        }
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }

    /// Takes what the buffer has of this line, of which `length` bytes were taken before: how
    /// many bytes, and whether its end was among them.
    fn take(&mut self, length: usize) -> Result<(usize, bool), TraceError> {
        let (number, bytes) = (self.number, self.bytes);
        let buffer = filled(&mut self.reader).map_err(|error| broken(number, bytes, &error))?;
        let end = buffer.iter().position(|b| *b == b'\n');
        let text = &buffer[..end.unwrap_or(buffer.len())];
        // One byte more than allowed is kept: it tells a line that is too long.
        let room = (LINE_MAX + 1).saturating_sub(length);
        self.line.extend_from_slice(&text[..text.len().min(room)]);
        let used = end.map_or(buffer.len(), |end| end + 1);
        self.reader.consume(used);
        self.bytes += used as u64;
        Ok((used, end.is_some()))
    }
}

fn filled<R: BufRead>(reader: &mut R) -> std::io::Result<&[u8]> {
    for _ in 0..INTERRUPTIONS_MAX {
        match reader.fill_buf() {
            Ok(_) => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    // The buffer that was filled above: asked for twice, as a borrow cannot leave a loop.
    reader.fill_buf()
}

fn broken(line: u64, bytes: u64, error: &std::io::Error) -> TraceError {
    let what = match error.kind() {
        ErrorKind::UnexpectedEof => What::Cut(bytes),
        _ => What::Io(bytes, error.to_string()),
    };
    TraceError { line, what }
}
