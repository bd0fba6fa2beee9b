// SPDX-License-Identifier: Apache-2.0 OR MIT
//! nginx: `auth_request` by HTTP. 204 passes a request; 403 makes nginx send the 503, whose parts are
//! in the headers of the response. docs/gateways.md has the configuration of nginx for both.
//!
//! nginx sets the headers that are asked for, so a client's own of the same name do not come here. A
//! question without them is counted, and passes: any other status would be a 500 for the client.

use super::listen::{Stream, datagrams, streams};
use super::{Context, nginx_report};
use crate::{Ask, Headers, Id, Refusal};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::IpAddr;
use std::time::Duration;

/// The method of the client's request.
const METHOD: &str = "x-tidegate-method";
/// Its target, as the client sent it.
const URI: &str = "x-tidegate-uri";
/// Its host.
const HOST: &str = "x-tidegate-host";
/// The client's address.
const CLIENT: &str = "x-tidegate-client";
/// nginx's own id of the request.
const REQUEST: &str = "x-tidegate-request";
/// In the response: what the report names.
const TOKEN: HeaderName = HeaderName::from_static("x-tidegate-token");
/// In the response: why.
const REASON: HeaderName = HeaderName::from_static("x-tidegate-reason");
/// A connection that asks nothing for so long is closed; nginx closes its own after 60 s.
const IDLE_MAX: Duration = Duration::from_secs(120);
/// Most bytes of a head: nginx passes the client's headers on.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Serves until it is dropped.
pub(super) async fn serve(context: Context) {
    let asked = streams(&context, attend);
    let Some(endpoint) = &context.config.completions else { return asked.await };
    let reported =
        datagrams(&context, endpoint, |context, datagram| match nginx_report(datagram) {
            Some((token, completion)) => context.complete(Id::Token(token), &completion),
            None => context.misunderstood(),
        });
    tokio::join!(asked, reported);
}

/// Serves one connection to its end.
async fn attend(context: Context, stream: Box<dyn Stream>) {
    let of = &context;
    let service = service_fn(async move |request| Ok::<_, Infallible>(answer(of, &request)));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(IDLE_MAX).max_buf_size(HEAD_BYTES_MAX);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await
        && error.is_parse()
    {
        context.misunderstood();
    }
}

struct Received<'a>(&'a HeaderMap);

impl Headers for Received<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(|value| value.to_str().ok())
    }
}

fn answer(context: &Context, request: &Request<Incoming>) -> Response<Empty<Bytes>> {
    let mut response = Response::new(Empty::new());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = Received(request.headers());
    let (Some(method), Some(target)) = (headers.get(METHOD), headers.get(URI)) else {
        context.misunderstood();
        return response;
    };
    let answer = context.ask(&Ask {
        gateway: context.index,
        method,
        host: headers.get(HOST).filter(|host| !host.is_empty()),
        target,
        client: headers.get(CLIENT).and_then(|client| client.parse::<IpAddr>().ok()),
        request_id: headers.get(REQUEST),
        reported_by_id: false,
        headers: &headers,
    });
    let out = response.headers_mut();
    out.insert(REASON, HeaderValue::from_static(answer.reason.name()));
    let token = answer.token.and_then(|token| HeaderValue::try_from(token.to_string()).ok());
    out.extend(token.map(|token| (TOKEN, token)));
    if let Some(refusal) = &answer.refusal {
        refuse(&mut response, refusal);
    }
    response
}

fn refuse(response: &mut Response<Empty<Bytes>>, refusal: &Refusal) {
    *response.status_mut() = StatusCode::FORBIDDEN;
    for (name, value) in refusal.headers() {
        if let Ok(value) = HeaderValue::try_from(value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
}
