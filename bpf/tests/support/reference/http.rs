// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What docs/requests.md says of HTTP/1 heads and bodies, once more and by another hand: the
//! grammar of RFC 9112 by descent, where the C is a machine over bytes. Slow, and obvious.

/// Bytes of a path that are kept (`TG_PATH_MAX`).
const PATH_MAX: usize = 120;
/// Cookies that are kept (`TG_COOKIES_MAX`).
const COOKIES_MAX: usize = 128;
/// Empty lines before a request (`TG_BLANKS_MAX`).
const BLANKS_MAX: usize = 2;
/// A length from which on none is believed (`TG_BODY_MAX`).
const LENGTH_MAX: u64 = 1_000_000_000_000_000_000;
/// Bytes that one chunk may have (`TG_CHUNK_MAX`).
const CHUNK_MAX: u64 = (1 << 28) - 1;

/// Why reading ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The bytes ended, and all was well so far.
    Cut,
    /// No HTTP/1 that everybody reads in the same way.
    Bad,
    /// The preface of HTTP/2.
    Http2,
}

/// Where a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    Bytes(u64),
    Chunked,
    ToClose,
}

/// A host, in lower case and without its port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host(pub Vec<u8>);

impl Host {
    /// From its first dot on.
    pub fn rest(&self) -> Option<&[u8]> {
        if self.0.first() == Some(&b'[') {
            return None;
        }
        let dot = self.0.iter().position(|byte| *byte == b'.')?;
        Some(&self.0[dot..])
    }
}

/// A cookie's name, and its value, if there is a `=`.
pub type Cookie = (Vec<u8>, Option<Vec<u8>>);

/// What a request says; what was not seen keeps its default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    pub method: Vec<u8>,
    pub minor: u8,
    /// The first bytes, in normal form; empty: the target has none, or it is ambiguous.
    pub path: Vec<u8>,
    /// Servers differ in which path it is.
    pub ambiguous: bool,
    /// `None`: not seen yet; an empty one: there is none.
    pub host: Option<Host>,
    /// As many as are kept.
    pub cookies: Vec<Cookie>,
    /// There was something behind them.
    pub more_cookies: bool,
    pub upgrade: bool,
    pub expect: bool,
    /// Of a head that was seen whole.
    pub whole: Option<Whole>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    pub head: usize,
    pub body: Body,
    pub close: bool,
}

/// What an answer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub code: u16,
    pub minor: u8,
    pub head: usize,
    pub body: Body,
    pub close: bool,
    pub interim: bool,
    pub tunnel: bool,
}

/// What an answer is to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct To {
    pub head: bool,
    pub connect: bool,
}

/// Fields that frame, of a request or an answer.
#[derive(Default)]
struct Fields {
    hosts: usize,
    lengths: Vec<u64>,
    chunked: usize,
    close: bool,
    keep: bool,
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn peek(&self) -> Result<u8, Stop> {
        self.bytes.get(self.at).copied().ok_or(Stop::Cut)
    }

    /// All bytes of a kind, and what stops them, which is not taken.
    fn run(&mut self, kind: impl Fn(u8) -> bool) -> Result<(&'a [u8], u8), Stop> {
        let from = self.at;
        while kind(self.peek()?) {
            self.at += 1;
        }
        Ok((&self.bytes[from..self.at], self.bytes[self.at]))
    }

    fn expect(&mut self, wanted: &[u8]) -> Result<(), Stop> {
        for byte in wanted {
            if self.peek()? != *byte {
                return Err(Stop::Bad);
            }
            self.at += 1;
        }
        Ok(())
    }

    fn line_end(&mut self) -> Result<(), Stop> {
        self.expect(b"\r\n")
    }

    fn spaces(&mut self) -> Result<u8, Stop> {
        Ok(self.run(is_space)?.1)
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

fn is_text(byte: u8) -> bool {
    byte == b'\t' || !byte.is_ascii_control()
}

/// Visible, or not ASCII.
fn is_target(byte: u8) -> bool {
    byte > b' ' && byte != 0x7f
}

fn is_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=".contains(&byte)
}

/// The request that these bytes begin with; what was understood, and why reading ended.
pub fn request(bytes: &[u8]) -> (Request, Result<(), Stop>) {
    let mut request = Request::default();
    let result = read_request(&mut Cursor::new(bytes), &mut request);
    (request, result)
}

/// Whether the request line of these bytes is whole: then a head that is cut is no obstacle.
pub fn has_line(bytes: &[u8]) -> bool {
    let mut c = Cursor::new(bytes);
    read_line(&mut c, &mut Request::default()).is_ok()
}

fn read_request(c: &mut Cursor<'_>, request: &mut Request) -> Result<(), Stop> {
    read_line(c, request)?;
    let in_target = request.host.is_some();
    let mut fields = Fields::default();
    while c.peek()? != b'\r' {
        let name = field_name(c)?;
        match name.as_slice() {
            b"host" => {
                fields.hosts += 1;
                if fields.hosts > 1 {
                    return Err(Stop::Bad);
                }
                if in_target {
                    skip(c)?;
                } else {
                    c.spaces()?;
                    read_host_field(c, &mut request.host)?;
                }
            }
            b"cookie" => cookies(c, request)?,
            b"upgrade" => {
                request.upgrade = true;
                skip(c)?;
            }
            b"expect" => {
                request.expect = true;
                skip(c)?;
            }
            _ => common_field(c, &name, &mut fields)?,
        }
        c.line_end()?;
    }
    c.line_end()?;
    let body = framing(&fields, request.minor)?.unwrap_or(Body::Bytes(0));
    request.host.get_or_insert_default();
    let close = closes(&fields, request.minor);
    request.whole = Some(Whole { head: c.at, body, close });
    Ok(())
}

fn read_line(c: &mut Cursor<'_>, request: &mut Request) -> Result<(), Stop> {
    for _ in 0..BLANKS_MAX {
        if c.peek()? == b'\r' {
            c.line_end()?;
        }
    }
    let (method, end) = c.run(is_token)?;
    if method.is_empty() || end != b' ' {
        return Err(Stop::Bad);
    }
    request.method = method.to_vec();
    c.at += 1;
    let star = read_target(c, request)?;
    c.expect(b" ")?;
    request.minor = version(c, request.method == b"PRI" && star)?;
    c.line_end()
}

/// Up to eight bytes, and CR.
fn version(c: &mut Cursor<'_>, pri: bool) -> Result<u8, Stop> {
    let from = c.at;
    while c.peek()? != b'\r' {
        c.at += 1;
        if c.at - from > 8 {
            return Err(Stop::Bad);
        }
    }
    match &c.bytes[from..c.at] {
        b"HTTP/1.1" => Ok(1),
        b"HTTP/1.0" => Ok(0),
        b"HTTP/2.0" if pri => Err(Stop::Http2),
        _ => Err(Stop::Bad),
    }
}

/// Reads a target up to the space behind it; whether it begins with `*`.
fn read_target(c: &mut Cursor<'_>, request: &mut Request) -> Result<bool, Stop> {
    let first = c.peek()?;
    if !is_target(first) {
        return Err(Stop::Bad);
    }
    if first == b'/' {
        return read_path(c, request).map(|()| false);
    }
    if first == b'*' {
        return finish_target(c).map(|()| true);
    }
    let from = c.at;
    // `http://` or `https://`, or something else that has no path
    loop {
        let byte = c.peek()?;
        if byte == b' ' {
            return Ok(false);
        }
        if !is_target(byte) {
            return Err(Stop::Bad);
        }
        if byte == b':' && c.at > from {
            break;
        }
        c.at += 1;
    }
    let scheme = c.bytes[from..c.at].to_ascii_lowercase();
    c.at += 1;
    if scheme != b"http" && scheme != b"https" {
        return finish_target(c).map(|()| false);
    }
    for _ in 0..2 {
        if c.peek()? != b'/' {
            return finish_target(c).map(|()| false);
        }
        c.at += 1;
    }
    read_absolute(c, request).map(|()| false)
}

fn finish_target(c: &mut Cursor<'_>) -> Result<(), Stop> {
    let (_, end) = c.run(is_target)?;
    if end == b' ' { Ok(()) } else { Err(Stop::Bad) }
}

fn read_absolute(c: &mut Cursor<'_>, request: &mut Request) -> Result<(), Stop> {
    let (host, end) = read_host(c)?;
    if host.0.is_empty() || !(end == b' ' || b"/?#".contains(&end)) {
        return Err(Stop::Bad);
    }
    request.host = Some(host);
    if end == b'/' {
        return read_path(c, request);
    }
    request.path = b"/".to_vec();
    finish_target(c)
}

/// A path up to `?`, `#` or the space; then the rest up to the space.
fn read_path(c: &mut Cursor<'_>, request: &mut Request) -> Result<(), Stop> {
    let (found, end) = c.run(|byte| is_target(byte) && !b"?#".contains(&byte))?;
    match normal(found) {
        Some(path) => request.path = path,
        None => request.ambiguous = true,
    }
    if end == b' ' { Ok(()) } else { finish_target(c) }
}

/// What may stand in a segment and means itself (RFC 3986, 3.3), but for the semicolon.
fn is_segment(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,=:@".contains(&byte)
}

/// The characters that a segment means, each as it is kept; `None`: servers differ.
fn meant(segment: &[u8]) -> Option<Vec<u8>> {
    let mut kept = Vec::new();
    let mut rest = segment;
    while let [byte, after @ ..] = rest {
        let (byte, escaped) = match (*byte, after) {
            (b'%', [high, low, ..]) => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                (u8::try_from(digit(high)? * 16 + digit(low)?).unwrap(), true)
            }
            (b'%', _) => return None,
            (byte, _) => (byte, false),
        };
        rest = if escaped { &after[2..] } else { after };
        match byte {
            b'/' | b';' | b'\\' | 0..b' ' | 0x7f => return None,
            _ if is_segment(byte) => kept.push(byte),
            _ => kept.extend(format!("%{byte:02X}").into_bytes()),
        }
    }
    Some(kept)
}

/// The first bytes of a path that begins with a slash, in its normal form.
fn normal(path: &[u8]) -> Option<Vec<u8>> {
    let mut out = b"/".to_vec();
    let mut starts = Vec::new();
    // there was more than is kept
    let mut full = false;
    let mut segments = path[1..].split(|byte| *byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        let segment = meant(segment)?;
        full |= out.len() + segment.len() > PATH_MAX;
        match segment.as_slice() {
            b"" | b"." => continue,
            b".." if full => return None,
            b".." => out.truncate(starts.pop()?),
            _ => {
                starts.push(out.len());
                out.extend(&segment);
                if segments.peek().is_some() {
                    out.push(b'/');
                    full |= out.len() > PATH_MAX;
                }
            }
        }
    }
    out.truncate(PATH_MAX);
    Some(out)
}

/// A host with or without a port, and the byte behind it.
fn read_host(c: &mut Cursor<'_>) -> Result<(Host, u8), Stop> {
    let mut host = Vec::new();
    if c.peek()? == b'[' {
        c.at += 1;
        let (inside, end) = c.run(|byte| byte.is_ascii_hexdigit() || b":.".contains(&byte))?;
        if end != b']' {
            return Err(Stop::Bad);
        }
        c.at += 1;
        host = [b"[", inside, b"]"].concat();
    } else {
        host.extend(c.run(is_host)?.0);
    }
    host.make_ascii_lowercase();
    if c.peek()? == b':' && !host.is_empty() {
        c.at += 1;
        c.run(|byte| byte.is_ascii_digit())?;
    }
    Ok((Host(host), c.peek()?))
}

/// The value of Host: known as soon as white space or the end of the line follows.
fn read_host_field(c: &mut Cursor<'_>, known: &mut Option<Host>) -> Result<(), Stop> {
    let (host, end) = read_host(c)?;
    if !(is_space(end) || end == b'\r') {
        return Err(Stop::Bad);
    }
    *known = Some(host);
    c.spaces()?;
    Ok(())
}

fn field_name(c: &mut Cursor<'_>) -> Result<Vec<u8>, Stop> {
    let (name, end) = c.run(is_token)?;
    if name.is_empty() || end != b':' {
        return Err(Stop::Bad);
    }
    c.at += 1;
    Ok(name.to_ascii_lowercase())
}

/// A value that nobody looks at.
fn skip(c: &mut Cursor<'_>) -> Result<(), Stop> {
    c.run(is_text).map(|_| ())
}

/// Fields that answers have, too.
fn common_field(c: &mut Cursor<'_>, name: &[u8], fields: &mut Fields) -> Result<(), Stop> {
    match name {
        b"content-length" => {
            if !fields.lengths.is_empty() {
                return Err(Stop::Bad);
            }
            c.spaces()?;
            fields.lengths.push(length(c)?);
            c.spaces()?;
        }
        b"transfer-encoding" => {
            fields.chunked += 1;
            if fields.chunked > 1 {
                return Err(Stop::Bad);
            }
            c.spaces()?;
            let (coding, end) = c.run(is_token)?;
            if !coding.eq_ignore_ascii_case(b"chunked") || !(is_space(end) || end == b'\r') {
                return Err(Stop::Bad);
            }
            c.spaces()?;
        }
        b"connection" => {
            let (list, _) = c.run(is_text)?;
            let words = list.split(|byte| *byte == b',' || is_space(*byte));
            for word in words.map(<[u8]>::to_ascii_lowercase) {
                fields.close |= word == b"close";
                fields.keep |= word == b"keep-alive";
            }
        }
        _ => skip(c)?,
    }
    Ok(())
}

fn length(c: &mut Cursor<'_>) -> Result<u64, Stop> {
    let from = c.at;
    let mut value: u64 = 0;
    while c.peek()?.is_ascii_digit() {
        value = value * 10 + u64::from(c.peek()? - b'0');
        if value >= LENGTH_MAX {
            return Err(Stop::Bad);
        }
        c.at += 1;
    }
    let end = c.peek()?;
    if c.at == from || !(is_space(end) || end == b'\r') {
        return Err(Stop::Bad);
    }
    Ok(value)
}

/// Pairs between semicolons.
fn cookies(c: &mut Cursor<'_>, request: &mut Request) -> Result<(), Stop> {
    loop {
        let end = c.run(|byte| is_space(byte) || byte == b';')?.1;
        if end == b'\r' {
            return Ok(());
        }
        let (text, end) = c.run(|byte| is_text(byte) && byte != b';')?;
        if end != b';' && end != b'\r' {
            return Err(Stop::Bad);
        }
        if request.cookies.len() == COOKIES_MAX {
            request.more_cookies = true;
        } else {
            request.cookies.extend(cookie(text));
        }
    }
}

/// What stands between two semicolons, white space before it gone.
fn cookie(text: &[u8]) -> Option<Cookie> {
    let end = text.iter().rposition(|byte| !is_space(*byte)).map_or(0, |last| last + 1);
    let text = &text[..end];
    if text.iter().any(|byte| is_space(*byte)) {
        return None;
    }
    Some(match text.iter().position(|byte| *byte == b'=') {
        Some(at) => (text[..at].to_vec(), Some(text[at + 1..].to_vec())),
        None => (text.to_vec(), None),
    })
}

/// The body that fields announce; `None`: they say nothing.
fn framing(fields: &Fields, minor: u8) -> Result<Option<Body>, Stop> {
    match (fields.chunked, fields.lengths.first()) {
        (0, length) => Ok(length.map(|length| Body::Bytes(*length))),
        (_, None) if minor == 1 => Ok(Some(Body::Chunked)),
        _ => Err(Stop::Bad),
    }
}

fn closes(fields: &Fields, minor: u8) -> bool {
    fields.close || (minor == 0 && !fields.keep)
}

/// The answer that these bytes begin with.
pub fn answer(bytes: &[u8], to: To) -> Result<Answer, Stop> {
    let mut c = Cursor::new(bytes);
    let (minor, code) = status(&mut c)?;
    let mut fields = Fields::default();
    while c.peek()? != b'\r' {
        let name = field_name(&mut c)?;
        common_field(&mut c, &name, &mut fields)?;
        c.line_end()?;
    }
    c.line_end()?;
    if !(100..600).contains(&code) {
        return Err(Stop::Bad);
    }
    let framed = framing(&fields, minor)?;
    let tunnel = code == 101 || (to.connect && code / 100 == 2);
    let bare = to.head || code < 200 || code == 204 || code == 304 || tunnel;
    let body = if bare { Body::Bytes(0) } else { framed.unwrap_or(Body::ToClose) };
    let close = closes(&fields, minor) || body == Body::ToClose;
    Ok(Answer {
        code,
        minor,
        head: c.at,
        body,
        close: close && code >= 200 && !tunnel,
        interim: code < 200 && !tunnel,
        tunnel,
    })
}

fn status(c: &mut Cursor<'_>) -> Result<(u8, u16), Stop> {
    let from = c.at;
    while c.peek()? != b' ' {
        c.at += 1;
        if c.at - from > 8 {
            return Err(Stop::Bad);
        }
    }
    let minor = match &c.bytes[from..c.at] {
        b"HTTP/1.1" => 1,
        b"HTTP/1.0" => 0,
        _ => return Err(Stop::Bad),
    };
    c.at += 1;
    let mut code = 0;
    for _ in 0..3 {
        let digit = c.peek()?;
        if !digit.is_ascii_digit() {
            return Err(Stop::Bad);
        }
        code = code * 10 + u16::from(digit - b'0');
        c.at += 1;
    }
    if c.peek()? == b' ' {
        skip(c)?;
    }
    c.line_end()?;
    Ok((minor, code))
}

/// Bytes of a chunked body that these bytes begin with, its last CR LF included.
pub fn chunked(bytes: &[u8]) -> Result<usize, Stop> {
    let mut c = Cursor::new(bytes);
    loop {
        let size = chunk_size(&mut c)?;
        if size == 0 {
            break;
        }
        let data = c.at as u64 + size;
        if data > bytes.len() as u64 {
            return Err(Stop::Cut);
        }
        c.at = data as usize;
        c.line_end()?;
    }
    while c.peek()? != b'\r' {
        if !is_token(c.peek()?) {
            return Err(Stop::Bad);
        }
        skip(&mut c)?;
        c.line_end()?;
    }
    c.line_end()?;
    Ok(c.at)
}

fn chunk_size(c: &mut Cursor<'_>) -> Result<u64, Stop> {
    let (mut size, mut digits) = (0, 0);
    while let Some(digit) = char::from(c.peek()?).to_digit(16) {
        size = size * 16 + u64::from(digit);
        digits += 1;
        if size > CHUNK_MAX {
            return Err(Stop::Bad);
        }
        c.at += 1;
    }
    let end = c.peek()?;
    if digits == 0 || !(end == b'\r' || end == b';' || is_space(end)) {
        return Err(Stop::Bad);
    }
    skip(c)?;
    c.line_end()?;
    Ok(size)
}
