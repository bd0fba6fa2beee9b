// SPDX-License-Identifier: Apache-2.0 OR MIT
//! nginx: `auth_request` by HTTP. 204 passes a request; 403 makes nginx send the 503, whose parts are
//! in the headers of the response. docs/gateways.md has the configuration of nginx for both.
//!
//! nginx sets the headers that are asked for, so a client's own of the same name do not come here. A
//! question without them is counted, and passes: any other status would be a 500 for the client.
//!
//! The target of a question may name a slot and nginx's time (see [`super::closed`]): no client can write there, as
//! it could into a header that nginx does not set.

use super::closed::Slot;
use super::http::{self, Reply, Served};
use super::listen::{Stream, datagrams, streams};
use super::{Context, nginx_report};
use crate::asked::PARTS;
use crate::{Ask, Headers, Id};
use hyper::StatusCode;
use hyper::http::request::Parts;
use std::net::IpAddr;
use tidegate_units::{Clock, DayClock};

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
    let slot = request.uri.query().and_then(Slot::of);
    let share = slot.and_then(|slot| context.closed.share(slot));
    let answer = context.ask(&Ask {
        gateway: &context.config.name,
        method,
        host: headers.get(HOST).filter(|host| !host.is_empty()),
        target,
        client: headers.get(CLIENT).and_then(|client| client.parse::<IpAddr>().ok()),
        request_id: headers.get(http::REQUEST),
        reported_by_id: false,
        share,
        headers: &headers,
    });
    if let Some(slot) = slot {
        context.closed.tell((slot, DayClock.now()), answer.share.unwrap_or(PARTS));
    }
    let Some(refusal) = &answer.refusal else { return http::passes(&answer) };
    let mut reply = http::refuses(StatusCode::FORBIDDEN, refusal);
    http::give_reason(&mut reply, &answer);
    reply
}
