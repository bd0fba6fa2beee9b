// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Host and path of a request, from the first bytes of its first segment: HTTP/1 in cleartext, or the server name of a
//! TLS ClientHello (RFC 6066, 3). What is cut in the middle is not guessed.

/// Longest host and path that are told apart.
const HOST_MAX: usize = 253;
const PATH_MAX: usize = 120;
/// Of a TLS record with a ClientHello: where the length of the session id stands.
const SESSION_AT: usize = 43;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;

/// What a request is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// In lower case, without a port; empty if none is named here.
    pub(super) host: String,
    /// Without a query; empty inside TLS.
    pub(super) path: String,
}

impl Request {
    /// `None`: nothing of it is seen.
    pub(super) fn of(payload: &[u8]) -> Option<Self> {
        match payload.first() {
            Some(&HANDSHAKE) => {
                let host = host(&server_name(payload)?)?;
                Some(Self { host, path: String::new() })
            }
            _ => http(payload),
        }
    }
}

fn http(payload: &[u8]) -> Option<Request> {
    let mut lines = Lines(payload);
    let line = std::str::from_utf8(lines.next()?).ok()?;
    let mut words = line.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let is_method = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
    if !is_method || !version.starts_with("HTTP/1.") || words.next().is_some() {
        return None;
    }
    let (named, target) = match target.split_once("://") {
        Some(("http" | "https", rest)) => {
            let at = rest.find('/').unwrap_or(rest.len());
            (host(&rest[..at]), &rest[at..])
        }
        _ => (None, target),
    };
    let header = || lines.take_while(|line| !line.is_empty()).find_map(host_header);
    let host = named.or_else(header).unwrap_or_default();
    let end = target.find(['?', '#']).unwrap_or(target.len());
    let mut path = target[..end].to_owned();
    // It is ASCII: no character is cut.
    let shows = path.is_ascii() && path.starts_with('/');
    path.truncate(if shows { PATH_MAX } else { 0 });
    Some(Request { host, path })
}

fn host_header(line: &[u8]) -> Option<String> {
    let (name, value) = std::str::from_utf8(line).ok()?.split_once(':')?;
    name.eq_ignore_ascii_case("host").then(|| host(value.trim()))?
}

/// A name or an address without its port; `None` if it is none.
fn host(text: &str) -> Option<String> {
    let end = match text.starts_with('[') {
        true => text.find(']').map_or(text.len(), |at| at + 1),
        false => text.find(':').unwrap_or(text.len()),
    };
    let name = &text[..end];
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._[]:".contains(&byte);
    let fits = !name.is_empty() && name.len() <= HOST_MAX && name.bytes().all(plain);
    fits.then(|| name.to_ascii_lowercase())
}

/// Lines that have an end.
struct Lines<'a>(&'a [u8]);

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let at = self.0.windows(2).position(|pair| pair == b"\r\n")?;
        let line = &self.0[..at];
        self.0 = &self.0[at + 2..];
        Some(line)
    }
}

/// The name in the extension of that name, as far as it is here.
fn server_name(record: &[u8]) -> Option<String> {
    if record.get(5) != Some(&CLIENT_HELLO) {
        return None;
    }
    let mut at = SESSION_AT;
    at += 1 + usize::from(*record.get(at)?);
    at += 2 + pair(record, at)?;
    at += 1 + usize::from(*record.get(at)?);
    at += 2;
    loop {
        let (kind, length) = (pair(record, at)?, pair(record, at + 2)?);
        if kind == 0 {
            // A list of one: its length, a type of 0, the length of the name, the name.
            let bytes = pair(record, at + 7)?;
            let name = record.get(at + 9..at + 9 + bytes)?;
            return (record.get(at + 6) == Some(&0))
                .then(|| String::from_utf8(name.to_vec()).ok())?;
        }
        at += 4 + length;
    }
}

fn pair(bytes: &[u8], at: usize) -> Option<usize> {
    let [high, low] = bytes.get(at..at + 2)?.try_into().ok()?;
    Some(usize::from(u16::from_be_bytes([high, low])))
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may")]

    use super::*;

    fn seen(payload: &[u8]) -> Option<(String, String)> {
        Request::of(payload).map(|request| (request.host, request.path))
    }

    #[test]
    fn a_request_line_and_its_host_are_seen_as_far_as_they_are_there() {
        for (text, wanted) in [
            ("GET /a HTTP/1.1\r\nHost: shop.example\r\n\r\n", Some(("shop.example", "/a"))),
            (
                "POST /a?b=/c HTTP/1.0\r\nx: y\r\nhOST:Shop.Example:8080\r\n",
                Some(("shop.example", "/a")),
            ),
            (
                "GET http://shop.example/a#b HTTP/1.1\r\nHost: other\r\n",
                Some(("shop.example", "/a")),
            ),
            ("GET http://shop.example HTTP/1.1\r\n", Some(("shop.example", ""))),
            ("GET / HTTP/1.1\r\nHost: [2001:db8::1]:80\r\n", Some(("[2001:db8::1]", "/"))),
            ("OPTIONS * HTTP/1.1\r\nHost: a\r\n", Some(("a", ""))),
            // A host that is cut, behind the head, or none at all.
            ("GET /a HTTP/1.1\r\nHost: shop.exa", Some(("", "/a"))),
            ("GET /a HTTP/1.1\r\n\r\nHost: shop.example\r\n", Some(("", "/a"))),
            ("GET /a HTTP/1.1\r\nHost: a b\r\n", Some(("", "/a"))),
            ("GET /a", None),
            ("GET /a HTTP/1.1", None),
            ("GET /a b HTTP/1.1\r\n", None),
            ("get /a HTTP/1.1\r\n", None),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", None),
            ("", None),
        ] {
            let wanted = wanted.map(|(host, path)| (host.to_owned(), path.to_owned()));
            assert_eq!(seen(text.as_bytes()), wanted, "{text:?}");
        }
        let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(400));
        assert_eq!(seen(long.as_bytes()).unwrap().1.len(), PATH_MAX);
        assert_eq!(seen("GET /ä HTTP/1.1\r\n".as_bytes()), Some((String::new(), String::new())));
    }

    /// A ClientHello with a session id, two ciphers, an extension of GREASE, and the name.
    pub(in super::super) fn hello(name: &str) -> Vec<u8> {
        let length = |n: usize| (n as u16).to_be_bytes();
        let mut extensions: Vec<u8> = vec![0x0a, 0x0a, 0, 1, 0];
        extensions.extend([0, 0].iter().chain(&length(name.len() + 5)));
        extensions.extend(length(name.len() + 3).iter().chain(&[0]).chain(&length(name.len())));
        extensions.extend(name.as_bytes());
        extensions.extend([0, 10, 0, 2, 0, 0]);
        let mut body: Vec<u8> = vec![3, 3];
        body.extend([7; 32]);
        body.extend([4, 1, 2, 3, 4, 0, 4, 0x13, 1, 0x13, 2, 1, 0]);
        body.extend(length(extensions.len()));
        body.extend(extensions);
        let mut record: Vec<u8> = vec![22, 3, 1];
        record.extend(length(body.len() + 4));
        record.extend([1, 0]);
        record.extend(length(body.len()));
        record.extend(body);
        record
    }

    #[test]
    fn the_server_name_of_a_hello_is_seen_if_all_of_it_is_there() {
        let whole = hello("Shop.Example");
        assert_eq!(seen(&whole), Some(("shop.example".to_owned(), String::new())));
        let end = whole.len() - 6;
        for length in 0..whole.len() {
            assert_eq!(seen(&whole[..length]).is_some(), length >= end, "{length} bytes");
        }
        assert_eq!(seen(&hello("a name")), None);
        assert_eq!(seen(&[22, 3, 1, 0, 2, 2, 0]), None, "no hello");
    }

    /// Whatever comes, nothing is read beyond it.
    #[test]
    fn no_bytes_break_it() {
        let mut state = 1_u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize
        };
        let texts = [hello("shop.example"), b"GET /a HTTP/1.1\r\nHost: shop.example\r\n".to_vec()];
        for _ in 0..50_000 {
            let mut bytes = texts[random() % 2].clone();
            for _ in 0..random() % 4 {
                let at = random() % bytes.len();
                bytes[at] = random() as u8;
            }
            bytes.truncate(1 + random() % bytes.len());
            let _ = Request::of(&bytes);
        }
    }
}
