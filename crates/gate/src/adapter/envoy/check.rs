// SPDX-License-Identifier: Apache-2.0 OR MIT
//! ext_authz: what is asked, and what is said.

use super::messages::{
    CheckRequest, CheckResponse, DeniedHttpResponse, HeaderValue, HeaderValueOption, HttpRequest,
    HttpStatus, OkHttpResponse, Status, Struct,
};
use super::{REASON, TOKEN};
use crate::adapter::headers::Joined;
use crate::{Answer, Ask, Headers, Refusal, STATUS};
use prost::bytes::Bytes;
use std::borrow::Cow;
use std::net::IpAddr;
use tonic::Code;

/// Envoys on the way to the client do not try a response with this header again.
const NOT_AGAIN: (&str, &str) = ("x-envoy-ratelimited", "true");

/// Asks what a message asks. `None`: it asks about no request of HTTP.
pub(super) fn check(
    request: &CheckRequest,
    ask: impl FnOnce(&Ask<'_>) -> Answer,
) -> Option<CheckResponse> {
    let attributes = request.attributes.as_ref()?;
    let http = attributes.request.as_ref()?.http.as_ref()?;
    let source = attributes.source.as_ref().and_then(|peer| peer.address.as_ref());
    let headers = headers(http);
    let (method, host, path) = (text(&http.method), text(&http.host), text(&http.path));
    let answer = ask(&Ask {
        gateway: "",
        method: &method,
        host: Some(host.as_ref()).filter(|host| !host.is_empty()),
        target: &path,
        client: source.and_then(|address| client(&address.socket.as_ref()?.address)),
        // For people only: it ties nothing, so the id that they know may be the client's.
        request_id: headers.get("x-request-id").or(std::str::from_utf8(&http.id).ok()),
        reported_by_id: false,
        share: None,
        turn: None,
        headers: &headers,
    });
    Some(told(&answer))
}

/// Passes without a question.
pub(super) fn passes() -> CheckResponse {
    CheckResponse {
        status: Some(Status::default()),
        ok: Some(OkHttpResponse {}),
        ..CheckResponse::default()
    }
}

pub(super) fn text(bytes: &Bytes) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// A client's address.
pub(super) fn client(text: &[u8]) -> Option<IpAddr> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn headers(http: &HttpRequest) -> Joined<'_> {
    let joined = http.headers.iter().map(|pair| (text(&pair.key), pair.text()));
    let each = http.header_map.iter().flat_map(|map| &map.headers).map(|header| {
        let raw = if header.raw_value.is_empty() { &header.value } else { &header.raw_value };
        (text(&header.key), text(raw))
    });
    joined.chain(each).collect()
}

/// What the log of the request will carry, in the namespace of the filter.
pub(super) fn metadata(answer: &Answer) -> Struct {
    let reason = (REASON, Bytes::from_static(answer.reason.name().as_bytes()));
    let token = answer.token.map(|token| (TOKEN, Bytes::from(token.to_string())));
    Struct::of([reason].into_iter().chain(token))
}

/// The headers of a refusal.
pub(super) fn refused(refusal: &Refusal) -> impl Iterator<Item = HeaderValue> + use<> {
    refusal.headers().into_iter().map(|(name, value)| HeaderValue::of(name, value))
}

fn told(answer: &Answer) -> CheckResponse {
    let dynamic_metadata = Some(metadata(answer));
    let Some(refusal) = &answer.refusal else {
        return CheckResponse { dynamic_metadata, ..passes() };
    };
    let again = HeaderValue::of(NOT_AGAIN.0, NOT_AGAIN.1);
    let headers = refused(refusal).chain([again]);
    let denied = DeniedHttpResponse {
        status: Some(HttpStatus { code: STATUS.into() }),
        headers: headers.map(|header| HeaderValueOption { header: Some(header) }).collect(),
        body: refusal.body(),
    };
    // Any code but OK denies.
    let status = Status { code: Code::Unavailable as i32, message: answer.reason.name().into() };
    CheckResponse {
        status: Some(status),
        denied: Some(denied),
        dynamic_metadata,
        ..CheckResponse::default()
    }
}
