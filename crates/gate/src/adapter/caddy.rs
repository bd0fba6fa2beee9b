// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Caddy: `forward_auth`; completions by its access log, one line of JSON a datagram of UDP:
//!
//! ```text
//! {"level":"info","ts":1795657665.2,"logger":"http.log.access.log0","msg":"handled request",
//!  "user_id":"0123456789abcdef 1.5 3.25 0.4","duration":0.006,"size":3,"status":200}
//! ```
//!
//! The token is the field `tidegate`, or `user_id`, which is what a configuration can set in any version. Behind it may be, in
//! milliseconds, how long the application took to the head and to the end of its response, and how long Caddy waited for our answer.
//! docs/gateways.md has the configuration of Caddy for both.

use super::http::{self, Served};
use super::listen::{Stream, datagrams, streams};
use super::syslog::time;
use super::{Context, forward_auth};
use crate::{Completion, Id, Token};
use serde::Deserialize;
use tidegate_units::Nanos;

/// Serves until it is dropped.
pub(super) async fn serve(context: Context) {
    let asked = streams(&context, http::ALPN, attend);
    let Some(endpoint) = &context.config.completions else { return asked.await };
    let reported =
        datagrams(&context, endpoint, |context, datagram| match caddy_report(datagram) {
            // A request that is not followed is logged as well.
            Ok(report) => {
                if let Some((token, completion)) = report {
                    context.complete(Id::Token(token), &completion);
                }
            }
            Err(_) => context.misunderstood(),
        });
    tokio::join!(asked, reported);
}

/// Serves one connection to its end.
pub(super) async fn attend(context: Context, stream: Box<dyn Stream>) {
    let served = Served {
        answer: |context, request, _| forward_auth::answer(context, request),
        body_max: 0,
    };
    http::attend(context, stream, served).await;
}

/// What a line has of what is needed here.
#[derive(Deserialize)]
struct Line {
    status: u16,
    /// In seconds.
    duration: f64,
    #[serde(default)]
    tidegate: Option<String>,
    #[serde(default)]
    user_id: Option<String>,
}

/// What a datagram of Caddy reports: `Ok(None)` of a request that is not followed.
///
/// Caddy's own time is from the head of the request to the end of the response, the question included. It does not hold
/// responses back, so as long as the client takes what the server sends the server works on it.
///
/// # Errors
/// What is not understood.
pub fn caddy_report(datagram: &[u8]) -> Result<Option<(Token, Completion)>, &'static str> {
    let line: Line = serde_json::from_slice(datagram).map_err(|_| "no line of an access log")?;
    let status = Some(line.status).filter(|status| *status < 1000).ok_or("no status")?;
    let duration = time(line.duration).ok_or("no time")?;
    let said = [line.tidegate, line.user_id].into_iter().flatten().find_map(|id| said(&id));
    Ok(said.map(|Said { token, took, waited }| {
        // Caddy 2.7 and newer say 0 of a response that was cut off.
        let whole = Some(duration).filter(|whole| *whole > Nanos::ZERO);
        let (first_byte, end) = took.unzip();
        (token, Completion { status, first_byte, duration: end.or(whole), waited })
    }))
}

/// What our field of a line says.
struct Said {
    token: Token,
    /// What the application took to the head and to the end of its response.
    took: Option<(Nanos, Nanos)>,
    /// What Caddy waited for the answer.
    waited: Option<Nanos>,
}

fn said(field: &str) -> Option<Said> {
    let mut parts = field.split(' ');
    let token = parts.next()?.parse().ok()?;
    let mut millis = || time(parts.next()?.parse::<f64>().ok()? / 1e3);
    let (took, waited) = (millis().zip(millis()), millis());
    Some(Said { token, took, waited })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_caddy_writes_is_understood() {
        let begin = r#"{"level":"info","ts":1795657665.2353697,"logger":"http.log.access.log0","msg":"handled request""#;
        for (rest, found) in [
            (
                r#""user_id":"00000000000000ff","duration":0.006,"size":3,"status":200"#,
                Some((200, 6)),
            ),
            (
                r#""duration":0.006,"status":0,"tidegate":"00000000000000ff","user_id":"bob""#,
                Some((0, 6)),
            ),
            (r#""user_id":"","duration":0.05,"size":3,"status":503"#, None),
            (r#""user_id":"bob","duration":0.05,"size":3,"status":200"#, None),
            (r#""duration":1,"status":200"#, None),
        ] {
            let line = format!("{begin},{rest}}}\n");
            let report = caddy_report(line.as_bytes()).unwrap().map(|(token, completion)| {
                assert_eq!(token.to_string(), "00000000000000ff");
                (completion.status, completion.duration.unwrap().0 / 1_000_000)
            });
            assert_eq!(report, found, "{line}");
        }
    }

    #[test]
    fn the_applications_part_is_the_servers_time() {
        let millis = Nanos::from_millis;
        let whole = (None, Some(millis(50)), None);
        let (head, end) = (Some(Nanos(1_500_000)), Some(Nanos(3_250_000)));
        for (id, found) in [
            ("00000000000000ff 1.5 3.25 20", (head, end, Some(millis(20)))),
            ("00000000000000ff 1.5 3.25", (head, end, None)),
            ("00000000000000ff 1.5 3.25 -", (head, end, None)),
            ("00000000000000ff", whole),
            ("00000000000000ff ", whole),
            ("00000000000000ff 1.5", whole),
            ("00000000000000ff 0.4  0.4", (None, Some(millis(50)), Some(Nanos(400_000)))),
            ("00000000000000ff  ", whole),
            ("00000000000000ff 1.5 x", whole),
            ("00000000000000ff -1 3", whole),
        ] {
            let line = format!(r#"{{"user_id":"{id}","duration":0.05,"status":200}}"#);
            let (token, completion) = caddy_report(line.as_bytes()).unwrap().unwrap();
            assert_eq!(token.to_string(), "00000000000000ff");
            let Completion { first_byte, duration, waited, .. } = completion;
            assert_eq!((first_byte, duration, waited), found, "{id:?}");
        }
        let cut = br#"{"user_id":"00000000000000ff 1.5  0.4","duration":0,"status":200}"#;
        assert_eq!(caddy_report(cut).unwrap().unwrap().1.duration, None, "the gate has its own");
        let refused = br#"{"user_id":" 1.5 3.25","duration":0.05,"status":503}"#;
        assert!(caddy_report(refused).unwrap().is_none());
    }

    #[test]
    fn anything_else_is_not() {
        for line in [
            "",
            "{}",
            "[1]",
            r#"{"user_id":"00000000000000ff","status":200}"#,
            r#"{"user_id":"00000000000000ff","duration":0.1}"#,
            r#"{"user_id":"00000000000000ff","duration":"0.1s","status":200}"#,
            r#"{"user_id":"00000000000000ff","duration":-0.1,"status":200}"#,
            r#"{"user_id":"00000000000000ff","duration":1e9,"status":200}"#,
            r#"{"user_id":"00000000000000ff","duration":0.1,"status":1000}"#,
            r#"{"user_id":"00000000000000ff","duration":0.1,"status":200,"status":201}"#,
            r#"{"user_id":"00000000000000ff","duration":0.1,"status":200"#,
        ] {
            assert!(caddy_report(line.as_bytes()).is_err(), "{line}");
        }
        assert!(caddy_report(b"\xff\xfe").is_err());
    }
}
