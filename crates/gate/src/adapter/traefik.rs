// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Traefik: `forwardAuth`; completions by its access log over OTLP (HTTP with protobuf), to `/v1/logs`
//! where it asks. The body of each record is a line of JSON:
//!
//! ```text
//! {"ClientUsername":"0123456789abcdef","DownstreamStatus":200,"Duration":6100000,"OriginDuration":6000000,
//!  "level":"info","msg":"","time":"2026-11-26T01:47:45Z"}
//! ```
//!
//! The token is in `ClientUsername` (`headerField` of forwardAuth), or in the header that forwardAuth has
//! set, where the log keeps it. docs/gateways.md has the configuration of Traefik for both.

use super::http::{self, Reply, Served};
use super::listen::{Stream, streams};
use super::syslog::NANOS_MAX;
use super::{Context, forward_auth};
use crate::{Completion, Id, Token};
use flate2::read::GzDecoder;
use hyper::header::CONTENT_ENCODING;
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use serde::Deserialize;
use std::borrow::Cow;
use std::io::Read as _;
use tidegate_units::Nanos;

/// Where reports come.
const LOGS: &str = "/v1/logs";
/// Longest export: Traefik sends up to 512 records at once, of 500 bytes with these fields alone.
const EXPORT_MAX: usize = 4 << 20;

/// Serves until it is dropped.
pub(super) async fn serve(context: Context) {
    streams(&context, http::ALPN, attend).await;
}

/// Serves one connection to its end.
pub(super) async fn attend(context: Context, stream: Box<dyn Stream>) {
    http::attend(context, stream, Served { answer, body_max: EXPORT_MAX }).await;
}

fn answer(context: &Context, request: &Parts, body: &[u8]) -> Reply {
    if request.uri.path() != LOGS || request.method != Method::POST {
        return forward_auth::answer(context, request);
    }
    let packed = request.headers.get(CONTENT_ENCODING).is_some_and(|coding| coding == "gzip");
    let understood = unpack(body, packed).and_then(|body| {
        traefik_export(&body, |line| match traefik_report(line) {
            Ok(Some((token, completion))) => context.complete(Id::Token(token), &completion),
            // A request that is not followed is logged as well.
            Ok(None) => {}
            Err(_) => context.misunderstood(),
        })
    });
    // An empty body is the whole answer of OTLP.
    match understood {
        Ok(()) => http::of_status(StatusCode::OK),
        Err(_) => {
            context.misunderstood();
            http::of_status(StatusCode::BAD_REQUEST)
        }
    }
}

/// The body of an export; Traefik packs it by gzip.
fn unpack(body: &[u8], packed: bool) -> Result<Cow<'_, [u8]>, Malformed> {
    if !packed {
        return Ok(Cow::Borrowed(body));
    }
    let mut out = Vec::new();
    // What is packed may be a thousand times as long.
    let read = GzDecoder::new(body).take(EXPORT_MAX as u64 + 1).read_to_end(&mut out);
    let fits = read.is_ok_and(|length| length <= EXPORT_MAX);
    if fits { Ok(Cow::Owned(out)) } else { Err("no gzip, or too long") }
}

/// What a line has of what is needed here.
#[derive(Deserialize)]
struct Line {
    #[serde(rename = "DownstreamStatus")]
    status: u16,
    /// From the request to the end of the response, in nanoseconds.
    #[serde(rename = "Duration")]
    duration: u64,
    /// Of it, what the server took; none was asked: not there.
    #[serde(rename = "OriginDuration", default)]
    origin: Option<u64>,
    #[serde(rename = "ClientUsername", default)]
    user: Option<String>,
    #[serde(rename = "request_X-Tidegate-Token", default)]
    header: Option<String>,
}

/// What a line of Traefik's access log reports: `Ok(None)` of a request that is not followed.
///
/// # Errors
/// What is not understood.
pub fn traefik_report(line: &[u8]) -> Result<Option<(Token, Completion)>, &'static str> {
    let line: Line = serde_json::from_slice(line).map_err(|_| "no line of an access log")?;
    let status = Some(line.status).filter(|status| *status < 1000).ok_or("no status")?;
    let duration = line.origin.unwrap_or(line.duration);
    let duration = Some(duration).filter(|ns| *ns <= NANOS_MAX).ok_or("no time")?;
    let token = [line.user, line.header].into_iter().flatten().find_map(|id| id.parse().ok());
    let completion =
        Completion { status, duration: Some(Nanos(duration)), ..Completion::default() };
    Ok(token.map(|token| (token, completion)))
}

/// Gives the text of each record of an export (opentelemetry-proto, `ExportLogsServiceRequest`) to `take`:
/// resource logs 1, scope logs 2, log record 2, body 5, string value 1.
///
/// # Errors
/// What is no such message; what stands before it was given.
pub fn traefik_export(bytes: &[u8], mut take: impl FnMut(&[u8])) -> Result<(), &'static str> {
    of(bytes, 1, &mut |resource| {
        of(resource, 2, &mut |scope| {
            of(scope, 2, &mut |record| {
                of(record, 5, &mut |body| {
                    of(body, 1, &mut |text| {
                        take(text);
                        Ok(())
                    })
                })
            })
        })
    })
}

type Malformed = &'static str;

/// Gives the bytes of each field with this number and a length to `take`; others are skipped. The encoding
/// of protobuf: protobuf.dev/programming-guides/encoding.
fn of(
    mut bytes: &[u8],
    wanted: u64,
    take: &mut dyn FnMut(&[u8]) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let (number, kind) = (tag >> 3, tag & 7);
        let length = match kind {
            0 => varint(&mut bytes).map(|_| 0)?,
            1 => 8,
            2 => varint(&mut bytes)?,
            5 => 4,
            _ => return Err("no kind of a field"),
        };
        let length = usize::try_from(length).map_err(|_| "too long")?;
        let (field, rest) = bytes.split_at_checked(length).ok_or("cut off")?;
        bytes = rest;
        if kind == 2 && number == wanted {
            take(field)?;
        }
    }
    Ok(())
}

/// At most ten bytes of seven bits each, the lowest first.
fn varint(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or("cut off")?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("too long a number")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2];
        let mut length = bytes.len();
        while length >= 0x80 {
            out.push(length as u8 | 0x80);
            length >>= 7;
        }
        out.push(length as u8);
        out.extend(bytes);
        out
    }

    /// A record with a time, a severity and this text.
    fn record(text: &str) -> Vec<u8> {
        let mut record = vec![1 << 3 | 1, 0, 0, 0, 0, 0, 0, 0, 0, 2 << 3, 9];
        record.extend(field(5, &field(1, text.as_bytes())));
        record.extend([8 << 3 | 5, 1, 0, 0, 0]);
        field(2, &record)
    }

    #[test]
    fn what_is_packed_is_bounded() {
        use flate2::{Compression, write::GzEncoder};
        use std::io::Write as _;
        for (length, fits) in [(0, true), (EXPORT_MAX, true), (EXPORT_MAX + 1, false)] {
            let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
            packed.write_all(&vec![0; length]).unwrap();
            let packed = packed.finish().unwrap();
            let unpacked = unpack(&packed, true).map(|bytes| bytes.len());
            assert_eq!(unpacked.ok(), fits.then_some(length));
            assert!(unpack(&packed[..packed.len() - 1], true).is_err(), "cut off");
        }
        assert_eq!(unpack(b"x", false).unwrap().as_ref(), b"x");
        assert!(unpack(b"x", true).is_err());
    }

    fn texts(bytes: &[u8]) -> (Vec<String>, bool) {
        let mut texts = Vec::new();
        let take = |text: &[u8]| texts.push(String::from_utf8(text.to_vec()).unwrap());
        let understood = traefik_export(bytes, take).is_ok();
        (texts, understood)
    }

    #[test]
    fn the_text_of_each_record_is_found() {
        let long = "x".repeat(300);
        let scope: Vec<u8> = [field(1, b"\x0a\x07traefik"), record("one"), record(&long)].concat();
        let export =
            field(1, &[field(1, b""), field(2, &scope), field(2, &record("three"))].concat());
        let all = vec!["one".to_owned(), long, "three".to_owned()];
        assert_eq!(texts(&export), (all.clone(), true));
        assert_eq!(texts(&[]), (Vec::new(), true), "nothing happened");
        for end in 1..export.len() {
            let (found, understood) = texts(&export[..end]);
            assert!(!understood && found.len() < all.len(), "cut off at {end}");
        }
        for bytes in [&[0x0b][..], &[0x0a, 0x80], &[0xff; 11], &[0x0a, 1, 7]] {
            assert!(!texts(bytes).1, "{bytes:?}");
        }
    }

    #[test]
    fn what_traefik_writes_is_understood() {
        for (fields, found) in [
            (
                r#""ClientUsername":"00000000000000ff","DownstreamStatus":200,"Duration":7000000,"OriginDuration":6000000"#,
                Some((200, 6)),
            ),
            (
                r#""ClientUsername":"00000000000000ff","DownstreamStatus":499,"Duration":7000000"#,
                Some((499, 7)),
            ),
            (
                r#""ClientUsername":"bob","DownstreamStatus":200,"Duration":7000000,"request_X-Tidegate-Token":"00000000000000ff""#,
                Some((200, 7)),
            ),
            (r#""ClientUsername":"-","DownstreamStatus":503,"Duration":7000000"#, None),
        ] {
            let line = format!("{{{fields},\"level\":\"info\",\"msg\":\"\"}}\n");
            let report = traefik_report(line.as_bytes()).unwrap().map(|(token, completion)| {
                assert_eq!(token.to_string(), "00000000000000ff");
                (completion.status, completion.duration.unwrap().0 / 1_000_000)
            });
            assert_eq!(report, found, "{line}");
        }
        for line in [
            "",
            "{}",
            r#"{"ClientUsername":"00000000000000ff","DownstreamStatus":200}"#,
            r#"{"ClientUsername":"00000000000000ff","DownstreamStatus":2000,"Duration":7}"#,
            r#"{"ClientUsername":"00000000000000ff","DownstreamStatus":200,"Duration":-7}"#,
            r#"{"ClientUsername":"00000000000000ff","DownstreamStatus":200,"Duration":1000000000000000001}"#,
        ] {
            assert!(traefik_report(line.as_bytes()).is_err(), "{line}");
        }
    }
}
