// SPDX-License-Identifier: Apache-2.0 OR MIT
//! As much of HTTP/1.1 as tells a complete answer from a cut one: status, length or chunks, and
//! whether the connection stays open. Bodies are counted, not kept.

/// Longest head that is read; longer ones count as broken.
const HEAD_BYTES_MAX: usize = 16_384;
/// Longest line between chunks.
const CHUNK_LINE_MAX: usize = 256;

/// What an answer's bytes amount to so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// More must come.
    Partial,
    /// All of it is there.
    Complete,
    /// No answer that HTTP/1.1 allows.
    Broken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    Head,
    Length(u64),
    ToEnd,
    ChunkSize,
    ChunkData(u64),
    Trailer,
    Done,
}

/// Reads one answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    line: Vec<u8>,
    body: Body,
    status: u16,
    keep: bool,
}

impl Default for Answer {
    fn default() -> Self {
        Self { line: Vec::new(), body: Body::Head, status: 0, keep: false }
    }
}

impl Answer {
    /// One of HTTP/0.9: no head, a body to the end of the connection; its bytes count as a 200.
    pub(crate) const fn headless() -> Self {
        Self { line: Vec::new(), body: Body::ToEnd, status: 200, keep: false }
    }

    /// The status; 0 before the head is complete.
    pub(crate) const fn status(&self) -> u16 {
        self.status
    }

    /// Whether the server leaves the connection open after this answer.
    pub(crate) const fn keeps_open(&self) -> bool {
        self.keep
    }

    /// Takes the next bytes.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Progress {
        // Each round consumes a byte or ends: bounded by the input.
        while !bytes.is_empty() && self.body != Body::Done {
            let used = match self.body {
                Body::Head => self.head(bytes),
                Body::Length(left) => Some(self.skip(bytes, left, Body::Done, Body::Length)),
                Body::ChunkData(left) => {
                    Some(self.skip(bytes, left, Body::ChunkSize, Body::ChunkData))
                }
                Body::ChunkSize | Body::Trailer => self.chunk_line(bytes),
                Body::ToEnd | Body::Done => Some(bytes.len()),
            };
            match used {
                Some(n) => bytes = &bytes[n.min(bytes.len())..],
                None => return Progress::Broken,
            }
        }
        if self.body == Body::Done { Progress::Complete } else { Progress::Partial }
    }

    /// The connection has ended: complete only where the end says so.
    pub(crate) fn end(&mut self) -> Progress {
        match self.body {
            Body::ToEnd | Body::Done => Progress::Complete,
            _ => Progress::Broken,
        }
    }

    fn skip(&mut self, bytes: &[u8], left: u64, then: Body, rest: fn(u64) -> Body) -> usize {
        let used = left.min(bytes.len() as u64);
        self.body = if used == left { then } else { rest(left - used) };
        used as usize
    }

    fn head(&mut self, bytes: &[u8]) -> Option<usize> {
        let before = self.line.len();
        let take = bytes.len().min(HEAD_BYTES_MAX - before);
        self.line.extend_from_slice(&bytes[..take]);
        let from = before.saturating_sub(3);
        let end = self.line[from..].windows(4).position(|w| w == b"\r\n\r\n");
        let Some(end) = end.map(|p| from + p + 4) else {
            return (self.line.len() < HEAD_BYTES_MAX).then_some(take);
        };
        let head = std::mem::take(&mut self.line);
        self.parse_head(std::str::from_utf8(&head[..end]).ok()?)?;
        Some(end - before)
    }

    fn parse_head(&mut self, head: &str) -> Option<()> {
        let mut lines = head.split("\r\n");
        let (version, rest) = lines.next()?.split_once(' ')?;
        self.status = rest.get(..3)?.parse().ok()?;
        self.keep = version == "HTTP/1.1";
        self.body = Body::ToEnd;
        for (name, value) in lines.filter_map(|l| l.split_once(':')) {
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") && self.body == Body::ToEnd {
                self.body = Body::Length(value.parse().ok()?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                self.body = Body::ChunkSize;
            } else if name.eq_ignore_ascii_case("connection") {
                self.keep = !value.eq_ignore_ascii_case("close");
            }
        }
        match self.status {
            100..=199 => *self = Self::default(),
            204 | 304 => self.body = Body::Done,
            _ if self.body == Body::Length(0) => self.body = Body::Done,
            _ => self.keep &= self.body != Body::ToEnd,
        }
        Some(())
    }

    /// A line of the chunked coding: a size, the blank line after a chunk, or a trailer.
    fn chunk_line(&mut self, bytes: &[u8]) -> Option<usize> {
        let end = bytes.iter().position(|b| *b == b'\n').map_or(bytes.len(), |p| p + 1);
        self.line.extend_from_slice(&bytes[..end]);
        if self.line.last() != Some(&b'\n') {
            return (self.line.len() < CHUNK_LINE_MAX).then_some(end);
        }
        let line = std::mem::take(&mut self.line);
        let line = std::str::from_utf8(&line).ok()?.trim();
        match (self.body, line.is_empty()) {
            (Body::Trailer, true) => self.body = Body::Done,
            // The line break that ends a chunk's data.
            (Body::ChunkSize, true) | (Body::Trailer, false) => {}
            _ => {
                let size = line.split(';').next()?.trim();
                let size = u64::from_str_radix(size, 16).ok()?;
                self.body = if size == 0 { Body::Trailer } else { Body::ChunkData(size) };
            }
        }
        Some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every way of cutting the bytes in two, and byte by byte, gives the same result.
    fn read(text: &str) -> (Progress, u16, bool) {
        let bytes = text.as_bytes();
        let mut results = Vec::new();
        for cut in 0..=bytes.len() {
            let mut answer = Answer::default();
            answer.feed(&bytes[..cut]);
            let mut last = answer.feed(&bytes[cut..]);
            if last == Progress::Partial {
                last = answer.end();
            }
            results.push((last, answer.status(), answer.keeps_open()));
        }
        let mut single = Answer::default();
        for byte in bytes {
            single.feed(&[*byte]);
        }
        let end = single.end();
        results.push((end, single.status(), single.keeps_open()));
        // A cut at the very end feeds an empty rest: then only end() judges.
        assert!(results.iter().all(|r| *r == results[0]), "{text:?}: {results:?}");
        results[0]
    }

    #[test]
    fn answers_end_where_http_says() {
        use Progress::{Broken, Complete};
        let cases = [
            ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", (Complete, 200, true)),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 3\r\nConnection: close\r\n\r\nab",
                (Broken, 200, false),
            ),
            (
                "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                (Complete, 503, false),
            ),
            ("HTTP/1.1 200 OK\r\n\r\nto the end", (Complete, 200, false)),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
                (Complete, 200, true),
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
                (Broken, 200, true),
            ),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No\r\n\r\n", (Complete, 204, true)),
            ("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", (Complete, 200, false)),
            ("HTTP/1.1 200 OK\r\nContent-Le", (Broken, 0, false)),
            ("", (Broken, 0, false)),
        ];
        for (text, want) in cases {
            assert_eq!(read(text), want, "{text:?}");
        }
    }

    #[test]
    fn nonsense_and_endless_heads_are_broken() {
        for text in [
            "SSH-2.0-x\r\n\r\n",
            "HTTP/1.1 abc\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        ] {
            assert_eq!(Answer::default().feed(text.as_bytes()), Progress::Broken, "{text:?}");
        }
        assert_eq!(Answer::default().feed(&[b'a'; HEAD_BYTES_MAX + 1]), Progress::Broken);
    }
}
