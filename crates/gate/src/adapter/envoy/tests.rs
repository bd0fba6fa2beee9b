// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages as Envoy sends them, and what is told.

use super::messages::*;
use super::*;
use crate::{Gate, RateLimit, Refusal, Unbound};
use prost::bytes::Bytes;
use std::net::IpAddr;
use tidegate_config::{Registry, parse};
use tidegate_policy::Reason;
use tidegate_units::{MonotonicClock, Nanos, Rate};

fn bytes(text: &[u8]) -> Bytes {
    Bytes::copy_from_slice(text)
}

fn question(http: HttpRequest) -> CheckRequest {
    let socket = Some(SocketAddress { address: bytes(b"192.0.2.7") });
    let source = Some(Peer { address: Some(Address { socket }) });
    let request = Some(AttributedRequest { http: Some(http) });
    CheckRequest { attributes: Some(AttributeContext { source, request }) }
}

fn request() -> HttpRequest {
    HttpRequest {
        id: bytes(b"1234567890"),
        method: bytes(b"GET"),
        path: bytes(b"/item?id=1"),
        host: bytes(b"shop.example"),
        ..HttpRequest::default()
    }
}

fn pair(key: &[u8], value: &[u8]) -> Pair {
    Pair { key: bytes(key), value: bytes(value) }
}

fn raw(key: &[u8], raw_value: &[u8]) -> HeaderValue {
    HeaderValue { key: bytes(key), value: Bytes::new(), raw_value: bytes(raw_value) }
}

fn passing() -> Answer {
    let token = Some("00000000000000ff".parse().unwrap());
    Answer {
        service: Some(0),
        reason: Reason::Token,
        refused: false,
        token,
        refusal: None,
        share: None,
    }
}

fn refusing() -> Answer {
    let rate_limit = Some(RateLimit::new("shop", Rate::per_second(812.7), 7));
    let refusal = Some(Refusal { reason: Reason::Rate, retry_after_s: 7, rate_limit });
    Answer {
        service: Some(0),
        reason: Reason::Rate,
        refused: true,
        token: None,
        refusal,
        share: None,
    }
}

/// What the gate is asked: method, target, host, id, the headers `a` and `cookie`, and the client.
fn asked(http: HttpRequest) -> ([Option<String>; 6], Option<IpAddr>) {
    let mut asked = None;
    let answer = envoy_check(&question(http).encode_to_vec(), |ask| {
        let own = |text: &str| Some(text.to_owned());
        let header = |name| ask.headers.get(name).map(str::to_owned);
        let id = ask.request_id.map(str::to_owned);
        let host = ask.host.map(str::to_owned);
        let found = [own(ask.method), own(ask.target), host, id, header("A"), header("Cookie")];
        asked = Some((found, ask.client));
        passing()
    });
    assert!(answer.is_some());
    asked.unwrap()
}

#[test]
fn a_question_has_the_fields_of_the_request() {
    let text = |text: &str| Some(text.to_owned());
    let client = Some([192, 0, 2, 7].into());
    let plain = ["GET", "/item?id=1", "shop.example", "1234567890"].map(text);
    let of = |a: Option<String>, cookie: Option<String>| {
        let [method, target, host, id] = plain.clone();
        [method, target, host, id, a, cookie]
    };
    assert_eq!(asked(request()), (of(None, None), client));
    let headers = vec![pair(b"a", b"1,2"), pair(b"cookie", b"s=1; t=2"), pair(b"b", b"\xff")];
    let joined = HttpRequest { headers, ..request() };
    assert_eq!(asked(joined), (of(text("1,2"), text("s=1; t=2")), client));
    let each = [
        raw(b"a", b"1"),
        raw(b"a", b"2\xff"),
        raw(b"cookie", b"s=1"),
        raw(b"cookie", b"t=2"),
        raw(b"x-forwarded-for", b"10.0.0.1"),
    ];
    let header_map = Some(HeaderMap { headers: each.to_vec() });
    let raw = HttpRequest { header_map, ..request() };
    assert_eq!(asked(raw), (of(text("1, 2\u{fffd}"), text("s=1; t=2")), client));
}

/// Nobody passes unasked by what is no text.
#[test]
fn what_is_no_utf_8_is_asked_about_as_well() {
    let odd = HttpRequest {
        method: bytes(b"G\xffT"),
        path: bytes(b"/a\xff"),
        host: Bytes::new(),
        id: bytes(b"\xff"),
        headers: vec![pair(b"x-request-id", b"r-1")],
        ..HttpRequest::default()
    };
    let ([method, target, host, id, ..], _) = asked(odd);
    assert_eq!(
        [method, target, host, id].map(Option::unwrap_or_default),
        ["G\u{fffd}T", "/a\u{fffd}", "", "r-1"]
    );
}

#[test]
fn what_asks_about_no_request_is_no_question() {
    let unasked = |_: &Ask<'_>| -> Answer { panic!("asked") };
    let tcp = CheckRequest { attributes: Some(AttributeContext::default()) };
    for message in [&b""[..], b"\x0a", b"\x0a\x00", b"\xff\xff", &tcp.encode_to_vec()] {
        assert_eq!(envoy_check(message, unasked), None, "{message:?}");
    }
    assert_eq!(check::passes().status.map(|status| status.code), Some(0));
}

fn told(answer: Answer) -> CheckResponse {
    let told = envoy_check(&question(request()).encode_to_vec(), |_| answer);
    CheckResponse::decode(told.unwrap().as_slice()).unwrap()
}

fn metadata(response: &CheckResponse, name: &str) -> Option<String> {
    let text = response.dynamic_metadata.as_ref()?.text(name)?;
    Some(String::from_utf8(text.to_vec()).unwrap())
}

#[test]
fn what_passes_has_a_token_in_its_metadata() {
    let response = told(passing());
    assert_eq!(response.status.as_ref().map(|status| status.code), Some(0));
    assert!(response.ok.is_some() && response.denied.is_none());
    assert_eq!(metadata(&response, TOKEN).as_deref(), Some("00000000000000ff"));
    assert_eq!(metadata(&response, REASON).as_deref(), Some(Reason::Token.name()));
    let unfollowed = told(Answer { token: None, ..passing() });
    assert!(unfollowed.ok.is_some() && metadata(&unfollowed, TOKEN).is_none());
}

#[test]
fn a_refusal_has_its_status_its_headers_and_its_body() {
    let response = told(refusing());
    assert_ne!(response.status.as_ref().map(|status| status.code), Some(0));
    assert!(response.ok.is_none() && metadata(&response, TOKEN).is_none());
    assert_eq!(metadata(&response, REASON).as_deref(), Some(Reason::Rate.name()));
    let denied = response.denied.unwrap();
    assert_eq!(denied.status.map(|status| status.code), Some(503));
    assert!(denied.body.contains("temporary-reduced-capacity"));
    let headers: Vec<HeaderValue> = denied.headers.into_iter().filter_map(|h| h.header).collect();
    for (name, value) in [
        ("retry-after", "7"),
        ("content-type", "application/problem+json"),
        ("ratelimit-policy", "\"shop\";q=812;w=1"),
        ("x-envoy-ratelimited", "true"),
    ] {
        let found = headers.iter().find(|header| header.key == name).unwrap();
        assert_eq!(found.value, value);
    }
}

/// An entry of the log: status and times in milliseconds.
fn entry(code: Option<u32>, common: AccessLogCommon) -> HttpAccessLogEntry {
    let token = Struct::of([(TOKEN, bytes(b"00000000000000ff"))].into_iter());
    let by_filter = vec![FilterMetadata {
        filter: bytes(b"envoy.filters.http.ext_authz"),
        values: Some(token),
    }];
    let common = AccessLogCommon { metadata: Some(Metadata { by_filter }), ..common };
    let response = Some(HttpResponseProperties { code: code.map(|value| UInt32 { value }) });
    HttpAccessLogEntry { common: Some(common), response }
}

fn ms(ms: i64) -> Option<messages::Duration> {
    let nanos = i32::try_from(ms % 1000).unwrap() * 1_000_000;
    Some(messages::Duration { seconds: ms / 1000, nanos })
}

/// The times with the server: sending from, to, receiving from, to; and the whole.
fn times([a, b, c, d]: [i64; 4], whole: i64) -> AccessLogCommon {
    AccessLogCommon {
        first_upstream_tx: ms(a),
        last_upstream_tx: ms(b),
        first_upstream_rx: ms(c),
        last_upstream_rx: ms(d),
        last_downstream_tx: ms(whole),
        duration: ms(whole),
        ..AccessLogCommon::default()
    }
}

#[test]
fn an_entry_of_the_log_is_a_completion() {
    let local = AccessLogCommon { duration: ms(3), ..AccessLogCommon::default() };
    let cut = ResponseFlags { upstream_connection_termination: true, ..ResponseFlags::default() };
    let cut = AccessLogCommon { flags: Some(cut), ..times([1, 1, 11, 13], 20) };
    let connected = AccessLogCommon { last_downstream_tx: ms(5), ..AccessLogCommon::default() };
    for (what, code, common, found) in [
        ("plain", Some(200), times([1, 1, 11, 1013], 2000), (200, Some(11), Some(1013))),
        (
            "a body sent slowly",
            Some(200),
            times([1, 501, 511, 513], 514),
            (200, Some(11), Some(13)),
        ),
        ("an early response", Some(413), times([1, 501, 11, 601], 602), (413, Some(1), Some(591))),
        ("no server", Some(503), local.clone(), (503, None, Some(3))),
        ("the client left", Some(0), local.clone(), (0, None, Some(3))),
        ("nothing said", None, local, (0, None, Some(3))),
        ("cut off", Some(200), cut.clone(), (502, Some(11), Some(13))),
        ("cut off before", Some(503), cut, (503, Some(11), Some(13))),
        ("no duration", Some(504), connected, (504, None, Some(5))),
        ("no time", Some(200), AccessLogCommon::default(), (200, None, None)),
    ] {
        let (token, completion) = log::report(&entry(code, common)).unwrap().unwrap();
        assert_eq!(token.to_string(), "00000000000000ff");
        let ms = |time: Option<Nanos>| time.map(|time| time.0 / 1_000_000);
        let Completion { status, first_byte, duration, .. } = completion;
        assert_eq!((status, ms(first_byte), ms(duration)), found, "{what}");
    }
}

#[test]
fn other_entries_are_none() {
    let plain = || entry(Some(200), AccessLogCommon::default());
    let mut refused = plain();
    refused.common.as_mut().unwrap().metadata = None;
    assert_eq!(log::report(&refused), Ok(None));
    let mut begun = plain();
    begun.common.as_mut().unwrap().intermediate = true;
    assert_eq!(log::report(&begun), Ok(None));
    let mut foreign = plain();
    let metadata = foreign.common.as_mut().unwrap().metadata.as_mut().unwrap();
    metadata.by_filter[0].filter = bytes(b"envoy.filters.http.lua");
    assert_eq!(log::report(&foreign), Ok(None), "of another filter");
    let mut odd = plain();
    let metadata = odd.common.as_mut().unwrap().metadata.as_mut().unwrap();
    metadata.by_filter[0].values = Some(Struct::of([(TOKEN, bytes(b"\xff"))].into_iter()));
    assert!(log::report(&odd).is_err());
    assert!(log::report(&entry(Some(1000), AccessLogCommon::default())).is_err());
    assert!(log::report(&entry(Some(70_000), AccessLogCommon::default())).is_err());
    assert!(log::report(&HttpAccessLogEntry::default()).is_err());
    let entries = vec![odd, plain(), refused];
    let message = StreamAccessLogsMessage { http: Some(HttpAccessLogEntries { entries }) };
    assert_eq!(envoy_reports(&message.encode_to_vec()).unwrap().len(), 1);
    assert_eq!(envoy_reports(b"\x12\xff"), None);
}

#[test]
fn times_that_are_none_do_not_count() {
    for (seconds, nanos) in [(-1, 0), (0, -1), (0, 1_000_000_000), (i64::MAX, 0), (1_000_001, 0)] {
        let odd = Some(messages::Duration { seconds, nanos });
        let common = AccessLogCommon {
            first_upstream_tx: odd,
            last_upstream_rx: odd,
            duration: odd,
            ..AccessLogCommon::default()
        };
        let (_, completion) = log::report(&entry(Some(200), common)).unwrap().unwrap();
        assert_eq!((completion.first_byte, completion.duration), (None, None));
    }
}

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entries = entries.iter().map(|(key, value)| pair(key.as_bytes(), value.as_bytes()));
    RateLimitDescriptor { entries: entries.collect() }
}

/// What the gate is asked: method, target, host, the header `x-tier`, and the client.
fn asked_by(descriptors: Vec<RateLimitDescriptor>) -> Option<([String; 4], Option<IpAddr>)> {
    let mut asked = None;
    let message = RateLimitRequest { descriptors }.encode_to_vec();
    let told = envoy_rate_limit(&message, |ask| {
        let own = |text: Option<&str>| text.unwrap_or("none").to_owned();
        let tier = ask.headers.get("X-Tier");
        let found = [own(Some(ask.method)), own(Some(ask.target)), own(ask.host), own(tier)];
        asked = Some((found, ask.client));
        passing()
    });
    assert_eq!(told.is_some(), asked.is_some());
    asked
}

#[test]
fn the_entries_of_all_descriptors_are_one_question() {
    let client: Option<IpAddr> = Some([192, 0, 2, 7].into());
    let found = |fields: [&str; 4], client| Some((fields.map(str::to_owned), client));
    let request = descriptor(&[("method", "GET"), ("path", "/a?b"), ("host", "shop.example")]);
    let address = descriptor(&[("remote_address", "192.0.2.7"), ("x-tier", "gold")]);
    assert_eq!(
        asked_by(vec![request.clone(), address.clone()]),
        found(["GET", "/a?b", "shop.example", "gold"], client)
    );
    assert_eq!(asked_by(vec![address]), found(["-", "/", "none", "gold"], client));
    let odd = descriptor(&[("remote_address", "shop"), ("generic_key", "x"), ("host", "")]);
    assert_eq!(asked_by(vec![odd]), found(["-", "/", "none", "none"], None));
    let twice = descriptor(&[("x-tier", "gold"), ("host", "shop.example")]);
    assert_eq!(
        asked_by(vec![twice.clone(), twice]),
        found(["-", "/", "shop.example", "gold"], None),
        "what two descriptors have in common is one header"
    );
    assert_eq!(
        asked_by(vec![RateLimitDescriptor::default()]),
        found(["-", "/", "none", "none"], None)
    );
    assert_eq!(asked_by(vec![]), None);
    assert!(asked_by(vec![request.clone(); 64]).is_some());
    assert_eq!(asked_by(vec![request; 65]), None);
    assert_eq!(ratelimit::passes(65).overall_code, 1);
}

#[test]
fn over_the_limit_all_descriptors_are_and_the_response_is_told() {
    let message = RateLimitRequest { descriptors: vec![descriptor(&[("path", "/")]); 2] };
    let told = |answer| {
        let told = envoy_rate_limit(&message.encode_to_vec(), |_| answer).unwrap();
        RateLimitResponse::decode(told.as_slice()).unwrap()
    };
    let codes = |told: &RateLimitResponse| {
        (told.overall_code, told.statuses.iter().map(|status| status.code).collect::<Vec<_>>())
    };
    let passed = told(passing());
    assert_eq!(codes(&passed), (1, vec![1, 1]));
    let token = passed.dynamic_metadata.as_ref().and_then(|metadata| metadata.text(TOKEN));
    assert_eq!(token, Some(&b"00000000000000ff"[..]));
    assert!(passed.body.is_empty() && passed.response_headers.is_empty());
    let refused = told(refusing());
    assert_eq!(codes(&refused), (2, vec![2, 2]));
    assert!(refused.dynamic_metadata.is_some_and(|metadata| metadata.text(TOKEN).is_none()));
    let retry_after = refused.response_headers.iter().find(|header| header.key == "retry-after");
    assert_eq!(retry_after.map(|header| header.value.as_ref()), Some(&b"7"[..]));
    assert!(String::from_utf8(refused.body.to_vec()).unwrap().contains("reduced-capacity"));
}

/// The frames that were said: kind and payload.
fn frames(mut said: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut all = Vec::new();
    while let [a, b, c, kind, _, _, _, _, _, rest @ ..] = said {
        let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        all.push((*kind, rest[..length].to_vec()));
        said = &rest[length..];
    }
    all
}

/// After a stall all that Envoy has given up meanwhile comes at once. It is no attack, and the log of the same
/// connection shall go on.
#[test]
fn questions_that_were_given_up_during_a_stall_do_not_end_the_connection() {
    let (data, headers, reset, settings, goaway) = (0, 1, 3, 4, 7);
    let (end_stream, end_headers, enhance_your_calm) = (1, 4, 11_u32);
    let text = "services: {shop: {mode: enforce}}
gateways: {edge: {adapter: envoy, listen: '127.0.0.1:9470', routes: [{service: shop}]}}
";
    let config = parse(text, &Registry::new(["fresh_first"], ["default"])).unwrap();
    let gate = Arc::new(Gate::new(&config, 7));
    let edge = Unbound::new(Arc::clone(&gate), Arc::new(MonotonicClock), &config.gateways[0]);
    let edge = edge.unwrap();
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    // POST, http, and the path as a literal that is not indexed.
    let path = [&[0x83, 0x86, 0x04, u8::try_from(CHECK.len()).unwrap()], CHECK.as_bytes()].concat();
    let message = question(request()).encode_to_vec();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let message = [&[0], &length[..], &message].concat();
    // With what code each is reset, and whether it was sent as a whole.
    let ends =
        |codes: &[Option<u32>], whole: bool| {
            let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
            bytes.extend(frame(settings, 0, 0, &[]));
            for (stream, code) in (0..).map(|n| 2 * n + 1).zip(codes) {
                bytes.extend(frame(headers, end_headers, stream, &path));
                if whole {
                    bytes.extend(frame(data, end_stream, stream, &message));
                }
                bytes.extend(code.map_or_else(Vec::new, |code: u32| {
                    frame(reset, 0, stream, &code.to_be_bytes())
                }));
            }
            let said = frames(&edge.connection(&bytes).unwrap());
            let calm = enhance_your_calm.to_be_bytes();
            said.iter().any(|(kind, payload)| *kind == goaway && payload[4..8] == calm)
        };
    let counted = || (gate.state().misunderstood, gate.totals(0).unwrap().offered);
    // Half of them by NO_ERROR, as Envoy does it, or CANCEL: nothing is asked, and nothing is odd.
    assert!(!ends(&[Some(0); 64], false) && !ends(&[Some(8); 64], false));
    assert_eq!(counted(), (0, 0));
    assert!(!ends(&[None; 2], true));
    assert_eq!(counted(), (0, 2), "those that are waited for");
    // That nobody waits for a whole one cannot be seen.
    assert!(!ends(&[Some(0); 64], true));
    assert_eq!(counted(), (0, 66));
    assert!(!ends(&[Some(0); GIVEN_UP_MAX], false));
    assert!(ends(&[Some(0); GIVEN_UP_MAX + 1], false));
    assert_eq!(gate.state().misunderstood, 1);
}
