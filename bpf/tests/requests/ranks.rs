// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Conversations about who is refused first, and who last.

use super::super::support::talk::host::Rules;
use super::super::support::talk::{CLIENT_ISN, SERVER_ISN, Talk};
use super::{Case, case, get, ok, request};

/// Five tokens, of which a later request of a connection must leave four.
pub(super) fn persistent() -> Vec<Case> {
    vec![
        case("persistent connections are closed first", |talk| {
            talk.open().asks(&get("/close")).answers(&ok(1, 1)).asks(&get("/close"));
        })
        .rules(Rules { reserve: [0, 4], ..Rules::default() }),
        case("a new connection is served when a persistent one is closed", |talk| {
            talk.open().asks(&get("/close")).answers(&ok(1, 1)).asks(&get("/close"));
            another(talk);
            talk.open().asks(&get("/close")).answers(&ok(1, 1));
        })
        .rules(Rules { reserve: [0, 4], ..Rules::default() }),
    ]
}

/// A second connection of the same client's.
fn another(talk: &mut Talk<'_>) {
    talk.port += 1;
    (talk.client, talk.server) = (CLIENT_ISN, SERVER_ISN);
    talk.note("on another connection");
}

/// Five tokens, of which a request without the cookie must leave four.
pub(super) fn protected() -> Vec<Case> {
    fn with(cookies: &str) -> String {
        request("GET", "/shop", &format!("Cookie: {cookies}\r\n"))
    }
    let rules = Rules { used: [5, 1], reserve: [4, 4], ..Rules::default() };
    vec![
        case("with its cookie a request is admitted where one without is refused", |talk| {
            talk.open().asks(&with("a=1; session=7f; b=2")).answers(&ok(1, 1)).asks(&get("/shop"));
        })
        .rules(rules)
        .fails(),
        case("without its cookie a request is refused, with it admitted", |talk| {
            talk.open().asks(&get("/shop"));
            another(talk);
            talk.open().asks(&with("session=7f")).answers(&ok(1, 1));
        })
        .rules(rules),
        case("a later request with the cookie is admitted, too", |talk| {
            talk.open().asks(&get("/free")).answers(&ok(1, 1));
            talk.asks(&with("session=7f")).answers(&ok(1, 1)).asks(&with("session=7f"));
        })
        .rules(rules),
        case("a cookie whose name only begins so protects nobody", |talk| {
            talk.open().asks(&with("sessions=7f; Session=7f; x=session"));
        })
        .rules(rules),
        case("protected requests are refused, too, when nothing is left", |talk| {
            talk.open().asks(&with("session=7f"));
        })
        .rules(Rules { used: [5, 5], ..rules }),
        case("a head that is cut before its cookies passes", |talk| {
            talk.open().asks("GET /shop HTTP/1.1\r\nHost: shop.example\r\nCookie: ses");
            talk.asks("sion=7f\r\n\r\n").answers(&ok(1, 1));
        })
        .rules(Rules { used: [5, 5], ..rules }),
    ]
}
