// SPDX-License-Identifier: Apache-2.0 OR MIT
//! nginx: `auth_request` by HTTP. 204 passes a request; 403 makes nginx send the 503, whose parts are
//! in the headers of the response. docs/gateways.md has the configuration of nginx for both.
//!
//! nginx sets the headers that are asked for, so a client's own of the same name do not come here. A
//! question without them is counted, and passes: any other status would be a 500 for the client.
//!
//! The target of a question may name a slot and nginx's time (see [`super::closed`]), and the worker of nginx with the time
//! at which its turn began: no client can write there, as it could into a header that nginx does not set.

use super::closed::Slot;
use super::http::{self, Reply, Served};
use super::listen::{Stream, datagrams, streams};
use super::{Context, nginx_report};
use crate::{Ask, Headers, Id, Turn};
use hyper::StatusCode;
use hyper::http::request::Parts;
use std::net::IpAddr;
use tidegate_units::Nanos;

/// The method of the client's request.
const METHOD: &str = "x-tidegate-method";
/// Its target, as the client sent it.
const URI: &str = "x-tidegate-uri";
/// Its host.
const HOST: &str = "x-tidegate-host";
/// The client's address.
const CLIENT: &str = "x-tidegate-client";

/// Serves until it is dropped.
pub(super) async fn serve(context: Context) {
    let asked = streams(&context, http::ALPN, attend);
    let Some(endpoint) = &context.config.completions else { return asked.await };
    let reported =
        datagrams(&context, endpoint, |context, datagram| match nginx_report(datagram) {
            Some((token, completion)) => context.complete(Id::Token(token), &completion),
            None => context.misunderstood(),
        });
    tokio::join!(asked, reported);
}

/// Serves one connection to its end.
pub(super) async fn attend(context: Context, stream: Box<dyn Stream>) {
    http::attend(context, stream, Served { answer, body_max: 0 }).await;
}

fn answer(context: &Context, request: &Parts, _: &[u8]) -> Reply {
    let headers = http::received(&request.headers);
    let (Some(method), Some(target)) = (headers.get(METHOD), headers.get(URI)) else {
        context.misunderstood();
        return http::of_status(StatusCode::NO_CONTENT);
    };
    let (slot, turn) = request.uri.query().map_or((None, None), said);
    let ask = Ask {
        gateway: &context.config.name,
        method,
        host: headers.get(HOST).filter(|host| !host.is_empty()),
        target,
        client: headers.get(CLIENT).and_then(|client| client.parse::<IpAddr>().ok()),
        request_id: headers.get(http::REQUEST),
        reported_by_id: false,
        share: None,
        turn,
        headers: &headers,
    };
    let answer = context.ask_of_slot(slot, ask);
    let Some(refusal) = &answer.refusal else { return http::passes(&answer) };
    let mut reply = http::refuses(StatusCode::FORBIDDEN, refusal);
    http::give_reason(&mut reply, &answer);
    reply
}

/// What the target of a question says: `slot=a7&at=1764350000.2&turn=4242-1764350000.234`, or the last of them alone.
fn said(query: &str) -> (Option<Slot>, Option<Turn>) {
    let (slot, turn) = query.rsplit_once("turn=").unwrap_or((query, ""));
    (Slot::of(slot.strip_suffix('&').unwrap_or(slot)), turn_of(turn))
}

/// `$pid-$msec`: nginx looks at its clock once a turn.
fn turn_of(text: &str) -> Option<Turn> {
    let (worker, began) = text.split_once('-')?;
    let (seconds, millis) = began.split_once('.')?;
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if millis.len() != 3 || ![worker, seconds, millis].into_iter().all(all_digits) {
        return None;
    }
    let millis =
        seconds.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(millis.parse().ok()?)?;
    let began = Nanos(millis.checked_mul(Nanos::from_millis(1).0)?);
    Some(Turn { worker: worker.parse().ok()?, began })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Turn = Turn { worker: 4242, began: Nanos::from_millis(1_764_350_000_234) };

    #[test]
    fn a_question_says_its_slot_and_its_turn_or_one_of_them() {
        let slot = Slot::of("slot=a7&at=1764350000.2");
        assert!(slot.is_some());
        for (query, expected) in [
            ("slot=a7&at=1764350000.2&turn=4242-1764350000.234", (slot, Some(TURN))),
            ("slot=a7&at=1764350000.2", (slot, None)),
            ("turn=4242-1764350000.234", (None, Some(TURN))),
            ("", (None, None)),
            ("turn=", (None, None)),
            ("slot=a7&at=1764350000.2&turn=4242", (slot, None)),
            ("slot=a7&at=1764350000.2&turn=-1.234", (slot, None)),
            ("slot=a7&at=1764350000.2&turn=4242-1764350000.2", (slot, None)),
            ("slot=a7&at=1764350000.2&turn=4242-+764350000.234", (slot, None)),
            ("turn=4242-99999999999999999.234", (None, None)),
            ("turn=99999999999-1764350000.234", (None, None)),
        ] {
            assert_eq!(said(query), expected, "{query}");
        }
    }

    /// What the example makes nginx ask, with its variables filled in.
    #[test]
    fn the_examples_question_says_both() {
        const EXAMPLE: &str = include_str!("../../../../packaging/nginx.conf");
        let targets = EXAMPLE.lines().filter_map(|line| {
            let of =
                line.trim().trim_start_matches("#tls").trim().strip_prefix("proxy_pass http")?;
            Some(of.split_once("://tidegate/?")?.1.trim_end_matches(';'))
        });
        let filled = targets.map(|target| {
            [
                ("$tidegate_slot_high", "a"),
                ("$tidegate_slot_low", "7"),
                ("$tidegate_tenth", "1764350000.2"),
                ("$pid", "4242"),
                ("$msec", "1764350000.234"),
            ]
            .iter()
            .fold(target.to_owned(), |target, (name, value)| target.replace(name, value))
        });
        let said: Vec<_> = filled.map(|query| said(&query)).collect();
        assert_eq!(said, [(Slot::of("slot=a7&at=1764350000.2"), Some(TURN)), (None, Some(TURN))]);
    }
}
