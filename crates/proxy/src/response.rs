// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Responses that the proxy makes itself.

use crate::body::Outgoing;
use crate::head::REQUEST_ID;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use tidegate_gate::Refusal;

/// Of the gate: 503, with everything that an adapter tells.
pub(crate) fn refused(refusal: &Refusal, id: HeaderValue) -> Response<Outgoing> {
    let mut response = Response::new(Outgoing::text(refusal.body()));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    let headers = response.headers_mut();
    for (name, value) in refusal.headers() {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    headers.insert(REQUEST_ID, id);
    response
}

/// Of the proxy itself, in one sentence. After what is no request the connection ends.
pub(crate) fn fault(status: StatusCode, why: &str, id: HeaderValue) -> Response<Outgoing> {
    let mut response = Response::new(Outgoing::text(format!("{why}\n")));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(REQUEST_ID, id);
    response
}

/// Ends the connection of HTTP/1.1 after it.
pub(crate) fn closing(mut response: Response<Outgoing>) -> Response<Outgoing> {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
