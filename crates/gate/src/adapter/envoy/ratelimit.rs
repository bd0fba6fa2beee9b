// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rate limit service: what descriptors ask, and what is said.
//!
//! A question is about one request, however many descriptors it has: their entries are taken together.
//! `hits_addend` does not count. The limit is found in requests, and a request cannot weigh more in
//! flight than its report takes out again.

use super::check::{client, metadata, refused, text};
use super::messages::{DescriptorStatus, Pair, RateLimitRequest, RateLimitResponse};
use crate::adapter::headers::Joined;
use crate::{Answer, Ask, Headers};
use prost::bytes::Bytes;

/// Keys of entries. Any other is the name of a header.
const METHOD: &str = "method";
const PATH: &str = "path";
const HOST: &str = "host";
/// As Envoy's action of that name calls it.
const CLIENT: &str = "remote_address";
/// What a request without the entry is taken for: a method that no route names, and the path of all.
const ANY_METHOD: &str = "-";
const ANY_PATH: &str = "/";
/// Most descriptors of a question.
const DESCRIPTORS_MAX: usize = 64;
/// `RateLimitResponse.Code`
const OK: i32 = 1;
const OVER_LIMIT: i32 = 2;

/// Asks what a message asks. `None`: it has no descriptor, or too many.
pub(super) fn rate_limit(
    request: &RateLimitRequest,
    ask: impl FnOnce(&Ask<'_>) -> Answer,
) -> Option<RateLimitResponse> {
    let descriptors = request.descriptors.len();
    if !(1..=DESCRIPTORS_MAX).contains(&descriptors) {
        return None;
    }
    let entries = || request.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
    let value = |key: &str| entries().find(|entry| entry.key == key.as_bytes()).map(Pair::text);
    // Descriptors may have a header in common: it is one, and not two.
    let headers = Joined::first_of_each(entries().map(|entry| (text(&entry.key), entry.text())));
    let (method, path, host) = (value(METHOD), value(PATH), value(HOST));
    let answer = ask(&Ask {
        gateway: "",
        method: method.as_deref().unwrap_or(ANY_METHOD),
        host: host.as_deref().filter(|host| !host.is_empty()),
        target: path.as_deref().unwrap_or(ANY_PATH),
        client: value(CLIENT).and_then(|address| client(address.as_bytes())),
        request_id: headers.get("x-request-id"),
        reported_by_id: false,
        share: None,
        turn: None,
        headers: &headers,
    });
    Some(told(&answer, descriptors))
}

/// Passes without a question.
pub(super) fn passes(descriptors: usize) -> RateLimitResponse {
    said(OK, descriptors)
}

/// One word for all descriptors.
fn said(code: i32, descriptors: usize) -> RateLimitResponse {
    let statuses = vec![DescriptorStatus { code }; descriptors.min(DESCRIPTORS_MAX)];
    RateLimitResponse { overall_code: code, statuses, ..RateLimitResponse::default() }
}

fn told(answer: &Answer, descriptors: usize) -> RateLimitResponse {
    let dynamic_metadata = Some(metadata(answer));
    let Some(refusal) = &answer.refusal else {
        return RateLimitResponse { dynamic_metadata, ..passes(descriptors) };
    };
    RateLimitResponse {
        // Envoy adds x-envoy-ratelimited itself.
        response_headers: refused(refusal).collect(),
        body: Bytes::from(refusal.body()),
        dynamic_metadata,
        ..said(OVER_LIMIT, descriptors)
    }
}
