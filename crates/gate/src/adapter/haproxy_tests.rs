// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Frames as HAProxy sends them, whole and in pieces, and what is none.

use super::*;
use crate::Refusal;
use tidegate_policy::Reason;

/// A frame: its type, stream and number, and its payload.
fn framed(kind: u8, frame_id: u64, payload: &[u8]) -> Vec<u8> {
    let mut body = vec![kind, 0, 0, 0, 1];
    spop::encode_varint_into(if frame_id > 0 { 300 } else { 0 }, &mut body);
    spop::encode_varint_into(frame_id, &mut body);
    body.extend_from_slice(payload);
    let mut frame = u32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
    frame.extend(body);
    frame
}

fn text(text: &str, out: &mut Vec<u8>) {
    spop::encode_varint_into(text.len() as u64, out);
    out.extend_from_slice(text.as_bytes());
}

/// HAPROXY-HELLO of HAProxy 2.6.
fn hello(healthcheck: bool, frame_max: u32) -> Vec<u8> {
    let string = |value: &str| TypedData::String(value.to_owned());
    let mut pairs = vec![
        ("supported-versions", string("2.0")),
        ("max-frame-size", TypedData::UInt32(frame_max)),
        ("capabilities", string("pipelining,async")),
    ];
    pairs.extend(healthcheck.then_some(("healthcheck", TypedData::Bool(true))));
    let mut payload = Vec::new();
    for (name, value) in pairs {
        text(name, &mut payload);
        value.to_bytes(&mut payload);
    }
    framed(1, 0, &payload)
}

fn message(name: &str, headers: &str) -> Message {
    let text = |name: &str, value: &str| (name.to_owned(), TypedData::String(value.to_owned()));
    let client = TypedData::IPv4([192, 0, 2, 7].into());
    let args = vec![
        text("method", "GET"),
        text("target", "/item?id=1"),
        ("client".to_owned(), client),
        text("id", "r-1"),
        text("headers", headers),
    ];
    Message { name: name.to_owned(), args }
}

/// NOTIFY.
fn notify(frame_id: u64, messages: &[Message]) -> Vec<u8> {
    let mut payload = Vec::new();
    for message in messages {
        text(&message.name, &mut payload);
        payload.push(u8::try_from(message.args.len()).unwrap());
        for (name, value) in &message.args {
            text(name, &mut payload);
            value.to_bytes(&mut payload);
        }
    }
    framed(3, frame_id, &payload)
}

fn refusal() -> Answer {
    let refusal = Refusal { reason: Reason::Rate, retry_after_s: 7, rate_limit: None };
    Answer {
        service: Some(0),
        reason: Reason::Rate,
        refused: true,
        token: None,
        refusal: Some(refusal),
        share: None,
    }
}

/// What a connection was asked: method, target, host, client, id, the header `a` and the cookies.
type Asked = [Option<String>; 7];

fn hear(talk: &mut Talk, received: &mut Vec<u8>) -> (bool, Vec<u8>, Vec<Asked>) {
    let (mut out, mut asked) = (Vec::new(), Vec::new());
    let goes_on = talk.hear(received, &mut out, |ask| {
        let header = |name| ask.headers.get(name).map(str::to_owned);
        asked.push([
            Some(ask.method.to_owned()),
            Some(ask.target.to_owned()),
            ask.host.map(str::to_owned),
            ask.client.map(|client| client.to_string()),
            ask.request_id.map(str::to_owned),
            header("A"),
            header("cookie"),
        ]);
        refusal()
    });
    (goes_on, out, asked)
}

/// The type of each frame.
fn types(mut bytes: &[u8]) -> Vec<u8> {
    let mut types = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        types.push(rest[0]);
        bytes = &rest[u32::from_be_bytes(*length) as usize..];
    }
    types
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn a_question_is_read_and_a_refusal_is_told() {
    let mut talk = Talk::default();
    let (goes_on, out, _) = hear(&mut talk, &mut hello(false, 16_380));
    assert!(goes_on);
    assert_eq!(types(&out), [101]);
    let headers = "host: shop.example\r\nA: 1\r\ncookie: a=1\r\na:\t2 \r\nCookie: b=2\r\n\r\n";
    let mut frames = notify(1, &[message("ask", headers)]);
    frames.extend(notify(2, &[message("ask", "")]));
    let (goes_on, out, asked) = hear(&mut talk, &mut frames);
    assert!(goes_on && frames.is_empty());
    assert_eq!(types(&out), [103, 103], "pipelined");
    let some = |text: &str| Some(text.to_owned());
    let first = [
        some("GET"),
        some("/item?id=1"),
        some("shop.example"),
        some("192.0.2.7"),
        some("r-1"),
        some("1, 2"),
        some("a=1; b=2"),
    ];
    assert_eq!(asked[0], first);
    assert_eq!(asked[1][2..3], [None], "no host");
    for part in ["refuse", "retry_after", "7", "temporary-reduced-capacity", "reason", "rate"] {
        assert!(contains(&out, part), "{part}");
    }
    assert!(!contains(&out, "token") && !contains(&out, "ratelimit"));
    assert_eq!(talk.misunderstood(), 0);
}

/// Only where the message says what share was asked about, the answer names one.
#[test]
fn a_share_is_told_where_it_is_asked_for() {
    let told = |asked: Option<TypedData>, share| {
        let mut question = message("ask", "");
        question.args.extend(asked.map(|asked| ("asked".to_owned(), asked)));
        let (mut talk, mut out, mut had) = (Talk::default(), Vec::new(), None);
        let mut received = [hello(false, 16_380), notify(1, &[question])].concat();
        assert!(talk.hear(&mut received, &mut out, |ask| {
            had = ask.share;
            Answer { share, ..refusal() }
        }));
        (had, contains(&out, "\x04asks\x03"))
    };
    assert_eq!(told(None, None), (None, false));
    assert_eq!(told(Some(TypedData::Null), None), (Some(PARTS), false));
    assert_eq!(told(Some(TypedData::Int64(1_500)), Some(2_000)), (Some(1_500), true));
    assert_eq!(told(Some(TypedData::Int64(-1)), Some(2_000)), (Some(PARTS), true), "no share");
    assert_eq!(told(Some(TypedData::Bool(true)), Some(2_000)), (Some(PARTS), true));
}

/// However the bytes are cut, the same is asked and answered.
#[test]
fn frames_may_come_in_pieces() {
    let mut bytes = hello(false, 1_024);
    bytes
        .extend(notify(1, &[message("ask", "host: a\r\n\r\n"), message("ask", "host: b\r\n\r\n")]));
    let whole = hear(&mut Talk::default(), &mut bytes.clone());
    for size in 1..40 {
        let (mut talk, mut buffer) = (Talk::default(), Vec::new());
        let (mut out, mut asked) = (Vec::new(), Vec::new());
        for piece in bytes.chunks(size) {
            buffer.extend_from_slice(piece);
            let (goes_on, more, also) = hear(&mut talk, &mut buffer);
            assert!(goes_on);
            out.extend(more);
            asked.extend(also);
        }
        assert_eq!((types(&out), &asked), (types(&whole.1), &whole.2), "{size} bytes a piece");
    }
}

#[test]
fn a_health_check_is_answered_and_closed() {
    let (goes_on, out, _) = hear(&mut Talk::default(), &mut hello(true, 16_380));
    assert!(!goes_on);
    assert_eq!(types(&out), [101]);
}

/// Each is counted once, told why if it can be, and closed; nobody is asked.
#[test]
fn what_is_no_haproxy_is_closed() {
    let question = notify(1, &[message("ask", "")]);
    let again = [hello(false, 16_380), hello(false, 16_380)].concat();
    let long = [hello(false, 256), notify(1, &[message("ask", &"h: 1\r\n".repeat(50))])].concat();
    let cases: [(&str, &[u8]); 6] = [
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01"),
        ("HTTP", b"GET / HTTP/1.1\r\n\r\n"),
        ("an unknown type", &[0, 0, 0, 7, 9, 0, 0, 0, 1, 0, 0]),
        ("no hello", &question),
        ("two hellos", &again),
        ("longer than agreed", &long),
    ];
    for (what, bytes) in cases {
        let mut talk = Talk::default();
        let (goes_on, out, asked) = hear(&mut talk, &mut bytes.to_vec());
        assert!(!goes_on && asked.is_empty(), "{what}");
        assert_eq!(types(&out).last(), Some(&102), "{what}");
        assert_eq!(talk.misunderstood(), 1, "{what}");
    }
}

/// A message of another name, or without what is needed: HAProxy waits for the acknowledgement of all.
#[test]
fn an_unknown_message_is_counted_and_acknowledged() {
    let mut talk = Talk::default();
    hear(&mut talk, &mut hello(false, 16_380));
    let empty = Message { name: "ask".to_owned(), args: Vec::new() };
    let (goes_on, out, asked) = hear(&mut talk, &mut notify(1, &[message("other", ""), empty]));
    assert!(goes_on && asked.is_empty());
    assert_eq!((types(&out), talk.misunderstood()), (vec![103], 2));
}

/// A frame type that only agents send is none of HAProxy's.
#[test]
fn a_frame_of_an_agent_is_refused() {
    let mut talk = Talk::default();
    hear(&mut talk, &mut hello(false, 16_380));
    let mut ack = Ack::new(1, 1).serialize().unwrap();
    let (goes_on, out, _) = hear(&mut talk, &mut ack);
    assert!(!goes_on);
    assert_eq!(types(&out), [102]);
}
