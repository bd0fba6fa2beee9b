// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Envoy, by `ext_authz` or by the rate limit service: one connection, each question a stream of its own, and a
//! stream of the log.

use super::sockets::{HEADERS, Proxy, token};
use h2::client::{ResponseFuture, SendRequest};
use hyper::Request;
use hyper::body::Bytes;
use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::task::spawn_local;

const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";
const RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const LOG: &str = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs";
/// So many bytes may wait to be read.
const WINDOW: u32 = 16 * 1024 * 1024;
/// `buffer_flush_interval` of the example.
const FLUSH: Duration = Duration::from_millis(50);

#[derive(Clone)]
pub(crate) struct Grpc {
    calls: SendRequest<Bytes>,
    /// Method, message, and under which name the log has the token.
    question: (&'static str, Bytes, &'static str),
    entries: Rc<RefCell<Vec<u8>>>,
}

impl Grpc {
    pub(crate) async fn ext_authz(path: &Path) -> io::Result<Self> {
        Self::connect(path, (CHECK, framed(&question()), "envoy.filters.http.ext_authz")).await
    }

    pub(crate) async fn rate_limit(path: &Path) -> io::Result<Self> {
        let question = (RATE_LIMIT, framed(&descriptors()), "envoy.filters.http.ratelimit");
        Self::connect(path, question).await
    }

    async fn connect(
        path: &Path,
        question: (&'static str, Bytes, &'static str),
    ) -> io::Result<Self> {
        let stream = UnixStream::connect(path).await?;
        // Many short responses may wait until this program runs again.
        let mut builder = h2::client::Builder::new();
        builder.initial_connection_window_size(WINDOW);
        let (calls, connection) = builder.handshake(stream).await.map_err(io::Error::other)?;
        spawn_local(connection);
        let entries = Rc::default();
        spawn_local(log(calls.clone(), Rc::clone(&entries)));
        Ok(Self { calls, question, entries })
    }
}

impl Proxy for Grpc {
    async fn ask(&self) -> io::Result<Option<String>> {
        let (method, message, _) = &self.question;
        let response = call(&self.calls, method, message.clone());
        let response = response.await.map_err(io::Error::other)?.0.await;
        let mut body = response.map_err(io::Error::other)?.into_body();
        let mut told = Vec::new();
        while let Some(data) = body.data().await {
            let data = data.map_err(io::Error::other)?;
            let _ = body.flow_control().release_capacity(data.len());
            told.extend_from_slice(&data);
        }
        body.trailers().await.map_err(io::Error::other)?;
        // Key, and value: a text of 16 bytes.
        Ok(token(&told, b"tidegate_token\x12\x12\x1a\x10"))
    }

    async fn report(&self, token: &str) -> io::Result<()> {
        self.entries.borrow_mut().extend(field(1, &entry(self.question.2, token)));
        Ok(())
    }
}

/// Begins a call; its stream stays open if it has nothing to say yet.
async fn call(
    calls: &SendRequest<Bytes>,
    path: &str,
    message: Bytes,
) -> Result<(ResponseFuture, h2::SendStream<Bytes>), h2::Error> {
    let request = Request::post(format!("http://tidegate{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap_or_default();
    let (response, mut stream) = calls.clone().ready().await?.send_request(request, false)?;
    if !message.is_empty() {
        stream.send_data(message, true)?;
    }
    Ok((response, stream))
}

/// Sends what is to be reported, as often as Envoy does.
async fn log(calls: SendRequest<Bytes>, entries: Rc<RefCell<Vec<u8>>>) {
    let Ok((_response, mut stream)) = call(&calls, LOG, Bytes::new()).await else { return };
    loop {
        tokio::time::sleep(FLUSH).await;
        let entries = entries.take();
        if !entries.is_empty() && stream.send_data(framed(&field(2, &entries)), false).is_err() {
            return;
        }
    }
}

/// A field of protobuf: bytes, text or a message.
pub(crate) fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for mut n in [usize::from(number) << 3 | 2, value.len()] {
        while n > 127 {
            out.push(n as u8 | 128);
            n >>= 7;
        }
        out.push(n as u8);
    }
    out.extend_from_slice(value);
    out
}

fn pair(key: &str, value: &[u8]) -> Vec<u8> {
    [field(1, key.as_bytes()), field(2, value)].concat()
}

/// A message, as gRPC has it.
fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap_or_default();
    Bytes::from([&[0], length.to_be_bytes().as_slice(), message].concat())
}

/// `CheckRequest`
fn question() -> Vec<u8> {
    let headers = HEADERS.iter().flat_map(|(name, value)| field(3, &pair(name, value.as_bytes())));
    let http = [
        field(1, b"1234567890"),
        field(2, b"GET"),
        headers.collect(),
        field(4, b"/item?id=1"),
        field(5, b"shop.example"),
    ];
    let address = field(1, &field(1, &field(2, b"192.0.2.7")));
    field(1, &[field(1, &address), field(4, &field(2, &http.concat()))].concat())
}

/// `RateLimitRequest`, with the descriptors of packaging/envoy-ratelimit.yaml
fn descriptors() -> Vec<u8> {
    let entry = |key: &str, value: &str| field(1, &pair(key, value.as_bytes()));
    let of_request = [
        entry("method", "GET"),
        entry("path", "/item?id=1"),
        entry("host", "shop.example"),
        entry("x-request-id", "1234567890"),
        entry("cookie", HEADERS[5].1),
    ];
    let of_client = entry("remote_address", "192.0.2.7");
    [field(1, b"tidegate"), field(2, &of_request.concat()), field(2, &of_client)].concat()
}

/// `HTTPAccessLogEntry` of a request that took 1 ms with the server and got 200.
fn entry(filter: &str, token: &str) -> Vec<u8> {
    let text = field(3, token.as_bytes());
    let values = field(1, &pair("tidegate_token", &text));
    let metadata = field(1, &pair(filter, &values));
    // nanos: 1,000,000
    let duration = [0x10, 0xc0, 0x84, 0x3d];
    let common = [field(10, &duration), field(17, &metadata)].concat();
    let status = field(1, &[0x08, 0xc8, 0x01]);
    [field(1, &common), field(4, &status)].concat()
}
