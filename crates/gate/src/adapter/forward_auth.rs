// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Questions of proxies that ask by X-Forwarded-Method, -Host, -Uri and -For, pass a request on 2xx, and
//! give any other response to the client as it is: Caddy and Traefik.
//!
//! A question without method or target is counted, and passes. A refusal has no header that is not meant
//! for the client. The target of the question itself is the proxy's: it may name a slot (see [`super::closed`]).

use super::Context;
use super::closed::Slot;
use super::http::{self, Reply};
use crate::{Ask, Headers, STATUS};
use http_body_util::Full;
use hyper::StatusCode;
use hyper::http::request::Parts;
use std::net::{IpAddr, SocketAddr};

/// The method of the client's request.
const METHOD: &str = "x-forwarded-method";
/// Its path and query, as the client sent them.
const URI: &str = "x-forwarded-uri";
/// Its host.
const HOST: &str = "x-forwarded-host";
/// Whose it is, and through which proxies it came.
const FOR: &str = "x-forwarded-for";

/// Asks for nothing but whether somebody listens: Traefik has health checks.
const HEALTH: &str = "/tidegate/health";

pub(super) fn answer(context: &Context, request: &Parts) -> Reply {
    if request.uri.path() == HEALTH {
        return http::of_status(StatusCode::NO_CONTENT);
    }
    let headers = http::received(&request.headers);
    let (Some(method), Some(target)) = (headers.get(METHOD), headers.get(URI)) else {
        context.misunderstood();
        return http::of_status(StatusCode::NO_CONTENT);
    };
    let hop = usize::from(context.config.client_hop);
    let ask = Ask {
        gateway: &context.config.name,
        method,
        host: headers.get(HOST).filter(|host| !host.is_empty()),
        target,
        client: headers.get(FOR).and_then(|forwarded| client(forwarded, hop)),
        request_id: headers.get(http::REQUEST),
        reported_by_id: false,
        share: None,
        turn: None,
        headers: &headers,
    };
    let answer = context.ask_of_slot(request.uri.query().and_then(Slot::of), ask);
    let Some(refusal) = &answer.refusal else { return http::passes(&answer) };
    let status = StatusCode::from_u16(STATUS).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    http::refuses(status, refusal).map(|_| Full::from(refusal.body()))
}

/// The client of a request by X-Forwarded-For: the element at this place from the end; 1 is the last,
/// which the proxy that asks has written. What stands before it is the word of whoever sent it.
/// `None`: there are not so many, or it is no address.
#[must_use]
pub fn client(forwarded: &str, hop: usize) -> Option<IpAddr> {
    let element = forwarded.rsplit(',').nth(hop.checked_sub(1)?)?.trim();
    let plain = element.strip_prefix('[').and_then(|e| e.strip_suffix(']')).unwrap_or(element);
    // The zone of a link-local address is of no use here.
    let plain = plain.split_once('%').map_or(plain, |(address, _)| address);
    let with_port = || element.parse::<SocketAddr>().map(|address| address.ip());
    plain.parse().or_else(|_| with_port()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_what_the_proxy_has_written() {
        for (forwarded, hop, found) in [
            ("192.0.2.7", 1, Some("192.0.2.7")),
            ("6.6.6.6, 192.0.2.7", 1, Some("192.0.2.7")),
            ("6.6.6.6,192.0.2.7, 10.0.0.1", 2, Some("192.0.2.7")),
            ("2001:db8::7", 1, Some("2001:db8::7")),
            ("[2001:db8::7]", 1, Some("2001:db8::7")),
            ("[2001:db8::7]:443", 1, Some("2001:db8::7")),
            ("192.0.2.7:50000", 1, Some("192.0.2.7")),
            ("fe80::1%eth0", 1, Some("fe80::1")),
            ("192.0.2.7", 2, None),
            ("192.0.2.7", 0, None),
            ("192.0.2.7, unknown", 1, None),
            ("192.0.2.7,", 1, None),
            ("", 1, None),
        ] {
            let found = found.map(|address| address.parse::<IpAddr>().unwrap());
            assert_eq!(client(forwarded, hop), found, "{forwarded:?} at {hop}");
        }
    }

    /// What the example makes Caddy ask, with its placeholders filled in.
    #[test]
    fn the_examples_question_says_its_slot() {
        const EXAMPLE: &str = include_str!("../../../../packaging/Caddyfile");
        let mut questions = EXAMPLE.lines().filter_map(|line| line.trim().strip_prefix("uri /?"));
        let question = questions.next().unwrap();
        let filled = question
            .replace("{tidegate.slot}", "a7")
            .replace("{http.vars.tidegate_tenth}", "1764350000.2");
        let slot = Slot::of(&filled);
        assert!(slot.is_some() && questions.next().is_none());
        assert_eq!(slot, Slot::of("slot=a7&at=1764350000.2"));
    }
}
