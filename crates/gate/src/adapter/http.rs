// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Questions by HTTP/1.1: the connections, the headers of a question, and what is the same in every
//! response.

use super::Context;
use super::headers::{HEADERS_MAX, Joined};
use super::listen::Stream;
use super::overlong::Overlong;
use super::unheard::{Last, Watched};
use crate::{Answer, Refusal, Token};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The proxy's own id of the request.
pub(super) const REQUEST: &str = "x-tidegate-request";
/// In the response: what the report names.
const TOKEN: HeaderName = HeaderName::from_static("x-tidegate-token");
/// In the response: why.
const REASON: HeaderName = HeaderName::from_static("x-tidegate-reason");
/// What is spoken inside TLS.
pub(super) const ALPN: &[&[u8]] = &[b"http/1.1"];
/// A connection that asks nothing for so long is closed; proxies close their own after 60 to 120 s.
const IDLE_MAX: Duration = Duration::from_secs(120);
/// A body that takes longer is not waited for.
const BODY_TIME_MAX: Duration = Duration::from_secs(10);
/// Most bytes of a head: proxies pass the client's headers on.
const HEAD_BYTES_MAX: usize = 64 * 1024;

pub(super) type Reply = Response<Full<Bytes>>;

/// What an adapter makes of requests by HTTP.
#[derive(Clone, Copy)]
pub(super) struct Served {
    /// Answers a request, of which the body was read.
    pub(super) answer: fn(&Context, &Parts, &[u8]) -> Reply,
    /// Longest body that is read; 0: none is.
    pub(super) body_max: usize,
}

/// Serves one connection to its end.
pub(super) async fn attend(context: Context, stream: Box<dyn Stream>, served: Served) {
    let (of, last) = (&context, &Last::default());
    let service = service_fn(move |request| async move {
        let reply = reply(of, request, served).await;
        last.answer(of.now(), token(&reply));
        Ok::<_, Infallible>(reply)
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(IDLE_MAX);
    builder.max_buf_size(HEAD_BYTES_MAX).max_headers(HEADERS_MAX);
    // hyper does not always give an error for it.
    let overlong = AtomicBool::new(false);
    let stream = Overlong::new(Watched { stream, last }, || {
        overlong.store(true, Relaxed);
        of.misunderstood();
        of.refuses_nothing()
    });
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await
        && error.is_parse()
        && !overlong.load(Relaxed)
    {
        context.misunderstood();
    }
    if let Some(token) = last.unread(context.now()) {
        context.unheard(token);
    }
}

async fn reply(context: &Context, request: Request<Incoming>, served: Served) -> Reply {
    let (parts, body) = request.into_parts();
    if served.body_max == 0 {
        return (served.answer)(context, &parts, &[]);
    }
    let read = Limited::new(body, served.body_max).collect();
    match tokio::time::timeout(BODY_TIME_MAX, read).await {
        Ok(Ok(body)) => (served.answer)(context, &parts, &body.to_bytes()),
        _ => {
            context.misunderstood();
            of_status(StatusCode::PAYLOAD_TOO_LARGE)
        }
    }
}

/// The headers of a question. A byte that is no text must not hide the rest: its sender chose it.
pub(super) fn received(map: &HeaderMap) -> Joined<'_> {
    map.iter()
        .map(|(name, value)| (name.as_str(), String::from_utf8_lossy(value.as_bytes())))
        .collect()
}

/// A response without a body.
pub(super) fn of_status(status: StatusCode) -> Reply {
    let mut reply = Reply::default();
    *reply.status_mut() = status;
    reply
}

/// The proxy is told to pass the request, why, and what to name it in its report.
pub(super) fn passes(answer: &Answer) -> Reply {
    let mut reply = of_status(StatusCode::NO_CONTENT);
    give_reason(&mut reply, answer);
    let token = answer.token.and_then(|token| HeaderValue::try_from(token.to_string()).ok());
    reply.headers_mut().extend(token.map(|token| (TOKEN, token)));
    reply
}

/// What the proxy is to name the request that it is told to pass.
fn token(reply: &Reply) -> Option<Token> {
    reply.headers().get(TOKEN)?.to_str().ok()?.parse().ok()
}

pub(super) fn give_reason(reply: &mut Reply, answer: &Answer) {
    reply.headers_mut().insert(REASON, HeaderValue::from_static(answer.reason.name()));
}

/// A refusal with its headers, and no body yet.
pub(super) fn refuses(status: StatusCode, refusal: &Refusal) -> Reply {
    let mut reply = of_status(status);
    for (name, value) in refusal.headers() {
        if let Ok(value) = HeaderValue::try_from(value) {
            reply.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    reply
}
