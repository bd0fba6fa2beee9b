// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The head of a request: what is refused in it, and what of it goes on to the server. Likewise the head of
//! a response.
//!
//! A request that two programs could read differently is a way past whoever reads it first. hyper has
//! parsed the framing already: it refuses contradicting lengths, obsolete folding and bad chunks, and
//! what has both a length and chunks is read by its chunks, sent on as chunks, and the last of its
//! connection (RFC 9112, section 6.1). What is left is refused here.

use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::uri::PathAndQuery;
use hyper::{Method, StatusCode, Uri, Version};
use std::net::IpAddr;
use tidegate_model::sources::SourceUse;

/// Most bytes of a head.
pub(crate) const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Most fields of a head.
pub(crate) const FIELDS_MAX: usize = 100;
/// By what responses and servers name a request.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// Who we are in Via.
const VIA: HeaderValue = HeaderValue::from_static("1.1 tidegate");
/// Fields that concern one connection only (RFC 9110, section 7.6.1), beside those that Connection names.
const OF_CONNECTION: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];
/// Fields by which proxies tell who asks: a client's own are its word only. With `_` they are the same to
/// servers that hand fields on as variables.
const OF_PROXIES: [&str; 8] = [
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-forwarded-server",
    "x-real-ip",
    "x-request-id",
];

/// What is wrong with a request: the status that says it, and words.
pub(crate) type Fault = (StatusCode, &'static str);

/// The client that asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    pub(crate) address: IpAddr,
    pub(crate) secure: bool,
}

impl Client {
    /// Its address, of IPv6 the network of 64 bits in which one host has many.
    pub(crate) fn source(self) -> IpAddr {
        SourceUse::of(self.address).addr()
    }
}

const fn bad(why: &'static str) -> Fault {
    (StatusCode::BAD_REQUEST, why)
}

/// The host that a request names, and its target as servers know it; or what is wrong.
pub(crate) fn examine(
    method: &Method,
    uri: &Uri,
    version: Version,
    headers: &HeaderMap,
) -> Result<(HeaderValue, Uri), Fault> {
    if *method == Method::CONNECT {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "this is no proxy for CONNECT"));
    }
    let mut encodings = headers.get_all(header::TRANSFER_ENCODING).iter();
    if let Some(encoding) = encodings.next()
        && (!encoding.as_bytes().eq_ignore_ascii_case(b"chunked") || encodings.next().is_some())
    {
        return Err((StatusCode::NOT_IMPLEMENTED, "no transfer coding but chunked"));
    }
    if upgrades(headers) {
        return Err((StatusCode::NOT_IMPLEMENTED, "no upgrades"));
    }
    if headers
        .get(header::EXPECT)
        .is_some_and(|e| !e.as_bytes().eq_ignore_ascii_case(b"100-continue"))
    {
        return Err((StatusCode::EXPECTATION_FAILED, "no expectation but 100-continue"));
    }
    let host = host(uri, version, headers)?;
    let target = match uri.path_and_query() {
        // Of an authority alone; http makes the path of an absolute form at least "/".
        None => PathAndQuery::from_static("/"),
        Some(target) => target.clone(),
    };
    let origin = target.as_str().starts_with('/') || (target == "*" && *method == Method::OPTIONS);
    if !origin {
        return Err(bad("the target is no path"));
    }
    Ok((host, Uri::from(target)))
}

/// WebSocket and others need what this proxy does not have. Any other offer may be ignored
/// (RFC 9110, section 7.8): clients offer `h2c` and go on without it.
fn upgrades(headers: &HeaderMap) -> bool {
    let offers =
        headers.get_all(header::UPGRADE).iter().flat_map(|v| v.as_bytes().split(|b| *b == b','));
    let mut names = offers.map(|offer| offer.trim_ascii());
    names.any(|name| name.eq_ignore_ascii_case(b"websocket"))
}

/// The one host of a request: of its target, or of its Host. Two that differ are a contradiction.
fn host(uri: &Uri, version: Version, headers: &HeaderMap) -> Result<HeaderValue, Fault> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let named = hosts.next();
    if hosts.next().is_some() {
        return Err(bad("more than one Host"));
    }
    let of_target = uri.authority().map(|authority| authority.as_str());
    if of_target.is_some_and(|of| of.contains('@')) {
        return Err(bad("a user in the target"));
    }
    match (of_target, named) {
        (Some(of), Some(named)) if !named.as_bytes().eq_ignore_ascii_case(of.as_bytes()) => {
            Err(bad("the target names another host than Host"))
        }
        (Some(of), _) => HeaderValue::from_str(of).map_err(|_| bad("the host is none")),
        (None, Some(named)) if is_host(named.as_bytes()) => Ok(named.clone()),
        // Only HTTP/1.0 knows requests without.
        (None, None) if version == Version::HTTP_10 => Ok(HeaderValue::from_static("")),
        (None, None) => Err(bad("no Host")),
        (None, Some(_)) => Err(bad("the Host is none")),
    }
}

/// Letters of a name, an address or a port; nothing that begins a path, a user or another field.
fn is_host(host: &[u8]) -> bool {
    let fits = |b: &u8| b.is_ascii_alphanumeric() || b"-._~:[]%!$&'()*+;=".contains(b);
    host.iter().all(fits)
}

/// Several fields Cookie as one (RFC 9113, section 8.2.3), byte by byte. `None`: fewer than two.
fn cookies(headers: &HeaderMap) -> Option<HeaderValue> {
    let all: Vec<&[u8]> =
        headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    (all.len() > 1).then(|| HeaderValue::from_bytes(&all.join(&b"; "[..])).ok()).flatten()
}

/// Takes out what concerns a connection only.
fn end_to_end(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|b| *b == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in OF_CONNECTION {
        headers.remove(name);
    }
}

/// Makes the head of a request what the server gets.
pub(crate) fn to_server(
    headers: &mut HeaderMap,
    client: Client,
    host: HeaderValue,
    id: &HeaderValue,
) {
    // The length of a body is known from how it was framed.
    for name in [header::CONTENT_LENGTH, header::EXPECT] {
        headers.remove(name);
    }
    end_to_end(headers);
    let ours = |name: &HeaderName| {
        let same = |ours: &&str| {
            let bytes = name.as_str().bytes().map(|b| if b == b'_' { b'-' } else { b });
            bytes.eq(ours.bytes())
        };
        OF_PROXIES.iter().any(same)
    };
    let forged: Vec<HeaderName> = headers.keys().filter(|name| ours(name)).cloned().collect();
    for name in forged {
        headers.remove(name);
    }
    if let Some(cookies) = cookies(headers) {
        headers.insert(header::COOKIE, cookies);
    }
    let proto = if client.secure { "https" } else { "http" };
    let (address, forwarded) = match client.address.to_canonical() {
        IpAddr::V4(v4) => (v4.to_string(), format!("for={v4};proto={proto}")),
        IpAddr::V6(v6) => (v6.to_string(), format!("for=\"[{v6}]\";proto={proto}")),
    };
    headers.insert(header::HOST, host);
    headers.insert(REQUEST_ID, id.clone());
    headers.insert(FORWARDED_PROTO, HeaderValue::from_static(proto));
    for (name, value) in [(FORWARDED_FOR, address), (header::FORWARDED, forwarded)] {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
    headers.append(header::VIA, VIA);
}

/// A request of a method that usually has a body, and this one has none: the server is told so, since some
/// answer 411 to one that does not say (RFC 9110, section 8.6).
pub(crate) fn without_body(method: &Method, headers: &mut HeaderMap) {
    if [Method::POST, Method::PUT, Method::PATCH].contains(method) {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
}

/// Makes the head of a response what the client gets.
pub(crate) fn to_client(headers: &mut HeaderMap, id: HeaderValue) {
    end_to_end(headers);
    headers.insert(REQUEST_ID, id);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(fields: &[(&str, &str)]) -> HeaderMap {
        let field = |(name, value): &(&str, &str)| {
            (
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                HeaderValue::from_str(value).unwrap(),
            )
        };
        fields.iter().map(field).fold(HeaderMap::new(), |mut all, (name, value)| {
            all.append(name, value);
            all
        })
    }

    fn fault(method: &str, uri: &str, fields: &[(&str, &str)]) -> Option<u16> {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let found = examine(&method, &uri.parse().unwrap(), Version::HTTP_11, &map(fields));
        found.err().map(|(status, _)| status.as_u16())
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        let host = ("host", "shop.example");
        for (method, uri, fields, status) in [
            ("GET", "/a?b", vec![host], None),
            ("OPTIONS", "*", vec![host], None),
            ("GET", "http://shop.example/a", vec![host], None),
            ("GET", "http://shop.example", vec![host], None),
            ("GET", "/", vec![host, ("upgrade", "h2c")], None),
            ("POST", "/", vec![host, ("transfer-encoding", "Chunked")], None),
            ("POST", "/", vec![host, ("expect", "100-Continue")], None),
            ("GET", "/", vec![("host", "[2001:db8::1]:8080")], None),
            ("GET", "/", vec![], Some(400)),
            ("GET", "/", vec![host, host], Some(400)),
            ("GET", "/", vec![("host", "a/b")], Some(400)),
            ("GET", "/", vec![("host", "a, b")], Some(400)),
            ("GET", "/", vec![("host", "u@a")], Some(400)),
            ("GET", "http://other.example/a", vec![host], Some(400)),
            ("GET", &["http:", "//u@shop.example/a"].concat(), vec![], Some(400)),
            ("GET", "*", vec![host], Some(400)),
            ("CONNECT", "shop.example:443", vec![host], Some(405)),
            ("GET", "/", vec![host, ("upgrade", "foo, WebSocket")], Some(501)),
            ("POST", "/", vec![host, ("transfer-encoding", "gzip, chunked")], Some(501)),
            (
                "POST",
                "/",
                vec![host, ("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")],
                Some(501),
            ),
            ("POST", "/", vec![host, ("expect", "a-pony")], Some(417)),
        ] {
            assert_eq!(fault(method, uri, &fields), status, "{method} {uri} {fields:?}");
        }
    }

    #[test]
    fn the_target_is_the_servers_and_the_host_that_of_the_target() {
        let headers = map(&[("host", "shop.example")]);
        let of = |uri: &str| {
            let found = examine(&Method::GET, &uri.parse().unwrap(), Version::HTTP_11, &headers);
            let (host, uri) = found.unwrap();
            (host.to_str().unwrap().to_owned(), uri.to_string())
        };
        assert_eq!(of("/a?b=1"), ("shop.example".into(), "/a?b=1".into()));
        assert_eq!(of("http://shop.example/a?b"), ("shop.example".into(), "/a?b".into()));
        assert_eq!(of("http://SHOP.example"), ("SHOP.example".into(), "/".into()));
    }

    #[test]
    fn the_server_learns_from_us_who_asks_and_nothing_from_the_client() {
        let mut headers = map(&[
            ("connection", "close, X-Mine, Host"),
            ("x-mine", "1"),
            ("host", "shop.example"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("proxy-connection", "keep-alive"),
            ("transfer-encoding", "chunked"),
            ("content-length", "5"),
            ("expect", "100-continue"),
            ("x-forwarded-for", "10.0.0.1"),
            ("X_Forwarded_For", "10.0.0.1"),
            ("forwarded", "for=10.0.0.1"),
            ("x-real-ip", "10.0.0.1"),
            ("x-request-id", "forged"),
            ("cookie", "a=1"),
            ("cookie", "b=\u{e9}"),
            ("accept", "*/*"),
            ("via", "1.0 before"),
        ]);
        let client = Client { address: "2001:db8::1".parse().unwrap(), secure: true };
        let id = HeaderValue::from_static("0123");
        to_server(&mut headers, client, HeaderValue::from_static("shop.example"), &id);
        let mut found: Vec<String> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())))
            .collect();
        found.sort();
        assert_eq!(
            found,
            [
                "accept: */*",
                "cookie: a=1; b=\u{e9}",
                "forwarded: for=\"[2001:db8::1]\";proto=https",
                "host: shop.example",
                "via: 1.0 before",
                "via: 1.1 tidegate",
                "x-forwarded-for: 2001:db8::1",
                "x-forwarded-proto: https",
                "x-request-id: 0123",
            ]
        );
        let mapped = Client { address: "::ffff:192.0.2.1".parse().unwrap(), secure: false };
        to_server(&mut headers, mapped, HeaderValue::from_static("x"), &id);
        assert_eq!(headers["forwarded"], "for=192.0.2.1;proto=http");
    }

    #[test]
    fn the_client_gets_what_concerns_it() {
        let mut headers = map(&[
            ("connection", "keep-alive"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("content-length", "3"),
            ("set-cookie", "a=1"),
            ("x-request-id", "the server's"),
        ]);
        to_client(&mut headers, HeaderValue::from_static("0123"));
        assert_eq!(headers.len(), 3);
        assert_eq!(headers["x-request-id"], "0123");
    }
}
