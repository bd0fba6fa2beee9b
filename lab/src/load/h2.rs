// SPDX-License-Identifier: Apache-2.0 OR MIT
//! As much of HTTP/2 as a client needs whose requests have no body (RFC 9113, RFC 7541): preface,
//! frames, status, flow control, and whether the connection may carry another request.
//!
//! The client announces a header table of 0 bytes, so a response's header block depends on no
//! block before it and the status can be read from its first field alone.

use super::http::Progress;

/// What every client says first (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of a frame's head.
const HEAD_BYTES: usize = 9;
/// Largest payload that the client reads: the default of SETTINGS_MAX_FRAME_SIZE.
const FRAME_BYTES_MAX: usize = 16_384;
/// What the server may send on a stream, and on the connection, before the client grants more:
/// as much as curl grants. A stream beyond that would stall and count as unanswered.
const WINDOW_BYTES: u32 = 32 << 20;
/// The connection's window grows by WINDOW_UPDATE once this much of it is used.
const REFRESH_BYTES: u32 = WINDOW_BYTES / 2;
/// The connection's window before any update (RFC 9113, 6.9.2).
const WINDOW_DEFAULT: u32 = 65_535;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

/// One client's end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct H2 {
    /// The stream of the last request; 0 before the first.
    stream: u32,
    /// Streams under way with their statuses, 0 before the head.
    open: Vec<(u32, u16)>,
    /// Statuses of those that have ended while others are under way.
    early: Vec<u16>,
    input: Vec<u8>,
    /// Header block of the present response, until END_HEADERS.
    block: Vec<u8>,
    in_block: bool,
    ends_with_block: bool,
    status: u16,
    goaway: bool,
    unacknowledged: u32,
    output: Vec<u8>,
}

impl H2 {
    pub(crate) fn new() -> Self {
        let mut output = PREFACE.to_vec();
        let mut settings = Vec::new();
        // HEADER_TABLE_SIZE 0, ENABLE_PUSH 0, INITIAL_WINDOW_SIZE.
        for (id, value) in [(1_u16, 0_u32), (2, 0), (4, WINDOW_BYTES)] {
            settings.extend_from_slice(&id.to_be_bytes());
            settings.extend_from_slice(&value.to_be_bytes());
        }
        frame(&mut output, (SETTINGS, 0, 0), &settings);
        let more = (WINDOW_BYTES - WINDOW_DEFAULT).to_be_bytes();
        frame(&mut output, (WINDOW_UPDATE, 0, 0), &more);
        Self {
            stream: 0,
            open: Vec::new(),
            early: Vec::new(),
            input: Vec::new(),
            block: Vec::new(),
            in_block: false,
            ends_with_block: false,
            status: 0,
            goaway: false,
            unacknowledged: 0,
            output,
        }
    }

    /// Asks for what a header block says, on the next stream.
    pub(crate) fn request(&mut self, block: &[u8]) {
        self.stream = if self.stream == 0 { 1 } else { self.stream + 2 };
        self.open.push((self.stream, 0));
        self.status = 0;
        self.ends_with_block = false;
        frame(&mut self.output, (HEADERS, END_STREAM | END_HEADERS, self.stream), block);
    }

    /// What is to be sent; it is not given twice.
    pub(crate) fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// The statuses of responses that have ended while others are under way; not given twice.
    pub(crate) fn take_early(&mut self) -> Vec<u16> {
        std::mem::take(&mut self.early)
    }

    /// The status of the response that ended last; 0 before it.
    pub(crate) const fn status(&self) -> u16 {
        self.status
    }

    /// Whether the server takes another request on this connection.
    pub(crate) const fn keeps_open(&self) -> bool {
        !self.goaway
    }

    /// Takes the next bytes. `Complete` is given once no request is under way any more.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Progress {
        self.input.extend_from_slice(bytes);
        let mut at = 0;
        let mut complete = false;
        // Each round consumes a frame: bounded by the input.
        while let Some(head) = self.input.get(at..at + HEAD_BYTES) {
            let length =
                usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            if length > FRAME_BYTES_MAX {
                return Progress::Broken;
            }
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
            let from = at + HEAD_BYTES;
            let Some(payload) = self.input.get(from..from + length) else { break };
            let payload = payload.to_vec();
            at = from + length;
            match self.on_frame((kind, flags, stream), &payload) {
                Some(ends) => complete |= ends,
                None => return Progress::Broken,
            }
        }
        self.input.drain(..at);
        if complete { Progress::Complete } else { Progress::Partial }
    }

    /// Takes one frame; `true` if it ends the last response, nothing if it breaks one.
    fn on_frame(&mut self, (kind, flags, stream): (u8, u8, u32), payload: &[u8]) -> Option<bool> {
        if self.in_block && kind != CONTINUATION {
            return None;
        }
        let mine = self.open.iter().position(|open| open.0 == stream);
        match kind {
            DATA => {
                self.grant(payload.len() as u32);
                let ends = mine.filter(|_| flags & END_STREAM != 0);
                Some(ends.is_some_and(|at| self.end(at)))
            }
            HEADERS => {
                self.block = fragment(flags, payload)?.to_vec();
                self.ends_with_block = flags & END_STREAM != 0;
                self.end_block(flags, mine)
            }
            CONTINUATION if self.in_block => {
                self.block.extend_from_slice(payload);
                if self.block.len() > FRAME_BYTES_MAX {
                    return None;
                }
                self.end_block(flags, mine)
            }
            RST_STREAM => mine.is_none().then_some(false),
            SETTINGS => {
                if flags & ACK == 0 {
                    frame(&mut self.output, (SETTINGS, ACK, 0), &[]);
                }
                Some(false)
            }
            PING => {
                if flags & ACK == 0 {
                    frame(&mut self.output, (PING, ACK, 0), payload);
                }
                Some(false)
            }
            GOAWAY => self.on_goaway(payload),
            PUSH_PROMISE | CONTINUATION => None,
            // PRIORITY, WINDOW_UPDATE (requests have no body) and what later RFCs add.
            _ => Some(false),
        }
    }

    fn end_block(&mut self, flags: u8, mine: Option<usize>) -> Option<bool> {
        self.in_block = flags & END_HEADERS == 0;
        let Some(at) = mine.filter(|_| !self.in_block) else { return Some(false) };
        // Trailers and informational heads do not change a status that is there.
        if self.open[at].1 < 200 {
            self.open[at].1 = status_of(&self.block)?;
        }
        Some(self.ends_with_block && self.end(at))
    }

    /// A response has ended; `true` if it is the last under way.
    fn end(&mut self, at: usize) -> bool {
        let (_, status) = self.open.remove(at);
        if self.open.is_empty() {
            self.status = status;
            return true;
        }
        self.early.push(status);
        false
    }

    /// The server will not answer streams above the last one that it names.
    fn on_goaway(&mut self, payload: &[u8]) -> Option<bool> {
        let last = payload.get(..4)?;
        let last = u32::from_be_bytes([last[0] & 0x7f, last[1], last[2], last[3]]);
        self.goaway = true;
        let needed = self.open.last().map_or(0, |open| open.0);
        (last >= needed).then_some(false)
    }

    fn grant(&mut self, bytes: u32) {
        self.unacknowledged += bytes;
        if self.unacknowledged >= REFRESH_BYTES {
            let more = self.unacknowledged.to_be_bytes();
            self.unacknowledged = 0;
            frame(&mut self.output, (WINDOW_UPDATE, 0, 0), &more);
        }
    }
}

fn frame(out: &mut Vec<u8>, (kind, flags, stream): (u8, u8, u32), payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// A header block's part of a HEADERS frame: without padding and priority.
fn fragment(flags: u8, mut payload: &[u8]) -> Option<&[u8]> {
    if flags & PADDED != 0 {
        let (&padding, rest) = payload.split_first()?;
        payload = rest.get(..rest.len().checked_sub(padding.into())?)?;
    }
    if flags & PRIORITY != 0 { payload.get(5..) } else { Some(payload) }
}

/// The header block of a request; names and values are literals that no table keeps.
pub(crate) fn request_block(host: &str, path: &str, cookie: Option<&str>) -> Vec<u8> {
    // Static table (RFC 7541, appendix A): 2 is `:method: GET`, 7 is `:scheme: https`.
    let mut block = vec![0x82, 0x87];
    // Names 4 `:path`, 1 `:authority`, 58 `user-agent`, 19 `accept`, 32 `cookie`.
    let fields = [(4, path), (1, host), (58, "tidegate-load"), (19, "*/*")];
    for (name, value) in fields.into_iter().chain(cookie.map(|c| (32, c))) {
        integer(&mut block, (0, 4), name);
        integer(&mut block, (0, 7), value.len());
        block.extend_from_slice(value.as_bytes());
    }
    block
}

/// An integer behind the bits of its first byte (RFC 7541, 5.1).
fn integer(out: &mut Vec<u8>, (first, bits): (u8, u32), value: usize) {
    let most = (1_usize << bits) - 1;
    if value < most {
        out.push(first | value as u8);
        return;
    }
    out.push(first | most as u8);
    let mut rest = value - most;
    // At most ten rounds: seven bits each.
    while rest >= 128 {
        out.push((rest % 128) as u8 | 0x80);
        rest /= 128;
    }
    out.push(rest as u8);
}

/// The status that a header block begins with; nothing when it begins otherwise.
fn status_of(mut block: &[u8]) -> Option<u16> {
    // Updates of the table's size come first (RFC 7541, 4.2).
    while block.first()? & 0xe0 == 0x20 {
        block = skip_integer(block, 5)?;
    }
    let first = *block.first()?;
    // Static table: 8 to 14 are `:status` with a value.
    let known = [200, 204, 206, 304, 400, 404, 500];
    if first & 0x80 != 0 {
        return known.get(usize::from(first & 0x7f).checked_sub(8)?).copied();
    }
    // A literal; an index of 8 to 14 names `:status`.
    let index = if first & 0x40 != 0 { first & 0x3f } else { first & 0x0f };
    if !(8..=14).contains(&index) {
        return None;
    }
    let (&length, value) = block.get(1..)?.split_first()?;
    let value = value.get(..usize::from(length & 0x7f))?;
    if length & 0x80 != 0 { huffman_digits(value) } else { digits(value.iter().copied()) }
}

fn skip_integer(block: &[u8], bits: u32) -> Option<&[u8]> {
    let most = (1_u8 << bits) - 1;
    let (&first, mut rest) = block.split_first()?;
    if first & most < most {
        return Some(rest);
    }
    // Bounded by the block.
    loop {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        if byte & 0x80 == 0 {
            return Some(rest);
        }
    }
}

fn digits(text: impl Iterator<Item = u8>) -> Option<u16> {
    let text: Vec<u8> = text.collect();
    std::str::from_utf8(&text).ok()?.parse().ok().filter(|status| (100..1_000).contains(status))
}

/// Digits in the code of RFC 7541, appendix B: `0` to `2` are 00000 to 00010, `3` to `9` are
/// 011001 to 011111; what is left is padding of ones.
fn huffman_digits(bytes: &[u8]) -> Option<u16> {
    let bits: Vec<u8> = bytes.iter().flat_map(|b| (0..8).rev().map(move |i| b >> i & 1)).collect();
    let number = |bits: &[u8]| bits.iter().fold(0_u8, |n, bit| n << 1 | bit);
    let (mut at, mut text) = (0, Vec::new());
    // Each round consumes five bits or ends.
    while let Some(five) = bits.get(at..at + 5).map(number) {
        let six = bits.get(at..at + 6).map_or(0, number);
        match (five, six) {
            (0..=2, _) => (text.push(b'0' + five), at += 5).1,
            (_, 0x19..=0x1f) => (text.push(b'3' + six - 0x19), at += 6).1,
            _ => break,
        }
    }
    bits[at..].iter().all(|bit| *bit == 1).then(|| digits(text.into_iter()))?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kind, flags and stream of a frame, and its payload.
    type Frame<'a> = ((u8, u8, u32), &'a [u8]);

    fn bytes(frames: &[Frame<'_>]) -> Vec<u8> {
        let mut out = Vec::new();
        frames.iter().for_each(|(head, payload)| frame(&mut out, *head, payload));
        out
    }

    fn asked() -> H2 {
        let mut h2 = H2::new();
        h2.take_output();
        h2.request(&request_block("lab.test", "/", None));
        h2
    }

    /// Statuses as nginx, nghttp2 and others write them: indexed, literal, with the Huffman code.
    #[test]
    fn a_status_is_read_in_every_form() {
        let cases: [(&[u8], Option<u16>); 9] = [
            (&[0x88], Some(200)),
            (&[0x20, 0x88], Some(200)),
            (&[0x3f, 0xe1, 0x1f, 0x8e], Some(500)),
            (&[0x08, 3, b'5', b'0', b'3'], Some(503)),
            (&[0x48, 3, b'4', b'2', b'9'], Some(429)),
            // RFC 7541, C.6.1: "302" is 64 02.
            (&[0x48, 0x82, 0x64, 0x02], Some(302)),
            // nghttp2 names :status by its last index.
            (&[0x0e, 3, b'5', b'0', b'2'], Some(502)),
            (&[0x40, 1, b'a', 1, b'b'], None),
            (&[], None),
        ];
        for (block, status) in cases {
            assert_eq!(status_of(block), status, "{block:02x?}");
        }
        // 503 is 011011 00000 011001 and padding.
        assert_eq!(huffman_digits(&[0x6c, 0x0c, 0xff]), Some(503));
        assert_eq!(huffman_digits(&[0x6c, 0x0c, 0x00]), None);
    }

    /// Whatever cuts the bytes, the response is complete with its last byte and not before.
    #[test]
    fn a_response_is_complete_at_its_last_byte() {
        let text = bytes(&[
            ((SETTINGS, 0, 0), &[]),
            ((WINDOW_UPDATE, 0, 0), &[0, 0, 1, 0]),
            ((HEADERS, END_HEADERS, 1), &[0x88]),
            ((DATA, 0, 1), b"o"),
            ((DATA, END_STREAM, 1), b"k"),
        ]);
        for cut in 0..text.len() {
            let mut h2 = asked();
            assert_eq!(h2.feed(&text[..cut]), Progress::Partial, "{cut}");
            assert_eq!(h2.feed(&text[cut..]), Progress::Complete, "{cut}");
            assert_eq!((h2.status(), h2.keeps_open()), (200, true));
        }
    }

    /// Settings and pings are acknowledged once; an acknowledgement is not.
    #[test]
    fn control_frames_are_acknowledged() {
        let mut h2 = asked();
        h2.take_output();
        let ping = [1, 2, 3, 4, 5, 6, 7, 8];
        let said = bytes(&[
            ((SETTINGS, 0, 0), &[]),
            ((PING, 0, 0), &ping),
            ((SETTINGS, ACK, 0), &[]),
            ((PING, ACK, 0), &ping),
        ]);
        assert_eq!(h2.feed(&said), Progress::Partial);
        let want = bytes(&[((SETTINGS, ACK, 0), &[]), ((PING, ACK, 0), &ping)]);
        assert_eq!(h2.take_output(), want);
    }

    /// A second request goes on stream 3; what comes late on stream 1 does not end it.
    #[test]
    fn requests_follow_each_other_on_odd_streams() {
        let mut h2 = asked();
        h2.take_output();
        let one = bytes(&[((HEADERS, END_HEADERS | END_STREAM, 1), &[0x89])]);
        assert_eq!(h2.feed(&one), Progress::Complete);
        assert_eq!(h2.status(), 204);
        h2.request(&request_block("lab.test", "/", Some("a=1")));
        assert_eq!(h2.take_output()[5..9], [0, 0, 0, 3]);
        assert_eq!(h2.feed(&bytes(&[((DATA, END_STREAM, 1), b"x")])), Progress::Partial);
        let head = [0x08, 3, b'5', b'0', b'3'];
        let three =
            bytes(&[((HEADERS, END_STREAM, 3), &head[..2]), ((CONTINUATION, 4, 3), &head[2..])]);
        assert_eq!(h2.feed(&three), Progress::Complete);
        assert_eq!(h2.status(), 503);
    }

    /// Several requests at once: each that ends is told at once, whatever the order, and the whole
    /// is complete with the last. A reset of one of them breaks the connection.
    #[test]
    fn several_streams_end_one_by_one() {
        let mut h2 = asked();
        h2.request(&request_block("lab.test", "/", None));
        h2.request(&request_block("lab.test", "/", None));
        let ends = END_HEADERS | END_STREAM;
        let two = bytes(&[
            ((HEADERS, END_HEADERS, 1), &[0x88]),
            ((HEADERS, ends, 5), &[0x08, 3, b'5', b'0', b'3']),
            ((HEADERS, ends, 3), &[0x88]),
        ]);
        assert_eq!(h2.feed(&two), Progress::Partial);
        assert_eq!((h2.take_early(), h2.take_early()), (vec![503, 200], vec![]));
        let mut broken = h2.clone();
        assert_eq!(h2.feed(&bytes(&[((DATA, END_STREAM, 1), b"ok")])), Progress::Complete);
        assert_eq!((h2.status(), h2.take_early().is_empty()), (200, true));
        let reset = bytes(&[((RST_STREAM, 0, 1), &[0, 0, 0, 7])]);
        assert_eq!(broken.feed(&reset), Progress::Broken);
    }

    /// A GOAWAY that covers the request lets it end; one that does not, a reset and nonsense break it.
    #[test]
    fn what_ends_a_connection() {
        let mut h2 = asked();
        let polite = bytes(&[
            ((GOAWAY, 0, 0), &[0, 0, 0, 1, 0, 0, 0, 0]),
            ((HEADERS, END_HEADERS | END_STREAM, 1), &[0x88]),
        ]);
        assert_eq!(h2.feed(&polite), Progress::Complete);
        assert!(!h2.keeps_open());
        let broken: [&[u8]; 4] = [
            &bytes(&[((GOAWAY, 0, 0), &[0; 8])]),
            &bytes(&[((RST_STREAM, 0, 1), &[0, 0, 0, 7])]),
            &bytes(&[((HEADERS, 0, 1), &[0x88]), ((DATA, END_STREAM, 1), b"")]),
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
        ];
        for said in broken {
            assert_eq!(asked().feed(said), Progress::Broken, "{said:02x?}");
        }
    }

    /// The connection's window is refilled before it is empty.
    #[test]
    fn a_large_response_is_granted_its_window() {
        let mut h2 = asked();
        h2.take_output();
        let block = vec![0; FRAME_BYTES_MAX];
        let frames = REFRESH_BYTES as usize / FRAME_BYTES_MAX;
        for _ in 0..frames {
            assert_eq!(h2.feed(&bytes(&[((DATA, 0, 1), &block)])), Progress::Partial);
        }
        let update = bytes(&[((WINDOW_UPDATE, 0, 0), &REFRESH_BYTES.to_be_bytes())]);
        assert_eq!(h2.take_output(), update);
    }

    /// Integers beyond their first byte (RFC 7541, C.1.2: 1337 in 5 bits).
    #[test]
    fn integers_may_be_longer_than_a_byte() {
        let mut out = Vec::new();
        integer(&mut out, (0, 5), 1337);
        assert_eq!(out, [0x1f, 0x9a, 0x0a]);
        assert_eq!(skip_integer(&[0x3f, 0x9a, 0x0a, 0x88], 5), Some(&[0x88][..]));
        let block = request_block("lab.test", "/x", Some("session=7"));
        assert_eq!(&block[..5], [0x82, 0x87, 4, 2, b'/']);
    }
}
